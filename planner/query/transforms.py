"""TRANSFORM: the rules that make features of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise

from sqlglot import exp, parse_one

from sqlfl.base.errors import PlanError, nearest
from sqlfl.contract.fragment_columns import UNIT
from sqlfl.contract.schema import FittedStep, Made
from sqlfl.contract.transforms import (
    ANY,
    AUTO,
    COLUMN,
    FUNCTIONS,
    NO_PARTNER,
    NUMBER,
    PARTNER,
    TIMES,
    WITH_PARTNER,
    Transform,
    number,
)
from sqlfl.planner.grammar.sql import Dialect, to_sql
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.items import PlacedItem
from sqlfl.planner.query.relations import PRESENT, DraftBlock, Output, Term, substitute
from sqlfl.planner.query.typing import one_type_of
from sqlfl.planner.query.ucq import ARRAY, BOOLEAN, CATEGORY, NUMERIC

_PART = "sqlfl_part_"
"""Prefix of temporary outputs, until the parts of an item have types."""


def name_transforms(draft: Draft) -> Draft:
    """Order outputs: those of TRANSFORM first, then unmentioned ones.

    An item of one column is still that column. An item of several columns is a row of them,
    followed at the end by its parts; `apply_transforms` makes the feature of them.
    """
    if not draft.transforms:
        return draft
    draft = _with_auto(draft)
    names = {output.name.lower(): place for place, output in enumerate(draft.blocks[0].outputs)}
    places = [_places(draft, item, names) for item in draft.transforms]
    mentioned = {place for own in places for place in own}
    rest = [place for place in range(len(names)) if place not in mentioned]
    _check_names(draft, [draft.blocks[0].outputs[place] for place in rest])
    _check_parties(draft, places)
    return draft.each_block(lambda block: _named(draft, block, places, rest))


def _with_auto(draft: Draft) -> Draft:
    """Replace `auto` alone by an item for each feature that no other item mentions.

    Columns of databases that their party combines stay unchanged, unless a model was trained on
    curves.
    """
    first = draft.blocks[0].outputs
    mentioned = {c.lower() for item in draft.transforms for c in item.transform.columns}
    special = (draft.target, draft.weight, draft.offset)
    mentioned |= {name.lower() for name in special if name is not None}
    mentioned |= {UNIT}
    rest = [output.name for output in first if output.name.lower() not in mentioned]
    found: list[PlacedItem] = []
    for item in draft.transforms:
        names = item.transform.columns or tuple(rest)
        if item.transform.function != AUTO or item.transform.value == PARTNER:
            found.append(item)
            continue
        for name in names:
            made = replace(item.transform, columns=(name,), name=name)
            if item.transform.columns:
                made = item.transform
            if item.span is not None and _is_combined(draft, name):
                made = replace(made, function=COLUMN, count=0)
            found.append(replace(item, transform=made))
    return replace(draft, transforms=tuple(found))


def _is_combined(draft: Draft, column: str) -> bool:
    """Return whether some block has the column from databases that their party combines.

    A constant is of no table, and may become a column of any.
    """
    place = [output.name.lower() for output in draft.blocks[0].outputs]
    if column.lower() not in place:
        return False
    position = place.index(column.lower())
    return any(
        branch.client.combined
        for block in draft.blocks
        for relation in block.reads(block.outputs[position].term) or range(len(block.relations))
        for branch in block.relations[relation].branches
    )


def _places(draft: Draft, item: PlacedItem, names: Mapping[str, int]) -> list[int]:
    special = {"TARGET": draft.target, "WEIGHT": draft.weight, draft.offset_clause: draft.offset}
    for column in item.transform.columns:
        clause = next((c for c, n in special.items() if n and n.lower() == column.lower()), None)
        if clause is not None:
            raise draft.error(
                f"TRANSFORM takes features, and {column} is the {clause.lower()}", item.span,
                f"compute it in the query: SELECT expression AS {column}",
            )  # fmt: skip
        if column.lower() not in names:
            near = nearest(column, [output.name for output in draft.blocks[0].outputs])
            hint = f"did you mean {near}?" if near else "it names output columns of the query"
            if item.transform.call.lower() == "none":
                hint = "leave TRANSFORM out: numbers are straight lines without it"
            raise draft.error(
                f"TRANSFORM {item.transform.call}: the query has no column {column}", item.span,
                hint,
            )  # fmt: skip
    return [names[column.lower()] for column in item.transform.columns]


def _check_names(draft: Draft, rest: Sequence[Output]) -> None:
    seen: dict[str, str] = {output.name.lower(): output.name for output in rest}
    for item in draft.transforms:
        for other in item.transform.beside if item.transform.function == AUTO else ():
            if other.name.lower() in seen:
                raise draft.error(
                    f"column {other.name} has the name of a curve that auto makes", item.span,
                    "give it another name in the query",
                )  # fmt: skip
    for item in draft.transforms:
        name = item.transform.name
        if name.lower() in seen:
            raise draft.error(
                f"two columns are named {name}: {item.transform.call} is one", item.span,
                f"give it a name of its own: {item.transform.call} AS name",
            )  # fmt: skip
        if name.lower().startswith("sqlfl_"):
            raise draft.error(
                f"column {name}: names that start with sqlfl_ are reserved", item.span,
                "give it another name behind AS",
            )  # fmt: skip
        seen[name.lower()] = name
        if item.transform.function == AUTO:
            seen |= {other.name.lower(): other.name for other in item.transform.beside}
    _check_pairs(draft, seen)


def _check_pairs(draft: Draft, names: Mapping[str, str]) -> None:
    """Raise PlanError where a column has the name of a pair that auto may add."""
    auto = [item for item in draft.transforms if item.transform.function == AUTO]
    paired = {item.transform.name.lower(): item for item in auto if item.transform.count}
    for folded, name in names.items():
        parts = folded.split(TIMES)
        halves = [(TIMES.join(parts[:k]), TIMES.join(parts[k:])) for k in range(1, len(parts))]
        for one, two in halves:
            if one in paired and two in paired:
                raise draft.error(
                    f"column {name} has the name of a pair of features that auto may add",
                    paired[one].span,
                    "give it another name in the query",
                )


def _check_parties(draft: Draft, places: Sequence[Sequence[int]]) -> None:
    for item, own in zip(draft.transforms, places, strict=True):
        for block in draft.blocks:
            outputs = [block.outputs[place] for place in own]
            holders = {o.name: _parties(block, o) for o in outputs}
            if len({party for parties in holders.values() for party in parties}) > 1:
                raise _of_several_parties(draft, item, holders)


def _parties(block: DraftBlock, output: Output) -> tuple[str, ...]:
    relations = (block.relations[place] for place in block.reads(output.term))
    return tuple(dict.fromkeys(party for relation in relations for party in relation.parties))


def _of_several_parties(
    draft: Draft, item: PlacedItem, holders: Mapping[str, tuple[str, ...]]
) -> PlanError:
    told = ", ".join(f"{name} is of {' and '.join(p)}" for name, p in holders.items() if p)
    return draft.error(
        f"{item.transform.call} needs columns of one party: {told}; values of rows do not leave "
        "their party, so that none can combine them",
        item.span,
        "give one party both columns in a table of its own, or learn what columns of several "
        "parties do together: USING mlp_regressor or mlp_classifier",
    )


def _named(
    draft: Draft, block: DraftBlock, places: Sequence[Sequence[int]], rest: Sequence[int]
) -> DraftBlock:
    found: list[Output] = []
    parts: list[Output] = []
    for number_, (item, own) in enumerate(zip(draft.transforms, places, strict=True)):
        terms = [block.outputs[place].term for place in own]
        term = Term(terms[0].expression.copy(), item.span or terms[0].span)
        if len(terms) > 1:
            row = exp.Anonymous(this="row", expressions=[t.expression.copy() for t in terms])
            term = replace(term, expression=row)
            parts += [
                Output(f"{_PART}{number_}_{k}", replace(t, expression=t.expression.copy()))
                for k, t in enumerate(terms)
            ]
        found.append(Output(item.transform.name, term, transform=item.transform))
    found += [block.outputs[place] for place in rest]
    return replace(block, outputs=(*found, *parts))


def apply_transforms(draft: Draft) -> Draft:
    """Apply TRANSFORM to columns whose types are known."""
    if not draft.transforms:
        return draft
    columns = [
        outputs if _is_row(outputs[0]) else one_type_of(draft, outputs)
        for outputs in zip(*(block.outputs for block in draft.blocks), strict=True)
    ]
    partners = _partners(draft, columns)
    blocks = []
    for place, block in enumerate(draft.blocks):
        own = [column[place] for column in columns]
        parts = [output for output in own if output.name.startswith(_PART)]
        kept = [output for output in own if not output.name.startswith(_PART)]
        made = [_applied(draft, output, parts) for output in kept]
        added = [_of_columns(item, [own[n] for n in places]) for item, places in partners]
        made.insert(len(draft.transforms), added)
        blocks.append(replace(block, outputs=tuple(o for own in made for o in own)))
    items = tuple(PlacedItem(item) for item, _ in partners)
    return replace(draft, blocks=tuple(blocks), transforms=(*draft.transforms, *items))


def _partners(
    draft: Draft, columns: Sequence[Sequence[Output]]
) -> list[tuple[Transform, tuple[int, ...]]]:
    """Return an item for each table on the right of a LEFT JOIN, and the places of its columns.

    Where two columns or more have curves, NULL in all of them has a weight of its own: as each has
    one for its NULLs, these would have to add up to what a missing partner means.
    """
    if any(item.transform.value == PARTNER for item in draft.transforms):
        return []  # a model's
    tables: dict[tuple[int, ...], list[int]] = {}
    for place, outputs in enumerate(columns[: len(draft.transforms)]):
        transform = outputs[0].transform
        if transform is None or transform.function != AUTO or not all(map(_is_bare, outputs)):
            continue
        relations = tuple(output.relation for output in outputs)
        blocks = zip(draft.blocks, relations, strict=True)
        if any(relation in block.optional for block, relation in blocks):
            tables.setdefault(relations, []).append(place)
    taken = {outputs[0].name.lower() for outputs in columns}
    items = []
    for relations, places in tables.items():
        name = f"{draft.blocks[0].relations[relations[0]].name} ({PARTNER})"
        if len(places) > 1 and name.lower() not in taken:
            taken.add(name.lower())
            made = [columns[place][0].transform for place in places]
            named = tuple(item.columns[0] for item in made if item is not None)
            items.append((Transform(AUTO, named, name, value=PARTNER), tuple(places)))
    return items


def _is_bare(output: Output) -> bool:
    """Return whether the output is NULL where its table has no row."""
    expression = output.term.expression.unnest()
    while isinstance(expression, exp.Cast):
        expression = expression.this.unnest()
    if isinstance(expression, exp.Case):
        branches = expression.args["ifs"]
        test = branches[0].this
        alone = len(branches) == 1 and expression.args.get("default") is None
        return alone and isinstance(test, exp.Column) and test.name == PRESENT
    return isinstance(expression, exp.Column)


def _of_columns(item: Transform, given: Sequence[Output]) -> Output:
    """Return the feature that an item makes of several columns."""
    found = made_of(item, [(own.term.expression, own.type) for own in given])
    term = replace(given[0].term, expression=found.expression)
    return replace(
        given[0], name=item.name, term=term, type=found.type, transform=item, made=found.made
    )


def _is_row(output: Output) -> bool:
    return output.transform is not None and len(output.transform.columns) > 1


def _applied(draft: Draft, output: Output, parts: list[Output]) -> list[Output]:
    """Return an item's features: one, or three for `auto` of a number."""
    transform = output.transform
    if transform is None:
        return [output]
    given = [output]
    if _is_row(output):
        given = [parts.pop(0) for _ in transform.columns]
    for column, own in zip(transform.columns, given, strict=True):
        _check_input(draft, transform, column, own.type, output.term.span)
    curved = transform.function == AUTO and types.kind(output.type) == NUMERIC
    features = []
    for item in (transform, *(transform.beside if curved else ())):
        found = made_of(item, [(own.term.expression, own.type) for own in given])
        term = replace(output.term, expression=found.expression)
        features.append(
            replace(
                output,
                name=item.name,
                term=term,
                type=found.type,
                transform=item,
                made=found.made,
            )
        )
    return features


