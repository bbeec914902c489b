"""Opening DuckDB files, with errors that say what to do; and leaving none behind that failed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from sqlfl.errors import Error

Connection = duckdb.DuckDBPyConnection


def to_path(path: object, what: str) -> Path:
    """The absolute path that is meant; `what` names it in errors."""
    if not isinstance(path, (str, os.PathLike)):
        raise Error(f"{what} must be a path, got {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or text.startswith(":"):
        raise Error(f"{what} must be the path of a file, got {text!r}")
    return Path(os.path.realpath(text))


def open_database(path: Path, *, read_only: bool = False) -> Connection:
    """Open the database file; it must be there if `read_only`, and is else made where it is not.

    Raises Error for what is no database, and where it or its folder cannot be used.
    """
    if path.is_dir():
        raise Error(f"{path} is a folder", hint="give the path of a file in it")
    if not path.parent.is_dir():
        raise Error(f"there is no folder {path.parent}", hint="make it first")
    try:
        return duckdb.connect(str(path), read_only=read_only)
    except duckdb.Error as error:
        raise _explained(path, error) from error


@contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Where the block fails, a file that was not there before goes, with what DuckDB put beside it.

    A file of no bytes counts as none: DuckDB would not take it, so it is removed first.
    """
    empty = path.is_file() and path.stat().st_size == 0
    if empty:
        path.unlink()
    new = not os.path.lexists(path)
    try:
        yield
    except BaseException:
        if new:
            for made in (path, path.with_name(f"{path.name}.wal")):
                if os.path.lexists(made):
                    made.unlink()
        if empty:
            path.touch()
        raise


def may_be_written(path: Path) -> bool:
    """The file, and its folder, where DuckDB keeps its log."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _explained(path: Path, error: duckdb.Error) -> Error:
    text = str(error)
    if "Could not set lock" in text:
        return Error(
            f"{path} is open in another process",
            hint="close it there first: DuckDB lets one process write a file, or several read it",
        )
    if "different configuration" in text:
        return Error(
            f"{path} is open in this process already, with another configuration",
            hint="give that open connection instead of the path, or close it first",
        )
    if "not a valid DuckDB database" in text:
        return Error(f"{path} is not a DuckDB database")
    return Error(f"cannot open {path}: {text}")
