"""The grammar of sqlfl's statements and of the items of TRANSFORM, on the tokens and the parser of
sqlglot's DuckDB dialect.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import nearest
from sqlfl.contract.request import ROLES
from sqlfl.contract.transforms import AUTO, COLUMN, FUNCTIONS
from sqlfl.options.diagnostics import LOOKS
from sqlfl.planner.grammar.clauses import Clauses
from sqlfl.planner.grammar.foreign import instead
from sqlfl.planner.grammar.spellings import respelled
from sqlfl.planner.grammar.statements import (
    ANALYZE,
    NO_ROWS,
    REHEARSED,
    VERBOSE,
    Argument,
    CheckQuery,
    CommentOnModel,
    CreateJoin,
    CreateStudy,
    CurvesOfModel,
    DescribeModel,
    DescribeTable,
    DropJoin,
    DropModel,
    DropStudy,
    EvaluateModel,
    ExplainStatement,
    ExportModel,
    ImportModel,
    Path,
    PredictModel,
    ResumeModel,
    ShowFeatures,
    ShowHistory,
    ShowJoins,
    ShowModels,
    ShowParties,
    ShowStudies,
    ShowTables,
    Span,
    Statement,
    TableUse,
    TrainModel,
    TransformItem,
    TuneModel,
    UseStudy,
    Value,
    WeightsOfModel,
    Word,
)
from sqlfl.planner.grammar.tokens import Tokens, tokenize

# -- items of TRANSFORM ----------------------------------------------------------------------------

_FORM = "TRANSFORM (function(column [, argument, ...]) [AS name], ...)"
_CALLED = tuple(name for name in FUNCTIONS if name != COLUMN)
_CONSTANTS = ("TRUE", "FALSE", "NULL")


def read_items(tokens: Tokens, value: Callable[[str], Value]) -> tuple[TransformItem, ...]:
    """Read the items after the word TRANSFORM; `value` reads a value at the tokens' place."""
    tokens.expect("(", "after TRANSFORM", _FORM)
    items = [_item(tokens, value)]
    while tokens.accept(","):
        items.append(_item(tokens, value))
    if not tokens.accept(")"):
        raise tokens.fail(
            f"expected AS, a comma or ) after an item of TRANSFORM, got {tokens.got()}", hint=_FORM
        )
    return tuple(items)


def _item(tokens: Tokens, value: Callable[[str], Value]) -> TransformItem:
    start = tokens.span()[0]
    first = tokens.name("a function or a column of TRANSFORM")
    function: Word | None = None
    columns: tuple[Word, ...] = (first,)
    arguments: tuple[Argument, ...] = ()
    if tokens.word() == "(":
        function = _function(tokens, first)
        tokens.accept("(")
        columns, arguments = _inside(tokens, value, function)
    elif first.lower() == AUTO and not _is_quoted(tokens):
        function, columns = Word(AUTO, first.span), ()
    elif tokens.word() == ".":
        raise tokens.fail(
            "TRANSFORM takes output columns of the query, without their table",
            hint=f"give it an alias in the query, and write it in place of {first}.…",
        )
    end = tokens.span(tokens.tokens[tokens.at - 1])[1]
    name = tokens.name("the name of what is made") if tokens.accept("AS") else None
    return TransformItem(function, columns, arguments, name, (start, end))


def _is_quoted(tokens: Tokens) -> bool:
    """Return whether the previous token is a quoted name, which is no function."""
    return tokens.sql[tokens.span(tokens.tokens[tokens.at - 1])[0]] == '"'


def _function(tokens: Tokens, name: Word) -> Word:
    folded = name.lower()
    if folded in _CALLED:
        return Word(folded, name.span)
    near = nearest(folded, _CALLED)
    raise tokens.fail(
        f"TRANSFORM has no function {name}",
        hint=f"did you mean {near}?"
        if near
        else f"there are {', '.join(_CALLED)}; what "
        "a row's own values say may be computed in the query: SELECT expression AS name",
        span=name.span,
    )


