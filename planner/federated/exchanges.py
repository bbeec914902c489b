"""Messages across the parties' borders, as data: exchanges and their disclosures.

A client's request of a run (`sqlfl.contract.request`) is made of the run's exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from sqlfl.base.codec import to_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.joins import JoinUse
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import Client, SlotSpecification
from sqlfl.contract.transforms import updates
from sqlfl.messages import CLIENT
from sqlfl.options.diagnostics import Diagnostic
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import Options, TowerOptions, TrainingOptions
from sqlfl.options.tuning import Tuning
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.into import Into
from sqlfl.planner.federated.sizes import Content, Size, Symbol, as_size
from sqlfl.planner.query.ucq import Slot, Ucq
from sqlfl.privacy.protection import UNPROTECTED, Protection

COORDINATOR = "coordinator"
UP = "up"
DOWN = "down"
WHOLE = CLIENT
"""The slot of a message that concerns a client as a whole."""


@dataclass(frozen=True)
class Send:
    """One message of an exchange."""

    sender: str
    """'coordinator', or a client as text."""
    receiver: str
    client: Client
    """The client's end of the border."""
    slot: int
    """WHOLE for the client as a whole."""
    kind: str
    """The message's kind, as in sqlfl.messages."""
    what: str
    """A description of the contents; empty for a bare request."""
    count: Size
    """Values in one message: numbers and texts."""
    bytes: Size
    """Bytes of one message's values."""

    @property
    def direction(self) -> str:
        return UP if self.receiver == COORDINATOR else DOWN


@dataclass(frozen=True)
class Exchange:
    """One round: requests to clients, all at once, and a reply to each."""

    phase: str
    times: Size
    """Number of times in the run."""
    sends: tuple[Send, ...]


@dataclass(frozen=True)
class Disclosure:
    """A kind of value that crosses a border: `direction` 'up' leaves a party, 'down' reaches it."""

    kind: str
    sender: str
    receiver: str
    slot: int
    what: str
    values: Size
    """Values in one message."""
    bytes: Size
    """Bytes of one message."""
    times: Size
    """Number of times that the message is sent in the run."""

    @property
    def direction(self) -> str:
        return UP if self.receiver == COORDINATOR else DOWN


