"""The towers of a neural model, as its options have them; see sqlfl.models.towers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from sqlfl.models.kinds import kind_of
from sqlfl.planner.protocol.sizes import Size


@dataclass(frozen=True)
class Tower:
    """What all slots' towers have in common."""

    hidden: tuple[int, ...]
    dropout: float
    embedding: int | None
    """P, where a linear head follows at the coordinator."""
    device: str

    @property
    def inner(self) -> int:
        """Weights and biases between the hidden layers: what there is for any number of columns."""
        return sum(before * after + after for before, after in pairwise(self.hidden))

    def size(self, columns: Size, outputs: Size) -> Size:
        """Parameters of a tower over so many encoded columns: W1, b1, W2, ..., W_out."""
        first, last = self.hidden[0], self.hidden[-1]
        return columns * first + (first + self.inner) + outputs * last


def tower_of(kind: str, options: Mapping[str, object]) -> Tower | None:
    """None for a linear model; `options` may have been read from a file, as lists."""
    if not kind_of(kind).towers:
        return None
    hidden = options["hidden"]
    assert isinstance(hidden, (tuple, list))
    embedding = options.get("embedding") if options.get("head") == "linear" else None
    return Tower(
        tuple(int(width) for width in hidden),
        float(str(options.get("dropout") or 0.0)),
        embedding if isinstance(embedding, int) else None,
        str(options.get("device") or "auto"),
    )
