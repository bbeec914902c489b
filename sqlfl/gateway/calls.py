"""Calls of Flight SQL, answered by the statements of whoever calls.

A client connects and asks for SqlInfo. Each statement is then CreatePreparedStatement, DoPut where
it has parameters, GetFlightInfo, which runs it, DoGet and ClosePreparedStatement. Errors leave as
FlightError alone, as Flight would send the traceback of any other.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.base.errors import Error, LostError, PolicyError, WireError
from sqlfl.base.result import Result
from sqlfl.gateway import catalog
from sqlfl.gateway import messages as ms
from sqlfl.gateway.statements import BusyError, Cancelled, Statements
from sqlfl.service.desk_statements import Caller, Runs

log = logging.getLogger("sqlfl.gateway")

PREPARE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
MAX_BATCH_BYTES = 8 << 20
"""Bytes of a batch of rows at most: drivers refuse messages above 16 MiB."""
MAX_BOUND_BYTES, MAX_BOUND_COLUMNS = 4 << 20, 10_000
"""Bytes of the values of parameters at most."""

P = ParamSpec("P")
R = TypeVar("R")


def _answering(
    work: Callable[Concatenate[FlightSqlCalls, Caller, Any, P], R],
) -> Callable[Concatenate[FlightSqlCalls, Any, P], R]:
    """Find the caller, and let no exception leave but FlightError."""

    @functools.wraps(work)
    def wrapped(self: FlightSqlCalls, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(self, self._caller(context), context, *args, **kwargs)
        except flight.FlightError:
            raise
        except Cancelled:
            raise flight.FlightCancelledError("the statement was cancelled") from None
        except Error as error:
            raise _flight_error(error) from None
        except Exception:
            log.exception("a call failed beyond sqlfl's own errors")
            raise flight.FlightInternalError("the server failed; its log says how") from None

    return wrapped


def _flight_error(error: Error) -> flight.FlightError:
    """The error with its hint, of the status that says most."""
    text = f"{type(error).__name__}: {error}"
    match error:
        case WireError():
            return flight.FlightServerError(
                f"the server cannot serve this call: {error}\nhint: it serves statements, their "
                "parameters and lists of tables; rows are written in a party's own database"
            )
        case PolicyError():
            return flight.FlightUnauthorizedError(text)
        case BusyError() | LostError():
            return flight.FlightUnavailableError(text)
    return flight.FlightServerError(text)


class FlightSqlCalls:
    """caller : whose call it is, by its context; raises FlightError for who may not call. Callers
    of one federation have its statements in common, each with handles of their own.
    """

    def __init__(self, caller: Callable[[Any], Caller]) -> None:
        self._caller = caller
        self._lock = threading.Lock()
        self._statements: dict[Runs, Statements] = {}
        self._ended = False

    def end(self, seconds: float) -> None:
        """End running statements as by Ctrl-C, and at once after that time; begin no more."""
        with self._lock:
            self._ended = True
            every = tuple(self._statements.values())
        until = time.monotonic() + seconds
        for statements in every:
            statements.stop()
        late = [item for item in every if not item.idle(max(0.0, until - time.monotonic()))]
        for statements in late:
            statements.stop()
            statements.idle(seconds)

    def _of(self, caller: Caller) -> Statements:
        with self._lock:
            statements = self._statements.get(caller.federation)
            if statements is None:
                if self._ended:
                    raise BusyError("the server ends", hint="connect again once it is back")
                statements = Statements(caller.federation)
                self._statements[caller.federation] = statements
            return statements

    @_answering
    def get_flight_info(self, caller: Caller, context: Any, descriptor: Any) -> flight.FlightInfo:
        command = _command(descriptor)
        schema = catalog.schema_of(command)
        if schema is not None:
            return _info(schema, descriptor, descriptor.command, -1)
        statements, cancelled = self._of(caller), context.is_cancelled
        with caller.works():
            match command:
                case ms.CommandStatementQuery():
                    table = statements.run(command.query, None, cancelled)
                case ms.CommandPreparedStatementQuery():
                    handle = command.prepared_statement_handle
                    table = statements.run_prepared(caller.name, handle, cancelled)
                case _:
                    raise _unserved(command)
        ticket = ms.pack(ms.TicketStatementQuery(statements.keep(caller.name, table)))
        return _info(table.schema, descriptor, ticket, table.num_rows)

    @_answering
    def do_get(self, caller: Caller, context: Any, ticket: Any) -> flight.FlightDataStream:
        command = ms.unpack(bytes(ticket.ticket))
        if isinstance(command, ms.TicketStatementQuery):
            table = self._of(caller).take(caller.name, command.statement_handle)
        elif catalog.schema_of(command) is not None:
            fed = caller.federation
            with caller.works():
                asked = catalog.needs_columns(command)
                columns = fed.tables() if asked else Result(pa.table({}))
                table = catalog.table_of(command, fed.parties, columns)
        else:
            raise _unserved(command)
        return flight.GeneratorStream(table.schema, _sent(list(batches(table)), caller))

    @_answering
    def do_put(
        self, caller: Caller, context: Any, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        command = _command(descriptor)
        statements, cancelled = self._of(caller), context.is_cancelled
        match command:
            case ms.CommandPreparedStatementQuery():
                handle = command.prepared_statement_handle
                statements.bind(caller.name, handle, _bound(reader, caller))
                return
            case ms.CommandPreparedStatementUpdate():
                handle, table = command.prepared_statement_handle, _bound(reader, caller)
                if table.num_columns:
                    statements.bind(caller.name, handle, table)
                with caller.works():
                    statements.run_prepared(caller.name, handle, cancelled)
            case ms.CommandStatementUpdate():
                with caller.works():
                    statements.run(command.query, None, cancelled)
            case _:
                raise _unserved(command)
        # rows of a party that a statement has changed are not counted: -1 stands for that
        writer.write(pa.py_buffer(ms.encode(ms.DoPutUpdateResult(-1))))

    @_answering
    def do_action(self, caller: Caller, context: Any, action: Any) -> Iterator[flight.Result]:
        if action.type not in (PREPARE, CLOSE):
            raise flight.FlightServerError(f"the action {action.type!r:.80} is not served here")
        command = ms.unpack(action.body.to_pybytes())
        match command:
            case ms.ActionCreatePreparedStatementRequest() if action.type == PREPARE:
                with caller.works():
                    handle, prepared = self._of(caller).prepare(caller.name, command.query)
                result = ms.ActionCreatePreparedStatementResult(
                    handle, _serialised(prepared.schema), _serialised(prepared.parameter_schema)
                )
                return iter([flight.Result(pa.py_buffer(ms.pack(result)))])
            case ms.ActionClosePreparedStatementRequest() if action.type == CLOSE:
                self._of(caller).close(caller.name, command.prepared_statement_handle)
                return iter(())
        raise _unserved(command)

    @_answering
    def list_actions(self, caller: Caller, context: Any) -> list[tuple[str, str]]:
        return [(PREPARE, "prepare a statement"), (CLOSE, "forget a prepared statement")]


def batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most MAX_BATCH_BYTES. Raise Error for a row of more."""
    for batch in table.to_batches():
        yield from _parts(batch)


def _sent(parts: Sequence[pa.RecordBatch], caller: Caller) -> Iterator[pa.RecordBatch]:
    """The batches; each is a sign of life, for the next is wanted once the client took the last."""
    for batch in parts:
        caller.heard()
        yield batch


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


def _bound(reader: Any, caller: Caller) -> pa.Table:
    """The values of parameters. Raise Error where they are too many."""
    if len(reader.schema) > MAX_BOUND_COLUMNS:
        raise Error(f"values of {len(reader.schema):,} parameters, of {MAX_BOUND_COLUMNS:,}")
    parts, size = [], 0
    for chunk in reader:
        caller.heard()
        if chunk.data is None:
            continue
        size += chunk.data.nbytes
        if size > MAX_BOUND_BYTES:
            raise Error(f"values of parameters of more than {MAX_BOUND_BYTES:,} bytes")
        parts.append(chunk.data)
    return pa.Table.from_batches(parts, reader.schema)
