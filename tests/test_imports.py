"""Who may import whom, read from the sources; and what `import sqlfl` loads."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sqlfl.contract.methods import METHODS

ROOT = Path(__file__).parent.parent
FOLDERS = {"sqlfl": ROOT / "sqlfl", "sqlfl.planner": ROOT / "planner", "sqlfl.udfs": ROOT / "udfs"}
STDLIB = set(sys.stdlib_module_names)


def sources() -> dict[str, Path]:
    """Module name -> file, links to the other top folders left out of sqlfl's own."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            if package == "sqlfl" and inner and inner[0] in ("planner", "udfs"):
                continue
            parts = inner[:-1] if inner[-1] == "__init__" else inner
            found[".".join((package, *parts))] = path
    return found


SOURCES = sources()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path, *, lazily: bool = True) -> set[str]:
    """Modules that a file imports; `lazily`: those inside functions too. Not those for typing."""
    nodes = list(ast.walk(parsed(path)))
    skipped: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in vars(node.test).values():
            skipped.update(inner for child in node.body for inner in ast.walk(child))
        if not lazily and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped.update(ast.walk(node))
    names: set[str] = set()
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def modules(path: Path) -> set[str]:
    """As `imported`, only names that are modules: of this package, or the top names of others."""
    return {
        name if name.split(".")[0] == "sqlfl" else name.split(".")[0]
        for name in imported(path)
        if name.split(".")[0] != "sqlfl" or (name in SOURCES and not bare(name))
    }


@functools.cache
def bare(module: str) -> bool:
    """Return whether a module is a package whose own file holds no code."""
    path = SOURCES[module]
    return path.name == "__init__.py" and module != "sqlfl" and len(parsed(path).body) <= 1


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def members(package: str) -> list[str]:
    found = [m for m in SOURCES if within(m, package)]
    assert found, f"there is no {package}"
    return found


def test_the_planner_is_pure() -> None:
    allowed = STDLIB | {"sqlglot", "sqlfl", "sqlfl.contract.transforms"}
    specifications = [f"{package}.spec" for package in METHODS.values()]
    purely = ("sqlfl.planner.grammar", "sqlfl.planner.query", "sqlfl.planner.federated")
    for module in (*itertools.chain(*map(members, purely)), *specifications):
        others = {m for m in modules(SOURCES[module]) if not within(m, "sqlfl.planner")}
        # Options and messages are at the bottom too, and know the standard library only.
        assert others - set(BOTTOM) <= allowed, module


LAYERS = (
    "base",
    "databases", "models",
    "contract", "plots",
    "messages",
    "transport",
    "options",
    "planner.grammar",
    "planner.query",
    "privacy",
    "aggregation", "planner.federated", "udfs",
    "governance", "planner.explain",
    "party", "store",
    "coordinator",
    "federation", "methods",
    "notebook", "service",
    "gateway",
    "cli", "integrations",
)  # fmt: skip
"""All rooms. A room imports rooms before it, for typing too, so no two import each other."""


@functools.cache
def graph() -> dict[str, set[str]]:
    """Module -> modules of the package that it names, inside functions and for typing too."""
    found: dict[str, set[str]] = {}
    for module, path in SOURCES.items():
        names = found[module] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    names.add(full if full in SOURCES else str(node.module))
        names &= SOURCES.keys() - {module}
    return found


def room_of(module: str) -> str:
    return next(room for room in LAYERS if within(module, f"sqlfl.{room}"))


@pytest.mark.parametrize("room", LAYERS)
def test_a_room_imports_rooms_below_it(room: str) -> None:
    allowed = LAYERS[: LAYERS.index(room) + 1]
    for module in members(f"sqlfl.{room}"):
        for other in graph()[module] - {"sqlfl"}:
            assert room_of(other) in allowed, f"{module} imports {other}"


def test_every_module_is_in_a_room() -> None:
    rooms = {f"sqlfl.{room}" for room in LAYERS} | {"sqlfl.planner", "sqlfl.udfs"}
    for module in SOURCES.keys() - {"sqlfl", "sqlfl.__main__", "sqlfl.planner"}:
        assert any(within(module, room) for room in rooms), module


def test_no_imports_go_in_a_circle() -> None:
    left = {module: set(others) for module, others in graph().items()}
    while free := [module for module, others in left.items() if not others]:
        for module in free:
            del left[module]
        for others in left.values():
            others.difference_update(free)
    assert not left, sorted(left)