@dataclass(frozen=True)
class Run:
    """Facts that the protocol depends on: FederatedPlan without derived values."""

    purpose: str
    model: str
    kind: str
    ucq: Ucq
    options: Options
    blocks: Mapping[int, int]
    """Slot of the query -> slot of the model; for evaluate, predict and a warm start."""
    specifications: Mapping[Client, tuple[SlotSpecification, ...]]
    fragments: Mapping[Client, tuple[str, ...]]
    into: Into | None = None
    protection: Protection = UNPROTECTED
    findings: bool = True
    """True if clients report unusual features."""
    merges: bool = False
    """Clients may be asked which of their rows have equal features."""
    look: Diagnostic | None = None
    """The diagnostic of the scored rows."""
    tuning: Tuning | None = None
    """Candidates that are trained over the same rows, one after the other."""
    governed: frozenset[Client] = frozenset()
    """Clients whose owners have training policies."""
    exact: bool = False
    """Scores of the model are sent in 8-byte numbers."""
    separates: bool = False
    """Clients are asked, before the first step, which columns have no finite estimate."""
    study: str | None = None
    """The study within which the statement runs."""
    join: JoinUse | None = None
    """The join that lasts whose rows are used; None for a run that makes its own."""

    @property
    def clients(self) -> tuple[Client, ...]:
        """Clients in order of first occurrence, slot after slot."""
        return tuple(self.specifications)

    @property
    def databases(self) -> tuple[Client, ...]:
        """Clients that evaluate fragments, in order of first occurrence."""
        return tuple(dict.fromkeys(c for slot in self.ucq.slots for c in slot.databases))

    def specification(self, client: Client, slot: int) -> SlotSpecification:
        return next(item for item in self.specifications[client] if item.slot == slot)

    @property
    def towers(self) -> tuple[Slot, ...]:
        """The slots that have a model block."""
        return tuple(slot for slot in self.ucq.slots if slot.features)

    @property
    def shrunken(self) -> tuple[Slot, ...]:
        """Slots with columns whose strengths training finds."""
        if self.purpose != "train":
            return ()
        return tuple(slot for slot in self.towers if slot.shrunken)

    @property
    def paired(self) -> bool:
        """Pairs of features are added to some slot in training."""
        return any(slot.pairs for slot in self.shrunken)

    @property
    def separated(self) -> tuple[Slot, ...]:
        """Slots that report columns without a finite estimate. Clients with policies are excluded,
        because the report precedes the search for rare values. So are slots of several databases in
        CHECK, where each database has columns of its own categories.
        """
        if not self.separates:
            return ()
        slots = (slot for slot in self.towers if not self.governed & set(slot.clients))
        return tuple(s for s in slots if self.purpose != "check" or len(s.databases) == 1)

    @property
    def active(self) -> tuple[Slot, ...]:
        """Slots that the mapping uses for more than a link."""
        mapped = self.ucq.mapped
        return tuple(s for s in self.ucq.slots if s.index in mapped)

    @property
    def training(self) -> TrainingOptions:
        """Return the options of training. Raise InternalError if nothing is trained."""
        if not isinstance(self.options, TrainingOptions):
            raise InternalError(f"{self.purpose} trains nothing")
        return self.options

    @property
    def tower(self) -> TowerOptions | None:
        return self.options.tower

    @property
    def outputs(self) -> Size:
        """Numbers that a block gives of a row: d_c, or P where a head follows."""
        outputs = None if self.tower is None else self.tower.outputs
        return sym.OUTPUTS if outputs is None else Size(outputs)

    def parameters(self, slot: Slot) -> Size:
        """Return the number of parameters of the slot's block."""
        columns = sym.of_slot("columns", slot)
        if self.tower is None:
            return columns * sym.OUTPUTS
        return parameters(self.tower.hidden, columns, self.outputs)

    def merged(self, client: Client, slot: int) -> bool:
        """Return whether the clients' statistics of the slot are merged: it is shared, and does not
        rely on bounds alone.
        """
        specification = self.specification(client, slot)
        return specification.shared and (
            specification.privacy is None or specification.privacy.statistics != "bounds"
        )

    @property
    def weighted(self) -> bool:
        """Rows are weighed after they are activated."""
        return any(item.weighted for items in self.specifications.values() for item in items)


@dataclass(frozen=True)
class RequestReply:
    """A request and its reply, at one client and slot."""

    client: Client
    slot: int
    request: Content
    reply: Content

    def send(self, direction: str) -> Send:
        ends = (COORDINATOR, str(self.client))
        sender, receiver = ends if direction == DOWN else ends[::-1]
        content = self.request if direction == DOWN else self.reply
        return Send(
            sender, receiver, self.client, self.slot,
            content.kind, content.words, content.amount.count, content.amount.bytes,
        )  # fmt: skip


def exchange(phase: str, times: Size | int, calls: list[RequestReply]) -> Exchange:
    """Make an exchange: all requests, then all replies."""
    sends = [call.send(direction) for direction in (DOWN, UP) for call in calls]
    return Exchange(phase, as_size(times), tuple(sends))


def disclosures(
    exchanges: tuple[Exchange, ...], carried: Callable[[Client], bool]
) -> tuple[Disclosure, ...]:
    """Return messages with values of the clients that `carried` accepts: sent ones first, then
    received ones.

    Equal messages of several exchanges become one disclosure, with the sum of their times.
    """
    times: dict[tuple[str, str, str, int, str, Size, Size], Size] = {}
    for item in exchanges:
        for send in item.sends:
            key = (
                send.kind, send.sender, send.receiver, send.slot, send.what, send.count, send.bytes
            )  # fmt: skip
            if send.bytes and carried(send.client):
                times[key] = times.get(key, Size()) + item.times
    listed = [Disclosure(*key, often) for key, often in times.items()]
    return tuple(sorted(listed, key=lambda d: d.direction == DOWN))


