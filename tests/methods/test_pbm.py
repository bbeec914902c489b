"""PBM-VFL against torch on the materialised join; what its sums are, and who can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sqlfl.aggregation import packing
from sqlfl.base.errors import InternalError, LostError, PartyError
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.contract.schema import Address, Client
from sqlfl.coordinator.rounds.problem import Problem, coordinator_of
from sqlfl.messages import Embeddings, MaskedEmbeddings, Message, SendPredictions
from sqlfl.messages.wire import encode
from sqlfl.methods.pbm.messages import PbmResiduals, SendEmbeddings
from sqlfl.methods.pbm.numbers import LEVELS, quantised, restored
from sqlfl.models.neural import TowerNetwork
from tests.depth import THOROUGH, combinations
from tests.methods.harness import Join, MemoryChannel, Trained, masked_run
from tests.methods.test_towers import OPTIMIZERS, SMALL, Central, batches_of, curved

SHAPES: dict[str, dict[str, Any]] = {
    "head": {"hidden": (6,), "activation": "tanh", "head": "linear", "embedding": 4},
    "two layers": {"hidden": (5, 3), "activation": "gelu", "head": "linear", "embedding": 3},
    "no head": {"hidden": (6,), "activation": "relu", "head": "none"},
}


def drawn(problem: Problem, bins: int, theta: float, **noise: float) -> Problem:
    """With draws, and gradients as they are without `noise`."""
    own = RoundNoise(**{"clip": 0.0, "noise": 0.0, "bins": bins, "theta": theta, **noise})
    return replace(problem, privacy=RunNoise({members.slot: own for members in problem.slots}))


def run(problem: Problem, channel: MemoryChannel) -> Trained:
    method = coordinator_of("pbm")(problem, channel)
    method.start()
    steps = list(method.steps())
    firsts = [channel.operators[m.addresses[0]] for m in problem.slots]
    theta = np.concatenate([o.shape.pack(o.parameters) for o in firsts])
    for members in problem.slots:  # its clients have one block
        for address in members.addresses[1:]:
            own, first = channel.operators[address], channel.operators[members.addresses[0]]
            np.testing.assert_array_equal(
                own.shape.pack(own.parameters), first.shape.pack(first.parameters)
            )
    return Trained(method, channel, steps, theta)


def trained(join: Join, **options: Any) -> Trained:
    return run(join.problem("pbm", **options), MemoryChannel(join.engines))


# -- without draws it is the central network ------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "form", "clients"),
    combinations(
        ("linear_regression", "softmax_regression"),
        tuple(OPTIMIZERS),
        tuple(SHAPES),
        (None, (3, 2, 1)),
    ),
)
def test_steps_are_those_of_torch(kind: str, name: str, form: str, clients: Any) -> None:
    optimizer, shape = OPTIMIZERS[name], SHAPES[form]
    join = curved(kind, clients=clients, **SMALL)
    weights = np.random.default_rng(1).exponential(size=len(join.targets))
    weights[::5] = 0.0
    join = replace(join, weights=weights, engines={})
    options = {**optimizer, **shape, "seed": 4, "epochs": 2, "batch_size": 70}
    central = Central.of(join, options, "pbm")
    assert central.bounded
    found = trained(join, **options)
    rows = np.flatnonzero(weights)
    # what an epoch tells is of the sums that its steps were made from: one more of no steps
    central.fit(batches_of(rows, 70, 2, 4), options)
    flat = [p.detach().numpy().reshape(-1) for tower in central.towers for p in tower]
    np.testing.assert_allclose(found.theta[:, 0], np.concatenate(flat), atol=1e-4)
    np.testing.assert_allclose(found.algorithm.intercept, central.intercept.detach(), atol=1e-4)
    if central.head is not None:
        np.testing.assert_allclose(found.algorithm.head, central.head.detach(), atol=1e-4)
    assert found.steps[-1].loss < found.algorithm.first


def test_scores_are_of_the_last_sums_and_the_head_as_it_is() -> None:
    join = curved("linear_regression", clients=(1, 2, 1), **SMALL)
    weights = np.ones(300)
    weights[:60] = 0.0  # for validation
    join = replace(join, weights=weights, engines={})
    options = {**SHAPES["head"], "batch_size": 10**6, "learning_rate": 0.1, "epochs": 1, "seed": 2}
    central = Central.of(join, options, "pbm")
    every = np.arange(300)
    before = central.embedding(every).detach().numpy()
    found = trained(join, **options, optimizer="plain")
    central.fit([[every[60:]]], {**options, "optimizer": "plain"})
    after = central.embedding(every).detach().numpy()
    head = central.head.detach().numpy()
    scores = join.scores(found.algorithm)
    own = found.algorithm.intercept
    np.testing.assert_allclose(scores[:60], after[:60] @ head + own, atol=1e-4)
    np.testing.assert_allclose(scores[60:], before[60:] @ head + own, atol=1e-4)


# -- draws -----------------------------------------------------------------------------------------


def sums_of(channel: MemoryChannel) -> list[tuple[list[SendEmbeddings], list[MaskedEmbeddings]]]:
    """Requests and replies of each exchange of sums."""
    found: dict[int, tuple[list[SendEmbeddings], list[MaskedEmbeddings]]] = {}
    for request, reply in zip(channel.sent[::2], channel.sent[1::2], strict=True):
        if isinstance(request, SendEmbeddings) and isinstance(reply, MaskedEmbeddings):
            asked, replies = found.setdefault(request.number, ([], []))
            asked.append(request)
            replies.append(reply)
    return list(found.values())


def numbers_of(reply: MaskedEmbeddings) -> np.ndarray:
    return packing.unpack(reply.packed.tobytes(), reply.width, reply.numbers)


@pytest.mark.parametrize("clients", [(1, 1), (2, 3), (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_the_sums_of_masked_numbers_are_exact_and_each_is_uniform(clients: tuple[int, ...]) -> None:
    total, bins, outputs = 400, 5, 8
    sizes = (total, *(40 for _ in clients[1:]))
    join = curved("linear_regression", total=total, sizes=sizes, clients=clients)
    shape = {"hidden": (4,), "head": "linear", "embedding": outputs}
    problem = join.problem("pbm", **shape, epochs=1, batch_size=100)
    plain: list[np.ndarray] = []
    channel = MemoryChannel(join.engines)
    run(drawn(problem, bins, 0.25), Spied(channel, plain))
    width = (bins * len(clients)).bit_length()
    for number, (asked, replies) in enumerate(sums_of(channel)):
        count = asked[0].joined * outputs
        own = plain[number * len(replies) : (number + 1) * len(replies)]
        assert {(r.numbers, r.width) for r in replies} == {(count, width)}
        masked = [numbers_of(reply) for reply in replies]
        np.testing.assert_array_equal(packing.summed(masked, width), sum(own))
        assert sum(own).max() <= bins * len(clients)
    every = np.concatenate([numbers_of(r) for _, replies in sums_of(channel) for r in replies])
    counts = np.bincount(every, minlength=1 << width)
    assert len(counts) == 1 << width
    assert stats.chisquare(counts).pvalue > 1e-4
    unmasked = np.concatenate(plain)
    assert stats.chisquare(np.bincount(unmasked, minlength=1 << width)).pvalue < 1e-9


class Spied(MemoryChannel):
    """Keeps what each client would have sent without masks."""

    def __init__(self, inner: MemoryChannel, plain: list[np.ndarray]) -> None:
        self.__dict__ = inner.__dict__
        self._plain = plain

    def _answer(self, address: Address, request: Message) -> Message:
        operator = self.operators[address]

        def work() -> Message:
            found: Message = operator.handle(request)
            if isinstance(found, Embeddings):
                self._plain.append(found.values.astype(np.uint64))
            return found

        return self.masked[address].answer(request, work)


def test_estimates_are_unbiased_and_vary_as_they_should() -> None:
    """At fixed towers: E of each joined row over many epochs of rate 0."""
    join = curved("linear_regression", total=60, sizes=(60, 12), clients=(1, 2))
    shape = {"hidden": (4,), "head": "linear", "embedding": 3, "l2": 0.0}
    problem = join.problem(
        "pbm", **shape, epochs=1, batch_size=25, learning_rate=1e-12, optimizer="plain"
    )
    bins, theta = 6, 0.2
    exact = run(problem, MemoryChannel(join.engines)).algorithm._embedding  # type: ignore[attr-defined]
    draws = []
    for _ in range(400 if THOROUGH else 80):
        found = run(drawn(problem, bins, theta), MemoryChannel(join.engines))
        draws.append(found.algorithm._embedding)  # type: ignore[attr-defined]
    sample = np.array(draws, np.float64)
    blocks = [(x - c)[p] for x, c, p in zip(join.tables, join.centres, join.rows, strict=True)]
    assert len(blocks) == 2
    expected = (0.25 * 2) / (theta**2 * bins)  # less θ² Σ h²/(θ² b), which is at most 2/b
    spread = sample.var(axis=0)
    assert spread.mean() <= expected * 1.05
    assert spread.mean() >= (expected - 2 / bins) * 0.95
    z = (sample.mean(axis=0) - exact) / np.sqrt(spread / len(draws))
    assert stats.chi2.sf((z**2).sum(), z.size) > 1e-4


def test_a_row_is_drawn_of_once_for_each_of_its_joined_rows() -> None:
    join = curved("linear_regression", clients=(1, 2, 1), **SMALL)
    problem = drawn(join.problem("pbm", **SHAPES["head"], epochs=3, batch_size=70), 8, 0.1)
    channel = MemoryChannel(join.engines)
    run(problem, channel)
    for slot, members in enumerate(problem.slots):
        counts = np.bincount(join.rows[slot])
        bounds = members.offsets
        for number, address in enumerate(members.addresses):
            guard = channel.operators[address].guard
            assert guard.draws == 3 * counts[bounds[number] : bounds[number + 1]].max()
            assert guard.counts == (0, 0, 0)  # neither noised gradients nor predictions


def test_noised_gradients_are_counted_too() -> None:
    join = curved("linear_regression", clients=(1, 2, 1), **SMALL)
    problem = join.problem("pbm", **SHAPES["head"], epochs=2, batch_size=10**6)
    channel = MemoryChannel(join.engines)
    run(drawn(problem, 8, 0.1, clip=0.5, noise=0.1), channel)
    assert {own.guard.counts for own in channel.operators.values()} == {(2, 0, 0)}


# -- what goes wrong -------------------------------------------------------------------------------


def unanswered() -> Message:
    raise AssertionError("masks are a matter of the border")


class Losing(MemoryChannel):
    """Loses the replies of some exchanges."""

    def __init__(self, inner: MemoryChannel, lost: set[int]) -> None:
        self.__dict__ = inner.__dict__
        self._lost = lost

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        repeats = {a: m for a, m in requests.items() if m.kind == "repeat"}
        for (client, _), repeat in repeats.items():
            for (own, slot), masked in self.masked.items():
                if own == client and slot in repeat.slots:
                    masked.answer(repeat, unanswered)
        others = {a: m for a, m in requests.items() if a not in repeats}
        found = super().exchange(others)
        if len(self.kinds) in self._lost:
            raise LostError("party0", "no answer came")
        return found | repeats


def test_a_lost_exchange_sends_the_same_draws_under_fresh_masks() -> None:
    join = curved("linear_regression", clients=(1, 2), total=80, sizes=(80, 20))
    options = {"hidden": (4,), "head": "linear", "embedding": 3, "epochs": 1, "batch_size": 40}
    channel = MemoryChannel(join.engines)
    run(drawn(join.problem("pbm", **options), 8, 0.1), Losing(channel, {4, 5}))
    (_, first), (_, second), (_, third), (_, other) = sums_of(channel)
    totals = [
        packing.summed([numbers_of(reply) for reply in replies], third[0].width)
        for replies in (first, second, third, other)
    ]
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_array_equal(totals[0], totals[2])
    assert not np.array_equal(totals[0], totals[3])
    for one, two in zip(first, third, strict=True):
        assert not np.array_equal(one.packed, two.packed)
    assert channel.operators[(Client("party0", 0), 0)].guard.draws == 1


def test_an_exchange_that_is_lost_too_often_ends_the_run() -> None:
    join = curved("linear_regression", clients=(1, 2), total=80, sizes=(80, 20))
    options = {"hidden": (4,), "head": "linear", "embedding": 3, "epochs": 1, "batch_size": 40}
    with pytest.raises(LostError):
        run(join.problem("pbm", **options), Losing(MemoryChannel(join.engines), {4, 5, 6}))


class Changing(MemoryChannel):
    """Changes what one client replies."""

    def __init__(self, inner: MemoryChannel, change: Any) -> None:
        self.__dict__ = inner.__dict__
        self._change = change

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        found = super().exchange(requests)
        address = next(iter(found))
        if isinstance(found[address], MaskedEmbeddings):
            found[address] = self._change(found[address])
        return found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: replace(m, width=m.width + 1), "numbers of 6 bits"),
        (lambda m: replace(m, numbers=m.numbers - 1), "numbers of 5 bits"),
        (lambda m: replace(m, packed=m.packed[:-1]), "other sizes"),
        (lambda m: replace(m, packed=m.packed ^ np.uint8(0xA5)), "masks do not cancel"),
        (lambda m: Embeddings("run", 0, m.packed, 1, 2), "is embeddings, expected"),
    ],
)
def test_replies_that_are_none_are_told(change: Any, text: str) -> None:
    join = curved("linear_regression", clients=(1, 2), total=80, sizes=(80, 20))
    options = {"hidden": (4,), "head": "linear", "embedding": 8, "epochs": 1, "batch_size": 40}
    problem = drawn(join.problem("pbm", **options), 8, 0.1)
    with pytest.raises(PartyError, match=text):
        run(problem, Changing(MemoryChannel(join.engines), change))


def test_nothing_leaves_before_there_are_keys_nor_in_another_way() -> None:
    join = curved("linear_regression", clients=(1, 2), total=80, sizes=(80, 20))
    options = {"hidden": (4,), "head": "linear", "embedding": 3, "epochs": 1}
    problem = join.problem("pbm", **options)
    channel = MemoryChannel(join.engines)
    coordinator_of("pbm")(problem, channel).start()
    address = problem.slots[0].addresses[0]
    rows = np.arange(3, dtype=np.uint32)
    request = SendEmbeddings("run", 0, 3, 1, rows, rows[:0])
    operator = channel.operators[address]
    with pytest.raises(InternalError, match="before there are keys"):
        masked_run(*address).answer(request, lambda: operator.handle(request))
    with pytest.raises(InternalError, match="leave in sums alone"):
        operator.handle(SendPredictions("run", 0, 0, rows, 0))
    plain = operator.handle(request)
    assert isinstance(plain, Embeddings)
    with pytest.raises(InternalError, match="does not say its form"):
        encode(plain)


def test_requests_that_do_not_fit_are_refused() -> None:
    join = curved("linear_regression", clients=(1, 1), total=80, sizes=(80, 20))
    problem = join.problem("pbm", hidden=(4,), head="linear", embedding=3, epochs=1)
    channel = MemoryChannel(join.engines)
    coordinator_of("pbm")(problem, channel).start()
    operator = channel.operators[problem.slots[1].addresses[0]]
    none = np.zeros(0, np.uint32)
    with pytest.raises(InternalError, match="names row 20 of 20"):
        operator.handle(SendEmbeddings("run", 1, 1, 1, np.array([20], np.uint32), none))
    with pytest.raises(InternalError, match="is of 81 joined rows, of 80"):
        operator.handle(SendEmbeddings("run", 1, 81, 1, np.array([3], np.uint32), none + 1))
    residuals = PbmResiduals("run", 1, np.zeros((2, 3), np.float32), 0.1, 2, 0)
    with pytest.raises(InternalError, match="other sizes"):
        operator.handle(residuals)
    operator.handle(SendEmbeddings("run", 1, 2, 1, np.array([3, 3], np.uint32), none))
    with pytest.raises(InternalError, match="other sizes"):
        operator.handle(residuals)  # of one distinct row


@pytest.mark.parametrize(
    ("joined", "rows", "places"), [(3, [1, 2], []), (3, [1, 2], [0]), (2, [1, 2], [1, 2])]
)
def test_rows_have_a_place_each(joined: int, rows: list[int], places: list[int]) -> None:
    own = [np.array(values, np.uint32) for values in (rows, places)]
    assert SendEmbeddings("run", 0, joined, 1, *own).fault() is not None


def test_rows_and_places_that_fit() -> None:
    for joined, rows, places in ((2, [1, 1], []), (3, [1, 2], [0, 2]), (3, [], [])):
        own = [np.array(values, np.uint32) for values in (rows, places)]
        assert SendEmbeddings("run", 0, joined, 1, *own).fault() is None


# -- fixed point -----------------------------------------------------------------------------------


def test_numbers_come_back_from_their_sums() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (7, 500))
    values[0, :3] = -1.0, 0.0, 1.0
    sums = quantised(values).astype(np.uint64).sum(axis=0)
    np.testing.assert_allclose(restored(sums, 7), values.sum(axis=0), atol=7 / LEVELS)
    assert quantised(np.array([-1.0, 1.0])).tolist() == [0, LEVELS]


@pytest.mark.parametrize("value", [1.01, -2.0, float("nan")])
def test_what_is_not_bounded_is_refused(value: float) -> None:
    with pytest.raises(InternalError, match="not within"):
        quantised(np.array([value]))
    with pytest.raises(InternalError, match="not of 2 numbers"):
        restored(np.array([2 * LEVELS + 1], np.uint64), 2)


def test_towers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch too."""
    monkeypatch.setattr("sqlfl.party.neural.suits", lambda *_: False)
    join = curved("linear_regression", clients=(1, 1), total=80, sizes=(80, 20))
    found = trained(join, hidden=(4,), head="linear", embedding=3, epochs=2, learning_rate=10.0)
    operators = found.channel.operators.values()
    assert all(isinstance(own._network, TowerNetwork) for own in operators)
    sums = found.algorithm._embedding  # type: ignore[attr-defined]
    assert np.abs(sums).max() <= 2.0 + 1e-6
