"""Additional planning for statements of diagnostics, beside that of EVALUATE and PREDICT."""

from __future__ import annotations

from dataclasses import replace

from sqlfl.base.errors import ModelError, OptionError, PlanError, nearest
from sqlfl.base.sanitize import listed
from sqlfl.contract.schema import folded
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import (
    ContributionsOptions,
    Diagnostic,
    Importance,
    Inference,
    SkewOptions,
)
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.planner.query.ucq import Ucq
from sqlfl.store.registry import Model

PROTECTING = ("epsilon", "noise_multiplier", "bins", "theta")
"""Options of PRIVACY that protect features."""


def check_look(look: Diagnostic, model: Model) -> None:
    """Raise ModelError for a diagnostic that would disclose, row by row, features that PRIVACY
    protected in training, mixed or multiplied by a weight.
    """
    if isinstance(look, SkewOptions) and _protects_features(model):
        raise ModelError(
            f"model {model.name} was trained with PRIVACY of features: its parties keep bounds, or "
            "numbers with noise, and not what the rows of training were like"
        )
    each = isinstance(look, ContributionsOptions) and look.features
    if (each or isinstance(look, Inference | Importance)) and _protects_features(model):
        statement = f"{look.word.upper()}{' with features = true' * each}"
        towers = kind_of(model.kind).towers
        raise ModelError(
            f"model {model.name} was trained with PRIVACY of features, and for {statement} its "
            f"parties "
            "would tell of every row what its features come to",
            hint=None if towers else f"WEIGHTS OF MODEL {model.name} shows what PRIVACY covers",
        )


def check_combined(look: Diagnostic | None, ucq: Ucq) -> None:
    """PlanError where a party combines its databases, and SKEW is asked for."""
    combined = [s.name for s in ucq.slots if s.features and any(f.parts for f in s.fragments)]
    if isinstance(look, SkewOptions) and combined:
        raise PlanError(
            f"SKEW is not built for databases that a party combines, as those of "
            f"{listed(combined)}",
            hint="the party's own connections show what its rows are like",
        )


def check_bases(look: Diagnostic | None, ucq: Ucq) -> None:
    """OptionError for a base category of a feature that the query does not have."""
    names = [feature.name for slot in ucq.slots for feature in slot.features]
    given = (look.base or {}) if isinstance(look, Inference) else {}
    for name in given:
        if name not in names:
            close = nearest(name, names)
            raise OptionError(
                f"base names {name}, and the query has no such feature",
                hint=f"did you mean {close}?" if close else f"they are {', '.join(names)}",
            )


def _protects_features(model: Model) -> bool:
    if not model.privacy.assumptions:
        return False
    statement = parse(model.sql)
    given = statement.privacy if isinstance(statement, TrainModel) else None
    return any(option.name in PROTECTING for option in given or ())


def with_units(ucq: Ucq, alias: str, option: str) -> Ucq:
    """Return the query with the slot of this alias marked as a unit, identified in every joined
    row. `option` names the option for errors. Raises OptionError for an unknown alias.
    """
    names = [slot.name for slot in ucq.slots]
    unit = next((name for name in names if folded(name) == folded(alias)), None)
    if unit is None:
        close = nearest(alias, names)
        raise OptionError(
            f"{option} = '{alias}', and the query has no such table position",
            hint=f"did you mean {close}?" if close else f"they are {', '.join(names)}",
        )
    slots = (replace(s, units=True) if s.name == unit else s for s in ucq.slots)
    return replace(ucq, slots=tuple(slots))
