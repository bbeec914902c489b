"""Sensitivity of every release of training, over random pairs of neighbouring tables.

Two tables are neighbours if one row of them differs in its features. Each release is computed by
the client's own functions, for many pairs at once where they take stacks of tables. It moves by no
more than what its noise is in proportion to, and some pairs attain that: so ratios are at most 1,
and the largest is nearly 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.methods.frank_wolfe.client import FrankWolfeOperator
from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.messages import ColumnDirection, SetSketch
from sqlfl.methods.moments import client as of
from sqlfl.party import release_guard as guard
from sqlfl.party.moments import clipped_moments
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.privacy.block_moments import (
    fits_change,
    labels_change,
    moments_change,
    moments_sensitivity,
)
from tests.depth import THOROUGH
from tests.methods.harness import DenseEngine
from tests.privacy.neighbours import offsets_of, rows_of

Array = np.ndarray
PAIRS = 60_000 if THOROUGH else 2_000
BATCH = 10_000
ROWS = 5
BOUND = 2.0
SHAPES = [
    (1, ()), (2, ()), (3, ()), (4, ()), (0, (2,)), (0, (3, 4)), (1, (3,)), (2, (3,)), (3, (2, 5)),
]  # fmt: skip
"""Numeric columns, and how many entries each category feature has."""


def batches() -> Iterator[int]:
    for start in range(0, PAIRS, BATCH):
        yield min(BATCH, PAIRS - start)


def neighbours(
    rng: np.random.Generator, count: int, numeric: int, entries: tuple[int, ...]
) -> tuple[Array, Array]:
    """Pairs of tables (count, ROWS, d). Numbers lie within BOUND, but some of the rows that differ:
    these have NULL, or numbers far beyond it."""
    width = numeric + sum(entries)
    one = rows_of(rng, count * ROWS, numeric, entries).reshape(count, ROWS, width)
    two = one.copy()
    changed = np.arange(count), rng.integers(0, ROWS, count)
    two[changed] = rows_of(rng, count, numeric, entries)
    opposite = rng.random(count) < 0.3
    two[*changed, :numeric] = np.where(
        opposite[:, None], -one[*changed, :numeric], two[*changed, :numeric]
    )
    for table in (one, two):
        table[..., :numeric] *= BOUND
    if numeric:
        wild = rng.random(count) < 0.2
        factors = rng.choice([2.0, 1e300, np.nan], count)
        two[*changed, :numeric] *= np.where(wild, factors, 1.0)[:, None]
    return one, two


def report(what: str, ratios: Array | list[float], least: float = 1.0 - 1e-6) -> None:
    """Check the ratios of how far a release moves and its sensitivity; `pytest -s` shows them."""
    largest = float(np.max(ratios))
    print(f"{what}: {np.size(ratios)} pairs, the largest ratio {largest:.9f}")
    assert least <= largest <= 1.0 + 1e-9


@pytest.mark.parametrize(("numeric", "entries"), SHAPES)
def test_second_moments(numeric: int, entries: tuple[int, ...]) -> None:
    rng = np.random.default_rng(numeric + 10 * len(entries))
    offsets, ratios = offsets_of(numeric, entries), []
    for count in batches():
        cap = rng.choice([0.5, 3.0, 20.0])
        weights = np.minimum(rng.geometric(0.2, (count, ROWS)) / cap, 1.0)
        sums = []
        for table in neighbours(rng, count, numeric, entries):
            numbers = of.bounded_numbers(table[..., :numeric], BOUND)
            parts = of.second_moments(numbers, table[..., numeric:], weights, offsets)
            sums.append(np.concatenate(parts, axis=-1) * of.scales_of(parts, numeric))
        moved = np.linalg.norm(sums[0] - sums[1], axis=-1)
        ratios.append(moved / moments_change(numeric, len(entries)))
    report(f"second moments, {numeric} numbers, categories {entries}", np.concatenate(ratios))


@pytest.mark.parametrize(("numeric", "entries"), SHAPES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_moments_with_the_label_or_with_fits(
    numeric: int, entries: tuple[int, ...], outputs: int
) -> None:
    """Whatever sums of labels or fits the coordinator sends."""
    rng = np.random.default_rng(numeric + 10 * len(entries) + outputs)
    ratios = []
    for count in batches():
        sent = rng.normal(size=(count, ROWS, outputs)) * rng.choice(
            [0.1, 1.0, 1e300], (count, 1, 1)
        )
        sent[rng.random((count, ROWS)) < 0.05] = np.nan
        known, factors = of.bounded_sums(sent)
        sums = [
            of.moments_with(
                of.bounded_numbers(table[..., :numeric], BOUND),
                table[..., numeric:],
                known * factors,
            )
            for table in neighbours(rng, count, numeric, entries)
        ]
        moved = np.linalg.norm(sums[0] - sums[1], axis=(-2, -1))
        ratios.append(moved / labels_change(numeric, len(entries)))
    report(
        f"moments with {outputs} sums, {numeric} numbers, categories {entries}",
        np.concatenate(ratios),
    )


@pytest.mark.parametrize(("numeric", "entries"), SHAPES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_fits(numeric: int, entries: tuple[int, ...], outputs: int) -> None:
    """Attained where all outputs have the same signs, as one always has."""
    rng = np.random.default_rng(100 + numeric + 10 * len(entries) + outputs)
    offsets, ratios, parts = offsets_of(numeric, entries), [], 20
    for _ in range(parts):
        mixed = rng.normal(size=(offsets[-1], outputs)) * rng.choice([1e-3, 1.0, 1e100])
        alike = np.abs(mixed[:, :1]) * rng.uniform(0.5, 2.0, outputs)
        alike *= np.where(rng.random((offsets[-1], 1)) < 0.5, -1.0, 1.0)
        for theta in (mixed, alike):
            one, two = neighbours(rng, PAIRS // (2 * parts * ROWS) + 1, numeric, entries)
            one[0, 0], two[0] = farthest(alike, offsets, 1.0), one[0]
            two[0, 0] = farthest(alike, offsets, -1.0)
            fits = [
                of.fits_of(
                    of.bounded_numbers(table[..., :numeric], BOUND), table[..., numeric:], theta
                )
                for table in (one, two)
            ]
            moved = np.linalg.norm(fits[0] - fits[1], axis=-1)
            ratios.append(moved.ravel() / fits_change(theta, offsets))
    report(
        f"fits of {outputs} outputs, {numeric} numbers, categories {entries}",
        np.concatenate(ratios),
    )


def farthest(theta: Array, offsets: tuple[int, ...], sign: float) -> Array:
    """The row with the largest fit of the first output, times the sign."""
    row = np.zeros(len(theta))
    row[: offsets[0]] = BOUND * sign * np.where(theta[: offsets[0], 0] < 0.0, -1.0, 1.0)
    for start, end in pairwise(offsets):
        place = start + int(np.argmax(sign * theta[start:end, 0]))
        row[place] = float(sign * theta[place, 0] > 0.0)
    return row


class Lasso:
    """A client with a table of six rows, of which one is in 200 joined rows, and many columns: each
    column is scored and sketched by itself, so that each is a table of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
        self._rows = np.repeat(np.arange(6), [1, 1, 2, 3, 50, 200]).astype(np.uint32)
        self._rng = rng
        self.released: list[tuple[Array, float]] = []
        monkeypatch.setattr(ReleaseGuard, "choose", self._choose)
        monkeypatch.setattr(ReleaseGuard, "sketch", self._sketch)

    def _choose(self, scores: Array, sensitivity: float) -> int:
        self.released.append((np.array(scores), sensitivity))
        return 0

    def _sketch(self, values: Array, sensitivity: float) -> Array:
        self.released.append((np.array(values), sensitivity))
        return values

    def pair(self, columns: int, *, hot: bool) -> tuple[Array, Array, Array]:
        """Two tables, and the centre of their columns: one-hot ones if `hot`."""
        rng = self._rng
        centre = rng.uniform(0.0, 1.0, columns) if hot else np.zeros(columns)
        one = rng.integers(0, 2, (6, columns)) if hot else rng.uniform(-3.0, 3.0, (6, columns))
        two = np.array(one, np.float64)
        row = int(rng.integers(0, 6))
        if hot:
            two[row] = rng.integers(0, 2, columns)
        else:
            two[row] = -two[row] * rng.choice([1.0, 1e300, np.nan], columns)
        return np.array(one, np.float64), two, centre

    def operator(self, x: Array, centre: Array, *, hot: bool) -> FrankWolfeOperator:
        noise = RoundNoise(
            0.0, 0.0, mechanism="gumbel", selection_noise=4.0, column_bound=BOUND,
            residual_bound=30.0, sketch_noise=1.0,
        )  # fmt: skip
        configuration = FrankWolfeConfiguration(
            outputs=1, rows=len(self._rows), total=float(len(self._rows)), clients=1, leader=True,
            l2=0.0, curvature=1.0, privacy=noise, radius=1.0, sketch=64,
        )  # fmt: skip
        counts = np.bincount(self._rows).astype(float)
        engine = DenseEngine(x, counts, centre, x.shape[1] if hot else 0)
        operator = FrankWolfeOperator(engine, configuration, "run", 0)
        none = np.zeros(0, np.uint32)
        operator.handle(SetSketch("run", 0, 7, len(self._rows), self._rows, none))
        return operator


