"""All that a hostile coordinator tries, by a stream to the party's agent: what comes down is
checked as if it were asked beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import Host
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.stream import Credentials
from tests.depth import THOROUGH
from tests.governance import test_hostile_coordinator as hostile
from tests.governance.test_hostile_coordinator import ask, run, shared, spoken
from tests.service.party import Admitting, at, running, serving

NUMBERS = count()
SECRET = b"\x07" * 32


class Wired:
    """A party's client, at the other end of a line."""

    def __init__(self, line: PartyConnection, analyst: str, stack: ExitStack) -> None:
        self._line, self._analyst, self._stack = line, analyst, stack

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        return self._line.ask(0, data, "heart", self._analyst)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module", autouse=True)
def _wired() -> Iterator[None]:
    """In the tests that follow every party is at a line's end."""
    admits, before = Admitting(), hostile.party
    with serving(admits, secure=False) as server:

        def party(con: duckdb.DuckDBPyConnection, rules: str = "", analyst: str = "acme") -> Wired:
            con.execute(hostile.MADE)
            with sqlfl.owner(con) as owner:
                owner.sql(f"CREATE TRAINING POLICY r {f'WITH ({rules})' * bool(rules)}")
                owner.sql(hostile.GRANT)
            name = f"clinic{next(NUMBERS)}"
            line = admits.admit(name)
            with ExitStack() as stack:
                host = stack.enter_context(
                    Host("clinic", con, secret=SECRET, organisation=SECRET,
                         known=lambda study, speaker: speaker)
                )  # fmt: skip
                agent = Agent(at(server, secure=False), name, 1, host, Credentials())
                stack.enter_context(running(agent))
                assert admits.there[name].wait(20)
                return Wired(line, analyst, stack.pop_all())

        hostile.party = party  # type: ignore[assignment]
        yield
        hostile.party = before


SOME = ("test_nothing_was_made_or_changed", "test_labels_of_ones_choice", "test_what_is_listed",
        "test_more_often_than_proposed", "test_who_is_not_granted_anything")  # fmt: skip
globals().update(
    (name, own)
    for name, own in vars(hostile).items()
    if name.startswith("test_") and (THOROUGH or name in SOME)
)
__all__ = ["ask", "run", "shared", "spoken"]
