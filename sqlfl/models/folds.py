"""Stratified folds: rows are dealt class by class, for each fold to have its share of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array


def deal(strata: Array, parts: int, share: float) -> Array:
    """Return the fold of each row, from 0, as uint8 (n,).

    The rows of a stratum go to the folds in turn, in their order. With `parts = 1` a share of each
    stratum is held out: 1 for its rows, 0 for the others. Then at least one row of each stratum is
    held out, and at least one is trained on. A stratum's only row is trained on.

    strata: whole numbers from 0, (n,).
    """
    order, sizes = np.argsort(strata, kind="stable"), np.bincount(strata)
    ranks = np.empty(len(strata), np.int64)
    ranks[order] = np.arange(len(strata)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    fold: Array = ranks % parts if parts > 1 else ranks < _held(sizes, share)[strata]
    return fold.astype(np.uint8)


def merge_folds(
    folds: Sequence[Array],
    strata: Sequence[Array | None],
    parts: int,
    share: float,
    *,
    onward: bool,
) -> list[Array]:
    """Turn the folds of several clients, each from `deal`, as if all rows were dealt together.

    A client's folds of a stratum move on by as many as the clients before it have used. So the few
    rows that each client has of a class do not all lie in the first folds. With `onward` each
    stratum begins where the one before it ends, which makes the folds equally large too.

    strata: by client those of its rows; None for a client whose folds must turn as a whole.
    """
    number = max(parts, 2)
    extra_stratum = (
        max((int(codes.max(initial=0)) for codes in strata if codes is not None), default=0) + 1
    )
    turning = [
        np.full(len(fold), extra_stratum) if codes is None else codes.astype(np.int64)
        for codes, fold in zip(strata, folds, strict=True)
    ]
    size = extra_stratum + 1
    counts = np.array(
        [
            np.bincount(codes * number + fold, minlength=size * number).reshape(size, number)
            for codes, fold in zip(turning, folds, strict=True)
        ]
    )
    pairs = enumerate(zip(folds, turning, strict=True))
    if parts == 1:
        added = _added(counts, share)
        return [np.where(added[client][codes], 1, fold) for client, (fold, codes) in pairs]
    folds_used = np.count_nonzero(counts, axis=2)
    # equal rows share a fold: as long as some fold is free, the used ones number what was dealt
    dealt = np.where(folds_used < parts, folds_used, counts.sum(axis=2))
    first = np.cumsum(dealt, axis=0) - dealt
    if onward:
        every = dealt.sum(axis=0)
        first += np.cumsum(every) - every
    return [(fold + first[client][codes]) % parts for client, (fold, codes) in pairs]


def strata_of(groups: Array, classes: Array) -> tuple[Array, Array]:
    """Return the stratum of each group, and the number of its classes, both (m,).

    The stratum is the rarest class of the group's rows; the class in the fewest groups is 0. Where
    groups of one class stand before others, the groups with either of two classes are dealt in a
    row: `deal` and `merge_folds` with `onward` spread both evenly.

    groups: the group of each row, (n,): 0 to m − 1, each of which occurs; classes: its class, (n,).
    """
    classes = classes.astype(np.int64)
    size = 1 + int(classes.max(initial=0))
    pairs = np.unique(groups.astype(np.int64) * size + classes)
    group, class_ = np.divmod(pairs, size)
    often = np.bincount(class_, minlength=size)
    rank = np.empty(size, np.int64)
    rank[np.argsort(often, kind="stable")] = np.arange(size)
    heads = np.flatnonzero(np.diff(group, prepend=-1))
    strata: Array = np.minimum.reduceat(rank[class_], heads)
    return strata, np.bincount(group)


def _held(sizes: Array, share: float) -> Array:
    """Return how many rows are held out of strata of these sizes."""
    sizes_held: Array = np.minimum(np.maximum(np.rint(share * sizes), 1), sizes - 1)
    return sizes_held


def _added(counts: Array, share: float) -> Array:
    """Return which clients hold out their rows of which strata after all, bool (clients, strata).

    These are strata of which no client holds out any, since each has one row at most.

    counts: rows that each client trains on and holds out, (clients, strata, 2).
    """
    single = (counts[:, :, 0] > 0) & (counts[:, :, 1].sum(axis=0) == 0)
    added: Array = single & (np.cumsum(single, axis=0) <= _held(single.sum(axis=0), share))
    return added
