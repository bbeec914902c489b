"""Regression from noised moments: the model, kinds of tables, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from sqlfl.base.errors import ModelError, OptionError
from sqlfl.methods.moments.coordinator import (
    FitMoments,
    Solution,
    TableMoments,
    Target,
    discriminants,
    regression,
    solve,
    solve_correlated,
    table_solution,
)
from tests.conftest import Open
from tests.depth import in_turn
from tests.federations import federation
from tests.test_border import assert_disclosed, tapped

Array = np.ndarray
PRECISE = "epsilon = 1e6, delta = 1e-6, "
NUMBERS, CLASSES, SEVERAL = "linear_regression", "logistic_regression", "softmax_regression"


# -- the solution ----------------------------------------------------------------------------------


def exact(*tables: Array, labels: Array) -> list[TableMoments]:
    """What tables tell without noise."""
    centred = labels - labels.mean(axis=0)
    found = []
    for x in tables:
        own = x - x.mean(axis=0)
        found.append(TableMoments(own.T @ own / len(x), 0.0, own.T @ centred / len(x), 0.0))
    return found


def solved(blocks: list[TableMoments], target: Target, ridge: float = 0.0) -> Solution:
    return solve([table_solution(block, target, ridge) for block in blocks])


def test_one_table_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (400, 3)) @ rng.normal(size=(3, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=400)
    target = Target.of(np.array([[y.var()]]))
    solution = solved(exact(x, labels=y[:, None]), target)
    (theta,) = regression(solution, target)
    wanted = np.linalg.lstsq(np.column_stack([x, np.ones(400)]), y, rcond=None)[0][:3]
    np.testing.assert_allclose(theta[:, 0], wanted, rtol=1e-4)
    residuals = y - y.mean() - (x - x.mean(axis=0)) @ wanted
    assert solution.explained(target) == pytest.approx(1 - residuals.var() / y.var(), rel=1e-4)


def test_tables_that_are_uncorrelated_given_the_target_are_least_squares_too() -> None:
    rng = np.random.default_rng(2)
    y = rng.normal(size=100_000)
    tables = [
        np.outer(y, w) + rng.normal(size=(len(y), len(w))) for w in ([0.5, 1.0], [0.3], [2.0])
    ]
    target = Target.of(np.array([[y.var()]]))
    solution = solved(exact(*tables, labels=y[:, None]), target)
    theta = np.concatenate(regression(solution, target))[:, 0]
    wanted = np.linalg.lstsq(np.hstack([x - x.mean(axis=0) for x in tables]), y, rcond=None)[0]
    np.testing.assert_allclose(theta, wanted, atol=0.01)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_classes_of_one_table_are_fishers_discriminant(classes: int) -> None:
    rng = np.random.default_rng(classes)
    codes = rng.choice(classes, 4000, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2))
    x = rng.normal(size=(classes, 4))[codes] + rng.normal(size=(4000, 4)) @ rng.normal(size=(4, 4))
    shares = np.bincount(codes) / len(codes)
    hot = np.eye(classes)[codes]
    target = Target.of(np.diag(shares) - np.outer(shares, shares))
    ((theta,), constants) = discriminants(solved(exact(x, labels=hot), target), target, shares)
    scores = (x - x.mean(axis=0)) @ theta + constants
    wanted = LinearDiscriminantAnalysis().fit(x, codes).predict_log_proba(x)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(logs, wanted, atol=0.02)
    if classes == 2:  # the second one's indicator says the same
        target = Target.of(np.array([[shares[0] * shares[1]]]))
        ((two,), same) = discriminants(solved(exact(x, labels=hot[:, 1:]), target), target, shares)
        np.testing.assert_allclose(two[:, 1] - two[:, 0], theta[:, 1] - theta[:, 0], rtol=1e-6)
        assert same[1] - same[0] == pytest.approx(constants[1] - constants[0], abs=1e-9)


def test_noise_alone_gives_no_model() -> None:
    rng = np.random.default_rng(3)
    target = Target.of(np.array([[1.0]]))
    explained = []
    for _ in range(50):
        blocks = [
            TableMoments(
                np.eye(4) / 3 + 0.1 * rng.normal(size=(4, 4)), 0.1, rng.normal(size=(4, 1)), 1.0
            )
            for _ in range(3)
        ]
        solution = solved(blocks, target, 1e-4)
        explained.append(solution.explained(target))
        size = sum(float(np.square(own).sum()) for own in regression(solution, target))
        assert size <= 1.0
    assert np.mean(explained) < 0.1


# -- the second round ------------------------------------------------------------------------------


def correlated(*tables: Array, labels: Array, noise: float = 0.0, seed: int = 0) -> Solution:
    """The first table leads. noise: deviation of what is told of fits."""
    blocks = exact(*tables, labels=labels)
    centred = labels - labels.mean(axis=0)
    target = Target.of(centred.T @ centred / len(labels))
    parts = [table_solution(block, target, 0.0) for block in blocks]
    z = centred @ target.directions
    fits = (tables[0] - tables[0].mean(axis=0)) @ parts[0].weights
    rest = fits - z @ (z.T @ fits) / len(z)
    rng = np.random.default_rng(seed)
    measured = {}
    for n, x in enumerate(tables[1:], 1):
        moments = (x - x.mean(axis=0)).T @ rest / len(x)
        moments = moments + noise * rng.normal(size=moments.shape)
        measured[n] = FitMoments(moments, noise / np.sqrt(2), noise / np.sqrt(2))
    return solve_correlated(parts, 0, measured)


def test_effects_that_cancel_are_found_in_the_second_round() -> None:
    """y = a − b, a and b correlated: the first round finds a fifth of it."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=(50_000, 1))
    b = 0.8 * a + 0.6 * rng.normal(size=a.shape)
    y = a - b + 0.05 * rng.normal(size=a.shape)
    target = Target.of(np.array([[y.var()]]))
    assert solved(exact(a, b, labels=y), target).explained(target) < 0.3
    solution = correlated(a, b, labels=y)
    assert solution.explained(target) > 0.85
    one, two = regression(solution, target)
    assert one[0, 0] > 0.7
    assert two[0, 0] < -0.7


