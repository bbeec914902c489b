"""What a party has answered, until the coordinator says that it has it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from sqlfl.service.frames import REPLY, Frame

MOST_REPLIES, MOST_REPLY_BYTES = 512, 1 << 30


class Replies:
    """By the numbers of their requests, which rise: each is served once, and answered alike however
    often it comes. What was forgotten is not served again. Of one session of a coordinator; safe to
    use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        self._done: OrderedDict[int, Frame] = OrderedDict()
        self._highest = -1
        self._size = 0

    def begin(self, number: int) -> tuple[bool, Frame | None]:
        """Whether it has come before, and its reply, where there is one by now."""
        with self._lock:
            if number in self._done:
                return True, self._done[number]
            if number in self._begun:
                return True, None
            if number <= self._highest:
                why = "was asked again what it has answered, and has forgotten since"
                return True, failed(number, why)
            self._highest = number
            self._begun.add(number)
            return False, None

    def end(self, number: int, reply: Frame) -> None:
        with self._lock:
            self._begun.discard(number)
            self._done[number] = reply
            self._size += len(reply.body)
            while len(self._done) > MOST_REPLIES or self._size > MOST_REPLY_BYTES:
                if len(self._done) == 1:
                    break
                self._forget(next(iter(self._done)))

    def forget(self, numbers: list[object]) -> None:
        """The coordinator has these."""
        with self._lock:
            for number in numbers:
                if type(number) is int and number in self._done:
                    self._forget(number)

    def _forget(self, number: int) -> None:
        self._size -= len(self._done.pop(number).body)


def failed(number: int, why: str) -> Frame:
    """There is no reply, and will be none."""
    return Frame(REPLY, {"number": number, "failed": why})
