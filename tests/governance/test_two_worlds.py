"""Two worlds that differ in one value which a policy does not let out look the same to an analyst:
whatever the policy, and whatever the statement, the verdict and all that leaves are equal."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import Client, FeatureSpecification, KeySpecification, SlotSpecification
from sqlfl.governance.copies import copies
from sqlfl.governance.fragments import Fragments, roles_of
from sqlfl.governance.names import functions_of
from sqlfl.governance.policies import Grant, Roles, Ruling
from sqlfl.governance.scopes import Table
from sqlfl.governance.tree import SelectReading
from sqlfl.messages import Sealed
from sqlfl.messages.wire import encoded, received
from sqlfl.options.policies import MODES, TrainingPolicy, strictest
from sqlfl.transport.local import LocalTransport
from tests import depth
from tests.open_databases import in_memory

ROWS = 60
PATIENTS: Table = ("memory", "main", "patients")
VISITS: Table = ("memory", "main", "visits")
MADE = f"""CREATE TABLE patients AS SELECT i AS pid, 'n' || i AS ssn,
    (20 + i * i % 60)::INTEGER AS age, sin(i) AS bmi, i * 7 % 10 < 4 AS ill, 'w' || i % 4 AS ward,
    {{'a': i % 5, 'b': i % 3}} AS info
  FROM range({ROWS}) AS r(i);
CREATE TABLE visits AS SELECT i % {ROWS} AS pid, 'n' || i % {ROWS} AS ssn,
    (i % 9)::INTEGER AS cost, 'c' || i % 3 AS code
  FROM range({2 * ROWS}) AS r(i)"""
ALL_MODES = ("labels", "predictions", "moments", "identifiers", "weights", "metrics")
COLUMNS = {"patients": ("pid", "ssn", "age", "bmi", "ill", "ward", "info"),
           "visits": ("pid", "ssn", "cost", "code")}  # fmt: skip
SECRETS: dict[str, tuple[str, ...]] = {
    "age": ("77", "NULL", "-5", "300", "0"), "bmi": ("5.0", "NULL", "-1e300", "'nan'"),
    "ill": ("NOT ill", "NULL"), "ward": ("'w9'", "NULL", "'7'"),
    "ssn": ("'m4'", "'n1000'"), "pid": ("517", "100000"),
    "info": ("{'a': 3, 'b': 3}", "{'a': NULL, 'b': 1}", "NULL"),
}  # fmt: skip
"""Of one row: what a column has in the other world. A key has that wherever it is, so that the same
rows are joined by it."""


# -- policies --------------------------------------------------------------------------------------


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
    draw: random.Random, table: str, secret: str, generous: bool
) -> dict[str, tuple[str, ...]]:
    """Of the columns of a table; of others than the secret one most roles, so that most statements
    are about what they do with that."""
    found: dict[str, list[str]] = {}
    for column in COLUMNS[table]:
        often = {"train": 0.5, "filter": 0.4, "label": 0.3, "join": 0.1, "identify": 0.2}
        if column in ("pid", "ssn"):
            often = {"train": 0.1, "filter": 0.1, "label": 0.05, "join": 0.9, "identify": 0.1}
        for role, share in often.items():
            if draw.random() < (0.95 if generous and column != secret else share):
                found.setdefault(role, []).append(column)
    return {role: tuple(names) for role, names in found.items()}


def some_grants(
    draw: random.Random, column: str, secret: str
) -> tuple[TrainingPolicy, dict[str, dict[str, tuple[str, ...]]]]:
    """A policy, and roles by table, that do not let the column's value out."""
    generous = draw.random() < 0.8
    while True:
        policy = some_policy(draw)
        roles = {table: some_roles(draw, table, column, generous) for table in COLUMNS}
        if not lets_out(policy, roles["patients"], column, secret):
            return policy, roles


