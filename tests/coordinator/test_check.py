"""CHECK against the same numbers of the central join."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import Error, OptionError, ParseError, PlanError
from tests.depth import combinations
from tests.open_databases import in_memory

COLUMNS = "t.x, t.c, t.f, t.v, u.z, u.g"
LEAST = 3


def filled(seed: int) -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(seed)
    n, m = 140, 70
    x = np.round(rng.normal(size=n), 1)
    t = pa.table({
        "k": pa.array(rng.integers(0, 40, n), mask=rng.random(n) < 0.1),
        "x": pa.array(x, mask=rng.random(n) < 0.2),
        "c": pa.array(rng.choice(list("aaabbcdefgh"), n), mask=rng.random(n) < 0.1),
        "f": rng.random(n) < 0.3,
        "v": pa.array([None, *[[1.0, 2.0]] * 4] * (n // 5), pa.list_(pa.float32(), 2)),
        "y": np.round(2 * x + rng.normal(size=n), 2),
    })  # fmt: skip
    u = pa.table(
        {
            "k": pa.array(rng.integers(10, 60, m), mask=rng.random(m) < 0.1),
            "z": rng.exponential(size=m),
            "g": rng.choice(["low", "high"], m),
        }
    )
    return t, u


class Case:
    """A table in `parts` databases of one party, another with a second party, and both together."""

    def __init__(self, seed: int, parts: int, combine: bool) -> None:
        t, u = filled(seed)
        self.parts = parts
        self.connections = [in_memory() for _ in range(parts + 2)]
        cons = [manager.__enter__() for manager in self.connections]
        self.own, two, self.central = cons[:parts], cons[parts], cons[-1]
        for number, con in enumerate(self.own):
            con.register("given", t.take(pa.array(np.arange(number, len(t), parts))))
            con.execute("CREATE TABLE t AS FROM given")
        for con in (two, self.central):
            con.register("given", u)
            con.execute("CREATE TABLE u AS FROM given")
        db = np.arange(len(t)) % parts
        self.central.register("whole", t.append_column("db", pa.array(db)))
        self.central.execute("CREATE TABLE t AS FROM whole")
        self.fed = sqlfl.connect(progress=False)
        self.fed.attach("one", self.own, combine=combine)
        self.fed.attach("two", two)

    def close(self) -> None:
        self.fed.close()
        for manager in self.connections:
            manager.__exit__(None, None, None)

    def rows(self, text: str) -> dict[str, Any]:
        """Of the central join, by column."""
        found = self.central.sql(text).to_arrow_table().to_pydict()
        return {name: np.array(values, object) for name, values in found.items()}


DATABASES = {"one": (1, False), "several": (3, False), "combined": (3, True)}


@pytest.fixture(params=DATABASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found = Case(int(np.random.default_rng().integers(1 << 30)), *DATABASES[request.param])
    yield found
    found.close()


def by_name(result: sqlfl.Result, part: str) -> dict[str, dict[str, Any]]:
    rows = [row for row in result.arrow().to_pylist() if row["part"] == part]
    return {row["table"] if part in ("key", "table") else row["name"]: row for row in rows}


def explained(values: np.ndarray, targets: np.ndarray, databases: np.ndarray, n: int) -> float:
    """ε² of the targets (N, K) between groups of equal values within a database."""
    groups: dict[Any, list[int]] = {}
    for row, key in enumerate(zip(values, databases, strict=True)):
        groups.setdefault(key, []).append(row)
    within = total = 0.0
    for rows in groups.values():
        within += float(((targets[rows] - targets[rows].mean(axis=0)) ** 2).sum())
    for database in set(databases):
        own = targets[databases == database]
        total += float(((own - own.mean(axis=0)) ** 2).sum())
    share = 1 - within / total
    return max(0.0, 1 - (1 - share) * (n - 1) / (n - len(groups)))


@pytest.mark.parametrize(
    ("case", "outer", "engine"),
    combinations(tuple(DATABASES), ("", "LEFT"), ("sql", "arrays")),
    indirect=["case"],
)
def test_the_numbers_are_those_of_the_central_join(case: Case, outer: str, engine: str) -> None:
    federated = f"FROM one.t t {outer} JOIN two.u u USING (k)"
    options = f"WITH (min_cell = {LEAST}, engine = '{engine}')"
    found = case.fed.sql(f"CHECK TARGET y {options} FROM (SELECT {COLUMNS}, t.y {federated})")
    joined = case.rows(
        f"SELECT {COLUMNS}, t.y, t.db, t.rowid AS rt, u.rowid AS ru FROM t {outer} JOIN u USING (k)"
    )
    total = len(joined["y"])
    (query,) = by_name(found, "query").values()
    assert query["rows"] == total

    for name, row, size in (("t", "rt", 140), ("u", "ru", 70)):
        present = [r for r in joined[row] if r is not None]
        _, counts = np.unique(np.array(present), return_counts=True)
        table = by_name(found, "table")[name]
        # rows that can join nothing do not leave their database: they are no rows of an inner join
        nulls = (
            0
            if outer and name == "t"
            else case.central.execute(f"SELECT count(*) FROM {name} WHERE k IS NULL").fetchall()[0][
                0
            ]
        )
        assert table["rows"] == size - nulls
        assert table["matched"] == pytest.approx(len(counts) / table["rows"])
        assert table["fan_out"] == pytest.approx(counts.mean())
        assert table["fan_out_p99"] == np.quantile(counts, 0.99, method="higher")
        assert table["fan_out_max"] == counts.max()

    keys = {row["table"]: row for row in found.arrow().to_pylist() if row["part"] == "key"}
    for name in ("t", "u"):
        counted = case.central.execute(f"SELECT count(DISTINCT k) FROM {name}").fetchall()
        assert [(keys[name]["distinct"],)] == counted

    features = by_name(found, "feature")
    for name in ("x", "c", "f", "v", "z", "g"):
        values = joined[name]
        gone = np.array([value is None for value in values])
        assert features[name]["missing"] == pytest.approx(gone.mean()), name
    for name, row in (("x", "rt"), ("z", "ru")):
        once = {r: v for r, v in zip(joined[row], joined[name], strict=True) if v is not None}
        databases = dict(zip(joined[row], joined["db"], strict=True))
        ends = []
        for database in range(case.parts if name == "x" else 1):
            own = sorted(
                float(v) for r, v in once.items() if name == "z" or databases[r] == database
            )
            ends.append((own[LEAST - 1], own[-LEAST], len(set(own))))
        assert features[name]["low"] == pytest.approx(min(low for low, _, _ in ends), rel=1e-6)
        assert features[name]["high"] == pytest.approx(max(high for _, high, _ in ends), rel=1e-6)
        assert features[name]["distinct"] == max(size for _, _, size in ends)
        present = np.array([float(v) for v in joined[name] if v is not None])
        assert features[name]["mean"] == pytest.approx(present.mean(), rel=1e-5)
    assert features["c"]["low"] is None
    assert features["v"]["distinct"] is None

    y = joined["y"].astype(float)[:, None]
    # the row that stands for no partner is one of u's
    active = {"t": len(set(joined["rt"])), "u": len(set(joined["ru"]))}
    several = np.array(joined["db"].tolist())
    alone = np.zeros(total, int)
    for name, databases, table in (("f", several, "t"), ("g", alone, "u")):
        n = min(total, active["t"], active[table])
        wanted = explained(joined[name], y, databases, n)
        assert features[name]["explains"] == pytest.approx(wanted, abs=1e-5), name


def test_classes_are_explained_as_by_tau(case: Case) -> None:
    classes = "CASE WHEN y < -1 THEN 'low' WHEN y < 1 THEN 'mid' ELSE 'top' END AS l"
    join = "JOIN {}u u USING (k)"
    query = f"SELECT t.f, u.g, {classes} FROM one.t t {join.format('two.')}"
    found = case.fed.sql(f"CHECK TARGET l FROM ({query})")
    more = "t.db, t.rowid AS r, u.rowid AS q"
    joined = case.rows(f"SELECT f, g, {classes}, {more} FROM t {join.format('')}")
    names, codes = np.unique(joined["l"].astype(str), return_inverse=True)
    classes_found = by_name(found, "target")
    assert set(classes_found) == set(names)
    for number, name in enumerate(names):
        assert classes_found[name]["share"] == pytest.approx((codes == number).mean())
    onehot = np.eye(len(names))[codes]
    features = by_name(found, "feature")
    active = {"f": len(set(joined["r"])), "g": len(set(joined["q"]))}
    for name, databases in (("f", joined["db"]), ("g", np.zeros(len(codes), int))):
        n = min(len(codes), active["f"], active[name])
        wanted = explained(joined[name], onehot, databases, n)
        assert features[name]["explains"] == pytest.approx(wanted, abs=1e-5)


@pytest.fixture
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as a, in_memory() as b, sqlfl.connect(progress=False) as federation:
        a.execute(
            "CREATE TABLE p AS SELECT i AS id, 'n' || i AS name, i % 7 AS x, 3 AS same, "
            "NULL::DOUBLE AS nothing, i % 2 = 0 AS y, 2.0 * i AS late, i % 5 AS k, "
            "CASE WHEN i < 3 THEN 'rare' WHEN i % 3 = 0 THEN 'b' ELSE 'a' END AS class "
            "FROM range(400) r(i)"
        )
        b.execute("CREATE TABLE q AS SELECT i AS id, i % 5 AS k, i % 4 AS z FROM range(600) r(i)")
        federation.attach("a", a)
        federation.attach("b", b)
        yield federation


def findings(fed: sqlfl.Federation, text: str) -> list[str]:
    return [row["finding"] for row in fed.sql(text).arrow().to_pylist() if row["finding"]]


ALL = "p.id, p.name, p.x, p.same, p.nothing, p.late"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"CHECK TARGET n FROM (SELECT {ALL}, p.late / 2 AS n FROM a.p p JOIN b.q q USING (id))", [
            "feature id (of p) is another whole number in each row",
            "feature name (of p) is a text with nearly as many values",
            "feature same (of p) is the same in all joined rows",
            "feature nothing (of p) is NULL in all 400 joined rows",
            "feature late (of p) alone explains",
        ]),
        ("CHECK TARGET class FROM (SELECT p.x, p.class FROM a.p p JOIN b.q q USING (id))",
         ["class rare has 3 of 400 joined rows"]),
        ("CHECK USING logistic_regression TARGET class FROM (SELECT p.x, p.class FROM a.p p)",
         ["logistic_regression takes two classes, and target class has 3", "class rare has 3"]),
        ("CHECK (SELECT p.x, q.z FROM a.p p JOIN b.q q ON p.id = q.id + 5000)",
         ["the join has no rows", "no row has a partner by p.id = q.id + 5000"]),
        ("CHECK (SELECT p.x, q.z FROM a.p p JOIN b.q q USING (k))",
         ["the join has 48,000 rows, and its largest table 600", "p.k = q.k is many to many"]),
        ("CHECK (SELECT p.x, q.z FROM a.p p LEFT JOIN b.q q ON p.id = q.id + 5000)",
         ["no row has a partner", "LEFT JOIN q: no row has a match in it"]),
        ("CHECK (SELECT p.x, q.z FROM a.p p JOIN b.q q ON p.id = q.id + 350)",
         ["by p.id = q.id + 350 only"]),
        ("CHECK (SELECT p.x FROM a.p p)", []),
        # both blocks of a FULL JOIN have all rows
        ("CHECK (SELECT p.x, q.z FROM a.p p FULL JOIN b.q q ON p.id = q.id)", []),
    ],
)  # fmt: skip
def test_what_looks_like_a_mistake_is_said(
    fed: sqlfl.Federation, text: str, said: list[str]
) -> None:
    found = findings(fed, text)
    assert len(found) == len(said), found
    for one, other in zip(found, said, strict=True):
        assert one.startswith(other), one


@pytest.mark.parametrize("join", ["FULL JOIN", "LEFT JOIN", "JOIN"])
def test_partners_are_those_of_one_block(fed: sqlfl.Federation, join: str) -> None:
    result = fed.sql(f"CHECK (SELECT p.x, q.z FROM a.p p {join} b.q q ON p.id = q.id)")
    rows = [row for row in result.arrow().to_pylist() if row["part"] == "key"]
    sizes = {"p": 400, "q": 600}
    assert len(rows) == 2
    for row in rows:
        matched = 400 / sizes[row["table"]]
        assert (row["rows"], row["matched"]) == (sizes[row["table"]], pytest.approx(matched))
        assert (row["fan_out"], row["fan_out_max"]) == (1.0, 1.0)


BOTH = "SELECT t.x, v.z, t.rowid AS rt, v.rowid AS rv FROM {a}t t"
WITH_V = "EXISTS (SELECT 1 FROM {b}v v WHERE v.k = t.k)"
WITH_W = "EXISTS (SELECT 1 FROM {c}w w WHERE w.day = t.day)"
BY_K = f"{BOTH} JOIN {{b}}v v ON t.k = v.k"
REPEATED = {
    "none": (f"{BY_K} WHERE t.x < 0", 0, 34),
    "full": (f"{BOTH} FULL JOIN {{b}}v v ON t.k = v.k", 50, 40),
    "full, with a part of t": (
        BOTH.replace("{a}t t", "(SELECT *, rowid FROM {a}t WHERE x > 3) t")
        + " FULL JOIN {b}v v ON t.k = v.k", 46, 40,
    ),
    "either": (f"SELECT t.x, t.rowid AS rt FROM {{a}}t t WHERE {WITH_V} OR {WITH_W}", 50, None),
    "both": (f"SELECT t.x, t.rowid AS rt, {WITH_V} AND {WITH_W} AS f FROM {{a}}t t", 50, None),
    "case": (
        f"SELECT t.x, t.rowid AS rt, CASE WHEN {WITH_V} AND {WITH_W} THEN 1 END AS f FROM {{a}}t t",
        50, None,
    ),
    "union of two parts": (f"{BY_K} WHERE t.x < 9 UNION ALL {BY_K} WHERE t.x >= 9", 44, 34),
    "union of a part and all": (f"{BY_K} WHERE t.x < 9 UNION ALL {BY_K}", 44, 34),
    "union of two keys": (
        f"{BOTH} JOIN {{b}}v v ON t.day = v.z UNION ALL {BOTH} JOIN {{b}}v v ON t.x = v.z", 50, 40,
    ),
}  # fmt: skip
FILL = (
    "CREATE TABLE t AS SELECT CASE WHEN i % 9 > 0 THEN i % 23 END AS k, i % 5 AS day, i AS x "
    "FROM range(50) r(i)",
    "CREATE TABLE v AS SELECT CASE WHEN i % 7 > 0 THEN i % 31 + 4 END AS k, i % 4 AS z "
    "FROM range(40) r(i)",
    "CREATE TABLE w AS SELECT i % 3 AS day FROM range(8) r(i)",
)


@pytest.mark.parametrize("name", REPEATED)
def test_rows_of_a_table_that_several_blocks_read_count_once(name: str) -> None:
    with (
        in_memory() as one, in_memory() as two, in_memory() as three, in_memory() as central,
        sqlfl.connect(progress=False) as fed,
    ):  # fmt: skip
        for con, fill in zip((one, two, three), FILL, strict=True):
            con.execute(fill)
            central.execute(fill)
        for party, con in (("one", one), ("two", two), ("three", three)):
            fed.attach(party, con)
        text, *sizes = REPEATED[name]
        rows = "rt, rv" if "rv" in text else "rt"
        query = f"SELECT * EXCLUDE ({rows}) FROM ({text.format(a='one.', b='two.', c='three.')})"
        report = fed.sql(f"CHECK ({query})").arrow().to_pylist()
        whole = text.format(a="", b="", c="")
        tables = {row["table"]: row for row in report if row["part"] == "table"}
        for table, row, size in zip("tv", ("rt", "rv"), sizes, strict=True):
            if size is None:
                continue
            assert tables[table]["rows"] == size
            if name == "union of two keys" and table == "t":
                # which rows of the two parts are the same one is unknown
                assert tables[table]["matched"] is None
                continue
            counted = f"SELECT count(*) FROM ({whole}) WHERE {row} IS NOT NULL GROUP BY {row}"
            counts = [n for (n,) in central.sql(counted).fetchall()]
            if not counts:
                assert tables[table]["matched"] == (0.0 if size else None)
                continue
            assert tables[table]["matched"] == pytest.approx(len(counts) / size)
            assert tables[table]["fan_out"] == pytest.approx(np.mean(counts))
            assert tables[table]["fan_out_max"] == max(counts)
        assert "sqlfl_" not in str(report)
        sides = [row for row in report if row["part"] == "key"]
        assert sides
        for side in sides:
            left, right = (word.partition(".") for word in side["name"].split(" = "))
            (_, _, own), (other, _, its) = (
                (left, right) if left[0] == side["table"] else (right, left)
            )
            if name == "none":
                assert (side["rows"], side["matched"]) in ((0, None), (34, 0.0))
                continue
            (here,) = central.sql(f"SELECT count(DISTINCT {own}) FROM {side['table']}").fetchall()
            assert side["distinct"] == here[0], side
            # an EXISTS has each key once
            tables_of = {t: f"(FROM {t})" for t in ("t", "v", "w")}
            if name in ("either", "both", "case"):
                tables_of |= {t: f"(SELECT DISTINCT ON (k) * FROM {t})" for t in "v"}
                tables_of |= {t: f"(SELECT DISTINCT ON (day) * FROM {t})" for t in "w"}
            means = central.sql(
                "SELECT avg(n), max(n) FROM (SELECT count(*) AS n FROM (SELECT *, row_number() "
                f"OVER () AS number FROM {tables_of[side['table']]}) a JOIN {tables_of[other]} b "
                f"ON a.{own} = b.{its} GROUP BY number)"
            )
            assert (side["fan_out"], side["fan_out_max"]) == pytest.approx(means.fetchall()[0])


SOME_V = f"{BY_K} WHERE v.z > 1"
UNKNOWN = {
    "overlapping parts": (f"{BY_K} WHERE t.x < 9 UNION ALL {BY_K} WHERE t.x < 12 AND t.day > 1",
                          {"t": None}),
    "a whole and its halves": (f"{SOME_V} UNION ALL {BY_K} WHERE v.z <= 1 UNION ALL {BY_K}",
                               {"v": 34}),
    "parts of a LEFT JOIN": (BY_K.replace("JOIN", "LEFT JOIN") + " WHERE t.x > 20 OR v.z > 1",
                             {"v": 34}),
}  # fmt: skip
KNOWN = {
    "parts of parts": f"{SOME_V} UNION ALL {SOME_V} AND v.z > 2 UNION ALL {BY_K}",
    "values": f"{BY_K} WHERE v.z IN (1, 2) UNION ALL {BY_K} WHERE v.z = 3",
    "tests of both": f"{BY_K} WHERE t.x > 20 OR v.z > 1",
}


@pytest.mark.parametrize("name", [*UNKNOWN, *KNOWN])
def test_no_number_is_wrong_where_parts_have_rows_in_common(name: str) -> None:
    """Rows with equal keys stand in different parts, and no message says which of them."""
    text, unknown = UNKNOWN[name] if name in UNKNOWN else (KNOWN[name], {})
    with (
        in_memory() as one, in_memory() as two, in_memory() as central,
        sqlfl.connect(progress=False) as fed,
    ):  # fmt: skip
        for party, con, fill in (("one", one, FILL[0]), ("two", two, FILL[1])):
            con.execute(fill)
            central.execute(fill)
            fed.attach(party, con)
        query = f"SELECT * EXCLUDE (rt, rv) FROM ({text.format(a='one.', b='two.')})"
        report = fed.sql(f"CHECK ({query})").arrow().to_pylist()
        whole = text.format(a="", b="")
        tables = {row["table"]: row for row in report if row["part"] == "table"}
        for table, row in (("t", "rt"), ("v", "rv")):
            if table in unknown:
                assert tables[table]["matched"] is tables[table]["fan_out"] is None
                assert tables[table]["rows"] == unknown[table]
                continue
            counted = f"SELECT count(*) FROM ({whole}) WHERE {row} IS NOT NULL GROUP BY {row}"
            counts = [n for (n,) in central.sql(counted).fetchall()]
            assert round(tables[table]["matched"] * tables[table]["rows"]) == len(counts)
            assert tables[table]["fan_out_max"] == max(counts)


def test_the_result_is_shown_in_parts(fed: sqlfl.Federation) -> None:
    result = fed.query(f"SELECT {ALL}, p.y, q.z FROM a.p p JOIN b.q q USING (id)").check("y")
    text, markup = str(result), result._repr_html_()
    for part in ("Join keys", "Tables", "The target", "Features", "Findings"):
        assert part in text
        assert part in markup
    assert re.search(r"p\.id = q\.id", text)
    assert "fan_out" in result.plot().description or "NULL" in result.plot().description
    clean = fed.sql("CHECK (SELECT p.x FROM a.p p)")
    assert "nothing looks like a mistake" in str(clean)


def test_nothing_is_left_and_refusals_are_clear(fed: sqlfl.Federation) -> None:
    query = "(SELECT p.x, p.y, p.class FROM a.p p)"
    for text, kind, said in (
        (f"CHECK MODEL m FROM {query}", ParseError, "CHECK is of a query, not of a model"),
        (f"CHECK TARGET y PRIVACY (epsilon = 1) FROM {query}", ParseError, "takes no PRIVACY"),
        (f"CHECK TARGET nope FROM {query}", PlanError, "TARGET nope is no column of the query"),
        (f"CHECK WITH (mincell = 2) FROM {query}", OptionError, "no option mincell of CHECK"),
        (f"CHECK WITH (min_cell = 0) FROM {query}", OptionError, "min_cell must be"),
        (f"CHECK USING linear_regression TARGET class FROM {query}", PlanError, "must be a number"),
        (f"CHECK WITH (epochs = 3) FROM {query}", OptionError, "epochs is of TRAIN"),
        ("CHECK TARGET y", ParseError, "expected FROM before the query"),
    ):
        with pytest.raises(Error) as caught:
            fed.sql(text)
        assert isinstance(caught.value, kind), text
        assert said in str(caught.value), text
    assert "EXPLAIN" in str(fed.sql(f"EXPLAIN CHECK TARGET y FROM {query}"))
    assert not fed.sql("SHOW MODELS").arrow().num_rows


def test_infinite_values_are_told_of(fed: sqlfl.Federation) -> None:
    odd = "CASE p.x WHEN 3 THEN 'inf'::DOUBLE WHEN 4 THEN '-inf'::DOUBLE ELSE p.x END AS odd"
    assert findings(fed, f"CHECK TARGET y FROM (SELECT {odd}, p.y FROM a.p p)") == [
        "feature odd (of p) has infinite values, which TRAIN refuses"
    ]


def test_few_rows_have_no_range(fed: sqlfl.Federation) -> None:
    found = by_name(fed.sql("CHECK (SELECT p.x FROM a.p p WHERE p.id < 4)"), "feature")["x"]
    assert (found["low"], found["high"], found["mean"]) == (None, None, None)
    wider = by_name(
        fed.sql("CHECK WITH (min_cell = 2) FROM (SELECT p.x FROM a.p p WHERE p.id < 4)"), "feature"
    )["x"]
    assert (wider["low"], wider["high"]) == (1.0, 2.0)


SEPARATED = """CREATE TABLE t AS SELECT i AS id,
  CASE WHEN i < 6 THEN 'rare' ELSE 'p' || i % 3 END AS c,
  hash(i) % 3 = 0 OR i < 6 AS y, CASE WHEN i < 6 THEN 0 ELSE hash(i) % 4 END AS n
  FROM range(300) r(i)"""


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("", "y", "are of one class, or of all but one"),
        ("logistic_regression", "y", "are of one class"),
        ("poisson_regression", "n", "have a count of 0"),
        ("linear_regression", "n", None),
    ],
)
def test_separation_is_named(kind: str, target: str, why: str | None) -> None:
    with in_memory() as one, in_memory() as two, sqlfl.connect(progress=False) as fed:
        one.execute(SEPARATED)
        two.execute("CREATE TABLE u AS SELECT i AS id, hash(7 * i) % 10 AS z FROM range(300) r(i)")
        fed.attach("one", one)
        fed.attach("two", two)
        using = f"USING {kind}" if kind else ""
        query = f"SELECT t.c, u.z, t.{target} FROM one.t t JOIN two.u u USING (id)"
        for explains in ("true", "false"):
            statement = f"CHECK {using} TARGET {target} WITH (explains = {explains}) FROM ({query})"
            found = [row["finding"] for row in fed.sql(statement).arrow().to_pylist()]
            told = [text for text in found if text and text.startswith("separation")]
            assert len(told) == (why is not None and explains == "true")
            for text in told:
                assert "the weights of c (rare) (of t) have no finite estimate" in text
                assert f"all joined rows with one of its values {why}." in text
            asked = "send_separated" in str(fed.explain(f"EXPLAIN (VERBOSE) {statement}").details)
            assert asked == bool(told)


@pytest.mark.parametrize("join", ["JOIN", "LEFT JOIN"])
@pytest.mark.parametrize("combine", [False, True])
def test_databases_of_a_party_have_categories_of_their_own(join: str, combine: bool) -> None:
    """Of them CHECK names no separation: their columns are not the same before training."""
    with (
        in_memory() as one,
        in_memory() as two,
        in_memory() as more,
        sqlfl.connect(progress=False) as fed,
    ):
        one.execute(SEPARATED)
        two.execute("CREATE TABLE u AS SELECT 2 * i AS id, 'a' || i % 3 AS c FROM range(150) r(i)")
        more.execute("CREATE TABLE u AS SELECT 2 * i + 1 AS id, 'b' AS c FROM range(9) r(i)")
        fed.attach("one", one)
        fed.attach("two", [two, more], combine=combine)
        query = f"SELECT t.n, u.c, t.y FROM one.t t {join} two.u u USING (id)"
        found = fed.sql(f"CHECK TARGET y FROM ({query})").arrow().to_pylist()
        told = {row["name"]: row["distinct"] for row in found if row["kind"] == "category"}
        assert told["c"] >= 3
