"""The coordinator's part of an exported model: from the parts of a joined row to its prediction."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sqlglot import exp

from sqlfl.base.errors import InternalError
from sqlfl.models.kinds import kind_of
from sqlfl.store.registry import Model
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_onnx import Graph
from sqlfl.udfs.blocks.block_sql import bound, double, element, inner, macro

PARTS = "parts"


def prediction_files(model: Model, formats: Iterable[str]) -> dict[str, bytes]:
    """Return format -> bytes. Safetensors need no file, because the manifest has intercept and
    head.
    """
    writers = {"sql": _to_sql, "onnx": _to_onnx}
    return {kind: writers[kind](model) for kind in formats if kind in writers}


# -- SQL ------------------------------------------------------------------------------------------


def _to_sql(model: Model) -> bytes:
    """Write `<model>_prediction(parts)`, and for classes `<model>_probabilities(parts)`. `parts` is
    the list of results of the blocks' macros for the row.
    """
    scores = _scores(model)
    macros: list[exp.Create] = []
    if model.classes is None:
        macros.append(macro(f"{model.name}_prediction", [PARTS], _link(model, element(scores, 0))))
    else:
        name = f"{model.name}_probabilities"
        macros.append(macro(name, [PARTS], _probabilities(model, scores)))
        chances = exp.Anonymous(
            this=exp.to_identifier(name, quoted=True), expressions=[sql.column(PARTS)]
        )
        classes = sql.call("list_value", *map(sql.string, model.classes))
        best = bound(
            chances,
            "sqlfl_p",
            sql.call(
                "list_extract",
                classes,
                sql.call(
                    "list_position",
                    sql.column("sqlfl_p"),
                    sql.call("list_max", sql.column("sqlfl_p")),
                ),
            ),
        )
        typed = sql.cast(best, model.target_type or "VARCHAR")
        macros.append(macro(f"{model.name}_prediction", [PARTS], typed))
    return "".join(f"{sql.to_sql(create)};\n" for create in macros).encode()


def _scores(model: Model) -> exp.Expr:
    """A list of d_c."""
    intercept = np.asarray(model.intercept, np.float64)
    size = len(intercept) if model.head is None else len(model.head)
    if size == 1:
        sums: list[exp.Expr] = [sql.call("list_sum", sql.column(PARTS))]
    else:
        each = 'list_sum(list_transform($parts, lambda "sqlfl_h": list_extract("sqlfl_h", $place)))'
        sums = [
            sql.expression(each, parts=sql.column(PARTS), place=sql.number(k + 1))
            for k in range(size)
        ]
    if model.head is None:
        scores = [sql.add([s, double(b)]) for s, b in zip(sums, intercept, strict=True)]
        return sql.call("list_value", *scores)
    name = "sqlfl_sum"
    scores = [
        sql.add([inner(sql.column(name), column), double(b)])
        for column, b in zip(np.asarray(model.head).T, intercept, strict=True)
    ]
    return bound(sql.call("list_value", *sums), name, sql.call("list_value", *scores))


def _link(model: Model, score: exp.Expr) -> exp.Expr:
    match kind_of(model.kind).loss:
        case "squared" | "huber" | "quantile":
            return score
        case "poisson" | "gamma":
            return sql.call("exp", score)
    raise InternalError(f"no link of a {model.kind}")


def _probabilities(model: Model, scores: exp.Expr) -> exp.Expr:
    name = "sqlfl_s"
    s = sql.column(name)
    if kind_of(model.kind).loss == "logistic":
        each = [
            sql.divide(
                double(1.0),
                exp.paren(sql.add([double(1.0), sql.call("exp", sql.times(double(sign), s))])),
            )
            for sign in (1.0, -1.0)
        ]
        return bound(element(scores, 0), name, sql.call("list_value", *each))
    # without the largest, exponentials would be beyond all numbers
    powers = sql.expression(
        'list_transform($s, lambda "sqlfl_x": exp("sqlfl_x" - list_max($s)))', s=s
    )
    shares = sql.expression(
        'list_transform($e, lambda "sqlfl_x": "sqlfl_x" / list_sum($e))', e=sql.column("sqlfl_e")
    )
    return bound(scores, name, bound(powers, "sqlfl_e", shares))


# -- ONNX -----------------------------------------------------------------------------------------


def _to_onnx(model: Model) -> bytes:
    """Input `h` (n, K), the sum of the blocks' outputs; output `prediction` (n, 1), or
    `probabilities` (n, classes) and `prediction` (n,), the classes' texts."""
    graph = Graph()
    intercept = np.asarray(model.intercept, np.float64).reshape(1, -1)
    size = intercept.shape[1] if model.head is None else len(model.head)
    scores = graph.input("h", "double", size)
    if model.head is not None:
        scores = graph.node("MatMul", scores, graph.constant(model.head))
    scores = graph.node("Add", scores, graph.constant(intercept))
    outputs: dict[str, tuple[str, str, int | None]]
    if model.classes is None:
        exponential = kind_of(model.kind).loss in ("poisson", "gamma")
        output = graph.node("Exp", scores) if exponential else scores
        outputs = {"prediction": (output, "double", 1)}
    else:
        if kind_of(model.kind).loss == "logistic":
            zero = graph.node("Mul", scores, graph.constant([[0.0]]))
            scores = graph.node("Concat", zero, scores, axis=1)
        chances = graph.node("Softmax", scores, axis=1)
        best = graph.node("ArgMax", chances, axis=1, keepdims=0)
        text = graph.node(
            "LabelEncoder",
            best,
            domain="ai.onnx.ml",
            keys_int64s=list(range(len(model.classes))),
            values_strings=list(model.classes),
        )
        outputs = {
            "probabilities": (chances, "double", len(model.classes)),
            "prediction": (text, "string", None),
        }
    return graph.finished(f"{model.name}_prediction", outputs)