def _check_input(
    draft: Draft, transform: Transform, column: str, type_: str, span: Span | None
) -> None:
    function = FUNCTIONS[transform.function]
    if type_ == types.NULL_TYPE:
        return  # the feature is refused anyway
    kind = types.kind(type_)
    wanted = "a number" if function.of == NUMBER else "a number, a boolean or a text"
    allowed = [NUMERIC, BOOLEAN] + [CATEGORY] * (function.of != NUMBER) + [ARRAY] * function.array
    if transform.function == "impute" and transform.value not in ("most_frequent",):
        wanted, allowed = "a number for this", [NUMERIC, BOOLEAN]
    if transform.function == COLUMN or kind in allowed:
        return
    hint = types.feature_hint(type_) if kind is None else None
    if kind == ARRAY:
        hint = "take its elements in the query: column[1]"
    elif kind == CATEGORY and function.of in (NUMBER, ANY):
        hint = f"cast it to a number in the query: {column}::DOUBLE AS {column}"
        if transform.function == "impute":
            hint = "impute(column, 'most_frequent'), or coalesce(column, 'text') in the query"
    raise draft.error(f"{transform.function} takes {wanted}, and {column} is {type_}", span, hint)


@dataclass(frozen=True)
class Transformed:
    expression: exp.Expr
    type: str
    """The DuckDB type of the expression."""
    made: Made | None
    """None if a feature is the column itself."""


