"""Policies and grants, in the schema `sqlfl` of the party's own database or of its owner's store.

Rows never change, except for the time at which they end, so that past rules can be read.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error, PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.records import SCHEMA, Records, time_of
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.options.policies import TrainingPolicy, damaged, strictest
from sqlfl.udfs import sql

TRAIN, FILTER, JOIN, LABEL = "train", "filter", "join", "label"
IDENTIFY, PREDICT = "identify", "predict"
KEY = "key"
"""Role of columns that identify a row for ever. It allows nobody anything."""
LASTING = 1.0
"""Seconds for which rules that were read serve the rest of a statement."""
COLUMN_ROLES = (TRAIN, FILTER, JOIN, LABEL, IDENTIFY)
"""Roles of columns; PREDICT applies to the whole table."""


@dataclass(frozen=True)
class Roles:
    """Grant on a table: columns by role, with the table's names."""

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    predict: bool = False

    def to_json(self) -> str:
        return to_json({"columns": dict(self.columns), "predict": self.predict})

    @classmethod
    @lru_cache(maxsize=256)
    def from_json(cls, text: str) -> Roles:
        fields = json.loads(text)
        columns = {role: tuple(names) for role, names in fields["columns"].items()}
        return cls(MappingProxyType(columns), bool(fields["predict"]))

    def __str__(self) -> str:
        told = [f"{role.upper()} ({', '.join(names)})" for role, names in self.columns.items()]
        return ", ".join([*told, *(["PREDICT"] if self.predict else [])])


@dataclass(frozen=True)
class Grant:
    number: int
    analyst: str
    table: Table
    roles: Roles
    policy: str
    until: dt.datetime | None
    definition: str
    """Digest of the texts of a view, and of all that it reads; empty for a table."""

    @property
    def row_key(self) -> tuple[str, ...]:
        """Return the columns of KEY, in one order."""
        return tuple(sorted(self.roles.columns.get(KEY, ())))


@dataclass(frozen=True)
class Lock:
    """Lock on the analyst's models of the table trained until then: they are no longer used."""

    analyst: str
    table: Table
    at: dt.datetime

    def holds(self, analyst: str, tables: Iterable[Table], at: dt.datetime) -> bool:
        """Return True if it applies to the analyst's model of these tables, trained then."""
        return self.analyst == analyst and at <= self.at and _key(self.table) in map(_key, tables)


def locks_of(records: Records, cursor: sql.Connection) -> tuple[Lock, ...]:
    """Return all locks."""
    rows = records.rows(
        cursor,
        'SELECT analyst, "database", "schema", name, epoch_us(locked_at) FROM t',
        "locks",
    )
    return tuple(Lock(analyst, (a, b, c), time_of(at)) for analyst, a, b, c, at in sorted(rows))


