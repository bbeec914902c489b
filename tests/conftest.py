"""Fixtures that close what they open, and hypothesis profiles."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, core, settings

from tests import databases
from tests.depth import SEED, THOROUGH

COMMON = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
}
settings.register_profile("default", max_examples=8, database=None, **COMMON)
settings.register_profile("thorough", max_examples=500, database=None, **COMMON)
settings.register_profile(
    "quick", max_examples=30, phases=[Phase.explicit, Phase.generate], database=None, **COMMON
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

Open = Callable[..., duckdb.DuckDBPyConnection]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-seed") is None:
        core.global_force_seed = SEED


def pytest_report_header() -> str:
    return f"random cases: SQLFL_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"repeat the random cases with SQLFL_SEED={SEED}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `thinned(k)`, every k-th case is run, other ones with another seed; in the
    profile thorough all are. Of a module that is marked, every k-th of the tests without a mark of
    their own.

    With k prime to the numbers of its parameters' values, each value is still met. Where tests are
    named, nothing is left out.
    """
    if THOROUGH or any("::" in argument for argument in config.args):
        return
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        places = [(mark, node) for node, mark in item.iter_markers_with_node("thinned")]
        mark, node = places[0] if places else (None, item)
        name = item.nodeid.partition("[")[0] if node is item else node.nodeid
        # by a hash, so that a test which chooses by the seed itself meets each of its choices
        number = seen[name] + zlib.crc32(f"{SEED} {name}".encode())
        seen[name] += 1
        (left if mark is not None and number % mark.args[0] else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: the collector need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _entropy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test draws from the system's generator is drawn again with the same seed."""
    draws = random.Random(f"{SEED} {request.node.nodeid}")
    monkeypatch.setattr(os, "urandom", draws.randbytes)
    monkeypatch.setattr(random, "_urandom", draws.randbytes)


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: what a shell starts in the background ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(autouse=True, scope="session")
def _instances() -> Iterator[None]:
    yield
    databases.close()


@pytest.fixture
def database() -> Iterator[Open]:
    """A function that opens an in-memory database with the given statements run on it.

    An instance of its own where they begin with a setting, or where that is asked for.
    """
    with contextlib.ExitStack() as stack:

        def opened(
            *statements: str, path: str | None = None, own: bool = False
        ) -> duckdb.DuckDBPyConnection:
            if path is not None or own or any(text.startswith("SET") for text in statements):
                con = stack.enter_context(contextlib.closing(duckdb.connect(path or ":memory:")))
            else:
                con = stack.enter_context(databases.in_memory())
            for statement in statements:
                con.execute(statement)
            return con

        yield opened
