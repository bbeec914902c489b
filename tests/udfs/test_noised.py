"""Encodings by public bounds and by noised statistics: sensitivity, thresholds, both engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import norm

from sqlfl import messages as ms
from sqlfl.aggregation.slot_aggregation import merge_noised
from sqlfl.base.errors import InternalError, PartyError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.schema import Client, SlotSpecification, specifications_to_json
from sqlfl.messages.wire import decode, encode
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.privacy.statistics import DOUBT, sensitivity, settle, threshold
from sqlfl.transport.base import Audit, Channel
from sqlfl.transport.local import LocalTransport
from sqlfl.udfs.blocks.block_tables import blocks_of
from sqlfl.udfs.blocks.blocks import ClientBlocks, MemoryBlocks, SavedBlock
from sqlfl.udfs.blocks.register import BlockFunction
from sqlfl.udfs.encoding import noised
from sqlfl.udfs.encoding.features import Encoding, local_encoding
from sqlfl.udfs.encoding.noised import (
    bounds_encoding,
    noised_encoding,
    noised_statistics,
    shared_noised_encoding,
)
from sqlfl.udfs.labels.label_secret import LabelSecret, label_secret
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import make_engine, score
from tests import courier
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take, temporary_tables

Array = np.ndarray[Any, Any]

FEATURES = (
    ("x", "numeric"),
    ("c", "category"),
    ("flag", "boolean"),
    ("v", "array", 2),
    ("d", "category"),
)
NAMES = "x, c, flag, v, d"
LISTED = ((-1.0, 3.0), ("a", "b"), None, (0.0, 4.0), ("p", "q"))
FOUND = ((-1.0, 3.0), None, None, (0.0, 4.0), ("p", "q"))
FAINT = 1e-9
"""Noise that no tolerance here can see, and that leaves counts of 1 below a threshold of 1."""
KEY = b"vocabulary key"


def slot(
    statistics: str,
    bounds: tuple[Any, ...] = LISTED,
    features: tuple[Any, ...] = FEATURES,
    noise: float = FAINT,
    delta: float = 1e-6,
) -> SlotSpecification:
    privacy = SnapshotPrivacy(None, statistics, bounds, noise, delta, None)
    return specification(*features, identifiers=(0,), privacy=privacy)


ROWS = (
    "(0, NULL, NULL, NULL, NULL, NULL), (1, 'nan', 'a', true, ['nan', '1'], 'p'), "
    "(2, 'inf', 'b', false, ['9', NULL], 'q'), (3, '-inf', 'z', true, ['-9', '4'], NULL), "
    "(4, '-1', 'a', NULL, ['2', '0'], 'p'), (5, '3', 'b', false, NULL, 'r'), "
    "(6, '1', 'a', true, ['inf', '-inf'], 'q'), (7, '1e300', 'z', true, ['4', '4'], 'p')"
)
TABLE = (
    "CREATE TABLE t AS SELECT id, x::DOUBLE AS x, c, flag, v::DOUBLE[2] AS v, d "
    f"FROM (VALUES {ROWS}) AS r(id, x, c, flag, v, d)"
)
FRAGMENT = f"SELECT {NAMES}, id AS sqlfl_id_0 FROM t"
nan = math.nan
CLIPPED = np.array(
    [  # x, flag, v1, v2
        [nan, nan, nan, nan], [nan, 1, nan, 1], [3, 0, 4, nan], [-1, 1, 0, 4],
        [-1, nan, 2, 0], [3, 0, nan, nan], [1, 1, 4, 0], [3, 1, 4, 4],
    ]
)  # fmt: skip


def of_table(con: duckdb.DuckDBPyConnection, wanted: SlotSpecification, run: str = "r") -> Snapshot:
    return activate_all(take(con, wanted, FRAGMENT, run=run))


def ids_of(snapshot: Snapshot) -> Array:
    found: Array = snapshot.identifiers()[0].to_numpy()
    return found


# -- bounds alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_bounds_alone(database: Open, engine: str) -> None:
    con = database(TABLE)
    snapshot = of_table(con, slot("bounds"))
    encoding = bounds_encoding(snapshot)
    assert encoding.names == ("x", "flag", "v[1]", "v[2]", "c = a", "c = b", "d = p", "d = q")
    numbers = np.nan_to_num((CLIPPED - [1, 0.5, 2, 2]) / [2, 0.5, 2, 2])
    onehot = np.array([[c == e for e in "ab"] + [d == e for e in "pq"] for c, d in TEXTS], float)
    expected = np.hstack([numbers, onehot])[ids_of(snapshot)]
    made = make_engine(engine, con, snapshot, encoding)
    found = made.columns()
    np.testing.assert_allclose(np.hstack([found[0], found[1].toarray()]), expected, atol=1e-15)
    np.testing.assert_array_equal(made.centre, 0.0)
    theta = np.random.default_rng(0).normal(size=(8, 2))
    made.close()
    again = Encoding.from_bytes(encoding.to_bytes())
    np.testing.assert_allclose(score(con, snapshot, again, theta, engine), expected @ theta)


TEXTS = [(None, None), ("a", "p"), ("b", "q"), ("z", None), ("a", "p"), ("b", "r"), ("a", "q"),
         ("z", "p")]  # fmt: skip


def test_bounds_alone_follow_no_rows(database: Open) -> None:
    con = database(TABLE)
    first = bounds_encoding(of_table(con, slot("bounds")))
    con.execute("DELETE FROM t WHERE id > 0")
    second = bounds_encoding(of_table(con, slot("bounds"), run="s"))
    assert replace(second, total=first.total).to_bytes() == first.to_bytes()


def test_functions_clip_as_scoring_does(database: Open) -> None:
    """Those of `register`, in the party's own SQL."""
    con = database(TABLE)
    snapshot = of_table(con, slot("bounds"))
    encoding = bounds_encoding(snapshot)
    theta = np.random.default_rng(1).normal(size=(8, 1))
    query = "SELECT * REPLACE (flag::DOUBLE AS flag) FROM t ORDER BY id"
    table = con.sql(query).to_arrow_table()
    columns = [table.column(name).combine_chunks() for name, *_ in FEATURES]
    function = BlockFunction(SavedBlock(encoding, theta))
    expected = score(con, snapshot, encoding, theta)[np.argsort(ids_of(snapshot)), 0]
    np.testing.assert_allclose(function(*columns).to_numpy(), expected, rtol=1e-12)


