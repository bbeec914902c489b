"""Models that last: reopening, replacing, dropping; whose they are, and what cannot keep them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import KINDS
from sqlfl.messages.wire import decode, encode
from sqlfl.transport.base import Transport
from tests import lasting
from tests.lasting import (
    FILES,
    PREDICT,
    Trained,
    evaluate,
    is_free,
    kept_runs,
    make_trained,
    opened,
    predictions,
    train,
)

ROOT = Path(__file__).parent.parent.parent
CLIENTS = ("census/0", "census/1", "geo/0")
ONE_PARTY = (
    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET size WITH (epochs = 1) "
    "FROM (SELECT size, town FROM geo.towns)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lasting.make(tmp_path)
    return tmp_path


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return make_trained(tmp_path)


def test_everything_is_there_after_reopening(folder: Path) -> None:
    with opened(folder) as fed:
        result = fed.sql(train(more=", algorithm = 'admm'"))
        before = fed.model("m")
        card, shown = fed.sql("DESCRIBE MODEL m"), fed.sql("SHOW MODELS").fetchall()
        loss, values, audit = evaluate(fed), predictions(fed), fed.audit().arrow()
    assert "in coordinator.duckdb and by its parties" in repr(result)
    _check_card(before, dict(card.fetchall()))
    with opened(folder) as fed:
        after = fed.model("m")
        for name in ("run", "sql", "options", "given", "features", "classes", "blocks", "metrics",
                     "cost", "created_at", "versions", "privacy", "kept", "lasting", "epoch",
                     "weight", "target_type", "converged"):  # fmt: skip
            assert getattr(after, name) == getattr(before, name), name
        assert after.history.equals(before.history)
        np.testing.assert_array_equal(after.intercept, before.intercept)
        assert repr(fed.sql("DESCRIBE MODEL m")) == repr(card)
        assert fed.sql("SHOW MODELS").fetchall() == shown
        assert evaluate(fed) == pytest.approx(loss, rel=1e-12)
        assert predictions(fed) == pytest.approx(values, rel=1e-9)
        found = fed.audit().arrow()
        assert found.slice(0, audit.num_rows).equals(audit)
        assert found.column("seq").to_pylist() == list(range(1, found.num_rows + 1))
        assert found.num_rows > audit.num_rows


def _check_card(model: sqlfl.Model, facts: dict[str, str]) -> None:
    """How the model was made."""
    assert facts["options"] == "l2 = 0.0001, epochs = 2, algorithm = 'admm'"
    assert "census.people" in facts["block p"]
    assert "census/0, census/1" in facts["block p"]
    assert "geo.towns" in facts["block t"]
    assert facts["statement"] == model.sql
    assert facts["rows"] == "70"
    assert facts["null_targets"] == "0"
    assert facts["exchanges"] == str(model.history.column("rounds")[-1].as_py())
    assert facts["versions"] == f"sqlfl {sqlfl.__version__}, duckdb {duckdb.__version__}"
    assert facts["created"] == f"{model.created_at:%Y-%m-%d %H:%M:%S} UTC"
    assert model.created_at.utcoffset() is not None
    assert model.cost.bytes_up > 0
    assert model.cost.seconds > 0


def test_what_a_classifier_has_beyond_that(folder: Path) -> None:
    """Classes, weights, dictionaries among the options, validation; and going on from it."""
    columns = "p.club IS NULL AS outside, p.age, p.score, t.size AS importance, t.label"
    query = f"FROM (SELECT {columns} FROM census.people p JOIN geo.towns t USING (town))"
    options = (
        "class_weight = {'true': 2, 'false': 1}, validation_fraction = 0.3, patience = 2, "
        "algorithm = 'sgd', epochs = 6, schedule = 'cosine'"
    )
    text = (
        "TRAIN MODEL c USING logistic_regression TARGET outside WEIGHT importance "
        f"WITH ({options})\n{query}"
    )
    with opened(folder) as fed:
        fed.sql(text)
        before, card = fed.model("c"), repr(fed.sql("DESCRIBE MODEL c"))
        metrics = fed.sql(f"EVALUATE MODEL c {query}").fetchall()[0]
    assert "class_weight = {'true': 2, 'false': 1}" in card
    assert "importance" in card
    with opened(folder) as fed:
        after = fed.model("c")
        assert repr(fed.sql("DESCRIBE MODEL c")) == card
        assert after.options == before.options
        assert (after.weight, after.classes) == ("importance", ("false", "true"))
        assert after.history.equals(before.history)
        assert fed.sql(f"EVALUATE MODEL c {query}").fetchall()[0] == pytest.approx(metrics)
        warm = text.replace("MODEL c", "MODEL d").replace("epochs", "warm_start = 'c', epochs")
        fed.sql(warm)
        assert fed.model("d").metrics["valid_rows"] == after.metrics["valid_rows"], "another split"


def test_statements_on_models_work_after_reopening(trained: Trained) -> None:
    old, run = trained.loss, trained.run
    with opened(trained.folder) as fed:
        assert fed.model("m").run == run
        with pytest.raises(sqlfl.ModelError, match="already"):
            fed.sql(train())
        fed.sql(train(head="TRAIN MODEL IF NOT EXISTS").replace("EXISTS m", "EXISTS M"))
        assert fed.model("m").run == run
        fed.sql(train("other", epochs=1))
    with opened(trained.folder) as fed:
        fed.sql(train(head="TRAIN OR REPLACE MODEL", l2=0.5))
        new = fed.model("m").run
        assert new != run
        fed.sql("DROP MODEL other")
    with opened(trained.folder) as fed:
        assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["m"]
        assert fed.model("m").run == new
        assert evaluate(fed) != pytest.approx(old, rel=1e-4)
    for file, client in zip(FILES, CLIENTS, strict=True):
        assert kept_runs(trained.folder / file) == [(client, new)]


def in_process(folder: Path, code: str) -> subprocess.Popen[str]:
    """`code` in another process, where `folder` and the functions of tests.lasting are known."""
    head = "import sys\nfrom pathlib import Path\nimport sqlfl\nfrom tests.lasting import *\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", f"{head}folder = Path(sys.argv[1])\n{code}", folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


ANOTHER = """
def refused(work):
    try:
        work()
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "), flush=True)
refused(lambda: sqlfl.connect(folder / "coordinator.duckdb"))
with sqlfl.connect(folder / "new.duckdb") as fed:
    refused(lambda: fed.attach("geo", folder / "geo.duckdb"))
