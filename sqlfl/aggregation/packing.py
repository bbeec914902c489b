"""Vectors of integers below 2ʷ: their words in memory, and their bytes, w bits a number.

Number i takes the bits from i·w on, its lowest first, and bit b is bit b mod 8 of byte b // 8.
What is left of the last byte is zero, so that a vector has one form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, WireError

WIDEST = 64
_LANES = 64
"""Numbers that are packed together: they take w words of 64 bits, whatever w is."""
_BLOCKS = 512
"""Blocks of that many numbers at a time: what the processor's cache holds."""


def width(summands: int, largest_value: int) -> int:
    """w = ⌈log₂(M·b + 1)⌉, the bits that the sum of M numbers in [0, b] may take. InternalError
    where that is not in [1, 64]."""
    found = (summands * largest_value).bit_length()
    if summands < 1 or largest_value < 1 or found > WIDEST:
        raise InternalError(f"a sum of {summands} numbers up to {largest_value}")
    return found


def word(width: int) -> np.dtype[np.unsignedinteger]:
    """The unsigned type of 8, 16, 32 or 64 bits that holds numbers of `width` bits."""
    if not 1 <= width <= WIDEST:
        raise InternalError(f"numbers of {width} bits")
    size = next(size for size in (1, 2, 4, 8) if width <= 8 * size)
    return np.dtype(f"u{size}")


def largest(width: int) -> int:
    return (1 << width) - 1


def fits(values: Array, width: int) -> bool:
    """Whether the unsigned integers are all below 2ʷ."""
    return values.size == 0 or int(values.max()) <= largest(width)


def size(count: int, width: int) -> int:
    """Bytes of `count` packed numbers: ⌈count·w/8⌉."""
    return (count * width + 7) // 8


def pack(values: Array, width: int) -> bytes:
    """The bytes of unsigned integers (n,) below 2ʷ. InternalError for others."""
    kind = word(width)
    if values.ndim != 1 or values.dtype.kind != "u" or not fits(values, width):
        raise InternalError(f"an array of {values.dtype} and shape {values.shape} in {width} bits")
    if width == 8 * kind.itemsize:
        return values.astype(kind.newbyteorder("<"), copy=False).tobytes()
    step = _LANES * _BLOCKS
    pieces = [_packed(values[at : at + step], width) for at in range(0, len(values), step)]
    return b"".join(pieces)[: size(len(values), width)]


def unpack(data: bytes | memoryview, width: int, count: int) -> Array:
    """The `count` numbers that were packed: (count,) of the word of `width` bits. WireError for
    bytes that `pack` does not make of so many."""
    kind = word(width)
    data = memoryview(data)
    if len(data) != size(count, width):
        raise WireError(
            f"{len(data)} bytes, where {count} numbers of {width} bits take {size(count, width)}"
        )
    used = count * width % 8
    if used and data[-1] >> used:
        raise WireError("bits behind the last number are not zero")
    if width == 8 * kind.itemsize:
        return np.frombuffer(data, kind.newbyteorder("<")).astype(kind)
    values = np.empty(count, kind)
    numbers = _LANES * _BLOCKS
    step = size(numbers, width)
    for at in range(0, len(data), step):
        start = at // step * numbers
        values[start : start + numbers] = _unpacked(data[at : at + step], width)[: count - start]
    return values


def summed(vectors: Sequence[Array], width: int) -> Array:
    """Σ of the vectors modulo 2ʷ: words of `width` bits, as they are."""
    total = np.zeros_like(vectors[0], word(width))
    for vector in vectors:
        total += vector
    total &= total.dtype.type(largest(width))
    return total


def _lanes(width: int) -> list[tuple[int, int, int]]:
    """For each number of a block: the word where it begins, at which bit, and how many bits of
    that word are left from there."""
    return [(*divmod(lane * width, 64), 64 - lane * width % 64) for lane in range(_LANES)]


def _packed(values: Array, width: int) -> bytes:
    """The bytes of at most _LANES · _BLOCKS numbers, and zeros to the end of the last block."""
    blocks = -(-len(values) // _LANES)
    padded = np.zeros(blocks * _LANES, np.uint64)
    padded[: len(values)] = values
    lanes = padded.reshape(blocks, _LANES).T.copy()
    words = np.zeros((width, blocks), np.uint64)
    for lane, (at, shift, left) in enumerate(_lanes(width)):
        words[at] |= lanes[lane] << np.uint64(shift)
        if left < width:
            words[at + 1] |= lanes[lane] >> np.uint64(left)
    return words.T.astype("<u8").tobytes()


def _unpacked(data: memoryview, width: int) -> Array:
    """The numbers of at most _BLOCKS blocks, and zeros to the end of the last block."""
    blocks = -(-len(data) // (8 * width))
    padded = np.zeros(blocks * 8 * width, np.uint8)
    padded[: len(data)] = data
    words = padded.view("<u8").reshape(blocks, width).T.copy()
    lanes = np.empty((_LANES, blocks), np.uint64)
    for lane, (at, shift, left) in enumerate(_lanes(width)):
        lanes[lane] = words[at] >> np.uint64(shift)
        if left < width:
            lanes[lane] |= words[at + 1] << np.uint64(left)
    lanes &= np.uint64(largest(width))
    return lanes.T.ravel()
