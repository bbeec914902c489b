"""What a client tells of a block over its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from sqlfl import messages as ms
from sqlfl.aggregation.slot_aggregation import merge_names
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.messages.diagnostics import CATEGORY, HASHED, MISSING, NULL, NUMBER
from sqlfl.models.towers import TowerShape
from sqlfl.party import diagnostics
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding.features import Encoding, local_encoding
from sqlfl.udfs.encoding.naming import bases_of, columns_of, own_texts
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import make_engine
from sqlfl.udfs.updates.update import LinearEngine
from tests.open_databases import in_memory
from tests.udfs.snapshots import specification, take

FEATURES: Sequence[tuple[str, str] | tuple[str, str, int]] = (
    ("a", "numeric"), ("shape", "array", 2), ("town", "category"), ("flag", "boolean"),
)  # fmt: skip
ROWS = """SELECT * FROM (VALUES
  (1.0, [1, 2]::FLOAT[2], 'north', true), (NULL, [2, 1]::FLOAT[2], NULL, false),
  (4.0, NULL, 'north', true), (2.0, [0, 5]::FLOAT[2], 'south', false),
  (7.0, [3, 3]::FLOAT[2], 'north', true)) AS v(a, shape, town, flag)"""
SEND = ms.SendRotated("r", 0, "m", 0, (), ())


def made(con: duckdb.DuckDBPyConnection) -> tuple[Snapshot, SavedBlock, LinearEngine]:
    snapshot = take(con, specification(*FEATURES), ROWS)
    snapshot.activate(np.arange(5, dtype=np.uint32), np.ones(5, np.uint32))
    encoding = local_encoding(snapshot)
    theta = np.random.default_rng(1).normal(size=(encoding.width, 1))
    block = SavedBlock(encoding, theta, "t")
    return snapshot, block, make_engine("sql", con, snapshot, encoding)


def test_columns_have_the_words_of_their_table() -> None:
    with in_memory() as con:
        snapshot, block, _ = made(con)
        found = columns_of(block.encoding)
        assert list(zip(found.features, found.kinds.tolist(), found.categories, strict=True)) == [
            ("a", NUMBER, ""),
            ("shape[1]", NUMBER, ""),
            ("shape[2]", NUMBER, ""),
            ("flag", NUMBER, ""),
            ("a", MISSING, ""),
            ("shape", MISSING, ""),
            ("town", NULL, ""),
            ("town", CATEGORY, "north"),
            ("town", CATEGORY, "south"),
        ]
        assert found.places.tolist() == [0, 1, 1, 3, 0, 1, 2, 2, 2]
        assert bases_of(block.encoding).tolist() == [-1] * 6 + [7] * 3
        assert own_texts(snapshot, block.encoding) is None


def test_the_first_of_equally_frequent_categories_is_the_base() -> None:
    encoding = Encoding(
        (FeatureSpecification("c", "category"), FeatureSpecification("d", "category")),
        np.zeros(0), np.zeros(0), np.zeros(0), (("ta", "tb"), ()),
        (np.array([2.0, 2.0]), np.zeros(0)), 4.0, None,
    )  # fmt: skip
    assert bases_of(encoding).tolist() == [0, 0]


def test_a_rotation_is_orthogonal_and_follows_from_its_secret() -> None:
    one, again, other = (diagnostics.rotation(s, 7) for s in (b"a", b"a", b"b"))
    np.testing.assert_allclose(one @ one.T, np.eye(7), atol=1e-12)
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    assert diagnostics.rotation(b"a", 1).shape == (1, 1)


def test_rotations_are_drawn_evenly() -> None:
    """Each entry has mean 0 and mean square 1/d, signs of the diagonal included."""
    drawn = np.array([diagnostics.rotation(b"%d" % k, 3) for k in range(2000)])
    assert np.abs(drawn.mean(axis=0)).max() < 4 * np.sqrt(1 / 3 / 2000)
    np.testing.assert_allclose((drawn**2).mean(axis=0), 1 / 3, atol=4 * 0.3 / np.sqrt(2000))


def test_what_is_rotated_keeps_angles_and_predictions() -> None:
    with in_memory() as con:
        _, block, engine = made(con)
        told = diagnostics.rotated(block, engine, b"secret", SEND)
        x = engine.predict(np.eye(engine.width))
        assert np.abs(told.values - x).max() > 0.1
        np.testing.assert_allclose(told.values @ told.values.T, x @ x.T, atol=1e-9)
        np.testing.assert_allclose(
            told.values @ told.weights, engine.predict(block.theta), atol=1e-12
        )
        # a row whose numbers are 0, of the base category, and of which nothing is missing
        zero = take(con, specification(*FEATURES), "SELECT 0.0 AS a, [0, 0]::FLOAT[2] AS shape, "
                    "'north' AS town, false AS flag", run="r2")  # fmt: skip
        zero.activate(np.zeros(1, np.uint32), np.ones(1, np.uint32))
        score = make_engine("sql", con, zero, block.encoding).predict(block.theta)
        assert told.origin @ told.weights == pytest.approx(score[0])


def test_who_knows_enough_rows_can_undo_the_rotation() -> None:
    """As EXPLAIN says: it hides features from who knows fewer of them."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 4))
    z = x @ diagnostics.rotation(b"secret", 4)
    for known, works in ((4, True), (3, False)):
        undone, *_ = np.linalg.lstsq(z[:known], x[:known])
        assert np.allclose(z @ undone, x) == works


