"""Features of TRANSFORM that are fitted anew, to rows that count otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.features import local_encoding
from sqlfl.udfs.encoding.transforming import (
    column_of,
    fit_again,
    raw,
    transform,
    untransformed,
)
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import make_engine
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take

pytestmark = pytest.mark.usefixtures("in_both_forms")
ROWS, KEPT = 2400, 2000
CURVE_OF_X, VALUES_OF_Z, BUCKETS = 1, 5, 6


def features() -> tuple[FeatureSpecification, ...]:
    """Make of x and of z a line, a curve and values of their own; buckets of x; and the row's
    number.
    """

    def made(name: str, column: str, step: FittedStep) -> FeatureSpecification:
        return FeatureSpecification(name, *step.gives, Made(((column, "DOUBLE"),), column, step))

    found = []
    for column in "xz":
        found.append(FeatureSpecification(column, "numeric", shrunken=True))
        for part in ("curve", "values"):
            step = FittedStep("auto", "numeric", value=part)
            found.append(made(f"{column} ({part})", column, step))
    buckets = made("b", "x", FittedStep("quantile_bucketize", "numeric", count=4))
    return (*found, buckets, FeatureSpecification("i", "numeric"))


def table() -> pa.Table:
    """x is smooth but for 0 and NULL; 22 of the first rows have 7 in z."""
    rng = np.random.default_rng(2)
    x = np.where(rng.random(ROWS) < 0.1, 0.0, rng.normal(size=ROWS))
    z = rng.integers(0, 5, ROWS).astype(float)
    z[:22] = 7.0
    missing = rng.random(ROWS) < 0.1
    return pa.table({"x": pa.array(x, mask=missing), "z": z, "i": np.arange(ROWS)})


def taken(database: Open, rows: pa.Table) -> tuple[Snapshot, tuple[FeatureSpecification, ...]]:
    con, every = database(), features()
    con.register("given", rows)
    con.execute("CREATE TABLE t AS FROM given")
    named = {feature.name: feature.name[0].replace("b", "x") for feature in every}
    columns = ", ".join(f'{column} AS "{name}"' for name, column in named.items())
    wanted = replace(specification(), features=raw(every))
    return activate_all(take(con, wanted, f"SELECT {columns} FROM t")), every


def numbers_of(snapshot: Snapshot) -> np.ndarray:
    """The number of each active row."""
    place = len(snapshot.specification.features) - 1
    found = column_of(snapshot, snapshot.specification.features[place], place)
    assert isinstance(found, np.ndarray)
    return found.astype(int)


def weigh(snapshot: Snapshot, counts: np.ndarray) -> None:
    """Let rows count so much, in the order of their numbers."""
    snapshot.weigh(counts.astype(float)[numbers_of(snapshot)])


def encoded(snapshot: Snapshot) -> np.ndarray:
    """Encoded columns in the order of rows, but for the last four, which are the buckets'."""
    encoding = local_encoding(snapshot)
    engine = make_engine("arrays", snapshot.con, snapshot, encoding)
    every = np.asarray(engine.predict(np.eye(encoding.width)))
    return every[np.argsort(numbers_of(snapshot)), :-4]


def test_curves_are_those_of_the_rows_that_count(database: Open) -> None:
    """Functions are fitted as if the other rows had never been there."""
    snapshot, every = taken(database, table())
    given = untransformed(snapshot, every)
    first = transform(snapshot, every)
    assert first is not None
    before = encoded(snapshot)
    weigh(snapshot, np.arange(ROWS) < KEPT)
    fits = fit_again(snapshot, first, given, ROWS, CellLimits())
    alone, _ = taken(database, table().slice(0, KEPT))
    transform(alone, every)
    np.testing.assert_allclose(encoded(snapshot)[:KEPT], encoded(alone), atol=1e-9)
    assert not np.array_equal(fits[BUCKETS].numbers, first[BUCKETS].numbers)  # type: ignore[union-attr]
    assert not np.array_equal(fits[CURVE_OF_X].numbers, first[CURVE_OF_X].numbers)  # type: ignore[union-attr]
    weigh(snapshot, np.ones(ROWS))
    fit_again(snapshot, first, given, ROWS, CellLimits())
    np.testing.assert_allclose(encoded(snapshot), before, atol=1e-12)


def test_a_shared_slot_keeps_its_first_fits_and_lines_of_few_rows(database: Open) -> None:
    snapshot, every = taken(database, table())
    first = transform(snapshot, every)
    assert first is not None
    before = encoded(snapshot)
    weigh(snapshot, np.arange(ROWS) < 150)
    few = fit_again(snapshot, first, {}, 150, CellLimits(), shared=True)
    assert few[BUCKETS] is first[BUCKETS]
    assert not few[CURVE_OF_X].table.any()  # type: ignore[union-attr]
    assert not few[VALUES_OF_Z].numbers.size  # type: ignore[union-attr]
    weigh(snapshot, np.arange(ROWS) < KEPT)
    enough = fit_again(snapshot, first, {}, KEPT, CellLimits(), shared=True)
    assert all(one is other for one, other in zip(enough, first, strict=True))
    weigh(snapshot, np.ones(ROWS))
    np.testing.assert_allclose(encoded(snapshot), before, atol=1e-12)


@pytest.mark.parametrize(
    ("limits", "own"),
    [
        (CellLimits(), True),
        (CellLimits(least=20, rows=np.ones(ROWS)), False),
        (CellLimits(columns=100, rows=np.ones(ROWS)), False),
    ],
)
def test_a_policy_keeps_to_the_first_values(database: Open, limits: CellLimits, own: bool) -> None:
    """7 is in less than 1 % of all rows, and in more of those that count."""
    snapshot, every = taken(database, table())
    given = untransformed(snapshot, every)
    first = transform(snapshot, every, limits=limits)
    assert first is not None
    assert first[VALUES_OF_Z].numbers.tolist() == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    weigh(snapshot, np.arange(ROWS) < KEPT)
    fits = fit_again(snapshot, first, given, ROWS, limits)
    assert (fits[BUCKETS] is first[BUCKETS]) is not own
    wanted = [0, 1, 2, 3, 4, 7] if own else [0, 1, 2, 3, 4]
    assert fits[VALUES_OF_Z].numbers.tolist() == wanted  # type: ignore[union-attr]


@pytest.mark.parametrize("least", [1, 20])
def test_values_of_too_few_rows_that_count_are_among_the_others(database: Open, least: int) -> None:
    snapshot, every = taken(database, table())
    limits = CellLimits(least=least, rows=np.ones(ROWS))
    given = untransformed(snapshot, every)
    first = transform(snapshot, every, limits=limits)
    assert first is not None
    z = table().column("z").to_numpy()
    counts = np.where(z == 3.0, np.cumsum(z == 3.0) <= 15, 1.0)
    counts[np.cumsum(counts) > 700] = 0.0
    weigh(snapshot, counts)
    fits = fit_again(snapshot, first, given, ROWS, limits)
    assert (3.0 in fits[VALUES_OF_Z].numbers) is (least == 1)  # type: ignore[union-attr]
