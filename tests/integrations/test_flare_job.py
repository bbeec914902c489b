"""The folder of a job of NVFlare, which is written without it."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sqlfl.base.errors import Error
from sqlfl.integrations.nvflare.flare_job import write_job
from sqlfl.service.passes import checked
from tests.service.study import AUTHORITY, COORDINATOR, written

SITES = ["north", "south", "site-3"]


def settings(folder: Path, **other: str) -> Path:
    told = {**written(folder, "alice"), "coordinator_name": COORDINATOR, "study": "heart", **other}
    path = folder / "alice.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in told.items() if value))
    return path


def test_it_has_three_files_and_no_code(tmp_path: Path) -> None:
    config = settings(tmp_path)
    job = write_job(tmp_path / "job", ["SHOW MODELS"], sites=SITES, config=config)
    files = {str(path.relative_to(job)): path for path in job.rglob("*") if path.is_file()}
    assert set(files) == {
        "meta.json",
        "server/config/config_fed_server.json",
        "site/config/config_fed_client.json",
    }
    assert job.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files.values())
    meta = json.loads(files["meta.json"].read_text())
    assert meta["deploy_map"] == {"server": ["server"], "site": ["north", "south", "site-3"]}
    assert meta["mandatory_clients"] == ["north", "south", "site-3"]
    assert meta["min_clients"] == 3
    (own,) = json.loads(files["server/config/config_fed_server.json"].read_text())["components"]
    args = own["args"]
    assert set(args) == {"statements", "study", "speaker"}
    assert (args["statements"], args["study"]) == (["SHOW MODELS"], "heart")
    assert checked(args["speaker"], AUTHORITY, COORDINATOR, "heart") == "alice"
    (site,) = json.loads(files["site/config/config_fed_client.json"].read_text())["components"]
    assert site == {"id": "party", "path": "sqlfl.integrations.nvflare.flare_site.Site", "args": {}}


@pytest.mark.parametrize(
    ("missing", "sites", "match"),
    [
        ("study", SITES, "a pass is for a study and a coordinator"),
        ("coordinator_name", SITES, "a pass is for a study and a coordinator"),
        ("key", SITES, "no key"),
        (None, ["one", "two", "one"], "no sites, or one twice"),
        (None, [], "no sites, or one twice"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_left(
    missing: str | None, sites: list[str], match: str, tmp_path: Path
) -> None:
    config = settings(tmp_path, **({} if missing is None else {missing: ""}))
    with pytest.raises(Error, match=match):
        write_job(tmp_path / "job", ["SHOW MODELS"], sites=sites, config=config)
    assert not (tmp_path / "job").exists()


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(Error, match="cannot make"):
        write_job(tmp_path / "job", [], sites=SITES, config=settings(tmp_path))
    assert not list((tmp_path / "job").iterdir())


@pytest.mark.parametrize("name", ["flare", "flare_site"])
def test_without_nvflare_it_is_said_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"sqlfl.integrations.nvflare.{name}", raising=False)
    for module in ("nvflare", "nvflare.collab"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Error, match=f"sqlfl.integrations.nvflare.{name} needs NVFlare") as caught:
        import_module(f"sqlfl.integrations.nvflare.{name}")
    assert caught.value.hint == "pip install 'sqlfl[nvflare]'"
