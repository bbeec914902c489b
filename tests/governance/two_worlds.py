"""Random policies and statements over tables and views of databases that differ in one value."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from sqlfl.contract.schema import FeatureSpecification, KeySpecification, SlotSpecification
from sqlfl.options.policies import MODES, TrainingPolicy
from tests import depth
from tests.open_databases import in_memory

ROWS = 60
MADE = f"""CREATE TABLE patients AS SELECT i AS pid, 'n' || i AS ssn,
    (20 + i * i % 60)::INTEGER AS age, sin(i) AS bmi, i * 7 % 10 < 4 AS ill, 'w' || i % 4 AS ward,
    {{'a': i % 5, 'b': i % 3}} AS info
  FROM range({ROWS}) AS r(i);
CREATE TABLE visits AS SELECT i % {ROWS} AS pid, 'n' || i % {ROWS} AS ssn,
    (i % 9)::INTEGER AS cost, 'c' || i % 3 AS code
  FROM range({2 * ROWS}) AS r(i)"""
VIEWS = {
    "every_patient": "FROM patients",
    "most_patients": "SELECT * FROM every_patient WHERE pid > 3",
    "known_patients": "SELECT * FROM patients WHERE ill IS NOT NULL AND pid <> 4",
    "coarse_patients": "SELECT * REPLACE ((age // 20 * 20)::INTEGER AS age, bmi > 0 AS ill, "
    "round(bmi) AS bmi, ward[1] AS ward) FROM patients",
    "plain_patients": "SELECT * REPLACE (40 AS age, ward = 'w1' AS ill, {'a': pid, 'b': 1} "
    "AS info) FROM most_patients",
    "stays": "SELECT p.*, v.cost, v.code FROM patients p JOIN visits v USING (pid, ssn)",
    "every_visit": "FROM visits",
    "few_visits": "SELECT * FROM visits WHERE cost < 8",
}
"""Views of the owner's, by their names, each after those that it reads."""
COLUMNS = {"patients": ("pid", "ssn", "age", "bmi", "ill", "ward", "info"),
           "visits": ("pid", "ssn", "cost", "code")}  # fmt: skip
ALIKE = {
    "patients": (*[name for name in VIEWS if "patient" in name], "stays"),
    "visits": ("every_visit", "few_visits"),
}
"""Views with the columns of a table, which can stand in its place."""
COLUMNS |= {view: COLUMNS[table] for table, views in ALIKE.items() for view in views}
COLUMNS["stays"] += ("cost", "code")
SECRETS: dict[str, tuple[str, ...]] = {
    "age": ("77", "NULL", "-5", "300", "0"), "bmi": ("5.0", "NULL", "-1e300", "'nan'"),
    "ill": ("NOT ill", "NULL"), "ward": ("'w9'", "NULL", "'7'"),
    "ssn": ("'m4'", "'n1000'"), "pid": ("517", "100000"),
    "info": ("{'a': 3, 'b': 3}", "{'a': NULL, 'b': 1}", "NULL"),
}  # fmt: skip
"""Values of one row in the other world, by column. A key has its value in all tables, so that the
same rows are joined by it.
"""


@contextmanager
def world(
    secret: str | None = None, column: str = "", row: int = 17
) -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory(threads=1) as con:  # several decide which rows LIMIT takes of EXCEPT
        con.execute(MADE)
        if secret is not None:
            for table in ("patients", "visits") if column in ("pid", "ssn") else ("patients",):
                con.execute(f"UPDATE {table} SET {column} = {secret} WHERE pid = {row}")
        for name, text in VIEWS.items():
            con.execute(f"CREATE VIEW {name} AS {text}")
        yield con


@dataclass(frozen=True)
class Difference:
    """Difference of a table, or a view, between two worlds."""

    columns: frozenset[str] = frozenset()
    """Columns of which one world has values that the other has not."""
    gone: frozenset[str] = frozenset()
    """Columns that have NULL, or NaN, more often in one of the worlds."""
    rows: bool = False
    """True if the worlds have different numbers of rows."""


Differences = Mapping[str, Difference]
"""Differences of all tables and views, by their names."""


def differences(here: duckdb.DuckDBPyConnection, there: duckdb.DuckDBPyConnection) -> Differences:
    return {name: _difference(here, there, name) for name in COLUMNS}


def _difference(
    here: duckdb.DuckDBPyConnection, there: duckdb.DuckDBPyConnection, name: str
) -> Difference:
    texts = ", ".join(f"{column}::VARCHAR" for column in COLUMNS[name])
    first, second = (con.execute(f"SELECT {texts} FROM {name}").fetchall() for con in (here, there))
    columns, gone = set[str](), set[str]()
    for place, column in enumerate(COLUMNS[name]):
        before, after = (Counter(row[place] for row in rows) for rows in (first, second))
        if before != after:
            columns.add(column)
        if any(before[value] != after[value] for value in (None, "nan")):
            gone.add(column)
    return Difference(frozenset(columns), frozenset(gone), len(first) != len(second))


# -- policies --------------------------------------------------------------------------------------

RolesOf = dict[str, dict[str, tuple[str, ...]]]
"""Columns by table or view, and by role."""


def some_policy(draw: random.Random) -> TrainingPolicy:
    modes = {name: draw.choice(("exact", "exact", "never")) for name in MODES}
    for name in ("labels", "predictions"):
        modes[name] = draw.choice(("exact", "noised", "never"))
    if draw.random() < 0.25:
        modes = dict.fromkeys(MODES, "exact")
    epsilon = draw.choice((None, None, None, 1.0))
    conditions = draw.choice((None, None, "exact", "never"))
    least = draw.choice((1, 1, 3))
    return TrainingPolicy(
        min_rows=1, min_cell=least, epsilon=epsilon, conditions=conditions, **modes
    )


