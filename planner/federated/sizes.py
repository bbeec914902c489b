"""Formulas of sizes: polynomials of named quantities with integer coefficients. `amounts` makes
those of messages from their forms, `phases` says which messages are exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Client

Monomial: TypeAlias = "tuple[Symbol, ...]"
"""A product of symbols, sorted; a power repeats its symbol; the empty one is 1."""
Number: TypeAlias = int | Fraction


@dataclass(frozen=True)
class Symbol:
    """A quantity that is known only when the plan runs, or after the data is read."""

    name: str
    """The printed form, 'a[f@airline/0]'; unique in a plan."""
    role: str
    """The counted quantity, 'active'; one of the roles in `sqlfl.planner.federated.symbols`."""
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
        """The value where each symbol's name has the value given in `bindings`.

        Averages may be bound to fractions. Raises InternalError for a symbol without a value,
        and where the result is not a whole number.
        """
        total = Fraction(0)
        for monomial, coefficient in self._terms.items():
            product = Fraction(coefficient)
            for symbol in monomial:
                if symbol.name not in bindings:
                    raise InternalError(f"no value for {symbol.name} in {self}")
                product *= Fraction(bindings[symbol.name])
            total += product
        if total.denominator != 1:
            raise InternalError(f"{self} is {total}: not a whole number")
        return int(total)

    def __add__(self, other: Size | Symbol | int) -> Size:
        return total((self, other))

    def __mul__(self, other: Size | Symbol | int) -> Size:
        other = size(other)
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
            return self._terms == size(other)._terms
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


def size(value: Size | Symbol | int) -> Size:
    return value if isinstance(value, Size) else Size(value)


def total(values: Iterable[Size | Symbol | int]) -> Size:
    terms: dict[Monomial, int] = {}
    for value in values:
        for monomial, coefficient in size(value).terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
    return Size(terms)


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return -len(monomial), tuple(symbol.name for symbol in monomial)


def _product(monomial: Monomial, coefficient: int) -> str:
    factors = [] if coefficient == 1 and monomial else [str(coefficient)]
    for symbol in dict.fromkeys(monomial):
        power = monomial.count(symbol)
        factors.append(symbol.name if power == 1 else f"{symbol.name}^{power}")
    return "·".join(factors)
