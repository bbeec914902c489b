"""What one side keeps of its messages: when it is written, what hangs together, and what is told of
a run to the other side."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sqlfl.transport import audit_chain as chaining
from sqlfl.transport.audit_chain import (
    DOWN,
    FINISH,
    LARGE,
    LOST,
    MAX_WAITING_BYTES,
    SHARED,
    START,
    STOPPED,
    UP,
    WAITING,
    AuditChain,
    ChainEntry,
    MemoryLinks,
    linked,
)

NOTHING = hashlib.sha256().hexdigest()


class Kept:
    """What is written, and by how many turns."""

    def __init__(self) -> None:
        self.turns: list[list[ChainEntry]] = []
        self.threads: list[int] = []
        self.fails = False
        self.may = threading.Event()
        self.may.set()

    def __call__(self, entries: Sequence[ChainEntry]) -> str:
        self.may.wait(10.0)
        if self.fails:
            raise OSError("the disk is full")
        if entries:
            self.turns.append(list(entries))
            self.threads.append(threading.get_ident())
        return str(len(self.turns))

    @property
    def kinds(self) -> list[list[str]]:
        return [[entry.kind for entry in turn] for turn in self.turns]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def chain(kept: Kept) -> Iterator[AuditChain]:
    found = AuditChain("acme", kept)
    yield found
    kept.fails = False
    kept.may.set()
    found.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=100.0, time_ns=time.time_ns)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(chaining, "time", found)
    return found


def note(
    chain: AuditChain, kind: str, run: str = "r", direction: str = DOWN, text: str = "x"
) -> None:
    chain.note("clinic", run, direction, kind, pa.py_buffer(text.encode()))


def head(*said: tuple[str, str, str]) -> str:
    """Of direction, kind and text of a run's messages."""
    found = hashlib.sha256()
    for direction, kind, text in said:
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.update(f"{direction} {kind} {len(text)} {digest}\n".encode())
    return found.hexdigest()


def test_what_is_noted_is_written_in_its_order(chain: AuditChain, kept: Kept) -> None:
    note(chain, "a", text="1")
    chain.note("clinic", "r", UP, "b", pa.py_buffer(b"22"), "words")
    assert not kept.turns
    chain.flush()
    ((first, second),) = kept.turns
    assert first[1:] == ("clinic", "acme", "r", DOWN, "a", 1, hashlib.sha256(b"1").hexdigest(), "")
    assert second[1:] == (
        "clinic", "acme", "r", UP, "b", 2, hashlib.sha256(b"22").hexdigest(), "words",
    )  # fmt: skip
    assert abs(first.at - time.time_ns() // 1000) < 60_000_000
    chain.flush()
    assert len(kept.turns) == 1
    note(chain, "c")
    chain.close()
    assert kept.kinds == [["a", "b"], ["c"]]


def test_what_waits_is_written_after_a_while(
    chain: AuditChain, kept: Kept, clock: SimpleNamespace
) -> None:
    clock.now += 10 * WAITING  # nothing waits meanwhile
    note(chain, "a")
    clock.now += 0.75 * WAITING
    note(chain, "b")
    clock.now += 0.25 * WAITING
    note(chain, "c")
    assert chain._kept is None
    clock.now += 0.25 * WAITING  # of the first one
    note(chain, "d")
    assert chain._kept is not None
    chain._kept.result(10.0)
    assert kept.kinds == [["a", "b", "c", "d"]]
    assert kept.threads != [threading.get_ident()]
    clock.now += 10 * WAITING
    note(chain, "e")
    chain.heads("clinic", "r")  # it waits, and is hashed
    clock.now += 0.75 * WAITING
    note(chain, "f")
    clock.now += 0.5 * WAITING
    note(chain, "g")
    assert chain._kept is not None
    chain._kept.result(10.0)
    assert kept.kinds[1:] == [["e", "f", "g"]]


def test_one_thread_writes_at_once(chain: AuditChain, kept: Kept) -> None:
    kept.may.clear()
    note(chain, "a")
    chain.flush_aside()
    first = chain._kept
    assert first is not None
    chain.flush_aside()
    assert chain._kept is first
    kept.may.set()
    first.result(10.0)
    chain.flush_aside()
    assert chain._kept is not first


def test_what_is_written_aside_is_there_after_a_flush(chain: AuditChain, kept: Kept) -> None:
    kept.may.clear()
    note(chain, "a")
    chain.flush_aside()
    threading.Timer(0.05, kept.may.set).start()
    chain.flush()
    assert kept.kinds == [["a"]]


def test_nothing_goes_on_in_another_thread_after_a_flush(kept: Kept) -> None:
    @contextmanager
    def aside() -> Iterator[None]:
        yield
        time.sleep(0.1)
        ended.append(True)

    ended: list[bool] = []
    chain = AuditChain("acme", kept, aside)
    note(chain, "a")
    chain.flush_aside()
    chain.flush()
    assert ended == [True]
    chain.close()


def test_threads_end_with_it_and_begin_again(chain: AuditChain, kept: Kept) -> None:
    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith("sqlfl-chain")}

    before = threads()
    for _ in range(2):
        note(chain, "a", text="x" * LARGE)
        chain.flush_aside()
        chain.flush()
        assert len(threads() - before) == 2
        chain.close()
        assert threads() == before
    assert kept.kinds == [["a"], ["a"]]


