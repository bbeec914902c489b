"""Workers as actors of Ray, where it is installed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from sqlfl.coordinator.executors.rays import Rays, RayWorker
from sqlfl.errors import Error
from sqlfl.models.losses import Logistic
from tests.coordinator.executors.conformance import ExecutorConformance, written

ray: Any = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Of more cores than there are: several executors are open at once."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
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

    def test_more_workers_than_cores(self) -> None:
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
    assert executor._crew is not None
    worker = executor._crew.workers[0]
    assert isinstance(worker, RayWorker)
    return int(ray.get(worker._actor.process.remote()))
