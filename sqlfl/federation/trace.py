"""The SQL that parties have run, as `Federation.trace()` collects it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa

from sqlfl.base.result import Result
from sqlfl.contract.schema import Client

SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("message", pa.string()),
        ("seconds", pa.float64()),
        ("rows", pa.int64()),
        ("sql", pa.string()),
    ]
)


@dataclass(frozen=True)
class Ran:
    """One statement that a client's database has run."""

    client: str
    """'airline/0': the party, and the client's number in it."""
    message: str
    """The kind of the message that it was run for, 'prepare'."""
    seconds: float
    """Until its result was there; where that is read piece by piece, until the first one was."""
    rows: int | None
    """Of the result; None where there is none, or it is read piece by piece."""
    sql: str
    """Its text; values that it is given, as keys are, stay `$name`."""


class Trace:
    """Statements in the order in which they ended; grows while it is open. Shows itself, and is
    read, as a `Result` is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: list[Ran] = []

    def add(self, client: Client, kind: str, text: str, seconds: float, rows: int | None) -> None:
        """To be called from any thread."""
        with self._lock:
            self._statements.append(Ran(str(client), kind, seconds, rows, text))

    @property
    def statements(self) -> tuple[Ran, ...]:
        with self._lock:
            return tuple(self._statements)

    def arrow(self) -> pa.Table:
        """Columns: client, message, seconds, rows, sql."""
        columns = list(zip(*map(astuple, self.statements), strict=True)) or [()] * len(SCHEMA)
        return pa.table([list(column) for column in columns], schema=SCHEMA)

    def df(self) -> Any:
        """A pandas DataFrame. Raises Error where pandas is not installed."""
        return Result(self.arrow()).df()

    def fetchall(self) -> list[tuple[Any, ...]]:
        return Result(self.arrow()).fetchall()

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.statements)

    def __len__(self) -> int:
        return len(self._statements)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(Result(self.arrow()))

    def _repr_html_(self) -> str:
        return Result(self.arrow())._repr_html_()
