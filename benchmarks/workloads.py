"""Data sets, generated joins and statements of the benchmarks, and their databases on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import sqlfl
from sqlfl.coordinator.executors.base import Executor
from sqlfl.transport.base import Transport

# -- data sets -------------------------------------------------------------------------------------


FLIGHTS = Path(__file__).parent.parent / "examples" / "data"
L2 = 1e-4
"""The default of the option l2."""


@dataclass(frozen=True)
class Task:
    name: str
    kind: str
    tables: dict[str, tuple[str, ...]]
    """party.table -> a SELECT per client."""
    query: str

    def statement(self, **options: object) -> str:
        """Return TRAIN MODEL m with these options; the target is the column y."""
        given = ", ".join(f"{name} = {value!r}" for name, value in options.items())
        clause = f"WITH ({given})" if options else ""
        return f"TRAIN MODEL m USING {self.kind} TARGET y {clause} FROM ({self.query})"

    @contextmanager
    def federation(
        self,
        wrap: Callable[[Transport], Transport] | None = None,
        executor: str | Executor = "threads",
    ) -> Iterator[sqlfl.Federation]:
        """Return a new federation with the tables attached; `wrap` and `executor` as `Federation`
        takes them."""
        with ExitStack() as stack:
            fed = stack.enter_context(
                sqlfl.Federation(progress=False, wrap=wrap, executor=executor)
            )
            for name, parts in self.tables.items():
                party, table = name.split(".")
                clients = [stack.enter_context(duckdb.connect()) for _ in parts]
                for client, rows in zip(clients, parts, strict=True):
                    client.execute(f"CREATE TABLE {table} AS {rows}")
                fed.attach(party, clients)
            yield fed

    @contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return one database that has all the tables, under the same names."""
        with duckdb.connect() as con:
            for name, parts in self.tables.items():
                con.execute(f"CREATE SCHEMA {name.split('.')[0]}")
                con.execute(f"CREATE TABLE {name} AS {' UNION ALL '.join(parts)}")
            yield con

    def joined(self) -> pa.Table:
        """Return the query's rows that have a target, from one database with all the tables."""
        with self.database() as con:
            rows = con.sql(self.query).to_arrow_table()
        return rows.filter(pc.is_valid(rows["y"]))


def flights(*, airports: bool) -> Task:
    """nycflights13: is a flight late? The tables are of three airports, a weather service and an
    aircraft registry; with `airports` also of a directory of airports. A destination's longitude
    nearly gives the flight's distance, so two blocks are strongly correlated."""
    source = f"SELECT * FROM '{FLIGHTS}/flights.parquet'"
    tables = {
        "airline.flights": tuple(f"{source} WHERE origin = '{o}'" for o in ("EWR", "JFK", "LGA")),
        "meteo.weather": (f"SELECT * FROM '{FLIGHTS}/weather.parquet'",),
        "registry.planes": (f"SELECT * FROM '{FLIGHTS}/planes.parquet'",),
    }
    columns = "f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, p.seats"
    joins = """FROM airline.flights f
        JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        JOIN registry.planes p USING (tailnum)"""
    name = "nycflights13, arr_delay > 15"
    if airports:
        tables["atlas.airports"] = (f"SELECT * FROM '{FLIGHTS}/airports.parquet'",)
        columns += ", a.lat, a.lon, a.alt"
        joins += " JOIN atlas.airports a ON f.dest = a.faa"
        name += ", with airports"
    query = f"SELECT {columns}, f.arr_delay > 15 AS y {joins} WHERE f.dep_time IS NOT NULL"
    return Task(name, "logistic_regression", tables, query)


