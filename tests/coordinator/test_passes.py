"""Passes over joined rows against the dense arrays that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds import passes as passes_module
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.chunks import LOSSES as COMPILED
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.coordinator.rounds.lanczos import largest_eigenvalue, spectrum
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.models.log_link import Gamma, Poisson
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared
from sqlfl.models.native import library
from tests.depth import THOROUGH
from tests.ways import WAYS, take_way

LOSSES: list[Loss] = [Squared(), Poisson(), Gamma(), Logistic(), Softmax(3)]
TOTAL, SIZES = 5000, (5000, 90, 9)


def targets(loss: Loss, rng: np.random.Generator) -> np.ndarray:
    if loss.name == "squared":
        return rng.normal(size=TOTAL)
    if loss.name == "poisson":
        return rng.poisson(2.0, TOTAL).astype(float)
    if loss.name == "gamma":
        return rng.gamma(2.0, size=TOTAL)
    return rng.integers(0, max(2, loss.outputs), TOTAL).astype(np.uint8)


class Dense:
    """The same joined rows as arrays of N rows."""

    def __init__(self, loss: Loss, weighted: bool, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        rows = [np.arange(TOTAL), np.sort(rng.integers(0, 90, TOTAL)), rng.integers(0, 9, TOTAL)]
        self.rows = [own.astype(np.int32) for own in rows]
        self.y = targets(loss, rng)
        self.w: np.ndarray | None = None
        if weighted:
            self.w = rng.random(TOTAL) * rng.integers(0, 2, TOTAL)
            self.w *= TOTAL / self.w.sum()
        pieces = WrittenChunks(TableMapping(self.rows, SIZES), self.y, self.w)
        self.passes = Passes(pieces, loss)
        blocks = [rng.normal(size=(size, loss.outputs)) for size in SIZES]
        self.scores = Scores(by_output(blocks), rng.normal(size=loss.outputs))
        self.h = sum(block[own] for block, own in zip(blocks, self.rows, strict=True))
        self.h = self.h + self.scores.constant

    def sums(self, values: np.ndarray) -> list[np.ndarray]:
        found = []
        for own, size in zip(self.rows, SIZES, strict=True):
            total = np.zeros((values.shape[1], size))
            np.add.at(total.T, own, values)
            found.append(total)
        return found


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_way(request.param, monkeypatch)


@pytest.fixture(params=[None, 1 << 10], ids=["one piece", "many"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setattr(passes_module, "CHUNK", request.param)
        monkeypatch.setattr(passes_module, "LARGE", request.param)
        monkeypatch.setattr(passes_module, "DIRECTIONS", request.param)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_look_is_that_at_all_rows(loss: Loss, weighted: bool) -> None:
    dense = Dense(loss, weighted)
    look = dense.passes.look(dense.scores)
    assert look.value == pytest.approx(loss.value(dense.h, dense.y, dense.w), rel=1e-12)
    slopes = loss.gradient(dense.h, dense.y, dense.w)
    np.testing.assert_allclose(look.total, slopes.sum(axis=0), atol=1e-9)
    for found, expected in zip(look.slots, dense.sums(slopes), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    counting = dense.h if dense.w is None else dense.h[dense.w > 0]
    assert look.largest == pytest.approx(np.abs(counting).max())
    assert look.highest == pytest.approx(counting.max())
    glance = dense.passes.look(dense.scores, sums=False)
    assert (glance.value, glance.slots) == (look.value, ())
    assert dense.passes.value(dense.scores) == look.value
    every = dense.passes.slopes(dense.scores)
    np.testing.assert_allclose(every.T, loss.gradient(dense.h, dense.y), atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_sums_over_rows_that_no_array_holds(loss: Loss, weighted: bool) -> None:
    dense = Dense(loss, weighted)
    passes, w = dense.passes, np.ones(TOTAL) if dense.w is None else dense.w
    np.testing.assert_array_equal(passes.rows(dense.scores), dense.h)
    assert passes.square(dense.scores) == pytest.approx(w @ (dense.h**2).sum(axis=1) / TOTAL)
    mean = loss.mean_curvature(dense.h, dense.w)
    assert passes.mean_curvature(dense.scores) == pytest.approx(mean)
    bend = passes.look(dense.scores).bend
    compiled = library() is not None and loss.name in COMPILED
    assert bend == pytest.approx(mean) if compiled else bend is None
    vector = [np.random.default_rng(1).normal(size=(1, size)) for size in SIZES]
    joined = sum(own[0, rows] for own, rows in zip(vector, dense.rows, strict=True))
    for found, expected in zip(passes.sums(vector), dense.sums((w * joined)[:, None]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_curvatures_are_differences_of_slopes(loss: Loss, weighted: bool) -> None:
    dense = Dense(loss, weighted)
    rng = np.random.default_rng(2)
    ways = [rng.normal(size=(2, loss.outputs, size)) for size in SIZES]
    found = dense.passes.curvatures(dense.scores, ways)

    def slopes(at: Scores) -> np.ndarray:
        look = dense.passes.look(at)
        along = [np.einsum("kcr,cr->k", a, b) for a, b in zip(ways, look.slots, strict=True)]
        return np.concatenate([*along, look.total]) / TOTAL

    for number in range(6 + loss.outputs):
        step = np.zeros(6 + loss.outputs)
        step[number] = 1e-5
        moves = [np.einsum("k,kcr->cr", step[2 * n : 2 * n + 2], own) for n, own in enumerate(ways)]
        ahead = dense.scores.moved(moves, step[6:])
        back = dense.scores.moved([-own for own in moves], -step[6:])
        expected = (slopes(ahead) - slopes(back)) / 2e-5
        np.testing.assert_allclose(found[number], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_sample_of_rows_is_near_all_of_them(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Dense(loss, True)
    ways = [np.random.default_rng(2).normal(size=(1, loss.outputs, size)) for size in SIZES]
    exact = dense.passes.curvatures(dense.scores, ways)
    square = dense.passes.square(dense.scores)
    np.testing.assert_array_equal(dense.passes.curvatures(dense.scores, ways, sampled=True), exact)
    monkeypatch.setattr(passes_module, "SAMPLED", TOTAL // 2)
    some = dense.passes.curvatures(dense.scores, ways, sampled=True)
    assert not np.array_equal(some, exact)
    rtol = 0.3 if loss.bounded else 1.0
    np.testing.assert_allclose(np.diag(some), np.diag(exact), rtol=rtol)
    assert dense.passes.square(dense.scores, sampled=True) == pytest.approx(square, rel=0.2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_proximal_pass_is_the_step_of_all_rows(loss: Loss, weighted: bool) -> None:
    dense = Dense(loss, weighted)
    dual = np.random.default_rng(3).normal(size=(loss.outputs, TOTAL))
    before, w = dual.T.copy(), np.ones(TOTAL) if dense.w is None else dense.w
    look = dense.passes.proximal(dense.scores, dual, 0.5)
    z = loss.prox(dense.h + before / 0.5, dense.y, 0.5)
    gap = 0.5 * (dense.h - z)
    np.testing.assert_allclose(dual.T, before + gap, atol=1e-9)
    pulled = (before + 2.0 * gap) * w[:, None]
    for found, expected in zip(look.slots, dense.sums(pulled), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-7)
    assert look.value == pytest.approx(w @ (gap**2).sum(axis=1) / TOTAL)


def test_rows_that_count_nothing_may_be_anything() -> None:
    """Neither scores beyond all numbers nor the wrong class of rows of weight 0 are seen."""
    dense = Dense(Poisson(), True)
    far = np.zeros((1, TOTAL))
    far[0, dense.w == 0.0] = 1e6
    at = dense.scores.moved([far, *(np.zeros((1, n)) for n in SIZES[1:])], np.zeros(1))
    one, other = dense.passes.look(at), dense.passes.look(dense.scores)
    assert (one.value, one.largest, one.highest) == (other.value, other.largest, other.highest)
    for found, expected in zip(one.slots, other.slots, strict=True):
        np.testing.assert_array_equal(found, expected)

    classes = Dense(Logistic(), True)
    classes.y[:] = classes.h[:, 0] > 0
    assert classes.passes.separates(classes.scores)
    classes.y[classes.w == 0.0] ^= 1
    assert classes.passes.separates(classes.scores)
    classes.y[np.flatnonzero(classes.w)[-1]] ^= 1
    assert not classes.passes.separates(classes.scores)


def test_scores_beyond_all_numbers_are_told() -> None:
    dense = Dense(Squared(), False)
    wrong = np.zeros((1, TOTAL))
    wrong[0, 17] = np.nan
    at = dense.scores.moved([wrong, *(np.zeros((1, n)) for n in SIZES[1:])], np.zeros(1))
    look = dense.passes.look(at)
    assert np.isnan(look.largest)
    assert np.isnan(look.highest)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_largest_eigenvalue_is_bounded_from_above(weighted: bool) -> None:
    total, sizes = 200, (200, 30, 5)
    for seed in range(10 if THOROUGH else 2):
        rng = np.random.default_rng(seed)
        rows = [np.arange(total), rng.integers(0, 30, total), rng.integers(0, 5, total)]
        w = rng.exponential(size=total) if weighted else None
        roots = np.ones(total)
        if w is not None:
            w *= total / w.sum()
            roots = np.sqrt(w)
        tables = [rng.normal(size=(size, 4)) for size in sizes]
        tables = [
            x - np.average(x[p], axis=0, weights=w) for x, p in zip(tables, rows, strict=True)
        ]
        design = roots[:, None] * np.hstack([x[p] for x, p in zip(tables, rows, strict=True)])
        matrix = design @ design.T / total
        mapping = TableMapping([p.astype(np.int32) for p in rows], sizes)
        passes = Passes(WrittenChunks(mapping, np.zeros(total), w), Squared())

        def apply(sums: Sequence[np.ndarray], held: list[np.ndarray] = tables) -> list[np.ndarray]:
            return [own @ x @ x.T / total for own, x in zip(sums, held, strict=True)]

        values = np.linalg.eigvalsh(matrix)
        found = spectrum(apply, passes, 8, rng, w)
        assert 0.99 * values[-1] <= found.top <= 1.2 * values[-1]
        assert 0.5 * values.sum() <= found.trace <= 3.0 * values.sum()
        seen = mapping.gather_sum(found.factors) * roots[:, None]
        missed = np.linalg.eigvalsh(matrix - seen @ seen.T)
        assert missed[0] >= -1e-6 * values[-1]  # factors are of 4 bytes
        # of 12 columns 8 vectors see the most
        assert 0.0 < missed.sum() <= 0.5 * values.sum()
        every = spectrum(apply, passes, 14, rng, w)
        seen = mapping.gather_sum(every.factors) * roots[:, None]
        np.testing.assert_allclose(seen @ seen.T, matrix, atol=1e-5 * values[-1])
    nothing = largest_eigenvalue(lambda sums: [0.0 * own for own in sums], passes, 5, rng)
    assert nothing == (0.0, 0.0)


def test_where_nothing_that_counts_is_drawn_all_rows_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dense = Dense(Squared(), True)
    monkeypatch.setattr(passes_module, "SAMPLED", 50)
    w = np.ones(TOTAL)
    w[passes_module._draw(TOTAL, 50)] = 0.0
    pieces = WrittenChunks(TableMapping(dense.rows, SIZES), dense.y, w)
    passes = Passes(pieces, Squared())
    ways = [np.random.default_rng(2).normal(size=(1, 1, size)) for size in SIZES]
    exact = passes.curvatures(dense.scores, ways)
    np.testing.assert_array_equal(passes.curvatures(dense.scores, ways, sampled=True), exact)
    assert np.diag(exact).all()
