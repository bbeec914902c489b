"""EXPLAIN against golden texts.

Two whole ones, and of each section those plans in which it says something of its own.
"""

from __future__ import annotations

import ast
import contextlib
import html
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sqlfl
from sqlfl.contract.privacy_specification import Bounds
from sqlfl.federation.planning import explain
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import training_options
from sqlfl.planner.explain.document import ExplainedPlan, details
from sqlfl.planner.explain.render import WIDTH, Document, Section, TextTable, to_text
from sqlfl.planner.explain.sections import totals
from sqlfl.planner.federated.plan import FederatedPlan, WarmStart, training_plan
from sqlfl.planner.federated.sizes import Symbol
from tests import goldens
from tests.depth import SEED
from tests.open_databases import in_memory
from tests.planner import plans

GOLDEN = Path(__file__).parent.parent.parent / "fixtures" / "explain"
EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples"
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


def _neural(**options: object) -> FederatedPlan:
    sql = CARDS.replace("linear_regression", "mlp_regressor")
    return plans.train(plans.cards(), "mlp_regressor", options, sql)


NETWORK_OF_FLIGHTS = FLIGHTS.replace("logistic_regression", "mlp_classifier")
OUTER = FLIGHTS.replace("JOIN meteo", "LEFT JOIN meteo").replace("w.visib,", "w.visib, p.seats,")
OUTER = OUTER.replace(
    "\n  WHERE f.dep_time IS NOT NULL AND w.temp > 0",
    "\n  LEFT JOIN airline.planes p ON p.tail = coalesce(w.tail, 'none')"
    "\n  WHERE f.dep_time IS NOT NULL AND (w.temp IS NULL OR w.temp > 0)",
)


BOUNDS: dict[str, Bounds] = {
    "balance": (-1000.0, 1000.0), "trend": (-1.0, 1.0), "kind": ("debit", "credit"),
    "seats": (0.0, 500.0), "distance": (0.0, 5000.0), "wind_speed": (0.0, 60.0),
    "visib": (0.0, 10.0),
}  # fmt: skip


def _private(name: str, **asked: object) -> FederatedPlan:
    """Over flights, else over cards, with z = 2 unless `asked` says otherwise."""
    numbers = {"label_bounds": (0.0, 500.0), "label_mechanism": "laplace"}
    flights = "flights" in name
    own = {"label_classes": ("false", "true")} if flights else numbers
    asked = {"noise_multiplier": 2.0, "feature_bounds": BOUNDS, "statistics": "bounds"} | asked
    privacy = Privacy(**(own if "label_epsilon" in asked else {}) | asked)  # type: ignore[arg-type]
    ucq = plans.flights() if flights else plans.cards()
    ucq = plans.noised(ucq) if privacy.labels else ucq
    options = {"algorithm": "sgd", "batch_size": None, "learning_rate": None, "tolerance": 0.0}
    if "labels" in name:
        options = {}
    elif "admm" in name:
        options = {"algorithm": "admm", "union": "exact", "tolerance": 0.0}
    if "in secret" in name:
        options["union"] = "secure"
    kind = "logistic_regression" if flights else "linear_regression"
    sql = FLIGHTS if flights else CARDS
    return plans.train(
        ucq, kind, options, sql.replace("FROM (", "PRIVACY (...) FROM ("), privacy=privacy
    )


def _demo() -> FederatedPlan:
    """The statement of examples/demo.py, over a few of its rows."""
    path = EXAMPLES / "demo.py"
    constants = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Assign)]
    demo: dict[str, Any] = {"Path": Path, "__file__": path}
    exec(compile(ast.Module(constants, []), path, "exec"), demo)
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(sqlfl.Federation(progress=False))
        for name, rows in demo["TABLES"].items():
            party, table = name.split(".")
            clients = [
                stack.enter_context(in_memory()) for _ in range(3 if party == "airline" else 1)
            ]
            for client in clients:
                client.execute(f"CREATE TABLE {table} AS FROM ({rows}) LIMIT 100")
            fed.attach(party, clients)
        return fed.explain(demo["TRAIN"])


