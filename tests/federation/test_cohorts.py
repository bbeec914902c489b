"""Subqueries in WHERE over another party's table: models as of one database, and what leaves."""

from __future__ import annotations

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import ModelError, PolicyError
from tests.conftest import Open
from tests.coordinator.test_outer_joins import dealt_out as parties_of
from tests.depth import in_turn
from tests.governance.clinic import PATIENTS, ruled
from tests.strategies import train_sql
from tests.test_border import assert_disclosed, tapped
from tests.test_central import compare

BY_WARD = """SELECT 1 FROM lab.tests o JOIN town.wards w ON w.ward = o.assay
          WHERE o.patient = v.patient"""
BY_BOTH = """SELECT 1 FROM lab.tests o JOIN town.wards w ON w.beds = o.result
          WHERE o.assay = v.ward AND w.ward = v.days"""
STATEMENTS = {
    "in, and not exists": """
        SELECT v.label, v.days, w.beds FROM clinic.visits v JOIN town.wards w ON w.ward = v.ward
        WHERE v.patient IN (SELECT patient FROM lab.tests WHERE result > 2)
        AND NOT EXISTS (SELECT 1 FROM lab.tests t WHERE t.patient = v.patient AND t.result > 8)""",
    "exists, with several partners": """
        SELECT v.label, v.days, t.result FROM clinic.visits v
        LEFT JOIN lab.tests t ON t.patient = v.patient
        WHERE EXISTS (SELECT 1 FROM lab.tests o WHERE o.assay = v.ward)""",
    "semi and anti joins": """
        SELECT v.label, v.days FROM clinic.visits v
        SEMI JOIN lab.tests t ON t.patient = v.patient
        ANTI JOIN town.wards w ON w.ward = v.ward AND w.beds > 6""",
    "exists, over a join of two parties": """
        SELECT v.label, v.days FROM clinic.visits v WHERE EXISTS (SELECT 1 FROM lab.tests o
          JOIN town.wards w ON w.ward = o.assay WHERE o.assay = v.ward AND w.beds > 3)""",
    "exists, over a join by another key": f"""
        SELECT v.label, v.days FROM clinic.visits v WHERE EXISTS ({BY_WARD} AND w.beds > 5)""",
    "not exists, over a join by another key": f"""
        SELECT v.label, v.days FROM clinic.visits v WHERE NOT EXISTS ({BY_WARD} AND w.beds > 7)""",
    "exists as a value, over a join by another key": f"""
        SELECT v.label, v.days, EXISTS ({BY_WARD} AND w.beds > 7) AS f FROM clinic.visits v
        WHERE v.days > 4 OR v.patient IN (SELECT o.patient FROM lab.tests o
          WHERE o.assay IN (SELECT ward FROM town.wards WHERE beds < 9))""",
    "exists by two keys of outside, as a value": f"""
        SELECT v.label, v.days, EXISTS ({BY_BOTH}) AS f FROM clinic.visits v""",
    "not exists by two keys of outside": f"""
        SELECT v.label, v.days, v.ward FROM clinic.visits v WHERE NOT EXISTS ({BY_BOTH})""",
    "not in, over a join": """
        SELECT v.label, v.days, v.ward FROM clinic.visits v WHERE v.days NOT IN (
          SELECT o.device FROM lab.tests o JOIN town.wards w ON w.beds = o.result
          WHERE o.assay = v.ward)""",
    "lateral of a join": """
        SELECT v.label, v.days, q.result, q.beds FROM clinic.visits v LEFT JOIN LATERAL (
          SELECT o.result, w.beds FROM lab.tests o JOIN town.wards w ON w.ward = o.assay
          WHERE o.patient = v.patient) q ON true""",
}


@pytest.mark.parametrize(("name", "clients"), in_turn(STATEMENTS, (1, 2, 3)))
def test_models_are_those_of_one_database(name: str, clients: int, database: Open) -> None:
    parties, whole = parties_of(database, clients)
    compare(parties, whole, STATEMENTS[name], l2=1e-3)


