"""Labels are noised once per row, by its content, and with the probabilities that are said."""

from __future__ import annotations

import hmac
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.schema import (
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.privacy.mechanisms import keep_probability, label_epsilon, laplace_keep
from sqlfl.udfs import sql
from sqlfl.udfs.labels import label_noise
from sqlfl.udfs.labels.label_lineage import way_to_label
from sqlfl.udfs.labels.label_noise import drawn_rows, noised_labels
from sqlfl.udfs.numbering import keys, rows
from sqlfl.udfs.numbering.rows import split_of
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take, temporary_tables

OWN = b"the client's own secret"
FRAGMENT = "SELECT x, y AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
SURE = 4.5
"""Standard deviations: a right build fails once in 10⁵ cases; the keys are fixed."""


def private(label: LabelNoise | None) -> SnapshotPrivacy:
    return SnapshotPrivacy(label, "none", (), 0.0, 0.0, None)


def of_classes(
    epsilon: float, *classes: str, mechanism: str = "randomized_response", **more: Any
) -> SlotSpecification:
    label = LabelNoise(mechanism, epsilon, None, classes)
    return specification(
        ("x", "numeric"),
        target=True,
        classes=True,
        identifiers=(0,),
        privacy=private(label),
        **more,
    )


def of_numbers(epsilon: float, low: float, high: float) -> SlotSpecification:
    label = LabelNoise("laplace", epsilon, (low, high), ())
    return specification(("x", "numeric"), target=True, identifiers=(0,), privacy=private(label))


def noised(
    con: duckdb.DuckDBPyConnection,
    wanted: SlotSpecification,
    fragment: str = FRAGMENT,
    draws: bytes = OWN,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows' ids, ascending, and their noised codes or numbers; copies in some order."""
    snapshot = activate_all(take(con, wanted, fragment, run=os.urandom(4).hex(), draws=draws))
    values, classes, codes = noised_labels(snapshot)
    found = codes if classes else values
    ids = snapshot.identifiers()[0].to_numpy()
    order = np.lexsort((found, ids))
    snapshot.drop()
    return ids[order], found[order]


def three(database: Open, rows: int = 12_000) -> duckdb.DuckDBPyConnection:
    return database(
        "CREATE TABLE t AS SELECT range AS id, range * 0.5 AS x, "
        f"['low', 'mid', 'top'][1 + range % 3] AS y FROM range({rows})"
    )


# -- probabilities --------------------------------------------------------------------------------


def interval(codes: np.ndarray, truth: np.ndarray, classes: int) -> tuple[float, float]:
    """Of ln P[a | a] − ln P[a | b], where all b are alike: that of a logit, but for a constant."""
    kept = float(np.mean(codes == truth))
    error = SURE / math.sqrt(len(codes) * kept * (1 - kept))
    ratio = math.log(kept * (classes - 1) / (1 - kept))
    return ratio - error, ratio + error


@pytest.mark.parametrize("mechanism", ["randomized_response", "laplace"])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_log_ratio_is_epsilon(database: Open, mechanism: str, epsilon: float) -> None:
    wanted = of_classes(epsilon, "low", "mid", "top", mechanism=mechanism)
    ids, codes = noised(three(database), wanted)
    low, high = interval(codes, ids % 3, 3)
    true = label_epsilon(mechanism, epsilon, 3)
    assert low < true < high
    assert not low < 0.7 * true < high
    assert not low < 1.3 * true < high
    moved = np.bincount((codes - ids) % 3, minlength=3)[1:]
    assert abs(moved[0] - moved[1]) < SURE * math.sqrt(moved.sum())


def test_the_laplace_mechanism_is_not_its_nominal_epsilon() -> None:
    assert laplace_keep(1.0, 2) < keep_probability(1.0, 2)
    assert label_epsilon("laplace", 1.0, 2) == pytest.approx(0.493, abs=1e-3)


def test_numbers_are_clipped_and_have_laplace_noise(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT range AS id, 0 AS x, "
        "['inf', '-inf', '3.25', '1e6'][1 + range % 4]::DOUBLE AS y FROM range(8000)"
    )
    ids, values = noised(con, of_numbers(2.0, -1.0, 5.0))
    noise = values - np.array([5.0, -1.0, 3.25, 5.0])[ids % 4]
    for factor, right in ((1.0, True), (0.7, False), (1.3, False)):
        found = stats.kstest(noise, stats.laplace(scale=factor * 6.0 / 2.0).cdf)
        assert (found.pvalue > 1e-5) == right


# -- once per row ---------------------------------------------------------------------------------


def recovered(con: duckdb.DuckDBPyConnection, asked: int) -> float:
    """Share of 400 labels that a majority of so many answers tells."""
    wanted = of_classes(1.0, "false", "true")
    answers = [noised(con, wanted)[1] for _ in range(asked)]
    vote = np.mean(answers, axis=0) > 0.5
    return float(np.mean(vote == (np.arange(400) % 2 == 1)))


def bits(database: Open) -> duckdb.DuckDBPyConnection:
    return database(
        "CREATE TABLE t AS SELECT range AS id, 0 AS x, range % 2 = 1 AS y FROM range(400)"
    )


def test_where_a_row_has_a_key_noise_follows_from_that_and_the_label(database: Open) -> None:
    con = bits(database)
    keyed = replace(of_classes(1.0, "false", "true"), draw_columns=(("id",),))
    ids, first = noised(con, keyed)
    assert not np.array_equal(first, noised(con, of_classes(1.0, "false", "true"))[1])
    con.execute("UPDATE t SET x = x + 1; ALTER TABLE t ADD COLUMN note TEXT")
    con.execute("ALTER TABLE t ALTER id TYPE BIGINT")
    assert np.array_equal(noised(con, keyed)[1], first)
    con.execute("UPDATE t SET y = NOT y WHERE id < 200")
    other = noised(con, keyed)[1]
    assert np.array_equal(other[ids >= 200], first[ids >= 200])
    # drawn anew, and not turned round: that would tell that the label has changed
    same = np.mean(other[ids < 200] == first[ids < 200])
    kept = keep_probability(1.0, 2)
    assert abs(same - 2 * kept * (1 - kept)) < SURE * math.sqrt(0.25 / 200)
    con.execute("UPDATE t SET y = NOT y WHERE id < 200")
    assert np.array_equal(noised(con, keyed)[1], first)
    # keys of several columns, also such as have a zone
    con.execute("ALTER TABLE t ADD COLUMN day TIMESTAMPTZ")
    con.execute("UPDATE t SET day = TIMESTAMPTZ '2026-01-01 00:00+00'")
    both = replace(keyed, draw_columns=(("day", "id"),))
    two = noised(con, both)[1]
    assert not np.array_equal(two, first)
    con.execute("SET TimeZone = 'Asia/Tokyo'; UPDATE t SET x = 0")
    assert np.array_equal(noised(con, both)[1], two)


def test_the_rows_that_are_drawn_are_told_apart(database: Open) -> None:
    con = bits(database)
    con.execute("INSERT INTO t VALUES (400, 0, NULL)")
    keyed = replace(of_classes(1.0, "false", "true"), draw_columns=(("id",),))

    def rows_of(wanted: SlotSpecification) -> tuple[list[int], list[int]]:
        snapshot = take(con, wanted, FRAGMENT, run=os.urandom(4).hex(), draws=OWN)
        who, what = drawn_rows(snapshot)
        snapshot.drop()
        return who.tolist(), what.tolist()

    who, what = rows_of(keyed)
    assert len(set(who)) == len(set(what)) == 400
    con.execute("UPDATE t SET y = NOT y WHERE id = 7; UPDATE t SET x = 5 WHERE id = 8")
    again, others = rows_of(keyed)
    assert set(again) == set(who)
    assert len(set(others) - set(what)) == 1
    assert len(set(rows_of(of_classes(1.0, "false", "true"))[0]) & set(who)) == 0


def test_a_majority_vote_gains_nothing(database: Open) -> None:
    con = bits(database)
    one = recovered(con, 1)
    assert abs(one - keep_probability(1.0, 2)) < SURE * math.sqrt(0.25 / 400)
    assert recovered(con, 9) == one


def test_a_build_that_draws_anew_is_caught(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As would be noise per joined copy."""

    def drawn(snapshot: rows.Snapshot, label: LabelNoise) -> np.ndarray:
        return np.frombuffer(os.urandom(16 * snapshot.active), np.uint64).reshape(-1, 2)

    monkeypatch.setattr(label_noise, "_words", drawn)
    assert recovered(bits(database), 9) > 0.8


def agreeing(con: duckdb.DuckDBPyConnection) -> int:
    """Of 2000 pairs of equal rows, those whose noised labels are equal."""
    _, codes = noised(con, of_classes(1.0, "false", "true"))
    return int(np.count_nonzero(codes[::2] == codes[1::2]))


def pairs(database: Open) -> duckdb.DuckDBPyConnection:
    return database(
        "CREATE TABLE t AS SELECT range % 2000 AS id, 0 AS x, range % 2 = 1 AS y FROM range(4000)"
    )


def test_equal_rows_have_noise_each_of_their_own(database: Open) -> None:
    keep = keep_probability(1.0, 2)
    both = keep**2 + (1 - keep) ** 2
    error = SURE * math.sqrt(2000 * both * (1 - both))
    assert abs(agreeing(pairs(database)) - 2000 * both) < error


def test_a_build_that_forgets_the_number_is_caught(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_content(self: rows.Snapshot, *values: Any) -> Any:
        return keys.tag(sql.join_text(sql.column("draw"), *values))

    monkeypatch.setattr(rows.Snapshot, "numbered", by_content)
    assert agreeing(pairs(database)) == 2000


def test_the_noise_is_the_same_hash_as_pythons(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT 7 AS id, 0.5 AS x, true AS y FROM range(3)")
    wanted = of_classes(1.0, "false", "true")
    snapshot = activate_all(take(con, wanted, FRAGMENT, draws=OWN))
    assert wanted.privacy is not None
    assert wanted.privacy.label is not None
    words = label_noise._words(snapshot, wanted.privacy.label)
    row = b"{'id': 7, 'x': 0.5, 'y': true}"
    content = hmac.digest(OWN, row, "sha256")[:8]
    key = label_noise._key(OWN, wanted.privacy.label, way_to_label(con, FRAGMENT), ())
    expected = [
        hmac.digest(key, f"{number}:".encode() + content + b"true", "sha256")[:16]
        for number in range(3)
    ]
    assert [row.tobytes() for row in words] == expected
    assert temporary_tables(con) == ["sqlfl_r1_0_active"]


SAME = {
    "other features and rows": "SELECT -x AS x, y AS sqlfl_target, t AS sqlfl_base, "
    "id AS sqlfl_id_0 FROM t WHERE id % 3 < 2 -- some",
    "another order": "SELECT x, y AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t "
    "WHERE true",
    "another alias": "SELECT q.x, (q.Y) AS sqlfl_target, q AS sqlfl_base, q.id AS sqlfl_id_0 "
    "FROM main.t AS q",
}


@pytest.mark.parametrize("fragment", SAME.values(), ids=SAME.keys())
def test_a_label_has_the_noise_that_it_had(database: Open, fragment: str) -> None:
    con = three(database, 300)
    wanted = of_classes(1.0, "low", "mid", "top")
    first = dict(zip(*noised(con, wanted), strict=True))
    con.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM t ORDER BY id DESC")
    again = dict(zip(*noised(con, wanted, fragment), strict=True))
    assert len(again) >= 200
    assert all(first[row] == code for row, code in again.items())


def test_classes_in_another_order_are_no_other_draw(database: Open) -> None:
    con = three(database, 300)
    first = noised(con, of_classes(1.0, "low", "mid", "top"))[1]
    again = noised(con, of_classes(1.0, "top", "low", "mid"))[1]
    np.testing.assert_array_equal(np.array([1, 2, 0])[first], again)


def test_times_with_a_zone_count_for_what_they_are(database: Open) -> None:
    """Whatever zone a session is in, a row is the same; another time is another row."""
    moment = "TIMESTAMPTZ '2024-01-01 00:00:00+00'"
    con = database(
        f'CREATE TABLE t AS SELECT range AS id, 0 AS x, range % 2 = 1 AS y, {moment} AS "At", '
        f"{{'a b': {moment}, 'c': 'x'}} AS s FROM range(400)"
    )
    wanted = of_classes(1.0, "false", "true")
    found = []
    for zone in ("UTC", "Asia/Tokyo"):
        con.execute(f"SET TimeZone = '{zone}'")
        found.append(noised(con, wanted)[1])
    np.testing.assert_array_equal(found[0], found[1])
    con.execute("UPDATE t SET s = {'a b': s['a b'] + INTERVAL 1 SECOND, 'c': 'x'}")
    assert independent(found[0], noised(con, wanted)[1])


def independent(first: np.ndarray, second: np.ndarray) -> bool:
    """Noise of 2 or 3 classes at ε = 1: both keep or move alike in 0.61 or 0.42 of the rows."""
    return bool(np.mean(first == second) < (0.6 if first.max() > 1 else 0.75))


OTHERS: dict[str, Callable[[SlotSpecification], tuple[SlotSpecification, str, bytes]]] = {
    "epsilon": lambda s: (of_classes(1.0001, "low", "mid", "top"), FRAGMENT, OWN),
    "classes": lambda s: (of_classes(1.0, "low", "mid", "top", "none"), FRAGMENT, OWN),
    "mechanism": lambda s: (
        of_classes(1.0, "low", "mid", "top", mechanism="laplace"), FRAGMENT, OWN
    ),
    "secret": lambda s: (s, FRAGMENT, b"of another client"),
    "label": lambda s: (s, FRAGMENT.replace("y AS", "lower(y) AS"), OWN),
    "source": lambda s: (s, FRAGMENT.replace("FROM t", "FROM (FROM t) AS t"), OWN),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_released_otherwise_has_noise_of_its_own(
    database: Open, other: Callable[..., tuple[SlotSpecification, str, bytes]]
) -> None:
    con = three(database, 600)
    wanted = of_classes(1.0, "low", "mid", "top")
    first = noised(con, wanted)[1]
    assert not independent(first, noised(con, wanted)[1])
    assert independent(first, noised(con, *other(wanted))[1])


def test_the_label_itself_counts(database: Open) -> None:
    """Where a row's label comes from elsewhere, and has changed, its noise is another."""
    con = database(
        "CREATE TABLE t AS SELECT range AS id, 0 AS x FROM range(600)",
        "CREATE TABLE elsewhere AS SELECT 0.0 AS y",
    )
    fragment = (
        "SELECT x, (SELECT y FROM elsewhere) AS sqlfl_target, t AS sqlfl_base, "
        "id AS sqlfl_id_0 FROM t"
    )
    wanted = of_numbers(1.0, 0.0, 2.0)
    before = noised(con, wanted, fragment)[1]
    np.testing.assert_array_equal(noised(con, wanted, fragment)[1], before)
    con.execute("UPDATE elsewhere SET y = 1.0")
    assert np.std(noised(con, wanted, fragment)[1] - before) > 1.0


def test_several_fragments(database: Open) -> None:
    """Rows of two tables that are equal, with one label or two, are noised apart."""
    con = three(database, 600)
    con.execute("CREATE TABLE u AS SELECT * FROM t")
    wanted = of_classes(1.0, "low", "mid", "top", fragments=(0, 2))
    fragments = (FRAGMENT, FRAGMENT.replace("FROM t", "FROM u AS t"))
    snapshots = [
        activate_all(take(con, wanted, *fragments, run=run, draws=OWN)) for run in ("a", "b")
    ]
    found = []
    for snapshot in snapshots:
        codes = noised_labels(snapshot)[2]
        ids = snapshot.identifiers()[0].to_numpy()
        found.append(codes[np.lexsort((codes, ids))].reshape(-1, 2))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.mean(found[0][:, 0] == found[0][:, 1]) < 0.6


# -- classes, and what is refused -----------------------------------------------------------------


def test_all_public_classes_are_sent(database: Open) -> None:
    con = bits(database)
    wanted = of_classes(1.0, "true", "false", "maybe")
    snapshot = activate_all(take(con, wanted, FRAGMENT, draws=OWN))
    values, classes, codes = noised_labels(snapshot)
    assert classes == ("true", "false", "maybe")
    assert (values.shape, codes.dtype, set(codes.tolist())) == ((0,), np.uint32, {0, 1, 2})


def test_a_label_that_is_not_among_the_classes(database: Open) -> None:
    """It gives any of them, all alike: an error would tell that a row has such a label."""
    con = database(
        "CREATE TABLE t AS SELECT range AS id, 0 AS x, if(range % 2 = 0, 'rare', 'flu') AS y "
        "FROM range(12_000)"
    )
    ids, codes = noised(con, of_classes(8.0, "flu", "cold", "none"))
    counts = np.bincount(codes[ids % 2 == 0], minlength=3)
    assert (np.abs(counts - 2_000) < SURE * np.sqrt(6_000 * 2 / 9)).all()
    assert np.mean(codes[ids % 2 == 1] == 0) > 0.99
    again = noised(con, of_classes(8.0, "flu", "cold", "none"))[1]
    np.testing.assert_array_equal(codes, again)  # once for ever, as other labels


def test_a_collation_merges_no_classes(database: Open) -> None:
    con = database(
        "SET default_collation = 'NOCASE'",
        "CREATE TABLE t AS SELECT range AS id, 0 AS x, ['a', 'A'][1 + range % 2] AS y "
        "FROM range(50)",
    )
    ids, codes = noised(con, of_classes(60.0, "a", "A"))
    np.testing.assert_array_equal(codes, ids % 2)


def test_no_rows(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id, 0 AS x, true AS y FROM range(0)")
    assert noised(con, of_classes(1.0, "false", "true"))[1].shape == (0,)
    con.execute("CREATE OR REPLACE TABLE t AS SELECT range AS id, 0 AS x, 1 AS y FROM range(0)")
    assert noised(con, of_numbers(1.0, 0.0, 1.0))[1].shape == (0,)


def test_exact_labels_of_such_a_slot_do_not_leave(database: Open) -> None:
    con = bits(database)
    wanted = of_classes(1.0, "false", "true")
    snapshot = activate_all(take(con, wanted, FRAGMENT, draws=OWN))
    for classes in (None, True, False):
        with pytest.raises(InternalError, match="noised"):
            snapshot.labels(classes)
    plain = replace(wanted, base=False)
    fragment = FRAGMENT.replace(", t AS sqlfl_base", "")
    with pytest.raises(InternalError, match="no noise for its labels"):
        noised_labels(activate_all(take(con, plain, fragment, run="b")))
    with pytest.raises(InternalError, match="without a key"):
        take(con, wanted, FRAGMENT, draws=b"")


def test_the_specification_travels() -> None:
    for wanted in (of_classes(1.0, "a", "b"), of_numbers(2.0, -1.0, 1.0)):
        assert specifications_from_json(specifications_to_json((wanted,))) == (wanted,)


# -- the split of a private run -------------------------------------------------------------------


def sides(con: duckdb.DuckDBPyConnection, privacy: SnapshotPrivacy | None, run: str) -> np.ndarray:
    """(2000, 2): for validation or not, of pairs of equal rows."""
    wanted = specification(identifiers=(0,), split=0.3, privacy=privacy)
    fragment = "SELECT t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
    snapshot = activate_all(take(con, wanted, fragment, run=run, draws=OWN))
    ids, drawn = snapshot.identifiers()[0].to_numpy(), split_of(snapshot)
    return drawn[np.lexsort((drawn, ids))].reshape(-1, 2)


def test_equal_rows_are_drawn_apart_in_private_runs(database: Open) -> None:
    con = pairs(database)
    assert (np.diff(sides(con, None, "a")) == 0).all()
    found = sides(con, private(None), "b")
    differ = np.count_nonzero(np.diff(found))
    share = 2 * 0.3 * 0.7
    assert abs(differ - 2000 * share) < SURE * math.sqrt(2000 * share * (1 - share))
    assert abs(found.sum() - 4000 * 0.3) < SURE * math.sqrt(4000 * 0.3 * 0.7)
    np.testing.assert_array_equal(sides(con, private(None), "c"), found)
