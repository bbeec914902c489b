"""Depth of the tests, and the seed of their random cases.

SQLFL_DEPTH : 'quick' (`make quick`), 'test' (`make test`, the default) or 'thorough'
    (`make thorough`).
SQLFL_SEED : the seed of all random cases. A failing run prints it, so that it can be repeated.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations as combinations_of
from itertools import product
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

Value = TypeVar("Value")

DEPTH = os.environ.get("SQLFL_DEPTH", "test")
THOROUGH = DEPTH == "thorough"
QUICK = DEPTH == "quick"
SEED = int(os.environ.get("SQLFL_SEED", "20261126"))

_COMMON = {
    "database": None,
    "derandomize": False,  # the default in CI, which would draw the same cases for all seeds
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
}
settings.register_profile(
    "quick", max_examples=3, phases=[Phase.explicit, Phase.generate], **_COMMON
)
settings.register_profile("test", max_examples=8, **_COMMON)
settings.register_profile("thorough", max_examples=500, **_COMMON)


def examples(few: int, many: int | None = None) -> settings:
    """Return the settings of a test whose examples take long: `few` examples, and at depth
    'thorough' `many` (20 times `few` where it is not given). They may take five minutes of a core,
    since a test is in one shard, and runs on one core."""
    return settings(max_examples=(many or 20 * few) if THOROUGH else few)


def combinations(*dimensions: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the combinations of values to test: at depth 'thorough' all, else a covering array,
    in which any two values of different dimensions stand together at least once.

    It makes the parameters of one test: `parametrize(("a", "b", "c"), combinations(A, B, C))`.
    """
    numbers = [range(len(values)) for values in dimensions]
    chosen = list(product(*numbers)) if THOROUGH else _covering(numbers)
    return [
        tuple(values[number] for values, number in zip(dimensions, row, strict=True))
        for row in chosen
    ]


def spread(values: Iterable[Value], count: int) -> list[Value]:
    """Return `count` of the values, the first and others at equal distances; at depth 'thorough'
    all of them."""
    every = list(values)
    count = len(every) if THOROUGH else min(count, len(every))
    return [every[n * len(every) // count] for n in range(count)]


def in_turn(first: Iterable[Any], *others: Sequence[Any], each: int = 1) -> list[tuple[Any, ...]]:
    """Return the combinations to test: each value of `first` beside `each` combinations of the
    others, which change in turn; at depth 'thorough' all."""
    turns = list(product(*others))
    each = len(turns) if THOROUGH else min(each, len(turns))
    return [
        (value, *turns[(number + n * len(turns) // each) % len(turns)])
        for number, value in enumerate(first)
        for n in range(each)
    ]


def _covering(numbers: Sequence[range]) -> list[tuple[int, ...]]:
    """Choose row by row the one of all combinations that has most pairs which no other has; of
    several such the one whose pairs are the rarest among the others."""
    rows = list(product(*numbers))
    pairs = {row: set(combinations_of(enumerate(row), 2)) for row in rows}
    open_pairs = set[Any]().union(*pairs.values())
    times = Counter[Any]()
    chosen = [] if len(numbers) > 1 else rows
    while open_pairs:
        best = max(
            rows,
            key=lambda row: (len(pairs[row] & open_pairs), -sum(times[p] for p in pairs[row])),
        )
        open_pairs -= pairs[best]
        times.update(pairs[best])
        chosen.append(best)
    return sorted(chosen)
