"""What a client tells of a saved block, over the rows of a run or outside one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.special import ndtri

from sqlfl import messages as ms
from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.transforms import AUTO, CURVE, VALUES
from sqlfl.models.aliasing import ROUNDED, ZERO, left_out, span, span_of, touches
from sqlfl.models.inference import variances_of
from sqlfl.privacy.samplers import Entropy, system
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding.naming import (
    bases_of,
    centres_of,
    columns_of,
    missing_of,
    own_texts,
    padding_of,
    scales_of,
)
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.update import LinearEngine

Look: TypeAlias = ms.SendRotated | ms.SendErrors | ms.ScorePermuted | ms.SendContributions
"""Asked of a saved block, over the rows of a run."""
MAX_NUMBERS = 1 << 28
"""Numbers of a block's encoded rows, or of a matrix of its columns, that are sent at once."""


def block_reply(block: SavedBlock, request: ms.SendBlock) -> ms.Block:
    """The block's weights, and what they are of. InternalError for a tower."""
    _check_linear(block)
    columns = columns_of(block.encoding)
    return ms.Block(
        request.run,
        request.slot,
        columns.kinds,
        columns.features,
        columns.categories,
        np.array(block.theta, np.float64),
        centres_of(block.encoding),
        scales_of(block.encoding),
    )


def curves_reply(block: SavedBlock, request: ms.SendCurves) -> ms.Curves:
    """Effects of the features that `auto` made, or of the one that is asked for; none where the
    block has none."""
    wanted = request.feature.lower()
    effects = [
        effect for effect in block.encoding.effects or () if wanted in ("", effect.feature.lower())
    ]
    none = np.zeros((0, block.outputs))
    return ms.Curves(
        request.run,
        request.slot,
        tuple(effect.feature for effect in effects for _ in effect.texts),
        tuple(text for effect in effects for text in effect.texts),
        np.concatenate(
            [np.zeros(0, np.uint8), *(effect.kinds.astype(np.uint8) for effect in effects)]
        ),
        np.concatenate([none, *(effect.effects for effect in effects)]),
        np.concatenate([none, *(effect.errors for effect in effects)]),
        np.concatenate(
            [np.zeros(0, np.int64), *(effect.rows.astype(np.int64) for effect in effects)]
        ),
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
    turned: Float = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return turned


def rotated(
    block: SavedBlock, engine: LinearEngine, secret: bytes, request: ms.SendRotated
) -> ms.Rotated:
    """X̃ R of the active rows. ModelError where that is very much."""
    _check_linear(block)
    if block.encoding.pairs:
        raise ModelError(
            "its block has pairs of features: standard errors of cells are not worked out",
            hint="CURVES OF MODEL has bands; train with TRANSFORM (auto) for errors of the slopes",
        )
    d = engine.width
    if max(engine.rows, d) * d > MAX_NUMBERS:
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
        turned.T @ (block.theta / scales[:, None]),
        turned.T @ (_origin(block, _chosen(request)) * scales),
    )


def errors(
    block: SavedBlock,
    snapshot: Snapshot,
    secret: bytes,
    common: Callable[[str], bytes],
    request: ms.SendErrors,
) -> ms.Errors:
    """Coefficients in the features' units and their standard errors, from the covariance of θ: 0
    where there is none. `secret` is of the slot, and `common` gives the parties' keys by purpose.

    Columns that follow from earlier ones are left out: their coefficients are 0, and not told.
    InternalError where the covariance is of other columns.
    """
    _check_linear(block)
    encoding = block.encoding
    d = encoding.width
    if request.covariance.shape != (d, d):
        raise InternalError(f"a covariance of {len(request.covariance)} columns, of {d}")
    turned, shrinkage = rotation(secret, d), encoding.shrinkage
    basis = shrinkage[:, None] * turned
    theta = turned.T @ (_contrast(block, request) / shrinkage) + request.shift
    columns = columns_of(encoding, own_texts(snapshot, encoding))
    differences, bases = _differences(block, _chosen(request))
    is_base = bases == np.arange(d)
    absent = _absent(block, turned, request)
    resolved = _resolved(differences @ basis, scales_of(encoding), absent, request)
    finite = ~touches(resolved.functions, span_of(request.endless)) | is_base
    told = np.where(resolved.told & finite & ~is_base, ms.TOLD, 0).astype(np.uint8)
    if not request.penalised:
        provided = touches(resolved.functions, span_of(request.later))
        told[(told > 0) & provided] = ms.PROVIDED
    padding = padding_of(encoding)
    told[padding] = ms.TOLD  # 0, whatever a row is
    kinds, features, categories = columns.kinds.copy(), [*columns.features], [*columns.categories]
    if resolved.partnerless is not None:
        kinds[resolved.partnerless] = ms.PARTNERLESS
        features[resolved.partnerless] = categories[resolved.partnerless] = ""
    return ms.Errors(
        request.run,
        request.slot,
        kinds,
        tuple(features),
        tuple(categories),
        np.where(padding, 0.0, resolved.functions @ theta),
        np.where(
            (told > 0) & ~padding,
            np.sqrt(variances_of(resolved.functions, request.covariance)),
            0.0,
        ),
        told,
        finite.astype(np.uint8),
        is_base.astype(np.uint8),
        int(resolved.foreseen),
        float(resolved.intercept @ theta),
        _turned(resolved.intercept, common, request),
    )