def lets_out(
    policy: TrainingPolicy, roles: dict[str, tuple[str, ...]], column: str, secret: str
) -> bool:
    """Whether something that follows from a value of the column may leave without noise, but for
    that two keys are equal. Rows without a label are left out, also where labels are noised."""
    exact, gone = policy.epsilon is None, secret in ("NULL", "'nan'")
    ways = {
        "train": exact and "exact" in (policy.predictions, policy.moments),
        "label": policy.labels != "never" and (gone or (exact and policy.labels == "exact")),
        "identify": policy.identifiers == "exact",
        "filter": (policy.conditions or _default(policy)) == "exact",
    }
    return any(way and column in roles.get(role, ()) for role, way in ways.items())


def _default(policy: TrainingPolicy) -> str:
    """Return `conditions` of a policy that does not say it."""
    every = {getattr(policy, name) for name in ALL_MODES}
    return "exact" if every == {"exact"} else "never"


# -- statements ------------------------------------------------------------------------------------

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


def some_statement(draw: random.Random) -> Statement:
    """Most have one part that is not plain, so that it alone decides what becomes of them."""
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
    return Statement(text, item)


# -- what leaves -----------------------------------------------------------------------------------


@contextmanager
def world(secret: str | None = None, column: str = "", row: int = 17) -> Iterator[Any]:
    with in_memory() as con:
        con.execute(MADE)
        if secret is not None:
            for table in ("patients", "visits") if column in ("pid", "ssn") else ("patients",):
                con.execute(f"UPDATE {table} SET {column} = {secret} WHERE pid = {row}")
        yield con


def leaves(
    con: duckdb.DuckDBPyConnection, text: str, roles: list[str], policy: TrainingPolicy
) -> object:
    """All that follows from the fragment without noise: how many rows there are, whether it fails,
    which targets are NULL, columns that leave as they are, and which keys are equal."""
    try:
        rows = con.execute(text).fetchall()
    except duckdb.Error:
        return "fails"
    out = policy.epsilon is None
    shown = {
        "train": out and policy.predictions == "exact", "label": out and policy.labels == "exact",
        "identify": policy.identifiers == "exact", "sqlfl_kept": True,
    }  # fmt: skip
    told, keys = [], []
    for row in rows:
        own: list[str] = []
        for role, value in zip(roles, row, strict=True):
            if role == "label":
                own.append(str(value is None or value != value))
            if shown.get(role):
                own.append(str(value))
        told.append(tuple(own))
        keys.append(
            tuple(
                str(value) if isinstance(value, dict) else value
                for role, value in zip(roles, row, strict=True)
                if role == "join"
            )
        )
    counts = Counter(keys)
    pattern = Counter((own, counts[key], None in key) for own, key in zip(told, keys, strict=True))
    return sorted(pattern.items())


def copies_of(con: duckdb.DuckDBPyConnection, text: str, least: int) -> object:
    """The copies of a row, by which rules on rows and cells are larger, if they are counted."""
    try:
        counted = copies(con, text, least)
        return [(own.counts.tolist(), own.rest) for own in (counted.rows, counted.values)]
    except (PolicyError, duckdb.Error) as error:
        return type(error).__name__


def ruling_of(policy: TrainingPolicy, roles: dict[str, dict[str, tuple[str, ...]]]) -> Ruling:
    grants = (
        Grant(n, "acme", table, Roles(roles[table[2]], predict=True), "r", None, "")
        for n, table in enumerate((PATIENTS, VISITS), 1)
    )
    return Ruling("acme", tuple(grants), {"r": policy})


class Draw(random.Random):
    """Random numbers of one case."""

    hidden = ""
    """The column whose value differs, which statements name more often than others."""


def draws(number: int) -> Iterator[Draw]:
    for case in range(number):
        yield Draw(f"{depth.SEED} two worlds {case}")


def _tells_equals(found: SelectReading, roles: list[str], column: str) -> bool:
    """Return True if the hidden column is granted for JOIN and serves as that: which of its values
    are equal may leave. Other values of `pid` and `ssn` leave the same keys equal."""
    keys = [o.same for role, o in zip(roles, found.outputs, strict=True) if role == "join"]
    linked = [side.column for pair in found.pairs for side in pair]
    return column not in ("pid", "ssn") and any(
        key is not None and (key.table, key.name) == (PATIENTS, column) for key in (*keys, *linked)
    )


