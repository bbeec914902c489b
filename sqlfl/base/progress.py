"""A progress bar for what takes more than two seconds; silent where nobody looks."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeAlias

from tqdm import tqdm

from sqlfl.base import sanitize

DELAY = 2.0
"""Seconds that a statement may take before its bar appears."""
SPAN = 4
"""Epochs over which it is seen how fast the objective settles."""
ECHO = 3
"""Columns of a terminal that are left for the ^C that it shows: a bar that wraps is not wiped."""
STAGES = "{desc} [{elapsed}{postfix}]"
"""A bar of a statement without epochs."""


@dataclass(frozen=True)
class ProgressStep:
    """How far a statement is."""

    name: str
    epochs: int | None
    """At most; None for a statement without epochs."""
    epoch: int
    note: str
    """The stage, or the objective."""
    objective: float | None
    """After this epoch."""
    sent: int
    """Bytes that have crossed borders so far."""
    tolerance: float
    over: bool = False


Tell: TypeAlias = Callable[[ProgressStep], None]


class Progress:
    """Shows the stage and the epochs of one statement, and leaves nothing behind.

    `enabled` True shows it at once, False never. None shows it after `DELAY`, and only where
    somebody looks: a terminal on standard error, or a notebook, which may show a widget. A function
    is told instead, by the thread that runs the statement.

    The rest is reckoned against the epochs that are likely: `epochs` at most, and with a
    `tolerance` those after which the objective changes by less, relatively, if it goes on settling
    as it does. `sent` tells the bytes that have crossed borders so far. Of these epochs the `first`
    were made before: what `epoch` is told is counted from there.
    """

    def __init__(
        self,
        name: str,
        epochs: int | None,
        enabled: bool | Tell | None = None,
        tolerance: float = 0.0,
        sent: Callable[[], int] | None = None,
        first: int = 0,
    ) -> None:
        self._name = sanitize.line(name)
        self._epochs = epochs
        self._tolerance = tolerance
        self._sent = sent
        self._objectives: list[float] = []
        self._started = time.time()
        self._first = self._epoch = first
        self._note = self._remark = ""
        self._bar: Any = None
        self._closed = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._tell = enabled if callable(enabled) else None
        if self._tell is not None:
            self._told()
        elif enabled:
            self._show()
        elif enabled is None and (in_notebook() or _is_terminal()):
            # What is slow may be a stage of one exchange, in which no call comes to draw the bar.
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stage(self, text: str) -> None:
        self._set(self._epoch, text)
        self._told()

    def remark(self, text: str) -> None:
        """It stands before what else is said, from now on; whether or not DELAY is over."""
        self._remark = text
        if self._timer is not None:
            self._timer.cancel()
            self._show()
        self._set(self._epoch, self._note)

    def epoch(self, number: int, objective: float) -> None:
        self._objectives = [*self._objectives[-SPAN:], objective]
        self._set(self._first + number, f"objective {objective:.6g}")
        self._told(objective)

    @property
    def likely(self) -> int | None:
        """The epochs that there will be, in all."""
        if self._epochs is None or self._tolerance <= 0:
            return self._epochs
        rest = _rest(self._objectives, self._tolerance)
        return self._epochs if rest is None else min(self._epochs, self._epoch + rest)

    @property
    def _words(self) -> str:
        sent = 0 if self._sent is None else self._sent()
        size = f"{tqdm.format_sizeof(sent, 'B')} sent" if sent else ""
        return ", ".join(text for text in (self._remark, self._note, size) if text)

    def _told(self, objective: float | None = None, *, over: bool = False) -> None:
        if self._tell is not None:
            sent = 0 if self._sent is None else self._sent()
            step = self._name, self._epochs, self._epoch, self._note, objective, sent
            self._tell(ProgressStep(*step, self._tolerance, over))

    def close(self) -> None:
        self._told(over=True)
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.total = self._bar.n  # the widget turns red where it has not come to 100 %
                self._bar.close()

    def _set(self, epoch: int, note: str) -> None:
        with self._lock:
            self._epoch, self._note = epoch, note
            if self._bar is not None:
                _set_total(self._bar, self.likely)
                self._bar.set_postfix_str(self._words, refresh=False)
                if epoch == self._bar.n:
                    self._bar.refresh()
                else:
                    self._bar.update(epoch - self._bar.n)

    def _show(self) -> None:
        with self._lock:
            if self._closed or self._bar is not None:
                return
            shape = {"desc": self._name, "unit": "epoch", "leave": False, "initial": self._first}
            if self._epochs is None:
                shape["bar_format"] = STAGES
            kind = _kind()
            if kind is tqdm:  # which is to draw nothing before it has the width
                shape["delay"] = sys.float_info.min
            bar = kind(total=self.likely, **shape)
            bar.dynamic_ncols = _size
            bar.start_t = self._started
            bar.n = self._epoch
            bar.set_postfix_str(self._words)
            self._bar = bar


def _rest(objectives: Sequence[float], tolerance: float) -> int | None:
    """Epochs until the objective changes by less than `tolerance`, relatively, where its changes
    go on shrinking as they did; None where they do not.

    >>> [_rest([1 + 0.1**k for k in range(n)], 1e-6) for n in (2, 3, 4, 6)]
    [None, 5, 4, 2]
    """
    scale = max(abs(objectives[-1]), sys.float_info.min) if objectives else 1.0
    changes = [abs(b - a) / scale for a, b in pairwise(objectives)]
    if len(changes) < 2 or min(changes) <= 0 or changes[-1] >= changes[0]:
        return None
    pace = math.log(changes[0] / changes[-1]) / (len(changes) - 1)
    return max(1, math.ceil(math.log(changes[-1] / tolerance) / pace))


def _size(file: Any) -> tuple[int | None, int | None]:
    """Columns and lines that the bar has; None where nobody knows."""
    try:
        columns, lines = os.get_terminal_size(file.fileno())
    except (OSError, ValueError, AttributeError):
        return None, None
    return (columns - ECHO, lines) if columns > ECHO else (None, None)


def _set_total(bar: Any, total: int | None) -> None:
    if bar.total != total:
        bar.total = total
        if hasattr(bar, "container"):  # the widget has one of its own
            bar.container.children[1].max = total


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, or of another front end of Jupyter."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _kind() -> Any:
    """The widget of notebooks where it can be shown: tqdm's own choice warns where it cannot."""
    if in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    return tqdm
