"""Names of a fragment's columns beside its features: the planner writes them, a client reads them.

Features have names of their own, which do not begin with RESERVED.
"""

from __future__ import annotations

from sqlfl.contract.schema import SlotSpecification

RESERVED = "sqlfl_"
"""What no name in a statement may begin with."""
TARGET = "sqlfl_target"
WEIGHT = "sqlfl_weight"
OFFSET = "sqlfl_offset"
BASE = "sqlfl_base"
"""The whole row of the slot's sources, to draw by."""
KEPT = "sqlfl_kept"
"""Of two fragments that are evaluated as one, tells their rows apart."""
ROW = "sqlfl_row"
"""Of a fragment without any other column."""
MARK = "sqlfl_mark"
"""By which the party knows a row again: it puts it at the end itself."""
KEY = "sqlfl_key_"
IDENTIFIER = "sqlfl_id_"


def key_part(key: int, part: int) -> str:
    """Of a part of a join key, by their numbers."""
    return f"{KEY}{key}_{part}"


def identifier(number: int) -> str:
    return f"{IDENTIFIER}{number}"


def fragment_columns(wanted: SlotSpecification, *, linked: bool) -> list[str]:
    """All columns of a fragment of the slot, in order; `linked`: it is two fragments in one."""
    names = [feature.name for feature in wanted.features]
    names += [TARGET] * wanted.target + [WEIGHT] * wanted.weight + [OFFSET] * wanted.offset
    names += [BASE] * wanted.base
    names += [identifier(number) for number in wanted.identifiers]
    names += [key_part(key.index, part) for key in wanted.keys for part in range(len(key.types))]
    return (names + [KEPT] * linked or [ROW]) + [MARK] * wanted.marked
