"""Many parties, and parties that are late.

    python benchmarks/parties.py many --parties 500 [--algorithm sgd] [--joined]
    python benchmarks/parties.py stragglers [--rows 5000] [--within 1e-3] [--times 3]

`many`: so many parties of 200 rows in this process, each with a database in memory, and a UNION ALL
over them; with `--joined` each branch joins the tables of two parties.

`stragglers`: the price of a party that is late, by the option `stragglers`. Four parties in this
process have tables with correlated columns. The steps of one take longer, as its transport sleeps:
in each step, or now and then. The output has the seconds of the rounds, and the epochs, until the
objective stays near the least one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from measuring import dispatch, peak

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import Residuals
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport

# -- many ------------------------------------------------------------------------------------------


ROWS = 200
SMALL = {"threads": 1, "async_threads": 0}
"""Threads of a database in memory, which has no files for its usual 8 to read."""
TABLE = f"""CREATE TABLE {{table}} AS SELECT i AS k, sin(i + {{n}}) AS x, cos(3 * i + {{n}}) AS z,
  2 * sin(i + {{n}}) + i % 3 AS y FROM range({ROWS}) r(i)"""
TRAIN_UNION = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y
  WITH (algorithm = '{algorithm}', epochs = 5, tolerance = 0, seed = 1) FROM ({query})"""


def report(what: str, fed: sqlfl.Federation, query: str, began: float, algorithm: str) -> None:
    """When parts of a statement had ended, and what this process takes."""
    ready, before = time.perf_counter(), resident()
    statement = TRAIN_UNION.format(query=query, algorithm=algorithm)
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


def union(number: int) -> str:
    return " UNION ALL ".join(f"SELECT x, z, y FROM p{n}.t{n}" for n in range(number))


def joined(number: int) -> str:
    """A union whose branches join the tables of two parties: no two of them are one block."""
    pairs = ((n, (n + 1) % number) for n in range(number))
    return " UNION ALL ".join(
        f"SELECT a.x, b.z, a.y FROM p{n}.t{n} AS a JOIN p{m}.t{m} AS b ON a.k = b.k"
        for n, m in pairs
    )


def together(number: int, algorithm: str, query: str) -> None:
    began = time.perf_counter()
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(progress=False))
        for n in range(number):
            con = stack.enter_context(closing(duckdb.connect(config=SMALL)))
            con.execute(TABLE.format(table=f"t{n}", n=n))
            fed.attach(f"p{n}", con)
        report(f"{number} parties in this process", fed, query, began, algorithm)


def many(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("parties.py many")
    parser.add_argument("--parties", type=int, default=500)
    parser.add_argument("--joined", action="store_true", help="branches that join two tables")
    parser.add_argument("--algorithm", choices=("sgd", "lbfgs", "admm"), default="sgd")
    given = parser.parse_args(arguments)
    query = joined(given.parties) if given.joined else union(given.parties)
    together(given.parties, given.algorithm, query)


# -- stragglers ------------------------------------------------------------------------------------


STEP = 0.02
"""Seconds of a step at every party."""
PARTIES = ("a", "b", "c", "d")
QUERY = """SELECT a.y, {} FROM a.t AS a JOIN b.t AS b ON a.k = b.k JOIN c.t AS c ON a.k = c.k
  JOIN d.t AS d ON a.k = d.k"""
COLUMNS = ", ".join(f"{p}.x{i} AS {p}{i}" for p in PARTIES for i in range(4))
TRAIN = "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET y WITH ({}) FROM ({})"
METHODS = {
    "sgd": "algorithm = 'sgd', epochs = 400",
    "sgd, batches": "algorithm = 'sgd', epochs = 40, batch_size = 500",
    "admm": "algorithm = 'admm', epochs = 400, tolerance = 0",
}
DELAYS: dict[str, Callable[[int], float]] = {
    "nobody is late": lambda step: 0.0,
    "3 × as long in each step": lambda step: 2.0 * STEP,
    "1 s in every 25th step": lambda step: 1.0 if step % 25 == 0 else 0.0,
}
"""Seconds that d is late, by the number of its step."""
WAITS = ("wait", "0.03 s")


class Sleeping:
    def __init__(self, inner: Transport, delay: Callable[[int], float]) -> None:
        self.inner, self._delay = inner, delay
        self.steps = 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        stepping = [c for c, data in requests if isinstance(decode(data), Residuals)]
        seconds = STEP if stepping else 0.0
        if any(client.party == "d" for client in stepping):
            self.steps += 1
            seconds += self._delay(self.steps)
        time.sleep(seconds)
        return self.inner.exchange(requests)


def databases(rows: int, seed: int) -> dict[str, duckdb.DuckDBPyConnection]:
    draw = np.random.default_rng(seed)
    common = draw.normal(size=(rows, 4))
    own = {p: 0.7 * common + 0.7 * draw.normal(size=(rows, 4)) for p in PARTIES}
    slope = draw.normal(size=16)
    y = np.hstack(list(own.values())) @ slope + 3.0 * draw.normal(size=rows) > 0.0
    found = {}
    for party, values in own.items():
        columns = {f"x{i}": values[:, i] for i in range(4)}
        found[party] = duckdb.connect()
        found[party].register("rows", pa.table({"k": np.arange(rows), **columns, "y": y}))
        found[party].execute("CREATE TABLE t AS FROM rows")
        found[party].unregister("rows")
    return found


def history(
    parties: dict[str, duckdb.DuckDBPyConnection],
    options: str,
    delay: Callable[[int], float] = lambda step: -STEP,
) -> pa.Table:
    with sqlfl.Federation(progress=False, wrap=lambda inner: Sleeping(inner, delay)) as fed:
        for party, con in parties.items():
            fed.attach(party, con)
        fed.sql(TRAIN.format(options, QUERY.format(COLUMNS)))
        found = fed.model("m").history
        assert isinstance(found, pa.Table)
        return found


def reached(found: pa.Table, least: float, within: float) -> tuple[float, int] | None:
    """Seconds and epochs after which it stays within so much of the least one; None if never."""
    losses = np.array(found.column("train_loss"))
    above = np.flatnonzero(losses > least * (1.0 + within))
    first = int(above[-1]) + 1 if len(above) else 0
    if first == len(losses):
        return None
    seconds = found.column("seconds")
    return seconds[first].as_py() - seconds[0].as_py(), first + 1


def stragglers(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("parties.py stragglers")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--within", type=float, default=1e-3)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args(arguments)
    parties = databases(given.rows, 1)
    least = history(parties, "algorithm = 'lbfgs'", lambda step: -STEP).column("train_loss")[-1]
    print(f"until the objective is within {given.within:g} of the least one; medians of "
          f"{given.times}, {STEP:g} s a step")  # fmt: skip
    for method, options in METHODS.items():
        for said, delay in DELAYS.items():
            cells = []
            for wait in WAITS:
                own = f"{options}, stragglers = '{wait}'"
                found = [
                    reached(history(parties, own, delay), least.as_py(), given.within)
                    for _ in range(given.times)
                ]
                there = [one for one in found if one is not None]
                cells.append("never" if len(there) < len(found) else _middle(there))
            print(f"{method}, {said}: " + "; ".join(map("{}: {}".format, WAITS, cells)), flush=True)


def _middle(found: Sequence[tuple[float, int]]) -> str:
    seconds, epochs = (statistics.median(one[i] for one in found) for i in (0, 1))
    return f"{seconds:.1f} s, {epochs:.0f} epochs"


if __name__ == "__main__":
    dispatch(__doc__, {"many": many, "stragglers": stragglers})
