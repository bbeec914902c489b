"""Costs of clipping and noise: seconds of a client's private step beside those of others.

A step is what a client does in a round of full-batch gradient descent: from the residuals that the
coordinator sent to the predictions that it gets back. Steps take turns, so that all see the same
machine; medians.

- A linear block, by the arrays engine: as it is; with its gradient clipped per row and noised; with
  its predictions noised, too.
- A tower of one or two hidden layers: the same; and plain Opacus on the same rows made dense, in
  float64 as the tower is: gradients of each row in memory, so many rows at once, and its ghost
  clipping.
- The round as a whole, by TRAIN and TRAIN ... PRIVACY: messages and the coordinator's work, too.

Tables are generated.

    python benchmarks/dp_overhead.py [--rows 200000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import duckdb
import numpy as np
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer

import sqlfl
from sqlfl.contract.configuration import TowerConfiguration
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.contract.schema import FeatureSpecification, SlotSpecification
from sqlfl.messages import SendPredictions
from sqlfl.methods.sgd.client import CLIENT
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.udfs.encoding.features import local_encoding
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import ArraysEngine

NUMERIC, KINDS = 20, (12, 100)
"""Numeric columns, and the values of each category."""
PHYSICAL = 2048
"""Rows whose gradients plain Opacus holds at once."""
EPOCHS = 8
"""Epochs of a statement; the first one's time holds the preparation."""
HIDDEN = ((64,), (64, 64))
CLIP, NOISE = 1.0, 2.0
BOUNDS = ", ".join(f"'x{number}': [-4, 4]" for number in range(NUMERIC))
LISTS = ", ".join(
    f"'c{number}': [{', '.join(repr(f'v{value}') for value in range(kinds))}]"
    for number, kinds in enumerate(KINDS)
)
CLAUSES = {
    "private": "predictions = 'exact'",
    "private, with predictions": "predictions = 'gaussian'",
}

Step = Callable[[], object]
Seconds = Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds of private steps")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows, repeats = arguments.rows, arguments.repeats
    with duckdb.connect() as con:
        make_table(con, rows)
        engine = engine_of(con)
        print(f"{rows:,} rows, {engine.width} encoded columns, {torch.get_num_threads()} threads")
        print("\n| step | seconds | times the first |\n|---|---:|---:|")
        show("linear", medians(client_steps(engine, ()), repeats))
        dense = dense_of(engine)
        for hidden in HIDDEN:
            steps = client_steps(engine, hidden) | opacus_steps(dense, hidden)
            show(f"tower {list(hidden)}", medians(steps, repeats))
        show("whole round, linear", rounds(con, repeats))


def show(name: str, results: Seconds) -> None:
    first = next(iter(results.values()))
    for kind, seconds in results.items():
        print(f"| {name}: {kind} | {seconds:.4f} | {seconds / first:.2f} |", flush=True)


def medians(steps: Mapping[str, Step], repeats: int) -> Seconds:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat > 0:  # the first one warms caches
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


# -- the rows -------------------------------------------------------------------------------------


def make_table(con: duckdb.DuckDBPyConnection, rows: int) -> None:
    columns = [f"round(random() * 6 - 3, 3) AS x{number}" for number in range(NUMERIC)]
    columns += [
        f"'v' || (random() * {kinds})::INT % {kinds} AS c{number}"
        for number, kinds in enumerate(KINDS)
    ]
    con.execute("SELECT setseed(0.5)")
    con.execute(f"CREATE TABLE t AS SELECT {', '.join(columns)}, random() AS y FROM range({rows})")


def engine_of(con: duckdb.DuckDBPyConnection) -> ArraysEngine:
    """Return the engine of all rows, as a party makes it."""
    names = [(f"x{number}", "numeric") for number in range(NUMERIC)]
    names += [(f"c{number}", "category") for number in range(len(KINDS))]
    wanted = SlotSpecification(
        slot=0,
        features=tuple(FeatureSpecification(*name) for name in names),
        target=False,
        classes=False,
        identifiers=(),
        keys=(),
        fragments=(0,),
        shared=False,
        secret="federation",
        engine="arrays",
    )
    selected = ", ".join(name for name, _ in names)
    cursor = con.cursor()
    cursor.begin()
    snapshot = Snapshot.take(cursor, wanted, (f"SELECT {selected} FROM t",), b"k", "run")
    cursor.commit()
    size = sum(snapshot.rows)
    snapshot.activate(np.arange(size), np.ones(size, int))
    return ArraysEngine(cursor, snapshot, local_encoding(snapshot))


def dense_of(engine: ArraysEngine) -> torch.Tensor:
    numeric, onehot = engine.columns()
    return torch.tensor(np.hstack([numeric, onehot.toarray()]) - engine.centre)


