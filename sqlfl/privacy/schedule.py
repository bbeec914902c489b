"""How often the rows of a slot take part in what a run releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlfl.errors import InternalError
from sqlfl.privacy.specification import SlotRounds


@dataclass(frozen=True)
class Part:
    """A slot in a run, as far as it decides how often its rows take part in something."""

    options: Mapping[str, object]
    """Of WITH, resolved."""
    tower: bool
    joined: int
    """N, joined rows that train."""
    copies: int
    """F: of these, those that a row of the slot is in, at most."""
    clients: int

    @property
    def epochs(self) -> int:
        return self.integer("epochs", 0)

    def integer(self, name: str, usual: int) -> int:
        """An option. Raises InternalError for one that is no positive number."""
        value = self.options.get(name)
        if value is None:
            return usual
        if not isinstance(value, int) or value < 1:
            raise InternalError(f"option {name} is no positive number: {value!r}")
        return value


@dataclass(frozen=True)
class Counts:
    """Of the whole run."""

    gradients: int
    """Sums of gradients that a row is in, at most."""
    predictions: int
    """Predictions of a row after steps, at most: that of a tower's first parameters apart."""
    steps: int


class Method(Protocol):
    """What a method's `MethodSpec` says of its private rounds."""

    @property
    def name(self) -> str: ...
    @property
    def private(self) -> Callable[[Part], Counts] | None: ...
    @property
    def moments(self) -> bool: ...


def slot_rounds(
    method: Method,
    options: Mapping[str, object],
    *,
    tower: bool,
    slot: int,
    joined: int,
    clip: float,
    clients: int,
    copies: int,
    partners: Mapping[int, int],
    numeric: int = 0,
    categories: int = 0,
    largest: float = 0.0,
    one_sided: frozenset[int] = frozenset(),
    one_sided_slopes: bool = False,
) -> SlotRounds:
    """The plan of one slot, from the resolved options of WITH.

    joined: N, joined rows that train. copies: F, and partners: slot j -> F_ij, each counted over
    these; `one_sided` and `one_sided_slopes` as SlotRounds has them. For second moments: `numeric`
    encoded columns and `categories` features of the slot, and the `largest` count (sum of weights)
    of a row. Towers predict once before the first step.

    InternalError for a method that cannot be private, or an option that is no number.
    """
    part = Part(options, tower, joined, max(copies, 1), clients)
    if part.epochs < 1 or joined < 1 or clients < 1:
        raise InternalError(f"{part.epochs} epochs over {joined} joined rows at {clients} clients")
    if method.private is None:
        raise InternalError(f"{method.name!r} has no private rounds")
    counts, moments = method.private(part), method.moments and not tower
    bound = row_bound(numeric) if moments else 0.0
    return SlotRounds(
        slot=slot,
        gradients=counts.gradients,
        predictions=counts.predictions + int(tower),
        moments=int(moments),
        moments_sensitivity=moments_sensitivity(largest, bound, categories) if moments else 0.0,
        clip=clip,
        clients=clients,
        copies=part.copies,
        partners=dict(partners),
        steps=counts.steps,
        whole=counts.steps == part.epochs,
        epochs=part.epochs,
        row_bound=bound,
        one_sided=one_sided,
        one_sided_slopes=one_sided_slopes,
    )


def row_bound(numeric: int) -> float:
    """R of so many encoded numeric columns: the norm of a row whose columns are all 1 or −1."""
    return math.sqrt(numeric)


def moments_sensitivity(largest: float, bound: float, categories: int) -> float:
    """ℓ2 sensitivity of a slot's second moments for the change of one row's features.

    Of its numeric columns, ‖x‖ ≤ R, all numbers of Σ cnt x xᵀ: cnt ‖x xᵀ − y yᵀ‖ in the Frobenius
    norm is cnt √(‖x‖⁴ + ‖y‖⁴ − 2 (x·y)²) ≤ cnt √2 R², attained for x ⟂ y. Of each of k category
    features the counts Σ cnt: one falls by cnt, another rises. InternalError for a slot without
    columns, or rows that count nothing.
    """
    found = largest * math.sqrt(2.0 * bound**4 + 2.0 * categories)
    if not found > 0.0:
        raise InternalError("second moments of nothing")
    return found
