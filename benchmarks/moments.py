"""Private regression by `algorithm = 'moments'`: what ε costs, over tasks of several shapes.

    python benchmarks/moments.py [--data FOLDER] [--only air,late] [--repeats 5] [--wide 5]
        [--rounds 1] [--epsilons 1,4,8]

`air` (minutes in the air), `late` (more than 15 minutes late), `few` (2000 flights) and `weather`
(a flight with every hour of its day, many to many) are over nycflights13, which lies in
examples/data. `ml` (MovieLens-1M, movies by genre), `phishing` and `har` need a FOLDER with
movielens-1m/*.parquet, phishing/phishing.parquet and uci-har/windows.parquet. `july` (more than 30
minutes late, by every hour of the day's weather, many to many) and `har` (is somebody walking
upstairs, by 20 columns at each of two parties) were not looked at while the method was built. Each
number is a mean over repeats, and the worst of them; noise differs from run to run. Rows for
testing are a fifth that a hash chooses; of `har` they are other people's.

`--rounds` is the option of the method; without it, the method's own default holds.

`AdaSSP` is what one place could do that holds the joined table (Wang, 2018: ridge regression by
noised sufficient statistics, the ridge by a noised smallest eigenvalue), for the same change: of
one row of a table, which is in as many joined rows as its fan-out, of all tables the largest. Its
joined rows weigh min(1, cap / n), n being the largest fan-out of a joined row's table rows, with
the cap, by the join graph alone, that has the least noise. Labels are cut at their 99 % quantile.
`--wide 5` makes all ranges of numbers five times as wide as what is known of them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import numpy as np
from dp_accounting import get_sigma_gaussian

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
    "humid": [0, 100],
    "pressure": [980, 1045],
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
LATE = (
    "SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, "
    f"p.seats, f.arr_delay > 15 AS late {JOIN}"
)
TASKS = {
    "air": Task(
        "linear_regression", "r2", "air_time",
        f"SELECT f.distance, f.carrier, w.wind_speed, w.visib, p.seats, f.air_time {JOIN}",
        FLIGHTS, lambda folder: flights("air_time IS NOT NULL"),
    ),
    "late": Task(
        "logistic_regression", "auc", "late", LATE,
        FLIGHTS, lambda folder: flights("arr_delay IS NOT NULL"),
    ),
    "few late": Task(
        "logistic_regression", "auc", "late", LATE,
        FLIGHTS,
        lambda folder: flights("arr_delay IS NOT NULL AND hash(flight, time_hour, 7) % 112 = 0"),
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
    "july": Task(
        "logistic_regression", "auc", "late",
        "SELECT f.distance, f.carrier, f.hour AS dep_hour, w.temp, w.humid, w.wind_speed, "
        "w.precip, w.pressure, w.visib, f.arr_delay > 30 AS late FROM airline.{rows} f "
        "JOIN meteo.weather w ON f.origin = w.origin AND f.month = w.month AND f.day = w.day",
        FLIGHTS, lambda folder: flights("arr_delay IS NOT NULL AND month = 7"),
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


def _har(folder: Path) -> Task:
    """Return the task over windows of a telephone's sensors, which lie in [-1, 1]."""
    source = f"'{folder}/uci-har/windows.parquet'"
    columns = [row[0] for row in duckdb.sql(f"DESCRIBE FROM {source}").fetchall()][5:45]
    listed = [f"{'l' if k < 20 else 'r'}.{name}" for k, name in enumerate(columns)]

    def parties(folder: Path) -> dict[str, duckdb.DuckDBPyConnection]:
        shares = {
            rows: f"SELECT * FROM {source} WHERE split = '{rows}'" for rows in ("train", "test")
        }
        every = {"windows": f"SELECT * FROM {source}"}
        return {"one": _of(folder, **shares), "two": _of(folder, **every)}

    return Task(
        "logistic_regression", "auc", "y",
        f"SELECT {', '.join(listed)}, l.activity = 2 AS y FROM one.{{rows}} l "
        "JOIN two.windows r USING (window_id)",
        {name: [-1, 1] for name in columns}, parties, "delta = 1e-5, ",
    )  # fmt: skip


ELSEWHERE = {"phishing": _phishing, "har": _har}


