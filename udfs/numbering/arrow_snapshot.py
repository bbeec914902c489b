"""Rows of a slot as Arrow columns beside the database, for the arrays engine.

A statement costs a database a millisecond or more, however few its rows, and temporary tables
several. So one query fetches the rows, and these columns answer what temporary tables would: the
same numbers, up to the order of summation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.interrupts import checkpoint
from sqlfl.contract.schema import FeatureSpecification, SlotSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys

MAX_ARROW_BYTES = 1 << 28
"""Maximum bytes of columns in memory; larger ones stay in temporary tables."""
_PLAIN = re.compile(keys.WHOLE.pattern + "|BOOLEAN|FLOAT|DOUBLE|DATE|TIMESTAMP|BLOB")
"""Types that Arrow has as DuckDB has them: texts would lose their collation, the order of ENUMs
and the width of others is another there."""
_JOINING = re.compile(keys.PARTS.pattern + "|h|exact|fragment|mark")
"""Columns that are needed only for numbering rows."""
_NARROW = {pa.int64(): pa.int32(), pa.uint64(): pa.uint32()}


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows of `raw`, or the active ones in the order of their ids."""

    features: tuple[FeatureSpecification, ...]
    columns: Mapping[str, pa.Array]
    """Columns of `raw` by name; parts of keys are whole numbers or canonical bytes, in chunks."""
    counts: Array = field(default_factory=lambda: np.zeros(0))
    """(a,): the weight of each active row; whole numbers until `weighed`."""

    @property
    def size(self) -> int:
        """n, while there are columns."""
        return len(next(iter(self.columns.values())))

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for column in self.columns.values())

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """(n,): whether the row has a target, or there is none."""
        if "y" not in self.columns or not self.columns["y"].null_count:
            return np.ones(self.size, bool)
        return np.asarray(self.columns["y"].is_valid().to_numpy(zero_copy_only=False), bool)

    def kept(self, places: Array) -> HeldRows:
        """The rows at these places."""
        chosen = pa.array(places)
        columns = {name: column.take(chosen) for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def without_keys(self) -> HeldRows:
        """Return the rows without columns that only numbering needs."""
        columns = {n: column for n, column in self.columns.items() if not _JOINING.fullmatch(n)}
        return replace(self, columns=columns)

    def taken(self, places: Array, counts: Array) -> HeldRows:
        """These rows, which count so much."""
        return replace(self.kept(places), counts=counts)

    def weighed(self, counts: Array) -> HeldRows:
        return replace(self, counts=counts)

    @cached_property
    def weights(self) -> Float:
        return self.counts.astype(np.float64)

    @cached_property
    def numbers(self) -> tuple[npt.NDArray[np.floating], ...]:
        """(a,) of each numeric column, float32 or float64, NaN where missing."""
        columns: list[npt.NDArray[np.floating]] = []
        for position, feature in enumerate(self.features):
            column = self.columns[f"f{position}"]
            if feature.kind == "array":
                columns += list(_elements(column, feature.width))
            elif feature.kind != "category":
                columns.append(column.to_numpy(zero_copy_only=False))
        return tuple(columns)

    @cached_property
    def missing(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """(a,) for each feature that is no category: whether it is NULL."""
        masks = []
        for position, feature in enumerate(self.features):
            if feature.kind != "category":
                column = self.columns[f"f{position}"]
                masks.append(np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool))
        return tuple(masks)

    @cached_property
    def categories(self) -> Mapping[int, tuple[Array, list[bytes]]]:
        """Position of a category feature -> int64 (a,), each row's entry; and the entries,
        canonical texts that occur.
        """
        encoded_columns = {}
        for position, feature in enumerate(self.features):
            if feature.kind == "category":
                encoded = self.columns[f"f{position}"].dictionary_encode()
                codes = encoded.indices.to_numpy().astype(np.int64)
                encoded_columns[position] = codes, encoded.dictionary.to_pylist()
        return encoded_columns

    def is_whole(self, name: str) -> bool:
        """Return whether the column has whole numbers or BOOLEAN."""
        kind = self.columns[name].type
        return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))

    def plain(self, name: str) -> Array:
        """(a,) of the target or the weights, which have no NULL."""
        values: Array = self.columns[name].to_numpy(zero_copy_only=False)
        return values

    def classes(self, name: str) -> tuple[list[int], Array]:
        """Return the distinct values of whole numbers or a BOOLEAN, ascending; and each row's value
        as uint32 (a,).
        """
        encoded = self.columns[name].dictionary_encode()
        values = encoded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        ranks = np.empty(len(values), np.uint32)
        ranks[order] = np.arange(len(values), dtype=np.uint32)
        return [values[place] for place in order], ranks[encoded.indices.to_numpy()]

    def table(self, plain: Sequence[str]) -> pa.Table:
        """The active rows as `Snapshot.active_table` has them, with these plain columns."""
        columns: dict[str, object] = {"r": np.arange(len(self.counts), dtype=np.uint32)}
        columns["cnt"] = self.counts
        numbers = iter(enumerate(self.numbers))
        for position, feature in enumerate(self.features):
            column = self.columns[f"f{position}"]
            if feature.kind == "category":
                columns[f"c{position}"] = column
                continue
            for number, values in islice(numbers, feature.width):
                columns[f"x{number}"] = pa.array(values, from_pandas=True)
            if feature.kind == "array":
                columns[f"m{position}"] = column.is_null()
        return pa.table({**columns, **{name: self.columns[name] for name in plain}})

    # -- statistics -------------------------------------------------------------------------------

    def sums(self, columns: range) -> tuple[Float, Float]:
        """(k,): Σ cnt of the rows where the numeric column is not missing, and Σ cnt·x."""
        weights, sums = np.zeros(len(columns)), np.zeros(len(columns))
        for place, column in enumerate(columns):
            values = self.numbers[column].astype(np.float64, copy=False)
            present = ~np.isnan(values)
            present_weights = np.where(present, self.weights, 0.0)
            weights[place] = present_weights.sum()
            with np.errstate(over="ignore", invalid="ignore"):  # of infinite values
                sums[place] = np.where(present, present_weights * values, 0.0).sum()
        return weights, sums

    def distances(self, columns: range, mean: Float) -> Float:
        """(k, 2): Σ cnt·(x − mean) and Σ cnt·(x − mean)² of these numeric columns."""
        distances = np.zeros((len(columns), 2))
        for place, column in enumerate(columns):
            values = self.numbers[column].astype(np.float64, copy=False)
            with np.errstate(over="ignore", invalid="ignore"):
                distance = np.where(np.isnan(values), 0.0, values - mean[place])
                weighted = self.weights * distance
                distances[place] = weighted.sum(), weighted @ distance
        return distances

    def absent(self) -> Float:
        """Return Σ cnt of the rows with a NULL feature, for each that is no category."""
        return np.array([self.weights @ missing for missing in self.missing], np.float64)

    def frequencies(self, position: int) -> list[tuple[bytes, float]]:
        """Return entry and Σ cnt of the entries with weight."""
        codes, entries = self.categories[position]
        sums = np.bincount(codes, self.weights, len(entries))
        return [(entry, n) for entry, n in zip(entries, sums.tolist(), strict=True) if n > 0]


