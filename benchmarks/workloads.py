"""What speed.py measures: joins of real and of generated tables, in databases on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
from stars import Shape, many_to_many, star
from tasks import FLIGHTS, Task, ratings

import sqlfl
from sqlfl.transport.base import Transport

SMALL = 1_000_000
"""Joined rows of generated tables on which tolerances are chosen, for more of them too."""
TENTH = 0.1
"""Of real tables' rows, likewise."""
USER, MOVIE = ("gender", "age", "occupation"), ("year", "genre")
TOWERS = {
    "algorithm": "sgd",
    "optimizer": "adam",
    "hidden": [16],
    "learning_rate": 0.01,
    "batch_size": 10_000,
    "epochs": 3,
    "seed": 1,
}


@dataclass(frozen=True)
class Stored:
    """A task whose tables are in databases: party -> one per client."""

    task: Task
    databases: Mapping[str, tuple[Path, ...]]
    memory_limit: str | None = None
    """Of each party's database; None for DuckDB's default."""

    @classmethod
    def of(cls, task: Task, folder: Path) -> Stored:
        """Writes the databases into a new folder."""
        folder.mkdir(parents=True)
        found = {}
        for name, parts in task.tables.items():
            party, table = name.split(".")
            found[party] = tuple(folder / f"{party}_{q}.duckdb" for q in range(len(parts)))
            for path, rows in zip(found[party], parts, strict=True):
                with duckdb.connect(path) as con:
                    con.execute("SET enable_progress_bar = false")
                    con.execute(f"CREATE TABLE {table} AS {rows}")
        return cls(task, found)

    @contextmanager
    def federation(
        self, wrap: Callable[[Transport], Transport] | None = None
    ) -> Iterator[sqlfl.Federation]:
        """A new federation of the parties; `wrap` as it takes it."""
        with ExitStack() as stack:
            fed = stack.enter_context(sqlfl.Federation(progress=False, wrap=wrap))
            for party, paths in self.databases.items():
                limited = {} if self.memory_limit is None else {"memory_limit": self.memory_limit}
                clients = [stack.enter_context(duckdb.connect(p, config=limited)) for p in paths]
                fed.attach(party, clients)
            yield fed

    @contextmanager
    def centre(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """One connection that reads all the tables where they are, under the same names."""
        with duckdb.connect() as con:
            con.execute("SET enable_progress_bar = false")
            for name in self.task.tables:
                party, table = name.split(".")
                paths = self.databases[party]
                for q, path in enumerate(paths):
                    con.execute(f"ATTACH '{path}' AS {party}_{q} (READ_ONLY)")
                union = " UNION ALL ".join(f"FROM {party}_{q}.{table}" for q in range(len(paths)))
                con.execute(f"CREATE SCHEMA {party}; CREATE VIEW {name} AS {union}")
            yield con


@dataclass(frozen=True)
class Workload:
    task: Task
    trial: Task
    """On which tolerances are chosen: the task itself, or a smaller one like it."""
    options: Mapping[str, object] = field(default_factory=dict)
    towers: tuple[tuple[str, ...], ...] = ()
    """The features of each neural tower, where it is a network."""
    sides: int = 2
    """Tables that have features."""


def toy(kind: str) -> Task:
    """What a process runs first, so that nothing has to be imported any more."""
    return star(Shape(1000, kind=kind))


def names(movielens: Path | None) -> list[str]:
    """The workloads that there are; those of MovieLens only where its folder is given."""
    ratings = ["linear", "logistic", "softmax", "towers"]
    return [*([] if movielens is None else ratings), "flights", "star", "many"]


def workload(name: str, movielens: Path | None, fraction: float, shape: Shape) -> Workload:
    """`fraction` is that of real tables' rows which are taken; `shape` that of generated ones."""
    if name in ("star", "many"):
        make, sides = (star, shape.slots - 1) if name == "star" else (many_to_many, shape.slots)
        trial = replace(shape, rows=min(shape.rows, SMALL))
        options = {"max_joined_rows": 2 * shape.rows} if shape.rows > 50_000_000 else {}
        sides += name == "star" and shape.measures > 0
        return Workload(make(shape), make(trial), options, sides=sides)
    few = min(fraction, TENTH)
    if name == "flights":
        return Workload(flights_of_a_day(fraction), flights_of_a_day(few), sides=3)
    if movielens is None:
        raise ValueError(f"{name} needs the folder of MovieLens")
    task, trial = (_ratings(name, movielens, share) for share in (fraction, few))
    if name == "towers":
        return Workload(task, trial, TOWERS, (USER, MOVIE))
    return Workload(task, trial)


def flights_of_a_day(fraction: float) -> Task:
    """nycflights13: is a flight late, from the weather of all hours of its day at its airport, and
    its plane; three databases of flights, one of each airport."""
    source = f"SELECT * FROM '{FLIGHTS}/flights.parquet'"
    tables = {
        "airline.flights": tuple(f"{source} WHERE origin = '{o}'" for o in ("EWR", "JFK", "LGA")),
        "meteo.weather": (f"SELECT * FROM '{FLIGHTS}/weather.parquet'",),
        "registry.planes": (f"SELECT * FROM '{FLIGHTS}/planes.parquet'",),
    }
    query = f"""SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip,
            w.humid, p.seats, p.engines, f.arr_delay > 15 AS y
        FROM airline.flights f
        JOIN meteo.weather w
          ON f.origin = w.origin AND f.year = w.year AND f.month = w.month AND f.day = w.day
        JOIN registry.planes p USING (tailnum)
        WHERE f.dep_time IS NOT NULL AND f.flight % 1000 < {round(1000 * fraction)}"""
    return Task("nycflights13 × the day's weather × planes", "logistic_regression", tables, query)


def _ratings(name: str, folder: Path, fraction: float) -> Task:
    kinds = {
        "linear": ("linear_regression", "r.rating"),
        "logistic": ("logistic_regression", "r.rating >= 4"),
        "softmax": ("softmax_regression", "r.rating"),
        "towers": ("mlp_classifier", "r.rating"),
    }
    task = ratings(folder, *kinds[name])
    some = f"(r.user_id * 7919 + r.movie_id * 104729) % 1000 < {round(1000 * fraction)}"
    return replace(task, name=f"MovieLens-1M, {name}", query=f"{task.query} WHERE {some}")