def test_three_columns_follow_from_their_coefficients_and_errors() -> None:
    """Three coefficients and their errors decide the rotation of three columns, as EXPLAIN says."""
    rng = np.random.default_rng(6)
    x = rng.gamma(2.0, size=(200, 3)) @ rng.normal(size=(3, 3))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    r = diagnostics.rotation(b"secret", 3)
    z, weights, scales = x @ r, r.T @ rng.normal(size=3), rng.gamma(2.0, size=3)
    covariance = np.linalg.inv(z.T @ (z * rng.random((200, 1))))
    coefficients = r @ weights / scales
    variances = np.einsum("jk,kl,jl->j", r, covariance, r) / scales**2

    def turned(turn: np.ndarray) -> np.ndarray:
        return np.linalg.det(r) * Rotation.from_rotvec(turn).as_matrix()

    def away(turn: np.ndarray) -> np.ndarray:
        rows = turned(turn)
        own = np.einsum("jk,kl,jl->j", rows, covariance, rows)
        square = (rows @ weights / coefficients) ** 2
        return np.concatenate([own / square / variances - 1.0, (z @ rows.T).std(axis=0) - 1.0])

    tries = [least_squares(away, start, xtol=1e-15) for start in rng.normal(size=(40, 3))]
    undone = [z @ turned(found.x).T for found in tries if found.cost < 1e-20]
    assert any(np.allclose(found, x, atol=1e-5) for found in undone)
    signs = [np.sign((found * x).sum(axis=0)) for found in undone]
    assert all(np.allclose(f, x * s, atol=1e-5) for f, s in zip(undone, signs, strict=True))


def asked(d: int, **fields: object) -> ms.SendErrors:
    """Of no relation, but for the fields given."""
    square = ("covariance", "within", "between", "later", "endless")
    line = ("shift", "partnerless", "partner", "constants")
    none: dict[str, object] = {"compared": (), "bases": (), "penalised": 0}
    none |= {name: np.zeros((d, d)) for name in square} | {name: np.zeros(d) for name in line}
    none |= {"output": 0, "reference": -1, "roots": np.zeros((2, d, 0)), "starts": np.zeros((2, 0))}
    return ms.SendErrors("r", 0, "m", 0, **(none | fields))  # type: ignore[arg-type]


def told(block: SavedBlock, snapshot: Snapshot, request: ms.SendErrors) -> ms.Errors:
    return diagnostics.errors(block, snapshot, b"secret", str.encode, request)


