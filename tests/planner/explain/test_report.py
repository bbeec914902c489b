"""The privacy report: an ε where the mechanisms give one, `none` wherever they do not."""

from __future__ import annotations

import functools
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlglot import exp, parse_one

import sqlfl
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.contract.schema import Client
from sqlfl.options.privacy import Privacy
from sqlfl.planner.explain.card import PrivacyReport, Release, upwards
from sqlfl.planner.explain.render import WIDTH
from sqlfl.planner.explain.report import expected_report, report_of
from sqlfl.planner.explain.setting import PrivacyClaim, ReportSetting, derived, repeated, unit_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.calibration import calibrate
from sqlfl.privacy.mechanisms import label_epsilon
from tests import goldens
from tests.conftest import Open
from tests.depth import SEED, THOROUGH
from tests.planner import plans

GOLDEN = Path(__file__).parents[2] / "fixtures" / "privacy"
CLASSES = ("false", "true")
OPTIONS: dict[str, object] = {"algorithm": "sgd", "batch_size": None, "learning_rate": 0.1}
STATISTICS, PREDICTIONS = ("none", "bounds", "noised"), ("exact", "gaussian")
FEATURES = ("statistics", "second moments", "predictions", "gradients", "parameters",
            "history and metrics", "the model's parameters")  # fmt: skip
PARTS_OF_THE_MODEL = ("statistics", "the model's parameters")


def plan_of(privacy: Privacy | None, at: str | None = None, cards: bool = False) -> FederatedPlan:
    ucq = plans.weighted(plans.cards()) if cards else plans.flights()
    options = OPTIONS | ({"validation_fraction": 0.2} if cards else {})
    kind = "linear_regression" if cards else "logistic_regression"
    return replace(plans.train(ucq, kind, options, at=at), privacy=privacy)


def rounds_of(plan: FederatedPlan) -> list[PlannedReleases]:
    slots = [slot for slot in plan.ucq.slots if slot.features]
    return [
        PlannedReleases(
            slot=slot.index,
            gradients=20,
            predictions=20,
            moments=0,
            moments_sensitivity=0.0,
            clip=1.0 + number,
            clients=len(slot.clients),
            copies=1 + 3 * number,
            partners={other.index: 1 + number for other in slots if other is not slot},
            steps=20,
            whole=True,
            epochs=20,
        )
        for number, slot in enumerate(slots)
    ]


def reported(plan: FederatedPlan, done: bool) -> PrivacyReport:
    if not done:
        return expected_report(plan)
    asked = plan.privacy
    private = asked is not None and asked.features
    return report_of(plan, calibrate(asked, rounds_of(plan)) if asked and private else None)


def configurations() -> Iterator[tuple[Callable[[], FederatedPlan], bool]]:
    """All ways to ask, before a run and after it."""
    features: list[dict[str, object]] = [{}]
    for budget, statistics, predictions in itertools.product(
        ({"epsilon": 4.0}, {"noise_multiplier": 30.0}), STATISTICS, PREDICTIONS
    ):
        features.append(budget | {"statistics": statistics, "predictions": predictions})
    for more, labels, cards, done in itertools.product(
        features, (False, True), (False, True), (False, True)
    ):
        own = {}
        if labels:
            own = {"label_epsilon": 2.0, "label_mechanism": "laplace"}
            own |= {"label_bounds": (0.0, 5.0)} if cards else {"label_classes": CLASSES}
        privacy = Privacy(**more, **own) if more or own else None  # type: ignore[arg-type]
        for at in (None, "bank" if cards else "airline"):
            yield functools.partial(plan_of, privacy, at, cards), done


@functools.cache
def cases() -> list[tuple[FederatedPlan, bool]]:
    """Other ones with another seed; 5 is prime to the numbers of values, so each value is met."""
    first, step = (0, 1) if THOROUGH else (SEED % 5, 5)
    return [(make(), done) for make, done in list(configurations())[first::step]]


# -- what may be claimed --------------------------------------------------------------------------


def true_epsilon(plan: FederatedPlan) -> float | None:
    """Of the labels."""
    asked = plan.privacy
    if asked is None or asked.label_epsilon is None:
        return None
    classes = None if asked.label_classes is None else len(asked.label_classes)
    return label_epsilon(asked.label_mechanism, asked.label_epsilon, classes)