def some_roles(
    draw: random.Random, name: str, hidden: frozenset[str], generous: bool
) -> dict[str, tuple[str, ...]]:
    """Return roles of the columns of a table or view. Columns that are not hidden get most roles,
    so that most statements are about their use of the hidden ones."""
    roles: dict[str, list[str]] = {}
    for column in COLUMNS[name]:
        often = {"train": 0.5, "filter": 0.4, "label": 0.3, "join": 0.1, "identify": 0.2}
        if column in ("pid", "ssn"):
            often = {"train": 0.1, "filter": 0.1, "label": 0.05, "join": 0.9, "identify": 0.1}
        for role, share in often.items():
            if draw.random() < (0.95 if generous and column not in hidden else share):
                roles.setdefault(role, []).append(column)
    return {role: tuple(names) for role, names in roles.items()}


def some_grants(draw: random.Random, differs: Differences) -> tuple[TrainingPolicy, RolesOf]:
    """Return a policy, and the roles by which nothing that differs may leave. Half of them are of
    tables alone, others also of views, or of views alone."""
    generous = draw.random() < 0.8
    policy = some_policy(draw)
    names = ["patients", "visits"]
    if draw.random() < 0.5:
        views = [name for name in VIEWS if not differs[name].rows]
        names = [name for name in names if draw.random() < 0.8]
        names += draw.sample(views, draw.choice((1, 2, 3, len(views))))
    roles: RolesOf = {}
    for name in names:
        difference = differs[name]
        roles[name] = some_roles(draw, name, difference.columns, generous)
        for _ in range(3):  # others of the same policy that let nothing out
            if ways_out(policy, roles[name], difference):
                roles[name] = some_roles(draw, name, difference.columns, generous)
        for role in ways_out(policy, roles[name], difference):
            kept = (c for c in roles[name][role] if c not in difference.columns)
            roles[name][role] = tuple(kept)
    return policy, roles


def ways_out(
    policy: TrainingPolicy, roles: Mapping[str, tuple[str, ...]], difference: Difference
) -> list[str]:
    """Return the roles by which something that follows from a value that differs may leave without
    noise, but for that two keys are equal. Rows without a label are left out, also where labels are
    noised."""
    exact = policy.epsilon is None
    conditions = policy.conditions or _default(policy)
    ways = {
        "train": difference.columns
        if exact and "exact" in (policy.predictions, policy.moments)
        else (),
        "label": ()
        if policy.labels == "never"
        else difference.columns
        if exact and policy.labels == "exact"
        else difference.gone,
        "identify": difference.columns if policy.identifiers == "exact" else (),
        "filter": difference.columns if conditions == "exact" else (),
    }
    return [role for role, columns in ways.items() if {*columns} & {*roles.get(role, ())}]


def _default(policy: TrainingPolicy) -> str:
    """Return `conditions` of a policy that does not say it."""
    every = {getattr(policy, name) for name in MODES}
    return "exact" if every == {"exact"} else "never"


# -- statements ------------------------------------------------------------------------------------


class Draw(random.Random):
    """Random numbers of one case."""

    hidden = ""
    """The column whose value differs, which statements name more often than others."""


def draws(number: int) -> Iterator[Draw]:
    for case in range(number):
        yield Draw(f"{depth.SEED} two worlds {case}")


def over_views(draw: random.Random, text: str, names: Sequence[str]) -> str:
    """Return the statement over views in place of some of its tables, of those with these names."""

    def other(match: re.Match[str]) -> str:
        alike = [name for name in ALIKE[match[0]] if name in names]
        table = [match[0]] * (match[0] in names or not alike)
        return draw.choice([*alike, *table])

    return re.sub(r"\b(patients|visits)\b", other, text)


VALUES = {
    "age": ("30", "77", "40.5"), "bmi": ("0.5", "0"), "ill": ("TRUE",), "ward": ("'w1'",),
    "pid": ("17", "128"), "ssn": ("'n17'", "'n5'"), "cost": ("3",), "code": ("'c1'",),
    "info": ("{'a': 2, 'b': 2}",),
}  # fmt: skip


def some_column(draw: random.Random, table: str = "p") -> str:
    names = COLUMNS["patients" if table == "p" else "visits"]
    if isinstance(draw, Draw) and draw.hidden in names and draw.random() < 0.4:
        return draw.hidden
    return draw.choice(names)


