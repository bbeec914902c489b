"""Join keys of rows held as columns: their distinct values, and the tags of these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import KeySpecification
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows

FEW = 1 << 16
"""Maximum distinct values to hash in Python. With more, the database, which hashes in several
threads, is faster.
"""


def held_key(
    con: sql.Connection, held: HeldRows, position: int, key: KeySpecification, secret: bytes
) -> tuple[Array, Array] | None:
    """Return the tag of each distinct value of a key, uint8 (u, 16), and each row's value, (n,): u
    if a part is NULL. None if a part is NULL and the key is not nullable.
    """
    parts = [held.columns[f"p{position}_{p}"] for p in range(len(key.types))]
    if not any(part.null_count for part in parts):
        codes, distinct = _distinct(parts)
        return _tags(con, key, distinct, secret), codes
    if not key.nullable:
        return None
    whole = np.ones(len(parts[0]), bool)
    for part in parts:
        whole &= part.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(whole)
    own, distinct = _distinct([part.take(pa.array(places)) for part in parts])
    codes = np.full(len(whole), len(distinct[0]), np.uint32)
    codes[places] = own
    return _tags(con, key, distinct, secret), codes


def _distinct(parts: Sequence[pa.Array]) -> tuple[Array, list[pa.Array]]:
    """(n,): which distinct tuple of values a row has, and the values of these tuples."""
    first = parts[0].dictionary_encode()
    codes, distinct = first.indices.to_numpy(), [first.dictionary]
    for part in parts[1:]:
        further = part.dictionary_encode()
        size = max(len(further.dictionary), 1)
        both = codes.astype(np.int64) * size + further.indices.to_numpy()
        both = pa.array(both).dictionary_encode()
        codes = both.indices.to_numpy()
        before, second = np.divmod(both.dictionary.to_numpy(), size)
        places = pa.array(before)
        distinct = [values.take(places) for values in distinct]
        distinct.append(further.dictionary.take(pa.array(second)))
    return codes, distinct


def _tags(
    con: sql.Connection, key: KeySpecification, distinct: Sequence[pa.Array], secret: bytes
) -> Array:
    if len(distinct[0]) <= FEW:
        held = (map(_bytes_of, part.to_pylist()) for part in distinct)
        return keys.tags(secret, keys.messages_of(key, held))
    columns: dict[str, object] = {f"p{p}": part for p, part in enumerate(distinct)}
    table = pa.table({"place": np.arange(len(distinct[0])), **columns})
    values = [
        sql.call("encode", sql.text(value)) if pa.types.is_integer(part.type) else value
        for value, part in zip(sql.columns_of(columns), distinct, strict=True)
    ]
    tag = keys.tag(keys.message_of(key, values))
    with sql.registered(con, "sqlfl_distinct", table) as given:
        query = sql.query("SELECT place, $tag AS tag FROM $given", tag=tag, given=given)
        with sql.batches(con, query, parameters=keys.pads(secret)) as reader:
            found = reader.read_all()
    tags = np.empty((found.num_rows, keys.TAG_BYTES), np.uint8)
    tags[found.column("place").to_numpy()] = keys.tag_bytes(found.column("tag"))
    return tags


def _bytes_of(value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else b"%d" % value
