"""Row ids, and join keys as codes of tags, in tables of a snapshot.

Row ids run from 0 over all the client's fragments of the slot. They follow the tags of the key
with the most distinct tags, and chance within a tag, so that they tell nothing of the storage
order that the tags do not. Without keys they follow (fragment, chance): the coordinator then
knows a row's fragment from the fragments' sizes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.errors import ModelError
from sqlfl.udfs import keys, sql
from sqlfl.udfs.fragments import AS_BLOB

if TYPE_CHECKING:
    from sqlfl.udfs.rows import Snapshot

Array = npt.NDArray[Any]


def hash_keys(snapshot: Snapshot, secret: bytes) -> None:
    """Make the tables tags<k>, per key a dictionary: its parts, tag and code.

    Every distinct value is hashed once; a key with a NULL in a part is not in it.
    """
    parameters = keys.pads(secret)
    for position, key in enumerate(snapshot.specification.keys):
        names = [f"p{position}_{p}" for p in range(len(key.types))]
        distinct = exp.select(*(sql.column(n) for n in names)).distinct()
        distinct = snapshot.kept(distinct.from_(snapshot.table("raw")))
        if key.nullable:
            distinct = distinct.where(*(exp.Not(this=sql.is_null(sql.column(n))) for n in names))
        parts: list[exp.Expr] = [
            sql.call("decode", sql.column(name)) if kind in AS_BLOB else sql.column(name)
            for name, kind in zip(names, key.types, strict=True)
        ]
        tag = keys.tag(keys.key_message(key, parts))
        hashed = exp.select(*(sql.column(n) for n in names), sql.named(tag, "tag"))
        hashed = hashed.from_(distinct.subquery("d"))
        code = sql.row_number([sql.column("tag")])
        query = exp.select(exp.Star(), sql.named(code, "code")).from_(hashed.subquery("h"))
        snapshot.create(f"tags{position}", query, parameters)


def number_rows(snapshot: Snapshot) -> None:
    """Make the table `ids`: position in `raw`, row id, fragment, and the code of every key.

    A NULL key has the code after the last. Raises ModelError where a key that is not nullable has a
    NULL.
    """
    sizes = []
    for position in range(len(snapshot.specification.keys)):
        size = exp.select(sql.call("count", exp.Star()))
        found = sql.fetch(snapshot.con, size.from_(snapshot.table(f"tags{position}")))
        sizes.append(int(found[0][0]))
    written = sql.call("encode", sql.text(sql.column("pos", "t")))
    digest = sql.call("sha256", sql.join_text(sql.parameter("salt"), written))
    # 12 bytes are kept inline by DuckDB's strings, and are enough to order any table
    chance = sql.call("array_slice", sql.call("unhex", digest), sql.number(1), sql.number(12))
    codes = [
        sql.call("coalesce", sql.column("code", f"d{k}"), sql.number(size))
        for k, size in enumerate(sizes)
    ]
    first: exp.Expr = sql.column("fragment", "t")
    if sizes:
        first = codes[int(np.argmax(sizes))].copy()
    query = exp.select(
        sql.column("pos", "t"),
        sql.column("fragment", "t"),
        sql.named(sql.row_number([first, chance]), "row"),
        *(sql.named(code, f"k{k}") for k, code in enumerate(codes)),
    ).from_(snapshot.table("raw", "t"))
    for position, key in enumerate(snapshot.specification.keys):
        matches = [
            sql.equal(
                sql.column(f"p{position}_{p}", "t"),
                sql.column(f"p{position}_{p}", f"d{position}"),
            )
            for p in range(len(key.types))
        ]
        query = query.join(
            snapshot.table(f"tags{position}", f"d{position}"),
            on=exp.and_(*matches),
            join_type="left" if key.nullable else "",
        )
    snapshot.create("ids", snapshot.kept(query), {"salt": os.urandom(32)})
    size = exp.select(sql.call("count", exp.Star())).from_(snapshot.table("ids"))
    if sql.fetch(snapshot.con, size)[0][0] != sum(snapshot.rows):
        raise ModelError(f"a fragment of slot {snapshot.specification.slot} has NULL join keys")


def tags_of(snapshot: Snapshot, key: int) -> Array:
    """uint8 (u, 16): the distinct tags of a key, by code."""
    table = snapshot.table(f"tags{key}")
    query = exp.select(sql.column("code"), sql.column("tag")).from_(table)
    found = sql.reader(snapshot.con, query).read_all()
    tags = np.empty((found.num_rows, keys.TAG_BYTES), np.uint8)
    column = found.column("tag").cast(pa.binary(keys.TAG_BYTES))
    start = 0
    codes = found.column("code").to_numpy()
    for chunk in column.chunks:
        size = len(chunk)
        data = np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * keys.TAG_BYTES :]
        tags[codes[start : start + size]] = data[: size * keys.TAG_BYTES].reshape(size, -1)
        start += size
    return tags
