"""A coordinator that claims what an owner's modes ask for, and does something else."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl import messages as ms
from sqlfl.aggregation.keys import KeyPair
from sqlfl.base.codec import to_json
from sqlfl.contract.configuration import TowerConfiguration
from sqlfl.contract.privacy_specification import LabelNoise, RoundNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked
from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made, SlotSpecification
from sqlfl.messages import Message
from sqlfl.methods.pbm.configuration import PbmConfiguration
from sqlfl.methods.pbm.messages import PbmResiduals, SendEmbeddings
from sqlfl.options.privacy import Privacy
from sqlfl.party.party import PartyClient
from sqlfl.privacy.accountant import budget
from sqlfl.udfs.numbering.keys import derive
from tests.conftest import Open
from tests.depth import examples
from tests.governance.test_hostile_coordinator import (
    ALL,
    BOUNDED,
    DAYS,
    ENOUGH,
    FEATURES,
    LABELS,
    NUMBERS,
    PRIVATE,
    QUIET,
    ROUNDS,
    SELECT,
    SLOT,
    STEP,
    TOLD,
    TRAINED,
    WITH_LABELS,
    Ask,
    assert_refused,
    begun,
    party,
    propose,
    refusal,
    request,
    start,
    told,
)
from tests.open_databases import in_memory

PROTECTED = replace(TRAINED, privacy=BOUNDED)
NOISED = "predictions = 'noised'"


@pytest.fixture
def ruled(database: Open) -> Iterator[Callable[[str], Ask]]:
    clients: list[PartyClient] = []

    def opened(rules: str) -> Ask:
        clients.append(party(database("SELECT 1"), rules))
        return lambda message: told(clients[-1], message)

    yield opened
    for client in clients:
        client.close()


# -- noise -----------------------------------------------------------------------------------------


def test_noise_that_is_enough(ruled: Callable[[str], Ask]) -> None:
    ask = ruled(NOISED)
    assert isinstance(begun(ask, PROTECTED, request(*TOLD, privacy=PRIVATE)), ms.Ready)
    assert isinstance(ask(start(ENOUGH)), ms.Ready)
    found = ask(ROUNDS[3])
    assert isinstance(found, ms.Predictions)
    assert found.values.std() == pytest.approx(1e3, rel=0.3)
    assert isinstance(ask(STEP), ms.Predictions)


CLAIMED: dict[str, RoundNoise | None] = {
    "none": None,
    "nothing": RoundNoise(0.0, 0.0),
    "of no size": replace(ENOUGH, noise=1e-200, prediction_noise=1e-200),
    "of predictions of no size": replace(ENOUGH, prediction_noise=1e-200),
    "of gradients of no size": replace(ENOUGH, noise=1e-200),
    "of gradients alone": replace(ENOUGH, prediction_clip=0.0, prediction_noise=0.0),
    "a clip without end": replace(ENOUGH, prediction_clip=1e9, clip=1e9),
    "of draws": RoundNoise(0.0, 0.0, bins=16, theta=0.1),
    "of choices": replace(ENOUGH, mechanism="gumbel", selection_noise=1.0),
}


@pytest.mark.parametrize("noise", CLAIMED.values(), ids=CLAIMED)
@pytest.mark.parametrize("rules", [NOISED, f"{NOISED}, epsilon = 1, delta = 1e-4"])
def test_noise_that_is_claimed(
    ruled: Callable[[str], Ask], rules: str, noise: RoundNoise | None
) -> None:
    """What was proposed is one thing, what training begins with another."""
    ask = ruled(rules)
    assert isinstance(begun(ask, PROTECTED, request(*TOLD, privacy=PRIVATE)), ms.Ready)
    begins, told_ = ask(start(noise)), [ask(message) for message in ROUNDS[3:5]]
    assert any(isinstance(reply, ms.Failure) for reply in (begins, *told_))
    for reply in told_:
        if isinstance(reply, ms.Predictions):  # those of a block of zeros
            assert reply.values.std() > 100.0


def test_more_rounds_than_the_noise_is_for(ruled: Callable[[str], Ask]) -> None:
    """With the least noise that epsilon = 0.5 has for a round, another one is refused."""
    ask = ruled(f"{NOISED}, delta = 1e-4")
    often = tuple(replace(one, most=9) if one.kind == "residuals" else one for one in TOLD)
    assert isinstance(begun(ask, PROTECTED, request(*often, privacy=PRIVATE)), ms.Ready)
    mu = budget(0.5, 1e-4)
    z = 2.0 / mu * np.sqrt(2.0) * (1.0 + 1e-6)
    assert isinstance(ask(start(RoundNoise(1.0, z, 1.0, z))), ms.Ready)
    assert isinstance(ask(STEP), ms.Predictions)
    refusal(ask(STEP), "more would leave")
    refusal(ask(ROUNDS[3]), "more would leave")


SAID: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"epsilon": 1e-5, "delta": 0.5}, "max_epsilon = 4"),
    ({}, {"epsilon": 4.1}, "max_epsilon = 4"),
    ({}, {"epsilon": 1e6}, "max_epsilon = 4"),
    ({}, {"epsilon": 1e300}, "statistics in public bounds"),
    ({}, {"epsilon": -1.0}, "statistics in public bounds"),
    ({}, {"epsilon": 0.0}, "statistics in public bounds"),
    ({}, {"epsilon": None, "noise_multiplier": 5.0}, "training under PRIVACY"),
    ({}, {"predictions": "none"}, "PRIVACY with predictions = 'gaussian'"),
    ({}, {"predictions": "binomial"}, "PRIVACY with predictions = 'gaussian'"),
    ({"privacy": None}, {}, "training under PRIVACY"),
    ({"privacy": replace(BOUNDED, delta=None)}, {}, "training under PRIVACY"),
    ({"privacy": replace(BOUNDED, statistics="none")}, {}, "statistics that are public"),
    ({"privacy": replace(BOUNDED, statistics="noised", statistics_noise=1e-200)}, {},
     "statistics in public bounds"),
    ({"masked_predictions": True}, {},
     "PRIVACY with predictions = 'gaussian' or 'moments', in plain sums"),
    ({"secure": True, "shared": True}, {}, "in plain sums"),
    ({"folds": 3}, {}, "in plain sums"),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "privacy", "said"), SAID, ids=range(len(SAID)))
def test_noise_that_is_proposed(
    ruled: Callable[[str], Ask], slot: dict[str, Any], privacy: dict[str, Any], said: str
) -> None:
    own = {"epsilon": 0.5, "delta": 1e-4, "predictions": "gaussian", **privacy}
    asked = request(*TOLD, privacy=to_json(Privacy(**own)))
    refusal(begun(ruled(NOISED), replace(PROTECTED, **slot), asked), said)


OTHERS = ("send_findings", "send_equal_rows", "send_slope", "probe", "send_exact_predictions",
          "score", "send_block_of_ones_own", "direction", "send_folds", "send_profile",
          "send_separated")  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_noise_does_not_cover(ruled: Callable[[str], Ask], kind: str) -> None:
    asked = request(*TOLD, Asked(0, kind, "ready", "", 1), privacy=PRIVATE)
    refusal(begun(ruled(NOISED), PROTECTED, asked), "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NUMBERS + " WHERE age > 37", "no condition on values"),
        (NUMBERS + " LIMIT 100", "each row of it in one row"),
        ("SELECT p.age, p.bmi, p.pid AS sqlfl_key_0_0 FROM patients AS p, patients AS q",
         "each row of it in one row"),
        ("SELECT max(age) AS age, max(bmi) AS bmi, pid AS sqlfl_key_0_0 FROM patients GROUP BY pid",
         "each row of it in one row"),
    ],
)  # fmt: skip
def test_rows_that_tell_what_noise_hides(ruled: Callable[[str], Ask], text: str, said: str) -> None:
    ask = ruled(f"{NOISED}, conditions = 'exact'")
    refusal(begun(ask, PROTECTED, request(*TOLD, privacy=PRIVATE), text), said)
    loose = replace(PROTECTED, privacy=replace(BOUNDED, delta=1e-9))  # of as many rows
    without_rounds = propose(ask, loose, (text,), request(*TOLD[:2]))
    assert isinstance(without_rounds, ms.Prepared)


# -- labels ----------------------------------------------------------------------------------------


def test_labels_are_noised(ruled: Callable[[str], Ask]) -> None:
    ask = ruled("labels = 'noised'")
    assert isinstance(begun(ask, LABELS, WITH_LABELS, DAYS), ms.Ready)
    found = ask(ms.SendLabels("r", 0))
    assert isinstance(found, ms.Labels)
    true = np.arange(300) % 3 + np.sin(np.arange(300))
    assert np.sort(found.values) != pytest.approx(np.sort(true), abs=0.1)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (None, "noised labels"),
        (LabelNoise("laplace", 1e6, (-1.0, 3.0), ()), "max_label_epsilon = 4"),
        (LabelNoise("laplace", 1e-9, (3.0, -1.0), ()), "noise of labels of an epsilon above 0"),
        (LabelNoise("laplace", -1.0, (-1.0, 3.0), ()), "noise of labels of an epsilon above 0"),
        (LabelNoise("randomized_response", 50.0, None, ("a", "b")), "max_label_epsilon = 4"),
        (LabelNoise("randomized_response", 1.0, None, ("a",)), "noise of labels of an epsilon"),
    ],
)
def test_noise_of_labels_that_is_claimed(
    ruled: Callable[[str], Ask], label: LabelNoise | None, said: str
) -> None:
    classes = bool(label and label.classes)
    slot = replace(LABELS, privacy=replace(QUIET, label=label), classes=classes)
    kind = "logistic_regression" if classes else WITH_LABELS.kind
    asked = replace(WITH_LABELS, kind=kind)
    refusal(begun(ruled("labels = 'noised'"), slot, asked, DAYS), said)


COPIES = [
    DAYS + ", patients AS q",
    DAYS + ", (VALUES (1), (2)) AS v (i)",
    DAYS.replace(
        "patients AS p",
        "(SELECT pid, days FROM patients UNION ALL SELECT pid, days FROM patients) AS p",
    ),
]


@pytest.mark.parametrize("text", COPIES)
def test_labels_with_a_draw_of_each_copy(ruled: Callable[[str], Ask], text: str) -> None:
    """The mean of 300 draws is the label."""
    ask = ruled("labels = 'noised'")
    refusal(begun(ask, LABELS, WITH_LABELS, text), "each row of it in one row")


def test_a_column_that_is_called_like_its_table(ruled: Callable[[str], Ask]) -> None:
    ask = ruled("labels = 'noised'")
    text = "SELECT days AS sqlfl_target, age AS sqlfl_base, pid AS sqlfl_key_0_0"
    text += " FROM (SELECT age, days, pid FROM patients) AS age"
    refusal(begun(ask, LABELS, WITH_LABELS, text), "noise of labels that follows from whole rows")


def test_labels_of_two_slots(ruled: Callable[[str], Ask]) -> None:
    ask, slots = ruled("labels = 'noised'"), (LABELS, replace(LABELS, slot=1, fragments=(0,)))
    own = (sqlfl.contract.schema.specifications_to_json(slots), (DAYS, DAYS))
    active = Asked(1, "activate", "", "", 1)
    asked = replace(WITH_LABELS, asked=(*WITH_LABELS.asked, active))
    refusal(ask(ms.Propose("r", -1, asked.to_json(), *own)), "each row of it in one row")


# -- sums under masks ------------------------------------------------------------------------------

SECRET = b"\x07" * 32
DRAWN = replace(TRAINED, masked_predictions=True)
ROWS = SendEmbeddings("r", 0, 1, 1, ALL[:1], np.zeros(0, np.uint32))
BACK = PbmResiduals("r", 0, np.ones((1, 2), np.float32), 1.0, 1, 0)
IN_SUMS = (
    *TOLD[:2], Asked(0, "start", "ready", "", 1),
    Asked(0, "send_embeddings", "masked_embeddings", "", None),
    Asked(0, "residuals", "ready", "", None),
)  # fmt: skip
SUMS = request(*IN_SUMS, kind="mlp_regressor", algorithm="pbm")


def towers(clients: int = 1) -> ms.Start:
    own = PbmConfiguration(
        outputs=2, rows=300, total=300.0, clients=clients, leader=True, l2=0.0, curvature=1.0,
        tower=TowerConfiguration(hidden=(4,), activation="tanh"), slots=2,
    )  # fmt: skip
    return ms.Start("r", 0, "pbm", own.to_json())


def peers(ask: Ask, number: int, name: str = "lab/0") -> ms.SetPeers:
    """The clinic, and another client at slot `number`, which has the parties' secret."""
    own, other = ask(ms.SendPublicKey("r", 0)), KeyPair().public
    assert isinstance(own, ms.PublicKey)
    seal = hmac.digest(derive(SECRET, "r", "public key", str(number), name), other, "sha256")
    keys = np.stack([own.key, np.frombuffer(other, np.uint8)])
    seals = np.stack([own.seal, np.frombuffer(seal, np.uint8)])
    return ms.SetPeers("r", 0, ("clinic/0", name), np.array([0, number]), keys, seals)