def test_what_is_not_taken_waits_and_nothing_else_is_noted(chain: AuditChain, kept: Kept) -> None:
    note(chain, "a")
    kept.fails = True
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            chain.flush()
    with pytest.raises(OSError, match="full"):
        note(chain, "b")
    kept.fails = False
    note(chain, "c")
    assert kept.kinds == [["a"]]
    note(chain, "d")
    chain.flush()
    assert kept.kinds == [["a"], ["c", "d"]]


def test_the_head_of_a_run_is_of_its_messages(chain: AuditChain, kept: Kept) -> None:
    assert chain.heads("clinic", "r") == (NOTHING, "0")
    note(chain, "a", text="1")
    note(chain, "b", run="s")
    note(chain, "c", run="")
    chain.note("lab", "r", DOWN, "d", pa.py_buffer(b"x"))
    note(chain, "e", direction=UP, text="2")
    expected = head((DOWN, "a", "1"), (UP, "e", "2"))
    assert chain.heads("clinic", "r") == (expected, "0")
    assert chain.heads("clinic", "s")[0] == head((DOWN, "b", "x"))
    assert chain.heads("clinic", "")[0] == NOTHING
    chain.flush()
    assert chain.heads("clinic", "r") == (expected, "1")


def test_the_head_of_a_run_ends_with_it(chain: AuditChain) -> None:
    note(chain, "a")
    note(chain, FINISH, direction=UP)
    said = [(DOWN, "a", "x"), (UP, FINISH, "x")]
    assert chain.heads("clinic", "r")[0] == head(*said)
    note(chain, "b")
    assert chain.heads("clinic", "r")[0] == head(*said, (DOWN, "b", "x"))
    note(chain, FINISH, run="s")
    note(chain, "c")
    assert chain.heads("clinic", "r")[0] != NOTHING
    note(chain, FINISH)
    assert chain.heads("clinic", "r")[0] == NOTHING
    note(chain, "d")
    assert chain.heads("clinic", "r")[0] == head((DOWN, "d", "x"))


