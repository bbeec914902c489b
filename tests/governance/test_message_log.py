"""What a party keeps of its messages with a coordinator, and what is said to have left."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing

import duckdb
import pyarrow as pa
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.contract.methods import load_messages
from sqlfl.governance.message_log import NO_WORDS, Keeping, flush_all, left, words_of
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from sqlfl.messages.disclosed import KNOWN
from sqlfl.options.policies import TrainingPolicy
from sqlfl.transport.audit_chain import START, ChainEntry
from tests.open_databases import in_memory

DATA = pa.py_buffer(b"data")
KEYS, READY = ms.SendKeys("r", 0), ms.Ready("r", 0)
HEAD, CHAIN = "1" * 64, "2" * 64


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        yield found


@pytest.fixture
def records(con: duckdb.DuckDBPyConnection) -> Records:
    found = Records(con, "memory")
    Governance(found).put_policy("r", TrainingPolicy(), replace=False)
    return found


@pytest.fixture
def keeping(records: Records) -> Iterator[Keeping]:
    found = Keeping("clinic", "acme", records)
    yield found
    found.close()


def keep(own: Keeping, asked: ms.Message, told: ms.Message = READY, what: str = "") -> None:
    own.keep((asked, DATA), (told, DATA), what)


def rows(records: Records, columns: str) -> list[tuple[object, ...]]:
    with closing(records.cursor()) as cursor:
        return records.rows(cursor, f"SELECT {columns} FROM t ORDER BY seq", "chain")


def test_requests_and_replies_are_kept(keeping: Keeping, records: Records) -> None:
    keep(keeping, ms.Propose("r", -1, "", "", ()), ms.Proposed("r", -1, "[]"), "what it is")
    assert rows(records, "seq") == []
    keeping.flush()
    assert rows(records, "client, analyst, run, direction, kind, bytes, told") == [
        ("clinic", "acme", "r", "down", "propose", 4, "what it is"),
        ("clinic", "acme", "r", "up", "proposed", 4, ""),
    ]
    assert rows(records, "seq") == [(1,), (2,)]


@pytest.mark.parametrize("last", [ms.Finish("r", -1), ms.SendBlock("", -1, "m", 0)])
def test_the_last_request_writes_what_waits(
    keeping: Keeping, records: Records, last: ms.Message
) -> None:
    keep(keeping, KEYS)
    assert rows(records, "kind") == []
    keep(keeping, last)
    assert len(rows(records, "kind")) == 4


def test_heads_are_kept_by_both_sides(keeping: Keeping, records: Records) -> None:
    keep(keeping, KEYS)
    sealed = keeping.seal(ms.Seal("r", -1, HEAD, CHAIN))
    assert (sealed.run, sealed.slot, len(sealed.head)) == ("r", -1, 64)
    assert sealed.chain == START
    keep(keeping, ms.Seal("r", -1, HEAD, CHAIN), sealed, "nothing")
    keeping.flush()
    assert rows(records, "told")[2:] == [
        (f"{HEAD} {CHAIN}",), (f"{sealed.head} {START}",),
    ]  # fmt: skip
    ((head,),) = rows(records, "head")[-1:]
    assert keeping.seal(ms.Seal("r", -1, HEAD, CHAIN)).chain == head


def test_two_of_one_database_follow_on_each_other(keeping: Keeping, records: Records) -> None:
    other = Keeping("clinic", "globex", records)
    for own, times in ((keeping, 1), (other, 1), (keeping, 2), (other, 1)):
        for _ in range(times):
            keep(own, KEYS)
            own.flush()
    other.close()
    found = rows(records, "seq, analyst")
    assert [seq for seq, _ in found] == [*range(1, 11)]
    expected = ["acme"] * 2 + ["globex"] * 2 + ["acme"] * 4 + ["globex"] * 2
    assert [analyst for _, analyst in found] == expected


def test_another_thread_writes_by_a_connection_of_its_own(
    keeping: Keeping, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    by: list[bool] = []
    before = Records.append

    def append(own: Records, *given: object) -> None:
        by.append(own is records)
        before(own, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Records, "append", append)
    keep(keeping, KEYS)
    keeping._chain.flush_aside()
    keeping.flush()
    keep(keeping, KEYS)
    keeping.flush()
    assert by == [False, True]


@pytest.mark.parametrize("error", [Error("gone"), duckdb.IOException("full")])
def test_what_is_not_kept_is_said(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:  # fmt: skip
    def fail(entries: Sequence[ChainEntry]) -> str:
        raise error

    keep(keeping, KEYS)
    kept = keeping._chain._keep
    monkeypatch.setattr(keeping._chain, "_keep", fail)
    with caplog.at_level(logging.WARNING, "sqlfl.party"):
        keeping.flush()
        keeping.close()
    assert len([1 for one in caplog.records if "clinic has not kept" in one.getMessage()]) == 2
    with pytest.raises(type(error)):
        keep(keeping, ms.Finish("r", -1))
    monkeypatch.setattr(keeping._chain, "_keep", kept)


def test_what_has_left(keeping: Keeping, records: Records) -> None:
    labels = ms.Labels("r", 0, pa.array([1.0]).to_numpy(), (), pa.array([], "uint32").to_numpy())
    keep(keeping, ms.Propose("r", -1, "", "", ()), ms.Proposed("r", -1, "[]"), "a run")
    keep(keeping, KEYS, labels)
    keep(keeping, KEYS, labels)
    keep(keeping, KEYS, READY)
    keep(keeping, ms.SendKeys("s", 0), ms.Failure("s", 0, "no", ""))
    found = list(left(records))  # which writes what waits
    assert [(one.run, one.kind, one.messages, one.bytes, one.what) for one in found] == [
        ("r", "labels", 2, 8, "a run"), ("s", "failure", 1, 4, ""),
    ]  # fmt: skip
    assert {one.analyst for one in found} == {"acme"}
    assert found[0].first_at <= found[0].last_at
    assert found[0].words == ms.KINDS["labels"].words


REQUESTS = KNOWN | {k.kind for k in (ms.Keep, ms.Drop, ms.Collect, ms.ListTables)}


def test_whatever_leaves_has_words() -> None:
    load_messages()
    replies = {own.kind for own in ms.KINDS.values()} - REQUESTS
    assert "column" in replies  # of a method
    assert not [kind for kind in replies if words_of(kind) == NO_WORDS]
    assert words_of("of another version") == NO_WORDS


def test_all_that_waits_in_the_process_is_written(keeping: Keeping, records: Records) -> None:
    keep(keeping, KEYS)
    flush_all()
    assert len(rows(records, "kind")) == 2
