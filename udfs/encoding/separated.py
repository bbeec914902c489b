"""Encoded columns whose rows are all, or none, of a class: they have no finite estimate.

A category, NULL included, is alone in its columns, so all its rows belong to one class. Separation
by several columns together is not detected here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array, Float
from sqlfl.messages import NOT_OF_CLASS, OF_CLASS, SendSeparated, Separated
from sqlfl.udfs.encoding.columns import known_codes
from sqlfl.udfs.encoding.features import Encoding, categories_of
from sqlfl.udfs.encoding.fitting import Categories
from sqlfl.udfs.encoding.naming import columns_of, own_texts
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering.rows import Snapshot

States = npt.NDArray[np.uint8]
BOTH = NOT_OF_CLASS | OF_CLASS


def separated(snapshot: Snapshot, encoding: Encoding, request: SendSeparated) -> Separated:
    """Return the columns with active rows of one class only; the request has the classes."""
    states = _states(snapshot, encoding, request)
    alike = ((states == NOT_OF_CLASS) | (states == OF_CLASS)).any(axis=1)
    names = columns_of(encoding, own_texts(snapshot, encoding))
    return Separated(
        request.run,
        request.slot,
        np.where(alike, names.kinds, 0).astype(np.uint8),
        tuple(
            name if is_alike else "" for name, is_alike in zip(names.features, alike, strict=True)
        ),
        tuple(
            text if is_alike else "" for text, is_alike in zip(names.categories, alike, strict=True)
        ),
        states,
    )


def _states(snapshot: Snapshot, encoding: Encoding, request: SendSeparated) -> States:
    """(d, outputs)"""
    classes = request.classes
    states = np.full((encoding.width, classes.shape[1]), BOTH, np.uint8)
    start = number = 0
    alone = not snapshot.specification.shared
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            continue
        if feature.kind == "array":
            gone = absent(snapshot, place) > 0
        else:
            values = column_of(snapshot, feature, place)
            assert not isinstance(values, Categories)
            gone = np.isnan(values)
            if alone:
                states[start] = _of_number(
                    values[~gone], classes[~gone], counts=bool(request.counts)
                )
        if number in encoding.indicators:
            column = len(encoding.mean) + encoding.indicators.index(number)
            states[column] = _either(classes[gone])
        start += feature.width
        number += 1
    for index, place in categories_of(encoding.features):
        categories = column_of(snapshot, encoding.features[place], place)
        assert isinstance(categories, Categories)
        codes = known_codes(encoding, index, categories.entries)[categories.codes]
        size, first = len(encoding.vocabularies[index]), encoding.offsets[index]
        states[first : first + size] = _of_categories(codes, size, classes)
    return states


def _of_categories(codes: Array, size: int, classes: States) -> States:
    """Return (size, outputs); codes of −1 belong to no category."""
    states = np.zeros((size, classes.shape[1]), np.uint8)
    for output, class_states in enumerate(classes.T):
        for flag in (NOT_OF_CLASS, OF_CLASS):
            rows = (codes >= 0) & ((class_states & flag) > 0)
            states[np.bincount(codes[rows], minlength=size) > 0, output] |= flag
    return states


def _of_number(values: Float, classes: States, *, counts: bool) -> States:
    """Return (outputs,): for one of two values; for more values, whether a threshold separates the
    classes.
    """
    states = np.full(classes.shape[1], BOTH, np.uint8)
    counted = (classes > 0).any(axis=1)
    values, classes = values[counted], classes[counted]
    if not len(values) or values.min() == values.max():
        return states
    low, high = values.min(), values.max()
    if ((values == low) | (values == high)).all():
        ends = np.stack([_either(classes[values == end]) for end in (low, high)])
        none, every = (ends == NOT_OF_CLASS).any(axis=0), (ends == OF_CLASS).any(axis=0)
        return np.where(none, NOT_OF_CLASS, np.where(every, OF_CLASS, BOTH)).astype(np.uint8)
    for output, class_states in enumerate(() if counts else classes.T):
        without, within = (
            values[(class_states & NOT_OF_CLASS) > 0],
            values[(class_states & OF_CLASS) > 0],
        )
        if (
            len(without)
            and len(within)
            and (without.max() <= within.min() or within.max() <= without.min())
        ):
            states[output] = NOT_OF_CLASS
    return states


def _either(classes: States) -> States:
    """(outputs,)"""
    states: States = np.bitwise_or.reduce(classes, axis=0, initial=0).astype(np.uint8)
    return states
