"""What a party lets a coordinator do, with stand-ins for the party: each rule where it is just met,
and where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.base.codec import to_json
from sqlfl.base.errors import ApprovalError, Error, PolicyError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked, verdicts_from_json
from sqlfl.contract.schema import (
    Column as Listed,
)
from sqlfl.contract.schema import (
    Listing,
    Place,
    listing_from_json,
    listing_to_json,
    specifications_to_json,
)
from sqlfl.contract.schema import (
    Table as ListedTable,
)
from sqlfl.governance import guard as guarding
from sqlfl.governance.fragments import Fragments
from sqlfl.governance.guard import (
    MAX_FRAGMENTS,
    MAX_PROPOSALS,
    MAX_REQUEST_CHARACTERS,
    Guard,
    GuardedClient,
)
from sqlfl.governance.ledger import FEATURES, LABELS, Budget, Demand, LedgerEntry
from sqlfl.governance.models import without_small_cells
from sqlfl.governance.policies import LASTING, Grant, Roles, Ruling
from sqlfl.governance.records import Records
from sqlfl.governance.runs import GovernedRun
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import TrainingPolicy
from sqlfl.options.privacy import Privacy
from tests.governance.clinic import REQUEST, SLOT, ruled
from tests.governance.test_runs import SIZE, Held
from tests.open_databases import in_memory

TABLE: Table = ("memory", "main", "patients")
ROLES = Roles({"join": ("pid",), "train": ("age",), "filter": ("age",), "label": ("days",)})
SELECT = "SELECT pid AS sqlfl_key_0_0 FROM patients"
SLOTS = specifications_to_json((SLOT,))
OPEN = TrainingPolicy(min_rows=1, min_cell=1)


def ruling(rules: TrainingPolicy = OPEN, roles: Roles = ROLES, **own: Any) -> Ruling:
    grant = Grant(1, "acme", TABLE, roles, "r", None, "")
    return Ruling("acme", (replace(grant, **own),), {"r": rules})


@dataclass
class Party:
    """What is behind a guard, and what it has been asked."""

    con: duckdb.DuckDBPyConnection
    held: Ruling | None
    guard: Guard = field(init=False)
    ended: list[str] = field(default_factory=list)
    answered: list[ms.Message] = field(default_factory=list)
    looked: int = 0
    fails: Exception | None = None

    def ruling(self, analyst: str) -> Ruling | None:
        self.looked += 1
        return self.held

    def answer(self, request: ms.Message) -> ms.Message:
        self.answered.append(request)
        if self.fails is not None:
            raise self.fails
        if isinstance(request, ms.Prepare):
            rows = np.full(len(request.fragments), SIZE)
            return ms.Prepared(request.run, -1, rows, rows * 0, np.zeros(ms.NONCE_BYTES, np.uint8))
        return ms.Ready(request.run, request.slot)

    def ask(self, request: ms.Message, *, combined: bool = False) -> ms.Message:
        return self.guard.serve(request, self.answer, combined=combined)

    def propose(self, run: str = "r", **own: Any) -> ms.Message:
        given = {
            "request": REQUEST.to_json(),
            "specification": SLOTS,
            "fragments": (SELECT,),
            **own,
        }
        return self.ask(ms.Propose(run, -1, **given))

    def prepare(self, run: str = "r", **own: Any) -> ms.Message:
        return self.ask(
            ms.Prepare(run, -1, **{"specification": SLOTS, "fragments": (SELECT,), **own})
        )

    def begin(self, run: str = "r", **own: Any) -> None:
        self.propose(run, **own)
        told = {name: own[name] for name in ("specification", "fragments") if name in own}
        self.prepare(run, **told)

    def verdicts(self, **own: Any) -> list[tuple[str, str]]:
        """Of what is only asked: state and rule."""
        reply = self.propose("", **own)
        assert isinstance(reply, ms.Proposed)
        return [(one.state, one.rule) for one in verdicts_from_json(reply.verdicts)]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(
            "CREATE TABLE patients (pid BIGINT, age INTEGER, days DOUBLE, salary INTEGER)"
        )
        yield found


class Make:
    """Parties over the same table."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self.con = con
        self.made: list[Guard] = []

    def __call__(
        self, rules: TrainingPolicy | None = OPEN, analyst: str = "acme", **own: Any
    ) -> Party:
        party = Party(self.con, None if rules is None else ruling(rules))
        client = GuardedClient(
            "clinic", Held(), own.pop("blocks", list), party.ended.append, lambda: None,
            lambda: closing(self.con.cursor()),
        )  # fmt: skip
        party.guard = Guard(self.con, client, analyst, **own)
        cast(Any, party.guard)._home = party
        self.made.append(party.guard)
        return party


