"""The data sets and statements of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import sqlfl
from sqlfl.coordinator.executors.base import Executor
from sqlfl.transport.base import Transport

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
        """TRAIN MODEL m with these options; the target is the column y."""
        given = ", ".join(f"{name} = {value!r}" for name, value in options.items())
        clause = f"WITH ({given})" if options else ""
        return f"TRAIN MODEL m USING {self.kind} TARGET y {clause} FROM ({self.query})"

    @contextmanager
    def federation(
        self,
        wrap: Callable[[Transport], Transport] | None = None,
        executor: str | Executor = "threads",
    ) -> Iterator[sqlfl.Federation]:
        """A new federation with the tables attached; `wrap` and `executor` as `Federation` takes
        them."""
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
        """One database that has all the tables, under the same names."""
        with duckdb.connect() as con:
            for name, parts in self.tables.items():
                con.execute(f"CREATE SCHEMA {name.split('.')[0]}")
                con.execute(f"CREATE TABLE {name} AS {' UNION ALL '.join(parts)}")
            yield con

    def joined(self) -> pa.Table:
        """The query's rows, run in one database that has all the tables; those with a target."""
        with self.database() as con:
            rows = con.sql(self.query).to_arrow_table()
        return rows.filter(pc.is_valid(rows["y"]))


def flights(*, airports: bool) -> Task:
    """nycflights13: is a flight late, from what three airports, a weather service, an aircraft
    registry and, where `airports`, a directory of airports know. A destination's longitude tells
    nearly the flight's distance: two blocks that are strongly correlated."""
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
    """MovieLens-1M with a row per movie and genre: a rating from its user and its movie."""
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
    """All tasks; those of MovieLens only where its folder is given."""
    found = [flights(airports=False), flights(airports=True)]
    if movielens is not None:
        found += [
            ratings(movielens, "logistic_regression", "r.rating >= 4"),
            ratings(movielens, "linear_regression", "r.rating"),
        ]
    return found