def some_value(draw: random.Random, name: str = "") -> str:
    """An expression of columns of p."""
    name = name or some_column(draw)
    value = draw.choice(VALUES[name])
    return draw.choice(
        (
            f"p.{name}", f"p.{name}", f"p.{name} = {value}", f"CAST(p.{name} AS VARCHAR)",
            f"CASE WHEN p.{name} = {value} THEN 9 ELSE 0 END", f"TRY(CAST(p.{name} AS TINYINT))",
            f"CAST(p.{name} AS TINYINT)", f"nullif(p.{name}, {value})", f"p.{name} IS NULL",
            f"CASE WHEN p.{name} = {value} THEN CAST('x' AS INTEGER) ELSE 1 END",
            f"CASE WHEN p.{name} = {value} THEN 1 END", f"CAST(p.{name} AS BOOLEAN)",
            f"CASE WHEN p.{name} = {value} THEN CAST('nan' AS DOUBLE) ELSE 1 END",
            "p.age + p.bmi", "p.age * 100000000", "CAST(p.age AS DOUBLE) * 2", "sqrt(p.bmi)",
            f"(SELECT v.cost FROM visits v WHERE v.pid = p.pid AND p.{name} = {value})",
            f"(SELECT max(v.cost) FROM visits v WHERE v.pid = p.pid AND p.{name} = {value})",
            "(SELECT max(v.cost) FROM visits v WHERE v.pid = p.pid)",
            f"(SELECT count(*) FROM patients q WHERE q.pid = p.pid AND q.{name} = {value})",
            "sum(p.age) OVER (PARTITION BY p.ward)", "p.ward LIKE 'w%'", "p.age / 7", "ln(p.age)",
            f"EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND p.{name} IS NOT NULL)",
            f"max(p.{name}) OVER ()", f"rank() OVER (ORDER BY p.{name})",
            f"count(*) OVER (PARTITION BY p.{name})", "lag(p.age) OVER (ORDER BY p.pid)",
            "lead(p.age) OVER (PARTITION BY p.ward ORDER BY p.pid)", "p.info.a",
            "p.info.a = p.info.b", "p.ward COLLATE NOCASE = 'W1'", "TRY(CAST(p.info.b AS TINYINT))",
            f"p.pid IN (SELECT v.pid FROM visits v WHERE v.cost > 3 AND p.{name} IS NULL)",
            f"(SELECT count(*) FROM visits v WHERE v.cost > 3 OR p.{name} = {value})",
            f"(WITH w AS (SELECT v.pid, max(v.cost) AS m FROM visits v WHERE p.{name} = {value} "
            "GROUP BY v.pid) SELECT w.m FROM w WHERE w.pid = p.pid)",
            f"(SELECT sum(q.age) FROM patients q WHERE q.pid = p.pid GROUP BY q.{name})",
            f"{value} IN (SELECT q.{name} FROM patients q)",
            f"p.{name} IN (SELECT v.cost FROM visits v)",
            "p.pid IN (SELECT v.pid FROM visits v)", "NOT p.ssn IN (SELECT v.ssn FROM visits v)",
            f"NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND p.{name} = {value})",
            f"(SELECT avg(q.{name}) FROM patients q)", "avg(p.bmi) OVER (PARTITION BY p.ward)",
            f"(SELECT v.cost FROM visits v WHERE v.pid = p.pid ORDER BY p.{name} LIMIT 1)",
            f"(SELECT v.cost FROM visits v WHERE v.pid = p.pid AND v.cost < p.{name} LIMIT 1)",
            f"lead(p.{name}, 1, p.{name}) OVER (PARTITION BY p.ward ORDER BY p.pid)",
            f"max(p.{name}) OVER (PARTITION BY p.pid)", "sum(p.age) OVER (PARTITION BY p.ill)",
            "avg(p.age) OVER (ORDER BY p.pid ROWS 2 PRECEDING)",
            f"max(p.{name}) OVER (ORDER BY p.pid ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
            f"first_value(p.{name}) OVER (PARTITION BY p.ward ORDER BY p.age)",
            f"max(p.age) FILTER (p.{name} = {value}) OVER (PARTITION BY p.ward)",
            f"avg(p.age) OVER (PARTITION BY p.{name}) - avg(p.age) OVER ()",
            f"count(*) OVER () - count(*) OVER (PARTITION BY p.{name})",
            f"(SELECT max(q.{name}) FROM patients q WHERE q.pid = p.pid)",
            f"(SELECT sum(v.cost) FROM visits v WHERE v.pid = p.pid AND v.cost > p.{name})",
            "(SELECT sum(v.cost) FROM visits v WHERE v.ssn = p.ssn)",
            f"(SELECT count(*) FROM patients q WHERE q.{name} = p.{name})",
            f"CASE WHEN EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid) THEN p.{name} END",
            f"(SELECT avg(q.{name}) FROM patients q WHERE q.{name} > {value})",
            f"max((SELECT max(v.cost) FROM visits v WHERE v.pid = p.pid)) OVER (PARTITION BY "
            f"p.{name})",
        )
    )  # fmt: skip


def some_condition(draw: random.Random, name: str = "") -> str:
    name = name or some_column(draw)
    value = draw.choice(VALUES[name])
    other = some_column(draw, "v")
    return draw.choice(
        (
            f"p.{name} = {value}", f"p.{name} <> {value}", f"p.{name} IS NOT NULL",
            f"p.{name} IS NULL", f"NOT (p.{name} = {value})", f"p.{name} IN ({value})",
            f"TRY_CAST(p.{name} AS TINYINT) IS NOT NULL", f"TRY_CAST(p.{name} AS TINYINT) = p.pid",
            "TRY_CAST(p.ssn AS ENUM('n17', 'n5')) IS NOT NULL",
            "TRY_CAST(p.ssn AS ENUM('n17', 'n5')) = p.ssn", "p.ill = CAST(p.age AS BOOLEAN)",
            "TRY_CAST(CAST(p.ill AS VARCHAR) AS ENUM('true')) IS NOT NULL",
            "CAST(p.pid AS TINYINT) = p.pid", "p.pid = CAST(p.pid AS HUGEINT)",
            "CAST(p.pid AS VARCHAR) = CAST(p.pid AS VARCHAR)", "p.age // 8 % 2 = 1",
            "p.pid IS NOT NULL", "p.pid = p.pid", "p.ssn = p.ssn", f"p.{name} = p.{name}",
            f"EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND v.{other} IS NOT NULL)",
            f"EXISTS (SELECT 1 FROM visits v WHERE v.ssn = p.ssn AND p.{name} = {value})",
            "NOT EXISTS (SELECT 1 FROM visits v WHERE v.ssn = p.ssn)",
            "p.pid IN (SELECT v.pid FROM visits v)", "p.ssn NOT IN (SELECT v.ssn FROM visits v)",
            f"p.{name} IN (SELECT q.{name} FROM patients q WHERE q.{name} = {value})",
            f"p.{name} > (SELECT avg(q.age) FROM patients q)", "(SELECT count(*) FROM visits) > 5",
            f"(SELECT count(*) FROM patients q WHERE q.{name} = {value}) > 0",
            f"CASE WHEN p.{name} = {value} THEN CAST('x' AS BOOLEAN) ELSE TRUE END",
            f"(p.{name} IS NOT NULL) IS TRUE", "p.pid = p.ssn", "TRUE",
            f"coalesce(p.{name} = {value}, TRUE)", "p.pid IS NOT DISTINCT FROM p.pid",
            "p.info.a = p.info.b", "p.info.a = p.pid", "p.info = p.info", "p.info.a IS NOT NULL",
            "p.ward COLLATE NOCASE = 'W1'", "p.ssn COLLATE NOCASE = p.ssn",
            "EXISTS (SELECT 1 FROM visits v GROUP BY v.pid HAVING v.pid = p.pid AND count(*) > 1)",
            f"NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND p.{name} = {value})",
            "p.pid = ANY (SELECT v.pid FROM visits v WHERE v.cost = p.age)",
            f"EXISTS (WITH w AS (SELECT v.pid FROM visits v WHERE p.{name} = {value}) "
            "SELECT 1 FROM w WHERE w.pid = p.pid)",
            f"(p.pid, p.{name}) IN (SELECT v.pid, {value} FROM visits v)",
            "EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid OFFSET 1)",
            f"EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid OR p.{name} = {value})",
            f"EXISTS (SELECT 1 FROM (SELECT v.pid FROM visits v LIMIT 40) v WHERE v.pid = p.pid "
            f"AND p.{name} IS NOT NULL)", "p.pid IN (FROM visits SELECT pid WHERE cost > 3)",
            f"p.pid IN (SELECT v.pid FROM visits v INTERSECT SELECT q.pid FROM patients q "
            f"WHERE q.{name} = {value})",
        )
    )  # fmt: skip


