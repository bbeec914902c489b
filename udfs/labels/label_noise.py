"""Labels noised by their owner, once per row of a fragment.

The noise of a row is not drawn, it follows: from an HMAC of the row's content, its label and its
number among equal rows, under a key that only this client has. So the joined copies of a row have
one label; asking again, now or in a later run, gives the same one, and averaging gains nothing;
and rows that are equal have noise each of their own. Where the table's owner has said what
identifies a row (KEY), that stands for its content: a row that changes in other columns keeps its
noise.

A *draw* is a number that follows in this way: without the key it is as good as random. `draws` of a
snapshot is the secret of which the keys are made, `noised_labels` computes the draws, `drawn_rows`
identifies the rows that they follow from, and `draw_of` names all draws of a set of labels.

Each mechanism, ε, bounds or set of classes, each way to the label
(sqlfl.udfs.labels.label_lineage), and each choice of columns that identify a row has a key of its
own, so that two releases of one row are independent, and their ε add up. With other features, over
other rows, and written otherwise, as far as that is seen, a label has the noise that it had.

The key follows from a secret that the client has put on disk before
(sqlfl.udfs.labels.label_secret).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.privacy.mechanisms import keep_probability, laplace_keep
from sqlfl.privacy.samplers import add_laplace, randomised_response
from sqlfl.udfs import sql
from sqlfl.udfs.labels.label_lineage import way_to_label
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot

RowKeys: TypeAlias = "Sequence[tuple[str, ...]]"
"""Columns that identify a row, for each fragment; empty for its whole content."""


def noised_labels(snapshot: Snapshot) -> tuple[Array, tuple[str, ...], Array]:
    """Return the noised labels of the active rows, as `Labels` carries them: (values, classes,
    codes).

    Classes are all public ones, present or not; codes uint32 (a,) are by randomised response. A
    label that is none of them gives any of them, all alike: an error would tell that some row has
    such a label. Numbers are clipped to the bounds, infinite ones too, and have Laplace noise:
    float64 (a,). Raise InternalError for a slot without noise of labels.
    """
    privacy = snapshot.specification.privacy
    label = None if privacy is None else privacy.label
    if label is None or not snapshot.specification.base:
        raise InternalError(f"slot {snapshot.specification.slot} has no noise for its labels")
    words = _words(snapshot, label)
    if label.bounds is not None:
        low, high = label.bounds
        target = sql.cast(sql.column("y"), "DOUBLE")
        values = np.clip(snapshot.of_active_rows(target, None, np.float64), low, high)
        noised = add_laplace(values, (high - low) / label.epsilon, words)
        return noised, (), np.zeros(0, np.uint32)
    size = len(label.classes)
    keep = laplace_keep if label.mechanism == "laplace" else keep_probability
    order = np.argsort(np.array(label.classes, object))
    codes = _codes(snapshot, label.classes)
    places = np.argsort(order)[np.maximum(codes, 0)].astype(np.uint32)
    noised = randomised_response(places, size, keep(label.epsilon, size), words)
    # 1/K is between the probabilities of the other answers, so that ε holds
    noised = np.where(codes < 0, words[:, 1] % np.uint64(size), noised)
    return np.zeros(0), label.classes, order[noised].astype(np.uint32)


def _words(snapshot: Snapshot, label: LabelNoise) -> npt.NDArray[np.uint64]:
    """Return the draws of the active rows as uint64 (a, 2): 128 uniform bits for each row."""
    words = np.empty((snapshot.active, 2), np.uint64)
    content = sql.expression("encode(CAST(y AS VARCHAR))")
    indices = snapshot.specification.fragments
    ways = [way_to_label(snapshot.con, fragment) for fragment in snapshot.fragments]
    row_keys = snapshot.specification.draw_columns or [()] * len(indices)
    places = sorted(zip(ways, row_keys, indices, strict=True))
    for (way, row_key), members in groupby(places, key=lambda place: place[:2]):
        query = sql.query(
            "SELECT r, $noise AS noise FROM $active WHERE fragment IN ($indices)",
            noise=snapshot.numbered(content),
            active=snapshot.active_table,
            indices=[sql.number(index) for *_, index in members],
        )
        snapshot.create("noise", query, keys.pads(_key(snapshot.draws, label, way, row_key)))
        listing = sql.query("SELECT r, noise FROM $made", made=snapshot.table("noise"))
        with sql.batches(snapshot.con, listing) as reader:
            table = reader.read_all()
        snapshot.drop_part("noise")
        words[table.column("r").to_numpy()] = keys.tag_bytes(table.column("noise")).view("<u8")
    return words


def drawn_rows(snapshot: Snapshot) -> tuple[Array, Array]:
    """Return the sources of label draws, for all rows with a label, active or not: uint64 (n,)
    each. The first is a hash of the row's identity; the second also covers the label.
    """
    query = sql.query(
        """SELECT md5_number_lower(hex(draw)) AS identity,
        md5_number_lower(hex(draw) || ' ' || CAST(y AS VARCHAR)) AS labelled
        FROM $raw WHERE y IS NOT NULL""",
        raw=snapshot.table("raw"),
    )
    columns = sql.columns(snapshot.con, query)
    return columns["identity"].astype(np.uint64), columns["labelled"].astype(np.uint64)


def draw_of(secret: bytes, label: LabelNoise, ways: Sequence[str], row_keys: RowKeys) -> str:
    """Return the name of the draws of a slot's labels. It is equal for slots in which equal rows
    have equal noise.
    """
    fragments = sorted(zip(ways, row_keys, strict=True))
    key_names = [_key(secret, label, way, row_key).hex() for way, row_key in fragments]
    return keys.derive(secret, "name of a draw", *key_names).hex()


def _key(secret: bytes, label: LabelNoise, way: str, row_key: Sequence[str]) -> bytes:
    """Return the key of the draws of one mechanism, one way to the label and one row key."""
    bounds = None if label.bounds is None else [float(bound) for bound in label.bounds]
    mechanism = [label.mechanism, float(label.epsilon), bounds, sorted(label.classes)]
    # without row keys this part is absent, as in older versions, so that labels stay the same
    row_key_parts = [json.dumps(row_key)] if row_key else []
    return keys.derive(secret, "labels", json.dumps(mechanism), way, *row_key_parts)


def _codes(snapshot: Snapshot, classes: tuple[str, ...]) -> Array:
    """Return the index of each active row's class as int64 (a,), by the texts of the classes; -1
    for a label that is none of them.
    """
    if len(set(classes)) < len(classes):
        raise InternalError("the classes of the labels are not distinct")
    table = pa.table({
        "name": pa.array([name.encode() for name in classes], pa.binary()),
        "code": pa.array(np.arange(len(classes), dtype=np.int64)),
    })  # fmt: skip
    codes = np.empty(snapshot.active, np.int64)
    with sql.registered(snapshot.con, snapshot.name("given"), table) as given:
        query = sql.query(
            """SELECT t.r, coalesce(g.code, -1) AS code FROM $active AS t
            LEFT JOIN $given AS g ON encode(CAST(t.y AS VARCHAR)) = g.name""",
            active=snapshot.active_table,
            given=given,
        )
        columns = sql.columns(snapshot.con, query)
        codes[columns["r"]] = columns["code"]
    return codes
