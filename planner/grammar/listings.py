"""Parser of statements that list or describe: SHOW, DESCRIBE, HISTORY and FEATURES OF MODEL."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl.base.errors import nearest
from sqlfl.planner.grammar.clauses import Clauses
from sqlfl.planner.grammar.statements import (
    DescribeModel,
    DescribeTable,
    ShowFeatures,
    ShowHistory,
    ShowJoins,
    ShowModels,
    ShowParties,
    ShowStudies,
    ShowTables,
    Statement,
)

_OWNERS = ("POLICIES", "GRANTS", "REQUESTS", "REQUEST", "BUDGETS", "DISCLOSURES")
"""Lists that an owner's database has, and no federation."""


class ListingParser(Clauses):
    """Parser of listings; each method reads the words after a statement's first."""

    def _show(self) -> Statement:
        listed: dict[str, Callable[[str], Statement]] = {
            "MODELS": ShowModels,
            "JOINS": ShowJoins,
            "STUDIES": ShowStudies,
            "TABLES": ShowTables,
            "PARTIES": ShowParties,
        }
        made = listed.get(self.word())
        if made is None:
            close = nearest(self.word(), listed) if self.word() else None
            hint = f"did you mean {close}?" if close else None
            if self.word() == "MODEL":
                hint = "DESCRIBE MODEL name shows one; SHOW MODELS all"
            elif self.word() in _OWNERS:
                hint = f"an owner's statement: sqlfl.owner(connection).sql('SHOW {self.word()}')"
            raise self.fail(
                f"expected MODELS, JOINS, STUDIES, TABLES or PARTIES after SHOW, got {self.got()}",
                hint=hint,
            )
        self.at += 1
        return made(self.sql)

    def _describe(self) -> DescribeModel | DescribeTable:
        if self.word(1) != "." and self.accept("MODEL"):
            return DescribeModel(self.name("the name of the model"), self.sql)
        if self.word(1) != ".":
            raise self.fail(
                f"expected MODEL or party.table after DESCRIBE, got {self.got()}",
                hint="DESCRIBE MODEL name, or DESCRIBE party.table",
            )
        return DescribeTable(self.path("a table", 2, 4), self.sql)

    def _part_of_model(self) -> Statement:
        first = self.word(-1)
        self.expect("OF", f"after {first}", f"{first} OF MODEL name")
        self.expect("MODEL", f"after {first} OF", f"{first} OF MODEL name")
        name = self.name("the name of the model")
        return (ShowHistory if first == "HISTORY" else ShowFeatures)(name, self.sql)
