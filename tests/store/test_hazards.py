"""Models that last, where people and machines get in each other's way."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import duckdb
import pytest

import sqlfl
from sqlfl.base.interrupts import deferred
from sqlfl.contract.schema import Client
from sqlfl.databases import files
from sqlfl.messages.wire import decode
from sqlfl.transport import base
from sqlfl.udfs.sql import waiting
from tests import lasting
from tests.depth import SEED, THOROUGH
from tests.lasting import FILES, Trained, evaluate, kept_runs, make_trained, opened, train

ROOT = Path(__file__).parent.parent.parent
REPLACE = "TRAIN OR REPLACE MODEL"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lasting.make(tmp_path)
    return tmp_path


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return make_trained(tmp_path)


def edit(path: Path, *statements: str) -> None:
    with contextlib.closing(duckdb.connect(str(path))) as con:
        for statement in statements:
            con.execute(statement)


def names(fed: sqlfl.Federation) -> list[str]:
    return [row[0] for row in fed.sql("SHOW MODELS").fetchall()]


def together(*work: Callable[[], object]) -> list[BaseException]:
    """What the functions raise, each in a thread of its own."""
    errors: list[BaseException] = []

    def caught(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    return errors


# -- names -----------------------------------------------------------------------------------------


def test_names_that_differ_for_python_only_do_not_replace_each_other(folder: Path) -> None:
    """Python knows two small sigmas, DuckDB one."""
    with opened(folder) as fed:
        fed.sql(train('"ΟΔΟΣ"', epochs=1))
        fed.sql(train('"οδοσ"', epochs=1))
        known = names(fed)
    with opened(folder) as fed:
        assert names(fed) == known == ["ΟΔΟΣ", "οδοσ"]
        assert evaluate(fed, '"ΟΔΟΣ"') > 0


def test_models_keep_their_order(folder: Path) -> None:
    with opened(folder) as fed:
        for name in ("a", "b"):
            fed.sql(train(name, epochs=1))
        fed.sql(train("a", head=REPLACE, epochs=1))
        assert names(fed) == ["b", "a"]
    with opened(folder) as fed:
        assert names(fed) == ["b", "a"]


def test_parties_names_ignore_case(trained: Trained) -> None:
    assert len({Client("a"), Client("A"), Client("a", 1)}) == 2
    folder = trained.folder
    with sqlfl.connect(folder / "coordinator.duckdb") as fed:
        fed.attach("Census", [folder / name for name in FILES[:2]])
        fed.attach("GEO", folder / FILES[2])
        assert evaluate(fed) == pytest.approx(trained.loss)
        fed.sql("DROP MODEL m")
    assert [kept_runs(folder / name) for name in FILES] == [[], [], []]


# -- what people do to files -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sqlfl", "SQLFL"])
def test_a_schema_of_the_owners(name: str, folder: Path) -> None:
    edit(
        folder / FILES[2],
        f"CREATE SCHEMA {name}",
        f"CREATE TABLE {name}.mine AS SELECT 1 AS x",
        f"CREATE MACRO {name}.f(a) AS a + 1",
    )
    with opened(folder) as fed:
        fed.sql(train())
    with opened(folder) as fed:
        assert evaluate(fed) > 0
        fed.sql("DROP MODEL m")
    with contextlib.closing(duckdb.connect(str(folder / FILES[2]))) as con:
        tables = con.execute(f"SELECT table_name FROM duckdb_tables() WHERE schema_name = '{name}'")
        assert tables.fetchall() == [("mine",)]
        assert con.execute(f"SELECT {name}.f(x) FROM {name}.mine").fetchall() == [(2,)]


@pytest.mark.parametrize("kind", ["TABLE", "VIEW"])
@pytest.mark.parametrize("name", ["blocks", "Secrets"])
def test_a_table_of_the_owners_under_our_name(kind: str, name: str, folder: Path) -> None:
    edit(folder / FILES[2], "CREATE SCHEMA sqlfl", f"CREATE {kind} sqlfl.{name} AS SELECT 1 AS x")
    with sqlfl.connect(folder / "c.duckdb") as fed:
        with pytest.raises(sqlfl.PartyError, match=rf"(?s)sqlfl\.{name.lower()} is not.*store="):
            fed.attach("geo", folder / FILES[2])
        fed.attach("geo", folder / FILES[2], folder / "store.duckdb")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sqlfl.blocks SET block = 'xx'::BLOB",
        "UPDATE sqlfl.blocks SET block = NULL",
        "UPDATE sqlfl.blocks SET format = NULL",
        "UPDATE sqlfl.blocks SET format = 0",
        "INSERT INTO sqlfl.blocks FROM sqlfl.blocks",
    ],
)
def test_a_damaged_block(change: str, trained: Trained, caplog: pytest.LogCaptureFixture) -> None:
    folder = trained.folder
    edit(folder / FILES[2], change)
    with opened(folder) as fed:
        with pytest.raises(sqlfl.PartyError, match=r"(?s)geo/0: its block .* is damaged.*hint: "):
            evaluate(fed)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        fed.sql(train(head=REPLACE))
        assert evaluate(fed) > 0
        fed.sql("DROP MODEL m")
    assert [kept_runs(folder / name) for name in FILES] == [[], [], []]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE models SET document = '{'", r"what it holds of model m.*backup"),
        ("UPDATE models SET document = '{}'", r"what it holds of model m.*backup"),
        ("UPDATE models SET document = '[1]'", r"what it holds of model m.*backup"),
        ("UPDATE models SET history = 'xx'::BLOB", r"what it holds of model m.*backup"),
        ("UPDATE models SET history = NULL", r"what it holds of model m.*backup"),
        ("DELETE FROM coordinator", "one row without NULL, and has 0"),
        ("INSERT INTO coordinator FROM coordinator", "one row without NULL, and has 2"),
        ("UPDATE coordinator SET format = NULL", "has 1 with NULL"),
        ("DROP TABLE audit", r"the table sqlfl\.audit is not there.*backup"),
        ("DROP TABLE models", r"the table sqlfl\.models is not there.*backup"),
        ("ALTER TABLE models ALTER run TYPE BLOB", r"the column run of sqlfl\.models is BLOB"),
        ("ALTER TABLE audit DROP seq", r"the column seq of sqlfl\.audit is not there"),
    ],
)
def test_a_damaged_coordinators_file(change: str, text: str, trained: Trained) -> None:
    path = trained.folder / "coordinator.duckdb"
    edit(path, "USE coordinator.sqlfl", change)
    before = path.read_bytes()
    for _ in range(2):  # the first attempt has closed it
        with pytest.raises(sqlfl.Error, match=f"(?s){text}") as caught:
            sqlfl.connect(path)
        assert type(caught.value) is sqlfl.Error
    assert path.read_bytes() == before


@pytest.mark.parametrize("again", [False, True])
def test_a_coordinators_file_that_is_deleted_while_open(again: bool, folder: Path) -> None:
    path = folder / "coordinator.duckdb"
    fed = sqlfl.connect(path)
    fed.attach("geo", folder / FILES[2])
    text = (
        "TRAIN MODEL t USING linear_regression TARGET size FROM (SELECT size, town FROM geo.towns)"
    )
    path.unlink()
    if again:
        edit(folder / "another.duckdb", "CREATE TABLE x AS SELECT 1 AS x")
        (folder / "another.duckdb").rename(path)
    with pytest.raises(sqlfl.Error, match="deleted or replaced"):
        fed.sql(text)
    assert names(fed) == []
    with pytest.raises(sqlfl.Error, match="deleted or replaced"):  # the audit is not written
        fed.close()
    assert kept_runs(folder / FILES[2]) == []
    assert path.exists() == again


def test_a_partys_file_that_is_deleted_while_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with contextlib.closing(duckdb.connect(FILES[2])) as geo, sqlfl.connect("c.duckdb") as fed:
        fed.attach("census", [folder / name for name in FILES[:2]])
        fed.attach("geo", geo)
        (folder / "else").mkdir()
        monkeypatch.chdir(folder / "else")
        fed.sql(train(epochs=1))  # the path that DuckDB tells is relative
        (folder / FILES[2]).unlink()
        with pytest.raises(sqlfl.PartyError, match=r"geo/0: the file .* deleted or replaced"):
            fed.sql(train("n"))
        assert names(fed) == ["m"]


def test_a_model_can_be_used_where_its_parties_are_only_read(trained: Trained) -> None:
    folder, loss = trained.folder, trained.loss
    before = [(folder / name).read_bytes() for name in FILES]
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(duckdb.connect(str(folder / f), read_only=True)))
            for f in FILES
        ]
        fed = stack.enter_context(sqlfl.connect(folder / "coordinator.duckdb"))
        fed.attach("census", connections[:2])
        fed.attach("geo", connections[2])
        assert evaluate(fed) == pytest.approx(loss)
        fed.sql(train("n", more=", warm_start = 'm'"))
        assert "geo/0 is read-only" in fed.model("n").kept
        assert evaluate(fed, "n") > 0
        fed.sql("DROP MODEL n")
    assert [(folder / name).read_bytes() for name in FILES] == before
    with opened(folder) as fed:
        assert fed.model("m").run == trained.run
        assert evaluate(fed) == pytest.approx(loss)


def test_a_transaction_of_the_owners_on_the_schema(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        geo = stack.enter_context(contextlib.closing(duckdb.connect(str(folder / FILES[2]))))
        fed = stack.enter_context(sqlfl.connect(folder / "c.duckdb"))
        fed.attach("census", [folder / name for name in FILES[:2]])
        fed.attach("geo", geo)
        geo.begin()
        geo.execute("CREATE SCHEMA sqlfl")
        with pytest.raises(sqlfl.PartyError, match=r"(?s)another transaction.*roll back"):
            fed.sql(train())
        geo.rollback()
        assert names(fed) == []
        geo.begin()
        geo.execute("CREATE TABLE mine AS SELECT 1 AS x")
        fed.sql(train())
        geo.commit()
        assert geo.execute("FROM mine").fetchall() == [(1,)]


def test_an_abandoned_federation_does_not_keep_its_file(folder: Path) -> None:
    fed = sqlfl.connect(folder / "c.duckdb")
    fed.attach("geo", folder / FILES[2])
    del fed
    gc.collect()
    sqlfl.connect(folder / "c.duckdb").close()


@pytest.mark.parametrize("empty", [False, True])
def test_a_file_that_another_process_makes_at_the_same_moment(
    empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the other's, and is left alone."""
    path = tmp_path / "c.duckdb"
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); input()"
    put = files._put_in_place
    others: list[subprocess.Popen[str]] = []

    def late(draft: Path, place: Path, was_empty: bool) -> bool:
        place.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        others.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return put(draft, place, was_empty)

    monkeypatch.setattr(files, "_put_in_place", late)
    if empty:
        path.touch()
    with pytest.raises(sqlfl.Error, match="open in another process"):
        sqlfl.connect(path)
    assert path.stat().st_size > 0
    assert not list(tmp_path.glob("*.new*"))
    others[0].communicate("\n")
    sqlfl.connect(path).close()


