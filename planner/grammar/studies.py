"""Parser of CREATE STUDY."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import nearest
from sqlfl.contract.study import ROLES
from sqlfl.planner.grammar.clauses import Clauses
from sqlfl.planner.grammar.statements import CreateStudy, TableUse, Word

FORM = (
    "CREATE [OR REPLACE] STUDY name PURPOSE 'text' FOR TRAIN (column, ...), JOIN (column, ...) "
    "ON party.table [AND ... ON party.table] WITH (runs = 30, until = '2030-06-30', ...)"
)


def read_study(reader: Clauses, *, replace: bool) -> CreateStudy:
    """Read the words after STUDY. Raise ParseError."""
    name = reader.name("the name of the study")
    reader.expect("PURPOSE", "after the name of the study", FORM)
    token = reader.token
    if token is None or token.token_type is not TokenType.STRING or not token.text.strip():
        got = f"expected the purpose as a text after PURPOSE, got {reader.got()}"
        raise reader.fail(got, hint=FORM)
    reader.at += 1
    reader.expect("FOR", "after the purpose", FORM)
    tables = [_table(reader)]
    while reader.accept("AND"):
        tables.append(_table(reader))
    reader.expect("WITH", "after the tables of the study", FORM)
    options = reader.options("WITH")
    return CreateStudy(name, token.text, tuple(tables), options, replace, reader.sql)


def _table(reader: Clauses) -> TableUse:
    roles = [_role(reader)]
    while reader.accept(","):
        roles.append(_role(reader))
    names = [role for role, _ in roles]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise reader.fail(f"{name.upper()} is written twice", hint=FORM)
    reader.expect("ON", "after the columns by role", FORM)
    return TableUse(tuple(roles), reader.path("a table", 2, 4))


def _role(reader: Clauses) -> tuple[str, tuple[Word, ...]]:
    role = next((own for own in ROLES if reader.accept(own.upper())), None)
    if role is None:
        known = [own.upper() for own in ROLES]
        near = nearest(reader.word(), known) if reader.word() else None
        raise reader.fail(
            f"expected a role of columns ({', '.join(known)}), got {reader.got()}",
            hint=f"did you mean {near}?" if near else FORM,
        )
    reader.expect("(", f"after {role.upper()}", FORM)
    if reader.word() == "*":
        raise reader.fail("a study names its columns one by one, and takes no *", hint=FORM)
    columns = [reader.name("a column")]
    while reader.accept(","):
        columns.append(reader.name("a column"))
    reader.expect(")", "after the columns", FORM)
    return role, tuple(columns)