def test_errors_are_those_of_the_own_columns() -> None:
    rng = np.random.default_rng(2)
    with in_memory() as con:
        snapshot, block, engine = made(con)
        d = engine.width
        root = rng.normal(size=(d, d))
        covariance, r = root @ root.T, diagnostics.rotation(b"secret", d)
        flag = np.zeros(d)
        flag[3] = 1.0
        none = r.T @ np.outer(flag, flag) @ r
        request = asked(d, covariance=r.T @ covariance @ r, within=none, endless=none)
        found = told(block, snapshot, request)
        scale = block.encoding.scales
        own = np.sqrt(np.diag(covariance))
        assert found.errors[0] == pytest.approx(own[0] / scale[0])
        assert found.coefficients[0] == pytest.approx(block.theta[0, 0] / scale[0])
        apart = np.zeros(d)
        apart[8], apart[7] = 1.0, -1.0
        assert found.errors[8] == pytest.approx(np.sqrt(apart @ covariance @ apart))
        assert found.coefficients[8] == pytest.approx(block.theta[8, 0] - block.theta[7, 0])
        assert found.told.tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 1]
        assert found.bases.tolist() == [0] * 7 + [1, 0]
        assert found.foreseen
        endless = asked(d, covariance=r.T @ covariance @ r, endless=none)
        ending = told(block, snapshot, endless)
        assert ending.finite.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1]
        assert ending.told.tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 1]
        with pytest.raises(InternalError, match="a covariance of 2 columns, of 9"):
            told(block, snapshot, asked(2))


def test_a_base_can_be_chosen() -> None:
    with in_memory() as con:
        snapshot, block, engine = made(con)
        d = engine.width
        request = asked(d, covariance=np.eye(d), compared=("town",), bases=("south",))
        found = told(block, snapshot, request)
        assert found.bases.tolist() == [0] * 8 + [1]
        assert found.coefficients[7] == pytest.approx(block.theta[7, 0] - block.theta[8, 0])
        assert bases_of(block.encoding, {"town": "south"}).tolist() == [-1] * 6 + [8] * 3
        with pytest.raises(ModelError, match="town has no category 'east'"):
            bases_of(block.encoding, {"town": "east"})
        with pytest.raises(ModelError, match="feature a has no categories"):
            bases_of(block.encoding, {"a": "1"})


def test_the_last_column_of_a_relation_is_left_out() -> None:
    """shape[2] follows from a: it is left out, and a has what both had."""
    with in_memory() as con:
        snapshot, block, engine = made(con)
        d, r = engine.width, diagnostics.rotation(b"secret", engine.width)
        moving = np.zeros(d)
        moving[[0, 2]] = 0.8, -0.6
        across = r.T @ np.outer(moving, moving) @ r
        covariance = np.eye(d)
        found = told(block, snapshot, asked(d, covariance=covariance, within=across))
        assert found.told.tolist() == [1, 1, 0, 1, 1, 1, 1, 0, 1]
        theta, scale = block.theta[:, 0], block.encoding.scales
        assert found.coefficients[0] == pytest.approx((theta[0] + theta[2] / 0.75) / scale[0])
        assert found.errors[0] == pytest.approx(np.hypot(1.0, 1.0 / 0.75) / scale[0])
        # what an earlier table takes to be left out is a and shape[2] in equal shares of `moving`
        between = told(block, snapshot, asked(d, between=across))
        assert between.told.tolist() == found.told.tolist()
        assert not between.foreseen
        alone = np.zeros((d, d))
        alone[2, 2] = 1.0
        assert told(block, snapshot, asked(d, between=r.T @ alone @ r)).foreseen
        later = told(block, snapshot, asked(d, later=across))
        assert later.told.tolist() == [2, 1, 2, 1, 1, 1, 1, 0, 1]
        shrunk = told(block, snapshot, asked(d, within=across, penalised=1))
        assert shrunk.told.tolist() == [0, 1, 0, 1, 1, 1, 1, 0, 1]
        assert shrunk.coefficients[0] == pytest.approx(theta[0] / scale[0])


