"""A coordinator that does what it likes with the messages that there are: it gets no value that the
owner's policy does not allow.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.codec import to_json
from sqlfl.contract.privacy_specification import LabelNoise, RoundNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import (
    Client,
    FeatureSpecification,
    KeySpecification,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.governance.message_log import flush_all
from sqlfl.messages import Message
from sqlfl.messages.wire import received
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.options.privacy import Privacy
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.fuzzing import FITTING
from tests.open_databases import in_memory

TABLES = "SELECT * EXCLUDE (estimated_size) FROM duckdb_tables()"
CANARY = "CANARY7153"
NUMBER = 715300717153
MADE = f"""CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, sin(i) AS bmi,
  'w' || i % 4 AS ward, {NUMBER} + i AS salary, '{CANARY}' || i AS note, i % 3 + sin(i) AS days
  FROM range(300) AS r(i);
CREATE TABLE visits AS SELECT i AS pid, '{CANARY}' || i AS note FROM range(300) AS r(i);
CREATE SCHEMA hr; CREATE TABLE hr.salaries AS SELECT '{CANARY}' AS z, {NUMBER} AS n;
CREATE VIEW everything AS SELECT * FROM patients;
CREATE MACRO pay(x) AS x + (SELECT max(n) FROM hr.salaries);
CREATE MACRO payroll() AS TABLE FROM hr.salaries;
CREATE SEQUENCE numbers START {NUMBER};
CREATE TYPE mood AS ENUM ('{CANARY}');
SET VARIABLE secret = '{CANARY}';"""
GRANT = """GRANT TRAIN (age, bmi, ward), FILTER (age), JOIN (pid), LABEL (days) ON patients
  TO 'acme' UNDER r"""
Ask = Callable[[Message], Message]
FEATURES = tuple(
    FeatureSpecification(name, kind)
    for name, kind in (("age", "numeric"), ("bmi", "numeric"), ("ward", "category"))
)
SLOT = SlotSpecification(
    0, FEATURES, True, False, (), (KeySpecification(0, ("BIGINT",)),), (0,), False,
    "organisation", "arrays",
)  # fmt: skip
SELECT = "SELECT age, bmi, ward, days AS sqlfl_target, pid AS sqlfl_key_0_0 FROM patients"
KEYED = replace(SLOT, features=(), target=False)
ONE = replace(KEYED, features=(FeatureSpecification("f", "numeric"),))
LABELLED = replace(KEYED, target=True)


def request(*asked: Asked, **changed: Any) -> Request:
    own = Request(
        "train", "linear_regression", "sgd", "[{},null]", "null", "null", False, False, asked
    )
    return replace(own, **changed)


def party(con: duckdb.DuckDBPyConnection, rules: str = "", analyst: str = "acme") -> PartyClient:
    con.execute(MADE)
    with sqlfl.owner(con) as owner:
        owner.sql(f"CREATE TRAINING POLICY r {f'WITH ({rules})' * bool(rules)}")
        owner.sql(GRANT)
    secret = b"\x07" * 32
    return PartyClient(Client("clinic"), con, Secrets(secret, secret), analyst=analyst)


def told(client: PartyClient, message: Message) -> Message:
    data = courier.brought(client, message)
    for secret in (CANARY.encode(), str(NUMBER)[:6].encode(), np.int64(NUMBER).tobytes()[:5]):
        assert secret not in data, message
    return received(data)


@pytest.fixture(scope="module")
def spoken() -> Iterator[Ask]:
    """Asked over and over: what is refused changes nothing."""
    with in_memory() as con, closing(party(con)) as client:
        yield lambda message: told(client, message)


@pytest.fixture
def ask(database: Open) -> Iterator[Ask]:
    with closing(party(database("SELECT 1"))) as client:
        yield lambda message: told(client, message)


@pytest.fixture(scope="module")
def shared() -> Iterator[Ask]:
    """A party of several tests, each with a run of its own; it answers afterwards as before."""
    with in_memory() as con, closing(party(con)) as client:
        ask: Ask = lambda message: told(client, message)  # noqa: E731
        yield ask
        assert isinstance(propose(ask, SLOT, (SELECT,), request(), "last"), ms.Prepared)


@pytest.fixture
def run(shared: Ask, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a test's run, which it finishes at its end."""
    name = f"run {zlib.crc32(request.node.nodeid.encode()):08x}"
    yield name
    shared(ms.Finish(name, -1))


def propose(
    ask: Ask, slot: SlotSpecification, texts: Sequence[str], asked: Request, run: str = "r"
) -> Message:
    own = (specifications_to_json((slot,)), tuple(texts))
    reply = ask(ms.Propose(run, -1, asked.to_json(), *own))
    return ask(ms.Prepare(run, -1, *own)) if isinstance(reply, ms.Proposed) else reply


def assert_refused(reply: Message, *kinds: str) -> None:
    assert isinstance(reply, ms.Failure), reply
    if "InternalError" in kinds:
        kinds = *kinds, "ForgottenError"  # of a run that does not go on
    assert reply.error in (kinds or ("PolicyError",)), (reply.error, reply.text)


def refusal(reply: Message, said: str) -> None:
    assert_refused(reply)
    assert isinstance(reply, ms.Failure)
    assert said in reply.text


# -- SQL -------------------------------------------------------------------------------------------

