"""`fed.trace()`: the SQL that parties run, and nothing in it that tells data."""

from __future__ import annotations

import threading

import duckdb
import pytest
from sqlglot import exp

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from tests.conftest import Open
from tests.federations import Parties, federation

TRAIN = (
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y "
    "WITH (epochs = 2, engine = '{engine}') "
    "FROM (SELECT p.y, p.town, s.size FROM census.people p JOIN geo.sizes s USING (town))"
)


@pytest.fixture
def parties(database: Open) -> Parties:
    """census is two clients."""
    people = (
        "CREATE TABLE people AS SELECT i AS y, 'secret town ' || (i % 5) AS town "
        "FROM range(20) r(i) WHERE i % 2 = {}"
    )
    sizes = (
        "CREATE TABLE sizes AS SELECT 'secret town ' || i AS town, i * i AS size FROM range(5) r(i)"
    )
    return {
        "census": [database(people.format(part)) for part in (0, 1)],
        "geo": [database(sizes)],
    }


@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_it_has_what_each_client_ran_for_which_message(engine: str, parties: Parties) -> None:
    with federation(parties) as fed:
        with fed.trace() as trace:
            fed.sql(TRAIN.format(engine=engine))
        run = fed.model("m").run
        audit = fed.audit().arrow().to_pylist()
    asked = {(f"{row['party']}/{row['client'].rpartition('/')[2]}", row["kind"])
             for row in audit if row["direction"] == "down"}  # fmt: skip
    ran = {(one.client, one.message) for one in trace}
    assert ran <= asked
    expected = {"list_tables", "describe", "prepare"} | ({"activate"} if engine == "sql" else set())
    for client in ("census/0", "census/1", "geo/0"):
        assert expected <= {k for c, k in ran if c == client}
        prepared = [one.sql for one in trace if (one.client, one.message) == (client, "prepare")]
        made = any("CREATE TEMP" in text and f"sqlfl_{run}" in text for text in prepared)
        assert made == (engine == "sql")
    assert all(one.seconds > 0 for one in trace)
    places = [one for one in trace if "DUCKDB_VIEWS()" in one.sql.upper()]
    assert places
    assert all(one.rows is not None and one.rows > 4 for one in places)
    made_tables = {one.rows for one in trace if one.sql.startswith("CREATE")}
    assert made_tables == ({None} if engine == "sql" else set())


def test_no_value_of_a_table_and_no_key_is_in_it(parties: Parties) -> None:
    """What a statement says itself is; rows, categories and keys of hashes are not."""
    held = []
    original = keys.derive
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "derive", lambda *a: held.append(original(*a)) or held[-1])
        with federation(parties) as fed, fed.trace() as trace:
            for engine in ("sql", "arrays"):
                fed.sql(TRAIN.format(engine=engine))
                fed.sql(f"EVALUATE MODEL m {TRAIN[TRAIN.index('FROM (') :]}")
    assert held
    for one in trace:
        assert "secret town" not in one.sql
        for key in held:
            assert key.hex() not in one.sql.lower()


def test_nothing_is_noted_before_and_after(parties: Parties) -> None:
    with federation(parties) as fed:
        fed.sql(TRAIN.format(engine="arrays"))
        with fed.trace() as trace, fed.trace() as inner:
            pass
        fed.sql("EVALUATE MODEL m " + TRAIN[TRAIN.index("FROM (") :])
        assert (len(trace), len(inner)) == (0, 0)
        assert trace.arrow().num_rows == 0
        with fed.trace() as outer:
            fed.explain(TRAIN.format(engine="arrays"))
            with fed.trace() as inner:
                fed.explain(TRAIN.format(engine="arrays"))
        assert 0 < len(inner) < len(outer)
        assert outer.statements[-len(inner) :] == inner.statements


def test_it_shows_itself_as_a_result_does(parties: Parties) -> None:
    with federation(parties) as fed, fed.trace() as trace:
        fed.explain(TRAIN.format(engine="sql"))
    frame = trace.df()
    assert list(frame.columns) == ["client", "message", "seconds", "rows", "sql"]
    assert len(frame) == len(trace) == len(trace.fetchall())
    assert "list_tables" in repr(trace)
    assert "<table" in trace._repr_html_()


def test_what_fails_is_in_it_and_threads_do_not_mix(database: Open) -> None:
    """A query is told to who observes its own thread, also where it is refused."""
    con = database()
    observed: dict[int, list[tuple[str, float, int | None]]] = {}

    def ask(number: int) -> None:
        seen = observed.setdefault(number, [])
        with sql.observed(lambda *what: seen.append(what)):
            for _ in range(20):
                sql.fetch(con.cursor(), exp.select(sql.number(number)))
            with pytest.raises(duckdb.Error):
                sql.run(con.cursor(), exp.select(sql.column("missing")))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        *asked, refused = observed[number]
        assert {(text, rows) for text, _, rows in asked} == {(f"SELECT {number}", 1)}
        assert len(asked) == 20
        assert "missing" in refused[0]
        assert refused[2] is None


def test_a_client_is_named_by_its_party_and_number() -> None:
    trace = sqlfl.Trace()
    trace.add(Client("Clinic", 2), "prepare", "SELECT $key", 0.5, None)
    assert trace.fetchall() == [("Clinic/2", "prepare", 0.5, None, "SELECT $key")]