def test_tables_that_only_fits_tie_are_least_squares() -> None:
    rng = np.random.default_rng(6)
    y = rng.normal(size=200_000)
    lead = np.outer(y, [0.5, -0.2]) + rng.normal(size=(len(y), 2))
    h = lead @ [0.5, -0.2]
    others = [
        np.outer(y, w) + np.outer(h, v) + rng.normal(size=(len(y), len(w)))
        for w, v in (([0.3], [1.0]), ([0.2, -0.4], [-0.5, 0.8]))
    ]
    target = Target.of(np.array([[y.var()]]))
    theta = np.concatenate(regression(correlated(lead, *others, labels=y[:, None]), target))
    whole = np.hstack([x - x.mean(axis=0) for x in (lead, *others)])
    wanted = np.linalg.lstsq(whole, y, rcond=None)[0]
    np.testing.assert_allclose(theta[:, 0], wanted, atol=0.01)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_of_correlated_tables_are_fishers_discriminant(classes: int) -> None:
    rng = np.random.default_rng(10 + classes)
    codes = rng.choice(classes, 20_000)
    lead = rng.normal(size=(classes, classes - 1))[codes] + rng.normal(size=(20_000, classes - 1))
    mix = rng.normal(size=(classes - 1, 2)) / 2.0
    other = rng.normal(size=(classes, 2))[codes] + lead @ mix + rng.normal(size=(20_000, 2))
    shares = np.bincount(codes) / len(codes)
    target = Target.of(np.diag(shares) - np.outer(shares, shares))
    solution = correlated(lead, other, labels=np.eye(classes)[codes])
    theta, constants = discriminants(solution, target, shares)
    x = np.hstack([lead, other])
    scores = (x - x.mean(axis=0)) @ np.concatenate(theta) + constants
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wanted = LinearDiscriminantAnalysis().fit(x, codes).predict_log_proba(x)
    np.testing.assert_allclose(np.exp(logs), np.exp(wanted), atol=0.03)


