"""Keys, certificates, and the parties' secret."""

from __future__ import annotations

import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sqlfl.base.errors import Error
from sqlfl.service import certificates as ct
from sqlfl.service.wrapping import make_secret, unwrap, wrap

AUTHORITY_KEY, AUTHORITY = ct.make_authority("ward-authority")
NOW = dt.datetime.now(dt.UTC)


def issued(name: str, *hosts: str) -> tuple[bytes, bytes]:
    key = ct.make_key()
    return key, ct.sign(ct.signing_request(key, name, hosts), AUTHORITY_KEY, AUTHORITY)


def test_a_certificate_has_the_names_of_the_request_and_is_the_authoritys() -> None:
    key, own = issued("bank.example.org", "localhost", "127.0.0.1", "::1")
    assert ct.names_of(own) == ("bank.example.org", "localhost", "127.0.0.1", "::1")
    assert ct.signed_by(own, AUTHORITY)
    assert ct.public_key(own) == ct.private_key(key).public_key()
    found = ct.certificate(own)
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 397


def test_another_authoritys_is_not() -> None:
    _, other = ct.make_authority("ward-authority")
    assert not ct.signed_by(issued("bank")[1], other)


@pytest.mark.parametrize("days", [-1, 398])
def test_a_certificate_holds_for_its_time(days: int) -> None:
    assert not ct.signed_by(issued("bank")[1], AUTHORITY, NOW + dt.timedelta(days=days))


def test_an_authority_signs_no_authority() -> None:
    """Whoever has a certificate cannot make others that hold."""
    key, own = issued("bank")
    theirs = ct.make_key()
    forged = ct.sign(ct.signing_request(theirs, "clinic"), key, own)
    assert not ct.signed_by(forged, AUTHORITY)


@pytest.mark.parametrize("name", ["", "a b", "bank/0", "-", "..", "a" * 64, "ü", "a\nb"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(Error, match="is no name of a certificate"):
        ct.signing_request(ct.make_key(), name)


def test_a_request_that_its_key_has_not_signed() -> None:
    ours, theirs = ct.signing_request(ct.make_key(), "bank"), ct.signing_request(ct.make_key(), "x")
    with pytest.raises(Error, match="no signing request"):
        ct.sign(b"nonsense", AUTHORITY_KEY, AUTHORITY)
    changed = ours[:-60] + theirs[-60:]
    with pytest.raises(Error, match=r"no signing request|not signed by its own key"):
        ct.sign(changed, AUTHORITY_KEY, AUTHORITY)


def test_a_key_of_another_kind() -> None:
    pem = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with pytest.raises(Error, match="is not one of secp256r1"):
        ct.private_key(rsa.generate_private_key(65537, 2048).private_bytes(*pem))
    with pytest.raises(Error, match="is not one of secp256r1"):
        ct.private_key(ec.generate_private_key(ec.SECP384R1()).private_bytes(*pem))
    with pytest.raises(Error, match="no private key"):
        ct.private_key(b"-----BEGIN PRIVATE KEY-----")


def test_files_are_new_and_keys_are_their_owners_alone(tmp_path: Path) -> None:
    key, own = issued("bank")
    ct.write_private(tmp_path / "bank.key", key)
    ct.write_public(tmp_path / "bank.crt", own)
    assert stat.S_IMODE((tmp_path / "bank.key").stat().st_mode) == 0o600
    for write in (ct.write_private, ct.write_public):
        with pytest.raises(Error, match="is there already"):
            write(tmp_path / "bank.key", b"other")
    assert (tmp_path / "bank.key").read_bytes() == key
    with pytest.raises(Error, match="cannot write"):
        ct.write_public(tmp_path / "no" / "bank.crt", own)


def test_the_secret_opens_to_the_parties_alone() -> None:
    secret = make_secret()
    bank, clinic, other = issued("bank"), issued("clinic"), issued("coordinator")
    text = wrap(secret, {"bank": bank[1], "clinic": clinic[1]})
    assert unwrap(text, *bank) == unwrap(text, *clinic) == secret
    assert secret.hex() not in text
    with pytest.raises(Error, match="not wrapped for coordinator, but for bank, clinic"):
        unwrap(text, *other)
    with pytest.raises(Error, match="does not open by its key"):
        unwrap(text, other[0], bank[1])
    assert wrap(secret, {"bank": bank[1]}) != wrap(secret, {"bank": bank[1]})


def test_a_secret_that_was_changed_does_not_open() -> None:
    own = issued("bank")
    text = wrap(make_secret(), {"bank": own[1]})
    place = text.index('"text": "') + 12
    with pytest.raises(Error, match="does not open by its key"):
        unwrap(text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :], *own)
    for wrong in ("", "[]", "{}", '{"purpose": "x", "wrapped": {}}', '{"wrapped": 1}'):
        with pytest.raises(Error, match="no file of the parties' secret"):
            unwrap(wrong, *own)