@pytest.mark.parametrize("combine", [False, True])
def test_what_leaves_is_what_explain_says_and_no_more_than_of_a_join(
    combine: bool, database: Open
) -> None:
    parties, whole = parties_of(database, 2)
    with tapped(parties, combine=combine) as (fed, tap):
        text = train_sql(
            "m", "linear_regression", "label", STATEMENTS["exists, with several partners"]
        )
        plan = fed.explain(text)
        assert "o only says which keys there are" in str(plan.details)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
        assert fed.model("m").metrics["rows"] == len(
            whole.sql(
                f"FROM ({STATEMENTS['exists, with several partners']}) WHERE label IS NOT NULL"
            )
        )
        cohort = [slot for slot in plan.ucq.slots if slot.once]
        joined = fed.explain(
            train_sql(
                "n",
                "linear_regression",
                "label",
                "SELECT v.label, v.days FROM clinic.visits v JOIN lab.tests o ON o.assay = v.ward",
            )
        )
        assert [f.sql for f in cohort[0].fragments] == [
            f.sql for f in joined.ucq.slots[1].fragments
        ]


@pytest.mark.parametrize("word", ["", "NOT "])
@pytest.mark.parametrize("combine", [False, True])
def test_what_leaves_of_a_join_by_another_key_is_what_leaves_of_a_join(
    combine: bool, word: str, database: Open
) -> None:
    """Each database sends the tags of the same columns; EXPLAIN says what, and how much."""
    parties, whole = parties_of(database, 2)
    query = f"SELECT v.label, v.days FROM clinic.visits v WHERE {word}EXISTS ({BY_WARD})"
    kind = "LEFT JOIN" if word else "JOIN"
    joined = f"""SELECT v.label, v.days FROM clinic.visits v {kind} (lab.tests o
      JOIN town.wards w ON w.ward = o.assay) ON o.patient = v.patient"""
    with tapped(parties, combine=combine) as (fed, tap):
        text = train_sql("m", "linear_regression", "label", query)
        plan = fed.explain(text)
        assert (
            "o only says which keys there are: its rows with equal keys and a partner in w count "
            "as one" in str(plan.details)
        )
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
        rows = whole.sql(f"FROM ({query}) WHERE label IS NOT NULL").fetchall()
        assert fed.model("m").metrics["rows"] == len(rows)
        other = fed.explain(train_sql("n", "linear_regression", "label", joined))
        sent = [[(slot.keys, len(slot.databases)) for slot in p.ucq.slots] for p in (plan, other)]
        assert sent[0] == sent[1]
        assert [key.types for key in plan.ucq.keys] == [key.types for key in other.ucq.keys]
        checked = fed.sql(f"CHECK FROM ({query})").arrow().to_pylist()
        (total,) = [row["rows"] for row in checked if row["part"] == "query"]
        assert total == len(whole.sql(query))


SENT = {
    "exists": f"SELECT v.label, v.days, v.ward FROM clinic.visits v WHERE EXISTS ({BY_BOTH})",
    "a cycle": """
        SELECT v.label, v.days FROM clinic.visits v WHERE EXISTS (SELECT 1 FROM lab.tests o
          JOIN town.wards w ON w.ward = o.assay JOIN clinic.notes n ON n.size = w.beds
            AND n.visit % 5 = o.result % 5 WHERE o.patient = v.patient)""",
    **{name: STATEMENTS[name] for name in [*STATEMENTS][-4:]},
    "in that may be NULL, as a value": """
        SELECT v.label, v.days, coalesce(v.days IN (SELECT o.device FROM lab.tests o
          JOIN town.wards w ON w.beds = o.result WHERE o.assay = v.ward), true) AS f
        FROM clinic.visits v""",
    "lateral after a comma": """
        SELECT v.label, v.days, q.result FROM clinic.visits v,
          LATERAL (SELECT o.result FROM lab.tests o WHERE o.patient = v.patient) q""",
}


@pytest.mark.parametrize(("name", "combine"), in_turn(SENT, (False, True)))
def test_what_leaves_of_subqueries_over_joins_is_what_explain_says(
    name: str, combine: bool, database: Open
) -> None:
    parties, whole = parties_of(database, 2)
    text = train_sql("m", "linear_regression", "label", SENT[name], l2=0.1)
    with tapped(parties, combine=combine) as (fed, tap):
        plan = fed.explain(text)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
        rows = whole.sql(f"FROM ({SENT[name]}) WHERE label IS NOT NULL").fetchall()
        assert fed.model("m").metrics["rows"] == len(rows) > 0
        checked = fed.sql(f"CHECK FROM ({SENT[name]})").arrow().to_pylist()
        (total,) = [row["rows"] for row in checked if row["part"] == "query"]
        assert total == len(whole.sql(SENT[name]))


