"""Training on the generated sets: seconds, bytes and peak memory, and the distance from the
optimum.

The table has a row per algorithm. Each row is a process of its own; its peak of resident memory
covers parties, coordinator and Python together. 15 % of the label's rows are held out. Their
metrics stand beside those of the true probabilities of the labels, which a model can beat only by
chance.

    python benchmarks/generated.py mimic|yelp [--scale 0.01] [--folder where databases go]
        [--algorithms lbfgs admm sgd] [--kind mlp_classifier] [--memory 2GB] [--threads 2]

`--memory` and `--threads` limit the DuckDB of each party, which keeps further data on disk, in the
folder. The arrays of the engine are not limited.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from measuring import peak

import sqlfl
from sqlfl.models.metrics import area_under_curve

# -- tables ----------------------------------------------------------------------------------------


Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array | pa.Array]

DRAWN = 20_000
"""Rows of the widest table that are drawn at once."""
FACTORS = 8
"""Number of the correlated columns."""


@dataclass(frozen=True)
class Generated:
    """The databases of one set, and its query."""

    name: str
    kind: str
    databases: Mapping[str, Path]
    """Database file of each party."""
    query: str
    """Its target is the column y."""
    rows: int
    """N, joined rows."""
    bayes: Mapping[str, float]
    """accuracy, log_loss and, of two classes, auc of the probabilities that labels were drawn by,
    over all rows."""

    def statement(self, **options: object) -> str:
        """Return the statement TRAIN MODEL m with these options."""
        given = ", ".join(f"{name} = {value!r}" for name, value in options.items())
        clause = f"WITH ({given})" if options else ""
        return f"TRAIN MODEL m USING {self.kind} TARGET y {clause} FROM ({self.query})"

    @contextmanager
    def federation(self, **settings: str | int) -> Iterator[sqlfl.Federation]:
        """Return a federation of the databases, opened with DuckDB's `settings` (memory_limit,
        ...)."""
        with ExitStack() as stack:
            fed = stack.enter_context(sqlfl.connect(progress=False))
            for party, path in self.databases.items():
                con = duckdb.connect(path, config=dict(settings))
                fed.attach(party, stack.enter_context(con))
            yield fed


@dataclass(frozen=True, eq=False)
class Table:
    """A table in memory: its columns, and the part that each row adds to the scores, (n, K)."""

    columns: Columns
    scores: Array

    def __len__(self) -> int:
        return len(self.scores)


class Scores:
    """Weights of the label's model. `loading` (K,) is the direction in which classes differ. Along
    it, the scores of a table's rows have the standard deviation `strength`."""

    def __init__(self, seed: int, part: int, loading: Array) -> None:
        self.generator = np.random.default_rng([seed, part])
        self._loading = loading
        self._sum: Array | float = 0.0

    def number(self, values: Array, missing: Array | None = None) -> Array:
        """Add a column (n,) and return it. It is NaN where `missing`, which has an effect of its
        own."""
        standard = (values - values.mean()) / (values.std() or 1.0)
        if missing is None:
            self._add(standard * self.generator.normal())
            return values
        effects = self.generator.normal(size=2)
        self._add(np.where(missing, effects[0], standard * effects[1]))
        return np.where(missing, np.nan, values)

    def category(self, rows: int, names: tuple[str, ...]) -> pa.Array:
        """Add a column of `names`, the first ones more frequent, and a weight of each."""
        share = 1.0 / np.arange(1, len(names) + 1)
        codes = self.generator.choice(len(names), rows, p=share / share.sum()).astype(np.int32)
        self._add(self.generator.normal(size=len(names))[codes])
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names))

    def total(self, strength: float) -> Array:
        values = np.asarray(self._sum)
        standard = (values - values.mean()) / (values.std() or 1.0)
        return (strength * standard)[:, None] * self._loading

    def _add(self, values: Array) -> None:
        self._sum = self._sum + values


