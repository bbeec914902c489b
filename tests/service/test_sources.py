"""Parties whose tables statements open: settings, attacks, restarts, sources that change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.contract.schema import specifications_to_json
from sqlfl.governance.owner import Owner
from sqlfl.messages.wire import encoded, received
from sqlfl.service.hosting import Host, hosted
from sqlfl.service.settings import PartySettings, read_settings
from sqlfl.service.stream import Credentials
from tests.governance.clinic import PATIENTS, SLOT, ruled
from tests.governance.test_keys import ACCOUNT
from tests.governance.test_keys import GRANT as KEYED
from tests.governance.test_keys import TRAIN as NOISED
from tests.open_databases import in_memory

SETTINGS = """\
name = "clinic"
coordinator = "here"
secret = "keys/plain.secret"
sources = "keys/clinic.sql"
store = "clinic-sqlfl.duckdb"
"""
SOURCES = """\
SET allowed_directories = ['{folder}/data'];
ATTACH '{folder}/crm.duckdb' AS crm (READ_ONLY);
CREATE VIEW patients AS FROM '{folder}/data/patients.parquet';
CREATE VIEW visits AS FROM crm.visits;
"""
OWNED = (
    "CREATE TRAINING POLICY r; GRANT TRAIN (age), JOIN (pid), LABEL (ill) ON patients TO 'acme' "
    "UNDER r; GRANT JOIN (pid) ON crm.visits TO 'acme' UNDER r"
)


def write_patients(folder: Path, query: str = "FROM patients") -> None:
    """Write the file anew, beside the old one, as the page on sources says."""
    with in_memory() as con:
        con.execute(PATIENTS)
        con.execute(f"COPY ({query}) TO '{folder}/data/new.parquet'")
    (folder / "data/new.parquet").rename(folder / "data/patients.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clinic's settings, `clinic.toml`, with a Parquet file and a DuckDB file."""
    for name in ("data", "keys"):
        (tmp_path / name).mkdir()
    write_patients(tmp_path)
    with duckdb.connect(tmp_path / "crm.duckdb") as con:
        con.execute("CREATE TABLE visits AS SELECT i AS pid FROM range(300) AS r(i)")
    (tmp_path / "hidden.csv").write_text("it\nhidden\n")
    (tmp_path / "keys/plain.secret").write_text(bytes(32).hex())
    (tmp_path / "keys/clinic.sql").write_text(SOURCES.format(folder=tmp_path))
    (tmp_path / "clinic.toml").write_text(SETTINGS)
    return tmp_path


def settings(folder: Path) -> PartySettings:
    return read_settings(PartySettings, folder / "clinic.toml")


def owned(folder: Path, *texts: str) -> sqlfl.Result:
    own = settings(folder)
    with Owner(own.source(), own.store) as owner:
        return [owner.sql(text) for text in texts][-1]


@contextmanager
def serving(folder: Path) -> Iterator[Host]:
    with hosted(settings(folder), Credentials()) as host:
        host.welcome("here", "session")
        yield host


def ask(host: Host, message: ms.Message, analyst: str = "acme") -> ms.Message:
    return received(host.handle(0, pa.py_buffer(encoded(message)), "heart", analyst))


def described(host: Host, select: str) -> tuple[str, ...]:
    reply = ask(host, ms.Describe("", -1, (select,)))
    assert isinstance(reply, ms.Columns), reply
    return reply.names


# -- who may read what -----------------------------------------------------------------------------


def test_granted_tables_are_as_ever(folder: Path) -> None:
    owned(folder, OWNED)
    with serving(folder) as host:
        assert described(host, "SELECT age, ill FROM patients") == ("age", "ill")
        assert described(host, "SELECT pid FROM crm.visits") == ("pid",)
        for hidden in ("SELECT bmi FROM patients", "SELECT pid FROM visits"):
            reply = ask(host, ms.Describe("", -1, (hidden,)))
            assert isinstance(reply, ms.Failure)
            assert "granted" in reply.text


ATTACKS = (
    "SELECT it FROM read_csv('{folder}/hidden.csv')",
    "SELECT it FROM '{folder}/hidden.csv'",
    "SELECT content AS it FROM read_text('{folder}/data/../hidden.csv')",
    "SELECT content AS it FROM read_blob('{folder}/keys/plain.secret')",
    "SELECT content AS it FROM read_text('{folder}/clinic.toml')",
    "SELECT secret AS it FROM '{folder}/clinic-sqlfl.duckdb'",
    "SELECT content AS it FROM read_blob('{folder}/clinic-sqlfl.duckdb')",
    "SELECT file AS it FROM glob('{folder}/*')",
    "SELECT age AS it FROM patients WHERE age IN (SELECT size FROM read_blob('{folder}/keys/*'))",
    "SELECT (SELECT max(content) FROM read_text('{folder}/hidden.csv')) AS it FROM patients",
    "SELECT it FROM query('SELECT it FROM read_csv(''{folder}/hidden.csv'')')",
    "SELECT it FROM read_parquet(['{folder}/data/patients.parquet', '{folder}/hidden.csv'])",
)
OTHER = (
    "ATTACH '{folder}/other.duckdb' AS other",
    "SELECT 1; ATTACH '{folder}/other.duckdb' AS other",
    "COPY (SELECT 1) TO '{folder}/data/stolen.csv'",
    "SET allowed_directories = ['/']",
    "LOAD httpfs",
)


