"""Sparse regression by Frank-Wolfe, beside its paper's claims: convergence with samples of columns,
excess risk and uplink by the epsilon, and a real join.

Tables of uniform columns are divided by columns among parties; every setting has `--seeds` draws of
data and noise. The centralised private method (Talwar, Thakurta and Zhang, 2015) chooses among all
columns by noised exact slopes; scikit-learn's Lasso has the optimum.

    python benchmarks/lasso.py [--work /tmp/lasso] [--seeds 5] [--page docs/results/lasso.md]
        [--figures docs/figures]

It needs pip install 'sqlfl[bench,plot]'.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aligned import Clients, DenseRows
from measuring import Results, insert, table
from sklearn.linear_model import Lasso
from workloads import FLIGHTS
from workloads import Task as StoredTask

from sqlfl.contract.privacy_specification import PlannedReleases, RunNoise
from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.methods.frank_wolfe.coordinator import FrankWolfe
from sqlfl.models.losses import loss_of
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import training_options
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.calibration import calibrate
from sqlfl.privacy.events import CHOICES, Selection
from sqlfl.privacy.mechanisms import noisy_max

# -- tables of several parties ---------------------------------------------------------------------


Array = npt.NDArray[Any]
ACTIVE = 5
"""Columns that have a weight, of 1 or −1."""
NOISE = 0.3
"""Standard deviation of what no column tells of the target."""


@dataclass(frozen=True, eq=False)
class Task:
    """Rows whose columns are uniform in [−1, 1], and divided evenly among the parties."""

    x: Array
    """(n, d) float32"""
    y: Array
    parties: int
    radius: float = float(ACTIVE)

    @classmethod
    def drawn(cls, rows: int, columns: int, parties: int, seed: int) -> Task:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, (rows, columns)).astype(np.float32)
        chosen = rng.choice(columns, ACTIVE, replace=False)
        signs = rng.choice([-1.0, 1.0], ACTIVE)
        return cls(x, x[:, chosen] @ signs + NOISE * rng.normal(size=rows), parties)

    @classmethod
    def spread(cls, rows: int, columns: int, parties: int, seed: int) -> Task:
        """Data whose columns all have the same weight: after T steps at most T columns have one,
        and no column is more informative than another. Frank-Wolfe is slowest on such data."""
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, (rows, columns)).astype(np.float32)
        weights = rng.choice([-1.0, 1.0], columns) * (3.0 / columns) ** 0.5
        y = x @ weights + NOISE * rng.normal(size=rows)
        return cls(x, y, parties, float(np.abs(weights).sum()))

    @property
    def parts(self) -> list[slice]:
        edges = np.linspace(0, self.x.shape[1], self.parties + 1).round().astype(int)
        return [slice(*pair) for pair in pairwise(edges)]

    @cached_property
    def optimum(self) -> float:
        """Return the least loss within the ball, by scikit-learn's Lasso of that radius."""
        low, high = 1e-5, 1.0
        x, y = self.x.astype(np.float64), self.y
        fitted = Lasso(low)
        for _ in range(14):
            alpha = float(np.sqrt(low * high))
            fitted = Lasso(alpha, tol=1e-5, precompute=x.shape[1] <= 2_000).fit(x, y)
            inside = float(np.abs(fitted.coef_).sum()) <= self.radius
            low, high = (low, alpha) if inside else (alpha, high)
        scale = min(1.0, self.radius / float(np.abs(fitted.coef_).sum()))
        return self.loss(scale * fitted.coef_)

    def loss(self, theta: Array) -> float:
        """Return ½ mean squared error with the best constant."""
        return 0.5 * float(np.var(self.y - self.x @ theta))


@dataclass(frozen=True, eq=False)
class Run:
    steps: tuple[Step, ...]
    theta: Array
    up: int
    """Bytes."""
    told: int
    """Columns that the parties sent."""


