"""The head: derivatives, proximal steps and its own steps, against scipy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from sqlfl.base.errors import InternalError
from sqlfl.models.head import Head, first_head, fitted, proximal
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared

LOSSES: dict[str, Loss] = {
    "squared": Squared(),
    "logistic": Logistic(),
    "softmax": Softmax(3),
    "softmax of two": Softmax(2),
}


def drawn(loss: Loss, width: int, rows: int = 60, seed: int = 0, size: float = 1.0):
    """A head, E, and targets."""
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=loss.outputs), size * rng.normal(size=(width, loss.outputs)))
    embedding = rng.normal(size=(rows, width))
    if loss.name == "squared":
        return head, embedding, rng.normal(size=rows)
    return head, embedding, rng.integers(0, max(loss.outputs, 2), rows)


def torch_loss(loss: Loss, scores: torch.Tensor, targets: np.ndarray) -> torch.Tensor:
    """Of each row."""
    y = torch.tensor(targets)
    if loss.name == "squared":
        return 0.5 * (scores[:, 0] - y) ** 2
    if loss.name == "logistic":
        return torch.nn.functional.softplus(scores[:, 0]) - y * scores[:, 0]
    return torch.nn.functional.cross_entropy(scores, y, reduction="none")


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_derivatives_are_those_of_torch(loss: Loss) -> None:
    head, embedding, y = drawn(loss, 4)
    e, b, w = (
        torch.tensor(a, requires_grad=True) for a in (embedding, head.intercept, head.weights)
    )
    value = torch_loss(loss, e @ w + b, y).mean() + 0.05 * (w**2).sum()
    value.backward()
    scores = head.scores(embedding)
    found = loss.value(scores, y) + head.penalty(0.1)
    assert found == pytest.approx(value.item(), rel=1e-12)
    slopes = loss.gradient(scores, y)
    by_intercept, by_weights = head.gradient(embedding, slopes, 0.1)
    np.testing.assert_allclose(by_intercept, b.grad, atol=1e-14)
    np.testing.assert_allclose(by_weights, w.grad, atol=1e-14)
    np.testing.assert_allclose(head.pulled_back(slopes) / len(y), e.grad, atol=1e-14)


def test_without_weights_it_is_the_intercept() -> None:
    head = Head(np.array([1.0, 2.0]))
    embedding, slopes = np.arange(6.0).reshape(3, 2), np.ones((3, 2))
    np.testing.assert_array_equal(head.scores(embedding), embedding + np.array([1.0, 2.0]))
    np.testing.assert_array_equal(head.pulled_back(slopes), slopes)
    (gradient,) = head.gradient(embedding, slopes, 5.0)
    np.testing.assert_array_equal(gradient, [1.0, 1.0])
    assert (head.penalty(5.0), head.stretch, head.inputs) == (0.0, 1.0, 2)
    np.testing.assert_array_equal(head.shifted(np.ones(2)).intercept, [2.0, 3.0])


@pytest.mark.parametrize("weights", [None, np.ones((3, 2))])
def test_an_embedding_of_another_width_is_an_error(weights) -> None:
    with pytest.raises(InternalError, match="embedding of shape"):
        Head(np.zeros(2), weights).scores(np.zeros((5, 4)))


def test_the_first_head_follows_the_seed() -> None:
    one, same, other = (first_head(np.zeros(3), 8, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.weights, same.weights)
    assert np.abs(one.weights - other.weights).max() > 0.1
    assert one.weights.shape == (8, 3)
    assert 0.3 < np.linalg.norm(one.weights, axis=0).mean() < 3.0


@pytest.mark.parametrize("rho", [0.01, 0.3, 20.0])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("size", [1e-8, 1.0, 10.0])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_proximal_step_is_the_minimum(loss: Loss, width: int, size: float, rho: float) -> None:
    head, points, y = drawn(loss, width, rows=6, size=size)
    z = proximal(head, loss, points, y, rho)
    # the slope vanishes at the minimum of a strongly convex function, and only there
    slope = head.pulled_back(loss.gradient(head.scores(z), y)) + rho * (z - points)
    assert np.abs(slope).max() <= 1e-7 * max(1.0, rho)
    for row in range(2):

        def value(at: np.ndarray, row: int = row) -> float:
            here = head.scores(at[None, :])
            square = ((at - points[row]) ** 2).sum()
            return loss.value(here, y[row : row + 1]) + 0.5 * rho * square

        assert value(z[row]) <= optimize.minimize(value, points[row]).fun + 1e-9


def test_without_weights_the_proximal_step_is_the_losses_own() -> None:
    loss, points, y = Softmax(3), np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % 3
    constants = np.array([0.5, -1.0, 0.0])
    found = proximal(Head(constants), loss, points, y, 0.4)
    np.testing.assert_allclose(found + constants, loss.prox(points + constants, y, 0.4))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_head_of_zeros_moves_nothing(outputs: int) -> None:
    loss = Squared() if outputs == 1 else Softmax(3)
    points = np.random.default_rng(0).normal(size=(5, 4))
    head = Head(np.zeros(outputs), np.zeros((4, outputs)))
    found = proximal(head, loss, points, np.zeros(5, np.int64), 0.5)
    np.testing.assert_allclose(found, points, atol=1e-15)


def objective(head: Head, loss: Loss, embedding, y, l2: float, weights=None) -> float:
    return loss.value(head.scores(embedding), y, weights) + head.penalty(l2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_its_own_steps_lower_its_objective(
    loss: Loss, size: float, l2: float, weighted: bool
) -> None:
    head, embedding, y = drawn(loss, 4, size=size)
    embedding = embedding * np.array([1.0, 5.0, 0.1, 0.0]) + 2.0
    shares = None
    if weighted:
        shares = np.random.default_rng(3).integers(0, 3, len(y)).astype(float)
        shares *= len(y) / shares.sum()
    before = objective(head, loss, embedding, y, l2, shares)
    for _ in range(5):
        head = fitted(head, loss, embedding, y, l2, shares, steps=1, tolerance=0.0)
        after = objective(head, loss, embedding, y, l2, shares)
        assert after <= before + 1e-12 * abs(before)
        before = after


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_its_own_steps_lead_to_the_optimum(loss: Loss) -> None:
    head, embedding, y = drawn(loss, 3, rows=80)
    l2, c = 0.05, loss.outputs

    def value(flat: np.ndarray) -> float:
        return objective(Head(flat[:c], flat[c:].reshape(-1, c)), loss, embedding, y, l2)

    start = np.append(head.intercept, head.weights.reshape(-1))
    best = optimize.minimize(value, start, options={"gtol": 1e-9}).fun
    steps = 1 if loss.name == "squared" else 200
    found = fitted(head, loss, embedding, y, l2, steps=steps, tolerance=0.0)
    assert objective(found, loss, embedding, y, l2) == pytest.approx(best, rel=1e-7)


def test_a_weight_of_two_is_the_row_twice() -> None:
    loss = Softmax(3)
    head, embedding, y = drawn(loss, 3, rows=20)
    weights = np.arange(20) % 3
    often = np.repeat(np.arange(20), weights)
    one = fitted(head, loss, embedding, y, 0.1, weights * (20 / weights.sum()))
    many = fitted(head, loss, embedding[often], y[often], 0.1)
    np.testing.assert_allclose(one.weights, many.weights, atol=1e-12)
    np.testing.assert_allclose(one.intercept, many.intercept, atol=1e-12)
