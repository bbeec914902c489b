"""The party's own view: its policies and its grants."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeAlias

import duckdb
import pyarrow as pa

from sqlfl.base.codec import to_json
from sqlfl.base.errors import Error, StatementError, nearest
from sqlfl.base.foreign_names import with_call_hint
from sqlfl.base.result import Result
from sqlfl.contract.request import REFUSED, WAITING
from sqlfl.contract.schema import folded
from sqlfl.databases.files import (
    Connection,
    may_be_written,
    open_database,
    open_or_make,
    open_source,
    there,
    to_path,
)
from sqlfl.databases.sources import check_database, database_path
from sqlfl.databases.sql_sources import SqlSources
from sqlfl.governance import statements as st
from sqlfl.governance.approvals import APPROVED, Approvals, Filed
from sqlfl.governance.ledger import Budget, Ledger, days
from sqlfl.governance.message_log import left
from sqlfl.governance.models import models_of
from sqlfl.governance.names import NameLookup
from sqlfl.governance.noising import budgets_of
from sqlfl.governance.policies import PREDICT, Governance, Roles, definition_of, locks_of
from sqlfl.governance.policy_store import check_single, one_instance, reachable
from sqlfl.governance.proposals import named_run
from sqlfl.governance.records import Records
from sqlfl.governance.request_summary import summarise
from sqlfl.governance.sandboxing import close_off_sources, rules_of
from sqlfl.governance.scopes import Table
from sqlfl.governance.study_summary import details_of_study, summarise_study
from sqlfl.governance.table_facts import TableFacts, measure
from sqlfl.options.entries import entries_of
from sqlfl.options.policies import DELTA, TrainingPolicy, resolve_policy, strictest
from sqlfl.options.types import shown
from sqlfl.planner.grammar.dialect import split
from sqlfl.planner.grammar.statements import Path as Named
from sqlfl.planner.grammar.statements import Word
from sqlfl.planner.grammar.tokens import decoded
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place

Given: TypeAlias = "duckdb.DuckDBPyConnection | str | os.PathLike[str]"
OwnSource: TypeAlias = "Given | SqlSources"


class Places:
    """The source, with its connection `con`, and the store, if given. `close` closes the files
    opened here.

    missing : path of a store that is yet to be made. Then `records` are those of the source, and
        must not be used.
    """

    def __init__(self, source: OwnSource, store: Given | None) -> None:
        self.missing: Path | None = None
        with ExitStack() as stack:
            self._stack = stack
            self.con = self._source(source, keeps=store is None)
            self.own = Records(self.con, current_place(self.con)[0])
            self.records = self.own if store is None else self._store(source, store)
            if isinstance(source, SqlSources):
                close_off_sources(self.con, source, rules_of(self.records))
            self._stack = stack.pop_all()

    def check_single(self) -> None:
        """Check before an addition to the store. Raise Error if the source has policies."""
        if self.missing is not None or self.records is not self.own:
            check_single(self.own, self.missing or self.records)

    def make(self) -> None:
        """Make the missing store."""
        assert self.missing is not None
        con, _ = open_or_make(self.missing)
        self.records = self._apart(self._opened(con))
        self.missing = None

    def close(self) -> None:
        self._stack.close()

    def _source(self, source: OwnSource, *, keeps: bool) -> Connection:
        if isinstance(source, SqlSources):
            return self._opened(source.open())
        check_database(source, "an owner's database", 'sqlfl.owner(duckdb.connect("bank.duckdb"))')
        if isinstance(source, duckdb.DuckDBPyConnection):
            return source
        path = database_path(source, "owner")
        return self._opened(open_source(path, read_only=not (keeps and may_be_written(path))))

    def _store(self, source: OwnSource, store: Given) -> Records:
        if isinstance(store, duckdb.DuckDBPyConnection):
            return self._apart(store)
        path = to_path(store, "a store")
        if isinstance(source, str | os.PathLike) and path == to_path(source, "a source"):
            raise Error(
                f"the store {path} is the source itself",
                hint="leave store out: all is then kept in the source",
            )
        if not there(path):
            self.missing = path
            return self.own
        return self._apart(self._opened(open_database(path, read_only=not may_be_written(path))))

    def _apart(self, kept: Connection) -> Records:
        if one_instance(self.con, kept):
            raise reachable()
        return Records(kept, current_place(kept)[0])

    def _opened(self, con: Connection) -> Connection:
        self._stack.callback(con.close)
        return con


class Owner:
    """Owner of the database of a connection, or of a file, which is closed with this object.

    Policies and grants are kept in its schema `sqlfl`, or in that of a store. Use `sqlfl.owner()`;
    also a context manager.

    coordinator : name of the coordinator to which the party's agent answers, for the sentences of
        requests; empty where there is no agent.
    """

    def __init__(
        self, source: OwnSource, store: Given | None = None, *, coordinator: str = ""
    ) -> None:
        self._coordinator = coordinator
        self._places = Places(source, store)
        self._con = self._places.con
        self._place = current_place(self._con)
        self._keep_in(self._places.records)

    def _keep_in(self, records: Records) -> None:
        self._records = records
        self._governance = Governance(records)
        self._approvals = Approvals(records)
        self._ledger = Ledger(records)

    def sql(self, text: str | bytes) -> Result:
        """Run statements of the owner, and return the result of the last one.

        Raise ParseError and OptionError with the place in the text, and Error for missing or
        existing objects. Statements before a failing one stay in force.
        """
        found = Result(pa.table({}))
        text = decoded(text)
        for start, end in split(text):
            found = self._run(st.parse_owners(text[start:end]))
        return found

    def unnotified(self) -> list[dict[str, object]]:
        """Return the rows of SHOW REQUESTS for waiting requests without a notification."""
        return self._summaries(self._approvals.unnotified())

    def notified(self, number: int) -> None:
        """Note that the owner was notified of the request."""
        self._approvals.notified(number)

    def close(self) -> None:
        """Close the files that were opened."""
        self._places.close()

    def __enter__(self) -> Owner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, statement: st.OwnersStatement) -> Result:
        if isinstance(statement, (st.CreatePolicy, st.GrantOn)):
            self._places.check_single()
        if self._places.missing is not None:
            self._make(self._places.missing, statement)
        match statement:
            case st.CreatePolicy(name, rules, replace, text):
                self._governance.put_policy(name, resolve_policy(rules, text), replace=replace)
                return self._policies()
            case st.DropPolicy(name, if_exists):
                self._governance.drop_policy(name, if_exists=if_exists)
                return self._policies()
            case st.GrantOn():
                self._grant(statement)
                return self._grants()
            case st.RevokeOn(roles, path, analyst, text, models):
                table, *_ = self._table(path, text)
                if not self._governance.revoke(analyst, table, roles, models=models) and not models:
                    raise Error(
                        f"nothing of that is granted on {'.'.join(path.parts)} to {analyst}",
                        hint="SHOW GRANTS lists what is",
                    )
                return self._grants()
            case st.RevokeStudy(name, analyst, because):
                self._approvals.end_study(analyst, folded(name), because)
                return self._studies()
            case st.Decide(number, approve, because):
                self._approvals.decide(number, APPROVED if approve else REFUSED, because)
                return self._requests()
            case st.Show(what):
                shown = {
                    "policies": self._policies,
                    "grants": self._grants,
                    "requests": self._requests,
                    "studies": self._studies,
                    "budgets": self._budgets,
                    "disclosures": self._disclosures,
                }
                return shown[what]()
            case st.ShowRequest(number):
                return self._requests(number)

    def _make(self, path: Path, statement: st.OwnersStatement) -> None:
        """Make the store, for its first policy. Another statement about a missing store is an
        error: an empty result would mislead, as the policies are probably in another file.
        """
        if not isinstance(statement, st.CreatePolicy):
            raise Error(
                f"there is no store {path}",
                hint="CREATE TRAINING POLICY makes it; relative paths are those of the working "
                "directory",
            )
        resolve_policy(statement.rules, statement.sql)
        self._places.make()
        self._keep_in(self._places.records)

    def _grant(self, statement: st.GrantOn) -> None:
        table, columns, definition = self._table(statement.table, statement.sql)
        if table[1].lower() == "sqlfl" or table[2].lower().startswith("sqlfl_"):
            raise Error(f"{'.'.join(table[1:])} is sqlfl's own, and is not granted")
        found: dict[str, tuple[str, ...]] = {}
        for item in statement.roles:
            if item.role == PREDICT:
                continue
            named = columns if item.columns is None else tuple(
                self._column(word, columns, statement) for word in item.columns
            )  # fmt: skip
            found[item.role] = tuple(dict.fromkeys(named))
        roles = Roles(MappingProxyType(found), any(r.role == PREDICT for r in statement.roles))
        self._governance.grant(
            statement.analyst, table, roles, statement.policy, statement.until, definition
        )

    @staticmethod
    def _column(word: Word, columns: tuple[str, ...], statement: st.GrantOn) -> str:
        found = next((name for name in columns if folded(name) == folded(word)), None)
        if found is None:
            near = nearest(word, columns)
            raise StatementError(
                f"{'.'.join(statement.table.parts)} has no column {word}",
                hint=f"did you mean {near}?" if near else f"it has {', '.join(columns)}",
                sql=statement.sql,
                span=word.span,
            )
        return found

    def _table(self, path: Named, text: str) -> tuple[Table, tuple[str, ...], str]:
        """Return the source's table in full, its columns, and its definition, which is no newer
        than these. So a view that changes in between is not the granted one.
        """
        definition = ""
        with sql.on_demand(self._con) as cursor:
            found = NameLookup(cursor, self._place).table(path.parts)
            if found is not None:
                definition = definition_of(cursor(), found[0])
                found = NameLookup(cursor, self._place).table(path.parts)
        if found is None:
            raise StatementError(
                f"there is no table or view {'.'.join(path.parts)}",
                hint="write it as on the connection: table, schema.table or database.schema.table",
                sql=text,
                span=path.span,
            )
        return (*found, definition)

    def _policies(self) -> Result:
        rows = [
            {"policy": name, "version": version, "rules": _told(policy)}
            for name, (version, policy) in self._governance.policies().items()
        ]
        return Result(pa.Table.from_pylist(rows, schema=_POLICIES))

    def _grants(self) -> Result:
        """Return the grants, and kept models also of tables without a grant."""
        models = self._models()
        rows = [
            {
                "grant": grant.number,
                "analyst": grant.analyst,
                "table": ".".join(grant.table),
                "roles": str(grant.roles),
                "policy": grant.policy,
                "until": grant.until,
                "models": ", ".join(models.get((grant.analyst, grant.table), ())),
            }
            for grant in self._governance.grants()
        ]
        shown = {(row["analyst"], row["table"]) for row in rows}
        rows += [
            {"analyst": analyst, "table": ".".join(table), "models": ", ".join(names)}
            for (analyst, table), names in sorted(models.items())
            if (analyst, ".".join(table)) not in shown
        ]
        return Result(pa.Table.from_pylist(rows, schema=_GRANTS))

    def _models(self) -> dict[tuple[str, Table], list[str]]:
        """Return the kept models of each analyst and table, with their locks."""
        found: dict[tuple[str, Table], list[str]] = {}
        with closing(self._records.cursor()) as cursor:
            every, locks = models_of(self._records, cursor), locks_of(self._records, cursor)
        for model in every:
            locked = any(lock.holds(model.analyst, model.tables, model.at) for lock in locks)
            for table in model.tables:
                told = f"{model.name} (locked)" if locked else model.name
                found.setdefault((model.analyst, table), []).append(told)
        return found

    def _budgets(self) -> Result:
        """Return each account, each budget of a grant's policy, and those of all analysts together,
        whose analyst is NULL.
        """
        analysts = {grant.analyst: None for grant in self._governance.grants()}
        found = dict.fromkeys(self._ledger.accounts())
        totals: dict[Table, Budget] = {}
        rulings = (self._governance.ruling(analyst) for analyst in analysts)
        for ruling in (ruling for ruling in rulings if ruling is not None):
            for grant in ruling.grants:
                budgets = budgets_of(ruling.rules([grant.table]), ruling.total_rules(grant.table))
                if budgets:
                    found[ruling.analyst, grant.table] = None
                for budget in budgets:
                    if budget.total:
                        totals[grant.table] = budget
        rows = []
        for analyst, table in sorted(found):
            held = self._governance.ruling(analyst)
            own = budgets_of([] if held is None else held.rules([table]), ())
            rows.append(self._budget(analyst, table, own[0] if own else None))
        rows += [self._budget(None, table, totals[table]) for table in sorted(totals)]
        return Result(pa.Table.from_pylist(rows, schema=_BUDGETS))

    def _budget(
        self, analyst: str | None, table: Table, budget: Budget | None
    ) -> dict[str, str | float | None]:
        shown = budget or Budget(math.inf, DELTA, None)
        account = self._ledger.account(analyst or "", table, shown)
        spent = account.epsilon(shown.delta)
        return {
            "analyst": analyst,
            "table": ".".join(table),
            "epsilon": None if budget is None else budget.epsilon,
            "delta": shown.delta,
            "per": None if shown.seconds is None else days(shown.seconds),
            "spent": spent,
            "remains": None if budget is None else max(budget.epsilon - spent, 0.0),
            "entries": len(account.entries),
        }

    def _disclosures(self) -> Result:
        """Return what has left, the newest first."""
        rows = [asdict(item) for item in left(self._records)]
        rows.sort(key=itemgetter("last_at"), reverse=True)
        return Result(pa.Table.from_pylist(rows, schema=_DISCLOSURES))

    def _studies(self) -> Result:
        """Return the approved studies, also those that have ended."""
        rows = [
            {
                "request": item.number,
                "analyst": item.analyst,
                "study": item.study.name,
                "purpose": item.study.purpose,
                "tables": ", ".join(".".join(own.table[1:]) for own in item.study.tables),
                "runs_used": item.used,
                "runs": item.study.runs,
                "until": item.study.until,
            }
            for item in self._approvals.studies()
        ]
        return Result(pa.Table.from_pylist(rows, schema=_STUDIES))

    def _requests(self, number: int | None = None) -> Result:
        """Return all requests in sentences, or one with its details too."""
        every = self._approvals.all()
        if number is None:
            rows = self._summaries(every)
            return Result(pa.Table.from_pylist(rows, schema=_REQUESTS))
        chosen = [item for item in every if item.number == number]
        if not chosen:
            raise Error(f"there is no request {number}", hint="SHOW REQUESTS lists them all")
        rows = [
            row | {
                "leaves": _leaving(item),
                "sql": "; ".join(item.fragments),
                "options": item.request.options,
                "privacy": item.request.privacy,
                "messages": to_json(item.request.asked),
                "hash": item.digest,
            }
            for item, row in zip(chosen, self._summaries(chosen), strict=True)
        ]  # fmt: skip
        return Result(pa.Table.from_pylist(rows, schema=_REQUEST))

    def _summaries(self, every: Iterable[Filed]) -> list[dict[str, object]]:
        """Return the rows of requests, with sentences about each."""
        rulings = {a: self._governance.ruling(a) for a in {item.analyst for item in every}}
        grants = self._governance.grants()
        measured: dict[Table, TableFacts | None] = {}
        now, rows = dt.datetime.now(dt.UTC), []
        for item in every:
            tables = {table for slot in item.columns for table in slot.tables}
            own = [g for g in grants if g.analyst == item.analyst and g.table in tables]
            # tables are counted for those that are yet to be decided, once each
            for table in tables - measured.keys() if item.state == WAITING else ():
                named = {n for g in grants if g.table == table
                         for names in g.roles.columns.values() for n in names}  # fmt: skip
                uses = {use.name for slot in item.columns for use in slot.uses}
                measured[table] = measure(self._con, table, named | uses)
            ruling = rulings[item.analyst]
            rules = [] if ruling is None else ruling.rules(tables)
            facts = {t: measured[t] for t in tables if item.state == WAITING}
            policy = strictest(rules) if rules else None
            if item.study is None:
                said = summarise(item, policy, own, facts, now, self._coordinator)
            else:
                said = summarise_study(item, item.study, policy, own, facts, now, self._coordinator)
            rows.append({
                "request": item.number,
                "state": item.state,
                "because": item.because,
                "analyst": item.analyst,
                "asked": item.asked_at,
                "tables": ", ".join(item.tables),
                "run": f"study {item.study.name}" if item.study else named_run(item.request),
                "summary": "\n".join(said.sentences),
                "warnings": "\n".join(said.warnings),
            })  # fmt: skip
        return rows


_POLICIES = pa.schema([("policy", pa.string()), ("version", pa.int64()), ("rules", pa.string())])
_GRANTS = pa.schema(
    [
        ("grant", pa.int64()),
        ("analyst", pa.string()),
        ("table", pa.string()),
        ("roles", pa.string()),
        ("policy", pa.string()),
        ("until", pa.timestamp("us", tz="UTC")),
        ("models", pa.string()),
    ]
)
_BUDGETS = pa.schema(
    [
        ("analyst", pa.string()),
        ("table", pa.string()),
        ("epsilon", pa.float64()),
        ("delta", pa.float64()),
        ("per", pa.string()),
        ("spent", pa.float64()),
        ("remains", pa.float64()),
        ("entries", pa.int64()),
    ]
)
_DISCLOSURES = pa.schema(
    [
        ("words", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("kind", pa.string()),
        ("run", pa.string()),
        ("first_at", pa.timestamp("us", tz="UTC")),
        ("what", pa.string()),
        ("last_at", pa.timestamp("us", tz="UTC")),
        ("analyst", pa.string()),
    ]
)
_REQUESTS = pa.schema(
    [
        ("request", pa.int64()),
        ("state", pa.string()),
        ("because", pa.string()),
        ("analyst", pa.string()),
        ("asked", pa.timestamp("us", tz="UTC")),
        ("tables", pa.string()),
        ("run", pa.string()),
        ("summary", pa.string()),
        ("warnings", pa.string()),
    ]
)
_STUDIES = pa.schema(
    [
        ("request", pa.int64()),
        ("analyst", pa.string()),
        ("study", pa.string()),
        ("purpose", pa.string()),
        ("tables", pa.string()),
        ("runs_used", pa.int64()),
        ("runs", pa.int64()),
        ("until", pa.timestamp("us", tz="UTC")),
    ]
)
_DETAILS = ("leaves", "sql", "options", "privacy", "messages", "hash")
_REQUEST = pa.schema([*_REQUESTS, *((name, pa.string()) for name in _DETAILS)])


def _leaving(filed: Filed) -> str:
    """Return the requests with their numbers, and the analyst's words about the data that leave; of
    a study, what may leave with each kind of statement.
    """
    if filed.study is not None:
        return details_of_study(filed, filed.study)
    told = [
        f"{item.kind} ({'any number of times' if item.most is None else f'{item.most} times'}): "
        f"{item.what}"
        for item in filed.request.asked
        if item.what
    ]
    return "; ".join(dict.fromkeys(told))


def _told(policy: TrainingPolicy) -> str:
    """Return the rules that have a value."""
    given = {
        entry.name: entry.type.written(getattr(policy, entry.name))
        for entry in entries_of(TrainingPolicy)
        if getattr(policy, entry.name) is not None
    }
    given["conditions"] = policy.filters
    return ", ".join(f"{name} = {shown(value)}" for name, value in given.items())


@with_call_hint('sqlfl.owner(duckdb.connect("bank.duckdb")), or the path of the file')
def owner(source: Given, store: Given | None = None) -> Owner:
    """The owner's view of a database: a connection to it, or the path of its file.

    store : where policies, grants and all that is kept under them lie, so that the source is only
        read: an open connection, or the path of a database file. The first policy makes the file
        where it is not there, readable by its owner alone. They hold where the party is attached
        with it, `fed.attach(name, source, store=...)`; the source itself tells nobody of them.

    Raises Error for a store that is the source, or is open on its connection. Policies and grants
    are refused in a store where the source itself has policies.

    >>> import duckdb, sqlfl
    >>> con = duckdb.connect()
    >>> _ = con.execute("CREATE TABLE patients (pid INTEGER, age INTEGER)")
    >>> bank = sqlfl.owner(con)
    >>> _ = bank.sql("CREATE TRAINING POLICY research WITH (min_rows = 100)")
    >>> _ = bank.sql("GRANT TRAIN (age), JOIN (pid) ON patients TO 'acme' UNDER research")
    >>> print(bank.sql("SHOW GRANTS").arrow().column("roles")[0])
    TRAIN (age), JOIN (pid)
    """
    return Owner(source, store)
