"""Weights, class weights, validation rows and warm starts: what crosses the border is disclosed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sqlfl
from sqlfl.messages import Split, Weigh
from sqlfl.messages.wire import decode
from sqlfl.udfs.blocks import block_tables, blocks
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.federations import Parties, trainable
from tests.oracle import NUMBERS
from tests.strategies import Case, cases, train_sql
from tests.test_border import ALGORITHMS, assert_disclosed, tapped

DRAWS = b"the key of the draws"


@pytest.fixture(autouse=True)
def known_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients draw validation rows under a key that the test knows."""
    monkeypatch.setattr(blocks.MemoryBlocks, "secret", lambda self, purpose: DRAWS)
    monkeypatch.setattr(block_tables.DatabaseBlocks, "secret", lambda self, purpose: DRAWS)


@given(
    cases(), st.integers(1, 3), st.sampled_from(ALGORITHMS), st.sampled_from(("sql", "arrays")),
    st.sampled_from((0.2, 0.5)),
)  # fmt: skip
@examples(1, 100)
def test_the_traffic_of_a_split_is_what_explain_says(
    case: Case, clients: int, options: dict[str, object], engine: str, fraction: float
) -> None:
    with case.open(clients) as databases, tapped(dict(databases.parties)) as (fed, tap):
        data = trainable(case, databases)
        if case.kind not in NUMBERS:
            options = options | {"class_weight": "balanced"}
        statement = case.train(**options, engine=engine, validation_fraction=fraction)
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            try:
                fed.sql(statement)
            except sqlfl.ModelError as error:
                assume("validation_fraction" not in str(error))
                assume("the target is 0 in all rows that train" not in str(error))
                raise
        assert {"split", "weigh"} <= {decode(item.data).kind for item in recorded}
        epochs = fed.model("m").history.num_rows
        parties = dict(databases.parties)
        assert_disclosed(plan, recorded, parties, epochs=epochs, outputs=data.outputs, draws=DRAWS)


def people(rows: range) -> str:
    """Weights of 0 for what only those rows have: a category, and the only NULLs."""
    return (
        f"CREATE TABLE people AS SELECT i AS id, i % 7 AS k, sin(i) AS x, "
        "CASE WHEN i % 4 = 1 THEN NULL ELSE cos(i) END AS gap, "
        "CASE WHEN i % 4 = 1 THEN 'rare' ELSE 'c' || (i % 3) END AS c, "
        "CASE WHEN i % 4 = 1 THEN 0 ELSE 0.25 + i % 3 END AS w, "
        f"i % 5 AS y FROM range({rows.start}, {rows.stop}) r(i)"
    )


PLACES = (
    "CREATE TABLE places AS SELECT i AS k, i * i AS z, 'd' || (i % 3) AS d, "
    "CASE WHEN i = 6 THEN NULL ELSE i END AS late FROM range(9) r(i)"
)
QUERY = (
    "SELECT p.y, p.x, p.gap, p.c, p.w, q.z, q.d, q.late FROM census.people p "
    "JOIN town.places q USING (k)"
)


@pytest.fixture(params=[1, 2], ids=["one client", "two clients"])
def parties(request: pytest.FixtureRequest, database: Open) -> Parties:
    parts = [range(70)] if request.param == 1 else [range(31), range(31, 70)]
    return {"census": [database(people(p)) for p in parts], "town": [database(PLACES)]}


def train(name: str, kind: str, *, weight: bool = True, **options: object) -> str:
    statement = train_sql(
        name, kind, "y", QUERY if weight else QUERY.replace("p.w, ", ""), **options
    )
    return statement.replace("TARGET y", "TARGET y WEIGHT w") if weight else statement


@pytest.mark.parametrize(
    ("options", "parties", "engine", "fraction"),
    in_turn(ALGORITHMS, (1, 2), ("sql", "arrays"), (0.0, 0.3)),
    ids=str,
    indirect=["parties"],
)
def test_the_traffic_of_weights_is_what_explain_says(
    parties: Parties, options: dict[str, object], engine: str, fraction: float
) -> None:
    with tapped(parties) as (fed, tap):
        statement = train(
            "m", "linear_regression", **options, engine=engine, validation_fraction=fraction
        )
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        epochs = fed.model("m").history.num_rows
        assert_disclosed(plan, recorded, parties, epochs=epochs, draws=DRAWS)
        assert "weights in clear: w" in str(plan.details)
        assert "w" not in fed.model("m").features


def test_the_traffic_of_scoring_has_weights_where_rows_are_measured(parties: Parties) -> None:
    with tapped(parties) as (fed, tap):
        fed.sql(train("m", "linear_regression", epochs=2))
        for purpose in ("PREDICT", "EVALUATE"):
            scoring = f"{purpose} MODEL m FROM ({QUERY})"
            plan = fed.explain(scoring)
            with tap.taken() as recorded:
                fed.sql(scoring)
            assert_disclosed(plan, recorded, parties)
            asked = "weights" in {decode(item.data).kind for item in recorded}
            assert asked == (purpose == "EVALUATE")


def test_class_weights_of_zero_leave_categories_out(parties: Parties) -> None:
    by_class = "{'0': 1, '1': 2.5, '2': 0, '3': 0, '4': 0}"
    with tapped(parties) as (fed, tap):
        statement = train("m", "softmax_regression", epochs=3, validation_fraction=0.2)
        statement = statement.replace("epochs = 3", f"epochs = 3, class_weight = {by_class}")
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        epochs = fed.model("m").history.num_rows
        assert_disclosed(plan, recorded, parties, epochs=epochs, outputs=5, draws=DRAWS)


@pytest.mark.parametrize(
    ("options", "parties"), in_turn(ALGORITHMS, (1, 2)), ids=str, indirect=["parties"]
)
def test_the_traffic_of_a_warm_start_is_what_explain_says(
    parties: Parties, options: dict[str, object]
) -> None:
    with tapped(parties) as (fed, tap):
        fed.sql(train("old", "linear_regression", weight=False, **options))
        statement = train(
            "m", "linear_regression", **options, warm_start="old", validation_fraction=0.25
        )
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        epochs = fed.model("m").history.num_rows
        assert_disclosed(plan, recorded, parties, epochs=epochs, draws=DRAWS)


def test_copies_of_a_base_row_are_on_one_side_and_weigh_nothing_there(parties: Parties) -> None:
    with tapped(parties) as (fed, tap):
        with tap.taken() as recorded:
            fed.sql(train("m", "linear_regression", validation_fraction=0.4))
        messages = [(item.client, decode(item.data)) for item in recorded]
        splits = {c: m.validation for c, m in messages if isinstance(m, Split)}
        weighed = {c: m.counts for c, m in messages if isinstance(m, Weigh) and c in splits}
        assert set(splits) == set(weighed)
        held = np.concatenate([splits[c] for c in splits]).astype(bool)
        counts = np.concatenate([weighed[c] for c in splits])
        assert 0 < held.sum() < 70
        np.testing.assert_array_equal(counts[held], 0.0)
        # those of the weight column: 0, 0.25, 1.25, 2.25
        assert set(counts[~held].tolist()) == {0.0, 0.25, 1.25, 2.25}
