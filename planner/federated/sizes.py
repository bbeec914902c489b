"""Sizes of messages: formulas of named quantities, from the forms that messages declare.

A formula is a polynomial with integer coefficients. A test, or an auditor, evaluates it by the
symbols of a plan: `role` names the quantity; `slot`, `client` and `part` name its place. `phases`
says which messages are exchanged.

`Size` is such a formula. `forms.Size` is the name that a message's form gives to a length, and
`content` takes a formula for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Client
from sqlfl.messages import Message, forms
from sqlfl.planner.query.ucq import Slot

Monomial: TypeAlias = "tuple[Symbol, ...]"
"""A product of symbols, sorted; a power repeats its symbol; the empty one is 1."""
Number: TypeAlias = int | Fraction


@dataclass(frozen=True)
class Symbol:
    """A quantity that is known only when the plan runs, or after the data is read."""

    name: str
    """The printed form, 'a[f@airline/0]'; unique in a plan."""
    role: str
    """The counted quantity, 'active'; one of the roles in `sqlfl.planner.federated.sizes`."""
    slot: int | None = None
    client: Client | None = None
    """None for a number of the whole slot, or of the whole query."""
    part: int | None = None
    """The key's index in the query, or the feature's position in the slot."""

    def __hash__(self) -> int:
        return hash(self.name)


class Size:
    """A polynomial in symbols; immutable, compared by value.

    Terms print in descending degree, then by name, negative ones last: `4·a[f@airline/0]·d_c + 8`.
    """

    __slots__ = ("_terms",)

    def __init__(self, value: int | Symbol | Mapping[Monomial, int] = 0) -> None:
        terms: dict[Monomial, int] = {}
        if isinstance(value, Symbol):
            terms[(value,)] = 1
        elif isinstance(value, int):
            terms[()] = value
        else:
            terms.update(value)
        order = terms if len(terms) < 2 else sorted(terms, key=_order)
        self._terms: dict[Monomial, int] = {name: terms[name] for name in order if terms[name]}

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols that occur, by name."""
        symbols = {symbol for monomial in self._terms for symbol in monomial}
        return tuple(sorted(symbols, key=lambda symbol: symbol.name))

    @property
    def terms(self) -> tuple[tuple[Monomial, int], ...]:
        """(product of symbols, coefficient), in the order of printing."""
        return tuple(self._terms.items())

    def evaluate(self, bindings: Mapping[str, Number]) -> int:
        """Return the value of the formula; `bindings` has the values of symbols by their names.

        Averages may be bound to fractions. Raise InternalError for a symbol without a value, and
        for a result that is not a whole number.
        """
        value = Fraction(0)
        for monomial, coefficient in self._terms.items():
            product = Fraction(coefficient)
            for symbol in monomial:
                if symbol.name not in bindings:
                    raise InternalError(f"no value for {symbol.name} in {self}")
                product *= Fraction(bindings[symbol.name])
            value += product
        if value.denominator != 1:
            raise InternalError(f"{self} is {value}: not a whole number")
        return int(value)

    def __add__(self, other: Size | Symbol | int) -> Size:
        return total((self, other))

    def __mul__(self, other: Size | Symbol | int) -> Size:
        other = as_size(other)
        if self._terms == _UNIT:
            return other
        if other._terms == _UNIT:
            return self
        terms: dict[Monomial, int] = {}
        for left, first in self._terms.items():
            for right, second in other._terms.items():
                monomial = left + right
                if left and right:
                    monomial = tuple(sorted(monomial, key=lambda symbol: symbol.name))
                terms[monomial] = terms.get(monomial, 0) + first * second
        return Size(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, Symbol)):
            return self._terms == as_size(other)._terms
        return isinstance(other, Size) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(tuple(self._terms.items()))

    def __bool__(self) -> bool:
        return bool(self._terms)

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in sorted(self._terms.items(), key=lambda term: term[1] < 0):
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} " if text else sign.strip("+")
            text += _product(monomial, abs(coefficient))
        return text or "0"

    def __repr__(self) -> str:
        return f"Size({self})"


_UNIT: dict[Monomial, int] = {(): 1}


def as_size(value: Size | Symbol | int) -> Size:
    """Return the formula that is this formula, symbol or number."""
    return value if isinstance(value, Size) else Size(value)


def total(values: Iterable[Size | Symbol | int]) -> Size:
    """Return the sum of the formulas; 0 for none."""
    terms: dict[Monomial, int] = {}
    for value in values:
        for monomial, coefficient in as_size(value).terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
    return Size(terms)


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """Return the sort key of a term: the highest degree first, then by names."""
    return -len(monomial), tuple(symbol.name for symbol in monomial)


