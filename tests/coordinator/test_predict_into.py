"""PREDICT INTO: predictions as tables of a party, beside identifiers that do not leave it."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TypeAlias

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import Commit, Message, Write
from sqlfl.messages.wire import decode
from sqlfl.party.party import PartyClient
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.federations import Parties, federation, trainable
from tests.open_databases import in_memory
from tests.strategies import Case, Databases, cases, predict_sql
from tests.test_border import Tap, assert_disclosed

QUERY = "SELECT t.x, u.z, u.y FROM a.t JOIN b.u ON t.k = u.k"
PREDICT = f"PREDICT MODEL m ID (a.t.id) FROM ({QUERY})"
LEFT = """
CREATE TABLE t (id VARCHAR, k INTEGER, x DOUBLE);
INSERT INTO t SELECT 'row ' || range, range % 12, sin(range) FROM range(30);
"""
RIGHT = """
CREATE TABLE u (uid INTEGER, k INTEGER, z INTEGER, y DOUBLE, c VARCHAR, n BIGINT, b BOOLEAN);
INSERT INTO u SELECT range, range % 9, range % 4, 3 * (range % 4) + 0.1 * range,
  CASE WHEN range % 3 > 0 THEN 'it''s' ELSE 'a "b"' END, range % 3 * 10, range % 2 = 0
FROM range(20);
"""
KINDS_OF_TARGETS = {
    "number": ("linear_regression", "y"),
    "text": ("logistic_regression", "c"),
    "integers": ("softmax_regression", "n"),
    "boolean": ("logistic_regression", "b"),
}


Standing: TypeAlias = tuple[sqlfl.Federation, Parties, Tap]


@pytest.fixture
def parties(database: Open) -> Parties:
    return {"a": [database(LEFT)], "b": [database(RIGHT)]}


@contextlib.contextmanager
def trained(
    parties: Parties, wrap: Callable[[Transport], Transport] | None = None
) -> Iterator[sqlfl.Federation]:
    with federation(parties, wrap) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({QUERY})")
        yield fed


@pytest.fixture(scope="module")
def lasting() -> Iterator[Standing]:
    tap = Tap()
    with in_memory() as left, in_memory() as right:
        left.execute(LEFT)
        right.execute(RIGHT)
        parties: Parties = {"a": [left], "b": [right]}
        with trained(parties, tap) as fed:
            yield fed, parties, tap


@pytest.fixture
def standing(
    lasting: Standing,
) -> Iterator[Standing]:
    """A federation for several tests, with nothing at a but t when one begins."""
    yield lasting
    con = lasting[1]["a"][0]
    con.execute("DROP TABLE IF EXISTS made")
    con.execute("DROP VIEW IF EXISTS shown")
    assert tables(con) == [("memory", "main", "t")]


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [c.to_pylist() for c in table.columns]
    found = [tuple(_rounded(v) for v in row) for row in zip(*columns, strict=True)]
    return sorted(found, key=repr)


def _rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def made(parties: Parties, party: str, table: str) -> pa.Table:
    """The union of the clients' tables, with a check that they have the same columns."""
    found = [con.sql(f"FROM {table}").to_arrow_table() for con in parties[party]]
    assert len({tuple(t.schema.names) for t in found}) == 1
    return pa.concat_tables(found)


def tables(con: duckdb.DuckDBPyConnection) -> list[tuple[str, ...]]:
    query = "SELECT database_name, schema_name, table_name FROM duckdb_tables() ORDER BY ALL"
    return con.execute(query).fetchall()


# -- what is written ------------------------------------------------------------------------------


@given(data=st.data(), case=cases(), clients=st.integers(1, 2))
@examples(1, 40)
def test_into_equals_predict_joined_on_the_identifiers(
    data: st.DataObject, case: Case, clients: int
) -> None:
    assume(case.identifiers)
    with case.open(clients) as databases:
        trainable(case, databases)
        ids = data.draw(st.sampled_from(_choices(case, clients)))
        party = ids[0].partition(".")[0]
        query = predict_sql("m", case.scored_query(wide=True), ids)
        with federation(databases) as fed:
            fed.sql(case.train(epochs=2))
            shown = fed.sql(query).arrow()
            result = fed.sql(f"{query} INTO {party}.made").arrow()
        found = _united(databases, party)
        assert result.column("rows").to_pylist() == [
            con.execute("SELECT count(*) FROM made").fetchall()[0][0]
            for con in databases.parties[party]
        ]
        assert found.schema.names == shown.schema.names
        assert rows(found) == rows(shown)