def some_source(draw: random.Random) -> str:
    name = some_column(draw)
    value, condition = draw.choice(VALUES[name]), some_condition(draw, name)
    listed = " UNION ALL ".join(f"SELECT {v} AS ssn" for v in ("'n17'", "'n5'", "'n8'"))
    inner = "pid, ssn, age, bmi, ill, ward, info"
    other, key = some_column(draw), some_column(draw, "v")
    made = {"pid": "p.pid", "ssn": "p.ssn", "age": "max(p.age)", "bmi": "avg(p.bmi)",
            "ill": "bool_or(p.ill)", "ward": "min(p.ward)", "info": "max(p.info)"}  # fmt: skip
    grouped = ", ".join(f"{expression} AS {column}" for column, expression in made.items())
    all_of = ", ".join(f"p.{column}" for column in made)
    joins = (
        "patients p JOIN visits v ON v.pid = p.pid", "patients p JOIN visits v USING (pid)",
        f"patients p JOIN visits v ON p.{name} = v.pid",
        f"patients p JOIN visits v ON v.pid = p.pid AND {condition}",
        f"patients p LEFT JOIN visits v ON v.pid = p.pid AND {condition}",
        "patients p LEFT JOIN visits v ON v.ssn = p.ssn",
        "patients p SEMI JOIN visits v ON v.pid = p.pid",
        f"patients p ANTI JOIN visits v ON v.pid = p.pid AND {condition}",
        "patients p FULL JOIN visits v ON v.pid = p.pid",
        f"visits v RIGHT JOIN patients p ON v.pid = p.pid AND {condition}",
        f"patients p, LATERAL (SELECT v.cost FROM visits v WHERE v.pid = p.pid AND {condition}) v",
        f"patients p LEFT JOIN LATERAL (SELECT p.{name} AS x WHERE {condition}) v ON TRUE",
        "patients p JOIN (SELECT v.pid, max(v.cost) AS cost FROM visits v GROUP BY v.pid) v "
        "ON v.pid = p.pid",
        "patients p JOIN (SELECT v.pid FROM visits v GROUP BY v.pid HAVING count(*) > 1) v "
        "ON v.pid = p.pid",
        f"patients p JOIN (SELECT q.{name} FROM patients q GROUP BY q.{name}) v "
        f"ON v.{name} = p.{name}",
        "patients p JOIN patients v ON v.info.a = p.info.b",
        "patients p ASOF JOIN visits v ON v.pid = p.pid AND v.cost <= p.age",
        "patients p POSITIONAL JOIN visits v",
    )  # fmt: skip
    constants = (
        "patients p JOIN (VALUES ('n17'), ('n5')) AS v(ssn) ON v.ssn = p.ssn",
        f"patients p JOIN (SELECT {value} AS {name}) AS v ON v.{name} = p.{name}",
        f"(SELECT {inner} FROM patients JOIN ({listed}) AS v USING (ssn)) AS p",
        f"(SELECT {inner} FROM patients JOIN (VALUES ('n17')) AS v(ssn) USING (ssn)) AS p",
        f"patients p JOIN (VALUES (0, 40), (40, 99)) AS v(a, b) ON p.{name} BETWEEN v.a AND v.b",
    )  # fmt: skip
    plain = (
        *["patients p"] * 2, f"(SELECT {inner} FROM patients p WHERE {condition}) AS p",
        "(SELECT COLUMNS('.*') FROM patients) AS p", f"(FROM patients SELECT {inner}) AS p",
        f"(SELECT * REPLACE ({name} AS age) FROM patients) AS p",
        f"(SELECT * EXCLUDE ({name}), pid AS {name} FROM patients) AS p",
        f"(SELECT {all_of}, row_number() OVER (ORDER BY p.{name}) AS x FROM patients p) AS p",
        f"(SELECT {all_of}, max(p.age) OVER w AS x FROM patients p "
        f"WINDOW w AS (PARTITION BY p.{name})) AS p",
        f"(WITH w AS (SELECT {inner} FROM patients p WHERE {condition}) FROM w) AS p",
        "(SELECT pid, v AS age FROM (SELECT pid, age, info.a AS a FROM patients) "
        "UNPIVOT (v FOR n IN (age, a))) AS p",
        f"(SELECT {all_of}, CAST(p.{name} AS TINYINT) AS x FROM patients p) AS p",
        f"(SELECT {all_of}, avg(p.age) OVER (PARTITION BY p.{name}) AS x FROM patients p) AS p",
        f"(WITH w AS (SELECT v.pid, max(v.cost) AS m FROM visits v GROUP BY v.pid) "
        f"SELECT {all_of}, w.m AS x FROM patients p JOIN w ON w.pid = p.pid) AS p",
        f"(WITH w AS (SELECT q.{name}, avg(q.age) AS m FROM patients q GROUP BY 1), "
        f"u AS (SELECT m FROM w) SELECT {inner} FROM patients, u WHERE u.m > 40) AS p",
        f"(SELECT {all_of}, (SELECT max(v.cost) FROM visits v WHERE v.pid = p.pid AND "
        f"p.{name} = {value}) AS x FROM patients p) AS p",
    )  # fmt: skip
    apart = (
        f"(SELECT DISTINCT {inner} FROM patients) AS p",
        f"(SELECT DISTINCT p.{name} FROM patients p) AS p",
        f"(SELECT DISTINCT p.ward, p.{name} FROM patients p) AS p",
        f"(SELECT DISTINCT ON (p.{name}) {all_of} FROM patients p) AS p",
    )  # fmt: skip
    groups = (
        f"(SELECT {grouped} FROM patients p GROUP BY p.pid, p.ssn) AS p",
        f"(SELECT {grouped} FROM patients p GROUP BY p.pid, p.ssn, p.{name}) AS p",
        f"(SELECT max(p.pid) AS pid FROM patients p GROUP BY p.{name}) AS p",
        f"(SELECT p.{name}, count(*) AS age FROM patients p GROUP BY 1) AS p",
        "(SELECT max(p.pid) AS pid FROM patients p GROUP BY p.info.a) AS p",
        f"(SELECT max(p.pid) AS pid FROM patients p GROUP BY GROUPING SETS ((p.{name}), ())) AS p",
        "(SELECT max(p.pid) AS pid, p.ward COLLATE NOCASE AS ward FROM patients p GROUP BY 2) p",
        f"(SELECT max(p.pid) AS pid FROM patients p GROUP BY {condition}) AS p",
        f"(SELECT max(p.pid) AS pid FROM patients p GROUP BY CUBE (p.{name}, p.{other})) AS p",
        f"(SELECT max(p.pid) AS pid FROM patients p GROUP BY p.{other} "
        f"HAVING bool_or({condition})) AS p",
        f"(SELECT {grouped} FROM patients p GROUP BY p.pid, p.ssn "
        f"HAVING max(p.{name}) = {value}) AS p",
        f"(SELECT {grouped.replace('max(p.age)', f'max(p.pid) FILTER ({condition})')} "
        "FROM patients p GROUP BY p.pid, p.ssn) AS p",
    )  # fmt: skip
    first = (
        f"(SELECT {all_of} FROM patients p ORDER BY p.{name} LIMIT 40) AS p",
        f"(SELECT {inner} FROM patients LIMIT 40) AS p",
        f"(SELECT {all_of} FROM patients p QUALIFY row_number() OVER (ORDER BY p.{name}) < 40) "
        "AS p",
        f"(SELECT {all_of} FROM patients p QUALIFY {condition}) AS p",
        f"(SELECT p.pid FROM patients p JOIN visits v ON v.pid = p.pid AND {condition} LIMIT 40) "
        "AS p",
    )
    sets = (
        f"(SELECT {inner} FROM patients UNION SELECT {inner} FROM patients) AS p",
        f"(SELECT p.{name} FROM patients p UNION SELECT p.{name} FROM patients p) AS p",
        f"(SELECT p.{name} FROM patients p INTERSECT SELECT v.{key} FROM visits v) AS p",
        f"(SELECT p.pid, p.{name} FROM patients p EXCEPT SELECT p.pid, {value} "
        "FROM patients p) AS p",
        f"(SELECT p.pid, p.{name} FROM patients p EXCEPT ALL SELECT p.pid, {value} "
        "FROM patients p) AS p",
        f"(SELECT {inner} FROM patients EXCEPT SELECT {all_of} FROM patients p "
        f"WHERE {condition}) AS p",
        f"(SELECT {all_of} FROM patients p UNION ALL SELECT {all_of} FROM patients p "
        f"WHERE {condition}) AS p",
    )
    return draw.choice(
        draw.choice((plain, plain, joins, joins, constants, apart, groups, first, sets))
    )


