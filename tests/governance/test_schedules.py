"""Random schedules of runs over tables that change: no account is ever below what has left."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import PolicyError
from sqlfl.governance.ledger import FEATURES, LABELS, Budget, Demand, Drawn, Ledger, LedgerEntry
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from sqlfl.options.policies import TrainingPolicy
from tests.depth import examples
from tests.open_databases import in_memory

TABLE = ("memory", "main", "patients")
DELTA = 1e-5
EACH, ALL = Budget(5.0, DELTA, None), Budget(7.0, DELTA, None, total=True)
ANALYSTS = ("a", "b")
PEOPLE = st.integers(0, 4)
ROUNDING = 1e-9


def hashed(*of: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Person:
    label: int
    seen: int
    """A counter, which says nothing of the label."""


@dataclass
class Run:
    analyst: str
    numbers: tuple[int, ...]
    features: float
    """μ; 0 without."""
    labels: frozenset[tuple[int, object]]
    """(person, draw) of all of them."""
    epsilon: float
    left: set[str] = field(default_factory=set)


@dataclass
class World:
    """The ledger, and beside it what each analyst has got of each person."""

    ledger: Ledger
    people: dict[int, Person] = field(
        default_factory=lambda: {pid: Person(pid % 2, 0) for pid in range(3)}
    )
    open: list[Run] = field(default_factory=list)
    got: defaultdict[str, set[tuple[int, object, float]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """Analyst -> (person, draw of the label, its ε)."""
    squared: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Analyst -> Σ μ² of features, which are noised anew in each run."""
    refused: int = 0

    def begin(self, analyst: str, epsilon: float, keyed: bool, mu: float) -> None:
        """Labels of all people at `epsilon` where it is not 0, and features at `mu` likewise."""
        draw = f"{'by key' if keyed else 'by row'} {epsilon:g}"
        content = {pid: (pid,) if keyed else (pid, own.seen) for pid, own in self.people.items()}
        who = [hashed(*content[pid]) for pid in self.people]
        what = [hashed(*content[pid], own.label) for pid, own in self.people.items()]
        drawn = Drawn(np.array(who, np.uint64), np.array(what, np.uint64), known_again=keyed)
        entries = []
        if epsilon:
            entries.append(LedgerEntry(LABELS, epsilon=epsilon, identity=draw))
        if mu:
            entries.append(LedgerEntry(FEATURES, multiplier=1.0 / mu))
        demand = Demand(TABLE, (EACH, ALL), tuple(entries), 0)
        try:
            numbers = self.ledger.reserve("r", analyst, (demand,), {0: drawn})
        except PolicyError:
            self.refused += 1
            return
        labels = {
            (pid, (draw, *content[pid], own.label)) for pid, own in self.people.items() if epsilon
        }
        self.open.append(Run(analyst, numbers, mu, frozenset(labels), epsilon))

    def leave(self, place: int, what: str) -> None:
        """Something of an open run leaves."""
        if not self.open:
            return
        run = self.open[place % len(self.open)]
        if what == LABELS and run.labels and what not in run.left:
            run.left.add(what)
            self.got[run.analyst] |= {(pid, draw, run.epsilon) for pid, draw in run.labels}
        elif what == FEATURES and run.features and what not in run.left:
            run.left.add(what)
            self.squared[run.analyst] += run.features**2

    def end(self, place: int, *, killed: bool) -> None:
        """A run that is killed settles nothing."""
        if self.open:
            run = self.open.pop(place % len(self.open))
            if not killed:
                self.ledger.settle(run.numbers, run.left)

    def change(self, pid: int, how: str) -> None:
        own = self.people.get(pid)
        if own is None:
            self.people[pid] = Person(pid % 2, 0)
        elif how == "label":
            self.people[pid] = Person(1 - own.label, own.seen)
        elif how == "seen":
            self.people[pid] = Person(own.label, own.seen + 1)
        elif len(self.people) > 1:
            del self.people[pid]

    def spent(self, *analysts: str) -> float:
        """By dp-accounting alone: of the person of whom most has left."""
        squared = sum(self.squared[analyst] for analyst in analysts)
        got = set().union(*(self.got[analyst] for analyst in analysts))
        of_person: defaultdict[int, float] = defaultdict(float)
        for pid, _, epsilon in got:
            of_person[pid] += epsilon
        normal = dp_accounting.get_epsilon_gaussian(squared**-0.5, DELTA) if squared else 0.0
        return max(of_person.values(), default=0.0) + normal

    def check(self) -> None:
        for analyst in ANALYSTS:
            known = self.ledger.account(analyst, TABLE, EACH).epsilon(DELTA)
            assert known >= self.spent(analyst) * (1 - ROUNDING)
            assert known <= EACH.epsilon
        known = self.ledger.account("", TABLE, ALL).epsilon(DELTA)
        assert known >= self.spent(*ANALYSTS) * (1 - ROUNDING)
        assert known <= ALL.epsilon


