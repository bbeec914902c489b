"""What a client lets out of slots whose sums are secret, whatever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.aggregation.fixed_point import GRADIENTS, added, to_floats
from sqlfl.aggregation.keys import KeyPair
from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.schema import (
    Client,
    FeatureSpecification,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.messages import CLIENT
from sqlfl.party.server import Masking

SECRET = b"\1" * 32
SPECIFICATION = SlotSpecification(
    slot=0,
    features=(FeatureSpecification("x", "numeric", 1),),
    target=False,
    classes=False,
    identifiers=(),
    keys=(),
    fragments=(0,),
    shared=True,
    secret="organisation",
    engine="arrays",
    secure=True,
)
GRADIENT = np.array([[1.5], [-2.25]])
NONCE = np.zeros(ms.NONCE_BYTES, np.uint8)


def reply(message: ms.Message) -> Callable[[], ms.Message]:
    return lambda: message


class Party:
    """One client's masks, and what it would answer without."""

    def __init__(self, number: int, secret: bytes = SECRET, *, shared: bool = True) -> None:
        self.client = Client("bank", number)
        self.masking = Masking(self.client, secret)
        self.worked = 0
        text = specifications_to_json((replace(SPECIFICATION, shared=shared),))
        prepared = ms.Prepared("r", CLIENT, np.ones(1, np.int64), np.zeros(1, np.int64), NONCE)
        self.masking.answer(ms.Prepare("r", CLIENT, text, ("SELECT 1",)), reply(prepared))

    @property
    def key(self) -> ms.PublicKey:
        found = self.masking.answer(ms.SendPublicKey("r", 0), self.refuse)
        assert isinstance(found, ms.PublicKey)
        return found

    def refuse(self) -> ms.Message:
        raise AssertionError("nothing is to be computed")

    def repeat(self, *slots: int) -> None:
        self.masking.answer(ms.Repeat("r", CLIENT, np.array(slots, np.int64)), self.refuse)

    def gradient(self, values: float = 1.0, *, number: int = 1) -> ms.Message:
        def work() -> ms.Message:
            self.worked += 1
            return ms.PartialGradient("r", 0, GRADIENT * self.worked)

        request = ms.Probe("r", 0, np.full((3, 1), values, np.float32), number=number)
        return self.masking.answer(request, work)


def peers(*parties: Party) -> ms.SetPeers:
    keys = [party.key for party in parties]
    return ms.SetPeers(
        "r",
        0,
        tuple(str(party.client) for party in parties),
        np.zeros(len(parties), np.int64),
        np.stack([key.key for key in keys]),
        np.stack([key.seal for key in keys]),
    )


def joined() -> tuple[Party, Party]:
    parties = Party(0), Party(1)
    told = peers(*parties)
    for party in parties:
        party.masking.answer(told, party.refuse)
    return parties


def test_a_slot_is_summed_with_itself_alone() -> None:
    parties = Party(0), Party(1)
    told = peers(*parties)
    with pytest.raises(InternalError, match=r"slot 0 is summed with slots \[0, 1\]"):
        parties[0].masking.answer(replace(told, slots=np.array([0, 1])), parties[0].refuse)


def test_a_sum_and_no_part_of_it() -> None:
    parties = joined()
    masked = []
    for party in parties:
        found = party.gradient()
        assert isinstance(found, ms.Masked)
        assert (found.of, found.lengths.tolist()) == ("partial_gradient", [2, 1])
        assert not np.isclose(to_floats(found.values, GRADIENTS), GRADIENT[:, 0]).any()
        masked.append(found.values)
    np.testing.assert_array_equal(to_floats(added(*masked), GRADIENTS), 2 * GRADIENT[:, 0])


def test_nothing_is_told_before_there_are_keys() -> None:
    with pytest.raises(InternalError, match="before there are keys"):
        Party(0).gradient()


def test_a_number_is_used_once() -> None:
    party, _ = joined()
    party.gradient(number=4)
    for values in (1.0, 2.0):  # a second vector under the masks of the first
        with pytest.raises(
            PrivacyError, match="round 4 of a secure sum was asked for after round 4"
        ):
            party.gradient(values, number=4)
    party.repeat(0)
    with pytest.raises(PrivacyError, match="round 4 of a secure sum was asked for after round 4"):
        party.gradient(2.0, number=4)


