"""A table or a join as a value of Python, from which statements are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa

from sqlfl.base import sanitize
from sqlfl.base.errors import Error
from sqlfl.base.foreign_names import RELATION, no_attribute
from sqlfl.base.result import Result, facts_to_html
from sqlfl.contract.schema import Column
from sqlfl.planner.explain.document import ExplainedPlan
from sqlfl.planner.grammar.clauses import read_path, written
from sqlfl.planner.grammar.parameters import written_option
from sqlfl.store.registry import Model, facts_to_text


class StatementRunner(Protocol):
    """The federation that runs the statements."""

    def sql(self, text: str) -> Result: ...

    def explain(self, text: str) -> ExplainedPlan: ...

    def model(self, name: str) -> Model: ...


@dataclass(frozen=True, eq=False, repr=False)
class Relation:
    """A query over tables of parties, and its columns; never a row.

    `fed.table` and `fed.query` make it. Its methods write a statement `... FROM ( query )` and run
    it, with errors as that statement has them: names are quoted where SQL needs it, and values of
    options are literals.
    """

    sql: str
    """The query."""
    _columns: tuple[Column, ...] = field(repr=False)
    _fed: StatementRunner = field(repr=False)
    _table: tuple[str, ...] = field(default=(), repr=False)
    """The path of the relation's table; empty for a query."""
    join: str = ""
    """The join that lasts whose rows its statements use; empty without one."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, RELATION, dir(type(self)))

    # -- contents ----------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, as the parties reported them when the relation was made."""
        return tuple(column.name for column in self._columns)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of `columns`, as DuckDB writes them."""
        return tuple(column.type for column in self._columns)

    def schema(self) -> Result:
        """A row per column: its name and type."""
        return Result(
            pa.table(
                {
                    "column": pa.array(self.columns, pa.string()),
                    "type": pa.array(self.types, pa.string()),
                }
            )
        )

    def __repr__(self) -> str:
        columns = [(column.name, column.type) for column in self._columns]
        text = sanitize.lines(self.sql.strip())
        return f"{text}\n\n{facts_to_text(columns)}"

    def _repr_html_(self) -> str:
        return facts_to_html(
            [("query", self.sql.strip()), *zip(self.columns, self.types, strict=True)]
        )

    # -- a join that lasts -------------------------------------------------------------------------

    def keep(self, name: str, *, replace: bool = False) -> Relation:
        """Return the same query as a join that lasts (CREATE JOIN name), whose rows and keys the
        statements share. `DROP JOIN name` ends it. With `replace`, there may be one of this name.
        """
        verb = "CREATE OR REPLACE JOIN" if replace else "CREATE JOIN"
        self._fed.sql(f"{verb} {_name(name, 'the name of the join')} AS (\n{self.sql}\n)")
        return Relation(self.sql, self._columns, self._fed, self._table, name)

    # -- models ------------------------------------------------------------------------------------

    def train(
        self,
        name: str,
        kind: str,
        target: str,
        *,
        weight: str | None = None,
        offset: str | None = None,
        exposure: str | None = None,
        privacy: Mapping[str, Any] | None = None,
        replace: bool = False,
        if_not_exists: bool = False,
        **options: Any,
    ) -> Model:
        """Train a model (TRAIN MODEL). `target`, `weight`, `offset` and `exposure` are columns; all
        others are features.

        options : options of WITH, by name; `privacy` has those of PRIVACY.
        """
        beside = (weight, offset, exposure)
        given = (name, kind, target, beside, privacy, replace, if_not_exists, options)
        self._fed.sql(self._training(*given))
        return self._fed.model(name)

    def explain_train(
        self,
        name: str,
        kind: str,
        target: str,
        *,
        weight: str | None = None,
        offset: str | None = None,
        exposure: str | None = None,
        privacy: Mapping[str, Any] | None = None,
        replace: bool = False,
        if_not_exists: bool = False,
        **options: Any,
    ) -> ExplainedPlan:
        """Return the plan of `train` with these arguments, without running it."""
        beside = (weight, offset, exposure)
        given = (name, kind, target, beside, privacy, replace, if_not_exists, options)
        return self._fed.explain(self._training(*given))

    def evaluate(
        self, name: str, *, privacy: Mapping[str, Any] | None = None, **options: Any
    ) -> Result:
        """EVALUATE MODEL over these rows, which have the features and the target."""
        clauses = (*_clause("WITH", options), *_clause("PRIVACY", privacy))
        return self._fed.sql(self._statement("EVALUATE MODEL", _name(name), *clauses))

    def predict(
        self,
        name: str,
        *,
        id: str | Sequence[str] = (),
        into: str | None = None,
        replace: bool = False,
        **options: Any,
    ) -> Result:
        """Predict (PREDICT MODEL): a row for each joined row.

        id : columns that identify rows, as `alias.column` or `party.table.column`; for a table,
        also `column` alone. They leave their party, unless `into` names a table of the same party.
        into : `party.table`, which the party creates from the predictions and `id`; with `replace`,
        it may exist.
        """
        text = self._statement(
            "PREDICT MODEL", _name(name), *self._identifiers(id), *_clause("WITH", options)
        )
        if into is not None:
            before = "INTO OR REPLACE" if replace else "INTO"
            text = f"{text} {before} {written(*read_path(into, 'a table', 2, 4))}"
        elif replace:
            raise Error("replace is of the table that into names", hint="into='party.table'")
        return self._fed.sql(text)

    def metrics(self, name: str, *, at: float | None = None, **options: Any) -> Result:
        """Return the metrics (METRICS OF MODEL). `at` is the probability from which a row counts as
        the second class.
        """
        return self._look("METRICS", name, at, options)

    def check(self, target: str | None = None, kind: str | None = None, **options: Any) -> Result:
        """Check the query (CHECK) for a model of this kind, which is to predict `target`, an output
        column.
        """
        clauses = [*(() if kind is None else ("USING", kind))]
        clauses += () if target is None else ("TARGET", _name(target))
        return self._fed.sql(self._statement("CHECK", *clauses, *_clause("WITH", options)))

    def roc(self, name: str, **options: Any) -> Result:
        """ROC OF MODEL"""
        return self._look("ROC", name, None, options)

    def confusion(self, name: str, *, at: float | None = None, **options: Any) -> Result:
        """CONFUSION OF MODEL: `at` as in `metrics`."""
        return self._look("CONFUSION", name, at, options)

    def calibration(self, name: str, **options: Any) -> Result:
        """CALIBRATION OF MODEL"""
        return self._look("CALIBRATION", name, None, options)

    def residuals(self, name: str, **options: Any) -> Result:
        """RESIDUALS OF MODEL"""
        return self._look("RESIDUALS", name, None, options)

    # -- statements --------------------------------------------------------------------------------

    def _look(self, word: str, name: str, at: float | None, options: Mapping[str, Any]) -> Result:
        threshold = () if at is None else ("AT", written_option(at, "at"))
        clauses = (*threshold, *_clause("WITH", options))
        return self._fed.sql(self._statement(f"{word} OF MODEL", _name(name), *clauses))

    def _training(
        self,
        name: str,
        kind: str,
        target: str,
        beside: tuple[str | None, ...],
        privacy: Mapping[str, Any] | None,
        replace: bool,
        if_not_exists: bool,
        options: Mapping[str, Any],
    ) -> str:
        return self._statement(
            "TRAIN OR REPLACE MODEL" if replace else "TRAIN MODEL",
            *(["IF NOT EXISTS"] * if_not_exists),
            _name(name),
            *("USING", _name(kind, "the kind of model")),
            *("TARGET", _name(target, "the target")),
            *(
                f"{clause} {_name(name, f'the {clause.lower()}')}"
                for clause, name in zip(("WEIGHT", "OFFSET", "EXPOSURE"), beside, strict=True)
                if name is not None
            ),
            *_clause("WITH", options),
            *_clause("PRIVACY", privacy),
        )

    def _statement(self, *words: str) -> str:
        if self.join:
            return f"{' '.join(words)}\nFROM {_name(self.join)}"
        # the query may end in a comment
        return f"{' '.join(words)}\nFROM (\n{self.sql}\n)"

    def _identifiers(self, given: str | Sequence[str]) -> tuple[str, ...]:
        if not isinstance(given, str | Sequence):
            raise Error(
                f"id must be a column or a list of columns, got {type(given).__name__}",
                hint='id="alias.column"',
            )
        identifiers = []
        for text in [given] if isinstance(given, str) else given:
            least = 1 if self._table else 2
            parts = read_path(text, "an identifier column", least, 5)
            identifiers.append(written(*(self._table if len(parts) == 1 else ()), *parts))
        return (f"ID ({', '.join(identifiers)})",) if identifiers else ()


def _name(text: object, label: str = "the name of the model") -> str:
    if not isinstance(text, str):
        raise Error(
            f"{label} must be text, got {type(text).__name__}",
            hint="give model.name" if isinstance(text, Model) else None,
        )
    if not text:
        raise Error(f"{label} is empty")
    return written(text)


def _clause(word: str, options: Mapping[str, Any] | None) -> tuple[str, ...]:
    if options is not None and not isinstance(options, Mapping):
        raise Error(
            f"privacy must be a dict of options, got {type(options).__name__}",
            hint="privacy={'label_epsilon': 2}",
        )
    if not options:
        return () if options is None or word == "WITH" else (f"{word} ()",)
    values = (
        f"{_name(name, 'the name of an option')} = {written_option(value, f'option {name}')}"
        for name, value in options.items()
    )
    return (f"{word} ({', '.join(values)})",)
