"""Models: metadata at the coordinator; their blocks stay at the clients."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sqlfl.base import sanitize
from sqlfl.base.errors import Error, ModelError, nearest
from sqlfl.base.foreign_names import MODEL, no_attribute
from sqlfl.base.result import Result, facts_to_html
from sqlfl.contract.schema import Client
from sqlfl.contract.stopping import Ending
from sqlfl.contract.transforms import Transform
from sqlfl.coordinator.names import INTERCEPT
from sqlfl.options.types import shown
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.literals import written_option
from sqlfl.planner.grammar.queries import written
from sqlfl.planner.grammar.statements import TrainModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ModelBlock:
    """One slot's part of a model."""

    slot: int
    name: str
    features: tuple[tuple[str, str, int], ...]
    """(name, kind, width) of each feature of the block."""
    clients: tuple[Client, ...]
    tables: tuple[str, ...] = ()
    """`party.table` of everything that the block's columns were taken from."""


@dataclass(frozen=True)
class Cost:
    """What training took."""

    exchanges: int
    bytes_up: int
    """From the clients to the coordinator, of what crossed a border between parties."""
    bytes_down: int
    seconds: float
    comm_seconds: float | None = None
    """What the exchanges take by the option `network`; None where that is not set."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, as `fed.model(name)` returns it."""

    name: str
    kind: str
    target: str
    target_type: str
    weight: str | None
    """The column of WEIGHT; not among the features."""
    features: tuple[str, ...]
    """Names in the order of the query's columns."""
    algorithm: str
    options: Mapping[str, object]
    """All that apply, with their values."""
    given: tuple[str, ...]
    """The names of those that the statement sets."""
    sql: str
    """The statement that trained it."""
    run: str
    """The run's id, under which the clients keep their blocks."""
    blocks: tuple[ModelBlock, ...]
    intercept: npt.NDArray[np.float64]
    """(d_c,)"""
    classes: tuple[str, ...] | None
    history: pa.Table
    metrics: dict[str, float | int | None]
    privacy: PrivacyReport
    """What was released of the training, to whom, and what holds of it."""
    cost: Cost
    interrupted: bool
    ending: Ending
    """Why the training ended, and what is known of how far the model is from the best one."""
    stopped_early: bool
    """The option patience ended the training."""
    epoch: int
    """The one whose parameters were kept."""
    created_at: dt.datetime
    """UTC, to the microsecond."""
    versions: Mapping[str, str]
    """Of 'sqlfl' and 'duckdb', which trained it."""
    lasting: bool
    """It is there when the coordinator's file is opened again."""
    kept: str
    """Where, and for how long; and what would make it last."""
    databases: Mapping[str, int] = field(default_factory=dict)
    """How many databases each party had whose tables took part."""
    remarks: tuple[str, ...] = ()
    """What the statement has warned of."""
    head: npt.NDArray[np.float64] | None = None
    """W₀ (P, d_c) of a linear head, by which the sum of the towers' outputs is multiplied; None
    where that sum is, with the intercept, the scores."""
    transforms: tuple[Transform, ...] = ()
    """What TRANSFORM makes of the query's columns before they are features; each party does it with
    its own, and keeps what is fitted."""
    exact: bool = False
    """Scores of its blocks are sent in 8-byte numbers: the rounding of 4-byte ones would show, as
    columns of several tables nearly cancel."""
    offset: str | None = None
    """The column of OFFSET or EXPOSURE; not among the features."""
    exposure: bool = False
    """The offset is the column's logarithm."""
    version: int = 1
    """1 more than that of the model whose name it has taken."""
    comment: str = ""
    """What COMMENT ON MODEL has said of it."""
    ask: Callable[[str], Result] | None = field(default=None, repr=False)
    """Runs a statement about the model; None where no federation is at hand."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, MODEL, dir(type(self)))

    @property
    def weights(self) -> pa.Table:
        """The weights, which the parties are asked for, as `WEIGHTS OF MODEL` shows them.

        Raises ModelError for models of towers and where a party is not attached, and Error where
        the model is not one that `fed.model` gave.
        """
        return self._asked(f"WEIGHTS OF MODEL {written(self.name)}").arrow()

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Coefficients of the encoded columns in the features' own units, as scikit-learn shapes
        them: (d,) of a number, (1, d) of two classes, (K, d) of several. `weights` has the columns
        that they are of. Raises as `weights`."""
        return self._coefficients(intercept=False)

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        """The intercepts that belong to `coef_`: (1,), or (K,) of several classes."""
        return self._coefficients(intercept=True).reshape(-1)

    def _coefficients(self, *, intercept: bool) -> npt.NDArray[np.float64]:
        table = self.weights
        chosen = pc.equal(table.column("kind"), INTERCEPT)
        kept = table.filter(chosen if intercept else pc.invert(chosen))
        values: npt.NDArray[np.float64] = kept.column("coefficient").to_numpy()
        return values if self.classes is None else values.reshape(len(self.intercept), -1)

    def summary(self, **options: Any) -> Result:
        """Standard errors, tests and intervals of the coefficients: INFERENCE OF MODEL over the
        query that the model was trained on, with the rows that it has now.

        options : those of INFERENCE, as robust=True. Parties send what that statement sends, under
        their owners' policies. Raises ModelError where the model was not trained by TRAIN, and what
        the statement raises, as for kinds of models without standard errors.
        """
        trained = parse(self.sql)
        if not isinstance(trained, TrainModel):
            raise ModelError(f"model {self.name} has no query: it was not trained by TRAIN")
        query = self.sql[slice(*trained.place)]
        given = ", ".join(
            f"{written(name)} = {written_option(value, f'option {name}')}"
            for name, value in options.items()
        )
        clause = f" WITH ({given})" if given else ""
        return self._asked(f"INFERENCE OF MODEL {written(self.name)}{clause} FROM (\n{query}\n)")

    def _asked(self, text: str) -> Result:
        if self.ask is None:
            raise Error(
                f"the weights of model {self.name} are at its parties",
                hint=f"fed.model('{self.name}') is the model that can ask them",
            )
        return self.ask(text)

    @property
    def converged(self) -> bool:
        """The gradient at the end of the run proves that the objective is at its minimum, up to
        1e-6 of it, or up to `tolerance` where that is more."""
        return self.ending.converged

    @property
    def clients(self) -> tuple[Client, ...]:
        """All that hold a block."""
        return tuple(dict.fromkeys(client for block in self.blocks for client in block.clients))

    def facts(self) -> list[tuple[str, str]]:
        """Name and text of what the model's card shows; only `privacy` has several lines."""
        return [
            (sanitize.line(name), text if name == "privacy" else sanitize.line(text))
            for name, text in self._facts()
        ]

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("name", self.name),
            *([("comment", self.comment)] if self.comment else []),
            *([("version", str(self.version))] if self.version > 1 else []),
            ("kind", self.kind),
            ("target", self.target),
            *([("weight", self.weight)] if self.weight else []),
            *([("exposure" if self.exposure else "offset", self.offset)] if self.offset else []),
            *([("classes", ", ".join(self.classes))] if self.classes else []),
            ("features", ", ".join(self.features)),
            *([("transform", ", ".join(map(str, self.transforms)))] if self.transforms else []),
            *((f"block {block.name}", _described(block)) for block in self.blocks),
            *([("head", self._head())] if self.head is not None else []),
            ("algorithm", self.algorithm),
            ("options", self._options()),
            ("epochs", self._epochs()),
            ("converged", f"{self.ending.answer}: {self.ending.reason}"),
            *self._gradient(),
            ("exchanges", str(self.cost.exchanges)),
            ("bytes", f"{self.cost.bytes_up:,} up, {self.cost.bytes_down:,} down"),
            ("seconds", f"{self.cost.seconds:.3g}"),
            *self._communication(),
            *self._measures(),
            *(("warning", text) for text in self.remarks),
            ("privacy", self._protection()),
            ("created", f"{self.created_at:%Y-%m-%d %H:%M:%S} UTC"),
            ("versions", ", ".join(f"{name} {text}" for name, text in self.versions.items())),
            ("kept", self.kept),
        ]

    def _protection(self) -> str:
        """In short; where anything is noised, with where the whole is."""
        if not self.privacy.assumptions:
            return self.privacy.short
        return f"{self.privacy.short}\nIn full: fed.model('{self.name}').privacy"

    def _head(self) -> str:
        assert self.head is not None
        return f"linear, {len(self.head)} values of each joined row, kept by the coordinator"

    def _measures(self) -> list[tuple[str, str]]:
        """Counts, and metrics with what is noised in them."""
        noised = _of_noised(self)
        of = f" (of noised {noised})" if noised else ""
        return [
            (key, _number(value) + ("" if isinstance(value, int) else of))
            for key, value in self.metrics.items()
        ]

    def _communication(self) -> list[tuple[str, str]]:
        seconds = self.cost.comm_seconds
        return [] if seconds is None else [("comm_seconds", f"{seconds:.3g} by the network model")]

    def _options(self) -> str:
        if not self.given:
            return "all at their defaults"
        return ", ".join(f"{name} = {shown(self.options[name])}" for name in self.given)

    def _epochs(self) -> str:
        made = self.history.column("epoch")[-1].as_py()
        kept = "" if self.epoch == made else f"; the parameters are those of epoch {self.epoch}"
        of = f" of {self.options['epochs']}" if self.interrupted else ""
        return f"{made}{of} ({self.ending.short}{kept})"

    def _gradient(self) -> list[tuple[str, str]]:
        norm = self.ending.gradient
        return [] if norm is None else [("gradient norm", f"{norm:.3g}")]

    def plot(self, x: str = "epoch") -> Figure:
        """The objective and the metric along the training, as a matplotlib Figure.

        x : 'epoch', 'bytes' (sent in both directions so far), 'comm_seconds' (what that takes by
            the option `network`) or 'seconds' (since the start).

        A notebook shows it; in a script: `model.plot().savefig("training.png")`. Raises Error
        where matplotlib is missing, or the model was trained without what `x` names.
        """
        from sqlfl.plots.training import training_figure

        return training_figure(self, x)

    def __repr__(self) -> str:
        return facts_to_text(self.facts())

    def _repr_html_(self) -> str:
        return facts_to_html(self.facts())


