"""Row ids, and join keys as codes of tags, in tables of a tables.

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

import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.arrays import Array
from sqlfl.errors import ModelError
from sqlfl.udfs import keys, sql
from sqlfl.udfs.fragments import AS_BLOB
from sqlfl.udfs.tables import SlotTables


def hash_keys(tables: SlotTables, secret: bytes) -> None:
    """Make the tables tags<k>, per key a dictionary: its parts, tag and code.

    Every distinct value is hashed once; a key with a NULL in a part is not in it.
    """
    for position, key in enumerate(tables.specification.keys):
        names = [f"p{position}_{p}" for p in range(len(key.types))]
        own = sql.columns_of(names)
        distinct = sql.query("SELECT DISTINCT $own FROM $raw", own=own, raw=tables.table("raw"))
        distinct = tables.kept(distinct)
        if key.nullable:
            distinct = distinct.where(*(exp.Not(this=sql.is_null(part.copy())) for part in own))
        parts: list[exp.Expr] = [
            sql.call("decode", part) if kind in AS_BLOB else part
            for part, kind in zip(own, key.types, strict=True)
        ]
        query = sql.query(
            """SELECT *, row_number() OVER (ORDER BY tag) - 1 AS code
            FROM (SELECT $own, $tag AS tag FROM $distinct AS d) AS h""",
            own=own,
            tag=keys.tag(keys.key_message(key, parts)),
            distinct=distinct,
        )
        tables.create(f"tags{position}", query, keys.pads(secret))


def content_key(tables: SlotTables) -> bytes:
    """32 bytes that follow from the specification's seed and all rows, in whatever order these are.

    Numbers count to 24 bits only: a database that adds up in several threads may give the last
    bits of a sum one way or the other.
    """
    rows = sql.query(
        "SELECT $content AS h FROM $raw AS t",
        content=_content(tables, rounded=True),
        raw=tables.table("raw"),
    )
    query = sql.query(
        """SELECT count(*), sum(CAST(h AS HUGEINT)), sum(CAST(hash(h, 'again') AS HUGEINT))
        FROM $rows AS r""",
        rows=tables.kept(rows),
    )
    seed, slot = tables.specification.seed, tables.specification.slot
    digest = repr(sql.fetch(tables.con, query)[0])
    return keys.derive(digest.encode(), "rows", str(seed), str(slot))


def number_rows(tables: SlotTables, salt: bytes, rows: int) -> None:
    """Make the table `ids`: position in `raw`, row id, fragment, and the code of every key.

    A NULL key has the code after the last. Chance is keyed with the `salt`. Raises ModelError where
    a key that is not nullable has a NULL, so that there are fewer than `rows`.
    """
    wanted = tables.specification
    sizes = [_size(tables, f"tags{position}") for position in range(len(wanted.keys))]
    drawn: list[exp.Expr] = [sql.column("pos", "t")]
    if wanted.seed is not None:
        drawn = [_content(tables, rounded=True), _content(tables, rounded=False), *drawn]
    # a window keeps all columns of its source until it is done: wide rows are not to be among them
    narrow = sql.query(
        "SELECT $columns, $numbers FROM $raw AS t",
        columns=sql.columns_of(["pos", "fragment", *_key_columns(tables)], "t"),
        numbers=[sql.named(value, f"n{place}") for place, value in enumerate(drawn)],
        raw=tables.table("raw"),
    )
    codes = [
        sql.expression(
            "coalesce($code, $size)", code=sql.column("code", f"d{k}"), size=sql.number(size)
        )
        for k, size in enumerate(sizes)
    ]
    order = [
        sql.expression(_CHANCE),
        *sql.columns_of((f"n{place}" for place in range(1, len(drawn))), "t"),
    ]
    if not sizes:
        order.insert(0, sql.column("fragment", "t"))
    elif wanted.seed is None:
        order.insert(0, codes[int(np.argmax(sizes))])
    query = sql.query(
        """SELECT t.pos, t.fragment, row_number() OVER (ORDER BY $order) - 1 AS row, $codes
        FROM $narrow AS t""",
        order=order,
        codes=[sql.named(code, f"k{k}") for k, code in enumerate(codes)],
        narrow=tables.kept(narrow),
    )
    for position, key in enumerate(wanted.keys):
        names = [f"p{position}_{p}" for p in range(len(key.types))]
        pairs = (sql.columns_of(names, table) for table in ("t", f"d{position}"))
        query = query.join(
            tables.table(f"tags{position}", f"d{position}"),
            on=exp.and_(*map(sql.equal, *pairs)),
            join_type="left" if key.nullable else "",
        )
    tables.create("ids", query, {"salt": salt})
    if _size(tables, "ids") != rows:
        raise ModelError(f"a fragment of slot {wanted.slot} has NULL join keys")


# 12 bytes are kept inline by DuckDB's strings, and are enough to order any table
_CHANCE = "array_slice(unhex(sha256($salt || encode(CAST(t.n0 AS VARCHAR)))), 1, 12)"


def _size(tables: SlotTables, part: str) -> int:
    query = sql.query("SELECT count(*) FROM $part", part=tables.table(part))
    return int(sql.fetch(tables.con, query)[0][0])


def _content(tables: SlotTables, *, rounded: bool) -> exp.Expr:
    """A hash of row t of `raw`, 8 bytes that follow from all its columns but its position.

    Without `rounded` numbers count to the last bit, and the query takes the parameter `salt`. It is
    DuckDB's own hash, which is fast over wide rows, and may change from version to version.
    """
    wanted = tables.specification
    columns: list[exp.Expr] = [sql.column("fragment", "t")]
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
    names = [*(f"id{k}" for k in wanted.identifiers), *_key_columns(tables)]
    columns += sql.columns_of(names, "t")
    if not rounded:
        values: list[exp.Expr] = sql.columns_of((name for name, _ in numbers), "t")
        return sql.call("hash", sql.parameter("salt"), *columns, *values)
    # a number beyond the range of FLOAT is NULL
    values = [sql.try_cast(sql.column(name, "t"), kind) for name, kind in numbers]
    return sql.call("hash", *columns, *values)


def _key_columns(tables: SlotTables) -> list[str]:
    """The columns of `raw` with the parts of keys."""
    types = [key.types for key in tables.specification.keys]
    return [f"p{position}_{p}" for position, parts in enumerate(types) for p in range(len(parts))]


def tags_of(tables: SlotTables, key: int) -> Array:
    """uint8 (u, 16): the distinct tags of a key, by code."""
    query = sql.query("SELECT code, tag FROM $tags", tags=tables.table(f"tags{key}"))
    found = sql.reader(tables.con, query).read_all()
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
