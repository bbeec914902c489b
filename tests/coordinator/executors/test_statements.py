"""Statements with other executors than threads: what comes out is the same, and all ends well."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors import division, named
from sqlfl.coordinator.executors.base import Executor, HeldPartitions
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.partition import PartitionSums, Work
from sqlfl.coordinator.join import mapping_query
from sqlfl.coordinator.join.key_join import KeyJoin
from tests.coordinator.executors.memory_workers import MemoryWorker, MemoryWorkers
from tests.open_databases import in_memory

TABLES = """
CREATE TABLE visits AS SELECT i AS id, i % 40 AS patient, (i * 13) % 7 AS stay, i % 5 AS ward
FROM range(1200) r(i);
CREATE TABLE patients AS SELECT i AS patient, (i * 17) % 29 AS age, (i * 3) % 11 > 5 AS ill,
    i % 3 AS insurer FROM range(40) r(i);
CREATE TABLE terms AS SELECT i % 5 AS ward, i % 3 AS insurer, i AS price FROM range(15) r(i)
"""
QUERY = "FROM (SELECT v.stay, v.ward, p.age, p.insurer, p.ill, {} AS y FROM clinic.visits v " \
        "JOIN registry.patients p USING (patient))"  # fmt: skip
CYCLE = "FROM (SELECT v.stay, p.age, t.price, v.id % 97 AS y FROM clinic.visits v " \
        "JOIN registry.patients p USING (patient) " \
        "JOIN registry.terms t ON t.ward = v.ward AND t.insurer = p.insurer)"  # fmt: skip
NUMBER, CLASS = "v.id % 97 + v.stay * v.ward", "v.stay * v.ward % 7 > 2"


@pytest.fixture(autouse=True)
def many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "ROWS", 100)
    monkeypatch.setattr(division, "SHARED", 0)
    monkeypatch.setattr(mapping_query, "SEVERAL", 0)


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(TABLES)
        yield con


def federation(con: duckdb.DuckDBPyConnection, executor: str | Executor) -> sqlfl.Federation:
    fed = sqlfl.connect(progress=False, executor=executor)
    fed.attach("clinic", con)
    fed.attach("registry", con)
    return fed


STATEMENTS = [
    f"TRAIN MODEL a USING logistic_regression TARGET y WITH (seed = 2) {QUERY.format(CLASS)}",
    "TRAIN MODEL b USING linear_regression TARGET y WITH (algorithm = 'admm', epochs = 5, "
    f"validation_fraction = 0.2, seed = 3) {QUERY.format(NUMBER)}",
    "TRAIN MODEL c USING softmax_regression TARGET y WITH (algorithm = 'sgd', epochs = 5, "
    f"seed = 1, batch_size = 400) {QUERY.format('v.ward')}",
    "TRAIN MODEL d USING poisson_regression TARGET y WITH (algorithm = 'sgd', epochs = 4, "
    f"seed = 1) {QUERY.format('v.stay')}",
    f"TRAIN MODEL e USING linear_regression TARGET y WITH (seed = 2) {CYCLE}",
]


def trained(con: duckdb.DuckDBPyConnection, executor: str | Executor) -> list[pa.Table]:
    """Of each statement, what the rounds came to."""
    found = []
    with federation(con, executor) as fed:
        for text in STATEMENTS:
            fed.sql(text)
        for model in "abcde":
            told = fed.model(model)
            history = told.history.drop_columns(["seconds", "comm_seconds"])
            found += [history, pa.Table.from_pylist([dict(told.metrics)])]
    return found


class Disturbing(MemoryWorkers):
    """Its caller does something before a question that is to come."""

    def __init__(self) -> None:
        super().__init__(2)
        self.left = 0
        self.joins = 0

    def plan(self, at: int, act: Callable[[list[MemoryWorker]], None]) -> None:
        self.left, self.act = at, act

    def hold(self, division: division.Division) -> HeldPartitions:
        return Disturbed(super().hold(division), self)

    def join(self, join: KeyJoin, slot: int) -> list[Array] | None:
        self.joins += 1
        self.disturb()
        return super().join(join, slot)

    def disturb(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.act(self.members)


class Disturbed:
    def __init__(self, held: HeldPartitions, executor: Disturbing) -> None:
        self.held, self.executor = held, executor
        self.close = held.close

    def ask(self, work: Work) -> PartitionSums:
        self.executor.disturb()
        return self.held.ask(work)


@pytest.fixture(scope="module")
def executor() -> Iterator[Disturbing]:
    with closing(Disturbing()) as executor:
        yield executor


def test_models_are_the_same(database: duckdb.DuckDBPyConnection, executor: Disturbing) -> None:
    expected = trained(database, InProcess(1))
    for other in ("threads", executor):
        for own, wanted in zip(trained(database, other), expected, strict=True):
            assert own.equals(wanted)
    assert executor.members  # an object stays the caller's
    assert executor.joins == 1  # others are found by trees of keys


def test_a_worker_that_is_gone_ends_the_statement(
    database: duckdb.DuckDBPyConnection, executor: Disturbing
) -> None:
    executor.plan(4, lambda workers: workers[1].lose())
    with federation(database, executor) as fed:
        with pytest.raises(sqlfl.Error, match=r"worker 2 \(in memory\) is gone"):
            fed.sql(STATEMENTS[0])
        assert fed.sql("SHOW MODELS").arrow().num_rows == 0
        fed.sql(STATEMENTS[0])  # others have begun
        assert fed.sql("SHOW MODELS").arrow().num_rows == 1


def test_a_worker_that_is_gone_while_keys_are_joined(
    database: duckdb.DuckDBPyConnection, executor: Disturbing
) -> None:
    with federation(database, executor) as fed:
        fed.sql(STATEMENTS[0])  # there are workers now
        executor.plan(1, lambda workers: workers[0].lose())
        with pytest.raises(sqlfl.Error, match=r"worker 1 \(in memory\) is gone"):
            fed.sql(STATEMENTS[-1])
        fed.sql(STATEMENTS[-1])
        assert fed.sql("SHOW MODELS").arrow().num_rows == 2


def test_ctrl_c_ends_the_training_after_the_round(
    database: duckdb.DuckDBPyConnection, executor: Disturbing
) -> None:
    """As with threads: the workers do not hear it."""
    executor.plan(14, lambda _: os.kill(os.getpid(), signal.SIGINT))
    with federation(database, executor) as fed:
        fed.sql(STATEMENTS[1])
        model = fed.model("b")
        assert model.interrupted
        assert 0 < model.history.num_rows < 5


def test_workers_end_with_the_federation(
    database: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(named.NAMED, "ray", lambda: MemoryWorkers(2))  # type: ignore[arg-type]
    with federation(database, "ray") as fed:
        fed.sql(STATEMENTS[0])
        executor = fed._executor
        assert isinstance(executor, MemoryWorkers)
        first = executor.members
        assert len(first) == 2
        fed.sql(STATEMENTS[1])
        assert executor.members == first  # they serve the next statement too
    assert all(worker.ended for worker in first)


def test_an_executor_that_is_not_known() -> None:
    with pytest.raises(sqlfl.Error, match="no executor thread") as told:
        sqlfl.connect(executor="thread")
    assert told.value.hint == "did you mean threads?"
    with pytest.raises(sqlfl.Error, match=r"must be a name or have hold\(\) and close\(\), got 3"):
        sqlfl.connect(executor=3)  # type: ignore[arg-type]


def test_worker_processes_were_removed() -> None:
    with pytest.raises(sqlfl.Error, match="executor 'processes' was removed") as told:
        sqlfl.connect(executor="processes")
    assert "executor='threads'" in str(told.value.hint)
    assert "executor='ray' for several machines" in str(told.value.hint)


def test_ray_is_asked_for_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(sqlfl.Error, match="Ray is not installed") as told:
        sqlfl.connect(executor="ray")
    assert told.value.hint == "pip install 'sqlfl[ray]'"


@pytest.mark.parametrize("kind", [InProcess, MemoryWorkers])
def test_an_executor_of_nobody(kind: type[InProcess] | type[MemoryWorkers]) -> None:
    with pytest.raises(sqlfl.Error, match="must be 1 or more, not 0"):
        kind(0)
