"""Compiled library, made from compiled*.c when sqlfl is installed on a machine with a compiler.

Without it, or with SQLFL_COMPILED=0 in the environment, numpy does its work. Its functions release
Python's lock and keep no state, so that several threads may run them.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError

log = logging.getLogger("sqlfl.models.native")

VARIABLE = "SQLFL_COMPILED"
FORM = 3
"""Number that the library must report: the version of the function signatures called here."""
TYPES = {
    np.dtype(np.float64): 0,
    np.dtype(np.float32): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.uint16): 3,
    np.dtype(np.int32): 4,
}
"""Types of targets, by their numbers in compiled.h."""
PATH = Path(__file__).with_name("_compiled.so")


def library() -> ctypes.CDLL | None:
    """Return the library; None if it is missing or switched off."""
    return None if os.environ.get(VARIABLE) == "0" else _loaded(PATH)


def functions() -> ctypes.CDLL:
    """Return the library. Raise InternalError if it is missing: callers exist only with it."""
    loaded = _loaded(PATH)
    if loaded is None:
        raise InternalError("the compiled part is missing")
    return loaded


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL | None:
    """Load the library. If that fails, log the reason once."""
    try:
        loaded = ctypes.CDLL(str(path))
        form = loaded.sqlfl_form()
    except (OSError, AttributeError) as error:
        _miss(str(error))
        return None
    if form != FORM:
        _miss(f"{path} was compiled from another version")
        return None
    return loaded


def _miss(why: str) -> None:
    log.warning(
        "sqlfl's compiled part is missing, so training takes several times as long (%s); where "
        "there is a C compiler, pip install makes it",
        why,
    )


def typed(targets: Array) -> tuple[Array, int]:
    """Return the targets as one of `TYPES`, contiguous, and its number."""
    kind = TYPES.get(targets.dtype)
    if kind is None:
        targets = targets.astype(np.float64 if targets.dtype.kind == "f" else np.int32)
        kind = TYPES[targets.dtype]
    return np.ascontiguousarray(targets), kind


def address(values: Array | None) -> ctypes.c_void_p | None:
    """Return the address of an array. The caller must keep the array alive."""
    if values is None:
        return None
    if not values.flags.c_contiguous:
        raise InternalError("an array for the compiled part lies as one piece")
    if values.size and values.flags.writeable:
        # several times as fast, for some ten arrays in each call
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(values.data)))
    return ctypes.c_void_p(values.__array_interface__["data"][0])
