"""Participants of a run's secure sums: places and public keys of all clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sqlfl.base.errors import PrivacyError

KEY_BYTES = 32
PLACES = 1 << 32
"""Upper limit of places, itself excluded."""

_DOMAIN = b"sqlfl secure sum: peers 1"
_PRIME = 2**255 - 19
_PROBE = X25519PrivateKey.from_private_bytes(bytes([1]) * KEY_BYTES)
"""Key without secrecy. Any private key is a multiple of 8 and takes a point of low order to
zero.
"""


@dataclass(frozen=True)
class Peers:
    """All clients of a run, including this one. Raise PrivacyError for an invalid set.

    There are at least two, with ascending places. Each has a public key of X25519 (RFC 7748) of its
    own: 32 bytes in the canonical form of its point, which is not of low order.
    """

    places: tuple[int, ...]
    """Ascending integers in [0, PLACES). The order decides who adds a common mask."""
    keys: tuple[bytes, ...]
    """The public key at each place."""

    def __post_init__(self) -> None:
        if len(self.places) != len(self.keys):
            raise PrivacyError(f"{len(self.places)} places of clients with {len(self.keys)} keys")
        if len(self.keys) < 2:
            raise PrivacyError(
                "a secure sum needs 2 clients or more: the sum over one client is its own vector"
            )
        if not all(0 <= place < PLACES for place in self.places):
            raise PrivacyError(f"a client's place is not in [0, {PLACES})")
        if not all(first < second for first, second in pairwise(self.places)):
            raise PrivacyError("places of clients must ascend, each once")
        for place, key in zip(self.places, self.keys, strict=True):
            _check(place, key)
        if len(set(self.keys)) != len(self.keys):
            raise PrivacyError("two clients have the same public key")

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of all places and keys, in hexadecimal. It is equal if all clients
        hold the same set, so that owners can compare it without the coordinator.
        """
        members = (part for pair in zip(self.places, self.keys, strict=True) for part in pair)
        return hashlib.sha256(encoded(_DOMAIN, len(self.keys), *members)).hexdigest()


def _check(place: int, key: bytes) -> None:
    """Raise PrivacyError for an invalid public key, and for one whose secrets everybody knows."""
    if len(key) != KEY_BYTES:
        raise PrivacyError(f"the public key of client {place} has {len(key)} bytes, not 32")
    if int.from_bytes(key, "little") >= _PRIME:  # the same point as a smaller number
        raise PrivacyError(f"the public key of client {place} is not in canonical form")
    try:
        _PROBE.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise PrivacyError(
            f"the public key of client {place} is a point of low order: anybody would know the "
            "secrets shared with it"
        ) from None


NUMBER_BYTES = 8


def _number(value: int) -> bytes:
    """Return an integer in [0, 2⁶⁴), little-endian. Raise OverflowError for others."""
    return value.to_bytes(NUMBER_BYTES, "little")


def encoded(*parts: bytes | int) -> bytes:
    """Return the parts one after the other, each behind its length, for hashing: no two sequences
    have the same text. A number is a part of 8 bytes.
    """
    texts = [_number(part) if isinstance(part, int) else part for part in parts]
    return b"".join(_number(len(text)) + text for text in texts)
