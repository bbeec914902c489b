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


def test_labelled_rows_without_a_partner_are_counted(database: Open) -> None:
    """Of ids 0..39, those divisible by 7 have no label and those by 10 no key; keys 5 to 7 have no
    partner."""
    clients = [
        database(
            "CREATE TABLE t AS SELECT i AS id, CASE WHEN i % 10 > 0 THEN i % 8 END AS k, "
            f"CASE WHEN i % 7 > 0 THEN sin(i) END AS y FROM range(40) r(i) WHERE i % 2 = {part}"
        )
        for part in range(2)
    ]
    other = database(
        "CREATE TABLE u AS SELECT i AS k, i * i AS v, CASE WHEN i <> 2 THEN i END AS z "
        "FROM range(5) r(i)"
    )

    def unjoined(query: str) -> object:
        fed.sql(f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({query})")
        assert ("unjoined", str(fed.model("m").metrics["unjoined"])) in fed.model("m").facts()
        return fed.model("m").metrics["unjoined"]

    labelled = [i for i in range(40) if i % 7]
    lost = sum(1 for i in labelled if i % 10 and i % 8 > 4)
    with sqlfl.connect() as fed:
        fed.attach("a", clients)
        fed.attach("b", other)
        joins = "a.t t {} b.u u ON t.k = u.k"
        assert unjoined("SELECT t.y, u.v FROM " + joins.format("JOIN")) == lost
        assert unjoined("SELECT t.y, u.v FROM " + joins.format("LEFT JOIN")) == 0
        assert unjoined("SELECT t.y, t.id FROM a.t t") == 0
        # what the target's own party filters is no row of the query's table
        few = "SELECT t.y, u.v FROM " + joins.format("JOIN") + " WHERE t.id < 6"
        assert unjoined(few) == 1
        # rows that joined elsewhere, but fail a condition after the join
        alone = "SELECT t.y, t.id FROM " + joins.format("LEFT JOIN") + " WHERE u.k IS NULL"
        assert unjoined(alone) == sum(1 for i in labelled if i % 10 and i % 8 < 5)
        # the row of NULLs of a LEFT JOIN is none of the table's, nor is one to be matched only
        right = "SELECT coalesce(u.z, 9) AS y, t.id FROM a.t t LEFT JOIN b.u u ON t.k = u.k"
        assert unjoined(f"{right} AND t.k < 3") == 2
        assert unjoined(f"{right} AND t.k < 3 WHERE coalesce(u.v, 0) <> 16") == 1


def test_rows_that_find_no_partner_are_counted(database: Open) -> None:
    """Also where no row needs the virtual one, which is not active then."""
    visits = database("CREATE TABLE visits AS SELECT i AS k, sin(i) AS y FROM range(20) r(i)")
    tests = database("CREATE TABLE tests AS SELECT i AS k, i % 3 AS v FROM range(15) r(i)")
    query = "SELECT v.y, t.v FROM clinic.visits v LEFT JOIN lab.tests t USING (k) WHERE v.k < {}"
    with sqlfl.connect() as fed:
        fed.attach("clinic", visits)
        fed.attach("lab", tests)
        for most, expected in ((15, 0), (16, 1), (20, 5)):
            fed.sql(
                "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y "
                f"FROM ({query.format(most)})"
            )
            assert fed.model("m").metrics["unjoined_t"] == expected
            assert fed.model("m").metrics["rows"] == most
