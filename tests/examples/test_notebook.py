"""The notebooks of the examples: kept without outputs, and run from top to bottom."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = ROOT / "examples" / "01_quickstart.ipynb"
LESS = ROOT / "examples" / "06_less_leaves.ipynb"
HOSPITAL = ROOT / "examples" / "02_hospital.ipynb"
BUDGET = ROOT / "examples" / "03_privacy_budget.ipynb"
OWN = ROOT / "examples" / "04_your_own_database.ipynb"
COMPARE = ROOT / "examples" / "05_compare_models.ipynb"
OWNERS = ROOT / "examples" / "07_three_hospitals.ipynb"
MACHINES = ROOT / "examples" / "08_three_machines.ipynb"
NOTEBOOKS = pytest.mark.parametrize(
    "path",
    [QUICKSTART, HOSPITAL, BUDGET, OWN, COMPARE, LESS, OWNERS, MACHINES],
    ids=lambda path: path.stem,
)


@NOTEBOOKS
def test_it_is_kept_without_outputs(path: Path) -> None:
    """Ids are words, so that they do not change when somebody saves the notebook."""
    text = path.read_text()
    content = json.loads(text)
    nbformat.validate(content)
    assert text == json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    assert content["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in content["cells"]:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cell["id"])
        assert set(cell["metadata"]) <= {"tags"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    ids = [cell["id"] for cell in content["cells"]]
    assert len(ids) == len(set(ids))


@NOTEBOOKS
def test_paths_it_names_exist(path: Path) -> None:
    text = path.read_text()
    named = set(re.findall(r"`((?:docs/)?[a-zA-Z]+\.md)`", text))
    assert named
    assert not [name for name in named if not (ROOT / name).is_file()]


CLEAN = """
import sys, warnings
get_ipython().extension_manager.unload_extension("sqlfl")
if hasattr(sys, "before_notebook"):
    sys.before_notebook.__exit__(None, None, None)
sys.before_notebook = warnings.catch_warnings()
sys.before_notebook.__enter__()
%reset -f
"""
Run: TypeAlias = Callable[[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A function that runs all cells of a notebook: cell id -> outputs.

    One kernel runs a notebook after the other, without names, extensions and filters of warnings of
    the last one.
    """
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        kernel = AsyncKernelManager(kernel_name="python3")

        def run(notebook: Any) -> dict[str, Any]:
            cleaning = nbformat.v4.new_code_cell(CLEAN, id="clean")
            notebook.cells = [cleaning, *notebook.cells]
            where = {"metadata": {"path": str(ROOT / "examples")}}
            client = NotebookClient(notebook, km=kernel, timeout=600, resources=where)
            try:
                client.execute()
            finally:
                if client.kc is not None:
                    client.kc.stop_channels()
            return {cell.id: cell.get("outputs", []) for cell in notebook.cells}

        yield run
        if kernel.has_kernel:
            asyncio.run(kernel.shutdown_kernel(now=True))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def results(outputs: dict[str, Any], cell: str) -> list[Any]:
    """Without the bar of progress, which is shown where a statement takes long."""
    return [output for output in outputs[cell] if output.output_type == "execute_result"]


def html(outputs: dict[str, Any], cell: str) -> str:
    (output,) = results(outputs, cell)
    return str(output.data["text/html"])


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(run: Run) -> None:
    outputs = run(read(QUICKSTART))
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    failed = {cell: output.ename for cell, output in every if output.output_type == "error"}
    assert failed == {"refused": "PlanError"}
    assert not [cell for cell, output in every if output.get("name") == "stderr"]

    assert "What leaves the parties" in html(outputs, "explain")
    assert "22,146" in html(outputs, "train")
    (figure,) = outputs["plot"]
    assert figure.data["image/png"]
    assert "objective" in figure.metadata["image/png"]["alt"]
    values = re.findall(r"<td[^>]*>([^<]*)", html(outputs, "evaluate"))
    rows, _, accuracy, auc, _ = map(float, values)
    assert rows == 19871
    assert 0.7 < accuracy < 0.8
    assert 0.6 < auc < 0.7
    assert not results(outputs, "predict")  # goes into a variable
    assert "the first 20 of 19,937 rows" in html(outputs, "predictions")
    assert "labels" in html(outputs, "audit")
    assert not results(outputs, "keep")
    assert ">delay</td>" in html(outputs, "tomorrow")
    (error,) = outputs["refused"]
    assert len(error.traceback) == 5
    assert "column risk needs columns of 2 parties" in error.traceback[0]
    assert "SELECT f.distance * w.visib AS risk" in error.traceback[2]


