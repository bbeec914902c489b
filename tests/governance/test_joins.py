"""Joins that last under policies: each statement over one is still a run of its own."""

from __future__ import annotations

import threading
import time

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error, PartyError, PlanError, PolicyError
from sqlfl.contract.schema import specifications_to_json
from sqlfl.messages import CLIENT
from sqlfl.options.policies import TrainingPolicy, strictest
from sqlfl.party.party import PartyClient
from tests.conftest import Open
from tests.governance.clinic import (
    GRANT,
    QUERY,
    REQUEST,
    SLOT,
    TESTS,
    TRAIN,
    Ask,
    ruled,
)

LASTS = "join_time = '1 hour'"
OVER = TRAIN.replace(f"({QUERY})", "j")
CREATE = f"CREATE OR REPLACE JOIN j AS ({QUERY})"
STATEMENTS = (
    OVER,
    "EVALUATE MODEL m FROM j",
    "METRICS OF MODEL m FROM j",
    "PREDICT MODEL m FROM j",
    "INFERENCE OF MODEL m FROM j",
    "CHECK TARGET days FROM j",
)
SELECT = "SELECT pid AS sqlfl_key_0_0 FROM patients"


def failure(reply: ms.Message) -> str:
    return reply.text if isinstance(reply, ms.Failure) else ""


def held(fed: sqlfl.Federation) -> int:
    """Joins that the clinic keeps."""
    return sum(len(s._joins._held) for c, s in fed._servers.items() if c.party == "clinic")


# -- what an owner lets last -----------------------------------------------------------------------


def test_none_lasts_unless_a_policy_says_so(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic)
    with pytest.raises(PolicyError, match="no join_time: no join may last"):
        fed.sql(CREATE)
    # the lab, which has no policy, keeps nothing then either
    assert not any(server._joins._held for server in fed._servers.values())
    assert fed.sql("SHOW JOINS").arrow().num_rows == 0


def test_the_strictest_policy_counts() -> None:
    hour, day, none = (TrainingPolicy(join_time=s) for s in (3600.0, 86400.0, None))
    assert strictest([day, hour]).join_time == 3600.0
    assert strictest([day, none]).join_time is None


def test_statements_over_it_are_as_without(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, f"{LASTS}, min_difference = 5")
    fed.sql(TRAIN)
    without = fed.sql("WEIGHTS OF MODEL m").arrow()
    (row,) = fed.sql(CREATE).arrow().to_pylist()
    assert (row["until"] - row["made_at"]).total_seconds() == 3600
    for _ in range(2):
        for text in STATEMENTS:
            fed.sql(text)
    found = fed.sql("WEIGHTS OF MODEL m").arrow()
    for name in ("coefficient", "standardised"):
        pairs = zip(without[name].to_pylist(), found[name].to_pylist(), strict=True)
        assert all(a == pytest.approx(b, rel=1e-6) for a, b in pairs)