@dataclass(frozen=True, eq=False)
class Wide:
    """Correlated normal columns: x = z L + e, L (FACTORS, width), and their weights (width, K)."""

    factors: Array
    weights: Array

    @classmethod
    def of(cls, seed: int, part: int, width: int, strength: float, loading: Array) -> Wide:
        generator = np.random.default_rng([seed, part])
        factors = generator.normal(size=(FACTORS, width)) / np.sqrt(FACTORS)
        common, separate = (
            generator.normal(size=width),
            generator.normal(size=(width, len(loading))),
        )
        weights = np.outer(common, loading) + 0.2 * separate
        image = factors @ common
        deviation = np.sqrt(image @ image + common @ common)
        return cls(factors.astype(np.float32), (strength / deviation * weights).astype(np.float32))

    def draw(self, generator: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """Return float32 (rows, width) columns, and (rows, K) scores."""
        values = generator.standard_normal((rows, self.factors.shape[1]), np.float32)
        values += generator.standard_normal((rows, FACTORS), np.float32) @ self.factors
        return values, values @ self.weights


class Labels:
    """Draw labels from scores, and measure the probabilities of that draw."""

    def __init__(self, bias: Array) -> None:
        self._bias = bias
        self._chosen: list[Array] = []
        self._likely: list[Array] = []
        self._best: list[Array] = []

    def draw(self, generator: np.random.Generator, scores: Array) -> Array:
        """Return class codes (n,) drawn by softmax(scores + bias)."""
        scores = scores + self._bias
        codes: Array = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        self._chosen.append(codes.astype(np.int8))
        self._likely.append(p[np.arange(len(p)), codes].astype(np.float32))
        self._best.append((p.max(axis=1) if p.shape[1] > 2 else p[:, 1]).astype(np.float32))
        return codes

    def bayes(self) -> dict[str, float]:
        likely = np.concatenate(self._likely).astype(np.float64)
        best, codes = np.concatenate(self._best), np.concatenate(self._chosen)
        measures = {"log_loss": float(-np.log(likely).mean())}
        if len(self._bias) > 2:
            return {"accuracy": float(best.mean(dtype=np.float64)), **measures}
        accuracy = np.maximum(best, 1 - best).mean(dtype=np.float64)
        area = area_under_curve(best, codes == 1)
        return {"accuracy": float(accuracy), **measures} | ({} if area is None else {"auc": area})


def mimic(folder: Path, scale: float = 1.0, seed: int = 0) -> Generated:
    """Intensive care: hourly events with 714 statistics of measurements.

    The label: will the patient's state get much worse within a day? The tables belong to five
    parties. The contents of `folder` are replaced.
    """
    loading = np.array([0.0, 1.0])
    rows = {"patients": 35_000, "admissions": 42_000, "stays": 44_000}
    sizes = {name: _scaled(count, scale) for name, count in rows.items()}

    drawn = Scores(seed, 0, loading)
    n = sizes["patients"]
    age = drawn.generator.gamma(9.0, 7.0, n).clip(18, 95).astype(np.float32)
    patients = Table(
        {
            "patient_id": np.arange(n, dtype=np.int32),
            "gender": drawn.category(n, ("M", "F")),
            "age": drawn.number(age).astype(np.float32),
        },
        drawn.total(0.6),
    )
    drawn = Scores(seed, 1, loading)
    n = sizes["admissions"]
    patient = drawn.generator.integers(0, len(patients), n, np.int32)
    admissions = Table(
        {
            "admission_id": np.arange(n, dtype=np.int32),
            "patient_id": patient,
            "admission_type": drawn.category(n, ("emergency", "elective", "urgent", "newborn")),
            "insurance": drawn.category(n, ("public", "private", "state", "self pay")),
            "ethnicity": drawn.category(n, tuple(f"group {k}" for k in range(12))),
        },
        drawn.total(0.5) + patients.scores[patient],
    )
    drawn = Scores(seed, 2, loading)
    n = sizes["stays"]
    admission = drawn.generator.integers(0, len(admissions), n, np.int32)
    weight = drawn.generator.normal(80.0, 18.0, n)
    stays = Table(
        {
            "stay_id": np.arange(n, dtype=np.int32),
            "admission_id": admission,
            "unit": drawn.category(n, ("medical", "surgical", "cardiac", "trauma", "coronary")),
            "body_weight": drawn.number(weight, drawn.generator.random(n) < 0.1),
        },
        drawn.total(0.5) + admissions.scores[admission],
    )
    drawn = Scores(seed, 3, loading)
    flags = (drawn.generator.random((n, 25)) < drawn.generator.uniform(0.02, 0.4, 25)).astype(
        np.int8
    )
    for flag in flags.T:
        drawn.number(flag.astype(np.float64))
    diagnoses = Table(
        {"stay_id": np.arange(n, dtype=np.int32), "phenotypes": _fixed(flags.astype(np.float32))},
        drawn.total(0.6),
    )
    state = stays.scores + diagnoses.scores
    events = _scaled(2_900_000, scale)
    lengths = np.random.default_rng([seed, 4]).lognormal(0.0, 0.8, n)
    ends = np.round(np.cumsum(lengths) * (events / lengths.sum())).astype(np.int64)
    wide = Wide.of(seed, 5, 714, 1.0, loading)
    labels = Labels(np.array([0.0, -2.0]))

    def batch(generator: np.random.Generator, start: int, stop: int) -> Columns:
        number = np.arange(start, stop)
        stay = np.searchsorted(ends, number, side="right").clip(max=n - 1)
        hour = number - np.append(0, ends)[stay]
        values, scores = wide.draw(generator, stop - start)
        scores = scores + state[stay]
        return {
            "stay_id": stay.astype(np.int32),
            "hour": hour.astype(np.int32),
            "samples": generator.poisson(30.0, stop - start).astype(np.int32),
            "staff": generator.integers(1, 6, stop - start, np.int8),
            "measurements": _fixed(values),
            "deteriorates": labels.draw(generator, scores).astype(bool),
        }

    databases = _new(folder, ("registry", "hospital", "icu", "coding", "monitor"))
    _write(databases["registry"], "patients", patients)
    _write(databases["hospital"], "admissions", admissions)
    _write(databases["icu"], "stays", stays)
    _write(databases["coding"], "diagnoses", diagnoses)
    _stream(databases["monitor"], "events", events, [seed, 6], batch)
    query = """SELECT p.gender, p.age, a.admission_type, a.insurance, a.ethnicity,
            s.unit, s.body_weight, d.phenotypes,
            e.hour, e.samples, e.staff, e.measurements, e.deteriorates AS y
        FROM monitor.events e
        JOIN icu.stays s USING (stay_id)
        JOIN coding.diagnoses d USING (stay_id)
        JOIN hospital.admissions a USING (admission_id)
        JOIN registry.patients p USING (patient_id)"""
    return Generated("mimic", "logistic_regression", databases, query, events, labels.bayes())


def yelp(folder: Path, scale: float = 1.0, seed: int = 0) -> Generated:
    """Reviews of restaurants, their text as 768 numbers, in 5 classes: the stars.

    The tables belong to three parties. The contents of `folder` are replaced.
    """
    loading = np.linspace(-1.0, 1.0, 5)

    drawn = Scores(seed, 0, loading)
    n = _scaled(35_000, scale)
    businesses = Table(
        {
            "business_id": np.arange(n, dtype=np.int32),
            "cuisine": drawn.category(n, tuple(f"cuisine {k}" for k in range(40))),
            "city": drawn.category(n, tuple(f"city {k}" for k in range(100))),
            "price": drawn.number(drawn.generator.integers(1, 5, n)).astype(np.int8),
        },
        drawn.total(0.8),
    )
    drawn = Scores(seed, 1, loading)
    n = _scaled(1_200_000, scale)
    users = Table(
        {
            "user_id": np.arange(n, dtype=np.int32),
            "reviews": drawn.number(drawn.generator.lognormal(2.0, 1.0, n).astype(np.int32)),
            "fans": drawn.number(drawn.generator.poisson(1.5, n)).astype(np.int32),
            "years": drawn.number(drawn.generator.uniform(0, 18, n).astype(np.float32)),
            "elite": drawn.number(drawn.generator.random(n) < 0.05),
        },
        drawn.total(0.8),
    )
    reviews = _scaled(3_200_000, scale)
    wide = Wide.of(seed, 2, 768, 2.0, loading)
    labels = Labels(np.array([0.2, -0.3, 0.0, 0.6, 0.7]))
    popularity = np.cumsum(np.random.default_rng([seed, 3]).lognormal(0.0, 1.5, len(businesses)))
    popularity /= popularity[-1]

    def batch(generator: np.random.Generator, start: int, stop: int) -> Columns:
        count = stop - start
        business = np.searchsorted(popularity, generator.random(count)).clip(
            max=len(businesses) - 1
        )
        user = generator.integers(0, len(users), count)
        values, scores = wide.draw(generator, count)
        scores = scores + businesses.scores[business] + users.scores[user]
        votes = generator.poisson([1.0, 0.4, 0.5], (count, 3)).astype(np.int32)
        return {
            "business_id": business.astype(np.int32),
            "user_id": user.astype(np.int32),
            "useful": votes[:, 0],
            "funny": votes[:, 1],
            "cool": votes[:, 2],
            "words": generator.lognormal(4.4, 0.7, count).astype(np.int32),
            "photos": generator.poisson(0.3, count).astype(np.int32),
            "year": generator.integers(2005, 2023, count, np.int16),
            "hour": generator.integers(0, 24, count, np.int8),
            "embedding": _fixed(values),
            "stars": (labels.draw(generator, scores) + 1).astype(np.int8),
        }

    databases = _new(folder, ("guide", "members", "reviews"))
    _write(databases["guide"], "businesses", businesses)
    _write(databases["members"], "users", users)
    _stream(databases["reviews"], "reviews", reviews, [seed, 4], batch)
    query = """SELECT b.cuisine, b.city, b.price, u.reviews, u.fans, u.years, u.elite,
            r.useful, r.funny, r.cool, r.words, r.photos, r.year, r.hour, r.embedding, r.stars AS y
        FROM reviews.reviews r
        JOIN guide.businesses b USING (business_id)
        JOIN members.users u USING (user_id)"""
    return Generated("yelp", "softmax_regression", databases, query, reviews, labels.bayes())


SETS = {"mimic": mimic, "yelp": yelp}


def _scaled(count: int, scale: float) -> int:
    if not 0.0 < scale < 1e3:
        raise SystemExit(f"the scale must be a number above 0 and below 1000, got {scale}")
    return max(round(count * scale), 2)


def _fixed(values: Array) -> pa.Array:
    """Return (n, width) as a column of arrays FLOAT[width]."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _new(folder: Path, parties: tuple[str, ...]) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {party: folder / f"{party}.duckdb" for party in parties}
    for path in files.values():
        path.unlink(missing_ok=True)
    return files


def _write(path: Path, name: str, table: Table) -> None:
    _create(path, name, iter([_batch(table.columns)]))


def _stream(
    path: Path,
    name: str,
    rows: int,
    seed: list[int],
    draw: Callable[[np.random.Generator, int, int], Columns],
) -> None:
    """Write a table in parts. `draw` returns the columns of the rows from start to stop."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, DRAWN):
            generator = np.random.default_rng([*seed, start // DRAWN])
            yield _batch(draw(generator, start, min(start + DRAWN, rows)))

    _create(path, name, batches())


def _create(path: Path, name: str, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches)

    def all_of_them() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    # in the order of the rows, as a table of these is written: by one thread
    with duckdb.connect(path, config={"threads": 1, "memory_limit": "1GB"}) as con:
        con.register("given", pa.RecordBatchReader.from_batches(first.schema, all_of_them()))
        con.execute(f'CREATE TABLE "{name}" AS FROM given')


def _batch(columns: Columns) -> pa.RecordBatch:
    """Return a column in which NaN became NULL."""
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


# -- training --------------------------------------------------------------------------------------


EPOCHS = {"lbfgs": 10, "admm": 10, "sgd": 2}
BATCH = 10_000
HELD_OUT = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description="training on generated tables")
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--algorithms", nargs="+", choices=sorted(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--kind", help="instead of the set's own: mlp_classifier")
    parser.add_argument("--engine", choices=("sql", "arrays"), default="arrays")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        started = time.perf_counter()
        made = SETS[arguments.set](Path(folder), arguments.scale, arguments.seed)
        made = made if arguments.kind is None else replace(made, kind=arguments.kind)
        size = sum(path.stat().st_size for path in made.databases.values())
        print(
            f"{made.name} at scale {arguments.scale:g}, {made.kind}: {made.rows:,} joined rows, "
            f"{size / 1e9:.2f} GB in {time.perf_counter() - started:.0f} s; by the true "
            f"probabilities: {_written(made.bayes)}\n\n{heading()}",
            flush=True,
        )
        for algorithm in arguments.algorithms:
            # a fresh process each, for a peak of its own
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, context) as pool:
                options = (arguments.engine, arguments.memory, arguments.threads)
                print(pool.submit(report, made, algorithm, *options).result(), flush=True)


