"""Secrets of a party's clients, which the coordinator does not know."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.udfs.labels.label_secret import Holders
from sqlfl.udfs.numbering.keys import derive


@dataclass(frozen=True, repr=False)
class Secrets:
    """Keys of the hashes; the coordinator's code never touches them."""

    federation: bytes
    """Secret of all parties, for join keys."""
    organisation: bytes
    """Secret of one party's clients, for vocabularies."""
    holders: Holders = field(default_factory=Holders)
    """Shared by all parties: which secrets of label noise several clients have in common."""

    @property
    def of_rehearsals(self) -> Secrets:
        """Return other keys for rehearsals. Their values are public, so their hashes must not use
        the real keys.
        """
        federation, organisation = (
            derive(key, "rehearsal") for key in (self.federation, self.organisation)
        )
        return Secrets(federation, organisation)
