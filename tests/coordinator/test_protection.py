"""Fan-outs against brute force; the noise of a run against its join; what clients own up to."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import InternalError, PartyError
from sqlfl.base.progress import Progress
from sqlfl.coordinator.join.join_limits import copies, limit_fan_out, max_partners
from sqlfl.coordinator.preparation import Targets, prepare
from sqlfl.coordinator.protection import (
    Watched,
    _one_class,
    _Part,
    _unnoised,
    check_run,
    protect,
)
from sqlfl.coordinator.training import train
from sqlfl.coordinator.weighting import targets
from sqlfl.messages import Releases, Residuals, SendReleases
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.options.privacy import Privacy
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.transport.base import Audit, Channel
from tests.conftest import Open
from tests.depth import examples

SIZES = {3: 5, 7: 4}
"""Rows of two slots."""


@st.composite
def joins(draw: st.DrawFn):
    """Slot -> row of each joined row, and which rows are virtual."""
    total = draw(st.integers(1, 40))
    mapping = {
        slot: np.array(draw(st.lists(st.integers(0, n - 1), min_size=total, max_size=total)))
        for slot, n in SIZES.items()
    }
    virtual = {slot: np.zeros(n, bool) for slot, n in SIZES.items()}
    if draw(st.booleans()):
        virtual[7][0] = True
    return mapping, virtual


def seeded(seed: int):
    return np.random.default_rng(seed).bytes


@examples(12)
@given(joins(), st.integers(1, 6), st.integers(0, 99))
def test_no_row_is_joined_more_often_than_the_limit(join, limit: int, seed: int) -> None:
    mapping, virtual = join
    places = np.arange(len(mapping[3]))
    kept = limit_fan_out({**mapping, 1: places}, virtual, limit, seeded(seed))
    stayed = kept[1]
    assert (np.diff(stayed) > 0).all()
    for slot, rows in mapping.items():
        np.testing.assert_array_equal(kept[slot], rows[stayed])
        assert copies(kept[slot], virtual[slot]) <= limit
    # a row of the first slot loses nothing to it but what is beyond the limit, nor one of the
    # second but what the first left
    first = limit_fan_out({**mapping, 1: places}, {3: virtual[3]}, limit, seeded(seed))
    before = np.bincount(mapping[3], minlength=5)
    np.testing.assert_array_equal(np.bincount(first[3], minlength=5), np.minimum(before, limit))
    left = np.bincount(first[7], minlength=4)
    most = np.where(virtual[7], left, np.minimum(left, limit))
    np.testing.assert_array_equal(np.bincount(kept[7], minlength=4), most)


def test_which_joined_rows_stay_is_drawn_evenly() -> None:
    """Row r has joined rows r, 1000 + r, 2000 + r, of which two stay."""
    rows = np.tile(np.arange(1000), 3)
    mapping = {0: rows, 1: np.arange(3000)}
    drawn = [limit_fan_out(mapping, {0: np.zeros(1000, bool)}, 2, seeded(s)) for s in (1, 2)]
    for kept in drawn:
        times = np.bincount(kept[1] // 1000, minlength=3)
        assert times.sum() == 2000
        assert np.abs(times - 2000 / 3).max() < 5 * np.sqrt(1000 * 2 / 9)
    assert not np.array_equal(drawn[0][1], drawn[1][1])
    again = [limit_fan_out(mapping, {0: np.zeros(1000, bool)}, 2)[1] for _ in range(2)]
    assert not np.array_equal(*again)


def test_a_limit_below_one_is_no_limit() -> None:
    with pytest.raises(InternalError, match="limit of 0"):
        limit_fan_out({0: np.zeros(2, int)}, {0: np.zeros(1, bool)}, 0)


@examples(12)
@given(joins())
def test_fan_outs_are_those_of_brute_force(join) -> None:
    mapping, virtual = join
    for slot, rows in mapping.items():
        real = [r for r in range(SIZES[slot]) if not virtual[slot][r]]
        assert copies(rows, virtual[slot]) == max(int((rows == r).sum()) for r in real)
        for other, others in mapping.items():
            met = max(len({*others[rows == r].tolist()}) for r in real)
            assert max_partners(rows, virtual[slot], others, SIZES[other]) == met


# -- a join of two parties -------------------------------------------------------------------------

RUNS = count()
BOUNDS = "feature_bounds = {'x': [-1, 1], 'z': [-1, 1], 'c': ['a', 'b', 'c']}"
QUERY = "SELECT t.x, t.y, u.z, u.c FROM a.t t {} b.u u ON t.k = u.k"


def federation(fed: sqlfl.Federation, database: Open) -> None:
    """Visits 0..39 of five people, two of whom are not in u; person 0 has 16 visits."""
    halves = [
        database(
            "CREATE TABLE t AS SELECT greatest(i - 15, 0) % 5 AS k, sin(i) AS x, i % 3 = 0 AS y "
            f"FROM range(40) r(i) WHERE i % 2 = {part}"
        )
        for part in range(2)
    ]
    other = database(
        "CREATE TABLE u AS SELECT i AS k, cos(i) AS z, ['a', 'b', 'c'][i + 1] AS c "
        "FROM range(3) r(i)"
    )
    fed.attach("a", halves)
    fed.attach("b", other)


def planned(fed, privacy: str, *, options="epochs = 4", join="JOIN"):
    return fed.explain(
        f"TRAIN MODEL m USING logistic_regression TARGET y WITH ({options}) "
        f"PRIVACY ({privacy}) FROM ({QUERY.format(join)})"
    )


def run(fed, plan):
    channel = Channel(fed._transport, Audit())
    return train(plan, channel, f"run{next(RUNS)}", Progress("m", 1, False)), channel


def test_a_run_has_the_noise_of_its_join(database: Open) -> None:
    with sqlfl.connect() as fed:
        federation(fed, database)
        plan = planned(fed, f"epsilon = 20, predictions = 'exact', clip = 2, {BOUNDS}")
        trained, _ = run(fed, plan)
        own = trained.calibration
        assert own is not None
        visits, people = own.rounds[0], own.rounds[1]
        assert (visits.copies, visits.partners, visits.clients) == (1, {1: 1}, 2)
        assert (people.copies, people.partners) == (20, {0: 20})
        assert visits.gradients == people.gradients == 4
        # a person moves the slopes of 20 visits, by 1 each, for each visit has one label, and the
        # intercept's: every epoch
        assert (people.one_sided, people.one_sided_slopes) == ({0}, True)
        assert (visits.one_sided, visits.one_sided_slopes) == (frozenset(), True)
        z = own.multipliers[1]
        mu = 4 * (2**2 + 20**2 + 20**2) / z**2
        events = own.events[1]
        assert sum(e.count / e.multiplier**2 for e in events) == pytest.approx(mu)
        assert own.epsilons[1] == pytest.approx(20, rel=1e-3)
        assert own.epsilons[0] < 5
        assert own.training.rounds[0].noise == pytest.approx(z * 2 / np.sqrt(2), rel=1e-5)
        assert trained.dropped == 0
        assert "dropped" not in trained.metrics


@examples(12)
@given(joins(), st.integers(1, 3), st.integers(0, 99))
def test_rows_whose_labels_are_of_one_class(join, classes: int, seed: int) -> None:
    mapping, virtual = join
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, len(mapping[3]))
    if seed % 2:
        labels = mapping[3] % classes  # the label is of slot 3
    training = np.flatnonzero(generator.random(len(labels)) < 0.8)
    target = Targets(labels, tuple("abc"[:classes]))
    for slot, rows in mapping.items():
        part = _Part(rows[training], virtual[slot], 1.0)
        one = all(len({*labels[training][part.rows == r]}) <= 1 for r in range(SIZES[slot]))
        assert _one_class(part, target, training) == one
        assert one or slot != 3 or not seed % 2


def test_joined_rows_beyond_the_limit_are_dropped_and_counted(database: Open) -> None:
    privacy = f"epsilon = 20, max_fan_out = 5, predictions = 'gaussian', {BOUNDS}"
    with sqlfl.connect() as fed:
        federation(fed, database)
        trained, _ = run(fed, planned(fed, privacy))
        assert trained.dropped == trained.metrics["dropped"] == 15
        assert trained.metrics["rows"] == 15
        assert trained.calibration is not None
        assert trained.calibration.rounds[1].copies == 5
        # nobody's rows are not limited: those of visits whose person is not in u stay
        trained, _ = run(fed, planned(fed, privacy, join="LEFT JOIN"))
        assert trained.dropped == 15
        assert trained.metrics["rows"] == 25


@pytest.mark.parametrize("join", ["JOIN", "LEFT JOIN"])
def test_draws_are_counted_of_all_joined_rows(join: str, database: Open) -> None:
    """Those for validation too; a virtual row is nobody's, and draws more often."""
    text = (
        "TRAIN MODEL m USING mlp_classifier TARGET y WITH (algorithm = 'pbm', epochs = 2, "
        "embedding = 3, batch_size = 8, validation_fraction = 0.4) PRIVACY (bins = 4, theta = "
        f"0.1, noise_multiplier = 2, {BOUNDS}) FROM ({QUERY.format(join)})"
    )
    with sqlfl.connect() as fed:
        federation(fed, database)
        trained, _ = run(fed, fed.explain(text))
        own = trained.calibration
        assert own is not None
        assert [own.rounds[slot].draws for slot in (0, 1)] == [2 * 1, 2 * 20]
        assert [own.rounds[slot].copies for slot in (0, 1)] < [1, 20]
        for slot in (0, 1):
            planned = own.rounds[slot]
            assert (planned.outputs, planned.honest, planned.predictions) == (3, 1, 0)
            assert own.events[slot][-1].count == 3 * planned.draws
            noise = own.training.rounds[slot]
            assert (noise.bins, noise.theta, noise.prediction_clip) == (4, 0.1, 0.0)
        assert own.training.intercept_noise == 0.0


