"""Arguments of `attach`: a party's databases and stores, opened if they are paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import duckdb

from sqlfl.base.errors import Error, PartyError
from sqlfl.contract.schema import Client
from sqlfl.databases.files import (
    Connection,
    may_be_written,
    open_database,
    open_or_make,
    open_source,
    there,
    to_path,
)
from sqlfl.databases.sources import database_of, database_path, no_source
from sqlfl.databases.sql_sources import SqlSources
from sqlfl.governance.policies import Governance
from sqlfl.governance.policy_store import named, store_of
from sqlfl.governance.records import Records
from sqlfl.governance.sandboxing import close_off, close_off_sources, rules_of
from sqlfl.options.policies import TrainingPolicy
from sqlfl.udfs.blocks.block_tables import Database, blocks_of, current_database
from sqlfl.udfs.blocks.blocks import ClientBlocks, MemoryBlocks
from sqlfl.udfs.connection import (
    TableLocation,
    has_open_transaction,
    idle,
    instances,
    located,
    numbers,
    session_settings,
)
from sqlfl.udfs.labels.label_secret import LabelSecret, label_secret

Opened: TypeAlias = duckdb.DuckDBPyConnection | str | os.PathLike[str]
Source: TypeAlias = Opened | Mapping[str, Any] | SqlSources
"""A database, tables by their names, or statements that open tables."""
Store: TypeAlias = Opened | None


class Keeper(Protocol):
    """Coordinator that keeps models, as parties know it."""

    @property
    def id(self) -> str:
        """Return the id by which parties distinguish its blocks from those of others."""
        ...

    @property
    def path(self) -> Path | None:
        """Return its file; None if that is on another machine."""
        ...


@dataclass(frozen=True, eq=False)
class ClientPlace:
    """One client's database, and the store of its blocks and of the secret of its label noise."""

    client: Client
    con: Connection
    blocks: ClientBlocks
    labels: LabelSecret
    located: TableLocation
    """Schema of names without a schema."""
    instance: str | None = None
    """Instance of DuckDB, distinct among the party's clients; None if it has one client."""
    records: Records | None = None
    """Records of the store, if there is one: its owner may keep policies there."""
    keeps: tuple[Connection, Database] | None = None
    """Connection and database that keep blocks; None if none are kept."""

    def blocks_for(self, coordinator: str) -> ClientBlocks:
        """Return the blocks of another coordinator, by its id, than the one that this was attached
        for.
        """
        if self.keeps is None:
            return MemoryBlocks()
        con, database = self.keeps
        return blocks_of(con, coordinator, str(self.client), database)


