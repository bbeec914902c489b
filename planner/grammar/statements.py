"""The statements of sqlfl, as the grammar of `dialect` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from sqlglot import exp

Span: TypeAlias = tuple[int, int]
"""Half-open range of characters of the statement's text."""

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | Pairs | None"
"""Of an option."""


@dataclass(frozen=True)
class Pairs:
    """`{'key': value, ...}` as the value of an option, in the order written."""

    items: tuple[tuple[str, Value], ...]
    """Each key as text: 'yes', 3, -1.5 and true are known by what they are written as."""


class Word(str):
    """A name as it was written, with its place: equal to its text."""

    span: Span

    def __new__(cls, text: str, span: Span) -> Word:
        word = super().__new__(cls, text)
        word.span = span
        return word


@dataclass(frozen=True)
class Option:
    """One `name = value` of WITH or PRIVACY."""

    name: Word
    value: Value
    span: Span
    """Of the value."""


@dataclass(frozen=True)
class Path:
    """A dotted name, in parts as they were written."""

    parts: tuple[str, ...]
    span: Span

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Argument:
    """What stands behind the columns of an item of TRANSFORM."""

    name: Word | None
    """Of `name => value`."""
    value: Value
    span: Span
    """Of the value."""


@dataclass(frozen=True)
class TransformItem:
    """One item of TRANSFORM, as it is written."""

    function: Word | None
    """Lower case; None where the item is a column."""
    columns: tuple[Word, ...]
    """None of `auto` alone, which is of all columns that no other item has."""
    arguments: tuple[Argument, ...]
    name: Word | None
    """Behind AS."""
    span: Span
    """Of all but AS."""


@dataclass(frozen=True)
class TrainModel:
    name: Word
    kind: Word
    """Lower case, as options know it; not checked here."""
    target: Word
    weight: Word | None
    options: tuple[Option, ...]
    privacy: tuple[Option, ...] | None
    """None where there is no PRIVACY clause."""
    query: exp.Query
    replace: bool
    if_not_exists: bool
    sql: str = field(repr=False)
    """The whole text; spans refer to it."""
    place: Span = field(default=(0, 0), repr=False)
    """Of the query, without its parentheses."""
    transforms: tuple[TransformItem, ...] = ()
    transforms_only: bool = False
    """Each column of the query that is a feature is to stand in an item."""
    offset: Word | None = None
    """The column of OFFSET, or of EXPOSURE."""
    exposure: bool = False
    """The offset is the column's logarithm."""


@dataclass(frozen=True)
class TuneModel(TrainModel):
    """TRAIN with lists of candidates among its options, of which the best is found."""


@dataclass(frozen=True)
class EvaluateModel:
    name: Word
    privacy: tuple[Option, ...] | None
    """None where there is no PRIVACY clause."""
    query: exp.Query
    sql: str = field(repr=False)
    options: tuple[Option, ...] = ()
    place: Span = field(default=(0, 0), repr=False)
    look: str = ""
    """'roc' and so on: a statement `ROC OF MODEL`, which shows more of the same; empty of EVALUATE
    itself."""
    threshold: float | None = None
    """Of the probability from which on a row is taken for the second class; None for the usual."""


@dataclass(frozen=True)
class CheckQuery:
    """`CHECK [USING kind] [TARGET column] ... FROM (query)`"""

    kind: Word | None
    """Lower case; None: as the type of the target has it."""
    target: Word | None
    options: tuple[Option, ...]
    query: exp.Query
    sql: str = field(repr=False)
    place: Span = field(default=(0, 0), repr=False)
    """Of the query, without its parentheses."""


@dataclass(frozen=True)
class PredictModel:
    name: Word
    identifiers: tuple[Path, ...]
    query: exp.Query
    into: Path | None
    sql: str = field(repr=False)
    options: tuple[Option, ...] = ()
    replace: bool = False
    """INTO takes the place of a table that is there."""
    place: Span = field(default=(0, 0), repr=False)
    look: str = ""
    """'contributions': a statement `CONTRIBUTIONS OF MODEL`; empty of PREDICT itself."""


@dataclass(frozen=True)
class ExplainStatement:
    statement: TrainModel | EvaluateModel | PredictModel | CheckQuery
    sql: str = field(repr=False)
    verbose: bool = False
    """With all details."""
    analyze: bool = False
    """It is run, over rows that parties make up."""


@dataclass(frozen=True)
class WeightsOfModel:
    name: Word
    sql: str = field(repr=False)


@dataclass(frozen=True)
class CurvesOfModel:
    """`CURVES OF MODEL name [FEATURE feature]`"""

    name: Word
    feature: Word | None
    """None for all that have one."""
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
    | ShowTables
    | ShowParties
    | DescribeTable
    | ShowHistory
    | ShowFeatures
)
