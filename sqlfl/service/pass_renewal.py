"""An analyst's own end: the passes by which a coordinator speaks for the analyst."""

from __future__ import annotations

import datetime as dt
import math
import threading
import time

from sqlfl.service.certificates import names_of
from sqlfl.service.passes import issue
from sqlfl.service.stream import Credentials


class Speaker:
    """Passes for one coordinator and study, each for so many `hours`; called, it gives the one of
    just now. Without a key they are the analyst's `name`. Safe to use from several threads."""

    def __init__(
        self, credentials: Credentials, name: str, coordinator: str, study: str, hours: float
    ) -> None:
        self._credentials, self._coordinator, self._study = credentials, coordinator, study
        self._length = dt.timedelta(hours=hours)
        certificate = credentials.certificate
        self.analyst = name if certificate is None else names_of(certificate)[0]
        self.half = 1800.0 * hours
        """Seconds, of what a pass is for: then it is time for another one."""
        self._lock = threading.Lock()
        self._pass = ""
        self._begun = -math.inf

    @property
    def due(self) -> bool:
        return self._credentials.key is not None and time.monotonic() > self._begun + self.half

    def issued(self) -> str:
        """A new one."""
        credentials = self._credentials
        if credentials.key is None or credentials.certificate is None:
            return self.analyst
        made = issue(
            credentials.key, credentials.certificate, self._coordinator, self._study, self._length
        )
        with self._lock:
            self._pass, self._begun = made, time.monotonic()
        return made

    def __call__(self) -> str:
        with self._lock:
            if not self.due and self._pass:
                return self._pass
        return self.issued()
