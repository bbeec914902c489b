"""Comments and versions of models, and that they last."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import sqlfl

TRAIN = "MODEL m USING linear_regression TARGET y FROM (FROM lab.t)"


def attached(folder: Path) -> sqlfl.Federation:
    with duckdb.connect(folder / "lab.duckdb") as con:
        con.execute("CREATE TABLE IF NOT EXISTS t AS SELECT i AS x, i * 2 AS y FROM range(9) r(i)")
    fed = sqlfl.connect(folder / "coordinator.duckdb", progress=False)
    fed.attach("lab", folder / "lab.duckdb")
    return fed


def shown(fed: sqlfl.Federation) -> list[tuple[str, int, str | None]]:
    table = fed.sql("SHOW MODELS").arrow()
    return [(r["name"], r["version"], r["comment"]) for r in table.to_pylist()]


def test_a_comment_and_a_version_last(tmp_path: Path) -> None:
    with attached(tmp_path) as fed:
        fed.sql(f"TRAIN {TRAIN}")
        assert shown(fed) == [("m", 1, None)]
        said = fed.sql("COMMENT ON MODEL M IS 'it''s for the board'")
        assert "it's for the board" in str(said)
        run = fed.model("m").run
    with attached(tmp_path) as fed:
        assert shown(fed) == [("m", 1, "it's for the board")]
        assert fed.model("m").run == run
        assert len(fed.sql("PREDICT MODEL m FROM (FROM lab.t)")) == 9
        fed.sql("COMMENT ON MODEL m IS NULL")
        assert shown(fed) == [("m", 1, None)]
        fed.sql("COMMENT ON MODEL m IS 'old'")
        fed.sql(f"TRAIN OR REPLACE {TRAIN}")
        assert shown(fed) == [("m", 2, None)]
        assert "version" in str(fed.sql("DESCRIBE MODEL m"))
    with attached(tmp_path) as fed:
        assert shown(fed) == [("m", 2, None)]
        fed.sql("DROP MODEL m")
        fed.sql(f"TRAIN {TRAIN}")
        assert shown(fed) == [("m", 1, None)]


def test_of_a_model_in_memory(tmp_path: Path) -> None:
    with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT i AS x, i * 2 AS y FROM range(9) r(i)")
        fed.attach("lab", con)
        fed.sql(f"TRAIN {TRAIN}")
        fed.sql("COMMENT ON MODEL m IS 'a try'")
        fed.sql(f"TUNE OR REPLACE {TRAIN.replace('FROM', 'WITH (l2 = [1, 2], folds = 2) FROM', 1)}")
        assert shown(fed) == [("m", 2, None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("COMMENT ON MODEL n IS 'x'", "there is no model n"),
        ("COMMENT ON MODEL m", "expected IS after the name"),
        ("COMMENT ON MODEL m IS x", "expected a text in single quotes, got x"),
        ("COMMENT MODEL m IS 'x'", "expected ON after COMMENT"),
        ("COMMENT ON TABLE t IS 'x'", "expected MODEL after COMMENT ON"),
    ],
)
def test_what_is_wrong(text: str, words: str) -> None:
    with sqlfl.connect(progress=False) as fed, pytest.raises(sqlfl.Error, match=words):
        fed.sql(text)
