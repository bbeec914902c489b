"""Snapshots for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import numpy as np
import pytest

from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.schema import FeatureSpecification, KeySpecification, SlotSpecification
from sqlfl.udfs.numbering import rows
from sqlfl.udfs.numbering.rows import Snapshot

SECRET = b"the parties' secret"
FORMS = {"tables": "sql", "columns": "arrays"}
"""How rows are held, by the engine that they are held so for."""
form = "tables"
"""That of the next snapshots."""


def specification(
    *features: tuple[str, str] | tuple[str, str, int],
    target: bool = False,
    classes: bool = False,
    identifiers: tuple[int, ...] = (),
    join: tuple[tuple[str, ...], ...] = (),
    fragments: tuple[int, ...] = (0,),
    slot: int = 0,
    nullable: tuple[int, ...] = (),
    links: tuple[tuple[int, int], ...] = (),
    weight: bool = False,
    split: float = 0.0,
    seed: int | None = None,
    privacy: SnapshotPrivacy | None = None,
) -> SlotSpecification:
    """A slot whose features are (name, kind) or (name, 'array', width)."""
    return SlotSpecification(
        slot=slot,
        features=tuple(FeatureSpecification(*feature) for feature in features),
        target=target,
        classes=classes,
        identifiers=identifiers,
        keys=tuple(
            KeySpecification(index, types, index in nullable) for index, types in enumerate(join)
        ),
        fragments=fragments,
        shared=False,
        secret="federation",
        engine="sql",
        links=links,
        weight=weight,
        split=split,
        seed=seed,
        base=split > 0 or (privacy is not None and privacy.label is not None),
        privacy=privacy,
    )


def take(
    con: duckdb.DuckDBPyConnection,
    wanted: SlotSpecification,
    *fragments: str,
    run: str = "r1",
    secret: bytes = SECRET,
    draws: bytes = SECRET,
) -> Snapshot:
    """The snapshot, taken in a transaction of `con` as a party does."""
    wanted = replace(wanted, engine=FORMS[form])
    with pytest.MonkeyPatch.context() as patch:
        if form == "tables":  # rows without features are held for either engine
            patch.setattr(rows, "held_rows", lambda *_: None)
        con.begin()
        snapshot = Snapshot.take(con, wanted, fragments, run, draws)
        con.commit()
    if wanted.keys:
        snapshot.number(secret)
    return snapshot


def activate_all(snapshot: Snapshot, counts: Sequence[int] | None = None) -> Snapshot:
    size = sum(snapshot.rows)
    snapshot.activate(np.arange(size), np.ones(size, int) if counts is None else np.array(counts))
    return snapshot


def temporary_tables(con: duckdb.DuckDBPyConnection) -> list[str]:
    found = con.execute("SELECT table_name FROM duckdb_tables() WHERE temporary").fetchall()
    views = con.execute(
        "SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal"
    ).fetchall()
    return sorted(name for (name,) in found + views)