def test_what_the_intercept_loses_shows_in_lengths_alone() -> None:
    """shape[2] follows from the constant: its column is left out, and its row stays here."""
    rng = np.random.default_rng(4)
    with in_memory() as con:
        snapshot, block, engine = made(con)
        d, r = engine.width, diagnostics.rotation(b"secret", engine.width)
        alone = np.zeros(d)
        alone[2] = 1.0
        roots, starts = rng.normal(size=(2, d, 4)), rng.normal(size=(2, 4))
        request = asked(d, within=r.T @ np.outer(alone, alone) @ r, constants=r.T @ alone * 3.0)
        request = replace(request, roots=roots, starts=starts)
        found = told(block, snapshot, request)
        taken = 3.0 * r[2]
        left = starts - taken @ roots
        assert found.moved == pytest.approx(3.0 * block.theta[2, 0])
        np.testing.assert_allclose(
            np.linalg.norm(found.turned, axis=1), np.linalg.norm(left, axis=1)
        )
        assert not np.allclose(found.turned, left, atol=0.1)
        # of another table, by the same keys: angles are right too
        other = told(block, snapshot, replace(request, starts=2.0 * starts))
        sums = found.turned + other.turned
        np.testing.assert_allclose(
            np.linalg.norm(sums, axis=1), np.linalg.norm(2.0 * left + starts, axis=1)
        )


def test_too_much_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "MAX_NUMBERS", 80)
    with in_memory() as con:
        _, block, engine = made(con)
        with pytest.raises(ModelError, match="5 active rows have 9 encoded columns"):
            diagnostics.rotated(block, engine, b"secret", SEND)


def test_a_permutation_moves_all_columns_of_a_feature() -> None:
    with in_memory() as con:
        _, block, engine = made(con)
        x = engine.predict(np.eye(engine.width))
        places = columns_of(block.encoding).places

        def entropy(count: int) -> bytes:
            return b"\1" * count

        for feature in range(4):
            request = ms.ScorePermuted("r", 0, "m", 0, feature, 0, -1)
            order = np.random.default_rng(int.from_bytes(b"\1" * 32, "little")).permutation(5)
            other = x.copy()
            other[:, places == feature] = x[order][:, places == feature]
            parts = diagnostics.parts_of(block, engine, feature)
            found = diagnostics.permuted(block, parts, request, entropy)
            np.testing.assert_allclose(found, other @ block.theta, atol=1e-12)
        seeded = [ms.ScorePermuted("r", 0, "m", 0, 0, k, 4) for k in (0, 0, 1)]
        parts = diagnostics.parts_of(block, engine, 0)
        first, again, second = (diagnostics.permuted(block, parts, item) for item in seeded)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, second)
        with pytest.raises(InternalError, match="feature 4 of 4"):
            diagnostics.parts_of(block, engine, 4)


def test_a_tower_has_no_weights() -> None:
    with in_memory() as con:
        _, block, engine = made(con)
        shape = TowerShape(engine.width, (1,), 1, "tanh")
        tower = SavedBlock(block.encoding, block.theta, "t", shape)
        with pytest.raises(InternalError, match="no weights"):
            diagnostics.block_reply(tower, ms.SendBlock("", 0, "m", 0))
        with pytest.raises(InternalError, match="no weights"):
            diagnostics.contributions(tower, engine)


def test_clients_know_each_others_categories() -> None:
    def part(kinds: list[int], categories: tuple[str, ...]) -> ms.Errors:
        none = np.zeros(3)
        flags = np.zeros(3, np.uint8)
        own = np.array(kinds, np.uint8)
        numbers = none, none, flags, flags, flags
        return ms.Errors(
            "r", 0, own, ("x", "c", "c"), categories, *numbers, 1, 0.0, np.zeros((2, 0))
        )

    one = part([NUMBER, HASHED, CATEGORY], ("", "0123abcd", "south"))
    other = part([NUMBER, NULL, HASHED], ("", "", "4567abcd"))
    found = merge_names([one, other])
    assert found.kinds.tolist() == [NUMBER, NULL, CATEGORY]
    assert found.categories == ("", "", "south")


def test_errors_are_of_a_class_that_there_is() -> None:
    with in_memory() as con:
        snapshot, block, _ = made(con)
        d = block.encoding.width
        for output, reference in ((0, 0), (1, -1), (0, 5)):
            request = asked(d, output=output, reference=reference)
            with pytest.raises(InternalError, match="class"):
                told(block, snapshot, request)
