"""Each statement sees the tables as they are when it is planned, whoever has changed them."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.federation import plan_cache
from sqlfl.federation.catalog import FederationCatalog
from tests.conftest import Open
from tests.open_databases import in_memory

MAKE = "CREATE TABLE t AS SELECT i AS id, i AS x, CAST(i % 2 AS DOUBLE) AS y FROM range(40) r(i)"


def features(fed: sqlfl.Federation, table: str = "home.t") -> list[tuple[str, str]]:
    """Names and types that a plan has of the table's columns."""
    plan = fed.explain(
        f"TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT * FROM {table})"
    )
    return [(f.name, f.type) for slot in plan.ucq.slots for f in slot.features]


@pytest.mark.parametrize("through", ["the same", "a cursor"])
def test_a_table_that_was_altered(database: Open, through: str) -> None:
    con = database(MAKE)
    with sqlfl.connect(progress=False) as fed:
        fed.attach("home", con)
        owner = con if through == "the same" else con.cursor()
        assert features(fed) == [("id", "BIGINT"), ("x", "BIGINT")]
        owner.execute("ALTER TABLE t ADD COLUMN z FLOAT")
        assert features(fed) == [("id", "BIGINT"), ("x", "BIGINT"), ("z", "FLOAT")]
        owner.execute("ALTER TABLE t ALTER x TYPE VARCHAR")
        owner.execute("ALTER TABLE t RENAME z TO w")
        assert features(fed) == [("id", "BIGINT"), ("x", "VARCHAR"), ("w", "FLOAT")]
        owner.execute("ALTER TABLE t DROP COLUMN id")
        assert features(fed) == [("x", "VARCHAR"), ("w", "FLOAT")]
        owner.execute("CREATE OR REPLACE TABLE t AS SELECT 1 AS v, 2.0 AS y")
        assert features(fed) == [("v", "INTEGER")]
        owner.execute("DROP TABLE t; CREATE VIEW t AS SELECT 1.5 AS u, 1 AS y")
        assert features(fed) == [("u", "DECIMAL(2,1)")]
        owner.execute("DROP VIEW t")
        with pytest.raises(Error, match="has no table t"):
            features(fed)


def test_what_was_not_committed_is_not_seen(database: Open) -> None:
    con = database(MAKE)
    with sqlfl.connect(progress=False) as fed:
        fed.attach("home", con)
        other = con.cursor()
        other.execute("BEGIN; ALTER TABLE t DROP COLUMN x")
        assert features(fed) == [("id", "BIGINT"), ("x", "BIGINT")]
        other.execute("COMMIT")
        assert features(fed) == [("id", "BIGINT")]


def test_a_database_that_is_attached_and_detached(database: Open) -> None:
    con = database(MAKE)
    with sqlfl.connect(progress=False) as fed:
        fed.attach("home", con)
        for column in ("a", "b"):
            con.execute(
                f"ATTACH ':memory:' AS far; CREATE TABLE far.s AS SELECT 1 AS {column}, 2 AS y"
            )
            assert features(fed, "home.far.s") == [(column, "INTEGER")]
            con.execute("DETACH far")
            with pytest.raises(Error, match="has no table"):
                features(fed, "home.far.s")


def test_a_party_that_is_attached_again_as_another(database: Open) -> None:
    con = database(MAKE)
    with in_memory() as other, sqlfl.connect(progress=False) as fed:
        other.execute("CREATE TABLE t AS SELECT 1.5 AS q, 2 AS y")
        fed.attach("home", con)
        assert features(fed) == [("id", "BIGINT"), ("x", "BIGINT")]
        fed.detach("home")
        with pytest.raises(Error, match="no party"):
            features(fed)
        fed.attach("home", other)
        assert features(fed) == [("q", "DECIMAL(2,1)")]


BRANCHES = {
    "plain": "SELECT t.x + {n} AS x, t.y, u.z FROM one.t JOIN two.u USING (k) WHERE t.k > {n}",
    "a table of groups":
        "SELECT x, y, z FROM (SELECT k, avg(x) + {n} AS x, avg(y) AS y FROM one.t GROUP BY k) AS g "
        "JOIN two.u USING (k)",
    "one party's query": "SELECT avg(x) + {n} AS x, avg(y) AS y FROM one.t GROUP BY k",
    "an aggregate of another party":
        "SELECT t.x, t.y, (SELECT avg(z + {n}) FROM two.u WHERE u.k = t.k) AS z FROM one.t",
    "a cohort": "SELECT t.x + {n} AS x, t.y FROM one.t "
        "WHERE t.k IN (SELECT k FROM two.u WHERE z > {n}) AND t.k > {n}",
    "texts as keys": "SELECT t.x + {n} AS x, t.y, u.z FROM one.t JOIN two.u ON t.s = u.s",
}  # fmt: skip


@pytest.mark.parametrize(
    ("databases", "inside"), [(1, "{}"), (2, "SELECT v.* FROM ({}) AS v")], ids=["of one", "of two"]
)
@pytest.mark.parametrize("branch", BRANCHES)
def test_branches_are_described_together(
    branch: str, databases: int, inside: str, database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning takes as many exchanges for 8 branches as for 3, and gives the plan of single
    questions."""
    one = [database("CREATE TABLE t AS SELECT i AS k, i::VARCHAR AS s, i / 2 AS x, i % 7 AS y "
                    "FROM range(40) r(i)") for _ in range(databases)]  # fmt: skip
    two = [database("CREATE TABLE u AS SELECT i AS k, i::VARCHAR AS s, sqrt(i) AS z "
                    "FROM range(40) r(i)") for _ in range(databases)]  # fmt: skip
    monkeypatch.setattr(plan_cache, "MAX_LISTED_COLUMNS", 0)  # each statement is planned
    described, plans = list[int](), list[str]()
    with sqlfl.connect(progress=False) as fed:
        fed.attach("one", one)
        fed.attach("two", two)
        for count in (3, 8, 8):
            parts = (BRANCHES[branch].format(n=n) for n in range(1, count + 1))
            query = inside.format(" UNION ALL ".join(parts))
            before = len(fed.audit().arrow())
            plan = fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
            kinds = fed.audit().arrow().slice(before)["kind"].to_pylist()
            described.append(kinds.count("describe"))
            plans.append(str(plan.details))
            if count == 8:
                monkeypatch.setattr(FederationCatalog, "describe_each", lambda self, selects: None)
    assert described[0] == described[1] < described[2]
    assert plans[1] == plans[2]