@dataclass(frozen=True)
class Ruling:
    """Rules for one analyst now."""

    analyst: str
    grants: tuple[Grant, ...]
    policies: Mapping[str, TrainingPolicy]
    totals: Mapping[tuple[str, ...], frozenset[str]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Policies with an epsilon_total under which anybody has the tables of `grants`."""
    keys: Mapping[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """KEY of the tables of `grants`, from anybody's grant; none without one."""
    locks: tuple[Lock, ...] = ()
    """Locks on models, of all analysts."""

    def of(self, table: Table) -> tuple[Grant, ...]:
        return self._grants.get(_key(table), ())

    def may(self, role: str, column: ScopeColumn) -> bool:
        return any(
            column.name in grant.roles.columns.get(role, ()) for grant in self.of(column.table)
        )

    def may_any(self, column: ScopeColumn) -> bool:
        return column.name in self.columns(column.table)

    def columns(self, table: Table) -> frozenset[str]:
        """Return the columns that are granted for anything."""
        return self._columns.get(_key(table), frozenset())

    @cached_property
    def _grants(self) -> Mapping[tuple[str, ...], tuple[Grant, ...]]:
        grants: dict[tuple[str, ...], tuple[Grant, ...]] = {}
        for grant in self.grants:
            key = _key(grant.table)
            grants[key] = (*grants.get(key, ()), grant)
        return grants

    @cached_property
    def _columns(self) -> Mapping[tuple[str, ...], frozenset[str]]:
        """Return the granted columns of each table."""
        return {
            key: frozenset(n for g in grants for role in COLUMN_ROLES
                           for n in g.roles.columns.get(role, ()))
            for key, grants in self._grants.items()
        }  # fmt: skip

    @property
    def written(self) -> frozenset[str]:
        """Return schemas, in lower case, that a policy of these grants lets PREDICT write to."""
        schemas = (self.policies[grant.policy].into for grant in self.grants)
        return frozenset(name.lower() for name in schemas if name is not None)

    def strictest(self, tables: Iterable[Table] | None = None) -> TrainingPolicy:
        """Return the strictest policy over these tables, or over all tables of `grants`."""
        tables = [grant.table for grant in self.grants] if tables is None else tables
        return strictest(self.rules(tables) or self.policies.values())

    def total_rules(self, table: Table) -> list[TrainingPolicy]:
        """Return the policies with an epsilon_total that apply to the table, whoever has it."""
        return [self.policies[name] for name in sorted(self.totals.get(_key(table), ()))]

    def key(self, table: Table) -> tuple[str, ...]:
        """Return the columns that identify a row of the table; none if nobody has named them."""
        return self.keys.get(_key(table), ())

    def rules(self, tables: Iterable[Table]) -> list[TrainingPolicy]:
        """Return the policies under which these tables are granted."""
        names = {grant.policy for table in tables for grant in self.of(table)}
        return [self.policies[name] for name in sorted(names)]


def _key(table: Table) -> tuple[str, ...]:
    return tuple(folded(part) for part in table)


class Governance:
    def __init__(self, records: Records) -> None:
        self._records = records

    def ruling(
        self,
        analyst: str,
        now: dt.datetime | None = None,
        *,
        cursor: sql.Connection | None = None,
    ) -> Ruling | None:
        """Return the rules for the analyst; None if the owner has no policy, which allows
        everything. `cursor`: an open one of the records.
        """
        opened = closing(self._records.cursor()) if cursor is None else nullcontext(cursor)
        with opened as reading:
            policies = self._policies(reading)
            if not policies:
                return None
            grants, locks = self._grants(reading), locks_of(self._records, reading)
        now = now or dt.datetime.now(dt.UTC)
        held = [grant for grant in grants if grant.until is None or now < grant.until]
        of_analyst = tuple(grant for grant in held if grant.analyst == analyst)
        rules = {name: policy for name, (_, policy) in policies.items()}
        totals: dict[tuple[str, ...], frozenset[str]] = {}
        keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        for key in {_key(grant.table) for grant in of_analyst}:
            every = [grant for grant in held if _key(grant.table) == key]
            names = {grant.policy for grant in every}
            totals[key] = frozenset(n for n in names if rules[n].epsilon_total is not None)
            keys[key] = next((grant.row_key for grant in every if grant.row_key), ())
        return Ruling(
            analyst,
            of_analyst,
            MappingProxyType(rules),
            MappingProxyType(totals),
            MappingProxyType(keys),
            locks,
        )

    def governs(self) -> bool:
        """Return True if its owner has policies, whatever they say."""
        with closing(self._records.cursor()) as cursor:
            text = "SELECT 1 FROM t WHERE dropped_at IS NULL LIMIT 1"
            return bool(self._records.rows(cursor, text, "policies"))

    def policies(self) -> dict[str, tuple[int, TrainingPolicy]]:
        """Return name, folded -> version and rules."""
        with closing(self._records.cursor()) as cursor:
            return self._policies(cursor)

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants that were not revoked, in their order."""
        with closing(self._records.cursor()) as cursor:
            return self._grants(cursor)

    def begin(self, run: str, analyst: str, digest: str, most: int) -> None:
        """Record that the run begins. Raise PolicyError for more than `most` runs within 24
        hours.
        """
        now = dt.datetime.now(dt.UTC)
        with self._records.writing() as cursor:
            ((count,),) = self._records.rows(
                cursor,
                "SELECT count(*) FROM t WHERE analyst = $analyst AND begun_at > $since",
                "runs",
                {"analyst": analyst, "since": now - dt.timedelta(days=1)},
            )
            if count >= most:
                raise PolicyError(f"its owner's policy has runs_per_day = {most}")
            self._records.insert(cursor, "runs", (run, analyst, digest, now))

    # -- the owner's ------------------------------------------------------------------------------

    def put_policy(self, name: str, policy: TrainingPolicy, *, replace: bool) -> int:
        """Store the policy and return its version. Raise Error if the name is taken."""
        with self._records.writing() as cursor:
            if folded(name) in self._names(cursor) and not replace:
                raise Error(
                    f"there is a training policy {name} already",
                    hint=f"CREATE OR REPLACE TRAINING POLICY {name}, or choose another name",
                )
            versions = self._records.rows(
                cursor,
                "SELECT max(version) FROM t WHERE lower(name) = $name",
                "policies",
                {"name": folded(name)},
            )
            version = (versions[0][0] or 0) + 1
            self._end_policy(cursor, name)
            if not self._records.rows(cursor, "SELECT number FROM t", "turns"):
                self._records.insert(cursor, "turns", (0,))
            row = (folded(name), version, to_json(policy), dt.datetime.now(dt.UTC), None)
            self._records.insert(cursor, "policies", row)
            return version

    def drop_policy(self, name: str, *, if_exists: bool) -> bool:
        """Drop the policy, and return whether there was one. Raise Error if grants use it."""
        with self._records.writing() as cursor:
            names = self._names(cursor)
            if folded(name) not in names:
                if if_exists:
                    return False
                raise _no_policy(name, names)
            used = [g for g in self._grants(cursor) if g.policy == folded(name)]
            if used:
                tables = sorted({".".join(grant.table[1:]) for grant in used})
                raise Error(
                    f"policy {name} has grants on {', '.join(tables)}",
                    hint=f"REVOKE ALL ON {tables[0]} FROM '{used[0].analyst}' first",
                )
            self._end_policy(cursor, name)
            return True

    def grant(
        self,
        analyst: str,
        table: Table,
        roles: Roles,
        policy: str,
        until: dt.datetime | None,
        definition: str,
    ) -> int:
        """Store the grant and return its number; `definition`: the table's. It ends the analyst's
        grants of another definition, under which the view cannot be used any more. Raise Error if
        there is no such policy, or if another grant gives the table another KEY.
        """
        with self._records.writing() as cursor:
            names = self._names(cursor)
            if folded(policy) not in names:
                raise _no_policy(policy, names)
            now = dt.datetime.now(dt.UTC)
            asked = Grant(0, analyst, table, roles, policy, until, definition).row_key
            for other in self._grants(cursor) if asked else ():
                ended = other.until is not None and other.until <= now
                if _key(other.table) == _key(table) and other.row_key not in ((), asked):
                    if ended:
                        continue
                    raise Error(
                        f"{'.'.join(table[1:])} has KEY ({', '.join(other.row_key)}) by its grant "
                        f"to {other.analyst}, and a table has one",
                        hint=f"REVOKE KEY ON {'.'.join(table[1:])} FROM '{other.analyst}' first",
                    )
            for other in self._grants(cursor):
                same = other.analyst == analyst and _key(other.table) == _key(table)
                if same and other.definition != definition:
                    self._end_grant(cursor, other.number, now)
            ((last,),) = self._records.rows(cursor, "SELECT max(number) FROM t", "grants")
            number = (last or 0) + 1
            row = (
                number, analyst, *table, roles.to_json(), folded(policy), until,
                definition, now, None,
            )  # fmt: skip
            self._records.insert(cursor, "grants", row)
            return number

    def revoke(
        self, analyst: str, table: Table, roles: Iterable[str] | None, *, models: bool = False
    ) -> int:
        """Revoke and return how many grants have changed. `roles`: those that end, None for all.
        `models`: lock the analyst's models of the table.
        """
        with self._records.writing() as cursor:
            if models:
                self._records.insert(cursor, "locks", (analyst, *table, dt.datetime.now(dt.UTC)))
            changed = 0
            ending = None if roles is None else set(roles)
            for grant in self._grants(cursor):
                if grant.analyst != analyst or _key(grant.table) != _key(table):
                    continue
                roles_before = grant.roles
                left = (
                    {}
                    if ending is None
                    else {
                        role: names
                        for role, names in roles_before.columns.items()
                        if role not in ending
                    }
                )
                predict = roles_before.predict and ending is not None and PREDICT not in ending
                rest = Roles(MappingProxyType(left), predict)
                if rest == roles_before:
                    continue
                changed += 1
                now = dt.datetime.now(dt.UTC)
                self._end_grant(cursor, grant.number, now)
                if left or predict:
                    ((last,),) = self._records.rows(cursor, "SELECT max(number) FROM t", "grants")
                    row = (
                        last + 1, analyst, *grant.table, rest.to_json(), grant.policy, grant.until,
                        grant.definition, now, None,
                    )  # fmt: skip
                    self._records.insert(cursor, "grants", row)
            return changed

    # -- rows -------------------------------------------------------------------------------------

    def _names(self, cursor: sql.Connection) -> list[str]:
        """Return the names of policies, folded, including damaged ones."""
        text = "SELECT name FROM t WHERE dropped_at IS NULL"
        return [name for (name,) in self._records.rows(cursor, text, "policies")]

    def _policies(self, cursor: sql.Connection) -> dict[str, tuple[int, TrainingPolicy]]:
        rows = self._records.rows(
            cursor, "SELECT name, version, rules FROM t WHERE dropped_at IS NULL", "policies"
        )
        return {name: (version, _policy(name, rules)) for name, version, rules in rows}

    def _grants(self, cursor: sql.Connection) -> tuple[Grant, ...]:
        rows = self._records.rows(
            cursor,
            'SELECT number, analyst, "database", "schema", name, roles, policy, epoch_us(until), '
            "definition FROM t WHERE revoked_at IS NULL",
            "grants",
        )
        return tuple(
            Grant(
                number,
                analyst,
                (a, b, c),
                Roles.from_json(roles),
                policy,
                time_of(until),
                definition,
            )
            for number, analyst, a, b, c, roles, policy, until, definition in sorted(
                rows, key=lambda row: int(row[0])
            )
        )

    def _end_grant(self, cursor: sql.Connection, number: int, now: dt.datetime) -> None:
        text = "UPDATE t SET revoked_at = $now WHERE number = $number"
        self._records.rows(cursor, text, "grants", {"now": now, "number": number})

    def _end_policy(self, cursor: sql.Connection, name: str) -> None:
        self._records.rows(
            cursor,
            "UPDATE t SET dropped_at = $now WHERE name = $name AND dropped_at IS NULL",
            "policies",
            {"now": dt.datetime.now(dt.UTC), "name": folded(name)},
        )


@lru_cache(maxsize=64)
def _policy(name: str, rules: str) -> TrainingPolicy:
    try:
        policy = from_json(TrainingPolicy, rules)
        why = damaged(policy)
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise Error(
            f"policy {name} in {SCHEMA}.policies is damaged, or of a newer sqlfl: {why}",
            hint="nothing is allowed until the owner makes it anew: CREATE OR REPLACE TRAINING "
            f"POLICY {name}",
        )
    return policy


def _no_policy(name: str, known: Iterable[str]) -> Error:
    listed = ", ".join(known)
    return Error(
        f"there is no training policy {name}",
        hint=f"the policies are: {listed}" if listed else "CREATE TRAINING POLICY first",
    )


def definition_of(cursor: sql.Connection, table: Table) -> str:
    """Return a digest of the texts of the view and of all views and macros: a change of one of them
    may change what it reads. Return '' for a table.
    """
    return definitions_of(cursor, (table,))[table]


def definitions_of(cursor: sql.Connection, tables: Collection[Table]) -> dict[Table, str]:
    """Return the definition of each table, as `definition_of`, by at most three queries."""
    # DuckDB lists its views in half of the time that it takes for a condition on their names
    names = {folded(table[2]) for table in tables}
    named = [row for row in sql.fetch(cursor, _NAMES) if folded(row[2]) in names]
    views = {table: [row for row in named if _key(row) == _key(table)] for table in tables}
    if not any(views.values()):
        return dict.fromkeys(tables, "")
    every = sql.fetch(cursor, _VIEWS), sql.fetch(cursor, _MACROS)
    return {table: _digest([rows, *every]) if rows else "" for table, rows in views.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()


_NAMES = sql.constant(sql.query("SELECT database_name, schema_name, view_name FROM duckdb_views()"))
_VIEWS = sql.constant(
    sql.query(
        """SELECT database_name, schema_name, view_name, sql FROM duckdb_views()
    WHERE NOT internal AND NOT temporary ORDER BY ALL"""
    )
)
_MACROS = sql.constant(
    sql.query(
        """SELECT database_name, schema_name, function_name, macro_definition
        FROM duckdb_functions() WHERE NOT internal ORDER BY ALL"""
    )
)
