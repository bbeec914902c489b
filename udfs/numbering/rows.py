"""The snapshot of a slot's fragments at one client."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages.wire_columns import travels
from sqlfl.models.folds import deal, merge_folds
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows, held_rows
from sqlfl.udfs.numbering.fragments import DRAW_BYTES, active_features, converted
from sqlfl.udfs.numbering.numbering import Numbering, SlotTables, content, number_rows, origins

NOTHING = np.zeros(0, np.uint16)
MAX_SCORES = 4
"""Maximum number of scorings that are kept of the rows of a slot."""
MAX_SCORE_BYTES = 1 << 27
"""Maximum bytes of a scoring that is kept."""
_CHUNK = 1 << 16
"""Rows to look up at once."""
_WHOLE = re.compile(r"BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
"""Types whose values are equal exactly if their texts are."""


@dataclass(frozen=True, eq=False)
class RowScores:
    """Scores of rows by a saved block."""

    of: tuple[str, int]
    """Model and slot of the block."""
    theta: Array
    """Weights of the block."""
    row_ids: Array
    values: Array

    @property
    def nbytes(self) -> int:
        return self.row_ids.nbytes + self.values.nbytes


@dataclass(eq=False)
class KeptScores:
    """The latest scores of rows that a join keeps, for statements that ask for the same."""

    _latest: list[RowScores] = field(default_factory=list, repr=False)

    @property
    def nbytes(self) -> int:
        return sum(scores.nbytes for scores in self._latest)

    def find(self, of: tuple[str, int], theta: Array, row_ids: Array) -> Array | None:
        """Return the scores of these rows by this block; None if they are not kept."""
        for kept in self._latest:
            same = kept.of == of and np.array_equal(kept.theta, theta)
            if same and np.array_equal(kept.row_ids, row_ids):
                return kept.values
        return None

    def keep(self, scores: RowScores) -> None:
        """Keep the scores in place of the oldest ones, unless they are many."""
        if scores.nbytes <= MAX_SCORE_BYTES:
            self._latest = [*self._latest[1 - MAX_SCORES :], scores]


@dataclass
class Snapshot(SlotTables):
    """A client's rows of one slot, in temporary tables of its cursor or held as columns beside it.

    First `take`, then for a slot with keys `number` and `keys`, then `activate`. Labels, weights,
    split, identifiers, statistics and engines read the active rows, in the order given to
    `activate`.
    """

    rows: tuple[int, ...] = ()
    """Rows of each fragment, without rows of NULL target unless they only match."""
    null_targets: tuple[int, ...] = ()
    """Rows of each fragment with NULL (or NaN) target, even if they are kept to match."""
    active: int = 0
    """a, the number of active rows; 0 before `activate`."""
    weight: float = 0.0
    """Σ cnt over the active rows."""
    fragments: tuple[str, ...] = ()
    """SQL, in the order of the specification's."""
    fits: int = 0
    """Number of times that TRANSFORM has replaced values of features."""
    draws: bytes = field(default=b"", repr=False)
    """The client's own key for draws from a row's content; empty without draws."""
    _numbering: Numbering | None = field(default=None, repr=False)
    """Present until `activate`."""
    _numbered: bool = False
    _salt: bytes = field(default=b"", repr=False)
    """The key of chance: random, or with a seed a function of the seed and the rows."""
    _size: int = 0
    """Rows of `raw`."""
    _rows: str = "active"
    """The part that holds the active rows."""
    held: HeldRows | None = field(default=None, repr=False)
    """The rows where they are not in temporary tables: active ones after `activate`."""
    scores: KeptScores | None = field(default=None, repr=False)
    """Scores that a join keeps of these rows; None without a join that keeps them."""
    row_ids: Array | None = field(default=None, repr=False)
    """Ids of the active rows, where `scores` are kept."""
    _shown: pa.Table | None = field(default=None, repr=False)
    """The table that queries read for held active rows."""

    @classmethod
    def take(
        cls,
        con: sql.Connection,
        specification: SlotSpecification,
        fragments: Sequence[str],
        run: str,
        draws: bytes = b"",
    ) -> Snapshot:
        """Evaluate the fragments (SQL, in the order of `specification.fragments`).

        The caller opens the transaction that makes all snapshots of a client consistent. `draws` is
        the client's own key for validation rows and label noise; a specification with `base` and
        without a seed needs it, else this raises InternalError. Raises ModelError if a fragment
        lacks the specification's columns.
        """
        seed = specification.seed
        if seed is not None:
            draws = keys.derive(str(seed).encode(), "draws")
        if specification.base and not draws:
            raise InternalError("validation rows cannot be drawn without a key")
        snapshot = cls(con, run, specification, fragments=tuple(fragments), draws=draws)
        try:
            snapshot._evaluate(fragments, draws)
            if not specification.keys:
                snapshot._number(b"")
        except BaseException:
            # a failed transaction permits no DROP; its roll-back removes the tables
            snapshot._tables.clear()
            raise
        return snapshot

    def number(self, secret: bytes) -> None:
        """Number the rows of a slot with keys; `secret` is the run's key for join keys. Raise
        ModelError for a NULL in a key that is not nullable.
        """
        if self._numbered:
            raise InternalError("keys are asked for once, of a slot that has any")
        self._number(secret)

    def _number(self, secret: bytes) -> None:
        numbering = number_rows(self, secret, sum(self.rows), self.held)
        if self.held is not None:
            self.held = self.held.without_keys()
        self._numbering, self._salt, self._numbered = numbering, numbering.salt, True

    def keys(self) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
        """Return the contents of `JoinKeys`, rows in row-id order; only once.

        Returns fragments uint16 (n,), or (0,) for one fragment; per key the distinct tags uint8 (u,
        16), sorted; per key the codes uint32 (n,), u for a NULL part.
        """
        numbering = self._numbered_rows()
        if len(numbering.codes) != len(self.specification.keys):
            raise InternalError("keys are asked for once")
        # they take as much memory as the join's arrays, which follow
        self._numbering = replace(numbering, fragments=NOTHING, tags=(), codes=())
        return numbering.fragments, numbering.tags, numbering.codes

    def taken(self) -> tuple[Array, Array]:
        """Return for all rows, in row-id order once numbered: the fragment, uint16 (n,), or (0,)
        for one fragment; the mark, uint64 (n,), or (0,) without marks. `keys` removes the
        fragments.
        """
        if not self._numbered:
            return origins(self, sum(self.rows), self.held)
        numbering = self._numbered_rows()
        return numbering.fragments, numbering.marks

    def to_keep(self) -> Snapshot:
        """Return the numbered rows, for `fork`. This snapshot may still be asked for its keys, and
        is not to be used for anything else."""
        numbering = replace(self._numbered_rows(), tags=(), codes=())
        return replace(self, _numbering=numbering, scores=KeptScores())

    def fork(self, con: sql.Connection, run: str, specification: SlotSpecification) -> Snapshot:
        """Return a copy of kept rows for a run of its own, on its own cursor.

        specification : that of the run, over the same rows. Raises ModelError for columns of types
        that cannot be copied.
        """
        forked = replace(
            self, con=con, run=run, specification=specification, _tables=set(), _numbers=count()
        )
        if specification.seed is None:
            forked._salt = os.urandom(32)  # chance is the run's own
        if self.held is None:
            forked._copy(self)
        else:
            forked.held = replace(self.held, features=specification.features)
        return forked

    def _copy(self, kept: Snapshot) -> None:
        """Copy `raw` from another cursor, in its order, without the parts of keys."""
        raw = kept.table("raw")
        kinds = sql.types(kept.con, sql.select(raw, [exp.Star()]))
        kinds = {name: kind for name, kind in kinds.items() if not keys.PARTS.fullmatch(name)}
        rows = sql.select(raw, sql.columns_of(kinds))
        with sql.batches(kept.con, rows) as reader:
            self.con.register(self.name("given"), reader)
            try:
                given = sql.temp(self.name("given"))
                had = sql.types(self.con, sql.select(given, [exp.Star()]))
                columns = [
                    sql.column(name)
                    if had[name] == kind
                    else sql.named(sql.cast(sql.column(name), kind), name)
                    for name, kind in kinds.items()
                ]
                self.create("raw", sql.select(given, columns))
            finally:
                self.con.unregister(self.name("given"))
        copied = sql.types(self.con, sql.select(self.table("raw"), [exp.Star()]))
        odd = [kind for name, kind in kinds.items() if copied[name] != kind]
        if odd:
            raise ModelError(
                f"a column of type {odd[0]} is not built for statements over a join that lasts",
                hint="CAST it in the query, or write FROM ( query )",
            )

    @property
    def kept_bytes(self) -> int:
        """Bytes of the rows and their numbers beside the database."""
        numbering = self._numbering
        size = 0 if numbering is None else numbering.positions.nbytes + numbering.marks.nbytes
        size += 0 if self.scores is None else self.scores.nbytes
        return size + (0 if self.held is None else self.held.nbytes)

    def activate(self, rows: Array, counts: Array) -> None:
        """Keep the rows of the join; active row r is `rows[r]`.

        rows : (a,) row ids, strictly ascending; counts : (a,) number of joined rows of each, at
        least 1. Other rows are dropped, so this is done once.
        """
        positions = self._numbered_rows().positions
        size = len(positions)
        if len(rows) != len(counts) or np.any(counts < 1):
            raise InternalError("active rows must have one positive count each")
        if len(rows) and (rows[0] < 0 or rows[-1] >= size or np.any(rows[1:] <= rows[:-1])):
            raise InternalError(f"active rows must be ascending row ids below {size}")
        self.active, self.weight = len(rows), float(counts.sum())
        self._numbering = None
        if self.scores is not None:
            self.row_ids = rows
        if self.held is not None:
            # ascending row ids in full number are all of them
            places = positions if len(rows) == size else positions[rows]
            self.held = self.held.taken(places, counts.astype(np.uint32))
            return
        occurring = {name: np.zeros(self._size, np.uint32) for name in ("r", "cnt")}
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(rows)))
            places = positions[rows[part]]
            occurring["r"][places] = np.arange(start, part.stop, dtype=np.uint32)
            occurring["cnt"][places] = counts[part]
        chosen = [
            *active_features(self.specification.features),
            *sql.columns_of(self.plain_columns(), "t"),
        ]
        # `raw` and the table beside it are read in the order of raw's rowid
        with sql.registered(self.con, self.name("occurring"), pa.table(occurring)) as beside:
            query = sql.query(
                """SELECT a.r, a.cnt, $chosen FROM $raw AS t
                POSITIONAL JOIN $beside AS a WHERE a.cnt > 0""",
                chosen=chosen,
                beside=beside,
                raw=self.table("raw"),
            )
            self.create("active", query)
        self._forget(*(self._tables - {self.name("active")}))

    def weigh(self, counts: Array) -> None:
        """Set the weight of active row r to `counts[r]`, instead of its number of joined rows.

        counts : (a,), finite and not negative; a row of 0 is encoded and predicted, but has no
        weight. Existing engines and statistics do not change.
        """
        counts = np.asarray(counts, np.float64)
        if counts.shape != (self.active,) or not (np.isfinite(counts) & (counts >= 0)).all():
            raise InternalError(f"{self.active} active rows must have one weight each, from 0 up")
        if self.held is not None:
            self.hold(self.held.weighed(counts))
            return
        lying = sql.query("SELECT rowid AS place, r FROM $rows", rows=self.active_table)
        columns = sql.columns(self.con, lying)
        order = np.empty(self.active, np.int64)
        order[columns["place"]] = columns["r"]
        query = "SELECT t.r, a.cnt, $chosen FROM $before AS t POSITIONAL JOIN $given AS a"
        self._recount(query, {"cnt": counts[order]})

    def merge(self, rows: Array, counts: Array) -> None:
        """Keep these active rows, (n,) ascending, which have the features of all others: row k is
        `rows[k]`, with weight `counts[k]`. Such a row is no table's row any more, so labels,
        weights, split and identifiers are dropped.
        """
        self.scores = self.row_ids = None
        self.specification = replace(
            self.specification,
            target=False,
            weight=False,
            offset=False,
            split=0.0,
            base=False,
            identifiers=(),
        )
        if self.held is not None:
            self.hold(self.held.taken(rows, counts))
            self.active = len(rows)
            return
        numbers = np.arange(len(rows), dtype=np.uint32)
        query = "SELECT a.k AS r, a.cnt, $chosen FROM $given AS a JOIN $before AS t ON a.r = t.r"
        self._recount(query, {"r": rows.astype(np.uint32), "k": numbers, "cnt": counts})
        self.active = len(rows)

    def _recount(self, text: str, given: Mapping[str, Array]) -> None:
        """Replace the active rows by those with the weights in `given`, with the columns that
        `text` chooses.
        """
        with sql.registered(self.con, self.name("counts"), pa.table(dict(given))) as table:
            query = sql.query(
                text,
                chosen=sql.columns_of([*self.feature_columns, *self.plain_columns()], "t"),
                given=table,
                before=self.active_table,
            )
            self.replace_active(query)
        self.weight = float(given["cnt"].sum())

    def replace_active(self, query: exp.Query) -> None:
        """Replace the active rows by the query's result, in a table."""
        before, self._rows = self._rows, self.fresh("active")
        self.create(self._rows, query)
        self.drop_part(before)

    def hold(self, rows: HeldRows) -> None:
        """Replace the active rows by these."""
        self._hide()
        self.held, self.weight = rows, float(rows.counts.sum())

    def _hide(self) -> None:
        if self._shown is not None:
            self.con.unregister(self.name(self._rows))
            self._shown = None

    @property
    def salt(self) -> bytes:
        """The key of chance: random, or with a seed a function of the seed and the rows."""
        return self._salt

    @property
    def active_table(self) -> exp.Table:
        """The active rows: r; cnt, whole numbers until `weigh` makes them DOUBLE; x<p> per numeric
        column, FLOAT where the column's type has only such numbers, else DOUBLE, NULL where
        missing; m<i> BOOLEAN
        per array feature i, whether the array is NULL; c<i> BLOB per category feature i, its
        canonical text; y; w; draw; fragment, of private slots with draws; id<k>. i counts the
        features, p the numeric columns. Of rows that are held it is a view, made when it is read.
        """
        if self.held is not None and self._shown is None:
            self._shown = self.held.table(self.plain_columns())
            self.con.register(self.name(self._rows), self._shown)
        return self.table(self._rows)

    @property
    def single(self) -> tuple[int, ...]:
        """Numbers of the FLOAT columns of the active rows."""
        if self.held is not None:
            return tuple(p for p, n in enumerate(self.held.numbers) if n.dtype == np.float32)
        width = sum(f.width for f in self.specification.features if f.kind != "category")
        columns = sql.columns_of(f"x{p}" for p in range(width))
        kinds = sql.types(self.con, sql.select(self.active_table, columns)) if width else {}
        return tuple(p for p, kind in enumerate(kinds.values()) if kind == "FLOAT")

    def labels(self, classes: bool | None = None) -> tuple[Array, tuple[str, ...], Array]:
        """Return the contents of `Labels` for the active rows: (values, classes, codes).

        With classes (by default as the specification says): values is empty, the distinct classes
        as text in their type's order, codes uint32 (a,). Else values float64 (a,), the others
        empty. Raises ModelError for an infinite target; for labels that are to be noised see
        sqlfl.udfs.labels.label_noise.
        """
        if not self.specification.target:
            raise InternalError(f"slot {self.specification.slot} does not hold the target")
        if self.specification.privacy is not None and self.specification.privacy.label is not None:
            raise InternalError("labels that are to be noised do not leave as they are")
        if classes is None:
            classes = self.specification.classes
        if not classes:
            values = self._plain("y")
            if not np.isfinite(values).all():
                raise ModelError("the target has infinite values", hint="filter them out in WHERE")
            return values, (), np.zeros(0, np.uint32)
        if self.held is not None and self.held.is_whole("y"):
            distinct, codes = self.held.classes("y")
            return np.zeros(0), tuple(str(value).lower() for value in distinct), codes
        (kind,) = sql.types(self.con, sql.select(self.active_table, [sql.column("y")])).values()
        text = sql.expression("encode(CAST(y AS VARCHAR))")
        # of others, a collation or another equality may take two texts for one
        label = sql.column("y") if _WHOLE.fullmatch(kind) else text
        ordered = sql.query(
            """SELECT own, name, row_number() OVER (ORDER BY y, name) - 1 AS code
            FROM (
              SELECT $own AS own, min($text) AS name, min(y) AS y FROM $active GROUP BY $own
            ) AS g""",
            own=label,
            text=text,
            active=self.active_table,
        )
        self.create("classes", ordered)
        classes_of = self.table("classes")
        listing = sql.query("SELECT name FROM $classes ORDER BY code", classes=classes_of)
        names = sql.fetch(self.con, listing)
        query = sql.query(
            "SELECT r, code FROM $active JOIN $classes AS g ON $own = g.own",
            own=label,
            active=self.active_table,
            classes=classes_of,
        )
        codes = np.empty(self.active, np.uint32)
        self._fill(codes, query, "code")
        self._forget(self.name("classes"))
        return np.zeros(0), tuple(name.decode() for (name,) in names), codes

    def weights(self) -> Array:
        """Return float64 (a,): the weights of the active rows, NaN for NULL."""
        if not self.specification.weight:
            raise InternalError(f"slot {self.specification.slot} does not hold the weight")
        return self._plain("w")

    def offsets(self) -> Array:
        """Return float64 (a,): the offsets of the active rows, NaN for NULL."""
        if not self.specification.offset:
            raise InternalError(f"slot {self.specification.slot} does not hold the offset")
        return self._plain("o")

    def _plain(self, name: str) -> Array:
        """float64 (a,): a column of the active rows."""
        if self.held is not None:
            return self.held.plain(name).astype(np.float64)
        value = sql.expression("CAST($value AS DOUBLE)", value=sql.column(name))
        return self.of_active_rows(value, None, np.float64)

    def identifiers(self) -> tuple[pa.Array, ...]:
        """The ID columns of the active rows, in the specification's order, as Arrow arrays (a,)."""
        names = [f"id{k}" for k in self.specification.identifiers]
        table = self._identifying(names)
        order = np.empty(self.active, np.int64)
        order[table.column("r").to_numpy()] = np.arange(self.active)
        arrays = []
        for name in names:
            values = table.column(name).combine_chunks()
            if isinstance(values, pa.ChunkedArray):
                values = pa.concat_arrays(values.chunks)
            # this also removes values under NULLs, or beside the rows
            arrays.append(values.take(pa.array(order)))
        return tuple(arrays)

    def _identifying(self, names: Sequence[str]) -> pa.Table:
        """r and the ID columns; as text where their type does not travel (UNION, BIGNUM)."""
        columns: list[exp.Expr] = sql.columns_of(names)
        wanted = "SELECT r, $columns FROM $active"
        query = sql.query(wanted, columns=columns, active=self.active_table)
        with sql.batches(self.con, query) as reader:
            odd = [not travels(reader.schema.field(name).type) for name in names]
            if not any(odd):
                return reader.read_all().combine_chunks()
        columns = [
            sql.named(sql.text(column), name) if as_text else column
            for column, name, as_text in zip(columns, names, odd, strict=True)
        ]
        query = sql.query(wanted, columns=columns, active=self.active_table)
        with sql.batches(self.con, query) as reader:
            return reader.read_all().combine_chunks()

    def numbered(self, *values: exp.Expr) -> exp.Expr:
        """Return 16 bytes of HMAC per active row: of its `draw`, of `values` (BLOBs), and of its
        number among the rows that are equal in these, in the order of fragment and r.

        Equal rows then have different bytes, the same ones in each run. The query takes
        `keys.pads(key)` as parameters.
        """
        alike = [sql.column("draw"), *values]
        head = sql.expression(
            """encode(CAST((
              row_number() OVER (PARTITION BY $alike ORDER BY fragment, r) - 1
            ) AS VARCHAR) || ':')""",
            alike=alike,
        )
        return keys.tag(sql.join_text(head, *(value.copy() for value in alike)))

    def drop(self) -> None:
        """Remove all temporary tables of the snapshot; it may be called again."""
        self._hide()
        self.held = None
        self._forget(*self._tables)
        self._numbering = None
        self.active, self.weight = 0, 0.0

    # -- taking the snapshot ----------------------------------------------------------------------

    def _evaluate(self, fragments: Sequence[str], draws: bytes) -> None:
        indices = self.specification.fragments
        if len(fragments) != len(indices):
            raise InternalError(f"{len(fragments)} fragments came for {len(indices)}")
        texts = dict(zip(indices, fragments, strict=True))
        links = dict(self.specification.links)
        if any(texts[kept] != texts[link] for kept, link in links.items()):
            raise InternalError("fragments that are evaluated together differ")
        parts = [
            converted(self.con, self.specification, i, text, links.get(i))
            for i, text in texts.items()
            if i not in links.values()
        ]
        union: exp.Query = parts[0]
        for part in parts[1:]:
            union = exp.Union(this=union, expression=part, distinct=False)
        self.held = held_rows(self.con, self.specification, union, content(self))
        if self.held is None:
            self.create("raw", union, keys.pads(draws) if self._is_keyed else None)
            self._count()
        else:
            self._count_held(self.held)

    @property
    def _is_keyed(self) -> bool:
        """Rows have draws that follow from a key."""
        return self.specification.base and not self.specification.folds

    def _count_held(self, held: HeldRows) -> None:
        """Count the rows, and drop those that are not kept."""
        indices, kept = self.specification.fragments, held.labelled
        sizes, owns = [len(kept)], [int(np.count_nonzero(kept))]
        if len(indices) > 1:
            fragments, most = held.columns["fragment"].to_numpy(), max(indices) + 1
            sizes = np.bincount(fragments, minlength=most)[list(indices)].tolist()
            owns = np.bincount(fragments[kept], minlength=most)[list(indices)].tolist()
            kept = kept | np.isin(fragments, [link for _, link in self.specification.links])
        self._settle(dict(zip(indices, zip(sizes, owns, strict=True), strict=True)))
        if not kept.all():
            self.held = held.kept(np.flatnonzero(kept))

    def _count(self) -> None:
        labelled = "y" if self.specification.target else "*"
        query = sql.query(
            f"""SELECT fragment, count(*), count({labelled}), min(rowid), max(rowid) FROM $raw
            GROUP BY fragment""",
            raw=self.table("raw"),
        )
        rows_of_fragments = sql.fetch(self.con, query)
        self._settle({index: (size, targets) for index, size, targets, *_ in rows_of_fragments})
        first = min((first for *_, first, _ in rows_of_fragments), default=0)
        if max((last for *_, last in rows_of_fragments), default=-1) - first + 1 != self._size:
            raise InternalError("the rows of a snapshot do not lie side by side")

    def _settle(self, counts: Mapping[int, tuple[int, int]]) -> None:
        """Set the sizes. `counts`: fragment -> its rows, and its rows with a target."""
        links = {link for _, link in self.specification.links}
        sizes = [counts.get(index, (0, 0)) for index in self.specification.fragments]
        self._size = sum(size for size, _ in sizes)
        self.null_targets = tuple(size - targets for size, targets in sizes)
        self.rows = tuple(
            size if index in links else targets
            for index, (size, targets) in zip(self.specification.fragments, sizes, strict=True)
        )

    def _numbered_rows(self) -> Numbering:
        if not self._numbered:
            raise InternalError("rows have no ids before their keys are asked for")
        if self._numbering is None:
            raise InternalError("the rows are active already")
        return self._numbering

    # -- columns ----------------------------------------------------------------------------------

    @property
    def feature_columns(self) -> list[str]:
        """Return the columns of active rows that hold features."""
        return [item.alias_or_name for item in active_features(self.specification.features)]

    def plain_columns(self) -> list[str]:
        wanted = self.specification
        names = ["y"] * wanted.target + ["w"] * wanted.weight + ["o"] * wanted.offset
        names += ["draw"] * wanted.base
        names += ["fragment"] * (wanted.base and wanted.privacy is not None)
        return [*names, *(f"id{k}" for k in wanted.identifiers)]

    def of_active_rows(
        self, value: exp.Expr, parameters: sql.Parameters | None, kind: npt.DTypeLike
    ) -> Array:
        """Return one value per active row, which must not be NULL."""
        query = sql.query(
            "SELECT r, $value AS value FROM $rows", value=value, rows=self.active_table
        )
        values: Array = np.empty(self.active, kind)
        self._fill(values, query, "value", parameters)
        return values

    def _fill(
        self, into: Array, query: exp.Expr, name: str, parameters: sql.Parameters | None = None
    ) -> None:
        """`into`[r] = the query's column of this name; it has a row for each active row."""
        with sql.batches(self.con, query, parameters=parameters) as reader:
            for batch in reader:
                values = batch.column(name).to_numpy(zero_copy_only=False)
                into[batch.column("r").to_numpy()] = values


