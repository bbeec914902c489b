"""The price of privacy on MovieLens-1M and nycflights13.

    python benchmarks/privacy.py movielens FOLDER   # the Parquet files of MovieLens-1M
    python benchmarks/privacy.py flights

`movielens`: TablePuppet's setting as it counts it, and its real account. Data, split and folder of
work are those of tablepuppet.py.

`flights`: logistic regression with noised labels: AUC by ε. The question: is a flight
late? The tables are of an airline in three databases, a weather service and an aircraft registry.
Labels alone are protected; moments.py protects features too.

Each run is stored in a file of the folder of work when it ends, and not repeated. `--render` makes
the tables of the runs so far.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dp_accounting
import duckdb
import numpy as np
from dp_accounting import rdp
from measuring import Results, dispatch, insert, table
from movielens import HELD_OUT, MovieLens

import sqlfl
from sqlfl.federation.session import Federation
from sqlfl.planner.explain.card import upwards

# -- tables ----------------------------------------------------------------------------------------


RunResult = Mapping[str, Any]
Found = Mapping[str, Any]
COORDINATOR, USERS = "coordinator", "users of the model"
PLACES = {
    "linear/plain": "linear",
    "linear/titles": "linear, with titles",
    "nn/plain": "towers",
    "nn/titles": "towers, with titles",
}
LIMITS = {"linear": 0.05, "nn": 0.02}
"""Maximum by which the paper's private models are worse."""


def epsilons(run: RunResult, observer: str) -> dict[str, float | None]:
    """Return unit -> the largest ε of all releases to this observer; None if one of them has none.

    Labels are a unit; features belong to the unit of their table.
    """
    largest: dict[str, float | None] = {}
    for release in run["report"]["releases"]:
        if observer not in release["observer"]:
            continue
        kind = "labels" if release["kind"] == "labels" else "features"
        unit = release["unit"] or kind
        known, released = largest.get(unit, 0.0), release["epsilon"]
        largest[unit] = None if known is None or released is None else max(known, released)
    return largest


def told(run: RunResult, kind: str, observer: str, table_name: str = "") -> str:
    """Return the ε of a kind of release, as the report prints it: the largest, or 'none' if one
    release has none."""
    printed = [
        release["epsilon"]
        for release in run["report"]["releases"]
        if release["kind"] == kind
        and observer in release["observer"]
        and (table_name in release["unit"] or not release["unit"])
    ]
    if not printed:
        return "-"
    return "none" if None in printed else upwards(max(printed))


def movielens_tables(results: Found) -> str:
    """Return all tables, from the runs so far."""
    if "data" not in results:
        return ""
    data = results["data"]
    lines = [
        f"{data['train']:,} joined rows to train on, {data['test']:,} to test; "
        f"z = {data['multiplier']:.3f} in the paper's setting.",
    ]
    for title, part in (
        ("The paper's setting, and what it is worth", _paper(results)),
        ("By epoch", _by_epoch(results)),
    ):
        if len(part) > 2:
            lines += ["", f"### {title}", "", *part]
    return "\n".join(lines)


def _paper(results: Found) -> list[str]:
    heads = [
        "model", "test RMSE without privacy", "in the paper's setting", "worse by",
        "the paper: at most", "ε of labels", "of users' features", "of movies' features",
    ]  # fmt: skip
    rows = []
    for place, title in PLACES.items():
        for algorithm in ("sgd", "admm"):
            free, private = (
                results.get(f"{place}/{algorithm}"),
                results.get(f"{place}/{algorithm} paper"),
            )
            if free is None or private is None:
                continue
            name = f"{title}, {algorithm.upper()}"
            limit = f"{LIMITS[place.partition('/')[0]]:.2f}"
            if "refused" in private:
                rows.append([name, f"{free['rmse'][-1]:.4f}", "refused", "-", limit] + ["-"] * 3)
                continue
            before, after = free["rmse"][-1], private["rmse"][-1]
            rows.append([
                name,
                f"{before:.4f}",
                f"{after:.4f}",
                f"{after - before:+.4f}",
                limit,
                told(private, "labels", COORDINATOR),
                told(private, "the model's parameters", USERS, "users"),
                told(private, "the model's parameters", USERS, "movies"),
            ])  # fmt: skip
    return table(heads, rows)


