"""Limits of a join: its size, before it is made, and how often a row of a table occurs in it.

Errors of the size name its cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.fragment_columns import KEY
from sqlfl.coordinator.join.factorised import Factorised, is_product
from sqlfl.coordinator.join.join_size import JoinSize, SlotCodes
from sqlfl.coordinator.join.partners import Partners, partners
from sqlfl.coordinator.join.row_mapping import RowMapping, StoredMapping
from sqlfl.messages import JoinKeys
from sqlfl.models.native import library
from sqlfl.options.training import MAX_JOINED_ROWS, MAX_TABLE_ROWS
from sqlfl.planner.federated.engines import bytes_of, readable
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import TRAIN, FederatedPlan
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.ucq import Slot, Ucq, as_written
from sqlfl.privacy.samplers import Entropy, system

PER_SLOT, FIXED = 8, 48
"""Bytes of memory for each joined row: its row in each table, the same again while equal rows are
merged, the targets, and the values that metrics sort.
"""
MERGING, WEIGHING = 16, 40
"""Further bytes where equal rows are merged, and where rows have weights."""
OF_TABLE, PER_KEY, PER_IMAGE = 72, 12, 400
"""Bytes where joined rows are not written down: for each row of a slot, for each of its keys, and
for each output of a row with features.

They hold the rows that take part and how often, codes of keys and their groups, scores, sums, and
the last iterations of lbfgs.
"""
OF_FACTS, PER_FACTS_KEY = 14, 8
"""Bytes in place of the first two, if each row of the table stands for at most one joined row."""
PER_VALUE = 64
"""Bytes for each different value of a client's key while all keys are numbered."""
MIN_DATABASE_BYTES = 1 << 25
"""Bytes with which DuckDB can still join and sort, and put the rest on disk."""
MANY = 1 << 25
"""Joined rows from which they are not written down, if possible. Fewer rows are read faster when
written down.
"""
PRODUCTS, FOLD = 1 << 20, 4
"""Minimum number of joined rows, and minimum ratio to the rows of all tables, from which products
of groups are not written down. The limit is low because the compiled library reads them, and
writing them down would take longer.
"""
SCORING_FIXED, SCORING_PER_SLOT, SCORING_PER_OUTPUT = 24, 12, 40
OF_MACHINE = 0.8
"""Share of the machine's memory to use without memory_limit. It includes DuckDB's memory."""
SHOWN = 3