def test_outputs_are_scores_where_no_head_follows(database: Open) -> None:
    text = (
        "TRAIN MODEL m USING mlp_regressor TARGET x WITH (algorithm = 'pbm', epochs = 1, head = "
        "'none') PRIVACY (bins = 4, theta = 0.1, honest_parties = 2, feature_bounds = "
        "{'z': [-1, 1]}) FROM (SELECT t.x, t.y, u.z FROM a.t JOIN b.u ON t.k = u.k)"
    )
    with sqlfl.connect() as fed:
        federation(fed, database)
        trained, _ = run(fed, fed.explain(text))
        assert trained.calibration is not None
        planned = trained.calibration.rounds[1]
        assert (planned.outputs, planned.honest, planned.draws) == (1, 2, 20)
        assert trained.calibration.training.rounds[1].clip == 0.0


def test_virtual_rows_are_no_reason_for_noise(database: Open) -> None:
    """In batches they occur more often than rows that are somebody's; that is no mismatch."""
    privacy = f"epsilon = 20, predictions = 'exact', max_fan_out = 2, {BOUNDS}"
    with sqlfl.connect() as fed:
        federation(fed, database)
        plan = planned(fed, privacy, options="epochs = 4, batch_size = 4", join="LEFT JOIN")
        trained, _ = run(fed, plan)
        assert trained.calibration is not None
        assert trained.calibration.rounds[1].copies == 2
        assert trained.calibration.rounds[1].gradients == 8


