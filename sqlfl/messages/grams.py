"""Second moments of encoded columns as messages."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sqlfl.messages.training import Gram
from sqlfl.models.gram import GramMatrix


def gram_to_message(gram: GramMatrix, run: str, slot: int) -> Gram:
    """Return the message. It has the upper triangle of the one-hot part, row after row."""
    upper = sparse.csr_array(sparse.triu(gram.onehot))
    upper.sort_indices()
    stored = sparse.coo_array(upper)
    return Gram(
        run=run,
        slot=slot,
        numeric=gram.numeric,
        cross=gram.cross,
        rows=stored.row.astype(np.uint32),
        columns=stored.col.astype(np.uint32),
        values=stored.data.astype(np.float64),
        moments=gram.moments,
        weight=float(gram.weight),
    )


def message_to_gram(message: Gram) -> GramMatrix:
    """Return the whole matrix of a message."""
    q = len(message.cross)
    place = (message.rows.astype(np.int64), message.columns.astype(np.int64))
    upper = sparse.csr_array(sparse.coo_array((message.values, place), shape=(q, q)))
    onehot = sparse.csr_array(upper + sparse.triu(upper, 1).T)
    return GramMatrix(message.numeric, message.cross, onehot, message.moments, message.weight)
