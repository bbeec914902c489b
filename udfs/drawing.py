"""Rows that are drawn by the owner of the labels: for validation, or into folds."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from sqlglot import exp

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.udfs import keys, sql
from sqlfl.udfs.fragments import DRAW_BYTES
from sqlfl.udfs.rows import Snapshot


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
    """uint8 (a,): the part of `specification.folds` that each active row is in, from 0; where one
    share is split off, 1 for its rows.

    It follows from DuckDB's hash of the whole row, by AES-256 as a keyed random function: so it is
    again under the same key (and version of DuckDB), and copies of a row agree. With a seed the key
    is as of `split_of`.
    """
    own = snapshot.specification
    if not own.base or own.privacy is not None or not own.folds:
        raise InternalError(f"slot {own.slot} draws no folds")
    key = keys.derive(snapshot.draws if own.seed is None else snapshot.salt, "folds")
    if snapshot.held is not None:
        hashes = snapshot.held.plain("draw")
    else:
        hashes = snapshot.of_active_rows(sql.column("draw"), None, np.uint64)
    blocks = np.zeros((len(hashes), 2), "<u8")
    blocks[:, 0] = hashes
    # each block by itself: a random function of what is in it, and nobody reads it again
    cipher = Cipher(AES(key), ECB()).encryptor()
    drawn = np.frombuffer(cipher.update(blocks.tobytes()), "<u8").reshape(-1, 2)[:, 0]
    share = (drawn >> np.uint64(11)) / 2.0**53
    if own.folds == 1:
        return (share < own.split).astype(np.uint8)
    found: Array = (share * own.folds).astype(np.uint8)
    return found


def _draw(snapshot: Snapshot) -> tuple[exp.Expr, dict[str, object]]:
    """Of each row the bytes of its draw, and the parameters of the expression."""
    draw: exp.Expr = sql.column("draw")
    if snapshot.specification.privacy is not None:
        draw = keys.first_bytes(snapshot.numbered(), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.draws, "numbered split")))
    if snapshot.specification.seed is not None:
        draw = keys.first_bytes(keys.tag(draw), DRAW_BYTES)
        return draw, dict(keys.pads(keys.derive(snapshot.salt, "split")))
    return draw, {}