@pytest.mark.parametrize("hot", [False, True])
def test_scores_of_a_choice(hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever direction the coordinator sends."""
    rng = np.random.default_rng(4)
    client, ratios, columns = Lasso(monkeypatch, rng), [], 500
    for size in np.resize([0.0, 1e-3, 1.0, 1e9], PAIRS // columns):
        *tables, centre = client.pair(columns, hot=hot)
        direction = (size * rng.normal(size=64)).astype(np.float32)
        for x in tables:
            client.operator(x, centre, hot=hot).handle(
                ColumnDirection("run", 0, direction, np.zeros(0))
            )
            client.released.pop()  # the sketch
        (one, sensitivity), (two, same) = client.released[-2:]
        assert sensitivity == same > 0.0
        ratios.append(np.abs(one - two)[:columns] / sensitivity)
    report(f"scores of {'one-hot' if hot else 'numeric'} columns", np.concatenate(ratios))


@pytest.mark.parametrize("hot", [False, True])
def test_sketches_of_columns(hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    client, ratios, columns = Lasso(monkeypatch, rng), [], 500
    for _ in range(PAIRS // columns):
        *tables, centre = client.pair(columns, hot=hot)
        client.released = []
        for x in tables:
            operator = client.operator(x, centre, hot=hot)
            for number in range(columns):
                operator._tell(number)
        assert len({sensitivity for _, sensitivity in client.released}) == 1
        told = np.array([values for values, _ in client.released]).reshape(2, columns, 64)
        moved = np.linalg.norm(told[0] - told[1], axis=-1)
        ratios.append(moved / client.released[0][1])
    report(f"sketches of {'one-hot' if hot else 'numeric'} columns", np.concatenate(ratios))


@pytest.mark.parametrize("outputs", [1, 3])
def test_predictions(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "add_gaussian", lambda values, *_: values)
    rng = np.random.default_rng(6)
    noise = RoundNoise(1.0, 1.0, prediction_clip=1.5, prediction_noise=1.0)
    own = ReleaseGuard(noise, PAIRS)
    sizes = rng.choice([0.1, 1.0, 10.0, np.nan, np.inf], (PAIRS, 1))
    one = rng.normal(size=(PAIRS, outputs)) * sizes
    opposite = rng.random((PAIRS, 1)) < 0.3
    two = np.where(opposite, -one, rng.normal(size=(PAIRS, outputs)))
    moved = own.predictions(one, None) - own.predictions(two, None)
    report(f"predictions of {outputs} outputs", np.linalg.norm(moved, axis=1) / (2.0 * 1.5))


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients(outputs: int) -> None:
    """A row's part of a sum: x Yᵀ, scaled by the client's factor."""
    rng = np.random.default_rng(7)
    own = ReleaseGuard(RoundNoise(0.3, 1.0), PAIRS)
    y = rng.normal(size=(PAIRS, outputs)) * rng.choice([0.01, 1.0, 1e3], (PAIRS, 1))
    one = rng.normal(size=(PAIRS, 4)) * rng.choice([0.1, 1.0, 1e10], (PAIRS, 1))
    two = np.where(rng.random((PAIRS, 1)) < 0.3, -one, rng.normal(size=(PAIRS, 4)))
    parts = []
    for x in (one, two):
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        parts.append(np.einsum("rd,rc->rdc", x, y * own.factors(norms)[:, None]))
    moved = np.linalg.norm(parts[0] - parts[1], axis=(1, 2))
    report(f"gradients of {outputs} outputs", moved / (2.0 * 0.3))


@pytest.mark.parametrize(("numeric", "entries"), [(2, ()), (0, (3,)), (2, (3, 2))])
def test_second_moments_of_admm(numeric: int, entries: tuple[int, ...]) -> None:
    """Of rows of any length: they are scaled to the bound. Tables follow one another, each of which
    differs from the last in one row."""
    rng = np.random.default_rng(8)
    counts = np.array([1.0, 4.0, 4.0])
    change = moments_sensitivity(4.0, 1.0 if numeric else 0.0, len(entries))
    rows = rows_of(rng, PAIRS + 3, numeric, entries)
    rows[:, :numeric] *= rng.choice([0.5, 1.0, 1e10], (PAIRS + 3, 1))
    table, before, ratios = rows[:3].copy(), None, []
    for number, row in enumerate(rows[2:]):
        table[number % 3] = row
        engine = DenseEngine(table, counts, np.zeros(table.shape[1]), sum(entries))
        engine.offsets = offsets_of(numeric, entries)
        block, diagonal = clipped_moments(engine, 1.0 if numeric else 0.0)
        sums = np.append(block.ravel(), diagonal)
        if before is not None:
            ratios.append(float(np.linalg.norm(sums - before)) / change)
        before = sums
    assert len(ratios) == PAIRS
    report(f"second moments of ADMM, {numeric} numbers, categories {entries}", ratios, 0.97)
