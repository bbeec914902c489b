"""Runs are proposed to clients whose owners have made training policies."""

from __future__ import annotations

from sqlfl.contract.request import Verdict, verdicts_from_json
from sqlfl.contract.schema import Address, Client, specifications_to_json
from sqlfl.messages import CLIENT, Propose, Proposed
from sqlfl.messages.replies import Expected, ReplyChannel, ask, refused
from sqlfl.planner.federated.plan import FederatedPlan


def propose(plan: FederatedPlan, channel: ReplyChannel, run: str) -> None:
    """Before the run begins. Raises PolicyError where a policy refuses it, and ApprovalError where
    an owner is to look at it."""
    requests = _proposals(plan, run)
    if requests:
        ask(channel, requests, lambda _: Expected(Proposed, {}, _none))


def verdicts(plan: FederatedPlan, channel: ReplyChannel) -> dict[Client, tuple[Verdict, ...]]:
    """What each owner says of the run, which does not begin."""
    requests = _proposals(plan, "")
    replies = ask(channel, requests, lambda _: Expected(Proposed)) if requests else {}
    found = {}
    for address, reply in replies.items():
        try:
            found[address[0]] = verdicts_from_json(reply.verdicts)
        except ValueError as error:
            raise refused(address[0], requests[address], f"has no verdicts: {error}") from None
    return found


def _proposals(plan: FederatedPlan, run: str) -> dict[Address, Propose]:
    return {
        (client, CLIENT): Propose(
            run,
            CLIENT,
            plan.request(client).to_json(),
            specifications_to_json(plan.specifications[client]),
            plan.fragments_sql(client),
        )
        for client in plan.clients
        if client in plan.run.governed
    }


def _none(reply: Proposed) -> str | None:
    return None if reply.verdicts == "[]" else "has verdicts on a run that begins"
