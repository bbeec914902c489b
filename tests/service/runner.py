"""A coordinator or a party's agent as a process of its own: python -m tests.service.runner

It loads its modules, and then waits to hear on its input which of them it is, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import duckdb
import pyarrow as pa

from sqlfl.messages.wire import received
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import Host
from sqlfl.service.passes import Passes
from sqlfl.service.service import Service
from sqlfl.service.settings import CoordinatorSettings, read_settings
from sqlfl.service.stream import Credentials
from tests.udfs.snapshots import temporary_tables


def coordinator(told: dict[str, Any]) -> None:
    own = read_settings(CoordinatorSettings, told["config"])
    location = f"grpc+tls://127.0.0.1:{told['port']}"
    service = Service(own, location, Path(told["state"]), insecure=False)
    ended: SimpleQueue[None] = SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: ended.put(None))
    print(service.port, flush=True)
    while ended.empty():  # a signal that another thread takes does not end a wait
        time.sleep(0.1)
    service.close(told.get("seconds", 5.0))


class Faulty:
    """A host that, at the nth message of a kind, sends a signal: to itself, or to another.

    path : of the file that says so, as JSON, while there is one; see `Distributed.arm`.
    """

    def __init__(self, host: Host, path: Path) -> None:
        self._host, self._path = host, path
        self._seen = 0
        self.welcome, self.interrupt = host.welcome, host.interrupt
        self.stop, self.forget = host.stop, host.forget

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        fault = None
        with suppress(FileNotFoundError):
            fault = json.loads(self._path.read_text())
        hit = fault is not None and received(data).kind == fault["kind"]
        self._seen += hit
        hit = hit and self._seen == fault["nth"]
        if hit and not fault["after"]:
            self._strike(fault)
        reply = self._host.handle(client, data, study, speaker)
        if hit and fault["after"]:
            self._strike(fault)
        return reply

    def _strike(self, fault: dict[str, Any]) -> None:
        """Once: the file goes first."""
        self._path.unlink()
        self._seen = 0
        os.kill(fault["pid"] or os.getpid(), fault["signal"])


def party(told: dict[str, Any]) -> None:
    own = Credentials(*(Path(told[what.name]).read_bytes() for what in fields(Credentials)))
    assert own.authority is not None
    known = Passes(own.authority, told["coordinator"])
    con = duckdb.connect(told["database"])
    con.execute("SET threads = 1")
    secret = bytes.fromhex(told["secret"])

    def seen(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if text.startswith("connected to"):
            Path(told["connected"]).touch()

    with Host(told["party"], con, secret=secret, known=known, open=True) as host:
        agent = Agent(
            told["location"], told["party"], 1, Faulty(host, Path(told["fault"])), own,
            seen, server=told["coordinator"],
        )  # fmt: skip
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=agent.stop).start())
        report = Path(told["report"])
        threading.Thread(target=_report, args=(host, report), daemon=True).start()
        agent.run()
        open_ = host.working
    print(json.dumps({"working": open_, "tables": temporary_tables(con)}), flush=True)


def _report(host: Host, path: Path) -> None:
    """Whether a run is open just now, again and again."""
    again = threading.Event()
    while not again.wait(0.1):
        new = path.with_suffix(".new")
        new.write_text(json.dumps(host.working))
        new.replace(path)


if __name__ == "__main__":
    what, asked = json.load(sys.stdin)
    {"coordinator": coordinator, "party": party}[what](asked)