def test_fragments_in_two_worlds() -> None:
    number = 20_000 if depth.THOROUGH else 60 if depth.QUICK else 400
    taken, read = 0, 0
    policies, values = set[TrainingPolicy](), set[tuple[str, str]]()
    with ExitStack() as stack:
        first = stack.enter_context(world())
        others = {
            (column, secret): stack.enter_context(world(secret, column))
            for column, secrets in SECRETS.items()
            for secret in secrets
        }
        reader = Fragments("acme", ("memory", "main"))
        reader._functions = functions_of(first)
        for draw in draws(number):
            column = draw.hidden = draw.choice([*SECRETS])
            secret = draw.choice(SECRETS[column])
            policy, roles = some_grants(draw, column, secret)
            statement = some_statement(draw)
            policies.add(policy)
            values.add((column, secret))
            if statement.slot.target and policy.labels == "never":
                continue  # refused by that
            held = ruling_of(policy, roles)
            reader.forget()
            try:
                found = reader.check(lambda: first, statement.slot, statement.text, held)
            except PolicyError:
                continue
            own = roles_of(statement.slot, found.outputs)
            granted = column in roles["patients"].get("join", ())
            if granted and _tells_equals(found, own, column):
                continue
            rules = strictest([policy])
            here, there = (
                leaves(con, statement.text, own, rules) for con in (first, others[column, secret])
            )
            assert here == there, (statement.text, column, secret, policy, roles)
            # cells of values may depend on them, and so may how far they reach
            valued = any(read.name == column for output in found.outputs for read in output.reads)
            least = 1 if valued else policy.min_cell
            here, there = (
                copies_of(con, statement.text, least) for con in (first, others[column, secret])
            )
            assert here == there, (statement.text, column, secret, policy, roles)
            read += 1
            taken += here != "fails"
    print(f"two worlds: {number} statements, {len(policies)} policies, {len(values)} values;"
          f" {read} not refused, {taken} of them run")  # fmt: skip
    assert taken > number / 20


# -- statements that one check alone refuses -------------------------------------------------------

