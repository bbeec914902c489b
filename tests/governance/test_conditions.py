"""Conditions are releases: what decides which rows take part tells the values that it tests."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.options.policies import MODES, TrainingPolicy, strictest
from tests.conftest import Open
from tests.depth import in_turn
from tests.governance.clinic import GRANT, TRAIN, ruled

NEVER = (
    "labels = 'never', predictions = 'never', moments = 'never', identifiers = 'never', "
    "weights = 'never', metrics = 'never'"
)
OWN = "CREATE TABLE own AS SELECT i AS pid, cos(i) AS crp, sin(2 * i) AS y FROM range({}) AS r(i)"
MODEL = """TRAIN MODEL own USING linear_regression TARGET y WITH (algorithm = 'sgd', epochs = 1)
  FROM (SELECT crp, y FROM lab.own)"""
PREDICT = """PREDICT MODEL own ID (lab.own.pid)
  FROM (SELECT t.crp FROM clinic.patients p JOIN lab.own t ON p.pid = t.pid {})"""
Own = Callable[[int], sqlfl.Federation]


@pytest.fixture
def own(fed: sqlfl.Federation, database: Open) -> Own:
    """The analyst, with a table and a model of her own."""

    def made(rows: int) -> sqlfl.Federation:
        fed.detach("lab")
        fed.attach("lab", database(OWN.format(rows)))
        fed.sql(MODEL)
        return fed

    return made


def refused(fed: sqlfl.Federation, text: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        fed.sql(text)
    assert said in error.value.message


def test_rows_of_ones_own_tell_no_values(own: Own, clinic: duckdb.DuckDBPyConnection) -> None:
    """Seven statements told all ages: which of the analyst's rows come back."""
    fed = own(300)
    grant = "GRANT TRAIN (age, bmi), JOIN (pid), LABEL (ill) ON patients TO 'acme' UNDER r"
    ruled(clinic, f"min_rows = 60, {NEVER}", grant)
    for digit in range(7):
        text = PREDICT.format(f"WHERE p.age // {2**digit} % 2 = 1")
        refused(fed, text, "conditions = 'never', and WHERE decides by column age of main.patients")
        plan = " ".join(str(fed.explain(text)).split())
        assert "conditions = 'never'" in plan
    refused(fed, PREDICT.format(""), "PREDICT on main.patients is not granted to acme")
    ruled(clinic, f"min_rows = 60, {NEVER}", "GRANT PREDICT ON patients TO 'acme' UNDER r")
    assert len(fed.sql(PREDICT.format("")).fetchall()) == 300
    ruled(clinic, f"min_rows = 60, conditions = 'exact', {NEVER}", "")
    text = PREDICT.format("WHERE p.age // 8 % 2 = 1")
    refused(fed, text, "age of main.patients is not granted to acme for FILTER, and WHERE")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT FILTER (age) ON patients TO 'acme' UNDER r")
    assert 60 < len(fed.sql(text).fetchall()) < 300


@pytest.mark.parametrize("rows", [1, 99, 100])
def test_tables_that_give_no_column_are_checked(
    own: Own, clinic: duckdb.DuckDBPyConnection, rows: int
) -> None:
    fed = own(rows)
    ruled(clinic, "min_rows = 100")
    train = MODEL.replace("MODEL own", "MODEL n").replace(
        "SELECT crp, y FROM lab.own",
        "SELECT t.crp, t.y FROM clinic.patients p JOIN lab.own t ON p.pid = t.pid",
    )
    for text in (train, PREDICT.format("")):
        if rows < 100:
            refused(fed, text, "min_rows = 100, of rows that are joined")
        else:
            fed.sql(text)


