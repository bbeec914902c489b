"""Facts that the report's sentences depend on: the plan, the unit of privacy, a run's noise.

The unit of privacy is the rows of a slot, with the tables that they come from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from sqlglot import exp

from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages.disclosed import listed
from sqlfl.options.privacy import Privacy
from sqlfl.planner.explain.card import upwards
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query import lineage
from sqlfl.planner.query.lineage import Use
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.calibration import joined_epsilon
from sqlfl.privacy.collusion import colluding, others
from sqlfl.privacy.events import Gaussian, PoissonBinomial
from sqlfl.privacy.protection import BinomialSums, NoisedMoments, Protection

if TYPE_CHECKING:
    from sqlfl.privacy.calibration import NoiseCalibration


@dataclass(frozen=True)
class Unit:
    """The unit whose change ε is about: a part of one row, of any of `rows`."""

    part: Literal["features", "label"]
    rows: tuple[str, ...]
    """Each as `unit_of` returns it."""

    def __str__(self) -> str:
        return f"the {self.part} of {' or of '.join(self.rows)}"

    @property
    def alone(self) -> str:
        """The rows, for a sentence that has named the part."""
        return " or ".join(self.rows)


def features_of(slots: Iterable[Slot], every: Iterable[Slot]) -> Unit:
    """Return the unit of features of `slots`; `every` are all slots of the query."""
    among = tuple(every)
    return Unit("features", tuple(unit_of(slot, among) for slot in slots))


def label_of(every: Iterable[Slot]) -> Unit:
    """Return the unit of labels among these slots."""
    among = tuple(every)
    return Unit("label", tuple(unit_of(slot, among) for slot in among if slot.target))


def tables_of(slot: Slot) -> tuple[str, ...]:
    """Return `party.table` of all tables that the slot's fragments read, in the order of the
    clients."""
    names: dict[str, None] = {}
    for fragment in slot.evaluated:
        for parts in _paths(fragment.select):
            names[".".join((fragment.client.party, *parts))] = None
    return tuple(names)


def unit_of(slot: Slot, every: Iterable[Slot]) -> str:
    """Return text about the rows of one unit, as 'one row of p (census.people)'.

    This is the text if a table's row is at most one row of the query; else it is about a row of the
    SELECT. `every` are all slots of the query.
    """
    several = {table.lower() for table in repeated(every)}
    if derived(slot) or any(table.lower() in several for table in tables_of(slot)):
        return f"one row that this SELECT gives as {slot.name}"
    tables = ", ".join(tables_of(slot))
    named = tables.split(".")[-1] == slot.name and "," not in tables
    return f"one row of {tables}" if named else f"one row of {slot.name} ({tables})"


def derived(slot: Slot) -> bool:
    """Return whether a row of the slot may differ from one row of one table.

    It may be aggregated, joined, computed over or selected by other rows, or made by an unknown
    function. It may also come from a view, for which the database reports no size.
    """
    shapes = (
        exp.Join, exp.Lateral, exp.Group, exp.AggFunc, exp.Window, exp.Distinct, exp.Qualify,
        exp.Having, exp.SetOperation, exp.With, exp.Subquery, exp.UDTF, exp.Explode,
        exp.GenerateSeries, exp.Limit, exp.Fetch, exp.Offset, exp.TableSample, exp.Pivot,
        exp.Exists, exp.Anonymous,
    )  # fmt: skip
    return any(
        fragment.rows is None
        or len(list(_paths(fragment.select))) != 1
        or len(nodes(fragment.select, exp.Select)) != 1
        or fragment.select.find(*shapes) is not None
        for fragment in slot.evaluated
        if not fragment.virtual
    )


def repeated(slots: Iterable[Slot]) -> tuple[str, ...]:
    """Return tables whose rows may be several rows of the slots. Several slots read them, or
    several fragments of one client in a slot (parts of a UNION)."""
    counts = Counter(
        (fragment.client, ".".join((fragment.client.party, *parts)).lower())
        for slot in slots
        for fragment in slot.evaluated
        if not (fragment.virtual or fragment.links)
        for parts in dict.fromkeys(_paths(fragment.select))
    )
    return tuple(dict.fromkeys(table for (_, table), count in counts.items() if count > 1))


def _paths(select: exp.Select) -> Iterable[tuple[str, ...]]:
    """Yield the paths of the tables that it reads, without those of WITH."""
    inner = {cte.alias for cte in nodes(select, exp.CTE)}
    for table in nodes(select, exp.Table):
        parts = tuple(part.name for part in table.parts)
        if table.name and (len(parts) > 1 or parts[0] not in inner):
            yield parts


@dataclass(frozen=True)
class PrivacyClaim:
    """The guarantee for the features of one row of a slot."""

    epsilon: float | None
    """None: known after the join."""
    delta: float


@dataclass(frozen=True, eq=False)
class ReportSetting:
    """A plan and its noise. `calibration` is None before the run, and if features are not
    protected.
    """

    plan: FederatedPlan
    calibration: NoiseCalibration | None

    @cached_property
    def privacy(self) -> Privacy:
        return self.plan.privacy or Privacy()

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Slots with features."""
        return tuple(slot for slot in self.plan.ucq.slots if slot.features)

    @property
    def training(self) -> bool:
        """True if the plan trains; else it is EVALUATE or PREDICT."""
        return bool(self.plan.algorithm)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The statement's uses of columns."""
        return lineage.uses(self.plan.ucq)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of messages that cross a border, and of messages whose sums do."""
        kinds = {disclosure.kind for disclosure in self.plan.disclosures}
        return frozenset(kinds | self.plan.secret_sums if "masked" in kinds else kinds)

    def secret(self, kind: str) -> bool:
        """The coordinator gets no client's messages of this kind, only their sums."""
        return kind in self.plan.secret_sums

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p for slot in self.plan.ucq.slots for p in slot.parties))

    @property
    def protection(self) -> Protection:
        return self.plan.protection

    @property
    def together(self) -> bool:
        """True if predictions are noised, and with them everything computed from them."""
        return bool(self.protection.predictions)

    @property
    def summed(self) -> bool:
        """True if the coordinator receives predictions only as sums over all slots."""
        return self.training and spec_of(self.plan.algorithm).drawn

    @property
    def chosen(self) -> bool:
        """True if clients choose columns and send them, in place of predictions."""
        return "column" in self.kinds

    @property
    def solved(self) -> bool:
        """Return whether clients release noised moments of their columns, and at most fits."""
        return isinstance(self.protection.predictions, NoisedMoments)

    @property
    def sketched(self) -> bool:
        """True if clients send chosen columns as random sums."""
        return "direction" in self.kinds

    @property
    def drawn(self) -> bool:
        """True if the sums of embeddings consist of draws."""
        return isinstance(self.protection.predictions, BinomialSums)

    @cached_property
    def telling(self) -> int | None:
        """Number of other parties that may disclose their draws without breaking ε; None if all
        may. The row's own party and the coordinator's are not counted.
        """
        slots, at, asked = self.plan.ucq.slots, self.plan.at, self.privacy.honest_parties
        most = {
            party: colluding(slots, party, at, asked) for s in self.slots for party in s.parties
        }
        return min(
            (m for party, m in most.items() if m < len(others(slots, party, at))), default=None
        )

    @property
    def coordinator(self) -> str:
        return "coordinator" if self.plan.at is None else f"coordinator (at {self.plan.at})"

    def leaves(self, slot: Slot) -> bool:
        """Return True if the coordinator's messages from the slot cross a border."""
        return any(self.plan.crosses(client) for client in slot.clients)

    def fixed(self, *also: str) -> str:
        """List what the change that ε is about leaves fixed: `also`, and what never changes."""
        ucq = self.plan.ucq
        rest = ["the weights"] * (ucq.weight is not None)
        rest += ["the choice of rows for validation"] * any(slot.split for slot in ucq.slots)
        return listed(["the join graph", *also, *rest])

    # -- features ---------------------------------------------------------------------------------

    @cached_property
    def claims(self) -> dict[int, PrivacyClaim]:
        """Slot -> guarantee for its features; empty if there is none. With exact statistics there
        is none, whatever noise is added: the encoding uses them, and a change of a row moves them.
        """
        asked = self.privacy
        if not self.protection.bounded:
            return {}
        if self.calibration is None:
            return {slot.index: PrivacyClaim(asked.epsilon, asked.delta) for slot in self.slots}
        epsilons = self.calibration.epsilons
        return {
            slot.index: PrivacyClaim(float(epsilons[slot.index]), asked.delta)
            for slot in self.slots
            if math.isfinite(epsilons[slot.index])
        }

    @cached_property
    def joined(self) -> tuple[float, float] | None:
        """(ε, δ) of the features of a whole joined row; None if known only after the join."""
        if self.calibration is not None:
            return joined_epsilon(self.privacy, self.calibration.events)
        if self.privacy.epsilon is None or self.chosen:
            return None
        return joined_epsilon(self.privacy, len(self.slots))

    def claimed(self, slots: Iterable[Slot]) -> dict[PrivacyClaim, list[Slot]]:
        """Group slots with a guarantee by it; equal printed ε count as the same."""
        groups: dict[str, list[Slot]] = {}
        for slot in slots:
            if slot.index in self.claims:
                epsilon = self.claims[slot.index].epsilon
                groups.setdefault("" if epsilon is None else upwards(epsilon), []).append(slot)
        return {
            max((self.claims[slot.index] for slot in alike), key=lambda c: c.epsilon or 0.0): alike
            for alike in groups.values()
        }

    def rounds(self, slot: Slot) -> RoundNoise | None:
        """Return the noise of the rounds; None before the run."""
        return None if self.calibration is None else self.calibration.training.rounds[slot.index]

    def count(self, slot: Slot, kind: str) -> int | None:
        """Return the maximum number of releases of this kind that a row of the slot
        takes part in.
        """
        if self.calibration is None:
            return None
        return sum(event.count for event in self._events(slot, kind))

    def multiplier(self, slot: Slot, kind: str) -> float | None:
        """Return the noise of a single release, relative to the effect of one row on it."""
        events = self._events(slot, kind) if self.calibration is not None else []
        return events[0].multiplier if events else None

    def draws(self, slot: Slot) -> PoissonBinomial | None:
        """Return the draws of a row of the slot in the whole run; None before the run, and without
        draws.
        """
        events = () if self.calibration is None else self.calibration.events[slot.index]
        return next((event for event in events if isinstance(event, PoissonBinomial)), None)

    def _events(self, slot: Slot, kind: str) -> list[Gaussian]:
        assert self.calibration is not None
        events = self.calibration.events[slot.index]
        return [e for e in events if isinstance(e, Gaussian) and e.what == kind]

    # -- labels -----------------------------------------------------------------------------------

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """Parties with labels."""
        return tuple(dict.fromkeys(p for s in self.plan.ucq.slots if s.target for p in s.parties))

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Parties whose labels cross a border to the coordinator."""
        at = self.plan.at
        return tuple(p for p in self.owners if at is None or p.lower() != at.lower())

    @property
    def label(self) -> Unit:
        return label_of(self.plan.ucq.slots)

    @cached_property
    def labelled(self) -> dict[str, bool]:
        """Table with labels -> whether its owner has declared a key."""
        return {
            table: all(f.keyed for f in slot.evaluated if not f.virtual)
            for slot in self.plan.ucq.slots
            if slot.target
            for table in tables_of(slot)
        }

    @property
    def classes(self) -> int | None:
        """K, the number of classes of noised labels; None for numbers."""
        if self.plan.regression:
            return None
        return len(self.privacy.label_classes or ("false", "true"))

    @cached_property
    def label_epsilon(self) -> float | None:
        """The actual ε of labels; None if labels are not noised."""
        label = self.protection.labels
        if not label:
            return None
        from sqlfl.privacy.mechanisms import label_epsilon

        return label_epsilon(label.mechanism, label.epsilon, self.classes)

    @property
    def fleeting(self) -> str:
        """Clients that draw label noise anew in each session, with the reason; empty
        without any.
        """
        why = {str(client): reason for client, reason in self.plan.fleeting.items()}
        return ", ".join(f"{client} {reason}" for client, reason in why.items())

    @property
    def label_mechanism(self) -> str:
        """The mechanism of label noise as text, with its numbers."""
        label, k = self.protection.labels, self.classes
        assert label
        if k is None:
            return label.words
        from sqlfl.privacy.mechanisms import keep_probability, laplace_keep

        keep = laplace_keep if label.mechanism == "laplace" else keep_probability
        other = "the other one" if k == 2 else f"one of the other {k - 1} alike"
        kept = keep(label.epsilon, k)
        return f"{label.words}: the label with probability {kept:.4g}, else {other}"

    @property
    def releasing(self) -> str:
        """The source of noised features: a client, or the party that combines its clients."""
        return "client or party" if self.plan.combining else "client"

    # -- who, in all ------------------------------------------------------------------------------

    def coalition(self) -> str:
        """All observers against whom the guarantee of noised predictions and gradients holds
        together.
        """
        return listed(self._observers())

    def readers(self) -> str:
        """All who receive anything computed from labels."""
        everyone = ["the users of the model" if self.training else "who gets the metrics"]
        if len(self.parties) > 1 and self.training:
            everyone.insert(0, "the other parties")
        if self.elsewhere:
            everyone.insert(0, f"the {self.coordinator}")
        return listed(everyone)

    def _observers(self) -> Iterator[str]:
        yield f"the {self.coordinator}"
        if self.drawn:
            yield from self._tellers()
        elif len(self.parties) > 1:
            yield "the other parties"
        if not self.drawn and any(len(slot.clients) > 1 for slot in self.slots):
            alone = self.secret("partial_gradient")
            yield "one other client of its table" if alone else "all other clients of its table"
        yield "the users of the model"

    def _tellers(self) -> Iterator[str]:
        if self.telling is None and len(self.parties) > 1:
            yield "the other parties"
        elif self.telling:
            yield f"any {'one' if self.telling == 1 else self.telling} of the other parties"
