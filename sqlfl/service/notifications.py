"""Notifications of an owner: a command of the owner's own runs for each request that waits."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from sqlfl.base import sanitize
from sqlfl.governance.owner import Owner
from sqlfl.governance.records import Records

log = logging.getLogger("sqlfl.owner")

SECONDS = 60.0
"""Time limit of one command."""
LOOK, POLL = 0.5, 0.05
"""Seconds between two looks for new requests, and at a running command."""
FIRST_PAUSE, MAX_PAUSE = 60.0, 3600.0
"""Seconds after which a failed command runs again: twice as long each time, up to the second."""
MAX_SAID = 500
"""Maximum bytes of a failed command's standard error that are logged."""


class Notifier:
    """Thread that runs `command` once for each request that waits; a context.

    The command gets the request as JSON on its standard input. A command that fails runs again,
    after growing pauses, for as long as the request waits. hidden : variables of the environment
    that the command does not get.
    """

    def __init__(
        self, owner: Owner, party: str, command: Sequence[str], hidden: Collection[str] = ()
    ) -> None:
        self._owner, self._party, self._command = owner, party, tuple(command)
        self._environment = {n: v for n, v in os.environ.items() if n not in hidden}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="sqlfl-notify", daemon=True)
        self._failed: dict[int, tuple[float, float]] = {}
        """Times when failed commands run again, and the pauses after that, by request."""

    def __enter__(self) -> Notifier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        seen, pause = -1, 0.0
        while not self._stop.wait(max(LOOK, pause)):
            changes, pause = Records.changes, 0.0
            now = time.monotonic()
            if changes == seen and not any(due <= now for due, _ in self._failed.values()):
                continue
            try:
                self._notify()
                seen = changes
            except Exception:  # such as a database without space: the agent goes on
                log.exception("requests that wait cannot be read", extra={"party": self._party})
                pause = FIRST_PAUSE

    def _notify(self) -> None:
        rows = self._owner.unnotified()
        waiting = {row["request"] for row in rows}
        self._failed = {n: failed for n, failed in self._failed.items() if n in waiting}
        for row in rows:
            number = row["request"]
            assert isinstance(number, int)
            due, pause = self._failed.get(number, (0.0, FIRST_PAUSE))
            if time.monotonic() < due or self._stop.is_set():
                continue
            why = run_command(self._command, as_json(row, self._party),
                              self._environment, self._stop)  # fmt: skip
            if not why:
                self._owner.notified(number)
                self._failed.pop(number, None)
                log.info("request %d: its owner was notified", number, extra={"party": self._party})
            elif not self._stop.is_set():
                self._failed[number] = time.monotonic() + pause, min(2.0 * pause, MAX_PAUSE)
                log.warning(
                    "request %d: `notify` %s; it runs again in %.0f seconds", number, why, pause,
                    extra={"party": self._party},
                )  # fmt: skip


def as_json(row: Mapping[str, object], party: str) -> str:
    """Return a row of SHOW REQUESTS as the command receives it, with a `text` to send as it is."""
    number, run = row["request"], sanitize.line(str(row["run"]))
    summary, warnings = (str(row[name]).splitlines() for name in ("summary", "warnings"))
    parts = [f"Request {number} waits at {party}: {run}, asked by {row['analyst']}."]
    parts += ["\n".join(summary)] if summary else []
    parts += ["Warnings:\n" + "\n".join(f"- {line}" for line in warnings)] if warnings else []
    parts.append(f"Decide by APPROVE REQUEST {number}, or REFUSE REQUEST {number} BECAUSE '...'.")
    told = {
        "party": party,
        "request": number,
        "analyst": row["analyst"],
        "asked": str(row["asked"]),
        "tables": row["tables"],
        "run": run,
        "summary": [sanitize.line(line) for line in summary],
        "warnings": [sanitize.line(line) for line in warnings],
        "text": sanitize.lines("\n\n".join(parts)),
    }
    return json.dumps(told, indent=1) + "\n"


def run_command(
    command: Sequence[str], text: str, environment: Mapping[str, str], stop: threading.Event
) -> str:
    """Run the command with the text on its standard input, and return why it failed; '' if it did
    not. It is ended after `SECONDS`, and where `stop` is set.
    """
    with TemporaryFile() as given:  # a pipe would wait for a command that reads nothing
        given.write(text.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"cannot run {command[0]}: {error.strerror}"
    end, said = time.monotonic() + SECONDS, b""
    with process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        while (ended := process.poll()) is None and time.monotonic() < end and not stop.wait(POLL):
            said = (said + _read(process.stderr.fileno()))[-MAX_SAID:]
        if ended is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return f"took longer than {SECONDS:g} seconds, and was ended"
        said = (said + _read(process.stderr.fileno()))[-MAX_SAID:]
    words = sanitize.line(said.decode("utf-8", "replace").strip())
    return "" if ended == 0 else f"ended with status {ended}{f': {words}' if words else ''}"


def _read(number: int) -> bytes:
    """Return what a pipe holds just now."""
    try:
        return os.read(number, 1 << 16)
    except BlockingIOError:
        return b""
