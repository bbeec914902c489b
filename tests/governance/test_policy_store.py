"""Policies in a store: a database that is only read is governed as one that keeps them itself, and
nothing is allowed by leaving a place out that has some."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error, PartyError, PlanError, PolicyError
from sqlfl.contract.schema import Client
from sqlfl.governance.policy_store import KEEP, store_of
from sqlfl.governance.records import TABLES, Records
from sqlfl.messages.wire import encoded, received
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.udfs.blocks.block_tables import current_database
from sqlfl.udfs.sql import waiting
from tests.conftest import Open
from tests.governance.clinic import GRANT, PATIENTS, QUERY, TESTS, TRAIN, prepared, ruled

ROW = "SELECT count(*) FROM sqlfl."
PRIVATE = f"""TRAIN OR REPLACE MODEL m USING linear_regression TARGET days
  WITH (algorithm = 'sgd', epochs = 2)
  PRIVACY (epsilon = 2, delta = 1e-4, predictions = 'gaussian', label_epsilon = 1,
           label_bounds = [-1, 3], statistics = 'bounds',
           feature_bounds = {{'age': [20, 80], 'crp': [-1, 1]}})
  FROM ({QUERY.replace("p.bmi, p.ward, ", "")})"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(path) as con:
        con.execute(PATIENTS)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "records.duckdb"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "lab.duckdb"
    with duckdb.connect(path) as con:
        con.execute(TESTS)
    return path


Attach = Callable[..., "contextmanager[sqlfl.Federation]"]  # type: ignore[type-arg]


@pytest.fixture
def attached(lab: Path) -> Attach:
    @contextmanager
    def attach(source: object, store: object = None, path: Path | None = None) -> Iterator[object]:
        with sqlfl.connect(path, analyst="acme", progress=False) as fed:
            fed.attach("clinic", source, store=store)  # type: ignore[arg-type]
            fed.attach("lab", lab)
            yield fed

    return attach


def counts(store: Path) -> dict[str, int]:
    """Of what is kept in the store."""
    with duckdb.connect(store) as con:
        names = con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'sqlfl'"
        ).fetchall()
        return {name: con.execute(ROW + name).fetchall()[0][0] for (name,) in names}


@pytest.mark.parametrize("how", ["path", "read-only file", "connection"])
def test_a_source_that_is_only_read_is_governed(
    how: str, source: Path, store: Path, attached: Attach
) -> None:
    before = source.read_bytes()
    ruled(source, "min_difference = 5, runs_per_day = 2", store=store)
    given: object = source
    if how == "read-only file":
        os.chmod(source, 0o444)
    elif how == "connection":
        given = duckdb.connect(source, read_only=True)
    with attached(given, store) as fed:
        fed.sql(TRAIN)
        assert "salary" not in fed.tables().arrow().column("column").to_pylist()
        with pytest.raises(PlanError, match="has no column salary"):
            fed.sql(TRAIN.replace("p.bmi", "p.salary AS bmi"))
        with pytest.raises(PolicyError, match=r"pid of .* is not granted to acme for TRAIN"):
            fed.sql(TRAIN.replace("p.bmi", "p.pid AS bmi"))
        with pytest.raises(PolicyError, match="min_difference = 5"):
            fed.sql(f"{TRAIN[:-1]} WHERE p.bmi < 0.999)")
    if isinstance(given, duckdb.DuckDBPyConnection):
        given.close()
    kept = counts(store)
    assert kept["chain"] > 20
    assert kept["runs"] == 2
    assert kept["seen"] == 3  # two sets of rows, and the table itself
    assert source.read_bytes() == before
    assert sqlfl.verify(store).arrow().num_rows == 0
    with sqlfl.owner(source, store) as owner:
        left = owner.sql("SHOW DISCLOSURES").arrow()["kind"].to_pylist()
    assert {"join_keys", "labels", "predictions"} <= set(left)
    with attached(source, store) as fed, pytest.raises(PolicyError, match="runs_per_day = 2"):
        fed.sql(TRAIN)


def test_the_owner_decides_in_the_store(source: Path, store: Path, attached: Attach) -> None:
    ruled(source, "approval = 'always'", store=store)
    with attached(source, store) as fed:
        with pytest.raises(ApprovalError, match="request 1"):
            fed.sql(TRAIN)
        with sqlfl.owner(source, store) as owner:
            owner.sql("APPROVE REQUEST 1")
        fed.sql(TRAIN)
        with pytest.raises(ApprovalError, match="request 2"):
            fed.sql(TRAIN)
    assert counts(store)["requests"] == 2