def test_what_is_asked_again_is_not_computed_again() -> None:
    parties = joined()
    parties[0].gradient(number=1)  # the other one was not reached
    masked = []
    for party in parties:
        party.repeat(0)
        found = party.gradient(number=2)
        assert isinstance(found, ms.Masked)
        masked.append(found.values)
    assert [party.worked for party in parties] == [1, 1]
    np.testing.assert_array_equal(to_floats(added(*masked), GRADIENTS), 2 * GRADIENT[:, 0])
    parties[0].gradient(number=3)  # the same once more is none
    assert parties[0].worked == 2
    parties[0].repeat(0)
    parties[0].gradient(2.0, number=4)  # nor is something else
    assert parties[0].worked == 3
    parties[0].repeat(1)
    parties[0].gradient(2.0, number=5)
    assert parties[0].worked == 4


def test_only_who_has_the_secret_can_offer_a_key() -> None:
    """A coordinator that puts keys of its own in the others' place would read what it wants."""
    honest, other = Party(0), Party(1)
    told = peers(honest, other)
    false = KeyPair()
    keys = np.stack([told.keys[0], np.frombuffer(false.public, np.uint8)])
    with pytest.raises(InternalError, match="key of bank/1 is not sealed"):
        honest.masking.answer(replace(told, keys=keys), honest.refuse)
    stranger = Party(1, b"\2" * 32)
    with pytest.raises(InternalError, match="key of bank/1 is not sealed"):
        honest.masking.answer(peers(honest, stranger), honest.refuse)
    swapped = replace(told, clients=told.clients[::-1])
    with pytest.raises(InternalError, match="not sealed"):
        honest.masking.answer(swapped, honest.refuse)


def test_keys_are_given_once_and_to_more_than_one() -> None:
    party, other = joined()
    with pytest.raises(PrivacyError, match="settled already"):
        party.masking.answer(peers(party, other), party.refuse)
    alone = Party(0)
    with pytest.raises(PrivacyError, match="2 clients or more"):
        alone.masking.answer(peers(alone), alone.refuse)
    left_out = Party(2)
    with pytest.raises(PrivacyError, match="this client's own"):
        left_out.masking.answer(peers(Party(0), Party(1)), left_out.refuse)


def test_a_slot_that_is_said_to_be_its_own_tells_no_gradient_either() -> None:
    party = Party(0, shared=False)
    with pytest.raises(InternalError, match="before there are keys"):
        party.gradient()
    with pytest.raises(InternalError, match="sums nothing in secret"):
        party.masking.answer(replace(peers(party, Party(1)), slot=1), party.refuse)


def test_statistics_leave_for_all_categories_that_they_are_of() -> None:
    parties = joined()
    tags = np.sort(np.random.default_rng(0).integers(0, 256, (3, 16), np.uint8), axis=0)
    own = [tags[:2], tags[1:]]
    for party, mine in zip(parties, own, strict=True):
        number, counts = np.array([5.0]), np.array([2.0, 3.0])
        plain = ms.Statistics(
            "r", 0, number, number * 2, number * 0.5, number * 0, (mine,), (counts,)
        )
        request = ms.Weigh("r", 0, np.ones(5), 10.0)
        told = party.masking.answer(request, reply(plain))
        assert isinstance(told, ms.Vocabularies)
        with pytest.raises(InternalError, match="left out"):
            party.masking.answer(ms.SendStatistics("r", 0, (tags[:1],)), party.refuse)
        with pytest.raises(InternalError, match="0 categories"):
            party.masking.answer(ms.SendStatistics("r", 0, ()), party.refuse)
        every = ms.SendStatistics("r", 0, (tags,), number=7)
        found = party.masking.answer(every, party.refuse)
        assert isinstance(found, ms.Masked)
        assert found.lengths.tolist() == [1, 1, 3]
        with pytest.raises(PrivacyError, match="round 7 of a secure sum"):
            party.masking.answer(every, party.refuse)


def test_statistics_that_were_not_measured() -> None:
    party, _ = joined()
    with pytest.raises(InternalError, match="no statistics"):
        party.masking.answer(ms.SendStatistics("r", 0, ()), party.refuse)


def test_the_end_of_a_run_forgets_its_key() -> None:
    party, _ = joined()
    party.masking.answer(ms.Finish("r", CLIENT), reply(ms.Ready("r", CLIENT)))
    assert not party.masking._runs
    answer = party.masking.answer(ms.SendPublicKey("r", CLIENT), reply(ms.Ready("r", CLIENT)))
    assert isinstance(answer, ms.Ready)
