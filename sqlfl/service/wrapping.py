"""The secret that parties share and a coordinator never holds: wrapped to each party's public key.

For each party an ephemeral key agrees with that of its certificate (ECDH on P-256); HKDF-SHA256 of
what they agree on, bound to both public keys, is the key of ChaCha20-Poly1305 (as ECIES has it).
The file can travel by way of the coordinator: it opens to the parties' keys alone.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sqlfl.base.errors import Error
from sqlfl.service.certificates import CURVE, names_of, private_key, public_key

BYTES = 32
PURPOSE = b"sqlfl parties' secret, version 1"
_NONCE = bytes(12)
"""Each key seals one text only."""


def make_secret() -> bytes:
    return secrets.token_bytes(BYTES)


def wrap(secret: bytes, certificates: Mapping[str, bytes], others: str | None = None) -> str:
    """JSON with the secret for each of these certificates (PEM), by name.

    others : a text in which it is wrapped for others already, and stays so.
    """
    before = {} if others is None else json.loads(others)["wrapped"]
    new = {name: _sealed(secret, certificate) for name, certificate in certificates.items()}
    return json.dumps({"purpose": PURPOSE.decode(), "wrapped": {**before, **new}}, indent=1)


def unwrap(text: str, key: bytes, certificate: bytes) -> bytes:
    """The secret, by the key of one of the certificates. Raise Error where it does not open."""
    name = names_of(certificate)[0]
    try:
        told = json.loads(text)
        wrapped = told["wrapped"].get(name)
        if told["purpose"] != PURPOSE.decode() or (
            wrapped is not None and set(wrapped) != {"key", "text"}
        ):
            raise ValueError
        parts = (
            None
            if wrapped is None
            else [base64.b64decode(wrapped[part]) for part in ("key", "text")]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Error(
            "this is no file of the parties' secret", hint="sqlfl keygen secret makes one"
        ) from None
    if parts is None:
        raise Error(
            f"the parties' secret was not wrapped for {name}, but for "
            f"{', '.join(told['wrapped']) or 'nobody'}",
            hint="sqlfl keygen secret --to its certificate, by one that has the secret",
        )
    try:
        ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, parts[0])
        shared = private_key(key).exchange(ec.ECDH(), ephemeral)
        both = parts[0] + _point(public_key(certificate))
        secret = ChaCha20Poly1305(_derived(shared, both)).decrypt(_NONCE, parts[1], PURPOSE)
    except (ValueError, InvalidTag):
        raise Error(
            f"the parties' secret for {name} does not open by its key",
            hint="it was wrapped for a certificate of another key",
        ) from None
    if len(secret) != BYTES:
        raise Error(f"the parties' secret has {len(secret)} bytes, and must have {BYTES}")
    return secret


def _sealed(secret: bytes, certificate: bytes) -> dict[str, str]:
    theirs = public_key(certificate)
    ephemeral = ec.generate_private_key(CURVE)
    point = _point(ephemeral.public_key())
    key = _derived(ephemeral.exchange(ec.ECDH(), theirs), point + _point(theirs))
    text = ChaCha20Poly1305(key).encrypt(_NONCE, secret, PURPOSE)
    return {
        "key": base64.b64encode(point).decode(),
        "text": base64.b64encode(text).decode(),
    }


def _derived(shared: bytes, both: bytes) -> bytes:
    return HKDF(hashes.SHA256(), BYTES, salt=None, info=PURPOSE + both).derive(shared)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
