"""Statements that nobody meant: those of a corpus with characters, words and halves mixed up.

python -m tests.mutated COUNT SEED [files]

Hands COUNT of them to a federation, as text or as the bytes of files, and prints a line of JSON:
how many ended how, and those that ended otherwise than in an answer or an error of sqlfl's.
"""

from __future__ import annotations

import json
import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import duckdb

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
DEEP = ("(", "NOT ", "- ", "[", "CASE WHEN ", "SELECT * FROM (", "/*", "{'a': ", "1 + ", "x.", "f(")
"""Each alone, and very often."""


def statement(chance: random.Random) -> str:
    """A statement of the corpus, changed in up to four places."""
    text = chance.choice(CORPUS)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        text = chance.choice(_CHANGES)(text, chance)
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
    *(_character,) * 4, _cut, *(_word,) * 4, _swap, _splice, _deep,
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

    def __call__(self, given: str | bytes, run: bool) -> str:
        """How it ended; `run`: it is not only planned where it can be."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if not run:
                    with suppress(sqlfl.Error):
                        self.fed.explain(given)
                        return "planned"
                    words = given[:400].upper()
                    if b"MODEL" in words if isinstance(words, bytes) else "MODEL" in words:
                        return "sqlfl.Error"
                self.fed.sql(given)
            except sqlfl.InternalError:
                raise
            except sqlfl.Error as error:
                str(error)
                return "sqlfl.Error"
            if "old" not in self.fed.models:
                self.fed.sql(self._old)
            return "answered"


def main(count: int, seed: int, files: bool) -> None:
    asked, outcomes, wrong = Asked(), Counter[str](), []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        given: str | bytes = file(chance) if files else statement(chance)
        try:
            outcomes[asked(given, run=number % 8 == 0)] += 1
        except Exception as error:
            outcomes[type(error).__name__] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(
                f"{number} {type(error).__name__}: {error!s:.200} at {last.filename}:{last.lineno}"
            )
    print(json.dumps({"outcomes": outcomes, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["files"])
