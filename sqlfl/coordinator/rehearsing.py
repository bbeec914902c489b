"""A plan that is run over rows that the parties make up, to see that it runs and what it takes."""

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
    """How it went."""

    epochs: int = 0
    """Of all fits."""
    outputs: int | None = None
    """d_c; None where nothing is trained."""
    interrupted: bool = False


def begin(plan: FederatedPlan, channel: Channel, run: str) -> None:
    """Let all clients make rows up for the run, whose name says that it is a rehearsal. Raises
    PolicyError where a client's owner has not granted what the plan reads, and PartyError where no
    rows can be made up."""
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
    """Run the plan, once its clients have made rows up. Raises what the statement would."""
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
