"""EXPLAIN in short: a screen for two tables, in plain words, with estimates that hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

import sqlfl
from sqlfl.federation.planning import explain
from sqlfl.messages import KINDS
from sqlfl.planner.explain.brief import HERE, estimated
from sqlfl.planner.explain.render import WIDTH
from tests.conftest import Open
from tests.federations import federation
from tests.planner import plans

BOUNDS = "feature_bounds = {'age': [0, 90], 'bmi': [0, 40], 'crp': [0, 9]}"
PRIVATE = f"PRIVACY (epsilon = 4, delta = 1e-6, label_epsilon = 2, {BOUNDS})"
QUERY = """(
  SELECT p.age, p.bmi, l.crp, {target} FROM clinic.patients p JOIN lab.tests l ON p.pid = l.pid
)"""
NUMBER, CLASS = "p.days AS y", "p.ill AS y"
MOMENTS = PRIVATE.replace("2,", "2, label_bounds = [0, 9],")
STATEMENTS = {
    "lbfgs": ("logistic_regression", "", CLASS),
    "lbfgs of numbers": ("linear_regression", "", NUMBER),
    "sgd": ("logistic_regression", "WITH (algorithm = 'sgd', epochs = 3)", CLASS),
    "admm": ("logistic_regression", "WITH (algorithm = 'admm')", CLASS),
    "sgd, private": (
        "logistic_regression",
        f"WITH (algorithm = 'sgd', epochs = 3) {PRIVATE}",
        CLASS,
    ),
    "moments": ("linear_regression", MOMENTS, NUMBER),
    "pbm": ("mlp_classifier", "WITH (algorithm = 'pbm', epochs = 2)", CLASS),
    "lasso": ("lasso", "WITH (algorithm = 'frank_wolfe', radius = 9, epochs = 20)", NUMBER),
    "towers": ("mlp_classifier", "WITH (algorithm = 'sgd', epochs = 2)", CLASS),
}
ROWS = 3_000


def statement(name: str) -> str:
    kind, clauses, target = STATEMENTS[name]
    query = QUERY.format(target=target)
    return f"TRAIN OR REPLACE MODEL m USING {kind} TARGET y {clauses} FROM {query}"


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    patients = database(
        f"CREATE TABLE patients AS SELECT i AS pid, i % 61 + 20 AS age, (i * 7) % 400 / 10 AS bmi, "
        f"i % 8 AS days, (i * 13) % 61 + i % 61 > 60 AS ill FROM range({ROWS}) r(i)"
    )
    tests = database(
        f"CREATE TABLE tests AS SELECT i AS pid, (i * 11) % 90 / 10 AS crp FROM range({ROWS}) r(i)"
    )
    with federation({"clinic": [patients], "lab": [tests]}) as made:
        yield made


TLS = {"clinic": "over TLS", "lab": "over TLS"}


@pytest.mark.parametrize("links", [dict.fromkeys(TLS, HERE), TLS], ids=["here", "remote"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_two_tables_take_40_lines(
    fed: sqlfl.Federation, name: str, links: Mapping[str, str]
) -> None:
    text = str(explain(fed.explain(statement(name)), links=links))
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= WIDTH
    assert ("process" in text) == (links is not TLS)
    assert ("over TLS" in text) == (links is TLS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_neither_messages_nor_formulas(fed: sqlfl.Federation, name: str) -> None:
    plan = fed.explain(statement(name))
    words = set(re.findall(r"\w+", str(plan)))
    kinds = {kind.rpartition(".")[2] for kind in KINDS}
    assert not words & {kind for kind in kinds if "_" in kind}
    assert "·" not in str(plan).replace("m · ", "")
    assert "d_c" not in str(plan)
    for item in plan.disclosures:
        assert item.kind in str(plan.details)


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_leaves_is_within_the_estimate(fed: sqlfl.Federation, name: str) -> None:
    text = statement(name)
    estimates = estimated(fed.explain(text))
    fed.sql(text)
    table = fed.audit().arrow().to_pylist()
    run = next(row["run"] for row in reversed(table) if row["kind"] == "labels")
    sent: Counter[str] = Counter()
    for row in table:
        if row["run"] == run and row["direction"] == "up":
            sent[row["party"]] += row["bytes"]
    assert estimates.bytes.keys() == sent.keys()
    for party, (low, high) in estimates.bytes.items():
        assert 0.5 * low <= sent[party] <= 1.2 * high, (party, low, sent[party], high)


def test_unknown_rows_give_no_estimate() -> None:
    plan = plans.train(plans.cards(), "linear_regression")
    assert estimated(plan).bytes.keys() == {"airline"}
    assert "How much leaves in" in str(explain(plan))
    assert "on rows that no catalog counts" in str(explain(plan))


def test_the_parties_of_a_federation_are_in_its_process(fed: sqlfl.Federation) -> None:
    assert fed.explain(statement("lbfgs")).links == {"clinic": HERE, "lab": HERE}


def test_keys_of_subqueries_are_written_as_in_the_query(fed: sqlfl.Federation) -> None:
    either = (
        "EXISTS (SELECT 1 FROM lab.tests l WHERE l.pid = p.pid) OR "
        "EXISTS (SELECT 1 FROM lab.tests m WHERE m.pid + 1 = p.days)"
    )
    text = str(fed.sql(f"EXPLAIN CHECK (SELECT p.age FROM clinic.patients p WHERE {either})"))
    lines = " ".join(text.split())
    assert "sqlfl_" not in lines
    assert "p joins l on pid;" in lines
    assert "p joins m on days = pid;" in lines
    assert f"Tests of several parties part the rows: {either}. The coordinator" in lines
