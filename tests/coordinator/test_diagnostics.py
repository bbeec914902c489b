"""WEIGHTS, IMPORTANCE and CONTRIBUTIONS OF MODEL against predictions and the central model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.linear_model import LinearRegression, LogisticRegression

import sqlfl
from sqlfl.base.errors import Error, ModelError, OptionError
from tests import oracle
from tests.conftest import Open
from tests.depth import examples
from tests.federations import Parties, federation, numbers, order, trainable
from tests.oracle import Central, Fitted
from tests.strategies import BOUNDED, Case, cases

Row = dict[str, Any]
OUTER_TOO = st.booleans().flatmap(lambda outer: cases(outer=outer))
ENGINES = st.sampled_from(("sql", "arrays"))


def columns_of(encoder: oracle.Encoder) -> list[tuple[str, str, str | None, float, float]]:
    """Of the encoded columns: feature, kind, category, centre, scale."""
    found: list[tuple[str, str, str | None, float, float]] = []
    for feature in encoder.numeric:
        named = [f"{feature.name}[{k}]" for k in range(1, len(feature.mean) + 1)]
        for name, mean, scale in zip(named, feature.mean, feature.scale, strict=True):
            found.append((name, "number", None, float(mean), float(scale)))
    for feature in encoder.numeric:
        if feature.indicator is not None:
            found.append((feature.name, "missing", "is missing", *feature.indicator))
    for category in encoder.categories:
        for value, share in zip(category.values, category.frequency, strict=True):
            kind = ("null", "is NULL") if value is None else ("category", value)
            found.append((category.name, *kind, float(share), 1.0))
    return found


def weights_of(rows: Sequence[Row], data: Central) -> tuple[Fitted, np.ndarray]:
    """The model in the oracle's columns, and its intercepts in the features' own units. Hashed
    categories are not told apart."""
    names = {item[:3]: place for place, item in enumerate(columns_of(data.encoder))}
    outputs = data.outputs
    weights, seen = np.zeros((len(names), outputs)), set()
    centred, own = np.zeros(outputs), np.zeros(outputs)
    for row in rows:
        text = str(row.get("class"))
        number = [str(c).lower() for c in data.classes].index(text.lower()) if outputs > 1 else 0
        if row["kind"] == "intercept":
            centred[number], own[number] = row["standardised"], row["coefficient"]
            continue
        key = (row["feature"], row["kind"], row["category"])
        place = names[key] if key in names else names[f"{key[0]}[1]", key[1], key[2]]
        _, _, _, centre, scale = columns_of(data.encoder)[place]
        assert row["centre"] == pytest.approx(centre, rel=1e-6, abs=1e-9)
        assert row["scale"] == pytest.approx(scale, rel=1e-6)
        assert row["coefficient"] == pytest.approx(row["standardised"] / row["scale"])
        weights[place, number] = row["standardised"]
        assert (place, number) not in seen
        seen.add((place, number))
    assert len(seen) == weights.size
    return Fitted(weights, centred), own


@given(st.booleans().flatmap(lambda outer: cases(outer=outer, unions=False)), ENGINES)
@examples(2)
def test_weights_are_those_of_the_central_model(case: Case, engine: str) -> None:
    with case.open(1) as databases, federation(databases) as fed:
        data = trainable(case, databases, l2=0.01)
        fed.sql(case.train(l2=0.01, engine=engine, tolerance=1e-9, epochs=300))
        result = fed.sql("WEIGHTS OF MODEL m")
        rows = result.arrow().to_pylist()
        assert fed.model("m").weights.equals(result.arrow())
        fitted, own = weights_of(rows, data)
        best = data.objective(data.optimum())
        assert data.objective(fitted) <= best + 1e-5 * abs(best) + 1e-7
        moved = [(c, s) for *_, c, s in columns_of(data.encoder)]
        centres, scales = (np.array([pair[k] for pair in moved]) for k in (0, 1))
        at_zero = fitted.intercept - (centres / scales) @ fitted.weights
        np.testing.assert_allclose(own, at_zero, rtol=1e-6, atol=1e-9)


@given(OUTER_TOO, st.integers(2, 3), st.booleans())
@examples(1, 40)
def test_clients_of_one_party_tell_one_block(case: Case, clients: int, combine: bool) -> None:
    """Categories are hashes then; their weights are those of one client's, in another order."""
    found = []
    for number in (1, clients):
        with (
            case.open(number) as databases,
            federation(databases, combine=combine and number > 1) as fed,
        ):
            trainable(case, databases, l2=0.01)
            fed.sql(case.train(l2=0.01, tolerance=1e-10, epochs=300))
            result = fed.sql("WEIGHTS OF MODEL m")
            rows = [r for r in result.arrow().to_pylist() if r["kind"] != "intercept"]
            told = ("number", "missing")
            keyed = {
                (r["feature"], r["kind"], r.get("class")): r["coefficient"]
                for r in rows
                if r["kind"] in told
            }
            values: dict[Any, list[float]] = {}
            for r in rows:
                if r["kind"] not in told:
                    key = (r["feature"], r.get("class"))
                    values.setdefault(key, []).append(r["coefficient"])
            hashed = any(r["kind"] == "hash" for r in rows)
            assert hashed == any("hashes" in note for note in result.notes)
            found.append((keyed, {key: sorted(own) for key, own in values.items()}))
    (one, first), (other, second) = found
    assert one.keys() == other.keys()
    assert first.keys() == second.keys()
    for key, value in one.items():
        assert other[key] == pytest.approx(value, rel=1e-2, abs=2e-3)
    for key, own in first.items():
        assert second[key] == pytest.approx(own, rel=1e-2, abs=2e-3)