@pytest.fixture
def made(con: duckdb.DuckDBPyConnection) -> Iterator[Make]:
    found = Make(con)
    yield found
    for guard in found.made:
        guard.close()


def test_without_a_policy_all_is_served(made: Make) -> None:
    party = made(None, analyst="")
    reply = party.propose(request="whatever that is")
    assert isinstance(reply, ms.Proposed)
    assert verdicts_from_json(reply.verdicts) == ()
    every = [ms.Describe("", -1, ("whatever",)), ms.Prepare("r", -1, SLOTS, (SELECT,)),
             ms.SendBlock("", -1, "m", 0), ms.SendKeys("r", 0), ms.Drop("", -1, "m")]  # fmt: skip
    for request in every:
        party.ask(request, combined=True)
    assert party.answered == every
    rules = party.guard.rehearse(ms.Rehearse("r", -1, "", "", ()), combined=True)
    assert rules.may_show(ScopeColumn(TABLE, "salary"))
    assert rules.seconds is None


def test_without_a_policy_nothing_is_served_where_one_is_required(made: Make) -> None:
    party = made(None, required=True)
    for request in (ms.ListTables("", -1), ms.Propose("r", -1, "", SLOTS, (SELECT,)),
                    ms.Keep("", -1, "m")):  # fmt: skip
        with pytest.raises(PolicyError, match="its owner has made no training policy"):
            party.ask(request)
    assert not party.answered
    made(required=True).ask(ms.Describe("", -1, (SELECT,)))


def test_a_party_that_combines_and_nobody_are_granted_nothing(made: Make) -> None:
    rehearsal = ms.Rehearse("r", -1, REQUEST.to_json(), SLOTS, (SELECT,))
    for party, combined, said in (
        (made(), True, "not built for databases that a party combines"),
        (made(analyst=""), False, "names no analyst"),
    ):
        for request in (ms.ListTables("", -1), ms.Describe("", -1, (SELECT,)),
                        ms.Propose("r", -1, REQUEST.to_json(), SLOTS, (SELECT,)),
                        ms.Prepare("r", -1, SLOTS, (SELECT,)),
                        ms.SendBlock("", -1, "m", 0)):  # fmt: skip
            with pytest.raises(PolicyError, match=said):
                party.ask(request, combined=combined)
        with pytest.raises(PolicyError, match=said):
            party.guard.rehearse(rehearsal, combined=combined)
        assert not party.answered


def test_weights_that_are_never_sent(made: Make) -> None:
    party = made()
    with pytest.raises(PolicyError, match="is not one of this analyst's"):
        party.ask(ms.SendBlock("", -1, "m", 0))
    party.guard.accept("m")
    party.ask(ms.SendBlock("", -1, "m", 0))
    with pytest.raises(PolicyError, match="weights = 'never'"):
        made(replace(OPEN, weights="never")).ask(ms.SendBlock("", -1, "m", 0))


