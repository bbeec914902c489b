"""A rehearsal is served from rows that are made up, whoever asks for what: it counts for nothing,
as it tells nothing of any row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error, PlanError, PolicyError
from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.request import Asked
from sqlfl.contract.schema import Client, FeatureSpecification, specifications_to_json
from sqlfl.messages import MADE_UP, REHEARSAL, Message
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.party.rehearsals import MAX_REHEARSALS
from tests.conftest import Open
from tests.depth import examples
from tests.governance.clinic import PATIENTS, QUERY, TESTS, TRAIN, ruled
from tests.governance.test_hostile_coordinator import (
    FRAGMENTS,
    KEYED,
    MADE,
    ONE,
    SELECT,
    SLOT,
    Ask,
    assert_refused,
    party,
    request,
    told,
)
from tests.open_databases import in_memory

RUN = REHEARSAL + "r"
ROWS = 300
"""Of the tables; of the stand-ins' there are others."""
WHOLE = request(*(Asked(0, kind, "", "", 1) for kind in ("send_keys", "activate", "send_labels")))
ANALYZE = "EXPLAIN ANALYZE "
ENDLESS = """SELECT max(a.age + d.age) AS f, 0 AS sqlfl_key_0_0
    FROM patients AS a, patients AS b, patients AS c, patients AS d"""
"""Runs for hours over stand-ins, in little memory: DuckDB keeps a million of its 10^12 rows."""


@pytest.fixture
def ask(database: Open) -> Iterator[Ask]:
    with closing(party(database("SELECT 1"))) as client:
        yield lambda message: told(client, message)


def own(slot: Any = SLOT, *texts: str) -> tuple[str, tuple[str, ...]]:
    return specifications_to_json((slot,)), texts or (SELECT,)


def rehearse(run: str = RUN, slot: Any = SLOT, *texts: str) -> ms.Rehearse:
    return ms.Rehearse(run, -1, WHOLE.to_json(), *own(slot, *texts))


def prepare(run: str = RUN, slot: Any = SLOT, *texts: str) -> ms.Prepare:
    return ms.Prepare(run, -1, *own(slot, *texts))


# -- what it counts for ----------------------------------------------------------------------------


def kept(con: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[Any, ...]]]:
    """All that is kept of runs, but the chain of messages."""
    tables = ("requests", "runs", "ledger", "seen", "policies", "grants")
    return {name: con.execute(f"FROM sqlfl.{name}").fetchall() for name in tables}


@pytest.mark.parametrize(
    "rules",
    [
        "approval = 'always'",
        "approval = 'first_time', runs_per_day = 1",
        "min_difference = 5",
        "min_rows = 5000, min_cell = 900, max_categories = 2, max_parameter_ratio = 1e-9",
        "algorithms = ['sgd'], kinds = ['lasso'], labels = 'never', moments = 'never', rounds = 1",
    ],
)
def test_it_counts_for_nothing(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, rules: str
) -> None:
    ruled(clinic, rules)
    before = kept(clinic)
    for text in (TRAIN, TRAIN, f"CHECK TARGET days FROM ({QUERY})"):
        assert "It ran to its end" in repr(fed.sql(ANALYZE + text))
        assert kept(clinic) == before
    assert not fed.models


def test_it_costs_no_budget(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "epsilon = 1e-3, delta = 1e-6")
    private = TRAIN.replace(
        "FROM (",
        "PRIVACY (epsilon = 8, delta = 1e-5, predictions = 'gaussian', statistics = 'noised', "
        "label_epsilon = 1, label_bounds = [0, 3], feature_bounds = {'age': [0, 99], "
        "'bmi': [-1, 1], 'crp': [-1, 1]}) FROM (",
        1,
    ).replace("p.ward, ", "")
    before = kept(clinic)
    shown = repr(fed.sql(ANALYZE + private))
    assert "It ran to its end" in shown
    assert "the owner refuses" in shown
    assert kept(clinic) == before
    with pytest.raises(PolicyError, match="epsilon"):
        fed.sql(private)


