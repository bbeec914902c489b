"""A clinic and a lab, and the clinic's party spoken to by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

import sqlfl
from sqlfl import messages as ms
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import KeySpecification, SlotSpecification, specifications_to_json

PATIENTS = """CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, sin(i) AS bmi,
  'w' || i % 4 AS ward, i * 7 AS salary, i % 5 = 0 AS ill, i % 3 + sin(i) AS days
  FROM range(300) AS r(i)"""
TESTS = "CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp FROM range(300) AS r(i)"
QUERY = """SELECT p.age, p.bmi, p.ward, t.crp, p.days
  FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"""
TRAIN = f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET days FROM ({QUERY})"
SICK = (
    TRAIN.replace("linear", "logistic")
    .replace("TARGET days", "TARGET ill")
    .replace("p.ward, t.crp, p.days", "t.crp, p.ill")
)
GRANT = """GRANT TRAIN (age, bmi, ward), FILTER (age, bmi, ward),
  JOIN (pid), LABEL (days, ill), PREDICT ON patients TO 'acme' UNDER r"""


def ruled(
    con: duckdb.DuckDBPyConnection | Path,
    rules: str = "",
    grant: str = GRANT,
    store: duckdb.DuckDBPyConnection | Path | None = None,
) -> None:
    with sqlfl.owner(con, store) as owner:
        owner.sql(f"CREATE OR REPLACE TRAINING POLICY r {f'WITH ({rules})' * bool(rules)}")
        if grant:
            owner.sql(grant)


Ask = Callable[[ms.Message], ms.Message]
SLOT = SlotSpecification(
    0, (), False, False, (), (KeySpecification(0, ("BIGINT",)),), (0,), False, "organisation",
    "arrays",
)  # fmt: skip


ASKED = (ms.SendKeys, ms.Activate, ms.SendLabels, ms.SendFindings, ms.SendPredictions)
REQUEST = Request(
    "train", "linear_regression", "sgd", "{}", "null", "null", warm=False, into=False,
    asked=tuple(Asked(0, kind.kind, "", "", 1) for kind in ASKED),
)  # fmt: skip


def prepared(
    ask: Ask,
    select: str | tuple[str, ...],
    slot: SlotSpecification = SLOT,
    request: Request = REQUEST,
    run: str = "r",
) -> ms.Message:
    """What is said of the proposal, where that is no."""
    texts = (select,) if isinstance(select, str) else select
    told = (specifications_to_json((slot,)), texts)
    reply = ask(ms.Propose(run, -1, request.to_json(), *told))
    return ask(ms.Prepare(run, -1, *told)) if isinstance(reply, ms.Proposed) else reply
