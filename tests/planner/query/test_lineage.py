"""What features, labels, keys and conditions are made of, in the normal form of whole queries."""

from __future__ import annotations

import pytest

from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.planner.query import lineage
from sqlfl.planner.query.draft import Roles
from sqlfl.planner.query.lineage import Origin, Use
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import Ucq
from tests.planner.conftest import DatabaseCatalog


def ucq_of(query: str, catalog: DatabaseCatalog, weight: str | None = None) -> Ucq:
    statement = parse(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
    assert isinstance(statement, TrainModel)
    return to_ucq(statement.query, statement.sql, catalog, Roles("y", weight=weight))


def made(query: str, catalog: DatabaseCatalog) -> dict[str, str]:
    """What -> the columns that it is made of, of all slots together."""
    found: dict[str, set[str]] = {}
    for use in lineage.uses(ucq_of(query, catalog)):
        name = f"{use.what} {use.name}".strip()
        found.setdefault(name, set()).update(f"{o.table}.{o.column}" for o in use.origins)
    return {name: ", ".join(sorted(columns)) for name, columns in found.items()}


ORDERS = "SELECT {} FROM shop.orders o JOIN register.people p ON o.customer = p.id"
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": (
        ORDERS.format("o.amount AS y, p.age"),
        {
            "label": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
        },
    ),
    "expressions": (
        ORDERS.format("o.amount > 5 AS y, O.AMOUNT * 2 AS f, p.age + p.income AS g")
        + " WHERE o.paid AND p.city IS NOT NULL",
        {
            "label": "orders.amount",
            "feature f": "orders.amount",
            "feature g": "people.age, people.income",
            "key": "orders.customer, people.id",
            "condition": "orders.paid, people.city",
        },
    ),
    "a condition of a left join": (
        "SELECT o.paid AS y, o.amount, p.age FROM shop.orders o LEFT JOIN register.people p "
        "ON o.customer = p.id AND o.paid",
        {
            "label": "orders.paid",
            "feature amount": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, orders.paid, people.id",
        },
    ),
    "a condition after a left join": (
        "SELECT o.paid AS y, p.age FROM shop.orders o LEFT JOIN register.people p "
        "ON o.customer = p.id WHERE p.age IS NULL OR p.age > 3",
        {
            "label": "orders.paid",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
            "condition": "people.age",
        },
    ),
    "a key by CASE": (
        "SELECT o.paid AS y, p.age FROM shop.orders o JOIN register.people p "
        "ON CASE WHEN o.amount > 3 THEN o.customer END = p.id",
        {
            "label": "orders.paid",
            "feature age": "people.age",
            "key": "orders.amount, orders.customer, people.id",
        },
    ),
    "keys by operators of DuckDB's own": (
        "SELECT o.paid AS y, p.age FROM shop.orders o JOIN register.people p "
        "ON o.customer ** 2 = @p.id",
        {
            "label": "orders.paid",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
        },
    ),
    "implied": (
        "SELECT o.amount AS y, p.age FROM shop.orders o JOIN register.people p "
        "ON o.customer = p.id AND o.customer = p.boss",
        {
            "label": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, people.boss",
            "condition": "people.boss, people.id",
        },
    ),
    "derived tables": (
        "SELECT q.f, q.y, p.age FROM (SELECT customer AS c, amount AS f, paid AS y "
        "FROM shop.orders WHERE note IS NOT NULL) q JOIN register.people p ON q.c = p.id",
        {
            "label": "orders.paid",
            "feature f": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
            "condition": "orders.note",
        },
    ),
    "a query that its party runs whole": (
        "SELECT q.f, q.y, p.age FROM (SELECT customer AS c, max(amount) AS f, min(amount) > 3 AS y "
        "FROM shop.orders WHERE paid GROUP BY customer HAVING count(note) > 1) q "
        "JOIN register.people p ON q.c = p.id",
        {
            "label": "orders.amount",
            "feature f": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
            "condition": "orders.customer, orders.note, orders.paid",
        },
    ),
    "WITH and a star": (
        "WITH w AS (SELECT * FROM shop.orders LIMIT 9) SELECT w.amount, w.paid AS y, p.age FROM w "
        "JOIN register.people p ON w.customer = p.id",
        {
            "label": "orders.paid",
            "feature amount": "orders.amount",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
        },
    ),
    "a query that is not looked through": (
        "SELECT q.f, q.y, p.age FROM (SELECT customer AS c, amount AS f, paid AS y FROM "
        "shop.orders UNION SELECT id, amount, paid FROM shop.orders) q "
        "JOIN register.people p ON q.c = p.id",
        {
            "label": "orders.amount, orders.customer, orders.id, orders.paid",
            "feature f": "orders.amount, orders.customer, orders.id, orders.paid",
            "feature age": "people.age",
            "key": "orders.amount, orders.customer, orders.id, orders.paid, people.id",
            "condition": "orders.amount, orders.customer, orders.id, orders.paid",
        },
    ),
    "tables of one party": (
        "SELECT o.amount AS y, i.price, p.age FROM shop.orders o LEFT JOIN shop.items i "
        "ON o.id = i.order_id AND o.amount > i.price JOIN register.people p ON o.customer = p.id",
        {
            "label": "orders.amount",
            "feature price": "items.price",
            "feature age": "people.age",
            "key": "orders.customer, people.id",
            "condition": "items.order_id, items.price, orders.amount, orders.id",
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_is_made_of(name: str, catalog: DatabaseCatalog) -> None:
    query, expected = CASES[name]
    assert made(query, catalog) == expected


def test_a_correlated_query_reads_what_is_around_it(catalog: DatabaseCatalog) -> None:
    query = ORDERS.format(
        "(SELECT max(i.price) FROM shop.items i WHERE i.order_id = o.id) AS y, o.amount, p.age"
    )
    found = made(query, catalog)
    assert set(found["label"].split(", ")) >= {"items.price", "items.order_id", "orders.id"}
    assert "orders.amount" not in found["label"]


def test_each_client_of_a_table_has_columns_of_its_own(catalog: DatabaseCatalog) -> None:
    query = (
        "SELECT v.cost AS y, v.kind, p.age FROM clinic.visits v "
        "JOIN register.people p ON v.person = p.id"
    )
    uses = lineage.uses(ucq_of(query, catalog))
    (label,) = (use for use in uses if use.what == lineage.LABEL)
    assert {origin.client for origin in label.origins} == {"clinic/0", "clinic/1", "clinic/2"}


def test_the_weight_is_one_too(catalog: DatabaseCatalog) -> None:
    ucq = ucq_of(ORDERS.format("o.amount AS y, o.id AS w, p.age"), catalog, weight="w")
    found = {use.what: use for use in lineage.uses(ucq)}
    assert found[lineage.WEIGHT].origins == {Origin("shop/0", "orders", "id")}


def test_what_meets() -> None:
    def use(*columns: str, table: str = "t", client: str = "a/0") -> Use:
        return Use("feature", 0, "", frozenset(Origin(client, table, c) for c in columns))

    assert use("a", "b").meets(use("b"))
    assert not use("a", "b").meets(use("c"))
    assert use("*").meets(use("c"))
    assert use("st").meets(use("st.f"))
    assert not use("st.g").meets(use("st.f"))
    assert not use("st").meets(use("str"))
    assert not use("a").meets(use("a", table="u"))
    assert not use("a").meets(use("a", client="a/1"))
    assert not use().meets(use("*"))


def test_views_are_named(catalog: DatabaseCatalog) -> None:
    ucq = ucq_of(
        "SELECT o.amount AS y, p.age FROM shop.big_orders o "
        "JOIN register.people p ON o.customer = p.id",
        catalog,
    )
    assert "shop.big_orders" in lineage.views(ucq)
