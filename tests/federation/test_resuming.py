"""Checkpoints, and RESUME MODEL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import LostError
from sqlfl.base.interrupts import Interrupts, heeding
from sqlfl.base.progress import ProgressStep
from sqlfl.contract.request import checkpoint_of
from sqlfl.contract.schema import Client
from sqlfl.messages import Residuals, SendGram, SendPredictions
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from tests.conftest import Open

A = "CREATE TABLE t AS SELECT i AS k, sin(i) AS x, sin(i) + cos(2 * i) AS y FROM range(300) r(i)"
B = "CREATE TABLE u AS SELECT i AS k, cos(2 * i) AS z FROM range(300) r(i)"
QUERY = "SELECT t.x, u.z, t.y FROM a.t JOIN b.u ON t.k = u.k"


def train(options: str, verb: str = "TRAIN") -> str:
    return f"{verb} MODEL m USING linear_regression TARGET y WITH ({options}) FROM ({QUERY})"


class Losing:
    """Loses a party at its n-th residuals."""

    def __init__(self, inner: Transport, at: int) -> None:
        self.inner, self.left = inner, at

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        for client, data in requests:
            if isinstance(decode(data), Residuals) and client.party == "b":
                self.left -= 1
                if not self.left:
                    raise LostError("b/0", "is away")
        return self.inner.exchange(requests)


def federation(
    path: Path | None, folder: Path, lost_at: int = 0
) -> tuple[sqlfl.Federation, list[duckdb.DuckDBPyConnection]]:
    wrap = (lambda inner: Losing(inner, lost_at)) if lost_at else None
    fed = sqlfl.Federation(path, progress=False, wrap=wrap)
    cons = [duckdb.connect(folder / f"{name}.duckdb") for name in "ab"]
    for name, con in zip("ab", cons, strict=True):
        fed.attach(name, con)
    return fed, cons


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("a", A), ("b", B)):
        with duckdb.connect(tmp_path / f"{name}.duckdb") as con:
            con.execute(text)
    return tmp_path


SGD = "algorithm = 'sgd', epochs = 12, tolerance = 0, seed = 1, learning_rate = 0.01"


@pytest.mark.parametrize("lasting", [True, False], ids=["lasting", "in memory"])
def test_what_is_lost_in_its_midst_goes_on_from_its_checkpoint(folder: Path, lasting: bool) -> None:
    """Also in another process of the coordinator: the file says all of it."""
    file = folder / "coordinator.duckdb" if lasting else None
    fed, cons = federation(file, folder, lost_at=9)
    with pytest.raises(LostError, match=r"is away \(model m is kept as of epoch 6; RESUME MODEL m"):
        fed.sql(train(f"{SGD}, checkpoint = 3"))
    assert fed.model("m").interrupted
    if lasting:
        fed.close()
        for con in cons:
            con.close()
        fed, cons = federation(file, folder)
    with fed:
        before = fed.model("m")
        assert (before.epoch, before.ending.short) == (6, "not at its end")
        assert fed.sql(f"EVALUATE MODEL m FROM ({QUERY})").arrow().num_rows == 1
        goes_on = "m is as of epoch 6 of 12: RESUME MODEL m goes on"
        assert fed.sql("SHOW MODELS").notes == (goes_on,)
        assert re.search(f"resume +{goes_on}", str(fed.sql("DESCRIBE MODEL m")))
        assert ("epochs", "6 of 12 (not at its end)") in before.facts()
        with pytest.raises(sqlfl.ModelError, match="hint: RESUME MODEL m goes on with it; TRAIN"):
            fed.sql(train(SGD))
        steps: list[ProgressStep] = []
        fed._progress = steps.append
        assert "goes on" not in str(fed.sql("RESUME MODEL m"))
        epochs = [(step.epoch, step.epochs) for step in steps if step.objective is not None]
        assert epochs == [(number, 12) for number in range(7, 13)]
        assert fed.sql("SHOW MODELS").notes == ()
        model = fed.model("m")
        assert model.version == before.version == 1
        assert not model.interrupted
        assert model.history.column("epoch").to_pylist() == list(range(1, 13))
        assert model.history.slice(0, 6).equals(before.history)
        assert (model.epoch, model.options["epochs"]) == (12, 12)
        down = model.history.column("bytes_down").to_pylist()
        assert down == sorted(down)
        losses = model.history.column("train_loss").to_pylist()
        assert losses[6] < losses[5]
        with pytest.raises(sqlfl.ModelError, match="model m has been trained to its end"):
            fed.sql("RESUME MODEL m")
    for con in cons:
        kept = con.execute("SELECT count(*) FROM sqlfl.blocks").fetchall() if lasting else [(1,)]
        assert kept == [(1,)]
        con.close()


def test_a_run_with_checkpoints_ends_as_one_without(folder: Path) -> None:
    fed, cons = federation(None, folder)
    with fed:
        fed.sql(train(SGD))
        expected = fed.model("m")
        fed.sql(train(f"{SGD}, checkpoint = 5", "TRAIN OR REPLACE"))
        model = fed.model("m")
    np.testing.assert_array_equal(model.intercept, expected.intercept)
    assert model.history.column("train_loss").equals(expected.history.column("train_loss"))
    assert not model.interrupted
    assert model.version == 2  # however many checkpoints there were
    for con in cons:
        con.close()


def test_what_was_stopped_goes_on(folder: Path) -> None:
    """By Ctrl-C, of which the model is kept too."""
    stop = Interrupts()

    def told(step: ProgressStep) -> None:
        if step.epoch == 5 and step.objective is not None:
            stop.interrupt()

    fed, cons = federation(None, folder)
    with fed, heeding(stop):
        fed._progress = told
        assert "RESUME MODEL m goes on" in str(fed.sql(train(SGD)))
        assert (fed.model("m").epoch, fed.model("m").interrupted) == (5, True)
        fed._progress = False
        fed.sql("RESUME MODEL m")
        assert (fed.model("m").epoch, fed.model("m").interrupted) == (12, False)
        fed.sql("DROP MODEL m")
        with pytest.raises(sqlfl.ModelError, match="there is no model m"):
            fed.sql("RESUME MODEL m")
    for con in cons:
        con.close()


def test_what_was_noised_does_not_go_on(folder: Path) -> None:
    """What is resumed would know the rows without this noise."""
    stop = Interrupts()

    def told(step: ProgressStep) -> None:
        if step.epoch == 2 and step.objective is not None:
            stop.interrupt()

    fed, cons = federation(None, folder)
    with fed, heeding(stop):
        fed._progress = told
        private = "PRIVACY (label_epsilon = 3, label_bounds = [-2, 2]) FROM ("
        given = train(SGD.replace("seed = 1, ", "")).replace("FROM (", private, 1)
        assert "goes on" not in str(fed.sql(given))
        assert fed.model("m").interrupted
        assert fed.sql("SHOW MODELS").notes == ()
        with pytest.raises(sqlfl.ModelError, match="training under PRIVACY begins from nothing"):
            fed.sql("RESUME MODEL m")
    for con in cons:
        con.close()


class Stopping:
    """Comes as a Ctrl-C when label sums are sent, between the two rounds of moments."""

    def __init__(self, inner: Transport, stop: Interrupts) -> None:
        self.inner, self.stop, self.kinds = inner, stop, Counter[str]()

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        kinds = Counter(decode(data).kind for _, data in requests)
        if kinds[Residuals.kind] and not self.kinds[Residuals.kind]:
            self.stop.interrupt()
        self.kinds += kinds
        return self.inner.exchange(requests)


def test_moments_that_are_stopped_between_their_rounds_come_to_their_end(
    database: Open,
) -> None:
    """Each release is made once, and the report is that of a run that nobody stopped."""
    stop = Interrupts()
    taps: list[Stopping] = []

    def wrap(inner: Transport) -> Stopping:
        taps.append(Stopping(inner, stop))
        return taps[0]

    text = train("algorithm = 'moments', rounds = 2").replace(
        "FROM (",
        "PRIVACY (epsilon = 4, delta = 1e-5, feature_bounds = {'x': [-1, 1], 'z': [-1, 1]}) FROM (",
        1,
    )
    with sqlfl.Federation(None, progress=False, wrap=wrap) as fed, heeding(stop):
        fed.attach("a", database(A))
        fed.attach("b", database(B))
        assert "goes on" not in str(fed.sql(text))
        kinds, model = taps[0].kinds, fed.model("m")
        assert [kinds[kind.kind] for kind in (SendGram, Residuals, SendPredictions)] == [2, 3, 1]
        assert not model.interrupted
        with pytest.raises(sqlfl.ModelError, match="model m has been trained to its end"):
            fed.sql("RESUME MODEL m")
        fed.sql(text.replace("TRAIN", "TRAIN OR REPLACE", 1))
        assert fed.model("m").privacy.to_json() == model.privacy.to_json()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (train(SGD + ", checkpoint = 0"), "checkpoint"),
        (
            train("algorithm = 'sgd', checkpoint = 2").replace(
                ") FROM", ") PRIVACY (epsilon = 5, delta = 1e-5, clip = 1) FROM", 1
            ),
            "checkpoint = 2 does not go with PRIVACY",
        ),
        (train("epochs = [2, 3], checkpoint = 2", "TUNE"), "checkpoint"),
        ("RESUME m", "expected MODEL after RESUME"),
    ],
)
def test_what_does_not_go(database: Open, text: str, said: str) -> None:
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", database(A))
        fed.attach("b", database(B))
        with pytest.raises(sqlfl.Error, match=said):
            fed.sql(text)
        assert fed.models == ()


def test_names_of_checkpoints_are_as_long_as_those_of_runs() -> None:
    names = {checkpoint_of("0123456789abcdef", number) for number in range(50)}
    assert {len(name) for name in names} == {16}
    assert len(names) == 50


# -- under an owner's policies ---------------------------------------------------------------------

GRANT = "GRANT TRAIN (x), JOIN (k), LABEL (y) ON t TO 'acme' UNDER r"


def policy(rules: str = "") -> str:
    return f"CREATE OR REPLACE TRAINING POLICY r {f'WITH ({rules})' * bool(rules)}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", ""),
        (policy("runs_per_day = 1"), "runs_per_day = 1"),
        (policy("min_rows = 301"), "min_rows = 301"),
        (policy("algorithms = ['lbfgs']"), "algorithms = "),
        (policy("labels = 'never'"), "labels = 'never'"),
        (policy("predictions = 'noised'"), "predictions = 'noised'"),
        (policy("epsilon = 2"), "epsilon = 2"),
        (policy("approval = 'first_time'"), "waits for its owner, as request 1"),
        ("REVOKE LABEL ON t FROM 'acme'", "has no column y"),
        ("REVOKE ALL ON t FROM 'acme'", "a has no table t"),
        (f"REVOKE ALL ON t FROM 'acme' AND MODELS; {GRANT}", "its owner has locked models"),
    ],
)
def test_it_is_a_run_of_its_own_under_the_rules_of_the_day(
    folder: Path, change: str, said: str
) -> None:
    wrap = lambda inner: Losing(inner, 9)  # noqa: E731
    with ExitStack() as stack:
        a, b = (stack.enter_context(duckdb.connect(folder / f"{n}.duckdb")) for n in "ab")
        fed = sqlfl.Federation(None, analyst="acme", progress=False, wrap=wrap)
        stack.enter_context(fed)
        fed.attach("a", a)
        fed.attach("b", b)
        with sqlfl.owner(a) as owner:
            owner.sql(f"{policy('runs_per_day = 2')}; {GRANT}")
            with pytest.raises(LostError):
                fed.sql(train(f"{SGD}, checkpoint = 3"))
            if change:
                owner.sql(change)
        if not said:
            fed.sql("RESUME MODEL m")
            assert a.sql("SELECT count(DISTINCT run) FROM sqlfl.runs").fetchall() == [(2,)]
            return
        with pytest.raises(sqlfl.Error, match=said):
            fed.sql("RESUME MODEL m")
        assert fed.model("m").epoch == 6
