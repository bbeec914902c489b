"""The package as others get it: wheel, sdist, editable install, each in its own environment.

An environment holds links to everything installed beside the running interpreter except sqlfl, so
that nothing is fetched and nothing but the artefact under test can provide sqlfl.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.depth import spread

ROOT = Path(__file__).parent.parent
MODULES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("sqlfl", "sqlfl/planner", "sqlfl/udfs")
    for path in (ROOT / folder).rglob("*.py")
}
"""Every module under the name that it is imported by."""
DATA = {
    f"sqlfl/{path.relative_to(ROOT).as_posix()}"
    for pattern in (
        "docs/*.md",
        "docs/results/*.md",
        "docs/figures/*",
        "examples/*.*",
        "examples/data/*",
        "examples/distributed/*",
        "examples/flower/*",
        "examples/flower/sqlfl_flower/*.py",
    )
    for path in ROOT.glob(pattern)
    if path.is_file()
}
"""What `python -m sqlfl` shows and copies."""
OWN = {"sqlfl/py.typed"} | {
    f"sqlfl/service/{name}" for name in (
        "page.css", "owner.html", "status.html",
        "site/README.md", "site/compose.yaml", "site/start.sh", "site/unit.service",
    )
}  # fmt: skip
COMPILER = shutil.which("cc") or shutil.which("gcc")
LIBRARY = {"sqlfl/models/native/_compiled.so"} if COMPILER else set()
"""What is compiled, where there is a compiler."""
LARGEST_WHEEL = 8_000_000
"""Bytes; the flights are 5 million of them."""
CONSUMER = """\
import sqlfl
import sqlfl.planner
import sqlfl.udfs
from sqlfl.planner.query.ucq import Ucq
from sqlfl.contract.schema import Client


def look(client: Client, query: Ucq) -> None:
    reveal_type(client.index)
    reveal_type(query.slots)
"""
ORIGINS = (
    "import sqlfl, sqlfl.planner.query.ucq as p, sqlfl.udfs as u;"
    "print(sqlfl.__file__, p.__file__, u.__file__);"
)
COMPILED = "from sqlfl.models.native import library; print(library() is not None);"
STRAYS = (
    "from importlib.metadata import packages_distributions;"
    "from importlib.util import find_spec;"
    "others = {n for n, owners in packages_distributions().items() if 'sqlfl' not in owners};"
    "names = {'planner', 'udfs', 'tests', 'examples', 'benchmarks'} - others;"
    "print(sorted(n for n in names if find_spec(n)));"
)
"""Of top-level names: Opacus, for one, installs its own examples and benchmarks."""

COPIED = (
    "import os, sys; from sqlfl.__main__ import main;"
    "main(['docs', 'readme']); main(['examples', 'copied']);"
    "os.chdir('copied'); sys.path.insert(0, 'examples');"
    "import duckdb, sqlfl, demo;"
    "con = duckdb.connect();"
    "_ = con.execute('CREATE TABLE w AS ' + demo.TABLES['meteo.weather']);"
    "fed = sqlfl.connect(); fed.attach('meteo', con);"
    "fed.sql('TRAIN MODEL m USING linear_regression TARGET temp FROM (SELECT temp, dewp FROM "
    "meteo.w WHERE temp IS NOT NULL)');"
    "assert '/copied/' in demo.TABLES['meteo.weather']"
)
"""The front page, and the data of the copied examples by the demo's own paths."""

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    # setuptools' long warning of a folder without __init__.py, which pip passes on
    assert "would be ignored" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here need not be fast: that takes ten times as long."""
    with pytest.MonkeyPatch.context() as patch:
        if COMPILER:
            command = tmp_path_factory.mktemp("compiler") / "cc"
            command.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
            command.chmod(0o755)
            patch.setenv("CC", str(command))
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from, links kept as links."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("sqlfl", "planner", "udfs", "docs", "examples"):
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.so")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(kind: str, source: Path, target: Path) -> Path:
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", code, target, cwd=source)
    (artefact,) = target.iterdir()
    return artefact


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Installs what the arguments name, once; returns the folder of packages of the environment."""
    here = Path(sysconfig.get_path("purelib"))

    @functools.cache
    def into_new_environment(*arguments: str | Path) -> Path:
        folder = tmp_path_factory.mktemp("venv")
        venv.create(folder, symlinks=True)
        (there,) = folder.glob("lib/*/site-packages")
        for entry in here.iterdir():
            if not entry.name.startswith(("sqlfl", "__editable__", "_virtualenv")):
                (there / entry.name).symlink_to(entry)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps",
            "--no-build-isolation", "--no-compile", "--no-index", *arguments,
            cwd=folder)  # fmt: skip
        return there

    return into_new_environment


