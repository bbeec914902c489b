"""Types of columns, as DuckDB writes them: which casts lose nothing, and which expressions cannot
fail.

A cast or an expression that fails on some rows tells which rows these are. So nothing here is
guessed: what is not known to be safe is not.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from typing import Any

from sqlfl.governance.constants import is_null

INTEGERS: dict[str, tuple[int, int]] = {
    **{f"{name}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
       for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64),
                          ("HUGEINT", 128))},
    **{f"U{name}": (0, 2**bits - 1)
       for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))},
}  # fmt: skip
"""Least and largest values."""
WHOLE = {"FLOAT": 2**24, "DOUBLE": 2**53}
"""Up to which a type has all whole numbers."""
TEXT = "VARCHAR"
ONE_TEXT = (TEXT, "BOOLEAN", "DATE", "UUID")
"""Types beside integers and ENUMs of which different values have different texts."""
_ALIASES = {
    "INT": "INTEGER", "INT4": "INTEGER", "SIGNED": "INTEGER", "INT8": "BIGINT", "LONG": "BIGINT",
    "INT2": "SMALLINT", "SHORT": "SMALLINT", "INT1": "TINYINT", "TEXT": TEXT, "STRING": TEXT,
    "CHAR": TEXT, "BPCHAR": TEXT, "BOOL": "BOOLEAN", "LOGICAL": "BOOLEAN", "FLOAT8": "DOUBLE",
    "REAL": "FLOAT", "FLOAT4": "FLOAT", "NUMERIC": "DECIMAL", "DATETIME": "TIMESTAMP",
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_SHORT = re.compile(r"-?\d{1,9}")
_SHORT_DECIMAL = re.compile(r"-?\d{0,8}\.\d{1,8}")
NARROW = 18
"""Digits of a DECIMAL that fits beside any other such, and any BIGINT, in one of 38."""
NUMBERS = ("integer", "decimal", "real")
LITERAL, UNKNOWN, NULL = "literal", "unknown", "null"
"""Kinds: of a text that takes the type of what it stands beside, of a value of some type, and of
NULL."""


def type_of(node: dict[str, Any]) -> str:
    """Return the type that a CAST names, as DuckDB writes it. A type with parts, other than DECIMAL
    and VARCHAR, has another text.
    """
    name = str(node.get("type_name")).upper()
    name = _ALIASES.get(name, name)
    parts = node.get("children") or []
    if not parts:
        return "DECIMAL(18,3)" if name == "DECIMAL" else name
    texts = [str((part.get("literal") or {}).get("text", "?")) for part in parts]
    if name == TEXT:  # of a length, which DuckDB does not look at
        return TEXT
    if name == "DECIMAL":
        return f"DECIMAL({texts[0]},{texts[1] if len(texts) > 1 else 0})"
    return f"{name} of ({', '.join(texts)})"


@lru_cache(maxsize=1024)
def lossless(source: str, target: str) -> bool:
    """Return whether a cast of any value works, and different values stay different."""
    if source == target:
        return True
    if target == TEXT:
        return source in INTEGERS or source in ONE_TEXT or source.startswith("ENUM")
    if source in INTEGERS:
        low, high = INTEGERS[source]
        if target in INTEGERS:
            return INTEGERS[target][0] <= low and high <= INTEGERS[target][1]
        if target in WHOLE:
            return max(-low, high) <= WHOLE[target]
        found = _DECIMAL.fullmatch(target)
        return found is not None and len(str(high)) <= int(found[1]) - int(found[2])
    own, other = _DECIMAL.fullmatch(source), _DECIMAL.fullmatch(target)
    if own is not None and other is not None:
        (w, s), (v, t) = (map(int, own.groups()), map(int, other.groups()))
        return t >= s and v - t >= w - s
    return (source, target) == ("FLOAT", "DOUBLE")


@lru_cache(maxsize=1024)
def comparable(left: str, right: str) -> bool:
    """DuckDB compares values of these types as one to which both are cast without loss."""
    if left == right:
        return True
    if left in INTEGERS and right in INTEGERS:
        signed = {name for name in (left, right) if not name.startswith("U")}
        return "HUGEINT" not in signed or len(signed) == 2
    if TEXT in (left, right):
        return left.startswith("ENUM") or right.startswith("ENUM")
    return {left, right} == {"FLOAT", "DOUBLE"}


@lru_cache(maxsize=1024)
def kind_of_type(name: str) -> str:
    """Values of one kind are compared, and stand in for each other, without failing."""
    if name in INTEGERS and name != "HUGEINT":
        return "integer"
    found = _DECIMAL.fullmatch(name)
    if found is not None and int(found[1]) <= NARROW:
        return "decimal"
    return "real" if name in WHOLE else name


def kind_of_constant(node: dict[str, Any]) -> str | None:
    """None where it is a number that is long: beside a column it may fail."""
    if is_null(node):
        return NULL
    value = node.get("literal") or {}
    kind, text = str(value.get("kind")), str(value.get("text", ""))
    if kind == "STRING":
        return LITERAL
    if kind == "BOOLEAN":
        return "BOOLEAN"
    if _SHORT.fullmatch(text):
        return "integer"
    return "decimal" if _SHORT_DECIMAL.fullmatch(text) else None


def kind_of_cast(kind: str | None, node: dict[str, Any], target: str) -> str | None:
    """Return the kind of the value `node` after a cast; None for a cast that may fail."""
    found = kind_of_type(target)
    if kind == LITERAL:
        literal = node.get("literal")  # none of a choice among several
        good = found == TEXT if literal is None else _reads(str(literal["text"]), found)
        return found if good else None
    if kind == NULL or kind == found == "real":
        return found if target != "FLOAT" else None
    if kind is None or (target != TEXT and not (kind in NUMBERS and target == "DOUBLE")):
        return None
    return found


def _reads(text: str, kind: str) -> bool:
    """Return True if DuckDB reads the text of a constant as a value of the kind."""
    match kind:
        case "VARCHAR":
            return True
        case "BOOLEAN":
            return text in ("true", "false", "t", "f")
        case "integer":
            return text in map(str, range(101))
        case "real":
            return bool(_SHORT.fullmatch(text) or _SHORT_DECIMAL.fullmatch(text))
        case "DATE":
            try:
                return dt.date.fromisoformat(text).isoformat() == text
            except ValueError:
                return False
    return False


def together(kinds: list[str | None]) -> str | None:
    """Return the common kind of values that are compared, or of which one is taken; None if DuckDB
    may fail to bring them to one type."""
    several = [kind for kind in kinds if kind != NULL]
    if len(several) <= 1:
        return several[0] if several else NULL
    known = set(several)
    if None in known or UNKNOWN in known:
        return None
    if len(known) == 1:
        return several[0]
    if known <= {*NUMBERS}:
        return "real" if "real" in known else "decimal"
    return TEXT if known == {TEXT, LITERAL} else None
