"""A worker process that evaluates queries of one request: `python -m sqlfl.guard.trial_worker`.

It reads one request from its input, a line of JSON and a stream of Arrow per table, and writes one
line of JSON. Its address space is bounded while queries run; who began it ends it in time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import IO, Any

import duckdb
import pyarrow as pa

PLAIN_SIZE = 64 << 20
"""Bytes beside the policy's memory: stacks of threads, and what the allocator keeps."""


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def main() -> None:
    source, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    line = source.readline()
    if not line:
        return  # a spare that was not needed
    replies.write(json.dumps(answered(json.loads(line), source)) + "\n")
    replies.flush()


def answered(request: dict[str, Any], source: IO[bytes]) -> dict[str, Any]:
    """What became of the queries: nothing, `columns` of one that is bound, or the `failure`."""
    con = duckdb.connect(":memory:", config={"threads": request["threads"]})
    con.execute("SET temp_directory = ''")
    if request["zone"]:
        con.execute("SET TimeZone = '{}'".format(request["zone"].replace("'", "''")))
    try:
        for place in request["places"]:
            _make_place(con, *place)
        for table in request["tables"]:
            _load(con, table, source)
    except duckdb.Error:
        return {"failure": "load"}
    catalog, schema = request["place"]
    con.execute(f"USE {quoted(catalog, schema)}")
    con.execute("SET enable_external_access = false")
    if request["memory"] is not None:
        ((held,),) = con.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        memory = request["memory"] + int(held)
        con.execute(f"SET memory_limit = '{memory}B'")
        _bound_address_space(request["memory"])
    try:
        if not request["run"]:
            (text,) = request["texts"]
            rows = con.execute(f"DESCRIBE {text}").fetchall()
            return {"columns": [row[:2] for row in rows]}
        for text in request["texts"]:
            _evaluate(con, text)
        return {}
    except (MemoryError, pa.ArrowMemoryError, duckdb.OutOfMemoryException):
        return {"failure": "memory"}
    except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
        return {"failure": "bind"}
    except duckdb.Error as error:
        out = any(said in str(error) for said in ("bad_alloc", "Out of Memory", "llocation fail"))
        text = str(error).splitlines()[0]
        return {"failure": "memory"} if out else {"failure": "query", "text": text}


def _make_place(con: duckdb.DuckDBPyConnection, catalog: str, schema: str) -> None:
    rows = con.execute("SELECT database_name FROM duckdb_databases()").fetchall()
    if (catalog,) not in rows:
        con.execute(f"ATTACH ':memory:' AS {quoted(catalog)}")
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(catalog, schema)}")


def _load(con: duckdb.DuckDBPyConnection, table: dict[str, Any], source: IO[bytes]) -> None:
    with pa.ipc.open_stream(source) as reader:
        con.register("sqlfl_given", reader)
        columns = ", ".join(
            f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in table["columns"]
        )
        con.execute(f"CREATE TABLE {quoted(*table['path'])} AS SELECT {columns} FROM sqlfl_given")
        con.unregister("sqlfl_given")


def _bound_address_space(memory: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + memory + PLAIN_SIZE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _evaluate(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """Evaluate a query, whose rows are not kept."""
    for _ in con.sql(text).to_arrow_reader(2048):
        pass


if __name__ == "__main__":
    main()