input()
with opened(folder) as fed:
    print(evaluate(fed))
    fed.sql(train("mine", l2=0.5))
    fed.sql("DROP MODEL m")
"""


def test_a_file_is_open_once_and_then_another_process_goes_on(trained: Trained) -> None:
    with in_process(trained.folder, ANOTHER) as other:
        assert other.stdout is not None
        with opened(trained.folder):
            with pytest.raises(sqlfl.Error, match="open in this process already"):
                sqlfl.connect(trained.folder / "coordinator.duckdb")
            coordinator, party = other.stdout.readline(), other.stdout.readline()
        out, err = other.communicate("\n")
    assert other.returncode == 0, err
    assert coordinator.startswith("Error ")
    assert party.startswith("PartyError party geo/0")
    assert "open in another process" in coordinator
    assert "open in another process" in party
    assert float(out) == pytest.approx(trained.loss, rel=1e-12)
    with opened(trained.folder) as fed:
        assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["mine"]
        assert evaluate(fed, "mine") > 0


# -- versions --------------------------------------------------------------------------------------


def edit(path: Path, *statements: str) -> None:
    with contextlib.closing(duckdb.connect(str(path))) as con:
        for statement in statements:
            con.execute(statement)


def test_another_patch_version_may_have_written_the_files(trained: Trained) -> None:
    """A newer one more columns and fields than this version knows of, an older one no head."""
    path = trained.folder / "coordinator.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as con:
        ((text,),) = con.execute("SELECT document FROM coordinator.sqlfl.models").fetchall()
        document = json.loads(text) | {"later": {"field": 1}}
        document["blocks"][0]["later"] = document["cost"]["later"] = 1
        assert document.pop("head") is None
        con.execute("UPDATE coordinator.sqlfl.models SET document = ?", [json.dumps(document)])
        for change in (
            "UPDATE coordinator.sqlfl.coordinator SET written_by = '0.1.99'",
            "ALTER TABLE coordinator.sqlfl.models ADD COLUMN later INTEGER DEFAULT 7",
            "ALTER TABLE coordinator.sqlfl.audit ADD COLUMN later INTEGER",
        ):
            con.execute(change)
    later = "ALTER TABLE sqlfl.blocks ADD COLUMN later INTEGER DEFAULT 7"
    edit(trained.folder / FILES[0], later)
    with opened(trained.folder) as fed:
        assert fed.model("m").head is None
        assert evaluate(fed) == pytest.approx(trained.loss, rel=1e-12)
        assert predictions(fed) == pytest.approx(trained.predictions, rel=1e-9)
        fed.sql(train(head="TRAIN OR REPLACE MODEL", l2=0.5))
        assert evaluate(fed) > 0
        assert len(fed.audit()) > 0


NEURAL = (
    "TRAIN MODEL m USING mlp_regressor TARGET score WITH (hidden = [4], epochs = 2, seed = 1, "
    f"head = 'linear', embedding = 3) {lasting.QUERY}"
)


def test_a_head_is_kept_with_its_model(folder: Path) -> None:
    with opened(folder) as fed:
        fed.sql(NEURAL)
        before, loss = fed.model("m"), evaluate(fed)
        assert before.head is not None
    with opened(folder) as fed:
        after = fed.model("m")
        assert after.head is not None
        assert after.head.dtype == np.float64
        np.testing.assert_array_equal(after.head, before.head)
        assert dict(after.options) == dict(before.options)
        assert evaluate(fed) == pytest.approx(loss, rel=1e-12)


def test_a_newer_format_is_refused(trained: Trained) -> None:
    path = trained.folder / "coordinator.duckdb"
    edit(path, "UPDATE coordinator.sqlfl.coordinator SET format = 2, written_by = '3.1.4'")
    before = path.read_bytes()
    with pytest.raises(sqlfl.Error, match=r"sqlfl 3\.1\.4, in format 2.*") as caught:
        sqlfl.connect(path)
    assert sqlfl.__version__ in str(caught.value)
    assert "pip install 'sqlfl>=3.1.4'" in str(caught.value)
    assert path.read_bytes() == before


def test_a_block_in_a_newer_format_is_refused(trained: Trained) -> None:
    edit(trained.folder / FILES[2], "UPDATE sqlfl.blocks SET format = 99")
    newer = pytest.raises(sqlfl.PartyError, match=r"geo/0.*newer sqlfl")
    with opened(trained.folder) as fed, newer:
        evaluate(fed)


# -- what is no coordinator's file -----------------------------------------------------------------


def test_other_files_are_refused_and_nothing_is_made(folder: Path) -> None:
    make_trained(folder, geo_store="store.duckdb")
    (folder / "text.duckdb").write_text("hello\n" * 900)
    edit(folder / "views.duckdb", "CREATE VIEW v AS SELECT 1 AS x")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    cases: dict[object, str] = {
        folder / FILES[0]: "people",
        folder / "views.duckdb": "v",
        folder / "store.duckdb": "keeps the blocks of a party",
        folder / "text.duckdb": "not a DuckDB database",
        folder: "is a folder",
        folder / "no" / "where.duckdb": "there is no folder",
        folder / "text.duckdb" / "c.duckdb": "there is no folder",
        ":memory:": "path of a file",
        "": "path of a file",
        7: "must be a path",
    }
    if Path("/proc/self").exists():
        cases["/proc/c.duckdb"] = "cannot open /proc/c.duckdb"
    for path, text in cases.items():
        with pytest.raises(sqlfl.Error, match=text):
            sqlfl.connect(path)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["new.duckdb", "sqlfl.duckdb", "models.duckdb", "odd 'name\".db"])
def test_a_new_file_may_have_any_name(name: str, folder: Path) -> None:
    for _ in range(2):
        with sqlfl.connect(folder / name) as fed:
            fed.attach("geo", folder / FILES[2])
            fed.sql(ONE_PARTY)
            assert name in repr(fed)
            assert name in fed.model("m").kept


def test_an_empty_file_becomes_the_coordinators(folder: Path) -> None:
    (folder / "coordinator.duckdb").touch()
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("geo", folder / FILES[2])
        fed.sql(ONE_PARTY)
        assert fed.model("m").lasting
    edit(folder / "database.duckdb", "CREATE TABLE t (x INTEGER)", "DROP TABLE t")
    with sqlfl.connect(folder / "database.duckdb") as fed:
        assert fed.sql("SHOW MODELS").fetchall() == []


def test_closing_twice_and_as_a_context(folder: Path) -> None:
    with sqlfl.connect(folder / "c.duckdb") as fed:
        fed.attach("geo", folder / FILES[2], folder / "store.duckdb")
        names = ("c.duckdb", "store.duckdb", FILES[2])
        assert not any(is_free(folder / name) for name in names)
        fed.close()
    fed.close()
    with pytest.raises(sqlfl.Error, match="closed"):
        fed.sql("SHOW MODELS")
    assert all(is_free(folder / name) for name in names)


def test_files_may_be_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing holds a path; relative ones are those of the moment of attach."""
    monkeypatch.chdir(folder)
    (folder / "else").mkdir()
    with sqlfl.connect("coordinator.duckdb") as fed:
        fed.attach("census", list(FILES[:2]))
        fed.attach("geo", FILES[2])
        monkeypatch.chdir(folder / "else")
        fed.sql(train())
        loss = evaluate(fed)
    assert not list((folder / "else").iterdir())
    for path in folder.glob("*.duckdb"):
        path.rename(folder / "else" / path.name)
    (folder / "else" / "coordinator.duckdb").rename(folder / "else" / "moved.duckdb")
    with opened(folder / "else", path="moved.duckdb") as fed:
        assert evaluate(fed) == pytest.approx(loss, rel=1e-12)