@pytest.mark.parametrize("leading", [0, 1])
def test_a_table_without_columns_adds_nothing_in_the_second_round(leading: int) -> None:
    """As of a category of which no value was often enough to be told."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(500, 2))
    y = x @ [1.0, 0.5] + rng.normal(size=500)
    target = Target.of(np.array([[y.var()]]))
    blocks = exact(x, np.zeros((500, 0)), labels=y[:, None])
    parts = [table_solution(block, target, 0.0) for block in blocks]
    other = 1 - leading
    told = FitMoments(np.zeros((len(parts[other].slopes), 1)), 0.1, 0.1)
    found = solve_correlated(parts, leading, {other: told})
    for one, two in zip(found.weights, solve(parts).weights, strict=True):
        np.testing.assert_allclose(one, two)
    assert found.strength == pytest.approx(solve(parts).strength)


@pytest.mark.parametrize("noise", [0.3, 1.0, 1e3])
def test_noise_of_the_second_round_leaves_the_first(noise: float) -> None:
    """Nothing is correlated: most measures are shrunk to nothing, and none passes a covariance."""
    rng = np.random.default_rng(7)
    y = rng.normal(size=5_000)
    tables = [np.outer(y, w) + rng.normal(size=(len(y), len(w))) for w in ([0.5, 0.2], [0.4], [1])]
    target = Target.of(np.array([[y.var()]]))
    first = solved(exact(*tables, labels=y[:, None]), target)
    explained = []
    for seed in range(40):
        second = correlated(*tables, labels=y[:, None], noise=noise, seed=seed)
        theta = np.concatenate(regression(second, target))[:, 0]
        x = np.hstack([own - own.mean(axis=0) for own in tables])
        explained.append(1 - (y - x @ theta).var() / y.var())
        assert np.isfinite(theta).all()
    theta = np.concatenate(regression(first, target))[:, 0]
    best = 1 - (y - x @ theta).var() / y.var()
    assert np.median(explained) > best - 0.01
    assert min(explained) > 0.0


# -- statements ------------------------------------------------------------------------------------

BOUNDS = {
    "amount": "[0, 10]",
    "pieces": "[0, 4]",
    "visits": "[0, 3]",
    "region": "['north', 'south', 'west']",
    "colour": "['red', 'blue']",
    "same": "[0, 9]",
    "shade": "['dark', 'light']",
    "zone": "['a', 'b', 'c']",
}
ORDERS = (
    "CREATE TABLE orders AS SELECT i AS id, i % 40 AS customer, (i * 37) % 11 AS amount, "
    "CASE WHEN i % 6 > 0 THEN (i * 13) % 5 END AS pieces, 5 AS same, "
    "['red', 'blue', 'green'][1 + i % 3] AS colour, ['dark', 'light'][1 + i % 2] AS shade, "
    "((i % 40) * 5) % 4 + (i * 37) % 11 / 4 + (i * 7919) % 13 / 26 AS price, "
    "((i * 37) % 11 + 2 * (((i % 40) * 5) % 4)) > 9 AS late, "
    "['a', 'b', 'c', 'd', 'e'][1 + ((i * 37) % 11) // 3] AS kind FROM range(480) r(i)"
)
PEOPLE = (
    "CREATE TABLE people AS SELECT i AS id, (i * 5) % 4 AS visits, "
    "['north', 'south', 'west', NULL][1 + i % 4] AS region, "
    "['a', 'b', 'c'][1 + i % 3] AS zone FROM range(40) r(i)"
)
JOIN = "shop.orders o JOIN crm.people p ON o.customer = p.id"
TARGETS = {NUMBERS: "o.price", CLASSES: "o.late", SEVERAL: "o.kind"}
TABLES = {
    "two tables": ("o.amount, o.pieces, p.visits, p.region", JOIN),
    "one table": ("o.amount, o.pieces, o.colour", "shop.orders o"),
    "the label without features": ("p.visits, p.region", JOIN),
    "categories only": ("o.shade, p.zone", JOIN),
    "two categories": ("p.zone, IF(p.id < 20, 'dark', 'light') AS shade, o.amount, p.visits", JOIN),
    "unlisted categories": ("o.colour, p.region, o.shade", JOIN),
    "left join": ("o.amount, p.visits", JOIN.replace("JOIN", "LEFT JOIN") + " AND p.id < 25"),
    "constant columns": ("o.amount, o.same, p.visits", JOIN),
    "many to many": (
        "o.amount, p.visits",
        "shop.orders o JOIN crm.people p ON o.amount % 4 = p.visits",
    ),
    "union": (
        "o.amount, p.visits",
        "(SELECT * FROM shop.orders WHERE id < 200 UNION ALL SELECT * FROM shop.orders "
        "WHERE id >= 200) AS o JOIN crm.people p ON o.customer = p.id",
    ),
}


GAPS = ("two tables", "one table", "the label without features", "left join", "unlisted categories")
"""With NULLs, and categories that nobody has listed."""


def shop(database: Open, clients: int = 1) -> dict[str, list[Any]]:
    parties: dict[str, list[Any]] = {}
    for party, table, text in (("shop", "orders", ORDERS), ("crm", "people", PEOPLE)):
        parties[party] = [database(text) for _ in range(clients)]
        for q, con in enumerate(parties[party]):
            con.execute(f"DELETE FROM {table} WHERE id % {clients} <> {q}")
    return parties


def query(tables: str, kind: str) -> str:
    columns, source = TABLES[tables]
    return f"SELECT {columns}, {TARGETS[kind]} AS y FROM {source}"


def statement(
    kind: str, text: str, privacy: str = PRECISE, options: str = "", weight: str = ""
) -> str:
    """With bounds of the features that there are."""
    columns = text.partition(" FROM ")[0]
    bounds = ", ".join(f"'{name}': {own}" for name, own in BOUNDS.items() if name in columns)
    if "epsilon = " in privacy.replace("label_epsilon", "") or "noise_multiplier" in privacy:
        privacy = f"{privacy}feature_bounds = {{{bounds}}}"
    return (
        f"TRAIN OR REPLACE MODEL m USING {kind} TARGET y {weight} "
        f"WITH (algorithm = 'moments'{options}) PRIVACY ({privacy}) FROM ({text})"
    )


@pytest.mark.parametrize(
    ("tables", "kind", "clients", "union"),
    [
        own
        for own in in_turn(TABLES, (NUMBERS, CLASSES, SEVERAL), (1, 2), ("exact", "secure"))
        if own[0] != "union" or own[2] == 1  # a union over several databases is the same
    ],
)
def test_models_of_all_kinds_of_tables(
    tables: str, kind: str, clients: int, union: str, database: Open
) -> None:
    """They are better than a constant, and the traffic is what EXPLAIN says."""
    secure = union == "secure" and clients == 2
    text = query(tables, kind)
    sql = statement(kind, text, options=", union = 'secure'" * secure)
    parties = shop(database, clients)
    with tapped(parties) as (fed, tap):
        plan = fed.explain(sql)
        with tap.taken() as recorded:
            fed.sql(sql)
        model = fed.model("m")
        outputs = len(model.classes) if kind == SEVERAL else 1
        if not secure and tables not in GAPS:
            assert_disclosed(plan, recorded, parties, epochs=1, outputs=outputs)
        assert 0.0 <= model.metrics["explained"] <= 1.0
        assert model.ending.short == "solved"
        assert model.privacy.noised == ("moments",)
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()
    if kind == NUMBERS:
        assert found["r2"] > -0.01
        assert found["r2"] > model.metrics["explained"] - 0.05
    else:
        assert found["log_loss"] < (0.7 if kind == CLASSES else 1.62)


@pytest.mark.parametrize("clients", [1, 2])
def test_several_databases_are_as_one(clients: int, database: Open) -> None:
    text = query("two tables", NUMBERS)
    sql = statement(NUMBERS, text)
    found = []
    for parties in (shop(database), shop(database, clients)):
        with federation(parties, combine=clients == 2) as fed:
            fed.sql(sql)
            found.append(fed.sql(f"PREDICT MODEL m FROM ({text})").df()["prediction"].sort_values())
    np.testing.assert_allclose(*[values.to_numpy() for values in found], atol=0.02)


def test_it_is_ridge_regression_of_one_table(database: Open) -> None:
    text = "SELECT o.amount, o.pieces, o.price AS y FROM shop.orders o"
    with federation(shop(database)) as fed:
        fed.sql(statement(NUMBERS, text, options=", l2 = 0"))
        found = fed.sql(f"PREDICT MODEL m ID (shop.orders.id) FROM ({text})").df()
    con = shop(database)["shop"][0]
    rows = con.sql(
        "SELECT id, amount, coalesce(pieces, 2) AS pieces, price FROM orders ORDER BY id"
    )
    x = rows.df()
    design = np.column_stack([np.ones(len(x)), x["amount"], x["pieces"]])
    wanted = design @ np.linalg.lstsq(design, x["price"], rcond=None)[0]
    own = found.sort_values("id")["prediction"].to_numpy()
    np.testing.assert_allclose(own, wanted, atol=5e-3)


def test_weights_are_as_copies(database: Open) -> None:
    """Of labels' sums and of moments."""
    text = "SELECT o.amount, p.visits, o.price AS y, {} FROM " + JOIN
    weighted = text.format("(o.id % 3)::DOUBLE AS counts")
    copied = text.format("o.id").replace(", o.id", "").replace("shop.orders", "shop.copies")
    found = []
    for own, weight in ((weighted, "WEIGHT counts"), (copied, "")):
        parties = shop(database)
        copies = "SELECT o.* FROM orders o, range(3) c(k) WHERE k < o.id % 3"
        parties["shop"][0].execute(f"CREATE TABLE copies AS {copies}")
        with federation(parties) as fed:
            fed.sql(statement(NUMBERS, own, weight=weight))
            scored = text.format("o.id").replace(", o.id", "")
            found.append(
                fed.sql(f"PREDICT MODEL m FROM ({scored})").df()["prediction"].sort_values()
            )
    np.testing.assert_allclose(*[values.to_numpy() for values in found], atol=0.02)


