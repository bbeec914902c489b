"""The compiled library: that it is built, and what happens without it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds import chunks
from sqlfl.coordinator.rounds.chunk import Chunk, PassTally, Scores
from sqlfl.coordinator.rounds.chunks import CompiledChunk, WrittenChunks, ends_of_runs
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.models import native
from sqlfl.models.log_link import Poisson
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared
from tests.depth import SEED
from tests.ways import WAYS, take_way

ROOT = Path(__file__).parents[2]


def test_where_there_is_a_compiler_the_library_is_built() -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    assert native.library() is not None, "pip install --editable . builds it"


def test_without_it_numpy_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take_way("compiled", monkeypatch)
    pieces = WrittenChunks(TableMapping([np.zeros(4, np.int32)], [1]), np.ones(4), None)
    assert {type(piece) for piece in pieces.pieces(3)} == {CompiledChunk}
    monkeypatch.setattr(native, "PATH", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING, "sqlfl.models.native"):
        for _ in range(2):
            pieces = WrittenChunks(TableMapping([np.zeros(4, np.int32)], [1]), np.ones(4), None)
            assert {type(piece) for piece in pieces.pieces(3)} == {Chunk}
    (said,) = caplog.messages
    assert "several times as long" in said
    with pytest.raises(InternalError):
        native.functions()
    # not wanted: nothing is said
    caplog.clear()
    monkeypatch.setenv(native.VARIABLE, "0")
    assert native.library() is None
    assert not caplog.messages


def test_one_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    take_way("compiled", monkeypatch)
    other = tmp_path / "other.so"
    shutil.copy(native.PATH, other)
    monkeypatch.setattr(native, "PATH", other)
    monkeypatch.setattr(native, "FORM", native.FORM + 1)
    with caplog.at_level(logging.WARNING, "sqlfl.models.native"):
        assert native.library() is None
    assert "another version" in caplog.text


def look(piece: Chunk, loss: Loss, scores: Scores) -> PassTally:
    sums = tuple(np.zeros_like(own) for own in scores.slots)
    tally = PassTally(np.zeros(loss.outputs), sums)
    piece.look(loss, scores, tally)
    return tally


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Poisson(), Logistic(), Softmax(3), Softmax(300)])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 5000])
@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0, 339.0, 690.0])
def test_values_are_those_of_numpy(
    loss: Loss, weighted: bool, rows: int, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digits, for scores near 0 and far from it: on both sides of where exponentials of
    scores are products of those of the slots' rows."""
    take_way("compiled", monkeypatch)
    rng = np.random.default_rng(SEED)
    own = [rng.integers(0, 7, rows).astype(np.int32), np.sort(rng.integers(0, 70, rows))]
    y = rng.integers(0, max(loss.outputs, 2), rows)
    targets = y.astype(np.uint16) if loss.name in ("logistic", "softmax") else y.astype(float)
    shares = rng.random(rows) * rng.integers(0, 2, rows) if weighted else None
    blocks = [0.5 * size * rng.uniform(-1.0, 1.0, (loss.outputs, n)) for n in (7, 70)]
    scores = Scores(tuple(blocks), np.zeros(loss.outputs))
    small = (own[0], own[1].astype(np.int32))
    runs = (None, ends_of_runs(small[1]))
    assert (runs[1] is not None) == (rows == 5000)
    one = CompiledChunk(0, rows, small, targets, shares, runs=runs)
    other = Chunk(0, rows, small, targets, shares)
    found, wanted = look(one, loss, scores), look(other, loss, scores)
    # next to a count, or to a certain class, differences from these have lost digits: numpy's
    # log Σ exp(H) − H_y those of H, half an ulp of up to size + log K a row
    lost = {"poisson": 1e-15, "softmax": 1e-15 + 2.0**-53 * size}.get(loss.name, 0.0) * rows
    # exp(H) has the rounding of H
    rel = 1e-14 + (2e-16 * size if loss.name == "poisson" else 0.0)
    assert found.value == pytest.approx(wanted.value, rel=rel, abs=lost)
    # of exp(H) they have its digits
    extent = pytest.approx((wanted.least, wanted.largest), rel=1e-14, abs=2e-15)
    assert (found.least, found.largest) == extent
    for a, b in zip((found.total, *found.sums), (wanted.total, *wanted.sums), strict=True):
        # slopes of up to 1 may cancel
        atol = 1e-13 * np.abs(b).max() + 2e-16 * rows
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=atol)
    assert one.bend(loss, scores) == pytest.approx(other.bend(loss, scores), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Poisson(), Logistic(), Softmax(2), Softmax(3)])
