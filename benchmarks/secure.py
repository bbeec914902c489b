"""What sums in secret cost: of a million numbers at a client, and of a round of training.

- A client's draws and masks of so many numbers, beside four others, and their bytes: on one core.
- A round of sgd and lbfgs over a star whose tables are in several databases, with `union =
  'secure'` and without. Runs take turns, so that all see the same machine; medians.

    python benchmarks/secure.py [--numbers 1000000] [--rows 1000 100000] [--clients 2 5]
        [--repeats 5] [--epochs 20] [--page docs/performance.md]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from results import insert, table
from stars import Shape, star

from sqlfl.aggregation import packing
from sqlfl.aggregation.keys import KeyPair
from sqlfl.aggregation.masks import Masks
from sqlfl.aggregation.peers import Peers
from sqlfl.privacy.poisson_binomial.sampling import draw

BINS = (16, 64, 128)
PARTIES = 5
THETA = 0.25
ALGORITHMS = ("sgd", "lbfgs")
UNIONS = ("exact", "secure")


def main() -> None:
    parser = argparse.ArgumentParser(description="what sums in secret cost")
    parser.add_argument("--numbers", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    lines = masks(arguments.numbers, arguments.repeats)
    lines += ["", *rounds(arguments.rows, arguments.clients, arguments.repeats, arguments.epochs)]
    print("\n".join(lines))
    if arguments.page is not None:
        insert(arguments.page, "secure", "\n".join(lines))


# -- a client's numbers ----------------------------------------------------------------------------


def masks(count: int, repeats: int) -> list[str]:
    """A table: a row per number of bins."""
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
    """A table: a row per algorithm, joined rows and clients of each table."""
    rows = []
    for size, own, algorithm in product(sizes, clients, ALGORITHMS):
        found = seconds(Shape(size, clients=own, measures=3), algorithm, repeats, epochs)
        plain, secret = (1000 * found[union] for union in UNIONS)
        cells = [f"{plain:.2f}", f"{secret:.2f}", f"{secret / plain:.2f}"]
        rows.append([f"{algorithm}, {size:,} joined rows, {own} clients of each table", *cells])
    heads = ["an epoch", "plain, ms", "in secret, ms", "in secret / plain"]
    return table(heads, rows)


def seconds(shape: Shape, algorithm: str, repeats: int, epochs: int) -> Mapping[str, float]:
    """Of an epoch, all but the first: the median over epochs and runs."""
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


if __name__ == "__main__":
    main()
