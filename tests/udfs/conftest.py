"""Fixtures for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.udfs import snapshots


@pytest.fixture(params=snapshots.FORMS)
def in_both_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test's snapshots are temporary tables once, and columns beside them once."""
    monkeypatch.setattr(snapshots, "form", request.param)
    return str(request.param)