def some_key(draw: random.Random) -> str:
    name = draw.choice(("pid", "pid", "pid", "ssn", some_column(draw)))
    return draw.choice(
        (*[f"p.{name}"] * 8, f"CAST(p.{name} AS VARCHAR)", f"CAST(p.{name} AS HUGEINT)",
         f"lower(CAST(p.{name} AS VARCHAR))", f"CAST(p.{name} AS TINYINT)", f"p.{name} = 17",
         f"coalesce(p.{name}, {draw.choice(VALUES[name])})", f"TRY_CAST(p.{name} AS TINYINT)")
    )  # fmt: skip


@dataclass(frozen=True)
class Statement:
    text: str
    slot: SlotSpecification


def some_statement(draw: random.Random, names: Sequence[str]) -> Statement:
    """Return a statement over tables and views. Most have one part that is not plain, so that it
    alone decides what becomes of them."""
    parts = ("feature", "target", "identifier", "key", "kept", "source", "where", "tail")
    several = (*parts, "source", "source", "where")
    odd = draw.sample(several, draw.choice((1, 1, 1, 2))) if draw.random() < 0.7 else parts
    all_odd = odd is parts

    def has(part: str, often: float) -> bool:
        return part in odd and (not all_odd or draw.random() < often)

    outputs, features = [], draw.choice((1, 1, 2)) if has("feature", 0.5) else 0
    target, named = has("target", 0.3), has("identifier", 0.15)
    keyed, kept = has("key", 0.6) or draw.random() < 0.3, has("kept", 0.1)
    outputs += [some_value(draw) for _ in range(features)]
    labels = [some_value(draw, draw.choice(("ill", "age", "bmi"))) for _ in range(target)]
    outputs += labels + [some_value(draw) for _ in range(named)]
    outputs += [some_key(draw) if "key" in odd else "p.pid"] * keyed
    if kept:
        test = draw.choice((some_condition(draw), f"({[*labels, 'p.ill'][0]}) IS NOT NULL"))
        outputs.append(f"(({test}) IS TRUE) AS sqlfl_kept")
    if not outputs:
        outputs.append("1")
    conditions = [some_condition(draw) for _ in range(draw.choice((1, 1, 2)))]
    where = " AND ".join(conditions) if has("where", 0.5) else ""
    tail = ""
    if has("tail", 0.2):
        tail = draw.choice((" LIMIT 40", " ORDER BY 1 LIMIT 40", f" ORDER BY {some_value(draw)}",
                            f" ORDER BY {some_value(draw)} LIMIT 40"))  # fmt: skip
    source = some_source(draw) if "source" in odd else "patients p"
    text = f"SELECT {', '.join(outputs)} FROM {source}"
    text += f"{f' WHERE {where}' * bool(where)}{tail}"
    if all_odd and draw.random() < 0.1:
        text = f"WITH patients AS (SELECT * FROM patients p WHERE {some_condition(draw)}) {text}"
    item = SlotSpecification(
        0, tuple(FeatureSpecification(f"f{n}", "numeric") for n in range(features)), target, False,
        (0,) * named, (KeySpecification(0, ("BIGINT",)),) * keyed, (0,), False, "", "arrays",
    )  # fmt: skip
    return Statement(over_views(draw, text, names), item)


