"""DuckDB queries as sqlglot trees, written as text or put together, and the few ways to run them.

A query that has a shape is text, parsed once, in which `$name` holds the place of a table, a query,
an expression, or of several in a list; what is given no place is a parameter of the statement:

>>> found = query(
...     "SELECT $columns, n + $more AS n FROM $rows AS t", columns=[column("a")], rows=temp("made")
... )
>>> to_sql(found)
'SELECT "a", "n" + $more AS "n" FROM "temp"."main"."made" AS "t"'
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, lru_cache
from typing import Any, ClassVar, TypeAlias, TypeGuard, TypeVar

import duckdb
import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser

from sqlfl.base.errors import Error, InternalError, ModelError

Connection: TypeAlias = duckdb.DuckDBPyConnection
Parameters: TypeAlias = Mapping[str, object]
Found = TypeVar("Found")
Tree = TypeVar("Tree", bound=exp.Expr)
Place: TypeAlias = exp.Expr | Sequence[exp.Expr]

Observer: TypeAlias = Callable[[str, float, "int | None"], None]
"""A callback for each query that has run: its text, without parameter values; seconds; and the rows
of its result, None if not counted.
"""
_here = threading.local()

PATIENCE = 30.0
"""Seconds to wait for a connection that another thread is using."""


def waiting(work: Callable[[], Found]) -> Found:
    """Return the result of `work`, run as soon as no other thread uses its connection.

    DuckDB does not wait: it refuses even to make a cursor then. Raises Error if the connection is
    still busy after `PATIENCE`.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except duckdb.ResourceInUseException as error:
            if time.monotonic() > until:
                raise Error(
                    f"its connection has been busy for {PATIENCE:g} seconds",
                    hint="attach a connection that no other thread works on, such as con.cursor()",
                ) from error
            time.sleep(0.002)


def cursor(con: Connection) -> Connection:
    """Return a cursor of `con` on which names of functions and operators mean DuckDB's own. A macro
    of the database may have such a name, even `"+"`.
    """
    made = waiting(con.cursor)
    try:
        ((catalog,),) = made.execute(again(made, _DEFAULT)).fetchall()
        search(made, [(catalog, "main")])
    except BaseException:
        made.close()
        raise
    return made


def system_cursor(con: Connection) -> Connection:
    """Return a cursor on which all names but those written in full are DuckDB's own."""
    made = waiting(con.cursor)
    try:
        search(made, [])
    except BaseException:
        made.close()
        raise
    return made


@contextmanager
def on_demand(con: Connection) -> Iterator[Callable[[], Connection]]:
    """Yield a function that returns a `cursor`: one, made at its first call, closed with the
    block.
    """
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(closing(cursor(con))))


def search(con: Connection, places: Sequence[tuple[str, str]]) -> None:
    """Look up names among DuckDB's own, then in these places, each a database and a schema. Raise
    duckdb.CatalogException for a missing place.
    """
    con.execute(again(con, _search_path(tuple(places))))


@lru_cache(maxsize=256)
def _search_path(places: tuple[tuple[str, str], ...]) -> str:
    written = [to_sql(exp.table_(schema, db=catalog, quoted=True)) for catalog, schema in places]
    return f"SET search_path = {to_sql(string(','.join([OWN_PLACE, *written])))}"


OWN_PLACE = "system.main"
"""The place of DuckDB's own functions and operators."""
_DEFAULT = f"SELECT {OWN_PLACE}.current_database()"


@contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """Send the queries that the functions below run in this thread, in the block, to `observer`;
    None for no observer.
    """
    previous = getattr(_here, "observer", None)
    _here.observer = observer
    try:
        yield
    finally:
        _here.observer = previous


class PlainFunctions(DuckDB):
    """DuckDB's grammar with functions as written. sqlglot would change the path of
    json_extract(j, 'a.b'), and reads no json_object(a || b, c).
    """

    class Parser(DuckDBParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: DuckDBParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")
        }


def query(text: str, /, **places: Place) -> exp.Select:
    """The SELECT that `text` is, with these in the places that it names."""
    tree = _filled(text, places)
    if not isinstance(tree, exp.Select):
        raise InternalError(f"no SELECT: {text}")
    return tree


def expression(text: str, /, **places: Place) -> exp.Expr:
    """Parse an expression with places, as `query` does."""
    return _filled(text, places)


def parsed(text: str) -> exp.Expr:
    """Return the tree of an expression given as text, with its names unchanged; the
    caller owns it.
    """
    return parse_one(text, dialect=PlainFunctions)


