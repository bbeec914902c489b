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
    """A statement that a client's database has run."""

    client: str
    """'airline/0': the party, and the client's number in it."""
    message: str
    """The kind of the message that it was run for, 'prepare'."""
    seconds: float
    """Seconds until its result was complete, or until the first chunk of a streamed result."""
    rows: int | None
    """Rows of the result; None without a result, and for a streamed one."""
    sql: str
    """Its text; parameter values, such as keys, stay `$name`."""


class Trace:
    """Statements in the order in which they ended; it grows while it is open. It prints and reads
    like a `Result`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: list[Ran] = []

    def add(self, client: Client, kind: str, text: str, seconds: float, rows: int | None) -> None:
        """Add a statement; from any thread."""
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
