"""Keys and certificates, which say whose end of a connection it is (X.509, RFC 5280).

A key is made where it is used and never leaves. Only a request that an authority signs leaves. An
institution with its own authority needs none of this. Certificates are told apart by their name
alone: the first DNS name among the subject's alternative names. Before anything connects, checks
hold that key, certificate and authority belong together.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sqlfl.base.errors import Error
from sqlfl.databases.files import PRIVATE

CURVE = ec.SECP256R1()
YEARS_OF_AUTHORITY, DAYS_OF_CERTIFICATE = 10, 397
"""Years and days of validity: of a certificate the most that browsers accept."""
EARLIER = dt.timedelta(minutes=5)
"""Maximum difference between clocks."""
_PEM = serialization.Encoding.PEM
_LETTERS = "letters, digits, - and . (as in a DNS name), at most 63"


def make_key() -> bytes:
    """Return a private key, as PEM (PKCS 8), which nothing encrypts."""
    key = ec.generate_private_key(CURVE)
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def make_authority(name: str, now: dt.datetime | None = None) -> tuple[bytes, bytes]:
    """Return the key and the self-signed certificate of a private authority."""
    key = make_key()
    now = now or dt.datetime.now(dt.UTC)
    private = private_key(key)
    subject = _subject(name)
    built = (
        _builder(subject, private.public_key(), now, dt.timedelta(days=365 * YEARS_OF_AUTHORITY))
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False
        )
    )
    return key, built.sign(private, hashes.SHA256()).public_bytes(_PEM)


def signing_request(key: bytes, name: str, hosts: Sequence[str] = ()) -> bytes:
    """Return the request that leaves the site, as PEM (PKCS 10).

    It holds the public key, the name and, for a coordinator, the names and addresses under which it
    is reached. Raise Error for a text that is no name.
    """
    names = [x509.DNSName(checked_name(name)), *map(_host, hosts)]
    built = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(name))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return built.sign(private_key(key), hashes.SHA256()).public_bytes(_PEM)


def sign(
    request: bytes,
    authority_key: bytes,
    authority: bytes,
    *,
    days: int = DAYS_OF_CERTIFICATE,
    now: dt.datetime | None = None,
) -> bytes:
    """Return the certificate of a request, as PEM, with the names and the key of the request.

    Raise Error for bytes that are no request, or for a request that was not signed by its key.
    """
    now = now or dt.datetime.now(dt.UTC)
    issuing, signer = certificate(authority), private_key(authority_key)
    asked = read_request(request)
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    public = asked.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    built = (
        _builder(asked.subject, public, now, dt.timedelta(days=days))
        .issuer_name(issuing.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
    )
    return built.sign(signer, hashes.SHA256()).public_bytes(_PEM)


def read_request(data: bytes) -> x509.CertificateSigningRequest:
    """Return the request. Raise Error for bytes that are no request, or were not signed by their
    own key.
    """
    try:
        request = x509.load_pem_x509_csr(data)
        request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Error(f"this is no signing request that can be used: {error}") from None
    if not request.is_signature_valid or not isinstance(
        request.public_key(), ec.EllipticCurvePublicKey
    ):
        raise Error("the signing request was not signed by its own key", hint="sqlfl keygen")
    return request


def names_of(data: bytes) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate or of a request, as PEM, in their
    order.
    """
    parsed = read_request(data) if b"REQUEST" in data[:40] else certificate(data)
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(item.value) for item in names)


def certificate(data: bytes) -> x509.Certificate:
    """Return the certificate. Raise Error for bytes that are none."""
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise Error("this is no certificate (PEM)") from None


def private_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the private key. Raise Error for bytes that are none, or a key of another kind."""
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError):
        raise Error(
            "this is no private key (PEM) without a password",
            hint="sqlfl keygen makes one",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE.name:
        raise Error(f"the key is not one of {CURVE.name}", hint="sqlfl keygen makes one")
    return key


def public_key(data: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate. Raise Error if it is of another kind."""
    key = certificate(data).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE.name:
        raise Error(f"the certificate's key is not one of {CURVE.name}")
    return key


def signed_by(data: bytes, authority: bytes, now: dt.datetime | None = None) -> bool:
    """Return whether the certificate is of this very authority, and of this time."""
    subject, issuer = certificate(data), certificate(authority)
    now = now or dt.datetime.now(dt.UTC)
    try:
        subject.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return subject.not_valid_before_utc <= now <= subject.not_valid_after_utc


def checked_name(name: str) -> str:
    """Return the name. Raise Error for a text that is no name of a party, an analyst or a
    coordinator.
    """
    parts = name.split(".")
    plain = all(part and part.replace("-", "").isalnum() and part.isascii() for part in parts)
    if not plain or len(name) > 63:
        raise Error(f"{name!r} is no name of a certificate", hint=f"use {_LETTERS}")
    return name


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read from the first moment on.

    Raise Error if there is one already.
    """
    _write(path, data, PRIVATE)


def write_public(path: Path, data: bytes) -> None:
    """Write a new file. Raise Error if there is one already."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise Error(
            f"{path} is there already, and is not written over", hint="move it away first"
        ) from None
    except OSError as error:
        raise Error(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(number, "wb") as file:
        file.write(data)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, checked_name(name))])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(checked_name(text))


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, length: dt.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + length)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the usage of a key. signs : it signs other certificates; otherwise it serves TLS."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


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
    """Return the public key of a private key of any kind."""
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