def _by_epoch(results: Found) -> list[str]:
    rows = []
    epochs: list[int] = []
    for place, title in PLACES.items():
        for name, words in (("sgd", ""), ("sgd paper", ", the paper's setting"), ("admm", "")):
            run = results.get(f"{place}/{name}")
            if run is None or "epochs" not in run:
                continue
            kind = name.partition(" ")[0].upper()
            epochs = epochs or [row["epoch"] for row in run["epochs"]]
            cells = [f"{row['rmse']:.4f}" for row in run["epochs"]]
            cells += ["-"] * (len(epochs) - len(cells))
            times = [row["comm_seconds"] for row in run["epochs"]]
            each = (times[-1] - times[0]) / max(len(times) - 1, 1)
            rows.append([f"{title}, {kind}{words}", *cells, f"{times[0]:.1f} + {each:.2f}"])
    heads = ["test RMSE after epoch", *map(str, epochs), "seconds, US-UK: first, and each more"]
    return table(heads, rows)


def flights_table(results: Found) -> str:
    if "data" not in results:
        return ""
    data = results["data"]
    columns: Sequence[str] = [*data["epsilons"], "none"]
    heads = ["AUC on the test flights, ε of a label =", *map(str, columns)]
    rows = [["labels, L-BFGS", *(_auc(results.get(f"labels/{epsilon}")) for epsilon in columns)]]
    lines = [f"{data['train']:,} flights to train on, {data['test']:,} to test."]
    return "\n".join([*lines, "", *table(heads, rows)])


def _auc(run: RunResult | None) -> str:
    if run is None:
        return "-"
    if "refused" in run:
        return "refused"
    low, high = min(run["auc"]), max(run["auc"])
    mean = sum(run["auc"]) / len(run["auc"])
    return f"{mean:.4f}" if len(run["auc"]) == 1 else f"{mean:.4f} ({low:.4f} to {high:.4f})"


# -- MovieLens-1M ----------------------------------------------------------------------------------


Options = dict[str, Any]
MODELS = {"linear": "linear_regression", "nn": "mlp_regressor"}
HIDDEN = {"nn": {"hidden": [16]}}
RATINGS = (1.0, 5.0)
LABEL_STD = 0.5
DELTA = 1e-5
PAPER_EPSILON = 1.0
EPOCHS, BATCH = 10, 10_000

GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War",
    "Western",
]  # fmt: skip
BOUNDS = {
    "gender": ["F", "M"],
    "age": [1, 56],
    "occupation": [str(number) for number in range(21)],
    "year": [1919, 2000],
    "genre": GENRES,
}
"""Public: all of it is in the data set's README."""
TITLE = {"title": [-1, 1]}


@dataclass(frozen=True)
class Run:
    """A TRAIN statement, and the number of times that it runs."""

    name: str
    model: str
    titles: bool
    options: Options
    privacy: Options = field(default_factory=dict)
    repeats: int = 1
    history: bool = False
    """The test rows are in the history, for the RMSE after each epoch."""

    @property
    def statement(self) -> str:
        options = HIDDEN.get(self.model, {}) | self.options | {"network": "us-uk"}
        if self.history:
            options |= {"validation_fraction": HELD_OUT}
        privacy = f"PRIVACY ({written(self.privacy)})" if self.privacy else ""
        rows = "ratings" if self.history else "train"
        return f"""
            TRAIN OR REPLACE MODEL m USING {MODELS[self.model]} TARGET rating
            WITH ({written(options)}) {privacy}
            FROM ({self.query(rows)})"""

    def query(self, rows: str) -> str:
        return f"""
            SELECT u.gender, u.age, u.occupation, m.year, m.genre,
              {"m.title, " if self.titles else ""}r.rating
            FROM shop.{rows} r
            JOIN members.users u USING (user_id)
            JOIN studio.movies m USING (movie_id, genre)"""


