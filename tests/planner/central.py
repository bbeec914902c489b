"""The same query run centrally and by its plan: fragments, keys and mapping query by hand."""

from __future__ import annotations

from typing import Any

import duckdb

from sqlfl.planner.emit import mapping_query
from sqlfl.planner.ucq import Ucq
from sqlfl.schema import Client


def planned_rows(ucq: Ucq, databases: dict[Client, duckdb.DuckDBPyConnection]) -> list[Any]:
    """The rows that the plan joins: output columns in order, then identifiers; sorted."""
    shown: dict[int, list[tuple[dict[str, Any], ...]]] = {}
    codes: dict[tuple[int, Any], int] = {}
    coordinator = duckdb.connect()
    try:
        for slot in ucq.slots:
            columns = "".join(f", key_{key} INTEGER" for key in slot.keys)
            coordinator.execute(
                f'CREATE TABLE slot_{slot.index} (fragment USMALLINT, "row" INTEGER{columns})'
            )
            rows: list[Any] = []
            for fragment in slot.fragments:
                cursor = databases[fragment.client].cursor()
                found = cursor.execute(fragment.sql)
                names = [column[0] for column in found.description]
                assert names == expected_columns(ucq, slot.index), (names, fragment.sql)
                for values in found.fetchall():
                    row = dict(zip(names, values, strict=True))
                    tags = []
                    for key in slot.keys:
                        types = ucq.keys[key].types
                        parts = tuple(row[f"sqlfl_key_{key}_{p}"] for p in range(len(types)))
                        assert None not in parts
                        tags.append(codes.setdefault((key, parts), len(codes)))
                    places = ", ".join("?" * (2 + len(tags)))
                    coordinator.execute(
                        f"INSERT INTO slot_{slot.index} VALUES ({places})",
                        [fragment.index, len(rows), *tags],
                    )
                    rows.append(row)
            shown[slot.index] = rows
        joined = coordinator.execute(mapping_query(ucq).sql(dialect="duckdb"))
        slots = [int(column[0].removeprefix("slot_")) for column in joined.description]
        result = []
        for numbers in joined.fetchall():
            merged: dict[str, Any] = {}
            for slot_index, number in zip(slots, numbers, strict=True):
                merged |= shown[slot_index][number]
            names = ["sqlfl_target" if name == ucq.target else name for name in ucq.columns]
            names += [f"sqlfl_id_{k}" for k in range(len(ucq.identifiers))]
            result.append(tuple(merged[name] for name in names))
        return ordered(result)
    finally:
        coordinator.close()


def expected_columns(ucq: Ucq, index: int) -> list[str]:
    """The columns of the slot's fragments, as their contract says."""
    slot = ucq.slots[index]
    names = [feature.name for feature in slot.features]
    names += ["sqlfl_target"] if slot.target else []
    names += [f"sqlfl_id_{k}" for k in slot.identifiers]
    for key in slot.keys:
        names += [f"sqlfl_key_{key}_{part}" for part in range(len(ucq.keys[key].types))]
    return names or ["sqlfl_row"]


def ordered(rows: list[Any]) -> list[Any]:
    """Rows in an order of their own; numbers of different types compare as numbers."""

    def text(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, str):
            return f"'{value}'"
        try:
            return f"{float(value):.9g}"
        except (TypeError, ValueError):
            return str(value)

    return sorted(tuple(text(value) for value in row) for row in rows)
