"""The secret that a client's label noise follows from, made once and kept for good.

A new secret in each session would noise the same labels again and again, and a majority of the
noised labels would disclose the true ones. So the secret is on disk before the first noised label
leaves. No DROP, no failure and no clearing of blocks removes it, and it does not depend on the
coordinator.

It is searched for in the database of the tables, then in a file beside that, then in the client's
store. A missing secret is made in the store if there is one, else in the database if that keeps
blocks of models, else in the file beside it. A database gets no schema unless its owner lets sqlfl
write into it.

A database in memory has no place for the secret, and neither has one that is opened read-only.
Without a store, their secret ends with the session.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
from sqlglot import exp

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error
from sqlfl.contract.schema import Client
from sqlfl.databases.files import FileIdentity, may_be_written, private_log
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_tables import SCHEMA, Database, current_database, own_tables

BYTES = 32
TABLE = "label_secrets"
COLUMNS = {"client": "VARCHAR", "made_at": "TIMESTAMPTZ", "secret": "BLOB"}
SUFFIX = ".label-secret"
"""Suffix of the file beside a database, after its whole name."""
OWN = ""
"""In the column `client`: the secret belongs to the database that holds it."""
LOST = "restore it from a backup; where there is none, remove it: labels are then drawn anew once"

_MAKING = threading.Lock()
"""Clients of one process search and make a secret one after the other; DuckDB excludes other
processes.
"""


class SecretPlace(Protocol):
    """A possible place of a secret."""

    def find(self) -> bytes | None:
        """Return the secret, or None. Raise Error if it cannot be read or is invalid."""
        ...

    def keep(self, secret: bytes) -> bytes:
        """Store it, and return the stored one: another client's, if it was faster. Raise Error on
        failure.
        """
        ...


class LabelSecret:
    """The secret of one client. `places` are searched in order; `home` is where it is made. None
    means that it ends with the session, for `reason`, text after the client's name.
    """

    def __init__(
        self,
        places: Sequence[SecretPlace] = (),
        home: SecretPlace | None = None,
        reason: str = "is in memory",
    ) -> None:
        self._places = tuple(places)
        self._home = home
        self._reason = reason
        self._secret: bytes | None = None

    @property
    def fleeting(self) -> str:
        """Return why labels are drawn anew in each session; empty if they are not."""
        try:
            lasts = self._home is not None or any(place.find() for place in self._places)
        except Error:  # the statement that needs the secret will report it
            lasts = True
        return "" if lasts else self._reason

    def get(self) -> bytes:
        """32 bytes, which are on disk when this returns, unless they are `fleeting`.

        Raises Error where they cannot be written or read.
        """
        if self._secret is None:
            with _MAKING:
                self._secret = self._find_or_make()
        return self._secret

    def _find_or_make(self) -> bytes:
        for number, place in enumerate(self._places):
            secret = place.find()
            if secret is not None:
                if self._home in self._places[:number]:
                    self._home.keep(secret)  # where it moves with the database
                return secret
        new_secret = secrets.token_bytes(BYTES)
        return new_secret if self._home is None else self._home.keep(new_secret)


def label_secret(
    con: sql.Connection,
    client: Client,
    store: sql.Connection | None = None,
    *,
    keeps: bool = False,
    given: bool = True,
    source: Database | None = None,
    stored: Database | None = None,
) -> LabelSecret:
    """Return the secret of the client whose source is `con`.

    keeps : the source keeps blocks of models. given : the caller has opened the source, so
    read-only is the caller's wish; else sqlfl has opened its path. source, stored : the current
    databases of `con` and of `store`, if the caller knows them.
    """
    source = source or current_database(con)
    places: list[SecretPlace] = []
    home: SecretPlace | None = None
    if source.kind == "duckdb" and source.path:
        inside, beside = InDatabase(con, source, OWN), BesideFile(source.path)
        places += [inside, beside]
        if keeps and not source.read_only:
            home = inside
        elif beside.possible and not (given and source.read_only):
            home = beside
    if store is not None:
        home = InDatabase(store, stored or current_database(store), str(client).lower())
        places.append(home)
    return LabelSecret(places, home, source.reason or "is read-only")


@dataclass(frozen=True)
class _Content:
    """Contents of the file beside a database."""

    label_secret: bytes


class BesideFile:
    """A separate file beside the database's, readable by its owner only, which appears complete."""

    def __init__(self, database: str) -> None:
        self._database = Path(os.path.realpath(database))
        self.path = self._database.with_name(self._database.name + SUFFIX)

    @property
    def possible(self) -> bool:
        """The database is a local file that its owner may write, and so is the folder."""
        return self._database.is_file() and may_be_written(self._database)

    def find(self) -> bytes | None:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(f"cannot be read: {error}") from error
        try:
            return _checked(from_json(_Content, text, strict=False).label_secret)
        except ValueError as error:
            raise self._damaged("is damaged") from error

    def keep(self, secret: bytes) -> bytes:
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.new")
        text = to_json(_Content(secret)) + "\n"
        try:
            try:
                _write(draft, text)
                with suppress(FileExistsError):
                    os.link(draft, self.path)
            finally:
                draft.unlink(missing_ok=True)
            _sync(self.path.parent)
        except OSError as error:
            raise Error(
                f"the secret of its labels' noise cannot be kept beside its database, in "
                f"{self.path.name}: {error.strerror}",
                hint="make room for it, or give attach(..., store=...)",
            ) from error
        stored = self.find()
        assert stored is not None
        return stored

    def _damaged(self, why: str) -> Error:
        return Error(
            f"the secret of its labels' noise, in {self.path.name} beside its database, {why}",
            hint=LOST,
        )


