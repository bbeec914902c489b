"""Repairs of sqlglot's DuckDB dialect. Each has a sample that stock sqlglot still misreads, and our
dialect without the repair too.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest
from sqlglot import exp, parse_one
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from sqlfl.base.errors import ParseError
from sqlfl.federation.parser_cross_check import confirm, explicit
from sqlfl.planner.grammar import parsing, sql
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.udfs import sql as udfs


@dataclass(frozen=True)
class Gap:
    """A construct that sqlglot misreads, and the repair."""

    repair: str
    construct: str
    sample: str
    grouped: bool = False
    """sqlglot writes the text back, and its tree groups the operands otherwise."""
    reads: Callable[[exp.Expr], bool] | None = None
    """Test of the tree, where the text shows no difference."""
    setup: str = ""
    parameters: tuple[object, ...] = ()


def _names(*words: str, template: str = "SELECT {{{}: 1}} AS c") -> tuple[Gap, ...]:
    return tuple(
        Gap(f"Tokenizer.KEYWORDS[{word}]", f"{word} as a name", template.format(word.lower()))
        for word in words
    )


def _is_nested(tree: exp.Expr) -> bool:
    return len(tree.args["joins"]) == 1


_FLOATS = "[1, 2]::FLOAT[2]"
_JSON = """(SELECT '{"a": [1]}'::JSON AS j, 'a' AS k)"""
_PAIRS = "(VALUES (1, 2), (3, 4)) AS t(x, y)"

GAPS = (
    # -- names and joins
    Gap("Naming._parse_join", "the comma of FROM, which binds looser than JOIN",
        "SELECT 1 AS c FROM (SELECT 1) AS a, (SELECT 2) AS b JOIN (SELECT 3) AS d ON true",
        reads=_is_nested),
    Gap("Naming._parse_column_ops", "a column with the name of a constructor before [",
        'SELECT t.array[1] AS c FROM (SELECT [4] AS "array") AS t'),
    # -- operators
    Gap("Operators._parse_equality", "an operator after IS NULL",
        "SELECT NULL IS NULL || 'x' AS c"),
    Gap("Operators._parse_comparison", "a comparison with <=>",
        f"SELECT 0.5 = {_FLOATS} <=> {_FLOATS} AS c"),
    Gap("Operators._parse_range", "a cast after NOT IN", "SELECT 1 NOT IN (2)::BOOLEAN::INT AS c"),
    Gap("Operators._parse_in", "IN with an operator and no parentheses",
        "SELECT 1 IN [1] || [2] AS c"),
    Gap("Operators._parse_bitwise", "| after ||", "SELECT 'a' || 1 | 2 AS c", grouped=True),
    Gap("Operators._parse_term", "~ after +", "SELECT 5 + ~1 * 2 AS c", grouped=True),
    Gap("Operators._parse_factor", "~ after *", "SELECT 2 * ~1 + 5 AS c", grouped=True),
    Gap("Operators._parse_exponent", "~ after ^", "SELECT 2 ^ ~1 + 3 AS c"),
    Gap("Operators._parse_unary", "the + before a text, which DuckDB refuses", "SELECT +'1' AS c"),
    # -- functions
    Gap("Parser.FUNCTIONS", "JSON paths without $",
        """SELECT json_extract('{"a.b": 1}', 'a.b') AS c"""),
    Gap("Parser.FUNCTION_PARSERS", "json_object with an operator in its arguments",
        "SELECT json_object('a' || 'b', 1) AS c"),
    Gap("Parser.FUNCTION_PARSERS[POSITION]", "POSITION without IN",
        "SELECT position('b', 'abc') AS c"),
    Gap("Parser.FUNCTION_PARSERS[SUBSTRING]", "SUBSTRING with FOR before FROM",
        "SELECT substring('abcdef' FOR 2 FROM 3) AS c"),
    Gap("Parser.FUNCTION_PARSERS[TRIM]", "TRIM with a list after FROM",
        "SELECT trim(TRAILING FROM 'aba', 'a') AS c"),
    Gap("Parser.NO_PAREN_FUNCTION_PARSERS", "map as a column",
        """SELECT map['a'] AS c FROM (SELECT {'a': 1} AS "map")"""),
    Gap("Parser.ARRAY_CONSTRUCTORS", "a column with the name list",
        "SELECT t.list[1] AS c FROM (SELECT [4] AS list) AS t"),
    Gap("Parser._parse_lambda", "-> of JSON in an argument",
        f"SELECT len(j -> k) AS c FROM {_JSON}"),
    # -- other operands
    Gap("Parser.PLACEHOLDER_PARSERS", "a slice up to a column",
        "SELECT l[:n] AS c FROM (SELECT [1, 2, 3] AS l, 2 AS n)"),
    Gap("Parser._parse_type", "a cast of a literal with a type",
        "SELECT DATE '2024-01-01'::TIMESTAMP AS c"),
    Gap("Parser._parse_types", "types of other databases", "SELECT 1::NUMBER AS c"),
    Gap("Parser._parse_user_defined_type", "a quote in a type's name",
        """SELECT '1'::"a""b" AS c""",
        setup="""CREATE TYPE "a""b" AS ENUM ('1')"""),
    Gap("Parser._parse_interval", "interval as a column",
        'SELECT interval + 1 AS c FROM (SELECT 1 AS "interval")'),
    Gap("Parser._parse_primary", "a number without digits before its point", "SELECT .5 AS c"),
    Gap("Parser._parse_ordered", "DESCENDING",
        f"SELECT x AS c FROM {_PAIRS} ORDER BY x DESCENDING"),
    Gap("Parser._parse_comprehension", "an operator in the list of a comprehension",
        "SELECT [q FOR q IN [1, 2] || [3]] AS c"),
    # -- tokens
    Gap("Tokenizer.HEX_STRINGS", "blobs in hexadecimal digits", "SELECT x'AB' AS c"),
    Gap("Tokenizer.BIT_STRINGS", "bit strings", "SELECT b'0011' AS c"),
    Gap("Tokenizer.IDENTIFIERS", "names in backticks",
        'SELECT `x y` AS c FROM (SELECT 1 AS "x y")'),
    *_names("CURRENT_CATALOG", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER",
            "LOCALTIME", "LOCALTIMESTAMP", "REGEXP", "RLIKE", "SESSION_USER", "XOR"),
    *_names("APPLY", template="SELECT {}([1], lambda x: x) AS c"),
    *_names("DIV", template="SELECT 7 {} 2 AS c"),
    *_names("STRAIGHT_JOIN", template="WITH t AS (SELECT 1 AS c) SELECT c FROM t {}"),
    Gap("Tokenizer.KEYWORDS[?::]", "a cast of a parameter",
        "SELECT ?::INT AS c", parameters=("1",)),
    # -- writing
    Gap("Generator.TRANSFORMS[BitwiseNot]", "~ after ~", "SELECT ~ ~1 AS c"),
    Gap("Generator.TRANSFORMS[Pivot]", "tables before columns in a PIVOT",
        f"FROM (PIVOT (SELECT t.x, u.y FROM {_PAIRS} JOIN {_PAIRS.replace('t(', 'u(')} "
        "ON t.x = u.x) ON x IN (1) USING sum(y))"),
    Gap("Generator.MULTI_ARG_DISTINCT", "DISTINCT before two arguments",
        f"SELECT regr_count(DISTINCT x, y) AS c FROM {_PAIRS}"),
    Gap("Generator.extract_sql", "parts that EXTRACT does not have",
        "SELECT extract(nanosecond FROM DATE '2024-12-29') AS c"),
    Gap("Generator.in_sql", "IN with an operator and no parentheses",
        "SELECT 1 IN [1] || [2] AS c", grouped=True),
    Gap("Generator.ordered_sql", "NULLS LAST where the database's default differs",
        "SELECT x AS c FROM (VALUES (1), (NULL)) AS t(x) ORDER BY x DESC NULLS LAST",
        setup="SET default_null_order = 'nulls_first'"),
    Gap("Generator.tuple_sql", "a tuple of one value", "SELECT (1,) AS c"),
    Gap("Generator.withingroup_sql", "WITHIN GROUP of an aggregate that has none",
        f"SELECT quantile_disc(0.5) WITHIN GROUP (ORDER BY x) AS c FROM {_PAIRS}"),
    # -- the program's own texts
    Gap("PlainFunctions.Parser.FUNCTIONS", "JSON paths without $",
        """SELECT json_extract('{"a.b": 1}', 'a.b') AS c"""),
    Gap("PlainFunctions.Parser.FUNCTION_PARSERS", "json_object with an operator in its arguments",
        "SELECT json_object('a' || 'b', 1) AS c"),
)  # fmt: skip

OURS = [gap for gap in GAPS if not gap.repair.startswith("PlainFunctions.")]
"""Gaps of the queries of users; the others are of the program's own texts."""

