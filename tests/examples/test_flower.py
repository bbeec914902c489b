"""The app of Flower: its two sides apart, where Flower is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.42,<2'")

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
    """Answers for nodes as it is told: True, or False for a failure; None is silent."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def get_node_ids(self) -> list[int]:
        return list(range(len(self.answers)))

    def send_and_receive(self, messages: list[object], timeout: float) -> list[object]:
        self.asked += [message.metadata.message_type for message in messages]  # type: ignore[attr-defined]
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(src_node_id=node), has_error=lambda own=own: not own
            )
            for node, own in enumerate(self.answers)
            if own is not None
        ]


def message(content: object, dst_node_id: int, message_type: str) -> SimpleNamespace:
    """Flower's own are of a run."""
    return SimpleNamespace(metadata=SimpleNamespace(message_type=message_type))


def test_a_statement_begins_only_where_all_sites_are_ready() -> None:
    server = loaded("server_app")
    server.Message = message
    context = SimpleNamespace(
        run_config={
            "sites": 2, "coordinator": "grpc+tls://127.0.0.1:1", "config": "missing.toml",
            "study": "heart", "statement": "SHOW MODELS",
        }
    )  # fmt: skip
    for answers, said in {
        (True, False): "ready: 1 sites have failed, 0 were silent",
        (None, True): "ready: 0 sites have failed, 1 were silent",
    }.items():
        grid = Grid(*answers)
        with pytest.raises(RuntimeError, match=said):
            server.main(grid, context)
        assert grid.asked == ["query.ready"] * 2
    grid = Grid(True, True)
    with pytest.raises(Exception, match=r"cannot read missing.toml"):
        server.main(grid, context)
    assert grid.asked == ["query.ready"] * 2 + ["query.done"] * 2  # and they hear that it failed
    with pytest.raises(RuntimeError, match="1 of 2 sites are connected"):
        server.connected(Grid(True), 2, seconds=0.0)
