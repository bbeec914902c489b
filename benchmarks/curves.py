"""Straight lines, curves, and curves with pairs of features, beside boosted trees.

    python benchmarks/curves.py [--folder DATA] [--seeds 5] [--tasks flights_late,fair]
        [--ways line auto]

Prints, and keeps in <work>/curves.json, the test score of each task and way: 20,000 joined rows by
the seed, a fifth of them for the test. Flights come from this repository, `fair` from statsmodels
where that is installed, MovieLens-1M and phishing from a folder with their Parquet files. LightGBM
has the joined table in one place, its default settings and early stopping; it takes part where it
is installed. `auto of 3` has the rows of every table at three databases. Seconds are those of the
processor. `--render` puts the tables of what is there into docs/results/curves.md, and with
`--mark gains` the one of lines beside curves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from measuring import Results, insert, table
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance, r2_score, roc_auc_score

import sqlfl

ROOT = Path(__file__).parent.parent
ROWS = 20_000
TEST = 0.2
GENRES = (
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Film-Noir", "Horror", "Musical", "Romance", "Sci-Fi", "Thriller", "War",
)  # fmt: skip
WAYS = {
    "line": ("", ""),
    "auto": ("TRANSFORM (auto)", ""),
    "auto of 3": ("TRANSFORM (auto)", ""),
    "auto + pairs": ("TRANSFORM (auto(pairs => 20))", ""),
    "auto + pairs, unit = 'rows'": ("TRANSFORM (auto(pairs => 20))", "WITH (unit = 'rows')"),
}
METRICS = {
    "logistic_regression": "auc",
    "linear_regression": "r2",
    "poisson_regression": "deviance",
}
"""Score of a kind; of counts it is the share of the deviance that the model explains (D²)."""
OBJECTIVES = {
    "logistic_regression": "binary",
    "linear_regression": "regression",
    "poisson_regression": "poisson",
}
"""LightGBM's."""
DATABASES = {"auto of 3": 3}
"""Databases of each party, where they are not one."""
TREES = "LightGBM"
TREE = {"verbose": -1, "num_threads": 1, "learning_rate": 0.05, "seed": 0}


@dataclass(frozen=True)
class Task:
    """Tables by party, and a query over their rows; `{rows}` is a condition on `one.base`."""

    kind: str
    tables: Mapping[str, Mapping[str, pd.DataFrame]]
    query: str
    unit: str = "id"
    """Column of `one.base` whose values are either in training or in the test."""


def flights(folder: Path, seed: int, *, late: bool) -> Task:
    data = ROOT / "examples" / "data"
    target = "arr_delay > 15" if late else "arr_delay::DOUBLE"
    base = duckdb.sql(
        f"SELECT row_number() OVER () AS id, month, day, hour, minute, carrier, distance, dest, "
        f"dayofweek(time_hour)::VARCHAR AS wd, origin, time_hour, tailnum, {target} AS y "
        f"FROM '{data}/flights.parquet' WHERE arr_delay IS NOT NULL "
        f"ORDER BY hash(carrier, flight, time_hour, {seed}) LIMIT {ROWS}"
    ).df()
    weather = duckdb.sql(
        "SELECT origin, time_hour, temp, dewp, humid, wind_speed, precip, pressure, visib "
        f"FROM '{data}/weather.parquet'"
    ).df()
    planes = duckdb.sql(
        f"SELECT tailnum, year AS built, seats, engines, manufacturer FROM '{data}/planes.parquet'"
    ).df()
    query = """
        SELECT f.month, f.day, f.hour, f.minute, f.carrier, f.distance, f.dest, f.wd, f.origin,
          w.temp, w.dewp, w.humid, w.wind_speed, w.precip, w.pressure, w.visib,
          p.built, p.seats, p.engines, p.manufacturer, f.y
        FROM one.base f
        LEFT JOIN two.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        LEFT JOIN three.planes p ON f.tailnum = p.tailnum
        WHERE {rows} f.train"""
    parties = {"one": {"base": base}, "two": {"weather": weather}, "three": {"planes": planes}}
    return Task("logistic_regression" if late else "linear_regression", parties, query)


