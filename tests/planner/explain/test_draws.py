"""The report of sums of embeddings: no ε where gradients are exact, and whom one holds against."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.contract.schema import Client
from sqlfl.federation.planning import explain
from sqlfl.options.privacy import Privacy
from sqlfl.planner.explain.card import PrivacyReport, upwards
from sqlfl.planner.explain.render import WIDTH
from sqlfl.planner.explain.report import expected_report, report_of
from sqlfl.planner.explain.setting import PrivacyClaim, ReportSetting
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Fragment, Join, Ucq
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.binomial import draws_of, of_joined_row
from sqlfl.privacy.calibration import calibrate
from sqlfl.privacy.collusion import honest_slots
from tests import goldens
from tests.depth import spread
from tests.planner import plans

GOLDEN = Path(__file__).parents[2] / "fixtures" / "privacy"
DELTA = 1e-5
ALONE = {"bins": 4, "theta": 0.05}
WAYS: dict[str, dict[str, Any]] = {
    "draws alone": ALONE,
    "noised gradients": ALONE | {"noise_multiplier": 8.0},
    "a budget": {"epsilon": 5.0},
}
LABELS = {"label_epsilon": 2.0, "label_mechanism": "randomized_response"}
NUMBERS = ("sums of embeddings", "gradients", "history and metrics", "the model's parameters")


def private(**given: Any) -> Privacy:
    own: dict[str, Any] = {"delta": DELTA, "statistics": "bounds", "predictions": "binomial"}
    return Privacy(**own | given)


def planes() -> Ucq:
    """Flights of airline with the weather of meteo and the planes of registry."""
    ucq = plans.flights()
    f, w = ucq.slots
    p = replace(w, index=2, name="p", fragments=tuple(_moved(own) for own in w.fragments))
    (block,) = ucq.blocks
    parts, joins = (*block.members, (2, (0,))), (*block.joins, Join(0, 2, 0))
    joined = replace(block, members=parts, joins=joins)
    return replace(ucq, slots=(f, w, p), blocks=(joined,))


def _moved(own: Fragment) -> Fragment:
    return replace(own, client=Client("registry", 0))


def plan_of(privacy: Privacy | None, at: str | None = None, cards: bool = False) -> FederatedPlan:
    """Of `cards` two parties, of which one is at a slot with two clients; else three."""
    ucq = plans.cards() if cards else planes()
    kind = "mlp_regressor" if cards else "mlp_classifier"
    plan = plans.train(ucq, kind, {"algorithm": "pbm", "embedding": 4}, at=at, privacy=privacy)
    return replace(plan, privacy=privacy)


def rounds_of(plan: FederatedPlan) -> list[PlannedReleases]:
    slots = [slot for slot in plan.ucq.slots if slot.features]
    asked = None if plan.privacy is None else plan.privacy.honest_parties
    return [
        PlannedReleases(
            slot=slot.index, gradients=3 + number, predictions=0, moments=0,
            moments_sensitivity=0.0, clip=1.0, clients=len(slot.clients), copies=1 + number,
            partners={}, steps=30, whole=False, epochs=3, draws=3 * (1 + number), outputs=4,
            honest=honest_slots(plan.ucq.slots, slot, plan.at, asked),
        )
        for number, slot in enumerate(slots)
    ]  # fmt: skip


def reported(plan: FederatedPlan, done: bool) -> PrivacyReport:
    if not done:
        return expected_report(plan)
    asked = plan.privacy
    private = asked is not None and asked.features
    return report_of(plan, calibrate(asked, rounds_of(plan)) if asked and private else None)


def told(report: PrivacyReport) -> str:
    return " ".join(" ".join(report.promises).split())


def cases(**given: Any) -> Iterator[tuple[FederatedPlan, bool]]:
    for statistics, cards, done, labels, honest in itertools.product(
        ("bounds", "none"), (False, True), (False, True), ({}, LABELS), (None, 1)
    ):
        bounds = {"label_bounds": (0.0, 9.0), "label_mechanism": "laplace"} if cards else {}
        privacy = private(
            statistics=statistics, honest_parties=honest, **given, **(labels and labels | bounds)
        )
        yield plan_of(privacy, cards=cards), done


# -- draws alone ----------------------------------------------------------------------------------


def check_nothing_is_claimed(plan: FederatedPlan, report: PrivacyReport) -> None:
    text = " ".join(str(report).split())
    for release in report.releases:
        if release.kind != "labels":
            assert (release.epsilon, release.delta, release.pending) == (None, None, False)
            assert release.protection == "none"
    assert "Features: none over the run, as gradients are exact" in text
    assert "later sum" in text
    assert "Features: (" not in text
    labels = plan.privacy is not None and plan.privacy.labels
    assert ("-DP" in text) == labels
    assert "Features: none over the run" in report.short
    assert "(4," not in report.short


def test_draws_beside_exact_gradients_claim_nothing() -> None:
    for plan, done in cases(**ALONE):
        check_nothing_is_claimed(plan, reported(plan, done))


def _always(own: ReportSetting) -> dict[int, PrivacyClaim]:
    return {slot.index: PrivacyClaim(1.0, own.privacy.delta) for slot in own.slots}


def test_a_claim_there_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportSetting, "claims", property(_always))
    plan = plan_of(private(**ALONE))
    with pytest.raises(AssertionError):
        check_nothing_is_claimed(plan, reported(plan, True))


def test_towers_held_fixed_have_the_epsilon_of_the_draws() -> None:
    plan = plan_of(private(**ALONE))
    slots = rounds_of(plan)
    text = told(reported(plan, True))
    for own in slots:
        assert f"({upwards(epsilon_of([draws_of(own, 4, 0.05)], DELTA))}, 1e-05)" in text
    whole = upwards(epsilon_of([of_joined_row(slots, 4, 0.05)], DELTA))
    assert f"({whole}, 1e-05) where the rows of all tables change" in text
    assert text.endswith("That is no ε of the run, which trains the towers.")
    before = told(reported(plan, False))
    assert "which is known once the join is. It is no ε of a run" in before


# -- with noised gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["noised gradients", "a budget"])
def test_noised_gradients_have_one(way: str) -> None:
    every = list(cases(**WAYS[way]))  # some take a second to calibrate
    for plan, done in spread(every, max(2, len(every) // 8)):
        asked = plan.privacy
        assert asked is not None
        report = reported(plan, done)
        bounded = asked.statistics == "bounds"
        assert ("Features: (" in told(report)) == bounded
        assert ("though gradients are clipped and noised" in told(report)) == (not bounded)
        long, short = (
            set(re.findall(r"\(\S+, \S+\)-DP", " ".join(texts)))
            for texts in (report.promises, report.summary)
        )
        assert long == short
        assert len(report.short.splitlines()) <= 11
        account = calibrate(asked, rounds_of(plan)).epsilons.values() if done else ()
        for release in report.releases:
            if release.kind in NUMBERS and release.epsilon is not None:
                assert bounded
                assert release.delta == DELTA
                assert release.epsilon in {*account, asked.epsilon}
        sums = [r for r in report.releases if r.kind == "sums of embeddings"]
        assert {r.observer for r in sums} == {"coordinator", "other parties"}
        assert all((r.delta is not None) == bounded for r in sums)
        assert not any(r.kind == "predictions" for r in report.releases)


def test_numbers_are_those_of_the_account() -> None:
    privacy = private(**WAYS["noised gradients"], honest_parties=3)
    plan = plan_of(privacy)
    account = calibrate(privacy, rounds_of(plan))
    report = report_of(plan, account)
    sums = [r for r in report.releases if (r.kind, r.observer) == (NUMBERS[0], "coordinator")]
    assert {r.epsilon for r in sums} == set(account.epsilons.values())
    assert "a draw of Binomial(4, ½ + 0.05 h), h in [-1, 1]" in sums[0].mechanism
    assert "at most 12 draws" in sums[0].mechanism
    assert "Features of all rows that one joined row is made of: (" in told(report)
    beside = sum(len(events) for events in account.events.values())
    assert beside == 2 * len(account.events)


# -- against whom ---------------------------------------------------------------------------------


def against(honest: int | None, at: str | None = None) -> tuple[str, bool]:
    """Whom it holds against, and whether other parties alone are among them."""
    privacy = private(**WAYS["noised gradients"], honest_parties=honest)
    report = reported(plan_of(privacy, at), True)
    found = re.search(r"Features: .*?, against (.*?)\.", told(report))
    assert found is not None
    others = [r for r in report.releases if (r.kind, r.observer) == (NUMBERS[0], "other parties")]
    assert len({r.delta for r in others}) == 1
    return found[1], others[0].delta is not None


def test_whom_an_epsilon_holds_against() -> None:
    names = sorted({p for slot in plan_of(None).ucq.slots for p in slot.parties})
    assert len(names) == 3
    users = "and the users of the model"
    one = f"the coordinator, any one of the other parties {users}"
    assert against(None) == against(2) == (one, True)
    assert against(1) == (f"the coordinator, the other parties {users}", True)
    assert against(3) == (f"the coordinator {users}", False)
    place = f"the coordinator (at {names[0]})"
    assert against(None, names[0]) == (f"{place}, any one of the other parties {users}", True)
    assert against(1, names[0]) == (f"{place}, the other parties {users}", True)
    assert against(2, names[0]) == (f"{place} {users}", False)


def test_who_is_not_covered_is_told() -> None:
    report = reported(plan_of(private(**WAYS["a budget"], honest_parties=3)), True)
    assert "Features: none against another party, which knows its own draws" in told(report)
    (other,) = [r for r in report.releases if (r.kind, r.observer) == (NUMBERS[0], "other parties")]
    assert other.note == "a party knows its own draws, so that this ε does not hold against it"
    text = " ".join(report.assumptions)
    assert "Beside the coordinator no party may tell draws" in text
    usual = " ".join(reported(plan_of(private(**WAYS["a budget"])), True).assumptions)
    assert "no more than 1 of the other parties may tell draws" in usual
    for sentence in ("the same draws under fresh masks", "sealed by the secret that the parties"):
        assert sentence in usual
    assert "has both" not in usual
    at = reported(plan_of(private(**WAYS["a budget"]), "airline"), True).assumptions
    assert "and see its draws; airline has both." in " ".join(at)


def test_clients_of_one_table_know_draws_of_others() -> None:
    """A partial gradient's sum goes to all clients of the table, whose party is trusted."""
    report = reported(plan_of(private(**WAYS["noised gradients"]), cards=True), True)
    seen = {r.observer: r for r in report.releases if r.kind == "gradients"}
    assert seen["coordinator"].epsilon is not None
    assert seen["other clients of the table"].epsilon is None
    assert "All clients of the row's own party are trusted" in " ".join(report.assumptions)


