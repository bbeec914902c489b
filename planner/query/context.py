"""Context of all expressions in a statement: its tables, its text, its clock."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.spans import plan_error, span_of
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.dotted_names import DottedName
from sqlfl.planner.query.names import CatalogTables
from sqlfl.planner.query.relations import fitted

_METHOD = "SELECT list_transform([1], lambda x: x.list_value()) AS found FROM (SELECT '' AS x)"
"""A probe: INTEGER[][] where x is the variable, VARCHAR[][] where it is the column."""
SYSTEM_SCHEMAS = frozenset(("main", "pg_catalog", "information_schema", "system", "temp"))


@dataclass(frozen=True)
class Context:
    tables: CatalogTables
    sql: str
    clock: Clock

    def placed(self, replacement: exp.Expr, original: exp.Expr) -> exp.Expr:
        """Return the replacement of a name, with the name's place in the text."""
        place = span_of(original, self.sql)
        for node in replacement.walk():
            node.meta.pop("start", None)
            node.meta.pop("end", None)
        if place is not None:
            replacement.meta.update(start=place[0], end=place[1] - 1)
        return fitted(replacement, original.parent)

    def is_schema(self, chain: DottedName) -> bool:
        """Return whether the words before a call name a schema, or a database and a schema."""
        schemas = SYSTEM_SCHEMAS | self.tables.schemas(self.tables.asked())
        return all(folded(part) in schemas for part in chain.parts)

    def is_of_variable(self, chain: DottedName, original: exp.Expr) -> bool:
        """Return whether `x.f()` refers to a lambda's variable x if there is a column x too: yes
        from DuckDB 2.0.1 on; up to 2.0.0 it is the column.
        """
        try:
            columns = self.tables.catalog.describe(self.tables.asked()[0], _METHOD)
        except (LostError, ReplyError):
            raise
        except PartyError as error:  # its owner does not let it be asked
            name = _called(chain)
            raise plan_error(
                f"{chain.written}.{name}() may be of the lambda's variable or of a column",
                self.sql,
                original,
                f"write {name}({chain.written}), which is of the variable",
            ) from error
        return [column.type for column in columns] == ["INTEGER[][]"]

    def refuse_method(self, chain: DottedName, original: exp.Expr) -> None:
        """Refuse a method call if DuckDB reads the words before it as another object than the
        column.
        """
        name = _called(chain)
        if len(chain.words) > 2:
            raise plan_error(
                f"{chain.written}.{name}(): DuckDB reads two words before a call, table.column",
                self.sql,
                original,
                f"write {name}({chain.written})",
            )
        if self.is_schema(chain):
            raise plan_error(
                f"{chain.written}.{name}() may be a function of the schema {chain.written}",
                self.sql,
                original,
                f"write {name}({chain.written})",
            )


def _called(chain: DottedName) -> str:
    call = chain.links[0]
    return call.name if isinstance(call, exp.Anonymous) else "function"
