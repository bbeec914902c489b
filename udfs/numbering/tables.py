"""The temporary tables of a slot at one client, by the names of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from sqlglot import exp

from sqlfl.contract.schema import SlotSpecification
from sqlfl.udfs import sql


@dataclass
class SlotTables:
    con: sql.Connection
    run: str
    specification: SlotSpecification
    _tables: set[str] = field(default_factory=set, kw_only=True)
    _numbers: Iterator[int] = field(default_factory=count, kw_only=True)

    def create(self, part: str, query: exp.Query, parameters: sql.Parameters | None = None) -> None:
        """Make the temporary table `part`; `drop_part` removes it."""
        sql.create(self.con, self.name(part), query, parameters)
        self._tables.add(self.name(part))

    def drop_part(self, part: str) -> None:
        self._forget(self.name(part))

    def fresh(self, part: str) -> str:
        """A part's name that was not used yet."""
        return f"{part}{next(self._numbers)}"

    def table(self, part: str, alias: str | None = None) -> exp.Table:
        return sql.temp(self.name(part), alias)

    def name(self, part: str) -> str:
        """The name of the temporary table or view `part`."""
        return f"sqlfl_{self.run}_{self.specification.slot}_{part}"

    def kept(self, query: exp.Select) -> exp.Select:
        """Return `raw` without rows of NULL target, unless they are kept to match."""
        if not self.specification.target:
            return query
        links = [sql.number(link) for _, link in self.specification.links]
        if not links:
            return query.where(sql.expression("NOT y IS NULL"))
        return query.where(sql.expression("NOT y IS NULL OR fragment IN ($links)", links=links))

    def _forget(self, *names: str) -> None:
        sql.drop(self.con, *names)
        self._tables -= set(names)
