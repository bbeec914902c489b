"""Collations of texts: which texts equal each other in a party's database.

Between parties texts are equal where their bytes are. So a key whose text has a collation is sent
as the text that the collation compares, such as `lower(name)` for NOCASE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp, parse_one

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import Catalog
from sqlfl.planner.grammar.writing import Dialect
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.relations import ClientBranch, DraftRelation, Term, operand, substituted
from sqlfl.planner.query.scalars import Asker

BYTES = ""
"""Name of the collation that compares bytes."""
_FUNCTIONS = {
    "nocase": ("lower",),
    "noaccent": ("strip_accents",),
    "nocase.noaccent": ("lower", "strip_accents"),
    "noaccent.nocase": ("strip_accents", "lower"),
}
"""Collations of DuckDB, and the functions that it applies to a text, in order."""
_OTHER = "other"
"""Name of any other collation."""


def _literal(name: str) -> exp.Expr:
    return parse_one(f"('' COLLATE {name})", dialect=Dialect)


_COLLATED = tuple(map(_literal, ("nocase", "noaccent")))
"""Two collations. A text with either fails to bind beside a text with another collation, so only a
text without collation binds with both.
"""
_DEFAULT = parse_one(
    "struct_extract({'bytewise': true, 'other': 0}, CASE WHEN 'B' < 'a' AND 'a' <> 'A' "
    "AND 'a' <> '\u00e1' AND '\u00e1' <> 'a\u0301' THEN 'bytewise' ELSE 'other' END)",
    dialect=Dialect,
)
"""A BOOLEAN where texts compare byte by byte; a number where `default_collation` is otherwise."""


def is_bytewise(catalog: Catalog, branch: ClientBranch, *texts: exp.Expr) -> bool:
    """Return whether no collation changes how the texts compare, as far as their party says. An
    owner with policies is not asked.
    """
    if catalog.governed(branch.client):
        return False
    tests = [_equal(text, collated) for text in texts for collated in _COLLATED]
    return _binds(catalog, branch, [*tests, _DEFAULT])


def collation(draft: Draft, relation: DraftRelation, terms: Sequence[Term]) -> str:
    """Return the name of the collation that the terms' texts have at any of the relation's
    databases; BYTES without one. An owner with policies is not asked, and has none.
    """
    names = {
        name
        for branch in relation.branches
        if not draft.catalog.governed(branch.client)
        for name in _names(
            draft.catalog, branch, [substituted(t, branch).expression for t in terms]
        )
    }
    return common(names)


def common(names: Iterable[str]) -> str:
    """Return the collation by which texts with these collations compare."""
    collated = {*names} - {BYTES}
    return _OTHER if len(collated) > 1 else next(iter(collated), BYTES)


def compared_text(text: exp.Expr, name: str) -> exp.Expr | None:
    """Return what the collation compares of a text; None for a collation that is not known."""
    if name not in (BYTES, *_FUNCTIONS):
        return None
    for function in _FUNCTIONS.get(name, ()):
        text = exp.Anonymous(this=function, expressions=[text.copy()])
    return text


def _names(catalog: Catalog, branch: ClientBranch, texts: Sequence[exp.Expr]) -> set[str]:
    if is_bytewise(catalog, branch, *texts):
        return {BYTES}
    return {_name(catalog, branch, text) for text in texts}


def _name(catalog: Catalog, branch: ClientBranch, text: exp.Expr) -> str:
    """Return a text's own collation: the only one that it binds with."""
    if _binds(catalog, branch, [_equal(text, collated) for collated in _COLLATED]):
        return BYTES
    spelled = ((name, (name, name.upper())) for name in _FUNCTIONS)  # DuckDB keeps the letters
    known = (
        name
        for name, spellings in spelled
        if any(_binds(catalog, branch, [_equal(text, _literal(s))]) for s in spellings)
    )
    return next(known, _OTHER)


def _equal(text: exp.Expr, other: exp.Expr) -> exp.Expr:
    return exp.EQ(this=operand(text.copy()), expression=other.copy())


def _binds(catalog: Catalog, branch: ClientBranch, tests: Sequence[exp.Expr]) -> bool:
    """Return whether the party binds the tests, and each is a BOOLEAN."""
    try:
        columns = Asker(catalog).columns(branch.client, branch.sources, tests, ())
    except (LostError, ReplyError):
        raise
    except PartyError:
        return False
    return all(column.type == "BOOLEAN" for column in columns)
