"""DuckDB's types in the planner: comparisons, and types that models can learn from.

The tables were derived from DuckDB's own plans; `tests/planner/test_types.py` checks them.
"""

from __future__ import annotations

import re
from itertools import combinations

from sqlfl.planner.query.ucq import ARRAY, BOOLEAN, CATEGORY, NUMERIC

_DIGITS = {
    "TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19, "HUGEINT": 38,
    "UTINYINT": 3, "USMALLINT": 5, "UINTEGER": 10, "UBIGINT": 20, "UHUGEINT": 38,
}  # fmt: skip
_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_UNSIGNED = ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT")
_ALIASES = {
    "INT": "INTEGER", "REAL": "FLOAT", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE",
    "TIMETZ": "TIME WITH TIME ZONE", "TEXT": "VARCHAR", "STRING": "VARCHAR", "BOOL": "BOOLEAN",
}  # fmt: skip
_TEMPORAL = (
    "DATE",
    "TIMESTAMP_S",
    "TIMESTAMP_MS",
    "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_NS",
)
_WITH_FIELDS = ("STRUCT", "UNION", "MAP", "JSON", "VARIANT", "GEOMETRY")
_TIMES = ("TIME", "TIME WITH TIME ZONE")
NULL_TYPE = '"NULL"'

_EPOCH = {"DATE": "1970-01-01", "TIME": "00:00:00", "UUID": "00000000-0000-0000-0000-000000000000"}


def has_fields(type_: str) -> bool:
    """Return whether DuckDB reads `x.y` as a part of a column x of this type."""
    return type_.startswith(_WITH_FIELDS) and not type_.endswith("]")


def normal(type_: str) -> str:
    """Return one spelling per type."""
    text = type_.strip()
    if text.upper().startswith(("ENUM", "STRUCT", "MAP", "UNION")):
        return text
    return _ALIASES.get(text.upper(), text.upper())


def is_text(type_: str) -> bool:
    name = normal(type_).upper()
    return name == "VARCHAR" or (name.startswith("ENUM") and not name.endswith("]"))


def is_integer(type_: str) -> bool:
    return normal(type_) in _DIGITS


def is_number(type_: str) -> bool:
    name = normal(type_)
    decimal = name.startswith("DECIMAL") and not name.endswith("]")
    return name in _DIGITS or name in ("FLOAT", "DOUBLE", "BIGNUM") or decimal


def array_width(type_: str) -> int | None:
    """Return k of a one-dimensional array T[k] of numbers, else None."""
    match = re.fullmatch(r"([^\[\]]+)\[(\d+)\]", normal(type_))
    return int(match[2]) if match and is_number(match[1]) else None


def kind(type_: str) -> str | None:
    """Return NUMERIC, BOOLEAN, ARRAY or CATEGORY; None for a type that cannot be a feature."""
    if normal(type_) == "BOOLEAN":
        return BOOLEAN
    if is_number(type_):
        return NUMERIC
    if is_text(type_):
        return CATEGORY
    return ARRAY if array_width(type_) is not None else None


def feature_hint(type_: str) -> str:
    """Return an alternative for a column that cannot be a feature."""
    name = normal(type_)
    if name == "DATE":
        return "take numbers from it: year(column), dayofweek(column), or epoch(column)"
    if name in _TEMPORAL:
        return "take numbers from it: hour(column), dayofweek(column), or epoch(column)"
    if name in _TIMES:
        return "take numbers from it: extract(hour FROM column)"
    if name == "INTERVAL":
        return "take a number from it: epoch(column)"
    if name == "UUID":
        return (
            "an identifier says nothing about other rows; leave it out, or name it in PREDICT's ID"
        )
    if name.endswith("[]"):
        return "give the list a fixed size: column::FLOAT[k], or aggregate it: list_sum(column)"
    if name.endswith("]"):
        return "flatten it to an array of numbers: FLOAT[k]"
    if name.startswith("STRUCT"):
        return "take its fields: column.field"
    return "convert it to a number, a boolean, a text or an array FLOAT[k] first"


def comparison_type(left: str, right: str) -> str | None:
    """Return the type to which DuckDB casts both sides of `left = right`; None without a sensible
    one.

    DuckDB binds more than this (a date with a number, say), and fails at run time.
    """
    left, right = normal(left), normal(right)
    if NULL_TYPE in (left, right):  # of a column of constants that are all NULL
        other = right if left == NULL_TYPE else left
        return "INTEGER" if other == NULL_TYPE else comparison_type(other, other)
    if left == right:
        return "VARCHAR" if is_text(left) else left
    if is_text(left):
        return "VARCHAR" if is_text(right) else right
    if is_text(right):
        return left
    if left == "BOOLEAN" and is_number(right):
        return right
    if right == "BOOLEAN" and is_number(left):
        return left
    if is_number(left) and is_number(right):
        return _number(left, right)
    if left in _TEMPORAL and right in _TEMPORAL:
        return _TEMPORAL[max(map(_TEMPORAL.index, (left, right)))]
    return None  # of TIME and TIME WITH TIME ZONE, DuckDB takes the one that stands on the left


