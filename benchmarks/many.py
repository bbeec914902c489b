"""Many parties: each in a process of its own over Flight with TLS, or all in this one.

python benchmarks/many.py --processes 50
python benchmarks/many.py --parties 500                 # of one UNION ALL
python benchmarks/many.py --parties 500 --algorithm lbfgs
python benchmarks/many.py --parties 500 --joined        # each branch joins tables of two of them
python benchmarks/many.py --simulated 500               # databases of one party
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
SMALL = {"threads": 1, "async_threads": 0}
"""Of a database in memory: its 8 threads for reading files have none to read."""
TABLE = f"""CREATE TABLE {{table}} AS SELECT i AS k, sin(i + {{n}}) AS x, cos(3 * i + {{n}}) AS z,
  2 * sin(i + {{n}}) + i % 3 AS y FROM range({ROWS}) r(i)"""
TRAIN = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y
  WITH (algorithm = '{algorithm}', epochs = 5, tolerance = 0, seed = 1) FROM ({query})"""


def told(what: str, fed: sqlfl.Federation, query: str, began: float, algorithm: str) -> None:
    """When parts of a statement had ended, and what this process takes."""
    ready, before = time.perf_counter(), resident()
    statement = TRAIN.format(query=query, algorithm=algorithm)
    plan = fed.explain(statement)
    planned = time.perf_counter()
    lines = str(plan).count("\n")
    printed = time.perf_counter()
    fed.sql(statement)
    trained = time.perf_counter()
    fed.sql(f"EVALUATE MODEL m FROM ({query})")
    evaluated = time.perf_counter()
    model = fed.model("m")
    ends = [row["seconds"] for row in model.history.to_pylist()]
    steps = max(1, len(ends) - 1)
    print(
        f"{what}, {algorithm}: {ready - began:.1f} s until all are there; planned in "
        f"{planned - ready:.2f} s, {lines} lines of EXPLAIN in {printed - planned:.2f} s; trained "
        f"in {trained - printed:.1f} s: to the first step {ends[0]:.2f} s, then "
        f"{(ends[-1] - ends[0]) / steps:.2f} s for each other; evaluated in "
        f"{evaluated - trained:.1f} s; {model.metrics['rows']:,} rows, loss "
        f"{model.metrics['loss']:.6g}; {before / 1e6:.0f} MB before, {peak() / 1e6:.0f} MB at most"
    )


def resident() -> float:
    """Bytes that this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096.0


def processes(number: int, algorithm: str) -> None:
    began = time.perf_counter()
    with TemporaryDirectory() as name, ExitStack() as stack:
        parties: dict[str, list[Path]] = {}
        for n in range(number):
            path = Path(name) / f"p{n}0.duckdb"
            with duckdb.connect(path) as con:
                con.execute(TABLE.format(table=f"t{n}", n=n))
            parties[f"p{n}"] = [path]
        fed = stack.enter_context(elsewhere(Path(name), parties))
        told(f"{number} processes", fed, union(number), began, algorithm)


def union(number: int) -> str:
    return " UNION ALL ".join(f"SELECT x, z, y FROM p{n}.t{n}" for n in range(number))


def joined(number: int) -> str:
    """A union whose branches join the tables of two parties: no two of them are one block."""
    pairs = ((n, (n + 1) % number) for n in range(number))
    return " UNION ALL ".join(
        f"SELECT a.x, b.z, a.y FROM p{n}.t{n} AS a JOIN p{m}.t{m} AS b ON a.k = b.k"
        for n, m in pairs
    )


def databases(number: int, stack: ExitStack, *, named: bool) -> list[duckdb.DuckDBPyConnection]:
    found = []
    for n in range(number):
        con = stack.enter_context(closing(duckdb.connect(config=SMALL)))
        con.execute(TABLE.format(table=f"t{n}" if named else "t", n=n))
        found.append(con)
    return found


def together(number: int, algorithm: str, query: str) -> None:
    began = time.perf_counter()
    with ExitStack() as stack:
        cons = databases(number, stack, named=True)
        fed = stack.enter_context(sqlfl.connect(progress=False))
        for n, con in enumerate(cons):
            fed.attach(f"p{n}", con)
        told(f"{number} parties in this process", fed, query, began, algorithm)


def simulated(number: int, algorithm: str) -> None:
    began = time.perf_counter()
    with ExitStack() as stack:
        cons = databases(number, stack, named=False)
        fed = stack.enter_context(sqlfl.connect(progress=False))
        fed.attach("p", cons)
        what = f"{number} databases of a party in this process"
        told(what, fed, "SELECT x, z, y FROM p.t", began, algorithm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--parties", type=int, default=0)
    parser.add_argument("--simulated", type=int, default=0)
    parser.add_argument("--joined", action="store_true")
    parser.add_argument("--algorithm", choices=("sgd", "lbfgs", "admm"), default="sgd")
    given = parser.parse_args()
    if given.processes:
        processes(given.processes, given.algorithm)
    if given.parties:
        query = joined(given.parties) if given.joined else union(given.parties)
        together(given.parties, given.algorithm, query)
    if given.simulated:
        simulated(given.simulated, given.algorithm)


if __name__ == "__main__":
    main()