def test_its_owner_sees_each_use_of_it(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    for text in STATEMENTS[:3]:
        fed.sql(text)
    fed.sql("DROP JOIN j")
    with sqlfl.owner(clinic) as owner:
        rows = owner.sql("SHOW DISCLOSURES").arrow().to_pylist()
    told = {row["run"]: str(row) for row in rows}
    assert sum("over join j" in text for text in told.values()) == 3
    assert sum("'join j of" in text for text in told.values()) == 1
    keys = [row for row in rows if "join_keys" in str(row)]
    assert len(keys) == 1
    found = sqlfl.verify(clinic, fed.chain())
    assert found is not None


def test_whether_a_table_has_changed_is_not_said(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    clinic.execute("UPDATE patients SET salary = 0")
    fed.sql(OVER)
    assert fed.sql("SHOW JOINS").arrow()["changed"].to_pylist() == ["not known: clinic/0"]


# -- what is refused without it is refused with it -------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "grant", "says"),
    [
        (f"{LASTS}, min_rows = 1000", GRANT, "min_rows = 1000"),
        (f"{LASTS}, min_cell = 200", GRANT, "min_cell = 200"),
        (f"{LASTS}, kinds = ['logistic_regression']", GRANT, "kinds"),
        (f"{LASTS}, labels = 'never'", GRANT, "labels = 'never'"),
        (f"{LASTS}, predictions = 'noised'", GRANT, "predictions = 'noised'"),
        (f"{LASTS}, rounds = 2", GRANT, "rounds = 2"),
        (
            LASTS,
            GRANT.replace("FILTER (age", "FILTER (days, age").replace("(days, ill)", "(ill)"),
            "LABEL",
        ),
        ("", GRANT, "no join_time"),
        ("join_time = '1 second'", GRANT, "join_time = '1 second'|time limit"),
    ],
)
def test_a_policy_that_forbids_a_statement_forbids_it_over_the_join(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, rules: str, grant: str, says: str
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    fed.sql(OVER)
    if grant != GRANT:
        with sqlfl.owner(clinic) as owner:
            owner.sql("REVOKE ALL ON patients FROM 'acme'")
    ruled(clinic, rules, grant)
    if "second" in rules:
        time.sleep(1.1)
    recorded = len(fed.audit().arrow())
    with pytest.raises((PolicyError, PartyError), match=says):
        fed.sql(OVER)
    audit = fed.audit().arrow().slice(recorded).to_pylist()
    sent = {r["kind"] for r in audit if r["direction"] == "up" and r["party"] == "clinic"}
    assert "join_keys" not in sent
    assert "predictions" not in sent or "rounds" in rules


def test_each_statement_over_it_counts_as_a_run(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, f"{LASTS}, runs_per_day = 2")
    fed.sql(CREATE)
    fed.sql(OVER)
    fed.sql("METRICS OF MODEL m FROM j")
    with pytest.raises(PolicyError, match="runs_per_day = 2"):
        fed.sql("METRICS OF MODEL m FROM j")


def test_a_grant_that_is_revoked_ends_its_use(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    fed.sql(OVER)
    with sqlfl.owner(clinic) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'")
    with pytest.raises((PolicyError, PlanError)):
        fed.sql(OVER)


def test_a_grant_made_anew_does_not_bring_old_rows_back(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """An owner deletes rows, and revokes a grant so that nobody reads them any more."""
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    fed.sql(OVER)
    assert fed.model("m").metrics["rows"] == 300
    clinic.execute("DELETE FROM patients WHERE pid < 100")
    with sqlfl.owner(clinic) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'")
        owner.sql(GRANT)
    with pytest.raises(PolicyError, match="was made before its owner revoked a grant of it"):
        fed.sql(OVER)
    fed.sql(CREATE)
    fed.sql(OVER)
    assert fed.model("m").metrics["rows"] == 200


def test_a_further_grant_does_not_end_it(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT FILTER (days) ON patients TO 'acme' UNDER r")
    fed.sql(OVER)


def test_it_does_not_outlast_the_lack_of_policies(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(CREATE)
    ruled(clinic, LASTS)
    with pytest.raises(PolicyError, match="was made before its grant"):
        fed.sql(OVER)


def test_a_view_that_its_owner_has_changed_is_not_read_as_it_was(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT i AS pid, sin(i) AS x, cos(i) AS y FROM range(300) r(i)"
    )
    con.execute("CREATE VIEW v AS FROM t")
    grant = "GRANT TRAIN (x), JOIN (pid), LABEL (y), PREDICT ON v TO 'acme' UNDER r"
    ruled(con, LASTS, grant)
    query = "SELECT v.x, t.crp, v.y FROM clinic.v v JOIN lab.tests t ON v.pid = t.pid"
    train = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM j"
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS))
        fed.sql(f"CREATE JOIN j AS ({query})")
        fed.sql(train)
        con.execute("CREATE OR REPLACE VIEW v AS FROM t WHERE pid < 200")
        with sqlfl.owner(con) as owner:
            owner.sql("REVOKE ALL ON v FROM 'acme'")
            owner.sql(grant)
        with pytest.raises(PolicyError, match="has changed a view or a macro since the join"):
            fed.sql(train)
        fed.sql(f"CREATE OR REPLACE JOIN j AS ({query})")
        fed.sql(train)
        assert fed.model("m").metrics["rows"] == 200


def test_an_approval_is_of_the_same_run_with_the_join_as_without(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, f"{LASTS}, approval = 'first_time'")
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    with sqlfl.owner(clinic) as owner:
        owner.sql("APPROVE REQUEST 1")
    fed.sql(TRAIN)
    fed.sql(CREATE)  # reads nothing, so that there is nothing to approve
    for _ in range(2):
        fed.sql(OVER)
    with pytest.raises(ApprovalError):
        fed.sql(OVER.replace("FROM j", "WITH (l2 = 0.5) FROM j"))


def test_a_budget_is_charged_for_each_run_over_it(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(
        clinic,
        f"{LASTS}, predictions = 'noised', moments = 'noised', labels = 'noised', "
        "epsilon = 5, delta = 1e-5",
        GRANT.replace("(age, bmi, ward)", "(age, bmi)"),
    )
    query = QUERY.replace("p.ward, ", "")
    private = TRAIN.replace(
        f"FROM ({QUERY})",
        "WITH (algorithm = 'sgd', epochs = 2) PRIVACY (epsilon = 3, delta = 1e-5, "
        "predictions = 'gaussian', statistics = 'bounds', label_epsilon = 1, "
        "label_bounds = [-2, 5], "
        "feature_bounds = {'age': [0, 100], 'bmi': [-2, 2], 'crp': [-1, 1]}) FROM ",
    )
    fed.sql(f"CREATE JOIN j AS ({query})")
    fed.sql(f"{private}j")
    for source in ("j", f"({query})"):
        with pytest.raises(PolicyError, match="epsilon = 5"):
            fed.sql(private + source)


def test_noise_that_follows_from_a_key_is_not_built(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(
        clinic,
        f"{LASTS}, labels = 'noised'",
        GRANT.replace("PREDICT", "KEY (pid), PREDICT"),
    )
    private = OVER.replace("FROM j", "PRIVACY (label_epsilon = 1, label_bounds = [-2, 5]) FROM j")
    fed.sql(CREATE)
    with pytest.raises(PolicyError, match=r"follows from the KEY .*\nhint: write FROM"):
        fed.sql(private)
    fed.sql(private.replace("FROM j", f"FROM ({QUERY})"))


# -- time and memory -------------------------------------------------------------------------------


def test_it_ends_with_its_time_also_if_nobody_asks(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, LASTS)
    fed.sql(CREATE)
    assert held(fed) == 1
    timers = [t for own in fed._servers.values() for t in own._joins._timers.values()]
    assert [(timer.interval, timer.is_alive()) for timer in timers] == [(3600, True)]
    over = threading.Thread(target=timers[0].function, args=timers[0].args)
    over.start()
    over.join()
    assert held(fed) == 0
    with pytest.raises(PartyError, match=r"time limit has passed\nhint: CREATE OR REPLACE JOIN"):
        fed.sql(OVER)


def test_an_analyst_has_so_many_joins_at_most(fed: sqlfl.Federation) -> None:
    for number in range(16):
        fed.sql(f"CREATE JOIN j{number} AS ({QUERY})")
    with pytest.raises(PartyError, match="16 joins are kept already"):
        fed.sql(CREATE)
    fed.sql("DROP JOIN j3")
    fed.sql(CREATE)


def test_what_is_kept_in_memory_is_bounded(
    fed: sqlfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.sql(CREATE)
    fed.sql("CHECK FROM j")
    monkeypatch.setattr("sqlfl.party.joins.MAX_KEPT_BYTES", 1)
    with pytest.raises(PartyError, match="more than 1 bytes of rows"):
        fed.sql("CHECK TARGET days FROM j")
    fed.sql("CHECK FROM j")  # what is there serves


# -- a coordinator that lies -----------------------------------------------------------------------


def opened(ask: Ask, join: str = "j1") -> np.ndarray:
    reply = ask(ms.OpenJoin(join, CLIENT, "j", (SELECT,)))
    assert isinstance(reply, ms.JoinOpened), failure(reply)
    return reply.nonce


def prepare(ask: Ask, run: str, *, join: str = "j1", kept: int = 0, over: str = "j1") -> ms.Message:
    told = (specifications_to_json((SLOT,)), (SELECT,))
    reply = ask(ms.Propose(run, CLIENT, REQUEST.to_json(), *told, over))
    if isinstance(reply, ms.Failure):
        return reply
    return ask(ms.Prepare(run, CLIENT, *told, join, np.array([kept], np.uint8)))


@pytest.fixture
def lasting(client: PartyClient, clinic: duckdb.DuckDBPyConnection) -> PartyClient:
    ruled(clinic, LASTS)
    return client


def test_rows_are_kept_only_if_the_party_has_numbered_them(lasting: PartyClient, ask: Ask) -> None:
    nonce = opened(ask)
    assert "has no rows of this statement here" in failure(prepare(ask, "r1", kept=1))
    assert isinstance(prepare(ask, "r2"), ms.Prepared)
    # prepared, but its keys were not asked for
    assert "has no rows of this statement here" in failure(prepare(ask, "r3", kept=1))
    keys = ask(ms.SendKeys("r2", 0, nonce[None]))
    assert isinstance(keys, ms.JoinKeys)
    assert isinstance(prepare(ask, "r4", kept=1), ms.Prepared)
    again = ask(ms.SendKeys("r4", 0, nonce[None]))
    assert isinstance(again, ms.Failure)
    rows = np.arange(300, dtype=np.uint32)
    one = np.ones(300, np.uint32)
    active = ms.Activate("r4", 0, rows, one, 300, nonce[None])
    assert isinstance(ask(active), ms.Failure)  # its own nonces are the run's


def test_another_join_than_was_proposed_is_refused(lasting: PartyClient, ask: Ask) -> None:
    opened(ask)
    opened(ask, "j2")
    assert "over another join than was proposed" in failure(prepare(ask, "r1", over="j2"))
    assert "over another join than was proposed" in failure(prepare(ask, "r2", over=""))
    assert "not kept here any more" in failure(prepare(ask, "r3", join="j9", over="j9"))
    assert "each has one of its own" in failure(ask(ms.OpenJoin("j1", CLIENT, "j", (SELECT,))))


def test_keys_of_a_join_are_made_of_one_set_of_nonces(lasting: PartyClient, ask: Ask) -> None:
    nonce = opened(ask)
    assert isinstance(prepare(ask, "r1"), ms.Prepared)
    other = np.zeros((1, 16), np.uint8)
    assert isinstance(ask(ms.SendKeys("r1", 0, other)), ms.Failure)
    assert isinstance(prepare(ask, "r3"), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r3", 0, nonce[None])), ms.JoinKeys)
    assert isinstance(prepare(ask, "r2"), ms.Prepared)
    both = np.unique(np.concatenate([nonce[None], other]), axis=0)
    assert isinstance(ask(ms.SendKeys("r2", 0, both)), ms.Failure)


@pytest.mark.parametrize(
    "select",
    [
        "SELECT salary FROM patients",
        "SELECT secret FROM hidden",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT pid FROM patients WHERE salary > 3",
        "DROP TABLE patients",
    ],
)
def test_a_join_reads_what_is_granted_only(lasting: PartyClient, ask: Ask, select: str) -> None:
    reply = ask(ms.OpenJoin("j1", CLIENT, "j", (select,)))
    assert isinstance(reply, ms.Failure)
    assert "not kept here any more" in failure(prepare(ask, "r1"))


def test_a_join_gives_old_rows_of_its_own_tables_alone(
    lasting: PartyClient, ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    clinic.execute("CREATE TABLE others AS FROM patients")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT JOIN (pid), PREDICT ON others TO 'acme' UNDER r")
    opened(ask)
    told = (specifications_to_json((SLOT,)), (SELECT.replace("patients", "others"),))
    reply = ask(ms.Propose("r1", CLIENT, REQUEST.to_json(), *told, "j1"))
    assert isinstance(reply, ms.Proposed), failure(reply)
    reply = ask(ms.Prepare("r1", CLIENT, *told, "j1", np.zeros(1, np.uint8)))
    assert "the run reads main.others, and the join is of another table" in failure(reply)


def test_no_rows_are_active_before_keys_of_the_join(lasting: PartyClient, ask: Ask) -> None:
    opened(ask)
    reply = prepare(ask, "r1")
    assert isinstance(reply, ms.Prepared)
    rows = np.arange(300, dtype=np.uint32)
    active = ms.Activate("r1", 0, rows, np.ones(300, np.uint32), 300, reply.nonce[None])
    assert "before their join keys are asked for" in failure(ask(active))


def test_without_an_analyst_there_is_none(
    clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    ruled(clinic, LASTS)
    with sqlfl.connect(progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach("lab", database(TESTS))
        with pytest.raises(Error):
            fed.sql(CREATE)
