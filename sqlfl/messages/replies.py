"""Checks of a party's replies against its requests, before any use.

`sqlfl.messages.wire.received` has checked that a reply has its declared form, and the channel that
it belongs to the request. Here are the checks that only the coordinator can make: the kind, the
numbers of its sizes, and conditions from earlier replies. Any fault is a PartyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sqlfl.base.errors import InternalError, PartyError, ReplyError
from sqlfl.contract.schema import Address, Client
from sqlfl.messages import Message
from sqlfl.messages.checks import mismatch, sizes_of

Reply = TypeVar("Reply", bound=Message)

SAME_VERSION = "see that the party runs this version of sqlfl, unchanged"


class ReplyChannel(Protocol):
    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make one round. Raise PartyError."""
        ...


@dataclass(frozen=True)
class Expected(Generic[Reply]):
    """Expected reply."""

    kind: type[Reply]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Numbers for the names of its sizes. Other sizes are free."""
    fault: Callable[[Reply], str | None] = lambda reply: None
    """Returns any other fault, to follow 'its reply to prepare'; None without one."""

    def __post_init__(self) -> None:
        if unknown := {name.partition("[")[0] for name in self.sizes} - self.kind.sizes():
            raise InternalError(f"message {self.kind.kind} has no size {min(unknown)}")


def ask(
    channel: ReplyChannel,
    requests: Mapping[Address, Message],
    expected: Callable[[Address], Expected[Reply]],
) -> dict[Address, Reply]:
    """Make one exchange and return the replies that are as expected.

    Raise PartyError for the first client, in the order of the requests, that failed or sent another
    reply.
    """
    replies = channel.exchange(requests)
    return {
        address: _checked(address[0], request, replies[address], expected(address))
        for address, request in requests.items()
    }


def refused(client: Client, request: Message, what: str, hint: str = SAME_VERSION) -> PartyError:
    """Return the error about a reply."""
    return ReplyError(str(client), f"its reply to {request.kind} {what}", hint=hint)


def _checked(client: Client, request: Message, reply: Any, expected: Expected[Reply]) -> Reply:
    if type(reply) is not expected.kind:
        what = f"is {reply.kind}, expected {expected.kind.kind}"
        raise refused(client, request, what)
    fault = mismatch(sizes_of(reply), expected.sizes)
    if fault is not None:
        raise refused(client, request, f"has other sizes: {fault}")
    fault = expected.fault(reply)
    if fault is not None:
        raise refused(client, request, fault)
    return reply
