"""A block as one expression of SQL, which any DuckDB evaluates without sqlfl."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from sqlglot import exp

from sqlfl.base.arrays import Float
from sqlfl.base.errors import ModelError
from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.blocks.terms import Buckets, NumberTerm, Piece, Spline, TextTerm, pieces_of
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.numbering import keys


def block_macro(name: str, block: SavedBlock) -> exp.Create:
    """Return a macro that computes what the block sends in PREDICT: a DOUBLE, or a DOUBLE[] for
    several outputs.

    Its arguments are the columns that features are made of. NULL, NaN and unknown categories count
    as in scoring; infinite values are an error. Raises ModelError for a block that SQL cannot
    express.
    """
    _check_size(block)
    return macro(name, arguments_of(block.encoding), _Writing(block).whole())


def macro(name: str, arguments: Iterable[str], body: exp.Expr) -> exp.Create:
    """CREATE OR REPLACE MACRO"""
    header = exp.UserDefinedFunction(
        this=exp.table_(name, quoted=True),
        expressions=[exp.to_identifier(argument, quoted=True) for argument in arguments],
        wrapped=True,
    )
    return exp.Create(this=header, kind="MACRO", replace=True, expression=body)


def double(value: float) -> exp.Expr:
    """A DOUBLE with all its digits."""
    text = repr(abs(float(value)))
    written = exp.Literal.number(text if "e" in text else f"{text}e0")
    return exp.Neg(this=written) if value < 0 else written


def doubles(values: Iterable[float]) -> exp.Expr:
    return sql.call("list_value", *map(double, values))


def element(values: exp.Expr, place: int) -> exp.Expr:
    """`place`: from 0 on."""
    return sql.call("list_extract", values, sql.number(place + 1))


def inner(values: exp.Expr, weights: Iterable[float]) -> exp.Expr:
    return sql.call("list_inner_product", values, doubles(weights))


def bound(value: exp.Expr, name: str, body: exp.Expr) -> exp.Expr:
    """Return `body`, in which the column `name` is the value, computed once."""
    return sql.expression(
        f'list_extract(list_transform(list_value($value), lambda "{name}": $body), 1)',
        value=value,
        body=body,
    )


class _Writing:
    def __init__(self, block: SavedBlock) -> None:
        self._block = block
        self._sum = pieces_of(block)
        self._numbers = count()

    def whole(self) -> exp.Expr:
        if self._block.tower is None and len(self._sum.base) == 1:
            terms = [self._term(piece) for piece in self._sum.pieces]
            return sql.add([double(self._sum.base[0]), *terms])
        first = self._products()
        return first if self._block.tower is None else self._tower(first)

    def _name(self) -> str:
        return f"{RESERVED}{next(self._numbers)}"

    # -- several outputs ---------------------------------------------------------------------------

    def _products(self) -> exp.Expr:
        """h numbers, as a list."""
        row = self._name()
        pieces = self._sum.pieces
        fields = [
            exp.PropertyEQ(this=exp.to_identifier(f"p{n}", quoted=True), expression=values)
            for n, values in enumerate(map(self._vector, pieces))
        ]
        if not pieces:
            return doubles(self._sum.base)
        outputs = []
        for k, base in enumerate(self._sum.base):
            terms = [double(base)]
            for n, piece in enumerate(pieces):
                product = sql.column(f"p{n}", row)
                if isinstance(piece, NumberTerm):
                    weights = piece.weights[:, k].tolist()
                    weights += [] if piece.missing is None else [piece.missing[k]]
                    terms.append(inner(product, weights))
                else:
                    terms.append(element(product, k))
            outputs.append(sql.add(terms))
        made = exp.Struct(expressions=fields)
        return bound(made, row, sql.call("list_value", *outputs))

    def _vector(self, piece: Piece) -> exp.Expr:
        """Return the factors of the weights for numbers, and the weights themselves for other
        features.
        """
        if isinstance(piece, NumberTerm):
            return self._given(piece.feature, lambda x: self._standardised(piece, x))
        return self._chosen(piece, doubles)

    def _standardised(self, piece: NumberTerm, x: exp.Expr) -> exp.Expr:
        numbers: list[exp.Expr] = [
            sql.divide(exp.paren(value), double(scale))
            for value, scale in zip(self._centred(piece, x), piece.scale, strict=True)
        ]
        if piece.missing is not None:
            numbers.append(sql.when(sql.is_null(x.copy()), double(1.0), double(0.0)))
        return sql.call("list_value", *numbers)

    def _tower(self, first: exp.Expr) -> exp.Expr:
        tower = self._block.tower
        assert tower is not None
        values = first
        parameters = self._block.parameters
        for bias, weights in zip(parameters[1::2], parameters[2::2], strict=True):
            before, after = self._name(), self._name()
            active = [
                _activated(tower.activation, sql.add([element(sql.column(before), k), double(b)]))
                for k, b in enumerate(bias)
            ]
            sums = [inner(sql.column(after), column) for column in weights.T]
            body = bound(sql.call("list_value", *active), after, sql.call("list_value", *sums))
            values = bound(values, before, body)
        if tower.bounded:
            name = self._name()
            every = [sql.call("tanh", element(sql.column(name), k)) for k in range(tower.outputs)]
            values = bound(values, name, sql.call("list_value", *every))
        return element(values, 0) if tower.outputs == 1 else values

    # -- one output --------------------------------------------------------------------------------

    def _term(self, piece: Piece) -> exp.Expr:
        if not isinstance(piece, NumberTerm):
            return self._chosen(piece, lambda weights: double(weights[0]))

        def written(x: exp.Expr) -> exp.Expr:
            factors = piece.weights[:, 0] / piece.scale
            terms: list[exp.Expr] = [
                sql.times(exp.paren(value), double(factor))
                for value, factor in zip(self._centred(piece, x), factors, strict=True)
            ]
            if piece.missing is not None:
                missing = double(piece.missing[0])
                terms.append(sql.when(sql.is_null(x.copy()), missing, double(0.0)))
            return exp.paren(sql.add(terms)) if len(terms) > 1 else terms[0]

        return self._given(piece.feature, written)

    # -- features ----------------------------------------------------------------------------------

    def _given(
        self, feature: FeatureSpecification, body: Callable[[exp.Expr], exp.Expr]
    ) -> exp.Expr:
        """Return `body` applied to the given feature, with NaN as NULL."""
        value = given_of(feature)
        if feature.raw.kind not in ("category", "array"):
            value = sql.call("nullif", value, sql.cast(sql.string("nan"), "DOUBLE"))
        if feature.made is None:
            return body(value)
        name = self._name()
        return bound(value, name, body(sql.column(name)))

    def _centred(self, piece: NumberTerm, x: exp.Expr) -> list[exp.Expr]:
        """Return x' − mean of each number, 0 if it is missing."""
        name = piece.feature.name
        if piece.feature.raw.kind == "array":
            nan = sql.cast(sql.string("nan"), "DOUBLE")
            values: list[exp.Expr] = [
                sql.call("nullif", element(x.copy(), k), nan.copy()) for k in range(len(piece.mean))
            ]
        else:
            values = [x.copy()]
        if piece.limits is None:
            values = [_finite(value, name) for value in values]
        if piece.fill is not None:
            values = [sql.call("coalesce", value, double(piece.fill)) for value in values]
        if piece.affine is not None:
            low, size = map(double, piece.affine)
            values = [sql.divide(exp.paren(sql.minus(v, low)), size) for v in values]
        if piece.spline is not None:
            values = self._spline(piece.spline, values[0])
        if piece.limits is not None:
            low_, high = piece.limits
            values = [
                sql.clipped(v, double(a), double(b))
                for v, a, b in zip(values, low_, high, strict=True)
            ]
        return [
            sql.call("coalesce", sql.minus(value, double(mean)), double(0.0))
            for value, mean in zip(values, piece.mean, strict=True)
        ]

    def _spline(self, spline: Spline, value: exp.Expr) -> list[exp.Expr]:
        x = self._name()
        low, high = spline.knots[0], spline.knots[-1]
        held = sql.clipped(sql.column(x), double(low), double(high))
        pieces = []
        for left, coefficients in zip(spline.knots[:-1], spline.coefficients, strict=True):
            t = exp.paren(sql.minus(sql.column(x), double(left)))
            pieces.append(sql.call("list_value", *(_horner(c, t) for c in coefficients.T)))
        branches = [
            exp.If(this=exp.LT(this=sql.column(x), expression=double(knot)), true=piece)
            for knot, piece in zip(spline.knots[1:-1], pieces, strict=False)
        ]
        null = exp.If(this=sql.is_null(sql.column(x)), true=exp.Null())
        chosen = exp.Case(ifs=[null, *branches], default=pieces[-1])
        every = bound(value, x, bound(held, x, chosen))
        return [element(every.copy(), k) for k in range(spline.coefficients.shape[2])]

    def _chosen(self, piece: Buckets | TextTerm, written: Callable[[Float], exp.Expr]) -> exp.Expr:
        def body(x: exp.Expr) -> exp.Expr:
            null = exp.If(this=sql.is_null(x), true=written(piece.missing))
            if isinstance(piece, Buckets):
                finite = _finite(x.copy(), piece.feature.name)
                below = [
                    exp.If(
                        this=exp.LT(this=finite.copy(), expression=double(most)),
                        true=written(weights),
                    )
                    for most, weights in zip(piece.bounds, piece.weights, strict=False)
                ]
                last = exp.If(
                    this=sql.is_null(finite.copy()).not_(), true=written(piece.weights[-1])
                )
                return exp.Case(ifs=[null, *below, last])
            value = x.copy() if piece.key is None else _hashed(x.copy(), piece.key)
            known = [
                exp.If(this=sql.string(text), true=written(weights))
                for text, weights in zip(piece.texts, piece.weights, strict=True)
            ]
            other = written(piece.other)
            rest = exp.Case(this=value, ifs=known, default=other) if known else other
            return exp.Case(ifs=[null], default=rest)

        return self._given(piece.feature, body)


