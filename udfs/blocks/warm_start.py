"""A block's weights under the encoding of a new run, so that training goes on where it was."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Float
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.models.towers import TowerShape
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding.columns import check_features
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.numbering import keys


def carry_over(old: Encoding, theta: Float, new: Encoding) -> Float:
    """θ (d, c) of `old` as θ' (d', c) of `new`, with the same weights on the raw columns.

    Predictions X̃ θ' differ from those before by a constant, which an intercept takes up. A
    category that the old block did not know starts at 0, as it was scored. What the new encoding
    has no column for is left out: categories that do not occur, an indicator where nothing is
    missing. Numbers missing inside arrays have no indicator: they count as the new mean. Raises
    ModelError where the features do not fit.
    """
    check_features(new.features, old.features)
    if theta.shape[0] != old.width:
        raise InternalError(f"a block of {old.width} columns has weights for {theta.shape[0]}")
    carried = np.zeros((new.width, theta.shape[1]))
    values = len(old.mean)
    raw = theta[: old.numeric] / old.scales[:, None]
    carried[:values] = raw[:values] * new.scale[:, None]
    carried[values : new.numeric] = _indicators(old, raw, new) * new.scales[values:, None]
    for number, _ in categories_of(new.features):
        places = {entry: place for place, entry in enumerate(_entries(old, number, new))}
        for place, entry in enumerate(_entries(new, number, old)):
            if entry in places:
                source = old.offsets[number] + places[entry]
                carried[new.offsets[number] + place] = theta[source]
    return carried


def carry_block(old: SavedBlock, new: Encoding, tower: TowerShape | None) -> tuple[Float, ...]:
    """The parameters of a block under the encoding of a new run, to start from.

    `tower` is the shape that is to be trained; None for a linear block, whose predictions may
    differ by a constant. A tower predicts what it did: what its first layer's products differ by
    goes to the first biases. Raises ModelError where the block is of another shape, or its features
    do not fit.
    """
    if _layers(old.tower) != _layers(tower):
        raise ModelError(
            f"the model to start from has {_described(old.tower)}; "
            f"{_described(tower)} is to be trained",
            hint="give both the same kind of model, hidden, activation, head and embedding",
        )
    first = carry_over(old.encoding, old.theta, new)
    if tower is None:
        return (first,)
    bias, *upper = old.upper
    difference = _at_zero(old.encoding, old.theta) - _at_zero(new, first)
    return (first, bias + difference, *upper)


def _at_zero(encoding: Encoding, theta: Float) -> Float:
    """Return (c,): X̃ θ of a row with all numbers 0 and all categories `other`."""
    numbers = -encoding.centres / encoding.scales
    scores: Float = numbers @ theta[: encoding.numeric] - encoding.centre @ theta
    return scores


def _layers(tower: TowerShape | None) -> tuple[object, ...] | None:
    return None if tower is None else (tower.hidden, tower.activation, tower.outputs, tower.bounded)


def _described(tower: TowerShape | None) -> str:
    if tower is None:
        return "a linear block"
    return (
        f"a tower of hidden = {list(tower.hidden)}, activation = '{tower.activation}' and "
        f"{tower.outputs} {'output' if tower.outputs == 1 else 'outputs'}"
        f"{' in [−1, 1]' if tower.bounded else ''}"
    )


def _indicators(old: Encoding, raw: Float, new: Encoding) -> Float:
    """(indicators of `new`, c): their weights before scaling.

    A missing value counts as the mean, which has moved: the indicator makes up for that.
    """
    values = len(old.mean)
    before = dict(zip(old.indicators, raw[values:], strict=True))
    moved = raw[:values] * (old.mean - new.mean)[:, None]
    first = _first_columns(old)
    shares = np.zeros((len(new.indicators), raw.shape[1]))
    for place, feature in enumerate(new.indicators):
        shares[place] = moved[first[feature] : first[feature + 1]].sum(axis=0)
        shares[place] += before.get(feature, 0.0)
    return shares


def _first_columns(encoding: Encoding) -> Sequence[int]:
    """The first column of every numeric feature, and their number."""
    widths = [f.width for f in encoding.features if f.kind != "category"]
    return [int(c) for c in np.cumsum([0, *widths])]


def _entries(old: Encoding, number: int, other: Encoding) -> tuple[str, ...]:
    """Return the vocabulary in a common form: texts, or tags if one side has only these."""
    vocabulary = old.vocabularies[number]
    if old.vocabulary_key is not None:
        if other.vocabulary_key not in (None, old.vocabulary_key):
            raise InternalError("the vocabularies are hashed with different keys")
        return vocabulary
    if other.vocabulary_key is None:
        return vocabulary
    key = vocabulary_key_of(other.vocabulary_key, number)
    tags = (hmac.digest(key, entry.encode(), "sha256") for entry in vocabulary)
    return tuple(tag[: keys.TAG_BYTES].hex() for tag in tags)
