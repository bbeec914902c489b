"""A server and sites of NVFlare in one process: its cells over a loopback line, and its own
dispatch of Collab calls in both directions, without its jobs, which are processes. Only what needs
NVFlare imports this module."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.collab import collab
from nvflare.collab.api.app import ClientApp, ServerApp
from nvflare.collab.api.proxy import Proxy
from nvflare.collab.runtime.cell_dispatcher import CellDispatcher
from nvflare.collab.runtime.dispatch import prepare_for_remote_call
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from sqlfl.contract.schema import Client
from sqlfl.integrations.nvflare.asking import FlareClient
from sqlfl.integrations.nvflare.flare import Speaking, ends
from sqlfl.integrations.nvflare.flare_site import Site
from sqlfl.service.hosting import Host
from sqlfl.transport.base import Handler
from tests.transport.conformance import PASS, Handling

log = logging.getLogger(__name__)
SPEAKING = Speaking("heart", PASS)


class Server:
    @collab.main
    def run(self) -> None:
        pass


class Handled(Site):
    """A site that serves by a function."""

    def __init__(self, client: Client, handler: Handler, interrupt: Callable[[], None] | None):
        super().__init__()
        self.client = client
        self._handling = Handling(handler, interrupt)
        self._handling.client = client

    @collab.init
    def begin(self) -> None:
        self._host = self._handling
        self._stack.enter_context(self._answers)
        self._stack.callback(self._answers.end)


class Hosted(Site):
    """A site that serves a database, to whom passes name."""

    def __init__(self, name: str, con: duckdb.DuckDBPyConnection):
        super().__init__()
        self._own = Host(name, con, secret=bytes(32), known=lambda _, speaker: speaker, open=True)

    @collab.init
    def begin(self) -> None:
        self._stack.enter_context(self._answers)
        self._host = self._stack.enter_context(self._own)
        self._stack.callback(self._answers.end)
        self._host.welcome("coordinator", "1")


def named(proxies: Mapping[str, Proxy]) -> dict[str, list[str]]:
    return {party: [proxy.name] for party, proxy in proxies.items()}


def ends_of(proxies: Mapping[str, Proxy], lease: float = 60.0) -> dict[str, dict[int, FlareClient]]:
    return ends(proxies.values(), named(proxies), SPEAKING, lease)


def workspace(folder: Path) -> Workspace:
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return Workspace(str(folder))


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


class Line:
    """A server, once for a process: NVFlare keeps what belongs to a cell by its name for good."""

    def __init__(self) -> None:
        self._url = f"tcp://127.0.0.1:{free_port()}"
        self.abort = Signal()
        self._app = ServerApp(Server())
        self._pool = ThreadPoolExecutor(20, "collab server")
        self._cell = self._started("server")
        self._numbers = itertools.count()

    def close(self) -> None:
        self.abort.trigger(True)
        self._cell.stop()
        self._pool.shutdown()

    def _started(self, name: str) -> Cell:
        cell = Cell(name, self._url, False, {}, create_internal_listener=False)
        del CoreCell.ALL_CELLS[name]  # those of one process would hand bytes over without a line
        cell.start()
        return cell

    @contextmanager
    def connected(
        self, folder: Path, sites: Mapping[str, object]
    ) -> Iterator[tuple[dict[str, Proxy], dict[str, Callable[[], None]]]]:
        """Proxies of the sites at the server, and what takes each site away for good."""
        number = next(self._numbers)
        names = {site: f"{site}_{number}" for site in sites}
        participants = {"server": "server", **{name: name for name in names.values()}}
        proxies, stops = {}, {}
        with ExitStack() as stack:
            for site, own in sites.items():
                name = names[site]
                app = ClientApp(own)
                app.name = name
                cell = self._started(name)
                stops[site] = once(cell.stop)
                stack.callback(stops[site])
                pool = stack.enter_context(ThreadPoolExecutor(20, f"collab {name}"))
                prepare_for_remote_call(cell, app, log, pool, participants)
                proxies[site] = self._proxy(app)
                self._begin(app, folder / name, list(proxies.values()), stack)
            yield proxies, stops

    def _proxy(self, app: ClientApp) -> Proxy:
        args = None, None, "server", self._cell, app.name, self.abort, self._pool
        backend = CellDispatcher(*args)
        found = app.get_collab_interface()
        proxy = Proxy(self._app, app.name, app.name, backend, found.pop(""))
        for child, interface in found.items():
            proxy.add_child(child, Proxy(self._app, f"{app.name}.{child}", "", backend, interface))
        return proxy

    def _begin(self, app: ClientApp, folder: Path, proxies: list[Proxy], stack: ExitStack) -> None:
        server = Proxy(app, "server", "server", None, {})
        app.setup(workspace(folder), server, proxies, self.abort)
        context = app.new_context(app.name, app.name, set_call_ctx=False)
        app.initialize(context)
        stack.callback(app.finalize, context)


def once(work: Callable[[], None]) -> Callable[[], None]:
    done: list[bool] = []

    def called() -> None:
        if not done:
            done.append(True)
            work()

    return called
