"""PREDICT, EVALUATE and INTO with towers and head; training goes on from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import sqlfl
from tests.conftest import Open
from tests.depth import combinations

FIELDS = (
    "CREATE TABLE fields AS SELECT i AS id, i % 9 AS farm, sin(i * 1.7) AS wet, "
    "['sand', 'clay', NULL][1 + i % 3] AS soil, (i * 7) % 11 / 3.0 AS yield, "
    "['low', 'mid', 'high'][1 + (i * 5) % 3] AS class FROM range(60) r(i) WHERE i % 2 = "
)
FARMS = (
    "CREATE TABLE farms AS SELECT i AS farm, i * i AS size, 'f' || i % 4 AS kind FROM range(9) r(i)"
)
QUERY = (
    "FROM (SELECT f.wet, f.soil, g.size, g.kind, f.{} FROM land.fields f JOIN owners.farms g "
    "USING (farm))"
)
HEAD = ", head = 'linear', embedding = 3"


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    with sqlfl.connect(progress=False) as found:
        found.attach("land", [database(f"{FIELDS}{part}") for part in (0, 1)])
        found.attach("owners", database(FARMS))
        yield found


def train(fed: sqlfl.Federation, kind: str, target: str, more: str, name: str = "m") -> str:
    """The query that the model was trained on."""
    query = QUERY.format(target)
    fed.sql(
        f"TRAIN MODEL {name} USING {kind} TARGET {target} "
        f"WITH (hidden = [5], seed = 1{more}) {query}"
    )
    return query


ALGORITHMS = (", epochs = 15", ", algorithm = 'admm', epochs = 3, inner_rounds = 2")


@pytest.mark.parametrize(
    ("kind", "algorithm", "head"),
    combinations(("mlp_regressor", "mlp_classifier"), ALGORITHMS, ("", HEAD)),
)
def test_scores_of_the_training_rows_are_those_of_training(
    fed: sqlfl.Federation, kind: str, algorithm: str, head: str
) -> None:
    target = "yield" if kind == "mlp_regressor" else "class"
    query = train(fed, kind, target, algorithm + head)
    model = fed.model("m")
    outputs = 1 if target == "yield" else 3
    assert (model.head is None) == (head == "")
    assert model.head is None or model.head.shape == (3, outputs)
    assert model.intercept.shape == (outputs,)
    row = fed.sql(f"EVALUATE MODEL m {query}").arrow().to_pylist()[0]
    assert row["rows"] == 60
    assert row["loss"] == pytest.approx(model.metrics["loss"], rel=1e-5)
    metric = "rmse" if outputs == 1 else "accuracy"
    assert row[metric] == pytest.approx(model.metrics[metric], rel=1e-5)
    if outputs == 3:
        table = fed.sql(f"PREDICT MODEL m {query}").arrow()
        chances = np.column_stack([table[f"probability_{c}"] for c in model.classes])
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        names = np.array(model.classes)[chances.argmax(axis=1)]
        assert table["prediction"].to_pylist() == names.tolist()


def test_into_has_what_predict_says(fed: sqlfl.Federation) -> None:
    query = train(fed, "mlp_classifier", "class", f", epochs = 4{HEAD}")
    predicted = fed.sql(f"PREDICT MODEL m ID (land.fields.id) {query}").arrow()
    fed.sql(f"PREDICT MODEL m ID (land.fields.id) {query} INTO land.scored")
    found = []
    for connection in (fed._servers[client] for client in fed._servers if client.party == "land"):
        found += connection._cursors._con.execute("SELECT * FROM scored").fetchall()
    columns = ["id", "prediction", *(f"probability_{c}" for c in fed.model("m").classes)]
    expected = sorted(tuple(row[c] for c in columns) for row in predicted.to_pylist())
    for mine, theirs in zip(sorted(found), expected, strict=True):
        assert mine[:2] == theirs[:2]
        assert mine[2:] == pytest.approx(theirs[2:], rel=1e-9)


@pytest.mark.parametrize("head", ["", HEAD], ids=["towers", "head"])
@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_training_goes_on_from_a_model(fed: sqlfl.Federation, algorithm: str, head: str) -> None:
    train(fed, "mlp_regressor", "yield", f", epochs = 30{head}")
    before = fed.model("m")
    more = f", algorithm = '{algorithm}', epochs = 1, learning_rate = 1e-12, warm_start = 'm'{head}"
    train(fed, "mlp_regressor", "yield", more, "again")
    after = fed.model("again")
    # a better intercept, and in admm a better head too, for the same towers
    assert after.metrics["objective"] <= before.metrics["objective"] * (1.0 + 1e-6)
    assert after.metrics["objective"] >= before.metrics["objective"] * 0.9
    if before.head is not None and algorithm == "sgd":
        np.testing.assert_allclose(after.head, before.head, atol=1e-9)


def test_the_card_names_the_head(fed: sqlfl.Federation) -> None:
    train(fed, "mlp_regressor", "yield", f", epochs = 1{HEAD}")
    facts = dict(fed.sql("DESCRIBE MODEL m").fetchall())
    assert facts["head"] == "linear, 3 values of each joined row, kept by the coordinator"


def test_patience_keeps_the_head_of_the_best_epoch(fed: sqlfl.Federation) -> None:
    more = f", epochs = 200, learning_rate = 0.2, validation_fraction = 0.4, patience = 4{HEAD}"
    query = train(fed, "mlp_regressor", "yield", more)
    model = fed.model("m")
    losses = model.history["valid_loss"].to_pylist()
    assert model.stopped_early
    assert model.epoch == 1 + int(np.argmin(losses)) < len(losses)
    kept = {k: v for k, v in model.metrics.items() if k.startswith("valid")}
    assert kept["valid_loss"] == pytest.approx(min(losses))
    # the loss over all rows is that of both parts: only the kept epoch's head and blocks give it
    row = fed.sql(f"EVALUATE MODEL m {query}").arrow().to_pylist()[0]
    parts = model.metrics["loss"] * model.metrics["rows"] + min(losses) * kept["valid_rows"]
    assert row["loss"] * row["rows"] == pytest.approx(parts, rel=1e-5)


def test_runs_without_a_seed_differ_and_with_one_repeat(fed: sqlfl.Federation) -> None:
    query = QUERY.format("yield")
    found = []
    for seed in ("", "", ", seed = 7", ", seed = 7"):
        fed.sql(
            "TRAIN OR REPLACE MODEL m USING mlp_regressor TARGET yield "
            f"WITH (hidden = [5], epochs = 3, batch_size = 20{seed}) {query}"
        )
        found.append(fed.model("m").metrics["objective"])
    assert abs(found[0] - found[1]) > 1e-6
    assert found[2] == found[3]
