"""Proposal of runs to clients whose owners have training policies."""

from __future__ import annotations

from collections.abc import Mapping

from sqlfl.contract.request import Study, Verdict, verdicts_from_json
from sqlfl.contract.schema import Address, Client, specifications_to_json
from sqlfl.messages import CLIENT, Propose, Proposed, ProposeStudy
from sqlfl.messages.checks import Expected, ReplyChannel, ask, refused
from sqlfl.planner.federated.plan import FederatedPlan


def propose(plan: FederatedPlan, channel: ReplyChannel, run: str) -> None:
    """Propose the run before it begins. Raise PolicyError if a policy refuses it, and ApprovalError
    if an owner must look at it.
    """
    requests = _proposals(plan, run)
    if requests:
        ask(channel, requests, lambda _: Expected(Proposed, {}, _none))


def verdicts(plan: FederatedPlan, channel: ReplyChannel) -> dict[Client, tuple[Verdict, ...]]:
    """Return each owner's verdicts on the run, which does not begin."""
    return _verdicts(_proposals(plan, ""), channel)


def propose_study(
    studies: Mapping[Client, Study], channel: ReplyChannel
) -> dict[Client, tuple[Verdict, ...]]:
    """Propose a study, each client with its own tables. Return each owner's verdicts, none where
    it is approved or needs no approval.
    """
    return _verdicts(
        {(c, CLIENT): ProposeStudy("", CLIENT, study.to_json()) for c, study in studies.items()},
        channel,
    )


def _verdicts(
    requests: Mapping[Address, Propose | ProposeStudy], channel: ReplyChannel
) -> dict[Client, tuple[Verdict, ...]]:
    replies = ask(channel, requests, lambda _: Expected(Proposed)) if requests else {}
    by_client = {}
    for address, reply in replies.items():
        try:
            by_client[address[0]] = verdicts_from_json(reply.verdicts)
        except ValueError as error:
            raise refused(address[0], requests[address], f"has no verdicts: {error}") from None
    return by_client


def _proposals(plan: FederatedPlan, run: str) -> dict[Address, Propose]:
    return {
        (client, CLIENT): Propose(
            run,
            CLIENT,
            plan.request(client).to_json(),
            specifications_to_json(plan.specifications[client]),
            plan.fragments_sql(client),
            "" if plan.join is None else plan.join.id,
        )
        for client in plan.clients
        if client in plan.run.governed
    }


def _none(reply: Proposed) -> str | None:
    return None if reply.verdicts == "[]" else "has verdicts on a run that begins"