def ratings(folder: Path, kind: str, target: str) -> Task:
    """MovieLens-1M with a row per movie and genre: predict a rating from its user and its movie."""
    return Task(
        f"MovieLens-1M, {target}",
        kind,
        {
            "shop.ratings": (f"SELECT user_id, movie_id, rating FROM '{folder}/ratings.parquet'",),
            "members.users": (f"SELECT * FROM '{folder}/users.parquet'",),
            "studio.movies": (
                f"SELECT movie_id, year, genre FROM '{folder}/movies.parquet' "
                f"JOIN '{folder}/movie_genres.parquet' USING (movie_id)",
            ),
        },
        f"""SELECT u.gender, u.age, CAST(u.occupation AS VARCHAR) AS occupation, m.year, m.genre,
             {target} AS y
           FROM shop.ratings r
           JOIN members.users u USING (user_id)
           JOIN studio.movies m USING (movie_id)""",
    )


def tasks(movielens: Path | None) -> list[Task]:
    """Return all tasks; those of MovieLens only if its folder is given."""
    found = [flights(airports=False), flights(airports=True)]
    if movielens is not None:
        found += [
            ratings(movielens, "logistic_regression", "r.rating >= 4"),
            ratings(movielens, "linear_regression", "r.rating"),
        ]
    return found


# -- generated joins -------------------------------------------------------------------------------


CATEGORIES = 8
"""Values of each table's category."""
SIDE = 100
"""Numbers of each side of a grid."""
STRENGTH = 1.5
"""Standard deviation of the true scores, about."""


@dataclass(frozen=True)
class Shape:
    """Shape of a generated join. Raise ValueError if no join has it."""

    rows: int
    """N, joined rows; of `many_to_many` about that many."""
    fan_out: int = 10
    """Joined rows of a dimension's row; of `many_to_many`, rows that a table has of a key. Both on
    average: keys are drawn."""
    slots: int = 3
    """Tables that are joined."""
    clients: int = 1
    """Databases of each table."""
    measures: int = 0
    """Numbers in the table of facts of a star, as features; without, it has keys and labels."""
    kind: str = "logistic_regression"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.slots < 2 or min(self.rows, self.fan_out, self.clients) < 1:
            raise ValueError(f"no join has this shape: {self}")

    def __str__(self) -> str:
        text = f"{self.slots} tables, fan-out {self.fan_out}"
        text += f", {self.clients} clients each" if self.clients > 1 else ""
        return text + (f", {self.measures} measures" if self.measures else "")


def star(shape: Shape) -> Task:
    """A table of facts with a row per joined row, and `slots` - 1 dimensions, each of whose rows
    has `fan_out` joined rows on average."""
    draws = Draws(shape.seed)
    dimensions = range(1, shape.slots)
    size = ceil(shape.rows / shape.fan_out)
    keys = [f"CAST(floor({size} * {draws.uniform(f'k{k}', 'i')}) AS BIGINT)" for k in dimensions]
    named = [f"{key} AS k{k}" for k, key in zip(dimensions, keys, strict=True)]
    measures = [draws.normal(f"m{j}", "i") for j in range(shape.measures)]
    score = draws.total(
        [draws.score(k, f"k{k}", f"k{k}") for k in dimensions]
        + [draws.weighted(f"m{j}", measure) for j, measure in enumerate(measures)]
    )
    named += [f"CAST({measure} AS FLOAT) AS m{j}" for j, measure in enumerate(measures)]
    facts = f"SELECT {', '.join(named)}, {draws.target(shape.kind, score)} AS y"
    tables = {"shop.facts": _clients(shape, shape.rows, facts)}
    for k in dimensions:
        facets = f"SELECT i AS id, {draws.facets(k, 'i', 'i')}"
        tables[f"d{k}.facets"] = _clients(shape, size, facets)
    columns = [f"f.m{j}" for j in range(shape.measures)] + _columns(dimensions)
    joins = [f"JOIN d{k}.facets d{k} ON f.k{k} = d{k}.id" for k in dimensions]
    query = f"SELECT {', '.join(columns)}, f.y FROM shop.facts f {' '.join(joins)}"
    return Task(f"star, {shape}", shape.kind, tables, query)


