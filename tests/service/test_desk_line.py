"""An analyst who takes a coordinator for another one, or is another one than its settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlfl.errors import Error
from sqlfl.service.federation import RemoteFederation
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
