"""The chain of messages: what is changed, dropped, added or put elsewhere is found."""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.__main__ import main
from sqlfl.chain import COLUMNS, START, Entry, Row, linked
from sqlfl.guard.keeping import flush_all
from sqlfl.transport.recording import RecordingTransport
from sqlfl.verifying import chained
from tests.conftest import Open
from tests.depth import SEED, THOROUGH
from tests.guard.clinic import PATIENTS, QUERY, SICK, TESTS, TRAIN, ruled

SCRIPT = Path(__file__).parent.parent / "examples" / "verify_chain.py"
NAMES = list(COLUMNS)
FIELDS = NAMES[1:-1]


@dataclass
class Files:
    party: Path
    coordinator: Path

    def faults(self, *, alone: bool = False) -> list[str]:
        found = sqlfl.verify(self.party, None if alone else self.coordinator).arrow()
        return [str(fault) for fault in found["fault"].to_pylist()]

    def script_says(self, monkeypatch: pytest.MonkeyPatch, *, alone: bool = False) -> int:
        paths = [self.party] if alone else [self.party, self.coordinator]
        monkeypatch.setattr(sys, "argv", ["verify_chain.py", *map(str, paths)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Three runs, one of which the party refuses, between two files."""
    folder = tmp_path_factory.mktemp("chain")
    files = Files(folder / "clinic.duckdb", folder / "coordinator.duckdb")
    with closing(duckdb.connect(files.party)) as con, closing(duckdb.connect()) as lab:
        con.execute(PATIENTS)
        lab.execute(TESTS)
        ruled(con, "kinds = ['linear_regression', 'logistic_regression']")
        with sqlfl.connect(files.coordinator, analyst="acme", progress=False) as fed:
            fed.attach("clinic", con)
            fed.attach("lab", lab)
            fed.sql(TRAIN)
            fed.sql(SICK)
            with pytest.raises(sqlfl.PolicyError, match="kinds"):
                fed.sql(TRAIN.replace("linear", "poisson"))
    return files


@pytest.fixture
def files(written: Files, tmp_path: Path) -> Files:
    own = Files(tmp_path / "clinic.duckdb", tmp_path / "coordinator.duckdb")
    own.party.write_bytes(written.party.read_bytes())
    own.coordinator.write_bytes(written.coordinator.read_bytes())
    return own


def rows(path: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(path, read_only=True) as con:
        text = "SELECT * REPLACE (epoch_us(noted_at) AS noted_at) FROM sqlfl.chain ORDER BY rowid"
        return con.execute(text).fetchall()


def write(path: Path, chain: list[tuple[object, ...]]) -> None:
    with duckdb.connect(path) as con:
        con.execute("DELETE FROM sqlfl.chain")
        con.register("written", pa.table(list(zip(*chain, strict=True)), NAMES))
        text = "SELECT * REPLACE (make_timestamptz(noted_at) AS noted_at) FROM written"
        con.execute(f"INSERT INTO sqlfl.chain {text}")


def rechained(chain: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """With heads that hang together again, as who has the whole file can make them."""
    return list(linked([Entry(*row[1:-1]) for row in chain], 0, START))  # type: ignore[arg-type]


def test_what_was_kept_hangs_together(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.faults() == []
    assert files.script_says(monkeypatch) == 0
    assert files.script_says(monkeypatch, alone=True) == 0
    kept = {row[5] for row in rows(files.party)}
    assert kept == {"down", "up"}
    assert len({row[4] for row in rows(files.party)} - {""}) == 3
    runs = [{row[4] for row in rows(path)} | {""} for path in (files.party, files.coordinator)]
    assert runs[0] == runs[1]


def changed(name: str, chain: list[tuple[object, ...]], draw: Random) -> list[tuple[object, ...]]:
    at = draw.randrange(len(chain))
    row = list(chain[at])
    place = NAMES.index(name)
    row[place] = row[place] + 1 if isinstance(row[place], int) else f"{row[place]}x"
    return [*chain[:at], tuple(row), *chain[at + 1 :]]


def dropped(chain: list[tuple[object, ...]], draw: Random) -> list[tuple[object, ...]]:
    at = draw.randrange(len(chain) - 1)
    return [*chain[:at], *chain[at + 1 :]]


def numbered(chain: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [(n, *row[1:]) for n, row in enumerate(chain, 1)]


def added(chain: list[tuple[object, ...]], draw: Random) -> list[tuple[object, ...]]:
    at = draw.randrange(len(chain))
    return [*chain[: at + 1], *chain[at:]]


def reordered(chain: list[tuple[object, ...]], draw: Random) -> list[tuple[object, ...]]:
    at = draw.randrange(len(chain) - 1)
    return [*chain[:at], chain[at + 1], chain[at], *chain[at + 2 :]]


CHANGES = {
    **{f"{name} changed": partial(changed, name) for name in FIELDS},
    "dropped": dropped,
    "dropped and numbered anew": lambda chain, draw: numbered(dropped(chain, draw)),
    "added": added,
    "added and numbered anew": lambda chain, draw: numbered(added(chain, draw)),
    "reordered": reordered,
    "reordered and numbered anew": lambda chain, draw: numbered(reordered(chain, draw)),
}
Change = Callable[[list[tuple[object, ...]], Random], list[tuple[object, ...]]]


@pytest.mark.parametrize("side", ["party", "coordinator"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_entry_is_found(
    change: Change, side: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = getattr(files, side)
    chain = rows(path)
    for seed in range(40 if THOROUGH else 1):
        write(path, change(chain, Random(SEED + seed)))
        assert files.faults(alone=side == "party")
        assert files.script_says(monkeypatch) == 1


def ending(chain: list[tuple[object, ...]]) -> int:
    """The place of the last message that finishes a run."""
    return max(place for place, row in enumerate(chain) if row[6] == "finish")


@pytest.mark.parametrize("side", ["party", "coordinator"])
def test_a_chain_that_was_made_anew_is_not_the_other_sides(
    side: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it cannot be told from one that was kept."""
    path = getattr(files, side)
    chain = rows(path)
    of_models = ("keep", "saved", "drop", "ready")  # after the run
    of_run = [place for place, row in enumerate(chain) if row[4] and row[6] not in of_models]
    draw = Random(SEED)
    for _ in range(40 if THOROUGH else 3):
        at = draw.choice(of_run)
        row = list(chain[at])
        row[8] = hashlib.sha256(str(draw.random()).encode()).hexdigest()
        write(path, rechained([*chain[:at], tuple(row), *chain[at + 1 :]]))
        assert any("is not the same" in fault for fault in files.faults())
        assert files.script_says(monkeypatch) == 1


@pytest.mark.parametrize("side", ["party", "coordinator"])
def test_the_last_run_is_cut_off(side: str, files: Files) -> None:
    path = getattr(files, side)
    chain = rows(path)
    run = chain[ending(chain)][4]
    write(path, [row for row in chain if row[4] != run or row[0] != chain[-1][0]][:-6])
    assert files.faults()
    write(path, chain[: next(place for place, row in enumerate(chain) if row[4] == run)])
    assert files.faults()


def test_a_head_that_is_told_is_a_lie(files: Files) -> None:
    """The coordinator tells the party the head of other messages than there were."""
    chain = rows(files.party)
    at = next(place for place, row in enumerate(chain) if row[6] == "seal")
    row = list(chain[at])
    row[9] = f"{'ab' * 32} {str(row[9]).split()[1]}"
    write(files.party, rechained([*chain[:at], tuple(row), *chain[at + 1 :]]))
    assert any("the coordinator had other messages" in f for f in files.faults(alone=True))


def test_an_entry_is_hashed_as_json_has_it() -> None:
    """Whatever is in it: the head is that which anybody's JSON gives."""
    odd = ('"', "\\", "\n\t\0", "ä🜁", "\u2028", "", "</x>")
    entries = [
        Entry(n, *(odd[(n + k) % len(odd)] for k in range(5)), n, "ab", "é") for n in range(9)
    ]
    head = START
    for row in linked(entries, 0, START):
        *fields, found = row
        head = hashlib.sha256(json.dumps([head, *fields]).encode()).hexdigest()
        assert found == head


def test_entries_are_the_bytes_that_crossed(database: Open) -> None:
    recorded: list[RecordingTransport] = []

    def wrap(inner):  # type: ignore[no-untyped-def]
        recorded.append(RecordingTransport(inner))
        return recorded[0]

    con = database(PATIENTS)
    ruled(con)
    with sqlfl.Federation(analyst="acme", progress=False, wrap=wrap) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS))
        fed.sql(TRAIN)
        kept = fed.chain().arrow().to_pylist()
    crossed = [
        (item.direction, len(item.data), hashlib.sha256(item.data).hexdigest())
        for item in recorded[0].recorded
        if item.client.party == "clinic"
    ]
    flush_all()
    own = con.execute("SELECT direction, bytes, sha256 FROM sqlfl.chain ORDER BY seq").fetchall()
    assert own == crossed
    told = [(row["direction"], row["bytes"], row["sha256"]) for row in kept]
    assert told == crossed[-len(told) :]
    assert len(told) > 20


