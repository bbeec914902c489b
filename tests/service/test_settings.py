"""What a beginner writes into settings, and what is said of it; keys that do not go together."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sqlfl.base.errors import Error
from sqlfl.service import certificates as ct
from sqlfl.service.certificates import check_identity
from sqlfl.service.settings import (
    AnalystSettings,
    CoordinatorSettings,
    PartySettings,
    check_location,
    read_settings,
)
from tests.service.party import AUTHORITY, AUTHORITY_KEY

PARTY = 'name = "bank"\ncoordinator = "c"\ndatabase = "bank.duckdb"\nsecret = "env:SECRET"\n'
COORDINATOR = """\
name = "c"
[parties.bank]
agents = ["bank.example"]
[studies.heart]
parties = ["bank"]
analysts = ["alice"]
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bank.toml"
    path.write_text(PARTY + 'store = "/away/s.duckdb"\n')
    own = read_settings(PartySettings, path)
    assert own.database == str(tmp_path / "bank.duckdb")
    assert (own.secret, own.store) == ("env:SECRET", "/away/s.duckdb")


MISTAKES = {
    "unknown": (PARTY + 'databse = "x"', "there is no entry databse; did you mean database?"),
    "far": (PARTY + 'colour = "x"', "there is no entry colour: there are certificate, key"),
    "missing": (PARTY.replace("database", "#"), "the entry database is missing"),
    "type": (PARTY.replace('"bank"', "7"), "name must be text, got 7"),
    "index": (PARTY + 'index = "0"', "index must be an integer, got '0'"),
    "toml": (PARTY + "store = bank.duckdb", "is no TOML: "),
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_of_a_party(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bank.toml"
    path.write_text(text)
    with pytest.raises(Error) as caught:
        read_settings(PartySettings, path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


CHANGES = {
    "list": ('["bank.example"]', '"bank.example"', "parties.bank.agents must be a list"),
    "inner": ("agents =", "agent =", "there is no entry parties.bank.agent; did you mean agents?"),
    "analysts": ('analysts = ["alice"]', "", "the entry studies.heart.analysts is missing"),
    "table": ('[parties.bank]\nagents = ["bank.example"]', "parties = 5", "parties must be an"),
    "zero": ('name = "c"', 'name = "c"\nheartbeat = 0', "heartbeat must be above 0, got 0"),
    "below": ('name = "c"', 'name = "c"\nlease = -1', "lease must be above 0, got -1"),
    "some": ('name = "c"', 'name = "c"\nstatements = 0', "statements must be above 0, got 0"),
}


@pytest.mark.parametrize(("old", "new", "said"), CHANGES.values(), ids=CHANGES)
def test_mistakes_of_a_coordinator(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in COORDINATOR
    path = tmp_path / "c.toml"
    path.write_text(COORDINATOR.replace(old, new))
    with pytest.raises(Error, match=said.replace("?", r"\?")):
        read_settings(CoordinatorSettings, path)


def test_a_pass_is_of_a_day_at_most(tmp_path: Path) -> None:
    path = tmp_path / "alice.toml"
    path.write_text("pass_hours = 25")
    with pytest.raises(Error, match="pass_hours must be above 0, and 24 at most, got 25"):
        read_settings(AnalystSettings, path)
    with pytest.raises(Error, match=r"cannot read \S+away.toml: No such file"):
        read_settings(AnalystSettings, tmp_path / "away.toml")


NOW = dt.datetime.now(dt.UTC)
KEY, OTHER_KEY = ct.make_key(), ct.make_key()
OWN = ct.sign(ct.signing_request(KEY, "bank"), AUTHORITY_KEY, AUTHORITY, days=100)
STRANGER, STRANGERS = ct.make_authority("authority")
FOREIGN = ct.sign(ct.signing_request(KEY, "bank"), STRANGER, STRANGERS)


def test_what_goes_together() -> None:
    known = check_identity(KEY, OWN, AUTHORITY, "bank", NOW)
    assert known.name == "bank"
    assert not known.over_soon(NOW)
    assert known.over_soon(NOW + dt.timedelta(days=71))
    assert check_identity(KEY, OWN, STRANGERS + AUTHORITY, None, NOW) == known


@pytest.mark.parametrize(
    ("given", "days", "said"),
    [
        ((KEY, OWN, AUTHORITY, "shop"), 0, "is of bank, and the configuration says shop"),
        ((OTHER_KEY, OWN, AUTHORITY, None), 0, "the key is not that of the certificate of bank"),
        ((KEY, OWN, AUTHORITY, None), 101, "the certificate of bank has expired, on 20"),
        ((KEY, OWN, AUTHORITY, None), -1, "is valid from"),
        ((KEY, FOREIGN, AUTHORITY, None), 0, "is not of the authority that the configuration"),
        ((KEY, OWN, STRANGERS, None), 0, "is not of the authority that the configuration"),
        ((KEY, KEY, AUTHORITY, None), 0, "certificate: this is no certificate(.|\n)*private key"),
        ((OWN, OWN, AUTHORITY, None), 0, "key: this is no private key(.|\n)*it is a certificate"),
        ((KEY, OWN, b"x", None), 0, "authority: this is no certificate"),
        ((KEY, AUTHORITY, AUTHORITY, None), 0, "it has no alternative name"),
    ],
)
def test_what_does_not(given: tuple[bytes, bytes, bytes, str | None], days: int, said: str) -> None:
    with pytest.raises(Error, match=said):
        check_identity(*given, NOW + dt.timedelta(days=days))


@pytest.mark.parametrize(
    ("location", "insecure", "said"),
    [
        ("host:8815", False, "is no place to connect to"),
        ("grpc+tls://host", False, "is no place to connect to"),
        ("grpc+tls://host:port", False, "is no place to connect to"),
        ("https://host:8815", False, "is no place to connect to"),
        ("grpc+tls://127.0.0.1:8815", True, "with TLS, and --insecure without"),
        ("grpc://127.0.0.1:8815", False, "is without TLS"),
        ("grpc://10.0.0.5:8815", True, "for this machine alone, not for 10.0.0.5"),
        ("grpc://0.0.0.0:8815", True, "for this machine alone, not for 0.0.0.0"),
    ],
)
def test_places(location: str, insecure: bool, said: str) -> None:
    with pytest.raises(Error, match=said):
        check_location(location, insecure=insecure)
    check_location("grpc+tls://0.0.0.0:8815", insecure=False)
    check_location("grpc://127.0.0.1:8815", insecure=True)
