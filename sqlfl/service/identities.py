"""Checks that key, certificate and authority belong together, before anything connects."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from sqlfl.base.errors import Error
from sqlfl.service.certificates import certificate, names_of

SOON = dt.timedelta(days=30)


@dataclass(frozen=True)
class Known:
    """Of a certificate: whose it is, and until when."""

    name: str
    ends: dt.datetime

    def over_soon(self, now: dt.datetime | None = None) -> bool:
        return self.ends - (now or dt.datetime.now(dt.UTC)) < SOON


def check_identity(
    key: bytes,
    certificate: bytes,
    authority: bytes,
    expected: str | None,
    now: dt.datetime | None = None,
) -> Known:
    """All as PEM. expected : the name that the certificate is to have; None for any.

    Raise Error where one is not what it should be, the key is of another certificate, that is of
    another authority or of another time, or has another name.
    """
    now = now or dt.datetime.now(dt.UTC)
    parsed, issuers = _read(certificate, "certificate"), _read_all(authority)
    try:
        name = names_of(certificate)[0]
    except (x509.ExtensionNotFound, IndexError):
        raise Error(
            "certificate: it has no alternative name, by which it would be known",
            hint="sqlfl keygen request --name NAME, and sign that",
        ) from None
    if expected is not None and name != expected:
        raise Error(
            f"the certificate is of {name}, and the configuration says {expected}",
            hint="name the certificate of that name, or correct the configuration",
        )
    if _public(key) != _spki(parsed):
        raise Error(
            f"the key is not that of the certificate of {name}",
            hint="each certificate belongs to the key that its request was made with",
        )
    if now > parsed.not_valid_after_utc:
        raise Error(
            f"the certificate of {name} has expired, on {parsed.not_valid_after_utc:%Y-%m-%d}",
            hint="have the authority sign the request again: sqlfl keygen sign",
        )
    if now < parsed.not_valid_before_utc:
        raise Error(
            f"the certificate of {name} is valid from {parsed.not_valid_before_utc:%Y-%m-%d %H:%M} "
            "UTC on only",
            hint="is the clock of this machine right?",
        )
    if certificate.count(b"BEGIN CERTIFICATE") == 1 and not any(
        _issued(parsed, by) for by in issuers
    ):
        raise Error(
            f"the certificate of {name} is not of the authority that the configuration names",
            hint="all of a federation have certificates of one authority",
        )
    if all(now > by.not_valid_after_utc for by in issuers):
        raise Error(f"the authority of {name} has expired", hint="sqlfl keygen authority")
    return Known(name, parsed.not_valid_after_utc)


def _read(data: bytes, what: str) -> x509.Certificate:
    try:
        return certificate(data)
    except Error as error:
        raise Error(f"{what}: {error.message}", hint=_meant(data)) from None


def _read_all(data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise Error("authority: this is no certificate (PEM)", hint=_meant(data)) from None


def _meant(data: bytes) -> str | None:
    for words, kind in ((b"PRIVATE KEY", "private key"), (b"REQUEST", "signing request")):
        if words in data:
            return f"it is a {kind}"
    return None


def _issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _public(key: bytes) -> bytes:
    """Of a private key of any kind."""
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError):
        hint = "it is a certificate" if b"BEGIN CERTIFICATE" in key else "sqlfl keygen makes one"
        raise Error("key: this is no private key (PEM) without a password", hint=hint) from None
    return private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _spki(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