# Draws of rows by the owner of the labels: for validation, or into folds.
def split_of(snapshot: Snapshot) -> Array:
    """uint8 (a,): 1 for the active rows that are for validation.

    A row is where its draw, a keyed hash of the whole row as a number in [0, 1), is below
    `specification.split`: so it is again under the same key, and copies of a row agree. With a
    seed the key follows from that and from all rows, and not from the client's own.

    In private runs equal rows are drawn each for itself, by their number among equal ones: that
    they are on one side would tell that they are equal, and where they are not, that they
    differ. So copies of a row that the party's own join made may be on both sides there.
    """
    share = snapshot.specification.split
    if not 0 < share < 1:
        raise InternalError(f"slot {snapshot.specification.slot} draws a share of {share}")
    draw, given = _draw(snapshot)
    limit = int(share * 2 ** (8 * DRAW_BYTES)).to_bytes(DRAW_BYTES, "big")
    drawn = sql.expression("$draw < $limit", draw=draw)
    return snapshot.of_active_rows(drawn, given | {"limit": limit}, np.uint8)


def folds_of(snapshot: Snapshot) -> Array:
    """Return the fold of each active row as uint8 (a,): 0 to `specification.folds` − 1. Where one
    share is split off, its rows have 1, the others 0.

    Rows are dealt class by class in a random order; targets that are numbers are one class. The
    order follows from DuckDB's hash of the whole row, by AES-256 as a keyed random function. So the
    same rows are dealt alike under the same key and version of DuckDB. Equal rows count as one row
    and share its fold, even where their labels differ. With a seed the key is as of `split_of`.
    """
    specification = snapshot.specification
    if not specification.base or specification.privacy is not None or not specification.folds:
        raise InternalError(f"slot {specification.slot} draws no folds")
    key = keys.derive(snapshot.draws if specification.seed is None else snapshot.salt, "folds")
    if snapshot.held is not None:
        hashes = snapshot.held.plain("draw")
    else:
        hashes = snapshot.of_active_rows(sql.column("draw"), None, np.uint64)
    if not len(hashes):
        return np.zeros(0, np.uint8)
    blocks = np.zeros((len(hashes), 2), "<u8")
    blocks[:, 0] = hashes
    # each block separately: a random function of its content, and the key is used only here
    cipher = Cipher(AES(key), ECB()).encryptor()
    chance = np.frombuffer(cipher.update(blocks.tobytes()), "<u8").reshape(-1, 2)[:, 0]
    classes = (
        snapshot.labels()[2]
        if specification.target and specification.classes
        else np.zeros(len(chance), int)
    )
    order = np.argsort(chance)
    new = np.ones(len(order), bool)
    new[1:] = chance[order[1:]] != chance[order[:-1]]
    strata = np.minimum.reduceat(classes[order], np.flatnonzero(new))
    dealt = deal(strata, specification.folds, specification.split)
    if len(specification.fragments) > 1:
        # they may hold a row twice, with two labels, and must not be distinguishable at the merge
        (dealt,) = merge_folds(
            [dealt], [strata], specification.folds, specification.split, onward=True
        )
    folds = np.empty(len(order), np.uint8)
    folds[order] = dealt[np.cumsum(new) - 1]
    return folds


def _draw(snapshot: Snapshot) -> tuple[exp.Expr, dict[str, object]]:
    """Return the bytes of each row's draw, and the parameters of the expression."""
    draw: exp.Expr = sql.column("draw")
    if snapshot.specification.privacy is not None:
        draw = keys.first_bytes(snapshot.numbered(), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.draws, "numbered split")))
    if snapshot.specification.seed is not None:
        draw = keys.first_bytes(keys.tag(draw), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.salt, "split")))
    return draw, {}