def many_to_many(shape: Shape) -> Task:
    """Tables that share a key. Each has `fan_out` rows per key on average, so the join has
    `fan_out` ** `slots` rows per key. The first table has the label."""
    draws = Draws(shape.seed)
    parts = range(shape.slots)
    keys = max(1, round(shape.rows / shape.fan_out**shape.slots))
    tables = {}
    for k in parts:
        key = f"CAST(floor({keys} * {draws.uniform(f'k{k}', 'i')}) AS BIGINT)"
        selected = [f"{key} AS key", draws.facets(k, "key", "i")]
        if k == 0:
            # of the other tables' rows only what those of one key share is known here
            others = [draws.weighted(f"a{p}", draws.normal(f"a{p}", "key")) for p in parts[1:]]
            score = draws.total([draws.score(0, "key", "i"), *others])
            selected.append(f"{draws.target(shape.kind, score)} AS y")
        tables[f"d{k}.facets"] = _clients(
            shape, keys * shape.fan_out, f"SELECT {', '.join(selected)}"
        )
    joins = [f"JOIN d{k}.facets d{k} ON d0.key = d{k}.key" for k in parts[1:]]
    query = f"SELECT {', '.join(_columns(parts))}, d0.y FROM d0.facets d0 {' '.join(joins)}"
    return Task(f"many-to-many, {shape}", shape.kind, tables, query)


def grid(shape: Shape) -> Task:
    """Two tables as in `many_to_many`, and a third one that joins both by a LEFT JOIN. The third
    has a row for nine tenths of the pairs of a number of the first and a number of the second. No
    tree of keys leads to its joined rows. Raise ValueError for other than three tables."""
    if shape.slots != 3:
        raise ValueError(f"a grid joins three tables, not {shape.slots}")
    base = many_to_many(replace(shape, slots=2))
    draws = Draws(shape.seed)
    tables = {}
    for name, selects in base.tables.items():
        side = f"CAST(floor({SIDE} * {draws.uniform(name, 'key + 7 * b')}) AS BIGINT) AS side"
        tables[name] = tuple(f"SELECT *, {side} FROM ({select})" for select in selects)
    cells = f"SELECT i // {SIDE} AS p, i % {SIDE} AS q, {draws.facets(2, 'i', 'i')}"
    tables["d2.facets"] = _clients(replace(shape, clients=1), 9 * SIDE * SIDE // 10, cells)
    joins = "JOIN d1.facets d1 ON d0.key = d1.key "
    joins += "LEFT JOIN d2.facets d2 ON d2.p = d0.side AND d2.q = d1.side"
    query = f"SELECT {', '.join(_columns(range(3)))}, d0.y FROM d0.facets d0 {joins}"
    return Task(f"grid, {replace(shape, slots=3)}", shape.kind, tables, query)


@dataclass(frozen=True)
class Draws:
    """SQL expressions that draw from the numbers of rows and keys."""

    seed: int

    def uniform(self, name: str, number: str) -> str:
        """Return SQL of a draw in [0, 1): the draw `name`, for each value of `number`.

        Hashed twice: hash(i, a) and hash(i, b) differ by the same bits for every i.
        """
        return f"((hash(hash({number}, '{self.seed} {name}')) >> 11) * {2.0**-53!r})"

    def normal(self, name: str, number: str) -> str:
        length = f"sqrt(-2 * ln(1 - {self.uniform(name + ' length', number)}))"
        return f"{length} * cos({2 * np.pi!r} * {self.uniform(name + ' angle', number)})"

    def facets(self, table: int, shared: str, number: str) -> str:
        """Return a table's columns: a number `a` by `shared`, a number `b` and a category `c`."""
        return (
            f"CAST({self.normal(f'a{table}', shared)} AS FLOAT) AS a, "
            f"CAST({self.normal(f'b{table}', number)} AS FLOAT) AS b, "
            f"'c' || {self._category(table, number)} AS c"
        )

    def score(self, table: int, shared: str, number: str) -> str:
        """Return SQL of the part of a score that a row's `facets` make."""
        effects = self._generator(f"c{table}").normal(size=CATEGORIES).round(6).tolist()
        parts = [
            self.weighted(f"a{table}", self.normal(f"a{table}", shared)),
            self.weighted(f"b{table}", self.normal(f"b{table}", number)),
            f"{effects}[{self._category(table, number)} + 1]",
        ]
        return f"({' + '.join(parts)})"

    def weighted(self, name: str, expression: str) -> str:
        """Return SQL of the expression times the true weight of the number `name`."""
        return f"{float(self._generator(name).normal()):.6f} * {expression}"

    def total(self, terms: Sequence[str]) -> str:
        """Return SQL of a score with a standard deviation of about `STRENGTH`. Each of the terms
        has two or three parts of variance 1."""
        return f"{STRENGTH / np.sqrt(3 * len(terms)):.6f} * ({' + '.join(terms)})"

    def target(self, kind: str, score: str) -> str:
        """Return SQL of row i's target from its true `score`: number, label or class."""
        if kind == "linear_regression":
            return f"{score} + {self.normal('y', 'i')}"
        drawn = [f"{self.uniform(y, 'i')} < 1 / (1 + exp(-({score})))" for y in ("y", "z")]
        if kind == "logistic_regression":
            return drawn[0]
        return f"CAST({drawn[0]} AS INTEGER) + CAST({drawn[1]} AS INTEGER)"

    def _category(self, table: int, number: str) -> str:
        """Return SQL of a category, counted from 0; the first ones are more frequent."""
        drawn = self.uniform(f"c{table}", number)
        return f"CAST(floor({CATEGORIES} * {drawn} ** 2) AS INTEGER)"

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *name.encode()])


