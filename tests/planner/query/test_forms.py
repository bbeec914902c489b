"""The same query in other words has the same normal form."""

from __future__ import annotations

import pytest

from sqlfl.planner.query.ucq import Ucq
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.test_meaning import plan

FORMS = {
    "join conditions": (
        "SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id",
        "SELECT o.amount, p.age FROM shop.orders o, register.people p WHERE p.id = o.customer",
        "SELECT amount, age FROM shop.orders o CROSS JOIN register.people p WHERE customer = p.id",
        """SELECT o.amount, p.age FROM (SELECT amount, customer AS id FROM shop.orders) o
           JOIN register.people p USING (id)""",
        """SELECT * EXCLUDE (id) FROM (SELECT amount, customer AS id FROM shop.orders) o
           NATURAL JOIN (SELECT id, age FROM register.people) p""",
        """WITH o AS (SELECT amount, customer FROM shop.orders)
           SELECT o.amount, p.age FROM o JOIN register.people p ON o.customer = p.id""",
    ),
    "a condition that all alternatives have": (
        """SELECT o.amount, p.age FROM shop.orders o
           JOIN register.people p ON o.customer = p.id AND (p.age > 60 OR p.age < 30)""",
        """SELECT o.amount, p.age FROM shop.orders o, register.people p
           WHERE o.customer = p.id AND p.age > 60 OR (p.age < 30 AND p.id = o.customer)""",
    ),
    "an alternative that is the condition of all": (
        "SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id",
        """SELECT o.amount, p.age FROM shop.orders o JOIN register.people p
           ON (o.customer = p.id AND o.amount > 2) OR o.customer = p.id""",
    ),
    "composite keys": (
        """SELECT o.amount, w.temp FROM shop.orders o
           JOIN register.weather w ON o.day = w.day AND o.moment = w.moment""",
        """SELECT o.amount, w.temp FROM shop.orders o
           JOIN register.weather w ON w.moment = o.moment AND w.day = o.day""",
        "SELECT amount, temp FROM shop.orders o JOIN register.weather w USING (moment, day)",
        "SELECT amount, temp FROM shop.orders o NATURAL JOIN register.weather w",
    ),
    "unions": (
        """SELECT v.cost, v.kind, p.age FROM
           (SELECT person, cost, kind FROM north.visits UNION ALL
            SELECT person, cost, kind FROM south.visits) v
           JOIN register.people p ON v.person = p.id WHERE v.kind <> 'x'""",
        """SELECT v.cost, v.kind, p.age FROM north.visits v
           JOIN register.people p ON v.person = p.id WHERE v.kind <> 'x'
           UNION ALL SELECT v.cost, v.kind, p.age FROM south.visits v
           JOIN register.people p ON v.person = p.id WHERE v.kind <> 'x'""",
        """SELECT v.cost, v.kind, p.age FROM south.visits v, register.people p
           WHERE v.kind <> 'x' AND v.person = p.id
           UNION ALL (SELECT v.cost, v.kind, p.age FROM north.visits v
           JOIN register.people p ON p.id = v.person AND v.kind <> 'x')""",
        """SELECT cost, kind, age FROM
           (SELECT * FROM (SELECT person AS id, cost, kind FROM north.visits UNION ALL
            SELECT person, cost, kind FROM south.visits) WHERE kind <> 'x') v
           JOIN register.people p USING (id)""",
    ),
    "products of unions": (
        """SELECT v.kind, u.sick FROM
           (SELECT kind, person FROM north.visits UNION ALL SELECT kind, person FROM south.visits) v
           JOIN (SELECT sick, person FROM north.visits UNION ALL
                 SELECT sick, person FROM south.visits) u ON u.person = v.person""",
        " UNION ALL ".join(
            f"""SELECT v.kind, u.sick FROM {a}.visits v JOIN {b}.visits u
                ON v.person = u.person"""
            for a in ("north", "south")
            for b in ("south", "north")
        ),
    ),
}


def normal_form(ucq: Ucq) -> object:
    return (
        [
            (s.features, s.target, s.identifiers, s.keys, [(f.client, f.sql) for f in s.fragments])
            for s in ucq.slots
        ],
        ucq.keys,
        ucq.blocks,
        ucq.columns,
    )


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_forms_are_one(forms: tuple[str, ...], catalog: DatabaseCatalog) -> None:
    first, *others = (normal_form(plan(catalog, form)) for form in forms)
    for other in others:
        assert other == first
