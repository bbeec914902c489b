"""Federation: SQL in, Result out; and its listeners, to which remote parties dial in."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from sqlfl.base.errors import Error, ModelError
from sqlfl.base.foreign_names import ATTACH, CONNECT, with_call_hint
from sqlfl.base.interrupts import deferred
from sqlfl.base.progress import Progress, Tell
from sqlfl.base.result import Result
from sqlfl.base.sanitize import line
from sqlfl.base.version import __version__
from sqlfl.contract.schema import Client
from sqlfl.coordinator.checking import check
from sqlfl.coordinator.diagnostics import evaluate, predict
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.named import THREADS, executor_of
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.proposing import verdicts
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.training import train
from sqlfl.coordinator.tuning import tune
from sqlfl.federation.catalog import FederationCatalog
from sqlfl.federation.exporting import exported, imported
from sqlfl.federation.joins import LastingJoins, opened
from sqlfl.federation.parties import Parties, RemoteClient, check_name
from sqlfl.federation.plan_cache import Planned, Plans
from sqlfl.federation.planning import (
    explain,
    plan_check,
    plan_join,
    plan_scoring,
    plan_training,
)
from sqlfl.federation.rehearsal import check_rehearsed, rehearsed
from sqlfl.federation.results import (
    DROPPED,
    PLAN,
    askable,
    checked,
    curves_of,
    tuned_result,
    weights_of,
    with_comparison,
)
from sqlfl.federation.resuming import Checkpoints, resumed, unfinished
from sqlfl.federation.saving import Saving, model_of, running
from sqlfl.federation.script import FLATTEN, TOO_DEEP
from sqlfl.federation.statements_api import StatementsApi, figure_of
from sqlfl.federation.studies import KeptStudy, Studies
from sqlfl.federation.user_warnings import Remarks
from sqlfl.party.attachment import Source, Store
from sqlfl.party.party import PartyClient
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.query.ucq import Ucq
from sqlfl.store.coordinator_file import CoordinatorFile
from sqlfl.store.registry import Model, Registry, card
from sqlfl.transport.base import Border, Channel, Transport
from sqlfl.transport.named import LOCAL, factory_of
from sqlfl.transport.network import Network

# -- listeners -------------------------------------------------------------------------------------


class Listens(Protocol):
    """Protocol of `sqlfl.service.listening.Listener`."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the parties that may dial in."""
        ...

    @property
    def analyst(self) -> str:
        """The analyst who sends requests to these parties."""
        ...

    def hurry(self) -> None:
        """Stop waiting for parties that are away."""
        ...

    def close(self) -> None:
        """Ends with `Listeners.leave`; may be called again."""
        ...


class Listeners:
    """Listeners of a federation; safe to use from several threads.

    at : party of the coordinator. forget : called with clients that have left.
    """

    def __init__(
        self, parties: Parties, at: str | None, forget: Callable[[Sequence[Client]], None]
    ) -> None:
        self._parties, self._at, self._forget = parties, at, forget
        self._lock = threading.Lock()
        self._all: list[Listens] = []
        self._closed = False

    @property
    def keeper(self) -> str:
        """See `Parties.keeper`."""
        return self._parties.keeper

    def join(self, listener: Listens) -> None:
        """Admit the listener's parties, which cannot be attached in another way.

        Raises Error if join keys could not be compared, if a party of the same name exists, or if
        the listener works for another analyst.
        """
        at, analyst = self._at, self._parties.analyst
        if at is None or not self._parties.shares:
            raise Error(
                "this federation has not the parties' secret, under which parties elsewhere hash "
                "their join keys: none of them would be found again here",
                hint='sqlfl.connect(..., party="clinic.toml"), the settings of the party whose '
                "database is attached here",
            )
        if at.lower() not in {name.lower() for name in self._parties.clients}:
            raise Error(
                f"the coordinator is at {at}, whose database is not attached",
                hint=f'fed.attach("{at}", con) comes before sqlfl.listen(...)',
            )
        if listener.analyst != analyst:
            raise Error(
                f"parties elsewhere would be asked for {listener.analyst or 'nobody'}, and those "
                f"that are attached here for {analyst or 'nobody'}",
                hint=f'sqlfl.connect(..., analyst="{listener.analyst}")',
            )
        with self._lock:
            if self._closed:
                raise Error("the federation is closed", hint="sqlfl.connect() makes a new one")
            self._parties.reserve(listener.names)
            self._all.append(listener)

    def leave(self, listener: Listens) -> None:
        """Remove the parties of a listener that has ended."""
        with self._lock:
            if listener in self._all:
                self._all.remove(listener)
                self._forget(self._parties.dismiss(listener.names))

    def hurry(self) -> None:
        """The federation is to be closed."""
        with self._lock:
            self._closed = True
            listeners = tuple(self._all)
        for listener in listeners:
            listener.hurry()

    def close(self) -> None:
        with self._lock:
            listeners = tuple(self._all)
        with ExitStack() as stack:
            for listener in listeners:
                stack.callback(listener.close)


