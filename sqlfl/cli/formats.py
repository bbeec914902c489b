"""Output formats of results and errors, for people and for programs."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import click

from sqlfl.base import sanitize
from sqlfl.base.errors import Error
from sqlfl.base.result import Result

TABLE, LINES, JSON, CSV = FORMATS = ("table", "lines", "json", "csv")

option = click.option(
    "--format", "form", type=click.Choice(FORMATS), default=TABLE,
    help="table: as wide as the terminal; lines: a line for each value; json, csv: all rows.",
)  # fmt: skip


def shown(result: Result, form: str, warnings: Iterable[str] = ()) -> str:
    """`table`: as Python prints it. `lines`: of all rows, each column on a line. `json`: an object
    with columns (name and Arrow type), rows (lists, in the order of columns), notes and warnings.
    `csv`: all rows below their names."""
    if form == JSON:
        return json.dumps({**told(result), "warnings": list(warnings)}, allow_nan=False)
    if form == CSV:
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows([_cell(value) for value in row] for row in result)
        return sink.getvalue().removesuffix("\n")
    if form == LINES:
        return _lines(result)
    return str(result)


def told(result: Result) -> dict[str, Any]:
    schema = result.arrow().schema
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in schema],
        "rows": [[plain(value) for value in row] for row in result],
        "notes": list(result.notes),
    }


def error_told(error: Error) -> str:
    """Return an error as JSON: its kind, message with the place in the statement, and hint."""
    message = str(error).removesuffix(f"\nhint: {error.hint}")
    return json.dumps({"error": type(error).__name__, "message": message, "hint": error.hint})


def plain(value: Any) -> Any:
    """Return a value as JSON has it; text for types without a JSON form, and for numbers that are
    not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID, dt.timedelta)):
        return str(value)
    raise TypeError(f"a value of {type(value).__name__}, which no result has")


def _lines(result: Result) -> str:
    """An empty line between rows; a text of several lines goes on below its first one."""
    width = max(map(len, result.columns), default=0) + 2
    rows = ["\n".join(map(partial(_line, width), result.columns, row)) for row in result]
    return "\n\n".join([*rows, *result.notes])


def _line(width: int, name: str, value: Any) -> str:
    cell = _cell(value)
    text = sanitize.lines("NULL" if cell is None else str(cell))
    return f"{sanitize.line(name):{width}}" + text.replace("\n", "\n" + " " * width)


def _cell(value: Any) -> Any:
    """Format a cell: NULL is empty, and nested values are JSON."""
    json_value = plain(value)
    return json.dumps(json_value) if isinstance(json_value, (list, dict)) else json_value
