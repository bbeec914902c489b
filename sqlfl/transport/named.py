"""Transports by name: the built-in one, and those of other packages.

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
_BUILT_IN = {LOCAL: "sqlfl.transport.local:LocalTransport"}


class OpenTransport(Transport, Protocol):
    """Transport that holds resources until it is closed."""

    def close(self) -> None:
        """Release all resources. No exchange is running, and none follows."""
        ...


class Factory(Protocol):
    """Factory of one federation's transport.

    Clients come and go while it is open, so each exchange reads both mappings anew. A handler takes
    the bytes of one request and returns those of its reply. Any thread may call an interrupt; it
    ends the request being served.
    """

    def __call__(
        self,
        handlers: Mapping[Client, Handler],
        interrupts: Mapping[Client, Callable[[], None]],
        /,
    ) -> OpenTransport: ...


def factory_of(name: str) -> Factory:
    """Return the factory of transports with this name.

    No other package can replace the built-in transport. Raise Error for an unknown name, for a name
    that several packages offer, and for one that cannot be loaded.
    """
    if name in _BUILT_IN:
        built_in: Factory = EntryPoint(name, _BUILT_IN[name], GROUP).load()
        return built_in
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
    offers = {name: [EntryPoint(name, value, GROUP)] for name, value in _BUILT_IN.items()}
    for point in entry_points(group=GROUP):
        offers.setdefault(point.name, []).append(point)
    return offers
