"""Errors for arguments of `attach` and `connect` that are no database, with the right ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import duckdb
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error, nearest
from sqlfl.databases.files import to_path

IN_MEMORY = 'con = duckdb.connect(); con.execute("CREATE TABLE ..."); fed.attach("{party}", con)'

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_ADDRESS = re.compile(r"(https?|grpc\+\w+|grpcs)://[^/]+/?$|[\w.-]+:\d+$")
"""Addresses of servers."""
_POSTGRES = re.compile(r"(?:^|\s)(?:dbname|host|user)\s*=", re.IGNORECASE)
_SERVERS = {"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}
"""Schemes, and DuckDB's types of databases."""
_ROWS = {
    ".parquet": "a Parquet file", ".csv": "a CSV file", ".tsv": "a CSV file",
    ".json": "a JSON file", ".jsonl": "a JSON file", ".ndjson": "a JSON file",
    ".xlsx": "an Excel file", ".avro": "an Avro file",
}  # fmt: skip
_DATABASES = (".duckdb", ".db", ".ddb")
_NO_FILES = {
    ".arrow": "an Arrow file",
    ".feather": "an Arrow file",
    ".pkl": "a pickle",
    ".xls": "an old Excel file",
    ".orc": "an ORC file",
}
_TABLES = "a pandas, polars, Arrow or Ibis table"
_FRAMES = {
    ("pandas", "DataFrame"): "a pandas DataFrame", ("polars", "DataFrame"): "a polars DataFrame",
    ("polars", "LazyFrame"): "a polars LazyFrame", ("pyarrow", "Table"): "an Arrow table",
    ("pyarrow", "RecordBatch"): "an Arrow batch",
    ("pyarrow", "RecordBatchReader"): "an Arrow stream",
}  # fmt: skip
_SQLITE = b"SQLite format 3\x00"


def database_path(source: str | os.PathLike[str], party: str) -> Path:
    """Return the path of the database file that `source` names.

    Raise Error, which says what to write instead, for any other text: ':memory:', a URL, a file of
    rows, a pattern of files, a folder, a missing file.
    """
    text = str(os.fspath(source))
    if text.startswith(":"):
        raise Error(
            f"{text!r} would be a database of its own, new and empty",
            hint=f"give the open connection that has the tables: {IN_MEMORY.format(party=party)}",
        )
    _refuse_lake(text, party)
    _refuse_server(text, party)
    _refuse_rows(text, party)
    path = to_path(source, "a source")
    if path.is_dir():
        raise _folder(path, party)
    if not path.exists():
        raise _missing(path)
    if _head(path) == _SQLITE:
        raise Error(
            f"{path} is an SQLite database",
            hint=_attached(f"{text}", "sqlite", party),
        )
    return path


def check_database(source: object, label: str, call: str) -> None:
    """Raise Error unless the source is an open connection, or could be a path. `label` names it,
    and `call` is a right call.
    """
    if isinstance(source, duckdb.DuckDBPyConnection):
        try:
            source.cursor().close()
        except duckdb.ConnectionException as error:
            raise Error(f"the connection of {label} is closed", hint=f"open it: {call}") from error
    elif not isinstance(source, (str, os.PathLike)):
        kind = type(source).__name__
        raise Error(f"{label} must be a DuckDB connection or a path, got {kind}", hint=call)


def coordinator_path(path: object) -> Path:
    """Return the absolute path of a coordinator's file.

    Raise Error, which says what to write instead, for anything else: a party's connection or
    tables, ':memory:', a URL, a file of rows.
    """
    if not isinstance(path, (str, os.PathLike)):
        keys = list(path) if isinstance(path, Mapping) else []
        party = keys[0] if keys and isinstance(keys[0], str) else "party"
        raise Error(
            f"the coordinator's file must be a path, got {type(path).__name__}",
            hint=f'parties are attached: fed = sqlfl.connect(); fed.attach("{party}", database)',
        )
    text = str(os.fspath(path))
    if not text or text.startswith(":"):
        raise Error(
            f"the coordinator's file must be the path of a file, got {text!r}",
            hint="leave it out: sqlfl.connect() keeps models as long as it is open",
        )
    if _ADDRESS.match(text):
        host = text.partition("://")[2] or text
        raise Error(
            f"the coordinator's file must be the path of a file, got {text!r}",
            hint=f'sqlfl.connect("grpc+tls://{host}", config="alice.toml", study="name") is for a '
            "coordinator on another machine",
        )
    try:
        _refuse_lake(text, "party")
        _refuse_server(text, "party")
        _refuse_rows(text, "party")
    except Error as error:
        raise Error(
            f"the coordinator's file must be a file for sqlfl's own use, got {text!r:.80}",
            hint=f"a party's tables are attached: {error.hint}",
        ) from None
    return to_path(path, "the coordinator's file")