def test_noised_labels_are_not_taken_for_weak_effects(database: Open) -> None:
    """Probabilities are of the true classes."""
    text = "SELECT o.amount, p.visits, o.late AS y FROM " + JOIN
    privacy = f"{PRECISE}label_epsilon = 1.5, "
    with federation(shop(database)) as fed:
        fed.sql(statement(CLASSES, text, privacy))
        noised = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()[0]
        assert fed.model("m").privacy.noised == ("labels", "moments")
        fed.sql(statement(CLASSES, text))
        plain = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()[0]
    assert noised["auc"] > plain["auc"] - 0.05
    assert noised["log_loss"] < plain["log_loss"] + 0.25


@pytest.mark.parametrize("kind", [NUMBERS, CLASSES, SEVERAL])
@pytest.mark.parametrize("rows", [2, 5])
def test_tiny_tables_give_a_constant_and_a_warning(kind: str, rows: int, database: Open) -> None:
    text = f"SELECT o.amount, o.pieces, o.colour, p.visits, {TARGETS[kind]} AS y FROM {JOIN}"
    parties = shop(database)
    parties["shop"][0].execute(
        f"DELETE FROM orders WHERE id NOT IN (SELECT 2 * range FROM range({rows}))"
    )
    with federation(parties) as fed:
        with warnings.catch_warnings(record=True):
            fed.sql(statement(kind, text, "epsilon = 0.1, delta = 1e-6, "))
        model = fed.model("m")
        told = any("hardly more than a constant" in text for text in model.remarks)
        assert told == (model.metrics["explained"] < 0.01)
        predicted = fed.sql(f"PREDICT MODEL m FROM ({text})").arrow()
        assert predicted.num_rows == rows
        if kind == NUMBERS:
            values = predicted.column("prediction").to_numpy()
            assert np.isfinite(values).all()
            assert np.ptp(values) < 10


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_constant_target_gives_a_constant(rounds: int, database: Open) -> None:
    text = query("two tables", NUMBERS).replace("o.price", "2 + 0 * o.price")
    with federation(shop(database)) as fed:
        with pytest.warns(UserWarning, match="hardly more than a constant"):
            fed.sql(statement(NUMBERS, text, options=f", rounds = {rounds}"))
        assert fed.model("m").metrics["explained"] == 0.0
        found = fed.sql(f"PREDICT MODEL m FROM ({text})").df()["prediction"]
    np.testing.assert_allclose(found, 2.0)