def _choices(case: Case, clients: int) -> list[tuple[str, ...]]:
    """ID clauses that INTO can take: of one party, of one slot where it has several clients."""
    if clients > 1:
        return [(name,) for name in case.identifiers]
    parties = dict.fromkeys(name.partition(".")[0] for name in case.identifiers)
    return [tuple(n for n in case.identifiers if n.startswith(f"{p}.")) for p in parties]


def _united(databases: Databases, party: str) -> pa.Table:
    return made({party: databases.parties[party]}, party, "made")


def test_identifiers_keep_their_types(database: Open) -> None:
    con = database(
        "CREATE TYPE colour AS ENUM ('red', 'blue')",
        "CREATE TABLE t (k INTEGER, x DOUBLE, e colour, d DECIMAL(9,2), ts TIMESTAMP, "
        'l INTEGER[], s STRUCT(a INTEGER, b VARCHAR), h HUGEINT, "odd name" DATE)',
        "INSERT INTO t SELECT range, sin(range), 'red', range / 4, "
        "TIMESTAMP '2024-02-29 12:00:00' + to_hours(range), [range, NULL], "
        "{'a': range, 'b': 'x'}, range, NULL FROM range(20)",
    )
    parties = {"a": [con], "b": [database(RIGHT)]}
    ids = ", ".join(f"a.t.{c}" for c in ("k", "e", "d", "ts", "l", "s", "h", '"odd name"'))
    with trained(parties) as fed:
        fed.sql(f"PREDICT MODEL m ID ({ids}) FROM ({QUERY}) INTO a.made")
    types = {row[0]: row[1] for row in con.execute("DESCRIBE made").fetchall()}
    assert types == {
        "k": "INTEGER",
        "e": "ENUM('red', 'blue')",
        "d": "DECIMAL(9,2)",
        "ts": "TIMESTAMP",
        "l": "INTEGER[]",
        "s": "STRUCT(a INTEGER, b VARCHAR)",
        "h": "HUGEINT",
        "odd name": "DATE",
        "prediction": "DOUBLE",
    }
    found = con.execute("SELECT DISTINCT ON (k) * EXCLUDE (prediction) FROM made ORDER BY k")
    assert found.fetchall()[1] == (
        1,
        "red",
        Decimal("0.25"),
        dt.datetime(2024, 2, 29, 13),
        [1, None],
        {"a": 1, "b": "x"},
        1,
        None,
    )


PLACES = {
    "another schema": (["CREATE SCHEMA s"], "a.s.made", "memory.s.made"),
    "in full": ([], "a.memory.main.made", "memory.main.made"),
    "another database": (["ATTACH ':memory:' AS far"], "a.far.made", "far.main.made"),
    "a schema of another database": (
        ["ATTACH ':memory:' AS far", "CREATE SCHEMA far.s"],
        "a.FAR.S.made",
        "far.s.made",
    ),
    "after USE": (["ATTACH ':memory:' AS far", "USE far"], "a.made", "far.main.made"),
    "a name that needs quotes": ([], 'a."from ""x"""', 'memory.main."from ""x"""'),
    "a name in mixed case": ([], "A.Made", "memory.main.Made"),
}


@pytest.mark.parametrize(("before", "path", "full"), PLACES.values(), ids=PLACES)
def test_where_the_table_lies(
    before: Sequence[str], path: str, full: str, parties: Parties
) -> None:
    for statement in before:
        parties["a"][0].execute(statement)
    query = QUERY.replace("a.t", "a.memory.main.t")
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({query})")
        result = fed.sql(f"PREDICT MODEL m ID (t.id) FROM ({query}) INTO {path}")
    assert result.arrow().column("table").to_pylist() == [full]
    count = result.arrow().column("rows").to_pylist()
    assert parties["a"][0].execute(f"SELECT count(*) FROM {full}").fetchall() == [tuple(count)]


