"""Run that a party has allowed to begin: its messages, their numbers, and their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, TypeAlias

import numpy as np

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.contract.request import Request, checkpoint_of
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.copies import Counted, copies
from sqlfl.governance.differencing import JOINED, SLACK, TAKEN, Differencing, MarkedRows
from sqlfl.governance.ledger import FEATURES, LABELS
from sqlfl.governance.masked import in_clear
from sqlfl.governance.names import base_tables
from sqlfl.governance.policy_evaluation import has, refusal
from sqlfl.governance.reach import Means
from sqlfl.governance.scopes import Table
from sqlfl.governance.value_forms import WRITE
from sqlfl.messages.disclosed import BEFORE_ACTIVATION, ROUNDS
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.policies import SECURE_SUM, TrainingPolicy, modes, written_size
from sqlfl.udfs.encoding.cells import OTHERWISE, RowCounts
from sqlfl.udfs.sql import Connection

Serve: TypeAlias = Callable[[ms.Message], ms.Message]
GrantsOfTables: TypeAlias = "Mapping[Table, frozenset[int]]"
"""Numbers of the grants of each table."""
NUMBER = 8
"""Bytes of a number."""
MEASURING = (ms.Activate, ms.Weigh, ms.SetRanges, ms.SetEncoding, ms.Start)
"""Requests from which on noised data of features may leave."""


@dataclass(frozen=True)
class StartFacts:
    """Facts of a slot's training that follow from the configuration of its start."""

    takes: Mapping[str, int]
    """Bytes that it takes, by the option that determines them."""
    passes: int
    """Passes over the rows for one request."""
    tower: bool
    """True if the block is a network."""
    outputs: int
    """Numbers that the block makes of a row."""
    shared: bool
    """True if several clients have the slot, whose gradients are added up at the coordinator."""


@dataclass(frozen=True)
class RoundLimit:
    """Maximum rounds of a run within a study."""

    study: str
    rounds: int


class GuardedJoins(Protocol):
    """A client's joins that last, by their ids."""

    def govern(self, join: str, seconds: float, grants: GrantsOfTables) -> None:
        """End the join after so many seconds, and keep the numbers of the grants of its tables."""

    def grants(self, join: str) -> GrantsOfTables | None:
        """Return these numbers; None if there was no policy when the join was made. Raise Error if
        it is not there any more.
        """

    def close(self, join: str) -> None:
        """End the join."""

    def cursor(self, join: str) -> Connection:
        """Return the cursor on which tables are as they were when the join was made. Raise Error
        if it is not there any more."""

    def name_and_age(self, join: str) -> tuple[str, float]:
        """Return its name, and its age in seconds. Raise Error if it is not there any more."""


class GuardedSlots(Protocol):
    """A client's slots in its runs."""

    def categories(self, run: str, slot: int) -> int:
        """Return the maximum number of categories of a feature of an encoded slot."""

    def govern(
        self, run: str, slot: int, least: int, most: int, ratio: float | None, rows: Array
    ) -> None:
        """Limit cells that TRANSFORM makes of the values of an active slot: rows of each, cells of
        a feature, and columns to rows; None without a limit. rows: (a,), rows of a table that each
        active row stands for."""

    def rare(
        self, run: str, slot: int, counted: RowCounts, computed: Collection[int], least: int
    ) -> tuple[str, str] | None:
        """Return the name of a feature of an encoded slot with a cell of fewer than `least` rows,
        and the reason. computed : places of features that are computed."""

    def limit(self, run: str, slot: int, squared_mu: float, somebodys: Array) -> None:
        """Limit what training of a started slot may release of an active row of a table.
        somebodys : bool, whether an active row is one of a table."""

    def room(self, run: str, slot: int, method: str, configuration: str, most: int) -> StartFacts:
        """Return what a start with this configuration would do, if a block changes `most` times."""

    def memory(self, run: str, slot: int) -> int | None:
        """Return the memory limit of the database in bytes; None without a limit."""

    def taken(self, run: str, slot: int) -> tuple[Array, Array]:
        """Return `Snapshot.taken`."""

    def draws(self, item: SlotSpecification) -> bytes:
        """Return the key from which noise of the slot's labels follows. Raise Error if it cannot be
        kept.
        """

    def drawn(self, run: str, slot: int) -> tuple[Array, Array]:
        """Return the source of the slot's label draws, once it is prepared: uint64 (n,) each, a
        hash of the row, and one of the row and its label.
        """


