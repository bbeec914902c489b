"""The items of TRANSFORM, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlfl.base.errors import nearest
from sqlfl.contract.transforms import (
    AUTO,
    COLUMN,
    FUNCTIONS,
    STRATEGIES,
    WIDEST,
    Function,
    Parameter,
    Transform,
    number,
)
from sqlfl.planner.grammar.statements import Argument, Span, TransformItem, Value
from sqlfl.planner.grammar.trees import plan_error


@dataclass(frozen=True)
class PlacedItem:
    """An item's transform, with its place; None for an item of a model."""

    transform: Transform
    span: Span | None = None


def placed(items: Sequence[TransformItem], sql: str) -> tuple[PlacedItem, ...]:
    """Return the items, with their arguments checked. Raise PlanError with the place of a wrong
    one.
    """
    return tuple(_resolved(item, sql) for item in items)


def _resolved(item: TransformItem, sql: str) -> PlacedItem:
    called = COLUMN if item.function is None else str(item.function)
    function = FUNCTIONS[called]
    columns = tuple(str(column) for column in item.columns)
    if called == AUTO and not columns:
        if item.name is not None:
            raise plan_error(
                "auto is of all columns that no other item has, and has no name", sql, item.span,
                "TRANSFORM (auto), or one column: auto(column) AS name",
            )  # fmt: skip
        own: Any = _arguments(called, function, item, sql)
        return PlacedItem(Transform(AUTO, (), AUTO, **own), item.span)
    if not function.least <= len(columns) <= function.most:
        raise plan_error(
            f"{called} takes {_columns(function)}, got {len(columns)}", sql, item.span,
            "one item for each column: " + ", ".join(f"{called}({c})" for c in columns)
            if function.most == 1
            else None,
        )  # fmt: skip
    if len({column.lower() for column in columns}) < len(columns):
        raise plan_error(f"{called} has a column twice", sql, item.span, "name each column once")
    given: Any = _arguments(called, function, item, sql)
    name = "_".join(columns) if item.name is None else str(item.name)
    transform = Transform(called, columns, name, **given)
    width = math.comb(len(columns) + transform.degree, transform.degree) - 1
    if called == "polynomial" and width > WIDEST:
        raise plan_error(
            f"{transform.call} makes {width:,} columns, and at most {WIDEST:,} are taken",
            sql,
            item.span,
            "fewer columns, or a lower degree",
        )
    return PlacedItem(transform, item.span)


def _columns(function: Function) -> str:
    if function.most == 1:
        return "one column"
    least = "one column" if function.least == 1 else f"{function.least} columns"
    return f"{least} or more, up to {function.most}"


def _arguments(called: str, function: Function, item: TransformItem, sql: str) -> dict[str, object]:
    """Fields of `Transform`, by name."""
    known = {parameter.name: parameter for parameter in function.parameters}
    free = list(function.parameters)
    arguments: dict[str, object] = {}
    for argument in item.arguments:
        if argument.name is None and not free:
            takes = f"{', '.join(known)} behind its column" if known else "a column, and no more"
            raise plan_error(f"{called} takes {takes}", sql, argument.span)
        parameter = free[0] if argument.name is None else known.get(str(argument.name))
        if parameter is None:
            near = nearest(str(argument.name), known)
            raise plan_error(
                f"{called} has no argument {argument.name}", sql, argument.span,
                f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}",
            )  # fmt: skip
        if parameter not in free:
            raise plan_error(f"{called} has {parameter.name} twice", sql, argument.span)
        free.remove(parameter)
        arguments[parameter.field] = _value(called, parameter, argument, sql)
    for parameter in free:
        if parameter.default is not None:
            arguments[parameter.field] = parameter.default
        elif not parameter.optional:
            form = _FORMS.get(parameter.field, "k")
            raise plan_error(
                f"{called} needs {parameter.name}", sql, item.span,
                f"{called}({', '.join(item.columns)}, {form})",
            )  # fmt: skip
    return arguments


_FORMS = {"bounds": "[b1, b2, ...]", "value": "'median'"}


def _value(called: str, parameter: Parameter, argument: Argument, sql: str) -> object:
    value, what = argument.value, f"{parameter.name} of {called}"
    if parameter.field == "bounds":
        return _bounds(what, value, argument.span, sql)
    if parameter.field == "value":
        if value in STRATEGIES:
            return value
        if _is_number(value):
            return float(value)  # type: ignore[arg-type]
        told = ", ".join(f"'{name}'" for name in STRATEGIES)
        raise plan_error(
            f"{what} must be {told} or a number, got {_shown(value)}", sql, argument.span,
            "for another value: coalesce(column, value) AS column in the query",
        )  # fmt: skip
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not parameter.least <= value <= parameter.most:  # type: ignore[operator]
        raise plan_error(
            f"{what} must be a whole number from {parameter.least} to {parameter.most:,}, got "
            f"{_shown(value)}",
            sql,
            argument.span,
        )
    return value


def _bounds(what: str, value: Value, span: Span, sql: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, tuple) else ()
    bounds = tuple(float(v) for v in numbers if _is_number(v))  # type: ignore[arg-type]
    rising = all(low < high for low, high in pairwise(bounds))
    if not bounds or len(bounds) < len(numbers) or not rising or len(bounds) > WIDEST:
        raise plan_error(
            f"{what} must be a list of numbers, each larger than the one before, got "
            f"{_shown(value)}",
            sql,
            span,
            "[0, 10, 100]",
        )
    return bounds


def _is_number(value: Value) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value)  # type: ignore[arg-type]


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, str):
        return f"'{value}'"
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    return number(value) if isinstance(value, float) else str(value)
