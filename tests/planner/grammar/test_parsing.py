"""What the parser keeps of a text: commas, names before calls, variables, words as columns."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel

FROMS = {
    "a, b JOIN c ON b.x = c.x": "a, (b JOIN c ON b.x = c.x)",
    "a JOIN b ON a.x = b.x, c": "a JOIN b ON a.x = b.x, c",
    "a, b LEFT JOIN c USING (k) JOIN d USING (k), e": (
        "a, (b LEFT JOIN c USING (k) JOIN d USING (k)), e"
    ),
    "a, b NATURAL JOIN c, d CROSS JOIN e": "a, (b NATURAL JOIN c), (d CROSS JOIN e)",
    "a, b JOIN c JOIN d ON c.x = d.x ON b.x = c.x": (
        "a, (b JOIN c JOIN d ON c.x = d.x ON b.x = c.x)"
    ),
    "a, (b JOIN c ON b.x = c.x) q RIGHT JOIN d USING (x)": (
        "a, ((b JOIN c ON b.x = c.x) AS q RIGHT JOIN d USING (x))"
    ),
    "a, unnest(a.l) u(v) RIGHT JOIN c ON u.v = c.x": (
        "a, (UNNEST(a.l) AS u(v) RIGHT JOIN c ON u.v = c.x)"
    ),
    "a, (VALUES (1, 2)) v(p, q) RIGHT JOIN c ON v.p = c.x": (
        "a, ((VALUES (1, 2)) AS v(p, q) RIGHT JOIN c ON v.p = c.x)"
    ),
    "a, LATERAL (SELECT a.k AS x) l RIGHT JOIN c ON l.x = c.x": (
        "a, (LATERAL (SELECT a.k AS x) AS l RIGHT JOIN c ON l.x = c.x)"
    ),
    "a WHERE EXISTS (SELECT 1 FROM b, c LEFT JOIN d ON true)": (
        "a WHERE EXISTS(SELECT 1 FROM b, (c LEFT JOIN d ON TRUE))"
    ),
}


def read(query: str) -> str:
    """The text that the tree of a query is written as."""
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    return to_sql(statement.query)


@pytest.mark.parametrize("text", FROMS)
def test_what_follows_a_comma_is_put_in_parentheses(text: str) -> None:
    assert read(f"SELECT 1 FROM {text}") == f"SELECT 1 FROM {FROMS[text]}"
    assert read(f"FROM {text}") == f"SELECT * FROM {FROMS[text]}"


def test_a_comma_before_a_list_binds_loosest_at_the_database_too() -> None:
    with duckdb.connect() as con:
        con.execute("CREATE TABLE t AS SELECT [1, 2] AS l UNION ALL SELECT [3]")
        con.execute("CREATE TABLE s AS SELECT unnest([1, 5]) AS id")
        query = "SELECT count(*) FROM t, unnest(t.l) u(v) RIGHT JOIN s ON u.v = s.id"
        assert con.sql(read(query)).fetchall() == con.sql(query).fetchall() == [(4,)]


EXPRESSIONS = (
    "n.abs()",
    "(n + t.m).abs().sqrt()",
    "list_transform(l, lambda x: x.a.b.c.d.e)",
    "t.list[1]",
    "list_sum([n * t.n FOR n IN l])",
    "n.list(ORDER BY k)[1]",
)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_keep_their_names(text: str) -> None:
    statement = parse(f"EVALUATE MODEL m FROM (SELECT {text} AS f FROM t)")
    assert isinstance(statement, EvaluateModel)
    written = to_sql(statement.query).upper().replace(" ", "")
    assert text.upper().replace(" ", "") in written.replace("[2]", "[1]")


def test_words_are_read_as_columns_where_the_database_reads_them_so() -> None:
    """Of keywords, and names that sqlglot has a meaning for; what cannot be read is an error."""
    templates = ("{} + 1", "l.{}[1]", "coalesce(-{}, {})")
    with duckdb.connect() as con:
        words = con.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'reserved'"
        ).fetchall()
        names = [*(word for (word,) in words), "list", "array_agg", "unnest", "rowid", "year"]
        columns = ", ".join(f'{n} AS "{name}"' for n, name in enumerate(names))
        lists = ", ".join(f'[{n}] AS "{name}"' for n, name in enumerate(names))
        con.execute(f"CREATE TABLE q AS SELECT {columns}")
        con.execute(f"CREATE TABLE l AS SELECT {lists}")
        for template in templates:
            source = "l" if template.startswith("l.") else "q"
            texts, unread = [], []
            for name in names:
                text = template.replace("{}", name)
                try:
                    con.execute(f"EXPLAIN SELECT {text} AS f FROM {source}")
                    read(f"SELECT {text} AS f FROM {source}")
                    texts.append(f"{text} AS f{len(texts)}")
                except duckdb.Error:
                    continue
                except ParseError:
                    unread.append(name)
            query = f"SELECT {', '.join(texts)} FROM {source}"
            assert con.execute(read(query)).fetchall() == con.execute(query).fetchall(), template
            assert len(texts) > 350
            assert len(unread) < 16, unread
