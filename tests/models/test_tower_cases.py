"""Towers in odd cases: equal to torch, and whole or not at all where something fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import sqlfl
from tests import oracle
from tests.conftest import Open
from tests.depth import combinations, in_turn, spread
from tests.federations import Parties, federation
from tests.models.test_tower_statements import STILL, start_of
from tests.open_databases import in_memory
from tests.strategies import LINEAR, Databases, train_sql
from tests.test_bad_input import disturbed, unchanged
from tests.test_border import Tap, assert_disclosed

ROWS = (
    "SELECT i AS id, i % 7 AS k, sin(i) AS x, CASE WHEN i % 5 = 0 THEN NULL ELSE cos(i) END AS g, "
    "'c' || (i % 4) AS c, (i * i) % 5 + sin(i) * 2 AS y, 'l' || (i % 3) AS cl, (i // 3) % 3 AS w, "
    "CASE WHEN i % 4 = 0 THEN NULL WHEN i % 4 = 1 THEN [i, NULL]::FLOAT[2] "
    "ELSE [sin(i), i]::FLOAT[2] END AS a FROM range(60) r(i)"
)
"""Keys 5 and 6 have no partner."""
FEW = ROWS.replace("range(60)", "range(30)")
PLACES = (
    "SELECT i AS k, i * i * 0.3 AS z, ['p', 'q', NULL][1 + i % 3] AS d, NULL::DOUBLE AS nothing, "
    "NULL::VARCHAR AS silence FROM range(5) r(i)"
)
ONE, TWO = "one.rows", "two.places"
QUERIES = {
    "left": f"SELECT t.x, t.g, t.c, p.z, p.d, t.y FROM {ONE} t LEFT JOIN {TWO} p USING (k)",
    "virtual": "SELECT t.x, coalesce(p.z, -1) AS z, p.k IS NULL AS alone, t.y "
    f"FROM {ONE} t LEFT JOIN {TWO} p USING (k)",
    "self-join": f"SELECT t.x, v.g, v.c, t.y FROM {ONE} t JOIN {ONE} v ON t.k = v.id",
    "one row": f"SELECT t.x, t.c, p.z, t.y FROM {ONE} t JOIN {TWO} p USING (k) WHERE t.id = 3",
    "constant": "SELECT 1 AS o, t.x * 0 AS n, p.z * 0 AS z, t.y "
    f"FROM {ONE} t JOIN {TWO} p USING (k)",
    "categories": f"SELECT t.c, p.d, t.y FROM {ONE} t JOIN {TWO} p USING (k)",
    "null": f"SELECT t.x, p.nothing, t.y FROM {ONE} t JOIN {TWO} p USING (k)",
    "silent": f"SELECT t.x, p.silence, t.y FROM {ONE} t JOIN {TWO} p USING (k)",
    "arrays": f"SELECT t.a, p.z, t.y FROM {ONE} t JOIN {TWO} p USING (k)",
    "union": f"SELECT t.x, p.z, t.y FROM {ONE} t JOIN {TWO} p USING (k) UNION ALL "
    f"SELECT t.x, p.z, t.y + 1 FROM {ONE} t JOIN {TWO} p ON t.id % 5 = p.k WHERE t.id % 2 = 0",
}


def part(text: str, client: int, clients: int) -> str:
    """A client's rows; with three clients, the last has those that have no partner."""
    if clients == 3:
        own = "k >= 5" if client == 2 else f"k < 5 AND k % 2 = {client}"
    else:
        own = f"k % {clients} = {client}"
    return f"SELECT * FROM ({text}) WHERE {own}"


