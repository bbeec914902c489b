"""Correlated aggregates, FULL JOIN, rows of constants and UNION ALL BY NAME between parties: models
as of one database, what leaves, and what owners' policies say."""

from __future__ import annotations

import duckdb
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
    "aggregates": """
        SELECT v.label, v.days, (SELECT avg(t.result) FROM lab.tests t WHERE t.patient = v.patient)
          AS mean, (SELECT count(*) FROM lab.tests t WHERE t.patient = v.patient) AS n
        FROM clinic.visits v""",
    "values of rows": """
        SELECT v.label, v.days, (SELECT w.beds FROM town.wards w WHERE w.ward = v.ward) AS beds
        FROM clinic.visits v WHERE (SELECT w.beds FROM town.wards w WHERE w.ward = v.ward) > 2""",
    "a full join": """
        SELECT v.label, v.days, t.result FROM clinic.visits v
        FULL JOIN lab.tests t ON t.patient = v.patient""",
    "the column of a full join": """
        SELECT coalesce(v.label, 1) AS label, patient, v.days, t.result
        FROM (SELECT patient, label, days FROM clinic.visits) v
        FULL JOIN (SELECT patient, result FROM lab.tests) t USING (patient)""",
    "full joins by coalesce": """
        SELECT v.label, coalesce(v.patient, t.patient, w.ward) AS k, v.days, t.result, w.beds
        FROM clinic.visits v FULL JOIN lab.tests t ON v.patient = t.patient
        FULL JOIN town.wards w ON w.ward = coalesce(v.patient, t.patient)""",
    "a pivot of a join": """
        SELECT label, days, "1" AS one, "2" AS two FROM (PIVOT (
          SELECT v.patient, v.label, v.days, t.result, t.assay
          FROM (SELECT patient, max(label) AS label, max(days) AS days FROM clinic.visits
            GROUP BY patient) v LEFT JOIN lab.tests t ON t.patient = v.patient)
        ON assay IN (1, 2) USING max(result) GROUP BY patient, label, days)""",
    "constants": """
        SELECT v.label, v.days, w.beds, c.price FROM clinic.visits v
        JOIN town.wards w ON w.ward = v.ward JOIN (SELECT i AS beds, i * i AS price
        FROM range(9) r(i)) c ON c.beds = w.beds""",
    "a union by name": """
        SELECT v.label, v.days, w.beds FROM clinic.visits v JOIN town.wards w ON w.ward = v.ward
        UNION ALL BY NAME
        SELECT w.beds, v.label FROM clinic.visits v JOIN town.wards w ON w.ward = v.patient""",
}


@pytest.mark.parametrize(("name", "clients"), in_turn(STATEMENTS, (1, 2)))
def test_models_are_those_of_one_database(name: str, clients: int, database: Open) -> None:
    parties, whole = parties_of(database, clients)
    if name == "aggregates" and clients > 1:
        with tapped(parties) as (fed, _), pytest.raises(sqlfl.PlanError, match="2 databases"):
            fed.sql(train_sql("m", "linear_regression", "label", STATEMENTS[name]))
        parties = {**parties, "lab": parties_of(database, 1)[0]["lab"]}
    compare(parties, whole, STATEMENTS[name], l2=1e-3)


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_leaves_is_what_explain_says(name: str, database: Open) -> None:
    parties, _ = parties_of(database, 1)
    with tapped(parties) as (fed, tap):
        text = train_sql("m", "linear_regression", "label", STATEMENTS[name])
        plan = fed.explain(text)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)


def test_one_row_leaves_for_each_key(database: Open) -> None:
    """The keys of an aggregate are those of a derived table with GROUP BY, one for each value."""
    parties, whole = parties_of(database, 1)
    for con, table in ((parties["lab"][0], "tests"), (whole, "lab.tests")):
        con.execute(f"INSERT INTO {table} FROM {table}")
    with tapped(parties) as (fed, _):
        plan = fed.explain(train_sql("m", "linear_regression", "label", STATEMENTS["aggregates"]))
        (slot,) = (slot for slot in plan.ucq.slots if slot.name == "t")
        (real,) = (f for f in slot.fragments if not f.virtual)
        rows = parties["lab"][0].execute(real.sql).fetchall()
    (keys,) = whole.execute("SELECT count(DISTINCT patient) FROM lab.tests").fetchone() or ()
    assert len(rows) == keys < len(whole.execute("FROM lab.tests").fetchall())


BEDS = "(SELECT w.beds FROM town.wards w WHERE w.ward = v.ward)"