def people(database: Open) -> Parties:
    town = database(
        "CREATE TABLE people AS SELECT range AS id, range % 7 AS age, "
        "['red', 'green', NULL][1 + range % 3] AS team, range % 5 AS club, "
        "(range * 37 % 11 > 4) AS tall, 1.5 * (range % 7) + (range % 5) + sin(range) AS y "
        "FROM range(90)",
    )
    clubs = database("CREATE TABLE clubs AS SELECT range AS club, range * range AS size "
                     "FROM range(5)")  # fmt: skip
    return {"town": [town], "league": [clubs]}


QUERY = """SELECT p.age, p.team, p.tall, c.size, p.y
  FROM town.people p JOIN league.clubs c USING (club)"""


def test_ratios_and_the_weights_of_sparse_models(database: Open) -> None:
    with federation(people(database)) as fed:
        fed.sql(f"TRAIN MODEL m USING lasso TARGET y WITH (radius = 1.5) FROM ({QUERY})")
        rows = fed.model("m").weights.to_pylist()
        assert sum(row["standardised"] == 0 for row in rows) >= 3
        assert sum(abs(row["standardised"]) for row in rows[1:]) == pytest.approx(1.5, rel=1e-6)
        fed.sql("TRAIN MODEL l USING logistic_regression TARGET late FROM "
                f"({QUERY.replace('p.y', 'p.y > 6 AS late')})")  # fmt: skip
        found = fed.model("l").weights.to_pylist()
        assert found[0]["odds_ratio"] is None
        for row in found[1:]:
            assert row["odds_ratio"] == pytest.approx(np.exp(row["coefficient"]))
        teams = [row["category"] for row in found if row["feature"] == "team"]
        assert teams == ["is NULL", "green", "red"]


