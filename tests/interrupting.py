"""Statements that would not end in years, for tests that end them.

A program of its own, to be sent signals: python -m tests.interrupting. It reads the names of
stages, line by line. For each it says `ready` once the stage has been reached, `noted` for a Ctrl-C
that does not take effect at once, and in the end what has become of the statement, as a line of
JSON. What does not end is a query or a loop, so nothing depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar
from unittest import mock

import duckdb
import pyarrow as pa

import sqlfl
from sqlfl.base.interrupts import interruptible
from sqlfl.contract.schema import Client
from sqlfl.coordinator import preparation
from sqlfl.coordinator.join import mapping_query
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport

T = TypeVar("T")

FOREVER = "(SELECT sum(p.range * q.range) FROM range(100000000000) p, range(100000000000) q)"
TABLES = {
    "a": "CREATE TABLE t AS SELECT i AS id, 1 AS k, i % 7 AS x, i % 2 = 0 AS y FROM range({}) r(i)",
    "b": "CREATE TABLE u AS SELECT 1 AS k, i % 5 AS z FROM range({}) r(i)",
}
FROM = "FROM a.t t JOIN b.{} u ON t.k = u.k"
ENDLESS = "epochs = 1000000, tolerance = 0, algorithm = '{}'"
JOIN = "join"
"""Not a message, but the coordinator's own query."""
STAGES = {
    "snapshot": ("prepare", f"SELECT t.x, t.y, u.z {FROM.format('slow')}", "epochs = 3"),
    "join": (
        JOIN,
        f"SELECT t.x, t.y, u.z {FROM.format('u')}",
        "max_joined_rows = 2000000000, memory_limit = '100GB'",
    ),
    "rounds": ("residuals", f"SELECT t.x, t.y, u.z {FROM.format('u')}", ENDLESS.format("sgd")),
    "towers": (
        "residuals",
        f"SELECT t.x, t.y, u.z {FROM.format('u')}",
        ENDLESS.format("admm") + ", local_epochs = 1000000000",
    ),
    "into": ("prepare", f"SELECT t.x, t.y, u.z {FROM.format('slow')}", ""),
}
"""The message at which the stage begins, the query, and the options."""
ROWS = {"join": 15_000}
"""Of either table; the join has 225 million rows, some seconds and 2 GB."""


class Telling:
    """Says `ready` when a message of a kind is sent."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.kind = ""

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        if self.kind in {decode(data).kind for _, data in requests}:
            self.kind = ""
            print("ready", flush=True)
        return self.inner.exchange(requests)


def told(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """The coordinator's own query; it says so once it is running."""

    def begun() -> T:
        print("ready", flush=True)
        return work()

    return interruptible(begun, stop)


class Noted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print("noted", flush=True)


def main() -> None:
    log = logging.getLogger("sqlfl.base.interrupts")
    log.setLevel(logging.INFO)
    log.addHandler(Noted())
    for line in sys.stdin:
        with contextlib.ExitStack() as stack:
            run(line.strip(), stack)


def run(stage: str, stack: contextlib.ExitStack) -> None:
    parties = {name: stack.enter_context(duckdb.connect()) for name in TABLES}
    for name, con in parties.items():
        con.execute(TABLES[name].format(ROWS.get(stage, 60)))
    parties["b"].execute(f"CREATE VIEW slow AS SELECT k, z + {FOREVER} * 0 AS z FROM u")
    kind, query, options = STAGES[stage]
    telling: list[Telling] = []

    def wrap(inner: Transport) -> Telling:
        telling.append(Telling(inner))
        return telling[0]

    model = "mlp_classifier" if stage == "towers" else "logistic_regression"
    text = f"TRAIN MODEL m USING {model} TARGET y WITH ({options}) FROM ({query})"
    with sqlfl.Federation(progress=False, wrap=wrap) as fed:
        for name, con in parties.items():
            fed.attach(name, con)
        if stage == "into":
            fed.sql(text.replace("slow", "u").replace("WITH ()", "WITH (epochs = 2)"))
            text = f"PREDICT MODEL m ID (a.t.id) FROM ({query}) INTO a.made"
        telling[0].kind = kind
        with contextlib.ExitStack() as patches:
            if kind == JOIN:
                # inner joins like this one are made without a query
                of_query = mock.patch.object(preparation, "factorised_join", return_value=None)
                patches.enter_context(of_query)
                patches.enter_context(mock.patch.object(mapping_query, "interruptible", told))
            try:
                fed.sql(text)
                ended = "done"
            except KeyboardInterrupt:
                ended = "interrupted"
        tables = "SELECT table_name FROM duckdb_tables() ORDER BY 1"
        found = {
            "ended": ended,
            "models": [row[0] for row in fed.sql("SHOW MODELS").fetchall()],
            "epochs": sum(fed.model(m).history.num_rows for m in ("m",) if ended == "done"),
            "runs": [len(server._runs) for server in fed._servers.values()],
            "cursors": [len(server._cursors) for server in fed._servers.values()],
            "tables": [
                [row[0] for row in con.execute(tables).fetchall()] for con in parties.values()
            ],
        }
        rows = "SELECT x, id FROM a.t WHERE id < 40"
        fed.sql(f"TRAIN MODEL n USING linear_regression TARGET x FROM ({rows})")
        found["usable"] = fed.model("n").metrics["rows"]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