def made_of(transform: Transform, given: Sequence[tuple[exp.Expr, str]]) -> Transformed:
    """Return the transform of these expressions, one for each column, with these types."""
    kinds = [types.kind(type_) for _, type_ in given]
    text = _text_of(transform, kinds[0] or "")
    if transform.value == PARTNER:
        text = _partner_text(kinds)
    type_ = _type_of(transform, given[0][1], kinds[0] or "")
    expression = _filled(text, [e for e, _ in given])
    columns = [exp.column(exp.to_identifier(name, quoted=True)) for name in transform.columns]
    step = _step_of(transform, kinds[0] or "")
    if _is_plain(transform) and transform.columns[0].lower() == transform.name.lower():
        return Transformed(expression, type_, None)
    of_texts = transform.function in ("one_hot", "hash_bucket", "cross")
    inputs = tuple(
        (name, _argument_type(type_ if of_texts else "", kind_, type_))
        for name, (_, type_), kind_ in zip(transform.columns, given, kinds, strict=True)
    )
    return Transformed(expression, type_, Made(inputs, to_sql(_filled(text, columns)), step))


def _is_plain(transform: Transform) -> bool:
    """Return whether the feature is the column as it is."""
    return transform.function in (COLUMN, "standardize") or (
        transform.function == AUTO and transform.value is None
    )


