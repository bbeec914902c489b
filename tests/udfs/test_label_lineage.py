"""One way for one label, however it is written; and never one for two labels."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.udfs.labels import label_lineage
from sqlfl.udfs.labels.label_lineage import way_to_label
from tests.conftest import Open
from tests.depth import SEED, THOROUGH

TABLES = (
    "CREATE TABLE t (id INTEGER, y BOOLEAN, age INTEGER, x DOUBLE, v VARCHAR, li INTEGER[], "
    "st STRUCT(f INTEGER, y BOOLEAN), d DECIMAL(9,2), w VARCHAR COLLATE NOCASE)",
    "CREATE TABLE p (id INTEGER, z INTEGER)",
    "CREATE SCHEMA other",
    "CREATE TABLE other.t AS FROM t",
    "CREATE VIEW seen AS FROM t",
)


@pytest.fixture
def con(database: Open) -> duckdb.DuckDBPyConnection:
    return database(*TABLES)


def way(con: duckdb.DuckDBPyConnection, label: str, source: str = "t AS r") -> str:
    return way_to_label(con, f"SELECT {label} AS sqlfl_target FROM {source}")


ALIKE = [
    ["y", "Y", "(y)", "r.y", 'R."Y"', "NOT NOT y", "y = true", "true = y", "y <> FALSE",
     "NOT (y = false)", "y::BOOL", "CAST(r.y AS BOOLEAN)", "y AND y", "NOT (NOT y OR NOT y)",
     "y AND true", "false OR y", "true AND (y OR false) AND true"],
    ["age > 50", "50 < age", "NOT age <= 50", "NOT (50 >= r.age)", "(age::INT) > 50",
     "age > 50 /* of them */", "age>50 OR 50<age"],
    ["age = 3 AND x < 1", "1 > x AND 3 = age", "NOT (x >= 1 OR age <> 3)"],
    ["age BETWEEN 3 AND 5", "3 <= age AND age <= 5", "5 >= age AND age >= 3"],
    ["age NOT IN (1, 2)", "NOT age IN (2, 1, 2)"],
    ["age IS NOT NULL", "NOT age IS NULL", "NOT (age ISNULL)"],
    ["age + 1", "1 + age", "(r.age) + 1"],
    ["st.f", "r.st.f", "r.ST.F"],
    ["upper(v)", "UPPER(r.v)"],
    ["(SELECT max(p.z) FROM p WHERE p.id = r.age)",
     "(SELECT MAX(p.z) FROM main.p WHERE r.age = p.id)"],
]  # fmt: skip


@pytest.mark.parametrize("labels", ALIKE, ids=lambda labels: labels[0])
def test_ways_to_write_one_label(con: duckdb.DuckDBPyConnection, labels: list[str]) -> None:
    assert len({way(con, label) for label in labels}) == 1
    assert len({way(con, labels[0], f"{table} AS r") for table in ("t", "T", "main.t")}) == 1


def test_labels_are_told_apart(con: duckdb.DuckDBPyConnection) -> None:
    labels = [group[0] for group in ALIKE]
    labels += [
        "NOT y",
        "age",
        "age > 50.5",
        "age >= 50",
        "age < 50",
        "x > 50",
        "50",
        "'50'",
        "true",
    ]
    labels += ["y IS TRUE", "coalesce(y, false)", "CASE WHEN y THEN true ELSE false END"]
    labels += ["v = 'a'", "v::VARCHAR = 'A'", "w = 'a'", "w::VARCHAR = 'a'", "v = 'A'"]
    labels += ["li + [1]", "[1] + li", "age - 1", "1 - age", "(age + 1) * 2", "age + 1 * 2"]
    labels += ["(x + 1) + age", "x + (1 + age)", "st.y", "st['f']", "d::DECIMAL(8,1)", "d"]
    labels += ["list_transform(li, lambda y: y = true)", "list_transform(li, lambda y: y)"]
    labels += [
        "(SELECT max(p.z) FROM p WHERE p.id = age)",
        "age AND y",
        "age OR y",
        "y OR y IS NULL",
    ]
    found = [way(con, label) for label in labels]
    assert len(set(found)) == len(found)


SOURCES = (
    "t AS r", "other.t AS r", "seen AS r", "(FROM t LIMIT 9) AS r", "(FROM t LIMIT 8) AS r",
    "t AS r, p", "(FROM t) AS r(a, b)", "(WITH t AS (FROM other.t) FROM t) AS r",
)  # fmt: skip


def test_sources_are_told_apart(con: duckdb.DuckDBPyConnection) -> None:
    assert len({way(con, "r.y", source) for source in SOURCES}) == len(SOURCES)


def test_a_table_is_known_by_any_of_its_names(database: Open, tmp_path: object) -> None:
    con = database(*TABLES, path=f"{tmp_path}/clinic.duckdb")
    names = ["t", "main.t", "clinic.main.t", '"CLINIC"."Main".T']
    assert len({way(con, "q.y", f"{name} AS q") for name in names}) == 1
    con.execute("USE other")
    assert way(con, "y", "main.t AS r") != way(con, "y", "t AS r") == way(con, "y", "other.t AS q")
    con.execute("USE main")
    before = way(con, "y", "clinic.main.t AS r")
    con.execute("ATTACH ':memory:' AS more; CREATE TABLE more.t AS FROM t")
    assert way(con, "y", "more.t AS r") == way(con, "y", "more.main.t AS r") != before
    con.close()
    renamed = database(path=f"{tmp_path}/other.duckdb")
    renamed.execute(f"ATTACH '{tmp_path}/clinic.duckdb' AS elsewhere; USE elsewhere")
    assert way(renamed, "y", "t AS r") == way(renamed, "y", "elsewhere.t AS r") == before


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (
            "SELECT id, y AS sqlfl_target FROM t",
            "SELECT y AS sqlfl_target FROM t WHERE x > 1",
            True,
        ),
        ("SELECT y AS SQLFL_TARGET, t FROM t", "SELECT y AS sqlfl_target FROM t", True),
        (
            "SELECT x > avg(x) OVER () AS sqlfl_target FROM t",
            "SELECT x > avg(x) OVER () AS sqlfl_target FROM t WHERE y",
            False,
        ),
        ("SELECT y AS sqlfl_target FROM t", "SELECT y AS sqlfl_target FROM t GROUP BY y", False),
        ("not SQL at all (", "not SQL at all ( ", False),
        ("SELECT * FROM t", "SELECT * FROM t WHERE y", False),
        (
            "SELECT y AS sqlfl_target FROM t UNION ALL SELECT y FROM t",
            "SELECT y AS sqlfl_target FROM t UNION ALL SELECT y FROM t WHERE y",
            False,
        ),
    ],
)
def test_what_else_is_in_a_fragment(
    first: str, second: str, same: bool, con: duckdb.DuckDBPyConnection
) -> None:
    assert (way_to_label(con, first) == way_to_label(con, second)) == same


# -- no two labels have one way -------------------------------------------------------------------

VALUES = """
CREATE TABLE t AS FROM
(SELECT unnest([NULL, true, false]) AS b), (SELECT unnest([NULL, true, false]) AS c),
(SELECT unnest([NULL, 0, 1, -3, 50]::INTEGER[]) AS i),
(SELECT unnest([NULL, 0, 'nan'::DOUBLE, 'inf'::DOUBLE, -1.5, 50]::DOUBLE[]) AS x),
(SELECT unnest([NULL, 'a', 'A', '50', '1']) AS v);
ALTER TABLE t ADD COLUMN w VARCHAR COLLATE NOCASE;
ALTER TABLE t ADD COLUMN l INTEGER[];
ALTER TABLE t ADD COLUMN d DECIMAL(9,2);
ALTER TABLE t ADD COLUMN s STRUCT(b BOOLEAN, i INTEGER);
UPDATE t SET w = v, l = [i, 1], d = i, s = {'b': b, 'i': i};
"""
COMPARED = ("<", "<=", ">", ">=", "=", "<>", "IS NOT DISTINCT FROM")
NEAR = (
    ("<=", "<"), (">", "<"), ("AND", "OR"), ("OR", "AND"), ("NOT ", ""), (" = ", " <> "),
    ("50.0", "50"), ("v::VARCHAR", "v"), ("w::VARCHAR", "w"), ("true", "false"), ("b", "c"),
)  # fmt: skip
KINDS = ("INT", "DOUBLE", "BIGINT", "DECIMAL(9,2)")


class Writer:
    """Random expressions, so small that many of them mean the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _one(self, *texts: str) -> str:
        return self._random.choice(texts)

    def number(self, depth: int) -> str:
        if not depth or self._random.random() < 0.4:
            return self._one(
                "i", "x", "d", "s.i", "r.i", "0", "1", "50", "-3", "50.0", "1.5", "2e0"
            )
        left, right = self.number(depth - 1), self.number(depth - 1)
        return self._one(
            f"({left}) + ({right})", f"({left}) * ({right})", f"({left}) - ({right})", f"({left})",
            f"CAST({left} AS {self._one(*KINDS)})", f"coalesce({left}, {right})",
        )  # fmt: skip

    def text(self) -> str:
        return self._one("v", "w", "'a'", "'50'", "v::VARCHAR", "w::VARCHAR", "lower(v)", "1", "i")

    def truth(self, depth: int) -> str:
        if not depth or self._random.random() < 0.2:
            return self._one("b", "c", "s.b", "r.b", "true", "false", "NULL")
        one, two = self.truth(depth - 1), self.truth(depth - 1)
        left, right = self.number(depth - 1), self.number(depth - 1)
        compare, no = self._one(*COMPARED), self._one("", "NOT ")
        return self._one(
            f"({left}) {compare} ({right})", f"({one}) {compare} ({two})", f"NOT ({one})",
            f"({self.text()}) {compare} ({self.text()})", f"({one}) AND ({two})",
            f"({one}) OR ({two})", f"({one})", f"({one}) IS {no}NULL", f"({one}) IS {no}TRUE",
            f"({left}) {no}BETWEEN ({right}) AND ({self.number(0)})", f"({left}) AND ({one})",
            f"({left}) {no}IN ({self.number(0)}, {self.number(0)})",
            f"({self.text()}) {no}IN ({self.text()}, {self.text()})",
            f"({self.text()}) {no}BETWEEN {self.text()} AND {self.text()}",
            f"CAST({one} AS {self._one('BOOL', 'INT', 'VARCHAR')}) = {self._one('true', '1')}",
            f"(l + [1]) {compare} ([1] + l)",
        )  # fmt: skip

    def labels(self) -> Iterator[str]:
        """A label, others that may be the same, and those that hardly are but look like it."""
        depth = self._random.randrange(4)
        label = self.truth(depth) if self._random.random() < 0.8 else self.number(depth)
        yield label
        yield self._one(
            f"NOT NOT ({label})", f"({label}) = true", f"true = ({label})", f"({label}) <> false",
            f"({label}) AND ({label})", f"CAST(({label}) AS BOOL)", f"({label}) + 0",
        )  # fmt: skip
        for old, new in NEAR:
            if old in label:
                yield label.replace(old, new, 1)