def test_predictions_leave_under_masks(ruled: Callable[[str], Ask]) -> None:
    ask = ruled("predictions = 'secure_sum'")
    assert isinstance(begun(ask, DRAWN, SUMS), ms.Ready)
    assert isinstance(ask(towers()), ms.Ready)
    assert_refused(ask(replace(ROWS, number=1)), "InternalError")  # there are no keys
    assert isinstance(ask(peers(ask, 1)), ms.Ready)
    first, again = (ask(replace(ROWS, number=number)) for number in (2, 3))
    assert isinstance(first, ms.MaskedEmbeddings)
    assert isinstance(again, ms.MaskedEmbeddings)
    assert (first.packed != again.packed).any()
    assert isinstance(ask(replace(BACK, number=4)), ms.Ready)


def test_a_sum_over_one_table(ruled: Callable[[str], Ask]) -> None:
    """Each of its rows is at one client: the sum is the prediction."""
    ask = ruled("predictions = 'secure_sum'")
    assert isinstance(begun(ask, DRAWN, SUMS), ms.Ready)
    assert isinstance(ask(towers()), ms.Ready)
    refusal(ask(peers(ask, 0)), "predictions = 'secure_sum', over several tables")
    assert_refused(ask(replace(ROWS, number=2)), "InternalError")


