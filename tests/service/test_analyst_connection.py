"""An analyst who takes a coordinator for another one, or is another one than its settings say."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sqlfl.base.errors import Error
from sqlfl.service import passes
from sqlfl.service.federation import RemoteFederation
from sqlfl.service.stream import hint
from tests.service.study import serving, settings, written


def test_the_coordinators_name_is_asked_for(tmp_path: Path) -> None:
    given = "".join(f'{k} = "{v}"\n' for k, v in written(tmp_path, "alice").items())
    path = tmp_path / "own.toml"
    with serving(tmp_path, settings(tmp_path, {"clinic": 1})) as study:

        def refused(more: str, **other: str) -> str:
            path.write_text(given + more)
            with pytest.raises(Error) as caught:
                RemoteFederation(study.location, config=path, study="heart", **other)
            return str(caught.value)

        said = refused("")  # its certificate is of that host too, but has another name
        assert "the analyst's pass is for another coordinator" in said
        assert "it was taken for 127.0.0.1: `coordinator_name` in the settings" in said
        said = refused('coordinator_name = "elsewhere"')
        assert "cannot connect to " in said
        assert "it was taken for elsewhere: `coordinator_name`" in said
        own = 'coordinator_name = "coordinator.example"\n'
        assert "is of alice, and the configuration says bob" in refused(own + 'name = "bob"')
        assert "is of alice, and the configuration says bob" in refused(own, analyst="bob")
        path.write_text(own + given)
        RemoteFederation(study.location, config=path, study="heart").close()


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused", "nothing liste"),
        ("errors resolving a.b:1: [field:hostname lookup error: not found]", "is it spelt right"),
        ("SSL routines::certificate verify failed: self-signed", "certificates of one authority"),
        ("Failed to connect to remote host: No route to host", "a firewall"),
        ("Peer name a is not in peer certificate", "another name than the one in the settings"),
        ("it was closed", "is the coordinator there"),
    ],
)
def test_what_to_look_at(why: str, said: str) -> None:
    assert said in hint(why)


def test_a_clock_that_is_an_hour_off_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = written(tmp_path, "alice") | {"coordinator_name": "coordinator.example"}
    path = tmp_path / "own.toml"
    path.write_text("".join(f'{k} = "{v}"\n' for k, v in given.items()))
    own = passes.issue

    def later(*args: object) -> str:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        return own(*args, now=now)  # type: ignore[arg-type]

    with serving(tmp_path, settings(tmp_path, {"clinic": 1})) as study:
        with pytest.raises(
            Error, match=r"(?s)there is no study 'lung'.*hint: `study` in the settings"
        ):
            RemoteFederation(study.location, config=path, study="lung")
        monkeypatch.setattr("sqlfl.service.passes.issue", later)
        with pytest.raises(Error, match="clocks may differ by 5 minutes") as caught:
            RemoteFederation(study.location, config=path, study="heart")
    assert caught.value.hint == "is the clock of this machine right?"