def test_the_default_clip_is_of_the_size_of_gradients(database: Open) -> None:
    """Joined rows per row, and what a number's residuals are about."""
    with sqlfl.connect() as fed:
        federation(fed, database)
        trained, _ = run(fed, planned(fed, f"epsilon = 20, predictions = 'exact', {BOUNDS}"))
        assert trained.calibration is not None
        clips = [trained.calibration.rounds[slot].clip for slot in (0, 1)]
        assert clips == pytest.approx([1.0, 10.0])
        assert trained.calibration.training.intercept_clip == 1.0
        text = (
            "TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) PRIVACY (epsilon = "
            "20, predictions = 'exact', feature_bounds = {'z': [-1, 1]}) FROM "
            "(SELECT 50 * t.x AS y, u.z FROM a.t t JOIN b.u u ON t.k = u.k)"
        )
        trained, _ = run(fed, fed.explain(text))
        assert trained.calibration is not None
        spread = np.std([50 * np.sin(i) for i in range(40) if max(i - 15, 0) % 5 < 3])
        assert trained.calibration.rounds[1].clip == pytest.approx(10.0 * spread)
        assert not trained.calibration.rounds[1].one_sided_slopes  # residuals have either sign
        assert trained.calibration.training.intercept_clip == pytest.approx(spread)
        noise = trained.calibration.training.intercept_noise
        assert noise == pytest.approx(trained.calibration.multipliers[1] * spread, rel=1e-5)


