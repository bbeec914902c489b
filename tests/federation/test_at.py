"""The coordinator at a party: what crosses a border, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import sqlfl
from tests import lasting
from tests.conftest import Open

QUERY = (
    "SELECT p.id, p.age, p.ill, l.value FROM clinic.patients p JOIN lab.results l USING (id) "
    "WHERE p.age > 3"
)
TRAIN = (
    "TRAIN MODEL m USING logistic_regression TARGET ill WITH (epochs = 4) "
    f"FROM (SELECT age, ill, value FROM ({QUERY}))"
)
EVALUATE = f"EVALUATE MODEL m FROM (SELECT age, ill, value FROM ({QUERY}))"
PREDICT = (
    "PREDICT MODEL m ID (p.id) FROM (SELECT p.age, l.value FROM clinic.patients p "
    "JOIN lab.results l USING (id))"
)

Federations = Callable[[str | None], sqlfl.Federation]


@pytest.fixture
def federations(database: Open) -> Federations:
    """A federation of a clinic with the labels and a lab of two clients, by its `at`."""
    clinic = database(
        "CREATE TABLE patients AS SELECT i AS id, i % 41 AS age, (i * 7) % 5 > 2 AS ill "
        "FROM range(200) r(i)"
    )
    lab = [
        database(
            "CREATE TABLE results AS SELECT i AS id, (i * 3) % 7 + (i * 7) % 5 / 3.0 AS value "
            f"FROM range(180) r(i) WHERE i % 2 = {part}"
        )
        for part in (0, 1)
    ]

    def made(at: str | None) -> sqlfl.Federation:
        fed = sqlfl.Federation(progress=False, at=at)
        fed.attach("clinic", clinic)
        fed.attach("lab", lab)
        return fed

    return made


def records(fed: sqlfl.Federation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fed.audit().arrow().to_pylist()
    return found


def sent(fed: sqlfl.Federation, direction: str) -> int:
    """Bytes of model m's run that crossed a border before its blocks were saved."""
    found = [row for row in records(fed) if row["run"] == fed.model("m").run]
    end = next(number for number, row in enumerate(found) if row["kind"] == "save")
    return sum(r["bytes"] for r in found[:end] if r["crosses"] and r["direction"] == direction)


@pytest.mark.parametrize("at", ["clinic", "CLINIC", "lab", None])
def test_only_what_leaves_the_party_crosses(federations: Federations, at: str | None) -> None:
    with federations(at) as fed:
        fed.sql(TRAIN)
        fed.sql(EVALUATE)
        fed.sql(PREDICT)
        assert fed.audit().columns[-1] == "crosses"
        home = "" if at is None else at.lower()
        for row in records(fed):
            assert row["crosses"] == (row["party"] != home)
        assert {row["party"] for row in records(fed)} == {"clinic", "lab"}
        cost = fed.model("m").cost
        assert cost.bytes_up == sent(fed, "up") > 0
        assert cost.bytes_down == sent(fed, "down") > 0
        labels = [row["crosses"] for row in records(fed) if row["kind"] == "labels"]
        assert labels == [home != "clinic"] * 2


def test_the_model_is_the_same(federations: Federations) -> None:
    with federations(None) as apart, federations("clinic") as near:
        for fed in (apart, near):
            fed.sql(TRAIN.replace("epochs = 4", "epochs = 4, seed = 1"))  # as long in every run
        one, other = apart.model("m"), near.model("m")
        for name in ("epoch", "rounds"):
            assert one.history.column(name) == other.history.column(name)
        losses = [m.history.column("train_loss").to_numpy() for m in (one, other)]
        np.testing.assert_allclose(*losses, rtol=1e-6)
        assert one.cost.exchanges == other.cost.exchanges
        # what stays is missing in the sums, and nothing else
        for direction, totals in (
            ("up", (one.cost.bytes_up, other.cost.bytes_up)),
            ("down", (one.cost.bytes_down, other.cost.bytes_down)),
        ):
            found = [row for row in records(near) if row["run"] == other.run]
            end = next(number for number, row in enumerate(found) if row["kind"] == "save")
            stays = [r["bytes"] for r in found[:end] if r["direction"] == direction]
            assert sum(stays) == totals[0] > totals[1]


