"""Flight SQL server of one analyst: whatever speaks Flight SQL writes sqlfl's statements.

A client connects and asks for SqlInfo. Each statement is then CreatePreparedStatement, DoPut where
it has parameters, GetFlightInfo, which runs it, DoGet and ClosePreparedStatement. Errors leave as
FlightError alone, as Flight would send the traceback of any other.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.base.errors import Error, LostError, PolicyError, WireError
from sqlfl.base.result import Result
from sqlfl.gateway import catalog
from sqlfl.gateway import messages as ms
from sqlfl.gateway.statements import BusyError, Cancelled, Runs, Statements
from sqlfl.service.locations import check_location
from sqlfl.service.stream import Credentials

log = logging.getLogger("sqlfl.gateway")

PREPARE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
MAX_BATCH_BYTES = 8 << 20
"""Bytes of a batch of rows at most: drivers refuse messages above 16 MiB."""
MAX_BOUND_BYTES, MAX_BOUND_COLUMNS = 4 << 20, 10_000
"""Bytes of the values of parameters at most."""
NAME = "calls"
_METHODS = (
    flight.FlightMethod.HANDSHAKE, flight.FlightMethod.GET_FLIGHT_INFO,
    flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_ACTION,
    flight.FlightMethod.LIST_ACTIONS,
)  # fmt: skip
"""Calls that are served. GetSchema is not: pyarrow sends tracebacks of its errors."""
_BEARER, _BASIC = "Bearer ", "Basic "
_GRACE = 10.0
"""Seconds that statements have to end in, when the gateway ends."""

W = TypeVar("W", bound=Callable[..., Any])


class ServedFederation(Runs, Protocol):
    @property
    def parties(self) -> tuple[str, ...]: ...

    def tables(self) -> Result: ...


def _answering(work: W) -> W:
    """Let no exception leave but FlightError."""

    @functools.wraps(work)
    def wrapped(self: Gateway, context: Any, *given: Any) -> Any:
        try:
            return work(self, self.caller(context), context, *given)
        except flight.FlightError:
            raise
        except Cancelled:
            raise flight.FlightCancelledError("the statement was cancelled") from None
        except Error as error:
            raise _flight_error(error) from None
        except Exception:
            log.exception("a call failed beyond sqlfl's own errors")
            raise flight.FlightInternalError("the gateway failed; its log says how") from None

    return wrapped  # type: ignore[return-value]


def _flight_error(error: Error) -> flight.FlightError:
    """The error with its hint, of the status that says most."""
    text = f"{type(error).__name__}: {error}"
    match error:
        case WireError():
            return flight.FlightServerError(
                f"the gateway cannot serve this call: {error}\nhint: it serves statements, their "
                "parameters and lists of tables; rows are written in a party's own database"
            )
        case PolicyError():
            return flight.FlightUnauthorizedError(text)
        case BusyError() | LostError():
            return flight.FlightUnavailableError(text)
    return flight.FlightServerError(text)


class Gateway(flight.FlightServerBase):  # type: ignore[misc]
    """A context, in which statements of clients run in `fed`, with its analyst's rights.

    location : 'grpc://127.0.0.1:8817', this machine alone, where clients give `token`; or
        'grpc+tls://host:8817', with `credentials`, where clients need a certificate of the same
        authority that has one of the names `clients`. Port 0 is any that is free.

    Raises Error where it cannot listen, or what the location needs is missing.
    """

    def __init__(
        self,
        fed: ServedFederation,
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
        self._statements = Statements(fed)
        try:
            middleware = {NAME: _Calls(token if insecure else None)}
            super().__init__(location, middleware=middleware, **given)
        except (pa.ArrowException, OSError) as error:
            why = str(error).partition("\n")[0]
            raise Error(f"cannot listen at {location}: {why}", hint="is the port taken?") from None
        self.location = f"{location.rpartition(':')[0]}:{self.port}"

    def __exit__(self, *_: object) -> None:
        self._statements.end(_GRACE)
        self.shutdown()

    def caller(self, context: Any) -> str:
        """Whose call it is. Raises FlightUnauthenticatedError for a certificate of another name."""
        if self._insecure:
            return ""
        name = bytes(context.peer_identity()).decode("utf-8", "replace")
        if name not in self._clients:
            log.warning("%s (%s) is sent away", name or "somebody", context.peer())
            raise flight.FlightUnauthenticatedError(
                f"the certificate is of {name!r:.80}, who may not use this gateway"
            )
        return name

    # -- calls of Flight --------------------------------------------------------------------------

    @_answering
    def get_flight_info(self, caller: str, context: Any, descriptor: Any) -> flight.FlightInfo:
        command = _command(descriptor)
        schema = catalog.schema_of(command)
        if schema is not None:
            return _info(schema, descriptor, descriptor.command, -1)
        match command:
            case ms.CommandStatementQuery():
                table = self._statements.run(command.query, None, context.is_cancelled)
            case ms.CommandPreparedStatementQuery():
                table = self._statements.run_prepared(
                    caller, command.prepared_statement_handle, context.is_cancelled
                )
            case _:
                raise _unserved(command)
        ticket = ms.pack(ms.TicketStatementQuery(self._statements.keep(caller, table)))
        return _info(table.schema, descriptor, ticket, table.num_rows)

    @_answering
    def do_get(self, caller: str, context: Any, ticket: Any) -> flight.FlightDataStream:
        command = ms.unpack(bytes(ticket.ticket))
        if isinstance(command, ms.TicketStatementQuery):
            table = self._statements.take(caller, command.statement_handle)
        elif catalog.schema_of(command) is not None:
            asked = catalog.needs_columns(command)
            columns = self._fed.tables() if asked else Result(pa.table({}))
            table = catalog.table_of(command, self._fed.parties, columns)
        else:
            raise _unserved(command)
        return flight.GeneratorStream(table.schema, iter(list(batches(table))))

    @_answering
    def do_put(self, caller: str, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = _command(descriptor)
        cancelled = context.is_cancelled
        match command:
            case ms.CommandPreparedStatementQuery():
                self._statements.bind(caller, command.prepared_statement_handle, _bound(reader))
                return
            case ms.CommandPreparedStatementUpdate():
                handle, table = command.prepared_statement_handle, _bound(reader)
                if table.num_columns:
                    self._statements.bind(caller, handle, table)
                self._statements.run_prepared(caller, handle, cancelled)
            case ms.CommandStatementUpdate():
                self._statements.run(command.query, None, cancelled)
            case _:
                raise _unserved(command)
        # rows of a party that a statement has changed are not counted: -1 stands for that
        writer.write(pa.py_buffer(ms.encode(ms.DoPutUpdateResult(-1))))

    @_answering
    def do_action(self, caller: str, context: Any, action: Any) -> Iterator[flight.Result]:
        if action.type not in (PREPARE, CLOSE):
            raise flight.FlightServerError(f"the action {action.type!r:.80} is not served here")
        command = ms.unpack(action.body.to_pybytes())
        match command:
            case ms.ActionCreatePreparedStatementRequest() if action.type == PREPARE:
                handle, prepared = self._statements.prepare(caller, command.query)
                result = ms.ActionCreatePreparedStatementResult(
                    handle, _serialised(prepared.schema), _serialised(prepared.parameter_schema)
                )
                return iter([flight.Result(pa.py_buffer(ms.pack(result)))])
            case ms.ActionClosePreparedStatementRequest() if action.type == CLOSE:
                self._statements.close(caller, command.prepared_statement_handle)
                return iter(())
        raise _unserved(command)

    @_answering
    def list_actions(self, caller: str, context: Any) -> list[tuple[str, str]]:
        return [(PREPARE, "prepare a statement"), (CLOSE, "forget a prepared statement")]


def batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most MAX_BATCH_BYTES. Raises Error for a row of more."""
    for batch in table.to_batches():
        yield from _parts(batch)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= MAX_BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    if not half:
        raise Error(
            f"a row of {batch.nbytes:,} bytes, and clients take {MAX_BATCH_BYTES:,} at once",
            hint="sqlfl sql, or Python, takes longer rows",
        )
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _command(descriptor: Any) -> Any:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise WireError("a path, where a command of Flight SQL is served")
    return ms.unpack(bytes(descriptor.command))


def _unserved(command: object) -> flight.FlightError:
    return flight.FlightServerError(f"{type(command).__name__} is not served here")


def _info(schema: pa.Schema, descriptor: Any, ticket: bytes, rows: int) -> flight.FlightInfo:
    endpoint = flight.FlightEndpoint(ticket, [])
    return flight.FlightInfo(schema, descriptor, [endpoint], rows, -1)


def _serialised(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def _bound(reader: Any) -> pa.Table:
    """The values of parameters. Raises Error where they are too many."""
    if len(reader.schema) > MAX_BOUND_COLUMNS:
        raise Error(f"values of {len(reader.schema):,} parameters, of {MAX_BOUND_COLUMNS:,}")
    batches, size = [], 0
    for chunk in reader:
        if chunk.data is None:
            continue
        size += chunk.data.nbytes
        if size > MAX_BOUND_BYTES:
            raise Error(f"values of parameters of more than {MAX_BOUND_BYTES:,} bytes")
        batches.append(chunk.data)
    return pa.Table.from_batches(batches, reader.schema)


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
        if header.startswith(_BEARER):
            return self._same(header.removeprefix(_BEARER))
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
        return {"authorization": f"{_BEARER}{self._token}"}
