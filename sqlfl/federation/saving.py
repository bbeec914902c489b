"""Save and drop models in two phases, so that each model is complete or absent.

Saving: every client writes its blocks under the run's id; then the coordinator writes its row,
which makes the model exist; then the blocks of a replaced model are deleted. Dropping: first the
row, then the blocks. Blocks without a row are deleted when their client is attached.

`running` is the context of a run, which leaves nothing else at the clients.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import duckdb
from sqlglot import exp

from sqlfl.base.errors import Error, ModelError, PartyError, PolicyError
from sqlfl.base.interrupts import deferred
from sqlfl.base.sanitize import clipped, line
from sqlfl.base.threads import single
from sqlfl.base.version import __version__
from sqlfl.contract.schema import Client
from sqlfl.coordinator import expected
from sqlfl.coordinator.training import Trained
from sqlfl.messages import CLIENT, Collect, Drop, Finish, Keep, Ready, Seal, Sealed
from sqlfl.messages.checks import Expected, ask
from sqlfl.planner.explain.report import report_of
from sqlfl.planner.explain.setting import tables_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.store.registry import Cost, Model, ModelBlock, Registry
from sqlfl.transport.base import Border, Channel


@contextmanager
def running(plan: FederatedPlan, run: str, channel: Callable[[], Channel]) -> Iterator[None]:
    """Run the block with one BLAS thread. At the end, every client drops the run's snapshots.

    Each client is notified through its own `channel`, so that one failing client does not keep
    others from it. The user sees the first error.
    """
    failed: BaseException | None = None
    governed = plan.run.governed
    try:
        with single():
            yield
    except BaseException as error:
        failed = error
    with deferred():
        for client in plan.clients:
            try:
                _finish(client, run, channel(), sealed=client in governed)
            except PartyError as error:
                failed = failed or error
    if failed is not None:
        raise failed


def _finish(client: Client, run: str, channel: Channel, *, sealed: bool) -> None:
    """Finish the run at a client. `sealed`: the client keeps its messages, and receives the
    coordinator's hash, unless replies are missing.
    """
    address = client, CLIENT
    if sealed and channel.is_whole(client, run):
        heads = channel.heads(client, run)
        ask(channel, {address: Seal(run, CLIENT, *heads)}, lambda _: Expected(Sealed))
    ask(channel, {address: Finish(run, CLIENT)}, lambda _: Expected(Ready))


log = logging.getLogger("sqlfl.saving")

MAX_REASON_CHARACTERS = 500
"""Maximum characters of a client's reason for not keeping blocks."""


