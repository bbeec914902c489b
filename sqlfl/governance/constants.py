"""Constants beside columns in an expression, in DuckDB's parse of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDEST = 8
"""Maximum columns of an expression whose neighbouring constants are listed."""


def literal(node: dict[str, Any]) -> str | None:
    """Return the text of a constant, which one cast may type. Casts of casts may read its bytes as
    something else: `'0'::BLOB::BIT::BIGINT` is 48.
    """
    if node["class"] == "CAST":
        node = node["child"]
    if node["class"] != "CONSTANT" or is_null(node):
        return None
    return str((node.get("literal") or {}).get("text", ""))


def is_null(node: dict[str, Any]) -> bool:
    return node["class"] == "CONSTANT" and str((node.get("literal") or {}).get("kind")).startswith(
        "NULL"
    )


def beside(node: dict[str, Any]) -> Iterator[str | None]:
    """Yield texts of the constants that are direct parts of this expression, and None for a test
    for NULL.
    """
    if node.get("type") in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        yield None
    for part in node.values():
        yield from _direct(part)


def _direct(part: object) -> Iterator[str]:
    """Yield the constants of a part, or of a container of parts, but not of an expression within
    it.
    """
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