def test_an_account_is_kept_in_the_store(source: Path, store: Path, attached: Attach) -> None:
    """Labels are charged once: the secret of their noise lies there too, and lasts."""
    ruled(source, "epsilon = 10, delta = 1e-4", store=store)
    for _ in range(2):
        with attached(source, store) as fed:
            fed.sql(PRIVATE)
    kept = counts(store)
    assert (kept["ledger"], kept["label_secrets"]) == (4, 1)
    assert not source.with_name("bank.duckdb.label-secret").exists()
    with sqlfl.owner(source, store) as owner:
        (row,) = owner.sql("SHOW BUDGETS").arrow().to_pylist()
    assert row["table"] == "bank.main.patients"
    assert 3 < row["spent"] < 6


def test_a_store_in_memory_keeps_no_secret(source: Path, database: Open, attached: Attach) -> None:
    kept = database("SELECT 1")
    ruled(source, "epsilon = 10, delta = 1e-4", store=kept)
    os.chmod(source, 0o444)
    with duckdb.connect(source, read_only=True) as con:
        for _ in range(2):
            with attached(con, kept) as fed:
                fed.sql(PRIVATE)
    found = kept.execute("SELECT what FROM sqlfl.ledger ORDER BY number").fetchall()
    assert found == [("features",), ("labels",)] * 2


def test_a_store_keeps_blocks_and_policies(source: Path, store: Path, attached: Attach) -> None:
    ruled(source, store=store)
    path = store.with_name("coordinator.duckdb")
    with attached(source, store, path) as fed:
        fed.sql(TRAIN)
        assert "clinic/0" not in fed.model("m").kept
        with pytest.raises(PolicyError, match=r"pid of .* is not granted"):
            fed.sql(TRAIN.replace("p.bmi", "p.pid AS bmi"))
    assert counts(store)["blocks"] == 1
    assert sqlfl.verify(store, path).arrow().num_rows == 0
    with attached(source, store, path) as fed:
        fed.sql(f"EVALUATE MODEL m FROM ({QUERY})")
        fed.sql("DROP MODEL m")
    kept = counts(store)
    assert (kept["policies"], kept.get("blocks", 0)) == (1, 0)


def test_a_view_is_looked_up_in_the_source(source: Path, store: Path, attached: Attach) -> None:
    with duckdb.connect(source) as con:
        con.execute("CREATE VIEW seen AS SELECT pid, age, bmi, ward, days, ill FROM patients")
    ruled(source, grant=GRANT.replace("patients", "seen"), store=store)
    text = TRAIN.replace("clinic.patients", "clinic.seen")
    with attached(source, store) as fed:
        fed.sql(text)
        with pytest.raises(PlanError, match="has no table patients"):
            fed.sql(TRAIN)
    with duckdb.connect(source) as con:
        con.execute("CREATE OR REPLACE VIEW seen AS SELECT * REPLACE (salary AS age) FROM patients")
    with attached(source, store) as fed, pytest.raises(PolicyError, match="is another one"):
        fed.sql(text)


# -- where a place is left out, or there are two ---------------------------------------------------

STATEMENTS = (TRAIN, "SHOW TABLES", f"CHECK TARGET days FROM ({QUERY})", f"EXPLAIN {TRAIN}")


def test_policies_that_nothing_can_be_kept_under_allow_nothing(
    source: Path, store: Path, attached: Attach
) -> None:
    ruled(source)
    with duckdb.connect(source, read_only=True) as con, attached(con) as fed:
        for text in STATEMENTS:
            with pytest.raises(PolicyError) as error:
                fed.sql(text)
            assert "training policies are in its database, which is only read" in str(error.value)
            assert KEEP in str(error.value)
    with (
        duckdb.connect(source, read_only=True) as con,
        pytest.raises(PolicyError, match="in its database, which is only read"),
        attached(con, store, store.with_name("c.duckdb")),  # which keeps blocks alone
    ):
        pass
    with duckdb.connect(source) as con, attached(con) as fed:
        fed.sql(TRAIN)
    with attached(source) as fed:  # by its path it is opened to be written
        fed.sql(TRAIN)


def test_a_source_whose_policies_are_in_a_store_is_closed_off(
    source: Path, store: Path, attached: Attach, tmp_path: Path
) -> None:
    """By its path; files are for views in folders that the policies have."""
    with duckdb.connect(source) as con:
        path = tmp_path / "more.parquet"
        con.execute(f"COPY (SELECT pid, age, bmi, ward, days, ill FROM patients) TO '{path}'")
        con.execute(f"CREATE VIEW more AS FROM '{path}'")
    grant = GRANT.replace("patients", "more")
    text = TRAIN.replace("clinic.patients", "clinic.more")
    ruled(source, grant=grant, store=store)
    with attached(source, store) as fed, pytest.raises(sqlfl.Error, match="folders"):
        fed.sql(text)
    ruled(source, f"folders = '{tmp_path}', threads = 1", grant="", store=store)
    with attached(source, store) as fed:
        fed.sql(text)


