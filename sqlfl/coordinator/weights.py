"""WEIGHTS OF MODEL: the weights of a model's blocks, sent by the clients that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Float
from sqlfl.base.errors import ModelError, nearest
from sqlfl.contract.transforms import AUTO, TIMES
from sqlfl.coordinator import expected
from sqlfl.coordinator.scoring import Scoring, class_values
from sqlfl.messages import (
    CATEGORY,
    HASHED,
    MISSING,
    NULL,
    NUMBER,
    OTHER,
    PARTNERLESS,
    Block,
    Curves,
    Named,
    SendBlock,
    SendCurves,
)
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.messages.diagnostics import AT_CATEGORY, AT_NULL, AT_NUMBER
from sqlfl.models.kinds import INTERCEPT, kind_of
from sqlfl.store.registry import Model, ModelBlock

RATIOS = {
    "logistic_regression": "odds_ratio",
    "softmax_regression": "odds_ratio",
    "poisson_regression": "rate_ratio",
    "gamma_regression": "mean_ratio",
}
"""Meaning of exp(coefficient), for kinds where it is useful."""


def weights(model: Model, channel: ReplyChannel, said: Scoring) -> pa.Table:
    """Return a row for each encoded column (and class), and one for the intercept.

    Only the first client of a block is asked: the others have the same block. Raise ModelError for
    a model of towers. Raise PartyError if the client is missing or has lost the block.
    """
    if kind_of(model.kind).towers:
        raise ModelError(
            f"model {model.name} is a {model.kind}: weights of its towers are of no single feature",
            hint=f"IMPORTANCE OF MODEL {model.name} FROM (...) shows what each feature is worth",
        )
    requests = {
        (block.clients[0], block.slot): SendBlock("", block.slot, model.run, block.slot)
        for block in model.blocks
    }
    outputs = len(model.intercept)
    replies = ask(channel, requests, lambda a: expected.block(outputs))
    told = {block: replies[block.clients[0], block.slot] for block in model.blocks}
    tables = []
    for number in range(outputs):
        tables.append(_intercept(model, told, number))
        tables += [_block(model, block, reply, number) for block, reply in told.items()]
    _say(model, told, said)
    return pa.concat_tables(tables)


def schema_of_weights(model: Model) -> pa.Schema:
    """Return names and types of the columns of `weights`."""
    none = np.zeros(0)
    of: dict[str, list[str]] = {
        name: [] for name in ("party", "table", "feature", "category", "kind")
    }
    return _rows(model, of, 0, none, none).schema


def _intercept(model: Model, told: Mapping[ModelBlock, Block], number: int) -> pa.Table:
    """Return the intercept in the features' own units, and the coordinator's, for centred
    columns.
    """
    centred = float(model.intercept[number])
    moved = sum(
        float(reply.weights[:, number] @ (reply.centres / reply.scales)) for reply in told.values()
    )
    of: dict[str, list[str | None]] = {
        "party": [None],
        "table": [None],
        "feature": [INTERCEPT],
        "category": [None],
        "kind": [INTERCEPT],
    }
    return _rows(model, of, number, np.array([centred - moved]), np.array([centred]))


def _block(model: Model, block: ModelBlock, reply: Block, number: int) -> pa.Table:
    size = len(reply.kinds)
    parties = ", ".join(dict.fromkeys(client.party for client in block.clients))
    of = {
        "party": [parties] * size,
        "table": [block.name] * size,
        "feature": list(reply.features),
        "category": categories_of(reply),
        "kind": kinds_of(reply),
    }
    standardised = reply.weights[:, number]
    return _rows(
        model, of, number, standardised / reply.scales, standardised, reply.centres, reply.scales
    )


def _rows(
    model: Model,
    of: Mapping[str, Any],
    number: int,
    coefficients: Float,
    standardised: Float,
    centres: Float | None = None,
    scales: Float | None = None,
) -> pa.Table:
    size = len(coefficients)
    columns = {name: pa.array(values, pa.string()) for name, values in of.items()}
    if len(model.intercept) > 1:
        columns["class"] = class_values(model).take(pa.array([number] * size, pa.int64()))
    for name, values in (("centre", centres), ("scale", scales)):
        columns[name] = pa.nulls(size, pa.float64()) if values is None else pa.array(values)
    # last: if there are many columns, those in the middle are hidden
    columns["coefficient"] = pa.array(coefficients)
    columns["standardised"] = pa.array(standardised)
    if model.kind in RATIOS:
        with np.errstate(over="ignore"):
            ratios = np.exp(coefficients)
        # the intercept has no ratio, and one beyond the largest number is none
        none = np.full(size, True) if centres is None else np.isinf(ratios)
        columns[RATIOS[model.kind]] = pa.array(ratios, pa.float64(), mask=none)
    return pa.table(columns)


def _say(model: Model, told: Mapping[ModelBlock, Block], said: Scoring) -> None:
    said.note(
        "Coefficients are per unit of the feature; standardised ones per standard deviation, "
        "(x - centre) / scale, of a category as it is. The intercept is the score of a row whose "
        "numbers are 0 and whose categories the model does not know; standardised, of one whose "
        "columns are at their centres."
    )
    note = hashed_note(list(told.values()))
    if note is not None:
        said.note(note)
    if model.privacy.assumptions:
        said.note(f"The model was trained with PRIVACY. {' '.join(model.privacy.short.split())}")


# Names of encoded columns in tables that show a model.

KINDS = {
    NUMBER: "number",
    MISSING: "missing",
    CATEGORY: "category",
    NULL: "null",
    HASHED: "hash",
    OTHER: "other",
    PARTNERLESS: "no partner",
}


def kinds_of(named: Named) -> list[str]:
    """Return the kind of each column."""
    return [KINDS[kind] for kind in named.kinds.tolist()]


def categories_of(named: Named) -> list[str | None]:
    """Return the text of each column's category: a hash as '#1a2b3c4d', NULL and the like in words,
    and None for a number's column."""
    fixed = {
        **dict.fromkeys((NUMBER, PARTNERLESS)),
        MISSING: "is missing",
        NULL: "is NULL",
        OTHER: "is other",
    }
    return [
        fixed.get(kind, f"#{text}" if kind == HASHED else text)
        for kind, text in zip(named.kinds.tolist(), named.categories, strict=True)
    ]


