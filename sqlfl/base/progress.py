"""Progress bar for statements of more than two seconds; silent if nobody looks."""

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
"""Seconds before a statement's bar appears."""
SPAN = 4
"""Number of epochs from which the pace of the objective is estimated."""
ECHO = 3
"""Columns of a terminal that are left for its ^C: a bar that wraps is not wiped."""
STAGES = "{desc} [{elapsed}{postfix}]"
"""Bar of a statement without epochs."""


@dataclass(frozen=True)
class ProgressStep:
    """Progress of a statement."""

    name: str
    epochs: int | None
    """Maximum number of epochs; None for a statement without epochs."""
    epoch: int
    note: str
    """The stage, or the objective."""
    objective: float | None
    """Objective after this epoch."""
    sent: int
    """Bytes that have crossed borders so far."""
    tolerance: float
    over: bool = False


Tell: TypeAlias = Callable[[ProgressStep], None]


class Progress:
    """Display of the stage and the epochs of one statement, which leaves nothing behind.

    `enabled` True shows it at once, False never. None shows it after `DELAY`, and only on a
    terminal on standard error or in a notebook, which may show a widget. A function is called
    instead, by the thread that runs the statement.

    The remaining time is estimated from the likely number of epochs. This is at most `epochs`. With
    a `tolerance`, it is the epoch from which the objective should change by less, relatively, at
    its present pace.

    `sent` returns the bytes that have crossed borders so far. `first` epochs were made before;
    `epoch` counts from there.
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
            # The slow part may be a stage of one exchange, in which no call comes to draw the bar.
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stage(self, text: str) -> None:
        self._set(self._epoch, text)
        self._told()

    def remark(self, text: str) -> None:
        """Show this text before all others from now on, even before DELAY is over."""
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
        """Return the likely number of epochs in total."""
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
                self._bar.total = self._bar.n  # the widget turns red if it has not come to 100 %
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
            if kind is tqdm:  # tqdm must draw nothing before it has the width
                shape["delay"] = sys.float_info.min
            bar = kind(total=self.likely, **shape)
            bar.dynamic_ncols = _size
            bar.start_t = self._started
            bar.n = self._epoch
            bar.set_postfix_str(self._words)
            self._bar = bar


def _rest(objectives: Sequence[float], tolerance: float) -> int | None:
    """Return the epochs until the objective changes by less than `tolerance`, relatively, if its
    changes keep shrinking at their pace. Return None if they do not shrink.

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
    """Return the columns and lines of the bar; None if unknown."""
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
    """Return True if this process is the kernel of a notebook, or of another front end of
    Jupyter.
    """
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _kind() -> Any:
    """Return the widget of notebooks if it can be shown. tqdm's own choice would warn if it
    cannot.
    """
    if in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    return tqdm