# -- threads ---------------------------------------------------------------------------------------


class Pausing:
    """Waits for `go` before the first message of a kind, and says by `there` that it does."""

    def __init__(self, inner: base.Transport, kind: str) -> None:
        self._inner = inner
        self._kind = kind
        self.there = threading.Event()
        self.go = threading.Event()

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        if not self.there.is_set() and any(decode(d).kind == self._kind for _, d in requests):
            self.there.set()
            assert self.go.wait(timeout=60)
        return self._inner.exchange(requests)


@contextlib.contextmanager
def pausing(folder: Path, kind: str):  # type: ignore[no-untyped-def]
    made: list[Pausing] = []

    def wrap(transport: base.Transport) -> Pausing:
        made.append(Pausing(transport, kind))
        return made[0]

    with sqlfl.Federation(folder / "coordinator.duckdb", progress=False, wrap=wrap) as fed:
        fed.attach("census", [folder / name for name in FILES[:2]])
        fed.attach("geo", folder / FILES[2])
        yield fed, made[0]


@pytest.mark.parametrize("change", ["replace", "drop"])
@pytest.mark.parametrize("use", ["evaluate", "warm start"])
def test_a_model_that_is_replaced_while_it_is_used(change: str, use: str, trained: Trained) -> None:
    """The statement goes on with the model that it began with, whose blocks go when it ends."""
    folder, loss = trained.folder, trained.loss
    with pausing(folder, "prepare") as (fed, pause):
        found: list[float] = []

        def using() -> None:
            if use == "evaluate":
                found.append(evaluate(fed))
            else:
                fed.sql(train("w", more=", warm_start = 'm'"))

        def changing() -> None:
            assert pause.there.wait(timeout=60)
            fed.sql(train(head=REPLACE, l2=0.5) if change == "replace" else "DROP MODEL m")
            pause.go.set()

        assert together(using, changing) == []
        if use == "evaluate":
            assert found == [pytest.approx(loss)]
        runs = sorted(fed.model(name).run for name in names(fed))
        assert ("m" in names(fed)) == (change == "replace")
    for name in FILES:
        assert sorted(run for _, run in kept_runs(folder / name)) == runs


