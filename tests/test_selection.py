"""Shards hold every test once; quick runs keep some of each; a test that did not run is noticed."""

from __future__ import annotations

from itertools import combinations as combinations_of
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests import selection
from tests.depth import DEPTH, THOROUGH, combinations
from tests.selection import Selection

NAMES = [f"tests/test_a.py::test_{name}[{case}]" for name in "abcdefgh" for case in range(9)]
NAMES += ["tests/test_b.py::test_alone", "tests/test_b.py::test_slow"]


class Item:
    """A test of pytest, as far as the selection looks at it."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> object | None:
        return object() if self.nodeid.endswith(name) else None


class Config(SimpleNamespace):
    """A configuration that notes what is left out."""

    def __init__(self, **attributes: Any) -> None:
        self.left: list[str] = []
        hook = SimpleNamespace(
            pytest_deselected=lambda items: self.left.extend(item.nodeid for item in items)
        )
        super().__init__(hook=hook, getoption=lambda name: False, **attributes)


def chosen(shard: str | None) -> tuple[list[str], list[str]]:
    """Return the names of tests that are run, and of those that are left out."""
    items, config = [Item(name) for name in NAMES], Config()
    Selection(shard).pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    return [item.nodeid for item in items], config.left


@pytest.mark.parametrize("parts", [1, 2, 7, 20])
def test_each_test_is_in_one_shard(parts: int) -> None:
    shards = [chosen(f"{part}/{parts}") for part in range(1, parts + 1)]
    assert sorted(name for kept, _ in shards for name in kept) == sorted(NAMES)
    for kept, left in shards:
        assert sorted(kept + left) == sorted(NAMES)
        assert kept == [name for name in NAMES if name in kept]


def test_a_whole_run_leaves_nothing_out() -> None:
    assert chosen(None) == (NAMES, [])


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_a_shard_that_there_is_not_is_refused(shard: str) -> None:
    with pytest.raises(pytest.UsageError, match="--shard must be K/N"):
        Selection(shard)


def test_a_quick_run_has_two_cases_of_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "QUICK", True)
    kept, _ = chosen(None)
    assert "tests/test_b.py::test_slow" not in kept
    assert kept[-1] == "tests/test_b.py::test_alone"
    names = [name.partition("[")[0] for name in kept[:-1]]
    assert names == [name for name in dict.fromkeys(names) for _ in range(2)]
    assert len(names) == 16


@pytest.mark.parametrize(("ran", "status"), [(2, 0), (1, 1)])
def test_a_run_fails_where_a_test_did_not_run(ran: int, status: int) -> None:
    """Such as by a worker that died."""
    own, config = Selection(None), Config()
    session: Any = SimpleNamespace(
        items=NAMES[:2], config=config, shouldstop=False, shouldfail=False, exitstatus=0
    )
    own.pytest_collection_finish(session)
    for name in NAMES[:ran]:
        report: Any = SimpleNamespace(nodeid=name, when="teardown", failed=False)
        own.pytest_runtest_logreport(report)
    own.pytest_sessionfinish(session)
    assert session.exitstatus == status


def test_a_thorough_shard_writes_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record.md"
    monkeypatch.setattr(selection, "RECORD", record)
    monkeypatch.setattr(selection, "THOROUGH", True)
    own, config = Selection("2/20"), Config()
    session: Any = SimpleNamespace(
        items=NAMES[:1], config=config, shouldstop=False, shouldfail=False, exitstatus=1
    )
    own.pytest_collection_finish(session)
    for when, failed in (("call", True), ("teardown", False)):
        report: Any = SimpleNamespace(nodeid=NAMES[0], when=when, failed=failed)
        own.pytest_runtest_logreport(report)
    own.pytest_sessionfinish(session)
    cells = [cell.strip() for cell in record.read_text().strip("|\n ").split("|")]
    assert cells[2:5] == ["2/20", str(selection.SEED), "1"]
    assert cells[6] == NAMES[0]


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 2, 2), (4, 3, 2, 2), (2,) * 7, (5, 5, 2, 3)])
def test_any_two_values_stand_together(sizes: tuple[int, ...]) -> None:
    dimensions = [[f"{name}{number}" for number in range(size)] for name, size in enumerate(sizes)]
    rows = combinations(*dimensions)
    assert len(set(rows)) == len(rows)
    for one, other in combinations_of(range(len(sizes)), 2):
        wanted = set(product(dimensions[one], dimensions[other]))
        assert {(row[one], row[other]) for row in rows} == wanted
    if len(sizes) > 2 and not THOROUGH:
        assert len(rows) < prod(sizes)


def test_random_cases_follow_the_seed_where_hypothesis_has_settings_for_ci() -> None:
    chosen = settings.get_profile(DEPTH)
    assert (chosen.derandomize, chosen.database, chosen.deadline) == (False, None, None)
