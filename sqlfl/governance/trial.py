"""Queries of an analyst elsewhere run in a process of their own first, in bounded memory and time.

No interrupt ends one call of a function in DuckDB, and `memory_limit` does not count what such a
call allocates. So a remote party first lets a worker process evaluate the fragments of a run, over
the columns that they name: what the worker cannot do within the policy's `memory` and `seconds`
never reaches the party's own process. A SELECT that is to be described is bound there alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import IO, Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error, PolicyError
from sqlfl.base.interrupts import Stopped
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.options.policies import TrainingPolicy, written_size
from sqlfl.udfs import sql
from sqlfl.udfs.describe import use

_PLAIN = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
    "UBIGINT", "FLOAT", "DOUBLE", "DATE", "VARCHAR", "BLOB", "TIMESTAMP",
)  # fmt: skip
"""Types that Arrow carries as they are; others travel as text."""
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
MAX_WAITING = 4
PATIENCE = 1.0
"""Seconds for a process to end that was killed."""
LESS = "ask for fewer rows or columns, or for shorter texts and lists; or ask its owner"


class TrialWorkers:
    """Worker processes of a party, which wait for requests: it takes a while to load DuckDB."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """Return a worker for one request; the caller gives it back, or ends it."""
        with self._lock:
            while self._waiting:
                process = self._waiting.pop()
                if process.poll() is None:
                    return process
                end(process)
            return _begun()

    def give_back(self, process: subprocess.Popen[bytes]) -> None:
        """Keep a worker that has answered: nothing of the request is left in it."""
        with self._lock:
            if not self._closed and len(self._waiting) < MAX_WAITING:
                self._waiting.append(process)
                return
        end(process)

    def warm(self) -> None:
        """Begin a worker, so that the first request does not wait for it."""
        with self._lock:
            if not self._waiting and not self._closed:
                self._waiting.append(_begun())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for process in waiting:
            end(process)


@dataclass(frozen=True)
class Tried:
    """Texts for a worker to evaluate. columns : by table, those that the texts name."""

    place: tuple[str, str]
    texts: tuple[str, ...]
    columns: Mapping[Table, tuple[str, ...]]
    run: bool
    """Evaluate the texts, and not only bind them."""


class Trial:
    """The workers of one analyst."""

    def __init__(self, workers: TrialWorkers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], sql.Connection] = {}
        self._stopped: set[subprocess.Popen[bytes]] = set()

    @property
    def running(self) -> tuple[int, ...]:
        """Numbers of the processes that work."""
        with self._lock:
            return tuple(process.pid for process in self._running)

    def interrupt(self) -> None:
        """End what runs; called from another thread."""
        with self._lock:
            for process, cursor in self._running.items():
                self._stopped.add(process)
                with suppress(OSError, duckdb.ConnectionException):
                    process.kill()
                    cursor.interrupt()

    def describe(
        self, con: sql.Connection, tried: Tried, rules: TrainingPolicy
    ) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Return names and types of the columns of each text, which is not run. Raises Error as
        `check`, and where a text has a constant that cannot be."""
        reply = self._reply(con, tried, rules)
        if reply.get("failure") == "query":
            # made of what the analyst has written: there are no rows
            raise Error(f"its database cannot bind what it was asked: {reply['text']}")
        return tuple(tuple((name, kind) for name, kind in each) for each in reply["columns"])

    def check(self, con: sql.Connection, tried: Tried, rules: TrainingPolicy) -> None:
        """Raise PolicyError where a worker cannot evaluate the texts within the rules, Error where
        it was interrupted, or cannot bind them. What fails on a value is left to the party, which
        says where that is."""
        self._reply(con, tried, rules)

    def _reply(self, con: sql.Connection, tried: Tried, rules: TrainingPolicy) -> dict[str, Any]:
        process = self._workers.take()
        with closing(sql.cursor(con)) as cursor:
            with self._lock:
                self._running[process] = cursor
            reply = None
            try:
                reply = _asked(process, cursor, tried, rules)
            finally:
                with self._lock:
                    del self._running[process]
                    stopped = process in self._stopped
                    self._stopped.discard(process)
                if reply is None or "failure" in reply or stopped:
                    end(process)
                else:
                    self._workers.give_back(process)
        failure = "memory" if reply is None else reply.get("failure")
        if reply is None and stopped:
            raise Stopped("its work was interrupted")
        if failure == "memory":
            said = f"its worker process needs more memory than it has{_ended(process)}"
            if rules.memory is not None:
                rule = has(f"memory = '{written_size(rules.memory)}'")
                said = f"{rule}, and evaluating the query takes more{_ended(process)}"
            raise PolicyError(said, hint=LESS)
        if failure == "load":
            raise Error("its worker process cannot hold a column of the type that it is of")
        if failure == "bind":
            raise Error(
                "its database cannot bind what it was asked, though all of it is granted: an "
                "expression does not fit the types of its columns"
            )
        assert reply is not None
        return reply