def test_a_sum_with_a_key_of_ones_own(ruled: Callable[[str], Ask]) -> None:
    ask = ruled("predictions = 'secure_sum'")
    assert isinstance(begun(ask, DRAWN, SUMS), ms.Ready)
    told_ = peers(ask, 1)
    assert_refused(ask(replace(told_, seals=told_.seals[::-1].copy())), "InternalError")


def test_gradients_are_not_to_be_had_instead(ruled: Callable[[str], Ask]) -> None:
    """A start of several clients has each send its own gradient, whatever was proposed."""
    ask = ruled("predictions = 'secure_sum'")
    assert isinstance(begun(ask, DRAWN, SUMS), ms.Ready)
    refusal(ask(towers(clients=2)), "training of a slot with other clients")
    assert_refused(ask(replace(BACK, number=3)), "PolicyError", "InternalError")


def test_a_run_that_is_said_to_be_masked(ruled: Callable[[str], Ask]) -> None:
    """What a slot is asked is of sums, by what is said of it; what it would answer is not."""
    ask = ruled("predictions = 'secure_sum'")
    lies = tuple(replace(one, reply="masked_embeddings") for one in TOLD)
    refusal(begun(ask, TRAINED, request(*lies)), "sums under masks over several tables")
    asked = request(*lies, algorithm="sgd")
    assert isinstance(begun(ask, DRAWN, asked), ms.Ready)
    assert_refused(ask(start()), "InternalError")
    for message in ROUNDS[3:5]:
        assert_refused(ask(message))


