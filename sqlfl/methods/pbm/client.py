"""The client's part of PBM-VFL: of towers alone."""

from __future__ import annotations

from sqlfl.methods.pbm.configuration import PbmConfiguration
from sqlfl.party.operator import BuildOperator, ClientPart


def _tower() -> BuildOperator:
    from sqlfl.methods.pbm.tower_client import PbmTower

    return PbmTower


CLIENT = ClientPart(PbmConfiguration, tower=_tower, masked=True)
