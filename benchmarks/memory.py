"""Memory that a TRAIN takes: of each joined row, by method; and of one large join under a limit.

    python benchmarks/memory.py rows [--rows 5e6]
    python benchmarks/memory.py grid|many|star [--rows 1e8] [--limit 4GB] [--fan-out 1000]
        [--measures 0] [--parties 1GB] [--apart] [--folder where databases go]

`rows` trains on two joins of the same few table rows, each in a process of its own. One join has a
fifth of the other's joined rows. The result is the difference of the two peaks of resident memory,
divided by the difference in joined rows. So it excludes Python and the memory of the tables.

The others train on one generated join. Resident memory is that of parties and coordinator in one
process, or with --apart that of the coordinator alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from federated import train
from measuring import Failed, fresh
from workloads import Shape, Stored, grid, many_to_many, star, toy

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Transport

# -- parties in a process of their own -------------------------------------------------------------


_LENGTH = Struct("<Q")


@dataclass(frozen=True)
class Apart(Stored):
    """Stored task, as `Stored`, whose databases are open in another process."""

    @contextmanager
    def federation(self) -> Iterator[sqlfl.Federation]:
        here, there = socket.socketpair()
        whole = Stored(self.task, self.databases, self.memory_limit)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(there, whole), daemon=True)
        process.start()
        there.close()
        try:
            with closing(here), sqlfl.Federation(progress=False, wrap=lambda _: _Line(here)) as fed:
                for party, paths in self.databases.items():
                    fed.attach(party, [duckdb.connect() for _ in paths])
                yield fed
        finally:
            process.join()


class _Line:
    """A transport to the other process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        _send(self._line, [(str(client), data) for client, data in requests])
        return [data for _, data in _received(self._line)]


def _serve(line: socket.socket, stored: Stored) -> None:
    """Answer requests until the line is closed."""
    found: list[Transport] = []

    def seen(transport: Transport) -> Transport:
        found.append(transport)
        return transport

    with stored.federation(wrap=seen), suppress(EOFError):
        clients = {
            str(client): client
            for party, paths in stored.databases.items()
            for client in (Client(party, q) for q in range(len(paths)))
        }
        while True:
            requests = _received(line)
            answers = found[0].exchange([(clients[name], data) for name, data in requests])
            _send(line, [("", data) for data in answers])


def _send(line: socket.socket, parts: Sequence[tuple[str, pa.Buffer]]) -> None:
    described = json.dumps([(name, data.size) for name, data in parts]).encode()
    line.sendall(_LENGTH.pack(len(described)) + described)
    for _, data in parts:
        line.sendall(data)


def _received(line: socket.socket) -> list[tuple[str, pa.Buffer]]:
    """Raise EOFError if the line is closed."""
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size))
    described = json.loads(_read(line, length).to_pybytes())
    return [(name, _read(line, size)) for name, size in described]


def _read(line: socket.socket, size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    unread = memoryview(np.frombuffer(buffer, np.uint8))
    while unread:
        count = line.recv_into(unread)
        if not count:
            raise EOFError
        unread = unread[count:]
    return buffer


# -- measurements ----------------------------------------------------------------------------------


Options = Mapping[str, object]
MAKERS = {"grid": grid, "many": many_to_many, "star": star}
RUNS: Mapping[str, tuple[Options, ...]] = {
    "linear_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "lbfgs", "validation_fraction": 0.2},
        {"algorithm": "sgd", "learning_rate": 0.1},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "logistic_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "lbfgs", "validation_fraction": 0.2},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "softmax_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "sgd", "learning_rate": 0.1},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "mlp_classifier": (
        {"algorithm": "sgd", "batch_size": 10_000},
        {"algorithm": "sgd", "batch_size": 10_000, "head": "linear", "embedding": 4},
        {"algorithm": "admm"},
    ),
}
EPOCHS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["rows", *MAKERS])
    parser.add_argument("--rows", type=float, help="joined rows: 5e6, or 1e8")
    parser.add_argument("--limit", help="memory_limit of the statement")
    parser.add_argument("--fan-out", type=int, default=1000)
    parser.add_argument("--measures", type=int, default=0, help="features of the facts of a star")
    parser.add_argument("--parties", default="1GB", help="memory_limit of the parties' databases")
    parser.add_argument("--apart", action="store_true", help="parties in a process of their own")
    parser.add_argument("--kinds", nargs="+", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--folder", type=Path, help="where databases go meanwhile")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.what == "rows":
            _rows(round(args.rows or 5e6), args.kinds, Path(folder))
        else:
            shape = Shape(round(args.rows or 1e8), args.fan_out, measures=args.measures)
            _join(args, shape, Path(folder))


def _rows(large: int, kinds: list[str], folder: Path) -> None:
    print("| kind | options | bytes a joined row |\n|---|---|---:|")
    for kind in kinds:
        sizes = (large // 5, large)
        tables = {
            rows: Stored.of(grid(Shape(rows, 1000, kind=_drawn(kind))), folder / f"{kind}{rows}")
            for rows in sizes
        }
        for options in RUNS[kind]:
            peaks = []
            for rows, stored in tables.items():
                task = replace(stored.task, kind=kind)
                figures = fresh(run, replace(stored, task=task), {**options, "epochs": EPOCHS})
                peaks.append((figures["joined"], figures["peak"]))
                del rows
            (few, low), (many, high) = peaks
            written = ", ".join(f"{name} = {value}" for name, value in options.items())
            print(f"| {kind} | {written} | {(high - low) / (many - few):.0f} |", flush=True)


def _drawn(kind: str) -> str:
    """Return the kind of model whose labels the generators draw for `kind`."""
    return "softmax_regression" if kind == "mlp_classifier" else kind


def _join(args: argparse.Namespace, shape: Shape, folder: Path) -> None:
    kind = Apart if args.apart else Stored
    stored = kind.of(MAKERS[args.what](shape), folder / args.what)
    options: dict[str, object] = {"max_joined_rows": 2 * shape.rows, "tolerance": 1e-4}
    if args.limit is not None:
        options["memory_limit"] = args.limit
    try:
        figures = fresh(run, stored, options, args.parties)
    except Failed as failure:
        print(f"{stored.task.name}: {failure}")
        return
    print(f"{stored.task.name}: {', '.join(_told(figures))}")


def run(stored: Stored, options: Options, parties: str | None = None) -> dict[str, Any]:
    """Run one statement, after one on a toy table. Return the measurements of `train`."""
    with tempfile.TemporaryDirectory() as folder:
        first = Stored.of(toy("linear_regression"), Path(folder) / "toy")
        train(first, {"epochs": EPOCHS})
    return train(replace(stored, memory_limit=parties), options)


def _told(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"{figures['joined']:,} joined rows"
    yield f"{figures['seconds']:.0f} s, {figures['cpu']:.0f} of the processor"
    yield f"{figures['epochs']} epochs"
    yield f"resident memory at most {figures['peak'] / 2**30:.2f} GiB"
    yield f"{figures['before'] / 2**30:.2f} GiB of it before"
    for phase, seconds in figures["phases"].items():
        yield f"{phase} {seconds:.1f}"


if __name__ == "__main__":
    main()
