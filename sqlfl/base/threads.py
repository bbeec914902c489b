"""Number of threads that numpy's libraries and torch use during a step of a statement.

The clients of one process, its coordinator and DuckDB share the same cores. BLAS and torch start a
further thread for each core, and their workers spin while they wait. For products as small as a
chunk of rows, these threads cost more than they help.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from threadpoolctl import OpenBLASController, ThreadpoolController

_BRINGING = ("numpy", "scipy.linalg", "torch")
"""Modules that load a BLAS or an OpenMP of their own."""


@contextmanager
def single() -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to one thread each in the block, and restore their numbers after
    it.

    It may be entered again, and by several threads at once. BLAS mostly has one number for the
    whole process. So other threads have it too until the last thread has left its block.
    """
    if getattr(_here, "inside", False):
        yield
        return
    with _limits.lock:
        before = _limits.enter()
    _here.inside = True
    try:
        yield
    finally:
        with _limits.lock:
            _limits.leave(before)
        _here.inside = False


_here = threading.local()

_Setting: TypeAlias = tuple[Any, "int | None"]
"""torch, or a library that threadpoolctl has found, and its number of threads."""


class _Limits:
    """Settings of overlapping blocks of several threads. Each block alone would restore the setting
    of another one. The caller holds the lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._inside = 0
        self._loaded: tuple[bool, ...] = ()
        self._blas: list[Any] = []
        self._openmp: list[Any] = []
        self._before: list[_Setting] = []
        """Settings of BLAS, which the last block restores."""
        self._torch_threads = 1
        """Number of threads outside of all blocks."""

    def enter(self) -> list[_Setting]:
        """Lower the limits, and return the settings to restore in this thread."""
        if self._find() or not self._inside:
            self._before += _lower(self._blas)
        torch: Any = sys.modules.get("torch")
        before = []
        if hasattr(torch, "set_num_threads"):  # otherwise it is missing, or just being loaded
            threads = torch.get_num_threads()
            if self._inside and threads == 1:
                # A thread that is new to torch has the number that another one has set in its
                # block.
                threads = self._torch_threads
            self._torch_threads = threads
            torch.set_num_threads(1)
            before.append((torch, threads))
        self._inside += 1
        return before + _lower(self._openmp)

    def leave(self, settings: list[_Setting]) -> None:
        self._inside -= 1
        if not self._inside:
            _give_back(self._before)
            self._before = []
        _give_back(settings)

    def _find(self) -> bool:
        """Return True if other libraries are loaded than before."""
        loaded = tuple(name in sys.modules for name in _BRINGING)
        if loaded == self._loaded:
            return False
        controller = ThreadpoolController()
        self._blas = controller.select(user_api="blas").lib_controllers
        self._openmp = controller.select(user_api="openmp").lib_controllers
        self._loaded = loaded
        return True


def _lower(libraries: list[Any]) -> list[_Setting]:
    before = [(library, library.num_threads) for library in libraries]
    _set([(library, 1) for library, threads in before if threads is not None])
    return before


def _give_back(before: list[_Setting]) -> None:
    _set([(library, threads) for library, threads in reversed(before) if threads is not None])


def _set(settings: list[_Setting]) -> None:
    # threadpoolctl lets one thread set OpenBLAS until it is released. The last thread to leave a
    # block may be another one than the first to enter.
    OpenBLASController.clear_controlling_thread(force=True)
    for library, threads in settings:
        library.set_num_threads(threads)
    OpenBLASController.clear_controlling_thread(force=True)


_limits = _Limits()
