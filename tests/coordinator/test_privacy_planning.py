"""EVALUATE of private models: what it tells of labels, and with PRIVACY that it tells no more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import OptionError, PartyError, PlanError
from sqlfl.coordinator.privacy_planning import accuracy_estimate
from sqlfl.messages import Labels
from sqlfl.messages.wire import decode
from sqlfl.options.privacy import Privacy
from sqlfl.party.slot_state import SlotState
from sqlfl.privacy.mechanisms import keep_probability, laplace_keep
from sqlfl.privacy.samplers import randomised_response
from tests.conftest import Open
from tests.open_databases import in_memory
from tests.test_border import Tap, assert_disclosed, tapped

VISITS = (
    "CREATE TABLE visits AS SELECT i AS id, i % 7 AS age, (i * 5) % 7 > 3 AS ill, i % 4 AS cost, "
    "['mild', 'bad', 'worse'][1 + i % 3] AS state FROM range(120) r(i)"
)
TESTS = "CREATE TABLE tests AS SELECT i % 120 AS id, i % 5 AS sugar FROM range(200) r(i)"
JOIN = "FROM clinic.visits v JOIN lab.tests t USING (id)"
ILL = f"SELECT v.age, t.sugar, v.ill {JOIN}"
COST = f"SELECT v.age, t.sugar, v.cost {JOIN}"
STATE = f"SELECT v.age, t.sugar, v.state {JOIN}"


def train(privacy: str, query: str = ILL, kind: str = "logistic_regression") -> str:
    target = query.split()[3].removeprefix("v.")
    return f"TRAIN MODEL m USING {kind} TARGET {target} WITH (epochs = 2) {privacy} FROM ({query})"


@pytest.fixture
def clinic(database: Open) -> Iterator[tuple[sqlfl.Federation, Tap]]:
    parties = {"clinic": [database(VISITS)], "lab": [database(TESTS)]}
    with tapped(parties) as found:
        yield found


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[sqlfl.Federation, Tap]]:
    """With a model m of who is ill, trained without PRIVACY: for statements that change nothing."""
    with in_memory() as visits, in_memory() as tests:
        visits.execute(VISITS)
        tests.execute(TESTS)
        with tapped({"clinic": [visits], "lab": [tests]}) as (fed, tap):
            fed.sql(train(""))
            yield fed, tap


def asked(fed: sqlfl.Federation, tap: Tap, statement: str) -> tuple[sqlfl.Result, np.ndarray]:
    """The result, and the labels that left for it, by row of the clinic's: ill or not, sorted."""
    with tap.taken() as recorded:
        result = fed.sql(statement)
    (labels,) = (m for m in (decode(r.data) for r in recorded) if isinstance(m, Labels))
    return result, np.sort(labels.codes if labels.classes else labels.values)


def test_noised_labels_are_those_of_training(clinic: tuple[sqlfl.Federation, Tap]) -> None:
    """The same draw, so that it costs nothing; PRIVACY stands before FROM or after the query."""
    fed, tap = clinic
    _, trained = asked(fed, tap, train("PRIVACY (label_epsilon = 1)"))
    loss = fed.model("m").metrics["loss"]
    clause = "PRIVACY (label_epsilon = 1)"
    for text in (
        f"EVALUATE MODEL m {clause} FROM ({ILL})",
        f"EVALUATE MODEL m FROM ({ILL}) {clause}",
    ):
        result, labels = asked(fed, tap, text)
        np.testing.assert_array_equal(labels, trained)
        (row,) = result.arrow().to_pylist()
        assert row["labels"] == "noised, ε = 1"
        assert row["rows"] == 200
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        assert "of noised labels" in repr(result)
        assert "of noised labels" in result._repr_html_()


def test_another_epsilon_is_another_draw(clinic: tuple[sqlfl.Federation, Tap]) -> None:
    """Of numbers, of which no two are equal by chance: it is not the same noise, halved, either."""
    fed, tap = clinic
    fed.sql(train("", COST, "linear_regression"))
    one, again, other = (
        asked(
            fed,
            tap,
            f"EVALUATE MODEL m PRIVACY (label_epsilon = {epsilon}, label_bounds = [0, 3]) "
            f"FROM ({COST})",
        )[1]
        for epsilon in (1, 1, 2)
    )
    np.testing.assert_array_equal(again, one)
    for cost in range(4):
        halved = cost + (one - cost) / 2
        assert not np.intersect1d(halved.round(12), other.round(12)).size
    assert not np.intersect1d(one, other).size