def test_curves_are_as_weights_are_and_thinned(made: Make) -> None:
    asked = ms.SendCurves("", -1, "m", 0)
    party = made()
    with pytest.raises(PolicyError, match="is not one of this analyst's"):
        party.ask(asked)
    with pytest.raises(PolicyError, match="weights = 'never'"):
        made(replace(OPEN, weights="never")).ask(asked)
    points = np.arange(4.0)[:, None]
    told = ms.Curves(
        "", -1, ("x",) * 4, ("1", "2", "", "c"), np.array([0, 0, 2, 1], np.uint8), points, points,
        np.array([2, 9, 5, 4]),
    )  # fmt: skip
    found = without_small_cells(told, 5)
    assert isinstance(found, ms.Curves)
    assert found.values == ("2", "")
    np.testing.assert_array_equal(found.rows, [9, 5])
    np.testing.assert_array_equal(found.effects, points[1:3])


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([9, 8, 7, 6], [9, 8, 7, 6]),
        ([9, 2, 7, 6], [9, 7]),  # the rows of one point alone are all minus the others'
        ([9, 2, 2, 6], [9]),  # together they have fewer than five
        ([9, 2, 3, 6], [9, 6]),
        ([9, 4, 0, 0], []),
        ([9, 6, 0, 0], [9, 6]),
    ],
)
def test_points_that_are_left_out_do_not_follow_from_others(
    rows: list[int], shown: list[int]
) -> None:
    points = np.arange(8.0)[:, None]
    told = ms.Curves(
        "", -1, ("x",) * 4 + ("y",) * 4, ("1", "2", "3", "4") * 2, np.zeros(8, np.uint8), points,
        points, np.array([*rows, 5, 5, 5, 5]),
    )  # fmt: skip
    found = without_small_cells(told, 5)
    assert isinstance(found, ms.Curves)
    assert found.rows.tolist() == [*shown, 5, 5, 5, 5]