def test_where_all_is_at_home_nothing_crosses(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT i AS x, i * 2.0 AS y FROM range(9) r(i)")
    with sqlfl.Federation(progress=False, at="a") as fed:
        fed.attach("a", con)
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y WITH (network = 'us-uk') "
            "FROM (SELECT x, y FROM a.t)"
        )
        cost = fed.model("m").cost
        assert (cost.bytes_up, cost.bytes_down, cost.comm_seconds) == (0, 0, 0.0)
        assert cost.exchanges > 3
        assert not any(row["crosses"] for row in records(fed))


# -- what is said of it ---------------------------------------------------------------------------


def test_the_text_on_privacy_tells_who_saw_labels(federations: Federations) -> None:
    texts = {}
    for at in (None, "Clinic", "lab"):
        with federations(at) as fed:
            fed.sql(TRAIN)
            text = str(fed.model("m").privacy)
            assert dict(fed.sql("DESCRIBE MODEL m").fetchall())["privacy"] == text
            texts[at] = " ".join(text.split())
    assert texts[None].startswith(
        "No noise is added: nothing here is differentially private. The coordinator sees the "
        "labels in clear, keyed hashes of the join keys, the join graph, and exact predictions and "
        "gradients of each block. It also "
    )
    of_each = "means, variances and counts of categories of each of a table's databases"
    assert of_each in texts[None]  # the lab has two
    assert "second moments of each of a table's databases" in texts["Clinic"]
    assert "also sees" not in texts["lab"]  # these stay with it
    assert "The labels are sent to nobody: the coordinator is at clinic." in texts["Clinic"]
    assert "labels in clear" not in texts["Clinic"]
    assert "may tell some" in texts["Clinic"]  # gradients are made of labels
    assert "at lab, which sees the labels of clinic in clear, keyed hashes" in texts["lab"]


def test_labels_of_two_parties(database: Open) -> None:
    """A union: the coordinator's own labels stay, those of the other come to it."""
    with sqlfl.Federation(progress=False, at="a") as fed:
        for name in ("a", "b"):
            fed.attach(name, database("CREATE TABLE t AS SELECT i AS x, i AS y FROM range(9) r(i)"))
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y "
            "FROM (SELECT x, y FROM a.t UNION ALL SELECT x, y FROM b.t)"
        )
        assert "at a, which sees the labels of b in clear" in " ".join(
            str(fed.model("m").privacy).split()
        )
        labels = [(r["party"], r["crosses"]) for r in records(fed) if r["kind"] == "labels"]
        assert labels == [("a", False), ("b", True)]


def test_the_federation_and_its_plans_say_where_the_coordinator_is(
    federations: Federations, tmp_path: Path
) -> None:
    with federations("Clinic") as fed:
        assert repr(fed) == (
            "<sqlfl federation at Clinic: parties: clinic, lab (2 clients); models: none>"
        )
        plan = fed.explain(TRAIN)
        assert plan.at == "clinic"
        assert {d.sender for d in plan.disclosures if d.kind == "labels"} == set()
        assert "at clinic" in str(fed.sql(f"EXPLAIN {TRAIN}").fetchall())
    with federations(None) as fed:
        assert repr(fed).startswith("<sqlfl federation: ")
        assert fed.explain(TRAIN).at is None
    with sqlfl.connect(tmp_path / "c.duckdb", at="lab") as fed:
        assert repr(fed).startswith("<sqlfl federation in c.duckdb at lab: ")


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["", "a b", "1a", "a.b", 7])
def test_at_must_be_an_identifier(at: Any, tmp_path: Path) -> None:
    with pytest.raises(sqlfl.Error, match=r"at .* is not an identifier"):
        sqlfl.connect(tmp_path / "c.duckdb", at=at)
    assert not list(tmp_path.iterdir())


