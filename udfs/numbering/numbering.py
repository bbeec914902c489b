"""Row ids, and join keys as codes of tags.

Row ids run from 0 over all the client's fragments of the slot. They follow the tags of the key
with the most distinct tags, and chance within a tag, so that they tell nothing of the storage
order that the tags do not. Without keys they follow (fragment, chance): the coordinator then
knows a row's fragment from the fragments' sizes.

With a seed they follow from what the rows hold, not from tags, which differ from run to run: rows
in the order of a hash of their content are shuffled by a generator, under a key that takes the seed
and all rows of the slot at this client to know. So who does not have the table cannot tell which
row comes where; who sees two runs of one seed over the same table knows its rows again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.arrays import PART, Array, taken
from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import KeySpecification, SlotSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows

# The temporary tables of a slot at one client, by the names of their parts.


@dataclass
class SlotTables:
    con: sql.Connection
    run: str
    specification: SlotSpecification
    _tables: set[str] = field(default_factory=set, kw_only=True)
    _numbers: Iterator[int] = field(default_factory=count, kw_only=True)

    def create(self, part: str, query: exp.Query, parameters: sql.Parameters | None = None) -> None:
        """Make the temporary table `part`; `drop_part` removes it."""
        sql.create(self.con, self.name(part), query, parameters)
        self._tables.add(self.name(part))

    def drop_part(self, part: str) -> None:
        self._forget(self.name(part))

    def fresh(self, part: str) -> str:
        """A part's name that was not used yet."""
        return f"{part}{next(self._numbers)}"

    def table(self, part: str, alias: str | None = None) -> exp.Table:
        return sql.temp(self.name(part), alias)

    def name(self, part: str) -> str:
        """The name of the temporary table or view `part`."""
        return f"sqlfl_{self.run}_{self.specification.slot}_{part}"

    def kept(self, query: exp.Select) -> exp.Select:
        """Return `raw` without rows of NULL target, unless they are kept to match."""
        if not self.specification.target:
            return query
        links = [sql.number(link) for _, link in self.specification.links]
        if not links:
            return query.where(sql.expression("NOT y IS NULL"))
        return query.where(sql.expression("NOT y IS NULL OR fragment IN ($links)", links=links))

    def _forget(self, *names: str) -> None:
        sql.drop(self.con, *names)
        self._tables -= set(names)


_DRAWN = 1 << 16
"""Random numbers to draw at once: few enough for the processor's cache."""
_APART = 6
"""Bits of chance beyond those that number the rows of a tag: about one in 64 rows draws another's
number.
"""
MAX_SPAN = (1 << 32) - 1
"""Distances that uint32 holds beside the one for NULL."""
_LARGE = 1 << 20
"""Rows for which a statement that drops coded keys is worth it."""


@dataclass(frozen=True, eq=False)
class Numbering:
    """The rows of a snapshot by row id."""

    positions: Array
    """uint32 (n,): their place in `raw`, which does not leave."""
    fragments: Array
    """uint16 (n,), or (0,) where the slot has one fragment here."""
    tags: tuple[Array, ...]
    """Per key the distinct tags, uint8 (u, 16), ascending."""
    codes: tuple[Array, ...]
    """Per key uint32 (n,): the row's tag; u where a part of the key is NULL."""
    salt: bytes
    """The key of chance: random, or with a seed a function of the seed and the rows."""
    marks: Array
    """uint64 (n,), or (0,) without marks."""


