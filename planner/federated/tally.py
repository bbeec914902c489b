"""Measured messages of a run, and the values of EXPLAIN's formulas at their sizes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.messages.forms import Columns, Form, Number, Numbers, Several, Text, Texts
from sqlfl.planner.federated.exchanges import DOWN, UP, totals
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.federated.sizes import Number as Value
from sqlfl.planner.federated.sizes import Symbol
from sqlfl.planner.query.ucq import CATEGORY

Place: TypeAlias = tuple[Client, int, str, str]
"""Client, slot, kind of message, and direction."""


@dataclass
class Sum:
    """Messages at one place."""

    messages: int = 0
    bytes: int = 0
    total: Counter[str] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)

    def add(self, message: ms.Message) -> None:
        self.messages += 1
        self.bytes += message.nbytes
        for name, number in _facts(message).items():
            self.total[name] += number
            self.largest[name] = max(number, self.largest.get(name, 0))


class Tally:
    """Counter of the messages passed to `note`, from any thread of one run; it keeps only sizes."""

    def __init__(self) -> None:
        self.sums: defaultdict[Place, Sum] = defaultdict(Sum)
        self._taken: dict[Client, list[int]] = {}
        """Rows of each client's fragments."""

    def note(self, client: Client, direction: str, message: ms.Message) -> None:
        if isinstance(message, ms.Prepared):
            self._taken[client] = message.rows.tolist()
        self.sums[client, message.slot, message.kind, direction].add(message)

    # -- lookups -----------------------------------------------------------------------------------

    def of(self, kinds: tuple[str, ...], client: Client | None, slot: int | None) -> Sum:
        """Return the sum of all messages of these kinds, at a client and slot or at all of them."""
        sums = Sum()
        for (at, place, kind, _), one in self.sums.items():
            if kind in kinds and client in (None, at) and slot in (None, place):
                sums.messages += one.messages
                sums.bytes += one.bytes
                sums.total += one.total
                for name, number in one.largest.items():
                    sums.largest[name] = max(number, sums.largest.get(name, 0))
        return sums

    def most(self, kind: str) -> int:
        """Times that any client was sent it for a slot."""
        return max((s.messages for place, s in self.sums.items() if place[2] == kind), default=0)

    def empty(self, plan: FederatedPlan) -> tuple[str, ...]:
        """Return slots where no client had a row of a table."""
        rows: Counter[int] = Counter()
        for client, counts in self._taken.items():
            told = iter(counts)
            for item in plan.specifications[client]:
                virtual = {f.index for f in plan.ucq.slots[item.slot].fragments if f.virtual}
                for fragment, count in zip(item.fragments, told, strict=False):
                    rows[item.slot] += 0 if fragment in virtual else count
        return tuple(plan.ucq.slots[slot].name for slot, count in sorted(rows.items()) if not count)


@dataclass(frozen=True)
class MeasuredMessages:
    """Messages that a client got or sent."""

    messages: int
    bytes: int
    formula: int | None
    """Bytes by EXPLAIN's formula; None if the formula has a quantity that messages do not show."""
    differing: tuple[str, ...]
    """Kinds of messages whose number or size differs from the formula."""


def measured(
    plan: FederatedPlan, tally: Tally, epochs: int, outputs: int
) -> dict[tuple[Client, str], MeasuredMessages]:
    """Return the measured messages of each client and direction, without planning. `outputs` is
    d_c.
    """
    values = _Values(plan, tally, epochs, outputs)
    exchanges = tuple(item for item in plan.exchanges if item.phase != "plan")
    said: dict[Place, tuple[int, int] | None] = {}
    for place, sizes in totals(exchanges).items():
        names = {s for size in sizes for s in size.symbols}
        bound = {symbol.name: values.of(symbol) for symbol in names}
        known = {name: value for name, value in bound.items() if value is not None}
        told = None if len(known) < len(bound) else tuple(size.evaluate(known) for size in sizes)
        said[place] = None if told is None else (told[0], told[1])
    by_end = {}
    for client in plan.clients:
        for direction in (UP, DOWN):
            places = [p for p in {**said, **tally.sums} if p[0] == client and p[3] == direction]
            counted = [tally.sums.get(place, Sum()) for place in places]
            formulas = [said.get(place, (0, 0)) for place in places]
            known_all = [formula[1] for formula in formulas if formula is not None]
            differing = tuple(
                place[2] for place, one, formula in zip(places, counted, formulas, strict=True)
                if formula is not None and formula != (one.messages, one.bytes)
            )  # fmt: skip
            by_end[client, direction] = MeasuredMessages(
                sum(one.messages for one in counted),
                sum(one.bytes for one in counted),
                sum(known_all) if len(known_all) == len(formulas) else None,
                tuple(dict.fromkeys(differing)),
            )
    return by_end


