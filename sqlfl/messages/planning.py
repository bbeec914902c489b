"""Before there is a plan: names and types only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.messages.base import Message
from sqlfl.messages.forms import text, texts


@dataclass(frozen=True, eq=False)
class ListTables(Message):
    """Coordinator to client: which tables are there?"""

    kind = "list_tables"


@dataclass(frozen=True, eq=False)
class Tables(Message):
    """Client to coordinator: schemas and tables as JSON (sqlfl.schema.tables_to_json)."""

    kind = "tables"
    tables: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Coordinator to client: which columns has this SELECT? It is bound, not run."""

    kind = "describe"
    words = "a SELECT to bind, not to run"
    select: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Columns(Message):
    kind = "columns"
    words = "names and types of its columns"
    names: tuple[str, ...] = field(metadata=texts("columns"))
    types: tuple[str, ...] = field(metadata=texts("columns"))