log = logging.getLogger("sqlfl.federation.session")


# -- the federation --------------------------------------------------------------------------------


class Federation(StatementsApi):
    """A coordinator in this process and the parties attached to it.

    Use `sqlfl.connect()`. As a context manager, it closes everything that the federation opened.

    Parameters
    ----------
    path : the coordinator's file, which keeps models, their history and the audit; created if it
        does not exist. None: nothing outlives the federation.
    progress : whether to show progress of long statements; None: only in a terminal and in a
        notebook; or a callable that receives it.
    at : the coordinator's party: messages between the two cross no border. None: the coordinator
        is at none of the parties.
    transport : 'local', with all parties in this process, or a transport that another package
        offers (see `sqlfl.transport.named`).
    executor : as in `connect`; the caller keeps the ownership of an object.
    analyst : as in `connect`.
    secret : the parties' common secret for hashing join keys; None: a new one.
    wrap : a function of the transport that returns the one to use (to record or to disturb it).

    Raises Error if the file cannot be opened, is open already, is another database, or was written
    by a newer sqlfl; if `at` is no identifier; and for an unknown transport or executor.
    """

    @with_call_hint(CONNECT)
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        progress: bool | Tell | None = None,
        at: str | None = None,
        transport: str = LOCAL,
        executor: str | Executor = THREADS,
        analyst: str | None = None,
        secret: bytes | None = None,
        wrap: Callable[[Transport], Transport] | None = None,
    ) -> None:
        if at is not None:
            check_name(at, "at")
        if analyst is not None and not isinstance(analyst, str):
            raise Error(f"analyst must be a name, got {type(analyst).__name__}")
        if not (progress is None or isinstance(progress, int) or callable(progress)):
            raise Error(
                f"progress must be True, False, None or a function, got {type(progress).__name__}",
                hint="progress=False shows none",
            )
        carrier = factory_of(transport)
        self._executor = executor_of(executor)
        self._own_executor = isinstance(executor, str)
        self._progress = progress
        self._at = at
        self._state = threading.Condition()
        self._working: list[int] = []
        """The threads that run statements, once for each."""
        self._closed = False
        self._released = False
        self._file = None if path is None else CoordinatorFile(path, __version__)
        self._parties = Parties(self._file, analyst or "", secret)
        self._carrier = carrier(self._parties.handlers, self._parties.interrupts)
        self._transport: Transport = self._carrier if wrap is None else wrap(self._carrier)
        try:
            self._border = Border(self._transport, self._file, at, analyst or "")
            self._registry = Registry(self._file)
        except BaseException:
            if self._file is not None:
                self._file.close()
            raise
        kept = None if self._file is None else self._file.kept
        self._plans = Plans()
        self._joins = LastingJoins(lambda: self._border.channel())
        self._studies = Studies(self._file)
        self._saving = Saving(self._registry, self._border, kept)
        self.listeners = Listeners(self._parties, at, self._saving.forget)

    # -- parties ----------------------------------------------------------------------------------

    @with_call_hint(ATTACH)
    def attach(
        self,
        name: str,
        source: Source | Sequence[Source],
        store: Store | Sequence[Store] = None,
        *,
        combine: bool = False,
    ) -> None:
        """Make the database `source` a party, under `name` in SQL.

        source : an open DuckDB connection, the path of a database file, or tables by name,
            {"tests": df}, which are copied: pandas (without the index), polars, Arrow or Ibis
            tables. A list makes one party with several clients, whose tables are unions.
        store : a database that keeps the party's model blocks instead of the source: a path
            (created if it does not exist), an open connection, or a list with one for each client.
            Policies that the party's owner has made in it (`sqlfl.owner(source, store=...)`) hold,
            and their records are kept there. A coordinator without a file takes a store only if it
            has policies.
        combine : whether the party is one domain of trust. Its clients then send their messages to
            the party, which sums gradients, second moments and statistics before they leave. A
            statement with PRIVACY noises the sum once. The coordinator sees one client, and does
            not learn which of them has a row.

        The caller keeps an open connection: sqlfl uses cursors of it and never closes it.
        Uncommitted changes and temporary tables are not visible. A path is opened read-only, unless
        the coordinator has a file and the source must keep the blocks; then it is opened for
        writing, if the file permits it.

        Raises Error for a name in use or not an identifier. Raises PartyError for a closed
        connection, and for a file that is no database, is locked by another process, or is open
        here in another mode. Raises PartyError also for unreliable policies: in a store that is
        read-only, or that queries over the tables could read, and in source and store at once.
        Policies in a read-only source alone refuse every statement. After an error nothing stays
        open, and no file is left behind.
        """
        with self._statement():
            self._parties.attach(name, source, store, self._saving.collect, combine=combine)

    def detach(self, name: str) -> None:
        """Remove the party: statements no longer see its tables, and files opened by path are
        closed.

        Lasting models stay, and work again once the party is attached under the same name, in any
        case. Raises Error for an unknown party, while another thread runs a statement with it, and
        if a temporary model has a block there.
        """
        with self._statement():
            self._parties.detach(name, self._saving.leave)

    def admit(self, name: str, ends: Mapping[int, RemoteClient]) -> None:
        """Admit a party with remote clients, by number from 0, under `name` in SQL.

        A party is admitted once; the caller runs the connections. Raises Error for a name that is
        no identifier, and if the party does not answer.
        """
        with self._statement():
            self._parties.admit(name, ends, self._saving.collect)

    # -- statements -------------------------------------------------------------------------------

    def _answer(self, statement: st.Statement) -> Result:
        statement = self._joins.expanded(statement)
        match statement:
            case st.ExplainStatement(analyze=True):
                return self._rehearse(statement)
            case st.ExplainStatement():
                plan = self._explained(statement.statement)
                shown = plan.details if statement.verbose else plan
                text = str(shown)
                table = pa.table({"plan": text.splitlines()}, PLAN)
                return Result(table, text=text, markup=shown._repr_html_)
            case st.TrainModel():
                return self._patiently(statement, lambda: self._train(statement))
            case st.ResumeModel():
                return self._resume(statement.name)
            case st.PredictModel():
                return self._patiently(statement, lambda: self._score(statement, predict))
            case st.EvaluateModel():
                return self._patiently(statement, lambda: self._score(statement, evaluate))
            case st.CheckQuery():
                return self._patiently(statement, lambda: self._check(statement))
            case st.WeightsOfModel():
                return weights_of(statement.name, self._saving, self._channel())
            case st.CurvesOfModel():
                return curves_of(statement, self._saving, self._channel())
            case st.ExportModel():
                return exported(statement, self._saving, self._servers)
            case st.ImportModel():
                self._registry.check_free(statement.name, replace=statement.replace, verb="IMPORT")
                return imported(statement, self._saving, self._servers)
            case st.DropModel():
                return self._drop(statement)
            case st.CreateJoin():
                return self._create_join(statement)
            case st.DropJoin():
                return Result(self._joins.drop(statement))
            case st.ShowJoins():
                return Result(self._joins.listing())
            case st.CreateStudy() | st.UseStudy() | st.DropStudy() | st.ShowStudies():
                return self._study(statement)
        return self._shown(statement)

    def model(self, name: str) -> Model:
        """Return the model of this name. Raise ModelError for an unknown one."""
        model = self._registry.get(name)
        changed = self._parties.changed_since(model, self._parties.clients)
        model_now = replace(model, remarks=(*model.remarks, *changed))
        return askable(model_now, self._registry, self.sql)

    def close(self) -> None:
        """Drop temporary models; close the coordinator's file and the files of attached parties.

        Statements in other threads end with an error at their next exchange. A model that is being
        saved is saved first.
        """
        this_thread = threading.get_ident()
        with self._state:
            self._closed = True
            self._state.notify_all()
        self.listeners.hurry()
        with self._state:
            self._state.wait_for(lambda: all(thread == this_thread for thread in self._working))
        self.listeners.close()  # their threads use this state
        with self._state:
            if self._released:
                return
            self._released = True
            self._release()

    def _release(self) -> None:
        self._joins.close()
        with ExitStack() as stack:
            if self._file is not None:
                stack.callback(self._file.close)
            stack.callback(self._border.close)
            stack.callback(self._parties.close)
            stack.callback(self._carrier.close)
            if self._own_executor:
                stack.callback(self._executor.close)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parties = ", ".join(
            name
            if len(clients) == 1
            else f"{name} ({len(clients)} clients{', combined' * clients[0].combined})"
            for name, clients in self._parties.clients.items()
        )
        models = ", ".join(model.name for model in self._registry.all())
        kind = "federation" if self._file is None else f"federation in {self._file.path.name}"
        kind += "" if self._at is None else f" at {self._at}"
        return line(f"<sqlfl {kind}: parties: {parties or 'none'}; models: {models or 'none'}>")

    @property
    def _servers(self) -> dict[Client, PartyClient]:
        return self._parties.servers

    # -- planning ---------------------------------------------------------------------------------

    def _plan(
        self,
        statement: st.Statement,
        models: Callable[[str], Model] | None = None,
        remark: Callable[[str], None] = lambda _: None,
    ) -> FederatedPlan:
        """Plan a statement. `models` returns models by name; `remark` receives warnings."""
        statement = self._joins.expanded(statement)
        plan = self._joins.over(statement, self._planned(statement, models, remark))
        return self._studies.within(plan)

    def _planned(
        self,
        statement: st.Statement,
        models: Callable[[str], Model] | None,
        remark: Callable[[str], None],
    ) -> FederatedPlan:
        """Plan a statement, as if its join were made for it alone."""
        models = self._registry.get if models is None else models
        channel, clients = self._channel(), self._parties.clients
        described = self._joins.described(statement)
        try:
            match statement:
                case st.TrainModel():
                    catalog = FederationCatalog(channel, clients, statement.query, described)
                    return self._plans.plan(
                        statement,
                        catalog,
                        remark,
                        lambda asked, say: plan_training(
                            statement, asked, models, self._at, say, self._convert(statement)
                        ),
                    )
                case st.PredictModel() | st.EvaluateModel():
                    model = models(statement.name)
                    self._saving.check_attached(model, statement.query)
                    catalog = FederationCatalog(channel, clients, statement.query, described)
                    return self._plans.plan(
                        statement,
                        catalog,
                        remark,
                        lambda asked, say: plan_scoring(
                            statement, model, asked, self._at, say, self._convert(statement)
                        ),
                        model.run,
                    )
                case st.CheckQuery():
                    catalog = FederationCatalog(channel, clients, statement.query, described)
                    return plan_check(statement, catalog, self._at, self._convert(statement))
                case st.CreateJoin():
                    catalog = FederationCatalog(channel, clients, statement.query)
                    return opened(statement, plan_join(statement, catalog, self._at))
        except RecursionError:
            raise Error(TOO_DEEP, hint=FLATTEN) from None
        raise Error(
            "the statement has no plan to explain",
            hint="statements over a query have: CHECK, TRAIN, TUNE, EVALUATE, PREDICT, METRICS OF "
            "MODEL and those like it, and CREATE JOIN",
        )

    def _convert(self, statement: Planned | st.CheckQuery) -> Callable[..., Ucq]:
        """Return `to_ucq` for the statement's query, with a cache."""
        return partial(self._plans.ucq, statement.place)

    # -- running ----------------------------------------------------------------------------------

    def _resume(self, name: str) -> Result:
        before = self._registry.get(name)
        statement = resumed(before)
        return self._patiently(statement, lambda: self._train(statement, before))

    def _train(self, statement: st.TrainModel, before: Model | None = None) -> Result:
        """Run TRAIN or TUNE. `before`: the model to resume."""
        if statement.if_not_exists and statement.name in self._registry:
            return card(self._registry.get(statement.name).facts())
        verb = "TUNE" if isinstance(statement, st.TuneModel) else "TRAIN"
        self._registry.check_free(statement.name, replace=statement.replace, verb=verb)
        with ExitStack() as stack:
            warm: list[Model] = []

            def models(name: str) -> Model:
                warm.append(stack.enter_context(self._saving.held(name)))
                return warm[-1]

            remarks = Remarks()
            lasting = stack.enter_context(self._joins.using(statement))
            plan = self._plan(statement, models, remarks.add)
            self._remark(plan, remarks)
            for note in plan.notes:
                remarks.add(note)
            if not statement.if_not_exists:
                self._saving.check_name(statement, plan)
            start = warm[0] if warm else None
            return self._run_training(statement, plan, start, remarks, before, lasting)

    def _remark(self, plan: FederatedPlan, remarks: Remarks, model: Model | None = None) -> None:
        """Add warnings about the plan's parties, and about changes since `model` was trained."""
        parties = dict.fromkeys(client.party for client in plan.clients)
        changed = [] if model is None else self._parties.changed_since(model, parties)
        for text in (*self._parties.counted_twice(plan), *changed):
            remarks.add(text)

    def _run_training(
        self,
        statement: st.TrainModel,
        plan: FederatedPlan,
        start: Model | None,
        remarks: Remarks,
        before: Model | None,
        lasting: LastingJoin | None,
    ) -> Result:
        run = secrets.token_hex(8)
        channel = self._channel(plan.training.network)
        epochs, tolerance = plan.training.epochs, plan.training.tolerance
        points = Checkpoints(statement, plan, self._saving, lambda: remarks.texts, before)
        first = points.first
        shown = self._progress, tolerance, channel.sent, first
        progress = Progress(statement.name, epochs + first if epochs else epochs, *shown)
        try:
            with self._running(plan, run):
                try:
                    if plan.tuning is None:
                        told = progress, start, remarks.add
                        rest = self._executor, points.keep, lasting
                        trained = train(plan, channel, run, *told, *rest)
                    else:
                        told_ = progress, remarks.add, self._executor, lasting
                        tuned = tune(plan, channel, run, *told_)
                        trained = with_comparison(tuned, plan.tuning)
                        plan = replace(plan, options=tuned.best.options)
                finally:
                    progress.close()
            for text in () if lasting is None else lasting.used():
                remarks.add(text)
            model = model_of(statement, plan, trained, run, self._saving, remarks.texts)
            model = points.whole(model)
            self._saving.keep(model, replace=points.replaces)
            if plan.tuning is not None:
                return tuned_result(model, tuned, plan.tuning)
        except BaseException as error:
            self._saving.discard(run, plan.databases)
            if isinstance(error, Error):
                points.told(error)
            if not isinstance(error, ModelError) or not statement.if_not_exists:
                raise
            if statement.name not in self._registry:
                raise
            model = self._registry.get(statement.name)  # another thread has trained it meanwhile
        return card([*model.facts(), *(("resume", text) for text in unfinished([model]))])

    def _score(
        self,
        statement: st.PredictModel | st.EvaluateModel,
        work: Callable[[FederatedPlan, Model, Channel, str, Scoring], pa.Table],
    ) -> Result:
        run = secrets.token_hex(8)
        with (
            self._saving.held(statement.name) as model,
            self._joins.using(statement) as lasting,
        ):
            remarks = Remarks()
            plan = self._plan(statement, lambda _: model, remarks.add)
            self._remark(plan, remarks, model)
            channel = self._channel()
            progress = Progress(statement.name, None, self._progress, sent=channel.sent)
            try:
                with self._running(plan, run):
                    notes = list(plan.notes)
                    said = Scoring(progress.stage, remarks.add, notes.append, lasting)
                    table = work(plan, model, channel, run, said)
                    notes += () if lasting is None else lasting.used()
                    return Result(table, notes=notes, figure=figure_of(plan))
            finally:
                progress.close()

    def _check(self, statement: st.CheckQuery) -> Result:
        run, remarks = secrets.token_hex(8), Remarks()
        with self._joins.using(statement) as lasting:
            plan = self._plan(statement)
            self._remark(plan, remarks)
            channel = self._channel()
            progress = Progress("CHECK", None, self._progress, sent=channel.sent)
            try:
                with self._running(plan, run):
                    table = check(plan, channel, run, Scoring(progress.stage, lasting=lasting))
                    for text in () if lasting is None else lasting.used():
                        remarks.add(text)
                    return checked(table)
            finally:
                progress.close()

    def _rehearse(self, statement: st.ExplainStatement) -> Result:
        rehearsable, remarks = check_rehearsed(statement), Remarks()
        rehearsable = replace(rehearsable, join=None)  # nothing is kept of made-up rows
        plan = self._plan(rehearsable, remark=remarks.add)
        self._remark(plan, remarks)
        shown = explain(plan, verdicts(plan, self._channel()), self._parties.links())
        name = f"{plan.name or 'CHECK'}, rehearsed"
        return rehearsed(
            shown,
            self._border,
            self._check_open,
            lambda: Progress(name, plan.epochs, self._progress),
            self._executor,
            remarks.texts,
            verbose=statement.verbose,
        )

    def _running(self, plan: FederatedPlan, run: str) -> AbstractContextManager[None]:
        self._parties.check_secrets(plan.clients)
        self._border.govern(plan.run.governed)
        return running(plan, run, self._border.channel)  # also while closing

    @contextmanager
    def _statement(self) -> Iterator[None]:
        """Run one unit of work, which `close` waits for. Raise Error if the federation is closed.

        The audit is written to the coordinator's file at the end, also if the block fails. If the
        file cannot be written (its disk is full), the records wait for the next statement, so that
        reading still works. `close` raises if they still wait then.
        """
        thread = threading.get_ident()
        with self._state:
            self._check_open()
            self._working.append(thread)
        try:
            yield
        finally:
            with deferred():
                try:
                    self._border.flush()
                except Error as error:
                    log.warning("the audit is not written yet: %s", error)
                with self._state:
                    self._working.remove(thread)
                    self._state.notify_all()

    def _create_join(self, statement: st.CreateJoin) -> Result:
        self._joins.check_free(statement)
        plan = self._plan(statement)
        self._parties.check_secrets(plan.clients)
        self._border.govern(plan.run.governed)
        return Result(self._joins.create(statement, plan))

    def _study(
        self, statement: st.CreateStudy | st.UseStudy | st.DropStudy | st.ShowStudies
    ) -> Result:
        """Answer a statement about studies, with a row for each client that has tables of one."""
        catalog = self._catalog()
        match statement:
            case st.CreateStudy():
                shown: Iterable[KeptStudy] = (self._studies.create(statement, catalog),)
            case st.UseStudy(name):
                self._studies.use(name)
                shown = self._studies.current
            case st.DropStudy():
                self._studies.drop(statement)
                shown = ()
            case st.ShowStudies():
                shown = self._studies.all
        govern = self._border.govern
        return Result(self._studies.listing(shown, self._channel(), catalog, govern))

    # -- models -----------------------------------------------------------------------------------

    def _drop(self, statement: st.DropModel) -> Result:
        if statement.if_exists and statement.name not in self._registry:
            return Result(DROPPED.empty_table())
        model = self._saving.drop(statement.name)
        return Result(pa.table({"dropped": [model.name]}, DROPPED))

    def _channel(self, network: Network | None = None) -> Channel:
        """Return a channel that stops once the federation is being closed."""
        return self._border.channel(self._check_open, network)

    def _pause(self, seconds: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._closed, seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise Error("the federation is closed", hint="sqlfl.connect() makes a new one")
