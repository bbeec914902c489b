"""Runs that wait for the owner: requests, in the schema `sqlfl` of the party's records."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import closing
from dataclasses import dataclass

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import ApprovalError, Error, PolicyError
from sqlfl.contract.request import (
    REFUSED,
    WAITING,
    ApprovedStudy,
    Request,
    Study,
    request_from_json,
    study_from_json,
)
from sqlfl.governance.records import Records, time_of
from sqlfl.governance.request_columns import SlotColumns
from sqlfl.options.policies import ALWAYS
from sqlfl.udfs import sql

APPROVED, USED, REPLACED = "approved", "used", "replaced"
"""States of a request. An approved study is replaced by a later one of its name."""
MAX_WAITING = 100
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
    study: Study | None = None
    """The study, where the request is for one."""
    outside: tuple[str, ...] = ()
    """Differences between the run and the study that it names."""


class Approvals:
    def __init__(self, records: Records) -> None:
        self._records = records

    def all(self) -> tuple[Filed, ...]:
        with closing(self._records.cursor()) as cursor:
            return self._found(cursor)

    def unnotified(self) -> tuple[Filed, ...]:
        """Return the waiting requests of which the owner was not notified."""
        with closing(self._records.cursor()) as cursor:
            told = self._records.rows(cursor, "SELECT number FROM t", "notified")
            waiting = self._records.rows(
                cursor, "SELECT number FROM t WHERE state = $state", "requests", {"state": WAITING}
            )
            numbers = {*waiting} - {*told}
            filed = self._found(cursor) if numbers else ()
        return tuple(item for item in filed if (item.number,) in numbers)

    def notified(self, number: int) -> None:
        with self._records.writing() as cursor:
            self._records.insert(cursor, "notified", (number, dt.datetime.now(dt.UTC)))

    def state(self, analyst: str, digest: str) -> tuple[str, int | None, str]:
        """Return the state of the run, its number, and the reason of a refusal. WAITING stands also
        for a run that nobody has asked for yet.
        """
        with closing(self._records.cursor()) as cursor:
            return self._state(cursor, analyst, digest)

    def check(self, asked: Filed, *, within: bool = False) -> None:
        """Return if the run is approved, or is `within` an approved study. Raise PolicyError if it
        was refused, and ApprovalError if it waits; it is filed then.
        """
        state, number, because = self.state(asked.analyst, asked.digest)
        if state == REFUSED:
            raise PolicyError(f"its owner has refused this run, request {number}: {because}")
        if state == APPROVED or within:
            return
        number = number or self._file(asked)
        outside = f": {'; '.join(asked.outside)}" if asked.outside else ""
        raise ApprovalError(
            f"the run waits for its owner, as request {number}{outside}",
            hint="run the same statement again once it is approved",
        )

    def ask(self, asked: Filed) -> tuple[str, int, str]:
        """Return the state of a request for a study, its number, and the reason of a refusal. It is
        filed if it was not.
        """
        state, number, because = self.state(asked.analyst, asked.digest)
        return state, number or self._file(asked), because

    def studies(self) -> tuple[ApprovedStudy, ...]:
        """Return the approved studies, also those that have ended."""
        with closing(self._records.cursor()) as cursor:
            return self._studies(cursor)

    def study(self, analyst: str, name: str) -> ApprovedStudy | None:
        """Return the analyst's approved study of this name."""
        named = (s for s in self.studies() if s.analyst == analyst and s.study.name == name)
        return next(named, None)

    def use_study(self, number: int, run: str, digest: str) -> None:
        """Count a run that begins within the study. Raise PolicyError if the study is not approved
        any more, has ended, or has no run left.
        """
        now = dt.datetime.now(dt.UTC)
        with self._records.writing() as cursor:
            study = next((s for s in self._studies(cursor) if s.number == number), None)
            if study is None or now >= study.study.until or study.used >= study.study.runs:
                raise PolicyError(
                    "the study does not allow this run any more", hint="run the statement again"
                )
            self._records.insert(cursor, "study_runs", (number, run, digest, now))

    def end_study(self, analyst: str, name: str, because: str) -> None:
        """End the analyst's study of this name. Raise Error if none is approved."""
        study = self.study(analyst, name)
        if study is None:
            raise Error(
                f"no study {name} of {analyst} is approved",
                hint="SHOW STUDIES lists those that are",
            )
        self.decide(study.number, REFUSED, because)

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
            requests = {item.number: item for item in self._found(cursor)}
            if number not in requests:
                listed = ", ".join(str(n) for n, item in requests.items() if item.state == WAITING)
                raise Error(
                    f"there is no request {number}",
                    hint=f"waiting are: {listed}" if listed else "SHOW REQUESTS lists them all",
                )
            if requests[number].state == REPLACED:
                raise Error(
                    f"request {number} is of a study that a later one has replaced",
                    hint="SHOW STUDIES lists those that are approved",
                )
            if requests[number].state == USED:
                raise Error(
                    f"request {number} was approved, and its run has begun",
                    hint="REVOKE what is granted, to allow no further one",
                )
            study = requests[number].study
            if state == APPROVED and study is not None:
                for other in self._studies(cursor):
                    same = (other.analyst, other.study.name) == (
                        requests[number].analyst,
                        study.name,
                    )
                    if same and other.number != number:
                        self._decide(cursor, other.number, REPLACED, "")
            self._decide(cursor, number, state, because)

    def _studies(self, cursor: sql.Connection) -> tuple[ApprovedStudy, ...]:
        rows = self._records.rows(
            cursor, "SELECT number, count(*) FROM t GROUP BY number", "study_runs"
        )
        used = dict(rows)
        return tuple(
            ApprovedStudy(item.number, item.analyst, item.study, used.get(item.number, 0))
            for item in self._found(cursor)
            if item.study is not None and item.state == APPROVED
        )

    def _file(self, asked: Filed) -> int:
        """File the request and return its number."""
        with self._records.writing() as cursor:
            filed = self._found(cursor)
            waiting = [f for f in filed if f.state == WAITING and f.analyst == asked.analyst]
            again = [item.number for item in waiting if item.digest == asked.digest]
            if again:
                return again[0]
            if len(waiting) >= MAX_WAITING:
                raise PolicyError(
                    f"{len(waiting)} runs of {asked.analyst} wait for its owner already"
                )
            number = max((item.number for item in filed), default=0) + 1
            row = (
                number, asked.digest, asked.analyst, json.dumps(asked.tables),
                asked.request.to_json(), json.dumps(asked.fragments), dt.datetime.now(dt.UTC),
                asked.state, asked.because, None,
            )  # fmt: skip
            self._records.insert(cursor, "requests", row)
            read = (number, asked.specification, to_json(asked.columns))
            self._records.insert(cursor, "request_columns", read)
            if asked.study is not None:
                study = (number, asked.study.name, asked.study.to_json())
                self._records.insert(cursor, "studies", study)
            if asked.outside:
                told = (number, asked.request.study, json.dumps(asked.outside))
                self._records.insert(cursor, "outside", told)
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
            "WHERE analyst = $analyst AND digest = $digest AND state NOT IN ('used', 'replaced') "
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
        studies = {
            number: study_from_json(study)
            for number, study in self._records.rows(
                cursor, "SELECT number, study FROM t", "studies"
            )
        }
        outside = dict(self._records.rows(cursor, "SELECT number, differences FROM t", "outside"))
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
                studies.get(number),
                tuple(json.loads(outside.get(number, "[]"))),
            )
            for number, digest, analyst, tables, request, fragments, asked, state, because in rows
        )
