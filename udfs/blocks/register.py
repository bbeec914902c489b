"""Trained blocks as functions of the party's own SQL."""

from __future__ import annotations

import contextlib
import hmac
import inspect
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.arrays import Float
from sqlfl.base.errors import Error, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_sql import arguments_of, given_of, type_of
from sqlfl.udfs.blocks.block_tables import SCHEMA
from sqlfl.udfs.blocks.blocks import FORMAT, SavedBlock
from sqlfl.udfs.describe import current_place
from sqlfl.udfs.encoding.features import categories_of, vocabulary_key_of
from sqlfl.udfs.encoding.fitting import NULL, Categories, Fitted, apply
from sqlfl.udfs.numbering import keys

PREFIX = "sqlfl_predict_"


def register(
    con: sql.Connection,
    *,
    store: sql.Connection | str | os.PathLike[str] | None = None,
    coordinator: str | None = None,
) -> dict[str, tuple[str, ...]]:
    """Make a function in `con` for every model block that its database keeps.

    `sqlfl_predict_<model>(feature, ...)` returns the block's part of the model's score: X̃ θ, or the
    output of its tower. It is a DOUBLE, or DOUBLE[K] for a model of K outputs (with a head: its
    embedding), and equals the party's message in PREDICT: other parties' parts, the intercept and a
    head are not in it. Several blocks of one model in a database have functions
    `sqlfl_predict_<model>_<table's alias>`.

    con : the functions belong to this connection, for as long as it is open; a second call updates
        them. Its cursors do not have them.
    store : the database that keeps the blocks, open or as a path, if it is not the current
        database of `con` (`fed.attach(..., store=...)`).
    coordinator : take only this coordinator's models; needed if several have a model of the same
        name here.

    Returns the functions' names, each with the names of its arguments in order; arguments may be
    given by name too. Raises ModelError if a name would mean two models, or a block is of a newer
    sqlfl; Error for an unknown store, and if a transaction is open on `con`.
    """
    _refuse_transaction(con)
    blocks = _named(_newest(_read(con, store, coordinator)))
    _forget(con)
    for name, block in blocks.items():
        _make(con, name, block)
    return {name: arguments_of(block.encoding) for name, block in blocks.items()}


def _refuse_transaction(con: sql.Connection) -> None:
    """Raise Error in an open transaction: its roll-back would restore functions without their
    Python part, and DuckDB would crash.
    """
    number = exp.select(sql.call("txid_current"))
    try:  # a BEGIN to see would abort it
        open_ = sql.fetch(con, number) == sql.fetch(con, number)
    except duckdb.TransactionException:  # it has failed
        open_ = True
    if open_:
        raise Error(
            "the connection has an open transaction, and functions cannot be rolled back",
            hint="commit it or roll it back, then register",
        )


# -- the blocks -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Row:
    coordinator: str
    run: str
    slot: int
    model: str
    saved_at: Any
    format: int
    block: bytes


def _read(
    con: sql.Connection,
    store: sql.Connection | str | os.PathLike[str] | None,
    coordinator: str | None,
) -> list[_Row]:
    with contextlib.ExitStack() as stack:
        source = con if store is None else store
        if not isinstance(source, duckdb.DuckDBPyConnection):
            source = stack.enter_context(contextlib.closing(_open(source)))
        catalog = current_place(source)[0]
        cursor = stack.enter_context(contextlib.closing(sql.cursor(source)))
        there = (
            exp.select(sql.number(1))
            .from_(exp.Table(this=sql.call("duckdb_tables")))
            .where(
                sql.equal(sql.column("database_name"), sql.string(catalog)),
                sql.equal(sql.column("schema_name"), sql.string(SCHEMA)),
                sql.equal(sql.column("table_name"), sql.string("blocks")),
            )
        )
        if not sql.fetch(cursor, there):
            return []
        names = ["coordinator", "run", "slot", "model", "saved_at", "format", "block"]
        wanted = [  # a TIMESTAMPTZ in Python needs a package of time zones
            sql.call("epoch_us", sql.column(name)) if name == "saved_at" else sql.column(name)
            for name in names
        ]
        order = [exp.Ordered(this=sql.column(name)) for name in ("model", "slot", "client")]
        table = exp.table_("blocks", db=SCHEMA, catalog=catalog, quoted=True)
        query = sql.select(table, wanted).order_by(*order)
        rows = [_Row(*row) for row in sql.fetch(cursor, query)]
    known = sorted({row.coordinator for row in rows})
    if coordinator is not None and coordinator not in known:
        raise ModelError(
            f"there are no blocks of a coordinator {coordinator} here",
            hint=f"there are those of {', '.join(known) or 'none'}",
        )
    return [row for row in rows if coordinator in (None, row.coordinator)]


