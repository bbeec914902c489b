"""An analyst's pass, by which a coordinator may speak for the analyst to parties, for a while.

A coordinator is not trusted: its word on the analyst's name proves nothing. So the analyst signs a
pass (ECDSA on P-256, SHA-256) with the certificate's key. The pass names the coordinator that may
act, the study and the time limit. The parties check the pass against the authority that they know.
The pass does not name a statement: within that time and study, a coordinator that lies can ask
whatever the analyst could.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sqlfl.base.errors import PolicyError
from sqlfl.service.certificates import certificate as read_certificate
from sqlfl.service.certificates import names_of, private_key, public_key, signed_by
from sqlfl.service.stream import Credentials

PURPOSE = "sqlfl pass, version 1"
MAX_PASS_TIME = dt.timedelta(hours=24)
EARLIER = dt.timedelta(minutes=5)
"""Maximum difference between clocks."""
SEEN = dt.timedelta(minutes=1)
"""Time for which a checked pass is not checked again."""
_ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class PassClaim:
    """Claim that an analyst signs."""

    analyst: str
    """Name of the certificate."""
    coordinator: str
    """Name of the coordinator's certificate."""
    study: str
    begins: str
    """Begin of the pass: ISO 8601, UTC; so is `ends`."""
    ends: str

    @property
    def over(self) -> dt.datetime:
        return dt.datetime.fromisoformat(self.ends)


def issue(
    key: bytes,
    certificate: bytes,
    coordinator: str,
    study: str,
    length: dt.timedelta = MAX_PASS_TIME,
    now: dt.datetime | None = None,
) -> str:
    """Return a pass, as text. key, certificate : the analyst's, as PEM."""
    now = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    analyst = names_of(certificate)[0]
    claim = PassClaim(analyst, coordinator, study, now.isoformat(), (now + length).isoformat())
    signature = private_key(key).sign(_signed(claim), _ALGORITHM)
    told = {
        "claim": asdict(claim),
        "signature": base64.b64encode(signature).decode(),
        "certificate": certificate.decode(),
    }
    return json.dumps(told)


def checked(
    text: str, authority: bytes, coordinator: str, study: str, now: dt.datetime | None = None
) -> str:
    """Return the analyst who signed the pass, for this coordinator and study, now.

    authority : certificate, as PEM, by which analysts' certificates are signed. Raise PolicyError
    if the text is no pass, or no pass for this coordinator, study and time.
    """
    now = now or dt.datetime.now(dt.UTC)
    claim, signature, certificate = _read(text)
    if not signed_by(certificate, authority, now):
        raise PolicyError("the analyst's certificate is not of the authority that is known here")
    try:
        public_key(certificate).verify(signature, _signed(claim), _ALGORITHM)
    except InvalidSignature:
        raise PolicyError("the pass was not signed by the analyst's key") from None
    if claim.analyst != names_of(certificate)[0]:
        raise PolicyError("the pass is of another analyst than the certificate")
    if (claim.coordinator, claim.study) != (coordinator, study):
        raise PolicyError("the analyst's pass is for another coordinator, or another study")
    begins, ends = map(dt.datetime.fromisoformat, (claim.begins, claim.ends))
    if now < begins - EARLIER:
        raise PolicyError(
            f"the analyst's pass begins at {begins:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}: clocks may differ by 5 minutes",
            hint="is the clock of the analyst's machine right?",
        )
    if now >= ends or ends - begins > MAX_PASS_TIME:
        raise PolicyError(
            "the analyst's pass is over, or too long", hint="the analyst connects again"
        )
    return claim.analyst


def study_of(text: str) -> str:
    """Return the study that the text says, which nobody has checked. Raise PolicyError if the text
    is no pass.
    """
    return _read(text)[0].study


def over_at(text: str) -> dt.datetime:
    """Return when a pass is over: at its end, or with its certificate's. Raise PolicyError."""
    claim, _, certificate = _read(text)
    return min(claim.over, read_certificate(certificate).not_valid_after_utc)


def to_bearer(text: str) -> str:
    """Return a pass as a header of HTTP takes it (RFC 6750): base64url."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def from_bearer(token: str) -> str:
    """Return the pass. Raise PolicyError if the token is none."""
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except ValueError as error:
        raise PolicyError("this is no analyst's pass") from error


class Passes:
    """Analysts of passes. Passes that were checked are remembered for a while."""

    def __init__(self, authority: bytes, coordinator: str) -> None:
        self._authority, self._coordinator = authority, coordinator
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[str, dt.datetime]] = {}

    def __call__(self, study: str, text: str) -> str:
        """Return the analyst of the pass. Raise PolicyError as `checked`."""
        now = dt.datetime.now(dt.UTC)
        with self._lock:
            known = self._known.get((study, text))
            if known is not None and now < known[1]:
                return known[0]
        analyst = checked(text, self._authority, self._coordinator, study, now)
        with self._lock:
            self._known = {key: entry for key, entry in self._known.items() if now < entry[1]}
            self._known[study, text] = analyst, min(now + SEEN, _read(text)[0].over)
        return analyst

    def once(self, study: str, text: str) -> str:
        """Return the analyst of a pass that held once but may be over by now, for requests that end
        something.
        """
        over, now = _read(text)[0].over, dt.datetime.now(dt.UTC)
        if over <= now:  # a pass that has not begun is not valid yet
            now = max(over, now - 400 * MAX_PASS_TIME) - dt.timedelta(microseconds=1)
        return checked(text, self._authority, self._coordinator, study, now)


def _read(text: str) -> tuple[PassClaim, bytes, bytes]:
    try:
        told: dict[str, Any] = json.loads(text)
        claim = PassClaim(**told["claim"])
        if not all(isinstance(value, str) for value in asdict(claim).values()):
            raise ValueError
        times = [dt.datetime.fromisoformat(value) for value in (claim.begins, claim.ends)]
        if any(time.tzinfo is None for time in times):
            raise ValueError
        signature = base64.b64decode(told["signature"], validate=True)
        certificate = told["certificate"].encode()
        public_key(certificate)
        names_of(certificate)
    except Exception as error:
        raise PolicyError("this is no analyst's pass") from error
    return claim, signature, certificate


def _signed(claim: PassClaim) -> bytes:
    return json.dumps([PURPOSE, *asdict(claim).values()]).encode()


class PassIssuer:
    """Issuer of an analyst's passes for one coordinator and study, each for so many `hours`.

    A call returns the present pass. Without a key it is the analyst's `name`. Safe to use from
    several threads.
    """

    def __init__(
        self, credentials: Credentials, name: str, coordinator: str, study: str, hours: float
    ) -> None:
        self._credentials, self._coordinator, self._study = credentials, coordinator, study
        self._length = dt.timedelta(hours=hours)
        certificate = credentials.certificate
        self.analyst = name if certificate is None else names_of(certificate)[0]
        self.half = 1800.0 * hours
        """Half of a pass's seconds; another one is due then."""
        self._lock = threading.Lock()
        self._pass = ""
        self._begun = -math.inf

    @property
    def due(self) -> bool:
        return self._credentials.key is not None and time.monotonic() > self._begun + self.half

    def issued(self) -> str:
        """Return a new pass."""
        credentials = self._credentials
        if credentials.key is None or credentials.certificate is None:
            return self.analyst
        made = issue(
            credentials.key, credentials.certificate, self._coordinator, self._study, self._length
        )
        with self._lock:
            self._pass, self._begun = made, time.monotonic()
        return made

    def __call__(self) -> str:
        with self._lock:
            if not self.due and self._pass:
                return self._pass
        return self.issued()
