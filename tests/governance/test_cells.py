"""Cells of rows that `min_cell` looks at, and joined rows without a partner in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.party import limits
from sqlfl.udfs.encoding.cells import (
    LEANING,
    OTHERWISE,
    UNMATCHED,
    VALUE,
    RowCounts,
    rare_feature,
)
from tests.governance.clinic import PATIENTS, TESTS, ruled
from tests.open_databases import in_memory

Parties = tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]
VISITS = """CREATE TABLE visits AS SELECT i AS id, i % 300 AS k, i % 17 AS w, i * 7 % 23 > 11 AS y,
  sin(i) AS z FROM range(3000) AS r(i)"""
PEOPLE = """CREATE TABLE people AS SELECT i AS k, i % 9 AS num, i % 2 = 0 AS flag,
  'c' || i % 3 AS cat,
  cos(i) AS level, CASE WHEN i >= {gaps} THEN i % 7 END AS gap FROM range({size}) AS r(i)"""
MORE = "CREATE TABLE more AS SELECT i AS k, i % 5 AS other FROM range(200) AS r(i)"
TRAIN = "TRAIN MODEL m USING logistic_regression TARGET y FROM (SELECT v.w, {}, v.y FROM {})"
LEFT = "shop.visits v LEFT JOIN bank.people p ON v.k = p.k"
DEEP = """TRAIN MODEL m USING mlp_classifier TARGET y WITH (epochs = 1, seed = 1)
  FROM (SELECT v.w, p.cat, v.y FROM shop.often v JOIN bank.people p ON v.k = p.k)"""


@pytest.fixture
def parties() -> Iterator[Parties]:
    with in_memory() as shop, in_memory() as bank:
        shop.execute(VISITS)
        shop.execute("CREATE TABLE often AS SELECT v.* FROM visits v, range(6)")
        yield shop, bank


def said(parties: Parties, text: str, rules: str = "", size: int = 200, gaps: int = 0) -> str:
    """The refusal; empty where there is none."""
    shop, bank = parties
    bank.execute(PEOPLE.format(size=size, gaps=gaps))
    bank.execute(MORE)
    with sqlfl.owner(bank) as owner:
        owner.sql(f"CREATE TRAINING POLICY u {f'WITH ({rules})' * bool(rules)}")
        for table in ("people", "more"):
            every = "TRAIN (*), LABEL (k), JOIN (k), FILTER (*), PREDICT"
            owner.sql(f"GRANT {every} ON {table} TO 'acme' UNDER u")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("shop", shop)
        fed.attach("bank", bank)
        try:
            for statement in text.split(";"):
                fed.sql(statement)
        except PolicyError as error:
            return error.message
    return ""


@pytest.mark.parametrize(
    ("column", "source"),
    [
        ("p.num", LEFT),
        ("p.cat, p.flag, p.k IS NOT NULL AS known", LEFT),
        ("coalesce(p.flag, false) AS flag", LEFT),
        ("p.num", LEFT.replace("ON v.k = p.k", "ON v.k = p.k AND p.num < 5")),
        ("p.num", "bank.people p RIGHT JOIN shop.visits v USING (k)"),
        ("p.num, q.other", f"{LEFT} LEFT JOIN bank.more q ON v.k = q.k"),
        ("p.num", "shop.visits v LEFT JOIN (SELECT DISTINCT k, num FROM bank.people) p USING (k)"),
        (
            "p.num + q.other AS both, p.flag",
            "shop.visits v LEFT JOIN (bank.people p JOIN bank.more q ON p.k = q.k) ON v.k = p.k",
        ),
    ],
)
def test_joined_rows_without_a_partner_are_as_many_as_they_are(
    parties: Parties, column: str, source: str
) -> None:
    assert said(parties, TRAIN.format(column, source)) == ""


def test_models_are_used_where_rows_find_no_partner(parties: Parties) -> None:
    query = f"(SELECT v.w, p.num, v.y FROM {LEFT})"
    uses = ("EVALUATE MODEL m", "METRICS OF MODEL m", "CHECK", "IMPORTANCE OF MODEL m")
    text = [TRAIN.format("p.num", LEFT), *(f"{use} FROM {query}" for use in uses)]
    text.append(f"PREDICT MODEL m FROM {query.replace(', v.y', '')}")
    assert said(parties, ";".join(text)) == ""


def test_labels_that_say_whether_there_is_a_partner(parties: Parties) -> None:
    text = TRAIN.replace("TARGET y", "TARGET known").replace("v.y", "p.k IS NOT NULL AS known")
    assert said(parties, text.format("v.z", LEFT)) == ""


def test_few_of_these_labels_do_not_leave(parties: Parties) -> None:
    text = TRAIN.replace("TARGET y", "TARGET known").replace("v.y", "p.k IS NOT NULL AS known")
    refused = said(parties, text.format("v.z", LEFT), "min_cell = 11", size=299)
    assert refused.endswith(f"min_cell = 11, of classes of the target: {UNMATCHED}")


@pytest.mark.parametrize("column", ["p.num", "p.cat", "p.k IS NULL AS gone"])
def test_few_joined_rows_without_a_partner_are_a_small_cell(parties: Parties, column: str) -> None:
    """299 of 300 people are there: 10 joined rows find none."""
    name = column.split(" AS ")[-1].removeprefix("p.")
    text = TRAIN.format(column, LEFT)
    assert said(parties, text, "min_cell = 11", size=299).endswith(
        f"min_cell = 11, of values of features: of {name}, {UNMATCHED}"
    )


def test_as_many_joined_rows_without_a_partner_are_none(parties: Parties) -> None:
    assert said(parties, TRAIN.format("p.num", LEFT), "min_cell = 10", size=299) == ""


def test_rows_of_the_table_are_not_hidden_by_those_without_a_partner(parties: Parties) -> None:
    """The coordinator knows which joined rows found no partner, and can set them apart."""
    text = TRAIN.format("p.gap", LEFT)
    assert said(parties, text, "min_cell = 3", gaps=2).endswith(f"of gap, {VALUE}")


def test_few_rows_with_a_value_are_a_small_cell(parties: Parties) -> None:
    """They are the rarer level of the indicator of missing values."""
    text = TRAIN.format("p.gap", LEFT)
    assert said(parties, text, "min_cell = 3", gaps=198).endswith(f"of gap, {VALUE}")


def test_a_join_within_the_party_sets_no_row_apart(parties: Parties) -> None:
    alone = "bank.people a LEFT JOIN bank.people b ON a.k = b.k AND b.k = 7"
    source = f"shop.visits v JOIN (SELECT a.k, b.num FROM {alone}) p ON v.k = p.k"
    refused = said(parties, TRAIN.format("p.num", source), "min_cell = 3")
    assert f"of num, {VALUE}" in refused


def test_a_third_value_of_rows_without_a_partner_hides_no_cell(parties: Parties) -> None:
    source = "CASE WHEN p.k IS NULL THEN -1.0 WHEN p.k < 2 THEN 1.0 ELSE 0.0 END AS few"
    assert said(parties, TRAIN.format(source, LEFT)).endswith(f"of few, {VALUE}")


def test_equal_rows_that_are_merged_stay_as_many(parties: Parties) -> None:
    assert said(parties, DEEP) == ""


def test_cells_are_counted_by_rows_of_the_table() -> None:
    somebodys = np.array([True, True, True, False])
    counted = RowCounts.of(somebodys, np.array([9, 9, 9, 5]))
    assert counted.rare(np.array([0, 0, 0, 1]), 3) is None
    assert counted.rare(np.array([0, 0, 0, 1]), 5) == VALUE
    assert counted.rare(np.array([-1, -1, -1, 1]), 6) == UNMATCHED
    assert counted.rare(np.array([0, 0, 1, 1]), 2) == VALUE
    merged = counted.merged(np.array([0, 0, 1, 1]))
    assert merged.own.tolist() == [2, 1]
    assert merged.unmatched.tolist() == [0, 5]


@pytest.mark.parametrize("rules", ["epsilon = 4", "predictions = 'noised'"])
def test_noise_is_not_used_up_by_the_row_without_a_partner(parties: Parties, rules: str) -> None:
    """The row takes part in more batches than any row of the table does."""
    options = """WITH (algorithm = 'sgd', epochs = 5, batch_size = 100) PRIVACY (epsilon = 2,
      delta = 1e-6, predictions = 'gaussian', feature_bounds = {'w': [0, 16], 'num': [0, 8]})"""
    text = TRAIN.replace("TARGET y FROM", "TARGET y {} FROM").format(options, "p.num", LEFT)
    assert said(parties, text, f"{rules}, delta = 1e-6", size=20) == ""


# -- means of computed features --------------------------------------------------------------------

ONE_ROW = "CASE WHEN p.bmi > 0.9997165 THEN p.age ELSE 0 END"
"""0 but for the patient 33, whose age its mean tells."""
COMPUTED = """{} FROM (SELECT {} AS f, p.bmi, t.crp, p.days
  FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid)"""
LINEAR = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET days"


@contextmanager
def clinics(number: int) -> Iterator[sqlfl.Federation]:
    """A federation whose clinic has so many databases, each with min_cell = 10."""
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        lab, *parts = (stack.enter_context(closing(duckdb.connect())) for _ in range(number + 1))
        lab.execute(TESTS)
        for place, part in enumerate(parts):
            part.execute(PATIENTS)
            part.execute(f"DELETE FROM patients WHERE pid % {number} <> {place}")
            ruled(part, "min_cell = 10")
        fed.attach("clinic", parts)
        fed.attach("lab", lab)
        yield fed


def refused(fed: sqlfl.Federation, text: str) -> set[str]:
    """Kinds of message that the client with the patient has sent when it refuses the statement."""
    with pytest.raises(PolicyError, match="min_cell = 10, of values of features: of f") as caught:
        fed.sql(COMPUTED.format(text, ONE_ROW))
    client = str(caught.value).split()[1].rstrip(":")
    rows = fed.audit().arrow().to_pylist()
    (run,) = {row["run"] for row in rows if row["kind"] == "failure"}
    return {
        r["kind"] for r in rows if (r["run"], r["client"], r["direction"]) == (run, client, "up")
    }


def test_skew_of_a_computed_feature_is_of_no_single_row() -> None:
    with clinics(1) as fed:
        fed.sql(COMPUTED.format(LINEAR, "2 * p.age"))
        assert len(fed.sql(COMPUTED.format("SKEW OF MODEL m", "2 * p.age")).arrow()) == 3
        assert "skew" not in refused(fed, "SKEW OF MODEL m")


@pytest.mark.parametrize("transform", ["", "TRANSFORM (impute(f, 'mean'))", "TRANSFORM (auto)"])
def test_statistics_of_a_computed_feature_wait_for_the_look_at_cells(transform: str) -> None:
    with clinics(2) as fed:
        fed.sql(COMPUTED.format(f"{LINEAR} {transform}", "2 * p.age"))
        assert not refused(fed, f"{LINEAR} {transform}") & {"ranges", "statistics"}


def parted(*values: str) -> str:
    """The patients in three parts by tests of bmi and age, each with a value of its own."""
    tests = ("bmi > {0}", "bmi <= {0} AND age > 40", "bmi <= {0} AND age <= 40")
    parts = (
        f"SELECT pid, bmi, days, {value} AS f FROM clinic.patients WHERE {test}"
        for value, test in zip(values, tests, strict=True)
    )
    return f"({' UNION ALL '.join(parts)}) p"


CLINIC = "clinic.patients p"
INNER = "FROM clinic.patients q WHERE q.pid = p.pid AND q.bmi > {0}"
FOLLOWING = {
    "EXISTS": (f"EXISTS (SELECT 1 {INNER})", CLINIC),
    "a count": (f"(SELECT count(*) {INNER})", CLINIC),
    "a constant": ("p.f", parted("9", "1", "0")),
    "a constant or a column": ("p.f", parted("1000", "bmi", "bmi")),
}
"""What a feature follows from, though not from one column's values -> it, and its source."""