OUTSIDE = [
    f"(SELECT {what})"
    for what in (
        "content FROM read_text('/etc/passwd')",
        "filename FROM read_blob('/etc/*')",
        "column0 FROM read_csv('/etc/passwd')",
        "file FROM glob('/**')",
        "a FROM 'secret.parquet'",
        "file_name FROM parquet_metadata('a.parquet')",
        "j FROM read_json('a.json')",
        "a FROM query('SELECT salary AS a FROM patients')",
        "max(salary) FROM query_table('patients')",
        "z FROM hr.salaries",
        "z FROM memory.hr.salaries",
        "z FROM payroll()",
        "note FROM visits",
        "salary FROM everything",
        "roles FROM sqlfl.grants",
        "rules FROM sqlfl.policies",
        "sql FROM duckdb_tables()",
        "sql FROM sqlite_master",
        "value FROM duckdb_settings()",
        "query FROM duckdb_logs()",
        "name FROM duckdb_secrets()",
        "path FROM duckdb_databases()",
        "table_name FROM information_schema.tables",
        "column_name FROM duckdb_columns()",
        "name FROM pragma_table_info('patients')",
        "enabled FROM enable_logging(storage = 'file')",
        "Success FROM enable_profiling(save_location = '/tmp/x')",
        "count(*) FROM checkpoint()",
        "i FROM range(1000000) AS r(i)",
        "i FROM generate_series(9) AS r(i)",
        "unnest([1, 2])",
        "a FROM patients AS p, LATERAL (SELECT p.salary AS a)",
        "a FROM (PIVOT patients ON ward USING max(salary)) AS q(a)",
        "max(COLUMNS('sal.*')) FROM patients",
        "first(patients) FROM patients",
        "first(p) FROM patients AS p",
        "age FROM patients TABLESAMPLE 3 ROWS",
        "age FROM patients AT (VERSION => 1)",
        "sum(salary) FROM patients",
        "salary FROM patients LIMIT 1",
        "q.salary FROM (FROM patients) AS q LIMIT 1",
        "rowid FROM patients LIMIT 1",
        "age FROM patients ORDER BY salary LIMIT 1",
        "age FROM patients ORDER BY ALL LIMIT 1",
        "max(age) FROM patients GROUP BY ALL HAVING max(salary) > 0",
        "age FROM patients QUALIFY row_number() OVER (ORDER BY salary) = 1",
        "max(age) FILTER (WHERE salary > 0) FROM patients",
        "string_agg(ward ORDER BY salary) FROM patients",
        "age FROM patients WHERE salary = 1 LIMIT 1",
        "age FROM patients JOIN visits USING (pid) LIMIT 1",
        "age FROM patients NATURAL JOIN visits LIMIT 1",
        "age FROM patients AS p SEMI JOIN hr.salaries AS s ON p.pid = s.n LIMIT 1",
        "a FROM (WITH q AS (SELECT salary AS a FROM patients) FROM q) LIMIT 1",
    )
]
VALUES = [
    "salary", "patients.salary", "p.salary", "main.patients.salary", "note", "length(note)",
    "CASE WHEN salary > 5 THEN 1 ELSE 0 END", "coalesce(NULL, salary)", "age + salary",
    "struct_pack(a := salary).a", "[salary][1]", "list_transform([1], x -> salary)[1]",
    "MAP {'a': salary}['a'][1]", "CAST(salary AS DOUBLE)", "-salary", "salary::VARCHAR",
    "pay(age)", "nextval('numbers')", "currval('numbers')", "getenv('HOME')",
    "getvariable('secret')", "current_setting('threads')", "current_user", "current_query()",
    "random()", "uuid()", "now()", "txid_current()", "version()", "pg_typeof(salary)",
    "typeof(salary)", "error(note)", "error('x')", "sleep_ms(10000)", "$1", "?",
    "'x'::mood", "CAST('x' AS mood)", "enum_range(NULL::mood)",
    "sum(salary) OVER ()", "lag(salary) OVER (ORDER BY pid)", "hash(patients)",
    "json_serialize_sql('SELECT 1')", "to_json(patients)", "row_to_json(p)", "array_agg(salary)",
    "salary IS NULL", "salary IN (1, 2)", "salary BETWEEN 1 AND 2", "EXISTS (FROM visits)",
    "age > ANY (SELECT n FROM hr.salaries)", "salary COLLATE NOCASE", "COLUMNS(*)", "*",
    "p.*", "p", "patients", "rowid", "p.rowid", "unknown", "file_exists('/etc/passwd')",
]  # fmt: skip
STATEMENTS = [
    "SELECT age AS f, pid AS sqlfl_key_0_0 FROM patients; DROP TABLE patients",
    "DELETE FROM patients RETURNING age AS f, pid AS sqlfl_key_0_0",
    "INSERT INTO patients (pid) VALUES (1) RETURNING age AS f, pid AS sqlfl_key_0_0",
    "UPDATE patients SET age = 0 RETURNING age AS f, pid AS sqlfl_key_0_0",
    "COPY patients TO '/tmp/hostile.csv'", "ATTACH '/tmp/hostile.duckdb'", "INSTALL httpfs",
    "LOAD httpfs", "PRAGMA database_list", "SET enable_external_access = true", "CALL checkpoint()",
    "EXPLAIN ANALYZE SELECT * FROM patients", "DESCRIBE patients", "SUMMARIZE patients",
    "EXPORT DATABASE '/tmp/hostile'", "CREATE TABLE stolen AS FROM patients", "VACUUM",
    "DROP TABLE patients", "BEGIN", "PREPARE a AS SELECT 1", "", ";", "SELECT", "--", "\0",
    "SELECT age AS f, pid AS sqlfl_key_0_0 FROM patients -- \0 FROM visits",
    "WITH RECURSIVE q(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM q) "
    "SELECT a AS f, a AS sqlfl_key_0_0 FROM q",
    "SELECT " + "+".join(["age"] * 20_000) + " AS f, pid AS sqlfl_key_0_0 FROM patients",
]  # fmt: skip
FRAGMENTS = [
    *(f"SELECT {value} AS f, p.pid AS sqlfl_key_0_0 FROM patients AS p" for value in OUTSIDE),
    *(f"SELECT {value} AS f, p.pid AS sqlfl_key_0_0 FROM patients AS p" for value in VALUES),
    *STATEMENTS,
]


