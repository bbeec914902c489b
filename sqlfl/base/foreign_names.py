"""Attributes and arguments of other libraries, with sqlfl's replacements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from sqlfl.base.errors import nearest

Function = TypeVar("Function", bound=Callable[..., Any])

_INFERENCE = 'fed.sql("INFERENCE OF MODEL name FROM (SELECT ...)")'
_PREDICT = 'fed.sql("PREDICT MODEL name ID (alias.column) FROM (SELECT ...)")'
_EVALUATE = 'fed.sql("EVALUATE MODEL name FROM (SELECT ...)")'
_TRAIN = 'fed.sql("TRAIN MODEL name USING kind TARGET column FROM (SELECT ...)")'
RESULT: Mapping[str, str] = {
    **dict.fromkeys(("toPandas", "to_df", "fetchdf", "fetch_df", "to_dataframe"),
                    "result.df()"),
    **dict.fromkeys(("to_arrow", "arrow_table", "fetch_arrow_table", "to_arrow_table", "collect",
                     "fetch_arrow_all"), "result.arrow()"),
    "polars": "result.to_polars()",
    **dict.fromkeys(("head", "tail", "iloc", "loc", "values", "to_numpy", "to_csv", "to_parquet",
                     "to_dict", "describe", "groupby", "sort_values", "iterrows", "dtypes"),
                    "result.df(), which is a pandas DataFrame"),
    **dict.fromkeys(("show", "print", "display"), "print(result)"),
    **dict.fromkeys(("to_dicts", "to_pylist", "fetchmany", "fetch"),
                    "result.arrow().to_pylist(), or result.fetchall()"),
    "shape": "len(result) and len(result.columns)",
    **dict.fromkeys(("predictions", "predicted"), 'result["prediction"]'),
    **dict.fromkeys(("probabilities", "proba"), "result.columns has their names, one per class"),
    "schema": "result.arrow().schema",
    **dict.fromkeys(("coef_", "summary", "predict", "params"),
                    "fed.model('name') for the model; a result has rows"),
}  # fmt: skip
MODEL: Mapping[str, str] = {
    **dict.fromkeys(("coef", "params", "coefficients", "feature_weights"),
                    "model.coef_, or model.weights with the columns that they are of"),
    **dict.fromkeys(("pvalues", "tvalues", "bse", "conf_int", "aic", "bic", "llf",
                     "standard_errors"), "model.summary(), or " + _INFERENCE),
    **dict.fromkeys(("predict", "predict_proba", "decision_function", "transform"), _PREDICT),
    **dict.fromkeys(("score", "evaluate"), _EVALUATE),
    **dict.fromkeys(("fit", "partial_fit", "train", "retrain"), _TRAIN),
    **dict.fromkeys(("feature_importances_", "importances"),
                    'fed.sql("IMPORTANCE OF MODEL name FROM (SELECT ...)")'),
    **dict.fromkeys(("save", "dump", "export", "to_onnx", "save_model"),
                    "fed.sql(\"EXPORT MODEL name TO 'folder'\")"),
    "classes_": "model.classes",
    "feature_names_in_": "model.features",
    "n_iter_": "model.history",
    **dict.fromkeys(("drop", "delete", "remove"), 'fed.sql("DROP MODEL name")'),
    "describe": 'print(model), or fed.sql("DESCRIBE MODEL name")',
    "loss": "model.metrics",
}  # fmt: skip
_ROWS = (
    "it has no rows: rows stay with their parties, and relation.columns, relation.types and "
    "relation.check() say what they are"
)
RELATION: Mapping[str, str] = {
    "fit": 'relation.train("name", "kind", target="column")',
    "score": 'relation.evaluate("name")',
    **dict.fromkeys(("predict_proba", "transform"), 'relation.predict("name", id="alias.column")'),
    **dict.fromkeys(("df", "arrow", "pl", "to_pandas", "to_arrow", "to_polars", "fetchall",
                     "fetchone", "fetch", "execute", "show", "head", "tail", "collect", "values",
                     "sample", "iloc", "loc", "shape", "limit"), _ROWS),
    **dict.fromkeys(("describe", "info", "dtypes"), "relation.schema(), or relation.check()"),
    **dict.fromkeys(("filter", "where", "select", "join", "groupby", "aggregate", "order"),
                    'write it in the query: fed.query("SELECT ... FROM ... WHERE ...")'),
    **dict.fromkeys(("inference", "summary"),
                    "fed.model('name').summary(), or " + _INFERENCE),
    "importance": 'fed.sql("IMPORTANCE OF MODEL name FROM (SELECT ...)")',
    "skew": 'fed.sql("SKEW OF MODEL name FROM (SELECT ...)")',
    "tune": 'fed.sql("TUNE MODEL name USING kind TARGET column WITH (l2 = [0, 1]) FROM (...)")',
}  # fmt: skip
FEDERATION: Mapping[str, str] = {
    **dict.fromkeys(("execute", "run", "run_sql", "executescript"), "fed.sql(text)"),
    **dict.fromkeys(("train", "fit"), _TRAIN),
    **dict.fromkeys(("predict", "score"), _PREDICT),
    "evaluate": _EVALUATE,
    **dict.fromkeys(("get_model", "load_model"), "fed.model('name')"),
    **dict.fromkeys(("list_models", "show_models"), "fed.models"),
    **dict.fromkeys(("drop_model", "delete_model", "drop"), 'fed.sql("DROP MODEL name")'),
    **dict.fromkeys(("from_df", "from_arrow", "from_pandas", "from_polars"),
                    "fed.attach('party', {'table': df})"),
    **dict.fromkeys(("register", "read_csv", "read_parquet", "create_table", "cursor", "read_json"),
                    "a table of a party: con = duckdb.connect(); con.execute('CREATE TABLE ...'); "
                    "fed.attach('party', con)"),
    **dict.fromkeys(("add_party", "connect", "add", "join"), "fed.attach('party', connection)"),
    **dict.fromkeys(("commit", "rollback", "begin"), "each statement is done, or undone, at once"),
}  # fmt: skip
CONNECT = 'fed = sqlfl.connect(); fed.attach("party", connection), for each party'
ATTACH = (
    'fed.attach("party", connection), for each party; several databases of one are a list: '
    'fed.attach("party", [one, other])'
)
SQL = "fed.sql(text, [value, ...]): text is the statement, and the values are those of its ?"
PACKAGE: Mapping[str, str] = {
    **dict.fromkeys(("attach", "register", "add_party"), CONNECT),
    **dict.fromkeys(("sql", "execute", "query", "run", "explain", "train", "predict", "evaluate"),
                    "fed = sqlfl.connect(); fed.attach(...); fed.sql(text)"),
    **dict.fromkeys(("Connection", "Session", "Client", "Party", "Coordinator", "Server"), CONNECT),
    **dict.fromkeys(("load_model", "load", "models"), "fed.model('name')"),
}  # fmt: skip


def no_attribute(
    owner: object, name: str, instead: Mapping[str, str], known: Iterable[str]
) -> AttributeError:
    """Return the error for an attribute that `owner` lacks, with its replacement."""
    kind = type(owner).__name__
    hint = instead.get(name)
    if hint is None and not name.startswith("_"):
        close = nearest(name, [candidate for candidate in known if not candidate.startswith("_")])
        hint = None if close is None else f"did you mean {close}?"
    message = f"{kind!r} object has no attribute {name!r}"
    return AttributeError(f"{message}\nhint: {hint}" if hint else message, name=name, obj=owner)


def with_call_hint(hint: str) -> Callable[[Function], Function]:
    """Return a decorator that adds the hint to the TypeError of a call with wrong arguments."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[-1]

        @wraps(function)
        def call(*args: object, **named: object) -> Any:
            try:
                signature.bind(*args, **named)
            except TypeError as error:
                wrong = next((key for key in named if key not in signature.parameters), "")
                close = get_close_matches(wrong, signature.parameters, n=1, cutoff=0.8)
                text = f"did you mean {close[0]}=...?" if close else hint
                raise TypeError(f"{name}(): {error}\nhint: {text}") from None
            return function(*args, **named)

        return cast("Function", call)

    return decorate
