"""Masked runs of a client. The code of masks is loaded with the first such run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlfl import messages as ms
from sqlfl.contract.schema import Client, specifications_from_json

if TYPE_CHECKING:
    from sqlfl.party.masked_run import MaskedRun


class Masking:
    """Masked runs of one client. The coordinator does not have `secret`, the parties' secret."""

    def __init__(self, client: Client, secret: bytes) -> None:
        self._client = str(client)
        self._secret = secret
        self._runs: dict[str, MaskedRun] = {}
        self.check_peers: Callable[[ms.SetPeers], None] = lambda request: None
        """Raises Error if the client must not add to sums with these peers."""

    def answer(self, request: ms.Message, work: Callable[[], ms.Message]) -> ms.Message:
        """Return the reply to a request from outside; `work` makes it without masks."""
        match request:
            case ms.Prepare():
                reply = work()
                self._prepared(request)
                return reply
            case ms.SetPeers():
                self.check_peers(request)
            case ms.Finish():
                self._runs.pop(request.run, None)
        run = self._runs.get(request.run)
        return work() if run is None else run.answer(request, work)

    def _prepared(self, request: ms.Prepare) -> None:
        if not any(name in request.specification for name in ("secure", "drawn")):
            return
        specifications = specifications_from_json(request.specification)
        slots = [item for item in specifications if item.secure or item.drawn]
        if slots:
            from sqlfl.party.masked_run import MaskedRun  # loads cryptography

            self._runs[request.run] = MaskedRun(self._client, self._secret, slots)
