"""What a client tells of a saved block, over the rows of a run or outside one."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from scipy.special import ndtri

from sqlfl import messages as ms
from sqlfl.arrays import Array, Float
from sqlfl.errors import InternalError, ModelError
from sqlfl.models.inference import variances_of
from sqlfl.privacy.randomness import Entropy, system
from sqlfl.udfs.blocks import SavedBlock
from sqlfl.udfs.naming import bases_of, centres_of, columns_of, own_texts, scales_of
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.update import Engine

Look: TypeAlias = ms.SendRotated | ms.SendErrors | ms.ScorePermuted | ms.SendContributions
"""Asked of a saved block, over the rows of a run."""
MOST = 1 << 28
"""Numbers of a block's encoded rows, or of a matrix of its columns, that are sent at once."""
_UNTOLD = 1e-6
"""The share of a coefficient that may lie in what the rows do not tell: more is no rounding."""


def told_block(block: SavedBlock, request: ms.SendBlock) -> ms.Block:
    """The block's weights, and what they are of. InternalError for a tower."""
    _check_linear(block)
    found = columns_of(block.encoding)
    return ms.Block(
        request.run,
        request.slot,
        found.kinds,
        found.features,
        found.categories,
        np.array(block.theta, np.float64),
        centres_of(block.encoding),
        scales_of(block.encoding),
    )


# -- standard errors ------------------------------------------------------------------------------


def rotation(secret: bytes, size: int) -> Float:
    """R (size, size), orthogonal, drawn evenly from all such by a generator of bytes that starts
    from `secret`."""
    data = hashlib.shake_256(secret).digest(8 * size * size)
    uniform = (np.frombuffer(data, np.uint64) >> np.uint64(11)) + 0.5
    normal = ndtri(uniform / 2.0**53).reshape(size, size)
    q, r = np.linalg.qr(normal)
    # without the signs, those of the diagonal of r would show (Mezzadri 2007)
    found: Float = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return found


def rotated(
    block: SavedBlock, engine: Engine, secret: bytes, request: ms.SendRotated
) -> ms.Rotated:
    """X̃ R of the active rows. ModelError where that is very much."""
    _check_linear(block)
    d = engine.width
    if max(engine.rows, d) * d > MOST:
        raise ModelError(
            f"its {engine.rows:,} active rows have {d:,} encoded columns: standard errors of so "
            "many are not worked out",
            hint="take a sample of the rows in the query, or train with fewer categories",
        )
    turned = rotation(secret, d)
    # in these columns the ridge is l2 for all
    scales = block.encoding.shrinkage
    return ms.Rotated(
        request.run,
        request.slot,
        engine.predict(scales[:, None] * turned),
        turned.T @ (block.theta[:, 0] / scales),
        turned.T @ (_origin(block) * scales),
    )


def errors(
    block: SavedBlock, snapshot: Snapshot, secret: bytes, request: ms.SendErrors
) -> ms.Errors:
    """Coefficients in the features' units and their standard errors, from the covariance of θ: 0
    where there is none.

    InternalError where that is of other columns.
    """
    _check_linear(block)
    encoding = block.encoding
    d = encoding.width
    if request.covariance.shape != (d, d):
        raise InternalError(f"a covariance of {len(request.covariance)} columns, of {d}")
    contrasts, bases = _contrasts(block)
    own = (contrasts * encoding.shrinkage) @ rotation(secret, d)
    variances = variances_of(own, request.covariance)
    untold = np.einsum("kd,kd->k", own @ request.unknown, own)
    is_base = bases == np.arange(d)
    least = _UNTOLD * np.einsum("kd,kd->k", own, own)
    told = (untold <= least) & ~is_base
    finite = (np.einsum("kd,kd->k", own @ request.endless, own) <= least) | is_base
    found = columns_of(encoding, own_texts(snapshot, encoding))
    return ms.Errors(
        request.run,
        request.slot,
        found.kinds,
        found.features,
        found.categories,
        contrasts @ block.theta[:, 0],
        np.where(told, np.sqrt(variances), 0.0),
        told.astype(np.uint8),
        finite.astype(np.uint8),
        is_base.astype(np.uint8),
    )


def _contrasts(block: SavedBlock) -> tuple[Float, Array]:
    """(d, d): of each column what its coefficient is of θ; and of each its base, or −1."""
    bases = bases_of(block.encoding)
    found = np.diag(1.0 / scales_of(block.encoding))
    categories = np.flatnonzero(bases >= 0)
    found[categories, bases[categories]] -= 1.0
    return found, bases


def _origin(block: SavedBlock) -> Float:
    """x̃ (d,) of the row whose numbers are 0, of which nothing is missing, and whose categories are
    the bases."""
    own = block.encoding
    bases = bases_of(own)
    at = (bases == np.arange(own.width)).astype(np.float64)
    found: Float = (at - centres_of(own)) / scales_of(own)
    return found


# -- importance and contributions -----------------------------------------------------------------


def permuted(
    block: SavedBlock, engine: Engine, request: ms.ScorePermuted, entropy: Entropy = system
) -> Float:
    """Predictions (a, outputs) where the feature's values are those of the rows in another order;
    columns that it is encoded by stay together. InternalError for a feature that there is not."""
    if request.feature >= len(block.encoding.features):
        raise InternalError(f"feature {request.feature} of {len(block.encoding.features)}")
    seed: int | list[int] = int.from_bytes(entropy(32), "little")
    if request.seed >= 0:
        seed = [request.seed, request.slot, request.feature, request.repeat]
    order = np.random.default_rng(seed).permutation(engine.rows)
    own = _of_feature(block, request.feature)
    rest = np.where(own[:, None], 0.0, block.theta)
    part = engine.predict(block.theta - rest)
    return block.finish(np.asarray(engine.predict(rest) + part[order], np.float64))


def contributions(block: SavedBlock, engine: Engine) -> Float:
    """What each feature adds to the predictions: (a, features · outputs)."""
    _check_linear(block)
    weights = [
        np.where(_of_feature(block, place)[:, None], block.theta, 0.0)
        for place in range(len(block.encoding.features))
    ]
    found: Float = engine.predict(np.hstack(weights))
    return found


def _of_feature(block: SavedBlock, place: int) -> Array:
    """bool (d,)"""
    found: Array = columns_of(block.encoding).places == place
    return found


def _check_linear(block: SavedBlock) -> None:
    if block.tower is not None:
        raise InternalError("a tower has no weights of features")
