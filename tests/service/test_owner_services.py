"""What serves an owner beside a party's host."""

from __future__ import annotations

import socket
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl.governance.admin_socket import door_of, through
from sqlfl.service.hosting import Host
from sqlfl.service.owner_services import owner_served
from sqlfl.service.settings import PartySettings
from tests.governance.clinic import PATIENTS, TESTS, ruled
from tests.open_databases import in_memory
from tests.service.processes import until
from tests.service.test_notifications import asks
from tests.service.test_pages import ask


def test_an_owner_is_served_beside_a_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By `sqlfl party` and by a site of NVFlare: statements, the page, and a command."""
    file, noted = str(tmp_path / "c.duckdb"), tmp_path / "noted"
    with duckdb.connect(file) as clinic, in_memory() as lab:
        clinic.execute(PATIENTS)
        lab.execute(TESTS)
        ruled(clinic, "approval = 'first_time'")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("clinic", clinic)
            fed.attach("lab", lab)
            asks(fed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = PartySettings(
        name="clinic", coordinator="c", database=file, secret="s", page=port,
        notify=("/bin/sh", "-c", f"cat > {noted}.part && mv {noted}.part {noted}"),
    )  # fmt: skip
    caplog.set_level("INFO", "sqlfl.party")
    own = Host("clinic", file, secret=bytes(32), known=lambda study, speaker: speaker)
    with own, owner_served(own, settings):
        assert f"its owner's page is http://127.0.0.1:{port}" in caplog.text
        until(noted.exists)
        assert "Request 1 waits at clinic" in noted.read_text()
        reply, text = ask(port, "/")
        assert reply.status == 200
        assert "acme" in text
        assert through(door_of(file), "REFUSE REQUEST 1 BECAUSE 'no'") is not None
    assert not door_of(file).exists()