def test_an_approval_is_not_used_and_not_asked_for(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "approval = 'always'")
    fed.sql(ANALYZE + TRAIN)
    assert kept(clinic)["requests"] == []
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    with sqlfl.owner(clinic) as owner:
        owner.sql("APPROVE REQUEST 1")
    assert "approval = 'always'" not in repr(fed.sql(ANALYZE + TRAIN))
    fed.sql(TRAIN)  # by the approval that is still there
    assert "the owner decides about it" in repr(fed.sql(ANALYZE + TRAIN))


def test_what_is_not_granted_is_not_rehearsed(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "", "GRANT TRAIN (age), JOIN (pid), LABEL (days) ON patients TO 'acme' UNDER r")
    text = TRAIN.replace("p.bmi, p.ward, ", "")
    fed.sql(ANALYZE + text)
    for column in ("salary", "nothing"):
        with pytest.raises(PlanError, match=f"has no column {column}"):
            fed.sql(ANALYZE + text.replace("p.age", f"p.{column}"))
    with pytest.raises(PolicyError, match=r"days of main\.patients is not granted"):
        fed.sql(ANALYZE + text.replace("p.age", "p.days AS d, p.age"))


def test_who_it_is_that_asks(clinic: duckdb.DuckDBPyConnection, database: Open) -> None:
    ruled(clinic)
    for analyst, said in (("umbrella", "no table|not granted"), (None, "names no analyst")):
        with sqlfl.connect(analyst=analyst, progress=False) as fed:
            fed.attach("clinic", clinic)
            fed.attach("lab", database(TESTS))
            with pytest.raises(Error, match=said):
                fed.sql(ANALYZE + TRAIN)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", [clinic, database(PATIENTS)], combine=True)
        fed.attach("lab", database(TESTS))
        with pytest.raises(PolicyError, match="not built for databases that a party combines"):
            fed.sql(ANALYZE + TRAIN)


def test_who_it_is_that_asks_by_hand(database: Open) -> None:
    secret = b"\x07" * 32
    nobody = party(database("SELECT 1"), analyst="")
    combined = PartyClient(
        Client("clinic", 0, combined=True), nobody._guard._con, Secrets(secret, secret),
        analyst="acme",
    )  # fmt: skip
    for client, said in ((nobody, "names no analyst"), (combined, "that a party combines")):
        with closing(client):
            reply = told(client, rehearse())
            assert_refused(reply)
            assert said in reply.text  # type: ignore[attr-defined]


def test_the_chain_says_that_it_was_one(database: Open, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("clinic.duckdb", "coordinator.duckdb")]
    with closing(duckdb.connect(files[0])) as con:
        con.execute(PATIENTS)
        ruled(con)
        with sqlfl.connect(files[1], analyst="acme", progress=False) as fed:
            fed.attach("clinic", con)
            fed.attach("lab", database(TESTS))
            fed.sql(ANALYZE + TRAIN)
            fed.sql(TRAIN)
            fed.sql(f"CHECK TARGET days FROM ({QUERY})")
        with sqlfl.owner(con) as owner:
            rows = owner.sql("SHOW DISCLOSURES").arrow().to_pylist()
    last = [row["last_at"] for row in rows]
    assert last == sorted(last, reverse=True)
    runs = {row["run"]: row["what"] for row in rows if row["run"]}
    assert sorted(runs.values()) == [
        "check of main.patients",
        "rehearsal over rows that are made up: train linear_regression by lbfgs of main.patients",
        "train linear_regression by lbfgs of main.patients",
    ]
    assert {run.startswith(REHEARSAL) for run in runs} == {True, False}
    assert all(run.startswith(REHEARSAL) == ("rehearsal" in what) for run, what in runs.items())
    assert sqlfl.verify(*files).arrow().num_rows == 0


# -- a coordinator that does what it likes ---------------------------------------------------------


def test_no_message_of_a_rehearsal_reaches_a_table(ask: Ask) -> None:
    everything = [
        ms.Propose(RUN, -1, WHOLE.to_json(), *own()), prepare(), ms.ListTables(RUN, -1),
        ms.Describe(RUN, -1, ("SELECT salary FROM patients",)), ms.SendKeys(RUN, 0),
        ms.SendLabels(RUN, 0), ms.SendBlock(RUN, -1, "m", 0), ms.Collect(RUN, -1, ()),
        ms.Drop(RUN, -1, "m"), ms.Keep(RUN, -1, "m"),
    ]  # fmt: skip
    for message in everything:
        reply = ask(message)
        assert_refused(reply, "Error")
        assert "no rehearsal of this name has begun, or it is over" in reply.text  # type: ignore[attr-defined]
    assert isinstance(ask(rehearse()), ms.Ready)
    assert isinstance(ask(ms.Finish(RUN, -1)), ms.Ready)
    assert_refused(ask(prepare()), "Error")
    # without a proposal, and without a policy, the same
    assert isinstance(ask(ms.Finish(RUN, -1)), ms.Ready)