def test_limits_are_kept_in_a_block_of_their_own_format(database: Open) -> None:
    encoding = bounds_encoding(of_table(database(TABLE), slot("bounds")))
    block = SavedBlock(encoding, np.ones((8, 1)))
    again = SavedBlock.from_bytes(block.to_bytes())
    assert (block.format, again.format) == (3, 3)
    assert again.encoding.limits is not None
    np.testing.assert_array_equal(again.encoding.limits, [[-1, 0, 0, 0], [3, 1, 4, 4]])
    exact = local_encoding(of_table(database(TABLE, "DELETE FROM t WHERE id > 0"), slot("none")))
    assert b"limits" not in exact.to_bytes()
    assert Encoding.from_bytes(exact.to_bytes()).limits is None


@pytest.mark.parametrize("bounds", [None, (1.0, 1.0), (2.0, 1.0), (nan, 1.0)])
def test_bounds_that_are_none(database: Open, bounds: object) -> None:
    wanted = slot("bounds", (bounds,), (("x", "numeric"),))
    con = database("CREATE TABLE t AS SELECT 1 AS x, 0 AS id")
    snapshot = activate_all(take(con, wanted, "SELECT x, id AS sqlfl_id_0 FROM t"))
    with pytest.raises(InternalError, match="bounds of feature x"):
        bounds_encoding(snapshot)


def test_categories_that_nobody_has_listed(database: Open) -> None:
    with pytest.raises(InternalError, match="nobody has listed"):
        bounds_encoding(of_table(database(TABLE), slot("bounds", FOUND)))
    with pytest.raises(InternalError, match="no public bounds"):
        bounds_encoding(of_table(database(TABLE), slot("none")))


# -- sensitivity and threshold --------------------------------------------------------------------


def parts_of_rows(con: duckdb.DuckDBPyConnection, counts: int = 1) -> tuple[Array, Array]:
    """What is measured of each row of t alone, before noise, and of all together."""
    entries = sorted({f"v{text}" for text, _ in TEXTS if text} | {"n"})

    def vector(condition: str) -> Array:
        fragment = f"{FRAGMENT} WHERE {condition}"
        snapshot = take(con, slot("noised", FOUND), fragment, run=condition)
        activate_all(snapshot, [counts] * sum(snapshot.rows))
        found = noised._measured(snapshot)
        of_c, of_d = (dict(zip(*category, strict=True)) for category in found.categories)
        assert list(of_d) == ["vp", "vq"]
        snapshot.drop()
        return np.concatenate([
            found.present, found.first, found.second,
            [of_c.get(entry, 0.0) for entry in entries], list(of_d.values()),
        ])  # fmt: skip

    return np.array([vector(f"id = {row}") for row in range(8)]), vector("true")


