"""Sums over the clients of a table of which the coordinator sees no part."""

from __future__ import annotations

import contextlib
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sqlfl
from sqlfl.base.errors import LostError
from sqlfl.contract.schema import Client
from sqlfl.messages import (
    Gram,
    Masked,
    PartialGradient,
    Probe,
    Residuals,
    SendGram,
    SendSlope,
    SendStatistics,
    Statistics,
    Vocabularies,
)
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from tests import test_border, test_central
from tests.conftest import Open
from tests.depth import examples, in_turn, spread
from tests.federation import test_weighted_border
from tests.federations import federation
from tests.open_databases import in_memory
from tests.privacy import test_private_statements
from tests.strategies import BOUNDED, Case, cases, summing_in_secret, train_sql
from tests.test_border import tapped
from tests.unions import LEFT, QUERY, RIGHT, ROWS, UNION, again, divided

SEVERAL = st.integers(2, 3)
ENGINES = st.sampled_from(("sql", "arrays"))
ALGORITHMS = (
    {"algorithm": "lbfgs", "epochs": 4},
    {"algorithm": "sgd", "epochs": 3},
    {"algorithm": "sgd", "epochs": 2, "batch_size": 16},
    {"algorithm": "admm", "epochs": 3},
)
METHODS = st.sampled_from(ALGORITHMS)

# -- the model -------------------------------------------------------------------------------------


@given(cases(), SEVERAL, ENGINES)
@examples(1)
def test_a_full_batch_step_is_the_central_one(case: Case, clients: int, engine: str) -> None:
    with summing_in_secret():
        again(test_central.test_a_full_batch_step_is_the_central_one, case, clients, engine)


@given(cases(), SEVERAL, ENGINES, st.sampled_from((1e-4, 1e-2)))
@examples(1)
def test_lbfgs_reaches_the_central_optimum(
    case: Case, clients: int, engine: str, l2: float
) -> None:
    with summing_in_secret():
        again(test_central.test_lbfgs_reaches_the_central_optimum, case, clients, engine, l2)


@given(cases(), SEVERAL)
@examples(1)
def test_admm_approaches_the_central_optimum(case: Case, clients: int) -> None:
    again(test_central.test_admm_never_diverges_and_approaches_the_optimum, case, clients, "secure")


def test_values_whose_means_are_far_from_0_lose_nothing(database: Open) -> None:
    """Σ x² − (Σ x)²/N in 8-byte numbers would have no digit left of the variance."""
    far = [
        database(f"CREATE TABLE t AS SELECT i AS id, 1.7e15 + sin(i) * 16 AS x, i % 3 AS y "
                 f"FROM range({100 * q}, {100 * q + 100}) r(i)")
        for q in range(3)
    ]  # fmt: skip
    found = []
    for union in ("exact", "secure"):
        with federation({"a": far}) as fed:
            text = "SELECT t.x, t.y FROM a.t t"
            fed.sql(train_sql("m", "linear_regression", "y", text, union=union))
            found.append(fed.model("m").metrics["objective"])
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_parties_and_combined_clients_in_one_slot(database: Open) -> None:
    parties = divided(database) | {"club": [database(LEFT.format(250, 290))]}
    text = UNION.replace("SELECT id, x", "SELECT id, x")
    found = []
    for combine, union in ((False, "exact"), (True, "secure")):
        with federation(parties, combine=combine) as fed:
            fed.sql(train_sql("m", "linear_regression", "n", text, union=union))
            found.append(fed.model("m").metrics["objective"])
            names = {row["kind"] for row in fed.audit().arrow().to_pylist()}
            assert ("masked" in names) == (union == "secure")
    assert found[1] == pytest.approx(found[0], rel=1e-6)


# -- what crosses the border -----------------------------------------------------------------------


@given(test_border.OUTER_TOO, SEVERAL, METHODS, ENGINES, st.sampled_from(("warm", "predict")))
@examples(1, 40)
def test_the_traffic_is_what_explain_says(
    case: Case, clients: int, options: dict[str, object], engine: str, then: str
) -> None:
    with summing_in_secret():
        test_border.compare_traffic(case, clients, options, engine, then)


@given(cases(outer=True), SEVERAL, METHODS, ENGINES, st.sampled_from((0.2, 0.5)))
@examples(1)
def test_the_traffic_of_a_split_is_what_explain_says(
    case: Case, clients: int, options: dict[str, object], engine: str, fraction: float
) -> None:
    own = test_weighted_border.test_the_traffic_of_a_split_is_what_explain_says
    with summing_in_secret(), pytest.MonkeyPatch.context() as patch:
        from sqlfl.udfs.blocks.blocks import MemoryBlocks

        patch.setattr(MemoryBlocks, "secret", lambda self, purpose: test_weighted_border.DRAWS)
        again(own, case, clients, options, engine, fraction)


@given(cases(kinds=BOUNDED), SEVERAL, st.sampled_from(test_border.TOWERS[:5]), ENGINES)
@examples(1)
def test_the_traffic_of_towers_is_what_explain_says(
    case: Case, clients: int, options: dict[str, object], engine: str
) -> None:
    kind = "linear_regression" if case.kind == "linear_regression" else "softmax_regression"
    case = Case(kind, case.target, case.tables, case.blocks, case.seed)
    with summing_in_secret():
        test_border.compare_traffic(
            case, clients, options, engine, "predict", test_border.NEURAL[kind]
        )


