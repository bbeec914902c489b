"""Casts that lose nothing, asked of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.governance.value_types import INTEGERS, lossless

DECIMALS = [(3, 0), (5, 0), (5, 2), (9, 0), (10, 0), (12, 2), (18, 3), (20, 0), (38, 0), (38, 10)]
NUMBERS = {
    **{name: [str(number) for number in (low, low + 1, 0, 1, high - 1, high)]
       for name, (low, high) in INTEGERS.items()},
    **{f"DECIMAL({width},{scale})": [
        f"{sign}{number[:-scale] or '0'}.{number[-scale:]}" if scale else f"{sign}{number}"
        for sign in ("-", "")
        for number in ("9" * width, "9" * (width - 1) + "8", "1".zfill(max(scale, 1) + 1))
    ] for width, scale in DECIMALS},
}  # fmt: skip
"""Ends of each type, and numbers beside them."""


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def _keeps(con: duckdb.DuckDBPyConnection, source: str, target: str) -> bool:
    """Return whether each number of the source comes back as it was from a cast to the target."""
    values = ", ".join(f"('{number}'::{source})" for number in NUMBERS[source])
    cast = f"TRY_CAST(TRY_CAST(v AS {target}) AS {source})"
    kept_all = f"coalesce(bool_and({cast} IS NOT DISTINCT FROM v), false)"
    ((kept,),) = con.execute(f"SELECT {kept_all} FROM (VALUES {values}) t(v)").fetchall()
    return bool(kept)


@pytest.mark.parametrize("source", NUMBERS)
def test_a_cast_of_numbers_is_lossless_where_ends_come_back(
    source: str, con: duckdb.DuckDBPyConnection
) -> None:
    targets = [*NUMBERS, "VARCHAR"]
    if source in INTEGERS:
        targets += ["FLOAT", "DOUBLE"]
    said = {target: lossless(source, target) for target in targets}
    kept = {target: _keeps(con, source, target) for target in targets}
    assert not {target for target in targets if said[target] and not kept[target]}
    # others that DuckDB keeps are refused all the same, as DECIMAL(3,0) to INTEGER
    exact = [
        t for t in targets if t.startswith("DECIMAL") or (source in INTEGERS and t in INTEGERS)
    ]
    assert {t for t in exact if said[t]} == {t for t in exact if kept[t]}