PLANS: dict[str, Callable[[], FederatedPlan]] = {
    "demo": _demo,
    "train_private_labels_of_flights": lambda: _private(
        "labels of flights",
        label_epsilon=2.0,
        noise_multiplier=None,
        statistics="none",
        feature_bounds={},
    ),
    "train_private_flights": lambda: _private(
        "flights",
        statistics="noised",
        predictions="gaussian",
        prediction_clip=1.0,
        feature_bounds={n: b for n, b in BOUNDS.items() if n != "kind"},
        max_fan_out=20,
    ),
    "train_private_sgd": lambda: _private("sgd", label_epsilon=4.0, clip=2.5),
    "train_private_admm": lambda: _private("admm", predictions="gaussian", prediction_clip=3.0),
    "train_outer": lambda: plans.train(plans.outer(), "logistic_regression", sql=OUTER),
    "train_lbfgs": lambda: plans.train(plans.flights(), "logistic_regression", sql=FLIGHTS),
    "train_lbfgs_union": _cards,
    "train_admm": lambda: _cards(algorithm="admm", union="exact"),
    "train_admm_consensus": lambda: _cards(algorithm="admm", union="consensus", inner_rounds=10),
    "train_secure": lambda: _cards(union="secure"),
    "train_private_secure": lambda: _private(
        "admm in secret", predictions="gaussian", prediction_clip=3.0
    ),
    "train_sgd": lambda: _cards(algorithm="sgd", batch_size=1000, learning_rate=0.1),
    "train_weighted": lambda: plans.train(
        plans.weighted(plans.flights()),
        "logistic_regression",
        {"validation_fraction": 0.2, "class_weight": "balanced"},
        FLIGHTS.replace("TARGET late", "TARGET late WEIGHT w WITH (validation_fraction = 0.2)"),
    ),
    "train_at": lambda: plans.train(
        plans.flights(),
        "logistic_regression",
        {"network": {"latency": 0.05, "bandwidth": 1e9}, "seed": 3},
        FLIGHTS,
        "airline",
    ),
    "train_mlp_sgd": lambda: _neural(**plans.HEAD, optimizer="momentum", momentum=0.9),
    "train_mlp_admm": lambda: _neural(**plans.LOCAL, hidden=(16, 8), network="us-uk"),
    "train_mlp_dropout": lambda: plans.train(
        plans.flights(), "mlp_classifier", {"dropout": 0.2}, NETWORK_OF_FLIGHTS, "meteo"
    ),
    "predict": lambda: plans.score("predict"),
    "predict_mlp_at": lambda: plans.score(
        "predict", "mlp_regressor", plans.NEURAL | plans.HEAD, "bank"
    ),
    "predict_into": plans.into,
    "evaluate": lambda: plans.score("evaluate"),
    "inference": lambda: plans.score("evaluate", look=Inference(cluster="c")),
    "importance": lambda: plans.score("evaluate", look=Importance(repeats=3)),
    "importance_seeded": lambda: plans.score("evaluate", look=Importance(seed=1)),
    "contributions": lambda: plans.score("predict", look=ContributionsOptions(features=True)),
    "skew": lambda: plans.score("predict", look=SkewOptions()),
    "evaluate_private": lambda: plans.evaluated(
        Privacy(label_epsilon=2.0, label_mechanism="laplace", label_bounds=(0.0, 500.0))
    ),
}


WHOLE = (
    "demo", "train_private_flights", "train_private_admm", "train_lbfgs_union", "train_secure",
    "train_outer", "train_at", "train_mlp_dropout", "train_private_labels_of_flights",
    "predict_into", "evaluate", "importance",
)  # fmt: skip
UNION, PRIVATE = "train_lbfgs_union", "train_private_admm"
ALGORITHMS = (
    UNION, "train_admm", "train_admm_consensus", "train_secure", "train_private_secure",
    "train_sgd", "train_mlp_sgd", "train_mlp_admm", "train_mlp_dropout", PRIVATE,
    "train_private_sgd", "train_private_flights",
)  # fmt: skip
LOOKS = ("inference", "importance", "contributions", "skew")
SCORED = ("predict", "predict_into", "evaluate", *LOOKS)
SECTIONS: dict[str, tuple[str, ...]] = {
    "What leaves each party, to the coordinator": (UNION, "train_mlp_dropout", *SCORED),
    "All that leaves, by messages": (
        UNION, PRIVATE, "train_admm_consensus", "train_weighted", "train_at", *SCORED,
    ),
    "All that the coordinator sends": (
        "train_mlp_dropout", "train_weighted", "predict_into", *LOOKS,
    ),
    "What protects it": (
        UNION, "inference", "contributions", "train_at", "train_private_labels_of_flights",
        "train_private_sgd",
        "evaluate_private",
    ),
    "What is not protected": tuple(PLANS),
    "Model": tuple(PLANS),
    "Slots": (UNION,),
    "Joins": (UNION, "train_outer"),
    "Fragments, each": (UNION, "train_outer"),
    "Mapping query": (UNION, "train_outer"),
    "Operators": (*LOOKS, *ALGORITHMS, "train_lbfgs", "predict_mlp_at", "predict_into"),
    "Exchanges, in order": (*ALGORITHMS, *SCORED),
    "What leaves the parties": (UNION, PRIVATE, "train_weighted"),
    "What the coordinator sends": (UNION, "predict_into"),
    "What stays at": ("train_at", "predict_mlp_at"),
    "Symbols": (UNION, "train_mlp_dropout"),
}  # fmt: skip
"""How the title of a section begins -> the plans of which it is held to a text."""