def movielens(folder: Path, seed: int) -> Task:
    data = folder / "movielens-1m"
    base = duckdb.sql(
        f"SELECT row_number() OVER () AS id, user_id, movie_id, rating::DOUBLE AS y FROM "
        f"'{data}/ratings.parquet' ORDER BY hash(user_id, movie_id, {seed}) LIMIT {ROWS}"
    ).df()
    users = duckdb.sql(
        "SELECT user_id, gender, age, occupation::VARCHAR AS occupation "
        f"FROM '{data}/users.parquet'"
    ).df()
    quoted = [name.replace("'", "''") for name in GENRES]
    flags = ", ".join(f"contains(genres, '{g}')::INT AS g{n}" for n, g in enumerate(quoted))
    movies = duckdb.sql(f"SELECT movie_id, year, {flags} FROM '{data}/movies.parquet'").df()
    columns = ", ".join(f"m.g{n}" for n in range(len(GENRES)))
    query = f"""
        SELECT u.gender, u.age, u.occupation, m.year, {columns}, r.y
        FROM one.base r JOIN two.users u USING (user_id)
        JOIN three.movies m ON r.movie_id = m.movie_id WHERE {{rows}} r.train"""
    parties = {"one": {"base": base}, "two": {"users": users}, "three": {"movies": movies}}
    return Task("linear_regression", parties, query)


def phishing(folder: Path, seed: int) -> Task:
    frame = duckdb.sql(f"FROM '{folder}/phishing/phishing.parquet'").df()
    names = [name for name in frame if name not in ("id", "result")]
    frame = frame.drop_duplicates(subset=names).reset_index(drop=True)
    frame["y"] = frame.pop("result") > 0
    frame[names] = frame[names].astype(int).astype(str)
    return _halves(frame, names[:15], names[15:], "logistic_regression")


def fair(folder: Path, seed: int) -> Task:
    from statsmodels.datasets import fair as survey

    frame = survey.load_pandas().data
    frame["y"] = frame.pop("affairs") > 0
    one = ["rate_marriage", "age", "yrs_married", "children"]
    return _halves(frame, one, [n for n in frame if n not in (*one, "y")], "logistic_regression")


def films(folder: Path, seed: int) -> Task:
    """Return the task of ratings of films new to the model, a row for each genre of a film."""
    data = folder / "movielens-1m"
    base = duckdb.sql(
        f"SELECT row_number() OVER () AS id, user_id, movie_id, rating::DOUBLE AS y FROM "
        f"'{data}/ratings.parquet' ORDER BY hash(user_id, movie_id, {seed}) LIMIT {ROWS}"
    ).df()
    users = duckdb.sql(
        "SELECT user_id, gender, age, occupation::VARCHAR AS occupation "
        f"FROM '{data}/users.parquet'"
    ).df()
    tables = {
        "genres": duckdb.sql(f"FROM '{data}/movie_genres.parquet'").df(),
        "movies": duckdb.sql(f"SELECT movie_id, year FROM '{data}/movies.parquet'").df(),
    }
    query = """
        SELECT u.gender, u.age, u.occupation, g.genre, m.year, r.y
        FROM one.base r JOIN two.users u USING (user_id)
        JOIN three.genres g ON r.movie_id = g.movie_id
        JOIN three.movies m ON r.movie_id = m.movie_id WHERE {rows} r.train"""
    parties = {"one": {"base": base}, "two": {"users": users}, "three": tables}
    return Task("linear_regression", parties, query, "movie_id")


def counts(folder: Path, seed: int) -> Task:
    """Return the task of an airport's late departures in an hour, on days new to the model."""
    data = ROOT / "examples" / "data"
    base = duckdb.sql(
        "SELECT row_number() OVER () AS id, origin, time_hour, month, hour, "
        "dayofweek(time_hour) AS wd, count(*) AS departures, time_hour::DATE::VARCHAR AS day, "
        "(count(*) FILTER (dep_delay > 15))::DOUBLE AS y "
        f"FROM '{data}/flights.parquet' GROUP BY ALL ORDER BY origin, time_hour"
    ).df()
    weather = duckdb.sql(
        "SELECT origin, time_hour, temp, dewp, humid, wind_speed, wind_dir, precip, pressure, "
        f"visib FROM '{data}/weather.parquet'"
    ).df()
    query = """
        SELECT f.origin, f.month, f.hour, f.wd, f.departures, w.temp, w.dewp, w.humid,
          w.wind_speed, w.wind_dir, w.precip, w.pressure, w.visib, f.y
        FROM one.base f
        LEFT JOIN two.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        WHERE {rows} f.train"""
    return Task(
        "poisson_regression", {"one": {"base": base}, "two": {"weather": weather}}, query, "day"
    )