def test_a_run_is_no_rehearsal_by_what_is_said_of_it(ask: Ask) -> None:
    assert_refused(ask(rehearse("r")), "Error")
    assert_refused(ask(rehearse("")), "Error")
    assert_refused(ask(prepare("r")))
    # a run that was proposed goes on as what it is
    assert isinstance(ask(ms.Propose("r", -1, WHOLE.to_json(), *own())), ms.Proposed)
    assert isinstance(ask(rehearse()), ms.Ready)
    assert_refused(ask(rehearse()), "Error")
    for run, rows in ((RUN, MADE_UP), ("r", ROWS)):
        reply = ask(prepare(run))
        assert isinstance(reply, ms.Prepared)
        assert reply.rows.tolist() == [rows]
        keys = ask(ms.SendKeys(run, 0))
        assert isinstance(keys, ms.JoinKeys)
        assert len(keys.codes[0]) == rows
    refused = ask(ms.SendFindings("r", 0))
    assert_refused(refused)
    assert "is not of the run that was proposed" in refused.text  # type: ignore[attr-defined]


def test_hashes_are_under_other_keys(database: Open) -> None:
    """Values that are made up are known: their hashes are no dictionary of real ones."""
    secret = b"\x07" * 32
    script = f"CREATE TABLE patients AS SELECT i + 1 AS pid, 1.0 AS days FROM range({MADE_UP}) r(i)"
    client = PartyClient(Client("clinic"), database(script), Secrets(secret, secret))
    other = PartyClient(Client("clinic"), database(script), Secrets(secret, secret))
    text = "SELECT pid AS sqlfl_key_0_0 FROM patients"
    with closing(client), closing(other):
        assert isinstance(told(client, rehearse(RUN, KEYED, text)), ms.Ready)
        told(client, prepare(RUN, KEYED, text))
        made_up = told(client, ms.SendKeys(RUN, 0))
        # what a party would tell of the same values under this name, did it serve such a run
        drawn = other.serve(prepare(RUN, KEYED, text))
        assert isinstance(drawn, ms.Prepared)
        real = other.serve(ms.SendKeys(RUN, 0, drawn.nonce[None]))
        assert isinstance(made_up, ms.JoinKeys)
        assert isinstance(real, ms.JoinKeys)
        tags = [{bytes(tag) for tag in own.tags[0]} for own in (made_up, real)]
        assert [len(own) for own in tags] == [MADE_UP, MADE_UP]
        assert not tags[0] & tags[1]


def test_models_of_the_party_are_out_of_reach(database: Open) -> None:
    """What a model makes of rows that are known would tell its weights."""
    client = party(database("SELECT 1"))
    with closing(client):
        told(client, rehearse())
        told(client, prepare())
        client.accept("model", 0, "m", object())  # type: ignore[arg-type]
        assert isinstance(client.block("model", 0), object)
        asked = [
            ms.Score(RUN, 0, "model", 0), ms.SendBlock(RUN, 0, "model", 0),
            ms.SendSkew(RUN, 0, "model", 0, 1),
        ]  # fmt: skip
        for message in asked:
            reply = told(client, message)
            assert isinstance(reply, ms.Failure)
            assert reply.error in ("ModelError", "InternalError")
        warm = replace(SLOT, warm=("model", 0))
        told(client, rehearse(RUN + "2", warm))
        reply = told(client, prepare(RUN + "2", warm))
        assert isinstance(reply, ms.Failure)
        assert reply.error == "ModelError"


@pytest.mark.parametrize("text", FRAGMENTS, ids=lambda text: text[:50])
def test_sql_that_a_policy_refuses(refusing: Ask, text: str) -> None:
    assert_refused(refusing(rehearse(RUN, ONE, text)))
    assert_refused(refusing(prepare(RUN, ONE, text)), "Error")


