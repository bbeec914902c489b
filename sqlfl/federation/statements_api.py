"""Public methods of a federation that run or list statements."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import ApprovalError, Error
from sqlfl.base.foreign_names import FEDERATION, SQL, no_attribute, with_call_hint
from sqlfl.base.progress import Progress, Tell
from sqlfl.base.result import Result
from sqlfl.contract.request import REFUSED, WAITING, Verdict
from sqlfl.contract.schema import Client
from sqlfl.coordinator.proposing import verdicts
from sqlfl.federation import listing
from sqlfl.federation.catalog import FederationCatalog
from sqlfl.federation.parties import Parties
from sqlfl.federation.planning import explain
from sqlfl.federation.relation import Relation
from sqlfl.federation.results import schema_of
from sqlfl.federation.resuming import unfinished
from sqlfl.federation.script import ScriptPart, Values, pieces, whole
from sqlfl.federation.trace import Trace
from sqlfl.governance.audit_verification import chained
from sqlfl.options.entries import Given
from sqlfl.options.types import LENGTH, written_length
from sqlfl.planner.explain.document import ExplainedPlan
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.grammar.clauses import read_path, written
from sqlfl.planner.grammar.parameters import Filled, fill
from sqlfl.planner.grammar.tokens import decoded
from sqlfl.planner.query.rules import outputs_of
from sqlfl.plots.registry import Picture
from sqlfl.store.registry import Model, Registry, card
from sqlfl.transport.base import Border, Channel


class StatementsApi(ABC):
    """Statements as text, and listings of models and parties."""

    _border: Border
    _parties: Parties
    _registry: Registry
    _progress: bool | Tell | None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, FEDERATION, dir(type(self)))

    @abstractmethod
    def model(self, name: str) -> Model: ...

    @abstractmethod
    def _statement(self) -> AbstractContextManager[None]:
        """Run one unit of work."""

    @abstractmethod
    def _answer(self, statement: st.Statement) -> Result: ...

    @abstractmethod
    def _plan(self, statement: st.Statement) -> FederatedPlan: ...

    @abstractmethod
    def _channel(self) -> Channel: ...

    @abstractmethod
    def _pause(self, seconds: float) -> None:
        """Let time pass, in which other threads may run statements."""

    @with_call_hint(SQL)
    def sql(self, text: str | bytes, parameters: Values = None) -> Result:
        """Run a statement (see docs/statements.md), or several separated by `;`. Return the last
        one's result.

        text : text, or the bytes of a file in UTF-8, or in UTF-16 or UTF-32 with a byte order mark.
        parameters : a list with the values of `?` or `$1`, or a dict with those of `$name`. They
        may stand wherever a literal may (docs/python.md).

        A failing statement changes nothing; earlier statements of a script have run. If one of them
        cannot be parsed, none runs.
        """
        with self._statement():
            read = [(piece, piece.statement()) for piece in pieces(text, parameters)]
        for piece, statement in read:
            with piece.placed(done=True), self._statement():
                result = self._answer(statement)
        return result

    def explain(self, text: str, parameters: Values = None) -> ExplainedPlan:
        """Return the plan of a TRAIN, EVALUATE or PREDICT statement, without running it.

        `print` shows a summary, its `details` everything; `parameters` as in `sql`.
        """
        with self._statement():
            piece = whole(text, parameters)
            statement = piece.statement()
            if isinstance(statement, st.ExplainStatement):
                if statement.analyze:
                    raise Error("explain runs nothing", hint="fed.sql('EXPLAIN ANALYZE ...') does")
                statement = statement.statement
            with piece.placed():
                return self._explained(statement)

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema:
        """Return the names and types of a statement's result, without running it.

        text, parameters : as in `sql`. Parties may be asked for names and types of tables, as when
        the statement is planned. Raises planning errors.

        >>> import sqlfl
        >>> with sqlfl.connect() as fed:
        ...     fed.result_schema("SHOW PARTIES").names
        ['party', 'databases', 'combined']
        """
        with self._statement():
            piece = whole(text, parameters)
            statement = piece.statement()
            with piece.placed():
                plan = lambda: self._plan(statement)  # noqa: E731
                return schema_of(statement, self._registry, plan, self._catalog)

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of the parties, in the order in which they were attached."""
        return tuple(self._parties.clients)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in the order in which they were trained."""
        return tuple(model.name for model in self._registry.all())

    def tables(self) -> Result:
        """The columns of all tables of all parties: party, schema, table, column, type.

        Parties are asked for names and types, as when a statement is planned; never for rows.
        """
        with self._statement():
            return Result(listing.columns_of_tables(self._catalog()))

    def table(self, name: str) -> Relation:
        """Return the table or view `party.table` for training and prediction: its columns, never
        its rows. Longer names are as in queries, and quoted as there. Raises PlanError for an
        unknown table.
        """
        path = read_path(name, "a table", 2, 4)
        return self._relation(Filled(name, f"FROM {written(*path)}"), path)

    def query(self, text: str, parameters: Values = None) -> Relation:
        """Return a query over tables of the parties, for training and prediction: its columns,
        never rows.

        parameters : values for `?`, `$1` or `$name`, as in `sql`. Raises ParseError if the text is
        no query, and PlanError if a statement cannot have this query.
        """
        return self._relation(fill(decoded(text, "a query"), parameters))

    def chain(self) -> Result:
        """Return every message to and from parties with policies, with its SHA-256, in a hash
        chain: for `sqlfl.verify`. Times are µs since 1970, UTC.
        """
        return chained(self._border.links())

    def audit(self) -> Result:
        """Return every message between the coordinator and a client, in order.

        Columns: seq, at, run (NULL while planning), party, client, direction ('up': from the
        client), kind, rows, columns (of the largest array), bytes (of all values), crosses (a
        border: false where the coordinator is at the client's own party).

        >>> import duckdb, sqlfl
        >>> with duckdb.connect() as con, sqlfl.connect(progress=False, at="clinic") as fed:
        ...     _ = con.execute("CREATE TABLE t AS SELECT i AS x, 2 * i AS y FROM range(9) r(i)")
        ...     fed.attach("clinic", con)
        ...     _ = fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (FROM clinic.t)")
        ...     {row["crosses"] for row in fed.audit().arrow().to_pylist()}
        {False}
        """
        return Result(self._border.audit.table())

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """Collect the SQL that clients run in answer to messages, while the context is open.

        Texts appear as they run, with the constants of your statements; keys and other secrets are
        parameters, which appear by name. Only clients in this process are traced. The requests of
        `attach`, and the coordinator's own queries over hashed keys, are left out.

        >>> import duckdb, sqlfl
        >>> with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
        ...     _ = con.execute("CREATE TABLE t AS SELECT i AS x, 2 * i AS y FROM range(9) r(i)")
        ...     fed.attach("clinic", con)
        ...     text = "TRAIN MODEL m USING linear_regression TARGET y FROM (FROM clinic.t)"
        ...     with fed.trace() as trace:
        ...         _ = fed.sql(text)
        >>> {ran.client for ran in trace}
        {'clinic/0'}
        >>> sorted({ran.message for ran in trace if "FROM t" in ran.sql})
        ['describe', 'prepare']
        """
        collected = Trace()
        with self._parties.observers.added(collected.add):
            yield collected

    def _patiently(
        self,
        statement: st.TrainModel | st.EvaluateModel | st.PredictModel | st.CheckQuery,
        run: Callable[[], Result],
    ) -> Result:
        """Return the result of `run`, once owners have approved it if WITH has the
        option `wait`.
        """
        seconds = wait_of(statement.options)
        if seconds is None:
            return run()
        name = getattr(statement, "name", "CHECK")
        return approved(
            run,
            seconds,
            lambda: verdicts(self._plan(statement), self._channel()),
            self._pause,
            lambda: Progress(name, None, self._progress),
        )

    def _explained(self, statement: st.Statement) -> ExplainedPlan:
        plan = self._plan(statement)
        return explain(plan, verdicts(plan, self._channel()), self._parties.links())

    def _relation(self, filled: Filled, path: tuple[str, ...] = ()) -> Relation:
        piece = ScriptPart(filled, filled.sql)
        with self._statement():
            probe = piece.query()
            with piece.placed():
                columns = outputs_of(probe.query, probe.sql, self._catalog(probe.query))
        start, end = probe.place
        return Relation(probe.sql[start:end], columns, self, path)

    def _shown(self, statement: st.Statement) -> Result:
        """Answer a SHOW, DESCRIBE or COMMENT statement."""
        match statement:
            case st.ShowModels():
                notes = tuple(unfinished(self._registry.all()))
                return Result(self._registry.table(), notes=notes)
            case st.CommentOnModel():
                commented = self._registry.comment(statement.name, statement.text)
                return card(commented.facts())
            case st.DescribeModel():
                model = self.model(statement.name)
                more = [("resume", text) for text in unfinished([model])]
                return card([*model.facts(), *more, ("statement", model.sql.strip())])
            case st.ShowHistory():
                return Result(self.model(statement.name).history)
            case st.ShowFeatures():
                return Result(listing.features(self.model(statement.name)))
            case st.ShowParties():
                return Result(listing.parties(self._parties.clients))
            case st.ShowTables():
                return Result(listing.tables(self._catalog()))
            case st.DescribeTable():
                return Result(listing.columns(self._catalog(), statement.path, statement.sql))
        raise Error(f"{type(statement).__name__} is not built yet")

    def _catalog(self, query: exp.Query | None = None) -> FederationCatalog:
        return FederationCatalog(self._channel(), self._parties.clients, query)


def figure_of(plan: FederatedPlan) -> Picture | None:
    """Return the plot of the plan's diagnostic; None without one."""
    return None if plan.look is None else Picture(plan.look.word, plan.name)


# A statement that waits for owners of tables to approve it, as long as its option `wait` says.

T = TypeVar("T")
FIRST, PACE, MAX_PAUSE = 1.0, 1.5, 30.0
"""Seconds before the first new attempt, factor of growth, and maximum."""


def wait_of(options: Iterable[Given]) -> float | None:
    """Return the seconds that a WITH clause lets a statement wait; None without the option, and for
    a value that planning will refuse.
    """
    return next((LENGTH.read(option.value) for option in options if option.name == "wait"), None)


def approved(
    run: Callable[[], T],
    seconds: float,
    asked: Callable[[], Mapping[Client, tuple[Verdict, ...]]],
    pause: Callable[[float], None],
    show: Callable[[], Progress],
) -> T:
    """Return the result of `run`. If it waits for owners, run it again once all have approved it
    within `seconds`. It starts from the beginning, because grants may have changed.

    `asked` returns the current verdicts and changes nothing; `pause` waits for some seconds; `show`
    makes a progress bar that names the owners. Raises ApprovalError when the time is over; other
    errors of `run`, `asked` and `pause` pass at once.
    """
    end: float | None = None
    while True:
        try:
            return run()
        except ApprovalError as error:
            end = time.monotonic() + seconds if end is None else end
            left = error
        with closing(show()) as bar:
            bar.stage(left.message)
            if not _let_go(end, asked, pause, bar):
                left.say_where(f"it has waited {written_length(seconds)} for that")
                raise left


def _let_go(
    end: float, asked: Callable[[], Mapping[Client, Any]], pause: Callable[[float], None],
    bar: Progress,
) -> bool:  # fmt: skip
    """Return whether no owner keeps it waiting any more before `end`, or one has refused it."""
    step = FIRST
    while (rest := end - time.monotonic()) > 0:
        pause(min(step, rest))
        step = min(step * PACE, MAX_PAUSE)
        told = asked()
        states = {item.state for client_verdicts in told.values() for item in client_verdicts}
        if REFUSED in states or WAITING not in states:
            return True
        bar.stage(f"waits for the owners of {', '.join(_waiting(told))}")
    return False


def _waiting(told: Mapping[Client, tuple[Verdict, ...]]) -> list[str]:
    return [
        f"{client} ({item.rule})"
        for client, client_verdicts in told.items()
        for item in client_verdicts
        if item.state == WAITING
    ]