_TEXT = "keeps the original text, which the cross-check compares with DuckDB's reading"
_SHIFT = "adds no parentheses: names of columns come from the text"
_NULLS = "takes calls of any name; sqlglot knows window functions by their nodes"
_NODE = "writes a node of ours"
OTHER = {
    "Naming._replace_lambda": "keeps parameters of lambdas as columns until names are resolved",
    "Parser._parse_function_call": "knows the call, for _parse_lambda; reads ANY and ALL of a list",
    "Parser.FUNCTION_PARSERS[EXTRACT]": _TEXT,
    "Parser.FUNCTION_PARSERS[OVERLAY]": "keeps the name of a function, which the rules look up",
    "Parser.PRIMARY_PARSERS[NUMBER]": f"{_TEXT}, and refuses numbers in other digits",
    "Parser.PRIMARY_PARSERS[BIT_STRING]": _TEXT,
    "Parser.PRIMARY_PARSERS[BYTE_STRING]": _TEXT,
    "Parser.PRIMARY_PARSERS[HEX_STRING]": _TEXT,
    "Parser.PRIMARY_PARSERS[HEREDOC_STRING]": _TEXT,
    "Parser.PLACEHOLDER_PARSERS[PARAMETER]": "refuses @x with our error, and DuckDB refuses it too",
    "Parser._warn_unsupported": "logs nothing, because an error follows",
    "Parser._values_to_select": _TEXT,
    "Tokenizer.COMMANDS": "has EXPLAIN and the like as words, which begin statements of ours",
    "Generator.TRANSFORMS[BitwiseLeftShift]": _SHIFT,
    "Generator.TRANSFORMS[BitwiseRightShift]": _SHIFT,
    "Generator.TRANSFORMS[IgnoreNulls]": _NULLS,
    "Generator.TRANSFORMS[RespectNulls]": _NULLS,
    "Generator.TRANSFORMS[Neg]": "keeps - apart from a prefix operator of ours",
    "Generator.TRANSFORMS[Infix]": _NODE,
    "Generator.TRANSFORMS[Prefix]": _NODE,
    "Generator.TRANSFORMS[Verbatim]": _NODE,
    "Generator.unsupported": "raises, where sqlglot writes another text and a warning",
    "Generator.join_sql": _TEXT,
    "Dialect.INDEX_OFFSET": "keeps indexes as written, for the rules that compare trees",
}
"""Overrides that repair no reading, and what each does."""

