"""Joins that last, as the coordinator knows them: the keys that were sent, and the joined rows."""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from sqlfl.base.arrays import Array
from sqlfl.contract.joins import JoinUse, rows_of
from sqlfl.contract.schema import Address, Client
from sqlfl.coordinator.join.factorised import Factorised
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.row_mapping import RowMapping, StoredMapping
from sqlfl.messages import CHANGED, NOT_KNOWN, JoinKeys, Labels
from sqlfl.planner.federated.plan import FederatedPlan, evaluated

MAX_MAPPINGS = 4
MAX_BYTES = 1 << 30
"""Maximum bytes of one mapping and its codes that are kept; larger ones are made again."""


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of one slot at one client."""

    fragments: tuple[int, ...]
    """Number of rows of each fragment."""
    keys: JoinKeys | None
    """None for a slot without keys."""


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """Rows of each slot that occur in the join, and the joined rows of these."""

    ids: Mapping[int, Array]
    """uint32 (active rows,), ascending."""
    often: Mapping[int, Array]
    """uint32 (active rows,): joined rows of each."""
    rows: RowMapping
    """Mapping of the active rows."""
    unjoined: int
    """Rows of the target's table with a target but no partner in the join."""


@dataclass(frozen=True, eq=False)
class KeptMapping:
    codes: Mapping[int, SlotCodes]
    rows: RowMapping
    active: ActiveRows | None = None
    """None where statements are to find them in `rows`, which they may change."""