class Attachment:
    """Clients of one party. As a context, it undoes all opening and making after a failure.

    source : a connection, a path, tables by their names, statements that open tables, or a list of
        these.
    store : a connection, a path, or None; one for all clients, or a list with one for each.
    coordinator : None where models are not kept.
    combine : several clients are one to the coordinator.
    first : the number of the first of these clients, where the party has others elsewhere.

    Raise Error for an invalid source or store, and PartyError if one cannot be used.
    """

    def __init__(
        self,
        name: str,
        source: Source | Sequence[Source],
        store: Store | Sequence[Store],
        coordinator: Keeper | None,
        *,
        combine: bool = False,
        first: int = 0,
    ) -> None:
        sources = list(source) if isinstance(source, (list, tuple)) else [source]
        if not sources:
            raise Error(f"party {name} has no client", hint="attach at least one connection")
        several = isinstance(store, (list, tuple))
        stores = list(store) if isinstance(store, (list, tuple)) else [store] * len(sources)
        if several and len(stores) != len(sources):
            raise Error(
                f"party {name} has {len(sources)} clients, and store has {len(stores)} entries",
                hint="give one store for each client, or one for all of them",
            )
        self._coordinator = coordinator
        if not isinstance(combine, bool):
            raise Error(f"combine must be True or False, got {combine!r:.60}")
        self.combined = combine and len(sources) > 1
        """True for several clients to combine; one client has nothing to combine."""
        self._asked: list[tuple[Client, Any, Any]] = [
            (Client(name, first + index, combined=self.combined), item, stores[index])
            for index, item in enumerate(sources)
        ]
        self._stack = ExitStack()
        self.places: tuple[ClientPlace, ...] = ()
        self._said: list[str] = []
        self.opened: list[Connection] = []
        """Connections that sqlfl has opened, and must close."""

    def __enter__(self) -> Attachment:
        with ExitStack() as stack:
            self._stack = stack
            self.places = self._told_apart([self._place(*asked) for asked in self._asked])
            _check_shared(self.places)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _told_apart(self, places: list[ClientPlace]) -> tuple[ClientPlace, ...]:
        """Number the clients' instances. Raise PartyError if two clients have the same tables: each
        row would count twice.
        """
        if len(places) == 1:
            return tuple(places)
        numbers_of_instances = instances([place.con for place in places])
        for place, number in zip(places, numbers_of_instances, strict=True):
            for other, earlier in zip(places, numbers_of_instances, strict=True):
                if other is place:
                    break
                if place.located.is_same(other.located, one_instance=number == earlier):
                    raise PartyError(
                        str(place.client),
                        f"its database is that of client {other.client}, {place.located.name}: "
                        "each of its rows would count twice",
                        hint="give each database once, by one path or one connection; two schemas "
                        "of a database are two clients where USE has chosen one on each connection",
                    )
        return tuple(
            replace(place, instance=str(number))
            for place, number in zip(places, numbers_of_instances, strict=True)
        )

    def remarks(self) -> list[str]:
        """Return warnings about the connections: settings that their cursors do not share."""
        return [*self._said, *(text for place in self.places for text in _not_shared(place))]

    def twins(self, attached: Mapping[Client, ClientPlace]) -> set[frozenset[Client]]:
        """Return pairs of a client of this party and an `attached` client under another name that
        have the same tables.
        """
        in_files = [place.con for place in self.places if not place.located.file]
        before = numbers(in_files) if attached else []
        others = [place for place in attached.values() if idle(place.con)]
        if not others:
            return set()
        apart = numbers(in_files) == [number + 1 for number in before]
        in_memory = [
            place for place in (*self.places, *others) if not (apart or place.located.file)
        ]
        numbers_of_instances = instances([place.con for place in in_memory])
        instance = dict(
            zip((place.client for place in in_memory), numbers_of_instances, strict=True)
        )
        return {
            frozenset((place.client, other.client))
            for place in self.places
            for other in others
            if place.located.is_same(
                other.located,
                one_instance=not apart and instance.get(place.client) == instance.get(other.client),
            )
        }

    def _place(self, client: Client, source: Source, store: Store) -> ClientPlace:
        try:
            con = self._source(client, source, keeps=store is None)
            given = isinstance(source, duckdb.DuckDBPyConnection)
            database = current_database(con)
            here = located(database)
            if store is not None:
                return self._with_store(client, con, database, source, store)
            if self._coordinator is None:
                secret = label_secret(con, client, given=given, source=database)
                return ClientPlace(client, con, MemoryBlocks(), secret, here)
            self._refuse_coordinator(database, "the source")
            blocks = blocks_of(con, self._coordinator.id, str(client), database)
            secret = label_secret(con, client, keeps=blocks.lasting, given=given, source=database)
            return ClientPlace(client, con, blocks, secret, here, keeps=(con, database))
        except duckdb.ConnectionException as error:
            raise PartyError(
                str(client),
                "its connection is closed",
                hint="open it again with duckdb.connect(...), and attach it while it is open: a "
                "connection that `with` has opened is closed at the end of its block",
            ) from error
        except PartyError:
            raise
        except Error as error:
            raise PartyError(str(client), error.message, hint=error.hint) from error

    def _with_store(
        self, client: Client, con: Connection, database: Database, source: Source, store: Source
    ) -> ClientPlace:
        kept = self._store(source, store)
        stored = current_database(kept)
        blocks: ClientBlocks = MemoryBlocks()
        if self._coordinator is not None:
            self._refuse_coordinator(stored, "the store")
            blocks = blocks_of(kept, self._coordinator.id, str(client), stored)
            if not blocks.lasting:
                raise Error(f"its store {blocks.reason}", hint="give a file that may be written")
        records = store_of(con, database, kept, stored)
        if self._coordinator is None:
            if records is None:
                raise _itself(named(stored))
            if not Governance(records).governs():
                raise _keeps_nothing(named(stored))
        given = isinstance(source, duckdb.DuckDBPyConnection)
        rules = None if records is None or given else rules_of(records)
        if isinstance(source, SqlSources):
            close_off_sources(con, source, rules)
        elif rules is not None:
            self._close_off(client, con, rules)
        secret = label_secret(
            con,
            client,
            kept if stored.path else None,  # it must outlast the session
            given=given,
            source=database,
            stored=stored,
        )
        keeps = None if self._coordinator is None else (kept, stored)
        return ClientPlace(client, con, blocks, secret, located(database), None, records, keeps)

    def _source(self, client: Client, source: Source, *, keeps: bool) -> Connection:
        """Return the connection of a source. `keeps`: the blocks go into the source itself."""
        if isinstance(source, duckdb.DuckDBPyConnection):
            return source
        if isinstance(source, Mapping):
            return self._opened(database_of(source, client.party), lambda: None)
        if isinstance(source, SqlSources):
            if keeps:
                raise Error("tables that statements open need a store, as nothing is kept there")
            return self._opened(source.open(), lambda: None)
        if not isinstance(source, (str, os.PathLike)):
            raise no_source(source, client.party)
        path = database_path(source, client.party)
        self._refuse_path(path, "the source")
        writes = keeps and self._coordinator is not None and may_be_written(path)
        con = self._written(path) if writes else self._read(path)
        rules = rules_of(Records(con, current_database(con).catalog))
        if rules is None:
            return con
        if current_database(con).read_only:
            con = self._opened_anew(con, path)
        self._close_off(client, con, rules)
        return con

    def _close_off(self, client: Client, con: Connection, rules: TrainingPolicy) -> None:
        if not close_off(con, rules):
            self._said.append(
                f"party {client}: its database is open in this process already, and its owner has "
                "training policies: files, extensions, memory and threads stay as they are there"
            )

    def _read(self, path: Path) -> Connection:
        try:
            return self._open(path, read_only=True)
        except Error:
            if not may_be_written(path):
                raise
            # it is open for writing, as by another federation, or not at all
            con = open_database(path)
            with closing(con):
                if rules_of(Records(con, current_database(con).catalog)) is None:
                    raise
            return self._open(path)

    def _opened_anew(self, con: Connection, path: Path) -> Connection:
        """Open the file for writing, as a record of everything that leaves is kept there."""
        if not may_be_written(path):
            raise Error(
                "its owner has made training policies, and what leaves is to be kept in it: it may "
                "only be read",
                hint="let this process write it",
            )
        self.opened.remove(con)
        con.close()
        return self._written(path)

    def _written(self, path: Path) -> Connection:
        try:
            return self._open(path)
        except Error as error:
            raise Error(
                error.message,
                hint=f"{error.hint}; or give a store=..., then the source is only read"
                if error.hint
                else None,
            ) from error

    def _store(self, source: Source, store: Source) -> Connection:
        if isinstance(store, duckdb.DuckDBPyConnection):
            return store
        path = to_path(store, "a store")
        if isinstance(source, str | os.PathLike) and path == to_path(source, "a source"):
            raise _itself(str(path))
        self._refuse_path(path, "the store")
        if self._coordinator is not None:
            return self._opened(*open_or_make(path))
        if not there(path):
            raise _keeps_nothing(str(path))
        return self._opened(open_database(path), lambda: None)

    def _open(self, path: Path, *, read_only: bool = False) -> Connection:
        return self._opened(open_source(path, read_only=read_only), lambda: None)

    def _opened(self, con: Connection, undo: Callable[[], None]) -> Connection:
        self.opened.append(con)

        def leave(kind: object, error: object, trace: object) -> None:
            if kind is not None:
                con.close()
                undo()

        self._stack.push(leave)
        return con

    def _refuse_coordinator(self, database: Database, what: str) -> None:
        if database.path is not None:
            self._refuse_path(Path(os.path.realpath(database.path)), what)

    def _refuse_path(self, path: Path, what: str) -> None:
        if self._coordinator is not None and path == self._coordinator.path:
            raise Error(
                f"{what} is the coordinator's own file", hint="choose a database of the party's"
            )


