"""What a run that has begun is held to: each rule where it is just met, and where it is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.differencing import JOINED, TAKEN, Differencing, MarkedRows
from sqlfl.governance.ledger import FEATURES, LABELS
from sqlfl.governance.runs import GovernedRun, Parts, StartFacts
from sqlfl.governance.scopes import Table
from sqlfl.options.policies import TrainingPolicy
from sqlfl.udfs.encoding.cells import LEANING, VALUE, RowCounts

TABLE = ("memory", "main", "patients")
SIZE = 10
PARTS = Parts({0: TABLE})
OPEN = TrainingPolicy(min_rows=1, min_cell=1)
KINDS = ("send_keys", "activate", "weigh", "send_labels", "start", "send_predictions", "save")
REQUEST = Request(
    "train", "linear_regression", "sgd", "{}", "null", "null", warm=False, into=True,
    asked=(
        *(Asked(0, kind, "", "", 9) for kind in KINDS),
        *(Asked(-1, kind, "", "", 9) for kind in ("save", "write", "send_findings")),
    ),
)  # fmt: skip
START = ms.Start("r", 0, "sgd", "{}")


@dataclass
class Held:
    """A party's slots, of which it says this."""

    largest: int = 0
    cell: int | None = None
    leaning: int = 1000
    takes: int = 0
    passes: int = 1
    bytes: int | None = None
    limited: float | None = None

    def categories(self, run: str, slot: int) -> int:
        return self.largest

    def govern(
        self, run: str, slot: int, least: int, most: int, ratio: float | None, rows: Array
    ) -> None:
        self.governed = least, most, ratio, rows

    def rare(
        self, run: str, slot: int, counted: RowCounts, computed: Collection[int], least: int
    ) -> tuple[str, str] | None:
        if self.cell is not None and self.cell < least:
            return "age", VALUE
        return ("age", LEANING) if computed and least > self.leaning else None

    def limit(self, run: str, slot: int, squared_mu: float, somebodys: Array) -> None:
        self.limited = squared_mu

    def room(self, run: str, slot: int, method: str, configuration: str, most: int) -> StartFacts:
        return StartFacts({"blocks": self.takes}, self.passes, tower=False, outputs=1, shared=False)

    def memory(self, run: str, slot: int) -> int | None:
        return self.bytes

    def taken(self, run: str, slot: int) -> tuple[Array, Array]:
        return np.zeros(0, np.uint16), np.arange(SIZE, dtype=np.uint64)

    def draws(self, item: SlotSpecification) -> bytes:
        return b"\x01" * 32

    def drawn(self, run: str, slot: int) -> tuple[Array, Array]:
        return np.arange(SIZE, dtype=np.uint64), np.arange(SIZE, dtype=np.uint64)


