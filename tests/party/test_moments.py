"""Noised second moments, and ADMM with the bound that is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sqlfl.aggregation.slot_aggregation import sum_grams
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import Ready, SendGram, SendReleases
from sqlfl.messages.grams import message_to_gram
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.models.gram import GramMatrix
from sqlfl.party import moments
from sqlfl.party.moments import clipped_moments, majorant, noised_moments
from sqlfl.party.release_guard import ReleaseGuard
from tests.methods.harness import Join, MemoryChannel, random_join
from tests.party.private import TINY, Categories, entropy, operator

Array = np.ndarray


def table(seed: int, centred: str, rows: int = 40, numeric: int = 3) -> Categories:
    """Numbers and two category features, of which some rows have none of the entries."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, rows).astype(float)
    numbers = rng.normal(size=(rows, numeric)) @ rng.normal(size=(numeric, numeric))
    hots = [np.vstack([np.eye(k), np.zeros(k)])[rng.integers(0, k + 1, rows)] for k in (4, 2)]
    x = np.hstack([numbers, *hots])
    centre = np.append(np.zeros(numeric), (counts @ x)[numeric:] / counts.sum())
    if centred == "nowhere":
        centre[numeric:] = 0.0
    if centred == "elsewhere":
        centre[numeric:] = rng.dirichlet(np.ones(6))
    return Categories(x, counts, centre, (4, 2))


def guarded(engine: Categories, noise: float, seed: int = 0, bound: float = 1e9) -> ReleaseGuard:
    privacy = RoundNoise(1.0, 1.0, row_bound=bound, moments_noise=noise)
    return ReleaseGuard(privacy, engine.rows, entropy(seed))


def exact(engine: Categories) -> Array:
    """Σ cnt x̃ x̃ᵀ"""
    x = engine.x - engine.centre
    return (x * engine.counts[:, None]).T @ x


def dense(gram: GramMatrix) -> Array:
    return np.block([[gram.numeric, gram.cross.T], [gram.cross, gram.onehot.toarray()]])


def bounded(engine: Categories, noise: float, seed: int = 0) -> GramMatrix:
    released = noised_moments(engine, guarded(engine, noise, seed))
    return majorant(released, engine.centre, engine.offsets, noise)


Bound = Callable[[Categories, float, int], GramMatrix]


def check_bound(bound: Bound, noise: float, centred: str) -> int:
    """How often K is too small, of 40 tables."""
    failures = 0
    for seed in range(40):
        engine = table(seed, centred)
        least = np.linalg.eigvalsh(dense(bound(engine, noise, seed)) - exact(engine))[0]
        failures += bool(least < -1e-6)
    return failures


@pytest.mark.parametrize("centred", ["at the mean", "nowhere", "elsewhere"])
def test_the_bound_holds(centred: str) -> None:
    assert check_bound(bounded, 1e-9, centred) == 0
    for noise in (1.0, 30.0, 3000.0):
        assert check_bound(bounded, noise, centred) <= 2


def test_without_noise_the_bound_is_no_larger_than_it_must_be() -> None:
    """Groups times each group's own block, and the frequencies of categories for their centres."""
    engine = table(0, "at the mean")
    full = (engine.x * engine.counts[:, None]).T @ engine.x
    expected = np.zeros((9, 9))
    expected[:3, :3] = full[:3, :3]
    expected[3:, 3:] = np.diag(np.diag(full)[3:])
    found = bounded(engine, 1e-9)
    np.testing.assert_allclose(dense(found), 3.0 * expected, atol=1e-5)
    np.testing.assert_array_equal(found.moments, np.zeros(9))
    assert found.weight == 0.0


def test_bounds_that_lack_a_part_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_group(engine: Categories, noise: float, seed: int) -> GramMatrix:
        found = bounded(engine, noise, seed)
        return GramMatrix(
            found.numeric / 3, found.cross, sparse.csr_array(found.onehot / 3), found.moments, 0.0
        )

    assert check_bound(one_group, 1e-9, "at the mean") > 20

    def no_margin(engine: Categories, noise: float, seed: int) -> GramMatrix:
        released = noised_moments(engine, guarded(engine, noise, seed))
        return majorant(released, engine.centre, engine.offsets, 1e-9)

    assert check_bound(no_margin, 3000.0, "at the mean") > 20
    monkeypatch.setattr(moments, "_moved", lambda *_: 0.0)
    away = table(1, "elsewhere")
    away.centre[3:] = [0.97, 0.01, 0.01, 0.01, 0.99, 0.01]
    away.x[:, 3:] = np.eye(6)[[1]] + np.eye(6)[[5]]
    assert np.linalg.eigvalsh(dense(bounded(away, 1e-9)) - exact(away))[0] < -1.0
    monkeypatch.undo()
    assert np.linalg.eigvalsh(dense(bounded(away, 1e-9)) - exact(away))[0] >= -1e-6


