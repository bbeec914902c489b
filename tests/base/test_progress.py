"""The progress bar: after a while, where somebody looks, and nothing left behind."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import sys
import termios
import threading
import time
import types
import warnings
from collections.abc import Callable

import pytest
from tqdm import notebook

from sqlfl.base import progress
from sqlfl.base.progress import Progress


class Screen(io.StringIO):
    """Standard error that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Screen]:
    def opened(terminal: bool) -> Screen:
        found = Screen(terminal)
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return opened


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=object())
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)


def settle(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for another thread."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_nothing_is_written_where_nobody_looks(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    shown = screen(False)
    bar = Progress("m", 10)
    bar.stage("joining keys")
    time.sleep(0.05)
    bar.epoch(1, 0.5)
    bar.close()
    assert shown.getvalue() == ""


def test_a_short_statement_writes_nothing(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress.DELAY == 2.0
    monkeypatch.setattr(progress, "DELAY", 600.0)
    shown = screen(True)
    bar = Progress("m", 10)
    bar.stage("joining keys")
    bar.epoch(1, 0.5)
    bar.close()
    assert shown.getvalue() == ""


def test_a_long_stage_shows_itself(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no epoch comes: the join may be what is slow."""
    monkeypatch.setattr(progress, "DELAY", 0.05)
    shown = screen(True)
    bar = Progress("m", 10)
    bar.stage("joining keys")
    settle(lambda: "joining keys" in shown.getvalue())
    bar.epoch(3, 0.5)
    bar.stage("saving")
    bar.close()
    written = shown.getvalue()
    assert "3/10" in written
    assert written.split("\r")[-1].strip() == ""


def test_it_does_not_appear_after_the_end(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 600.0)
    shown = screen(True)
    before = set(threading.enumerate())
    bar = Progress("m", 10)
    bar.close()
    settle(lambda: set(threading.enumerate()) <= before)
    bar._show()  # as where both happen at once
    assert shown.getvalue() == ""


@pytest.mark.parametrize(("enabled", "silent"), [(True, False), (False, True)])
def test_what_is_asked_for_goes_before(
    screen: Callable[[bool], Screen], enabled: bool, silent: bool
) -> None:
    shown = screen(not enabled)
    bar = Progress("m", 10, enabled)
    bar.epoch(4, 0.25)
    bar.stage("saving")
    bar.close()
    assert (shown.getvalue() == "") == silent


def test_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Progress("m", 10).close()


@pytest.mark.usefixtures("kernel")
def test_a_notebook_without_widgets_has_text_and_no_warning(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.02)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    shown = screen(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bar = Progress("m", 10)
        bar.stage("joining keys")
        settle(lambda: "joining keys" in shown.getvalue())
        bar.close()


def test_a_notebook_with_widgets_shows_one_and_takes_it_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(notebook, "display", shown.append)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    bar = Progress("m", 100, True)
    bar.epoch(15, 0.5)
    bar.stage("saving")
    (container,) = shown
    _, widget, text = container.children
    assert widget.value == 15
    assert "saving" in text.value
    bar.close()
    assert widget.bar_style != "danger"
    assert container.layout.visibility == "hidden"


def test_a_plain_interpreter_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not progress.in_notebook()
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not progress.in_notebook()
    terminal = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not progress.in_notebook()


# -- what is left ----------------------------------------------------------------------------------


def test_the_rest_is_reckoned_against_the_epochs_that_are_likely() -> None:
    """lbfgs may make a hundred iterations, and makes ten."""
    bar = Progress("m", 100, False, tolerance=1e-9)
    assert bar.likely == 100
    for epoch in range(1, 7):
        bar.epoch(epoch, 1 + 0.1**epoch)
    assert 9 <= bar.likely <= 11
    bar.epoch(7, 1 + 0.1**7 / 2)
    assert 9 <= bar.likely <= 11
    bar.epoch(8, 2.0)  # it does not settle after all
    assert bar.likely == 100


def test_where_all_epochs_are_made_all_are_likely() -> None:
    bar = Progress("m", 40, False)
    for epoch in range(1, 20):
        bar.epoch(epoch, 1 + 0.1**epoch)
    assert bar.likely == 40
    bar = Progress("m", 12, False, tolerance=1e-12)
    for epoch in range(1, 6):
        bar.epoch(epoch, 1 + 0.5**epoch)
    assert bar.likely == 12


def test_the_bar_shows_the_likely_epochs(
    screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = screen(True)
    bar = Progress("m", 100, True, tolerance=1e-9)
    for epoch in range(1, 7):
        bar.epoch(epoch, 1 + 0.1**epoch)
    bar.stage("saving")
    assert re.search(r"6/(9|10|11) ", shown.getvalue())
    bar.close()
    container: list[object] = []
    monkeypatch.setattr(notebook, "display", container.append)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    bar = Progress("m", 100, True, tolerance=1e-9)
    for epoch in range(1, 7):
        bar.epoch(epoch, 1 + 0.1**epoch)
    assert 9 <= container[0].children[1].max <= 11  # type: ignore[attr-defined]
    bar.close()


def test_a_statement_without_epochs_shows_its_stages(screen: Callable[[bool], Screen]) -> None:
    shown = screen(True)
    bar = Progress("m", None, True)
    bar.stage("joining keys: 2,000 rows")
    bar.close()
    assert "m [00:00, joining keys: 2,000 rows]" in shown.getvalue()
    assert "epoch" not in shown.getvalue()


def test_what_has_crossed_borders_is_counted(screen: Callable[[bool], Screen]) -> None:
    shown, sent = screen(True), 0
    bar = Progress("m", 10, True, sent=lambda: sent)
    bar.stage("saving")
    assert "saving" in shown.getvalue()
    assert "sent" not in shown.getvalue()
    sent = 2_500_000
    bar.stage("objective 0.25")
    bar.close()
    assert "objective 0.25, 2.50MB sent" in shown.getvalue()


def test_it_fits_a_terminal_that_was_made_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves room for the ^C that the terminal shows: what wraps is not wiped."""
    ours, theirs = pty.openpty()

    def sized(columns: int) -> None:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def written() -> list[int]:
        found = b""
        while select.select([ours], [], [], 0.2)[0]:  # a terminal hands on piece by piece
            found += os.read(ours, 1 << 16)
        return [len(text.rstrip()) for text in found.decode().split("\r")]

    sized(100)
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        bar = Progress("m", 300, True)
        bar.stage("joining keys")
        assert 60 < max(written()) <= 97
        sized(40)
        bar.stage("joining rows")
        assert 20 < max(written()) <= 37
        bar.close()
        os.read(ours, 1 << 16)
    os.close(ours)


def test_what_is_remarked_shows_at_once_and_stays(screen: Callable[[bool], Screen]) -> None:
    shown = screen(True)
    bar = Progress("m", 10)
    bar.epoch(1, 0.5)
    bar.remark("ending")
    assert "ending, objective 0.5" in shown.getvalue()
    shown.truncate(0)
    bar.epoch(2, 0.25)
    bar._bar.refresh()
    assert "ending, objective 0.25" in shown.getvalue()
    bar.close()
    quiet = screen(False)
    Progress("m", 10).remark("ending")
    assert quiet.getvalue() == ""


def test_epochs_of_before_are_counted() -> None:
    steps: list[progress.ProgressStep] = []
    bar = Progress("m", 12, steps.append, first=5)
    bar.epoch(1, 0.5)
    assert [(step.epoch, step.epochs) for step in steps] == [(5, 12), (6, 12)]
