"""Pictures of weights, standard errors, importances and TUNE: they show what the rows say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sqlfl
from tests.federations import federation

QUERY = (
    "(SELECT p.age, p.ward, p.n, t.level FROM clinic.patients p JOIN lab.tests t ON p.id = t.id)"
)


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    from tests.open_databases import in_memory

    with in_memory() as clinic, in_memory() as lab:
        clinic.execute(
            "CREATE TABLE patients AS SELECT i AS id, i * 37 % 23 AS age, "
            "['u', 'v', NULL][1 + i % 3] AS ward, i * 37 % 23 + i * 7919 % 11 AS n "
            "FROM range(200) r(i)"
        )
        lab.execute(
            "CREATE TABLE tests AS SELECT i AS id, i * 7919 % 11 AS level FROM range(200) r(i)"
        )
        with federation({"clinic": [clinic], "lab": [lab]}) as made:
            made.sql(f"TRAIN MODEL m USING linear_regression TARGET n FROM {QUERY}")
            yield made


def shown(figure: Any) -> tuple[list[str], list[float]]:
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    if axes.patches:
        return names, [bar.get_width() for bar in axes.patches]
    return names, list(axes.get_lines()[0].get_xdata())


def test_weights_are_bars_with_the_longest_first(fed: sqlfl.Federation) -> None:
    result = fed.sql("WEIGHTS OF MODEL m")
    names, bars = shown(result.plot())
    rows = [r for r in result.arrow().to_pylist() if r["kind"] != "intercept"]
    assert sorted(bars) == sorted(r["standardised"] for r in rows)
    assert [abs(b) for b in bars] == sorted(map(abs, bars), reverse=True)
    assert names[0] == "p.age"
    assert {"p.ward = u", "p.ward = v", "p.ward is NULL", "t.level"} < set(names)


def test_standard_errors_are_intervals(fed: sqlfl.Federation) -> None:
    result = fed.sql(f"INFERENCE OF MODEL m FROM {QUERY}")
    figure = result.plot()
    names, points = shown(figure)
    rows = [r for r in result.arrow().to_pylist() if r["lower"] is not None]
    own = [r for r in rows if r["kind"] != "intercept"]
    assert points == [r["coefficient"] for r in own]
    assert names[0] == "p.age"
    (axes,) = figure.axes
    bars = [collection.get_segments()[0] for collection in axes.collections]
    np.testing.assert_allclose([bar[:, 0] for bar in bars], [(r["lower"], r["upper"]) for r in own])


def test_importances_of_tables_and_features(fed: sqlfl.Federation) -> None:
    result = fed.sql(f"IMPORTANCE OF MODEL m FROM {QUERY}")
    names, bars = shown(result.plot())
    assert sorted(bars) == sorted(result.arrow().column("importance").to_pylist())
    assert {"p.all of it", "p.age", "t.level"} < set(names)


@pytest.mark.parametrize(
    "clauses", ["l2 = [1e-3, 10], folds = 3", "l2 = [0.1, 1], validation_fraction = 0.3"]
)
def test_candidates_in_their_order(fed: sqlfl.Federation, clauses: str) -> None:
    text = f"TUNE OR REPLACE MODEL t USING linear_regression TARGET n WITH ({clauses}) FROM {QUERY}"
    result = fed.sql(text)
    names, points = shown(result.plot())
    assert points == result.arrow().column("loss").to_pylist()
    assert names == [f"l2 = {v}" for v in result.arrow().column("l2").to_pylist()]


def test_lists_of_numbers_are_shown_short(fed: sqlfl.Federation) -> None:
    text = "TUNE OR REPLACE MODEL t USING linear_regression TARGET n WITH (l2 = [0.1], folds = 2)"
    result = fed.sql(f"{text} FROM {QUERY}")
    (folds,) = result.arrow().column("folds").to_pylist()
    short = f"[{', '.join(f'{v:.6g}' for v in folds)}]"
    assert short in str(result)
    assert short in result._repr_html_()


def test_what_has_no_picture_says_what_has(fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.Error, match="WEIGHTS, INFERENCE"):
        fed.sql("SHOW MODELS").plot()
