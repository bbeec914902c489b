"""Requests over a carrier of calls that may time out, or fail on the way.

Each request has a number. It is asked again by it until its answer is there: a call that takes long
says "not yet", so that no call lasts longer than a carrier allows, and a site that is gone is seen.
However often the same number comes, it is served once, and answered alike.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import pyarrow as pa

from sqlfl.base.errors import LostError, WireError
from sqlfl.contract.schema import Client

log = logging.getLogger("sqlfl.service")

PATIENCE = 5.0
"""Seconds after which a site says that an answer is not there yet; half of the lease where that is
shorter."""
MAX_PATIENCE = 30.0
"""That a site has, whatever it is asked for."""
MARGIN = 5.0
"""Seconds that a call may take beyond that, or the lease; twice as many after each that did."""
SLOWEST = 1e6
"""Bytes a second of a line, for what goes down."""
AGAIN = 0.5
"""Seconds between two calls where the site is not reached, or two interrupts."""
SERVED = 8
"""Requests that a site serves at once."""
MAX_ACKNOWLEDGED = 4096
"""Numbers of answers that have come which one call tells."""


class Away(Exception):
    """A call did not reach the site, or had no answer in time: it may be made again."""


class CarriedCall(Protocol):
    """Of the site's `NumberedAnswers.ask`, carried there.

    timeout : seconds after which it is given up. Raise Away, and LostError where another attempt
    would end alike.
    """

    def __call__(
        self,
        number: int,
        data: pa.Buffer | None,
        received: list[int],
        patience: float,
        /,
        *,
        timeout: float,
    ) -> pa.Buffer | None: ...


class FlareClient:
    """The coordinator's end of one client, as `Federation.admit` takes it.

    lease : seconds for which a client that is not heard of is waited for. `tell` interrupts it, and
    need not arrive.
    """

    link = "through NVFlare"

    def __init__(
        self, client: Client, call: CarriedCall, tell: Callable[[], None], lease: float = 60.0
    ) -> None:
        self._client, self._call, self._tell, self._lease = client, call, tell, lease
        self._lock = threading.Lock()
        self._number = 0
        self._received: list[int] = []
        self._stopped: set[int] = set()
        self._waiting: set[int] = set()
        self._told = 0.0

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        """The reply. Raise LostError where none comes within the lease."""
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting.add(number)
        try:
            return self._asked(number, data)
        finally:
            with self._lock:
                self._waiting.discard(number)
                self._stopped.discard(number)
                self._received.append(number)  # nobody waits for it any more

    def interrupt(self) -> None:
        """End what the client is serving; where it is away, the wait for it."""
        now = time.monotonic()
        with self._lock:
            self._stopped |= self._waiting
            if now < self._told + AGAIN:
                return
            self._told = now
        self._tell()

    def _asked(self, number: int, data: pa.Buffer) -> pa.Buffer:
        heard, sent = time.monotonic(), False
        patience, margin = min(PATIENCE, self._lease / 2.0), min(MARGIN, self._lease)
        while True:
            received, given = self._to_tell(), None if sent else data
            timeout = patience + margin + (0.0 if sent else len(data) / SLOWEST)
            try:
                reply = self._call(number, given, received, patience, timeout=timeout)
            except Away as error:
                with self._lock:
                    self._received += received
                    stopped = number in self._stopped
                if stopped or time.monotonic() - heard > self._lease:
                    raise LostError(str(self._client), str(error)) from error
                log.info("%s: %s", self._client, error)
                margin, sent = min(2.0 * margin, self._lease), False
                time.sleep(AGAIN)
                continue
            if reply is not None:
                return reply
            heard, sent = time.monotonic(), True

    def _to_tell(self) -> list[int]:
        with self._lock:
            told, self._received = (
                self._received[:MAX_ACKNOWLEDGED],
                self._received[MAX_ACKNOWLEDGED:],
            )
            return told


class NumberedAnswers:
    """The site's end: answers by the numbers of their requests, which begin at 1; a context.

    `serve` takes a request, the study and the pass.
    """

    def __init__(self, serve: Callable[[pa.Buffer, str, str], pa.Buffer]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._begun: dict[int, Future[pa.Buffer]] = {}
        self._low = 0
        """All numbers up to here have been received, ..."""
        self._over: set[int] = set()
        """... and these."""
        self._pool = ThreadPoolExecutor(SERVED, "sqlfl-site")

    def __enter__(self) -> NumberedAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def end(self) -> None:
        """Nothing is begun any more; what is being served is to be ended by others."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(
        self,
        number: int,
        data: bytes | None,
        received: list[int],
        patience: float,
        study: str,
        speaker: str,
    ) -> pa.Buffer | None:
        """The answer to a request of an analyst; None where it is not there yet.

        data : its bytes, or None where they have been sent. received : numbers whose answers the
        other side has, which are forgotten. patience : seconds. Raise WireError for what was not
        begun, or is over, and what `serve` does.
        """
        _check(number, data, received, patience, study, speaker)
        with self._lock:
            self._forget(received)
            if number <= self._low or number in self._over:
                raise WireError(f"request {number} is over")
            future = self._begun.get(number)
            if future is None:
                if data is None:
                    raise WireError(f"request {number} is not known here: the site was restarted")
                future = self._pool.submit(self._serve, pa.py_buffer(data), study, speaker)
                self._begun[number] = future
        done, _ = wait([future], min(patience, MAX_PATIENCE))
        return future.result() if done else None

    def _forget(self, received: list[int]) -> None:
        for number in received:
            self._begun.pop(number, None)
            if number > self._low:
                self._over.add(number)
        while self._low + 1 in self._over:
            self._low += 1
            self._over.discard(self._low)


def _check(
    number: object, data: object, received: object, patience: object, *texts: object
) -> None:
    """Raise WireError for arguments of a call that are none."""
    numbers = (
        received if isinstance(received, list) and len(received) <= MAX_ACKNOWLEDGED else [None]
    )
    good = (
        all(type(n) is int and 0 < n < 2**63 for n in (number, *numbers)),
        data is None or isinstance(data, bytes),
        isinstance(patience, float) and patience >= 0.0,
        all(isinstance(text, str) for text in texts),
    )
    if not all(good):
        raise WireError("a call with arguments that are none of a request")