# -- whose blocks ----------------------------------------------------------------------------------


def test_coordinators_on_one_database_are_kept_apart(trained: Trained) -> None:
    """At once, on open connections; one goes on with its model."""
    with contextlib.ExitStack() as stack:
        north, south, geo = (
            stack.enter_context(contextlib.closing(duckdb.connect(str(trained.folder / name))))
            for name in FILES
        )
        feds = []
        for name in ("coordinator.duckdb", "another.duckdb"):
            fed = stack.enter_context(sqlfl.connect(trained.folder / name))
            fed.attach("census", [north, south])
            fed.attach("geo", geo)
            feds.append(fed)
        feds[1].sql(train(l2=0.5))
        for con in (north, south, geo):
            assert con.execute("SELECT count(*) FROM sqlfl.blocks").fetchall() == [(2,)]
        assert evaluate(feds[0]) == pytest.approx(trained.loss, rel=1e-12)
        feds[0].sql("DROP MODEL m")
        feds[1].close()
        again = stack.enter_context(sqlfl.connect(trained.folder / "another.duckdb"))
        again.attach("census", [north, south])
        again.attach("geo", geo)
        assert evaluate(again) != pytest.approx(trained.loss, rel=1e-4)
        again.sql("DROP MODEL m")
        schemas = "FROM duckdb_schemas() WHERE schema_name = 'sqlfl'"
        assert [con.execute(schemas).fetchall() for con in (north, south, geo)] == [[], [], []]


