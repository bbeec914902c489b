"""Whether what a party, or a coordinator, has kept of messages hangs together."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import zip_longest
from typing import TypeAlias

import duckdb
import pyarrow as pa
from sqlglot import exp

from sqlfl.chain import COLUMNS, FINISH, SEAL, SEALED, START, Entry, Row, linked
from sqlfl.errors import Error
from sqlfl.files import may_be_written, open_source
from sqlfl.guard.keeping import flush_all
from sqlfl.result import Result
from sqlfl.sources import database_path
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
"""Of `fed.chain()`."""
Fault: TypeAlias = "tuple[str, str, str]"


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
    """A chain's entries, as `fed.chain()` gives them."""
    columns = list(zip(*rows, strict=True)) or [()] * len(LINKS)
    return Result(pa.table([list(column) for column in columns], schema=LINKS))


def _rows(kept: Kept) -> list[Row]:
    if isinstance(kept, Result):
        return [tuple(row.values()) for row in kept.arrow().to_pylist()]
    with ExitStack() as stack:
        if isinstance(kept, duckdb.DuckDBPyConnection):
            con = kept
        else:
            path = database_path(kept, "verify")
            opened = open_source(path, read_only=not may_be_written(path))
            con = stack.enter_context(closing(opened))
        cursor = stack.enter_context(closing(sql.waiting(con.cursor)))
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
    """In one chain: what does not follow from what is before it, and heads of runs that were told
    and are those of other messages."""
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
        heads[key].update(entry.said)


def _differences(party: Sequence[Row], coordinator: Sequence[Row]) -> Iterator[Fault]:
    """Of runs that the coordinator knows at this party's clients, and of heads of a whole chain
    that the other side was told."""
    sides = [_by_run(map(_entry, rows)) for rows in (party, coordinator)]
    clients = {_entry(row).client for row in party}
    if coordinator and not party:
        yield "party", "", "it has no entries, and the coordinator has some, perhaps of its clients"
    for key, theirs in sides[1].items():
        client, run = key
        if client not in clients:
            continue
        own = sides[0].get(key, [])
        pairs = zip_longest(own, theirs)
        place = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), None)
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


def _by_run(entries: Iterable[Entry]) -> dict[tuple[str, str], list[tuple[object, ...]]]:
    """Its messages until it is finished."""
    found: dict[tuple[str, str], list[tuple[object, ...]]] = {}
    finished: set[tuple[str, str]] = set()
    for own in entries:
        key = own.client, own.run
        if own.run and key not in finished:
            found.setdefault(key, []).append((own.direction, own.kind, own.size, own.sha256))
        if own.kind == FINISH:
            finished.add(key)
    return found


def _told(entry: Entry) -> tuple[str, str]:
    head, _, whole = entry.told.partition(" ")
    return head, whole


def _entry(row: Row) -> Entry:
    return Entry(*row[1:-1])


TOLD = {SEAL: "coordinator", SEALED: "party"}