@pytest.fixture
def broken(files: Files) -> Files:
    with duckdb.connect(files.party) as con:
        con.execute("UPDATE sqlfl.chain SET bytes = bytes + 1 WHERE seq = 9")
    return files


def test_at_the_command_line(
    broken: Files, written: Files, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["verify", str(written.party), str(written.coordinator)])
    assert capsys.readouterr().out == "nothing was changed, dropped, added or reordered\n"
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(broken.party)])
    assert ended.value.code == 1
    assert "entry 9 was changed" in capsys.readouterr().out
    empty = tmp_path / "empty.duckdb"
    duckdb.connect(empty).close()
    with pytest.raises(SystemExit, match="no run was made under a training policy"):
        main(["verify", str(empty)])


def test_a_file_that_may_only_be_read(written: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("verifying", "ownership.places"):
        monkeypatch.setattr(f"sqlfl.{module}.may_be_written", lambda path: False)
    with duckdb.connect(written.party, read_only=True):  # beside which none can be opened to write
        assert written.faults(alone=True) == []
        with sqlfl.owner(written.party) as owner:
            assert owner.sql("SHOW DISCLOSURES").arrow().num_rows > 10
            with pytest.raises(sqlfl.Error, match="clinic is read-only, and takes no records"):
                owner.sql("CREATE TRAINING POLICY another")


def test_owners_ask_what_has_left(written: Files) -> None:
    with sqlfl.owner(written.party) as owner:
        found = owner.sql("SHOW DISCLOSURES").arrow().to_pylist()
    trained = [row for row in found if row["what"].startswith("train logistic_regression by lbfgs")]
    assert {"join_keys", "labels", "predictions"} <= {row["kind"] for row in trained}
    assert {row["analyst"] for row in found} == {"acme"}
    assert all(row["first_at"] <= row["last_at"] for row in found)
    sizes = {(row[4], row[6]): 0 for row in rows(written.party)}
    for row in rows(written.party):
        sizes[row[4], row[6]] += int(str(row[7])) if row[5] == "up" else 0
    assert all(sizes[row["run"], row["kind"]] == row["bytes"] for row in found)


def test_a_database_that_takes_no_record_lets_nothing_leave(database: Open) -> None:
    """From the next run on: entries are written at the end of a run, or a second after what they
    are of."""
    con = database(PATIENTS)
    ruled(con)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS))
        fed.sql(TRAIN)
        flush_all()
        con.execute("ALTER TABLE sqlfl.chain DROP COLUMN told")
        for _ in range(3):
            before = len(fed.audit().arrow())
            with pytest.raises(sqlfl.PartyError, match="takes no record of its messages"):
                fed.sql(TRAIN)
        said = fed.audit().arrow().to_pylist()[before:]
    own = [row for row in said if row["client"] == "clinic/0" and row["direction"] == "up"]
    assert {row["kind"] for row in own} == {"failure"}


