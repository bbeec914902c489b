"""JSON of others, read strictly: into values of the types that dataclasses declare, or not at all.

What is read may come from another party or from a damaged file. It is bounded before it is parsed,
and every value of it is of the type that its field has; ValueError says which is not. Writing needs
nothing of this: `json.dumps(asdict(...))`.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

DEEPEST = 64
"""Levels of lists and objects."""
SHOWN = 40

_STRING = re.compile(r'"(?:[^"\\]++|\\.|\\\Z)*+(?:"|\Z)', re.DOTALL)
_OTHERS = re.compile(r"[^][{}]+")


def loads(text: str, *, finite: bool = True) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, is nested more than DEEPEST
    levels deep, or, where `finite`, has numbers that are not."""
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(text)
    try:
        return (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def parse(kind: type[T], text: str, *, finite: bool = True, strict: bool = True) -> T:
    """The JSON of a value of this type.

    `strict`: a field that the type does not have is an error, and not left alone.
    """
    found: T = read(kind, loads(text, finite=finite), finite=finite, strict=strict)
    return found


def read(kind: Any, value: Any, *, finite: bool = True, strict: bool = True) -> Any:
    """`value`, parsed JSON, as a value of the type `kind`.

    Types: None, bool, int, float, str, object and Any, tuples, mappings from str, unions, and
    dataclasses of these, whose missing fields take their defaults. Raises ValueError.
    """
    return _Reader(finite, strict).read(kind, value, "")


class _Reader:
    def __init__(self, finite: bool, strict: bool) -> None:
        self._finite = finite
        self._strict = strict

    def read(self, kind: Any, value: Any, path: str) -> Any:
        if kind in (Any, object):
            return value
        if kind in _PLAIN:
            return self._plain(kind, value, path)
        origin = typing.get_origin(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union(kind, value, path)
        if origin is tuple:
            return self._tuple(typing.get_args(kind), value, path)
        if origin in (dict, Mapping):
            return self._mapping(typing.get_args(kind)[1], value, path)
        if is_dataclass(kind):
            return self._dataclass(kind, value, path)
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
        found = {}
        for name, hint in hints.items():
            if name in value:
                found[name] = self.read(hint, value[name], f"{path}.{name}" if path else name)
            elif name in _required(kind):
                _fail(path, f"with a field {name}", value)
        return kind(**found)


_PLAIN = {
    type(None): "null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
}


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
    """Brackets outside of strings, innermost pairs taken away level by level."""
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