def test_an_empty_join_is_told(database: Open) -> None:
    text = query("two tables", NUMBERS) + " WHERE o.id < 0"
    with federation(shop(database)) as fed, pytest.raises(ModelError, match="no rows"):
        fed.sql(statement(NUMBERS, text))


def test_effects_that_cancel_are_not_found_and_that_is_told(database: Open) -> None:
    """y = a − b, of correlated a and b: exact cross moments would tell."""
    one = database(
        "CREATE TABLE l AS SELECT i AS id, a, a - b AS y FROM (SELECT i, "
        "sin(i) AS a, 0.8 * sin(i) + 0.6 * sin(i * 1.7) AS b FROM range(2000) r(i))"
    )
    two = database(
        "CREATE TABLE r AS SELECT i AS id, 0.8 * sin(i) + 0.6 * sin(i * 1.7) AS b "
        "FROM range(2000) r(i)"
    )
    with federation({"one": [one], "two": [two]}) as fed:
        with pytest.warns(match="effects cancel"):
            fed.sql(
                "TRAIN MODEL m USING linear_regression TARGET y WITH (rounds = 1) "
                f"PRIVACY ({PRECISE} feature_bounds = {{'a': [-1, 1], 'b': [-2, 2]}}) FROM "
                "(SELECT l.a, l.y, r.b FROM one.l JOIN two.r USING (id))"
            )
        model = fed.model("m")
        assert model.metrics["explained"] < 0.5
        assert "uncorrelated given the target" in model.ending.reason
        fed.sql(
            "TRAIN MODEL n USING linear_regression TARGET y "
            f"PRIVACY ({PRECISE} feature_bounds = {{'a': [-1, 1], 'b': [-2, 2]}}) FROM "
            "(SELECT l.a, l.y, r.b FROM one.l JOIN two.r USING (id))"
        )
        model = fed.model("n")
        assert model.options["rounds"] == 2
        assert model.metrics["explained"] > 0.8
        assert "only as the fits of one table" in model.ending.reason