def _turned(taken: Float, common: Callable[[str], bytes], request: ms.SendErrors) -> Float:
    """(2, directions): what is left of the intercept once `taken` (d,) is subtracted, in the basis
    of the parties.
    """
    left = request.starts - taken @ request.roots
    size = left.shape[1]
    names = (f"{form} {request.output}" for form in ("variance", "separation"))
    return np.stack(
        [rotation(common(name), size) @ part for name, part in zip(names, left, strict=True)]
    )


def _contrast(block: SavedBlock, request: ms.SendErrors) -> Float:
    """Return the weights (d,) of the requested class less those of its reference."""
    outputs = block.theta.shape[1]
    wrong = max(request.output, request.reference) >= outputs
    if wrong or (request.reference < 0) != (outputs == 1):
        raise InternalError(f"class {request.output} less {request.reference}, of {outputs}")
    weights = np.asarray(block.theta[:, request.output], np.float64)
    return weights if outputs == 1 else weights - block.theta[:, request.reference]


@dataclass(frozen=True, eq=False)
class _Resolved:
    """Coefficients, once columns that follow from earlier ones are left out."""

    functions: Float
    """(d, d): each coefficient, in its feature's units, of θ in the rotated basis."""
    told: Array
    """bool (d,)"""
    partnerless: int | None
    """The column whose place that of rows without a partner takes."""
    foreseen: bool
    intercept: Float
    """(d,): what leaving columns out takes from the intercept, of θ in the rotated basis."""


def _resolved(
    differences: Float, scales: Float, absent: Array, request: ms.SendErrors
) -> _Resolved:
    """Leave out the columns that follow from earlier ones, unless a penalty decides them.

    `differences` (d, d): coefficients of the encoded columns of θ in the rotated basis; `absent`
    bool (d,): indicators and categories of NULL that rows without a partner have. Where the columns
    tell which rows have no partner, that is a column before all others, and those of `absent` are
    of NULLs beyond.
    """
    d = len(scales)
    within, between = span_of(request.within), span_of(request.between)
    functions = np.vstack([np.zeros(d), differences])
    moving = functions @ within
    constants = request.constants @ within
    crossing = functions @ between
    partnerless = None
    if absent.any() and request.partnerless.any():
        relation = np.append(-1.0, differences @ request.partnerless)[:, None]
        left, _ = left_out(np.hstack([moving, relation, crossing]))
        following = np.intersect1d(left - 1, np.flatnonzero(absent))
        if len(following):
            partnerless = int(following[0])
            moving = np.hstack([moving, relation])
            constants = np.append(constants, request.constants @ request.partnerless)
    left, matrix = left_out(np.hstack([moving, crossing]))
    told, foreseen, intercept = np.ones(1 + d, bool), True, np.zeros(d)
    if not request.penalised:
        told[left] = False
        taken = functions - matrix @ functions
        parts = np.linalg.pinv(np.hstack([moving, crossing]), rcond=ZERO) @ taken
        intercept = constants @ parts[: len(constants)]
        # what is left out for relations between tables must be what G θ = 0 leaves out
        rest = taken - taken @ between @ between.T
        basis = span(moving)
        foreseen = bool(np.abs(rest - basis @ (basis.T @ rest)).max() <= ROUNDED)
        functions = matrix @ functions
    rescaled = functions[1:] / scales[:, None]
    own_told = told[1:].copy()
    if partnerless is not None:
        rescaled[partnerless] = functions[0] + rescaled[absent].sum(axis=0)
        own_told[partnerless] = told[0]
    if request.penalised:
        own_told &= ~touches(rescaled, span(np.hstack([within, between, span_of(request.later)])))
    return _Resolved(rescaled, own_told, partnerless, foreseen, intercept)