EVERY = ("train", "filter", "label", "join", "identify")
NOISED = TrainingPolicy(
    min_rows=1, min_cell=1, labels="noised", predictions="noised", moments="never",
    conditions="exact",
)  # fmt: skip
ALONE: dict[str, tuple[str, str, str]] = {
    "WHERE": ("SELECT 1 FROM patients p WHERE p.age = 77", "age", "77"),
    "WHERE of a part": ("SELECT 1 FROM (SELECT pid FROM patients p WHERE age > 76) p", "age", "77"),
    "WITH": ("WITH q AS (SELECT pid FROM patients WHERE age = 77) SELECT 1 FROM q", "age", "77"),
    "OR": ("SELECT 1 FROM patients p WHERE p.pid = 3 OR p.age = 77", "age", "77"),
    "NOT": ("SELECT 1 FROM patients p WHERE NOT (p.age = 77)", "age", "77"),
    "IS NOT NULL": ("SELECT 1 FROM patients p WHERE p.age IS NOT NULL", "age", "NULL"),
    "not NaN": ("SELECT 1 FROM patients p WHERE NOT isnan(p.bmi)", "bmi", "'nan'"),
    "HAVING": ("SELECT 1 FROM patients p GROUP BY p.ward HAVING max(p.age) > 80", "age", "300"),
    "QUALIFY": (
        "SELECT 1 FROM patients p QUALIFY p.age = 77 AND max(p.bmi) OVER () > 0", "age", "77",
    ),
    "QUALIFY of a window": (
        "SELECT 1 FROM patients p QUALIFY max(p.age) OVER (PARTITION BY p.ward) > 80", "age", "300",
    ),
    "GROUP BY": ("SELECT 1 FROM patients p GROUP BY p.age", "age", "77"),
    "GROUP BY a number": (
        "SELECT 1 FROM (SELECT p.age, max(p.pid) AS pid FROM patients p GROUP BY 1) p", "age", "77",
    ),
    "CUBE": ("SELECT 1 FROM patients p GROUP BY CUBE (p.ward, p.age)", "age", "77"),
    "DISTINCT": ("SELECT 1 FROM (SELECT DISTINCT age FROM patients) p", "age", "77"),
    "DISTINCT ON": ("SELECT 1 FROM (SELECT DISTINCT ON (age) pid FROM patients) p", "age", "77"),
    "UNION": (
        "SELECT 1 FROM (SELECT age FROM patients UNION SELECT age FROM patients) p", "age", "77",
    ),
    "EXCEPT": (
        "SELECT 1 FROM (SELECT pid, age FROM patients EXCEPT SELECT pid, 77 FROM patients) p",
        "age", "77",
    ),
    "INTERSECT ALL": (
        "SELECT 1 FROM (SELECT age FROM patients INTERSECT ALL SELECT cost FROM visits) p",
        "age", "0",
    ),
    "ORDER BY and LIMIT": (
        "SELECT 1 FROM (SELECT pid FROM patients ORDER BY age LIMIT 1) p WHERE p.pid = 17",
        "age", "-5",
    ),
    "ON": (
        "SELECT 1 FROM patients p JOIN visits v ON v.pid = p.pid AND p.age = 77", "age", "77",
    ),
    "ON of an anti join": (
        "SELECT 1 FROM patients p ANTI JOIN visits v ON v.pid = p.pid AND p.age = 77", "age", "77",
    ),
    "BETWEEN constants": (
        "SELECT 1 FROM patients p JOIN (VALUES (76, 78)) v(a, b) ON p.age BETWEEN a AND b",
        "age", "77",
    ),
    "IN": ("SELECT 1 FROM patients p WHERE p.pid IN (SELECT cost FROM visits) = (p.age = 77)",
           "age", "77"),
    "EXISTS": (
        "SELECT 1 FROM patients p WHERE EXISTS (SELECT 1 FROM visits v "
        "WHERE v.pid = p.pid AND p.age = 77)", "age", "77",
    ),
    "a subquery": (
        "SELECT 1 FROM patients p WHERE p.pid < (SELECT max(age) - 60 FROM patients)",
        "age", "300",
    ),
    "a row that is kept": ("SELECT (p.age = 77) AS sqlfl_kept FROM patients p", "age", "77"),
    "a row that a subquery keeps": (
        "SELECT sqlfl_kept FROM (SELECT p.age = 77 FROM patients p) q(sqlfl_kept)", "age", "77",
    ),
    "a row that * keeps": (
        "SELECT * FROM (SELECT p.age = 77 FROM patients p) q(sqlfl_kept)", "age", "77",
    ),
    "a row that WITH keeps": (
        "WITH q(sqlfl_kept) AS (SELECT p.age = 77 FROM patients p) FROM q", "age", "77",
    ),
    "a row that a union keeps": (
        "SELECT pid = 0 AS sqlfl_kept FROM patients UNION ALL SELECT age = 77 FROM patients",
        "age", "77",
    ),
    "a row that an alias of itself keeps": (
        "SELECT q.sqlfl_kept FROM (SELECT p.age = 77 AS sqlfl_kept FROM patients p) q", "age",
        "77",
    ),
    "a column without JOIN": (
        "SELECT 1 FROM patients p JOIN visits v ON p.age = v.pid", "age", "0",
    ),
    "a column without JOIN in USING": (
        "SELECT 1 FROM (SELECT age AS pid FROM patients) p JOIN visits v USING (pid)", "age", "0",
    ),
}  # fmt: skip
"""What it is that decides -> statement, the hidden column, and its value in the other world.
Everything is granted but FILTER and JOIN of that column; with FILTER it is taken."""
LINKED: dict[str, tuple[str, str, str]] = {
    "TRY_CAST": (
        "SELECT 1 FROM patients p WHERE TRY_CAST(p.ssn AS ENUM('n17', 'n5')) = p.ssn", "ssn",
        "'m4'",
    ),
    "TRY_CAST IS NOT NULL": (
        "SELECT 1 FROM patients p WHERE TRY_CAST(p.ssn AS ENUM('n17', 'n5')) IS NOT NULL", "ssn",
        "'m4'",
    ),
    "a narrow cast": ("SELECT 1 FROM patients p WHERE CAST(p.pid AS TINYINT) = p.pid", "pid",
                      "517"),
    "a constant": (
        "SELECT 1 FROM patients p JOIN (SELECT 'n17' AS ssn) v ON v.ssn = p.ssn", "ssn", "'m4'",
    ),
    "VALUES": (
        "SELECT 1 FROM patients p JOIN (VALUES ('n17')) v(ssn) USING (ssn)", "ssn", "'m4'",
    ),
    "a text beside a number": (
        "SELECT 1 FROM (SELECT ssn FROM patients WHERE pid = 17) p JOIN visits v ON v.pid = p.ssn",
        "ssn", "'517'",
    ),
    "IN": ("SELECT 1 FROM patients p WHERE p.ssn IN (SELECT 'n17')", "ssn", "'m4'"),
}  # fmt: skip
"""The same of what is no link, though its column is granted for JOIN."""


