"""What a statement warns of: once, placed where it was called, in the card, and told by EXPLAIN."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest

import sqlfl
from sqlfl.coordinator import findings
from sqlfl.messages.wire import decode
from tests.conftest import Open
from tests.federations import Parties, federation
from tests.test_border import assert_disclosed, tapped

PATIENTS = (
    "CREATE TABLE t AS SELECT i AS id, i % 9 AS k, i % 7 AS x, NULL::INT AS void, 'u' || i AS name,"
    " 3.5 AS same, 'c' AS single, NULL::VARCHAR AS silent, [i, i]::FLOAT[2] AS pair, "
    "[1, 2]::FLOAT[2] AS fixed, i % 2 = 0 AS flag, CASE WHEN i % 4 < 2 THEN 'p' ELSE 'q' END AS c, "
    "i % 3 = 0 AS y, 1 + i % 3 AS w FROM range({}, {}) r(i)"
)
CHANGED = (
    "CREATE TABLE s AS SELECT id, k, x, x AS void, name, same, single, silent, pair, fixed, "
    "3 * flag::INT AS flag, CASE WHEN c = 'q' THEN 'z' ELSE c END AS c, y FROM t"
)
VISITS = "CREATE TABLE w AS SELECT i % 9 AS k, i AS z FROM range(2000) r(i)"
TOWNS = "CREATE TABLE u AS SELECT 'x' || i AS k, i AS z FROM range(9) r(i)"
TRAIN = "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET y FROM ({})"


CLIENTS = ("one client", "two clients")


@pytest.fixture(params=CLIENTS)
def parties(request: pytest.FixtureRequest, database: Open) -> Parties:
    bounds = [0, 120] if request.param == "one client" else [0, 70, 120]
    clients = [database(PATIENTS.format(low, high), CHANGED) for low, high in pairwise(bounds)]
    return {"a": clients, "b": [database(TOWNS, VISITS)]}


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """The texts of the warnings of a block, which are of this file."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    for item in caught:
        assert (item.category, item.filename) == (sqlfl.Warning, __file__)
    found.extend(str(item.message) for item in caught)


COLUMNS = "x, void, name, same, single, silent, pair, fixed, flag, c"
SAID = [
    "feature void (of t) is NULL in all 120 joined rows: tells nothing",
    "feature name (of t) is a text with nearly as many values as there are joined rows",
    "feature same (of t) is the same in all joined rows, and tells nothing",
    "feature single (of t) is the same in all joined rows, and tells nothing",
    "feature silent (of t) is NULL in all 120 joined rows: tells nothing",
    "feature fixed (of t) is the same in all joined rows, and tells nothing",
]

ALONE = "t, with features x, void, name, same, single"
"""What tells the target alone: `name` tells each row apart."""


@pytest.mark.parametrize("options", ["", "WITH (algorithm = 'sgd', epochs = 2) "])
def test_features_that_tell_nothing_or_too_much(parties: Parties, options: str) -> None:
    """Of several clients, where it is so of all their rows together: `same` is of one alone too."""
    with federation(parties) as fed:
        with told() as said:
            fed.sql(
                TRAIN.format(f"SELECT {COLUMNS}, y FROM a.t").replace("FROM (", options + "FROM (")
            )
        known = SAID if options else [*SAID, ALONE]
        assert [text[: len(own)] for text, own in zip(said, known, strict=True)] == known
        assert list(fed.model("m").remarks) == said
        card = dict(reversed(fed.sql("DESCRIBE MODEL m").fetchall()))
        assert card["warning"] == said[0]
        with told() as said:
            fed.sql(TRAIN.format("SELECT x, pair, flag, c, y FROM a.t"))
        assert said == []
        assert fed.model("m").remarks == ()


def test_a_column_that_is_constant_at_each_client_alone(database: Open) -> None:
    """And differs between them: it tells something."""
    rows = "CREATE TABLE t AS SELECT {} AS v, '{}' AS c, {} AS n, i AS y FROM range(20) r(i)"
    parties = {"a": [database(rows.format(1, "p", 1)), database(rows.format(2, "q", "NULL::INT"))]}
    with federation(parties) as fed, told() as said:
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT v, c, n, y FROM a.t)")
    assert said == []


