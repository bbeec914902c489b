"""TablePuppet's comparison on MovieLens-1M: what each method sends until it is how good.

    python benchmarks/tablepuppet.py <folder with the Parquet files of MovieLens-1M>

Every run is kept as it ends in <work>/results.json, and not made again. `--render` makes tables and
figures of what is there. `--only linear/titles/RFL` are the runs whose name begins so.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import central
import numpy as np
import pyarrow.compute as pc
import tables
import vfl
from movielens import HELD_OUT, MovieLens
from results import Results, insert
from traffic import LINES, Traffic, beginning, epochs, of_audit

from sqlfl.federation.session import Federation

Options = dict[str, Any]
MODELS = {"linear": "linear_regression", "nn": "mlp_regressor"}
HIDDEN = [16]


@dataclass(frozen=True)
class Method:
    name: str
    place: str
    """'central', 'vfl' or 'rfl'."""
    algorithm: str
    clients: int = 1
    """Of each table, rfl."""
    linear: Options | None = field(default_factory=dict)
    """Options for the linear model; None: it is not for it."""
    nn: Options | None = field(default_factory=dict)


CONSENSUS = {"union": "consensus", "inner_rounds": 10}
LOCAL = {"local_epochs": 20, "learning_rate": 0.03}
# a client of the materialised join has 300 times the rows: one pass is more steps than these 20
PASS = {"local_epochs": 1, "learning_rate": 0.03, "batch_size": 4096}
METHODS = (
    Method("centralised SGD", "central", "sgd", 1, {"learning_rate": 0.3}, {"learning_rate": 0.01}),
    Method("VFL-SGD", "vfl", "sgd"),
    Method("VFL-ADMM", "vfl", "admm", 1, {}, PASS),
    Method("RFL-SGD-V", "rfl", "sgd"),
    Method("RFL-ADMM-V", "rfl", "admm", 1, {}, LOCAL),
    Method("L-BFGS, 1 client", "rfl", "lbfgs", 1, {}, None),
    Method("RFL-SGD", "rfl", "sgd", 2),
    Method("RFL-ADMM, exact", "rfl", "admm", 2, {}, None),
    Method("RFL-ADMM, consensus", "rfl", "admm", 2, CONSENSUS, LOCAL | {"inner_rounds": 10}),
    Method("L-BFGS, 2 clients", "rfl", "lbfgs", 2, {}, None),
)


@dataclass(frozen=True)
class Setting:
    """A model, and whether it has the titles."""

    model: str
    titles: bool

    @property
    def name(self) -> str:
        return f"{self.model}/{'titles' if self.titles else 'plain'}"

    def options(self, method: Method, own: argparse.Namespace) -> Options | None:
        found = method.linear if self.model == "linear" else method.nn
        if found is None:
            return None
        usual: Options = {"epochs": own.epochs}
        if method.algorithm == "sgd":
            usual["batch_size"] = own.batch
        return usual | found

    def statement(self, method: Method, options: Options) -> str:
        more = "2" if method.clients == 2 else ""
        given = options | {
            "algorithm": method.algorithm,
            "validation_fraction": HELD_OUT,
            "network": "us-uk",
        }
        written = ", ".join(f"{name} = {value!r}" for name, value in given.items())
        return f"""
            TRAIN MODEL m USING {MODELS[self.model]} TARGET rating WITH ({written})
            FROM (
              SELECT u.gender, u.age, u.occupation, m.year, m.genre,
                {"m.title, " if self.titles else ""}r.rating
              FROM shop.ratings r
              JOIN members{more}.users u USING (user_id)
              JOIN studio{more}.movies m USING (movie_id, genre)
            )"""


SETTINGS = tuple(Setting(model, titles) for model in MODELS for titles in (False, True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("movielens", type=Path)
    usual = Path(tempfile.gettempdir()) / "sqlfl-tablepuppet"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the ratings")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=10_000, help="joined rows of a batch of SGD")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="tables and figures, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    own = parser.parse_args()
    own.work.mkdir(parents=True, exist_ok=True)
    results = Results(own.work / "results.json")
    if not own.render:
        run_all(own, results)
    text = tables.render(results.found)
    print(text)
    if own.page is not None:
        insert(own.page, "tablepuppet", text)
    if own.figures is not None:
        import figures

        figures.draw(results.found, own.figures)


def run_all(own: argparse.Namespace, results: Results) -> None:
    data = MovieLens(own.movielens, own.work, own.fraction)
    data.prepare()
    joins = {titles: data.joined(titles=titles) for titles in (False, True)}
    results.add("data", about(joins[False].held_out))
    with data.federation() as fed:
        for setting in SETTINGS:
            joined = joins[setting.titles]
            if setting.name + "/optimum" not in results.found:
                results.add(f"{setting.name}/optimum", central.optimum(joined))
            for method in METHODS:
                name = f"{setting.name}/{method.name}"
                options = setting.options(method, own)
                done = name in results.found and not own.again
                if options is None or done or not name.startswith(own.only):
                    continue
                print(f"{name} ...", flush=True)
                found = run(fed, joined, setting, method, options, own)
                found |= {"options": options, "clients": method.clients, "place": method.place}
                found["passes"] = passes(setting, method, options)
                results.add(name, found | {"at": f"{dt.datetime.now():%Y-%m-%d %H:%M}"})
                print(f"{name}: test RMSE {found['epochs'][-1]['rmse']:.4f}", flush=True)


def run(
    fed: Federation,
    joined: Any,
    setting: Setting,
    method: Method,
    options: Options,
    own: argparse.Namespace,
) -> dict[str, Any]:
    hidden = HIDDEN if setting.model == "nn" else []
    if method.place == "central":
        rate = options["learning_rate"]
        return {"epochs": central.train(joined, hidden, own.epochs, own.batch, rate, seed=0)}
    if method.place == "vfl":
        if hidden:
            options = options | {"hidden": tuple(hidden), "activation": "relu"}
            options |= {"optimizer": "adam"} if method.algorithm == "sgd" else {}
        return {"epochs": vfl.train(joined, method.algorithm, options).rows}
    if hidden:
        options = options | {"hidden": hidden}
    fed.sql(setting.statement(method, options))
    try:
        return measured(fed)
    finally:
        fed.sql("DROP MODEL m")


def passes(setting: Setting, method: Method, options: Options) -> int:
    """Times that a client goes over its rows in an epoch: several where ADMM trains a tower."""
    if setting.model == "linear" or method.algorithm != "admm":
        return 1
    local, inner = int(options["local_epochs"]), int(options.get("inner_rounds", 1))
    return inner * -(-local // inner)


def measured(fed: Federation) -> dict[str, Any]:
    """History of the model m, and the traffic of its run since training began.

    Raises RuntimeError where the audit and the history do not agree about it.
    """
    model = fed.model("m")
    records = fed.audit().arrow()
    records = records.filter(pc.equal(records["run"], model.run)).sort_by("seq")
    exchanges = of_audit(records)
    first = beginning(exchanges)
    begun = records["at"][pc.index(records["kind"], "start").as_py()].as_py()
    history = model.history.to_pylist()
    ends = [row["rounds"] for row in history]
    mapped = Traffic.of(exchanges[:first])
    sums = epochs(exchanges[first:], [end - first for end in ends])
    waited = (begun - records["at"][0].as_py()).total_seconds()
    found = []
    for row, sum_ in zip(history, sums, strict=True):
        reckoned = mapped.seconds["us-uk"] + sum_["seconds"]["us-uk"]
        sent = mapped.bytes_up + sum_["bytes_up"], mapped.bytes_down + sum_["bytes_down"]
        if sent != (row["bytes_up"], row["bytes_down"]):
            raise RuntimeError(f"{sent} bytes in the audit, and in the history {row}")
        if not np.isclose(reckoned, row["comm_seconds"], rtol=1e-9):
            raise RuntimeError(f"{reckoned} s in the audit, and in the history {row}")
        found.append({
            "epoch": row["epoch"],
            "rmse": row["valid_metric"],
            "objective": row["train_loss"],
            "measured": row["seconds"] - waited,
            **sum_,
        })  # fmt: skip
    return {"epochs": found, "mapping": vars(mapped)}


def about(held_out: Any) -> dict[str, Any]:
    """What was measured, on what."""
    return {
        "train": int((~held_out).sum()),
        "test": int(held_out.sum()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, numpy {np.__version__}",
        "networks": {name: [line.latency, line.bandwidth] for name, line in LINES.items()},
    }


if __name__ == "__main__":
    main()
