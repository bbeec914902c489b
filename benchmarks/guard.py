"""What checking costs a party: statements under a policy beside the same without one, in turn.

python benchmarks/guard.py [--rows 1000000] [--turns 21]

Results are medians: milliseconds of a TRAIN without a policy, what a policy adds, and how many
times as long the statement takes with it, by the clock and of the processor; likewise of an
EVALUATE; what a policy adds to an epoch, and the time in which a party finds that there is none.
Of a remote party also how long a worker process takes that evaluates the query first, where one is
begun ahead: a statement there takes as much longer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from statistics import median

import duckdb

import sqlfl
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from sqlfl.governance.trial import Trial, TrialWorkers, Tried
from sqlfl.options.policies import TrainingPolicy

PATIENTS = """CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, sin(i) AS bmi,
  'w' || i % 9 AS ward, i % 3 + sin(i * i) AS days FROM range({rows}) AS r(i)"""
TESTS = (
    "CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp, i % 7 AS day FROM range({rows}) AS r(i)"
)
GRANTS = """CREATE TRAINING POLICY p;
GRANT TRAIN (*), JOIN (pid), LABEL (*), PREDICT ON {table} TO 'acme' UNDER p"""
QUERY = """SELECT p.age, p.bmi, p.ward, t.crp, t.day, p.days
  FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"""
TRAIN = f"""TRAIN OR REPLACE MODEL m USING linear_regression TARGET days
  WITH (algorithm = 'sgd', epochs = 20, tolerance = 0) FROM ({QUERY})"""


@contextmanager
def federation(rows: int, *, ruled: bool) -> Iterator[sqlfl.Federation]:
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        for party, table, text in (("clinic", "patients", PATIENTS), ("lab", "tests", TESTS)):
            con = stack.enter_context(closing(duckdb.connect()))
            con.execute(text.format(rows=rows))
            if ruled:
                sqlfl.owner(con).sql(GRANTS.format(table=table))
            fed.attach(party, con)
        yield fed


def seconds(fed: sqlfl.Federation, text: str) -> tuple[float, float]:
    """Return the seconds of a statement by the clock, and of the processor."""
    began = time.perf_counter(), time.process_time()
    fed.sql(text)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=21)
    given = parser.parse_args()
    for rows in (1_000, given.rows):
        with federation(rows, ruled=False) as free, federation(rows, ruled=True) as ruled:
            for text in (TRAIN, f"EVALUATE MODEL m FROM ({QUERY})"):
                pairs = [
                    (seconds(free, text), seconds(ruled, text)) for _ in range(given.turns + 2)
                ][2:]
                plain = 1e3 * median(a[0] for a, _ in pairs)
                added = 1e3 * median(b[0] - a[0] for a, b in pairs)
                clock, processor = (median(b[n] / a[n] for a, b in pairs) for n in (0, 1))
                print(
                    f"{rows:>9,} rows, {text.split()[0]:8}: {plain:8.1f} ms, and {added:+.1f} ms:"
                    f" times {clock:.2f}, of the processor {processor:.2f}"
                )
            epochs = [(median(_epochs(free)), median(_epochs(ruled))) for _ in range(given.turns)]
            ratio = median(b / a for a, b in epochs)
            print(f"{rows:>9,} rows, an epoch: {1e3 * epochs[0][0]:.2f} ms, times {ratio:.3f}")
        for run in (True, False):
            spent = [1e3 * own for own in _trials(rows, given.turns + 1, run=run)][1:]
            what = "evaluates" if run else "binds"
            print(f"{rows:>9,} rows, a worker {what} the query in {median(spent):.1f} ms")
    with closing(duckdb.connect()) as con:
        con.execute(PATIENTS.format(rows=10))
        governance = Governance(Records(con, "memory"))
        spent = []
        for _ in range(1000):
            began = time.perf_counter()
            governance.ruling("acme")
            spent.append(time.perf_counter() - began)
        print(f"no policy is found in {1e3 * median(spent):.3f} ms")


def _trials(rows: int, turns: int, *, run: bool) -> Iterator[float]:
    """Seconds of each trial of a query over the patients."""
    text = "SELECT p.age, p.bmi, p.ward, p.days, p.pid FROM patients AS p"
    columns = {("memory", "main", "patients"): ("age", "bmi", "days", "pid", "ward")}
    tried = Tried(("memory", "main"), (text,), columns, run)
    with closing(duckdb.connect()) as con, closing(TrialWorkers()) as workers:
        con.execute(PATIENTS.format(rows=rows))
        workers.warm()
        for _ in range(turns):
            began = time.perf_counter()
            Trial(workers).check(con, tried, TrainingPolicy(memory=1 << 30))
            yield time.perf_counter() - began


def _epochs(fed: sqlfl.Federation) -> list[float]:
    """Seconds of each epoch of one training."""
    fed.sql(TRAIN)
    times = fed.model("m").history.column("seconds").to_pylist()
    return [b - a for a, b in pairwise(times)]


if __name__ == "__main__":
    main()
