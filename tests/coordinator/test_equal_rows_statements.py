"""Equal rows trained as one: the model is that of all rows, the traffic what EXPLAIN says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.messages import EqualRows, Predictions
from sqlfl.messages.wire import decode
from sqlfl.methods.lbfgs.coordinator import NEAR
from sqlfl.transport.recording import Recorded
from sqlfl.udfs.blocks import block_tables, blocks
from tests.conftest import Open
from tests.depth import THOROUGH, in_turn, spread
from tests.federations import Parties, merging
from tests.open_databases import in_memory
from tests.strategies import train_sql
from tests.test_border import Tap, assert_disclosed, tapped

DRAWS = b"the key of the draws"


@pytest.fixture(autouse=True)
def _merging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(blocks.MemoryBlocks, "secret", lambda self, purpose: DRAWS)
    monkeypatch.setattr(block_tables.DatabaseBlocks, "secret", lambda self, purpose: DRAWS)
    with merging():
        yield


def orders(rows: range) -> str:
    """Two in three are equal in all features, and not in their label."""
    return (
        "CREATE TABLE orders AS SELECT i AS id, i % 23 AS k, hash(i) % 40 AS p, "
        'CASE i % 4 WHEN 0 THEN NULL ELSE 0.5 * (i % 3) END AS "si ze", '
        "CASE i % 5 WHEN 0 THEN NULL ELSE 'c' || (i % 2) END AS colour, "
        "0.25 * (i % 4) AS w, hash(7 * i) % 3 AS y "
        f"FROM range({rows.start}, {rows.stop}) r(i)"
    )


PLACES = (
    "CREATE TABLE places AS SELECT i % 20 AS k, [i % 2, NULL]::FLOAT[2] AS v, i % 3 = 0 AS flag "
    "FROM range(46) r(i)"
)
PRODUCTS = "CREATE TABLE products AS SELECT i AS p, sin(i) AS x, 'one' AS c FROM range(35) r(i)"
JOINS = {
    "inner": "JOIN town.places q USING (k) JOIN shop.products s USING (p)",
    "left": "LEFT JOIN town.places q USING (k) LEFT JOIN shop.products s USING (p)",
}
COLUMNS = 'o.y, o."si ze", o.colour, q.v, q.flag, s.x, s.c'


CLIENTS = {"one client": [range(90)], "two and an empty one": [range(40), range(0), range(40, 90)]}


@pytest.fixture(scope="module", params=CLIENTS)
def parties(request: pytest.FixtureRequest) -> Iterator[Parties]:
    with contextlib.ExitStack() as stack:

        def made(script: str) -> duckdb.DuckDBPyConnection:
            con = stack.enter_context(in_memory())
            con.execute(script)
            return con

        yield {
            "census": [made(orders(part)) for part in CLIENTS[request.param]],
            "town": [made(PLACES)],
            "shop": [made(PRODUCTS)],
        }


def query(join: str, *, weight: bool = False) -> str:
    return f"SELECT {COLUMNS}{', o.w' * weight} FROM census.orders o {JOINS[join]}"


ALONE = 'SELECT y, "si ze", colour FROM census.orders'
"""One block, for which admm has no power rounds: these start at random."""


def union() -> str:
    halves = (f"{query('inner')} WHERE o.id % 2 = {half}" for half in (0, 1))
    return " UNION ALL ".join(halves)


def trained(
    parties: Parties, fed: sqlfl.Federation, tap: Tap, statement: str, outputs: int
) -> tuple[sqlfl.Model, list[Recorded]]:
    """The model m, and what crossed the border in training."""
    plan = fed.explain(statement)
    with tap.taken() as recorded:
        fed.sql(statement)
    model = fed.model("m")
    if "validation_fraction" not in statement:
        epochs = model.history.num_rows
        assert_disclosed(plan, recorded, parties, epochs=epochs, outputs=outputs, draws=DRAWS)
    return model, recorded


def compare(
    parties: Parties, kind: str, select: str, near: float, *, weight: bool = False, **options: Any
) -> None:
    """With equal rows as one, and without; predictions are sorted, for rows have no identifier."""
    predict = f"PREDICT MODEL m FROM ({ALONE if select == ALONE else query('left')})"
    outputs = 1 if kind in ("linear_regression", "mlp_regressor") else 3
    with tapped(parties) as (fed, tap):

        def run(**more: Any) -> tuple[sqlfl.Model, list[dict[str, Any]], list[Recorded]]:
            statement = train_sql("m", kind, "y", select, **{"seed": 3, **options, **more})
            if weight:
                statement = statement.replace("TARGET y", "TARGET y WEIGHT w")
            model, recorded = trained(parties, fed, tap, statement, outputs)
            found = fed.sql(predict).arrow().to_pylist()
            fed.sql("DROP MODEL m")
            return model, found, recorded

        one, found, sent = run()
        other, expected, plain = run(merge_equal_rows=False)
    told = [m for m in map(decode, (item.data for item in sent)) if isinstance(m, EqualRows)]
    assert {m.slot for m in told if m.classes.size} >= ({0} if select == ALONE else {0, 1})
    assert not any(isinstance(decode(item.data), EqualRows) for item in plain)
    largest = {name: max(_rows(part)) for name, part in (("one", sent), ("other", plain))}
    assert largest["one"] < largest["other"]
    assert one.metrics.keys() == other.metrics.keys()
    for name, value in other.metrics.items():
        if isinstance(value, int):
            assert one.metrics[name] == value, name
        elif value is not None:
            assert one.metrics[name] == pytest.approx(value, rel=near, abs=near), name
    for name in ("prediction", "probability_1"):
        if expected[0].get(name) is not None and not isinstance(expected[0][name], str):
            np.testing.assert_allclose(
                np.sort([float(row[name]) for row in found]),
                np.sort([float(row[name]) for row in expected]),
                atol=20 * near,
            )


def _rows(recorded: list[Recorded]) -> list[int]:
    """Of the label's slot, in the messages of predictions."""
    messages = (decode(item.data) for item in recorded)
    return [len(m.values) for m in messages if isinstance(m, Predictions) and m.slot == 0]