def check_join(
    plan: FederatedPlan,
    slots: Mapping[int, SlotCodes],
    size: JoinSize,
    count: Callable[[int], int],
    tell: Callable[[str], None],
    *,
    found: Factorised | None = None,
    stored: bool = False,
) -> RowStorage:
    """Raise ModelError if the join has more rows than the statement allows, or than fit memory.

    found: the joined rows as a mapping that finds them again in each pass. stored: True if they can
    be read from files.

    The size counted from the codes may be only a bound. If the bound is too large, `count(n)` makes
    up to n joined rows to count them. `tell` reports progress.
    """
    most = plan.options.max_joined_rows
    rows, said = int(size.rows), ""
    if not size.exact:
        tell(f"counting joined rows, {rows:,} at most")
        fitting, said = min(most, _memory(plan) // row_bytes(plan, 1)), "at most "
        if rows > fitting:
            enough = most if stored and _sums_only(plan) else fitting
            rows = count(enough + 1)
            said = "at least " if rows > enough else ""
    tell(f"joining keys: {said}{rows:,} rows")
    written = _in_arrays(plan, rows, found=found is not None, stored=stored)
    if rows > most:
        raise _too_large(plan, slots, rows, most, size.exact, written=written)
    if written:
        check_memory(plan, rows, 1, said)
    else:
        check_tables(plan, {slot: len(codes.fragment) for slot, codes in slots.items()}, 1, found)
    return RowStorage(rows, written)


def check_keys(plan: FederatedPlan, replies: Iterable[JoinKeys]) -> None:
    """Raise ModelError if the keys of all rows would not fit memory_limit, or the machine, while
    they are numbered.
    """
    keys = [key for reply in replies for key in zip(reply.tags, reply.codes, strict=True)]
    values = sum(len(tags) for tags, _ in keys)
    need = PER_VALUE * values + PER_KEY * sum(len(codes) for _, codes in keys)
    _check_bytes(plan, need, f"the keys of the join have {values:,} different values")


@dataclass(frozen=True)
class RowStorage:
    """Storage of the joined rows."""

    rows: int
    """Number of joined rows, or a bound."""
    written: bool
    """True for arrays with an entry for each joined row."""


def is_written(plan: FederatedPlan, rows: RowMapping) -> bool:
    """Return True if arrays with an entry for each joined row are made: if rows are few, or if a
    later step needs them.
    """
    found, stored = isinstance(rows, Factorised), isinstance(rows, StoredMapping)
    if isinstance(rows, Factorised) and _sums_only(plan) and _quicker_found(rows):
        return False
    return not stored and _in_arrays(plan, rows.total, found=found, stored=stored)


def _quicker_found(rows: Factorised) -> bool:
    several = rows.total >= max(PRODUCTS, FOLD * sum(rows.sizes))
    return several and library() is not None and all(map(is_product, rows.trees))


def _in_arrays(plan: FederatedPlan, rows: int, *, found: bool, stored: bool) -> bool:
    if not (found or stored) or not _sums_only(plan):
        return True
    if found and rows >= MANY:
        return False
    return rows * row_bytes(plan, 1) <= _memory(plan)


def _sums_only(plan: FederatedPlan) -> bool:
    """Return True if the later steps need only sums over the rows of slots."""
    if plan.purpose != TRAIN or plan.weighted or plan.ucq.unit is not None:
        return False
    return spec_of(plan.algorithm).sums_only(plan.training)


def check_tables(
    plan: FederatedPlan, rows: Mapping[int, int], outputs: int, found: Factorised | None
) -> None:
    """Raise as `check_memory` does, by the `rows` of every slot, if joined rows are not written
    down. found: the mapping that finds them again in each pass.
    """
    facts = None if found is None else found.alone
    need = 0
    for slot in plan.ucq.slots:
        each = PER_IMAGE * outputs * bool(slot.features)
        if slot.index == facts:
            each += OF_FACTS + PER_FACTS_KEY * len(slot.keys)
        else:
            each += (OF_TABLE + PER_KEY * len(slot.keys)) * len(plan.ucq.blocks)
        need += each * rows.get(slot.index, 0)
    _check_bytes(plan, need, f"the tables of the join have {sum(rows.values()):,} rows")


def check_memory(plan: FederatedPlan, rows: int, outputs: int, said: str = "") -> None:
    """Raise ModelError if the joined rows would not fit memory_limit, or the machine.

    outputs : scores of a joined row; with a head, the values of its sum of towers. said : 'at least
    ' if rows were not counted to the end.
    """
    if rows > MAX_TABLE_ROWS:
        raise ModelError(
            f"the join has {said}{rows:,} rows, and {MAX_TABLE_ROWS:,} is the most that can be "
            "written down",
            hint="train by lbfgs, without weights or validation, or aggregate the larger table by "
            "the join key",
        )
    _check_bytes(plan, rows * row_bytes(plan, outputs), f"the join has {said}{rows:,} rows")


def _check_bytes(plan: FederatedPlan, need: int, what_is: str) -> None:
    limit = _memory(plan)
    if need <= limit:
        return
    given = plan.options.memory_limit is not None
    what = "memory_limit" if given else f"{OF_MACHINE:.0%} of this machine's memory"
    raise ModelError(
        f"{what_is}, which take about {readable(need)} of the coordinator's memory; {what} is "
        f"{readable(limit)}",
        hint="join fewer rows: aggregate the larger table by the join key, filter, or join by a "
        "further key; or raise memory_limit",
    )


def _memory(plan: FederatedPlan) -> int:
    """Return the bytes that the coordinator may use."""
    return bytes_of(plan.options.memory_limit) or int(OF_MACHINE * machine_memory())


def database_memory(plan: FederatedPlan, slots: Mapping[int, SlotCodes], place: RowStorage) -> int:
    """Return the bytes that DuckDB may use for the join of the keys: the memory that is left."""
    held = sum(codes.bytes for codes in slots.values())
    if place.written:
        held += 4 * len(plan.ucq.mapped) * place.rows
    return max(_memory(plan) - held, MIN_DATABASE_BYTES)


def row_bytes(plan: FederatedPlan, outputs: int) -> int:
    """Return the approximate maximum bytes of a joined row in the coordinator's memory."""
    slots = sum(
        1 for s in plan.ucq.slots if s.features or s.target or s.weight or s.offset or s.identifiers
    )
    if plan.purpose != TRAIN:
        return SCORING_FIXED + SCORING_PER_SLOT * slots + SCORING_PER_OUTPUT * outputs
    method = spec_of(plan.algorithm)
    size = FIXED + PER_SLOT * slots + MERGING * plan.merges + WEIGHING * plan.weighted
    return size + method.row_bytes(plan.training, outputs)


def machine_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _too_large(
    plan: FederatedPlan,
    slots: Mapping[int, SlotCodes],
    rows: int,
    most: int,
    exact: bool,
    *,
    written: bool,
) -> ModelError:
    number = f"{rows:,}" if rows < 2**53 else f"about {rows:.3g}"
    what = "query" if len(plan.ucq.slots) == 1 else "join"
    message = f"the {what} has {number if exact else f'more than {most:,}'} rows"
    if exact and rows > MAX_JOINED_ROWS:
        message += f", and {MAX_JOINED_ROWS:,} is the most that can be trained on or scored"
    else:
        message += f", and max_joined_rows is {most:,}"
    causes = [pair for pair in partners(plan.ucq, slots) if min(pair.means) > 1]
    causes = sorted(causes, key=lambda pair: -int(pair.counts[0].sum()))[:SHOWN]
    said = [_said(plan, m) for m in causes]
    hint = "aggregate or filter the tables before"
    if said:
        hint = "is a key missing in the join? Else aggregate or filter before it"
    elif len(plan.ucq.slots) > 1 and not any(block.joins for block in plan.ucq.blocks):
        said = [f"it is a cross product of {' and '.join(slot.name for slot in plan.ucq.slots)}"]
    if rows <= (MAX_TABLE_ROWS if written else MAX_JOINED_ROWS) and exact:
        hint += f"; or WITH (max_joined_rows = {rows})"
        if written:
            memory = readable(rows * row_bytes(plan, 1))
            hint += f", which takes about {memory} of memory"
    elif not exact:
        hint += "; or a larger max_joined_rows in WITH"
    return ModelError("; ".join([message, *said]), hint=hint)


def _said(plan: FederatedPlan, step: Partners) -> str:
    left, right = (plan.ucq.slots[s] for s in (step.join.left, step.join.right))
    return (
        f"by {pair_words(plan.ucq, step)} a row of {left.name} meets "
        f"{_mean(step.means[0])} of {right.name} on average, and a row of {right.name} "
        f"{_mean(step.means[1])} of {left.name}"
    )


def _mean(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _uncast(part: exp.Expr) -> exp.Expr:
    """Return the expression without the cast to the type of both sides."""
    inner: exp.Expr = part.this if isinstance(part, exp.Cast) else part
    return inner


def pair_words(ucq: Ucq, pair: Partners) -> str:
    """Return the equality that the partners are found by, `t.k = u.k`."""
    ends = zip((pair.join.left, pair.join.right), pair.fragments, strict=True)
    return " = ".join(_key_words(ucq.slots[slot], pair.join.key, f) for slot, f in ends)


def _key_words(slot: Slot, key: int, fragment: int) -> str:
    """Return the key as a fragment of the slot has it, `t.k` or `(t.k, t.m)`, with the slot's
    name.
    """
    select = slot.fragments[fragment].select
    parts = [
        _uncast(as_written(_uncast(item.this), select))
        for item in select.expressions
        if item.alias_or_name.startswith(f"{KEY}{key}_")
    ]
    source = select.args["from_"].this.alias_or_name
    alone = not select.args.get("joins")
    for column in [c for part in parts for c in part.find_all(exp.Column)]:
        if alone and column.table == source:  # an alias from the planner
            column.set("table", trees.identifier(slot.name))
    named = [to_sql(part) for part in parts]
    return named[0] if len(named) == 1 else f"({', '.join(named)})"


# Fan-out: the number of joined rows in which a table row occurs, counted and, on request, limited.
#
# It decides how far a change of one row can move the result: by the row's own copies, and by the
# rows of other tables that it is joined with.
#
# LEFT JOINs add virtual rows, which hold nobody's data. Virtual rows are never limited and never
# the row that changes. They do count as rows that others are joined with.


def limit_fan_out(
    mapping: Mapping[int, Array],
    exempt: Mapping[int, Array],
    limit: int,
    entropy: Entropy = system,
) -> dict[int, Array]:
    """Return the mapping of the joined rows that are kept, in their order: at most `limit` of any
    row.

    mapping: slot -> int (N,), the row of each joined row. exempt: slot -> bool (rows,), rows that
    may occur any number of times. The slots of `exempt` are limited, one after the other.

    If a row occurs too often, `entropy` draws the joined rows that stay, with equal probability. A
    row keeps min(limit, its number) of the joined rows that are left in its slot's turn.

    Raise InternalError for a limit below 1.
    """
    if limit < 1:
        raise InternalError(f"a limit of {limit} joined rows")
    kept: Array | None = None
    for slot, free in exempt.items():
        rows = mapping[slot] if kept is None else mapping[slot][kept]
        stays = _drawn(rows, free, limit, entropy)
        if stays is not None:
            kept = np.flatnonzero(stays) if kept is None else kept[stays]
    if kept is None:
        return dict(mapping)
    return {slot: rows[kept] for slot, rows in mapping.items()}


def _drawn(rows: Array, free: Array, limit: int, entropy: Entropy) -> Array | None:
    """Return the joined rows that stay: bool (N,); None for all."""
    counts = np.bincount(rows, minlength=len(free))
    crowded = (counts > limit) & ~free
    if not crowded.any():
        return None
    places = np.flatnonzero(crowded[rows])
    crowded_rows = rows[places]
    words = np.frombuffer(entropy(8 * len(places)), np.uint64)
    order = np.lexsort((words, crowded_rows))
    first = np.flatnonzero(np.diff(crowded_rows[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    stays = np.ones(len(rows), bool)
    stays[places[order[rank >= limit]]] = False
    return stays


def copies(rows: Array, virtual: Array) -> int:
    """Return F: the maximum number of joined rows (N,) that contain one non-`virtual` row (n,); 0
    for none.
    """
    return int(np.bincount(rows, minlength=len(virtual))[~virtual].max(initial=0))


def max_partners(rows: Array, virtual: Array, others: Array, size: int) -> int:
    """Return F_ij: the maximum number of different rows of another slot that one non-virtual row is
    joined with.

    rows, others (N,): the rows of both slots in each joined row. size: rows of the other slot,
    including its virtual row.
    """
    pairs = np.unique(rows.astype(np.int64) * size + others)
    return copies(pairs // size, virtual) if len(pairs) else 0
