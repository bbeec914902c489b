"""With `--no-skips` nothing is skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SKIPPED = {
    "by_mark": "@pytest.mark.skipif(True, reason='no luck')\ndef test_it(): pass",
    "by_call": "def test_it(): pytest.skip('no luck')",
    "by_fixture": "@pytest.fixture\ndef no(): pytest.skip('no luck')\ndef test_it(no): pass",
    "by_module": "pytest.importorskip('no_luck', reason='no luck')\ndef test_it(): pass",
}
OTHERS = {
    "passing": "def test_it(): pass",
    "failing_as_expected": "@pytest.mark.xfail(strict=True)\ndef test_it(): assert False",
}
PASSED = {("PASSED", "passing"), ("XFAIL", "failing_as_expected")}


def outcomes(folder: Path, *options: str) -> tuple[int, set[tuple[str, str]], str]:
    """Run the tests of a folder with the hooks of `tests.conftest`."""
    command = ["-m", "pytest", "-rA", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *command, "--continue-on-collection-errors", *options, folder],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    details, _, summary = done.stdout.partition("short test summary info")
    found = re.findall(r"^([A-Z]+) .*?test_(\w+)\.py", summary, re.M)
    return done.returncode, set(found), details


def test_skips_are_failures_where_that_is_asked_for(tmp_path: Path) -> None:
    for name, text in {**SKIPPED, **OTHERS}.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{text}\n")
    status, found, _ = outcomes(tmp_path)
    assert found == {("SKIPPED", name) for name in SKIPPED} | PASSED
    assert status == pytest.ExitCode.OK
    status, found, details = outcomes(tmp_path, "--no-skips")
    failed = {("FAILED", "by_call")} | {("ERROR", f"by_{n}") for n in ("mark", "fixture", "module")}
    assert found == failed | PASSED
    assert status == pytest.ExitCode.TESTS_FAILED
    assert len(re.findall(r"^--no-skips: .*no luck$", details, re.M)) == len(SKIPPED)
