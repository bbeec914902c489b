"""Combinations of computed features that few rows make up."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.arrays import Float
from sqlfl.udfs.encoding import cells
from sqlfl.udfs.encoding.cells import Part, TooManyColumns, leaning
from sqlfl.udfs.encoding.fitting import Categories

ROWS = 600
DRAW = np.random.default_rng(7)
X = DRAW.permutation(ROWS).astype(np.float64)
"""Each number from 0 to 599 once."""
NOISE, OTHER = DRAW.normal(size=(2, ROWS))
ROW = (X == 300).astype(np.float64)


def above(bound: float) -> Float:
    return (bound < X).astype(np.float64)


def categories(*columns: Float) -> Categories:
    """The combinations of the columns' values as categories."""
    distinct, codes = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    return Categories(codes.ravel(), tuple(f"v{row}".encode() for row in distinct))


def found(
    *computed: Float | Categories, plain: tuple[Float | Categories, ...] = (), least: int = 10
) -> int | None:
    parts = [Part(n, True, values) for n, values in enumerate(computed)]
    parts += [Part(100 + n, False, values) for n, values in enumerate(plain)]
    return leaning(parts, np.ones(ROWS, np.int64), least)


FEW: dict[str, tuple[tuple[Float | Categories, ...], tuple[Float | Categories, ...]]] = {
    "two bounds": ((above(300), above(309)), ()),
    "a bound beside a column": ((above(309),), (above(300),)),
    "categories": ((categories(above(300)), categories(above(309))), ()),
    "a category beside a column": ((categories(above(309)),), (categories(above(300)),)),
    "a sum of both": ((above(300), above(301), above(300) + above(301)), ()),
    "three bounds": ((above(100) + above(309), above(100), above(300)), ()),
    "one row in two columns": ((NOISE + 1000 * ROW, OTHER + 2000 * ROW), ()),
    "hidden by a little noise": (
        (above(300), above(301), 2 * above(301) - above(300) + 1e-3 * NOISE), (),
    ),
    "of different sizes": ((above(300), 1e-9 * above(309)), ()),
    "gaps": ((np.isnan(np.where(X > 300, np.nan, X)) * 1.0, np.isnan(np.where(X > 301, np.nan, X))
              * 1.0), ()),
}  # fmt: skip
"""Computed columns, and others: nine rows or fewer are told apart."""


@pytest.mark.parametrize("name", FEW)
def test_few_rows_are_told_apart(name: str) -> None:
    computed, plain = FEW[name]
    place = found(*computed, plain=plain)
    assert place is not None
    assert place < len(computed)


ENOUGH: dict[str, tuple[tuple[Float | Categories, ...], tuple[Float | Categories, ...]]] = {
    "two bounds": ((above(300), above(310)), ()),
    "categories": ((categories(above(300)), categories(above(310))), (NOISE,)),
    "the same twice": ((above(300), above(300), 2 * above(300)), (categories(above(300)),)),
    "what others explain": ((2 * NOISE + 1, above(300)), (NOISE, categories(above(300)))),
    "ten rows alike": ((above(589),), (NOISE, OTHER, X)),
    "buckets": ((categories(X // 50), above(299), above(449)), (NOISE, above(349))),
    "a fine scale": ((np.log(1 + X), np.sqrt(X), NOISE**2, NOISE * OTHER), (X, NOISE, OTHER)),
    "many": (tuple(above(bound) for bound in range(20, 580, 20)), (X, NOISE)),
}  # fmt: skip


@pytest.mark.parametrize("name", ENOUGH)
def test_enough_rows_are_not_refused(name: str) -> None:
    computed, plain = ENOUGH[name]
    assert found(*computed, plain=plain) is None


@pytest.mark.parametrize("numbers", [1 << 22, 1000])
def test_rows_count_as_often_as_they_are(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(cells, "MAX_NUMBERS", numbers)
    parts = [Part(0, True, above(300)), Part(1, True, above(301)), Part(2, False, NOISE)]
    copies = np.where(ROW > 0, 9, 1)
    assert leaning(parts, copies - (X == 301), 10) is None  # the row is not there
    assert leaning(parts, np.where(X == 301, 9, 1), 10) is not None
    assert leaning(parts, np.where(X == 301, 10, 1), 10) is None
    assert leaning(parts, np.ones(ROW.shape, np.int64), 1) is None


def test_no_columns_that_are_not_computed_are_looked_at() -> None:
    assert found(plain=(above(300), above(301))) is None


def test_numbers_of_columns_are_bounded() -> None:
    many = Categories(np.arange(ROWS) // 1, tuple(f"v{n}".encode() for n in range(ROWS)))
    assert found(above(300), plain=(many,)) is None  # it is left out
    with pytest.raises(TooManyColumns):
        found(above(300), many)
