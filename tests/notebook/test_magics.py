"""%sqlfl and %%sqlfl in a shell of IPython."""

from __future__ import annotations

import atexit
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

import sqlfl
from sqlfl.notebook.magics import MagicCall, completed, read
from sqlfl.planner.grammar.dialect import split

ROOT = Path(__file__).parents[2]
TRAIN = """TRAIN MODEL {name} USING logistic_regression TARGET y
FROM (SELECT t.x, u.z, t.y FROM a.t JOIN b.u USING (id))"""
Database = Callable[..., duckdb.DuckDBPyConnection]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    """A shell with the extension loaded, and a namespace of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    module = types.ModuleType("session_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = InteractiveShell(config=config, user_module=module)
    atexit.unregister(found.atexit_operations)  # pytest ends, this shell does not
    found.run_cell("%load_ext sqlfl").raise_error()
    yield found
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)  # an error of the shell, with all that its frames hold


@pytest.fixture
def fed(shell: InteractiveShell, database: Database) -> Iterator[sqlfl.Federation]:
    """A federation of two parties, which the shell knows as `fed`."""
    with sqlfl.Federation(progress=False) as found:
        rows = "range AS id, range % 7 AS x, range % 3 = 0 AS y FROM range(60)"
        found.attach("a", database(f"CREATE TABLE t AS SELECT {rows}"))
        found.attach("b", database("CREATE TABLE u AS SELECT range AS id, 1 AS z FROM range(60)"))
        shell.user_ns["fed"] = found
        yield found


def value(done: ExecutionResult) -> Any:
    done.raise_error()
    return done.result


def test_a_line(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    assert value(shell.run_cell("%sqlfl SHOW MODELS;")).columns[0] == "name"


def test_a_cell_returns_what_is_shown_as_html(
    shell: InteractiveShell, fed: sqlfl.Federation
) -> None:
    result = value(shell.run_cell("%%sqlfl\n" + TRAIN.format(name="m")))
    assert isinstance(result, sqlfl.Result)
    shown, _ = shell.display_formatter.format(result)
    assert "logistic_regression</td>" in shown["text/html"]
    assert fed.model("m").sql == TRAIN.format(name="m")


def test_explain_shows_the_plan(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    result = value(shell.run_cell("%%sqlfl\nEXPLAIN " + TRAIN.format(name="m")))
    assert "sqlfl-plan" in result._repr_html_()
    assert len(value(shell.run_cell("%sqlfl SHOW MODELS"))) == 0


@pytest.mark.parametrize(
    "cell",
    [
        "%sqlfl found << SHOW MODELS",
        "%sqlfl fed found << SHOW MODELS",
        "%sqlfl --into found SHOW MODELS",
        "%sqlfl --fed=fed --into=found SHOW MODELS",
        "%%sqlfl found <<\nSHOW MODELS",
        "%%sqlfl fed found <<\nSHOW MODELS",
        "%%sqlfl --fed fed\nfound << SHOW MODELS",
        "%%sqlfl found << SHOW\nMODELS",
        "found = %sqlfl SHOW MODELS",
    ],
)
def test_the_result_goes_into_a_variable(
    shell: InteractiveShell, fed: sqlfl.Federation, cell: str
) -> None:
    assert value(shell.run_cell(cell)) is None
    assert shell.user_ns["found"].columns[0] == "name"


def test_a_failure_leaves_the_variable(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    shell.user_ns["found"] = "before"
    assert not shell.run_cell("%sqlfl found << SHOW NOTHING").success
    assert shell.user_ns["found"] == "before"


def test_several_statements_run_in_order_and_the_last_is_shown(
    shell: InteractiveShell, fed: sqlfl.Federation
) -> None:
    first, second = TRAIN.format(name="m"), TRAIN.format(name="n")
    cell = f"%%sqlfl\n-- first; not a statement\n{first};\n{second} ; ;\nSHOW MODELS;\n"
    assert value(shell.run_cell(cell)).arrow().column("name").to_pylist() == ["m", "n"]


def test_the_first_failure_ends_the_cell(
    shell: InteractiveShell, fed: sqlfl.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = f"%%sqlfl\n{TRAIN.format(name='m')};\nDROP MODEL absent;\nDROP MODEL m"
    with pytest.raises(sqlfl.ModelError, match="no model absent"):
        shell.run_cell(cell).raise_error()
    assert fed.model("m").name == "m"


def test_an_error_is_short_and_marks_its_place_in_the_cell(
    shell: InteractiveShell, fed: sqlfl.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = TRAIN.format(name="m").replace("t.x,", "t.x * u.z AS k,")
    done = shell.run_cell(f"%%sqlfl\nSHOW MODELS;\n{wrong}")
    assert isinstance(done.error_in_exec, sqlfl.PlanError)
    assert (done.error_in_exec.line, done.error_in_exec.column) == (4, 14)
    first, place, line, mark, hint = capsys.readouterr().out.rstrip().splitlines()
    assert first.startswith("PlanError: column k needs columns of 2 parties")
    assert place.strip() == "at line 4, column 14:"
    assert line[mark.index("^") : mark.rindex("^") + 1] == "t.x * u.z"
    assert hint.startswith("hint: ")


def test_the_traceback_is_there_for_who_wants_it(
    shell: InteractiveShell, fed: sqlfl.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("1 / 0")
    shell.run_cell("%sqlfl SHOW NOTHING")
    frames = []
    trace = shell.InteractiveTB.tb  # what %debug walks
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert any(frame.endswith("magics.py") for frame in frames)
    assert "grammar" in frames[-1]
    assert isinstance(sys.last_value, sqlfl.ParseError)
    capsys.readouterr()
    shell.run_cell("%xmode Verbose")
    shell.run_cell("%sqlfl SHOW NOTHING")
    assert "Traceback" in capsys.readouterr().out


def test_faults_that_are_not_the_users_keep_their_traceback(
    shell: InteractiveShell,
    fed: sqlfl.Federation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(text: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fed, "sql", broken)
    assert isinstance(shell.run_cell("%sqlfl SHOW MODELS").error_in_exec, ZeroDivisionError)
    assert "def broken" in capsys.readouterr().out


def test_nothing_is_filled_in(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    shell.user_ns["models"] = "MODELS"
    for cell in ("%sqlfl SHOW {models}", "%sqlfl SHOW $models", "%%sqlfl\nSHOW {models}"):
        with pytest.raises(sqlfl.ParseError):
            shell.run_cell(cell).raise_error()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%sqlfl --fad fed SHOW MODELS", "there is no option --fad\nhint: did you mean --fed?"),
        ("%sqlfl --x SHOW MODELS", "there is no option --x\nhint: the options are --fed, --into"),
        ("%sqlfl --into", "--into needs the name of a variable, got nothing"),
        ("%sqlfl --into 7 SHOW MODELS", "--into needs the name of a variable, got 7"),
        ("%sqlfl fed << SHOW MODELS", "the result would replace the federation fed"),
        ("%%sqlfl federation\nSHOW MODELS", "there is no variable federation, which would be"),
        ("%sqlfl --fed text SHOW MODELS", "text is no federation but a value of type str"),
        ("%sqlfl", "expected a statement"),
        ("%%sqlfl\n\n", "expected a statement"),
        ("%%sqlfl\nSHOW 'MODELS", "the string is not closed"),
    ],
)
def test_what_is_written_wrong(
    shell: InteractiveShell, fed: sqlfl.Federation, cell: str, message: str
) -> None:
    shell.user_ns["text"] = "a text"
    with pytest.raises(sqlfl.Error) as caught:
        shell.run_cell(cell).raise_error()
    assert str(caught.value).startswith(message)


def test_which_federation(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    def trained() -> list[str]:
        return value(shell.run_cell("%sqlfl SHOW MODELS")).arrow().column("name").to_pylist()

    fed.sql(TRAIN.format(name="ours"))
    with sqlfl.connect() as other:
        shell.user_ns["other"] = other
        assert trained() == ["ours"]  # fed goes before all others
        assert len(value(shell.run_cell("%sqlfl other SHOW MODELS"))) == 0
        shell.user_ns["work"] = shell.user_ns.pop("fed")
        with pytest.raises(sqlfl.Error, match=r"(?s)several .*: other, work\n.*%%sqlfl other"):
            trained()
        del shell.user_ns["other"]
        assert trained() == ["ours"]  # the only one
        shell.user_ns["again"] = shell.user_ns["work"]
        assert trained() == ["ours"]  # the only one, under two names
    shell.user_ns.pop("work")
    shell.user_ns.pop("again")
    shell.user_ns["_"] = fed  # what IPython keeps of earlier cells is not meant
    with pytest.raises(sqlfl.Error, match=r"(?s)there is no federation .*sqlfl.connect\(\)"):
        trained()


def test_a_closed_federation(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    fed.close()
    with pytest.raises(sqlfl.Error, match="the federation is closed"):
        shell.run_cell("%sqlfl SHOW MODELS").raise_error()


def test_the_extension_can_be_taken_away_and_loaded_again(
    shell: InteractiveShell, fed: sqlfl.Federation
) -> None:
    shell.run_cell("%unload_ext sqlfl").raise_error()
    assert shell.find_line_magic("sqlfl") is None
    assert shell.find_cell_magic("sqlfl") is None
    shell.run_cell("%load_ext sqlfl").raise_error()
    assert value(shell.run_cell("%sqlfl SHOW MODELS")).columns


def test_help_tells_the_forms(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%sqlfl?")
    shown = capsys.readouterr().out
    for form in ("%%sqlfl", "--fed NAME", "NAME <<", "fed.sql"):
        assert form in shown


def test_lines_are_those_of_the_cell() -> None:
    assert read("", "SHOW MODELS", {}) == MagicCall("\nSHOW MODELS")
    assert read("-- a comment", "SHOW MODELS", {}).text.split("\n")[1] == "SHOW MODELS"
    assert read("x << SHOW MODELS", None, {}) == MagicCall("     SHOW MODELS", into="x")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" ; ; -- only a comment\n", []),
        ("SHOW MODELS", ["SHOW MODELS"]),
        ("SELECT ';' ; SELECT \";\"", ["SELECT ';' ", ' SELECT ";"']),
        ("SELECT /* ; */ 1 -- ;\n;", ["SELECT /* ; */ 1 -- ;\n"]),
        ("SELECT $$;$$;", ["SELECT $$;$$"]),
        ("θ;ü", ["θ", "ü"]),
    ],
)
def test_statements_are_split_at_semicolons(text: str, pieces: list[str]) -> None:
    assert [text[start:end] for start, end in split(text)] == pieces


def test_ipython_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, sqlfl\n"
        "with sqlfl.connect() as fed: repr(fed.sql('SHOW MODELS'))\n"
        "heavy = {'IPython', 'matplotlib', 'ipywidgets', 'sqlfl.notebook.magics',"
        " 'sqlfl.plots.training'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%sqlfl SHO", ["SHOW"]),
        ("x = %sqlfl fed EVALUATE MODEL m FROM (SELECT * FROM a.", ["t"]),
        ("%%sqlfl\nTRAIN MODEL m\nUSING linear", ["linear_regression"]),
        ("%%sqlfl fed\nTRAIN MODEL m USING lasso TARGET y FROM (SELECT u.z FROM b", ["b.u"]),
        ("%%sqlfl fed\nSELECT x.i FROM b.u x WHERE x.", ["id", "z"]),
    ],
)
def test_the_cell_is_completed(
    shell: InteractiveShell, fed: sqlfl.Federation, cell: str, expected: list[str]
) -> None:
    with provisionalcompleter():
        found = [c.text for c in shell.Completer.completions(cell, len(cell))]
    assert [text for text in found if text in expected] == expected


def test_nothing_is_offered_in_other_cells(shell: InteractiveShell, fed: sqlfl.Federation) -> None:
    assert completed("TRAIN MOD", 9, shell.user_ns) == (9, ())
    assert completed("%%sqlfl\nTRAIN ", 3, shell.user_ns) == (3, ())
    fed.close()
    assert completed("%sqlfl SHO", 10, shell.user_ns) == (7, ("SHOW",))


def test_completion_goes_with_the_extension(shell: InteractiveShell) -> None:
    before = len(shell.Completer.custom_matchers)
    shell.run_cell("%reload_ext sqlfl").raise_error()
    assert len(shell.Completer.custom_matchers) == before
    shell.run_cell("%unload_ext sqlfl").raise_error()
    assert len(shell.Completer.custom_matchers) == before - 1
