"""Fixtures that close what they open, and hypothesis profiles."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import duckdb
import pytest
from hypothesis import core, settings
from hypothesis.internal.conjecture import providers

from tests import open_databases
from tests.depth import DEPTH, SEED
from tests.entropy import SeededEntropy
from tests.selection import Selection

settings.load_profile(DEPTH)
# Hypothesis draws constants of the modules that are loaded; which ones are depends on the tests
# that ran before.
providers._get_local_constants = providers.Constants

ENTROPY = SeededEntropy(SEED)
ENTROPY.install()

Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)
Open = Callable[..., duckdb.DuckDBPyConnection]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="run the K-th of N parts of the tests")
    parser.addoption(
        "--no-skips", action="store_true", help="a skipped test or module is a failure"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-seed") is None:
        core.global_force_seed = SEED
    config.pluginmanager.register(Selection(config.getoption("--shard")), "selection")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with ENTROPY.scope(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Draw for a fixture that tests share by its own name, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    parameter = getattr(request, "param_index", "")
    with ENTROPY.scope(f"{fixturedef.baseid} {fixturedef.argname} {parameter}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return fail_if_skipped((yield), collector.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return fail_if_skipped((yield), item.config)


def fail_if_skipped(report: Report, config: pytest.Config) -> Report:
    """Turn a skip into a failure where `--no-skips` is given. An expected failure stays one."""
    if config.getoption("--no-skips") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--no-skips: {reason}"
    return report


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: the collector need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: what a shell starts in the background ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(autouse=True, scope="session")
def _instances() -> Iterator[None]:
    yield
    open_databases.close()


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
                con = stack.enter_context(open_databases.in_memory())
            for statement in statements:
                con.execute(statement)
            return con

        yield opened
