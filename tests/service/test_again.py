"""An analyst whose connection is lost while a statement runs: it is made again, and the statement
is answered, once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sqlfl.base.errors import Error, PlanError, WireError
from sqlfl.base.interrupts import noted
from sqlfl.base.result import Result
from sqlfl.federation import user_warnings
from sqlfl.service import answers
from sqlfl.service import calls as calls_module
from sqlfl.service.calls import ANSWER, CALL, FAILED, LEAVE, REMARK, TAKEN, Calls
from sqlfl.service.federation import RemoteFederation
from sqlfl.service.frames import INTERRUPT, MAX_HEADER_BYTES, Frame
from sqlfl.service.status import ServiceStatus
from tests.service.processes import until
from tests.service.proxy import Proxy
from tests.service.study import Running, serving, settings


class Answering:
    """In place of what answers calls."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.times = 0
        self.noted = threading.Event()

    def __call__(self, own: Calls, number: int, frame: Frame) -> pa.Buffer:
        self.times += 1
        with noted() as event:
            self.begun.release()
            while not self.go.wait(0.01):
                if event.is_set():
                    self.noted.set()
        return answers.result_to_bytes(Result(pa.table({"name": [f"answered {self.times}"]})))


@contextmanager
def apart(folder: Path, lease: float = 60.0) -> Iterator[tuple[Running, Proxy, RemoteFederation]]:
    """An analyst behind a link."""
    with (
        serving(folder, settings(folder, {"bank": 1}, lease=lease, heartbeat=0.3)) as study,
        Proxy(study.service.port) as link,
    ):
        there = replace(study, location=f"grpc+tls://127.0.0.1:{link.port}")
        with there.analyst() as fed:
            yield study, link, fed


class Asked:
    """A call in a thread."""

    def __init__(self, fed: RemoteFederation) -> None:
        self.said = ""
        self._thread = threading.Thread(target=self._ask, args=(fed,))
        self._thread.start()

    def _ask(self, fed: RemoteFederation) -> None:
        try:
            (self.said,) = fed.models
        except Error as error:
            self.said = str(error)

    def ended(self) -> str:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.said


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    own = Answering()
    monkeypatch.setattr(Calls, "_answer", lambda *given: own(*given))
    yield own
    own.go.set()


@pytest.mark.parametrize("before", [True, False])
def test_it_is_answered_by_the_next_connection(
    tmp_path: Path, answering: Answering, before: bool
) -> None:
    """Whether the answer is there while nobody is connected, or comes after that."""
    with apart(tmp_path) as (study, link, fed):
        asked = Asked(fed)
        assert answering.begun.acquire(timeout=10)
        link.cut()
        (own,) = study.service._calls.values()
        until(lambda: own._sender is None)
        if before:
            answering.go.set()
            until(lambda: own.running == 0)
        link.mend()
        if not before:
            until(lambda: own._sender is not None)
            answering.go.set()
        assert asked.ended() == "answered 1"
        assert answering.times == 1
        until(lambda: not own._calls)  # it has been taken


def test_nobody_comes_back(tmp_path: Path, answering: Answering) -> None:
    with apart(tmp_path, lease=1.5) as (study, link, fed):
        asked = Asked(fed)
        assert answering.begun.acquire(timeout=10)
        link.cut()
        said = asked.ended()
        assert "was lost, and not made again in 1.5 seconds; a statement that was" in said
        assert "SHOW MODELS says what has been trained, and what RESUME MODEL goes on with" in said
        assert len(study.service._calls) == 1  # it runs
        answering.go.set()
        until(lambda: not study.service._calls)


def test_a_coordinator_that_knows_nothing_of_it(tmp_path: Path, answering: Answering) -> None:
    with apart(tmp_path) as (study, link, fed):
        asked = Asked(fed)
        assert answering.begun.acquire(timeout=10)
        study.service._server.session = "another"
        link.drop()
        assert "the coordinator has been started anew: what ran there has ended" in asked.ended()
        assert answering.times == 1
        answering.go.set()


def test_it_was_closed(tmp_path: Path, answering: Answering) -> None:
    with apart(tmp_path) as (study, _, fed):
        asked = Asked(fed)
        assert answering.begun.acquire(timeout=10)
        fed.close()
        assert "as it was closed; a statement that was running there goes on" in asked.ended()
        answering.go.set()
        until(lambda: not study.service._calls)


def test_an_interrupt_is_heard_once(tmp_path: Path, answering: Answering) -> None:
    """That which is told again after a connection was lost would be the second one, which ends a
    statement at once."""
    with apart(tmp_path) as (study, link, fed):
        asked = Asked(fed)
        assert answering.begun.acquire(timeout=10)
        (call,) = fed._line._calls.values()
        call.interrupts = 1
        fed._line._send(Frame(INTERRUPT, {"number": 1, "times": 1}))
        assert answering.noted.wait(10)
        (own,) = study.service._calls.values()
        first = own._sender
        link.drop()
        until(lambda: own._sender not in (None, first))
        assert answering.times == 1
        answering.go.set()
        # what `heeding` makes of the one that was noted, and of no other
        assert asked.ended() == "answered 1"