def _finite(value: exp.Expr, name: str) -> exp.Expr:
    """Return the value, with an error if it is infinite."""
    words = sql.string(f"column {name} has infinite values: ")
    # depends on the value, or the error would be evaluated at planning time
    fail = sql.call("error", sql.join_text(words, sql.text(value.copy())))
    return sql.when(sql.call("isinf", value.copy()), fail, value)


def _horner(coefficients: Float, t: exp.Expr) -> exp.Expr:
    polynomial = double(coefficients[0])
    for coefficient in coefficients[1:]:
        polynomial = exp.paren(sql.add([sql.times(polynomial, t.copy()), double(coefficient)]))
    return polynomial


def _hashed(value: exp.Expr, key: bytes) -> exp.Expr:
    """The tag of a category, in hexadecimal: the key is in the expression."""
    given = keys.pads(key)
    message = sql.expression("encode('v' || $value)", value=value)
    literal = {name: sql.call("unhex", sql.string(data.hex())) for name, data in given.items()}
    tag = keys.tag(message)
    for place in list(tag.find_all(exp.Placeholder, exp.Parameter)):
        place.replace(literal[place.name])
    return sql.call("lower", sql.call("hex", tag))


def _activated(name: str, value: exp.Expr) -> exp.Expr:
    match name:
        case "relu":
            return sql.call("greatest", value, double(0.0))
        case "tanh":
            return sql.call("tanh", value)
    raise ModelError(
        f"DuckDB has no function that the activation {name} could be written with",
        hint="export it to onnx",
    )


def _check_size(block: SavedBlock) -> None:
    size = sum(parameter.size for parameter in block.parameters)
    if size > MAX_NUMBERS:
        raise ModelError(
            f"an expression of {size:,} numbers is too large for DuckDB", hint="export it to onnx"
        )


MAX_NUMBERS = 100_000
"""Maximum numbers in an expression, which is parsed and planned as a whole."""


# Inputs of a block in SQL: arguments, and features computed from them.


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