def _itself(store: str) -> Error:
    return Error(
        f"the store {store} is the source itself",
        hint="leave store out: all is then kept in the source",
    )


def _keeps_nothing(store: str) -> Error:
    return Error(
        f"its store {store} would keep nothing: it has no training policies of its owner's, and "
        "this federation has no models that last",
        hint='sqlfl.connect("coordinator.duckdb") keeps models in a file, and their blocks in '
        "stores; sqlfl.owner(source, store=...) makes policies; two databases of one party are a "
        "list: fed.attach(name, [one, other])",
    )


def _check_shared(places: Sequence[ClientPlace]) -> None:
    """Raise PartyError if a store has policies for two databases of one name."""
    governed = [place for place in places if place.records and Governance(place.records).governs()]
    if len(governed) < 2:
        return
    stores = [place.records for place in governed if place.records]
    by_name: dict[tuple[int, str, str], ClientPlace] = {}
    for place, store, number in zip(
        governed, stores, instances([s.con for s in stores]), strict=True
    ):
        key = number, store.database.catalog.lower(), place.located.catalog.lower()
        other = by_name.setdefault(key, place)
        if other is not place:
            raise PartyError(
                str(place.client),
                f"its database is called {place.located.catalog}, as that of client {other.client} "
                "is, and policies in one store would be of both",
                hint="give each a store of its own, or open one under another name",
            )


def _not_shared(place: ClientPlace) -> list[str]:
    """Return warnings about a connection from the user, because sqlfl works on cursors of it."""
    warnings = []
    settings = session_settings(place.con)
    if settings:
        listed = ", ".join(f"{name} = {_setting(value)}" for name, value in settings.items())
        warnings.append(
            f"party {place.client}: its connection has settings of its own, which statements do "
            f"not see: to them {listed}. SET GLOBAL makes a setting hold for all"
        )
    if has_open_transaction(place.con):
        warnings.append(
            f"party {place.client}: its connection has an open transaction, and statements do not "
            "see what it has not committed"
        )
    return warnings


def _setting(value: str) -> str:
    return f"'{value}'"
