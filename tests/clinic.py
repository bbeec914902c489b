"""A clinic in two databases and places of a third: visits, their costs, counts and durations."""

from __future__ import annotations

import duckdb
import numpy as np

import sqlfl
from tests.conftest import Open
from tests.open_databases import in_memory
from tests.oracle import Encoder, materialised

VISITS = (
    "CREATE TABLE visits AS SELECT i AS id, i % 11 AS place, (i * 37) % 23 / 7.0 AS age, "
    "['u', 'v', NULL][1 + i % 3] AS ward, 0.5 + (i * 5) % 4 AS years, "
    "((i * 7919) % 101 + 3 * ((i * 37) % 23)) // 25 AS n FROM range(240) r(i) WHERE i % 2 = {half}"
)
PLACES = (
    "CREATE TABLE places AS SELECT i AS place, (i * i) % 7 AS size, "
    "['s', 't'][1 + i % 2] AS sort FROM range(9) r(i)"
)
QUERY = (
    "SELECT v.age, v.ward, p.size, p.sort, {target}{more} FROM clinic.visits v "
    "LEFT JOIN geo.places p ON v.place = p.place"
)


def clinics(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    halves = [database(VISITS.format(half=half)) for half in (0, 1)]
    return {"clinic": halves, "geo": [database(PLACES)]}


def predicted(fed: sqlfl.Federation, query: str) -> np.ndarray:
    """By the visits' ids."""
    result = fed.sql(f"PREDICT MODEL m ID (clinic.visits.id) FROM ({query})").arrow()
    order = np.argsort(result.column("id").to_numpy())
    return result.column("prediction").to_numpy()[order]


def central(query: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encoded columns, target and years of the rows of `query`, by their id."""
    with in_memory() as whole:
        for party in ("clinic", "geo"):
            whole.execute(f"ATTACH ':memory:' AS {party}")
        union = VISITS.replace("CREATE TABLE visits", "CREATE TABLE clinic.visits")
        whole.execute(union.replace(" WHERE i % 2 = {half}", ""))
        whole.execute(PLACES.replace("CREATE TABLE places", "CREATE TABLE geo.places"))
        more = query.replace(" FROM", ", v.id, v.years AS w FROM", 1)
        rows = materialised(whole, f"FROM ({more}) WHERE n IS NOT NULL ORDER BY id")
    x = rows.select(["age", "ward", "size", "sort"])
    years = rows.column("w").to_numpy().astype(float)
    return Encoder.fit(x).transform(x), rows.column("n").to_numpy().astype(float), years