CONVERGED = {"tolerance": 1e-14, "l2": 0.01}
STEPS = {"algorithm": "sgd", "learning_rate": 0.2, "epochs": 3}
ADMM = {"algorithm": "admm", "epochs": 3}
METHODS: dict[str, tuple[float, dict[str, Any]]] = {
    "lbfgs": (1e-7, {"epochs": 60, **CONVERGED}),
    "sgd": (1e-6, STEPS),
    "adam": (1e-5, {**STEPS, "optimizer": "adam"}),
    "batches": (1e-6, {**STEPS, "epochs": 2, "batch_size": 40}),
    "admm": (1e-6, ADMM),
    "consensus": (1e-6, {**ADMM, "union": "consensus", "inner_rounds": 3}),
}


IN_SQL = ("sgd",)
"""Method that is also run by the engine 'sql', which takes three times as long."""
KINDS = ("linear_regression", "softmax_regression")
RUN = (
    in_turn(METHODS, tuple(CLIENTS), KINDS, ("sql", "arrays"))
    if THOROUGH
    else [
        (*case, "sql" if case[0] in IN_SQL else "arrays")
        for case in in_turn(METHODS, tuple(CLIENTS), KINDS)
    ]
)


@pytest.mark.parametrize(("method", "parties", "kind", "engine"), RUN, indirect=["parties"])
def test_every_method_finds_what_it_does_of_all_rows(
    parties: Parties, method: str, kind: str, engine: str
) -> None:
    near, options = METHODS[method]
    select = ALONE if options.get("algorithm") == "admm" else query("left")
    compare(parties, kind, select, near, engine=engine, **options)


TOWERS: dict[str, dict[str, Any]] = {
    "all rows": {"batch_size": 100_000},
    "batches": {"batch_size": 30},
    "head": {"head": "linear", "embedding": 2, "batch_size": 100_000},
}


@pytest.mark.parametrize(("case", "parties"), in_turn(TOWERS, tuple(CLIENTS)), indirect=["parties"])
def test_towers(parties: Parties, case: str) -> None:
    options = {"hidden": [3], "epochs": 2, "optimizer": "momentum", **TOWERS[case]}
    compare(parties, "mlp_classifier", query("inner"), 1e-5, **options)


