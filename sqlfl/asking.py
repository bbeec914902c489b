"""What is asked of the parties of a model outside of a run: the weights of its blocks."""

from __future__ import annotations

from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.weights import weights
from sqlfl.result import Result
from sqlfl.store.saving import Saving
from sqlfl.transport.base import Channel


def weights_text(name: str) -> str:
    """The statement that asks for the weights of the model of that name.

    >>> weights_text('my "first" model')
    'WEIGHTS OF MODEL "my ""first"" model"'
    """
    quoted = name.replace('"', '""')
    return f'WEIGHTS OF MODEL "{quoted}"'


def weights_of(name: str, saving: Saving, channel: Channel) -> Result:
    """What `WEIGHTS OF MODEL` shows.

    Raises ModelError where there is no such model or it has none, and where a party is missing.
    """
    with saving.held(name) as model:
        saving.check_here(model)
        notes: list[str] = []
        table = weights(model, channel, Scoring(note=notes.append))
        return Result(table, notes=notes)