@pytest.mark.parametrize(("kind", "saved"), [("prepare", False), ("save", False), ("keep", True)])
def test_closing_while_another_thread_trains(kind: str, saved: bool, folder: Path) -> None:
    """It stops at the next exchange; what is being saved is saved. Nothing stays open."""
    before = set(threading.enumerate())
    with pausing(folder, kind) as (fed, pause):

        def closing() -> None:
            assert pause.there.wait(timeout=60)
            while_closing = threading.Thread(target=fed.close)
            while_closing.start()
            while not fed._closed:
                time.sleep(0.001)
            pause.go.set()
            while_closing.join(timeout=60)
            assert not while_closing.is_alive()

        errors = together(lambda: fed.sql(train()), closing)
        if saved or kind == "save":
            assert errors == []
        else:
            (error,) = errors
            assert type(error) is sqlfl.Error
            assert "the federation is closed" in str(error)
        with pytest.raises(sqlfl.Error, match="closed"):
            names(fed)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive(), thread.name
    with opened(folder) as fed:
        kept = names(fed)
        assert kept == (["m"] if errors == [] else [])
        runs = [fed.model(name).run for name in kept]
    for name in FILES:
        assert [run for _, run in kept_runs(folder / name)] == runs


def test_a_party_is_attached_once_also_from_threads() -> None:
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect())
        connections = [stack.enter_context(duckdb.connect()) for _ in range(4)]
        errors = together(*(lambda con=con: fed.attach("x", con) for con in connections))
        assert ["attached already" in str(error) for error in errors] == [True] * 3


