"""PRIVACY end to end: what is clipped equals a central computation, and only what EXPLAIN says
leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import Error, PartyError
from sqlfl.contract.configuration import Configuration
from sqlfl.messages import Labels, Predictions
from sqlfl.messages.wire import decode
from sqlfl.party.release_guard import ReleaseGuard
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.federations import assert_predictions_equal, federation, trainable
from tests.oracle.private import clipped_steps, tables_of
from tests.strategies import BOUNDED, LINEAR, Case, cases
from tests.test_border import assert_disclosed, tapped

ENGINES = st.sampled_from(("sql", "arrays"))
CLIENTS = st.integers(1, 3)
FAINT = 1e-9
"""A noise multiplier whose noise of gradients no tolerance here can see."""
FREE = "prediction_clip = 1e4, prediction_share = 0.999999"
"""Predictions that are not clipped. Beside FAINT their noise is some 10⁻⁸: with the default share
it is 10⁻⁵, by which losses of some thousandths differ visibly."""


def private(statement: str, clause: str) -> str:
    return statement.replace(" FROM (\n", f" PRIVACY ({clause}) FROM (\n", 1)


def blocks_of(fed: sqlfl.Federation) -> dict[int, tuple[str, ...]]:
    return {b.slot: tuple(name for name, _, _ in b.features) for b in fed.model("m").blocks}


@given(
    cases(kinds=BOUNDED, unions=False, max_slots=3),
    CLIENTS,
    ENGINES,
    st.sampled_from((0.05, 3.0, None)),
    st.sampled_from(("none", "gaussian")),
)
@examples(1, 40)
def test_gradients_are_clipped_per_table_row(
    case: Case, clients: int, engine: str, clip: float | None, predictions: str
) -> None:
    """Two steps without noise worth the name, beside the same on the materialised join."""
    rate = 0.3
    clause = f"noise_multiplier = {FAINT}, statistics = 'none', predictions = '{predictions}'"
    clause += "" if clip is None else f", clip = {clip}"
    clause += f", {FREE}" if predictions == "gaussian" else ""
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases)
        options = {"algorithm": "sgd", "epochs": 2, "learning_rate": rate, "engine": engine}
        fed.sql(private(case.train(**options), clause))
        tables = tables_of(blocks_of(fed), case.row_ids)
        noised = predictions == "gaussian"
        stepped = clipped_steps(data, tables, 2, rate, clip, intercept=not noised)
        assert fed.model("m").metrics["objective"] == pytest.approx(
            data.objective(stepped), rel=1e-4, abs=1e-6
        )
        assert_predictions_equal(case, databases, data, stepped, fed.sql(case.predict()), atol=1e-4)


@given(cases(kinds=BOUNDED, unions=False, max_slots=3), CLIENTS, ENGINES)
@examples(1)
def test_hardly_noised_labels_are_the_labels(case: Case, clients: int, engine: str) -> None:
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases, 1e-2)
        if case.kind == LINEAR:
            clause = "label_epsilon = 1e9, label_bounds = [-50, 50]"
        else:
            listed = ", ".join(f"'{_text(name)}'" for name in data.classes)
            clause = f"label_epsilon = 60, label_classes = [{listed}]"
            if any(isinstance(name, bool) for name in data.classes):
                clause = "label_epsilon = 60"
        statement = case.train(engine=engine, l2=1e-2, epochs=300)
        fed.sql(private(statement, clause))
        assert fed.model("m").metrics["objective"] == pytest.approx(
            data.objective(data.optimum()), rel=1e-4, abs=1e-6
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


SHOP = (
    "CREATE TABLE orders AS SELECT i AS id, i % 30 AS customer, (i * 37) % 11 AS amount, "
    "(i * 13) % 5 AS pieces, ((i % 30) * 7 + (i * 37) % 11) % 9 > 3 AS late FROM range(240) r(i)"
)
PEOPLE = (
    "CREATE TABLE people AS SELECT i AS id, (i * 5) % 4 AS visits, "
    "['north', 'south', 'west'][1 + i % 3] AS region FROM range(30) r(i)"
)
QUERY = (
    "SELECT o.amount, o.pieces, p.visits, p.region, o.late FROM shop.orders o "
    "JOIN crm.people p ON o.customer = p.id"
)
BOUNDS = (
    "feature_bounds = {'amount': [0, 10], 'pieces': [0, 4], 'visits': [0, 3], "
    "'region': ['north', 'south', 'west']}"
)
NOISED = "feature_bounds = {'amount': [0, 10], 'pieces': [0, 4], 'visits': [0, 3]}"


def statement(privacy: str, options: str = "", kind: str = "logistic_regression") -> str:
    clause = f"WITH ({options})" if options else ""
    return (
        f"TRAIN OR REPLACE MODEL m USING {kind} TARGET late {clause} PRIVACY ({privacy}) "
        f"FROM ({QUERY})"
    )


def shop(database: Open, clients: int = 1) -> dict[str, list[object]]:
    """The shop's and the CRM's rows, divided among `clients` databases each."""
    parties: dict[str, list[object]] = {"shop": [], "crm": []}
    for q in range(clients):
        for party, table, made in (("shop", "orders", SHOP), ("crm", "people", PEOPLE)):
            con = database(made)
            con.execute(f"DELETE FROM {table} WHERE id % {clients} <> {q}")
            parties[party].append(con)
    return parties


FULL = "epsilon = 2, delta = 1e-5, predictions = 'gaussian', " + BOUNDS
CONFIGURATIONS = (
    (FULL, "epochs = 3", "logistic_regression"),
    (FULL + ", label_epsilon = 1", "epochs = 3", "softmax_regression"),
    (FULL, "epochs = 3, batch_size = 100", "logistic_regression"),
    ("epsilon = 2, predictions = 'gaussian', " + NOISED, "epochs = 3", "logistic_regression"),
    ("epsilon = 900, statistics = 'none'", "epochs = 2", "logistic_regression"),
    ("label_epsilon = 1, label_mechanism = 'laplace'", "epochs = 4", "logistic_regression"),
    (FULL, "algorithm = 'admm', epochs = 3", "logistic_regression"),
    (
        FULL,
        "algorithm = 'admm', union = 'consensus', inner_rounds = 2, epochs = 3",
        "logistic_regression",
    ),
    (FULL, "epochs = 3, hidden = [3]", "mlp_classifier"),
    (FULL, "algorithm = 'admm', epochs = 2, hidden = [3], inner_rounds = 2", "mlp_classifier"),
)


@pytest.mark.parametrize(
    ("privacy", "options", "kind", "clients"),
    [(*own, clients) for own, clients in in_turn(CONFIGURATIONS, (1, 2))],
)
def test_traffic_is_what_explain_says(
    privacy: str, options: str, kind: str, clients: int, database: Open
) -> None:
    parties = shop(database, clients)
    text = statement(privacy, options, kind)
    epochs = int(options.split("epochs = ")[1].split(",")[0])
    outputs = 1 if kind == "logistic_regression" else 2
    with tapped(parties) as (fed, tap):  # type: ignore[arg-type]
        plan = fed.explain(text)
        with tap.taken() as recorded:
            fed.sql(text)
        if privacy.startswith("label"):
            epochs = fed.model("m").history.num_rows
        assert_disclosed(plan, recorded, parties, epochs=epochs, outputs=outputs)  # type: ignore[arg-type]


def test_what_the_coordinator_gets_is_noised(database: Open) -> None:
    """Labels are flipped as often as said, and predictions are far from functions of the rows."""
    parties = shop(database)
    with tapped(parties) as (fed, tap):  # type: ignore[arg-type]
        with tap.taken() as recorded:
            fed.sql(statement(FULL + ", label_epsilon = 1", "epochs = 2"))
        messages = [decode(item.data) for item in recorded]
        model = fed.model("m")
    labels = next(m for m in messages if isinstance(m, Labels))
    assert labels.classes == ("false", "true")
    late = [m for m in messages if isinstance(m, Predictions)]
    assert late
    for message in late:
        rows = message.values[:, 0]
        # rows with equal columns differ, of which there are 55 at most; some meet as float32
        assert len(np.unique(rows)) > 0.9 * len(rows)
    assert "2" in str(model.privacy)
    assert model.metrics["rows"] == 240


def test_noised_labels_are_those_of_the_run_before(database: Open) -> None:
    found = []
    parties = shop(database)
    with tapped(parties) as (fed, tap):  # type: ignore[arg-type]
        for _ in range(2):
            with tap.taken() as recorded:
                fed.sql(statement("label_epsilon = 0.5", "epochs = 1"))
            messages = [decode(item.data) for item in recorded]
            codes = next(m.codes for m in messages if isinstance(m, Labels))
            found.append(int(codes.sum()))
            metrics = fed.model("m").metrics
            found.append(metrics["objective"])
    assert found[0] == found[2]
    assert found[1] == pytest.approx(found[3], rel=1e-6)


@pytest.mark.parametrize(
    ("clause", "options", "text"),
    [
        ("epsilon = 1e-7, predictions = 'gaussian', " + BOUNDS, "epochs = 1", "epsilon"),
        ("epsilon = 1, delta = 0.01, predictions = 'gaussian', " + BOUNDS, "", "delta"),
    ],
)
def test_an_impossible_budget_is_refused_before_anything_leaves(
    clause: str, options: str, text: str, database: Open
) -> None:
    parties = shop(database)
    with tapped(parties) as (fed, tap):  # type: ignore[arg-type]
        with tap.taken() as recorded, pytest.raises(Error, match=text):
            fed.sql(statement(clause, options))
        up = {decode(item.data).kind for item in recorded if item.direction == "up"}
        assert up <= {"tables", "columns", "failure", "ready", "prepared"}
        with pytest.raises(Error, match="no model"):
            fed.model("m")


def test_a_client_that_releases_more_than_planned_is_noticed(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model is kept, and the account is not quietly another."""
    planned = ReleaseGuard.counts
    assert isinstance(planned, property)
    found = planned.fget
    assert found is not None
    monkeypatch.setattr(ReleaseGuard, "counts", property(lambda self: (99, *found(self)[1:])))
    with federation(shop(database)) as fed:  # type: ignore[arg-type]
        with pytest.raises(PartyError, match="99"):
            fed.sql(statement(FULL, "epochs = 2"))
        with pytest.raises(Error, match="no model"):
            fed.model("m")


def test_a_client_that_is_not_told_of_its_noise_does_not_start(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client was told of the slot's privacy before holds."""
    to_json = Configuration.to_json
    monkeypatch.setattr(Configuration, "to_json", lambda own: to_json(replace(own, privacy=None)))
    parties = shop(database)
    with tapped(parties) as (fed, tap):  # type: ignore[arg-type]
        with tap.taken() as recorded, pytest.raises(Error, match="other noise"):
            fed.sql(statement(FULL, "epochs = 2"))
        up = {decode(item.data).kind for item in recorded if item.direction == "up"}
        assert not up & {"predictions", "partial_gradient", "gram"}
