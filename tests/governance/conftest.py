from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import duckdb
import pytest

import sqlfl
from sqlfl.contract.schema import Client
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
