"""WITH (unit = expression): rows with an equal value are one unit, for strengths, validation and
folds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import Error, ModelError, OptionError, PlanError
from sqlfl.federation.resuming import resumed
from sqlfl.messages import Folds, SetStrengths, Split, Weigh
from sqlfl.messages.wire import decode
from tests.federation.test_curves_statements import put
from tests.federations import federation
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

UNITS, EACH = 60, 40
ROWS = UNITS * EACH
QUERY = "SELECT t.x, t.age, b.size, t.y FROM a.sales t JOIN b.shops b USING (k)"
TRAIN = "TRAIN OR REPLACE MODEL m USING {} TARGET y TRANSFORM (auto) WITH (unit = '{}'{}) FROM ({})"
LINEAR = "linear_regression"


def tables(seed: int = 2) -> tuple[pa.Table, pa.Table]:
    """Sales of customers, of whom nothing but their own mean tells anything; x is a sine."""
    rng = np.random.default_rng(seed)
    customer, k = np.arange(ROWS) % UNITS, rng.integers(0, 150, ROWS)
    x, age = rng.uniform(-2, 2, ROWS), rng.lognormal(size=UNITS)[customer]
    mean = rng.normal(size=UNITS)[customer] + np.sin(2 * x)
    sales = {
        "id": np.arange(ROWS), "customer": customer, "k": k, "x": x, "age": age,
        "y": mean + rng.normal(size=ROWS),
        "late": rng.random(ROWS) < 1 / (1 + np.exp(-mean)),
        "class": np.array(["p", "q", "r"])[np.digitize(mean + rng.normal(size=ROWS), [-0.5, 1.0])],
    }  # fmt: skip
    shops = {"k": np.arange(150), "size": rng.lognormal(size=150), "area": np.arange(150) % 30}
    return pa.table(sales), pa.table(shops)


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    sales, shops = tables()
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        with federation({"a": [one], "b": [two]}) as made:
            yield made


def reference(y: np.ndarray, weights: np.ndarray, units: np.ndarray) -> float:
    """Σ w_u² τ² / Σ w, with τ² of a one-way analysis of variance by hand, unit after unit."""
    weights = weights / weights.mean()
    mean, rows = np.average(y, weights=weights), len(y)
    names = np.unique(units)
    sizes = np.array([weights[units == name].sum() for name in names])
    means = [np.average(y[units == name], weights=weights[units == name]) for name in names]
    between = sum(w * (own - mean) ** 2 for w, own in zip(sizes, means, strict=True))
    within = sum(
        float(weights[units == name] @ (y[units == name] - own) ** 2)
        for name, own in zip(names, means, strict=True)
    )
    size = (rows - np.sum(sizes**2) / rows) / (len(names) - 1)
    variance = (between / (len(names) - 1) - within / (rows - len(names))) / size
    return float(max(variance, 0.0) * np.sum(sizes**2) / rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_dispersion_is_that_of_a_reference(weighted: bool) -> None:
    """Parties receive φ / N and what units add to it, for the features of all tables."""
    sales, shops = tables()
    rng = np.random.default_rng(3)
    weights = np.where(rng.random(ROWS) < 0.1, 0.0, rng.exponential(size=ROWS))
    weights = weights if weighted else np.ones(ROWS)
    sales = sales.append_column("f", pa.array(weights))
    query = QUERY.replace("t.y", "t.y, t.f") if weighted else QUERY
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        with tapped({"a": [one], "b": [two]}) as (fed, tap):
            text = TRAIN.format(LINEAR, "t.customer", ", tolerance = 1e-8", query)
            with tap.taken() as recorded:
                fed.sql(text.replace("TRANSFORM", "WEIGHT f TRANSFORM") if weighted else text)
            told = fed.sql(f"PREDICT MODEL m ID (t.id) FROM ({query})").df().sort_values("id")
            metrics = fed.model("m").metrics
    messages = [decode(item.data) for item in recorded]
    sent = [m.dispersion for m in messages if isinstance(m, SetStrengths)]
    y, kept = sales.column("y").to_numpy(), weights > 0
    rows, weights = int(kept.sum()), weights[kept] / weights[kept].mean()
    residuals = (y - told.prediction.to_numpy())[kept]
    spread = float(weights @ residuals**2) / (rows - metrics["effective_parameters"])
    excess = reference(y[kept], weights, sales.column("customer").to_numpy()[kept])
    assert sent[-1] == sent[-2]  # of both tables
    assert sent[-1] * rows == pytest.approx(spread + excess, rel=1e-3)
    assert metrics["spread_unit"] == pytest.approx(1 + excess / spread, rel=1e-2)
    assert "spread_t" not in metrics


def test_units_of_one_row_are_rows(fed: sqlfl.Federation) -> None:
    found = []
    for unit in ("rows", "t.id", "concat(t.id, ''!'')"):
        fed.sql(TRAIN.format(LINEAR, unit, "", QUERY))
        found.append(fed.model("m").metrics)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] == pytest.approx(found[2], rel=1e-9)


def test_new_units_are_predicted_better() -> None:
    """Nothing of customers tells anything of others, and curves of 100 sales of each of 20 fit
    their means."""
    rng = np.random.default_rng(5)
    customer = np.arange(8000) % 80
    table = {f"c{n}": rng.lognormal(size=80)[customer] for n in range(4)}
    x = rng.uniform(-2, 2, 8000)
    y = np.sin(2 * x) + rng.normal(size=80)[customer] + rng.normal(size=8000)
    scores, effective = {}, {}
    with in_memory() as con:
        put(con, "sales", pa.table({"customer": customer, "x": x, "y": y, **table}))
        with federation({"a": [con]}) as fed:
            query = f"SELECT t.x, t.y, {', '.join(table)} FROM a.sales t WHERE t.customer {{}} 20"
            for unit in ("rows", "table", "t.customer"):
                fed.sql(TRAIN.format(LINEAR, unit, "", query.format("<")))
                measured = fed.sql(f"EVALUATE MODEL m FROM ({query.format('>=')})")
                scores[unit] = measured.df().r2[0]
                effective[unit] = fed.model("m").metrics["effective_parameters"]
    assert scores["t.customer"] > scores["table"] + 0.05
    assert effective["t.customer"] < 0.5 * effective["table"]
    assert scores["table"] == pytest.approx(scores["rows"], abs=0.02)


def test_bands_are_of_the_unit(fed: sqlfl.Federation) -> None:
    widths = {}
    for unit in ("rows", "t.customer"):
        fed.sql(TRAIN.format(LINEAR, unit, "", QUERY))
        curve = fed.sql("CURVES OF MODEL m FEATURE x").df()
        widths[unit] = np.mean(curve.upper - curve.lower)
    spread = fed.model("m").metrics["spread_unit"]
    assert 0.4 * np.sqrt(spread) < widths["t.customer"] / widths["rows"] < 1.1 * np.sqrt(spread)


def test_rows_without_a_value_are_units_of_their_own(fed: sqlfl.Federation) -> None:
    found = []
    for unit in (
        "CASE WHEN t.customer < 30 THEN t.customer END",
        "CASE WHEN t.customer < 30 THEN t.customer ELSE 1000 + t.id END",
    ):
        fed.sql(TRAIN.format(LINEAR, unit, "", QUERY))
        found.append(fed.model("m").metrics)
    assert found[0]["spread_unit"] == pytest.approx(found[1]["spread_unit"], rel=1e-9)
    assert 5 < found[0]["spread_unit"] < 40


@pytest.mark.parametrize(
    ("kind", "target"),
    [("logistic_regression", "late"), ("softmax_regression", "class"), (LINEAR, "y")],
)
def test_several_databases_are_as_one(kind: str, target: str) -> None:
    """Rows of one unit may be at all of them, and the unit in a table without features."""
    sales, shops = tables()
    query = f"SELECT b.size, u.n, t.{target} AS y FROM a.sales t JOIN b.shops b USING (k) "
    query += "JOIN c.owners u ON u.customer = t.customer"
    owners = pa.table({"customer": np.arange(UNITS), "n": np.arange(UNITS) % 7})
    found = []
    for parts in (1, 3):
        place = np.arange(ROWS) // 7 % parts
        with in_memory() as one, in_memory() as more, in_memory() as most, in_memory() as two:
            holders = [one, more, most][:parts]
            for number, con in enumerate(holders):
                put(con, "sales", sales.filter(pa.array(place == number)))
            put(two, "shops", shops)
            with in_memory() as three:
                put(three, "owners", owners)
                with federation({"a": holders, "b": [two], "c": [three]}) as fed:
                    fed.sql(TRAIN.format(kind, "t.customer", ", tolerance = 1e-8", query))
                    found.append(fed.model("m").metrics)
    for name in ("spread_unit", "effective_parameters", "loss"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)
    assert found[0]["spread_unit"] > 1.5


# -- validation and folds -------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["t.customer", "b.area"])
def test_validation_holds_out_whole_units(unit: str) -> None:
    sales, shops = tables()
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        with tapped({"a": [one], "b": [two]}) as (fed, tap):
            found = []
            for seed in (1, 1, 2):
                options = f", validation_fraction = 0.25, seed = {seed}"
                with tap.taken() as recorded:
                    fed.sql(TRAIN.format(LINEAR, unit, options, QUERY))
                metrics = fed.model("m").metrics
                found.append((metrics["valid_rows"], metrics["valid_loss"]))
                messages = [decode(item.data) for item in recorded]
                assert not any(isinstance(message, Split) for message in messages)
                (weights,) = (m.counts for m in messages if isinstance(m, Weigh) and m.slot == 0)
                assert np.count_nonzero(weights == 0) == metrics["valid_rows"]
    areas = shops.column("area").to_numpy()[sales.column("k").to_numpy()]
    values = sales.column("customer").to_numpy() if unit == "t.customer" else areas
    sizes = np.unique(values, return_counts=True)[1]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0][1] != found[2][1]
    if unit == "t.customer":
        assert [rows for rows, _ in found] == [UNITS // 4 * EACH] * 3
    else:
        held = round(0.25 * len(sizes))
        least, most = np.sort(sizes)[:held].sum(), np.sort(sizes)[-held:].sum()
        assert least <= found[0][0] <= most


@pytest.mark.parametrize("clauses", ["TRANSFORM (auto) ", ""])
def test_folds_are_of_units(clauses: str) -> None:
    """A category of the customer tells the rest of his rows, and nothing of other customers."""
    sales, _ = tables()
    query = "SELECT t.customer::VARCHAR AS who, t.y FROM a.sales t"
    tune = f"TUNE OR REPLACE MODEL m USING {LINEAR} TARGET y {clauses}WITH (unit = '{{}}', "
    tune += f"folds = 3, metric = 'r2', seed = 1) FROM ({query})"
    with in_memory() as one:
        put(one, "sales", sales)
        with tapped({"a": [one]}) as (fed, tap):
            known = fed.sql(tune.format("rows")).df().r2[0]
            with tap.taken() as recorded:
                new = fed.sql(tune.format("t.customer")).df().r2[0]
    assert known > 0.2
    assert new < 0.02
    assert not any(isinstance(decode(item.data), Folds) for item in recorded)


# -- what surrounds it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "options"), [("TRAIN", ", validation_fraction = 0.2"), ("TUNE", ", folds = 2")]
)
@pytest.mark.parametrize(
    ("unit", "query"),
    [
        ("t.customer", QUERY.replace("t.y", "t.late AS y")),
        ("b.area // 2", QUERY.replace("t.y", "t.late AS y")),
        ("t.customer", "SELECT t.x, t.late AS y FROM a.sales t"),
        ("b.area", "SELECT t.x, t.late AS y FROM a.sales t JOIN b.shops b USING (k)"),
    ],
)
def test_what_leaves_is_what_explain_says(verb: str, options: str, unit: str, query: str) -> None:
    sales, shops = tables()
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        parties = {"a": [one], "b": [two]} if "shops" in query else {"a": [one]}
        with tapped(parties) as (fed, tap):
            text = TRAIN.format("logistic_regression", unit, options, query)
            statement = text.replace("TRAIN", verb)
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                found = fed.sql(statement)
            epochs = fed.model("m").history.num_rows
            if verb == "TUNE":
                epochs += sum(found.arrow().column("epochs").to_pylist())
            assert_disclosed(plan, recorded, parties, epochs=epochs)
    shown = str(plan)
    assert f"with the same {unit} are one unit, for the strengths of curves and" in shown


def test_an_owner_grants_the_unit_as_a_join_key() -> None:
    sales, shops = tables()
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        with sqlfl.owner(one) as owner:
            owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 100)")
            owner.sql("GRANT TRAIN (x, age), JOIN (k), LABEL (y) ON sales TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("a", one)
            fed.attach("b", two)
            with pytest.raises(Error, match="customer"):
                fed.sql(TRAIN.format(LINEAR, "t.customer", "", QUERY))
            with pytest.raises(Error, match=r"x of .* is not granted"):
                fed.sql(TRAIN.format(LINEAR, "t.x", "", QUERY))
            with sqlfl.owner(one) as owner:
                owner.sql("GRANT JOIN (customer) ON sales TO 'acme' UNDER p")
            fed.sql(TRAIN.format(LINEAR, "t.customer", ", validation_fraction = 0.2", QUERY))
            assert fed.model("m").metrics["spread_unit"] > 10
            with pytest.raises(Error, match="key"):
                fed.sql(TRAIN.format(LINEAR, "t.customer % 10", "", QUERY))


def test_a_join_that_lasts_sends_a_unit_s_hashes_once(fed: sqlfl.Federation) -> None:
    fed.sql(f"CREATE JOIN j AS ({QUERY})")
    found = []
    for unit in ("table", "t.customer", "t.customer"):
        text = TRAIN.format(LINEAR, unit, "", "").replace("FROM ()", "FROM j")
        found.append((fed.explain(text), fed.sql(text), fed.model("m").metrics)[::2])
    fed.sql("DROP JOIN j")
    fed.sql(TRAIN.format(LINEAR, "t.customer", "", QUERY))
    wanted = fed.model("m").metrics["spread_unit"]
    for _, metrics in found[1:]:
        assert metrics["spread_unit"] == pytest.approx(wanted, rel=1e-6)
    kinds = [{item.kind for item in plan.disclosures} for plan, _ in found]
    assert ["join_keys" in own for own in kinds] == [True, True, False]


@pytest.mark.parametrize(
    ("unit", "query", "error", "said"),
    [
        ("t.customer + b.k", QUERY, PlanError, "needs columns of 2 parties"),
        ("b.area", QUERY.replace("JOIN", "LEFT JOIN"), PlanError, "right of a LEFT JOIN"),
        ("t", QUERY, PlanError, "t is a table"),
        ("t.nothing", QUERY, PlanError, "t has no column nothing"),
        ("t.*", QUERY, PlanError, "is no expression over columns"),
        ("1", QUERY, PlanError, "is no expression over columns"),
        ("", QUERY, PlanError, "is no expression over columns"),
        ("t.customer; x", QUERY, PlanError, "is no expression over columns"),
        ("t.customer FROM c", QUERY, PlanError, "is no expression over columns"),
        ("row_number() OVER (ORDER BY t.k)", QUERY, PlanError, "from each row's own values"),
        ("(SELECT 1) + t.k", QUERY, PlanError, "from each row's own values"),
        ("[t.k]", QUERY, PlanError, "BIGINT.., and rows of one unit have an equal value"),
        ("t.k", QUERY.replace("SELECT", "SELECT DISTINCT"), PlanError, "one more column"),
    ],
)
def test_what_is_no_unit_is_refused(
    fed: sqlfl.Federation, unit: str, query: str, error: type[Error], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        fed.sql(TRAIN.format(LINEAR, unit, "", query))
    assert raised.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TRAIN MODEL q USING {} TARGET y WITH (unit = 't.k') FROM ({})", "decides nothing"),
        ("TRAIN MODEL q USING {} TARGET y TRANSFORM (auto) WITH (unit = 't.k', l2 = 0) FROM ({})",
         "decides nothing"),
        ("TRAIN MODEL q USING {} TARGET y TRANSFORM (auto) WITH (unit = 't.k') "
         "PRIVACY (epsilon = 1, delta = 1e-5) FROM ({})", "PRIVACY"),
        ("TUNE MODEL q USING {} TARGET y WITH (unit = 't.k', groups = 'b') FROM ({})",
         "groups = 'b' too"),
        ("TUNE MODEL q USING {} TARGET y WITH (unit = ['t.k', 'rows']) FROM ({})",
         "the same in all fits"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused(fed: sqlfl.Federation, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        fed.sql(text.format(LINEAR, QUERY))
    assert raised.value.hint


def test_a_model_whose_validation_units_are_unknown_is_not_resumed(fed: sqlfl.Federation) -> None:
    for seed, said in (("", "without a seed"), (", seed = 1", "trained to its end")):
        options = f", epochs = 3, validation_fraction = 0.2{seed}"
        fed.sql(TRAIN.format(LINEAR, "t.customer", options, QUERY))
        model = fed.model("m")
        object.__setattr__(model, "interrupted", not seed)
        with pytest.raises(ModelError, match=said):
            resumed(model)