@dataclass(eq=False)
class LastingJoin:
    """A join that lasts. A statement over it holds `lock` while it runs: the numbers of rows at the
    clients and here must belong together.
    """

    id: str
    name: str
    sql: str
    """The query."""
    clients: tuple[Client, ...]
    nonces: Array
    """uint8 (clients, 16): the clients' random numbers, in order."""
    seconds: int
    """Least time limit of the clients' owners; 0 without one."""
    made: dt.datetime
    """UTC"""
    uses: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    """Client -> whether a table has changed since the join was made, as it said last."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _rows: dict[tuple[Address, Hashable], KeptRows] = field(default_factory=dict, repr=False)
    _mappings: OrderedDict[Hashable, KeptMapping] = field(default_factory=OrderedDict, repr=False)
    _labels: OrderedDict[Hashable, dict[Address, Labels]] = field(
        default_factory=OrderedDict, repr=False
    )

    @property
    def made_words(self) -> str:
        return f"{self.made:%Y-%m-%d %H:%M:%S} UTC"

    def use(self, plan: FederatedPlan) -> JoinUse:
        """Return the use of the join by a plan of a statement over it."""
        rows = _slots(plan)
        kept = frozenset(
            slot.index
            for slot in plan.ucq.slots
            if all((a, rows[a]) in self._rows for a in _addresses(slot.clients, slot.index))
        )
        labels = _may_keep_labels(plan) and _joined(plan) in self._labels
        return JoinUse(self.id, self.name, self.made_words, kept, labels)

    # -- rows -------------------------------------------------------------------------------------

    def is_known(self, plan: FederatedPlan, address: Address, fragments: tuple[int, ...]) -> bool:
        """Return whether the client has as many rows of each fragment as before."""
        return self._rows[address, _slots(plan)[address]].fragments == fragments

    def keys(self, plan: FederatedPlan, kept: frozenset[int]) -> dict[Address, JoinKeys]:
        """Return the keys of these slots, which were sent for earlier statements."""
        rows = _slots(plan)
        every = {a: self._rows[a, rows[a]].keys for a in rows if a[1] in kept}
        return {address: keys for address, keys in every.items() if keys is not None}

    def remember(
        self,
        plan: FederatedPlan,
        rows: Mapping[Address, tuple[int, ...]],
        keys: Mapping[Address, JoinKeys],
    ) -> None:
        """Remember the rows that the clients have numbered for the plan, and their keys."""
        for address, of in _slots(plan).items():
            self._rows[address, of] = KeptRows(rows[address], keys.get(address))

    # -- the mapping ------------------------------------------------------------------------------

    def mapping(self, plan: FederatedPlan) -> KeptMapping | None:
        """Return the mapping of an earlier statement that joins the same rows. Of its rows, or of
        its active rows, it is a copy.
        """
        kept = self._mappings.get(_joined(plan))
        if kept is None:
            return None
        if kept.active is None or _limited(plan):
            return KeptMapping(kept.codes, deepcopy(kept.rows))
        return replace(kept, active=_copied(kept.active))

    def keep(self, plan: FederatedPlan, codes: Mapping[int, SlotCodes], rows: RowMapping) -> None:
        """Keep copies of the mapping, unless it is large or in files."""
        size = sum(code.bytes for code in codes.values())
        size += 4 * rows.total * len(rows.slots)
        if isinstance(rows, StoredMapping) or size > MAX_BYTES:
            return
        self._mappings[_joined(plan)] = KeptMapping(codes, deepcopy(rows))
        while len(self._mappings) > MAX_MAPPINGS:
            self._mappings.popitem(last=False)

    def keep_active(self, plan: FederatedPlan, active: ActiveRows) -> None:
        """Keep a copy of the active rows of a mapping that is kept, unless the plan limits them."""
        kept = self._mappings.get(_joined(plan))
        if kept is not None and not _limited(plan):
            self._mappings[_joined(plan)] = replace(kept, active=_copied(active))

    # -- targets ----------------------------------------------------------------------------------

    def labels(self, plan: FederatedPlan) -> dict[Address, Labels]:
        """Return copies of the targets that were sent for an earlier statement."""
        return deepcopy(self._labels[_joined(plan)])

    def keep_labels(self, plan: FederatedPlan, labels: Mapping[Address, Labels]) -> None:
        """Keep the targets for statements that join the same rows: where they are in clear, and
        no policy decides who may have them.
        """
        if _may_keep_labels(plan):
            self._labels[_joined(plan)] = dict(labels)
            while len(self._labels) > MAX_MAPPINGS:
                self._labels.popitem(last=False)

    # -- words ------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The changes of tables since the join was made, in words."""
        changed = sorted({c for c, state in self.changed.items() if state == CHANGED})
        unknown = sorted({c for c, state in self.changed.items() if state == NOT_KNOWN})
        if changed:
            return f"changed: {', '.join(changed)}"
        return f"not known: {', '.join(unknown)}" if unknown else "no"

    def used(self) -> tuple[str, ...]:
        """Count a statement that has used the join, and return what its result is to say."""
        self.uses += 1
        changed = sorted({c for c, state in self.changed.items() if state == CHANGED})
        if not changed:
            return ()
        return (
            f"tables of {', '.join(changed)} have changed since join {self.name} was made "
            f"({self.made_words}): the rows are those of then; CREATE OR REPLACE JOIN takes those "
            "of now",
        )


def _limited(plan: FederatedPlan) -> bool:
    """Return True if the plan leaves joined rows out."""
    return plan.privacy is not None and plan.privacy.max_fan_out is not None


def _copied(active: ActiveRows) -> ActiveRows:
    """Return a copy. Statements do not change `Factorised`, but may change arrays of joined
    rows.
    """
    same = isinstance(active.rows, Factorised)
    return active if same else replace(active, rows=deepcopy(active.rows))


def _addresses(clients: tuple[Client, ...], slot: int) -> list[Address]:
    return [(client, slot) for client in clients]


def _slots(plan: FederatedPlan) -> dict[Address, Hashable]:
    """Return what the rows of each slot follow from, at each client."""
    slots: dict[Address, Hashable] = {}
    for client, items in plan.specifications.items():
        for item in items:
            texts = tuple(f.sql for f in evaluated(plan.ucq.slots[item.slot], item))
            slots[client, item.slot] = rows_of(item, texts)
    return slots


def _joined(plan: FederatedPlan) -> Hashable:
    """Return what the joined rows follow from."""
    rows = tuple(_slots(plan).items())
    return plan.mapping_sql, repr(plan.ucq.blocks), plan.ucq.mapped, rows


def _may_keep_labels(plan: FederatedPlan) -> bool:
    clients = {c for slot in plan.ucq.slots if slot.target for c in slot.databases}
    return bool(clients) and plan.privacy is None and not clients & plan.run.governed
