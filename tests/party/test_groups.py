"""Groups that the databases of a party merge: sealed for each other, and for one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import Error
from sqlfl.contract.schema import (
    Client,
    FeatureSpecification,
    KeySpecification,
    Merging,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.party.party import PartyClient, Secrets
from tests.conftest import Open
from tests.courier import ask, brought

TABLE = "CREATE TABLE t AS SELECT i % 7 AS k, 'planted' || i AS s FROM range({}, {}) r(i)"
GROUPS = (
    "SELECT k AS sqlfl_by_0, max(s) AS sqlfl_part_0, count(*) AS sqlfl_part_1 FROM t GROUP BY k"
)
SELECT = (
    "SELECT q.n, q.s, q.k AS sqlfl_key_0_0 FROM (SELECT g.sqlfl_by_0 AS k, "
    "max(g.sqlfl_part_0) AS s, sum(g.sqlfl_part_1) AS n "
    f"FROM ({GROUPS}) AS g GROUP BY g.sqlfl_by_0) AS q"
)
FEATURES = (FeatureSpecification("n", "numeric"), FeatureSpecification("s", "category"))
SECRETS = Secrets(b"\x07" * 32, b"\x08" * 32)


def slot(place: int) -> SlotSpecification:
    return SlotSpecification(
        0, FEATURES, False, False, (), (KeySpecification(0, ("BIGINT",)),), (0,), True,
        "organisation", "arrays", merging=Merging((GROUPS,), place, 2),
    )  # fmt: skip


@pytest.fixture
def clients(database: Open) -> Iterator[list[PartyClient]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(
                    PartyClient(Client("b", n), database(TABLE.format(n * 5, n * 5 + 9)), SECRETS)
                )
            )
            for n in (0, 1)
        ]


def begun(clients: list[PartyClient], run: str = "r") -> Array:
    """The nonces of a run that both have prepared."""
    nonces = []
    for place, client in enumerate(clients):
        told = specifications_to_json((slot(place),))
        reply = ask(client, ms.Prepare(run, -1, told, (SELECT,)))
        assert isinstance(reply, ms.Prepared)
        assert reply.rows.tolist() == [0]
        nonces.append(reply.nonce)
    found: Array = np.unique(nonces, axis=0)
    return found


def sealed(client: PartyClient, nonces: Array, run: str = "r") -> tuple[Array, ...]:
    reply = ask(client, ms.SendGroups(run, 0, nonces))
    assert isinstance(reply, ms.SealedGroups)
    return reply.sealed


def test_each_key_is_merged_at_one_database(clients: list[PartyClient]) -> None:
    nonces = begun(clients)
    parts = [sealed(client, nonces) for client in clients]
    rows = []
    for place, client in enumerate(clients):
        told = tuple(part[place] for part in parts)
        reply = ask(client, ms.MergeGroups("r", 0, told))
        assert isinstance(reply, ms.MergedGroups)
        keys = ask(client, ms.SendKeys("r", 0, nonces))
        assert isinstance(keys, ms.JoinKeys)
        assert len(keys.codes[0]) == reply.rows.sum()
        rows.append({bytes(tag) for tag in keys.tags[0]})
    assert not rows[0] & rows[1]
    assert len(rows[0] | rows[1]) == 7


def test_the_coordinator_reads_no_group(clients: list[PartyClient]) -> None:
    nonces = begun(clients)
    data = brought(clients[0], ms.SendGroups("r", 0, nonces))
    assert b"planted" not in data
    again = sealed(clients[0], nonces)
    assert len(again[0]) == 0
    assert again[1].size


@pytest.mark.parametrize("fault", ["changed", "own", "of another run", "of another party", "cut"])
def test_groups_that_were_not_sealed_for_it_are_refused(
    fault: str, clients: list[PartyClient], database: Open
) -> None:
    if fault == "of another party":
        other = Secrets(SECRETS.federation, b"\x09" * 32)
        clients[1] = PartyClient(Client("b", 1), database(TABLE.format(5, 14)), other)
    before = begun(clients, "before")
    old = sealed(clients[1], before, "before")[0]
    nonces = begun(clients)
    mine, part = sealed(clients[0], nonces), sealed(clients[1], nonces)[0].copy()
    if fault == "changed":
        part[-1] ^= 1
    given = {"own": mine[1], "of another run": old, "cut": part[:7]}.get(fault, part)
    with pytest.raises(Error, match="cannot be opened"):
        failed(clients[0], ms.MergeGroups("r", 0, (mine[0], given)))


def failed(client: PartyClient, request: ms.Message) -> None:
    reply = ask(client, request)
    if isinstance(reply, ms.Failure):
        raise Error(reply.text)


def test_groups_are_of_slots_that_have_some(clients: list[PartyClient]) -> None:
    nonces = begun(clients)
    with pytest.raises(Error, match="without groups to merge"):
        failed(clients[0], ms.SendGroups("r", 1, nonces))
    told = specifications_to_json((replace(slot(0), merging=Merging(("SELECT 1",), 0, 2)),))
    reply = ask(clients[0], ms.Prepare("odd", -1, told, (SELECT,)))
    assert isinstance(reply, ms.Failure)
