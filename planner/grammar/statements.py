"""The statements of sqlfl, as the grammar of `dialect` reads them, and the options of EXPLAIN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlglot import exp

Span: TypeAlias = tuple[int, int]
"""Half-open range of characters of the statement's text."""

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | Pairs | None"
"""The value of an option."""


@dataclass(frozen=True)
class Pairs:
    """`{'key': value, ...}` as the value of an option, in the order written."""

    items: tuple[tuple[str, Value], ...]
    """Each key is text: 'yes', 3, -1.5 and true keep their spelling."""


class Word(str):
    """A name in its original spelling, with its place; it equals its text."""

    span: Span

    def __new__(cls, text: str, span: Span) -> Word:
        word = super().__new__(cls, text)
        word.span = span
        return word

    def __reduce__(self) -> tuple[type[Word], tuple[str, Span]]:
        """Return how a copy is made."""
        return Word, (str(self), self.span)


@dataclass(frozen=True)
class Option:
    """One `name = value` of WITH or PRIVACY."""

    name: Word
    value: Value
    span: Span
    """Place of the value."""


@dataclass(frozen=True)
class Path:
    """A dotted name, in parts as written."""

    parts: tuple[str, ...]
    span: Span

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Argument:
    """An argument after the columns of an item of TRANSFORM."""

    name: Word | None
    """The name in `name => value`."""
    value: Value
    span: Span
    """Place of the value."""


@dataclass(frozen=True)
class TransformItem:
    """One item of TRANSFORM, as written."""

    function: Word | None
    """The function in lower case; None for a column."""
    columns: tuple[Word, ...]
    """Empty for `auto` alone, which takes all columns without another item."""
    arguments: tuple[Argument, ...]
    name: Word | None
    """Behind AS."""
    span: Span
    """Place of the item without AS."""


@dataclass(frozen=True)
class TrainModel:
    name: Word
    kind: Word
    """Lower case, as options know it; not checked here."""
    target: Word
    weight: Word | None
    options: tuple[Option, ...]
    privacy: tuple[Option, ...] | None
    """None without a PRIVACY clause."""
    query: exp.Query
    replace: bool
    if_not_exists: bool
    sql: str = field(repr=False)
    """The whole text; spans refer to it."""
    place: Span = field(default=(0, 0), repr=False)
    """Place of the query, without its parentheses."""
    transforms: tuple[TransformItem, ...] = ()
    transforms_only: bool = False
    """True if each feature column of the query must stand in an item."""
    offset: Word | None = None
    """The column of OFFSET, or of EXPOSURE."""
    exposure: bool = False
    """The offset is the column's logarithm."""
    join: Word | None = None
    """The join whose name stands in place of the query; `query` is then `SELECT * FROM name`, until
    the join's own takes its place.
    """


@dataclass(frozen=True)
class TuneModel(TrainModel):
    """TRAIN with lists of candidates among its options; the best one is kept."""


@dataclass(frozen=True)
class EvaluateModel:
    name: Word
    privacy: tuple[Option, ...] | None
    """None without a PRIVACY clause."""
    query: exp.Query
    sql: str = field(repr=False)
    options: tuple[Option, ...] = ()
    place: Span = field(default=(0, 0), repr=False)
    look: str = ""
    """The diagnostic: 'roc' in `ROC OF MODEL`; empty for EVALUATE itself."""
    threshold: float | None = None
    """The probability from which a row counts as the second class; None for the default."""
    join: Word | None = None
    """As in TrainModel."""


@dataclass(frozen=True)
class CheckQuery:
    """`CHECK [USING kind] [TARGET column] ... FROM (query)`"""

    kind: Word | None
    """The kind in lower case; None: by the type of the target."""
    target: Word | None
    options: tuple[Option, ...]
    query: exp.Query
    sql: str = field(repr=False)
    place: Span = field(default=(0, 0), repr=False)
    """Place of the query, without its parentheses."""
    join: Word | None = None
    """As in TrainModel."""


@dataclass(frozen=True)
class PredictModel:
    name: Word
    identifiers: tuple[Path, ...]
    query: exp.Query
    into: Path | None
    sql: str = field(repr=False)
    options: tuple[Option, ...] = ()
    replace: bool = False
    """True if INTO replaces an existing table."""
    place: Span = field(default=(0, 0), repr=False)
    look: str = ""
    """'contributions': a statement `CONTRIBUTIONS OF MODEL`; empty of PREDICT itself."""
    join: Word | None = None
    """As in TrainModel."""


@dataclass(frozen=True)
class CreateJoin:
    """`CREATE [OR REPLACE] JOIN name AS ( query )`"""

    name: Word
    query: exp.Query
    replace: bool
    sql: str = field(repr=False)
    place: Span = field(default=(0, 0), repr=False)
    """Place of the query, without its parentheses."""


