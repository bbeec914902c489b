"""What has left, noised, is added up: never less than what left, and never beyond the budget."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dp_accounting
import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.codec import to_json
from sqlfl.base.errors import PartyError, PolicyError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.schema import Client, FeatureSpecification, FittedStep, Made, SlotSpecification
from sqlfl.governance.ledger import (
    FEATURES,
    LABELS,
    Budget,
    Demand,
    Ledger,
    LedgerEntry,
    account_epsilon,
    days,
)
from sqlfl.governance.noising import hindrance
from sqlfl.governance.records import Records
from sqlfl.messages import Message
from sqlfl.messages.wire import decode
from sqlfl.options.privacy import Privacy
from sqlfl.party.party import PartyClient
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import spread
from tests.governance.clinic import GRANT, PATIENTS, REQUEST, TESTS, TRAIN, ruled

BOUNDS = ", feature_bounds = {'age': [20, 80], 'bmi': [-1, 1], 'crp': [-1, 1]}"
COLUMNS = "p.age, p.bmi, t.crp, p.days"
TABLES = "clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
ACCOUNT = "epsilon = 10, delta = 1e-4"
TABLE = ("memory", "main", "patients")


def private(
    epsilon: float = 2,
    label: float = 1,
    algorithm: str = "sgd",
    epochs: int = 3,
    statistics: str = "bounds",
    bounds: str = BOUNDS,
    tables: str = TABLES,
    columns: str = COLUMNS,
    given: str = "predictions = 'gaussian'",
) -> str:
    return f"""TRAIN OR REPLACE MODEL m USING linear_regression TARGET days
      WITH (algorithm = '{algorithm}', epochs = {epochs})
      PRIVACY (epsilon = {epsilon}, delta = 1e-4, {given}, label_epsilon = {label},
               label_bounds = [-1, 3], statistics = '{statistics}'{bounds})
      FROM (SELECT {columns} FROM {tables})"""


def booked(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    return con.sql("SELECT what, state FROM sqlfl.ledger ORDER BY number").fetchall()


def spent(con: duckdb.DuckDBPyConnection, delta: float = 1e-4) -> float:
    """By dp-accounting, of the rows as they are: each draw of labels once."""
    rows = con.sql(
        """SELECT multiplier, epsilon, delta FROM sqlfl.ledger WHERE state <> 'returned'
        QUALIFY identity = '' OR row_number() OVER (PARTITION BY identity ORDER BY number) = 1"""
    ).fetchall()
    mu = math.sqrt(sum(m**-2.0 for m, _, _ in rows if m))
    left = delta - sum(d for *_, d in rows)
    pure = sum(e for _, e, _ in rows)
    return pure + (dp_accounting.get_epsilon_gaussian(1 / mu, left) if mu else 0.0)


def test_runs_are_added_up_and_end_at_the_budget(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ACCOUNT)
    fed.sql(private())
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")]
    assert spent(clinic) == pytest.approx(3.0, rel=1e-6)
    fed.sql(private(algorithm="admm"))
    fed.sql(private(statistics="noised"))
    fewer = BOUNDS.replace("'bmi': [-1, 1], ", "")
    fed.sql(private(columns="p.age, t.crp, p.days", bounds=fewer))
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")] * 4
    with_one_draw = spent(clinic)
    fed.sql(private(label=2, epsilon=0.01))
    assert with_one_draw + 2 <= spent(clinic) < with_one_draw + 2.01
    before = spent(clinic)
    shown = sqlfl.owner(clinic).sql("SHOW BUDGETS").arrow().to_pylist()
    assert [row["table"] for row in shown] == [".".join(TABLE)]
    assert shown[0]["spent"] == pytest.approx(before, rel=1e-9)
    assert shown[0]["remains"] == pytest.approx(10 - before, rel=1e-9)
    rows, models = booked(clinic), dict.fromkeys(fed.models)
    said = r"epsilon = 10 of main\.patients at delta = 0\.0001, and this run would pass it"
    with pytest.raises(PolicyError, match=said):
        fed.sql(private(epsilon=9))
    assert booked(clinic) == rows
    assert dict.fromkeys(fed.models) == models
    explained = " ".join(str(fed.explain(private(epsilon=9))).split())
    assert "would pass it" in explained
    assert f"{before:.4g}" in explained
    told = f"{before:.4g} of 10 is spent"
    assert told in " ".join(str(fed.explain(private(epsilon=0.1))).split())
    assert booked(clinic) == rows


def test_moments_are_charged_and_end_at_the_budget(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """Both sums of the table, of the budget that the statement asks for."""
    text = private(given="statistics = 'bounds'").replace(
        ", statistics = 'bounds'" + BOUNDS, BOUNDS
    )
    text = text.replace("(algorithm = 'sgd', epochs = 3)", "(algorithm = 'moments')")
    ruled(clinic, ACCOUNT)
    fed.sql(text)
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")]
    assert spent(clinic) == pytest.approx(3.0, rel=1e-4)
    before = booked(clinic)
    said = " ".join(str(fed.explain(text)).split())
    assert "clinic/0: the owner allows it. - clinic/0: epsilon of main.patients: 3 of 10 is" in said
    assert "after this run. -" in said
    with pytest.raises(PolicyError, match="this run would pass it"):
        fed.sql(text.replace("epsilon = 2", "epsilon = 9"))
    assert booked(clinic) == before


def test_moments_cut_off_between_their_rounds_are_spent_and_begin_anew(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no model to resume, and another TRAIN is another run."""
    text = private(epsilon=4, given="statistics = 'bounds'").replace(
        ", statistics = 'bounds'" + BOUNDS, BOUNDS
    )
    text = text.replace("(algorithm = 'sgd', epochs = 3)", "(algorithm = 'moments', rounds = 2)")
    ruled(clinic, ACCOUNT)
    answers, asked = PartyClient._answer, []

    def lost(self: PartyClient, request: Message) -> Message:
        if isinstance(request, ms.SendPredictions):
            raise PartyError("clinic/0", "is away")
        asked.append(request.kind)
        return answers(self, request)

    with monkeypatch.context() as broken:
        broken.setattr(PartyClient, "_answer", lost)
        with pytest.raises(PartyError, match="is away"):
            fed.sql(text)
    assert asked.count(ms.SendGram.kind) == asked.count(ms.Residuals.kind) == 2
    assert fed.models == ()
    with pytest.raises(sqlfl.ModelError, match="there is no model m"):
        fed.sql("RESUME MODEL m")
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")]
    assert spent(clinic) == pytest.approx(5.0, rel=1e-4)
    fed.sql(text)
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")] * 2
    assert 6.0 < spent(clinic) < 9.0  # the same noise of labels


