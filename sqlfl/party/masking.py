"""Which runs of a client are under masks; what these do is loaded with the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlfl import messages as ms
from sqlfl.contract.schema import Client, specifications_from_json

if TYPE_CHECKING:
    from sqlfl.party.masked_run import MaskedRun


class Masking:
    """Of one client; `secret` is the parties', which the coordinator has not."""

    def __init__(self, client: Client, secret: bytes) -> None:
        self._client = str(client)
        self._secret = secret
        self._runs: dict[str, MaskedRun] = {}
        self.check_peers: Callable[[ms.SetPeers], None] = lambda request: None
        """Raises Error where the client is not to add to sums with these."""

    def answer(self, request: ms.Message, work: Callable[[], ms.Message]) -> ms.Message:
        """The reply to a request that came from outside; `work` is what makes it without masks."""
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
        told = specifications_from_json(request.specification)
        slots = [item for item in told if item.secure or item.drawn]
        if slots:
            from sqlfl.party.masked_run import MaskedRun  # loads cryptography

            self._runs[request.run] = MaskedRun(self._client, self._secret, slots)
