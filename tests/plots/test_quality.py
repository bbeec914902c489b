"""Pictures of looks: what is drawn of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.result import Result
from sqlfl.coordinator.scoring import look
from sqlfl.options.diagnostics import (
    LOOKS,
    CalibrationOptions,
    Confusion,
    Diagnostic,
    ResidualsOptions,
    Roc,
)
from sqlfl.plots.results import quality_figure


def drawn(asked: Diagnostic, classes: int = 2) -> Any:
    random = np.random.default_rng(0)
    y = random.integers(0, classes, 200)
    prediction = random.dirichlet(np.ones(classes), 200)
    names = pa.array([f"c{n}" for n in range(classes)])
    table = look(asked, names, prediction, y, None)
    return quality_figure(asked.word, "m", table), table


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


@pytest.mark.parametrize("classes", [2, 3])
def test_roc_and_precision_of_each_class(classes: int) -> None:
    figure, table = drawn(Roc(), classes)
    roc, precision = figure.axes
    shown = [name for name in lines(roc) if name.startswith("c")]
    assert len(shown) == (1 if classes == 2 else 3)
    own = table.filter(pa.array([v == "c1" for v in table["class"].to_pylist()]))
    (line,) = (data for name, data in lines(roc).items() if name.startswith("c1"))
    np.testing.assert_array_equal(line[:, 1], own["recall"].to_numpy())
    assert precision.get_ylabel() == "precision"


def test_the_matrix_has_its_counts() -> None:
    figure, table = drawn(Confusion(), 3)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [f"{count:.0f}" for count in table["rows"].to_pylist()]
    hidden, _ = drawn(Confusion(min_cell=200), 2)
    assert {text.get_text() for text in hidden.axes[0].texts} == {"hidden"}


def test_calibration_of_classes_and_of_numbers() -> None:
    figure, table = drawn(CalibrationOptions())
    np.testing.assert_array_equal(lines(figure.axes[0])["c1"][:, 1], table["actual"].to_numpy())
    y = np.arange(100.0)
    table = look(CalibrationOptions(bins=4), None, (y + 1)[:, None], y, None)
    axes = quality_figure("calibration", "m", table).axes[0]
    assert axes.get_ylabel() == "mean of the target"


def test_residuals_have_bands() -> None:
    y = np.arange(100.0)
    table = look(ResidualsOptions(bins=4), None, (y**1.1)[:, None], y, None)
    axes = quality_figure("residuals", "m", table).axes[0]
    assert len(axes.collections) == 2
    np.testing.assert_array_equal(lines(axes)["mean"][:, 1], table["residual"].to_numpy())


def test_what_has_no_picture() -> None:
    with pytest.raises(sqlfl.Error, match="METRICS OF MODEL has no picture"):
        quality_figure(LOOKS["metrics"].word, "m", pa.table({"metric": ["auc"]}))
    with pytest.raises(sqlfl.Error, match="no picture"):
        Result(pa.table({"x": [1]})).plot()