@contextlib.contextmanager
def divided(clients: int, rows: str = ROWS, places: str = PLACES) -> Iterator[Databases]:
    """Each table over so many clients."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(in_memory())
        parties: Parties = {"one": [], "two": []}
        for party, name, text in (("one", "rows", rows), ("two", "places", places)):
            whole.execute(f"ATTACH ':memory:' AS {party}")
            whole.execute(f"CREATE TABLE {party}.{name} AS {text}")
            for client in range(clients):
                con = stack.enter_context(in_memory())
                con.execute(f"CREATE TABLE {name} AS {part(text, client, clients)}")
                parties[party].append(con)
        yield Databases(parties, whole)


def objective(fed: sqlfl.Federation, model: str = "m") -> float:
    found = fed.model(model).metrics["objective"]
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "clients"), in_turn(QUERIES, (1, 3)))
def test_steps_are_those_of_torch(name: str, clients: int) -> None:
    engine = "arrays" if clients == 1 else "sql"
    options = {"engine": engine, "seed": 3, "hidden": [4], "activation": "tanh", "batch_size": 1000}
    with divided(clients) as databases, federation(databases) as fed:
        query = QUERIES[name]
        data = oracle.central(databases.whole, query, LINEAR, "y")
        more = {**options, "optimizer": "momentum"}
        fed.sql(train_sql("s", "mlp_regressor", "y", query, **more, epochs=1, learning_rate=STILL))
        network = start_of(fed, "s", data)
        fed.sql(train_sql("m", "mlp_regressor", "y", query, **more, epochs=2, learning_rate=0.2))
        network.fit(2, "momentum", 0.2)
        assert objective(fed) == pytest.approx(network.objective(), rel=1e-5, abs=1e-8)
        found = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().column("loss")[0].as_py()
        assert found == pytest.approx(fed.model("m").metrics["loss"], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("kind", "clients", "optimizer"),
    combinations(
        ("linear_regression", "mlp_regressor", "mlp_classifier"), (1, 3), ("momentum", "adam")
    ),
)
def test_a_weight_is_so_many_copies(kind: str, clients: int, optimizer: str) -> None:
    options: dict[str, object] = {"algorithm": "sgd", "optimizer": optimizer, "seed": 3}
    options |= {"epochs": 3, "learning_rate": 0.05, "batch_size": 1000}
    if kind != "linear_regression":
        options |= {"hidden": [4], "activation": "tanh", "head": "linear", "embedding": 2}
    target = "cl" if kind == "mlp_classifier" else "y"
    join = f"FROM {ONE} t LEFT JOIN {TWO} p USING (k)"
    query = f"SELECT t.x, t.g, t.c, p.z, p.d, t.{target}{{}} {join}"
    copies = f"SELECT r.* FROM ({ROWS}) r, range(2) n(i) WHERE n.i < r.w"
    found = []
    for rows, weight in ((ROWS, True), (copies, False)):
        text = train_sql("m", kind, target, query.format(", t.w" if weight else ""), **options)
        text = text.replace(f"TARGET {target}", f"TARGET {target} WEIGHT w") if weight else text
        if kind == "mlp_classifier":
            text = text.replace("WITH (", "WITH (class_weight = {'l1': 2}, ")
        with divided(clients, rows) as databases, federation(databases) as fed:
            fed.sql(text)
            found.append(objective(fed))
    # the intercept's first slope is 0 but for rounding, which Adam makes a step of
    assert found[0] == pytest.approx(found[1], rel=1e-4 if optimizer == "adam" else 1e-6)


@pytest.mark.parametrize(
    ("options", "clients"),
    in_turn(
        [
            {"algorithm": "sgd", "batch_size": 20, "learning_rate": 0.2},
            {"algorithm": "sgd", "batch_size": 20, "learning_rate": 0.2, "dropout": 0.3},
            {"algorithm": "admm", "learning_rate": 0.3, "dropout": 0.3, "local_epochs": 3},
        ],
        (3, 1),
    ),
    ids=str,
)
def test_towers_head_and_intercept_are_of_the_epoch_that_is_kept(
    clients: int, options: dict[str, object]
) -> None:
    query = f"SELECT t.x, t.g, t.c, p.z, p.d, t.cl FROM {ONE} t LEFT JOIN {TWO} p USING (k)"
    options = {**options, "epochs": 60, "seed": 4, "patience": 1, "validation_fraction": 0.3}
    options |= {"hidden": [6], "head": "linear", "embedding": 3}
    with divided(clients) as databases, federation(databases) as fed:
        fed.sql(train_sql("m", "mlp_classifier", "cl", query, **options))
        model = fed.model("m")
        assert model.epoch < model.history.num_rows
        number = model.metrics
        ((rows, loss),) = (
            fed.sql(f"EVALUATE MODEL m FROM ({query})")
            .arrow()
            .select(["rows", "loss"])
            .to_pydict()
            .values(),
        )
        parts = number["rows"] * number["loss"] + number["valid_rows"] * number["valid_loss"]
        assert rows[0] * loss[0] == pytest.approx(parts, rel=1e-5)
        for block in model.blocks:
            first, *others = (
                fed._servers[client]._blocks.load(model.run, block.slot) for client in block.clients
            )
            for other in others:
                for mine, theirs in zip(other.parameters, first.parameters, strict=True):
                    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("kind", "clients", "back"),
    combinations(("mlp_regressor", "mlp_classifier"), (1, 3), (False, True)),
)
def test_a_warm_start_predicts_as_before_under_another_encoding(
    kind: str, clients: int, back: bool
) -> None:
    """Other vocabularies, other NULLs, other means; up to a constant of the coordinator's."""
    target = "cl" if kind == "mlp_classifier" else "y"
    changed = ROWS.replace("sin(i) AS x", "sin(i) * 3 + 1 AS x").replace("i % 5 = 0", "i % 3 = 0")
    changed = changed.replace("'c' || (i % 4)", "CASE WHEN i % 6 > 0 THEN 'c' || (i % 6) END")
    elsewhere = PLACES.replace("i * i * 0.3", "CASE WHEN i <> 2 THEN i + 1 END")
    query = f"SELECT t.x, t.g, t.c, p.z, p.d{{}} FROM {ONE} t LEFT JOIN {TWO} p USING (k)"
    shape = {"hidden": [5, 3], "activation": "gelu", "head": "linear", "embedding": 2, "seed": 1}
    first, second = (ROWS, PLACES), (changed, elsewhere)
    if back:
        first, second = second, first
    with divided(clients, *first) as databases, federation(databases) as fed:
        text = query.format(f", t.{target}")
        fed.sql(train_sql("m", kind, target, text, epochs=3, **shape))
        for clients_, name, made in zip(
            databases.parties.values(), ("rows", "places"), second, strict=True
        ):
            for number, con in enumerate(clients_):
                con.execute(f"CREATE OR REPLACE TABLE {name} AS {part(made, number, clients)}")
        more = {**shape, "warm_start": "m", "optimizer": "plain", "learning_rate": STILL}
        fed.sql(train_sql("w", kind, target, text, epochs=1, **more))
        scores = []
        for model in "mw":
            table = fed.sql(f"PREDICT MODEL {model} ID (one.rows.id) FROM ({query.format('')})")
            found = table.arrow().sort_by("id")
            names = [n for n in found.column_names if n.startswith("probability_")]
            values = np.column_stack([found.column(n).to_numpy() for n in names or ["prediction"]])
            values = np.log(values) if names else values
            values = values - values.mean(axis=1, keepdims=True) if names else values
            scores.append(values - values.mean(axis=0))
        np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "activation"),
    spread([("sgd", "relu"), ("sgd", "tanh"), ("admm", "relu"), ("sgd", "gelu")], 2),
)
def test_towers_of_categories_only_learn(algorithm: str, activation: str) -> None:
    rows = "SELECT *, [3, -1, 0.5, 2][1 + id % 4]::DOUBLE + k % 3 AS goal FROM (" + FEW + ")"
    places = "SELECT i AS k, 'e' || (i % 3) AS e FROM range(7) r(i)"
    query = f"SELECT t.c, p.e, t.goal FROM {ONE} t JOIN {TWO} p USING (k)"
    options: dict[str, object] = {"algorithm": algorithm, "activation": activation, "seed": 2}
    options |= {"batch_size": 6, "epochs": 25} if algorithm == "sgd" else {"epochs": 12}
    with divided(2, rows, places) as databases, federation(databases) as fed:
        fed.sql(train_sql("m", "mlp_regressor", "goal", query, **options))
        assert fed.model("m").metrics["r2"] > 0.99