SECURE = replace(TRAINED, shared=True, secure=True)
FITTED = Made((("age", "DOUBLE"),), "age", FittedStep("minmax", "numeric"))


def test_moments_leave_under_masks(ruled: Callable[[str], Ask]) -> None:
    ask = ruled("moments = 'secure_sum'")
    asked = request(*TOLD, Asked(0, "send_gram", "", "", 1), Asked(0, "set_encoding", "", "", 1))
    reply = propose(ask, SECURE, (NUMBERS,), asked)
    assert isinstance(reply, ms.Prepared)
    assert isinstance(ask(ROUNDS[0]), ms.JoinKeys)
    assert isinstance(ask(ROUNDS[1]), ms.Vocabularies)
    statistics = ms.SendStatistics("r", 0, ())
    assert_refused(ask(replace(statistics, number=1)), "InternalError")
    assert isinstance(ask(peers(ask, 0)), ms.Ready)
    assert isinstance(ask(replace(statistics, number=2)), ms.Masked)


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        (replace(SECURE, secure=False), "sums under masks over its databases"),
        (replace(SECURE, shared=False), ""),
        (replace(SECURE, features=(FeatureSpecification("age", "numeric", 1, FITTED),)),
         "no TRANSFORM that is fitted"),
    ],
)  # fmt: skip
def test_moments_that_would_not(
    ruled: Callable[[str], Ask], slot: SlotSpecification, said: str
) -> None:
    text = NUMBERS if len(slot.features) == 2 else NUMBERS.replace("age, bmi", "age")
    asked = request(*TOLD, Asked(0, "send_gram", "masked", "", 1))
    refusal(begun(ruled("moments = 'secure_sum'"), slot, asked, text), said)


