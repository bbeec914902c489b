"""Arrays on disk: what is written is read, and no file of it is ever left."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sqlfl.base.errors import ModelError
from sqlfl.coordinator.join.row_mapping import Scratch


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_what_is_written_is_read() -> None:
    with Scratch() as scratch:
        one, other = scratch.numbers(), scratch.numbers()
        one.append(np.arange(5, dtype=np.int32))
        other.append(np.arange(100, 103, dtype=np.int64))
        one.append(np.arange(20, 0, -2)[::2])
        assert (len(one), len(other)) == (10, 3)
        one.replace(3, np.array([-7, -8]))
        assert one.part(0, 10).tolist() == [0, 1, 2, -7, -8, 20, 16, 12, 8, 4]
        assert one.part(4, 6).tolist() == [-8, 20]
        assert other.part(1, 3).tolist() == [101, 102]
        part = one.part(0, 2)
        part += 1
        assert one.part(0, 2).tolist() == [0, 1]


def test_no_file_has_a_name_and_none_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with Scratch() as scratch:
        scratch.numbers().append(np.arange(1000))
        assert os.listdir(tmp_path) == []
        assert os.listdir("/proc/self/fd") != before
    with pytest.raises(KeyboardInterrupt), Scratch() as scratch:
        _interrupted(scratch)
    assert os.listdir("/proc/self/fd") == before


def _interrupted(scratch: Scratch) -> None:
    scratch.numbers().append(np.arange(1000))
    raise KeyboardInterrupt


def test_a_write_that_stops_half_way_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:7], place))
    with Scratch() as scratch:
        numbers = scratch.numbers()
        numbers.append(np.arange(1000))
        assert numbers.part(0, 1000).tolist() == list(range(1000))


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Scratch() as scratch, pytest.raises(ModelError, match=r"(?s)full.*TMPDIR.*memory_limit"):
        scratch.numbers().append(np.arange(3))
