"""min_difference: what runs of one analyst tell of few rows, taken from one another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import combinations, product

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.request import Asked
from sqlfl.contract.schema import Client
from sqlfl.governance import differencing
from sqlfl.governance.differencing import MarkedRows, isolates
from sqlfl.governance.proposals import marked
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.conftest import Open
from tests.depth import THOROUGH
from tests.governance.clinic import (
    GRANT,
    PATIENTS,
    QUERY,
    REQUEST,
    SLOT,
    TESTS,
    TRAIN,
    Ask,
    prepared,
    ruled,
)
from tests.governance.two_worlds import LAB, MADE, OWN, VALUES, Draw, draws, world
from tests.open_databases import in_memory

LEAST = 5
RULE = f"min_difference = {LEAST}"
REFUSED = rf"min_difference = {LEAST}, of rows that runs have apart"


def where(condition: str) -> str:
    return f"{TRAIN[:-1]} WHERE {condition})"


# -- combinations of counts ------------------------------------------------------------------------


def rows(counts: np.ndarray) -> MarkedRows:
    chosen = np.flatnonzero(counts)
    return MarkedRows(chosen.astype(np.uint64), counts[chosen].astype(np.float64))


def fewest(counts: np.ndarray) -> int:
    """Of all combinations of the lines of counts (m, n), that are not of none: by trying which
    rows can be all that is left."""
    n = counts.shape[1]
    whole = np.linalg.matrix_rank(counts)
    for size in range(1, n):
        for left in combinations(range(n), size):
            if np.linalg.matrix_rank(np.delete(counts, left, axis=1)) < whole:
                return size
    return n


@pytest.mark.parametrize("seed", range(150))
def test_no_combination_is_of_fewer_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, m, least = 9, int(random.integers(1, 4)), int(random.integers(2, 5))
    high = int(random.choice([2, 2, 4]))
    counts = random.integers(0, high, (m, n))
    if seed % 3 == 0 and m > 1:  # one that follows from the others, and a row more
        counts[-1] = counts[:-1].sum(axis=0)
        counts[-1, random.integers(n)] += 1
    before: list[MarkedRows] = []
    kept = []
    for line in counts:
        if line.any() and not isolates(before, rows(line), least):
            before.append(rows(line))
            kept.append(line)
    if kept:
        assert fewest(np.array(kept)) >= least


@pytest.mark.parametrize("least", [2, 3, 5, 20])
def test_as_many_rows_as_the_rule_says_are_enough(least: int) -> None:
    def ones(*places: range) -> MarkedRows:
        counts = np.zeros(100)
        counts[[p for own in places for p in own]] = 1
        return rows(counts)

    everyone, few = range(100), range(least)
    assert not isolates([], ones(few), least)
    assert isolates([], ones(range(least - 1)), least)
    assert not isolates([ones(everyone)], ones(range(least, 100)), least)
    assert isolates([ones(everyone)], ones(range(least - 1, 100)), least)
    assert not isolates([ones(everyone)], ones(everyone), least)
    apart = [ones(range(k, k + least)) for k in range(0, 60, least)]
    assert not isolates(apart, ones(range(60, 100)), least)
    # neither of these two has few that the other has not
    halves = [ones(range(50)), ones(range(50, 100 - 1))]
    assert not isolates(halves[:1], halves[1], least)
    assert isolates(halves, ones(everyone), least)


def test_few_rows_that_one_run_has_and_another_not() -> None:
    """Also where the other has many that the one has not."""
    before, now = np.zeros(100), np.zeros(100)
    before[:54] = now[:50] = now[60:] = 1
    assert isolates([rows(before)], rows(now), 5)
    assert isolates([rows(now)], rows(before), 5)
    assert not isolates([rows(before)], rows(now), 4)


def test_a_run_without_a_row_tells_of_none() -> None:
    none, many = rows(np.zeros(100)), rows(np.ones(100))
    assert not isolates([], none, LEAST)
    assert not isolates([many], none, LEAST)
    assert not isolates([none], many, LEAST)


def test_more_rows_than_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differencing, "MAX_NUMBERS", 200)
    many = rows(np.ones(100))
    assert not isolates([many], many, LEAST)
    with pytest.raises(PolicyError, match="3 sets of up to 100 rows are too many"):
        isolates([many, many], many, LEAST)


def test_rows_that_count_for_much_are_as_few() -> None:
    counts = np.ones(100)
    counts[7] = 1000
    assert isolates([], rows(counts), LEAST)
    # the difference is of one row, and of little of the others
    noisy = np.full(100, 1000.0) + np.arange(100) % 2
    noisy[7] += 1000
    assert isolates([rows(np.full(100, 1000.0))], rows(noisy), LEAST)
    assert isolates([rows(np.full(100, 2.0**31))], rows(np.full(100, 2.0**31) + counts), LEAST)


def test_equal_rows_are_counted_apart() -> None:
    same = np.full(6, 17, np.uint64)
    six = MarkedRows.of(same, np.ones(6))
    assert len(np.unique(six.marks)) == 6
    four = MarkedRows.of(same[:4], np.ones(4))
    assert np.isin(four.marks, six.marks).all()
    assert MarkedRows.of(same, np.array([0, 0, 1, 1, 1, 1])).digest == four.digest


# -- marks -----------------------------------------------------------------------------------------

WIDE = """SELECT 1 AS "A b", 'x"''' AS "select", TIMESTAMPTZ '2020-01-01 00:00:00+00' AS z,
  [1, NULL] AS l, {'p': 1.5} AS s, NULL AS n, 'ä' AS "from" UNION ALL SELECT 2, NULL,
  NULL, NULL, NULL, NULL, NULL"""


@pytest.mark.parametrize("text", [
    'SELECT "A b" FROM t', "SELECT 1 AS x from main.t as q",
    'SELECT "from" FROM memory.main.t "a.b"',
    """SELECT l IS DISTINCT FROM NULL AS d, extract('year' FROM z) AS y, ' FROM ' AS f
    FROM t WHERE n IS NOT DISTINCT FROM NULL -- FROM""",
    "SELECT /* FROM t */ z FROM t;",
])  # fmt: skip
def test_a_mark_follows_from_the_row(database: Open, text: str) -> None:
    con = database(f"CREATE TABLE t AS {WIDE}")
    table = ("memory", "main", "t")
    found = con.execute(marked(con, text, table)).fetchall()
    before = con.execute(text).fetchall()
    assert [row[:-1] for row in found] == before
    con.execute("SET TimeZone = 'Asia/Tokyo'")
    con.execute("CREATE TABLE u AS SELECT * FROM t ORDER BY 1 DESC")
    other = marked(con, 'SELECT z FROM u AS "x y"', ("memory", "main", "u"))
    marks = {row[-1] for row in con.execute(f"SELECT sqlfl_mark FROM ({other})").fetchall()}
    assert {row[-1] for row in found} == marks
    assert len(marks) == 2


def test_a_mark_is_put_where_duckdb_reads_it(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT 1 AS x")
    with pytest.raises(PolicyError, match="names"):
        marked(con, "SELECT y FROM t AS u(y)", ("memory", "main", "t"))
    with pytest.raises(PolicyError, match="known again"):
        marked(con, "FROM t SELECT x", ("memory", "main", "t"))


# -- statements ------------------------------------------------------------------------------------


@pytest.fixture
def clinic(database: Open) -> duckdb.DuckDBPyConnection:
    con = database(PATIENTS)
    ruled(con, RULE)
    return con


def test_a_run_that_leaves_one_row_out(fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    fed.sql(TRAIN)
    before = list(fed.models)
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(where("p.bmi < 0.9999"))
    fed.sql(where("p.age > 30"))
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(where("p.age > 30 OR p.bmi > 0.9999"))
    assert list(fed.models) == before


def test_rows_that_another_table_leaves_out(fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(where("t.crp > -0.9999"))
    fed.sql(where("t.crp > 0"))
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(where("t.crp > 0.01"))


def test_what_is_allowed_under_the_rule(fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    fed.sql(TRAIN.replace("clinic.patients p JOIN lab.tests t",
                          "lab.tests t LEFT JOIN clinic.patients p")
            .replace("p.days", "t.crp * 2 AS days"))  # fmt: skip
    fed.sql(TRAIN.replace("FROM (", "WITH (validation_fraction = 0.2, seed = 1) FROM (", 1))
    fed.sql(TRAIN.replace("FROM (", "WITH (algorithm = 'admm', epochs = 3, engine = 'sql') FROM (",
                          1))  # fmt: skip
    fed.sql(f"EVALUATE MODEL m FROM ({QUERY})")
    assert fed.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow().num_rows == 300


@pytest.mark.parametrize(("change", "said"), [
    (lambda s: f"{s[:-1]} UNION ALL {QUERY} WHERE p.ward = 'w1')", "once in a query"),
    (lambda s: s.replace("clinic.patients p", "(SELECT pid, age, bmi, ward, days FROM "
     "clinic.patients LIMIT 299) p"), "in one row of the query"),
    (lambda s: s.replace("clinic.patients p", "(SELECT pid, max(age) AS age, max(bmi) AS bmi, "
     "first(ward) AS ward, max(days) AS days FROM clinic.patients GROUP BY pid) p"),
     "in one row of the query"),
])  # fmt: skip
def test_what_the_rule_does_not_take(
    fed: sqlfl.Federation, change: Callable[[str], str], said: str
) -> None:
    assert said in " ".join(str(fed.explain(change(TRAIN))).split())
    with pytest.raises(PolicyError, match=said):
        fed.sql(change(TRAIN))


def test_a_view_is_known_by_its_rows(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    clinic.execute("CREATE VIEW grown AS SELECT DISTINCT * FROM patients WHERE age >= 25")
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("patients", "grown"))
    text = TRAIN.replace("clinic.patients", "clinic.grown")
    fed.sql(text)
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(f"{text[:-1]} WHERE p.bmi < 0.9999)")


@pytest.mark.parametrize("value", ["now()", "random()", "current_date - DATE '2026-01-01'"])
def test_rows_that_are_others_each_time_are_refused(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, value: str
) -> None:
    """No run over them differs from another one by few rows, whichever it leaves out."""
    clinic.execute(f"CREATE VIEW asked AS SELECT *, {value} AS at FROM patients")
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("patients", "asked"))
    text = TRAIN.replace("clinic.patients", "clinic.asked")
    said = r"min_difference = \d, and rows of main\.asked are others each time that they are read"
    assert re.search(said, " ".join(str(fed.explain(text)).split()))
    with pytest.raises(PolicyError, match=said):
        fed.sql(text)
    clinic.execute("CREATE TABLE copied AS FROM asked")
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("patients", "copied"))
    fed.sql(TRAIN.replace("clinic.patients", "clinic.copied"))


def test_a_table_and_a_view_of_it_are_not_compared(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """A view may leave out one row, or change the others so that none is known again."""
    clinic.execute("CREATE VIEW most AS SELECT * FROM patients WHERE pid <> 17")
    clinic.execute("CREATE VIEW changed AS SELECT * REPLACE (salary + 1 AS salary) FROM most")
    clinic.execute("CREATE TABLE copied AS FROM patients")
    with sqlfl.owner(clinic) as owner:
        for name in ("most", "changed", "copied"):
            owner.sql(GRANT.replace("patients", name))
    over = {name: TRAIN.replace("clinic.patients", f"clinic.{name}") for name in
            ("patients", "most", "changed", "copied")}  # fmt: skip
    fed.sql(over["most"])
    fed.sql(over["most"])
    for other in ("patients", "changed"):
        with pytest.raises(PolicyError, match=r"main\.most, which has rows of the same table"):
            fed.sql(over[other])
    fed.sql(over["copied"])  # of rows of its own
    clinic.execute("DELETE FROM sqlfl.seen WHERE name = 'most'")
    fed.sql(over["changed"])


@pytest.mark.parametrize(
    "change",
    [
        "DROP VIEW most",
        "CREATE OR REPLACE VIEW most AS FROM copied",
        "DELETE FROM patients; INSERT INTO patients SELECT * REPLACE (17 AS pid) FROM copied",
    ],
)
def test_a_view_is_known_by_the_tables_that_it_read(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, change: str
) -> None:
    """Its owner has dropped or replaced it since, or DuckDB knows that it has no row now."""
    clinic.execute("CREATE VIEW most AS SELECT * FROM patients WHERE pid <> 17")
    clinic.execute("CREATE TABLE copied AS FROM patients")
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("patients", "most"))
    fed.sql(TRAIN.replace("clinic.patients", "clinic.most"))
    clinic.execute(change)
    with pytest.raises(PolicyError, match=r"main\.most, which has rows of the same table"):
        fed.sql(TRAIN)


def test_rows_of_views_that_share_a_table(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """Check one run too, and a table of few rows. A copy of the table is another table."""
    clinic.execute("CREATE TABLE wards AS SELECT 'w' || i AS ward, i AS beds FROM range(4) AS r(i)")
    clinic.execute("CREATE VIEW ill AS SELECT p.*, beds FROM patients AS p JOIN wards USING (ward)")
    clinic.execute("CREATE TABLE visits AS SELECT pid, ward, 2 * bmi AS cost FROM patients")
    of_visits = "VIEW seen AS SELECT v.*, beds FROM visits AS v JOIN {} USING (ward)"
    clinic.execute(f"CREATE {of_visits.format('wards')}")
    grants = (
        GRANT.replace("patients", "ill"),
        "GRANT TRAIN (cost), JOIN (pid) ON seen TO 'acme' UNDER r",
    )
    with sqlfl.owner(clinic) as owner:
        for grant in grants:
            owner.sql(grant)
    train = TRAIN.replace("clinic.patients", "clinic.ill").replace("t.crp", "t.crp, s.cost")
    both = f"{train[:-1]} JOIN clinic.seen AS s ON t.pid = s.pid)"
    with pytest.raises(PolicyError, match=r"this run or an earlier one is over main\.(ill|seen),"):
        fed.sql(both)
    clinic.execute("DELETE FROM sqlfl.seen; CREATE TABLE again AS FROM wards")
    clinic.execute(f"CREATE OR REPLACE {of_visits.format('again')}")
    with sqlfl.owner(clinic) as owner:
        for grant in grants:
            owner.sql(grant)
    fed.sql(both)


def test_rows_that_are_changed_come_and_go(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(TRAIN)
    clinic.execute("UPDATE patients SET salary = salary + 1 WHERE pid = 7")
    with pytest.raises(PolicyError, match=REFUSED):
        fed.sql(TRAIN)
    clinic.execute("UPDATE patients SET salary = salary + 1 WHERE pid < 20")
    fed.sql(TRAIN)


def test_another_analyst_has_runs_of_their_own(
    clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("acme", "other"))
    for analyst, text in (("acme", TRAIN), ("other", where("p.bmi < 0.9999"))):
        with sqlfl.connect(analyst=analyst, progress=False) as fed:
            fed.attach("clinic", clinic)
            fed.attach("lab", database(TESTS))
            fed.sql(text)
    with sqlfl.connect(analyst="other", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach("lab", database(TESTS))
        with pytest.raises(PolicyError, match=REFUSED):
            fed.sql(TRAIN)


def test_a_slot_that_says_its_rows_are_marked(ask: Ask) -> None:
    text = "SELECT pid AS sqlfl_key_0_0, 7 AS sqlfl_mark FROM patients"
    assert isinstance(prepared(ask, text, replace(SLOT, marked=True)), ms.Failure)


# -- a coordinator that chooses rows ---------------------------------------------------------------


NAMED = replace(SLOT, identifiers=(0,))
ASKING = replace(REQUEST, asked=(*REQUEST.asked, Asked(0, "send_identifiers", "", "", 1)))


@pytest.fixture
def asks(clinic: duckdb.DuckDBPyConnection) -> Iterator[Callable[[str], Ask]]:
    """Of any analyst's coordinator, by hand."""
    with ExitStack() as stack:

        def of(analyst: str) -> Ask:
            with sqlfl.owner(clinic) as owner:
                owner.sql(f"""GRANT TRAIN (pid), FILTER (pid), IDENTIFY (pid), JOIN (pid)
                      ON patients
                    TO '{analyst}' UNDER r""")
            secret = b"\x07" * 32
            client = PartyClient(Client("clinic"), clinic, Secrets(secret, secret), analyst=analyst)
            stack.enter_context(closing(client))
            return lambda message: courier.ask(client, message)

        yield of


