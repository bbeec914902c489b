"""Context of a run, which leaves nothing at the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlfl.base.errors import PartyError
from sqlfl.base.interrupts import deferred
from sqlfl.base.threads import single
from sqlfl.contract.schema import Client
from sqlfl.messages import CLIENT, Finish, Ready, Seal, Sealed
from sqlfl.messages.checks import Expected, ask
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.transport.base import Channel


@contextmanager
def running(plan: FederatedPlan, run: str, channel: Callable[[], Channel]) -> Iterator[None]:
    """Run the block with one BLAS thread. At the end, every client drops the run's snapshots.

    Each client is notified through its own `channel`, so that one failing client does not keep
    others from it. The user sees the first error.
    """
    failed: BaseException | None = None
    governed = plan.run.governed
    try:
        with single():
            yield
    except BaseException as error:
        failed = error
    with deferred():
        for client in plan.clients:
            try:
                _finish(client, run, channel(), sealed=client in governed)
            except PartyError as error:
                failed = failed or error
    if failed is not None:
        raise failed


def _finish(client: Client, run: str, channel: Channel, *, sealed: bool) -> None:
    """Finish the run at a client. `sealed`: the client keeps its messages, and receives the
    coordinator's hash, unless replies are missing.
    """
    address = client, CLIENT
    if sealed and channel.is_whole(client, run):
        heads = channel.heads(client, run)
        ask(channel, {address: Seal(run, CLIENT, *heads)}, lambda _: Expected(Sealed))
    ask(channel, {address: Finish(run, CLIENT)}, lambda _: Expected(Ready))
