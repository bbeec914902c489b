"""Training that cannot end well says so and keeps nothing."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.base.progress import Progress
from sqlfl.coordinator.training import train
from sqlfl.transport.base import Audit, Channel
from tests.conftest import Open


def test_targets_beyond_the_messages_are_refused(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS x, range * 1e40 AS y FROM range(9)")
    with sqlfl.connect() as fed:
        fed.attach("a", con)
        with pytest.raises(sqlfl.ModelError, match=r"beyond ±1e\+30"):
            fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM a.t)")
        assert len(fed.sql("SHOW MODELS")) == 0


def test_a_step_that_diverges_is_an_error(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS x, range * 2.0 AS y FROM range(9)")
    with sqlfl.connect() as fed:
        fed.attach("a", con)
        with pytest.raises(sqlfl.ModelError, match="diverge"):
            fed.sql(
                "TRAIN MODEL m USING linear_regression TARGET y "
                "WITH (algorithm = 'sgd', learning_rate = 1e6) FROM (SELECT x, y FROM a.t)"
            )
        assert len(fed.sql("SHOW MODELS")) == 0


@pytest.mark.parametrize("seed", range(4))
def test_two_rows_are_enough_for_the_default_step(seed: int, database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS x, range % 2 AS y FROM range(2)")
    with sqlfl.connect() as fed:
        fed.attach("a", con)
        fed.sql(
            "TRAIN MODEL m USING logistic_regression TARGET y "
            f"WITH (algorithm = 'sgd', seed = {seed}) FROM (SELECT x, y FROM a.t)"
        )
        assert fed.model("m").metrics["accuracy"] == 1.0


def test_a_plan_starts_from_the_model_that_it_was_made_for(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS x, range % 3 AS y FROM range(9)")
    text = (
        "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y {} FROM (SELECT x, y FROM a.t)"
    )
    with sqlfl.connect() as fed:
        fed.attach("a", con)
        fed.sql(text.format(""))
        plan = fed.explain(text.format("WITH (warm_start = 'm')"))
        fed.sql(text.format(""))
        channel = Channel(fed._transport, Audit())
        with pytest.raises(sqlfl.ModelError, match="model m has been replaced since"):
            train(plan, channel, "run", Progress("m", 1, False), fed.model("m"))
        assert channel.rounds == 0