@pytest.mark.parametrize("given", [None, 3.0])
def test_predictions_are_clipped_to_the_spread_of_the_labels(
    given: float | None, database: Open
) -> None:
    """A model of the target in other units has the same ε, and noise in these units."""
    found = []
    for factor in (1, 1000):
        with sqlfl.connect() as fed:
            federation(fed, database)
            own = "" if given is None else f", prediction_clip = {given * factor}"
            text = (
                "TRAIN MODEL y USING linear_regression TARGET y WITH (epochs = 2) PRIVACY (epsilon "
                f"= 20, predictions = 'gaussian'{own}, feature_bounds = {{'z': [-1, 1]}}) FROM "
                f"(SELECT {factor} * t.x AS y, u.z FROM a.t t JOIN b.u u ON t.k = u.k)"
            )
            trained, _ = run(fed, fed.explain(text))
            assert trained.calibration is not None
            found.append(trained.calibration)
    small, large = (calibration.training.rounds[1] for calibration in found)
    spread = np.std([np.sin(i) for i in range(40) if max(i - 15, 0) % 5 < 3])
    assert small.prediction_clip == pytest.approx(given or 4.0 * spread)
    assert large.prediction_clip == pytest.approx(1000 * small.prediction_clip)
    assert large.prediction_noise == pytest.approx(1000 * small.prediction_noise)
    assert found[0].epsilons == pytest.approx(found[1].epsilons)


def test_the_noise_of_labels_is_no_spread_of_theirs() -> None:
    clean = Privacy(label_epsilon=2.0, label_bounds=(0.0, 10.0))
    assert _unnoised(np.hypot(3.0, np.sqrt(2) * 5.0), clean) == pytest.approx(3.0)
    assert _unnoised(4.0, clean) == pytest.approx(0.4)  # less than the noise has, by chance
    assert _unnoised(3.0, Privacy(epsilon=1.0)) == 3.0


