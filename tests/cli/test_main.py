"""`python -m sqlfl`: pages of the documentation, examples in a folder, an owner's statements."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pytest

from sqlfl.__main__ import main
from sqlfl.cli.help import page, pages
from sqlfl.cli.main import HOMES

ROOT = Path(__file__).parents[2]


def test_every_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "docs"
    found = (path.relative_to(folder) for path in folder.glob("**/*.md"))
    written = {path.with_suffix("").as_posix() for path in found}
    assert set(pages()) == written | {"readme"}
    main(["docs"])
    assert capsys.readouterr().out.split() == pages()
    main(["docs", "Statements.md"])
    assert capsys.readouterr().out == f"{page('statements')}\n"
    assert page("readme").startswith("# sqlfl")


def test_the_pages_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    """By words of one paragraph, in any case and order; nothing is fetched."""
    main(["docs", "--search", "policies OWNER's"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0::2]
    assert all(": " in place for place in shown[0::2])
    assert any(place.startswith("distributed: ") for place in shown[0::2])
    assert all("policies" in line.lower() for line in shown[1::2])
    main(["docs", "--search", "no such wordish"])
    assert capsys.readouterr().out == "no paragraph has 'no such wordish'\n"
    for wrong in (["--search", " "], ["statements", "--search", "x"]):
        with pytest.raises(SystemExit):
            main(["docs", *wrong])
        assert "--search takes words, and no page" in capsys.readouterr().err


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


def test_an_owner_at_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "bank.duckdb")
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE accounts (id INTEGER, balance DOUBLE)")
    grant = "GRANT TRAIN (balance), JOIN (id) ON accounts TO 'acme' UNDER p"
    main(["owner", path, "CREATE TRAINING POLICY p WITH (min_rows = 50)", grant])
    assert "TRAIN (balance), JOIN (id)" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("SHOW POLICIES; SHOW GRANTS"))
    main(["owner", path])
    assert "acme" in capsys.readouterr().out
    for wrong, said in (
        ([path, "SHOW GRANT"], "ParseError: expected POLICIES"),
        ([path, "DROP TRAINING POLICY p"], "policy p has grants"),
        ([path + "x", "SHOW GRANTS"], "there is no database file"),
    ):
        with pytest.raises(SystemExit, match=said):
            main(["owner", *wrong])
    with duckdb.connect(path) as con:  # and it is closed
        assert con.sql("SELECT name FROM sqlfl.policies").fetchall() == [("p",)]


def test_an_owner_with_a_store_at_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, store = str(tmp_path / "bank.duckdb"), str(tmp_path / "records.duckdb")
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE accounts (id INTEGER, balance DOUBLE)")
    before = Path(path).read_bytes()
    with pytest.raises(SystemExit, match="there is no store"):
        main(["owner", path, "--store", store, "SHOW POLICIES"])
    main(["owner", path, "--store", store, "CREATE TRAINING POLICY p", "SHOW GRANTS"])
    main(["owner", "--store", store, path, "GRANT TRAIN (balance) ON accounts TO 'a' UNDER p"])
    main(["owner", path, "SHOW GRANTS", "--store", store])
    assert capsys.readouterr().out.count("TRAIN (balance)") == 2
    assert Path(path).read_bytes() == before
    for wrong in (["owner", path, "--stor", "x", "--no"], ["docs", "owner", "more"]):
        with pytest.raises(SystemExit):
            main(wrong)
    said = capsys.readouterr().err
    assert "No such option" in said
    assert "unexpected extra argument" in said


def test_help_lists_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    listed = capsys.readouterr().out
    for name in HOMES:
        assert f"  {name} " in listed
        main([name, "--help"])
        assert f"sqlfl {name}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["verfy"])
    assert "did you mean verify?" in capsys.readouterr().err