@pytest.fixture
def read_only(source: Path) -> Iterator[PartyClient]:
    ruled(source)
    secret = b"\x07" * 32
    with duckdb.connect(source, read_only=True) as con:
        client = PartyClient(Client("clinic"), con, Secrets(secret, secret), analyst="acme")
        with closing(client):
            yield client


def test_a_coordinator_that_goes_on_gets_nothing(read_only: PartyClient) -> None:
    """Also not the reply of a party that cannot note what it is asked."""
    select = "SELECT pid AS sqlfl_key_0_0 FROM patients"

    def ask(message: ms.Message) -> ms.Message:
        return received(read_only.handle(pa.py_buffer(encoded(message))))

    own = ("[]", (select,))
    for message in (
        ms.ListTables("", -1),
        ms.Describe("", -1, (select,)),
        ms.Propose("r", -1, "{}", *own),
        ms.Prepare("r", -1, *own),
        ms.SendBlock("", -1, "m", 0),
    ):
        reply = ask(message)
        assert isinstance(reply, ms.Failure)
        assert (reply.error, "only read" in reply.text) == ("PolicyError", True), message
    assert isinstance(prepared(ask, select), ms.Failure)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.Failure)


def test_policies_in_two_places_allow_nothing(source: Path, store: Path, attached: Attach) -> None:
    with duckdb.connect(source) as con:
        ruled(con, store=store)
        with attached(con, store) as fed:
            fed.sql(TRAIN)
            ruled(con, "min_rows = 5")
            for text in STATEMENTS:
                with pytest.raises(PolicyError, match="in two places, its store and its database"):
                    fed.sql(text)
        with pytest.raises(PartyError) as error, attached(con, store):
            pass
        assert str(source) in str(error.value)
        assert str(store) in str(error.value)
        with attached(con) as fed:
            fed.sql(TRAIN)
        with sqlfl.owner(con) as owner:
            owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY r")
        with attached(con, store) as fed:
            fed.sql(TRAIN)


def test_policies_that_come_later_to_the_other_place(
    source: Path, store: Path, attached: Attach
) -> None:
    path = store.with_name("c.duckdb")
    with duckdb.connect(source) as con, attached(con, store, path) as fed:
        fed.sql(TRAIN)
        ruled(con, store=store)
        with pytest.raises(PolicyError, match="policies in its store since it was attached"):
            fed.sql(TRAIN)
        fed.detach("clinic")
        fed.attach("clinic", con, store=store)
        fed.sql(TRAIN)
        with sqlfl.owner(con, store) as owner:
            owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY r")
        fed.sql(TRAIN)
        ruled(con)
        with pytest.raises(PolicyError, match="policies in its database since it was attached"):
            fed.sql(TRAIN)


def test_a_store_that_is_gone_allows_nothing(source: Path, store: Path, attached: Attach) -> None:
    ruled(source, store=store)
    with closing(duckdb.connect()) as kept:
        kept.execute(f"ATTACH '{store}' AS s; USE s")
        with attached(source, kept) as fed:
            fed.sql(TRAIN)
            sqlfl.verify(kept)  # so that no message waits to be written
            waiting(lambda: kept.execute("USE memory; DETACH s"))
            with pytest.raises(PartyError, match="is gone from its connection"):
                fed.sql(TRAIN)
            waiting(kept.close)
            with pytest.raises(PartyError, match=r"connection is closed|takes no record"):
                fed.sql(TRAIN)


def test_a_store_without_policies_needs_a_coordinator_that_keeps_models(
    source: Path, store: Path, attached: Attach
) -> None:
    before = sorted(path.name for path in store.parent.iterdir())
    said = r"(?s)no training policies.*sqlfl\.connect"
    with pytest.raises(Error, match=said), attached(source, store):
        pass
    assert sorted(path.name for path in store.parent.iterdir()) == before
    ruled(source, store=store)
    with sqlfl.owner(source, store) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY r")
    with pytest.raises(Error, match=said), attached(source, store):
        pass
    with (
        duckdb.connect(source) as con,
        pytest.raises(Error, match="is the source itself"),
        attached(con, con),
    ):
        pass
    with duckdb.connect(store):  # and it is closed
        pass