@pytest.mark.parametrize("attack", [*ATTACKS, *OTHER])
def test_a_coordinator_reads_no_other_file(folder: Path, attack: str) -> None:
    """A coordinator that lies sends a query to bind, and one to run."""
    owned(folder, OWNED)
    select = attack.format(folder=folder)
    with serving(folder) as host:
        before = sorted(path for path in folder.rglob("*") if ".wal" not in path.name)
        told = specifications_to_json((SLOT,)), (select,)
        for message in (ms.Describe("", -1, (select,)), ms.Prepare("r", -1, *told)):
            reply = ask(host, message)
            assert isinstance(reply, ms.Failure), reply
            for hidden in ("hidden\n", "plain", "it's", "organisation"):
                assert hidden not in reply.text.replace(select, "")
        assert sorted(path for path in folder.rglob("*") if ".wal" not in path.name) == before


def test_what_lies_in_an_allowed_folder_is_read_by_views_alone(folder: Path) -> None:
    """Policies refuse a query that names a file, even one of that folder."""
    (folder / "data/other.csv").write_text("it\nhidden\n")
    owned(folder, OWNED)
    with serving(folder) as host:
        reply = ask(host, ms.Describe("", -1, (f"SELECT it FROM '{folder}/data/other.csv'",)))
        assert isinstance(reply, ms.Failure)
        assert reply.error == "PolicyError"


def test_a_file_that_is_gone_is_told_without_its_name(folder: Path) -> None:
    owned(folder, OWNED)
    with serving(folder) as host:
        (folder / "data/patients.parquet").unlink()
        reply = ask(host, ms.Describe("", -1, ("SELECT age FROM patients",)))
        assert isinstance(reply, ms.Failure)
        assert "IOException" in reply.text
        assert "parquet" not in reply.text
        write_patients(folder)
        assert described(host, "SELECT age FROM patients") == ("age",)


# -- what is kept ----------------------------------------------------------------------------------


def test_policies_outlast_the_agent_and_hold_for_its_views(folder: Path) -> None:
    owned(folder, OWNED)
    for _ in range(2):
        with serving(folder) as host:
            assert described(host, "SELECT age FROM patients") == ("age",)
    # a view of another text is not the one that was granted
    text = (folder / "keys/clinic.sql").read_text()
    changed = text.replace("AS FROM '", "AS SELECT * REPLACE (pid AS age) FROM '")
    assert changed != text
    (folder / "keys/clinic.sql").write_text(changed)
    with serving(folder) as host:
        reply = ask(host, ms.Describe("", -1, ("SELECT age FROM patients",)))
        assert isinstance(reply, ms.Failure)
    owned(folder, OWNED.partition("; ")[2].replace("; ", ";"))
    with serving(folder) as host:
        assert described(host, "SELECT age FROM patients") == ("age",)


def test_use_chooses_the_database_of_plain_names(folder: Path) -> None:
    with (folder / "keys/clinic.sql").open("a") as file:
        file.write("USE crm;\n")
    owned(folder, "CREATE TRAINING POLICY r; GRANT JOIN (pid) ON visits TO 'acme' UNDER r")
    with serving(folder) as host:
        assert described(host, "SELECT pid FROM visits") == ("pid",)
    grants = owned(folder, "SHOW GRANTS").arrow()["table"].to_pylist()
    assert grants == ["crm.main.visits"]
    assert not (folder / "crm.duckdb.label-secret").exists()


def test_a_database_with_policies_is_attached_as_itself(folder: Path) -> None:
    """Also beside a store with policies: the rules of either owner would apply to nothing."""
    owned(folder, OWNED)
    ruled(folder / "crm.duckdb", grant="GRANT JOIN (pid) ON visits TO 'acme' UNDER r")
    said = "another database on its connection has training policies"
    with pytest.raises(Error, match=said), serving(folder):
        pass


def test_the_store_is_no_source(folder: Path) -> None:
    owned(folder, OWNED)
    with (folder / "keys/clinic.sql").open("a") as file:
        file.write(f"ATTACH '{folder}/clinic-sqlfl.duckdb' AS kept (READ_ONLY);\n")
    with pytest.raises(Error, match="is open in this process already"), serving(folder):
        pass