def runs(
    task: Task,
    folder: Path,
    repeats: int,
    rounds: int | None = None,
    epsilons: Sequence[float] = EPSILONS,
) -> Iterator[dict[str, object]]:
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
        for epsilon in (*epsilons, None):
            more = task.more or f"delta = {DELTA}, "
            clause = f"PRIVACY ({more}epsilon = {epsilon}, feature_bounds = {{{bounds}}})"
            found, told = [], []
            started = time.perf_counter()
            for _ in range(1 if epsilon is None else repeats):
                asked = f", rounds = {rounds}" if rounds else ""
                options = f"WITH (algorithm = 'moments'{asked}) {clause}" if epsilon else ""
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


def _columns(names: list[str], table: dict[str, np.ndarray], task: Task) -> np.ndarray:
    """Return the encoded columns (n, d): numbers in [-1, 1], NULL as 0, and a column a category."""
    parts = []
    for name in names:
        bounds, values = task.bounds[name], table[name]
        if isinstance(bounds[0], str):
            texts = np.asarray(values.astype(str))
            parts += [(texts == entry).astype(np.float32) for entry in bounds]
            continue
        low, high = (float(end) for end in bounds)
        numbers = np.ma.filled(np.ma.asarray(values, float), (low + high) / 2)
        parts.append(np.clip((numbers - (low + high) / 2) / ((high - low) / 2), -1, 1))
    return np.column_stack([*parts, np.ones(len(parts[0]))]).astype(np.float32)


