"""A job of NVFlare that runs statements, as the folder that `nvflare job submit -j` takes.

It brings no code: its server and its sites run what is installed there. To write it, NVFlare is not
needed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlfl.base.errors import Error
from sqlfl.databases.files import PRIVATE
from sqlfl.service.passes import issue
from sqlfl.service.settings import AnalystSettings, read_settings

SERVER = "sqlfl.integrations.nvflare.flare.Study"
SITE = "sqlfl.integrations.nvflare.flare_site.Site"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
THREADS = 100
"""Calls at once, at the server and at each site."""
APP_OF_SERVER, APP_OF_SITE = "server", "site"


def write_job(
    folder: str | os.PathLike[str],
    statements: Sequence[str],
    *,
    sites: Sequence[str],
    config: str | os.PathLike[str],
    study: str | None = None,
) -> Path:
    """Write the job, which has the folder's name; it holds a pass of the analyst, for a while.

    sites : the names at NVFlare of those that serve the study's parties. config : the analyst's
    settings (TOML), with `coordinator_name`: what the parties' settings call the coordinator.
    study : that of the settings, unless told.

    Raise Error where the folder is there already, or settings are missing.
    """
    path = Path(folder)
    settings = read_settings(AnalystSettings, config)
    server = _server(settings, statements, study or settings.study)
    if not sites or len(set(sites)) < len(sites):
        raise Error("the job has no sites, or one twice", hint="sites=['site-1', 'site-2']")
    client = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {
                    "path": EXECUTOR,
                    "args": {"client_obj_id": "party", "max_call_threads": THREADS},
                },
            }
        ],
        "components": [{"id": "party", "path": SITE, "args": {}}],
    }
    meta = {
        "name": path.name,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {APP_OF_SERVER: ["server"], APP_OF_SITE: list(sites)},
    }
    try:
        path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise Error(f"cannot make {path}: {error.strerror}") from error
    _write(path / "meta.json", meta)
    _write(path / APP_OF_SERVER / "config" / "config_fed_server.json", server)
    _write(path / APP_OF_SITE / "config" / "config_fed_client.json", client)
    return path


def _server(
    settings: AnalystSettings, statements: Sequence[str], study: str | None
) -> dict[str, object]:
    if study is None or settings.coordinator_name is None:
        raise Error(
            "a pass is for a study and a coordinator",
            hint="`study` and `coordinator_name` in the analyst's settings",
        )
    credentials = settings.credentials()
    assert credentials.key is not None
    assert credentials.certificate is not None
    length = dt.timedelta(hours=settings.pass_hours)
    speaker = issue(
        credentials.key, credentials.certificate, settings.coordinator_name, study, length
    )
    told = {"statements": list(statements), "study": study, "speaker": speaker}
    controller = {"server_obj_id": "study", "max_call_threads": THREADS}
    return {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
        "components": [{"id": "study", "path": SERVER, "args": told}],
    }


def _write(path: Path, told: Mapping[str, object]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)