def _absent(block: SavedBlock, turned: Float, request: ms.SendErrors) -> Array:
    """bool (d,): indicators and categories of NULL that the row of a missing partner has."""
    encoding = block.encoding
    row = turned @ request.partner / encoding.shrinkage * scales_of(encoding) + centres_of(encoding)
    absent: Array = missing_of(encoding) & (row > 0.5)
    return absent


def _chosen(request: ms.SendRotated | ms.SendErrors) -> dict[str, str]:
    """Base categories by feature."""
    return dict(zip(request.compared, request.bases, strict=True))


def _differences(block: SavedBlock, chosen: Mapping[str, str]) -> tuple[Float, Array]:
    """(d, d): of each encoded column what its coefficient is of θ, of a category the difference
    from its base; and of each its base, or −1."""
    bases = bases_of(block.encoding, chosen)
    differences = np.eye(len(bases))
    categories = np.flatnonzero(bases >= 0)
    differences[categories, bases[categories]] -= 1.0
    return differences, bases


def _origin(block: SavedBlock, chosen: Mapping[str, str]) -> Float:
    """x̃ (d,) of the row whose numbers are 0, of which nothing is missing, and whose categories are
    the bases."""
    encoding = block.encoding
    bases = bases_of(encoding, chosen)
    at = (bases == np.arange(encoding.width)).astype(np.float64)
    origin: Float = (at - centres_of(encoding)) / scales_of(encoding)
    return origin


# -- importance and contributions -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parts:
    """Predictions of a slot's rows without one feature, and the part of the feature."""

    feature: int
    rest: Float
    part: Float


def parts_of(block: SavedBlock, engine: LinearEngine, feature: int) -> Parts:
    """Return the parts of the predictions. Raise InternalError for an unknown feature."""
    if not 0 <= feature < len(block.encoding.named):
        raise InternalError(f"feature {feature} of {len(block.encoding.named)}")
    places = _with_curve(block, feature)
    of_feature = np.sum([_shares(block, place) for place in places], axis=0) > 0.0
    rest = np.where(of_feature[:, None], 0.0, block.theta)
    return Parts(feature, engine.predict(rest), engine.predict(block.theta - rest))


def permuted(
    block: SavedBlock, parts: Parts, request: ms.ScorePermuted, entropy: Entropy = system
) -> Float:
    """Predictions (a, outputs) where the feature's values are those of the rows in another order;
    columns that it is encoded by stay together, with those of its curve and of pairs that it is in.
    """
    seed: int | list[int] = int.from_bytes(entropy(32), "little")
    if request.seed >= 0:
        seed = [request.seed, request.slot, request.feature, request.repeat]
    order = np.random.default_rng(seed).permutation(len(parts.part))
    return block.finish(np.asarray(parts.rest + parts.part[order], np.float64))


def _with_curve(block: SavedBlock, place: int) -> list[int]:
    """Return the place of a feature, and of the columns that `auto` made beside it."""
    features = block.encoding.named
    beside = {f"{features[place].name} ({part})" for part in (CURVE, VALUES)}
    curves = (
        n
        for n, feature in enumerate(features)
        if feature.name in beside and feature.step is not None and feature.step.function == AUTO
    )
    return [place, *curves]


def contributions(block: SavedBlock, engine: LinearEngine) -> Float:
    """Return the contributions of each feature to the predictions: (a, features · outputs). Each
    feature of a pair has half of the pair's, which is its Shapley value."""
    _check_linear(block)
    weights = [
        _shares(block, place)[:, None] * block.theta for place in range(len(block.encoding.named))
    ]
    added: Float = engine.predict(np.hstack(weights))
    return added


def _shares(block: SavedBlock, place: int) -> Float:
    """(d,): the share of each column's weight that is the feature's."""
    encoding = block.encoding
    places, first = columns_of(encoding).places, len(encoding.named)
    shares: Float = (places == place).astype(np.float64)
    for number, pair in enumerate(encoding.pairs, start=first):
        shares[places == number] = 0.5 * (place in (pair.first.place, pair.second.place))
    return shares


def _check_linear(block: SavedBlock) -> None:
    if block.tower is not None:
        raise InternalError("a tower has no weights of features")