def test_only_the_session_knows_parties_and_the_coordinator() -> None:
    both = {
        module
        for module, others in graph().items()
        if all(
            any(within(m, room) for m in others) for room in ("sqlfl.party", "sqlfl.coordinator")
        )
    }
    assert both == {"sqlfl.federation.session"}


BOTTOM = [
    "sqlfl.base.codec",
    "sqlfl.base.errors",
    "sqlfl.contract.fragment_columns",
    "sqlfl.messages",
    "sqlfl.messages.base",
    "sqlfl.messages.diagnostics",
    "sqlfl.messages.forms",
    "sqlfl.messages.models",
    "sqlfl.messages.preparation",
    "sqlfl.messages.training",
    "sqlfl.messages.training",
    "sqlfl.methods.admm.messages",
    "sqlfl.methods.frank_wolfe.messages",
    "sqlfl.methods.lbfgs.messages",
    "sqlfl.methods.pbm.messages",
    "sqlfl.methods.sgd.messages",
    "sqlfl.models.kinds",
    "sqlfl.base.sanitize",
    "sqlfl.privacy.protection",
    "sqlfl.contract.joins",
    "sqlfl.contract.request",
    "sqlfl.contract.methods",
    "sqlfl.contract.schema",
    "sqlfl.methods",
    "sqlfl.methods.admm.options",
    "sqlfl.methods.frank_wolfe.options",
    "sqlfl.methods.lbfgs.options",
    "sqlfl.methods.pbm.options",
    "sqlfl.methods.sgd.options",
    "sqlfl.options.types",
    "sqlfl.options.entries",
    "sqlfl.options.training",
    "sqlfl.options.diagnostics",
    "sqlfl.options.privacy",
    "sqlfl.options.resolve",
    "sqlfl.options.tuning",
    "sqlfl.planner.explain.render",
    "sqlfl.contract.privacy_specification",
    "sqlfl.planner.explain.card",
    "sqlfl.contract.transforms",
    "sqlfl.transport.network",
]
LATE = {
    "sqlfl.base.codec": {"numpy"},
    "sqlfl.messages.preparation": {"numpy"},
    "sqlfl.messages.training": {"numpy"},
}
"""What some of them import when they make an array."""


@pytest.mark.parametrize("module", BOTTOM)
def test_the_bottom_knows_the_standard_library_only(module: str) -> None:
    assert modules(SOURCES[module]) <= STDLIB | {*BOTTOM, "sqlfl"} | LATE.get(module, set())


def reached(start: str) -> set[str]:
    """Modules of the package that `start` loads, directly or through others."""
    found, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module in found or module not in SOURCES:
            continue
        found.add(module)
        waiting += [m for m in imported(SOURCES[module]) if m in SOURCES and m != "sqlfl"]
    return found


@pytest.mark.parametrize("package", METHODS.values())
def test_the_parts_of_a_method_stay_on_their_sides(package: str) -> None:
    for other in reached(f"{package}.coordinator"):
        assert not within(other, "sqlfl.party"), other
        assert not within(other, "sqlfl.udfs"), other
    modules = [m for m in members(package) if m.endswith("client")]
    assert f"{package}.client" in modules
    for module in modules:
        for other in reached(module):
            for forbidden in ("sqlfl.coordinator", "sqlfl.planner", "sqlfl.federation"):
                assert not within(other, forbidden), f"{module} reaches {other}"


def test_the_coordinator_does_not_know_the_partys_engine() -> None:
    for module in members("sqlfl.coordinator"):
        for other in reached(module):
            assert not within(other, "sqlfl.udfs"), f"{module} reaches {other}"
            assert not within(other, "sqlfl.party.party"), f"{module} reaches {other}"
            assert not within(other, "sqlfl.party.client"), f"{module} reaches {other}"


def test_the_coordinator_has_no_part_in_masks() -> None:
    """It adds packed numbers up; keys and masks are the clients'."""
    coordinators = [f"{package}.coordinator" for package in METHODS.values()]
    for module in (*members("sqlfl.coordinator"), *coordinators):
        for other in reached(module):
            assert other not in ("sqlfl.aggregation.keys", "sqlfl.aggregation.masks"), (
                f"{module}: {other}"
            )