class Saving:
    """The models of a federation and the places of their blocks.

    kept : text of a lasting model's card about its place; None if models do not last.
    """

    def __init__(self, registry: Registry, border: Border, kept: str | None) -> None:
        self._registry = registry
        self._border = border
        self._kept = kept
        self._reasons: dict[Client, str] = {}
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, tuple[Client, ...]] = {}

    def collect(self, clients: Iterable[Client]) -> None:
        """Have attached clients delete blocks that no model needs, and report what they
        can keep.
        """
        clients = tuple(clients)
        if self._kept is None:
            self._reasons |= dict.fromkeys(clients, "")
            return
        request = Collect("", CLIENT, self._registry.runs())
        requests = {(client, CLIENT): request for client in clients}
        replies = ask(self._border.channel(), requests, lambda address: expected.collected())
        for (client, _), reply in replies.items():
            self._reasons[client] = clipped(line(reply.reason), MAX_REASON_CHARACTERS)

    def leave(self, clients: Iterable[Client]) -> None:
        """Clients are about to be detached. Error where a temporary model has its part there."""
        leaving = set(clients)
        lost = [m.name for m in self._registry.all() if not m.lasting and leaving & {*m.clients}]
        if lost:
            party = next(iter(leaving)).party
            raise Error(
                f"party {party} holds a part of {', '.join(lost)}, which would be lost: "
                "nothing keeps it longer than the party is attached",
                hint=f"DROP MODEL {lost[0]} first; {CONNECT}",
            )
        self.forget(leaving)

    def forget(self, clients: Iterable[Client]) -> None:
        """Clients are gone. A temporary model that has its part there cannot be used any more."""
        for client in clients:
            self._reasons.pop(client, None)

    def fate(self, clients: Iterable[Client]) -> tuple[bool, str]:
        """Return whether a model with blocks at these clients lasts, and the text for its card."""
        if self._kept is None:
            return False, f"{TEMPORARY}: {CONNECT}"
        listed = self._cannot_keep(clients)
        if not listed:
            return True, self._kept
        return False, f"{TEMPORARY}: {listed}; attach(..., store=...) keeps it"

    def _cannot_keep(self, clients: Iterable[Client]) -> str:
        """Return the clients that keep nothing, with reasons; empty if all keep blocks."""
        reasons = {client: self._reasons[client] for client in clients if self._reasons[client]}
        return ", ".join(f"{client} {reason}" for client, reason in reasons.items())

    def next_version(self, name: str) -> int:
        return self._registry.next_version(name)

    def check_name(self, statement: TrainModel, plan: FederatedPlan) -> None:
        """Raise ModelError where the model of the statement could not have its name in the end."""
        clients = dict.fromkeys(c for s in plan.ucq.slots if s.features for c in s.databases)
        lasting, _ = self.fate(clients)
        reason = "" if self._kept is None else self._cannot_keep(clients)
        self._registry.check_free(
            statement.name, replace=statement.replace, lasting=lasting, reason=reason
        )

    def check_attached(self, model: Model, query: exp.Query) -> None:
        """Raise ModelError if the query names a party of the model that is not attached."""
        attached = {client.party.lower() for client in self._reasons}
        away = {c.party.lower(): c.party for c in model.clients if c.party.lower() not in attached}
        for table in query.find_all(exp.Table):
            first = table.parts[0].name.lower()
            if len(table.parts) > 1 and first in away:
                raise _away(model, away[first])

    def check_here(self, model: Model) -> None:
        """Raise ModelError where a party that has a part of the model is not attached."""
        away = next((c for c in model.clients if c not in self._reasons), None)
        if away is not None:
            raise _away(model, away.party)

    @contextmanager
    def held(self, name: str) -> Iterator[Model]:
        """Yield the model of this name. Its blocks stay until the block ends. Raises ModelError for
        an unknown model.
        """
        with self._lock:
            model = self._registry.get(name)
            self._held[model.run] += 1
        try:
            yield model
        finally:
            with deferred():
                with self._lock:
                    self._held[model.run] -= 1
                    clients = None
                    if not self._held[model.run]:
                        del self._held[model.run]
                        clients = self._waiting.pop(model.run, None)
                if clients is not None:
                    self.discard(model.run, clients)

    def keep(self, model: Model, *, replace: bool) -> None:
        """Save a model of the blocks that its clients hold.

        Raises ModelError if the name is taken. On failure without a row in the registry, the caller
        must `discard` the blocks. Ctrl-C waits until it is done.
        """
        with deferred():
            if model.lasting:
                request = Keep(model.run, CLIENT, model.run)
                requests = {(client, CLIENT): request for client in model.clients}
                ask(self._border.channel(), requests, lambda address: expected.kept())
            self._border.flush()  # where this cannot be written, the model could not either
            previous = self._registry.put(model, replace=replace)
            if previous is not None:
                self.discard(previous.run, previous.clients)

    def drop(self, name: str) -> Model:
        """Remove the model of this name. Raise ModelError for an unknown one."""
        with deferred():
            model = self._registry.remove(name)
            self.discard(model.run, model.clients)
            return model

    def discard(self, run: str, clients: Iterable[Client]) -> None:
        """Have attached clients delete a run's blocks, unless a model has them. While the run is
        `held`, this waits. Clients that it cannot reach delete them when they are attached again.
        """
        with self._lock:
            if run in self._registry.runs():
                return
            if self._held[run]:
                self._waiting[run] = tuple(clients)
                return
        with deferred():
            for client in clients:
                if client not in self._reasons:
                    continue
                try:
                    request = {(client, CLIENT): Drop(run, CLIENT, run)}
                    ask(self._border.channel(), request, lambda address: Expected(Ready))
                except (PartyError, PolicyError) as error:
                    log.warning("the blocks of run %s stay for now: %s", run, error)


def _away(model: Model, party: str) -> ModelError:
    return ModelError(
        f"a part of model {model.name} is kept by party {party}, which is not attached",
        hint=f'attach the database that it was trained on: fed.attach("{party}", ...)',
    )


TEMPORARY = "until the federation closes"
CONNECT = "sqlfl.connect(path) keeps models in a file"


def model_of(
    statement: TrainModel,
    plan: FederatedPlan,
    trained: Trained,
    run: str,
    saving: Saving,
    remarks: tuple[str, ...] = (),
) -> Model:
    """Return the model of a finished run, with the statement's warnings."""
    last = trained.history.slice(trained.history.num_rows - 1).to_pylist()[0]
    blocks = tuple(
        ModelBlock(
            slot.index,
            slot.name,
            tuple((f.name, f.kind, f.width) for f in slot.features),
            slot.databases,
            tables_of(slot),
        )
        for slot in plan.ucq.slots
        if slot.features
    )
    lasting, kept = saving.fate(client for block in blocks for client in block.clients)
    return Model(
        name=str(statement.name),
        kind=plan.kind,
        target=str(statement.target),
        target_type=plan.ucq.target_type or "",
        weight=plan.ucq.weight,
        offset=plan.ucq.offset,
        exposure=plan.exposure,
        features=tuple(
            name
            for name in plan.ucq.columns
            if name not in (plan.ucq.target, plan.ucq.weight, plan.ucq.offset)
        ),
        algorithm=plan.algorithm,
        options=plan.training.listed(),
        given=tuple(str(o.name) for o in statement.options if o.name in plan.training.listed()),
        sql=statement.sql,
        run=run,
        blocks=blocks,
        intercept=trained.intercept,
        head=trained.head,
        databases=Counter(client.party for client in plan.databases),
        remarks=remarks,
        transforms=plan.ucq.transforms,
        classes=trained.classes,
        history=trained.history,
        metrics=trained.metrics,
        privacy=report_of(plan, trained.calibration),
        cost=Cost(
            last["rounds"],
            last["bytes_up"],
            last["bytes_down"],
            last["seconds"],
            last["comm_seconds"],
        ),
        interrupted=trained.interrupted,
        ending=trained.ending,
        stopped_early=trained.stopped_early,
        exact=trained.exact,
        epoch=trained.epoch,
        created_at=dt.datetime.now(dt.UTC),
        versions={"sqlfl": __version__, "duckdb": duckdb.__version__},
        lasting=lasting,
        kept=kept,
        version=saving.next_version(str(statement.name)),
    )