def test_of_many_coins_the_report_says_that_fewer_count() -> None:
    privacy = private(bins=1024, theta=0.001, noise_multiplier=8.0, honest_parties=3)
    text = " ".join(reported(plan_of(privacy), True).assumptions)
    assert "fewer tables' draws count as secret than are" in text
    few = private(bins=4, theta=0.001, noise_multiplier=8.0, honest_parties=3)
    assert "fewer tables' draws" not in " ".join(reported(plan_of(few), True).assumptions)


# -- without the clause, and its faces ------------------------------------------------------------


def test_without_noise_sums_are_exact() -> None:
    report = reported(plan_of(None), True)
    assert "exact sums of all tables' embeddings, of each joined row" in told(report)
    assert "predictions" not in told(report)
    (sums, _) = [r for r in report.releases if r.kind == "sums of embeddings"]
    assert (sums.protection, sums.mechanism) == (
        "none",
        "exact, of each joined row over all tables",
    )
    labels = reported(plan_of(Privacy(**LABELS, label_classes=("false", "true"))), True)
    assert "of one joined row they are exact functions of its features" in told(labels)
    assert "Features: none, sums of embeddings are exact." in labels.short


@pytest.mark.parametrize("way", WAYS)
def test_explain_says_what_is_summed(way: str) -> None:
    page = " ".join(str(explain(plan_of(private(**WAYS[way]))).details).split())
    assert "the coordinator gets the sum of all slots' embeddings, once an epoch" in page
    assert "Not protected: sums of embeddings" not in page
    assert "partial predictions of every active row leave in clear" not in page
    assert "embeddings drawn (Poisson binomial) and summed in secret" in page
    assert ("clipped, their sum noised" in page) == (way != "draws alone")
    assert ("prediction_share" in page) == (way == "a budget")
    plain = " ".join(str(explain(plan_of(None)).details).split())
    assert "Not protected: sums of embeddings, which are exact functions of features." in plain
    assert "partial predictions of every active row leave in clear" not in plain


@pytest.mark.parametrize("way", WAYS)
def test_text(way: str) -> None:
    text = f"{reported(plan_of(private(**WAYS[way])), True)}\n"
    goldens.check(GOLDEN / f"{way.replace(' ', '_')}.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH
