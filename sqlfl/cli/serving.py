"""Commands that run until a signal ends them: the coordinator, and a party's agent. They log to
standard error: a line for each event, as text or as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import click

from sqlfl.base import sanitize
from sqlfl.base.errors import Error
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import hosted
from sqlfl.service.owner_services import owner_served
from sqlfl.service.settings import CoordinatorSettings, PartySettings, check_location, read_settings
from sqlfl.service.stream import Credentials

# -- log output ------------------------------------------------------------------------------------

FORMATS = ("text", "json")
FIELDS = ("party", "study", "analyst", "statement", "run")
"""Fields that a record may have in `extra`; `party` also from the process."""
FRAMES = 6
"""Maximum number of stack frames of an exception to log."""


@contextmanager
def logging_to(form: str, **fields: str) -> Iterator[None]:
    """Send sqlfl's log records and Python warnings of the block to standard error, with these
    fields.

    Exceptions appear with their kind and place, never with their text, which may hold values.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines have no format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(fields) if form == "json" else _Text(fields))
    log = logging.getLogger("sqlfl")
    before = log.level, log.propagate, warnings.showwarning
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate, warnings.showwarning = before[1:]
        log.removeHandler(handler)


class _Fields(logging.Formatter):
    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def contents(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the record's contents, with the known fields."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        contents: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        known = {name: getattr(record, name, self._fields.get(name)) for name in FIELDS}
        contents |= {name: value for name, value in known.items() if value not in (None, "")}
        if record.exc_info and record.exc_info[1] is not None:
            contents["fault"] = fault(record.exc_info[1])
        return contents


class _Json(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.contents(record))


class _Text(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        contents = self.contents(record)
        first = [contents.pop(name) for name in ("time", "level", "message")]
        rest = [f"{name}={value}" for name, value in contents.items()]
        return sanitize.line(" ".join([*first, *rest]))


def fault(error: BaseException) -> str:
    """Return the kind of an exception, and where it was met, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " < ".join([type(error).__name__, *reversed(places)])


log = logging.getLogger("sqlfl.cli")


# -- commands --------------------------------------------------------------------------------------

HEARD = 0.2
"""Seconds after which a signal is heard at the latest."""
FILE = click.Path(path_type=Path)
CONFIG = click.option("--config", type=FILE, required=True, help="Its settings, a TOML file.")
INSECURE = click.option(
    "--insecure", is_flag=True, help="Without TLS and certificates, on 127.0.0.1 alone."
)
LOGS = click.option(
    "--log-format", type=click.Choice(FORMATS), default="text", help="Of lines on standard error."
)


@click.command()
@click.option("--listen", required=True, help="Where: grpc+tls://0.0.0.0:8815.")
@click.option("--state", type=FILE, required=True, help="The folder of its files; made if missing.")
@CONFIG
@INSECURE
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    help="Seconds that statements have to end in, when it is told to end; by default 30.",
)
@click.option("--status", help="Where it may be watched by HTTP: 127.0.0.1:8816.")
@click.option("--status-open", is_flag=True, help="--status may be reached from other machines.")
@LOGS
def coordinator(
    listen: str,
    state: Path,
    config: Path,
    insecure: bool,
    grace: float,
    status: str | None,
    status_open: bool,
    log_format: str,
) -> None:
    """Serve as the coordinator, until SIGTERM or Ctrl-C; twice, end at once."""
    gone = True
    with serving(log_format) as stop:
        from sqlfl.service.service import Service  # a party's agent does not load it

        settings = read_settings(CoordinatorSettings, config)
        sql = None
        if settings.flight_sql:
            from sqlfl.gateway.calls import FlightSqlCalls

            sql = FlightSqlCalls
        service = Service(
            settings, listen, state, insecure=insecure, status=status, status_open=status_open,
            flight_sql=sql, path=config,
        )  # fmt: skip
        try:
            log.info("listening at %s:%d", listen.rpartition(":")[0], service.port)
            if status is not None:
                log.info("watched at http://%s:%s", status.rpartition(":")[0], service.status_port)
            while not stop.wait(HEARD):
                pass
            log.info("statements have %g seconds to end in", grace)
        finally:
            gone = service.close(grace)
    if not gone:
        os._exit(0)


@click.command()
@click.option("--join", required=True, help="The coordinator's place: grpc+tls://host:8815.")
@CONFIG
@click.option("--name", help="The party's, instead of the one in the settings.")
@click.option("--database", help="Its file, instead of what the settings name.")
@INSECURE
@LOGS
def party(
    join: str,
    config: Path,
    name: str | None,
    database: str | None,
    insecure: bool,
    log_format: str,
) -> None:
    """Serve a party's database to a coordinator, until SIGTERM or Ctrl-C; twice, end at once."""
    with serving(log_format, party=name or "") as stop:
        check_location(join, insecure=insecure)
        file_settings = read_settings(PartySettings, config)
        settings = replace(
            file_settings,
            name=name or file_settings.name,
            database=database or file_settings.database,
            sources=None if database else file_settings.sources,
            variables={} if database else file_settings.variables,
        )
        credentials = Credentials() if insecure else settings.credentials(settings.agent)
        with ExitStack() as stack:
            host = stack.enter_context(hosted(settings, credentials))
            stack.enter_context(owner_served(host, settings))
            agent = Agent(
                join, settings.name, 1, host, credentials, _said(settings.name),
                server=settings.coordinator, called=settings.agent, first=settings.index,
            )  # fmt: skip
            _run(agent, stop)


def _said(name: str) -> Callable[[str], None]:
    return lambda text: log.info("%s", text, extra={"party": name})


def _run(agent: Agent, stop: Stop) -> None:
    """Run the agent until `stop` is set, or the coordinator refuses it."""
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            agent.run()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work, name="sqlfl-party")
    thread.start()
    try:
        while not stop.wait(HEARD) and thread.is_alive():
            pass
    finally:
        agent.stop()
        thread.join()
    problem = ended[0]
    if problem is not None:
        raise problem


class Stop:
    """Event that a signal's handler sets. The handler runs in the thread that waits, which may just
    hold the lock of a `threading.Event`: a set would then wait for ever.
    """

    def __init__(self) -> None:
        self._set = False
        self._signals: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._set = True
        self._signals.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        """Return True once it is set, or False after these seconds."""
        if not self._set:
            with suppress(Empty):
                self._signals.get(timeout=seconds)
        return self._set


@contextmanager
def serving(log_format: str, **fields: str) -> Iterator[Stop]:
    """Yield an event that SIGTERM and Ctrl-C set; the second signal ends the process. Errors go to
    the log in JSON format.
    """
    stop = Stop()

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {kind: signal.signal(kind, told) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        with logging_to(log_format, **fields):
            try:
                yield stop
            except Error as error:
                if log_format != "json":
                    raise
                log.error("%s: %s", type(error).__name__, error)
                sys.exit(1)
            log.info("ended")
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
