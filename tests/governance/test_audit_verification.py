"""The chain of messages: what is changed, dropped, added or put elsewhere is found."""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections.abc import Callable, Sequence
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
from sqlfl.base.errors import LostError
from sqlfl.contract.schema import Client
from sqlfl.governance.audit_verification import chained
from sqlfl.governance.message_log import flush_all
from sqlfl.transport.audit_chain import COLUMNS, START, ChainEntry, Row, linked
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from tests.conftest import Open
from tests.depth import SEED, THOROUGH
from tests.governance.clinic import PATIENTS, QUERY, SICK, TESTS, TRAIN, ruled

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_chain.py"
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
    return list(linked([ChainEntry(*row[1:-1]) for row in chain], 0, START))  # type: ignore[arg-type]


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
        ChainEntry(n, *(odd[(n + k) % len(odd)] for k in range(5)), n, "ab", "é") for n in range(9)
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
    for module in ("audit_verification", "owner"):
        monkeypatch.setattr(f"sqlfl.governance.{module}.may_be_written", lambda path: False)
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
        [ChainEntry(n, c, "acme", r, d, k, 1, "", told) for n, (c, r, d, k, told) in
        enumerate(said)], 0, START,
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
    entries = [ChainEntry(*row[1:-1]) for row in own]
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


# -- runs that were cut off ------------------------------------------------------------------------

Message = tuple[str, str]
BEGUN: list[Message] = [("down", "prepare"), ("up", "prepared"), ("down", "a"), ("up", "b")]
ASKED: Message = ("down", "c")
REPLY: Message = ("up", "d")
LOST, STOPPED, TWO = ("up", "cut lost 1"), ("up", "cut stopped 1"), ("up", "cut stopped 2")
GONE = ("up", "cut lost 0")
AGAIN: list[Message] = [("down", "e"), ("up", "failure")]
"""A request to a party that was restarted, and its failure: it does not know the run."""
FINISHED: list[Message] = [("down", "finish"), ("up", "ready")]
CUT_OFF = {
    "a request that did not arrive": ([*BEGUN, *FINISHED], [*BEGUN, ASKED, LOST, *FINISHED]),
    "a reply that did not arrive": (
        [*BEGUN, ASKED, REPLY, *FINISHED], [*BEGUN, ASKED, LOST, *FINISHED],
    ),
    "another party was lost": (
        [*BEGUN, ASKED, REPLY, *FINISHED], [*BEGUN, ASKED, STOPPED, *FINISHED],
    ),
    "several requests without replies": (
        [*BEGUN, ASKED, REPLY, ("down", "f"), ("up", "g"), *FINISHED],
        [*BEGUN, ASKED, ("down", "f"), TWO, *FINISHED],
    ),
    "the party was killed": (BEGUN[:2], [*BEGUN, ASKED, LOST, ("down", "finish"), LOST]),
    "and started again": ([*BEGUN[:3], *FINISHED], [*BEGUN, ASKED, LOST, *FINISHED]),
    "and asked again": ([*BEGUN[:2], *AGAIN, *FINISHED], [*BEGUN, GONE, *AGAIN, *FINISHED]),
    "it came back and went on": (
        [*BEGUN, *AGAIN, *FINISHED], [*BEGUN, ASKED, LOST, *AGAIN, *FINISHED],
    ),
    "the coordinator was killed": ([*BEGUN, ASKED, REPLY], BEGUN[:3]),
}  # fmt: skip


def kept(messages: list[Message]) -> list[Row]:
    parts = ((direction, *kind.partition(" ")) for direction, kind in messages)
    return chain(*(("bank", "r", direction, kind, told) for direction, kind, _, told in parts))


def script_finds(party: list[Row], coordinator: list[Row]) -> bool:
    script = runpy.run_path(str(SCRIPT), run_name="script")
    own, other = (script["of_runs"](rows, {"bank"}) for rows in (party, coordinator))
    return not all(script["same"](own.get(run, []), said) for run, said in other.items())


@pytest.mark.parametrize(("party", "coordinator"), CUT_OFF.values(), ids=CUT_OFF)
def test_a_run_that_was_cut_off(party: list[Message], coordinator: list[Message]) -> None:
    """The run that was resumed is another one, and whole."""
    assert faults(kept(party), kept(coordinator)) == []
    assert not script_finds(kept(party), kept(coordinator))


