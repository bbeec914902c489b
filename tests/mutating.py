"""What no test misses: a module's checks taken away one by one, and the tests run without each.

python -m tests.mutating sqlfl/governance/policy_evaluation.py ... --tests tests/governance
    [--processes 2]
    [--kinds raise leave operand] [--only TEXT] [--every 3] [--draw 60] [--lines FILE] [--most 60]

In a copy of the repository, a mutant at a time: a `raise`, `yield` or call for its effect that is
not done (kinds raise, yield, call), a `return` or `continue` under an `if` likewise (leave), an
operand of `and` and `or` left out (operand), or an `if` of a comprehension (filter), a comparison
that includes its bound or does not (bound), a number that is one more (number), a sum that is a
difference, a product that is a quotient, and the other way round (arithmetic). With --draw so many
lines of all the modules are drawn (by SQLFL_SEED), and one mutant of each.

The tests are run once without a mutant, to see which come by which lines (--lines keeps that in a
file, which is read where it is there). A mutant is then tried by those that come by its own: those
that come by what depends on it first, and of these the quickest; --most seconds of them, as long as
they took then. It is killed where one fails, or all take longer than --seconds. All are printed,
with their places; nothing else is written.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import inspect
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parent.parent
LEFT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "build")
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
}  # fmt: skip
BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
KINDS = ("raise", "yield", "call", "leave", "operand", "filter", "bound", "number", "arithmetic")
HEAVY = ["pytest", "duckdb", "numpy", "pyarrow.parquet", "sqlglot", "scipy.special"]
"""What all tests import, and no mutant is of; pytest rewrites what hypothesis has."""


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    lines: frozenset[int]
    """Of the statement that it is in, or of its condition."""
    after: frozenset[int]
    """Of what is done where that holds."""
    kind: str
    what: str
    source: str


def mutants(module: str, source: str) -> Iterator[Mutant]:
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

    def text_of(node: ast.expr | ast.stmt) -> str:
        return data[place(node)].decode()

    def changed_at(
        node: ast.expr | ast.stmt, within: ast.stmt, text: str, kind: str, what: str
    ) -> Mutant:
        own = place(node)
        # what follows keeps its lines, by which functions are found
        fewer = "\n" * (data[own].count(b"\n") - text.count("\n"))
        text = f"{text}{fewer}" if isinstance(node, ast.stmt) else f"{text[:-1]}{fewer}{text[-1]}"
        changed = data[: own.start] + text.encode() + data[own.stop :]
        assert node.end_lineno is not None
        hangs = node if isinstance(node, ast.stmt) else within
        told = range(hangs.lineno, node.end_lineno + 1)
        body = hangs.body if isinstance(hangs, ast.If | ast.While) else []
        after = frozenset(own.lineno for own in body[:1])
        return Mutant(
            module, node.lineno, frozenset(told) - after, after, kind, what, changed.decode()
        )

    for node, within in _nodes(ast.parse(source)):
        mutant = partial(changed_at, node, within)
        if isinstance(node, ast.Raise | ast.Expr | ast.Return | ast.Continue):
            if (kind := _done(node, within)) is not None:
                yield mutant("pass", kind, f"without {text_of(node)}")
        elif isinstance(node, ast.BoolOp):
            for left in range(len(node.values)):
                kept = [f"({text_of(v)})" for n, v in enumerate(node.values) if n != left]
                joined = (" and " if isinstance(node.op, ast.And) else " or ").join(kept)
                what = f"without {text_of(node.values[left])} in {text_of(node)}"
                yield mutant(f"({joined})", "operand", what)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            for test in (test for own in node.generators for test in own.ifs):
                yield changed_at(test, within, "(True)", "filter", f"without if {text_of(test)}")
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS:
            if len(node.ops) > 1:
                continue
            operator = BOUNDS[type(node.ops[0])]
            text = f"{text_of(node.left)} {operator} {text_of(node.comparators[0])}"
            yield mutant(f"({text})", "bound", f"{text} for {text_of(node)}")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            text = f"{text_of(node.left)} {ARITHMETIC[type(node.op)]} {text_of(node.right)}"
            yield mutant(f"({text})", "arithmetic", f"{text} for {text_of(node)}")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield mutant(f"({node.value!r} + 1)", "number", f"{node.value!r} + 1")


def _nodes(tree: ast.Module) -> Iterator[tuple[Any, ast.stmt]]:
    """Each statement and expression, with what it hangs on: the statement that an expression is in,
    the `if` that a statement is directly under."""
    left: list[tuple[ast.AST, ast.stmt | None]] = [(tree, None)]
    for node, within in left:
        if isinstance(node, ast.stmt | ast.expr):
            assert within is not None
            yield node, within
        for child in ast.iter_child_nodes(node):
            own = isinstance(child, ast.stmt) and not (
                isinstance(node, ast.If) and child in node.body and len(node.body) == 1
            )
            left.append((child, child if own else node if isinstance(node, ast.stmt) else within))


def _done(node: ast.stmt, within: ast.stmt) -> str | None:
    """For its effect: a refusal, a check, something told or counted."""
    if isinstance(node, ast.Raise):
        return "raise"
    if isinstance(node, ast.Return | ast.Continue):
        return "leave" if isinstance(within, ast.If) and not within.orelse else None
    assert isinstance(node, ast.Expr)
    if isinstance(node.value, ast.Yield | ast.YieldFrom):
        return "yield"
    return "call" if isinstance(node.value, ast.Call) else None


@dataclass(eq=False)
class Watch:
    """A plugin: which tests come by which lines of these files, and how long they take."""

    modules: Mapping[str, str]
    """By their paths."""
    seconds: dict[str, float] = field(default_factory=dict)
    lines: defaultdict[str, defaultdict[int, list[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _now: set[tuple[str, int]] = field(default_factory=set)

    def _called(self, frame: FrameType, event: str, argument: object) -> object:
        module = self.modules.get(frame.f_code.co_filename)
        if module is None:
            return None
        add, now = self._now.add, (module, frame.f_lineno)
        add(now)

        def stepped(frame: FrameType, event: str, argument: object) -> object:
            add((module, frame.f_lineno))
            return stepped

        return stepped

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now = set()
        begun = time.monotonic()
        threading.settrace(self._called)  # type: ignore[arg-type]
        sys.settrace(self._called)  # type: ignore[arg-type]
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.seconds[item.nodeid] = time.monotonic() - begun
        for module, line in self._now:
            self.lines[module][line].append(item.nodeid)

    @property
    def told(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "lines": self.lines}


@dataclass(eq=False)
class Chosen:
    """A plugin: these tests alone, in this order."""

    order: Mapping[str, int]
    failed: str = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        own = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(own, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}, which is not read"


NOT_TRIED = "NOT TRIED"


Codes: TypeAlias = "dict[tuple[str, int], CodeType]"


def functions(path: str, source: str) -> tuple[object, list[tuple[tuple[str, int], CodeType]]]:
    """What is done where the module is imported, and its functions and methods."""
    found: list[tuple[tuple[str, int], CodeType]] = []
    outside: list[object] = []
    left = [compile(source, path, "exec", dont_inherit=True)]
    for code in left:
        plain = [own for own in code.co_consts if not isinstance(own, CodeType)]
        outside.append((code.co_code, repr(plain), code.co_names))
        for own in code.co_consts:
            if isinstance(own, CodeType) and own.co_flags & inspect.CO_NEWLOCALS:
                found.append(((own.co_qualname, own.co_firstlineno), own))
            elif isinstance(own, CodeType):
                left.append(own)
    return outside, found


def changed(path: str, source: str, mutated: str) -> Codes | None:
    """By their names and first lines; None where it is not of a function alone."""
    (outside, old), (others, new) = functions(path, source), functions(path, mutated)
    if outside != others or [key[0] for key, _ in old] != [key[0] for key, _ in new]:
        return None
    return {key: b for (key, a), (_, b) in zip(old, new, strict=True) if a != b}


def _put(path: str, codes: Codes) -> None:
    gc.unfreeze()  # what is frozen is not among all objects
    put = set()
    for own in gc.get_objects():
        # of some objects isinstance() asks for a class of their own making, which warns
        if type(own) is FunctionType and own.__code__.co_filename == path:
            key = own.__code__.co_qualname, own.__code__.co_firstlineno
            if key in codes:
                own.__code__ = codes[key]
                put.add(key)
    if put != set(codes):
        raise LookupError(f"{set(codes) - put} of {path} are not found")


@dataclass(eq=False)
class Forks:
    """A plugin: once the tests are collected, those that are asked for are run in a fork of the
    process, with a mutant's functions for the module's."""

    folder: Path
    pipe: Connection

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        while (asked := self.pipe.recv()) is not None:
            module, source, mutated, tests, seconds = asked
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                path = str(self.folder / module)
                try:
                    importlib.import_module(module.removesuffix(".py").replace("/", "."))
                    _put(path, changed(path, source, mutated) or {})
                    said = self._failed([items[test] for test in tests]) or " "
                except BaseException as error:
                    said = f"{NOT_TRIED}: {error!r}"
                os.write(theirs, said.encode())
                os._exit(0)
            os.close(theirs)
            ready = select.select([ours], [], [], seconds)[0]
            said = os.read(ours, 1 << 16).decode() or "the process ends" if ready else "time"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(ours)
            self.pipe.send(said.strip())
        return True

    def _failed(self, items: Sequence[pytest.Item]) -> str:
        """The first one; empty where all pass."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            for report in runtestprotocol(item, log=False, nextitem=following):
                if report.failed:
                    return item.nodeid
        return ""


