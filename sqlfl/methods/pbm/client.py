"""The client's part of PBM-VFL: of towers alone."""

from __future__ import annotations

from typing import Any

from sqlfl.errors import InternalError
from sqlfl.methods.pbm.configuration import PbmConfiguration
from sqlfl.party.operator import BuildTower, ClientPart


def _linear(*of: Any) -> Any:
    raise InternalError("linear blocks are not trained by 'pbm'")


def _tower() -> BuildTower:
    from sqlfl.methods.pbm.tower_client import PbmTower  # loads torch

    return PbmTower


CLIENT = ClientPart(PbmConfiguration, _linear, _tower, masked=True)
