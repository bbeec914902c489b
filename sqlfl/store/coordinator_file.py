"""The coordinator's file: permanent store of a federation's models and its audit.

It is a DuckDB database with a schema `sqlfl`. This has one row with the file's owner and format, a
row for each model, and the audit. Nothing in it is a path, so it may be moved. Its statements name
no database and no schema, as both are set once. So the file may have any name.
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import duckdb
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error
from sqlfl.databases.files import (
    CLOSED,
    Connection,
    FileIdentity,
    open_database,
    open_or_make,
    private_log,
)
from sqlfl.databases.sources import coordinator_path
from sqlfl.store.model_document import history_to_bytes, model_from, model_to_json
from sqlfl.store.registry import Model
from sqlfl.transport.audit_chain import COLUMNS, START, ChainEntry, Row, linked
from sqlfl.transport.base import AUDIT

FORMAT = 1
"""Format number. It rises when an older sqlfl can no longer read the file. New columns and fields
do not raise it: readers name the columns they read, and ignore unknown ones.
"""

BACKUP = "restore it from a backup"

_TABLES: Mapping[str, Mapping[str, str]] = {
    "coordinator": {
        "id": "VARCHAR",
        "format": "INTEGER",
        "written_by": "VARCHAR",
        "created_at": "TIMESTAMP WITH TIME ZONE",
    },
    "models": {
        "name": "VARCHAR",
        "run": "VARCHAR",
        "created_at": "TIMESTAMP WITH TIME ZONE",
        "document": "VARCHAR",
        "history": "BLOB",
    },
    "audit": {
        "seq": "BIGINT",
        "at": "TIMESTAMP WITH TIME ZONE",
        "run": "VARCHAR",
        "party": "VARCHAR",
        "client": "VARCHAR",
        "direction": "VARCHAR",
        "kind": "VARCHAR",
        "rows": "BIGINT",
        "columns": "BIGINT",
        "bytes": "BIGINT",
    },
}
"""Columns and their types. The audit has `crosses` too, by _MIGRATION."""
# The maker of a file may have put more into it than tables. Until that is checked, queries call
# DuckDB's own functions by their whole names, because functions of the file may have the same short
# names.
_OBJECTS = {
    "table": "SELECT schema_name, table_name FROM system.main.duckdb_tables() "
    "WHERE NOT internal AND NOT temporary ORDER BY ALL",
    "view": "SELECT schema_name, view_name FROM system.main.duckdb_views() "
    "WHERE NOT internal AND NOT temporary ORDER BY ALL",
    "function": "SELECT schema_name, function_name FROM system.main.duckdb_functions() "
    "WHERE NOT internal ORDER BY ALL",
    "trigger": "SELECT schema_name, trigger_name FROM system.main.duckdb_triggers() "
    "WHERE NOT temporary ORDER BY ALL",
}
_COLUMNS = (
    "SELECT table_name, column_name, data_type, is_generated FROM system.main.duckdb_columns() "
    "WHERE NOT internal AND schema_name = 'sqlfl'"
)
_APPEND = "INSERT INTO audit BY NAME SELECT * FROM records"
_AUDIT = (
    'SELECT seq, "at", run, party, client, direction, kind, "rows", "columns", bytes, crosses '
    "FROM audit ORDER BY seq"
)
_LAST = "SELECT seq FROM audit ORDER BY seq DESC NULLS LAST LIMIT 1"
_MIGRATION = "ALTER TABLE audit ADD COLUMN IF NOT EXISTS crosses BOOLEAN DEFAULT true"
"""Older files lack the column. Their writers knew no message within the coordinator's own party."""
_CHAIN = f"CREATE TABLE IF NOT EXISTS chain ({', '.join(f'{n} {t}' for n, t in COLUMNS.items())})"
"""Older files lack it."""
_STUDIES = "CREATE TABLE IF NOT EXISTS studies (name VARCHAR, document VARCHAR)"
"""Older files lack it."""
_LINKS = ", ".join("epoch_us(noted_at)" if name == "noted_at" else name for name in COLUMNS)
_LINK = "INSERT INTO chain SELECT " + ", ".join(
    "make_timestamptz(?)" if name == "noted_at" else "?" for name in COLUMNS
)

_OPEN: WeakValueDictionary[Path, CoordinatorFile] = WeakValueDictionary()
_OPENING = threading.Lock()

T = TypeVar("T")


