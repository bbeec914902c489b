"""The app of Flower: its two sides apart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Open
from tests.service.study import studied
from tests.service.test_federation import PATIENTS, QUERY, TESTS, TRAIN

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what Flower imports
]

APP = Path(__file__).parent.parent.parent / "examples" / "flower" / "sqlfl_flower"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"flower_{name}", APP / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_site_is_ready_where_its_party_runs(tmp_path: Path) -> None:
    running = loaded("client_app").running
    file = tmp_path / "party.pid"
    with pytest.raises(FileNotFoundError):
        running(file)
    file.write_text(f"{os.getpid()}\n")
    assert running(file) == os.getpid()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    file.write_text(str(ended.pid))
    with pytest.raises(ProcessLookupError):
        running(file)


class Grid:
    """Nodes at which the client app answers, each beside the party of its file, or is silent."""

    def __init__(self, *files: Path | None) -> None:
        self.files = files
        self.app = loaded("client_app").app
        self.asked: list[tuple[str, str]] = []

    def get_node_ids(self) -> list[int]:
        return list(range(len(self.files)))

    def send_and_receive(self, messages: list[Any], timeout: float) -> list[Any]:
        replies = []
        for message in messages:
            ends = message.content.config_records["end"]
            self.asked.append((message.metadata.message_type, ends.get("how", "")))
            file = self.files[message.metadata.dst_node_id]
            if file is not None:
                replies.append(answered(self.app, message, file))
        return replies


def answered(app: Any, message: Any, file: Path) -> Any:
    """As a node does it: an error of the app is an answer too."""
    from flwr.app import Context, Error, Message, RecordDict

    node = message.metadata.dst_node_id
    context = Context(1, node, {"pid-file": str(file)}, RecordDict(), {})
    try:
        return app(message, context)
    except OSError as error:
        return Message(Error(0, str(error)), reply_to=message)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The server's side in the process of a run, which Flower tells the run's number."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return loaded("server_app")


@pytest.fixture
def party(tmp_path: Path) -> Path:
    """The file of a party that runs."""
    file = tmp_path / "party.pid"
    file.write_text(str(os.getpid()))
    return file


def run_of(statement: str, **settings: str) -> SimpleNamespace:
    told = {"sites": 2, "study": "heart", "statement": statement, **settings}
    return SimpleNamespace(run_config=told)


def test_a_statement_begins_only_where_all_sites_are_ready(
    server: ModuleType, party: Path, tmp_path: Path
) -> None:
    run = run_of("SHOW MODELS", coordinator="grpc+tls://127.0.0.1:1", config="missing.toml")
    grids = {
        "ready: 1 sites have failed, 0 were silent": Grid(party, tmp_path / "none.pid"),
        "ready: 0 sites have failed, 1 were silent": Grid(None, party),
    }
    for said, grid in grids.items():
        with pytest.raises(RuntimeError, match=said):
            server.main(grid, run)
        assert grid.asked == [("query.ready", "")] * 2
    grid = Grid(party, party)
    with pytest.raises(Exception, match=r"cannot read missing.toml"):
        server.main(grid, run)
    assert grid.asked == [("query.ready", "")] * 2 + [("query.done", "failed")] * 2
    with pytest.raises(RuntimeError, match="1 of 2 sites are connected"):
        server.connected(Grid(party), 2, seconds=0.0)


def test_a_run_has_the_coordinator_train(
    server: ModuleType, party: Path, tmp_path: Path, database: Open
) -> None:
    parties = {"clinic": database(PATIENTS, own=True), "lab": database(TESTS, own=True)}
    grid = Grid(party, party)
    with studied(tmp_path, parties) as study, study.analyst() as fed:
        run = run_of(TRAIN, coordinator=study.location, config=str(tmp_path / "alice.toml"))
        server.main(grid, run)
        assert len(fed.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()) == 400
    assert grid.asked == [("query.ready", "")] * 2 + [("query.done", "done")] * 2