def train(task: Task, options: Mapping[str, Any], noise: RunNoise | None = None) -> Run:
    rows = len(task.y)
    addresses = [(Client(f"party{slot}", 0), slot) for slot in range(task.parties)]
    parts = zip(addresses, task.parts, strict=True)
    clients = Clients({to: DenseRows(task.x[:, own]) for to, own in parts})
    problem = Problem(
        run="split",
        mapping=TableMapping([np.arange(rows, dtype=np.int32)] * task.parties,
                             [rows] * task.parties),
        slots=tuple(
            SlotMembers(slot, (to,), np.array([0, rows])) for slot, to in enumerate(addresses)
        ),
        loss=loss_of("lasso", 1),
        targets=task.y,
        outputs=1,
        options=training_options(
            "lasso", {"algorithm": "frank_wolfe", "radius": task.radius, **options},
            private=noise is not None,
        ),
        privacy=noise,
        seed=int(options.get("seed", 0)),
    )  # fmt: skip
    method = FrankWolfe(problem, clients)
    method.start()
    steps = tuple(method.steps())
    operators = [clients.operators[to] for to in addresses]
    theta = np.concatenate([own.parameters[0][:, 0] for own in operators])
    return Run(steps, theta, clients.up, sum(len(own._told) for own in operators))


# -- private Frank-Wolfe ---------------------------------------------------------------------------


DELTA = 1e-6
SKETCH = 256


def private(task: Task, epsilon: float, options: Mapping[str, Any], seed: int) -> Run:
    """Run private Frank-Wolfe. ε protects one row of each party's table; columns lie in the public
    range [−1, 1]."""
    count = int(options["epochs"])
    planned = [_planned(task, slot, count) for slot in range(task.parties)]
    privacy = Privacy(
        epsilon=epsilon, delta=DELTA, predictions="sketch", statistics="bounds",
        feature_bound=1.0,
    )  # fmt: skip
    noise = calibrate(privacy, planned).training
    return train(task, {"sketch": SKETCH, **options, "seed": seed}, noise)


def _planned(task: Task, slot: int, count: int) -> PlannedReleases:
    return PlannedReleases(
        slot=slot, gradients=0, predictions=0, moments=0, moments_sensitivity=0.0, clip=1.0,
        clients=1, copies=1, partners={}, steps=count, whole=True, epochs=count, selections=count,
        sketches=count, residual_bound=residual(task),
    )  # fmt: skip


def residual(task: Task) -> float:
    return task.radius + float(np.abs(task.y - task.y.mean()).max())


def central(task: Task, epsilon: float, count: int, seed: int) -> Array:
    """Talwar, Thakurta and Zhang (2015), by Gumbel noise. All columns are in one place, so slopes
    are exact and choices get the whole budget. A change replaces a whole row."""
    rows = len(task.y)
    low, high = 1e-6, 2.0 * epsilon
    for _ in range(60):
        middle = 0.5 * (low + high)
        spent = epsilon_of([Selection(CHOICES, "gumbel", middle, count)], DELTA)
        low, high = (middle, high) if spent <= epsilon else (low, middle)
    scale = 2.0 / low * 2.0 * residual(task) / rows
    theta = np.zeros(task.x.shape[1])
    y = task.y - task.y.mean()
    for step in range(count):
        slopes = task.x.T @ (task.x @ theta - y) / rows
        best = noisy_max(np.concatenate([-slopes, slopes]), scale, "gumbel")
        number, sign = best % len(theta), 1.0 if best < len(theta) else -1.0
        way = -theta
        way[number] += sign * task.radius
        theta = theta + 2.0 / (step + 2.0) * way
    return theta


# -- a real join -----------------------------------------------------------------------------------


TEST = "f.flight % 5 = 0"
TABLES = {
    "airline.flights": (f"SELECT * FROM '{FLIGHTS}/flights.parquet'",),
    "meteo.weather": (f"SELECT * FROM '{FLIGHTS}/weather.parquet'",),
    "registry.planes": (f"SELECT * FROM '{FLIGHTS}/planes.parquet'",),
    "atlas.airports": (f"SELECT * FROM '{FLIGHTS}/airports.parquet'",),
}
QUERY = """SELECT f.carrier, f.origin, f.month::VARCHAR AS month, f.hour AS dep_hour, w.temp,
    w.dewp, w.humid, w.wind_dir, w.wind_speed, w.precip, w.pressure, w.visib, p.year AS built,
    p.engines, p.seats, p.engine, p.manufacturer, a.lat, a.lon, a.alt, a.tz, f.air_time AS y
  FROM airline.flights f
  JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  JOIN registry.planes p USING (tailnum)
  JOIN atlas.airports a ON f.dest = a.faa
  WHERE f.air_time IS NOT NULL"""