def symbols(exchanges: tuple[Exchange, ...]) -> tuple[Symbol, ...]:
    """Return all quantities in the sizes, by name."""
    names = {
        symbol
        for item in exchanges
        for formula in (item.times, *(f for s in item.sends for f in (s.count, s.bytes)))
        for symbol in formula.symbols
    }
    return tuple(sorted(names, key=lambda symbol: symbol.name))


def totals(
    exchanges: tuple[Exchange, ...],
) -> dict[tuple[Client, int, str, str], tuple[Size, Size]]:
    """(client, slot, kind, direction) -> (messages, bytes) over the whole run."""
    sizes: dict[tuple[Client, int, str, str], tuple[Size, Size]] = {}
    for item in exchanges:
        for send in item.sends:
            key = (send.client, send.slot, send.kind, send.direction)
            messages, amount = sizes.get(key, (Size(), Size()))
            sizes[key] = (messages + item.times, amount + item.times * send.bytes)
    return sizes


# Sizes of a neural model's towers, for columns that are not known yet; see sqlfl.models.towers.


def inner_weights(hidden: tuple[int, ...]) -> int:
    """Weights and biases between hidden layers of these widths: for any number of columns."""
    return sum(before * after + after for before, after in pairwise(hidden))


def parameters(hidden: tuple[int, ...], columns: Size, outputs: Size) -> Size:
    """Return the parameters of a tower over these encoded columns: W1, b1, W2, ..., W_out."""
    first, last = hidden[0], hidden[-1]
    return columns * first + (first + inner_weights(hidden)) + outputs * last


ONCE = ("settled", "proofs", "mergers", "paired")
"""Roles of symbols that are 0 or 1."""
UPDATED = "updates"
"""Role of the symbol that counts updates of strengths."""
ROUNDS = ("rounds", "exact")
"""Roles of symbols that count epochs, or a part of them."""


def request_of(
    run: Run, exchanges: tuple[Exchange, ...], client: Client, privacy: Privacy | None
) -> Request:
    """Planning is not of the run."""
    training = isinstance(run.options, TrainingOptions)
    most: dict[tuple[int, str, str, str], int | None] = {}
    for item in exchanges:
        replies = {
            send.slot: send
            for send in item.sends
            if send.client == client and send.receiver == COORDINATOR
        }
        for send in item.sends:
            if send.client != client or send.sender != COORDINATOR or item.phase == "plan":
                continue
            reply = replies[send.slot]
            key = (send.slot, send.kind, reply.kind, reply.what)
            before, times = most.get(key, 0), at_most(run, item.times)
            most[key] = None if before is None or times is None else before + times
    return Request(
        purpose=run.purpose,
        kind=run.kind,
        algorithm=run.training.algorithm if training else "",
        options=to_json([run.options, run.tuning]),
        privacy=to_json(privacy),
        look=to_json(run.look),
        warm=training and run.training.warm_start is not None,
        into=run.into is not None,
        asked=tuple(Asked(*key, often) for key, often in sorted(most.items())),
        study=run.study,
    )


def at_most(run: Run, times: Size) -> int | None:
    """Return a bound that follows from the options alone; None without one."""
    total = 0
    for symbols, number in times.terms:
        if number < 0:
            continue
        product = number
        for symbol in symbols:
            if symbol.role in ONCE:
                largest = 1 if run.tuning is None else run.tuning.fits
            elif symbol.role == UPDATED:
                largest = updates(pairs=run.paired) * (1 if run.tuning is None else run.tuning.fits)
            elif symbol.role in ROUNDS:
                largest = _epochs(run)
            elif symbol.role == "checkpoints":
                largest = _epochs(run) // (run.training.checkpoint or 1)
            else:
                return None
            product *= largest
        total += product
    return total


def _epochs(run: Run) -> int:
    """Return the epochs of all fits."""
    if run.tuning is None:
        return run.training.epochs
    return run.tuning.fits * max(c.options.epochs for c in run.tuning.candidates)
