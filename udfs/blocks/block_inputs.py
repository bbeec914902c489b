"""Inputs of a block in SQL: arguments, and features computed from them."""

from __future__ import annotations

from sqlglot import exp

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding


def arguments_of(encoding: Encoding) -> tuple[str, ...]:
    """Return the columns of the query, each once; TRANSFORM makes features of them."""
    names: dict[str, str] = {}
    for feature in encoding.features:
        inputs = [name for name, _ in feature.made.inputs] if feature.made else [feature.name]
        for name in inputs:
            names.setdefault(name.lower(), name)
    return tuple(names.values())


def given_of(feature: FeatureSpecification) -> exp.Expr:
    """The feature, before anything is fitted, as SQL over the arguments."""
    return sql.cast(_made(feature), type_of(feature.raw))


def _made(feature: FeatureSpecification) -> exp.Expr:
    if feature.made is None:
        return sql.column(feature.name)
    columns = {name.lower(): sql.cast(sql.column(name), kind) for name, kind in feature.made.inputs}
    tree = exp.paren(sql.parsed(feature.made.expression))
    if tree.find(exp.Query, exp.Table) or any(c.table for c in tree.find_all(exp.Column)):
        raise ModelError(f"feature {feature.name} is made of more than its columns")
    for column in list(tree.find_all(exp.Column)):
        column.replace(columns[column.name.lower()].copy())
    return tree


def type_of(feature: FeatureSpecification) -> str:
    if feature.kind == "category":
        return "VARCHAR"
    return f"DOUBLE[{feature.width}]" if feature.kind == "array" else "DOUBLE"
