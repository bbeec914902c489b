"""Where noise comes from: the operating system's generator."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

Entropy: TypeAlias = Callable[[int], bytes]
"""That many random bytes. Everything that draws takes one, so that tests can repeat a draw; the
public interface has no way to set it."""


def system(count: int) -> bytes:
    """`count` random bytes of the operating system."""
    return os.urandom(count)
