"""Flight SQL server of one analyst: whatever speaks Flight SQL writes sqlfl's statements."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.base.errors import Error
from sqlfl.gateway.calls import FlightSqlCalls
from sqlfl.service.analyst_sessions import Caller, Runs
from sqlfl.service.server import SQL_METHODS
from sqlfl.service.settings import check_location
from sqlfl.service.stream import Credentials
from sqlfl.service.streams import BEARER

log = logging.getLogger("sqlfl.gateway")

NAME = "calls"
_METHODS = (flight.FlightMethod.HANDSHAKE, *SQL_METHODS)
_BASIC = "Basic "
_GRACE = 10.0
"""Seconds that statements have to end in, when the gateway ends."""


class Gateway(flight.FlightServerBase):  # type: ignore[misc]
    """A context, in which statements of clients run in `fed`, with its analyst's rights.

    location : 'grpc://127.0.0.1:8817', this machine alone, where clients give `token`; or
        'grpc+tls://host:8817', with `credentials`, where clients need a certificate of the same
        authority that has one of the names `clients`. Port 0 is any that is free.

    Raise Error where it cannot listen, or what the location needs is missing.
    """

    def __init__(
        self,
        fed: Runs,
        location: str,
        *,
        token: str | None = None,
        credentials: Credentials | None = None,
        clients: Collection[str] = (),
    ) -> None:
        insecure = location.startswith("grpc://")
        check_location(location, insecure=insecure)
        given: dict[str, Any]
        if insecure:
            if not token:
                raise Error("without TLS clients need a token, and there is none")
            given = {"auth_handler": _Handshake()}
        else:
            if credentials is None or credentials.certificate is None or not clients:
                raise Error("with TLS a key, a certificate and names of clients are needed")
            given = {
                "tls_certificates": [(credentials.certificate, credentials.key)],
                "verify_client": True,
                "root_certificates": credentials.authority,
            }
        self._fed, self._insecure, self._clients = fed, insecure, frozenset(clients)
        self._calls = FlightSqlCalls(self._caller)
        try:
            middleware = {NAME: _Calls(token if insecure else None)}
            super().__init__(location, middleware=middleware, **given)
        except (pa.ArrowException, OSError) as error:
            why = str(error).partition("\n")[0]
            raise Error(f"cannot listen at {location}: {why}", hint="is the port taken?") from None
        self.location = f"{location.rpartition(':')[0]}:{self.port}"

    def __exit__(self, *_: object) -> None:
        self._calls.end(_GRACE)
        self.shutdown()

    def _caller(self, context: Any) -> Caller:
        """Whose call it is. Raise FlightUnauthenticatedError for a certificate of another name."""
        if self._insecure:
            return Caller("", self._fed)
        name = bytes(context.peer_identity()).decode("utf-8", "replace")
        if name not in self._clients:
            log.warning("%s (%s) is sent away", name or "somebody", context.peer())
            raise flight.FlightUnauthenticatedError(
                f"the certificate is of {name!r:.80}, who may not use this gateway"
            )
        return Caller(name, self._fed)

    # -- calls of Flight --------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        return self._calls.get_flight_info(context, descriptor)

    def do_get(self, context: Any, ticket: Any) -> Any:
        return self._calls.do_get(context, ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._calls.do_put(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:
        return self._calls.do_action(context, action)

    def list_actions(self, context: Any) -> Any:
        return self._calls.list_actions(context)


# -- who may -------------------------------------------------------------------------------------


class _Handshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Answers Flight's handshake, by which drivers exchange a password: the header says it all."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Take any: `_Calls` has looked at the header."""

    def is_valid(self, token: Any) -> bytes:
        return b""


class _Calls(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that are not served, and where there is a token, those without it: as bearer,
    or as the password of any user."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def start_call(self, info: Any, headers: Any) -> _Told | None:
        if info.method not in _METHODS:
            raise flight.FlightServerError(
                "calls of this kind are not served here: a prepared statement has its columns"
            )
        if self._token is None:
            return None
        given = [text for name, texts in headers.items() if name.lower() == "authorization"
                 for text in texts]  # fmt: skip
        if len(given) != 1 or not self._is_ours(given[0]):
            raise flight.FlightUnauthenticatedError(
                "the token of this gateway is needed: as `authorization: Bearer ...`, or as the "
                "password of any user"
            )
        return _Told(self._token) if given[0].startswith(_BASIC) else None

    def _is_ours(self, header: object) -> bool:
        if not isinstance(header, str):
            return False
        if header.startswith(BEARER):
            return self._same(header.removeprefix(BEARER))
        if header.startswith(_BASIC):
            encoded = header.removeprefix(_BASIC).rstrip("=")  # Go's driver pads nothing
            try:
                padded = encoded + "=" * (-len(encoded) % 4)
                both = base64.b64decode(padded, validate=True).decode()
            except (binascii.Error, ValueError):
                return False
            return self._same(both.partition(":")[2])
        return False

    def _same(self, token: str) -> bool:
        expected = (self._token or "").encode()
        return hmac.compare_digest(token.encode("utf-8", "replace"), expected)


class _Told(flight.ServerMiddleware):  # type: ignore[misc]
    """Answers a password with the bearer that the driver sends from then on."""

    def __init__(self, token: str) -> None:
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"{BEARER}{self._token}"}
