"""A run is told to the party as a whole: it is judged, approved, and then kept to."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error, PolicyError
from sqlfl.contract.request import WAITING, Asked, Verdict, digest, verdicts_from_json
from sqlfl.contract.schema import Client, specifications_to_json
from sqlfl.governance.approvals import APPROVED, MAX_WAITING, Approvals, Filed
from sqlfl.governance.canonical import canonical
from sqlfl.governance.records import Records
from sqlfl.options.policies import within
from tests.conftest import Open
from tests.governance.clinic import (
    GRANT,
    QUERY,
    REQUEST,
    SLOT,
    TESTS,
    TRAIN,
    Ask,
    prepared,
    ruled,
)


@pytest.fixture
def owner(clinic: duckdb.DuckDBPyConnection) -> sqlfl.Owner:
    return sqlfl.owner(clinic)


HAS = "its owner's policy has"


def states(owner: sqlfl.Owner) -> list[str]:
    return [str(v) for v in owner.sql("SHOW REQUESTS").arrow()["state"].to_pylist()]


SAME = [
    TRAIN,
    TRAIN.replace("clinic.patients p", "clinic.patients AS q").replace("p.", "q."),
    TRAIN.replace("FROM (", "FROM (WITH p AS (FROM clinic.patients) ", 1).replace(
        "clinic.patients p", "p"
    ),
    "  " + TRAIN.replace(" ", "\n /* other */ "),
    TRAIN.replace("MODEL m", "MODEL another"),
    TRAIN.replace("FROM (", "WITH (memory_limit = '1GB') FROM (", 1),
    TRAIN.replace("FROM (", "WITH (wait = '2 hours') FROM (", 1),
]
OTHER = [
    TRAIN.replace("p.bmi, ", ""),
    TRAIN.replace("p.age", "p.age * 2 AS age"),
    f"{TRAIN[:-1]} WHERE p.age > 30)",
    TRAIN.replace("FROM (", "WITH (epochs = 99) FROM (", 1),
    TRAIN.replace("FROM (", "WITH (algorithm = 'sgd') FROM (", 1),
    TRAIN.replace("linear", "poisson").replace("p.days", "p.ill::INT AS days"),
    f"CHECK TARGET days FROM ({QUERY})",
    TRAIN.replace("FROM (", "PRIVACY (label_epsilon = 1, label_bounds = [0, 3]) FROM (", 1),
]


def test_a_run_waits_until_it_is_approved(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'first_time'")
    for _ in range(2):
        with pytest.raises(ApprovalError, match="waits for its owner, as request 1"):
            fed.sql(TRAIN)
    assert not fed.models
    assert states(owner) == ["waiting"]
    shown = owner.sql("SHOW REQUEST 1").arrow().to_pylist()[0]
    assert shown["run"] == "train linear_regression by lbfgs"
    assert "send_labels (1 times): targets in clear" in shown["leaves"]
    assert shown["tables"] == "main.patients"
    owner.sql("APPROVE REQUEST 1")
    for text in SAME:
        fed.sql(text)
    assert states(owner) == ["approved"]
    for number, text in enumerate(OTHER, 2):
        with pytest.raises(ApprovalError, match=f"request {number}"):
            fed.sql(text)
    owner.sql("REFUSE REQUEST 2 BECAUSE 'bmi is needed'")
    with pytest.raises(PolicyError, match="has refused this run, request 2: bmi is needed"):
        fed.sql(OTHER[0])
    assert "refused this run, request 2: bmi is needed" in str(fed.explain(OTHER[0]))
    owner.sql("REFUSE REQUEST 1 BECAUSE 'enough'")
    with pytest.raises(PolicyError, match="request 1: enough"):
        fed.sql(TRAIN)


def test_diagnostics_of_the_messages_of_evaluate_are_one_permission(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    binary = TRAIN.replace("linear_", "logistic_").replace("TARGET days", "TARGET ill")
    binary = binary.replace("p.days", "p.ill")
    fed.sql(binary)
    ruled(clinic, "approval = 'first_time'")
    over = binary[binary.index("FROM (") :]
    with pytest.raises(ApprovalError, match="request 1"):
        fed.sql(f"ROC OF MODEL m WITH (points = 7) {over}")
    owner.sql("APPROVE REQUEST 1")
    fed.sql(f"EVALUATE MODEL m {over}")
    for look in ("METRICS", "CONFUSION", "CALIBRATION", "ROC"):
        fed.sql(f"{look} OF MODEL m {over}")
    assert states(owner) == ["approved"]
    with pytest.raises(ApprovalError, match="request 2"):
        fed.sql(f"IMPORTANCE OF MODEL m {over}")
    with pytest.raises(ApprovalError, match="request 3"):
        fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) {over}")


def test_each_run_may_need_an_approval_of_its_own(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'always'")
    for number in (1, 2):
        with pytest.raises(ApprovalError, match=f"request {number}"):
            fed.sql(TRAIN)
        owner.sql(f"APPROVE REQUEST {number}")
        fed.sql(TRAIN)
    assert states(owner) == ["used", "used"]
    with pytest.raises(Error, match="request 1 was approved, and its run has begun"):
        owner.sql("REFUSE REQUEST 1 BECAUSE 'too late'")
    with pytest.raises(Error, match="there is no request 9"):
        owner.sql("APPROVE REQUEST 9")


def test_a_run_that_does_not_begin_leaves_its_approval(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic, "approval = 'always', runs_per_day = 1")
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    owner.sql("APPROVE REQUEST 1")
    fed.sql(TRAIN)
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    owner.sql("APPROVE REQUEST 2")
    with pytest.raises(PolicyError, match="runs_per_day = 1"):
        fed.sql(TRAIN)
    assert states(owner) == ["used", "approved"]


def test_the_strictest_approval_holds(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    ruled(clinic)
    fed.sql(TRAIN)
    owner.sql("CREATE TRAINING POLICY s WITH (approval = 'first_time')")
    owner.sql("GRANT TRAIN (age) ON patients TO 'acme' UNDER s")
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)


def test_another_analyst_is_not_who_was_approved(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner, database: Open
) -> None:
    ruled(clinic, "approval = 'first_time'")
    owner.sql(GRANT.replace("acme", "umbrella"))
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    owner.sql("APPROVE REQUEST 1")
    fed.sql(TRAIN)
    with sqlfl.connect(analyst="umbrella", progress=False) as other:
        other.attach("clinic", clinic)
        other.attach("lab", database(TESTS))
        with pytest.raises(ApprovalError, match="request 2"):
            other.sql(TRAIN)


def test_explain_says_what_owners_say(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    assert "WHAT THE OWNERS ALLOW" not in str(fed.explain(TRAIN))
    ruled(clinic)
    plan = fed.explain(TRAIN)
    assert plan.verdicts == {Client("clinic"): ()}
    assert "clinic/0: the owner allows it." in str(plan)
    assert "clinic/0  all   allowed" in str(plan.details)
    ruled(clinic, "labels = 'never', algorithms = ['sgd'], approval = 'always'", "")
    plan = fed.explain(TRAIN)
    assert plan.verdicts == {
        Client("clinic"): (
            Verdict(-1, "", "refused", f"{HAS} algorithms = ['sgd']"),
            Verdict(0, "its target, weights or offsets", "refused", f"{HAS} labels = 'never'"),
        )
    }
    assert "its target, weights or offsets of p" in str(plan)
    ruled(clinic, "approval = 'always'", "")
    for said in ("approval = 'always'", "this is request 1"):
        for shown in (str(fed.explain(TRAIN)), fed.explain(TRAIN)._repr_html_()):
            wanted = said.replace("'", "'" if "<" not in shown[:9] else "&#x27;")
            assert wanted in " ".join(shown.split())
        if not states(owner):
            with pytest.raises(ApprovalError):
                fed.sql(TRAIN)
    fed.sql("EXPLAIN " + TRAIN)
    assert states(owner) == ["waiting"]
    other = TRAIN.replace("p.bmi", "p.days AS bmi")
    assert "days of main.patients is not granted to acme for TRAIN" in str(fed.explain(other))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("kinds = ['poisson_regression', 'lasso']", r"kinds = \['lasso', 'poisson_regression'\]"),
        ("runs_per_day = 1", "runs_per_day = 1"),
        ("hours = 'NEVER'", "hours = "),
    ],
)
def test_when_and_what_is_trained(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, rules: str, said: str
) -> None:
    now = dt.datetime.now()
    ago = [(now - dt.timedelta(minutes=m)).strftime("%H:%M") for m in (9, 3)]
    ruled(clinic, rules.replace("NEVER", "-".join(ago)))
    if "runs" in rules:
        fed.sql(TRAIN)
        clinic.execute("UPDATE sqlfl.runs SET begun_at = begun_at - INTERVAL 25 HOURS")
        fed.sql(TRAIN)
    if "runs" not in rules:
        assert [v.state for v in fed.explain(TRAIN).verdicts[Client("clinic")]] == ["refused"]
    before = dict.fromkeys(fed.models)
    with pytest.raises(PolicyError, match=f"its owner's policy has {said}"):
        fed.sql(TRAIN)
    assert dict.fromkeys(fed.models) == before


def test_what_rules_allow_is_done(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    now = dt.datetime.now()
    around = [(now + dt.timedelta(minutes=m)).strftime("%H:%M") for m in (-9, 9)]
    ruled(clinic, f"kinds = ['linear_regression', 'lasso'], algorithms = ['lbfgs', 'sgd'], "
          f"hours = '{'-'.join(around)}', runs_per_day = 3, labels = 'exact'")  # fmt: skip
    fed.sql(TRAIN)
    fed.sql(f"EVALUATE MODEL m FROM ({QUERY})")
    fed.sql(f"CHECK USING huber_regression TARGET days FROM ({QUERY})")
    with pytest.raises(PolicyError, match="runs_per_day = 3"):
        fed.sql(TRAIN)


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("08:00-18:00", "08:00 17:59", "07:59 18:00"),
        ("22:00-06:00", "22:00 05:59", "06:00 21:59"),
        ("08:00-18:00 and 10:00-20:00", "10:00 17:59", "09:59 18:00"),
    ],
)
def test_hours(hours: str, inside: str, outside: str) -> None:
    for times, expected in ((inside, True), (outside, False)):
        for time in times.split():
            assert within(hours, dt.datetime.fromisoformat(f"2026-01-01 {time}:30")) is expected


def test_the_traffic_is_what_explain_says(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic)
    plan = fed.explain(TRAIN)
    before = len(fed.audit().arrow())
    fed.sql(TRAIN)
    sent = fed.audit().arrow().to_pylist()[before:]
    kinds = {(client.party, kind) for client, _, kind, _ in plan.totals()}
    found = {(entry["party"], entry["kind"]) for entry in sent}
    assert found <= kinds | {("clinic", "keep"), ("lab", "keep")}
    assert {kind for kind in kinds if "propos" in kind[1]} <= found
    (bytes_,) = [entry["bytes"] for entry in sent if entry["kind"] == "propose"]
    client = Client("clinic")
    _, size = plan.totals()[client, -1, "propose", "down"]
    (symbol,) = size.symbols
    text = plan.request(client).to_json()
    assert bytes_ == size.evaluate({symbol.name: len(text.encode())})


# -- by hand ---------------------------------------------------------------------------------------


KEYS = "SELECT pid AS sqlfl_key_0_0 FROM patients"
SPECIFICATION = specifications_to_json((SLOT,))


def refused(reply: ms.Message, said: str) -> None:
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError"
    assert said in reply.text


def proposal(run: str = "r", **changed: object) -> ms.Propose:
    given = {"request": REQUEST.to_json(), "specification": SPECIFICATION, "fragments": (KEYS,)}
    return ms.Propose(run, -1, **(given | changed))  # type: ignore[arg-type]


def test_a_run_is_the_one_that_was_proposed(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    begin = ms.Prepare("r", -1, SPECIFICATION, (KEYS,))
    refused(ask(begin), "a run is to be proposed before it begins")
    ask(proposal("other"))
    refused(ask(begin), "a run is to be proposed before it begins")
    for other in (
        replace(begin, fragments=(KEYS + " WHERE age > 30",)),
        replace(begin, specification=specifications_to_json((replace(SLOT, folds=2),))),
    ):
        assert isinstance(ask(proposal()), ms.Proposed)
        refused(ask(other), "another one than was proposed")
        refused(ask(begin), "a run is to be proposed before it begins")
    assert isinstance(ask(proposal()), ms.Proposed)
    assert isinstance(ask(begin), ms.Prepared)
    refused(ask(proposal()), "a run of this name was there before")
    ask(ms.Finish("r", -1))
    refused(ask(proposal()), "a run of this name was there before")
    ask(proposal("later"))
    ruled(clinic, "min_rows = 6", "")
    refused(ask(replace(begin, run="later")), "has changed what is granted")


def test_a_policy_that_is_gone_meanwhile(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    with sqlfl.owner(clinic) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY r")
    assert isinstance(ask(proposal()), ms.Proposed)
    assert isinstance(ask(ms.Prepare("r", -1, SPECIFICATION, (KEYS,))), ms.Prepared)


def test_a_view_that_changes_meanwhile(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    clinic.execute("CREATE VIEW v AS SELECT pid FROM patients")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT JOIN (pid) ON v TO 'acme' UNDER r")
    text = KEYS.replace("patients", "v")
    assert isinstance(ask(proposal(fragments=(text,))), ms.Proposed)
    clinic.execute("CREATE OR REPLACE VIEW v AS SELECT salary AS pid FROM patients")
    refused(ask(ms.Prepare("r", -1, SPECIFICATION, (text,))), "has changed what is granted")


def test_a_view_that_is_changed_and_granted_again_is_approved_anew(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    made = "CREATE OR REPLACE VIEW seen AS SELECT * REPLACE ({} AS age) FROM patients"
    clinic.execute(made.format("age"))
    granted = GRANT.replace("patients", "seen")
    ruled(clinic, "approval = 'first_time'", granted)
    text = TRAIN.replace("clinic.patients", "clinic.seen")
    with pytest.raises(ApprovalError, match="request 1"):
        fed.sql(text)
    owner.sql("APPROVE REQUEST 1")
    fed.sql(text)
    owner.sql(granted)
    fed.sql(text)  # the same view
    clinic.execute(made.format("salary"))
    owner.sql(granted)
    with pytest.raises(ApprovalError, match="request 2"):
        fed.sql(text)
    clinic.execute(made.format("age"))
    owner.sql(granted)
    fed.sql(text)  # as it was approved


def test_only_messages_of_the_run_are_answered(ask: Ask) -> None:
    few = replace(REQUEST, asked=(Asked(0, "send_keys", "", "", 1),))
    assert isinstance(prepared(ask, KEYS, request=few), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    refused(ask(ms.SendKeys("r", 0)), "message send_keys more than 1 times is not of the run")
    refused(ask(ms.SendFindings("r", 0)), "message send_findings of slot 0 is not of the run")
    refused(ask(ms.SendKeys("r", 1)), "message send_keys of slot 1 is not of the run")


def test_training_is_by_the_algorithm_that_was_proposed(ask: Ask) -> None:
    own = replace(REQUEST, asked=(*REQUEST.asked, Asked(0, "start", "", "", 1)))
    assert isinstance(prepared(ask, KEYS, request=own), ms.Prepared)
    refused(ask(ms.Start("r", 0, "sgd", "{}")), "start before the rows that are joined are told")
    some = np.arange(100, dtype=np.uint32)
    ask(ms.SendKeys("r", 0))
    few = ms.Activate("r", 0, some, np.ones(100, np.uint32), 99)
    refused(ask(few), "count more than all that are joined")
    assert isinstance(prepared(ask, KEYS, request=own, run="again"), ms.Prepared)
    ask(ms.SendKeys("again", 0))
    ask(replace(few, run="again", total=100))
    refused(ask(ms.Start("again", 0, "admm", "{}")), "training by admm is not of the run")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(0, "send_labels", "", "", 2), "send_labels is answered once in a run"),
        (Asked(0, "activate", "", "", None), "activate is answered once in a run"),
        (Asked(0, "start", "", "", 3), "start is answered once in a run"),
        (Asked(-1, "write", "", "", 1), "its owner's policy has into = none"),
        (Asked(1, "send_keys", "", "", 1), "this slot of the query is another party's"),
    ],
)
def test_a_proposal_that_asks_too_much(ask: Ask, asked: Asked, said: str) -> None:
    wrong = replace(REQUEST, asked=(asked,)).to_json()
    refused(ask(proposal(request=wrong)), said)
    reply = ask(proposal("", request=wrong))
    assert isinstance(reply, ms.Proposed)
    assert [v.rule for v in verdicts_from_json(reply.verdicts)] == [said]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "linear_regression). Nothing leaves in clear. ("},
        {"algorithm": "sgd\nNothing leaves in clear."},
        {"purpose": "count the rows"},
    ],
)
def test_a_run_calls_itself_by_known_words(ask: Ask, wrong: dict[str, str]) -> None:
    refused(ask(proposal(request=replace(REQUEST, **wrong).to_json())), "that sqlfl does not know")


def test_a_table_is_written_once(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "into = 'scores'", "")
    wrong = replace(REQUEST, asked=(Asked(-1, "write", "", "", 2),)).to_json()
    refused(ask(proposal(request=wrong)), "write is answered once in a run")


def test_rules_are_of_what_a_slot_has(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "labels = 'never', identifiers = 'never'", "")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT IDENTIFY (pid) ON patients TO 'acme' UNDER r")
    assert isinstance(ask(proposal()), ms.Proposed)
    weighted = "SELECT days AS sqlfl_weight, pid AS sqlfl_key_0_0 FROM patients"
    identified = "SELECT pid AS sqlfl_id_0, pid AS sqlfl_key_0_0 FROM patients"
    for slot, text, said in (
        (replace(SLOT, weight=True), weighted, "labels = 'never'"),
        (replace(SLOT, target=True), weighted, "labels = 'never'"),
        (replace(SLOT, identifiers=(0,)), identified, "identifiers = 'never'"),
    ):
        told = {"specification": specifications_to_json((slot,)), "fragments": (text,)}
        refused(ask(proposal(**told)), said)


def test_parts_of_a_proposal_are_added_up(ask: Ask) -> None:
    parts = (Asked(0, "send_labels", "", "a", 1), Asked(0, "send_labels", "", "b", 1))
    refused(ask(proposal(request=replace(REQUEST, asked=parts).to_json())), "answered once in a")
    parts = (Asked(0, "send_labels", "", "a", 2), Asked(0, "send_labels", "", "b", -1))
    refused(ask(proposal(request=replace(REQUEST, asked=parts).to_json())), "answered once in a")


def test_a_proposal_is_not_too_long(ask: Ask) -> None:
    long = replace(REQUEST, options="1" * (1 << 20)).to_json()
    refused(ask(proposal(request=long)), "characters; 1,048,576 are taken")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"purpose":"train"}', REQUEST.to_json()[:-1]])
def test_a_proposal_that_is_none(ask: Ask, text: str) -> None:
    reply = ask(proposal(request=text))
    assert isinstance(reply, ms.Failure)
    assert "the request of a run is none" in reply.text


def test_an_approval_is_used_by_one_of_two_runs(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "approval = 'always'", "")
    assert isinstance(ask(proposal()), ms.Failure)
    approvals = Approvals(Records(clinic, "memory"))
    approvals.decide(1, "approved")
    assert isinstance(ask(proposal("a")), ms.Proposed)
    assert isinstance(ask(proposal("b")), ms.Proposed)
    assert isinstance(ask(ms.Prepare("a", -1, SPECIFICATION, (KEYS,))), ms.Prepared)
    refused(ask(ms.Prepare("b", -1, SPECIFICATION, (KEYS,))), "not approved any more")


def test_few_requests_wait_and_few_proposals_are_kept(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    for number in range(65):
        assert isinstance(ask(proposal(f"run {number}")), ms.Proposed)
    begin = ms.Prepare("run 0", -1, SPECIFICATION, (KEYS,))
    refused(ask(begin), "a run is to be proposed before it begins")
    assert isinstance(ask(replace(begin, run="run 1")), ms.Prepared)
    ruled(clinic, "approval = 'always'", "")
    for epochs in range(101):
        reply = ask(proposal(request=replace(REQUEST, options=str(epochs)).to_json()))
    refused(reply, "100 runs of acme wait for its owner already")


def test_requests_of_analysts_are_their_own(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic)
    approvals = Approvals(Records(clinic, "memory"))

    def number(analyst: str, what: str) -> int | None:
        with pytest.raises(ApprovalError):
            approvals.check(Filed(what, analyst, (), REQUEST, ()))
        return approvals.state(analyst, what)[1]

    assert [number("acme", "a"), number("other", "a"), number("acme", "a")] == [1, 2, 1]
    approvals.decide(1, APPROVED)
    assert approvals.state("other", "a") == (WAITING, 2, "")
    for k in range(MAX_WAITING):
        number("acme", f"{k}")
    with pytest.raises(PolicyError, match="100 runs of acme wait"):
        approvals.check(Filed("b", "acme", (), REQUEST, ()))
    assert number("other", "b") == MAX_WAITING + 3


# -- the canonical form ----------------------------------------------------------------------------


def form(con: duckdb.DuckDBPyConnection, text: str) -> str:
    import json

    ((found,),) = con.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    return canonical(json.loads(found)["statements"][0])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("SELECT a.x FROM t AS a", "SELECT  b.x -- c\nFROM t b", True),
        ("SELECT a.x FROM t AS a", "SELECT a.y FROM t AS a", False),
        ("SELECT a.x, b.x FROM t a, t b", "SELECT b.x, a.x FROM t b, t a", True),
        ("SELECT a.x, b.y FROM t a, u b", "SELECT b.x, a.y FROM t a, u b", False),
        ("SELECT a.x FROM t a", "SELECT A.x FROM t A", True),
        ("SELECT a.x FROM t a", "SELECT a.x FROM u a", False),
        ("SELECT x FROM t a", "SELECT x AS y FROM t a", False),
        ("SELECT a.x FROM t a WHERE a.x IN (SELECT a.x FROM u a)",
         "SELECT b.x FROM t b WHERE b.x IN (SELECT b.x FROM u b)", False),
        ("SELECT a.* FROM t a", "SELECT b.* FROM t b", False),
        ("SELECT a.x FROM t a LIMIT 1", "SELECT a.x FROM t a LIMIT 2", False),
        ("SELECT list_transform(a.x, a -> a.y) FROM t a",
         "SELECT list_transform(b.x, b -> b.y) FROM t b", False),
    ],
)  # fmt: skip
def test_the_same_query_has_one_form(
    clinic: duckdb.DuckDBPyConnection, one: str, other: str, same: bool
) -> None:
    assert (form(clinic, one) == form(clinic, other)) is same


def test_the_hash_is_of_all_that_matters() -> None:
    def hashed(slot: object = SLOT, request: object = REQUEST, text: str = KEYS) -> str:
        return digest(request.to_json(), specifications_to_json((slot,)), (text,))  # type: ignore

    own = hashed()
    assert own == hashed(replace(SLOT, engine="sql", name="other"))
    others = [
        hashed(replace(SLOT, target=True)),
        hashed(replace(SLOT, folds=2)),
        hashed(request=replace(REQUEST, kind="lasso")),
        hashed(request=replace(REQUEST, privacy="{}")),
        hashed(request=replace(REQUEST, asked=REQUEST.asked[1:])),
        hashed(text=KEYS + " "),
    ]
    assert len({own, *others}) == 7
    assert np.char.isalnum(own)
