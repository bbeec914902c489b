"""EXPLAIN ANALYZE: measured cost of a plan over synthetic rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlfl.contract.schema import Client
from sqlfl.planner.explain.render import Notes, Section, TextTable
from sqlfl.planner.federated.plan import FederatedPlan

SAID = (
    "Each party made up {rows:,} rows for each of its tables, from names, types and the statement. "
    "No row of a table was read, and nothing is kept. The numbers count the messages of the run, "
    "without planning and without the making of rows."
)
OWNERS = "A rehearsal counts against no policy. EXPLAIN says below whether owners allow the run."
OTHERWISE = (
    "Real tables may have more or fewer rows, categories and rounds. The formulas of EXPLAIN "
    "(VERBOSE) hold for these too. A model of made-up rows says nothing, and is not shown."
)


@dataclass(frozen=True)
class ClientTraffic:
    """Messages that a client sent or received, without those of planning."""

    client: Client
    crosses: bool
    """True if they went from one party to another."""
    up: bool
    messages: int
    bytes: int
    formula: int | None
    """Bytes by EXPLAIN's formula; None if the formula has a quantity that messages do not show."""
    differing: tuple[str, ...]
    """Kinds of messages whose number or size differs from the formula."""


@dataclass(frozen=True)
class RehearsalReport:
    """Results of a rehearsal."""

    rows: int
    """Rows of each table."""
    epochs: int
    exchanges: int
    """Exchanges in which the statement runs."""
    seconds: float
    interrupted: bool
    lines: tuple[ClientTraffic, ...]
    remarks: tuple[str, ...]
    """Warnings from planning."""


def rehearsed(plan: FederatedPlan, account: RehearsalReport) -> Section:
    rows = tuple(
        (
            str(line.client) + ("" if line.crosses else ", at the coordinator"),
            "sent" if line.up else "got",
            f"{line.messages:,}",
            f"{line.bytes:,}",
            "unknown" if line.formula is None else f"{line.formula:,}",
        )
        for line in account.lines
    )
    headers = ("client", "has", "messages", "bytes", "bytes by EXPLAIN's formulas")
    owners = (OWNERS,) if plan.run.governed else ()
    said = SAID.format(rows=account.rows)
    notes = (*_said(plan, account), said, OTHERWISE, *owners, *account.remarks)
    return Section("The rehearsal", (TextTable(headers, rows), Notes(notes)))


def _said(plan: FederatedPlan, account: RehearsalReport) -> Iterator[str]:
    ran = "It ran to its end" if not account.interrupted else "It was interrupted, and ended"
    epochs = f"{account.epochs:,} epochs, " if plan.algorithm else ""
    yield f"{ran}: {epochs}{account.exchanges:,} exchanges, {account.seconds:.1f} seconds."
    for line in account.lines:
        if line.differing:
            yield (
                f"EXPLAIN says otherwise about the messages that {line.client} "
                f"{'sent' if line.up else 'got'}: "
                f"{', '.join(line.differing)}. That is a fault of sqlfl; please report it."
            )