@pytest.mark.parametrize("word", ["", "NOT "])
def test_no_more_leaves_of_a_subquery_by_two_keys_than_of_an_inner_join(
    word: str, database: Open
) -> None:
    parties, _ = parties_of(database, 2)
    query = f"SELECT v.label, v.days FROM clinic.visits v WHERE {word}EXISTS ({BY_BOTH})"
    joined = """SELECT v.label, v.days FROM clinic.visits v JOIN lab.tests o ON o.assay = v.ward
      JOIN town.wards w ON w.beds = o.result AND w.ward = v.days"""
    with tapped(parties) as (fed, _):
        plans = [
            fed.explain(train_sql("m", "linear_regression", "label", text))
            for text in (query, joined)
        ]
        sent = [
            [sorted(p.ucq.keys[key].types for key in slot.keys) for slot in p.ucq.slots]
            for p in plans
        ]
        assert sent[0] == sent[1]
        assert (
            "o and w only say which keys there are: their joined rows with equal keys count as "
            "one; they send the keys that an inner join by the same equalities needs"
            in " ".join(str(plans[0].details).split())
        )


def test_a_join_that_lasts_serves_a_subquery_over_a_join(database: Open) -> None:
    parties, whole = parties_of(database, 2)
    query = f"SELECT v.label, v.days FROM clinic.visits v WHERE EXISTS ({BY_WARD})"
    with tapped(parties) as (fed, tap):
        fed.sql(f"CREATE JOIN j AS ({query})")
        for name in ("m", "n"):
            text = f"TRAIN MODEL {name} USING linear_regression TARGET label FROM j"
            plan = fed.explain(text)
            with tap.taken() as recorded:
                fed.sql(text)
            assert_disclosed(plan, recorded, parties, epochs=fed.model(name).history.num_rows)
            rows = len(whole.sql(f"FROM ({query}) WHERE label IS NOT NULL"))
            assert fed.model(name).metrics["rows"] == rows


def test_what_leaves_of_a_join_of_parties_is_what_leaves_of_an_exists_of_each(
    database: Open,
) -> None:
    parties, _ = parties_of(database, 2)
    each = """SELECT v.label, v.days FROM clinic.visits v
      WHERE EXISTS (SELECT 1 FROM lab.tests o WHERE o.assay = v.ward)
      AND EXISTS (SELECT 1 FROM town.wards w WHERE w.beds > 3 AND w.ward = v.ward)"""
    queries = {"joined": STATEMENTS["exists, over a join of two parties"], "each": each}
    with tapped(parties) as (fed, tap):
        fragments = []
        for query in queries.values():
            text = train_sql("m", "linear_regression", "label", query)
            plan = fed.explain(text.replace("TRAIN", "TRAIN OR REPLACE", 1))
            with tap.taken() as recorded:
                fed.sql(text.replace("TRAIN", "TRAIN OR REPLACE", 1))
            assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
            fragments.append([f.sql for slot in plan.ucq.slots for f in slot.fragments])
        assert fragments[0] == fragments[1]


@pytest.mark.parametrize("combine", [False, True])
def test_of_rows_with_equal_keys_one_takes_part(combine: bool, database: Open) -> None:
    """EXISTS as a value over two databases, each of which has each key several times."""
    rows = "SELECT (2 * i + {}) % 60 AS k FROM range(30) AS r(i), range(3)"
    parties = {
        "h": [
            database("CREATE TABLE v AS SELECT i AS k, i % 7 AS x, i % 5 AS y FROM range(40) r(i)")
        ],
        "l": [database(f"CREATE TABLE t AS {rows.format(number)}") for number in (0, 6)],
    }
    query = "SELECT v.x, v.y, EXISTS (SELECT 1 FROM l.t WHERE t.k = v.k) AS e FROM h.v"
    text = train_sql("m", "linear_regression", "y", query)
    with tapped(parties, combine=combine) as (fed, tap):
        plan = fed.explain(text)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)