def test_traffic_is_what_explain_says(plain: tuple[sqlfl.Federation, Tap]) -> None:
    fed, tap = plain
    text = f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) FROM ({ILL})"
    plan = fed.explain(text)
    with tap.taken() as recorded:
        fed.sql(text)
    homes = {name: [s._cursors._con for s in fed._servers.values() if s.client.party == name]
             for name in ("clinic", "lab")}  # fmt: skip
    assert_disclosed(plan, recorded, homes)  # type: ignore[arg-type]
    said = " ".join(str(plan).split())
    details = " ".join(str(plan.details).split())
    assert "Labels: (1, 0)-DP for one row of" in details
    assert "of all that leaves its client in this evaluation" in details
    assert "drawn anew in each session" in said
    assert "labels are in clear" not in said


def test_numbers_and_classes_that_are_given(clinic: tuple[sqlfl.Federation, Tap]) -> None:
    fed, _ = clinic
    fed.sql(train("", COST, "linear_regression"))
    clause = "PRIVACY (label_epsilon = 1, label_bounds = [0, 3])"
    found = fed.sql(f"EVALUATE MODEL m {clause} FROM ({COST})")
    assert found.columns == ["rows", "loss", "rmse", "mae", "r2", "labels"]
    assert found.notes == ("Loss and metrics are of noised labels.",)
    fed.sql("DROP MODEL m")
    fed.sql(train("", STATE, "softmax_regression"))
    with pytest.raises(OptionError, match="needs label_classes for state"):
        fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) FROM ({STATE})")
    listed = "label_classes = ['bad', 'mild', 'worse']"
    (row,) = fed.sql(
        f"EVALUATE MODEL m PRIVACY (label_epsilon = 1, {listed}, label_mechanism = 'laplace') "
        f"FROM ({STATE})"
    ).arrow().to_pylist()  # fmt: skip
    assert row["labels"] == "noised, ε = 0.5486"
    fed.sql("DROP MODEL m")
    fed.sql(train(f"PRIVACY (label_epsilon = 1, {listed})", STATE, "softmax_regression"))
    # those of its training are public
    fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) FROM ({STATE})")
    more = "label_classes = ['bad', 'mild', 'worse', 'dead']"
    with pytest.raises(OptionError, match=r"\['dead'\], which model m does not know") as raised:
        fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1, {more}) FROM ({STATE})")
    assert raised.value.hint == "the model knows bad, mild, worse"


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("epsilon = 1", "PRIVACY option epsilon does not apply to EVALUATE"),
        (
            "label_epsilon = 1, predictions = 'gaussian'",
            "option predictions does not apply to EVAL",
        ),
        ("labl_epsilon = 1", "there is no PRIVACY option labl_epsilon"),
        ("label_classes = ['a', 'b']", "PRIVACY asks for no noise"),
        ("label_epsilon = 1, label_bounds = [0, 1]", "label_bounds does not apply to logistic"),
    ],
)
def test_what_does_not_apply_is_refused(
    clause: str, message: str, plain: tuple[sqlfl.Federation, Tap]
) -> None:
    fed, tap = plain
    with tap.taken() as recorded, pytest.raises(OptionError, match=message) as raised:
        fed.sql(f"EVALUATE MODEL m PRIVACY ({clause}) FROM ({ILL})")
    assert raised.value.span is not None
    assert not [r for r in recorded if decode(r.data).kind in ("labels", "predictions")]


def test_rows_must_be_told_from_copies(plain: tuple[sqlfl.Federation, Tap]) -> None:
    fed, _ = plain
    two = (
        "(SELECT a.* FROM clinic.visits a JOIN clinic.visits b ON a.id = b.id AND a.age > b.cost) v"
    )
    query = ILL.replace("clinic.visits v", two)
    with pytest.raises(PlanError, match="labels are noised once per row"):
        fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) FROM ({query})")


