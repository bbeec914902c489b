"""Classifiers of five and six classes, federated beside centralised: accuracy on rows held out.

Models: softmax_regression is compared with scikit-learn's, which has the same optimum.
mlp_classifier is compared with the same network of towers in torch. Objective, optimizer, batches
and epochs are the same. A network's accuracy is the mean over seeds, since it depends on its random
start.

Tasks: the UCI's Human Activity Recognition, and the stars of MovieLens-1M. The first has the
accelerometer and the gyroscope at two parties. Each party has 30 clients, one for each person. The
test rows are of persons that were not trained on.

    python benchmarks/har.py [--har folder] [--movielens folder] [--seeds 3] [--threads 2]

The folders have the Parquet files. The networks need torch, the optimum needs scikit-learn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from workloads import L2, Task

import sqlfl

Array: TypeAlias = npt.NDArray[Any]
HIDDEN = 16
RATE = 0.01
SUBJECTS = 30


@dataclass(frozen=True)
class Classification:
    """A task. Its query lacks the WHERE that selects the rows for training or for testing."""

    task: Task
    train: str
    test: str
    slots: tuple[tuple[str, ...], ...]
    """The features of each slot, by name."""
    batch: int
    """Joined rows of a step of the networks."""
    epochs: int

    def of(self, kind: str, condition: str) -> Task:
        return replace(self.task, kind=kind, query=f"{self.task.query} WHERE {condition}")


def main() -> None:
    parser = argparse.ArgumentParser(description="classifiers, federated and centralised")
    parser.add_argument("--har", type=Path)
    parser.add_argument("--movielens", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--models", nargs="+", choices=("softmax", "mlp"), default=["softmax", "mlp"]
    )
    arguments = parser.parse_args()
    if arguments.har is None and arguments.movielens is None:
        parser.error("give --har, --movielens or both")
    torch.set_num_threads(arguments.threads)
    tasks = []
    if arguments.har is not None:
        tasks.append(activities(arguments.har))
    if arguments.movielens is not None:
        tasks.append(stars(arguments.movielens))
    columns = ["task", "model", "federated", "centralised", "difference", "seconds", "centralised"]
    print(f"| {' | '.join(columns)} |\n|---|---|" + "---:|" * 5)
    for task in tasks:
        with task.task.federation() as fed:
            for model in arguments.models:
                print(compare(fed, task, model, range(arguments.seeds)), flush=True)


def compare(fed: sqlfl.Federation, task: Classification, model: str, seeds: range) -> str:
    """Return a row of the table."""
    started = time.perf_counter()
    if model == "softmax":
        federated = [evaluate(fed, task, "softmax_regression", {})]
    else:
        options = {
            "hidden": [HIDDEN],
            "optimizer": "adam",
            "learning_rate": RATE,
            "batch_size": task.batch,
            "epochs": task.epochs,
            "algorithm": "sgd",
        }
        federated = [evaluate(fed, task, "mlp_classifier", {**options, "seed": s}) for s in seeds]
    between = time.perf_counter()
    data = Data.of(task)
    if model == "softmax":
        centralised = [data.softmax()]
    else:
        centralised = [data.network(task, seed) for seed in seeds]
    ended = time.perf_counter()
    difference = 100 * (mean(federated) - mean(centralised))
    cells = [
        task.task.name,
        model,
        _written(federated),
        _written(centralised),
        f"{difference:+.2f} points",
        f"{(between - started) / len(federated):.1f}",
        f"{(ended - between) / len(centralised):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def evaluate(
    fed: sqlfl.Federation, task: Classification, kind: str, options: dict[str, object]
) -> float:
    """Return the accuracy on the test rows of a model that was trained on the training rows."""
    fed.sql(task.of(kind, task.train).statement(**options))
    rows = fed.sql(f"EVALUATE MODEL m FROM ({task.of(kind, task.test).query})").arrow()
    fed.sql("DROP MODEL m")
    return float(rows["accuracy"][0].as_py())


@dataclass(frozen=True, eq=False)
class Data:
    """The materialised rows, encoded, with equal rows merged. Numbers are standardised and
    categories become one-hots, both by the training rows."""

    train: tuple[sparse.csr_array, ...]
    """A matrix per slot."""
    test: tuple[sparse.csr_array, ...]
    codes: tuple[Array, Array]
    """Classes of the rows for training and for testing."""
    counts: tuple[Array, Array]
    """Return the number of joined rows that each row stands for."""

    @classmethod
    def of(cls, task: Classification) -> Data:
        parts = [_distinct(task.of("", condition)) for condition in (task.train, task.test)]
        rows = pa.concat_tables(parts).combine_chunks()
        cut = len(parts[0])
        counts = rows["n"].to_numpy().astype(np.float64)
        codes = np.unique(rows["y"].to_numpy(zero_copy_only=False), return_inverse=True)[1]
        matrices = [
            sparse.hstack(list(_encoded(rows.select(names), counts[:cut])), format="csr")
            for names in task.slots
        ]
        return cls(
            tuple(matrix[:cut] for matrix in matrices),
            tuple(matrix[cut:] for matrix in matrices),
            (codes[:cut], codes[cut:]),
            (counts[:cut], counts[cut:]),
        )

    def softmax(self) -> float:
        """Return the accuracy of scikit-learn's model, at the optimum of the same objective."""
        total = self.counts[0].sum()
        model = LogisticRegression(C=1.0 / (L2 * total), max_iter=2000, tol=1e-6)
        model.fit(sparse.hstack(self.train), self.codes[0], sample_weight=self.counts[0])
        return self._accuracy(model.predict(sparse.hstack(self.test)))

    def network(self, task: Classification, seed: int) -> float:
        """Return the accuracy of the sum of towers, trained by Adam on batches of joined rows."""
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        classes = int(self.codes[0].max()) + 1
        towers = [
            torch.nn.Sequential(
                torch.nn.Linear(matrix.shape[1], HIDDEN),
                torch.nn.ReLU(),
                torch.nn.Linear(HIDDEN, classes, bias=False),
            )
            for matrix in self.train
        ]
        intercept = torch.nn.Parameter(torch.zeros(classes))
        parameters = [p for tower in towers for p in tower.parameters()]
        weights = [p for p in parameters if p.ndim == 2]
        method = torch.optim.Adam([*parameters, intercept], lr=RATE)
        inputs = [_dense(matrix) for matrix in self.train]
        target = torch.from_numpy(self.codes[0])
        joined = torch.from_numpy(np.repeat(np.arange(len(target)), self.counts[0].astype(int)))
        for _ in range(task.epochs):
            order = joined[torch.randperm(len(joined), generator=generator)]
            for rows in order.split(task.batch):
                scores = intercept + sum(
                    tower(values[rows]) for tower, values in zip(towers, inputs, strict=True)
                )
                loss = torch.nn.functional.cross_entropy(scores, target[rows])
                loss = loss + L2 / 2 * sum((w**2).sum() for w in weights)
                method.zero_grad()
                loss.backward()
                method.step()
        with torch.no_grad():
            scores = intercept + sum(
                tower(_dense(matrix)) for tower, matrix in zip(towers, self.test, strict=True)
            )
        return self._accuracy(scores.argmax(1).numpy())

    def _accuracy(self, predicted: Array) -> float:
        counts = self.counts[1]
        return float(counts @ (predicted == self.codes[1]) / counts.sum())


