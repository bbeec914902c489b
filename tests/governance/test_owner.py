"""The owner's statements: what they keep, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import Error, OptionError, ParseError
from sqlfl.governance.owner import Owner
from sqlfl.governance.statements import CreatePolicy, parse_owners
from sqlfl.options.policies import TrainingPolicy, resolve_policy, strictest
from tests.conftest import Open

GRANT = "GRANT TRAIN (age), JOIN (pid) ON patients TO 'acme' UNDER research"


@pytest.fixture
def con(database: Open) -> duckdb.DuckDBPyConnection:
    return database("CREATE TABLE patients (pid INTEGER, age INTEGER, bmi DOUBLE)")


@pytest.fixture
def owner(con: duckdb.DuckDBPyConnection) -> Iterator[Owner]:
    with sqlfl.owner(con) as found:
        found.sql("CREATE TRAINING POLICY research WITH (min_rows = 20, algorithms = 'lbfgs')")
        yield found


def roles(owner: Owner) -> list[str]:
    found: list[str] = owner.sql("SHOW GRANTS").arrow().column("roles").to_pylist()
    return found


def test_policies_have_versions(owner: Owner) -> None:
    owner.sql("CREATE OR REPLACE TRAINING POLICY Research WITH (min_rows = 30)")
    found = owner.sql("SHOW POLICIES").arrow().to_pylist()
    assert [(row["policy"], row["version"]) for row in found] == [("research", 2)]
    assert found[0]["rules"].startswith("min_rows = 30, min_cell = 3, max_categories = 40")
    owner.sql("DROP TRAINING POLICY research; DROP TRAINING POLICY IF EXISTS research")
    assert len(owner.sql("SHOW POLICIES").arrow()) == 0
    owner.sql("CREATE TRAINING POLICY research")
    assert owner.sql("SHOW POLICIES").arrow()["version"].to_pylist() == [3]


def test_one_version_of_a_policy_holds(owner: Owner, con: duckdb.DuckDBPyConnection) -> None:
    owner.sql("CREATE OR REPLACE TRAINING POLICY Research")
    owner.sql("CREATE TRAINING POLICY other")
    now = "SELECT name, version FROM sqlfl.policies WHERE dropped_at IS NULL ORDER BY ALL"
    assert con.sql(now).fetchall() == [("other", 1), ("research", 2)]


def test_grants_add_up_and_end(owner: Owner) -> None:
    owner.sql(GRANT)
    owner.sql("GRANT TRAIN (*), PREDICT ON main.Patients TO 'acme' UNDER RESEARCH")
    assert roles(owner) == ["TRAIN (age), JOIN (pid)", "TRAIN (pid, age, bmi), PREDICT"]
    owner.sql("REVOKE TRAIN ON patients FROM 'acme'")
    assert roles(owner) == ["JOIN (pid)", "PREDICT"]
    owner.sql("REVOKE ALL ON patients FROM 'acme'")
    assert roles(owner) == []


def test_a_grant_of_another_analyst_or_table_is_left_as_it_is(
    owner: Owner, con: duckdb.DuckDBPyConnection
) -> None:
    con.execute("CREATE TABLE visits (pid INTEGER)")
    owner.sql(f"{GRANT}; {GRANT.replace('acme', 'other')}")
    owner.sql("GRANT JOIN (pid) ON visits TO 'acme' UNDER research")
    owner.sql("GRANT PREDICT ON patients TO 'acme' UNDER research")
    owner.sql("REVOKE TRAIN, JOIN ON patients FROM 'acme'")
    assert roles(owner) == ["TRAIN (age), JOIN (pid)", "JOIN (pid)", "PREDICT"]
    owner.sql("REVOKE PREDICT ON patients FROM 'acme'")
    assert roles(owner) == ["TRAIN (age), JOIN (pid)", "JOIN (pid)"]
    # nothing is written anew that is as it was
    assert con.sql("SELECT count(*) FROM sqlfl.grants").fetchall() == [(4,)]


def test_it_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE patients (pid INTEGER, age INTEGER)")
    with sqlfl.owner(path) as owner:
        owner.sql("CREATE TRAINING POLICY research")
        owner.sql(f"{GRANT} UNTIL DATE '2030-01-31'")
    with sqlfl.owner(path) as owner:
        assert roles(owner) == ["TRAIN (age), JOIN (pid)"]
        ((until,),) = (tuple(r.values()) for r in owner.sql("SHOW GRANTS").arrow()
                       .select(["until"]).to_pylist())  # fmt: skip
        assert until.astimezone().strftime("%F %T") == "2030-02-01 00:00:00"
    with duckdb.connect(path) as con:
        assert con.sql("SELECT revoked_at FROM sqlfl.grants").fetchall() == [(None,)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ("TRAIN MODEL m", "expected a statement of the owner's"),
        ("GRANTT TRAIN (age)", "did you mean GRANT?"),
        ("CREATE POLICY p", "expected TRAINING after CREATE"),
        ("CREATE TRAINING POLICY research", "there is a training policy research already"),
        ("CREATE TRAINING POLICY p WITH (min_row = 3)", "there is no rule min_row"),
        ("CREATE TRAINING POLICY p WITH (min_rows = 0)", "a whole number from 1 up, got 0"),
        ("CREATE TRAINING POLICY p WITH (labels = 'noise')", "'noised' or 'never', got 'noise'"),
        ("CREATE TRAINING POLICY p WITH (algorithms = ['sdg'])", "did you mean sgd"),
        ("CREATE TRAINING POLICY p WITH (metrics = 'rounded')", "'never', got 'rounded'"),
        ("CREATE TRAINING POLICY p WITH (max_epsilon = 0)", "a number greater than 0"),
        ("CREATE TRAINING POLICY p WITH (epsilon = 0)", "a number greater than 0"),
        ("CREATE TRAINING POLICY p WITH (delta = 1)", "greater than 0 and less than 1"),
        ("CREATE TRAINING POLICY p WITH (per = 30)", "a length of time, as '30 days'"),
        ("CREATE TRAINING POLICY p WITH (per = '0 days')", "a length of time, as '30 days'"),
        ("CREATE TRAINING POLICY p WITH (seconds = 0)", "a number greater than 0"),
        (
            "CREATE TRAINING POLICY p WITH (lease = 60)",
            "a length of time, as '30 days' or '12 hours'",
        ),
        ("CREATE TRAINING POLICY p WITH (open_runs = 0)", "a whole number from 1 up, got 0"),
        ("CREATE TRAINING POLICY p WITH (memory = 'much')", "a size such as '4GB'"),
        ("CREATE TRAINING POLICY p WITH (into = 'Sqlfl')", "a schema of the database, other than"),
        ("DROP TRAINING POLICY p", "there is no training policy p"),
        (GRANT.replace("UNDER research", "UNDER reserch"), "there is no training policy reserch"),
        (GRANT.replace("UNDER research", ""), "expected UNDER after the analyst"),
        (GRANT.replace("'acme'", "acme"), "expected the analyst's name as a text"),
        (GRANT.replace("(age)", "(agee)"), "patients has no column agee"),
        (GRANT.replace("(age)", "(age, )"), "expected a column"),
        (GRANT.replace("patients", "patient"), "there is no table or view patient"),
        (GRANT.replace("TRAIN (age)", "TRAIN"), "expected \\( after TRAIN"),
        (GRANT.replace("TRAIN (age)", "PREDICT (age)"), "PREDICT is of the whole table"),
        (GRANT.replace("JOIN (pid)", "TRAIN (pid)"), "TRAIN is granted twice"),
        (GRANT.replace("JOIN", "JOINN"), "did you mean JOIN?"),
        (GRANT + " UNTIL '2030-02-31'", "'2030-02-31' is no date"),
        (GRANT + " UNTIL tomorrow", "expected DATE '2027-06-30' after UNTIL"),
        (GRANT.replace("patients", "sqlfl.policies"), "is sqlfl's own"),
        ("REVOKE ALL ON patients FROM 'acme'", "nothing of that is granted on patients"),
        ("REVOKE TRAIN (age) ON patients FROM 'acme'", "REVOKE ends a whole role"),
        ("REVOKE ON patients FROM 'acme'", "expected ALL or what was granted"),
        (
            "SHOW TABLES",
            "expected POLICIES, GRANTS, REQUESTS, STUDIES, BUDGETS, DISCLOSURES, REQUEST after",
        ),
        ("APPROVE REQUEST 3", "there is no request 3"),
        ("APPROVE 3", "expected REQUEST after APPROVE"),
        ("APPROVE REQUEST three", "expected the number of a request"),
        ("REFUSE REQUEST 3", "expected BECAUSE after the number"),
        ("REFUSE REQUEST 3 BECAUSE so", "expected the reason as a text after BECAUSE"),
        ("CREATE TRAINING POLICY p WITH (hours = '8-18')", "the hours of a day, as '08:00-18:00'"),
        ("CREATE TRAINING POLICY p WITH (kinds = ['lassso'])", "did you mean lasso"),
        ("CREATE TRAINING POLICY p WITH (approval = 'once')", "'always', 'first_time' or 'never'"),
    ],
)
def test_what_is_wrong(owner: Owner, text: str, said: str | None) -> None:
    if said is None:
        assert len(owner.sql(text).arrow()) == 0
        return
    with pytest.raises(Error, match=said) as error:
        owner.sql(text)
    assert isinstance(error.value, (ParseError, OptionError)) or error.value.hint or "own" in said
    assert roles(owner) == []
    assert owner.sql("SHOW POLICIES").arrow()["version"].to_pylist() == [1]


def test_a_policy_that_is_used_stays(owner: Owner) -> None:
    owner.sql(GRANT)
    with pytest.raises(Error, match=r"policy research has grants on main\.patients"):
        owner.sql("DROP TRAINING POLICY research")
    owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY research")


def test_limits_are_shown_as_they_are_written(owner: Owner) -> None:
    given = "seconds = 90.0, lease = '1 minute', open_runs = 2, memory = '1536MiB', threads = 3"
    owner.sql(f"CREATE TRAINING POLICY p WITH ({given}, folders = ['/data/a', '/data/b'])")
    told = owner.sql("SHOW POLICIES").arrow().to_pylist()[-1]["rules"]
    assert given in told
    assert "folders = ['/data/a', '/data/b']" in told


def test_of_limits_the_strictest_holds() -> None:
    one = resolve("seconds = 5, lease = '1 hour', open_runs = 3, memory = '2GB', threads = 4")
    other = resolve("seconds = 9, lease = '1 minute', open_runs = 9, memory = '1GB'")
    found = strictest([one, other, TrainingPolicy()])
    assert (found.seconds, found.lease, found.open_runs) == (5, 60, 3)
    assert (found.memory, found.threads, found.folders) == (10**9, 4, None)
    a, b = resolve("folders = '/a'"), resolve("folders = ['/b', '/a']")
    assert strictest([a, b]).folders == ("/a", "/b")  # what views read: of nobody's asking


def resolve(rules: str) -> TrainingPolicy:
    statement = parse_owners(f"CREATE TRAINING POLICY p WITH ({rules})")
    assert isinstance(statement, CreatePolicy)
    return resolve_policy(statement.rules, statement.sql)
