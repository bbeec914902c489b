"""PREDICT INTO: predictions beside the identifiers, as a table of the party's own database."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import check_type
from sqlfl.databases.files import private_log
from sqlfl.messages import Write
from sqlfl.udfs import sql
from sqlfl.udfs.numbering.rows import Snapshot


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
