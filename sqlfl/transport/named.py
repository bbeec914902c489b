"""Transports by their names: those of the house, and those that other packages offer.

A package offers one by an entry point of the group `sqlfl.transports`:

    [project.entry-points."sqlfl.transports"]
    carrier = "my_package.transport:CarrierTransport"

It names a `Factory`, for `sqlfl.connect(transport="carrier")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from sqlfl.base.errors import Error, nearest
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Handler, Transport

GROUP = "sqlfl.transports"
LOCAL = "local"
_HOUSE = {LOCAL: "sqlfl.transport.local:LocalTransport"}


class OpenTransport(Transport, Protocol):
    """A transport that holds something, until it is closed."""

    def close(self) -> None:
        """Let go of all that it holds; no exchange is going on, and none follows."""
        ...


class Factory(Protocol):
    """Makes the transport of one federation.

    Clients come and go while it is open: both mappings are read anew in each exchange. What serves
    a client takes the bytes of one request and gives those of its reply; what interrupts it may be
    called from any thread, and ends what it is serving.
    """

    def __call__(
        self,
        handlers: Mapping[Client, Handler],
        interrupts: Mapping[Client, Callable[[], None]],
        /,
    ) -> OpenTransport: ...


def factory_of(name: str) -> Factory:
    """What makes transports of this name.

    Raises Error where there is none, where several packages offer it, and where it cannot be
    loaded.
    """
    offered = _offered()
    several = offered.get(name, [])
    if not several:
        near = nearest(name, offered)
        raise Error(
            f"there is no transport {name}",
            hint=f"did you mean {near}?" if near else f"there is {', '.join(sorted(offered))}",
        )
    if len(several) > 1:
        values = " and ".join(point.value for point in several)
        raise Error(
            f"there are {len(several)} transports {name}: {values}",
            hint="remove all but one of the packages that offer it",
        )
    try:
        factory: Factory = several[0].load()
    except (ImportError, AttributeError) as error:
        raise Error(
            f"the transport {name} ({several[0].value}) cannot be loaded: {error}",
            hint="install what its package needs",
        ) from error
    return factory


def _offered() -> dict[str, list[EntryPoint]]:
    found = {name: [EntryPoint(name, value, GROUP)] for name, value in _HOUSE.items()}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found
