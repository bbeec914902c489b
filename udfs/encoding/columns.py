"""The encoded columns of a client's active rows, read from its database into arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sqlglot import exp

from sqlfl.base.arrays import Float
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.encoding.numeric import Numeric
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows

BATCH_BYTES = 1 << 22
"""Bytes of a batch's numeric columns, which are transposed in the cache."""


@dataclass(frozen=True, eq=False)
class EncodedColumns:
    """X, before the one-hot columns are centred, and the weights of its rows."""

    counts: Float
    """(a,)"""
    numeric: Numeric
    """(a, p)"""
    onehot: sparse.csr_array
    """(a, q) with a 1 for each known category; a row with an unknown value has none."""


def read_columns(
    con: sql.Connection,
    query: exp.Select,
    rows: int,
    encoding: Encoding,
    plain: Collection[int] = (),
) -> EncodedColumns:
    """Read the columns from the query of `encode` for rows 0..rows-1, in any order."""
    categories = len(encoding.vocabularies)
    counts = np.empty(rows)
    numeric = Numeric.empty(rows, encoding, plain)
    codes = np.empty((rows, categories), np.int32)
    size = BATCH_BYTES // (8 * max(encoding.numeric, 1))
    missing = False
    with sql.batches(con, query, min(max(size, 2048), 65536)) as batches:
        for batch in batches:
            row = batch.column("r").to_numpy()
            counts[row] = batch.column("cnt").to_numpy()
            for matrix, places in ((numeric.wide, numeric.beside), (numeric.single, numeric.at)):
                block = np.empty((len(places), len(row)), matrix.dtype)
                for k, p in enumerate(places):
                    column = batch.column(f"x{p}")
                    missing |= column.null_count > 0
                    block[k] = column.to_numpy(zero_copy_only=False)
                matrix[row] = block.T
            for c in range(categories):
                codes[row, c] = batch.column(f"k{c}").to_numpy()
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def held_columns(held: HeldRows, encoding: Encoding, plain: Collection[int] = ()) -> EncodedColumns:
    """Return the columns that `read_columns` gives for the same rows in temporary tables."""
    rows, given = len(held.counts), held.numbers
    numeric = Numeric.empty(rows, encoding, plain)
    missing = False
    for k, p in enumerate(numeric.at):
        numeric.single[:, k] = given[p]
        missing |= bool(np.isnan(given[p]).any())
    for k, p in enumerate(numeric.beside):
        if p < len(given):
            values = given[p].astype(np.float64)
            if encoding.limits is not None:
                np.clip(values, *encoding.limits[:, p], out=values)
        else:
            flags = held.missing[encoding.indicators[p - len(given)]]
            values = flags.astype(np.float64)
        values -= encoding.centres[p]
        values /= encoding.scales[p]
        values[np.isnan(values)] = 0.0
        numeric.wide[:, k] = values
    codes = np.empty((rows, len(encoding.vocabularies)), np.int32)
    for number, position in categories_of(encoding.features):
        codes_of_rows, entries = held.categories[position]
        codes[:, number] = known_codes(encoding, number, entries)[codes_of_rows]
    counts = held.counts.astype(np.float64)
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def known_codes(encoding: Encoding, number: int, texts: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return the vocabulary entry of each canonical text, −1 without one."""
    shared = encoding.vocabulary_key
    entries = [text.decode() for text in texts] if shared is None else []
    if shared is not None:
        tags = keys.tags(vocabulary_key_of(shared, number), texts)
        entries = [tag.tobytes().hex() for tag in tags]
    places = {entry: code for code, entry in enumerate(encoding.vocabularies[number])}
    return np.array([places.get(entry, -1) for entry in entries], np.int32)


def _onehot(codes: npt.NDArray[Any], encoding: Encoding) -> sparse.csr_array:
    offsets = np.array(encoding.offsets[:-1], np.int64) - encoding.numeric
    known = codes >= 0
    ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    columns = (codes + offsets)[known]
    side = encoding.width - encoding.numeric
    small = max(side, int(ends[-1])) < np.iinfo(np.int32).max
    kind = np.int32 if small else np.int64
    entries = (np.ones(len(columns)), columns.astype(kind), ends.astype(kind))
    return sparse.csr_array(entries, shape=(len(codes), side))
