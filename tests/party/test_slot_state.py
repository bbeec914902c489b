"""What a client refuses of a coordinator that asks otherwise than the package's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.contract.privacy_specification import RoundNoise, SnapshotPrivacy
from sqlfl.contract.schema import Client, SlotSpecification, specifications_to_json
from sqlfl.party.party import PartyClient
from sqlfl.udfs.blocks.blocks import SavedBlock
from tests.conftest import Open
from tests.courier import ask
from tests.methods.harness import configured
from tests.party.test_run_keys import ONES, ROWS, SHARED, SLOT, TABLE, refused

LOCAL = replace(SLOT, keys=(), shared=False)
ACTIVATE = ms.Activate("r", 0, ROWS, ONES, 40)


@pytest.fixture
def client(database: Open) -> Iterator[PartyClient]:
    with closing(PartyClient(Client("a"), database(TABLE), SHARED)) as client:
        yield client


def prepare(client: PartyClient, slot: SlotSpecification = LOCAL) -> None:
    own = specifications_to_json((slot,))
    reply = ask(client, ms.Prepare("r", -1, own, ("SELECT x, c FROM t",)))
    assert isinstance(reply, ms.Prepared)


def start(privacy: RoundNoise | None = None) -> ms.Start:
    usual = {"outputs": 1, "rows": 40, "total": 40.0, "clients": 1, "leader": True}
    own = configured("sgd", **usual, l2=0.0, curvature=1.0, privacy=privacy)
    return ms.Start("r", 0, own.method, own.to_json())


def test_nothing_is_told_before_the_rows_that_are_joined(client: PartyClient) -> None:
    prepare(client)
    none = np.zeros((0, 1), np.uint8)
    for request in (
        ms.Weigh("r", 0, np.zeros(0), 1.0, np.zeros(0)),
        ms.SendLabels("r", 0), ms.SendFindings("r", 0), ms.SendSeparated("r", 0, none, 0),
        ms.SendProfile("r", 0, 1), ms.SendEqualRows("r", 0), ms.SendWeights("r", 0),
        ms.SendFolds("r", 0), ms.SendSplit("r", 0), ms.SendIdentifiers("r", 0), start(),
        ms.SendSkew("r", 0, "m", 0, 1), ms.SendRotated("r", 0, "m", 0, (), ()),
        ms.SendReleases("r", 0),
    ):  # fmt: skip
        refused(ask(client, request), "before the rows that are joined are told")
    assert isinstance(ask(client, ACTIVATE), ms.Ready)
    assert isinstance(ask(client, ms.SendFindings("r", 0)), ms.Findings)
    assert isinstance(ask(client, ACTIVATE), ms.Failure)


def test_training_is_started_once(client: PartyClient) -> None:
    prepare(client)
    ask(client, ACTIVATE)
    assert isinstance(ask(client, start()), ms.Ready)
    first = client._runs["r"].slots[0].operator
    refused(ask(client, start()), "has been started")
    assert client._runs["r"].slots[0].operator is first


@pytest.mark.parametrize("folds", [0, 2])
def test_releases_of_a_run_have_one_guard(client: PartyClient, folds: int) -> None:
    """Another one would count them from 0."""
    privacy = SnapshotPrivacy(None, "bounds", ((-1.0, 1.0),), 0.0, 0.0, 1e-9)
    slot = replace(LOCAL, features=LOCAL.features[:1], privacy=privacy, folds=folds)
    own = specifications_to_json((slot,))
    reply = ask(client, ms.Prepare("r", -1, own, ("SELECT x FROM t",)))
    assert isinstance(reply, ms.Prepared)
    ask(client, ACTIVATE)
    noised = start(RoundNoise(1.0, 1.0))
    assert isinstance(ask(client, noised), ms.Ready)
    refused(ask(client, noised), "has been started")
    again = ms.Weigh("r", 0, np.ones(40), 40.0, np.zeros(0))
    refused(ask(client, again), "rows of slot 0 are weighed once")
    refused(ask(client, noised), "has been started")


def test_what_contents_choose_is_answered_once(client: PartyClient) -> None:
    """Two classes that differ in one row would tell its category."""
    prepare(client)
    ask(client, ACTIVATE)
    classes = np.ones((40, 1), np.uint8)
    for reply in (ms.SendProfile("r", 0, 2), ms.SendProfile("r", 0, 2)):
        assert isinstance(ask(client, reply), ms.Profile)
    refused(ask(client, ms.SendProfile("r", 0, 1)), "send_profile of slot 0 is answered once")
    explained = ms.SendExplained("r", 0, 1, np.ones((40, 1), np.float32))
    refused(ask(client, explained), "send_explained of slot 0 is answered once")
    first = ms.SendSeparated("r", 0, classes, 0)
    for _ in range(2):
        assert isinstance(ask(client, first), ms.Separated)
    classes = classes.copy()
    classes[3] = 2
    refused(ask(client, replace(first, classes=classes)), "is answered once in a run")


def test_a_row_is_rotated_with_one_choice_of_bases(client: PartyClient) -> None:
    prepare(client)
    ask(client, ACTIVATE)
    encoding = client._runs["r"].slots[0].encoded()
    client.accept("m", 0, "m", SavedBlock(encoding, np.ones((encoding.width, 1)), "t"))
    first = ms.SendRotated("r", 0, "m", 0, ("c",), ("c0",))
    assert isinstance(ask(client, first), ms.Rotated)
    refused(ask(client, replace(first, bases=("c1",))), "send_rotated of slot 0 is answered once")