def _joined(task: Task, folder: Path) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Return X and y of the rows to train on and of those for the test, and the largest fan-out of
    the table rows that each of the first is made of."""
    con = duckdb.connect()
    for party, own in task.parties(folder).items():
        con.execute(f"CREATE SCHEMA {party}")
        for (name,) in own.sql("SELECT table_name FROM duckdb_tables()").fetchall():
            rows = own.sql(f"FROM {name}").arrow()
            con.execute(f"CREATE TABLE {party}.{name} AS FROM rows")
    matrices, targets = [], []
    largest = np.zeros(0)
    for rows in ("train", "test"):
        query = task.query.format(rows=rows)
        aliases = re.findall(r"(?:FROM|JOIN) \w+\.\w+ (\w+)", query)
        ids = ", ".join(f"{a}.rowid AS row_of_{a}" for a in aliases)
        table = con.sql(query.replace("SELECT ", f"SELECT {ids}, ", 1)).fetchnumpy()
        names = [n for n in table if n != task.target and not n.startswith("row_of_")]
        matrices.append(_columns(names, table, task))
        targets.append(np.asarray(table[task.target], float))
        if rows == "train":
            numbers = [table[f"row_of_{a}"] for a in aliases]
            counts = [np.bincount(np.asarray(n, np.int64)) for n in numbers]
            largest = np.max([c[n] for c, n in zip(counts, numbers, strict=True)], axis=0)
    return matrices, largest, targets


def _changes(task: Task) -> tuple[float, float]:
    """By how much another row of a table moves z zᵀ and z of a joined row, z = (x, 1), of all
    tables the most."""
    numbers: dict[str, int] = {}
    categories: dict[str, int] = {}
    for alias, column, name in re.findall(r"(\w+)\.(\w+)(?: AS (\w+))?", task.query):
        bounds = task.bounds.get(name or column)
        if bounds is None:
            continue
        of = categories if isinstance(bounds[0], str) else numbers
        of[alias] = of.get(alias, 0) + 1
    norm = 1 + sum(numbers.values()) + sum(categories.values())
    gram, labels = 0.0, 0.0
    for alias in {*numbers, *categories}:
        k, c = numbers.get(alias, 0), categories.get(alias, 0)
        same = max(norm - k - c - k, 0)
        gram = max(gram, math.sqrt(2.0 * norm**2 - 2.0 * same**2))
        labels = max(labels, math.sqrt(4.0 * k + 2.0 * c))
    return gram, labels


def central(
    task: Task, folder: Path, repeats: int, epsilons: Sequence[float] = EPSILONS
) -> Iterator[dict[str, object]]:
    """AdaSSP over the joined table."""
    (x, tested), fan_out, (y, truth) = _joined(task, folder)
    delta = float(re.findall(r"delta = ([^,]+)", task.more)[0]) if task.more else DELTA
    of_gram_rows, of_label_rows = _changes(task)
    mean = float(y.mean())
    reach = float(np.quantile(np.abs(y - mean), 0.99))
    y = np.clip(y, mean - reach, mean + reach)
    caps = np.unique(np.quantile(fan_out, (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)))
    cap = float(min(caps, key=lambda c: c / np.minimum(1.0, c / fan_out).sum()))
    weights = np.minimum(1.0, cap / fan_out)
    gram, moments = x.T @ (x * weights[:, None]).astype(np.float64), x.T @ (weights * (y - mean))
    d = len(gram)
    generator = np.random.default_rng()
    for epsilon in epsilons:
        sigma = get_sigma_gaussian(epsilon, delta) * math.sqrt(3.0)
        of_gram, of_moments = sigma * cap * of_gram_rows, sigma * cap * of_label_rows * reach
        scores = []
        for _ in range(repeats):
            upper = np.triu(generator.normal(size=(d, d))) * of_gram
            noised = gram + upper + np.triu(upper, 1).T
            least = np.linalg.eigvalsh(gram)[0] + generator.normal() * of_gram
            least = max(least - of_gram * math.sqrt(2.0 * math.log(6.0 / 0.05)), 0.0)
            ridge = max(0.0, of_gram * math.sqrt(d * math.log(2 * d * d / 0.05)) - least)
            theta = np.linalg.solve(
                noised + ridge * np.eye(d), moments + generator.normal(size=d) * of_moments
            )
            scores.append(_score(task, mean + tested @ theta, truth))
        worst = max(scores) if task.metric == "rmse" else min(scores)
        yield {"epsilon": epsilon, "mean": float(np.mean(scores)), "worst": worst}


def _score(task: Task, predicted: np.ndarray, truth: np.ndarray) -> float:
    if task.metric == "auc":
        ranks = np.argsort(np.argsort(predicted)) + 1.0
        ones = truth.sum()
        return float((ranks[truth > 0].sum() - ones * (ones + 1) / 2) / ones / (len(truth) - ones))
    square = float(np.mean((predicted - truth) ** 2))
    return math.sqrt(square) if task.metric == "rmse" else 1.0 - square / float(truth.var())


def widened(task: Task, by: float) -> Task:
    """The task with ranges of numbers as many times as wide, about their middle."""

    def wider(bounds: list) -> list:
        if isinstance(bounds[0], str):
            return bounds
        middle, half = (bounds[0] + bounds[1]) / 2, by * (bounds[1] - bounds[0]) / 2
        return [middle - half, middle + half]

    return replace(task, bounds={name: wider(own) for name, own in task.bounds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of movielens-1m and phishing")
    parser.add_argument("--only", default="air,late,few,weather,july,ml,phishing,har")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wide", type=float, default=1.0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    own = parser.parse_args()
    epsilons = [float(e) for e in own.epsilons.split(",")]
    warnings.simplefilter("ignore")
    print("| task | ε | mean | worst | explained, as told | rounds | MB up | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in own.only.split(","):
        if own.data is None and name in ("ml", *ELSEWHERE):
            continue
        task = ELSEWHERE[name](own.data) if name in ELSEWHERE else TASKS[name]
        task = widened(task, own.wide)
        for row in runs(task, own.data or EXAMPLES, own.repeats, own.rounds, epsilons):
            told = "" if row["explained"] is None else f"{row['explained']:.3f}"
            epsilon = "none (lbfgs)" if row["epsilon"] is None else f"{row['epsilon']:g}"
            print(
                f"| {name}, {task.metric} | {epsilon} | {row['mean']:.4f} | {row['worst']:.4f} | "
                f"{told} | {row['rounds']} | {row['up'] / 1e6:.2f} | {row['seconds']:.1f} |",
                flush=True,
            )
        for row in central(task, own.data or EXAMPLES, own.repeats, epsilons):
            print(
                f"| {name}, {task.metric}, AdaSSP | {row['epsilon']:g} | {row['mean']:.4f} | "
                f"{row['worst']:.4f} | | | | |",
                flush=True,
            )


if __name__ == "__main__":
    main()
