"""What a client clips, noises and counts in private training."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages import Probe, SendPredictions, SendReleases, SumGradient
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.sgd.client import SgdStep
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.losses import loss_of
from sqlfl.party.client import ClientOperator
from sqlfl.party.release_guard import ReleaseGuard, releases_of
from tests.party.private import (
    TINY,
    Build,
    Categories,
    DividedNoise,
    PerCopy,
    SmallNoise,
    Unclipped,
    WithoutNoise,
    clipped_sum,
    engine_of,
    entropy,
    operator,
)

Array = np.ndarray

# -- a change of one row ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """Two tables, their join, and a model."""

    kind: str
    tables: tuple[Array, Array]
    rows: tuple[Array, Array]
    """Of each table, per joined row."""
    targets: Array
    thetas: tuple[Array, Array]
    clip: float

    def partners(self, row: int) -> int:
        """Rows of the second table that a row of the first one is joined with."""
        return len(np.unique(self.rows[1][self.rows[0] == row]))

    def changed(self, row: int, x: Array) -> Example:
        table = self.tables[0].copy()
        table[row] = x
        return replace(self, tables=(table, self.tables[1]))

    def removed(self, row: int) -> Example:
        """The table keeps the row's place; no joined row is left of it."""
        kept = self.rows[0] != row
        rows = (self.rows[0][kept], self.rows[1][kept])
        return replace(self, rows=rows, targets=self.targets[kept])

    def sums(self, build: Build) -> tuple[Array, Array]:
        """Both tables' clipped sums."""
        pairs = zip(self.tables, self.thetas, self.rows, strict=True)
        scores = sum((x @ theta)[p] for x, theta, p in pairs)
        slopes = loss_of(self.kind, 3).gradient(scores, self.targets)
        found = []
        for x, p in zip(self.tables, self.rows, strict=True):
            values = np.zeros((len(x), slopes.shape[1]))
            np.add.at(values, p, slopes)
            engine = engine_of(x, np.bincount(p, minlength=len(x)).astype(float))
            found.append(clipped_sum(build, engine, values, self.clip))
        return found[0], found[1]


def moved(one: Example, other: Example, build: Build) -> tuple[float, float]:
    """How far the two tables' sums are apart, relative to C."""
    pairs = zip(one.sums(build), other.sums(build), strict=True)
    own, partner = (float(np.linalg.norm(a - b)) / one.clip for a, b in pairs)
    return own, partner


def check(example: Example, row: int, x: Array, build: Build) -> None:
    """The bounds that the account of a run relies on."""
    fan_out = example.partners(row)
    own, partner = moved(example, example.removed(row), build)
    assert own <= 1.0 + 1e-9
    assert partner <= 2.0 * fan_out + 1e-9
    own, partner = moved(example, example.changed(row, x), build)
    assert own <= 2.0 + 1e-9
    assert partner <= 2.0 * fan_out + 1e-9


def drawn(kind: str, seed: int, clip: float, size: float) -> Example:
    rng = np.random.default_rng(seed)
    outputs = loss_of(kind, 3).outputs
    total, sizes = int(rng.integers(1, 12)), rng.integers(1, 5, 2)
    targets = size * rng.normal(size=total)
    if kind != "linear_regression":
        targets = rng.integers(0, 2 if kind == "logistic_regression" else 3, total)
    return Example(
        kind,
        (size * rng.normal(size=(sizes[0], 2)), size * rng.normal(size=(sizes[1], 3))),
        (rng.integers(0, sizes[0], total), rng.integers(0, sizes[1], total)),
        targets,
        (rng.normal(size=(2, outputs)), rng.normal(size=(3, outputs))),
        clip,
    )


KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.sampled_from([1e-3, 0.5, 3.0, 1e4]),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.data(),
)
def test_one_row_moves_sums_within_bounds(
    kind: str, seed: int, clip: float, size: float, data: st.DataObject
) -> None:
    example = drawn(kind, seed, clip, size)
    row = data.draw(st.integers(0, len(example.tables[0]) - 1))
    numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)
    x = np.array(data.draw(st.lists(numbers, min_size=2, max_size=2)))
    check(example, row, x, ClientOperator)