def votes(folder: Path, seed: int) -> Task:
    """Return the task to predict the vote of people from their circumstances and opinions."""
    from statsmodels.datasets import anes96

    frame = anes96.load_pandas().data
    frame["y"] = frame.pop("vote") > 0
    one = ["popul", "TVnews", "age", "educ", "income"]
    return _halves(frame, one, ["selfLR", "ClinLR", "DoleLR", "PID"], "logistic_regression")


def visits(folder: Path, seed: int) -> Task:
    """Return the task of visits to physicians in a year, by families that training never saw."""
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    frame["y"] = frame.pop("mdvis").astype(float)
    one, two = ["lncoins", "idp", "lpi", "fmde"], ["physlm", "disea", "hlthg", "hlthf", "hlthp"]
    frame["family"] = frame.groupby(["disea", "lpi", "physlm"]).ngroup()
    task = _halves(frame, one, two, "poisson_regression", ["family"])
    return replace(task, unit="family")


def _halves(
    frame: pd.DataFrame, one: list[str], two: list[str], kind: str, beside: Sequence[str] = ()
) -> Task:
    frame = frame.assign(id=np.arange(len(frame)))
    columns = ", ".join([*(f"a.{n}" for n in one), *(f"b.{n}" for n in two)])
    query = f"""
        SELECT {columns}, a.y FROM one.base a JOIN two.other b USING (id) WHERE {{rows}} a.train"""
    parties = {
        "one": {"base": frame[["id", *beside, *one, "y"]]},
        "two": {"other": frame[["id", *two]]},
    }
    return Task(kind, parties, query)


TASKS: dict[str, Callable[[Path, int], Task]] = {
    "flights_late": lambda folder, seed: flights(folder, seed, late=True),
    "flights_minutes": lambda folder, seed: flights(folder, seed, late=False),
    "movielens": movielens,
    "phishing": phishing,
    "fair": fair,
    "films": films,
    "counts": counts,
    "votes": votes,
    "visits": visits,
}
FOREIGN = ("movielens", "phishing", "films")
"""Tasks whose data are not of this repository."""


def federated(
    task: Task, clauses: tuple[str, str], seed: int, databases: int = 1
) -> dict[str, float]:
    with sqlfl.connect(progress=False) as fed:
        for party, tables in task.tables.items():
            parts = [duckdb.connect() for _ in range(databases)]
            for name, frame in tables.items():
                whole = _drawn(frame, task.unit, seed) if name == "base" else frame
                for number, con in enumerate(parts):
                    con.register("given", whole[number::databases])
                    con.execute(f"CREATE TABLE {name} AS FROM given")
                    con.unregister("given")
            fed.attach(party, parts if databases > 1 else parts[0])
        start = time.process_time()
        transform, options = clauses
        fed.sql(
            f"TRAIN MODEL m USING {task.kind} TARGET y {transform} {options} "
            f"FROM ({task.query.format(rows='')})"
        )
        seconds = time.process_time() - start
        model = fed.model("m")
        metrics = fed.sql(f"EVALUATE MODEL m FROM ({task.query.format(rows='NOT')})").df()
        cost = model.cost
        return {
            "score": _share(task, float(metrics[METRICS[task.kind]][0]), seed),
            "seconds": seconds,
            "iterations": float(len(model.history)),
            "megabytes": 0.0 if cost is None else (cost.bytes_up + cost.bytes_down) / 1e6,
        }


def _drawn(frame: pd.DataFrame, unit: str, seed: int) -> pd.DataFrame:
    """Return the rows with a column `train`, drawn for each value of the unit."""
    values, places = np.unique(frame[unit], return_inverse=True)
    return frame.assign(
        train=(np.random.default_rng(1000 + seed).random(len(values)) >= TEST)[places]
    )


def _share(task: Task, score: float, seed: int) -> float:
    """Return the score; for a deviance, its relative reduction against that of the mean."""
    if task.kind != "poisson_regression":
        return score
    base = _drawn(task.tables["one"]["base"], task.unit, seed)
    y = base.y[~base.train].to_numpy()
    return 1.0 - score / mean_poisson_deviance(y, np.full(len(y), y.mean()))


