"""The plan's picture tells what EXPLAIN tells."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from sqlfl.federation.planning import explain
from sqlfl.planner.explain.picture import picture
from sqlfl.planner.explain.sections import NAMES, formula, kinds, totals
from sqlfl.planner.federated.exchanges import UP
from sqlfl.planner.federated.plan import FederatedPlan
from tests.planner import plans


def _texts(plan: FederatedPlan) -> list[str]:
    drawn = picture(plan)
    assert drawn is not None
    root = ElementTree.fromstring(drawn.svg)
    return [(element.text or "").replace("\u00a0", " ") for element in root.iter("text")]


PLANS = pytest.mark.parametrize(
    "plan",
    [plans.train(plans.flights(), "logistic_regression"),
     plans.train(plans.cards(), "linear_regression"), plans.into()],
    ids=["flights", "cards", "into"],
)  # fmt: skip


@PLANS
def test_boxes_are_in_the_picture_and_beside_each_other(plan: FederatedPlan) -> None:
    drawn = picture(plan)
    assert drawn is not None
    root = ElementTree.fromstring(drawn.svg)
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    boxes = [{k: int(box.attrib[k]) for k in ("x", "y", "width", "height")}
             for box in root.iter("rect")]  # fmt: skip
    for box in boxes:
        assert 0 < box["x"] < box["x"] + box["width"] <= width
        assert 0 < box["y"] < box["y"] + box["height"] < height
    coordinator, *parties = boxes
    for party in parties:
        assert party["x"] + party["width"] < coordinator["x"]
    for above, below in pairwise(parties):
        assert above["y"] + above["height"] < below["y"]
    for text in root.iter("text"):
        place = int(text.attrib["x"]), int(text.attrib["y"])
        assert 0 < place[0] < width
        assert 0 < place[1] < height


@PLANS
def test_each_party_and_all_that_leaves_it_is_drawn(plan: FederatedPlan) -> None:
    texts = _texts(plan)
    whole = " ".join(texts)
    for total in totals(plan):
        assert total.party in texts
        assert formula(total.of_rows).split(" + ")[0].split("·")[0] in whole
    for kind in kinds(plan, UP):
        assert (kind.kind in whole) == (kind.kind not in NAMES)
    for slot in plan.ucq.slots:
        assert any(text.startswith(f"{slot.name}: ") for text in texts)


def test_the_coordinators_own_party_sends_nothing_over_a_border() -> None:
    plan = plans.train(plans.flights(), "logistic_regression")
    before = len(_texts(plan))
    own = replace(plan, at="airline")
    texts = _texts(own)
    assert "at airline" in texts
    assert len(texts) < before
    assert "nothing leaves" not in texts


def test_names_are_escaped_and_short() -> None:
    plan = plans.train(plans.flights(), "logistic_regression")
    slots = tuple(replace(s, name="<b>&" + "x" * 99) for s in plan.ucq.slots)
    odd = replace(plan, ucq=replace(plan.ucq, slots=slots))
    assert any(text.startswith("<b>&xxx") and len(text) <= 32 for text in _texts(odd))


def test_html_has_it_and_text_does_not() -> None:
    plan = explain(plans.train(plans.flights(), "logistic_regression"))
    assert plan._repr_html_().count("<svg") == 1
    assert "<svg" not in str(plan)
    assert "<svg" not in str(plan.details)
