"""A statement that waits for owners of tables to approve it, as long as its option `wait` says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from sqlfl.base.errors import ApprovalError
from sqlfl.base.progress import Progress
from sqlfl.contract.request import REFUSED, WAITING, Verdict
from sqlfl.contract.schema import Client
from sqlfl.options.entries import Given
from sqlfl.options.types import LENGTH, written_length

T = TypeVar("T")
FIRST, PACE, LONGEST = 1.0, 1.5, 30.0
"""Seconds until it is asked again, by what they grow each time, and up to which."""


def wait_of(options: Iterable[Given]) -> float | None:
    """The seconds that a WITH clause has a statement wait; None where it says nothing, or nothing
    that can be read, of which who plans the statement tells."""
    return next((LENGTH.read(option.value) for option in options if option.name == "wait"), None)


def approved(
    run: Callable[[], T],
    seconds: float,
    asked: Callable[[], Mapping[Client, tuple[Verdict, ...]]],
    pause: Callable[[float], None],
    show: Callable[[], Progress],
) -> T:
    """What `run` returns. Where it waits for owners it is run again once all of them have approved
    it, within so many seconds: from the start, as what is granted may have changed.

    `asked` tells what owners say by now, and changes nothing; `pause` lets so many seconds pass;
    `show` makes a bar that says for whom it waits. Raises ApprovalError when the time is over, and
    at once what else `run`, `asked` and `pause` raise.
    """
    end: float | None = None
    while True:
        try:
            return run()
        except ApprovalError as error:
            end = time.monotonic() + seconds if end is None else end
            left = error
        with closing(show()) as bar:
            bar.stage(left.message)
            if not _let_go(end, asked, pause, bar):
                left.say_where(f"it has waited {written_length(seconds)} for that")
                raise left


def _let_go(
    end: float, asked: Callable[[], Mapping[Client, Any]], pause: Callable[[float], None],
    bar: Progress,
) -> bool:  # fmt: skip
    """Whether no owner has it wait any more, before the end; or one has refused it."""
    step = FIRST
    while (rest := end - time.monotonic()) > 0:
        pause(min(step, rest))
        step = min(step * PACE, LONGEST)
        told = asked()
        states = {item.state for found in told.values() for item in found}
        if REFUSED in states or WAITING not in states:
            return True
        bar.stage(f"waits for the owners of {', '.join(_waiting(told))}")
    return False


def _waiting(told: Mapping[Client, tuple[Verdict, ...]]) -> list[str]:
    return [
        f"{client} ({item.rule})"
        for client, found in told.items()
        for item in found
        if item.state == WAITING
    ]