def test_no_joined_rows_make_an_empty_table(
    standing: Standing,
) -> None:
    fed, parties, _ = standing
    result = fed.sql(f"{PREDICT[:-1]} WHERE t.k < 0) INTO a.made")
    assert result.fetchall() == [("a", "a/0", "memory.main.made", 0)]
    types = parties["a"][0].execute("SELECT column_name, column_type FROM (DESCRIBE made)")
    assert types.fetchall() == [("id", "VARCHAR"), ("prediction", "DOUBLE")]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_without_partner_have_null_identifiers_and_go_to_one_client(
    count: int, database: Open
) -> None:
    parts = [RIGHT, RIGHT.replace("range(20)", "range(20, 23)")][:count]
    clients = [database(part) for part in parts]
    parties = {"a": [database(LEFT)], "b": clients}
    query = "SELECT t.x, u.z, t.k AS y FROM a.t LEFT JOIN b.u ON t.k = u.k"
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 3) FROM ({query})")
        predict = f"PREDICT MODEL m ID (b.u.uid) FROM ({query})"
        shown = fed.sql(predict).arrow()
        fed.sql(f"{predict} INTO b.made")
    assert rows(made(parties, "b", "made")) == rows(shown)
    missing = [
        con.execute("SELECT count(*) FROM made WHERE uid IS NULL").fetchall()[0][0]
        for con in clients
    ]
    assert missing == [shown.column("uid").null_count, 0][:count]
    assert missing[0] > 0


def test_each_client_gets_the_rows_of_its_own(database: Open) -> None:
    clients = [database(LEFT), database(LEFT.replace("'row '", "'other '").replace("30", "7"))]
    parties = {"a": clients, "b": [database(RIGHT)]}
    seen: list[list[tuple[str, ...]]] = []
    disturbed = Disturbed(Commit, lambda: seen.extend(tables(con) for con in clients))
    with trained(parties, disturbed) as fed:
        shown = fed.sql(PREDICT).arrow()
        result = fed.sql(f"{PREDICT} INTO a.made")
    assert seen == [[("memory", "main", "t")]] * 2  # before all have made theirs, nobody shows it
    assert rows(made(parties, "a", "made")) == rows(shown)
    for con, start in zip(clients, ("row", "other"), strict=True):
        ids = con.execute("SELECT DISTINCT id FROM made").fetchall()
        assert ids
        assert all(name.startswith(start) for (name,) in ids)
    counts = [con.execute("SELECT count(*) FROM made").fetchall()[0][0] for con in clients]
    assert [(row[1], row[3]) for row in result.fetchall()] == [
        ("a/0", counts[0]),
        ("a/1", counts[1]),
    ]


def test_the_model_is_still_there_and_what_is_written_can_be_joined(
    standing: Standing,
) -> None:
    fed, parties, _ = standing
    con = parties["a"][0]
    fed.sql(f"{PREDICT} INTO a.made")
    assert con.execute("SELECT count(*) FROM made JOIN t USING (id)").fetchall() != [(0,)]
    with pytest.raises(sqlfl.PlanError, match=r"a table main\.made at a/0 already"):
        fed.sql(f"{PREDICT} INTO a.MADE")
    con.execute("DROP TABLE made")
    fed.sql(f"{PREDICT} INTO a.made")


# -- what crosses the border ----------------------------------------------------------------------


@pytest.mark.parametrize(("of", "clients"), in_turn(KINDS_OF_TARGETS, (1, 2)))
def test_the_table_is_what_predict_shows_and_no_identifier_crosses(
    of: str, clients: int, database: Open
) -> None:
    """What crosses is what EXPLAIN says."""
    kind, target = KINDS_OF_TARGETS[of]
    parts = [LEFT, LEFT.replace("'row '", "'row of 2: '")][:clients]
    parties = {"a": [database(part) for part in parts], "b": [database(RIGHT)]}
    query = QUERY.replace("u.y", f"u.{target}")
    predict = f"PREDICT MODEL m ID (a.t.id) FROM ({query})"
    tap = Tap()
    with federation(parties, wrap=tap) as fed:
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET {target} WITH (epochs = 2) FROM ({query})")
        shown = fed.sql(predict).arrow()
        plan = fed.explain(f"{predict} INTO a.made")
        outputs = 3 if kind == "softmax_regression" else 1
        with tap.taken() as recorded:
            result = fed.sql(f"{predict} INTO a.made")
    assert_disclosed(plan, recorded, parties, outputs=outputs)
    assert not [r for r in recorded if b"row " in r.data]
    kinds = {decode(r.data).kind for r in recorded}
    assert "identifiers" not in kinds
    assert {"write", "written", "commit"} <= kinds
    text = str(plan.details)
    assert "Identifiers do not leave a:" in text
    assert "into" in text
    assert not any(d.kind == "identifiers" for d in plan.disclosures)
    down = [d for d in plan.disclosures if d.kind == "write"]
    assert [d.receiver for d in down] == [f"a/{k}" for k in range(clients)]
    assert result.columns == ["party", "client", "table", "rows"]
    assert [row[:3] for row in result.fetchall()] == [
        ("a", f"a/{k}", "memory.main.made") for k in range(clients)
    ]
    assert sum(row[3] for row in result.fetchall()) == shown.num_rows
    found = made(parties, "a", "made")
    assert found.schema.names == shown.schema.names
    assert [f.type for f in found.schema] == [f.type for f in shown.schema]
    assert rows(found) == rows(shown)


