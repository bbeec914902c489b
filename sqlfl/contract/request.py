"""Requests that an owner approves: a whole run before it begins, and a study.

A study is statements of an analyst that an owner approves once, by their purpose and limits.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from sqlfl.base.codec import LEFT_OUT, from_json, loads, to_json
from sqlfl.base.errors import InternalError
from sqlfl.base.sanitize import line

STUDY = "study"
"""Purpose of the request for a study itself."""
ROLES = ("train", "label", "weight", "offset", "join", "filter", "identify")
"""Roles of columns. WEIGHT and OFFSET take a grant of LABEL."""
TRAIN, TUNE, CHECK, EVALUATE, PREDICT = "train", "tune", "check", "evaluate", "predict"
TRAINING = (TRAIN, TUNE)
STATEMENTS = (
    *(CHECK, TRAIN, TUNE, EVALUATE, PREDICT),
    *("inference", "importance", "contributions", "skew"),
)
"""Kinds of statement. EVALUATE stands for METRICS, ROC, CONFUSION, CALIBRATION and RESIDUALS too.
"""
MAX_NAME = 200
"""Characters of a study's name."""
TablePath: TypeAlias = "tuple[str, str, str]"
"""Database, schema and name of a table; the first two are empty for the connection's own."""


@dataclass(frozen=True)
class StudyColumns:
    """Columns of a table in one role."""

    role: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class StudyTable:
    table: TablePath
    roles: tuple[StudyColumns, ...]

    def columns(self, role: str) -> tuple[str, ...]:
        return next((item.columns for item in self.roles if item.role == role), ())


@dataclass(frozen=True)
class Study:
    """A study, with the tables of one client."""

    name: str
    purpose: str
    """Purpose in the analyst's words."""
    tables: tuple[StudyTable, ...]
    statements: tuple[str, ...]
    kinds: tuple[str, ...] | None
    """Kinds of models; None for all."""
    algorithms: tuple[str, ...] | None
    """Methods of training; None for all."""
    epsilon: float | None
    """Maximum ε of a row's features in the training of one run; None if they leave in clear."""
    delta: float
    """δ at which `epsilon` holds."""
    label_epsilon: float | None
    """Maximum ε of a row's label in one run; None if labels leave in clear."""
    rounds: int | None
    """Maximum rounds of one run; None for those that the owner's policy allows."""
    runs: int
    """Maximum runs of all statements together."""
    until: dt.datetime
    """Time at which it ends."""

    def to_json(self) -> str:
        return to_json(self)

    @property
    def digest(self) -> str:
        """Digest of the whole, 64 hexadecimal digits."""
        return hashlib.sha256(f"{STUDY} {self.to_json()}".encode()).hexdigest()


@dataclass(frozen=True)
class ApprovedStudy:
    """A study that its owner has approved."""

    number: int
    """Number of its request."""
    analyst: str
    study: Study
    used: int
    """Runs that have begun within it."""


def study_from_json(text: str) -> Study:
    """Return the study that `to_json` wrote. Raise InternalError for anything else."""
    try:
        study = from_json(Study, text)
    except ValueError as error:
        raise InternalError(f"the description of a study is none: {error}") from None
    roles = {item.role for table in study.tables for item in table.roles}
    if study.until.tzinfo is None or study.runs < 1 or (study.rounds or 1) < 1:
        raise InternalError("the description of a study has limits that are none")
    if not 0 < len(study.name) <= MAX_NAME or line(study.name) != study.name:
        raise InternalError("the description of a study has no name that can be shown")
    if not (roles <= set(ROLES) and set(study.statements) <= set(STATEMENTS)):
        raise InternalError("the description of a study has unknown roles or statements")
    return study


SAME = ("engine", "name", "device", "warm")
"""Fields of a slot's specification that do not change what leaves. (The request itself says if it
is a warm start.)
"""

OWN = ("engine", "memory_limit", "max_joined_rows", "network", "warm_start", "wait")
"""Options that do not change what leaves."""

QUALITY = "threshold"
"""Purpose, and a field of the diagnostics, of METRICS, ROC, CONFUSION, CALIBRATION and RESIDUALS.
They are computed from the messages of EVALUATE.
"""


