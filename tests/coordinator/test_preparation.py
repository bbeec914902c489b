"""What is counted before training."""

from __future__ import annotations

import sqlfl
from tests.conftest import Open


def test_a_row_that_a_left_join_made_up_is_no_row_without_a_label(database: Open) -> None:
    """The label is NULL in two rows of its table, and for visits without a test."""
    visits = database("CREATE TABLE visits AS SELECT i AS k, sin(i) AS x FROM range(20) r(i)")
    tests = database(
        "CREATE TABLE tests AS SELECT 2 * i AS k, CASE WHEN i % 4 > 0 THEN i * i END AS result "
        "FROM range(8) r(i)"
    )
    with sqlfl.connect() as fed:
        fed.attach("clinic", visits)
        fed.attach("lab", tests)
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT v.x, "
            "nullif(coalesce(t.result, 3), 3) AS y "
            "FROM clinic.visits v LEFT JOIN lab.tests t USING (k))"
        )
        metrics = fed.model("m").metrics
        assert metrics["rows"] == 6
        assert metrics["null_targets"] == 2