def test_explain_runs_nothing(standing: Standing) -> None:
    fed, parties, _ = standing
    before = tables(parties["a"][0])
    fed.sql(f"EXPLAIN {PREDICT} INTO a.made")
    assert tables(parties["a"][0]) == before


def test_two_slots_of_one_party(database: Open) -> None:
    both = database(
        LEFT, "CREATE TABLE v AS SELECT k, 'v' || k AS vid, k * k AS q FROM range(12) r(k)"
    )
    parties = {"a": [both], "b": [database(RIGHT)]}
    query = "SELECT t.x, v.q, u.z, u.y FROM b.u JOIN a.t ON t.k = u.k JOIN a.v ON v.k = u.k"
    predict = f"PREDICT MODEL m ID (a.v.vid, a.t.id) FROM ({query})"
    tap = Tap()
    with federation(parties, wrap=tap) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 3) FROM ({query})")
        shown = fed.sql(predict).arrow()
        plan = fed.explain(f"{predict} INTO a.made")
        with tap.taken() as recorded:
            fed.sql(f"{predict} INTO a.made")
        assert_disclosed(plan, recorded, parties)
    found = made(parties, "a", "made")
    assert found.schema.names == ["vid", "id", "prediction"]
    assert rows(found) == rows(shown)


# -- refusals -------------------------------------------------------------------------------------


def _no_id(_: Parties) -> str:
    return f"PREDICT MODEL m FROM ({QUERY}) INTO a.made"


REFUSED: dict[str, tuple[Callable[[Parties], str], str, str]] = {
    "no ID": (_no_id, "INTO without ID", "a.made"),
    "an ID of another party": (
        lambda _: f"PREDICT MODEL m ID (a.t.id, b.u.uid) FROM ({QUERY}) INTO a.made",
        "identifier b.u.uid is at b",
        "b.u.uid",
    ),
    "no such party": (lambda _: f"{PREDICT} INTO c.made", "there is no party c", "c.made"),
    "no such schema": (
        lambda _: f"{PREDICT} INTO a.nowhere.made",
        "a has no schema or database nowhere",
        "a.nowhere.made",
    ),
    "no such schema of a database": (
        lambda _: f"{PREDICT} INTO a.memory.nowhere.made",
        "a has no schema or database memory.nowhere",
        "a.memory.nowhere.made",
    ),
    "the table is there": (
        lambda _: f"{PREDICT} INTO a.T",
        "there is a table main.t at a/0 already",
        "a.T",
    ),
    "a view of the name is there": (
        lambda p: p["a"][0].execute("CREATE VIEW seen AS FROM t") and f"{PREDICT} INTO a.seen",
        "there is a table main.seen at a/0 already",
        "a.seen",
    ),
    "a reserved schema": (
        lambda p: p["a"][0].execute("CREATE SCHEMA sqlfl") and f"{PREDICT} INTO a.sqlfl.made",
        "the schema sqlfl is sqlfl's own",
        "a.sqlfl.made",
    ),
    "an identifier called prediction": (
        lambda p: (
            p["a"][0].execute("ALTER TABLE t RENAME id TO Prediction")
            and f"PREDICT MODEL m ID (a.t.Prediction) FROM ({QUERY}) INTO a.made"
        ),
        "the table has a column prediction already",
        "a.t.Prediction",
    ),
    "one identifier twice": (
        lambda _: f"PREDICT MODEL m ID (a.t.id, a.t.id) FROM ({QUERY}) INTO a.made",
        "identifier a.t.id is given twice",
        "a.t.id",
    ),
}