BOUNDS = {
    "dep_hour": (0, 24), "temp": (0, 110), "dewp": (-20, 90), "humid": (0, 100),
    "wind_dir": (0, 360), "wind_speed": (0, 60), "precip": (0, 1.5), "pressure": (980, 1045),
    "visib": (0, 10), "built": (1950, 2015), "engines": (1, 4), "seats": (1, 450),
    "distance": (0, 5000),
}  # fmt: skip
NEAR = QUERY.replace("a.lat, a.lon, a.alt, a.tz,", "f.distance,").replace(
    "JOIN atlas.airports a ON f.dest = a.faa", ""
)
"""Query over three tables."""
RADII = (50, 100, 200)
SETTINGS: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("linear_regression, lbfgs", "linear_regression", {}, 0.0),
    *((f"lasso, radius {r}", "lasso", {"radius": r}, 0.0) for r in RADII),
    ("lasso, radius 200, sketch 1024", "lasso", {"radius": 200, "sketch": 1024}, 0.0),
    ("lasso with distance, radius 600", "lasso", {"radius": 600, "iterations": 3}, 0.0),
    *(
        (f"lasso with distance, ε = {e:g}", "lasso", {"radius": 600, "iterations": 3}, e)
        for e in (1, 4, 16, 64)
    ),
)


PRIVATE_RUNS = 5


def joined() -> list[dict[str, Any]]:
    """Return for each setting the test error, the columns sent, and the bytes up in the rounds."""
    return [_typical(setting) for setting in SETTINGS]


def _typical(setting: tuple[str, str, dict[str, Any], float]) -> dict[str, Any]:
    """Return the only run of a setting; with PRIVACY the median errors of PRIVATE_RUNS."""
    private = setting[3] > 0.0
    runs = [_run(*setting) for _ in range(PRIVATE_RUNS if private else 1)]
    errors = {name: float(np.median([run[name] for run in runs])) for name in ("rmse", "r2")}
    return runs[0] | errors | ({"told": None, "up": None} if private else {})


def _run(name: str, kind: str, options: dict[str, Any], epsilon: float) -> dict[str, Any]:
    query = NEAR if epsilon or "distance" in name else QUERY
    task = StoredTask("nycflights13, air_time", kind, TABLES, f"{query} AND NOT ({TEST})")
    text = task.statement(**options)
    if epsilon:
        bounds = ", ".join(f"'{n}': [{a}, {b}]" for n, (a, b) in BOUNDS.items())
        clause = f"PRIVACY (epsilon = {epsilon}, delta = 1e-6, label_bound = 300, "
        clause += f"statistics_share = 0.2, feature_bounds = {{{bounds}}})"
        text = text.replace("FROM (SELECT", f"{clause} FROM (SELECT", 1)
    with task.federation() as fed:
        fed.sql(text)
        model = fed.model("m")
        last = model.history.to_pylist()[-1]
        sent = fed.audit().arrow().to_pylist()
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({query} AND {TEST})").arrow().to_pylist()
        kinds = ("predictions", "exact_predictions", "column")
        rounds = [m for m in sent if m["kind"] in kinds and m["direction"] == "up"]
        # the answer for a column that was sent before is a few numbers
        told = sum(m["bytes"] > 64 for m in rounds) if kind == "lasso" else None
    return {
        "name": name,
        "rows": model.metrics["rows"],
        "rmse": found["rmse"],
        "r2": found["r2"],
        "iterations": last["epoch"],
        "told": told,
        "up": sum(m["bytes"] for m in rounds),
        "seconds": last["seconds"],
    }


# -- tables and figure -----------------------------------------------------------------------------


AT = (100, 2000)
SHOWN = (1.0, 16.0)
"""ε of the rows of budgets."""
SHOWN_SIZES = ((10_000, 100, 4), (100_000, 100, 4), (1_000, 10_000, 4))
"""Rows, columns and parties of the rows of budgets."""
BYTES = 4
Found = Mapping[str, Any]