def unsound(con: duckdb.DuckDBPyConnection, groups: int) -> tuple[int, int, str | None]:
    """Labels that were read, ways that several have, and the first way that does not tell labels
    apart: no more are read then."""
    writer, found = Writer(SEED), defaultdict(set)
    read, shared = 0, defaultdict(int)
    for label in (label for _ in range(groups) for label in writer.labels()):
        values = f"SELECT md5(string_agg(coalesce(({label})::VARCHAR, ''), ',' ORDER BY rowid))"
        try:
            ((digest,),) = con.execute(f"{values} FROM t AS r").fetchall()
        except duckdb.Error:
            continue
        text = way(con, label)
        found[text].add(digest)
        shared[text] += 1
        read += 1
        if len(found[text]) > 1:
            break
    else:
        text = None
    return read, sum(count > 1 for count in shared.values()), text


def test_labels_of_one_way_are_equal_in_every_row(database: Open) -> None:
    groups = 5000 if THOROUGH else 60
    read, shared, wrong = unsound(database(VALUES), groups)
    assert wrong is None
    assert read > groups
    assert shared > groups / 30


def test_a_rule_that_does_not_hold_is_caught(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AND is not OR; nor does a cast to VARCHAR change nothing, where a text has a collation."""
    con = database(VALUES)
    monkeypatch.setitem(label_lineage._JOINED, "CONJUNCTION_OR", "and")
    assert unsound(con, 5000)[2]
    monkeypatch.undo()
    monkeypatch.setitem(label_lineage._KINDS, "varchar", "BOOLEAN")
    monkeypatch.setattr(label_lineage._Reader, "_type", lambda own, form: "BOOLEAN")
    assert unsound(con, 5000)[2]
