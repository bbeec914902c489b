"""Columns of two parties that nearly cancel: every statement scores as training did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from tests.depth import SEED
from tests.open_databases import in_memory

ROWS = 400
QUERY = "SELECT a.x, b.u, a.y FROM a.t AS a JOIN b.t AS b USING (id)"
TRAIN = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (l2 = 0, seed = 1)"
Data = dict[str, np.ndarray]


def made(difference: float) -> Data:
    rng = np.random.default_rng([SEED, 5])
    x, z, e = rng.normal(size=(3, ROWS))
    return {"id": np.arange(ROWS), "x": x, "u": x + difference * z, "y": z + 0.1 * e}


@pytest.fixture(params=[False, True], ids=["apart", "combined"])
def fed(request: pytest.FixtureRequest) -> Iterator[sqlfl.Federation]:
    """b's rows are in two databases."""
    data = made(1e-5)
    with in_memory() as a, in_memory() as b, in_memory() as more:
        halves = np.arange(ROWS) % 2 == 0
        for con, rows, names in (
            (a, np.full(ROWS, True), ("id", "x", "y")), (b, halves, ("id", "u")),
            (more, ~halves, ("id", "u")),
        ):  # fmt: skip
            con.register("made", pa.table({name: data[name][rows] for name in names}))
            con.execute("CREATE TABLE t AS FROM made")
        with sqlfl.connect(progress=False) as found:
            found.attach("a", a)
            found.attach("b", [b, more], combine=bool(request.param))
            yield found


def kinds(fed: sqlfl.Federation) -> set[str]:
    return set(fed.audit().arrow().column("kind").to_pylist())


def test_scores_are_those_of_the_best_parameters(fed: sqlfl.Federation) -> None:
    data = made(1e-5)
    fed.sql(f"{TRAIN} FROM ({QUERY})")
    design = np.column_stack([np.ones(ROWS), data["x"], 1e5 * (data["u"] - data["x"])])
    best = design @ np.linalg.lstsq(design, data["y"])[0]
    loss = 0.5 * float(np.mean((best - data["y"]) ** 2))
    assert fed.sql(f"EVALUATE MODEL m FROM ({QUERY})").arrow().column("loss")[0].as_py() == (
        pytest.approx(loss, rel=1e-5)
    )
    rmse = fed.sql(f"METRICS OF MODEL m FROM ({QUERY})").arrow().to_pylist()
    assert any(
        value == pytest.approx(np.sqrt(2 * loss), rel=1e-5)
        for row in rmse
        for value in row.values()
        if isinstance(value, float)
    )
    for statement in ("PREDICT MODEL m ID (a.id)", "CONTRIBUTIONS OF MODEL m ID (a.id)"):
        found = fed.sql(f"{statement} FROM ({QUERY})").arrow().sort_by("id")
        values = found.column("prediction").to_numpy()
        np.testing.assert_allclose(values, best, atol=1e-4)
    found = fed.sql(
        f"CONTRIBUTIONS OF MODEL m ID (a.id) WITH (features = true) FROM ({QUERY})"
    ).arrow()
    parts = sum(found.column(name).to_numpy() for name in ("intercept", "by_a.x", "by_b.u"))
    np.testing.assert_allclose(parts, found.column("prediction").to_numpy(), atol=1e-7)
    fed.sql(f"IMPORTANCE OF MODEL m WITH (repeats = 1) FROM ({QUERY})")
    assert {"exact_predictions", "exact_contributions", "permute_exactly"} <= kinds(fed)
    assert not kinds(fed) & {"score", "contributions", "score_permuted"}


def test_other_models_score_in_4_bytes(fed: sqlfl.Federation) -> None:
    query = "SELECT a.x, a.y, b.id % 7 AS v FROM a.t AS a JOIN b.t AS b USING (id)"
    fed.sql(f"{TRAIN} FROM ({query})")
    fed.sql(f"EVALUATE MODEL m FROM ({query})")
    assert "score" in kinds(fed)
    assert "score_exactly" not in kinds(fed)
