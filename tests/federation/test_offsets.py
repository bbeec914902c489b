"""OFFSET and EXPOSURE beside Newton's method over the joined rows, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import ModelError, PlanError, PolicyError
from sqlfl.messages import Offsets
from sqlfl.messages.wire import decode
from sqlfl.store.model_document import history_to_bytes, model_from, model_to_json
from tests.clinic import QUERY, central, clinics, predicted
from tests.conftest import Open
from tests.depth import in_turn
from tests.federations import federation
from tests.governance.clinic import ruled
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

L2 = 1e-3
TARGETS = {
    "poisson_regression": "v.n",
    "gamma_regression": "v.n + 0.5 AS n",
    "logistic_regression": "v.n > 1 AS n",
}
CLAUSES = {"OFFSET e": ", ln(v.years) AS e", "EXPOSURE e": ", v.years AS e"}
GIVEN = [
    (kind, clause)
    for kind in TARGETS
    for clause in CLAUSES
    if not (kind.startswith("logistic") and clause.startswith("EXPOSURE"))
]


def query(kind: str, clause: str) -> str:
    return QUERY.format(target=TARGETS[kind], more=CLAUSES[clause])


def train(kind: str, clause: str, text: str = "", **options: object) -> str:
    written = ", ".join(f"{name} = {value!r}" for name, value in ({"l2": L2} | options).items())
    return (
        f"TRAIN OR REPLACE MODEL m USING {kind} TARGET n {clause} WITH ({written}) "
        f"FROM ({text or query(kind, clause)})"
    )


def newton(
    kind: str, x: np.ndarray, y: np.ndarray, offset: np.ndarray, w: np.ndarray | None = None
) -> np.ndarray:
    """The means of the best model, with the penalty on all columns but the constant."""
    z = np.column_stack([np.ones(len(x)), x])
    w = np.ones(len(y)) if w is None else w
    w = w / w.sum()
    penalty = L2 * np.diag([0.0, *np.ones(x.shape[1])])
    theta = np.zeros(z.shape[1])
    for _ in range(60):
        h = z @ theta + offset
        if kind == "logistic_regression":
            mean = 1.0 / (1.0 + np.exp(-h))
            slope, bend = mean - y, mean * (1.0 - mean)
        else:
            mean = np.exp(h)
            slope, bend = mean - y, mean
            if kind == "gamma_regression":
                slope, bend = 1.0 - y / mean, np.ones(len(y))
        gradient = z.T @ (w * slope) + penalty @ theta
        theta = theta - np.linalg.solve((z.T * (w * bend)) @ z + penalty, gradient)
    return mean


def means(fed: sqlfl.Federation, kind: str, text: str) -> np.ndarray:
    if kind != "logistic_regression":
        return predicted(fed, text)
    result = fed.sql(f"PREDICT MODEL m ID (clinic.visits.id) FROM ({text})").arrow()
    order = np.argsort(result.column("id").to_numpy())
    return result.column("probability_true").to_numpy()[order]


@pytest.fixture
def parties(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    return clinics(database)


@pytest.fixture
def fed(parties: dict[str, list[duckdb.DuckDBPyConnection]]) -> Iterator[sqlfl.Federation]:
    with federation(parties) as made:
        yield made


@pytest.mark.parametrize(("given", "engine"), in_turn(GIVEN, ["arrays", "sql"]), ids=str)
def test_the_means_are_those_of_newtons_method(
    fed: sqlfl.Federation, given: tuple[str, str], engine: str
) -> None:
    kind, clause = given
    text = query(kind, clause)
    x, y, years = central(text)
    fed.sql(train(kind, clause, engine=engine))
    expected = newton(kind, x, y, np.log(years))
    np.testing.assert_allclose(means(fed, kind, text), expected, rtol=1e-5)
    row = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()[0]
    if kind == "poisson_regression":
        loss = np.mean(expected - y * np.log(expected))
    elif kind == "gamma_regression":
        loss = np.mean(y / expected + np.log(expected))
    else:
        loss = -np.mean(np.log(np.where(y > 0, expected, 1.0 - expected)))
    assert row["loss"] == pytest.approx(loss, rel=1e-6)
    model = fed.model("m")
    assert model.metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert model.ending.converged
    assert (model.offset, model.exposure) == ("e", clause.startswith("EXPOSURE"))
    assert "e" not in model.features


def test_an_offset_goes_with_weights_parts_for_validation_and_other_parties_columns(
    fed: sqlfl.Federation,
) -> None:
    kind, clause = "poisson_regression", "WEIGHT w OFFSET e"
    text = QUERY.format(target="v.n", more=", ln(v.years) AS e, 1 + v.id % 3 AS w")
    x, y, years = central(text.replace(", 1 + v.id % 3 AS w", ""))
    fed.sql(train(kind, clause, text))
    expected = newton(kind, x, y, np.log(years), 1.0 + np.arange(len(y)) % 3)
    np.testing.assert_allclose(predicted(fed, text), expected, rtol=1e-2)
    held = train(kind, clause, text, validation_fraction=0.3, seed=1)
    fed.sql(held)
    assert fed.model("m").metrics["valid_deviance"] < 10.0
    # geo holds the offset, and no feature
    alone = (
        "SELECT v.age, v.ward, v.n, ln(1 + coalesce(p.size, 0)) AS e FROM clinic.visits v "
        "LEFT JOIN geo.places p ON v.place = p.place"
    )
    fed.sql(train(kind, "OFFSET e", alone))
    found = predicted(fed, alone)
    with in_memory() as whole:
        offset = whole.sql(
            "SELECT ln(1 + CASE WHEN i % 11 < 9 THEN (i % 11 * (i % 11)) % 7 ELSE 0 END) "
            "FROM range(240) r(i) ORDER BY i"
        ).fetchnumpy()
    own = np.array([value for (value,) in zip(*offset.values(), strict=True)])
    shown = x[:, : x.shape[1]]
    assert found.sum() == pytest.approx(y.sum(), rel=1e-5)  # the intercept is free
    assert np.corrcoef(np.log(found) - own, np.log(found))[0, 1] < 0.9
    assert len(shown) == len(found)


def test_folds_resumed_training_and_files_have_offsets(
    parties: dict[str, list[duckdb.DuckDBPyConnection]],
) -> None:
    kind, clause = "poisson_regression", "EXPOSURE e"
    text = query(kind, clause)
    with federation(parties) as fed:
        fed.sql(train(kind, clause))
        whole = predicted(fed, text)
        fed.sql(train(kind, clause, epochs=2, tolerance=0.0))
        fed.sql(train(kind, clause, warm_start="m"))
        np.testing.assert_allclose(predicted(fed, text), whole, rtol=1e-4)
        tuned = (
            f"TUNE MODEL t USING {kind} TARGET n {clause} WITH (l2 = [0.001, 10.0], folds = 3, "
            f"seed = 3) FROM ({text})"
        )
        shown = fed.sql(tuned).arrow().to_pylist()
        assert fed.model("t").options["l2"] == 0.001
        assert all(row["loss"] is not None for row in shown)
        assert ("exposure", "e") in fed.sql("DESCRIBE MODEL m").fetchall()
        model = fed.model("m")
    kept = model_from(model_to_json(model), history_to_bytes(model.history), "")
    assert (kept.offset, kept.exposure) == ("e", True)


def test_the_offset_is_one_more_part_of_an_exported_prediction(
    fed: sqlfl.Federation, tmp_path: Path
) -> None:
    kind, clause = "poisson_regression", "OFFSET e"
    fed.sql(train(kind, clause))
    fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'out'}'")
    with in_memory() as bare:
        for file in ("clinic/v.sql", "geo/p.sql", "prediction.sql"):
            bare.execute((tmp_path / "out" / file).read_text())
        ((found, none),) = bare.sql(
            "SELECT m_prediction([m_v(1.0, 'u'), m_p(3, 's'), ln(2.5)]), "
            "m_prediction([m_v(1.0, 'u'), m_p(3, 's')])"
        ).fetchall()
    assert found == pytest.approx(2.5 * none)


def test_looks_at_a_model_have_its_offset(fed: sqlfl.Federation) -> None:
    kind, clause = "poisson_regression", "OFFSET e"
    text = query(kind, clause)
    fed.sql(train(kind, clause))
    evaluated = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()[0]
    metrics = dict(fed.sql(f"METRICS OF MODEL m FROM ({text})").fetchall())
    assert metrics["rmse"] == pytest.approx(evaluated["rmse"])
    added = fed.sql(f"CONTRIBUTIONS OF MODEL m FROM ({text})").arrow().to_pylist()
    for row in added[:20]:
        parts = row["intercept"] + row["by_v"] + row["by_p"] + row["offset"]
        assert row["score"] == pytest.approx(parts, abs=1e-6)
        assert row["prediction"] == pytest.approx(np.exp(row["score"]))
    important = f"IMPORTANCE OF MODEL m WITH (seed = 1, metric = 'loss') FROM ({text})"
    assert f"{evaluated['loss']:.5g}" in str(fed.sql(important))
    # which compares features alone
    assert fed.sql(f"SKEW OF MODEL m FROM ({text.replace(', ln(v.years) AS e', '')})").fetchall()
    with pytest.raises(PlanError, match="OFFSET e is no column of the query"):
        fed.sql(f"PREDICT MODEL m FROM ({text.replace(', ln(v.years) AS e', '')})")


@pytest.mark.parametrize("combine", [False, True])
def test_the_traffic_is_what_explain_says(
    parties: dict[str, list[duckdb.DuckDBPyConnection]], combine: bool
) -> None:
    kind, clause = "poisson_regression", "OFFSET e"
    text = query(kind, clause)
    with tapped(parties, combine=combine) as (fed, tap):
        for statement in (
            train(kind, clause, epochs=3),
            f"EVALUATE MODEL m FROM ({text})",
            f"PREDICT MODEL m FROM ({text})",
            *([] if combine else [f"SKEW OF MODEL m FROM ({text})"]),
        ):
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            rounds = fed.model("m").history.num_rows if "TRAIN" in statement else 0
            assert_disclosed(plan, recorded, parties, epochs=rounds)
            sent = [m for m in (decode(item.data) for item in recorded) if isinstance(m, Offsets)]
            clients = 1 if combine else 2
            assert len(sent) == (0 if "SKEW" in statement else clients)
            told = "offsets in clear: e" in str(plan.details)
            assert told == bool(sent)


REFUSED = [
    (
        "USING linear_regression TARGET n OFFSET e",
        ", v.years AS e",
        "OFFSET does not go with a linear_regression",
    ),
    (
        "USING logistic_regression TARGET n EXPOSURE e",
        ", v.years AS e",
        "EXPOSURE does not go with a logistic_regression",
    ),
    (
        "USING poisson_regression TARGET n OFFSET e WITH (algorithm = 'sgd')",
        ", v.years AS e",
        "OFFSET is not built for algorithm = 'sgd'",
    ),
    (
        "USING logistic_regression TARGET n OFFSET e PRIVACY (label_epsilon = 1)",
        ", v.years AS e",
        "OFFSET does not go with PRIVACY",
    ),
    (
        "USING poisson_regression TARGET n OFFSET n",
        "",
        "OFFSET n is the target, or the weight",
    ),
    (
        "USING poisson_regression TARGET n OFFSET e",
        ", v.ward AS e",
        "OFFSET e must be a number",
    ),
    (
        "USING poisson_regression TARGET n OFFSET e",
        ", v.years * p.size AS e",
        "OFFSET one party's column",
    ),
    (
        "USING poisson_regression TARGET n EXPOSURE n",
        "",
        "EXPOSURE n is the target, or the weight",
    ),
    (
        "USING poisson_regression TARGET n EXPOSURE e",
        ", v.ward AS e",
        "EXPOSURE e must be a number",
    ),
    (
        "USING poisson_regression TARGET n EXPOSURE f",
        ", v.years AS e",
        "EXPOSURE f is no column of the query",
    ),
    (
        "USING poisson_regression TARGET n EXPOSURE e",
        ", v.years * p.size AS e",
        "the exposure is computed by one party; EXPOSURE one party's column",
    ),
    (
        "USING poisson_regression TARGET n EXPOSURE e TRANSFORM (log1p(e))",
        ", v.years AS e",
        "TRANSFORM takes features, and e is the exposure",
    ),
    (
        "USING poisson_regression TARGET n OFFSET e EXPOSURE e",
        ", v.years AS e",
        "OFFSET and EXPOSURE exclude each other",
    ),
]


@pytest.mark.parametrize(("clauses", "more", "said"), REFUSED, ids=[own[2] for own in REFUSED])
def test_what_is_refused(fed: sqlfl.Federation, clauses: str, more: str, said: str) -> None:
    target = "v.n > 1 AS n" if "logistic" in clauses else "v.n"
    with pytest.raises(sqlfl.Error) as caught:
        fed.sql(f"TRAIN MODEL m {clauses} FROM ({QUERY.format(target=target, more=more)})")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("clause", "value", "said"),
    [
        ("OFFSET e", "nullif(v.years, 1.5)", "offset e is NULL or NaN in 60 of the 240 rows"),
        ("OFFSET e", "v.years / 0", "offset e is infinite in 240"),
        ("OFFSET e", "1e9 * v.years", "offset e is beyond"),
        ("EXPOSURE e", "v.years - 0.5", "exposure e is not above 0 in 60 of the 240 rows"),
    ],
)
def test_values_that_are_no_offsets_are_refused(
    fed: sqlfl.Federation, clause: str, value: str, said: str
) -> None:
    text = QUERY.format(target="v.n", more=f", {value} AS e")
    with pytest.raises(ModelError) as caught:
        fed.sql(train("poisson_regression", clause, text))
    assert said in str(caught.value)


def test_a_policy_rules_offsets_as_labels(
    parties: dict[str, list[duckdb.DuckDBPyConnection]],
) -> None:
    """Another party than the target's holds the offset."""
    (geo,) = parties["geo"]
    text = (
        "SELECT v.age, v.n, ln(1 + p.size) AS e FROM clinic.visits v "
        "JOIN geo.places p ON v.place = p.place"
    )
    statement = train("poisson_regression", "OFFSET e", text)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        for party, clients in parties.items():
            fed.attach(party, clients if len(clients) > 1 else clients[0])
        for role, rules, refused in (
            ("TRAIN", "", "LABEL"),
            ("LABEL", "", ""),
            ("LABEL", "labels = 'noised'", "labels = 'noised'"),
            ("LABEL", "labels = 'never'", "labels = 'never'"),
        ):
            ruled(geo, rules, f"GRANT JOIN (place), {role} (size) ON places TO 'acme' UNDER r")
            if not refused:
                fed.sql(statement)
                continue
            with pytest.raises(PolicyError, match=refused):
                fed.sql(statement)
