"""Verification of the chain of messages that a party, or a coordinator, has kept."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias

import duckdb
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error
from sqlfl.base.result import Result
from sqlfl.databases.files import may_be_written, open_source
from sqlfl.databases.sources import check_database, database_path
from sqlfl.governance.message_log import flush_all
from sqlfl.transport.audit_chain import (
    COLUMNS,
    CUT,
    DOWN,
    FINISH,
    LOST,
    SEAL,
    SEALED,
    START,
    UP,
    ChainEntry,
    Row,
    linked,
)
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place

Kept: TypeAlias = "duckdb.DuckDBPyConnection | str | os.PathLike[str] | Result"
FAULTS = pa.schema([("where", pa.string()), ("run", pa.string()), ("fault", pa.string())])
_READ = ", ".join("epoch_us(noted_at)" if name == "noted_at" else name for name in COLUMNS)
LINKS = pa.schema(
    [
        (n, pa.int64() if n == "noted_at" or t == "BIGINT" else pa.string())
        for n, t in COLUMNS.items()
    ]
)
"""Schema of `fed.chain()`."""
Fault: TypeAlias = "tuple[str, str, str]"
Said: TypeAlias = "tuple[str, str, int, str, str]"
"""Direction, kind, size and hash of a message; for CUT, the reason."""


def verify(party: Kept, coordinator: Kept | None = None) -> Result:
    """Look whether entries of a chain were changed, dropped, added or reordered; and where both are
    given, whether the two sides have the same messages of each run that both know.

    party, coordinator : the path of the file, a connection to it, or `fed.chain()`. Returns a row
    per fault, none where all is as it was; columns where, run, fault. Raises Error where there is
    no chain.

    >>> import duckdb, sqlfl
    >>> con = duckdb.connect()
    >>> _ = con.execute("CREATE TABLE t AS SELECT i % 2 = 0 AS y, sin(i) AS x FROM range(99) r(i)")
    >>> owner = sqlfl.owner(con)
    >>> _ = owner.sql("CREATE TRAINING POLICY p")
    >>> _ = owner.sql("GRANT TRAIN (x), LABEL (y) ON t TO 'acme' UNDER p")
    >>> with sqlfl.connect(analyst="acme", progress=False) as fed:
    ...     fed.attach("bank", con)
    ...     _ = fed.sql("TRAIN MODEL m USING logistic_regression TARGET y FROM (FROM bank.t)")
    ...     sqlfl.verify(con, fed.chain()).arrow().num_rows
    0
    """
    flush_all()
    own = _rows(party)
    found = [*_faults("party", own)]
    if coordinator is not None:
        other = _rows(coordinator)
        found += [*_faults("coordinator", other), *_differences(own, other)]
    columns = list(zip(*found, strict=True)) or [()] * len(FAULTS)
    return Result(pa.table([list(column) for column in columns], schema=FAULTS))


def chained(rows: Sequence[Row]) -> Result:
    """Return a chain's entries, as `fed.chain()` does."""
    columns = list(zip(*rows, strict=True)) or [()] * len(LINKS)
    return Result(pa.table([list(column) for column in columns], schema=LINKS))


def _rows(kept: Kept) -> list[Row]:
    if isinstance(kept, Result):
        return [tuple(row.values()) for row in kept.arrow().to_pylist()]
    check_database(kept, "what is verified", "sqlfl.verify('bank.duckdb', fed.chain())")
    with ExitStack() as stack:
        if isinstance(kept, duckdb.DuckDBPyConnection):
            con = kept
        else:
            path = database_path(kept, "verify")
            opened = open_source(path, read_only=not may_be_written(path))
            con = stack.enter_context(closing(opened))
        cursor = stack.enter_context(closing(sql.cursor(con)))
        table = exp.table_("chain", db="sqlfl", catalog=current_place(con)[0], quoted=True)
        place = sql.to_sql(table)
        try:
            return cursor.execute(f"SELECT {_READ} FROM {place} ORDER BY rowid").fetchall()
        except duckdb.CatalogException:
            raise Error(
                "there is no chain of messages: no run was made under a training policy",
                hint="give a party's database, or the coordinator's file",
            ) from None


def _faults(where: str, rows: Sequence[Row]) -> Iterator[Fault]:
    """Yield the faults within one chain: entries that do not follow from earlier ones, and
    exchanged heads of runs that belong to other messages.
    """
    seq, head = 0, START
    heads: defaultdict[tuple[str, str], hashlib._Hash] = defaultdict(hashlib.sha256)
    sealed: dict[tuple[str, str], str] = {}
    for row in rows:
        entry = _entry(row)
        if row[0] != seq + 1:
            what = f"entry {row[0]} stands after entry {seq}: some are missing, or in other order"
            yield where, entry.run, what
        elif linked([entry], seq, head)[0] != row:
            yield where, entry.run, f"entry {row[0]} was changed, or what is before it"
        seq, head = row[0], row[-1]
        key = entry.client, entry.run
        if entry.kind == SEAL:
            sealed[key] = heads[key].hexdigest()
        if entry.kind in TOLD and entry.told and _told(entry)[0] != sealed.get(key):
            yield where, entry.run, f"the {TOLD[entry.kind]} had other messages of the run"
        if entry.kind != CUT:
            heads[key].update(entry.said)