def test_clients_share_a_store(folder: Path) -> None:
    def both() -> sqlfl.Federation:
        fed = sqlfl.connect(folder / "c.duckdb")
        store = folder / "store.duckdb"
        fed.attach("census", [folder / FILES[0], folder / FILES[1]], store)
        fed.attach("geo", folder / FILES[2], store)
        return fed

    before = [(folder / name).read_bytes() for name in FILES]
    with both() as fed:
        fed.sql(train())
        fed.sql(train("n", epochs=1))
        fed.sql("DROP MODEL n")
        loss, run = evaluate(fed), fed.model("m").run
    assert [(folder / name).read_bytes() for name in FILES] == before
    assert kept_runs(folder / "store.duckdb") == [(client, run) for client in CLIENTS]
    with both() as fed:
        assert evaluate(fed) == pytest.approx(loss, rel=1e-12)


def test_a_party_that_is_away(trained: Trained) -> None:
    folder = trained.folder
    with opened(folder) as fed:
        fed.sql(train("n", epochs=1))
        run = fed.model("n").run
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        assert "census.people" in repr(fed.sql("DESCRIBE MODEL m"))
        for text in (PREDICT, f"EVALUATE MODEL m {lasting.QUERY}"):
            with pytest.raises(sqlfl.ModelError, match=r"party geo.*not\s+attached"):
                fed.sql(text)
        fed.sql("DROP MODEL m")
        assert kept_runs_of(fed) == [run]
        fed.attach("geo", folder / FILES[2])
        assert evaluate(fed, "n") > 0
    assert kept_runs(folder / FILES[2]) == [("geo/0", run)]


