"""The price of sums in secret, and of checks under a policy.

    python benchmarks/protection.py sums [--numbers 1000000] [--rows 1000 100000]
        [--clients 2 5] [--repeats 5] [--epochs 20] [--page docs/performance.md]
    python benchmarks/protection.py policies [--rows 200000] [--turns 21]

`sums` measures the draws and masks of one client for `--numbers` numbers, with four other clients,
and their bytes, on one core. It also measures a round of sgd and of lbfgs over a star whose tables
are in several databases, with `union = 'secure'` and without. Runs take turns, so that the
machine's state affects all alike; the results are medians.

`policies` measures statements under a policy and the same statements without one, in turn. The
results are medians. For TRAIN and EVALUATE they are the milliseconds without a policy, the
milliseconds that a policy adds, and the ratio of both, by the clock and of the processor. The other
results are the price of an epoch, and the time in which a party sees that it has no policy.

At a remote party a worker process evaluates the query first, and a statement takes that much
longer. The output has this time for a worker that was started ahead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
from measuring import dispatch, insert, table
from workloads import Shape, star

import sqlfl
from sqlfl.aggregation import packing
from sqlfl.aggregation.keys import KeyPair
from sqlfl.aggregation.masks import Masks
from sqlfl.aggregation.peers import Peers
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from sqlfl.governance.trial import Trial, TrialWorkers, Tried
from sqlfl.options.policies import TrainingPolicy
from sqlfl.privacy.poisson_binomial.sampling import draw

# -- sums in secret --------------------------------------------------------------------------------


BINS = (16, 64, 128)
PARTIES = 5
THETA = 0.25
ALGORITHMS = ("sgd", "lbfgs")
UNIONS = ("exact", "secure")


def sums(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("protection.py sums")
    parser.add_argument("--numbers", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args(arguments)
    numbers = masks(given.numbers, given.repeats)
    epochs = rounds(given.rows, given.clients, given.repeats, given.epochs)
    print("\n".join([*numbers, "", *epochs]))
    if given.page is not None:
        insert(given.page, "secure", "\n".join(_with(epochs, f"lbfgs, {max(given.rows):,} ")))


def _with(lines: Sequence[str], text: str) -> list[str]:
    """Return the table's heads, and the rows that begin with this text, for the page."""
    return [*lines[:2], *(line for line in lines[2:] if line.startswith(f"| {text}"))]


# -- a client's numbers ----------------------------------------------------------------------------


def masks(count: int, repeats: int) -> list[str]:
    """Return a table with a row per number of bins."""
    values = np.random.default_rng(0).uniform(-1.0, 1.0, count)
    pairs = [KeyPair() for _ in range(PARTIES)]
    peers = Peers(tuple(range(PARTIES)), tuple(pair.public for pair in pairs))
    own = Masks(pairs[0], peers, "benchmark")
    taken: dict[int, list[list[float]]] = {bins: [] for bins in BINS}
    sizes = {}
    for repeat in range(repeats + 1):
        for place, bins in enumerate(BINS):
            width = packing.width(PARTIES, bins)
            times = [time.perf_counter()]
            drawn = draw(values, 1.0, bins, THETA).astype(np.uint32)
            times.append(time.perf_counter())
            masked = own.mask(drawn, repeat * len(BINS) + place, width)
            times.append(time.perf_counter())
            sizes[bins] = width, len(packing.pack(masked, width))
            times.append(time.perf_counter())
            if repeat > 0:  # the first one warms caches
                taken[bins].append([after - before for before, after in pairwise(times)])
    heads = ["bins", "draw, s", "mask, s", "pack, s", "all, s", "bits a number", "MB"]
    rows = []
    for bins, found in taken.items():
        parts = [statistics.median(own) for own in zip(*found, strict=True)]
        times = [f"{seconds:.3f}" for seconds in (*parts, sum(parts))]
        width, size = sizes[bins]
        rows.append([f"b = {bins}", *times, str(width), f"{size / 1e6:.2f}"])
    return table(heads, rows)


# -- rounds ----------------------------------------------------------------------------------------


def rounds(sizes: Sequence[int], clients: Sequence[int], repeats: int, epochs: int) -> list[str]:
    """Return a table with a row per algorithm, joined rows and clients of each table."""
    rows = []
    for size, own, algorithm in product(sizes, clients, ALGORITHMS):
        found = seconds(Shape(size, clients=own, measures=3), algorithm, repeats, epochs)
        plain, secret = (1000 * found[union] for union in UNIONS)
        cells = [f"{plain:.2f}", f"{secret:.2f}", f"{secret / plain:.2f}"]
        rows.append([f"{algorithm}, {size:,} joined rows, {own} clients of each table", *cells])
    heads = ["an epoch", "plain, ms", "in secret, ms", "in secret / plain"]
    return table(heads, rows)


def seconds(shape: Shape, algorithm: str, repeats: int, epochs: int) -> Mapping[str, float]:
    """Return the seconds of an epoch except the first: the median over epochs and runs."""
    task = star(shape)
    taken: dict[str, list[float]] = {union: [] for union in UNIONS}
    with task.federation() as fed:
        for _ in range(repeats):
            for union in UNIONS:
                statement = task.statement(
                    algorithm=algorithm, union=union, epochs=epochs, tolerance=0.0
                )
                fed.sql(statement.replace("TRAIN MODEL", "TRAIN OR REPLACE MODEL", 1))
                ends = fed.model("m").history["seconds"].to_pylist()
                taken[union] += [after - before for before, after in pairwise(ends)]
    return {union: statistics.median(found) for union, found in taken.items()}


# -- policies --------------------------------------------------------------------------------------


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
        databases = {}
        for party, table, text in (("clinic", "patients", PATIENTS), ("lab", "tests", TESTS)):
            con = databases[party] = stack.enter_context(closing(duckdb.connect()))
            con.execute(text.format(rows=rows))
            if ruled:
                sqlfl.owner(con).sql(GRANTS.format(table=table))
        # closed before the databases, which take the parties' last messages
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        for party, con in databases.items():
            fed.attach(party, con)
        yield fed


def seconds_of(fed: sqlfl.Federation, text: str) -> tuple[float, float]:
    """Return the seconds of a statement by the clock, and of the processor."""
    began = time.perf_counter(), time.process_time()
    fed.sql(text)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def policies(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("protection.py policies")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=21)
    given = parser.parse_args(arguments)
    for rows in (1_000, given.rows):
        with federation(rows, ruled=False) as free, federation(rows, ruled=True) as ruled:
            for text in (TRAIN, f"EVALUATE MODEL m FROM ({QUERY})"):
                pairs = [
                    (seconds_of(free, text), seconds_of(ruled, text))
                    for _ in range(given.turns + 2)
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
    """Return the seconds of each trial of a query over the patients."""
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
    """Return the seconds of each epoch of one training."""
    fed.sql(TRAIN)
    times = fed.model("m").history.column("seconds").to_pylist()
    return [b - a for a, b in pairwise(times)]


if __name__ == "__main__":
    dispatch(__doc__, {"sums": sums, "policies": policies})