def joined(ask: Ask, run: str, ids: set[int], random: np.random.Generator) -> set[int] | None:
    """The rows of these numbers but for a few that are active in a run over them; None where that
    is refused."""
    listed = ", ".join(map(str, sorted(ids)))
    text = f"SELECT pid AS sqlfl_id_0, pid AS sqlfl_key_0_0 FROM patients WHERE pid IN ({listed})"
    if isinstance(prepared(ask, text, NAMED, ASKING, run), ms.Failure):
        return None
    few = min(len(ids), int(random.choice([0, 0, *range(9)])))
    left = np.sort(random.choice(len(ids), len(ids) - few, replace=False)).astype(np.uint32)
    ask(ms.SendKeys(run, 0))
    if isinstance(ask(ms.Activate(run, 0, left, np.ones_like(left), len(left))), ms.Failure):
        return set()
    told = ask(ms.SendIdentifiers(run, 0))
    assert isinstance(told, ms.Identifiers)
    return set(told.columns[0].to_pylist())


@pytest.mark.parametrize("held", [True, False], ids=["columns", "tables"])
def test_rows_are_known_again_by_the_ids_that_they_have_in_a_run(
    clinic: duckdb.DuckDBPyConnection, asks: Callable[[str], Ask], held: bool
) -> None:
    """Which follow the tags of its keys: groups of 10, 20, 40 and 80 rows come in another order in
    each run, and one of them without its last row differs by that."""
    sizes = "(VALUES (1, 10), (2, 20), (3, 40), (4, 80)) AS g(k, n)"
    clinic.execute(f"CREATE TABLE stays AS SELECT k, unnest(range(n)) AS i FROM {sizes}")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT JOIN (k) ON stays TO 'acme' UNDER r")
    ask, text = asks("acme"), "SELECT k AS sqlfl_key_0_0 FROM stays"
    slot = replace(SLOT, engine="arrays" if held else "sql")
    for run in range(8):
        assert isinstance(prepared(ask, text, slot, run=f"run {run}"), ms.Prepared)
        told = ask(ms.SendKeys(f"run {run}", 0))
        assert isinstance(told, ms.JoinKeys)
        group = np.flatnonzero(np.bincount(told.codes[0])[told.codes[0]] == 40).astype(np.uint32)
        group = group if run == 0 else group[:-1]
        reply = ask(ms.Activate(f"run {run}", 0, group, np.ones_like(group), len(group)))
        assert isinstance(reply, ms.Ready) is (run == 0), run


