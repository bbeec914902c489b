"""PRIVACY of EVALUATE: its options, and notes on the metrics of noised labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlfl.base.errors import OptionError
from sqlfl.coordinator.privacy_planning import Clause, settled
from sqlfl.models.kinds import kind_of
from sqlfl.options.entries import Given
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import resolve_privacy
from sqlfl.options.types import shown
from sqlfl.planner.query import types
from sqlfl.planner.query.ucq import BOOLEAN, Ucq
from sqlfl.privacy.mechanisms import keep_probability, label_epsilon, laplace_keep

if TYPE_CHECKING:
    from sqlfl.store.registry import Model

APPLIES = ("label_epsilon", "label_mechanism", "label_bounds", "label_classes")
"""Options that a PRIVACY clause of EVALUATE may have."""
NOISED = "label_epsilon"


def resolve_evaluation(kind: str, given: Iterable[Given], sql: str) -> Privacy:
    """Return the clause's privacy for a model of this kind, before the columns are known.

    Raise OptionError as `resolve_privacy` does, and for options that concern training only.
    """
    given = tuple(given)
    for option in given:
        known = option.name in Privacy.__dataclass_fields__
        if known and option.name not in APPLIES:
            raise OptionError(
                f"PRIVACY option {option.name} does not apply to EVALUATE, whose predictions are "
                "exact",
                hint=f"EVALUATE noises labels only, by {', '.join(APPLIES)}",
                sql=sql,
                span=getattr(option.name, "span", option.span),
            )
    return resolve_privacy(kind, given, sql)


def settled_evaluation(privacy: Privacy, model: Model, ucq: Ucq, clause: Clause) -> Privacy:
    """Return the privacy with the classes of the labels. They come from the statement or the type.
    A model whose own labels were noised has public classes, which serve too.

    Raise OptionError if they are missing, or if the model does not know them.
    """
    boolean = types.kind(ucq.target_type or "") == BOOLEAN
    public = "labels" in model.privacy.noised and not boolean
    if kind_of(model.kind).classifies and privacy.label_classes is None and public:
        privacy = replace(privacy, label_classes=model.classes)
    privacy = settled(privacy, model.kind, ucq, clause)
    unknown = [c for c in privacy.label_classes or () if c not in (model.classes or ())]
    if unknown:
        raise clause.error(
            f"PRIVACY option label_classes has {shown(tuple(unknown))}, which model {model.name} "
            "does not know",
            "label_classes" if "label_classes" in clause.given else NOISED,
            f"the model knows {', '.join(model.classes or ())}",
        )
    return privacy


def notes_of(model: Model, privacy: Privacy | None) -> tuple[str, ...]:
    """Return the notes beside the metrics of a model trained with noise, or of noised labels."""
    if privacy is None:
        if not model.privacy.assumptions:
            return ()
        return (
            f"Loss and metrics are of the true labels, which the ε of model {model.name} does not "
            "cover: the metrics of one row tell its label. EVALUATE MODEL ... PRIVACY "
            "(label_epsilon = ...) noises them.",
        )
    notes = ["Loss and metrics are of noised labels."]
    if privacy.label_classes is not None:
        notes.append(
            "accuracy_estimate is an estimate of the accuracy over the true labels, right on "
            "average over the noise."
        )
    return (" ".join(notes),)


def true_label_epsilon(privacy: Privacy) -> float:
    """Return the ε that holds for a label."""
    assert privacy.label_epsilon is not None
    classes = None if privacy.label_classes is None else len(privacy.label_classes)
    return label_epsilon(privacy.label_mechanism, privacy.label_epsilon, classes)


def accuracy_estimate(privacy: Privacy, accuracy: float) -> float | None:
    """Return an unbiased estimate of the accuracy over the true labels, from that over noised ones.

    A right prediction stays right with the probability p that a label is kept. A wrong one becomes
    right with q = (1 − p)/(K − 1). So the measured accuracy is on average q + (p − q) times the
    true one. The estimate may be below 0 or above 1. It is None if the noise leaves no information.
    """
    assert privacy.label_epsilon is not None
    assert privacy.label_classes is not None
    size = len(privacy.label_classes)
    keep = laplace_keep if privacy.label_mechanism == "laplace" else keep_probability
    kept = keep(privacy.label_epsilon, size)
    moved = (1.0 - kept) / (size - 1)
    return (accuracy - moved) / (kept - moved) if kept > moved else None