def test_rows_are_clipped_before_they_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = table(2, "at the mean")
    numbers = engine.x[:, :3]
    scaled = numbers * np.minimum(1.0, 1.2 / np.linalg.norm(numbers, axis=1, keepdims=True))
    expected = (scaled * engine.counts[:, None]).T @ scaled
    counts = engine.counts @ engine.x[:, 3:]
    for size in (1 << 22, 40, 1):
        monkeypatch.setattr(moments, "_VALUES", size)
        found = clipped_moments(engine, 1.2)
        np.testing.assert_allclose(found[0], expected, atol=1e-9)
        np.testing.assert_allclose(found[1], counts, atol=1e-9)


@pytest.mark.parametrize("bound", [0.7, 2.0])
def test_one_row_moves_them_by_what_is_accounted(bound: float) -> None:
    """F √(2R⁴ + 2k), and rows at right angles attain it."""
    found = []
    for row in ([9.0, 0.0, 0.0, 1, 0, 0, 0, 1, 0], [0.0, 9.0, 0.0, 0, 1, 0, 0, 0, 1]):
        engine = table(3, "at the mean")
        engine.x[5], engine.counts[5] = row, 7.0
        found.append(np.concatenate([m.ravel() for m in clipped_moments(engine, bound)]))
    distance = np.linalg.norm(found[0] - found[1])
    assert distance == pytest.approx(7.0 * np.sqrt(2.0 * bound**4 + 2.0 * 2))


def test_noise_is_symmetric_and_of_its_size() -> None:
    engine = table(4, "at the mean", numeric=60)
    truth, counts = clipped_moments(engine, 1e9)
    released = noised_moments(engine, guarded(engine, 5.0))
    noise = released.numeric - truth
    np.testing.assert_array_equal(released.numeric, released.numeric.T)
    beside = noise[np.triu_indices(60, 1)]
    assert np.std(beside) == pytest.approx(5.0 / np.sqrt(2.0), rel=0.06)
    assert np.std(np.diag(noise)) == pytest.approx(5.0, rel=0.3)
    assert released.onehot.nnz == 6
    assert 1.0 < np.std(released.onehot.diagonal() - counts) < 12.0
    assert not released.cross.any()
    assert not released.moments.any()
    assert released.weight == engine.counts.sum()


def shared(engine: Categories, parts: int, algorithm: str = "admm", **values: Any) -> list[Any]:
    """Clients that hold the rows in turn."""
    clients = []
    for number in range(parts):
        own = slice(number, None, parts)
        rows = Categories(engine.x[own], engine.counts[own], engine.centre, (4, 2))
        clients.append(
            operator(rows, algorithm, clients=parts, rho=1.0, row_bound=9.0, seed=number, **values)
        )
    return clients


def test_clients_release_theirs_once_and_with_all_the_noise() -> None:
    engine = table(5, "at the mean", numeric=40)
    clients = shared(engine, 3, moments_noise=5.0)
    parts = [client.handle(SendGram("run", 3)) for client in clients]
    for part, client in zip(parts, clients, strict=True):
        assert (part.numeric.shape, part.cross.shape) == ((40, 40), (6, 40))
        assert len(part.rows) == len(part.columns) == len(part.values) == 6
        truth, _ = clipped_moments(client._engine, 9.0)
        noise = (part.numeric - truth)[np.triu_indices(40, 1)]
        assert np.std(noise) == pytest.approx(5.0 / np.sqrt(2.0), rel=0.08)
        assert client.handle(SendReleases("run", 3)).moments == 1
    total = sum_grams(parts)
    assert len(total.values) == 6
    expected = majorant(
        message_to_gram(total), engine.centre, engine.offsets, 5.0 * np.sqrt(3.0)
    )  # fmt: skip
    for client in clients:
        assert isinstance(client.handle(total), Ready)
        np.testing.assert_array_equal(dense(client._step._gram), dense(expected))
    with pytest.raises(InternalError, match="once"):
        clients[0].handle(SendGram("run", 3))


