"""Every statement about models at corners of numbers: constants, scales, weights, few rows.

Each statement is answered with finite numbers, or refused in sqlfl's words. Numbers of EVALUATE are
those of the predictions.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics

import sqlfl
from tests.depth import THOROUGH, in_turn
from tests.open_databases import in_memory

ROWS = 36
BASE = {
    "x": "sin(i * 1.7)", "v": "cos(i * 2.3)", "c": "'c' || i % 3", "w": "1.0", "off": "0.0",
    "y": "sin(i * 1.7) + sin(i * 5.1)", "b": "sin(i * 5.1) > 0", "n": "(i * 7 % 5)::DOUBLE",
    "g": "1.1 + sin(i * 5.1)", "z": "cos(j * 1.3)",
}  # fmt: skip
CORNERS: dict[str, dict[str, str]] = {
    "constant feature": {"x": "3.7"},
    "all constant": {"x": "1e12 + 0.1", "v": "0.1", "c": "'a'", "z": "1e-300"},
    "duplicated rows": {"x": "sin(i % 4)", "v": "cos(i % 4)", "c": "'c' || i % 4", "g": "1 + i % 4",
                        "b": "i % 4 > 1", "n": "(i % 4)::DOUBLE"},
    "scales": {"x": "1e12 * sin(i * 1.7)", "z": "1e-12 * cos(j * 1.3)"},
    "scales of 1e300": {"x": "1e300 * sin(i * 1.7)", "z": "1e-300 * cos(j * 1.3)"},
    "ends of the numbers": {"x": "CASE WHEN i % 2 = 0 THEN 1.7e308 ELSE -1.7e308 END"},
    "shifted features": {"x": "1e12 + sin(i * 1.7)", "z": "1e9 + cos(j * 1.3)"},
    "an outlier": {"x": "CASE i WHEN 0 THEN 1e12 ELSE sin(i * 1.7) END"},
    "large target": {"y": "1e12 * sin(i * 5.1)", "n": "1e12 * (i % 5)", "g": "1e12 * (1 + i % 3)"},
    "small target": {"y": "1e-12 * sin(i * 5.1)", "n": "1e-12 * (i % 5)",
                     "g": "1e-12 * (1 + i % 3)"},
    "shifted target": {"y": "1e9 + sin(i)", "n": "1e9 + i", "g": "1e9 + i"},
    "constant target": {"y": "2.5", "n": "2.0", "g": "2.0", "b": "true"},
    "zero target": {"y": "0.0", "n": "0.0", "g": "1e-300", "b": "i = 3"},
    "NULL columns": {"x": "NULL::DOUBLE", "c": "NULL::VARCHAR", "z": "NULL::DOUBLE"},
    "one value": {"x": "CASE i WHEN 1 THEN 1.5 END", "c": "CASE i WHEN 1 THEN 'a' END"},
    "NaN": {"x": "CASE i WHEN 0 THEN 'nan'::FLOAT ELSE i END"},
    "infinity": {"x": "CASE i WHEN 0 THEN 'inf'::FLOAT ELSE i END"},
    "infinite target": {"y": "CASE i WHEN 0 THEN 'inf'::DOUBLE ELSE i END", "n": "'inf'::DOUBLE",
                        "g": "'inf'::DOUBLE", "b": "CASE i WHEN 0 THEN NULL ELSE i % 2 = 0 END"},
    "weights of 0": {"w": "(i % 2)::DOUBLE"},
    "one weight": {"w": "(i = 3)::DOUBLE"},
    "no weight": {"w": "0.0"},
    "huge weights": {"w": "1e12 * (1 + sin(i))"},
    "weights of 1e300": {"w": "1e300 * (1.1 + sin(i))"},
    "tiny weights": {"w": "1e-320 + 0 * i"},
    "mixed weights": {"w": "CASE WHEN i % 2 = 0 THEN 1e12 ELSE 1 END"},
    "negative weight": {"w": "i - 3.0"},
    "large offsets": {"off": "1e3 * sin(i)"},
    "offsets of 1e12": {"off": "1e12 + 0 * i"},
    "NULL offsets": {"off": "CASE WHEN i > 1 THEN 0.5 END"},
    "unique categories": {"c": "'c' || i"},
    "collinear": {"v": "2 * sin(i * 1.7) + 1"},
    "nearly collinear": {"v": "sin(i * 1.7) + 1e-10 * cos(i * 2.3)"},
    "perfect fit": {"y": "2 * sin(i * 1.7)", "b": "sin(i * 1.7) > 0", "n": "exp(sin(i * 1.7))",
                    "g": "exp(sin(i * 1.7))"},
    "separated category": {"c": "CASE WHEN i < 3 THEN 'rare' ELSE 'c' || i % 2 END",
                           "b": "i < 3 OR sin(i * 5.1) > 0",
                           "n": "CASE WHEN i < 3 THEN 0 ELSE i % 4 END"},
}  # fmt: skip
SIZES = {"no row": 0, "one row": 1, "two rows": 2, "three rows": 3, "fewer rows than columns": 6}
JOINS = {"no partner": "j + 1000", "one partner": "CASE j WHEN 1 THEN j ELSE j + 1000 END"}
CASES = (*CORNERS, *SIZES, *JOINS)
KINDS = {
    "linear_regression": "y", "logistic_regression": "b", "poisson_regression": "n",
    "gamma_regression": "g", "softmax_regression": "b", "quantile_regression": "y",
    "huber_regression": "y",
}  # fmt: skip
LIBRARIES = re.compile(
    r"LinAlg|[a-z]Error|numpy|Singular matrix|Traceback|\bnan\b|(?<!-)\binf\b|RuntimeWarning"
)


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as a, in_memory() as b, sqlfl.connect(progress=False) as found:
        for number, name in enumerate(CASES):
            columns = BASE | CORNERS.get(name, {})
            own = ", ".join(
                f"{text} AS {column}" for column, text in columns.items() if column != "z"
            )
            rows = SIZES.get(name, ROWS)
            a.execute(
                f"CREATE TABLE t{number} AS SELECT i AS id, i % 9 AS k, {own} "
                f"FROM range({rows}) r(i)"
            )
            b.execute(f"CREATE TABLE u{number} AS SELECT {JOINS.get(name, 'j')} AS k, "
                      f"{columns['z']} AS z FROM range(9) r(j)")  # fmt: skip
        found.attach("a", a)
        found.attach("b", b)
        yield found


OFFSETS = [name for name in CASES if "offset" in name]
SHIFTED = ("poisson_regression", "gamma_regression", "logistic_regression")
LOOKS = ("METRICS", "ROC", "CONFUSION", "CALIBRATION", "RESIDUALS", "SKEW", "IMPORTANCE",
         "CONTRIBUTIONS")  # fmt: skip
ERRORS = ("robust = false", "robust = true", "cluster = 'u'")
"""Each corner meets one of the looks, one way of standard errors, and WEIGHTS or EXPORT; at depth
'thorough' all."""
TRAINED = [
    *in_turn([name for name in CASES if name not in OFFSETS], list(KINDS), (0, 0.001)),
    *in_turn(OFFSETS, SHIFTED, (0, 0.001)),
]


@pytest.mark.parametrize(("name", "kind", "l2"), TRAINED)
def test_statements_about_a_model(
    name: str, kind: str, l2: float, fed: sqlfl.Federation, tmp_path: Path
) -> None:
    number = CASES.index(name)
    weighted, shifted = "weight" in name, name in OFFSETS
    query = (
        f"SELECT t.x, t.v, t.c, u.z, t.{KINDS[kind]} AS y{', t.w' * weighted}{', t.off' * shifted} "
        f"FROM a.t{number} t {'LEFT ' * (name in JOINS)}JOIN b.u{number} u ON t.k = u.k"
    )
    clauses = f"{'WEIGHT w ' * weighted}{'OFFSET off ' * shifted}"
    answered(fed, f"CHECK USING {kind} TARGET y {'WEIGHT w ' * weighted}FROM ({query})")
    train = f"USING {kind} TARGET y {clauses}WITH (l2 = {l2}, epochs = 60) FROM ({query})"
    if answered(fed, f"TRAIN OR REPLACE MODEL m {train}") is None:
        return
    measures = fed.model("m").metrics.values()
    assert all(math.isfinite(value) for value in measures if isinstance(value, float))
    for word in LOOKS if THOROUGH else [LOOKS[number % len(LOOKS)]]:
        answered(fed, f"{word} OF MODEL m FROM ({query})")
    contents = ("WEIGHTS OF MODEL m", f"EXPORT MODEL m TO '{tmp_path / 'm'}'")
    for text in contents if THOROUGH else [contents[number // len(LOOKS) % 2]]:
        answered(fed, text)
    for options in ERRORS if THOROUGH else [ERRORS[number % len(ERRORS)]]:
        inference = answered(fed, f"INFERENCE OF MODEL m WITH ({options}) FROM ({query})")
        for row in [] if inference is None else inference.to_pylist():
            assert row["p"] is None or 0 <= row["p"] <= 1, row
            assert row["standard_error"] is None or row["standard_error"] >= 0, row
    evaluated = answered(fed, f"EVALUATE MODEL m FROM ({query})")
    predicted = answered(fed, f"PREDICT MODEL m ID (t.id, t.{KINDS[kind]}, t.w) FROM ({query})")
    assert (evaluated is None) == (predicted is None)
    if evaluated is not None and predicted is not None:
        check_evaluated(evaluated.to_pylist()[0], predicted, KINDS[kind], weighted)


def answered(fed: sqlfl.Federation, text: str) -> pa.Table | None:
    """The answer, whose numbers are finite; None where it is refused, and that in sqlfl's words."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", sqlfl.Warning)
        try:
            result = fed.sql(text)
        except sqlfl.Error as error:
            refusal: sqlfl.Error | None = error
        else:
            refusal = None
    if refusal is not None:
        assert not isinstance(refusal, sqlfl.InternalError), text
        assert not LIBRARIES.search(str(refusal)), f"{refusal}\n{text}"
        return None
    table = result.arrow()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_floating(column.type) and name != "threshold":
            values = [value for value in column.to_pylist() if value is not None]
            infinite = text.startswith("CHECK") and "infinite" in str(table.column("finding"))
            assert infinite or np.isfinite(values).all(), f"{name}: {values}\n{text}"
    assert not any(LIBRARIES.search(note) for note in result.notes), text
    return table