@cache
def made(name: str) -> ExplainedPlan:
    return explain(PLANS[name]())


def in_full(plan: FederatedPlan) -> Document:
    report = plan.report if isinstance(plan, ExplainedPlan) else explain(plan).report
    return details(plan, report)


def section(plan: FederatedPlan, title: str) -> str:
    found = next(s for s in in_full(plan).sections if s.title.startswith(title))
    return to_text(Document("", (found,)))


def sections(title: str) -> str:
    return "\n\n".join(f"# {name}\n{section(made(name), title)}" for name in SECTIONS[title])


def slug(title: str) -> str:
    return re.sub(r"\W+", "_", title.lower())


TEXTS: dict[str, Callable[[], str]] = {
    **{f"{name}.txt": partial(lambda name: str(made(name)), name) for name in WHOLE},
    **{f"sections/{slug(title)}.txt": partial(sections, title) for title in SECTIONS},
}
"""File -> what it holds."""


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    goldens.check(GOLDEN / name, f"{TEXTS[name]()}\n")


def test_the_demo_fits_a_screen_and_a_half() -> None:
    assert len(str(made("demo")).splitlines()) <= 60
    assert WIDTH <= 100


def test_there_is_no_other_golden() -> None:
    found = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.txt")}
    assert found == set(TEXTS)


def test_every_section_is_held_to_a_text() -> None:
    titles = {s.title for name in PLANS for s in in_full(made(name)).sections}
    report = {"What is promised", "What is released, to whom, and its protection",
              "What this rests on, and what it does not cover", "Statement"}  # fmt: skip
    assert {t for t in titles - report if not t.startswith(tuple(SECTIONS))} == set()


@pytest.mark.parametrize("name", PLANS)
def test_lines_fit_the_width_and_have_no_trailing_space(name: str) -> None:
    plan = made(name)
    lines = [*str(plan).splitlines(), *str(plan.details).splitlines()]
    code = plan.details.sections[0].parts[0].text  # type: ignore[union-attr]
    sql = {line.strip() for line in code.splitlines()}
    assert [
        line
        for line in lines
        if (len(line) > WIDTH and line.strip() not in sql) or line != line.rstrip()
    ] == []


@pytest.mark.parametrize("name", PLANS)
def test_html_has_the_same_words_as_the_text(name: str) -> None:
    plan = made(name)
    page = plan._repr_html_()
    assert "<script" not in page
    assert "http" not in page
    shown = html.unescape(re.sub(r"<[^>]*>", " ", page))
    words = set(re.findall(r"\w+", shown.lower()))
    wrapped = set(re.findall(r"\w+", f"{plan} {plan.details}".lower()))
    joined = "".join(sorted(words))
    assert {word for word in wrapped - words if word not in joined} == set()


@pytest.mark.parametrize("name", PLANS)
def test_the_totals_have_every_kind_of_message_and_what_is_in_it(name: str) -> None:
    plan = made(name)
    text = said(plan)
    whole = rows(plan) + text
    for item in plan.disclosures:
        assert item.kind in text
        for thing in item.what.split("; "):
            assert thing in whole, (item.kind, thing)


def rows(plan: FederatedPlan) -> str:
    """The cells of the tables, which text breaks over several lines."""
    sections = in_full(plan).sections
    tables = [part for s in sections for part in s.parts if isinstance(part, TextTable)]
    return " ".join(cell for table in tables for row in table.rows for cell in row)


