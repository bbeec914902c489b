"""Active rows that are equal in all features, found by the client's own database; of few rows that
are held as columns, in these.

Encoding is a function of the values that the snapshot keeps, so rows that are equal in these have
equal encoded rows, and the same predictions whatever the parameters are.
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
"""Of the active rows: as many distinct ones make it worth to train each once."""
FEW = 1 << 18
"""Values that are compared here: of more, the database sees sooner that few rows are equal."""


def merge_equal_rows(snapshot: Snapshot) -> Array:
    """The class of every active row, uint32 (a,), numbered as they first come; the active rows of
    the snapshot are the classes from then on. Empty, and nothing is changed, where so few rows are
    equal that it is not worth it.

    NULL equals NULL, and 0 equals -0. Raises InternalError for a slot without features.
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
    # the first row of a class has a number beyond those of all rows before
    heads = np.flatnonzero(np.diff(np.maximum.accumulate(classes), prepend=-1))
    if len(heads) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    snapshot.merge(heads, np.bincount(classes, counts))
    found: Array = classes.astype(np.uint32)
    return found


def _of_columns(held: HeldRows) -> Array:
    """The class of every row, int64."""
    classes = np.zeros(held.size, np.int64)
    for column in _comparable(held):
        own = column.dictionary_encode(null_encoding="encode")
        classes *= len(own.dictionary)
        classes += own.indices.to_numpy()
        classes = pa.array(classes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return classes


def _comparable(held: HeldRows) -> Iterator[pa.Array]:
    """The columns of features, with equal values where encoding does not tell them apart."""
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
    """The class of every active row, int64, and what the row counts, float64."""
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