@pytest.mark.parametrize("text", FRAGMENTS, ids=lambda text: text[:50])
def test_sql(spoken: Ask, text: str) -> None:
    """As a feature, when it is planned; proposed, and only asked about; as a key and as a label."""
    assert_refused(spoken(ms.Describe("", -1, (text,))))
    assert_refused(propose(spoken, ONE, (text,), request(), "sql"))
    reply = spoken(ms.Propose("", -1, request().to_json(), specifications_to_json((ONE,)), (text,)))
    assert isinstance(reply, ms.Proposed)
    assert '"refused"' in reply.verdicts
    assert_refused(spoken(ms.SendKeys("sql", 0)), "InternalError")


COMPUTED = ["age", "days", "ward", "bmi", "pid + 1", "-pid", "pid * 1", "pid % 2", "hash(pid)",
            "CAST(pid AS VARCHAR) || 'x'", "600000123", "'x'"]  # fmt: skip


@pytest.mark.parametrize("value", [*VALUES, *OUTSIDE, *COMPUTED], ids=lambda text: text[:50])
def test_keys_of_ones_choice(spoken: Ask, value: str) -> None:
    text = f"SELECT {value} AS sqlfl_key_0_0 FROM patients AS p"
    assert_refused(propose(spoken, KEYED, (text,), request(Asked(0, "send_keys", "", "", 1)), "k"))
    assert_refused(spoken(ms.SendKeys("k", 0)), "InternalError")


@pytest.mark.parametrize("value", [*VALUES, "age", "bmi", "pid", "ward", "days + salary"],
                         ids=lambda text: text[:50])  # fmt: skip
def test_labels_of_ones_choice(spoken: Ask, value: str) -> None:
    text = f"SELECT {value} AS sqlfl_target, p.pid AS sqlfl_key_0_0 FROM patients AS p"
    assert_refused(propose(spoken, LABELLED, (text,), request(), "l"))


def test_nothing_was_made_or_changed(database: Open) -> None:
    """But for the record of what was said."""
    con = database("SELECT 1")
    tables = "SELECT * FROM duckdb_tables() WHERE (schema_name, table_name) <> ('sqlfl', 'chain')"
    with closing(party(con)) as client:
        before = con.sql(tables).fetchall()
        rows = con.sql("FROM patients").fetchall()
        for text in FRAGMENTS:
            told(client, ms.Describe("", -1, (text,)))
            propose(lambda message: told(client, message), ONE, (text,), request(), "x")
        flush_all()
        assert con.sql(tables).fetchall() == before
        assert con.sql("FROM patients").fetchall() == rows
        assert con.sql("SELECT nextval('numbers')").fetchall() == [(NUMBER,)]
    assert not Path("/tmp/hostile.csv").exists()
    assert not Path("/tmp/hostile.duckdb").exists()


# -- order, counts, slots --------------------------------------------------------------------------

IN_RUN = [m for m in FITTING if not isinstance(m, (ms.Prepare, ms.Describe, ms.Propose))]
OF_RUNS = [m for m in IN_RUN if not isinstance(m, (ms.Finish, ms.Keep, ms.Drop, ms.Collect))]
SOME, ONES = np.arange(100, dtype=np.uint32), np.ones(100, np.uint32)
ANSWERED = (
    ms.SendKeys("r", 0),
    ms.Activate("r", 0, SOME, ONES, 100),
    ms.SendLabels("r", 0),
    ms.SendFindings("r", 0),
)


@pytest.mark.parametrize(
    ("message", "when"),
    in_turn(IN_RUN, ("before", "proposed", "refused", "finished"), each=2),
    ids=lambda value: getattr(value, "kind", value),
)
def test_out_of_order(shared: Ask, run: str, message: Message, when: str) -> None:
    own = (specifications_to_json((SLOT,)), (SELECT,))
    if when == "proposed":
        assert isinstance(shared(ms.Propose(run, -1, request().to_json(), *own)), ms.Proposed)
    elif when == "refused":
        assert_refused(propose(shared, SLOT, (SELECT + " WHERE salary > 0",), request(), run))
    elif when == "finished":
        assert isinstance(propose(shared, SLOT, (SELECT,), request(), run), ms.Prepared)
        assert isinstance(shared(ms.Finish(run, -1)), ms.Ready)
    reply = shared(replace(message, run=run) if message.run else message)
    if isinstance(message, (ms.Finish, ms.Keep, ms.Drop, ms.Collect)):
        assert isinstance(reply, (ms.Ready, ms.Saved, ms.Collected, ms.Failure))
        return
    assert_refused(reply, "PolicyError", "InternalError", "ModelError", "Error")


