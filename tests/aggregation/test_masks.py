"""Masks cancel in the sum, hide each vector, and are used once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sqlfl.aggregation import masks, packing
from sqlfl.aggregation.fixed_point import added
from sqlfl.aggregation.masks import MAX_STREAM_BYTES, Masks
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PrivacyError, WireError
from tests.aggregation import reference
from tests.aggregation.clients import (
    RUN,
    clients,
    pair,
    peers_of,
    private_key,
    sent_sum,
    true_sum,
    vectors,
)

SIGNIFICANT = 1e-6
N = 50_000


def send(members: list[Masks], summands: list[Array], number: int, width: int) -> list[bytes]:
    return [
        packing.pack(member.mask(vector, number, width), width)
        for member, vector in zip(members, summands, strict=True)
    ]


@pytest.mark.parametrize("count", range(2, 11))
def test_sums_are_exact_for_every_width(count: int) -> None:
    members = clients(count)
    for width in range(1, 65):
        summands = vectors(count, 9, width, os.urandom)
        sent = send(members, summands, width, width)
        assert sent_sum(sent, width, 9) == true_sum(summands, width)


@given(
    count=st.integers(2, 4),
    width=st.integers(1, 64),
    length=st.one_of(st.integers(0, 70), st.sampled_from([8191, 8192, 8193, 65535, 65537, 140000])),
)
def test_sums_are_exact_for_every_length(count: int, width: int, length: int) -> None:
    summands = vectors(count, length, width, np.random.default_rng(length).bytes)
    sent = send(clients(count), summands, 0, width)
    assert {len(data) for data in sent} == {packing.size(length, width)}
    assert sent_sum(sent, width, length) == true_sum(summands, width)


@pytest.mark.parametrize(
    ("width", "length"),
    [*((width, 40) for width in (1, 5, 8, 13, 16, 27, 32, 47, 64)), (7, 65_600), (64, 8_200)],
)
def test_masks_are_those_of_the_rfcs(width: int, length: int) -> None:
    """Each client's, to the bit, by an implementation that shares nothing with it."""
    pairs = [pair(name) for name in range(3)]
    places = (0, 2, 5)
    peers = peers_of(pairs, places)
    members = dict(zip(places, peers.keys, strict=True))
    summands = vectors(3, length, width, np.random.default_rng(width).bytes)
    for name, (place, vector) in enumerate(zip(places, summands, strict=True)):
        sent = Masks(pairs[name], peers, RUN).mask(vector, 3, width)
        expected = vector.tolist()
        for peer in set(places) - {place}:
            told = {"run": RUN, "number": 3, "width": width, "length": length}
            words = reference.stream(private_key(name), place, peer, members, **told)
            sign = 1 if place < peer else -1
            expected = [value + sign * word for value, word in zip(expected, words, strict=True)]
        assert sent.dtype == packing.word(width)
        assert sent.tolist() == [value % 2**width for value in expected]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (5, "16e63b1a"),
        (
            64,
            "c9e6f54210958565089dc58f83b6ed0f0a48974615dfb81a"
            "56e630f30d1db9214e88419df1def4dae58cd488386fba35",
        ),
    ],
)
def test_what_is_sent_stays_as_it_is(width: int, expected: str) -> None:
    pairs = [pair(name) for name in range(3)]
    member = Masks(pairs[1], peers_of(pairs, (0, 2, 5)), RUN)
    sent = member.mask(np.arange(6, dtype=np.uint64), 3, width)
    assert packing.pack(sent, width).hex() == expected


def uniform(sent: Array, width: int) -> float:
    """p of χ² over at most 128 cells: the lesser of the highest bits and of the lowest."""
    bits = min(width, 7)
    high = sent >> sent.dtype.type(width - bits)
    low = sent & sent.dtype.type((1 << bits) - 1)
    counts = [np.bincount(cells.astype(np.int64), minlength=1 << bits) for cells in (high, low)]
    return min(float(stats.chisquare(count).pvalue) for count in counts)


