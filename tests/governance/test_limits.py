"""What a party lets a coordinator that lies take of its time and memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.codec import to_json
from sqlfl.base.interrupts import checkpoint
from sqlfl.contract.request import Asked
from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made, SlotSpecification
from sqlfl.governance import guard, open_runs
from sqlfl.party.limits import SlotLimits
from sqlfl.party.party import PartyClient
from sqlfl.udfs.connection import size_of
from sqlfl.udfs.numbering.rows import Snapshot
from tests.governance.clinic import REQUEST, SLOT, TRAIN, Ask, prepared, ruled
from tests.governance.test_ledger import ACCOUNT, booked, private

KEYS = "SELECT pid AS sqlfl_key_0_0 FROM patients"
CROSS = """SELECT a.pid AS sqlfl_key_0_0 FROM patients AS a, patients AS b, patients AS c,
  patients AS d, patients AS e WHERE a.bmi * b.bmi * c.bmi * d.bmi * e.bmi = 0.123456789"""
"""2.4 · 10¹² rows."""
SOME, ONES = np.arange(100, dtype=np.uint32), np.ones(100, np.uint32)


def refused(reply: ms.Message, said: str) -> None:
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError", reply.text
    assert said in reply.text


# -- time ------------------------------------------------------------------------------------------


def test_a_request_that_takes_too_long_is_ended(
    ask: Ask, clinic: duckdb.DuckDBPyConnection, time_only: Callable[[str], None]
) -> None:
    ruled(clinic, "seconds = 0.3", grant="")
    time_only("prepare")
    begun = time.monotonic()
    refused(prepared(ask, CROSS), "seconds = 0.3, and prepare took longer")
    assert time.monotonic() - begun < 20
    refused(ask(ms.SendKeys("r", 0)), "seconds = 0.3, and prepare took longer")
    assert isinstance(ask(ms.Finish("r", -1)), ms.Ready)
    ruled(clinic, "seconds = 500", grant="")
    assert isinstance(prepared(ask, KEYS, run="s"), ms.Prepared)


@pytest.mark.parametrize("stoppable", [True, False], ids=["loop", "deaf"])
def test_so_is_one_that_runs_no_query_and_its_run_with_it(
    ask: Ask,
    clinic: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    time_only: Callable[[str], None],
    stoppable: bool,
) -> None:
    def slow(self: Snapshot, secret: bytes) -> None:
        until = time.monotonic() + (30 if stoppable else 0.9)
        while time.monotonic() < until:
            time.sleep(0.01)
            if stoppable:
                checkpoint()
        number(self, secret)

    number = Snapshot.number
    monkeypatch.setattr(Snapshot, "number", slow)
    ruled(clinic, "seconds = 0.6", grant="")
    time_only("send_keys")
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    begun = time.monotonic()
    refused(ask(ms.SendKeys("r", 0)), "seconds = 0.6, and send_keys took longer")
    assert time.monotonic() - begun < 20
    temporary = "SELECT count(*) FROM duckdb_tables() WHERE temporary"
    assert clinic.sql(temporary).fetchall() == [(0,)]
    refused(ask(ms.Activate("r", 0, SOME, ONES, 100)), "seconds = 0.6, and send_keys took longer")


def test_the_analyst_is_told_which_rule(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, time_only: Callable[[str], None]
) -> None:
    views = CROSS.replace("sqlfl_key_0_0", "pid").replace("SELECT", "SELECT a.age, a.days,")
    clinic.execute(f"CREATE VIEW slow AS {views}")
    ruled(clinic, "seconds = 0.3")
    time_only("prepare")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT TRAIN (age), JOIN (pid), LABEL (days) ON slow TO 'acme' UNDER r")
    query = "SELECT s.age, t.crp, s.days FROM clinic.slow s JOIN lab.tests t ON s.pid = t.pid"
    with pytest.raises(sqlfl.PolicyError, match=r"policy has seconds = 0\.3, and prepare took"):
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET days FROM ({query})")
    ruled(clinic, "seconds = 300", grant="")
    fed.sql(TRAIN)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    gone = 0.0

    def wait(seconds: float) -> None:
        nonlocal gone
        gone += seconds

    fake = SimpleNamespace(monotonic=lambda: time.monotonic() + gone)
    for module in (guard, open_runs):
        monkeypatch.setattr(module, "time", fake)
    return wait


def test_a_run_of_which_nothing_is_heard_is_ended(
    ask: Ask, clinic: duckdb.DuckDBPyConnection, clock: Callable[[float], None]
) -> None:
    ruled(clinic, "lease = '2 hours'", grant="")
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    clock(7000)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    clock(7000)  # since then
    assert isinstance(ask(ms.Activate("r", 0, SOME, ONES, 100)), ms.Ready)
    clock(7300)
    refused(ask(ms.SendFindings("r", 0)), "lease = '2 hours', and nothing was heard of this run")
    assert isinstance(ask(ms.Finish("r", -1)), ms.Ready)
    assert isinstance(prepared(ask, KEYS, run="s"), ms.Prepared)


def test_by_whatever_comes_next(
    ask: Ask, client: PartyClient, clock: Callable[[float], None]
) -> None:
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    assert client.working
    clock(3700)
    ask(ms.ListTables("", -1))
    assert not client.working
    refused(ask(ms.SendKeys("r", 0)), "lease = '1 hour'")


def test_runs_that_are_open_are_counted(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "open_runs = 2", grant="")
    for name in "ab":
        assert isinstance(prepared(ask, KEYS, run=name), ms.Prepared)
    refused(prepared(ask, KEYS, run="c"), "open_runs = 2")
    ask(ms.Finish("a", -1))
    assert isinstance(prepared(ask, KEYS, run="d"), ms.Prepared)


@pytest.mark.parametrize(
    ("kind", "state"),
    [("send_keys", "returned"), ("activate", "spent"), ("residuals", "spent")],
)
def test_what_it_has_reserved_is_settled(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    clock: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    state: str,
) -> None:
    """Of a coordinator that is gone before it asks for what is of this kind."""
    honest, gone = PartyClient._answer, [True]

    def answer(self: PartyClient, request: ms.Message) -> ms.Message:
        if gone[0] and isinstance(request, ms.Finish):
            return ms.Ready(request.run, request.slot)
        if gone[0] and request.kind == kind and self.client.party == "lab":
            raise sqlfl.Error("it is gone")
        return honest(self, request)

    monkeypatch.setattr(PartyClient, "_answer", answer)
    ruled(clinic, ACCOUNT)
    with pytest.raises(sqlfl.PartyError, match="it is gone"):
        fed.sql(private())
    assert {found for _, found in booked(clinic)} == {"reserved"}
    gone[0] = False
    clock(3700)
    fed.explain(TRAIN)
    assert dict(booked(clinic))["features"] == state


# -- memory ----------------------------------------------------------------------------------------

FEATURES = (FeatureSpecification("age", "numeric"), FeatureSpecification("ward", "category"))
TRAINED = replace(SLOT, features=FEATURES)
SELECT = "SELECT age, ward, pid AS sqlfl_key_0_0 FROM patients"
OWN: dict[str, Any] = {
    "outputs": 1, "rows": 100, "total": 100.0, "clients": 1, "leader": True, "l2": 0.1,
    "curvature": 1.0,
}  # fmt: skip
MOST = 2**31 - 1


def begun(
    ask: Ask,
    algorithm: str = "sgd",
    slot: SlotSpecification = TRAINED,
    kind: str = "linear_regression",
) -> ms.Message:
    """The answer to what comes before `Start`."""
    asked = (*REQUEST.asked, Asked(0, "start", "", "", 1), Asked(0, "residuals", "", "", 500))
    request = replace(REQUEST, algorithm=algorithm, kind=kind, asked=asked)
    assert isinstance(prepared(ask, SELECT, slot, request), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    return ask(ms.Activate("r", 0, SOME, ONES, 100))


def start(algorithm: str, **values: Any) -> ms.Start:
    return ms.Start("r", 0, algorithm, to_json({**OWN, **values}))


def kind_of(message: ms.Start) -> str:
    """A kind of model that such a start trains."""
    if message.method == "frank_wolfe":
        return "lasso"
    configured = json.loads(message.configuration)
    if configured.get("tower") is not None:
        return "mlp_classifier"
    return "linear_regression" if configured["outputs"] == 1 else "softmax_regression"


def tower(*hidden: int) -> dict[str, Any]:
    return {"hidden": hidden, "activation": "relu"}


LARGE: dict[str, tuple[ms.Start, str]] = {
    "outputs": (start("sgd", outputs=MOST), "outputs"),
    "a layer": (start("sgd", tower=tower(MOST)), "hidden"),
    "layers": (start("admm", tower=tower(*[30_000] * 50)), "hidden"),
    "a layer of more than its rows": (start("pbm", tower=tower(10**8), slots=2), "hidden"),
    "what is kept": (start("sgd", keep=MOST, outputs=2 * 10**5), "keep"),
    "pairs": (start("lbfgs", memory=10**8), "memory"),
    "classes": (start("lbfgs", outputs=10**4, shares=[1e-4] * 10**4), "shares"),
    "a sketch": (start("frank_wolfe", radius=1.0, sketch=MOST), "sketch"),
    "joined rows of a sketch": (start("frank_wolfe", radius=1.0, sketch=8, rows=MOST), "rows"),
    "sums": (start("pbm", tower=tower(2), slots=2, outputs=64, rows=10**8), "rows"),
}


@pytest.mark.parametrize(("message", "name"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("rule", ["memory = '1GB'", ""])
def test_training_that_takes_much_is_refused_by_name(
    ask: Ask,
    clinic: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    message: ms.Start,
    name: str,
) -> None:
    """Before anything is made."""
    monkeypatch.setattr(SlotLimits, "memory", lambda *_: 10**9)
    ruled(clinic, rule, grant="")
    assert isinstance(begun(ask, message.method, kind=kind_of(message)), ms.Ready)
    tracemalloc.start()
    try:
        reply = ask(message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    whose = "its owner's policy has memory = '1GB'" if rule else "has a memory_limit of 1 GB"
    refused(reply, whose)
    refused(reply, f"most of it by {name}")
    assert peak < 2**25


@pytest.mark.parametrize(
    "message",
    [
        start("sgd"),
        start("lbfgs", keep=10),
        start("admm", tower=tower(16, 8), local={"epochs": 3, "batch": 64, "rate": 0.1}),
    ],
    ids=lambda message: message.method,
)
def test_what_is_usual_begins(
    ask: Ask, clinic: duckdb.DuckDBPyConnection, message: ms.Start
) -> None:
    ruled(clinic, "memory = '4MB'", grant="")
    begun(ask, message.method, kind=kind_of(message))
    assert isinstance(ask(message), ms.Ready)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("linear_regression", start("sgd", tower=tower(4))),
        ("mlp_regressor", start("sgd")),
        ("linear_regression", start("sgd", outputs=3)),
        ("logistic_regression", start("lbfgs", outputs=2)),
    ],
)
def test_a_start_of_another_kind_of_model(ask: Ask, kind: str, message: ms.Start) -> None:
    """`kinds` holds whatever the proposal declares."""
    begun(ask, message.method, kind=kind)
    refused(ask(message), f"training of another block than one of {kind}")
    assert isinstance(ask(ms.Residuals("r", 0, np.ones((100, 1), np.float32))), ms.Failure)


def test_a_start_of_a_slot_with_other_clients(ask: Ask) -> None:
    """It would send sums of its rows by chosen numbers, in place of predictions."""
    begun(ask)
    refused(ask(start("sgd", clients=2)), "training of a slot with other clients")


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("lasso", "sgd"), ("linear_regression", "frank_wolfe"), ("mlp_regressor", "moments"),
     ("linear_regression", "")],
)  # fmt: skip
def test_a_method_of_another_kind_of_model(ask: Ask, kind: str, algorithm: str) -> None:
    request = replace(REQUEST, kind=kind, algorithm=algorithm)
    said = f"{algorithm or 'no method'} does not train models of kind {kind}"
    refused(prepared(ask, KEYS, request=request), said)


def test_the_limit_is_that_of_the_database_where_there_is_no_rule(
    ask: Ask, client: PartyClient
) -> None:
    begun(ask, kind="softmax_regression")
    found = client._guard._slots.memory("r", 0)
    assert found is not None
    assert 2**26 < found < 2**50
    refused(ask(start("sgd", outputs=10**9, keep=MOST)), "its database has a memory_limit of ")


@pytest.mark.parametrize(
    ("text", "size"),
    [("512 bytes", 512), ("18.8 GiB", 20186346291), ("1.0 TiB", 2**40), ("16383.9 PiB", None)],
)
def test_sizes_as_duckdb_shows_them(text: str, size: int | None) -> None:
    assert size_of(text) == size


def test_rows_that_are_held_beside_the_database_count(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "memory = '4KB'", grant="")
    begun(ask)
    refused(ask(start("sgd")), "memory = '4KB'")


def test_columns_that_transform_makes_count(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    step = FittedStep("spline", "numeric", 10_000, 10)
    made = FeatureSpecification("age", "array", 10_009, Made((), "age", step))
    ruled(clinic, "memory = '1MB'", grant="")
    reply = begun(ask, slot=replace(TRAINED, features=(made, FEATURES[1])))
    refused(reply, "memory = '1MB', and 0.00801 GB are asked for, most of it by TRANSFORM")


@pytest.mark.parametrize(
    "values",
    [{"local": {"epochs": 10**9, "batch": 1, "rate": 0.1}},
     {"local": {"epochs": 1, "batch": 1, "rate": 0.1}, "inner_rounds": MOST, "clients": 3}],
    ids=["epochs", "inner rounds"],
)  # fmt: skip
def test_passes_for_one_request_count_as_rounds(ask: Ask, values: dict[str, Any]) -> None:
    begun(ask, "admm", kind="mlp_classifier")
    refused(ask(start("admm", tower=tower(4), **values)), "rounds = 10000, of passes for one")


def test_a_batch_of_no_rows_is_none(ask: Ask) -> None:
    begun(ask, "admm", kind="mlp_classifier")
    local = {"epochs": 1, "batch": 0, "rate": 0.1}
    reply = ask(start("admm", tower=tower(4), local=local))
    assert isinstance(reply, ms.Failure)
    assert reply.text == "option batch is 0, from 1 to 2147483648"
