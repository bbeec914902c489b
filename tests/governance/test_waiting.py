"""WITH (wait = ...): a statement that waits until owners have approved it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import ApprovalError, Error, OptionError, PlanError, PolicyError
from sqlfl.federation import statements_api
from sqlfl.governance.approvals import Approvals
from sqlfl.governance.records import Records
from tests.conftest import Open
from tests.governance.clinic import QUERY, TESTS, TRAIN, ruled

WAIT = TRAIN.replace("FROM (", "WITH (wait = '2 minutes') FROM (", 1)
SHORT = WAIT.replace("2 minutes", "1 second")
ALWAYS = "approval = 'always'"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements_api, "FIRST", 0.02)
    monkeypatch.setattr(statements_api, "MAX_PAUSE", 0.05)


@pytest.fixture
def lab(fed: sqlfl.Federation, database: Open) -> duckdb.DuckDBPyConnection:
    """The lab's owner has a policy, too."""
    con = database(TESTS)
    with sqlfl.owner(con) as owner:
        owner.sql(f"CREATE TRAINING POLICY r WITH ({ALWAYS})")
        owner.sql("GRANT TRAIN (crp), JOIN (pid), PREDICT ON tests TO 'acme' UNDER r")
    fed.detach("lab")
    fed.attach("lab", con)
    return con


