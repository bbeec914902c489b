"""Blocks of models are kept, dropped and collected by the analyst whose run it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.request import checkpoint_of
from sqlfl.contract.schema import Client
from sqlfl.governance.models import UNKNOWN, Models
from sqlfl.governance.records import Records
from sqlfl.messages.wire import decode, encode
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.transport.base import Transport
from sqlfl.udfs.blocks.block_tables import DatabaseBlocks
from tests.courier import ask
from tests.governance.clinic import GRANT, PATIENTS, TESTS, TRAIN, ruled
from tests.open_databases import in_memory

MODEL = TRAIN.replace("MODEL m", "MODEL {name}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "clinic.duckdb"
    with duckdb.connect(found) as con:
        con.execute(PATIENTS)
        ruled(con)
        ruled(con, grant=GRANT.replace("acme", "globex"))
    return found


@contextmanager
def federation(path: Path, analyst: str, name: str = "coordinator") -> Iterator[sqlfl.Federation]:
    file = path.with_name(f"{name}.duckdb")
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(file, analyst=analyst, progress=False))
        lab = stack.enter_context(in_memory())
        lab.execute(TESTS)
        fed.attach("lab", lab, store=path.with_name("lab.duckdb"))
        fed.attach("clinic", path)
        yield fed


def runs(path: Path) -> list[str]:
    with duckdb.connect(path, read_only=True) as con:
        try:
            return [run for (run,) in con.execute("SELECT run FROM sqlfl.blocks").fetchall()]
        except duckdb.CatalogException:
            return []


def train(path: Path, analyst: str, name: str = "m") -> str:
    """The run that has trained it."""
    with federation(path, analyst) as fed:
        fed.sql(MODEL.format(name=name))
        return fed.model(name).run


@contextmanager
def spoken(path: Path, analyst: str) -> Iterator[PartyClient]:
    """With the blocks of the coordinator of these tests, whoever it is."""
    with duckdb.connect(path) as con:
        ((coordinator,),) = con.execute("SELECT DISTINCT coordinator FROM sqlfl.blocks").fetchall()
        blocks = DatabaseBlocks(con, "clinic", coordinator, "clinic/0", path=str(path))
        secret = b"\x07" * 32
        own = Secrets(secret, secret)
        client = PartyClient(Client("clinic"), con, own, blocks, analyst=analyst)
        try:
            yield client
        finally:
            client.close()


def refused(reply: ms.Message, said: str) -> None:
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError"
    assert said in reply.text


def test_an_analyst_trains_keeps_replaces_and_drops(path: Path) -> None:
    train(path, "acme")
    second = train(path, "acme")
    assert runs(path) == [second]
    with federation(path, "acme") as fed:
        fed.sql(MODEL.format(name="other"))
        fed.sql("DROP MODEL m")
        fed.sql("DROP MODEL other")
    assert runs(path) == []


@pytest.mark.parametrize("analyst", ["globex", ""])
def test_nobody_else_drops_keeps_or_collects_them(path: Path, analyst: str) -> None:
    run = train(path, "acme")
    with spoken(path, analyst) as client:
        refused(
            ask(client, ms.Drop(run, -1, run)), "are to be dropped is not one of this analyst's"
        )
        refused(ask(client, ms.Keep(run, -1, run)), "are to be kept is not one of this analyst's")
        assert isinstance(ask(client, ms.Collect("", -1, ())), ms.Collected)
    assert runs(path) == [run]
    with spoken(path, "acme") as client:
        refused(ask(client, ms.Keep(run, -1, run)), "are to be kept")  # it has been
        assert isinstance(ask(client, ms.Collect("", -1, ())), ms.Collected)
    assert runs(path) == []


def test_what_is_not_there_is_dropped_by_anybody(path: Path) -> None:
    """As after a run that was refused."""
    run = train(path, "acme")
    with spoken(path, "globex") as client:
        assert isinstance(ask(client, ms.Drop("x", -1, "x")), ms.Ready)
    assert runs(path) == [run]


def test_analysts_of_one_coordinator_leave_each_others_models(path: Path) -> None:
    """It forgets, as it were, what it does not know; each collects its own."""
    one, other = train(path, "acme", "a"), train(path, "globex", "b")
    assert sorted(runs(path)) == sorted([one, other])
    with federation(path, "globex") as fed:
        fed.sql("DROP MODEL a")  # is gone at the coordinator
    assert sorted(runs(path)) == sorted([one, other])
    with federation(path, "acme"):
        pass  # collects
    assert runs(path) == [other]


def test_blocks_from_before_there_were_policies_are_the_owners(path: Path) -> None:
    with sqlfl.owner(path) as owner:
        owner.sql("REVOKE ALL ON patients FROM 'acme'; REVOKE ALL ON patients FROM 'globex'")
        owner.sql("DROP TRAINING POLICY r")
    run = train(path, "acme")
    with duckdb.connect(path) as con:
        ruled(con)
    with federation(path, "acme") as fed:
        fed.sql("DROP MODEL m")
    with spoken(path, "acme") as client:
        refused(ask(client, ms.Drop(run, -1, run)), "are to be dropped")
        assert isinstance(ask(client, ms.Collect("", -1, ())), ms.Collected)
    assert runs(path) == [run]


def test_a_block_is_of_its_own_run(path: Path) -> None:
    """Or one analyst's would take the place of another's, or hide it."""
    run = train(path, "acme")
    honest = PartyClient._answer

    def lying(self: PartyClient, request: ms.Message) -> ms.Message:
        if isinstance(request, ms.Save):
            request = ms.Save(request.run, request.slot, run, request.name, request.back)
        return honest(self, request)

    with pytest.MonkeyPatch.context() as patch, federation(path, "globex") as fed:
        patch.setattr(PartyClient, "_answer", lying)
        with pytest.raises(sqlfl.PolicyError, match="a block of another run is not of the run"):
            fed.sql(MODEL.format(name="b"))
    assert runs(path) == [run]


def test_a_run_is_not_called_like_one_that_has_a_model(path: Path) -> None:
    run = train(path, "acme")
    with pytest.MonkeyPatch.context() as patch, federation(path, "globex") as fed:
        patch.setattr("sqlfl.federation.session.secrets.token_hex", lambda _: run)
        with pytest.raises(sqlfl.PolicyError, match="a run of this name was there before"):
            fed.sql(MODEL.format(name="b"))
    assert runs(path) == [run]


def test_a_model_that_is_imported_is_the_analysts(path: Path) -> None:
    folder = path.with_name("exported")
    with federation(path, "acme") as fed:
        fed.sql(MODEL.format(name="a"))
        fed.sql(f"EXPORT MODEL a TO '{folder}' WITH (formats = ['safetensors'])")
        fed.sql(f"IMPORT MODEL b FROM '{folder}'")
        assert {fed.model(name).lasting for name in "ab"} == {True}
        fed.sql("DROP MODEL a")
        fed.sql("DROP MODEL b")
    assert runs(path) == []


def test_whoever_names_no_analyst_keeps_none(path: Path) -> None:
    folder = path.with_name("exported")
    with federation(path, "acme") as fed:
        fed.sql(MODEL.format(name="a"))
        fed.sql(f"EXPORT MODEL a TO '{folder}' WITH (formats = ['safetensors'])")
        fed.sql("DROP MODEL a")
    with federation(path, "") as fed, pytest.raises(sqlfl.PolicyError, match="are to be kept"):
        fed.sql(f"IMPORT MODEL b FROM '{folder}'")
    assert runs(path) == []


def test_checkpoints_are_the_analysts_whose_run_it_is(path: Path) -> None:
    options = "WITH (algorithm = 'sgd', epochs = 6, tolerance = 0, checkpoint = 2) FROM"
    with federation(path, "acme") as fed:
        fed.sql(MODEL.format(name="m").replace("FROM", options, 1))
        run = fed.model("m").run
    assert runs(path) == [run]
    with federation(path, "globex", "other") as fed:
        fed.sql(MODEL.format(name="m"))
    assert run in runs(path)


@pytest.mark.parametrize("number", [1, 3])
def test_a_checkpoint_is_of_its_run_and_number(path: Path, number: int) -> None:
    """The second of a run is refused under the name of another one, and of another run's."""
    text = MODEL.format(name="m").replace(
        "FROM", "WITH (algorithm = 'sgd', epochs = 6, tolerance = 0, checkpoint = 2) FROM", 1
    )

    class Renaming:
        def __init__(self, inner: Transport) -> None:
            self.inner, self.saves = inner, 0

        def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
            return self.inner.exchange([(c, self.renamed(c, data)) for c, data in requests])

        def renamed(self, client: Client, data: pa.Buffer) -> pa.Buffer:
            message = decode(data)
            if not isinstance(message, ms.Save) or client.party != "clinic":
                return data
            self.saves += 1
            if self.saves != 2:
                return data
            return encode(replace(message, model=checkpoint_of(message.run, number)))

    with in_memory() as lab, sqlfl.Federation(analyst="acme", progress=False, wrap=Renaming) as fed:
        lab.execute(TESTS)
        fed.attach("lab", lab)
        fed.attach("clinic", path)
        with pytest.raises(sqlfl.PolicyError, match="a block of another run is not of the run"):
            fed.sql(text)


