"""Who may be spoken for."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random

import pytest

from sqlfl.base.errors import PolicyError
from sqlfl.service import certificates as ct
from sqlfl.service.passes import _ALGORITHM, PassClaim, _signed, checked, issue
from tests.depth import SEED

NOW = dt.datetime.now(dt.UTC)
KEY, AUTHORITY = ct.make_authority("study-authority", NOW - dt.timedelta(days=1))
FOR = ("coordinator.example.org", "heart")


def issued(name: str, key: bytes = KEY, authority: bytes = AUTHORITY) -> tuple[bytes, bytes]:
    """For a day already."""
    own, begun = ct.make_key(), NOW - dt.timedelta(days=1)
    return own, ct.sign(ct.signing_request(own, name), key, authority, now=begun)


ANALYST = issued("acme")


def test_it_says_whose_it_is() -> None:
    assert checked(issue(*ANALYST, *FOR), AUTHORITY, *FOR) == "acme"


@pytest.mark.parametrize(
    ("coordinator", "study"), [("other.example.org", "heart"), ("coordinator.example.org", "lung")]
)
def test_it_is_for_one_coordinator_and_study(coordinator: str, study: str) -> None:
    with pytest.raises(PolicyError, match="another coordinator, or another study"):
        checked(issue(*ANALYST, *FOR), AUTHORITY, coordinator, study)


@pytest.mark.parametrize(("hours", "said"), [(-1, "clocks may differ by 5"), (25, "is over")])
def test_it_holds_for_its_time(hours: int, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        checked(issue(*ANALYST, *FOR), AUTHORITY, *FOR, NOW + dt.timedelta(hours=hours))


def test_it_is_not_for_longer_than_a_day() -> None:
    with pytest.raises(PolicyError, match="too long"):
        checked(issue(*ANALYST, *FOR, dt.timedelta(hours=25)), AUTHORITY, *FOR)


def test_another_authoritys_analyst() -> None:
    other_key, other = ct.make_authority("study-authority")
    with pytest.raises(PolicyError, match="not of the authority"):
        checked(issue(*issued("acme", other_key, other), *FOR), AUTHORITY, *FOR)


def test_a_certificate_that_is_over() -> None:
    own = ct.make_key()
    old = ct.sign(
        ct.signing_request(own, "acme"), KEY, AUTHORITY, days=1, now=NOW - dt.timedelta(days=9)
    )
    with pytest.raises(PolicyError, match="not of the authority"):
        checked(issue(own, old, *FOR), AUTHORITY, *FOR)


def test_somebody_elses_name() -> None:
    """Signed by a key of the same authority."""
    told = json.loads(issue(*issued("eve"), *FOR))
    told["claim"]["analyst"] = "acme"
    with pytest.raises(PolicyError, match="not signed by the analyst's key"):
        checked(json.dumps(told), AUTHORITY, *FOR)
    own, certificate = issued("eve")
    claim = PassClaim(**told["claim"])
    signature = ct.private_key(own).sign(_signed(claim), _ALGORITHM)
    told["signature"] = base64.b64encode(signature).decode()
    told["certificate"] = certificate.decode()
    with pytest.raises(PolicyError, match="another analyst than the certificate"):
        checked(json.dumps(told), AUTHORITY, *FOR)


@pytest.mark.parametrize("name", ["analyst", "coordinator", "study", "begins", "ends"])
def test_what_is_changed_is_not_signed(name: str) -> None:
    told = json.loads(issue(*ANALYST, *FOR))
    told["claim"][name] = (
        (NOW + dt.timedelta(hours=1)).isoformat() if name in ("begins", "ends") else "other"
    )
    with pytest.raises(PolicyError):
        checked(json.dumps(told), AUTHORITY, *FOR)


def test_what_is_no_pass() -> None:
    text = issue(*ANALYST, *FOR)
    for wrong in ("", "{}", "[]", "null", '{"claim": {}}', text.replace("BEGIN", "BEGAN")):
        with pytest.raises(PolicyError, match="no analyst's pass"):
            checked(wrong, AUTHORITY, *FOR)
    draw = random.Random(SEED)
    for _ in range(100):
        at = draw.randrange(len(text))
        changed = text[:at] + chr(draw.randrange(32, 127)) + text[at + 1 :]
        try:
            assert checked(changed, AUTHORITY, *FOR) == "acme"
            assert json.loads(changed)["claim"] == json.loads(text)["claim"]
        except PolicyError:
            pass
