"""What a refusal says to do: it has to be what helps with the very thing that was written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sqlfl
from tests.conftest import Open
from tests.databases import in_memory
from tests.federations import federation
from tests.planner import goldens

LEFT = (
    "CREATE TABLE t AS SELECT i AS id, i % 2 AS y, i AS x, DATE '2024-01-01' + i::INT AS day, "
    "TIMESTAMP '2024-01-01' AS moment, NULL AS nothing FROM range(4) r(i)"
)
RIGHT = "CREATE TABLE u AS SELECT i AS id, i AS z FROM range(4) r(i)"
JOIN = "FROM a.t t JOIN b.u u ON t.id = u.id"
HINTS = {
    f"SELECT day, z, y {JOIN}": ("y", "year(column)"),
    f"SELECT moment, z, y {JOIN}": ("y", "dayofweek(column)"),
    f"SELECT z, day {JOIN}": ("day", "epoch(column)"),
    f"SELECT z, nothing {JOIN}": ("nothing", "TARGET names a column that has values"),
    f"SELECT nothing, z, y {JOIN}": ("y", "leave it out"),
    f"SELECT z, y, x * z AS ww {JOIN}": ("y WEIGHT ww", "WEIGHT one party's column"),
    f"SELECT z, x * z AS y {JOIN}": ("y", "TARGET one party's column"),
    f"SELECT x * z AS f, y {JOIN}": ("y", "the model adds them up"),
    "SELECT y, z FROM 'x/flights.parquet' t JOIN b.u u ON t.id = u.id": ("y", "CREATE VIEW"),
    "SELECT y, z FROM frame t JOIN b.u u ON t.id = u.id": ("y", "write party.frame"),
    "SELECT {x}, y FROM a.t t JOIN b.u u ON t.id = u.id": ("y", "starts with f"),
    "SELECT y, z FROM {table} t JOIN b.u u ON t.id = u.id": ("y", "starts with f"),
    f"SELECT z, y {JOIN} WHERE z > {{limit}}": ("y", "starts with f"),
}


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    """In which nothing is run."""
    with in_memory() as left, in_memory() as right:
        left.execute(LEFT)
        right.execute(RIGHT)
        with federation({"a": [left], "b": [right]}) as made:
            yield made


@pytest.mark.parametrize("query", HINTS)
def test_the_hint_is_about_what_was_written(query: str, fed: sqlfl.Federation) -> None:
    target, wanted = HINTS[query]
    with pytest.raises(sqlfl.Error) as caught:
        fed.explain(f"TRAIN MODEL m USING linear_regression TARGET {target} FROM ({query})")
    assert wanted in (caught.value.hint or "")


TAKEN = (
    f"SELECT `z`, y {JOIN}",
    f"SELECT t.x::VARCHAR.upper() AS c, z, y {JOIN}",
    f"SELECT year(day) AS a, dayofweek(day) AS b, epoch(moment) AS c, z, y {JOIN}",
)


@pytest.mark.parametrize("query", TAKEN)
def test_what_hints_tell_to_write_is_taken(query: str, fed: sqlfl.Federation) -> None:
    fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")


def test_a_client_that_lacks_a_table_or_a_column_is_named(database: Open) -> None:
    first = database(RIGHT, "CREATE TABLE alone AS SELECT * FROM u")
    second = database(RIGHT.replace("i AS z", "i AS zz"))
    with federation({"a": [database(LEFT)], "b": [first, second]}) as fed:
        for table, column, said in (
            ("alone", "z", "client 1 of party b has no table alone"),
            ("u", "z", "column z of u is not there at client 1 of party b"),
            ("u", "u.zz", "column zz of u is not there at client 0 of party b"),
        ):
            with pytest.raises(sqlfl.PlanError) as caught:
                fed.explain(
                    "TRAIN MODEL m USING linear_regression TARGET y "
                    f"FROM (SELECT y, {column} FROM a.t t JOIN b.{table} u ON t.id = u.id)"
                )
            assert caught.value.message == said
            assert caught.value.hint


def test_every_refusal_has_a_hint() -> None:
    refused = goldens.cases("refusals.sql")
    assert len(refused) > 100
    assert not [case.name for case in refused if "\nhint: " not in case.expected]