UNNOISED = [
    (TRAIN, "noised labels"),
    (private(given="predictions = 'exact'"), "'gaussian' or 'moments', in plain sums"),
    (private(statistics="none", bounds=""), "statistics that are public or noised"),
    (private().replace("epsilon = 2, delta = 1e-4", "noise_multiplier = 3", 1), "under PRIVACY"),
    (private().replace("label_epsilon = 1,", "").replace("label_bounds = [-1, 3],", ""),
     "noised labels"),
    (private().replace("epochs = 3", "epochs = 3, validation_fraction = 0.2"), "nothing without"),
    (private(tables="(SELECT pid, max(age) AS age, max(bmi) AS bmi, max(days) AS days FROM "
             "clinic.patients GROUP BY pid) p JOIN lab.tests t ON p.pid = t.pid"),
     "a target that may be NULL decides by it which rows there are"),
    (private(tables="(SELECT pid, age, bmi, days FROM clinic.patients LIMIT 290) p JOIN "
             "lab.tests t ON p.pid = t.pid"), "each row of it in one row"),
    (private(tables=TABLES + " JOIN clinic.patients q ON q.pid = t.pid"), "each row of it in one"),
    (private(tables=TABLES + " WHERE p.age > 30"), "no condition on values"),
    (private(tables=TABLES + " WHERE p.bmi IS NOT NULL"), "no condition on values"),
    (private(tables=TABLES + " AND p.ward = 'w1'"), "no condition on values"),
    (f"CHECK TARGET days FROM (SELECT {COLUMNS} FROM {TABLES})", "noised labels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), UNNOISED, ids=range(len(UNNOISED)))
def test_what_leaves_without_noise_is_refused(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, text: str, said: str
) -> None:
    fed.sql(text)
    if "MODEL" in text:
        fed.sql("DROP MODEL m")
    ruled(clinic, ACCOUNT)
    by = "column days" if "may be NULL" in said else "epsilon.*which takes"
    with pytest.raises(PolicyError, match=rf"{by} .*{said}"):
        fed.sql(text)
    assert booked(clinic) == []
    assert "the owner refuses" in str(fed.explain(text))


FITTED = Made((("age", "DOUBLE"),), "age", FittedStep("minmax", "numeric"))
HELD_FEATURE = FeatureSpecification("age", "numeric")
HELD = SlotSpecification(
    0, (HELD_FEATURE,), False, False, (), (), (0,), False,
    "organisation", "arrays",
    privacy=SnapshotPrivacy(None, "bounds", ((0.0, 1.0),), 0.0, 0.0, 1e-4),
)  # fmt: skip
GAUSSIAN = replace(
    REQUEST, asked=(), privacy=to_json(Privacy(epsilon=1.0, delta=1e-4, predictions="gaussian"))
)


@pytest.mark.parametrize(
    "changed",
    [
        {"features": (FeatureSpecification("age", "numeric", 1, FITTED),)},
        {"secure": True},
        {"masked_predictions": True},
        {"folds": 2},
        {"weight": True},
        {"target": True},
        {"privacy": None},
        {"privacy": SnapshotPrivacy(None, "bounds", (None,), 0.0, 0.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "bounds", (), 0.0, 0.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "bounds", ((0.0, 1.0),), 0.0, 1e-9, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 1e-200, 0.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 0.0, 0.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 0.1, 0.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 100.0, 1e-5, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 100.0, 1.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", ((0.0, 1.0),), 100.0, -1.0, 1e-4)},
        {"privacy": SnapshotPrivacy(None, "noised", (None,), 100.0, 1e-5, 1e-4)},
        {
            "privacy": SnapshotPrivacy(None, "noised", ("ab",), 100.0, 0.0, 1e-4),
            "features": (FeatureSpecification("w", "category"), HELD_FEATURE),
        },
        {
            "privacy": SnapshotPrivacy(None, "noised", (None,), 100.0, 0.0, 1e-4),
            "features": (FeatureSpecification("w", "category"),),
        },
        {"privacy": replace(HELD.privacy or SnapshotPrivacy(None, "", (), 0, 0, 0), delta=None)},
    ],
    ids=str,
)
def test_what_a_coordinator_may_say_of_a_slot(changed: dict[str, object]) -> None:
    assert not list(hindrance(GAUSSIAN, HELD, (), ()))
    assert len(list(hindrance(GAUSSIAN, replace(HELD, **changed), (), ()))) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-4), (-1.0, 1e-4), (1.0, 0.0), (1.0, 1.0), (1.0, -1.0)]
)
def test_what_a_coordinator_may_say_of_a_run(epsilon: float, delta: float) -> None:
    told = to_json(Privacy(epsilon=epsilon, delta=delta, predictions="gaussian"))
    assert len(list(hindrance(replace(GAUSSIAN, privacy=told), HELD, (), ()))) == 1


@pytest.mark.parametrize(
    "label",
    [
        LabelNoise("laplace", -1.0, (0.0, 1.0), ()),
        LabelNoise("laplace", 0.0, (0.0, 1.0), ()),
        LabelNoise("laplace", math.inf, (0.0, 1.0), ()),
        LabelNoise("laplace", math.nan, (0.0, 1.0), ()),
        LabelNoise("laplace", 1.0, (1.0, 0.0), ()),
        LabelNoise("laplace", 1.0, (0.0, math.inf), ()),
        LabelNoise("randomized_response", 1.0, (0.0, 1.0), ()),
        LabelNoise("randomized_response", 1.0, None, ("a",)),
        LabelNoise("randomized_response", 1.0, None, ("a", "a")),
    ],
    ids=str,
)
def test_what_a_coordinator_may_say_of_labels(label: LabelNoise) -> None:
    good = LabelNoise("laplace", 1.0, (0.0, 1.0), ())
    slot = replace(HELD, target=True, features=())
    for own, refused in ((good, 0), (label, 1)):
        told = SnapshotPrivacy(own, "none", (), 0.0, 0.0, None)
        assert len(list(hindrance(GAUSSIAN, replace(slot, privacy=told), (), ()))) == refused


def test_the_privacy_that_is_told_is_one() -> None:
    with pytest.raises(sqlfl.InternalError, match="the privacy of a request is none"):
        list(hindrance(replace(REQUEST, privacy="7"), HELD, (), ()))


def test_models_are_not_scored_over_an_account(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(TRAIN)
    ruled(clinic, ACCOUNT)
    query = TRAIN.partition("FROM ")[2]
    for text in ("PREDICT MODEL m FROM ", "EVALUATE MODEL m FROM ", "SKEW OF MODEL m FROM "):
        with pytest.raises(PolicyError, match=r"epsilon = 10, which takes"):
            fed.sql(text + query)


def test_rows_of_a_view_are_the_unit_of_its_account(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    clinic.execute("""CREATE VIEW people AS SELECT pid, max(age) AS age, max(bmi) AS bmi,
                      max(days) AS days FROM patients GROUP BY pid""")
    grant = GRANT.replace(", ward", "").replace(", ill", "").replace("patients", "people")
    ruled(clinic, ACCOUNT, grant)
    fed.sql(private(tables=TABLES.replace("patients", "people")))
    assert clinic.sql("FROM sqlfl.ledger SELECT DISTINCT name").fetchall() == [("people",)]


def test_the_strictest_account_holds(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ACCOUNT)
    with sqlfl.owner(clinic) as owner:
        owner.sql("CREATE TRAINING POLICY s WITH (epsilon = 2.5, delta = 1e-5, per = '30 days')")
        owner.sql("GRANT TRAIN (age) ON patients TO 'acme' UNDER s")
        with pytest.raises(PolicyError, match=r"epsilon = 2\.5 of .* at delta = 1e-05, and"):
            fed.sql(private())
        fed.sql(private(epsilon=0.5))
        row = owner.sql("SHOW BUDGETS").arrow().to_pylist()[0]
        assert (row["epsilon"], row["delta"], row["per"]) == (2.5, 1e-5, None)


def test_a_window_passes(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "epsilon = 3.5, delta = 1e-4, per = '30 days'")
    fed.sql(private())
    with pytest.raises(PolicyError, match="within 30 days"):
        fed.sql(private())
    ago = "UPDATE sqlfl.ledger SET reserved_at = now() - INTERVAL 40 DAYS, ended_at = {}"
    clinic.execute(ago.format("now() - INTERVAL 29 DAYS"))
    with pytest.raises(PolicyError, match="within 30 days"):
        fed.sql(private())
    clinic.execute(ago.format("now() - INTERVAL 31 DAYS"))
    fed.sql(private())  # its labels are charged again
    assert [what for what, _ in booked(clinic)] == ["features", "labels"] * 2
    clinic.execute(ago.format("NULL") + ", state = 'reserved'")  # nobody knows what these told
    with pytest.raises(PolicyError, match="within 30 days"):
        fed.sql(private())


def test_what_fails_before_anything_leaves_is_given_back(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ACCOUNT + ", min_rows = 301")
    with pytest.raises(PolicyError, match="min_rows = 301"):
        fed.sql(private())
    assert booked(clinic) == [("features", "returned"), ("labels", "returned")]
    ruled(clinic, ACCOUNT, "")
    with pytest.raises(sqlfl.Error):
        fed.sql(private(tables=TABLES + " AND t.crp > 5"))  # no row is joined
    assert {state for _, state in booked(clinic)} == {"returned"}
    fed.sql(private())
    assert {state for _, state in booked(clinic)[-2:]} == {"spent"}


def test_other_analysts_have_accounts_of_their_own(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    ruled(clinic, "epsilon = 4, delta = 1e-4")
    fed.sql(private())
    with sqlfl.connect(analyst="umbrella", progress=False) as other:
        other.attach("clinic", clinic)
        other.attach("lab", database(TESTS))
        with pytest.raises(sqlfl.Error, match="clinic has no table patients"):
            other.sql(private())
        with sqlfl.owner(clinic) as owner:
            owner.sql(GRANT.replace("acme", "umbrella"))
            other.sql(private())
            analysts = owner.sql("SHOW BUDGETS").arrow()["analyst"].to_pylist()
    assert analysts == ["acme", "umbrella"]


def test_a_total_is_of_all_analysts(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    """It holds of all who have the table, also under a policy that does not say so."""
    ruled(clinic, "epsilon = 4, epsilon_total = 4.5, delta = 1e-4")
    with sqlfl.owner(clinic) as owner, sqlfl.connect(analyst="b", progress=False) as other:
        owner.sql("CREATE TRAINING POLICY s")
        owner.sql(GRANT.replace("acme", "b").replace("UNDER r", "UNDER s"))
        other.attach("clinic", clinic)
        other.attach("lab", database(TESTS))
        with pytest.raises(PolicyError, match=r"epsilon_total = 4\.5, which takes noised labels"):
            other.sql(TRAIN)
        fed.sql(private())
        told = " ".join(str(other.explain(private(epsilon=0.1))).split())
        assert "epsilon_total of main.patients: 3 of 4.5 is spent" in told
        with pytest.raises(PolicyError, match=r"epsilon_total = 4\.5 of main\.patients at delta"):
            other.sql(private())
        other.sql(private(epsilon=0.5))
        rows = owner.sql("SHOW BUDGETS").arrow().to_pylist()
        assert [(row["analyst"], row["epsilon"]) for row in rows] == [
            ("acme", 4.0), ("b", None), (None, 4.5),
        ]  # fmt: skip
        assert rows[2]["spent"] == pytest.approx(spent(clinic), rel=1e-9)
        assert max(row["spent"] for row in rows[:2]) < rows[2]["spent"] <= 4.5
        assert rows[2]["entries"] == 4
        owner.sql("REVOKE ALL ON patients FROM 'acme'")
        other.sql(TRAIN)  # under the policy without an account alone
        assert len(owner.sql("SHOW BUDGETS").arrow()) == 2


def test_a_total_passes_by_windows_of_its_own(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic)
    ledger = Ledger(Records(clinic, "memory"))
    budgets = (Budget(9.0, 1e-5, None), Budget(2.0, 1e-5, 3600.0, total=True))
    entry = LedgerEntry(LABELS, epsilon=1.5)
    ledger.settle(ledger.reserve("r", "a", (Demand(TABLE, budgets, (entry,)),)), [LABELS])
    with pytest.raises(PolicyError, match=r"epsilon_total = 2 of .* within 1 hours"):
        ledger.check("b", (Demand(TABLE, budgets, (entry,)),))
    clinic.execute("UPDATE sqlfl.ledger SET ended_at = now() - INTERVAL 2 HOURS")
    ledger.check("b", (Demand(TABLE, budgets, (entry,)),))
    assert ledger.account("a", TABLE, budgets[0]).epsilon(1e-5) == 1.5


# -- a coordinator that lies -----------------------------------------------------------------------


def lying(monkeypatch: pytest.MonkeyPatch, kind: type[Message], change: object) -> list[Message]:
    """Each client is told what `change` makes of a request of that kind; and what came of it."""
    replies: list[Message] = []
    honest = PartyClient._answer

    def told(self: PartyClient, request: Message) -> Message:
        if not isinstance(request, kind) or self.client.party != "clinic":
            return honest(self, request)
        reply = honest(self, change(request))  # type: ignore[operator]
        replies.append(reply)
        return reply

    monkeypatch.setattr(PartyClient, "_answer", told)
    return replies


def noise(**values: object) -> object:
    def change(request: ms.Start) -> ms.Start:
        found = json.loads(request.configuration)
        found["privacy"] |= values
        return replace(request, configuration=json.dumps(found))

    return change


@pytest.mark.parametrize(
    "values",
    [
        {"noise": 1e-200},
        {"prediction_noise": 1e-200},
        {"noise": 0.0},
        {"prediction_noise": 0.0, "prediction_clip": 0.0},
        {"clip": 1e6},
        {"prediction_clip": 1e6},
        {"clip": 0.0, "noise": 0.0},
        {"clip": 0.0, "noise": 0.0, "bins": 5, "theta": 0.1},
        {"mechanism": "gumbel", "selection_noise": 1e-9},
    ],
    ids=str,
)
def test_noise_of_another_size_tells_nothing(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, object],
) -> None:
    ruled(clinic, ACCOUNT)
    lying(monkeypatch, ms.Start, noise(**values))
    told = lying(monkeypatch, ms.Residuals, lambda request: request)
    with pytest.raises(PolicyError, match=r"reserved for this run|no place for this noise"):
        fed.sql(private())
    assert not told
    # what was measured before is spent
    assert booked(clinic) == [("features", "spent"), ("labels", "spent")]


def test_moments_of_another_noise_tell_nothing(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled(clinic, ACCOUNT)
    lying(monkeypatch, ms.Start, noise(moments_noise=1e-9))
    with pytest.raises(PolicyError, match="reserved for this run"):
        fed.sql(private(algorithm="admm"))


def test_more_rounds_than_were_reserved(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds follow from the noise, too: the last one that fits is answered, the next one not."""
    ruled(clinic, ACCOUNT)
    found: list[int] = []
    honest = PartyClient._answer

    def told(self: PartyClient, request: Message) -> Message:
        if isinstance(request, ms.Residuals) and self.client.party == "clinic":
            for _ in range(1000):
                honest(self, request)
                found.append(1)
        return honest(self, request)

    monkeypatch.setattr(PartyClient, "_answer", told)
    with pytest.raises(PolicyError, match=r"reserved for this run|is not of the run"):
        fed.sql(private(epochs=5))
    assert 1 <= len(found) <= 10


def test_labels_of_less_noise_than_was_reserved(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled(clinic, ACCOUNT)

    def change(request: ms.Prepare) -> ms.Prepare:
        found = json.loads(request.specification)
        found[0]["privacy"]["label"]["epsilon"] = 1000.0
        return replace(request, specification=json.dumps(found))

    lying(monkeypatch, ms.Prepare, change)
    with pytest.raises(PolicyError, match="another one than was proposed"):
        fed.sql(private())
    assert booked(clinic) == []


# -- schedules -------------------------------------------------------------------------------------

ENTRIES = st.builds(
    LedgerEntry,
    st.just(FEATURES),
    multiplier=st.floats(0.5, 20),
    delta=st.sampled_from([0.0, 1e-7]),
) | st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0]).map(
    lambda e: LedgerEntry(LABELS, epsilon=e, identity=f"noise of {e:g}")
)


@given(st.lists(st.tuples(ENTRIES, st.sampled_from(["spent", "returned", "killed"])), max_size=12))
def test_never_below_what_left_and_never_beyond(
    schedule: list[tuple[LedgerEntry, str]],
) -> None:
    budget, left = Budget(5.0, 1e-5, None), []
    with duckdb.connect() as con:
        with sqlfl.owner(con) as owner:
            owner.sql("CREATE TRAINING POLICY p")
        ledger = Ledger(Records(con, "memory"))
        for entry, end in schedule:
            before = ledger.account("a", TABLE, budget).epsilon(budget.delta)
            try:
                numbers = ledger.reserve("r", "a", (Demand(TABLE, (budget,), (entry,)),))
            except PolicyError:
                assert ledger.account("a", TABLE, budget).after((entry,)).epsilon(1e-5) > 5.0
                assert ledger.account("a", TABLE, budget).epsilon(1e-5) == before
                continue
            if end != "returned":
                left.append(entry)
            if end != "killed":
                ledger.settle(numbers, [entry.what] if end == "spent" else [])
            distinct = {e.identity: e for e in left if e.identity}
            released = [e for e in left if not e.identity] + list(distinct.values())
            known = ledger.account("a", TABLE, budget).epsilon(budget.delta)
            assert known >= account_epsilon(released, budget.delta) * (1 - 1e-9)
            assert known <= budget.epsilon
            assert ledger.account("b", TABLE, budget).entries == ()


@pytest.mark.parametrize("total", [False, True])
def test_coordinators_at_once(clinic: duckdb.DuckDBPyConnection, total: bool) -> None:
    ruled(clinic)
    budget = Budget(5.0, 1e-5, None, total=total)
    entry = LedgerEntry(LABELS, epsilon=1.0)
    said: list[str] = []

    def run(name: str) -> None:
        with closing(clinic.cursor()) as con:
            ledger = Ledger(Records(con, "memory"))
            for number in range(5):
                try:
                    analyst = name if total else "a"
                    ledger.reserve(
                        f"{name} {number}", analyst, (Demand(TABLE, (budget,), (entry,)),)
                    )
                    said.append("reserved")
                except PolicyError:
                    said.append("refused")

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said.count("reserved") == 5
    assert said.count("refused") == 15
    assert Ledger(Records(clinic, "memory")).account("a", TABLE, budget).epsilon(1e-5) == 5.0


NOISED = """TRAIN OR REPLACE MODEL {} USING logistic_regression TARGET ill
  WITH (algorithm = 'sgd', epochs = 1) PRIVACY (label_epsilon = {})
  FROM (SELECT t.crp, p.ill FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid)"""


class Between:
    """A transport on which `work` is done when keys are first asked for; then it is cut off."""

    def __init__(self, inner: Transport, work: Callable[[], object]) -> None:
        self._inner, self._work, self._done = inner, work, False

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        if not self._done and any(isinstance(decode(data), ms.SendKeys) for _, data in requests):
            self._done = True
            self._work()
            raise ConnectionError("gone")
        return self._inner.exchange(requests)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_a_run_beside_one_that_is_dropped_keeps_its_entry(tmp_path: Path) -> None:
    """The draw that both ask for was reserved by the first one, of which nothing leaves."""
    with duckdb.connect(tmp_path / "clinic.duckdb") as con, duckdb.connect() as lab:
        con.execute(PATIENTS)
        lab.execute(TESTS)
        ruled(con, "epsilon = 1.5, delta = 1e-6")

        def federation(wrap: Callable[[Transport], Transport] | None = None) -> sqlfl.Federation:
            found = sqlfl.Federation(progress=False, analyst="acme", wrap=wrap)
            found.attach("clinic", con)
            found.attach("lab", lab)
            return found

        with federation() as fed:
            with (
                federation(
                    lambda inner: Between(inner, lambda: fed.sql(NOISED.format("b", 1.0)))
                ) as dropped,
                pytest.raises(ConnectionError, match="gone"),
            ):
                dropped.sql(NOISED.format("a", 1.0))
            assert booked(con) == [("labels", "returned"), ("labels", "spent")]
            assert spent(con) == 1.0
            with pytest.raises(PolicyError, match="would pass it"):
                fed.sql(NOISED.format("c", 0.9))


def test_a_run_of_the_same_name_gives_back_what_is_its_own(
    clinic: duckdb.DuckDBPyConnection,
) -> None:
    ruled(clinic)
    budget, entry = Budget(5.0, 1e-5, None), LedgerEntry(LABELS, epsilon=1.0)
    ledger = Ledger(Records(clinic, "memory"))
    ledger.reserve("r", "a", (Demand(TABLE, (budget,), (entry,)),))
    ledger.settle(ledger.reserve("r", "a", (Demand(TABLE, (budget,), (entry,)),)), ())
    assert booked(clinic) == [("labels", "reserved"), ("labels", "returned")]
    assert ledger.account("a", TABLE, budget).epsilon(1e-5) == 1.0


KILLED = """
import sys, duckdb, sqlfl
from sqlfl import messages as ms
from sqlfl.party.party import PartyClient
from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.schema import FeatureSpecification, SlotSpecification
from tests.governance.test_ledger import private
honest, seen = PartyClient._answer, []
def told(self, request):
    reply = honest(self, request)
    if self.client.party == "clinic" and request.kind == sys.argv[2]:
        print("now", flush=True)
        sys.stdin.read()
    return reply
PartyClient._answer = told
con = duckdb.connect(sys.argv[1])
lab = duckdb.connect()
lab.execute("CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp FROM range(300) AS r(i)")
with sqlfl.connect(analyst="acme", progress=False) as fed:
    fed.attach("clinic", con)
    fed.attach("lab", lab)
    fed.sql(private())
"""


def test_each_part_of_an_entry_counts() -> None:
    whole = LedgerEntry(FEATURES, multiplier=2.0, epsilon=1.0, delta=5e-5)
    parts = (replace(whole, multiplier=0.0), replace(whole, epsilon=0.0), replace(whole, delta=0.0))
    for less in parts:
        assert account_epsilon([less], 1e-4) < account_epsilon([whole], 1e-4)


@pytest.mark.parametrize("kind", spread(("prepare", "send_labels", "residuals", "save"), 1))
def test_a_process_that_is_killed_leaves_what_it_reserved(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        con.execute(PATIENTS)
        ruled(con, ACCOUNT)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), kind],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        os.kill(process.pid, signal.SIGKILL)
    with duckdb.connect(path) as con:
        assert booked(con) == [("features", "reserved"), ("labels", "reserved")]
        assert spent(con) == pytest.approx(3.0, rel=1e-6)
        ruled(con, "epsilon = 5, delta = 1e-4", "")
        with sqlfl.connect(analyst="acme", progress=False) as fed, duckdb.connect() as lab:
            lab.execute(TESTS)
            fed.attach("clinic", con)
            fed.attach("lab", lab)
            with pytest.raises(PolicyError, match="would pass it"):
                fed.sql(private(epsilon=4.5))
            fed.sql(private(epsilon=1))


def test_a_ledger_without_turns_allows_nothing(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, ACCOUNT)
    clinic.execute("DELETE FROM sqlfl.turns")
    # on a slow machine it is the record of messages, written after a while, that meets it first
    refusals = "schema sqlfl of its database is damaged|takes no record of its messages"
    with pytest.raises(sqlfl.Error, match=refusals):
        fed.sql(private())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(86400 * 30, "30 days"), (5400, "1.5 hours"), (120, "2 minutes"), (9, "9 seconds")],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert days(seconds) == said