def test_a_party_that_is_lost_may_lack_messages_of_all_its_open_runs(chain: AuditChain) -> None:
    for client, run in (("bank", "open"), ("bank", "over"), ("shop", "open")):
        chain.note(client, run, DOWN, "start", pa.py_buffer(b"asked"))
    chain.note("bank", "over", DOWN, FINISH, pa.py_buffer(b"over"))
    chain.flush()
    chain.note("bank", "new", DOWN, "start", pa.py_buffer(b"asked"))
    chain.cut("bank", "kept", LOST, 1)
    runs = [("bank", "open"), ("bank", "new"), ("bank", "kept"), ("bank", "over"), ("shop", "open")]
    assert [chain.is_whole(*run) for run in runs] == [False, False, False, True, True]
    chain.cut("shop", "kept", STOPPED, 1)
    assert chain.is_whole("shop", "open")


def test_large_messages_are_hashed_aside(chain: AuditChain, kept: Kept) -> None:
    large = "x" * LARGE
    note(chain, "a", text=large[1:])
    note(chain, "b", text=large)
    small, other = (hashed for _, hashed in chain._noted)
    assert isinstance(small, pa.Buffer)
    assert not isinstance(other, pa.Buffer)
    chain.flush()
    ((first, second),) = kept.turns
    assert (first.size, second.size) == (LARGE - 1, LARGE)
    assert first.sha256 == hashlib.sha256(large[1:].encode()).hexdigest()
    assert second.sha256 == hashlib.sha256(large.encode()).hexdigest()


def test_messages_are_not_held_for_long(chain: AuditChain) -> None:
    data = pa.allocate_buffer(LARGE // 2)
    whole = MAX_WAITING_BYTES // data.size
    for _ in range(whole):
        chain.note("clinic", "r", DOWN, "a", data)
    assert len(chain._noted) == whole == MAX_WAITING_BYTES / data.size
    chain.note("clinic", "r", DOWN, "a", data)
    assert not chain._noted
    chain.note("clinic", "r", DOWN, "a", data)
    assert len(chain._noted) == 1


def test_two_sides_of_one_process_hash_a_message_once() -> None:
    hashes = chaining._Hashes()
    aside = chaining._Aside("test")
    large = [pa.py_buffer(bytes([n]) * LARGE) for n in range(SHARED + 1)]
    first = hashes.of(large[0], aside.submit)
    assert hashes.of(large[0], aside.submit) is first
    again = hashes.of(large[0], aside.submit)  # the other side had it
    assert again is not first
    others = [hashes.of(own, aside.submit) for own in large[1:]]
    assert hashes.of(large[1], aside.submit) is others[0]
    assert hashes.of(large[-1], aside.submit) is others[-1]
    assert hashes.of(large[0], aside.submit) is not again  # too many were between
    for own, found in zip(large[1:], others, strict=True):
        assert found.result() == hashlib.sha256(own).hexdigest()
    aside.close()


def test_entries_hang_together() -> None:
    first, second = (
        ChainEntry(1, "clinic", "acme", "r", DOWN, kind, 3, "digest", "") for kind in ("a", 'b"')
    )
    rows = linked([first, second], 0, START)
    assert [row[0] for row in rows] == [1, 2]
    assert rows[0][:-1] == (1, *first)
    text = f'["{START}", 1, 1, "clinic", "acme", "r", "down", "a", 3, "digest", ""]'
    assert rows[0][-1] == hashlib.sha256(text.encode()).hexdigest()
    assert linked([second], 1, rows[0][-1]) == rows[1:]
    assert linked([second], 1, START)[0][-1] != rows[1][-1]
    assert linked([], 7, START) == []


def test_entries_that_are_kept_in_memory_hang_together() -> None:
    first, second, third = (
        ChainEntry(1, "clinic", "acme", "r", DOWN, kind, 3, "digest", "") for kind in "abc"
    )
    links = MemoryLinks()
    assert (links.keep([]), links.rows()) == (START, [])
    rows = linked([first, second, third], 0, START)
    assert links.keep([first, second]) == rows[1][-1]
    assert links.keep([]) == rows[1][-1]
    assert links.keep([third]) == rows[2][-1]
    assert links.rows() == rows
