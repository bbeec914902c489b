"""The grammar of the owner's statements."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import nearest
from sqlfl.options.studies import read_until
from sqlfl.planner.grammar.clauses import Clauses
from sqlfl.planner.grammar.statements import Option, Path, Span, Word

ROLES = ("TRAIN", "FILTER", "JOIN", "LABEL", "IDENTIFY", "KEY")
"""Roles granted on columns. PREDICT applies to the whole table, and KEY names the columns that
identify its rows.
"""
STATEMENTS = ("CREATE", "DROP", "GRANT", "REVOKE", "APPROVE", "REFUSE", "SHOW")
_SHOWN = ("POLICIES", "GRANTS", "REQUESTS", "STUDIES", "BUDGETS", "DISCLOSURES")
_CREATE = "CREATE [OR REPLACE] TRAINING POLICY name [WITH (rule = value, ...)]"
_GRANT = (
    "GRANT TRAIN (column, ...), FILTER (column, ...), JOIN (column, ...), LABEL (column), PREDICT, "
    "IDENTIFY (column), KEY (column, ...) "
    "ON table TO 'analyst' UNDER policy [UNTIL DATE '2027-06-30']"
)
_APPROVE = "APPROVE REQUEST 17"
_REFUSE = "REFUSE REQUEST 17 BECAUSE 'no free text'"
_REVOKE_STUDY = "REVOKE STUDY name FROM 'acme' [BECAUSE 'it has ended']"
_REVOKE = "REVOKE ALL | TRAIN, JOIN, ... ON table FROM 'analyst' [AND MODELS]"


@dataclass(frozen=True)
class CreatePolicy:
    name: Word
    rules: tuple[Option, ...]
    replace: bool
    sql: str


@dataclass(frozen=True)
class DropPolicy:
    name: Word
    if_exists: bool


@dataclass(frozen=True)
class Granted:
    role: str
    """Role in lower case."""
    columns: tuple[Word, ...] | None
    """Columns; None for `*`; empty for PREDICT."""


@dataclass(frozen=True)
class GrantOn:
    roles: tuple[Granted, ...]
    table: Path
    analyst: str
    policy: Word
    until: dt.datetime | None
    sql: str


@dataclass(frozen=True)
class RevokeOn:
    roles: tuple[str, ...] | None
    """Roles; None for ALL."""
    table: Path
    analyst: str
    sql: str
    models: bool = False
    """True if the analyst's models of the table are locked."""


@dataclass(frozen=True)
class RevokeStudy:
    name: Word
    analyst: str
    because: str


@dataclass(frozen=True)
class Decide:
    number: int
    approve: bool
    because: str
    """Reason of a refusal; empty for an approval."""


@dataclass(frozen=True)
class Show:
    what: str
    """'policies', 'grants', 'requests', 'studies', 'budgets' or 'disclosures'."""


@dataclass(frozen=True)
class ShowRequest:
    number: int


OwnersStatement = (
    CreatePolicy | DropPolicy | GrantOn | RevokeOn | RevokeStudy | Decide | Show | ShowRequest
)


def parse_owners(sql: str) -> OwnersStatement:
    """Return the one statement in `sql`. Raise ParseError."""
    return _Reader(sql).statement()


