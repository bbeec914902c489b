"""Columns that a run's fragments read, and their uses: the basis of synthetic rows for a
rehearsal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sqlfl import messages as ms
from sqlfl.base.codec import loads
from sqlfl.base.errors import Error, PolicyError
from sqlfl.contract.fragment_columns import ROW
from sqlfl.contract.request import Request, request_from_json
from sqlfl.contract.schema import SlotSpecification, specifications_from_json
from sqlfl.governance.fragments import roles_of
from sqlfl.governance.functions import every_function
from sqlfl.governance.names import NameLookup
from sqlfl.governance.policies import JOIN, LABEL, TRAIN
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import DECIDED, SelectReading, read
from sqlfl.models.kinds import TWO_CLASSES, kind_of
from sqlfl.udfs import sql
from sqlfl.udfs.describe import types_of
from sqlfl.udfs.synthetic import ColumnUse

LABELS, WEIGHTS = (1.0, 10.0), (1.0, 2.0)
"""Default bounds of numbers: logarithms of them exist."""
CLASSES = ("1", "2", "3")
BOOLEAN = "BOOLEAN"
LARGEST = 1e15
"""Maximum of bounds."""


def sketched(
    cursor: sql.Connection,
    place: tuple[str, str],
    request: ms.Rehearse,
    shown: Callable[[ScopeColumn], bool],
) -> dict[Table, dict[str, tuple[str, ColumnUse]]]:
    """Return, for each table that the fragments name, the named columns that may be shown, with
    type and use.

    `place` is the database and the schema of names without them. Only names of tables are bound,
    and nothing runs. Raise Error if the columns of a fragment cannot be determined.
    """
    names, functions = NameLookup(cursor, place), every_function(cursor)
    proposal = request_from_json(request.request)
    uses = _Uses(proposal)
    texts = iter(request.fragments)
    for item in specifications_from_json(request.specification):
        for _ in item.fragments:
            text = next(texts, "")
            try:
                reading = read(cursor, text, names.table, functions)
            except PolicyError as error:
                why = error.message.removesuffix(DECIDED)
                raise Error(
                    f"of what a query reads no rows can be made up: {why}",
                    hint="a view that has it as columns can be rehearsed",
                ) from error
            uses.add(item, reading)
    if next(texts, None) is not None:
        raise Error("more fragments came than the slots have")
    return {table: dict(_typed(cursor, table, uses, shown)) for table in sorted(uses.tables)}


def _typed(
    cursor: sql.Connection, table: Table, found: _Uses, shown: Callable[[ScopeColumn], bool]
) -> Iterator[tuple[str, tuple[str, ColumnUse]]]:
    for name, kind in types_of(cursor, table).items():
        column = ScopeColumn(table, name)
        if column in found.named and shown(column):
            yield name, (kind, found.use(column, kind))


@dataclass
class _Uses:
    """Uses of columns, gathered over all fragments of a client."""

    request: Request
    tables: set[Table] = field(default_factory=set)
    named: set[ScopeColumn] = field(default_factory=set)
    keys: set[ScopeColumn] = field(default_factory=set)
    bounds: dict[ScopeColumn, tuple[float, float]] = field(default_factory=dict)
    listed: dict[ScopeColumn, tuple[str, ...]] = field(default_factory=dict)
    classes: set[ScopeColumn] = field(default_factory=set)
    """Labels without further information."""
    beside: dict[ScopeColumn, set[str | None]] = field(default_factory=dict)

    def add(self, item: SlotSpecification, reading: SelectReading) -> None:
        self.tables |= reading.tables
        self.named |= reading.named | reading.links
        self.keys |= reading.equal
        for column, text in reading.beside:
            self.beside.setdefault(column, set()).add(text)
        roles = roles_of(item, reading.outputs)
        for place, (role, output) in enumerate(zip(roles, reading.outputs, strict=True)):
            if role == ROW or output.whole is not None:
                continue
            if role == JOIN:
                self.keys |= output.reads
            elif role == TRAIN:
                self._feature(item, place, output)
            elif role == LABEL and item.target and place == len(item.features):
                self._label(item, output)
            elif role == LABEL and output.same is not None:
                self.bounds[output.same] = WEIGHTS

    def _feature(self, item: SlotSpecification, place: int, output: SelectOutput) -> None:
        public = item.privacy.bounds if item.privacy is not None else ()
        bounds = public[place] if public else None
        if output.same is not None and bounds:
            self._bound(output.same, bounds)

    def _label(self, item: SlotSpecification, output: SelectOutput) -> None:
        noise = item.privacy.label if item.privacy is not None else None
        if output.same is None:
            for column in output.reads:
                self.bounds.setdefault(column, LABELS)
        elif noise is not None:
            self._bound(output.same, noise.classes or noise.bounds or LABELS)
        elif not item.classes:
            self.bounds[output.same] = LABELS
        elif weighed := _weighed(self.request):
            self.listed[output.same] = weighed
        else:
            self.classes.add(output.same)

    def _bound(self, column: ScopeColumn, public: Sequence[float] | Sequence[str]) -> None:
        texts = tuple(value for value in public if isinstance(value, str))
        numbers = [value for value in public if not isinstance(value, str)]
        if texts:
            self.listed[column] = texts
        elif len(numbers) == 2 and all(abs(number) <= LARGEST for number in numbers):
            self.bounds[column] = min(numbers), max(numbers)
        else:
            raise Error(f"the bounds of {column.name} are no two numbers up to {LARGEST:g}")

    def use(self, column: ScopeColumn, kind: str) -> ColumnUse:
        listed = self.listed.get(column, ())
        if column in self.classes and kind != BOOLEAN:
            two = kind_of(self.request.kind).target == TWO_CLASSES
            listed = CLASSES[: 2 if two else 3]
        beside = self.beside.get(column, set())
        return ColumnUse(
            key=column in self.keys,
            bounds=self.bounds.get(column),
            listed=listed,
            beside=tuple(sorted(beside, key=lambda text: (text is not None, text or ""))),
        )


def _weighed(request: Request) -> tuple[str, ...]:
    """Return the classes to which the statement gives weights."""
    options = loads(request.options)
    first = options[0] if isinstance(options, list) and options else None
    weights = first.get("class_weight") if isinstance(first, dict) else None
    return tuple(weights) if isinstance(weights, dict) else ()