@pytest.mark.parametrize(
    ("message", "slot"),
    in_turn(OF_RUNS, (0, 1, -1, 99), each=2),
    ids=lambda value: getattr(value, "kind", value),
)
def test_what_the_proposal_does_not_name(
    shared: Ask, run: str, message: Message, slot: int
) -> None:
    assert isinstance(propose(shared, SLOT, (SELECT,), request(), run), ms.Prepared)
    own = replace(message, slot=slot, run=run)
    assert_refused(shared(own), "PolicyError", *(["ModelError"] * isinstance(own, ms.SendBlock)))


@pytest.mark.parametrize("message", ANSWERED, ids=lambda m: m.kind)
def test_more_often_than_proposed(ask: Ask, message: Message) -> None:
    asked = tuple(Asked(0, m.kind, "", "", 1) for m in ANSWERED)
    assert isinstance(propose(ask, SLOT, (SELECT,), request(*asked)), ms.Prepared)
    for own in ANSWERED[:2]:
        assert not isinstance(ask(own), ms.Failure)
    if message not in ANSWERED[:2]:
        ask(message)
    for again in range(3):
        assert_refused(ask(replace(message, number=again)))


@pytest.mark.parametrize("most", [0, 2, -1, 10**9, None])
@pytest.mark.parametrize("kind", ["send_keys", "activate", "send_labels", "score", "send_profile"])
def test_a_proposal_of_any_number(spoken: Ask, kind: str, most: int | None) -> None:
    asked = request(Asked(0, kind, "", "", most))
    assert_refused(propose(spoken, SLOT, (SELECT,), asked, "any"))