@pytest.mark.parametrize("rows", [1, 17, 3000])
@pytest.mark.parametrize("counts", [(), (1, 2), (3, 40)])
def test_curvatures_and_metrics_are_those_of_numpy(
    loss: Loss, weighted: bool, rows: int, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along so many directions of each slot."""
    take_way("compiled", monkeypatch)
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, max(loss.outputs, 2), rows)
    targets = y.astype(np.uint8) if loss.name in ("logistic", "softmax") else y.astype(float)
    shares = rng.random(rows) * rng.integers(0, 2, rows) if weighted else None
    own = (rng.integers(0, 70, rows).astype(np.int32), slice(0, rows))
    # some scores are equal, also of several classes
    blocks = [rng.integers(-3, 4, (loss.outputs, n)).astype(float) for n in (70, rows)]
    scores = Scores(tuple(blocks), np.zeros(loss.outputs))
    if shares is not None:
        blocks[1][:, shares == 0.0] = np.nan  # what counts nothing may be anything
    ways = [rng.normal(size=(k, loss.outputs, n)) for k, n in zip(counts, (70, rows), strict=False)]
    one = CompiledChunk(0, rows, own, targets, shares)
    other = Chunk(0, rows, own, targets, shares)
    with np.errstate(invalid="ignore"):
        if shares is None or loss.name in ("squared", "poisson"):
            wanted = other.curvatures(loss, scores, ways)
        else:
            still = Scores((blocks[0], np.nan_to_num(blocks[1])), scores.constant)
            wanted = other.curvatures(loss, still, ways)
    found = one.curvatures(loss, scores, ways)
    # a softmax's are mean squares less squares of means: they may be far smaller than either
    square = sum(np.abs(way).max() for way in ways) ** 2 * (rows if shares is None else sum(shares))
    atol = 1e-11 * np.abs(wanted).max() + 1e-15 * square
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=atol)
    blocks[1][:] = np.nan_to_num(blocks[1])
    assert one.square(scores) == pytest.approx(other.square(scores), rel=1e-12)
    weights = [None, rng.random(rows), np.zeros(rows)]
    pairs = zip(
        one.headlines(loss, scores, weights), other.headlines(loss, scores, weights), strict=True
    )
    for mean, expected in pairs:
        assert type(mean) is type(expected)
        assert mean.total == pytest.approx(expected.total, rel=1e-12)
        assert mean.weight == expected.weight


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Poisson(), Logistic(), Softmax(3)])
@pytest.mark.parametrize("rho", [1e-4, 0.2, 30.0])
@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0, 690.0])
def test_proximal_steps_are_those_of_numpy(
    loss: Loss, weighted: bool, rho: float, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where λ is that of a step before, or of none."""
    take_way("compiled", monkeypatch)
    rows = 1000
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, max(loss.outputs, 2), rows)
    targets = y.astype(np.uint8) if loss.name in ("logistic", "softmax") else y.astype(float)
    shares = rng.random(rows) * rng.integers(0, 2, rows) if weighted else None
    own = (rng.integers(0, 70, rows).astype(np.int32), slice(0, rows))
    dual = np.zeros((loss.outputs, rows + 30))
    duals = dual, dual.copy()
    for step in range(3):
        if step == 2:
            for held in duals:
                held[:] = np.random.default_rng(step).normal(size=dual.shape)
        blocks = [0.5 * size * rng.uniform(-1.0, 1.0, (loss.outputs, n)) for n in (70, rows)]
        scores = Scores(tuple(blocks), np.full(loss.outputs, 1e-3))
        tallies = []
        kinds: tuple[type[Chunk], ...] = (CompiledChunk, Chunk)
        for kind, held in zip(kinds, duals, strict=True):
            tally = PassTally(np.zeros(loss.outputs), tuple(np.zeros_like(v) for v in blocks))
            kind(30, rows, own, targets, shares).pull(loss, scores, held, rho, tally)
            tallies.append(tally)
        found, wanted = tallies
        np.testing.assert_allclose(*duals, rtol=1e-12, atol=1e-12 * rho * size + 1e-13)
        assert found.value == pytest.approx(wanted.value, rel=1e-11)
        assert (found.least, found.largest, found.bend) == (wanted.least, wanted.largest, None)
        # terms that are far larger than their sum leave rounding of their own size in it, and
        # ρ (H − z) that of H: half an ulp of each, in H, in z and in their difference
        lost = 1.5 * 2.0**-52 * rho * size * rows
        largest = np.abs(duals[1]).max()
        for a, b in zip((found.total, *found.sums), (wanted.total, *wanted.sums), strict=True):
            atol = 1e-11 * max(largest, np.abs(b).max()) + lost
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=atol)


