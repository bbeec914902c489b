"""How many threads the libraries below numpy and torch take, while a step of a statement is done.

The clients of one process, its coordinator and DuckDB work at the same time on the same cores. BLAS
and torch start a thread for each core on top of them, whose workers spin while they wait: of
products as small as a chunk of rows, they cost more than they do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from threadpoolctl import OpenBLASController, ThreadpoolController

_BRINGING = ("numpy", "scipy.linalg", "torch")
"""Modules that come with a BLAS or an OpenMP of their own, once they are loaded."""


@contextmanager
def single() -> Iterator[None]:
    """BLAS, OpenMP and torch take one thread each, in the block; after it, what they took before.

    It may be entered again, and from several threads at once. BLAS mostly has one number for the
    whole process, so that other threads have it too until the last one has left its block.
    """
    if getattr(_here, "inside", False):
        yield
        return
    with _limits.lock:
        own = _limits.enter()
    _here.inside = True
    try:
        yield
    finally:
        with _limits.lock:
            _limits.leave(own)
        _here.inside = False


_here = threading.local()

_Setting: TypeAlias = tuple[Any, "int | None"]
"""Of torch, or a library that threadpoolctl has found, its threads."""


class _Limits:
    """What blocks of several threads, which overlap, have set: each alone would give back what
    another one has set. Its holder has the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._inside = 0
        self._loaded: tuple[bool, ...] = ()
        self._blas: list[Any] = []
        self._openmp: list[Any] = []
        self._before: list[_Setting] = []
        """Of BLAS, to be given back by the last one."""
        self._torch_threads = 1
        """Outside of all blocks."""

    def enter(self) -> list[_Setting]:
        """What is to be given back in this thread."""
        if self._find() or not self._inside:
            self._before += _lower(self._blas)
        torch: Any = sys.modules.get("torch")
        own = []
        if hasattr(torch, "set_num_threads"):  # else it is not there, or just being loaded
            threads = torch.get_num_threads()
            if self._inside and threads == 1:
                # a thread that is new to torch has what another one has set in its block
                threads = self._torch_threads
            self._torch_threads = threads
            torch.set_num_threads(1)
            own.append((torch, threads))
        self._inside += 1
        return own + _lower(self._openmp)

    def leave(self, own: list[_Setting]) -> None:
        self._inside -= 1
        if not self._inside:
            _give_back(self._before)
            self._before = []
        _give_back(own)

    def _find(self) -> bool:
        """Whether there are other libraries than before."""
        loaded = tuple(name in sys.modules for name in _BRINGING)
        if loaded == self._loaded:
            return False
        found = ThreadpoolController()
        self._blas = found.select(user_api="blas").lib_controllers
        self._openmp = found.select(user_api="openmp").lib_controllers
        self._loaded = loaded
        return True


def _lower(libraries: list[Any]) -> list[_Setting]:
    before = [(library, library.num_threads) for library in libraries]
    _set([(library, 1) for library, threads in before if threads is not None])
    return before


def _give_back(before: list[_Setting]) -> None:
    _set([(library, threads) for library, threads in reversed(before) if threads is not None])


def _set(settings: list[_Setting]) -> None:
    # threadpoolctl lets one thread set OpenBLAS until it is released: the last one to leave a block
    # need not be the one that entered first
    OpenBLASController.clear_controlling_thread(force=True)
    for library, threads in settings:
        library.set_num_threads(threads)
    OpenBLASController.clear_controlling_thread(force=True)


_limits = _Limits()
