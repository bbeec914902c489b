"""The privacy report as data: each release, its observer and its guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap

from sqlfl.base import sanitize
from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import InternalError
from sqlfl.planner.explain.render import Document, Notes, Section, TextTable

NONE = "none"
PENDING = "known once the join is"
WIDTH = 96
"""Characters of a line of the summary."""
HEADERS = ("what", "who sees it", "protection", "unit", "mechanism", "note")
TRUSTED = "The coordinator and the parties are trusted to follow the plan."


@dataclass(frozen=True)
class Release:
    """One kind of release and one observer."""

    kind: str
    """'labels', 'predictions' and so on."""
    observer: str
    mechanism: str
    """The mechanism with its numbers: clip, noise, number of releases; 'exact' without noise."""
    unit: str
    """The unit whose change ε is about, or has no guarantee; empty if nothing has one."""
    epsilon: float | None
    """None: no differential privacy, or not known yet, see `pending`. It covers all noised releases
    of the unit, not of this kind alone: releases of one row add up.
    """
    delta: float | None
    """None without an ε."""
    note: str = ""
    pending: bool = False
    """True if ε will be known after the join: true for a plan with noise_multiplier."""

    def __post_init__(self) -> None:
        known = self.epsilon is not None
        if known and not math.isfinite(float(self.epsilon or 0)):
            raise InternalError(f"{self.kind}: an infinite ε is none")
        if (known or self.pending) != (self.delta is not None) or (known and self.pending):
            raise InternalError(f"{self.kind}: ε is {self.epsilon} and δ is {self.delta}")

    @property
    def protection(self) -> str:
        """Return ε and δ, or 'none'."""
        if self.delta is None:
            return NONE
        shown = PENDING if self.epsilon is None else upwards(self.epsilon)
        return f"ε = {shown}, δ = {self.delta:g}" if self.epsilon is not None else f"ε {shown}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Texts under HEADERS."""
        return (self.kind, self.observer, self.protection, self.unit, self.mechanism, self.note)


@dataclass(frozen=True)
class PrivacyReport:
    """The releases of a run and their observers; ε and δ only where they hold.

    `str` is the report as text; a notebook shows its releases as a table.
    """

    releases: tuple[Release, ...]
    promises: tuple[str, ...]
    """Sentences that hold, with their numbers."""
    assumptions: tuple[str, ...] = ()
    """Conditions of the promises, and what is not protected; empty if nothing is noised."""
    noised: tuple[str, ...] = ()
    """Kinds among 'labels', 'predictions', 'columns' and 'moments' that history and metrics are
    made of, with noise."""
    summary: tuple[str, ...] = ()
    """The promises in short, a few lines for the model's card."""

    @property
    def short(self) -> str:
        """Return the summary as text; the promises for a file of an older version."""
        texts = self.summary or self.promises
        return "\n".join(line for text in texts for line in wrap(text, WIDTH))

    @property
    def sections(self) -> tuple[Section, ...]:
        """Return all sections, as in EXPLAIN (VERBOSE)."""
        cells = tuple(release.cells for release in self.releases)
        table = TextTable(HEADERS, cells, tuple(map(_sentence, self.releases)))
        sections = (
            Section("What is promised", (Notes(self.promises),)),
            Section("What is released, to whom, and its protection", (table,)),
        )
        if not self.assumptions:  # no release is noised
            return sections
        rests = "What this rests on, and what it does not cover"
        return (*sections, Section(rests, (Notes(self.assumptions),)))

    def __str__(self) -> str:
        return str(Document("", self.sections)) if self.assumptions else sanitize.lines(self.short)

    def _repr_html_(self) -> str:
        return Document("", self.sections)._repr_html_()

    def to_json(self) -> str:
        return to_json(self, ascii=False)

    @classmethod
    def from_json(cls, text: str) -> PrivacyReport:
        """Read the output of `to_json`, of this version or a later one; unknown fields are ignored.
        Raises ValueError for any other text.
        """
        return from_json(cls, text, finite=False, strict=False)


def upwards(value: float) -> str:
    """Format with four digits, rounded up, so that a guarantee is never overstated.

    >>> upwards(0.99999), upwards(1.00001), upwards(2.0), upwards(12345.6)
    ('1', '1.001', '2', '12350')
    """
    if value <= 0:
        return f"{value:g}"
    unit = math.floor(math.log10(value)) - 3
    digits = math.ceil(value * 10.0**-unit * (1 - 1e-12))
    return f"{digits * 10 ** max(unit, 0)}" if unit >= 0 else f"{digits / 10**-unit:g}"


def _sentence(release: Release) -> str:
    text = f"{release.kind}, {release.observer}: {release.protection}"
    if release.unit:
        text += f" for {release.unit}"
    return "; ".join(part for part in (text, release.mechanism, release.note) if part)