@pytest.mark.parametrize(
    ("feature", "where"),
    [
        (f"{BEDS} AS beds", ""),
        ("v.days", f"WHERE {BEDS} > 0"),
        (f"{BEDS} AS b", f"WHERE {BEDS} > 0"),
    ],
    ids=["feature", "condition", "both"],
)
def test_a_value_is_of_one_row(feature: str, where: str, database: Open) -> None:
    """A second row with a key that joins nothing is no error. One whose key joins is, also if the
    condition drops it."""
    text = train_sql(
        "m", "linear_regression", "label", f"SELECT v.label, {feature} FROM clinic.visits v {where}"
    )
    parties, _ = parties_of(database, 2)
    with tapped(parties) as (fed, _):
        parties["town"][1].execute("INSERT INTO wards (ward, beds) VALUES (-1, 7), (-1, 8)")
        fed.sql(text)
        fed.sql(f"EXPLAIN ANALYZE {text.replace('TRAIN', 'TRAIN OR REPLACE', 1)}")
        for con in parties["town"]:
            con.execute("INSERT INTO wards (ward, beds) SELECT ward, -beds FROM wards")
        fed.sql("DROP MODEL m")
        with pytest.raises(sqlfl.ModelError, match="several rows of w have the key of one row"):
            fed.sql(text)
        assert not fed.sql("SHOW MODELS").arrow().num_rows


GROUPS = "SELECT ward, count(*) AS beds FROM town.wards GROUP BY ward"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (f"({GROUPS}) w WHERE w.ward = v.ward", "a value only of one table's rows"),
        (
            "(SELECT w.* FROM town.wards w JOIN town.wards x USING (ward)) w WHERE w.ward = v.ward",
            "a value only of one table's rows",
        ),
        ("town.wards w(ward, beds) WHERE w.ward = v.ward", "those of wards in another order"),
        (
            "(WITH q(ward, beds) AS (FROM town.wards) SELECT * FROM q) w WHERE w.ward = v.ward",
            "those of wards in another order",
        ),
    ],
    ids=["groups", "a join", "a table", "a CTE"],
)
def test_a_value_over_several_databases_is_of_a_row_of_one_of_them(
    rows: str, message: str, database: Open
) -> None:
    parties, _ = parties_of(database, 2)
    parties["town"][1].execute("CREATE OR REPLACE TABLE wards AS SELECT beds, ward FROM wards")
    query = f"SELECT v.label, (SELECT w.beds FROM {rows}) AS beds FROM clinic.visits v"
    with tapped(parties) as (fed, _), pytest.raises(sqlfl.PlanError, match=message):
        fed.sql(train_sql("m", "linear_regression", "label", query))


@pytest.mark.parametrize(
    "use",
    [
        "v.label, {} AS beds FROM clinic.visits v",
        "v.label, v.days FROM clinic.visits v WHERE {} > 2",
    ],
)
def test_a_value_of_unlike_types_is_called_as_it_is_written(use: str, database: Open) -> None:
    parties, _ = parties_of(database, 2)
    parties["town"][1].execute("ALTER TABLE wards ALTER beds TYPE VARCHAR")
    query = f"SELECT {use.format(BEDS)}"
    with tapped(parties) as (fed, _), pytest.raises(sqlfl.PlanError) as caught:
        fed.sql(train_sql("m", "linear_regression", "label", query))
    assert caught.value.message.startswith("column beds of w is ")
    assert "beds::" in str(caught.value.hint)


def test_groups_over_several_databases_name_columns_by_one_order(database: Open) -> None:
    """A database whose columns stand in another order would group by another column."""
    parties, _ = parties_of(database, 2)
    parties["town"][1].execute("CREATE OR REPLACE TABLE wards AS SELECT beds, ward FROM wards")
    query = """SELECT v.label, (SELECT sum(w.b) FROM town.wards w(a, b) WHERE w.a = v.ward) AS beds
        FROM clinic.visits v"""
    with tapped(parties) as (fed, _), pytest.raises(sqlfl.PlanError, match="in another order"):
        fed.sql(train_sql("m", "linear_regression", "label", query))


OWN = """CREATE TABLE own AS SELECT i AS pid, 'w' || i % 4 AS ward, cos(i) AS crp, sin(2 * i) AS y
  FROM range(200) AS r(i)"""
OF_OWN = (
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM (SELECT crp, {}, y FROM {})"
)
MEAN = "(SELECT avg(p.age) FROM clinic.patients p WHERE {}) AS age"


@pytest.fixture
def owned(database: Open) -> tuple[duckdb.DuckDBPyConnection, sqlfl.Federation]:
    con = database(PATIENTS)
    fed = sqlfl.connect(analyst="acme", progress=False)
    fed.attach("clinic", con)
    fed.attach("lab", database(OWN))
    return con, fed


