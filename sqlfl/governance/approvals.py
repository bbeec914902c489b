"""Runs that wait for the owner: requests, in the schema `sqlfl` of the party's records."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import closing
from dataclasses import dataclass

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import ApprovalError, Error, PolicyError
from sqlfl.contract.request import REFUSED, WAITING, Request, request_from_json
from sqlfl.governance.records import Records, time_of
from sqlfl.governance.request_columns import SlotColumns
from sqlfl.options.policies import ALWAYS
from sqlfl.udfs import sql

APPROVED, USED = "approved", "used"
MOST_WAITING = 100
"""Maximum waiting requests of one analyst."""


@dataclass(frozen=True)
class Filed:
    """One request, as the owner sees it, with its state."""

    digest: str
    analyst: str
    tables: tuple[str, ...]
    request: Request
    fragments: tuple[str, ...]
    number: int = 0
    """Number; 0 before it has one."""
    asked_at: dt.datetime | None = None
    state: str = WAITING
    because: str = ""
    specification: str = ""
    """JSON of the slots' specifications; empty for a request of an earlier version."""
    columns: tuple[SlotColumns, ...] = ()
    """Columns by role, as the party has read them; none likewise."""


class Approvals:
    def __init__(self, records: Records) -> None:
        self._records = records

    def all(self) -> tuple[Filed, ...]:
        with closing(self._records.cursor()) as cursor:
            return self._found(cursor)

    def state(self, analyst: str, digest: str) -> tuple[str, int | None, str]:
        """Return the state of the run, its number, and the reason of a refusal. WAITING stands also
        for a run that nobody has asked for yet.
        """
        with closing(self._records.cursor()) as cursor:
            return self._state(cursor, analyst, digest)

    def check(self, asked: Filed) -> None:
        """Return if the run is approved. Raise PolicyError if it was refused, and ApprovalError if
        it waits; it is filed then.
        """
        state, number, because = self.state(asked.analyst, asked.digest)
        if state == REFUSED:
            raise PolicyError(f"its owner has refused this run, request {number}: {because}")
        if state == APPROVED:
            return
        raise ApprovalError(
            f"the run waits for its owner, as request {number or self._file(asked)}",
            hint="run the same statement again once it is approved",
        )

    def use(self, analyst: str, digest: str, approval: str) -> None:
        """Use the approval as the run begins. If each run needs its own, no other one can begin by
        it. Raise PolicyError if the run is no longer approved.
        """
        with self._records.writing() as cursor:
            state, number, _ = self._state(cursor, analyst, digest)
            if state != APPROVED:
                raise PolicyError("this run is not approved any more", hint="run it again")
            if approval == ALWAYS:
                self._decide(cursor, number, USED, "")

    def decide(self, number: int, state: str, because: str = "") -> None:
        """Decide a request. Raise Error if there is no such request, or if it has been used."""
        with self._records.writing() as cursor:
            found = {item.number: item for item in self._found(cursor)}
            if number not in found:
                listed = ", ".join(str(n) for n, item in found.items() if item.state == WAITING)
                raise Error(
                    f"there is no request {number}",
                    hint=f"waiting are: {listed}" if listed else "SHOW REQUESTS lists them all",
                )
            if found[number].state == USED:
                raise Error(
                    f"request {number} was approved, and its run has begun",
                    hint="REVOKE what is granted, to allow no further one",
                )
            self._decide(cursor, number, state, because)

    def _file(self, asked: Filed) -> int:
        """File the request and return its number."""
        with self._records.writing() as cursor:
            found = self._found(cursor)
            own = [f for f in found if f.state == WAITING and f.analyst == asked.analyst]
            again = [item.number for item in own if item.digest == asked.digest]
            if again:
                return again[0]
            if len(own) >= MOST_WAITING:
                raise PolicyError(f"{len(own)} runs of {asked.analyst} wait for its owner already")
            number = max((item.number for item in found), default=0) + 1
            row = (
                number, asked.digest, asked.analyst, json.dumps(asked.tables),
                asked.request.to_json(), json.dumps(asked.fragments), dt.datetime.now(dt.UTC),
                asked.state, asked.because, None,
            )  # fmt: skip
            self._records.insert(cursor, "requests", row)
            read = (number, asked.specification, to_json(asked.columns))
            self._records.insert(cursor, "request_columns", read)
            return number

    def _decide(self, cursor: sql.Connection, number: int | None, state: str, because: str) -> None:
        self._records.rows(
            cursor,
            "UPDATE t SET state = $state, because = $because, decided_at = $now "
            "WHERE number = $number",
            "requests",
            {"state": state, "because": because, "now": dt.datetime.now(dt.UTC), "number": number},
        )

    def _state(
        self, cursor: sql.Connection, analyst: str, digest: str
    ) -> tuple[str, int | None, str]:
        rows = self._records.rows(
            cursor,
            "SELECT number, state, because FROM t "
            "WHERE analyst = $analyst AND digest = $digest AND state <> 'used' "
            "ORDER BY number DESC",
            "requests",
            {"analyst": analyst, "digest": digest},
        )
        return (rows[0][1], rows[0][0], rows[0][2]) if rows else (WAITING, None, "")

    def _found(self, cursor: sql.Connection) -> tuple[Filed, ...]:
        rows = self._records.rows(
            cursor,
            "SELECT number, digest, analyst, tables, request, fragments, epoch_us(asked_at), "
            "state, because FROM t ORDER BY number",
            "requests",
        )
        read = {
            number: (specification, from_json(tuple[SlotColumns, ...], columns))
            for number, specification, columns in self._records.rows(
                cursor, "SELECT number, specification, columns FROM t", "request_columns"
            )
        }
        return tuple(
            Filed(
                digest,
                analyst,
                tuple(json.loads(tables)),
                request_from_json(request),
                tuple(json.loads(fragments)),
                number,
                time_of(asked),
                state,
                because,
                *read.get(number, ("", ())),
            )
            for number, digest, analyst, tables, request, fragments, asked, state, because in rows
        )
