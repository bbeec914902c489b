"""The source of noise: the operating system's generator."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

Entropy: TypeAlias = Callable[[int], bytes]
"""A function that returns this many random bytes. Each sampler takes one, so that tests can repeat
a draw; the public interface cannot set it.
"""


def system(count: int) -> bytes:
    """`count` random bytes of the operating system."""
    return os.urandom(count)
