"""Which of the tests run, how many did, and the record of thorough runs."""

from __future__ import annotations

import datetime as dt
import subprocess
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.depth import DEPTH, QUICK, SEED, THOROUGH

RECORD = Path(__file__).parent / "thorough.md"
"""What each shard of a thorough run gave; it ends with a table of the runs."""


class Selection:
    """Chooses the tests of a run, and counts those that ran over all workers."""

    def __init__(self, shard: str | None) -> None:
        self._shard = shard
        self._part, self._parts = _shard(shard)
        self._began = time.monotonic()
        self._collected = 0
        self._ran: set[str] = set()
        self._failed: set[str] = set()

    def pytest_report_header(self) -> str:
        return f"depth: SQLFL_DEPTH={DEPTH}, random cases: SQLFL_SEED={SEED}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep the tests of one shard; at depth 'quick', two cases of each that is not slow."""
        kept = [
            item
            for item in items
            if zlib.crc32(item.nodeid.encode()) % self._parts == self._part - 1
        ]
        if QUICK:
            kept = _some_cases(kept)
        if left := set(items) - set(kept):
            config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = len(session.items)
        if _is_worker(session.config):
            session.config.workeroutput["collected"] = len(session.items)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the number from a worker of pytest-xdist, each of which collects all tests."""
        output = getattr(node, "workeroutput", {})  # a worker that died has none
        self._collected = max(self._collected, output.get("collected", 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            self._ran.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where a test was not run, such as by a worker that died; write the record."""
        config = session.config
        stopped = session.shouldstop or session.shouldfail or config.getoption("collectonly")
        if _is_worker(config) or stopped or session.exitstatus not in (0, 1):
            return
        if len(self._ran) != self._collected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if THOROUGH and self._shard is not None:
            self._write_record()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"{self._collected} tests collected, {len(self._ran)} run"
        terminalreporter.write_line(f"{line}; random cases: SQLFL_SEED={SEED}")

    def _write_record(self) -> None:
        result = ", ".join(sorted(self._failed)) or "passed"
        minutes = (time.monotonic() - self._began) / 60
        cells = (dt.date.today(), _commit(), self._shard, SEED, len(self._ran), f"{minutes:.1f}")
        row = " | ".join(str(cell) for cell in (*cells, result.replace("|", "\\|")))
        with RECORD.open("a") as record:
            record.write(f"| {row} |\n")


def _shard(text: str | None) -> tuple[int, int]:
    part, _, parts = (text or "1/1").partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--shard must be K/N with K from 1 to N, got {text}")
    return int(part), int(parts)


def _some_cases(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the first and one more case of each test, without those marked slow."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = []
    for name, own in cases.items():
        chosen.append(own[0])
        if len(own) > 1:
            chosen.append(own[1 + zlib.crc32(name.encode()) % (len(own) - 1)])
    return chosen


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workeroutput")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    told = subprocess.run(command, cwd=RECORD.parent, capture_output=True, check=False, text=True)
    return told.stdout.strip() or "no checkout"