def _inside(
    tokens: Tokens, value: Callable[[str], Value], function: Word
) -> tuple[tuple[Word, ...], tuple[Argument, ...]]:
    columns: list[Word] = []
    arguments: list[Argument] = []
    if function == AUTO and tokens.word(1) == "=>":
        arguments.append(_argument(tokens, value, function))
    elif tokens.accept("("):
        columns.append(_column(tokens, function))
        while tokens.accept(","):
            columns.append(_column(tokens, function))
        tokens.expect(")", f"after the columns of {function}")
    else:
        columns.append(_column(tokens, function))
    while tokens.accept(","):
        if _is_column(tokens) and not arguments:
            columns.append(_column(tokens, function))
        else:
            arguments.append(_argument(tokens, value, function))
    hint = "what is computed of columns stands in the query: SELECT expression AS name"
    if tokens.word() == "=":
        hint = "an argument is written name => value"
    tokens.expect(")", f"after the arguments of {function}", hint)
    return tuple(columns), tuple(arguments)


def _is_column(tokens: Tokens) -> bool:
    token = tokens.token
    named = tokens.word(1) == "=>"
    plain = token is not None and tokens.is_name(token) and tokens.word() not in _CONSTANTS
    return plain and not named


def _column(tokens: Tokens, function: Word) -> Word:
    column = tokens.name(f"a column of {function}")
    if tokens.word() == "(":
        raise tokens.fail(
            "functions of TRANSFORM do not stand in one another",
            hint=f"compute {column}(...) in the query, and name the column here",
            span=column.span,
        )
    if tokens.word() == ".":
        raise tokens.fail(
            f"{function} takes an output column of the query, without its table",
            hint=f"give it an alias in the query, and write it in place of {column}.…",
        )
    return column


def _argument(tokens: Tokens, value: Callable[[str], Value], function: Word) -> Argument:
    name = None
    if tokens.word(1) == "=>":
        written = tokens.name(f"the name of an argument of {function}")
        name = Word(written.lower(), written.span)
        tokens.accept("=>")
    token = tokens.token
    starts = token is not None and (
        token.token_type in (TokenType.NUMBER, TokenType.STRING)
        or tokens.word() in (*_CONSTANTS, "[", "-", "+", ".")
    )
    if not starts:
        raise tokens.fail(f"expected an argument of {function}, got {tokens.got()}", hint=_FORM)
    start = tokens.span()[0]
    argument = value(name or str(function))
    return Argument(name, argument, (start, tokens.span(tokens.tokens[tokens.at - 1])[1]))


# -- statements ------------------------------------------------------------------------------------

_QUALITY = tuple(look.upper() for look in LOOKS)
STATEMENTS = (
    *(
        "CHECK",
        "TRAIN",
        "TUNE",
        "EXPLAIN",
        "EVALUATE",
        "PREDICT",
        "SHOW",
        "DESCRIBE",
        "DROP",
        "RESUME",
        "HISTORY",
        "FEATURES",
    ),
    *_QUALITY,
    *("CONTRIBUTIONS", "SKEW", "VALIDATE", "WEIGHTS", "CURVES", "EXPORT", "IMPORT", "COMMENT"),
    *("CREATE", "USE"),
)
_OF_QUERY = ("WHERE", "GROUP BY", "HAVING", "QUALIFY", "ORDER BY", "LIMIT", "JOIN", "UNION")
_OWNERS = ("GRANT", "REVOKE")
_OWNER_LISTS = ("POLICIES", "GRANTS", "REQUESTS", "REQUEST", "BUDGETS", "DISCLOSURES")
"""Lists that an owner's database has, and no federation."""
_OBJECTS = {"CREATE": "MODEL, JOIN or STUDY", "USE": "STUDY or NO STUDY"}
_NO_TABLES = "run SQL on a party's own connection; a federation has no tables of its own"
_FIRST = (
    "SHOW TABLES lists tables; TRAIN MODEL name USING kind TARGET column FROM (SELECT ...) trains "
    "a model"
)
_SQL = (
    "SELECT",
    "WITH",
    "FROM",
    "VALUES",
    "INSERT",
    "UPDATE",
    "DELETE",
    "CREATE",
    "ALTER",
    "COPY",
    "PRAGMA",
    "CALL",
    "INSTALL",
    "SET",
    "TABLE",
    "PIVOT",
    "MERGE",
    "TRUNCATE",
    "VACUUM",
    "BEGIN",
    "COMMIT",
)
_TRAIN_CLAUSES = (
    *("USING", "TARGET", "WEIGHT", "OFFSET", "EXPOSURE", "TRANSFORM", "WITH", "PRIVACY", "FROM"),
)
_TRAIN_FORM = (
    "TRAIN MODEL name USING kind TARGET column "
    "[WEIGHT column] [OFFSET column | EXPOSURE column] "
    "[TRANSFORM [ONLY] (function(column), ...)] [WITH (option = value, ...)] "
    "[PRIVACY (option = value, ...)] FROM ( query )"
)