def test_rows_for_validation_count_nothing(database: Open) -> None:
    with sqlfl.connect() as fed:
        federation(fed, database)
        options = "epochs = 4, batch_size = 8, validation_fraction = 0.4"
        trained, _ = run(
            fed, planned(fed, f"epsilon = 20, predictions = 'exact', {BOUNDS}", options=options)
        )
        assert trained.calibration is not None
        own = trained.calibration.rounds[1]
        assert own.copies <= trained.metrics["rows"] < 30
        assert own.steps == 4 * -(-trained.metrics["rows"] // 8)


def test_a_budget_that_the_join_makes_impossible_is_refused_before_any_round(
    database: Open,
) -> None:
    with sqlfl.connect() as fed:
        federation(fed, database)
        plan = planned(
            fed, f"epsilon = 0.5, predictions = 'exact', {BOUNDS}", options="epochs = 100"
        )
        audit = Audit()
        with pytest.raises(sqlfl.PrivacyError, match="20 joined rows"):
            train(plan, Channel(fed._transport, audit), "run", Progress("m", 1, False))
        kinds = {row["kind"] for row in audit.table().to_pylist()}
        assert "labels" in kinds
        assert "start" not in kinds


# -- what clients say ------------------------------------------------------------------------------


class Clients:
    """Answers SendReleases with `replies`, by slot."""

    def __init__(self, replies) -> None:
        self.replies = replies
        self.asked: list = []

    def exchange(self, requests):
        self.asked += list(requests)
        assert all(isinstance(m, SendReleases) for m in requests.values())
        return {address: self.replies[address[1]] for address in requests}


def released(plan, own, slot: int, **changes):
    """All that was planned of a slot."""
    planned, noise = own.rounds[slot], own.training.rounds[slot]
    honest = Releases(
        "run",
        slot,
        labels=(plan.privacy.label_epsilon or 0.0) if plan.ucq.slots[slot].target else 0.0,
        statistics=0.0,
        gradients=planned.gradients,
        clip=noise.clip,
        noise=noise.noise,
        predictions=planned.predictions,
        prediction_clip=noise.prediction_clip,
        prediction_noise=noise.prediction_noise,
        moments=planned.moments,
        row_bound=noise.row_bound,
        moments_noise=noise.moments_noise,
    )
    return replace(honest, **changes)


def test_releases_that_were_not_planned_are_found(database: Open) -> None:
    privacy = f"label_epsilon = 1, epsilon = 8, predictions = 'gaussian', {BOUNDS}"
    with sqlfl.connect() as fed:
        federation(fed, database)
        plan = planned(fed, privacy, options="algorithm = 'admm', epochs = 3")
        trained, channel = run(fed, plan)
        own = trained.calibration
        assert own is not None
        joined = prepare(plan, channel, "other")
        protection = protect(plan, joined, targets(plan, joined, channel, "other"))
        assert protection is not None
        assert protection.calibration.events == own.events
        everyone = {a for slot in joined.slots.values() for a in slot.addresses}

        check = _checker(plan, own, joined, protection, everyone)
        check()
        check(0, gradients=1, predictions=2)  # interrupted
        for slot, changes in (
            (0, {"labels": 0.0}),
            (0, {"labels": 2.0}),
            (1, {"labels": 1.0}),
            (1, {"noise": own.training.rounds[1].noise * 0.99}),
            (0, {"clip": own.training.rounds[0].clip * 1.01}),
            (1, {"prediction_noise": 0.0}),
            (1, {"prediction_clip": 2.0}),
            (1, {"gradients": own.rounds[1].gradients + 1}),
            (1, {"predictions": own.rounds[1].predictions + 1}),
            (0, {"gradients": 0}),
            (0, {"predictions": 0}),
            (1, {"moments": 2}),
            (1, {"moments_noise": 0.0}),
            (1, {"row_bound": 9.0}),
            (0, {"statistics": 1.0}),
        ):
            with pytest.raises(PartyError):
                check(slot, **changes)


def _checker(plan, own, joined, protection, told):
    def check(wrong: int = -1, **changes) -> None:
        replies = {
            slot: released(plan, own, slot, **(changes if slot == wrong else {})) for slot in (0, 1)
        }
        clients = Clients(replies)
        check_run(plan, joined, protection, clients, "other", told)
        assert len(clients.asked) == 3

    return check


def test_releases_without_a_plan_are_found(database: Open) -> None:
    """With labels noised alone no client noises anything else."""
    with sqlfl.connect() as fed:
        federation(fed, database)
        plan = planned(fed, "label_epsilon = 1")
        trained, channel = run(fed, plan)
        assert trained.calibration is None
        assert channel.rounds
        joined = prepare(plan, channel, "other")
        nothing = [0.0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0, 0.0]
        honest = {0: Releases("run", 0, 1.0, *nothing), 1: Releases("run", 1, 0.0, *nothing)}
        check_run(plan, joined, None, Clients(honest), "other", ())
        for slot, changes in ((0, {"labels": 0.0}), (1, {"gradients": 1}), (1, {"noise": 0.1})):
            replies = honest | {slot: replace(honest[slot], **changes)}
            with pytest.raises(PartyError):
                check_run(plan, joined, None, Clients(replies), "other", ())


@pytest.mark.parametrize("fault", ["less noise", "an epoch more"])
def test_a_client_that_releases_otherwise_has_no_model(
    fault: str, database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "less noise":
        read = SgdConfiguration.from_json

        def weaker(text: str) -> SgdConfiguration:
            own = read(text)
            assert own.privacy is not None
            return replace(own, privacy=replace(own.privacy, noise=own.privacy.noise / 2))

        monkeypatch.setattr(SgdConfiguration, "from_json", weaker)
    else:
        counts = ReleaseGuard.counts.fget  # type: ignore[attr-defined]
        more = property(lambda guard: (counts(guard)[0] + 1, *counts(guard)[1:]))
        monkeypatch.setattr(ReleaseGuard, "counts", more)
    with sqlfl.connect() as fed:
        federation(fed, database)
        with pytest.raises(PartyError, match="not planned"):
            fed.sql(
                "TRAIN MODEL m USING logistic_regression TARGET y WITH (epochs = 2) "
                f"PRIVACY (epsilon = 8, predictions = 'exact', {BOUNDS}) "
                f"FROM ({QUERY.format('JOIN')})"
            )
        assert len(fed.sql("SHOW MODELS")) == 0


def test_who_was_sent_residuals_is_noted() -> None:
    class Silent:
        def exchange(self, requests):
            return dict.fromkeys(requests)

    channel = Watched(Silent())
    parts = {n: np.full((2, 1), n, np.float32) for n in (0, 1)}
    asked = {("client", n): Residuals("run", n, part) for n, part in parts.items()}
    assert channel.exchange(asked).keys() == asked.keys()
    assert channel.told == {("client", 1)}