def _forking(folder: Path, files: Sequence[str], pipe: Connection) -> None:
    _prepared(folder)
    pytest.main([*PYTEST, *files], [Forks(folder, pipe)])


def _prepared(folder: Path) -> None:
    os.environ |= {"OPENBLAS_NUM_THREADS": "1"}
    os.chdir(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "sqlfl")]:
        del sys.modules[name]
    said = os.open(folder.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for own in (1, 2):
        os.dup2(said, own)


PYTEST = ["-x", "-q", "-p", "no:cacheprovider"]


def _watched(folder: Path, files: Sequence[str], modules: Sequence[str], to: Connection) -> None:
    _prepared(folder)
    watch = Watch({str(folder / module): module for module in modules})
    sys.settrace(None)
    code = pytest.main([*PYTEST, *files], [watch])
    to.send((int(code), json.dumps(watch.told)))


def _tried(folder: Path, tests: Sequence[str], to: Connection) -> None:
    sys.dont_write_bytecode = True
    _prepared(folder)
    chosen = Chosen({test: number for number, test in enumerate(tests)})
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code = pytest.main([*PYTEST, *files], [chosen])
    to.send((int(code), chosen.failed))


def _beside(seconds: float, work: Any, *given: object) -> Any:
    """What the work sends, from a process of its own; None where it takes longer."""
    context = get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(seconds) else None
    except EOFError:
        return 1, "the process ended"
    finally:
        process.kill()
        process.join()


def watched(folder: Path, tests: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
    code, told = _beside(3600.0, _watched, folder, tests, modules)
    if code:
        said = folder.with_suffix(".txt").read_text()[-3000:]
        sys.exit(f"without a mutant not all tests pass:\n{said}")
    return json.loads(told)  # type: ignore[no-any-return]


def chosen(mutant: Mutant, told: Mapping[str, Any], most: float) -> list[str]:
    lines, seconds = told["lines"].get(mutant.module, {}), told["seconds"]
    near = {test for line in mutant.after for test in lines.get(str(line), ())}
    own = near | {test for line in mutant.lines for test in lines.get(str(line), ())}
    cases: Counter[str] = Counter()
    order: list[tuple[bool, int, float, str]] = []
    for test in sorted(own, key=lambda test: (seconds[test], test)):
        function = test.partition("[")[0]
        order.append((test not in near, cases[function], seconds[test], test))
        cases[function] += 1
    found: list[str] = []
    for _, _, takes, test in sorted(order):
        most -= takes
        if most < 0.0 and found:
            break
        found.append(test)
    return found


class Copy:
    """Of the repository, and a process that has read the tests there."""

    def __init__(self, folder: Path, tests: Sequence[str]) -> None:
        shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT)
        self.folder, self._tests = folder, tests
        self._forks: tuple[BaseProcess, Connection] | None = None

    def killed(self, mutant: Mutant, tests: list[str], seconds: float) -> str | None:
        """By which test, in words; None where it lives."""
        if not tests:
            return None
        source = (ROOT / mutant.module).read_text()
        if changed("", source, mutant.source) is None:
            return self._killed_anew(mutant, tests, seconds)
        if self._forks is None:
            context = get_context("forkserver")
            ours, theirs = context.Pipe()
            process = context.Process(target=_forking, args=(self.folder, self._tests, theirs))
            process.start()
            self._forks = process, ours
        pipe = self._forks[1]
        pipe.send((mutant.module, source, mutant.source, tests, seconds))
        return pipe.recv() or None

    def _killed_anew(self, mutant: Mutant, tests: list[str], seconds: float) -> str | None:
        place = self.folder / mutant.module
        for kept in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
            kept.unlink()
        place.write_text(mutant.source)
        try:
            found = _beside(seconds, _tried, self.folder, tests)
        finally:
            shutil.copy(ROOT / mutant.module, place)
        if found is None:
            return "time"
        code, failed = found
        if code == pytest.ExitCode.OK:
            return None
        if not failed:
            sys.exit(self.folder.with_suffix(".txt").read_text()[-3000:])
        return str(failed)

    def close(self) -> None:
        if self._forks is not None:
            self._forks[1].send(None)
            self._forks[0].join()


def drawn(asked: Mapping[str, Sequence[Mutant]], number: int, seed: int) -> dict[str, list[Mutant]]:
    """Draw lines of all modules, and one mutant of each."""
    chance = random.Random(seed)
    lines = sorted({(mutant.module, mutant.line) for own in asked.values() for mutant in own})
    found: dict[str, list[Mutant]] = {}
    for module, line in sorted(chance.sample(lines, min(number, len(lines)))):
        own = [mutant for mutant in asked[module] if mutant.line == line]
        found.setdefault(module, []).append(chance.choice(own))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="for the tests of a mutant")
    parser.add_argument("--most", type=float, default=60.0, help="seconds of tests of a mutant")
    parser.add_argument("--only", default="", help="mutants that have this in their words")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--every", type=int, default=1, help="of the mutants of a module")
    parser.add_argument("--draw", type=int, help="lines to draw, of all modules")
    parser.add_argument("--seed", type=int, default=0, help="of the lines that are drawn")
    parser.add_argument("--lines", type=Path, help="a file: which tests come by which lines")
    given = parser.parse_args()
    every = {module: list(mutants(module, (ROOT / module).read_text())) for module in given.modules}
    asked = {
        module: [m for m in own if given.only in m.what and m.kind in given.kinds][:: given.every]
        for module, own in every.items()
    }
    if given.draw is not None:
        asked = drawn(asked, given.draw, given.seed)
    with tempfile.TemporaryDirectory() as name:
        copies = [Copy(Path(name) / str(n), given.tests) for n in range(given.processes)]
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)
        if given.lines is not None and given.lines.exists():
            told = json.loads(given.lines.read_text())
        else:
            told = watched(copies[0].folder, given.tests, list(asked))
            if given.lines is not None:
                given.lines.write_text(json.dumps(told))

        def tried(mutant: Mutant) -> tuple[int, str | None]:
            tests = chosen(mutant, told, given.most)
            copy = free.get()
            try:
                return len(tests), copy.killed(mutant, tests, given.seconds)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(given.processes) as pool:
            for module, found in asked.items():
                lived = left = 0
                for mutant, (tests, by) in zip(found, pool.map(tried, found), strict=True):
                    lived += by is None
                    left += by is not None and by.startswith(NOT_TRIED)
                    said = " ".join(mutant.what.split())
                    by = by or f"LIVES, {tests} tests"
                    print(f"{module}:{mutant.line}: {said:.160}: {by}", flush=True)
                killed_ = len(found) - lived - left
                print(
                    f"{module}: {len(found)} of {len(every[module])} mutants, {killed_} killed, "
                    f"{lived} live" + f", {left} not tried" * bool(left),
                    flush=True,
                )
        for copy in copies:
            copy.close()


if __name__ == "__main__":
    main()