ROWS_ALONE = SlotSpecification(0, (), False, False, (), (), (0,), False, "", "arrays")
FEATURE = replace(ROWS_ALONE, features=(FeatureSpecification("f", "numeric"),))
KEYED = replace(ROWS_ALONE, keys=(KeySpecification(0, ("BIGINT",)),))
OUTPUTS: dict[str, tuple[str, SlotSpecification, str, str, str, str]] = {
    "a feature that may fail": ("train", FEATURE, "CAST(p.age AS TINYINT)", "age", "300", "train"),
    "a feature that fails in CASE": (
        "train", FEATURE, "CASE WHEN p.age = 77 THEN CAST('x' AS INTEGER) ELSE 1 END", "age", "77",
        "train",
    ),
    "a key that may fail": ("join", KEYED, "CAST(p.pid AS TINYINT)", "pid", "517", "join"),
    "a key that is computed": ("join", KEYED, "p.ssn = 'n17'", "ssn", "'m4'", "join"),
    "a key without JOIN": ("join", KEYED, "p.age", "age", "77", "train"),
    "a target that is NULL": (
        "label", replace(ROWS_ALONE, target=True), "CASE WHEN p.age = 77 THEN 1 END", "age", "77",
        "label",
    ),
    "a target that is a field": (
        "label", replace(ROWS_ALONE, target=True), "p.info.a", "info", "{'a': NULL, 'b': 1}",
        "label",
    ),
    "an identifier": ("identify", replace(ROWS_ALONE, identifiers=(0,)), "p.age", "age", "77",
                      "train"),
}  # fmt: skip
"""The same of what leaves of each row: its role, the slot, the expression, the column, its value in
the other world, and the one role that the column has."""


def alone(
    text: str,
    hidden: tuple[str, ...],
    column: str,
    policy: TrainingPolicy,
    slot: SlotSpecification = ROWS_ALONE,
) -> str:
    """The refusal where the column has the roles `hidden`; empty where the statement is taken."""
    roles = {
        table: {r: tuple(c for c in names if (c != column or table != "patients") or r in hidden)
                for r in EVERY}
        for table, names in COLUMNS.items()
    }  # fmt: skip
    with world() as con:
        reader = Fragments("acme", ("memory", "main"))
        try:
            reader.check(lambda: con, slot, text, ruling_of(policy, roles))
        except PolicyError as error:
            return error.message
    return ""


@pytest.mark.parametrize("name", ALONE)
def test_conditions_that_would_tell(name: str) -> None:
    text, column, secret = ALONE[name]
    assert "which rows there are" in alone(text, ("train", "label"), column, NOISED)
    assert alone(text, ("train", "filter"), column, NOISED) == ""
    # the default
    every = replace(NOISED, conditions=None)
    shown = ("train", "filter", "label", "identify")
    assert "conditions = 'never'" in alone(text, shown, column, every)
    differs(text, column, secret, "sqlfl_kept" if "sqlfl_kept" in text else "row")


@pytest.mark.parametrize("name", LINKED)
def test_links_that_would_tell(name: str) -> None:
    text, column, secret = LINKED[name]
    assert "which rows there are" in alone(text, ("join",), column, NOISED)
    differs(text, column, secret)


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_would_tell(name: str) -> None:
    role, slot, value, column, secret, hidden = OUTPUTS[name]
    text = f"SELECT {value} FROM patients p"
    assert alone(text, (hidden,), column, NOISED, slot)
    differs(text, column, secret, role)


