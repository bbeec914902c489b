"""Training methods, by the name that the option `algorithm` gives them.

A method is a package. Its modules are loaded where and when they are needed: `options` and `spec`
by the planner, `coordinator` by the coordinator, `client` by a party. Each has its part under the
name of the module (`OPTIONS`, `SPEC`, `COORDINATOR`, `CLIENT`). Methods of another distribution are
found by its entry points in the group `sqlfl.methods`, from the method's name to its package.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from sqlfl.base.errors import InternalError

GROUP = "sqlfl.methods"
METHODS = {
    "lbfgs": "sqlfl.methods.lbfgs",
    "sgd": "sqlfl.methods.sgd",
    "admm": "sqlfl.methods.admm",
    "pbm": "sqlfl.methods.pbm",
    "frank_wolfe": "sqlfl.methods.frank_wolfe",
    "moments": "sqlfl.methods.moments",
}
"""Name -> package; `methods` includes those of other distributions."""


@cache
def methods() -> Mapping[str, str]:
    """Return name -> package of all installed methods. None can take the name of a built-in one."""
    others = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return MappingProxyType(METHODS | others | METHODS)


@cache
def load_messages() -> None:
    """Load the messages of all methods. Each comes with the method's part for a party."""
    for name in methods():
        part_of(name, "client")


def part_of(name: str, part: str) -> Any:
    """Return a method's part: 'options', 'spec', 'coordinator' or 'client'. Raise InternalError for
    an unknown method.
    """
    package = methods().get(name)
    if package is None:
        raise InternalError(f"there is no training method {name!r:.60}")
    return getattr(import_module(f"{package}.{part}"), part.upper())