@dataclass(frozen=True)
class Parts:
    """A slot's fragments, each by its number."""

    tables: Mapping[int, Table | None]
    """Table of each fragment; None for the row of missing partners of a LEFT JOIN."""
    least: int | None = None
    """Minimum number of rows by which runs over them must differ; None if rows are not
    recognised.
    """
    keyed: bool = False
    """True if rows have ids once their join keys are requested."""
    made: int = 0
    """Numbers that TRANSFORM makes of a row once it is active."""
    draw_columns: tuple[tuple[str, ...], ...] | None = None
    """Columns from which draws of a row follow, for each fragment, if rows are drawn."""
    computed: frozenset[int] = frozenset()
    """Places of features that are not one column."""
    shared: bool = False
    """True if several clients have the slot."""
    reads: tuple[frozenset[Table], ...] = ()
    """Tables of the rows of each fragment."""
    copied: frozenset[int] = frozenset()
    """Fragments, by their place, in which a row of a table may stand more than once."""
    values: int = 0
    """Number of the first columns of a fragment, which are features, targets and weights."""


class GovernedRun:
    """Allowed run. The checks of its proposal apply to all later messages.

    rules, every : for each slot the strictest of its tables' policies, and that of all. allowed :
    μ² that training may release of a row of a slot under an account. database : the client's own,
    of the connection's databases. limit : of its study; None without one. left : kinds of releases,
    in the ledger's words, of which something has left.
    """

    def __init__(
        self,
        request: Request,
        rules: Mapping[int, TrainingPolicy],
        every: TrainingPolicy,
        slots: GuardedSlots,
        allowed: Mapping[int, float],
        parts: Mapping[int, Parts],
        differencing: Differencing,
        database: str,
        limit: RoundLimit | None = None,
    ) -> None:
        self.rules, self.every, self.parts = rules, every, parts
        self.request, self._slots, self._allowed = request, slots, allowed
        self._differencing, self._database = differencing, database
        self._limit = limit
        self._rounds: Counter[int] = Counter()
        self.left: set[str] = set()
        self.reserved: tuple[int, ...] = ()
        """Numbers of its entries in the ledger."""
        self.heard = 0.0
        """Time of the last answer, by the clock of `time.monotonic`."""
        self._most = request.often()
        self._asked: Counter[tuple[int, str]] = Counter()
        self._of_slot: Counter[int] = Counter()
        self._taken: dict[int, _TakenRows] = {}
        self._active: dict[int, Array] = {}
        self._counted: dict[int, RowCounts] = {}
        """Rows for which the active rows stand, also once equal rows are merged."""
        self._barred: set[int] = set()
        """Slots whose start has come, and has not passed the checks."""
        self._copies: dict[int, Counted] = {}
        """Copies of each row of a table in a slot."""
        self._means = Means()
        self._kept: frozenset[int] = frozenset()
        """Slots whose rows a join keeps, with ids and keys of an earlier run."""

    def keeps(self, slots: Collection[int]) -> None:
        """Take the rows of these slots as those of earlier runs over its join."""
        self._kept = frozenset(slots)

    def count_copies(
        self, slot: int, texts: Sequence[str], cursor: Callable[[], Connection]
    ) -> None:
        """Note how many rows of the slot stem from each row of a table, or have values that follow
        from it, by the texts of its fragments. Raise PolicyError where that cannot be counted.
        """
        parts, least = self.parts[slot], self.rules[slot].min_cell
        several = sum(map(bool, parts.reads)) > 1
        of_table: dict[str, Counted] = {}
        for place, (text, tables) in enumerate(zip(texts, parts.reads, strict=True)):
            part = Counted()
            if place in parts.copied:
                part = copies(cursor(), text, least, parts.values, self._means)
            # of a table and a view of it, too
            named = {".".join(table) for table in tables}
            bases = named.union(*(base_tables(cursor(), t) for t in tables)) if several else named
            for base in bases:
                of_table[base] = of_table[base] + part if base in of_table else part
        self._copies[slot] = reduce(Counted.__or__, of_table.values(), Counted())

    def _least(self, slot: int, least: int) -> int:
        """Return the minimum rows of the query whose values follow from so many of a table."""
        return self._copies.get(slot, Counted()).values.rows_of(least) if least > 1 else least

    def _least_rows(self, slot: int, least: int) -> int:
        """Return the minimum rows of the query that stem from so many rows of a table."""
        return self._copies.get(slot, Counted()).rows.rows_of(least) if least > 1 else least

    def _of_copies(self, slot: int) -> str:
        counted = self._copies.get(slot, Counted())
        if counted.rows.most > 1:
            return ", and one row of a table is in several of the query"
        several = counted.values.most > 1
        return ", and one row of a table has a part in the values of several" if several else ""

    def prepared(self, run: str, slot: int, size: int) -> None:
        """Check the slot's snapshot of `size` rows. Raise PolicyError if they are few, or differ by
        few rows from those of another run.
        """
        taken = self._take(slot, size, *self._slots.taken(run, slot))
        rules, rows = self.rules[slot], int(taken.somebodys.sum())
        if rows < self._least_rows(slot, rules.min_rows):
            raise refusal(f"min_rows = {rules.min_rows}{self._of_copies(slot)}")
        several = self._copies.get(slot, Counted()).values.most > 1
        if several and rows < self._least(slot, rules.min_cell):
            said = f"min_cell = {rules.min_cell}, and many rows may have a value of few"
            raise refusal(f"{said}{self._of_copies(slot)}", hint=WRITE)
        self._differ(slot, TAKEN, np.arange(size), np.ones(size))

    def _take(self, slot: int, size: int, fragments: Array, marks: Array) -> _TakenRows:
        """Return the rows in their present numbering. In a slot with keys, it is final once these
        have left.
        """
        parts = self.parts[slot]
        if not len(fragments):
            fragments = np.full(size, next(iter(parts.tables)), np.uint16)
        nobodys = [number for number, table in parts.tables.items() if table is None]
        found = self._taken[slot] = _TakenRows(fragments, marks, ~np.isin(fragments, nobodys))
        return found

    def serve(self, request: ms.Message, answer: Serve) -> ms.Message:
        rules = self.rules.get(request.slot, self.every)
        self._check_number(request, rules)
        self._check_request(request, rules)
        if request.slot in self._barred:
            raise PolicyError(f"{request.kind} after a start that was refused")
        if isinstance(request, ms.Start):
            # the reason of a refusal shows only once there is something to train
            self._barred.add(request.slot)
        if isinstance(request, ms.SendSkew | ms.SendProfile):
            # of at least as many rows as the policy says, whoever asks for fewer
            fewest = self._least(request.slot, rules.min_cell)
            request = replace(request, least=max(request.least, fewest))
        reply = answer(request)
        self._check_reply(request, reply, rules)
        return reply

    def _check_request(self, request: ms.Message, rules: TrainingPolicy) -> None:
        if (
            request.slot >= 0
            and not isinstance(request, BEFORE_ACTIVATION)
            and request.slot not in self._active
        ):
            raise PolicyError(f"{request.kind} before the rows that are joined are told")
        match request:
            case ms.Activate():
                self._activate(request, rules)
            case ms.Weigh():
                active = self._active[request.slot]
                self._check_counts(request.slot, active, request.counts, rules)
                if len(request.samples):
                    # fits of TUNE encode features by them, and SKEW compares with means over them
                    self._check_counts(request.slot, active, request.samples, rules)
            case ms.Write():
                self._check_into(request)
            case ms.SendEqualRows():
                self._check_cells(request, rules)
            case ms.SendProfile() | ms.SendSkew():
                if isinstance(request, ms.SendExplained):
                    self._check_targets(request, rules)
                if self.parts[request.slot].computed:
                    # a mean of values that are 0 but for one row is that row's
                    self._check_rare(request, rules)
            case ms.Start():
                self._check_start(request, rules)
            case ms.Save():
                number = self._asked[request.slot, ms.Save.kind]
                if request.model not in (request.run, checkpoint_of(request.run, number)):
                    raise _beyond("a block of another run")

    def _activate(self, request: ms.Activate, rules: TrainingPolicy) -> None:
        """Check the active rows, and note them."""
        sent = self._asked[request.slot, ms.SendKeys.kind] or request.slot in self._kept
        if self.parts[request.slot].keyed and not sent:
            raise PolicyError("rows are told active before their join keys are asked for")
        self._check_active(request, rules)
        if self.parts[request.slot].made:
            made = NUMBER * len(request.rows) * self.parts[request.slot].made
            self._check_room(request.run, request.slot, {"TRANSFORM": made}, rules)
        self._active[request.slot] = request.rows
        somebodys = self._taken[request.slot].somebodys[request.rows]
        counted = self._counted[request.slot] = RowCounts.of(somebodys, request.counts)
        fewest = self._least(request.slot, rules.min_cell)
        limits = fewest, rules.max_categories, rules.max_parameter_ratio
        # before the answer, which may tell of cells of values
        self._slots.govern(request.run, request.slot, *limits, counted.own)

    def _check_reply(self, request: ms.Message, reply: ms.Message, rules: TrainingPolicy) -> None:
        """Check the reply before it leaves, and note what it discloses."""
        if SECURE_SUM in modes(rules.predictions) and in_clear(request, reply):
            raise refusal("predictions = 'secure_sum'")
        if isinstance(request, MEASURING):
            if not isinstance(reply, ms.Ready):
                self._check_rare(request, rules)  # statistics of features leave before the start
            self.left.add(FEATURES)
        if isinstance(reply, ms.JoinKeys):
            size = len(self._taken[request.slot].somebodys)
            _, marks = self._slots.taken(request.run, request.slot)
            self._take(request.slot, size, reply.fragment, marks)
        if isinstance(request, ms.Start):
            assert isinstance(reply, ms.Ready)
            self._check_encoded(request, reply.width, rules)
            if request.slot in self._allowed:
                somebodys = self._counted[request.slot].own > 0
                allowed = self._allowed[request.slot]
                self._slots.limit(request.run, request.slot, allowed, somebodys)
            self._barred.discard(request.slot)
        if isinstance(reply, ms.EqualRows) and len(reply.classes):
            counted = self._counted[request.slot]
            self._counted[request.slot] = counted.merged(reply.classes)
        if isinstance(reply, ms.Labels):
            self._check_classes(request.slot, reply, rules)
            self.left.add(LABELS)

    def check_peers(self, request: ms.SetPeers) -> None:
        """Refuse a sum over one table: each of its rows has one prediction, so the sum hides
        none.
        """
        rules = self.rules.get(request.slot, self.every)
        if SECURE_SUM in modes(rules.predictions) and set(request.slots.tolist()) == {request.slot}:
            raise refusal("predictions = 'secure_sum', over several tables")

    def _check_number(self, request: ms.Message, rules: TrainingPolicy) -> None:
        key = (request.slot, request.kind)
        if key not in self._most:
            raise _beyond(f"message {request.kind} of slot {request.slot}")
        self._asked[key] += 1
        if self._asked[key] > self._most[key]:
            raise _beyond(f"message {request.kind} more than {self._most[key]:g} times")
        if self._limit is not None and request.kind in ROUNDS:
            self._rounds[request.slot] += 1
            if self._rounds[request.slot] > self._limit.rounds:
                raise PolicyError(
                    f"study {self._limit.study} allows at most {self._limit.rounds:,} rounds in a "
                    "run",
                    hint="ask for fewer epochs; or USE NO STUDY, and the run asks its owner",
                )
        self._of_slot[request.slot] += 1
        if self._of_slot[request.slot] > rules.rounds:
            raise refusal(f"rounds = {rules.rounds}")

    def _check_active(self, request: ms.Activate, rules: TrainingPolicy) -> None:
        if int(request.counts.sum(dtype=np.int64)) > request.total:
            raise PolicyError("rows that are told active count more than all that are joined")
        rows, size = request.rows, len(self._taken[request.slot].somebodys)
        if len(rows) and (rows[-1] >= size or np.any(rows[1:] <= rows[:-1])):
            raise PolicyError(f"rows that are told active are not ascending ones below {size}")
        self._check_counts(request.slot, rows, request.counts, rules)
        if rules.max_fan_out is not None and (request.counts > rules.max_fan_out).any():
            raise refusal(f"max_fan_out = {rules.max_fan_out}")

    def _check_counts(self, slot: int, rows: Array, counts: Array, rules: TrainingPolicy) -> None:
        """Raise PolicyError if few rows have most of the weight: a sum would disclose them."""
        self._check_even(slot, rows, counts, rules)
        self._differ(slot, JOINED, rows, counts)

    def _check_even(self, slot: int, rows: Array, counts: Array, rules: TrainingPolicy) -> None:
        if len(counts) != len(rows):
            raise PolicyError(f"{len(counts)} numbers of how much {len(rows)} rows count")
        own = np.asarray(counts, np.float64)[self._taken[slot].somebodys[rows]]
        most = own.max(initial=0.0)
        shares = own / most if most else own
        effective = shares.sum() ** 2 / np.square(shares).sum() if most else 0.0
        if effective < self._least_rows(slot, rules.min_rows) * (1.0 - SLACK):
            said = f"min_rows = {rules.min_rows}, of rows that are joined"
            raise refusal(said + self._of_copies(slot))
        if shares.sum() < self._least(slot, rules.min_cell) * (1.0 - SLACK):
            raise refusal(f"min_cell = {rules.min_cell}, of which one row counts for more")

    def _check_targets(self, request: ms.SendExplained, rules: TrainingPolicy) -> None:
        """Refuse targets that lean on few rows: what explains them are values of these."""
        least = self._least(request.slot, rules.min_cell)
        own = self._taken[request.slot].somebodys[self._active[request.slot]]
        if least <= 1 or len(request.targets) != len(own):
            return  # of another length it is no message of these rows
        counts = self._counted[request.slot].own[own].astype(np.float64)
        targets = request.targets[own].astype(np.float64)
        means = targets.sum(axis=0) / max(float(counts.sum()), 1.0)
        squares = np.sort(np.square(targets - counts[:, None] * means), axis=0)[::-1]
        few = squares[: least - 1].sum(axis=0) > squares.sum(axis=0) * (least - 0.5) / least
        if few.any():
            raise refusal(f"min_cell = {rules.min_cell}, of a target that few rows decide")

    def _differ(self, slot: int, family: str, rows: Array, counts: Array) -> None:
        least, taken = self.parts[slot].least, self._taken[slot]
        if least is None:
            return
        of = taken.fragments[rows]
        for table in sorted({table for table in self.parts[slot].tables.values() if table}):
            numbers = [n for n, own in self.parts[slot].tables.items() if own == table]
            chosen = np.isin(of, numbers)
            own = MarkedRows.of(taken.marks[rows[chosen]], counts[chosen])
            self._differencing.see(family, table, own, least)

    def _check_start(self, request: ms.Start, rules: TrainingPolicy) -> None:
        """Check a start before anything is made by it."""
        if request.method != self.request.algorithm:
            raise _beyond(f"training by {request.method}")
        run, slot = request.run, request.slot
        told = sum(count for (own, _), count in self._most.items() if own == slot)
        most = int(min(told, rules.rounds))
        facts = self._slots.room(run, slot, request.method, request.configuration, most)
        kind = kind_of(self.request.kind)
        several = kind.towers or kind.target == ANY_CLASSES
        if facts.tower is not kind.towers or (facts.outputs != 1 and not several):
            raise _beyond(f"training of another block than one of {kind.name}")
        if facts.passes > rules.rounds:
            raise refusal(f"rounds = {rules.rounds}, of passes for one request too")
        if facts.shared is not self.parts[slot].shared:
            # one client alone would send gradients, in place of predictions
            raise _beyond("training of a slot with other clients")
        self._check_room(run, slot, facts.takes, rules)

    def _check_room(
        self, run: str, slot: int, takes: Mapping[str, int], rules: TrainingPolicy
    ) -> None:
        limit = self._slots.memory(run, slot) if rules.memory is None else rules.memory
        if limit is None or sum(takes.values()) <= limit:
            return
        said = f"its database has a memory_limit of {limit / 1e9:,.3g} GB"
        if rules.memory is not None:
            said = has(f"memory = '{written_size(limit)}'")
        by = max(takes, key=lambda name: takes[name])
        asked = f"{sum(takes.values()) / 1e9:,.3g} GB are asked for, most of it by {by}"
        raise PolicyError(f"{said}, and {asked}", hint="ask for less, or ask its owner")

    def _check_encoded(self, request: ms.Start, width: int, rules: TrainingPolicy) -> None:
        self._check_cells(request, rules)
        ratio = rules.max_parameter_ratio
        if ratio is not None and width > ratio * self._joined(request.slot):
            raise refusal(f"max_parameter_ratio = {ratio:g}")

    def _check_cells(self, request: ms.Message, rules: TrainingPolicy) -> None:
        """Refuse to disclose anything about encoded rows that have a rare value."""
        largest = self._slots.categories(request.run, request.slot)
        self._check_rare(request, rules)
        if largest > rules.max_categories:
            raise refusal(f"max_categories = {rules.max_categories}")

    def _check_rare(self, request: ms.Message, rules: TrainingPolicy) -> None:
        counted, computed = self._counted[request.slot], self.parts[request.slot].computed
        fewest = self._least(request.slot, rules.min_cell)
        rare = self._slots.rare(request.run, request.slot, counted, computed, fewest)
        if rare is not None:
            name, why = rare
            rule = f"min_cell = {rules.min_cell}, of values of features: of {name}, {why}"
            raise refusal(rule + self._of_copies(request.slot), hint=OTHERWISE[why])

    def _check_classes(self, slot: int, reply: ms.Labels, rules: TrainingPolicy) -> None:
        if not reply.classes:
            return
        fewest = self._least(slot, rules.min_cell)
        why = self._counted[slot].rare(reply.codes.astype(np.int64), fewest)
        if why is not None:
            rule = f"min_cell = {rules.min_cell}, of classes of the target: {why}"
            hint = "join rare classes by CASE; or leave them out by WHERE"
            raise refusal(rule + self._of_copies(slot), hint=hint)

    def _joined(self, slot: int) -> int:
        """Return the number of rows, without the one that is nobody's."""
        return int(self._taken[slot].somebodys[self._active[slot]].sum())

    def _check_into(self, request: ms.Write) -> None:
        database, schema, _ = request.table if len(request.table) == 3 else ("", "", "")
        own = database.lower() == self._database.lower()
        if self.every.into is None or not own or schema.lower() != self.every.into.lower():
            told = "none" if self.every.into is None else f"'{self.every.into}'"
            raise refusal(f"into = {told}")


@dataclass(frozen=True, eq=False)
class _TakenRows:
    """All rows of a slot's snapshot by their ids."""

    fragments: Array
    marks: Array
    """Fingerprints; none if rows are not recognised."""
    somebodys: Array
    """True for rows of a table."""


def _beyond(what: str) -> PolicyError:
    return PolicyError(
        f"{what} is not of the run that was proposed",
        hint="a run is what its proposal says; another one is proposed anew",
    )
