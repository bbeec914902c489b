"""Masks: random words that are added to a client's vector and cancel in the sum over all clients.

Let s_ij be the secret of clients i and j, i < j by place, and m = HKDF-SHA256 (RFC 5869) of s_ij
the key of ChaCha20 (RFC 8439). PRG_ij(r) are the words of m's stream in round r. Client i sends

    x_i + Σ_{j > i} PRG_ij(r) − Σ_{j < i} PRG_ji(r)   modulo 2ʷ

and the sum over all clients is Σ x_i modulo 2ʷ, exactly. A mask of w bits is the lowest bits of a
word of 8, 16, 32 or 64. It is uniform, as 2ʷ divides the number of words.

The key is bound to everything that two clients must agree on: run, round, both keys and places, the
whole set of peers, w and the vector's length. If two clients differ in any of it, their masks have
nothing in common. They do not cancel, and the sum is as random as each vector.
"""

from __future__ import annotations

import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sqlfl.aggregation import packing
from sqlfl.aggregation.fixed_point import WORD, summed
from sqlfl.aggregation.keys import KeyPair, Secret
from sqlfl.aggregation.peers import KEY_BYTES, Peers, encoded
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PrivacyError

MAX_STREAM_BYTES = 1 << 38
"""Maximum bytes of a key's stream: 2³² blocks of 64."""

_DOMAIN = b"sqlfl secure sum: mask 1"
_NONCE = bytes(16)
"""Nonce of all streams, with the first block's number: each key is used for one stream."""
_TILE = 1 << 16
_ZEROS = bytes(_TILE)


class Masks(Secret):
    """A client's masks in one run: each round has its own, for one vector."""

    __slots__ = ("_last", "_lock", "_peers", "_place", "_run", "_secrets")

    def __init__(self, pair: KeyPair, peers: Peers, run: str) -> None:
        """Settle the run's peers. Raise PrivacyError if they are settled already, or if `pair` is
        not among them (`KeyPair.agree`).
        """
        self._secrets = pair.agree(peers)
        self._place = peers.places[peers.keys.index(pair.public)]
        self._peers = peers
        self._run = run
        self._last = -1
        self._lock = threading.Lock()

    def mask(self, values: Array, number: int, width: int) -> Array:
        """Return the masked vector of round `number`, ready to send.

        values: unsigned integers (n,) below 2ʷ. The result has as many, in the word of `width`
        bits.

        Numbers of rounds, in [0, 2⁶⁴), must rise from call to call. Otherwise PrivacyError is
        raised: two vectors under one mask disclose their difference. A failed round is repeated
        under a larger number.
        """
        _check(values, width)
        self._begin(number)
        masked = values.astype(packing.word(width))
        for place, secret in self._secrets.items():
            key = self._key(place, secret, number, width, len(values))
            _apply(masked, key, subtract=place < self._place)
        masked &= masked.dtype.type(packing.largest(width))
        return masked

    def mask_limbs(self, values: Array, number: int) -> Array:
        """Return the masked vector of whole numbers modulo 2^(64 limbs): uint64 (n, limbs), from
        the lowest limb on, of any values.
        """
        if values.ndim != 2 or values.dtype != np.uint64 or values.nbytes > MAX_STREAM_BYTES:
            raise InternalError(f"an array of {values.dtype} and shape {values.shape} to be masked")
        self._begin(number)
        width = WORD * values.shape[1]
        parts = [values]
        for place, secret in self._secrets.items():
            key = self._key(place, secret, number, width, len(values))
            parts.append(_stream(key, values.nbytes).reshape(values.shape))
        return summed(parts, [False, *(place < self._place for place in self._secrets)])

    def _begin(self, number: int) -> None:
        if not 0 <= number < 1 << 64:
            raise PrivacyError("the number of a secure sum's round must be in [0, 2⁶⁴)")
        with self._lock:
            if number <= self._last:
                raise PrivacyError(
                    f"round {number} of a secure sum was asked for after round {self._last}: a "
                    "round's masks are used once"
                )
            self._last = number

    def _key(self, place: int, secret: bytes, number: int, width: int, length: int) -> bytes:
        """Return the key of a round's stream that this client shares with the peer at `place`."""
        keys = dict(zip(self._peers.places, self._peers.keys, strict=True))
        first, second = sorted((place, self._place))
        info = encoded(
            _DOMAIN,
            self._run.encode(),
            number,
            first,
            second,
            keys[first],
            keys[second],
            self._peers.fingerprint.encode(),
            width,
            length,
        )
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _check(values: Array, width: int) -> None:
    """Raise InternalError unless this is a vector of unsigned integers below 2ʷ. The error
    discloses no value.
    """
    word = packing.word(width)
    if values.ndim != 1 or values.dtype.kind != "u":
        raise InternalError(f"an array of {values.dtype} and shape {values.shape} to be masked")
    if len(values) * word.itemsize > MAX_STREAM_BYTES:
        raise InternalError(f"a vector of {len(values)} numbers: too long for one round's masks")
    if not packing.fits(values, width):
        raise InternalError(f"a number of {width} bits or more to be masked with {width} bits")


def _stream(key: bytes, size: int) -> Array:
    """Return `size` bytes of a key's stream, as uint64."""
    cipher = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(size)), "<u8")


def _apply(masked: Array, key: bytes, *, subtract: bool) -> None:
    """Add the stream of a key to the words in place, or subtract it."""
    operation = np.subtract if subtract else np.add
    cipher = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    buffer = bytearray(_TILE)
    stream = np.frombuffer(buffer, masked.dtype.newbyteorder("<"))
    for at in range(0, len(masked), len(stream)):
        tile = masked[at : at + len(stream)]
        cipher.update_into(_ZEROS[: tile.nbytes], buffer)
        operation(tile, stream[: len(tile)], out=tile)
