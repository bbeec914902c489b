"""The library that is compiled from compiled*.c when sqlfl is installed, where there is a compiler.

Without it, or with SQLFL_COMPILED=0 in the environment, numpy does its work. Its functions give up
Python's lock and keep nothing, so that several threads may be in them.
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
"""What the library must say of itself: the form of its functions that this version calls."""
TYPES = {
    np.dtype(np.float64): 0,
    np.dtype(np.float32): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.uint16): 3,
    np.dtype(np.int32): 4,
}
"""Of targets, by their numbers in compiled.h."""
PATH = Path(__file__).with_name("_compiled.so")


def library() -> ctypes.CDLL | None:
    """None where there is none, or it is not wanted."""
    return None if os.environ.get(VARIABLE) == "0" else _loaded(PATH)


def functions() -> ctypes.CDLL:
    """As `library`, where there is one: for what is made only then."""
    found = _loaded(PATH)
    if found is None:
        raise InternalError("the compiled part is missing")
    return found


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL | None:
    """Says once why there is none."""
    try:
        found = ctypes.CDLL(str(path))
        form = found.sqlfl_form()
    except (OSError, AttributeError) as error:
        _miss(str(error))
        return None
    if form != FORM:
        _miss(f"{path} was compiled from another version")
        return None
    return found


def _miss(why: str) -> None:
    log.warning(
        "sqlfl's compiled part is missing, so training takes several times as long (%s); where "
        "there is a C compiler, pip install makes it",
        why,
    )


def typed(targets: Array) -> tuple[Array, int]:
    """As one of `TYPES`, in one piece, and which."""
    kind = TYPES.get(targets.dtype)
    if kind is None:
        targets = targets.astype(np.float64 if targets.dtype.kind == "f" else np.int32)
        kind = TYPES[targets.dtype]
    return np.ascontiguousarray(targets), kind


def address(values: Array | None) -> ctypes.c_void_p | None:
    """Where an array lies; whoever asks holds it."""
    if values is None:
        return None
    if not values.flags.c_contiguous:
        raise InternalError("an array for the compiled part lies as one piece")
    if values.size and values.flags.writeable:
        # several times as fast, of some ten arrays in each call
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(values.data)))
    return ctypes.c_void_p(values.__array_interface__["data"][0])