# -- the quantities of the formulas ----------------------------------------------------------------


class _Values:
    """Values of symbols by their roles in `sqlfl.planner.federated.sizes`."""

    def __init__(self, plan: FederatedPlan, tally: Tally, epochs: int, outputs: int) -> None:
        self._plan, self._tally = plan, tally
        here: Mapping[str, Callable[[Symbol], Value]] = {
            "joined": lambda s: self._largest(None, "total", "activate"),
            "outputs": lambda s: outputs,
            "rows": lambda s: self._largest(s, "rows", "join_keys"),
            "active": lambda s: self._largest(s, "active", "activate"),
            "trained": self._trained,
            "told": lambda s: self._largest(s, "classes", "equal_rows"),
            "tags": lambda s: self._largest(s, f"tags.{self._key(s)}", "join_keys"),
            **dict.fromkeys(
                ("vocabulary", "frequent"), lambda s: self._entries(s, "statistics", "vocabularies")
            ),
            **dict.fromkeys(
                ("merged_vocabulary", "merged_frequent"),
                lambda s: self._entries(s, "set_encoding", "send_statistics"),
            ),
            "columns": lambda s: self._columns(s),
            "names": lambda s: sum(
                self._largest(s, f"{field}.bytes", "separated")
                for field in ("features", "categories")
            ),
            "numeric": lambda s: self._largest(s, "numeric", "set_gram", "gram"),
            "onehot": lambda s: self._largest(s, "onehot", "set_gram", "gram"),
            "pairs": lambda s: self._pairs(s),
            "stored": lambda s: self._mean(s, "stored", "gram"),
            "crossed": lambda s: self._mean(s, "stored", "gram"),
            "merged_stored": lambda s: self._mean(s, "stored", "set_gram"),
            "classes": lambda s: self._largest(s, "classes", "labels"),
            "class_text": lambda s: self._largest(s, "classes.bytes", "labels"),
            "configuration": lambda s: self._mean(s, "configuration", "start"),
            "rounds": lambda s: epochs,
            "steps": lambda s: tally.most("residuals"),
            "batch": lambda s: self._between(s, epochs),
            "stepped": lambda s: self._mean(s, "rows", "residuals"),
            "first_batch": lambda s: self._first(s, epochs),
            "first_listed": lambda s: self._total(s, "first", "send_predictions", epochs),
            "sums": lambda s: tally.most("send_embeddings"),
            "listed": lambda s: self._mean(s, "listed", "send_embeddings", "set_sketch"),
            "packed": lambda s: self._mean(None, "packed", "masked_embeddings"),
            "new_column": lambda s: self._mean(s, "part", "column"),
            "chosen": lambda s: self._mean(s, "weights", "residuals", "direction"),
            "chosen_in_all": lambda s: self._largest(s, "weights", "column_weights"),
            "settled": lambda s: tally.most("column_weights"),
            "exact": lambda s: self._exact(),
            "renewals": lambda s: tally.most("send_exact_predictions"),
            "proofs": lambda s: tally.most("send_slope"),
            "updates": lambda s: tally.most("set_strengths"),
            "paired": lambda s: tally.most("send_cells"),
            "grown": lambda s: self._mean(s, "values", "partial_gradient"),
            "checkpoints": lambda s: max(0, tally.most("save") - 1),
            "mergers": lambda s: tally.most("send_equal_rows"),
            "probes": lambda s: tally.most("probe"),
            "run": lambda s: self._largest(None, "model", "save"),
            "request_text": lambda s: self._largest(s, "request", "propose"),
        }  # fmt: skip
        self._roles = here

    def of(self, symbol: Symbol) -> Value | None:
        lookup = self._roles.get(symbol.role)
        return None if lookup is None else lookup(symbol)

    def _sum(self, symbol: Symbol | None, *kinds: str) -> Sum:
        client = None if symbol is None else symbol.client
        return self._tally.of(kinds, client, None if symbol is None else symbol.slot)

    def _largest(self, symbol: Symbol | None, name: str, *kinds: str) -> int:
        return self._sum(symbol, *kinds).largest.get(name, 0)

    def _mean(self, symbol: Symbol | None, name: str, *kinds: str) -> Fraction:
        counted = self._sum(symbol, *kinds)
        return Fraction(counted.total[name], max(1, counted.messages))

    def _total(self, symbol: Symbol, name: str, kind: str, times: int) -> Fraction:
        return Fraction(self._sum(symbol, kind).total[name], max(1, times))

    def _trained(self, symbol: Symbol) -> int:
        told = self._sum(symbol, "equal_rows").largest
        return told.get("distinct", 0) or self._largest(symbol, "active", "activate")

    def _key(self, symbol: Symbol) -> int:
        return self._plan.ucq.slots[symbol.slot or 0].keys.index(symbol.part or 0)

    def _entries(self, symbol: Symbol, *kinds: str) -> int:
        """Return the entries of a category, by its number among those of the slot."""
        before = self._plan.ucq.slots[symbol.slot or 0].features[: symbol.part]
        number = sum(feature.kind == CATEGORY for feature in before)
        return self._largest(symbol, f"tags.{number}", *kinds)

    def _columns(self, symbol: Symbol) -> int:
        width = self._largest(symbol, "width", "ready")
        return width or self._largest(symbol, "columns", "separated")  # CHECK encodes late

    def _pairs(self, symbol: Symbol) -> int:
        many = self._largest(symbol, "onehot", "set_gram")
        return many * (many + 1) // 2

    def _between(self, symbol: Symbol, epochs: int) -> Fraction:
        """Return the rows of a batch that is not an epoch's first."""
        return self._total(symbol, "batch", "residuals", self._tally.most("residuals") - epochs)

    def _first(self, symbol: Symbol, epochs: int) -> Fraction:
        numbers = self._sum(symbol, "send_predictions").total
        rows = (
            numbers["first whole"] * self._largest(symbol, "active", "activate") + numbers["first"]
        )
        return Fraction(rows, max(1, epochs))

    def _exact(self) -> int:
        """Return the number of exact iterations that move the model: a request for all scores moves
        nothing.
        """
        steps = self._tally.most("exact_residuals")
        return steps - self._tally.most("send_exact_predictions") if steps else 0


