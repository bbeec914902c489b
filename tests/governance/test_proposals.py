"""Of which rows of which table a run is known to be, and what is refused where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlfl import messages as ms
from sqlfl.contract.request import REFUSED, Request
from sqlfl.contract.schema import (
    FeatureSpecification,
    FittedStep,
    KeySpecification,
    Made,
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.governance.policies import Ruling
from sqlfl.governance.proposals import (
    Read,
    described_run,
    parts_of,
    prepared_request,
    unrecognised_rows,
)
from sqlfl.governance.runs import Parts
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import TrainingPolicy
from tests.open_databases import in_memory

PATIENTS: Table = ("memory", "main", "patients")
VISITS: Table = ("memory", "main", "visits")
OPEN, LEAST = TrainingPolicy(), TrainingPolicy(min_difference=5)
OF_PATIENTS, OF_VISITS = (
    SelectReading((), frozenset(), frozenset(), frozenset({table}), "text", stable=True)
    for table in (PATIENTS, VISITS)
)
NOBODYS = replace(OF_PATIENTS, stable=False, nobodys=True, unmatched=True)
RULING = Ruling("acme", (), {})
ONE_ROW, ONCE = "min_difference = 5, which takes each row of it", "which takes a table once"


def slot(number: int = 0, fragments: tuple[int, ...] = (0,), **own: Any) -> SlotSpecification:
    return SlotSpecification(
        number, **{"features": (), "target": False, "classes": False, "identifiers": (),
        "keys": (), "fragments": fragments, "shared": False, "secret": "", "engine": "sql", **own},
    )  # fmt: skip


def read(*of_slots: tuple[SlotSpecification, tuple[SelectReading, ...]]) -> Read:
    return Read(
        tuple(item for item, _ in of_slots),
        {item.slot: frozenset().union(*(own.tables for own in o)) for item, o in of_slots},
        {item.slot: own for item, own in of_slots},
    )


def said(found: Read, *rules: TrainingPolicy) -> list[tuple[int, str]]:
    verdicts = unrecognised_rows(found, dict(enumerate(rules)))
    assert {own.state for own in verdicts} <= {REFUSED}
    return [(own.slot, own.rule) for own in verdicts]


def refused(found: Read, *rules: TrainingPolicy, by: Mapping[int, str]) -> None:
    told = said(found, *rules)
    assert [own for own, _ in told] == [*by]
    assert all(words in rule for (_, rule), words in zip(told, by.values(), strict=True))


def test_each_row_of_one_table_is_one_row() -> None:
    assert said(read((slot(), (OF_PATIENTS,))), LEAST) == []
    unstable = replace(OF_PATIENTS, stable=False)
    refused(read((slot(), (unstable,))), LEAST, by={0: ONE_ROW})
    assert said(read((slot(), (unstable,))), OPEN) == []
    several = replace(OF_PATIENTS, tables=frozenset({PATIENTS, VISITS}))
    refused(read((slot(), (several,))), LEAST, by={0: ONE_ROW})
    none = replace(OF_PATIENTS, tables=frozenset())
    refused(read((slot(), (none,))), LEAST, by={0: ONE_ROW})
    second = slot(fragments=(0, 1))
    refused(read((second, (OF_PATIENTS, replace(OF_VISITS, stable=False)))), LEAST, by={0: ONE_ROW})


def test_the_slot_of_which_it_is_not_known_is_told() -> None:
    unstable = replace(OF_VISITS, stable=False)
    both = read((slot(), (OF_PATIENTS,)), (slot(1, (1,)), (unstable,)))
    refused(both, OPEN, LEAST, by={1: ONE_ROW})
    assert said(both, LEAST, OPEN) == []


def test_a_table_is_in_a_query_once() -> None:
    twice = read((slot(), (OF_PATIENTS,)), (slot(1, (1,)), (OF_PATIENTS,)))
    for rules in ((LEAST, OPEN), (OPEN, LEAST), (LEAST, LEAST)):
        refused(twice, *rules, by={ms.CLIENT: ONCE})
    assert said(twice, OPEN, OPEN) == []
    assert said(read((slot(), (OF_PATIENTS,)), (slot(1, (1,)), (OF_VISITS,))), LEAST, LEAST) == []
    parts = read((slot(fragments=(0, 1)), (OF_PATIENTS, OF_PATIENTS)))
    refused(parts, LEAST, by={ms.CLIENT: ONCE})
    # with a table twice nothing more is told than what a slot is refused for
    unstable = replace(OF_PATIENTS, stable=False)
    refused(read((slot(), (OF_PATIENTS,)), (slot(1, (1,)), (unstable,))), LEAST, LEAST,
            by={1: ONE_ROW})  # fmt: skip


def test_what_is_of_nobodys_rows_or_of_rows_that_another_fragment_has_is_not_asked() -> None:
    pair = slot(fragments=(0, 1), links=((0, 1),))
    unstable = replace(OF_PATIENTS, stable=False)
    assert said(read((pair, (OF_PATIENTS, unstable))), LEAST) == []
    assert said(read((pair, (OF_PATIENTS, OF_PATIENTS))), LEAST) == []
    refused(read((pair, (unstable, OF_PATIENTS))), LEAST, by={0: ONE_ROW})
    plain = slot(fragments=(0, 1))
    assert said(read((plain, (OF_PATIENTS, NOBODYS))), LEAST) == []
    assert said(read((plain, (NOBODYS, NOBODYS))), LEAST) == []


def test_the_table_of_each_fragment_of_a_run() -> None:
    step = FittedStep("spline", "numeric", count=4, degree=3)
    fitted = FeatureSpecification("a", "array", 6, Made((("a", "DOUBLE"),), "a", step))
    plain = FeatureSpecification("b", "array", 9)
    item = slot(
        2, (7, 3, 5), features=(plain, fitted), keys=(KeySpecification(0, ("BIGINT",)),)
    )  # fmt: skip
    none = replace(OF_PATIENTS, tables=frozenset())
    found = parts_of(item, read((item, (OF_PATIENTS, NOBODYS, none))), {2: LEAST}, RULING)
    assert found.tables == {7: PATIENTS, 3: None, 5: None}
    assert (found.least, found.keyed, found.made) == (5, True, 6)
    found = parts_of(slot(), read((slot(), (OF_VISITS,))), {0: OPEN}, RULING)
    assert (found.tables, found.least, found.keyed, found.made) == ({0: VISITS}, None, False, 0)


def test_a_feature_is_computed_where_fragments_have_different_columns_for_it() -> None:
    def of(*columns: str, computed: bool = False) -> SelectReading:
        outputs = (
            SelectOutput(c, frozenset({ScopeColumn(PATIENTS, c)}), computed=computed)
            for c in columns
        )
        return replace(OF_PATIENTS, outputs=tuple(outputs))

    item = slot(0, (0, 1), features=(FeatureSpecification("f", "numeric"),) * 2, target=True)
    for other, places in (
        (of("a", "b", "y"), set()), (of("a", "c", "z"), {1}), (NOBODYS, set()),
        (of("a", "b", "y", computed=True), {0, 1}),
    ):  # fmt: skip
        readings = (of("a", "b", "y"), other)
        assert parts_of(item, read((item, readings)), {0: OPEN}, RULING).computed == places


def test_a_run_is_told_of_in_words() -> None:
    request = Request("train", "m", "sgd", "", "null", "null", warm=False, into=False, asked=())
    assert (
        described_run(request, [VISITS, PATIENTS]) == "train m by sgd of main.patients, main.visits"
    )
    assert described_run(replace(request, algorithm=""), [VISITS]) == "train m of main.visits"


def test_fragments_have_marks_where_rows_are_to_be_known_again() -> None:
    texts = ("SELECT pid FROM patients", "SELECT pid FROM patients WHERE pid > 1",
             "SELECT pid AS p FROM visits")  # fmt: skip
    slots = specifications_to_json((slot(0, (0, 4)), slot(1, (2,))))
    request = ms.Prepare("r", -1, slots, texts)
    parts = {0: Parts({0: PATIENTS, 4: PATIENTS}), 1: Parts({2: VISITS})}
    with in_memory() as con:
        con.execute("CREATE TABLE patients (pid BIGINT); CREATE TABLE visits (pid BIGINT)")
        assert prepared_request(con, request, parts) == request
        found = prepared_request(con, request, {**parts, 1: Parts({2: VISITS}, 5)})
        assert found.fragments[:2] == texts[:2]
        assert "sqlfl_mark" in found.fragments[2]
        assert [own.marked for own in specifications_from_json(found.specification)] == [
            False,
            True,
        ]
        found = prepared_request(con, request, {**parts, 0: Parts({0: PATIENTS, 4: None}, 5)})
        assert ['"pid"' in text for text in found.fragments] == [True, False, False]
        assert ["sqlfl_mark" in text for text in found.fragments] == [True, True, False]
        assert [own.marked for own in specifications_from_json(found.specification)] == [
            True,
            False,
        ]
