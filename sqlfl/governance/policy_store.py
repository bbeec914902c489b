"""Place of an owner's policies, and of all records under them: the database of the tables, or a
separate store. With a store, a read-only database can be governed too.

If there are policies in both, nothing is allowed: otherwise leaving one of the two out would loosen
the rules.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sqlfl.base.errors import Error, PolicyError
from sqlfl.governance.policies import Governance, Ruling
from sqlfl.governance.records import SCHEMA, Records
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_tables import Database
from sqlfl.udfs.connection import instances

APART = "give its path, or a connection of its own: duckdb.connect(path)"
KEEP = (
    "attach an open connection that may write; or have its owner move the policies to a store "
    "(sqlfl.owner(source, store=...)), and give that: fed.attach(name, source, store=...)"
)
CLEAR = (
    "its owner drops those of one place: sqlfl.owner(source) works on those of the database, "
    "sqlfl.owner(source, store=...) on those of the store"
)


_DATABASES = sql.constant(
    sql.query("SELECT database_name FROM duckdb_databases() WHERE NOT internal")
)
_POLICIES = sql.constant(
    sql.query(
        f"""SELECT database_name FROM duckdb_tables()
        WHERE schema_name = '{SCHEMA}' AND table_name = 'policies'"""
    )
)


class Home:
    """Place of one client's policies, for as long as it is attached.

    records : the place of policies and records: the store if its owner has made policies there
    before, else the database's `own`.
    """

    def __init__(self, own: Records, store: Records | None) -> None:
        chosen = store is not None and Governance(store).governs()
        self.records, self._other = (store, own) if store and chosen else (own, store)
        self._own = own
        self._store, self._governance = store, Governance(self.records)
        self._names = ("store", "database") if chosen else ("database", "store")

    def ruling(self, analyst: str) -> Ruling | None:
        """Return the ruling, as `Governance.ruling`. Raise PolicyError if nothing can be allowed:
        its records cannot be written, or there are policies in the other place too.
        """
        if self._store is not None:
            self._store.check_attached()
        with closing(self._own.cursor()) as cursor:
            same = self.records is self._own
            ruling = self._governance.ruling(analyst, cursor=cursor if same else None)
            if self._other is not None and Governance(self._other).governs():
                raise self._elsewhere(ruling)
            self._check_others(cursor)
        if ruling is not None and self.records.database.read_only:
            raise PolicyError(
                f"its owner's training policies are in its {self._names[0]}, which is only read, "
                "so that nothing can be kept of what it is asked",
                hint=KEEP,
            )
        return ruling

    def _check_others(self, cursor: sql.Connection) -> None:
        """Raise PolicyError if another database on the connection, of which this is a cursor, has
        policies, which would apply to nothing.
        """
        if len(sql.fetch(cursor, _DATABASES)) == 1:
            return
        own = self._own.database.catalog
        places = [name for (name,) in sql.fetch(cursor, _POLICIES) if name != own]
        if any(Governance(Records(self._own.con, name)).governs() for name in places):
            raise PolicyError(
                "another database on its connection has training policies, which hold of a party "
                "of its own alone",
                hint="attach that database as a party, by its path or a connection of its own",
            )

    def _elsewhere(self, ruling: Ruling | None) -> PolicyError:
        here, there = self._names
        if ruling is None:
            return PolicyError(
                f"its owner has made training policies in its {there} since it was attached",
                hint="attach it again: fed.detach(name), fed.attach(name, source, store=...)",
            )
        return PolicyError(
            f"its owner has training policies in two places, its {here} and its {there}: it is "
            "not clear which hold",
            hint=CLEAR,
        )


def store_of(
    con: sql.Connection, own: Database, kept: sql.Connection, stored: Database
) -> Records | None:
    """Return the records in the store `kept` of a client whose tables are in `con`; None if that is
    the database of the tables itself.

    Raise Error if its owner's policies in the store would be unreliable: if queries over the tables
    could read it, if it cannot be written, and if there are policies in both places.
    """
    together = one_instance(con, kept)
    if together and stored.catalog.lower() == own.catalog.lower():
        return None
    records = Records(kept, stored.catalog)
    if not Governance(records).governs():
        return records
    if together:
        raise reachable()
    if stored.read_only or stored.kind != "duckdb":
        raise Error(
            f"its store, {named(stored)}, has its owner's training policies and {stored.reason}, "
            "so that nothing can be kept of what it is asked",
            hint="give a DuckDB database that may be written",
        )
    check_single(Records(con, own.catalog), records)
    return records


def check_single(own: Records, store: Records | Path) -> None:
    """Raise Error if there are policies in the database beside present or future ones in the
    store.
    """
    place = store if isinstance(store, Path) else named(store.database)
    if Governance(own).governs():
        raise Error(
            f"there are training policies in the database of the tables, {named(own.database)}; "
            f"with those of the store, {place}, they would be in two places, and "
            "it is not clear which hold",
            hint=CLEAR,
        )


def one_instance(con: sql.Connection, kept: sql.Connection) -> bool:
    """Return True if queries on one of them reach databases that the other has open."""
    first, second = instances([con, kept])
    return first == second


def reachable() -> Error:
    return Error(
        "the store is open on the connection of the tables, where queries could read it",
        hint=APART,
    )


def named(database: Database) -> str:
    """Return the name for its user; nothing of it crosses a border."""
    return database.path or database.catalog