def test_coordinators_in_threads_share_a_database(folder: Path) -> None:
    """One removes the schema when its last model goes, while the other looks into it."""
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(duckdb.connect(str(folder / name))))
            for name in FILES
        ]

        def work(number: int) -> None:
            with sqlfl.Federation(folder / f"c{number}.duckdb", progress=False) as fed:
                fed.attach("census", connections[:2])
                fed.attach("geo", connections[2])
                for _ in range(20 if THOROUGH else 2):
                    fed.sql(train(epochs=1))
                    assert evaluate(fed) > 0
                    fed.sql("DROP MODEL m")

        assert together(lambda: work(0), lambda: work(1)) == []
    assert [kept_runs(folder / name) for name in FILES] == [[], [], []]


def test_a_connection_that_its_owner_is_using_is_waited_for(folder: Path) -> None:
    """DuckDB refuses a call on it, even the making of a cursor, while another one runs."""
    with contextlib.ExitStack() as stack:
        census, more, geo = (
            stack.enter_context(contextlib.closing(duckdb.connect(str(folder / name))))
            for name in FILES
        )
        fed = stack.enter_context(sqlfl.connect(progress=False))
        begun = threading.Event()

        def own_work() -> None:
            begun.set()
            geo.execute("SELECT sum(a.i * b.i) FROM range(12000) a(i), range(12000) b(i)")

        def federated() -> None:
            assert begun.wait(30)
            time.sleep(0.05)
            fed.attach("geo", geo)
            fed.attach("census", [census, more])
            fed.sql(train(epochs=1))

        assert together(own_work, federated) == []
        assert evaluate(fed) > 0


