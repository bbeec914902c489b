"""A party's record of its messages with an analyst's coordinator, chained, in its database."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakSet

import duckdb
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.contract.methods import load_messages
from sqlfl.governance.records import Records, time_of
from sqlfl.transport.audit_chain import COLUMNS, DOWN, START, UP, AuditChain, ChainEntry, linked
from sqlfl.udfs import sql

log = logging.getLogger("sqlfl.party")

NO_WORDS = "a kind of message that is not known here"
WITHOUT = tuple(kind.kind for kind in (ms.Ready, ms.Sealed, ms.Saved, ms.Proposed))
"""Replies that disclose nothing about tables."""
LAST = (ms.Finish, ms.SendBlock, ms.OpenJoin, ms.SendJoinState, ms.CloseJoin)
"""Requests after which a long pause may follow, and the connection is its owner's again."""
Sent: TypeAlias = tuple[ms.Message, pa.Buffer]
"""A message, and its bytes as received or sent."""


class Keeping:
    """Record of one client. Entries in memory are written at the end of a run, once a second, and
    in `close`.
    """

    def __init__(self, client: str, analyst: str, records: Records) -> None:
        self._client, self._records = client, records
        self._aside = threading.local()
        self._chain = AuditChain(analyst, self._keep, self._spare)
        self._place = (-1, 0, START)
        """Turn, number and head of the last entry written here."""
        _ALL.add(self)

    def keep(self, asked: Sent, told: Sent, what: str) -> None:
        """Record a request and its reply. `what`: description of a proposed run."""
        for direction, (message, data) in ((DOWN, asked), (UP, told)):
            if isinstance(message, (ms.Seal, ms.Sealed)):
                said = f"{message.head} {message.chain}"
            else:
                said = what if direction == DOWN else ""
            self._chain.note(self._client, message.run, direction, message.kind, data, said)
        if isinstance(asked[0], LAST):
            self._chain.flush()

    def seal(self, request: ms.Seal) -> ms.Sealed:
        heads = self._chain.heads(self._client, request.run)
        return ms.Sealed(request.run, request.slot, *heads)

    def flush(self) -> None:
        self._try(self._chain.flush)

    def close(self) -> None:
        self._try(self._chain.close)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (Error, duckdb.Error) as error:
            log.warning("%s has not kept its last messages: %s", self._client, error)

    def _spare(self) -> AbstractContextManager[None]:
        """Return a context in which another thread writes. It does not use the connection, which
        its owner may be using by then.
        """
        return self._within(self._records.cursor())

    @contextmanager
    def _within(self, con: sql.Connection) -> Iterator[None]:
        with closing(con):
            self._aside.records = self._records.by(con)
            try:
                yield
            finally:
                del self._aside.records

    def _keep(self, entries: Sequence[ChainEntry]) -> str:
        """Keep entries, as `sqlfl.transport.audit_chain.Keep`."""
        records: Records = getattr(self._aside, "records", self._records)

        def work(cursor: sql.Connection, turn: int) -> None:
            before, seq, head = self._place
            if turn != before + 1:
                seq, head = self._last(cursor)
            rows = linked(entries, seq, head)
            records.append(cursor, "chain", COLUMNS, rows)
            self._place = turn, rows[-1][0], rows[-1][-1]

        if entries:
            records.in_turn(work)
            return self._place[-1]
        with closing(records.cursor()) as cursor:
            return self._last(cursor)[1]

    def _last(self, cursor: sql.Connection) -> tuple[int, str]:
        rows = self._records.rows(
            cursor, "SELECT seq, head FROM t ORDER BY seq DESC LIMIT 1", "chain"
        )
        return rows[0] if rows else (0, START)


_ALL: WeakSet[Keeping] = WeakSet()


def flush_all() -> None:
    """Write all waiting entries of this process, for a reader of the records."""
    for keeping in tuple(_ALL):
        keeping.flush()


@dataclass(frozen=True)
class SentCount:
    """Messages of one kind that left in one run."""

    analyst: str
    run: str
    """Run; empty while statements are planned."""
    what: str
    """Description of the run; empty if it was not allowed to begin."""
    kind: str
    words: str
    """Description of their content."""
    messages: int
    bytes: int
    first_at: dt.datetime
    last_at: dt.datetime


def left(records: Records) -> Iterator[SentCount]:
    """Yield all recorded messages, in the order in which they first left."""
    flush_all()
    with closing(records.cursor()) as cursor:
        rows = records.rows(cursor, _LEFT, "chain")
        told = dict(records.rows(cursor, _TOLD, "chain"))
    for analyst, run, kind, messages, size, first, last in rows:
        at = time_of(first), time_of(last)
        yield SentCount(analyst, run, told.get(run, ""), kind, words_of(kind), messages, size, *at)


def words_of(kind: str) -> str:
    """Return what leaves in messages of this kind, which several methods may have."""
    if kind not in ms.KINDS:
        load_messages()
    words = {own.words: None for own in ms.KINDS.values() if own.kind == kind and own.words}
    return "; or ".join(words) or NO_WORDS


_LEFT = f"""SELECT analyst, run, kind, count(*), sum(bytes)::BIGINT, epoch_us(min(noted_at)),
    epoch_us(max(noted_at)) FROM t WHERE direction = '{UP}' AND kind NOT IN {WITHOUT}
    GROUP BY ALL ORDER BY min(seq)"""
_TOLD = f"""SELECT run, told FROM t
    WHERE kind IN ('{ms.Propose.kind}', '{ms.Rehearse.kind}', '{ms.OpenJoin.kind}')
    AND told <> ''"""