def test_the_connection_is_its_owners_again_after_a_statement(database: Open) -> None:
    """What is written then is written by another one."""
    con = database(PATIENTS, own=True)
    ruled(con)
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS))
        fed.sql(TRAIN)
        for _ in range(10):
            fed.sql(f"EVALUATE MODEL m FROM ({QUERY})")
            for _ in range(50):  # refused where another thread is at it
                con.execute("SELECT 1").fetchall()
        assert sqlfl.verify(con, fed.chain()).fetchall() == []


# -- chains by hand --------------------------------------------------------------------------------


def chain(*said: tuple[str, str, str, str, str]) -> list[Row]:
    """Of (client, run, direction, kind, told)."""
    return linked(
        [Entry(n, c, "acme", r, d, k, 1, "", told) for n, (c, r, d, k, told) in enumerate(said)],
        0, START,
    )  # fmt: skip


def faults(party: list[Row], coordinator: list[Row]) -> list[tuple[str, ...]]:
    found = sqlfl.verify(chained(party), chained(coordinator)).arrow().to_pylist()
    return [tuple(row.values()) for row in found]


def of_run(client: str) -> list[tuple[str, str, str, str, str]]:
    return [(client, "r", "down", "prepare", ""), (client, "r", "up", "prepared", ""),
            (client, "r", "down", "finish", "")]  # fmt: skip


