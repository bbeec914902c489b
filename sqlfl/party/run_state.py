"""A client's state of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import duckdb
import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages.preparation import NONCE_BYTES
from sqlfl.party.slot_state import SlotState
from sqlfl.udfs.numbering import keys


@dataclass(eq=False)
class RunState:
    cursor: duckdb.DuckDBPyConnection
    slots: dict[int, SlotState] = field(default_factory=dict)
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES), repr=False)
    """Random number drawn here. With it, keys of this run differ from those of all others, whatever
    the run is called.
    """
    _nonces: Array | None = field(default=None, repr=False)

    def agree(self, nonces: Array) -> None:
        """Take all clients' nonces, uint8 (clients, 16). Raise InternalError if this client's is
        missing, and if they differ from earlier ones.
        """
        if not (nonces == np.frombuffer(self.nonce, np.uint8)).all(axis=1).any():
            raise InternalError("keys are asked for without what this client has drawn for them")
        if self._nonces is not None and not np.array_equal(self._nonces, nonces):
            raise InternalError("other numbers are said to be drawn for this run than before")
        self._nonces = np.array(nonces)

    def key(self, secret: bytes, run: str, *purpose: str) -> bytes:
        """Return a key of the run for one purpose, under a secret that all its makers know."""
        if self._nonces is None:
            raise InternalError("a key is to be made before all clients' numbers are told")
        return keys.derive(keys.run_key(secret, run, self._nonces), *purpose)