@pytest.fixture(scope="module")
def refusing() -> Iterator[Ask]:
    with in_memory() as con, closing(party(con)) as client:
        yield lambda message: told(client, message)


@pytest.fixture(scope="module")
def open_() -> Iterator[Ask]:
    """A party without policies."""
    secret = b"\x07" * 32
    with in_memory() as con:
        con.execute(MADE)
        client = PartyClient(Client("clinic"), con, Secrets(secret, secret))
        with closing(client):
            yield lambda message: told(client, message)


@pytest.mark.parametrize(
    "text", [text for text in FRAGMENTS if "sleep_ms" not in text], ids=lambda text: text[:50]
)
def test_sql_without_a_policy_tells_no_value(open_: Ask, text: str) -> None:
    """Whatever it asks for: `told` looks for values of the tables in all bytes."""
    begun = open_(rehearse(RUN, ONE, text))
    if isinstance(begun, ms.Ready):
        open_(prepare(RUN, ONE, text))
        open_(ms.SendKeys(RUN, 0))
        some = np.arange(MADE_UP, dtype=np.uint32)
        open_(ms.Activate(RUN, 0, some, np.ones(MADE_UP, np.uint32), MADE_UP))
        open_(ms.SendFindings(RUN, 0))
    open_(ms.Finish(RUN, -1))


def test_types_of_what_is_not_granted_are_not_told(ask: Ask) -> None:
    """A name in a part of a query of which nothing comes is no way to them."""
    replies = []
    for name in ("salary", "age"):
        text = f"""SELECT q.age AS f, q.pid AS sqlfl_key_0_0
            FROM (SELECT age, pid, length({name}) AS dead FROM patients) AS q"""
        reply = ask(rehearse(RUN, ONE, text))
        assert isinstance(reply, ms.Failure)
        replies.append(reply.text)
        ask(ms.Finish(RUN, -1))
    # of what is granted the type is known
    assert replies[0].startswith("column salary is not granted")
    assert "length(BIGINT)" in replies[1]


@pytest.mark.parametrize("bounds", [(-1e300, 1e300), (1.0,), (1.0, 2.0, 3.0), ("a",) * 100_000])
def test_bounds_of_ones_choice(ask: Ask, bounds: Any) -> None:
    feature = FeatureSpecification("f", "category" if bounds[0] == "a" else "numeric")
    privacy = SnapshotPrivacy(None, "bounds", (bounds,), 0.0, 0.0, None)
    slot = replace(KEYED, features=(feature,), privacy=privacy)
    column = "ward" if bounds[0] == "a" else "age"
    text = f"SELECT {column} AS f, pid AS sqlfl_key_0_0 FROM patients"
    reply = ask(rehearse(RUN, slot, text))
    if bounds[0] == "a":
        assert isinstance(reply, ms.Ready)
    else:
        assert isinstance(reply, ms.Failure)
        assert "while serving" not in reply.text


def test_fragments_are_those_of_the_slots(ask: Ask) -> None:
    for texts in ((SELECT, SELECT), ()):
        message = ms.Rehearse(RUN, -1, WHOLE.to_json(), specifications_to_json((SLOT,)), texts)
        assert isinstance(ask(message), ms.Failure)
    long = replace(WHOLE, options="1" * (1 << 20)).to_json()
    assert_refused(ask(ms.Rehearse(RUN, -1, long, *own())))
    assert isinstance(ask(ms.Rehearse(RUN, -1, "{}", *own())), ms.Failure)


def test_a_table_is_one_in_whatever_letters(ask: Ask) -> None:
    text = """SELECT p.age AS f, q.PID AS sqlfl_key_0_0
        FROM Patients AS p JOIN main.PATIENTS AS q ON p.pid = q.Pid"""
    assert isinstance(ask(rehearse(RUN, ONE, text)), ms.Ready)
    reply = ask(prepare(RUN, ONE, text))
    assert isinstance(reply, ms.Prepared)
    assert reply.rows.tolist() == [MADE_UP]


def test_few_are_in_progress(ask: Ask) -> None:
    for number in range(MAX_REHEARSALS + 1):
        assert isinstance(ask(rehearse(f"{RUN}{number}")), ms.Ready)
    assert_refused(ask(prepare(f"{RUN}0")), "Error")
    assert isinstance(ask(prepare(f"{RUN}1")), ms.Prepared)


