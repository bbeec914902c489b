"""Vectors of integers below 2ʷ: their words in memory, and their bytes, w bits a number.

Number i takes the bits from i·w on, its lowest first. Bit b is bit b mod 8 of byte b // 8. The rest
of the last byte is zero, so that a vector has one form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, WireError

WIDEST = 64
_LANES = 64
"""Numbers that are packed together. They take w words of 64 bits, for any w."""
_BLOCKS = 512
"""Blocks of that many numbers to pack at a time. So many fit the processor's cache."""


def width(summands: int, largest_value: int) -> int:
    """Return w = ⌈log₂(M·b + 1)⌉, the bits that the sum of M numbers in [0, b] may take. Raise
    InternalError if that is not in [1, 64].
    """
    bits = (summands * largest_value).bit_length()
    if summands < 1 or largest_value < 1 or bits > WIDEST:
        raise InternalError(f"a sum of {summands} numbers up to {largest_value}")
    return bits


def word(width: int) -> np.dtype[np.unsignedinteger]:
    """Return the unsigned type of 8, 16, 32 or 64 bits that holds numbers of `width` bits."""
    if not 1 <= width <= WIDEST:
        raise InternalError(f"numbers of {width} bits")
    size = next(size for size in (1, 2, 4, 8) if width <= 8 * size)
    return np.dtype(f"u{size}")


def largest(width: int) -> int:
    return (1 << width) - 1


def fits(values: Array, width: int) -> bool:
    """Return True if the unsigned integers are all below 2ʷ."""
    return values.size == 0 or int(values.max()) <= largest(width)


def size(count: int, width: int) -> int:
    """Return the bytes of `count` packed numbers: ⌈count·w/8⌉."""
    return (count * width + 7) // 8


def pack(values: Array, width: int) -> bytes:
    """Return the bytes of unsigned integers (n,) below 2ʷ. Raise InternalError for others."""
    kind = word(width)
    if values.ndim != 1 or values.dtype.kind != "u" or not fits(values, width):
        raise InternalError(f"an array of {values.dtype} and shape {values.shape} in {width} bits")
    if width == 8 * kind.itemsize:
        return values.astype(kind.newbyteorder("<"), copy=False).tobytes()
    step = _LANES * _BLOCKS
    pieces = [_packed(values[at : at + step], width) for at in range(0, len(values), step)]
    return b"".join(pieces)[: size(len(values), width)]


def unpack(data: bytes | memoryview, width: int, count: int) -> Array:
    """Return the `count` packed numbers: (count,) in the word of `width` bits. Raise WireError for
    bytes that `pack` does not make of so many.
    """
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
    """Return Σ of the vectors modulo 2ʷ, in words of `width` bits."""
    total = np.zeros_like(vectors[0], word(width))
    for vector in vectors:
        total += vector
    total &= total.dtype.type(largest(width))
    return total


def _lanes(width: int) -> list[tuple[int, int, int]]:
    """Return for each number of a block the word where it begins, its first bit, and the bits left
    in that word from there.
    """
    return [(*divmod(lane * width, 64), 64 - lane * width % 64) for lane in range(_LANES)]


def _packed(values: Array, width: int) -> bytes:
    """Return the bytes of at most _LANES · _BLOCKS numbers, with zeros to the end of the last
    block.
    """
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
    """Return the numbers of at most _BLOCKS blocks, with zeros to the end of the last block."""
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