def check(plan: FederatedPlan, report: PrivacyReport) -> None:
    """No ε but where the mechanisms give one."""
    asked, text = plan.privacy or Privacy(), " ".join(str(report).split())
    assert report.releases
    for release in report.releases:
        if release.kind == "labels":
            assert release.epsilon == true_epsilon(plan), release
            assert release.delta == (0.0 if asked.labels else None), release
        elif release.kind in FEATURES and asked.features and asked.statistics != "none":
            alone = release.kind in PARTS_OF_THE_MODEL and release.observer == "users of the model"
            assert (release.delta is not None) == (alone or asked.predictions == "gaussian")
            assert release.delta in (None, asked.delta)
        else:
            assert (release.epsilon, release.delta, release.pending) == (None, None, False), release
        if release.epsilon is not None and release.kind != "labels" and asked.epsilon is not None:
            assert release.epsilon <= asked.epsilon * (1 + 1e-9), release
        assert str(release.protection) != "none" or "ε" not in release.mechanism + release.note
    featured = asked.features and asked.statistics != "none"
    assert ("Features: (" in text) == featured
    assert ("nothing but the parameters" in text) == (featured and asked.predictions == "exact")
    assert ("Labels: (" in text) == asked.labels
    assert ("Label and features of" in text) == (asked.labels and featured)
    assert ("-DP" in text) == (asked.labels or featured)
    assert ("nothing here is differentially private" in text) == (plan.privacy is None)
    unclaimed = not featured or asked.predictions == "exact"
    assert ("Features: none" in text) == (unclaimed and plan.privacy is not None)
    stays = "sent to nobody" in text
    assert stays == (plan.at is not None and not asked.labels)
    seen = "labels in clear" in text or "Labels: none, the coordinator" in text
    assert seen == (not asked.labels and not stays)
    check_short(report, featured)
    assert report.noised == (
        *(["labels"] if asked.labels else []),
        *(["predictions"] if asked.features and asked.predictions == "gaussian" else []),
    )


def check_short(report: PrivacyReport, featured: bool) -> None:
    """Its pairs of (ε, δ) are those of the promises, and it says none where they do."""
    long, short = (
        set(re.findall(r"\(\S+, \S+\)-DP", " ".join(texts)))
        for texts in (report.promises, report.summary)
    )
    assert long == short
    if not report.assumptions:
        assert report.summary == report.promises
        return
    labels, features = report.summary[:2]
    noised = "labels" in report.noised
    assert labels.startswith("Labels: " + ("(" if noised else "none"))
    assert features.startswith("Features: " + ("(" if featured else "none"))
    exact = featured and "predictions" not in report.noised
    assert ("none against the coordinator" in report.short) == exact
    assert len(report.short.splitlines()) <= 12
    assert max(map(len, report.short.splitlines())) <= 96


def test_no_number_is_claimed_where_there_is_none() -> None:
    for plan, done in cases():
        check(plan, reported(plan, done))


def _always_claimed(own: ReportSetting) -> dict[int, PrivacyClaim]:
    return {slot.index: PrivacyClaim(1.0, own.privacy.delta) for slot in own.slots}


def _always_together(own: ReportSetting) -> bool:
    return own.privacy.features