def _argument_type(trained: str, kind: str | None, type_: str) -> str:
    """Return the type for a value given by hand: the training type if its text counts."""
    if kind == CATEGORY:
        return "VARCHAR"
    if kind == ARRAY:
        return f"DOUBLE[{types.array_width(type_)}]"
    return trained or "DOUBLE"


def _step_of(transform: Transform, kind: str) -> FittedStep | None:
    if not transform.fitted:
        return None
    of = CATEGORY if transform.function == "one_hot" or kind == CATEGORY else NUMERIC
    value = transform.value if isinstance(transform.value, str) else ""
    return FittedStep(transform.function, of, transform.count, transform.degree, value)


def _type_of(transform: Transform, given: str, kind: str) -> str:
    if transform.function in ("one_hot", "hash_bucket", "cross", "bucketize"):
        return "VARCHAR"
    if transform.value == PARTNER:
        return "VARCHAR"
    if transform.function == "polynomial":
        return f"DOUBLE[{len(_powers(transform))}]"
    if _is_plain(transform) or kind == CATEGORY:
        return given
    return "DOUBLE"


# -- texts ----------------------------------------------------------------------------------------


def _text_of(transform: Transform, kind: str) -> str:
    """SQL over columns x0, x1, ...; numbers are DOUBLE, and NaN is NULL."""
    match transform.function:
        case "log1p":
            return _LOG1P
        case "bucketize":
            return _buckets(transform.bounds)
        case "hash_bucket":
            text = f"md5_number_lower(CAST(x0 AS VARCHAR)) % {transform.count}"
            return f"CAST({text} AS VARCHAR)"
        case "polynomial":
            return _polynomial(transform)
        case "cross":
            places = range(len(transform.columns))
            parts = (f"replace(CAST(x{k} AS VARCHAR), '×', '××')" for k in places)
            return " || ' × ' || ".join(parts)
        case "one_hot":
            return "CAST(x0 AS VARCHAR)"
        case "impute" if not isinstance(transform.value, str):
            return f"coalesce({_NUMBER}, {_double(float(transform.value or 0))})"
    return "x0" if _is_plain(transform) or kind == CATEGORY else _NUMBER