@pytest.mark.parametrize(
    ("tables", "privacy", "options", "rounds"),
    [
        ("two tables", "epsilon = 4, ", "", 2),
        ("two tables", "epsilon = 3.9, ", "", 1),
        ("two tables", "epsilon = 3.9, ", ", rounds = 2", 2),
        ("two tables", "epsilon = 8, ", ", rounds = 1", 1),
        ("one table", "epsilon = 8, ", "", 1),
        ("the label without features", "epsilon = 8, ", "", 1),
    ],
)
def test_a_second_round_where_it_pays(
    tables: str, privacy: str, options: str, rounds: int, database: Open
) -> None:
    """EXPLAIN tells who releases what in it."""
    sql = statement(NUMBERS, query(tables, NUMBERS), privacy, options)
    with federation(shop(database)) as fed:
        plan = fed.explain(sql)
        assert plan.training.listed()["rounds"] == rounds
        phases = [exchange.phase for exchange in plan.exchanges]
        assert phases.count("fits") == rounds - 1
        told = [d for d in plan.disclosures if d.kind == "predictions"]
        assert [d.sender for d in told] == ["shop/0"] * (rounds - 1)
        report = fed.sql(f"EXPLAIN (VERBOSE) {sql}").fetchall()
        assert ("fits of its rows" in str(report)) == (rounds == 2)


