"""Analysts and agents that may come: those of the settings' file, as it is just now."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TypeAlias

from sqlfl.base.errors import Error
from sqlfl.service.settings import CoordinatorSettings, read_settings

log = logging.getLogger("sqlfl.service")

Mark: TypeAlias = tuple[int, int, int]
"""Node, size and time of a file."""


class Roster:
    """Names of a coordinator's settings that are still in their file.

    A name that is taken out of the file may not come any more, from the next question on. A name
    that is added comes with the coordinator's next start, as all else that changes. A file that
    cannot be read takes nobody out, and the log says so.

    path : the file; None if there is none. Safe to use from several threads.
    """

    def __init__(self, settings: CoordinatorSettings, path: Path | None) -> None:
        self._began, self._now, self._path = settings, settings, path
        self._lock = threading.Lock()
        self._mark: Mark | None = None

    def analyst(self, study: str, name: str) -> bool:
        """Return whether the analyst may come to the study."""
        return all(
            study in settings.studies and name in settings.studies[study].analysts
            for settings in (self._began, self._current())
        )

    def agent(self, party: str, number: int) -> bool:
        """Return whether the agent of a party's client may still come."""
        name = self._began.parties[party].agents[number]
        now = self._current().parties.get(party)
        return now is not None and name in now.agents

    def _current(self) -> CoordinatorSettings:
        if self._path is None:
            return self._now
        with self._lock:
            try:
                found = os.stat(self._path)
                mark = found.st_ino, found.st_size, found.st_mtime_ns
            except OSError as error:
                mark = (0, 0, error.errno or 0)
            if mark != self._mark:
                self._mark = mark
                try:
                    self._now = read_settings(CoordinatorSettings, self._path)
                    log.info("%s was read, for who may not come any more", self._path)
                except Error as error:
                    log.error(
                        "%s cannot be read, so that nobody is taken out by it: %s",
                        self._path, error.message,
                    )  # fmt: skip
            return self._now