class Seen:
    """What is told to be compared with other runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Table, list[float], int]] = []

    def see(self, family: str, table: Table, rows: MarkedRows, least: int) -> None:
        self.calls.append((family, table, rows.counts.tolist(), least))


def begun(
    rules: TrainingPolicy = OPEN,
    slots: Held | None = None,
    parts: Parts = PARTS,
    request: Request = REQUEST,
    allowed: Mapping[int, float] | None = None,
    seen: Seen | None = None,
) -> GovernedRun:
    run = GovernedRun(
        request, {0: rules}, rules, slots or Held(), allowed or {}, {0: parts},
        cast(Differencing, seen or Seen()), "memory",
    )  # fmt: skip
    run.prepared("r", 0, SIZE)
    return run


def told(run: GovernedRun, message: ms.Message, reply: ms.Message | None = None) -> ms.Message:
    return run.serve(message, lambda _: reply or ms.Ready("r", 0))


def active(rows: int | list[int] = SIZE, counts: list[int] | None = None) -> ms.Activate:
    chosen = list(range(rows)) if isinstance(rows, int) else rows
    each = [1] * len(chosen) if counts is None else counts
    return ms.Activate(
        "r", 0, np.array(chosen, np.uint32), np.array(each, np.uint32), max(sum(each), 1)
    )


def labels(*sizes: int) -> ms.Labels:
    codes = np.repeat(np.arange(len(sizes)), sizes).astype(np.uint32)
    return ms.Labels("r", 0, np.zeros(0), tuple(map(str, range(len(sizes)))), codes)


def activated(rules: TrainingPolicy = OPEN, rows: int = SIZE, **own: Any) -> GovernedRun:
    run = begun(rules, **own)
    told(run, active(rows))
    return run


def refused(work: Callable[[], object], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        work()


def test_rows_that_are_taken() -> None:
    begun(TrainingPolicy(min_rows=SIZE))
    refused(lambda: begun(TrainingPolicy(min_rows=SIZE + 1)), "min_rows = 11")
    nobodys = Parts({0: None})
    refused(lambda: begun(OPEN, parts=nobodys), "min_rows = 1")


def test_rows_that_are_taken_and_joined_are_compared_with_other_runs() -> None:
    seen = Seen()
    run = begun(parts=replace(PARTS, least=4), seen=seen)
    assert seen.calls == [(TAKEN, TABLE, [1.0] * SIZE, 4)]
    told(run, active(5, [2] * 5))
    told(run, ms.Weigh("r", 0, np.full(5, 3.0), 15.0))
    assert seen.calls[1:] == [(JOINED, TABLE, [n] * 5, 4) for n in (2.0, 3.0)]
    begun(seen=seen)
    assert len(seen.calls) == 3


def test_weights_to_encode_by_are_compared_too() -> None:
    """Fits of TUNE encode by them, and SKEW compares with means over them."""
    seen = Seen()
    run = begun(parts=replace(PARTS, least=4), seen=seen)
    told(run, active(5))
    told(run, ms.Weigh("r", 0, np.full(5, 3.0), 15.0, np.full(5, 2.0)))
    told_of = [counts[0] for family, _, counts, _ in seen.calls if family == JOINED]
    assert told_of == [1.0, 3.0, 2.0]


def test_rows_that_are_joined() -> None:
    rules = TrainingPolicy(min_rows=5, min_cell=1)
    told(begun(rules), active(5))
    refused(lambda: told(begun(rules), active(4)), "min_rows = 5, of rows that are joined")
    # as many as 5 that count alike: (5 a)² / 5 a²
    told(begun(rules), active(5, [7] * 5))
    refused(lambda: told(begun(rules), active(5, [7, 7, 7, 7, 6])), "min_rows = 5")
    cells = TrainingPolicy(min_rows=1, min_cell=4)
    told(begun(cells), active(5, [4, 3, 3, 3, 3]))
    refused(lambda: told(begun(cells), active(5, [4, 3, 3, 3, 2])), "one row counts for more")


@pytest.mark.parametrize("rows", [[0, SIZE], [0, 1, 1, 2], [2, 1, 0]], ids=str)
def test_rows_that_there_are_not_or_twice(rows: list[int]) -> None:
    refused(lambda: told(begun(), active(rows)), "not ascending ones below 10")


def test_rows_up_to_the_last() -> None:
    told(begun(), active([0, SIZE - 1]))
    refused(lambda: told(begun(), active([])), "min_rows")


def test_rows_with_keys_are_told_after_these() -> None:
    run = begun(parts=replace(PARTS, keyed=True))
    refused(lambda: told(run, active()), "before their join keys")
    told(begun(), active())
    keys = ms.JoinKeys("r", 0, np.zeros(0, np.uint16), (), ())
    run = begun(parts=replace(PARTS, keyed=True))
    told(run, ms.SendKeys("r", 0), keys)
    told(run, active())


def test_joined_rows_of_one_row() -> None:
    rules = replace(OPEN, max_fan_out=2)
    told(begun(rules), active(3, [2, 2, 2]))
    refused(lambda: told(begun(rules), active(3, [2, 3, 2])), "max_fan_out = 2")


def test_rounds() -> None:
    rules = replace(OPEN, rounds=3)
    run = activated(rules)
    for _ in range(2):
        told(run, ms.SendPredictions("r", 0))
    refused(lambda: told(run, ms.SendPredictions("r", 0)), "rounds = 3")
    told(activated(rules, slots=Held(passes=3)), START)
    refused(lambda: told(activated(rules, slots=Held(passes=4)), START), "rounds = 3, of passes")


def test_rounds_of_another_slot_are_its_own() -> None:
    run = activated(replace(OPEN, rounds=2))
    told(run, ms.SendPredictions("r", 0))
    for _ in range(2):
        told(run, ms.Save("r", -1, "r", "m", 0))


@pytest.mark.parametrize("slots", [Held(takes=100, bytes=100), Held(takes=10**12)])
def test_memory_that_there_is(slots: Held) -> None:
    told(activated(slots=slots), START)


def test_memory_that_there_is_not() -> None:
    slots = Held(takes=101, bytes=100)
    refused(lambda: told(activated(slots=slots), START), "memory_limit of")
    rules = replace(OPEN, memory=100)
    told(activated(rules, slots=Held(takes=100, bytes=1)), START)
    refused(lambda: told(activated(rules, slots=Held(takes=101)), START), "memory = '100B'")
    made = replace(PARTS, made=2)
    told(begun(replace(OPEN, memory=16 * SIZE), parts=made), active())
    few = replace(OPEN, memory=16 * SIZE - 1)
    refused(lambda: told(begun(few, parts=made), active()), "most of it by TRANSFORM")


def test_values_of_features() -> None:
    rules = replace(OPEN, min_cell=3, max_categories=4)
    told(activated(rules, slots=Held(cell=3, largest=4)), START)
    few, many = Held(cell=2, largest=4), Held(cell=3, largest=5)
    refused(lambda: told(activated(rules, slots=few), START), "min_cell = 3, of values")
    refused(lambda: told(activated(rules, slots=many), START), "max_categories = 4")


def test_columns_to_rows() -> None:
    rules = replace(OPEN, max_parameter_ratio=0.5)
    told(activated(rules), START, ms.Ready("r", 0, 5))
    run = activated(rules)
    refused(lambda: told(run, START, ms.Ready("r", 0, 6)), "max_parameter_ratio = 0.5")
    refused(lambda: told(run, ms.SendPredictions("r", 0)), "after a start that was refused")


def test_classes() -> None:
    rules = replace(OPEN, min_cell=3)
    ask = ms.SendLabels("r", 0)
    # a class of which there are none at this party tells of nobody
    told(activated(rules), ask, labels(3, 0, 7))
    refused(lambda: told(activated(rules), ask, labels(2, 8)), "min_cell = 3, of classes")
    told(activated(rules), ask, ms.Labels("r", 0, np.ones(SIZE), (), np.zeros(0, np.uint32)))


def write(*table: str) -> ms.Write:
    none = np.zeros(0)
    return ms.Write("r", -1, table, (), none, (), none, (), "", none, 0)


def test_into() -> None:
    rules = replace(OPEN, into="Told")
    told(begun(rules), write("memory", "tOLD", "t"))
    for table in (
        ("memory", "main", "t"),
        ("memory", "told", "t", "memory", "main", "t"),
        ("other", "told", "t"),  # another database of the same connection
    ):
        refused(lambda table=table: told(begun(rules), write(*table)), "into = 'Told'")
    refused(lambda: told(begun(), write("memory", "", "t")), "into = none")


def test_what_has_left() -> None:
    run = begun()
    assert run.left == set()
    told(run, active())
    assert run.left == {FEATURES}
    told(run, ms.SendLabels("r", 0), labels(5, 5))
    assert run.left == {FEATURES, LABELS}


def test_what_training_may_release_is_told_once_it_starts() -> None:
    slots = Held()
    run = activated(slots=slots, allowed={0: 0.25})
    assert slots.limited is None
    told(run, START)
    assert slots.limited == 0.25


def test_a_block_of_another_run_is_not_saved() -> None:
    told(activated(), ms.Save("r", 0, "r", "m", 0))
    refused(lambda: told(activated(), ms.Save("r", 0, "s", "m", 0)), "a block of another run")


def test_peers() -> None:
    rules = replace(OPEN, predictions="secure_sum")
    none: Any = np.zeros((0, 32), np.uint8)

    def peers(*slots: int) -> ms.SetPeers:
        return ms.SetPeers("r", 0, ("a", "b"), np.array(slots), none, none)

    begun(rules).check_peers(peers(0, 1))
    begun().check_peers(peers(0, 0))
    refused(lambda: begun(rules).check_peers(peers(0, 0)), "over several tables")


def test_only_what_was_proposed_and_as_often() -> None:
    once = replace(REQUEST, asked=tuple(replace(own, most=1) for own in REQUEST.asked))
    run = begun(request=once)
    told(run, active())
    refused(lambda: told(run, active()), "message activate more than 1 times")
    refused(lambda: told(run, ms.SendFindings("r", 0)), "message send_findings of slot 0")
    refused(lambda: told(activated(), replace(START, method="admm")), "training by admm")


def test_nothing_is_told_before_rows_are_joined() -> None:
    for message in (ms.SendLabels("r", 0), ms.Weigh("r", 0, np.ones(SIZE), 1.0), START):
        refused(lambda message=message: told(begun(), message), "before the rows that are joined")
    told(begun(), ms.SendFindings("r", -1))


def test_counts_that_do_not_fit_the_rows() -> None:
    other = replace(active(), counts=np.ones(SIZE - 1, np.uint32))
    refused(lambda: told(begun(), other), "9 numbers of how much 10 rows count")
    told(begun(), replace(active(), total=SIZE))
    fewer = replace(active(), total=SIZE - 1)
    refused(lambda: told(begun(), fewer), "count more than all that are joined")


def test_what_is_not_under_masks() -> None:
    rules = replace(OPEN, predictions="secure_sum")
    ask, clear = ms.SendPredictions("r", 0), ms.Weights("r", 0, np.ones(SIZE))
    told(activated(), ask, clear)
    told(activated(rules), ask)
    refused(lambda: told(activated(rules), ask, clear), "predictions = 'secure_sum'")


def test_a_start_that_passes_is_gone_on_from() -> None:
    run = activated()
    told(run, START)
    told(run, ms.SendPredictions("r", 0))


def test_rows_are_numbered_anew_with_their_keys() -> None:
    """Of two fragments, by what the reply says; rows of nobody do not count."""
    parts = Parts({0: TABLE, 1: None}, keyed=True)
    run = begun(TrainingPolicy(min_rows=4, min_cell=1), parts=parts)
    fragments = np.repeat(np.array([1, 0], np.uint16), [7, 3])
    told(run, ms.SendKeys("r", 0), ms.JoinKeys("r", 0, fragments, (), ()))
    refused(lambda: told(run, active()), "min_rows = 4, of rows that are joined")
