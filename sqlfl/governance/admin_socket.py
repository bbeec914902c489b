"""The owner's access to a database that an agent has open: a socket beside its file.

DuckDB lets one process write a file. So that owners can grant, revoke and approve meanwhile, the
agent takes their statements by a Unix socket. Only its own user may use it, as with the file
itself.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import socket
import stat
import threading
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from sqlfl.base.errors import Error
from sqlfl.base.result import Result
from sqlfl.governance.owner import Owner

log = logging.getLogger("sqlfl.owner")

MAX_STATEMENT_BYTES = 1 << 20
"""Maximum bytes of a statement's text."""
MAX_PATH_BYTES = 100
"""Maximum bytes of a socket's path, which systems limit to a few more."""
SECONDS = 10.0
"""Time limit for a text to arrive."""


def door_of(database: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(database) + ".owner")


class Door:
    """Socket that runs the statements sent to `path`, one after the other; a context.

    Raise Error if there is such a socket already, or if the path is too long for one.
    """

    def __init__(self, path: Path, owner: Owner) -> None:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise Error(
                f"{path} is too long for a socket: {MAX_PATH_BYTES} bytes",
                hint="a shorter folder; or the owner's statements while the agent is not running",
            )
        self._path, self._owner = path, owner
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="sqlfl-owner", daemon=True)

    def __enter__(self) -> Door:
        if _answers(self._path):
            raise Error(f"an agent has {self._path} open already")
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(self._path.stat().st_mode):  # left by a killed process
                self._path.unlink()
        opened, before = socket.socket(socket.AF_UNIX), os.umask(0o177)
        try:
            opened.bind(str(self._path))
            opened.listen(4)
        except OSError as error:
            opened.close()
            raise Error(f"cannot make {self._path}: {error.strerror}") from error
        finally:
            os.umask(before)
        self._socket = opened
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        assert self._socket is not None
        while True:
            try:
                asked, _ = self._socket.accept()
            except OSError:
                return
            with asked, contextlib.suppress(OSError):
                asked.settimeout(SECONDS)
                asked.sendall(json.dumps(self._answer(_received(asked))).encode())

    def _answer(self, data: bytes) -> dict[str, str]:
        if not data:
            return {"rows": _text(pa.table({}))}  # somebody checks whether the agent is there
        try:
            return {"rows": _text(self._owner.sql(data.decode()).arrow())}
        except Error as error:
            return {"error": str(error)}
        except UnicodeDecodeError:
            return {"error": "statements must be UTF-8"}
        except Exception:
            log.exception("an owner's statement failed beyond sqlfl's own errors")
            return {"error": "the agent failed; its log says how"}


def through(path: Path, text: str) -> Result | None:
    """Return the result of statements that the agent runs; None if there is no agent at that path.

    Raise the statements' errors.
    """
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(path))
            asked.sendall(text.encode())
            asked.shutdown(socket.SHUT_WR)
            told = json.loads(_received(asked, most=None))
            if "error" not in told:
                return Result(_table(told["rows"]))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Error(f"the agent that has the database open does not answer: {error}") from error
    raise Error(told["error"])


def _answers(path: Path) -> bool:
    return through(path, "") is not None


def _text(table: pa.Table) -> str:
    """Return an Arrow stream of the rows, in characters of JSON."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


def _table(text: str) -> pa.Table:
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_all()


def _received(asked: socket.socket, most: int | None = MAX_STATEMENT_BYTES) -> bytes:
    pieces: list[bytes] = []
    while piece := asked.recv(1 << 16):
        pieces.append(piece)
        if most is not None and sum(map(len, pieces)) > most:
            raise OSError("a text that is too long")
    return b"".join(pieces)