@pytest.mark.parametrize(("statement", "message", "place"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_runs(
    statement: Callable[[Parties], str], message: str, place: str, parties: Parties
) -> None:
    tap = Tap()
    with trained(parties, tap) as fed:
        text = statement(parties)
        before = {p: tables(con) for p, (con,) in parties.items()}
        with tap.taken() as recorded, pytest.raises(sqlfl.PlanError) as caught:
            fed.sql(text)
        assert message in caught.value.message
        assert caught.value.hint is not None
        assert caught.value.span is not None
        start, end = caught.value.span
        assert text[start:end] == place
        kinds = {decode(item.data).kind for item in recorded}
        assert kinds <= {"list_tables", "tables", "describe", "columns"}
        assert {p: tables(con) for p, (con,) in parties.items()} == before


def test_a_read_only_database_is_refused(
    database: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("into") / "a.duckdb"
    with contextlib.closing(duckdb.connect(path)) as con:
        con.execute(LEFT)
    with federation({"b": [database(RIGHT)]}) as fed:
        fed.attach("a", path)
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({QUERY})")
        with pytest.raises(sqlfl.PlanError, match="open for reading only") as caught:
            fed.sql(f"{PREDICT} INTO a.made")
        assert "duckdb.connect(path)" in (caught.value.hint or "")


def test_a_schema_that_one_client_lacks_names_the_client(database: Open) -> None:
    clients = [database(LEFT, "CREATE SCHEMA s"), database(LEFT)]
    message = "client 1 of party a has no schema or database s"
    parties = {"a": clients, "b": [database(RIGHT)]}
    with trained(parties) as fed, pytest.raises(sqlfl.PlanError, match=message):
        fed.sql(f"{PREDICT} INTO a.s.made")
    assert [("memory", "s", "made") in tables(con) for con in clients] == [False, False]


def test_classes_that_differ_in_case_only_are_refused(parties: Parties) -> None:
    parties["b"][0].execute("UPDATE u SET c = CASE WHEN z > 1 THEN 'A' ELSE 'a' END")
    query = QUERY.replace("u.y", "u.c")
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING logistic_regression TARGET c FROM ({query})")
        with pytest.raises(sqlfl.PlanError, match="differ in case only"):
            fed.sql(f"PREDICT MODEL m ID (a.t.id) FROM ({query}) INTO a.made")


def test_identifiers_of_two_slots_at_several_clients_are_refused(database: Open) -> None:
    script = LEFT + "CREATE TABLE v AS SELECT k, k AS vid, k * k AS q FROM range(12) r(k);"
    parties = {"a": [database(script), database(script)], "b": [database(RIGHT)]}
    query = "SELECT t.x, v.q, u.z, u.y FROM b.u JOIN a.t ON t.k = u.k JOIN a.v ON v.k = u.k"
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({query})")
        predict = f"PREDICT MODEL m ID (a.v.vid, a.t.id) FROM ({query}) INTO a.made"
        with pytest.raises(sqlfl.PlanError, match="of v and t, and a has 2 clients") as caught:
            fed.sql(predict)
        assert caught.value.span is not None


# -- all or nothing -------------------------------------------------------------------------------


class Disturbed:
    """A transport that does something before the first message of a kind goes down."""

    def __init__(self, kind: type[Message], work: Callable[[], object]) -> None:
        self.kind, self.work = kind, work

    def __call__(self, inner: Transport) -> Transport:
        self.inner = inner
        return self

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        if any(isinstance(decode(data), self.kind) for _, data in requests):
            self.work()
        return self.inner.exchange(requests)


@pytest.mark.parametrize("kind", [Write, Commit])
def test_a_failure_leaves_no_table_at_any_client(kind: type[Message], database: Open) -> None:
    """The second client has a table of the name by then; or the network breaks before Commit."""
    clients = [database(LEFT), database(LEFT)]
    parties = {"a": clients, "b": [database(RIGHT)]}

    def work() -> None:
        if kind is Commit:
            raise KeyboardInterrupt
        clients[1].execute("CREATE TABLE made AS SELECT 1 AS mine").fetchall()

    with trained(parties, Disturbed(kind, work)) as fed:
        with pytest.raises((sqlfl.PartyError, KeyboardInterrupt)) as caught:
            fed.sql(f"{PREDICT} INTO a.made")
        if kind is Write:
            assert "party a/1" in str(caught.value)
            assert "made" in str(caught.value)
            assert clients[1].execute("FROM made").fetchall() == [(1,)]
            clients[1].execute("DROP TABLE made")
        for con in clients:
            assert tables(con) == [("memory", "main", "t")]
            con.execute("CREATE TABLE made AS SELECT 1 AS x").fetchall()  # nothing holds the name
            con.execute("DROP TABLE made")


def test_two_clients_on_one_database_cannot_make_one_table(database: Open) -> None:
    con = database(LEFT, "CREATE SCHEMA other", "CREATE TABLE other.t AS FROM t")
    parties = {"a": [con, con.cursor()], "b": [database(RIGHT)]}
    parties["a"][1].execute("USE other")
    with (
        trained(parties) as fed,
        pytest.raises(sqlfl.PartyError, match=r"(?s)at the same time.*another name"),
    ):
        fed.sql(f"{PREDICT} INTO a.main.made")
    assert tables(con) == [("memory", "main", "t"), ("memory", "other", "t")]
    parties["a"][1].close()


def test_a_client_that_cannot_keep_its_table_is_named(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [database(LEFT), database(LEFT)]
    answer = PartyClient._answer

    def failing(self: PartyClient, request: Message) -> Message:
        if isinstance(request, Commit) and self.client.index == 1:
            raise duckdb.IOException("the disk is full of secrets")
        return answer(self, request)

    monkeypatch.setattr(PartyClient, "_answer", failing)
    with trained({"a": clients, "b": [database(RIGHT)]}) as fed:
        with pytest.raises(sqlfl.PartyError, match="party a/1: its table was made") as caught:
            fed.sql(f"{PREDICT} INTO a.made")
        assert "a/0 may have kept theirs" in str(caught.value)
        assert "secrets" not in str(caught.value)
    assert ("memory", "main", "made") in tables(clients[0])
    assert tables(clients[1]) == [("memory", "main", "t")]


# -- OR REPLACE ------------------------------------------------------------------------------------


def test_a_table_is_replaced_whole_or_not_at_all(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all have made theirs, each keeps the old one."""
    clients = [database(LEFT, "CREATE TABLE made AS SELECT 7 AS old") for _ in range(2)]
    parties = {"a": clients, "b": [database(RIGHT)]}
    statement = f"{PREDICT} INTO OR REPLACE a.made"
    answer = PartyClient._answer
    failing = True

    def write(self: PartyClient, request: Message) -> Message:
        if isinstance(request, Write) and self.client == Client("a", 1) and failing:
            raise duckdb.IOException("no room")
        return answer(self, request)

    monkeypatch.setattr(PartyClient, "_answer", write)
    with trained(parties) as fed:
        with pytest.raises(sqlfl.PlanError, match=r"INTO OR REPLACE a\.made takes its place"):
            fed.sql(f"{PREDICT} INTO a.made")
        with pytest.raises(sqlfl.PartyError, match="a/1"):
            fed.sql(statement)
        for con in clients:
            assert con.execute("FROM made").fetchall() == [(7,)]
        failing = False
        for _ in range(2):
            fed.sql(statement)
            for con in clients:
                assert [c[0] for c in con.execute("FROM made").description] == ["id", "prediction"]
        fed.sql(f"{PREDICT} INTO OR REPLACE a.brand_new")


NOT_REPLACED = [
    ("OR REPLACE a.shown", sqlfl.PartyError, "(?s)cannot be replaced.*not of a view"),
    ("OR REPLACE a.t", sqlfl.PlanError, "(?s)the query reads main.t.*rows would be lost"),
    ("OR REPLACE a.main.T", sqlfl.PlanError, "the query reads main.t"),
    ("OR a.made", sqlfl.ParseError, "expected REPLACE after INTO OR, got a"),
    ("REPLACE a.made", sqlfl.ParseError, "expected a table as party.table"),
]


def test_what_is_not_replaced(standing: Standing) -> None:
    fed, parties, _ = standing
    (con,) = parties["a"]
    con.execute("CREATE VIEW shown AS FROM t")
    for into, error, text in NOT_REPLACED:
        with pytest.raises(error, match=text):
            fed.sql(f"{PREDICT} INTO {into}")
        assert con.execute("SELECT count(*) FROM t").fetchone() == (30,), into
        assert con.execute("SELECT count(*) FROM shown").fetchone() == (30,), into


def test_what_is_sent_to_replace_a_table_is_what_explain_says(
    standing: Standing,
) -> None:
    fed, parties, tap = standing
    for _ in range(2):
        statement = f"{PREDICT} INTO OR REPLACE a.made"
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        assert_disclosed(plan, recorded, parties)
    (sent,) = [item for item in plan.disclosures if item.kind == "write"]
    assert "which may take the place of another" in sent.what