def attaining(kind: str, fan_out: int, targets: Array) -> Example:
    """One row, joined twice with each of `fan_out` rows, with those targets."""
    total = 2 * fan_out
    return Example(
        kind,
        (np.array([[1e3]]), np.full((fan_out, 1), 1e3)),
        (np.zeros(total, int), np.arange(total) % fan_out),
        np.resize(targets, total),
        (np.ones((1, 1)), np.zeros((1, 1))),
        0.5,
    )


def sorted_pairs(fan_out: int, first: float, second: float) -> Array:
    return np.repeat([first, second], fan_out)


@pytest.mark.parametrize("fan_out", [1, 4])
@pytest.mark.parametrize(
    ("kind", "pair"),
    [("linear_regression", (0.0, 0.0)), ("logistic_regression", (0, 1))],
)
def test_a_change_attains_the_bound_of_other_tables(
    kind: str, pair: tuple[float, float], fan_out: int
) -> None:
    """The score's sign turns, and with it that of what each partner sums up."""
    example = attaining(kind, fan_out, sorted_pairs(fan_out, *pair))
    check(example, 0, np.array([-1e3]), ClientOperator)
    _, partner = moved(example, example.changed(0, np.array([-1e3])), ClientOperator)
    assert partner == pytest.approx(2.0 * fan_out)


@pytest.mark.parametrize(
    ("kind", "target"), [("linear_regression", -1e6), ("logistic_regression", 0)]
)
def test_one_row_attains_the_bounds_of_its_own_table(kind: str, target: float) -> None:
    example = replace(
        attaining(kind, 3, np.array([target])), thetas=(np.zeros((1, 1)), np.zeros((1, 1)))
    )
    own, _ = moved(example, example.removed(0), ClientOperator)
    assert own == pytest.approx(1.0)
    own, _ = moved(example, example.changed(0, np.array([-1e3])), ClientOperator)
    assert own == pytest.approx(2.0)


@pytest.mark.parametrize("build", [PerCopy, Unclipped])
@pytest.mark.parametrize("kind", ["linear_regression", "logistic_regression"])
def test_rows_that_are_not_clipped_once_are_caught(kind: str, build: Build) -> None:
    example = attaining(kind, 3, np.array([0]))
    check(example, 0, np.array([-1e3]), ClientOperator)
    with pytest.raises(AssertionError):
        check(example, 0, np.array([-1e3]), build)


def test_rows_without_a_norm_that_floats_hold_count_nothing() -> None:
    engine = engine_of(np.array([[1e300, 1e300], [3.0, 4.0], [0.0, 0.0]]))
    values = np.array([[1e30], [1e30], [1e30]])
    np.testing.assert_allclose(clipped_sum(ClientOperator, engine, values, 2.0), [[1.2], [1.6]])
    values[0] = 0.0
    np.testing.assert_allclose(clipped_sum(ClientOperator, engine, values, 2.0), [[1.2], [1.6]])


def test_columns_that_centring_makes_zero_are_bounded() -> None:
    """‖x̃‖ is found as a difference of numbers about 1, and may be rounded to 0."""
    centre = np.array([1.0 - 1e-9, 1e-9])
    engine = Categories(np.array([[1.0, 0.0]]), np.ones(1), centre, (2,))
    engine.norms = lambda: np.zeros(1)
    found = clipped_sum(ClientOperator, engine, np.array([[1e30]]), 1.0)
    assert np.linalg.norm(found) <= 1.0


# -- the closed form -------------------------------------------------------------------------------


def patterns(size: int) -> list[list[int]]:
    """All ways in which `size` joined rows may share rows of a table: Bell(size) of them."""
    found = [[0]]
    for _ in range(size - 1):
        found = [[*p, k] for p in found for k in range(max(p) + 2)]
    return found


