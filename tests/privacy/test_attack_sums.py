"""Reconstruction: what a coordinator that knows the towers finds of rows in what they tell it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from sqlfl.aggregation import packing
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.coordinator.rounds.problem import Problem, coordinator_of
from sqlfl.messages import MaskedEmbeddings, Predictions
from sqlfl.methods.pbm.messages import SendEmbeddings
from sqlfl.methods.pbm.numbers import LEVELS, restored
from sqlfl.models.towers import TowerShape, first_parameters
from sqlfl.privacy.poisson_binomial.sampling import estimate
from tests.methods.harness import Join, MemoryChannel, random_join

ROWS, FEATURES, PARTIES, OUTPUTS = 200, 3, 3, 16
OPTIONS = {"hidden": (24,), "activation": "tanh", "head": "linear", "embedding": OUTPUTS, "seed": 5}
STILL = {"learning_rate": 1e-9, "optimizer": "plain", "batch_size": 64}
"""Towers stay as they began, which is as the coordinator can draw them: its best case."""


def join() -> Join:
    """Tables that are aligned one to one, of standard columns."""
    sizes = (ROWS,) * PARTIES
    return random_join(seed=3, total=ROWS, sizes=sizes, numeric=FEATURES, categories=0)


@dataclass(frozen=True)
class Seen:
    """Numbers that are a function of rows, and the noise in them."""

    values: np.ndarray
    """(rows, P)"""
    rows: tuple[np.ndarray, ...]
    """The row of each table whose towers' outputs they are the sum of."""
    noise: float


def towers(slots: tuple[int, ...], *, bounded: bool) -> list[list[torch.Tensor]]:
    shape = TowerShape(FEATURES, (24,), OUTPUTS, "tanh", bounded)
    return [[torch.tensor(p) for p in first_parameters(shape, FEATURES, 5, slot)] for slot in slots]


def found(seen: Seen, slots: tuple[int, ...], *, bounded: bool) -> list[np.ndarray]:
    """The likeliest rows of each table: of standard columns, and this noise."""
    networks, target = towers(slots, bounded=bounded), torch.tensor(seen.values)
    guess = torch.zeros(
        (len(slots), len(target), FEATURES), dtype=torch.float64, requires_grad=True
    )
    solver = torch.optim.LBFGS(
        [guess], max_iter=400, history_size=20, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        solver.zero_grad()
        total = torch.zeros(())
        for own, (first, bias, last) in zip(guess, networks, strict=True):
            made = torch.tanh(own @ first + bias) @ last
            total = total + (torch.tanh(made) if bounded else made)
        value = ((total - target) ** 2).sum() / seen.noise**2 + (guess**2).sum()
        value.backward()
        return value

    solver.step(loss)
    return list(guess.detach().numpy())


def explained(own: Join, seen: Seen, slots: tuple[int, ...], *, bounded: bool) -> float:
    """Share of the features' variance that is found: R² over all of them, of all rows that are
    told of."""
    guesses = found(seen, slots, bounded=bounded)
    truth = [own.tables[slot][rows] for slot, rows in zip(slots, seen.rows, strict=True)]
    wrong = sum(((guess - x) ** 2).sum() for guess, x in zip(guesses, truth, strict=True))
    return 1.0 - float(wrong) / float(sum((x**2).sum() for x in truth))


def predicted(own: Join, noise: float) -> Seen:
    """What sgd tells of the first table."""
    problem = own.problem("sgd", **OPTIONS, **STILL, epochs=1)
    if noise:
        said = RoundNoise(clip=1.0, noise=1.0, prediction_clip=4.0, prediction_noise=noise)
        rounds = {members.slot: said for members in problem.slots}
        problem = replace(problem, privacy=RunNoise(rounds))
    channel = MemoryChannel(own.engines)
    coordinator_of("sgd")(problem, channel).start()
    sent = [m for m in channel.sent if isinstance(m, Predictions) and m.slot == 0]
    return Seen(sent[0].values.astype(float), (np.arange(ROWS),), max(noise, 1e-6))


def summed(own: Join, bins: int, theta: float, epochs: int) -> Seen:
    """What the coordinator makes of the masked numbers: of each joined row the mean over epochs."""
    problem = drawn(own.problem("pbm", **OPTIONS, **STILL, epochs=epochs), bins, theta)
    channel = MemoryChannel(own.engines)
    method = coordinator_of("pbm")(problem, channel)
    method.start()
    list(method.steps())
    total = np.zeros((ROWS, OUTPUTS))
    members: dict[int, tuple[np.ndarray, ...]] = {}
    exchanges: dict[int, list[tuple[SendEmbeddings, MaskedEmbeddings]]] = {}
    for request, reply in zip(channel.sent[::2], channel.sent[1::2], strict=True):
        if isinstance(request, SendEmbeddings) and isinstance(reply, MaskedEmbeddings):
            exchanges.setdefault(request.number, []).append((request, reply))
    for pairs in exchanges.values():
        asked, replies = zip(*pairs, strict=True)
        width, count = replies[0].width, replies[0].numbers
        parts = [packing.unpack(reply.packed.tobytes(), width, count) for reply in replies]
        sums = packing.summed(parts, width).reshape(-1, OUTPUTS)
        numbers = estimate(sums, PARTIES, 1.0, bins, theta) if bins else restored(sums, PARTIES)
        first = asked[0].rows
        total[first] += numbers / epochs
        for at, row in enumerate(first):
            members[int(row)] = tuple(request.rows[at] for request in asked)
    rows = tuple(np.array([members[r][slot] for r in range(ROWS)]) for slot in range(PARTIES))
    noise = np.sqrt(PARTIES / epochs / bins) / (2 * theta) if bins else PARTIES / LEVELS
    return Seen(total, rows, max(noise, 1e-6))


def drawn(problem: Problem, bins: int, theta: float) -> Problem:
    if not bins:
        return problem
    said = RoundNoise(clip=0.0, noise=0.0, bins=bins, theta=theta)
    return replace(problem, privacy=RunNoise({members.slot: said for members in problem.slots}))


ALL = tuple(range(PARTIES))


def test_exact_predictions_by_known_towers_are_the_row() -> None:
    own = join()
    assert explained(own, predicted(own, 0.0), (0,), bounded=False) > 0.99


def test_noised_predictions_are_not() -> None:
    own = join()
    assert explained(own, predicted(own, 8.0), (0,), bounded=False) < 0.05


def test_exact_sums_are_the_rows_where_towers_have_more_outputs_than_all_tables_columns() -> None:
    """Masks hide a table's part from no one who can take the sum apart by what it knows."""
    own = join()
    assert explained(own, summed(own, 0, 0.0, 1), ALL, bounded=True) > 0.99


@pytest.mark.parametrize(("bins", "theta"), [(8, 0.1), (16, 0.1)])
def test_sums_of_draws_are_not(bins: int, theta: float) -> None:
    own = join()
    assert explained(own, summed(own, bins, theta, 1), ALL, bounded=True) < 0.2


def test_many_sums_of_fine_draws_are_again() -> None:
    """Draws of each epoch are new: with many bins, over many epochs, an ε of thousands holds
    nothing back."""
    own = join()
    once = explained(own, summed(own, 64, 0.25, 1), ALL, bounded=True)
    often = explained(own, summed(own, 64, 0.25, 30), ALL, bounded=True)
    assert once < 0.8 < 0.9 < often
