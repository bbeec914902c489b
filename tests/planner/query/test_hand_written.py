"""Statements by hand, in forms that no generator draws: plans give the rows of one database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import duckdb
import pytest

from sqlfl.base.errors import ParseError, PlanError
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan

TABLES = {
    "a": {
        "facts": """SELECT i AS id, (i * 7) % 20 AS k, if(i % 9 = 0, NULL, (i * 5) % 12) AS nk,
            (i % 17) * 1.5 - 3 AS y, i % 3 AS cls, ((i * 13) % 50 / 4)::DECIMAL(18, 3) AS price,
            (i * 7) % 20 * 100000000000000000000::HUGEINT AS big, to_days(((i * 7) % 20)::INTEGER)
            AS iv, md5('u' || (i * 7) % 20)::UUID AS uid,
            (['red', 'green', 'blue'])[1 + i % 3]::ENUM ('red', 'green', 'blue') AS en,
            {'a': (i * 7) % 20, 'b': 'x' || (i * 7) % 20} AS st,
            TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_hours((i * 7) % 20) AS tz,
            TIMESTAMP '2024-01-01' + to_minutes(i * 30) AS ts,
            DATE '2024-01-01' + ((i * 7) % 20)::INTEGER AS day,
            if(i % 11 = 0, 'nan'::DOUBLE, i % 13) AS f, (['', ' ', 'a', 'A', 'á', NULL])[1 + i % 6]
            AS txt, (i * 7) % 20 AS "Mixed Case", i % 4 AS "select", i % 5 AS "group",
            [i % 3, i % 5, NULL] AS li, ((i * 7) % 20)::FLOAT / 10 AS fl, (i * 7) % 20 / 10 AS db,
            i % 2 = 0 AS bo FROM range(60) r(i)""",
        "Table Two": """SELECT i AS "Id", i % 7 AS "ORDER", i * 0.5 AS "the value"
            FROM range(30) r(i)""",
    },
    "b": {
        "dims": """SELECT i AS k, if(i % 8 = 0, NULL, i) AS nk, (i * 3) % 7 AS x,
            (i % 12)::DECIMAL(9, 1) AS price, i * 100000000000000000000::HUGEINT AS big,
            to_days(i::INTEGER) AS iv, md5('u' || i)::UUID AS uid,
            (['red', 'green', 'blue'])[1 + i % 3]::ENUM ('blue', 'red', 'green') AS en,
            {'a': i, 'b': 'x' || i} AS st, TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_hours(i) AS tz,
            TIMESTAMP '2024-01-01' + to_hours(i) AS ts, DATE '2024-01-01' + i::INTEGER AS day,
            if(i = 3, 'nan'::DOUBLE, i) AS f, (['', ' ', 'a', 'A', 'á', NULL])[1 + i % 6] AS txt,
            i AS "mixed case", i % 4 AS "from", (i / 10)::FLOAT AS fl, i / 10 AS db,
            'c' || i % 3 AS cat FROM range(20) r(i)""",
        "k_names": "SELECT i AS k, 'n' || i % 4 AS name, i % 6 AS z FROM range(0, 20, 2) r(i)",
    },
    "c": {
        "events": """SELECT (i * 3) % 25 AS k, DATE '2024-01-01' + (i % 30)::INTEGER AS day,
            (i * 7) % 11 AS w, (['p', 'q', NULL])[1 + i % 3] AS t FROM range(50) r(i)""",
    },
}
J = "FROM a.facts f JOIN b.dims d ON f.k = d.k"
E = "FROM c.events e JOIN b.dims d ON d.k = e.k"
QUERIES = {
    "names in other cases": """SELECT f."Mixed Case" AS "The Col", d."FROM" AS "from", f."select"
        FROM a.facts f JOIN b.dims d ON f."mixed case" = d."Mixed Case" """,
    "reserved words as aliases": """SELECT "select"."group", "from"."from", "select".y
        FROM a.facts AS "select" JOIN b.dims AS "from" ON "select".k = "from".k""",
    "a table of two words": """SELECT t."the value", "Order", d.x
        FROM a."table two" t JOIN b.dims d ON d.k = t."Id" """,
    "SEMI JOIN by USING before another join": """SELECT f.y, d.x FROM a.facts f
        SEMI JOIN c.events USING (k) JOIN b.dims d USING (k)""",
    "ANTI JOIN by the column that USING merges": """SELECT f.y, d.x FROM a.facts f
        LEFT JOIN b.dims d USING (k)
        ANTI JOIN (SELECT k FROM c.events WHERE w > 6) e USING (k)""",
    "IS NOT DISTINCT FROM in longhand": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.nk = d.nk OR (d.nk IS NULL AND f.nk IS NULL)""",
    "a value of another party's row": """SELECT f.y,
        (SELECT d.x FROM b.dims d WHERE d.k = f.k) AS x,
        (SELECT d.cat FROM b.dims d WHERE d.k = f.k) AS cat FROM a.facts f""",
    "a value of a row that a condition chooses": """SELECT f.y,
        coalesce((SELECT d.x + 1 FROM b.dims d WHERE d.k = f.nk AND d.x > 1 AND f.cls < 2), -1) AS x
        FROM a.facts f""",
    "a value of another party's row in WHERE": """SELECT f.y, n.z FROM a.facts f
        LEFT JOIN b.k_names n ON n.k = f.k WHERE (SELECT d.x FROM b.dims d WHERE d.k = f.k) > 2""",
    "a value of another party's row by two keys": """SELECT f.y,
        (SELECT d.price FROM b.dims d WHERE d.k = f.k AND d.nk = f.nk) AS p FROM a.facts f""",
    "a CTE of a party's name": """WITH b AS (SELECT k, x FROM b.dims)
        SELECT f.y, b.x FROM a.facts f JOIN b USING (k)""",
    "a CTE that hides another": """WITH dims AS (SELECT k, x FROM b.dims WHERE x > 1)
        SELECT f.y, dims.x FROM a.facts f JOIN dims USING (k) WHERE f.k IN
        (WITH dims AS (SELECT k FROM c.events WHERE w > 3) SELECT k FROM dims)""",
    "DECIMAL keys of two scales": """SELECT f.y, d.x FROM a.facts f JOIN b.dims d
        ON f.price = d.price""",
    "DOUBLE with DECIMAL keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.db = d.price",
    "FLOAT with DOUBLE keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.fl = d.db",
    "FLOAT keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.fl = d.fl",
    "HUGEINT keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.big = d.big",
    "UUID keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.uid = d.uid",
    "a UUID with a text in capitals": """SELECT f.y, d.x FROM a.facts f
        JOIN (SELECT * REPLACE (upper(uid::VARCHAR) AS uid) FROM b.dims) d ON f.uid = d.uid""",
    "ENUMs in two orders": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.en = d.en AND f.k = d.k""",
    "fields of a STRUCT": """SELECT f.y, d.st['a'] AS a, d.st.b, f.st.b AS c FROM a.facts f
        JOIN b.dims d ON f.st.a = d.st.a""",
    "a STRUCT unnested": f"SELECT unnest(d.st), y {J}",
    "TIMESTAMPTZ keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.tz = d.tz",
    "TIMESTAMP with DATE keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.ts = d.day",
    "TIMESTAMP with TIMESTAMPTZ keys": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.ts = d.tz""",
    "NaN keys": "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.f = d.f",
    "empty and blank texts as keys": """SELECT f.y, d.txt FROM a.facts f
        JOIN b.dims d ON f.txt = d.txt AND f.k = d.k""",
    "keys without case": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.txt COLLATE NOCASE = d.txt""",
    "NULL keys that are equal": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.nk IS NOT DISTINCT FROM d.nk""",
    "NULL keys of a LEFT JOIN": """SELECT f.y, d.x, d.cat FROM a.facts f
        LEFT JOIN b.dims d USING (nk)""",
    "a number with texts": """SELECT f.y, d.x FROM a.facts f
        JOIN (SELECT * REPLACE ('0' || k AS k) FROM b.dims) d ON f.k = d.k""",
    "a truth value as a key": """SELECT f.y, d.x FROM a.facts f
        JOIN b.dims d ON f.bo = (d.k = 1) AND f.k = d.k""",
    "a NATURAL JOIN of three": """SELECT y, x, name FROM (SELECT k, y FROM a.facts) f
        NATURAL JOIN (SELECT k, x FROM b.dims) d NATURAL LEFT JOIN b.k_names""",
    "a POSITIONAL JOIN of one party": """SELECT f.y, d.z FROM a.facts f JOIN (SELECT p.k, q.z
        FROM b.dims p POSITIONAL JOIN b.k_names q) d ON d.k = f.k""",
    "a CROSS JOIN with equalities in WHERE": """SELECT f.y, d.x, w FROM a.facts f
        CROSS JOIN b.dims d, c.events e WHERE f.k = d.k AND e.k = d.k AND e.w BETWEEN 3 AND 8""",
    "parts of an INTERVAL": f"SELECT epoch(f.iv) AS e, extract(day FROM d.iv) AS n {J}",
    "days and times": f"""SELECT date_part('doy', f.day) AS doy, d.day - DATE '2024-01-05' AS n,
        age(d.ts, TIMESTAMP '2023-01-01') > INTERVAL 1 YEAR AS o, epoch_ms(d.ts) AS e,
        strftime(f.day, '%A') AS w, d.ts::TIME > TIME '10:00' AS late {J}""",
    "hours of time zones": f"""SELECT hour(f.tz AT TIME ZONE 'America/New_York') AS h,
        date_part('timezone', f.tz) AS z, d.x {J}""",
    "numbers above 64 bits": f"""SELECT f.big, (f.big % 7)::INTEGER AS m,
        d.big > 500000000000000000000 AS g {J}""",
    "DECIMALs": f"""SELECT f.price / 3 AS a, d.price * d.price AS b, round(f.price, 1) AS r,
        f.price::INTEGER AS i, f.price % 3 AS m, d.price BETWEEN 3 AND 5.5 AS c {J}""",
    "ENUMs compared": f"""SELECT f.en, f.en > 'red' AS a, d.en >= 'green' AS b {J}
        WHERE d.en <> 'blue'""",
    "NaN as a value": f"SELECT isnan(f.f) AS n, if(isnan(d.f), 0, d.f) AS v, f.f > 5 AS g {J}",
    "empty texts as categories": f"SELECT f.txt, d.txt AS other, length(f.txt) AS n {J}",
    "sums of lists": f"SELECT list_sum(f.li) AS s, len(f.li) AS n, f.li[1] AS first, d.x {J}",
    "whole divisions": f"""SELECT f.id // 7 AS q, f.id % 7 AS r, -d.x // 2 AS h, d.x ** 2 AS s,
        7 / 2 * d.x AS u {J}""",
    "bits": f"""SELECT f.id & 6 AS q, f.id | 1 AS r, xor(d.x, 3) AS h, d.x << 2 AS s, ~d.x AS t
        {J}""",
    "patterns": f"""SELECT d.cat SIMILAR TO 'c[01]' AS a, d.cat ~ 'c2' AS b, d.cat ILIKE 'C%' AS c,
        d.cat GLOB 'c*' AS g, d.cat LIKE 'c\\_' ESCAPE '\\' AS e, f.y {J}""",
    "NULLs": f"""SELECT nullif(d.x, 3) AS a, ifnull(d.nk, -1) AS b, greatest(d.x, d.nk) AS g,
        least(f.nk, f.k, NULL) AS l, d.nk IS DISTINCT FROM d.x AS n, d.x IN (1, NULL, 3) AS i,
        f.cls NOT IN (1, 2) AS j {J}""",
    "TRY_CAST": f"""SELECT f.y, TRY_CAST(d.cat AS INTEGER) AS n,
        TRY_CAST(right(d.cat, 1) AS INTEGER) AS m {J}""",
    "methods": f"SELECT f.y, d.cat.upper().length() AS n {J}",
    "aliases before expressions": f"SELECT double: f.y * 2, v: d.x + 1 {J}",
    "an alias in the next column": f"SELECT f.y, d.x * 2 AS n, n + 1 AS more {J} WHERE n > 2",
    "an alias of a column's name": f"SELECT f.y, d.x + 1 AS x, x * 2 AS x2 {J}",
    "a star without some columns": """SELECT * EXCLUDE (kk) RENAME (y AS z) FROM
        (SELECT k AS kk, y, cls FROM a.facts) f JOIN (SELECT k, x FROM b.dims) d ON f.kk = d.k""",
    "COLUMNS of a lambda": f"SELECT f.y, COLUMNS(lambda c: c LIKE 'x%') {J}",
    "COLUMNS in an expression": """SELECT y, coalesce(COLUMNS(['x', 'nk'])::DOUBLE, 0) FROM
        (SELECT y, k FROM a.facts) f JOIN b.dims d USING (k)""",
    "FROM first": "FROM a.facts f JOIN b.dims d USING (k) SELECT y, x WHERE f.bo",
    "WITH in a subquery": """SELECT f.y, d.x FROM a.facts f JOIN (WITH q AS
        (SELECT k, x FROM b.dims WHERE x > 1) SELECT * FROM q WHERE x < 6) d USING (k)""",
    "a CTE AS MATERIALIZED": """WITH q AS MATERIALIZED (SELECT k, x FROM b.dims)
        SELECT f.y, q.x FROM a.facts f JOIN q USING (k)""",
    "a recursive CTE of numbers": f"""WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL
        SELECT i + 1 FROM n WHERE i < 12) SELECT f.y, d.x, n.i {J} JOIN n ON n.i = f.k""",
    "VALUES with NULL": f"""SELECT f.y, d.x, v.z {J} LEFT JOIN (VALUES (1, 'p'), (2, NULL),
        (NULL, 'q')) v(n, z) ON v.n = f.cls""",
    "VALUES with an equal NULL": f"""SELECT f.y, d.x, v.z {J} JOIN (VALUES (1, 'p'), (2, 's'),
        (NULL, 'q')) v(n, z) ON v.n IS NOT DISTINCT FROM f.nk""",
    "a series of steps": f"SELECT f.y, d.x, g.i {J} JOIN generate_series(0, 5, 2) g(i) ON i = cls",
    "a name of joins": "SELECT j.y, j.x FROM (a.facts f JOIN b.dims d ON f.k = d.k) j",
    "UNION ALL in parentheses": f"""SELECT y, d.x {J} WHERE f.bo UNION ALL
        (SELECT y, d.x {J} WHERE NOT f.bo UNION ALL SELECT w, d.x {E})""",
    "UNION ALL BY NAME, twice": f"""(SELECT y, d.x {J} WHERE f.bo UNION ALL BY NAME
        SELECT d.x, y, f.en {J}) UNION ALL BY NAME SELECT w AS y, d.x, e.t {E}""",
    "UNION ALL, then BY NAME": f"""SELECT y, d.x {J} WHERE f.bo UNION ALL SELECT y, d.x {J}
        UNION ALL BY NAME SELECT w AS y, d.x, e.t {E}""",
    "a UNION ALL with NULL": f"SELECT y, d.x, f.txt {J} UNION ALL SELECT w, d.x, NULL {E}",
    "UNPIVOT with a name beside a JOIN": """SELECT u.n, u.v, d.x FROM
        (SELECT k, y::DOUBLE AS y, cls::DOUBLE AS cls FROM a.facts) UNPIVOT (v FOR n IN (y, cls)) u
        JOIN b.dims d ON d.k = u.k""",
    "UNPIVOT INCLUDE NULLS with a name": """SELECT u.n, u.v, d.x FROM
        (SELECT k, nk::DOUBLE AS nk, y::DOUBLE AS y FROM a.facts) AS f
        UNPIVOT INCLUDE NULLS (v FOR n IN (nk, y)) AS u JOIN b.dims d ON d.k = u.k""",
    "UNPIVOT of which no column is named": """SELECT d.x, y FROM (SELECT k, y, cls, nk
        FROM a.facts) UNPIVOT (v FOR n IN (cls, nk)) JOIN b.dims d USING (k)""",
    "UNPIVOT in parentheses": """SELECT d.x, y FROM a.facts f JOIN ((SELECT k, x, nk::DOUBLE AS nk,
        f, cat FROM b.dims) UNPIVOT (v FOR n IN (nk, f))) d USING (k)""",
    "UNPIVOT of columns that a list names": """SELECT u.n, u.v, d.x FROM (UNPIVOT (SELECT k,
        y::DOUBLE AS y, nk::DOUBLE AS nk FROM a.facts) ON COLUMNS(* EXCLUDE k) INTO NAME n VALUE v)
        u JOIN b.dims d ON d.k = u.k""",
    "UNPIVOT of a CTE": """WITH s AS (SELECT k, y, cls::DOUBLE AS cls, nk::DOUBLE AS nk FROM a.facts
        WHERE bo), u AS (UNPIVOT s ON cls, nk INTO NAME n VALUE v)
        SELECT u.y, u.n, u.v, d.x FROM u JOIN b.dims d USING (k)""",
    "UNPIVOT under WHERE": """SELECT u.y, u.n, d.x FROM (SELECT * FROM (SELECT k, y,
        cls::DOUBLE AS cls, nk::DOUBLE AS nk FROM a.facts WHERE bo) UNPIVOT (v FOR n IN (cls, nk))
        WHERE v > 1) u JOIN b.dims d USING (k)""",
    "PIVOT in parentheses": """SELECT d.x, f.y, e.p FROM a.facts f JOIN b.dims d USING (k)
        JOIN ((SELECT k, t, w FROM c.events) PIVOT (sum(w) FOR t IN ('p', 'q') GROUP BY k)) e
        USING (k)""",
    "PIVOT of two aggregates": """WITH p AS (PIVOT c.events ON t IN ('p', 'q') USING count(*) AS n,
        max(w) AS w GROUP BY k) SELECT f.y, p.* EXCLUDE k FROM a.facts f LEFT JOIN p USING (k)""",
    "ORDER BY after parentheses": """(SELECT f.y, d.x FROM a.facts f JOIN b.dims d USING (k))
        ORDER BY 1""",
    "two orders": """SELECT f.y, d.x FROM ((SELECT * FROM a.facts ORDER BY id) ORDER BY y) f
        JOIN b.dims d USING (k)""",
    "VALUES with a LIMIT after parentheses": """SELECT f.y, p.x FROM a.facts f JOIN
        ((VALUES (1, 2), (2, 3)) LIMIT 1) p(k, x) USING (k)""",
    "a LIMIT after parentheses of one database": """SELECT f.y, p.x FROM a.facts f JOIN
        (WITH q AS (FROM b.dims) (FROM q) ORDER BY k LIMIT 7) p USING (k)""",
    "set operations in one another": """SELECT f.y, d.x FROM a.facts f JOIN (SELECT k, x FROM b.dims
        WHERE k < 15 EXCEPT (SELECT k, x FROM b.dims WHERE k < 5 INTERSECT
        SELECT k, x FROM b.dims WHERE k > 2)) d ON d.k = f.k""",
    "an aggregate under HAVING": f"""SELECT f.y, d.x, (SELECT max(e.w) FROM c.events e
        WHERE e.k = f.k HAVING count(*) > 2) AS w {J}""",
}  # fmt: skip
OF_ONE_DATABASE = {
    "a LIMIT after parentheses": """SELECT f.y, d.x FROM ((SELECT * FROM a.facts)
        ORDER BY id LIMIT 30) f JOIN b.dims d USING (k)""",
    "a LIMIT after an order in parentheses": """SELECT f.y, d.x FROM (((SELECT * FROM a.facts)
        ORDER BY id) LIMIT 30) f JOIN b.dims d USING (k)""",
    "an OFFSET after parentheses": """SELECT f.y, d.x FROM ((SELECT y, k, id FROM a.facts
        ORDER BY id) OFFSET 50) f JOIN b.dims d USING (k)""",
    "a LIMIT of a union in parentheses": """SELECT f.y, d.x FROM ((SELECT y, k, id FROM a.facts
        UNION ALL SELECT y, k, id FROM a.facts) ORDER BY id LIMIT 41) f JOIN b.dims d USING (k)""",
    "a LIMIT after parentheses in a CTE": """WITH f AS ((SELECT * FROM a.facts) ORDER BY id
        LIMIT 30) SELECT f.y, d.x FROM f JOIN b.dims d USING (k)""",
    "a LIMIT after parentheses in IN": f"""SELECT f.y, d.x {J}
        WHERE f.id IN ((SELECT id FROM a.facts) ORDER BY id LIMIT 50)""",
    "a list of a LIMIT": f"""SELECT f.y, d.x {J}
        WHERE f.k IN ((SELECT k FROM c.events) ORDER BY k LIMIT 20)""",
    "GROUPING SETS": """SELECT g.m, d.x, g.cls IS NULL AS whole FROM (SELECT k, cls, avg(y) AS m
        FROM a.facts GROUP BY GROUPING SETS ((k, cls), (k))) g JOIN b.dims d USING (k)""",
    "CUBE": """SELECT g.m, d.x, g.cls FROM (SELECT k, cls, avg(y) AS m FROM a.facts
        GROUP BY CUBE (k, cls)) g JOIN b.dims d USING (k)""",
    "QUALIFY": """SELECT f.y, d.x FROM (SELECT * FROM a.facts
        QUALIFY rank() OVER (PARTITION BY k ORDER BY y) <= 2) f JOIN b.dims d USING (k)""",
    "a window over a union": """SELECT u.v, u.r, d.x FROM (SELECT v, k, rank() OVER
        (PARTITION BY k ORDER BY v) AS r FROM (SELECT y AS v, k FROM a.facts UNION ALL
        SELECT "the value", "Id" FROM a."Table Two")) u JOIN b.dims d ON d.k = u.k""",
}  # fmt: skip
REFUSED = {
    "a LIMIT of all rows": (f"(SELECT f.y, d.x {J}) LIMIT 30", "LIMIT cannot be done over a and b"),
    "a LIMIT of a LIMIT": (
        """SELECT f.y, d.x FROM ((SELECT * FROM a.facts LIMIT 60) ORDER BY id LIMIT 30) f
        JOIN b.dims d USING (k)""",
        "LIMIT stands after parentheses, and the query in them has such a clause itself",
    ),
    "a LIMIT of two orders": (
        """SELECT f.y, d.x FROM (((SELECT * FROM a.facts ORDER BY id) ORDER BY y) LIMIT 30) f
        JOIN b.dims d USING (k)""",
        "LIMIT stands after parentheses",
    ),
    "a LIMIT of PIVOT": (
        """SELECT f.y, p.p FROM a.facts f JOIN ((PIVOT c.events ON t IN ('p', 'q') USING count(*)
        GROUP BY k) ORDER BY k LIMIT 9) p USING (k)""",
        "LIMIT stands after parentheses, .* or is no SELECT",
    ),
    "QUALIFY over two parties": (
        f"SELECT y, d.x {J} QUALIFY row_number() OVER (PARTITION BY f.k ORDER BY f.id) = 1",
        "QUALIFY cannot be done over a and b",
    ),
    "a window over a union of parties": (
        """SELECT u.v, u.r, d.x FROM (SELECT v, k, row_number() OVER (ORDER BY v) AS r FROM
        (SELECT y AS v, k FROM a.facts UNION ALL SELECT w, k FROM c.events)) u
        JOIN b.dims d ON d.k = u.k""",
        "a window function cannot be done over a and c",
    ),
    "GROUPING SETS over two parties": (
        f"SELECT f.k, d.x, avg(y) AS m {J} GROUP BY GROUPING SETS ((f.k, d.x), (f.k))",
        "GROUP BY cannot be done over a and b",
    ),
    "PIVOT over two parties": (
        f"SELECT * FROM (SELECT f.id, d.cat, d.x {J}) PIVOT (sum(x) FOR cat IN ('c0') GROUP BY id)",
        "PIVOT cannot be done over a and b",
    ),
    "SEMI JOIN by a name that two tables have": (
        "SELECT f.y FROM a.facts f SEMI JOIN b.dims AS f ON f.k = a.facts.k",
        "SEMI JOIN cannot be done over a and b",
    ),
    "POSITIONAL JOIN of two parties": (
        "SELECT f.y, d.x FROM a.facts f POSITIONAL JOIN b.dims d",
        "POSITIONAL JOIN cannot be done over a and b",
    ),
    "EXCEPT ALL": (f"SELECT y, d.x {J} EXCEPT ALL SELECT w, d.x {E}", "EXCEPT cannot be done"),
    "a union of a number and a text": (
        f"SELECT y, d.x {J} UNION ALL SELECT w, d.cat {E}",
        "column x is BIGINT in block 1 of the union and VARCHAR in block 2",
    ),
    "INTERVAL keys": (
        "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.iv = d.iv",
        "a join key cannot be INTERVAL",
    ),
    "STRUCT keys": (
        "SELECT f.y, d.x FROM a.facts f JOIN b.dims d ON f.st = d.st",
        r"a join key cannot be STRUCT\(a BIGINT, b VARCHAR\)",
    ),
    "an INTERVAL": (f"SELECT f.iv, y {J}", "feature iv cannot be INTERVAL"),
    "a UUID": (f"SELECT f.uid, y {J}", "feature uid cannot be UUID"),
    "a TIMESTAMPTZ": (f"SELECT f.tz, y {J}", "feature tz cannot be TIMESTAMP WITH TIME ZONE"),
    "a list": (f"SELECT f.li, y {J}", r"feature li cannot be BIGINT\[\]"),
}  # fmt: skip
Place = tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]


