"""Keys of texts that a collation compares: plans give the rows of one database."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan

PEOPLE = """CREATE TABLE people (id INTEGER, name VARCHAR);
    INSERT INTO people VALUES (1, 'Ann'), (2, 'ANN'), (3, 'bo'), (4, 'José'), (5, NULL), (6, 'x')"""
VISITS = """CREATE TABLE visits (name VARCHAR COLLATE {}, z INTEGER); INSERT INTO visits VALUES
    ('ann', 1), ('Ann', 2), ('BO', 4), ('JOSE', 8), ('jose', 16), (NULL, 32), ('bo', 64)"""
QUERIES = {
    "a join": "SELECT p.id, v.z FROM a.people p JOIN b.visits v ON p.name = v.name",
    "a left join": "SELECT p.id, v.z FROM a.people p LEFT JOIN b.visits v USING (name)",
    "in": "SELECT p.id FROM a.people p WHERE p.name IN (SELECT name FROM b.visits WHERE z > 2)",
    "not exists": """SELECT p.id FROM a.people p
        WHERE NOT EXISTS (FROM b.visits v WHERE v.name = p.name)""",
    "an aggregate": """SELECT p.id, (SELECT sum(z) FROM b.visits v WHERE v.name = p.name) AS s
        FROM a.people p""",
    "of an expression": """SELECT p.id, (SELECT count(*) FROM b.visits v
        WHERE v.name || '!' = concat(p.name, '!')) AS n FROM a.people p""",
    "an aggregate for each": """SELECT v.z, (SELECT sum(id) FROM a.people p WHERE p.name = v.name)
        AS s FROM b.visits v""",
    "groups": """SELECT p.id, d.n FROM a.people p JOIN (SELECT name, count(*) AS n FROM b.visits
        GROUP BY name) d ON d.name = p.name""",
    "COLLATE": """SELECT p.id, o.id AS other FROM a.people p JOIN c.people o
        ON p.name COLLATE NOACCENT.NOCASE = o.name""",
    "bytes": """SELECT p.id, v.z FROM a.people p JOIN b.visits v
        ON encode(p.name) = encode(v.name)""",
}
COLLATIONS = ("NOCASE", "noaccent", "nocase.noaccent")


@pytest.fixture(scope="module", params=COLLATIONS)
def world(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]]:
    scripts = {"a": PEOPLE, "b": VISITS.format(request.param), "c": PEOPLE}
    with duckdb.connect() as central:
        for party, script in scripts.items():
            central.execute(f"CREATE SCHEMA {party}; USE {party}; {script}")
        central.execute("USE main")
        yield DatabaseCatalog({p: (database(s),) for p, s in scripts.items()}), central


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_keys_compare_as_in_one_database(
    query: str, world: tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]
) -> None:
    catalog, central = world
    same_rows(catalog, central, query)


def test_databases_that_compare_one_text_unlike_are_one_table() -> None:
    """The collation of one of them holds for all of the party's rows."""
    parts = [VISITS.replace("COLLATE {}", ""), VISITS.format("nocase")]
    catalog = DatabaseCatalog({"a": (database(PEOPLE),), "b": tuple(map(database, parts))})
    found = planned_rows(plan(catalog, QUERIES["an aggregate"]), catalog.databases)
    sums = {"1": 6, "2": 6, "3": 136, "4": None, "5": None, "6": None}
    assert found == ordered([(int(key), total) for key, total in sums.items()])


def test_others_are_refused() -> None:
    catalog = DatabaseCatalog({"a": (database(PEOPLE),), "b": (database(VISITS.format("nfc")),)})
    with pytest.raises(PlanError, match="a collation other than NOCASE and NOACCENT") as caught:
        plan(catalog, QUERIES["a join"])
    assert "encode(a.x) = encode(b.x)" in str(caught.value)
    assert plan(catalog, QUERIES["bytes"])