@pytest.mark.parametrize("name", PLANS)
def test_totals_are_what_leaves_or_more(name: str) -> None:
    """With any numbers for the symbols; with one client of each party they are exact."""
    plan = made(name)
    random = np.random.default_rng(SEED)
    large = {"rounds": 20, "steps": 400}  # no fewer steps than epochs, nor exact than all
    bindings: dict[str, int] = {
        symbol.name: int(random.integers(1, 9)) + large.get(symbol.role, 0)
        for symbol in plan.symbols
    }
    up = [item for item in plan.disclosures if item.direction == "up"]
    symbols = {s for item in up for size in (item.bytes, item.times) for s in size.symbols}
    for total in totals(plan):
        of_party = dict[str, int]()
        for symbol in symbols:
            if symbol.client is None or symbol.client.party == total.party:
                general = general_name(plan, symbol)
                number = bindings[symbol.name]
                summed = symbol.client is not None
                of_party[general] = of_party.get(general, 0) * summed + number
        found = total.of_rows.evaluate(of_party) + total.others.evaluate(of_party)
        messages = total.messages.evaluate(of_party)
        sent = [
            (item.times.evaluate(bindings), item.bytes.evaluate(bindings), item.kind)
            for item in up
            if item.sender.split("/")[0] == total.party
        ]
        true = sum(t * size for t, size, kind in sent if kind not in ("tables", "columns"))
        assert found >= true > 0
        assert messages >= sum(times for times, _, _ in sent) > 0
        if alike(plan, total.party):
            assert found == true
            assert messages == sum(times for times, _, _ in sent)


def general_name(plan: FederatedPlan, symbol: Symbol) -> str:
    letter = symbol.name.partition("[")[0]
    return letter if symbol.slot is None else f"{letter}[{plan.ucq.slots[symbol.slot].name}]"


def alike(plan: FederatedPlan, party: str) -> bool:
    """All its clients are told the same of the same slots."""
    told = [
        tuple(replace(item, fragments=()) for item in plan.specifications[client])
        for client in plan.clients
        if client.party == party
    ]
    counts = {
        tuple(len(item.fragments) for item in plan.specifications[client])
        for client in plan.clients
        if client.party == party
    }
    return len(set(told)) == len(counts) == 1


def test_what_a_left_join_tells_the_coordinator_is_said() -> None:
    text = said(plans.train(plans.outer(), "logistic_regression"))
    for claim in (
        "which rows a LEFT JOIN finds no partner for",
        "which rows of f, w have NULL as a join key",
        "which rows of w fail the condition",
    ):
        assert claim in text
    assert "LEFT JOIN finds" not in said(plans.train(plans.flights(), "logistic_regression"))


def test_html_escapes_names_and_sql() -> None:
    plan = plans.train(plans.flights(), "logistic_regression", sql="TRAIN MODEL \"<b>\" & 'x'")
    page = explain(plan)._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "arr_delay &gt; 15" in page


def test_no_claim_of_privacy_that_the_plan_does_not_keep() -> None:
    text = said(_cards())
    for claim in ("labels are in clear", "join graph", "nothing here is differentially private"):
        assert claim in text
    assert "second moments" in text
    predict = said(plans.score("predict"))
    assert "identifiers are in clear" in predict
    assert "labels" not in predict


def said(plan: FederatedPlan) -> str:
    return " ".join(str(explain(plan).details).split())


def test_what_is_said_of_towers_is_true_of_towers() -> None:
    sgd, admm = said(_neural()), said(_neural(**plans.LOCAL))
    for text in (sgd, admm):
        assert "linear in the encoded columns: those of a slot with one column" not in text
        assert "not linear in the encoded columns, and yet exact" in text
        assert "parameters that the coordinator can draw itself" in text
        assert "nothing here is differentially private" in text
        assert "second moments" not in text
        assert "Xᵀ Y" not in text
    assert "partial gradients of all parameters reach the coordinator in clear" in sgd
    assert "the coordinator can follow the parameters" in sgd
    assert "local parameters reach the coordinator in clear" in admm
    assert "their parameters are the averages" in admm
    alone = said(plans.train(plans.flights(), "mlp_classifier"))
    assert "can follow the parameters" not in alone
    assert "They are d_c numbers a row" in alone
    assert "They are 8 numbers a row" in said(_neural(**plans.HEAD))


def test_a_warm_start_of_towers_does_not_begin_with_drawn_parameters() -> None:
    options = training_options("mlp_regressor", plans.OPTIONS | plans.NEURAL)
    warm = WarmStart("run", {0: 0, 2: 1})
    made = training_plan("m", "mlp_regressor", plans.cards(), options, "TRAIN MODEL m", warm=warm)
    assert "can draw itself" not in said(made)
    assert "can follow" not in said(made)
    assert "by the model that training starts from" in said(made)


