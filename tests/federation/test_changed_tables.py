"""A table that its owner changes between the plan of a statement and its snapshot."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.coordinator import preparation

TRAIN = """TRAIN MODEL m USING linear_regression TARGET y FROM (
    SELECT a.x, b.y FROM a.t a JOIN b.t b ON a.k = b.k)"""
CHANGES = {
    "ALTER TABLE t DROP COLUMN x": 'does not have a column named "x"',
    "ALTER TABLE t RENAME x TO w": 'does not have a column named "x"',
    "ALTER TABLE t RENAME TO u": "Table with name t does not exist",
    "ALTER TABLE t ALTER x TYPE VARCHAR": "feature x is a text now, and was a number when",
    "ALTER TABLE t ALTER k TYPE VARCHAR": "key of slot 0 is VARCHAR now, and was BIGINT when",
    "ALTER TABLE t ALTER k TYPE DOUBLE": "key of slot 0 is DOUBLE now, and was BIGINT when",
    "ALTER TABLE t ALTER k TYPE HUGEINT": "key of slot 0 is HUGEINT now, and was BIGINT when",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_was_changed_meanwhile(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of DOUBLE was joined by its whole part; a text was hashed where a number was said."""
    with duckdb.connect() as a, duckdb.connect() as b, sqlfl.connect(progress=False) as fed:
        a.execute("CREATE TABLE t AS SELECT i AS k, i * 1.0 AS x FROM range(40) t(i)")
        b.execute("CREATE TABLE t AS SELECT i AS k, i * 2.0 AS y FROM range(40) t(i)")
        fed.attach("a", a)
        fed.attach("b", b)
        taken = preparation._snapshots

        def snapshots(*given: Any) -> Any:
            a.execute(change)
            return taken(*given)

        monkeypatch.setattr(preparation, "_snapshots", snapshots)
        with pytest.raises(Error, match=CHANGES[change]):
            fed.sql(TRAIN)
        assert fed.models == ()
        monkeypatch.undo()
        a.execute("CREATE OR REPLACE TABLE t AS SELECT i AS k, i * 1.0 AS x FROM range(40) t(i)")
        assert fed.sql(TRAIN)


def test_a_whole_number_of_another_width_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with duckdb.connect() as a, duckdb.connect() as b, sqlfl.connect(progress=False) as fed:
        a.execute("CREATE TABLE t AS SELECT i AS k, i * 1.0 AS x FROM range(40) t(i)")
        b.execute("CREATE TABLE t AS SELECT i AS k, i * 2.0 AS y FROM range(40) t(i)")
        fed.attach("a", a)
        fed.attach("b", b)
        taken = preparation._snapshots

        def snapshots(*given: Any) -> Any:
            a.execute("ALTER TABLE t ALTER k TYPE SMALLINT")
            return taken(*given)

        monkeypatch.setattr(preparation, "_snapshots", snapshots)
        fed.sql(TRAIN)
        assert fed.model("m").metrics["rows"] == 40
        assert fed.model("m").metrics["rmse"] < 1e-2
