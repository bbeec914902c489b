"""memory_limit bounds what joined rows take: those that do not fit are in files, or are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sqlfl
from sqlfl.coordinator.join import key_join, row_mapping
from sqlfl.coordinator.rounds import chunks
from tests.conftest import Open
from tests.federations import federation

ROWS = 200
PAIRS = 2 * ROWS * ROWS
"""Joined rows: two keys, each with `ROWS` rows of both tables."""
SIDE = """CREATE TABLE {0} AS SELECT i % 2 AS k, i % 7 AS {1}, (i * 37 % 101) / 10.0 AS x{0},
    i % 11 < 4 AS y FROM range(400) r(i)"""
CELLS = "CREATE TABLE cells AS SELECT i // 7 AS p, i % 7 AS q, i % 5 AS z FROM range(40) r(i)"
QUERY = """SELECT l.xl, r.xr, c.z, l.y FROM a.l l JOIN b.r r ON l.k = r.k
    LEFT JOIN c.cells c ON c.p = l.p AND c.q = r.q"""
TRAIN = "TRAIN MODEL m USING logistic_regression TARGET y WITH ({}) FROM (" + QUERY + ")"
TIGHT = "memory_limit = '4MB'"


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    """No tree of keys leads to the joined rows of `QUERY`."""
    parties = {
        "a": [database(SIDE.format("l", "p"))],
        "b": [database(SIDE.format("r", "q"))],
        "c": [database(CELLS)],
    }
    with federation(parties) as opened:
        yield opened


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[row_mapping.StoredNumbers]:
    """Those that are made."""
    made: list[row_mapping.StoredNumbers] = []
    numbers = row_mapping.Scratch.numbers

    def listed(self: row_mapping.Scratch) -> row_mapping.StoredNumbers:
        made.append(numbers(self))
        return made[-1]

    monkeypatch.setattr(row_mapping.Scratch, "numbers", listed)
    return made


def test_what_does_not_fit_memory_is_trained_from_files(
    fed: sqlfl.Federation, files: list[row_mapping.StoredNumbers]
) -> None:
    fed.sql(TRAIN.format("merge_equal_rows = false"))
    expected = fed.model("m")
    assert not files
    fed.sql("DROP MODEL m")
    fed.sql(TRAIN.format(TIGHT))
    found = fed.model("m")
    assert [len(file) for file in files] == 3 * [PAIRS]
    assert found.metrics["rows"] == expected.metrics["rows"] == PAIRS
    for name, value in expected.metrics.items():
        assert found.metrics[name] == (value if value is None else pytest.approx(value, rel=1e-6))
    assert found.converged == expected.converged


@pytest.mark.parametrize("tree", [False, True])
def test_what_does_not_fit_memory_has_offsets(
    fed: sqlfl.Federation, files: list[row_mapping.StoredNumbers], tree: bool
) -> None:
    """Joined rows that are read from files, or found again in each pass."""
    text = QUERY.replace("l.y FROM", "l.y, ln(1 + r.xr) AS e FROM")
    if tree:
        text = text.split("LEFT JOIN")[0].replace("c.z, ", "")
    clauses = "USING logistic_regression TARGET y OFFSET e WITH ({})"
    train = f"TRAIN OR REPLACE MODEL m {clauses} FROM ({text})"
    metrics = []
    for options in ("l2 = 1e-3", f"l2 = 1e-3, {TIGHT}"):
        fed.sql(train.format(options))
        metrics.append(fed.model("m").metrics)
    assert len(files) == (0 if tree else 3)
    for name, value in metrics[0].items():
        assert metrics[1][name] == (value if value is None else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize(
    "options",
    ["algorithm = 'admm'", "algorithm = 'sgd'", "class_weight = 'balanced'"],
)
def test_what_needs_arrays_is_refused(
    fed: sqlfl.Federation, files: list[row_mapping.StoredNumbers], options: str
) -> None:
    text = r"the join has at least [\d,]+ rows, which take about .* memory_limit is 3\.8 MiB"
    with pytest.raises(sqlfl.ModelError, match=text):
        fed.sql(TRAIN.format(f"{options}, {TIGHT}"))
    assert not files


def test_tables_that_do_not_fit_are_refused(fed: sqlfl.Federation) -> None:
    text = r"the tables of the join have 841 rows, which take about .* memory_limit is 97\.7 KiB"
    with pytest.raises(sqlfl.ModelError, match=text):
        fed.sql(TRAIN.format("memory_limit = '100KB'"))


def test_keys_that_do_not_fit_are_refused(fed: sqlfl.Federation) -> None:
    text = r"the keys of the join have 31 different values, which take about .* 9\.8 KiB"
    with pytest.raises(sqlfl.ModelError, match=text):
        fed.sql(TRAIN.format("memory_limit = '10KB'"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_stays_on_disk_after_a_failure(
    fed: sqlfl.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[row_mapping.StoredNumbers],
    error: type[BaseException],
) -> None:
    def fails(*_: object) -> None:
        raise error

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(key_join, "_idle", [])
    monkeypatch.setattr(chunks.StoredChunks, "pieces", fails)
    with pytest.raises(error):
        fed.sql(TRAIN.format(TIGHT))
    assert len(files) == 3
    assert os.listdir(temporary) == []
    opened = [os.readlink(f"/proc/self/fd/{number}") for number in _files()]
    assert not [path for path in opened if path.startswith(str(temporary))]


def _files() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