@pytest.mark.parametrize("statement", [LINEAR, "CHECK TARGET days WITH (min_cell = 1)"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_feature_that_follows_from_rows_is_computed(name: str, statement: str) -> None:
    value, source = FOLLOWING[name]
    text = f"""{statement} FROM (SELECT {value} AS f, t.crp, p.days
      FROM {source} JOIN lab.tests t ON p.pid = t.pid)"""
    with clinics(1) as fed:
        with pytest.raises(PolicyError, match="min_cell = 10, of values of features: of f"):
            fed.sql(text.format(0.9997165))
        if name in ("EXISTS", "a constant"):
            fed.sql(text.format(0.5))


OF_NINE = ("p.bmi > {0}", "p.bmi > {1}")
"""Tests of many patients each, which differ for fewer than ten."""
TWO = {
    "truths": "{0} AS f, {1} AS g",
    "texts": "CASE WHEN {0} THEN 'a' ELSE 'b' END AS f, CASE WHEN {1} THEN 'a' ELSE 'b' END AS g",
    "numbers": "CASE WHEN {0} THEN p.age END AS f, CASE WHEN {1} THEN p.age END AS g",
    "a sum of both": "{0} AS f, {1} AS g, CAST({0} AS INTEGER) + CAST({1} AS INTEGER) AS h",
    "one row in both": "p.age + 1e6 * CAST({0} AS INTEGER) - 1e6 * CAST({1} AS INTEGER) AS f, "
    "p.bmi + 2e6 * CAST({0} AS INTEGER) - 2e6 * CAST({1} AS INTEGER) AS g",
}
"""Features, none of which alone tells of fewer than ten patients; but for the last."""


@pytest.mark.parametrize("statement", [LINEAR, "CHECK TARGET days WITH (min_cell = 1)"])
@pytest.mark.parametrize("name", TWO)
def test_features_that_differ_for_few_rows(name: str, statement: str) -> None:
    def text(first: float, second: float) -> str:
        tests = (test.format(first, second) for test in OF_NINE)
        return f"""{statement} FROM (SELECT {TWO[name].format(*tests)}, t.crp, p.days
          FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid)"""

    with clinics(1) as fed:
        with pytest.raises(
            PolicyError, match=r"min_cell = 10, of values of features: of [fgh], it"
        ):
            fed.sql(text(0.5, 0.52))  # two patients are in between
        if name != "one row in both":
            fed.sql(text(0.5, 0.7))
            fed.sql(text(0.5, 0.5))


@pytest.mark.parametrize("statement", ["TRAIN", "TUNE"])
def test_cells_are_looked_at_once(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """They are asked for where equal rows are merged, and each time that training starts."""
    looks = []

    def looked(*given: Any) -> tuple[str, str] | None:
        looks.append(given)
        return rare_feature(*given)

    monkeypatch.setattr(limits, "rare_feature", looked)
    text = TRAIN.format("p.level * p.num AS level", LEFT.replace("LEFT ", ""))
    if statement == "TUNE":
        options = "TARGET y WITH (folds = 3, l2 = [0.1, 1])"
        text = text.replace("TRAIN", "TUNE").replace("TARGET y", options)
    assert said(parties, text) == ""
    assert len(looks) == 1


AMOUNTS = """CREATE TABLE amounts AS SELECT i AS k, i // 12 AS age, i % 7 AS visits,
  CASE WHEN i < 3 THEN 99 ELSE i % 9 END AS rare FROM range(600) AS r(i)
  UNION ALL SELECT 600 + i, 50, 0, 0 FROM range(4) AS r(i)"""


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("a.age * 2 AS age2", ""),  # 51 values, one of four rows
        ("CASE WHEN a.visits < 4 THEN a.age ELSE 0 END AS young", ""),
        ("a.rare * 2 AS rare2", LEANING),
        ("least(a.rare, 8) AS rare2", ""),
        ("CASE WHEN a.age > 49 THEN 9 WHEN a.age > 20 THEN 1 ELSE 0 END AS third", LEANING),
        ("a.age > 49 AS old", VALUE),
        ("'a' || a.rare AS rare2", VALUE),
    ],
)
def test_rare_numbers_are_no_cells_where_there_are_many(
    parties: Parties, column: str, why: str
) -> None:
    shop, bank = parties
    bank.execute(AMOUNTS)
    ruled(bank, "min_cell = 5", "GRANT TRAIN (*), JOIN (k) ON amounts TO 'acme' UNDER r")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("shop", shop)
        fed.attach("bank", bank)
        text = TRAIN.format(column, "shop.visits v JOIN bank.amounts a ON v.id = a.k")
        if not why:
            fed.sql(text)
            return
        with pytest.raises(PolicyError) as refused:
            fed.sql(text)
    name = column.split(" AS ")[-1]
    assert refused.value.message.endswith(f"min_cell = 5, of values of features: of {name}, {why}")
    assert refused.value.hint == OTHERWISE[why]
