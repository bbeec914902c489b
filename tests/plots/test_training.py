"""Figures of training: what is drawn, its units, and that nothing global is touched."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib import image

import sqlfl
from sqlfl.coordinator.training import HISTORY
from sqlfl.plots.training import AXES, MARKED, training_figure

ROOT = Path(__file__).parents[2]


def model(
    kind: str = "logistic_regression",
    algorithm: str = "lbfgs",
    epoch: int | None = None,
    **columns: Any,
) -> Any:
    """What a figure needs of a model; columns that are not given are NULL."""
    count = max((len(values) for values in columns.values()), default=3)
    given = {"epoch": range(1, count + 1), "bytes_up": [10] * count, "bytes_down": [5] * count}
    given |= {"seconds": [0.5 * i for i in range(count)]} | columns
    history = pa.table(
        [pa.array(given.get(f.name, [None] * count), f.type) for f in HISTORY], schema=HISTORY
    )
    return types.SimpleNamespace(
        name="m",
        kind=kind,
        algorithm=algorithm,
        target="delay",
        epoch=epoch or count,
        history=history,
    )


def lines(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_training_and_validation_in_two_panels() -> None:
    figure = training_figure(
        model(
            train_loss=[3.0, 2.0, 1.0],
            valid_loss=[3.5, 2.5, None],
            train_metric=[0.5, 0.6, 0.7],
        )
    )
    objective, metric = figure.axes
    drawn = lines(objective)
    assert drawn["training, with the penalty"] == [3.0, 2.0, 1.0]
    np.testing.assert_array_equal(drawn["validation"], [3.5, 2.5, np.nan])
    assert lines(metric) == {"training": [0.5, 0.6, 0.7]}
    assert objective.get_legend() is not None
    assert metric.get_legend() is None  # one line needs none


def test_the_kept_epoch_is_marked_where_it_is_not_the_last() -> None:
    values = [3.0, 1.0, 2.0]
    (axes,) = training_figure(model(epoch=2, valid_loss=values), "bytes").axes
    curve, mark = axes.get_lines()
    assert mark.get_label() == "kept"
    assert list(mark.get_xdata()) == [curve.get_xdata()[1]] * 2
    (axes,) = training_figure(model(epoch=3, valid_loss=values)).axes
    assert len(axes.get_lines()) == 1


def test_a_panel_without_values_is_left_out() -> None:
    (only,) = training_figure(model(train_loss=[1.0])).axes
    assert "objective" in only.get_ylabel()


def test_a_history_of_nothing_is_an_error() -> None:
    for empty in (model(), model(train_loss=[])):
        with pytest.raises(sqlfl.Error, match="model m has no history to plot"):
            training_figure(empty)


@pytest.mark.parametrize(
    ("kind", "objective", "metric"),
    [
        ("logistic_regression", "log-loss, nats per row", "accuracy (share of rows)"),
        ("softmax_regression", "log-loss, nats per row", "accuracy (share of rows)"),
        ("mlp_classifier", "log-loss, nats per row", "accuracy (share of rows)"),
        ("linear_regression", "squared error, units of delay²", "RMSE (units of delay)"),
        ("mlp_regressor", "squared error, units of delay²", "RMSE (units of delay)"),
    ],
)
def test_vertical_axes_have_units(kind: str, objective: str, metric: str) -> None:
    first, second = training_figure(model(kind, train_loss=[1.0], train_metric=[1.0])).axes
    assert objective in first.get_ylabel()
    assert second.get_ylabel() == metric


@pytest.mark.parametrize(
    ("x", "columns", "label", "values"),
    [
        ("epoch", {}, "epoch", [1, 2]),
        ("seconds", {"seconds": [0.5, 2.0]}, "time since the start (s)", [0.5, 2.0]),
        (
            "comm_seconds",
            {"comm_seconds": [0.1, 0.3]},
            "communication by the network model (s)",
            [0.1, 0.3],
        ),
        (
            "bytes",
            {"bytes_up": [1_000_000, 2_000_000], "bytes_down": [500_000, 600_000]},
            "sent so far, both directions (MB)",
            [1.5, 2.6],
        ),
        (
            "bytes",
            {"bytes_up": [1, 2], "bytes_down": [0, 0]},
            "sent so far, both directions (bytes)",
            [1, 2],
        ),
    ],
)
def test_the_horizontal_axis(
    x: str, columns: dict[str, Any], label: str, values: list[float]
) -> None:
    (axes,) = training_figure(model(algorithm="sgd", train_loss=[2.0, 1.0], **columns), x).axes
    assert axes.get_xlabel() == label
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), values)


def test_an_epoch_of_lbfgs_is_an_iteration() -> None:
    assert training_figure(model(train_loss=[1.0])).axes[0].get_xlabel() == "iteration"


def test_an_unknown_axis_is_refused() -> None:
    known = "'epoch', 'bytes', 'comm_seconds', 'seconds'"
    with pytest.raises(sqlfl.Error, match=f"x must be one of {known}, got 'n'"):
        training_figure(model(train_loss=[1.0]), "n")


def test_without_a_network_there_is_no_time_to_draw_along() -> None:
    with pytest.raises(sqlfl.Error, match="model m has no comm_seconds") as error:
        training_figure(model(train_loss=[2.0, 1.0]), "comm_seconds")
    assert "network = 'us-uk'" in str(error.value)


def test_single_points_are_marked_and_long_lines_are_not() -> None:
    for count in (1, MARKED, MARKED + 1):
        (axes,) = training_figure(model(train_loss=[1.0] * count)).axes
        assert (axes.get_lines()[0].get_marker() == "o") == (count <= MARKED)


def test_a_notebook_gets_a_picture_with_its_size_and_its_words() -> None:
    data, metadata = training_figure(model(train_loss=[2.0, 1.0]))._repr_png_()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 * metadata["width"], 2 * metadata["height"])
    assert metadata["alt"] == "model m: objective (log-loss, nats per row) over iteration"


def test_a_notebook_gets_a_picture_for_light_and_dark_pages() -> None:
    """Nothing behind it, and no black; what is saved is black on white, before and after."""

    def colors(data: bytes) -> set[tuple[int, ...]]:
        pixels = image.imread(io.BytesIO(data), format="png")
        every = (255 * pixels).round().astype(int).reshape(-1, 4)
        return {tuple(one) for one in np.unique(every, axis=0).tolist()}

    figure = training_figure(model(train_loss=[2.0, 1.0], valid_loss=[2.0, 1.5]))
    saved = io.BytesIO()
    figure.savefig(saved)
    shown, _ = figure._repr_png_()
    assert min(alpha for *_, alpha in colors(shown)) == 0
    assert not [own for own in colors(shown) if own[3] == 255 and max(own[:3]) < 100]
    assert {(0, 0, 0, 255), (255, 255, 255, 255)} <= colors(saved.getvalue())
    again = io.BytesIO()
    figure.savefig(again)
    assert again.getvalue() == saved.getvalue()


def test_a_trained_model_plots(database: Any, tmp_path: Path) -> None:
    with sqlfl.Federation(progress=False) as fed:
        fed.attach(
            "a", database("CREATE TABLE t AS SELECT range AS id, 1.5 * range AS y FROM range(9)")
        )
        fed.attach(
            "b", database("CREATE TABLE u AS SELECT range AS id, range % 4 AS z FROM range(9)")
        )
        query = "SELECT u.z, t.y FROM a.t JOIN b.u USING (id)"
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y WITH (network = 'us-uk') "
            f"FROM ({query})"
        )
        for x in AXES:
            figure = fed.model("m").plot(x)
            assert len(figure.axes) == 2
            figure.savefig(tmp_path / f"{x}.png")
            assert (tmp_path / f"{x}.png").stat().st_size > 1000


def test_nothing_global_is_touched() -> None:
    """No pyplot, which opens windows and keeps every figure; no setting of matplotlib's."""
    code = """
import sys, matplotlib
def settings():  # asking for the backend would choose one, and load pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from tests.plots.test_training import model
from sqlfl.plots.training import training_figure
training_figure(model(train_loss=[1.0], valid_loss=[2.0]))._repr_png_()
assert settings() == before
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_without_matplotlib_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import sqlfl
from sqlfl.store.registry import Model
try:
    Model.plot(object())
except sqlfl.Error as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "plots need matplotlib, which is not installed",
        "hint: pip install 'sqlfl[plot]'",
    ]
