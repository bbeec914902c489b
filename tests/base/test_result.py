"""The face of results in notebooks: escaped, aligned, bounded, without scripts."""

from __future__ import annotations

import datetime
import decimal
import re
import sys
import types
from html.parser import HTMLParser

import duckdb
import pandas
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.result import CLIPPED, SHOWN, TITLE, Result, facts_to_html

EVIL = "<script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;\"'"


class Page(HTMLParser):
    """Tags with their attributes, the cells' texts, and whether all is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data

    def styles(self, tag: str) -> list[str]:
        return [attributes["style"] or "" for name, attributes in self.tags if name == tag]


def page(table: pa.Table) -> Page:
    return Page(Result(table)._repr_html_())


def test_values_and_names_are_escaped() -> None:
    long = EVIL * 4
    shown = page(pa.table({EVIL: [EVIL, long]}))
    assert {name for name, _ in shown.tags} == {
        "div", "table", "caption", "thead", "tbody", "tr", "th", "td"
    }  # fmt: skip
    assert all(set(attributes) <= {"style", "title", "scope"} for _, attributes in shown.tags)
    assert shown.cells[1:3] == [EVIL, EVIL]
    (titled,) = [a["title"] for name, a in shown.tags if name == "td" and "title" in a]
    assert titled == long


def test_a_card_is_escaped_and_keeps_lines() -> None:
    shown = Page(facts_to_html([(EVIL, EVIL), ("statement", f"SELECT\n  {EVIL}")]))
    assert shown.cells == [EVIL, EVIL, "statement", f"SELECT\n  {EVIL}"]
    assert [name for name, _ in shown.tags].count("pre") == 1


def test_the_markup_loads_nothing_and_sets_no_colours() -> None:
    """Text in the theme's own colour on the theme's own ground is readable in every theme."""
    texts = [
        Result(pa.table({"a": [1, None]}))._repr_html_(),
        facts_to_html([("a", "b"), ("c", "d\ne")]),
    ]
    for text in texts:
        assert not re.search(r"<(script|style|link|iframe)|url\(|https?:| on\w+=", text)
        assert not re.search(r"[^-]color:|background", text.replace("border-collapse", ""))


def test_numbers_are_on_the_right_and_all_else_on_the_left() -> None:
    table = pa.table(
        {
            "whole": [1],
            "real": [0.5],
            "exact": [decimal.Decimal("1.50")],
            "text": ["1"],
            "truth": [True],
            "day": [datetime.date(2013, 1, 2)],
        }
    )
    shown = page(table)
    right = [True, True, True, False, False, False]
    for tag in ("th", "td"):
        assert ["text-align:right" in style for style in shown.styles(tag)] == right
    assert shown.cells[-6:] == ["1", "0.5", "1.50", "1", "true", "2013-01-02"]


def test_null_is_not_the_text_null() -> None:
    shown = page(pa.table({"a": ["NULL", None]}))
    assert shown.cells[-2:] == ["NULL", "NULL"]
    assert [name for name, _ in shown.tags].count("span") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (1234567.0, "1234567"),
        (-25_000_000.4, "-25000000"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert page(pa.table({"a": [value]})).cells[-1] == text


def test_long_text_is_clipped_and_whole_in_its_title() -> None:
    exact, long, endless = "x" * CLIPPED, "y" * (CLIPPED + 1), "z" * 100_000
    shown = page(pa.table({"a": [exact, long, endless]}))
    assert shown.cells[-3:] == [exact, "y" * (CLIPPED - 1) + "…", "z" * (CLIPPED - 1) + "…"]
    titles = [attributes.get("title") for name, attributes in shown.tags if name == "td"]
    assert titles == [None, long, "z" * (TITLE - 1) + "…"]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (0, "no rows"),
        (1, "1 row"),
        (SHOWN, f"{SHOWN} rows"),
        (12_345, f"the first {SHOWN} of 12,345 rows; .df() or .arrow() gives all"),
    ],
)
def test_the_number_of_rows_is_said(rows: int, text: str) -> None:
    shown = page(pa.table({"a": pa.array(range(rows), pa.int64())}))
    assert shown.cells[0] == text
    assert [name for name, _ in shown.tags].count("td") == min(rows, SHOWN)


def test_columns_say_their_types() -> None:
    shown = page(pa.table({"a": [1], "b": ["x"]}))
    heads = [attributes for name, attributes in shown.tags if name == "th"]
    assert [(head["scope"], head["title"]) for head in heads] == [
        ("col", "int64"),
        ("col", "string"),
    ]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1_357_034_400_123_456_789], pa.timestamp("ns")),
        pa.array([1_357_034_400_000_000], pa.timestamp("us", tz="UTC")),
        pa.array([2**62], pa.timestamp("us")),
        pa.array([b"\x00\xff"]),
        pa.array([[1, None]]),
        pa.array([{"a": 1}]),
        pa.array(["a"]).dictionary_encode(),
        pa.array([None], pa.null()),
        pa.array([123_456], pa.duration("us")),
    ],
    ids=lambda array: str(array.type),
)
def test_every_type_is_shown(array: pa.Array) -> None:
    assert page(pa.table({"a": array})).cells[-1]


def test_columns_of_one_name_stay_apart() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert page(table).cells[1:] == ["a", "a", "1", "2"]


# -- rows ------------------------------------------------------------------------------------------


def result() -> Result:
    chunks = pa.concat_tables(
        [pa.table({"a": [1, 2], "b": ["x", None]}), pa.table({"a": [3], "b": ["z"]})]
    )
    return Result(chunks)


def test_a_result_is_iterated_and_fetched() -> None:
    rows = [(1, "x"), (2, None), (3, "z")]
    found = result()
    assert list(found) == list(found) == found.fetchall() == rows
    assert len(found) == 3
    assert [found.fetchone() for _ in range(5)] == [*rows, None, None]
    assert found.fetchall() == rows
    assert Result(pa.table({"a": pa.array([], pa.int64())})).fetchone() is None


def test_libraries_of_arrow_take_a_result() -> None:
    found = result()
    assert duckdb.sql("SELECT sum(a) FROM found").fetchall() == [(6,)]
    assert pa.table(found).equals(found.arrow())
    assert pandas.DataFrame.from_arrow(found)["a"].tolist() == [1, 2, 3]


def test_polars_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(sqlfl.Error, match=r"(?s)pl\(\) needs polars.*pip install polars"):
        result().pl()


def test_polars_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    polars = types.ModuleType("polars")
    polars.from_arrow = lambda table: table.num_rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polars", polars)
    assert result().pl() == 3


def test_a_column_by_its_name() -> None:
    found = Result(pa.table([[1, 2], ["a", None], [1, 1], [2, 2]], ["n", "prediction", "x", "x"]))
    assert found["prediction"].to_pylist() == ["a", None]
    for name, said in (
        ("predictions", "did you mean prediction"), ("x", "2 columns are called x"), (0, "by text"),
    ):  # fmt: skip
        with pytest.raises(sqlfl.Error, match=said):
            found[name]  # type: ignore[index]


def test_other_libraries_have_their_names_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Result(pa.table({"n": [1, 2]}))
    assert found.to_pandas()["n"].tolist() == [1, 2]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(sqlfl.Error, match="pip install polars"):
        found.to_polars()