def test_runs_at_other_parties_are_not_of_this_one() -> None:
    own = chain(*of_run("bank"))
    assert faults(own, chain(*of_run("bank"), *of_run("clinic"))) == []
    assert faults(own, own[:2]) == [("both", "r", "message 3 of the run at bank is not the same")]
    # what comes after a run is finished is no message of it
    assert faults(chain(*of_run("bank"), *of_run("bank")[:1]), own) == []


def test_an_entry_that_is_missing_is_named() -> None:
    own = chain(*of_run("bank"))
    told = "entry 3 stands after entry 1: some are missing, or in other order"
    assert ("party", "r", told) in faults([own[0], own[2]], own)
    assert faults(own, []) == []


def test_a_party_that_has_dropped_all_of_its_runs_is_found_out() -> None:
    theirs = chain(*of_run("bank"))
    planning = chain(("bank", "", "down", "list_tables", ""))
    assert faults(planning, theirs) == [
        ("both", "r", "message 1 of the run at bank is not the same")
    ]
    said = "it has no entries, and the coordinator has some, perhaps of its clients"
    assert faults([], theirs) == [("party", "", said)]
    assert faults([], []) == []


def test_heads_that_were_told_of_other_messages_of_a_run() -> None:
    before = of_run("bank")[:2]
    own = chain(*before)
    entries = [Entry(*row[1:-1]) for row in own]
    head = hashlib.sha256(b"".join(entry.said for entry in entries)).hexdigest()
    for told, good in ((head, True), ("0" * 64, False)):
        ended = chain(*before, ("bank", "r", "down", "seal", f"{told} {own[-1][-1]}"))
        said = "the coordinator had other messages of the run"
        assert (("party", "r", said) not in faults(ended, chain(*before))) is good


def test_entries_that_the_other_side_had_when_the_run_ended() -> None:
    head = hashlib.sha256(b"").hexdigest()
    missing = "entries that it had when the run ended are missing"

    def ended(client: str, kind: str, whole: str) -> list[Row]:
        return chain((client, "r", "down", kind, f"{head} {whole}"))

    first = chain(("bank", "r", "down", "prepare", ""))
    for whole, good in ((first[-1][-1], True), (START, True), ("1" * 64, False)):
        told = faults(ended("bank", "seal", whole), first)
        assert (("coordinator", "r", missing) not in told) is good
    # a head that another party has told is not of this one's chain
    for client, told_of in (("bank", True), ("clinic", False)):
        found = faults(first, ended(client, "sealed", "1" * 64))
        assert (("party", "r", missing) in found) is told_of
