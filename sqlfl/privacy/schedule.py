"""How often the rows of a slot take part in what a run releases."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sqlfl.errors import InternalError
from sqlfl.methods.admm.options import AdmmOptions
from sqlfl.methods.sgd.options import SgdOptions
from sqlfl.options.training import TrainingOptions
from sqlfl.privacy.specification import SlotRounds


def slot_rounds(
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
) -> SlotRounds:
    """The plan of one slot, from the options of WITH.

    joined: N, joined rows that train. copies: F, and partners: slot j -> F_ij, each counted over
    these; `one_sided` and `one_sided_slopes` as SlotRounds has them. For linear ADMM: `numeric`
    encoded columns and `categories` features of the slot, and the `largest` count (sum of weights)
    of a row.

    sgd, N rows in S = ⌈N/B⌉ batches: in an epoch a row is in at most min(F, S) batches, each of
    which sums its gradient once. It is predicted at the end of an epoch and for each batch that it
    is in, but for the first one, whose predictions are the last epoch's; with dropout for the first
    one too. Towers predict once before. All rows at once: S = 1.
    admm: a sum and a prediction an epoch, and second moments once. Of towers, a pass over the
    client's rows sums each row's gradient once, in whatever batches; one client makes local_epochs
    passes an epoch, several make ⌈local_epochs/inner_rounds⌉ in each inner round.

    InternalError for an algorithm that cannot be private.
    """
    epochs, tower, method = options.epochs, options.tower, options.method
    if joined < 1 or clients < 1:
        raise InternalError(f"{epochs} epochs over {joined} joined rows at {clients} clients")
    own = max(copies, 1)
    gradients = predictions = steps = epochs
    moments = 0
    if isinstance(method, SgdOptions):
        batches = math.ceil(joined / method.batch_size.of(joined))
        gradients, steps = epochs * min(own, batches), epochs * batches
        drops = tower is not None and tower.dropout > 0.0
        predictions = epochs * (1 + min(own, batches if drops else batches - 1))
    elif isinstance(method, AdmmOptions) and tower is not None:
        inner = method.inner_rounds if clients > 1 else 1
        gradients = epochs * inner * math.ceil(method.local_epochs / inner)
    elif isinstance(method, AdmmOptions):
        moments = 1
    else:
        raise InternalError(f"{options.algorithm!r} has no private rounds")
    bound = row_bound(numeric) if moments else 0.0
    return SlotRounds(
        slot=slot,
        gradients=gradients,
        predictions=predictions + (tower is not None),
        moments=moments,
        moments_sensitivity=moments_sensitivity(largest, bound, categories) if moments else 0.0,
        clip=clip,
        clients=clients,
        copies=own,
        partners=dict(partners),
        steps=steps,
        whole=steps == epochs,
        epochs=epochs,
        row_bound=bound,
        one_sided=one_sided,
        one_sided_slopes=one_sided_slopes,
    )


def row_bound(numeric: int) -> float:
    """R of so many encoded numeric columns: the norm of a row whose columns are all 1 or −1."""
    return math.sqrt(numeric)


def moments_sensitivity(largest: float, bound: float, categories: int) -> float:
    """ℓ2 sensitivity of a slot's second moments for the change of one row's features.

    Of its numeric columns, ‖x‖ ≤ R, all numbers of Σ cnt x xᵀ: cnt ‖x xᵀ − y yᵀ‖ in the Frobenius
    norm is cnt √(‖x‖⁴ + ‖y‖⁴ − 2 (x·y)²) ≤ cnt √2 R², attained for x ⟂ y. Of each of k category
    features the counts Σ cnt: one falls by cnt, another rises. InternalError for a slot without
    columns, or rows that count nothing.
    """
    found = largest * math.sqrt(2.0 * bound**4 + 2.0 * categories)
    if not found > 0.0:
        raise InternalError("second moments of nothing")
    return found
