"""CREATE STUDY, USE STUDY, SHOW STUDIES and DROP STUDY: studies that owners approve once."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error, PlanError, nearest
from sqlfl.contract.request import ALLOWED, REFUSED, Study, StudyColumns, StudyTable, Verdict
from sqlfl.contract.schema import Catalog, Client, Table, folded
from sqlfl.coordinator.proposing import propose_study
from sqlfl.federation.listing import tables_at
from sqlfl.messages.checks import ReplyChannel
from sqlfl.options.studies import resolve_study
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st

SCHEMA = pa.schema(
    [
        ("study", pa.string()),
        ("purpose", pa.string()),
        ("in_use", pa.bool_()),
        ("client", pa.string()),
        ("state", pa.string()),
        ("rule", pa.string()),
        ("runs", pa.int64()),
        ("until", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of SHOW STUDIES, with a row for each client that has tables of the study. `state` is
'allowed', 'waiting', 'refused' or 'not attached', and `rule` says why.
"""


@dataclass(frozen=True)
class StudyPart:
    """A study as one client's owner reads it: with the tables of that client alone."""

    party: str
    index: int
    study: Study


@dataclass(frozen=True)
class KeptStudy:
    name: str
    purpose: str
    parts: tuple[StudyPart, ...]


class StudyShelf(Protocol):
    """Permanent store of studies, as JSON by their folded names."""

    def studies(self) -> dict[str, str]: ...

    def put_study(self, name: str, document: str) -> None: ...

    def remove_study(self, name: str) -> None: ...