class _Reader(Clauses):
    def statement(self) -> OwnersStatement:
        if not self.tokens:
            raise self.fail(f"expected a statement ({', '.join(STATEMENTS)}), got nothing")
        statement = self._statement()
        if self.token is not None:
            raise self.fail(f"expected the end of the statement, got {self.got()}")
        return statement

    def _statement(self) -> OwnersStatement:
        if self.accept("CREATE"):
            replace = self.accept("OR", "REPLACE")
            self._policy("CREATE OR REPLACE" if replace else "CREATE", _CREATE)
            name = self.name("the name of the policy")
            rules = self.options("WITH") if self.accept("WITH") else ()
            return CreatePolicy(name, rules, replace, self.sql)
        if self.accept("DROP"):
            self._policy("DROP", "DROP TRAINING POLICY [IF EXISTS] name")
            exists = self.accept("IF", "EXISTS")
            return DropPolicy(self.name("the name of the policy"), exists)
        if self.accept("GRANT"):
            return self._grant()
        if self.accept("REVOKE", "STUDY"):
            return self._revoke_study()
        if self.accept("REVOKE"):
            return self._revoke()
        if self.accept("SHOW"):
            for what in _SHOWN:
                if self.accept(what):
                    return Show(what.lower())
            if self.accept("REQUEST"):
                return ShowRequest(self._number())
            raise self.fail(
                f"expected {', '.join((*_SHOWN, 'REQUEST'))} after SHOW, got {self.got()}"
            )
        if self.accept("APPROVE"):
            self.expect("REQUEST", "after APPROVE", _APPROVE)
            return Decide(self._number(), approve=True, because="")
        if self.accept("REFUSE"):
            self.expect("REQUEST", "after REFUSE", _REFUSE)
            number = self._number()
            self.expect("BECAUSE", "after the number of the request", _REFUSE)
            return Decide(
                number, approve=False, because=self._text("BECAUSE", "the reason", _REFUSE)
            )
        word = self.word()
        near = nearest(word, STATEMENTS) if word else None
        raise self.fail(
            f"expected a statement of the owner's ({', '.join(STATEMENTS)}), got {self.got()}",
            hint=f"did you mean {near}?"
            if near
            else "TRAIN, PREDICT and the like are an analyst's: sqlfl.connect() runs them",
        )

    def _policy(self, after: str, form: str) -> None:
        self.expect("TRAINING", f"after {after}", form)
        self.expect("POLICY", f"after {after} TRAINING", form)

    def _grant(self) -> GrantOn:
        roles = [self._role()]
        while self.accept(","):
            roles.append(self._role())
        names = [item.role for item in roles]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise self.fail(f"{name.upper()} is granted twice", hint=_GRANT)
        self.expect("ON", "after what is granted", _GRANT)
        table = self.path("a table", 1, 3)
        self.expect("TO", "after the table", _GRANT)
        analyst = self._analyst("TO")
        self.expect("UNDER", "after the analyst", _GRANT)
        policy = self.name("the name of the policy")
        until = self._until() if self.accept("UNTIL") else None
        return GrantOn(tuple(roles), table, analyst, policy, until, self.sql)

    def _role(self) -> Granted:
        if self.accept("PREDICT"):
            if self.word() == "(":
                raise self.fail("PREDICT is of the whole table, not of columns", hint=_GRANT)
            return Granted("predict", ())
        for role in ROLES:
            if self.accept(role):
                return Granted(role.lower(), self._columns(role))
        near = nearest(self.word(), (*ROLES, "PREDICT")) if self.word() else None
        raise self.fail(
            f"expected what is granted ({', '.join((*ROLES, 'PREDICT'))}), got {self.got()}",
            hint=f"did you mean {near}?" if near else _GRANT,
        )

    def _columns(self, role: str) -> tuple[Word, ...] | None:
        self.expect("(", f"after {role}", _GRANT)
        if self.accept("*"):
            if role == "KEY":
                raise self.fail("KEY takes the columns that identify a row, not *", hint=_GRANT)
            self.expect(")", "after *", _GRANT)
            return None
        columns = [self.name("a column")]
        while self.accept(","):
            columns.append(self.name("a column"))
        self.expect(")", "after the columns", _GRANT)
        return tuple(columns)

    def _revoke(self) -> RevokeOn:
        roles: list[str] | None = None
        if not self.accept("ALL"):
            roles = []
            while True:
                role = next((r for r in (*ROLES, "PREDICT") if self.accept(r)), None)
                if role is None:
                    raise self.fail(f"expected ALL or what was granted, got {self.got()}",
                                    hint=_REVOKE)  # fmt: skip
                if self.word() == "(":
                    raise self.fail("REVOKE ends a whole role, and takes no columns",
                                    hint="then GRANT the columns that are to stay")  # fmt: skip
                roles.append(role.lower())
                if not self.accept(","):
                    break
        self.expect("ON", "before the table", _REVOKE)
        table = self.path("a table", 1, 3)
        self.expect("FROM", "before the analyst", _REVOKE)
        analyst = self._analyst("FROM")
        models = self.accept("AND")
        if models:
            self.expect("MODELS", "after AND", _REVOKE)
        ended = None if roles is None else tuple(roles)
        return RevokeOn(ended, table, analyst, self.sql, models)

    def _revoke_study(self) -> RevokeStudy:
        name = self.name("the name of the study")
        self.expect("FROM", "after the name of the study", _REVOKE_STUDY)
        analyst = self._analyst("FROM")
        because = "its owner has revoked it"
        if self.accept("BECAUSE"):
            because = self._text("BECAUSE", "the reason", _REVOKE_STUDY)
        return RevokeStudy(name, analyst, because)

    def _analyst(self, after: str) -> str:
        return self._text(after, "the analyst's name", f"{after} 'acme'")

    def _text(self, after: str, what: str, hint: str) -> str:
        token = self.token
        if token is None or token.token_type is not TokenType.STRING or not token.text.strip():
            said = f"expected {what} as a text after {after}, got {self.got()}"
            raise self.fail(said, hint=hint)
        self.at += 1
        return token.text

    def _number(self) -> int:
        token = self.token
        number = token.text if token and token.token_type is TokenType.NUMBER else ""
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            said = f"expected the number of a request, got {self.got()}"
            raise self.fail(said, hint="SHOW REQUESTS lists them")
        self.at += 1
        return int(number)

    def _until(self) -> dt.datetime:
        start = self.span()
        self.accept("DATE") or self.accept("TIMESTAMP")
        token = self.token
        if token is None or token.token_type is not TokenType.STRING:
            raise self.fail(f"expected DATE '2027-06-30' after UNTIL, got {self.got()}")
        self.at += 1
        return self._time(token.text, (start[0], token.end + 1))

    def _time(self, text: str, span: Span) -> dt.datetime:
        time = read_until(text)  # a grant UNTIL a day holds on that day
        if time is None:
            raise self.fail(f"'{text}' is no date", hint="UNTIL DATE '2027-06-30'", span=span)
        return time
