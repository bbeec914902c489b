"""KEY: what noise of labels follows from, and what is charged where rows change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import specifications_from_json, specifications_to_json
from sqlfl.messages import Labels
from sqlfl.messages.wire import decode
from sqlfl.party.party import PartyClient
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from tests.governance.clinic import TESTS, ruled
from tests.open_databases import in_memory

ROWS = 300
PATIENTS = f"""CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, i % 3 = 0 AS ill,
  0 AS seen FROM range({ROWS}) AS r(i)"""
ACCOUNT = "epsilon = 3.5, delta = 1e-6"
GRANT = "GRANT TRAIN (age), JOIN (pid), LABEL (ill){} ON patients TO '{}' UNDER r"
TRAIN = """TRAIN OR REPLACE MODEL m USING logistic_regression TARGET ill
  WITH (algorithm = 'sgd', epochs = 1) PRIVACY (label_epsilon = {})
  FROM (SELECT t.crp, p.ill FROM {}.patients p JOIN lab.tests t ON p.pid = t.pid)"""


@dataclass
class Study:
    """A clinic whose labels are kept, and what an analyst has got of them."""

    con: duckdb.DuckDBPyConnection
    fed: sqlfl.Federation
    transport: RecordingTransport

    def labels(self, epsilon: float = 1.0, party: str = "clinic", view: str = "patients") -> int:
        """How many are told to be ill. Rows have other numbers in each run."""
        self.transport.recorded.clear()
        self.fed.sql(TRAIN.format(epsilon, party).replace("patients", view))
        told = [decode(item.data) for item in self.transport.recorded]
        (found,) = [message for message in told if isinstance(message, Labels)]
        return int(found.codes.sum())

    @property
    def spent(self) -> float:
        with sqlfl.owner(self.con) as owner:
            return owner.sql("SHOW BUDGETS").arrow()["spent"].to_pylist()[0]

    @property
    def card(self) -> str:
        return " ".join(self.fed.model("m").privacy.short.split())


@contextmanager
def studied(path: Path, key: str = "", analyst: str = "acme") -> Iterator[Study]:
    with ExitStack() as stack:
        con = stack.enter_context(duckdb.connect(path / "clinic.duckdb"))
        if not con.sql("FROM duckdb_tables() WHERE table_name = 'patients'").fetchall():
            con.execute(PATIENTS)
            ruled(con, ACCOUNT, GRANT.format(key and f", KEY ({key})", analyst))
        made: list[RecordingTransport] = []

        def wrap(inner: Transport) -> Transport:
            made.append(RecordingTransport(inner))
            return made[0]

        fed = sqlfl.Federation(progress=False, analyst=analyst, wrap=wrap)
        stack.enter_context(fed)
        lab = stack.enter_context(in_memory())
        lab.execute(TESTS)
        fed.attach("clinic", con)
        fed.attach("lab", lab)
        yield Study(con, fed, made[0])


def test_labels_follow_from_the_key(tmp_path: Path) -> None:
    """A counter that changes daily draws nothing anew, and costs nothing."""
    with studied(tmp_path, "pid") as study:
        first = study.labels()
        assert "drawn again where its label changes" in study.card
        for _ in range(5):
            study.con.execute("UPDATE patients SET seen = seen + 1, age = age + 1")
            assert study.labels() == first
        assert study.spent == 1.0
        study.con.execute("ALTER TABLE patients ADD COLUMN note VARCHAR")
        study.con.execute("INSERT INTO patients (pid, age, ill) SELECT 1000 + i, 30, i = 1 FROM "
                          "range(5) r(i)")  # fmt: skip
        study.labels()
        study.con.execute("DELETE FROM patients WHERE pid < 3")
        study.labels()
        assert study.spent == 1.0


def test_a_label_that_changes_is_another_draw_of_the_row(tmp_path: Path) -> None:
    with studied(tmp_path, "pid") as study:
        study.labels()
        for row, spent in ((3, 2.0), (4, 2.0), (4, 2.0), (7, 2.0)):
            study.con.execute(f"UPDATE patients SET ill = NOT ill WHERE pid = {row}")
            study.labels()
            # no row has had more than its two labels
            assert study.spent == spent
        study.con.execute("DELETE FROM patients WHERE pid = 9")
        study.labels()
        study.con.execute("INSERT INTO patients VALUES (9, 1, false, 1)")
        study.labels()
        assert study.spent == 2.0


def test_rows_that_are_others_each_time_have_a_key_or_an_account(tmp_path: Path) -> None:
    """Else each run would draw all labels anew, and the majority of them would be the labels."""
    with studied(tmp_path) as study:
        study.con.execute("CREATE VIEW asked AS SELECT *, now() AS at FROM patients")
        keyed = GRANT.replace("patients", "asked").replace("ill){}", "ill), KEY (pid)")
        plain = keyed.replace(", KEY (pid)", "")
        ruled(study.con, ACCOUNT, plain.format("acme"))
        for spent in (1.0, 2.0):
            study.labels(view="asked")
            assert study.spent == spent
        ruled(study.con, "labels = 'noised'", "")
        said = r"labels = 'noised' and no KEY, and rows of main\.asked are others each time"
        with pytest.raises(PolicyError, match=said):
            study.labels(view="asked")
        ruled(study.con, "labels = 'noised'", keyed.format("acme"))
        assert len({study.labels(view="asked") for _ in range(4)}) == 1


def test_without_a_key_a_table_that_changes_is_charged_anew(tmp_path: Path) -> None:
    with studied(tmp_path) as study:
        study.labels()
        study.labels()
        assert study.spent == 1.0
        assert "drawn again where anything in its row changes" in study.card
        report = " ".join(str(study.fed.model("m").privacy).split())
        assert "follows from the whole row, as no key is declared" in report
        for day in (2, 3):
            study.con.execute("UPDATE patients SET seen = seen + 1")
            study.labels()
            assert study.spent == day
        study.con.execute("UPDATE patients SET seen = seen - 1")  # as it was on the second day
        study.labels()
        assert study.spent == 3.0
        study.con.execute("INSERT INTO patients VALUES (1001, 1, false, 0)")
        with pytest.raises(PolicyError, match=r"epsilon = 3\.5 of main\.patients .* would pass it"):
            study.labels()
        assert study.spent == 3.0
        states = study.con.sql("SELECT DISTINCT state FROM sqlfl.ledger").fetchall()
        assert states == [("spent",)]
    with studied(tmp_path) as again:  # another session, of the same draws
        again.con.execute("DELETE FROM patients WHERE pid = 1001")
        again.labels()
        assert again.spent == 3.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("INSERT INTO patients VALUES (7, 1, false, 0)", "is the same in several rows"),
        ("INSERT INTO patients VALUES (NULL, 1, false, 0)", "is NULL in a row"),
    ],
)
def test_a_key_identifies_one_row(tmp_path: Path, change: str, said: str) -> None:
    with studied(tmp_path, "pid") as study:
        study.con.execute(change)
        with pytest.raises(PolicyError, match=f"the KEY of main.patients.*{said}") as caught:
            study.labels()
        assert "pid" not in str(caught.value)
        assert study.con.sql("FROM sqlfl.ledger").fetchall() == []
        # without noise nothing follows from it
        with sqlfl.owner(study.con) as owner:
            owner.sql("CREATE OR REPLACE TRAINING POLICY r")
        study.fed.sql(TRAIN.format(1, "clinic").replace("PRIVACY (label_epsilon = 1)", ""))


def test_another_key_is_another_draw(tmp_path: Path) -> None:
    with studied(tmp_path, "pid") as study:
        study.labels()
        with sqlfl.owner(study.con) as owner:
            with pytest.raises(sqlfl.Error, match=r"main.patients has KEY \(pid\) by its grant to"):
                owner.sql("GRANT KEY (seen, pid) ON patients TO 'other' UNDER r")
            owner.sql("REVOKE KEY ON patients FROM 'acme'")
            study.labels()
            assert study.spent == 2.0
            owner.sql("GRANT KEY (seen, pid) ON patients TO 'other' UNDER r")
            owner.sql("GRANT KEY (pid, seen) ON patients TO 'third' UNDER r")  # the same
            roles = owner.sql("SHOW GRANTS").arrow()["roles"].to_pylist()
            assert roles[1:] == ["KEY (seen, pid)", "KEY (pid, seen)"]
        study.labels()  # it is the table's, whoever's grant says it
        assert study.spent == 3.0
        with pytest.raises(sqlfl.Error, match="clinic has no table patients"):
            _of_another(study)


def _of_another(study: Study) -> None:
    """KEY lets nobody do anything."""
    with sqlfl.connect(analyst="other", progress=False) as fed, in_memory() as lab:
        lab.execute(TESTS)
        fed.attach("clinic", study.con)
        fed.attach("lab", lab)
        fed.sql(TRAIN.format(1, "clinic"))


def test_a_database_that_is_attached_twice_draws_twice(tmp_path: Path) -> None:
    with studied(tmp_path, "pid") as study:
        study.labels()
        study.fed.attach("again", study.con)
        study.labels(party="again")
        assert study.spent == 2.0


def test_a_coordinator_does_not_say_what_labels_are_drawn_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PartyClient._answer

    def lying(self: PartyClient, request: ms.Message) -> ms.Message:
        if isinstance(request, ms.Propose | ms.Prepare):
            items = specifications_from_json(request.specification)
            told = tuple(
                replace(item, draw_columns=(("age",),) * len(item.fragments)) for item in items
            )
            request = replace(request, specification=specifications_to_json(told))
        return honest(self, request)

    with studied(tmp_path, "pid") as study:
        monkeypatch.setattr(PartyClient, "_answer", lying)
        with pytest.raises(PolicyError, match="says what a party finds out itself"):
            study.labels()