def differs(text: str, column: str, secret: str, role: str = "row") -> None:
    with world() as here, world(secret, column) as there:
        first, second = (leaves(con, text, [role], NOISED) for con in (here, there))
    assert first != second


# -- end to end ------------------------------------------------------------------------------------

LAB = f"""CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp, sin(2 * i) AS y, i % 3 = 0 AS sick
  FROM range({ROWS}) AS r(i)"""
OWN = """TRAIN MODEL own USING linear_regression TARGET y WITH (algorithm = 'sgd', epochs = 1)
  FROM (SELECT crp, y FROM lab.tests)"""
TIMES = ("seconds", "created", "trained", "version")
"""Of a model's card."""
FIRST = "GRANT JOIN (pid), PREDICT ON patients TO 'acme' UNDER r"
SCORED = """PREDICT MODEL own ID (lab.tests.pid)
  FROM (SELECT t.crp FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid)"""
HIDDEN = ("age", "bmi", "ill", "ward", "info")
"""Columns that are no keys, whose hashes would differ."""


@dataclass
class Side:
    """One of the worlds, and what the clinic has sent in it."""

    fed: sqlfl.Federation
    clinic: duckdb.DuckDBPyConnection
    sent: list[bytes]

    def told(
        self, case: str, rules: str, grants: list[str], text: str
    ) -> tuple[object, list[bytes]]:
        """The verdict, the result, and every byte that left the clinic. What is drawn follows from
        the case alone."""
        with os.urandom.scope(case):  # type: ignore[attr-defined]
            with sqlfl.owner(self.clinic) as owner:
                owner.sql(f"CREATE OR REPLACE TRAINING POLICY r WITH ({rules})")
                for table in ("patients", "visits"):
                    with contextlib.suppress(sqlfl.Error):
                        owner.sql(f"REVOKE ALL ON {table} FROM 'acme'")
                for grant in grants:
                    owner.sql(grant)
            self.sent.clear()
            try:
                rows = self.fed.sql(text).fetchall()
                found: object = [row for row in rows if row[0] not in TIMES]
            except sqlfl.Error as error:
                found = str(error)
            return found, list(self.sent)


MEASURES = ("METRICS", "CONTRIBUTIONS", "RESIDUALS", "IMPORTANCE", "INFERENCE", "SKEW")
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


def _of_clinic(text: str) -> str:
    return text.replace("patients", "clinic.patients").replace("visits", "clinic.visits")


def a_statement(draw: random.Random) -> str:
    """Over a table of the clinic and one of the analyst's."""
    odd = draw.choice(("source", "where", "between", "value", "value", "all", "all"))
    source = some_source(draw) if odd in ("source", "all") else "patients p"
    condition = between_parties(draw) if odd == "between" else some_condition(draw)
    often = {"where": 1.0, "between": 1.0, "all": 0.5}.get(odd, 0.0)
    source, where = _of_clinic(source), _of_clinic(f"WHERE {condition}") * (draw.random() < often)
    values = ("", "", "p.age, ", "p.bmi, ")
    if odd in ("value", "all"):
        values = (f"{some_value(draw)} AS x, ", f"{draw.choice(BESIDE)} AS x, ")
    value = _of_clinic(draw.choice(values))
    # the clinic's table on the right of a LEFT JOIN, with tests that find no patient
    on = draw.choice(("p.pid = t.pid", "p.pid = t.pid", "p.pid = t.pid - 7"))
    join = f"FROM {source} JOIN lab.tests t ON p.pid = t.pid {where}"
    if source == "clinic.patients p" and draw.random() < 0.4:
        join = f"FROM lab.tests t LEFT JOIN {source} ON {on} {where}"
    measured = f"FROM (SELECT t.crp, t.y {join})"
    return draw.choice(
        (
            f"PREDICT MODEL own ID (lab.tests.pid) FROM (SELECT t.crp {join})",
            f"PREDICT MODEL own ID (lab.tests.pid) FROM (SELECT t.crp {join})",
            f"{draw.choice(MEASURES)} OF MODEL own {measured}",
            f"CHECK TARGET y FROM (SELECT {value}t.crp, t.y {join})",
            f"EXPLAIN TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT {value}t.crp, "
            f"t.y {join})",
            "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y TRANSFORM (auto) WITH "
            f"(epochs = 2) FROM (SELECT {value}t.crp, t.y {join})",
            f"EVALUATE MODEL own FROM (SELECT t.crp, t.y {join})",
            "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (algorithm = 'sgd', "
            f"epochs = 1) FROM (SELECT {value}t.crp, t.y {join})",
            "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET ill WITH (algorithm = 'sgd',"
            f" epochs = 1) FROM (SELECT t.crp, p.ill {join})",
        )
    )  # fmt: skip