# -- metrics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["train", "check", "predict", "evaluate"])
def test_measuring_by_another_name(ruled: Callable[[str], Ask], purpose: str) -> None:
    ask = ruled("metrics = 'never'")
    asked = (*TOLD[:2], Asked(0, "send_labels", "", "", 1), Asked(0, "score", "", "", 1))
    own = request(*asked, purpose=purpose)
    reply = ask(
        ms.Propose(
            "", -1, own.to_json(), sqlfl.contract.schema.specifications_to_json((SLOT,)), (SELECT,)
        )
    )
    assert isinstance(reply, ms.Proposed)
    assert "metrics = 'never'" in reply.verdicts


# -- whatever is proposed, and whatever is asked then ----------------------------------------------

BOUNDS = ((20.0, 80.0), (-1.0, 1.0))
MEASURED = SnapshotPrivacy(None, "noised", BOUNDS, 1e3, 0.0, 1e-4)
PRIVACIES = {
    "none": None,
    "bounds": BOUNDED,
    "noised": MEASURED,
    "hardly noised": replace(MEASURED, statistics_noise=1e-9),
    "labels": QUIET,
    "loud labels": replace(QUIET, label=LabelNoise("laplace", 99.0, (-1.0, 3.0), ())),
    "both": replace(BOUNDED, label=QUIET.label),
}
MESSAGES = {
    message.kind: message
    for message in (
        *ROUNDS[:2], ms.SendLabels("r", 0), ms.SendSplit("r", 0), ms.SendFindings("r", 0),
        ms.SendProfile("r", 0, 5), ms.SendEqualRows("r", 0), start(), ms.SendGram("r", 0),
        *ROUNDS[3:5], ms.SendSlope("r", 0, STEP.values), ms.Probe("r", 0, STEP.values),
        ms.SendExactPredictions("r", 0),
    )
}  # fmt: skip
ROW_BY_ROW = (ms.Predictions, ms.PartialGradient, ms.ConsensusPart, ms.Slope)
ASIDE = (ms.Findings, ms.EqualRows)
OF_COLUMNS = (ms.Statistics, ms.Gram, ms.Profile, ms.Ranges)


RUNS: dict[str, dict[str, Any]] = {
    "in clear": {"privacy": "none", "epsilon": None, "noise": None},
    "private": {"privacy": "both", "epsilon": 0.5, "noise": ENOUGH},
    "private labels": {"privacy": "labels", "epsilon": None, "noise": None},
    "of two databases": {
        "privacy": "noised", "epsilon": 0.5, "noise": ENOUGH, "shared": True, "target": False,
    },
    "in sums": {
        "privacy": "none", "epsilon": None, "noise": None, "shared": True, "secure": True,
        "target": False,
    },
    "labels alone": {
        "privacy": "labels", "epsilon": None, "noise": None, "target": True, "features": False,
    },
}  # fmt: skip
"""Some that are let begin under some modes; what is changed of them may be another thing."""
MODES: dict[str, tuple[str, ...]] = {
    "labels": ("exact", "noised", "never"),
    "predictions": ("exact", "noised", "secure_sum", "never"),
    "moments": ("exact", "noised", "secure_sum", "never"),
    "metrics": ("exact", "never"),
}
CHANGED: dict[str, tuple[Any, ...]] = {
    "privacy": tuple(PRIVACIES),
    "epsilon": (None, 0.5, 50.0),
    "shared": (False, True),
    "secure": (False, True),
    "split": (0.0, 0.3),
    "target": (False, True),
    "noise": (None, ENOUGH, replace(ENOUGH, noise=1e-9), RoundNoise(0.0, 0.0)),
}


@st.composite
def attacks(draw: st.DrawFn) -> dict[str, Any]:
    def some(choices: dict[str, tuple[Any, ...]], most: int) -> dict[str, Any]:
        names = draw(st.sets(st.sampled_from(sorted(choices)), max_size=most))
        return {name: draw(st.sampled_from(choices[name])) for name in sorted(names)}

    asked = draw(st.sets(st.sampled_from(tuple(MESSAGES)[2:]), max_size=4))
    trains = draw(st.booleans())
    return {
        "shared": False, "secure": False, "split": 0.0, "target": True, "features": True,
        **dict.fromkeys(MODES, "exact"),
        **RUNS[draw(st.sampled_from(sorted(RUNS)))],
        **some(MODES, 2),
        **some(CHANGED, 2),
        "asked": asked | ({"start", "send_predictions", "residuals"} if trains else set()),
    }  # fmt: skip


