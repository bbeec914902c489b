"""What services say of themselves."""

from __future__ import annotations

import json
import logging
import warnings

import pytest

import sqlfl
from sqlfl.cli.logs import logging_to

log = logging.getLogger("sqlfl.tests")
VALUE = "4711-secret"


def fail() -> None:
    raise ValueError(VALUE)


def say() -> None:
    log.info("bank/0 is\nconnected", extra={"party": "bank", "run": "", "study": None})
    log.debug("of nobody's interest")
    try:
        fail()
    except ValueError:
        log.exception("it failed", extra={"run": "r1"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("few rows", sqlfl.Warning, stacklevel=1)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("json", party="shop"):
        say()
    log.warning("nobody hears it here")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row["message"] for row in told] == ["bank/0 is\nconnected", "it failed", "few rows"]
    assert [row["party"] for row in told] == ["bank", "shop", "shop"]
    assert [row["level"] for row in told] == ["info", "error", "warning"]
    assert told[0].keys() == {"time", "level", "message", "party"}
    assert told[1]["run"] == "r1"
    assert told[1]["fault"].startswith("ValueError < test_logs.py:")
    assert VALUE not in json.dumps(told)


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("text"):
        say()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("connected party=bank")
    assert "fault=ValueError < test_logs.py:" in lines[1]
    assert VALUE not in "".join(lines)


def test_it_leaves_logging_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("sqlfl")
    before = own.level, own.propagate, list(own.handlers), warnings.showwarning
    with pytest.raises(KeyError), logging_to("text"):
        raise KeyError
    assert (own.level, own.propagate, list(own.handlers), warnings.showwarning) == before