@pytest.mark.slow
def test_what_leaves_less_runs_from_top_to_bottom(run: Run) -> None:
    notebook = read(LESS)
    (sums,) = (cell for cell in notebook.cells if cell.id == "sums")
    sums.source = sums.source.replace("epochs = 10", "epochs = 4")
    outputs = run(notebook)
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert not [cell for cell, output in every if output.get("name") == "stderr"]
    (left,) = results(outputs, "left")
    assert "masked_embeddings" in left.data["text/plain"]
    assert "predictions" not in left.data["text/plain"]
    assert "(8, 1e-06)-DP" in str(results(outputs, "report")[0].data)
    assert "the duality gap proves" in html(outputs, "columns")
    assert "(8, 1e-06)-DP" in html(outputs, "noised")


@pytest.mark.slow
def test_the_hospital_runs_from_top_to_bottom(run: Run) -> None:
    outputs = run(read(HOSPITAL))
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert not [cell for cell, output in every if output.get("name") == "stderr"]
    assert "Join keys" in html(outputs, "check")
    (mistake,) = results(outputs, "mistake")
    assert "is many to many" in mistake.data["text/plain"]
    for cell in ("roc", "calibration"):
        assert outputs[cell][0].data["image/png"]
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html(outputs, "inference").split("</tr>")
    ]
    found = {row[0]: row for row in rows if "number" in row}
    assert float(found["days"][8]) < 1e-6
    for name in ("age", "iron", "sugar"):
        assert float(found[name][9]) < 0 < float(found[name][10])


@pytest.mark.slow
def test_the_privacy_budget_runs_from_top_to_bottom(run: Run) -> None:
    outputs = run(read(BUDGET))
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert "(2, 1e-06)-DP" in html(outputs, "private")
    (price,) = results(outputs, "price")
    assert len(re.findall(r"0[.]\d{3} .*0[.]\d{3}", price.data["text/plain"])) == 6
    assert "(2, 0)-DP" in html(outputs, "labels")


@pytest.mark.slow
def test_your_own_database_runs_from_top_to_bottom(run: Run) -> None:
    outputs = run(read(OWN))
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    failed = {cell: output.ename for cell, output in every if output.output_type == "error"}
    assert set(failed) == {"misspelt", "two-parties", "text-target"}
    assert set(failed.values()) == {"PlanError"}
    assert "no row has a partner by" in html(outputs, "keys")
    assert "nothing looks like a mistake" in html(outputs, "keys-mended")
    assert "gamma_regression" in html(outputs, "later")


@pytest.mark.slow
def test_models_are_compared_from_top_to_bottom(run: Run) -> None:
    notebook = read(COMPARE)
    (setup,) = (cell for cell in notebook.cells if cell.id == "setup")
    setup.source = setup.source.replace("flights.parquet'", "flights.parquet' WHERE flight % 4 = 0")
    outputs = run(notebook)
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert not [cell for cell, output in every if output.get("name") == "stderr"]
    for cell in ("tune", "groups", "towers"):
        assert "was trained on all rows" in html(outputs, cell)
    for cell in ("picture", "roc", "weights"):
        assert outputs[cell][0].data["image/png"]
    (scores,) = results(outputs, "last")
    found = [float(v) for v in re.findall(r"0\.\d+", scores.data["text/plain"])]
    assert len(found) == 3
    assert all(0.6 < auc < 0.75 for auc in found)
    assert "f.sql" in html(outputs, "export")
    assert "part" in str(outputs["part"])


