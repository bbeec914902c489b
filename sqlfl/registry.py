"""Models: metadata at the coordinator; their blocks stay at the clients."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.errors import ModelError, nearest
from sqlfl.schema import Client

NO_PRIVACY = (
    "none: no differential privacy. The coordinator saw the labels in clear, keyed hashes of the "
    "join keys, the join graph, and exact predictions and gradients of each block."
)


@dataclass(frozen=True)
class ModelBlock:
    """One slot's part of a model."""

    slot: int
    name: str
    features: tuple[tuple[str, str, int], ...]
    """(name, kind, width) of each feature of the block."""
    clients: tuple[Client, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, as `fed.model(name)` returns it."""

    name: str
    kind: str
    target: str
    target_type: str
    features: tuple[str, ...]
    """Names in the order of the query's columns."""
    algorithm: str
    options: dict[str, object]
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
    privacy: str
    interrupted: bool
    converged: bool

    def facts(self) -> list[tuple[str, str]]:
        """Name and text of what the model's card shows."""
        last = self.history.slice(self.history.num_rows - 1).to_pylist()[0]
        return [
            ("name", self.name),
            ("kind", self.kind),
            ("target", self.target),
            *([("classes", ", ".join(self.classes))] if self.classes else []),
            ("features", ", ".join(self.features)),
            *(
                (
                    f"block {block.name}",
                    f"{', '.join(f[0] for f in block.features)}"
                    f" at {', '.join(str(c) for c in block.clients)}",
                )
                for block in self.blocks
            ),
            ("algorithm", self.algorithm),
            ("epochs", f"{last['epoch']}{self._ending()}"),
            ("exchanges", str(last["rounds"])),
            ("bytes", f"{last['bytes_up']:,} up, {last['bytes_down']:,} down"),
            *((key, _number(value)) for key, value in self.metrics.items()),
            ("privacy", self.privacy),
        ]

    def _ending(self) -> str:
        if self.interrupted:
            return " (interrupted)"
        return " (converged)" if self.converged else " (stopped at the limit of epochs)"

    def __repr__(self) -> str:
        return facts_to_text(self.facts())

    def _repr_html_(self) -> str:
        return facts_to_html(self.facts())


class Registry:
    """The models of one federation, by name; names are compared as SQL does, ignoring case."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._models

    def get(self, name: str) -> Model:
        """Raises ModelError where there is no such model."""
        model = self._models.get(name.lower())
        if model is None:
            known = [m.name for m in self._models.values()]
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

    def put(self, model: Model) -> Model | None:
        """Keep `model`; returns the one of the same name that it replaced."""
        previous = self._models.get(model.name.lower())
        self._models[model.name.lower()] = model
        return previous

    def remove(self, name: str) -> Model:
        model = self.get(name)
        del self._models[name.lower()]
        return model

    def all(self) -> tuple[Model, ...]:
        return tuple(self._models.values())


def facts_to_text(facts: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in facts)
    indent = "\n" + " " * (width + 2)
    return "\n".join(f"{name:<{width}}  {indent.join(text.splitlines())}" for name, text in facts)


def facts_to_html(facts: list[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td><pre>{html.escape(text)}</pre></td></tr>"
        for name, text in facts
    )
    return f"<table>{rows}</table>"


def _number(value: Any) -> str:
    if value is None:
        return "undefined"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
