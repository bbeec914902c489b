"""Pairs of features of a table: their cells, and which pairs are chosen."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs.blocks.block_sql import given_of
from sqlfl.udfs.encoding import pairs
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.fitting import Categories, Values
from sqlfl.udfs.sql import to_sql

ROWS = 3000
FEATURES = (
    FeatureSpecification("x", "numeric", pairs=5),
    FeatureSpecification("c", "category", pairs=5),
    FeatureSpecification('odd "name"', "numeric", pairs=5),
    FeatureSpecification("d", "category", pairs=5),
)
TEXTS = ("it's", "a × b", "NULL", "another", "v", "")


def columns(seed: int = 0) -> dict[int, Values]:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS))
    entries = (b"n", *(f"v{text}".encode() for text in TEXTS))
    d = (b"n", *(f"v{n}".encode() for n in range(20)))
    return {
        0: x,
        1: Categories(rng.integers(0, len(entries), ROWS), entries),
        2: rng.integers(0, 5, ROWS).astype(float),
        3: Categories(rng.integers(0, len(d), ROWS), d),
    }


def table(given: dict[int, Values]) -> pa.Table:
    found = {}
    for place, values in given.items():
        name = FEATURES[place].name
        if isinstance(values, Categories):
            texts = [None if e == b"n" else e[1:].decode() for e in values.entries]
            found[name] = pa.array([texts[n] for n in values.codes], pa.string())
        else:
            found[name] = pa.array(values)
    return pa.table(found)


def test_cells_are_those_of_their_sql() -> None:
    """A row has the cell that the expression over the columns of the query names."""
    given, counts = columns(), np.ones(ROWS)
    chosen = [(0, 1), (1, 2), (0, 2), (1, 3)]
    found = pairs.crossed(
        pairs.pairs_of(chosen, given, counts, CellLimits()), FEATURES, given, counts, CellLimits()
    )
    assert [f.name for f in found.features] == [
        "x × c",
        'c × odd "name"',
        'x × odd "name"',
        "c × d",
    ]
    con = duckdb.connect()
    con.register("t", table(given))
    for number, (feature, entries) in enumerate(
        zip(found.features, found.vocabularies, strict=True)
    ):
        told = con.sql(f"SELECT {to_sql(given_of(feature))} AS cell FROM t").fetchnumpy()["cell"]
        known = found.codes[:, number] >= 0
        names = np.array([entry[1:] for entry in entries])[found.codes[known, number]]
        np.testing.assert_array_equal(told[known], names)
        assert set(told[~known]).isdisjoint(names)
        own = pairs.column_of_cells(found.pairs[number], FEATURES, given).to_pylist()
        assert own == [f"v{cell}".encode() for cell in told]
        np.testing.assert_array_equal(found.counts[number], np.bincount(found.codes[known, number]))
    assert found.onehot().sum() == (found.codes >= 0).sum()


@pytest.mark.parametrize("least", [1, 12])
@pytest.mark.parametrize("most", [1024, 40])
def test_cells_keep_to_the_limits(least: int, most: int) -> None:
    given, counts = columns(), np.full(ROWS, 2.0)
    limits = CellLimits(least, most)
    chosen = pairs.pairs_of([(0, 2), (0, 3)], given, counts, limits)
    found = pairs.crossed(chosen, FEATURES, given, counts, limits)
    assert min(rows.min() for rows in found.rows) >= max(least, 3)
    assert max(found.sizes) <= most
    for rows, sums in zip(found.rows, found.counts, strict=True):
        np.testing.assert_array_equal(2 * rows, sums)
    room = CellLimits(least, most, found.sizes[1])
    assert pairs.crossed(chosen, FEATURES, given, counts, room).sizes in (
        found.sizes[1:],
        found.sizes[:1],
    )


def test_rows_are_those_that_active_rows_stand_for() -> None:
    """Equal rows that were merged count each, and the row of a missing partner is none."""
    given, counts, rows = columns(), np.full(ROWS, 9.0), np.full(ROWS, 20)
    rows[np.isnan(given[0])] = 0
    limits = CellLimits(12, 40, rows=rows)
    chosen = pairs.pairs_of([(0, 2)], given, counts, limits)
    (own,) = pairs.crossed(chosen, FEATURES, given, counts, limits).rows
    assert own.sum() == 20 * np.sum(~np.isnan(given[0]))
    assert not pairs.crossed(
        chosen, FEATURES, given, counts, CellLimits(12, 40, rows=rows * 0)
    ).pairs


def test_pairs_of_another_block_have_no_more_cells_than_there_is_room_for() -> None:
    given, counts = columns(), np.ones(ROWS)
    chosen = pairs.pairs_of([(0, 2), (0, 3)], given, counts, CellLimits())
    found = pairs.crossed(chosen, FEATURES, given, counts, CellLimits(), whole=True)
    room = CellLimits(columns=found.sizes[0] + 3)
    some = pairs.crossed(chosen, FEATURES, given, counts, room, whole=True)
    assert some.sizes == (found.sizes[0], 3)
    none = pairs.crossed(chosen, FEATURES, given, counts, CellLimits(columns=0), whole=True)
    assert none.sizes == (0, 0)


def test_the_pair_that_acts_together_is_chosen() -> None:
    """Gain over chance by hand: of cells of eight bins at most."""
    given, rng = columns(), np.random.default_rng(4)
    x, odd = np.nan_to_num(given[0]), given[2]
    effect = 0.4 * np.sign(x) * np.where(odd > 2, 1.0, -1.0)
    effect -= np.mean(effect)
    slopes = (rng.normal(size=ROWS) - effect)[:, None]
    counts = np.ones(ROWS)
    assert pairs.ranked(given, counts, slopes, counts, 1.0, 5)[0] == (0, 2)
    assert pairs.ranked(given, counts, slopes, counts, 1.0, 1) == [(0, 2)]
    side = pairs.side_of(0, given[0], counts, pairs.COARSE)
    cells = pairs.cells_of(side, given[0]) * 10 + odd.astype(int)
    sums = np.bincount(cells, slopes[:, 0])
    sizes = np.bincount(cells)
    live = sizes > 0
    gain = np.sum(sums[live] ** 2 / sizes[live])
    freedom = live.sum() - 9 - 5 + 1
    bound = (gain - freedom) / np.sqrt(2 * freedom)
    # more dispersion than that, and the pair is chance
    scale = gain / (freedom + pairs.BEYOND_CHANCE * np.sqrt(2 * freedom))
    assert bound > pairs.BEYOND_CHANCE
    assert (0, 2) in pairs.ranked(given, counts, slopes, counts, 0.999 * scale, 5)
    assert (0, 2) not in pairs.ranked(given, counts, slopes, counts, 1.001 * scale, 5)


def test_of_nothing_few_pairs_are_chosen() -> None:
    """Of residuals of the features' own bins, chance gains the degrees of freedom."""
    rng, found = np.random.default_rng(1), 0
    for seed in range(20):
        given, counts = columns(seed), np.ones(ROWS)
        sides = [pairs.side_of(n, values, counts, pairs.COARSE) for n, values in given.items()]
        cells = [pairs.cells_of(side, given[side.place]) for side in sides]
        bins = np.hstack([np.eye(int(own.max()) + 1)[own] for own in cells])
        slopes = rng.normal(size=ROWS)
        slopes -= bins @ np.linalg.lstsq(bins, slopes, rcond=None)[0]
        found += len(pairs.ranked(given, counts, slopes[:, None], counts, 1.0, 6))
    assert found < 0.1 * 20 * 6