def trees(task: Task, seed: int) -> dict[str, float]:
    """Return the predictions of LightGBM over the joined table, stopped early by a tenth of the
    training rows."""
    import lightgbm

    con, joined = duckdb.connect(), task.query
    for party, tables in task.tables.items():
        for name, frame in tables.items():
            con.register(name, _drawn(frame, task.unit, seed) if name == "base" else frame)
            joined = joined.replace(f"{party}.{name}", name)
    parts = [con.sql(joined.format(rows=rows)).df() for rows in ("", "NOT")]
    x = pd.concat([part.drop(columns="y") for part in parts], ignore_index=True)
    for name in x.select_dtypes(exclude="number"):
        x[name] = x[name].astype("category")
    train, test = x[: len(parts[0])], x[len(parts[0]) :]
    y = parts[0].y.to_numpy()
    start = time.process_time()
    held = np.random.default_rng(seed).random(len(train)) < 0.1
    setting = {**TREE, "objective": OBJECTIVES[task.kind]}
    model = lightgbm.train(
        setting,
        lightgbm.Dataset(train[~held], y[~held]),
        2000,
        [lightgbm.Dataset(train[held], y[held])],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    seconds = time.process_time() - start
    predicted, truth = model.predict(test), parts[1].y
    score = {"logistic_regression": roc_auc_score, "linear_regression": r2_score}.get(
        task.kind, partial(d2_tweedie_score, power=1)
    )
    return {"score": float(score(truth, predicted)), "seconds": seconds}


def pages(scores: Mapping[str, Any]) -> str:
    """Return the means over seeds, with the standard error of the score."""
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name, run in scores.items():
        task, way, _ = name.split("|")
        runs.setdefault((task, way), []).append(run)
    ways = [way for way in (*WAYS, TREES) if any(used == way for _, used in runs)]
    tasks = list(dict.fromkeys(task for task, _ in runs))
    lines = table(
        ["test score", *ways],
        [[task, *(_score(runs.get((task, way), [])) for way in ways)] for task in tasks],
    )
    lines += ["", *table(
        ["iterations, MB", *(way for way in ways if way != TREES)],
        [
            [task, *(_cost(runs.get((task, way), [])) for way in ways if way != TREES)]
            for task in tasks
        ],
    )]  # fmt: skip
    return "\n".join(lines)


def gains(scores: Mapping[str, Any]) -> str:
    """Return the table of lines beside curves: means over seeds, and the gain on the same rows."""
    tasks = list(dict.fromkeys(name.split("|")[0] for name in scores))
    rows = []
    for task in tasks:
        seeds = [n for n in range(len(scores)) if f"{task}|auto|{n}" in scores]
        line, auto = ([scores[f"{task}|{way}|{n}"] for n in seeds] for way in ("line", "auto"))
        gain = [{"score": b["score"] - a["score"]} for a, b in zip(line, auto, strict=True)]
        rows.append([task, *map(_score, (line, auto, gain)), _cost(line), _cost(auto)])
    heads = ["test score", "line", "auto", "gain", "iterations, MB: line", "auto"]
    return "\n".join(table(heads, rows))


def _score(runs: list[dict[str, float]]) -> str:
    scores = np.array([run["score"] for run in runs])
    if not len(scores):
        return ""
    if len(scores) == 1:
        return f"{scores[0]:.4f} (1)"
    error = scores.std(ddof=1) / np.sqrt(len(scores))
    return f"{scores.mean():.4f} ± {error:.4f}"


def _cost(runs: list[dict[str, float]]) -> str:
    if not runs:
        return ""
    iterations, size = (
        np.mean([run[name] for run in runs]) for name in ("iterations", "megabytes")
    )
    return f"{iterations:.0f}, {size:.1f}"


MARKS = {"curves": pages, "gains": gains}
"""Places of the page, and the tables that they have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, TREES), default=(*WAYS, TREES))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "curves.md")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--mark", choices=tuple(MARKS), default="curves")
    given = parser.parse_args()
    results = Results(given.work / "curves.json")
    if given.render:
        insert(given.page, given.mark, MARKS[given.mark](results.found))
        return
    for seed in range(given.seeds):
        for name in given.tasks.split(","):
            if given.folder is None and name in FOREIGN:
                continue
            task = TASKS[name](given.folder or ROOT, seed)
            for way in given.ways:
                key = f"{name}|{way}|{seed}"
                if key in results.found:
                    continue
                if way == TREES and find_spec("lightgbm") is None:
                    print(key, "left out: lightgbm is not installed", flush=True)
                    continue
                scores = (
                    trees(task, seed)
                    if way == TREES
                    else federated(task, WAYS[way], seed, DATABASES.get(way, 1))
                )
                results.add(key, scores)
                print(key, {k: round(v, 4) for k, v in scores.items()}, flush=True)
    print(pages(results.found))


if __name__ == "__main__":
    main()