def states(con: duckdb.DuckDBPyConnection) -> list[str]:
    return [item.state for item in Approvals(Records(con, "memory")).all()]


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Done by another thread, which has done it when the block ends."""
    failed: list[BaseException] = []

    def own() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=own)
    thread.start()
    try:
        yield failed
    finally:
        thread.join(60)
    assert not failed, failed


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def decided(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """By its owner, once a request waits there."""
    until(lambda: "waiting" in states(con))
    with sqlfl.owner(con) as owner:
        owner.sql(text)


def test_it_goes_on_once_all_have_approved(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, lab: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ALWAYS)

    def approve() -> None:
        # both are asked from the beginning
        until(lambda: states(clinic) == states(lab) == ["waiting"])
        decided(lab, "APPROVE REQUEST 1")
        time.sleep(0.2)
        assert not fed.models
        decided(clinic, "APPROVE REQUEST 1")

    with meanwhile(approve):
        fed.sql(WAIT)
    assert fed.models == ("m",)
    assert states(clinic) == states(lab) == ["used"]


def test_without_it_all_are_asked_and_named(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, lab: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ALWAYS)
    with pytest.raises(ApprovalError) as raised:
        fed.sql(TRAIN)
    assert raised.value.message == (
        "party clinic/0: the run waits for its owner, as request 1; "
        "party lab/0: the run waits for its owner, as request 1"
    )
    assert raised.value.hint == "run the same statement again once it is approved"
    ruled(clinic, "kinds = ['lasso']", "")
    before = len(fed.audit())
    with pytest.raises(PolicyError, match="clinic/0: its owner's policy has kinds") as other:
        fed.sql(WAIT)
    assert not isinstance(other.value, ApprovalError)
    # what the other one has answered is in the audit, too
    sent = fed.audit().arrow().to_pylist()[before:]
    asked = [(e["party"], e["direction"]) for e in sent if e["run"] and e["kind"] != "finish"]
    assert asked[:4] == [("clinic", "down"), ("lab", "down"), ("clinic", "up"), ("lab", "up")]


@pytest.mark.parametrize("refusing", ["clinic", "lab"])
def test_it_ends_at_once_where_an_owner_refuses(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    lab: duckdb.DuckDBPyConnection,
    refusing: str,
) -> None:
    ruled(clinic, ALWAYS)
    con = {"clinic": clinic, "lab": lab}[refusing]
    began = time.monotonic()
    with (
        meanwhile(lambda: decided(con, "REFUSE REQUEST 1 BECAUSE 'not in june'")),
        pytest.raises(PolicyError, match=f"{refusing}/0: .*request 1: not in june") as raised,
    ):
        fed.sql(WAIT)
    assert not isinstance(raised.value, ApprovalError)
    assert time.monotonic() - began < 60
    assert not fed.models


def test_it_ends_when_the_time_is_over(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ALWAYS)
    began = time.monotonic()
    with pytest.raises(ApprovalError, match=r"request 1 \(it has waited 1 second for that\)"):
        fed.sql(SHORT)
    assert 1.0 <= time.monotonic() - began < 30
    assert not fed.models
    assert states(clinic) == ["waiting"]
    decided(clinic, "APPROVE REQUEST 1")
    fed.sql(SHORT)


def test_the_bar_says_for_whom_it_waits(
    clinic: duckdb.DuckDBPyConnection, database: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    ruled(clinic, ALWAYS)
    with sqlfl.connect(analyst="acme", progress=True) as fed:
        fed.attach("clinic", clinic)
        fed.attach("lab", database(TESTS))
        with pytest.raises(ApprovalError):
            fed.sql(SHORT)
    shown = capsys.readouterr().err
    assert "party clinic/0: the run waits for its owner, as request 1" in shown
    assert "waits for the owners of clinic/0 (its owner's policy has approval = 'always'" in shown


def test_a_ctrl_c_leaves_nothing_behind(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ALWAYS)

    def strike() -> None:
        until(lambda: states(clinic) == ["waiting"])
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(strike), pytest.raises(KeyboardInterrupt):
        fed.sql(WAIT)
    assert not fed.models
    assert "waiting" in states(clinic)
    fed.detach("lab")  # no run is in progress
    assert fed.parties == ("clinic",)


def test_closing_the_federation_ends_it(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements_api, "FIRST", 100.0)
    ruled(clinic, ALWAYS)
    seen: list[BaseException] = []

    def own() -> None:
        try:
            fed.sql(WAIT)
        except Error as error:
            seen.append(error)

    with meanwhile(own):
        until(lambda: states(clinic) == ["waiting"])
        time.sleep(0.1)
        began = time.monotonic()
        fed.close()
        assert time.monotonic() - began < 50
    assert "the federation is closed" in str(seen)


def test_what_is_granted_may_have_changed_meanwhile(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ALWAYS)
    revoke = "REVOKE JOIN ON patients FROM 'acme'"
    with (
        meanwhile(lambda: decided(clinic, revoke)),
        pytest.raises(PlanError, match="no column pid"),
    ):
        fed.sql(WAIT)
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT JOIN (pid) ON patients TO 'acme' UNDER r")

    def stricter() -> None:
        decided(clinic, f"CREATE OR REPLACE TRAINING POLICY r WITH ({ALWAYS}, min_rows = 9)")
        decided(clinic, "APPROVE REQUEST 1")

    with meanwhile(stricter):
        fed.sql(WAIT)
    assert states(clinic) == ["used"]


@pytest.mark.parametrize(
    "text",
    [
        f"EVALUATE MODEL m WITH (wait = '2 minutes') FROM ({QUERY})",
        f"PREDICT MODEL m WITH (wait = '2 minutes') FROM ({QUERY})",
        f"METRICS OF MODEL m WITH (wait = '2 minutes') FROM ({QUERY})".replace(
            "METRICS", "RESIDUALS"
        ),
        f"CHECK TARGET days WITH (wait = '2 minutes') FROM ({QUERY})",
        TRAIN.replace("TRAIN OR REPLACE", "TUNE OR REPLACE").replace(
            "FROM (", "WITH (wait = '2 minutes', l2 = [0, 1], folds = 2) FROM (", 1
        ),
    ],
)
def test_all_statements_with_options_wait(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, text: str
) -> None:
    fed.sql(TRAIN)
    ruled(clinic, ALWAYS)
    with meanwhile(lambda: decided(clinic, "APPROVE REQUEST 1")):
        fed.sql(text)
    assert states(clinic) == ["used"]


def test_it_is_no_option_of_the_model(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(SHORT)
    assert fed.explain(f"EVALUATE MODEL m FROM ({QUERY})").options.wait is None
    ruled(clinic, ALWAYS)
    with pytest.raises(ApprovalError) as raised:
        fed.sql(f"EVALUATE MODEL m FROM ({QUERY})")
    assert "has waited" not in raised.value.message


@pytest.mark.parametrize("value", ["2", "'2 fortnights'", "'0 hours'", "true"])
def test_a_length_of_time_is_one(fed: sqlfl.Federation, value: str) -> None:
    with pytest.raises(OptionError, match="option wait must be a length of time, as '30 days'"):
        fed.sql(WAIT.replace("'2 minutes'", value))
