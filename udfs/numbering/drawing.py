"""Draws of rows by the owner of the labels: for validation, or into folds."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.folds import deal, merge_folds
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.fragments import DRAW_BYTES
from sqlfl.udfs.numbering.rows import Snapshot


def split_of(snapshot: Snapshot) -> Array:
    """uint8 (a,): 1 for the active rows that are for validation.

    A row is where its draw, a keyed hash of the whole row as a number in [0, 1), is below
    `specification.split`: so it is again under the same key, and copies of a row agree. With a
    seed the key follows from that and from all rows, and not from the client's own.

    In private runs equal rows are drawn each for itself, by their number among equal ones: that
    they are on one side would tell that they are equal, and where they are not, that they
    differ. So copies of a row that the party's own join made may be on both sides there.
    """
    share = snapshot.specification.split
    if not 0 < share < 1:
        raise InternalError(f"slot {snapshot.specification.slot} draws a share of {share}")
    draw, given = _draw(snapshot)
    limit = int(share * 2 ** (8 * DRAW_BYTES)).to_bytes(DRAW_BYTES, "big")
    drawn = sql.expression("$draw < $limit", draw=draw)
    return snapshot.of_active_rows(drawn, given | {"limit": limit}, np.uint8)


def folds_of(snapshot: Snapshot) -> Array:
    """Return the fold of each active row as uint8 (a,): 0 to `specification.folds` − 1. Where one
    share is split off, its rows have 1, the others 0.

    Rows are dealt class by class in a random order; targets that are numbers are one class. The
    order follows from DuckDB's hash of the whole row, by AES-256 as a keyed random function. So the
    same rows are dealt alike under the same key and version of DuckDB. Equal rows count as one row
    and share its fold, even where their labels differ. With a seed the key is as of `split_of`.
    """
    specification = snapshot.specification
    if not specification.base or specification.privacy is not None or not specification.folds:
        raise InternalError(f"slot {specification.slot} draws no folds")
    key = keys.derive(snapshot.draws if specification.seed is None else snapshot.salt, "folds")
    if snapshot.held is not None:
        hashes = snapshot.held.plain("draw")
    else:
        hashes = snapshot.of_active_rows(sql.column("draw"), None, np.uint64)
    if not len(hashes):
        return np.zeros(0, np.uint8)
    blocks = np.zeros((len(hashes), 2), "<u8")
    blocks[:, 0] = hashes
    # each block separately: a random function of its content, and the key is used only here
    cipher = Cipher(AES(key), ECB()).encryptor()
    chance = np.frombuffer(cipher.update(blocks.tobytes()), "<u8").reshape(-1, 2)[:, 0]
    classes = (
        snapshot.labels()[2]
        if specification.target and specification.classes
        else np.zeros(len(chance), int)
    )
    order = np.argsort(chance)
    new = np.ones(len(order), bool)
    new[1:] = chance[order[1:]] != chance[order[:-1]]
    strata = np.minimum.reduceat(classes[order], np.flatnonzero(new))
    dealt = deal(strata, specification.folds, specification.split)
    if len(specification.fragments) > 1:
        # they may hold a row twice, with two labels, and must not be distinguishable at the merge
        (dealt,) = merge_folds(
            [dealt], [strata], specification.folds, specification.split, onward=True
        )
    folds = np.empty(len(order), np.uint8)
    folds[order] = dealt[np.cumsum(new) - 1]
    return folds


def _draw(snapshot: Snapshot) -> tuple[exp.Expr, dict[str, object]]:
    """Return the bytes of each row's draw, and the parameters of the expression."""
    draw: exp.Expr = sql.column("draw")
    if snapshot.specification.privacy is not None:
        draw = keys.first_bytes(snapshot.numbered(), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.draws, "numbered split")))
    if snapshot.specification.seed is not None:
        draw = keys.first_bytes(keys.tag(draw), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.salt, "split")))
    return draw, {}
