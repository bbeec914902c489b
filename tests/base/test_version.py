"""The check of sqlglot's build."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def imported(folder: Path) -> subprocess.CompletedProcess[str]:
    """Import the package where the folder's sqlglot comes before the installed one."""
    return subprocess.run(
        [sys.executable, "-c", "import sqlfl, sys; print('sqlglot' in sys.modules)"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("suffix", EXTENSION_SUFFIXES)
def test_a_compiled_parser_is_refused_before_sqlglot_is_imported(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "sqlglot").mkdir()
    (tmp_path / "sqlglot" / "__init__.py").write_text("raise RuntimeError('imported')")
    assert imported(tmp_path).stdout == "False\n"
    parser = tmp_path / "sqlglot" / f"parser{suffix}"
    parser.touch()
    said = imported(tmp_path).stderr.splitlines()
    assert said[-2:] == [
        "ImportError: sqlfl needs sqlglot's parser in Python, and a compiled one is installed: "
        f"{parser}",
        "hint: pip uninstall sqlglotc",
    ]


def test_without_sqlglot_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlfl.base import version

    monkeypatch.setattr(version, "find_spec", lambda name: None)
    version.refuse_compiled()
