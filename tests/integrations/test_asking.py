"""Requests by number, over a carrier that loses calls, repeats them and is late."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import LostError, WireError
from sqlfl.contract.schema import Client
from sqlfl.integrations.nvflare import asking
from sqlfl.integrations.nvflare.asking import Away, FlareClient, NumberedAnswers

BANK = Client("bank")


class Party:
    """Counts how often each request is served."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.told: list[tuple[str, str]] = []

    def __call__(self, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        self.served.append(data.to_pybytes())
        self.told.append((study, speaker))
        return pa.py_buffer(b"reply to " + data.to_pybytes())


class Carrier:
    """Of calls to `answers`; `lose` says of each whether it is lost on the way there or back."""

    def __init__(self, answers: NumberedAnswers, lose: Callable[[], tuple[bool, bool]]) -> None:
        self.answers, self.lose = answers, lose
        self.calls: list[tuple[int, bool, list[int]]] = []

    def __call__(
        self,
        number: int,
        data: pa.Buffer | None,
        received: list[int],
        patience: float,
        /,
        *,
        timeout: float,
    ) -> pa.Buffer | None:
        self.calls.append((number, data is not None, list(received)))
        there, back = self.lose()
        if there:
            raise Away("is away: the call was lost")
        given = None if data is None else data.to_pybytes()
        reply = self.answers.ask(number, given, received, patience, "heart", "pass")
        if back:
            raise Away("is away: the reply was lost")
        return reply


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AGAIN", 0.0)


def ask(answers: NumberedAnswers, number: int, data: bytes | None, received: list[int]) -> object:
    reply = answers.ask(number, data, received, 5.0, "heart", "pass")
    return None if reply is None else reply.to_pybytes()


@given(st.integers(0, 2**32))
def test_each_request_is_served_once_and_answered_whatever_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    party = Party()
    with NumberedAnswers(party) as answers:
        carrier = Carrier(answers, lambda: (chance.random() < 0.3, chance.random() < 0.3))
        end = FlareClient(BANK, carrier, lambda: None)
        texts = [f"request {n}".encode() for n in range(8)]
        for text in texts:
            assert end.handle(pa.py_buffer(text)).to_pybytes() == b"reply to " + text
        assert party.served == texts
        assert len(answers._begun) <= 2  # what has been received is forgotten
        assert answers._low >= 6
    assert party.told == [("heart", "pass")] * 8


def test_several_threads_ask_at_once() -> None:
    party = Party()
    with NumberedAnswers(party) as answers:
        end = FlareClient(BANK, Carrier(answers, lambda: (False, False)), lambda: None)
        texts = [f"{n}".encode() for n in range(200)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: end.handle(pa.py_buffer(text)), texts))
    assert [reply.to_pybytes() for reply in found] == [b"reply to " + text for text in texts]
    assert sorted(party.served) == sorted(texts)


def test_a_call_says_that_the_answer_is_not_there_yet_and_bytes_go_down_once() -> None:
    ready = threading.Event()

    def slow(data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        assert ready.wait(20)
        return data

    def kept() -> tuple[bool, bool]:
        if len(carrier.calls) > 3:
            ready.set()
        return False, False

    with NumberedAnswers(slow) as answers:
        carrier = Carrier(answers, kept)
        end = FlareClient(BANK, carrier, lambda: None, lease=0.1)
        assert end.handle(pa.py_buffer(b"x")).to_pybytes() == b"x"
    sent = [call[1] for call in carrier.calls]
    assert sent[0]
    assert len(sent) > 3
    assert not any(sent[1:])


def test_a_late_repetition_of_what_is_over_is_refused() -> None:
    party = Party()
    with NumberedAnswers(party) as answers:
        assert ask(answers, 1, b"a", []) == b"reply to a"
        assert ask(answers, 2, b"b", [1]) == b"reply to b"
        for number in (1, 2):
            with pytest.raises(WireError, match=f"request {number} is over"):
                ask(answers, number, b"again", [2])
        assert ask(answers, 4, b"d", []) == b"reply to d"  # 3 may still come
        with pytest.raises(WireError, match="request 4 is over"):
            ask(answers, 4, b"again", [4])
        assert ask(answers, 3, b"c", []) == b"reply to c"
    assert party.served == [b"a", b"b", b"d", b"c"]


def test_a_site_that_was_restarted_says_so() -> None:
    with (
        NumberedAnswers(Party()) as answers,
        pytest.raises(WireError, match="the site was restarted"),
    ):
        ask(answers, 3, None, [])


@pytest.mark.parametrize(
    "given",
    [
        (0, b"", [], 1.0, "s", "p"),
        (True, b"", [], 1.0, "s", "p"),
        (2**63, b"", [], 1.0, "s", "p"),
        (1, "text", [], 1.0, "s", "p"),
        (1, b"", (1,), 1.0, "s", "p"),
        (1, b"", ["1"], 1.0, "s", "p"),
        (1, b"", [-1], 1.0, "s", "p"),
        (1, b"", [1] * 5000, 1.0, "s", "p"),
        (1, b"", [], -1.0, "s", "p"),
        (1, b"", [], float("nan"), "s", "p"),
        (1, b"", [], "1", "s", "p"),
        (1, b"", [], 1.0, None, "p"),
        (1, b"", [], 1.0, "s", b"p"),
    ],
)
def test_calls_with_other_arguments_are_refused(given: tuple[object, ...]) -> None:
    party = Party()
    with (
        NumberedAnswers(party) as answers,
        pytest.raises(WireError, match="arguments that are none"),
    ):
        answers.ask(*given)  # type: ignore[arg-type]
    assert not party.served
    assert not answers._begun


def test_what_is_away_for_the_lease_is_lost() -> None:
    with NumberedAnswers(Party()) as answers:
        end = FlareClient(BANK, Carrier(answers, lambda: (True, True)), lambda: None, lease=0.2)
        began = time.monotonic()
        with pytest.raises(LostError, match="party bank/0: is away: the call was lost"):
            end.handle(pa.py_buffer(b"x"))
    assert 0.2 <= time.monotonic() - began < 5.0


def test_an_interrupt_ends_the_wait_for_what_is_away_and_is_told_now_and_then() -> None:
    told: list[float] = []
    calls = threading.Event()

    def lose() -> tuple[bool, bool]:
        calls.set()
        time.sleep(0.01)
        return True, True

    with NumberedAnswers(Party()) as answers:
        end = FlareClient(
            BANK, Carrier(answers, lose), lambda: told.append(time.monotonic()), lease=60.0
        )
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(end.handle, pa.py_buffer(b"x"))
            assert calls.wait(20)
            end.interrupt()
            with pytest.raises(LostError):
                work.result(20)
    assert len(told) == 1


def test_interrupts_are_told_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AGAIN", 60.0)
    told: list[int] = []
    with NumberedAnswers(Party()) as answers:
        end = FlareClient(BANK, Carrier(answers, lambda: (False, False)), lambda: told.append(1))
        for _ in range(50):
            end.interrupt()
    assert told == [1]