def _nominal(own: ReportSetting) -> float | None:
    return own.privacy.label_epsilon


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("claims", _always_claimed), ("together", _always_together), ("label_epsilon", _nominal)],
)
def test_a_report_that_claims_too_much_is_caught(
    name: str, wrong: Callable[[ReportSetting], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above fails for it; else it would show nothing."""
    monkeypatch.setattr(ReportSetting, name, property(wrong))
    assert any(fails(plan, done) for plan, done in cases())


def fails(plan: FederatedPlan, done: bool) -> bool:
    try:
        check(plan, reported(plan, done))
    except AssertionError:
        return True
    return False


def test_numbers_are_those_of_the_account() -> None:
    privacy = Privacy(epsilon=2.0, predictions="gaussian", statistics="bounds", clip=1.0)
    plan = plan_of(privacy, cards=True)
    account = calibrate(privacy, rounds_of(plan))
    report = report_of(plan, account)
    found = {release.epsilon for release in report.releases if release.epsilon is not None}
    assert found == {max(account.epsilons.values())}
    rounds = account.training.rounds[0]
    (gradients,) = [
        r for r in report.releases if (r.kind, r.observer) == ("gradients", "coordinator")
    ]
    assert f"clipped to {rounds.clip:.4g}" in gradients.mechanism
    assert f"standard deviation {rounds.noise:.4g} in the sum at each client" in gradients.mechanism
    assert "at most 20 times" in gradients.mechanism
    assert f"({upwards(max(account.epsilons.values()))}, 1e-06)-DP" in " ".join(str(report).split())


def test_the_exact_epsilon_of_laplace_over_classes() -> None:
    """Of nominal 1: 0.493 for two classes, 0.566 for ten."""
    for classes, number in ((CLASSES, "0.493"), (tuple("abcdefghij"), "0.566")):
        privacy = Privacy(label_epsilon=1.0, label_mechanism="laplace", label_classes=classes)
        text = str(expected_report(plan_of(privacy)))
        assert re.search(rf"ε\s=\s{number}\d?,\sδ\s=\s0", text), text
        assert f"Of {len(classes)} classes" in " ".join(text.split())
        assert "ε = 1," not in text


def test_an_account_belongs_to_what_was_asked() -> None:
    privacy = Privacy(epsilon=2.0, predictions="gaussian", statistics="bounds")
    plan = plan_of(privacy)
    account = calibrate(privacy, rounds_of(plan))
    with pytest.raises(InternalError):
        report_of(plan, None)
    with pytest.raises(InternalError):
        report_of(replace(plan, privacy=None), account)
    for epsilon, delta, pending in ((1.0, None, False), (None, 0.1, False), (1.0, 0.1, True)):
        with pytest.raises(InternalError):
            Release("labels", "coordinator", "", "", epsilon, delta, "", pending)
    with pytest.raises(InternalError):
        Release("labels", "coordinator", "", "", float("inf"), 0.0)
    text = expected_report(plan).to_json()
    for broken in (text.replace('"delta":1e-06', '"delta":null'), text[:-9], "{}", '"text"'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            PrivacyReport.from_json(broken)


def test_what_is_fixed_is_said() -> None:
    privacy = Privacy(epsilon=2.0, predictions="gaussian", statistics="bounds")
    text = " ".join(str(expected_report(plan_of(privacy, cards=True))).split())
    rest = "the weights and the choice of rows for validation fixed"
    assert f"with the join graph, the labels, {rest}" in text
    text = " ".join(str(expected_report(plan_of(privacy))).split())
    assert "with the join graph and the labels fixed" in text
    both = replace(privacy, label_epsilon=1.0, label_classes=CLASSES)
    text = " ".join(str(expected_report(plan_of(both))).split())
    assert "Labels: (1, 0)-DP for one row of f (airline.flights), against" in text
    assert "That holds with the join graph and the features fixed" in text
    both = "Label and features of one row of f (airline.flights): (3, 1e-06)-DP, against the same."
    assert f"{both} That holds with the join graph fixed." in text


def test_labels_that_are_drawn_anew_in_each_session() -> None:
    """Of a client without a place for its secret; with what sessions cost."""
    privacy = Privacy(label_epsilon=1.0, label_mechanism="laplace", label_classes=CLASSES)
    plan = plan_of(privacy)
    lasting = " ".join(str(expected_report(plan)).split())
    assert "anew in each session" not in lasting
    assert "shows the same noised labels, and adds nothing" in lasting
    (client,) = plan.ucq.slots[0].clients
    report = expected_report(replace(plan, fleeting={client: "is in memory"}))
    for text in (" ".join(str(report).split()), " ".join(report.short.split())):
        assert (
            "Labels are drawn anew in each session, and whenever the database is attached in it, "
            "for airline/0 is in memory: m draws are (m · 0.4935, 0)-DP together." in text
        )
    assert "adds nothing" not in str(report)
    assert "store=" in str(report)


def test_a_file_of_before_has_no_summary() -> None:
    report = expected_report(plan_of(Privacy(epsilon=2.0, statistics="bounds")))
    older = json.loads(report.to_json())
    del older["summary"]
    found = PrivacyReport.from_json(json.dumps(older))
    assert found.summary == ()
    assert " ".join(found.short.split()) == " ".join(report.promises)


def test_the_card_and_the_file_have_the_report(tmp_path: Path, database: Open) -> None:
    """Numbers, marks on metrics, and the same when the file is opened again."""
    rows = "range(60) r(i)"
    homes = {
        "a": database(f"CREATE TABLE t AS SELECT i, i / 60.0 AS x, i > 25 AS y FROM {rows}"),
        "b": database(f"CREATE TABLE u AS SELECT i, 1 - i / 60.0 AS z FROM {rows}"),
    }
    train = """
        TRAIN MODEL m USING logistic_regression TARGET y WITH (epochs = 2)
        PRIVACY (label_epsilon = 1, epsilon = 3, predictions = 'gaussian', delta = 1e-3,
                 feature_bounds = {'x': [0, 1], 'z': [0, 1]})
        FROM (SELECT t.x, u.z, t.y FROM a.t JOIN b.u USING (i))"""
    with sqlfl.Federation(tmp_path / "c.duckdb", progress=False) as fed:
        for party, con in homes.items():
            fed.attach(party, con, store=tmp_path / f"{party}.duckdb")
        expected = fed.explain(train).report
        fed.sql(train)
        report = fed.model("m").privacy
        card = dict(fed.sql("DESCRIBE MODEL m").fetchall())
    assert card["privacy"] == f"{report.short}\nIn full: fed.model('m').privacy"
    assert len(card["privacy"].splitlines()) <= 10
    assert card["accuracy"].endswith(" (of noised labels and predictions)")
    assert card["rows"] == "60"
    assert report.promises == tuple(p for p in report.promises if "none" not in p)
    assert {r.epsilon for r in report.releases if r.kind == "labels"} == {1.0}
    (epsilon,) = {r.epsilon for r in report.releases if r.kind == "predictions"}
    assert epsilon == pytest.approx(3, rel=1e-3)
    assert expected is not None
    assert "(3, 0.001)-DP" in " ".join(expected.promises)
    with sqlfl.Federation(tmp_path / "c.duckdb", progress=False) as fed:
        assert fed.model("m").privacy == report
        assert dict(fed.sql("DESCRIBE MODEL m").fetchall()) == card


# -- its faces ------------------------------------------------------------------------------------


def test_json_keeps_all_of_it() -> None:
    for plan, done in cases():
        report = reported(plan, done)
        text = report.to_json()
        assert PrivacyReport.from_json(text) == report
        later = json.loads(text)
        later["releases"][0]["more"], later["more"] = 1, 2
        assert PrivacyReport.from_json(json.dumps(later)) == report
        assert str(PrivacyReport.from_json(text)) == str(report)


def test_html_is_a_table_of_all_releases() -> None:
    for plan, done in cases()[::7]:
        report = reported(plan, done)
        page = report._repr_html_()
        assert page.count("<tr>") == 1 + len(report.releases)
        shown = html.unescape(page)
        for text in (*report.promises, *report.assumptions):
            assert text in shown
    name = PrivacyReport((Release("<b>", "x", "", "", None, None),), ("<i>",))._repr_html_()
    assert "<b>" not in name
    assert "<i>" not in name


@pytest.mark.parametrize("name", ["none", "parameters", "together"])
def test_text(name: str) -> None:
    at, cards, done, privacy = {
        "none": ("bank", True, True, None),
        "parameters": (
            None,
            False,
            False,
            Privacy(noise_multiplier=3.0, clip=1.0, statistics="bounds"),
        ),
        "together": (
            None,
            True,
            True,
            Privacy(
                label_epsilon=1.0,
                label_mechanism="laplace",
                label_bounds=(0.0, 5.0),
                epsilon=1.0,
                predictions="gaussian",
                statistics="noised",
                max_fan_out=4,
            ),
        ),
    }[name]
    path = GOLDEN / f"{name}.txt"
    text = str(reported(plan_of(privacy, at, cards), done)) + "\n"
    goldens.check(path, text)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_numbers_are_rounded_upwards() -> None:
    for value in (1e-9, 0.123449, 0.99999, 1.0, 1.00001, 4.0, 9.9999, 12.3451, 12345.6, 1e9 + 1):
        shown = float(upwards(value))
        assert value * (1 - 1e-11) <= shown <= value * 1.001


# -- whose change ---------------------------------------------------------------------------------


def of_sql(sql: str) -> Slot:
    slot = plans.flights().slots[0]
    select = parse_one(sql, dialect="duckdb")
    assert isinstance(select, exp.Query)
    return replace(slot, fragments=(replace(slot.fragments[0], select=select),))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a, b > 1 AS sqlfl_target FROM t WHERE c = 2", False),
        ("SELECT a FROM main.t AS x", False),
        ("SELECT lower(a) AS a, b + c AS b, a = 'x' OR b IS NULL AS c, t AS d FROM t", False),
        ("SELECT mine(a) AS a FROM t", True),
        ("SELECT max(a) AS a FROM t GROUP BY b", True),
        ("SELECT row_number() OVER () AS a FROM t", True),
        ("SELECT t.a FROM t JOIN u USING (k)", True),
        ("SELECT t.a FROM t, u", True),
        ("SELECT DISTINCT a FROM t", True),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM t WHERE a > 3)", True),
        ("SELECT a FROM (SELECT b AS a FROM t LIMIT 3) AS s", True),
        ("SELECT unnest(a) AS a FROM t", True),
        ("WITH s AS (SELECT sum(a) AS a FROM t) SELECT a FROM s", True),
        ("SELECT max(a) AS a FROM t", True),
        ("SELECT max(a) OVER (PARTITION BY b) AS a FROM t", True),
        ("SELECT a FROM (SELECT max(a) OVER () AS a FROM t) AS t", True),
        ("SELECT a FROM t QUALIFY row_number() OVER (ORDER BY b) = 1", True),
        ("SELECT a FROM t AS x JOIN t AS y USING (k)", True),
        ("SELECT (SELECT max(u.a) FROM t AS u WHERE u.b = t.b) AS a FROM t", True),
        ("SELECT a FROM t WHERE a > ALL (SELECT b FROM t)", True),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM t)", True),
        ("SELECT a FROM t ORDER BY b LIMIT 3", True),
        ("SELECT a FROM t ORDER BY b OFFSET 3", True),
        ("SELECT a FROM t FETCH FIRST 3 ROWS ONLY", True),
        ("SELECT a FROM t TABLESAMPLE 10%", True),
        ("SELECT a FROM t USING SAMPLE 5", True),
        (
            "WITH RECURSIVE s AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM s) SELECT a FROM s",
            True,
        ),
        ("SELECT list(a) AS a FROM t", True),
        ("SELECT string_agg(a, ',') AS a FROM t", True),
        ("SELECT arg_max(a, b) AS a FROM t", True),
        ("SELECT quantile_cont(a, 0.5) AS a FROM t", True),
        ("SELECT u.a FROM t, unnest(t.l) AS u(a)", True),
        ("SELECT s.a FROM t, LATERAL (SELECT t.a + 1 AS a) AS s", True),
        ("SELECT a FROM t PIVOT (sum(x) FOR b IN ('u', 'v'))", True),
        ("SELECT a FROM t UNION ALL SELECT a FROM t", True),
        ("SELECT list_sum([a, b]) AS a FROM t", True),  # not known to be of the row alone
    ],
)
def test_rows_that_are_made_of_several_are_told(sql: str, expected: bool) -> None:
    assert derived(of_sql(sql)) is expected


def test_the_unit_names_the_table_where_its_rows_are_those_of_the_query() -> None:
    one, own = of_sql("SELECT a FROM t"), of_sql("SELECT a FROM f")
    assert unit_of(one, [one]) == "one row of f (airline.t)"
    assert unit_of(own, [own]) == "one row of airline.f"
    made = "one row that this SELECT gives as f"
    for text in (
        "WITH s AS (SELECT a FROM x.t) SELECT a FROM s, main.u",
        "SELECT a FROM (SELECT max(a) OVER () AS a FROM f) AS f",
    ):
        assert unit_of(of_sql(text), [of_sql(text)]) == made
    view = replace(own, fragments=(replace(own.fragments[0], rows=None),))
    assert unit_of(view, [view]) == made
    # joined with itself
    assert unit_of(own, [own, replace(own, index=1, name="g")]) == made


LABELS = Privacy(label_epsilon=1.0, label_classes=CLASSES)
PROTECTED = Privacy(epsilon=1.0, predictions="gaussian", statistics="bounds")
BOTH = replace(PROTECTED, label_epsilon=1.0, label_classes=CLASSES)
KEYS = "k AS sqlfl_key_0_0, h AS sqlfl_key_0_1"
BESIDE: tuple[tuple[str, Privacy, str], ...] = (
    (f"SELECT distance, carrier, late AS sqlfl_target, {KEYS} FROM t WHERE m = 1", BOTH, ""),
    (f"SELECT distance, carrier, late AS sqlfl_target, {KEYS} FROM t WHERE m = 1", LABELS, ""),
    (
        f"SELECT a + b AS distance, carrier, t.B > 15 AS sqlfl_target, {KEYS} FROM t",
        LABELS,
        "Beware: the label of f shares a column with feature distance of f, which this noise",
    ),
    (
        f"SELECT distance, carrier, b > 15 AS sqlfl_target, {KEYS} FROM t WHERE NOT b IS NULL",
        LABELS,
        "Beware: the label of f shares a column with a condition of WHERE or ON over f, which",
    ),
    (
        "SELECT distance, carrier, ill AS sqlfl_target, CASE WHEN ill THEN k END AS "
        "sqlfl_key_0_0, h AS sqlfl_key_0_1 FROM t",
        LABELS,
        "Beware: the label of f shares a column with a join key of f, which this noise",
    ),
    (
        f"SELECT distance, carrier, distance > 50 AS sqlfl_target, {KEYS} FROM t",
        PROTECTED,
        "Beware: feature distance of f shares a column with the label of f, which this noise",
    ),
    (
        f"SELECT a AS distance, a || b AS carrier, late AS sqlfl_target, {KEYS} FROM t WHERE a > 3",
        PROTECTED,
        "Beware: feature distance of f and feature carrier of f share a column with a condition "
        "of WHERE or ON over f, which this noise does not cover. Their ε is about changes",
    ),
    (
        f"SELECT distance, h AS carrier, late AS sqlfl_target, {KEYS} FROM t",
        PROTECTED,
        "Beware: feature carrier of f shares a column with a join key of f, which this noise",
    ),
    (
        f"SELECT distance, carrier, distance > 50 AS sqlfl_target, {KEYS} FROM t",
        BOTH,
        "The label of f and feature distance of f share a column: a change of its values "
        "changes both, and their ε add up.",
    ),
)


@pytest.mark.parametrize(("sql", "privacy", "expected"), BESIDE)
def test_what_is_not_noised_and_of_the_same_column(
    sql: str, privacy: Privacy, expected: str
) -> None:
    """It stands in EXPLAIN, in the report and on the card."""
    plan = plan_of(privacy)
    plan = replace(plan, ucq=replace(plan.ucq, slots=(of_sql(sql), *plan.ucq.slots[1:])))
    report = expected_report(plan)
    long, short = (" ".join(text.split()) for text in (str(report), report.short))
    assert expected in long
    assert expected in short
    told = "not cover." in long or "both, and their" in long
    assert told == bool(expected) == ("not cover." in short or "both, and their" in short)


def test_what_a_row_may_count_in_is_said() -> None:
    privacy = Privacy(epsilon=1.0, predictions="gaussian", statistics="bounds")
    plan = plan_of(privacy)
    f, w = plan.ucq.slots
    text = " ".join(str(expected_report(plan)).split())
    assert "one that its SELECT gives" not in text
    assert "several places of the join" not in text
    twice = replace(w, fragments=f.fragments)
    assert repeated([f, twice]) == ("airline.flights",)
    # parts of a union, as fragments of one client; not those of several
    part = replace(f.fragments[0], index=1)
    assert repeated([replace(f, fragments=(f.fragments[0], part))]) == ("airline.flights",)
    elsewhere = replace(part, client=Client("airline", 1))
    for other in (replace(part, virtual=True), replace(part, beside=0), elsewhere):
        assert repeated([replace(f, fragments=(f.fragments[0], other))]) == ()
    plan = replace(plan, ucq=replace(plan.ucq, slots=(f, twice)))
    assert "airline.flights: at several places" in " ".join(str(expected_report(plan)).split())
    view = replace(w, fragments=(replace(w.fragments[0], rows=None),))
    assert derived(view)
    grouped = of_sql("SELECT max(a) AS distance, k AS carrier FROM t GROUP BY k")
    plan = replace(plan, ucq=replace(plan.ucq, slots=(grouped, w)))
    text = " ".join(str(expected_report(plan)).split())
    assert "A row of f (airline.t) is one that its SELECT gives" in text
