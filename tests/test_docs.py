"""The documentation is true: its code runs, its links lead somewhere, its options are all there."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.contract.methods import methods
from sqlfl.contract.transforms import COLUMN, FUNCTIONS
from sqlfl.models.kinds import KINDS
from sqlfl.options.diagnostics import (
    QUALITY,
    Check,
    ContributionsOptions,
    Importance,
    Inference,
    SkewOptions,
    looks_markdown,
)
from sqlfl.options.policies import policies_markdown
from sqlfl.options.studies import studies_markdown
from sqlfl.options.training import options_markdown
from sqlfl.options.tuning import tuning_markdown
from sqlfl.planner.grammar.dialect import STATEMENTS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("sqlfl", "sqlfl/planner", "sqlfl/udfs")
    for path in (ROOT / folder).rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.slow
def test_readme_code_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python blocks run as one script, and print first what the page says."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (output,) = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    namespace: dict[str, object] = {}
    exec(compile("\n".join(blocks), "README.md", "exec"), namespace)
    assert namespace["plan"]
    assert capsys.readouterr().out.startswith(output)


@pytest.mark.slow
def test_the_page_on_neural_networks_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    block, sums = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/neural.md").read_text(), re.M | re.S
    )
    exec(compile(sums, "docs/neural.md", "exec"), {})
    namespace: dict[str, object] = {}
    exec(compile(block, "docs/neural.md", "exec"), namespace)
    assert namespace["fed"].model("delay").metrics["accuracy"] > 0.7  # type: ignore[attr-defined]


def test_the_page_on_sparse_models_runs() -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/lasso.md").read_text(), re.M | re.S
    )
    exec(compile(block, "docs/lasso.md", "exec"), {})


def test_the_page_on_python_runs() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S
    )
    namespace: dict[str, Any] = {}
    try:
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), namespace)
    finally:
        namespace["fed"].close()
        for name in ("airline", "meteo"):
            namespace[name].close()


def test_the_page_on_quality_runs() -> None:
    page = (ROOT / "docs/quality.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "docs/quality.md", "exec"), namespace)
    for name in ("fed", "clinic", "lab"):
        namespace[name].close()
    assert page.endswith(looks_markdown(QUALITY))


def test_the_page_on_checks_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/check.md").read_text()
    block, shown = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/check.md", "exec"), namespace)
    for name in ("fed", "clinic", "lab"):
        namespace[name].close()
    said = [line for line in shown.splitlines() if not line.startswith((">>>", "..."))]
    assert namespace["wrong"] == said
    assert page.endswith(looks_markdown((Check,)))


def test_the_page_on_tuning_runs() -> None:
    page = (ROOT / "docs/tune.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/tune.md", "exec"), namespace)
    assert namespace["best"] == namespace["found"].arrow().column("l2")[0].as_py()
    for name in ("fed", "clinic", "lab"):
        namespace[name].close()
    assert page.endswith(tuning_markdown())


def test_the_page_on_exports_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/export.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "docs/export.md", "exec"), namespace)
    ((returned, chances),) = namespace["found"]
    assert returned is (chances[1] > 0.5)
    assert namespace["chances"][0].tolist() == pytest.approx(chances)
    assert len(namespace["same"]) == 500
    for name in ("fed", "clinic", "lab", "bare"):
        namespace[name].close()


def test_the_page_on_looking_into_models_runs() -> None:
    page = (ROOT / "docs/understand.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/understand.md", "exec"), namespace)
    namespace["fed"].close()
    assert page.endswith(looks_markdown((Inference, Importance, ContributionsOptions, SkewOptions)))


def test_the_page_on_owners_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/owner.md").read_text()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "docs/owner.md", "exec"), namespace)
    (refusal,) = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    assert refusal in capsys.readouterr().out
    known = namespace["fed"].tables().arrow().to_pylist()
    assert {row["column"] for row in known if row["party"] == "bank"} == {"pid", "balance"}
    for name in ("fed", "owner", "clinic", "lab"):
        namespace[name].close()
    assert policies_markdown() in page
    begun = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(begun) == 2
    with duckdb.connect() as con:
        for text in begun:
            assert len(sqlfl.owner(con).sql(text))


def test_the_page_on_sources_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples in one process run; tests/cli/test_sources.py has the party on another machine."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/sources.md").read_text()
    (block,) = (
        text
        for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
        if "sqlfl.connect(" in text
    )
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/sources.md", "exec"), namespace)
    assert "churned" in str(namespace["card"])
    for name in ("fed", "bank"):
        namespace[name].close()


def test_a_model_of_dbt_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dbt's connection and a stand-in of its object."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/predict.md").read_text(), re.M | re.S
    )
    (block,) = (text for text in blocks if "def model(" in text)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/predict.md", "exec"), namespace)
    rows = "CREATE TABLE customers AS SELECT i AS pid, {} FROM range(120) t(i)"
    with duckdb.connect("warehouse.duckdb") as con, duckdb.connect("shop.duckdb") as shop:
        con.execute(rows.format("sin(i) AS balance, i % 3 = 0 AS churned"))
        shop.execute(rows.format("cos(i) AS spent"))
    told: list[tuple[object, ...]] = []
    dbt = SimpleNamespace(
        config=lambda **given: told.append(tuple(given.items())),
        ref=lambda name: told.append((name,)),
    )
    with duckdb.connect("warehouse.duckdb") as con:
        with sqlfl.connect("churn.duckdb", progress=False) as fed:
            fed.attach("bank", con)
            fed.attach("shop", "shop.duckdb")
            fed.sql(
                "TRAIN MODEL churn USING logistic_regression TARGET churned FROM (SELECT "
                "c.balance, s.spent, c.churned FROM bank.customers c JOIN shop.customers s "
                "ON c.pid = s.pid)"
            )
        for _ in range(2):  # dbt runs it again
            found = namespace["model"](dbt, con.cursor()).fetchall()
    assert sorted(pid for pid, _ in found) == list(range(120))
    assert all(0.0 < risk < 1.0 for _, risk in found)
    assert told == [(("materialized", "table"),), ("customers",)] * 2


def test_the_page_on_transformations_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/transform.md").read_text(), re.M | re.S
    )
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/transform.md", "exec"), namespace)
    assert "x (curve)" not in namespace["fed"].model("spending").features
    assert "income (curve)" in namespace["fed"].model("curves").features
    assert "TRANSFORM makes " in capsys.readouterr().out
    for function in FUNCTIONS:
        assert function == COLUMN or f"`{function}(" in (ROOT / "docs/transform.md").read_text()
    for name in ("fed", "shop", "office"):
        namespace[name].close()


@pytest.mark.slow
def test_the_page_on_privacy_runs() -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/privacy.md").read_text(), re.M | re.S
    )
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/privacy.md", "exec"), namespace)
    claimed = {release.epsilon for release in namespace["report"].releases}
    assert max(claimed - {None}) == 4.0  # of the labels; that of features is never above
    assert namespace["accuracy"][4] > 0.9
    namespace["fed"].close()


def test_options_are_documented() -> None:
    """Where this fails, the page needs what `sqlfl.options.training.options_markdown()` returns."""
    page = (ROOT / "docs" / "options.md").read_text()
    table, _, _ = page[page.index("| option |") :].partition("\n\n")
    assert f"{table}\n" == options_markdown()


def test_options_of_each_algorithm_are_listed() -> None:
    """The list by algorithm agrees with the column "applies to" of the table of options."""
    before, _, _ = (ROOT / "docs" / "options.md").read_text().partition("| option |")
    listed = {
        algorithm: set(re.findall(r"`([a-z_0-9]+)`", names))
        for algorithm, names in re.findall(r"^- `([a-z_]+)`: (.*)$", before, re.M)
    }
    rows = re.findall(r"^\| `([a-z_0-9]+)` \|(?:[^|]*\|){2}([^|]*)\|", options_markdown(), re.M)
    assert set(listed) == set(methods())
    for algorithm, names in listed.items():
        assert names == {name for name, applies in rows if algorithm in applies}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert result.attempted > result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", word, flags=re.A).strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text())
    ends = [(page.parent / file if file else page, anchor) for file, anchor in links]
    assert [(end.name, anchor) for end, anchor in ends if anchor not in anchors(end)] == []


def test_statements_and_public_names_are_documented() -> None:
    pages = {path.name: path.read_text() for path in ROOT.glob("docs/*.md")}
    every = "\n".join(pages.values())

    def missing(names: Iterable[str], text: str) -> list[str]:
        return [name for name in names if not re.search(rf"\b{name}\b", text)]

    assert not missing(STATEMENTS, pages["statements.md"])
    assert studies_markdown() in pages["statements.md"]
    assert not missing(KINDS, pages["statements.md"])
    assert not missing((name for name in sqlfl.__all__ if name != "__version__"), every)
    for kind in (sqlfl.Federation, sqlfl.Relation, sqlfl.Result, sqlfl.Model):
        assert not missing((name for name in dir(kind) if not name.startswith("_")), every)


def test_claims_of_the_page_on_soundness_name_tests() -> None:
    text = (ROOT / "docs/soundness.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 15
    assert {(f, n) for f, n in named if f"def {n}(" not in (ROOT / f).read_text()} == set()


def test_pages_that_sources_name_exist() -> None:
    folders = ("planner", "udfs", "sqlfl", "benchmarks", "examples")
    texts = [
        path.read_text()
        for folder in folders
        for kind in ("*.py", "*.ipynb", "*.yaml")
        for path in (ROOT / folder).rglob(kind)
    ]
    named = {name for text in texts for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert len(named) > 10
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_files_that_pages_name_exist() -> None:
    pages = (path for path in PAGES if path.name != "CHANGELOG.md")
    named = re.compile(r"`((?:sqlfl|tests|benchmarks|examples)/[a-z_][\w/.]*)`")
    found = {(page.name, name) for page in pages for name in named.findall(page.read_text())}
    assert len(found) > 30
    kinds = ("", ".py")
    assert {
        (page, name)
        for page, name in found
        if not any((ROOT / f"{name}{kind}").exists() for kind in kinds)
    } == set()


@pytest.mark.parametrize("page", ["architecture.md", "decisions.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    names = set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", (ROOT / "docs" / page).read_text()))
    rooms = {path.name for path in (ROOT / "sqlfl").iterdir() if (path / "__init__.py").exists()}
    for name in sorted(name for name in names if name.split(".")[0] in rooms):
        value: Any = sqlfl
        parts = name.split(".")
        for n, part in enumerate(parts, 1):
            module = ".".join(["sqlfl", *parts[:n]])
            with contextlib.suppress(ModuleNotFoundError):
                value = importlib.import_module(module)
                continue
            value = getattr(value, part)
