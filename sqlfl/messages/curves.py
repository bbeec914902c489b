"""Effects of a model's features at values of theirs, outside a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.diagnostics import SendBlock
from sqlfl.messages.forms import array, text, texts

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array

AT_NUMBER, AT_CATEGORY, AT_NULL = range(3)
"""Kinds of places of an effect."""


@dataclass(frozen=True, eq=False)
class SendCurves(SendBlock):
    """Coordinator to client, outside a run: what effects do features of a saved block have?"""

    kind = "send_curves"
    words = "names of the block and of a feature, or of none for all"
    feature: str = field(default="", metadata=text())
    """Empty for all."""


@dataclass(frozen=True, eq=False)
class Curves(Message):
    """Client to coordinator: effects at means of cells of values, and how many rows they hold."""

    kind = "curves"
    words = "effects of features at values of theirs, their standard errors, and rows"
    features: tuple[str, ...] = field(metadata=texts("points"))
    values: tuple[str, ...] = field(metadata=texts("points"))
    """A number or a category; empty of NULL."""
    kinds: Array = field(metadata=array("uint8", "points", below=3))
    """AT_NUMBER and so on."""
    effects: Array = field(metadata=array("float64", "points", "outputs"))
    """Effects on the score."""
    errors: Array = field(metadata=array("float64", "points", "outputs", least=0))
    rows: Array = field(metadata=array("int64", "points", least=0))
    """Rows of the table."""
