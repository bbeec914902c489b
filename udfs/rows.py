"""The snapshot of a slot's fragments at one client, and its row ids.

Row ids run from 0 over all the client's fragments of the slot. They follow the tags of the key
with the most distinct tags, and chance within a tag, so that they tell nothing of the storage
order that the tags do not. Without keys they follow (fragment, chance): the coordinator then
knows a row's fragment from the fragments' sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.errors import InternalError, ModelError
from sqlfl.schema import SlotSpecification
from sqlfl.udfs import keys, sql
from sqlfl.udfs.fragments import AS_BLOB, active_features, converted

Array = npt.NDArray[Any]


@dataclass
class Snapshot:
    """A client's rows of one slot, in temporary tables of its cursor.

    First `take`, then `keys`, then `activate`; labels, identifiers, statistics and engines read
    the active rows, in the order that `activate` was given.
    """

    con: sql.Connection
    run: str
    specification: SlotSpecification
    rows: tuple[int, ...] = ()
    """Rows of each fragment, without those whose target is NULL."""
    null_targets: tuple[int, ...] = ()
    """Rows of each fragment that were left out because their target is NULL (or NaN)."""
    active: int = 0
    """a, the number of active rows; 0 before `activate`."""
    weight: int = 0
    """Σ cnt over the active rows."""
    _tables: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def take(
        cls,
        con: sql.Connection,
        specification: SlotSpecification,
        fragments: Sequence[str],
        secret: bytes,
        run: str,
    ) -> Snapshot:
        """Evaluate the fragments (SQL, in the order of `specification.fragments`).

        The caller opens the transaction that makes all snapshots of a client consistent, and has
        called `keys.install`. `secret` is the run's key for join keys. Raises ModelError if a
        fragment does not have the columns that the specification calls for.
        """
        snapshot = cls(con, run, specification)
        try:
            snapshot._evaluate(fragments)
            snapshot._count()
            snapshot._hash(secret)
            snapshot._number()
        except BaseException:
            # in a failed transaction nothing can be dropped; its roll-back takes the tables along
            snapshot._tables.clear()
            raise
        return snapshot

    def keys(self) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
        """What `JoinKeys` carries, rows in row-id order.

        Returns fragments uint16 (n,), or (0,) if there is one fragment; per key the distinct tags
        uint8 (u, 16), sorted; per key the codes uint32 (n,).
        """
        names = [f"k{key}" for key in range(len(self.specification.keys))]
        query = exp.select(*(sql.column(n) for n in ["row", "fragment", *names]))
        found = sql.columns(self.con, query.from_(self.table("ids")))
        order = np.empty(len(found["row"]), np.int64)
        order[found["row"]] = np.arange(len(order))
        several = len(self.specification.fragments) > 1
        fragment = found["fragment"][order] if several else np.zeros(0, np.uint16)
        codes = tuple(found[name][order].astype(np.uint32, copy=False) for name in names)
        tags = tuple(self._tags(key) for key in range(len(names)))
        return fragment.astype(np.uint16, copy=False), tags, codes

    def activate(self, rows: Array, counts: Array) -> None:
        """Keep the rows that occur in the join; active row r is `rows[r]`.

        rows: (a,) row ids, strictly ascending; counts: (a,) how often each occurs, at least 1.
        What is not active is dropped, so this is done once.
        """
        rows, counts = np.asarray(rows, np.int64), np.asarray(counts, np.int64)
        size = sum(self.rows)
        if len(rows) != len(counts) or np.any(counts < 1):
            raise InternalError("active rows must have one positive count each")
        if len(rows) and (rows[0] < 0 or rows[-1] >= size or np.any(np.diff(rows) <= 0)):
            raise InternalError(f"active rows must be ascending row ids below {size}")
        table = pa.table({
            "row": rows.astype(np.uint32),
            "r": np.arange(len(rows), dtype=np.uint32),
            "cnt": counts.astype(np.uint32),
        })  # fmt: skip
        chosen = [
            sql.column("r", "a"),
            sql.column("cnt", "a"),
            *active_features(self.specification.features),
            *(sql.column(name, "t") for name in self._plain_columns()),
        ]
        with sql.registered(self.con, self.name("occurring"), table) as occurring:
            query = (
                sql.select(exp.alias_(occurring, "a", table=True), chosen)
                .join(
                    self.table("ids", "i"),
                    on=sql.equal(sql.column("row", "a"), sql.column("row", "i")),
                )
                .join(
                    self.table("raw", "t"),
                    on=sql.equal(sql.column("pos", "i"), sql.column("pos", "t")),
                )
            )
            self.create("active", query)
        self.active, self.weight = len(rows), int(counts.sum())
        self._forget(*(self._tables - {self.name("active")}))

    @property
    def active_table(self) -> exp.Table:
        """The active rows: r, cnt; x<p> DOUBLE per numeric column, NULL where missing; m<i> BOOLEAN
        per array feature i, whether the array is NULL; c<i> BLOB per category feature i, its
        canonical text; y; id<k>. i counts the features, p the numeric columns.
        """
        return self.table("active")

    def labels(self, classes: bool | None = None) -> tuple[Array, tuple[str, ...], Array]:
        """What `Labels` carries for the active rows: (values, classes, codes).

        With classes (by default as the specification says): values is empty, the distinct classes
        as text in their type's order, codes uint32 (a,). Else values float64 (a,), the others
        empty. Raises ModelError for an infinite target.
        """
        if not self.specification.target:
            raise InternalError(f"slot {self.specification.slot} does not hold the target")
        if classes is None:
            classes = self.specification.classes
        if not classes:
            query = exp.select(sql.column("r"), sql.named(self._numeric_target(), "y"))
            found = sql.columns(self.con, query.from_(self.active_table))
            values = np.empty(self.active, np.float64)
            values[found["r"]] = found["y"]
            if not np.isfinite(values).all():
                raise ModelError("the target has infinite values", hint="filter them out in WHERE")
            return values, (), np.zeros(0, np.uint32)
        written = sql.call("encode", sql.text(sql.column("y")))
        groups = (
            exp.select(sql.named(written, "name"), sql.named(sql.call("min", sql.column("y")), "y"))
            .from_(self.active_table)
            .group_by(written.copy())
        )
        ordered = exp.select(
            sql.column("name"),
            sql.named(sql.row_number([sql.column("y"), sql.column("name")]), "code"),
        ).from_(groups.subquery("g"))
        self.create("classes", ordered)
        listing = exp.select(sql.column("name")).from_(self.table("classes"))
        names = sql.fetch(self.con, listing.order_by(exp.Ordered(this=sql.column("code"))))
        query = (
            exp.select(sql.column("r"), sql.column("code"))
            .from_(self.active_table)
            .join(
                self.table("classes", "g"),
                on=sql.equal(written.copy(), sql.column("name")),
            )
        )
        found = sql.columns(self.con, query)
        self._forget(self.name("classes"))
        codes = np.empty(self.active, np.uint32)
        codes[found["r"]] = found["code"]
        return np.zeros(0), tuple(name.decode() for (name,) in names), codes

    def identifiers(self) -> tuple[pa.Array, ...]:
        """The ID columns of the active rows, in the specification's order, as Arrow arrays (a,)."""
        names = [f"id{k}" for k in self.specification.identifiers]
        query = exp.select(*(sql.column(name) for name in ["r", *names])).from_(self.active_table)
        table = sql.reader(self.con, query).read_all().combine_chunks()
        order = np.empty(self.active, np.int64)
        order[table.column("r").to_numpy()] = np.arange(self.active)
        arrays = []
        for name in names:
            values = table.column(name).combine_chunks()
            if isinstance(values, pa.ChunkedArray):
                values = pa.concat_arrays(values.chunks)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            arrays.append(values.take(pa.array(order)))
        return tuple(arrays)

    def create(self, part: str, query: exp.Query, parameters: sql.Parameters | None = None) -> None:
        """Make the temporary table `part` of this snapshot; `drop` removes it."""
        sql.create(self.con, self.name(part), query, parameters)
        self._tables.add(self.name(part))

    def drop_part(self, part: str) -> None:
        self._forget(self.name(part))

    def fresh(self, part: str) -> str:
        """A part's name that this snapshot has not used yet."""
        return f"{part}{next(self._numbers)}"

    def table(self, part: str, alias: str | None = None) -> exp.Table:
        return sql.temp(self.name(part), alias)

    def drop(self) -> None:
        """Remove all temporary tables of the snapshot; it may be called again."""
        self._forget(*self._tables)
        self.active = self.weight = 0

    # -- taking the snapshot ----------------------------------------------------------------------

    def _evaluate(self, fragments: Sequence[str]) -> None:
        indices = self.specification.fragments
        if len(fragments) != len(indices):
            raise InternalError(f"{len(fragments)} fragments came for {len(indices)}")
        parts = [
            converted(self.con, self.specification, i, text)
            for i, text in zip(indices, fragments, strict=True)
        ]
        union: exp.Query = parts[0]
        for part in parts[1:]:
            union = exp.Union(this=union, expression=part, distinct=False)
        position = exp.Sub(this=exp.Window(this=exp.RowNumber()), expression=sql.number(1))
        query = exp.select(sql.named(position, "pos"), exp.Star()).from_(union.subquery("u"))
        self.create("raw", query)

    def _count(self) -> None:
        query = exp.select(sql.column("fragment"), sql.call("count", exp.Star()))
        query = query.from_(self.table("raw")).group_by(sql.column("fragment"))
        every = dict(sql.fetch(self.con, query))
        kept = every
        if self.specification.target:
            present = exp.Not(this=sql.is_null(sql.column("y")))
            kept = dict(sql.fetch(self.con, query.where(present)))
        indices = self.specification.fragments
        self.rows = tuple(kept.get(i, 0) for i in indices)
        self.null_targets = tuple(every.get(i, 0) - kept.get(i, 0) for i in indices)

    def _hash(self, secret: bytes) -> None:
        """Per key a dictionary: its parts, tag and code, every distinct value hashed once."""
        parameters = keys.pads(secret)
        for position, key in enumerate(self.specification.keys):
            names = [f"p{position}_{p}" for p in range(len(key.types))]
            distinct = exp.select(*(sql.column(n) for n in names)).distinct()
            distinct = self._labelled(distinct.from_(self.table("raw")))
            parts: list[exp.Expr] = [
                sql.call("decode", sql.column(name)) if kind in AS_BLOB else sql.column(name)
                for name, kind in zip(names, key.types, strict=True)
            ]
            tag = keys.tag(keys.key_message(key, parts))
            hashed = exp.select(*(sql.column(n) for n in names), sql.named(tag, "tag"))
            hashed = hashed.from_(distinct.subquery("d"))
            code = sql.row_number([sql.column("tag")])
            query = exp.select(exp.Star(), sql.named(code, "code")).from_(hashed.subquery("h"))
            self.create(f"tags{position}", query, parameters)

    def _number(self) -> None:
        """The table `ids`: position in `raw`, row id, fragment, and the code of every key."""
        sizes = []
        for position in range(len(self.specification.keys)):
            size = exp.select(sql.call("count", exp.Star()))
            found = sql.fetch(self.con, size.from_(self.table(f"tags{position}")))
            sizes.append(int(found[0][0]))
        written = sql.call("encode", sql.text(sql.column("pos", "t")))
        digest = sql.call("sha256", sql.join_text(sql.parameter("salt"), written))
        # 12 bytes are kept inline by DuckDB's strings, and are enough to order any table
        chance = sql.call("array_slice", sql.call("unhex", digest), sql.number(1), sql.number(12))
        first: exp.Expr = sql.column("fragment", "t")
        if sizes:
            first = sql.column("code", f"d{int(np.argmax(sizes))}")
        query = exp.select(
            sql.column("pos", "t"),
            sql.column("fragment", "t"),
            sql.named(sql.row_number([first, chance]), "row"),
            *(sql.named(sql.column("code", f"d{k}"), f"k{k}") for k in range(len(sizes))),
        ).from_(self.table("raw", "t"))
        for position, key in enumerate(self.specification.keys):
            matches = [
                sql.equal(
                    sql.column(f"p{position}_{p}", "t"),
                    sql.column(f"p{position}_{p}", f"d{position}"),
                )
                for p in range(len(key.types))
            ]
            query = query.join(self.table(f"tags{position}", f"d{position}"), on=exp.and_(*matches))
        self.create("ids", self._labelled(query), {"salt": os.urandom(32)})
        size = exp.select(sql.call("count", exp.Star())).from_(self.table("ids"))
        if sql.fetch(self.con, size)[0][0] != sum(self.rows):
            raise ModelError(f"a fragment of slot {self.specification.slot} has NULL join keys")

    def _labelled(self, query: exp.Select) -> exp.Select:
        if not self.specification.target:
            return query
        return query.where(exp.Not(this=sql.is_null(sql.column("y"))))

    # -- columns ----------------------------------------------------------------------------------

    def _plain_columns(self) -> list[str]:
        target = ["y"] if self.specification.target else []
        return [*target, *(f"id{k}" for k in self.specification.identifiers)]

    def _numeric_target(self) -> exp.Expr:
        return sql.cast(sql.column("y"), "DOUBLE")

    def _tags(self, key: int) -> Array:
        table = self.table(f"tags{key}")
        query = exp.select(sql.column("code"), sql.column("tag")).from_(table)
        found = sql.reader(self.con, query).read_all()
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

    def name(self, part: str) -> str:
        """The name of the temporary table or view `part` of this snapshot."""
        return f"sqlfl_{self.run}_{self.specification.slot}_{part}"

    def _forget(self, *names: str) -> None:
        sql.drop(self.con, *names)
        self._tables -= set(names)