def test_a_row_moves_what_is_measured_by_the_sensitivity_at_most(
    database: Open,
) -> None:
    """What is measured is the sum over rows, so a changed row moves it by the difference of two."""
    single, together = parts_of_rows(database(TABLE), counts=5)
    np.testing.assert_allclose(together, single.sum(axis=0))
    moves = np.linalg.norm(single[:, None] - single[None], axis=2)
    assert sensitivity(slot("noised").features) == math.sqrt(3 * 4 + 2 * 2)
    assert moves.max() <= 4.0 + 1e-12
    assert moves.max() > math.sqrt(3 * 4 + 2 * 1)  # without the second category it would not do


def test_the_sensitivity_is_attained(database: Open) -> None:
    con = database(TABLE, "DELETE FROM t")
    con.execute(
        "INSERT INTO t SELECT i, CASE WHEN i > 3 THEN 3 END, ['a', 'b'][1 + i // 4], "
        "CASE WHEN i > 3 THEN true END, CASE WHEN i > 3 THEN [4, 4] END, ['p', 'q'][1 + i // 4] "
        "FROM range(8) r(i)"
    )
    single, _ = parts_of_rows(con)
    moves = np.linalg.norm(single[:, None] - single[None], axis=2)
    assert moves.max() == pytest.approx(4.0, rel=1e-15)


def test_the_order_of_categories_tells_nothing(database: Open) -> None:
    """The database finds them in an order that follows from the rows, and that no noise hides."""
    wanted = replace(slot("noised", (None,), (("c", "category"),)), shared=True)
    sent = []
    for first in ("a", "b", "z"):
        con = database(
            f"CREATE TABLE t AS SELECT i AS id, CASE WHEN i = 0 THEN '{first}' "
            "ELSE ['a', 'b', 'z'][1 + i % 3] END AS c FROM range(30) r(i)"
        )
        snapshot = activate_all(take(con, wanted, "SELECT c, id AS sqlfl_id_0 FROM t"))
        (tags,) = noised_statistics(snapshot, KEY).tags
        sent.append([bytes(tag) for tag in tags])
        assert noised_encoding(snapshot).vocabularies == (("va", "vb", "vz"),)
    assert sent[0] == sent[1] == sent[2] == sorted(sent[0])
    assert len(sent[0]) == 3


def test_rare_categories_hardly_show(database: Open) -> None:
    """3000 categories of one row each: a share of at most δ/2 shows, where one feature is found."""
    con = database("CREATE TABLE t AS SELECT range AS id, 'c' || range AS c FROM range(3000)")
    wanted = slot("noised", (None,), (("c", "category"),), noise=3.0, delta=0.2)
    snapshot = activate_all(take(con, wanted, "SELECT c, id AS sqlfl_id_0 FROM t"))
    shown = []
    for factor in (1.0, 0.3):  # the second is a build whose threshold is too low
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noised, "threshold", lambda *given, f=factor: f * threshold(*given))
            encoding = noised_encoding(snapshot, np.random.default_rng(0).bytes)
        shown.append(len(encoding.vocabularies[0]))
    error = 4.5 * math.sqrt(3000 * 0.1 * 0.9)
    assert abs(shown[0] - 300) < error
    assert shown[1] > 300 + error


@pytest.mark.parametrize("features", [1, 3])
def test_the_threshold(features: int) -> None:
    tau = threshold(7.0, 1e-5, features)
    own, other = norm.sf(tau, 1.0, 7.0), norm.sf(tau, 0.0, 7.0)
    assert own * 2 * features == pytest.approx(1e-5, rel=1e-9)
    assert features * (own + other) < 1e-5


def excess(tau: float, sigma: float) -> float:
    """What P − e^ε Q is above δ at most, over some events and ε, from 400 000 draws.

    Two tables, of which one has 9 rows of a common category and one of another, and the other has
    10 of the common one; δ is that of normal noise for the sensitivity.
    """
    noise = np.random.default_rng(0).normal(0.0, sigma, (3, 400_000))
    mu = math.sqrt(2.0) / sigma
    found = []
    for epsilon in (0.0, 0.5, 1.0):
        above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        delta = norm.cdf(above) - math.exp(epsilon) * norm.cdf(below)
        for cut in (6.0, 9.0, 12.0):
            p = np.mean((1 + noise[1] > tau) | (9 + noise[0] < cut))
            q = np.mean(10 + noise[2] < cut)
            found.append(p - math.exp(epsilon) * q - delta)
    return float(max(found))


