"""Constants that stand beside columns in an expression, as DuckDB's parse of it has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDEST = 8
"""Columns of an expression of which it is told what stands beside them."""


def literal(node: dict[str, Any]) -> str | None:
    """The text of a constant."""
    while node["class"] == "CAST":
        node = node["child"]
    if node["class"] != "CONSTANT" or is_null(node):
        return None
    return str((node.get("literal") or {}).get("text", ""))


def is_null(node: dict[str, Any]) -> bool:
    return node["class"] == "CONSTANT" and str((node.get("literal") or {}).get("kind")).startswith(
        "NULL"
    )


def beside(node: dict[str, Any]) -> Iterator[str | None]:
    """Texts of the constants that are parts of this very expression, and None where it asks whether
    something is NULL."""
    if node.get("type") in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        yield None
    for part in node.values():
        yield from _direct(part)


def _direct(part: object) -> Iterator[str]:
    """Of a part, or of what holds parts: not of what is an expression of its own."""
    if isinstance(part, list):
        for item in part:
            yield from _direct(item)
    elif isinstance(part, dict):
        match part.get("class"):
            case "CONSTANT" | "CAST":
                text = literal(part)
                if text is not None:
                    yield text
            case None:
                for item in part.values():
                    yield from _direct(item)