def a_filtered_statement(draw: random.Random, names: Sequence[str]) -> Statement:
    """Return a statement whose aggregate counts the rows that its FILTER takes. Nothing else names
    the columns of that."""
    name = some_column(draw)
    value = draw.choice(VALUES[name])
    aggregate = draw.choice(("count(*)", "count(p.pid)", "sum(1)", "max(1)", "bool_or(TRUE)"))
    tests = (f"p.{name} = {value}", f"p.{name} IS NULL", f"NOT (p.{name} <> {value})",
             f"p.{name} IN ({value})", f"p.pid > 3 AND p.{name} = {value}",
             f"TRY_CAST(p.{name} AS TINYINT) IS NOT NULL", some_condition(draw, name))  # fmt: skip
    call = f"{aggregate} FILTER ({draw.choice(tests)})"
    linked = f"(SELECT {call.replace('p.', 'q.')} FROM patients q WHERE q.pid = p.pid)"
    beside = f"(SELECT count(*) FILTER (p.{name} = {value}) FROM visits v WHERE v.pid = p.pid)"
    value_of_row = draw.choice(
        (f"{call} OVER ()", f"{call} OVER (PARTITION BY p.pid)", linked, beside)
    )
    grouped = f"SELECT p.pid, {call} AS n FROM patients p GROUP BY p.pid"
    role = draw.choice(("feature", "feature", "target", "identifier", "rows", "rows", "rows"))
    if role == "rows":
        text = draw.choice(
            (
                f"SELECT 1 FROM ({grouped} HAVING {call} IS NOT NULL) x",
                f"SELECT 1 FROM ({grouped} HAVING CAST({call} AS VARCHAR) = '1') x",
                f"SELECT 1 FROM ({grouped}) x WHERE CAST(x.n AS VARCHAR) = '1'",
                f"SELECT 1 FROM ({grouped} ORDER BY 2 LIMIT 7) x WHERE x.pid < 20",
                f"SELECT 1 FROM patients p QUALIFY CAST({call} OVER () AS VARCHAR) <> '9'",
                f"SELECT 1 FROM patients p WHERE CAST({value_of_row} AS VARCHAR) = '1'"
                if "OVER" not in value_of_row else f"SELECT 1 FROM patients p WHERE {linked} = 1",
                f"SELECT 1 FROM (SELECT DISTINCT {call} OVER (PARTITION BY p.pid) FROM patients p)",
            )
        )  # fmt: skip
    else:
        text = draw.choice(
            (f"SELECT {value_of_row} FROM patients p", f"SELECT x.n FROM ({grouped}) x")
        )
    features = (FeatureSpecification("f0", "numeric"),) * (role == "feature")
    item = SlotSpecification(
        0, features, role == "target", False, (0,) * (role == "identifier"), (), (0,), False, "",
        "arrays",
    )  # fmt: skip
    return Statement(over_views(draw, text, names), item)


LAB = f"""CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp, sin(2 * i) AS y, i % 3 = 0 AS sick
  FROM range({ROWS}) AS r(i)"""
OWN = (
    """TRAIN MODEL own USING linear_regression TARGET y WITH (algorithm = 'sgd', epochs = 1)
  FROM (SELECT crp, y FROM lab.tests)""",
    """TRAIN MODEL sorted USING logistic_regression TARGET sick WITH (algorithm = 'sgd', epochs = 1)
  FROM (SELECT crp, sick FROM lab.tests)""",
    """TRAIN MODEL m USING linear_regression TARGET y WITH (algorithm = 'sgd', epochs = 1)
  FROM (SELECT crp, y FROM lab.tests)""",
)
BESIDE = (
    "(SELECT count(*) FROM visits v WHERE v.pid = t.pid)",
    "(SELECT max(v.cost) FROM visits v WHERE v.pid = t.pid)",
    "(SELECT avg(l.crp) FROM lab.tests l WHERE l.pid = p.pid)",
    "EXISTS (SELECT 1 FROM visits v WHERE v.pid = t.pid)",
    "(SELECT count(*) FROM lab.tests l WHERE l.pid = p.pid AND l.sick)",
)
"""Values of one party's rows that follow from another party's."""


