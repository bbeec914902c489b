"""Statements that nobody meant: those of a corpus with characters, words and halves mixed up.

python -m tests.mutated COUNT SEED [files | owner]

Hands COUNT of them to a federation, as text or as the bytes of files, and prints a line of JSON:
how many ended how, and those that ended otherwise than in an answer or an error of sqlfl's.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import json
import pathlib
import random
import re
import sys
import traceback
import unicodedata
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import sqlfl

CORPUS = (
    "TRAIN MODEL m USING logistic_regression TARGET b WITH (l2 = 0.1, epochs = 3) "
    "FROM (SELECT t.x, u.z, t.b FROM a.t t JOIN b.u u ON t.k = u.k WHERE u.g <> 'it''s' -- why\n)",
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WEIGHT w TRANSFORM (log(x), "
    "one_hot(g)) WITH (class_weight = {'a': 1.5, 'b': .5}, seed = 7) PRIVACY (epsilon = 1, "
    "clip = 1) FROM (WITH s AS (SELECT k, x, x + 1 AS y, 1 AS w FROM a.t) "
    "SELECT s.x, u.g, s.y, s.w FROM s LEFT JOIN b.u u USING (k))",
    "TUNE MODEL m USING softmax_regression TARGET g WITH (l2 = [0.1, 1e-3], folds = 3) "
    "FROM (SELECT t.x, u.g FROM a.t t JOIN b.u u ON t.k = u.k AND t.x BETWEEN -1 AND 1)",
    "EVALUATE MODEL old FROM (SELECT t.x, u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k)",
    "PREDICT MODEL old ID (a.t.id, u.k) FROM (SELECT t.x, u.z FROM a.t t JOIN b.u u ON t.k = u.k)",
    "CONFUSION OF MODEL old AT 0.5 FROM (SELECT x, y, 1.0 AS z FROM a.t)",
    "CHECK USING linear_regression TARGET y WITH (min_cell = 4) FROM (SELECT x, k AS y FROM a.t)",
    "EXPLAIN (VERBOSE) TRAIN MODEL m USING mlp_regressor TARGET y WITH (hidden = [8, 4]) FROM "
    "(SELECT CASE WHEN x > 0 THEN [x][1] ELSE {'a': 1}.a END AS x, CAST(k AS DOUBLE) AS y FROM a.t "
    "UNION ALL SELECT z, k::DOUBLE FROM b.u WHERE g IN ('g1', E'\\x41') OR g LIKE 'g%')",
    "SHOW MODELS; SHOW PARTIES; DESCRIBE TABLE a.t",
    "INFERENCE OF MODEL old FROM (SELECT t.x, u.z, t.y FROM a.t t, b.u u WHERE t.k = u.k)",
    "DROP MODEL IF EXISTS other; COMMENT ON MODEL old IS 'a ''b'' c'; HISTORY OF MODEL old",
    "CREATE MODEL m OPTIONS (model_type = 'linear_reg', input_label_cols = ['y']) AS "
    "SELECT x, x AS y FROM a.t",
    "EXPORT MODEL old TO 'nowhere/at/all.onnx'; IMPORT MODEL n FROM 'nowhere.json'",
    "WEIGHTS OF MODEL old; FEATURES OF MODEL old; SKEW OF MODEL old FROM (SELECT x, 1.0 AS z "
    "FROM a.t)",
    "PREDICT MODEL old FROM (SELECT list_sum(list_transform([x], lambda v: v + 1)) AS x, "
    "row_number() OVER () AS z FROM (SELECT DISTINCT x FROM a.t) q) INTO a.out",
    "CREATE OR REPLACE JOIN j AS (SELECT t.id, t.x, u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k); "
    "EVALUATE MODEL old FROM j; SHOW JOINS; DROP JOIN IF EXISTS j",
    "CREATE STUDY s PURPOSE 'it''s why' FOR TRAIN (x, *), JOIN (k) ON a.t AND TRAIN (z), JOIN (k) "
    "ON b.u WITH (runs = 20, until = '2030-06-30', epsilon = 1); USE STUDY s; SHOW STUDIES; "
    "USE NO STUDY; DROP STUDY IF EXISTS s",
    "CURVES OF MODEL old FEATURE x; CURVES OF MODEL old; SHOW TABLES; SHOW JOINS; HELP TRAIN",
    "IMPORTANCE OF MODEL old WITH (repeats = 2, seed = 3, metric = 'r2') FROM (SELECT t.x, u.z, "
    "t.y FROM a.t t JOIN b.u u ON t.k = u.k AND t.x BETWEEN u.z - 7 AND u.z + 7)",
    "CONTRIBUTIONS OF MODEL old ID (a.t.id) WITH (features = true) FROM (SELECT t.x, u.z FROM a.t "
    "t ASOF JOIN b.u u ON t.k >= u.k)",
    "METRICS OF MODEL old FROM (SELECT x, 1.0 AS z, y FROM a.t); RESIDUALS OF MODEL old WITH (bins "
    "= 5) FROM (SELECT x, 1.0 AS z, y FROM a.t); ROC OF MODEL old FROM (SELECT 1); CALIBRATION OF "
    "MODEL old FROM (FROM a.t)",
    "EXPLAIN ANALYZE TRAIN MODEL m USING lasso TARGET y WITH (columns = 1) FROM (SELECT t.x, u.z, "
    "t.y FROM a.t t LEFT JOIN b.u u ON abs(t.k - u.k) <= 1); RESUME MODEL m; EXPLAIN CREATE JOIN j "
    "AS (FROM a.t)",
    "INFERENCE OF MODEL old WITH (robust = true, base = {'g': 'g1'}, confidence = 0.9) FROM "
    "(SELECT t.x, u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k)",
    "SELECT * FROM ML.EVALUATE(MODEL old, (SELECT x, 1.0 AS z, y FROM a.t)); GRANT TRAIN (x) ON t "
    "TO 'me' UNDER p; PREPARE q AS SELECT ?; BEGIN; COPY a.t TO 'x.csv'",
)
OWNERS = (
    "CREATE OR REPLACE TRAINING POLICY p WITH (min_rows = 20, epsilon = 2, delta = 1e-6, per = "
    "'365 days', weights = 'never', approval = 'first_time'); SHOW POLICIES",
    "GRANT TRAIN (x, y), JOIN (k), LABEL (b), KEY (id) ON t TO 'acme' UNDER p UNTIL DATE "
    "'2030-06-30'; SHOW GRANTS",
    "REVOKE ALL ON t FROM 'acme' AND MODELS; REVOKE STUDY s FROM 'acme' BECAUSE 'it''s done'",
    "APPROVE REQUEST 17; REFUSE REQUEST 17 BECAUSE 'no'; SHOW REQUESTS; SHOW REQUEST 17",
    "SHOW STUDIES; SHOW BUDGETS; SHOW DISCLOSURES; DROP TRAINING POLICY IF EXISTS p",
)
KEYWORDS = (
    *("TRAIN", "TUNE", "CHECK", "EVALUATE", "PREDICT", "EXPLAIN", "CREATE", "DROP", "SHOW", "USE"),
    *("MODEL", "JOIN", "STUDY", "POLICY", "REQUEST", "USING", "TARGET", "WEIGHT", "OFFSET", "WITH"),
    *("TRANSFORM", "PRIVACY", "FROM", "INTO", "ID", "OF", "ON", "FOR", "PURPOSE", "FEATURE", "TO"),
    *("UNDER", "UNTIL", "BECAUSE", "AND", "OR", "REPLACE", "IF", "EXISTS", "NOT", "NO", "ANALYZE"),
    *("CURVES", "WEIGHTS", "METRICS", "ROC", "SKEW", "HISTORY", "COMMENT", "EXPORT", "IMPORT"),
)
VALUES: tuple[object, ...] = (
    *(None, True, 1, -1, 10**400, 0.5, float("nan"), float("-inf"), 1e308, 1 + 2j, "", "it's"),
    *("\0", "\ud800", "x" * 70_000, "\U0001f600", b"\xff", bytearray(b"a"), [], [1, "a"], [[]], ()),
    *({}, {"a": 1}, {1: 2}, {"a": {"b": [None]}}, {1, 2}, range(3), object(), int, len, ...),
    *(datetime.date(2024, 1, 1), datetime.datetime.max, datetime.time(1), datetime.timedelta(1)),
    *(
        decimal.Decimal("1e-400"),
        decimal.Decimal("NaN"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=1),
    ),
    *(np.float32(1.5), np.int8(1), np.array([1.0, np.nan]), np.array(1), np.datetime64("NaT")),
    *(
        pathlib.Path("a"),
        pa.scalar(1),
        pa.array([1]),
        iter([1]),
        Exception("x"),
        "a; DROP MODEL old",
    ),
)
CHARACTERS = (
    *"'\"`()[]{}<>=!~@#$%^&*-+/\\|,.;:?_ \t\n\r0123456789eExXnN",
    *"‘’“”–—−\u00a0\u200b\u200d\u2028\ufefféß名²½１\ud800\udce9\0\x1a\x7f\U0001f600",
)
WORDS = (
    *("SELECT", "FROM", "WHERE", "AND", "NOT", "NULL", "UNION ALL", "WITH", "AS", "IN", "EXISTS"),
    *("1e", "1e3.5", "0x1F", "1_000", "9" * 40, "9" * 5000, "1e999", "-", "--", "/*", "*/", "''"),
    *("$1", "$x", "?", "$$", "::", "->", "::INTEGER[]", "TARGET", "MODEL", "OVER ()", "LIMIT 1"),
    *(
        "(SELECT 1)",
        "ANY ([1])",
        "*",
        "* EXCLUDE (x)",
        "COLUMNS(*)",
        "x'41'",
        "b'01'",
        "INTERVAL 1",
    ),
    *("TABLESAMPLE 5%", "PIVOT", "lambda x: x", "{'a': 1}", "MAP {1: 2}", "DATE '2024-01-01'"),
)
NAMES = (
    *(
        "x" * 300,
        "x" * 70_000,
        '"' + "y" * 70_000 + '"',
        '"a""b"',
        '""',
        "é",
        "名前",
        "𝒳𝓎",
        "😀",
        "\u0301",
    ),
    *("sqlfl_present", "main.t", "a.main.t.x", '"a.t"', "select", '"select"', "_", "a" * 63 + "ß"),
)
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that steer a terminal, or that nobody sees."""
SEEN = {"\n", "\t", "\u200c", "\u200d"}
DEEP = ("(", "NOT ", "- ", "[", "CASE WHEN ", "SELECT * FROM (", "/*", "{'a': ", "1 + ", "x.", "f(")
"""Each alone, and very often."""
LONGEST = 200_000
"""Characters of a changed text. Beyond, what is repeated twice makes millions, which take long."""


