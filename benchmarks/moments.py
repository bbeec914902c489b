"""Private regression by `algorithm = 'moments'`: what ε costs, over tasks of several shapes.

    python benchmarks/moments.py [--data FOLDER] [--only air,late] [--repeats 5]

`air` (minutes in the air), `late` (more than 15 minutes late), `few` (2000 flights) and `weather`
(a flight with every hour of its day, many to many) are over nycflights13, which lies in
examples/data. `ml` (MovieLens-1M, movies by genre) and `phishing` need a FOLDER with
movielens-1m/*.parquet and phishing/phishing.parquet. Each number is a mean over repeats, and the
worst of them; noise differs from run to run. Rows for testing are a fifth that a hash chooses.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sqlfl

EXAMPLES = Path(__file__).parent.parent / "examples" / "data"
EPSILONS = (0.5, 1, 2, 4, 8, 100)
DELTA = 1e-6
CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX",
            "WN", "YV"]  # fmt: skip
FLIGHTS = {
    "distance": [0, 5000],
    "carrier": CARRIERS,
    "dep_hour": [0, 24],
    "wind_speed": [0, 60],
    "visib": [0, 10],
    "precip": [0, 1],
    "temp": [-20, 120],
    "seats": [0, 450],
}


@dataclass(frozen=True)
class Task:
    kind: str
    metric: str
    target: str
    query: str
    """Query, in which {rows} stands for the table of rows to train on, or to test on."""
    bounds: dict[str, list[float] | list[str]]
    parties: Callable[[Path], dict[str, duckdb.DuckDBPyConnection]]
    more: str = ""
    """Options of PRIVACY."""


def _of(folder: Path, **tables: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, text in tables.items():
        con.execute(f"CREATE TABLE {name} AS {text.format(data=folder)}")
    return con


def _split(source: str, key: str, share: int = 5) -> dict[str, str]:
    held = f"hash({key}) % {share} = 0"
    return {
        "train": f"SELECT * FROM {source} WHERE NOT {held}",
        "test": f"SELECT * FROM {source} WHERE {held}",
    }


def flights(condition: str, where: Path = EXAMPLES) -> dict[str, duckdb.DuckDBPyConnection]:
    key = "flight, time_hour, tailnum, origin"
    source = f"(SELECT * FROM '{where}/flights.parquet' WHERE {condition})"
    return {
        "airline": _of(where, **_split(source, key)),
        "meteo": _of(where, weather="SELECT * FROM '{data}/weather.parquet'"),
        "registry": _of(where, planes="SELECT * FROM '{data}/planes.parquet'"),
    }


def movielens(folder: Path) -> dict[str, duckdb.DuckDBPyConnection]:
    own = folder / "movielens-1m"
    ratings = f"(SELECT * FROM '{own}/ratings.parquet')"
    movies = (
        "SELECT m.movie_id, m.year, g.genre FROM '{data}/movies.parquet' m "
        "JOIN '{data}/movie_genres.parquet' g USING (movie_id)"
    )
    people = "SELECT user_id, gender, age, occupation::VARCHAR AS job FROM '{data}/users.parquet'"
    return {
        "service": _of(own, **_split(ratings, "user_id, movie_id", 7)),
        "studio": _of(own, movies=movies),
        "bank": _of(own, people=people),
    }


def phishing(folder: Path) -> dict[str, duckdb.DuckDBPyConnection]:
    source = f"(SELECT row_number() OVER () AS id, * FROM '{folder}/phishing/phishing.parquet')"
    every = f"SELECT * FROM {source}"
    return {"left": _of(folder, **_split(source, "id")), "right": _of(folder, pages=every)}


JOIN = (
    "FROM airline.{rows} f JOIN meteo.weather w ON f.origin = w.origin AND "
    "f.time_hour = w.time_hour JOIN registry.planes p ON f.tailnum = p.tailnum"
)
TASKS = {
    "air": Task(
        "linear_regression", "r2", "air_time",
        f"SELECT f.distance, f.carrier, w.wind_speed, w.visib, p.seats, f.air_time {JOIN}",
        FLIGHTS, lambda folder: flights("air_time IS NOT NULL"),
    ),
    "late": Task(
        "logistic_regression", "auc", "late",
        "SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, "
        f"p.seats, f.arr_delay > 15 AS late {JOIN}",
        FLIGHTS, lambda folder: flights("arr_delay IS NOT NULL"),
    ),
    "few": Task(
        "linear_regression", "r2", "air_time",
        f"SELECT f.distance, f.carrier, w.wind_speed, w.visib, p.seats, f.air_time {JOIN}",
        FLIGHTS,
        lambda folder: flights("air_time IS NOT NULL AND hash(flight, time_hour, 7) % 112 = 0"),
    ),
    "weather": Task(
        "linear_regression", "r2", "taxi",
        "SELECT f.distance, f.hour AS dep_hour, w.wind_speed, w.visib, w.temp, "
        "f.air_time / 60.0 AS taxi FROM airline.{rows} f JOIN meteo.weather w ON "
        "f.origin = w.origin AND f.month = w.month AND f.day = w.day",
        FLIGHTS, lambda folder: flights("air_time IS NOT NULL AND month = 1"),
    ),
    "ml": Task(
        "linear_regression", "rmse", "rating",
        "SELECT u.gender, u.age, u.job, m.year, m.genre, r.rating FROM service.{rows} r "
        "JOIN studio.movies m ON r.movie_id = m.movie_id JOIN bank.people u "
        "ON r.user_id = u.user_id",
        {
            "gender": ["F", "M"], "age": [1, 56], "year": [1919, 2000],
            "job": [str(k) for k in range(21)],
            "genre": ["Action", "Adventure", "Animation", "Children's", "Comedy", "Crime",
                      "Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical",
                      "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"],
        },
        movielens,
    ),
}  # fmt: skip


def _phishing(folder: Path) -> Task:
    """Return the task over phishing sites: half of the columns at each party."""
    con = duckdb.connect()
    path = f"{folder}/phishing/phishing.parquet"
    columns = [row[0] for row in con.sql(f"DESCRIBE FROM '{path}'").fetchall()]
    label = next(name for name in columns if name.lower() in ("result", "label", "class", "y"))
    features = [name for name in columns if name != label and name.lower() != "id"]
    ranges = ", ".join(f"least(min({n}), -1), greatest(max({n}), 1)" for n in features)
    (ends,) = con.sql(f"SELECT {ranges} FROM '{path}'").fetchall()
    bounds = {n: [ends[2 * k], ends[2 * k + 1]] for k, n in enumerate(features)}
    half = len(features) // 2
    listed = ", ".join([f"l.{n}" for n in features[:half]] + [f"r.{n}" for n in features[half:]])
    query = (
        f"SELECT {listed}, l.{label} > 0 AS y FROM left.{{rows}} l JOIN right.pages r USING (id)"
    )
    query = query.replace("left.", "one.").replace("right.", "two.")

    def parties(own: Path) -> dict[str, duckdb.DuckDBPyConnection]:
        return dict(zip(("one", "two"), phishing(own).values(), strict=True))

    return Task("logistic_regression", "auc", "y", query, bounds, parties, "delta = 1e-5, ")


def runs(task: Task, folder: Path, repeats: int) -> Iterator[dict[str, object]]:
    with sqlfl.connect(progress=False) as fed:
        for party, con in task.parties(folder).items():
            fed.attach(party, con)
        query = task.query.format(rows="train")
        head = query.partition(" FROM ")[0]
        used = {
            n: b
            for n, b in task.bounds.items()
            if n in head.replace(".", " ").replace(",", "").split()
        }
        bounds = ", ".join(
            f"'{n}': {json.dumps(b).replace(chr(34), chr(39))}" for n, b in used.items()
        )
        bounds = bounds.replace("'Children's'", "'Children''s'")
        scored = f"EVALUATE MODEL m FROM ({task.query.format(rows='test')})"
        for epsilon in (*EPSILONS, None):
            more = task.more or f"delta = {DELTA}, "
            clause = f"PRIVACY ({more}epsilon = {epsilon}, feature_bounds = {{{bounds}}})"
            found, told = [], []
            started = time.perf_counter()
            for _ in range(1 if epsilon is None else repeats):
                options = "WITH (algorithm = 'moments') " + clause if epsilon else ""
                head = f"TRAIN OR REPLACE MODEL m USING {task.kind} TARGET {task.target}"
                fed.sql(f"{head} {options} FROM ({query})")
                model = fed.model("m")
                (row,) = fed.sql(scored).arrow().to_pylist()
                found.append(row[task.metric])
                told.append(model.metrics.get("explained"))
            worst = max(found) if task.metric == "rmse" else min(found)
            last = model.history.to_pylist()[-1]
            yield {
                "epsilon": epsilon, "mean": sum(found) / len(found), "worst": worst,
                "explained": None if epsilon is None else sum(told) / len(told),
                "rounds": last["rounds"], "up": last["bytes_up"],
                "seconds": (time.perf_counter() - started) / len(found),
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of movielens-1m and phishing")
    parser.add_argument("--only", default="air,late,few,weather,ml,phishing")
    parser.add_argument("--repeats", type=int, default=5)
    own = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| task | ε | mean | worst | explained, as told | rounds | MB up | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in own.only.split(","):
        if own.data is None and name in ("ml", "phishing"):
            continue
        task = TASKS[name] if name in TASKS else _phishing(own.data)
        for row in runs(task, own.data or EXAMPLES, own.repeats):
            told = "" if row["explained"] is None else f"{row['explained']:.3f}"
            epsilon = "none (lbfgs)" if row["epsilon"] is None else f"{row['epsilon']:g}"
            print(
                f"| {name}, {task.metric} | {epsilon} | {row['mean']:.4f} | {row['worst']:.4f} | "
                f"{told} | {row['rounds']} | {row['up'] / 1e6:.2f} | {row['seconds']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