def assert_isolates_nobody(sets: list[set[int]]) -> None:
    for a, b in combinations(sets, 2):
        assert len(a - b) == 0 or len(a - b) >= LEAST
        assert len(b - a) == 0 or len(b - a) >= LEAST
    table = np.array([[number in own for number in range(300)] for own in sets], int)
    for factors in product(range(-3, 4), repeat=len(sets)):
        left = np.count_nonzero(np.array(factors, int) @ table) if sets else 0
        assert left == 0 or left >= LEAST


CASES = 50 if THOROUGH else 25


@pytest.mark.parametrize("block", range(20 if THOROUGH else 1))
def test_pairs_and_triples_of_statements(asks: Callable[[str], Ask], block: int) -> None:
    """The statements differ in few rows, by their conditions or by what is active."""
    random = np.random.default_rng(block)
    allowed = refused = 0
    for case in range(CASES):
        ask = asks(f"analyst {case}")
        whole = set(random.choice(300, int(random.integers(40, 300)), replace=False).tolist())
        taken: list[set[int]] = []
        active: list[set[int]] = []
        for number in range(int(random.integers(2, 4))):
            own = set(whole)
            if len(active) > 1 and random.random() < 0.7:
                a, b = active[0], active[1]
                own = [a | b, a - b, a & b, a ^ b][int(random.integers(4))]
            elif active and random.random() < 0.5:
                own = set(random.choice(300, 60, replace=False).tolist())
            own ^= set(
                random.choice(300, int(random.choice([0, *range(9)])), replace=False).tolist()
            )
            if not own:
                continue
            found = joined(ask, f"r{number}", own, random)
            taken += [own] * (found is not None)
            active += [found] if found else []
            allowed, refused = allowed + bool(found), refused + (not found)
        assert_isolates_nobody(taken)
        assert_isolates_nobody(active)
    assert allowed > 0.8 * CASES
    assert refused > 0.4 * CASES


