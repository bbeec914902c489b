"""Statements at a coordinator elsewhere, as in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import sqlfl
from sqlfl.federation.statements_api import StatementsApi
from sqlfl.service.federation import RemoteFederation
from tests.conftest import Open
from tests.service.study import studied

PATIENTS = """CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, sin(i) AS bmi,
  'w' || i % 4 AS ward, (i * 7 % 3 > 0)::INT AS ill FROM range(400) AS r(i)"""
TESTS = "CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp, i % 7 AS day FROM range(400) AS r(i)"
QUERY = """SELECT p.age, p.bmi, p.ward, t.crp, t.day, p.ill
  FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"""
TRAIN = f"""TRAIN MODEL m USING logistic_regression TARGET ill
  WITH (algorithm = 'sgd', epochs = 5, tolerance = 0, seed = 3) FROM ({QUERY})"""


def ordered(table: pa.Table) -> pa.Table:
    """Rows come in the order of hashes, whose key is another one in each run."""
    return table.sort_by([(name, "ascending") for name in table.column_names])


def test_a_model_is_bit_equal_to_that_of_one_process(database: Open, tmp_path: Path) -> None:
    clinic, lab = database(PATIENTS, own=True), database(TESTS, own=True)
    with sqlfl.connect(progress=False) as here:
        here.attach("clinic", clinic)
        here.attach("lab", lab)
        here.sql(TRAIN)
        expected = here.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()
        own = here.model("m")
    with studied(tmp_path, {"clinic": clinic, "lab": lab}) as study, study.analyst() as fed:
        assert fed.parties == ("clinic", "lab")
        fed.sql(TRAIN)
        found = fed.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()
        model = fed.model("m")
    assert ordered(found).equals(ordered(expected))
    assert model.history.column("train_loss").equals(own.history.column("train_loss"))
    np.testing.assert_array_equal(model.intercept, own.intercept)


def test_it_has_the_methods_of_one_in_this_process() -> None:
    names = {name for name in vars(sqlfl.Federation) if not name.startswith("_")}
    names |= {name for name in vars(StatementsApi) if not name.startswith("_")}
    assert names - {"admit"} <= set(dir(RemoteFederation))
