"""How labels, features and metrics may leave: what an analyst gets under each mode, and is told
beforehand where that is nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import OptionError, PolicyError
from sqlfl.options.policies import TrainingPolicy, modes, strictest
from tests.conftest import Open
from tests.governance.clinic import GRANT, PATIENTS, QUERY, SICK, TESTS, TRAIN, ruled
from tests.governance.test_ledger import private

TOWERS = SICK.replace("logistic_regression", "mlp_classifier").replace(
    "FROM (", "WITH (algorithm = 'pbm', embedding = 2, epochs = 1) FROM (", 1
)
FIRST = "(SELECT pid, age, bmi, ward, days FROM clinic.patients LIMIT 290) p"
SHARE = "WITH (validation_fraction = 0.2, algorithm = 'sgd', epochs = 1) FROM ("
TUNED = TRAIN.replace("TRAIN", "TUNE", 1).replace(
    "FROM (", "WITH (l2 = [0.1, 1], folds = 3, seed = 1) FROM (", 1
)


PARTS = [PATIENTS.replace("range(300)", f"range({start}, {start + 150})") for start in (0, 150)]


@pytest.fixture
def parts(database: Open) -> list[duckdb.DuckDBPyConnection]:
    return [database(text) for text in PARTS]


@pytest.fixture
def union(parts: list[duckdb.DuckDBPyConnection], database: Open) -> Iterator[sqlfl.Federation]:
    """The clinic in two databases."""
    with sqlfl.connect(analyst="acme", progress=False) as found:
        found.attach("clinic", parts)
        found.attach("lab", database(TESTS))
        yield found


def kinds(fed: sqlfl.Federation) -> set[str]:
    """Of what the clinic has sent."""
    return {
        row["kind"]
        for row in fed.audit().arrow().to_pylist()
        if row["party"] == "clinic" and row["direction"] == "up"
    }


def refused(fed: sqlfl.Federation, text: str, said: str) -> None:
    """When it is run, and in EXPLAIN; nothing of rows has left."""
    before = fed.audit().arrow().num_rows
    with pytest.raises(PolicyError, match=f"its owner's policy has {said}"):
        fed.sql(text)
    after = fed.audit().arrow().slice(before).to_pylist()
    assert not {row["kind"] for row in after} & {"join_keys", "prepared", "labels"}
    if text.startswith(("TRAIN", "CHECK", "EVALUATE", "PREDICT", "TUNE")):
        told = [v for own in fed.explain(text).verdicts.values() for v in own]
        assert {v.state for v in told} == {"refused"}
        assert any(re.search(f"its owner's policy has {said}", v.rule) for v in told), told


# -- predictions -----------------------------------------------------------------------------------


def test_noised_predictions(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    fed.sql(TRAIN.replace(" m ", " n "))
    ruled(clinic, "predictions = 'noised', conditions = 'exact'")
    fed.sql(private())
    fed.sql(private(algorithm="admm", statistics="noised"))
    exact = private().replace("label_epsilon = 1,", "").replace("label_bounds = [-1, 3],", "")
    assert "label" not in exact
    fed.sql(exact)
    shared = private().replace("epochs = 3", "epochs = 3, validation_fraction = 0.2")
    fed.sql(shared)  # rows that are held out tell nothing of features
    fed.sql(f"CHECK TARGET days FROM ({QUERY})")  # that is of `moments`
    assert clinic.sql("FROM sqlfl.ledger").fetchall() == []
    noised = r"predictions = 'noised', which takes "
    refused(fed, TRAIN, noised + "training under PRIVACY")
    refused(fed, private(given="predictions = 'exact'"), noised + "PRIVACY with predictions")
    refused(fed, private(statistics="none", bounds=""), noised + "statistics that are public")
    of_rows = "clinic.patients p JOIN lab.tests t ON p.pid = t.pid WHERE p.age > 30"
    refused(fed, private(tables=of_rows), noised + "no condition on values")
    first = of_rows.replace("clinic.patients p", FIRST).removesuffix(" WHERE p.age > 30")
    refused(fed, private(tables=first), noised + "each row of it in one row")
    for text in ("EVALUATE MODEL n FROM ", "PREDICT MODEL n FROM ", "SKEW OF MODEL n FROM "):
        refused(fed, f"{text}({QUERY})", noised)


@pytest.mark.parametrize(
    ("rules", "epsilon", "delta", "good"),
    [
        ("", 4, 1e-6, True),
        ("", 4.01, 1e-6, False),
        ("", 4, 2e-6, False),
        ("delta = 1e-4", 4, 1e-4, True),
        ("delta = 1e-4", 4, 1e-6, True),
        ("max_epsilon = 1", 1, 1e-6, True),
        ("max_epsilon = 1", 1.01, 1e-6, False),
        ("max_epsilon = 9", 9, 1e-6, True),
    ],
)
def test_the_largest_epsilon_of_a_run(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    rules: str,
    epsilon: float,
    delta: float,
    good: bool,
) -> None:
    ruled(clinic, f"predictions = 'noised'{', ' * bool(rules)}{rules}")
    text = private(epsilon=epsilon).replace("delta = 1e-4", f"delta = {delta}")
    if good:
        fed.sql(text)
    else:
        refused(fed, text, r"max_epsilon = \d, at delta = 1e-06")


def test_predictions_in_sums(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "predictions = 'secure_sum'")
    fed.sql(TOWERS)
    assert "masked_embeddings" in kinds(fed)
    assert not kinds(fed) & {"predictions", "partial_gradient", "embeddings"}
    query = TOWERS.partition("FROM ")[2]
    said = "predictions = 'secure_sum', which takes sums under masks over several tables"
    refused(fed, TRAIN, said)
    refused(fed, TOWERS.replace("algorithm = 'pbm', embedding = 2, ", ""), said)
    refused(fed, private(), said)
    refused(fed, f"EVALUATE MODEL m FROM {query}", said)


def test_predictions_of_others_are_written(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """Where a table has no features in the query, nothing of it is predicted."""
    query = "SELECT t.crp, p.days FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
    ruled(
        clinic,
        "predictions = 'secure_sum', into = 'main'",
        GRANT.replace(" ON", ", IDENTIFY (pid) ON"),
    )
    fed.sql(f"TRAIN MODEL m USING linear_regression TARGET days FROM ({query})")
    fed.sql(f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({query}) INTO clinic.predicted")
    assert len(clinic.sql("FROM predicted").fetchall()) == 300


def test_predictions_in_sums_of_several_databases(
    union: sqlfl.Federation, parts: list[duckdb.DuckDBPyConnection]
) -> None:
    """Whose gradients leave apart."""
    for con in parts:
        ruled(con, "predictions = 'secure_sum'")
    refused(union, TOWERS, "predictions = 'secure_sum', which takes nothing in clear")


def test_predictions_that_nothing_tells(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(TRAIN)
    ruled(clinic, "predictions = 'never'")
    for text in (TRAIN, private(), TOWERS):
        refused(fed, text, "predictions = 'never'")
    for text in ("EVALUATE MODEL m FROM ", "PREDICT MODEL m FROM ", "SKEW OF MODEL m FROM "):
        refused(fed, f"{text}({QUERY})", "predictions = 'never'")
    fed.sql(f"CHECK TARGET days FROM ({QUERY})")
    fed.sql(TRAIN.replace("p.age, p.bmi, p.ward, ", ""))  # its labels, and the lab's features


# -- labels ----------------------------------------------------------------------------------------


def test_noised_labels(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    noised = "labels = 'noised', which takes "
    labels = "PRIVACY (label_epsilon = 1, label_bounds = [-1, 3]) FROM ("
    text = TRAIN.replace("FROM (", labels, 1)
    weighed = text.replace("TARGET days", "TARGET days WEIGHT bmi")
    fed.sql(TRAIN)
    fed.sql(weighed.replace("p.bmi", "p.bmi + 2 AS bmi"))
    ruled(clinic, "labels = 'noised'", GRANT.replace("LABEL (days", "LABEL (bmi, days"))
    fed.sql(text)
    refused(fed, f"{text[:-1]} WHERE p.age > 30)", "conditions = 'never'")
    ruled(clinic, "labels = 'noised', conditions = 'exact'", "")
    fed.sql(private())
    fed.sql(text.replace("TARGET days", "TARGET days WITH (validation_fraction = 0.2)"))
    fed.sql(f"EVALUATE MODEL m {labels}{QUERY})")
    fed.sql(f"{text[:-1]} WHERE p.age > 30)")
    refused(fed, TRAIN, noised + "noised labels")
    refused(fed, weighed.replace("p.bmi", "p.bmi + 2 AS bmi"), noised + "nothing in clear")
    refused(fed, f"EVALUATE MODEL m FROM ({QUERY})", noised + "noised labels")
    refused(fed, f"CHECK TARGET days FROM ({QUERY})", noised + "noised labels")
    refused(fed, text.replace("clinic.patients p", FIRST), noised + "each row of it in one row")
    louder = text.replace("label_epsilon = 1", "label_epsilon = 4.1")
    refused(fed, louder, "max_label_epsilon = 4")
    ruled(clinic, "labels = 'noised', max_label_epsilon = 0.5", "")
    refused(fed, text, "max_label_epsilon = 0.5")
    fed.sql(text.replace("label_epsilon = 1", "label_epsilon = 0.5"))


# -- moments ---------------------------------------------------------------------------------------

SECURE = TRAIN.replace("FROM (", "WITH (union = 'secure') FROM (", 1)


def test_moments_in_sums(union: sqlfl.Federation, parts: list[duckdb.DuckDBPyConnection]) -> None:
    """Those of a table in one database are told nobody."""
    for con in parts:
        ruled(con, "moments = 'secure_sum'")
    union.sql(SECURE)
    assert "masked" in kinds(union)
    assert not kinds(union) & {"statistics", "gram", "partial_gradient"}
    sums = "moments = 'secure_sum', which takes sums under masks over its databases"
    refused(union, TRAIN, sums)
    refused(union, TRAIN.replace("FROM (", "WITH (algorithm = 'sgd') FROM (", 1), sums)
    checked = f"CHECK TARGET days FROM ({QUERY})"
    refused(
        union, checked, "moments = 'secure_sum', which takes nothing but statistics and products"
    )


def test_noised_moments(union: sqlfl.Federation, parts: list[duckdb.DuckDBPyConnection]) -> None:
    for con in parts:
        ruled(con, "moments = 'noised'")
    union.sql(private(algorithm="admm", statistics="noised"))
    assert {"gram", "statistics"} <= kinds(union)
    bounded = private(given="predictions = 'exact'", statistics="bounds")
    union.sql(bounded)  # which tells no moments
    noised = "moments = 'noised', which takes "
    refused(union, TRAIN, noised + "training under PRIVACY")
    refused(union, bounded.replace("'bounds'", "'noised'"), noised + "PRIVACY with predictions")
    refused(union, f"CHECK TARGET days FROM ({QUERY})", noised)
    refused(union, private(epsilon=5, statistics="noised"), "max_epsilon = 4")


def test_moments_that_nothing_tells(
    union: sqlfl.Federation, parts: list[duckdb.DuckDBPyConnection]
) -> None:
    """Statistics are moments, too, and come without being asked for."""
    for con in parts:
        ruled(con, "moments = 'never'")
    refused(union, TRAIN.replace("FROM (", "WITH (algorithm = 'sgd') FROM (", 1), "moments = 'nev")
    refused(union, SECURE, "moments = 'never'")
    union.sql(private())  # by public bounds


def test_moments_of_one_database(fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection) -> None:
    for rule in ("secure_sum", "noised", "never"):
        ruled(clinic, f"moments = '{rule}'")
        fed.sql(TRAIN)
        refused(fed, f"INFERENCE OF MODEL m FROM ({QUERY})", f"moments = '{rule}'")


# -- metrics ---------------------------------------------------------------------------------------


def test_metrics_that_nobody_is_to_have(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    measured = (
        f"EVALUATE MODEL m FROM ({QUERY})",
        f"METRICS OF MODEL m FROM ({QUERY})",
        f"RESIDUALS OF MODEL m FROM ({QUERY})",
        f"INFERENCE OF MODEL m FROM ({QUERY})",
        f"IMPORTANCE OF MODEL m WITH (seed = 1) FROM ({QUERY})",
        TRAIN.replace("FROM (", SHARE, 1),
        TUNED,
    )
    fed.sql(TRAIN)
    for text in measured[:-1]:
        fed.sql(text)
    ruled(clinic, "metrics = 'never'")
    fed.sql(TRAIN)
    fed.sql(f"PREDICT MODEL m FROM ({QUERY})")
    for text in measured:
        refused(fed, text, "metrics = 'never'")
    others = TRAIN.replace("TARGET days", "TARGET crp").replace("t.crp, p.days", "t.crp")
    fed.sql(others)
    refused(fed, f"EVALUATE MODEL m FROM {others.partition('FROM ')[2]}", "metrics = 'never'")


# -- several policies ------------------------------------------------------------------------------


def test_of_both_modes_no_run_is(
    union: sqlfl.Federation, parts: list[duckdb.DuckDBPyConnection]
) -> None:
    both = "'noised' and 'secure_sum' of the same features, which no run is"
    for con in parts:
        ruled(con, "predictions = 'noised'")
        with sqlfl.owner(con) as owner:
            owner.sql("CREATE TRAINING POLICY s WITH (moments = 'secure_sum')")
            owner.sql("GRANT TRAIN (age) ON patients TO 'acme' UNDER s")
    union.sql(private())  # by public bounds, so that there are no moments
    for text in (private(statistics="noised"), SECURE, TRAIN):
        refused(union, text, both)
    for con in parts:
        with sqlfl.owner(con) as owner:
            owner.sql("CREATE OR REPLACE TRAINING POLICY s WITH (predictions = 'secure_sum')")
    for text in (private(), TOWERS, TRAIN):
        refused(union, text, both)


@pytest.mark.parametrize("name", ["labels", "predictions", "moments"])
def test_the_strictest_mode(name: str) -> None:
    def of(*given: str) -> set[str]:
        return set(modes(getattr(strictest(TrainingPolicy(**{name: g}) for g in given), name)))

    assert of("exact", "exact") == {"exact"}
    assert of("exact", "noised") == of("noised", "noised") == {"noised"}
    assert of("noised", "never", "secure_sum") == {"never"}
    assert of("secure_sum", "noised", "exact") == {"noised", "secure_sum"}


def test_bounds_count_where_something_is_noised() -> None:
    policies = [
        TrainingPolicy(predictions="noised", max_epsilon=8.0, delta=1e-7),
        TrainingPolicy(max_epsilon=1.0, delta=1e-9, max_label_epsilon=0.1),
        TrainingPolicy(moments="noised", max_epsilon=9.0),
        TrainingPolicy(labels="noised", max_label_epsilon=6.0),
    ]
    found = strictest(policies)
    assert (found.max_epsilon, found.delta, found.max_label_epsilon) == (8.0, 1e-7, 6.0)
    assert strictest(policies[1:2]).max_epsilon == 4.0


@pytest.mark.parametrize(
    ("rule", "mode", "said"),
    [
        ("metrics", "rounded", "the coordinator computes metrics"),
        ("metrics", "noised", "the coordinator computes metrics"),
        ("labels", "rounded", "rounding bounds nothing"),
        ("predictions", "rounded", "rounding bounds nothing"),
        ("moments", "rounded", "rounding bounds nothing"),
        ("labels", "secure_sum", None),
        ("identifiers", "noised", None),
        ("weights", "secure_sum", None),
    ],
)
def test_modes_that_a_party_cannot_hold(
    clinic: duckdb.DuckDBPyConnection, rule: str, mode: str, said: str | None
) -> None:
    text = f"CREATE TRAINING POLICY p WITH ({rule} = '{mode}')"
    with sqlfl.owner(clinic) as owner, pytest.raises(OptionError, match=f"'{mode}'") as error:
        owner.sql(text)
    assert said is None or said in str(error.value)
