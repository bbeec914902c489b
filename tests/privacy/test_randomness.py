"""Noise and secrets come from the system's generator: nothing but the tests replaces it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import sqlfl
from sqlfl.privacy.samplers import system

ROOT = Path(sqlfl.__file__).parent
MODULES = sorted(
    path for room in (ROOT, ROOT / "planner", ROOT / "udfs") for path in room.rglob("*.py")
)
WORDS = ("entropy", "urandom", "SQLFL_SEED")

FRESH = """
import os, posix, secrets
import duckdb
import sqlfl
import sqlfl.privacy.samplers as randomness

con = duckdb.connect()
con.execute("CREATE TABLE t AS SELECT i AS k, sin(i) AS x, cos(i) AS y FROM range(400) r(i)")
weights = []
for _ in range(2):
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", con)
        fed.sql('''TRAIN MODEL m USING linear_regression TARGET y
            WITH (algorithm = 'sgd', epochs = 1)
            PRIVACY (epsilon = 1, delta = 1e-5, statistics = 'bounds',
                predictions = 'gaussian', feature_bounds = {'x': [-1, 1]})
            FROM (SELECT x, y FROM a.t)''')
        weights.append(fed.sql("WEIGHTS OF MODEL m").fetchall())
assert weights[0] != weights[1]
assert os.urandom is posix.urandom
assert secrets.SystemRandom.random.__globals__["_urandom"] is posix.urandom
asked = []
os.urandom = lambda count: asked.append(count) or bytes(count)
assert randomness.system(7) == bytes(7) and asked == [7]
"""


def test_a_plain_process_draws_from_the_system() -> None:
    """The same statement has other noise each time."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_module_replaces_the_generator() -> None:
    """A source of entropy is the system's by default, and is handed on as it was given."""
    texts = [(path, path.read_text()) for path in MODULES]
    nodes = [
        (path, node)
        for path, text in texts
        if any(word in text for word in WORDS)
        for node in ast.walk(ast.parse(text))
    ]
    assert sum("entropy" in dict(_defaults(node)) for _, node in nodes) > 10
    assert [f"{path}: {ast.unparse(node)}" for path, node in nodes if _replaces(node)] == []


def _replaces(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "entropy":
        return ast.unparse(node.value).removeprefix("self._") != "entropy"
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return bool({"os.urandom", "random._urandom"} & {ast.unparse(own) for own in targets})
    if isinstance(node, ast.Constant):
        return node.value == "SQLFL_SEED"
    default = dict(_defaults(node)).get("entropy")
    return default is not None and ast.unparse(default) != "system"


def _defaults(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if not isinstance(function, ast.FunctionDef):
        return
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    given = len(arguments.defaults)
    for own, default in zip(positional[len(positional) - given :], arguments.defaults, strict=True):
        yield own.arg, default
    for own, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield own.arg, default


def test_the_systems_bytes_are_asked_of_the_operating_system() -> None:
    assert inspect.getsource(system).rstrip().endswith("return os.urandom(count)")