ROWS = {
    "a row that there is not": ([0, 300], [1, 1], 2),
    "one row": ([7], [100], 100),
    "few rows": ([1, 2, 3], [1, 1, 1], 3),
    "no rows": ([], [], 0),
    "a row twice": ([5, 5, *range(6, 100)], [1] * 96, 96),
    "rows in no order": ([*range(99, -1, -1)], [1] * 100, 100),
    "rows that count nothing": ([*range(100)], [0] * 100, 0),
    "counts of other rows": ([*range(100)], [1] * 99, 99),
    "other sums": ([*range(100)], [1] * 100, 7),
    "one row that counts for all": ([*range(100)], [1] * 99 + [2**31], 10),
    "one row that counts for nearly all": ([*range(100)], [1] * 99 + [2**31], 2**31 + 99),
    "few rows that count for nearly all": ([*range(300)], [1] * 296 + [10**4] * 4, 40_296),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_active_rows_of_ones_choice(ask: Ask, rows: tuple[list[int], list[int], int]) -> None:
    asked = tuple(Asked(0, m.kind, "", "", 1) for m in ANSWERED)
    assert isinstance(propose(ask, SLOT, (SELECT,), request(*asked)), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    chosen, counts, total = rows
    message = ms.Activate("r", 0, np.array(chosen, np.uint32), np.array(counts, np.uint32), total)
    assert_refused(ask(message), "PolicyError", "InternalError", "WireError")
    assert_refused(ask(ms.SendLabels("r", 0)), "PolicyError", "InternalError")


HEAVY = {
    "one-hot weights": np.eye(1, 100, 7)[0],
    "nearly": np.where(np.arange(100) == 7, 1.0, 1e-9),
    "of four": np.where(np.arange(100) < 4, 1.0, 1e-6),
    "that differ by far": 10.0 ** np.arange(100),
    "of a row as much as of all others": np.where(np.arange(100) == 7, 99.0, 1.0),
    "none": np.zeros(100),
    "the largest that there is": np.where(np.arange(100) == 7, 1e308, 1e300),
    "of other rows": np.ones(99),
}


@pytest.mark.parametrize("alone", [False, True], ids=["weights", "weights without classes"])
@pytest.mark.parametrize("weights", HEAVY.values(), ids=HEAVY)
def test_weights_of_ones_choice(ask: Ask, weights: np.ndarray, alone: bool) -> None:
    """The latter are what SKEW compares with: of one row, its value would show later."""
    asked = tuple(Asked(0, m.kind, "", "", 1) for m in (*ANSWERED, ms.Weigh("r", 0, ONES, 1.0)))
    slot = replace(SLOT, weighted=True)
    assert isinstance(propose(ask, slot, (SELECT,), request(*asked)), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    assert isinstance(ask(ms.Activate("r", 0, SOME, ONES, 100)), ms.Ready)
    even = ms.Weigh("r", 0, np.ones(100), 100.0)
    heavy = replace(even, samples=weights) if alone else replace(even, counts=weights, total=1.0)
    assert_refused(ask(heavy), "PolicyError", "WireError")
    if not alone or len(weights) == 100:  # else it is no message
        assert_refused(ask(replace(even, number=1)))  # it was asked once


PROFILES = (
    ms.SendProfile("r", 0, 1),
    ms.SendExplained("r", 0, 1, np.zeros((300, 1), np.float32)),
)


@pytest.mark.parametrize(("rows", "other", "allowed"), [
    (1, 0.0, False), (9, 0.0, False), (10, 0.0, True), (1, 1e-3, False), (150, 0.0, True),
])  # fmt: skip
def test_a_target_of_ones_choice_is_of_no_few_rows(
    database: Open, rows: int, other: float, allowed: bool
) -> None:
    """Of one row, how well a feature explains it is the feature's value in that row."""
    targets = np.zeros((300, 2), np.float32)
    targets[:, 0] = np.arange(300)
    targets[:, 1] = other * np.sin(np.arange(300))
    targets[:rows, 1] = 1.0
    asked = ms.SendExplained("r", 0, 1, targets)
    reply = profile(database("SELECT 1"), asked, SELECT)
    if allowed:
        assert isinstance(reply, ms.Profile), reply
    else:
        refusal(reply, "min_cell = 10, of a target that few rows decide")


def test_what_explains_targets_is_asked_once(ask: Ask) -> None:
    kinds = ("send_keys", "activate")
    often = (*(Asked(0, kind, "", "", 1) for kind in kinds), Asked(0, "send_explained", "", "", 5))
    run = request(*often, purpose="check", algorithm="")
    refusal(propose(ask, SLOT, (SELECT,), run), "send_explained")


def profile(con: duckdb.DuckDBPyConnection, asked: Message, text: str) -> Message:
    """Return the answer for all rows of a party whose policy has min_cell = 10."""
    with closing(party(con, "min_cell = 10")) as client:
        ask: Ask = lambda message: told(client, message)  # noqa: E731
        kinds = ("send_keys", "activate", asked.kind)
        run = request(*(Asked(0, kind, "", "", 1) for kind in kinds), purpose="check", algorithm="")
        assert isinstance(propose(ask, SLOT, (text,), run), ms.Prepared)
        assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
        assert isinstance(ask(ms.Activate("r", 0, ALL, EACH, 300)), ms.Ready)
        return ask(asked)


@pytest.mark.parametrize("asked", PROFILES, ids=lambda asked: str(asked.kind))
def test_a_profile_is_of_as_many_rows_as_the_policy_says(database: Open, asked: Message) -> None:
    reply = profile(database("SELECT 1"), asked, SELECT)
    assert isinstance(reply, ms.Profile), reply
    values = np.sort(np.sin(np.arange(300)))
    np.testing.assert_allclose((reply.low[1], reply.high[1]), (values[9], values[-10]))


@pytest.mark.parametrize(
    ("computed", "allowed"),
    [("2 * bmi", True), ("CASE WHEN bmi > 0.9997165 THEN age ELSE 0 END", False)],
    ids=["of all rows", "of one row"],
)
def test_a_mean_of_a_computed_feature_is_of_no_single_row(
    database: Open, computed: str, allowed: bool
) -> None:
    reply = profile(database("SELECT 1"), PROFILES[0], SELECT.replace("bmi", f"{computed} AS bmi"))
    if allowed:
        assert isinstance(reply, ms.Profile), reply
    else:
        assert_refused(reply, "PolicyError")


@pytest.mark.parametrize("engine", ["arrays", "sql"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("drawn", ["split", "folds"])
def test_which_rows_are_drawn_follows_from_what_is_granted(
    database: Open, drawn: str, seed: int | None, engine: str
) -> None:
    """A draw is a hash: who knows the seed and the other rows could try what else a row has, and
    without a seed it shows whether that has changed."""
    slot = replace(KEYED, keys=(), target=True, base=True, seed=seed, engine=engine)
    slot = replace(slot, split=0.5) if drawn == "split" else replace(slot, folds=2)
    kinds = ("activate", "send_labels", f"send_{drawn}")
    text = "SELECT p.days AS sqlfl_target, p AS sqlfl_base FROM patients AS p"
    con = database("SELECT 1")
    with closing(party(con)) as client:

        def rows_drawn(run: str) -> dict[float, int]:
            ask: Ask = lambda message: told(client, message)  # noqa: E731
            begun = propose(
                ask, slot, (text,), request(*(Asked(0, k, "", "", 1) for k in kinds)), run
            )
            assert isinstance(begun, ms.Prepared)
            ask(ms.Activate(run, 0, ALL, EACH, 300, begun.nonce[None]))
            labels, draw = ask(ms.SendLabels(run, 0)), ask(DRAWS[drawn](run, 0))
            assert isinstance(labels, ms.Labels)
            assert isinstance(draw, ms.Split | ms.Folds)
            values = draw.validation if isinstance(draw, ms.Split) else draw.folds
            return dict(zip(labels.values.tolist(), values.tolist(), strict=True))

        first = rows_drawn("first")
        assert set(first.values()) == {0, 1}
        con.execute("UPDATE patients SET salary = salary + 1, note = note || 'x'")
        assert rows_drawn("second") == first
        con.execute("UPDATE patients SET age = age + 1")
        assert rows_drawn("third") != first


DRAWS = {"split": ms.SendSplit, "folds": ms.SendFolds}


def test_no_row_is_drawn_by_columns_without_a_grant(database: Open) -> None:
    con = database("SELECT 1")
    with closing(party(con)) as client:
        con.execute("CREATE TABLE others AS SELECT 1 AS secret")
        with sqlfl.owner(con) as owner:
            owner.sql("GRANT PREDICT ON others TO 'acme' UNDER r")
        slot = replace(KEYED, keys=(), base=True, split=0.5)
        text = "SELECT o AS sqlfl_base FROM others AS o"
        refusal(propose(lambda m: told(client, m), slot, (text,), request()), "by granted columns")


@pytest.mark.parametrize("name", ["ward", "age"])
def test_statistics_of_several_databases_tell_of_no_rare_value(database: Open, name: str) -> None:
    """Counts of the coordinator's choice would tell whose value it is."""
    con = database("SELECT 1")
    with closing(party(con, "min_cell = 10")) as client:
        rare = "'only'" if name == "ward" else "NULL"
        con.execute(f"UPDATE patients SET {name} = {rare} WHERE pid = 7")
        ask: Ask = lambda message: told(client, message)  # noqa: E731
        feature = FEATURES[2] if name == "ward" else FEATURES[0]
        slot = replace(SLOT, features=(feature,), target=False, shared=True)
        text = f"SELECT {name}, pid AS sqlfl_key_0_0 FROM patients"
        assert isinstance(propose(ask, slot, (text,), request(*TOLD[:2])), ms.Prepared)
        assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
        counts = np.arange(1, 301, dtype=np.uint32)
        activate = ms.Activate("r", 0, ALL, counts, int(counts.sum()))
        refusal(ask(activate), "min_cell = 10, of values of features")


# -- training --------------------------------------------------------------------------------------

TRAINED = replace(SLOT, features=FEATURES[:2], target=False)
NUMBERS = "SELECT age, bmi, pid AS sqlfl_key_0_0 FROM patients"
BOUNDED = SnapshotPrivacy(None, "bounds", ((20.0, 80.0), (-1.0, 1.0)), 0.0, 0.0, 1e-4)
PRIVATE = to_json(Privacy(epsilon=0.5, delta=1e-4, predictions="gaussian"))
ENOUGH = RoundNoise(clip=1.0, noise=1e3, prediction_clip=1.0, prediction_noise=1e3)
ALL, EACH = np.arange(300, dtype=np.uint32), np.ones(300, np.uint32)
STEP = SgdResiduals("r", 0, np.eye(300, 1, dtype=np.float32), 1.0, 1, 1)
ROUNDS = (
    ms.SendKeys("r", 0), ms.Activate("r", 0, ALL, EACH, 300), ms.Start("r", 0, "", ""),
    ms.SendPredictions("r", 0), STEP, ms.Save("r", 0, "m", "m", 0),
)  # fmt: skip
TOLD = tuple(Asked(0, message.kind, "", "", 1) for message in ROUNDS)


def start(noise: RoundNoise | None = None, **changed: Any) -> ms.Start:
    own = SgdConfiguration(
        outputs=1, rows=300, total=300.0, clients=1, leader=True, l2=0.0, curvature=1.0,
        privacy=noise,
    )  # fmt: skip
    return ms.Start("r", 0, "sgd", replace(own, **changed).to_json())


def begun(ask: Ask, slot: SlotSpecification, asked: Request, text: str = NUMBERS) -> Message:
    """The answer to the proposal or, where it is allowed, to what comes before the start."""
    reply = propose(ask, slot, (text,), asked)
    for message in ROUNDS[:2] if isinstance(reply, ms.Prepared) else ():
        reply = ask(message)
    return reply


@pytest.mark.parametrize(
    ("rules", "noise", "text"),
    [
        ("min_cell = 76", None, NUMBERS.replace("bmi", "ward = 'w1' AS bmi")),
        ("max_parameter_ratio = 1e-3", None, NUMBERS),
        ("epsilon = 1, delta = 1e-4", RoundNoise(0.0, 0.0), NUMBERS),
        ("epsilon = 1, delta = 1e-4", replace(ENOUGH, bins=5, theta=0.1), NUMBERS),
        # of the method 'moments', whose account has no gradients and predictions
        ("epsilon = 1, delta = 1e-4", RoundNoise(1.0, 1e3, row_weight=1.0), NUMBERS),
        ("epsilon = 1, delta = 1e-4", replace(ENOUGH, row_weight=1.0), NUMBERS),
        ("epsilon = 1, delta = 1e-4", replace(ENOUGH, labels_noise=1.0), NUMBERS),
        ("epsilon = 1, delta = 1e-4", replace(ENOUGH, categories=1), NUMBERS),
    ],
)
def test_a_start_that_is_refused_is_no_start(
    database: Open, rules: str, noise: RoundNoise | None, text: str
) -> None:
    """Whoever goes on after it gets nothing."""
    slot = TRAINED if noise is None else replace(TRAINED, privacy=BOUNDED)
    with closing(party(database("SELECT 1"), rules)) as client:
        ask = lambda message: told(client, message)  # noqa: E731
        asked = request(*TOLD, privacy="null" if noise is None else PRIVATE)
        assert isinstance(begun(ask, slot, asked, text), ms.Ready)
        assert_refused(ask(start(noise)), "PolicyError", "InternalError")
        for message in ROUNDS[3:]:
            assert_refused(ask(message), "PolicyError", "InternalError")


def test_which_rows_are_equal_is_told_of_no_rare_value(database: Open) -> None:
    con = database("SELECT 1")
    with closing(party(con, "min_cell = 5, moments = 'never'")) as client:
        con.execute("UPDATE patients SET ward = 'only ' || pid WHERE pid < 40")
        ask = lambda message: told(client, message)  # noqa: E731
        slot = replace(SLOT, features=FEATURES[2:], target=False)
        asked = request(*TOLD[:2], Asked(0, "send_equal_rows", "", "", 1))
        text = "SELECT ward, pid AS sqlfl_key_0_0 FROM patients"
        assert isinstance(begun(ask, slot, asked, text), ms.Ready)
        refusal(ask(ms.SendEqualRows("r", 0)), "min_cell = 5, of values of features")


QUIET = SnapshotPrivacy(LabelNoise("laplace", 1.0, (-1.0, 3.0), ()), "none", (), 0.0, 0.0, None)
LABELS = replace(SLOT, features=(), privacy=QUIET, base=True)
DAYS = "SELECT p.days AS sqlfl_target, p AS sqlfl_base, p.pid AS sqlfl_key_0_0 FROM patients AS p"
WITH_LABELS = request(*TOLD[:2], Asked(0, "send_labels", "", "", 1))


BASES = ["row(p.age)", "row(p.pid, abs(p.bmi))", "p.age", "'x'", "(p)", "p.pid", "-p.bmi"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("rules", ["labels = 'noised'", "epsilon = 5, delta = 1e-4"])
def test_noise_of_ones_choice(database: Open, rules: str, base: str) -> None:
    """Each has its own draw of each label, and rows that are alike in it one in each run: whoever
    takes the mean of many needs no more of a budget than one costs."""
    with closing(party(database("SELECT 1"), rules)) as client:
        ask = lambda message: told(client, message)  # noqa: E731
        text = DAYS.replace("p AS sqlfl_base", f"{base} AS sqlfl_base")
        reply = begun(ask, LABELS, WITH_LABELS, text)
        if base == "(p)":
            assert isinstance(reply, ms.Ready)
        else:
            refusal(reply, "noise of labels that follows from whole rows")


# -- rules -----------------------------------------------------------------------------------------

STARTED = {"asked": (Asked(0, "start", "ready", "", 1),)}
SHARED, DRAWN = replace(SLOT, shared=True), replace(SLOT, masked_predictions=True)
LOUD = SnapshotPrivacy(LabelNoise("laplace", 4.1, (-1.0, 3.0), ()), "none", (), 0.0, 0.0, None)
RULES = [
    ("labels = 'never'", SLOT, SELECT, {}),
    ("labels = 'noised'", SLOT, SELECT, {}),
    ("labels = 'noised'", replace(SLOT, privacy=LOUD), SELECT, {}),
    ("labels = 'noised'", replace(SLOT, weight=True, target=False), SELECT, {}),
    ("predictions = 'never'", SLOT, SELECT, STARTED),
    ("predictions = 'never'", SLOT, SELECT, {"asked": (Asked(0, "send_findings", "", "", 1),)}),
    ("predictions = 'noised'", SLOT, SELECT, STARTED),
    ("predictions = 'noised'", SLOT, SELECT, {"asked": (Asked(0, "send_equal_rows", "", "", 1),)}),
    ("predictions = 'secure_sum'", SLOT, SELECT, STARTED),
    ("predictions = 'secure_sum'", replace(SLOT, secure=True, shared=True), SELECT, STARTED),
    ("predictions = 'secure_sum'", DRAWN, SELECT,
     {"asked": (Asked(0, "send_predictions", "predictions", "", 1),)}),
    ("predictions = 'secure_sum'", DRAWN, SELECT,
     {"asked": (Asked(0, "residuals", "partial_gradient", "", 1),)}),
    ("moments = 'never'", SHARED, SELECT, {}),
    ("moments = 'never'", replace(SHARED, secure=True), SELECT, {}),
    ("moments = 'noised'", SHARED, SELECT, {}),
    ("moments = 'secure_sum'", SHARED, SELECT, {}),
    ("moments = 'secure_sum'", replace(SLOT, secure=True), SELECT,
     {"asked": (Asked(0, "send_gram", "", "", 1),)}),
    ("moments = 'secure_sum'", replace(SHARED, secure=True), SELECT,
     {"asked": (Asked(0, "send_profile", "", "", 1),)}),
    ("metrics = 'never'", SLOT, SELECT, {"asked": (Asked(0, "send_split", "", "", 1),)}),
    ("metrics = 'never'", replace(SLOT, folds=1), SELECT, {}),
    ("kinds = ['lasso']", SLOT, SELECT, STARTED),
    ("kinds = ['linear_regression']", replace(SLOT, classes=True), SELECT, STARTED),
    ("algorithms = ['admm']", SLOT, SELECT, {}),
    ("min_rows = 301", SLOT, SELECT, {}),
    ("min_rows = 150", SLOT, SELECT + " WHERE age < 30", {}),
    ("approval = 'always'", SLOT, SELECT, {}),
    ("approval = 'first_time'", SLOT, SELECT, {}),
    ("epsilon = 1", SLOT, SELECT, {}),
    ("hours = '00:00-00:00'", SLOT, SELECT, {}),
    ("moments = 'never'", SLOT, SELECT, {"asked": (Asked(0, "send_gram", "", "", 1),)}),
    ("moments = 'never'", SLOT, SELECT, {"asked": (Asked(0, "send_profile", "", "", 1),)}),
    ("min_rows = 20", SLOT, SELECT, {"asked": (Asked(0, "send_separated", "", "x", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "score", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "score_exactly", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "send_exact_contributions", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "permute_exactly", "", "", 9),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "score_permuted", "", "", 9),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "send_contributions", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "send_skew", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "send_rotated", "", "", 1),)}),
    ("", SLOT, SELECT, {"asked": (Asked(0, "send_errors", "", "", 1),)}),
    ("", SLOT, SELECT, {"into": True}),
    ("", replace(SLOT, identifiers=(0,)), SELECT + " -- ", {}),
    ("", replace(SLOT, weight=True), SELECT, {}),
    ("", replace(SLOT, features=FEATURES[:2]), SELECT, {}),
    ("", replace(SLOT, keys=()), SELECT, {}),
]  # fmt: skip


CLAIMED = in_turn(RULES, ("train", "check", "predict", "evaluate", "nothing"), each=2)


@pytest.mark.parametrize("rules", sorted({case[0] for case in RULES}))
def test_rules_whatever_it_says_that_it_does(database: Open, rules: str) -> None:
    """Each run has a name of its own."""
    with closing(party(database("SELECT 1"), rules)) as client:
        for number, (case, claimed) in enumerate(CLAIMED):
            own_rules, slot, text, changed = case
            if own_rules != rules:
                continue
            own, run = request(purpose=claimed, **changed), f"r{number}"
            reply = propose(lambda message: told(client, message), slot, (text,), own, run)
            assert_refused(reply, "PolicyError", "ApprovalError")
            assert_refused(told(client, ms.SendLabels(run, 0)), "InternalError", "PolicyError")
            assert_refused(told(client, ms.SendKeys(run, 0)), "InternalError", "PolicyError")


@pytest.mark.parametrize("analyst", ["", "other", "ACME", "acme ", "acme' OR 1 = 1 --"])
def test_who_is_not_granted_anything(database: Open, analyst: str) -> None:
    with closing(party(database("SELECT 1"), analyst=analyst)) as client:
        assert_refused(told(client, ms.Describe("", -1, (SELECT,))))
        ask = lambda message: told(client, message)  # noqa: E731
        assert_refused(propose(ask, SLOT, (SELECT,), request()))
        listed = ask(ms.ListTables("", -1))
        if not isinstance(listed, ms.Failure):
            assert json.loads(listed.tables)["tables"] == []  # type: ignore[attr-defined]


def test_what_is_listed(ask: Ask) -> None:
    listed = ask(ms.ListTables("", -1))
    assert isinstance(listed, ms.Tables)
    (table,) = json.loads(listed.tables)["tables"]
    assert [name for name, _ in table["columns"]] == ["pid", "age", "bmi", "ward", "days"]


# -- what nobody has thought of --------------------------------------------------------------------

KINDS = ("send_keys", "activate", "send_labels", "send_findings")
NAMES, OFTEN = st.sampled_from("abc"), st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(
        st.just("propose"), NAMES, st.dictionaries(st.sampled_from(KINDS), st.integers(0, 2))
    ),
    st.tuples(st.just("prepare"), NAMES, st.sampled_from([SELECT, SELECT + " WHERE age > 30"])),
    st.tuples(st.just("finish"), NAMES, st.none()),
    st.tuples(st.sampled_from(KINDS), NAMES, st.sampled_from([0, 0, 0, 1, -1])),
)
PROPOSED = {SELECT}


@given(st.lists(STEPS, min_size=3, max_size=25))
@examples(25, 800)
def test_any_sequence_of_messages(steps: list[tuple[str, str, Any]]) -> None:
    """What is answered: at most once what tells of rows, only in a run that was proposed and
    prepared as proposed, of the slot that it has."""
    with in_memory() as con, closing(party(con)) as client:
        proposals: dict[str, dict[str, int]] = {}
        runs: dict[str, dict[str, int]] = {}
        seen: set[str] = set()
        answered: Counter[tuple[str, str]] = Counter()
        own = specifications_to_json((SLOT,))
        for kind, run, more in steps:
            if kind == "propose":
                asked = request(*(Asked(0, name, "", "", most) for name, most in more.items()))
                reply = told(client, ms.Propose(run, -1, asked.to_json(), own, (SELECT,)))
                good = run not in seen and all(most == 1 for most in more.values())
                assert isinstance(reply, ms.Proposed) is good
                if good:
                    proposals[run] = more
            elif kind == "prepare":
                reply = told(client, ms.Prepare(run, -1, own, (more,)))
                asked_ = proposals.pop(run, None)
                good = asked_ is not None and more == SELECT
                assert isinstance(reply, ms.Prepared) is good
                if good and asked_ is not None:
                    runs[run] = asked_
                    seen.add(run)
            elif kind == "finish":
                told(client, ms.Finish(run, -1))
                runs.pop(run, None)
                proposals.pop(run, None)
            else:
                message: Message = {
                    "send_keys": ms.SendKeys(run, more),
                    "activate": ms.Activate(run, more, SOME, ONES, 100),
                    "send_labels": ms.SendLabels(run, more),
                    "send_findings": ms.SendFindings(run, more),
                }[kind]
                if not isinstance(told(client, message), ms.Failure):
                    assert more == 0
                    assert kind in runs[run]
                    answered[run, kind] += 1
        assert all(count == 1 for count in answered.values())


def test_there_are_many() -> None:
    own = len(FRAGMENTS) * 3 + len(VALUES) * 2 + len(OUTSIDE) + len(IN_RUN) * 8 + len(ROWS)
    assert own + len(RULES) * 5 >= 200