def test_hidden_cells_do_not_follow_from_sums_over_lines() -> None:
    """Each line lacks nothing, or two cells with as many rows as must be told of together."""
    rng = np.random.default_rng(3)
    for least in (2, 5, 12):
        for _ in range(40):
            rows = rng.poisson(rng.gamma(0.7, 9.0, size=(6, 7)))
            own = pairs.shown(rows, least)
            assert (rows[own] >= least).all()
            for table, kept in ((rows, own), (rows.T, own.T)):
                for line, told in zip(table, kept, strict=True):
                    hidden = line[~told & (line > 0)]
                    assert (
                        not told.any()
                        or not len(hidden)
                        or (len(hidden) > 1 and hidden.sum() >= least)
                    )
    assert pairs.shown(np.full((3, 3), 9), 5).all()


@pytest.mark.parametrize("bins", [4, 6, 8, 20, 24, 32])
def test_hidden_cells_do_not_follow_from_coarser_ones(bins: int) -> None:
    """Two features that go together: few rows are far from the diagonal."""
    least, rng, width = 3, np.random.default_rng(4), pairs.COARSE_SIDE
    x = rng.normal(size=20_000)
    given: dict[int, Values] = {0: x, 1: 0.9 * x + 0.45 * rng.normal(size=len(x))}
    counts, limits = np.ones(len(x)), CellLimits(least)
    coarse = {n: pairs.side_of(n, values, counts, pairs.COARSE) for n, values in given.items()}
    fine = {n: pairs.side_of(n, values, counts, bins) for n, values in given.items()}
    _, told = pairs.coarse_sums(coarse, given, counts[:, None], counts, limits)
    pair = pairs.Pair(fine[0], fine[1])
    sums = pairs.fine_sums([pair], coarse, given, counts, limits)[0]
    cells = [pairs.cells_of(fine[n], given[n]) for n in given]
    blocks = [pairs.cells_of(coarse[n], given[n]) for n in given]
    cell = cells[0] * (len(fine[1].bounds) + 2) + cells[1]
    shown = sums[cell] > 0
    block = blocks[0] * width + blocks[1]
    rows = np.bincount(block, minlength=width**2)
    lack = np.bincount(block[~shown], minlength=width**2)
    assert (told == 0).any()
    assert (lack[told[0] == 0] == rows[told[0] == 0]).all()
    # what is told of lies in one coarse cell, or consists of such as are told of: else a strip
    # between two bounds would follow
    parts = np.zeros((int(cell.max()) + 1, width**2), np.int64)
    np.add.at(parts, (cell, block), 1)
    whole = (parts == rows) & (told[0] > 0)
    visible = np.unique(cell[shown])
    alone = (parts[visible] > 0).sum(axis=1) == 1
    made_up = ((parts[visible] == 0) | whole[visible]).all(axis=1)
    assert (alone | made_up).all()
    remaining = lack[told[0] > 0]
    assert (remaining[remaining > 0] >= least).all()
    nested = pairs.nested_bins(bins)
    assert nested in (1, 2, 4, 8, 16, 24, 32)
    assert nested <= bins < nested + 8
    assert nested < bins or shown.mean() > (0.6 if bins < 8 else 0.9)


def test_strips_between_bounds_do_not_follow() -> None:
    """Two rows are between a coarse bound and a finer one, as a coordinator may choose them."""
    x = np.concatenate([np.linspace(0, 0.9, 500), [0.95, 0.95], np.linspace(1.1, 2, 500)])
    given: dict[int, Values] = {0: x, 1: np.zeros(len(x))}
    counts, limits = np.ones(len(x)), CellLimits(10)
    coarse = {0: pairs.Side(0, np.array([0.92])), 1: pairs.Side(1, np.array([1.0]))}
    pair = pairs.Pair(pairs.Side(0, np.array([0.5, 1.0, 1.5])), coarse[1])
    sums = pairs.fine_sums([pair], coarse, given, counts, limits)[0]
    below = (x < 0.5).sum()
    # of the two cells on the other side one alone would lack too few
    assert sorted(sums[sums > 0]) in ([below], sorted([below, (x >= 1.5).sum()]))
    open_ = pairs.fine_sums([pair], coarse, given, counts, CellLimits())[0]
    assert (open_ > 0).sum() == 4
