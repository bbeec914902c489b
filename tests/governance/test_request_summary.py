"""Sentences and warnings of requests of different form, and each rule of them by itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error
from sqlfl.contract.request import WAITING
from sqlfl.governance import noising
from sqlfl.governance.approvals import Approvals
from sqlfl.governance.modes import HELD_OUT, MOMENTS
from sqlfl.governance.owner import Owner
from sqlfl.governance.policies import Governance
from sqlfl.governance.policy_evaluation import ANSWERED_ONCE, SCORES
from sqlfl.governance.records import Records
from sqlfl.governance.request_summary import (
    is_free_text,
    is_grouped,
    is_identifier,
    summarise,
)
from sqlfl.governance.table_facts import ColumnFacts, measure
from sqlfl.messages.disclosed import KNOWN, SILENT, listed
from tests import goldens
from tests.conftest import Open
from tests.governance.clinic import PATIENTS, QUERY, SICK, TRAIN, ruled

GOLDEN = Path(__file__).parent / "request_summaries.txt"
WIDE = """GRANT TRAIN (*), FILTER (age, bmi, ward), JOIN (pid), LABEL (days, ill), IDENTIFY (pid),
  PREDICT ON patients TO 'acme' UNDER r"""
BOUNDS = "{'age': [20, 80], 'bmi': [-1, 1], 'crp': [-1, 1]}"
NOISED = TRAIN.replace("p.ward, ", "").replace(
    "FROM (",
    "WITH (algorithm = 'sgd', epochs = 3) PRIVACY (epsilon = 2, delta = 1e-4, label_epsilon = 1, "
    f"label_bounds = [-1, 3], statistics = 'bounds', feature_bounds = {BOUNDS}) FROM (",
    1,
)
SCORED = QUERY.replace(", p.days", "")
PREDICTED = f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({SCORED})"
MASKED = TRAIN.replace("linear_regression", "mlp_regressor").replace(
    "FROM (", "WITH (algorithm = 'pbm', epochs = 2) FROM (", 1
)
FEW = QUERY.replace("p.bmi, p.ward, ", "")
REQUESTS = {
    "labels in clear": TRAIN,
    "noised labels": TRAIN.replace(
        "FROM (", "PRIVACY (label_epsilon = 1, label_bounds = [0, 3]) FROM (", 1
    ),
    "features and labels noised": NOISED,
    "towers": TRAIN.replace("linear_regression", "mlp_regressor"),
    "predictions": PREDICTED,
    "check": f"CHECK TARGET days FROM ({QUERY})",
    "check without targets for others": (
        f"CHECK TARGET days WITH (explains = false) FROM ({QUERY})"
    ),
    "inference": f"INFERENCE OF MODEL m FROM ({QUERY})",
    "one number": f"TRAIN MODEL one USING linear_regression TARGET days FROM ({FEW})",
    "one number of towers": f"TRAIN MODEL one USING mlp_regressor TARGET days FROM ({FEW})",
    "inference of few columns": f"INFERENCE OF MODEL few FROM ({FEW})",
    "left join with conditions": (
        TRAIN.replace("JOIN lab", "LEFT JOIN lab")[:-1] + " WHERE p.age > 30)"
    ),
    "secure sums": MASKED,
    "an identifier as a feature": SICK.replace("p.age", "p.pid, p.name, p.age"),
}


@pytest.fixture
def clinic(database: Open) -> duckdb.DuckDBPyConnection:
    return database(PATIENTS.replace("i AS pid,", "i AS pid, 'name ' || i AS name,"))


@pytest.fixture
def owner(clinic: duckdb.DuckDBPyConnection) -> Iterator[sqlfl.Owner]:
    with sqlfl.owner(clinic) as found:
        yield found


def filed(fed: sqlfl.Federation, owner: sqlfl.Owner, statement: str) -> dict[str, str]:
    with pytest.raises(ApprovalError):
        fed.sql(statement)
    return dict(owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1])


def test_requests(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    fed.sql(TRAIN)
    fed.sql(f"TRAIN MODEL few USING linear_regression TARGET days FROM ({FEW})")
    narrow = WIDE.replace("(*)", "(age, bmi, ward, pid, name)")
    ruled(clinic, "approval = 'first_time'", narrow)
    told = []
    for name, statement in REQUESTS.items():
        row = filed(fed, owner, statement)
        assert 0 < len(row["summary"].split("\n")) <= 5
        assert "no words for" not in row["summary"]
        told.append(f"# {name}\n{row['summary']}\n\n{row['warnings']}\n")
    goldens.check(GOLDEN, "\n".join(told))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "which no rule of your policy enforces"),
        (", epsilon = 9", "which your policy enforces"),
        (", predictions = 'noised'", "which your policy enforces"),
        (", moments = 'noised'", "which no rule of your policy enforces"),
    ],
)
def test_whether_the_party_enforces_noise(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    owner: sqlfl.Owner,
    rules: str,
    said: str,
) -> None:
    ruled(clinic, "approval = 'first_time'" + rules, WIDE)
    assert said in filed(fed, owner, NOISED)["summary"]


def test_how_often(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'always', rounds = 30, runs_per_day = 2", WIDE)
    summary = filed(fed, owner, TRAIN)["summary"]
    assert "one run has at most 30 rounds, and an approval is for one run, at most 2 a" in summary
    clinic.execute("UPDATE sqlfl.grants SET revoked_at = now()")
    (row,) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "your policy no longer lets it run" in row["summary"]
    assert "Nothing of main.patients is granted to acme any more." in row["warnings"]


def test_usual_rounds_are_those_of_explain(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    assert "in 8 to 30 rounds" in str(fed.explain(TRAIN))
    assert "at most 10,000 rounds, usually 8 to 30, and" in filed(fed, owner, TRAIN)["summary"]


def test_constants_of_conditions_are_named(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    where = " WHERE p.age BETWEEN 30 AND 60 AND p.ward = 'w1' AND p.bmi IS NOT NULL)"
    said = filed(fed, owner, TRAIN[:-1] + where)["summary"]
    assert "age, bmi and ward as conditions on rows (constants: age 30 and 60; ward w1)." in said


def test_the_coordinator_is_named_where_it_is_known(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    unnamed = filed(fed, owner, TRAIN)["summary"]
    with Owner(clinic, coordinator="hub.example") as agent:
        (row,) = agent.sql("SHOW REQUESTS").arrow().to_pylist()
    named = "goes to the coordinator hub.example (the computer"
    assert row["summary"] == unnamed.replace("goes to the coordinator (the computer", named)


def test_a_grant_of_all_columns(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    told = (
        "acme has every column of main.patients granted for TRAIN, as * gives, also pid, name and "
        "salary, which may name single rows."
    )
    assert told in filed(fed, owner, TRAIN)["warnings"].split("\n")
    clinic.execute("ALTER TABLE patients ADD COLUMN later INTEGER")
    (row,) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "every column" not in row["warnings"]


def test_a_grant_that_has_ended(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time', labels = 'exact'", WIDE + " UNTIL DATE '2100-01-01'")
    assert "ended" not in filed(fed, owner, TRAIN)["warnings"]
    clinic.execute("UPDATE sqlfl.grants SET until = TIMESTAMPTZ '2026-01-02 03:04:00+00'")
    (row,) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "The grant of main.patients to acme ended on 2026-01-02 03:04 UTC." in row["warnings"]


def test_warnings_only_where_they_hold(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    grant = WIDE.replace("TRAIN (*)", "TRAIN (age, bmi)")
    ruled(clinic, "approval = 'first_time'", grant)
    assert filed(fed, owner, NOISED)["warnings"] == ""
    clinic.execute("UPDATE patients SET ill = pid < 4")
    row = filed(fed, owner, SICK)
    assert row["warnings"].split("\n")[1:] == [
        "A value of patients.ill is in 4 rows only, fewer than 10: whoever has it can be singled "
        "out."
    ]


def test_details_of_one_request(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    row = filed(fed, owner, TRAIN)
    (details,) = owner.sql("SHOW REQUEST 1").arrow().to_pylist()
    assert {name: details[name] for name in row} == row
    assert "send_labels (1 times): targets in clear" in details["leaves"]
    assert details["sql"].startswith("SELECT p.age")
    with pytest.raises(Error, match="there is no request 2"):
        owner.sql("SHOW REQUEST 2")


def test_a_request_of_an_earlier_version(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    filed(fed, owner, TRAIN)
    clinic.execute("DROP TABLE sqlfl.request_columns")
    (row,) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "An earlier version of sqlfl filed this request" in row["summary"]
    owner.sql("APPROVE REQUEST 1")
    fed.sql(TRAIN)


def test_a_table_that_cannot_be_read(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'", WIDE)
    filed(fed, owner, TRAIN)
    clinic.execute("ALTER TABLE patients RENAME TO others")
    (row,) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "main.patients (rows cannot be counted now)" in row["summary"]
    assert measure(clinic, ("memory", "main", "patients"), ["age"]) is None


def test_the_coordinators_words_are_not_repeated(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    """A coordinator that calls labels an acknowledgement changes no sentence."""
    ruled(clinic, "approval = 'first_time'", WIDE)
    filed(fed, owner, TRAIN)
    records = Records(clinic, "memory")
    (item,) = Approvals(records).all()
    grants = Governance(records).grants()
    before = summarise(item, None, grants, {}, dt.datetime.now(dt.UTC))
    clinic.execute(
        "UPDATE sqlfl.requests SET request = replace(replace(request, 'targets in clear', 'ok'), "
        "'\"labels\"', '\"ready\"')"
    )
    (lying,) = Approvals(records).all()
    assert lying.request != item.request
    assert lying.state == WAITING
    assert summarise(lying, None, grants, {}, dt.datetime.now(dt.UTC)) == before
    assert "the label days of each row" in before.sentences[2]


def test_every_kind_that_policies_know_has_words() -> None:
    for kinds in (noising.NOISED, MOMENTS, ANSWERED_ONCE, SCORES, HELD_OUT):
        assert kinds <= KNOWN
    assert not SILENT & {ms.SendLabels.kind, ms.SendKeys.kind, *SCORES, *MOMENTS}


@pytest.mark.parametrize(
    ("facts", "text", "identifier", "grouped"),
    [
        (ColumnFacts("VARCHAR", 300, 41, 1), True, False, False),
        (ColumnFacts("VARCHAR", 300, 40, 5), False, False, True),
        (ColumnFacts("VARCHAR", 30, 16, 1), True, False, False),
        (ColumnFacts("VARCHAR", 10, 10, 1), False, False, True),
        (ColumnFacts("BIGINT", 300, 270, 1), False, True, False),
        (ColumnFacts("BIGINT", 300, 269, 1), False, False, False),
        (ColumnFacts("BIGINT", 19, 19, 1), False, False, False),
        (ColumnFacts("DOUBLE", 300, 300, 1), False, False, False),
        (ColumnFacts("UUID", 300, 300, 1), False, True, False),
        (ColumnFacts("BOOLEAN", 300, 2, 3), False, False, True),
        (ColumnFacts("ENUM", 300, 3, 3), False, False, True),
    ],
)
def test_kinds_of_columns(
    facts: ColumnFacts, *, text: bool, identifier: bool, grouped: bool
) -> None:
    assert is_free_text(facts, 40) is text
    assert is_identifier(facts) is identifier
    assert is_grouped(facts, 40) is grouped


def test_measured_facts(clinic: duckdb.DuckDBPyConnection) -> None:
    clinic.execute("UPDATE patients SET ward = NULL WHERE pid < 10")
    found = measure(clinic, ("memory", "main", "patients"), ["ward", "ill"])
    assert found is not None
    assert found.rows == 300
    assert found.names[0] == "pid"
    assert found.columns == {
        "ward": ColumnFacts("VARCHAR", 290, 4, 72),
        "ill": ColumnFacts("BOOLEAN", 300, 2, 60),
    }


def test_lists_of_words() -> None:
    assert [listed(words) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