@pytest.mark.parametrize("loss", [Squared(), Poisson(), Logistic(), Softmax(3)])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_told(
    loss: Loss, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way("compiled", monkeypatch)
    h = np.zeros((loss.outputs, 40))
    h[0, 33] = wrong
    scores = Scores((h,), np.zeros(loss.outputs))
    targets = np.ones(40)
    for shares in (None, np.ones(40)):
        with np.errstate(all="ignore"):
            one = CompiledChunk(0, 40, (slice(0, 40),), targets, shares)
            found = look(one, loss, scores)
            wanted = look(Chunk(0, 40, (slice(0, 40),), targets, shares), loss, scores)
        np.testing.assert_equal((found.least, found.largest), (wanted.least, wanted.largest))
        assert np.isfinite(found.value) == np.isfinite(wanted.value)
        if np.isfinite(wanted.value):
            assert found.value == pytest.approx(wanted.value, rel=1e-14)
    # rows that count nothing may be anything
    shares = np.ones(40)
    shares[33] = 0.0
    found = look(CompiledChunk(0, 40, (slice(0, 40),), targets, shares), loss, scores)
    assert np.isfinite([found.value, found.least, found.largest, *found.total]).all()


def test_what_it_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    take_way("compiled", monkeypatch)
    scores = Scores((np.zeros((1, 3)),), np.zeros(1))
    wide = CompiledChunk(0, 2, (np.zeros(2, np.int64),), np.zeros(2), None)
    with pytest.raises(InternalError, match="int32"):
        look(wide, Squared(), scores)
    apart = CompiledChunk(0, 2, (np.zeros(4, np.int32)[::2],), np.zeros(2), None)
    with pytest.raises(InternalError, match="one piece"):
        look(apart, Squared(), scores)


@pytest.mark.parametrize("asked", ["look", "curvatures", "pull"])
def test_where_memory_does_not_suffice_it_says_so(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_way("compiled", monkeypatch)
    names = ("sqlfl_look", "sqlfl_curvatures", "sqlfl_proximal")
    failing = SimpleNamespace(**dict.fromkeys(names, lambda *_: 1))
    monkeypatch.setattr(chunks, "functions", lambda: failing)
    chunk = CompiledChunk(0, 2, (np.zeros(2, np.int32),), np.zeros(2), None)
    scores = Scores((np.zeros((1, 3)),), np.zeros(1))
    tally = PassTally(np.zeros(1), (np.zeros((1, 3)),))
    calls: dict[str, Callable[[], object]] = {
        "look": lambda: look(chunk, Squared(), scores),
        "curvatures": lambda: chunk.curvatures(Squared(), scores, [np.zeros((1, 1, 3))]),
        "pull": lambda: chunk.pull(Squared(), scores, np.zeros((1, 2)), 1.0, tally),
    }
    with pytest.raises(MemoryError, match="not enough"):
        calls[asked]()


@pytest.mark.parametrize("way", WAYS)
def test_scores_of_other_rows_are_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would read beyond them."""
    take_way(way, monkeypatch)
    rows = TableMapping([np.array([0, 1, 2], np.int32)[[2, 0, 1]]], [3])
    passes = Passes(WrittenChunks(rows, np.zeros(3), None), Squared())
    short, wide = np.zeros((1, 2)), np.zeros((2, 3))
    for values, constant in ((short, 1), (wide, 1), (np.zeros((1, 3)), 2)):
        scores = Scores((values,), np.zeros(constant))
        for asked in (passes.look, passes.mean_curvature, passes.square, passes.rows):
            with pytest.raises(ValueError, match="scores"):
                asked(scores)
    with pytest.raises(ValueError, match="directions"):
        passes.curvatures(Scores((np.zeros((1, 3)),), np.zeros(1)), [np.zeros((1, 1, 2))])
