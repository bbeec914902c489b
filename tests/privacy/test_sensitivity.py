"""One row changes, and all that is seen moves by no more than the account says: over
configurations, end to end, and nothing else moves at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.privacy import events as of
from sqlfl.privacy.accountant import epsilon_of, squared_mu
from sqlfl.privacy.events import Gaussian, PoissonBinomial, Selection
from tests.conftest import Open
from tests.depth import spread
from tests.federations import Parties
from tests.privacy.replay import (
    COORDINATOR,
    Stage,
    World,
    draws_moved,
    moved,
    scores_moved,
)

CHANGES = ("orders", "people")
PARTIES = ("shop", "crm")
ORDER, PERSON = 13, 5
"""The ids of the rows that change. In each case the order is among those that count: none that is
held out, or beyond a fan-out."""
BOUNDS = "'amount': [0, 10], 'pieces': [0, 4], 'visits': [0, 3]"
LISTED = BOUNDS + ", 'region': ['north', 'south', 'west']"
QUERY = (
    "SELECT o.amount, o.pieces, p.visits, p.region, o.late FROM shop.orders o "
    "LEFT JOIN crm.people p ON o.customer = p.id"
)


def tables(database: Open, clients: int, change: str | None) -> Parties:
    """The shop's and the CRM's, divided among `clients` databases each; one row of `change` has
    other features. One customer of the shop's is not among the CRM's people."""
    order, person = change == "orders", change == "people"
    made = {
        ("shop", "orders"): (
            "CREATE TABLE orders AS SELECT i AS id, i % 12 AS customer, "
            f"CASE WHEN {order} AND i = {ORDER} THEN 10.0 ELSE (i * 37) % 11 END AS amount, "
            f"CASE WHEN {order} AND i = {ORDER} THEN NULL ELSE (i * 13) % 5 END AS pieces, "
            "((i % 12) * 7 + (i * 37) % 11) % 9 > 3 AS late FROM range(60) r(i)"
        ),
        ("crm", "people"): (
            "CREATE TABLE people AS SELECT i AS id, "
            f"CASE WHEN {person} AND i = {PERSON} THEN 1e300 ELSE (i * 5) % 4 END AS visits, "
            f"CASE WHEN {person} AND i = {PERSON} THEN 'west' "
            "ELSE ['north', 'south', 'west'][1 + i % 3] END AS region "
            "FROM range(12) r(i) WHERE i <> 9"
        ),
    }
    found: Parties = {}
    for (party, table), text in made.items():
        cons = [database(text) for _ in range(clients)]
        for q, con in enumerate(cons):
            con.execute(f"DELETE FROM {table} WHERE (id // 2) % {clients} <> {q}")
        found[party] = cons
    return found


def statement(privacy: str, options: str, kind: str) -> str:
    return (
        f"TRAIN MODEL m USING {kind} TARGET late WITH ({options}) PRIVACY "
        f"(noise_multiplier = 0.5, delta = 1e-3, {privacy}) FROM ({QUERY})"
    )


def worlds(
    monkeypatch: pytest.MonkeyPatch,
    database: Open,
    clients: int,
    text: str,
    changes: Sequence[str] = CHANGES,
) -> tuple[World, dict[str, World]]:
    """The world as it is, and those in which a row of a table is another."""
    stage = Stage(monkeypatch)
    one = stage.run(tables(database, clients, None), text)
    return one, {
        change: stage.run(tables(database, clients, change), text, one) for change in changes
    }


LOGISTIC, MLP = "logistic_regression", "mlp_classifier"
LINEAR = "linear_regression"
GIVEN = f"feature_bounds = {{{LISTED}}}"
FOUND = f"feature_bounds = {{{BOUNDS}}}"
GAUSSIAN = "predictions = 'gaussian', "
NOISED = (
    (GIVEN, "epochs = 3, learning_rate = 20", LOGISTIC, 1),
    (FOUND + ", clip = 0.3", "epochs = 2, batch_size = 30, optimizer = 'adam'", LOGISTIC, 2),
    (
        GIVEN + ", max_fan_out = 4, label_epsilon = 1",
        "epochs = 2, validation_fraction = 0.2, class_weight = 'balanced', patience = 1",
        LOGISTIC,
        1,
    ),
    (FOUND + ", clip = 0.3", "algorithm = 'admm', epochs = 2", LOGISTIC, 2),
    (GIVEN, "algorithm = 'admm', epochs = 2, union = 'consensus', inner_rounds = 2", LOGISTIC, 2),
    (
        FOUND + ", clip = 0.3",
        "epochs = 2, hidden = [3], head = 'linear', embedding = 2, batch_size = 40, dropout = 0.3",
        MLP,
        1,
    ),
    (
        GIVEN,
        "algorithm = 'admm', epochs = 2, hidden = [3], inner_rounds = 2, local_epochs = 4, "
        "batch_size = 15",
        MLP,
        2,
    ),
)
EXACT = (
    (FOUND + ", clip = 0.3", "epochs = 2, batch_size = 30, optimizer = 'momentum'", LOGISTIC, 2),
    (GIVEN + ", max_fan_out = 4", "epochs = 2, hidden = [3], dropout = 0.2", MLP, 1),
)


@pytest.mark.parametrize(("privacy", "options", "kind", "clients"), spread(NOISED, 4))
def test_noised_predictions_leave_no_other_way(
    privacy: str,
    options: str,
    kind: str,
    clients: int,
    database: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every message, the history and the report are of noised releases and of the join alone."""
    text = statement(GAUSSIAN + privacy, options, kind)
    one, others = worlds(monkeypatch, database, clients, text)
    for slot, change in enumerate(CHANGES):
        other = others[change]
        assert_accounted(one, other, slot, {PARTIES[slot]})
        assert_same_traffic(one, other)
        assert one.history is not None
        assert one.history.equals(other.history)
        assert one.metrics == other.metrics
        assert one.report == other.report
        assert_same_model(one, other)


