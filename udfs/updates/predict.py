"""Scores of new rows, by engine and with arrays beside the database, and PREDICT INTO.

PREDICT INTO writes predictions beside the identifiers, as a table of the party's own database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import check_type
from sqlfl.databases.files import private_log
from sqlfl.messages import Write
from sqlfl.models.gram import GramMatrix
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.columns import (
    EncodedColumns,
    check_features,
    encode,
    end_encode,
    held_columns,
    read_columns,
)
from sqlfl.udfs.encoding.features import Encoding, check_finite
from sqlfl.udfs.encoding.transforming import transform
from sqlfl.udfs.numbering.rows import RowScores, Snapshot
from sqlfl.udfs.updates.update import Index, LinearEngine, SqlEngine, check_theta, check_values


def make_engine(
    name: str, con: sql.Connection, snapshot: Snapshot, encoding: Encoding
) -> LinearEngine:
    """The engine called `name`, 'sql' or 'arrays', over the active rows of `snapshot`."""
    if name not in ENGINES:
        raise InternalError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name](con, snapshot, encoding)


def ready(snapshot: Snapshot, encoding: Encoding) -> None:
    """Make the features of a saved encoding from the snapshot's columns, once. Raise ModelError if
    they do not fit it, or are infinite without clipping.
    """
    if encoding.fitted is not None and snapshot.specification.features != encoding.features:
        transform(snapshot, encoding.features, encoding.fitted, pairs=encoding.pairs)
    if encoding.limits is None:
        check_finite(snapshot)


def score(
    con: sql.Connection,
    snapshot: Snapshot,
    encoding: Encoding,
    theta: Float,
    engine: str = "sql",
    of: tuple[str, int] | None = None,
) -> Float:
    """X̃ θ of the active rows under a saved encoding: (d, c) -> (a, c).

    A category that training did not have is `other`: its one-hot columns are all zero before
    centring. Raises ModelError if the features do not fit the encoding, or are infinite where it
    does not clip them. `of`: the block's model and slot; where a join keeps the rows, it keeps the
    result for statements that ask for the same of the same rows.
    """
    ready(snapshot, encoding)
    kept, row_ids = snapshot.scores, snapshot.row_ids
    if kept is not None and row_ids is not None and of is not None:
        values = kept.find(of, theta, row_ids)
        if values is not None:
            return values
    scorer = make_engine(engine, con, snapshot, encoding)
    try:
        values = scorer.predict(theta)
    finally:
        scorer.close()
    if kept is not None and row_ids is not None and of is not None:
        kept.keep(RowScores(of, theta, row_ids, values))
    return values


_SMALL = 1 << 20
"""Numbers of the centred columns up to which they are held densely, where categories are few."""
_FEW = 64
"""Maximum one-hot columns that count as few."""


class ArraysEngine:
    """Numeric columns as dense matrices, categories as a sparse one with a 1 per known value; of
    small tables all columns centred, as one dense matrix, since taking a batch of rows of a sparse
    one costs more than their products."""

    name = "arrays"

    def __init__(self, con: sql.Connection, snapshot: Snapshot, encoding: Encoding) -> None:
        self.rows = snapshot.active
        self.width = encoding.width
        self.centre = encoding.centre
        self.numeric = encoding.numeric
        self.offsets = encoding.offsets
        plain = () if encoding.limits is not None else snapshot.single
        columns = _columns(con, snapshot, encoding, plain)
        self.counts, self._numeric, self._onehot = columns.counts, columns.numeric, columns.onehot
        self._has_onehot = self.width > self.numeric
        self._dense: Float | None = None
        small = self.rows * self.width <= _SMALL and self.width - self.numeric <= _FEW
        if small:
            onehot = self._onehot.toarray() - self.centre[self.numeric :]
            self._dense = np.hstack([self._numeric.whole(), onehot])

    def predict(self, theta: Float, batch: Index | None = None) -> Float:
        theta = check_theta(self, theta)
        if self._dense is not None:
            dense = self._dense if batch is None else self._dense[batch]
            return np.asarray(dense @ theta)
        h = self._numeric.dot(theta[: self.numeric], batch)
        if self._has_onehot:
            onehot = self._onehot if batch is None else self._onehot[batch]
            h += onehot @ theta[self.numeric :]
            h -= self.centre @ theta
        return h

    def gradient(self, values: Float, batch: Index | None = None) -> Float:
        values = check_values(self, values, batch)
        if self._dense is not None:
            dense = self._dense if batch is None else self._dense[batch]
            return np.asarray(dense.T @ values)
        gradient = np.empty((self.width, values.shape[1]))
        gradient[: self.numeric] = self._numeric.transposed_dot(values, batch)
        if self._has_onehot:
            onehot = self._onehot if batch is None else self._onehot[batch]
            gradient[self.numeric :] = onehot.T @ values
            gradient -= np.outer(self.centre, values.sum(axis=0))
        return gradient

    def gram(self) -> GramMatrix:
        categories = self.width - self.numeric
        numeric = np.zeros((self.numeric, self.numeric))
        cross = np.zeros((categories, self.numeric))
        moments = np.zeros(self.width)
        for part, block in self._numeric.blocks():
            counts = self.counts[part]
            moments[: self.numeric] += counts @ block
            roots = np.sqrt(counts)[:, None]
            weighted = block * roots
            numeric += weighted.T @ weighted
            if categories:
                weighted *= roots
                cross += self._onehot[part].T @ weighted
        moments[self.numeric :] = self._onehot.T @ self.counts
        weighted_rows = sparse.csr_array(self._onehot.multiply(self.counts[:, None]))
        onehot = sparse.csr_array(self._onehot.T @ weighted_rows)
        onehot.eliminate_zeros()
        return GramMatrix(numeric, cross, onehot, moments, float(self.counts.sum()))

    def norms(self) -> Float:
        squares = np.empty(self.rows)
        for part, block in self._numeric.blocks():
            np.einsum("rp,rp->r", block, block, out=squares[part])
        if self._has_onehot:
            squares += self._onehot @ (1.0 - 2.0 * self.centre[self.numeric :])
            squares += self.centre @ self.centre
        norms: Float = np.sqrt(np.maximum(squares, 0.0))
        return norms

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        return self._numeric.whole(kind), self._onehot

    def close(self) -> None:
        """Let go of the matrices; the engine cannot be used any more."""
        self._dense = None
        self._numeric = self._numeric.nothing()
        self._onehot = sparse.csr_array((0, self.width - self.numeric))
        self.counts = np.empty(0)


def _columns(
    con: sql.Connection, snapshot: Snapshot, encoding: Encoding, plain: Collection[int]
) -> EncodedColumns:
    check_features(snapshot.specification.features, encoding.features)
    if snapshot.held is not None:
        return held_columns(snapshot.held, encoding, plain)
    query = encode(snapshot, encoding, plain)
    columns = read_columns(con, query, snapshot.active, encoding, plain)
    end_encode(snapshot)
    return columns


ENGINES: dict[str, Callable[[sql.Connection, Snapshot, Encoding], LinearEngine]] = {
    "sql": SqlEngine,
    "arrays": ArraysEngine,
}


def write(con: sql.Connection, request: Write, snapshots: Sequence[Snapshot]) -> int:
    """Make the table in a transaction that stays open on `con`; return its rows.

    snapshots : those of `request.slots`, their rows activated, in that order. Identifiers keep
    their types. Raises duckdb.CatalogException if a table of the name exists and may not be
    replaced, ModelError if a view does or another table is being made, and InternalError if the
    request does not fit the snapshots.
    """
    size = len(request.prediction)
    if len(request.table) != 3:
        raise InternalError(f"a table named by {len(request.table)} names")
    if any(len(rows) != size for rows in (*request.rows, request.probabilities)):
        raise InternalError("predictions, probabilities and rows must be of the same number")
    chosen: dict[int, exp.Expr] = {}
    for place, snapshot in enumerate(snapshots):
        for number in snapshot.specification.identifiers:
            chosen[number] = sql.column(f"id{number}", f"s{place}")
    if sorted(chosen) != list(range(len(request.names))):
        raise InternalError(f"{len(request.names)} names came for identifiers {sorted(chosen)}")
    columns = [sql.named(chosen[k], name) for k, name in enumerate(request.names)]
    prediction: exp.Expr = sql.column("prediction", "g")
    if request.classes:
        prediction = sql.cast(prediction, _class_type(request.type))
    columns.append(sql.named(prediction, "prediction"))
    columns += [
        sql.named(sql.column(f"p{k}", "g"), f"probability_{name}")
        for k, name in enumerate(request.classes)
    ]
    with sql.registered(con, f"sqlfl_{request.run}_written", _given(request)) as given:
        query = sql.select(exp.alias_(given, "g", table=True), columns)
        for place, snapshot in enumerate(snapshots):
            match = sql.equal(sql.column("r", f"s{place}"), sql.column(f"r{place}", "g"))
            active = exp.alias_(snapshot.active_table, f"s{place}", table=True)
            query = query.join(active, on=match, copy=False)
        _keep_log_private(con, request.table[0])
        con.begin()
        try:
            made = _make(con, request, query)
            if made != size:
                raise InternalError(f"{size} rows were to be written, and {made} were")
        except BaseException:
            con.rollback()  # here: a view of a failed transaction cannot be unregistered
            raise
    return made


def _keep_log_private(con: sql.Connection, catalog: str) -> None:
    databases = exp.Table(this=sql.call("duckdb_databases"))
    query = sql.select(databases, [sql.column("path")])
    query = query.where(sql.equal(sql.column("database_name"), sql.string(catalog)))
    for (path,) in sql.fetch(con, query):
        private_log(path)


def _class_type(text: str) -> str:
    try:
        check_type(text)
        sql.cast(exp.Null(), text)
    except (ValueError, SqlglotError):
        raise InternalError("the type of the classes is none") from None
    return text


def _make(con: sql.Connection, request: Write, query: exp.Select) -> int:
    catalog, schema, name = request.table
    table = exp.table_(name, db=schema, catalog=catalog, quoted=True)
    try:
        replace = bool(request.replace)
        sql.run(con, exp.Create(this=table, kind="TABLE", expression=query, replace=replace))
    except duckdb.CatalogException as error:
        if not request.replace:
            raise
        raise ModelError(
            f"{catalog}.{schema}.{name} cannot be replaced: {error}",
            hint="a table takes the place of a table only, not of a view; choose another name",
        ) from error
    except duckdb.TransactionException as error:
        raise ModelError(
            f"another transaction makes a table {catalog}.{schema}.{name} at the same time",
            hint="commit or roll back that transaction, or choose another name",
        ) from error
    count = exp.select(sql.call("count", exp.Star())).from_(table.copy())
    return int(sql.fetch(con, count)[0][0])


def _given(request: Write) -> pa.Table:
    """g: r<place> the active row at each slot, prediction, p<k>."""
    values = pa.array(request.prediction)
    if request.classes:
        values = pa.array(request.classes, pa.string()).take(values)
    fields = {f"r{place}": pa.array(rows) for place, rows in enumerate(request.rows)}
    fields["prediction"] = values
    for k in range(len(request.classes)):
        fields[f"p{k}"] = pa.array(np.ascontiguousarray(request.probabilities[:, k]))
    return pa.table(fields)
