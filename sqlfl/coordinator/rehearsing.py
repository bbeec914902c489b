"""Rehearsal: a plan that runs over synthetic rows of the parties, to check it and to measure its
cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.base.progress import Progress
from sqlfl.contract.schema import specifications_to_json
from sqlfl.coordinator.checking import check
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.training import Trained, train
from sqlfl.coordinator.tuning import tune
from sqlfl.messages import CLIENT, Ready, Rehearse
from sqlfl.messages.replies import Expected, ask
from sqlfl.planner.federated.plan import CHECK, FederatedPlan
from sqlfl.transport.base import Channel


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