def test_an_aggregate_is_under_the_policies_of_its_table(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    """Its column must be granted for TRAIN, its key for JOIN, what it tests for FILTER."""
    con, fed = owned
    con.execute("INSERT INTO patients FROM patients WHERE pid % 3 = 0")
    grant = "GRANT JOIN (pid, ward), TRAIN (age), FILTER (bmi) ON patients TO 'acme' UNDER r"
    ruled(con, "min_rows = 50", grant)

    def train(value: str, where: str = "") -> None:
        fed.sql(OF_OWN.format(value, f"lab.own o {where}"))

    with fed:
        train(MEAN.format("p.pid = o.pid"))
        assert fed.model("m").metrics["rows"] == 200
        with pytest.raises(PolicyError, match=r"bmi of main\.patients is not .* for TRAIN"):
            train(MEAN.format("p.pid = o.pid").replace("p.age", "p.bmi"))
        with pytest.raises(PolicyError, match="not granted to acme for FILTER"):
            train(MEAN.format("p.pid = o.pid AND p.age > 30"))
        with pytest.raises(sqlfl.PlanError, match="no column salary"):
            train(MEAN.format("p.pid = o.pid").replace("p.age", "p.salary"))
        with pytest.raises(PolicyError):
            train(MEAN.format("p.age = o.pid"))
        with pytest.raises(PolicyError, match="min_rows = 50"):
            train(MEAN.format("p.pid = o.pid"), "WHERE o.pid < 40")
        with pytest.raises(PolicyError, match="min_rows = 50"):
            train(MEAN.format("p.ward = o.ward"))  # four groups


def test_a_value_is_of_a_row_of_its_table_for_its_owner(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    """Rules that take the rows of a table as they are take a value of one of them."""
    con, fed = owned
    grant = "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r"
    ruled(con, "min_rows = 50, min_difference = 10", grant)
    value = "(SELECT p.age FROM clinic.patients p WHERE p.pid = o.pid) AS age"
    with fed:
        fed.sql(OF_OWN.format(value, "lab.own o"))
        assert fed.model("m").metrics["rows"] == 200


def test_numbers_of_rows_decide_nothing_under_never(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    """A count names no column, and yet is a condition where rows follow from it."""
    con, fed = owned
    rules = "min_rows = 5, conditions = 'never'"
    ruled(con, rules, "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
    count = MEAN.format("p.pid = o.pid").replace("avg(p.age)", "count(*)").removesuffix(" AS age")
    text = OF_OWN.format(MEAN.format("p.pid = o.pid"), f"lab.own o WHERE {count} = 1")
    told = "'never', and WHERE decides which rows there are"
    with fed, pytest.raises(PolicyError, match=told):
        fed.sql(text)


def test_constants_are_no_way_to_ask_an_owner_for_keys(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    con, fed = owned
    ruled(con, "min_rows = 5", "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
    asked = "clinic.patients p JOIN lab.own o ON o.pid = p.pid JOIN (VALUES {}) c(k) ON c.k = p.pid"
    with fed:
        rows = ", ".join(f"({i})" for i in range(100))
        with pytest.raises(PolicyError, match="no table that is granted"):
            fed.sql(OF_OWN.format("age", asked.format(rows)))
        fed.sql(OF_OWN.format("age", asked.format(rows).replace("c.k = p.pid", "c.k = o.pid")))
        assert fed.model("m").metrics["rows"] == 100


def test_texts_are_grouped_byte_by_byte_under_policies(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    con, fed = owned
    con.execute("CREATE OR REPLACE TABLE patients AS SELECT 'p' || pid AS pid, age FROM patients")
    ruled(con, "min_rows = 50", "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
    with fed:
        fed.sql(OF_OWN.format(MEAN.format("p.pid = 'p' || o.pid"), "lab.own o"))
        assert fed.model("m").metrics["rows"] == 200


FULL = """(SELECT pid, p.age, o.crp, coalesce(o.y, 0) AS y
  FROM (SELECT pid, age FROM clinic.patients) p FULL JOIN lab.own o USING (pid))"""


def test_the_column_of_a_full_join_is_a_feature_of_its_owners(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    """Each owner's column must be granted for TRAIN, not for JOIN alone."""
    con, fed = owned
    con.execute("DELETE FROM patients WHERE pid < 100")
    train = f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM {FULL}"
    with fed:
        ruled(con, "min_rows = 50", "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
        with pytest.raises(PolicyError, match=r"pid of main\.patients is not .* for TRAIN"):
            fed.sql(train)
        fed.sql(train.replace("SELECT pid, p.age", "SELECT p.age", 1))
        con.execute("DELETE FROM patients WHERE pid >= 200 AND pid % 2 = 0")
        ruled(
            con, "min_rows = 50", "GRANT JOIN (pid), TRAIN (age, pid) ON patients TO 'acme' UNDER r"
        )
        fed.sql(train)
        assert fed.model("m").metrics["rows"] == 250
