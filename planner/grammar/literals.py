"""Values of Python as literals of SQL, and as values of options."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
from collections.abc import Mapping

from sqlglot import exp

from sqlfl.base.errors import Error
from sqlfl.planner.grammar.writing import to_sql

IN_QUERIES = "int, float, Decimal, str, bool, None, date, datetime, bytes, and lists of these"
IN_OPTIONS = "int, float, Decimal, str, bool, None, and lists and dicts of these"
_DIGITS = 38
"""Maximum digits of a DECIMAL, and of the largest integer."""


def literal(value: object, what: str) -> exp.Expr:
    """Return the value as an expression of a query; `what` names it in errors.

    A float becomes a DOUBLE, a Decimal a DECIMAL, a date a DATE, a datetime a TIMESTAMP, with a
    time zone a TIMESTAMPTZ, bytes a BLOB. Raises Error for a type without an SQL literal.
    """
    value = _plain(value)
    if isinstance(value, list | tuple):
        return exp.Array(expressions=[literal(item, f"an item of {what}") for item in value])
    if isinstance(value, bytes | bytearray | memoryview):
        escaped = "".join(f"\\x{byte:02X}" for byte in bytes(value))
        return _cast(escaped, "BLOB")
    if isinstance(value, dt.datetime):
        return _moment(value, what)
    if isinstance(value, dt.date):
        return _cast(value.isoformat(), "DATE")
    if isinstance(value, float):
        if not math.isfinite(value):
            return _cast(str(value), "DOUBLE")
        text = repr(abs(value))
        return _signed(text if "e" in text else f"{text}e0", math.copysign(1.0, value) < 0)
    return _scalar(value, what, IN_QUERIES)


def written_option(value: object, what: str) -> str:
    """Return the text of the value as an option's value; `what` names it in errors."""
    value = _plain(value)
    if isinstance(value, Mapping):
        pairs = (
            f"{to_sql(_string(_key(key, what), what))}: {written_option(item, what)}"
            for key, item in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(written_option(item, what) for item in value)}]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Error(f"{what} is {value}, which is no value of an option")
        return repr(float(value))
    return to_sql(_scalar(value, what, IN_OPTIONS).unnest())


def _plain(value: object) -> object:
    """Return Python's number or truth value for one of numpy."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # type: ignore[attr-defined]
    return value


def _scalar(value: object, what: str, allowed: str) -> exp.Expr:
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return _string(str.__str__(value), what)
    if isinstance(value, numbers.Integral):
        digits = str(abs(int(value)))
        if len(digits) > _DIGITS:
            raise Error(f"{what} is a whole number of more than {_DIGITS} digits")
        return _signed(digits, int(value) < 0)
    if isinstance(value, decimal.Decimal):
        return _decimal(value, what)
    raise Error(
        f"{what} is of type {type(value).__name__}, of which there is no literal",
        hint=f"take {allowed}",
    )


def _string(text: str, what: str) -> exp.Expr:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise Error(f"{what} is a text with a character that no SQL text can have")
    return exp.Literal.string(text)


def _decimal(value: decimal.Decimal, what: str) -> exp.Expr:
    text = format(abs(value), "f") if value.is_finite() else ""
    if not text or len(text.replace(".", "")) > _DIGITS:
        raise Error(f"{what} is {value}, and a DECIMAL has at most {_DIGITS} digits")
    return _signed(text if "." in text else f"{text}.", value.is_signed())


def _signed(digits: str, negative: bool) -> exp.Expr:
    """Return a number, in parentheses if negative: `x - ?` and `?::TEXT` then use its value."""
    number = exp.Literal.number(digits)
    return exp.Paren(this=exp.Neg(this=number)) if negative else number


def _moment(value: dt.datetime, what: str) -> exp.Expr:
    if value != value:  # NaT of pandas
        raise Error(f"{what} is {value}, which is no time", hint="None is NULL")
    if value.tzinfo is None:
        return _cast(value.isoformat(" "), "TIMESTAMP")
    return _cast(value.astimezone(dt.UTC).isoformat(" "), "TIMESTAMPTZ")


def _cast(text: str, kind: str) -> exp.Expr:
    to = exp.DataType(this=exp.DType.USERDEFINED, kind=kind)
    return exp.Cast(this=exp.Literal.string(text), to=to)


def _key(key: object, what: str) -> str:
    key = _plain(key)
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, numbers.Integral | float | decimal.Decimal):
        return str(key)
    raise Error(f"{what} has a key of type {type(key).__name__}", hint="take text or numbers")
