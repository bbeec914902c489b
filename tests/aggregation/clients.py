"""Clients of secure sums, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sqlfl.aggregation import packing
from sqlfl.aggregation.keys import KeyPair
from sqlfl.aggregation.masks import Masks
from sqlfl.aggregation.peers import Peers
from sqlfl.base.arrays import Array

RUN = "a run"


def private_key(name: int) -> bytes:
    return bytes([name + 1]) * 32


def pair(name: int) -> KeyPair:
    """The key pair of `private_key(name)`."""
    return KeyPair(lambda count: private_key(name)[:count])


def peers_of(pairs: Sequence[KeyPair], places: Sequence[int] | None = None) -> Peers:
    return Peers(
        tuple(range(len(pairs)) if places is None else places), tuple(p.public for p in pairs)
    )


def clients(count: int, run: str = RUN) -> list[Masks]:
    pairs = [pair(name) for name in range(count)]
    peers = peers_of(pairs)
    return [Masks(own, peers, run) for own in pairs]


def vectors(count: int, length: int, width: int, entropy: Callable[[int], bytes]) -> list[Array]:
    """Of numbers below 2ʷ, the first vector's all the largest."""
    drawn = np.frombuffer(entropy(8 * count * length), np.uint64).reshape(count, length)
    found = drawn & np.uint64(packing.largest(width))
    found[0] = packing.largest(width)
    return list(found)


def true_sum(summands: Sequence[Array], width: int) -> list[int]:
    """Modulo 2ʷ, by Python's integers."""
    columns = zip(*(vector.tolist() for vector in summands), strict=True)
    return [sum(column) % 2**width for column in columns]


def sent_sum(sent: Sequence[bytes], width: int, length: int) -> list[int]:
    """What a coordinator has of packed vectors."""
    unpacked = [packing.unpack(data, width, length) for data in sent]
    return packing.summed(unpacked, width).tolist()
