"""Columns of results, told before the statement runs, beside those that it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sqlfl
from sqlfl.federation.results import arrow_types
from tests.conftest import Open

CLINIC = """CREATE TYPE grade AS ENUM ('low', 'high');
CREATE TABLE patients AS SELECT i AS pid, 'p' || i AS code, (i % 2)::BOOLEAN AS ill,
  DATE '2024-01-01' + i::INT AS seen, now() AS at, (i * 7 % 100)::DECIMAL(9, 2) AS cost,
  i % 3 AS kind,
  sin(i) AS bmi, CASE WHEN i % 3 = 0 THEN 'low' ELSE 'high' END::grade AS level, 1 + i % 4 AS w
  FROM range(120) AS r(i)"""
LAB = "CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp FROM range(120) AS r(i)"
JOIN = "FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
QUERY = f"SELECT p.bmi, t.crp, p.ill {JOIN}"
TRAIN = "TRAIN MODEL {} USING {} TARGET {} {} FROM ({})"
MADE = [
    TRAIN.format("two", "logistic_regression", "ill", "", QUERY),
    TRAIN.format("many", "softmax_regression", "kind", "", f"SELECT p.bmi, t.crp, p.kind {JOIN}"),
    TRAIN.format("level", "softmax_regression", "level", "", f"SELECT p.bmi, p.level {JOIN}"),
    TRAIN.format("cost", "linear_regression", "cost", "", f"SELECT p.bmi, t.crp, p.cost {JOIN}"),
    TRAIN.format("w", "linear_regression", "cost", "WEIGHT w", f"SELECT p.bmi, p.cost, p.w {JOIN}"),
]
COST = f"SELECT p.bmi, t.crp, p.cost {JOIN}"
KIND = f"SELECT p.bmi, t.crp, p.kind {JOIN}"
STATEMENTS = [
    "SHOW MODELS", "SHOW TABLES", "SHOW PARTIES", "DESCRIBE clinic.patients", "DESCRIBE MODEL two",
    "HISTORY OF MODEL two", "FEATURES OF MODEL two", "COMMENT ON MODEL two IS 'x'",
    "WEIGHTS OF MODEL two", "WEIGHTS OF MODEL many", "WEIGHTS OF MODEL cost",
    f"EXPLAIN {TRAIN.format('a', 'linear_regression', 'cost', '', COST)}",
    f"EXPLAIN ANALYZE {TRAIN.format('a', 'linear_regression', 'cost', '', COST)}",
    f"CHECK TARGET ill FROM ({QUERY})", f"CHECK FROM ({QUERY})",
    f"EVALUATE MODEL two FROM ({QUERY})", f"EVALUATE MODEL many FROM ({KIND})",
    f"EVALUATE MODEL cost FROM ({COST})",
    f"EVALUATE MODEL w FROM (SELECT p.bmi, p.cost, p.w {JOIN})",
    f"EVALUATE MODEL two PRIVACY (label_epsilon = 3) FROM ({QUERY})",
    *(f"{look} OF MODEL two FROM ({QUERY})" for look in (
        "METRICS", "ROC", "CONFUSION", "CALIBRATION", "INFERENCE", "IMPORTANCE", "SKEW",
        "CONTRIBUTIONS")),
    *(f"{look} OF MODEL many FROM ({KIND})" for look in ("METRICS", "ROC", "CONFUSION",
      "CALIBRATION", "IMPORTANCE", "CONTRIBUTIONS")),
    *(f"{look} OF MODEL cost FROM ({COST})" for look in ("METRICS", "RESIDUALS", "CALIBRATION",
      "INFERENCE")),
    f"RESIDUALS OF MODEL w FROM (SELECT p.bmi, p.cost, p.w {JOIN})",
    f"CONTRIBUTIONS OF MODEL many ID (p.pid) WITH (features = true) FROM ({KIND})",
    f"PREDICT MODEL two FROM ({QUERY})", f"PREDICT MODEL level FROM (SELECT p.bmi {JOIN})",
    f"PREDICT MODEL cost FROM ({COST})",
    f"PREDICT MODEL many ID (p.pid, p.code, p.seen, p.at, p.cost, p.level, t.pid) FROM ({KIND})",
    f"PREDICT MODEL cost ID (p.pid) FROM ({COST}) INTO clinic.predicted",
    f"TUNE MODEL t USING linear_regression TARGET cost WITH (l2 = [0, 0.1], folds = 2) "
    f"FROM ({COST})",
    f"TUNE MODEL u USING logistic_regression TARGET ill WITH (algorithm = 'sgd', "
    f"epochs = [1, 2], schedule = ['constant', 'cosine'], metric = 'auc', folds = 2) "
    f"FROM ({QUERY})",
    f"TUNE MODEL IF NOT EXISTS t USING linear_regression TARGET cost FROM ({COST})",
    "EXPORT MODEL cost TO '{folder}' WITH (formats = ['sql', 'safetensors'])",
    "IMPORT MODEL again FROM '{folder}'",
    "DROP MODEL cost", "DROP MODEL IF EXISTS nothing",
]  # fmt: skip


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    with sqlfl.connect(progress=False) as found:
        found.attach("clinic", database(CLINIC))
        found.attach("lab", database(LAB))
        for text in MADE:
            found.sql(text)
        yield found


@pytest.mark.slow
def test_columns_are_as_they_were_told(fed: sqlfl.Federation, tmp_path: Path) -> None:
    for text in STATEMENTS:
        text = text.format(folder=tmp_path / "out")
        models = fed.models
        sent = len(fed.audit())
        told = fed.result_schema(text)
        kinds = fed.audit()["kind"].to_pylist()[sent:]
        assert set(kinds) <= {"list_tables", "tables", "describe", "columns"}, text
        assert fed.models == models
        found = fed.sql(text).arrow().schema
        assert without_zones(told) == without_zones(found), text


def without_zones(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """A database's session has a time zone of its own."""
    kinds = (pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type for f in schema)
    return list(zip(schema.names, kinds, strict=True))


def test_types_of_other_parties_are_no_statements() -> None:
    odd = ["INTEGER) FROM read_csv('/etc/passwd'", "grade", "ENUM('a', 'b')", "BIGNUM", "FLOAT[2]"]
    assert arrow_types(odd) == [
        pa.string(), pa.string(), pa.string(), pa.binary(), pa.list_(pa.float32(), 2),
    ]  # fmt: skip
