"""Keys of a run follow from what all its clients have drawn for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.contract.schema import (
    Client,
    Combination,
    FeatureSpecification,
    KeySpecification,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.party.combined import CombinedClient
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.udfs.blocks.blocks import SavedBlock
from tests.conftest import Open
from tests.courier import ask

TABLE = "CREATE TABLE t AS SELECT i AS k, sin(i) AS x, 'c' || i % 3 AS c FROM range(40) r(i)"
SELECT = "SELECT x, c, k AS sqlfl_key_0_0 FROM t"
SLOT = SlotSpecification(
    0,
    (FeatureSpecification("x", "numeric"), FeatureSpecification("c", "category")),
    False, False, (), (KeySpecification(0, ("BIGINT",)),), (0,), True, "federation", "arrays",
)  # fmt: skip
ROWS, ONES = np.arange(40, dtype=np.uint32), np.ones(40, np.uint32)
SHARED = Secrets(b"\x07" * 32, b"\x08" * 32)


@pytest.fixture
def clients(database: Open) -> Iterator[list[PartyClient]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(PartyClient(Client(name), database(TABLE), SHARED)))
            for name in "ab"
        ]


def prepared(client: PartyClient, slot: SlotSpecification = SLOT, run: str = "r") -> np.ndarray:
    reply = ask(client, ms.Prepare(run, -1, specifications_to_json((slot,)), (SELECT,)))
    assert isinstance(reply, ms.Prepared)
    return reply.nonce


def together(nonces: Sequence[np.ndarray]) -> np.ndarray:
    found: np.ndarray = np.unique(nonces, axis=0)
    return found


def begun(clients: Sequence[PartyClient]) -> np.ndarray:
    return together([prepared(client) for client in clients])


def tags(client: PartyClient, nonces: np.ndarray) -> set[bytes]:
    reply = ask(client, ms.SendKeys("r", 0, nonces))
    assert isinstance(reply, ms.JoinKeys)
    return {bytes(tag) for tag in reply.tags[0]}


def refused(reply: ms.Message, text: str) -> None:
    assert isinstance(reply, ms.Failure)
    assert text in reply.text


def test_clients_of_a_run_have_one_key_and_runs_of_one_name_another(
    clients: list[PartyClient],
) -> None:
    found = []
    for _ in range(2):
        nonces = begun(clients)
        one, other = (tags(client, nonces) for client in clients)
        assert one == other
        assert len(one) == 40
        found.append(one)
        for client in clients:
            ask(client, ms.Finish("r", -1))
    assert not found[0] & found[1]


def test_what_was_drawn_for_another_run_makes_no_key(clients: list[PartyClient]) -> None:
    """Nor does a client take part in a key that it has drawn nothing for."""
    client = clients[0]
    before = begun(clients)
    ask(client, ms.Finish("r", -1))
    prepared(client)
    for told in (before, np.zeros((1, 16), np.uint8)):
        refused(ask(client, ms.SendKeys("r", 0, told)), "without what this client has drawn")
    refused(ask(client, ms.Activate("r", 0, ROWS, ONES, 40, before)), "without what this client")


def test_the_others_parts_are_in_the_key(clients: list[PartyClient]) -> None:
    """What one client is told, and another is not, meets nothing."""
    one, other = (prepared(client) for client in clients)
    alone, both = tags(clients[0], one[None]), tags(clients[1], together([one, other]))
    assert not alone & both


def test_what_is_drawn_is_told_once(clients: list[PartyClient]) -> None:
    nonces = begun(clients)
    client = clients[0]
    tags(client, nonces)
    refused(ask(client, ms.SendKeys("r", 0, nonces)), "keys are asked for once")
    extended = together([*nonces, np.zeros(16, np.uint8)])
    late = ms.Activate("r", 0, ROWS, ONES, 40, extended)
    refused(ask(client, late), "other numbers are said to be drawn for this run than before")
    assert isinstance(ask(client, replace(late, nonces=nonces)), ms.Statistics)


def test_a_slot_without_keys_has_its_own_by_the_rows_that_are_active(database: Open) -> None:
    """Hashed categories, and the basis of standard errors."""
    slot = replace(SLOT, keys=())
    found, bases = [], []
    with closing(PartyClient(Client("a"), database(TABLE), SHARED)) as client:
        for shared in (True, True, False, False):
            own = specifications_to_json((replace(slot, shared=shared),))
            reply = ask(client, ms.Prepare("r", -1, own, ("SELECT x, c FROM t",)))
            assert isinstance(reply, ms.Prepared)
            refused(ask(client, ms.SendKeys("r", 0, reply.nonce[None])), "asked for once, of a")
            told = ask(client, ms.Activate("r", 0, ROWS, ONES, 40))
            if isinstance(told, ms.Statistics):
                found.append({bytes(tag) for tag in told.tags[0]})
            else:
                state = client._runs["r"].slots[0]
                encoding = state.encoded()
                block = SavedBlock(encoding, np.ones((encoding.width, 1)), "t")
                client.accept("m", 0, "m", block)
                rotated = ask(client, ms.SendRotated("r", 0, "m", 0, (), ()))
                assert isinstance(rotated, ms.Rotated)
                bases.append(rotated.weights)
            ask(client, ms.Finish("r", -1))
    assert len(found[0]) == len(found[1]) == 3
    assert not found[0] & found[1]
    assert not np.allclose(bases[0], bases[1])


def test_standard_errors_are_told_once(database: Open) -> None:
    """Two answers for other columns could be subtracted. Each class has errors of its own."""
    own = specifications_to_json((replace(SLOT, keys=(), shared=False),))
    with closing(PartyClient(Client("a"), database(TABLE), SHARED)) as client:
        ask(client, ms.Prepare("r", -1, own, ("SELECT x, c FROM t",)))
        ask(client, ms.Activate("r", 0, ROWS, ONES, 40))
        encoding = client._runs["r"].slots[0].encoded()
        d = encoding.width
        client.accept("m", 0, "m", SavedBlock(encoding, np.ones((d, 3)), "t"))
        square, line = np.zeros((d, d)), np.zeros(d)
        first = ms.SendErrors(
            "r", 0, "m", 0, 1, 0, (), (), 0, np.eye(d), *4 * (square,), *4 * (line,),
            np.zeros((2, d, 3)), np.zeros((2, 3)),
        )  # fmt: skip
        for told in (first, first, replace(first, output=2, covariance=2 * np.eye(d))):
            assert isinstance(ask(client, told), ms.Errors)
        for other in (
            replace(first, within=np.eye(d)),
            replace(first, between=np.eye(d), output=2),
            replace(first, constants=np.ones(d)),
            replace(first, partnerless=np.ones(d)),
            replace(first, partner=np.ones(d)),
            replace(first, penalised=1),
            replace(first, covariance=2 * np.eye(d)),
            replace(first, shift=np.ones(d)),
            replace(first, roots=np.ones((2, d, 3))),
            replace(first, starts=np.ones((2, 3))),
        ):
            refused(ask(client, other), "send_errors of slot 0 is answered once in a run")


def test_clients_that_are_combined_draw_as_one(database: Open) -> None:
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                closing(PartyClient(Client("a", n, combined=True), database(TABLE), SHARED))
            )
            for n in range(2)
        ]
        whole = stack.enter_context(closing(CombinedClient(members)))
        other = stack.enter_context(closing(PartyClient(Client("b"), database(TABLE), SHARED)))
        combination = Combination(((0, 0), (1, 1)), True, "")
        slot = replace(SLOT, fragments=(0, 1), combination=combination, shared=False)
        request = ms.Prepare("r", -1, specifications_to_json((slot,)), (SELECT, SELECT))
        reply = ask(whole, request)
        assert isinstance(reply, ms.Prepared)
        nonces = together([reply.nonce, prepared(other)])
        for alone in (reply.nonce[None] ^ 1, nonces ^ 1):
            refused(ask(whole, ms.SendKeys("r", 0, together(list(alone)))), "without what this")
        told = ask(whole, ms.SendKeys("r", 0, nonces))
        assert isinstance(told, ms.JoinKeys)
        assert {bytes(tag) for tag in told.tags[0]} == tags(other, nonces)
