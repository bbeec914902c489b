"""A progress bar for what takes more than two seconds; silent where nobody looks."""

from __future__ import annotations

import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from tqdm import tqdm

from sqlfl import printing

DELAY = 2.0
"""Seconds that a statement may take before its bar appears."""


class Progress:
    """Shows the stage and the epochs of one statement, and leaves nothing behind.

    `enabled` True shows it at once, False never. None shows it after `DELAY`, and only where
    somebody looks: a terminal on standard error, or a notebook, which may show a widget.
    """

    def __init__(self, name: str, epochs: int | None, enabled: bool | None = None) -> None:
        self._name = printing.line(name)
        self._epochs = epochs
        self._started = time.time()
        self._epoch = 0
        self._note = ""
        self._bar: Any = None
        self._closed = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        if enabled:
            self._show()
        elif enabled is None and (in_notebook() or _is_terminal()):
            # What is slow may be a stage of one exchange, in which no call comes to draw the bar.
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stage(self, text: str) -> None:
        self._set(self._epoch, text)

    def epoch(self, number: int, objective: float) -> None:
        self._set(number, f"objective {objective:.6g}")

    def close(self) -> None:
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
                self._bar.set_postfix_str(note, refresh=False)
                if epoch == self._bar.n:
                    self._bar.refresh()
                else:
                    self._bar.update(epoch - self._bar.n)

    def _show(self) -> None:
        with self._lock:
            if self._closed:
                return
            bar = _kind()(total=self._epochs, desc=self._name, unit="epoch", leave=False)
            bar.start_t = self._started
            bar.n = self._epoch
            bar.set_postfix_str(self._note)
            self._bar = bar


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