def no_source(source: object, party: str) -> Error:
    """Return the error for a source that is neither a connection nor a path."""
    kind = type(source)
    place = (kind.__module__.partition(".")[0], kind.__name__)
    name = f"{place[0]}.{place[1]}" if place[0] != "builtins" else place[1]
    message = f"a source must be a DuckDB connection or a path, got {_FRAMES.get(place, name)}"
    hint = f"duckdb.connect(...): {IN_MEMORY.format(party=party)}"
    if place in _FRAMES or place[0] == "ibis":
        hint = f'give it a name: fed.attach("{party}", {{"t": df}}) makes it {party}.t'
    elif isinstance(source, ModuleType) and source.__name__ == "duckdb":
        hint = "duckdb.default_connection() is the one that duckdb.sql(...) uses"
    elif place == ("sqlite3", "Connection"):
        hint = _attached("file.sqlite", "sqlite", party)
    elif place[0] in ("psycopg", "psycopg2", "sqlalchemy"):
        hint = _attached("dbname=...", "postgres", party)
    elif kind.__name__ == "DuckDBPyRelation":
        hint = (
            'give the connection that it is of; rows of it are a table there: relation.create("t")'
        )
    elif source is None:
        hint = f"{IN_MEMORY.format(party=party)}; or a path of a database file"
    elif isinstance(source, (set, frozenset)):
        hint = f'several databases of one party are a list: fed.attach("{party}", [one, other])'
    return Error(message, hint=hint)


def database_of(tables: Mapping[str, object], party: str) -> duckdb.DuckDBPyConnection:
    """A new database in memory with a copy of each table, under its name.

    tables : pandas, polars, Arrow or Ibis tables, or whatever has Arrow's PyCapsule interface; the
        index of a pandas DataFrame is no column. Raise Error for anything else, for names that are
        none, and for columns that DuckDB cannot have.
    """
    if not tables:
        raise Error("there are no tables to attach", hint=f'fed.attach("{party}", {{"t": df}})')
    con = duckdb.connect()
    try:
        for name, table in tables.items():
            if not isinstance(name, str) or not name:
                raise Error(f"the name of a table must be text, got {name!r:.60}")
            _copy(con, name, _arrow_of(table, name, party))
    except BaseException:
        con.close()
        raise
    return con


