"""Queries that a worker process evaluates first, in bounded memory and time."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import Error, PolicyError
from sqlfl.contract.schema import Client
from sqlfl.governance import measuring
from sqlfl.governance.trial import Trial, TrialWorkers, Tried
from sqlfl.options.policies import TrainingPolicy
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.governance.clinic import Ask, prepared, ruled
from tests.governance.test_limits import KEYS, refused

LARGE = "(SELECT max(length(lpad(q.ward, 4000000, 'b'))) FROM patients AS q) > 0"
"""As a condition: 300 texts of 4 MB, which DuckDB makes at once; no interrupt ends that."""
BOMB = f"SELECT p.pid AS sqlfl_key_0_0 FROM patients AS p WHERE {LARGE}"
DISTANCES = "max(levenshtein(lpad(q.ward, 300000, 'b'), lpad(q.ward, 300000, 'c')))"
SLOW = BOMB.replace(LARGE, f"(SELECT {DISTANCES} FROM patients AS q) > 0")
"""Compares texts of 300 kB for minutes, in little memory; no interrupt ends that."""
VALUES = """CREATE TYPE mood AS ENUM ('good', 'b''ad'); CREATE SCHEMA hr;
CREATE TABLE hr."t ""x" AS SELECT i AS k, i::HUGEINT * 1000000000000000000000 AS h,
  (i / 3)::DECIMAL(20, 3) AS d, 'good'::mood AS m, TIMESTAMPTZ '2024-01-01 10:00:00+02' AS z,
  uuid() AS u, {'a': i, 'b': ['x']} AS s, [i, i]::DOUBLE[] AS l, [1, 2]::INTEGER[2] AS a,
  INTERVAL 3 DAY AS iv, TIME '10:00' AS ti, '101'::BIT AS bi, '\\x01'::BLOB AS bl,
  MAP {'a': 1} AS mp, '{"a": 1}'::JSON AS j, NULL AS n, true AS bo, TIMESTAMP_NS '2024-01-01' AS ns
