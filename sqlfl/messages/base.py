"""What every message is, and how its size is counted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
CLIENT = -1
"""The slot of a message that concerns a client as a whole."""


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages; `run` is empty outside a run."""

    run: str
    slot: int
    kind: ClassVar[str]

    @property
    def nbytes(self) -> int:
        """Bytes of the values: buffers of arrays, UTF-8 of text, 8 for a number."""
        return sum(_size(value) for value in self._payload())

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the largest array; (0, 0) where there is none."""
        shapes = [_shape(value) for value in self._payload()]
        return max(shapes, key=lambda s: s[0] * s[1], default=(0, 0))

    def _payload(self) -> list[Any]:
        values: list[Any] = []
        for spec in fields(self):
            if spec.name not in ("run", "slot"):
                value = getattr(self, spec.name)
                values.extend(value if isinstance(value, tuple) else (value,))
        return values


def _size(value: Any) -> int:
    if isinstance(value, (np.ndarray, pa.Array)):
        return int(value.nbytes)
    return len(value.encode()) if isinstance(value, str) else 8


def _shape(value: Any) -> tuple[int, int]:
    if isinstance(value, np.ndarray):
        return (value.shape[0], value.shape[1]) if value.ndim == 2 else (value.shape[0], 1)
    return (len(value), 1) if isinstance(value, pa.Array) else (0, 0)