def test_a_request_of_one_that_takes_too_long_ends_it(
    database: Open, time_only: Callable[[str], None]
) -> None:
    time_only("prepare")
    with closing(party(database("SELECT 1"), "seconds = 0.5, min_cell = 1")) as client:
        ask: Ask = lambda message: told(client, message)  # noqa: E731
        assert isinstance(ask(rehearse(RUN, ONE, ENDLESS)), ms.Ready)
        reply = ask(prepare(RUN, ONE, ENDLESS))
        assert isinstance(reply, ms.Failure)
        assert reply.error == "PolicyError"
        assert "seconds = 0.5, and prepare took longer" in reply.text
        assert not client.rehearsing
        assert_refused(ask(prepare(RUN, ONE, ENDLESS)), "Error")
        time_only("send_keys")
        assert isinstance(ask(rehearse(f"{RUN}2")), ms.Ready)
        assert isinstance(ask(prepare(f"{RUN}2")), ms.Prepared)


def test_memory_that_does_not_suffice(database: Open) -> None:
    # a product of three tables at the right side of another is kept, and has 10^9 rows
    crossed = ", ".join(f"patients AS t{n}" for n in range(6))
    text = f"SELECT max(t0.age + t5.age) AS f, 0 AS sqlfl_key_0_0 FROM {crossed}"
    con = database("SET memory_limit = '40MB'", "SET temp_directory = ''")
    with closing(party(con)) as client:
        assert isinstance(told(client, rehearse(RUN, ONE, text)), ms.Ready)
        reply = told(client, prepare(RUN, ONE, text))
        assert isinstance(reply, ms.Failure)
        assert reply.text.startswith("its database's memory does not suffice for prepare\nhint: ")
        assert isinstance(told(client, ms.ListTables("", -1)), ms.Tables)


def test_one_that_does_not_end_can_be_ended(database: Open) -> None:
    client = party(database("SELECT 1"))
    with closing(client):
        assert isinstance(told(client, rehearse(RUN, ONE, ENDLESS)), ms.Ready)
        found: list[Message] = []
        thread = threading.Thread(
            target=lambda: found.append(told(client, prepare(RUN, ONE, ENDLESS)))
        )
        thread.start()
        end = time.monotonic() + 30
        while thread.is_alive() and time.monotonic() < end:
            time.sleep(0.05)
            # the party itself is free meanwhile
            assert isinstance(told(client, ms.ListTables("", -1)), ms.Tables)
            client.interrupt()
        thread.join(1)
        assert not thread.is_alive()
        assert isinstance(found[0], ms.Failure)
        assert "Interrupted" in found[0].text or "interrupted" in found[0].text


# -- what nobody has thought of --------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", REHEARSAL + "a", REHEARSAL + "b"])
STEPS = st.tuples(
    st.sampled_from(["propose", "rehearse", "prepare", "keys", "labels", "finish"]), NAMES
)


@given(st.lists(STEPS, min_size=4, max_size=25))
@examples(20, 800)
def test_any_sequence_of_messages(steps: list[tuple[str, str]]) -> None:
    """Runs whose names say that they are rehearsals are of rows that are made up, others of those
    that there are, and only where they were proposed."""
    with in_memory() as con, closing(party(con)) as client:
        proposed: set[str] = set()
        for kind, run in steps:
            made_up = run.startswith(REHEARSAL)
            message: Message = {
                "propose": ms.Propose(run, -1, WHOLE.to_json(), *own()),
                "rehearse": rehearse(run),
                "prepare": prepare(run),
                "keys": ms.SendKeys(run, 0),
                "labels": ms.SendLabels(run, 0),
                "finish": ms.Finish(run, -1),
            }[kind]
            reply = told(client, message)
            if isinstance(reply, ms.Proposed) and not made_up:
                proposed.add(run)
            if kind == "rehearse":
                assert made_up or isinstance(reply, ms.Failure)
            if isinstance(reply, ms.Prepared):
                assert reply.rows.tolist() == [MADE_UP if made_up else ROWS]
                assert made_up or run in proposed
            if isinstance(reply, ms.JoinKeys):
                assert len(reply.codes[0]) == (MADE_UP if made_up else ROWS)
