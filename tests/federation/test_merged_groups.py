"""Aggregates over another party's rows in several databases: models as of one database, and what
leaves."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.base.errors import PlanError, PolicyError
from sqlfl.planner.query.sources import Sources
from tests.conftest import Open
from tests.coordinator.test_outer_joins import dealt_out as parties_of
from tests.depth import in_turn
from tests.federations import federation
from tests.governance.clinic import ruled
from tests.strategies import train_sql
from tests.test_border import assert_disclosed, by_place, tapped
from tests.test_central import compare

STATEMENTS = {
    "means and counts": """
        SELECT v.label, v.days, (SELECT avg(t.result) FROM lab.tests t WHERE t.assay = v.ward) AS a,
          (SELECT count(*) FROM lab.tests t WHERE t.assay = v.ward AND t.result > 4) AS n
        FROM clinic.visits v""",
    "a derived table": """
        SELECT v.label, v.days, u.low, u.range FROM clinic.visits v
        JOIN (SELECT assay, min(result) AS low, max(result) - min(result) AS range FROM lab.tests
          GROUP BY assay HAVING count(*) > 1) u ON u.assay = v.ward""",
    "texts, by two keys": """
        SELECT v.label, w.beds, u.flag, u.total FROM clinic.visits v
        JOIN town.wards w ON w.ward = v.ward
        LEFT JOIN (SELECT assay, result % 2 AS odd, max(flag) AS flag, sum(result / 4) AS total
          FROM lab.tests GROUP BY 1, 2) u ON u.assay = v.ward AND u.odd = v.days % 2""",
    "a pivot of a query that has a name": """
        WITH few AS (SELECT assay, flag, result + 1 AS result FROM lab.tests WHERE result > 1)
        SELECT v.label, v.days, u.low_s, coalesce(u.high_n, 0) AS high FROM clinic.visits v
          LEFT JOIN (PIVOT few ON flag IN ('low', 'high') USING sum(result) AS s, count(*) AS n
            GROUP BY assay) u ON u.assay = v.ward""",
    "whether there are rows": """
        SELECT v.label, v.days, EXISTS (SELECT 1 FROM lab.tests t
          WHERE t.patient = v.patient AND t.result > 3) AS tested FROM clinic.visits v""",
}


@pytest.mark.parametrize(("name", "clients"), in_turn(STATEMENTS, (2, 3)))
def test_models_are_those_of_one_database(name: str, clients: int, database: Open) -> None:
    parties, whole = parties_of(database, clients)
    compare(parties, whole, STATEMENTS[name], l2=1e-3)


@pytest.mark.parametrize("combine", [False, True])
def test_what_leaves_is_what_explain_says(combine: bool, database: Open) -> None:
    parties, _ = parties_of(database, 2)
    query = STATEMENTS["means and counts"]
    with tapped(parties, combine=combine) as (fed, tap):
        text = train_sql("m", "linear_regression", "label", query)
        plan = fed.explain(text)
        assert "sealed, and merge those of equal keys" in str(plan.details)
        with tap.taken() as recorded:
            fed.sql(text)
        assert_disclosed(plan, recorded, parties, epochs=fed.model("m").history.num_rows)
        sealed = [own for own in by_place(recorded) if own[2] == "sealed_groups"]
        assert len(sealed) == sum(len(slot.merging) for slot in plan.ucq.slots)
        assert len(sealed) == (2 if combine else 4)


def test_a_join_that_lasts_is_refused(database: Open) -> None:
    parties, _ = parties_of(database, 2)
    with federation(parties) as fed, pytest.raises(PlanError, match="a join that lasts"):
        fed.sql(f"CREATE JOIN j AS ({STATEMENTS['a derived table']})")


GRANT = "GRANT JOIN (assay), TRAIN (result) ON tests TO 'acme' UNDER r"


def test_owners_with_policies_send_no_groups(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the plan asks for none, nor where a coordinator asks for some."""
    parties, _ = parties_of(database, 2)
    for con in parties["lab"]:
        ruled(con, "min_rows = 2", GRANT)
    statement = train_sql("m", "linear_regression", "label", STATEMENTS["a derived table"])
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        for party, databases in parties.items():
            fed.attach(party, databases)
        with pytest.raises(PlanError, match="an owner of theirs has made policies"):
            fed.sql(statement)
        monkeypatch.setattr(Sources, "_refuse_governed", lambda *_: None)
        with pytest.raises(PolicyError, match="not built for aggregates over several databases"):
            fed.sql(statement)