@pytest.mark.parametrize("algorithm", ["lbfgs", "sgd", "admm"])
def test_what_reaches_the_coordinator_is_uniform(algorithm: str, database: Open) -> None:
    """No gradient, second moment or statistic of a client but under masks, which have no bias."""
    parties = {"bank": divided(database)["bank"], "lab": [database(RIGHT.format(0, ROWS))]}
    with tapped(parties) as (fed, tap):
        text = QUERY.format("n")
        fed.sql(train_sql("m", "linear_regression", "y", text, algorithm=algorithm, union="secure"))
        up = [decode(r.data) for r in tap.transport.recorded if r.direction == "up"]
    assert not any(isinstance(m, (PartialGradient, Gram, Statistics)) for m in up)
    masked = [m for m in up if isinstance(m, Masked)]
    assert {m.of for m in masked} >= {"statistics", "partial_gradient"}
    data = np.concatenate([np.ascontiguousarray(m.values).reshape(-1) for m in masked])
    assert data.size > 1000
    counts = np.bincount(data.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-9


# -- rounds that are lost --------------------------------------------------------------------------


SUMMED = (SendStatistics, SendGram, Probe, SendSlope, Residuals)


class Losing:
    """A transport that loses exchanges in which sums are asked for, before they are served or
    after that: each time that `when` says."""

    def __init__(self, inner: Transport, when: Any, *, served: bool) -> None:
        self._inner, self._when, self._served = inner, when, served
        self.numbers: list[int] = []
        self.lost = 0

    def exchange(self, requests: Any) -> list[pa.Buffer]:
        asked = [m.number for m in (decode(d) for _, d in requests) if isinstance(m, SUMMED)]
        lost = bool(asked) and self._when(len(self.numbers))
        self.numbers += asked[:1]
        self.lost += lost
        if lost and not self._served:
            raise LostError("bank/1", "no answer")
        answers = self._inner.exchange(requests)
        if lost:
            raise LostError("bank/1", "no answer")
        return answers


WAY_OF_LOSING = {
    "before it is served": (lambda n: n % 3 == 1, False),
    "after it is served": (lambda n: n % 3 == 1, True),
    "two times": (lambda n: n % 5 in (1, 2), True),
}


LOSING = ("lbfgs", "sgd", "admm")


@pytest.fixture(scope="module", params=LOSING)
def without_loss(request: pytest.FixtureRequest) -> tuple[str, float]:
    """A statement, and the objective of its model where no round is lost."""
    options = {"algorithm": request.param, "union": "secure", "seed": 1, "epochs": 4}
    statement = train_sql("m", "linear_regression", "y", QUERY.format("n"), **options)
    with contextlib.ExitStack() as stack:

        def database(script: str) -> duckdb.DuckDBPyConnection:
            con = stack.enter_context(in_memory())
            con.execute(script)
            return con

        fed = stack.enter_context(federation(divided(database)))
        fed.sql(statement)
        return statement, fed.model("m").metrics["objective"]


@pytest.mark.parametrize(
    ("without_loss", "name"), in_turn(LOSING, tuple(WAY_OF_LOSING)), indirect=["without_loss"]
)
def test_a_lost_round_is_made_again(
    name: str, without_loss: tuple[str, float], database: Open
) -> None:
    parties, (statement, expected) = divided(database), without_loss
    when, served = WAY_OF_LOSING[name]
    transports: list[Losing] = []

    def wrap(inner: Transport) -> Transport:
        transports.append(Losing(inner, when, served=served))
        return transports[0]

    with federation(parties, wrap=wrap) as fed:
        fed.sql(statement)
        assert fed.model("m").metrics["objective"] == expected
        assert transports[0].lost > 1
        numbers = transports[0].numbers
        assert len(numbers) == len(set(numbers))


def test_a_client_that_stays_away_ends_the_statement(database: Open) -> None:
    parties, text = divided(database), QUERY.format("n")
    with federation(parties, wrap=lambda inner: Losing(inner, lambda n: n > 3, served=True)) as fed:
        with pytest.raises(sqlfl.PartyError, match="no answer"):
            fed.sql(train_sql("m", "linear_regression", "y", text, union="secure"))
        assert not any(server.working for server in fed._servers.values())
        assert fed.sql("SHOW MODELS").fetchall() == []


# -- privacy ---------------------------------------------------------------------------------------


@given(
    cases(kinds=BOUNDED, unions=False, max_slots=3),
    SEVERAL,
    ENGINES,
    st.sampled_from((0.05, None)),
    st.sampled_from(("none", "gaussian")),
)
@examples(1)
def test_gradients_are_clipped_per_table_row(
    case: Case, clients: int, engine: str, clip: float | None, predictions: str
) -> None:
    with summing_in_secret():
        again(
            test_private_statements.test_gradients_are_clipped_per_table_row,
            case,
            clients,
            engine,
            clip,
            predictions,
        )


SECRET = tuple(
    (privacy, f"{options}, union = 'secure'", kind)
    for privacy, options, kind in test_private_statements.CONFIGURATIONS
    if "consensus" not in options and ("admm" not in options or "hidden" not in options)
)


@pytest.mark.parametrize(("privacy", "options", "kind"), spread(SECRET, 4))
def test_private_traffic_is_what_explain_says(
    privacy: str, options: str, kind: str, database: Open
) -> None:
    test_private_statements.test_traffic_is_what_explain_says(privacy, options, kind, 2, database)


def test_vocabularies_are_told_in_clear(database: Open) -> None:
    with tapped({"bank": divided(database)["bank"], "lab": [database(RIGHT.format(0, ROWS))]}) as (
        fed,
        tap,
    ):
        text = train_sql("m", "linear_regression", "y", QUERY.format("n"), union="secure", epochs=2)
        plan = fed.explain(text)
        fed.sql(text)
        told = [decode(r.data) for r in tap.transport.recorded if r.direction == "up"]
        assert sum(isinstance(m, Vocabularies) for m in told) == 3
        assert any(d.kind == "vocabularies" for d in plan.disclosures)
        assert Client("bank", 0) in {send.client for e in plan.exchanges for send in e.sends}