def test_differences_of_tables_that_give_no_column(
    own: Own, clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    fed = own(200)
    ruled(clinic, "min_difference = 5")
    fed.sql(PREDICT.format(""))
    fed.sql("DROP MODEL own")
    fed.detach("lab")
    fed.attach("lab", database(OWN.format(199)))
    fed.sql(MODEL)
    refused(fed, PREDICT.format(""), "min_difference = 5, of rows that runs have apart")


def test_policies_and_grants_of_before(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """They have no FILTER and no `conditions`, and TRAIN was enough for conditions then."""
    where = f"{TRAIN[:-1]} WHERE p.age > 30)"
    ruled(clinic, "", GRANT.replace("FILTER (age, bmi, ward),", ""))
    clinic.execute(
        "UPDATE sqlfl.policies SET rules = json_merge_patch(rules, '{\"conditions\":null}')"
    )
    ((rules,),) = clinic.execute("SELECT rules FROM sqlfl.policies").fetchall()
    assert "conditions" not in rules
    fed.sql(TRAIN)
    refused(fed, where, "age of main.patients is not granted to acme for FILTER")
    with sqlfl.owner(clinic) as owner:
        shown = owner.sql("SHOW POLICIES").arrow().column("rules")[0].as_py()
        assert "conditions = 'exact'" in shown
        owner.sql("GRANT FILTER (age) ON patients TO 'acme' UNDER r")
        grants = owner.sql("SHOW GRANTS").arrow().column("roles").to_pylist()
    assert grants[-1] == "FILTER (age)"
    fed.sql(where)
    ruled(clinic, "weights = 'never'", "")
    refused(fed, where, "conditions = 'never'")


def test_the_default_of_conditions() -> None:
    for name in MODES:
        policy = TrainingPolicy(**{name: "never"})
        assert policy.filters == "never"
    assert TrainingPolicy().filters == "exact"
    both = strictest(
        [TrainingPolicy(),
         TrainingPolicy(conditions="never")]
    )  # fmt: skip
    assert both.filters == "never"


# -- cells -----------------------------------------------------------------------------------------

ONE = "p.bmi > 0.9995"
"""Of few rows."""


COMPUTED = {
    "CASE WHEN {one} THEN 9 WHEN p.age > 40 THEN 1 ELSE 0 END": False,
    "CASE WHEN {one} THEN 2 WHEN p.age > 40 THEN 1 ELSE 0 END": False,
    "CASE WHEN {one} THEN 99 ELSE p.age % 20 END": False,
    "p.bmi * p.age + CASE WHEN {one} THEN 10000 ELSE 0 END": False,
    "p.bmi + CASE WHEN {one} THEN 0.001 ELSE 0 END": False,
    "greatest(p.bmi, 0.9995)": False,
    "greatest(p.bmi, 0.5)": True,
    "p.bmi * p.bmi": True,
    "p.age * p.bmi": True,
    "p.age % 20": True,
    "CASE WHEN p.age > 50 THEN 2 WHEN p.age > 30 THEN 1 ELSE 0 END": True,
    "CAST([p.bmi, CASE WHEN {one} THEN 9 ELSE 0.5 END] AS FLOAT[2])": False,
    "CAST([p.bmi, p.bmi * p.bmi] AS FLOAT[2])": True,
}
"""Features, and whether no value of theirs is of few rows."""


@pytest.mark.parametrize(("feature", "engine"), in_turn(COMPUTED, ("sql", "arrays")))
def test_each_value_that_is_computed_is_a_cell(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, feature: str, engine: str
) -> None:
    count = f"SELECT count(*) FROM patients p WHERE {ONE}"
    ((few,),) = clinic.execute(count).fetchall()
    assert 0 < few < 5
    ruled(clinic, "min_cell = 5")
    text = TRAIN.replace("p.ward,", f"{feature.format(one=ONE)} AS made,")
    text = text.replace("FROM (", f"WITH (engine = '{engine}') FROM (", 1)
    if COMPUTED[feature]:
        fed.sql(text)
    else:
        refused(fed, text, "min_cell = 5, of values of features")


def test_refused_runs_count(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    """Rules on rows and cells tell something of them."""
    ruled(clinic, "min_cell = 5, runs_per_day = 3")
    rare = f"CASE WHEN {ONE} THEN 9 WHEN p.age > 40 THEN 1 ELSE 0 END AS made,"
    for _ in range(2):
        refused(fed, TRAIN.replace("p.ward,", rare), "min_cell = 5")
    refused(fed, f"{TRAIN[:-1]} WHERE p.age > 78)", "min_rows = 5")
    refused(fed, TRAIN, "runs_per_day = 3")


def test_what_a_party_that_is_only_joined_is_asked(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """It hears which of its rows are joined where its owner has a policy, and nothing else."""
    text = TRAIN.replace("p.age, p.bmi, p.ward, t.crp, p.days", "t.crp, t.crp * 2 AS days")
    for rules, heard in ((None, False), ("min_rows = 5", True)):
        if rules:
            ruled(clinic, rules)
        before = len(clinic_kinds(fed))
        fed.sql(text)
        assert ("activate" in clinic_kinds(fed)[before:]) is heard


def clinic_kinds(fed: sqlfl.Federation) -> list[str]:
    """Of all messages to the clinic so far."""
    audit = fed.audit().arrow().to_pylist()
    return [row["kind"] for row in audit if str(row["client"]).startswith("clinic")]
