"""Statements at a coordinator elsewhere, as in one process, and connections that are refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import ApprovalError, Error, PartyError, PlanError
from sqlfl.federation.statements_api import StatementsApi
from sqlfl.service import passes
from sqlfl.service.federation import RemoteFederation
from sqlfl.service.stream import hint
from tests.conftest import Open
from tests.governance.clinic import ruled
from tests.service.study import serving, settings, studied, written


def test_the_coordinators_name_is_asked_for(tmp_path: Path) -> None:
    given = "".join(f'{k} = "{v}"\n' for k, v in written(tmp_path, "alice").items())
    path = tmp_path / "own.toml"
    with serving(tmp_path, settings(tmp_path, {"clinic": 1})) as study:

        def refused(more: str, **other: str) -> str:
            path.write_text(given + more)
            with pytest.raises(Error) as caught:
                RemoteFederation(study.location, config=path, study="heart", **other)
            return str(caught.value)

        said = refused("")  # its certificate is of that host too, but has another name
        assert "the analyst's pass is for another coordinator" in said
        assert "it was taken for 127.0.0.1: `coordinator_name` in the settings" in said
        said = refused('coordinator_name = "elsewhere"')
        assert "cannot connect to " in said
        assert "it was taken for elsewhere: `coordinator_name`" in said
        own = 'coordinator_name = "coordinator.example"\n'
        assert "is of alice, and the configuration says bob" in refused(own + 'name = "bob"')
        assert "is of alice, and the configuration says bob" in refused(own, analyst="bob")
        path.write_text(own + given)
        RemoteFederation(study.location, config=path, study="heart").close()


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused", "nothing liste"),
        ("errors resolving a.b:1: [field:hostname lookup error: not found]", "is it spelt right"),
        ("SSL routines::certificate verify failed: self-signed", "certificates of one authority"),
        ("Failed to connect to remote host: No route to host", "a firewall"),
        ("Peer name a is not in peer certificate", "another name than the one in the settings"),
        ("it was closed", "is the coordinator there"),
    ],
)
def test_what_to_look_at(why: str, said: str) -> None:
    assert said in hint(why)


def test_a_clock_that_is_an_hour_off_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = written(tmp_path, "alice") | {"coordinator_name": "coordinator.example"}
    path = tmp_path / "own.toml"
    path.write_text("".join(f'{k} = "{v}"\n' for k, v in given.items()))
    own = passes.issue

    def later(*args: object) -> str:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        return own(*args, now=now)  # type: ignore[arg-type]

    with serving(tmp_path, settings(tmp_path, {"clinic": 1})) as study:
        with pytest.raises(
            Error, match=r"(?s)there is no study 'lung'.*hint: `study` in the settings"
        ):
            RemoteFederation(study.location, config=path, study="lung")
        monkeypatch.setattr("sqlfl.service.passes.issue", later)
        with pytest.raises(Error, match="clocks may differ by 5 minutes") as caught:
            RemoteFederation(study.location, config=path, study="heart")
    assert caught.value.hint == "is the clock of this machine right?"


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


def test_a_study_of_parties_elsewhere(database: Open, tmp_path: Path) -> None:
    clinic, lab = database(PATIENTS, own=True), database(TESTS, own=True)
    under = "PREDICT ON {} TO 'alice' UNDER r"
    rules = "approval = 'first_time'"
    ruled(clinic, rules, f"GRANT TRAIN (age), JOIN (pid), LABEL (ill), {under.format('patients')}")
    ruled(lab, rules, f"GRANT TRAIN (crp), JOIN (pid), {under.format('tests')}")
    query = "SELECT p.age, t.crp, p.ill FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
    train = f"TRAIN OR REPLACE MODEL m USING logistic_regression TARGET ill FROM ({query})"
    with studied(tmp_path, {"clinic": clinic, "lab": lab}, open=False) as study:
        with study.analyst() as fed:
            fed.sql(
                "CREATE STUDY s PURPOSE 'p' FOR TRAIN (age), JOIN (pid), LABEL (ill) ON "
                "clinic.patients AND TRAIN (crp), JOIN (pid) ON lab.tests "
                "WITH (runs = 2, until = '2100-01-01')"
            )
            for con in (clinic, lab):
                with sqlfl.owner(con) as owner:
                    owner.sql("APPROVE REQUEST 1")
            fed.sql("USE STUDY s; SHOW STUDIES")
            fed.sql(train)
            fed.sql(f"ROC OF MODEL m FROM ({query})")
            with pytest.raises(ApprovalError, match="the study allows 2 runs, and 2 have begun"):
                fed.sql(train)
        with study.analyst("carol") as fed:
            with pytest.raises(Error, match="there is no study s"):
                fed.sql("USE STUDY s")
            with pytest.raises(PlanError, match="no table patients"):
                fed.sql(train)


def test_a_join_lasts_at_parties_elsewhere(database: Open, tmp_path: Path) -> None:
    clinic, lab = database(PATIENTS, own=True), database(TESTS, own=True)
    over = TRAIN.replace(f"({QUERY})", "j").replace("TRAIN", "TRAIN OR REPLACE", 1)
    with studied(tmp_path, {"clinic": clinic, "lab": lab}) as study, study.analyst() as fed:
        fed.sql(TRAIN)
        without = fed.model("m").history.column("train_loss")
        relation = fed.query(QUERY).keep("j")
        sent = []
        for _ in range(2):
            before = len(fed.audit())
            fed.sql(over)
            kinds = fed.audit().arrow().slice(before).column("kind").to_pylist()
            sent.append(kinds.count("join_keys"))
            assert fed.model("m").history.column("train_loss").equals(without)
        assert sent == [2, 0]
        assert len(relation.metrics("m"))
        assert "were sent already" in str(fed.explain("METRICS OF MODEL m FROM j"))
        # another analyst has joins of her own
        with study.analyst("carol") as other, pytest.raises(PlanError, match="there is no join j"):
            other.sql("CHECK FROM j")
        # a party that is started anew keeps nothing
        for end in study.hosts["clinic"]._ends.values():
            end._joins.close_all()
            end._joins._gone.clear()
        with pytest.raises(PartyError, match="the party was started again"):
            fed.sql(over)
        (row,) = fed.sql("SHOW JOINS").arrow().to_pylist()
        assert row["changed"].startswith("lost: party clinic/0")
        fed.sql("DROP JOIN j")
        ends = [end for host in study.hosts.values() for end in host._ends.values()]
        assert not any(end._joins._held for end in ends)


def test_a_join_lasts_at_a_party_with_policies(database: Open, tmp_path: Path) -> None:
    clinic, lab = database(PATIENTS, own=True), database(TESTS, own=True)
    grant = """GRANT TRAIN (age, bmi, ward), JOIN (pid), LABEL (ill), PREDICT ON patients
      TO 'alice' UNDER r"""
    ruled(clinic, "join_time = '1 hour', min_difference = 3", grant)
    over = TRAIN.replace(f"({QUERY})", "j").replace("TRAIN", "TRAIN OR REPLACE", 1)
    with studied(tmp_path, {"clinic": clinic, "lab": lab}) as study, study.analyst() as fed:
        fed.sql(TRAIN)
        without = fed.model("m").history.column("train_loss")
        fed.sql(f"CREATE JOIN j AS ({QUERY})")
        for _ in range(2):
            fed.sql(over)
            assert fed.model("m").history.column("train_loss").equals(without)
        fed.sql("METRICS OF MODEL m FROM j")
        with sqlfl.owner(clinic) as owner:
            owner.sql("REVOKE ALL ON patients FROM 'alice'")
        with pytest.raises(Error):
            fed.sql(over)


def test_it_has_the_methods_of_one_in_this_process() -> None:
    names = {name for name in vars(sqlfl.Federation) if not name.startswith("_")}
    names |= {name for name in vars(StatementsApi) if not name.startswith("_")}
    assert names - {"admit"} <= set(dir(RemoteFederation))