_NUMBER = "nullif(CAST(x0 AS DOUBLE), CAST('nan' AS DOUBLE))"
_LOG1P = """CASE
  WHEN CAST(x0 AS DOUBLE) <= -1 THEN CAST('-inf' AS DOUBLE)
  WHEN 1 + CAST(x0 AS DOUBLE) = 1 THEN CAST(x0 AS DOUBLE)
  WHEN abs(CAST(x0 AS DOUBLE)) < 1
  THEN ln(1 + CAST(x0 AS DOUBLE)) * (CAST(x0 AS DOUBLE) / (1 + CAST(x0 AS DOUBLE) - 1))
  ELSE ln(1 + CAST(x0 AS DOUBLE))
END"""
"""log1p with the digits that ln(1 + x) loses for small numbers (Kahan). Below -1 there is no
logarithm: infinite values of joined rows are refused.
"""


def _partner_text(kinds: Sequence[str | None]) -> str:
    """SQL that tells rows of columns x0, x1, ... of which none has a value."""
    values = (
        _NUMBER.replace("x0", f"x{k}") if kind in (NUMERIC, BOOLEAN) else f"x{k}"
        for k, kind in enumerate(kinds)
    )
    gone = " AND ".join(f"{value} IS NULL" for value in values)
    return f"CASE WHEN {gone} THEN '{NO_PARTNER}' ELSE '{WITH_PARTNER}' END"


def _double(value: float) -> str:
    return f"CAST({number(value)} AS DOUBLE)"


def _buckets(bounds: Sequence[float]) -> str:
    """[b1, b2) and so on, as numpy.digitize has them."""
    labels = [f"[{number(low)}, {number(high)})" for low, high in pairwise(bounds)]
    names = [f"< {number(bounds[0])}", *labels, f">= {number(bounds[-1])}"]
    below = zip(bounds, names, strict=False)
    tests = (f"WHEN CAST(x0 AS DOUBLE) < {_double(bound)} THEN '{name}'" for bound, name in below)
    return f"CASE WHEN {_NUMBER} IS NULL THEN NULL {' '.join(tests)} ELSE '{names[-1]}' END"


def _powers(transform: Transform) -> list[tuple[int, ...]]:
    """Return the columns multiplied for each column, in scikit-learn's order."""
    places = range(len(transform.columns))
    degrees = range(1, transform.degree + 1)
    return [c for d in degrees for c in combinations_with_replacement(places, d)]


def _polynomial(transform: Transform) -> str:
    numbers = [_NUMBER.replace("x0", f"x{k}") for k in range(len(transform.columns))]
    missing = " OR ".join(f"{value} IS NULL" for value in numbers)
    terms = (" * ".join(f"CAST(x{k} AS DOUBLE)" for k in powers) for powers in _powers(transform))
    return f"CASE WHEN {missing} THEN NULL ELSE array_value({', '.join(terms)}) END"


def _filled(text: str, expressions: Sequence[exp.Expr]) -> exp.Expr:
    """The text with these for its columns."""
    places = {("", f"x{k}"): expression for k, expression in enumerate(expressions)}
    return substitute(_parsed(text), places)


@lru_cache(maxsize=256)
def _parsed(text: str) -> exp.Expr:
    return parse_one(text, dialect=Dialect)
