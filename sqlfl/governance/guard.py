"""Guard of a party against an analyst's coordinator: it enforces the owner's grants and policies.

If the owner has no policy, it serves everything. Reasons to refuse stand in the modules that it
asks: `fragments` and `tree` read the SQL, `policy_evaluation` holds a request against the rules,
`modes` against the rules on labels, features and metrics, `accounting` against budgets,
`differencing` and `models` against earlier runs, `approvals` against the owner's decisions; `runs`
holds each later message to the request, and `trial` bounds time and memory.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import duckdb
import numpy as np

from sqlfl import messages as ms
from sqlfl.base.errors import Error, PolicyError
from sqlfl.base.sanitize import line
from sqlfl.contract.request import (
    REFUSED,
    TRAIN,
    WAITING,
    ApprovedStudy,
    Verdict,
    request_from_json,
    study_from_json,
    verdicts_to_json,
)
from sqlfl.contract.schema import (
    Listing,
    listing_from_json,
    listing_to_json,
    specifications_from_json,
)
from sqlfl.governance.accounting import Accounting, reserved
from sqlfl.governance.approvals import Approvals, Filed
from sqlfl.governance.differencing import Differencing
from sqlfl.governance.fragments import Fragments
from sqlfl.governance.ledger import Asking, Drawn, Ledger
from sqlfl.governance.message_log import Keeping, Sent
from sqlfl.governance.models import Models, without_small_cells
from sqlfl.governance.modes import allowances, mode_refusals
from sqlfl.governance.open_runs import OpenRuns, RehearsalRules
from sqlfl.governance.policies import (
    LASTING,
    Governance,
    Ruling,
    definitions_of,
)
from sqlfl.governance.policy_evaluation import SCORES, check_words, has, refusal, refusals_of
from sqlfl.governance.policy_store import Home
from sqlfl.governance.proposals import (
    ExaminedProposal,
    Proposal,
    Read,
    check_keys,
    described_run,
    draw_keys,
    parts_of,
    prepared_request,
    unrecognised_rows,
    unsteady_rows,
)
from sqlfl.governance.records import Records
from sqlfl.governance.request_columns import columns_of
from sqlfl.governance.runs import GovernedRun, GuardedJoins, GuardedSlots, RoundLimit, Serve
from sqlfl.governance.scopes import ASK, ScopeColumn, Table, unnamed
from sqlfl.governance.studies import differences, filed_study, noised
from sqlfl.governance.tree import SelectReading
from sqlfl.governance.trial import Trial, Tried, named_columns
from sqlfl.options.policies import NEVER, within
from sqlfl.options.types import written_length
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place, described

T = TypeVar("T")
TWICE = "a run of this name was there before: each has one of its own"
MAX_FRAGMENTS = 256
"""Maximum fragments of one run."""
MAX_REQUEST_CHARACTERS = 1 << 20
"""Maximum characters of a request, which is kept if its owner must look at it."""
MAX_PROPOSALS = 64
"""Maximum proposals that are kept until their runs begin."""
ANEW = (ms.ListTables, ms.SendBlock, ms.OpenJoin, ms.ProposeStudy)
"""Requests that begin a statement."""
OUTSIDE = (ms.Keep, ms.Drop, ms.Collect)
"""Requests about models, not about a run."""


@dataclass(frozen=True)
class GuardedClient:
    """Client as its guard sees it: its runs, slots, joins and blocks."""

    name: str
    slots: GuardedSlots
    blocks: Callable[[], Collection[str]]
    """Returns the runs of which the coordinator has blocks."""
    end_run: Callable[[str], None]
    """Forgets a run."""
    interrupt: Callable[[], None]
    """Ends the request being answered, from another thread."""
    cursor: Callable[[], AbstractContextManager[sql.Connection]]
    """Opens a cursor of the database, whose query `interrupt` ends."""
    joins: GuardedJoins | None = None


class Guard:
    """Guard of one client: `serve` answers a request by `answer`, or raises PolicyError.

    analyst : the user of the coordinator; empty if it is not named. store : records of the party's
    store, in which its owner may keep policies and all records. required : without a policy nothing
    is served. trial : evaluates queries first. place : database and schema of names without one;
    None for those that `con` has now.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        client: GuardedClient,
        analyst: str,
        store: Records | None = None,
        *,
        required: bool = False,
        trial: Trial | None = None,
        place: tuple[str, str] | None = None,
    ) -> None:
        self._required, self._trial = required, trial
        self._con, self._analyst = con, analyst
        self._end_run, self._slots, self._joins = client.end_run, client.slots, client.joins
        self._cursor = client.cursor
        self._place = current_place(con) if place is None else place
        self._home = Home(Records(con, self._place[0]), store)
        records = self._records = self._home.records
        self._governance = Governance(records)
        self._reader = Fragments(analyst, self._place)
        self._approvals = Approvals(records)
        self._ledger = Ledger(records)
        self._accounting = Accounting(con, analyst, self._ledger, client.slots.draws)
        self._differencing = Differencing(con, records, analyst)
        self._keeping = Keeping(client.name, analyst, records)
        self._known: tuple[int, float, Ruling | None] | None = None
        self._runs = OpenRuns(client.end_run, client.interrupt, self._ledger)
        self._proposals: dict[str, Proposal] = {}
        self._models = Models(records, analyst, client.blocks)
        self._seen: set[str] = set()
        self._rehearsed = ""
        """Description of the rehearsal that has just begun."""
        self._opened_join = ""
        """Description of the join that was made last."""

    def serve(self, request: ms.Message, answer: Serve, *, combined: bool) -> ms.Message:
        self._runs.check(request)
        if isinstance(request, ms.Finish):
            self._proposals.pop(request.run, None)
            self._runs.finish(request.run)
            return answer(request)
        if isinstance(request, ms.Seal):
            return self._keeping.seal(request)
        if not isinstance(request, _ASKED):
            if isinstance(request, OUTSIDE):
                governed = self._ruling(anew=False) is not None
                return self._models.serve(request, answer) if governed else answer(request)
            run = self._runs.get(request.run)
            if run is None:
                return answer(request)
            ruling = self._ruling(anew=False)
            if isinstance(request, ms.SendErrors) and ruling is not None:
                # its reply has the block's weights
                self._check_weights(request.model, ruling)
            elif isinstance(request, ms.SendSkew) and ruling is not None:
                # its reply has means of the rows that the model was trained on
                least = self._models.check_statistics(request.model, ruling)
                request = replace(request, least=max(request.least, least))
            elif request.kind in SCORES:
                self._models.check_unlocked(getattr(request, "model"))  # noqa: B009
            reply = self._runs.in_time(request, run.every, lambda: run.serve(request, answer))
            if isinstance(request, ms.Save):
                self._models.saved(request)
            return reply
        ruling = self._ruling(anew=isinstance(request, ANEW))
        if ruling is None:
            if isinstance(request, ms.Propose | ms.ProposeStudy):
                return ms.Proposed(request.run, request.slot, verdicts_to_json(()))
            return answer(request)
        proposal = self._proposals.get(request.run) if isinstance(request, ms.Prepare) else None
        rules = ruling.strictest() if proposal is None else proposal.run.every
        work = partial(self._governed, request, answer, ruling, combined=combined)
        return self._runs.in_time(request, rules, work)

    def _governed(
        self, request: ms.Message, answer: Serve, ruling: Ruling, *, combined: bool
    ) -> ms.Message:
        self._check_named(combined=combined)
        match request:
            case ms.ListTables():
                return self._list_tables(request, answer, ruling)
            case ms.Describe():
                return self._describe(request, answer, ruling)
            case ms.Propose():
                return self._answer_proposal(request, ruling)
            case ms.ProposeStudy():
                return self._answer_study(request, ruling)
            case ms.Prepare():
                return self._begin_run(request, answer, ruling)
            case ms.OpenJoin():
                return self._open_join(request, answer, ruling)
            case ms.SendJoinState():
                # as in Prepared
                return ms.JoinState(request.run, request.slot, ms.NOT_KNOWN)
            case ms.SendBlock():
                self._check_weights(request.model, ruling)
                if isinstance(request, ms.SendCurves):
                    return without_small_cells(answer(request), ruling.strictest().min_cell)
        return answer(request)

    def check_export(self, run: str, *, combined: bool) -> None:
        """Raise PolicyError unless a block of the run may leave with its weights."""
        ruling = self._ruling(anew=True)
        if ruling is not None:
            self._check_named(combined=combined)
            self._check_weights(run, ruling)

    def _check_weights(self, run: str, ruling: Ruling) -> None:
        if ruling.strictest().weights == NEVER:
            raise refusal("weights = 'never'")
        self._models.check_weights(run, ruling)

    def check_peers(self, request: ms.SetPeers) -> None:
        """Check the peers before masks are agreed. Raise PolicyError."""
        run = self._runs.get(request.run)
        if run is not None:
            run.check_peers(request)

    def _check_named(self, *, combined: bool) -> None:
        """Raise PolicyError unless there is an analyst to whom grants can be made."""
        if combined:
            raise PolicyError(
                "its owner has made training policies, and these are not built for databases "
                "that a party combines"
            )
        if not self._analyst:
            raise PolicyError(
                "its owner has made training policies, and the federation names no analyst to "
                "whom something might be granted",
                hint="sqlfl.connect(analyst='name')",
            )

    def rehearse(self, request: ms.Rehearse, *, combined: bool) -> RehearsalRules:
        """Check a run over synthetic rows, and return its rules. All that it reads must be granted,
        because it discloses names and types. The owner is not asked, and nothing is counted or
        reserved. Raise PolicyError.
        """
        ruling = self._ruling(anew=True)
        self._rehearsed = ""
        if ruling is None:
            return RehearsalRules()
        self._check_named(combined=combined)
        _check_length(request)
        asked = request_from_json(request.request)
        check_words(asked)
        views, _ = self._fragments(request, ruling)
        self._rehearsed = f"rehearsal over rows that are made up: {described_run(asked, views)}"
        return RehearsalRules(ruling.may_any, ruling.strictest(views).seconds)

    def keep(self, asked: Sent, told: Sent) -> None:
        """Record a request and its reply, with their bytes, if the owner has policies. Raise Error,
        or DuckDB's, if the database refuses it: then nothing may leave.
        """
        if self._known is None:
            # A process that was restarted in a run is asked about that before anything else. If the
            # policies cannot be read, requests are refused, and there is no rule to record them.
            with contextlib.suppress(Error, duckdb.Error):
                self._ruling(anew=True)
        if self._known is None or self._known[2] is None:
            return
        request, what = asked[0], ""
        if isinstance(request, ms.Propose) and request.run in self._proposals:
            what = self._proposals[request.run].told
        elif isinstance(request, ms.Rehearse):
            what = self._rehearsed
        elif isinstance(request, ms.OpenJoin) and isinstance(told[0], ms.JoinOpened):
            what = self._opened_join
        self._keeping.keep(asked, told, what)

    def accept(self, run: str) -> None:
        """Count blocks of this run as the analyst's. The owner of the party's process says so."""
        self._models.add(run)

    def close(self) -> None:
        """Write the waiting entries."""
        self._keeping.close()

    def _ruling(self, *, anew: bool) -> Ruling | None:
        """Return the ruling. The last one serves the following requests of a statement. The owner's
        statements change it at once; changes by hand count after LASTING seconds.
        """
        now = time.monotonic()
        known = self._known
        if anew or known is None or known[:1] != (Records.changes,) or now > known[1] + LASTING:
            changes = Records.changes
            self._reader.forget()
            ruling = self._home.ruling(self._analyst)
            known = self._known = changes, now, ruling
            if ruling is not None:
                self._models.know(changes, now, ruling.locks)
        if known[2] is None and self._required:
            raise PolicyError(
                "its owner has made no training policy, and without one nothing is granted to "
                "whoever is on another machine",
                hint="its owner: sqlfl owner DATABASE 'CREATE TRAINING POLICY ...'",
            )
        return known[2]

    # -- planning ---------------------------------------------------------------------------------

    def _list_tables(self, request: ms.ListTables, answer: Serve, ruling: Ruling) -> ms.Message:
        """List only granted columns of granted tables."""
        reply = answer(request)
        assert isinstance(reply, ms.Tables)
        listing = listing_from_json(reply.tables)
        kept = []
        for table in listing.tables:
            path = (
                table.catalog or self._place[0],
                table.schema or self._place[1],
                table.name,
            )
            names = tuple(column.name for column in table.columns)
            types = tuple(column.type for column in table.columns)
            self._reader.listed.add(path, names, types, view=table.rows is None)
            granted = ruling.columns(path)
            columns = tuple(c for c in table.columns if c.name in granted)
            if columns:
                keyed = bool(ruling.key(path))
                kept.append(replace(table, columns=columns, rows=_about(table.rows), keyed=keyed))
        schemas = {(t.catalog or self._place[0], t.schema or self._place[1]) for t in kept}
        written = {(self._place[0], name) for name in ruling.written}
        places = tuple(
            place for place in listing.places
            if (place.catalog, place.schema) in {*schemas, self._place}
            or (place.catalog, place.schema.lower()) in written
        )  # fmt: skip
        granted_listing = Listing(places, tuple(kept), listing.fleeting, governed=True)
        return replace(reply, tables=listing_to_json(granted_listing))

    def _describe(self, request: ms.Describe, answer: Serve, ruling: Ruling) -> ms.Message:
        """Describe the columns without running the queries. Each column must be granted for
        something, and each query must read a table.
        """
        with sql.on_demand(self._con) as cursor:
            readings = [self._reader.read(cursor, text, ruling) for text in request.selects]
        for reading in readings:
            if not reading.tables:
                raise PolicyError("a query that reads no table that is granted", hint=ASK)
            _check_known(reading, ruling)
        if self._trial is None:
            return self._bound(lambda: answer(request))
        tried = Tried(self._place, request.selects, self._named(readings, ruling), run=False)
        each = self._trial.describe(self._con, tried, ruling.strictest())
        return ms.Columns.of(request, [described(columns) for columns in each])

    # -- joins that last --------------------------------------------------------------------------

    def _open_join(self, request: ms.OpenJoin, answer: Serve, ruling: Ruling) -> ms.Message:
        """Keep the tables for later runs, each of which is proposed by itself. All columns must be
        granted for something, and every policy must let joins last.
        """
        if len(request.fragments) > MAX_FRAGMENTS:
            raise PolicyError(f"{len(request.fragments)} fragments; {MAX_FRAGMENTS} are taken")
        with sql.on_demand(self._con) as cursor:
            readings = [self._reader.read(cursor, text, ruling) for text in request.fragments]
        for reading in readings:
            _check_known(reading, ruling)
        tables = frozenset().union(*(reading.tables for reading in readings))
        every = ruling.strictest(tables)
        if every.join_time is None:
            raise PolicyError(
                "its owner's policy has no join_time: no join may last",
                hint="write FROM ( query ) in each statement, or ask its owner",
            )
        if every.hours is not None and not within(every.hours, dt.datetime.now()):
            raise refusal(f"hours = '{every.hours}'")
        assert self._joins is not None
        if self._trial is not None:
            tried = Tried(self._place, request.fragments, self._named(readings, ruling), run=False)
            self._trial.describe(self._con, tried, every)
        reply = self._bound(lambda: answer(request))
        assert isinstance(reply, ms.JoinOpened)
        grants = {table: frozenset(g.number for g in ruling.of(table)) for table in tables}
        self._joins.govern(request.run, every.join_time, grants)
        named = ", ".join(".".join(table[1:]) for table in sorted(tables))
        self._opened_join = f"join {line(request.name)} of {named}"
        return replace(reply, seconds=math.ceil(every.join_time))

    def _check_join(self, proposal: Proposal, join: str) -> None:
        """Raise PolicyError unless the run may use what is kept of the join: its tables as they
        were must be the granted ones, without a break since, and no older than their policies
        allow.
        """
        assert self._joins is not None
        _, age = self._joins.name_and_age(join)
        every = proposal.run.every
        if every.join_time is None or age > every.join_time:
            said = "no join_time"
            if every.join_time is not None:
                said = f"join_time = '{written_length(every.join_time)}'"
            raise PolicyError(
                f"its owner's policy has {said}, and the join is {written_length(age)} old",
                hint="CREATE OR REPLACE JOIN makes it anew; or write FROM ( query )",
            )
        cursor = self._joins.cursor(join)
        if proposal.keys:
            raise PolicyError(
                "labels whose noise follows from the KEY of their rows are not built over a join "
                "that lasts",
                hint="write FROM ( query )",
            )
        if definitions_of(cursor, proposal.views) != proposal.views:
            raise PolicyError(
                "its owner has changed a view or a macro since the join was made",
                hint="CREATE OR REPLACE JOIN makes it anew",
            )
        grants = self._joins.grants(join)
        for table in sorted(proposal.views):
            held = None if grants is None else grants.get(table)
            now = {grant.number for grant in proposal.ruling.of(table)}
            if held is None:
                why = "is of another table, or was made before its grant"
            else:
                why = "" if held <= now else "was made before its owner revoked a grant of it"
            if why:
                raise PolicyError(
                    f"the run reads {'.'.join(table[1:])}, and the join {why}",
                    hint="CREATE OR REPLACE JOIN makes it anew; or write FROM ( query )",
                )

    def _named(
        self, readings: Iterable[SelectReading], ruling: Ruling
    ) -> Mapping[Table, tuple[str, ...]]:
        """Return the columns that these name, by their tables. A table without any gets some
        granted one.
        """
        reads: set[ScopeColumn] = set()
        for reading in readings:
            reads |= reading.named | reading.links | reading.filters.keys()
            reads.update(*(output.reads for output in reading.outputs))
            for table in reading.tables - {column.table for column in reads}:
                reads.add(ScopeColumn(table, min(ruling.columns(table))))
        return named_columns(reads)

    # -- a run ------------------------------------------------------------------------------------

    def _answer_proposal(self, propose: ms.Propose, ruling: Ruling) -> ms.Message:
        """Answer a proposal. For a run that is to begin, a reply means that it may; a mere question
        gets all verdicts.
        """
        _check_length(propose)
        request = request_from_json(propose.request)
        check_words(request)
        try:
            views, read_ = self._fragments(propose, ruling)
        except PolicyError as error:
            if propose.run:
                raise
            verdict = Verdict(ms.CLIENT, "", REFUSED, error.message)
            return ms.Proposed(propose.run, propose.slot, verdicts_to_json((verdict,)))
        draft = ExaminedProposal(propose, request, ruling, views, read_)
        for model in draft.warm_models:
            self._models.check_unlocked(model)
        verdicts, demands = self._verdicts(draft)
        filed, study = None, None
        if draft.every.approval != NEVER and not verdicts:
            filed, study = self._request_of(draft)
        if not propose.run:
            if filed is not None:
                verdicts = self._state_of_approval(filed, draft.every.approval, study)
            verdicts = (*verdicts, *self._accounting.remains(demands))
            return ms.Proposed("", propose.slot, verdicts_to_json(verdicts))
        if verdicts:
            raise PolicyError(verdicts[0].rule, hint=ASK)
        if propose.run in self._seen or self._models.is_of_session(propose.run):
            raise PolicyError(TWICE)
        if filed is not None:
            self._approvals.check(filed, within=study is not None)
        while len(self._proposals) >= MAX_PROPOSALS:
            self._proposals.pop(next(iter(self._proposals)))
        self._proposals[propose.run] = self._allowed(draft, demands, study)
        return ms.Proposed(propose.run, propose.slot, verdicts_to_json(()))

    def _verdicts(self, draft: ExaminedProposal) -> tuple[tuple[Verdict, ...], Asking]:
        """Return the rules that refuse the run, and its demands on the accounts if none does."""
        request, read_, rules, every = draft.request, draft.read, draft.rules, draft.every
        verdicts = refusals_of(request, read_.slots, draft.ruling, read_.tables, rules, every)
        verdicts += mode_refusals(request, read_, rules, every, draft.may_join)
        verdicts = verdicts or unrecognised_rows(read_, rules)
        verdicts = verdicts or unsteady_rows(self._con, read_, rules, draft.ruling)
        if verdicts:
            return verdicts, ()
        return self._accounting.asked(request, draft.propose.fragments, read_, draft.ruling)

    def _request_of(self, draft: ExaminedProposal) -> tuple[Filed, ApprovedStudy | None]:
        """Return the request as its owner sees it, and the approved study that it is within."""
        propose = draft.propose
        filed = Filed(
            draft.digest, self._analyst, _names(draft.tables), draft.request, propose.fragments,
            specification=propose.specification, columns=columns_of(draft.read),
        )  # fmt: skip
        if draft.request.study is None:
            return filed, None
        study = self._approvals.study(self._analyst, draft.request.study)
        outside = differences(study, filed, draft.read, draft.rules, draft.every, draft.may_join)
        return replace(filed, outside=outside), None if outside else study

    def _allowed(
        self, draft: ExaminedProposal, demands: Asking, study: ApprovedStudy | None
    ) -> Proposal:
        """Return the allowed run; if it is within a study, with the study's noise and rounds."""
        rules, limit = draft.rules, None
        if study is not None:
            rules = noised(study.study, rules, trains=draft.request.purpose == TRAIN)
            if study.study.rounds is not None:
                limit = RoundLimit(study.study.name, study.study.rounds)
        read_ = draft.read
        allowed = reserved(read_, demands) | dict(allowances(draft.request, read_, rules))
        parts = {item.slot: parts_of(item, read_, rules, draft.ruling) for item in read_.slots}
        run = GovernedRun(
            draft.request, rules, draft.every, self._slots, allowed, parts, self._differencing,
            self._place[0], limit,
        )  # fmt: skip
        trained = frozenset().union(
            *(read_.tables[item.slot] for item in read_.slots if item.features),
            *(self._models.tables(model) for model in draft.warm_models),
        )
        readings = [reading for of_slot in read_.readings.values() for reading in of_slot]
        join = draft.propose.join
        return Proposal(
            draft.ruling, run, draft.propose, draft.digest, draft.views, demands,
            draw_keys(read_, draft.ruling), trained, self._named(readings, draft.ruling),
            line(self._joins.name_and_age(join)[0]) if self._joins and join else "", study,
        )  # fmt: skip

    def _answer_study(self, propose: ms.ProposeStudy, ruling: Ruling) -> ms.Message:
        """Ask the owner about a study. The reply has no verdict if it is approved, or if no run
        over its tables needs an approval.
        """
        if len(propose.study) > MAX_REQUEST_CHARACTERS:
            raise PolicyError(f"a study of {len(propose.study):,} characters")
        study = study_from_json(propose.study)
        try:
            asked, tables = filed_study(study, self._analyst, self._place, ruling)
        except PolicyError as error:
            verdicts: tuple[Verdict, ...] = (Verdict(ms.CLIENT, "", REFUSED, error.message),)
        else:
            approval = ruling.strictest(tables).approval
            verdicts = () if approval == NEVER else self._ask_about_study(asked)
        return ms.Proposed(propose.run, propose.slot, verdicts_to_json(verdicts))

    def _ask_about_study(self, asked: Filed) -> tuple[Verdict, ...]:
        """Return the owner's decision on a study, which is filed if it was not."""
        state, number, because = self._approvals.ask(asked)
        if state == REFUSED:
            rule = f"its owner has refused this study, request {number}: {because}"
            return (Verdict(ms.CLIENT, "", REFUSED, rule),)
        if state == WAITING:
            return (Verdict(ms.CLIENT, "", WAITING, f"this is request {number}"),)
        return ()

    def _state_of_approval(
        self, asked: Filed, approval: str, study: ApprovedStudy | None
    ) -> tuple[Verdict, ...]:
        """Return the owner's decision on this very run, or on the study that it is within."""
        state, number, because = self._approvals.state(self._analyst, asked.digest)
        if state == REFUSED:
            rule = f"its owner has refused this run, request {number}: {because}"
            return (Verdict(ms.CLIENT, "", REFUSED, rule),)
        if state == WAITING and study is None:
            rule = has(f"approval = '{approval}'")
            rule += "" if number is None else f", and this is request {number}"
            rule += f": {'; '.join(asked.outside)}" if asked.outside else ""
            return (Verdict(ms.CLIENT, "", WAITING, rule),)
        return ()

    def _fragments(
        self, propose: ms.Propose | ms.Rehearse, ruling: Ruling
    ) -> tuple[Mapping[Table, str], Read]:
        slots = specifications_from_json(propose.specification)
        if any(item.draw_columns is not None or item.marked for item in slots):
            raise PolicyError("a specification that says what a party finds out itself")
        if any(item.merging is not None for item in slots):
            raise PolicyError(
                "its owner has made training policies, and these are not built for aggregates over "
                "several databases, which leave for the party's other databases"
            )
        if len(propose.fragments) > MAX_FRAGMENTS:
            raise PolicyError(f"{len(propose.fragments)} fragments; {MAX_FRAGMENTS} are taken")
        tables: dict[int, frozenset[Table]] = {}
        readings: dict[int, tuple[SelectReading, ...]] = {}
        with sql.on_demand(self._con) as cursor:
            start = 0
            for item in slots:
                texts = propose.fragments[start : start + len(item.fragments)]
                start += len(item.fragments)
                read_ = [self._reader.check(cursor, item, text, ruling) for text in texts]
                tables[item.slot] = frozenset().union(*(reading.tables for reading in read_))
                readings[item.slot] = tuple(read_)
        every = frozenset().union(*tables.values())
        # as it is now, which has just been read
        views = {table: ruling.of(table)[0].definition for table in every}
        return views, Read(slots, tables, readings)

    def _take_proposal(self, request: ms.Prepare, ruling: Ruling) -> Proposal:
        """Take the proposal of the run that begins. Raise PolicyError unless the run is as it was
        proposed, and the owner has changed nothing since.
        """
        proposal = self._proposals.pop(request.run, None)
        if proposal is None:
            raise PolicyError("a run is to be proposed before it begins")
        proposed = proposal.of
        if (request.specification, request.fragments) != (
            proposed.specification, proposed.fragments,
        ):  # fmt: skip
            raise PolicyError("the run that begins is another one than was proposed")
        if request.join != proposed.join:
            raise PolicyError("the run that begins is over another join than was proposed")
        if request.join:
            self._check_join(proposal, request.join)
        with self._catalog_and_records() as (catalog, records):
            if self._models.is_recorded(request.run, records):
                raise PolicyError(TWICE)
            same = definitions_of(catalog, proposal.views) == proposal.views
        if ruling != proposal.ruling or not same:
            raise PolicyError(
                "its owner has changed what is granted since the run was proposed",
                hint="run the statement again",
            )
        return proposal

    def _begin_run(self, request: ms.Prepare, answer: Serve, ruling: Ruling) -> ms.Message:
        """Check what a snapshot alone can show, reserve the budget, and begin the run."""
        proposal = self._take_proposal(request, ruling)
        run = proposal.run
        self._seen.add(request.run)
        self._models.begin(request.run, proposal.trained)
        if run.every.hours is not None and not within(run.every.hours, dt.datetime.now()):
            raise refusal(f"hours = '{run.every.hours}'")
        if len(self._runs) >= run.every.open_runs:
            raise refusal(f"open_runs = {run.every.open_runs}")
        check_keys(self._con, proposal.keys)
        slots = specifications_from_json(request.specification)
        if request.join:
            pairs = zip(slots, request.kept.tolist(), strict=True)
            run.keeps([item.slot for item, kept in pairs if kept])
        start = 0
        try:
            if run.every.runs_per_day is not None:
                self._governance.begin(
                    request.run, self._analyst, proposal.digest, run.every.runs_per_day
                )
            if self._trial is not None:
                tried = Tried(self._place, tuple(request.fragments), proposal.columns, run=True)
                self._trial.check(self._con, tried, run.every)
            self._count_copies(request, run)
            reply = self._bound(lambda: answer(prepared_request(self._con, request, run.parts)))
            assert isinstance(reply, ms.Prepared)
            # whether a table has changed would tell of values, also of those that are not granted
            reply = replace(reply, changed=np.full_like(reply.changed, ms.NOT_KNOWN))
            # of the rows as they are now; nothing has left
            if proposal.asked:
                run.reserved = self._reserved(request.run, proposal)
            # last, because a run that does not begin leaves the approval unused
            if proposal.study is not None:
                self._approvals.use_study(proposal.study.number, request.run, proposal.digest)
            elif run.every.approval != NEVER:
                self._approvals.use(self._analyst, proposal.digest, run.every.approval)
            for item in specifications_from_json(request.specification):
                counted = reply.rows[start : start + len(item.fragments)]
                start += len(item.fragments)
                run.prepared(request.run, item.slot, int(counted.sum()))
        except BaseException:
            self._end_run(request.run)
            if run.reserved:
                self._ledger.settle(run.reserved, ())
            raise
        self._runs.begin(request.run, run)
        return reply

    def _count_copies(self, request: ms.Prepare, run: GovernedRun) -> None:
        """Count, for rules on rows and cells, the copies of a row that its fragments make, and
        check sums and means that stand in many rows.
        """
        start = 0
        with ExitStack() as stack:

            @cache
            def cursor() -> sql.Connection:
                if request.join and self._joins is not None:
                    return self._joins.cursor(request.join)  # sees tables as they were
                return stack.enter_context(self._cursor())

            for item in specifications_from_json(request.specification):
                texts = request.fragments[start : start + len(item.fragments)]
                start += len(item.fragments)
                run.count_copies(item.slot, texts, cursor)

    @contextmanager
    def _catalog_and_records(self) -> Iterator[tuple[sql.Connection, sql.Connection]]:
        """Yield a cursor for the database of the tables, and one for the records, which may be the
        same.
        """
        with ExitStack() as stack:
            catalog = stack.enter_context(closing(sql.system_cursor(self._con)))
            if self._records.con is self._con:
                yield catalog, catalog
            else:
                yield catalog, stack.enter_context(closing(self._records.cursor()))

    def _reserved(self, run: str, proposal: Proposal) -> tuple[int, ...]:
        """Return the numbers of the run's entries in the ledger."""
        drawn: dict[int, Drawn] = {}
        for demand in proposal.asked:
            if any(entry.identity for entry in demand.entries) and demand.slot not in drawn:
                parts = proposal.run.parts[demand.slot]
                of_tables = zip(parts.tables.values(), parts.draw_columns or (), strict=True)
                known = all(key for table, key in of_tables if table is not None)
                drawn[demand.slot] = Drawn(*self._slots.drawn(run, demand.slot), known_again=known)
        return self._ledger.reserve(run, self._analyst, proposal.asked, drawn)

    # -- names ------------------------------------------------------------------------------------

    def _bound(self, work: Callable[[], T]) -> T:
        """Bind names. DuckDB's errors about them may disclose names that are not granted, so they
        are replaced.
        """
        try:
            return work()
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            raise Error(
                "its database cannot bind what it was asked, though all of it is granted: an "
                "expression does not fit the types of its columns"
            ) from error


def _check_known(reading: SelectReading, ruling: Ruling) -> None:
    """Raise PolicyError for a column that is not granted for anything. One that the query names
    was refused when it was read.
    """
    every = {c for output in reading.outputs for c in output.reads}
    for column in sorted({*every, *reading.filters, *reading.links}):
        if not ruling.may_any(column):
            raise unnamed(column.table)


_ASKED = (
    *(ms.ListTables, ms.Describe, ms.Propose, ms.Prepare, ms.SendBlock),
    *(ms.OpenJoin, ms.SendJoinState, ms.ProposeStudy),
)
"""Requests for which grants are read anew."""


def _names(tables: Iterable[Table]) -> tuple[str, ...]:
    return tuple(sorted(".".join(table[1:]) for table in tables))


def _check_length(request: ms.Propose | ms.Rehearse) -> None:
    if len(request.request) > MAX_REQUEST_CHARACTERS:
        raise PolicyError(
            f"a request of {len(request.request):,} characters; "
            f"{MAX_REQUEST_CHARACTERS:,} are taken"
        )


def _about(rows: int | None) -> int | None:
    """Return the number to one digit, which is enough to choose an engine."""
    return None if rows is None else int(float(f"{rows:.0e}"))
