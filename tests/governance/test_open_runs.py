"""How long a run that a party has let begin may take, and what becomes of it then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.governance import open_runs
from sqlfl.governance.ledger import Ledger
from sqlfl.governance.open_runs import OpenRuns
from sqlfl.governance.runs import GovernedRun
from sqlfl.options.policies import TrainingPolicy
from tests.governance.test_runs import begun

RULES = TrainingPolicy(min_rows=1, min_cell=1, lease=60.0)
KEYS = ms.SendKeys("r", 0)
SHORT = TrainingPolicy(seconds=0.01)


@dataclass
class Around:
    """What the runs are of: what is ended, stopped and settled."""

    ended: list[str] = field(default_factory=list)
    settled: list[tuple[tuple[int, ...], set[str]]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    runs: OpenRuns = field(init=False)

    def __post_init__(self) -> None:
        self.runs = OpenRuns(self.ended.append, self.stopped.set, cast(Ledger, self))

    def settle(self, numbers: tuple[int, ...], left: Iterable[str]) -> None:
        self.settled.append((numbers, set(left)))

    def begin(self, name: str = "r", rules: TrainingPolicy = RULES) -> GovernedRun:
        run = begun(rules)
        self.runs.begin(name, run)
        return run

    def takes_too_long(
        self, request: ms.Message, then: Callable[[], ms.Message] = lambda: KEYS
    ) -> ms.Message:
        def work() -> ms.Message:
            assert self.stopped.wait(10.0)
            return then()

        self.stopped.clear()
        return self.runs.in_time(request, SHORT, work)


@pytest.fixture
def around() -> Around:
    return Around()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=100.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(open_runs, "time", found)
    return found


def test_a_run_of_which_nothing_is_heard_ends(around: Around, clock: SimpleNamespace) -> None:
    around.begin("r")
    around.begin("s", TrainingPolicy(min_rows=1, lease=3600.0))
    clock.now += 60.0
    around.runs.check(KEYS)
    assert around.runs.in_time(KEYS, RULES, lambda: KEYS) is KEYS  # it is heard of
    clock.now += 60.0
    around.runs.check(KEYS)
    assert (len(around.runs), around.ended) == (2, [])
    clock.now += 0.01
    around.runs.check(ms.ListTables("", -1))  # by whatever comes next
    assert (len(around.runs), around.ended) == (1, ["r"])
    assert around.runs.get("r") is None
    with pytest.raises(PolicyError, match=r"lease = '1 minute', and nothing was heard"):
        around.runs.check(KEYS)
    around.runs.check(ms.SendKeys("s", 0))
    for after in (ms.Finish("r", -1), ms.Seal("r", -1, "", "")):
        around.runs.check(after)
    around.runs.finish("r")
    around.runs.check(KEYS)


def test_what_a_run_has_reserved_is_settled_once(around: Around) -> None:
    run = around.begin("r", TrainingPolicy(min_rows=1, min_cell=1, epsilon=1.0))
    run.left.add("labels")
    run.reserved = (3, 4)
    around.begin("s")
    for name in ("r", "s", "gone", "r"):
        around.runs.finish(name)
    assert around.settled == [((3, 4), {"labels"})]


def test_a_request_that_takes_too_long_ends_its_run(around: Around) -> None:
    said = "seconds = 0.01, and send_keys took longer"
    around.begin()
    with pytest.raises(PolicyError, match=said):
        around.takes_too_long(KEYS)
    assert (around.ended, len(around.runs)) == (["r"], 0)
    with pytest.raises(PolicyError, match=said):
        around.runs.check(KEYS)


def test_so_does_one_that_fails_as_it_is_stopped(around: Around) -> None:
    def fail() -> ms.Message:
        raise RuntimeError("interrupted")

    around.begin()
    for request in (KEYS, ms.Commit("r", -1)):
        with pytest.raises(PolicyError, match="took longer") as error:
            around.takes_too_long(request, fail)
        assert isinstance(error.value.__cause__, RuntimeError)
    # what fails by itself is not called slow, and its run goes on
    around.begin("s")
    with pytest.raises(RuntimeError, match="interrupted"):
        around.runs.in_time(ms.SendKeys("s", 0), RULES, fail)
    assert around.runs.get("s") is not None


def test_what_is_written_for_good_is_not_taken_back(around: Around) -> None:
    around.begin()
    commit = ms.Commit("r", -1)
    assert around.takes_too_long(commit) is KEYS
    assert (around.ended, len(around.runs)) == ([], 1)


def test_what_is_of_no_run_ends_none(around: Around) -> None:
    around.begin()
    tables = ms.ListTables("", -1)
    with pytest.raises(PolicyError, match="took longer"):
        around.takes_too_long(tables)
    assert len(around.runs) == 1
    around.runs.check(tables)