# -- every kind of statement -----------------------------------------------------------------------

NUMBERS, TRUTHS = "p.age, p.bmi, t.crp, t.y", "p.age, p.bmi, t.crp, t.y > 0 AS high"
KINDS = {
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y": NUMBERS,
    "TRAIN OR REPLACE MODEL k USING logistic_regression TARGET high": TRUTHS,
    "TRAIN OR REPLACE MODEL o USING linear_regression TARGET y WEIGHT w": f"{NUMBERS}, {{w}} AS w",
    "TUNE OR REPLACE MODEL n USING linear_regression TARGET y WITH (l2 = [0.0, 0.1], folds = 3, "
    "seed = 1)": NUMBERS,
    "CHECK TARGET y": NUMBERS,
    "PREDICT MODEL m": "p.age, p.bmi, t.crp",
    **{f"{kind} OF MODEL m": NUMBERS for kind in ("METRICS", "RESIDUALS", "IMPORTANCE",
                                                  "INFERENCE", "SKEW", "CONTRIBUTIONS")},
    **{f"{kind} OF MODEL k": TRUTHS for kind in ("ROC", "CONFUSION", "CALIBRATION")},
}  # fmt: skip
"""Statement -> its columns. WEIGHT is 0 of two rows of which others take away."""


def test_no_kind_of_statement_is_of_rows_that_few_differ_from() -> None:
    """Whichever party's condition leaves two rows out."""
    with ExitStack() as stack:
        clinic, lab = (stack.enter_context(closing(duckdb.connect())) for _ in range(2))
        clinic.execute(PATIENTS)
        lab.execute(TESTS)
        lab.execute("ALTER TABLE tests ADD COLUMN y DOUBLE; UPDATE tests SET y = sin(3 * pid)")
        ruled(clinic, f"min_difference = {LEAST}, conditions = 'exact'")
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        fed.attach("clinic", clinic)
        fed.attach("lab", lab)
        for statement, columns in KINDS.items():

            def text(
                where: str, weight: str, statement: str = statement, columns: str = columns
            ) -> str:
                of = columns.format(w=weight)
                source = "clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
                return f"{statement} FROM (SELECT {of} FROM {source} {where})"

            fed.sql(text("", "1.0"))
            for where in ("WHERE p.bmi > -0.99985", "WHERE t.pid > 1"):
                with pytest.raises(PolicyError, match=REFUSED):
                    fed.sql(text(where, "1.0"))
            if "{w}" in columns:
                with pytest.raises(PolicyError, match=REFUSED):
                    fed.sql(text("", "CASE WHEN t.pid > 1 THEN 1.0 ELSE 0.0 END"))


