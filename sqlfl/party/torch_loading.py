"""Loading of torch and Opacus, which not every tower needs.

torch takes seconds to load, and some 200 MB. Threads that load it at once disturb each other if it
is missing, so one does after the other.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sqlfl.contract.configuration import TowerConfiguration
from sqlfl.models.towers import TowerShape, torch_missing
from sqlfl.party.steps import Engine

if TYPE_CHECKING:
    from sqlfl.models.neural import TowerNetwork

_LOADING = threading.Lock()


def torch_network(
    shape: TowerShape, engine: Engine, options: TowerConfiguration, *, private: bool = False
) -> TowerNetwork:
    """Return the network in torch. Raise ModelError if torch or the device is missing."""
    with _LOADING:
        from sqlfl.models.neural import TowerNetwork
        from sqlfl.party.first_layer import make_layer

    return TowerNetwork(shape, make_layer(engine, options.device, private=private), options.dropout)


def load_opacus() -> None:
    """Load Opacus, and torch with it. Raise ModelError if one of them is missing."""
    with _LOADING:
        import sqlfl.models.per_row  # noqa: F401


def check_device(name: str, *, private: bool = False) -> None:
    """Raise ModelError if no tower can be trained: without torch, without this device, or, if
    `private`, without Opacus.

    torch is loaded only where a tower needs it for certain. Elsewhere its presence is enough.
    """
    if private:
        load_opacus()
    if name != "cuda":
        if not _torch_present():
            raise torch_missing()
        return
    with _LOADING:
        from sqlfl.models.neural import device_of

    device_of(name)


def _torch_present() -> bool:
    with _LOADING, suppress(ImportError, ValueError):
        return find_spec("torch") is not None
    return False