def _facts(message: ms.Message) -> dict[str, int]:
    """Return the message's numbers, and the sizes of its texts and arrays, by name."""
    facts: dict[str, int] = {}
    for name, form in message.forms().items():
        facts |= _fact(name, getattr(message, name), form)
    if isinstance(message, ms.SendPredictions) and message.training:
        facts |= {"first": int(message.batch.size), "first whole": message.whole}
    if isinstance(message, ms.EqualRows) and message.classes.size:
        facts["distinct"] = int(message.classes.max()) + 1
    return facts


def _fact(name: str, value: Any, form: Form) -> dict[str, int]:
    match form:
        case Number():
            return {name: int(value)}
        case Text():
            return {name: len(value.encode())}
        case Texts():
            return {name: len(value), f"{name}.bytes": sum(len(text.encode()) for text in value)}
        case Numbers():
            axes = zip(form.shape, value.shape, strict=False)
            return {name: int(value.size)} | {a: n for a, n in axes if isinstance(a, str)}
        case Several():
            return {f"{name}.{place}": len(item) for place, item in enumerate(value)} | {
                axis: n
                for item in value
                for axis, n in zip(form.item.shape, item.shape, strict=False)
                if isinstance(axis, str)
            }
        case Columns():
            return {name: sum(int(item.nbytes) for item in value)}
