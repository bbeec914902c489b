"""Server of requests: bytes in, bytes out, one at a time; a failure is a reply too."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import duckdb
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import Error, EvaluationError, WireError
from sqlfl.base.interrupts import stoppable
from sqlfl.base.sanitize import clipped, lines
from sqlfl.base.threads import single
from sqlfl.contract.methods import load_messages
from sqlfl.contract.schema import Client, specifications_from_json
from sqlfl.governance.message_log import Sent
from sqlfl.messages.wire import encode, received
from sqlfl.party.failures import safe_text
from sqlfl.party.observers import Observers
from sqlfl.party.rehearsals import Rehearsals, Served, StandIn

if TYPE_CHECKING:
    from sqlfl.party.masked_run import MaskedRun

log = logging.getLogger("sqlfl.party")

T = TypeVar("T")


def _received(data: pa.Buffer) -> ms.Message:
    """Return the request. After a restart in the middle of a run, the first one may belong to a
    method that this process has not loaded.
    """
    try:
        return received(data)
    except WireError:
        load_messages()
        return received(data)


class Masking:
    """Masked runs of one client. The coordinator does not have `secret`, the parties' secret. The
    code of masks is loaded with the first such run.
    """

    def __init__(self, client: Client, secret: bytes) -> None:
        self._client = str(client)
        self._secret = secret
        self._runs: dict[str, MaskedRun] = {}
        self.check_peers: Callable[[ms.SetPeers], None] = lambda request: None
        """Raises Error if the client must not add to sums with these peers."""

    def answer(self, request: ms.Message, work: Callable[[], ms.Message]) -> ms.Message:
        """Return the reply to a request from outside; `work` makes it without masks."""
        match request:
            case ms.Prepare():
                reply = work()
                self._prepared(request)
                return reply
            case ms.SetPeers():
                self.check_peers(request)
            case ms.Finish():
                self._runs.pop(request.run, None)
        run = self._runs.get(request.run)
        return work() if run is None else run.answer(request, work)

    def _prepared(self, request: ms.Prepare) -> None:
        if not any(name in request.specification for name in ("secure", "masked_predictions")):
            return
        specifications = specifications_from_json(request.specification)
        slots = [item for item in specifications if item.secure or item.masked_predictions]
        if slots:
            from sqlfl.party.masked_run import MaskedRun  # loads cryptography

            self._runs[request.run] = MaskedRun(self._client, self._secret, slots)


class Server(ABC):
    """Server of one client's requests. `secret` is that of the parties. `observers` receive the SQL
    that runs."""

    def __init__(self, client: Client, secret: bytes, observers: Observers | None = None) -> None:
        self.client = client
        self._masking = Masking(client, secret)
        self._observers = Observers() if observers is None else observers
        self._rehearsals = Rehearsals()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def interrupt(self) -> None:
        """End the request being served, from another thread.

        It fails at its next step, or with its present query. If neither comes soon, as between two
        queries, call this again.
        """
        self._stop.set()
        self._rehearsals.interrupt()

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        """Return the reply to one request; a failure is a reply too, without data values in its
        text.

        Bytes that are no request are answered with a failure that belongs to none.
        """
        try:
            request = _received(data)
        except WireError as error:
            log.warning("%s was sent what is no request: %s", self.client, error)
            text = f"it was sent what is no request: {error.message}"
            return encode(ms.Failure("", ms.CLIENT, "WireError", text))
        at = ""
        known = {"party": self.client.party, "run": request.run}
        try:
            reply = self._reply(request)
            return self._sent(request, data, replace(reply, number=request.number))
        except (Error, duckdb.Error) as error:
            at = error.at if isinstance(error, EvaluationError) else ""
            failure = (type(error).__name__, safe_text(error, request))
            # The database's words may hold values: these are logged at a level of their own.
            log.info("%s failed on %s: %s", self.client, request.kind, failure[1], extra=known)
            log.debug("it said: %s", lines(str(error)))
        except MemoryError:
            log.info("%s has too little memory for %s", self.client, request.kind, extra=known)
            failure = ("MemoryError", f"its memory does not suffice for {request.kind}")
        except Exception as error:
            log.exception("%s failed on %s", self.client, request.kind, extra=known)
            text = f"{type(error).__name__} while serving {request.kind} (see the log sqlfl.party)"
            failure = ("InternalError", text)
        name, text = failure
        text = clipped(lines(text), ms.MAX_FAILURE_CHARACTERS)
        failed = ms.Failure(request.run, request.slot, name, text, at, number=request.number)
        return self._sent(request, data, failed)

    def _reply(self, request: ms.Message) -> ms.Message:
        """Return the reply. Only a stand-in serves messages of a rehearsal."""
        if isinstance(request, ms.Rehearse):
            self.work(request.kind, lambda: self.rehearse(request))
            return ms.Ready(request.run, request.slot)
        if not ms.of_rehearsal(request):
            return self.serve(request)
        try:
            return self._rehearsals.serve(request)
        finally:
            if isinstance(request, ms.Finish):
                self.forget(request.run)

    def serve(self, request: ms.Message) -> ms.Message:
        """Return the reply to a request from outside."""
        return self.work(
            request.kind, lambda: self._masking.answer(request, lambda: self._admitted(request))
        )

    def rehearse(self, request: ms.Rehearse) -> Served:
        """Start a rehearsal and return its server. Raise Error if it cannot start."""
        return self._rehearsals.begin(request.run, lambda: self._stand_in(request))

    def forget(self, run: str) -> None:
        """End the rehearsal."""
        self._rehearsals.end(run)

    @property
    def rehearsing(self) -> bool:
        return bool(self._rehearsals)

    def close(self) -> None:
        self._rehearsals.close()

    @abstractmethod
    def _stand_in(self, request: ms.Rehearse) -> StandIn:
        """Return the server of the rehearsal."""

    def _sent(self, request: ms.Message, data: pa.Buffer, reply: ms.Message) -> pa.Buffer:
        """Return the reply's bytes, after request and reply were recorded."""
        sent = encode(reply)
        try:
            self._keep((request, data), (reply, sent))
        except Exception:
            log.exception("%s keeps no messages", self.client)
            text = "its database takes no record of its messages, so that nothing leaves it"
            number = request.number
            return encode(ms.Failure(request.run, request.slot, "Error", text, number=number))
        return sent

    @abstractmethod
    def _keep(self, asked: Sent, told: Sent) -> None:
        """Record a message from outside and its reply."""

    def answer(self, request: ms.Message) -> ms.Message:
        """Return the reply to the party itself: failures are raised."""
        return self.work(request.kind, lambda: self._answer(request))

    def work(self, kind: str, task: Callable[[], T]) -> T:
        """Return the task's result. It runs as a part of a request of that kind."""
        with self._at_work(kind):
            return task()

    @contextmanager
    def _at_work(self, kind: str) -> Iterator[None]:
        observed = self._observers.of(self.client, kind)
        with self._lock, stoppable(self._stop), observed, single():
            self._stop.clear()
            yield

    def _admitted(self, request: ms.Message) -> ms.Message:
        """Return the answer to a request from outside."""
        return self._answer(request)

    @abstractmethod
    def _answer(self, request: ms.Message) -> ms.Message: ...