def held_rows(
    con: sql.Connection, wanted: SlotSpecification, raw: exp.Query, content: Mapping[str, exp.Expr]
) -> HeldRows | None:
    """Return the rows of the query `raw`; None if they are too large, or have types without an
    Arrow form. `content` are further columns, of its row t.
    """
    in_columns = wanted.engine == "arrays" or not wanted.features
    if (
        not in_columns
        or (wanted.base and not wanted.folds)
        or not _types_are_plain(con, wanted, raw)
    ):
        return None
    names = [f"f{position}" for position in range(len(wanted.features))]
    names += ["y"] * wanted.target + ["w"] * wanted.weight + ["o"] * wanted.offset
    names += ["draw"] * wanted.base
    names += ["mark"] * wanted.marked
    columns = sql.columns_of([*names, *(f"id{k}" for k in wanted.identifiers)], "t")
    for position, key in enumerate(wanted.keys):
        for p, kind in enumerate(key.types):
            name = f"p{position}_{p}"
            columns.append(sql.named(keys.hashed_part(sql.column(name, "t"), kind), name))
    columns += [sql.named(value, name) for name, value in content.items()]
    if len(wanted.fragments) > 1 or not columns:
        columns.append(sql.column("fragment", "t"))
    query = sql.query("SELECT $columns FROM $raw AS t", columns=columns, raw=raw)
    size = 0
    with sql.batches(con, query) as reader:
        read = [_Column(name, reader.schema.field(name).type) for name in reader.schema.names]
        for batch in reader:
            checkpoint()
            size += sum(column.add(part) for column, part in zip(read, batch.columns, strict=True))
            if size > MAX_ARROW_BYTES:
                return None
    return HeldRows(wanted.features, {column.name: column.whole() for column in read})


@dataclass(eq=False)
class _Column:
    """A column while it is read. Whole numbers of keys take 4 bytes where all of them fit: then
    half of the memory is written and read again.
    """

    name: str
    kind: pa.DataType
    chunks: list[pa.Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._narrow = _NARROW.get(self.kind) if keys.PARTS.fullmatch(self.name) else None

    def add(self, chunk: pa.Array) -> int:
        """Add a chunk, and return its bytes."""
        if self._narrow is not None:
            try:
                chunk = chunk.cast(self._narrow)
            except pa.ArrowInvalid:
                self._narrow = None
        self.chunks.append(chunk)
        return int(chunk.nbytes)

    def whole(self) -> pa.Array | pa.ChunkedArray:
        if keys.PARTS.fullmatch(self.name):
            kind = self._narrow or self.kind
            return pa.chunked_array([chunk.cast(kind) for chunk in self.chunks], kind)
        return pa.concat_arrays(self.chunks or [pa.array([], self.kind)])


def _types_are_plain(con: sql.Connection, wanted: SlotSpecification, raw: exp.Query) -> bool:
    names = ["y"] * (wanted.target and wanted.classes) + [f"id{k}" for k in wanted.identifiers]
    if not names:
        return True
    kinds = sql.types(con, raw)
    return all(_PLAIN.fullmatch(kinds[name]) for name in names)


def _elements(column: pa.Array, width: int) -> npt.NDArray[np.floating]:
    """(width, n), NaN where the element or the array is NULL."""
    values = column.values.slice(column.offset * width, len(column) * width)
    elements = np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, width)
    elements[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return elements.T