def written(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {_literal(value)}" for name, value in options.items())


def _literal(value: object) -> str:
    """Return the SQL literal of the value; quotes are doubled."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"'{name}': {_literal(v)}" for name, v in value.items()) + "}"
    return repr(value)


def bounds(titles: bool) -> Options:
    return {"feature_bounds": BOUNDS | (TITLE if titles else {})}


def paper_multiplier(rows: int) -> float:
    """Return the z that would give ε = 1 if batches were drawn by Poisson's law. These batches are
    not."""
    steps = EPOCHS * math.ceil(rows / BATCH)
    return float(
        dp_accounting.calibrate_dp_mechanism(
            rdp.RdpAccountant,
            lambda z: dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(BATCH / rows, dp_accounting.GaussianDpEvent(z)),
                steps,
            ),
            PAPER_EPSILON,
            DELTA,
        )
    )


LABELS = {
    "label_epsilon": (RATINGS[1] - RATINGS[0]) / (LABEL_STD / math.sqrt(2)),
    "label_bounds": list(RATINGS),
}
"""The paper's noise of labels, by the ε that it has on ratings between 1 and 5."""
SGD = {
    "linear": {"algorithm": "sgd", "learning_rate": 0.3, "schedule": "inverse"},
    "nn": {"algorithm": "sgd", "learning_rate": 0.01},
}
ADMM = {
    "linear": {"algorithm": "admm"},
    "nn": {"algorithm": "admm", "local_epochs": 20, "learning_rate": 0.03},
}
CALMED = {"learning_rate": 0.01, "schedule": "cosine"}
"""For towers in the paper's setting, chosen on this task: where rows are clipped they
drift, nearly without noise too, and only steps that fall to 0 bring them back."""


def papers(rows: int) -> Iterator[Run]:
    """Yield the non-private runs, and those of the paper's setting."""
    z = paper_multiplier(rows)
    for model in MODELS:
        for titles in (False, True):
            place = f"{model}/{'titles' if titles else 'plain'}"
            private = LABELS | bounds(titles) | {"statistics": "noised"}
            private |= {"noise_multiplier": z, "clip": 1.0, "delta": DELTA}
            for name, usual, batch in (("sgd", SGD, {"batch_size": BATCH}), ("admm", ADMM, {})):
                options = usual[model] | batch | {"epochs": EPOCHS}
                yield Run(f"{place}/{name}", model, titles, options, history=True)
                calmed = options | (CALMED if (model, name) == ("nn", "sgd") else {})
                yield Run(f"{place}/{name} paper", model, titles, calmed, private, history=True)


def movielens(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("privacy.py movielens")
    parser.add_argument("movielens", type=Path)
    usual = Path(tempfile.gettempdir()) / "sqlfl-tablepuppet"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the ratings")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="tables, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    own = parser.parse_args(arguments)
    own.work.mkdir(parents=True, exist_ok=True)
    results = Results(own.work / "privacy.json")
    if not own.render:
        run_all(own, results)
    text = movielens_tables(results.found)
    print(text)
    if own.page is not None:
        insert(own.page, "privacy-movielens", text)


def run_all(arguments: argparse.Namespace, results: Results) -> None:
    data = MovieLens(arguments.movielens, arguments.work, arguments.fraction)
    data.prepare()
    train, test = split(data)
    results.add("data", {"train": train, "test": test, "multiplier": paper_multiplier(train)})
    with data.federation() as fed:
        for run in papers(train):
            done = run.name in results.found and not arguments.again
            if done or not run.name.startswith(arguments.only):
                continue
            print(f"{run.name} ...", flush=True)
            measures = measured(fed, run) | {"options": run.options, "privacy": run.privacy}
            results.add(run.name, measures | {"at": f"{dt.datetime.now():%Y-%m-%d %H:%M}"})
            print(f"{run.name}: {measures.get('rmse', measures.get('refused'))}", flush=True)


def split(data: MovieLens) -> tuple[int, int]:
    """Make shop.train and shop.test from shop.ratings, and return their numbers of rows."""
    held_out = np.flatnonzero(np.load(data.work / "held_out.npy"))
    with duckdb.connect(data.path("shop")) as con:
        con.register("held_out", {"id": held_out})
        con.execute("""
            CREATE TABLE IF NOT EXISTS test AS FROM ratings SEMI JOIN held_out USING (id);
            CREATE TABLE IF NOT EXISTS train AS FROM ratings ANTI JOIN held_out USING (id)""")
        (found,) = con.execute("""
            SELECT (SELECT count(*) FROM train), (SELECT count(*) FROM test)""").fetchall()
    return found


def measured(fed: Federation, run: Run) -> dict[str, Any]:
    """Return the test RMSE by true labels, communication and the report; or the reason of a
    refusal."""
    rmse, model = [], None
    for _ in range(run.repeats):
        try:
            fed.sql(run.statement)
        except sqlfl.Error as error:
            return {"refused": str(error).partition("\n")[0]}
        model = fed.model("m")
        (row,) = fed.sql(f"EVALUATE MODEL m FROM ({run.query('test')})").arrow().to_pylist()
        rmse.append(row["rmse"])
    assert model is not None
    history = model.history.to_pylist()
    last = history[-1]
    measures: dict[str, Any] = {
        "rmse": rmse,
        "rounds": last["rounds"],
        "megabytes": (last["bytes_up"] + last["bytes_down"]) / 1e6,
        "comm_seconds": last["comm_seconds"],
        "seconds": last["seconds"],
        "metrics": dict(model.metrics),
        "report": json.loads(model.privacy.to_json()),
    }
    if run.history:
        measures["epochs"] = by_epoch(history, rmse[-1])
    return measures


def by_epoch(history: list[dict[str, Any]], last: float) -> list[dict[str, float]]:
    """Return the test RMSE by true labels after each epoch, from the history's RMSE by noised
    labels.

    Noise that does not depend on the features adds a constant to the mean square. This constant is
    the difference of both after the last epoch. (Predictions change little from epoch to epoch, so
    the noise correlates with the changes by less than 0.001.)
    """
    squares = [row["valid_metric"] ** 2 for row in history]
    excess = squares[-1] - last**2
    return [
        {
            "epoch": row["epoch"],
            "rmse": math.sqrt(max(square - excess, 0.0)),
            "comm_seconds": row["comm_seconds"],
        }
        for row, square in zip(history, squares, strict=True)
    ]


# -- nycflights13 ----------------------------------------------------------------------------------


DATA = Path(__file__).parent.parent / "examples" / "data"
EPSILONS = (0.5, 1, 2, 4, 8)
REPEATS = 5


@dataclass(frozen=True)
class FlightsRun:
    name: str
    options: Options
    privacy: Options = field(default_factory=dict)
    repeats: int = REPEATS

    @property
    def statement(self) -> str:
        privacy = f"PRIVACY ({written(self.privacy)})" if self.privacy else ""
        return f"""
            TRAIN OR REPLACE MODEL m USING logistic_regression TARGET late
            WITH ({written(self.options)}) {privacy} FROM ({flights_query("train")})"""


def flights_query(rows: str) -> str:
    return f"""
        SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, p.seats,
          f.arr_delay > 15 AS late
        FROM airline.{rows} f
        JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        JOIN registry.planes p USING (tailnum)"""


def flights_runs() -> Iterator[FlightsRun]:
    yield FlightsRun("labels/none", {"algorithm": "lbfgs"}, repeats=1)
    for epsilon in EPSILONS:
        yield FlightsRun(f"labels/{epsilon}", {"algorithm": "lbfgs"}, {"label_epsilon": epsilon})


def flights(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("privacy.py flights")
    usual = Path(tempfile.gettempdir()) / "sqlfl-privacy"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="table, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    own = parser.parse_args(arguments)
    own.work.mkdir(parents=True, exist_ok=True)
    results = Results(own.work / "privacy-flights.json")
    if not own.render:
        run_flights(own, results)
    text = flights_table(results.found)
    print(text)
    if own.page is not None:
        insert(own.page, "privacy-flights", text)


def run_flights(arguments: argparse.Namespace, results: Results) -> None:
    for run in flights_runs():
        done = run.name in results.found and not arguments.again
        if done or not run.name.startswith(arguments.only):
            continue
        print(f"{run.name} ...", flush=True)
        results.add(run.name, measure_flights(run, results))
        found = results.found[run.name]
        print(f"{run.name}: {found.get('auc', found.get('refused'))}", flush=True)


def measure_flights(run: FlightsRun, results: Results) -> dict[str, Any]:
    """Return the AUC by true labels, options and the report; or the reason of a refusal. Each call
    makes a new federation: a party that keeps its secret noises a label only once."""
    measures: dict[str, Any] = {"options": run.options, "privacy": run.privacy}
    auc = []
    for _ in range(run.repeats):
        with Flights() as flights:
            about = {"train": flights.train, "test": flights.test, "epsilons": list(EPSILONS)}
            results.add("data", about)
            try:
                flights.fed.sql(run.statement)
            except sqlfl.Error as error:
                return measures | {"refused": str(error).partition("\n")[0]}
            (row,) = (
                flights.fed.sql(f"EVALUATE MODEL m FROM ({flights_query('test')})")
                .arrow()
                .to_pylist()
            )
            model = flights.fed.model("m")
            auc.append(row["auc"])
            measures |= {
                "metrics": dict(model.metrics),
                "report": json.loads(model.privacy.to_json()),
            }
    return measures | {"auc": auc}


class Flights:
    """Return the federation, with four fifths of the flights for training and the others for the
    test."""

    def __enter__(self) -> Flights:
        self._opened: list[Any] = []
        self.fed = self._attached(sqlfl.connect(progress=False))
        return self

    def __exit__(self, *_: object) -> None:
        for item in self._opened:
            item.close()

    def _attached(self, fed: Federation) -> Federation:
        self._opened.append(fed)
        airline = []
        self.train = self.test = 0
        for origin in ("EWR", "JFK", "LGA"):
            con = self._database()
            con.execute(f"""
                CREATE TABLE flights AS
                SELECT *, hash(time_hour, carrier, flight) % 5 = 0 AS tested
                FROM '{DATA}/flights.parquet'
                WHERE origin = '{origin}' AND dep_time IS NOT NULL""")
            for name, condition in (("train", "NOT tested"), ("test", "tested")):
                con.execute(f"CREATE TABLE {name} AS FROM flights WHERE {condition}")
                (rows,) = con.execute(f"SELECT count(*) FROM {name}").fetchone() or (0,)
                setattr(self, name, getattr(self, name) + rows)
            airline.append(con)
        fed.attach("airline", airline)
        for party, name in (("meteo", "weather"), ("registry", "planes")):
            con = self._database()
            con.execute(f"CREATE TABLE {name} AS FROM '{DATA}/{name}.parquet'")
            fed.attach(party, con)
        return fed

    def _database(self) -> duckdb.DuckDBPyConnection:
        con = duckdb.connect()
        con.execute("SET threads = 2")
        self._opened.insert(0, con)
        return con


if __name__ == "__main__":
    dispatch(__doc__, {"movielens": movielens, "flights": flights})