def test_they_are_noted_once_and_are_of_their_analyst() -> None:
    with in_memory() as con:
        _noted_once(Records(con, "memory"))


def _noted_once(records: Records) -> None:

    def noted() -> list[tuple[str, str]]:
        with closing(records.cursor()) as cursor:
            return records.rows(cursor, "SELECT run, analyst FROM t ORDER BY run", "models")

    def answer(request: ms.Message) -> ms.Message:
        answered.append(request)
        return ms.Ready("", -1)

    answered: list[ms.Message] = []
    here = ["own", "old", "others"]
    acme, globex, nobody = (Models(records, name, lambda: here) for name in ("acme", "globex", ""))
    acme.add("own")
    globex.add("others")
    nobody.add("old")
    assert [acme.is_of_session(run) for run in ("own", "others", "old")] == [True, False, False]
    acme.serve(ms.Drop("", -1, "own"), answer)  # of this session, and not kept
    assert len(answered) == 1
    for _ in range(2):
        acme.serve(ms.Keep("", -1, "own"), answer)
    globex.serve(ms.Keep("", -1, "others"), answer)
    assert noted() == [("others", "globex"), ("own", "acme")]
    for models, run in ((nobody, "old"), (acme, "others"), (acme, "gone")):
        with pytest.raises(PolicyError, match="are to be kept is not one of this analyst's"):
            models.serve(ms.Keep("", -1, run), answer)
    with closing(records.cursor()) as cursor:
        known = [acme.is_recorded(run, cursor) for run in ("own", "others", "old")]
    assert known == [True, True, False]
    # in another session it is noted still
    again = Models(records, "acme", lambda: here)
    answered.clear()
    again.serve(ms.Collect("", -1, ("x",)), answer)
    again.serve(ms.Drop("", -1, "own"), answer)
    assert isinstance(again.serve(ms.Drop("", -1, "gone"), answer), ms.Ready)
    collect, drop = answered
    assert isinstance(collect, ms.Collect)
    assert collect.models == ("x", "old", "others")
    assert isinstance(drop, ms.Drop)
    for run in ("others", "old"):
        with pytest.raises(PolicyError, match="are to be dropped is not one of this analyst's"):
            again.serve(ms.Drop("", -1, run), answer)
    assert len(answered) == 2