def printed(outputs: dict[str, Any], cell: str) -> str:
    text = "".join(output.text for output in outputs[cell] if output.output_type == "stream")
    return text.replace("\n    ", " ")  # wrapped lines of EXPLAIN


@pytest.mark.slow
def test_three_owners_decide_from_top_to_bottom(run: Run) -> None:
    outputs = run(read(OWNERS))
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert not [cell for cell, output in every if output.get("name") == "stderr"]
    assert "pid" not in html(outputs, "analyst")
    assert "takes noised labels" in printed(outputs, "open")
    assert "2.85 after this run" in printed(outputs, "private")
    assert "waits for its owner, as request 1" in printed(outputs, "private")
    assert "logistic_regression" in html(outputs, "approve")
    assert float(re.findall(r"<td[^>]*>([^<]*)", html(outputs, "quality"))[3]) > 0.85
    assert "column name is not granted" in printed(outputs, "column")
    assert "north2 is trained" in printed(outputs, "difference")
    assert "min_difference = 10" in printed(outputs, "difference")
    assert "north3 is trained" not in printed(outputs, "difference")
    assert "this run would pass it" in printed(outputs, "budget")
    assert "partial_gradient" in html(outputs, "left")
    assert "<td" not in html(outputs, "verify")
    assert "entry 33 was changed" in html(outputs, "changed")


AT = """
import contextlib
import io

from sqlfl.__main__ import main


def at(machine, command, shown=True, elsewhere=at):
    '''Run the commands of owners in this process, which has all their modules already.'''
    if command.startswith("sqlfl keygen"):
        return elsewhere(machine, command, shown)
    text = io.StringIO()
    with (
        contextlib.chdir(folder(machine)),
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        main(shlex.split(command)[1:])
    if shown:
        print(f"{machine}$ {command}", text.getvalue(), sep="\\n")
"""


@pytest.mark.slow
def test_three_machines_from_top_to_bottom(run: Run) -> None:
    notebook = read(MACHINES)
    (place,) = (n for n, cell in enumerate(notebook.cells, 1) if cell.id == "machines")
    notebook.cells.insert(place, nbformat.v4.new_code_cell(AT, id="at"))
    outputs = run(notebook)
    every = [(cell, output) for cell, found in outputs.items() for output in found]
    assert not [cell for cell, output in every if output.output_type == "error"]
    assert not [cell for cell, output in every if output.get("name") == "stderr"]
    assert html(outputs, "analyst").count(">true<") == 3
    assert "name" not in re.findall(r"<td[^>]*>([^<]*)", html(outputs, "columns"))
    assert "approval = 'first_time'" in printed(outputs, "explain")
    assert "waits for its owner, as request 1" in printed(outputs, "explain")
    assert "SELECT r.sessions" in printed(outputs, "approve")
    assert any("epoch/s" in str(output.data) for output in outputs["train"])
    assert "infarct_ml of west.scans at west/0" in html(outputs, "train")
    before, after = (
        re.findall(r"<td[^>]*>([^<]*)", html(outputs, cell)) for cell in ("quality", "back")
    )
    assert before == after
    assert float(before[3]) > 0.8
    assert "north.predictions.walking" in html(outputs, "predict")
    refused = printed(outputs, "refused")
    for why in ("column name is not granted", "min_rows = 200", "request 4: too many rounds"):
        assert why in refused
    assert re.search("west .* false", printed(outputs, "crash"))
    assert "LostError: party west/0: is away" in printed(outputs, "crash")
    assert len(results(outputs, "left")) == 1
    assert "nothing was changed" in printed(outputs, "end")
    assert "probability_true" in html(outputs, "end")


def test_no_machine_outlives_its_notebook(tmp_path: Path) -> None:
    cells = [cell.source for cell in read(MACHINES).cells if cell.id in ("imports", "machines")]
    group = tmp_path / "group"
    killed = f"""
start("alone", "http.server 0", until="")
Path({str(group)!r}).write_text(str(running["alone"].pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*cells, killed])],
        cwd=ROOT, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    for _ in range(200):
        try:
            os.killpg(int(group.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process is left")