def number_rows(
    tables: SlotTables, secret: bytes, rows: int, held: HeldRows | None = None
) -> Numbering:
    """Number all kept rows of `raw`, `rows` of them; tags are keyed with the `secret`.

    Large tables lose their keys in `raw`. `held`: the kept rows, if they are not in `raw`. Raises
    ModelError for a NULL in a key that is not nullable.
    """
    wanted = tables.specification
    if held is None:
        tags, columns = _from_tables(tables, secret, rows)
    else:
        tags, columns = _from_columns(tables, secret, held)
    salt = os.urandom(32)
    if wanted.seed is not None:
        salt = _by_content(columns, wanted.seed, wanted.slot)
    name, size = None, 1
    if not tags:
        name, size = "fragment", max(wanted.fragments) + 1
    elif wanted.seed is None:
        finest = int(np.argmax([len(key_tags) for key_tags in tags]))
        name, size = f"k{finest}", len(tags[finest]) + 1
    # it is in order already, so no lookup is needed
    leading = None if name is None else columns.pop(name, None)
    _bring(columns, shuffled(rows, leading, size, salt))
    if name is not None and leading is not None:
        often = np.bincount(leading, minlength=size)
        columns[name] = np.repeat(np.arange(size, dtype=leading.dtype), often)
    return Numbering(
        columns["pos"],
        columns.get("fragment", np.zeros(0, np.uint16)),
        tags,
        tuple(columns[f"k{k}"] for k in range(len(tags))),
        salt,
        columns.get("mark", np.zeros(0, np.uint64)),
    )


def origins(tables: SlotTables, rows: int, held: HeldRows | None) -> tuple[Array, Array]:
    """`fragments` and `marks`, as a Numbering has them, of rows that have no ids yet: in no order,
    but row by row beside each other."""
    wanted = tables.specification
    kinds: dict[str, type[np.generic]] = {}
    if len(wanted.fragments) > 1:
        kinds["fragment"] = np.uint16
    if wanted.marked:
        kinds["mark"] = np.uint64
    if held is not None:
        columns = {name: held.columns[name].to_numpy() for name in kinds}
    elif kinds:
        query = sql.query(
            "SELECT $columns FROM $raw AS t",
            columns=sql.columns_of(kinds, "t"),
            raw=tables.table("raw"),
        )
        columns = _filled(tables, query, kinds, rows)
    else:
        columns = {}
    none = np.zeros(0, np.uint16), np.zeros(0, np.uint64)
    return columns.get("fragment", none[0]), columns.get("mark", none[1])


def content(tables: SlotTables) -> dict[str, exp.Expr]:
    """Return the content of row t of `raw` that orders seeded rows; empty without a seed."""
    if tables.specification.seed is None:
        return {}
    return {name: _content(tables, rounded=name == "h") for name in ("h", "exact")}


