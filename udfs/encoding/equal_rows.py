"""Active rows with equal features, found by the client's database; few rows held as columns are
compared in Python.

Encoding is a function of the snapshot's values. Rows with equal values have equal encoded rows, and
equal predictions for any parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.udfs import sql
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows
from sqlfl.udfs.numbering.rows import Snapshot

WORTH = 2 / 3
"""Maximum share of distinct rows among active rows for which merging is worth it."""
FEW = 1 << 18
"""Maximum values to compare in Python. With more, the database is faster to see that few rows are
equal.
"""


def merge_equal_rows(snapshot: Snapshot) -> Array:
    """Merge equal active rows. Return the class of every active row, uint32 (a,), numbered in order
    of appearance; the snapshot's active rows then are the classes.

    Returns an empty array, and changes nothing, if too few rows are equal. NULL equals NULL, and 0
    equals -0. Raises InternalError for a slot without features.
    """
    names = snapshot.feature_columns
    if not names:
        raise InternalError(f"slot {snapshot.specification.slot} has no features")
    if not snapshot.active:
        return np.zeros(0, np.uint32)
    if snapshot.held is not None and snapshot.active * len(names) <= FEW:
        classes, counts = _of_columns(snapshot.held), snapshot.held.weights
    elif _estimated(snapshot, names) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    else:
        classes, counts = _of_database(snapshot, names)
    # the first row of a class has a larger number than all rows before
    heads = np.flatnonzero(np.diff(np.maximum.accumulate(classes), prepend=-1))
    if len(heads) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    snapshot.merge(heads, np.bincount(classes, counts))
    row_classes: Array = classes.astype(np.uint32)
    return row_classes


def _of_columns(held: HeldRows) -> Array:
    """The class of every row, int64."""
    classes = np.zeros(held.size, np.int64)
    for column in _comparable(held):
        encoded = column.dictionary_encode(null_encoding="encode")
        classes *= len(encoded.dictionary)
        classes += encoded.indices.to_numpy()
        classes = pa.array(classes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return classes


def _comparable(held: HeldRows) -> Iterator[pa.Array]:
    """Yield the columns of features, with equal values where encoding does not distinguish them."""
    arrays = iter(held.missing)
    for position, feature in enumerate(held.features):
        if feature.kind == "category":
            yield held.columns[f"f{position}"]
            continue
        missing = next(arrays)
        if feature.kind == "array":
            yield pa.array(missing)
    for values in held.numbers:
        plain = values + values.dtype.type(0)  # without -0
        plain[np.isnan(plain)] = np.nan
        yield pa.array(plain.view(f"i{plain.itemsize}"))


def _estimated(snapshot: Snapshot, names: list[str]) -> int:
    """Distinct rows, within some per cent."""
    query = sql.query(
        "SELECT approx_count_distinct(hash($columns)) FROM $active",
        columns=sql.columns_of(names),
        active=snapshot.active_table,
    )
    return int(sql.fetch(snapshot.con, query)[0][0])


def _of_database(snapshot: Snapshot, names: list[str]) -> tuple[Array, Array]:
    """Return the class of every active row, int64, and its weight, float64."""
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
    classes: Array = (np.cumsum(first == np.arange(len(first))) - 1)[first]
    return classes, snapshot.of_active_rows(sql.column("cnt"), None, np.float64)
