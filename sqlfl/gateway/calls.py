"""Calls of Flight SQL, answered by the statements of whoever calls.

A client connects and asks for SqlInfo. Each statement is then CreatePreparedStatement, DoPut where
it has parameters, GetFlightInfo, which runs it, DoGet and ClosePreparedStatement. Errors leave as
FlightError alone, as Flight would send the traceback of any other. Statements run in threads that
heed a cancel, and their results are kept until they are fetched.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.base.errors import Error, InternalError, LostError, PolicyError, WireError
from sqlfl.base.interrupts import Interrupts, heeding
from sqlfl.base.result import Result
from sqlfl.federation.script import Values, pieces
from sqlfl.federation.user_warnings import heard
from sqlfl.gateway import catalog
from sqlfl.gateway import messages as ms
from sqlfl.planner.grammar.parameters import ParameterPlace, places
from sqlfl.planner.grammar.tokens import decoded
from sqlfl.service.analyst_sessions import Caller, Runs

log = logging.getLogger("sqlfl.gateway")


# -- statements ------------------------------------------------------------------------------------

HEARD = 0.05
"""Seconds after which a cancel is heard at the latest."""
MAX_PREPARED = 256
"""Statements that are prepared at once; beyond it the one that was used longest ago is closed."""
MAX_RUNNING = 8
MAX_RESULTS, MAX_RESULT_BYTES = 16, 256 << 20
"""Results, and their bytes, that wait for their clients: beyond it the oldest but the last go."""
NOTES = "sqlfl.notes"
"""The entry of a schema's metadata with a result's notes and warnings, a JSON list of texts."""
_CONSTANT = re.compile(r"\s*SELECT\s+1\s*;?\s*", re.IGNORECASE)
"""Statement by which drivers test a connection."""
_ONE = pa.schema([("1", pa.int32())])
CallerId: TypeAlias = str


class Cancelled(Exception):
    """The client has gone, or does not wait for the result."""


class BusyError(Error):
    """Too many statements are running."""


@dataclass(eq=False)
class PreparedStatement:
    """A statement that a client has prepared."""

    caller: CallerId
    sql: str
    parameters: tuple[str, ...]
    """Their names, each once: '1' of the first `?` or of `$1`."""
    schema: pa.Schema | None
    """Schema of the result; None if it depends on the values of parameters."""
    values: Values = None

    @property
    def parameter_schema(self) -> pa.Schema:
        """One column for each parameter. Any type may be bound; the one reported is text."""
        return pa.schema([(name, pa.string()) for name in self.parameters])


class Statements:
    """Statements of all clients of a gateway; safe to use from several threads.

    Handles are random, and of the caller that has made them: no other caller can use them.
    """

    def __init__(self, fed: Runs) -> None:
        self._fed = fed
        self._lock = threading.Lock()
        self._prepared: OrderedDict[bytes, PreparedStatement] = OrderedDict()
        self._results: OrderedDict[bytes, tuple[CallerId, pa.Table]] = OrderedDict()
        self._running: set[Interrupts] = set()
        self._idle = threading.Condition(self._lock)
        self._closing = False

    # -- prepared statements ----------------------------------------------------------------------

    def prepare(self, caller: CallerId, sql: str) -> tuple[bytes, PreparedStatement]:
        """Read the statement, and find the columns of its result. Raises the statement's errors."""
        parameters = () if _CONSTANT.fullmatch(sql) else places(decoded(sql))
        names = _names(parameters)
        prepared = PreparedStatement(caller, sql, names, self._columns(sql, names))
        handle = secrets.token_bytes(16)
        with self._lock:
            self._prepared[handle] = prepared
            while len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        return handle, prepared

    def bind(self, caller: CallerId, handle: bytes, table: pa.Table) -> None:
        """Take the values of the next run: one row, a column for each parameter."""
        prepared = self._of(caller, handle)
        if table.num_rows != 1:
            raise Error(
                f"one row of values was expected, and {table.num_rows:,} were bound",
                hint="run the statement once for each row",
            )
        try:
            row = [column[0].as_py() for column in table.columns]
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise Error(f"values that cannot be read: {error}") from None
        if any(not name.isdecimal() for name in prepared.parameters):
            prepared.values = dict(zip(table.column_names, row, strict=True))
        else:
            prepared.values = row

    def close(self, caller: CallerId, handle: bytes) -> None:
        """Forget a prepared statement; one that is not known is closed already."""
        with self._lock:
            known = self._prepared.get(handle)
            if known is not None and known.caller == caller:
                del self._prepared[handle]

    def _of(self, caller: CallerId, handle: bytes) -> PreparedStatement:
        with self._lock:
            prepared = self._prepared.get(handle)
            if prepared is None or prepared.caller != caller:
                raise Error("there is no such prepared statement", hint="prepare it again")
            self._prepared.move_to_end(handle)
            return prepared

    def _columns(self, sql: str, parameters: Sequence[str]) -> pa.Schema | None:
        """Parameters are NULL here; None where the columns cannot be found with that."""
        if _CONSTANT.fullmatch(sql):
            return _ONE
        nothing = _nothing(parameters)
        read = pieces(sql, nothing)
        if len(read) > 1:
            raise Error(
                f"{len(read)} statements, and a client sends one at a time",
                hint="send them one after the other",
            )
        if not parameters:
            return self._fed.result_schema(sql)
        try:
            return self._fed.result_schema(sql, nothing)
        except Error as error:
            log.info("columns are known once values are bound: %s", error.message)
            return None

    # -- runs -------------------------------------------------------------------------------------

    def run_prepared(
        self, caller: CallerId, handle: bytes, cancelled: Callable[[], bool]
    ) -> pa.Table:
        """Run it with the values that were bound since it ran last."""
        prepared = self._of(caller, handle)
        values, prepared.values = prepared.values, None
        return self.run(prepared.sql, values, cancelled, prepared.schema)

    def run(
        self,
        sql: str,
        values: Values,
        cancelled: Callable[[], bool],
        schema: pa.Schema | None = None,
    ) -> pa.Table:
        """Run a statement; its rows have the columns of `schema`, and its notes are in their
        metadata.

        Once `cancelled` is true, the statement ends as by one Ctrl-C: a training at the end of its
        round, with the model kept so far. Raise Cancelled then, and else the statement's error.
        """
        if _CONSTANT.fullmatch(sql):
            return pa.table({"1": [1]}, _ONE)
        interrupts = Interrupts()
        with self._lock:
            if self._closing:
                raise BusyError("the server ends", hint="connect again once it is back")
            if len(self._running) >= MAX_RUNNING:
                raise BusyError(f"{MAX_RUNNING} statements are running", hint="wait for one")
            self._running.add(interrupts)
        answer: list[pa.Table | BaseException] = []
        done = threading.Event()

        def work() -> None:
            notes: list[str] = []
            try:
                with heeding(interrupts), heard(notes.append):
                    result = self._fed.sql(sql, values)
                answer.append(_told(result, notes, schema))
            except BaseException as error:
                answer.append(error)
            finally:
                with self._lock:
                    self._running.discard(interrupts)
                    self._idle.notify_all()
                done.set()

        began, over = time.monotonic(), False
        threading.Thread(target=work, name="sqlfl-statement", daemon=True).start()
        while not done.wait(HEARD):
            if not over and cancelled():
                over = True
                interrupts.interrupt()
        log.info("a statement ended after %.1f s", time.monotonic() - began)
        (outcome,) = answer
        if over or isinstance(outcome, KeyboardInterrupt):
            raise Cancelled
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    # -- results ----------------------------------------------------------------------------------

    def keep(self, caller: CallerId, table: pa.Table) -> bytes:
        """Keep a result until it is taken; returns its handle."""
        handle = secrets.token_bytes(16)
        with self._lock:
            self._results[handle] = (caller, table)
            size = sum(kept.nbytes for _, kept in self._results.values())
            while len(self._results) > 1 and (
                len(self._results) > MAX_RESULTS or size > MAX_RESULT_BYTES
            ):
                _, (_, dropped) = self._results.popitem(last=False)
                size -= dropped.nbytes
        return handle

    def take(self, caller: CallerId, handle: bytes) -> pa.Table:
        """The rows, which are kept no longer."""
        with self._lock:
            kept = self._results.get(handle)
            if kept is None or kept[0] != caller:
                raise Error("there is no such result, or it was read", hint="run the statement")
            del self._results[handle]
        return kept[1]

    def stop(self) -> None:
        """Begin nothing more. Statements that run end as by Ctrl-C, and a second time at once."""
        with self._lock:
            self._closing = True
            for interrupts in tuple(self._running):
                interrupts.interrupt()

    def idle(self, seconds: float) -> bool:
        """Wait until nothing runs, for that time at most; return whether nothing does."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running, seconds)


def _names(parameters: Sequence[ParameterPlace]) -> tuple[str, ...]:
    if all(not place.name for place in parameters):
        return tuple(str(number) for number in range(1, len(parameters) + 1))
    names = list(dict.fromkeys(place.name for place in parameters))
    return tuple(sorted(names, key=int) if all(n.isdecimal() for n in names) else names)


def _nothing(parameters: Sequence[str]) -> Sequence[Any] | Mapping[str, Any] | None:
    """NULL for each parameter."""
    if not parameters:
        return None
    if all(name.isdecimal() for name in parameters):
        return [None] * len(parameters)
    return dict.fromkeys(parameters)


def _told(result: Result, notes: Sequence[str], schema: pa.Schema | None) -> pa.Table:
    """The rows with the types that were reported, for example of a time in another zone."""
    table = result.arrow()
    if schema is not None and table.schema != schema:
        try:
            table = table.cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise InternalError(
                f"the result has other columns than were reported: {error}"
            ) from None
    texts = [*result.notes, *notes]
    return table.replace_schema_metadata({NOTES: json.dumps(texts)} if texts else None)


PREPARE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"


# -- calls -----------------------------------------------------------------------------------------

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
