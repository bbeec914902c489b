"""Opening of DuckDB files, with errors that say what to do. A failure leaves no file behind.

New files can be read by their owner alone, from the first moment on.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import duckdb

from sqlfl.base.errors import Error

Connection = duckdb.DuckDBPyConnection
Settings: TypeAlias = Mapping[str, str]
NO_SETTINGS: Settings = MappingProxyType({})
CLOSED: Settings = MappingProxyType(
    {
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "python_enable_replacements": "false",
        "temp_directory": "",
        "lock_configuration": "true",
    }
)
"""Settings of a database that holds data only: nothing in it can reach a file, a network or a
variable.
"""
PRIVATE = 0o600


def to_path(path: object, what: str) -> Path:
    """Return the absolute path; `what` names it in errors."""
    if not isinstance(path, (str, os.PathLike)):
        raise Error(f"{what} must be a path, got {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or text.startswith(":"):
        raise Error(f"{what} must be the path of a file, got {text!r}")
    try:
        absolute = Path(os.path.realpath(text))
        absolute.exists()  # too long a name is no place at all
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Error(f"{what} must be the path of a file, got {text[:60]!r}: {why}") from None
    return absolute


def open_database(
    path: Path, *, read_only: bool = False, settings: Settings = NO_SETTINGS
) -> Connection:
    """Open the database file. With `read_only` it must exist; otherwise it is made if missing.

    Raise Error for a file that is no database, and if it or its folder cannot be used.
    """
    _check_place(path)
    try:
        return duckdb.connect(str(path), read_only=read_only, config=dict(settings))
    except duckdb.Error as error:
        raise _explained(path, error) from error


def open_source(path: Path, *, read_only: bool = False) -> Connection:
    """Open a party's database. Its queries encrypt the data that they put on disk when memory does
    not suffice, or fail.

    The exception is a database that somebody else in this process has open already: its settings
    then hold.
    """
    con = open_database(path, read_only=read_only)
    if con.execute("SELECT count FROM system.main.duckdb_connection_count()").fetchall() == [(1,)]:
        con.execute("SET temp_file_encryption = true")
    return con


def there(path: Path) -> bool:
    """Return True if there may be a database. A file of no bytes is none, because DuckDB would
    refuse it.
    """
    return os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0)


def open_or_make(
    path: Path, settings: Settings = NO_SETTINGS
) -> tuple[Connection, Callable[[], None]]:
    """Open the database file for writing. Return also a function that removes the file if this call
    has made it.

    Call that function only after closing the connection. A new file appears whole, because another
    process may do the same: one of the two makes it, and nobody removes the other's file. It is
    made in a folder that only its owner can look into.
    """
    if there(path):
        return open_database(path, settings=settings), lambda: None
    empty = path.is_file()
    _check_place(path)
    folder = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise Error(f"cannot open {path}: {error.strerror}") from error
    draft = folder / path.name
    try:
        open_database(draft, settings=settings).close()
        draft.chmod(PRIVATE)
        made = _put_in_place(draft, path, empty)
    except Error as error:
        raise Error(error.message.replace(str(draft), str(path)), hint=error.hint) from error
    finally:
        _remove(draft)
        folder.rmdir()

    def undo() -> None:
        if made:
            _remove(path)
        if empty:
            path.touch()

    return open_database(path, settings=settings), undo


def private_log(path: str | os.PathLike[str] | None) -> None:
    """Make the log beside the database `path` if it is missing, before something is written into
    the database.

    So nobody who cannot read the database can read the data on the way there. DuckDB uses this log.
    Without one, it would make a log that everybody may read.
    """
    if path is None:
        return
    try:
        mode = os.stat(path).st_mode & 0o666
        log = os.open(f"{os.fspath(path)}.wal", os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except OSError:  # it exists, or nothing can be made there, and DuckDB will say why
        return
    os.close(log)


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise Error(f"{path} is a folder", hint="give the path of a file in it")
    if not path.parent.is_dir():
        raise Error(f"there is no folder {path.parent}", hint="make it first")


def _put_in_place(draft: Path, path: Path, empty: bool) -> bool:
    """Put the draft in place. Return False if somebody else was quicker."""
    if empty and path.stat().st_size == 0:
        os.replace(draft, path)
        return True
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        os.rename(draft, path)
    return True


def _remove(path: Path) -> None:
    """Remove the file, with the log that DuckDB puts beside it."""
    for made in (path, path.with_name(f"{path.name}.wal")):
        if os.path.lexists(made):
            made.unlink()


class FileIdentity:
    """Identity of the file that was opened under a path. Later another file may be there, or
    none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(path)
        self._found = self._look()

    @property
    def holds(self) -> bool:
        return self._found is None or self._look() == self._found

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def may_be_written(path: Path) -> bool:
    """Return True if the file and its folder, where DuckDB keeps its log, may be written."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _explained(path: Path, error: duckdb.Error) -> Error:
    text = str(error)
    if "Could not set lock" in text:
        return Error(
            f"{path} is open in another process",
            hint="close it there first: DuckDB lets one process write a file, or several read it",
        )
    if "different configuration" in text or "Unique file handle conflict" in text:
        return Error(
            f"{path} is open in this process already, by ATTACH or with another configuration",
            hint="give that open connection instead of the path, or close it first",
        )
    if "not a valid DuckDB database" in text:
        return Error(f"{path} is not a DuckDB database")
    return Error(f"cannot open {path}: {text}")