# -- steps ----------------------------------------------------------------------------------------


def client_steps(engine: ArraysEngine, hidden: tuple[int, ...]) -> dict[str, Step]:
    """The client's part of a round, by the kind of privacy."""
    privacies = {
        "not private": None,
        "private": RoundNoise(CLIP, NOISE),
        "private, with predictions": RoundNoise(CLIP, NOISE, CLIP, NOISE),
    }
    rng = np.random.default_rng(0)
    values = rng.normal(size=(engine.rows, 1)).astype(np.float32)
    message = SgdResiduals("run", 0, values, 1e-3, engine.rows, 1)
    tower = TowerConfiguration(hidden=hidden, activation="relu") if hidden else None
    found: dict[str, Step] = {}
    for name, privacy in privacies.items():
        own = SgdConfiguration(
            outputs=1, rows=engine.rows, total=float(engine.rows), clients=1, leader=True, l2=1e-4,
            curvature=1.0, tower=tower, privacy=privacy,
        )  # fmt: skip
        operator = CLIENT.operator(engine, own, "run", 0)
        operator.handle(SendPredictions("run", 0))
        found[name] = lambda operator=operator: operator.handle(message)
    return found


def opacus_steps(x: torch.Tensor, hidden: tuple[int, ...]) -> dict[str, Step]:
    values = torch.tensor(np.random.default_rng(0).normal(size=(len(x), 1)))
    return {
        f"Opacus, dense, {PHYSICAL} rows at once": in_memory(x, values, tower(x, hidden)),
        "Opacus, dense, ghost clipping": by_ghosts(x, values, tower(x, hidden)),
    }


def tower(x: torch.Tensor, hidden: tuple[int, ...]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for before, after in pairwise((x.shape[1], *hidden)):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden[-1], 1, bias=False)).double()


def in_memory(x: torch.Tensor, values: torch.Tensor, model: torch.nn.Module) -> Step:
    """The usual way of Opacus: its BatchMemoryManager splits one batch of all rows into parts."""
    wrapped = GradSampleModule(model, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1e-6),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=None,
        loss_reduction="sum",
    )

    def step() -> None:
        starts = range(0, len(x), PHYSICAL)
        for start in starts:
            optimizer.signal_skip_step(do_skip=start != starts[-1])
            part = slice(start, start + PHYSICAL)
            (wrapped(x[part].requires_grad_(True)) * values[part]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        predict(model, x)

    return step


def by_ghosts(x: torch.Tensor, values: torch.Tensor, model: torch.nn.Module) -> Step:
    """The ghost clipping of Opacus, with its two backward passes written out."""
    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=CLIP)
    parameters = list(model.parameters())

    def step() -> None:
        sums = [torch.zeros_like(p) for p in parameters]
        for start in range(0, len(x), PHYSICAL):
            part = slice(start, start + PHYSICAL)
            wrapped.enable_hooks()
            products = wrapped(x[part].requires_grad_(True)) * values[part]
            products.sum().backward(retain_graph=True)
            factors = wrapped.get_clipping_coef()
            wrapped.disable_hooks()
            own = torch.autograd.grad(products, parameters, factors[:, None])
            for total, gradient in zip(sums, own, strict=True):
                total += gradient
            wrapped.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, total in zip(parameters, sums, strict=True):
                parameter -= 1e-6 * (total + NOISE * CLIP * torch.randn_like(total))
        predict(model, x)

    return step


def predict(model: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        for start in range(0, len(x), PHYSICAL):
            model(x[start : start + PHYSICAL])


# -- statements -----------------------------------------------------------------------------------


def rounds(con: duckdb.DuckDBPyConnection, repeats: int) -> Seconds:
    """Return the median seconds of an epoch of one exchange."""
    clauses = {"not private": ""} | {
        name: f"PRIVACY (noise_multiplier = 1, feature_bounds = {{{BOUNDS}, {LISTS}}}, {clause})"
        for name, clause in CLAUSES.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in clauses}
    with sqlfl.connect(progress=False) as fed:
        fed.attach("party", con)
        for _ in range(repeats):
            for name, clause in clauses.items():
                fed.sql(
                    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (algorithm = "
                    f"'sgd', epochs = {EPOCHS}, tolerance = 0, engine = 'arrays') {clause} "
                    "FROM (SELECT * FROM party.t)"
                )
                seconds = fed.model("m").history["seconds"].to_pylist()
                taken[name] += [after - before for before, after in pairwise(seconds)]
    return {name: statistics.median(found) for name, found in taken.items()}


if __name__ == "__main__":
    main()