def test_a_second_round_needs_a_second_table(database: Open) -> None:
    sql = statement(NUMBERS, query("one table", NUMBERS), options=", rounds = 2")
    with federation(shop(database)) as fed, pytest.raises(OptionError) as caught:
        fed.sql(sql)
    assert "option rounds must be 1 where features are of 1 table, got 2" in caught.value.message
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("options", "privacy", "kind", "message"),
    [
        (", epochs = 5", PRECISE, NUMBERS, "option epochs does not go with algorithm 'moments'"),
        (", tolerance = 0.1", PRECISE, NUMBERS, "option tolerance does not go with algorithm"),
        (", learning_rate = 0.1", PRECISE, NUMBERS, "learning_rate does not apply to algorithm"),
        (", validation_fraction = 0.2", PRECISE, NUMBERS, "no row's prediction is known"),
        (", union = 'consensus'", PRECISE, NUMBERS, "'exact' or 'secure' with algorithm 'moments'"),
        ("", f"{PRECISE}prediction_clip = 1, ", NUMBERS, "prediction_clip does not go with"),
        ("", f"{PRECISE}clip = 1, ", NUMBERS, "clip does not go with algorithm 'moments'"),
        ("", f"{PRECISE}max_fan_out = 3, ", NUMBERS, "max_fan_out does not go with"),
        ("", "noise_multiplier = 3, ", NUMBERS, "noise_multiplier does not go with"),
        (
            "",
            f"{PRECISE}predictions = 'gaussian', ",
            NUMBERS,
            "noises all that it releases in a way of",
        ),
        ("", PRECISE, "mlp_regressor", "does not train mlp_regressor"),
        ("", "label_epsilon = 1, label_bounds = [0, 9]", NUMBERS, "needs PRIVACY (epsilon = ...)"),
        (", warm_start = 'n'", PRECISE, NUMBERS, "warm_start"),
        (", checkpoint = 1", PRECISE, NUMBERS, "checkpoint"),
    ],
)
def test_refusals(options: str, privacy: str, kind: str, message: str, database: Open) -> None:
    text = query("two tables", NUMBERS)
    sql = statement(kind, text, privacy, options)
    with federation(shop(database)) as fed, pytest.raises(OptionError) as caught:
        fed.sql(sql)
    assert message in caught.value.message


def test_without_privacy_it_is_refused(database: Open) -> None:
    text = query("two tables", NUMBERS)
    sql = statement(NUMBERS, text)
    sql = sql[: sql.index("PRIVACY")] + f"FROM ({text})"
    with federation(shop(database)) as fed, pytest.raises(OptionError, match="needs PRIVACY"):
        fed.sql(sql)


def test_a_budget_that_is_too_small_is_refused(database: Open) -> None:
    from sqlfl.base.errors import PrivacyError

    text = query("two tables", NUMBERS)
    with federation(shop(database)) as fed, pytest.raises(PrivacyError, match="1000 times"):
        fed.sql(statement(NUMBERS, text, "epsilon = 1e-4, "))


