"""Key pairs: agreed on once, and never told."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from sqlfl.aggregation.keys import KeyPair
from sqlfl.aggregation.masks import Masks
from sqlfl.base.errors import PrivacyError
from sqlfl.privacy.samplers import system
from tests.aggregation import reference
from tests.aggregation.clients import RUN, clients, pair, peers_of, private_key


def test_two_clients_share_the_secret_of_the_rfc() -> None:
    pairs = [pair(name) for name in range(3)]
    peers = peers_of(pairs, (1, 4, 6))
    shared = [own.agree(peers) for own in pairs]
    assert [sorted(secrets) for secrets in shared] == [[4, 6], [1, 6], [1, 4]]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        secret = reference.x25519(private_key(first), pairs[second].public)
        assert shared[first][peers.places[second]] == secret
        assert shared[second][peers.places[first]] == secret


def test_peers_are_settled_once() -> None:
    pairs = [pair(name) for name in range(3)]
    given = peers_of(pairs)
    Masks(pairs[0], given, RUN)
    for later in (given, peers_of(pairs[:2])):
        with pytest.raises(PrivacyError, match="settled already"):
            Masks(pairs[0], later, RUN)


def test_peers_without_this_client_are_refused_and_settle_nothing() -> None:
    pairs = [pair(name) for name in range(3)]
    with pytest.raises(PrivacyError, match="this client's own"):
        pairs[2].agree(peers_of(pairs[:2]))
    assert sorted(pairs[2].agree(peers_of(pairs))) == [0, 1]


def test_keys_are_drawn_from_the_systems_generator() -> None:
    assert inspect.signature(KeyPair).parameters["entropy"].default is system
    assert KeyPair().public != KeyPair().public


@pytest.mark.parametrize("made", [lambda: pair(0), lambda: clients(2)[0]])
def test_what_holds_secrets_shows_and_copies_none(made: Callable[[], object]) -> None:
    held = made()
    members = reference.x25519(private_key(0), pair(1).public)
    for secret in (private_key(0), members):
        for text in (repr(held), str(held), f"{held}"):
            assert repr(secret)[2:-1] not in text
            assert secret.hex() not in text
    assert not hasattr(held, "__dict__")
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither copied nor written"):
            write(held)
