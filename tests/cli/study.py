"""A coordinator and parties without TLS in this process, for commands that ask them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb

from sqlfl.service import wrapping
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import Host
from sqlfl.service.service import Service
from sqlfl.service.settings import CoordinatorSettings, Member, StudySettings
from sqlfl.service.stream import Credentials
from tests.service.party import running

MADE = (
    "CREATE TABLE customers AS SELECT i AS pid, sin(i) AS balance, cos(i) AS spent, "
    "i * i % 7 < 3 AS churned FROM range(400) AS r(i)"
)
QUERY = """SELECT b.balance, s.spent, b.churned
  FROM bank.customers b JOIN shop.customers s ON b.pid = s.pid"""
SETTINGS = CoordinatorSettings(
    name="here",
    parties={"bank": Member(agents=("bank",)), "shop": Member(agents=("shop-one",))},
    studies={
        "churn": StudySettings(parties=("bank", "shop"), analysts=("alice",)),
        "other": StudySettings(parties=("shop",), analysts=("alice",)),
    },
    heartbeat=0.5,
)


@contextmanager
def listening(state: Path | None = None) -> Iterator[tuple[Service, str]]:
    service = Service(SETTINGS, "grpc://127.0.0.1:0", state, insecure=True)
    try:
        yield service, f"grpc://127.0.0.1:{service.port}"
    finally:
        service.close(5.0)


@contextmanager
def joined() -> Iterator[tuple[Service, str]]:
    """With both parties, whose databases are in memory."""
    secret = wrapping.make_secret()
    with ExitStack() as stack:
        service, place = stack.enter_context(listening())
        for name, agent in (("bank", "bank"), ("shop", "shop-one")):
            con = stack.enter_context(duckdb.connect())
            con.execute(MADE)
            known = lambda _, speaker: speaker  # noqa: E731
            host = stack.enter_context(Host(name, con, secret=secret, known=known, open=True))
            own = Agent(place, name, 1, host, Credentials(), called=agent)
            stack.enter_context(running(own))
        pause = threading.Event()
        for _ in range(400):
            rows = service.board.told()["parties"]
            if all(row["connected"] for row in rows):
                break
            pause.wait(0.02)
        assert all(row["connected"] for row in rows)
        yield service, place
