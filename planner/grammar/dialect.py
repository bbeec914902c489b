"""The grammar of sqlfl's statements, on the tokens and the parser of sqlglot's DuckDB dialect."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.tokenizer_core import TokenType

from sqlfl.errors import ParseError, nearest
from sqlfl.planner.grammar.parsing import group_joins
from sqlfl.planner.grammar.statements import (
    DescribeModel,
    DropModel,
    EvaluateModel,
    ExplainStatement,
    Option,
    Pairs,
    Path,
    PredictModel,
    ShowModels,
    Span,
    Statement,
    TrainModel,
    Value,
    Word,
)
from sqlfl.planner.grammar.tokens import QUOTED, Tokens, tokenize
from sqlfl.planner.grammar.transforms import read_items
from sqlfl.planner.grammar.writing import Dialect

_STATEMENTS = ("TRAIN", "EXPLAIN", "EVALUATE", "PREDICT", "SHOW", "DESCRIBE", "DROP")
_RESERVED = ("CHECK", "RESUME", "EXPORT", "GRANT", "REVOKE")
_SQL = ("SELECT", "WITH", "FROM", "VALUES", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "COPY")
_TRAIN_CLAUSES = ("USING", "TARGET", "WEIGHT", "TRANSFORM", "WITH", "PRIVACY", "FROM")
_TRAIN_FORM = (
    "TRAIN MODEL name USING kind TARGET column "
    "[WEIGHT column] [TRANSFORM (function(column), ...)] [WITH (option = value, ...)] "
    "[PRIVACY (option = value, ...)] FROM ( query )"
)


_EXPECTED = re.compile(r"Expect(?:ed|ing) ([A-Z)(\]}>][^'{]{0,30})$")
"""What the parser of queries says that a user understands."""


def parse(sql: str) -> Statement:
    """The one statement that `sql` holds; ParseError says what was expected and what was got."""
    return _Reader(sql).statement()


def split(sql: str) -> tuple[Span, ...]:
    """The places of the statements that semicolons separate in `sql`, with their comments.

    Raises ParseError for a string, a quoted name or a comment that is not closed.
    """
    tokens = tokenize(sql)
    ends = [t.start for t in tokens if t.token_type is TokenType.SEMICOLON]
    pieces = zip([0, *(end + 1 for end in ends)], [*ends, len(sql)], strict=True)
    return tuple(
        (start, end) for start, end in pieces if any(start <= t.start < end for t in tokens)
    )


class _Reader(Tokens):
    # -- statements --------------------------------------------------------------------------------

    def statement(self) -> Statement:
        if not self.tokens:
            raise self.fail(f"expected a statement ({', '.join(_STATEMENTS)}), got nothing")
        found = self._statement()
        if self.token is not None:
            if self.token.token_type is TokenType.SEMICOLON:
                raise self.fail("expected one statement, got several", hint="run them one by one")
            raise self.fail(f"expected the end of the statement, got {self.got()}")
        return found

    def _statement(self) -> Statement:
        first = self.word()
        if first == "EXPLAIN":
            self.at += 1
            verbose = self.accept("(")
            if verbose:
                self.expect("VERBOSE", "after EXPLAIN (")
                self.expect(")", "after EXPLAIN (VERBOSE")
            if self.word() not in ("TRAIN", "EVALUATE", "PREDICT"):
                raise self.fail(
                    f"expected TRAIN, EVALUATE or PREDICT after EXPLAIN, got {self.got()}"
                )
            explained = self._statement()
            assert isinstance(explained, TrainModel | EvaluateModel | PredictModel)
            return ExplainStatement(explained, self.sql, verbose)
        readers: dict[str, Callable[[], Statement]] = {
            "TRAIN": self._train,
            "EVALUATE": self._evaluate,
            "PREDICT": self._predict,
            "SHOW": self._show,
            "DESCRIBE": self._describe,
            "DROP": self._drop,
        }
        if first in readers:
            self.at += 1
            return readers[first]()
        if first in _RESERVED:
            raise self.fail(f"{first} is reserved for later and not built yet")
        near = nearest(first, (*_STATEMENTS, *_RESERVED))
        hint = f"did you mean {near}?" if near else None
        if first in _SQL:
            hint = "run SQL on a party's own connection; a federation has no tables of its own"
        raise self.fail(
            f"expected a statement ({', '.join(_STATEMENTS)}), got {self.got()}", hint=hint
        )

    def _train(self) -> TrainModel:
        replace = False
        if self.accept("OR"):
            self.expect("REPLACE", "after TRAIN OR")
            replace = True
        self.expect("MODEL", "after TRAIN")
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        if replace and if_not_exists:
            raise self.fail("OR REPLACE and IF NOT EXISTS exclude each other")
        name = self.name("the name of the model")
        self._clause("USING", "after the name of the model", ())
        kind = self.name("the kind of model")
        self._clause("TARGET", "after the kind of model", ("USING",))
        target = self._output("TARGET")
        weight = self._output("WEIGHT") if self.accept("WEIGHT") else None
        transforms = read_items(self, self._value) if self.accept("TRANSFORM") else ()
        options = self._options("WITH") if self.accept("WITH") else ()
        privacy = self._options("PRIVACY") if self.accept("PRIVACY") else None
        done = ["USING", "TARGET"]
        self._clause("FROM", "before the query", tuple(done), last=True)
        query, place = self._query()
        if self.word() in _TRAIN_CLAUSES[:-1]:
            raise self.fail(
                f"{self.word()} stands before FROM ( query ), not after it", hint=_TRAIN_FORM
            )
        lowered = Word(kind.lower(), kind.span)
        return TrainModel(
            name,
            lowered,
            target,
            weight,
            options,
            privacy,
            query,
            replace,
            if_not_exists,
            self.sql,
            place,
            transforms,
        )

    def _output(self, clause: str) -> Word:
        name = self.name(f"the {clause.lower()} column")
        if self.word() == ".":
            raise self.fail(
                f"{clause} names an output column of the query, without its table",
                hint=f"give it an alias in the query and write {clause} alias, "
                f"not {clause} {name}.…",
            )
        return name

    def _clause(self, word: str, where: str, done: tuple[str, ...], last: bool = False) -> None:
        """Read a keyword of TRAIN; where another clause stands, say the right order."""
        if self.accept(word):
            return
        got = self.word()
        if got in _TRAIN_CLAUSES:
            early = _TRAIN_CLAUSES.index(got) > _TRAIN_CLAUSES.index(word)
            if got in done:
                message = f"{got} is given twice"
            elif early:
                message = f"expected {word} {where}, got {got}"
            else:
                message = f"{got} is misplaced or given twice"
            raise self.fail(message, hint=f"the order of the clauses is {_TRAIN_FORM}")
        clauses = "WEIGHT, TRANSFORM, WITH, PRIVACY or FROM" if last else word
        near = nearest(got, _TRAIN_CLAUSES) if got else None
        raise self.fail(
            f"expected {clauses} {where}, got {self.got()}",
            hint=f"did you mean {near}?" if near else None,
        )

    def _evaluate(self) -> EvaluateModel:
        form = (
            "EVALUATE MODEL name [WITH (option = value, ...)] [PRIVACY (option = value, ...)] "
            "FROM ( query )"
        )
        self.expect("MODEL", "after EVALUATE")
        name = self.name("the name of the model")
        options = self._options("WITH") if self.accept("WITH") else ()
        privacy = self._options("PRIVACY") if self.accept("PRIVACY") else None
        given = bool(options) or privacy is not None
        self.expect("FROM", "before the query" if given else "after the name of the model", form)
        query, place = self._query()
        if self.word() == "PRIVACY":
            if privacy is not None:
                raise self.fail("PRIVACY is given twice", hint=form)
            self.at += 1
            privacy = self._options("PRIVACY")
        return EvaluateModel(name, privacy, query, self.sql, options, place)

    def _predict(self) -> PredictModel:
        form = (
            "PREDICT MODEL name [ID (party.table.column, ...)] [WITH (option = value, ...)] "
            "FROM ( query ) [INTO [OR REPLACE] party.table]"
        )
        self.expect("MODEL", "after PREDICT")
        name = self.name("the name of the model")
        identifiers: list[Path] = []
        if self.accept("ID"):
            self.expect("(", "after ID", form)
            identifiers.append(self._path("an identifier column", 2, 5))
            while self.accept(","):
                identifiers.append(self._path("an identifier column", 2, 5))
            self.expect(")", "after the identifier columns", form)
        options = self._options("WITH") if self.accept("WITH") else ()
        self.expect("FROM", "before the query", form)
        query, place = self._query()
        into, replace = None, False
        if self.accept("INTO"):
            replace = self.accept("OR")
            if replace:
                self.expect("REPLACE", "after INTO OR", form)
            into = self._path("a table", 2, 4)
        return PredictModel(
            name, tuple(identifiers), query, into, self.sql, options, replace, place
        )

    def _show(self) -> ShowModels:
        self.expect("MODELS", "after SHOW")
        return ShowModels(self.sql)

    def _describe(self) -> DescribeModel:
        self.expect("MODEL", "after DESCRIBE")
        return DescribeModel(self.name("the name of the model"), self.sql)

    def _drop(self) -> DropModel:
        self.expect("MODEL", "after DROP")
        if_exists = self.accept("IF", "EXISTS")
        return DropModel(self.name("the name of the model"), if_exists, self.sql)

    # -- parts -------------------------------------------------------------------------------------

    def _path(self, what: str, least: int, most: int) -> Path:
        words = [self.name(what)]
        while self.accept("."):
            words.append(self.name(f"a name after {'.'.join(words)}."))
        span = (words[0].span[0], words[-1].span[1])
        if not least <= len(words) <= most:
            form = "party.table.column or alias.column" if most == 5 else "party.table"
            hint = f"write alias.{words[0]}" if most == 5 and len(words) == 1 else None
            raise self.fail(
                f"expected {what} as {form}, got {'.'.join(words)}", hint=hint, span=span
            )
        return Path(tuple(str(word) for word in words), span)

    def _options(self, clause: str) -> tuple[Option, ...]:
        form = f"{clause} (option = value, ...)"
        self.expect("(", f"after {clause}", form)
        options = [self._option(form)]
        while self.accept(","):
            options.append(self._option(form))
        if not self.accept(")"):
            raise self.fail(f"expected , or ) after an option of {clause}, got {self.got()}")
        names = [option.name for option in options]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise self.fail(f"option {name} is given twice", span=name.span)
        return tuple(options)

    def _option(self, form: str) -> Option:
        written = self.name("the name of an option")
        self.expect("=", f"after {written}", form)
        start = self.span()[0]
        value = self._value(written)
        end = self.span(self.tokens[self.at - 1])[1]
        return Option(Word(written.lower(), written.span), value, (start, end))

    def _value(self, option: str) -> Value:
        token = self.token
        negative = self.accept("-")
        signed = negative or self.accept("+")
        number = self._digits()
        if number is not None:
            return _number(number, negative)
        if not signed and token is not None:
            if token.token_type is TokenType.STRING:
                self.at += 1
                return token.text
            constants: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
            if self.word() in constants:
                self.at += 1
                return constants[self.tokens[self.at - 1].text.upper()]
            if self.accept("["):
                return self._list(option)
            if self.accept("{"):
                return self._pairs(option)
        hint = None
        if token is not None and not signed and self.is_name(token):
            hint = f"text stands in single quotes: {option} = '{token.text}'"
        elif not signed and self.word() == "(":
            hint = f"a list stands in square brackets: {option} = [...]"
        raise self.fail(f"expected a value for option {option}, got {self.got()}", hint=hint)

    def _digits(self) -> str | None:
        """A number's text; the tokens of `.5` are a point and, right behind it, a number."""
        point = self.token if self.word() == "." else None
        place = self.at + (point is not None)
        number = self.tokens[place] if place < len(self.tokens) else None
        if number is None or number.token_type is not TokenType.NUMBER:
            return None
        if point is not None and (number.start != point.end + 1 or "." in number.text):
            return None
        self.at = place + 1
        return number.text if point is None else f".{number.text}"

    def _list(self, option: str) -> Value:
        values: list[Value] = []
        while not self.accept("]"):
            if values:
                self.expect(",", f"or ] in the list of option {option}")
            values.append(self._value(option))
        return tuple(values)

    def _pairs(self, option: str) -> Value:
        items: dict[str, Value] = {}
        while not self.accept("}"):
            if items:
                self.expect(",", f"or }} after a value of option {option}")
            place, key = self.span(), self._key(option)
            if key in items:
                raise self.fail(f"option {option} has the key '{key}' twice", span=place)
            self.expect(":", f"after the key '{key}' of option {option}")
            items[key] = self._value(option)
        return Pairs(tuple(items.items()))

    def _key(self, option: str) -> str:
        """A string, a quoted name, a number or a boolean, as text."""
        sign = "-" if self.accept("-") else ""
        token = self.token
        wanted = [TokenType.NUMBER] if sign else [TokenType.NUMBER, *QUOTED]
        if token is not None and token.token_type in wanted:
            self.at += 1
            number = token.token_type is TokenType.NUMBER
            return sign + (token.text.replace("_", "") if number else token.text)
        if not sign and self.word() in ("TRUE", "FALSE"):
            self.at += 1
            return self.tokens[self.at - 1].text.lower()
        raise self.fail(
            f"expected a key of option {option}, got {self.got()}",
            hint=f"{option} = {{'key': value, ...}}",
        )

    def _query(self) -> tuple[exp.Query, Span]:
        """The query between parentheses, and its place; its nodes have places in the whole text."""
        if self.word() != "(":
            raise self.fail(
                f"expected ( query ) after FROM, got {self.got()}",
                hint="FROM is followed by a query in parentheses: FROM ( SELECT ... )",
            )
        opening = self.token
        depth, start = 0, self.at + 1
        while self.token is not None:
            depth += {"(": 1, ")": -1}.get(self.word(), 0)
            self.at += 1
            if depth == 0:
                break
        if depth:
            raise self.fail("the parenthesis of FROM ( is not closed", span=self.span(opening))
        tokens = self.tokens[start : self.at - 1]
        if not tokens:
            raise self.fail("expected a query, got ()", span=self.span(opening))
        try:
            found = Dialect().parser().parse(tokens, self.sql)
        except SqlglotParseError as error:
            raise self._misparsed(error) from error
        if len(found) != 1 or not isinstance(found[0], exp.Query):
            span = self.span(tokens[0])
            raise self.fail(
                f"expected a query, got {self.sql[span[0] : span[1]]}",
                hint="write SELECT ... FROM ...; what else gives a table stands in FROM",
                span=span,
            )
        group_joins(found[0])
        return found[0], (self.span(opening)[1], self.span(self.tokens[self.at - 1])[0])

    def _misparsed(self, error: SqlglotParseError) -> ParseError:
        detail = error.errors[0] if error.errors else {}
        line, column = detail.get("line") or 1, detail.get("col") or 1
        end = sum(len(row) + 1 for row in self.sql.split("\n")[: line - 1]) + column
        near = [t for t in self.tokens if t.start < end <= t.end + 1]
        span = self.span(near[0]) if near else (end - 1, end)
        said = _EXPECTED.match(str(detail.get("description") or ""))
        got = self.sql[span[0] : span[1]].strip() or "the end"
        what = f"expected {said[1]}, got {got}" if said else f"{got} is not expected here"
        hint = "try it on a DuckDB connection; what DuckDB takes all the same may stand in a view "
        hint += "of the party"
        if got in ("{", "}"):
            hint = 'in Python, a text with {names} to fill in starts with f: f"..."'
        return self.fail(f"the query cannot be read: {what}", hint=hint, span=span)


def _number(text: str, negative: bool) -> int | float:
    digits = text.replace("_", "")
    value: int | float = int(digits) if digits.isdigit() else float(digits)
    return -value if negative else value