def test_predict_sends_no_labels(plain: tuple[sqlfl.Federation, Tap]) -> None:
    """Also where its query has them."""
    fed, tap = plain
    with tap.taken() as recorded:
        fed.sql(f"PREDICT MODEL m FROM ({ILL})")
    up = {decode(r.data).kind for r in recorded if r.direction == "up"}
    assert up == {"tables", "columns", "prepared", "join_keys", "ready", "predictions", "findings"}


def test_a_client_that_does_not_noise_is_noticed(
    plain: tuple[sqlfl.Federation, Tap], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, _ = plain
    noised = SlotState.labels

    def told_otherwise(own: SlotState) -> Labels:
        found = noised(own)
        own.noised_labels = 7.0
        return found

    monkeypatch.setattr(SlotState, "labels", told_otherwise)
    with pytest.raises(PartyError, match=r"labels were noised with ε = 7\.0, planned 1\.0"):
        fed.sql(f"EVALUATE MODEL m PRIVACY (label_epsilon = 1) FROM ({ILL})")


# -- of true labels -------------------------------------------------------------------------------


def test_what_evaluate_tells_is_said_where_people_look(
    clinic: tuple[sqlfl.Federation, Tap],
) -> None:
    """In EXPLAIN, on the result, on the card; and it is true: the loss of one row is its label."""
    fed, tap = clinic
    fed.sql(train("PRIVACY (label_epsilon = 1)"))
    text = f"EVALUATE MODEL m FROM ({ILL})"
    result, labels = asked(fed, tap, text)
    assert labels.mean() == pytest.approx(np.mean([(i * 5) % 7 > 3 for i in range(120)]), abs=0.05)
    words = "the metrics of one row tell its label"
    for shown in (repr(result), result._repr_html_(), str(fed.explain(text))):
        assert words in " ".join(shown.split())
    assert "those of one row tell its label" not in " ".join(str(fed.explain(text)).split())
    assert "one row's loss tells its label" in " ".join(repr(fed.model("m")).split())
    assert "EVALUATE sends true labels unless it has PRIVACY (label_epsilon = ...)" in " ".join(
        repr(fed.model("m")).split()
    )
    for row in (85, 90, 101):
        one = f"{ILL} WHERE v.id = {row}"
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({one})").arrow().to_pylist()
        (scored,) = fed.sql(f"PREDICT MODEL m FROM ({one})").arrow().to_pylist()
        ill = (row * 5) % 7 > 3
        share = scored["probability_true" if ill else "probability_false"]
        assert found["log_loss"] == pytest.approx(-np.log(share), rel=1e-5)


def test_a_model_without_privacy_needs_no_note(clinic: tuple[sqlfl.Federation, Tap]) -> None:
    fed, _ = clinic
    fed.sql(train(""))
    result = fed.sql(f"EVALUATE MODEL m FROM ({ILL})")
    assert result.notes == ()
    assert result.columns == ["rows", "loss", "accuracy", "auc", "log_loss"]
    shown = fed.sql("SHOW MODELS").arrow().to_pylist()
    fed.sql("DROP MODEL m")
    fed.sql(train("PRIVACY (label_epsilon = 1)"))
    shown += fed.sql("SHOW MODELS").arrow().to_pylist()
    assert [row["noised"] for row in shown] == [None, "labels"]


@pytest.mark.parametrize(
    ("mechanism", "keep", "classes"),
    [("randomized_response", keep_probability, 2), ("laplace", laplace_keep, 3)],
)
def test_the_estimate_of_accuracy_is_right_on_average(
    mechanism: str, keep: object, classes: int
) -> None:
    assert callable(keep)
    generator = np.random.default_rng(5)
    labels = generator.integers(0, classes, 60_000)
    guesses = np.where(generator.random(len(labels)) < 0.8, labels, (labels + 1) % classes)
    words = generator.integers(0, 2**64, (len(labels), 2), np.uint64)
    noised = randomised_response(labels, classes, keep(1.0, classes), words)
    privacy = Privacy(
        label_epsilon=1.0, label_mechanism=mechanism, label_classes=tuple("abc"[:classes])
    )
    estimate = accuracy_estimate(privacy, float(np.mean(noised == guesses)))
    assert estimate == pytest.approx(np.mean(labels == guesses), abs=0.03)
    assert np.mean(noised == guesses) < 0.7
