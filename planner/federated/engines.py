"""Choice of the engine that computes a slot's local updates, with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlfl.options.training import Options, TowerOptions
from sqlfl.planner.query.ucq import CATEGORY, Slot, Ucq

SQL = "sql"
ARRAYS = "arrays"
DEFAULT_LIMIT = 4 * 1024**3
"""Bytes, where the option memory_limit is not set."""
SHARE = 2
"""Matrices may take 1/SHARE of the limit; the rest is the database's."""
NUMBER_BYTES = 8
CATEGORY_BYTES = 12
"""A one-hot entry: an 8-byte value and a 4-byte column."""
_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class EngineChoice:
    engine: str
    """SQL or ARRAYS."""
    reason: str


def choose_engines(ucq: Ucq, options: Options) -> dict[int, EngineChoice]:
    """Return slot index -> engine.

    With engine = 'auto', a slot uses arrays if the encoded rows of each of its clients, as the
    catalog estimates them before filters, fit the client's share of memory_limit. The values of a
    tower's layers are included; they are outside the database with either engine. If a database
    gives no estimate (views, queries), the engine is sql, which the database's own limit bounds.
    """
    wanted = options.engine
    if wanted != "auto":
        return {s.index: EngineChoice(wanted, f"option engine = '{wanted}'") for s in ucq.slots}
    limit = bytes_of(options.memory_limit) or DEFAULT_LIMIT
    held = {
        client: max(1, sum(1 for s in ucq.slots if s.features and s.of(client)))
        for slot in ucq.slots
        for client in slot.clients
    }
    choices: dict[int, EngineChoice] = {}
    for slot in ucq.slots:
        share = min(limit // SHARE // held[client] for client in slot.clients)
        choices[slot.index] = _choose(slot, share, options.tower)
    return choices


def row_bytes(slot: Slot, tower: TowerOptions | None = None) -> int:
    """Return bytes of one encoded row: numbers, an indicator for each numeric feature, one-hot
    entries; for a tower also hidden units and their derivatives.
    """
    categories = sum(1 for f in slot.features if f.kind == CATEGORY)
    numeric = [f.width + 1 for f in slot.features if f.kind != CATEGORY]
    units = 0 if tower is None else 2 * sum(tower.hidden)
    return NUMBER_BYTES * (sum(numeric) + units) + CATEGORY_BYTES * categories


def bytes_of(limit: object) -> int | None:
    """Return the bytes of a size that DuckDB writes ('4GB', '512 MiB'); None for other text."""
    if isinstance(limit, int):
        return limit
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?(?:ytes)?\s*", str(limit).lower())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _UNITS[match[2] or "b"])


def _choose(slot: Slot, share: int, tower: TowerOptions | None) -> EngineChoice:
    if not slot.features:
        return EngineChoice(SQL, "no features")
    largest = 0
    for client in slot.clients:
        estimates = [f.rows for f in slot.of(client)]
        known = [rows for rows in estimates if rows is not None]
        if len(known) < len(estimates):
            return EngineChoice(SQL, f"{client} gives no estimate of its rows")
        largest = max(largest, sum(known))
    need = largest * row_bytes(slot, tower)
    compared = f"about {readable(need)} of {readable(share)}"
    if tower is not None:
        compared += ", the tower's layers among them"
    return EngineChoice(ARRAYS, compared) if need <= share else EngineChoice(SQL, compared)


def readable(amount: int) -> str:
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
