"""RESUME MODEL: continue an interrupted training from its saved weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sqlfl.base.errors import Error, ModelError
from sqlfl.base.sanitize import line
from sqlfl.contract.transforms import ROWS, TABLE
from sqlfl.coordinator.training import Trained
from sqlfl.federation.saving import Saving, model_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import Option, TrainModel, TuneModel, Value, Word
from sqlfl.store.registry import Cost, Model

RUNNING = ("rounds", "bytes_up", "bytes_down", "comm_seconds", "seconds")
"""Columns of the history that are running totals."""


def unfinished(models: Iterable[Model]) -> Iterator[str]:
    """Yield a sentence for each model that RESUME MODEL can continue."""
    for model in models:
        try:
            resumed(model)
        except Error:
            continue
        yield (
            f"{line(model.name)} is as of epoch {_last(model)} of {_epochs(model)}: "
            f"RESUME MODEL {line(model.name)} goes on"
        )


def resumed(model: Model) -> TrainModel:
    """Return the statement that continues the model: its TRAIN statement, from its weights, for the
    remaining epochs. Raise ModelError if it cannot be continued.
    """
    if not model.interrupted:
        raise ModelError(
            f"model {model.name} has been trained to its end",
            hint=f"to train it further: TRAIN OR REPLACE MODEL {model.name} ... WITH (warm_start = "
            f"'{model.name}')",
        )
    statement = parse(model.sql)
    if not isinstance(statement, TrainModel) or isinstance(statement, TuneModel):
        raise ModelError(f"model {model.name} was not trained by TRAIN: it cannot be resumed")
    if statement.privacy or "warm_start" not in model.options:
        why = "under PRIVACY" if statement.privacy else f"of kind {model.kind}"
        raise ModelError(
            f"model {model.name} cannot be resumed: training {why} begins from nothing",
            hint=f"TRAIN OR REPLACE MODEL {model.name} ... trains it anew",
        )
    options = model.options
    drawn = options.get("unit", TABLE) not in (TABLE, ROWS) and options.get("validation_fraction")
    if drawn and options.get("seed") is None:
        raise ModelError(
            f"model {model.name} cannot be resumed: without a seed other units would be drawn for "
            "validation than those that it has not seen",
            hint=f"TRAIN OR REPLACE MODEL {model.name} ... WITH (seed = 1, ...) trains it anew",
        )
    left = _epochs(model) - _last(model)
    if left < 1:
        raise ModelError(f"model {model.name} has no epochs left")
    given: dict[str, Value] = {"epochs": left, "warm_start": model.name}
    kept = [option for option in statement.options if option.name.lower() not in given]
    nowhere = (0, 0)
    kept += [Option(Word(name, nowhere), value, nowhere) for name, value in given.items()]
    return replace(
        statement,
        name=Word(model.name, statement.name.span),
        options=tuple(kept),
        replace=True,
        if_not_exists=False,
    )


def continued(model: Model, before: Model | None) -> Model:
    """The model with the history of the one that it was resumed from."""
    if before is None:
        return model
    last = before.history.slice(before.history.num_rows - 1).to_pylist()[0]
    history = model.history
    for place, field in enumerate(history.schema):
        start = last["epoch"] if field.name == "epoch" else last.get(field.name)
        if field.name in (*RUNNING, "epoch") and start is not None:
            column = pc.add(history.column(place), pa.scalar(start, field.type))
            history = history.set_column(place, field, column)
    costs = model.cost, before.cost
    seconds = [cost.comm_seconds for cost in costs if cost.comm_seconds is not None]
    return replace(
        model,
        history=pa.concat_tables([before.history, history]),
        epoch=model.epoch + last["epoch"],
        version=before.version,
        options=before.options,
        given=before.given,
        cost=Cost(
            sum(cost.exchanges for cost in costs),
            sum(cost.bytes_up for cost in costs),
            sum(cost.bytes_down for cost in costs),
            sum(cost.seconds for cost in costs),
            sum(seconds) if seconds else None,
        ),
    )


@dataclass
class Checkpoints:
    """Keeps the model of a run again and again, under its name."""

    statement: TrainModel
    plan: FederatedPlan
    saving: Saving
    remarks: Callable[[], tuple[str, ...]]
    before: Model | None = None
    """The model to resume."""
    kept: Model | None = None
    """The latest saved version."""

    def keep(self, trained: Trained, name: str) -> None:
        model = model_of(self.statement, self.plan, trained, name, self.saving, self.remarks())
        model = self.whole(model)
        self.saving.keep(model, replace=self.replaces)
        self.kept = model

    def whole(self, model: Model) -> Model:
        """Return the model merged with the one that it continues. All saved versions of a run share
        one version number.
        """
        if self.kept is not None:
            model = replace(model, version=self.kept.version)
        return continued(model, self.before)

    @property
    def first(self) -> int:
        """Epochs of the model to resume."""
        return 0 if self.before is None else _last(self.before)

    @property
    def replaces(self) -> bool:
        """True if the final model replaces another one of its name."""
        return self.statement.replace or self.kept is not None

    def told(self, error: Error) -> None:
        """Add a note on the saved model to an error that ends the run."""
        if self.kept is not None:
            name, epoch = self.kept.name, _last(self.kept)
            error.say_where(f"model {name} is kept as of epoch {epoch}; RESUME MODEL {name}")


def _last(model: Model) -> int:
    return int(model.history.column("epoch")[-1].as_py())


def _epochs(model: Model) -> int:
    epochs = model.options["epochs"]
    assert isinstance(epochs, int)
    return epochs
