"""What is refused as a set of public keys, and what tells one set from another."""

from __future__ import annotations

import dataclasses

import pytest

from sqlfl.aggregation.peers import Peers
from sqlfl.base.errors import PrivacyError
from tests.aggregation import reference
from tests.aggregation.clients import pair, peers_of, private_key

PUBLIC = tuple(pair(name).public for name in range(4))
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    reference.PRIME - 1,
]
"""The points of RFC 7748 (section 7) and of Bernstein's list whose multiples by 8 are zero."""


def test_keys_are_those_of_the_rfc() -> None:
    assert [reference.x25519(private_key(name), reference.BASE) for name in range(4)] == [*PUBLIC]


@pytest.mark.parametrize("number", LOW_ORDER)
def test_a_point_of_low_order_is_refused(number: int) -> None:
    key = number.to_bytes(32, "little")
    assert reference.x25519(private_key(7), key) == bytes(32)
    with pytest.raises(PrivacyError, match="client 3 is a point of low order"):
        Peers((0, 3), (PUBLIC[0], key))


@pytest.mark.parametrize(
    "number",
    [
        reference.PRIME,
        reference.PRIME + 9,
        2**255 - 1,
        int.from_bytes(PUBLIC[0], "little") + 2**255,
    ],
)
def test_a_point_has_one_form(number: int) -> None:
    with pytest.raises(PrivacyError, match="client 1 is not in canonical form"):
        Peers((0, 1), (PUBLIC[0], number.to_bytes(32, "little")))


@pytest.mark.parametrize(
    ("places", "keys", "text"),
    [
        ((), (), "2 clients or more"),
        ((0,), PUBLIC[:1], "2 clients or more"),
        ((0, 1), PUBLIC[:3], "2 places of clients with 3 keys"),
        ((1, 0), PUBLIC[:2], "ascend"),
        ((1, 1), PUBLIC[:2], "ascend"),
        ((-1, 1), PUBLIC[:2], "place"),
        ((0, 1 << 32), PUBLIC[:2], "place"),
        ((0, 1, 2), (PUBLIC[0], PUBLIC[1], PUBLIC[0]), "the same public key"),
        ((0, 1), (PUBLIC[0], PUBLIC[1][:31]), "client 1 has 31 bytes"),
        ((0, 1), (PUBLIC[0] + b"\0", PUBLIC[1]), "client 0 has 33 bytes"),
    ],
)
def test_what_is_no_set_of_peers_is_refused(
    places: tuple[int, ...], keys: tuple[bytes, ...], text: str
) -> None:
    with pytest.raises(PrivacyError, match=text):
        Peers(places, keys)


def test_a_set_does_not_change() -> None:
    peers = Peers((0, 1), PUBLIC[:2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        peers.keys = PUBLIC[2:]  # type: ignore[misc]


def test_the_fingerprint_is_of_all_places_and_keys() -> None:
    sets = [
        Peers((0, 1), PUBLIC[:2]),
        Peers((0, 2), PUBLIC[:2]),
        Peers((0, 1), PUBLIC[1::-1]),
        Peers((0, 1), PUBLIC[1:3]),
        Peers((0, 1, 2), PUBLIC[:3]),
    ]
    assert len({peers.fingerprint for peers in sets}) == len(sets)
    for peers in sets:
        members = dict(zip(peers.places, peers.keys, strict=True))
        assert peers.fingerprint == reference.fingerprint(members)


def test_the_fingerprint_stays_as_it_is() -> None:
    peers = peers_of([pair(name) for name in range(3)], (0, 2, 5))
    assert peers.fingerprint == "d2a08aef23470346b1bd43192d12739d2066ef375fa826c04f98e33bf7821398"
