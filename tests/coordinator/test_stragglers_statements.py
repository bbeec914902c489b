"""TRAIN ... WITH (stragglers = '...'): parties that are late, and what a model comes to then."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import Error, OptionError, PartyError
from sqlfl.base.interrupts import Interrupts, heeding
from sqlfl.contract.schema import Client
from sqlfl.messages import Residuals
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import examples
from tests.federations import Parties, federation, trainable
from tests.strategies import Case, cases
from tests.unions import BOUNDS, LEFT, QUERY, RIGHT, ROWS

TRAIN = "TRAIN OR REPLACE MODEL m USING {} TARGET y WITH ({}) FROM ({})"
LATE = "stragglers = '0.01 s'"
PATIENT = "stragglers = '1 h'"


class Slow:
    """A transport on which steps of `party` (None: of all) take `seconds`; and what fails after
    `most` of them."""

    def __init__(
        self,
        inner: Transport,
        seconds: float | Callable[[Client], float],
        party: str | None = "lab",
        most: int = 10**6,
    ) -> None:
        self.inner, self._seconds, self._party = inner, seconds, party
        self._left = most
        self.steps = 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        for client, data in requests:
            if self._party in (None, client.party) and isinstance(decode(data), Residuals):
                self.steps += 1
                if self.steps > self._left:
                    raise PartyError(str(client), "it is gone")
                own = self._seconds
                time.sleep(own(client) if callable(own) else own)
        return self.inner.exchange(requests)


def parties(database: Open) -> Parties:
    return {"bank": [database(LEFT.format(0, 300))], "lab": [database(RIGHT.format(0, ROWS))]}


def several(database: Open) -> Parties:
    return {
        "bank": [database(LEFT.format(*bounds)) for bounds in BOUNDS],
        "lab": [database(RIGHT.format(*bounds)) for bounds in ((0, 250), (250, ROWS))],
    }


def losses(fed: sqlfl.Federation, kind: str, options: str, target: str = "y") -> list[float]:
    fed.sql(TRAIN.format(kind, options, QUERY.format(target)))
    history = fed.model("m").history
    assert history is not None
    found: list[float] = history.column("train_loss").to_pylist()
    return found


WAYS = {
    "sgd": ("logistic_regression", "algorithm = 'sgd', epochs = 4", "y"),
    "batches": ("linear_regression", "algorithm = 'sgd', epochs = 2, batch_size = 64", "n"),
    "adam": ("softmax_regression", "algorithm = 'sgd', epochs = 3, optimizer = 'adam'", "k"),
    "towers": ("mlp_regressor", "algorithm = 'sgd', epochs = 2, hidden = [3]", "n"),
    "admm": ("logistic_regression", "algorithm = 'admm', epochs = 6, tolerance = 0", "y"),
    "admm of towers": ("mlp_classifier", "algorithm = 'admm', epochs = 2, hidden = [3]", "y"),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_is_in_time_changes_no_bit(database: Open, way: str) -> None:
    kind, options, target = WAYS[way]
    with federation(parties(database)) as fed:
        expected = losses(fed, kind, f"{options}, seed = 1", target)
        assert losses(fed, kind, f"{options}, seed = 1, {PATIENT}", target) == expected


@pytest.mark.parametrize("union", ["exact", "secure", "consensus"])
def test_clients_of_a_slot_sum_among_themselves(database: Open, union: str) -> None:
    algorithm = "admm" if union == "consensus" else "sgd"
    options = f"algorithm = '{algorithm}', epochs = 2, seed = 1, union = '{union}'"
    with federation(several(database)) as fed:
        expected = losses(fed, "logistic_regression", options)
        found = losses(fed, "logistic_regression", f"{options}, {PATIENT}")
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # masks are others in each run


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("algorithm = 'admm', epochs = 60, tolerance = 0", 0.03),
        ("algorithm = 'sgd', epochs = 60", 0.03),
        ("algorithm = 'sgd', epochs = 10, batch_size = 50", 0.015),
    ],
)
def test_a_party_that_is_late_in_every_step(database: Open, options: str, seconds: float) -> None:
    """The loss nears the least one; what is told of the model is true of the blocks as they are."""
    slow: list[Slow] = []

    def wrap(inner: Transport) -> Transport:
        slow.append(Slow(inner, seconds))
        return slow[0]

    with federation(parties(database), wrap) as fed:
        found = losses(fed, "logistic_regression", f"{options}, {LATE}")
        history, metrics = fed.model("m").history, fed.model("m").metrics
        assert history is not None
        late = history.column("late").to_pylist()
        assert sum(late) > 3
        rounds = 6 if "batch_size" in options else 1
        assert slow[0].steps + sum(late) >= rounds * len(late)  # steps are made, or missed
        query = QUERY.format("y")
        again = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()
        assert again[0]["log_loss"] == pytest.approx(metrics["log_loss"], rel=1e-5)
        best = losses(fed, "logistic_regression", "algorithm = 'lbfgs'")
        assert found[-1] - best[-1] < 0.3 * (found[0] - best[-1])


def test_a_checkpoint_is_of_all_parties(database: Open) -> None:
    """Its blocks are those that its figures are of, and RESUME goes on from them."""
    with federation(parties(database), lambda inner: Slow(inner, 0.03, most=9)) as fed:
        options = f"algorithm = 'sgd', epochs = 40, checkpoint = 5, {LATE}"
        with pytest.raises(PartyError, match="lab/0: it is gone"):
            losses(fed, "logistic_regression", options)
        metrics = fed.model("m").metrics
        query = QUERY.format("y")
        found = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()
        assert found[0]["log_loss"] == pytest.approx(metrics["log_loss"], rel=1e-5)


def test_ctrl_c_ends_it_once_all_have_answered(database: Open) -> None:
    own = Interrupts()
    result: list[object] = []
    slow: list[Slow] = []

    def wrap(inner: Transport) -> Transport:
        slow.append(Slow(inner, 0.05))
        return slow[0]

    with federation(parties(database), wrap) as fed:

        def work() -> None:
            with heeding(own):
                options = f"algorithm = 'sgd', epochs = 100000, {LATE}"
                result.append(losses(fed, "logistic_regression", options))

        thread = threading.Thread(target=work)
        thread.start()
        while not slow or slow[0].steps < 2:
            time.sleep(0.01)
        own.interrupt()
        thread.join(30)
        assert len(result) == 1
        metrics = fed.model("m").metrics
        found = fed.sql(f"EVALUATE MODEL m FROM ({QUERY.format('y')})").arrow().to_pylist()
        assert found[0]["log_loss"] == pytest.approx(metrics["log_loss"], rel=1e-5)


@pytest.mark.parametrize("options", ["algorithm = 'sgd', batch_size = 50", "algorithm = 'admm'"])
def test_owners_let_in_who_may_be_late(database: Open, options: str) -> None:
    """A party that was late is sent no more than its request said."""
    own = parties(database)
    with sqlfl.owner(own["lab"][0]) as owner:
        owner.sql("CREATE TRAINING POLICY r")
        owner.sql("GRANT TRAIN (v, kind), JOIN (id) ON visits TO 'acme' UNDER r")
    connected = sqlfl.Federation(
        progress=False, analyst="acme", wrap=lambda inner: Slow(inner, 0.02)
    )
    with connected as fed:
        for party, (con,) in own.items():
            fed.attach(party, con)
        found = losses(fed, "logistic_regression", f"{options}, epochs = 6, {LATE}")
        history = fed.model("m").history
        assert history is not None
        assert sum(history.column("late").to_pylist()) > 0
        assert found[-1] < found[0]


def test_a_failure_leaves_nothing(database: Open) -> None:
    own = parties(database)
    with federation(own, lambda inner: Slow(inner, 0.02, most=3)) as fed:
        with pytest.raises(PartyError, match="lab/0: it is gone"):
            losses(fed, "logistic_regression", f"algorithm = 'admm', {LATE}")
        assert not [t for t in threading.enumerate() if t.name.startswith("sqlfl-step")]
        assert fed.models == ()
        kept = "SELECT count(*) FROM duckdb_tables() WHERE temporary"
        assert [con.sql(kept).fetchall() for con in (*own["bank"], *own["lab"])] == [[(0,)]] * 2


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("logistic_regression", "stragglers = '1 s'", "does not apply to algorithm 'lbfgs', only"),
        ("logistic_regression", "algorithm = 'sgd', stragglers = 30", "hint: '30 s' for seconds"),
        ("logistic_regression", "algorithm = 'sgd', stragglers = '0 s'", "or a length of time"),
        (
            "logistic_regression",
            f"algorithm = 'sgd', stragglers = '{'9' * 400} s'",
            "or a length of time",
        ),
        ("logistic_regression", "algorithm = 'sgd', stragglers = '3 parsecs'", "must be 'wait',"),
        (
            "logistic_regression",
            "algorithm = 'sgd', stragglers = '1 s', validation_fraction = 0.2, patience = 2",
            "option patience does not go with stragglers = '1 s'",
        ),
        (
            "logistic_regression",
            "algorithm = 'sgd', stragglers = '1 s', network = 'us-uk'",
            "option network does not go with stragglers",
        ),
        ("mlp_classifier", "stragglers = '1 s', dropout = 0.5", "is not built of dropout"),
    ],
)
def test_what_it_does_not_go_with(database: Open, kind: str, options: str, said: str) -> None:
    with federation(parties(database)) as fed:
        with pytest.raises(OptionError) as caught:
            losses(fed, kind, options)
        assert said in str(caught.value)
        assert fed.models == ()


def test_noise_of_features_is_for_steps_of_all(database: Open) -> None:
    private = TRAIN.replace(" FROM", " PRIVACY (epsilon = 1, delta = 1e-5) FROM")
    with federation(parties(database)) as fed:
        query = private.format("logistic_regression", f"algorithm = 'sgd', {LATE}", QUERY)
        with pytest.raises(OptionError, match="is not built where PRIVACY protects features"):
            fed.sql(query.format("y"))


def test_candidates_are_compared_without_it(database: Open) -> None:
    with federation(parties(database)) as fed:
        tune = TRAIN.replace("TRAIN", "TUNE").format(
            "logistic_regression", f"algorithm = 'sgd', epochs = [2, 3], {LATE}", QUERY.format("y")
        )
        with pytest.raises(OptionError, match="stragglers"):
            fed.sql(tune)


def test_a_union_has_nothing_to_go_on_with(database: Open) -> None:
    with federation({"bank": [database(LEFT.format(*b)) for b in BOUNDS]}) as fed:
        query = TRAIN.format(
            "logistic_regression",
            f"algorithm = 'sgd', {LATE}",
            "SELECT p.x, p.y FROM bank.people p",
        )
        with pytest.raises(Error, match="cannot go on without one of the clients: p are"):
            fed.sql(query)


def test_it_is_listed_where_it_is_given(database: Open) -> None:
    with federation(parties(database)) as fed:
        for options, there in (("stragglers = '30 s'", True), ("stragglers = 'wait'", False)):
            query = TRAIN.format(
                "logistic_regression", f"algorithm = 'sgd', {options}", QUERY.format("y")
            )
            plan = fed.explain(query)
            told = " ".join(str(plan.details).split())
            assert ("After 30 s a step goes on without late parties" in str(plan)) is there
            assert ("It takes what these have last predicted" in told) is there
            assert ("stragglers = '30 s'" in told) is there


@given(cases(), st.integers(1, 3), st.sampled_from(["sgd", "admm"]), st.integers(0, 99))
@examples(1, 30)
def test_on_random_joins_it_ends_where_the_central_one_does(
    case: Case, clients: int, algorithm: str, seed: int
) -> None:
    """Whoever is late, and whenever: the objective is that of the blocks that there are, never less
    than the least one, and half way to it at least after 80 epochs."""

    draw = random.Random(seed)

    def late(client: Client) -> float:
        return 0.006 if draw.random() < 0.2 else 0.0

    with (
        case.open(clients) as databases,
        federation(databases, lambda inner: Slow(inner, late, party=None)) as fed,
    ):
        data = trainable(case, databases)
        options = {"algorithm": algorithm, "epochs": 80, "tolerance": 0, "stragglers": "0.003 s"}
        try:
            fed.sql(case.train(**options))
        except OptionError as error:
            if "cannot go on without one of the clients" in str(error):
                reject()
            raise
        model = fed.model("m")
        best, start = data.objective(data.optimum()), data.objective(data.start())
        found = model.metrics["objective"]
        assert found >= best - 1e-6 * max(1.0, abs(best))
        assert found - best <= 0.5 * (start - best) + 1e-3 * abs(best)
        (row,) = fed.sql(f"EVALUATE MODEL m FROM ({case.query})").arrow().to_pylist()
        for name in set(row) & set(model.metrics):
            told = model.metrics[name]
            close = None if told is None else pytest.approx(told, rel=1e-4, abs=1e-6)
            assert row[name] == close, name