def statement(chance: random.Random) -> str:
    """A statement of the corpus, changed in up to four places."""
    return changed(chance.choice(CORPUS), chance)


def owners(chance: random.Random) -> str:
    """A statement of an owner, changed likewise."""
    return changed(chance.choice(OWNERS), chance)


def values(text: str, chance: random.Random) -> tuple[str, object]:
    """The text with parameters for some of its literals and names, and values, of which most fit;
    None for no parameters."""
    count = chance.choice((0,) * 9 + (1, 2, 3))
    marks = chance.choice(("?", "$1", "$x", "$2", "$é", "$"))
    for _ in range(count):
        places = [found.span() for found in re.finditer(r"\w+|'[^']*'", text)]
        if places:
            start, end = chance.choice(places)
            text = text[:start] + marks + text[end:]
    if not count:
        return text, None if chance.randrange(30) else chance.choice(VALUES)
    given = [chance.choice(VALUES) for _ in range(count - chance.choice((0, 0, 0, 1)))]
    named = dict(zip(("x", "1", "é"), given, strict=False))
    return text, chance.choice((given, tuple(given), named, *given))


def changed(text: str, chance: random.Random) -> str:
    """The text, changed in up to four places."""
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        text = chance.choice(_CHANGES)(text, chance)[:LONGEST]
    return text


