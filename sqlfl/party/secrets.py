"""What a party's clients know, and the coordinator does not."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.udfs.labels.label_secret import Holders
from sqlfl.udfs.numbering.keys import derive


@dataclass(frozen=True, repr=False)
class Secrets:
    """Keys of the hashes; the coordinator's code never touches them."""

    federation: bytes
    """Shared by all parties: join keys."""
    organisation: bytes
    """Shared by one party's clients: vocabularies."""
    holders: Holders = field(default_factory=Holders)
    """Shared by all parties: whose secret of label noise is another one's too."""

    @property
    def of_rehearsals(self) -> Secrets:
        """Hashes of values that everybody knows are under other keys than those of real ones."""
        federation, organisation = (
            derive(key, "rehearsal") for key in (self.federation, self.organisation)
        )
        return Secrets(federation, organisation)