def _columns(tables: Sequence[int]) -> list[str]:
    return [f"d{k}.{column} AS {column}{k}" for k in tables for column in "abc"]


def _clients(shape: Shape, count: int, select: str) -> tuple[str, ...]:
    """Return a SELECT per client, each with its share of the rows i of `count`."""
    return tuple(
        f"{select} FROM (SELECT range AS i FROM range({client}, {count}, {shape.clients}))"
        for client in range(shape.clients)
    )


# -- databases on disk -----------------------------------------------------------------------------


SMALL = 1_000_000
"""Joined rows of generated tables on which tolerances are chosen, for more of them too."""
TENTH = 0.1
"""Share of real tables' rows, likewise."""
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
    """Limit of each party's database; None for DuckDB's default."""

    @classmethod
    def of(cls, task: Task, folder: Path) -> Stored:
        """Write the databases into a new folder."""
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
        """Return a new federation of the parties; `wrap` as `Federation` takes it."""
        with ExitStack() as stack:
            fed = stack.enter_context(sqlfl.Federation(progress=False, wrap=wrap))
            for party, paths in self.databases.items():
                limited = {} if self.memory_limit is None else {"memory_limit": self.memory_limit}
                clients = [stack.enter_context(duckdb.connect(p, config=limited)) for p in paths]
                fed.attach(party, clients)
            yield fed

    @contextmanager
    def centre(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return one connection that reads all the tables from their databases, under the same
        names."""
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
    """Return a small task, which a process runs first to import everything."""
    return star(Shape(1000, kind=kind))


def names(movielens: Path | None) -> list[str]:
    """Return the workloads; those of MovieLens only if its folder is given."""
    ratings = ["linear", "logistic", "softmax", "towers"]
    return [*([] if movielens is None else ratings), "flights", "star", "many"]


def workload(name: str, movielens: Path | None, fraction: float, shape: Shape) -> Workload:
    """Return the workload of this name. `fraction` is the share of the rows that are taken from
    real tables; `shape` is that of generated tables."""
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
    """nycflights13: is a flight late? The tables are the weather of all hours of its day at its
    airport, and its plane. Three databases have flights, one for each airport."""
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