TAMPERED = {
    "changed": lambda said, at: [*said[:at], (said[at][0], "x"), *said[at + 1 :]],
    "dropped": lambda said, at: [*said[:at], *said[at + 1 :]],
    "added": lambda said, at: [*said[:at], ("up", "x"), *said[at:]],
    "added twice": lambda said, at: [*said[: at + 1], *said[at:]],
    "reordered": lambda said, at: [*said[:at], said[at + 1], said[at], *said[at + 2 :]],
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize("side", [0, 1], ids=["party", "coordinator"])
def test_tampering_with_a_run_that_was_cut_off(tamper, side: int) -> None:  # type: ignore[no-untyped-def]
    """At every place that both sides must have, whatever was lost."""
    certain = {
        "a reply that did not arrive": (4, 4), "another party was lost": (4, 4),
        "several requests without replies": (4, 4), "it came back and went on": (3, 3),
    }  # fmt: skip
    for name, places in certain.items():
        for at in range(places[side]):
            chains = [list(said) for said in CUT_OFF[name]]
            chains[side] = tamper(chains[side], at)
            assert faults(kept(chains[0]), kept(chains[1])), (name, at)
            assert script_finds(kept(chains[0]), kept(chains[1])), (name, at)


def test_nothing_is_missing_without_a_reason() -> None:
    """Only before what the coordinator has kept of it, and of a party that was not lost nothing."""
    assert faults(kept(BEGUN), kept([*BEGUN, ASKED, REPLY]))
    assert faults(kept(BEGUN[:2]), kept([*BEGUN, ASKED, STOPPED]))
    assert faults(kept(BEGUN[:2]), kept([*BEGUN, ASKED, LOST, *AGAIN]))
    assert faults(kept([*BEGUN, *FINISHED]), kept(BEGUN))
    assert faults(kept([*BEGUN, REPLY]), kept([*BEGUN, STOPPED]))
    assert faults(kept([*BEGUN, ASKED, REPLY]), kept([*BEGUN[:3], ASKED, STOPPED]))


def test_what_a_party_loses_is_of_all_runs_since_it_finished_one() -> None:
    """The block of a checkpoint is one example: it is kept in a run with a name of its own."""
    asked = ("bank", "r", "down", "c", "")
    saved = [("bank", "s", "down", "keep", ""), ("bank", "s", "up", "saved", "")]
    lost = ("bank", "r", "up", "cut", "lost 1")
    ended = [("bank", "r", "down", "finish", ""), ("bank", "r", "up", "ready", "")]
    party = chain(*of_run("bank")[:2], *ended)
    coordinator = chain(*of_run("bank")[:2], *saved, asked, lost, *ended)
    assert faults(party, coordinator) == []
    assert not script_finds(party, coordinator)
    before = [("bank", "q", "down", "finish", "")]
    party = chain(*before, *of_run("bank")[:2], *ended)
    coordinator = chain(*saved, *before, *of_run("bank")[:2], asked, lost, *ended)
    assert faults(party, coordinator)
    assert script_finds(party, coordinator)


class Cutting:
    """Fails in the exchange of this number with a client, before or after it is served."""

    def __init__(self, inner: Transport, at: int, error: BaseException, *, served: bool) -> None:
        self._inner, self._left, self._error, self._served = inner, at, error, served

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        self._left -= any(client.party == "clinic" for client, _ in requests)
        if self._left:
            return self._inner.exchange(requests)
        if self._served:
            self._inner.exchange(requests)
        raise self._error


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize(
    "error", [LostError("lab/0", "away"), LostError("clinic/0", "away"), KeyboardInterrupt()]
)
def test_a_statement_that_fails_in_an_exchange(
    error: BaseException, served: bool, database: Open
) -> None:
    con = database(PATIENTS)
    ruled(con)
    wrap = partial(Cutting, at=9, error=error, served=served)
    with sqlfl.Federation(analyst="acme", progress=False, wrap=wrap) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS))
        with pytest.raises((sqlfl.Error, KeyboardInterrupt)):
            fed.sql(TRAIN)
        fed.sql(TRAIN)  # another run
        assert "cut" in fed.chain().arrow()["kind"].to_pylist()
        assert sqlfl.verify(con, fed.chain()).fetchall() == []


def test_several_tables_of_a_party(database: Open) -> None:
    con = database(PATIENTS)
    con.execute("CREATE TABLE stays AS SELECT i AS ward, i % 9 AS beds FROM range(300) AS r(i)")
    ruled(con)
    ruled(con, grant="GRANT TRAIN (beds), JOIN (ward), PREDICT ON stays TO 'acme' UNDER r")
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(TESTS.replace("cos(i) AS crp", "cos(i) AS crp, i AS ward")))
        fed.sql(TRAIN.replace("p.ward,", "s.beds,").replace(
            "p.pid = t.pid", "p.pid = t.pid JOIN clinic.stays s ON s.ward = t.ward"))  # fmt: skip
        assert sqlfl.verify(con, fed.chain()).fetchall() == []