def case(pattern: list[int]) -> tuple[Categories, Array, Array]:
    """Rows of two numbers and a category, slopes of the joined rows, and their sums per row."""
    rng = np.random.default_rng(sum(7**i * k for i, k in enumerate(pattern)))
    size = max(pattern) + 1
    x = np.hstack([rng.normal(size=(size, 2)), np.eye(3)[rng.integers(0, 3, size)]])
    centre = np.array([0.0, 0.0, 0.2, 0.5, 0.3])
    counts = np.bincount(pattern).astype(float)
    slopes = rng.normal(size=(len(pattern), 2))
    values = np.zeros((size, 2))
    np.add.at(values, pattern, slopes)
    return Categories(x, counts, centre, (3,)), slopes, values


def scaled(gradients: torch.Tensor, clip: float) -> Array:
    """(n, …): each row's gradient clipped, and all added up."""
    flat = gradients.reshape(len(gradients), -1)
    factors = (clip / flat.norm(dim=1)).clamp(max=1.0)
    return (flat * factors[:, None]).sum(0).reshape(gradients.shape[1:]).detach().numpy()


def test_clipping_is_that_of_each_rows_own_gradient() -> None:
    """By torch.func over the joined rows of each row, for every pattern of copies."""
    clipping = 0
    for pattern in patterns(4):
        engine, slopes, values = case(pattern)
        x, g = torch.tensor(engine.x - engine.centre), torch.tensor(slopes)
        copies = torch.tensor(np.equal.outer(np.arange(len(x)), pattern).astype(float))

        def summed(theta: torch.Tensor, own: Any, copy: Any, slopes: Any = g) -> torch.Tensor:
            return (copy[:, None] * slopes * (own @ theta)).sum()

        gradients = torch.func.vmap(torch.func.grad(summed), (None, 0, 0))(
            torch.zeros(5, 2, dtype=torch.float64), x, copies
        )
        found = clipped_sum(ClientOperator, engine, values, 1.5)
        np.testing.assert_allclose(found, scaled(gradients, 1.5), atol=1e-10)
        clipping += int((gradients.reshape(len(x), -1).norm(dim=1) > 1.5).sum())
    assert clipping > 10


def test_clipping_is_that_of_opacus() -> None:
    from opacus.grad_sample import GradSampleModule

    for pattern in patterns(4):
        engine, _, values = case(pattern)
        layer = torch.nn.Linear(5, 2, bias=False, dtype=torch.float64)
        module = GradSampleModule(layer, loss_reduction="sum")
        x = torch.tensor(engine.x - engine.centre, requires_grad=True)
        (module(x) * torch.tensor(values)).sum().backward()
        found = clipped_sum(ClientOperator, engine, values, 1.5)
        np.testing.assert_allclose(found, scaled(layer.weight.grad_sample, 1.5).T, atol=1e-10)


# -- noise -----------------------------------------------------------------------------------------

WIDE = engine_of(np.zeros((1, 4000)))
"""A row of zeros: what comes of it is noise alone, 4000 numbers of it."""
ALL = (1.0, 50, 1)
"""Step length, rows of the batch, and that all rows are predicted next."""


def check_own_step(build: Build) -> None:
    """Noise of the sum, divided by the rows of the batch with it."""
    client = operator(WIDE, build=build, noise=0.7)
    client.handle(SgdResiduals("run", 3, np.ones((1, 1)), *ALL))
    assert np.std(client.theta) * 50.0 == pytest.approx(0.7, rel=0.05)
    assert abs(np.mean(client.theta)) * 50.0 < 0.05


def check_clients(build: Build, clients: int = 3) -> None:
    """Each client of a slot adds all the noise it is told: the coordinator sees every part."""
    parts = []
    for number in range(clients):
        client = operator(WIDE, build=build, noise=0.7, clients=clients, seed=number)
        parts.append(client.handle(SgdResiduals("run", 3, np.ones((1, 1)), *ALL)).values)
        assert np.std(parts[-1]) == pytest.approx(0.7, rel=0.05)
    assert np.std(sum(parts)) == pytest.approx(0.7 * np.sqrt(clients), rel=0.05)
    np.testing.assert_allclose(np.corrcoef(np.hstack(parts).T), np.eye(clients), atol=0.06)


