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
FIRST_LISTED, FIRST_WHOLE = "first listed", "first whole"
"""Names of numbers of a request for an epoch's first batch: the rows that it lists, and 1 if it
stands for all active rows.
"""


@dataclass
class Sum:
    """Messages at one place."""

    messages: int = 0
    bytes: int = 0
    total: Counter[str] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)

    def add(self, message: ms.Message) -> None:
        """Count the message, its bytes and its numbers."""
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
        """Count a message that the client received or sent."""
        if isinstance(message, ms.Prepared):
            self._taken[client] = message.rows.tolist()
        self.sums[client, message.slot, message.kind, direction].add(message)

    # -- lookups -----------------------------------------------------------------------------------

    def of(self, kinds: tuple[str, ...], client: Client | None, slot: int | None) -> Sum:
        """Return the sum of all messages of these kinds, at a client and slot or at all of them."""
        sums = Sum()
        for (end, position, kind, _), part in self.sums.items():
            if kind in kinds and client in (None, end) and slot in (None, position):
                sums.messages += part.messages
                sums.bytes += part.bytes
                sums.total += part.total
                for name, number in part.largest.items():
                    sums.largest[name] = max(number, sums.largest.get(name, 0))
        return sums

    def max_messages(self, kind: str) -> int:
        """Return the number of messages of this kind at the client and slot with most of them; 0
        for none.
        """
        return max((s.messages for place, s in self.sums.items() if place[2] == kind), default=0)

    def empty(self, plan: FederatedPlan) -> tuple[str, ...]:
        """Return slots where no client had a row of a table."""
        rows: Counter[int] = Counter()
        for client, counts in self._taken.items():
            remaining_counts = iter(counts)  # a client reports its fragments slot after slot
            for item in plan.specifications[client]:
                virtual = {f.index for f in plan.ucq.slots[item.slot].fragments if f.virtual}
                for fragment, count in zip(item.fragments, remaining_counts, strict=False):
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
    predicted = _predicted(plan, _Values(plan, tally, epochs, outputs))
    by_end = {}
    for client in plan.clients:
        for direction in (UP, DOWN):
            all_places = {**predicted, **tally.sums}
            places = [p for p in all_places if p[0] == client and p[3] == direction]
            counted = [tally.sums.get(place, Sum()) for place in places]
            formulas = [predicted.get(place, (0, 0)) for place in places]
            known_bytes = [formula[1] for formula in formulas if formula is not None]
            differing = tuple(
                place[2] for place, part, formula in zip(places, counted, formulas, strict=True)
                if formula is not None and formula != (part.messages, part.bytes)
            )  # fmt: skip
            by_end[client, direction] = MeasuredMessages(
                sum(part.messages for part in counted),
                sum(part.bytes for part in counted),
                sum(known_bytes) if len(known_bytes) == len(formulas) else None,
                tuple(dict.fromkeys(differing)),
            )
    return by_end


def _predicted(plan: FederatedPlan, values: _Values) -> dict[Place, tuple[int, int] | None]:
    """Return the messages and bytes at each place by EXPLAIN's formulas; None for a formula with a
    quantity that messages do not show.
    """
    exchanges = tuple(item for item in plan.exchanges if item.phase != "plan")
    predicted: dict[Place, tuple[int, int] | None] = {}
    for place, (count, size) in totals(exchanges).items():
        symbols = {*count.symbols, *size.symbols}
        bound = {symbol.name: values.of(symbol) for symbol in symbols}
        known = {name: value for name, value in bound.items() if value is not None}
        is_known = len(known) == len(bound)
        predicted[place] = (count.evaluate(known), size.evaluate(known)) if is_known else None
    return predicted


# -- the quantities of the formulas ----------------------------------------------------------------