class Studies:
    """The studies of one federation, and the one in use; several threads may use them.

    Raises Error for a shelf whose studies cannot be read.
    """

    def __init__(self, shelf: StudyShelf | None) -> None:
        self._shelf, self._lock = shelf, threading.Lock()
        self._current: str | None = None
        self._studies: dict[str, KeptStudy] = {}
        for name, document in ({} if shelf is None else shelf.studies()).items():
            try:
                self._studies[name] = from_json(KeptStudy, document)
            except ValueError as error:
                raise Error(
                    f"what the coordinator's file holds of study {name} cannot be read ({error})",
                    hint="restore it from a backup",
                ) from error

    def within(self, plan: FederatedPlan) -> FederatedPlan:
        """Return the plan of a statement within the study in use, if there is one."""
        current = self._current
        if current is None or not plan.run.governed:
            return plan
        return replace(plan, run=replace(plan.run, study=current))

    def create(self, statement: st.CreateStudy, catalog: Catalog) -> KeptStudy:
        """Keep the study, which its owners have not seen yet. Raise OptionError and PlanError with
        the place in the statement, and Error for a name in use.
        """
        limits = resolve_study(statement.options, statement.sql, dt.datetime.now(dt.UTC))
        assert limits.until is not None
        name = folded(statement.name)
        with self._lock:
            if name in self._studies and not statement.replace:
                raise Error(
                    f"there is a study {statement.name} already",
                    hint=f"CREATE OR REPLACE STUDY {statement.name}, or choose another name",
                )
        whole = Study(
            name, statement.purpose, (), limits.statements, limits.kinds, limits.algorithms,
            limits.epsilon, limits.delta, limits.label_epsilon, limits.rounds, limits.runs,
            limits.until.astimezone(dt.UTC),
        )  # fmt: skip
        tables = _tables(statement, catalog)
        parts = tuple(
            StudyPart(client.party, client.index, replace(whole, tables=client_tables))
            for client, client_tables in tables.items()
        )
        study = KeptStudy(name, statement.purpose, parts)
        with self._lock:
            if self._shelf is not None:
                self._shelf.put_study(name, to_json(study))
            self._studies[name] = study
        return study

    def use(self, name: str | None) -> None:
        """Run the next statements within this study; None for none. Raise Error if there is no such
        study.
        """
        self._current = None if name is None else self._get(name).name

    def drop(self, statement: st.DropStudy) -> None:
        """Forget the study. Raise Error if there is no such study."""
        if statement.if_exists and folded(statement.name) not in self._studies:
            return
        with self._lock:
            name = self._get(statement.name).name
            if self._shelf is not None:
                self._shelf.remove_study(name)
            del self._studies[name]
            if self._current == name:
                self._current = None

    @property
    def current(self) -> tuple[KeptStudy, ...]:
        """The study in use; none without one."""
        return () if self._current is None else (self._studies[self._current],)

    @property
    def all(self) -> tuple[KeptStudy, ...]:
        return tuple(self._studies.values())

    def listing(
        self,
        studies: Iterable[KeptStudy],
        channel: ReplyChannel,
        catalog: Catalog,
        govern: Callable[[Iterable[Client]], None],
    ) -> pa.Table:
        """Return a row for each study and client, with its owner's decision, which is asked for.

        govern : is told the clients with policies, before they are asked.
        """
        rows = [
            {
                "study": study.name,
                "purpose": study.purpose,
                "in_use": study.name == self._current,
                "client": str(Client(part.party, part.index)),
                "state": state,
                "rule": rule,
                "runs": part.study.runs,
                "until": part.study.until,
            }
            for study in studies
            for part, state, rule in _states(study, channel, catalog, govern)
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _get(self, name: str) -> KeptStudy:
        study = self._studies.get(folded(name))
        if study is None:
            near = nearest(name, self._studies)
            hint = f"did you mean {near}?" if near else "CREATE STUDY name ... describes one"
            raise Error(f"there is no study {name}", hint=hint)
        return study


def _states(
    study: KeptStudy,
    channel: ReplyChannel,
    catalog: Catalog,
    govern: Callable[[Iterable[Client]], None],
) -> Iterator[tuple[StudyPart, str, str]]:
    """Yield each part with its owner's decision and the rule behind it."""
    attached = {
        (attached_client.party, attached_client.index): attached_client
        for party in catalog.parties()
        for attached_client in catalog.clients(party)
    }
    clients = {part: attached.get((part.party, part.index)) for part in study.parts}
    asked = {
        client: part.study
        for part, client in clients.items()
        if client is not None and catalog.governed(client)
    }
    govern(asked)
    verdicts = propose_study(asked, channel)
    for part, client in clients.items():
        if client is None:
            yield part, "not attached", ""
        elif client not in asked:
            yield part, ALLOWED, "its owner has no policy"
        else:
            verdict = _strictest(verdicts[client])
            yield part, verdict.state, verdict.rule


def _strictest(verdicts: tuple[Verdict, ...]) -> Verdict:
    refused = (item for item in verdicts if item.state == REFUSED)
    return next(refused, verdicts[0] if verdicts else Verdict(-1, "", ALLOWED, ""))


def _tables(statement: st.CreateStudy, catalog: Catalog) -> dict[Client, tuple[StudyTable, ...]]:
    """Return each client's tables of the study. Raise PlanError for a table or a column that is
    not there, and for a table that is written twice.
    """
    tables: dict[Client, tuple[StudyTable, ...]] = {}
    for use in statement.tables:
        for client, table in tables_at(catalog, use.table, statement.sql):
            path = (table.catalog or "", table.schema or "", table.name)
            if any(listed.table == path for listed in tables.get(client, ())):
                raise PlanError(
                    f"{'.'.join(use.table.parts)} is written twice",
                    hint="write all roles of a table before its ON",
                    sql=statement.sql,
                    span=use.table.span,
                )
            roles = tuple(
                StudyColumns(role, tuple(_column(word, table, statement) for word in words))
                for role, words in use.roles
            )
            tables[client] = (*tables.get(client, ()), StudyTable(path, roles))
    return tables


def _column(word: st.Word, table: Table, statement: st.CreateStudy) -> str:
    names = [column.name for column in table.columns]
    match = next((name for name in names if folded(name) == folded(word)), None)
    if match is None:
        near = nearest(word, names)
        raise PlanError(
            f"table {table.name} has no column {word} that you may see",
            hint=f"did you mean {near}?" if near else f"you see {', '.join(names)}",
            sql=statement.sql,
            span=word.span,
        )
    return match