def _product(monomial: Monomial, coefficient: int) -> str:
    """Return the text of a term, as `2·a·b^2`; a coefficient of 1 is left out before symbols."""
    factors = [] if coefficient == 1 and monomial else [str(coefficient)]
    for symbol in dict.fromkeys(monomial):
        power = monomial.count(symbol)
        factors.append(symbol.name if power == 1 else f"{symbol.name}^{power}")
    return "·".join(factors)


ROLES: dict[str, tuple[str, str]] = {
    "joined": ("N", "joined rows: rows of the query's result"),
    "outputs": ("d_c", "outputs of the model"),
    "rows": ("n[slot@client]", "rows of the client's snapshot"),
    "active": ("a[slot@client]", "rows of the snapshot that occur in the join (active rows)"),
    "trained": (
        "R[slot@client]",
        "active rows that differ in a feature (all of them, where the client does not tell "
        "which are equal)",
    ),
    "told": ("j[slot@client]", "active rows that it tells of, none where few are equal"),
    "sealed": (
        "l[slot@client.database]",
        "bytes of the groups that another database of the party merges",
    ),
    "tags": ("u[slot@client.key]", "distinct values of the join key in the snapshot, NULL apart"),
    "vocabulary": (
        "v[slot@client.feature]",
        "distinct values of the category in active rows (of weight above 0)",
    ),
    "points": (
        "q[slot@client.feature]",
        "groups of its rows, or values of many rows, that a client names for a curve",
    ),
    "merged_points": (
        "Q[slot.feature]",
        "points of a curve over all clients of the slot",
    ),
    "merged_vocabulary": (
        "y[slot.feature]",
        "distinct values of the category over all clients of the slot",
    ),
    "frequent": (
        "x[slot@client.feature]",
        "categories that are frequent enough at the client, up to noise",
    ),
    "merged_frequent": (
        "t[slot.feature]",
        "categories that are frequent enough at one of the slot's clients or more, up to noise",
    ),
    "columns": ("d[slot]", "encoded columns, d = p + q"),
    "numeric": ("p[slot]", "numeric encoded columns, missing indicators among them"),
    "onehot": ("q[slot]", "one-hot columns"),
    "pairs": ("h[slot]", "pairs of one-hot columns, a column with itself too: q (q + 1) / 2"),
    "stored": (
        "z[slot@client]",
        "pairs of categories that occur together (in rows of weight above 0; upper triangle)",
    ),
    "crossed": (
        "Y[slot@client]",
        "pairs of categories of two features, and of each category with itself",
    ),
    "merged_stored": ("z[slot]", "the same over all clients of the slot"),
    "block_columns": ("L[slot]", "encoded columns of the model's block"),
    "directions": (
        "X[slot]",
        "directions of the intercept: 1 and the columns of tables whose owners leave out what is "
        "part of it; 0 where the table is none of these",
    ),
    "names": (
        "Q[slot@client]",
        "bytes of the names of the block's features and categories, as the client knows them",
    ),
    "classes": ("K[slot@client]", "distinct classes among the client's active rows"),
    "class_text": ("k[slot@client]", "bytes of the client's distinct class names"),
    "identifiers": ("i[slot@client]", "bytes of the identifier columns of active rows"),
    "written": (
        "m[slot@client]",
        "joined rows that come from the client's rows of the slot",
    ),
    "configuration": ("c[slot@client]", "bytes of the options of training, as JSON"),
    "batch": (
        "b[slot@client]",
        "active rows in a batch, on average over all batches but the first of each epoch",
    ),
    "first_batch": (
        "g[slot@client]",
        "active rows in the first batch of an epoch, on average",
    ),
    "first_listed": (
        "l[slot@client]",
        "those of them that are listed: all, or none where a batch is all rows",
    ),
    "stepped": (
        "A[slot@client]",
        "active rows in a batch, on average over all batches",
    ),
    "listed": (
        "o[slot@client]",
        "joined rows that have a row of the client, of those that are listed, on average",
    ),
    "chosen": (
        "C[slot]",
        "encoded columns of the block that were told, on average over the weights that were sent",
    ),
    "chosen_in_all": ("I[slot]", "encoded columns of the block that were told, in the end"),
    "new_column": (
        "Z[slot@client]",
        "numbers of a column that is told for the first time, on average over all replies: none "
        "of one that was told before",
    ),
    "settled": (
        "W",
        "times that weights were sent without a further question: 1, or 0 where training was "
        "stopped",
    ),
    "sums": (
        "U",
        "times that embeddings were summed: batches, and in each epoch those of the rows for "
        "validation",
    ),
    "packed": ("B", "bytes of a sum's masked numbers, on average"),
    "rounds": ("T", "epochs that were run (lbfgs: iterations that moved the model)"),
    "steps": ("S", "batches that were run, over all epochs"),
    "exact": (
        "E",
        "iterations in 8-byte numbers: of joins whose tables' columns nearly cancel, or of a loss "
        "that nearly vanishes; of others 0",
    ),
    "renewals": (
        "F",
        "times that all scores and the gradient were asked for anew in 8-byte numbers: 0 where no "
        "iteration needs them",
    ),
    "proofs": (
        "V",
        "times that the gradient was measured in the end: 1, or 0 where training was stopped",
    ),
    "updates": (
        "M",
        "times that the strengths of curves and categories were found anew: 10 at most, and 0 of "
        "fewer than 200 joined rows",
    ),
    "paired": (
        "H",
        "times that databases of one table chose pairs of features together: 1, or 0 where "
        "training ends before, and of fewer than 200 joined rows",
    ),
    "grown": (
        "D[slot]",
        "numbers of a gradient of the block, on average: more once it has pairs of features",
    ),
    "checkpoints": ("C", "times that the model so far was kept: epochs / checkpoint, at most"),
    "mergers": (
        "G",
        "times that it is asked which rows are equal: 1, or 0 of joins of few rows, and of those "
        "that are never written down",
    ),
    "probes": ("P", "power rounds of the curvature estimate"),
    "run": ("r", "bytes of the name of a training run, under which its blocks are kept"),
    "schema_text": ("s[client]", "bytes of names of schemas, tables, columns, and types, as JSON"),
    "request_text": (
        "q[client]",
        "bytes of what the run is: its kind, options, and messages, as JSON",
    ),
    "described": ("D[client]", "exchanges that ask the database for the columns of SELECTs"),
    "selects": ("h[client]", "SELECTs of such an exchange, on average"),
    "select_text": ("e[client]", "bytes of these SELECTs, on average"),
    "column_text": ("f[client]", "bytes of the names and types of their columns, on average"),
    "column_names": ("w[client]", "their columns, on average"),
}
"""Role of a symbol -> (form of its name, meaning)."""

