"""EXPLAIN ANALYZE: a whole statement over rows that the parties make up, to check its plan and to
measure its cost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from sqlfl.base.errors import Error, OptionError, PolicyError
from sqlfl.base.progress import Progress
from sqlfl.base.result import Result
from sqlfl.contract.schema import specifications_to_json
from sqlfl.coordinator.checking import check
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.training import Trained, train
from sqlfl.coordinator.tuning import tune
from sqlfl.federation.saving import running
from sqlfl.messages import CLIENT, MADE_UP, REHEARSAL, Ready, Rehearse, SendExplained
from sqlfl.messages.checks import Expected, ask
from sqlfl.planner.explain.document import ExplainedPlan
from sqlfl.planner.explain.sections import ClientTraffic, RehearsalReport
from sqlfl.planner.federated.exchanges import DOWN, UP
from sqlfl.planner.federated.plan import CHECK, FederatedPlan
from sqlfl.planner.federated.tally import Tally, measured
from sqlfl.planner.grammar.statements import CheckQuery, ExplainStatement, TrainModel
from sqlfl.transport.base import Border, Channel


@dataclass(frozen=True)
class Rehearsed:
    """Result of a rehearsal."""

    epochs: int = 0
    """Epochs of all fits."""
    outputs: int | None = None
    """d_c; None without training."""
    interrupted: bool = False


def begin(plan: FederatedPlan, channel: Channel, run: str) -> None:
    """Let all clients make synthetic rows for the run. Its name marks it as a rehearsal.

    Raise PolicyError if a client's owner has not granted the columns that the plan reads. Raise
    PartyError if no rows can be made.
    """
    requests = {
        (client, CLIENT): Rehearse(
            run,
            CLIENT,
            plan.request(client).to_json(),
            specifications_to_json(plan.specifications[client]),
            plan.fragments_sql(client),
        )
        for client in plan.clients
    }
    ask(channel, requests, lambda _: Expected(Ready))


def rehearse(
    plan: FederatedPlan,
    channel: Channel,
    run: str,
    progress: Progress,
    executor: Executor | None = None,
) -> Rehearsed:
    """Run the plan, once its clients have synthetic rows. Raise the errors of the statement."""
    if plan.purpose == CHECK:
        check(plan, channel, run, Scoring(progress.stage))
        return Rehearsed()
    if plan.tuning is None:
        return _of(train(plan, channel, run, progress, executor=executor))
    tuned = tune(plan, channel, run, progress, executor=executor)
    return _of(tuned.trained, sum(score.epochs for score in tuned.scores))


def _of(trained: Trained, before: int = 0) -> Rehearsed:
    epochs = before + trained.history.num_rows
    return Rehearsed(epochs, len(trained.intercept), trained.interrupted)


SCHEMA = pa.schema(
    [
        ("party", pa.string()),
        ("client", pa.string()),
        ("direction", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("explained", pa.int64()),
        ("crosses", pa.bool_()),
    ]
)
"""`explained`: bytes by EXPLAIN's formulas at these numbers of rows; other columns as
in the audit.
"""


def check_rehearsed(statement: ExplainStatement) -> TrainModel | CheckQuery:
    """Return the statement to rehearse. Raise OptionError if it starts from a model."""
    training = statement.statement
    assert isinstance(training, TrainModel | CheckQuery)
    for option in training.options:
        if option.name == "warm_start":
            raise OptionError(
                "a rehearsal starts from no model, whose weights follow from rows",
                hint="leave warm_start out: what is exchanged is nearly the same without",
                sql=statement.sql,
                span=option.name.span,
            )
    return training


def rehearsed(
    plan: ExplainedPlan,
    border: Border,
    check: Callable[[], None],
    show: Callable[[], Progress],
    executor: Executor,
    remarks: Iterable[str],
    *,
    verbose: bool,
) -> Result:
    """Run the plan over synthetic rows, and leave nothing behind. `check` is called before each
    exchange. Raises the statement's own errors.
    """
    run, tally = f"{REHEARSAL}{secrets.token_hex(8)}", Tally()
    border.govern(plan.run.governed)
    started = time.perf_counter()
    channel = border.channel(check, note=tally.note)
    with (
        closing(show()) as progress,
        running(plan, run, lambda: border.channel(note=tally.note)),
    ):
        progress.stage("making rows up")
        begin(plan, border.channel(check), run)
        try:
            rehearsal_ = rehearse(plan, channel, run, progress, executor)
        except PolicyError:
            raise
        except Error as error:
            error.say_where(_where(tally.empty(plan)))
            raise
    account = RehearsalReport(
        rows=MADE_UP,
        epochs=rehearsal_.epochs,
        exchanges=channel.rounds,
        seconds=time.perf_counter() - started,
        interrupted=rehearsal_.interrupted,
        lines=_lines(plan, tally, rehearsal_),
        remarks=tuple(remarks),
    )
    shown = plan.rehearsed(account, verbose=verbose)
    return Result(_table(account), text=str(shown), markup=shown._repr_html_)


def _where(empty: tuple[str, ...]) -> str:
    """Return a note on the rehearsal. empty : tables without any row that fulfils the query's
    conditions.
    """
    words = "in a rehearsal, over rows that are made up"
    if empty:
        words += f", of which none of {', '.join(empty)} fulfils the query's conditions"
    return f"{words}: real ones may be otherwise"


def _lines(plan: ExplainedPlan, tally: Tally, rehearsal_: Rehearsed) -> tuple[ClientTraffic, ...]:
    outputs = rehearsal_.outputs
    if outputs is None:
        outputs = tally.of((SendExplained.kind,), None, None).largest.get("outputs", 1)
    every = measured(plan, tally, rehearsal_.epochs, outputs)
    return tuple(
        ClientTraffic(
            client, plan.crosses(client), direction == UP,
            messages.messages, messages.bytes, messages.formula, messages.differing,
        )
        for (client, direction), messages in every.items()
    )  # fmt: skip


def _table(account: RehearsalReport) -> pa.Table:
    rows = [
        {
            "party": line.client.party,
            "client": str(line.client),
            "direction": UP if line.up else DOWN,
            "messages": line.messages,
            "bytes": line.bytes,
            "explained": line.formula,
            "crosses": line.crosses,
        }
        for line in account.lines
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
