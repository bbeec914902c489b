"""EXPLAIN against golden texts; `python -m tests.planner.test_explain` writes them anew."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sqlfl.planner.federated import FederatedPlan
from sqlfl.planner.render import WIDTH, Document, Section, Table, to_text
from tests.planner import plans

GOLDEN = Path(__file__).parent.parent / "fixtures" / "explain"
FLIGHTS = """\
TRAIN MODEL delay
  USING logistic_regression
  TARGET late
FROM (
  SELECT f.distance, f.carrier, w.wind_speed, w.visib, f.arr_delay > 15 AS late
  FROM airline.flights f
  JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  WHERE f.dep_time IS NOT NULL AND w.temp > 0
)"""
CARDS = "TRAIN MODEL m USING linear_regression TARGET paid FROM (SELECT ... UNION ALL SELECT ...)"


def _cards(**options: object) -> FederatedPlan:
    return plans.train(plans.cards(), "linear_regression", options, CARDS)


OUTER = FLIGHTS.replace("JOIN meteo", "LEFT JOIN meteo").replace("w.visib,", "w.visib, p.seats,")
OUTER = OUTER.replace(
    "\n  WHERE f.dep_time IS NOT NULL AND w.temp > 0",
    "\n  LEFT JOIN airline.planes p ON p.tail = coalesce(w.tail, 'none')"
    "\n  WHERE f.dep_time IS NOT NULL AND (w.temp IS NULL OR w.temp > 0)",
)


PLANS: dict[str, Callable[[], FederatedPlan]] = {
    "train_outer": lambda: plans.train(plans.outer(), "logistic_regression", sql=OUTER),
    "train_lbfgs": lambda: plans.train(plans.flights(), "logistic_regression", sql=FLIGHTS),
    "train_lbfgs_union": _cards,
    "train_admm": lambda: _cards(algorithm="admm", union="exact"),
    "train_admm_consensus": lambda: _cards(algorithm="admm", union="consensus", inner_rounds=10),
    "train_sgd": lambda: _cards(algorithm="sgd", batch_size=1000, learning_rate=0.1),
    "train_weighted": lambda: plans.train(
        plans.weighted(plans.flights()),
        "logistic_regression",
        {"validation_fraction": 0.2, "class_weight": "balanced"},
        FLIGHTS.replace("TARGET late", "TARGET late WEIGHT w WITH (validation_fraction = 0.2)"),
    ),
    "predict": lambda: plans.score("predict"),
    "predict_into": plans.into,
    "evaluate": lambda: plans.score("evaluate"),
}


@pytest.mark.parametrize("name", PLANS)
def test_golden(name: str) -> None:
    assert str(PLANS[name]()) + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLANS)
def test_lines_fit_the_width_and_have_no_trailing_space(name: str) -> None:
    lines = str(PLANS[name]()).splitlines()
    assert [line for line in lines if len(line) > WIDTH or line != line.rstrip()] == []


@pytest.mark.parametrize("name", PLANS)
def test_html_has_the_same_words_as_the_text(name: str) -> None:
    plan = PLANS[name]()
    page = plan._repr_html_()
    assert "<script" not in page
    assert "http" not in page
    shown = html.unescape(re.sub(r"<[^>]*>", " ", page))
    words = set(re.findall(r"\w+", shown.lower()))
    wrapped = set(re.findall(r"\w+", str(plan).lower()))
    joined = "".join(sorted(words))
    assert {word for word in wrapped - words if word not in joined} == set()


def test_what_a_left_join_tells_the_coordinator_is_said() -> None:
    text = " ".join(str(plans.train(plans.outer(), "logistic_regression")).split())
    for claim in (
        "which rows a LEFT JOIN finds no partner for",
        "which rows of f, w have NULL as a join key",
        "which rows of w fail the condition",
    ):
        assert claim in text
    assert "LEFT JOIN finds" not in str(plans.train(plans.flights(), "logistic_regression"))


def test_html_escapes_names_and_sql() -> None:
    plan = plans.train(plans.flights(), "logistic_regression", sql="TRAIN MODEL \"<b>\" & 'x'")
    page = plan._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "arr_delay &gt; 15" in page


def test_no_claim_of_privacy_that_the_plan_does_not_keep() -> None:
    text = " ".join(str(_cards()).split())
    for claim in ("labels are in clear", "join graph", "nothing here is differentially private"):
        assert claim in text
    assert "second moments" in text
    predict = " ".join(str(plans.score("predict")).split())
    assert "identifiers are in clear" in predict
    assert "labels" not in predict


def test_two_plans_of_one_statement_print_alike() -> None:
    assert str(_cards()) == str(_cards())
    assert _cards()._repr_html_() == _cards()._repr_html_()


def test_words_longer_than_a_line_are_broken() -> None:
    table = Table(("a", "b"), (("x" * 300, "y·" * 200),))
    lines = to_text(Document("t" * 200, (Section("s", (table,)),))).splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    assert sum(line.count("x") for line in lines) == 300
    assert sum(line.count("y") for line in lines) == 200


def write() -> None:
    for name, make in PLANS.items():
        (GOLDEN / f"{name}.txt").write_text(f"{make()}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