def test_noise_is_of_the_sum() -> None:
    check_own_step(ClientOperator)
    check_clients(ClientOperator)


@pytest.mark.parametrize("build", [WithoutNoise, DividedNoise])
def test_noise_that_is_not_of_the_sum_is_caught(build: Build) -> None:
    with pytest.raises(AssertionError):
        check_own_step(build)


@pytest.mark.parametrize("build", [WithoutNoise, SmallNoise])
def test_noise_that_a_client_lacks_is_caught(build: Build) -> None:
    with pytest.raises(AssertionError):
        check_clients(build)


def test_noise_is_fresh_in_every_sum() -> None:
    client = operator(WIDE, noise=0.7, clients=2)
    message = SgdResiduals("run", 3, np.ones((1, 1)), *ALL)
    first, second = client.handle(message).values, client.handle(message).values
    assert np.std(first - second) == pytest.approx(0.7 * np.sqrt(2.0), rel=0.05)


def test_the_systems_generator_is_what_clients_use() -> None:
    own = operator(WIDE, noise=0.7)._configuration
    one, other = (ClientOperator(WIDE, own, SgdStep, "run", 3) for _ in range(2))
    for client in (one, other):
        client.handle(SgdResiduals("run", 3, np.ones((1, 1)), *ALL))
    assert abs(np.corrcoef(one.theta.T, other.theta.T)[0, 1]) < 0.15


# -- predictions -----------------------------------------------------------------------------------

ROWS = 3000


def check_predictions(build: Build, algorithm: str = "sgd") -> None:
    """In the reply to every message, of all rows or some; what is exact is their penalty."""
    rng = np.random.default_rng(0)
    engine = engine_of(rng.normal(size=(ROWS, 2)))
    theta = np.array([[1.0, 0.5], [0.0, -2.0]])
    client = operator(
        engine, algorithm, build=build, theta=theta, outputs=2, rho=1.0, l2=0.1,
        prediction_clip=1.5, prediction_noise=0.4, row_bound=9.0, moments_noise=TINY,
    )  # fmt: skip

    def right(reply: Any, rows: Array) -> None:
        exact = engine.predict(client.theta)[rows]
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
        expected = exact * np.minimum(1.0, 1.5 / norms)
        assert 0.2 < (norms > 1.5).mean() < 0.95
        noise = reply.values - expected
        assert reply.values.dtype == np.float32
        assert np.std(noise) == pytest.approx(0.4, rel=0.05)
        assert abs(np.mean(noise)) < 0.02
        np.testing.assert_allclose(reply.products, [0.05 * np.sum(client.theta**2)])

    some = np.arange(1, ROWS, 2, dtype=np.uint32)
    right(client.handle(SendPredictions("run", 3)), np.arange(ROWS))
    right(client.handle(SendPredictions("run", 3, batch=some, whole=0)), some)
    values = np.zeros((len(some), 2), np.float32)
    if algorithm == "admm":
        client.handle(SendPredictions("run", 3))
        values = np.zeros((ROWS, 2), np.float32)
    following = some[::-1]
    message = AdmmResiduals("run", 3, values, 1e9)
    if algorithm == "sgd":
        message = SgdResiduals("run", 3, values, 1e-9, 1, 0, following)
    reply = client.handle(message)
    right(reply, following if algorithm == "sgd" else np.arange(ROWS))
    client = operator(
        engine, build=build, theta=theta, outputs=2, clients=2, l2=0.1,
        prediction_clip=1.5, prediction_noise=0.4,
    )  # fmt: skip
    right(client.handle(SumGradient("run", 3, np.zeros((2, 2)))), np.arange(ROWS))


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_predictions_are_clipped_and_noised(algorithm: str) -> None:
    check_predictions(ClientOperator, algorithm)


def test_exact_predictions_are_caught() -> None:
    with pytest.raises(AssertionError):
        check_predictions(WithoutNoise)


