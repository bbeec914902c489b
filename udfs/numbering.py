"""Row ids, and join keys as codes of tags, in tables of a snapshot.

Row ids run from 0 over all the client's fragments of the slot. They follow the tags of the key
with the most distinct tags, and chance within a tag, so that they tell nothing of the storage
order that the tags do not. Without keys they follow (fragment, chance): the coordinator then
knows a row's fragment from the fragments' sizes.

With a seed they follow from what the rows hold, not from tags, which differ from run to run: a
keyed hash of the row, under a key that takes the seed and all rows of the slot at this client to
know. So who does not have the table cannot tell which row comes where; who sees two runs of one
seed over the same table knows its rows again. Rows that are equal in all columns keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.arrays import Array
from sqlfl.errors import ModelError
from sqlfl.udfs import keys, sql
from sqlfl.udfs.fragments import AS_BLOB

if TYPE_CHECKING:
    from sqlfl.udfs.rows import Snapshot


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


def content_key(snapshot: Snapshot) -> bytes:
    """32 bytes that follow from the specification's seed and all rows, in whatever order these are.

    Numbers count to 24 bits only: a database that adds up in several threads may give the last
    bits of a sum one way or the other.
    """
    content = sql.named(_content(snapshot, rounded=True), "h")
    rows = snapshot.kept(exp.select(content).from_(snapshot.table("raw", "t")))
    again = sql.call("hash", sql.column("h"), sql.string("again"))
    sums = [sql.call("sum", sql.cast(value, "HUGEINT")) for value in (sql.column("h"), again)]
    query = exp.select(sql.call("count", exp.Star()), *sums).from_(rows.subquery("r"))
    seed, slot = snapshot.specification.seed, snapshot.specification.slot
    digest = repr(sql.fetch(snapshot.con, query)[0])
    return keys.derive(digest.encode(), "rows", str(seed), str(slot))


def number_rows(snapshot: Snapshot) -> None:
    """Make the table `ids`: position in `raw`, row id, fragment, and the code of every key.

    A NULL key has the code after the last. Chance is keyed with the snapshot's salt. Raises
    ModelError where a key that is not nullable has a NULL.
    """
    seeded = snapshot.specification.seed is not None
    sizes = []
    for position in range(len(snapshot.specification.keys)):
        size = exp.select(sql.call("count", exp.Star()))
        found = sql.fetch(snapshot.con, size.from_(snapshot.table(f"tags{position}")))
        sizes.append(int(found[0][0]))
    wanted = [sql.column(name, "t") for name in ["pos", "fragment", *_key_columns(snapshot)]]
    drawn: list[exp.Expr] = [sql.column("pos", "t")]
    if seeded:
        drawn = [_content(snapshot, rounded=True), _content(snapshot, rounded=False), *drawn]
    numbers = [sql.named(value, f"n{place}") for place, value in enumerate(drawn)]
    # a window keeps all columns of its source until it is done: wide rows are not to be among them
    rows = snapshot.kept(sql.select(snapshot.table("raw", "t"), [*wanted, *numbers]))
    written = sql.call("encode", sql.text(sql.column("n0", "t")))
    digest = sql.call("sha256", sql.join_text(sql.parameter("salt"), written))
    # 12 bytes are kept inline by DuckDB's strings, and are enough to order any table
    chance = sql.call("array_slice", sql.call("unhex", digest), sql.number(1), sql.number(12))
    codes = [
        sql.call("coalesce", sql.column("code", f"d{k}"), sql.number(size))
        for k, size in enumerate(sizes)
    ]
    order = [chance, *(sql.column(f"n{place}", "t") for place in range(1, len(drawn)))]
    if not sizes:
        order.insert(0, sql.column("fragment", "t"))
    elif not seeded:
        order.insert(0, codes[int(np.argmax(sizes))].copy())
    query = exp.select(
        sql.column("pos", "t"),
        sql.column("fragment", "t"),
        sql.named(sql.row_number(order), "row"),
        *(sql.named(code, f"k{k}") for k, code in enumerate(codes)),
    ).from_(rows.subquery("t"))
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
    snapshot.create("ids", query, {"salt": snapshot.salt})
    size = exp.select(sql.call("count", exp.Star())).from_(snapshot.table("ids"))
    if sql.fetch(snapshot.con, size)[0][0] != sum(snapshot.rows):
        raise ModelError(f"a fragment of slot {snapshot.specification.slot} has NULL join keys")


def _content(snapshot: Snapshot, *, rounded: bool) -> exp.Expr:
    """A hash of row t of `raw`, 8 bytes that follow from all its columns but its position.

    Without `rounded` numbers count to the last bit, and the query takes the parameter `salt`. It is
    DuckDB's own hash, which is fast over wide rows, and may change from version to version.
    """
    wanted = snapshot.specification
    columns = [sql.column("fragment", "t")]
    numbers: list[tuple[str, str]] = []
    for number, feature in enumerate(wanted.features):
        if feature.kind == "category":
            columns.append(sql.column(f"f{number}", "t"))
        else:
            kind = f"FLOAT[{feature.width}]" if feature.kind == "array" else "FLOAT"
            numbers.append((f"f{number}", kind))
    if wanted.target and wanted.classes:
        columns.append(sql.column("y", "t"))
    elif wanted.target:
        numbers.append(("y", "FLOAT"))
    numbers += [("w", "FLOAT")] * wanted.weight
    columns += [sql.column("draw", "t")] * wanted.base
    columns += [sql.column(f"id{k}", "t") for k in wanted.identifiers]
    columns += [sql.column(name, "t") for name in _key_columns(snapshot)]
    if not rounded:
        values: list[exp.Expr] = [sql.column(name, "t") for name, _ in numbers]
        return sql.call("hash", sql.parameter("salt"), *columns, *values)
    # a number beyond the range of FLOAT is NULL
    values = [sql.try_cast(sql.column(name, "t"), kind) for name, kind in numbers]
    return sql.call("hash", *columns, *values)


def _key_columns(snapshot: Snapshot) -> list[str]:
    """The columns of `raw` with the parts of keys."""
    types = [key.types for key in snapshot.specification.keys]
    return [f"p{position}_{p}" for position, parts in enumerate(types) for p in range(len(parts))]


def tags_of(snapshot: Snapshot, key: int) -> Array:
    """uint8 (u, 16): the distinct tags of a key, by code."""
    table = snapshot.table(f"tags{key}")
    query = exp.select(sql.column("code"), sql.column("tag")).from_(table)
    found = sql.reader(snapshot.con, query).read_all()
    tags = np.empty((found.num_rows, keys.TAG_BYTES), np.uint8)
    tags[found.column("code").to_numpy()] = tag_bytes(found.column("tag"))
    return tags


def tag_bytes(column: pa.ChunkedArray) -> Array:
    """uint8 (n, 16), of a column of tags."""
    parts = [np.zeros((0, keys.TAG_BYTES), np.uint8)]
    for chunk in column.cast(pa.binary(keys.TAG_BYTES)).chunks:
        data = np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * keys.TAG_BYTES :]
        parts.append(data[: len(chunk) * keys.TAG_BYTES].reshape(-1, keys.TAG_BYTES))
    return np.concatenate(parts)