@pytest.mark.parametrize(
    ("kind", "options", "privacy", "algorithm"),
    [
        (NUMBERS, "", "epsilon = 1", "moments"),
        (CLASSES, "WITH (l2 = 0.1)", "epsilon = 1, label_epsilon = 1", "moments"),
        (SEVERAL, "WITH (union = 'exact')", "epsilon = 1, feature_bound = 1", "moments"),
        (NUMBERS, "", "epsilon = 1, predictions = 'moments'", "moments"),
        (NUMBERS, "", "epsilon = 1, predictions = 'gaussian'", "sgd"),
        (NUMBERS, "", "epsilon = 1, predictions = 'exact'", "sgd"),
        (NUMBERS, "WITH (epochs = 3)", "epsilon = 1, predictions = 'gaussian'", "sgd"),
        (NUMBERS, "", "noise_multiplier = 1", "sgd"),
        (NUMBERS, "WITH (algorithm = 'sgd', epochs = 3)", "epsilon = 1", "sgd"),
        (NUMBERS, "WITH (algorithm = 'admm')", "epsilon = 1, predictions = 'gaussian'", "admm"),
        ("mlp_regressor", "", "epsilon = 1", "sgd"),
    ],
)
def test_it_is_the_default_of_a_budget_where_no_other_predictions_are_asked_for(
    kind: str, options: str, privacy: str, algorithm: str, database: Open
) -> None:
    bounds = f"feature_bounds = {{'amount': {BOUNDS['amount']}, 'visits': {BOUNDS['visits']}}}"
    more = ", label_classes = ['a', 'b']" if kind == SEVERAL and "label" in privacy else ""
    text = (
        f"TRAIN MODEL m USING {kind} TARGET y {options} PRIVACY ({privacy}{more}, {bounds}) "
        f"FROM (SELECT o.amount, p.visits, {TARGETS.get(kind, 'o.price')} AS y FROM {JOIN})"
    )
    with federation(shop(database)) as fed:
        assert fed.explain(text).algorithm == algorithm


@pytest.mark.parametrize(
    ("options", "privacy", "message"),
    [
        ("WITH (epochs = 3)", "", "option epochs does not go with algorithm 'moments'"),
        ("WITH (learning_rate = 0.1)", "", "option learning_rate does not apply to algorithm"),
        ("WITH (batch_size = 9)", "", "option batch_size does not apply to algorithm 'moments'"),
        ("", ", clip = 2", "option clip does not go with algorithm 'moments'"),
        ("", ", prediction_clip = 2", "option prediction_clip does not go with algorithm"),
        ("", ", max_fan_out = 3", "option max_fan_out does not go with algorithm 'moments'"),
    ],
)
def test_options_of_descent_are_refused_in_words(
    options: str, privacy: str, message: str, database: Open
) -> None:
    """Whoever writes them is told how to descend: nothing is chosen without a word."""
    text = query("two tables", NUMBERS)
    asked = statement(NUMBERS, text, f"epsilon = 1{privacy}, ")
    asked = asked.replace("WITH (algorithm = 'moments')", options)
    with federation(shop(database)) as fed, pytest.raises(OptionError) as told:
        fed.explain(asked)
    assert message in told.value.message
    assert "descend: WITH (algorithm = 'sgd')" in str(told.value.hint)


def test_the_older_spelling_of_exact_predictions_is_deprecated(database: Open) -> None:
    text = query("two tables", NUMBERS)
    asked = statement(NUMBERS, text, "epsilon = 1e6, predictions = 'none', ")
    asked = asked.replace("WITH (algorithm = 'moments')", "")
    with federation(shop(database)) as fed:
        with pytest.warns(Warning, match="deprecated: write 'exact'"):
            fed.sql(asked)
        assert "predictions = 'exact'" in str(fed.model("m").privacy)