def test_categories_found_cost_delta_and_no_more() -> None:
    assert excess(threshold(3.0, 0.05, 1), 3.0) <= 0.05
    assert excess(1.0, 3.0) > 0.05


# -- what is made of the numbers ------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [LISTED, FOUND])
def test_hardly_noised_statistics(database: Open, bounds: tuple[Any, ...]) -> None:
    con = database(TABLE)
    snapshot = of_table(con, slot("noised", bounds))
    encoding = noised_encoding(snapshot)
    check(encoding, found=bounds is FOUND)
    counted = take(con, slot("noised", bounds), FRAGMENT, run="counted")
    counted.activate(np.arange(8), np.arange(1, 9))
    counted.weigh(np.linspace(0, 2, 8))
    check(noised_encoding(counted), found=bounds is FOUND)


def check(encoding: Encoding, found: bool) -> None:
    mean = np.nanmean(CLIPPED, axis=0)
    imputed = np.where(np.isnan(CLIPPED), mean, CLIPPED)
    np.testing.assert_allclose(encoding.mean, mean, atol=1e-6)
    np.testing.assert_allclose(encoding.scale, imputed.std(axis=0), atol=1e-4)
    missing = np.isnan(CLIPPED).sum(axis=0)
    expected = [missing[0], missing[1], missing[2:].mean()]
    np.testing.assert_allclose(encoding.missing, expected, atol=1e-6)
    assert encoding.indicators == (0, 1, 2)
    assert encoding.total == 8
    entries = [("va", "vb", "vz"), ("vp", "vq")] if found else [("va", "vb"), ("vp", "vq")]
    assert encoding.vocabularies == tuple(entries)
    shares = [3 / 8, 2 / 8, 2 / 8] if found else [3 / 8, 2 / 8]
    np.testing.assert_allclose(
        encoding.centre[encoding.numeric :], [*shares, 3 / 8, 2 / 8], atol=1e-6
    )


def test_clients_together_are_as_one(database: Open) -> None:
    wanted = replace(slot("noised", FOUND), shared=True)
    whole = database(TABLE, "INSERT INTO t SELECT id + 8, x, c, flag, v, d FROM t")
    parts = []
    for part in (0, 1):
        con = database(TABLE, "INSERT INTO t SELECT id + 8, x, c, flag, v, d FROM t")
        con.execute(f"DELETE FROM t WHERE (id % 8 < 4) <> ({part} = 0)")
        parts.append(noised_statistics(of_table(con, wanted), KEY))
    message = merge_noised(parts, 16, FAINT * 4.0)
    found = shared_noised_encoding(wanted, decode_again(message), KEY)
    alone = noised_encoding(of_table(whole, slot("noised", FOUND)))
    for name in ("mean", "scale", "missing"):
        np.testing.assert_allclose(getattr(found, name), getattr(alone, name), atol=1e-4)
    assert [sorted(c.round(6)) for c in found.counts] == [sorted(c.round(6)) for c in alone.counts]
    theta = np.zeros((found.width, 1))
    theta[: found.numeric, 0] = 1.0
    rows = of_table(whole, slot("noised", FOUND), "s")
    scores = [score(whole, rows, encoding, theta) for encoding in (found, alone)]
    np.testing.assert_allclose(*scores, atol=1e-3)


def decode_again(message: ms.SetEncoding) -> ms.SetEncoding:
    found = decode(encode(message))
    assert isinstance(found, ms.SetEncoding)
    return found


@pytest.mark.parametrize("noise", [0.5, 30.0, 1000.0])
@pytest.mark.parametrize("clients", [0, 2])
def test_noise_that_drowns_all(database: Open, noise: float, clients: int) -> None:
    """Negative counts and variances come out; encodings stay sound."""
    con = database(TABLE)
    wanted = slot("noised", FOUND, noise=noise, delta=0.5)
    snapshot = of_table(con, replace(wanted, shared=clients > 0))
    for seed in range(6):
        entropy = np.random.default_rng(seed).bytes
        if clients:
            parts = [noised_statistics(snapshot, KEY, entropy) for _ in range(clients)]
            message = merge_noised(parts, 16, noise * 4.0)
            encoding = shared_noised_encoding(wanted, message, KEY)
        else:
            encoding = noised_encoding(snapshot, entropy)
        assert encoding.limits is not None
        low, high = encoding.limits
        assert ((encoding.mean >= low) & (encoding.mean <= high)).all()
        assert ((encoding.scale > 0.01) & (encoding.scale <= (high - low) / 2)).all()
        assert ((encoding.missing >= 0) & (encoding.missing <= encoding.total)).all()
        assert ((encoding.centre >= 0) & (encoding.centre <= 1)).all()
        assert np.isfinite(encoding.scales).all()
        assert len(encoding.vocabularies[1]) == 2
        engine = make_engine("arrays", con, snapshot, encoding)
        assert np.isfinite(engine.columns()[0]).all()