DRAWS = "bins = 4, theta = 0.2, "
PBM = "algorithm = 'pbm', epochs = 2, hidden = [3], embedding = 2, batch_size = 15"


def drawn_of(one: World, slot: int) -> int:
    """Numbers that the account says are drawn of a row, at most."""
    assert one.calibration is not None
    (event,) = (e for e in one.calibration.events[slot] if isinstance(e, PoissonBinomial))
    return event.count


@pytest.mark.parametrize(
    ("privacy", "options", "clients"),
    [
        (GIVEN, PBM, 1),
        (FOUND + ", clip = 0.3", f"{PBM}, optimizer = 'plain'", 2),
        (f"{GIVEN}, max_fan_out = 4, label_epsilon = 1", f"{PBM}, validation_fraction = 0.2", 2),
        (GIVEN, PBM.replace("embedding = 2", "head = 'none', dropout = 0.3"), 1),
    ],
)
def test_a_row_acts_through_its_own_draws_and_noised_gradients_only(
    privacy: str, options: str, clients: int, database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = statement(DRAWS + privacy, options, MLP)
    one, others = worlds(monkeypatch, database, clients, text)
    for slot, change in enumerate(CHANGES):
        other = others[change]
        assert_accounted(one, other, slot, {PARTIES[slot]})
        moves = draws_moved(one, other)
        assert 0 < moves[PARTIES[slot]] <= drawn_of(one, slot)
        assert moves[PARTIES[1 - slot]] == 0
        assert_same_traffic(one, other)
        assert one.history is not None
        assert one.history.equals(other.history)
        assert one.report == other.report
        assert_same_model(one, other)


BOUNDED = "'region': ["
LASSO = "radius = 2, sketch = 8, iterations = 12, sample = 1"
NUMBERS = QUERY.replace("o.late", "o.late::DOUBLE AS late")


@pytest.mark.parametrize(
    ("privacy", "options"),
    [
        (GIVEN, LASSO),
        (FOUND + ", mechanism = 'laplace', feature_bound = 0.3", LASSO.replace("= 1", "= 2")),
        (f"{GIVEN}, max_fan_out = 4, label_bound = 0.2", f"{LASSO}, step = 'search'"),
        (f"{GIVEN}, label_epsilon = 2, label_bounds = [0, 1]", f"{LASSO}, step = 'fixed'"),
    ],
)
def test_a_row_acts_through_its_own_choices_and_columns_only(
    privacy: str, options: str, database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        f"TRAIN MODEL m USING lasso TARGET late WITH ({options}) PRIVACY "
        f"(epsilon = 20, delta = 1e-3, {privacy}) FROM ({NUMBERS})"
    )
    one, others = worlds(monkeypatch, database, 1, text)
    assert one.calibration is not None
    for slot, change in enumerate(CHANGES):
        other = others[change]
        assert_accounted(one, other, slot, {PARTIES[slot]})
        moves = scores_moved(one, other)
        (event,) = (e for e in one.calibration.events[slot] if isinstance(e, Selection))
        assert 0.0 < moves[PARTIES[slot]] <= event.epsilon
        (told,) = (e for e in one.calibration.events[slot] if e.what == of.COLUMNS)
        # of two or four columns; categories that are found may be more
        assert told.count == ((2, 4)[slot] if BOUNDED in privacy else event.count)
        assert moves[PARTIES[1 - slot]] == 0.0
        assert_same_traffic(one, other)
        assert one.history is not None
        assert one.history.equals(other.history)
        assert one.metrics == other.metrics
        assert one.report == other.report
        assert_same_model(one, other)


MOMENTS = "algorithm = 'moments'"
CLASSES = QUERY.replace("o.late", "['low', 'mid', 'high'][1 + o.late::INT + (o.id % 2)] AS late")


@pytest.mark.parametrize(
    ("privacy", "options", "kind", "query", "clients"),
    [
        (GIVEN, MOMENTS, LOGISTIC, QUERY, 1),
        (f"{FOUND}, feature_bound = 0.7", MOMENTS, LOGISTIC, QUERY, 2),
        (GIVEN, f"{MOMENTS}, rounds = 1", LOGISTIC, QUERY, 1),
        (f"{GIVEN}, label_epsilon = 2, label_bounds = [0, 1]", MOMENTS, LINEAR, NUMBERS, 2),
        (GIVEN, f"{MOMENTS}, class_weight = 'balanced'", LOGISTIC, QUERY, 1),
        (GIVEN, MOMENTS, "softmax_regression", CLASSES, 1),
    ],
)
def test_a_row_acts_through_its_own_moments_only(
    privacy: str,
    options: str,
    kind: str,
    query: str,
    clients: int,
    database: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every message, the history and the report are of noised releases and of the join alone, in
    two rounds, which are the default here, as in one.
    """
    text = (
        f"TRAIN MODEL m USING {kind} TARGET late WITH ({options}) PRIVACY "
        f"(epsilon = 4, delta = 1e-3, {privacy}) FROM ({query})"
    )
    one, others = worlds(monkeypatch, database, clients, text)
    assert one.calibration is not None
    for slot, change in enumerate(CHANGES):
        other = others[change]
        assert_accounted(one, other, slot, {PARTIES[slot]})
        released = {event.what for event in one.calibration.events[slot]}
        assert (of.PREDICTIONS in released) == (slot == 0 and "rounds = 1" not in options)
        assert epsilon_of(one.calibration.events[slot], 1e-3) == pytest.approx(4.0, rel=1e-4)
        assert_same_traffic(one, other)
        assert one.history is not None
        assert one.history.equals(other.history)
        assert one.metrics == other.metrics
        assert one.report == other.report
        assert_same_model(one, other)


def test_beside_exact_gradients_draws_of_other_rows_move_too(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the sums that the row is in: so there is no ε of a run."""
    text = statement(DRAWS + GIVEN, PBM, MLP).replace("noise_multiplier = 0.5, ", "")
    one, others = worlds(monkeypatch, database, 1, text)
    for slot, change in enumerate(CHANGES):
        moves = draws_moved(one, others[change])
        assert moves[PARTIES[slot]] > 3 * drawn_of(one, slot)
        assert "Features: none over the run" in one.report


@pytest.mark.parametrize(("privacy", "options", "kind", "clients"), EXACT)
def test_exact_predictions_reach_the_parameters_by_noised_sums_only(
    privacy: str,
    options: str,
    kind: str,
    clients: int,
    database: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = statement(privacy, options, kind)
    one, others = worlds(monkeypatch, database, clients, text)
    for slot, change in enumerate(CHANGES):
        other = others[change]
        assert_accounted(one, other, slot, {*PARTIES, COORDINATOR})
        assert one.history is not None
        assert not one.history.equals(other.history)  # none is claimed of it
        assert one.report == other.report
        assert_same_model(one, other)


def assert_accounted(one: World, other: World, slot: int, movable: set[str]) -> None:
    """Each release moves by what its event says at most; releases of others do not move."""
    assert one.calibration is not None
    events: dict[str, list[Gaussian]] = {}
    for event in one.calibration.events[slot]:
        if isinstance(event, Gaussian):
            events.setdefault(event.what, []).append(event)
    exact = COORDINATOR in movable
    total = 0.0
    for (who, what), squares in moved(one, other, summed=exact).items():
        if who not in movable:
            assert not squares.any(), f"{what} of {who}"
            continue
        if who != PARTIES[slot] and who != COORDINATOR:
            what = of.OTHERS.format(1 - slot)
        (event,) = events[what]
        once = what == of.STATISTICS  # several numbers make one release
        assert (squares.sum() if once else squares.max()) * event.multiplier**2 <= 1.0, what
        assert squares.sum() * event.multiplier**2 <= event.count, what
        total += float(squares.sum())
    assert 0.0 < total <= squared_mu(one.calibration.events[slot])


def assert_same_traffic(one: World, other: World) -> None:
    assert len(one.messages) == len(other.messages)
    for mine, theirs in zip(one.messages, other.messages, strict=True):
        assert mine == theirs


def assert_same_model(one: World, other: World) -> None:
    assert one.encodings == other.encodings
    assert one.parameters.keys() == other.parameters.keys()
    for who, arrays in one.parameters.items():
        for mine, theirs in zip(arrays, other.parameters[who], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def unclipped(guard: ReleaseGuard, norms: np.ndarray) -> np.ndarray:
    return np.ones(len(norms))


def exact(guard: ReleaseGuard, values: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    counted(guard, values, rows)
    return values


counted = ReleaseGuard.predictions


@pytest.mark.parametrize(
    ("method", "broken", "check"),
    [
        ("factors", unclipped, lambda one, other: assert_accounted(one, other, 1, {"crm"})),
        ("predictions", exact, assert_same_traffic),
    ],
)
def test_broken_builds_are_caught(
    method: str,
    broken: object,
    check: Callable[[World, World], None],
    database: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReleaseGuard, method, broken)
    text = statement(f"{GAUSSIAN}{GIVEN}, clip = 0.01", "epochs = 2", LOGISTIC)
    one, others = worlds(monkeypatch, database, 1, text, ["people"])
    with pytest.raises(AssertionError):
        check(one, others["people"])
