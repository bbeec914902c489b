"""Texts of a party's failures, which never quote a value from its database."""

from __future__ import annotations

import duckdb

from sqlfl import messages as ms
from sqlfl.base.errors import Error

_BOUND = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
"""Errors about the text of a query, which the coordinator wrote. Others may quote data."""


REOPEN = "open the database again, fed.detach(...) the party, and attach the new connection"


def safe_text(error: Error | duckdb.Error, request: ms.Message) -> str:
    """Return the text of a failure that may leave. It has none of the database's words about
    values.
    """
    if isinstance(error, (Error, *_BOUND)):
        return str(error)
    if isinstance(error, duckdb.ConnectionException):
        return f"its connection is closed\nhint: {REOPEN}"
    if isinstance(error, duckdb.PermissionException):
        # one sentence: a planner has hints of its own
        return (
            "its database may not open what it was asked to read, as a file behind a view: its "
            "owner names the folder in a policy, WITH (folders = ['/path']), or in "
            "allowed_directories of its sources, before sqlfl opens it, or an open connection is "
            "attached"
        )
    if isinstance(request, (ms.Keep, ms.Drop, ms.Collect)):
        if isinstance(error, duckdb.TransactionException):
            return (
                f"its blocks cannot be written beside another transaction ({error})\n"
                "hint: commit or roll back what changes the schema sqlfl there, and run this again"
            )
        return f"its blocks cannot be written: {error}"  # these run no query over the tables
    if "crypto module" in str(error):  # see sqlfl.databases.files.open_source
        return (
            "its memory does not suffice, and what it would put on disk cannot be encrypted\n"
            "hint: give it more memory; or attach a connection on which LOAD httpfs has been run, "
            "which can encrypt"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return (
            f"its database's memory does not suffice for {request.kind}\n"
            "hint: a query over fewer rows; or its owner raises memory_limit there, or sets "
            "temp_directory to a folder on a larger disk"
        )
    return failed(request, error)


def failed(request: ms.Message, error: Error | duckdb.Error) -> str:
    if ms.of_rehearsal(request):
        return f"over rows that are made up, {request.kind} fails with {str(error).splitlines()[0]}"
    return (
        f"its database failed on {request.kind} with {type(error).__name__}; what it said stays "
        "with the party (log sqlfl.party), for it may quote data"
    )