class Shelf(Protocol):
    """Where a registry keeps its models for good; each change is made whole or not at all."""

    def models(self) -> tuple[Model, ...]:
        """In the order in which they were put."""
        ...

    def put(self, model: Model, previous: Model | None) -> None:
        """Keep `model`, and `previous` no longer."""
        ...

    def remove(self, model: Model) -> None: ...


class Registry:
    """The models of one federation, by name; names are compared as SQL does, ignoring case.

    `shelf` keeps those that last. It is the truth about them: where writing to it fails, what it
    has then is what the registry has. Safe to use from several threads.
    """

    def __init__(self, shelf: Shelf | None = None) -> None:
        self._shelf = shelf
        self._lock = threading.RLock()
        self._models: dict[str, Model] = {}
        self._uncertain: set[str] = set()
        if shelf is not None:
            self._models = {model.name.lower(): model for model in shelf.models()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._models

    def get(self, name: str) -> Model:
        """Raises ModelError where there is no such model."""
        model = self._models.get(name.lower())
        if model is None:
            known = [m.name for m in self.all()]
            close = nearest(name, known)
            hint = (
                f"did you mean {close}?"
                if close
                else f"the models are: {', '.join(known)}"
                if known
                else "train one first: TRAIN MODEL ..."
            )
            raise ModelError(f"there is no model {name}", hint=hint)
        return model

    def put(self, model: Model, *, replace: bool) -> Model | None:
        """Keep `model`; returns the one of the same name that it replaced.

        Raises ModelError where there is one and `replace` is false, and where `model` does not last
        and the other does: what lasts is replaced by what lasts, or not at all.
        """
        key = model.name.lower()
        with self._lock:
            self.check_free(model.name, replace=replace, lasting=model.lasting)
            previous = self._models.get(key)
            if self._shelf is not None and model.lasting:
                try:
                    self._shelf.put(model, previous)
                except BaseException:
                    if not self._reload():
                        self._uncertain.add(model.run)
                    raise
            others = {name: other for name, other in self._models.items() if name != key}
            self._models = {**others, key: model}
            return previous

    def next_version(self, name: str) -> int:
        """Of a model that takes this name."""
        previous = self._models.get(name.lower())
        return 1 if previous is None else previous.version + 1

    def comment(self, name: str, text: str) -> Model:
        """The model of that name, with this comment from now on; ModelError where there is none."""
        with self._lock:
            before = self.get(name)
            model = dataclass_replace(before, comment=text)
            if self._shelf is not None and model.lasting:
                try:
                    self._shelf.put(model, before)
                except BaseException:
                    self._reload()
                    raise
            self._models = {**self._models, name.lower(): model}
            return model

    def check_free(
        self,
        name: str,
        *,
        replace: bool,
        lasting: bool = True,
        reason: str = "",
        verb: str = "TRAIN",
    ) -> None:
        """Raises ModelError where the name is taken and may not be `replace`d; `verb` is of the
        statement.

        lasting : whether the model that is to have it lasts; if not, `reason` may say why.
        """
        previous = self._models.get(name.lower())
        if previous is not None and not replace:
            resume = f"RESUME MODEL {name} goes on with it; " if previous.interrupted else ""
            raise ModelError(
                f"there is a model {name} already",
                hint=f"{resume}{verb} OR REPLACE MODEL {name}, or choose another name",
            )
        if previous is not None and previous.lasting and not lasting:
            raise ModelError(
                f"model {previous.name} is kept, and the one to replace it could not be"
                + (f": {reason}" if reason else ""),
                hint="attach(..., store='file.duckdb') keeps a part whose source is only read; or "
                f"choose another name, or DROP MODEL {previous.name} first",
            )

    def remove(self, name: str) -> Model:
        """Returns what was removed; raises ModelError where there is no such model."""
        with self._lock:
            model = self.get(name)
            if self._shelf is not None and model.lasting:
                try:
                    self._shelf.remove(model)
                except BaseException:
                    self._reload()
                    raise
            self._models.pop(name.lower(), None)
            return model

    def all(self) -> tuple[Model, ...]:
        with self._lock:
            return tuple(self._models.values())

    def table(self) -> pa.Table:
        """What SHOW MODELS shows, a row per model; `noised` is what the loss is of, of such."""
        models = self.all()
        return pa.table(
            {
                "name": pa.array([m.name for m in models], pa.string()),
                "kind": pa.array([m.kind for m in models], pa.string()),
                "target": pa.array([m.target for m in models], pa.string()),
                "rows": pa.array([m.metrics["rows"] for m in models], pa.int64()),
                "loss": pa.array([m.metrics["loss"] for m in models], pa.float64()),
                "noised": pa.array([_of_noised(m) for m in models], pa.string()),
                "created": pa.array(
                    [m.created_at.replace(microsecond=0) for m in models],
                    pa.timestamp("s", tz="UTC"),
                ),
                "kept": pa.array([m.kept.partition(":")[0] for m in models], pa.string()),
                "version": pa.array([m.version for m in models], pa.int64()),
                "comment": pa.array([m.comment or None for m in models], pa.string()),
            }
        )

    def runs(self) -> tuple[str, ...]:
        """Those whose blocks a model has, or may have: where the shelf does not say, they stay."""
        return (*(model.run for model in self.all()), *self._uncertain)

    def _reload(self) -> bool:
        """After a failure that may have come before the shelf's change or after it.

        False where the shelf cannot even be read; then the models are as they were.
        """
        assert self._shelf is not None
        try:
            kept = {model.name.lower(): model for model in self._shelf.models()}
        except Error:
            return False
        temporary = {key: model for key, model in self._models.items() if not model.lasting}
        self._models = kept | {key: m for key, m in temporary.items() if key not in kept}
        return True


def facts_to_text(facts: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in facts)
    indent = "\n" + " " * (width + 2)
    texts = ((name, sanitize.lines(text).split("\n")) for name, text in facts)
    return "\n".join(f"{name:<{width}}  {indent.join(lines)}" for name, lines in texts)


CARD = pa.schema([("property", pa.string()), ("value", pa.string())])


def card(facts: list[tuple[str, str]]) -> Result:
    """Names and texts as the answer of a statement."""
    names, values = zip(*facts, strict=True)
    table = pa.table({"property": list(names), "value": list(values)}, CARD)
    return Result(table, text=facts_to_text(facts), markup=lambda: facts_to_html(facts))


def _of_noised(model: Model) -> str | None:
    """What is noised in its loss and metrics."""
    return " and ".join(model.privacy.noised) or None


def _described(block: ModelBlock) -> str:
    columns = ", ".join(name for name, _, _ in block.features)
    clients = ", ".join(str(client) for client in block.clients)
    return f"{columns} of {', '.join(block.tables)} at {clients}"


def _number(value: Any) -> str:
    if value is None:
        return "undefined"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
