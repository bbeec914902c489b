"""Frank-Wolfe over random joins and partitions, against the same iterations in one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from sqlfl.base.errors import InternalError, ModelError, PartyError
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import PartialGradient
from sqlfl.messages.wire import decode, encode
from sqlfl.methods.frank_wolfe.coordinator import SketchedColumns
from sqlfl.methods.frank_wolfe.messages import (
    ColumnDirection,
    ColumnResiduals,
    ColumnWeights,
    SetSketch,
    SteepestColumn,
)
from sqlfl.methods.frank_wolfe.sketch import Sketch
from tests.depth import in_turn
from tests.methods.harness import Array, Join, MemoryChannel, Trained, random_join
from tests.methods.harness import train as run

PARTITIONS = [(1, 1, 1), (3, 1, 1), (1, 2, 3)]


def train(join: Join, radius: float, **options: object) -> Trained:
    return run(join, "frank_wolfe", radius=radius, **options)


def joined(seed: int, clients: tuple[int, ...] = (1, 1, 1), **options: object) -> Join:
    """Of random sizes and widths; some weigh their rows."""
    rng = np.random.default_rng(seed)
    sizes = int(rng.integers(80, 400)), int(rng.integers(5, 60)), int(rng.integers(3, 9))
    settings = {
        "total": int(rng.integers(sizes[0], 900)),
        "sizes": sizes,
        "numeric": int(rng.integers(1, 6)),
        "categories": int(rng.integers(2, 5)),
        "correlation": float(rng.choice([0.0, 0.6])),
    }
    join = random_join(seed=seed, clients=clients, **{**settings, **options})
    if seed % 3 == 0:
        weights = rng.integers(0, 4, len(join.targets)).astype(float)
        return replace(join, weights=weights, engines={})
    return join


def central(join: Join, radius: float, steps: int, *, search: bool) -> list[Array]:
    """H after each iteration of Frank-Wolfe over the joined rows, with the best constant."""
    x, y = join.design, join.targets
    w = np.ones(len(y)) if join.weights is None else join.weights
    w = w / w.sum()
    xc, yc = x - w @ x, y - w @ y
    theta, found = np.zeros(x.shape[1]), []
    for step in range(steps):
        slopes = xc.T @ (w * (xc @ theta - yc))
        best = int(np.argmax(np.abs(slopes)))
        way = -theta
        way[best] -= np.sign(slopes[best]) * radius
        length = 2.0 / (step + 2.0)
        if search:
            bend = float(w @ (xc @ way) ** 2)
            length = min(max(-float(slopes @ way) / bend, 0.0), 1.0)
        theta = theta + length * way
        found.append(w @ y + xc @ theta)
    return found


@pytest.mark.parametrize(
    ("seed", "search", "clients"), in_turn(range(6), (True, False), PARTITIONS, each=2)
)
def test_iterates_are_those_of_one_place(seed: int, search: bool, clients: tuple[int, ...]) -> None:
    join = joined(seed, clients)
    steps, radius = 15, float(np.random.default_rng(seed).choice([0.1, 1.0, 5.0]))
    expected = central(join, radius, steps, search=search)
    step = "search" if search else "fixed"
    for count in (1, 2, 7, steps):
        trained = train(join, radius, step=step, epochs=count, tolerance=0.0)
        found = join.design @ trained.theta[:, 0] + trained.algorithm.intercept[0]
        np.testing.assert_allclose(found, expected[count - 1], atol=1e-6 * join.targets.std())
        np.testing.assert_allclose(join.scores(trained.algorithm)[:, 0], found, atol=1e-6)
        assert np.abs(trained.theta).sum() <= radius * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_that_of_the_lasso_with_its_support(seed: int) -> None:
    join = replace(joined(3 * seed + 1, (1, 2, 1), correlation=0.0, categories=0), engines={})
    x, y = join.design, join.targets
    reference = Lasso(alpha=0.1 * y.std(), tol=1e-12, max_iter=100_000).fit(x, y)
    radius = float(np.abs(reference.coef_).sum())
    assert radius > 0.0
    trained = train(join, radius, tolerance=1e-10)
    best = 0.5 * float(np.mean((reference.predict(x) - y) ** 2))
    assert trained.objective == pytest.approx(best, rel=1e-6)
    np.testing.assert_array_equal(trained.theta[:, 0] != 0.0, reference.coef_ != 0.0)
    np.testing.assert_allclose(trained.theta[:, 0], reference.coef_, atol=1e-4 * radius)
    ending = trained.steps[-1].ending
    assert ending is not None
    assert ending.converged


def test_the_gap_bounds_how_far_the_objective_is_above_its_minimum() -> None:
    join = joined(4)
    best = train(join, 1.0, tolerance=1e-12).objective
    for step in ("search", "fixed"):
        trained = train(join, 1.0, step=step, epochs=60, tolerance=0.0)
        for found in trained.steps:
            assert found.gap is not None
            assert found.objective - best <= found.gap + 1e-12
        assert trained.steps[-1].ending is not None
        assert not trained.steps[-1].ending.converged


def test_a_ball_that_holds_the_least_squares_ends_there() -> None:
    join = joined(2, categories=0)
    x = np.column_stack([np.ones(len(join.targets)), join.design])
    solution, *_ = np.linalg.lstsq(x, join.targets, rcond=None)
    trained = train(join, 1e3, tolerance=1e-9, epochs=500)
    found = join.design @ trained.theta[:, 0] + trained.algorithm.intercept[0]
    np.testing.assert_allclose(found, x @ solution, atol=1e-5)


@pytest.mark.parametrize("sample", [1, 2])
def test_samples_of_columns_decay_as_one_over_the_iterations(sample: int) -> None:
    join = joined(10, (1, 2, 1), numeric=5)
    best = train(join, 1.0, tolerance=1e-12).objective
    gaps = []
    for seed in range(3):
        trained = train(join, 1.0, step="search", sample=sample, epochs=160, seed=seed)
        gaps.append([step.objective - best for step in trained.steps])
        assert len({(m.slot, m.column) for m in columns(trained)}) > 3
    mean = np.mean(gaps, axis=0)
    # O(1/t): four times as many iterations leave a quarter, up to what chance does
    assert mean[159] < 0.4 * mean[39]
    assert mean[39] < 0.5 * mean[9]


def columns(trained: Trained) -> list[SteepestColumn]:
    return [m for m in trained.channel.sent if isinstance(m, SteepestColumn)]


def test_the_uplink_is_an_index_of_each_slot_and_columns_when_they_are_new() -> None:
    join = joined(5)
    trained = train(join, 1.0, step="search", epochs=20, tolerance=0.0)
    sent, told = columns(trained), set()
    assert len(sent) == 3 * 21
    for message in sent:
        new = (message.slot, message.column) not in told
        assert len(message.values) == (len(join.tables[message.slot]) if new else 0)
        told.add((message.slot, message.column))
    assert {type(m) for m in trained.channel.sent[6::2]} == {ColumnResiduals}
    # one exchange a question: nothing is asked of the gradient
    assert trained.channel.rounds == 22


def test_clients_of_a_slot_sum_their_slopes_before_they_choose() -> None:
    trained = train(joined(5, (2, 1, 1)), 1.0, epochs=3)
    assert {m.slot for m in trained.channel.sent if isinstance(m, PartialGradient)} == {0}


def test_a_block_keeps_its_last_epochs() -> None:
    join = joined(7, (2, 1, 1))
    problem = join.problem("frank_wolfe", radius=1.0, step="search", patience=2,
                           validation_fraction=0.2, epochs=6)  # fmt: skip
    channel = MemoryChannel(join.engines)
    method = coordinator_of("frank_wolfe")(problem, channel)
    method.start()
    steps, found = method.steps(), []
    address = problem.slots[0].addresses[1]
    for _ in range(4):
        next(steps)
        found.append(channel.operators[address].parameters[0].copy())
    for back in range(3):
        np.testing.assert_array_equal(channel.operators[address].kept(back)[0], found[-1 - back])
    with pytest.raises(InternalError, match="3 epochs back"):
        channel.operators[address].kept(3)


# -- sketches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", PARTITIONS)
def test_a_large_sketch_is_as_good_as_the_columns(clients: tuple[int, ...]) -> None:
    join = replace(joined(8, clients, total=600, numeric=3), weights=None, engines={})
    best = train(join, 1.0, tolerance=1e-10)
    losses = []
    for size in (8, 64, 1 << 13):
        trained = train(join, 1.0, sketch=size, seed=3)
        assert trained.algorithm.scores is None
        losses.append(join.objective(trained.algorithm.intercept, trained.theta))
    assert best.objective <= losses[2] * (1 + 1e-9)
    assert losses[2] - best.objective < 0.02 * best.objective
    assert losses[2] < losses[0]


def test_the_noise_of_one_tables_columns_takes_nothing_from_anothers() -> None:
    """A column that noise drowns neither shrinks one that has hardly any, nor gets a weight."""
    rows, size = 4000, 64
    rng = np.random.default_rng(3)
    join = random_join(total=rows, sizes=(rows, rows), numeric=1, categories=0)
    clear, drowned = rng.normal(size=(2, rows))
    join.targets = 3.0 * clear + 0.1 * rng.normal(size=rows)
    problem = join.problem("frank_wolfe", radius=10.0, sketch=size)
    sketch = Sketch(size, rows, 5)
    told = SketchedColumns(problem, sketch, np.arange(rows))
    for slot, (values, noise) in enumerate(((clear, 0.1), (drowned, 400.0))):
        told.add(slot, 0, sketch.of(values) + noise * rng.normal(size=size), noise)
    weights = np.linalg.solve(told.convex, told.linear)
    assert weights[0] == pytest.approx(3.0, rel=0.3)
    assert abs(weights[1]) < 0.5


def test_a_sketch_travels_in_place_of_rows() -> None:
    join = replace(joined(8, (1, 2, 1)), weights=None, engines={})
    trained = train(join, 1.0, sketch=32, epochs=10, step="search", tolerance=0.0)
    assert {len(m.values) for m in columns(trained)} == {0, 32}
    asked = [m for m in trained.channel.sent if isinstance(m, ColumnDirection)]
    assert {len(m.values) for m in asked} == {32}
    setting = [m for m in trained.channel.sent if isinstance(m, SetSketch)]
    assert [len(m.rows) for m in setting if m.slot != 1] == [len(join.targets)] * 2
    shared = [m for m in setting if m.slot == 1]
    places = np.concatenate([m.places for m in shared])
    np.testing.assert_array_equal(np.sort(places), np.arange(len(join.targets)))
    assert not any(isinstance(m, ColumnResiduals) for m in trained.channel.sent)


def test_weights_of_rows_have_no_sketch() -> None:
    with pytest.raises(ModelError, match="weigh"):
        train(joined(3), 1.0, sketch=16)


# -- what does not fit -----------------------------------------------------------------------------


class Lying(MemoryChannel):
    """Answers of the second client are changed on their way."""

    def __init__(self, join: Join, change: object) -> None:
        super().__init__(join.engines)
        self._change = change

    def _answer(self, address: object, request: object) -> object:
        found = super()._answer(address, request)  # type: ignore[arg-type]
        if isinstance(found, SteepestColumn) and address == list(self.operators)[1]:
            found = replace(found, **self._change)  # type: ignore[arg-type]
        return found


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"column": 10**6}, "tells column 1000000 of"),
        ({"values": np.ones(3, np.float32)}, "with 3 values"),
        ({"column": 0, "rising": 0}, "another column|with .* values"),
    ],
)
def test_an_answer_that_does_not_fit_names_its_client(
    change: dict[str, object], match: str
) -> None:
    join = joined(5, (2, 1, 1), numeric=4)
    problem = join.problem("frank_wolfe", radius=1.0, step="search", epochs=4)
    method = coordinator_of("frank_wolfe")(problem, Lying(join, change))

    def trained() -> None:
        method.start()
        list(method.steps())

    with pytest.raises(PartyError, match=match):
        trained()


def test_a_client_takes_only_what_fits_it() -> None:
    join = joined(5)
    trained = train(join, 1.0, epochs=2)
    operator = next(iter(trained.channel.operators.values()))
    rows = operator._engine.rows
    y, told = np.zeros((rows, 1), np.float32), len(operator._told)
    for message, match in [
        (ColumnResiduals("run", 0, y, np.zeros(told + 1)), "weights of"),
        (ColumnResiduals("run", 0, y[1:], np.zeros(told)), "other sizes"),
        (ColumnDirection("run", 0, np.zeros(3, np.float32), np.zeros(told)), "without such"),
        (SetSketch("run", 0, 1, 9, np.zeros(9, np.uint32), np.zeros(0, np.uint32)), "set once"),
    ]:
        with pytest.raises(InternalError, match=match):
            operator.handle(decode(encode(message)))
    operator.handle(ColumnWeights("run", 0, np.ones(told)))
    assert np.count_nonzero(operator.parameters[0]) == told


def test_an_iteration_looks_at_the_joined_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = PartitionedRows.look
    monkeypatch.setattr(
        PartitionedRows, "look", lambda *a, **k: (looks.append(1), look(*a, **k))[1]
    )
    trained = train(joined(5), 1.0, step="search", epochs=20, tolerance=0.0)
    # one more before there are weights
    assert len(looks) == 1 + 1 + len(trained.steps)