def features_of(named: Named) -> list[str]:
    """Return the feature of each column."""
    return [
        KINDS[PARTNERLESS] if kind == PARTNERLESS else feature
        for kind, feature in zip(named.kinds.tolist(), named.features, strict=True)
    ]


def hashed_note(named: Sequence[Named]) -> str | None:
    """Return a note if some category has no text."""
    if not any((one.kinds == HASHED).any() for one in named):
        return None
    return (
        "Categories of tables of several clients are known by keyed hashes, of which the first "
        "digits are shown; INFERENCE OF MODEL names those that occur in its rows."
    )


# CURVES OF MODEL: effects of the features that TRANSFORM (auto) made, told by their clients.

BAND = 1.959963984540054
"""Standard errors on either side of an effect: 95 % of a normal distribution."""


def curves(model: Model, feature: str | None, channel: ReplyChannel, said: Scoring) -> pa.Table:
    """Return a row per value (and class) of each feature, or of one; see `Curves`.

    Every client that holds a block is asked, each about its own rows. Raise ModelError if the model
    has no curves, or no such feature has one. Raise PartyError if a client is not there.
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
    tables = [
        _table(model, block, merged([replies[c, block.slot] for c in block.clients]), number)
        for block in model.blocks
        for number in range(outputs)
    ]
    if len(parts) > 1 and not any(table.num_rows for table in tables):
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
    return pa.concat_tables(tables)


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
    group_of_point = np.array([groups[key] for key in keys], np.intp)
    first = np.unique(group_of_point, return_index=True)[1]
    return replace(
        replies[0],
        features=tuple(features[first]),
        values=tuple(values[first]),
        kinds=kinds[first],
        effects=effects[first],
        errors=errors[first],
        rows=np.bincount(group_of_point, rows, len(groups)).astype(np.int64),
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
