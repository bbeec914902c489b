"""What a run asks of the accounts that owners keep, and what it is refused for under one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from sqlfl import messages as ms
from sqlfl.base.codec import to_json
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.request import REFUSED, Request
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance import noising
from sqlfl.governance.accounting import Accounting
from sqlfl.governance.ledger import LABELS, Budget, Ledger
from sqlfl.governance.policies import Governance, Grant, Roles, Ruling
from sqlfl.governance.proposals import Read
from sqlfl.governance.records import Records
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import TrainingPolicy
from sqlfl.options.privacy import Privacy
from sqlfl.udfs.labels.label_lineage import way_to_label
from sqlfl.udfs.labels.label_noise import draw_of
from tests.open_databases import in_memory

KEPT: Table = ("memory", "main", "kept")
FREE: Table = ("memory", "main", "free")
TEXT = "SELECT y AS sqlfl_target, {0} AS sqlfl_base FROM {0}"
LABEL = LabelNoise("randomized_response", 1.0, None, ("false", "true"))
REQUEST = Request(
    "train", "m", "sgd", "{}", to_json(Privacy(label_epsilon=1.0)), "null", warm=False, into=False,
    asked=(),
)  # fmt: skip
OUTPUTS = (SelectOutput("y"), SelectOutput("base", row=True))
BUDGET = Budget(3.0, 1e-6, None)


def ruling(**epsilons: float | None) -> Ruling:
    roles = Roles({"label": ("y",), "join": ("k",)})
    grants = tuple(
        Grant(n, "acme", ("memory", "main", name), roles, name, None, "")
        for n, name in enumerate(epsilons)
    )
    rules = {name: TrainingPolicy(epsilon=most, delta=1e-6) for name, most in epsilons.items()}
    return Ruling("acme", grants, rules)


RULING = ruling(kept=3.0, free=None)


def slot(number: int = 0, **own: Any) -> SlotSpecification:
    privacy = SnapshotPrivacy(LABEL, "none", (), 0.0, 0.0, None)
    return SlotSpecification(
        number, **{"features": (), "target": True, "base": True, "classes": True,
        "identifiers": (), "keys": (), "fragments": (number,), "shared": False, "secret": "",
        "engine": "sql", "privacy": privacy, **own},
    )  # fmt: skip


def reading(table: Table, **own: Any) -> SelectReading:
    found = SelectReading(OUTPUTS, frozenset(), frozenset(), frozenset({table}), stable=True)
    return replace(found, **own)


def read(*of_slots: tuple[SlotSpecification, SelectReading]) -> Read:
    return Read(
        tuple(item for item, _ in of_slots),
        {item.slot: own.tables for item, own in of_slots},
        {item.slot: (own,) for item, own in of_slots},
    )


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        for name in ("kept", "free"):
            found.execute(f"CREATE TABLE {name} (k BIGINT, y BOOLEAN)")
        yield found


def drawing(secret: bytes) -> Callable[[SlotSpecification], bytes]:
    return lambda item: secret * 32


@pytest.fixture
def accounting(con: duckdb.DuckDBPyConnection) -> Accounting:
    records = Records(con, "memory")
    Governance(records).put_policy("r", TrainingPolicy(), replace=False)
    return Accounting(con, "acme", Ledger(records), drawing(b"1"))


Asked = tuple[list[tuple[int, str]], list[tuple[str, list[str]]]]


def asked(
    accounting: Accounting, found: Read, held: Ruling = RULING, request: Request = REQUEST
) -> Asked:
    """Slot and rule of what is refused, and tables with what is asked of their accounts."""
    texts = tuple(TEXT.format(next(iter(own.tables))[2]) for (own,) in found.readings.values())
    verdicts, entries = accounting.asked(request, texts, found, held)
    assert {own.state for own in verdicts} <= {REFUSED}
    return (
        [(own.slot, own.rule) for own in verdicts],
        [(own.table[2], [entry.what for entry in own.entries]) for own in entries],
    )


def test_an_account_is_asked_where_one_is_kept(accounting: Accounting) -> None:
    assert asked(accounting, read((slot(), reading(KEPT)))) == ([], [("kept", [LABELS])])
    assert asked(accounting, read((slot(), reading(FREE)))) == ([], [])
    both = read((slot(), reading(FREE)), (slot(1), reading(KEPT)))
    assert asked(accounting, both) == ([], [("kept", [LABELS])])
    joined = slot(target=False, base=False, privacy=None)
    assert asked(accounting, read((joined, reading(KEPT)))) == ([], [("kept", [])])


def test_labels_are_of_their_own_fragments(
    accounting: Accounting, con: duckdb.DuckDBPyConnection
) -> None:
    alone = accounting.asked(REQUEST, (TEXT.format("kept"),), read((slot(), reading(KEPT))), RULING)
    ways = [way_to_label(con, TEXT.format("kept"))]
    expected = noising.entries(REQUEST, slot(), draw_of(b"1" * 32, LABEL, ways, [()]))
    assert [own.entries for own in alone[1]] == [expected]
    texts = (TEXT.format("free"), TEXT.format("kept"))
    both = read((slot(), reading(FREE)), (slot(1), reading(KEPT)))
    verdicts, (demand,) = accounting.asked(REQUEST, texts, both, RULING)
    assert (verdicts, (demand._replace(slot=0),)) == alone


def test_a_draw_is_of_the_key_that_it_follows_from(
    accounting: Accounting, con: duckdb.DuckDBPyConnection
) -> None:
    """A database that is attached twice, or keeps no secret, has several: each is a draw."""

    def identity(own: Accounting, held: Ruling = RULING) -> str:
        texts = (TEXT.format("kept"),)
        ((*_, (entry,), _),) = own.asked(REQUEST, texts, read((slot(), reading(KEPT))), held)[1]
        return entry.identity

    ledger = Ledger(Records(con, "memory"))
    same, other = (Accounting(con, "acme", ledger, drawing(own)) for own in (b"1", b"2"))
    assert identity(accounting) == identity(same) != identity(other)
    keyed = replace(RULING, keys={KEPT: ("k",)})
    assert identity(accounting) == identity(accounting, keyed)  # of no row of the table
    outputs = (OUTPUTS[0], replace(OUTPUTS[1], whole=KEPT))
    whole = read((slot(), reading(KEPT, outputs=outputs)))
    found = [
        accounting.asked(REQUEST, (TEXT.format("kept"),), whole, held)[1][0].entries[0].identity
        for held in (RULING, keyed)
    ]
    assert found[0] == identity(accounting) != found[1]


def test_what_leaves_without_noise_is_refused_under_an_account(accounting: Accounting) -> None:
    clear = slot(privacy=None)
    said = "its owner's policy has epsilon = 3, which takes noised labels"
    found, entries = asked(accounting, read((clear, reading(KEPT))))
    assert [(number, rule[: len(said)]) for number, rule in found] == [(0, said)]
    assert entries == []
    both = read((clear, reading(FREE)), (slot(1, privacy=None), reading(KEPT)))
    assert [number for number, _ in asked(accounting, both)[0]] == [1]
    assert asked(accounting, read((clear, reading(FREE)))) == ([], [])


def test_rows_are_stable_under_an_account(accounting: Accounting) -> None:
    said = f"its owner's policy has epsilon, which takes {noising.STABLE}"
    loose = read((slot(), reading(KEPT, stable=False)))
    assert asked(accounting, loose) == ([(ms.CLIENT, said)], [])
    (verdict,) = accounting.asked(REQUEST, (TEXT.format("kept"),), loose, RULING)[0]
    assert verdict.what == "main.kept"
    assert asked(accounting, read((slot(), reading(FREE, stable=False)))) == ([], [])
    k, y = ScopeColumn(KEPT, "k"), ScopeColumn(KEPT, "y")
    keyed = read((slot(), reading(KEPT, links=frozenset({k}))))
    assert asked(accounting, keyed)[0] == []
    linked = read((slot(), reading(KEPT, links=frozenset({k, y}))))
    assert [noising.CONDITIONS in rule for _, rule in asked(accounting, linked)[0]] == [True]


def test_a_budget_that_is_spent_is_told_with_what_is_asked(accounting: Accounting) -> None:
    found = read((slot(), reading(KEPT)))
    for epsilon, refused in ((1.0001, False), (0.9, True)):
        verdicts, entries = asked(accounting, found, ruling(kept=epsilon))
        assert bool(verdicts) == refused
        assert entries == [("kept", [LABELS])]


def test_what_has_left_may_leave_again_whatever_the_budget_is_by_now(
    accounting: Accounting,
) -> None:
    texts, found = (TEXT.format("kept"),), read((slot(), reading(KEPT)))
    _, entries = accounting.asked(REQUEST, texts, found, RULING)
    accounting._ledger.reserve("r", "acme", entries)
    assert asked(accounting, found, ruling(kept=0.5))[0] == []
    other = read((slot(privacy=None, target=False, base=False), reading(KEPT)))
    assert asked(accounting, other, ruling(kept=0.5))[0] == []
    accounting._draws = drawing(b"3")  # and so another draw
    assert len(asked(accounting, found, ruling(kept=0.5))[0]) == 1


def test_what_remains_is_told(accounting: Accounting) -> None:
    texts, found = (TEXT.format("kept"),), read((slot(), reading(KEPT)))
    _, entries = accounting.asked(REQUEST, texts, found, RULING)
    (told,) = accounting.remains(entries)
    assert told.what == "epsilon of main.kept: 0 of 3 is spent, 1 after this run"
    accounting._ledger.reserve("r", "acme", entries)
    (told,) = accounting.remains(entries)
    assert "1 of 3 is spent, 1 after" in told.what  # the same noise
    assert list(accounting.remains(())) == []


def test_the_strictest_policy_of_what_is_granted() -> None:
    held = ruling(kept=3.0, free=7.0)
    assert held.strictest([KEPT]).epsilon == 3.0
    assert held.strictest([FREE]).epsilon == 7.0
    assert held.strictest([FREE, KEPT]).epsilon == held.strictest().epsilon == 3.0
    # of no table: all of the owner's
    assert held.strictest([]).epsilon == 3.0
    nothing = replace(held, grants=())
    assert nothing.strictest().epsilon == 3.0
