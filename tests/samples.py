"""Messages of every kind, drawn from what their fields declare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.messages.forms import (
    Columns,
    Form,
    Number,
    Numbers,
    Several,
    Size,
    Text,
    Texts,
)
from sqlfl.methods.frank_wolfe.messages import SetSketch
from sqlfl.methods.pbm.messages import SendEmbeddings

TEXTS = ("", "a", "é", "a longer text\nof two lines", "x" * 70, "\N{SNOWMAN}", "'\"", "\x1b[31m")
COLUMNS = (
    pa.array([1, None, -3], pa.int64()),
    pa.array([True, None, False]),
    pa.array(["a", None, "longer é"]),
    pa.array([b"\0", b"", None]),
    pa.array([1.5, float("nan"), None], pa.float64()),
    pa.array([None, None, None], pa.null()),
    pa.array([[1, 2], None, []], pa.list_(pa.int32())),
    pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2)),
    pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}]),
    pa.array([[("k", [1])], None, []], pa.map_(pa.string(), pa.list_(pa.int8()))),
    pa.array([1, None, 2], pa.decimal128(9, 2)),
    pa.array([1, None, 2], pa.timestamp("us", "Europe/Rome")),
    pa.array([1, None, 2], pa.date32()),
    pa.array([pa.MonthDayNano([1, 2, 3]), None, None]),
    pa.array(["a", None, "a"]).dictionary_encode(),
    pa.array([["p"], None, ["q"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
)
"""Of three rows; a dictionary arrives as its values."""


class Draw:
    """Random messages; those of one seed are the same."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def message(self, cls: type[ms.Message]) -> ms.Message:
        """A valid one: sizes agree, and elements are what they must be."""
        sizes: dict[str, int] = {}
        found = {name: self._value(form, sizes) for name, form in cls.forms().items()}
        if cls is ms.Labels and found["values"].size:
            found |= {"classes": (), "codes": np.zeros(0, np.uint32)}
        if cls is ms.Columns:
            selects = max(1, len(found["counts"]))
            of_select = self.rng.integers(0, selects, len(found["names"]))
            found["counts"] = np.bincount(of_select, minlength=selects).astype(np.uint32)
        if cls in (SendEmbeddings, SetSketch):
            count = len(found["rows"])
            places = np.sort(self.rng.permutation(count + 4)[:count]).astype(np.uint32)
            found |= {"joined": count + 4, "places": places}
        if issubclass(cls, ms.Gram):
            width = len(found["numeric"]) + len(found["cross"])
            found["moments"] = self.rng.random(width)
            low, high = np.sort([found["rows"], found["columns"]], axis=0)
            found |= {"rows": low, "columns": high}
        if cls is ms.Write and bool(found["classes"]) != (found["prediction"].dtype == np.uint32):
            kind, top = (np.uint32, len(found["classes"])) if found["classes"] else (float, 9)
            found["prediction"] = self.rng.integers(0, top, len(found["prediction"])).astype(kind)
        if cls is ms.Write and found["classes"]:
            found["prediction"] = found["prediction"] % len(found["classes"])
        run = str(self.rng.choice(["", "run", "é", "f" * 16]))
        number = int(self.rng.integers(2**63))
        return cls(run, int(self.rng.integers(-1, 9)), number=number, **found)

    def _value(self, form: Form, sizes: dict[str, int]) -> Any:
        match form:
            case Number(whole=True):
                most = 2**40 if form.most is None else min(form.most, 2**40)
                return int(self.rng.integers(int(form.least or 0), int(most) + 1))
            case Number():
                return float(self.rng.normal() ** 2)
            case Text():
                return str(self.rng.choice(TEXTS))
            case Texts():
                count = self._size(form.count, sizes, 0)
                found = [str(self.rng.choice(TEXTS)) for _ in range(count)]
                return tuple(f"{k}{t}" if form.distinct else t for k, t in enumerate(found))
            case Numbers():
                return self._array(form, sizes, 0)
            case Several():
                count = self._size(form.count, sizes, 0)
                return tuple(self._array(form.item, sizes, k) for k in range(count))
            case Columns():
                sizes[str(form.rows)] = 3
                count = self._size(form.count, sizes, 0)
                return tuple(COLUMNS[k] for k in self.rng.choice(len(COLUMNS), count))

    def _size(self, size: Size, sizes: dict[str, int], number: int) -> int:
        if isinstance(size, int):
            return size
        name = size.replace("[k]", f"[{number}]")
        return sizes.setdefault(name, int(self.rng.integers(0, 6)))

    def _array(self, form: Numbers, sizes: dict[str, int], number: int) -> np.ndarray:
        kind = np.dtype(str(self.rng.choice(form.types)))
        if form.optional and self.rng.random() < 0.3:
            return np.zeros((0,) * len(form.shape), kind)
        shape = [self._size(size, sizes, number) for size in form.shape]
        limits = []
        for limit, beside in ((form.values.most, 1), (form.values.below, 0)):
            if limit is not None:
                limits.append(self._size(limit, sizes, number) + beside)  # type: ignore[arg-type]
        top = min([9, *limits])
        if top < 1 and shape[0]:  # nothing is below 0: there can be no elements
            sizes[str(form.shape[0])] = shape[0] = 0
        low = int(form.values.least or 0)
        found = self.rng.integers(low, max(top, low + 1), shape)
        if kind.kind == "f" and form.values.least is None:
            return self.rng.normal(size=shape).astype(kind)
        if not form.values.ascending:
            return found.astype(kind)
        if len(shape) == 1:
            return np.cumsum(1 + found).astype(kind)
        found[:, 0] = np.arange(len(found))
        return found.astype(kind)