@lru_cache(maxsize=512)
def _parsed(text: str) -> exp.Expr:
    tree = parse_one(text, dialect=PlainFunctions)
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", True)
    return tree


def _filled(text: str, places: Mapping[str, Place]) -> exp.Expr:
    filling = _Filling(places)
    tree = filling.copied(_parsed(text))
    if filling.filled != places.keys():
        raise InternalError(f"not all of {', '.join(places)} have a place: {text}")
    return tree


class _Filling:
    """Copy of a tree with its places filled. A value is copied only if it is part of another tree
    or used before, because copies of wide lists take long.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._taken: set[int] = set()
        self.filled: set[str] = set()

    def copied(self, tree: exp.Expr) -> exp.Expr:
        if isinstance(tree, exp.Table) and self._is_place(tree.this):
            (source,) = self._values(tree.this)
            return _source(source, tree.alias)
        parts: dict[str, object] = {}
        for key, part in tree.args.items():
            if isinstance(part, list):
                parts[key] = [item for one in part for item in self._items(one)]
            elif self._is_place(part):
                (value,) = self._values(part)
                parts[key] = _group(value) if isinstance(tree, exp.Binary) else value
            else:
                parts[key] = self.copied(part) if isinstance(part, exp.Expr) else part
        return tree.__class__(**parts)

    def _items(self, item: object) -> list[object]:
        """Return the values for one item of a list, which may be a term of ORDER BY."""
        if self._is_place(item):
            return list(self._values(item))
        term = item.this if isinstance(item, exp.Ordered) else None
        if self._is_place(term) and not isinstance(self._places[term.name], exp.Expr):
            return [exp.Ordered(this=value, desc=False) for value in self._values(term)]
        return [self.copied(item) if isinstance(item, exp.Expr) else item]

    def _is_place(self, part: object) -> TypeGuard[exp.Placeholder]:
        return isinstance(part, exp.Placeholder) and part.name in self._places

    def _values(self, hole: exp.Placeholder) -> list[exp.Expr]:
        place = self._places[hole.name]
        self.filled.add(hole.name)
        values = [place] if isinstance(place, exp.Expr) else place
        return [self._free(value) for value in values]

    def _free(self, value: exp.Expr) -> exp.Expr:
        if value.parent is not None or id(value) in self._taken:
            return copied(value)
        self._taken.add(id(value))
        return value


def copied(tree: Tree) -> Tree:
    """Return a copy like `tree.copy()`, in a third of the time, without comments and places in a
    text.
    """
    copy = _Filling({}).copied(tree)
    assert isinstance(copy, type(tree))
    return copy


def _source(place: exp.Expr, alias: str) -> exp.Expr:
    named_ = exp.TableAlias(this=_name(alias)) if alias else None
    if isinstance(place, exp.Query):
        return exp.Subquery(this=place, alias=named_)
    if named_ is not None:
        place = place.copy()  # it may stand elsewhere, without
        place.set("alias", named_)
    return place


def columns_of(names: Iterable[str], table: str | None = None) -> list[exp.Expr]:
    return [column(name, table) for name in names]


def column(name: str, table: str | None = None) -> exp.Column:
    if table is None:
        return exp.Column(this=_name(name))
    return exp.Column(this=_name(name), table=_name(table))


def temp(name: str, alias: str | None = None) -> exp.Table:
    """A temporary table of the cursor, named in full so that no search path can hide it."""
    table = exp.Table(this=_name(name), db=_name("main"), catalog=_name("temp"))
    if alias is not None:
        table.set("alias", exp.TableAlias(this=_name(alias)))
    return table


def _name(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


def call(function: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A function under its DuckDB name; sqlglot is not to rewrite it."""
    return exp.Anonymous(this=function, expressions=list(arguments))


def own_call(function: str, *arguments: exp.Expr) -> exp.Dot:
    """Return a call of DuckDB's own function, also on an owner's connection, where macros may hide
    it.
    """
    place = exp.Dot(this=exp.to_identifier("system"), expression=exp.to_identifier("main"))
    return exp.Dot(this=place, expression=call(function, *arguments))


def select(source: exp.Expr, expressions: Iterable[exp.Expr]) -> exp.Select:
    """Return SELECT `expressions` FROM `source`, for wide lists: sqlglot's builders copy their
    arguments.
    """
    return exp.Select(expressions=list(expressions)).from_(source, copy=False)


def parameter(name: str) -> exp.Placeholder:
    return exp.Placeholder(this=name)