REPAIRED = (
    parsing.Naming, sql.Operators, sql.Parser, sql.Tokenizer, sql.Generator, sql.Dialect,
    udfs.PlainFunctions.Parser,
)  # fmt: skip


# -- answers of DuckDB -----------------------------------------------------------------------------


def answer(gap: Gap, text: str | None) -> object:
    """Return names, types and rows of the query; None if DuckDB refuses it."""
    if text is None:
        return None
    with duckdb.connect() as con:
        con.execute(gap.setup)
        try:
            result = con.execute(text, list(gap.parameters))
            columns = [(name, str(type_)) for name, type_, *_ in result.description or ()]
            return columns, result.fetchall()
        except duckdb.Error:
            return None


def is_right(gap: Gap, tree: exp.Expr | None, write: Callable[[exp.Expr], str]) -> bool:
    """Return whether a reading of the sample is DuckDB's. A tree that is None is a refusal."""
    if gap.reads is not None:
        return tree is not None and gap.reads(tree)
    texts: list[str | None] = [None]
    if tree is not None:
        texts = [write(tree), *([write(explicit(tree))] if gap.grouped else [])]
    expected = answer(gap, gap.sample)
    return all(answer(gap, text) == expected for text in texts)


def read_by_sqlglot(text: str) -> exp.Expr | None:
    try:
        return parse_one(text, dialect=DuckDB)
    except SqlglotError:
        return None