def render(results: Found) -> str:
    parts = [_convergence(results), _private(results), _slopes(results), _join(results)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _convergence(results: Found) -> list[str]:
    rows = []
    for name, run in results.items():
        if name.startswith("convergence/"):
            _, step, sample = name.split("/")
            gaps = np.array(run["gaps"])
            shown = [f"{gaps[n - 1]:.1e}" if gaps[n - 1] > 1e-14 else "0" for n in AT]
            rows.append([f"{step}, {sample} columns", *shown, _decay(gaps)])
    heads = ["step; columns looked at", *(f"after {n}" for n in AT), "slope"]
    return table(heads, rows) if rows else []


def _decay(gaps: np.ndarray) -> str:
    """Return the log-log slope from iteration 100 on; empty if the minimum was reached."""
    t = np.arange(100, len(gaps))
    if gaps[-1] < 1e-12:
        return "reached"
    return f"{np.polyfit(np.log(t + 1.0), np.log(gaps[t]), 1)[0]:.2f}"


def _private(results: Found) -> list[str]:
    rows = []
    for name, run in results.items():
        if name.startswith("private/"):
            _, n, d, k, epsilon = name.split("/")
            if (int(n), int(d), int(k)) not in SHOWN_SIZES or float(epsilon) not in SHOWN:
                continue
            rows.append([
                f"{int(n):,}", f"{int(d):,}", epsilon,
                *(f"{run[m]:.3f}" for m in ("nothing", "ours", "fixed", "central")),
                _size(run["ours up"]),
            ])  # fmt: skip
    heads = ["rows", "columns", "ε", "no model", "corrective", "fixed step", "central",
             "bytes up"]  # fmt: skip
    return table(heads, rows) if rows else []


def _size(count: float) -> str:
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:,.1f} MB"


def _slopes(results: Found) -> list[str]:
    for kind in ("sparse", "spread"):
        if f"slopes/{kind}/1" not in results:
            return []
    rows = []
    for kind in ("sparse", "spread"):
        own = [(float(name.split("/")[2]), run) for name, run in results.items()
               if name.startswith(f"slopes/{kind}/")]  # fmt: skip
        epsilons = np.log([epsilon for epsilon, _ in own])
        fitted = [
            np.polyfit(epsilons, np.log([run[m] for _, run in own]), 1)[0]
            for m in ("central", "fixed", "corrective", "fixed up", "corrective up")
        ]
        rows.append([kind, *(f"{value:.2f}" for value in fitted)])
    rows.append(["theory", "-0.67", "-0.67", "", "0.67", "0.67"])
    heads = [
        "slope of weights",
        "central",
        "fixed step",
        "corrective",
        "fixed: up",
        "corrective: up",
    ]
    return table(heads, rows)


def _join(results: Found) -> list[str]:
    runs = results.get("join", {"runs": []})["runs"]
    rows = [
        [
            run["name"], f"{run['r2']:.3f}", str(run["iterations"]),
            "–" if run["told"] is None else str(run["told"]),
            "–" if run["up"] is None else _size(run["up"]),
        ]
        for run in runs
    ]  # fmt: skip
    heads = ["model", "R²", "iterations", "columns sent", "up in rounds"]
    return table(heads, rows) if rows else []