def test_features_that_are_not_as_in_training(parties: Parties) -> None:
    """A new category, and numbers where training had a BOOLEAN; with WEIGHT or without."""
    with federation(parties) as fed:
        fed.sql(TRAIN.format("SELECT x, flag, c, void, y FROM a.t"))
        for statement in (
            "EVALUATE MODEL m FROM (SELECT x, flag, c, void, y FROM a.s)",
            "PREDICT MODEL m ID (a.s.id) FROM (SELECT x, flag, c, void FROM a.s)",
        ):
            with told() as said:
                fed.sql(statement)
            drift, unseen = said
            assert drift.startswith("feature flag is INTEGER here and was a BOOLEAN when model m")
            assert unseen == (
                "feature c (of s) has values that model m was not trained on, in 60 of 120 joined "
                "rows, which count as other"
            )
        with told() as said:
            fed.sql("PREDICT MODEL m FROM (SELECT NULL::INT AS x, flag, c, void FROM a.t)")
        assert said[0].startswith("feature x (of t) is NULL in all 120 joined rows: to model m")


def test_a_left_join_that_matches_nothing(parties: Parties) -> None:
    query = "SELECT t.x, u.z, t.y FROM a.t t LEFT JOIN b.u u ON {} = u.k"
    with federation(parties) as fed:
        with told() as said:
            fed.sql(TRAIN.format(query.format("t.k::VARCHAR")))
        (text,) = said
        assert text.startswith("LEFT JOIN u: no row has a match in it")
        assert fed.model("m").metrics["unjoined_u"] == 120
        with told() as said:
            fed.sql(TRAIN.format(query.format("'x' || (t.k - 1)")))
        assert said == []
        assert fed.model("m").metrics["unjoined_u"] == sum(i % 9 == 0 for i in range(120))
        with told() as said:  # rows without a match are what is asked for
            fed.sql(TRAIN.format(f"{query.format('t.k::VARCHAR')} WHERE u.k IS NULL"))
        assert said == ["feature z (of u) is NULL in all 120 joined rows: tells nothing"]


def test_a_key_that_is_missing(parties: Parties) -> None:
    with federation(parties) as fed:
        with told() as said:
            fed.sql(TRAIN.format("SELECT t.x, w.z, t.y FROM a.t t JOIN b.w w ON t.k = w.k"))
        assert said == [
            "the join has 26,668 rows of 120 rows of t, which has the target: each occurs in 222 "
            "on average. Is a key missing in the join?"
        ]
        assert fed.model("m").remarks == tuple(said)