class InDatabase:
    """A row in the schema `sqlfl` of a database: its own secret, or that of a client whose store it
    is. `con` is used by cursors only.
    """

    def __init__(self, con: sql.Connection, database: Database, client: str) -> None:
        self._con = con
        self._catalog = database.catalog
        self._client = client
        self._path = database.path
        self._file = None if database.path is None else FileIdentity(database.path)

    def find(self) -> bytes | None:
        with self._cursor() as cursor:
            return self._row(cursor)

    def keep(self, secret: bytes) -> bytes:
        if self._file is not None and not self._file.holds:
            raise Error(
                "the file of the database that is to keep the secret of its labels' noise has been "
                "deleted or replaced since it was opened",
                hint="put the file back, open it again, and attach that",
            )
        try:
            with self._cursor() as cursor:
                self._make_table(cursor)
                stored = self._row(cursor)
                if stored is None:
                    self._insert(cursor, secret)
                    private_log(self._path)
                    cursor.commit()
                return stored or secret
        except duckdb.Error as error:
            raise Error(
                f"the secret of its labels' noise cannot be written into {self._named}: {error}",
                hint="commit or roll back what changes the schema sqlfl there, and run this again",
            ) from error

    @property
    def _named(self) -> str:
        return f"{SCHEMA}.{TABLE}"

    @contextmanager
    def _cursor(self) -> Iterator[sql.Connection]:
        """Yield a cursor in a transaction, which is rolled back unless it was committed."""
        cursor = sql.cursor(self._con)
        try:
            cursor.begin()
            yield cursor
        finally:
            cursor.close()

    def _row(self, cursor: sql.Connection) -> bytes | None:
        columns = own_tables(cursor, self._catalog).get(TABLE)
        if columns is None:
            return None
        if not columns >= COLUMNS.keys():
            raise Error(
                f"its {self._named} is not the table that sqlfl keeps secrets in",
                hint="rename what is there, or give a store=...",
            )
        query = sql.select(self._table, [sql.column("secret")])
        place: dict[str, object] = {"client": self._client}
        query = query.where(sql.equal(sql.column("client"), sql.parameter("client")))
        rows = sql.fetch(cursor, query, place)
        if not rows:
            return None
        try:
            ((secret,),) = rows
            return _checked(secret)
        except (ValueError, TypeError) as error:
            message = f"the secret of its labels' noise, in {self._named}, is damaged"
            raise Error(message, hint=LOST) from error

    def _make_table(self, cursor: sql.Connection) -> None:
        schema = exp.table_(SCHEMA, db=self._catalog, quoted=True)
        sql.run(cursor, exp.Create(this=schema, kind="SCHEMA", exists=True))
        definitions = [
            exp.ColumnDef(this=exp.to_identifier(c, quoted=True), kind=exp.DataType.build(t))
            for c, t in COLUMNS.items()
        ]
        table = exp.Schema(this=self._table, expressions=definitions)
        sql.run(cursor, exp.Create(this=table, kind="TABLE", exists=True))

    def _insert(self, cursor: sql.Connection, secret: bytes) -> None:
        row = {"client": self._client, "made_at": dt.datetime.now(dt.UTC), "secret": secret}
        values = exp.select(*(sql.parameter(name) for name in row))
        names = [exp.to_identifier(name, quoted=True) for name in row]
        into = exp.Schema(this=self._table, expressions=names)
        sql.run(cursor, exp.Insert(this=into, expression=values), row)

    @property
    def _table(self) -> exp.Table:
        return exp.table_(TABLE, db=SCHEMA, catalog=self._catalog, quoted=True)


class Holders:
    """The clients of a federation, by their secret.

    Copies of a database share one secret, and so do two connections to it. Under one key their
    equal rows would have equal noise, which would disclose whether two labels are equal. So each
    client has a number beside the secret, the first one 0.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[bytes, list[Client]] = {}

    def number(self, secret: bytes, client: Client) -> int:
        with self._lock:
            clients = self._found.setdefault(secret, [])
            if client not in clients:
                clients.append(client)
            return clients.index(client)


def _checked(secret: object) -> bytes:
    if not isinstance(secret, bytes) or len(secret) != BYTES:
        raise ValueError("no secret")
    return secret


def _write(path: Path, text: str) -> None:
    """Write a new file, which is on disk when this returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Write the folder's entries to disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
