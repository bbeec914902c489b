"""AES-CMAC (NIST SP 800-38B, RFC 4493) of many messages at once.

The cipher is that of `cryptography`. One call encrypts a block of each message, so that millions of
short messages take as long as copying them a few times.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from sqlfl.base.arrays import Array

BLOCK = 16
"""Bytes of a block, and of a result."""
_REDUCTION = 0x87
"""The polynomial of the doubling in GF(2¹²⁸)."""


class Cmac:
    """AES-CMAC under one key of 16, 24 or 32 bytes."""

    def __init__(self, key: bytes) -> None:
        # each block separately: CMAC chains them
        self._encryptor = Cipher(AES(key), ECB()).encryptor()
        first = _doubled(self._encryptor.update(bytes(BLOCK)))
        self._last = np.frombuffer(_doubled(first) + first, np.uint8).reshape(2, BLOCK)
        """Subkeys: one is added to a last block that is padded, the other to one that is whole."""

    def of_blocks(self, blocks: Array) -> Array:
        """Return uint8 (n, 16), from messages of k > 0 whole blocks each, uint8 (n, k, 16)."""
        return self._chained(blocks, np.ones(len(blocks), np.intp))

    def of(self, messages: pa.Array) -> Array:
        """Return uint8 (n, 16), from binary messages of any lengths, none NULL."""
        messages = messages.cast(pa.binary())
        lengths = np.diff(_offsets(messages))
        blocks = np.maximum(-(-lengths // BLOCK), 1)
        tags = np.empty((len(messages), BLOCK), np.uint8)
        for count in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == count)
            alike = messages if len(places) == len(messages) else messages.take(pa.array(places))
            tags[places] = self._chained(*_padded(alike, count))
        return tags

    def _chained(self, blocks: Array, whole: Array) -> Array:
        state = np.zeros((len(blocks), BLOCK), np.uint8)
        for number in range(blocks.shape[1]):
            given = state ^ blocks[:, number]
            if number == blocks.shape[1] - 1:
                given ^= self._last[whole]
            state = np.frombuffer(self._encryptor.update(given.data), np.uint8).reshape(-1, BLOCK)
        return state


def _doubled(block: bytes) -> bytes:
    number = int.from_bytes(block, "big") << 1
    if number >> 8 * BLOCK:
        number ^= 1 << 8 * BLOCK | _REDUCTION
    return number.to_bytes(BLOCK, "big")


def _padded(messages: pa.Array, blocks: int) -> tuple[Array, Array]:
    """Return the padded messages, uint8 (n, blocks, 16), and which of them fill their blocks: int
    (n,), 0 or 1.
    """
    offsets = _offsets(messages)
    lengths = np.diff(offsets)
    size, begin, end = blocks * BLOCK, int(offsets[0]), int(offsets[-1])
    padded = np.zeros(len(messages) * size, np.uint8)
    starts = np.arange(len(messages)) * size
    if end > begin:
        shift = np.repeat(starts - (offsets[:-1] - begin), lengths)
        content = np.frombuffer(messages.buffers()[2], np.uint8)[begin:end]
        padded[shift + np.arange(end - begin)] = content
    partial = lengths < size
    padded[(starts + lengths)[partial]] = 0x80
    return padded.reshape(-1, blocks, BLOCK), (~partial).astype(np.intp)


def _offsets(messages: pa.Array) -> Array:
    """Return int64 (n + 1,): the bounds of each message in the array's buffer."""
    if not len(messages):
        return np.zeros(1, np.int64)
    bounds = np.frombuffer(messages.buffers()[1], np.int32)
    return bounds[messages.offset : messages.offset + len(messages) + 1].astype(np.int64)