class CoordinatorFile:
    """The open file: a `Shelf` of models and an `AuditLog`. Each change is one transaction.

    Raise Error if the file cannot be opened or made, is open already, is another database, or was
    written in a newer format. Then nothing has been made or changed.

    Attributes ---------- path : absolute. id : id of the coordinator, by which parties distinguish
    its blocks from those of others. last : number of the last record of the audit.
    """

    def __init__(self, path: object, version: str) -> None:
        self.path = coordinator_path(path)
        self._version = version
        self._lock = threading.Lock()
        with _OPENING:
            if self.path in _OPEN:
                raise Error(
                    f"{self.path} is open in this process already",
                    hint="use the federation that has it, or close() that first",
                )
            self._con, undo = open_or_make(self.path, CLOSED)
            self._closed = False
            self._identity = FileIdentity(self.path)
            try:
                self.id = self._begin()
                last = self._con.execute(_LAST).fetchall()
                self.last = int(last[0][0] or 0) if last else 0
            except BaseException as error:
                self._con.close()
                undo()
                if isinstance(error, duckdb.Error):
                    raise Error(f"cannot use {self.path}: {error}", hint=BACKUP) from error
                raise
            _OPEN[self.path] = self

    @property
    def kept(self) -> str:
        """Return the place of a model in this file, for the model's card."""
        return f"in {self.path.name} and by its parties"

    def close(self) -> None:
        with _OPENING, self._lock:
            self._closed = True
            self._con.close()
            if _OPEN.get(self.path) is self:
                del _OPEN[self.path]

    # -- models -----------------------------------------------------------------------------------

    def models(self) -> tuple[Model, ...]:
        rows = self._read("SELECT name, run, document, history FROM models ORDER BY created_at")
        return tuple(self._model(**row) for row in rows.to_pylist())

    def _model(self, name: object, run: object, document: object, history: object) -> Model:
        try:
            model = model_from(document, history, self.kept)
            if (model.name, model.run) != (name, run):
                raise ValueError(f"it is the document of {model.name}, run {model.run}")
            return model
        except (ValueError, MemoryError) as error:
            raise Error(
                f"{self.path} is damaged: what it holds of model {name} cannot be read ({error})",
                hint=f"{BACKUP}; or do without the model: DELETE FROM sqlfl.models WHERE name = "
                f"{exp.Literal.string(str(name)).sql('duckdb')} in that file",
            ) from error

    def put(self, model: Model, previous: Model | None) -> None:
        document, history = model_to_json(model), history_to_bytes(model.history)
        row = [model.name, model.run, model.created_at, document, history]

        def work(con: Connection) -> None:
            if previous is not None:
                con.execute("DELETE FROM models WHERE run = ?", [previous.run])
            con.execute(
                "INSERT INTO models (name, run, created_at, document, history) "
                "VALUES (?, ?, ?, ?, ?)",
                row,
            )

        self._change(work)

    def remove(self, model: Model) -> None:
        self._change(lambda con: con.execute("DELETE FROM models WHERE run = ?", [model.run]))

    # -- studies ----------------------------------------------------------------------------------

    def studies(self) -> dict[str, str]:
        """Return the studies' documents by name."""
        rows = self._read("SELECT name, document FROM studies ORDER BY rowid").to_pylist()
        return {str(row["name"]): str(row["document"]) for row in rows}

    def put_study(self, name: str, document: str) -> None:
        """Keep the study's document, in place of an earlier one of the name."""

        def work(con: Connection) -> None:
            con.execute("DELETE FROM studies WHERE name = ?", [name])
            con.execute("INSERT INTO studies (name, document) VALUES (?, ?)", [name, document])

        self._change(work)

    def remove_study(self, name: str) -> None:
        self._change(lambda con: con.execute("DELETE FROM studies WHERE name = ?", [name]))

    # -- audit ------------------------------------------------------------------------------------

    def append(self, records: pa.Table) -> None:
        """Keep records whose numbers follow `last`."""

        def work(con: Connection) -> None:
            con.register("records", records)
            try:
                con.execute(_APPEND)
            finally:
                con.unregister("records")

        self._change(work)
        self.last += records.num_rows

    def keep(self, entries: Sequence[ChainEntry]) -> str:
        """Add entries to the chain, and return the chain's head."""
        seq, head = 0, START
        for last in self._read("SELECT seq, head FROM chain ORDER BY seq DESC LIMIT 1").to_pylist():
            seq, head = last["seq"], last["head"]
        rows = linked(entries, seq, head)
        if rows:
            self._change(lambda con: con.executemany(_LINK, rows))
        return rows[-1][-1] if rows else head

    def rows(self) -> list[Row]:
        links = self._read(f"SELECT {_LINKS} FROM chain ORDER BY seq")
        return list(zip(*(column.to_pylist() for column in links.columns), strict=True))

    def table(self) -> pa.Table:
        return self._read(_AUDIT).cast(AUDIT)

    # -- the file ---------------------------------------------------------------------------------

    def _begin(self) -> str:
        """Make the schema in a new file, or check that an old one can be read. Return the id."""
        objects = {kind: self._con.execute(query).fetchall() for kind, query in _OBJECTS.items()}
        if ("sqlfl", "coordinator") not in objects["table"] + objects["view"]:
            if any(objects.values()):
                raise self._foreign(objects["table"] + objects["view"])
            return self._create()
        self._check_objects(objects)
        self._con.execute("SET schema = 'sqlfl'")
        rows = self._con.execute("SELECT id, format, written_by FROM coordinator").fetchall()
        if len(rows) != 1 or None in rows[0]:
            raise Error(
                f"{self.path} is damaged: its table sqlfl.coordinator must hold one row without "
                f"NULL, and has {len(rows)}{' with NULL' if len(rows) == 1 else ''}",
                hint=BACKUP,
            )
        ((name, written, writer),) = rows
        if written > FORMAT:
            raise Error(
                f"{self.path} was written by sqlfl {writer}, in format {written}; this is sqlfl "
                f"{self._version}, which reads format {FORMAT}",
                hint=f"pip install 'sqlfl>={writer}'",
            )
        self._con.execute(_MIGRATION)
        self._con.execute(_CHAIN)
        self._con.execute(_STUDIES)
        return str(name)

    def _check_objects(self, objects: Mapping[str, list[Any]]) -> None:
        """Raise Error if a table of ours is something else, or if using it runs code."""
        for kind in ("view", "function", "trigger"):
            for schema, name in objects[kind]:
                if schema == "sqlfl" and (kind != "view" or name in _TABLES):
                    raise self._damaged(f"it has a {kind} sqlfl.{name}")
        present: dict[str, dict[str, str]] = {}
        for table, column, type_, generated in self._con.execute(_COLUMNS).fetchall():
            if table in _TABLES and generated:
                raise self._damaged(f"the column {column} of sqlfl.{table} is generated")
            present.setdefault(table, {})[column] = type_
        for table, columns in _TABLES.items():
            if table not in present:
                raise self._damaged(f"the table sqlfl.{table} is not there")
            for column, type_ in columns.items():
                actual = present[table].get(column)
                if actual != type_:
                    is_ = "is not there" if actual is None else f"is {actual}, not {type_}"
                    raise self._damaged(f"the column {column} of sqlfl.{table} {is_}")

    def _damaged(self, what: str) -> Error:
        return Error(f"{self.path} is damaged, or is not what it seems: {what}", hint=BACKUP)

    def _create(self) -> str:
        name = secrets.token_hex(16)
        private_log(self.path)
        self._con.begin()
        self._con.execute("CREATE SCHEMA sqlfl")
        self._con.execute("SET schema = 'sqlfl'")
        for table, columns in _TABLES.items():
            self._con.execute(_definition(table, columns))
        self._con.execute(_MIGRATION)
        self._con.execute(_CHAIN)
        self._con.execute(_STUDIES)
        self._con.execute(
            "INSERT INTO coordinator (id, format, written_by, created_at) VALUES (?, ?, ?, ?)",
            [name, FORMAT, self._version, dt.datetime.now(dt.UTC)],
        )
        self._con.commit()
        return name

    def _foreign(self, objects: Sequence[tuple[str, str]]) -> Error:
        names = [o[1] if o[0] == "main" else ".".join(o) for o in objects if o[0] != "sqlfl"]
        if not objects:
            what = "it has functions or triggers"
        elif not names:
            what = "it keeps the blocks of a party"
        else:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            what = f"it holds {', '.join(names[:3])}{more}"
        return Error(
            f"{self.path} is not a coordinator's file: {what}",
            hint="choose a path of its own for the coordinator; the parties' databases are for "
            "attach(...)",
        )

    def _read(self, query: str) -> pa.Table:
        with self._lock:
            try:
                return self._con.sql(query).to_arrow_table()
            except duckdb.Error as error:
                message = f"the coordinator's file {self.path} cannot be read: {error}"
                raise Error(message) from error

    def _change(self, work: Callable[[Connection], T]) -> None:
        with self._lock:
            if not self._closed and not self._identity.holds:
                raise Error(
                    f"the coordinator's file {self.path} has been deleted or replaced since it was "
                    "opened, so nothing can be kept in it",
                    hint="close this federation, put the file back and connect again",
                )
            try:
                private_log(self.path)
                self._con.begin()
                try:
                    work(self._con)
                    self._con.commit()
                except BaseException:
                    self._roll_back()
                    raise
            except duckdb.Error as error:
                raise Error(
                    f"the coordinator's file {self.path} cannot be written: {error}",
                    hint="see that its disk has room and that the file may be written",
                ) from error

    def _roll_back(self) -> None:
        """Roll back a failed transaction. It may be rolled back already, or have closed the
        database.
        """
        if self._closed:
            return
        try:
            self._con.rollback()
        except duckdb.TransactionException:
            return
        except duckdb.Error:
            self._con.close()
            self._con = open_database(self.path, settings=CLOSED)
            self._con.execute("SET schema = 'sqlfl'")


def _definition(table: str, columns: Mapping[str, str]) -> str:
    definitions = [
        exp.ColumnDef(this=exp.to_identifier(name, quoted=True), kind=exp.DataType.build(type_))
        for name, type_ in columns.items()
    ]
    schema = exp.Schema(this=exp.table_(table, quoted=True), expressions=definitions)
    return exp.Create(this=schema, kind="TABLE").sql(dialect="duckdb")
