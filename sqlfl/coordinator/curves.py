"""CURVES OF MODEL: effects of the features that TRANSFORM (auto) made, told by their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sqlfl.base.errors import ModelError, nearest
from sqlfl.contract.transforms import AUTO, TIMES
from sqlfl.coordinator import expected
from sqlfl.coordinator.scoring import Scoring, class_values
from sqlfl.messages import Curves, SendCurves
from sqlfl.messages.diagnostics import AT_CATEGORY, AT_NULL, AT_NUMBER
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.store.registry import Model, ModelBlock

BAND = 1.959963984540054
"""Standard errors on either side of an effect: 95 % of a normal distribution."""


def curves(model: Model, feature: str | None, channel: ReplyChannel, said: Scoring) -> pa.Table:
    """A row per value (and class) of each feature, or of one; see `Curves`.

    Every client that holds a block is asked, each about its own rows. Raises ModelError where the
    model has no curves, or no such feature has one, and PartyError where a client is not there.
    """
    known = [t.name for t in model.transforms if t.function == AUTO]
    if not known:
        raise ModelError(
            f"model {model.name} has no curves: it was not trained with TRANSFORM (auto)",
            hint=f"WEIGHTS OF MODEL {model.name} has a weight for each feature",
        )
    wanted = "" if feature is None else feature
    names = {name.lower() for name in known}
    paired = any(t.count for t in model.transforms if t.function == AUTO)
    parts = wanted.lower().split(TIMES) if paired else [wanted.lower()]
    if wanted and not names.issuperset(parts):
        raise _unknown(model, wanted, known)
    requests = {
        (client, block.slot): SendCurves("", block.slot, model.run, block.slot, wanted)
        for block in model.blocks
        for client in block.clients
    }
    outputs = len(model.intercept)
    replies = ask(channel, requests, lambda a: expected.curves(outputs))
    found = [
        _table(model, block, merged([replies[c, block.slot] for c in block.clients]), number)
        for block in model.blocks
        for number in range(outputs)
    ]
    if len(parts) > 1 and not any(table.num_rows for table in found):
        raise _unknown(model, wanted, known)
    if paired:
        said.note(
            "A pair's effect is beside the effects of its features, and its band that of a cell by "
            "itself; cells of few rows have none."
        )
    said.note(
        "Effects are what a value adds to the score of a row, beside the average row. Bands are of "
        "the smoothed curve, and hold it in about 95 of 100 places: steps and bumps that are "
        "narrower than its knots are smoothed away, and weights of other tables count as known. "
        "Rows are of the table; of a number with many values they are those around it."
    )
    return pa.concat_tables(found)


def _unknown(model: Model, wanted: str, known: Sequence[str]) -> ModelError:
    meant = nearest(wanted, known)
    hint = f"did you mean {meant}?" if meant else f"those that have one: {', '.join(known)}"
    return ModelError(f"model {model.name} has no curve of {wanted}", hint=hint)


def merged(replies: Sequence[Curves]) -> Curves:
    """Return the points of all clients of a block: those of a feature together, numbers ascending,
    and the rows of equal points added up.

    The clients have one curve, so that an effect at a value is the same at each.
    """
    if len(replies) == 1:
        return replies[0]
    features = np.concatenate([np.array(r.features, object) for r in replies])
    values = np.concatenate([np.array(r.values, object) for r in replies])
    kinds, rows = (np.concatenate([getattr(r, n) for r in replies]) for n in ("kinds", "rows"))
    effects, errors = (
        np.concatenate([getattr(r, n) for r in replies]) for n in ("effects", "errors")
    )
    places = {name: place for place, name in enumerate(dict.fromkeys(features))}
    numbers = [float(v) if k == AT_NUMBER else 0.0 for v, k in zip(values, kinds, strict=True)]
    keys = [
        (places[f], int(k == AT_NULL), number, v if k == AT_CATEGORY else "")
        for f, k, number, v in zip(features, kinds, numbers, values, strict=True)
    ]
    groups = {key: group for group, key in enumerate(sorted(set(keys)))}
    own = np.array([groups[key] for key in keys], np.intp)
    first = np.unique(own, return_index=True)[1]
    return replace(
        replies[0],
        features=tuple(features[first]),
        values=tuple(values[first]),
        kinds=kinds[first],
        effects=effects[first],
        errors=errors[first],
        rows=np.bincount(own, rows, len(groups)).astype(np.int64),
    )


def _table(model: Model, block: ModelBlock, reply: Curves, number: int) -> pa.Table:
    size = len(reply.features)
    parties = ", ".join(dict.fromkeys(client.party for client in block.clients))
    effects, errors = reply.effects[:, number], reply.errors[:, number]
    columns = {
        "party": pa.array([parties] * size, pa.string()),
        "table": pa.array([block.name] * size, pa.string()),
        "feature": pa.array(reply.features, pa.string()),
        "value": pa.array(list(reply.values), pa.string(), mask=np.asarray(reply.kinds == AT_NULL)),
    }
    if len(model.intercept) > 1:
        columns["class"] = class_values(model).take(pa.array([number] * size, pa.int64()))
    return pa.table(
        columns
        | {
            "effect": pa.array(effects),
            "lower": pa.array(effects - BAND * errors),
            "upper": pa.array(effects + BAND * errors),
            "rows": pa.array(reply.rows),
        }
    )
