"""What PRIVACY changes of what a plan protects, in words, for EXPLAIN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlfl.options.types import shown

if TYPE_CHECKING:
    from sqlfl.options.privacy import Privacy
    from sqlfl.planner.federated.plan import FederatedPlan
    from sqlfl.planner.query.ucq import Slot

NOTHING = "No noise is added: nothing here is differentially private."
STATISTICS = (
    "For slots of several clients, each client's statistics leave within public bounds and noised, "
    "every row counted once. Names of categories leave as HMAC-SHA256 tags that all clients of the "
    "slot can compute; those that are rare, up to noise, do not."
)


def asked(privacy: Privacy) -> str:
    """The clause as it is understood, defaults included."""
    names = ["label_epsilon", "label_mechanism", "label_bounds", "label_classes"]
    found = names if privacy.labels else []
    if privacy.features:
        found = [*found, "epsilon", "noise_multiplier", "delta", "clip", "predictions"]
        if privacy.predictions == "gaussian":
            found += ["prediction_clip", "prediction_share"]
        found += ["statistics"] + ["statistics_share"] * (privacy.statistics == "noised")
        found += ["feature_bounds", "max_fan_out"]
    values = {name: getattr(privacy, name) for name in found}
    values["feature_bounds"] = dict(privacy.feature_bounds) or None
    return ", ".join(f"{n} = {shown(v)}" for n, v in values.items() if v is not None)


def mechanism(privacy: Privacy) -> str:
    """How labels are noised."""
    assert privacy.label_epsilon is not None
    if privacy.label_bounds is not None:
        low, high = privacy.label_bounds
        scale = f"{(high - low) / privacy.label_epsilon:.3g}"
        return f"clipped to [{low:g}, {high:g}], Laplace noise of scale {scale}"
    if privacy.label_mechanism == "laplace":
        return "the largest of Laplace-noised indicators of the classes"
    return "randomised response"


def labels(plan: FederatedPlan, crosses: bool) -> str:
    privacy = plan.privacy
    assert privacy is not None
    leave = "leave their party noised" if crosses else "are noised, and do not leave their party"
    return (
        f"Labels {leave}, once per row of {_named(plan, [s for s in plan.ucq.slots if s.target])}: "
        f"{mechanism(privacy)}, label_epsilon = {privacy.label_epsilon:g}. "
        f"{'What is trained, and every metric of it,' if plan.algorithm else 'Every metric'} is of "
        "noised labels. Which rows have a label is not protected."
    )


def predictions(plan: FederatedPlan) -> str:
    """Of `predictions = 'gaussian'`."""
    privacy = plan.privacy
    assert privacy is not None
    return (
        f"Partial predictions of every active row leave in every round, clipped to "
        f"{privacy.prediction_bound} and noised at the client: what the coordinator works out "
        "from them tells no more of the features than they do."
    )


def sums(plan: FederatedPlan, names: Sequence[str]) -> str:
    """Of slots of several clients, where features are protected; `names` are what is summed."""
    privacy = plan.privacy
    assert privacy is not None
    said = f"each client's {' and '.join(names)} reach the coordinator"
    if privacy.predictions == "gaussian":
        return (
            f"For slots of several clients, {said} without secure aggregation, and so each client "
            "adds the whole noise to what it sends."
        )
    return (
        f"Not protected: for slots of several clients, {said} without secure aggregation, and with "
        "only its share of the noise; the sum, that each of them gets, has all of it but what it "
        "knows to be its own."
    )


def outcome(plan: FederatedPlan) -> list[str]:
    """Whether, and of what, anything is differentially private."""
    privacy = plan.privacy
    if privacy is None:
        return [NOTHING]
    notes = []
    if not privacy.features:
        notes.append(
            "Noise protects labels only: of the features, nothing here is differentially private."
        )
    else:
        if not privacy.labels:
            notes.append(
                "Noise protects features only: of the labels, nothing here is differentially "
                "private."
            )
        notes.append(_of_features(privacy))
    if privacy.max_fan_out is not None:
        notes.append(
            f"Joined rows beyond {privacy.max_fan_out} of one table row are dropped at the "
            "coordinator, which draws them at random and knows which they are."
        )
    return notes


def _of_features(privacy: Privacy) -> str:
    if privacy.statistics == "none":
        return (
            "Not protected: features are scaled, and their categories found, by exact statistics. "
            "No (ε, δ) holds of them, whatever noise the rounds have."
        )
    if privacy.predictions == "gaussian":
        return (
            "Gradients of every row are clipped and noised at the clients, as predictions are: ε "
            "is of the features of one row of one table position, the join graph and the labels "
            "being fixed, against the coordinator, the other parties and clients together, and the "
            "model's users."
        )
    return (
        "Gradients of every row are clipped and noised at the clients, predictions are not: ε is "
        "of the features of one row of one table position, the join graph and the labels being "
        "fixed, and holds only against who sees nothing but the model's parameters. It does not "
        "hold against the coordinator or the parties, and metrics and history are exact functions "
        "of predictions."
    )


def _named(plan: FederatedPlan, slots: Sequence[Slot]) -> str:
    return ", ".join(slot.name for slot in slots)
