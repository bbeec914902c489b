"""The demo in processes of their own, as `sqlfl demo` and `make demo-remote` run it."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from sqlfl.__main__ import main
from sqlfl.cli import help as cli_help

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_over_machines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It needs what sqlfl itself needs, and none of its extras. Here it has one flight of 20."""
    home = tmp_path / "home"
    shutil.copytree(ROOT / "examples", home / "examples", ignore=shutil.ignore_patterns("*.ipynb"))
    flights = ROOT / "examples" / "data" / "flights.parquet"
    few = f"FROM (SELECT *, row_number() OVER () AS n FROM '{flights}') WHERE n % 20 = 0"
    duckdb.sql(f"SELECT * EXCLUDE (n) {few}").to_parquet(
        str(home / "examples/data/flights.parquet")
    )
    for name in ("pandas", "sklearn"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no extra is installed')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setattr(cli_help, "HOME", home)
    main(["demo", "--keep", str(tmp_path / "kept")])
    out = capfd.readouterr().out
    assert "converged      yes" in out
    assert "column id of main.flights is not granted to alice.example for IDENTIFY" in out
    assert "nothing was changed, dropped, added or reordered" in out
    assert (tmp_path / "kept" / "airline.toml").exists()
