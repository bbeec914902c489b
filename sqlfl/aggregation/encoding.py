"""Injective encoding of sequences of bytes and numbers, for hashing: no two sequences have the same
text.
"""

from __future__ import annotations

NUMBER_BYTES = 8


def number(value: int) -> bytes:
    """Return an integer in [0, 2⁶⁴), little-endian. Raise OverflowError for others."""
    return value.to_bytes(NUMBER_BYTES, "little")


def joined(*parts: bytes | int) -> bytes:
    """Return the parts one after the other, each behind its length. A number is a part of 8
    bytes.
    """
    texts = [number(part) if isinstance(part, int) else part for part in parts]
    return b"".join(number(len(text)) + text for text in texts)