# -- random statements whose conditions are of one party or of both --------------------------------

TESTED = f"{LAB.replace('range(', 'range(5, ')}; DELETE FROM tests WHERE pid % 10 = 7"
"""Tests of most patients: rows that a run takes are others than those that it joins."""
OF_CLINIC = (
    "TRUE", "TRUE", "p.pid % 2 = 0", "p.pid % 3 > 0", "p.pid < 40", "p.pid > 3", "p.pid > 4",
    "p.pid <> 17", "p.pid <> 30", "p.pid <> 31", "p.pid NOT IN (7, 27)",
)  # fmt: skip
OF_LAB = (
    "TRUE", "TRUE", "t.pid % 2 = 0", "t.pid % 3 > 0", "t.pid < 40", "t.pid > 7", "t.pid <> 30",
    "t.pid <> 31", "t.pid NOT IN (17, 30, 32, 33)", "t.crp > 0",
)  # fmt: skip
MEASURED = (
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (algorithm = 'sgd', "
    "epochs = 1) ", "CHECK TARGET y ", "METRICS OF MODEL own ", "PREDICT MODEL own ",
)  # fmt: skip


def conditions(draw: Draw) -> tuple[str, str]:
    """Conditions of the clinic's rows, and of the lab's."""
    name = draw.choice(("age", "bmi", "ill", "ward"))
    made = f"p.{name} {draw.choice(('=', '<>', '<', '>'))} {draw.choice(VALUES[name])}"
    return made if draw.random() < 0.2 else draw.choice(OF_CLINIC), draw.choice(OF_LAB)


def rows_of(con: duckdb.DuckDBPyConnection, clinic: str, lab: str) -> tuple[set[int], set[int]]:
    """The patients that a statement takes, and those that it joins."""
    joined = f"FROM patients p JOIN lab.tests t ON p.pid = t.pid WHERE ({clinic}) AND ({lab})"
    texts = f"SELECT p.pid FROM patients p WHERE {clinic}", f"SELECT p.pid {joined}"
    taken, both = (con.execute(text).fetchall() for text in texts)
    return {pid for (pid,) in taken}, {pid for (pid,) in both}


def test_random_statements_take_and_join_rows_that_many_differ_in() -> None:
    """Rows that a run takes, and rows that it joins, are each compared with those of other runs:
    either may be the same where the others differ in one row."""
    number = 300 if THOROUGH else 25
    both, one, refused = 0, 0, 0
    with ExitStack() as stack:
        clinic = stack.enter_context(world())
        lab, every = (stack.enter_context(in_memory()) for _ in range(2))
        lab.execute(TESTED)
        every.execute(MADE)
        every.execute(
            f"CREATE SCHEMA lab; {TESTED.replace('TABLE tests', 'TABLE lab.tests')}".replace(
                "FROM tests", "FROM lab.tests"
            )
        )
        ruled(
            clinic, "min_rows = 1, min_cell = 1, min_difference = 3, conditions = 'exact'",
            """GRANT FILTER (pid, ssn, age, bmi, ill, ward, info), JOIN (pid, ssn), PREDICT
            ON patients TO 'acme' UNDER r""",
        )  # fmt: skip
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        fed.attach("clinic", clinic)
        fed.attach("lab", lab)
        fed.sql(OWN[0])
        for case, draw in enumerate(draws(number)):
            clinic.execute("DELETE FROM sqlfl.seen")
            served: list[tuple[str, tuple[set[int], set[int]]]] = []
            for _ in range(4):
                conditions_ = conditions(draw)
                source = "clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
                rows = f"{source} WHERE ({conditions_[0]}) AND ({conditions_[1]})"
                text = f"{draw.choice(MEASURED)}FROM (SELECT t.crp, t.y FROM {rows})"
                try:
                    fed.sql(text)
                except PolicyError:
                    refused += 1
                    continue
                served.append((text, rows_of(every, *conditions_)))
            for (text, own), (before, others) in combinations(served, 2):
                for mine, other in zip(own, others, strict=True):
                    left = len(mine - other), len(other - mine)
                    assert not {1, 2} & {*left}, (case, before, text, left)
            one += len(served) > 1
            both += len({(frozenset(a), frozenset(b)) for _, (a, b) in served}) > 1
    print(f"{number} cases: {one} with several statements served, {both} with several sets of "
          f"rows; {refused} statements refused")  # fmt: skip
    assert one > number / 4
    assert both > number / 8
    assert refused > number / 2