def test_keys_that_are_sent_for_nothing(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training says so; a condition that follows over the key sends no more than it by hand."""
    monkeypatch.setattr(findings, "MIN_KEYS", 10_000)
    patients = database(
        "CREATE TABLE t AS SELECT i AS k, i % 50 AS week, i % 7 AS x, i % 3 = 0 AS y "
        "FROM range(9000) r(i)"
    )
    visits = database(
        "CREATE TABLE w AS SELECT i % 9000 AS k, i % 9000 % 50 AS week, i % 11 AS z "
        "FROM range(27000) r(i)"
    )
    with federation({"a": [patients], "b": [visits]}) as fed:
        join = "SELECT t.x, w.z, t.y FROM a.t t LEFT JOIN b.w w ON w.k = t.k"
        with told() as said:
            fed.sql(TRAIN.format(f"{join} WHERE t.week = 3"))
        assert said == [
            "w sent keyed hashes of the keys of 27,000 rows, and 540 of them are joined. Can a "
            "condition on columns of w itself leave the others out?"
        ]
        train = TRAIN.format(f"{join} AND w.week = t.week WHERE t.week IN (3, 4)")
        assert "w sends keys of rows with week IN (3, 4) only" in str(fed.explain(train).details)
        by_hand = TRAIN.format(
            f"{join} AND w.week = t.week AND w.week IN (3, 4) WHERE t.week IN (3, 4)"
        )
        sent, losses = [], []
        for statement in (train, by_hand):
            with told() as said:
                fed.sql(statement)
            assert said == []
            audit = fed.audit().df()
            keys = audit[(audit.kind == "join_keys") & (audit.party == "b")]
            sent.append(int(keys.bytes.iloc[-1]))
            losses.append(fed.model("m").metrics["loss"])
        assert sent[0] == sent[1] < 27_000 * 4
        assert losses[0] == pytest.approx(losses[1], abs=1e-9)


def test_where_warnings_are_errors_nothing_is_kept(parties: Parties) -> None:
    with federation(parties) as fed, warnings.catch_warnings():
        warnings.simplefilter("error", sqlfl.Warning)
        with pytest.raises(sqlfl.Warning, match="feature same"):
            fed.sql(TRAIN.format("SELECT x, same, y FROM a.t"))
        assert fed.sql("SHOW MODELS").fetchall() == []
        assert not any(server.working for server in fed._servers.values())


@pytest.mark.parametrize("weight", ["", "WEIGHT w "])
def test_what_is_asked_for_it_is_what_explain_says(parties: Parties, weight: str) -> None:
    rows = f"SELECT x, name, single, pair, flag, c, {'w, ' if weight else ''}y FROM a.t"
    with tapped(parties) as (fed, tap):
        train = TRAIN.format(rows).replace("FROM (", f"{weight}FROM (", 1)
        for statement in (train, f"EVALUATE MODEL m FROM ({rows})"):
            plan = fed.explain(statement)
            with tap.taken() as recorded, told():
                fed.sql(statement)
            assert "findings" in {decode(item.data).kind for item in recorded}
            epochs = fed.model("m").history.num_rows if statement is train else 1
            assert_disclosed(plan, recorded, parties, epochs=epochs)
        assert "warnings about features" in str(plan.details)


def test_features_that_are_protected_are_not_asked_about(parties: Parties) -> None:
    query = "SELECT x, same, c, y FROM a.t"
    bounds = "{'x': [0, 7], 'same': [0, 9], 'c': ['p', 'q']}"
    privacy = f"PRIVACY (epsilon = 3, delta = 1e-6, feature_bounds = {bounds})"
    clause = f"WITH (algorithm = 'sgd') {privacy} "
    with federation(parties) as fed:
        with told() as said:
            fed.sql(TRAIN.format(query).replace("FROM (", clause + "FROM ("))
            fed.sql(f"EVALUATE MODEL m FROM ({query})")
        assert [text for text in said if "better than a constant" not in text] == []
        assert not {"findings"} & {*fed.audit().arrow().column("kind").to_pylist()}


# -- the size of a join ----------------------------------------------------------------------------

JOIN = "SELECT t.x, w.z, t.y FROM a.t t JOIN b.w w ON t.k = w.k"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "max_joined_rows = 26667",
            r"(?s)the join has 26,668 rows, and max_joined_rows is 26,667; by t\.k = w\.k a row of "
            r"t meets 222 of w on average.*is a key missing.*WITH \(max_joined_rows = 26668\)",
        ),
        (
            "memory_limit = '100KB'",
            r"(26,668|the tables of the join have 2,120) rows, which take about .* memory_limit is "
            "97.7 KiB",
        ),
    ],
)
def test_a_join_that_is_too_large_is_not_made(
    parties: Parties, options: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(parties) as fed:
        fed.sql(TRAIN.format(JOIN))
        verbs = ("EVALUATE", "PREDICT")
        scoring = [f"{verb} MODEL m WITH ({options}) FROM ({JOIN})" for verb in verbs]
        training = TRAIN.format(JOIN).replace("FROM (", f"WITH ({options}) FROM (", 1)
        with monkeypatch.context() as patch:

            def refused(*_: object) -> None:
                raise AssertionError("the join is made")

            patch.setattr("sqlfl.coordinator.join.mapping_query.interruptible", refused)
            for statement in (training, *scoring):
                with pytest.raises(sqlfl.ModelError, match=text):
                    fed.sql(statement)
        assert not any(server.working for server in fed._servers.values())
        enough = training.replace("26667", "26668").replace("100KB", "100MB")
        fed.sql(enough)
        assert fed.model("m").metrics["rows"] == 26668


def test_rows_that_no_mapping_can_number(database: Open) -> None:
    """Counted in a moment from the codes, though the join would have 4 billion rows."""
    rows = "CREATE TABLE {} AS SELECT 1 AS k, i AS {} FROM range(65536) r(i)"
    parties = {"a": [database(rows.format("t", "y"))], "b": [database(rows.format("u", "z"))]}
    query = "SELECT u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k"
    text = "TRAIN MODEL m USING linear_regression TARGET y WITH (max_joined_rows = {}) FROM ({})"
    with (
        federation(parties) as fed,
        pytest.raises(sqlfl.ModelError, match=r"4,294,967,296 rows, and 4,294,967,295 is the most"),
    ):
        fed.sql(text.format(2**31 - 1, query))


def test_a_cycle_is_counted_as_far_as_is_allowed(database: Open) -> None:
    """The codes give a bound only; rows are made up to the limit, and the join is taken."""
    rows = "CREATE TABLE {} AS SELECT i % 3 AS p, i % 4 AS q, i AS v FROM range(24) r(i)"
    parties = {name: [database(rows.format("t"))] for name in ("a", "b", "c")}
    query = (
        "SELECT a.v AS y, b.v, c.v AS w FROM a.t a JOIN b.t b ON a.p = b.p "
        "JOIN c.t c ON b.q = c.q AND c.v % 5 = a.q"
    )
    head = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y"
    text = f"{head} WITH (max_joined_rows = {{}}) FROM ({{}})"
    with federation(parties) as fed:
        fed.sql(text.format(10_000, query))
        size = fed.model("m").metrics["rows"]
        fed.sql(text.format(size, query))
        with pytest.raises(sqlfl.ModelError, match=f"more than {size - 1:,} rows"):
            fed.sql(text.format(size - 1, query))


def test_a_cycle_is_held_against_the_memory_by_its_own_rows(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "CREATE TABLE {} AS SELECT i % 3 AS p, i AS v FROM range(48) r(i)"
    parties = {name: [database(rows.format("t"))] for name in ("a", "b", "c")}
    query = (
        "SELECT a.v AS y, b.p, c.v AS w FROM a.t a JOIN b.t b ON a.p = b.p "
        "JOIN c.t c ON b.v = c.v AND c.v % 4 = a.v % 4"
    )
    statement = (
        f"TRAIN MODEL m USING linear_regression TARGET y WITH (algorithm = 'admm') FROM ({query})"
    )
    memory = "sqlfl.coordinator.join.join_limits.machine_memory"
    with federation(parties) as fed:
        monkeypatch.setattr(memory, lambda: 16_000)
        with pytest.raises(sqlfl.ModelError, match=r"the join has at least \d+ rows, which take"):
            fed.sql(statement)
        monkeypatch.setattr(memory, lambda: 40_000)
        fed.sql(statement)
        assert fed.model("m").metrics["rows"] == 192


@pytest.mark.parametrize("key", ["k", "k ** 2", "@(k - 3)", "(k || 'a')"])
def test_a_key_that_multiplies_is_named_as_it_is_written(parties: Parties, key: str) -> None:
    """By the tables' names in the query, whatever the fragments call them."""
    own, other = (key.replace("k", f"{name}.k") for name in ("flights", "weather"))
    query = (
        "SELECT flights.x, weather.z, flights.y FROM a.t flights "
        f"JOIN b.w weather ON {own} = {other}"
    )
    statement = TRAIN.format(query).replace("FROM (", "WITH (max_joined_rows = 9) FROM (", 1)
    written = re.sub("[^a-z.]", "", own), re.sub("[^a-z.]", "", other)
    with federation(parties) as fed, pytest.raises(sqlfl.ModelError) as caught:
        fed.sql(statement)
    said = re.sub("[^a-z.=]", "", caught.value.message)
    assert f"by{written[0]}={written[1]}arowofflightsmeets" in said