def _begun() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(folder for folder in sys.path if folder)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "sqlfl.governance.trial_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as error:
        raise Error(f"no worker process can be started: {error}") from error


def end(process: subprocess.Popen[bytes]) -> None:
    """End a worker, whatever it does."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


def _ended(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    known = code is not None and code < 0 and -code != signal.SIGKILL
    return f" (it was ended by {signal.Signals(-code).name})" if known else ""


def _asked(
    process: subprocess.Popen[bytes], cursor: sql.Connection, tried: Tried, rules: TrainingPolicy
) -> dict[str, Any] | None:
    """Return the worker's reply; None if the worker ended before."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(OSError):  # where it has ended, it may have said why
            _write(process.stdin, cursor, tried, rules)
        line = process.stdout.readline()
    except (OSError, duckdb.Error):  # of a process that has ended, too
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            return None
        raise
    reply: dict[str, Any] | None = json.loads(line) if line else None
    return reply


def _write(stream: IO[bytes], cursor: sql.Connection, tried: Tried, rules: TrainingPolicy) -> None:
    use(cursor, tried.place)
    kinds = {
        table: sql.types(cursor, _rows_of(table, names, {}))
        for table, names in tried.columns.items()
    }
    ((threads, zone, limit, *values),) = sql.fetch(cursor, _SETTINGS)
    request = {
        "place": tried.place,
        "places": sorted({tried.place, *(table[:2] for table in tried.columns)}),
        "tables": [
            {"path": table, "columns": list(kinds[table].items())} for table in tried.columns
        ],
        "texts": tried.texts,
        "run": tried.run,
        "memory": rules.memory,
        "limit": limit,
        "settings": {name: str(value) for name, value in zip(_CARRIED, values, strict=True)},
        "threads": min(int(threads), rules.threads or int(threads)),
        "zone": zone,
    }
    stream.write(json.dumps(request).encode() + b"\n")
    for table, names in tried.columns.items():
        query = _rows_of(table, names, kinds[table], empty=not tried.run)
        with sql.batches(cursor, query) as reader, pa.ipc.new_stream(stream, reader.schema) as out:
            for batch in reader:
                out.write_batch(batch)
    stream.flush()


def _rows_of(
    table: Table, names: Sequence[str], kinds: Mapping[str, str], *, empty: bool = False
) -> exp.Select:
    columns: list[exp.Expr] = []
    for name in names:
        value: exp.Expr = sql.column(name, "t")
        if name in kinds and not _is_plain(kinds[name]):
            value = sql.cast(value, "VARCHAR")
        columns.append(sql.named(value, name))
    catalog, schema, name = table
    source = exp.table_(name, db=schema, catalog=catalog, quoted=True, alias="t")
    query = sql.select(source, columns)
    return query.limit(0) if empty else query


def _is_plain(kind: str) -> bool:
    return kind.removesuffix("[]") in _PLAIN


def named_columns(reads: Iterable[ScopeColumn]) -> dict[Table, tuple[str, ...]]:
    """Columns by their tables."""
    found: dict[Table, set[str]] = {}
    for column in reads:
        found.setdefault(column.table, set()).add(column.name)
    return {table: tuple(sorted(names)) for table, names in sorted(found.items())}


_CARRIED = (
    "default_collation", "ieee_floating_point_ops", "integer_division", "old_implicit_casting",
)  # fmt: skip
"""Settings by which an expression means something else."""
_READ = ("threads", "TimeZone", "memory_limit", *_CARRIED)
_SETTINGS = sql.constant(
    sql.query("SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in _READ))
)