def python_of(packages: Path) -> Path:
    return packages.parents[2] / "bin" / "python"


def modules_of_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_has_every_module_and_sqlfl_alone(wheel: Path) -> None:
    assert modules_of_wheel(wheel) == MODULES | OWN | DATA | LIBRARY
    assert "-py3-none-" in wheel.name
    assert wheel.stat().st_size < LARGEST_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_sdist_has_no_links(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]


def test_without_a_compiler_the_rest_is_installed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    copy = shutil.copytree(source, tmp_path / "source", symlinks=True)
    shutil.rmtree(copy / "build", ignore_errors=True)
    target = tmp_path / "wheel"
    target.mkdir()
    found = modules_of_wheel(build("wheel", copy, target))
    assert found == MODULES | OWN | DATA


@pytest.mark.parametrize("form", spread(["sdist", "wheel", "editable"], 1))
def test_install(
    form: str,
    source: Path,
    install: Callable[..., Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if form == "editable":
        packages = install("--editable", source)
        home = source / "sqlfl"
    else:
        packages = install(request.getfixturevalue(form))
        home = packages / "sqlfl"
        # a wheel that is built of the sdist has the same in it
        there = {path.relative_to(packages) for path in home.rglob("*") if path.is_file()}
        found = {path.as_posix() for path in there if path.suffix != ".pyc"}
        assert found == MODULES | OWN | DATA | LIBRARY
    python = python_of(packages)
    told = run(python, "-c", ORIGINS + COMPILED + STRAYS, cwd=tmp_path)
    origins, compiled, strays = (line.split() for line in told.splitlines())
    assert [Path(origin).relative_to(home) for origin in origins] == [
        Path("__init__.py"), Path("planner/query/ucq.py"), Path("udfs/__init__.py")
    ]  # fmt: skip
    assert compiled == [str(bool(COMPILER))]
    assert strays == ["[]"]
    # documentation and examples come with it, and run where they are copied
    assert run(python, "-m", "sqlfl", "docs", "statements", cwd=tmp_path).startswith("# Statements")
    assert run(python, "-c", COPIED, cwd=tmp_path).startswith("# sqlfl")
    # from the repository root the folders of the root come first: the links make them whole
    assert run(python, "-m", "timeit", "-n1", "-r1", ORIGINS, cwd=source).startswith(str(source))


FOLLOWED = """\
[mypy]
follow_imports = skip
[mypy-sqlfl.*]
ignore_errors = True
[mypy-sqlfl,sqlfl.contract.schema,sqlfl.udfs,sqlfl.planner,sqlfl.planner.query,sqlfl.planner.query.ucq]
follow_imports = normal
"""
"""What the consumer names. What that is made of takes most of the time, and is not looked at."""


@pytest.mark.parametrize("form", ["wheel", "root"])
def test_mypy_follows(
    form: str, source: Path, wheel: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    python = python_of(install(wheel))
    folder = tmp_path if form == "wheel" else source
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "mypy.ini").write_text(FOLLOWED)
    shown = run(python, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache",
                "--config-file", tmp_path / "mypy.ini", tmp_path / "consumer.py",
                cwd=folder)  # fmt: skip
    assert 'Revealed type is "int"' in shown
    assert "sqlfl.planner.query.ucq.Slot" in shown