# -- what is left of them when a grant ends --------------------------------------------------------

WEIGHTS = "WEIGHTS OF MODEL {}"
AGAIN = GRANT + " UNTIL TIMESTAMP '{}'"


def owns(path: Path, *texts: str) -> list[dict[str, object]]:
    with sqlfl.owner(path) as owner:
        return owner.sql("; ".join([*texts, "SHOW GRANTS"])).arrow().to_pylist()


def test_weights_are_of_the_analyst_who_has_the_table(path: Path) -> None:
    run = train(path, "acme")
    with spoken(path, "globex") as client:
        refused(ask(client, ms.SendBlock("", 0, run, 0)), "is not one of this analyst's")
    with federation(path, "acme") as fed:
        assert len(fed.sql(WEIGHTS.format("m")).arrow())
    shown = owns(path, "REVOKE TRAIN ON patients FROM 'acme'")
    assert [(row["analyst"], row["models"]) for row in shown] == [("globex", ""), ("acme", "m")]
    gone = r"TRAIN on main\.patients, which the model was trained on, is not granted to acme any"
    with federation(path, "acme") as fed, pytest.raises(PolicyError, match=gone):
        fed.sql(WEIGHTS.format("m"))
    shown = owns(path, "REVOKE ALL ON patients FROM 'acme'")
    assert [(row["grant"], row["analyst"], row["models"]) for row in shown] == [
        (2, "globex", ""), (None, "acme", "m"),
    ]  # fmt: skip
    owns(path, GRANT)
    with federation(path, "acme") as fed:
        assert len(fed.sql(WEIGHTS.format("m")).arrow())
    owns(path, "REVOKE ALL ON patients FROM 'acme'", AGAIN.format("2020-01-01 00:00:00"))
    with federation(path, "acme") as fed, pytest.raises(PolicyError, match="any more"):
        fed.sql(WEIGHTS.format("m"))
    with federation(path, "acme") as fed:
        fed.sql("DROP MODEL m")
    assert [row["models"] for row in owns(path)] == ["", ""]


