"""Names of a fragment's columns beside its features. The planner writes them, a client reads them.

Features have names of their own, which do not begin with RESERVED.
"""

from __future__ import annotations

from sqlfl.contract.schema import SlotSpecification

RESERVED = "sqlfl_"
"""Prefix that no name in a statement may have."""
TARGET = "sqlfl_target"
WEIGHT = "sqlfl_weight"
OFFSET = "sqlfl_offset"
BASE = "sqlfl_base"
"""Column with the whole row of the slot's sources, for random draws."""
KEPT = "sqlfl_kept"
"""Column that distinguishes the rows of two fragments evaluated as one."""
ROW = "sqlfl_row"
"""Column of a fragment without any other column."""
MARK = "sqlfl_mark"
"""Column by which the party recognises a row. The party itself appends it."""
GROUPS = "sqlfl_groups"
"""Alias of the subquery in a fragment that makes a database's groups; see `Merging`."""
GROUP_KEY = "sqlfl_by_"
"""Columns of groups that they are grouped by, with a number."""
GROUP_PART = "sqlfl_part_"
"""Columns of groups with their aggregates, with a number."""
KEY = "sqlfl_key_"
UNIT = "sqlfl_unit"
"""Column of a query, not of a fragment, whose equal values make rows one unit: it becomes a key."""
IDENTIFIER = "sqlfl_id_"


def key_part(key: int, part: int) -> str:
    """Return the column name of a part of a join key, by their numbers."""
    return f"{KEY}{key}_{part}"


def identifier(number: int) -> str:
    return f"{IDENTIFIER}{number}"


def fragment_columns(wanted: SlotSpecification, *, linked: bool) -> list[str]:
    """Return all columns of a fragment of the slot, in order. linked: it is two fragments in
    one.
    """
    names = [feature.name for feature in wanted.features]
    names += [TARGET] * wanted.target + [WEIGHT] * wanted.weight + [OFFSET] * wanted.offset
    names += [BASE] * wanted.base
    names += [identifier(number) for number in wanted.identifiers]
    names += [key_part(key.index, part) for key in wanted.keys for part in range(len(key.types))]
    return (names + [KEPT] * linked or [ROW]) + [MARK] * wanted.marked
