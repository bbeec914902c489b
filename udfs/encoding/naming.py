"""Names of a block's encoded columns, in terms of their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.messages.diagnostics import CATEGORY, HASHED, MISSING, NULL, NUMBER, OTHER
from sqlfl.udfs.encoding.features import Encoding, categories_of, frequencies, vocabulary_key_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot

DIGITS = 8
"""Digits of a hash to print."""
_NULL = "n"
_WHOLE = {_NULL: NULL, "o": OTHER}
"""Canonical texts of NULL and of the rest of `one_hot`; others begin with another letter."""

Texts = Mapping[str, str]
"""Hash -> canonical text, for a shared slot's category feature."""


@dataclass(frozen=True, eq=False)
class ColumnNames:
    """Names of a block's encoded columns, in order."""

    kinds: Array
    """uint8 (d,): NUMBER and so on, of `sqlfl.messages.diagnostics`."""
    features: tuple[str, ...]
    categories: tuple[str, ...]
    """Empty for columns that are no category."""
    places: Array
    """int (d,): of each column its feature, by its place among the block's."""


def columns_of(encoding: Encoding, texts: Sequence[Texts] | None = None) -> ColumnNames:
    """Return the names. `texts`: the client's texts of hashed categories, for each category
    feature.
    """
    named: list[tuple[int, str, str, int]] = []
    missing: list[tuple[int, str, str, int]] = []
    indicated, number = set(encoding.indicators), 0
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            continue
        names = [feature.name]
        if feature.kind == "array":
            names = [f"{feature.name}[{k}]" for k in range(1, feature.width + 1)]
        named += [(NUMBER, name, "", place) for name in names]
        if number in indicated:
            missing.append((MISSING, feature.name, "", place))
        number += 1
    named += missing
    for number, place in categories_of(encoding.features):
        name = encoding.features[place].name
        known = texts[number] if texts else None
        hashed = encoding.vocabulary_key is not None
        for entry in encoding.vocabularies[number]:
            named.append((*_category(entry, known or {}, hashed=hashed, name=name), place))
    kinds, features, categories, places = zip(*named, strict=True) if named else ((),) * 4
    return ColumnNames(np.array(kinds, np.uint8), features, categories, np.array(places, np.int64))


def _category(entry: str, known: Texts, *, hashed: bool, name: str) -> tuple[int, str, str]:
    text = known.get(entry) if hashed else entry
    if text is None:
        return HASHED, name, entry[:DIGITS]
    whole = _WHOLE.get(text)
    return (CATEGORY, name, text[1:]) if whole is None else (whole, name, "")


def own_texts(snapshot: Snapshot, encoding: Encoding) -> tuple[Texts, ...] | None:
    """Return texts of hashed categories from the client's active rows; None without hashes."""
    key = encoding.vocabulary_key
    if key is None:
        return None
    texts = []
    for number, position in categories_of(snapshot.specification.features):
        entries = [entry for entry, _ in frequencies(snapshot, position)]
        texts.append(texts_of(encoding, number, entries))
    return tuple(texts)


def texts_of(encoding: Encoding, number: int, entries: Sequence[bytes]) -> Texts:
    """Return canonical texts of a category feature by what the vocabulary has for them."""
    written = [entry.decode() for entry in entries]
    if encoding.vocabulary_key is None:
        return dict(zip(written, written, strict=True))
    tags = keys.tags(vocabulary_key_of(encoding.vocabulary_key, number), entries)
    return {tag.tobytes().hex(): text for tag, text in zip(tags, written, strict=True)}


def centres_of(encoding: Encoding) -> Float:
    """Return (d,): the centre of each column; for a category its share."""
    return np.concatenate([encoding.centres, encoding.centre[encoding.numeric :]])


def scales_of(encoding: Encoding) -> Float:
    """Return (d,): the divisor of each column."""
    return np.concatenate([encoding.scales, np.ones(encoding.width - encoding.numeric)])


def bases_of(encoding: Encoding, chosen: Mapping[str, str] | None = None) -> Array:
    """Return for each column (d,) that of the category which its feature's others are compared to.

    That is the category that `chosen` names for the feature, else the most frequent one in
    training, the first of several. NULL is the base only where there is no other category. Columns
    of numbers have −1. Raises ModelError for a chosen category that the model does not know.
    """
    bases = np.full(encoding.width, -1)
    with_categories = {
        encoding.features[place].name for _, place in categories_of(encoding.features)
    }
    numbers = [name for name in chosen or {} if name not in with_categories]
    if numbers:
        raise ModelError(f"feature {numbers[0]} has no categories", hint="leave it out of base")
    for number, place in categories_of(encoding.features):
        counts, name = encoding.counts[number], encoding.features[place].name
        text = (chosen or {}).get(name)
        if len(counts):
            often = np.array(counts, np.float64)
            null = place_of(encoding, number, _NULL)
            if null is not None:
                often[null] = -1.0
            base: int | None = int(np.argmax(often))
            if text is not None:
                base = place_of(encoding, number, f"v{text}")
            if base is None:
                raise ModelError(
                    f"feature {name} has no category '{text}' that the model was trained on",
                    hint="WEIGHTS OF MODEL shows its categories",
                )
            start = encoding.offsets[number]
            bases[start : start + len(counts)] = start + base
    return bases


def missing_of(encoding: Encoding) -> Array:
    """bool (d,): the columns that say that a feature is NULL, categories of NULL among them."""
    missing: Array = columns_of(encoding).kinds == MISSING
    for number, _ in categories_of(encoding.features):
        place = place_of(encoding, number, _NULL)
        if place is not None:
            missing[encoding.offsets[number] + place] = True
    return missing


def padding_of(encoding: Encoding) -> Array:
    """bool (d,): columns of a curve that are 0 whatever the number is, since it has few values."""
    padding, start = np.zeros(encoding.width, bool), 0
    fitted = encoding.fitted or (None,) * len(encoding.features)
    for feature, fit in zip(encoding.features, fitted, strict=True):
        if feature.kind == "category":
            continue
        stop = start + feature.width
        if fit is not None and fit.table is not None:
            padding[start:stop] = ~fit.table.any(axis=0)
        start = stop
    return padding


def place_of(encoding: Encoding, number: int, text: str) -> int | None:
    """Return the place of a canonical text in the vocabulary of a category feature, or None."""
    entry, key = text, encoding.vocabulary_key
    if key is not None:
        entry = keys.tags(vocabulary_key_of(key, number), [text.encode()])[0].tobytes().hex()
    vocabulary = encoding.vocabularies[number]
    return vocabulary.index(entry) if entry in vocabulary else None
