"""JSON of dataclasses, with a strict reader: it returns values of the declared types, or fails.

The text may come from another party or from a damaged file. It is bounded before it is parsed, and
every value must have the type of its field; ValueError names the one that has not. Bytes are
written in hexadecimal, times as ISO 8601, arrays as lists, row after row.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import chain
from typing import Any, NoReturn, TypeVar

from sqlfl.base.errors import InternalError

T = TypeVar("T")

LEFT_OUT = types.MappingProxyType({"left out": True})
"""Metadata of a field whose default is None or False. It is not written if it has its default."""

DEEPEST = 64
"""Maximum levels of lists and objects."""
SHOWN = 40

_STRING = re.compile(r'"(?:[^"\\]++|\\.|\\\Z)*+(?:"|\Z)', re.DOTALL)
_OTHERS = re.compile(r"[^][{}]+")


def loads(text: str, *, finite: bool = True) -> Any:
    """Return the value of a JSON text. Raise ValueError for other texts and for more than DEEPEST
    levels. With `finite`, raise it also for numbers that are not finite.
    """
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(text)
    try:
        return (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def to_json(value: object, *, ascii: bool = True) -> str:
    """Return a value of a type that `from_json` reads as text, without spaces. Floats keep all
    their bits.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=ascii, default=_written)


def from_json(kind: type[T], text: str, *, finite: bool = True, strict: bool = True) -> T:
    """Return the value of type `kind` from its text. Raise ValueError for anything else.

    Types: None, bool, int, float, str, bytes, datetime, object and Any, arrays of numbers, tuples,
    mappings from str, unions, and dataclasses of these, whose missing fields take their defaults.
    strict: a field that the type does not have is an error; otherwise it is ignored.
    """
    value: T = _Reader(finite, strict).read(kind, loads(text, finite=finite), "")
    return value


def _written(value: Any) -> Any:
    """Return JSON for a value that the json module does not know."""
    if is_dataclass(value):
        return {
            spec.name: getattr(value, spec.name)
            for spec in fields(value)
            if spec.metadata != LEFT_OUT or getattr(value, spec.name) is not spec.default
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, dt.datetime) else value.tolist()


class _Reader:
    def __init__(self, finite: bool, strict: bool) -> None:
        self._finite = finite
        self._strict = strict

    def read(self, kind: Any, value: Any, path: str) -> Any:
        if kind in (Any, object):
            return value
        if kind in _PLAIN:
            return self._plain(kind, value, path)
        if kind in _TEXTS:
            return self._text(kind, value, path)
        origin = typing.get_origin(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union(kind, value, path)
        if origin is tuple:
            return self._tuple(typing.get_args(kind), value, path)
        if origin in (dict, Mapping):
            return self._mapping(typing.get_args(kind)[1], value, path)
        if is_dataclass(kind):
            return self._dataclass(kind, value, path)
        if getattr(origin, "__name__", "") == "ndarray":
            return self._array(typing.get_args(typing.get_args(kind)[1])[0], value, path)
        raise TypeError(f"JSON is not read into {kind}")

    def _plain(self, kind: Any, value: Any, path: str) -> Any:
        if kind is float and type(value) in (int, float):
            try:
                number = float(value)
            except OverflowError:
                _fail(path, "a number", value)
            if self._finite and not math.isfinite(number):
                _fail(path, "a finite number", value)
            return number
        if type(value) is not kind:
            _fail(path, _PLAIN[kind], value)
        return value

    def _text(self, kind: Any, value: Any, path: str) -> Any:
        wanted, made = _TEXTS[kind]
        text = self._plain(str, value, path)
        try:
            return made(text)
        except ValueError:
            _fail(path, wanted, value)

    def _array(self, element: Any, value: Any, path: str) -> Any:
        """Return an array. It is checked in few steps, because it may be long."""
        import numpy as np

        flat = value
        while isinstance(flat, list) and set(map(type, flat)) == {list}:
            flat = list(chain.from_iterable(flat))
        if not isinstance(flat, list) or not set(map(type, flat)) <= {int, float}:
            _fail(path, "an array of numbers", value)
        try:
            numbers = np.array(value, element)
        except (ValueError, OverflowError):
            _fail(path, "an array of numbers", value)
        if self._finite and not np.isfinite(numbers).all():
            _fail(path, "an array of finite numbers", value)
        return numbers

    def _union(self, kind: Any, value: Any, path: str) -> Any:
        problem: ValueError | None = None
        for choice in typing.get_args(kind):
            try:
                return self.read(choice, value, path)
            except ValueError as error:
                problem = problem or error
        assert problem is not None
        raise problem

    def _tuple(self, kinds: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _fail(path, "a list", value)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            if kinds[0] in _EXACT and set(map(type, value)) <= {kinds[0]}:
                return tuple(value)
            kinds = (kinds[0],) * len(value)
        if len(value) != len(kinds):
            _fail(path, f"a list of {len(kinds)}", value)
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(self.read(kind, item, f"{path}[{k}]") for k, (kind, item) in pairs)

    def _mapping(self, kind: Any, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _fail(path, "an object", value)
        return {
            name: self.read(kind, item, f"{path}.{name:.{SHOWN}}") for name, item in value.items()
        }

    def _dataclass(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _fail(path, "an object", value)
        hints = _hints(kind)
        if self._strict and not value.keys() <= hints.keys():
            _fail(path, f"without a field {min(value.keys() - hints.keys()):.{SHOWN}}", value)
        values = {}
        for name, hint in hints.items():
            if name in value:
                values[name] = self.read(hint, value[name], f"{path}.{name}" if path else name)
            elif name in _required(kind):
                _fail(path, f"with a field {name}", value)
        try:
            return kind(**values)
        except InternalError as error:  # values that do not go together
            raise ValueError(error.message) from error


_PLAIN = {
    type(None): "null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
}
_EXACT = {int, str}
"""Types for which many values are checked at once."""
_TEXTS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bytes: ("bytes in hexadecimal", bytes.fromhex),
    dt.datetime: ("a time", dt.datetime.fromisoformat),
}
"""Types that are written as text."""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {spec.name: hints[spec.name] for spec in fields(kind) if spec.init}


@cache
def _required(kind: Any) -> frozenset[str]:
    return frozenset(
        spec.name
        for spec in fields(kind)
        if spec.default is MISSING and spec.default_factory is MISSING
    )


def _check_depth(text: str) -> None:
    """Raise ValueError for too many levels of brackets. Brackets in strings do not count; the
    innermost pairs are removed level by level.
    """
    left = _OTHERS.sub("", _STRING.sub("", text))
    for _ in range(DEEPEST):
        if not left:
            return
        left = left.replace("[]", "").replace("{}", "")
    if left:
        raise ValueError(f"JSON that is nested more than {DEEPEST} levels deep, or not closed")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"JSON with the number {name}")


_FINITE, _ANY = json.JSONDecoder(parse_constant=_refuse), json.JSONDecoder()


def _fail(path: str, wanted: str, value: Any) -> NoReturn:
    shown = type(value).__name__ if isinstance(value, (dict, list)) else f"{value!r:.{SHOWN}}"
    raise ValueError(f"{path or 'the JSON'} must be {wanted}, got {shown}")
