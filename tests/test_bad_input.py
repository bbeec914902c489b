"""Bad input: the right error, and everything as it was before; and what must not be an error."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import StatementError
from sqlfl.contract.schema import Client
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import in_turn
from tests.federations import Parties, federation, probabilities
from tests.open_databases import in_memory

FLIGHTS = (
    "CREATE TABLE flights AS SELECT i AS id, i % 8 AS plane, i % 5 AS hour, "
    "(i * 7) % 13 / 2.0 AS delay, (i * 7) % 13 > 5 AS late, 'only' AS single, "
    "CASE WHEN i = 37 THEN 'x'' SECRET-VALUE y' ELSE CAST(i AS VARCHAR) END AS text, "
    "CASE WHEN i % 10 = 3 THEN NULL ELSE i END AS sometimes, "
    "['a', 'b', 'c'][1 + i % 3] AS letter, DATE '2024-01-01' + CAST(i AS INTEGER) AS day, "
    "CASE WHEN i = 5 THEN 'infinity'::DOUBLE ELSE i END AS wild "
    "FROM range(60) r(i)",
    "CREATE TEMP TABLE mine AS SELECT 1 AS x",
)
PLANES = (
    "CREATE TABLE planes AS SELECT i AS plane, 50 + (i * 31) % 100 AS seats, "
    "'kind' || (i % 3) AS model FROM range(8) r(i)",
    "CREATE TABLE others AS SELECT i + 1000 AS plane, i AS seats FROM range(8) r(i)",
)
JOIN = "FROM airline.flights f JOIN registry.planes p USING (plane)"
GOOD = f"""
TRAIN MODEL delay USING linear_regression TARGET delay
FROM (SELECT f.delay, f.hour, p.seats, p.model {JOIN})
"""


@pytest.fixture
def parties(database: Open) -> Parties:
    return {"airline": [database(*FLIGHTS)], "registry": [database(*PLANES)]}


@pytest.fixture
def fed(parties: Parties) -> Iterator[sqlfl.Federation]:
    with federation(parties) as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[sqlfl.Federation, Callable[[], None]]]:
    """A federation with a model, and a check that it and its databases are as at first: for
    statements that must leave no trace, one after the other."""
    with contextlib.ExitStack() as stack:
        parties: Parties = {}
        for party, statements in (("airline", FLIGHTS), ("registry", PLANES)):
            con = stack.enter_context(in_memory())
            for statement in statements:
                con.execute(statement)
            parties[party] = [con]
        made = stack.enter_context(federation(parties))
        made.sql(GOOD)
        before = everything(made, parties)

        def check() -> None:
            assert everything(made, parties) == before
            assert_nothing_left(made)

        yield made, check


def state(con: duckdb.DuckDBPyConnection) -> list[object]:
    """Everything that a database shows of itself, temporary objects and settings included."""
    return [
        con.execute(query).fetchall()
        for query in (
            "SELECT database_name, schema_name, table_name, temporary, estimated_size, sql "
            "FROM duckdb_tables() ORDER BY ALL",
            "SELECT database_name, schema_name, view_name, sql FROM duckdb_views() "
            "WHERE NOT internal ORDER BY ALL",
            "SELECT schema_name, function_name, macro_definition FROM duckdb_functions() "
            "WHERE NOT internal ORDER BY ALL",
            "SELECT database_name, schema_name FROM duckdb_schemas() ORDER BY ALL",
            "SELECT database_name, path FROM duckdb_databases() ORDER BY ALL",
            "SELECT type_name FROM duckdb_types() WHERE NOT internal ORDER BY ALL",
            "SELECT sequence_name FROM duckdb_sequences() ORDER BY ALL",
            "SELECT name, value FROM duckdb_settings() ORDER BY ALL",
            "SELECT name FROM duckdb_secrets() ORDER BY ALL",
        )
    ]


def everything(fed: sqlfl.Federation, parties: Parties) -> list[object]:
    """Databases and models."""
    connections = [con for clients in parties.values() for con in clients]
    return [*map(state, connections), fed.sql("SHOW MODELS").fetchall()]


@contextlib.contextmanager
def unchanged(fed: sqlfl.Federation, parties: Parties) -> Iterator[None]:
    """Databases, snapshots and models are after the block what they were before."""
    before = everything(fed, parties)
    yield
    assert everything(fed, parties) == before
    assert_nothing_left(fed)


def assert_nothing_left(fed: sqlfl.Federation) -> None:
    """No client holds a snapshot, or a block of a run that has no model."""
    known = {fed.model(name).run for name, *_ in fed.sql("SHOW MODELS").fetchall()}
    for server in fed._servers.values():
        assert not server._runs
        assert server._blocks.runs <= known


def train(
    select: str = "f.delay, f.hour, p.seats",
    *,
    name: str = "m",
    kind: str = "linear_regression",
    target: str = "delay",
    options: str = "",
    source: str = JOIN,
) -> str:
    clause = f"WITH ({options})" if options else ""
    return (
        f"TRAIN MODEL {name} USING {kind} TARGET {target} {clause}\nFROM (SELECT {select} {source})"
    )


STATEMENTS: list[tuple[str, str, type[sqlfl.Error], str]] = [
    ("no statement at all", "", sqlfl.ParseError, ""),
    ("not a statement", "FLY MODEL m", sqlfl.ParseError, "FLY"),
    ("plain SQL", "SELECT 1", sqlfl.ParseError, ""),
    ("a second statement that cannot be read", f"DROP MODEL delay; {GOOD.replace('MODEL', 'MODE')}",
     sqlfl.ParseError, "statement 2 of 2"),
    ("an unclosed query", "TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT 1",
     sqlfl.ParseError, ""),
    ("no target", "TRAIN MODEL m USING linear_regression FROM (SELECT 1 AS x)",
     sqlfl.ParseError, "TARGET"),
    ("a model to resume that is not there", "RESUME MODEL m", sqlfl.ModelError, "no model m"),
    ("an unknown party", train(source=JOIN.replace("airline.", "airlines.")),
     sqlfl.PlanError, "airline"),
    ("an unknown table", train(source=JOIN.replace("flights", "fligths")),
     sqlfl.PlanError, "flights"),
    ("an unknown column", train("f.delay, f.huor"), sqlfl.PlanError, "hour"),
    ("an unknown key", train(source=JOIN.replace("(plane)", "(plan)")),
     sqlfl.PlanError, "plan"),
    ("an ambiguous column", train("f.delay, plane, seats",
     source="FROM airline.flights f JOIN registry.planes p ON f.plane = p.plane"),
     sqlfl.PlanError, "plane"),
    ("an unknown function", train("f.delay, frobnicate(f.hour) AS x"), sqlfl.Error, "frobnicate"),
    ("an unknown kind", train(kind="linear_regresion"), StatementError, "linear_regression"),
    ("an unknown option", train(options="epoch = 3"), sqlfl.OptionError, "epochs"),
    ("an option twice", train(options="epochs = 3, epochs = 4"), StatementError, "epochs"),
    ("an option of the wrong type", train(options="epochs = 'many'"), sqlfl.OptionError, "epochs"),
    ("an option out of range", train(options="l2 = -1"), sqlfl.OptionError, "l2"),
    ("no epochs", train(options="epochs = 0"), sqlfl.OptionError, "epochs"),
    ("a choice that is none", train(options="engine = 'fast'"), sqlfl.OptionError, "arrays"),
    ("an option of another algorithm", train(options="algorithm = 'lbfgs', rho = 2"),
     sqlfl.OptionError, "rho"),
    ("a target that is not there", train(target="delays"), sqlfl.PlanError, "delay"),
    ("a target of two parties", train("f.delay + p.seats AS delay, f.hour"), sqlfl.PlanError, ""),
    ("a text target of a regression", train("f.letter, f.hour", target="letter"),
     sqlfl.PlanError, "letter"),
    ("a number target of many values", train(kind="logistic_regression"), sqlfl.Error, "delay"),
    ("a date as a feature", train("f.delay, f.day"), sqlfl.PlanError, "day"),
    ("two columns with the name of the target",
     train("f.delay, f.hour, p.seats AS delay"), sqlfl.PlanError, "delay"),
    ("no feature", train("f.delay"), sqlfl.PlanError, ""),
    ("an expression of two parties", train("f.delay, f.hour * p.seats AS x"), sqlfl.PlanError, ""),
    ("an inequality of two parties",
     train(source="FROM airline.flights f JOIN registry.planes p ON f.plane < p.plane"),
     sqlfl.PlanError, ""),
    ("a cross product", train(source="FROM airline.flights f, registry.planes p"),
     sqlfl.PlanError, "allow_cross_join"),
    ("an aggregate over the join", train("avg(f.delay) AS delay, p.seats",
     source=f"{JOIN} GROUP BY p.seats"), sqlfl.PlanError, ""),
    ("a limit over the join", train(source=f"{JOIN} LIMIT 5"), sqlfl.PlanError, "LIMIT"),
    ("an order that aggregates", train(source=f"{JOIN} ORDER BY sum(f.hour)"), sqlfl.PlanError,
     "an aggregate"),
    ("a union without ALL", train(source=f"{JOIN} UNION SELECT f.delay, f.hour, p.seats {JOIN}"),
     sqlfl.PlanError, "UNION ALL"),
    ("a union of other columns", train(source=f"{JOIN} UNION ALL SELECT f.delay, f.hour {JOIN}"),
     sqlfl.PlanError, ""),
    ("a full join by an inequality",
     train(source="FROM airline.flights f FULL JOIN registry.planes p ON f.plane < p.plane"),
     sqlfl.PlanError, ""),
    ("keys that cannot be compared",
     train(source="FROM airline.flights f JOIN registry.planes p ON f.day = p.seats"),
     sqlfl.Error, ""),
    ("a temporary table of the user's", train(source="FROM airline.mine f"),
     sqlfl.PlanError, "mine"),
    ("an unknown model", f"EVALUATE MODEL nope FROM (SELECT f.delay, f.hour {JOIN})",
     sqlfl.ModelError, "nope"),
    ("an unknown model to predict", f"PREDICT MODEL nope FROM (SELECT f.hour {JOIN})",
     sqlfl.ModelError, "nope"),
    ("an unknown model to drop", "DROP MODEL nope", sqlfl.ModelError, "nope"),
    ("an unknown model to describe", "DESCRIBE MODEL nope", sqlfl.ModelError, "nope"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error", "word"), [s[1:] for s in STATEMENTS],
                         ids=[s[0] for s in STATEMENTS])  # fmt: skip
def test_a_statement_that_cannot_be(
    text: str, error: type[sqlfl.Error], word: str, lasting: tuple[sqlfl.Federation, Callable]
) -> None:
    """Nor can it be explained."""
    fed, check = lasting
    with pytest.raises(error) as caught:
        fed.sql(text)
    assert word.lower() in str(caught.value).lower()
    if isinstance(caught.value, StatementError) and text.strip():
        assert caught.value.line is not None
        assert re.search(r"\^", str(caught.value))
    planned = isinstance(caught.value, (sqlfl.PlanError, sqlfl.OptionError))
    if planned and text.startswith("TRAIN"):
        with pytest.raises(error):
            fed.explain(text)
        with pytest.raises(error):
            fed.sql(f"EXPLAIN {text}")
    check()


RUNNING: list[tuple[str, str, type[sqlfl.Error], str]] = [
    ("an empty join", train(source="FROM airline.flights f JOIN registry.others p USING (plane)"),
     sqlfl.ModelError, "no rows"),
    ("a filter that leaves nothing", train(source=f"{JOIN} WHERE f.hour > 99"),
     sqlfl.ModelError, "no rows"),
    ("a label that is always NULL", train("CASE WHEN f.hour > 9 THEN 1.5 END AS delay, p.seats"),
     sqlfl.ModelError, ""),
    ("a label of one class", train("f.single, f.hour", kind="logistic_regression", target="single"),
     sqlfl.ModelError, "one class"),
    ("a label of one class in the join",
     train("f.late, p.seats", kind="logistic_regression", target="late",
           source=f"{JOIN} WHERE f.late"), sqlfl.ModelError, "one class"),
    ("three classes for two", train("f.letter, f.hour", kind="logistic_regression",
     target="letter"), sqlfl.Error, "softmax_regression"),
    ("an infinite feature", train("f.delay, f.wild"), sqlfl.PartyError, "airline"),
    ("an infinite label", train("f.wild, f.hour", target="wild"), sqlfl.Error, ""),
    ("a cast that fails half-way", train("f.delay, CAST(f.text AS INTEGER) AS x, p.seats"),
     sqlfl.PartyError, "airline"),
    ("a filter that fails half-way",
     train(source=f"{JOIN} WHERE CAST(f.text AS INTEGER) >= 0"), sqlfl.PartyError, "airline"),
    ("a key that fails half-way",
     train(source="FROM airline.flights f JOIN registry.planes p ON f.text = p.plane"),
     sqlfl.PartyError, "airline"),
    ("an error of the user's own", train("f.delay, error('no, ' || f.text) AS x, p.seats"),
     sqlfl.Error, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error", "word"), [s[1:] for s in RUNNING],
                         ids=[s[0] for s in RUNNING])  # fmt: skip
@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_a_run_that_fails(
    text: str,
    error: type[sqlfl.Error],
    word: str,
    engine: str,
    lasting: tuple[sqlfl.Federation, Callable],
) -> None:
    fed, check = lasting
    text = text.replace("\nFROM", f"WITH (engine = '{engine}')\nFROM")
    with pytest.raises(error) as caught:
        fed.sql(text)
    assert word in str(caught.value)
    assert "SECRET-VALUE" not in str(caught.value)
    check()
    fed.sql(GOOD.replace("MODEL delay", "MODEL again"))
    assert fed.model("again").metrics["rows"] == 60
    fed.sql("DROP MODEL again")


def test_the_party_that_failed_is_named_with_its_client(database: Open) -> None:
    parties = {
        "airline": [database(*FLIGHTS, "DELETE FROM flights WHERE id = 37"), database(*FLIGHTS)],
        "registry": [database(*PLANES)],
    }
    with federation(parties) as fed, unchanged(fed, parties):
        with pytest.raises(sqlfl.PartyError) as caught:
            fed.sql(train("f.delay, CAST(f.text AS INTEGER) AS x, p.seats"))
        assert caught.value.party == "airline/1"


def test_a_failing_replacement_keeps_the_model(fed: sqlfl.Federation, parties: Parties) -> None:
    fed.sql(GOOD)
    score = f"PREDICT MODEL delay FROM (SELECT f.hour, p.seats, p.model {JOIN})"
    before = sorted(fed.sql(score).fetchall())
    bad = train("f.delay, CAST(f.text AS INTEGER) AS x", name="delay").replace(
        "TRAIN", "TRAIN OR REPLACE", 1
    )
    with unchanged(fed, parties), pytest.raises(sqlfl.PartyError):
        fed.sql(bad)
    assert sorted(fed.sql(score).fetchall()) == before


def test_a_name_in_use(fed: sqlfl.Federation, parties: Parties) -> None:
    fed.sql(GOOD)
    with unchanged(fed, parties):
        with pytest.raises(sqlfl.ModelError, match="OR REPLACE"):
            fed.sql(GOOD)
        fed.sql(GOOD.replace("TRAIN MODEL", "TRAIN MODEL IF NOT EXISTS"))
    run = fed.model("delay").run
    fed.sql(GOOD.replace("TRAIN MODEL", "TRAIN OR REPLACE MODEL"))
    assert fed.model("delay").run != run
    assert_nothing_left(fed)


SCORING = [
    ("a feature is missing", f"PREDICT MODEL delay FROM (SELECT f.hour, p.seats {JOIN})", "model"),
    ("a feature of another type",
     f"PREDICT MODEL delay FROM (SELECT f.letter AS hour, p.seats, p.model {JOIN})", "hour"),
    ("a feature from another party",
     "PREDICT MODEL delay FROM (SELECT f.hour, f.id AS seats, p.model "
     f"{JOIN})", "seats"),
    ("an unknown identifier",
     f"PREDICT MODEL delay ID (airline.flights.idd) FROM (SELECT f.hour, p.seats, p.model {JOIN})",
     "idd"),
    ("no label to evaluate", f"EVALUATE MODEL delay FROM (SELECT f.hour, p.seats, p.model {JOIN})",
     "delay"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), [s[1:] for s in SCORING], ids=[s[0] for s in SCORING])
def test_a_query_that_does_not_fit_the_model(
    text: str, word: str, lasting: tuple[sqlfl.Federation, Callable]
) -> None:
    fed, check = lasting
    with pytest.raises((sqlfl.PlanError, sqlfl.ModelError)) as caught:
        fed.sql(text)
    assert word in str(caught.value)
    check()


# -- connections -----------------------------------------------------------------------------------


def test_a_closed_connection_is_refused(database: Open) -> None:
    con = database(*FLIGHTS)
    con.close()
    with sqlfl.connect() as fed, pytest.raises(sqlfl.PartyError, match=r"airline.*closed"):
        fed.attach("airline", con)


def test_a_connection_closed_later(database: Open, parties: Parties) -> None:
    with federation(parties) as fed:
        parties["registry"][0].close()
        with pytest.raises(sqlfl.PartyError, match=r"registry"):
            fed.sql(GOOD)
        assert fed.sql("SHOW MODELS").fetchall() == []
        left = {"airline": parties["airline"]}
        with unchanged(fed, left):
            alone = train("f.delay, f.hour", source="FROM airline.flights f")
            fed.sql(alone)
            fed.sql("DROP MODEL m")


@pytest.mark.parametrize(
    "source", ["nowhere.duckdb", 7, [], None], ids=["no file", "a number", "no client", "None"]
)
def test_a_source_that_is_none(source: object, tmp_path: Path) -> None:
    if isinstance(source, str):
        source = str(tmp_path / source)
    with sqlfl.connect() as fed, pytest.raises(sqlfl.Error):
        fed.attach("airline", source)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "text.duckdb"
    path.write_text("not a database")
    with sqlfl.connect() as fed, pytest.raises(sqlfl.PartyError, match="airline"):
        fed.attach("airline", path)


def test_names_of_parties(database: Open) -> None:
    con = database(*FLIGHTS)
    with sqlfl.connect() as fed:
        fed.attach("airline", con)
        for name in ("airline", "Airline", "two words", "", "a.b"):
            with pytest.raises(sqlfl.Error):
                fed.attach(name, con)


def test_a_read_only_file_trains(tmp_path: Path, database: Open) -> None:
    path = tmp_path / "airline.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as con:
        con.execute(FLIGHTS[0])
    before = path.read_bytes()
    with sqlfl.connect() as fed:
        fed.attach("airline", path)
        fed.attach("registry", database(*PLANES))
        fed.sql(GOOD)
        assert fed.model("delay").metrics["rows"] == 60
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["airline.duckdb"]


def test_a_closed_federation(parties: Parties) -> None:
    fed = sqlfl.connect()
    fed.attach("airline", parties["airline"])
    fed.close()
    fed.close()
    with pytest.raises(sqlfl.Error, match="closed"):
        fed.sql("SHOW MODELS")
    assert parties["airline"][0].execute("SELECT count(*) FROM flights").fetchone() == (60,)


def test_an_open_transaction_is_not_disturbed(parties: Parties) -> None:
    con = parties["airline"][0]
    con.execute("BEGIN")
    con.execute(
        "INSERT INTO flights (id, plane, hour, delay) SELECT 900 + i, 1, 1, 1 FROM range(9) r(i)"
    )
    con.execute("CREATE TABLE draft AS SELECT 1 AS x")
    with sqlfl.connect(progress=False) as fed:
        with pytest.warns(sqlfl.Warning, match="open transaction"):
            fed.attach("airline", parties["airline"])
        fed.attach("registry", parties["registry"])
        with unchanged(fed, parties):
            fed.sql(GOOD)
            assert fed.model("delay").metrics["rows"] == 60
            with pytest.raises(sqlfl.PartyError):
                fed.sql(train("f.delay, CAST(f.text AS INTEGER) AS x"))
            with pytest.raises(sqlfl.PlanError):
                fed.sql(train(source="FROM airline.draft f"))
            fed.sql("DROP MODEL delay")
        assert con.execute("SELECT count(*) FROM flights").fetchone() == (69,)
    con.execute("ROLLBACK")
    assert con.execute("SELECT count(*) FROM flights").fetchone() == (60,)


def test_a_result_being_read_is_not_disturbed(parties: Parties) -> None:
    con = parties["airline"][0]
    con.execute("SELECT id FROM flights ORDER BY id")
    assert con.fetchone() == (0,)
    with federation(parties) as fed:
        fed.sql(GOOD)
    assert con.fetchmany(3) == [(1,), (2,), (3,)]


# -- while a statement runs ------------------------------------------------------------------------


class Disturbing:
    """Calls `act` before the `at`-th request of a kind goes out, then passes everything on."""

    def __init__(self, inner: Transport, kind: str, at: int, act: Callable[[], None]) -> None:
        self.inner, self.kind, self.at, self.act = inner, kind, at, act
        self.seen = 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        kinds = {decode(data).kind for _, data in requests}
        if self.kind in kinds:
            self.seen += 1
            if self.seen == self.at:
                self.act()
        return self.inner.exchange(requests)


def disturbed(
    parties: Parties, kind: str, at: int, act: Callable[[], None]
) -> contextlib.AbstractContextManager[sqlfl.Federation]:
    return federation(parties, wrap=lambda inner: Disturbing(inner, kind, at, act))


LONG = GOOD.replace("\nFROM", "\nWITH (algorithm = 'sgd', epochs = 50, tolerance = 0)\nFROM")


def predicted(fed: sqlfl.Federation) -> list[float]:
    table = fed.sql(f"PREDICT MODEL delay FROM (SELECT f.hour, p.seats, p.model {JOIN})").arrow()
    return sorted(probabilities(table, "linear_regression")[:, 0])


def test_ctrl_c_keeps_the_model_so_far(parties: Parties) -> None:
    before = signal.getsignal(signal.SIGINT)
    with disturbed(parties, "residuals", 8, lambda: signal.raise_signal(signal.SIGINT)) as fed:
        result = fed.sql(LONG)
        model = fed.model("delay")
        assert model.interrupted
        assert 1 <= model.history.num_rows < 20
        assert "interrupted" in repr(result)
        assert len(predicted(fed)) == 60
        assert_nothing_left(fed)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("kind", ["prepare", "activate", "residuals", "save"])
def test_a_second_ctrl_c_leaves_nothing_behind(kind: str, parties: Parties) -> None:
    def twice() -> None:
        raise KeyboardInterrupt

    with disturbed(parties, kind, 1, twice) as fed:
        with unchanged(fed, parties), pytest.raises(KeyboardInterrupt):
            fed.sql(LONG)
        fed.sql(GOOD)
        assert fed.model("delay").metrics["rows"] == 60


@pytest.mark.parametrize(
    "kind", ["prepare", "send_keys", "activate", "send_labels", "start", "residuals", "save"]
)
def test_a_transport_that_breaks_leaves_nothing_behind(kind: str, parties: Parties) -> None:
    def broken() -> None:
        raise sqlfl.PartyError("registry/0", "the line is dead")

    with disturbed(parties, kind, 1, broken) as fed:
        with unchanged(fed, parties), pytest.raises(sqlfl.PartyError, match="the line is dead"):
            fed.sql(GOOD)
        fed.sql(GOOD)
        assert fed.model("delay").metrics["rows"] == 60


@pytest.mark.parametrize(
    ("change", "kind", "engine"),
    in_turn(
        (
            "DROP TABLE planes",
            "DELETE FROM planes",
            "UPDATE planes SET seats = -seats",
            "ALTER TABLE planes DROP COLUMN seats",
        ),
        ("send_keys", "activate", "start", "residuals"),
        ("sql", "arrays"),
        each=2,
    ),
)
def test_a_table_changed_while_training_changes_nothing(
    change: str, kind: str, engine: str, parties: Parties
) -> None:
    statement = GOOD.replace("\nFROM", f"\nWITH (engine = '{engine}')\nFROM")
    with federation(parties) as fed:
        fed.sql(statement)
        expected = fed.model("delay").metrics

    con = parties["registry"][0]

    def act() -> None:
        con.execute(change)

    with disturbed(parties, kind, 1, act) as fed:
        fed.sql(statement)
        found = fed.model("delay").metrics
        assert found["rows"] == expected["rows"]
        assert found["objective"] == pytest.approx(expected["objective"], rel=1e-6)
        assert_nothing_left(fed)


def test_a_model_survives_the_tables_it_was_trained_on(parties: Parties) -> None:
    with federation(parties) as fed:
        fed.sql(GOOD)
        parties["registry"][0].execute("DROP TABLE planes")
        with pytest.raises(sqlfl.PlanError, match="planes"):
            predicted(fed)
        parties["registry"][0].execute(PLANES[0])
        assert len(predicted(fed)) == 60


def test_null_keys_and_null_labels_are_no_error(fed: sqlfl.Federation, parties: Parties) -> None:
    with unchanged(fed, parties):
        fed.sql(train("f.sometimes, f.hour, p.seats", target="sometimes"))
        assert fed.model("m").metrics["rows"] == 54
        assert fed.model("m").metrics["null_targets"] == 6
        joined = "FROM airline.flights f JOIN registry.planes p ON f.sometimes = p.plane"
        fed.sql(train(name="n", source=joined))
        assert fed.model("n").metrics["rows"] == 7
        fed.sql("DROP MODEL m")
        fed.sql("DROP MODEL n")