def test_the_party_must_be_attached_when_a_statement_is_run(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT i AS x, i AS y FROM range(9) r(i)")
    train = "TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM lab.t)"
    with sqlfl.Federation(progress=False, at="Clinics") as fed:
        assert len(fed.sql("SHOW MODELS")) == 0
        with pytest.raises(sqlfl.Error, match="Clinics") as error:
            fed.sql(train)
        assert "attach" in str(error.value)
        fed.attach("lab", con)
        fed.attach("clinic", con)
        for statement in (train, f"EXPLAIN {train}"):
            with pytest.raises(sqlfl.Error, match="did you mean clinic"):
                fed.sql(statement)
        fed.attach("cliniCS", con)
        fed.sql(train)
        # the party has no part in the query; all that there is crosses
        run = fed.model("m").run
        assert all(row["crosses"] for row in records(fed) if row["run"] == run)


# -- the coordinator's file -----------------------------------------------------------------------


def test_the_file_keeps_what_crossed(tmp_path: Path) -> None:
    lasting.make(tmp_path)
    with sqlfl.Federation(tmp_path / "c.duckdb", progress=False, at="geo") as fed:
        fed.attach("census", [tmp_path / name for name in lasting.FILES[:2]])
        fed.attach("geo", tmp_path / lasting.FILES[2])
        fed.sql(lasting.train())
        before, privacy = records(fed), fed.model("m").privacy
    assert {(row["party"], row["crosses"]) for row in before} == {("census", True), ("geo", False)}
    with lasting.opened(tmp_path, path="c.duckdb") as fed:  # this time it is nowhere
        after = records(fed)
        assert after[: len(before)] == before
        assert all(row["crosses"] for row in after[len(before) :])
        assert fed.model("m").privacy == privacy
        assert "sees the labels of census in clear" in " ".join(str(privacy).split())


def test_a_file_of_before_gets_the_column(tmp_path: Path) -> None:
    """As sqlfl wrote it when there was no `at` and no cost of a network."""
    lasting.make(tmp_path)
    with lasting.opened(tmp_path) as fed:
        fed.sql(lasting.train())
        before, history, text = records(fed), fed.model("m").history, str(fed.model("m").privacy)
    columns = "seq, at, run, party, client, direction, kind, rows, columns, bytes"
    with duckdb.connect(str(tmp_path / "coordinator.duckdb")) as con:
        con.execute("ALTER TABLE sqlfl.audit DROP COLUMN crosses")
        ((document,),) = con.execute("SELECT document FROM sqlfl.models").fetchall()
        old = json.loads(document)
        del old["cost"]["comm_seconds"], old["privacy_report"]
        con.execute("UPDATE sqlfl.models SET document = ?", [json.dumps(old)])
    for _ in range(2):
        with lasting.opened(tmp_path) as fed:
            assert records(fed)[: len(before)] == before
            assert fed.audit().columns == [*columns.split(", "), "crosses"]
            assert fed.model("m").history == history
            assert fed.model("m").cost.comm_seconds is None
            assert str(fed.model("m").privacy) == text
            assert fed.model("m").privacy.releases == ()
            assert lasting.evaluate(fed) > 0
    # an older sqlfl that comes back names the columns that it knows
    with duckdb.connect(str(tmp_path / "coordinator.duckdb")) as con:
        last = con.execute("SELECT max(seq) FROM sqlfl.audit").fetchall()[0][0]
        con.execute(
            f"INSERT INTO sqlfl.audit BY NAME SELECT * REPLACE ({last} + 1 AS seq) FROM "
            "(SELECT * EXCLUDE crosses FROM sqlfl.audit WHERE seq = 1)"
        )
    with lasting.opened(tmp_path) as fed:
        assert [r["crosses"] for r in records(fed) if r["seq"] == last + 1] == [True]
