"""A study of twelve statements over one join: each makes the join, or CREATE JOIN makes it once.

    python benchmarks/joins.py [--turns 5] [--tls]

The tables are the demo's: flights in three databases, weather, planes and airports. The parties are
in this process; with `--tls` also in processes of their own, over Flight with TLS. Both ways take
turns; seconds are medians, and bytes are those of all messages of a study, in both directions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from demo import QUERY
from remote import copied, databases, elsewhere
from results import table

import sqlfl

STUDY = (
    "CHECK TARGET late FROM {rows}",
    "TRAIN OR REPLACE MODEL plain USING logistic_regression TARGET late FROM {rows}",
    "TRAIN OR REPLACE MODEL firm USING logistic_regression TARGET late WITH (l2 = 0.01)"
    " FROM {rows}",
    "TRAIN OR REPLACE MODEL steps USING logistic_regression TARGET late"
    " WITH (algorithm = 'admm', epochs = 5) FROM {rows}",
    "EVALUATE MODEL plain FROM {rows}",
    "EVALUATE MODEL firm FROM {rows}",
    "METRICS OF MODEL plain FROM {rows}",
    "ROC OF MODEL plain FROM {rows}",
    "CONFUSION OF MODEL plain FROM {rows}",
    "CALIBRATION OF MODEL plain FROM {rows}",
    "IMPORTANCE OF MODEL plain FROM {rows}",
    "EVALUATE MODEL steps FROM {rows}",
)
Measured = tuple[float, int]


def study(fed: sqlfl.Federation, *, named: bool) -> Measured:
    """Seconds and bytes of the twelve statements; `named`: over a join that lasts."""
    before = traffic(fed)
    began = time.perf_counter()
    if named:
        fed.sql(f"CREATE JOIN departures AS ({QUERY})")
    rows = "departures" if named else f"({QUERY})"
    for statement in STUDY:
        fed.sql(statement.format(rows=rows))
    if named:
        fed.sql("DROP JOIN departures")
    return time.perf_counter() - began, traffic(fed) - before


def one(fed: sqlfl.Federation) -> Measured:
    """The same of one TRAIN alone."""
    before, began = traffic(fed), time.perf_counter()
    fed.sql(STUDY[1].format(rows=f"({QUERY})"))
    return time.perf_counter() - began, traffic(fed) - before


def traffic(fed: sqlfl.Federation) -> int:
    return int(pc.sum(fed.audit().arrow()["bytes"]).as_py() or 0)


@contextmanager
def federations(folder: Path, *, tls: bool) -> Iterator[dict[str, sqlfl.Federation]]:
    parties = databases(folder)
    with ExitStack() as stack:
        here = stack.enter_context(sqlfl.connect(progress=False))
        for party, own in parties.items():
            here.attach(party, [stack.enter_context(copied(path)) for path in own])
        found = {"one process": here}
        if tls:
            found["TLS"] = stack.enter_context(elsewhere(folder, parties))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tls", action="store_true", help="also over Flight with TLS")
    given = parser.parse_args()
    lines = []
    with (
        TemporaryDirectory() as name,
        federations(Path(name), tls=given.tls) as parties,
    ):
        for where, fed in parties.items():
            one(fed)
            turns = [
                (one(fed), study(fed, named=False), study(fed, named=True))
                for _ in range(given.turns)
            ]
            single, apart, shared = (
                (median(s for s, _ in runs), median(b for _, b in runs))
                for runs in zip(*turns, strict=True)
            )
            for what, (seconds, size) in (
                ("one TRAIN", single),
                ("twelve statements", apart),
                ("the same over CREATE JOIN", shared),
            ):
                lines.append(
                    [
                        f"{where}: {what}",
                        f"{seconds:.1f}",
                        f"{seconds / single[0]:.1f}",
                        f"{size / 1e6:.1f}",
                    ]
                )
    print("\n".join(table(["", "seconds", "times one TRAIN", "MB"], lines)))


if __name__ == "__main__":
    main()
