"""Requests to a model's parties outside of a run: weights of its blocks, and curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlfl.base.errors import ModelError
from sqlfl.base.result import Result
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.weights import curves, weights
from sqlfl.federation.saving import Saving
from sqlfl.planner.grammar.statements import CurvesOfModel
from sqlfl.plots.registry import Picture
from sqlfl.store.registry import Model, Registry
from sqlfl.transport.base import Channel


def askable(model: Model, registry: Registry, sql: Callable[[str], Result]) -> Model:
    """Return the model with a function that runs statements about it by `sql` while it exists."""

    def ask(text: str) -> Result:
        if registry.get(model.name).run != model.run:
            raise ModelError(
                f"model {model.name} has been replaced, and its weights are gone",
                hint=f"fed.model({model.name!r}) is the one that took its place",
            )
        return sql(text)

    return replace(model, ask=ask)


def weights_of(name: str, saving: Saving, channel: Channel) -> Result:
    """Return the result of `WEIGHTS OF MODEL`. Raise ModelError for an unknown model, a model
    without weights, or a missing party.
    """
    with saving.held(name) as model:
        saving.check_here(model)
        notes: list[str] = []
        table = weights(model, channel, Scoring(note=notes.append))
        return Result(table, notes=notes, figure=Picture("weights", model.name))


def curves_of(statement: CurvesOfModel, saving: Saving, channel: Channel) -> Result:
    """Return the result of `CURVES OF MODEL`. Raise ModelError for an unknown model or feature, a
    model without curves, or a missing party.
    """
    with saving.held(statement.name) as model:
        saving.check_here(model)
        notes: list[str] = []
        feature = None if statement.feature is None else str(statement.feature)
        table = curves(model, feature, channel, Scoring(note=notes.append))
        return Result(table, notes=notes, figure=Picture("curves", model.name))
