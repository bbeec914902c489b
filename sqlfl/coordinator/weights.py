"""WEIGHTS OF MODEL: the weights of a model's blocks, sent by the clients that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Float
from sqlfl.base.errors import ModelError
from sqlfl.coordinator import expected
from sqlfl.coordinator.names import categories_of, hashed_note, kinds_of
from sqlfl.coordinator.scoring import Scoring, class_values
from sqlfl.messages import Block, SendBlock
from sqlfl.messages.replies import ReplyChannel, ask
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
    """Names and types of the columns of `weights`."""
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
        no = centres is None  # the intercept has no ratio
        columns[RATIOS[model.kind]] = pa.array(ratios, pa.float64(), mask=np.full(size, no))
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
