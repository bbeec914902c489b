"""What `attach` is given: a party's databases and stores, opened where they are paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import duckdb

from sqlfl.coordinator_file import CoordinatorFile
from sqlfl.errors import Error, PartyError
from sqlfl.files import Connection, may_be_written, open_or_make, open_source, to_path
from sqlfl.schema import Client
from sqlfl.udfs.block_tables import blocks_of, current_database
from sqlfl.udfs.blocks import Blocks, MemoryBlocks

Source: TypeAlias = duckdb.DuckDBPyConnection | str | os.PathLike[str]
Store: TypeAlias = Source | None


@dataclass(frozen=True, eq=False)
class Place:
    """One client's database, and where its blocks are kept."""

    client: Client
    con: Connection
    blocks: Blocks


class Attachment:
    """The clients of one party; a context: where it fails, what was opened or made is undone.

    source : a connection, a path, or a list of these.
    store : the same, or None; one for all clients, or a list with one for each.
    coordinator : None where models are not kept.

    Raises Error for what is no source or store, PartyError where one cannot be used.
    """

    def __init__(
        self,
        name: str,
        source: Source | Sequence[Source],
        store: Store | Sequence[Store],
        coordinator: CoordinatorFile | None,
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
        if coordinator is None and any(item is not None for item in stores):
            raise Error(
                "a store keeps the blocks of models that last, and this federation keeps none",
                hint='sqlfl.connect("coordinator.duckdb") keeps models in a file',
            )
        self._coordinator = coordinator
        self._asked: list[tuple[Client, Any, Any]] = [
            (Client(name, index), item, stores[index]) for index, item in enumerate(sources)
        ]
        self._stack = ExitStack()
        self.places: tuple[Place, ...] = ()
        self.opened: list[Connection] = []
        """Those that sqlfl has opened, and is to close."""

    def __enter__(self) -> Attachment:
        with ExitStack() as stack:
            self._stack = stack
            self.places = tuple(self._place(*asked) for asked in self._asked)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _place(self, client: Client, source: Source, store: Store) -> Place:
        try:
            con = self._source(client, source, keeps=store is None)
            if self._coordinator is None:
                return Place(client, con, MemoryBlocks())
            if store is None:
                self._refuse_coordinator(con, "the source")
                return Place(client, con, blocks_of(con, self._coordinator.id, str(client)))
            kept = self._store(source, store)
            self._refuse_coordinator(kept, "the store")
            blocks = blocks_of(kept, self._coordinator.id, str(client))
            if not blocks.lasting:
                raise Error(f"its store {blocks.reason}", hint="give a file that may be written")
            return Place(client, con, blocks)
        except duckdb.ConnectionException as error:
            raise PartyError(str(client), "its connection is closed") from error
        except PartyError:
            raise
        except Error as error:
            raise PartyError(str(client), error.message, hint=error.hint) from error

    def _source(self, client: Client, source: Source, *, keeps: bool) -> Connection:
        """`keeps`: the blocks go into the source itself."""
        if isinstance(source, duckdb.DuckDBPyConnection):
            return source
        if not isinstance(source, (str, os.PathLike)):
            raise Error(
                f"a source must be a DuckDB connection or a path, got {type(source).__name__}",
                hint="duckdb.connect(...)",
            )
        path = to_path(source, "a source")
        if not path.exists():
            raise Error(f"there is no database file {path}")
        self._refuse_path(path, "the source")
        writes = keeps and self._coordinator is not None and may_be_written(path)
        if not writes:
            return self._open(path, read_only=True)
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
        given = isinstance(source, duckdb.DuckDBPyConnection)
        if not given and path == to_path(source, "a source"):
            raise Error(
                f"the store {path} is the source itself",
                hint="leave store out: blocks are then kept in the source",
            )
        self._refuse_path(path, "the store")
        return self._opened(*open_or_make(path))

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

    def _refuse_coordinator(self, con: Connection, what: str) -> None:
        found = current_database(con).path
        if found is not None:
            self._refuse_path(Path(os.path.realpath(found)), what)

    def _refuse_path(self, path: Path, what: str) -> None:
        if self._coordinator is not None and path == self._coordinator.path:
            raise Error(
                f"{what} is the coordinator's own file", hint="choose a database of the party's"
            )
