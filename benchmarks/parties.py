"""Many parties, and parties that are late.

    python benchmarks/parties.py many --parties 500 [--algorithm sgd] [--joined]
    python benchmarks/parties.py stragglers [--rows 5000] [--within 1e-3] [--times 3]

`many`: `--parties` parties of 200 rows in this process, each with a database in memory, and a UNION
ALL over them. With `--joined` each branch joins the tables of two parties.

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


def report(label: str, fed: sqlfl.Federation, query: str, began: float, algorithm: str) -> None:
    """Print the time at which each part of a statement ended, and the memory of this process."""
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
        f"{label}, {algorithm}: {ready - began:.1f} s until all are there; planned in "
        f"{planned - ready:.2f} s, {lines} lines of EXPLAIN in {printed - planned:.2f} s; trained "
        f"in {trained - printed:.1f} s: to the first step {ends[0]:.2f} s, then "
        f"{(ends[-1] - ends[0]) / steps:.2f} s for each other; evaluated in "
        f"{evaluated - trained:.1f} s; {model.metrics['rows']:,} rows, loss "
        f"{model.metrics['loss']:.6g}; {before / 1e6:.0f} MB before, {peak() / 1e6:.0f} MB at most"
    )


def resident() -> float:
    """Return the bytes that this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096.0


def union(number: int) -> str:
    return " UNION ALL ".join(f"SELECT x, z, y FROM p{n}.t{n}" for n in range(number))


def joined(number: int) -> str:
    """Return a union whose branches each join the tables of two parties; no two form one block."""
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
    args = parser.parse_args(arguments)
    query = joined(args.parties) if args.joined else union(args.parties)
    together(args.parties, args.algorithm, query)


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
    values_by_party = {p: 0.7 * common + 0.7 * draw.normal(size=(rows, 4)) for p in PARTIES}
    slope = draw.normal(size=16)
    y = np.hstack(list(values_by_party.values())) @ slope + 3.0 * draw.normal(size=rows) > 0.0
    connections = {}
    for party, values in values_by_party.items():
        columns = {f"x{i}": values[:, i] for i in range(4)}
        connections[party] = duckdb.connect()
        connections[party].register("rows", pa.table({"k": np.arange(rows), **columns, "y": y}))
        connections[party].execute("CREATE TABLE t AS FROM rows")
        connections[party].unregister("rows")
    return connections


def history(
    parties: dict[str, duckdb.DuckDBPyConnection],
    options: str,
    delay: Callable[[int], float] = lambda step: -STEP,
) -> pa.Table:
    with sqlfl.Federation(progress=False, wrap=lambda inner: Sleeping(inner, delay)) as fed:
        for party, con in parties.items():
            fed.attach(party, con)
        fed.sql(TRAIN.format(options, QUERY.format(COLUMNS)))
        epochs = fed.model("m").history
        assert isinstance(epochs, pa.Table)
        return epochs


def reached(epochs: pa.Table, least: float, within: float) -> tuple[float, int] | None:
    """Return the seconds and epochs after which the loss stays within `within` of the least one;
    None if it never does."""
    losses = np.array(epochs.column("train_loss"))
    above = np.flatnonzero(losses > least * (1.0 + within))
    first = int(above[-1]) + 1 if len(above) else 0
    if first == len(losses):
        return None
    seconds = epochs.column("seconds")
    return seconds[first].as_py() - seconds[0].as_py(), first + 1


def stragglers(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("parties.py stragglers")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--within", type=float, default=1e-3)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args(arguments)
    parties = databases(args.rows, 1)
    least = history(parties, "algorithm = 'lbfgs'", lambda step: -STEP).column("train_loss")[-1]
    print(f"until the objective is within {args.within:g} of the least one; medians of "
          f"{args.times}, {STEP:g} s a step")  # fmt: skip
    for method, options in METHODS.items():
        for delay_name, delay in DELAYS.items():
            cells = []
            for wait in WAITS:
                with_wait = f"{options}, stragglers = '{wait}'"
                results = [
                    reached(history(parties, with_wait, delay), least.as_py(), args.within)
                    for _ in range(args.times)
                ]
                reached_runs = [one for one in results if one is not None]
                cells.append("never" if len(reached_runs) < len(results) else _middle(reached_runs))
            print(
                f"{method}, {delay_name}: " + "; ".join(map("{}: {}".format, WAITS, cells)),
                flush=True,
            )


def _middle(runs: Sequence[tuple[float, int]]) -> str:
    seconds, epochs = (statistics.median(one[i] for one in runs) for i in (0, 1))
    return f"{seconds:.1f} s, {epochs:.0f} epochs"


if __name__ == "__main__":
    dispatch(__doc__, {"many": many, "stragglers": stragglers})