def test_nothing_is_left_of_a_start_that_fails(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    said = r"has no training policies(.|\n)*sqlfl owner SETTINGS\.toml"
    with pytest.raises(Error, match=said), serving(folder):
        pass
    assert sorted(folder.rglob("*")) == before


# -- settings --------------------------------------------------------------------------------------

MISTAKES = {
    "neither": ('sources = "keys/clinic.sql"\n', "", "the entry database is missing"),
    "both": ("store =", 'database = "crm.duckdb"\nstore =', "there are database and sources"),
    "open": ("store", "open = true\nstore", "sources are served under policies alone"),
    "no store": ('store = "clinic-sqlfl.duckdb"\n', "", "sources need a store"),
    "variables alone": (
        'sources = "keys/clinic.sql"\n',
        'database = "crm.duckdb"\nvariables = { x = "env:X" }\n',
        "variables are for statements",
    ),
    "no file": ("keys/clinic.sql", "away.sql", "sources: cannot read "),
    "no variable": ("store", 'variables.x = "env:AWAY"\nstore', "there is no variable AWAY"),
    "no text": ("store", "variables.x = 7\nstore", "variables"),
}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_of_settings(folder: Path, old: str, new: str, said: str) -> None:
    text = SETTINGS.replace(old, new, 1)
    assert text != SETTINGS
    (folder / "clinic.toml").write_text(text)
    with pytest.raises(Error, match=said), serving(folder):
        pass


def test_variables_come_from_files_and_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINIC_PASSWORD", "geheim")
    monkeypatch.setenv("CLINIC_SQL", SOURCES.format(folder=folder))
    (folder / "keys/token").write_text("offen\n")
    text = SETTINGS.replace('"keys/clinic.sql"', '"env:CLINIC_SQL"')
    more = '[variables]\npassword = "env:CLINIC_PASSWORD"\ntoken = "keys/token"\n'
    (folder / "clinic.toml").write_text(text + more)
    own = settings(folder)
    source = own.source()
    assert not isinstance(source, str)
    assert dict(source.variables) == {"password": "geheim", "token": "offen"}
    assert folder / "keys/token" in source.private
    assert own.environment() == {"CLINIC_PASSWORD", "CLINIC_SQL"}  # hidden from `notify`
    owned(folder, OWNED)
    with serving(folder) as host:
        assert described(host, "SELECT age FROM patients") == ("age",)


# -- sources that change ---------------------------------------------------------------------------


def test_labels_of_a_file_that_changes_are_charged_as_drawn_anew(folder: Path) -> None:
    """The account goes by what rows hold, so a file that is written anew with the same rows costs
    nothing, and one with other rows costs a draw."""
    with ExitStack() as stack:
        con = stack.enter_context(in_memory())
        con.execute(f"CREATE VIEW patients AS FROM '{folder}/data/patients.parquet'")
        store = folder / "records.duckdb"
        ruled(con, ACCOUNT, KEYED.format("", "acme"), store=store)
        fed = stack.enter_context(sqlfl.connect(progress=False, analyst="acme"))
        lab = stack.enter_context(in_memory())
        lab.execute("CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp FROM range(300) AS r(i)")
        fed.attach("clinic", con, store=store)
        fed.attach("lab", lab)

        def spent() -> float:
            fed.sql(NOISED.format(1, "clinic"))
            (_, kept) = stack_of(fed)
            with sqlfl.owner(con, store=kept) as owner:
                spent: float = owner.sql("SHOW BUDGETS").arrow()["spent"].to_pylist()[0]
            return spent

        first = spent()
        write_patients(folder)
        assert spent() == first
        write_patients(folder, "SELECT * REPLACE (age + 1 AS age) FROM patients")
        assert spent() > 1.5 * first


def stack_of(fed: sqlfl.Federation) -> tuple[object, duckdb.DuckDBPyConnection]:
    """The clinic's connections that sqlfl has opened: its store."""
    (kept,) = fed._parties._opened["clinic"]
    return None, kept


def test_a_join_that_lasts_does_not_say_that_a_file_is_as_it_was(folder: Path) -> None:
    with in_memory() as con, sqlfl.connect(progress=False) as fed:
        con.execute(f"CREATE VIEW patients AS FROM '{folder}/data/patients.parquet'")
        fed.attach("clinic", con)
        fed.sql("CREATE JOIN rows AS (SELECT p.age, p.ill FROM clinic.patients p)")
        write_patients(folder, "SELECT * REPLACE (0 AS age) FROM patients")
        (row,) = fed.sql("SHOW JOINS").arrow().to_pylist()
        assert "not known" in str(row)
