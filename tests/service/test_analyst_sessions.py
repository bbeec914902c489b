"""What analysts see of parties that are away, or do not take them, and how many statements run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sqlfl.base.errors import Error
from sqlfl.service.analyst_sessions import AnalystSession
from sqlfl.service.calls import Calls
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.settings import CoordinatorSettings
from tests.conftest import Open
from tests.service.processes import until
from tests.service.study import joined, serving, settings


def calm(folder: Path, **other: float) -> CoordinatorSettings:
    return settings(folder, {"bank": 1}, **{"lease": 60.0, "heartbeat": 20.0, **other})


def test_a_party_that_has_not_come(tmp_path: Path) -> None:
    with serving(tmp_path, calm(tmp_path)) as study, study.analyst() as fed:
        assert fed.parties == ()
        with pytest.raises(Error, match="bank is not connected, and has not been since"):
            fed.table("bank.t")


def test_a_party_that_is_there_and_is_not_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Open
) -> None:
    """Who asks is told why, and not that it has not come."""
    con = database("CREATE TABLE t AS SELECT 1 AS a", own=True)

    def refuses(*_: object) -> None:
        raise Error("its clients have tables of different columns")

    with (
        serving(tmp_path, calm(tmp_path)) as study,
        joined(study, "bank", con, open=True),
        study.analyst() as fed,
    ):
        with monkeypatch.context() as patched:
            patched.setattr("sqlfl.federation.session.Federation.admit", refuses)
            with pytest.raises(Error, match="bank is not used in study heart: its clients have"):
                fed.table("bank.t")
        assert fed.parties == ("bank",)  # later it is
        assert list(fed.table("bank.t").schema().arrow().column_names)


def test_so_many_statements_of_an_analyst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections they come by; another analyst's run beside them."""
    go, begun = threading.Event(), threading.Semaphore(0)
    ran = Calls._answer

    def slow(self: Calls, number: int, frame: object) -> object:
        if self._desk.analyst == "alice":
            begun.release()
            assert go.wait(20)
        return ran(self, number, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(Calls, "_answer", slow)
    with (
        serving(tmp_path, calm(tmp_path, statements=2)) as study,
        study.analyst() as one,
        study.analyst() as two,
        study.analyst("carol") as carol,
    ):
        threads = [threading.Thread(target=lambda fed=fed: fed.models) for fed in (one, two)]
        for thread in threads:
            thread.start()
        assert begun.acquire(timeout=10)
        assert begun.acquire(timeout=10)
        for fed in (one, two):
            with pytest.raises(Error, match="2 statements of alice are running"):
                _ = fed.models
        assert carol.models == ()
        go.set()
        for thread in threads:
            thread.join(20)
        assert one.models == two.models == ()


def test_an_analyst_who_leaves_amid_a_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on, and takes its place among the analyst's until it ends."""
    go, begun = threading.Event(), threading.Event()

    def slow(self: Calls, number: int, frame: object) -> object:
        begun.set()
        assert go.wait(20)
        raise Error("over")

    monkeypatch.setattr(Calls, "_answer", slow)
    with serving(tmp_path, calm(tmp_path, lease=2.0, heartbeat=0.3)) as study:
        fed = study.analyst()
        lost: list[Error] = []

        def ask() -> None:
            try:
                _ = fed.models
            except Error as error:
                lost.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(10)
        (desk,) = study.service._desks.values()
        fed.close()
        thread.join(10)
        assert "a statement that was running there goes on" in str(lost[0])
        assert desk._running == 1
        assert len(study.service._calls) == 1
        go.set()
        until(lambda: desk._running == 0 and not study.service._calls, 10)


def test_counts_of_statements() -> None:
    desk = AnalystSession("heart", "alice", {"bank": (PartyConnection("bank", 1.0),)}, None)
    assert [desk.begin(2) for _ in range(2)] == [None, None]
    assert "2 statements of alice are running" in str(desk.begin(2))
    desk.end()
    assert desk.begin(2) is None
    desk.close()


TRAIN = """TRAIN MODEL m USING linear_regression TARGET y FROM (
    SELECT b.x, l.y FROM bank.t b JOIN lab.t l ON b.k = l.k)"""


def test_parties_of_different_secrets(tmp_path: Path, database: Open) -> None:
    """It is said before anything is prepared, and goes once one has the others'."""
    rows = "CREATE TABLE t AS SELECT i AS k, i * 1.0 AS {} FROM range(40) t(i)"
    bank, lab = (database(rows.format(name), own=True) for name in "xy")
    own = settings(tmp_path, {"bank": 1, "lab": 1}, lease=60.0, heartbeat=20.0)
    with (
        serving(tmp_path, own) as study,
        joined(study, "bank", bank, open=True),
        study.analyst() as fed,
    ):
        with joined(study, "lab", lab, open=True, secret=b"s" * 32):
            until(lambda: study.service._lines["lab"][0].secret != "")
            with pytest.raises(
                Error, match=r"different secrets.*: (bank/0; lab|lab/0; bank)/0"
            ) as e:
                fed.sql(TRAIN)
            assert "sqlfl keygen secret --from" in str(e.value)
            assert not any(host.working for host in study.hosts.values())
            assert fed.sql("CHECK (SELECT b.x FROM bank.t b)")  # of one alone
        with joined(study, "lab", lab, open=True):
            until(lambda: study.service._lines["lab"][0].secret != "")
            assert fed.sql(TRAIN)
            one, two = (study.service._lines[name][0].secret for name in ("bank", "lab"))
            assert one == two