def _differences(party: Sequence[Row], coordinator: Sequence[Row]) -> Iterator[Fault]:
    """Yield differences in the runs that the coordinator knows at this party's clients, and in the
    exchanged heads of whole chains.
    """
    sides = [_by_run(map(_entry, rows)) for rows in (party, coordinator)]
    clients = {_entry(row).client for row in party}
    if coordinator and not party:
        yield "party", "", "it has no entries, and the coordinator has some, perhaps of its clients"
    for key, theirs in sides[1].items():
        client, run = key
        if client not in clients:
            continue
        own = sides[0].get(key, [])
        place = _departs(own, theirs)
        if place is not None:
            yield "both", run, f"message {place} of the run at {client} is not the same"
    known = {row[-1] for row in coordinator}
    for entry in map(_entry, party):
        ours = entry.kind == SEAL and _told(entry)[1] in known
        if ours and (entry.client, entry.run) not in sides[1]:
            yield "coordinator", entry.run, "the run, whose end the party was told, is missing"
    for where, rows, others, kind in (
        ("party", party, coordinator, SEALED),
        ("coordinator", coordinator, party, SEAL),
    ):
        heads = {START, *(row[-1] for row in rows)}
        for entry in map(_entry, others):
            if entry.kind != kind or not entry.told or entry.client not in clients:
                continue
            if _told(entry)[1] not in heads:
                yield where, entry.run, "entries that it had when the run ended are missing"


def _departs(party: Sequence[Said], coordinator: Sequence[Said]) -> int | None:
    """Return the place of the first message of a run, from 1, that differs from the other side's.

    If the coordinator has noted that replies are missing (CUT), the party may know fewer messages:
    requests that never came, and after a loss everything unwritten. Or it may know more: replies
    that never arrived. A coordinator that was stopped in the run lacks its last messages, and has
    not finished it.
    """
    j = 0
    for i, said in enumerate(party):
        if j < len(coordinator) and coordinator[j] == said:
            j += 1
            continue
        rest = coordinator[j:]
        cut = next((n for n, other in enumerate(rest) if other[1] == CUT), None)
        asked = i > 0 and party[i - 1][0] == DOWN
        waits = cut is not None and cut < _reason(rest[cut])[1]
        if said[0] == UP and asked and waits:
            continue  # a reply that has not arrived
        ahead = next((n for n, other in enumerate(rest) if other == said), None)
        if ahead is not None and _missed(rest[:ahead]):
            j += ahead + 1
            continue
        ends, left = _ends(coordinator), _ends(party[i:])
        ended = not (ends or left) or (ends == {SEAL} and said[1] == FINISH)
        return None if not rest and ended else i + 1
    return None if _missed(coordinator[j:]) else len(party) + 1


def _missed(messages: Sequence[Said]) -> bool:
    """Return True if the party may not know these messages, because each is before an entry about
    missing replies. If the coordinator was stopped, only requests may be missing.
    """
    group: list[Said] = []
    for said in messages:
        group.append(said)
        if said[1] == CUT:
            why, requests = _reason(said)
            lost = why == LOST
            if not lost and (len(group) - 1 > requests or any(o[0] != DOWN for o in group[:-1])):
                return False
            group.clear()
    return not group


def _reason(cut: Said) -> tuple[str, int]:
    """Return the reason why replies are missing, and their number."""
    why, _, requests = cut[-1].partition(" ")
    return why, int(requests) if requests.isdecimal() else 0


def _ends(messages: Iterable[Said]) -> set[str]:
    """Return the kinds of messages among these that end a run."""
    return {SEAL, FINISH} & {said[1] for said in messages}


def _by_run(entries: Iterable[ChainEntry]) -> dict[tuple[str, str], list[Said]]:
    """Return each run's messages until it is finished, with the places where it was cut off.

    A lost party may lose everything that it has kept since it last finished a run, of all runs.
    """
    open_: defaultdict[str, set[str]] = defaultdict(set)
    found: dict[tuple[str, str], list[Said]] = {}
    finished: set[tuple[str, str]] = set()
    for own in entries:
        key = own.client, own.run
        cut = own.kind == CUT
        said = own.direction, own.kind, own.size, own.sha256, own.told * cut
        if own.run and (cut or key not in finished):
            found.setdefault(key, []).append(said)
        if cut and _reason(said)[0] == LOST:
            for run in open_[own.client] - {own.run}:
                found[own.client, run].append((UP, CUT, 0, "", f"{LOST} 0"))
        if own.kind == FINISH:
            finished.add(key)
            open_[own.client].clear()
        elif own.run and key not in finished:
            open_[own.client].add(own.run)
    return found


def _told(entry: ChainEntry) -> tuple[str, str]:
    head, _, whole = entry.told.partition(" ")
    return head, whole


def _entry(row: Row) -> ChainEntry:
    return ChainEntry(*row[1:-1])


TOLD = {SEAL: "coordinator", SEALED: "party"}