@pytest.mark.parametrize(
    ("options", "parties", "weight"),
    in_turn(
        (
            {},
            {"validation_fraction": 0.3},
            {"class_weight": "balanced"},
            {"validation_fraction": 0.3, "class_weight": "balanced", "patience": 60},
        ),
        tuple(CLIENTS),
        (True, False),
    ),
    ids=str,
    indirect=["parties"],
)
def test_weights_and_rows_for_validation(
    parties: Parties, weight: bool, options: dict[str, Any]
) -> None:
    select = query("inner", weight=weight)
    own = {**METHODS["lbfgs"][1], **options}
    # a model that is kept from before the end is as near as searches come to where they lead
    near = NEAR if "patience" in options else 1e-6
    compare(parties, "softmax_regression", select, near, weight=weight, **own)


SEVERAL = spread(reversed(CLIENTS), 1)
"""Several clients are also one, but for what crosses between them; at depth 'thorough' both."""


@pytest.mark.parametrize("parties", SEVERAL, indirect=True)
def test_unions_of_blocks(parties: Parties) -> None:
    near, options = METHODS["lbfgs"]
    compare(parties, "linear_regression", union(), near, **options)


@pytest.mark.parametrize("parties", SEVERAL, indirect=True)
def test_a_warm_start_goes_on_from_distinct_rows(parties: Parties) -> None:
    found = []
    for merge in (True, False):
        with tapped(parties) as (fed, _):
            options = {"seed": 3, "merge_equal_rows": merge, **METHODS["lbfgs"][1], "epochs": 2}
            fed.sql(train_sql("a", "linear_regression", "y", query("left"), **options))
            options |= {"warm_start": "a", "epochs": 40}
            fed.sql(train_sql("m", "linear_regression", "y", query("inner"), **options))
            found.append(fed.model("m").metrics["objective"])
    assert found[0] == pytest.approx(found[1], rel=1e-8)


PRIVACY = "noise_multiplier = 1, delta = 1e-4, statistics = 'none'"


@pytest.mark.parametrize("parties", SEVERAL, indirect=True)
def test_protected_and_dropped_rows_stay_for_themselves(parties: Parties) -> None:
    with tapped(parties) as (fed, tap):
        private = train_sql("p", "linear_regression", "y", query("inner"), epochs=2)
        private = private.replace(
            "FROM (", "PRIVACY (noise_multiplier = 1, delta = 1e-4, statistics = 'none') FROM (", 1
        )
        dropped = train_sql("d", "mlp_classifier", "y", query("inner"), dropout=0.5, epochs=2)
        local = train_sql("l", "mlp_classifier", "y", query("inner"), algorithm="admm", epochs=1)
        for statement in (private, dropped, local):
            with tap.taken() as recorded:
                fed.sql(statement)
            assert not {"equal_rows", "send_equal_rows"} & {decode(r.data).kind for r in recorded}


@pytest.mark.parametrize("algorithm", ["lbfgs", "sgd"])
def test_labels_of_a_table_without_features_are_noised(database: Open, algorithm: str) -> None:
    """Its slot is left out where equal rows are merged, and is asked what it has released."""
    patients = "SELECT i AS pid, hash(i) % 2 = 0 AS ill FROM range(30) r(i)"
    tests = "SELECT p AS pid, sin(k) AS crp FROM range(30) r(p), range(30) s(k) WHERE k <= p"
    clinic = database(f"CREATE TABLE patients AS {patients}")
    with tapped({"clinic": [clinic], "lab": [database(f"CREATE TABLE tests AS {tests}")]}) as (
        fed,
        tap,
    ):
        fed.sql(
            f"""TRAIN MODEL m USING logistic_regression TARGET ill
            WITH (algorithm = '{algorithm}', epochs = 2) PRIVACY (label_epsilon = 0.9)
            FROM (SELECT t.crp, p.ill FROM clinic.patients p JOIN lab.tests t USING (pid))"""
        )
        assert "(0.9, 0)-DP" in fed.model("m").privacy.short
        told = [type(decode(item.data)).__name__ for item in tap.transport.recorded]
        assert ("EqualRows" in told, told.count("Releases")) == (True, 2)