def _from_tables(
    tables: SlotTables, secret: bytes, rows: int
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """Return per key its tags, ascending; and the columns of `_read` by name."""
    wanted = tables.specification
    spans = _spans(tables, rows)
    pairs = {
        k: _hash_key(tables, k, key, secret) for k, key in enumerate(wanted.keys) if k not in spans
    }
    columns = _read(tables, {k: len(tags) for k, (tags, _) in pairs.items()}, spans, rows)
    ascending_tags = []
    for k, key in enumerate(wanted.keys):
        if k in spans:
            tags, columns[f"k{k}"] = _offset_tags(columns[f"k{k}"], spans[k], key, secret)
            if not key.nullable and (columns[f"k{k}"] == len(tags)).any():
                raise _null_keys(wanted.slot)
        else:
            tags, ranks = pairs[k]
            tables.drop_part(f"tags{k}")
            columns[f"k{k}"] = taken(ranks, columns[f"k{k}"])
        ascending_tags.append(tags)
    if rows >= _LARGE:
        for k, key in enumerate(wanted.keys):
            for name in _parts(k, key):
                sql.drop_as(tables.con, f"ALTER TABLE t DROP COLUMN {name}", tables.table("raw"))
    return tuple(ascending_tags), columns


def _from_columns(
    tables: SlotTables, secret: bytes, held: HeldRows
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """Return the same for rows in columns, whose position needs no `pos`."""
    wanted = tables.specification
    names = ["fragment"] * (len(wanted.fragments) > 1) + list(content(tables))
    names += ["mark"] * wanted.marked
    columns = {name: held.columns[name].to_numpy() for name in names}
    ascending_tags = []
    for k, key in enumerate(wanted.keys):
        pair = held_key(held, k, key, secret)
        if pair is None:
            raise _null_keys(wanted.slot)
        tags, columns[f"k{k}"] = pair
        ascending_tags.append(tags)
    return tuple(ascending_tags), columns


def _null_keys(slot: int) -> ModelError:
    return ModelError(f"a fragment of slot {slot} has NULL join keys")


def _hash_key(
    tables: SlotTables, position: int, key: KeySpecification, secret: bytes
) -> tuple[Array, Array]:
    """Make the table tags<k>, the distinct values of a key: their parts and a place.

    Every distinct value is hashed once; a key with a NULL in a part is not in it. Returns the tags,
    ascending, and uint32 (u + 1,): among them the place of each row of the table, and u at the end.
    """
    key_parts = sql.columns_of(_parts(position, key))
    distinct = sql.query(
        "SELECT DISTINCT $parts FROM $raw", parts=key_parts, raw=tables.table("raw")
    )
    present = (exp.Not(this=sql.is_null(part.copy())) for part in key_parts)
    distinct = tables.kept(distinct).where(*present)
    query = sql.query(
        "SELECT row_number() OVER () - 1 AS place, $parts FROM $distinct AS d",
        parts=key_parts,
        distinct=distinct,
    )
    made = f"tags{position}"
    tables.create(made, query)
    hashed = [
        sql.named(keys.hashed_part(part.copy(), kind), f"h{p}")
        for p, (part, kind) in enumerate(zip(key_parts, key.types, strict=True))
    ]
    listing = sql.query("SELECT place, $hashed FROM $made", hashed=hashed, made=tables.table(made))
    places, parts = [np.zeros(0, np.int64)], [np.zeros((0, keys.TAG_BYTES), np.uint8)]
    with sql.batches(tables.con, listing) as reader:
        for batch in reader:
            place, *columns = batch.columns
            places.append(place.to_numpy())
            parts.append(keys.key_tags(secret, key, columns))
    tags = np.empty((sum(map(len, parts)), keys.TAG_BYTES), np.uint8)
    tags[np.concatenate(places)] = np.concatenate(parts)
    return keys.sorted_tags(tags)


def _spans(tables: SlotTables, rows: int) -> dict[int, range]:
    """Return the numbers from the least to the greatest value of each key that is one whole number,
    if there are few enough of them for an array with a place for each. Such keys need neither a
    table of distinct values nor a join with it.
    """
    candidates = [
        k
        for k, key in enumerate(tables.specification.keys)
        if len(key.types) == 1 and keys.WHOLE.fullmatch(key.types[0])
    ]
    if not candidates or not rows:
        return {}
    bounds = [
        sql.named(sql.call(function, sql.column(f"p{k}_0")), f"{function}{k}")
        for k in candidates
        for function in ("min", "max")
    ]
    query = sql.query("SELECT $bounds FROM $raw", bounds=bounds, raw=tables.table("raw"))
    ((*values,),) = sql.fetch(tables.con, query)
    spans = {}
    for k, least, greatest in zip(candidates, values[::2], values[1::2], strict=True):
        if least is not None and greatest - least < min(rows + PART, MAX_SPAN):
            spans[k] = range(least, greatest + 1)
    return spans


def _offset_tags(
    offsets: Array, span: range, key: KeySpecification, secret: bytes
) -> tuple[Array, Array]:
    """Return the tags, ascending, and each row's tag, u for NULL, as uint32 (n,).

    offsets : uint32 (n,), distances from the first number of `span`, whose length stands for NULL.
    """
    distinct = _by_place([offsets], 0, len(span))
    (occurring,) = distinct.values
    values = occurring.to_numpy()
    wide = np.uint64 if span[0] >= 0 else np.int64
    values = values[values < len(span)].astype(wide) + wide(span[0])
    tags, ranks = keys.sorted_tags(keys.key_tags(secret, key, [pa.array(values)]))
    return tags, distinct.numbered(ranks)


def _read(
    tables: SlotTables, sizes: Mapping[int, int], spans: Mapping[int, range], rows: int
) -> dict[str, Array]:
    """Return by name, for each row: pos, fragment if there are several; with a seed also hashes of
    its content, h and exact. k<k> of a key is its place in its table of `sizes` rows, or its
    distance from the first number of its span; `sizes` or the span's length for NULL.
    """
    wanted = tables.specification
    position = sql.expression(
        "CAST(t.rowid - $first AS UINTEGER)", first=sql.number(_first_row(tables))
    )
    chosen: dict[str, exp.Expr] = {"pos": position}
    kinds: dict[str, type[np.generic]] = {"pos": np.uint32}
    if len(wanted.fragments) > 1:
        chosen["fragment"], kinds["fragment"] = sql.column("fragment", "t"), np.uint16
    if wanted.marked:
        chosen["mark"], kinds["mark"] = sql.column("mark", "t"), np.uint64
    if wanted.seed is not None:
        chosen |= content(tables)
        kinds |= {"h": np.uint64, "exact": np.uint64}
    for k, size in sizes.items():
        place = "CAST(coalesce($place, $size) AS UINTEGER)"
        chosen[f"k{k}"] = sql.expression(
            place, place=sql.column("place", f"d{k}"), size=sql.number(size)
        )
    for k, span in spans.items():
        wide = "UBIGINT" if span[0] >= 0 else "BIGINT"
        chosen[f"k{k}"] = sql.expression(
            f"CAST(coalesce(CAST($part AS {wide}) - CAST($first AS {wide}), $size) AS UINTEGER)",
            part=sql.column(f"p{k}_0", "t"),
            first=sql.number(span[0]),
            size=sql.number(len(span)),
        )
    kinds |= {f"k{k}": np.uint32 for k in range(len(wanted.keys))}
    query = sql.query(
        "SELECT $columns FROM $raw AS t",
        columns=[sql.named(value, name) for name, value in chosen.items()],
        raw=tables.table("raw"),
    )
    for number in sizes:
        key = wanted.keys[number]
        parts = _parts(number, key)
        pairs = (sql.columns_of(parts, table) for table in ("t", f"d{number}"))
        query = query.join(
            tables.table(f"tags{number}", f"d{number}"),
            on=exp.and_(*map(sql.equal, *pairs)),
            join_type="left" if key.nullable else "",
        )
    return _filled(tables, query, kinds, rows)


def _first_row(tables: SlotTables) -> int:
    """Return the first rowid: in the transaction that makes a table, rowids do not begin at 0."""
    query = sql.query("SELECT min(rowid) FROM $raw", raw=tables.table("raw"))
    ((first,),) = sql.fetch(tables.con, query)
    return int(first or 0)


def _filled(
    tables: SlotTables, query: exp.Select, kinds: Mapping[str, type[np.generic]], rows: int
) -> dict[str, Array]:
    """Return by name the query's columns for the kept rows of `raw`. Raise ModelError for fewer
    than `rows`.
    """
    columns = {name: np.empty(rows, kind) for name, kind in kinds.items()}
    filled = 0
    with sql.batches(tables.con, tables.kept(query)) as reader:
        for batch in reader:
            part = slice(filled, filled + batch.num_rows)
            for name, values in columns.items():
                values[part] = batch.column(name).to_numpy()
            filled = part.stop
    if filled != rows:
        raise _null_keys(tables.specification.slot)
    return columns


def _by_content(columns: dict[str, Array], seed: int, slot: int) -> bytes:
    """Sort the rows by their content. Return a key of 32 bytes from the seed and all rows.

    The key uses `h` alone: a database that sums in several threads may vary the last bits.
    """
    h, exact = columns.pop("h"), columns.pop("exact")
    order = np.lexsort((exact, h))
    digest = hashlib.sha256(h[order].tobytes()).digest()
    _bring(columns, order)
    return keys.derive(digest, "rows", str(seed), str(slot))


def _bring(columns: dict[str, Array], order: Array) -> None:
    """Bring the rows into an order."""
    for name in columns:
        columns[name] = taken(columns[name], order)
    columns.setdefault("pos", order.astype(np.uint32))


def shuffled(rows: int, leading: Array | None, size: int, salt: bytes) -> Array:
    """Return int64 (rows,): an order by `leading`, numbers below `size`, and random among equal
    ones.

    One sort of 64 bits: the number, random bits, and the place in a shuffled order. Random bits
    fill the rest: enough that few rows of a number draw the same, and follow that order; otherwise
    there are two sorts.
    """
    low = max(rows - 1, 1).bit_length()
    high = 0 if leading is None else (size - 1).bit_length()
    most = rows
    if leading is not None and 0 < size <= 4 * rows:
        most = int(np.bincount(leading).max())
    if 64 - high - low < most.bit_length() + _APART:
        return _shuffled_twice(rows, leading, salt)
    factor, shift = (np.uint64(n) for n in np.frombuffer(_stream(salt, rows, 2), "<u8"))
    factor |= np.uint64(1)  # odd numbers have an inverse
    mask = np.uint64((1 << low) - 1)
    # of as few bits as chance has, half as many are drawn
    drawn_bits = 32 if 64 - high - low <= 32 else 64
    packed = np.empty(rows, np.uint64)
    for start, drawn in _random(rows, salt, drawn_bits):
        part = slice(start, start + len(drawn))
        place = np.arange(start, part.stop, dtype=np.uint64)
        place *= factor
        place += shift
        place &= mask
        chance = drawn.astype(np.uint64)
        chance <<= np.uint64(64 - drawn_bits)
        chance >>= np.uint64(high)
        chance &= ~mask
        chance |= place
        if leading is not None and high:
            first = leading[part].astype(np.uint64)
            first <<= np.uint64(64 - high)
            chance |= first
        packed[part] = chance
    packed.sort()
    inverse = np.uint64(pow(int(factor), -1, 1 << 64))
    for start in range(0, rows, _DRAWN):
        chunk = packed[start : start + _DRAWN]
        chunk -= shift
        chunk *= inverse
        chunk &= mask
    return packed.view(np.int64)


def _shuffled_twice(rows: int, leading: Array | None, salt: bytes) -> Array:
    """Return the order as `shuffled`, for any number of rows: random, and then by `leading`."""
    parts = [part for _, part in _random(rows, salt, 64)]
    drawn = np.concatenate(parts or [np.zeros(0, np.uint64)])
    order = np.argsort(drawn, kind="stable")
    if leading is not None:
        order = order[np.argsort(leading[order], kind="stable")]
    return order.astype(np.int64, copy=False)


def _random(count: int, salt: bytes, bits: int) -> Iterator[tuple[int, Array]]:
    """Yield numbers of 32 or 64 bits, and the place of the first; without the salt they are
    indistinguishable from random ones.
    """
    for start in range(0, count, _DRAWN):
        size = min(_DRAWN, count - start)
        yield start, np.frombuffer(_stream(salt, start, size, bits), f"<u{bits // 8}")


def _stream(salt: bytes, number: int, size: int, bits: int = 64) -> bytes:
    return hashlib.shake_128(salt + number.to_bytes(8, "little")).digest(size * bits // 8)


def _content(tables: SlotTables, *, rounded: bool) -> exp.Expr:
    """Return a hash of row t of `raw`, 8 bytes from all its columns. With `rounded`, numbers count
    to 24 bits, else to the last.

    It is DuckDB's own hash, which is fast over wide rows, and may change between versions.
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
    numbers += [("w", "FLOAT")] * wanted.weight + [("o", "FLOAT")] * wanted.offset
    columns += [sql.column("draw", "t")] * wanted.base
    names = [f"id{k}" for k in wanted.identifiers]
    for position, key in enumerate(wanted.keys):
        names += _parts(position, key)
    columns += sql.columns_of(names, "t")
    if not rounded:
        values: list[exp.Expr] = sql.columns_of((name for name, _ in numbers), "t")
        return sql.call("hash", *columns, *values)
    # a number beyond the range of FLOAT is NULL
    values = [sql.try_cast(sql.column(name, "t"), kind) for name, kind in numbers]
    return sql.call("hash", *columns, *values)


def _parts(position: int, key: KeySpecification) -> list[str]:
    """The columns of `raw` with the parts of a key."""
    return [f"p{position}_{p}" for p in range(len(key.types))]


# Join keys of rows held as columns: their distinct values, and the tags of these.

DENSE = 4
"""Numbers between the least and the greatest value, for each row, up to which an array has a place
for each of them. Otherwise a hash table finds the distinct values, in several times the time.
"""


def held_key(
    held: HeldRows, position: int, key: KeySpecification, secret: bytes
) -> tuple[Array, Array] | None:
    """Return the tags of a key, uint8 (u, 16), ascending; and each row's tag, uint32 (n,): u if a
    part is NULL. None if a part is NULL and the key is not nullable.
    """
    parts = [held.columns[f"p{position}_{p}"] for p in range(len(key.types))]
    if not any(part.null_count for part in parts):
        tags, codes = _tagged(parts, key, secret)
        return tags, codes
    if not key.nullable:
        return None
    whole = np.ones(len(parts[0]), bool)
    for part in parts:
        whole &= part.is_valid().to_numpy()
    places = pa.array(whole)
    tags, tag_of_row = _tagged([part.filter(places) for part in parts], key, secret)
    codes = np.full(len(whole), len(tags), np.uint32)
    codes[whole] = tag_of_row
    return tags, codes


def _tagged(
    parts: Sequence[pa.ChunkedArray], key: KeySpecification, secret: bytes
) -> tuple[Array, Array]:
    """Return the tags, ascending, and each row's tag. No part is NULL."""
    distinct = _distinct(parts)
    tags, ranks = keys.sorted_tags(keys.key_tags(secret, key, distinct.values))
    return tags, distinct.numbered(ranks)


@dataclass(frozen=True, eq=False)
class _Distinct:
    """Distinct values of the parts of a key."""

    values: tuple[pa.Array, ...]
    numbered: Callable[[Array], Array]
    """Each row's number, (n,), from those of the distinct values."""


def _distinct(parts: Sequence[pa.ChunkedArray]) -> _Distinct:
    distinct = _of_one(parts[0])
    for part in parts[1:]:
        further = _of_one(part)
        size = max(len(further.values[0]), 1)
        codes = distinct.numbered(np.arange(len(distinct.values[0])))
        codes *= size
        codes += further.numbered(np.arange(size))
        both = _of_one(pa.chunked_array([codes]))
        before, second = (pa.array(p) for p in np.divmod(both.values[0].to_numpy(), size))
        values = [*(v.take(before) for v in distinct.values), further.values[0].take(second)]
        distinct = _Distinct(tuple(values), both.numbered)
    return distinct


def _of_one(part: pa.ChunkedArray) -> _Distinct:
    if pa.types.is_integer(part.type) and len(part):
        chunks = [chunk.to_numpy() for chunk in part.chunks if len(chunk)]
        least = min(int(chunk.min()) for chunk in chunks)
        most = max(int(chunk.max()) for chunk in chunks)
        if most - least < DENSE * len(part) + PART:
            return _by_place(chunks, least, most)
    encoded = part.combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    return _Distinct((encoded.dictionary,), lambda numbers: taken(numbers, codes))


def _by_place(chunks: Sequence[Array], least: int, most: int) -> _Distinct:
    """Return the distinct values, ascending, of whole numbers from `least` to `most`."""
    kind = chunks[0].dtype
    wide: type[np.integer] = np.uint64 if kind.kind == "u" else np.int64

    def places() -> Iterator[Array]:
        for chunk in chunks:
            for start in range(0, len(chunk), PART):
                part = chunk[start : start + PART].astype(wide) - wide(least)
                yield part.view(np.int64)

    occurs = np.zeros(most - least + 1, bool)
    for part in places():
        occurs[part] = True
    values = np.flatnonzero(occurs)

    def numbered(numbers: Array) -> Array:
        by_place = np.zeros(len(occurs), numbers.dtype)
        by_place[values] = numbers[: len(values)]
        codes = np.empty(sum(map(len, chunks)), numbers.dtype)
        start = 0
        for part in places():
            end = start + len(part)
            np.take(by_place, part, out=codes[start:end], mode="wrap")
            start = end
        return codes

    distinct = values.astype(wide) + wide(least)
    return _Distinct((pa.array(distinct.astype(kind)),), numbered)