def test_a_store_that_is_only_read_governs_nothing(
    source: Path, store: Path, attached: Attach
) -> None:
    ruled(source, store=store)
    with (
        duckdb.connect(store, read_only=True) as kept,
        pytest.raises(PartyError, match=r"records\.duckdb, has .* and is read-only"),
        attached(source, kept),
    ):
        pass


def test_a_store_that_is_called_as_the_database_is(database: Open, attached: Attach) -> None:
    con, kept = database(PATIENTS), database("SELECT 1")
    ruled(con, store=kept)
    with attached(con, kept) as fed, pytest.raises(PolicyError, match=r"pid of .* is not granted"):
        fed.sql(TRAIN.replace("p.bmi", "p.pid AS bmi"))
    ruled(con)
    with pytest.raises(PartyError, match="database of the tables, memory"), attached(con, kept):
        pass


def test_a_store_is_a_database_of_duckdb(database: Open) -> None:
    con, kept = database(PATIENTS), database("SELECT 1")
    ruled(con, store=kept)
    own, stored = current_database(con), current_database(kept)
    assert store_of(con, own, kept, stored) is not None
    with pytest.raises(Error, match="and is a database of type sqlite"):
        store_of(con, own, kept, replace(stored, kind="sqlite"))


def test_one_store_of_two_databases_of_one_name(
    source: Path, store: Path, database: Open, lab: Path, tmp_path: Path
) -> None:
    """A grant on the one would be one on the other."""
    cons = [database(PATIENTS), database(PATIENTS)]
    ruled(cons[0], store=store)
    other = tmp_path / "other.duckdb"
    other.write_bytes(source.read_bytes())
    ruled(source, store=tmp_path / "both.duckdb")
    with sqlfl.owner(other, tmp_path / "both.duckdb") as owner:
        owner.sql(GRANT)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        with pytest.raises(PartyError, match=r"clinic/1: .*called memory, as that of .*clinic/0"):
            fed.attach("clinic", cons, store=store)
        fed.attach("clinic", [source, other], store=tmp_path / "both.duckdb")
        fed.attach("lab", lab)
        fed.sql(TRAIN)
    assert sqlfl.verify(tmp_path / "both.duckdb").arrow().num_rows == 0


def test_records_are_moved_by_copying_them(source: Path, store: Path, attached: Attach) -> None:
    with duckdb.connect(source) as con:
        ruled(con, "min_difference = 5")
        with attached(con) as fed:
            fed.sql(TRAIN)
    with duckdb.connect(store) as con:
        con.execute(f"CREATE SCHEMA sqlfl; ATTACH '{source}' AS old (READ_ONLY)")
        for name in TABLES:
            con.execute(f"CREATE TABLE sqlfl.{name} AS FROM old.sqlfl.{name}")
    with sqlfl.owner(source) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY r")
    before = counts(store)
    with attached(source, store) as fed:
        fed.sql(TRAIN)
        with pytest.raises(PolicyError, match="min_difference = 5"):
            fed.sql(f"{TRAIN[:-1]} WHERE p.bmi < 0.999)")
    assert counts(store)["chain"] > before["chain"] > 20
    assert counts(store)["seen"] == before["seen"]
    assert sqlfl.verify(store).arrow().num_rows == 0


def test_a_source_does_not_tell_of_its_store(source: Path, store: Path, attached: Attach) -> None:
    """As the page says: whoever attaches it without the store is not held to what is there."""
    ruled(source, "kinds = ['poisson_regression']", store=store)
    with attached(source) as fed:
        fed.sql(TRAIN)
        assert "salary" in fed.tables().arrow().column("column").to_pylist()
    with attached(source, store) as fed, pytest.raises(PolicyError, match="kinds"):
        fed.sql(TRAIN)


# -- nothing reads the store -----------------------------------------------------------------------

SECRET = "CANARY9157"


@pytest.fixture
def spoken(source: Path, store: Path) -> Iterator[Callable[[ms.Message], ms.Message]]:
    ruled(source, store=store)
    with sqlfl.owner(source, store) as owner:
        owner.sql(f"CREATE TRAINING POLICY {SECRET}")
        owner.sql(f"GRANT TRAIN (age) ON patients TO '{SECRET}' UNDER {SECRET}")
    secret = b"\x07" * 32
    with duckdb.connect(source, read_only=True) as con, duckdb.connect(store) as kept:
        client = PartyClient(
            Client("clinic"), con, Secrets(secret, secret), analyst="acme",
            store=Records(kept, "records"),
        )  # fmt: skip

        def ask(message: ms.Message) -> ms.Message:
            data = client.handle(pa.py_buffer(encoded(message))).to_pybytes()
            assert SECRET.lower().encode() not in data.lower()
            return received(data)

        with closing(client):
            yield ask
        listed = con.execute("SELECT database_name, path FROM duckdb_databases()").fetchall()
        assert not [row for row in listed if "records" in str(row)]