AGENT = (
    "agent", "certificates", "frames", "hosting",
    "passes", "settings", "stream", "wrapping",
)  # fmt: skip
"""The modules of `service` that run at a party."""


def test_the_party_knows_messages_only() -> None:
    packages = (
        "sqlfl.party", "sqlfl.udfs", "sqlfl.governance.guard",
        *(f"sqlfl.service.{name}" for name in AGENT),
    )  # fmt: skip
    for package in packages:
        for module in members(package):
            for other in reached(module):
                for forbidden in ("sqlfl.planner", "sqlfl.coordinator", "sqlfl.federation"):
                    assert not within(other, forbidden), f"{module} reaches {other}"
    # a site reads its owner's statements too, by the grammar
    for other in reached("sqlfl.integrations.nvflare.flare_site"):
        if not within(other, "sqlfl.planner.grammar"):
            for forbidden in ("sqlfl.planner", "sqlfl.coordinator", "sqlfl.federation"):
                assert not within(other, forbidden), f"a site reaches {other}"


def test_the_transport_knows_no_algorithm() -> None:
    for module in members("sqlfl.transport"):
        for other in reached(module):
            for forbidden in ("sqlfl.methods", "sqlfl.coordinator", "sqlfl.party", "sqlfl.udfs"):
                assert not within(other, forbidden), f"{module} reaches {other}"
            allowed = not within(other, "sqlfl.models") or other == "sqlfl.models.kinds"
            assert allowed, f"{module} reaches {other}"


def python_files() -> list[Path]:
    folders = ("sqlfl", "planner", "udfs", "tests", "examples", "benchmarks")
    return sorted(
        {p.resolve() for f in folders for p in (ROOT / f).rglob("*.py") if (ROOT / f).is_dir()}
    )


def test_planner_and_udfs_are_imported_through_the_package() -> None:
    suspect = re.compile(
        r"^\s*(from\s+\.|(from|import)\b.*(?<![.\w])(planner|udfs)\b)", re.MULTILINE
    )
    for path in python_files():
        for name in imported(path) if suspect.search(path.read_text()) else ():
            assert name.split(".")[0] not in ("planner", "udfs"), path


def test_nothing_is_pickled() -> None:
    for module, path in SOURCES.items():
        names = {name.split(".")[0] for name in imported(path)}
        assert not names & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, module
        for name in ("allow_pickle=True", "to_pickle", "read_pickle"):
            assert name not in path.read_text(), module


def test_the_oracle_shares_nothing_with_the_package() -> None:
    for path in (ROOT / "tests" / "oracle").rglob("*.py"):
        for name in imported(path):
            assert name.split(".")[0] != "sqlfl", path
    for path in [ROOT / "tests" / "strategies.py"]:
        for name in imported(path):
            assert name.split(".")[0] != "sqlfl", path


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_is_light() -> None:
    """Bare Python's modules and sqlfl's own errors, whatever the machine's speed."""
    extra = loaded("import sqlfl") - loaded("pass")
    heavy = ("torch", "opacus", "duckdb", "pyarrow", "numpy", "scipy", "sqlglot", "pandas")
    assert not [m for m in extra if m.split(".")[0] in heavy]
    assert len(extra) < 120, sorted(extra)


def test_the_planner_loads_no_arrays() -> None:
    """Messages say their forms without numpy and Arrow."""
    extra = loaded("import sqlfl.planner.federated.plan") - loaded("pass")
    heavy = {"torch", "duckdb", "pyarrow", "numpy", "scipy", "pandas"}
    assert not heavy & {m.split(".")[0] for m in extra}


def test_a_federation_needs_no_package_that_loads_slowly() -> None:
    modules = loaded("import sqlfl\nwith sqlfl.connect() as fed: fed.sql('SHOW MODELS')")
    slow = ("torch", "opacus", "sklearn", "matplotlib", "scipy.optimize", "scipy.stats")
    assert not modules & set(slow)


def test_a_party_and_its_functions_need_no_torch() -> None:
    """Only a tower that is trained does: linear blocks, scoring and register() are numpy."""
    names = ("party.party", "udfs.blocks.register", "methods", "models.towers")
    found = loaded("import " + ", ".join(f"sqlfl.{name}" for name in names))
    assert not [m for m in found if m.split(".")[0] == "torch"]


def test_modules_are_of_readable_size() -> None:
    for module, path in SOURCES.items():
        assert len(path.read_text().splitlines()) <= 800, module
