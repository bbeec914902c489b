"""Log output of services on standard error: a line for each event, as text or as JSON."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlfl.base import sanitize

FORMATS = ("text", "json")
FIELDS = ("party", "study", "analyst", "statement", "run")
"""Fields that a record may have in `extra`; `party` also from the process."""
FRAMES = 6
"""Maximum number of stack frames of an exception to log."""


@contextmanager
def logging_to(form: str, **fields: str) -> Iterator[None]:
    """Send sqlfl's log records and Python warnings of the block to standard error, with these
    fields.

    Exceptions appear with their kind and place, never with their text, which may hold values.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines have no format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(fields) if form == "json" else _Text(fields))
    log = logging.getLogger("sqlfl")
    before = log.level, log.propagate, warnings.showwarning
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate, warnings.showwarning = before[1:]
        log.removeHandler(handler)


class _Fields(logging.Formatter):
    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def own(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the record's contents, with the known fields."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        told: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        known = {name: getattr(record, name, self._fields.get(name)) for name in FIELDS}
        told |= {name: value for name, value in known.items() if value not in (None, "")}
        if record.exc_info and record.exc_info[1] is not None:
            told["fault"] = fault(record.exc_info[1])
        return told


class _Json(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.own(record))


class _Text(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        told = self.own(record)
        first = [told.pop(name) for name in ("time", "level", "message")]
        rest = [f"{name}={value}" for name, value in told.items()]
        return sanitize.line(" ".join([*first, *rest]))


def fault(error: BaseException) -> str:
    """The kind of an exception, and where it was met, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " < ".join([type(error).__name__, *reversed(places)])