def between_parties(draw: random.Random) -> str:
    name = some_column(draw)
    value = draw.choice(VALUES[name])
    return draw.choice(
        (
            "p.pid IN (SELECT l.pid FROM lab.tests l WHERE l.crp > 0)",
            "p.pid NOT IN (SELECT l.pid FROM lab.tests l WHERE l.crp > 0)",
            "EXISTS (SELECT 1 FROM lab.tests l WHERE l.pid = p.pid)",
            f"EXISTS (SELECT 1 FROM lab.tests l WHERE l.pid = p.pid AND p.{name} = {value})",
            f"NOT EXISTS (SELECT 1 FROM lab.tests l WHERE l.pid = p.pid AND p.{name} = {value})",
            "NOT EXISTS (SELECT 1 FROM lab.tests l WHERE l.pid = p.pid AND l.sick)",
            f"EXISTS (WITH w AS (SELECT l.pid FROM lab.tests l) SELECT 1 FROM w "
            f"WHERE w.pid = p.pid AND p.{name} IS NOT NULL)",
            f"t.pid IN (SELECT q.pid FROM patients q WHERE q.{name} = {value})",
            f"t.pid IN (SELECT q.pid FROM patients q GROUP BY q.pid "
            f"HAVING max(q.{name}) = {value})",
            f"NOT EXISTS (SELECT 1 FROM patients q WHERE q.pid = t.pid AND q.{name} = {value})",
            "(SELECT count(*) FROM visits v WHERE v.pid = t.pid) > 1",
            f"(SELECT max(q.age) FROM patients q WHERE q.pid = t.pid AND q.{name} IS NULL) > 30",
            f"t.crp > 0 OR p.{name} = {value}",
            f"t.sick = (p.{name} = {value})",
        )
    )  # fmt: skip


def of_clinic(text: str) -> str:
    return re.sub(rf"\b({'|'.join(COLUMNS)})\b", r"clinic.\1", text)


@dataclass(frozen=True)
class Query:
    """FROM and WHERE of a query over a table of the clinic and one of the analyst's, and one more
    value of its rows."""

    rows: str
    value: str = ""

    @property
    def measured(self) -> str:
        return f"(SELECT t.crp, t.y {self.rows})"

    @property
    def trained(self) -> str:
        return f"(SELECT {self.value}t.crp, t.y {self.rows})"

    @property
    def classed(self) -> str:
        return f"(SELECT t.crp, t.sick {self.rows})"


def some_query(draw: random.Random, names: Sequence[str], plain: float = 0.1) -> Query:
    """Return a query; `plain` is the share of those whose parts are all plain."""
    odd = draw.choice(("source", "where", "between", "value", "value", "all", "all"))
    odd = "" if draw.random() < plain else odd
    source = some_source(draw) if odd in ("source", "all") else "patients p"
    condition = between_parties(draw) if odd == "between" else some_condition(draw)
    often = {"where": 1.0, "between": 1.0, "all": 0.5}.get(odd, 0.0)
    where = f"WHERE {condition}" * (draw.random() < often)
    values = ("", "", "p.age, ", "p.bmi, ")
    if odd in ("value", "all"):
        values = (f"{some_value(draw)} AS x, ", f"{draw.choice(BESIDE)} AS x, ")
    value = draw.choice(values)
    # the clinic's table on the right of a LEFT JOIN, with tests that find no patient
    on = draw.choice(("p.pid = t.pid", "p.pid = t.pid", "p.pid = t.pid - 7"))
    rows = f"FROM {source} JOIN lab.tests t ON p.pid = t.pid {where}"
    if source == "patients p" and draw.random() < 0.4:
        rows = f"FROM lab.tests t LEFT JOIN {source} ON {on} {where}"
    return Query(*(of_clinic(over_views(draw, text, names)) for text in (rows, value)))


SGD = "WITH (algorithm = 'sgd', epochs = {}) "
TRAINED = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y "


def some_training(draw: random.Random, query: Query) -> str:
    return draw.choice(
        (
            f"{TRAINED}TRANSFORM (auto) WITH (epochs = 2) FROM {query.trained}",
            f"{TRAINED}{SGD.format(1)}FROM {query.trained}",
            f"{TRAINED}{SGD.format(1)}FROM {query.trained}",
            "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET ill "
            f"{SGD.format(1)}FROM (SELECT t.crp, p.ill {query.rows})",
        )
    )


def some_measure(draw: random.Random, source: str, model: str = "own") -> str:
    """Return a statement that looks at a model over rows."""
    measures = (*MEASURES, *CLASSED) if model != "own" else MEASURES
    return draw.choice(
        (
            f"PREDICT MODEL {model} FROM {source}",
            f"{draw.choice(measures)} OF MODEL {model} FROM {source}",
            f"{draw.choice(measures)} OF MODEL {model} FROM {source}",
            f"EVALUATE MODEL {model} FROM {source}",
        )
    )


def a_statement(draw: random.Random, query: Query) -> str:
    return draw.choice(
        (
            f"PREDICT MODEL own ID (lab.tests.pid) FROM (SELECT t.crp {query.rows})",
            some_measure(draw, query.measured),
            some_measure(draw, query.measured),
            some_measure(draw, query.classed, "sorted"),
            f"CHECK TARGET y FROM {query.trained}",
            f"EXPLAIN {TRAINED.replace('OR REPLACE ', '')}FROM {query.trained}",
            some_training(draw, query),
            some_training(draw, query),
        )
    )