def activities(folder: Path) -> Classification:
    """Return the task of a person's activity, from 2.56 seconds of a phone at the waist."""
    source = f"'{folder}/windows.parquet'"
    with duckdb.connect() as con:
        names = [name for name, *_ in con.sql(f"DESCRIBE FROM {source}").fetchall()]
    rotation = tuple(name for name in names if "gyro" in name)
    motion = tuple(name for name in names if "acc" in name and name not in rotation)
    label = f"JOIN '{folder}/activities.parquet' USING (activity)"
    tables = {
        "accelerometer.windows": tuple(
            f"SELECT window_id, split, name AS activity, {', '.join(motion)} "
            f"FROM {source} {label} WHERE subject = {subject}"
            for subject in range(1, SUBJECTS + 1)
        ),
        "gyroscope.windows": tuple(
            f"SELECT window_id, {', '.join(rotation)} FROM {source} WHERE subject = {subject}"
            for subject in range(1, SUBJECTS + 1)
        ),
    }
    columns = [f"a.{name}" for name in motion] + [f"g.{name}" for name in rotation]
    query = f"""SELECT {", ".join(columns)}, a.activity AS y
        FROM accelerometer.windows a JOIN gyroscope.windows g USING (window_id)"""
    return Classification(
        Task("UCI HAR, 2 × 30 clients", "", tables, query),
        "a.split = 'train'",
        "a.split = 'test'",
        (motion, rotation),
        batch=10_000,  # all rows: accuracy then differs less between seeds
        epochs=200,
    )


def stars(folder: Path) -> Classification:
    """Return the task of a user's stars for a movie, which occurs once for each genre."""
    tables = {
        "shop.ratings": (f"SELECT user_id, movie_id, rating FROM '{folder}/ratings.parquet'",),
        "members.users": (f"SELECT * FROM '{folder}/users.parquet'",),
        "studio.movies": (
            f"SELECT movie_id, year, genre FROM '{folder}/movies.parquet' "
            f"JOIN '{folder}/movie_genres.parquet' USING (movie_id)",
        ),
    }
    query = """SELECT u.gender, u.age, CAST(u.occupation AS VARCHAR) AS occupation, m.year, m.genre,
            r.rating AS y
        FROM shop.ratings r
        JOIN members.users u USING (user_id)
        JOIN studio.movies m USING (movie_id)"""
    draw = "(r.user_id * 7919 + r.movie_id * 104729) % 100"
    return Classification(
        Task("MovieLens-1M, 5 stars", "", tables, query),
        f"{draw} >= 15",
        f"{draw} < 15",
        (("gender", "age", "occupation"), ("year", "genre")),
        batch=10_000,
        epochs=10,
    )


def _distinct(task: Task) -> pa.Table:
    """Return the joined rows, equal rows merged, with their number in the column n."""
    counted = f"SELECT *, count(*) AS n FROM ({task.query}) GROUP BY ALL ORDER BY ALL"
    return replace(task, query=counted).joined()


def _encoded(features: pa.Table, counts: Array) -> Iterator[sparse.csr_array]:
    for column in features.columns:
        if pa.types.is_string(column.type):
            codes = column.combine_chunks().dictionary_encode().indices.to_numpy()
            yield sparse.csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)))
            continue
        values = column.to_numpy().astype(np.float64)
        train = values[: len(counts)]
        centre = counts @ train / counts.sum()
        spread = np.sqrt(counts @ (train - centre) ** 2 / counts.sum())
        yield sparse.csr_array(((values - centre) / (spread or 1.0))[:, None])


def _dense(matrix: sparse.csr_array) -> torch.Tensor:
    return torch.from_numpy(matrix.toarray().astype(np.float32))


def _written(accuracies: list[float]) -> str:
    text = f"{100 * mean(accuracies):.2f} %"
    if len(accuracies) == 1:
        return text
    return f"{text} ({100 * min(accuracies):.2f} to {100 * max(accuracies):.2f})"


if __name__ == "__main__":
    main()
