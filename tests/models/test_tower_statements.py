"""Neural towers: training in the federation equals torch on the materialised join."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import PlanError
from sqlfl.udfs.blocks.register import register
from tests import oracle
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.federations import Parties, assert_close, federation, probabilities
from tests.oracle.neural import CentralNetwork, Start
from tests.strategies import BOUNDED, LINEAR, SOFTMAX, Case, Databases, cases, train_sql

ENGINES = st.sampled_from(("sql", "arrays"))
CLIENTS = st.integers(1, 3)
STILL = 1e-30
"""A learning rate of which no step moves anything: training then ends where it starts."""
WHOLE = {"algorithm": "sgd", "batch_size": 10**6}
"""Steps of all rows."""
OPTIMIZERS = (("plain", 0.1), ("momentum", 0.1))
"""Adam's steps are of one size however small a gradient: where it is 0 but for rounding, they are
not determined."""
SHAPES = (
    {"hidden": [4], "activation": "relu"},
    {"hidden": [5, 3], "activation": "tanh"},
    {"hidden": [3], "activation": "gelu", "head": "linear", "embedding": 2},
)


def neural(case: Case) -> Case:
    """The case as the oracle knows it: numbers, or classes in a softmax."""
    kind = LINEAR if case.kind == LINEAR else SOFTMAX
    return Case(kind, case.target, case.tables, case.blocks, case.seed)


def train(case: Case, model: str = "m", **options: object) -> str:
    kind = "mlp_regressor" if case.kind == LINEAR else "mlp_classifier"
    return train_sql(model, kind, case.target, case.query, **options)


def central(case: Case, databases: Databases, l2: float = oracle.L2) -> oracle.Central:
    data = oracle.central(
        databases.whole, case.identified_query(), case.kind, case.target, case.row_ids, l2
    )
    assume(len(data.y) > 0)
    assume(case.kind == LINEAR or len(data.classes) > 1)
    return data


def start_of(fed: sqlfl.Federation, name: str, data: oracle.Central) -> CentralNetwork:
    """The central network with the parameters that a model has."""
    model = fed.model(name)
    starts = []
    for block in model.blocks:
        saved = fed._servers[block.clients[0]]._blocks.load(model.run, block.slot)
        assert saved is not None
        assert saved.tower is not None
        encoding = saved.encoding
        assert not np.abs(saved.theta[encoding.numeric :]).max(initial=0.0) > 1e-25
        names = tuple(feature.name for feature in encoding.features)
        starts.append(Start(names, saved.theta[: encoding.numeric], saved.upper))
        for client in block.clients[1:]:
            other = fed._servers[client]._blocks.load(model.run, block.slot)
            assert other is not None
            np.testing.assert_array_equal(other.theta, saved.theta)
            for mine, theirs in zip(saved.upper, other.upper, strict=True):
                np.testing.assert_array_equal(mine, theirs)
    activation = str(model.options["activation"])
    bounded = model.options["algorithm"] == "pbm"
    return CentralNetwork(data, starts, model.intercept, model.head, activation, bounded=bounded)


@given(
    cases(kinds=BOUNDED),
    CLIENTS,
    ENGINES,
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(SHAPES),
    st.booleans(),
)
@examples(1)
def test_steps_are_those_of_torch_on_the_materialised_join(
    case: Case,
    clients: int,
    engine: str,
    optimizer: tuple[str, float],
    shape: dict[str, object],
    wide: bool,
) -> None:
    """Equal predictions after some steps are equal gradients; rows of all kinds of queries, and
    where they are `wide` also those that training did not see."""
    name, rate = optimizer
    case = neural(case)
    with case.open(clients) as databases, federation(databases) as fed:
        data = central(case, databases)
        options = {"engine": engine, "seed": 3, **shape, **WHOLE, "optimizer": name}
        fed.sql(train(case, "still", **options, epochs=1, learning_rate=STILL))
        network = start_of(fed, "still", data)
        fed.sql(train(case, **options, epochs=3, learning_rate=rate))
        network.fit(3, name, rate)
        found = fed.model("m").metrics["objective"]
        assert found == pytest.approx(network.objective(), rel=1e-4, abs=1e-7)
        rows = oracle.materialised(databases.whole, case.identified_query(wide=wide))
        expected = network.predict(rows)
        values = probabilities(fed.sql(case.predict(wide=wide)).arrow(), case.kind)
        assert_close(np.sort(values, axis=0), np.sort(expected, axis=0), 1e-4)


@given(cases(kinds=BOUNDED), CLIENTS, ENGINES, st.sampled_from(OPTIMIZERS), st.sampled_from(SHAPES))
@examples(2)
def test_sums_made_in_secret_train_the_network_of_torch(
    case: Case, clients: int, engine: str, optimizer: tuple[str, float], shape: dict[str, object]
) -> None:
    """Where nothing is drawn: sums of fixed point, over random joins, unions and partitions."""
    name, rate = optimizer
    case = neural(case)
    with case.open(clients) as databases, federation(databases) as fed:
        data = central(case, databases)
        options = {"engine": engine, "seed": 3, **shape, **WHOLE, "optimizer": name}
        options["algorithm"] = "pbm"
        try:
            fed.sql(train(case, "still", **options, epochs=1, learning_rate=STILL))
        except PlanError as error:
            assume("needs features of two parties" not in str(error))
            raise
        network = start_of(fed, "still", data)
        fed.sql(train(case, **options, epochs=3, learning_rate=rate))
        network.fit(3, name, rate)
        rows = oracle.materialised(databases.whole, case.identified_query())
        expected = network.predict(rows)
        values = probabilities(fed.sql(case.predict()).arrow(), case.kind)
        assert_close(np.sort(values, axis=0), np.sort(expected, axis=0), 1e-4)


@given(cases(kinds=BOUNDED), st.sampled_from(SHAPES), st.integers(2, 3))
@examples(1)
def test_neither_clients_nor_engines_change_the_result(
    case: Case, shape: dict[str, object], clients: int
) -> None:
    case = neural(case)
    found = []
    for number, engine in ((1, "sql"), (clients, "arrays")):
        with case.open(number) as databases, federation(databases) as fed:
            central(case, databases)
            options = {"optimizer": "momentum", "learning_rate": 0.1, **shape, **WHOLE}
            fed.sql(train(case, **options, seed=5, epochs=4, engine=engine))
            values = probabilities(fed.sql(case.predict()).arrow(), case.kind)
            found.append((fed.model("m").metrics["objective"], np.sort(values, axis=0)))
    (objective, values), (expected, reference) = found
    assert objective == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert_close(values, reference, 1e-4)


# -- by hand ---------------------------------------------------------------------------------------

ORDERS = (
    "CREATE TABLE orders AS SELECT i AS id, i % 40 AS customer, (i * 37) % 11 AS amount, "
    "CASE WHEN i % 17 = 0 THEN NULL ELSE (i * 13) % 5 END AS pieces, "
    "(((i % 40) * 5) % 4 - 1.5) * (((i * 37) % 11) / 5.0 - 1) + ((i % 40) % 3) AS label "
    "FROM range(600) r(i)"
)
CUSTOMERS = (
    "CREATE TABLE customers AS SELECT i AS customer, (i * 5) % 4 AS score, "
    "['north', 'south', NULL][1 + i % 3] AS region FROM range(40) r(i)"
)
QUERY = (
    "SELECT o.amount, o.pieces, c.score, c.region, o.label{} AS label "
    "FROM shop.orders o JOIN bank.customers c USING (customer)"
)
NUMBERS, CLASSES = QUERY.format(""), QUERY.format(" > 1")
PREDICT = "PREDICT MODEL m ID (shop.orders.id) FROM ({})"


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    """Databases in files, so that blocks can last."""
    with ExitStack() as stack:
        found = {}
        for party, statement in (("shop", ORDERS), ("bank", CUSTOMERS)):
            con = stack.enter_context(duckdb.connect(tmp_path / f"{party}.duckdb"))
            con.execute(statement)
            found[party] = [con]
        yield found


def written(query: str, kind: str = "mlp_regressor", model: str = "m", **options: object) -> str:
    return train_sql(model, kind, "label", query, **{"seed": 1, **options})


def sorted_by_id(fed: sqlfl.Federation, query: str) -> np.ndarray:
    table = fed.sql(PREDICT.format(query)).arrow().sort_by("id")
    return table.column("prediction").to_numpy()


@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_steps_of_adam_are_those_of_torch(database: Open, engine: str) -> None:
    generator = np.random.default_rng(4)
    left, right = generator.normal(size=(300, 4)), generator.normal(size=(30, 3))
    rows = pa.table(dict(zip(("a", "b", "c", "label"), left.T, strict=True)))
    places = pa.table(dict(zip("xyz", right.T, strict=True)))
    parties = {"shop": [], "bank": []}
    whole = database("ATTACH ':memory:' AS shop", "ATTACH ':memory:' AS bank")
    for party, table, name in (("shop", rows, "r"), ("bank", places, "p")):
        table = table.append_column("k", pa.array(np.arange(table.num_rows) % 30))
        whole.register("given", table)
        whole.execute(f"CREATE TABLE {party}.{name} AS FROM given")
        for q in range(2):
            con = database()
            con.register("given", table.filter(pa.array(np.arange(table.num_rows) % 2 == q)))
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
            parties[party].append(con)
    query = "SELECT r.a, r.b, r.c, p.x, p.y, p.z, r.label FROM shop.r JOIN bank.p USING (k)"
    data = oracle.central(whole, query, LINEAR, "label")
    with federation(parties) as fed:
        options = {"engine": engine, "hidden": [6], "activation": "tanh", **WHOLE}
        fed.sql(written(query, model="still", **options, epochs=1, learning_rate=STILL))
        network = start_of(fed, "still", data)
        fed.sql(written(query, **options, epochs=10, learning_rate=0.02))
        network.fit(10, "adam", 0.02)
        # The intercept's first gradient is 0 but for rounding, which Adam takes for a gradient.
        assert fed.model("m").metrics["objective"] == pytest.approx(network.objective(), rel=1e-4)
        found = fed.sql(f"PREDICT MODEL m FROM ({query})").arrow().column("prediction").to_numpy()
        expected = network.predict(data.rows)[:, 0]
        np.testing.assert_allclose(np.sort(found), np.sort(expected), atol=5e-3)


def test_a_kept_model_predicts_as_before(tmp_path: Path, parties: Parties) -> None:
    shape = {"hidden": [6, 3], "head": "linear", "embedding": 2, "activation": "tanh"}
    with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
        for party, (con,) in parties.items():
            fed.attach(party, con)
        fed.sql(written(NUMBERS, epochs=5, batch_size=100, **shape))
        before, head = sorted_by_id(fed, NUMBERS), fed.model("m").head
    with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
        for party, (con,) in parties.items():
            fed.attach(party, con)
        np.testing.assert_array_equal(fed.model("m").head, head)
        np.testing.assert_allclose(sorted_by_id(fed, NUMBERS), before, rtol=1e-6)


def test_the_blocks_functions_add_up_to_the_prediction(tmp_path: Path, parties: Parties) -> None:
    with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
        for party, (con,) in parties.items():
            fed.attach(party, con)
        fed.sql(written(NUMBERS, epochs=3))
        total = sorted_by_id(fed, NUMBERS)
        intercept = float(fed.model("m").intercept[0])
    (shop,), (bank,) = parties["shop"], parties["bank"]
    assert register(shop) == {"sqlfl_predict_m": ("amount", "pieces")}
    register(bank)
    own = shop.sql("SELECT sqlfl_predict_m(amount, pieces) FROM orders ORDER BY id").fetchnumpy()
    other = bank.sql("SELECT sqlfl_predict_m(score, region) FROM customers ORDER BY customer")
    parts = [next(iter(found.values())) for found in (own, other.fetchnumpy())]
    joined = parts[0] + parts[1][np.arange(600) % 40] + intercept
    np.testing.assert_allclose(joined, total, rtol=1e-5, atol=1e-5)


def test_a_seed_repeats_the_run_and_another_does_not(
    parties: Parties,
) -> None:
    found = {}
    options = {"batch_size": 50, "epochs": 3, "dropout": 0.2, "hidden": [8]}
    for name, seed in (("first", 1), ("second", 1), ("third", 2)):
        with federation(parties) as fed:
            fed.sql(written(NUMBERS, **options, seed=seed))
            found[name] = sorted_by_id(fed, NUMBERS)
    np.testing.assert_allclose(found["second"], found["first"], rtol=1e-6, atol=1e-7)
    assert np.abs(found["third"] - found["first"]).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_a_warm_start_begins_at_the_old_model(parties: Parties, algorithm: str) -> None:
    with federation(parties) as fed:
        fed.sql(written(CLASSES, "mlp_classifier", epochs=5, algorithm=algorithm))
        reached = fed.model("m").metrics["objective"]
        again = written(CLASSES, "mlp_classifier", "w", epochs=1, learning_rate=STILL)
        fed.sql(again.replace("seed = 1", "seed = 2, warm_start = 'm'"))
        assert fed.model("w").metrics["objective"] <= reached * (1 + 1e-6)
        assert fed.model("w").metrics["objective"] == pytest.approx(reached, rel=0.02)
        with pytest.raises(sqlfl.ModelError, match="hidden"):
            fed.sql(written(CLASSES, "mlp_classifier", "x", hidden=[3], warm_start="m"))


def test_dropout_is_in_training_only(
    parties: Parties,
) -> None:
    with federation(parties) as fed:
        still = {"epochs": 1, "learning_rate": STILL, "batch_size": 100}
        fed.sql(written(NUMBERS, model="a", **still))
        fed.sql(written(NUMBERS, model="b", **still, dropout=0.5))
        one, other = fed.model("a").metrics, fed.model("b").metrics
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-5)
        fed.sql(written(NUMBERS, model="c", epochs=4, batch_size=100))
        fed.sql(written(NUMBERS, model="d", epochs=4, batch_size=100, dropout=0.5))
        one, other = fed.model("c").metrics, fed.model("d").metrics
        assert abs(one["objective"] / other["objective"] - 1) > 1e-3


@pytest.mark.parametrize(
    ("options", "clients"),
    in_turn([{"algorithm": "sgd", "batch_size": 100}, {"algorithm": "admm"}], (3, 1)),
)
def test_towers_learn_what_linear_blocks_cannot(
    database: Open, options: dict[str, object], clients: int
) -> None:
    """A parabola, by every way of training."""
    make = (
        "CREATE TABLE points AS SELECT i AS id, i % 50 AS place, (i % 50) / 25.0 - 1 AS x, "
        "pow((i % 50) / 25.0 - 1, 2) + pow((i % 30) / 15.0 - 1, 2) AS label, i % 30 AS other "
        "FROM range(600) r(i) WHERE i % {} = {}"
    )
    places = "CREATE TABLE places AS SELECT i AS other, i / 15.0 - 1 AS z FROM range(30) r(i)"
    parties = {
        "left": [database(make.format(clients, q)) for q in range(clients)],
        "right": [database(places)],
    }
    query = "SELECT p.x, o.z, p.label FROM left.points p JOIN right.places o USING (other)"
    query = query.replace("left.", '"left".').replace("right.", '"right".')
    with federation(parties) as fed:
        fed.sql(train_sql("line", "linear_regression", "label", query))
        line = fed.model("line").metrics["r2"]
        assert line < 0.05
        fed.sql(written(query, epochs=30, **options))
        assert fed.model("m").metrics["r2"] > 0.9


def test_what_towers_cannot_do_is_said(
    parties: Parties,
) -> None:
    with federation(parties) as fed:
        for options, words in (
            ({"algorithm": "lbfgs"}, "lbfgs"),
            ({"algorithm": "admm", "union": "exact"}, "union"),
            ({"embedding": 4}, "head"),
            ({"hidden": []}, "hidden"),
            ({"activation": "sigmoid"}, "activation"),
            ({"dropout": 1}, "dropout"),
        ):
            with pytest.raises(sqlfl.OptionError, match=words):
                fed.sql(written(NUMBERS, **options))
        with pytest.raises(sqlfl.OptionError, match="hidden"):
            fed.sql(train_sql("l", "linear_regression", "label", NUMBERS, hidden=[3]))
        with pytest.raises(sqlfl.PlanError, match="number"):
            fed.sql(written(NUMBERS.replace("o.label", "c.region"), "mlp_regressor"))
        if not torch.cuda.is_available():
            with pytest.raises(sqlfl.Error, match="CUDA"):
                fed.sql(written(NUMBERS, device="cuda"))
        assert fed.sql("SHOW MODELS").fetchall() == []