def check_evaluated(
    shown: dict[str, Any], predicted: pa.Table, target: str, weighted: bool
) -> None:
    """What EVALUATE says is what scikit-learn says of the predictions."""
    _, truth, weight, prediction, *probabilities = (
        predicted.column(number).to_numpy(zero_copy_only=False)
        for number in range(predicted.num_columns)
    )
    weight = np.where(weighted, weight, 1.0)
    known = np.array([value is not None for value in truth]) & (weight > 0)
    truth, prediction, weight = truth[known], prediction[known], (weight / weight.max())[known]
    if target == "b":
        yes = truth.astype(bool)
        assert shown["accuracy"] == pytest.approx(np.average(yes == prediction, weights=weight))
        if 0 < yes.sum() < len(yes) and "auc" in shown:
            scores = probabilities[-1][known]
            area = metrics.roc_auc_score(yes, scores, sample_weight=weight)
            assert shown["auc"] == pytest.approx(area, abs=1e-3)
        return
    truth = truth.astype(float)
    errors, size = truth - prediction, float(np.abs(truth).max())
    assert shown["mae"] == pytest.approx(
        np.average(abs(errors), weights=weight), abs=1e-5 * size, rel=1e-4
    )
    if size < 1e150 and "rmse" in shown:
        square = math.sqrt(np.average(errors**2, weights=weight))
        assert shown["rmse"] == pytest.approx(square, abs=1e-5 * size, rel=1e-4)