FROM range(1000) AS r(i)"""


@pytest.fixture(scope="module")
def workers() -> Iterator[TrialWorkers]:
    with closing(TrialWorkers()) as found:
        yield found


@pytest.fixture
def remote(
    clinic: duckdb.DuckDBPyConnection, workers: TrialWorkers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PartyClient]:
    """As a host makes it, in a guard whose bounds on values are gone."""
    monkeypatch.setattr(measuring, "MAX_BYTES", 1e18)
    monkeypatch.setattr(measuring, "MAX_WORK", 1e18)
    with closing(_client(clinic, workers)) as found:
        yield found


def _client(
    con: duckdb.DuckDBPyConnection, workers: TrialWorkers, analyst: str = "acme"
) -> PartyClient:
    secrets = Secrets(b"\x07" * 32, b"\x07" * 32)
    return PartyClient(Client("clinic"), con, secrets, analyst=analyst, workers=workers)


def asking(client: PartyClient) -> Ask:
    return lambda message: courier.ask(client, message)


def working(client: PartyClient) -> int:
    """The process that works for the client, once there is one."""
    assert client._trial is not None
    until = time.monotonic() + 60
    while not client._trial.running and time.monotonic() < until:
        time.sleep(0.01)
    (found,) = client._trial.running
    return found


def test_memory_is_the_policys(remote: PartyClient, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "memory = '100MB', seconds = 500")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = prepared(asking(remote), BOMB)
    refused(reply, "its owner's policy has memory = '100MB', and evaluating the query takes more")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)
    # all goes on
    assert isinstance(prepared(asking(remote), KEYS, run="s"), ms.Prepared)
    assert remote._trial is not None
    assert not remote._trial.running


def test_time_is_the_policys(remote: PartyClient, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "seconds = 1.5")
    begun = time.monotonic()
    refused(prepared(asking(remote), SLOW), "seconds = 1.5, and")
    assert time.monotonic() - begun < 60
    ruled(clinic, "seconds = 500", grant="")
    assert isinstance(prepared(asking(remote), KEYS, run="s"), ms.Prepared)


def test_a_worker_that_is_killed_ends_its_run_alone(
    remote: PartyClient, clinic: duckdb.DuckDBPyConnection, workers: TrialWorkers
) -> None:
    ruled(clinic, "memory = '1TB', seconds = 500")
    ruled(clinic, "memory = '1TB', seconds = 500",
          "GRANT FILTER (pid, ward), JOIN (pid) ON patients TO 'bcme' UNDER r")  # fmt: skip
    with closing(_client(clinic, workers, "bcme")) as other, ThreadPoolExecutor(1) as pool:
        running = pool.submit(prepared, asking(remote), SLOW)
        process = working(remote)
        assert isinstance(prepared(asking(other), KEYS, run="s"), ms.Prepared)
        assert not running.done()
        os.kill(process, signal.SIGKILL)
        refused(running.result(60), "memory = '1TB', and evaluating the query takes more")
        assert isinstance(asking(other)(ms.SendKeys("s", 0)), ms.JoinKeys)
    assert isinstance(prepared(asking(remote), KEYS, run="t"), ms.Prepared)


def test_what_is_described_is_bound_there_alone(
    remote: PartyClient, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "memory = '100MB', seconds = 500")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    select = "SELECT length(rpad('a', 800000000, 'b')) AS f, age FROM patients"
    reply = asking(remote)(ms.Describe("", -1, (select,)))
    # DuckDB does not fold a constant for which there is no memory
    assert isinstance(reply, ms.Columns)
    assert (reply.names, reply.types) == (("f", "age"), ("BIGINT", "BIGINT"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)
    reply = asking(remote)(ms.Describe("", -1, (select, "SELECT bmi FROM patients")))
    assert isinstance(reply, ms.Columns)
    assert reply.counts.tolist() == [2, 1]
    assert reply.names == ("f", "age", "bmi")
    reply = asking(remote)(ms.Describe("", -1, ("SELECT age + [1] AS f FROM patients",)))
    assert isinstance(reply, ms.Failure)
    assert "cannot bind what it was asked, though all of it is granted" in reply.text


def trial(
    con: duckdb.DuckDBPyConnection, workers: TrialWorkers, text: str, *, run: bool = True
) -> None:
    names = con.execute('SELECT name FROM pragma_table_info(\'hr."t ""x"\')').fetchall()
    columns = {("memory", "hr", 't "x'): tuple(name for (name,) in names)}
    own, rules = Tried(("memory", "main"), (text,), columns, run), TrainingPolicy(memory=200 << 20)
    if run:
        Trial(workers).check(con, own, rules)
    else:
        (found,) = Trial(workers).describe(con, own, rules)
        described = con.execute(f"DESCRIBE {text}").fetchall()
        assert [kind for _, kind in found] == [row[1] for row in described]


@pytest.mark.parametrize("run", [True, False])
def test_columns_of_every_type_are_there(workers: TrialWorkers, run: bool) -> None:
    with closing(duckdb.connect()) as con:
        con.execute(VALUES)
        text = """SELECT h + k, d * 2, m = 'b''ad', z, u, s.a + 1, l[1], a[2], iv, ti, bi, bl,
          mp['a'], j ->> '$.a', n, NOT bo, ns FROM hr."t ""x" AS t"""
        trial(con, workers, text, run=run)
        trial(con, workers, 'SELECT t FROM memory.hr."t ""x" AS t', run=run)
        with pytest.raises(Error, match="cannot bind") as failure:
            trial(con, workers, 'SELECT nothing FROM hr."t ""x"', run=run)
        assert not isinstance(failure.value, PolicyError)


def test_what_fails_on_a_value_is_left_to_the_party(workers: TrialWorkers) -> None:
    with closing(duckdb.connect()) as con:
        con.execute(VALUES)
        trial(con, workers, """SELECT ('x' || k)::INTEGER FROM hr."t ""x" AS t""")


def test_a_worker_reads_no_file(workers: TrialWorkers) -> None:
    with closing(duckdb.connect()) as con:
        con.execute(VALUES)
        trial(con, workers, "SELECT * FROM read_text('/etc/hostname')")  # a failure of the query


def test_a_worker_answers_one_request_after_another() -> None:
    """Each under a limit of its own; one that has failed is not used again."""
    own = TrialWorkers()
    with closing(own), closing(duckdb.connect()) as con:
        con.execute(VALUES)
        own.warm()
        (process,) = own._waiting
        large = 'SELECT max(length(lpad(q.m, 40000000, \'b\'))) FROM hr."t ""x" AS q'
        for _ in range(3):
            trial(con, own, 'SELECT sum(h) FROM hr."t ""x" AS t')
            assert own._waiting == [process]
        with pytest.raises(PolicyError, match="evaluating the query takes more"):
            trial(con, own, large)
        assert own._waiting == []
        assert process.poll() is not None
        trial(con, own, 'SELECT sum(h) FROM hr."t ""x" AS t')


def test_the_database_may_be_named_like_the_workers_own(
    workers: TrialWorkers, tmp_path: Path
) -> None:
    with closing(duckdb.connect(tmp_path / "Memory.duckdb")) as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS k; SET GLOBAL integer_division = true")
        own = Tried(
            ("Memory", "main"),
            ("SELECT k / 2 AS h FROM t",),
            {("Memory", "main", "t"): ("k",)},
            True,
        )
        Trial(workers).check(con, own, TrainingPolicy())
        (found,) = Trial(workers).describe(con, replace(own, run=False), TrainingPolicy())
        assert [kind for _, kind in found] == ["INTEGER"]


def test_no_process_stays() -> None:
    own = TrialWorkers()
    own.warm()
    (waiting,) = own._waiting
    process = own.take()
    assert process is waiting
    own.give_back(process)
    own.close()
    assert process.returncode == -signal.SIGKILL
    other = own.take()
    own.give_back(other)
    assert other.returncode == -signal.SIGKILL
