"""A coordinator and parties' agents as processes of their own, over TLS, each behind a link that
can be cut; the analyst is in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import duckdb

from sqlfl.service.federation import RemoteFederation
from sqlfl.service.settings import AnalystSettings
from tests.service.proxy import Proxy
from tests.service.study import COORDINATOR, SECRET, settings, written

LEASE, HEARTBEAT = 3.0, 0.3
LONGEST = 90.0
"""Seconds within which everything is to have an end."""


def until(met: Callable[[], bool], seconds: float = LONGEST) -> None:
    due = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < due, "it takes too long"
        time.sleep(0.02)


def resident(pid: int) -> int:
    """Bytes of memory."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Distributed:
    """A context. parties : the statements that make each one's database."""

    def __init__(
        self,
        folder: Path,
        parties: dict[str, str],
        lease: float = LEASE,
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self.folder, self._parties = folder, parties
        self._times = {"lease": lease, "heartbeat": heartbeat}
        self._stack = ExitStack()
        self._port = 0
        self._next: subprocess.Popen[str] | None = None
        self.coordinator: subprocess.Popen[str]
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.links: dict[str, Proxy] = {}

    def __enter__(self) -> Distributed:
        with ExitStack() as stack:
            stack.callback(self._end)
            for party, statements in self._parties.items():
                with duckdb.connect(self.folder / f"{party}.duckdb") as con:
                    con.execute(statements)
            self._configure()
            self.begin_coordinator()
            for party in self._parties:
                self.links[party] = stack.enter_context(Proxy(self._port))
                self.begin(party)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- processes --------------------------------------------------------------------------------

    def begin_coordinator(self) -> None:
        told = {"config": str(self.folder / "coordinator.toml"), "port": self._port,
                "state": str(self.folder / "state")}  # fmt: skip
        self.coordinator = self._process("coordinator", told)
        assert self.coordinator.stdout is not None
        self._port = int(self.coordinator.stdout.readline())

    def begin(self, party: str) -> None:
        if party in self.processes:
            _killed(self.processes[party])
        for what in ("report", "connected", "fault"):
            (self.folder / f"{party}.{what}").unlink(missing_ok=True)
        told = {
            **written(self.folder, f"{party}0.example"),
            "party": party,
            "coordinator": COORDINATOR,
            "database": str(self.folder / f"{party}.duckdb"),
            "secret": SECRET.hex(),
            "location": f"grpc+tls://127.0.0.1:{self.links[party].port}",
            "connected": str(self.folder / f"{party}.connected"),
            "report": str(self.folder / f"{party}.report"),
            "fault": str(self.folder / f"{party}.fault"),
        }
        self.processes[party] = self._process("party", told)

    def kill(self, party: str) -> None:
        _killed(self.processes[party])

    def restart(self, party: str) -> None:
        self.kill(party)
        self.begin(party)

    def arm(
        self, party: str, kind: str, sent: signal.Signals, *, nth: int = 1, after: bool = False,
        pid: int = 0,
    ) -> None:  # fmt: skip
        """Have the party's process send a signal, to itself or to process `pid`, before or after
        it answers the nth message of a kind from now on."""
        fault = {"kind": kind, "signal": int(sent), "nth": nth, "after": after, "pid": pid}
        new = self.folder / f"{party}.fault.new"
        new.write_text(json.dumps(fault))
        new.replace(self.folder / f"{party}.fault")

    def struck(self, party: str) -> bool:
        """The signal that `arm` asked for was sent."""
        return not (self.folder / f"{party}.fault").exists()

    def restart_coordinator(self) -> None:
        _killed(self.coordinator)
        self.begin_coordinator()

    def ended(self, party: str) -> dict[str, Any]:
        """What is left in a party's process at its end, which is asked for."""
        process = self.processes[party]
        process.terminate()
        out, _ = process.communicate(timeout=LONGEST)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    # -- what goes on -----------------------------------------------------------------------------

    def analyst(self, port: int = 0) -> RemoteFederation:
        own = AnalystSettings(**written(self.folder, "alice"), coordinator_name=COORDINATOR)
        path = self.folder / "alice.toml"
        lines = [f'{k} = "{v}"' for k, v in vars(own).items() if isinstance(v, str)]
        path.write_text("\n".join(lines))
        where = f"grpc+tls://127.0.0.1:{port or self._port}"
        return RemoteFederation(where, config=path, study="heart", progress=False)

    def connected(self, fed: RemoteFederation) -> None:
        """All parties are, by the processes that there are now."""
        until(lambda: all((self.folder / f"{party}.connected").exists() for party in self._parties))
        until(lambda: all(fed.status().arrow().column("connected").to_pylist()))

    def idle(self) -> bool:
        """No party has a run open."""
        found = []
        for party in self._parties:
            with suppress(OSError, ValueError):
                found.append(json.loads((self.folder / f"{party}.report").read_text()))
        return found == [False] * len(self._parties)

    def clean(self) -> None:
        """Nothing is left at any party."""
        until(self.idle)
        for party in self._parties:
            assert self.ended(party) == {"working": False, "tables": []}

    def _configure(self) -> None:
        own = settings(self.folder, dict.fromkeys(self._parties, 1), **self._times)
        (self.folder / "coordinator.toml").write_text(_toml(own))

    def _process(self, what: str, told: dict[str, Any]) -> subprocess.Popen[str]:
        """Start it in the process that waits, and let another one load its modules meanwhile."""
        process, self._next = self._next or self._waiting(), None
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(json.dumps([what, told]))
        process.stdin = None
        self._next = self._waiting()
        return process

    def _waiting(self) -> subprocess.Popen[str]:
        with (self.folder / "processes.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.service.runner"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def _end(self) -> None:
        for process in [*self.processes.values(), getattr(self, "coordinator", None), self._next]:
            if process is None:
                continue
            _killed(process)


def _killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(LONGEST)
    for end in (process.stdin, process.stdout):
        if end is not None:
            end.close()


def _toml(own: Any) -> str:
    """Of settings, whose tables are two deep at most."""
    return "\n".join(_lines("", asdict(own) if is_dataclass(own) else own))


def _lines(path: str, told: dict[str, Any]) -> list[str]:
    plain = {k: v for k, v in told.items() if v is not None and not isinstance(v, dict)}
    found = [f"[{path}]"] if path else []
    found += [
        f"{k} = {json.dumps(list(v) if isinstance(v, tuple) else v)}" for k, v in plain.items()
    ]
    for name, own in told.items():
        if isinstance(own, dict):
            found += _lines(f"{path}.{name}" if path else name, own)
    return found