OWN = "CREATE TABLE own AS SELECT i AS pid, cos(i) AS crp, sin(2 * i) AS y FROM range(200) AS r(i)"
OF_OWN = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y
  FROM (SELECT crp, y FROM lab.own o {})"""
EXISTS = "WHERE {} (SELECT 1 FROM clinic.patients p WHERE p.pid = o.pid{})"


@pytest.fixture
def owned(database: Open) -> tuple[duckdb.DuckDBPyConnection, sqlfl.Federation]:
    con = database(PATIENTS)
    fed = sqlfl.connect(analyst="acme", progress=False)
    fed.attach("clinic", con)
    fed.attach("lab", database(OWN))
    return con, fed


def test_a_subquery_is_under_the_policies_of_its_table(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    """Its key must be granted for JOIN, and what it tests for FILTER; too few rows are refused."""
    con, fed = owned
    ruled(con, "min_rows = 50", "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
    with fed:
        fed.sql(OF_OWN.format(EXISTS.format("EXISTS", "")))
        assert fed.model("m").metrics["rows"] == 200
        for word in ("EXISTS", "NOT EXISTS"):
            with pytest.raises(
                PolicyError, match=r"age of main\.patients is not granted to acme for FILTER"
            ):
                fed.sql(OF_OWN.format(EXISTS.format(word, " AND p.age > 30")))
        with pytest.raises(PolicyError, match="min_rows = 50, of rows that are joined"):
            fed.sql(OF_OWN.format(EXISTS.format("EXISTS", "") + " AND o.pid < 49"))
        with pytest.raises(PolicyError):
            fed.sql(OF_OWN.format(EXISTS.format("EXISTS", "").replace("p.pid =", "p.age =")))


def test_an_owner_hears_of_all_rows_or_of_none(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation],
) -> None:
    con, fed = owned
    con.execute("INSERT INTO patients FROM patients WHERE pid < 5")
    ruled(con, "min_rows = 5", "GRANT JOIN (pid) ON patients TO 'acme' UNDER r")
    with fed, pytest.raises(ModelError, match="several rows with one key"):
        fed.sql(OF_OWN.format(EXISTS.format("EXISTS", "")))


DAYS = "CREATE TABLE days AS SELECT i AS day, i % 3 > 0 AS open, i AS pid FROM range(20) r(i)"
OF_DAYS = """WHERE {} (SELECT 1 FROM clinic.patients p JOIN town.days d ON d.day = p.age
  WHERE p.pid = o.pid{})"""


def test_tables_of_a_subquery_over_a_join_are_under_their_policies(
    owned: tuple[duckdb.DuckDBPyConnection, sqlfl.Federation], database: Open
) -> None:
    """The keys of each table, and what it tests; an owner hears of all rows or of none."""
    con, fed = owned
    con.execute("UPDATE patients SET age = pid % 40")
    ruled(con, "min_rows = 50", "GRANT JOIN (pid), TRAIN (age) ON patients TO 'acme' UNDER r")
    fed.attach("town", days := database(DAYS))
    with fed:
        for word in ("EXISTS", "NOT EXISTS"):
            with pytest.raises(PolicyError, match=r"age of main\.patients is not granted .* JOIN"):
                fed.sql(OF_OWN.format(OF_DAYS.format(word, "")))
        ruled(con, "min_rows = 50", "GRANT JOIN (pid, age) ON patients TO 'acme' UNDER r")
        fed.sql(OF_OWN.format(OF_DAYS.format("EXISTS", "")))
        assert fed.model("m").metrics["rows"] == 100
        with pytest.raises(PolicyError, match="min_rows = 50, of rows that are joined"):
            fed.sql(OF_OWN.format(OF_DAYS.format("EXISTS", " AND d.day < 3")))
        for rows in (
            OF_DAYS.format("NOT EXISTS", " AND d.open"),
            EXISTS.format("NOT EXISTS", "").replace("= o.pid", "= o.pid + 250"),
        ):  # of no table of a subquery any row is joined then
            with pytest.raises(PolicyError, match="min_rows = 50, of rows that are joined"):
                fed.sql(OF_OWN.format(rows))
        days.execute("INSERT INTO days VALUES (5, true, 0)")
        with pytest.raises(
            ModelError, match="table d has several rows with one key, and the owner of table p"
        ):
            fed.sql(OF_OWN.format(OF_DAYS.format("EXISTS", "")))