def parse(sql: str) -> Statement:
    """Return the one statement in `sql`. Raise ParseError with the expected and the actual text."""
    return _Reader(sql).statement()


def split(sql: str) -> tuple[Span, ...]:
    """Return the places of the statements that semicolons separate in `sql`, with their comments.
    Raise ParseError for an unclosed string, quoted name or comment.
    """
    tokens = tokenize(sql)
    ends = [t.start for t in tokens if t.token_type is TokenType.SEMICOLON]
    pieces = zip([0, *(end + 1 for end in ends)], [*ends, len(sql)], strict=True)
    return tuple(
        (start, end) for start, end in pieces if any(start <= t.start < end for t in tokens)
    )


class _Reader(Clauses):
    # -- statements --------------------------------------------------------------------------------

    def statement(self) -> Statement:
        if not self.tokens:
            message = f"expected a statement ({', '.join(STATEMENTS)}), got nothing"
            raise self.fail(message, hint=_FIRST)
        self.tokens = respelled(self.tokens, self.sql)
        read = self._statement()
        if self.token is not None:
            if self.token.token_type is TokenType.SEMICOLON:
                raise self.fail("expected one statement, got several", hint="run them one by one")
            within = f"{self.word()} belongs in the query, before its closing parenthesis"
            raise self.fail(
                f"expected the end of the statement, got {self.got()}",
                hint=within if self.word() in _OF_QUERY else None,
            )
        return read

    def _statement(self) -> Statement:
        first = self.word()
        if first == "EXPLAIN":
            return self._explain()
        readers: dict[str, Callable[[], Statement]] = {
            "CHECK": self._check,
            **dict.fromkeys(("TRAIN", "TUNE"), self._train),
            "EVALUATE": self._evaluate,
            "PREDICT": self._predict,
            "SHOW": self._show,
            "DESCRIBE": self._describe,
            "DROP": self._drop,
            "RESUME": self._resume,
            **dict.fromkeys(("HISTORY", "FEATURES"), self._part_of_model),
            **dict.fromkeys(_QUALITY, self._quality),
            "CONTRIBUTIONS": self._contributions,
            "SKEW": self._skew,
            "VALIDATE": self._skew,
            "WEIGHTS": self._weights,
            "CURVES": self._curves,
            "EXPORT": self._export,
            "IMPORT": self._import,
            "COMMENT": self._comment,
        }
        if first == "CREATE" and self.makes_join():
            self.at += 1
            return self._create()
        if self.accept("CREATE", "STUDY"):
            return read_study(self, replace=False)
        if self.accept("CREATE", "OR", "REPLACE", "STUDY"):
            return read_study(self, replace=True)
        if self.accept("USE", "NO", "STUDY"):
            return UseStudy(None, self.sql)
        if self.accept("USE", "STUDY"):
            return UseStudy(self.name("the name of the study"), self.sql)
        if first in readers:
            self.at += 1
            return readers[first]()
        if first in _OBJECTS:
            hint = instead(self.tokens[self.at :]) or (_NO_TABLES if first in _SQL else None)
            self.at += 1
            message = f"expected {_OBJECTS[first]} after {first}, got {self.got()}"
            raise self.fail(message, hint=hint)
        if first in _OWNERS:
            raise self.fail(
                f"{first} is a statement of a table's owner, and not of a federation's",
                hint="the owner runs it: sqlfl.owner(connection_or_path).sql(...)",
            )
        near = nearest(first, STATEMENTS)
        hint = instead(self.tokens[self.at :]) or (f"did you mean {near}?" if near else None)
        if hint is None and first in _SQL:
            hint = _NO_TABLES
        raise self.fail(
            f"expected a statement ({', '.join(STATEMENTS)}), got {self.got()}",
            hint=hint or _FIRST,
        )

    def makes_join(self) -> bool:
        """Return whether the statement is CREATE JOIN, among the others that begin with CREATE."""
        return "JOIN" in (self.word(1), self.word(3) if self.word(1) == "OR" else "")

    def _explain(self) -> ExplainStatement:
        self.at += 1
        asked = {ANALYZE} if self.accept(ANALYZE) else self._asked()
        planned = (
            *(*REHEARSED, "EVALUATE", "PREDICT"),
            *(*_QUALITY, "CONTRIBUTIONS", "SKEW", "VALIDATE"),
        )
        joins = self.word() == "CREATE" and self.makes_join() and ANALYZE not in asked
        if not joins and self.word() not in (REHEARSED if ANALYZE in asked else planned):
            of = "EXPLAIN ANALYZE" if ANALYZE in asked else "EXPLAIN"
            known = REHEARSED if ANALYZE in asked else (*planned, "CREATE JOIN")
            hint = NO_ROWS if ANALYZE in asked and self.word() in planned else None
            if self.word() == "CREATE" and self.makes_join():
                hint = "EXPLAIN CREATE JOIN shows its plan"
            elif self.word() in STATEMENTS and self.word() not in planned:
                hint = f"{self.word()} has no plan: run it without EXPLAIN"
            raise self.fail(
                f"expected one of {', '.join(known)} after {of}, got {self.got()}",
                hint=hint,
            )
        explained = self._statement()
        assert isinstance(
            explained, TrainModel | EvaluateModel | PredictModel | CheckQuery | CreateJoin
        )
        return ExplainStatement(explained, self.sql, VERBOSE in asked, ANALYZE in asked)

    def _asked(self) -> set[str]:
        """The options in parentheses."""
        words: set[str] = set()
        if not self.accept("("):
            return words
        while not words or self.accept(","):
            word = self.word()
            if word not in (VERBOSE, ANALYZE) or word in words:
                raise self.fail(
                    f"expected {VERBOSE} or {ANALYZE} in EXPLAIN (...), got {self.got()}"
                )
            words.add(word)
            self.at += 1
        self.expect(")", "after the options of EXPLAIN")
        return words

    def _train(self) -> TrainModel:
        verb, replace = self.word(-1), False
        if self.accept("OR"):
            self.expect("REPLACE", f"after {verb} OR")
            replace = True
        self.expect("MODEL", f"after {verb}", f"write {verb} MODEL, then the name of the model")
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        if replace and if_not_exists:
            raise self.fail("OR REPLACE and IF NOT EXISTS exclude each other")
        name = self.name("the name of the model")
        self._clause("USING", "after the name of the model", ())
        kind = self.name("the kind of model")
        self._clause("TARGET", "after the kind of model", ("USING",))
        target = self._output("TARGET")
        weight = self._output("WEIGHT") if self.accept("WEIGHT") else None
        exposure = self.word() == "EXPOSURE"
        clause = "EXPOSURE" if exposure else "OFFSET"
        offset = self._output(clause) if self.accept(clause) else None
        if offset is not None and self.word() in ("OFFSET", "EXPOSURE"):
            raise self.fail(
                "OFFSET and EXPOSURE exclude each other",
                hint="an exposure is an offset by its logarithm: OFFSET column, computed as "
                "ln(exposure) + offset in the query",
            )
        transforms: tuple[TransformItem, ...] = ()
        only = False
        if self.accept("TRANSFORM"):
            only = self.accept("ONLY")
            transforms = read_items(self, self.value)
        options = self.options("WITH") if self.accept("WITH") else ()
        privacy = self.options("PRIVACY") if self.accept("PRIVACY") else None
        done = ["USING", "TARGET"]
        self._clause("FROM", "before the query", tuple(done), last=True)
        query, place, join = self.source()
        if self.word() in _TRAIN_CLAUSES[:-1]:
            raise self.fail(
                f"{self.word()} stands before FROM ( query ), not after it",
                hint=_TRAIN_FORM.replace("TRAIN", verb, 1),
            )
        if verb == "TUNE" and privacy is not None:
            raise self.fail(
                "TUNE takes no PRIVACY: each of its fits would release of the same rows anew",
                hint="choose options on public data, or TRAIN with PRIVACY",
            )
        lowered = Word(kind.lower(), kind.span)
        made = TuneModel if verb == "TUNE" else TrainModel
        return made(
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
            only,
            offset,
            exposure,
            join,
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
        clauses = "WEIGHT, OFFSET, TRANSFORM, WITH, PRIVACY or FROM" if last else word
        near = nearest(got, _TRAIN_CLAUSES) if got else None
        hint = f"did you mean {near}?" if near else f"the order of the clauses is {_TRAIN_FORM}"
        if got == "-":
            hint = 'a name with - in it stands in double quotes: "my-model"'
        raise self.fail(f"expected {clauses} {where}, got {self.got()}", hint=hint)

    def _evaluate(self) -> EvaluateModel:
        form = (
            "EVALUATE MODEL name [WITH (option = value, ...)] [PRIVACY (option = value, ...)] "
            "FROM ( query )"
        )
        self.expect("MODEL", "after EVALUATE", form)
        name = self.name("the name of the model")
        options = self.options("WITH") if self.accept("WITH") else ()
        privacy = self.options("PRIVACY") if self.accept("PRIVACY") else None
        given = bool(options) or privacy is not None
        self.expect("FROM", "before the query" if given else "after the name of the model", form)
        query, place, join = self.source()
        if self.word() == "PRIVACY":
            if privacy is not None:
                raise self.fail("PRIVACY is given twice", hint=form)
            self.at += 1
            privacy = self.options("PRIVACY")
        return EvaluateModel(name, privacy, query, self.sql, options, place, join=join)

    def _check(self) -> CheckQuery:
        form = "CHECK [USING kind] [TARGET column] [WITH (option = value, ...)] FROM ( query )"
        kind = self.name("the kind of model") if self.accept("USING") else None
        target = self._output("TARGET") if self.accept("TARGET") else None
        options = self.options("WITH") if self.accept("WITH") else ()
        if self.word() in ("MODEL", "OF"):
            raise self.fail("CHECK is of a query, not of a model", hint=form)
        if self.word() in ("WEIGHT", "OFFSET", "EXPOSURE", "TRANSFORM", "PRIVACY"):
            raise self.fail(f"CHECK takes no {self.word()}: it is of the query alone", hint=form)
        if kind or target or options or self.word() != "(":
            self.expect("FROM", "before the query", form)
        query, place, join = self.source()
        lowered = None if kind is None else Word(kind.lower(), kind.span)
        return CheckQuery(lowered, target, options, query, self.sql, place, join)

    def _of_model(self, look: str, form: str) -> Word:
        self.expect("OF", f"after {look}", form)
        self.expect("MODEL", f"after {look} OF", form)
        return self.name("the name of the model")

    def _quality(self) -> EvaluateModel:
        look = self.word(-1)
        can = LOOKS[look.lower()].at
        at = "[AT threshold] " if can else ""
        form = f"{look} OF MODEL name {at}[WITH (option = value, ...)] FROM ( query )"
        name = self._of_model(look, form)
        threshold = None
        if self.word() == "AT":
            if not can:
                raise self.fail(f"{look} takes no AT", hint=form)
            threshold = self._threshold(form)
        options = self.options("WITH") if self.accept("WITH") else ()
        if self.word() == "PRIVACY":
            raise self.fail(
                f"{look} is of labels in clear: of noised ones it would be another model's",
                hint="EVALUATE takes PRIVACY",
            )
        given = bool(options) or threshold is not None
        self.expect("FROM", "before the query" if given else "after the name of the model", form)
        query, place, join = self.source()
        look = look.lower()
        return EvaluateModel(name, None, query, self.sql, options, place, look, threshold, join)

    def _threshold(self, form: str) -> float:
        """Read the threshold, a probability."""
        self.at += 1
        place = self.span()
        text = self.digits()
        number = -1.0 if text is None else float(self.checked_number(text, False, place[0]))
        if not 0.0 <= number <= 1.0:
            raise self.fail(
                f"expected a probability from 0 to 1 after AT, got {self.sql[slice(*place)]}",
                hint=form,
                span=place,
            )
        return number

    def _predict(self) -> PredictModel:
        form = (
            "PREDICT MODEL name [ID (party.table.column, ...)] [WITH (option = value, ...)] "
            "FROM ( query ) [INTO [OR REPLACE] party.table]"
        )
        self.expect("MODEL", "after PREDICT", form)
        name = self.name("the name of the model")
        identifiers = self._identifiers(form)
        options = self.options("WITH") if self.accept("WITH") else ()
        self.expect("FROM", "before the query", form)
        query, place, join = self.source()
        into, replace = None, False
        if self.accept("INTO"):
            replace = self.accept("OR")
            if replace:
                self.expect("REPLACE", "after INTO OR", form)
            into = self.path("a table", 2, 4)
        return PredictModel(
            name, identifiers, query, into, self.sql, options, replace, place, join=join
        )

    def _contributions(self) -> PredictModel:
        look = self.word(-1)
        form = (
            f"{look} OF MODEL name [ID (party.table.column, ...)] [WITH (option = value, ...)] "
            "FROM ( query )"
        )
        name = self._of_model(look, form)
        identifiers = self._identifiers(form)
        options = self.options("WITH") if self.accept("WITH") else ()
        self.expect("FROM", "before the query", form)
        query, place, join = self.source()
        if self.word() == "INTO":
            raise self.fail(f"{look} makes no table", hint="PREDICT takes INTO")
        return PredictModel(
            name, identifiers, query, None, self.sql, options, False, place, look.lower(), join
        )

    def _skew(self) -> PredictModel:
        """VALIDATE may stand before SKEW."""
        if self.word(-1) == "VALIDATE":
            self.expect("SKEW", "after VALIDATE", "VALIDATE SKEW OF MODEL name FROM ( query )")
        form = "SKEW OF MODEL name [WITH (option = value, ...)] FROM ( query )"
        name = self._of_model("SKEW", form)
        options = self.options("WITH") if self.accept("WITH") else ()
        self.expect("FROM", "before the query", form)
        query, place, join = self.source()
        return PredictModel(name, (), query, None, self.sql, options, False, place, "skew", join)

    def _identifiers(self, form: str) -> tuple[Path, ...]:
        paths: list[Path] = []
        if self.accept("ID"):
            self.expect("(", "after ID", form)
            paths.append(self.path("an identifier column", 2, 5))
            while self.accept(","):
                paths.append(self.path("an identifier column", 2, 5))
            self.expect(")", "after the identifier columns", form)
        return tuple(paths)

    def _weights(self) -> WeightsOfModel:
        look = self.word(-1)
        return WeightsOfModel(self._of_model(look, f"{look} OF MODEL name"), self.sql)

    def _curves(self) -> CurvesOfModel:
        name = self._of_model("CURVES", "CURVES OF MODEL name [FEATURE feature]")
        feature = self.name("the name of a feature") if self.accept("FEATURE") else None
        return CurvesOfModel(name, feature, self.sql)

    def _export(self) -> ExportModel:
        form = "EXPORT MODEL name TO 'folder' [WITH (formats = ['safetensors', 'onnx', 'sql'])]"
        self.expect("MODEL", "after EXPORT", form)
        name = self.name("the name of the model")
        self.expect("TO", "after the name of the model", form)
        folder = self._folder(form)
        options = self.options("WITH") if self.accept("WITH") else ()
        return ExportModel(name, folder, options, self.sql)

    def _import(self) -> ImportModel:
        form = "IMPORT [OR REPLACE] MODEL name FROM 'folder'"
        replace = self.accept("OR")
        if replace:
            self.expect("REPLACE", "after IMPORT OR", form)
        self.expect("MODEL", "after IMPORT", form)
        name = self.name("the name of the model")
        self.expect("FROM", "after the name of the model", form)
        return ImportModel(name, self._folder(form), replace, self.sql)

    def _comment(self) -> CommentOnModel:
        form = "COMMENT ON MODEL name IS 'text'"
        self.expect("ON", "after COMMENT", form)
        self.expect("MODEL", "after COMMENT ON", form)
        name = self.name("the name of the model")
        self.expect("IS", "after the name of the model", form)
        if self.accept("NULL"):
            return CommentOnModel(name, "", self.sql)
        token = self.token
        if token is None or token.token_type is not TokenType.STRING:
            raise self.fail(f"expected a text in single quotes, got {self.got()}", hint=form)
        self.at += 1
        return CommentOnModel(name, str(token.text), self.sql)

    def _folder(self, form: str) -> str:
        token = self.token
        if token is None or token.token_type is not TokenType.STRING:
            raise self.fail(f"expected a folder in single quotes, got {self.got()}", hint=form)
        self.at += 1
        return str(token.text)

    def _resume(self) -> ResumeModel:
        self.expect("MODEL", "after RESUME", "RESUME MODEL name")
        return ResumeModel(self.name("the name of the model"), self.sql)

    def _drop(self) -> DropModel | DropJoin | DropStudy:
        if self.accept("JOIN"):
            if_exists = self.accept("IF", "EXISTS")
            return DropJoin(self.name("the name of the join"), if_exists, self.sql)
        if self.accept("STUDY"):
            if_exists = self.accept("IF", "EXISTS")
            return DropStudy(self.name("the name of the study"), if_exists, self.sql)
        form = "DROP MODEL [IF EXISTS] name; DROP JOIN and DROP STUDY have the same form"
        self.expect("MODEL", "after DROP", form)
        if_exists = self.accept("IF", "EXISTS")
        return DropModel(self.name("the name of the model"), if_exists, self.sql)

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
            elif self.word(1) == "OF":
                hint = f"write {self.word()} OF MODEL name, without SHOW"
            elif self.word() in _OWNER_LISTS:
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

    def _create(self) -> CreateJoin:
        form = "CREATE [OR REPLACE] JOIN name AS ( query )"
        replace = self.accept("OR")
        if replace:
            self.expect("REPLACE", "after CREATE OR", form)
        self.expect("JOIN", "after CREATE OR REPLACE" if replace else "after CREATE", form)
        name = self.name("the name of the join")
        self.expect("AS", "after the name of the join", form)
        query, place = self.query("AS")
        return CreateJoin(name, query, replace, self.sql, place)


# Parser of CREATE STUDY.

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
    role = next((known_role for known_role in ROLES if reader.accept(known_role.upper())), None)
    if role is None:
        known = [known_role.upper() for known_role in ROLES]
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
