"""CREATE JOIN, DROP JOIN and SHOW JOINS, and statements over a join that lasts."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from sqlfl.base.errors import Error, InternalError, PartyError, PlanError, nearest
from sqlfl.contract.joins import JoinUse
from sqlfl.contract.schema import Address, Client, folded
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.federation.catalog import Described
from sqlfl.federation.parser_cross_check import confirm
from sqlfl.messages import (
    CLIENT,
    CloseJoin,
    JoinOpened,
    JoinState,
    Message,
    OpenJoin,
    Ready,
    SendJoinState,
)
from sqlfl.messages.checks import Expected, ReplyChannel, ask
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.grammar.dialect import parse

SCHEMA = pa.schema(
    [
        ("join", pa.string()),
        ("query", pa.string()),
        ("made_at", pa.timestamp("us", "UTC")),
        ("until", pa.timestamp("us", "UTC")),
        ("statements", pa.int64()),
        ("changed", pa.string()),
    ]
)
"""Columns of SHOW JOINS. `until` is NULL without a time limit. `changed` says whether a table has
changed since the join was made: 'no', 'changed: ...' or 'not known: ...' with the clients, or
'lost: ...' where a party does not keep the join any more.
"""
ID_BYTES = 8
S = TypeVar("S", bound=st.Statement)
_Query = (st.TrainModel, st.EvaluateModel, st.PredictModel, st.CheckQuery)


@dataclass(eq=False)
class LastingJoins:
    """The joins of one federation; several threads may use them. `channel` makes a channel."""

    channel: Callable[[], ReplyChannel]
    _joins: dict[str, LastingJoin] = field(default_factory=dict)
    _described: dict[str, Described] = field(default_factory=dict)
    """By the id of the join."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: st.Word, sql: str) -> LastingJoin:
        """Return the join. Raise PlanError for an unknown one, with its place in `sql`."""
        join = self._joins.get(folded(name))
        if join is not None:
            return join
        near = nearest(name, [each.name for each in self._joins.values()])
        hint = f"did you mean {near}?" if near else "CREATE JOIN name AS ( query ) makes one"
        raise PlanError(f"there is no join {name}", hint=hint, sql=sql, span=name.span)

    def expanded(self, statement: S) -> S:
        """Return the statement with the query of its join in place of the name."""
        if isinstance(statement, st.ExplainStatement):
            return replace(statement, statement=self.expanded(statement.statement))
        if not isinstance(statement, _Query):
            return statement
        name = statement.join
        if name is None or statement.place != name.span:
            return statement
        start, end = name.span
        query = self.get(name, statement.sql).sql
        # the query may end in a comment
        read = parse(f"{statement.sql[:start]}(\n{query}\n){statement.sql[end:]}")
        confirm(read)
        read = read.statement if isinstance(read, st.ExplainStatement) else read
        if type(read) is not type(statement):
            raise InternalError(f"a statement over join {name} reads otherwise with its query")
        return replace(read, join=name)

    @contextmanager
    def using(self, statement: st.Statement) -> Iterator[LastingJoin | None]:
        """Return the statement's join, of which no other statement is run meanwhile."""
        name = getattr(statement, "join", None)
        if name is None:
            yield None
            return
        join = self.get(name, getattr(statement, "sql", ""))
        with join.lock:
            if self._joins.get(folded(name)) is not join:
                raise Error(
                    f"join {name} was dropped or replaced meanwhile", hint="run the statement again"
                )
            yield join

    def described(self, statement: st.Statement) -> Described | None:
        """Return the columns of queries over the statement's join, if it names one."""
        name = getattr(statement, "join", None)
        join = None if name is None else self._joins.get(folded(name))
        return None if join is None else self._described.setdefault(join.id, Described())

    def over(self, statement: st.Statement, plan: FederatedPlan) -> FederatedPlan:
        """Return the plan over the rows of the statement's join, if it names one."""
        name = getattr(statement, "join", None)
        if name is None:
            return plan
        join = self.get(name, plan.sql)
        if plan.clients != join.clients:
            raise Error(
                f"the query of join {join.name} has other databases than when the join was made",
                hint="CREATE OR REPLACE JOIN makes it anew",
            )
        return plan.over(join.use(plan))

    # -- statements -------------------------------------------------------------------------------

    def check_free(self, statement: st.CreateJoin) -> None:
        """Raise Error if there is a join of this name, unless it is to be replaced."""
        known = self._joins.get(folded(statement.name))
        if known is not None and not statement.replace:
            raise Error(
                f"there is a join {known.name} already",
                hint="CREATE OR REPLACE JOIN makes it anew; DROP JOIN forgets it",
            )

    def create(self, statement: st.CreateJoin, plan: FederatedPlan) -> pa.Table:
        """Let all clients of the plan keep their tables as they are. If one of them does not, none
        does. Return the join's row of SHOW JOINS.
        """
        self.check_free(statement)
        join, channel = secrets.token_hex(ID_BYTES), self.channel()
        requests = {
            (client, CLIENT): OpenJoin(join, CLIENT, statement.name, plan.fragments_sql(client))
            for client in plan.clients
        }
        try:
            replies = ask(channel, requests, lambda _: Expected(JoinOpened))
        except BaseException:
            self._close(join, plan.clients)
            raise
        start, end = statement.place
        limits = [reply.seconds for reply in replies.values() if reply.seconds]
        made = LastingJoin(
            join,
            str(statement.name),
            statement.sql[start:end].strip(),
            plan.clients,
            np.unique([reply.nonce for reply in replies.values()], axis=0),
            min(limits, default=0),
            dt.datetime.now(dt.UTC),
            changed={str(client): 0 for client in plan.clients},
        )
        with self._lock:
            before = self._joins.get(folded(statement.name))
            self._joins[folded(statement.name)] = made
        if before is not None:
            with before.lock:
                self._close(before.id, before.clients)
        return _table([made])

    def drop(self, statement: st.DropJoin) -> pa.Table:
        """Forget the join, here and at all clients."""
        if statement.if_exists and folded(statement.name) not in self._joins:
            return pa.table({"dropped": pa.array([], pa.string())})
        join = self.get(statement.name, statement.sql)
        with join.lock:
            with self._lock:
                self._joins.pop(folded(statement.name), None)
            self._close(join.id, join.clients)
        return pa.table({"dropped": [join.name]})

    def listing(self) -> pa.Table:
        """Return the rows of SHOW JOINS, once the parties have said what has changed."""
        joins = list(self._joins.values())
        lost = {}
        for join in joins:
            lost[join.id] = self._look(join)
        return _table(joins, lost)

    def close(self) -> None:
        """Forget all joins, also at clients elsewhere."""
        with self._lock:
            joins, self._joins = list(self._joins.values()), {}
        for join in joins:
            self._close(join.id, join.clients)

    def _look(self, join: LastingJoin) -> str:
        """Ask the clients whether tables have changed. Return what those say that have lost it."""
        said = []
        for client in join.clients:
            request: dict[Address, Message] = {(client, CLIENT): SendJoinState(join.id, CLIENT)}
            try:
                (reply,) = ask(self.channel(), request, lambda _: Expected(JoinState)).values()
                join.changed[str(client)] = reply.changed
            except PartyError as error:
                said.append(error.message)
        return "; ".join(said)

    def _close(self, join: str, clients: tuple[Client, ...]) -> None:
        """Let the clients forget the join. One that cannot be reached forgets it by itself."""
        self._described.pop(join, None)
        requests: dict[Address, Message] = {
            (client, CLIENT): CloseJoin(join, CLIENT) for client in clients
        }
        try:
            ask(self.channel(), requests, lambda _: Expected(Ready))
        except Error:
            # where one is not attached any more, nobody was asked
            for address, request in requests.items():
                with suppress(Error):
                    ask(self.channel(), {address: request}, lambda _: Expected(Ready))


def opened(statement: st.CreateJoin, plan: FederatedPlan) -> FederatedPlan:
    """Return the plan of CREATE JOIN with what it makes."""
    return plan.over(JoinUse("", statement.name, ""))


def _table(joins: list[LastingJoin], lost: dict[str, str] | None = None) -> pa.Table:
    rows = [
        {
            "join": join.name,
            "query": join.sql,
            "made_at": join.made,
            "until": join.made + dt.timedelta(seconds=join.seconds) if join.seconds else None,
            "statements": join.uses,
            "changed": f"lost: {said}" if (said := (lost or {}).get(join.id)) else join.state,
        }
        for join in joins
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
