"""Private training on MovieLens-1M: TablePuppet's setting as it counts it, and what it really has.

    python benchmarks/privacy_movielens.py <folder with the Parquet files of MovieLens-1M>

Data, split and folder of work are those of tablepuppet.py. Every run is kept as it ends in
<work>/privacy.json, and not made again; `--render` makes the tables of what is there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dp_accounting
import duckdb
import numpy as np
import privacy_tables
from dp_accounting import rdp
from movielens import HELD_OUT, MovieLens
from results import Results, insert

import sqlfl
from sqlfl.federation.session import Federation

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
    """A TRAIN statement, and how often it is made."""

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
    """As SQL writes it: quotes are doubled."""
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
    """z for which batches drawn by Poisson's law, which these are not, would give ε = 1."""
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
    """Non-private runs and those of the paper's setting."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("movielens", type=Path)
    usual = Path(tempfile.gettempdir()) / "sqlfl-tablepuppet"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the ratings")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="tables, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    own = parser.parse_args()
    own.work.mkdir(parents=True, exist_ok=True)
    results = Results(own.work / "privacy.json")
    if not own.render:
        run_all(own, results)
    text = privacy_tables.movielens(results.found)
    print(text)
    if own.page is not None:
        insert(own.page, "privacy-movielens", text)


def run_all(own: argparse.Namespace, results: Results) -> None:
    data = MovieLens(own.movielens, own.work, own.fraction)
    data.prepare()
    train, test = split(data)
    results.add("data", {"train": train, "test": test, "multiplier": paper_multiplier(train)})
    with data.federation() as fed:
        for run in papers(train):
            done = run.name in results.found and not own.again
            if done or not run.name.startswith(own.only):
                continue
            print(f"{run.name} ...", flush=True)
            found = measured(fed, run) | {"options": run.options, "privacy": run.privacy}
            results.add(run.name, found | {"at": f"{dt.datetime.now():%Y-%m-%d %H:%M}"})
            print(f"{run.name}: {found.get('rmse', found.get('refused'))}", flush=True)


def split(data: MovieLens) -> tuple[int, int]:
    """Makes shop.train and shop.test of shop.ratings; their rows."""
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
    """Test RMSE by true labels, communication, and the report; or why it was refused."""
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
    found: dict[str, Any] = {
        "rmse": rmse,
        "rounds": last["rounds"],
        "megabytes": (last["bytes_up"] + last["bytes_down"]) / 1e6,
        "comm_seconds": last["comm_seconds"],
        "seconds": last["seconds"],
        "metrics": dict(model.metrics),
        "report": json.loads(model.privacy.to_json()),
    }
    if run.history:
        found["epochs"] = by_epoch(history, rmse[-1])
    return found


def by_epoch(history: list[dict[str, Any]], last: float) -> list[dict[str, float]]:
    """Test RMSE by true labels after each epoch, from the history's, which is by noised ones.

    Noise that does not depend on the features adds a constant to the mean square: the difference
    of both after the last epoch. (Predictions differ by so little from epoch to epoch that what
    the noise happens to have in common with the differences is below 0.001.)
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


if __name__ == "__main__":
    main()