def union_type(types: tuple[str, ...]) -> str | None:
    """Return the type of a column whose branches have `types`; None if they are incompatible."""
    known = [normal(t) for t in types if t != NULL_TYPE]
    if not known:
        return NULL_TYPE
    common = known[0]
    for type_ in known[1:]:
        joined = _union_pair(common, type_)
        if joined is None:
            return None
        common = joined
    return common


def lossless(left: str, right: str) -> str | None:
    """Return a type in which values of both compare as in either; None without one."""
    if left == right:
        return left
    if is_integer(left) and is_integer(right):
        common = comparison_type(left, right)
        return (
            common if common is not None and all(_holds(common, t) for t in (left, right)) else None
        )
    return None


def keeps_unlike(narrow: str, wide: str) -> bool:
    """Return whether unlike values of one type are unlike in the type that they are compared as."""
    narrow, wide = normal(narrow), normal(wide)
    if narrow == wide or (is_text(narrow) and wide == "VARCHAR"):
        return True
    if wide == "DOUBLE":
        return narrow == "FLOAT" or (narrow in _DIGITS and _DIGITS[narrow] <= 10)
    if narrow == "DATE":
        return wide in _TEMPORAL
    return _holds(wide, narrow) or (narrow in _DIGITS and wide.startswith("DECIMAL"))


def can_be_key(type_: str) -> bool:
    """Return whether values of this type have a canonical form that can be hashed."""
    name = normal(type_)
    plain = is_number(name) or is_text(name) or name in ("BOOLEAN", "TIME", "UUID", "BLOB")
    return plain or name in _TEMPORAL


def neutral(type_: str) -> str:
    """Return text of a value of a key type, for rows whose key does not matter."""
    name = normal(type_)
    if is_number(name):
        return "0"
    if name == "BOOLEAN":
        return "false"
    return _EPOCH["DATE"] if name in _TEMPORAL else _EPOCH.get(name, "")


def _union_pair(left: str, right: str) -> str | None:
    if left == right:
        return left
    if is_text(left) != is_text(right):
        return None
    if left.endswith("[]") and right.endswith("[]"):
        element_type = union_type((left[:-2], right[:-2]))
        return None if element_type is None else f"{element_type}[]"
    widths = {array_width(left), array_width(right)}
    if widths != {None}:
        if len(widths) > 1 or None in widths:
            return None
        element = comparison_type(left.partition("[")[0], right.partition("[")[0])
        return f"{element}[{widths.pop()}]"
    return comparison_type(left, right)


def _number(left: str, right: str) -> str:
    names = {left, right}
    if "DOUBLE" in names:
        return "DOUBLE"
    if "BIGNUM" in names:
        return "BIGNUM"
    if "FLOAT" in names:
        return "FLOAT"
    if left in _DIGITS and right in _DIGITS:
        return _integer(left, right)
    (width, scale), (other_width, other_scale) = _decimal(left), _decimal(right)
    digits = max(width - scale, other_width - other_scale)
    scale = max(scale, other_scale)
    return f"DECIMAL({min(38, digits + scale)},{scale})"


def _integer(left: str, right: str) -> str:
    for family in (_SIGNED, _UNSIGNED):
        if left in family and right in family:
            return family[max(family.index(left), family.index(right))]
    signed, unsigned = (left, right) if left in _SIGNED else (right, left)
    place, other = _SIGNED.index(signed), _UNSIGNED.index(unsigned)
    if unsigned == "UHUGEINT":
        # DuckDB takes the next signed type for any width of the unsigned one
        return "DOUBLE" if signed == "HUGEINT" else _SIGNED[place + 1]
    return _SIGNED[max(place, other + 1)]


def _decimal(type_: str) -> tuple[int, int]:
    if type_ in _DIGITS:
        return _DIGITS[type_], 0
    match = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_)
    return (int(match[1]), int(match[2])) if match else (18, 3)


def _holds(wide: str, narrow: str) -> bool:
    if wide not in _DIGITS:
        return False
    if narrow in _UNSIGNED and wide in _SIGNED:
        return _SIGNED.index(wide) > _UNSIGNED.index(narrow)
    return (wide in _SIGNED) == (narrow in _SIGNED) and _DIGITS[wide] >= _DIGITS[narrow]


def first_conflict(types: tuple[str, ...]) -> tuple[int, int]:
    """Positions of the first two types that have no union type."""
    for left, right in combinations(range(len(types)), 2):
        if union_type((types[left], types[right])) is None:
            return left, right
    return 0, len(types) - 1
