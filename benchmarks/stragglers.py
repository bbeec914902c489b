"""What a party that is late costs, by the option `stragglers`: python benchmarks/stragglers.py

Four parties in this process, whose tables' columns are correlated; the steps of one take longer, as
its transport sleeps: either each of them, or now and then. Told are the seconds of the rounds until
the objective is within so much of the least one, for good, and the epochs that it took.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import pyarrow as pa

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import Residuals
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport

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
"""Of d: seconds by the number of its step."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--within", type=float, default=1e-3)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
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
    main()