MEASURES = (
    "METRICS", "CONTRIBUTIONS", "RESIDUALS", "IMPORTANCE", "INFERENCE", "SKEW", "VALIDATE SKEW",
)  # fmt: skip
CLASSED = ("ROC", "CONFUSION", "CALIBRATION")
OF_MODEL = ("WEIGHTS OF MODEL m", "CURVES OF MODEL m", "FEATURES OF MODEL m", "DESCRIBE MODEL m")


@dataclass(frozen=True)
class Step:
    """Statement of the analyst, or one of the owner's or of plain DuckDB at the clinic."""

    text: str
    by: str = "acme"
    """'acme', 'owner' or 'clinic'."""
    lost_at: int = 0
    """Number of the residuals at which the lab is lost; 0 for none."""


def some_steps(draw: random.Random, policy: Policy) -> list[Step]:
    """Return two or three statements of the analyst, with what the owner does in between."""
    names = [*policy.grants]
    views = [name for name in names if name in VIEWS]
    view = draw.choice(views) if views else "patients"
    kinds = ["several", "several", "near", "join", "join", "model", "measures", "resume"]
    kind = draw.choice([*kinds, *["view"] * min(len(views), 2)])
    plain = 0.1 if kind == "several" else 0.5
    query, other = (some_query(draw, names, plain) for _ in range(2))
    match kind:
        case "near":
            rows = "FROM patients p JOIN lab.tests t ON p.pid = t.pid"
            wheres = draw.sample(("", "WHERE p.pid > 3", "WHERE p.pid > 4", "WHERE t.pid > 3"), 3)
            near = [Query(of_clinic(over_views(draw, f"{rows} {where}", names)), query.value)
                    for where in wheres]  # fmt: skip
            return [Step(a_statement(draw, one)) for one in near]
        case "join":
            text = draw.choice((query.trained, query.measured, query.classed))
            over = [
                lambda: some_measure(draw, "j", draw.choice(("own", "own", "sorted", "m"))),
                lambda: f"{TRAINED}{SGD.format(1)}FROM j", lambda: "CHECK TARGET y FROM j",
            ]  # fmt: skip
            between = [
                Step(f"CREATE OR REPLACE JOIN j AS {other.measured}"), Step("DROP JOIN j"),
                Step(f"REVOKE ALL ON {view} FROM 'acme'", "owner"),
                *[Step(grant, "owner") for grant in policy.grants.get(view, ())],
            ]  # fmt: skip
            steps = [Step(f"CREATE JOIN j AS {text}"), Step(draw.choice(over)())]
            return [*steps, *[draw.choice(between)] * (draw.random() < 0.5),
                    Step(draw.choice(over)())]  # fmt: skip
        case "model":
            return [
                Step(some_training(draw, query)),
                Step(some_measure(draw, draw.choice((query, other)).trained, "m")),
                Step(draw.choice(OF_MODEL)),
            ]
        case "measures":
            chosen = draw.sample((*MEASURES, *CLASSED), 3)
            return [Step(f"{measure} OF MODEL sorted FROM {query.classed}") for measure in chosen]
        case "resume":
            text = f"{TRAINED}WITH (algorithm = 'sgd', epochs = 3, checkpoint = 1) "
            return [
                Step(f"{text}FROM {query.trained}", lost_at=2),
                Step("RESUME MODEL m"),
                Step(some_measure(draw, query.trained, "m")),
            ]
        case "view":
            texts = (VIEWS[view], f"SELECT * FROM ({VIEWS[view]}) WHERE pid <> 5")
            change = Step(f"CREATE OR REPLACE VIEW {view} AS {draw.choice(texts)}", "clinic")
            if draw.random() < 0.3:
                change = Step(f"DROP VIEW {view}", "clinic")
            again = [Step(grant, "owner") for grant in policy.grants.get(view, ())]
            seen = Query(query.rows.replace("clinic.patients", f"clinic.{view}"), query.value)
            return [
                Step(a_statement(draw, seen)), change, *again * (draw.random() < 0.5),
                Step(a_statement(draw, draw.choice((seen, query)))),
            ]  # fmt: skip
    return [Step(a_statement(draw, one)) for one in (query, other)[: draw.choice((1, 2, 2))]]


@dataclass(frozen=True)
class Policy:
    """Rules of a policy, and statements that grant tables and views under it."""

    rules: str
    grants: Mapping[str, Sequence[str]]
    runs_per_day: int | None


def the_policy(draw: random.Random, differs: Differences) -> Policy:
    while True:
        policy, roles = some_grants(draw, differs)
        modes = {name: getattr(policy, name) for name in MODES}
        if "noised" not in modes.values() and policy.epsilon is None:
            break
    rules: dict[str, object] = {
        "min_rows": draw.choice((*[1] * 5, 20, 20, 100)), "min_cell": policy.min_cell,
        "min_difference": draw.choice((None, None, 3)),
        "runs_per_day": draw.choice((None, None, 1, 2)),
        "join_time": draw.choice((None, "'1 hour'", "'1 hour'", "'1 hour'")),
        "conditions": policy.conditions and f"'{policy.conditions}'",
    }  # fmt: skip
    rules |= {name: f"'{mode}'" for name, mode in modes.items()}
    grants: dict[str, list[str]] = {}
    for name, of_roles in roles.items():
        # hashes of keys leave as they are
        hidden = differs[name].columns
        of_roles["join"] = tuple(c for c in of_roles.get("join", ()) if c not in hidden)
        parts = [f"{role.upper()} ({', '.join(of)})" for role, of in of_roles.items() if of]
        parts += ["PREDICT"] * (draw.random() < 0.9)
        grants[name] = [f"GRANT {', '.join(parts)} ON {name} TO 'acme' UNDER r"] * bool(parts)
    text = ", ".join(f"{name} = {value}" for name, value in rules.items() if value is not None)
    return Policy(text, grants, rules["runs_per_day"])
