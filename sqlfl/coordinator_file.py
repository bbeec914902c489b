"""The coordinator's file: what a federation knows of its models, and its audit, for good.

A DuckDB database whose schema `sqlfl` has one row that says whose it is and in which format, a row
per model, and the audit. Nothing in it is a path: it may be moved. Its statements name no database
and no schema, both are set once, so that the file may have any name.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.endings import (
    BEFORE,
    EARLY,
    EARLY_REASON,
    INTERRUPTED,
    INTERRUPTED_REASON,
    LIMIT,
    STILL,
    Ending,
    untold,
)
from sqlfl.errors import Error
from sqlfl.files import Connection, Identity, open_database, open_or_make, to_path
from sqlfl.privacy.card import PrivacyReport
from sqlfl.registry import Cost, Model, ModelBlock
from sqlfl.schema import Client
from sqlfl.transport.base import AUDIT

FORMAT = 1
"""Raised when an older sqlfl could no longer read the file. New columns and fields do not: what is
read is named, and what is not known is left alone."""

BACKUP = "restore it from a backup"

_SCHEMA = (
    "CREATE SCHEMA sqlfl",
    "SET schema = 'sqlfl'",
    "CREATE TABLE coordinator "
    "(id VARCHAR, format INTEGER, written_by VARCHAR, created_at TIMESTAMPTZ)",
    "CREATE TABLE models (name VARCHAR, run VARCHAR, created_at TIMESTAMPTZ, document VARCHAR, "
    "history BLOB)",
    'CREATE TABLE audit (seq BIGINT, "at" TIMESTAMPTZ, run VARCHAR, party VARCHAR, client VARCHAR, '
    'direction VARCHAR, kind VARCHAR, "rows" BIGINT, "columns" BIGINT, bytes BIGINT, '
    "crosses BOOLEAN DEFAULT true)",
)
_OBJECTS = (
    "SELECT schema_name, table_name FROM duckdb_tables() "
    "WHERE database_name = current_database() AND NOT internal AND NOT temporary "
    "UNION ALL SELECT schema_name, view_name FROM duckdb_views() "
    "WHERE database_name = current_database() AND NOT internal AND NOT temporary ORDER BY ALL"
)
_APPEND = "INSERT INTO audit BY NAME SELECT * FROM records"
_AUDIT = (
    'SELECT seq, "at", run, party, client, direction, kind, "rows", "columns", bytes, crosses '
    "FROM audit ORDER BY seq"
)
_MIGRATION = "ALTER TABLE audit ADD COLUMN IF NOT EXISTS crosses BOOLEAN DEFAULT true"
"""Files of before lack the column; who wrote them, or writes one now, knew no message at home."""

_OPEN: WeakValueDictionary[Path, CoordinatorFile] = WeakValueDictionary()
_OPENING = threading.Lock()

T = TypeVar("T")


class CoordinatorFile:
    """The open file; a `Shelf` of models and an `AuditLog`. Each change is one transaction.

    Raises Error where the file cannot be opened or made, is open already, is another database, or
    was written in a newer format; then nothing has been made and nothing changed.

    Attributes
    ----------
    path : absolute.
    id : of the coordinator, by which parties know its blocks from those of others.
    last : the number of the last record of the audit.
    """

    def __init__(self, path: object, version: str) -> None:
        self.path = to_path(path, "the coordinator's file")
        self._version = version
        self._lock = threading.Lock()
        with _OPENING:
            if self.path in _OPEN:
                raise Error(
                    f"{self.path} is open in this process already",
                    hint="use the federation that has it, or close() that first",
                )
            self._con, undo = open_or_make(self.path)
            self._closed = False
            self._identity = Identity(self.path)
            try:
                self.id = self._begin()
                (found,) = self._con.execute("SELECT max(seq) FROM audit").fetchall()
                self.last = int(found[0] or 0)
            except BaseException as error:
                self._con.close()
                undo()
                if isinstance(error, duckdb.Error):
                    raise Error(f"cannot use {self.path}: {error}", hint=BACKUP) from error
                raise
            _OPEN[self.path] = self

    @property
    def kept(self) -> str:
        """What the card of a model in this file says of where it is."""
        return f"in {self.path.name} and by its parties"

    def close(self) -> None:
        with _OPENING, self._lock:
            self._closed = True
            self._con.close()
            if _OPEN.get(self.path) is self:
                del _OPEN[self.path]

    # -- models -----------------------------------------------------------------------------------

    def models(self) -> tuple[Model, ...]:
        found = self._read("SELECT name, document, history FROM models ORDER BY created_at")
        return tuple(self._model(**row) for row in found.to_pylist())

    def _model(self, name: str, document: str, history: bytes) -> Model:
        try:
            return _model(json.loads(document), history, self.kept)
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise Error(
                f"{self.path} is damaged: what it holds of model {name} cannot be read "
                f"({type(error).__name__})",
                hint=f"{BACKUP}; or do without the model: DELETE FROM sqlfl.models WHERE name = "
                f"{exp.Literal.string(name).sql('duckdb')} in that file",
            ) from error

    def put(self, model: Model, previous: Model | None) -> None:
        document = json.dumps(_document(model), separators=(",", ":"))
        row = [model.name, model.run, model.created_at, document, _to_bytes(model.history)]

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

    def table(self) -> pa.Table:
        return self._read(_AUDIT).cast(AUDIT)

    # -- the file ---------------------------------------------------------------------------------

    def _begin(self) -> str:
        """Make the schema where the file is new, else see whether it can be read; the id."""
        objects = self._con.execute(_OBJECTS).fetchall()
        if ("sqlfl", "coordinator") not in objects:
            if objects:
                raise self._foreign(objects)
            return self._create()
        self._con.execute("SET schema = 'sqlfl'")
        rows = self._con.execute("SELECT id, format, written_by FROM coordinator").fetchall()
        if len(rows) != 1 or None in rows[0]:
            raise Error(
                f"{self.path} is damaged: its table sqlfl.coordinator must hold one row without "
                f"NULL, and has {len(rows)}{' with NULL' if len(rows) == 1 else ''}",
                hint=BACKUP,
            )
        ((name, found, writer),) = rows
        if found > FORMAT:
            raise Error(
                f"{self.path} was written by sqlfl {writer}, in format {found}; this is sqlfl "
                f"{self._version}, which reads format {FORMAT}",
                hint=f"pip install 'sqlfl>={writer}'",
            )
        self._con.execute(_MIGRATION)
        return str(name)

    def _create(self) -> str:
        name = secrets.token_hex(16)
        self._con.begin()
        for statement in _SCHEMA:
            self._con.execute(statement)
        self._con.execute(
            "INSERT INTO coordinator (id, format, written_by, created_at) VALUES (?, ?, ?, ?)",
            [name, FORMAT, self._version, dt.datetime.now(dt.UTC)],
        )
        self._con.commit()
        return name

    def _foreign(self, objects: list[Any]) -> Error:
        names = [o[1] if o[0] == "main" else ".".join(o) for o in objects if o[0] != "sqlfl"]
        if not names:
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
        """What could not be committed may be rolled back already, or take the database along."""
        if self._closed:
            return
        try:
            self._con.rollback()
        except duckdb.TransactionException:
            return
        except duckdb.Error:
            self._con.close()
            self._con = open_database(self.path)
            self._con.execute("SET schema = 'sqlfl'")


# -- a model as JSON ------------------------------------------------------------------------------


def _document(model: Model) -> dict[str, Any]:
    """All of a model but its history; numbers keep all their bits."""
    return {
        "name": model.name,
        "kind": model.kind,
        "target": model.target,
        "target_type": model.target_type,
        "weight": model.weight,
        "features": model.features,
        "algorithm": model.algorithm,
        "options": dict(model.options),
        "given": model.given,
        "sql": model.sql,
        "run": model.run,
        "blocks": [asdict(block) for block in model.blocks],
        "intercept": model.intercept.tolist(),
        "head": None if model.head is None else model.head.tolist(),
        "classes": model.classes,
        "metrics": model.metrics,
        "privacy": str(model.privacy),
        "privacy_report": json.loads(model.privacy.to_json()),
        "cost": asdict(model.cost),
        "interrupted": model.interrupted,
        "converged": model.converged,
        "ending": asdict(model.ending),
        "stopped_early": model.stopped_early,
        "epoch": model.epoch,
        "created_at": model.created_at.isoformat(),
        "versions": dict(model.versions),
    }


def _model(document: Mapping[str, Any], history: bytes, kept: str) -> Model:
    own = {name: document[name] for name in Model.__dataclass_fields__ if name in document}
    own["features"] = tuple(own["features"])
    own["given"] = tuple(own["given"])
    own["classes"] = None if own["classes"] is None else tuple(own["classes"])
    own["options"] = {name: _tuples(value) for name, value in own["options"].items()}
    own["blocks"] = tuple(_block(block) for block in own["blocks"])
    own["intercept"] = np.array(own["intercept"], np.float64)
    if own.get("head") is not None:
        own["head"] = np.array(own["head"], np.float64)
    cost = Cost.__dataclass_fields__
    own["cost"] = Cost(**{name: value for name, value in own["cost"].items() if name in cost})
    own["privacy"] = _report(document)
    own["ending"] = _ending(document)
    own["created_at"] = dt.datetime.fromisoformat(own["created_at"])
    with pa.ipc.open_stream(history) as reader:
        return Model(**own, history=reader.read_all(), lasting=True, kept=kept)


def _ending(document: Mapping[str, Any]) -> Ending:
    """Files of before say only whether the changes of the objective had become small."""
    found = document.get("ending")
    if found is not None:
        return Ending(**found)
    if document["interrupted"]:
        return untold(INTERRUPTED, INTERRUPTED_REASON)
    if document["stopped_early"]:
        return untold(EARLY, EARLY_REASON)
    return untold(STILL if document["converged"] else LIMIT, BEFORE)


def _report(document: Mapping[str, Any]) -> PrivacyReport:
    """Files of before, and their readers, have its text only."""
    found = document.get("privacy_report")
    if found is None:
        return PrivacyReport((), (str(document["privacy"]),))
    return PrivacyReport.from_json(json.dumps(found))


def _block(document: Mapping[str, Any]) -> ModelBlock:
    return ModelBlock(
        slot=document["slot"],
        name=document["name"],
        features=tuple((name, kind, width) for name, kind, width in document["features"]),
        clients=tuple(Client(item["party"], item["index"]) for item in document["clients"]),
        tables=tuple(document["tables"]),
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
