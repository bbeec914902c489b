"""The training methods, by the name that the option `algorithm` gives them.

A method is a package. Its module `options` has its part of the table of options as `OPTIONS`, a
dataclass, and needs nothing but the standard library: the planner reads it.
"""

from __future__ import annotations

from importlib import import_module

from sqlfl.errors import InternalError
from sqlfl.options.entries import MethodOptions

METHODS = {name: f"sqlfl.methods.{name}" for name in ("lbfgs", "sgd", "admm")}
"""Name -> package."""


def options_of(method: str) -> type[MethodOptions]:
    """The method's own options."""
    if method not in METHODS:
        raise InternalError(f"there is no method {method!r}")
    found: type[MethodOptions] = import_module(f"{METHODS[method]}.options").OPTIONS
    return found