# -- divergence -----------------------------------------------------------------------------------

PLAIN = f"SELECT t.x, t.c, p.z, t.y FROM {ONE} t JOIN {TWO} p USING (k)"


@pytest.mark.parametrize(
    ("case", "clients"),
    in_turn(
        [
            ("mlp_regressor", {"algorithm": "admm"}),
            ("mlp_regressor", {"algorithm": "admm", "head": "linear"}),
            ("mlp_classifier", {"algorithm": "admm", "batch_size": 16}),
            ("mlp_regressor", {"optimizer": "plain"}),
            ("mlp_classifier", {"optimizer": "adam", "head": "linear"}),
            ("linear_regression", {"algorithm": "sgd", "optimizer": "adam"}),
            ("softmax_regression", {"algorithm": "sgd", "optimizer": "adam"}),
        ],
        (1, 3),
    ),
    ids=str,
)
def test_steps_that_are_far_too_long_give_no_model(
    case: tuple[str, dict[str, object]], clients: int
) -> None:
    kind, options = case
    target = "y" if kind.endswith("regressor") or kind.startswith("linear") else "cl"
    query = PLAIN.replace("t.y", f"t.{target}")
    with divided(clients) as databases, federation(databases) as fed:
        more = {**options, "epochs": 6, "seed": 1, "learning_rate": 1e6}
        with unchanged(fed, dict(databases.parties)), pytest.raises(sqlfl.Error) as caught:
            fed.sql(train_sql("m", kind, target, query, **more))
        assert "diverge" in str(caught.value)
        assert "smaller learning_rate" in str(caught.value)


@pytest.mark.parametrize("kind", ["linear_regression", "mlp_regressor"])
@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_large_targets_are_no_divergence(kind: str, algorithm: str) -> None:
    query = PLAIN.replace("t.y", "1e15 * t.y AS y")
    with divided(1) as databases, federation(databases) as fed:
        fed.sql(train_sql("m", kind, "y", query, algorithm=algorithm, epochs=2))
        assert fed.model("m").metrics["r2"] > -0.01


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_rows_that_count_nothing_are_no_divergence(algorithm: str) -> None:
    rows = f"SELECT * REPLACE (CASE WHEN w = 0 THEN 1e20 ELSE x END AS x) FROM ({ROWS})"
    query = PLAIN.replace("t.y", "t.y, t.w")
    with divided(1, rows) as databases, federation(databases) as fed:
        text = train_sql("m", "mlp_regressor", "y", query, algorithm=algorithm, epochs=3, seed=1)
        fed.sql(text.replace("TARGET y", "TARGET y WEIGHT w"))
        assert objective(fed) < 5.0


