"""Clients of a party that combines them, at work side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import duckdb

from sqlfl import messages as ms
from sqlfl.base.errors import Error, EvaluationError, InternalError
from sqlfl.base.sanitize import lines
from sqlfl.party.failures import safe_text
from sqlfl.party.party import PartyClient

log = logging.getLogger("sqlfl.party")

T = TypeVar("T")
Reply = TypeVar("Reply", bound=ms.Message)


class ClientGroup:
    """Clients by their number. An error is raised once all have ended, and names its client."""

    def __init__(self, clients: Sequence[PartyClient]) -> None:
        self.clients = tuple(clients)
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def interrupt(self) -> None:
        for client in self.clients:
            client.interrupt()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def do(
        self, request: ms.Message, numbers: Iterable[int], task: Callable[[int, PartyClient], T]
    ) -> list[T]:
        """Return the results of these clients' tasks, each a part of the request."""

        def done(number: int, client: PartyClient) -> T:
            return client.work(request.kind, lambda: task(number, client))

        return self._all(request, numbers, done)

    def _all(
        self, request: ms.Message, numbers: Iterable[int], task: Callable[[int, PartyClient], T]
    ) -> list[T]:
        if self._pool is None:
            name = f"sqlfl {self.clients[0].client.party}"
            self._pool = ThreadPoolExecutor(len(self.clients), thread_name_prefix=name)
        work: list[Future[T]] = []
        try:
            for number in numbers:
                work.append(self._pool.submit(self._named, request, number, task))
        finally:
            wait(work)
        return [future.result() for future in work]

    def ask(self, requests: Mapping[int, ms.Message], kind: type[Reply]) -> list[Reply]:
        """Return their replies, in the order of the requests."""
        first = next(iter(requests.values()))
        replies = self._all(first, requests, lambda number, client: client.answer(requests[number]))
        expected = [reply for reply in replies if isinstance(reply, kind)]
        if len(expected) < len(replies):
            others = next(reply for reply in replies if not isinstance(reply, kind))
            raise InternalError(f"a client answered {first.kind} with {others.kind}")
        return expected

    def _named(self, request: ms.Message, number: int, task: Callable[[int, PartyClient], T]) -> T:
        member = self.clients[number]
        try:
            return task(number, member)
        except (Error, duckdb.Error) as error:
            text = f"client {member.client}: {safe_text(error, request)}"
            log.info("%s failed on %s: %s", member.client, request.kind, text)
            log.debug("it said: %s", lines(str(error)))
            if isinstance(error, EvaluationError):
                raise EvaluationError(text, error.at) from error
            raise Error(text) from error
