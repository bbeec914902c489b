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
from sqlfl.models.kinds import INTERCEPT
from sqlfl.options.types import shown
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.planner.grammar.clauses import written
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.parameters import written_option
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
    """`party.table` of all tables that the block's columns come from."""


@dataclass(frozen=True)
class Cost:
    """Cost of training."""

    exchanges: int
    bytes_up: int
    """Bytes from the clients to the coordinator that crossed a border between parties."""
    bytes_down: int
    seconds: float
    comm_seconds: float | None = None
    """Time of the exchanges by the option `network`; None without it."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, as `fed.model(name)` returns it."""

    name: str
    kind: str
    target: str
    target_type: str
    weight: str | None
    """Column of WEIGHT; not among the features."""
    features: tuple[str, ...]
    """Names in the order of the query's columns."""
    algorithm: str
    options: Mapping[str, object]
    """All options that apply, with their values."""
    given: tuple[str, ...]
    """Names of the options that the statement sets."""
    sql: str
    """Statement that trained it."""
    run: str
    """Id of the run, under which the clients keep their blocks."""
    blocks: tuple[ModelBlock, ...]
    intercept: npt.NDArray[np.float64]
    """(d_c,)"""
    classes: tuple[str, ...] | None
    history: pa.Table
    metrics: dict[str, float | int | None]
    privacy: PrivacyReport
    """Releases of the training, their receivers, and their guarantees."""
    cost: Cost
    interrupted: bool
    ending: Ending
    """Reason why the training ended, and a bound on how far the model is from the best one."""
    stopped_early: bool
    """True if the option patience ended the training."""
    epoch: int
    """Epoch whose parameters were kept."""
    created_at: dt.datetime
    """UTC, to the microsecond."""
    versions: Mapping[str, str]
    """Versions of 'sqlfl' and 'duckdb' that trained it."""
    lasting: bool
    """True if it is there when the coordinator's file is opened again."""
    kept: str
    """Place and lifetime of the model, and how to make it last."""
    databases: Mapping[str, int] = field(default_factory=dict)
    """Number of databases of each party whose tables took part."""
    remarks: tuple[str, ...] = ()
    """Warnings of the statement."""
    head: npt.NDArray[np.float64] | None = None
    """W₀ (P, d_c) of a linear head, which multiplies the sum of the towers' outputs. None if that
    sum, with the intercept, is the scores.
    """
    transforms: tuple[Transform, ...] = ()
    """Features that TRANSFORM makes of the query's columns. Each party computes its own, and keeps
    the fitted values.
    """
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
        """Return the weights, which the parties send, as `WEIGHTS OF MODEL` shows them.

        Raise ModelError for models of towers and if a party is not attached. Raise Error if the
        model does not come from `fed.model`.
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
        their owners' policies. Raise ModelError where the model was not trained by TRAIN, and what
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
        """Return True if the gradient at the end of the run proves that the objective is at its
        minimum, up to 1e-6 of it, or up to a larger `tolerance`.
        """
        return self.ending.converged

    @property
    def clients(self) -> tuple[Client, ...]:
        """Return all clients that hold a block."""
        return tuple(dict.fromkeys(client for block in self.blocks for client in block.clients))

    def facts(self) -> list[tuple[str, str]]:
        """Return names and texts of the model's card; only `privacy` has several lines."""
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
        """Return the privacy report in short; if anything is noised, with the place of the full
        one.
        """
        if not self.privacy.assumptions:
            return self.privacy.short
        return f"{self.privacy.short}\nIn full: fed.model('{self.name}').privacy"

    def _head(self) -> str:
        assert self.head is not None
        return f"linear, {len(self.head)} values of each joined row, kept by the coordinator"

    def _measures(self) -> list[tuple[str, str]]:
        """Return counts and metrics, with the noised data behind them."""
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
        """Return the objective and the metric along the training, as a matplotlib Figure.

        x : 'epoch', 'bytes' (sent in both directions so far), 'comm_seconds' (their time by
            the option `network`) or 'seconds' (since the start).

        A notebook shows it; in a script: `model.plot().savefig("training.png")`. Raise Error if
        matplotlib is missing, or if the model was trained without the measure `x`.
        """
        from sqlfl.plots.training import training_figure

        return training_figure(self, x)

    def __repr__(self) -> str:
        return facts_to_text(self.facts())

    def _repr_html_(self) -> str:
        return facts_to_html(self.facts())


