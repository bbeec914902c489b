"""Federation: SQL in, Result out."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import duckdb
import pyarrow as pa

from sqlfl.catalog import FederationCatalog
from sqlfl.coordinator.scoring import evaluate, predict
from sqlfl.coordinator.training import Trained, train
from sqlfl.errors import Error, ModelError, ParseError, PartyError
from sqlfl.messages import CLIENT, Drop, Finish, Message
from sqlfl.party import PartyClient, Secrets
from sqlfl.planner import statements as st
from sqlfl.planner.dialect import parse
from sqlfl.planner.federated import FederatedPlan
from sqlfl.planning import plan_scoring, plan_training
from sqlfl.progress import Progress
from sqlfl.registry import (
    NO_PRIVACY,
    Model,
    ModelBlock,
    Registry,
    facts_to_html,
    facts_to_text,
)
from sqlfl.result import Result
from sqlfl.schema import Client
from sqlfl.transport.base import Address, Audit, Channel, Transport
from sqlfl.transport.local import LocalTransport

Source: TypeAlias = duckdb.DuckDBPyConnection | str | os.PathLike[str]


class Federation:
    """A coordinator in this process and the parties attached to it.

    Use `sqlfl.connect()`. Also a context manager: leaving it closes what the federation opened.

    Parameters
    ----------
    progress : show progress of long statements; None: only where standard error is a terminal.
    wrap : given the transport, returns the one to use instead (to record or to disturb it).
    """

    def __init__(
        self,
        *,
        progress: bool | None = None,
        wrap: Callable[[Transport], Transport] | None = None,
    ) -> None:
        self._progress = progress
        self._secret = secrets.token_bytes(32)
        self._clients: dict[str, tuple[Client, ...]] = {}
        self._servers: dict[Client, PartyClient] = {}
        self._handlers: dict[Client, Callable[[pa.Buffer], pa.Buffer]] = {}
        self._opened: list[duckdb.DuckDBPyConnection] = []
        self._local = LocalTransport(self._handlers)
        self._transport: Transport = self._local if wrap is None else wrap(self._local)
        self._audit = Audit()
        self._registry = Registry()
        self._closed = False

    # -- parties ----------------------------------------------------------------------------------

    def attach(self, name: str, source: Source | Sequence[Source]) -> None:
        """Make the database `source` a party, under `name` in SQL.

        source : an open DuckDB connection, the path of a database file (opened read-only), or a
            list of these: one party with several clients, whose tables are the unions of theirs.

        An open connection stays the caller's: sqlfl works on cursors of it and never closes it.
        What its transaction has not committed, and its temporary tables, are not seen. Raises
        Error for a name in use or not an identifier, and PartyError for a closed connection or a
        file that is not a database.
        """
        self._check_open()
        if not name.isidentifier():
            raise Error(f"party name {name!r} is not an identifier", hint="use letters, digits, _")
        if name.lower() in (known.lower() for known in self._clients):
            raise Error(f"a party named {name} is attached already", hint="choose another name")
        sources = list(source) if isinstance(source, (list, tuple)) else [source]
        if not sources:
            raise Error(f"party {name} has no client", hint="attach at least one connection")
        organisation = secrets.token_bytes(32)
        opened: list[duckdb.DuckDBPyConnection] = []
        servers: dict[Client, PartyClient] = {}
        try:
            for index, item in enumerate(sources):
                client = Client(name, index)
                con = self._connection(client, item, opened)
                servers[client] = PartyClient(client, con, Secrets(self._secret, organisation))
        except BaseException:
            for con in opened:
                con.close()
            raise
        self._opened += opened
        self._servers |= servers
        self._handlers |= {client: server.handle for client, server in servers.items()}
        self._clients[name] = tuple(servers)

    @staticmethod
    def _connection(
        client: Client, source: object, opened: list[duckdb.DuckDBPyConnection]
    ) -> duckdb.DuckDBPyConnection:
        if isinstance(source, duckdb.DuckDBPyConnection):
            return source
        if not isinstance(source, (str, os.PathLike)):
            raise Error(
                f"party {client} must be a DuckDB connection or a path, got "
                f"{type(source).__name__}",
                hint="duckdb.connect(...)",
            )
        path = Path(source)
        if not path.is_file():
            raise PartyError(str(client), f"there is no database file {path}")
        try:
            con = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as error:
            raise PartyError(str(client), f"cannot open {path}: {error}") from error
        opened.append(con)
        return con

    # -- statements -------------------------------------------------------------------------------

    def sql(self, text: str) -> Result:
        """Run one statement (see docs/statements.md). A statement that fails changes nothing."""
        self._check_open()
        statement = _parsed(text)
        match statement:
            case st.ExplainStatement():
                plan = self._plan(statement.statement)
                table = pa.table({"plan": str(plan).splitlines()})
                return Result(table, text=str(plan), markup=plan._repr_html_())
            case st.TrainModel():
                return self._train(statement)
            case st.PredictModel():
                return self._score(statement, predict)
            case st.EvaluateModel():
                return self._score(statement, evaluate)
            case st.ShowModels():
                return self._show()
            case st.DescribeModel():
                model = self._registry.get(statement.name)
                return _card([*model.facts(), ("statement", model.sql.strip())])
            case st.DropModel():
                return self._drop(statement)
        raise Error(f"{type(statement).__name__} is not built yet")

    def explain(self, text: str) -> FederatedPlan:
        """The plan of a TRAIN, EVALUATE or PREDICT statement, which is not run."""
        self._check_open()
        statement = _parsed(text)
        if isinstance(statement, st.ExplainStatement):
            statement = statement.statement
        return self._plan(statement)

    def model(self, name: str) -> Model:
        """The model of that name. Raises ModelError where there is none."""
        return self._registry.get(name)

    def audit(self) -> Result:
        """Every message that crossed a border, in order.

        Columns: seq, at, run (NULL while planning), party, client, direction ('up': from the
        client), kind, rows, columns (of the largest array), bytes (of all values).
        """
        return Result(self._audit.table())

    def close(self) -> None:
        """Forget models, close cursors and the databases that were attached by path."""
        if self._closed:
            return
        self._closed = True
        self._local.close()
        for server in self._servers.values():
            server.close()
        for con in self._opened:
            con.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        parties = ", ".join(
            name if len(clients) == 1 else f"{name} ({len(clients)} clients)"
            for name, clients in self._clients.items()
        )
        models = ", ".join(model.name for model in self._registry.all())
        return f"<sqlfl federation: parties: {parties or 'none'}; models: {models or 'none'}>"

    # -- planning ---------------------------------------------------------------------------------

    def _plan(self, statement: st.Statement) -> FederatedPlan:
        catalog = FederationCatalog(Channel(self._transport, self._audit), self._clients)
        try:
            match statement:
                case st.TrainModel():
                    return plan_training(statement, catalog)
                case st.PredictModel() | st.EvaluateModel():
                    model = self._registry.get(statement.name)
                    return plan_scoring(statement, model, catalog)
        except RecursionError:
            raise Error(TOO_DEEP, hint=FLATTEN) from None
        raise Error("only TRAIN, EVALUATE and PREDICT have a plan to explain")

    # -- running ----------------------------------------------------------------------------------

    def _train(self, statement: st.TrainModel) -> Result:
        if statement.name in self._registry and not statement.replace:
            if statement.if_not_exists:
                return _card(self._registry.get(statement.name).facts())
            raise ModelError(
                f"there is a model {statement.name} already",
                hint=f"TRAIN OR REPLACE MODEL {statement.name}, or choose another name",
            )
        plan = self._plan(statement)
        run = secrets.token_hex(8)
        channel = Channel(self._transport, self._audit)
        epochs = int(str(plan.options["epochs"]))
        progress = Progress(statement.name, epochs, self._progress)
        saved = False
        try:
            trained = train(plan, channel, run, progress)
            saved = True
        finally:
            progress.close()
            self._finish(plan, run, keep=saved)
        model = _model(statement, plan, trained, run)
        previous = self._registry.put(model)
        if previous is not None:
            self._forget(previous)
        return _card(model.facts())

    def _score(
        self,
        statement: st.PredictModel | st.EvaluateModel,
        work: Callable[[FederatedPlan, Model, Channel, str], pa.Table],
    ) -> Result:
        plan = self._plan(statement)
        model = self._registry.get(statement.name)
        run = secrets.token_hex(8)
        try:
            return Result(work(plan, model, Channel(self._transport, self._audit), run))
        finally:
            self._finish(plan, run)

    def _finish(self, plan: FederatedPlan, run: str, *, keep: bool = True) -> None:
        """Drop the run's snapshots; where it failed (`keep` false), its saved blocks too.

        Each client is told apart from the others, so that one that cannot answer leaves no other
        with a snapshot; the first error in flight is the one that the user sees.
        """
        for client in plan.specifications:
            requests: list[Message] = [Finish(run, CLIENT)]
            if not keep:
                requests.insert(0, Drop(run, CLIENT, run))
            for request in requests:
                channel = Channel(self._transport, self._audit)
                try:
                    channel.exchange({(client, CLIENT): request})
                except PartyError:
                    if keep:
                        raise

    def _forget(self, model: Model) -> None:
        requests: dict[Address, Message] = {
            (client, CLIENT): Drop(model.run, CLIENT, model.run)
            for block in model.blocks
            for client in block.clients
        }
        Channel(self._transport, self._audit).exchange(requests)

    # -- models -----------------------------------------------------------------------------------

    def _show(self) -> Result:
        models = self._registry.all()
        table = pa.table(
            {
                "name": pa.array([m.name for m in models], pa.string()),
                "kind": pa.array([m.kind for m in models], pa.string()),
                "target": pa.array([m.target for m in models], pa.string()),
                "rows": pa.array([m.metrics["rows"] for m in models], pa.int64()),
                "loss": pa.array([m.metrics["loss"] for m in models], pa.float64()),
            }
        )
        return Result(table)

    def _drop(self, statement: st.DropModel) -> Result:
        if statement.if_exists and statement.name not in self._registry:
            return Result(pa.table({"dropped": pa.array([], pa.string())}))
        model = self._registry.remove(statement.name)
        self._forget(model)
        return Result(pa.table({"dropped": [model.name]}))

    def _check_open(self) -> None:
        if self._closed:
            raise Error("the federation is closed", hint="sqlfl.connect() makes a new one")


def connect(path: None = None, *, progress: bool | None = None) -> Federation:
    """A federation whose coordinator lives in this process and keeps nothing.

    progress : show progress of long statements; None: only where standard error is a terminal.

    >>> import sqlfl
    >>> with sqlfl.connect() as fed:
    ...     print(fed)
    <sqlfl federation: parties: none; models: none>
    """
    if path is not None:
        raise Error(
            "a coordinator that keeps its models in a file is not built yet",
            hint="sqlfl.connect() without a path",
        )
    return Federation(progress=progress)


TOO_DEEP = "the statement is nested too deeply"
FLATTEN = "write long chains of OR as IN (...), and long expressions as views of the party"


def _parsed(text: str) -> st.Statement:
    if not isinstance(text, str):
        raise Error(f"a statement must be text, got {type(text).__name__}")
    try:
        return parse(text)
    except RecursionError:
        raise ParseError(TOO_DEEP, hint=FLATTEN) from None


def _card(facts: list[tuple[str, str]]) -> Result:
    names, values = zip(*facts, strict=True)
    table = pa.table({"property": list(names), "value": list(values)})
    return Result(table, text=facts_to_text(facts), markup=facts_to_html(facts))


def _model(statement: st.TrainModel, plan: FederatedPlan, trained: Trained, run: str) -> Model:
    return Model(
        name=statement.name,
        kind=plan.kind,
        target=statement.target,
        target_type=plan.ucq.target_type or "",
        features=tuple(name for name in plan.ucq.columns if name != plan.ucq.target),
        algorithm=plan.algorithm,
        options=dict(plan.options),
        sql=statement.sql,
        run=run,
        blocks=tuple(
            ModelBlock(
                slot.index,
                slot.name,
                tuple((f.name, f.kind, f.width) for f in slot.features),
                slot.clients,
            )
            for slot in plan.ucq.slots
            if slot.features
        ),
        intercept=trained.intercept,
        classes=trained.classes,
        history=trained.history,
        metrics=trained.metrics,
        privacy=NO_PRIVACY,
        interrupted=trained.interrupted,
        converged=trained.converged,
    )