def test_a_connection_that_stays_busy_is_an_error() -> None:
    def busy() -> None:
        raise duckdb.ResourceInUseException("busy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlfl.udfs.sql.PATIENCE", 0.01)
        with pytest.raises(sqlfl.Error, match=r"busy for 0.01 seconds\nhint: attach a connection"):
            waiting(busy)


# -- Ctrl-C ----------------------------------------------------------------------------------------


def test_ctrl_c_waits_for_the_end_and_a_second_one_does_not() -> None:
    steps = []

    def work(times: int) -> None:
        with deferred(), deferred():
            for time_ in range(times):
                signal.raise_signal(signal.SIGINT)
                steps.append(time_)

    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            work(times)
    assert steps == [0, 0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Interrupting:
    """Ctrl-C at the k-th call or return of a function of the given modules."""

    def __init__(self, k: int, *modules: str) -> None:
        self._k = k
        self._modules = modules
        self.events = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        module = os.path.basename(frame.f_code.co_filename).removesuffix(".py")
        if event in ("call", "return") and module in self._modules:
            self.events += 1
            if self.events == self._k:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


STATEMENTS = {
    "save": (train("n", epochs=1), 61),
    "replace": (train(head=REPLACE, epochs=1), 67),
    "drop": ("DROP MODEL m", 5),
}
"""And every how many events it is interrupted in the profile thorough; else at one."""


def test_ctrl_c_anywhere_in_a_statement_leaves_a_model_whole(trained: Trained) -> None:
    modules = ("saving", "registry", "coordinator_file", "session")
    chance = random.Random(SEED)
    with opened(trained.folder) as fed:
        for name, (statement, step) in STATEMENTS.items():
            points = [0]  # first it is not interrupted, and its events are counted
            for k in points:
                fed.sql("DROP MODEL IF EXISTS n")
                fed.sql(train(head="TRAIN MODEL IF NOT EXISTS", epochs=1))
                interrupt = Interrupting(k, *modules)
                with contextlib.suppress(KeyboardInterrupt):
                    try:
                        sys.setprofile(interrupt)  # type: ignore[arg-type]
                        fed.sql(statement)
                    finally:
                        sys.setprofile(None)
                if k == 0:
                    last = interrupt.events
                    assert last > 5 * step
                    last -= last // 10  # no two runs have quite as many
                    points += range(1, last, step) if THOROUGH else [chance.randint(1, last)]
                assert (interrupt.events == k) == (k > 0), (name, k)
                runs = {fed.model(model).run for model in names(fed)}
                assert len(runs) >= (name != "drop")
                for server in fed._servers.values():
                    assert not server._runs, (name, k)
                    assert server._blocks.runs == runs, (name, k)  # type: ignore[attr-defined]
                numbers = fed.audit().arrow().column("seq").to_pylist()
                assert numbers == list(range(1, len(numbers) + 1)), (name, k)
    with opened(trained.folder) as fed:
        assert {fed.model(model).run for model in names(fed)} == runs


# -- long sessions ---------------------------------------------------------------------------------


def test_an_audit_in_memory_takes_little_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHUNK", 10)
    with sqlfl.connect() as fed, duckdb.connect() as con:
        con.execute("CREATE TABLE t AS SELECT i AS a, i * i AS b FROM range(9) r(i)")
        fed.attach("x", con)
        text = "USING linear_regression TARGET b WITH (epochs = 40, algorithm = 'sgd')"
        fed.sql(f"TRAIN MODEL m {text} FROM (SELECT a, b FROM x.t)")
        assert len(fed._border.audit.records) <= 10
        numbers = fed.audit().arrow().column("seq").to_pylist()
        assert len(numbers) > 50
        assert numbers == list(range(1, len(numbers) + 1))
