"""Study: statements of an analyst that an owner approves once, by their purpose and limits."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import TypeAlias

from sqlfl.base.codec import from_json, to_json
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