class _Values:
    """Values of symbols by their roles in `sqlfl.planner.federated.sizes`."""

    def __init__(self, plan: FederatedPlan, tally: Tally, epochs: int, outputs: int) -> None:
        self._plan, self._tally = plan, tally
        self._roles: Mapping[str, Callable[[Symbol], Value]] = {
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
            "steps": lambda s: tally.max_messages("residuals"),
            "batch": lambda s: self._later_batch(s, epochs),
            "stepped": lambda s: self._mean(s, "rows", "residuals"),
            "first_batch": lambda s: self._first_batch(s, epochs),
            "first_listed": lambda s: self._total(s, FIRST_LISTED, "send_predictions", epochs),
            "sums": lambda s: tally.max_messages("send_embeddings"),
            "listed": lambda s: self._mean(s, "listed", "send_embeddings", "set_sketch"),
            "packed": lambda s: self._mean(None, "packed", "masked_embeddings"),
            "new_column": lambda s: self._mean(s, "part", "column"),
            "chosen": lambda s: self._mean(s, "weights", "residuals", "direction"),
            "chosen_in_all": lambda s: self._largest(s, "weights", "column_weights"),
            "settled": lambda s: tally.max_messages("column_weights"),
            "exact": lambda s: self._exact(),
            "renewals": lambda s: tally.max_messages("send_exact_predictions"),
            "proofs": lambda s: tally.max_messages("send_slope"),
            "updates": lambda s: tally.max_messages("set_strengths"),
            "paired": lambda s: tally.max_messages("send_cells"),
            "grown": lambda s: self._mean(s, "values", "partial_gradient"),
            "checkpoints": lambda s: max(0, tally.max_messages("save") - 1),
            "mergers": lambda s: tally.max_messages("send_equal_rows"),
            "probes": lambda s: tally.max_messages("probe"),
            "run": lambda s: self._largest(None, "model", "save"),
            "request_text": lambda s: self._largest(s, "request", "propose"),
        }  # fmt: skip

    def of(self, symbol: Symbol) -> Value | None:
        """Return the value of a symbol; None for a role that messages do not show."""
        lookup = self._roles.get(symbol.role)
        return None if lookup is None else lookup(symbol)

    def _sum(self, symbol: Symbol | None, *kinds: str) -> Sum:
        """Return the messages of these kinds at the symbol's client and slot; at all for None."""
        client = None if symbol is None else symbol.client
        return self._tally.of(kinds, client, None if symbol is None else symbol.slot)

    def _largest(self, symbol: Symbol | None, name: str, *kinds: str) -> int:
        """Return the largest number `name` in one message; 0 without a message."""
        return self._sum(symbol, *kinds).largest.get(name, 0)

    def _mean(self, symbol: Symbol | None, name: str, *kinds: str) -> Fraction:
        """Return the mean of the number `name` over the messages; 0 without a message."""
        counted = self._sum(symbol, *kinds)
        return Fraction(counted.total[name], max(1, counted.messages))

    def _total(self, symbol: Symbol, name: str, kind: str, times: int) -> Fraction:
        """Return the sum of the number `name` over the messages, divided by `times`."""
        return Fraction(self._sum(symbol, kind).total[name], max(1, times))

    def _trained(self, symbol: Symbol) -> int:
        """Return the distinct rows that a client reports; its active rows if it reports none."""
        distinct = self._largest(symbol, "distinct", "equal_rows")
        return distinct or self._largest(symbol, "active", "activate")

    def _key(self, symbol: Symbol) -> int:
        """Return the position of a key among the keys of its slot."""
        return self._plan.ucq.slots[symbol.slot or 0].keys.index(symbol.part or 0)

    def _entries(self, symbol: Symbol, *kinds: str) -> int:
        """Return the entries of a category, by its number among those of the slot."""
        before = self._plan.ucq.slots[symbol.slot or 0].features[: symbol.part]
        number = sum(feature.kind == CATEGORY for feature in before)
        return self._largest(symbol, f"tags.{number}", *kinds)

    def _columns(self, symbol: Symbol) -> int:
        """Return the encoded columns of a slot."""
        width = self._largest(symbol, "width", "ready")
        return width or self._largest(symbol, "columns", "separated")  # CHECK encodes late

    def _pairs(self, symbol: Symbol) -> int:
        """Return the pairs of one-hot columns, a column with itself too."""
        columns = self._largest(symbol, "onehot", "set_gram")
        return columns * (columns + 1) // 2

    def _later_batch(self, symbol: Symbol, epochs: int) -> Fraction:
        """Return the mean number of rows in a batch that is not the first of an epoch."""
        later_batches = self._tally.max_messages("residuals") - epochs
        return self._total(symbol, "batch", "residuals", later_batches)

    def _first_batch(self, symbol: Symbol, epochs: int) -> Fraction:
        """Return the mean number of rows in the first batch of an epoch. A batch of all active rows
        has no list of rows.
        """
        numbers = self._sum(symbol, "send_predictions").total
        active = self._largest(symbol, "active", "activate")
        rows = numbers[FIRST_WHOLE] * active + numbers[FIRST_LISTED]
        return Fraction(rows, max(1, epochs))

    def _exact(self) -> int:
        """Return the number of exact iterations that move the model: a request for all scores moves
        nothing.
        """
        steps = self._tally.max_messages("exact_residuals")
        return steps - self._tally.max_messages("send_exact_predictions") if steps else 0


def _facts(message: ms.Message) -> dict[str, int]:
    """Return the message's numbers, and the sizes of its texts and arrays, by name."""
    facts: dict[str, int] = {}
    for name, form in message.forms().items():
        facts |= _fact(name, getattr(message, name), form)
    if isinstance(message, ms.SendPredictions) and message.training:
        facts |= {FIRST_LISTED: int(message.batch.size), FIRST_WHOLE: message.whole}
    if isinstance(message, ms.EqualRows) and message.classes.size:
        facts["distinct"] = int(message.classes.max()) + 1
    return facts


def _fact(name: str, value: Any, form: Form) -> dict[str, int]:
    """Return the numbers of one field: a number itself, or the sizes of its texts and arrays."""
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