def heading() -> str:
    columns = ["algorithm", "epochs", "seconds", "an epoch", "exchanges", "MB", "peak GiB"]
    columns += ["objective", "held out"]
    return "\n".join([f"| {' | '.join(columns)} |", "|---|" + "---:|" * 7 + "---|"])


def report(made: Generated, algorithm: str, engine: str, memory: str, threads: int) -> str:
    """Return a row of the table, after training in this process."""
    options: dict[str, object] = {
        "algorithm": algorithm,
        "epochs": EPOCHS[algorithm],
        "engine": engine,
        "validation_fraction": HELD_OUT,
    }
    if algorithm == "sgd":
        options["batch_size"] = BATCH
    with made.federation(memory_limit=memory, threads=threads) as fed:
        fed.sql(made.statement(**options))
        model = fed.model("m")
    history = model.history.to_pylist()
    last = history[-1]
    begun = history[0]["seconds"] if len(history) > 1 else 0.0
    each = (last["seconds"] - begun) / max(len(history) - 1, 1)
    cells = [
        algorithm,
        str(last["epoch"]),
        f"{last['seconds']:.1f}",
        f"{each:.2f} s",
        str(last["rounds"]),
        f"{(last['bytes_up'] + last['bytes_down']) / 1e6:.1f}",
        f"{peak() / 2**30:.2f}",
        f"{last['train_loss']:.5f}",
        _written({name: model.metrics[f"valid_{name}"] for name in made.bayes}),
    ]
    return f"| {' | '.join(cells)} |"


def _written(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


if __name__ == "__main__":
    main()