JOINED = Size(Symbol("N", "joined"))
OUTPUTS = Size(Symbol("d_c", "outputs"))
ROUNDS = Size(Symbol("T", "rounds"))
STEPS = Size(Symbol("S", "steps"))
SUMS = Size(Symbol("U", "sums"))
SETTLED = Size(Symbol("W", "settled"))
PACKED = Size(Symbol("B", "packed"))
EXACT = Size(Symbol("E", "exact"))
RENEWALS = Size(Symbol("F", "renewals"))
UPDATES = Size(Symbol("M", "updates"))
PAIRED = Size(Symbol("H", "paired"))
PROOFS = Size(Symbol("V", "proofs"))
RUN = Size(Symbol("r", "run"))
CHECKPOINTS = Size(Symbol("C", "checkpoints"))
MERGERS = Size(Symbol("G", "mergers"))
PROBES = Size(Symbol("P", "probes"))


def of_client(
    role: str, slot: Slot, client: Client, part: int | None = None, part_name: str = ""
) -> Size:
    """Return the quantity `role` of one client's rows of a slot, or of a part of it."""
    letter = ROLES[role][0].partition("[")[0]
    place = f"{slot.name}@{client}{'.' if part_name else ''}{part_name}"
    return Size(Symbol(f"{letter}[{place}]", role, slot.index, client, part))


def of_slot(role: str, slot: Slot, part: int | None = None, part_name: str = "") -> Size:
    """Return the quantity `role` of a whole slot, or of a part of it."""
    letter = ROLES[role][0].partition("[")[0]
    place = f"{slot.name}{'.' if part_name else ''}{part_name}"
    return Size(Symbol(f"{letter}[{place}]", role, slot.index, None, part))


def of_database(role: str, client: Client) -> Size:
    """Return the quantity `role` of a client's database as a whole."""
    letter = ROLES[role][0].partition("[")[0]
    return Size(Symbol(f"{letter}[{client}]", role, None, client))


@dataclass(frozen=True)
class Amount:
    """Values, and their bytes."""

    count: Size
    bytes: Size


NOTHING = Amount(Size(), Size())
NUMBER = Amount(Size(1), Size(8))

FieldValue: TypeAlias = Amount | Size | int | str | tuple[Size, ...] | tuple[str, ...]
"""Values for the name of a size or a field. For a size: the number, or one for each item of a
field, in order (`tags[k]`). For a field: a text or its UTF-8 bytes; texts; the type of an array
with several; the bytes of columns; or its Amount, NOTHING if it is left out.
"""


@dataclass(frozen=True)
class Content:
    """A message as the plan has it."""

    kind: str
    """The message's kind, as in sqlfl.messages."""
    words: str
    """A description of the contents; empty for a bare request."""
    amount: Amount


