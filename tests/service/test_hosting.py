"""Analysts at a party's host."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.messages.wire import encoded, received
from sqlfl.service import hosting
from sqlfl.service.hosting import Host
from tests.conftest import Open

LISTS = pa.py_buffer(encoded(ms.ListTables("", -1)))


def host(database: Open) -> Host:
    con = database("CREATE TABLE t AS SELECT 1 AS a", own=True)
    return Host("bank", con, secret=bytes(32), known=lambda study, speaker: speaker, open=True)


def test_so_many_analysts(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In studies whose names a coordinator and an analyst may make up."""
    monkeypatch.setattr(hosting, "MOST_ENDS", 2)
    with host(database) as own:
        own.welcome("coordinator", "s")
        for study in ("a", "b", "a"):
            assert isinstance(received(own.handle(0, LISTS, study, "alice")), ms.Tables)
        with pytest.raises(Error, match="2 analysts are served already"):
            own.handle(0, LISTS, "c", "alice")
        own.welcome("coordinator", "t")
        assert isinstance(received(own.handle(0, LISTS, "c", "alice")), ms.Tables)


@pytest.mark.parametrize("how", ["another session", "it forgets", "the same session"])
def test_what_is_forgotten(database: Open, how: str) -> None:
    with host(database) as own:
        own.welcome("coordinator", "s")
        own.handle(0, LISTS, "heart", "alice")
        (before,) = own._ends.values()
        if how == "it forgets":
            own.forget()
        own.welcome("coordinator", "t" if how == "another session" else "s")
        own.handle(0, LISTS, "heart", "alice")
        (after,) = own._ends.values()
        assert (after is before) == (how == "the same session")
