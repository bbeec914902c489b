"""Answers to an analyst elsewhere, as bytes: results, models, plans and errors.

Rows are an Arrow stream; their other contents are JSON before it. No code that is read is run: a
figure names its drawing function in `sqlfl.plots.registry`. Contents take about the room of their
bytes, since nothing that is compressed is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from sqlfl.base import errors
from sqlfl.base.errors import Error, PartyError, StatementError, WireError
from sqlfl.base.result import Result
from sqlfl.base.stored_arrow import ANY, check_stream
from sqlfl.planner.explain.document import ExplainedPlan
from sqlfl.plots.registry import Picture
from sqlfl.store.model_document import history_to_bytes, model_from, model_to_json
from sqlfl.store.registry import Model

MAX_SCHEMA_BYTES = 1 << 20
"""Bytes of a schema with some thousand columns: its reader may take some hundred times as much."""
ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")


def result_to_bytes(result: Result) -> pa.Buffer:
    text, markup, figure = result.own()
    header: dict[str, object] = {"text": text, "markup": markup, "notes": list(result.notes)}
    if isinstance(figure, Picture):
        header["picture"] = asdict(figure)
    return _bytes(result.arrow(), header)


def bytes_to_result(data: pa.Buffer) -> Result:
    """Return the result. Raise WireError for other bytes; so do the readers below."""
    table, header = _read(data)
    text, markup = (_text(header, name) for name in ("text", "markup"))
    shown = None if markup is None else (lambda: markup)
    return Result(
        table, text=text, markup=shown, notes=_texts(header, "notes"), figure=_picture(header)
    )


def model_to_bytes(model: Model) -> pa.Buffer:
    header = {"document": model_to_json(model), "lasting": model.lasting, "kept": model.kept}
    return _bytes(model.history, header)


def bytes_to_model(data: pa.Buffer) -> Model:
    table, header = _read(data)
    try:
        model = model_from(header.get("document"), history_to_bytes(table), str(header.get("kept")))
    except ValueError as error:
        raise WireError(f"a model that cannot be read: {error}") from None
    return replace(model, lasting=header.get("lasting") is True)


@dataclass(frozen=True)
class ShownDocument:
    """A document as text and as HTML."""

    text: str
    markup: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.markup


@dataclass(frozen=True, repr=False)
class RemotePlan:
    """Text of EXPLAIN for a statement; `str` is its summary."""

    summary: ShownDocument
    details: ShownDocument
    """EXPLAIN (VERBOSE): every message of each client with its size, and all SQL."""

    def __str__(self) -> str:
        return str(self.summary)

    def __repr__(self) -> str:
        return "<sqlfl plan; print it for EXPLAIN>"

    def _repr_html_(self) -> str:
        return self.summary._repr_html_()


def plan_to_bytes(plan: ExplainedPlan) -> pa.Buffer:
    details = plan.details
    header = {
        "summary": [str(plan), plan._repr_html_()],
        "details": [str(details), details._repr_html_()],
    }
    return _bytes(None, header)


def bytes_to_plan(data: pa.Buffer) -> RemotePlan:
    _, header = _read(data)
    parts = [_texts(header, name) for name in ("summary", "details")]
    if [len(texts) for texts in parts] != [2, 2]:
        raise WireError("a plan that is none")
    return RemotePlan(*(ShownDocument(*texts) for texts in parts))


# -- errors ----------------------------------------------------------------------------------------


def error_to_bytes(error: Error | KeyboardInterrupt) -> pa.Buffer:
    """Return the error's bytes, with the statement if the error has a place in it: no header may be
    as long.
    """
    header: dict[str, object] = {"error": type(error).__name__}
    if isinstance(error, Error):
        header |= {"message": error.message, "hint": error.hint}
    if isinstance(error, StatementError) and error.span is not None:
        header |= {"sql": error.sql, "span": list(error.span)}
    if isinstance(error, PartyError):
        header |= {"party": error.party, "at": error.at}
    return _bytes(None, header)


def bytes_to_error(data: pa.Buffer) -> Error | KeyboardInterrupt:
    """Return the same error, with its place in a statement."""
    _, header = _read(data)
    if header.get("error") == KeyboardInterrupt.__name__:
        return KeyboardInterrupt()
    return _error(header)


def _error(header: Mapping[str, Any]) -> Error:
    kind = getattr(errors, str(header.get("error")), None)
    message, hint = str(header.get("message")), _text(header, "hint")
    if not isinstance(kind, type) or not issubclass(kind, Error):
        return Error(message, hint=hint)
    made: type[Error] = kind
    if issubclass(made, StatementError):
        return made(message, hint=hint, sql=_text(header, "sql"), span=_span(header.get("span")))
    if issubclass(made, PartyError):
        error = made(str(header.get("party")), "", hint=hint, at=str(header.get("at", "")))
        error.message = message
        error.args = (message if hint is None else f"{message}\nhint: {hint}",)
        return error
    return (
        made(message, hint=hint) if made.__init__ is Error.__init__ else Error(message, hint=hint)
    )


def _span(pair: object) -> tuple[int, int] | None:
    if isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair):
        return pair[0], pair[1]
    return None


# -- bytes -----------------------------------------------------------------------------------------


def _bytes(table: pa.Table | None, header: Mapping[str, object]) -> pa.Buffer:
    """The length of the JSON (uint64), the JSON, and the stream, from a multiple of 64 bytes on."""
    rows = pa.table({}) if table is None else table
    text = json.dumps(header).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    sink = pa.BufferOutputStream()
    sink.write(_LENGTH.pack(len(text)) + text)
    with pa.ipc.new_stream(sink, rows.schema.remove_metadata()) as writer:
        writer.write_table(rows.replace_schema_metadata(None))
    return sink.getvalue()


def _read(data: pa.Buffer) -> tuple[pa.Table, dict[str, Any]]:
    try:
        (length,) = _LENGTH.unpack(data.slice(0, _LENGTH.size))
        start = _LENGTH.size + length
        if start > len(data):
            raise ValueError(f"{length:,} bytes of JSON in {len(data):,}")
        header = json.loads(data.slice(_LENGTH.size, length).to_pybytes())
        if not isinstance(header, dict):
            raise ValueError("no object")
        stream = data.slice(start)
        check_stream(stream, MAX_SCHEMA_BYTES, ANY)
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        if table.num_rows > 8 * len(stream):  # less than a bit for each row
            raise ValueError(f"{table.num_rows:,} rows in {len(stream):,} bytes")
        table.validate(full=True)
    except (
        pa.ArrowException, ValueError, RecursionError, OSError, MemoryError, struct.error,
    ) as error:  # fmt: skip
        raise WireError(f"an answer that cannot be read: {error}") from None
    return table.replace_schema_metadata(None), header


def _text(header: Mapping[str, Any], name: str) -> str | None:
    value = header.get(name)
    return value if isinstance(value, str) else None


def _texts(header: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = header.get(name, [])
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise WireError(f"{name} that are no texts")
    return tuple(values)


def _picture(header: Mapping[str, Any]) -> Picture | None:
    value = header.get("picture")
    if not isinstance(value, dict) or set(value) != {"look", "model"}:
        return None
    return Picture(str(value["look"]), str(value["model"]))
