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
"""Seconds before the first new attempt, factor of growth, and maximum."""


def wait_of(options: Iterable[Given]) -> float | None:
    """Return the seconds that a WITH clause lets a statement wait; None without the option, and for
    a value that planning will refuse.
    """
    return next((LENGTH.read(option.value) for option in options if option.name == "wait"), None)


def approved(
    run: Callable[[], T],
    seconds: float,
    asked: Callable[[], Mapping[Client, tuple[Verdict, ...]]],
    pause: Callable[[float], None],
    show: Callable[[], Progress],
) -> T:
    """Return the result of `run`. If it waits for owners, run it again once all have approved it
    within `seconds`. It starts from the beginning, because grants may have changed.

    `asked` returns the current verdicts and changes nothing; `pause` waits for some seconds; `show`
    makes a progress bar that names the owners. Raises ApprovalError when the time is over; other
    errors of `run`, `asked` and `pause` pass at once.
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
    """Return whether no owner keeps it waiting any more before `end`, or one has refused it."""
    step = FIRST
    while (rest := end - time.monotonic()) > 0:
        pause(min(step, rest))
        step = min(step * PACE, LONGEST)
        told = asked()
        states = {item.state for client_verdicts in told.values() for item in client_verdicts}
        if REFUSED in states or WAITING not in states:
            return True
        bar.stage(f"waits for the owners of {', '.join(_waiting(told))}")
    return False


def _waiting(told: Mapping[Client, tuple[Verdict, ...]]) -> list[str]:
    return [
        f"{client} ({item.rule})"
        for client, client_verdicts in told.items()
        for item in client_verdicts
        if item.state == WAITING
    ]
