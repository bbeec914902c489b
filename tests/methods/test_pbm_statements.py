"""Statements of PBM-VFL over real joins."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import stats

import sqlfl
from sqlfl.aggregation import packing
from sqlfl.base.errors import Error
from sqlfl.messages import MaskedEmbeddings
from sqlfl.messages.wire import decode
from sqlfl.party.release_guard import ReleaseGuard
from tests.conftest import Open
from tests.depth import in_turn, spread
from tests.federations import Parties, federation
from tests.test_border import assert_disclosed, tapped

ROWS = 600
FACTS = """CREATE TABLE facts AS SELECT i AS id, (hash(i, 7) % 40)::INT AS did,
    (hash(i, 9) % 30)::INT AS eid, (hash(i, 1) % 1000)::INT / 500.0 - 1 AS x,
    ((hash(i, 1) % 1000)::INT / 500.0 - 1) * 2 + (hash(i, 7) % 40)::INT % 5 - 2
      + (hash(i, 9) % 30)::INT % 3 - 1 AS y,
    hash(i, 3) % 4 = 0 AS rare FROM range({rows}) r(i) WHERE i % {clients} = {client}"""
DIMS = "CREATE TABLE dims AS SELECT i AS id, i % 5 - 2 AS w, 'k' || i % 4 AS v FROM range(40) r(i)"
MORE = "CREATE TABLE more AS SELECT i AS id, i % 3 - 1 AS u FROM range({rows}) r(i)"
QUERY = """SELECT f.x, d.w, d.v, e.u, f.y {more} FROM pa.facts f JOIN pb.dims d ON f.did = d.id
    {join} pc.more e ON f.eid = e.id"""
WITH = "algorithm = 'pbm', embedding = 4, hidden = [8], epochs = 12, batch_size = 50, seed = 1"


def parties(database: Open, clients: int = 1, more: int = 30) -> Parties:
    facts = [FACTS.format(rows=ROWS, clients=clients, client=q) for q in range(clients)]
    return {
        "pa": [database(text) for text in facts],
        "pb": [database(DIMS)],
        "pc": [database(MORE.format(rows=more))],
    }


def trained(
    own: Parties, options: str = WITH, kind: str = "mlp_regressor", join: str = "JOIN"
) -> tuple[sqlfl.Model, np.ndarray]:
    """The model, and what it predicts, by id."""
    with federation(own) as fed:
        text = QUERY.format(join=join, more="")
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH ({options}) FROM ({text})")
        found = (
            fed.sql(
                "PREDICT MODEL m ID (pa.facts.id) FROM ("
                + QUERY.format(join=join, more="").replace(", f.y", "")
                + ")"
            )
            .arrow()
            .sort_by("id")
        )
        return fed.model("m"), np.asarray(found["prediction"])


@pytest.mark.parametrize("join", ["JOIN", "LEFT JOIN"])
def test_a_model_over_a_join_is_learned_scored_and_predicts(database: Open, join: str) -> None:
    more = 30 if join == "JOIN" else 20  # a third of the facts has no partner
    model, found = trained(parties(database, more=more), join=join)
    assert model.metrics["rows"] == ROWS
    assert model.metrics["r2"] > 0.7
    assert len(found) == ROWS


def test_several_clients_of_a_table_are_one(database: Open) -> None:
    """With a seed rows are numbered by their content; batches are drawn of another order."""
    whole = (
        "algorithm = 'pbm', embedding = 4, hidden = [8], epochs = 8, batch_size = 1000, seed = 1"
    )
    one, first = trained(parties(database), whole)
    several, second = trained(parties(database, 3), whole)
    assert several.metrics["objective"] == pytest.approx(one.metrics["objective"], rel=1e-4)
    np.testing.assert_allclose(second, first, atol=1e-3)


def test_a_warm_start_goes_on(database: Open) -> None:
    with federation(parties(database)) as fed:
        text = QUERY.format(join="JOIN", more="")
        train = "TRAIN MODEL {} USING mlp_regressor TARGET y WITH ({}{}) FROM (" + text + ")"
        fed.sql(train.format("m", WITH, ""))
        fed.sql(train.format("w", WITH, ", warm_start = 'm'"))
        first, second = (fed.model(name).history["train_loss"].to_pylist() for name in "mw")
        assert second[0] < 0.5 * first[0]
        assert second[0] < 1.5 * first[-1]


def test_patience_keeps_the_best_epoch(database: Open) -> None:
    options = f"{WITH.replace('12', '60')}, validation_fraction = 0.3, patience = 2"
    model, _ = trained(parties(database), f"{options}, learning_rate = 0.1")
    losses = model.history["valid_loss"].to_pylist()
    assert model.metrics["valid_loss"] == pytest.approx(min(losses))
    assert len(losses) < 60


def test_classes_and_weights(database: Open) -> None:
    text = QUERY.format(join="JOIN", more="").replace("f.y", "f.y > 1 AS big")
    with federation(parties(database)) as fed:
        fed.sql(
            f"TRAIN MODEL m USING mlp_classifier TARGET big WITH ({WITH}, "
            f"class_weight = 'balanced') FROM ({text})"
        )
        assert fed.model("m").metrics["auc"] > 0.9


def test_the_border_sees_masked_numbers_alone(database: Open) -> None:
    with federation(parties(database, 2)) as fed:
        text = QUERY.format(join="JOIN", more="")
        options = WITH.replace("epochs = 12", "epochs = 1")
        fed.sql(f"TRAIN MODEL m USING mlp_regressor TARGET y WITH ({options}) FROM ({text})")
        kinds = {row["kind"] for row in fed.audit().arrow().to_pylist()}
    assert "masked_embeddings" in kinds
    assert not kinds & {"predictions", "exact_predictions", "embeddings"}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": (
        "option algorithm must be another one for linear_regression, got 'pbm'",
        {"kind": "linear_regression", "options": "algorithm = 'pbm'"},
    ),
    "union": (
        "option union does not apply to algorithm 'pbm'",
        {"options": "algorithm = 'pbm', union = 'secure'"},
    ),
    "no rate": (
        "option learning_rate must be a number greater than 0",
        {"options": "algorithm = 'pbm', learning_rate = 0"},
    ),
}


@pytest.mark.parametrize(("message", "given"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused(
    database: Open, message: str, given: dict[str, Any]
) -> None:
    with pytest.raises(Error, match=message.replace("(", r"\(")):
        trained(parties(database), **given)


def test_one_party_has_nothing_to_sum_with(database: Open) -> None:
    con = database(FACTS.format(rows=ROWS, clients=1, client=0), DIMS)
    with (
        federation({"pa": [con]}) as fed,
        pytest.raises(Error, match="needs features of two parties or more, and all are of pa"),
    ):
        fed.sql(
            f"TRAIN MODEL m USING mlp_regressor TARGET y WITH ({WITH}) FROM (SELECT f.x, d.w, f.y "
            "FROM pa.facts f JOIN pa.dims d ON f.did = d.id)"
        )


def test_parties_that_combine_are_refused(database: Open) -> None:
    with sqlfl.connect(progress=False) as fed:
        own = parties(database, 2)
        fed.attach("pa", own["pa"], combine=True)
        fed.attach("pb", own["pb"][0])
        fed.attach("pc", own["pc"][0])
        text = QUERY.format(join="JOIN", more="")
        with pytest.raises(Error, match="not built for parties that combine their clients: pa"):
            fed.sql(f"TRAIN MODEL m USING mlp_regressor TARGET y WITH ({WITH}) FROM ({text})")


def test_nothing_is_left_behind_where_a_run_fails(database: Open) -> None:
    own = parties(database)

    def tables(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
        return con.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
        ).fetchall()

    before = [tables(con) for clients in own.values() for con in clients]
    with pytest.raises(Error, match="diverge"):
        trained(own, f"{WITH.replace('12', '300')}, learning_rate = 1e12, optimizer = 'plain'")
    assert [tables(con) for clients in own.values() for con in clients] == before


# -- with PRIVACY ----------------------------------------------------------------------------------

BOUNDS = (
    "feature_bounds = {'x': [-1, 1], 'w': [-2, 2], 'v': ['k0', 'k1', 'k2', 'k3'], 'u': [-1, 1]}"
)
CLAUSES = {
    "draws alone": f"bins = 8, theta = 0.2, delta = 1e-5, {BOUNDS}",
    "noised gradients": f"bins = 8, theta = 0.2, noise_multiplier = 1, delta = 1e-5, {BOUNDS}",
    "a budget": f"epsilon = 300, delta = 1e-5, {BOUNDS}",
    "noised statistics": "bins = 8, theta = 0.2, noise_multiplier = 1, delta = 1e-5, "
    "feature_bounds = {'x': [-1, 1], 'w': [-2, 2], 'u': [-1, 1]}",
}


@pytest.mark.parametrize(("name", "clients"), in_turn(CLAUSES, (1, 3)))
def test_private_traffic_is_what_explain_says(database: Open, name: str, clients: int) -> None:
    clause = CLAUSES[name]
    own = parties(database, clients)
    options = "algorithm = 'pbm', embedding = 3, hidden = [4], epochs = 2, batch_size = "
    options += "100" if clients == 1 else "1000, validation_fraction = 0.2"
    text = QUERY.format(join="JOIN", more="")
    statement = (
        f"TRAIN MODEL m USING mlp_regressor TARGET y WITH ({options}) PRIVACY ({clause}) "
        f"FROM ({text})"
    )
    with tapped(own) as (fed, tap):
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        assert_disclosed(plan, recorded, own, epochs=2)
    sent = [decode(item.data) for item in recorded]
    masked = [message for message in sent if isinstance(message, MaskedEmbeddings)]
    numbers = [packing.unpack(m.packed.tobytes(), m.width, m.numbers) for m in masked]
    counts = np.bincount(np.concatenate(numbers) % 8, minlength=8)  # of 5 bits or more each
    assert stats.chisquare(counts).pvalue > 1e-5


@pytest.mark.parametrize("clause", spread(CLAUSES.values(), 1))
def test_a_party_that_draws_otherwise_is_found_out(
    database: Open, clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells what it did: that less was drawn, or more often."""
    honest = ReleaseGuard.embeddings

    def twice(self: ReleaseGuard, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        honest(self, values, rows)
        return honest(self, values, rows)

    monkeypatch.setattr(ReleaseGuard, "embeddings", twice)
    options = "algorithm = 'pbm', embedding = 3, hidden = [4], epochs = 2, batch_size = 300"
    text = QUERY.format(join="JOIN", more="")
    with federation(parties(database)) as fed:
        with pytest.raises(Error, match=r"tells of other releases than were planned: .*draws"):
            fed.sql(
                f"TRAIN MODEL m USING mlp_regressor TARGET y WITH ({options}) PRIVACY ({clause}) "
                f"FROM ({text})"
            )
        assert fed.sql("SHOW MODELS").arrow().num_rows == 0