@dataclass(frozen=True)
class DropJoin:
    """`DROP JOIN [IF EXISTS] name`"""

    name: Word
    if_exists: bool
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowJoins:
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ExplainStatement:
    statement: TrainModel | EvaluateModel | PredictModel | CheckQuery | CreateJoin
    sql: str = field(repr=False)
    verbose: bool = False
    """True to print all details."""
    analyze: bool = False
    """True to run it over synthetic rows."""


@dataclass(frozen=True)
class WeightsOfModel:
    name: Word
    sql: str = field(repr=False)


@dataclass(frozen=True)
class CurvesOfModel:
    """`CURVES OF MODEL name [FEATURE feature]`"""

    name: Word
    feature: Word | None
    """None for all features with a curve."""
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ExportModel:
    """`EXPORT MODEL name TO 'folder' [WITH (formats = [...])]`"""

    name: Word
    folder: str
    options: tuple[Option, ...]
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ImportModel:
    """`IMPORT [OR REPLACE] MODEL name FROM 'folder'`"""

    name: Word
    folder: str
    replace: bool
    sql: str = field(repr=False)


@dataclass(frozen=True)
class CommentOnModel:
    """`COMMENT ON MODEL name IS 'text'`"""

    name: Word
    text: str
    """Empty for NULL."""
    sql: str = field(repr=False)


@dataclass(frozen=True)
class TableUse:
    """`role (column, ...), ... ON party.table` in CREATE STUDY."""

    roles: tuple[tuple[str, tuple[Word, ...]], ...]
    """Roles in lower case, with their columns."""
    table: Path


@dataclass(frozen=True)
class CreateStudy:
    """`CREATE STUDY name PURPOSE 'text' FOR role (column, ...) ON table [AND ...] WITH (...)`"""

    name: Word
    purpose: str
    tables: tuple[TableUse, ...]
    options: tuple[Option, ...]
    replace: bool
    sql: str = field(repr=False)


@dataclass(frozen=True)
class DropStudy:
    name: Word
    if_exists: bool
    sql: str = field(repr=False)


@dataclass(frozen=True)
class UseStudy:
    """`USE STUDY name`, or `USE NO STUDY`"""

    name: Word | None
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowStudies:
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowModels:
    sql: str = field(repr=False)


@dataclass(frozen=True)
class DescribeModel:
    name: Word
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ResumeModel:
    name: Word
    sql: str = field(repr=False)


@dataclass(frozen=True)
class DropModel:
    name: Word
    if_exists: bool
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowTables:
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowParties:
    sql: str = field(repr=False)


@dataclass(frozen=True)
class DescribeTable:
    path: Path
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowHistory:
    """`HISTORY OF MODEL name`"""

    name: Word
    sql: str = field(repr=False)


@dataclass(frozen=True)
class ShowFeatures:
    """`FEATURES OF MODEL name`"""

    name: Word
    sql: str = field(repr=False)


Statement: TypeAlias = (
    TrainModel
    | TuneModel
    | EvaluateModel
    | PredictModel
    | CheckQuery
    | CreateJoin
    | DropJoin
    | ShowJoins
    | ExplainStatement
    | WeightsOfModel
    | CurvesOfModel
    | ExportModel
    | ImportModel
    | CommentOnModel
    | ShowModels
    | DescribeModel
    | DropModel
    | ResumeModel
    | CreateStudy
    | DropStudy
    | UseStudy
    | ShowStudies
    | ShowTables
    | ShowParties
    | DescribeTable
    | ShowHistory
    | ShowFeatures
)


VERBOSE, ANALYZE = "VERBOSE", "ANALYZE"
REHEARSED = ("CHECK", "TRAIN", "TUNE")
"""Statements that can run over synthetic rows."""
NO_ROWS = (
    "the weights of a model follow from rows, and what it makes of rows that everybody knows would "
    "tell them: EXPLAIN says what the statement exchanges"
)
"""The reason why statements about an existing model cannot."""


def leading(words: Sequence[str]) -> int:
    """Return the number of words, in upper case, of EXPLAIN and its options at a statement's start.

    >>> leading("EXPLAIN ( ANALYZE , VERBOSE ) TRAIN MODEL m".split()), leading(["TRAIN"])
    (6, 0)
    """
    if not words or words[0] != "EXPLAIN":
        return 0
    if len(words) > 1 and words[1] == ANALYZE:
        return 2
    for place, word in enumerate(words[1:], 1):
        if word == ")" and place > 1:
            return place + 1
        if word not in (("(",) if place == 1 else (VERBOSE, ANALYZE, ",")):
            break
    return 1