def read_by_us(text: str) -> exp.Expr | None:
    try:
        statement = parse(f"EVALUATE MODEL m FROM ({text})")
        confirm(statement)
    except ParseError:
        return None
    assert isinstance(statement, EvaluateModel)
    return statement.query


def _id(gap: Gap) -> str:
    return gap.repair


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", GAPS, ids=_id)
def test_sqlglot_still_needs_the_repair(gap: Gap) -> None:
    right = is_right(gap, read_by_sqlglot(gap.sample), lambda tree: tree.sql(dialect=DuckDB))
    assert not right, f"sqlglot reads {gap.construct} now: the repair {gap.repair} may be deleted"


@pytest.mark.parametrize("gap", GAPS, ids=_id)
def test_the_repair_reads_the_sample_as_duckdb_does(gap: Gap) -> None:
    if gap in OURS:
        assert is_right(gap, read_by_us(gap.sample), sql.to_sql)
    else:
        assert is_right(gap, udfs.parsed(gap.sample), udfs.to_sql)


@pytest.mark.parametrize("gap", OURS, ids=_id)
def test_our_dialect_misreads_the_sample_without_the_repair(gap: Gap) -> None:
    dialect = _without(gap.repair)()
    tree: exp.Expr | None = None
    with suppress(SqlglotError, ValueError):
        (tree,) = dialect.parse(gap.sample)
    if tree is not None:
        parsing.group_joins(tree)
    assert not is_right(gap, tree, dialect.generate)


def _without(repair: str) -> type[sql.Dialect]:
    """Return our dialect with sqlglot's method, constant or entry of a table for one of ours."""
    kind, member, key = re.fullmatch(r"(\w+)\.(\w+)(?:\[(.+)\])?", repair).groups()  # type: ignore[union-attr]
    owner = next(owner for owner in REPAIRED if owner.__name__ == kind)
    value = next(vars(base)[member] for base in owner.__mro__[1:] if member in vars(base))
    if key is not None:
        ours = getattr(owner, member)
        changed = next(entry for entry in ours.keys() | value.keys() if _label(entry) == key)
        rest = {entry: ours[entry] for entry in ours if entry != changed}
        value = rest | ({changed: value[changed]} if changed in value else {})
    part = "Parser" if issubclass(owner, DuckDBParser) else kind
    base = getattr(sql, part)
    return type("Without", (sql.Dialect,), {part: type(base)(part, (base,), {member: value})})


def _label(entry: Any) -> str:
    """Return the name of a table's entry: a word, a kind of token or of node."""
    return str(getattr(entry, "__name__", None) or getattr(entry, "name", entry))


def test_every_override_is_a_repair_or_has_a_reason() -> None:
    overrides = {name for kind in REPAIRED for name in _overrides(kind)}
    repairs = [gap.repair for gap in GAPS]
    assert len(repairs) == len(set(repairs))
    assert not OTHER.keys() & {*repairs}
    assert overrides - OTHER.keys() - {*repairs} == set(), "give each a sample, or a reason"
    assert {*repairs, *OTHER} - overrides == set(), "these are no overrides"


def _overrides(kind: type) -> Iterator[str]:
    """Yield the members of the class that sqlglot has too. Of a table yield the entries that differ
    from sqlglot's, and the table itself if it lacks some; of KEYWORDS also the words it lacks.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    stock = next(base for base in kind.__mro__ if base.__module__.startswith("sqlglot."))
    for name in _members(definition):
        value = getattr(kind, name)
        if not hasattr(stock, name) or inspect.isclass(value):
            continue
        if isinstance(value, dict) and value:
            theirs: dict[Any, Any] = getattr(stock, name)
            changed = [key for key in value if value[key] is not theirs.get(key)]
            lacked = theirs.keys() - value.keys()
            if name == "KEYWORDS":
                changed += lacked
            elif lacked:
                yield f"{kind.__qualname__}.{name}"
            for key in changed:
                yield f"{kind.__qualname__}.{name}[{_label(key)}]"
        else:
            yield f"{kind.__qualname__}.{name}"


def _members(definition: ast.ClassDef) -> Iterator[str]:
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