class Shelf(Protocol):
    """Permanent store of a registry's models. Each change is made whole or not at all."""

    def models(self) -> tuple[Model, ...]:
        """Return the models in the order in which they were put."""
        ...

    def put(self, model: Model, previous: Model | None) -> None:
        """Keep `model`, and drop `previous`."""
        ...

    def remove(self, model: Model) -> None: ...


class Registry:
    """The models of one federation, by name. Names are compared as SQL does, ignoring case.

    `shelf` keeps those that last. It is the truth about them: if writing to it fails, the registry
    takes over the shelf's state. Several threads may use the registry.
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
        """Return the model. Raise ModelError if there is none."""
        _check_name(name)
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
        """Keep `model`; return the one of the same name that it replaced.

        Raise ModelError if there is one and `replace` is false. Raise it also if the other model
        lasts and `model` does not: only a lasting model may replace a lasting one.
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
        """Return the version of a model that takes this name."""
        previous = self._models.get(name.lower())
        return 1 if previous is None else previous.version + 1

    def comment(self, name: str, text: str) -> Model:
        """Set the comment of the model with that name, and return the model. Raise ModelError if
        there is none.
        """
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
        """Raise ModelError if the name is taken and `replace` is false; `verb` is the statement's.

        lasting : whether the new model lasts; if not, `reason` may say why.
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
        """Remove a model and return it. Raise ModelError if there is none."""
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
        """Return the table of SHOW MODELS, a row for each model. `noised` names the noised data
        behind the loss.
        """
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
        """Return the runs whose blocks a model has, or may have: if the shelf is uncertain, they
        stay.
        """
        return (*(model.run for model in self.all()), *self._uncertain)

    def _reload(self) -> bool:
        """Read the shelf again after a failure, which may have come before the shelf's change or
        after it.

        Return False if the shelf cannot even be read; then the models stay as they were.
        """
        assert self._shelf is not None
        try:
            kept = {model.name.lower(): model for model in self._shelf.models()}
        except Error:
            return False
        temporary = {key: model for key, model in self._models.items() if not model.lasting}
        self._models = kept | {key: m for key, m in temporary.items() if key not in kept}
        return True


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        kind = type(name).__name__
        raise ModelError(f"a model is named by text, got {kind}", hint="fed.model('name')")


def facts_to_text(facts: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in facts)
    indent = "\n" + " " * (width + 2)
    texts = ((name, sanitize.lines(text).split("\n")) for name, text in facts)
    return "\n".join(f"{name:<{width}}  {indent.join(lines)}" for name, lines in texts)


CARD = pa.schema([("property", pa.string()), ("value", pa.string())])


def card(facts: list[tuple[str, str]]) -> Result:
    """Return names and texts as the result of a statement."""
    names, values = zip(*facts, strict=True)
    table = pa.table({"property": list(names), "value": list(values)}, CARD)
    return Result(table, text=facts_to_text(facts), markup=lambda: facts_to_html(facts))


def _of_noised(model: Model) -> str | None:
    """Return the noised data behind its loss and metrics."""
    return " and ".join(model.privacy.noised) or None


def _described(block: ModelBlock) -> str:
    columns = ", ".join(name for name, _, _ in block.features)
    clients = ", ".join(str(client) for client in block.clients)
    return f"{columns} of {', '.join(block.tables)} at {clients}"


def _number(value: Any) -> str:
    if value is None:
        return "undefined"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