def test_what_is_bound_is_granted(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    party = made()
    party.ask(ms.Describe("", -1, ("SELECT age FROM patients WHERE pid IS NULL",)))
    with pytest.raises(PolicyError, match="column salary is not granted"):
        party.ask(ms.Describe("", -1, ("SELECT salary FROM patients",)))
    salary, pid = frozenset({ScopeColumn(TABLE, "salary")}), frozenset({ScopeColumn(TABLE, "pid")})
    outputs = (SelectOutput("a", pid),)
    one = SelectReading(outputs, pid, pid, frozenset({TABLE}))
    several = [one, replace(one, outputs=(*outputs, SelectOutput("b", salary))),
               replace(one, filters=salary), replace(one, links=salary)]  # fmt: skip
    for reading in several:
        monkeypatch.setattr(Fragments, "read", lambda *_, found=reading: found)
        if reading is one:
            party.ask(ms.Describe("", -1, (SELECT,)))
            continue
        with pytest.raises(PolicyError, match=r"a whole row of .* has columns that are not"):
            party.ask(ms.Describe("", -1, (SELECT,)))


@pytest.mark.parametrize("error", [duckdb.BinderException, duckdb.CatalogException])
def test_what_the_database_says_of_names_stays(made: Make, error: type[Exception]) -> None:
    party = made()
    party.propose()
    party.fails = error("did you mean salary?")
    for request in (ms.Describe("", -1, (SELECT,)), ms.Prepare("r", -1, SLOTS, (SELECT,))):
        with pytest.raises(Error, match="cannot bind what it was asked") as told:
            party.ask(request)
        assert "salary" not in told.value.message


def test_granted_columns_of_granted_tables_are_all_that_there_is(made: Make) -> None:
    columns = [Listed(name, "INTEGER") for name in ("pid", "age", "days", "salary")]
    tables = (
        ListedTable("", "patients", tuple(columns), 123, ""),
        ListedTable("hr", "salaries", tuple(columns), 9, ""),
        ListedTable("", "other", tuple(columns), None, "elsewhere"),
    )
    places = (Place("memory", "main", True, "memory"), Place("memory", "hr", True, "memory"))
    told = Listing(places, tables, "it is in memory")
    party = made()
    party.answer = lambda _: ms.Tables("", -1, listing_to_json(told))  # type: ignore[method-assign]
    reply = party.ask(ms.ListTables("", -1))
    assert isinstance(reply, ms.Tables)
    found = listing_from_json(reply.tables)
    assert [table.name for table in found.tables] == ["patients"]
    assert [column.name for column in found.tables[0].columns] == ["pid", "age", "days"]
    assert (found.tables[0].rows, found.fleeting, found.governed) == (100, "it is in memory", True)
    assert [place.schema for place in found.places] == ["main"]
    # it need not be looked up again
    listed = party.guard._reader.listed
    assert listed.columns[TABLE] == ("pid", "age", "days", "salary")
    assert listed.views == {("elsewhere", "main", "other")}


def test_tables_of_other_places_are_granted_there(made: Make) -> None:
    one = (Listed("age", "INTEGER"),)
    tables = (ListedTable("hr", "patients", one, 1, ""),
              ListedTable("main", "patients", one, 2, ""),
              ListedTable("hr", "patients", one, 3, "far"),
              ListedTable("", "patients", one, 4, "far"))  # fmt: skip
    places = tuple(
        Place(catalog, schema, False, "x") for catalog in ("memory", "far") for schema in
        ("main", "hr", "other")
    )  # fmt: skip
    told = listing_to_json(Listing(places, tables))
    party = made()
    party.answer = lambda _: ms.Tables("", -1, told)  # type: ignore[method-assign]
    for table, rows, found in (
        (TABLE, 2, {("memory", "main")}),
        (("memory", "hr", "patients"), 1, {("memory", "main"), ("memory", "hr")}),
        (("far", "hr", "patients"), 3, {("memory", "main"), ("far", "hr")}),
        (("far", "main", "patients"), 4, {("memory", "main"), ("far", "main")}),
        (("far", "other", "patients"), None, {("memory", "main")}),
    ):
        party.held = ruling(table=table)
        reply = party.ask(ms.ListTables("", -1))
        assert isinstance(reply, ms.Tables)
        own = listing_from_json(reply.tables)
        assert [table.rows for table in own.tables] == ([] if rows is None else [rows])
        assert {(place.catalog, place.schema) for place in own.places} == found


@pytest.mark.parametrize(
    ("rows", "about"), [(None, None), (0, 0), (9, 9), (14, 10), (15, 20), (123_456, 100_000)]
)
def test_how_many_rows_there_are_is_told_to_one_digit(rows: int | None, about: int | None) -> None:
    assert guarding._about(rows) == about


# -- what is proposed ------------------------------------------------------------------------------


def test_a_run_is_proposed_before_it_begins(made: Make) -> None:
    party = made()
    said = "a run is to be proposed before it begins"
    with pytest.raises(PolicyError, match=said):
        party.prepare()
    party.propose("")
    for run in ("", "r"):
        with pytest.raises(PolicyError, match=said):
            party.prepare(run)
    party.begin()
    with pytest.raises(PolicyError, match=said):
        party.prepare()
    party.propose("s")
    party.ask(ms.Finish("s", -1))
    with pytest.raises(PolicyError, match=said):
        party.prepare("s")


def test_the_run_that_begins_is_the_one_that_was_proposed(made: Make) -> None:
    party = made()
    other = specifications_to_json((replace(SLOT, secret="federation"),))
    for told in ({"specification": other}, {"fragments": (f"{SELECT} WHERE TRUE",)}):
        party.propose()
        with pytest.raises(PolicyError, match="another one than was proposed"):
            party.prepare(**told)
    assert not party.answered


def test_a_run_has_a_name_of_its_own(made: Make) -> None:
    said = "a run of this name was there before"
    party = made()
    party.begin()
    party.ask(ms.Finish("r", -1))
    with pytest.raises(PolicyError, match=said):
        party.propose()
    party.guard.accept("s")
    with pytest.raises(PolicyError, match=said):
        party.propose("s")
    other = made(analyst="")
    other.guard._analyst = "acme"  # so that no run is the analyst's
    other.begin()
    with pytest.raises(PolicyError, match=said):
        other.propose()


def test_grants_are_what_they_were_when_it_was_proposed(made: Make) -> None:
    party = made()
    for held in (ruling(replace(OPEN, min_rows=2)), ruling(number=2)):
        party.held = ruling()
        party.propose()
        party.held, before = held, party.held
        Records.changes += 1
        with pytest.raises(PolicyError, match="its owner has changed what is granted"):
            party.prepare()
        party.held = before
        Records.changes += 1
    party.propose()
    (name,) = party.guard._proposals
    own = party.guard._proposals[name]
    party.guard._proposals[name] = replace(own, views={TABLE: "another view"})
    with pytest.raises(PolicyError, match="its owner has changed what is granted"):
        party.prepare()
    assert not party.answered
    party.begin()


def test_the_hours_when_runs_begin(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    party = made(replace(OPEN, hours="08:00-18:00"))
    inside = True
    monkeypatch.setattr("sqlfl.governance.policy_evaluation.within", lambda *_: True)
    monkeypatch.setattr(guarding, "within", lambda *_: inside)
    party.begin()
    party.propose("s")
    inside = False  # by now
    with pytest.raises(PolicyError, match="hours = '08:00-18:00'"):
        party.prepare("s")
    made().begin()


def test_runs_that_are_open_at_once(made: Make) -> None:
    party = made(replace(OPEN, open_runs=2))
    party.begin("r")
    party.begin("s")
    with pytest.raises(PolicyError, match="open_runs = 2"):
        party.begin("t")
    party.ask(ms.Finish("s", -1))
    party.begin("u")


def test_runs_of_a_day(made: Make) -> None:
    party = made(replace(OPEN, runs_per_day=2))
    party.begin("r")
    party.begin("s")
    with pytest.raises(PolicyError, match="runs_per_day = 2"):
        party.begin("t")
    assert party.ended == ["t"]


def test_proposals_that_are_kept(made: Make) -> None:
    party = made()
    for number in range(MAX_PROPOSALS):
        party.propose(f"r{number}")
    party.prepare("r0")
    for number in (MAX_PROPOSALS, MAX_PROPOSALS + 1):
        party.propose(f"r{number}")
    assert len(party.guard._proposals) == MAX_PROPOSALS
    with pytest.raises(PolicyError, match="proposed before it begins"):
        party.prepare("r1")
    party.prepare("r2")


def test_requests_and_fragments_are_not_endless(made: Make) -> None:
    party = made()
    text = REQUEST.to_json()
    fits = text + " " * (MAX_REQUEST_CHARACTERS - len(text))
    party.propose(request=fits)
    rehearsal = ms.Rehearse("r", -1, fits, SLOTS, (SELECT,))
    party.guard.rehearse(rehearsal, combined=False)
    with pytest.raises(PolicyError, match="a request of 1,048,577 characters"):
        party.propose(request=f"{fits} ")
    with pytest.raises(PolicyError, match="a request of 1,048,577 characters"):
        party.guard.rehearse(replace(rehearsal, request=f"{fits} "), combined=False)
    slots = specifications_to_json((replace(SLOT, fragments=tuple(range(MAX_FRAGMENTS))),))
    many = (SELECT,) * MAX_FRAGMENTS
    party.propose(specification=slots, fragments=many)
    with pytest.raises(PolicyError, match="257 fragments; 256 are taken"):
        party.propose(specification=slots, fragments=(*many, SELECT))


def test_what_is_refused_is_told_where_it_is_only_asked(made: Make) -> None:
    party = made(replace(OPEN, kinds=("poisson_regression",)))
    said = "its owner's policy has kinds"
    ((state, rule),) = party.verdicts()
    assert (state, rule[: len(said)]) == ("refused", said)
    with pytest.raises(PolicyError, match=said):
        party.propose()
    salary = ("SELECT salary AS sqlfl_key_0_0 FROM patients",)
    assert party.verdicts(fragments=salary) == [("refused", "column salary is not granted")]
    with pytest.raises(PolicyError, match="column salary is not granted"):
        party.propose(fragments=salary)
    assert not party.guard._proposals
    assert made().verdicts() == []
    both = made(replace(OPEN, kinds=("poisson_regression",), approval="always"))
    assert [state for state, _ in both.verdicts()] == ["refused"]
    unknown = made(replace(OPEN, min_difference=5))
    ((_, rule),) = unknown.verdicts(fragments=(f"{SELECT} ORDER BY age",))
    assert "min_difference = 5" in rule
    noised = made(replace(OPEN, labels="never"))
    target = specifications_to_json((replace(SLOT, target=True, keys=()),))
    (first, *_) = noised.verdicts(specification=target, fragments=("SELECT days FROM patients",))
    assert "labels = 'never'" in first[1]


def test_runs_that_wait_for_their_owner(made: Make) -> None:
    party = made(replace(OPEN, approval="always"))
    has = "its owner's policy has approval = 'always'"
    assert party.verdicts() == [("waiting", has)]
    with pytest.raises(ApprovalError, match="as request 1"):
        party.propose()
    assert party.verdicts() == [("waiting", f"{has}, and this is request 1")]
    assert [filed.tables for filed in party.guard._approvals.all()] == [("main.patients",)]
    approvals = party.guard._approvals
    approvals.decide(1, "refused", "no free text")
    refused = "its owner has refused this run, request 1: no free text"
    assert party.verdicts() == [("refused", refused)]
    with pytest.raises(PolicyError, match=refused):
        party.propose()
    approvals.decide(1, "approved")
    assert party.verdicts() == []
    party.begin()
    # it is of one run
    with pytest.raises(ApprovalError, match="as request 2"):
        party.propose("s")
    approvals.decide(2, "approved")
    party.propose("s")
    party.propose("t")
    party.prepare("s")
    with pytest.raises(PolicyError, match="not approved any more"):
        party.prepare("t")
    assert party.ended == ["t"]


def test_approvals_and_runs_are_of_what_is_run(made: Make) -> None:
    party = made(replace(OPEN, approval="first_time"))
    other = replace(REQUEST, kind="logistic_regression").to_json()
    for number, own in ((1, {}), (2, {"request": other}), (1, {}), (2, {"request": other}),
                        (3, {"fragments": ("SELECT pid AS sqlfl_row FROM patients",),
                             "specification": specifications_to_json((replace(SLOT, keys=()),))}),
                        (1, {"fragments": (SELECT.lower(),)})):  # fmt: skip
        with pytest.raises(ApprovalError, match=f"as request {number}"):
            party.propose(**own)
    made(replace(OPEN, runs_per_day=1)).begin()
    text = "SELECT digest FROM sqlfl.requests WHERE number = 1"
    text = f"SELECT digest FROM sqlfl.runs UNION ALL {text}"
    told = made.con.execute(text).fetchall()
    assert len(told) == 2
    assert told[0] == told[1] != ("",)


def test_a_run_that_does_not_begin_leaves_what_it_had(made: Make) -> None:
    """And so it is where it is asked for less, or the party fails."""
    party = made(replace(OPEN, min_rows=SIZE + 1))
    party.propose()
    with pytest.raises(PolicyError, match=f"min_rows = {SIZE + 1}"):
        party.prepare()
    assert (party.ended, len(party.guard._runs)) == (["r"], 0)
    party = made()
    party.propose()
    party.fails = RuntimeError("out of memory")
    with pytest.raises(RuntimeError):
        party.prepare()
    assert (party.ended, len(party.guard._runs)) == (["r"], 0)
    party = made()
    party.begin()
    assert (party.ended, len(party.guard._runs)) == ([], 1)


LABEL = LabelNoise("randomized_response", 1.0, None, ("false", "true"))
NOISED = replace(
    SLOT, target=True, keys=(), base=True,
    privacy=SnapshotPrivacy(LABEL, "none", (), 0.0, 0.0, None),
)  # fmt: skip
ACCOUNT = {
    "specification": specifications_to_json((NOISED,)),
    "fragments": ("SELECT days, patients AS sqlfl_base FROM patients",),
    "request": replace(REQUEST, asked=(Asked(0, "activate", "", "", 1),
                                       Asked(0, "send_labels", "", "", 1)),
                       privacy=to_json(Privacy(label_epsilon=1.0))).to_json(),
}  # fmt: skip


def states(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    text = "SELECT run, state FROM sqlfl.ledger ORDER BY number"
    return con.execute(text).fetchall()


def test_what_is_reserved_of_an_account(made: Make) -> None:
    ruled(made.con, grant="")  # so that there are turns
    party = made(replace(OPEN, epsilon=1.5))
    ((state, _),) = party.verdicts(**ACCOUNT)
    assert state == "allowed"
    party.begin(**ACCOUNT)
    assert states(made.con) == [("r", "reserved")]
    party.ask(ms.Finish("r", -1))
    assert states(made.con) == [("r", "returned")]
    party.fails = RuntimeError("out of memory")
    with pytest.raises(RuntimeError):
        party.begin("s", **ACCOUNT)
    assert states(made.con)[1:] == []
    less = made(replace(OPEN, epsilon=0.9))
    ((state, rule),) = less.verdicts(**ACCOUNT)[:1]
    assert (state, "epsilon = 0.9" in rule) == ("refused", True)
    with pytest.raises(PolicyError, match=r"epsilon = 0.9"):
        less.propose(**ACCOUNT)


def test_what_training_may_release_is_of_the_slots_own_table(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[object] = []

    def begun(*given: Any) -> GovernedRun:
        allowed.append(given[4])
        return GovernedRun(*given)

    monkeypatch.setattr(guarding, "GovernedRun", begun)
    party = made()
    budget = Budget(1.0, 1e-6, None)
    two, nine, labels = (
        (LedgerEntry(FEATURES, multiplier=2.0),), (LedgerEntry(FEATURES, multiplier=9.0),),
        (LedgerEntry(LABELS, epsilon=1.0),),
    )  # fmt: skip
    other = ("memory", "main", "other")
    for run, entries in (("r", two), ("s", labels)):
        asked = (Demand(TABLE, (budget,), entries, 0), Demand(other, (budget,), nine, 1))
        monkeypatch.setattr(party.guard._accounting, "asked", lambda *_, found=asked: ((), found))
        party.propose(run, **ACCOUNT)
    assert allowed == [{0: pytest.approx(0.25)}, {}]


# -- what is asked beside runs ---------------------------------------------------------------------


def test_a_rehearsal_reads_what_is_granted(made: Make) -> None:
    party = made()
    told = ms.Rehearse("r", -1, REQUEST.to_json(), SLOTS, (SELECT,))
    rules = party.guard.rehearse(told, combined=False)
    shown = [rules.may_show(ScopeColumn(TABLE, name)) for name in ("pid", "salary")]
    assert shown == [True, False]
    assert rules.seconds == 600
    assert "rehearsal over rows that are made up: train" in party.guard._rehearsed
    salary = replace(told, fragments=("SELECT salary AS sqlfl_key_0_0 FROM patients",))
    with pytest.raises(PolicyError, match="column salary is not granted"):
        party.guard.rehearse(salary, combined=False)
    assert party.guard._rehearsed == ""


def test_what_a_run_is_held_to(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    party = made()
    party.ask(ms.SendKeys("s", 0))  # of no run that a party has, and there is no snapshot of
    party.begin()
    peers = ms.SetPeers("r", -1, (), np.zeros(0, np.int64), np.zeros((0, 32), np.uint8),
                        np.zeros((0, 32), np.uint8))  # fmt: skip
    seen: list[ms.Message] = []
    monkeypatch.setattr(GovernedRun, "check_peers", lambda _, request: seen.append(request))
    party.guard.check_peers(replace(peers, run="s"))
    assert not seen
    party.guard.check_peers(peers)
    assert seen == [peers]
    monkeypatch.setattr(GovernedRun, "serve", lambda *_: seen[0])
    party.answered.clear()
    assert party.ask(ms.SendKeys("r", 0)) is peers
    assert not party.answered
    # its block is the analyst's
    assert not party.guard._models.is_of_session("m")
    party.ask(ms.Save("r", 0, "m", "name", 0))
    assert party.guard._models.is_of_session("m")


def test_a_run_of_which_nothing_is_heard_ends(made: Make) -> None:
    party = made()
    party.begin()
    run = party.guard._runs.get("r")
    assert run is not None
    run.heard -= 2 * OPEN.lease
    with pytest.raises(PolicyError, match="lease = '1 hour'"):
        party.ask(ms.SendKeys("r", 0))
    assert party.ended == ["r"]


def test_heads_are_told(made: Make) -> None:
    party = made()
    reply = party.ask(ms.Seal("r", -1, "head", "chain"))
    assert isinstance(reply, ms.Sealed)
    assert len(reply.head) == 64
    assert not party.answered


def test_what_waits_is_written_at_the_end(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    party, closed = made(), []
    monkeypatch.setattr(party.guard._keeping, "close", lambda: closed.append(True))
    party.guard.close()
    assert closed == [True]


def test_names_are_looked_up_anew_in_each_statement(made: Make) -> None:
    party, text = made(), "SELECT age FROM patients"
    party.guard.accept("m")
    party.ask(ms.Describe("", -1, (text,)))
    made.con.execute("ALTER TABLE patients RENAME COLUMN age TO years")
    party.ask(ms.SendBlock("", -1, "m", 0))
    with pytest.raises(PolicyError, match="column age is not granted"):
        party.ask(ms.Describe("", -1, (text,)))


def test_blocks_of_a_run_are_of_the_analyst_whose_run_it_is(made: Make) -> None:
    party = made(blocks=lambda: ["r", "m"])
    party.begin()
    party.ask(ms.Finish("r", -1))
    party.answered.clear()
    own = ms.Drop("", -1, "r")
    party.ask(own)
    assert party.answered == [own]
    collect = ms.Collect("", -1, ())
    party.ask(collect)
    last = party.answered[-1]
    assert isinstance(last, ms.Collect)
    assert last.models == ("m",)


def test_blocks_of_others_are_left(made: Make) -> None:
    party = made(blocks=lambda: ["m"])
    with pytest.raises(PolicyError, match="not one of this analyst's"):
        party.ask(ms.Drop("", -1, "m"))
    party.guard.accept("m")
    assert not party.answered
    own = ms.Drop("", -1, "m")
    party.ask(own)
    assert party.answered == [own]


def test_a_ruling_serves_for_a_moment(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(guarding, "time", SimpleNamespace(monotonic=lambda: now))
    party = made()
    party.guard.accept("m")

    def looked(request: ms.Message) -> int:
        before = party.looked
        party.ask(request)
        return party.looked - before

    describe, block = ms.Describe("", -1, (SELECT,)), ms.SendBlock("", -1, "m", 0)
    assert [looked(one) for one in (describe, describe, block, block)] == [1, 0, 1, 1]
    now += LASTING
    assert looked(describe) == 0
    now += 0.001
    assert [looked(describe), looked(describe)] == [1, 0]
    Records.changes += 1
    assert [looked(describe), looked(describe)] == [1, 0]


def test_what_is_kept_of_messages(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    party = made()
    monkeypatch.setattr(party.guard._keeping, "keep", lambda *own: kept.append(own[-1]))
    sent = cast(Any, (ms.Describe("", -1, (SELECT,)), None))
    party.guard.keep(sent, sent)  # of a process that was restarted in a run
    assert kept == [""]
    kept.clear()
    party.ask(sent[0])
    party.guard.keep(sent, sent)
    party.propose()
    for run in ("r", "s"):
        propose = cast(Any, (ms.Propose(run, -1, "", "", ()), None))
        party.guard.keep(propose, propose)
    rehearse = cast(Any, (ms.Rehearse("r", -1, REQUEST.to_json(), SLOTS, (SELECT,)), None))
    party.guard.rehearse(rehearse[0], combined=False)
    party.guard.keep(rehearse, rehearse)
    told = "train linear_regression by sgd of main.patients"
    assert kept == ["", told, "", f"rehearsal over rows that are made up: {told}"]
    free = made(None)
    free.ask(ms.Describe("", -1, (SELECT,)))
    monkeypatch.setattr(free.guard._keeping, "keep", lambda *own: kept.append("free"))
    free.guard.keep(sent, sent)
    assert "free" not in kept