def test_what_has_no_weights(database: Open, tmp_path: Path) -> None:
    parties = people(database)
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL t USING mlp_regressor TARGET y WITH (epochs = 1) FROM ({QUERY})")
        with pytest.raises(ModelError, match="IMPORTANCE OF MODEL t"):
            fed.sql("WEIGHTS OF MODEL t")
        with pytest.raises(ModelError, match="no model u"):
            fed.sql("WEIGHTS OF MODEL u")
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({QUERY})")
        fed.sql(f'TRAIN MODEL "an ""odd"" one" USING linear_regression TARGET y FROM ({QUERY})')
        assert fed.model('an "odd" one').weights.schema == fed.model("m").weights.schema
        before = fed.model("m")
        fed.sql(f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({QUERY})")
        with pytest.raises(ModelError, match="has been replaced"):
            _ = before.weights
        kept = fed._registry.get("m")
        with pytest.raises(Error, match=r"fed.model\('m'\) is the model that can ask"):
            _ = kept.weights
    town, clubs = tmp_path / "town.duckdb", tmp_path / "clubs.duckdb"
    for path, (con,) in zip((town, clubs), parties.values(), strict=True):
        name = "people" if path == town else "clubs"
        con.execute(f"ATTACH '{path}' AS file")
        con.execute(f"CREATE TABLE file.{name} AS FROM {name}")
        con.execute("DETACH file")
    with sqlfl.connect(tmp_path / "fed.duckdb", progress=False) as fed:
        fed.attach("town", town)
        fed.attach("league", clubs)
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({QUERY})")
        before = fed.model("m").weights
    with sqlfl.connect(tmp_path / "fed.duckdb", progress=False) as fed:
        fed.attach("town", town)
        with pytest.raises(ModelError, match="kept by party league, which is not attached"):
            fed.sql("WEIGHTS OF MODEL m")
        fed.attach("league", clubs)
        assert fed.model("m").weights.equals(before)


def test_weights_after_privacy_say_so(database: Open) -> None:
    with federation(people(database)) as fed:
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y PRIVACY (label_epsilon = 2, "
                f"label_bounds = [0, 20]) FROM ({QUERY})")  # fmt: skip
        notes = fed.sql("WEIGHTS OF MODEL m").notes
        assert any(note.startswith("The model was trained with PRIVACY.") for note in notes)


# -- contributions ---------------------------------------------------------------------------------


@given(OUTER_TOO, st.integers(1, 3), ENGINES, st.booleans(), st.booleans())
@examples(1)
def test_contributions_add_up_to_what_is_predicted(
    case: Case, clients: int, engine: str, combine: bool, features: bool
) -> None:
    with case.open(clients) as databases, federation(databases, combine=combine) as fed:
        data = trainable(case, databases)
        fed.sql(case.train(engine=engine, epochs=20))
        ids = f"ID ({', '.join(case.identifiers)})" if case.identifiers else ""
        table = fed.sql(
            f"CONTRIBUTIONS OF MODEL m {ids} WITH (engine = '{engine}', "
            f"features = {str(features).lower()}) FROM ({case.query})"
        ).arrow()
        suffixes = [f"_{name}" for name in fed.model("m").classes or ()]
        if data.outputs == 1:
            suffixes = [""]
        scores = []
        for suffix in suffixes:
            score = table.column(f"score{suffix}").to_numpy()
            scores.append(score)
            of_slots = own(table, suffix, dotted=False)
            total = table.column(f"intercept{suffix}").to_numpy() + sum(of_slots.values())
            np.testing.assert_allclose(total, score, rtol=1e-5, atol=1e-5)
            if features:
                for slot, values in of_slots.items():
                    parts = [v for n, v in own(table, suffix, dotted=True).items()
                             if n.startswith(f"{slot}.")]  # fmt: skip
                    scale = 1.0 + np.abs(parts).max(initial=0.0)
                    np.testing.assert_allclose(sum(parts), values, atol=1e-5 * scale)
        predictions = fed.sql(case.predict()).arrow()
        found = data.probabilities(np.column_stack(scores))
        names = [n for n in predictions.column_names if n.startswith("probability_")]
        names = names or ["prediction"]
        expected = np.column_stack([predictions.column(n).to_numpy() for n in names])
        if case.identifiers:
            count = len(case.row_ids)
            here, there = (
                order([numbers(t.column(k)) for k in range(count)]) for t in (table, predictions)
            )
            found, expected = found[here], expected[there]
        else:
            found, expected = np.sort(found, axis=0), np.sort(expected, axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def own(table: pa.Table, suffix: str, *, dotted: bool) -> dict[str, np.ndarray]:
    """Columns of what slots, or features of slots, add."""
    found = {}
    for name in table.column_names:
        if name.startswith("by_") and name.endswith(suffix) and ("." in name) == dotted:
            bare = name[3 : len(name) - len(suffix)]
            found[bare] = table.column(name).to_numpy()
    return found


def test_contributions_of_towers(database: Open) -> None:
    with federation(people(database)) as fed:
        fed.sql("TRAIN MODEL t USING mlp_regressor TARGET y WITH (epochs = 3, head = 'linear', "
                f"embedding = 2, seed = 1) FROM ({QUERY})")  # fmt: skip
        found = fed.sql(f"CONTRIBUTIONS OF MODEL t ID (p.id) FROM ({QUERY})").df()
        predicted = fed.sql(f"PREDICT MODEL t ID (p.id) FROM ({QUERY})").df()
        total = found["intercept"] + found["by_p"] + found["by_c"]
        np.testing.assert_allclose(total, found["score"], atol=1e-6)
        merged = found.merge(predicted, on="id", suffixes=("", "_told"))
        np.testing.assert_allclose(merged["score"], merged["prediction_told"], atol=1e-5)
        with pytest.raises(
            OptionError, match="only all features of a table together add to the score"
        ):
            fed.sql(f"CONTRIBUTIONS OF MODEL t WITH (features = true) FROM ({QUERY})")
        fed.sql("TRAIN MODEL p USING linear_regression TARGET y PRIVACY (epsilon = 8, delta = 1e-3,"
                f" statistics = 'none') FROM ({QUERY})")  # fmt: skip
        with pytest.raises(ModelError, match="trained with PRIVACY of features"):
            fed.sql(f"CONTRIBUTIONS OF MODEL p WITH (features = true) FROM ({QUERY})")


# -- importance ------------------------------------------------------------------------------------


@given(cases(kinds=BOUNDED), st.integers(1, 3), ENGINES, st.booleans())
@examples(1)
def test_what_every_feature_is_worth(case: Case, clients: int, engine: str, combine: bool) -> None:
    """A table's importance is that of its only feature but for chance; features without weights
    are worth nothing; and the same seed gives the same."""
    with case.open(clients) as databases, federation(databases, combine=combine) as fed:
        trainable(case, databases)
        fed.sql(case.train(engine=engine, epochs=20))
        text = (
            f"IMPORTANCE OF MODEL m WITH (repeats = 2, seed = 3, engine = '{engine}') "
            f"FROM ({case.query})"
        )
        table = fed.sql(text).arrow()
        rows = table.to_pylist()
        assert {row["feature"] for row in rows} == {None, *fed.model("m").features}
        for row in rows:
            assert (row["variance"] is None) == (row["feature"] is not None)
        again = fed.sql(text).arrow()
        for name in ("importance", "deviation"):
            np.testing.assert_allclose(
                again.column(name).to_numpy(), table.column(name).to_numpy(), atol=1e-9
            )


def test_importance_is_what_permuting_the_table_does(database: Open) -> None:
    """Means over many permutations here, and over many made in the table itself."""
    parties = people(database)
    repeats = 40
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({QUERY})")
        for metric, sign in (("rmse", 1.0), ("r2", -1.0)):
            found = fed.sql(
                f"IMPORTANCE OF MODEL m WITH (repeats = {repeats}, metric = '{metric}', seed = 1) "
                f"FROM ({QUERY})"
            ).df()
            by_feature = found.set_index("feature")["importance"]
            (con,) = parties["town"]
            frame = con.sql("SELECT age, team, tall, club % 5 AS club, y FROM people").df()
            rng = np.random.default_rng(0)
            weights = fed.model("m").weights.to_pandas()
            base = evaluated(frame, weights, metric)
            for feature in ("age", "tall"):
                losses = []
                for _ in range(repeats):
                    other = frame.copy()
                    other[feature] = rng.permutation(other[feature].to_numpy())
                    losses.append(sign * (evaluated(other, weights, metric) - base))
                spread = 4 * np.std(losses) / np.sqrt(repeats) + 1e-6
                assert by_feature[feature] == pytest.approx(np.mean(losses), abs=2 * spread)
            deviation = found.set_index("feature")["deviation"]["age"]
            assert 0 < deviation < 10 * abs(by_feature["age"])


def evaluated(frame: Any, weights: Any, metric: str) -> float:
    """The metric of the linear model that WEIGHTS tells."""
    h = np.full(len(frame), weights[weights.kind == "intercept"].coefficient.iloc[0])
    for row in weights[weights.kind != "intercept"].itertuples():
        if row.kind == "number":
            values = frame["club"] ** 2 if row.feature == "size" else frame[row.feature]
        elif row.kind == "null":
            values = frame["team"].isna()
        else:
            values = frame["team"] == row.category
        h += row.coefficient * values.to_numpy(float)
    error = frame["y"].to_numpy() - h
    if metric == "rmse":
        return float(np.sqrt(np.mean(error**2)))
    return float(1 - np.sum(error**2) / np.sum((frame["y"] - frame["y"].mean()) ** 2))


@pytest.mark.parametrize(
    ("kind", "metric"), [("logistic_regression", "auc"), ("mlp_classifier", "accuracy")]
)
def test_metrics_of_classes(database: Open, kind: str, metric: str) -> None:
    query = QUERY.replace("p.y", "p.y > 8 AS late")
    with federation(people(database)) as fed:
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET late FROM ({query})")
        result = fed.sql(f"IMPORTANCE OF MODEL m WITH (metric = '{metric}') FROM ({query})")
        value = fed.sql(f"EVALUATE MODEL m FROM ({query})").df()[metric].iloc[0]
        assert f"{value:.6g} as it is" in result.notes[-1]
        by_feature = result.df().set_index("feature")["importance"]
        assert by_feature["age"] > 0.05 > abs(by_feature["tall"])
        with pytest.raises(OptionError, match="have no rmse"):
            fed.sql(f"IMPORTANCE OF MODEL m WITH (metric = 'rmse') FROM ({query})")
        with pytest.raises(OptionError, match="a whole number from 1 to 1000"):
            fed.sql(f"IMPORTANCE OF MODEL m WITH (repeats = 0) FROM ({query})")


def test_variance_is_that_of_contributions(database: Open) -> None:
    with federation(people(database)) as fed:
        query = QUERY.replace("p.y", "(p.y / 5)::INTEGER AS part")
        fed.sql(f"TRAIN MODEL m USING softmax_regression TARGET part FROM ({query})")
        found = fed.sql(f"IMPORTANCE OF MODEL m FROM ({query})").arrow().to_pylist()
        added = fed.sql(f"CONTRIBUTIONS OF MODEL m FROM ({query})").df()
        for slot in ("p", "c"):
            (row,) = [r for r in found if r["table"] == slot and r["feature"] is None]
            columns = [name for name in added if name.startswith(f"by_{slot}_")]
            assert row["variance"] == pytest.approx(added[columns].var(ddof=0).sum(), rel=1e-4)
        names = [f"score_{name}" for name in fed.model("m").classes or ()]
        chances = softmax(added[names].to_numpy(), axis=1)
        told = fed.sql(f"PREDICT MODEL m FROM ({query})").df().filter(like="probability_")
        np.testing.assert_allclose(np.sort(chances, axis=0), np.sort(told, axis=0), atol=1e-5)


def test_coefficients_are_shaped_as_by_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2)) * [1.0, 5.0] + [3.0, 0.0]
    frame = pa.table({"a": x[:, 0], "b": x[:, 1], "k": np.arange(200)})
    score = x @ [2.0, -0.3]
    noise = rng.logistic(size=(200, 3))
    y = {"number": score, "two": score + noise[:, 0] > 6.0, "three": noise.argmax(axis=1)}
    labels = pa.table({"k": np.arange(200), **y})
    kinds = {"number": "linear", "two": "logistic", "three": "softmax"}
    with sqlfl.connect(progress=False) as fed:
        fed.attach("lab", {"x": frame})
        fed.attach("clinic", {"y": labels})
        for target, kind in kinds.items():
            query = f"SELECT x.a, x.b, y.{target} FROM lab.x x JOIN clinic.y y USING (k)"
            fed.sql(
                f"TRAIN MODEL {target} USING {kind}_regression TARGET {target} "
                f"WITH (l2 = 0.001) FROM ({query})"
            )
            own = LinearRegression() if target == "number" else LogisticRegression(C=1e3)
            own.fit(x, y[target])
            model = fed.model(target)
            assert model.coef_.shape == np.shape(own.coef_)
            assert model.intercept_.shape == np.reshape(own.intercept_, -1).shape
        np.testing.assert_allclose(fed.model("number").coef_, [2.0, -0.3], rtol=2e-3)
        np.testing.assert_allclose(fed.model("number").intercept_, [0.0], atol=2e-2)


