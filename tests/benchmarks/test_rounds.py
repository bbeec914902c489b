"""benchmarks/rounds.py at toy size: what lies between the exchanges of training."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.scripts import imported


@pytest.mark.slow
def test_rounds_are_told_from_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with imported("rounds", "measuring") as found:
        monkeypatch.setattr(found.measuring, "BLOCK", 1 << 20)
        monkeypatch.setattr(sys, "argv", ["rounds.py", "--rows", "4000", "--repeats", "1"])
        found.rounds.main()
    printed = capsys.readouterr().out
    heads, _, *rows = (line.strip("| ").split(" | ") for line in printed.splitlines())
    merged = ", equal rows once"
    assert [row[1] for row in rows] == ["lbfgs" + merged, "lbfgs", "admm" + merged, "admm"]
    for row in rows:
        told = dict(zip(heads, row, strict=True))
        assert told["joined rows"] == "4,000"
        ratio = float(told["round / read"].replace(",", ""))
        assert ratio > 1, "a round reads all joined rows"
        passes = float(told["curvatures, ms"]) + float(told["other passes, ms"])
        assert passes <= float(told["a round, ms"]) + 0.1
        assert ("lbfgs" in row[1]) == (float(told["curvatures, ms"]) > 0)