def test_the_place_of_the_coordinator_is_said() -> None:
    free = said(plans.train(plans.flights(), "logistic_regression"))
    assert "coordinator at" not in free
    assert "labels are in clear at the coordinator" in free
    labels = said(plans.train(plans.flights(), "logistic_regression", at="airline"))
    assert "coordinator runs at airline: what airline sends it stays there" in labels
    assert "airline learns what is said here of the coordinator" in labels
    assert "can test guesses of the values behind the tags" in labels
    assert "airline can tell which of its own rows are joined with which rows" in labels
    assert "The labels of airline do not leave it." in labels
    assert "labels are in clear at the coordinator" not in labels
    assert "sums of label residuals for its rows, which may tell their labels" in labels
    other = said(plans.train(plans.flights(), "logistic_regression", at="meteo"))
    assert "labels are in clear at the coordinator" in other
    assert "do not leave it" not in other
    absent = said(plans.train(plans.flights(), "logistic_regression", at="bank"))
    assert "coordinator runs at bank, which has no table here" in absent
    assert "which of its own rows" not in absent
    plan = explain(plans.train(plans.flights(), "logistic_regression", at="bank"))
    assert "Nothing: no table of bank takes part." in str(plan.details)
    assert "WHAT STAYS AT BANK, WHERE THE COORDINATOR IS" in str(plan.details)
    assert "WHAT STAYS" not in str(made("train_lbfgs").details)


def test_sums_over_clients_of_the_coordinators_party_stay() -> None:
    assert "without secure aggregation" in said(_cards())
    at = said(plans.train(plans.cards(), "linear_regression", at="bank"))
    assert "without secure aggregation" not in at
    assert "weighted means and variances" not in at
    assert "without secure aggregation" in said(
        plans.train(plans.cards(), "linear_regression", at="airline")
    )


def test_who_has_the_secret_and_the_place_of_the_coordinator_is_said() -> None:
    assert "can take a client's." in said(_cards(union="secure"))
    secure = {"union": "secure"}
    at = said(plans.train(plans.cards(), "linear_regression", secure, at="airline"))
    assert "can take a client's: airline has both." in at
    drawn = {"algorithm": "pbm", "embedding": 4}
    at = said(plans.train(plans.flights(), "mlp_classifier", drawn, at="meteo"))
    assert "can take a client's: meteo has both." in at


def test_weights_that_stay_may_still_be_told_by_their_sums() -> None:
    made = plans.train(
        plans.weighted(plans.flights()),
        "logistic_regression",
        {"validation_fraction": 0.2},
        at="airline",
    )
    text = said(made)
    assert "are in clear at the coordinator" not in text
    assert "may tell the weights of other parties' rows, how many joined rows of each" in text


def test_where_all_tables_are_the_coordinators_partys_nothing_crosses() -> None:
    ucq = plans.flights()
    own = tuple(
        replace(s, fragments=tuple(replace(f, client=plans.AIRLINE) for f in s.fragments))
        for s in ucq.slots
    )
    made = plans.train(replace(ucq, slots=own), "logistic_regression", at="airline")
    assert made.disclosures == ()
    assert "Nothing leaves airline, where all tables and the coordinator are" in said(made)
    assert "Not protected" not in said(made)


def test_a_seed_is_said_to_repeat_the_numbers_of_rows() -> None:
    seeded = said(plans.train(plans.flights(), "logistic_regression", {"seed": 0}))
    assert "With a seed, rows have the same numbers in every run" in seeded
    assert "randomly numbered" not in seeded
    assert "random row ids" not in seeded
    free = said(plans.train(plans.flights(), "logistic_regression"))
    assert "With a seed" not in free
    assert "randomly numbered" in free


def test_the_formula_of_comm_seconds_is_said() -> None:
    def network(value: object) -> str:
        return said(plans.train(plans.flights(), "logistic_regression", {"network": value}))

    assert "border: 0.136 s + 8 · bytes / 0.42 Gbit/s" in network("us-uk")
    assert "border: 0.067 s + 8 · bytes / 1.15 Gbit/s" in network("us-us")
    assert "border: 0 s + 8 · bytes / 5 Mbit/s" in network({"latency": 0.0, "bandwidth": 5e6})
    assert "border: 1 s + 8 · bytes / 9600 bit/s" in network({"latency": 1.0, "bandwidth": 9600.0})
    assert "comm_seconds" not in network(None)


def test_two_plans_of_one_statement_print_alike() -> None:
    one, other = explain(_cards()), explain(_cards())
    assert str(one) == str(other)
    assert str(one.details) == str(other.details)
    assert one._repr_html_() == other._repr_html_()


def test_words_longer_than_a_line_are_broken() -> None:
    table = TextTable(("a", "b"), (("x" * 300, "y·" * 200),))
    lines = to_text(Document("t" * 200, (Section("s", (table,)),))).splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    assert sum(line.count("x") for line in lines) == 300
    assert sum(line.count("y") for line in lines) == 200
