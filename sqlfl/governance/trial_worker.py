"""A worker process that evaluates queries: `python -m sqlfl.governance.trial_worker`.

It reads requests from its input, each a line of JSON and a stream of Arrow per table, and writes a
line of JSON for each. Each has a DuckDB of its own. The address space is bounded while queries run;
who began the process ends it in time, and after a failure it ends by itself.
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
    while line := source.readline():
        request = json.loads(line)
        with duckdb.connect(":memory:", config={"threads": request["threads"]}) as con:
            reply = answered(con, request, source)
        _free_address_space()
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if "failure" in reply:
            return


def answered(
    con: duckdb.DuckDBPyConnection, request: dict[str, Any], source: IO[bytes]
) -> dict[str, Any]:
    """Return nothing where all queries were evaluated, `columns` of each where they were
    bound alone, or the `failure`."""
    con.execute("SET temp_directory = ''")
    if request["zone"]:
        con.execute("SET TimeZone = '{}'".format(request["zone"].replace("'", "''")))
    for name, value in request["settings"].items():
        con.execute("SET {} = '{}'".format(name, value.replace("'", "''")))
    con.execute(f"SET memory_limit = '{request['limit']}'")
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
            each = (con.execute(f"DESCRIBE {text}").fetchall() for text in request["texts"])
            return {"columns": [[row[:2] for row in rows] for rows in each]}
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
    if catalog.lower() not in {name.lower() for (name,) in rows}:
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
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _free_address_space() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _evaluate(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """Evaluate a query, whose rows are not kept."""
    for _ in con.sql(text).to_arrow_reader(2048):
        pass


if __name__ == "__main__":
    main()
