"""Tests of several parties under OR and CASE, and parts of a union that lack a table: models as of
one database, and what leaves."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from tests.conftest import Open
from tests.coordinator.test_outer_joins import dealt_out as parties_of
from tests.depth import in_turn
from tests.governance.clinic import PATIENTS, ruled
from tests.strategies import train_sql
from tests.test_border import assert_disclosed, tapped
from tests.test_central import compare

STATEMENTS = {
    "or": """
        SELECT v.label, v.days, w.beds FROM clinic.visits v JOIN town.wards w ON w.ward = v.ward
        WHERE v.days > 2 OR w.beds > 6""",
    "case": """
        SELECT v.label, v.days, CASE WHEN w.beds > 6 THEN v.days ELSE 0 END AS many, w.beds
        FROM clinic.visits v JOIN town.wards w ON w.ward = v.ward""",
    "an interaction, after a LEFT JOIN": """
        SELECT v.label, v.days * (t.result > 2)::INTEGER AS high, t.result FROM clinic.visits v
        LEFT JOIN lab.tests t ON t.patient = v.patient WHERE NOT (v.days > 4 AND t.result > 8)""",
    "a part that lacks a table": """
        SELECT v.label, v.days, w.beds FROM clinic.visits v JOIN town.wards w ON w.ward = v.ward
        UNION ALL BY NAME SELECT label, days FROM clinic.visits WHERE days > 2""",
}


@pytest.mark.parametrize(("name", "clients"), in_turn(STATEMENTS, (1, 2, 3)))
def test_models_are_those_of_one_database(name: str, clients: int, database: Open) -> None:
    parties, whole = parties_of(database, clients)
    compare(parties, whole, STATEMENTS[name], l2=1e-3)


def test_what_leaves_is_what_explain_says(database: Open) -> None:
    parties, _ = parties_of(database, 2)
    with tapped(parties) as (fed, tap):
        text = train_sql("m", "linear_regression", "label", STATEMENTS["or"])
        plan = fed.explain(text)
        said = "Tests of several parties part the rows: v.days > 2 OR w.beds > 6."
        assert said in " ".join(str(plan.details).split())
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)


def test_rows_of_several_parts_are_not_counted_for_each(database: Open) -> None:
    parties, _ = parties_of(database, 1)
    with tapped(parties) as (fed, _):
        fed.sql(train_sql("m", "linear_regression", "label", STATEMENTS["case"]))
        assert not {"unjoined", "null_targets"} & fed.model("m").metrics.keys()
        assert "unjoined" not in str(fed.sql("DESCRIBE MODEL m"))


OWN = "CREATE TABLE own AS SELECT i AS pid, cos(i) AS crp, sin(2 * i) AS y FROM range(200) AS r(i)"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.crp, o.y, p.bmi FROM lab.own o JOIN clinic.patients p ON p.pid = o.pid "
        "WHERE o.crp > 0 OR p.age > 30",
        "SELECT CASE WHEN p.age > 30 THEN o.crp ELSE 0 END AS c, o.y, p.bmi FROM lab.own o "
        "JOIN clinic.patients p ON p.pid = o.pid",
    ],
)
def test_a_test_that_parts_the_rows_is_a_condition(query: str, database: Open) -> None:
    con = database(PATIENTS)
    ruled(con, "min_rows = 5", "GRANT JOIN (pid), TRAIN (age, bmi) ON patients TO 'acme' UNDER r")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(OWN))
        with pytest.raises(PolicyError, match=r"age .*is not granted to acme for FILTER"):
            fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