def file(chance: random.Random) -> bytes:
    """The bytes of a file with a statement, of which some are changed."""
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252")
    data = bytearray(statement(chance).encode(chance.choice(encodings), errors="ignore"))
    for _ in range(chance.choice((0, 0, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        how = chance.randrange(3)
        data[at : at + (how > 0)] = bytes([chance.randrange(256)]) if how < 2 else b""
    return bytes(data)


def _character(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(CHARACTERS) + text[at + chance.randrange(3) :]


def _cut(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at + chance.choice((1, 5, 40, 999)) :]


def _word(text: str, chance: random.Random) -> str:
    """Another word in the place of one, before it, or in its stead twice."""
    places = [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]
    if not places:
        return text
    start, end = chance.choice(places)
    other = chance.choice([*WORDS, *(text[a:b] for a, b in places[:40])])
    return text[:start] + other + " " * chance.randrange(2) + text[chance.choice((start, end)) :]


def _without(text: str, chance: random.Random) -> str:
    """Without one word or sign."""
    places = [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]
    if not places:
        return text
    start, end = chance.choice(places)
    return text[:start] + text[end:]


def _keyword(text: str, chance: random.Random) -> str:
    """Another keyword in the place of one."""
    places = [f.span() for f in re.finditer(r"\w+", text) if f.group().upper() in KEYWORDS]
    if not places:
        return text
    start, end = chance.choice(places)
    return text[:start] + chance.choice(KEYWORDS) + text[end:]


def _name(text: str, chance: random.Random) -> str:
    """Another name in the place of each of one name."""
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", text)))
    if not names:
        return text
    return re.sub(rf"\b{chance.choice(names)}\b", lambda _: chance.choice(NAMES), text)


def _swap(text: str, chance: random.Random) -> str:
    places = [found.span() for found in re.finditer(r"\w+", text)]
    if len(places) < 2:
        return text
    (a, b), (c, d) = sorted(chance.sample(places, 2))
    return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def _splice(text: str, chance: random.Random) -> str:
    other = chance.choice(CORPUS)
    return text[: chance.randrange(len(text) + 1)] + other[chance.randrange(len(other)) :]


def _deep(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(DEEP) * chance.choice((3, 60, 2000)) + text[at:]


_CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    *(_character,) * 4, _cut, *(_word,) * 4, _swap, _splice, _deep, *(_without,) * 2,
    *(_keyword,) * 2, _name,
)  # fmt: skip


class Asked:
    """A federation that is handed statements."""

    def __init__(self) -> None:
        self._databases = [duckdb.connect(config={"threads": 1}) for _ in range(2)]
        one, two = self._databases
        one.execute(
            "CREATE TABLE t AS SELECT i AS id, i % 9 AS k, sin(i) AS x, i / 9 AS y, i % 2 = 0 AS b "
            "FROM range(40) r(i)"
        )
        two.execute(
            "CREATE TABLE u AS SELECT i AS k, cos(i) AS z, 'g' || i % 3 AS g FROM range(9) r(i)"
        )
        self.fed = sqlfl.connect(progress=False)
        self.fed.attach("a", one)
        self.fed.attach("b", two)
        query = "SELECT t.x, u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k"
        self._old = f"TRAIN OR REPLACE MODEL old USING linear_regression TARGET y FROM ({query})"
        self.fed.sql(self._old)

    def close(self) -> None:
        self.fed.close()
        for database in self._databases:
            database.close()

    def owns(self, given: str) -> str:
        """Run an owner's statement in a database of its own, and return how it ended."""
        with duckdb.connect(config={"threads": 1}) as own, sqlfl.owner(own) as owner:
            own.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS k, 3 AS x, 4 AS y, true AS b")
            try:
                owner.sql(given)
            except sqlfl.InternalError:
                raise
            except sqlfl.Error as error:
                readable(error)
                return "sqlfl.Error"
        return "answered"

    def __call__(self, given: str | bytes, run: bool, parameters: Any = None) -> str:
        """How it ended; `run`: it is not only planned where it can be."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if not run:
                    with suppress(sqlfl.Error):
                        self.fed.explain(given, parameters)
                        return "planned"
                    words = given[:400].upper()
                    if b"MODEL" in words if isinstance(words, bytes) else "MODEL" in words:
                        return "sqlfl.Error"
                self.fed.sql(given, parameters)
            except sqlfl.InternalError:
                raise
            except sqlfl.Error as error:
                readable(error)
                return "sqlfl.Error"
            if "old" not in self.fed.models:
                self.fed.sql(self._old)
            return "answered"


def readable(error: sqlfl.Error) -> None:
    """AssertionError for an error that a terminal cannot show, or nobody reads to the end."""
    text = str(error)
    text.encode()
    assert text.strip(), "an error without words"
    assert len(text) < 4_000, f"{len(text)} characters: {text:.300}"
    steering = {sign for sign in text if unicodedata.category(sign) in UNSEEN} - SEEN
    assert not steering, f"{steering} in {text!r:.300}"


def main(count: int, seed: int, kind: str) -> None:
    asked, outcomes, wrong = Asked(), Counter[str](), []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        given: str | bytes = file(chance) if kind == "files" else statement(chance)
        parameters: object = None
        if isinstance(given, str):
            given, parameters = values(given, chance)
        try:
            if kind == "owner":
                given = owners(chance)
                outcomes[asked.owns(given)] += 1
            else:
                outcomes[asked(given, number % 8 == 0, parameters)] += 1
        except Exception as error:
            outcomes[type(error).__name__] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(
                f"{number} {type(error).__name__}: {error!s:.200} at {last.filename}:{last.lineno}"
                f" of {given[:300]!r} with {parameters!r:.100}"
            )
    print(json.dumps({"outcomes": outcomes, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:]))