BEGIN = st.tuples(
    st.just("begin"),
    st.sampled_from(ANALYSTS),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 0.3]),
)
LEAVE = st.tuples(st.just("leave"), st.integers(0, 3), st.sampled_from([LABELS, FEATURES]))
END = st.tuples(st.just("end"), st.integers(0, 3), st.booleans())
CHANGE = st.tuples(st.just("change"), PEOPLE, st.sampled_from(["label", "seen", "gone"]))
SCHEDULES = st.lists(st.one_of(BEGIN, BEGIN, LEAVE, LEAVE, END, CHANGE), max_size=30)


def played(schedule: list[tuple[object, ...]], world: World) -> World:
    for what, *told in schedule:
        match what, told:
            case "begin", [str(analyst), float(epsilon), bool(keyed), float(mu)]:
                world.begin(analyst, epsilon, keyed, mu)
            case "leave", [int(place), str(of)]:
                world.leave(place, of)
            case "end", [int(place), bool(killed)]:
                world.end(place, killed=killed)
            case "change", [int(pid), str(how)]:
                world.change(pid, how)
            case _:
                raise AssertionError(what)
        world.check()
    return world


@given(SCHEDULES)
@examples(25, 1000)
def test_no_account_is_below_what_left(schedule: list[tuple[object, ...]]) -> None:
    with in_memory() as con:
        records = Records(con, "memory")
        Governance(records).put_policy("r", TrainingPolicy(), replace=False)
        played(schedule, World(Ledger(records)))


SHARED = [("begin", "a", 1.0, True, 0.0), ("begin", "a", 1.0, True, 0.0), ("leave", 1, LABELS),
          ("end", 1, False), ("end", 0, False)]  # fmt: skip
COUNTER = [("begin", "a", 1.0, False, 0.0), ("leave", 0, LABELS), ("change", 0, "seen"),
           ("begin", "b", 1.0, False, 0.3), ("leave", 1, LABELS),
           ("leave", 1, FEATURES)]  # fmt: skip
LABEL = [("begin", "a", 1.0, True, 0.0), ("leave", 0, LABELS), ("change", 0, "label"),
         ("begin", "a", 1.0, True, 0.0), ("leave", 1, LABELS), ("change", 1, "label"),
         ("begin", "a", 1.0, True, 0.0), ("leave", 2, LABELS)]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "each", "together"),
    [(SHARED, 1.0, 1.0), (COUNTER, 1.0, 2.0), (LABEL, 2.0, 2.0)],
    ids=["shared", "counter", "label"],
)
def test_what_the_reference_says(
    schedule: list[tuple[object, ...]], each: float, together: float
) -> None:
    """So that it is not always below, because it says nothing."""
    with in_memory() as con:
        records = Records(con, "memory")
        Governance(records).put_policy("r", TrainingPolicy(), replace=False)
        world = played(schedule, World(Ledger(records)))
        assert world.spent("a") == each
        features = dp_accounting.get_epsilon_gaussian(1 / 0.3, DELTA) if world.squared["b"] else 0
        assert world.spent(*ANALYSTS) == pytest.approx(together + features)
        assert world.ledger.account("", TABLE, ALL).epsilon(DELTA) == pytest.approx(
            together + features
        )
