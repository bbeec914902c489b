"""Averaging noised labels over sessions: it gains nothing, but where the report says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.party.party import PartyClient
from sqlfl.privacy.mechanisms import keep_probability
from sqlfl.udfs.labels.label_secret import LabelSecret
from tests.conftest import Open
from tests.privacy import sessions
from tests.privacy.sessions import EPSILON, Array, right, session, train

SESSIONS = 5
"""So many tell 87 % of the labels at this ε, if each draws anew; one tells 73 %."""


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute(sessions.VISITS)
    return path


def by_path(clinic: Path) -> Iterator[Array]:
    while True:
        with session(clinic) as own:
            yield own.labels(train())


def by_connection(clinic: Path) -> Iterator[Array]:
    """Of a party of another name."""
    with duckdb.connect(str(clinic)) as con, session(con, name="hospital") as own:
        yield own.labels(train(source="hospital.visits v"))


def with_another_coordinator(clinic: Path) -> Iterator[Array]:
    with session(clinic, clinic.with_name("another.duckdb")) as own:
        yield own.labels(train())


def dropping(clinic: Path) -> Iterator[Array]:
    """The model was kept in the clinic's database."""
    with session(clinic, clinic.with_name("coordinator.duckdb")) as own:
        for _ in range(2):
            yield own.labels(train())
            assert own.fed.model("m").lasting
            own.fed.sql("DROP MODEL m")


def failing(clinic: Path) -> Iterator[Array]:
    """The run ends once the labels have left."""
    with session(clinic, clinic.with_name("coordinator.duckdb")) as own:
        server = own.fed._servers[own.fed._parties.clients["lab"][0]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "_save", _fails)
            yield own.labels(train())
            with pytest.raises(sqlfl.ModelError, match="no model m"):
                own.fed.model("m")


def _fails(*given: object) -> None:
    raise duckdb.IOException("No space left on device")


def test_sessions_gain_nothing(clinic: Path) -> None:
    """However the database is attached, and whatever becomes of the model."""
    others = [by_connection, with_another_coordinator, dropping, failing]
    ways = [by_path, *others]
    draws = [draw for way in ways for draw, _ in zip(way(clinic), range(2), strict=False)]
    assert len(draws) == 7
    for draw in draws:
        np.testing.assert_array_equal(draw, draws[0])
    assert right(draws) == right(draws[:1])


def test_a_build_that_keeps_no_secret_is_caught(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = PartyClient.__init__
    monkeypatch.setattr(
        PartyClient, "__init__", lambda own, *given: planned(own, *given[:4], LabelSecret())
    )
    assert_averaged([draw for draw, _ in zip(by_path(clinic), range(SESSIONS), strict=False)])


def assert_averaged(draws: list[Array]) -> None:
    """They are independent: two agree in about as many rows as chance has it, in 61 %."""
    keep = keep_probability(EPSILON, 2)
    agree = [np.mean(a == b) for n, a in enumerate(draws) for b in draws[:n]]
    # by 7 standard deviations
    assert abs(np.mean(agree) - (keep**2 + (1 - keep) ** 2)) < 0.15
    # 0.14, with a standard deviation of 0.022
    assert right(draws) > np.mean([right([draw]) for draw in draws]) + 0.03


def test_in_memory_they_are_drawn_anew_and_the_report_says_so(database: Open) -> None:
    draws = []
    for number in range(SESSIONS):
        with session(database(sessions.VISITS)) as own:
            draws.append(own.labels(train()))
            if number:
                continue
            np.testing.assert_array_equal(own.labels(train()), draws[-1])  # within the session
            said = [str(own.fed.explain(train())), str(own.fed.model("m").privacy)]
            said.append(repr(own.fed.model("m")))
    assert_averaged(draws)
    for text in said:
        words = " ".join(text.split())
        assert "drawn anew in each session" in words
        assert "(m · 1, 0)-DP" in words
