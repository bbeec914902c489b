"""Many parties: each in a process of its own over Flight with TLS, or all databases in this one.

python benchmarks/many.py --processes 50
python benchmarks/many.py --simulated 500
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from measuring import peak
from remote import elsewhere

import sqlfl

ROWS = 200
TABLE = f"""CREATE TABLE {{table}} AS SELECT sin(i + {{n}}) AS x, cos(3 * i + {{n}}) AS z,
  2 * sin(i + {{n}}) + i % 3 AS y FROM range({ROWS}) r(i)"""
TRAIN = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y
  WITH (algorithm = 'sgd', epochs = 5, tolerance = 0, seed = 1) FROM ({query})"""


def told(what: str, fed: sqlfl.Federation, query: str, began: float) -> None:
    ready = time.perf_counter()
    fed.sql(TRAIN.format(query=query))
    trained = time.perf_counter()
    model = fed.model("m")
    print(
        f"{what}: {ready - began:.1f} s until all are there, {trained - ready:.1f} s to train over "
        f"{model.metrics['rows']:,} rows, loss {model.metrics['loss']:.6g}, {peak() / 1e6:.0f} MB "
        "here"
    )


def processes(number: int) -> None:
    began = time.perf_counter()
    with TemporaryDirectory() as name, ExitStack() as stack:
        parties: dict[str, list[Path]] = {}
        for n in range(number):
            path = Path(name) / f"p{n}0.duckdb"
            with duckdb.connect(path) as con:
                con.execute(TABLE.format(table=f"t{n}", n=n))
            parties[f"p{n}"] = [path]
        fed = stack.enter_context(elsewhere(Path(name), parties))
        query = " UNION ALL ".join(f"SELECT x, z, y FROM p{n}.t{n}" for n in range(number))
        told(f"{number} processes", fed, query, began)


def simulated(number: int) -> None:
    """The databases of one party: a union of so many parties is nested too deeply for a query."""
    began = time.perf_counter()
    with ExitStack() as stack:
        cons = []
        for n in range(number):
            con = duckdb.connect(config={"threads": 1})
            cons.append(stack.enter_context(closing(con)))
            con.execute(TABLE.format(table="t", n=n))
        fed = stack.enter_context(sqlfl.connect(progress=False))
        fed.attach("p", cons)
        told(f"{number} databases in this process", fed, "SELECT x, z, y FROM p.t", began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--simulated", type=int, default=0)
    given = parser.parse_args()
    if given.processes:
        processes(given.processes)
    if given.simulated:
        simulated(given.simulated)


if __name__ == "__main__":
    main()