def _open(path: object) -> sql.Connection:
    if not isinstance(path, (str, os.PathLike)):
        raise Error(f"store must be a connection or a path, got {type(path).__name__}")
    text = os.fspath(path)
    if not os.path.isfile(text):
        raise Error(f"there is no database file {text}")
    try:
        return duckdb.connect(text, read_only=True)
    except duckdb.ConnectionException:  # it is open in this process, for writing
        return duckdb.connect(text)
    except duckdb.Error as error:
        raise Error(f"cannot open {text}: {error}") from error


def _newest(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Return model -> the blocks of its newest run, one per slot. Clients of one slot that share a
    database have the same block.
    """
    models: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        models[row.model.lower()].append(row)
    newest = {}
    for several in models.values():
        owners = sorted({row.coordinator for row in several})
        if len(owners) > 1:
            raise ModelError(
                f"{len(owners)} coordinators have a model {several[0].model} here: "
                + ", ".join(owners),
                hint=f"register(con, coordinator='{owners[0]}')",
            )
        run = max(several, key=lambda row: row.saved_at).run
        by_slot = {row.slot: row for row in reversed(several) if row.run == run}
        newest[several[0].model] = sorted(by_slot.values(), key=lambda row: row.slot)
    return newest


def _named(models: Mapping[str, Sequence[_Row]]) -> dict[str, SavedBlock]:
    named: dict[str, SavedBlock] = {}
    origin: dict[str, str] = {}
    for model, rows in models.items():
        for row in rows:
            if row.format > FORMAT:
                raise ModelError(
                    f"a block of model {model} was saved by a newer sqlfl, in format "
                    f"{row.format}; this one reads {FORMAT}",
                    hint="upgrade sqlfl",
                )
            block = SavedBlock.from_bytes(row.block)
            name = PREFIX + model + (f"_{block.name}" if len(rows) > 1 else "")
            if name.lower() in origin:
                raise ModelError(
                    f"{name} would be a function of model {model} and of {origin[name.lower()]}",
                    hint="train one of them under another name",
                )
            origin[name.lower()] = model
            named[name] = block
    return named


# -- the functions --------------------------------------------------------------------------------


def _make(con: sql.Connection, name: str, block: SavedBlock) -> None:
    """Make a macro of the connection over an Arrow function, with casts as in training.

    DuckDB shares Python functions between all connections of a database, and crashes if one
    outlives its connection. So they have random names.
    """
    hidden = f"{_OWN}{secrets.token_hex(8)}"
    scorer = BlockFunction(block)
    features = block.encoding.features
    types = [type_of(feature.raw) for feature in features]
    con.create_function(hidden, scorer, types, scorer.type, type="arrow", null_handling="special")  # type: ignore[call-overload, unused-ignore]
    arguments = arguments_of(block.encoding)
    header = exp.UserDefinedFunction(
        this=exp.table_(name, db="main", catalog="temp", quoted=True),
        expressions=[exp.to_identifier(argument, quoted=True) for argument in arguments],
        wrapped=True,
    )
    statement = exp.Create(
        this=header,
        kind="MACRO",
        replace=True,
        properties=exp.Properties(expressions=[exp.TemporaryProperty()]),
        expression=sql.call(hidden, *map(given_of, features)),
    )
    sql.run(con, statement)


_OWN = "sqlfl_block_"


def _forget(con: sql.Connection) -> None:
    """Remove the functions that an earlier call made on this connection."""
    listing = exp.Table(this=sql.call("duckdb_functions"))
    query = sql.select(listing, [sql.column("function_name"), sql.column("function_type")])
    cursor = sql.cursor(con)
    try:
        functions = {name for name, kind in sql.fetch(cursor, query) if name.startswith(_OWN)}
    finally:
        cursor.close()
    functions_here = sql.fetch(
        con, query.where(sql.equal(sql.column("database_name"), sql.string("temp")))
    )
    for name, _ in functions_here:
        if name.startswith(PREFIX):
            macro = exp.table_(name, db="main", catalog="temp", quoted=True)
            sql.drop_as(con, "DROP MACRO IF EXISTS t", macro)
    for name in functions:
        # DuckDB does not count those of other connections as this one's, so they stay
        with contextlib.suppress(duckdb.InvalidInputException):
            con.remove_function(name)


class BlockFunction:
    """h of Arrow columns, one per feature of the block: (n,) doubles, or (n,) lists of K.

    NULL, NaN and categories that training did not see count as in scoring. Raises ModelError for
    infinite values.
    """

    def __init__(self, block: SavedBlock) -> None:
        self.block = block
        self.encoding = encoding = block.encoding
        self.theta = np.asarray(block.theta, np.float64)
        self.type = "DOUBLE" if block.outputs == 1 else f"DOUBLE[{block.outputs}]"
        kind = inspect.Parameter.POSITIONAL_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(f"c{n}", kind) for n in range(len(encoding.features))]
        )

    def __call__(self, *columns: Any) -> pa.Array:
        parts = [_whole(column) for column in columns]
        if self.encoding.fitted is not None:
            triples = zip(self.encoding.features, self.encoding.fitted, parts, strict=True)
            parts = [p if fit is None else _fitted(f, fit, p) for f, fit, p in triples]
        numeric = self._standardised(parts)
        scores = numeric @ self.theta[: self.encoding.numeric]
        for number, position in categories_of(self.encoding.features):
            codes = self._codes(number, parts[position])
            weights = self.theta[self.encoding.offsets[number] : self.encoding.offsets[number + 1]]
            known = codes >= 0
            scores[known] += weights[codes[known]]
        scores -= self.encoding.centre @ self.theta
        scores = self.block.finish(scores)
        if scores.shape[1] == 1:
            return pa.array(scores[:, 0])
        return pa.FixedSizeListArray.from_arrays(pa.array(scores.reshape(-1)), scores.shape[1])

    def _standardised(self, parts: Sequence[pa.Array]) -> Float:
        """(n, p): the numeric columns, then the indicators of missing values."""
        encoding = self.encoding
        values: list[Float] = []
        missing: list[npt.NDArray[np.bool_]] = []
        for feature, part in zip(encoding.features, parts, strict=True):
            if feature.kind == "category":
                continue
            part_values = _numbers(part, feature.width)
            if encoding.limits is None and np.isinf(part_values).any():
                raise ModelError(f"column {feature.name} has infinite values")
            values.append(part_values)
            is_array = feature.kind == "array"
            missing.append(_nulls(part) if is_array else np.isnan(part_values[:, 0]))
        flags = [missing[i][:, None].astype(np.float64) for i in encoding.indicators]
        numbers = encoding.clipped(np.hstack([np.empty((len(parts[0]), 0)), *values]))
        matrix = np.hstack([numbers, *flags])
        matrix = (matrix - encoding.centres) / encoding.scales
        return np.nan_to_num(matrix, copy=False, nan=0.0)

    def _codes(self, number: int, part: pa.Array) -> npt.NDArray[np.int64]:
        """(n,) entries of a vocabulary, −1 for others; each distinct value is looked up once."""
        encoded = part.dictionary_encode("encode")
        entries = self._entries[number]
        codes = np.array(
            [
                entries.get(self._entry(number, value), -1)
                for value in encoded.dictionary.to_pylist()
            ],
            np.int64,
        )
        return np.asarray(codes[encoded.indices.to_numpy()], np.int64)

    def _entry(self, number: int, value: str | bytes | None) -> str:
        """Return the vocabulary entry of a text, or of a canonical one from TRANSFORM."""
        canonical = value if isinstance(value, bytes) else _canonical(value)
        text = canonical.decode()
        secret = self.encoding.vocabulary_key
        if secret is None:
            return text
        key = vocabulary_key_of(secret, number)
        return hmac.digest(key, text.encode(), "sha256")[: keys.TAG_BYTES].hex()

    @cached_property
    def _entries(self) -> tuple[dict[str, int], ...]:
        return tuple(
            {entry: code for code, entry in enumerate(vocabulary)}
            for vocabulary in self.encoding.vocabularies
        )


def _fitted(feature: FeatureSpecification, fit: Fitted, part: pa.Array) -> pa.Array:
    if feature.raw.kind != "category":
        return apply(feature, fit, _numbers(part, 1)[:, 0])
    encoded = part.dictionary_encode("encode")
    texts = encoded.dictionary.to_pylist()
    entries = tuple(_canonical(text) for text in texts)
    codes = encoded.indices.to_numpy().astype(np.int64)
    return apply(feature, fit, Categories(codes, entries))


def _canonical(text: str | None) -> bytes:
    return NULL if text is None else f"v{text}".encode()


def _whole(column: Any) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _nulls(part: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(part.is_null().to_numpy(zero_copy_only=False), bool)


def _numbers(part: pa.Array, width: int) -> Float:
    """(n, width), NULL as NaN."""
    if not pa.types.is_fixed_size_list(part.type):
        return np.asarray(part.to_numpy(zero_copy_only=False), np.float64).reshape(-1, 1)
    values = part.values.slice(part.offset * width, len(part) * width)
    numbers = np.array(values.to_numpy(zero_copy_only=False), np.float64).reshape(-1, width)
    numbers[_nulls(part)] = np.nan
    return numbers