def answers(ask: Ask, attack: dict[str, Any]) -> Sequence[Message] | None:
    """To all that is asked, whatever was refused; None where the run is not allowed."""
    slot = replace(
        SLOT, shared=attack["shared"], secure=attack["secure"], split=attack["split"],
        base=attack["split"] > 0 or attack["target"], privacy=PRIVACIES[attack["privacy"]],
        features=FEATURES[:2] if attack["features"] else (), target=attack["target"],
    )  # fmt: skip
    if slot.privacy is not None and not slot.features:
        slot = replace(slot, privacy=replace(slot.privacy, statistics="none", bounds=()))
    columns = ["q.age", "q.bmi"] if slot.features else []
    columns += ["q.days AS sqlfl_target"] * slot.target + ["q AS sqlfl_base"] * slot.base
    columns += ["q.pid AS sqlfl_key_0_0"]
    text = f"SELECT {', '.join(columns)} FROM patients AS q"
    kinds = ("send_keys", "activate", *sorted(attack["asked"]))
    privacy = Privacy(epsilon=attack["epsilon"], delta=1e-4, predictions="gaussian")
    asked = request(*(Asked(0, kind, "ready", "", 1) for kind in kinds), privacy=to_json(privacy))
    if not isinstance(propose(ask, slot, (text,), asked), ms.Prepared):
        return None
    begins = {"start": start(attack["noise"], clients=2 if slot.shared else 1)}
    return [ask((MESSAGES | begins)[kind]) for kind in MESSAGES if kind in kinds]


def test_without_modes_all_is_answered() -> None:
    """So that what the next test does not see is not there because nothing is."""
    attack = {
        **RUNS["in clear"], "shared": True, "secure": False, "split": 0.3, "target": True,
        "features": True, "asked": set(tuple(MESSAGES)[2:]) - {"send_profile"},
    }  # fmt: skip
    with in_memory() as con, closing(party(con)) as client:
        found = answers(lambda message: told(client, message), attack)
    kinds = {type(reply) for reply in found or ()}
    assert {ms.Statistics, ms.Labels, ms.Split, ms.EqualRows} <= kinds


@given(attacks())
@examples(25, 500)
def test_no_answer_is_against_a_mode(attack: dict[str, Any]) -> None:
    """Told by the replies alone, as they leave the party."""
    rules = ", ".join(
        f"{name} = '{attack[name]}'" for name in ("labels", "predictions", "moments", "metrics")
    )
    with in_memory() as con, closing(party(con, rules)) as client:
        found = answers(lambda message: told(client, message), attack)
    if found is None:
        return
    own = PRIVACIES[attack["privacy"]]

    def leaves(*kinds: type[Message]) -> bool:
        return any(isinstance(reply, kinds) for reply in found)

    if leaves(ms.Labels):
        assert attack["labels"] != "never"
        loud = own is None or own.label is None or own.label.epsilon > 4.0
        assert attack["labels"] == "exact" or not loud
    told_ = attack["features"]  # of rows without any nothing is
    if told_ and leaves(*ROW_BY_ROW):
        assert attack["predictions"] in ("exact", "noised")
        assert attack["predictions"] == "exact" or _hidden(attack, found)
    if told_ and leaves(*ASIDE):
        assert attack["predictions"] in ("exact", "secure_sum")
    if told_ and leaves(ms.EqualRows):
        assert attack["predictions"] == "exact"
    if told_ and leaves(*OF_COLUMNS):
        assert attack["moments"] in ("exact", "noised")
        assert attack["moments"] == "exact" or attack["privacy"] == "noised"
    if leaves(ms.Split):
        assert attack["metrics"] == "exact"


def _hidden(attack: dict[str, Any], found: Sequence[Message]) -> bool:
    """By as much noise as there was drawn: ε at 1e-6 is at most 4."""
    noise = attack["noise"]
    if noise is None or not noise.prediction_clip:
        return False
    scores = sum(isinstance(reply, ms.Predictions) for reply in found)
    steps = sum(isinstance(reply, ms.PartialGradient) for reply in found) + (
        not attack["shared"] and "residuals" in attack["asked"]
    )
    squares = scores * (2.0 / noise.prediction_noise) ** 2 + steps * (2.0 / noise.noise) ** 2
    return bool(dp_accounting.get_epsilon_gaussian(squares**-0.5, 1e-6) <= 4.0)
