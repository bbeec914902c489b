"""How the active rows differ from those that a saved block was trained on, feature by feature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sqlfl.arrays import Array, Float
from sqlfl.messages import SendSkew, Skew
from sqlfl.udfs import keys
from sqlfl.udfs.features import Encoding, frequencies, vocabulary_key_of
from sqlfl.udfs.fitting import NULL, Categories
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.transforming import absent, column_of, counts_of
from sqlfl.udfs.update import Engine

AT_ONCE = 16
"""Encoded columns that are in memory."""
_NAN = float("nan")


def skew(snapshot: Snapshot, encoding: Encoding, engine: Engine, request: SendSkew) -> Skew:
    """`engine` is of the active rows as `encoding` encodes them."""
    counts = counts_of(snapshot)
    if not snapshot.active:
        none = np.full((6, len(encoding.features)), _NAN)
        return Skew(request.run, request.slot, *none)
    shifts = _sums(engine, counts, len(encoding.mean))
    found, number, category, start = [], 0, 0, 0
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            few = snapshot.active < request.least
            entries = frequencies(snapshot, place)
            found.append([_NAN] * 6 if few else _category(encoding, category, entries))
            category += 1
            continue
        gone = _absent(snapshot, encoding, place)
        own = slice(start, start + feature.width)
        trained = float(encoding.missing[number]) / encoding.total
        row = [_NAN, _NAN, trained, float(counts @ gone / counts.sum()), _NAN, 0.0]
        if int((gone == 0).sum()) >= request.least:
            shift = shifts[own] / (counts @ (1.0 - gone))
            row[4] = float(np.abs(shift).max())
            if feature.kind != "array":
                row[0] = float(encoding.mean[start])
                row[1] = float(row[0] + encoding.scale[start] * shift[0])
        found.append(row)
        number += 1
        start += feature.width
    return Skew(request.run, request.slot, *np.array(found).reshape(-1, 6).T.copy())


def _sums(engine: Engine, counts: Float, columns: int) -> Float:
    """Of the first encoded columns, those of numbers, the sums over joined rows; what is NULL is 0
    in them."""
    found = np.zeros(columns)
    for start in range(0, columns, AT_ONCE):
        part = np.eye(engine.width, min(AT_ONCE, columns - start), -start)
        found[start : start + part.shape[1]] = counts @ engine.predict(part)
    return found


def _absent(snapshot: Snapshot, encoding: Encoding, place: int) -> Array:
    """float (a,): 1 where the feature is NULL."""
    feature = encoding.features[place]
    if feature.kind == "array":
        return absent(snapshot, place)
    values = column_of(snapshot, replace(feature, made=None), place)
    assert not isinstance(values, Categories)
    found: Array = np.isnan(values).astype(np.float64)
    return found


def _category(encoding: Encoding, number: int, found: list[tuple[bytes, float]]) -> list[float]:
    """The numbers of a feature, in the order of the message; `found`: entries and what they
    count."""
    key, total = encoding.vocabulary_key, sum(n for _, n in found)
    entries = [entry for entry, _ in found]
    names, null = [entry.decode() for entry in entries], NULL.decode()
    if key is not None:
        tags = keys.tags(vocabulary_key_of(key, number), [*entries, NULL])
        *names, null = (tag.tobytes().hex() for tag in tags)
    now = {name: n / total for name, (_, n) in zip(names, found, strict=True)}
    counts = encoding.counts[number] / encoding.total
    trained = dict(zip(encoding.vocabularies[number], counts.tolist(), strict=True))
    every = trained.keys() | now.keys()
    distance = sum(abs(now.get(name, 0.0) - trained.get(name, 0.0)) for name in every) / 2
    unseen = sum(share for name, share in now.items() if name not in trained)
    return [_NAN, _NAN, trained.get(null, 0.0), now.get(null, 0.0), distance, unseen]
