"""Failures of a run that would tell whether some row has a value that leaves with noise alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked
from sqlfl.contract.schema import Client, FeatureSpecification, SlotSpecification
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.conftest import Open
from tests.governance.clinic import PATIENTS, SLOT, TESTS, prepared, ruled
from tests.governance.test_hostile_coordinator import request
from tests.open_databases import in_memory

SICK_17 = "UPDATE patients SET ward = 'w9' WHERE pid = 17"
JOINED = "FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
CLASSED = f"""TRAIN OR REPLACE MODEL m USING softmax_regression TARGET y
  PRIVACY (label_epsilon = 1, label_classes = $classes) FROM (SELECT t.crp, $label AS y {JOINED})"""
ONE = "CASE WHEN p.ward = 'w9' AND p.pid = 17 THEN 'yes' ELSE 'no' END"
FEATURES = f"""TRAIN OR REPLACE MODEL m USING linear_regression TARGET crp
  PRIVACY (epsilon = 1, delta = 1e-6, feature_bounds = $bounds)
  FROM (SELECT $feature AS x, t.crp {JOINED})"""


def outcome(
    open_: Open, rules: str, grant: str, text: str, change: str = "SELECT 1"
) -> sqlfl.Error | None:
    clinic = open_(PATIENTS, change)
    ruled(clinic, rules, f"GRANT JOIN (pid), {grant} ON patients TO 'acme' UNDER r")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach("lab", open_(TESTS))
        try:
            fed.sql(text)
        except sqlfl.Error as error:
            return error
    return None


@pytest.mark.parametrize("rules", ["labels = 'noised'", "epsilon = 8", "epsilon_total = 8"])
@pytest.mark.parametrize(
    ("label", "classes"), [(ONE, "['no', 'maybe']"), ("p.ward", "['w0', 'w1', 'w2', 'w3']")]
)
def test_a_label_that_is_none_of_the_classes(
    database: Open, rules: str, label: str, classes: str
) -> None:
    text = CLASSED.replace("$classes", classes).replace("$label", label)
    for change in ("SELECT 1", SICK_17):
        assert outcome(database, rules, "LABEL (ward, pid)", text, change) is None


@pytest.mark.parametrize(
    "rules", ["predictions = 'noised'", "epsilon = 8", "epsilon_total = 8", "predictions = 'never'"]
)
@pytest.mark.parametrize(
    "feature",
    [
        "CAST(CAST(p.age AS VARCHAR) AS TINYINT)",
        "CAST(CASE WHEN p.ward = 'w9' THEN 'x' ELSE '1' END AS INTEGER)",
        "CAST(coalesce(p.ward, '1') AS DOUBLE)",
        "ln(p.age - 30)",
        "CASE WHEN p.ward = 'w9' THEN 1e308 * 10 ELSE 1.0 END",
    ],
)
def test_a_feature_that_fails(database: Open, rules: str, feature: str) -> None:
    text = FEATURES.replace("$bounds", "{'x': [0, 1]}").replace("$feature", feature)
    for change in ("SELECT 1", SICK_17):
        error = outcome(database, f"{rules}, min_cell = 1", "TRAIN (age, ward)", text, change)
        assert isinstance(error, PolicyError)
        assert "may fail on some of its values" in str(error)


@pytest.mark.parametrize("rules", ["predictions = 'noised'", "epsilon = 8"])
@pytest.mark.parametrize(
    ("feature", "bounds"),
    [
        ("p.ward", "{'x': ['w0']}"),
        ("CASE WHEN p.ward = 'w9' THEN 99 ELSE 1 END", "{'x': [0, 1]}"),
        ("TRY(CAST(p.ward AS INTEGER))", "{'x': [0, 1]}"),
    ],
)
def test_features_outside_their_bounds(
    database: Open, rules: str, feature: str, bounds: str
) -> None:
    text = FEATURES.replace("$bounds", bounds).replace("$feature", feature)
    for change in ("SELECT 1", SICK_17):
        assert outcome(database, f"{rules}, min_cell = 1", "TRAIN (ward)", text, change) is None


# -- a coordinator that says another type than the columns have ------------------------------------

NUMBERS = SnapshotPrivacy(LabelNoise("laplace", 1.0, (0.0, 1.0), ()), "none", (), 0.0, 0.0, None)
TARGET = replace(SLOT, target=True, base=True, privacy=NUMBERS)
WEIGHT = replace(SLOT, weight=True)
OFFSET = replace(SLOT, offset=True)
NUMBER = replace(SLOT, features=(FeatureSpecification("x", "numeric"),))
ARRAY = replace(SLOT, features=(FeatureSpecification("x", "array", width=2),))
KEYED = "{} p.pid AS sqlfl_key_0_0 FROM patients p"
OTHER_TYPES = {
    "a target": (TARGET, "SELECT p.note AS sqlfl_target, p AS sqlfl_base,", "send_labels"),
    "a chosen target": (
        TARGET,
        "SELECT CASE WHEN p.note = 'x' THEN 'x' ELSE '1' END AS sqlfl_target, p AS sqlfl_base,",
        "send_labels",
    ),
    "a weight": (WEIGHT, "SELECT p.note AS sqlfl_weight,", "send_weights"),
    "an offset": (OFFSET, "SELECT p.note AS sqlfl_offset,", "send_offsets"),
    "a number": (NUMBER, "SELECT p.note AS x,", "send_keys"),
    "a number of JSON": (NUMBER, "SELECT p.j AS x,", "send_keys"),
    "an array of lists": (ARRAY, "SELECT p.l AS x,", "send_keys"),
    "an array of texts": (ARRAY, "SELECT p.a AS x,", "send_keys"),
}
"""The slot, the beginning of a fragment, and a request."""
TYPED = """ALTER TABLE patients ADD COLUMN note VARCHAR DEFAULT '1';
ALTER TABLE patients ADD COLUMN j JSON DEFAULT '1';
ALTER TABLE patients ADD COLUMN l DOUBLE[] DEFAULT [1, 2];
ALTER TABLE patients ADD COLUMN a VARCHAR[2] DEFAULT ['1', '2'];"""
ODD = """UPDATE patients SET note = 'x', j = '"x"', l = [1], a = ['1', 'x'] WHERE pid = 17"""


@contextmanager
def spoken(*changes: str) -> Iterator[PartyClient]:
    with in_memory() as con:
        for text in (PATIENTS, TYPED, *changes):
            con.execute(text)
        ruled(
            con,
            "labels = 'noised', predictions = 'exact', min_cell = 1",
            "GRANT JOIN (pid), TRAIN (note, j, l, a), LABEL (note) ON patients TO 'acme' UNDER r",
        )
        secret = b"\x07" * 32
        client = PartyClient(Client("clinic"), con, Secrets(secret, secret), analyst="acme")
        with closing(client):
            yield client


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_types_that_a_conversion_may_fail_for(name: str) -> None:
    """Whatever values there are, the reply is the same."""
    slot, text, kind = OTHER_TYPES[name]
    replies = [_reply(changes, slot, KEYED.format(text), kind) for changes in ((), (ODD,))]
    assert replies[0] == replies[1]
    assert replies[0].startswith("PolicyError" if slot in (WEIGHT, OFFSET) else "ModelError")


def _reply(changes: tuple[str, ...], slot: SlotSpecification, text: str, kind: str) -> str:
    with spoken(*changes) as client:
        asked = request(Asked(0, kind, "", "", 1))
        reply = prepared(lambda message: courier.ask(client, message), text, slot, asked)
        return f"{reply.error} {reply.text}" if isinstance(reply, ms.Failure) else reply.kind
