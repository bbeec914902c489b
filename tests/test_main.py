"""`python -m sqlfl`: pages of the documentation, and examples in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlfl.__main__ import main, page, pages

ROOT = Path(__file__).parent.parent


def test_every_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    written = {path.stem for path in ROOT.glob("docs/*.md")}
    assert set(pages()) == written | {"readme"}
    main(["docs"])
    assert capsys.readouterr().out.split() == pages()
    main(["docs", "Statements.md"])
    assert capsys.readouterr().out == f"{page('statements')}\n"
    assert page("readme").startswith("# sqlfl")


def test_what_is_not_there_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["docs", "statments"])
    assert "did you mean statements?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["examples", str(tmp_path)])
    assert "is there already: give another folder" in capsys.readouterr().err
    main([])
    assert "examples" in capsys.readouterr().out


def test_examples_are_copied_with_what_they_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "examples"
    main(["examples", str(folder)])
    said = capsys.readouterr().out
    for path in ("examples/01_quickstart.ipynb", "examples/demo.py", "README.md", "docs"):
        assert f"{folder}/{path}" in said
        assert (folder / path).exists()
    copied = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    assert not [p for p in copied if "__pycache__" in p.parts]
    assert Path("examples/data/flights.parquet") in copied