def _copy(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    try:
        con.register("sqlfl_rows", rows)
        con.execute(f"CREATE TABLE {exp.to_identifier(name, quoted=True).sql('duckdb')} AS "
                    "FROM sqlfl_rows")  # fmt: skip
    except duckdb.Error as error:
        said = str(error).partition("\n")[0]
        raise Error(f"table {name!r:.60} cannot be made: {said}") from error
    con.unregister("sqlfl_rows")


def _arrow_of(table: object, name: str, party: str) -> pa.Table:
    kind = type(table)
    package = kind.__module__.partition(".")[0]
    try:
        if package == "pandas" and kind.__name__ == "DataFrame":
            return pa.Table.from_pandas(table, preserve_index=False)
        if package == "polars" and kind.__name__ == "LazyFrame":
            return pa.table(table.collect())  # type: ignore[attr-defined]
        if package == "ibis" and hasattr(table, "to_pyarrow"):
            return table.to_pyarrow()
        if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
            return pa.table(table)
    except (pa.ArrowException, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise Error(f"table {name!r:.60} has columns that Arrow cannot have: {said}") from error
    raise Error(
        f"table {name!r:.60} must be {_TABLES}, got {package}.{kind.__name__}",
        hint=f'several databases of one party are a list: fed.attach("{party}", [one, other])'
        if isinstance(table, duckdb.DuckDBPyConnection | str | os.PathLike)
        else f"pyarrow.table(...) makes one of columns: {{'{name}': pyarrow.table(...)}}",
    )


_LAKES = {
    "md": "a MotherDuck", "motherduck": "a MotherDuck", "ducklake": "a DuckLake",
    "quack": "a remote DuckDB", "iceberg": "an Iceberg", "delta": "a Delta Lake",
}  # fmt: skip
"""Schemes of databases that DuckDB attaches by an extension, without two slashes."""


def _refuse_lake(text: str, party: str) -> None:
    scheme = _URL.match(text)
    name = scheme[1].lower() if scheme is not None else ""
    if name in _LAKES:
        raise Error(
            f"the source names {_LAKES[name]} database, which a DuckDB connection is to attach",
            hint=f"con = duckdb.connect(); con.execute(\"ATTACH '{text}' AS db\"); "
            f'fed.attach("{party}", con); its tables are {party}.db.table',
        )
    if name in ("file", "duckdb"):
        path = text[len(name) + 1 :]
        path = re.sub(r"^/{2,}", "/", path) if name == "file" else path.removeprefix("///")
        raise Error(f"a source is a path and no URL, got {text}",
                    hint=f'fed.attach("{party}", "{path}")')  # fmt: skip


def _refuse_server(text: str, party: str) -> None:
    scheme = _URL.match(text)
    name = "" if scheme is None else scheme[1].lower().partition("+")[0]
    if name == "jdbc":
        name = text[len("jdbc:") :].partition(":")[0].lower()
    kind = _SERVERS.get(name)
    if kind is not None or _POSTGRES.search(text):
        kind = kind or "postgres"
        named = {"postgres": "a PostgreSQL", "mysql": "a MySQL", "sqlite": "an SQLite"}[kind]
        raise Error(
            f"the source names {named} database, which a DuckDB connection is to attach",
            hint=_attached("...", kind, party),
        )
    if scheme is not None and scheme[2] and Path(text).suffix in _DATABASES:
        raise Error(
            f"a source must be a file of this machine, got a {scheme[1]} URL",
            hint=f"con = duckdb.connect(); con.execute(\"ATTACH '{text}' AS db (READ_ONLY)\"); "
            f'fed.attach("{party}", con); its tables are {party}.db.table',
        )
    if scheme is not None and scheme[2]:
        raise Error(
            f"a source must be a file of this machine, got a {scheme[1]} URL",
            hint="let a connection read it: con = duckdb.connect(); "
            f'con.execute("CREATE TABLE t AS FROM \'{scheme[0]}...\'"); fed.attach("{party}", con)',
        )


def _refuse_rows(text: str, party: str) -> None:
    name = text.lower().removesuffix(".gz").removesuffix(".zst")
    suffix = Path(name).suffix
    several = any(sign in text for sign in "*?[") and not Path(text).exists()
    if several and suffix in _DATABASES:
        raise Error(
            f"{text} is a pattern of files",
            hint="several databases of one party are a list: "
            f'fed.attach("{party}", sorted(glob.glob("{text}")))',
        )
    what = _ROWS.get(suffix) or _NO_FILES.get(suffix)
    if what is None and several:
        what = "a pattern of files"
    if what is None:
        return
    make, rows, read = "VIEW", f"'{text}'", ""
    if suffix in _NO_FILES:
        make, rows, read = "TABLE", "rows", ", with `rows` as pyarrow or pandas reads it"
    raise Error(
        f"{text} is {what} and no database",
        hint="make it a table of one: con = duckdb.connect(); "
        f'con.execute("CREATE {make} t AS FROM {rows}"); fed.attach("{party}", con){read}',
    )


def _folder(path: Path, party: str) -> Error:
    inside = sorted(p.name for p in path.glob("*.duckdb"))[:3]
    hint = "give the path of a file in it"
    if len(inside) == 1:
        hint = f"give the file in it: {path / inside[0]}"
    elif inside:
        listed = ", ".join(f'"{path / name}"' for name in inside)
        hint = f'several databases of one party are a list: fed.attach("{party}", [{listed}])'
    return Error(f"{path} is a folder", hint=hint)


def _missing(path: Path) -> Error:
    if not path.parent.is_dir():
        return Error(
            f"there is no database file {path}: there is no folder {path.parent}",
            hint="relative paths are those of the working directory",
        )
    meant = nearest(path.name, [p.name for p in path.parent.iterdir() if p.is_file()])
    hint = f"did you mean {path.parent / meant}?" if meant else None
    return Error(
        f"there is no database file {path}",
        hint=hint
        or f'duckdb.connect("{path}") makes one; relative paths are those of the working directory',
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError:
        return b""  # DuckDB says what is wrong with it


def _attached(what: str, kind: str, party: str) -> str:
    return (
        f"con = duckdb.connect(); con.execute(\"ATTACH '{what}' AS db (TYPE {kind}, READ_ONLY)\"); "
        f'fed.attach("{party}", con); its tables are {party}.db.table'
    )
