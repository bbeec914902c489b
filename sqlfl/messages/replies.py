"""What a party may answer: its replies are held against what was asked, before anything is made of
them.

`sqlfl.messages.wire.received` has seen that a reply is of its declared form, the channel that it
belongs to the request. What only the coordinator can know is here: which kind it must be, the
numbers that its sizes stand for, and what follows from earlier replies. Whatever is wrong is a
PartyError.
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
        """One round; raises PartyError."""
        ...


@dataclass(frozen=True)
class Expected(Generic[Reply]):
    """What must come back."""

    kind: type[Reply]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Numbers that the names of its sizes stand for; others may be any."""
    fault: Callable[[Reply], str | None] = lambda reply: None
    """What else is wrong with it, to follow 'its reply to prepare'; None where nothing is."""

    def __post_init__(self) -> None:
        if unknown := {name.partition("[")[0] for name in self.sizes} - self.kind.sizes():
            raise InternalError(f"message {self.kind.kind} has no size {min(unknown)}")


def ask(
    channel: ReplyChannel,
    requests: Mapping[Address, Message],
    expected: Callable[[Address], Expected[Reply]],
) -> dict[Address, Reply]:
    """One exchange, and the replies that are as expected.

    Raises PartyError for the first client, in the order of the requests, that failed or whose reply
    is another.
    """
    replies = channel.exchange(requests)
    return {
        address: _checked(address[0], request, replies[address], expected(address))
        for address, request in requests.items()
    }


def refused(client: Client, request: Message, what: str) -> PartyError:
    """The error about a reply."""
    return ReplyError(str(client), f"its reply to {request.kind} {what}", hint=SAME_VERSION)


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
