"""Sequences of bytes and numbers as one text, which no other sequence has: to hash it."""

from __future__ import annotations

NUMBER_BYTES = 8


def number(value: int) -> bytes:
    """An integer in [0, 2⁶⁴), little-endian. OverflowError for others."""
    return value.to_bytes(NUMBER_BYTES, "little")


def joined(*parts: bytes | int) -> bytes:
    """The parts one after the other, each behind its length; a number is a part of 8 bytes."""
    texts = [number(part) if isinstance(part, int) else part for part in parts]
    return b"".join(number(len(text)) + text for text in texts)
