"""What no test misses: a module's checks taken away one by one, and the tests run without each.

python -m tests.mutating sqlfl/guard/judging.py --tests tests/guard [--processes 2] [--only TEXT]

In a copy of the repository, a mutant at a time: a `raise`, `yield` or call for its effect that is
not done, an operand of `and` and `or` left out, a comparison that includes its bound or does not, a
number that is one more. A mutant is killed where a test fails, or takes longer than --seconds. All
are printed, with their places; nothing is written.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
LEFT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build")
BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True)
class Mutant:
    line: int
    what: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()

    def place(node: ast.expr | ast.stmt) -> slice:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return slice(
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def mutant(node: ast.expr | ast.stmt, text: str, what: str) -> Mutant:
        own = place(node)
        changed = data[: own.start] + text.encode() + data[own.stop :]
        return Mutant(node.lineno, what, changed.decode())

    def text_of(node: ast.expr | ast.stmt) -> str:
        return data[place(node)].decode()

    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Expr) and _done(node):
            yield mutant(node, "pass", f"without {text_of(node)}")
        elif isinstance(node, ast.BoolOp):
            for left in range(len(node.values)):
                kept = [f"({text_of(v)})" for n, v in enumerate(node.values) if n != left]
                joined = (" and " if isinstance(node.op, ast.And) else " or ").join(kept)
                what = f"without {text_of(node.values[left])} in {text_of(node)}"
                yield mutant(node, f"({joined})", what)
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS:
            if len(node.ops) > 1:
                continue
            operator = BOUNDS[type(node.ops[0])]
            text = f"{text_of(node.left)} {operator} {text_of(node.comparators[0])}"
            yield mutant(node, f"({text})", f"{text} for {text_of(node)}")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield mutant(node, f"({node.value!r} + 1)", f"{node.value!r} + 1")


def _done(node: ast.Raise | ast.Expr) -> bool:
    """For its effect: a refusal, a check, something told or counted."""
    return isinstance(node, ast.Raise) or isinstance(
        node.value, ast.Yield | ast.YieldFrom | ast.Call
    )


def killed(folder: Path, tests: list[str], seconds: float) -> str | None:
    """By which test, in words; None where it lives."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return "time"
    if done.returncode == 0:
        return None
    failed = ("FAILED tests", "ERROR tests")
    said = [line for line in done.stdout.splitlines() if line.startswith(failed)]
    return said[0].split(" - ")[0] if said else "something else"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--tests", nargs="+", required=True, help="in the order of their use")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0, help="for the tests of a mutant")
    parser.add_argument("--only", default="", help="mutants that have this in their words")
    given = parser.parse_args()
    found = [m for m in mutants((ROOT / given.module).read_text()) if given.only in m.what]
    with tempfile.TemporaryDirectory() as name:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.processes):
            shutil.copytree(ROOT, Path(name) / str(number), symlinks=True, ignore=LEFT)
            free.put(Path(name) / str(number))
        if (why := killed(Path(name) / "0", given.tests, given.seconds)) is not None:
            sys.exit(f"without a mutant there is {why}")

        def tried(mutant: Mutant) -> str | None:
            folder = free.get()
            try:
                (folder / given.module).write_text(mutant.source)
                return killed(folder, given.tests, given.seconds)
            finally:
                shutil.copy(ROOT / given.module, folder / given.module)
                free.put(folder)

        lived = 0
        with ThreadPoolExecutor(given.processes) as pool:
            for mutant, by in zip(found, pool.map(tried, found), strict=True):
                lived += by is None
                told = " ".join(mutant.what.split())
                print(f"{given.module}:{mutant.line}: {told:.160}: {by or 'LIVES'}", flush=True)
    print(f"{given.module}: {len(found)} mutants, {len(found) - lived} killed, {lived} live")


if __name__ == "__main__":
    main()
