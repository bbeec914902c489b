from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import duckdb
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.governance import open_runs
from sqlfl.party import rehearsals
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.conftest import Open
from tests.governance.clinic import PATIENTS, TESTS, Ask, ruled


@pytest.fixture
def clinic(database: Open) -> duckdb.DuckDBPyConnection:
    return database(PATIENTS)


@pytest.fixture
def fed(clinic: duckdb.DuckDBPyConnection, database: Open) -> Iterator[sqlfl.Federation]:
    with sqlfl.connect(analyst="acme", progress=False) as found:
        found.attach("clinic", clinic)
        found.attach("lab", database(TESTS))
        yield found


@pytest.fixture
def client(clinic: duckdb.DuckDBPyConnection) -> Iterator[PartyClient]:
    ruled(clinic)
    secret = b"\x07" * 32
    client = PartyClient(Client("clinic"), clinic, Secrets(secret, secret), analyst="acme")
    with closing(client):
        yield client


@pytest.fixture
def ask(client: PartyClient) -> Ask:
    """A party that is spoken to without a coordinator's code."""
    return lambda message: courier.ask(client, message)


@pytest.fixture
def time_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Ends only requests of this kind after the `seconds` of a policy: others may take longer than
    that on a slow machine."""
    in_time = open_runs.in_time

    def only(kind: str) -> None:
        def timed(request: ms.Message, seconds: float, *rest: object) -> ms.Message:
            return in_time(request, seconds if request.kind == kind else 1e6, *rest)  # type: ignore[arg-type]

        for module in (open_runs, rehearsals):
            monkeypatch.setattr(module, "in_time", timed)

    return only
