"""Stars within expressions and patterns of names, over tables of several databases."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.test_meaning import plan

FROM = "FROM shop.items i JOIN north.staff s ON s.number = i.order_id + 9"
QUERIES = {
    "COLUMNS in a function": f"SELECT round(COLUMNS('pri|age'), 1) {FROM}",
    "COLUMNS in an operator": f"SELECT i.product, COLUMNS('pri|age') + 1 AS x {FROM}",
    "COLUMNS twice": f"SELECT CASE WHEN COLUMNS('qua|age') > 3 THEN COLUMNS('qua|age') END {FROM}",
    "COLUMNS of a table": f"SELECT COLUMNS(i.*)::VARCHAR, s.age {FROM}",
    "COLUMNS with EXCLUDE": f"SELECT coalesce(COLUMNS(* EXCLUDE (product, town)), 0) {FROM}",
    "COLUMNS of a list": f"SELECT COLUMNS(['age', 'price']) * 2 {FROM}",
    "COLUMNS with names": f"SELECT ln(COLUMNS('pri(.*)|a(.*)')) AS 'log_\\1' {FROM}",
    "names alone": f"SELECT COLUMNS('(pri).*|(age)') AS 'new_\\1' {FROM}",
    "COLUMNS on the right": "SELECT i.product, coalesce(COLUMNS('age'), 1) FROM shop.items i "
    "LEFT JOIN north.staff s ON s.number = i.order_id + 9",
    "a star LIKE": f"SELECT * LIKE '%e' {FROM}",
    "a star NOT LIKE": f"SELECT i.* NOT LIKE '%e', s.age {FROM}",
    "a star SIMILAR TO": f"SELECT * SIMILAR TO 'a.*|price' {FROM}",
    "in a derived table": """SELECT p.age, c.* FROM register.people p JOIN (
        SELECT person, round(COLUMNS(['cost'])) FROM clinic.visits) c ON c.person = p.id""",
    "fields of a struct": "SELECT unnest({'a': i.price, 'b c': i.quantity}), s.age " + FROM,
    "fields on the right": "SELECT unnest({'a': s.age}), i.product FROM shop.items i "
    "LEFT JOIN north.staff s ON s.number = i.order_id + 9",
    "a number": f"SELECT #1, #5 AS number {FROM}",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_and_names_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    ucq = plan(catalog, query)
    assert planned_rows(ucq, catalog.databases) == ordered(central.execute(query).fetchall())
    found = central.execute(f"SELECT * FROM ({query})").description
    assert [name.lower() for name in ucq.columns] == [column[0].lower() for column in found]


@pytest.mark.parametrize(
    "shown",
    [
        "coalesce(*COLUMNS(['price', 'age']))",
        "greatest(UNPACK(COLUMNS(['price', 'age'])))",
        "COLUMNS('price') + COLUMNS('age')",
        "COLUMNS(*) AS 'a\\1'",
        "* EXCLUDE (price) LIKE 'a%'",
    ],
)
def test_others_are_refused(shown: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT {shown} {FROM}")
    assert caught.value.line
    assert caught.value.hint