def test_predictions_are_exact_where_they_are_not_protected() -> None:
    engine = engine_of(np.eye(3))
    theta = np.array([[1.0], [20.0], [-3.0]])
    reply = operator(engine, theta=theta).handle(SendPredictions("run", 3))
    np.testing.assert_array_equal(reply.values, theta)


def test_predictions_that_floats_do_not_hold_fail_nothing() -> None:
    guard = ReleaseGuard(RoundNoise(1.0, 1.0, 2.0, TINY), 4)
    values = np.array([[np.inf, 1.0], [1e300, -1e300], [np.nan, 0.0], [0.0, -1.0]])
    found = guard.predictions(values, None)
    np.testing.assert_allclose(found[[0, 2, 3]], [[0, 0], [0, 0], [0, -1]], atol=1e-9)
    assert np.linalg.norm(found[1]) <= 2.0 + 1e-9


# -- counts ----------------------------------------------------------------------------------------


def test_releases_are_counted_by_row() -> None:
    """A row outside a batch takes no part; what is reported is the row that did so most often."""
    engine = engine_of(np.ones((4, 1)))
    client = operator(
        engine, clip=0.5, noise=0.25, prediction_clip=2.0, prediction_noise=0.75
    )  # fmt: skip
    empty = client.handle(SendReleases("run", 3))
    assert (empty.gradients, empty.predictions, empty.moments) == (0, 0, 0)
    client.handle(SendPredictions("run", 3))
    for batch in ([0, 1], [1, 2], [1, 3]):
        rows = np.array(batch, np.uint32)
        size = 4 if batch == [0, 1] else 2
        values = np.zeros((size, 1), np.float32)
        values[:2] = 1.0
        client.handle(SgdResiduals("run", 3, values, 0.1, 2, 0, rows))
    # sums: rows 0 and 1, then 0 and 1 again, then 1 and 2; the last predictions wait for theirs
    reply = client.handle(SendReleases("run", 3))
    assert (reply.run, reply.slot) == ("run", 3)
    assert (reply.gradients, reply.clip, reply.noise) == (3, 0.5, 0.25)
    assert (reply.predictions, reply.prediction_clip, reply.prediction_noise) == (4, 2.0, 0.75)
    assert (reply.moments, reply.row_bound, reply.moments_noise) == (0, 0.0, 0.0)
    assert (reply.labels, reply.statistics) == (0.0, 0.0)
    assert client.guard is not None
    np.testing.assert_array_equal(client.guard._gradients, [2, 3, 1, 0])


def test_without_a_guard_there_is_nothing_to_tell() -> None:
    client = operator(engine_of(np.eye(2)), privacy=None)
    assert client.guard is None
    reply = client.handle(SendReleases("run", 3))
    assert {getattr(reply, field.name) for field in fields(reply)} == {"run", 3, 0}
    assert releases_of(None, "run", 3).gradients == 0


# -- what cannot be private ------------------------------------------------------------------------


def test_exact_sums_are_refused() -> None:
    engine = engine_of(np.eye(2))
    with pytest.raises(InternalError, match="lbfgs"):
        operator(engine, "lbfgs")
    for algorithm in ("sgd", "admm"):
        client = operator(engine, algorithm, row_bound=1.0, moments_noise=1.0, rho=1.0)
        with pytest.raises(InternalError, match="probe is no part of training"):
            client.handle(Probe("run", 3, np.ones((2, 1), np.float32)))


def test_sums_that_are_not_finite_are_refused() -> None:
    client = operator(engine_of(np.eye(2)))
    with pytest.raises(InternalError, match="not finite"):
        client.handle(SgdResiduals("run", 3, np.array([[np.inf], [np.nan]]), *ALL))


def test_entropy_can_be_given_in_tests_alone() -> None:
    one = operator(WIDE, noise=0.7, seed=4)
    two = ClientOperator(WIDE, one._configuration, SgdStep, "run", 3, entropy=entropy(4))
    for client in (one, two):
        client.handle(SgdResiduals("run", 3, np.ones((1, 1)), *ALL))
    np.testing.assert_array_equal(one.theta, two.theta)
