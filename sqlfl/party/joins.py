"""Joins that last at a client: tables as they were, and rows that several statements share.

A join holds a transaction open on a cursor of its own, so that fragments see the tables as they
were when it was made. Rows that were numbered and hashed once stay, for statements with the same
fragments. A statement works on its own copy, with its own cursor.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import duckdb
import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import Error, InternalError, ModelError
from sqlfl.contract.joins import rows_of
from sqlfl.contract.schema import SlotSpecification, folded
from sqlfl.governance.runs import GrantsOfTables
from sqlfl.messages.preparation import NONCE_BYTES
from sqlfl.party.cursors import Cursors
from sqlfl.udfs import sql
from sqlfl.udfs.describe import place_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot

MAX_NAME = 200
MAX_JOINS = 16
"""Maximum joins of one analyst at a client."""
MAX_KEPT_BYTES = 1 << 30
"""Maximum bytes of rows that one analyst's joins keep in memory beside the database, whose own
memory_limit bounds its temporary tables.
"""
MAX_KEPT = 64
"""Maximum snapshots of one join."""
MAX_REASONS = 64
ANEW = "CREATE OR REPLACE JOIN makes it anew"


@dataclass(eq=False)
class HeldJoin:
    """A join that lasts, at one client."""

    name: str
    cursor: duckdb.DuckDBPyConnection
    """Cursor with the open transaction."""
    fragments: tuple[str, ...]
    limit: float | None = None
    """Seconds for which the client's owner lets it last; None at a client without policies."""
    grants: GrantsOfTables | None = None
    """Numbers of the grants of its tables when it was made; None without policies."""
    made: float = field(default_factory=time.monotonic)
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES), repr=False)
    kept: dict[Hashable, Snapshot] = field(default_factory=dict, repr=False)
    _nonces: Array | None = field(default=None, repr=False)
    _before: dict[str, tuple[object, ...]] | None = field(default=None, repr=False)
    """Fingerprints of the tables as they were; None until they are needed, or if they are not
    readable.
    """

    @property
    def has_policies(self) -> bool:
        """True if the client has policies: they set a time limit for each join."""
        return self.limit is not None

    @property
    def age(self) -> float:
        """The seconds since the join was made."""
        return time.monotonic() - self.made

    @property
    def is_over(self) -> bool:
        """True if the time limit has passed."""
        return self.limit is not None and self.age > self.limit

    @cached_property
    def _tables(self) -> tuple[exp.Table, ...] | None:
        """Tables that the join reads, as its transaction sees them; None if their changes are not
        known.
        """
        return _tables_of(self.cursor, self.fragments)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the kept rows beside the database."""
        return sum(snapshot.kept_bytes for snapshot in self.kept.values())

    def key(self, secret: bytes, join: str, nonces: Array) -> bytes:
        """Return the key of the join's hashes, made of all clients' nonces, uint8 (clients, 16).
        Raise InternalError if this client's is missing, and if they differ from earlier ones.
        """
        if not (nonces == np.frombuffer(self.nonce, np.uint8)).all(axis=1).any():
            raise InternalError("keys are asked for without what this client has drawn for them")
        if self._nonces is not None and not np.array_equal(self._nonces, nonces):
            raise InternalError("other numbers are said to be drawn for this join than before")
        self._nonces = np.array(nonces)
        return keys.derive(keys.run_key(secret, f"join {join}", nonces), "join")

    def keep(self, item: SlotSpecification, snapshot: Snapshot) -> Snapshot:
        """Keep the numbered rows for later statements, and return them. Raise ModelError if the
        join keeps those of too many statements.
        """
        key = _key_of_rows(item, snapshot.fragments, snapshot.draws)
        if key not in self.kept and len(self.kept) >= MAX_KEPT:
            raise ModelError(
                f"join {self.name} keeps the rows of {MAX_KEPT} different statements, which is the "
                "most",
                hint=ANEW,
            )
        replaced = self.kept.pop(key, None)
        if replaced is not None:
            replaced.drop()
        kept = self.kept[key] = snapshot.to_keep()
        return kept

    def find(self, item: SlotSpecification, fragments: Sequence[str], draws: bytes) -> Snapshot:
        """Return the kept rows of these fragments. Raise Error if there are none."""
        snapshot = self.kept.get(_key_of_rows(item, tuple(fragments), draws))
        if snapshot is None:
            raise Error(
                f"join {self.name} has no rows of this statement here, though their keys were sent",
                hint=f"its owner's rules have changed since, or a statement failed: {ANEW}",
            )
        return snapshot

    def changed(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """Return whether a table has changed since: SAME, CHANGED or NOT_KNOWN. `cursor` sees the
        tables as they are now.

        It is CHANGED also if a table is missing or not readable now. It is NOT_KNOWN at a client
        with policies, which forbid to report changes; if the fragments read more than tables; and
        if the tables as they were are not readable.
        """
        if self.has_policies or self._tables is None:
            return ms.NOT_KNOWN
        if self._before is None:
            self._before = _fingerprints(self.cursor, self._tables)
        if self._before is None:
            return ms.NOT_KNOWN
        return ms.SAME if _fingerprints(cursor, self._tables) == self._before else ms.CHANGED


class Joins:
    """The joins of one analyst at one client. `expire`: called in a thread of its own when the time
    of the join with this id is over.
    """

    def __init__(self, cursors: Cursors, expire: Callable[[str], None]) -> None:
        self._cursors, self._expire = cursors, expire
        self._held: dict[str, HeldJoin] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        """Ids of joins that have ended here -> the reason."""
        self._timers: dict[str, threading.Timer] = {}

    def open(self, request: ms.OpenJoin) -> ms.JoinOpened:
        """Keep the tables of the fragments as they are now. Raise Error for too many joins."""
        if not request.run or request.run in self._held or request.run in self._gone:
            raise InternalError("a join of this id was there before: each has one of its own")
        if len(request.name) > MAX_NAME:
            raise Error(f"the name of a join has {MAX_NAME} characters at most")
        if len(self._held) >= MAX_JOINS:
            raise Error(f"{MAX_JOINS} joins are kept already", hint="DROP JOIN one of them")
        cursor = self._cursors.begin()
        try:
            cursor.begin()
            for text in dict.fromkeys(request.fragments):
                # a database takes part in the transaction once it is read
                select = exp.Subquery(this=sql.verbatim(cursor, text), alias=_alias("f"))
                sql.fetch(cursor, sql.select(select, [exp.Star()]).limit(0))
        except BaseException:
            self._cursors.end(cursor)
            raise
        join = self._held[request.run] = HeldJoin(request.name, cursor, request.fragments)
        nonce = np.frombuffer(join.nonce, np.uint8)
        return ms.JoinOpened(request.run, request.slot, nonce)

    def govern(self, join: str, seconds: float, grants: GrantsOfTables) -> None:
        """Set the time limit and the grants of a join at a client with policies."""
        self._held[join].limit, self._held[join].grants = seconds, grants
        timer = self._timers[join] = threading.Timer(seconds, self._expire, [join])
        timer.daemon = True
        timer.start()

    def grants(self, join: str) -> GrantsOfTables | None:
        return self.get(join).grants

    def cursor(self, join: str) -> duckdb.DuckDBPyConnection:
        return self.get(join).cursor

    def name_and_age(self, join: str) -> tuple[str, float]:
        held = self.get(join)
        return held.name, held.age

    def get(self, join: str) -> HeldJoin:
        """Return the join. Raise Error if it has ended."""
        held = self._held.get(join)
        if held is not None and held.is_over:
            self.expire(join)
            held = None
        if held is None:
            raise Error(
                "the join is not kept here any more: "
                + self._gone.get(join, "the party was started again, or attached anew, since"),
                hint=ANEW,
            )
        return held

    def take(
        self,
        join: str,
        item: SlotSpecification,
        fragments: Sequence[str],
        run: str,
        draws: bytes,
    ) -> Snapshot:
        """Evaluate the fragments over the tables as they were. Raise ModelError if the joins keep
        too many bytes already. If the database fails, the join ends: DuckDB ends the transaction.
        """
        held = self.get(join)
        if sum(each.kept_bytes for each in self._held.values()) > MAX_KEPT_BYTES:
            raise ModelError(
                f"the joins keep more than {MAX_KEPT_BYTES:,} bytes of rows",
                hint="DROP JOIN one of them",
            )
        try:
            return Snapshot.take(held.cursor, item, fragments, run, draws)
        except BaseException:
            self.check(join)
            raise

    def check(self, join: str) -> None:
        """End the join if its transaction has ended."""
        held = self._held.get(join)
        if held is None:
            return
        try:
            held.cursor.execute("SELECT 1").fetchall()
        except duckdb.Error:
            self.close(join, "a statement failed or was stopped while it read the tables")

    def forget(self, join: str, snapshots: Iterable[Snapshot]) -> None:
        """Drop rows that were evaluated for a run that ends, and that are not kept."""
        if join in self._held:
            with suppress(duckdb.Error):
                for snapshot in snapshots:
                    snapshot.drop()
            self.check(join)

    def changed(self, join: str) -> int:
        """Return whether a table of the join has changed since it was made: SAME, CHANGED or
        NOT_KNOWN. Raise Error if the join has ended.
        """
        held = self.get(join)
        cursor = self._cursors.begin()
        try:
            return held.changed(cursor)
        finally:
            self._cursors.end(cursor)
            self.check(join)

    def expire(self, join: str) -> None:
        """End the join because its time is over."""
        self.close(join, "its owner's time limit has passed")

    def close(self, join: str, reason: str = "it was dropped") -> None:
        """Forget what is kept of the join, if it is here."""
        timer = self._timers.pop(join, None)
        if timer is not None:
            timer.cancel()
        held = self._held.pop(join, None)
        if held is None:
            return
        self._gone[join] = reason
        while len(self._gone) > MAX_REASONS:
            self._gone.popitem(last=False)
        held.kept.clear()
        with suppress(duckdb.Error):
            self._cursors.end(held.cursor)

    def close_all(self) -> None:
        for join in list(self._held):
            self.close(join)


def _key_of_rows(item: SlotSpecification, fragments: tuple[str, ...], draws: bytes) -> Hashable:
    """Return the key under which the rows of these fragments are kept."""
    # the fragments have the party's own additions too: marks of rows, and keys of noised labels
    return rows_of(item, fragments), b"" if item.seed is not None else draws


def _alias(name: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(name))


def _tables_of(con: sql.Connection, fragments: Iterable[str]) -> tuple[exp.Table, ...] | None:
    """Return the tables that the fragments read. Return None if they read anything whose changes
    are not known: views, functions that return tables, and a name of both a CTE and a table."""
    tables: dict[str, exp.Table] = {}
    for text in fragments:
        try:
            tree = sqlglot.parse_one(text, dialect="duckdb")
        except SqlglotError:
            return None
        cte_names = {folded(cte.alias) for cte in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier):
                return None
            table = exp.table_(table.name, table.db or None, table.catalog or None, quoted=True)
            is_table = _is_table(con, table)
            is_cte = not table.db and folded(table.name) in cte_names
            if is_table == is_cte:  # neither, or the scope would decide
                return None
            if is_table:
                tables[sql.to_sql(table)] = table
    return tuple(tables[name] for name in sorted(tables))


def _is_table(con: sql.Connection, table: exp.Table) -> bool:
    """Return whether exactly one table has this name; a view or a temporary table does not count.

    `a.t` is a table of the schema a in the current database, or a table of the database a.
    """
    query = sql.query(
        """SELECT count(*) AS n FROM duckdb_tables() WHERE lower(table_name) = lower($name)
        AND CASE WHEN $database <> '' THEN lower(schema_name) = lower($schema)
          AND lower(database_name) = lower($database)
        WHEN $schema <> '' THEN (lower(schema_name) = lower($schema) AND database_name = $here)
          OR lower(database_name) = lower($schema)
        ELSE schema_name = $main AND database_name = $here END
        AND NOT temporary"""
    )
    database, main = place_of(con)
    parts = {"name": table.name, "schema": table.db, "database": table.catalog}
    parts |= {"here": database, "main": main}
    ((number,),) = sql.fetch(con, query, parts)
    return bool(number == 1)


def _fingerprints(
    con: sql.Connection, tables: Iterable[exp.Table]
) -> dict[str, tuple[object, ...]] | None:
    """Return the number of rows of each table, and a sum of hashes of whole rows. Return None if a
    table is missing or not readable."""
    fingerprints: dict[str, tuple[object, ...]] = {}
    for table in tables:
        query = sql.query(
            "SELECT count(*) AS n, sum(hash(t)) AS h FROM $table AS t", table=table.copy()
        )
        try:
            (fingerprints[sql.to_sql(table)],) = sql.fetch(con, query)
        except duckdb.Error:
            return None
    return fingerprints
