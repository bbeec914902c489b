"""Masks anew, from the RFCs and in plain Python: it shares nothing with the package."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

PRIME = 2**255 - 19
BASE = (9).to_bytes(32, "little")


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    scalar = int.from_bytes(private, "little") & ~7 & (1 << 254) - 1 | 1 << 254
    u = int.from_bytes(public, "little") % 2**255
    x2, z2, x3, z3, swapped = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = scalar >> t & 1
        if swapped != bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % PRIME, u * (d * a - c * b) ** 2 % PRIME
        e = a * a - b * b
        x2, z2 = a * a * b * b % PRIME, e * (a * a + 121665 * e) % PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256: 32 bytes, without a salt."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def chacha20(key: bytes, count: int) -> bytes:
    """RFC 8439, section 2.4: the first bytes of the stream, block 0 first, nonce 0."""
    blocks = -(-count // 64)
    start = np.zeros((16, blocks), np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
    start[4:12] = np.frombuffer(key, "<u4")[:, None]
    start[12] = np.arange(blocks)
    state = start.copy()

    def turned(at: int, other: int, bits: int) -> None:
        mixed = state[at] ^ state[other]
        state[at] = mixed << np.uint32(bits) | mixed >> np.uint32(32 - bits)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for first, second, last, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[first] += state[second]
            turned(last, first, bits)

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            b, c, d = ((diagonal + k) % 4 for k in (1, 2, 3))
            quarter(diagonal, 4 + b, 8 + c, 12 + d)
    return (state + start).T.astype("<u4").tobytes()[:count]


def joined(*parts: bytes | int) -> bytes:
    texts = [part.to_bytes(8, "little") if isinstance(part, int) else part for part in parts]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def fingerprint(members: dict[int, bytes]) -> str:
    """Of place -> public key."""
    parts = [part for place in sorted(members) for part in (place, members[place])]
    text = joined(b"sqlfl secure sum: peers 1", len(members), *parts)
    return hashlib.sha256(text).hexdigest()


def stream(
    private: bytes,
    place: int,
    peer: int,
    members: dict[int, bytes],
    *,
    run: str,
    number: int,
    width: int,
    length: int,
) -> list[int]:
    """PRG(number) of the clients at `place` and `peer`, as the one with this private key has it."""
    first, second = sorted((place, peer))
    key = hkdf(
        x25519(private, members[peer]),
        joined(
            b"sqlfl secure sum: mask 1",
            run.encode(),
            number,
            first,
            second,
            members[first],
            members[second],
            fingerprint(members).encode(),
            width,
            length,
        ),
    )
    size = 1 if width <= 8 else 2 if width <= 16 else 4 if width <= 32 else 8
    data = chacha20(key, size * length)
    words = [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    return [value % 2**width for value in words]
