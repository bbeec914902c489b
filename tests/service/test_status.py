"""What a board keeps and tells of statements."""

from __future__ import annotations

import json

from sqlfl.base.progress import ProgressStep
from sqlfl.federation.script import whole
from sqlfl.service.analyst_sessions import _verb
from sqlfl.service.status import DRAWN, ServiceStatus
from tests.service.test_federation import QUERY


def test_a_verb_is_never_of_the_text() -> None:
    for text, verb in {
        f"/*secretly*/TRAIN MODEL m USING lasso TARGET ill FROM ({QUERY})": "TRAIN",
        f"CHECK TARGET ill FROM ({QUERY})": "CHECK",
        f"EXPLAIN CHECK TARGET ill FROM ({QUERY})": "EXPLAIN",
        "-- secretly\nSHOW MODELS": "SHOW",
    }.items():
        assert _verb(whole(text).statement()) == verb


def test_a_long_curve_is_told_thin_with_its_end_and_as_json() -> None:
    board = ServiceStatus([])
    run = board.begin("heart", "alice", "TRAIN")
    for epoch in range(1, 951):
        value = float("inf") if epoch % 7 == 0 else 1 / epoch
        run.step(ProgressStep("m", 950, epoch, "", value, epoch, 0.0))
    (told,) = board.told()["statements"]
    assert len(told["curve"]) <= DRAWN + 1
    assert told["curve"][-1] == (950, 0.00105263)
    assert told["outcome"] == "running"
    json.dumps(told, allow_nan=False)
    assert board.totals().running == 1
    board.end(run, "stopped")
    totals = board.totals()
    assert (totals.running, totals.bytes) == (0, 950)
    assert totals.ended == {("TRAIN", "stopped"): 1}
    assert totals.times[0] == sum(totals.times) == 1
