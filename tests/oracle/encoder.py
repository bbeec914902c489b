"""Features of materialised joined rows as a dense matrix, with plain statistics over those rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Numeric:
    """One feature of k >= 1 numbers."""

    name: str
    mean: np.ndarray
    scale: np.ndarray
    indicator: tuple[float, float] | None
    """Mean and scale of the missing indicator; None where training had no NULL."""


@dataclass(frozen=True)
class Category:
    name: str
    values: tuple[str | None, ...]
    frequency: np.ndarray


@dataclass(frozen=True)
class Encoder:
    """Fitted on the joined rows; `transform` gives [numbers, missing indicators, one-hots]."""

    numeric: tuple[Numeric, ...]
    categories: tuple[Category, ...]

    @classmethod
    def fit(cls, table: pa.Table) -> Encoder:
        numeric, categories = [], []
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if is_category(column.type):
                categories.append(_fit_category(name, column))
            else:
                numeric.append(_fit_numeric(name, *matrix_of(column)))
        return cls(tuple(numeric), tuple(categories))

    @property
    def width(self) -> int:
        return (
            sum(len(n.mean) for n in self.numeric)
            + sum(n.indicator is not None for n in self.numeric)
            + sum(len(c.values) for c in self.categories)
        )

    def transform(self, table: pa.Table) -> np.ndarray:
        blocks: list[np.ndarray] = [np.zeros((table.num_rows, 0))]
        indicators: list[np.ndarray] = []
        for feature in self.numeric:
            values, missing = matrix_of(table.column(feature.name).combine_chunks())
            imputed = np.where(np.isnan(values), feature.mean, values)
            blocks.append((imputed - feature.mean) / feature.scale)
            if feature.indicator is not None:
                mean, scale = feature.indicator
                indicators.append(((missing - mean) / scale)[:, None])
        onehots = []
        for category in self.categories:
            texts = _texts(table.column(category.name).combine_chunks())
            hot = np.array([[t == v for v in category.values] for t in texts], dtype=float)
            onehots.append(hot.reshape(len(texts), len(category.values)) - category.frequency)
        return np.hstack(blocks + indicators + onehots)


def is_category(kind: pa.DataType) -> bool:
    return (
        pa.types.is_dictionary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )


def matrix_of(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, k), NaN where there is none, and whether the feature as a whole is missing."""
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type):
        rows = column.to_pylist()
        width = max((len(r) for r in rows if r is not None), default=0)
        if pa.types.is_fixed_size_list(column.type):
            width = column.type.list_size
        empty = [np.nan] * width
        values = np.array(
            [empty if r is None else [np.nan if v is None else v for v in r] for r in rows],
            dtype=float,
        ).reshape(len(rows), width)
        return values, np.array([r is None for r in rows], dtype=float)
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    values = np.array(values, dtype=float)
    if np.isinf(values).any():
        raise ValueError("infinite feature")
    return values[:, None], np.isnan(values).astype(float)


def _fit_numeric(name: str, values: np.ndarray, missing: np.ndarray) -> Numeric:
    present = ~np.isnan(values)
    count = present.sum(axis=0)
    total = np.where(present, values, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), 0.0)
    imputed = np.where(present, values, mean)
    indicator = None
    if missing.any():
        deviation = missing.std()
        indicator = (float(missing.mean()), float(deviation if deviation > 1e-12 else 1.0))
    return Numeric(name, mean, _scale(imputed, mean), indicator)


def _scale(imputed: np.ndarray, mean: np.ndarray) -> np.ndarray:
    if not len(imputed):
        return np.ones_like(mean)
    deviation = np.sqrt(((imputed - mean) ** 2).mean(axis=0))
    return np.where(deviation <= 1e-12 * np.maximum(1.0, np.abs(mean)), 1.0, deviation)


def _fit_category(name: str, column: pa.Array) -> Category:
    texts = _texts(column)
    values = sorted(set(texts), key=lambda t: (t is not None, t or ""))
    frequency = np.array([texts.count(v) / len(texts) for v in values])
    return Category(name, tuple(values), frequency)


def _texts(column: pa.Array) -> list[str | None]:
    return list(column.to_pylist())
