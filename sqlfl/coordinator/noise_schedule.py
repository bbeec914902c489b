"""Releases of a run about a slot, as far as the noise depends on them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.privacy.counts import Part
from sqlfl.privacy.second_moments import moments_sensitivity, row_bound


def planned_releases(
    options: TrainingOptions,
    *,
    slot: int,
    joined: int,
    clip: float,
    clients: int,
    copies: int,
    partners: Mapping[int, int],
    numeric: int = 0,
    categories: int = 0,
    largest: float = 0.0,
    one_sided: frozenset[int] = frozenset(),
    one_sided_slopes: bool = False,
    summed: int = 0,
    outputs: int = 0,
    honest: int = 0,
    residual: float = 0.0,
    row_weight: float = 0.0,
    leads: bool = False,
) -> PlannedReleases:
    """Return the planned releases of one slot, from the options of WITH.

    joined: N, joined rows that train. copies, partners: F, and slot j -> F_ij, each counted over
    these rows. one_sided, one_sided_slopes: as PlannedReleases has them. numeric, categories,
    largest: for second moments. They are the slot's encoded numeric columns, its categorical
    features, and the largest count (sum of weights) of a row. summed: for draws, F over all joined
    rows, including validation rows. outputs, honest: for draws, as PlannedReleases has them.
    residual: for choices, R. row_weight: for moments alone, the maximum weight of a row in them.
    leads: the slot is the query's leading one.

    Towers predict once before the first step. Raise InternalError for a method that cannot be
    private.
    """
    epochs, tower, method = options.epochs, options.tower is not None, spec_of(options.algorithm)
    if joined < 1 or clients < 1:
        raise InternalError(f"{epochs} epochs over {joined} joined rows at {clients} clients")
    if method.private is None:
        raise InternalError(f"{method.name!r} has no private rounds")
    part = Part(options, joined, max(copies, 1), clients, max(summed, copies, 1), leads)
    counts, moments = method.private(part), method.moments and not tower
    bound = row_bound(numeric) if moments else 0.0
    return PlannedReleases(
        slot=slot,
        gradients=counts.gradients,
        predictions=counts.predictions + int(tower and not method.drawn),
        moments=int(moments or counts.crosses > 0),
        moments_sensitivity=moments_sensitivity(largest, bound, categories) if moments else 0.0,
        clip=clip,
        clients=clients,
        copies=part.copies,
        partners=dict(partners),
        steps=counts.steps,
        draws=counts.draws,
        outputs=outputs if counts.draws else 0,
        honest=honest if counts.draws else 0,
        selections=counts.selections,
        sketches=counts.selections,
        residual_bound=residual if counts.selections else 0.0,
        crosses=counts.crosses,
        row_weight=row_weight if counts.crosses else 0.0,
        categories=categories if counts.crosses else 0,
        whole=counts.steps == epochs,
        epochs=epochs,
        row_bound=bound,
        secret=options.method.secure,
        one_sided=one_sided,
        one_sided_slopes=one_sided_slopes,
    )