def draw(results: Found, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, own in results.items():
        if name.startswith("convergence/"):
            _, step, sample = name.split("/")
            gaps = np.maximum(own["gaps"], 1e-9)
            left.loglog(np.arange(1, len(gaps) + 1), gaps, label=f"{step}, {sample}")
    left.loglog([10, 2000], [0.5, 0.5 / 200], "k--", label="1/t")
    left.set_xlabel("iteration")
    left.set_ylabel("objective − minimum")
    left.legend(fontsize=7)
    for kind, marker in (("sparse", "o"), ("spread", "s")):
        own = [(float(n.split("/")[2]), run) for n, run in results.items()
               if n.startswith(f"slopes/{kind}/")]  # fmt: skip
        for method in ("central", "fixed", "corrective"):
            right.loglog(
                [1e5 * epsilon for epsilon, _ in own],
                [run[method] for _, run in own],
                f"{marker}-",
                label=f"{kind}, {method}",
            )
    scale = 1e5 * np.array([1.0, 64.0])
    right.loglog(scale, 2.0 * (scale / 1e5) ** (-2 / 3), "k--", label="(nε)^(-2/3)")
    right.set_xlabel("n ε")
    right.set_ylabel("excess risk")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# -- experiments -----------------------------------------------------------------------------------


STEPS = (("corrective", None), ("search", None), ("fixed", None), ("search", 20), ("search", 5),
         ("search", 1), ("corrective", 5), ("fixed", 5))  # fmt: skip
"""And columns of each party that are looked at: None for all."""
ITERATIONS = 2000
CONVERGENCE = (2000, 400, 4)
"""Rows, columns, parties."""
SIZES = ((1_000, 100, 4), (10_000, 100, 4), (100_000, 100, 4), (10_000, 1_000, 4),
         (1_000, 10_000, 4), (10_000, 100, 2), (10_000, 100, 8))  # fmt: skip
EPSILONS = (1.0, 4.0, 16.0, 64.0)
SLOPES = tuple(2.0 ** np.arange(0, 7))
"""ε of the log-log slopes, at 100,000 rows, of 100 columns of which five have a weight, and of 200
that all weigh alike, which is as slow as Frank-Wolfe can be."""


def main() -> None:
    parser = argparse.ArgumentParser(description="the LASSO's experiments")
    parser.add_argument("--work", type=Path, default=Path("/tmp/lasso"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "lasso.json")
    make(results, arguments.seeds)
    print(render(results.found))
    if arguments.page is not None:
        insert(arguments.page, "lasso", render(results.found))
    if arguments.figures is not None:
        draw(results.found, arguments.figures / "lasso.png")


def make(results: Results, seeds: int) -> None:
    """Make the runs that are missing."""
    for step, sample in STEPS:
        name = f"convergence/{step}/{sample or 'all'}"
        if name not in results.found:
            results.add(name, convergence(step, sample, seeds))
            print(name, flush=True)
    for size in SIZES:
        for epsilon in EPSILONS:
            name = f"private/{'/'.join(map(str, size))}/{epsilon:g}"
            if name not in results.found:
                results.add(name, compared(size, epsilon, seeds))
                print(name, results.found[name], flush=True)
    for kind, epsilon in product(("sparse", "spread"), SLOPES):
        name = f"slopes/{kind}/{epsilon:g}"
        if name not in results.found:
            results.add(name, slopes(kind, epsilon, seeds))
            print(name, results.found[name], flush=True)
    if "join" not in results.found:
        results.add("join", {"runs": joined()})


@lru_cache(8)
def _task(size: tuple[int, int, int], seed: int) -> Task:
    return Task.drawn(*size, seed)


@lru_cache(1)
def _spread() -> Task:
    return Task.spread(100_000, 200, 4, 0)


def convergence(step: str, sample: int | None, seeds: int) -> dict[str, Any]:
    """Return the mean of objective − minimum after each iteration."""
    gaps = []
    for seed in range(seeds):
        task = Task.drawn(*CONVERGENCE, seed)
        best = train(task, {"tolerance": 1e-13, "epochs": 500}).steps[-1].objective
        options: dict[str, Any] = {
            "step": step, "epochs": ITERATIONS, "tolerance": 0.0, "seed": seed,
        }  # fmt: skip
        if sample is not None:
            options["sample"] = sample
        found = [s.objective - best for s in train(task, options).steps]
        gaps.append(found + [found[-1]] * (ITERATIONS - len(found)))
    return {"gaps": np.maximum(np.mean(gaps, axis=0), 0.0).tolist()}


def compared(size: Sequence[int], epsilon: float, seeds: int) -> dict[str, Any]:
    """Return medians of the excess risk over the optimum within the ball, and of bytes up."""
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        task = _task(tuple(size), seed)
        best = task.optimum
        ours = private(task, epsilon, {"step": "corrective", "epochs": 6}, seed)
        paper = private(task, epsilon, {"step": "fixed", "epochs": 20}, seed)
        for name, loss, up in (
            ("ours", task.loss(ours.theta), ours.up),
            ("fixed", task.loss(paper.theta), paper.up),
            ("central", task.loss(central(task, epsilon, 20, seed)), 0),
        ):
            rows.setdefault(name, []).append(loss - best)
            rows.setdefault(f"{name} up", []).append(up)
        rows.setdefault("nothing", []).append(0.5 * float(np.var(task.y)) - best)
    return {name: float(np.median(values)) for name, values in rows.items()}


def slopes(kind: str, epsilon: float, seeds: int) -> dict[str, Any]:
    """Return measures of iterations that grow as (n ε)^(2/3), by the paper's step and by the
    package's."""
    task = _task((100_000, 100, 4), 0) if kind == "sparse" else _spread()
    count = max(2, round(2.5 * epsilon ** (2.0 / 3.0)))
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for step in ("fixed", "corrective"):
            run = private(task, epsilon, {"step": step, "epochs": count}, seed)
            found.setdefault(step, []).append(task.loss(run.theta) - task.optimum)
            found.setdefault(f"{step} up", []).append(run.up)
        theta = central(task, epsilon, count, seed)
        found.setdefault("central", []).append(task.loss(theta) - task.optimum)
    return {"iterations": count} | {k: float(np.mean(v)) for k, v in found.items()}


if __name__ == "__main__":
    main()
