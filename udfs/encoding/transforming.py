"""Apply the functions of TRANSFORM to a snapshot's columns, fitted to its active rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import (
    AUTO,
    CURVE,
    CURVE_ROWS,
    NO_PARTNER,
    VALUES,
    WITH_PARTNER,
)
from sqlfl.messages import Ranges, SetRanges
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.fitting import (
    Categories,
    Fitted,
    Values,
    apply,
    fault_of,
    fit,
    of_range,
    own_points,
    own_range,
)
from sqlfl.udfs.encoding.pairs import Pair, column_of_cells
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows
from sqlfl.udfs.numbering.rows import Snapshot

SCALED = ("minmax", "robust_scale", AUTO)
"""Functions that scale a column: it is then centred, and not divided by its deviation."""


def raw(features: Sequence[FeatureSpecification]) -> tuple[FeatureSpecification, ...]:
    """The columns that a snapshot is taken of."""
    return tuple(feature.raw for feature in features)


def transform(
    snapshot: Snapshot,
    features: tuple[FeatureSpecification, ...],
    fitted: tuple[Fitted | None, ...] | None = None,
    joined: int = CURVE_ROWS,
    pairs: tuple[Pair, ...] = (),
    limits: CellLimits | None = None,
) -> tuple[Fitted | None, ...] | None:
    """Make `features` of the active rows' columns, once; by `fitted`, or by a fit to these rows, of
    which `joined` rows are joined, within the `limits` of cells. The last features are `pairs` of
    earlier ones.

    Returns the fit of each fitted feature; None without any. Raises ModelError if there is nothing
    to fit to, and for infinite values.
    """
    places = [place for place, feature in enumerate(features) if feature.step is not None]
    if not places and not pairs:
        return None
    named = features[: len(features) - len(pairs)]
    if snapshot.specification.features != raw(named):
        raise InternalError("a snapshot of other columns is to be transformed")
    columns = {place: column_of(snapshot, features[place], place) for place in places}
    sides = {side.place for pair in pairs for side in (pair.first, pair.second)}
    beside = {place: column_of(snapshot, features[place], place) for place in sides}
    if fitted is None:
        counts = counts_of(snapshot)
        fits = {
            place: fit(features[place], columns[place], counts, joined, limits) for place in places
        }
        fitted = tuple(fits.get(place) for place in range(len(features)))
    fault = fault_of(features, fitted)
    if fault is not None:
        raise ModelError(fault, hint="train the model again")
    made: dict[int, pa.Array] = {}
    for place in places:
        fit_of_feature = fitted[place]
        assert fit_of_feature is not None
        made[place] = apply(features[place], fit_of_feature, columns.pop(place))
    for place, pair in enumerate(pairs, start=len(named)):
        made[place] = column_of_cells(pair, features, beside)
    _put(snapshot, features, made)
    return fitted


def untransformed(
    snapshot: Snapshot, features: tuple[FeatureSpecification, ...]
) -> dict[int, Values]:
    """Return the columns that `transform` replaces, by place: those of `auto` stay beside what it
    makes of them."""
    steps = ((place, feature.step) for place, feature in enumerate(features))
    replaced = [place for place, step in steps if step is not None and step.function != AUTO]
    return {place: column_of(snapshot, features[place], place) for place in replaced}


def join_few(snapshot: Snapshot, limits: CellLimits) -> None:
    """Let rows of a table of which no column has a value be as those with one, where they are fewer
    than the limits allow in a category: the row of missing partners stays apart.
    """
    made: dict[int, pa.Array] = {}
    for place, feature in enumerate(snapshot.specification.features):
        if not feature.partner or limits.rows is None:
            continue
        values = column_of(snapshot, feature, place)
        assert isinstance(values, Categories)
        without, others = (f"v{text}".encode() for text in (NO_PARTNER, WITH_PARTNER))
        texts = pa.array(values.entries, pa.binary()).take(pa.array(values.codes))
        missing = pc.equal(texts, without).to_numpy(zero_copy_only=False) & (limits.rows > 0)
        if 0 < limits.rows[missing].sum() < limits.least:
            made[place] = pc.if_else(pa.array(missing), pa.scalar(others, pa.binary()), texts)
    if made:
        _put(snapshot, snapshot.specification.features, made)


def fit_again(
    snapshot: Snapshot,
    first: tuple[Fitted | None, ...],
    before: Mapping[int, Values],
    joined: int,
    limits: CellLimits,
    *,
    shared: bool = False,
) -> tuple[Fitted | None, ...]:
    """Make the fitted features anew, fitted to the active rows as they count now, and return all
    fits. `first`: fits of all rows. `before`: what `untransformed` returned of these rows. `joined`
    and `limits` are as in `transform`. Of a `shared` slot the first fits stay, but curves of few
    rows.

    Within limits, only values of the first fit have a weight of their own, and the first buckets,
    categories, scales and values for NULL stay. Then cells of any two fits differ by whole cells of
    the first, and no difference tells of fewer rows.
    """
    features = snapshot.specification.features
    lines = {
        f"{feature.name} ({part})": place
        for place, feature in enumerate(features)
        for part in (CURVE, VALUES)
    }
    counts, fits = counts_of(snapshot), list(first)
    made: dict[int, pa.Array] = {}
    for place, feature in enumerate(features):
        if feature.step is None:
            continue
        if feature.step.function != AUTO and (shared or limits.bound):
            continue
        if feature.step.function == AUTO:
            line = lines[feature.name]
            values = column_of(snapshot, features[line], line)
        else:
            values = before[place]
        first_fit = first[place]
        if shared and joined >= CURVE_ROWS and first_fit is not None:
            fitted = first_fit
        else:
            fitted = fit(feature, values, counts, joined, limits)
        if feature.frequent_values and first_fit is not None and limits.bound:
            fitted = replace(fitted, numbers=np.intersect1d(fitted.numbers, first_fit.numbers))
        fits[place], made[place] = fitted, apply(feature, fitted, values)
    if made:
        _put(snapshot, features, made)
    return tuple(fits)


def ranges(
    snapshot: Snapshot,
    features: tuple[FeatureSpecification, ...],
    joined: int,
    limits: CellLimits,
) -> Ranges:
    """Return the ranges that a client of a shared slot sends before `transform`, for each fitted
    feature. `joined` and `limits` are as in `transform`.
    """
    counts = counts_of(snapshot)
    ends, points = [], []
    for place, feature in enumerate(features):
        if feature.fitted:
            column = column_of(snapshot, feature, place)
            ends.append(own_range(feature, column, counts, limits))
            points.append(own_points(feature, column, counts, joined, limits))
    told = np.array(ends).reshape(-1, 3)
    return Ranges(
        snapshot.run,
        snapshot.specification.slot,
        np.array(told[:, :2]),
        np.array(told[:, 2]),
        tuple(at for at, _ in points),
        tuple(weights for _, weights in points),
    )


def of_ranges(
    features: tuple[FeatureSpecification, ...], merged: SetRanges
) -> tuple[Fitted | None, ...]:
    """Return the fits from merged ranges. Raise InternalError for ranges of other features, and
    for points in no order."""
    if len(merged.ends) != sum(feature.fitted for feature in features):
        raise InternalError(f"ranges of {len(merged.ends)} features came")
    if not all((np.diff(points) > 0.0).all() for points in merged.points):
        raise InternalError("points of a curve came in no order")
    told = zip(merged.ends, merged.points, merged.counts, strict=True)
    return tuple(of_range(f, *next(told)) if f.fitted else None for f in features)


def encoding_of(encoding: Encoding, fitted: tuple[Fitted | None, ...] | None) -> Encoding:
    """Return the encoding with the fits; columns that these scale keep their scale."""
    if fitted is None:
        return encoding
    scale, start = encoding.scale.copy(), 0
    for feature in encoding.features:
        if feature.kind == "category":
            continue
        if feature.step is not None and feature.step.function in SCALED:
            scale[start : start + feature.width] = 1.0
        start += feature.width
    return replace(encoding, scale=scale, fitted=fitted)


def counts_of(snapshot: Snapshot) -> Float:
    """Return (a,): the weight of each active row."""
    if snapshot.held is not None:
        return snapshot.held.weights
    return snapshot.of_active_rows(sql.column("cnt"), None, np.float64)


def absent(snapshot: Snapshot, place: int) -> Array:
    """(a,): the array is NULL."""
    if snapshot.held is None:
        return snapshot.of_active_rows(sql.column(f"m{place}"), None, np.float64)
    gone: Array = snapshot.held.columns[f"f{place}"].is_null().to_numpy(zero_copy_only=False)
    return gone.astype(np.float64)


def column_of(snapshot: Snapshot, feature: FeatureSpecification, place: int) -> Values:
    """Return the column of a feature over the active rows; the feature is no array."""
    if snapshot.held is not None:
        return _held_column(snapshot.held, feature, place)
    before = snapshot.specification.features[:place]
    if feature.raw.kind != "category":
        number = sum(f.width for f in before if f.kind != "category")
        value = sql.expression(
            "coalesce(CAST($value AS DOUBLE), CAST('nan' AS DOUBLE))",
            value=sql.column(f"x{number}"),
        )
        return snapshot.of_active_rows(value, None, np.float64)
    query = sql.select(snapshot.active_table, sql.columns_of(["r", f"c{place}"]))
    with sql.batches(snapshot.con, query) as reader:
        table = reader.read_all()
    encoded = table.column(1).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    codes = np.empty(snapshot.active, np.int64)
    codes[table.column(0).to_numpy()] = encoded.indices.to_numpy()
    return Categories(codes, tuple(encoded.dictionary.to_pylist()))


def _held_column(held: HeldRows, feature: FeatureSpecification, place: int) -> Values:
    if feature.raw.kind == "category":
        codes, entries = held.categories[place]
        return Categories(codes, tuple(entries))
    values = held.columns[f"f{place}"].to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


def _set_features(snapshot: Snapshot, features: tuple[FeatureSpecification, ...]) -> None:
    snapshot.specification = replace(snapshot.specification, features=features)
    snapshot.fits += 1


def _put(
    snapshot: Snapshot, features: tuple[FeatureSpecification, ...], made: dict[int, pa.Array]
) -> None:
    """Put the columns in place of those of the active rows, which then have `features`."""
    if snapshot.held is None:
        _rewrite(snapshot, features, made)
        return
    columns = {**snapshot.held.columns, **{f"f{place}": column for place, column in made.items()}}
    _set_features(snapshot, features)
    snapshot.hold(replace(snapshot.held, features=features, columns=columns))


def _rewrite(
    snapshot: Snapshot, features: tuple[FeatureSpecification, ...], made: dict[int, pa.Array]
) -> None:
    """The active rows in a new table, with these columns in place of theirs."""
    before = snapshot.specification.features
    beside: dict[str, object] = {"r": np.arange(snapshot.active, dtype=np.uint32)}
    chosen: list[exp.Expr] = []
    given = taken = 0
    for place, feature in enumerate(features):
        column = made.get(place)
        if column is not None:
            beside |= _columns_of(column, feature, place, given)
            names = _names(feature, place, given)
            chosen += sql.columns_of(names, "a")
        else:
            old, new = _names(feature, place, taken), _names(feature, place, given)
            chosen += [
                sql.named(sql.column(was, "t"), name) for was, name in zip(old, new, strict=True)
            ]
        given += _width(feature)
        taken += _width(before[place]) if place < len(before) else 0
    chosen += sql.columns_of(snapshot.plain_columns(), "t")
    with sql.registered(snapshot.con, snapshot.name("made"), pa.table(beside)) as table:
        query = sql.query(
            "SELECT t.r, t.cnt, $chosen FROM $before AS t JOIN $given AS a ON a.r = t.r",
            chosen=chosen,
            before=snapshot.active_table,
            given=table,
        )
        _set_features(snapshot, features)
        snapshot.replace_active(query)


def _width(feature: FeatureSpecification) -> int:
    return 0 if feature.kind == "category" else feature.width


def _names(feature: FeatureSpecification, place: int, start: int) -> list[str]:
    if feature.kind == "category":
        return [f"c{place}"]
    numbers = [f"x{start + k}" for k in range(feature.width)]
    return [*numbers, f"m{place}"] if feature.kind == "array" else numbers


def _columns_of(
    made: pa.Array, feature: FeatureSpecification, place: int, start: int
) -> dict[str, object]:
    names = _names(feature, place, start)
    if feature.kind != "array":
        return {names[0]: made}
    values = made.values.to_numpy().reshape(-1, feature.width)
    missing = made.is_null()
    gone = missing.to_numpy(zero_copy_only=False)
    columns = [pa.array(column, mask=gone) for column in values.T]
    return dict(zip(names, [*columns, missing], strict=True))
