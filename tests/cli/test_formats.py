"""Results for programs."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.result import Result
from sqlfl.cli.formats import CSV, JSON, LINES, TABLE, error_told, shown

ROWS = pa.table(
    {
        "n": pa.array([1, None]),
        "x": pa.array([0.1, float("nan")]),
        "big": pa.array([2**62, -1]),
        "text": ['a,"b"\n', "ü"],
        "day": [dt.date(2026, 1, 2), None],
        "at": pa.array([dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), None]),
        "long": pa.array([dt.timedelta(seconds=90), None]),
        "dec": pa.array([Decimal("1.50"), None]),
        "bytes": [b"\x00\xff", None],
        "list": pa.array([[1.5, None], []], pa.list_(pa.float64())),
        "inner": [{"a": 1, "b": [True]}, None],
    }
)


def test_json() -> None:
    told = json.loads(shown(Result(ROWS, notes=["known"]), JSON, ["few rows"]))
    assert told["notes"] == ["known"]
    assert told["warnings"] == ["few rows"]
    assert [column["name"] for column in told["columns"]] == ROWS.column_names
    assert told["columns"][1] == {"name": "x", "type": "double"}
    first, second = (dict(zip(ROWS.column_names, row, strict=True)) for row in told["rows"])
    assert first == {
        "n": 1, "x": 0.1, "big": 2**62, "text": 'a,"b"\n', "day": "2026-01-02",
        "at": "2026-01-02T03:00:00+00:00", "long": "0:01:30", "dec": "1.50", "bytes": "AP8=",
        "list": [1.5, None], "inner": {"a": 1, "b": [True]},
    }  # fmt: skip
    assert (second["n"], second["x"], second["list"]) == (None, "nan", [])


def test_csv_has_all_rows() -> None:
    text = shown(Result(ROWS), CSV)
    head, first, second = csv.reader(io.StringIO(text))
    assert head == ROWS.column_names
    assert first[3] == 'a,"b"\n'
    assert json.loads(first[-1]) == {"a": 1, "b": [True]}
    assert second[:3] == ["", "nan", "-1"]
    many = Result(pa.table({"n": range(100)}))
    assert shown(many, CSV).splitlines() == ["n", *map(str, range(100))]
    assert "the first 20 of 100 rows" in shown(many, TABLE)


def test_lines_have_all_columns_of_all_rows() -> None:
    wide = pa.table({"a": [1, None], "long": ["x\n\x1b[2Jy", "z" * 500]})
    found = shown(Result(wide, notes=["known"]), LINES)
    assert found == f"a     1\nlong  x\n      ␛[2Jy\n\na     NULL\nlong  {'z' * 500}\n\nknown"
    many = Result(pa.table({"n": range(100)}))
    assert shown(many, LINES).endswith("n  99")


@pytest.mark.parametrize("kind", ["UUID", "HUGEINT", "TIME", "TIMESTAMP_NS", "MAP(INT, INT)"])
def test_duckdbs_types_are_written(kind: str) -> None:
    made = {"MAP(INT, INT)": "MAP {1: 2}", "UUID": "uuid()", "TIME": "'01:02:03'"}
    text = made.get(kind, "'2026-01-02 03:04:05'" if kind == "TIMESTAMP_NS" else "7")
    with duckdb.connect() as con:
        rows = con.sql(f"SELECT CAST({text} AS {kind}) AS v").to_arrow_table()
    assert len(json.loads(shown(Result(rows), JSON))["rows"]) == 1
    assert shown(Result(rows), CSV).startswith("v\n")


def test_errors() -> None:
    error = sqlfl.ParseError("expected MODEL", hint="write it", sql="TRAIN x", span=(6, 7))
    told = json.loads(error_told(error))
    assert told == {
        "error": "ParseError",
        "message": "expected MODEL\n  at line 1, column 7:\n    TRAIN x\n          ^",
        "hint": "write it",
    }
    assert json.loads(error_told(sqlfl.Error("no")))["hint"] is None
