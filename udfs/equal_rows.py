"""Active rows that are equal in all features, found by the client's own database.

Encoding is a function of the values that the snapshot keeps, so rows that are equal in these have
equal encoded rows, and the same predictions whatever the parameters are.
"""

from __future__ import annotations

import numpy as np

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.udfs import sql
from sqlfl.udfs.rows import Snapshot

WORTH = 2 / 3
"""Of the active rows: as many distinct ones make it worth to train each once."""


def merge_equal_rows(snapshot: Snapshot) -> Array:
    """The class of every active row, uint32 (a,), numbered as they first come; the active rows of
    the snapshot are the classes from then on. Empty, and nothing is changed, where so few rows are
    equal that it is not worth it, by DuckDB's estimate.

    NULL equals NULL, and 0 equals -0. Raises InternalError for a slot without features.
    """
    names = snapshot.feature_columns
    if not names:
        raise InternalError(f"slot {snapshot.specification.slot} has no features")
    if not snapshot.active or _estimated(snapshot, names) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    first, counts = _firsts(snapshot, names)
    heads = first == np.arange(len(first))
    classes = (np.cumsum(heads) - 1)[first]
    snapshot.merge(np.flatnonzero(heads), np.bincount(classes, counts))
    found: Array = classes.astype(np.uint32)
    return found


def _estimated(snapshot: Snapshot, names: list[str]) -> int:
    """Distinct rows, within some per cent."""
    query = sql.query(
        "SELECT approx_count_distinct(hash($columns)) FROM $active",
        columns=sql.columns_of(names),
        active=snapshot.active_table,
    )
    return int(sql.fetch(snapshot.con, query)[0][0])


def _firsts(snapshot: Snapshot, names: list[str]) -> tuple[Array, Array]:
    """Of every active row the first one that is equal to it, int64, and what it counts, float64."""
    query = sql.query(
        "SELECT list(r) AS r FROM $active GROUP BY $columns",
        columns=sql.columns_of(names),
        active=snapshot.active_table,
    )
    first = np.empty(snapshot.active, np.int64)
    with sql.batches(snapshot.con, query) as reader:
        for batch in reader:
            equal = batch.column("r")
            rows, starts = equal.flatten().to_numpy(), equal.offsets.to_numpy()
            rows, starts = rows.astype(np.int64), starts - starts[0]
            if len(rows):
                heads = np.minimum.reduceat(rows, starts[:-1])
                first[rows] = np.repeat(heads, np.diff(starts))
    return first, snapshot.of_active_rows(sql.column("cnt"), None, np.float64)