WHAT = (
    "records.sqlfl.policies", "records.sqlfl.grants", "sqlfl.label_secrets", "sqlfl.blocks",
    "'{store}'", "read_blob('{store}')", "read_text('{store}.wal')", "duckdb_databases()",
    "query('FROM records.sqlfl.grants')", "'{store}'.sqlfl.transport.audit_chain", "sqlfl.ledger",
)  # fmt: skip


def test_no_fragment_reads_the_store(
    spoken: Callable[[ms.Message], ms.Message], store: Path
) -> None:
    for what in WHAT:
        table = what.format(store=store)
        for select in (
            f"SELECT * FROM {table}",
            f"SELECT pid AS sqlfl_key_0_0 FROM patients, {table}",
            f"SELECT pid AS sqlfl_key_0_0 FROM patients WHERE EXISTS (FROM {table})",
            f"SELECT (SELECT count(*) FROM {table}) AS sqlfl_key_0_0 FROM patients",
        ):
            for reply in (spoken(ms.Describe("", -1, (select,))), prepared(spoken, select)):
                assert isinstance(reply, ms.Failure), select
                assert reply.error == "PolicyError", reply.text
    good = "SELECT pid AS sqlfl_key_0_0 FROM patients"
    assert isinstance(prepared(spoken, good), ms.Prepared)


def test_a_store_that_queries_could_read_governs_nothing(
    source: Path, store: Path, attached: Attach
) -> None:
    """It is a database of the very connection that has the tables."""
    ruled(source, store=store)
    with closing(duckdb.connect(source)) as con:
        con.execute(f"ATTACH '{store}' AS records")
        kept = con.cursor()
        kept.execute("USE records")
        with (
            pytest.raises(PartyError, match="where queries could read it"),
            attached(con, kept),
        ):
            pass


def test_policies_of_another_database_of_the_connection(database: Open, tmp_path: Path) -> None:
    """Whoever chooses another database by USE, or names one that is attached, gets nothing."""
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        con.execute(PATIENTS)
        ruled(con)
    con = database(f"ATTACH '{path}' AS clinic; CREATE TABLE t AS SELECT 1 AS x", own=True)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("a", con)

        def refused() -> None:
            for query in ("SELECT x FROM a.t", "SELECT age FROM a.clinic.main.patients"):
                with pytest.raises(sqlfl.PolicyError, match="another database on its connection"):
                    fed.sql(f"CHECK FROM ({query})")

        refused()
        with sqlfl.owner(con) as owner:  # policies of its own change nothing about that
            owner.sql("CREATE TRAINING POLICY p; GRANT TRAIN (x) ON t TO 'acme' UNDER p")
            refused()
            owner.sql("REVOKE ALL ON t FROM 'acme'; DROP TRAINING POLICY p")
        con.execute("DETACH clinic")
        fed.sql("CHECK FROM (SELECT x FROM a.t)")


class Executed:
    """Number of DuckDB statements that all connections of this process execute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        execute = duckdb.DuckDBPyConnection.execute

        def counted(con: duckdb.DuckDBPyConnection, *given: object, **named: object) -> object:
            self.count += 1
            return execute(con, *given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(duckdb.DuckDBPyConnection, "execute", counted)


@pytest.mark.parametrize(("governed", "most"), [(False, 22), (True, 38)])
def test_a_known_statement_executes_few_queries(
    database: Open, monkeypatch: pytest.MonkeyPatch, governed: bool, most: int
) -> None:
    """Each takes a quarter of a millisecond or more, however few the rows."""
    bank, lab = database(PATIENTS), database(TESTS)
    with sqlfl.connect(analyst="acme") as fed:
        if governed:
            ruled(bank)
            ruled(lab, grant="GRANT TRAIN (crp), JOIN (pid), PREDICT ON tests TO 'acme' UNDER r")
        fed.attach("clinic", bank)
        fed.attach("lab", lab)
        fed.sql(TRAIN)
        evaluate = f"EVALUATE MODEL m FROM ({QUERY})"
        fed.sql(evaluate)
        executed = Executed(monkeypatch)
        fed.sql(evaluate)
        assert 0 < executed.count <= most
        monkeypatch.undo()
        if governed:
            bank.execute("UPDATE sqlfl.grants SET revoked_at = now()")  # by hand
            with pytest.raises(PlanError, match="patients"):
                fed.sql(evaluate)
