"""Packing to w bits: exact, canonical, of the stated size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.aggregation import packing
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, WireError

BLOCKS = 64 * 512
LENGTHS = st.one_of(
    st.integers(0, 200), st.sampled_from([BLOCKS - 1, BLOCKS, BLOCKS + 1, 2 * BLOCKS + 63])
)


def drawn(length: int, width: int) -> Array:
    words = np.frombuffer(np.random.default_rng(length).bytes(8 * length), np.uint64)
    return words & np.uint64(packing.largest(width))


def by_integers(values: Array, width: int) -> bytes:
    """The bytes of one large integer."""
    total = sum(value << width * at for at, value in enumerate(values.tolist()))
    return total.to_bytes(-(-len(values) * width // 8), "little")


@pytest.mark.parametrize("width", range(1, 65))
def test_bytes_are_the_bits_one_after_the_other(width: int) -> None:
    for length in (0, 1, 7, 8, 63, 64, 65, 130):
        values = drawn(length, width)
        packed = packing.pack(values, width)
        assert packed == by_integers(values, width)
        assert len(packed) == packing.size(length, width)


@given(width=st.integers(1, 64), length=LENGTHS)
def test_what_is_packed_is_unpacked(width: int, length: int) -> None:
    values = drawn(length, width)
    back = packing.unpack(packing.pack(values, width), width, length)
    assert back.dtype == packing.word(width)
    assert np.array_equal(back, values)
    assert back.flags.writeable


@given(data=st.data(), width=st.integers(1, 64), length=st.integers(1, 200))
def test_bytes_have_one_reading(data: st.DataObject, width: int, length: int) -> None:
    """Whatever bytes are read, they are those that are written of it."""
    size = packing.size(length, width)
    text = data.draw(st.binary(min_size=size, max_size=size))
    try:
        values = packing.unpack(text, width, length)
    except WireError:
        assert text[-1] >> (length * width) % 8
    else:
        assert packing.pack(values, width) == text


@pytest.mark.parametrize("bit", [5, 6, 7])
def test_bits_behind_the_last_number_are_refused(bit: int) -> None:
    good = packing.pack(np.array([7, 1, 2, 3, 4, 5, 7], np.uint8), 3)  # 21 of 24 bits
    bad = good[:-1] + bytes([good[-1] | 1 << bit])
    with pytest.raises(WireError, match="not zero"):
        packing.unpack(bad, 3, 7)


@pytest.mark.parametrize("width", [3, 8, 64])
@pytest.mark.parametrize("more", [-1, 1])
def test_another_number_of_bytes_is_refused(width: int, more: int) -> None:
    good = packing.pack(drawn(9, width), width)
    with pytest.raises(WireError, match=f"9 numbers of {width} bits"):
        packing.unpack(good[:more] if more < 0 else good + b"\0", width, 9)


@pytest.mark.parametrize(
    ("values", "width"),
    [
        (np.array([8], np.uint8), 3),
        (np.array([256], np.uint16), 8),
        (np.array([1], np.int8), 3),
        (np.array([[1]], np.uint8), 3),
        (np.array([1], np.uint8), 0),
        (np.array([1], np.uint8), 65),
    ],
)
def test_what_does_not_fit_is_refused(values: Array, width: int) -> None:
    with pytest.raises(InternalError):
        packing.pack(values, width)


@given(summands=st.integers(1, 2**20), most=st.integers(1, 2**43))
def test_the_width_is_the_least_that_holds_the_sum(summands: int, most: int) -> None:
    width = packing.width(summands, most)
    assert 2 ** (width - 1) < summands * most + 1 <= 2**width


def test_widths_are_exact_where_floats_are_not() -> None:
    assert packing.width(1, 2**53 - 1) == 53
    assert packing.width(1, 2**53) == 54
    assert packing.width(3, 2**62 // 3) == 62
    assert packing.width(1, 2**64 - 1) == 64


@pytest.mark.parametrize(("summands", "most"), [(0, 4), (4, 0), (-1, -1), (2, 2**63), (1, 2**64)])
def test_a_sum_beyond_64_bits_is_refused(summands: int, most: int) -> None:
    with pytest.raises(InternalError):
        packing.width(summands, most)


@pytest.mark.parametrize("width", [1, 5, 8, 9, 31, 33, 64])
def test_sums_are_modulo_the_width(width: int) -> None:
    vectors = [drawn(100, width).astype(packing.word(width)) for _ in range(300)]
    expected = [300 * value % 2**width for value in vectors[0].tolist()]
    assert packing.summed(vectors, width).tolist() == expected