def test_models_are_locked_with_a_grant(path: Path) -> None:
    train(path, "acme")
    train(path, "globex", "g")
    shown = owns(path, "REVOKE TRAIN ON patients FROM 'acme' AND MODELS", GRANT)
    assert [row["models"] for row in shown] == ["g", "m (locked)", "m (locked)"]
    locked = "locked models that acme has trained on main.patients"
    query = TRAIN.partition("FROM ")[2]
    warm = MODEL.format(name="w").replace("FROM", "WITH (warm_start = 'm') FROM", 1)
    with federation(path, "acme") as fed:
        for text in (WEIGHTS.format("m"), f"PREDICT MODEL m FROM {query}", warm):
            with pytest.raises(PolicyError, match=locked):
                fed.sql(text)
        fed.sql(MODEL.format(name="new"))  # of after the lock
        fed.sql(f"PREDICT MODEL new FROM {query}")
        fed.sql("DROP MODEL m")
    with federation(path, "globex") as fed:
        fed.sql(WEIGHTS.format("g"))
    assert {row["models"] for row in owns(path)} == {"g", "new"}


def test_models_that_are_not_kept_are_locked_too(path: Path) -> None:
    with duckdb.connect(path) as con, in_memory() as lab:
        lab.execute(TESTS)
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("clinic", con)
            fed.attach("lab", lab)
            fed.sql(TRAIN)
            fed.sql(MODEL.format(name="w").replace("FROM", "WITH (warm_start = 'm') FROM", 1))
            fed.sql(WEIGHTS.format("w"))
            with sqlfl.owner(con) as owner:
                owner.sql("REVOKE ALL ON patients FROM 'acme' AND MODELS")
                owner.sql("REVOKE ALL ON patients FROM 'acme' AND MODELS")  # nothing is granted
                owner.sql(GRANT)
            for name in "mw":
                with pytest.raises(PolicyError, match="its owner has locked models"):
                    fed.sql(WEIGHTS.format(name))


def test_models_of_which_it_was_not_noted_tell_no_weights(path: Path) -> None:
    run = train(path, "acme")
    with duckdb.connect(path) as con:
        con.execute("DROP TABLE sqlfl.trained; DROP TABLE sqlfl.locks; DROP TABLE sqlfl.draws")
    assert [row["models"] for row in owns(path)] == ["", ""]  # a store of before
    with federation(path, "acme") as fed:
        with pytest.raises(PolicyError, match="it is not noted which tables a model"):
            fed.sql(WEIGHTS.format("m"))
        fed.sql("PREDICT MODEL m FROM " + TRAIN.partition("FROM ")[2])
        # nor does what is trained further, whose first weights are theirs
        for name, before in ("wm", "vw"):
            warm = f"WITH (warm_start = '{before}') FROM"
            fed.sql(MODEL.format(name=name).replace("FROM", warm, 1))
            with pytest.raises(PolicyError, match="it is not noted which tables a model"):
                fed.sql(WEIGHTS.format(name))
    with federation(path, "acme") as fed:
        with pytest.raises(PolicyError, match="it is not noted which tables a model"):
            fed.sql(WEIGHTS.format("v"))
        fed.sql("DROP MODEL v")
        fed.sql("DROP MODEL w")
        fed.sql(MODEL.format(name="m"))
        fed.sql(WEIGHTS.format("m"))
    assert runs(path) != [run]
    assert owns(path)[0]["models"] == "m"


def test_a_model_of_another_analyst_tells_no_weights_by_training_further(path: Path) -> None:
    run = train(path, "acme")
    with duckdb.connect(path) as con:
        records = Records(con, "clinic")
        acme, globex = (Models(records, name, lambda: [run]) for name in ("acme", "globex"))
        assert acme.tables(run) == {("clinic", "main", "patients")}
        assert globex.tables(run) == acme.tables("of before") == {UNKNOWN}


def test_an_export_has_weights(path: Path, tmp_path: Path) -> None:
    """Blocks are written by the party in this process, without a message."""
    folders = iter(tmp_path / f"export{n}" for n in range(9))
    text = "EXPORT MODEL m TO '{}' WITH (formats = ['sql'])"
    train(path, "acme")
    with federation(path, "acme") as fed:
        fed.sql(text.format(next(folders)))
    for ended, why in (
        ("REVOKE TRAIN ON patients FROM 'acme'", "is not granted to acme any more"),
        ("REVOKE ALL ON patients FROM 'acme' AND MODELS", "its owner has locked models"),
        ("CREATE OR REPLACE TRAINING POLICY r WITH (weights = 'never')", "weights = 'never'"),
    ):
        owns(path, ended)
        folder = next(folders)
        with federation(path, "acme") as fed, pytest.raises(PolicyError) as refused_:
            fed.sql(text.format(folder))
        assert refused_.value.message.startswith("party clinic/0: ")
        assert why in refused_.value.message
        assert not folder.exists()