def kept_runs_of(fed: sqlfl.Federation) -> list[str]:
    return sorted(fed.model(row[0]).run for row in fed.sql("SHOW MODELS").fetchall())


def test_another_database_under_the_partys_name(trained: Trained) -> None:
    folder = trained.folder
    edit(folder / "other.duckdb", lasting.TOWNS)
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", folder / "other.duckdb")
        with pytest.raises(sqlfl.PartyError, match=r"geo/0.*no block of the model"):
            evaluate(fed)
        fed.detach("census")
        fed.detach("geo")
        fed.attach("census", [folder / FILES[1], folder / FILES[0]])  # in another order
        fed.attach("geo", folder / FILES[2])
        with pytest.raises(sqlfl.PartyError, match=r"census/.*no block of the model"):
            evaluate(fed)
    with opened(folder) as fed:
        assert evaluate(fed) == pytest.approx(trained.loss, rel=1e-12)


# -- what cannot be kept ---------------------------------------------------------------------------


def test_nothing_is_written_without_a_coordinators_file(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        census = [stack.enter_context(duckdb.connect(str(folder / name))) for name in FILES[:2]]
        fed = stack.enter_context(sqlfl.connect())
        fed.attach("census", census)
        fed.attach("geo", folder / FILES[2])
        fed.sql(train())
        assert "until the federation closes" in fed.model("m").kept
        assert "sqlfl.connect(path)" in dict(fed.sql("DESCRIBE MODEL m").fetchall())["kept"]
        assert kept_runs(folder / FILES[0]) == []


@pytest.mark.parametrize("how", ["a read-only connection", "in memory"])
def test_a_model_with_a_part_that_cannot_be_kept(how: str, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        if how == "in memory":
            geo = stack.enter_context(duckdb.connect())
            geo.execute(lasting.TOWNS)
        else:
            geo = stack.enter_context(duckdb.connect(str(folder / FILES[2]), read_only=True))
        with sqlfl.connect(folder / "c.duckdb") as fed:
            fed.attach("census", [folder / FILES[0], folder / FILES[1]])
            fed.attach("geo", geo)
            fed.sql(train())
            kept = fed.model("m").kept
            assert kept.startswith("until the federation closes: geo/0 is ")
            assert ("read-only" if "read-only" in how else "in memory") in kept
            assert "store=" in kept
            assert evaluate(fed) > 0
            assert kept_runs(folder / FILES[0]) == []
            alone = "FROM (SELECT p.score, p.age FROM census.people p)"
            fed.sql(
                f"TRAIN MODEL alone USING linear_regression TARGET score WITH (epochs = 1) {alone}"
            )
            assert fed.model("alone").lasting
            fed.sql("DROP MODEL m")
            fed.sql(train(epochs=1))
        with sqlfl.connect(folder / "c.duckdb") as fed:
            assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["alone"]
            fed.attach("geo", geo, folder / "store.duckdb")
            fed.attach("census", [folder / FILES[0], folder / FILES[1]])
            fed.sql(train(epochs=1))
            assert fed.model("m").lasting
        assert len(kept_runs(folder / "store.duckdb")) == 1


@pytest.mark.parametrize("geo", ["in memory", "read-only", "stored"])
def test_what_lasts_is_replaced_by_what_lasts_or_not_at_all(geo: str, folder: Path) -> None:
    """One client that cannot keep its part is enough; refused before anything is trained."""
    store = folder / "store.duckdb"
    made = make_trained(folder, geo_store="store.duckdb")
    loss, run = made.loss, made.run
    before = [kept_runs(path) for path in (*map(folder.joinpath, FILES), store)]
    replace = train(head="TRAIN OR REPLACE MODEL", l2=0.5)
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(folder / "coordinator.duckdb"))
        con = stack.enter_context(
            duckdb.connect(str(folder / FILES[2]), read_only=True)
            if geo == "read-only"
            else duckdb.connect()
        )
        if geo != "read-only":
            con.execute(lasting.TOWNS)
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", con, store if geo == "stored" else None)
        if geo == "stored":
            fed.sql(replace)
            assert fed.model("m").lasting
            run, loss = fed.model("m").run, evaluate(fed)
        else:
            sent = len(fed.audit())
            with pytest.raises(sqlfl.ModelError, match=f"(?s)could not be: geo/0 is {geo}.*store="):
                fed.sql(replace)
            asked = fed.audit().arrow().column("kind").to_pylist()[sent:]
            assert set(asked) <= {"list_tables", "tables", "describe", "columns"}
            assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["m"]
            fed.sql(train("other", epochs=1))
            # it does not last either
            fed.sql(train("other", head="TRAIN OR REPLACE MODEL", epochs=1))
            fed.sql(train("other", head="TRAIN MODEL IF NOT EXISTS"))
    if geo != "stored":
        after = [kept_runs(path) for path in (*map(folder.joinpath, FILES), store)]
        assert after == before
    with opened(folder, geo_store="store.duckdb") as fed:
        assert fed.model("m").run == run
        assert evaluate(fed) == pytest.approx(loss, rel=1e-9)


def test_fewer_databases_than_in_training(trained: Trained) -> None:
    """Forty of a hundred rows would be predicted, and nobody would know."""
    folder = trained.folder
    with opened(folder) as fed:
        assert fed.model("m").remarks == ()
    said = (
        "party census had 2 databases when model m was trained, and has one database now: rows of "
        "the others are missing"
    )
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("census", folder / FILES[0])
        fed.attach("geo", folder / FILES[2])
        assert ("warning", said) in fed.model("m").facts()
        assert said in fed.sql("DESCRIBE MODEL m").arrow().column("value").to_pylist()
        for text in (PREDICT, f"EVALUATE MODEL m {lasting.QUERY}"):
            with pytest.warns(sqlfl.Warning, match=said):
                fed.sql(text)


def test_more_databases_than_in_training(folder: Path) -> None:
    """Those that hold no part of the model may be more; the others have no block of it."""
    labels = "SELECT p.score, t.size FROM census.people p JOIN geo.towns t USING (town)"
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("census", folder / FILES[0])
        fed.attach("geo", folder / FILES[2])
        fed.sql(train(epochs=1))
        once = "WITH (epochs = 1)"
        fed.sql(f"TRAIN MODEL n USING linear_regression TARGET score {once} FROM ({labels})")
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", folder / FILES[2])
        with pytest.warns(sqlfl.Warning, match=r"census had one database .* has 2 databases now"):
            fed.sql(f"EVALUATE MODEL n FROM ({labels})")
        with pytest.raises(sqlfl.ModelError, match="kept by census/0, and census/1 has none"):
            fed.sql(PREDICT)


# -- detaching -------------------------------------------------------------------------------------


def test_a_party_is_detached_and_attached_again(trained: Trained) -> None:
    folder = trained.folder
    with opened(folder) as fed:
        fed.detach("GEO")
        assert "geo" not in repr(fed)
        with duckdb.connect(str(folder / FILES[2])) as con:  # the file is closed
            con.execute("INSERT INTO towns VALUES (99, 1, 'new')")
        with pytest.raises(sqlfl.ModelError, match=r"party geo.*not\s+attached"):
            evaluate(fed)
        with pytest.raises(sqlfl.Error, match=r"(?s)no party geo.*the parties are: census"):
            fed.detach("geo")
        with pytest.raises(sqlfl.Error, match=r"(?s)no party cencus.*did you mean census"):
            fed.detach("cencus")
        fed.attach("geo", folder / FILES[2])
        assert evaluate(fed) == pytest.approx(trained.loss, rel=1e-12)
        fed.detach("census")
        fed.detach("geo")
        assert "parties: none" in repr(fed)


def test_a_connection_that_was_given_stays_open(folder: Path) -> None:
    with duckdb.connect() as con, sqlfl.connect() as fed:
        con.execute("CREATE TABLE t AS SELECT i AS x, 2 * i AS y FROM range(9) r(i)")
        fed.attach("a", con)
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (FROM a.t)")
        with pytest.raises(sqlfl.Error, match=r"(?s)a part of m, which would be.*DROP MODEL m"):
            fed.detach("a")
        assert fed.sql("EVALUATE MODEL m FROM (FROM a.t)").fetchone() is not None
        fed.sql("DROP MODEL m")
        fed.detach("a")
        assert con.execute("SELECT count(*) FROM t").fetchone() == (9,)
        fed.attach("a", con)


def test_a_party_at_work_is_not_detached(folder: Path) -> None:
    with opened(folder) as fed:
        server = fed._servers[Client("geo", 0)]
        begun, go, answer = threading.Event(), threading.Event(), server._answer

        def slow(request):  # type: ignore[no-untyped-def]
            if request.kind == "send_keys":
                begun.set()
                assert go.wait(60)
            return answer(request)

        server._answer = slow  # type: ignore[method-assign]
        thread = threading.Thread(target=fed.sql, args=[train()])
        thread.start()
        assert begun.wait(60)
        with pytest.raises(sqlfl.Error, match="takes part in a statement that another thread runs"):
            fed.detach("geo")
        go.set()
        thread.join()
        assert evaluate(fed) > 0


class Failing:
    """Has a client answer one kind of message with a failure, or not at all."""

    def __init__(self, inner: Transport, kind: str, client: str) -> None:
        self._inner = inner
        self.kind = kind
        self._client = client

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        for client, data in requests:
            if decode(data).kind == self.kind and str(client) == self._client:
                raise sqlfl.PartyError(self._client, "away")
        return self._inner.exchange(requests)


def test_a_training_that_fails_late_leaves_nothing(folder: Path) -> None:
    failing: list[Failing] = []

    def wrap(inner: Transport) -> Failing:
        failing.append(Failing(inner, "", "geo/0"))
        return failing[0]

    with sqlfl.Federation(folder / "coordinator.duckdb", progress=False, wrap=wrap) as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", folder / FILES[2])
        for kind in ("save", "keep", "finish"):
            assert kind in KINDS
            failing[0].kind = kind
            with pytest.raises(sqlfl.PartyError, match="away"):
                fed.sql(train(epochs=1))
            assert fed.sql("SHOW MODELS").fetchall() == []
            for server in fed._servers.values():
                assert not server._blocks.runs
                assert str(server.client) == "geo/0" or not server._runs
    with opened(folder) as fed:
        assert fed.sql("SHOW MODELS").fetchall() == []
    for name in FILES:
        with duckdb.connect(str(folder / name)) as con:
            assert not con.execute("FROM duckdb_schemas() WHERE schema_name = 'sqlfl'").fetchall()


def test_one_keeps_and_another_fails(trained: Trained) -> None:
    """geo's block cannot be written: those of census, which are, go again."""
    with opened(trained.folder) as fed:

        class Refusing(Failing):
            def exchange(self, requests):  # type: ignore[no-untyped-def]
                answers = self._inner.exchange(requests)
                for k, (client, data) in enumerate(requests):
                    if decode(data).kind == "keep" and client == Client("geo"):
                        failure = KINDS["failure"](decode(data).run, -1, "IOException", "full")
                        answers[k] = encode(failure)
                return answers

        fed._border.transport = Refusing(fed._transport, "", "")
        with pytest.raises(sqlfl.PartyError, match=r"geo/0.*full"):
            fed.sql(train(head="TRAIN OR REPLACE MODEL", l2=0.5))
        assert fed.model("m").run == trained.run
        assert evaluate(fed) == pytest.approx(trained.loss, rel=1e-12)
    for file, client in zip(FILES, CLIENTS, strict=True):
        assert kept_runs(trained.folder / file) == [(client, trained.run)]


@pytest.mark.parametrize("head", ["TRAIN MODEL", "TRAIN MODEL IF NOT EXISTS"])
def test_two_threads_train_the_same_name(head: str, folder: Path) -> None:
    errors: list[BaseException] = []
    with opened(folder) as fed:
        barrier = threading.Barrier(2)
        put = fed._registry.put

        def together(model: sqlfl.Model, *, replace: bool) -> sqlfl.Model | None:
            barrier.wait(timeout=60)
            return put(model, replace=replace)

        fed._registry.put = together  # type: ignore[method-assign]

        def work(l2: float) -> None:
            try:
                fed.sql(train(head=head, l2=l2))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(l2,)) for l2 in (0.0001, 0.5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if head == "TRAIN MODEL":
            (error,) = errors
            assert isinstance(error, sqlfl.ModelError)
            assert "already" in str(error)
        else:
            assert not errors
        run = fed.model("m").run
        assert evaluate(fed) > 0
        numbers = fed.audit().arrow().column("seq").to_pylist()
        assert numbers == list(range(1, len(numbers) + 1))
    for name in FILES:
        assert [kept for _, kept in kept_runs(folder / name)] == [run]


# -- disks -----------------------------------------------------------------------------------------

FULL = """
import resource
def full(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
loss, run = LOSS, "RUN"
with opened(folder) as fed:
    full(SIZE)
    texts = []
    for text in (train(head="TRAIN OR REPLACE MODEL", l2=0.5, OPTIONS), train("n", OPTIONS)):
        try:
            fed.sql(text)
        except sqlfl.Error as error:
            texts.append(type(error).__name__ + " " + str(error))
    during = evaluate(fed)
    full(resource.RLIM_INFINITY)
    assert len(texts) == 2, texts
    assert abs(during - loss) < 1e-9, (during, loss)
    assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["m"]
    assert fed.model("m").run == run
    assert abs(evaluate(fed) - loss) < 1e-9
with opened(folder) as fed:
    assert abs(evaluate(fed) - loss) < 1e-9
    assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["m"]
    fed.sql(train("n"))
    seq = fed.audit().arrow().column("seq").to_pylist()
    assert seq == list(range(1, len(seq) + 1))
    runs = sorted(fed.model(name).run for name in ("m", "n"))
for file in FILES:
    assert [kept for _, kept in kept_runs(folder / file)] == runs
print(texts[0])
"""


@pytest.mark.parametrize(
    ("size", "options", "text"),
    [
        (1200, "epochs=2", "PartyError party"),
        (12000, "epochs=300, more=\", algorithm = 'sgd'\"", "Error the coordinator's file"),
    ],
    ids=["at the parties", "at the coordinator"],
)
def test_a_disk_without_room(size: int, options: str, text: str, trained: Trained) -> None:
    """A limit on the size of files stands for it: DuckDB's writes fail in the same place."""
    code = FULL.replace("(SIZE)", f"({size})").replace("OPTIONS", options)
    code = code.replace("LOSS", repr(trained.loss)).replace("RUN", trained.run)
    with in_process(trained.folder, code) as done:
        out, err = done.communicate()
    assert done.returncode == 0, err
    assert out.startswith(text), out
    assert "cannot be written" in out


@pytest.fixture
def unwritable(folder: Path) -> Iterator[Path]:
    """geo's file in a folder that nobody may write; skipped where permissions do not count."""
    place = folder / "locked"
    place.mkdir()
    (folder / FILES[2]).rename(place / FILES[2])
    (place / FILES[2]).chmod(0o444)
    place.chmod(0o555)
    yield place
    place.chmod(0o755)


def test_a_source_in_a_folder_that_may_not_be_written(
    unwritable: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:  # root may write everywhere: have the check say what others are told
        real = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: unwritable not in (Path(path), Path(path).parent)
            and real(path, mode)
        )  # fmt: skip
    with sqlfl.connect(folder / "c.duckdb") as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", unwritable / FILES[2])
        fed.sql(train())
        assert "geo/0 is read-only" in fed.model("m").kept
    assert [path.name for path in unwritable.iterdir()] == [FILES[2]]