def looks_uniform(width: int) -> bool:
    """Of the vectors of two rounds that are all the same, and of their difference."""
    member = clients(3)[1]
    value = np.full(N, packing.largest(width) // 3, np.uint64)
    first, second = (member.mask(value, number, width) for number in (0, 1))
    low = first.dtype.type(packing.largest(width))
    return all(uniform(s, width) > SIGNIFICANT for s in (first, second, (second - first) & low))


WIDTHS = pytest.mark.parametrize("width", [1, 3, 7, 8, 13, 32, 64])


@WIDTHS
def test_masked_vectors_are_uniform(width: int) -> None:
    assert looks_uniform(width)


@WIDTHS
def test_a_constant_mask_does_not_look_uniform(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(masked: Array, key: bytes, *, subtract: bool) -> None:
        masked += masked.dtype.type(key[0])

    monkeypatch.setattr(masks, "_apply", constant)
    assert not looks_uniform(width)


@WIDTHS
def test_masks_of_another_round_do_not_look_uniform(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Masks._key

    def same(own: Masks, place: int, secret: bytes, number: int, *sizes: int) -> bytes:
        return keyed(own, place, secret, 0, *sizes)

    monkeypatch.setattr(Masks, "_key", same)
    assert not looks_uniform(width)


@pytest.mark.parametrize("later", [4, 3, 0, -1])
def test_a_round_is_not_used_again(later: int) -> None:
    member, vector = clients(2)[0], np.zeros(3, np.uint64)
    member.mask(vector, 4, 8)
    with pytest.raises(PrivacyError, match="round"):
        member.mask(vector, later, 8)
    member.mask(vector, 5, 8)


def test_a_round_that_is_refused_is_not_used() -> None:
    """A vector that cannot be sent leaves the round's masks for one that can."""
    member = clients(2)[0]
    with pytest.raises(InternalError):
        member.mask(np.array([9], np.uint64), 0, 3)
    member.mask(np.array([7], np.uint64), 0, 3)


def test_a_round_that_is_done_again_has_masks_of_its_own() -> None:
    members = clients(3)
    summands = vectors(3, 20, 16, os.urandom)
    lost = send(members[:2], summands[:2], 0, 16)  # the third dropped out
    again = send(members, summands, 1, 16)
    assert lost[0] != again[0]
    assert sent_sum(again, 16, 20) == true_sum(summands, 16)
    assert sent_sum([*lost, again[2]], 16, 20) != true_sum(summands, 16)


def left_to_colluders(honest: int, count: int, width: int) -> tuple[Array, list[Array]]:
    """What is left of the first client's vector when clients from number `honest` on subtract all
    that they know of its mask; and the clients' vectors."""
    pairs = [pair(name) for name in range(count)]
    members = {place: own.public for place, own in enumerate(pairs)}
    summands = vectors(count, 400, width, os.urandom)
    left = Masks(pairs[0], peers_of(pairs), RUN).mask(summands[0], 7, width)
    for name in range(honest, count):
        told = {"run": RUN, "number": 7, "width": width, "length": 400}
        words = reference.stream(private_key(name), name, 0, members, **told)
        left -= np.array(words, left.dtype)
    return left & left.dtype.type(packing.largest(width)), summands


def test_colluders_see_the_sum_of_two_honest_clients_only() -> None:
    """What is left is the value and the mask that it shares with the other honest client, which is
    as random as a mask; with the other's vector it is their sum."""
    width, count = 5, 5
    left, summands = left_to_colluders(2, count, width)
    members = {name: pair(name).public for name in range(count)}
    told = {"run": RUN, "number": 7, "width": width, "length": 400}
    shared = np.array(reference.stream(private_key(0), 0, 1, members, **told), np.uint64)
    assert left.tolist() == ((summands[0] + shared) % 2**width).tolist()
    assert uniform(left, width) > SIGNIFICANT
    other = (summands[1] - shared) % np.uint64(2**width)
    assert true_sum([left, other], width) == true_sum(summands[:2], width)


def test_all_others_colluding_see_the_vector() -> None:
    """Against that, nothing protects but noise that is in the vector."""
    left, summands = left_to_colluders(1, 4, 5)
    assert left.tolist() == summands[0].tolist()


def another_key(count: int) -> Masks:
    """The first client, who was given another key for the second."""
    pairs = [pair(name) for name in range(count)]
    return Masks(pairs[0], peers_of([pairs[0], pair(100), *pairs[2:]]), RUN)


def another_key_elsewhere(count: int) -> Masks:
    """The first client, who was given another key for the last."""
    pairs = [pair(name) for name in range(count)]
    return Masks(pairs[0], peers_of([*pairs[:-1], pair(100)]), RUN)


def swapped_places(count: int) -> Masks:
    pairs = [pair(name) for name in range(count)]
    return Masks(pairs[0], peers_of([pairs[0], *pairs[:0:-1]]), RUN)


def swapped_own_place(count: int) -> Masks:
    pairs = [pair(name) for name in range(count)]
    return Masks(pairs[0], peers_of([pairs[1], pairs[0], *pairs[2:]]), RUN)


def fewer_peers(count: int) -> Masks:
    return clients(count - 1)[0]


def another_run(count: int) -> Masks:
    return clients(count, "another run")[0]


@pytest.mark.parametrize(
    "made",
    [
        another_key,
        another_key_elsewhere,
        swapped_places,
        swapped_own_place,
        fewer_peers,
        another_run,
    ],
)
def test_clients_that_differ_in_what_they_know_have_no_sum(made: Callable[[int], Masks]) -> None:
    """No error, for nobody holds all; a sum that is as random as each vector."""
    count, width = 4, 8
    summands = vectors(count, 2000, width, os.urandom)
    sent = send([made(count), *clients(count)[1:]], summands, 0, width)
    error = np.array(sent_sum(sent, width, 2000), np.uint8) - np.array(
        true_sum(summands, width), np.uint8
    )
    assert uniform(error, width) > SIGNIFICANT


def test_clients_that_agree_on_other_places_have_the_sum() -> None:
    """Places need not be what they were: it counts that all have the same."""
    pairs = [pair(name) for name in (2, 0, 1)]
    peers = peers_of(pairs, (3, 10, 4_000_000_000))
    summands = vectors(3, 50, 9, os.urandom)
    sent = send([Masks(own, peers, RUN) for own in pairs], summands, 0, 9)
    assert sent_sum(sent, 9, 50) == true_sum(summands, 9)


@pytest.mark.parametrize(("number", "width"), [(1, 8), (0, 7)])
def test_another_round_or_width_has_no_sum(number: int, width: int) -> None:
    members = clients(2)
    zeros = np.zeros(2000, np.uint64)
    total = members[0].mask(zeros, 0, 8) + members[1].mask(zeros, number, width)
    assert uniform(total & np.uint8(127), 7) > SIGNIFICANT


def test_another_length_is_an_error_and_its_beginning_no_sum() -> None:
    members = clients(2)
    longer, shorter = (
        member.mask(np.zeros(n, np.uint64), 0, 8)
        for member, n in zip(members, (2001, 2000), strict=True)
    )
    with pytest.raises(WireError):
        packing.unpack(packing.pack(longer, 8), 8, 2000)
    assert uniform(longer[:2000] + shorter, 8) > SIGNIFICANT


@pytest.mark.parametrize(
    "values",
    [
        np.array([77123], np.uint64),
        np.array([77123], np.int64),
        np.array([[1, 2]], np.uint64),
        np.array([1.0]),
        np.broadcast_to(np.uint8(0), MAX_STREAM_BYTES + 1),
    ],
)
def test_what_cannot_be_masked_is_refused_without_a_value(values: Array) -> None:
    with pytest.raises(InternalError) as caught:
        clients(2)[0].mask(values, 0, 8)
    assert "77123" not in str(caught.value)


def test_a_vector_is_not_changed_by_its_mask() -> None:
    vector = np.arange(5, dtype=np.uint8)
    clients(2)[0].mask(vector, 0, 8)
    assert vector.tolist() == [0, 1, 2, 3, 4]


@given(st.integers(2, 10), st.integers(0, 5), st.integers(1, 16), st.integers(0, 2**32))
def test_sums_of_limbs_are_exact(count: int, numbers: int, limbs: int, seed: int) -> None:
    drawn = np.random.default_rng(seed).integers(0, 2**64, (count, numbers, limbs), np.uint64)
    total = reduce(added, drawn)
    own = clients(count)
    for number in (1, 7):
        masked = [m.mask_limbs(part, number) for m, part in zip(own, drawn, strict=True)]
        np.testing.assert_array_equal(reduce(added, masked), total)


def test_masked_limbs_are_uniform_and_of_one_round() -> None:
    zeros = np.zeros((10_000, 4), np.uint64)
    own = clients(3)
    masked = [m.mask_limbs(zeros, 1) for m in own]
    for seen in (*masked, added(masked[0], masked[1]), masked[0] ^ own[0].mask_limbs(zeros, 2)):
        counts = np.bincount(np.ascontiguousarray(seen).view(np.uint8).reshape(-1), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-9
    with pytest.raises(PrivacyError, match="used once"):
        own[0].mask_limbs(zeros, 2)
    with pytest.raises(InternalError, match="to be masked"):
        own[0].mask_limbs(zeros.astype(np.int64), 3)