# -- what ends in the midst of it ------------------------------------------------------------------

LONG = ({"batch_size": 20, "dropout": 0.2}, {"algorithm": "admm", "inner_rounds": 2})


@pytest.mark.parametrize("options", LONG, ids=str)
def test_ctrl_c_keeps_the_towers_so_far(options: dict[str, object]) -> None:
    with divided(2) as databases:
        parties = dict(databases.parties)
        text = train_sql("m", "mlp_regressor", "y", PLAIN, epochs=50, head="linear", **options)
        with disturbed(parties, "residuals", 4, lambda: signal.raise_signal(signal.SIGINT)) as fed:
            fed.sql(text)
            assert fed.model("m").interrupted
            assert fed.model("m").history.num_rows < 5
            loss = fed.sql(f"EVALUATE MODEL m FROM ({PLAIN})").arrow().column("loss")[0].as_py()
            assert loss == pytest.approx(fed.model("m").metrics["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "error", "options"),
    in_turn(
        ("send_predictions", "residuals", "between", "save"),
        (KeyboardInterrupt(), sqlfl.PartyError("one/1", "it is gone")),
        LONG,
    ),
)
def test_what_ends_in_the_midst_of_towers_leaves_nothing(
    kind: str, error: BaseException, options: dict[str, object]
) -> None:
    def fail() -> None:
        raise error

    inner = "consensus_average" if "algorithm" in options else "sum_gradient"
    kind = inner if kind == "between" else kind
    text = train_sql("m", "mlp_regressor", "y", PLAIN, epochs=2, head="linear", **options)
    with divided(2) as databases:
        parties = dict(databases.parties)
        with disturbed(parties, kind, 1, fail) as fed:
            with unchanged(fed, parties), pytest.raises(type(error)):
                fed.sql(text)
            fed.sql(text)
            assert objective(fed) > 0


# -- the border ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "at"),
    in_turn(
        [
            {"batch_size": 7, "dropout": 0.3, "head": "linear", "embedding": 3},
            {"algorithm": "admm", "inner_rounds": 2, "local_epochs": 1, "dropout": 0.2},
            {"batch_size": 1, "optimizer": "momentum", "learning_rate": 0.01},
        ],
        ("two", "one", None),
    ),
    ids=str,
)
def test_traffic_is_what_explain_says(
    options: dict[str, object], at: str | None, database: Open
) -> None:
    """Weights, validation, several clients, a coordinator at a party."""
    draws = b"the key of the draws"
    query = f"SELECT t.x, t.g, t.c, p.z, p.d, t.cl, t.w FROM {ONE} t LEFT JOIN {TWO} p USING (k)"
    text = train_sql(
        "m", "mlp_classifier", "cl", query, epochs=2, **options, validation_fraction=0.3
    ).replace("TARGET cl", "TARGET cl WEIGHT w")
    predict = f"PREDICT MODEL m ID (one.rows.id) FROM ({query.replace('t.cl, ', '')})"
    tap = Tap()
    with (
        divided(3, FEW) as databases,
        pytest.MonkeyPatch.context() as patch,
        sqlfl.Federation(progress=False, wrap=tap, at=at) as fed,
    ):
        patch.setattr("sqlfl.udfs.blocks.blocks.MemoryBlocks.secret", lambda self, purpose: draws)
        parties = dict(databases.parties)
        for party, clients in parties.items():
            fed.attach(party, clients)
        for statement in (text, predict, f"EVALUATE MODEL m FROM ({query})"):
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            assert plan.at == at
            for stays, found in ((False, plan.disclosures), (True, plan.staying)):
                ends = {item.sender if item.direction == "up" else item.receiver for item in found}
                assert all((end.split("/")[0] == at) == stays for end in ends)
            epochs = 2 if statement == text else 0
            everything = Everything(plan)
            assert_disclosed(
                everything, recorded, parties, epochs=epochs, outputs=3, draws=draws  # type: ignore[arg-type]
            )  # fmt: skip


class Everything:
    """A plan that counts what stays at the coordinator's party among what is disclosed."""

    def __init__(self, plan: object) -> None:
        self._plan = plan

    def __getattr__(self, name: str) -> object:
        return getattr(self._plan, name)

    @property
    def disclosures(self) -> object:
        return self._plan.disclosures + self._plan.staying  # type: ignore[attr-defined]
