"""A dictionary attack on captured join keys: it breaks a plain hash, and fails on a keyed one.

The adversary sees all traffic, knows the code, the type of the key and that ids are below 10**5
(in the thorough run 10**6).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from sqlfl.contract.schema import KeySpecification
from sqlfl.federation import session
from sqlfl.messages import JoinKeys, SendKeys
from sqlfl.udfs.numbering import keys
from tests.conftest import Open
from tests.depth import THOROUGH
from tests.federations import Parties
from tests.privacy.capturing import View, watched

IDS = 10**6 if THOROUGH else 10**5
ROWS = 300
PARTIES = ("bank", "clinic")
TRAIN = """
    TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 1)
    FROM (SELECT c.x, b.y FROM bank.b JOIN clinic.c USING (id))"""


@functools.cache
def known() -> np.ndarray:
    return np.sort(np.random.default_rng(0).choice(IDS, ROWS, replace=False))


@pytest.fixture
def parties(database: Open) -> Parties:
    rows = ", ".join(f"({i})" for i in known())
    return {
        party: [database(f"CREATE TABLE {table} AS SELECT id, {column} FROM (VALUES {rows}) v(id)")]
        for party, table, column in (
            ("bank", "b", "CAST(random() AS DOUBLE) AS y"),
            ("clinic", "c", "CAST(random() AS DOUBLE) AS x"),
        )
    }


def tags(view: View, party: str) -> set[bytes]:
    """The distinct tags that a party sent."""
    (message,) = view.of("join_keys", "up", party)
    assert isinstance(message, JoinKeys)
    (found,) = message.tags
    return {row.tobytes() for row in found}


def messages(ids: np.ndarray) -> list[bytes]:
    """The bytes that are hashed for each id, as anyone can read them from keys.key_tags."""
    return [int(i).to_bytes(16, "little") for i in ids]


@functools.cache
def dictionary() -> dict[bytes, int]:
    """Plain SHA-256 of every id there can be: a second for 10**6, once."""
    digests = (hashlib.sha256(m).digest()[: keys.TAG_BYTES] for m in messages(np.arange(IDS)))
    return {digest: i for i, digest in enumerate(digests)}


def by_hash(found: set[bytes]) -> list[int]:
    """Ids that the dictionary gives back."""
    table = dictionary()
    return sorted(table[tag] for tag in found if tag in table)


def by_guessed_key(found: set[bytes], run: str, nonces: np.ndarray) -> list[int]:
    """Ids given back by the same hash under keys that someone could try who lacks the parties'
    secret, and has passed all nonces on.

    Over the ids that are there: one hit would do to show that a key was right.
    """
    secrets = [b"", bytes(32), run.encode(), bytes.fromhex(run), b"sqlfl", b"join"]
    guesses = secrets + [keys.derive(secret, run, "join") for secret in secrets]
    guesses += [keys.derive(keys.run_key(secret, run, nonces), "join") for secret in secrets]
    recovered = set()
    for guess in guesses:
        key = keys.derive(guess, "key", "0", "INTEGER")
        for i, message in zip(known(), messages(known()), strict=True):
            mac = CMAC(AES(key))
            mac.update(message)
            if mac.finalize() in found:
                recovered.add(int(i))
    return sorted(recovered)


Sent = tuple[tuple[str, np.ndarray], dict[str, set[bytes]]]


def captured(parties: Parties, runs: int = 1) -> list[Sent]:
    """The run's id and its nonces, and each party's tags, of so many runs of one statement."""
    found = []
    with watched(parties) as (fed, coordinator):
        for _ in range(runs):
            fed.sql(TRAIN.replace("TRAIN MODEL", "TRAIN OR REPLACE MODEL"))
            view = coordinator.view()
            (sent,) = view.of("send_keys", "down", "bank")
            assert isinstance(sent, SendKeys)
            own = {party: tags(view, party) for party in PARTIES}
            found.append(((sent.run, sent.nonces), own))
    return found


def test_the_tags_of_real_traffic_are_in_no_dictionary(parties: Parties) -> None:
    ((told, sent),) = captured(parties)
    for party in PARTIES:
        assert len(sent[party]) == ROWS
        assert by_hash(sent[party]) == []
        assert by_guessed_key(sent[party], *told) == []
    # the parties' tags meet all the same, which is what they are for
    assert sent["bank"] == sent["clinic"]


def test_a_build_with_a_plain_hash_is_broken_whole(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(secret: bytes, key: KeySpecification, parts: Sequence[pa.Array]) -> np.ndarray:
        ids = messages(parts[0].to_numpy())
        digests = b"".join(hashlib.sha256(m).digest()[: keys.TAG_BYTES] for m in ids)
        return np.frombuffer(digests, np.uint8).reshape(-1, keys.TAG_BYTES)

    monkeypatch.setattr(keys, "key_tags", plain)
    ((_, sent),) = captured(parties)
    for party in PARTIES:
        assert by_hash(sent[party]) == known().tolist()


def test_a_build_without_the_secret_is_broken_whole(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_key = keys.run_key
    monkeypatch.setattr(keys, "run_key", lambda _, *own: run_key(b"", *own))
    ((told, sent),) = captured(parties)
    monkeypatch.undo()
    for party in PARTIES:
        assert by_guessed_key(sent[party], *told) == known().tolist()


def test_two_runs_of_one_statement_have_no_tag_in_common(parties: Parties) -> None:
    (_, first), (_, second) = captured(parties, runs=2)
    for party in PARTIES:
        assert len(first[party]) == len(second[party]) == ROWS
        assert not first[party] & second[party]


def test_a_build_with_one_key_for_all_runs_is_linked(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "run_key", lambda secret, *_: secret)
    (_, first), (_, second) = captured(parties, runs=2)
    for party in PARTIES:
        assert first[party] == second[party]


def under_one_id(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> tuple[Sent, Sent]:
    """Two runs of a coordinator that calls them alike."""
    monkeypatch.setattr(session.secrets, "token_hex", lambda size: "ab" * size)
    first, second = captured(parties, runs=2)
    assert first[0][0] == second[0][0]
    return first, second


def test_a_run_id_that_is_used_twice_links_nothing(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, first), (_, second) = under_one_id(parties, monkeypatch)
    for party in PARTIES:
        assert len(first[party]) == len(second[party]) == ROWS
        assert not first[party] & second[party]
    assert second["bank"] == second["clinic"]


def test_a_build_whose_keys_follow_from_the_run_id_alone_is_linked(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_key = keys.run_key
    monkeypatch.setattr(keys, "run_key", lambda secret, run, nonces: run_key(secret, run, []))
    (_, first), (_, second) = under_one_id(parties, monkeypatch)
    for party in PARTIES:
        assert first[party] == second[party]
