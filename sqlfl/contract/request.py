"""What a party is told of a whole run before it begins, for its owner to approve."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

from sqlfl.base.codec import from_json, loads, to_json
from sqlfl.base.errors import InternalError

SAME = ("engine", "name", "device", "warm")
"""Of a slot's specification: what changes nothing of what leaves. (Of a warm start the request
says that it is one.)"""

OWN = ("engine", "memory_limit", "max_joined_rows", "network", "warm_start", "wait")
"""Of the options: likewise."""


def checkpoint_of(run: str, number: int) -> str:
    """Under which name the blocks of a run's checkpoint are kept, counted from 1."""
    told = hashlib.sha256(f"checkpoint {number} of run {run}".encode()).hexdigest()
    return told[: len(run)]


@dataclass(frozen=True)
class Asked:
    """Requests of one kind, of one slot of the query at one client."""

    slot: int
    """-1 for the client as a whole."""
    kind: str
    reply: str
    """The kind of the reply."""
    what: str
    """Words on what leaves with it; empty where nothing does."""
    most: int | None
    """How many there are; None where that follows from the data."""


@dataclass(frozen=True)
class Request:
    """A run, as one client takes part in it."""

    purpose: str
    """'train', 'evaluate', 'predict' or 'check'."""
    kind: str
    """Of the model."""
    algorithm: str
    """Of training; empty elsewhere."""
    options: str
    """JSON of all options, those that were not given too, and of what is tuned."""
    privacy: str
    """JSON of what PRIVACY asks for; 'null' where nothing."""
    look: str
    """What is shown of the rows, as JSON; 'null' where nothing is but metrics or predictions."""
    warm: bool
    """Training starts from a model."""
    into: bool
    """Predictions are written into tables."""
    asked: tuple[Asked, ...]

    def to_json(self) -> str:
        return to_json(self)

    def often(self) -> dict[tuple[int, str], float]:
        """(slot, kind) -> how many requests there are at most, infinite where that follows from the
        data; parts of one kind add up."""
        found: dict[tuple[int, str], float] = {}
        for one in self.asked:
            key, most = (one.slot, one.kind), math.inf if one.most is None else max(one.most, 0)
            found[key] = found.get(key, 0) + most
        return found


ALLOWED, REFUSED, WAITING = "allowed", "refused", "waiting"


@dataclass(frozen=True)
class Verdict:
    """What a client's owner says of a part of a run."""

    slot: int
    """-1 for the run as a whole."""
    what: str
    """Words on what would leave; empty for all of it."""
    state: str
    """ALLOWED, REFUSED or WAITING (for the owner)."""
    rule: str
    """By which rule; empty where it is allowed."""


def verdicts_to_json(verdicts: tuple[Verdict, ...]) -> str:
    return to_json(verdicts)


def verdicts_from_json(text: str) -> tuple[Verdict, ...]:
    """Raises ValueError for what `to_json` did not write of a tuple of them."""
    found = from_json(tuple[Verdict, ...], text)
    if any(item.state not in (ALLOWED, REFUSED, WAITING) for item in found):
        raise ValueError("a verdict of another state")
    return found


@lru_cache(maxsize=8)
def request_from_json(text: str) -> Request:
    """What `to_json` wrote. Raises InternalError for anything else."""
    try:
        return from_json(Request, text)
    except ValueError as error:
        raise InternalError(f"the request of a run is none: {error}") from None


def digest(request: str, specification: str, fragments: tuple[str, ...]) -> str:
    """Of the whole: it changes with all that may change what leaves. 64 hexadecimal digits.

    `fragments` are in the form that the party has brought them to.
    """
    told = loads(request)
    options = loads(told.pop("options"))
    text = to_json([told, _without(options, OWN), _without(loads(specification), SAME), fragments])
    return hashlib.sha256(text.encode()).hexdigest()


def _without(value: object, names: tuple[str, ...]) -> object:
    """JSON with no field of these names, in one order."""
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if isinstance(value, dict):
        return {name: _without(value[name], names) for name in sorted(value) if name not in names}
    return value