def content(kind: type[Message], words: str | None = None, /, **values: FieldValue) -> Content:
    """Return a message of this kind, by default with the words of its kind. Raise InternalError for
    a missing or an unknown size or field.
    """
    return Content(
        kind.kind, kind.words if words is None else words, _MessageValues(kind, values).amount()
    )


class _MessageValues:
    """The values for the sizes and fields of one message. Its methods raise InternalError for a
    missing value and for a value of the wrong type.
    """

    def __init__(self, kind: type[Message], values: dict[str, FieldValue]) -> None:
        self._kind = kind
        self._values = values
        forms_by_field = kind.forms().items()
        fields = {name for name, form in forms_by_field if _is_field_value(values.get(name), form)}
        known = kind.sizes() | fields
        if not values.keys() <= known:
            raise self._error(f"has no {min(values.keys() - known)}")

    def amount(self) -> Amount:
        """Return the amount of the whole message."""
        return _sum_of_amounts(self._field(name, form) for name, form in self._kind.forms().items())

    def _field(self, name: str, form: forms.Form) -> Amount:
        """Return the amount of one field."""
        value = self._values.get(name)
        if isinstance(value, Amount):
            return value
        match form:
            case forms.Number():
                return NUMBER
            case forms.Text():
                return self._text(self._value(name))
            case forms.Texts():
                texts = self._value(name)
                if isinstance(texts, tuple):
                    return _sum_of_amounts(map(self._text, texts))
                raise self._error(f"has several texts as {name}, told is {texts}")
            case forms.Numbers():
                kind = form.types[0] if len(form.types) == 1 else self._value(name)
                return self._array(form, kind)
            case forms.Several():
                items = range(self._length(form.count).evaluate({}))
                return _sum_of_amounts(
                    self._array(form.item, form.item.types[0], item) for item in items
                )
            case forms.Columns():
                count = self._length(form.count) * self._length(form.rows)
                return Amount(count, self._formula(self._value(name), name))

    def _text(self, value: FieldValue) -> Amount:
        """Return the amount of a text, of which `value` is the text or its bytes."""
        length = len(value.encode()) if isinstance(value, str) else value
        return Amount(Size(1), self._formula(length, "text"))

    def _array(self, form: forms.Numbers, kind: FieldValue, item: int = 0) -> Amount:
        """Return the amount of an array of type `kind`. An axis of a fixed length is part of the
        value: the 16 bytes of a tag count as one value.
        """
        if kind not in form.types:
            raise self._error(f"has an array of {' or '.join(form.types)}, told is {kind}")
        count, width = Size(1), forms.item_bytes(str(kind))
        for axis in form.shape:
            if isinstance(axis, int):
                width *= axis
            else:
                count = count * self._length(axis, item)
        return Amount(count, count * width)

    def _length(self, name: forms.Size, item: int = 0) -> Size:
        """Return the length that the form names. A name that ends with ITEM has a length for each
        item of its field; `item` is the item's index.
        """
        if isinstance(name, int):
            return Size(name)
        if not name.endswith(forms.ITEM):
            value = self._value(name)
            if isinstance(value, Amount):  # the field of these texts gives their number
                return value.count
            return self._formula(len(value) if isinstance(value, tuple) else value, name)
        lengths = self._value(name.removesuffix(forms.ITEM))
        if not isinstance(lengths, tuple) or len(lengths) <= item:
            raise self._error(f"has no {name} of item {item}")
        return self._formula(lengths[item], name)

    def _formula(self, value: FieldValue, name: str) -> Size:
        """Return the value of a size, which must be a number or a formula."""
        if isinstance(value, (str, tuple, Amount)):
            raise self._error(f"has a size {name}, told is {value!r:.40}")
        return as_size(value)

    def _value(self, name: str) -> FieldValue:
        """Return the value for a size or a field."""
        if name not in self._values:
            raise self._error(f"is planned without its {name}")
        return self._values[name]

    def _error(self, problem: str) -> InternalError:
        """Return the error that the message has this problem."""
        return InternalError(f"message {self._kind.kind} {problem}")


def _sum_of_amounts(amounts: Iterable[Amount]) -> Amount:
    """Return the sum; an amount alone stays as it is."""
    several = [*amounts]
    if len(several) == 1:
        return several[0]
    return Amount(total(a.count for a in several), total(a.bytes for a in several))


def _is_field_value(value: FieldValue | None, form: forms.Form) -> bool:
    """Return whether the value is one for a field of this form, not for a size of that name."""
    takes_texts = isinstance(form, (forms.Text, forms.Texts, forms.Columns))
    return takes_texts or isinstance(value, (Amount, str))
