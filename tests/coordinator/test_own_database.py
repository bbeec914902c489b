"""The database in which keys are joined is empty when it is used, and leaves nothing on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from sqlfl.coordinator.join import key_join
from sqlfl.coordinator.join.key_join import own_database


@pytest.fixture(autouse=True)
def _none_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_join, "_idle", [])


def test_what_it_spills_is_in_a_folder_of_its_own() -> None:
    with own_database() as con:
        ((text,),) = con.execute("SELECT current_setting('temp_directory')").fetchall()
        folder = Path(text)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_it_is_used_again_and_empty() -> None:
    asked = "SELECT current_setting('memory_limit'), current_setting('threads')"
    with own_database() as con:
        usual = con.execute(asked).fetchall()
        con.execute("SET memory_limit = '100MB'; SET threads = 1")
        con.register("slot_0", pa.table({"key": [1, 2]}))
        assert con.sql("FROM slot_0").fetchall() == [(1,), (2,)]
        con.execute("SET GLOBAL TimeZone = 'Asia/Tokyo'")  # nothing else tells that it is the same
    zone = "SELECT current_setting('TimeZone')"
    with own_database() as again, own_database() as another:
        assert again.execute(zone).fetchall() == [("Asia/Tokyo",)]
        assert another.execute(zone).fetchall() != [("Asia/Tokyo",)]
        assert again.execute(asked).fetchall() == usual
        assert again.execute("SHOW ALL TABLES").fetchall() == []


def test_one_that_failed_or_has_spilled_is_closed() -> None:
    with pytest.raises(KeyboardInterrupt), own_database():
        raise KeyboardInterrupt
    assert key_join._idle == []
    with own_database() as con:
        ((folder,),) = con.execute("SELECT current_setting('temp_directory')").fetchall()
        con.execute("SET memory_limit = '50MB'; SET threads = 1")
        con.register("slot_0", pa.table({"key": range(2_000_000)}))
        con.sql("FROM slot_0 ORDER BY hash(key)").to_arrow_table()
        assert os.listdir(folder)
    assert key_join._idle == []
    assert not os.path.exists(folder)


def test_a_fork_opens_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_database() as con:
        con.execute("SET GLOBAL TimeZone = 'Asia/Tokyo'")
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with own_database() as other:
        ((zone,),) = other.execute("SELECT current_setting('TimeZone')").fetchall()
        assert zone != "Asia/Tokyo"