def test_indicators_need_gaps_that_show() -> None:
    none = np.zeros(0)
    for missing, kept in ((DOUBT * 3.0 - 0.1, 0.0), (DOUBT * 3.0 + 0.1, 12.1), (-50.0, 0.0)):
        assert settle(none, none, none, np.array([missing]), 100, 3.0)[2] == pytest.approx(kept)
    assert settle(none, none, none, np.array([1e4]), 100, 3.0)[2] == 100


def test_no_rows(database: Open) -> None:
    con = database(TABLE, "DELETE FROM t")
    snapshot = of_table(con, slot("noised", FOUND))
    for encoding in (
        noised_encoding(snapshot),
        bounds_encoding(of_table(con, slot("bounds"), "b")),
    ):
        assert encoding.total == 0
        assert np.isfinite(encoding.centre).all()
        assert score(con, snapshot, encoding, np.zeros((encoding.width, 1))).shape == (0, 1)


# -- at the party ---------------------------------------------------------------------------------

CLIENT = Client("a", 0)
Serve = Callable[..., "Party"]


class Party:
    """One client, asked as a coordinator asks; what comes back is decoded."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        blocks: ClientBlocks | None = None,
        labels: LabelSecret | None = None,
    ) -> None:
        self.con = con
        self.client = PartyClient(CLIENT, con, Secrets(b"f", b"o"), blocks, labels)

    def ask(self, request: ms.Message) -> ms.Message:
        return courier.ask(self.client, request)

    def begin(self, wanted: SlotSpecification, fragment: str, run: str = "run") -> ms.Message:
        text = specifications_to_json((wanted,))
        return self.ask(ms.Prepare(run, ms.CLIENT, text, (fragment,)))

    def activate(self, rows: int, copies: int = 1, run: str = "run") -> ms.Message:
        counts = np.full(rows, copies, np.uint32)
        return self.ask(
            ms.Activate(run, 0, np.arange(rows, dtype=np.uint32), counts, rows * copies)
        )

    def labels(self, wanted: SlotSpecification, fragment: str, run: str) -> Array:
        """By id."""
        self.begin(wanted, fragment, run)
        self.activate(40, copies=9, run=run)
        found = self.ask(ms.SendLabels(run, 0))
        ids = self.ask(ms.SendIdentifiers(run, 0))
        assert isinstance(found, ms.Labels)
        assert isinstance(ids, ms.Identifiers)
        self.ask(ms.Finish(run, ms.CLIENT))
        codes: Array = found.codes[np.argsort(ids.columns[0].to_numpy())]
        return codes


def test_bounds_need_no_exchange(database: Open) -> None:
    party = Party(database(TABLE))
    shared = replace(slot("bounds"), shared=True)
    assert isinstance(party.begin(shared, FRAGMENT), ms.Prepared)
    assert isinstance(party.activate(8), ms.Ready)
    party.begin(replace(shared, weighted=True), FRAGMENT, "weighted")
    assert isinstance(party.activate(8, run="weighted"), ms.Ready)
    assert isinstance(party.ask(ms.Weigh("weighted", 0, np.ones(8), 8.0)), ms.Ready)
    releases = party.ask(ms.SendReleases("run", 0))
    assert isinstance(releases, ms.Releases)
    assert releases.statistics == 0


def test_noised_statistics_are_measured_once(database: Open) -> None:
    party = Party(database(TABLE))
    shared = replace(slot("noised", FOUND, noise=2.0), shared=True, weighted=True)
    party.begin(shared, FRAGMENT)
    assert isinstance(party.activate(8, copies=3), ms.Ready)
    found = party.ask(ms.Weigh("run", 0, np.zeros(8), 8.0))
    assert isinstance(found, ms.Statistics)
    releases = party.ask(ms.SendReleases("run", 0))
    assert isinstance(releases, ms.Releases)
    assert releases.statistics == 2.0
    again = party.ask(ms.Weigh("run", 0, np.ones(8), 8.0))
    assert isinstance(again, ms.Failure)
    merged = merge_noised([found], 8, 8.0)
    ready = party.ask(merged)
    assert isinstance(ready, ms.Ready)
    assert ready.width >= 6


LABELS = "CREATE TABLE t AS SELECT range AS id, range % 4 AS k, range % 2 = 0 AS y FROM range(40)"
LABEL = "SELECT y AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
OF_LABELS = specification(
    target=True,
    classes=True,
    identifiers=(0,),
    privacy=SnapshotPrivacy(
        LabelNoise("laplace", 1.0, None, ("false", "true")), "none", (), 0.0, 0.0, 1e-3
    ),
)


def test_labels_are_noised_once_per_row_and_session(database: Open) -> None:
    party = Party(database(LABELS))
    first = party.labels(OF_LABELS, LABEL, "one")
    assert first.shape == (40,)  # not one per joined copy
    assert 0 < np.mean(first == (np.arange(40) % 2 == 0)) < 1
    for run in ("two", "three"):
        np.testing.assert_array_equal(party.labels(OF_LABELS, LABEL, run), first)


def test_labels_are_the_same_whether_a_model_lasts_or_not(database: Open, tmp_path: Any) -> None:
    con = database(LABELS, path=str(tmp_path / "labels.duckdb"))
    encoding = bounds_encoding(of_table(database(TABLE), slot("bounds")))

    def labels(run: str, kept: bool) -> Array:
        blocks = blocks_of(con, "coordinator", "a/0")
        secret = label_secret(con, CLIENT, keeps=True)
        found = Party(con, blocks, secret).labels(OF_LABELS, LABEL, run)
        if kept:
            blocks.save(run, 0, "m", SavedBlock(encoding, np.zeros((8, 1))))
            blocks.keep(run)
        return found

    first = labels("one", kept=False)
    np.testing.assert_array_equal(labels("two", kept=True), first)
    np.testing.assert_array_equal(labels("three", kept=False), first)
    block = blocks_of(con, "coordinator", "a/0").load("two", 0)
    assert block is not None
    assert block.encoding.limits is not None


def test_what_has_been_released_of_labels(database: Open) -> None:
    party = Party(database(LABELS))
    party.begin(OF_LABELS, LABEL)
    party.activate(40)
    told = []
    for _ in range(2):
        releases = party.ask(ms.SendReleases("run", 0))
        assert isinstance(releases, ms.Releases)
        told.append((releases.labels, releases.statistics, releases.gradients, releases.noise))
        party.ask(ms.SendLabels("run", 0))
    assert told == [(0.0, 0.0, 0, 0.0), (1.0, 0.0, 0, 0.0)]


def test_delta_must_be_below_one_row(database: Open) -> None:
    """Refused in Prepare, before keys leave; nothing stays behind."""
    con = database(LABELS)
    party = Party(con)
    assert OF_LABELS.privacy is not None
    large = replace(OF_LABELS, name="people", privacy=replace(OF_LABELS.privacy, delta=1 / 40))
    found = party.begin(large, LABEL)
    assert isinstance(found, ms.Failure)
    assert found.error == "PrivacyError"
    assert "delta must be smaller than 1/rows" in found.text
    assert "people" in found.text
    assert "40" not in found.text.replace("0.025", "")
    assert temporary_tables(con) == []
    assert isinstance(party.ask(ms.SendKeys("run", 0)), ms.Failure)
    small = replace(large, privacy=replace(large.privacy, delta=1 / 41))  # type: ignore[arg-type]
    assert isinstance(party.begin(small, LABEL), ms.Prepared)


def test_the_coordinator_shows_why(database: Open) -> None:
    party = Party(database(LABELS))
    assert OF_LABELS.privacy is not None
    large = replace(OF_LABELS, privacy=replace(OF_LABELS.privacy, delta=0.5))
    channel = Channel(LocalTransport({CLIENT: party.client.handle}), Audit())
    request = ms.Prepare("run", ms.CLIENT, specifications_to_json((large,)), (LABEL,))
    with pytest.raises(PartyError, match=r"party a/0: delta = 0.5 .*smaller than 1/rows") as raised:
        channel.exchange({(CLIENT, ms.CLIENT): request})
    assert "hint: take a delta far below 1/rows" in str(raised.value)


def test_memory_blocks_keep_a_secret_for_the_session() -> None:
    blocks = MemoryBlocks()
    assert blocks.secret("split") == blocks.secret("split")
