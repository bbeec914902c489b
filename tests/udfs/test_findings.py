"""Findings of a client: encoded columns of which all rows, or none, are of a class."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.messages import NOT_OF_CLASS, OF_CLASS, SendSeparated
from sqlfl.udfs.encoding.features import local_encoding
from sqlfl.udfs.encoding.findings import separated
from sqlfl.udfs.encoding.transforming import column_of
from tests.open_databases import in_memory
from tests.party.test_diagnostics import FEATURES
from tests.udfs.snapshots import specification, take

BOTH = NOT_OF_CLASS | OF_CLASS
ROWS = """SELECT * FROM (VALUES
  (1.0, [1.0, 0.0]::FLOAT[2], 'north', true), (2.0, NULL, 'north', false),
  (3.0, [0.0, 2.0]::FLOAT[2], 'south', true), (NULL, NULL, 'south', true),
  (5.0, [1.0, 1.0]::FLOAT[2], NULL, false)) AS v(a, shape, town, flag)"""
"""Of FEATURES; those with an a of 1 and 2 are not of the class."""


@pytest.mark.parametrize("counts", [0, 1])
def test_each_kind_of_column(counts: int) -> None:
    with in_memory() as con:
        rows = take(con, specification(*FEATURES), ROWS)
        rows.activate(np.arange(5, dtype=np.uint32), np.ones(5, np.uint32))
        a = column_of(rows, rows.specification.features[0], 0)
        classes = np.where(np.asarray(a) <= 2, NOT_OF_CLASS, OF_CLASS).astype(np.uint8)
        encoding = local_encoding(rows)
        request = SendSeparated("r", 0, classes[:, None], counts)
        found = separated(rows, encoding, request)
    names = dict(zip(encoding.names, found.states[:, 0].tolist(), strict=True))
    assert names == {
        "a": BOTH if counts else NOT_OF_CLASS,  # a threshold, of the rows that have a number
        "shape[1]": BOTH, "shape[2]": BOTH, "flag": BOTH,
        "a is missing": OF_CLASS, "shape is missing": BOTH,
        **{k: v for k, v in names.items() if k.startswith("town")},
    }  # fmt: skip
    towns = {c: s for c, f, s in zip(found.categories, found.features, found.states[:, 0].tolist(),
                                     strict=True) if f == "town"}  # fmt: skip
    assert towns == {"north": NOT_OF_CLASS, "south": OF_CLASS, "": OF_CLASS}