def checkpoint_of(run: str, number: int) -> str:
    """Return the name under which the blocks of a run's checkpoint are kept, counted from 1."""
    digits = hashlib.sha256(f"checkpoint {number} of run {run}".encode()).hexdigest()
    return digits[: len(run)]


@dataclass(frozen=True)
class Asked:
    """Requests of one kind, about one slot of the query at one client."""

    slot: int
    """Slot; -1 for the client as a whole."""
    kind: str
    reply: str
    """Kind of the reply."""
    what: str
    """Description of the data that leave with it; empty if none do."""
    most: int | None
    """Maximum number of requests; None if it follows from the data."""


@dataclass(frozen=True)
class Request:
    """A run, from the view of one client."""

    purpose: str
    """'train', 'evaluate', 'predict' or 'check'."""
    kind: str
    """Kind of the model."""
    algorithm: str
    """Algorithm of training; empty elsewhere."""
    options: str
    """JSON of all options, including defaults, and of the tuning."""
    privacy: str
    """JSON of the PRIVACY clause; 'null' without it."""
    look: str
    """JSON of the diagnostic; 'null' for mere metrics or predictions."""
    warm: bool
    """True if training starts from a model."""
    into: bool
    """True if predictions are written into tables."""
    asked: tuple[Asked, ...]
    study: str | None = field(default=None, metadata=LEFT_OUT)
    """Name of the study within which the analyst runs it; None for none."""

    def to_json(self) -> str:
        return to_json(self)

    def often(self) -> dict[tuple[int, str], float]:
        """Return (slot, kind) -> the maximum number of requests, infinite if it follows from the
        data. Parts of one kind add up.
        """
        counts: dict[tuple[int, str], float] = {}
        for one in self.asked:
            key, most = (one.slot, one.kind), math.inf if one.most is None else max(one.most, 0)
            counts[key] = counts.get(key, 0) + most
        return counts


ALLOWED, REFUSED, WAITING = "allowed", "refused", "waiting"


@dataclass(frozen=True)
class Verdict:
    """A client owner's verdict on a part of a run."""

    slot: int
    """Slot; -1 for the run as a whole."""
    what: str
    """Description of the data that would leave; empty for all of them."""
    state: str
    """ALLOWED, REFUSED or WAITING (for the owner)."""
    rule: str
    """Rule that decides it; empty if it is allowed."""


def verdicts_to_json(verdicts: tuple[Verdict, ...]) -> str:
    return to_json(verdicts)


def verdicts_from_json(text: str) -> tuple[Verdict, ...]:
    """Return the verdicts. Raise ValueError for anything but a tuple of them that `to_json`
    wrote.
    """
    verdicts = from_json(tuple[Verdict, ...], text)
    if any(item.state not in (ALLOWED, REFUSED, WAITING) for item in verdicts):
        raise ValueError("a verdict of another state")
    return verdicts


@lru_cache(maxsize=8)
def request_from_json(text: str) -> Request:
    """Return the request that `to_json` wrote. Raise InternalError for anything else."""
    try:
        return from_json(Request, text)
    except ValueError as error:
        raise InternalError(f"the request of a run is none: {error}") from None


def digest(request: str, specification: str, fragments: tuple[str, ...]) -> str:
    """Return the digest of the whole, 64 hexadecimal digits. It changes with everything that may
    change what leaves. It is the same for diagnostics that send the same messages as EVALUATE.

    `fragments` are in the party's normal form.
    """
    description = loads(request)
    options = loads(description.pop("options"))
    description.pop("study", None)
    if measures(description["purpose"], description["look"]):
        description["look"] = "null"
    text = to_json(
        [description, _without(options, OWN), _without(loads(specification), SAME), fragments]
    )
    return hashlib.sha256(text.encode()).hexdigest()


def measures(purpose: str, look: str) -> bool:
    """Return True for EVALUATE, and for diagnostics that the coordinator computes from the same
    messages. look : JSON of the diagnostic.
    """
    told = loads(look)
    return purpose == EVALUATE and (told is None or (isinstance(told, dict) and QUALITY in told))


def _without(value: object, names: tuple[str, ...]) -> object:
    """Return JSON without fields of these names, in one order."""
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if isinstance(value, dict):
        return {name: _without(value[name], names) for name in sorted(value) if name not in names}
    return value
