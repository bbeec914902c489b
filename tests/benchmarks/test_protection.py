"""benchmarks/protection.py at toy size: the price of sums in secret, printed and in a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sqlfl.aggregation import packing
from tests.benchmarks.scripts import imported


def tables(text: str) -> list[list[dict[str, str]]]:
    """Of Markdown: each table's rows by their heads."""
    found = []
    for part in text.strip().split("\n\n"):
        heads, _, *rows = (line.strip("| ").split(" | ") for line in part.splitlines())
        found.append([dict(zip(heads, row, strict=True)) for row in rows])
    return found


@pytest.mark.slow
def test_draws_masks_and_rounds_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- secure: begin -->\n<!-- secure: end -->\nafter\n")
    small = ("--numbers", "3000", "--rows", "300", "--clients", "2", "3", "--repeats", "1")
    arguments = ["protection.py", "sums", *small, "--epochs", "3", "--page", str(page)]
    monkeypatch.setattr(sys, "argv", arguments)
    with imported("protection", "measuring") as modules:
        protection = modules.protection
        modules.measuring.dispatch(protection.__doc__, {"sums": protection.sums})
    printed = capsys.readouterr().out
    begin, text, end = re.split(r"<!-- secure: \w+ -->\n", page.read_text())
    assert (begin, end) == ("before\n", "after\n")
    assert set(text.split("\n")) <= {"", *printed.splitlines()}
    assert [len(rows) for rows in tables(text)] == [2]
    numbers, rounds = tables(printed)
    assert [row["bins"] for row in numbers] == ["b = 16", "b = 64", "b = 128"]
    for row, bins in zip(numbers, (16, 64, 128), strict=True):
        width = packing.width(5, bins)
        assert row["bits a number"] == str(width)
        assert row["MB"] == f"{packing.size(3000, width) / 1e6:.2f}"
        assert float(row["draw, s"]) <= float(row["all, s"])
    assert len(rounds) == 4
    for row, clients in zip(rounds, (2, 2, 3, 3), strict=True):
        assert f"300 joined rows, {clients} clients" in row["an epoch"]
        plain, secret = float(row["plain, ms"]), float(row["in secret, ms"])
        assert float(row["in secret / plain"]) == pytest.approx(secret / plain, rel=0.05)
