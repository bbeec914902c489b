"""Windows of days between two parties: models as of one database, and what leaves."""

from __future__ import annotations

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PlanError
from tests.conftest import Open
from tests.governance.clinic import ruled
from tests.strategies import train_sql
from tests.test_border import assert_disclosed, tapped
from tests.test_central import compare

VISITS = """CREATE TABLE visits AS SELECT i % 50 AS pid,
  DATE '2023-01-01' + (i % 90)::INTEGER AS day, sin(i) AS cost,
  i + cos(i) AS label FROM range(200) AS r(i)"""
LABS = """CREATE TABLE labs AS SELECT i % 50 AS pid,
  DATE '2023-01-01' + (i * 7 % 90)::INTEGER AS day, cos(2 * i) AS z FROM range(300) AS r(i)"""
JOINS = {
    "inner": "JOIN lab.labs l ON l.pid = v.pid AND l.day BETWEEN v.day - 7 AND v.day",
    "left": "LEFT JOIN lab.labs l ON l.pid = v.pid AND l.day BETWEEN v.day - 7 AND v.day",
}
QUERY = "SELECT v.cost, l.z, v.label FROM clinic.visits v {}"


def parties_of(
    database: Open, clients: int = 1
) -> tuple[dict[str, list[duckdb.DuckDBPyConnection]], duckdb.DuckDBPyConnection]:
    """Parties of so many databases each, rows dealt out in turn; and all tables in one."""
    whole = database("ATTACH ':memory:' AS clinic", "ATTACH ':memory:' AS lab")
    parties: dict[str, list[duckdb.DuckDBPyConnection]] = {}
    for party, table, statement in (("clinic", "visits", VISITS), ("lab", "labs", LABS)):
        whole.execute(statement.replace(f"TABLE {table}", f"TABLE {party}.{table}"))
        parties[party] = [database(statement) for _ in range(clients)]
        for client, con in enumerate(parties[party]):
            con.execute(f"DELETE FROM {table} WHERE rowid % {clients} <> {client}")
    return parties, whole


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("name", JOINS)
def test_models_are_those_of_one_database(name: str, clients: int, database: Open) -> None:
    parties, whole = parties_of(database, clients)
    compare(parties, whole, QUERY.format(JOINS[name]), l2=1e-3)


def test_what_leaves_is_what_explain_says(database: Open) -> None:
    parties, whole = parties_of(database)
    with tapped(parties) as (fed, tap):
        text = train_sql("m", "linear_regression", "label", QUERY.format(JOINS["inner"]))
        plan = fed.explain(text)
        assert "l sends 8 keys for each row: one for each day of a window" in str(plan.details)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
        matched = whole.sql(
            f"SELECT DISTINCT v.rowid FROM clinic.visits v {JOINS['inner']}"
        ).fetchall()
        assert fed.model("m").metrics["unjoined"] == 200 - len(matched)


def test_the_keys_under_a_policy_are_columns(database: Open) -> None:
    """The other table's rows are repeated, unless it has the target, whose rows are counted."""
    parties, _ = parties_of(database)
    ruled(parties["lab"][0], "", "GRANT TRAIN (z), JOIN (pid, day) ON labs TO 'acme' UNDER r")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        for party, connections in parties.items():
            fed.attach(party, connections[0])
        text = train_sql("m", "linear_regression", "label", QUERY.format(JOINS["inner"]))
        with pytest.raises(PlanError, match="a window needs computed keys of l"):
            fed.sql(text)