def placed(numbers: dict[str, int]) -> Iterator[Place]:
    """The tables at parties of so many databases, and in one database."""
    parties = {party: [duckdb.connect() for _ in range(numbers[party])] for party in TABLES}
    with closing(duckdb.connect()) as central:
        for con in (central, *(con for databases in parties.values() for con in databases)):
            con.execute("SET threads = 1; SET TimeZone = 'UTC'")
        for party, tables in TABLES.items():
            central.execute(f"ATTACH ':memory:' AS {party}")
            for name, query in tables.items():
                central.execute(f'CREATE TABLE {party}."{name}" AS {query}')
                for place, con in enumerate(parties[party]):
                    part = f"i % {numbers[party]} = {place}"
                    con.execute(f'CREATE TABLE "{name}" AS {query} WHERE {part}')
        yield DatabaseCatalog({party: tuple(own) for party, own in parties.items()}), central
        for con in (con for databases in parties.values() for con in databases):
            con.close()


@pytest.fixture(scope="module")
def whole() -> Iterator[Place]:
    """Parties of one database each."""
    yield from placed({"a": 1, "b": 1, "c": 1})


@pytest.fixture(scope="module")
def parted() -> Iterator[Place]:
    """Two parties of two databases each."""
    yield from placed({"a": 2, "b": 1, "c": 2})


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(query: str, whole: Place, parted: Place) -> None:
    assert same_rows(*whole, query)
    assert same_rows(*parted, query)


@pytest.mark.parametrize("query", OF_ONE_DATABASE.values(), ids=OF_ONE_DATABASE)
def test_others_are_evaluated_where_one_database_has_the_rows(
    query: str, whole: Place, parted: Place
) -> None:
    assert same_rows(*whole, query)
    with pytest.raises(PlanError, match="not the same over the 2 clients") as caught:
        plan(parted[0], query)
    assert caught.value.line
    assert caught.value.hint


@pytest.mark.parametrize(("query", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_has_a_place_and_a_cure(query: str, message: str, whole: Place) -> None:
    with pytest.raises((ParseError, PlanError), match=message) as caught:
        plan(whole[0], query)
    assert caught.value.line
    assert caught.value.hint