def the_policy(draw: random.Random, column: str, secret: str) -> tuple[str, list[str]]:
    while True:
        policy, roles = some_grants(draw, column, secret)
        of_patients = roles["patients"]
        of_patients["join"] = tuple(c for c in of_patients.get("join", ()) if c != column)
        modes = {name: getattr(policy, name) for name in MODES}
        if "noised" not in modes.values() and policy.epsilon is None:
            break
    rules = {"min_rows": draw.choice((1, 20)), "min_cell": 1}
    told = [f"{name} = {value}" for name, value in rules.items()]
    told += [f"{name} = '{mode}'" for name, mode in modes.items()]
    if policy.conditions is not None:
        told.append(f"conditions = '{policy.conditions}'")
    grants = []
    for table, own in roles.items():
        parts = [f"{role.upper()} ({', '.join(names)})" for role, names in own.items() if names]
        parts += ["PREDICT"] * (draw.random() < 0.9)
        grants += [f"GRANT {', '.join(parts)} ON {table} TO 'acme' UNDER r"] * bool(parts)
    return ", ".join(told), grants


def test_statements_in_two_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    number = 600 if depth.THOROUGH else 3 if depth.QUICK else 10
    serve = LocalTransport._serve
    receiving: list[bytes] = []

    def serving(transport: LocalTransport, client: Client, asked: list[pa.Buffer]) -> Any:
        replies = serve(transport, client, asked)
        if client.party == "clinic":
            for reply in replies:
                data = reply.to_pybytes()
                message = received(data)
                assert bytes(encoded(message)) == data  # nothing is beside its fields
                # the coordinator draws numbers; heads of the chain are of the time, too
                unnumbered = bytes(encoded(replace(message, number=0)))
                receiving.append(b"" if isinstance(message, Sealed) else unnumbered)
        return replies

    monkeypatch.setattr(LocalTransport, "_serve", serving)
    done = 0
    policies = set[str]()
    with ExitStack() as stack:
        pairs: dict[tuple[str, str], tuple[Side, Side]] = {}

        def made(column: str, secret: str | None) -> Side:
            con = stack.enter_context(world(secret, column))
            lab = stack.enter_context(in_memory())
            lab.execute(LAB)
            with os.urandom.scope("two worlds"):  # type: ignore[attr-defined]
                fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
                fed.attach("clinic", con)
                fed.attach("lab", lab)
                fed.sql(OWN)
            side = Side(fed, con, receiving)
            # what is drawn once in a federation is drawn now
            side.told("first", "min_rows = 1", [FIRST], SCORED)
            return side

        for case, draw in enumerate(draws(number)):
            column = draw.hidden = draw.choice(HIDDEN)
            secret = draw.choice(SECRETS[column])
            rules, grants = the_policy(draw, column, secret)
            text = a_statement(draw)
            policies.add(rules)
            if (column, secret) not in pairs:
                # of the same history, as OR REPLACE removes a model that was trained before
                pairs[column, secret] = made(column, None), made(column, secret)
            here, there = (
                side.told(f"case {case} {text}", rules, grants, text)
                for side in pairs[column, secret]
            )
            assert here == there, (text, column, secret, rules, grants)
            done += not isinstance(here[0], str)
    print(f"two worlds: {number} statements, {len(policies)} policies, {len(pairs)} values;"
          f" {done} run")  # fmt: skip
    assert done >= number // 25
