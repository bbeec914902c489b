"""What a party keeps of its messages with an analyst's coordinator, chained, in its database."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import duckdb
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.chain import COLUMNS, DOWN, START, UP, Chain, Entry, linked
from sqlfl.errors import Error
from sqlfl.guard.records import Records, time_of
from sqlfl.udfs import sql

log = logging.getLogger("sqlfl.party")

WITHOUT = tuple(kind.kind for kind in (ms.Ready, ms.Sealed, ms.Saved, ms.Proposed))
"""Replies that tell nothing of tables."""
Sent: TypeAlias = tuple[ms.Message, pa.Buffer]
"""A message, and its bytes as they came or go."""


class Keeping:
    """Of one client. What waits in memory is written once a second, at the end of a run, and in
    `close`."""

    def __init__(self, client: str, analyst: str, records: Records) -> None:
        self._client, self._records = client, records
        self._chain = Chain(analyst, self._keep)

    def keep(self, asked: Sent, told: Sent, what: str) -> None:
        """A request and its reply; `what`: of a run that is proposed what it is."""
        for direction, (message, data) in ((DOWN, asked), (UP, told)):
            if isinstance(message, (ms.Seal, ms.Sealed)):
                said = f"{message.head} {message.chain}"
            else:
                said = what if direction == DOWN else ""
            self._chain.note(self._client, message.run, direction, message.kind, data, said)
        if isinstance(asked[0], ms.Finish):
            self._chain.flush()

    def seal(self, request: ms.Seal) -> ms.Sealed:
        heads = self._chain.heads(self._client, request.run)
        return ms.Sealed(request.run, request.slot, *heads)

    def close(self) -> None:
        try:
            self._chain.flush()
        except (Error, duckdb.Error) as error:
            log.warning("%s has not kept its last messages: %s", self._client, error)

    def _keep(self, entries: Sequence[Entry]) -> str:
        found = ""

        def work(cursor: sql.Connection) -> None:
            nonlocal found
            last = self._records.rows(
                cursor, "SELECT seq, head FROM t ORDER BY seq DESC LIMIT 1", "chain"
            )
            seq, head = last[0] if last else (0, START)
            rows = linked(entries, seq, head)
            self._records.append(cursor, "chain", COLUMNS, rows)
            found = rows[-1][-1]

        if entries:
            self._records.in_turn(work)
            return found
        return self._last()

    def _last(self) -> str:
        cursor = self._records.cursor()
        try:
            rows = self._records.rows(
                cursor, "SELECT head FROM t ORDER BY seq DESC LIMIT 1", "chain"
            )
        finally:
            cursor.close()
        return str(rows[0][0]) if rows else START


@dataclass(frozen=True)
class Left:
    """Messages of one kind that left in one run."""

    analyst: str
    run: str
    """Empty while statements are planned."""
    what: str
    """What the run is; empty where it was not let begin."""
    kind: str
    words: str
    """On what is in them, where that is always the same."""
    messages: int
    bytes: int
    first_at: dt.datetime
    last_at: dt.datetime


def left(records: Records) -> Iterator[Left]:
    """All that is kept, in the order in which it first left."""
    with closing(records.cursor()) as cursor:
        rows = records.rows(cursor, _LEFT, "chain")
        told = dict(records.rows(cursor, _TOLD, "chain"))
    for analyst, run, kind, messages, size, first, last in rows:
        words = ms.KINDS[kind].words if kind in ms.KINDS else ""
        at = time_of(first), time_of(last)
        yield Left(analyst, run, told.get(run, ""), kind, words, messages, size, *at)


_LEFT = f"""SELECT analyst, run, kind, count(*), sum(bytes)::BIGINT, epoch_us(min(noted_at)),
    epoch_us(max(noted_at)) FROM t WHERE direction = '{UP}' AND kind NOT IN {WITHOUT}
    GROUP BY ALL ORDER BY min(seq)"""
_TOLD = f"SELECT run, told FROM t WHERE kind = '{ms.Propose.kind}' AND told <> ''"
