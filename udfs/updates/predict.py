"""Scoring: the predictions of a trained block for the active rows of a new snapshot."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl.base.arrays import Float
from sqlfl.base.errors import InternalError
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding, check_finite
from sqlfl.udfs.encoding.transforming import transform
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.arrays import ArraysEngine
from sqlfl.udfs.updates.update import LinearEngine, SqlEngine

ENGINES: dict[str, Callable[[sql.Connection, Snapshot, Encoding], LinearEngine]] = {
    "sql": SqlEngine,
    "arrays": ArraysEngine,
}


def make_engine(
    name: str, con: sql.Connection, snapshot: Snapshot, encoding: Encoding
) -> LinearEngine:
    """The engine called `name`, 'sql' or 'arrays', over the active rows of `snapshot`."""
    if name not in ENGINES:
        raise InternalError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name](con, snapshot, encoding)


def ready(snapshot: Snapshot, encoding: Encoding) -> None:
    """Make the features of a saved encoding from the snapshot's columns, once. Raise ModelError if
    they do not fit it, or are infinite without clipping.
    """
    if encoding.fitted is not None and snapshot.specification.features != encoding.features:
        transform(snapshot, encoding.features, encoding.fitted, pairs=encoding.pairs)
    if encoding.limits is None:
        check_finite(snapshot)


def score(
    con: sql.Connection, snapshot: Snapshot, encoding: Encoding, theta: Float, engine: str = "sql"
) -> Float:
    """X̃ θ of the active rows under a saved encoding: (d, c) -> (a, c).

    A category that training did not have is `other`: its one-hot columns are all zero before
    centring. Raises ModelError if the features do not fit the encoding, or are infinite where it
    does not clip them.
    """
    ready(snapshot, encoding)
    scorer = make_engine(engine, con, snapshot, encoding)
    try:
        return scorer.predict(theta)
    finally:
        scorer.close()