@pytest.mark.parametrize(
    ("parts", "options"), [(1, {}), (2, {"consensus": True, "inner_rounds": 2})]
)
def test_moments_that_stay_at_the_client_are_noised_too(parts: int, options: Any) -> None:
    engine = table(6, "at the mean")
    for client in shared(engine, parts, moments_noise=1e4, **options):
        reply = client.handle(SendReleases("run", 3))
        assert (reply.moments, reply.row_bound, reply.moments_noise) == (1, 9.0, 1e4)
        assert client._step._gram.numeric[0, 0] > 1e4
        with pytest.raises(InternalError, match="once"):
            client.handle(SendGram("run", 3))


def test_rows_without_a_bound_are_refused() -> None:
    engine = table(7, "at the mean")
    with pytest.raises(InternalError, match="bounded by 0"):
        noised_moments(engine, guarded(engine, 1.0, bound=0.0))
    hot = Categories(np.eye(4), np.ones(4), np.full(4, 0.25), (4,))
    found = noised_moments(hot, guarded(hot, 1e-9, bound=0.0))
    np.testing.assert_allclose(found.onehot.diagonal(), np.ones(4), atol=1e-6)


def test_a_solver_of_many_categories_takes_the_bound() -> None:
    """Beyond the columns of one dense matrix, the categories' diagonal is eliminated."""
    rng, size = np.random.default_rng(0), 2500
    x = np.hstack([rng.normal(size=(size, 2)), np.eye(size)])
    centre = np.append(np.zeros(2), np.full(size, 1 / size))
    wide = Categories(x, np.ones(size), centre, (size,))
    client = operator(
        wide, "admm", rho=1.0, rows=size, total=float(size), l2=0.1, row_bound=9.0,
        moments_noise=1e-9, clip=1e9,
    )  # fmt: skip
    values = rng.normal(size=(size, 1))
    client.handle(AdmmResiduals("run", 3, values, 1.0))
    block = 2.0 * x[:, :2].T @ x[:, :2] / size + 0.1 * np.eye(2)
    slope = wide.gradient(values) / size
    expected = np.vstack([np.linalg.solve(block, slope[:2]), slope[2:] / (2.0 / size + 0.1)])
    np.testing.assert_allclose(client.theta, -expected, atol=1e-5)


# -- convergence -----------------------------------------------------------------------------------


def private_gap(join: Join, *, centred: bool = True, **options: Any) -> float:
    """Distance to the optimum where nothing is clipped, and the noise is next to none."""
    problem = join.problem("admm", tolerance=0.0, **options)
    own = RoundNoise(1e9, TINY, 1e9, TINY, row_bound=1e9, moments_noise=1e-9)
    rounds = {members.slot: own for members in problem.slots}
    problem = replace(problem, privacy=RunNoise(rounds), centred=centred)
    channel = MemoryChannel(join.engines)
    method = coordinator_of("admm")(problem, channel)
    method.start()
    *_, last = method.steps()
    best = join.optimum()
    return (last.objective - best) / abs(best)


@pytest.mark.parametrize("union", ["exact", "consensus"])
@pytest.mark.parametrize("kind", ["linear_regression", "logistic_regression"])
def test_admm_converges_to_the_optimum(kind: str, union: str) -> None:
    join = random_join(
        kind, total=200, sizes=(200, 40), numeric=2, categories=3, clients=(1, 2),
        correlation=0.2, l2=1e-2,
    )  # fmt: skip
    options = {"union": union, "inner_rounds": 5} if union == "consensus" else {"union": union}
    assert abs(private_gap(join, epochs=5, **options)) > 1e-3
    assert abs(private_gap(join, epochs=100, **options)) < 1e-4


@pytest.mark.parametrize("union", ["exact", "consensus"])
def test_admm_converges_where_columns_are_not_centred(union: str) -> None:
    join = random_join(total=300, sizes=(300, 40), numeric=2, categories=3, clients=(1, 2), l2=1e-2)
    join.centres = [np.zeros_like(c) for c in join.centres]
    gap = private_gap(join, centred=False, epochs=150, union=union, inner_rounds=5)
    assert abs(gap) < 1e-3