def cast(expression: exp.Expr, kind: str) -> exp.Cast:
    return exp.Cast(this=expression, to=_type(kind).copy())


def try_cast(expression: exp.Expr, kind: str) -> exp.TryCast:
    """NULL where the value does not fit."""
    return exp.TryCast(this=expression, to=_type(kind).copy())


@lru_cache(maxsize=256)
def _type(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="duckdb")


def text(expression: exp.Expr) -> exp.Cast:
    return cast(expression, "VARCHAR")


def number(value: int) -> exp.Expr:
    return exp.Literal.number(value)


def string(value: str) -> exp.Literal:
    return exp.Literal.string(value)


def join_text(*parts: exp.Expr) -> exp.Expr:
    """The parts one after another: texts, or blobs."""
    result = parts[0]
    for part in parts[1:]:
        result = exp.DPipe(this=result, expression=part)
    return result


def named(expression: exp.Expr, name: str) -> exp.Alias:
    return exp.Alias(this=expression, alias=_name(name))


def when(condition: exp.Expr, then: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Case:
    return exp.Case(
        ifs=[exp.If(this=condition, true=then)],
        default=exp.Null() if otherwise is None else otherwise,
    )


def is_null(expression: exp.Expr) -> exp.Is:
    return exp.Is(this=expression, expression=exp.Null())


def equal(left: exp.Expr, right: exp.Expr) -> exp.EQ:
    return exp.EQ(this=left, expression=right)


def times(left: exp.Expr, right: exp.Expr) -> exp.Mul:
    return exp.Mul(this=_group(left), expression=_group(right))


def minus(left: exp.Expr, right: exp.Expr) -> exp.Sub:
    return exp.Sub(this=left, expression=_group(right))


def divide(left: exp.Expr, right: exp.Expr) -> exp.Div:
    return exp.Div(this=_group(left), expression=_group(right), typed=False, safe=False)


def clipped(value: exp.Expr, low: exp.Expr, high: exp.Expr) -> exp.Expr:
    """The nearest number of [low, high]; NULL stays NULL, which least and greatest would skip."""
    above = when(exp.GT(this=value, expression=high), high.copy(), value.copy())
    return when(exp.LT(this=value.copy(), expression=low), low.copy(), above)


def add(terms: Sequence[exp.Expr]) -> exp.Expr:
    """Return the sum as a balanced tree: DuckDB limits the depth of an expression to 1000."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return exp.paren(exp.Add(this=add(terms[:middle]), expression=add(terms[middle:])), copy=False)


def total(expression: exp.Expr) -> exp.Expr:
    """SUM as DOUBLE, 0 over no rows."""
    return call("coalesce", call("sum", cast(expression, "DOUBLE")), cast(number(0), "DOUBLE"))


def verbatim(con: Connection, select: str) -> exp.Var:
    """Return a query given as text, for use in a tree without changes.

    Parsing and writing it again could change it. DuckDB's own parser checks that it is exactly one
    SELECT; raises ModelError if not.
    """
    try:
        statements = con.extract_statements(select)
    except duckdb.ParserException as error:
        raise ModelError("the text of a query is not SQL") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ModelError("the text of a query must be one SELECT")
    # the line break ends a comment that may come last
    return exp.Var(this=select.rstrip().rstrip(";") + "\n")


def constant(query: exp.Expr) -> exp.Var:
    """Return the query as text, for repeated runs: DuckDB parses it once."""
    text = to_sql(query)
    _CONSTANTS.add(text)
    return exp.Var(this=text)


def again(con: Connection, text: str) -> duckdb.Statement:
    """Return one parsed statement for repeated runs, of the program's own text. It belongs to no
    connection, and each run takes a copy.
    """
    statement = _parses.get(text)
    if statement is None:
        (statement,) = con.extract_statements(text)
        if len(_parses) >= MAX_PARSES:
            _parses.clear()  # of other threads too
        _parses[text] = statement
    return statement


MAX_PARSES = 1024
_CONSTANTS: set[str] = set()
_parses: dict[str, duckdb.Statement] = {}


def _runnable(con: Connection, text: str) -> str | duckdb.Statement:
    return again(con, text) if text in _CONSTANTS else text


_DUCKDB = Dialect.get_or_raise("duckdb")
# sqlglot would copy the tree as a precaution, which takes as long as writing; it does not change
# trees built here


def to_sql(query: exp.Expr) -> str:
    return _DUCKDB.generate(query, copy=False)


def run(con: Connection, query: exp.Expr, parameters: Parameters | None = None) -> None:
    with _told(to_sql(query)) as (text, _):
        con.execute(text, dict(parameters) if parameters else None)


def fetch(
    con: Connection, query: exp.Expr, parameters: Parameters | None = None
) -> list[tuple[Any, ...]]:
    with _told(to_sql(query)) as (text, count):
        statement = _runnable(con, text)
        rows = con.execute(statement, dict(parameters) if parameters else None).fetchall()
        count(len(rows))
        return rows


def columns(
    con: Connection, query: exp.Expr, parameters: Parameters | None = None
) -> dict[str, Any]:
    """The result as numpy arrays by name (masked arrays where there are NULLs)."""
    with _told(to_sql(query)) as (text, count):
        arrays = con.execute(text, dict(parameters) if parameters else None).fetchnumpy()
        count(len(next(iter(arrays.values()), ())))
        return arrays


def types(con: Connection, query: exp.Expr) -> dict[str, str]:
    """The types of the result's columns by name; the query is bound, and not run."""
    # DuckDB runs a relation of a query with nextval when it is made
    return {row[0]: row[1] for row in fetch(con, exp.Describe(this=query))}


def reader(
    con: Connection, query: exp.Expr, rows: int = 65536, parameters: Parameters | None = None
) -> pa.RecordBatchReader:
    """The result as Arrow batches of at most `rows` rows, in no promised order."""
    with _told(to_sql(query)) as (text, _):
        relation = con.sql(text, params=dict(parameters)) if parameters else con.sql(text)
        return relation.to_arrow_reader(rows)


@contextmanager
def batches(
    con: Connection, query: exp.Expr, rows: int = 65536, parameters: Parameters | None = None
) -> Iterator[pa.RecordBatchReader]:
    """Yield a `reader` that is closed with the context; otherwise the cursor would have an
    unfinished result. A database error while rows are read is a duckdb.Error, as elsewhere.
    """
    batches_ = reader(con, query, rows, parameters)
    try:
        yield batches_
    except OSError as error:  # Arrow turns all errors into this one
        text = str(error)
        kinds = (kind for start, kind in _KINDS.items() if text.startswith(start))
        raise next(kinds, duckdb.Error)(text) from error
    finally:
        batches_.close()


_KINDS = {
    "INTERRUPT": duckdb.InterruptException,
    "Out of Memory": duckdb.OutOfMemoryException,
    "Conversion": duckdb.ConversionException,
    "Out of Range": duckdb.OutOfRangeException,
    "Invalid Input": duckdb.InvalidInputException,
}
"""By the beginning of an error's text."""


@contextmanager
def _told(text: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    """Report the query `text`, run in the block, to the observer, also on failure. The second value
    is a callback for the number of rows.
    """
    observer: Observer | None = getattr(_here, "observer", None)
    if observer is None:
        yield text, lambda rows: None
        return
    counted: list[int] = []
    start = time.perf_counter()
    try:
        yield text, counted.append
    finally:
        observer(text, time.perf_counter() - start, counted[0] if counted else None)


def create(
    con: Connection, name: str, query: exp.Query, parameters: Parameters | None = None
) -> None:
    """CREATE TEMP TABLE `name` AS `query`, on this cursor."""
    text = f"CREATE TEMPORARY TABLE {to_sql(temp(name))} AS {to_sql(query)}"
    run(con, exp.Var(this=text), parameters)


def drop(con: Connection, *names: str) -> None:
    for name in names:
        run(con, exp.Var(this=f"DROP TABLE IF EXISTS {to_sql(temp(name))}"))


def drop_as(con: Connection, template: str, what: exp.Table) -> None:
    """Run a DROP statement, or one with a DROP in it, with `what` for its t."""
    # sqlglot's releases differ in where a Drop keeps its table, so one is parsed and filled in
    statement = parse_one(template, dialect="duckdb")
    for table in list(statement.find_all(exp.Table)):
        table.replace(what)
    run(con, statement)


@contextmanager
def registered(con: Connection, name: str, table: pa.Table) -> Iterator[exp.Table]:
    """`table` as a temporary view of the cursor, for as long as the context."""
    con.register(name, table)
    try:
        yield temp(name)
    except BaseException:
        with suppress(duckdb.Error):  # a failed transaction permits no other statement
            con.unregister(name)
        raise
    con.unregister(name)


def _group(expression: exp.Expr) -> exp.Expr:
    if isinstance(expression, (exp.Binary, exp.DPipe)):
        return exp.paren(expression, copy=False)
    return expression