def test_an_error_may_be_longer_than_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the statement, whose sender would else wait for ever."""
    text = "SELECT " + "x" * MAX_HEADER_BYTES

    def answer(self: Calls, number: int, frame: Frame) -> pa.Buffer:
        raise PlanError("there is no x", sql=text, span=(7, 8))

    monkeypatch.setattr(Calls, "_answer", answer)
    with apart(tmp_path) as (_, _, fed):
        said: list[PlanError] = []

        def ask() -> None:
            try:
                _ = fed.models
            except PlanError as error:
                said.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(20)
        assert [(error.message, error.sql, error.span) for error in said] == [
            ("there is no x", text, (7, 8))
        ]


# -- the coordinator's end -------------------------------------------------------------------------


class Sent:
    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    offer = send

    def told(self, kind: str) -> list[object]:
        return [frame.told.get("text") or frame.told["number"] for frame in self.frames if
                frame.kind == kind]  # fmt: skip


class Open:
    analyst = "alice"

    def begin(self, most: int) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> tuple[Calls, Sent]:
    def answer(self: Calls, number: int, frame: Frame) -> pa.Buffer:
        with user_warnings.heard(self._remark(number)):
            user_warnings.Remarks().add(f"so {number}")
        return frame.body

    monkeypatch.setattr(Calls, "_answer", answer)
    sent = Sent()
    return Calls(Open(), sent, 4, ServiceStatus(())), sent  # type: ignore[arg-type]


def call(number: int, size: int = 1) -> Frame:
    return Frame(CALL, {"number": number, "what": "sql"}, pa.py_buffer(b"x" * size))


def answered(calls: Calls) -> None:
    until(lambda: calls.running == 0)


def test_a_call_is_made_once_and_its_remarks_are_told_again(kept: tuple[Calls, Sent]) -> None:
    calls, sent = kept
    calls.take(call(1))
    answered(calls)
    until(lambda: sent.told(ANSWER) == [1])
    again = Sent()
    calls.connect(again)  # type: ignore[arg-type]
    calls.take(call(1))
    assert again.told(REMARK) == ["so 1"]
    assert again.told(ANSWER) == [1]
    calls.take(Frame(TAKEN, {"number": 1}))
    assert not calls._calls
    with pytest.raises(WireError, match="call 1 was answered, and that is forgotten"):
        calls.take(call(1))


def test_answers_that_nobody_takes_are_few(
    kept: tuple[Calls, Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = kept
    for number in range(1, 2 * calls_module.MAX_KEPT_ANSWERS):
        calls.take(call(number))
        answered(calls)
    assert len(calls._calls) == calls_module.MAX_KEPT_ANSWERS
    monkeypatch.setattr(calls_module, "MAX_KEPT_BYTES", 100)
    calls.take(call(100, 1000))
    answered(calls)
    assert list(calls._calls) == [100]


def test_those_that_find_no_place_are_kept_no_longer(kept: tuple[Calls, Sent]) -> None:
    calls, sent = kept
    calls._desk.begin = lambda most: False  # type: ignore[method-assign]
    for number in range(1, 3 * calls_module.MAX_KEPT_ANSWERS):
        calls.take(call(number))
    assert len(calls._calls) == calls_module.MAX_KEPT_ANSWERS
    assert len(sent.told(FAILED)) == 3 * calls_module.MAX_KEPT_ANSWERS - 1


def test_calls_that_never_came_are_not_waited_for(
    kept: tuple[Calls, Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = kept
    monkeypatch.setattr(calls_module, "MAX_BEGUN", 3)
    for number in (2, 4, 6, 8, 10):
        calls.take(call(number))
        answered(calls)
    assert len(calls._begun) <= 4
    for number in (2, 3):
        calls._calls.pop(number, None)
        with pytest.raises(WireError, match="forgotten"):
            calls.take(call(number))


def test_who_has_gone_is_forgotten(kept: tuple[Calls, Sent]) -> None:
    calls, sent = kept
    assert not calls.over(0.0)
    calls.take(call(1))
    answered(calls)
    calls.disconnect(Sent())  # type: ignore[arg-type]  # of another stream
    assert not calls.over(0.0)
    calls.disconnect(sent)  # type: ignore[arg-type]
    assert not calls.over(60.0)
    assert calls.over(-1.0)
    calls.take(Frame(LEAVE, {"number": 0}))
    assert calls.over(60.0)


def test_remarks_come_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), threading.Event()

    def answer(self: Calls, number: int, frame: Frame) -> pa.Buffer:
        with user_warnings.heard(self._remark(number)):
            user_warnings.Remarks().add("mind the gap")
        begun.set()
        assert go.wait(10)
        raise Error("over")

    monkeypatch.setattr(Calls, "_answer", answer)
    with apart(tmp_path) as (study, link, fed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said: list[str] = []

        def ask() -> None:
            try:
                fed.sql("SHOW MODELS")
            except Error as error:
                said.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(10)
        (own,) = study.service._calls.values()
        first = own._sender
        link.drop()
        until(lambda: own._sender not in (None, first))
        go.set()
        thread.join(10)
        assert said == ["over"]
    assert [str(w.message) for w in caught if "gap" in str(w.message)] == ["mind the gap"]
