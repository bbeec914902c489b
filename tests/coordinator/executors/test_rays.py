"""Workers as actors of Ray."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.base import HeldPartitions
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.workers import Rays, RayWorker
from sqlfl.coordinator.join import mapping_query
from sqlfl.models.losses import Logistic
from tests.coordinator.executors.conformance import ExecutorConformance, written
from tests.coordinator.executors.test_statements import STATEMENTS, TABLES, trained
from tests.open_databases import in_memory

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Of more cores than there are: several executors are open at once."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=6, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def make() -> Callable[[int], Rays]:
    return Rays


@pytest.fixture(scope="module")
def executor(cluster: None) -> Iterator[Rays]:
    with closing(Rays(2)) as executor:
        yield executor


class TestRays(ExecutorConformance):
    def test_a_worker_that_is_killed_ends_the_work(self, executor: Rays) -> None:
        case = written(Logistic())
        with closing(case.rows(executor)) as rows:
            before = rows.look(case.scores)
            killed = process_of(executor)
            os.kill(killed, signal.SIGSTOP)  # it does not answer, as if it had much to do
            threading.Timer(0.3, os.kill, (killed, signal.SIGKILL)).start()
            with pytest.raises(Error, match=r"worker 1 \(an actor of Ray\) is gone") as told:
                rows.look(case.scores)
            assert told.value.hint
            with pytest.raises(Error, match="was ended"):
                rows.look(case.scores)
        with closing(case.rows(executor)) as rows:  # others begin
            assert rows.look(case.scores).value == before.value

    def test_models_are_the_same(self, executor: Rays, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(division, "ROWS", 100)
        monkeypatch.setattr(mapping_query, "SEVERAL", 0)
        hold, parts = executor.hold, []

        def counted(made: division.Division) -> HeldPartitions:
            parts.append(made.count)
            return hold(made)

        monkeypatch.setattr(executor, "hold", counted)
        with in_memory() as con:
            con.execute(TABLES)
            expected = trained(con, InProcess(1))
            for own, wanted in zip(trained(con, executor), expected, strict=True):
                assert own.equals(wanted)
        assert len(parts) == len(STATEMENTS)
        assert min(parts) > 1

    def test_more_workers_than_cores(self) -> None:
        import ray

        case = written(Logistic())
        with (
            closing(Rays(7)) as executor,
            closing(case.rows(executor)) as rows,
            pytest.raises(Error, match="Ray has 6 cores, fewer than 7 workers take"),
        ):
            rows.look(case.scores)
        assert ray.is_initialized()  # whoever began Ray ends it


def process_of(executor: Rays) -> int:
    """Of the first worker."""
    import ray

    assert executor._crew is not None
    worker = executor._crew.workers[0]
    assert isinstance(worker, RayWorker)
    return int(ray.get(worker._actor.process.remote()))