def test_a_summary_is_the_inference_over_the_models_own_rows() -> None:
    query = "SELECT a, b, y FROM lab.x -- all"
    x = np.random.default_rng(5).normal(size=(100, 2))
    rows = pa.table({"a": x[:, 0], "b": x[:, 1], "y": x @ [1.0, 2.0] + x[:, 0] ** 2})
    with sqlfl.connect(progress=False) as fed:
        fed.attach("lab", {"x": rows})
        for name in ("m", 'odd "name"'):
            quoted = name.replace('"', '""')
            fed.sql(f'TRAIN MODEL "{quoted}" USING linear_regression TARGET y FROM (\n{query}\n)')
            expected = fed.sql(
                f'INFERENCE OF MODEL "{quoted}" WITH (robust = true) FROM (\n{query}\n)'
            )
            found = fed.model(name).summary(robust=True)
            assert found["feature"] == expected["feature"]
            for column in ("coefficient", "standard_error", "p", "upper"):
                np.testing.assert_allclose(found[column], expected[column], rtol=1e-9)
            assert len(fed.model(name).summary()) == len(expected)
        with pytest.raises(sqlfl.Error, match="there is no option robst"):
            fed.model("m").summary(robst=True)
        fed.sql(f"TRAIN MODEL h USING mlp_regressor TARGET y WITH (epochs = 1) FROM (\n{query}\n)")
        with pytest.raises(sqlfl.Error, match="standard errors are of"):
            fed.model("h").summary()
        gone = fed.model("m")
        fed.sql("DROP MODEL m")
        with pytest.raises(sqlfl.ModelError, match="there is no model m"):
            gone.summary()
        with pytest.raises(sqlfl.ModelError, match="there is no model m"):
            gone.coef_  # noqa: B018
