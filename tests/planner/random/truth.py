"""A statement run centrally and by its plan, and what the comparison says."""

from __future__ import annotations

import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

import duckdb
import numpy as np

from sqlfl.base.errors import Error, ModelError, OptionError, ParseError, PlanError
from sqlfl.coordinator.join.join_size import SlotCodes, check_lookups, check_single, once_each
from sqlfl.federation.parser_cross_check import confirm, confirm_fragments
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel, Path
from sqlfl.planner.query.columns import distinct
from sqlfl.planner.query.draft import Roles
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import Fragment, Slot, Ucq
from tests.contradictions import unoptimized
from tests.planner.central import MergedGroups, expected_columns
from tests.planner.random.statements import Statement, made
from tests.planner.random.world import WORLD, Federated, World, opened

EQUAL, REFUSED, INVALID, UNCLEAR = "equal", "refused", "invalid", "unclear"
GOOD = (EQUAL, REFUSED, INVALID, UNCLEAR)
WRONG, FAILING = "wrong rows", "fails when run"
ACCEPTED, BROKEN, CONTRADICTED = "accepted", "broken database", "contradicted"
RARE = (ACCEPTED, BROKEN, CONTRADICTED)
"""What DuckDB refuses and the plan does not, and errors of DuckDB itself: known of few statements
in ten thousand, and never a wrong model."""
BREAKING = re.compile(r"INTERNAL Error|FATAL Error|^(unordered_)?map::at|^vector::")
"""Errors of DuckDB's own; after some of them, it answers nothing any more."""
CURED = (ParseError, PlanError, OptionError)
BOUND = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
OF_VALUES = (
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.InvalidInputException,
    duckdb.InternalException,
)
INNER_NAMES = re.compile(
    r"sqlglot|exp\.[A-Z]|expressions\.[A-Z]|\b[A-Z][a-z]+[A-Z]\w+ (?:object|node)"
)


@dataclass(frozen=True)
class Verdict:
    """One of GOOD, or what is wrong, and the message or the difference."""

    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


@dataclass(frozen=True)
class Result:
    """Columns with their types, and rows as a multiset of typed values."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: Counter[tuple[str, ...]]


def verdicts(seeds: Iterable[int]) -> Iterator[tuple[int, Statement, Verdict]]:
    """Of the statement of each seed, in the world that it has in common with its neighbours."""
    for number, own in groupby(seeds, lambda seed: seed // WORLD):
        left = list(own)
        while left:
            with opened(number) as world:
                verdict = Verdict(INVALID)
                while left and verdict.kind != BROKEN:
                    seed = left.pop(0)
                    statement, _ = made(Random(seed))
                    verdict = check(world, statement)
                    yield seed, statement, verdict


def check(world: World, statement: Statement) -> Verdict:
    """What the plan gives, against what the central database gives."""
    verdict = _checked(world, statement)
    if BREAKING.search(verdict.detail):
        return replace(verdict, kind=BROKEN)
    if verdict.kind in (WRONG, FAILING) and _is_contradicted(world, statement, verdict):
        return Verdict(CONTRADICTED, f"{verdict.kind}: {verdict.detail}")
    return verdict


def _is_contradicted(world: World, statement: Statement, verdict: Verdict) -> bool:
    """Whether the plan does as the central database does without its optimizer: it gives these
    rows, or fails with this error.

    A query with LIMIT, or an aggregate that depends on the order, may have other rows without the
    optimizer. That they are other rows is therefore not enough.
    """
    with unoptimized(world.central):
        again = _checked(world, statement)
    return again.kind == EQUAL or again == Verdict(UNCLEAR, verdict.detail)


def _checked(world: World, statement: Statement) -> Verdict:
    expected: Result | Exception
    try:
        expected = central(world, statement)
    except duckdb.Error as error:
        expected = error
    try:
        with watched() as said:
            ucq = planned(world.federated(statement.layout), statement)
    except Error as error:
        return refusal(error, expected)
    except Exception as error:
        return Verdict("raw error", f"{type(error).__name__}: {error}")
    if said:
        return Verdict("said on stderr", said[0])
    if isinstance(expected, Exception):
        if isinstance(expected, BOUND):
            return Verdict(ACCEPTED, str(expected).splitlines()[0])
        return Verdict(UNCLEAR, str(expected).splitlines()[0])
    try:
        found = executed(ucq, world.federated(statement.layout), statement.target is not None)
    except duckdb.Error as error:
        # a value that a row has which joins nothing: one database may not have looked at it
        kind = UNCLEAR if isinstance(error, OF_VALUES) else FAILING
        return Verdict(kind, str(error).splitlines()[0])
    except BrokenContract as error:
        return Verdict("broken contract", str(error))
    except ModelError as error:
        return Verdict(REFUSED, str(error))
    verdict = compared(expected, found, ucq)
    if verdict.kind == WRONG and "sample" in statement.seen:
        return verdict if not _may_be(world, statement, found) else Verdict(EQUAL)
    return verdict


MAX_SAMPLES = 4000
"""Answers that are asked for before a sample is taken to be none that the query may have."""


def _may_be(world: World, statement: Statement, found: Result) -> bool:
    """Whether the query, which draws a sample, has these rows at times."""
    return any(central(world, statement).rows == found.rows for _ in range(MAX_SAMPLES))


def planned(federated: Federated, statement: Statement) -> Ucq:
    parsed = parse(f"EVALUATE MODEL m FROM (\n{statement.query}\n)")
    assert isinstance(parsed, EvaluateModel)
    confirm(parsed)
    ucq = to_ucq(
        parsed.query,
        parsed.sql,
        federated.catalog,
        Roles(
            target=statement.target,
            identifiers=tuple(Path(tuple(path), (0, 0)) for path in statement.identifiers),
            weight=statement.weight,
        ),
        allow_cross_join=statement.cross,
        split=statement.split,
    )
    confirm_fragments(ucq)
    return ucq


def refusal(error: Error, expected: Result | Exception) -> Verdict:
    """A refusal must have a place and a cure, and speak of SQL."""
    message = error.message if hasattr(error, "message") else str(error)
    if not isinstance(error, CURED):
        return Verdict("raw error", f"{type(error).__name__}: {message}")
    if INNER_NAMES.search(str(error)):
        return Verdict("inner name", message)
    if error.line is None:
        return Verdict("no place", message)
    if error.hint is None:
        return Verdict("no hint", message)
    return Verdict(INVALID if isinstance(expected, Exception) else REFUSED, message)


@contextmanager
def watched() -> Any:
    """What is said on stderr, or logged above INFO, while a statement is planned."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.name}: {record.getMessage()}")

    ear, stderr, logger = Ear(logging.WARNING), io.StringIO(), logging.getLogger("sqlglot")
    logger.addHandler(ear)
    try:
        with redirect_stderr(stderr):
            yield said
    finally:
        logger.removeHandler(ear)
        said += stderr.getvalue().splitlines()


# -- centrally -------------------------------------------------------------------------------------


def central(world: World, statement: Statement) -> Result:
    """The rows of the query; those without a target are left out, as they are for TRAIN."""
    found = world.central.execute(statement.identified or statement.query)
    names = tuple(column[0] for column in found.description)
    types = tuple(str(column[1]) for column in found.description)
    rows = found.fetchall()
    if statement.target is not None and statement.target.lower() in [n.lower() for n in names]:
        place = [n.lower() for n in names].index(statement.target.lower())
        rows = [row for row in rows if labels(row[place])]
    return Result(names, types, counted(rows))


def labels(value: object) -> bool:
    """It can be learned: neither NULL nor NaN."""
    return value is not None and value == value


def counted(rows: Sequence[Sequence[Any]]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(typed(value) for value in row) for row in rows)


def typed(value: object) -> str:
    """A value's text; 1, 1.0, true and '1' are four values, and NULL is a fifth."""
    if isinstance(value, float):
        return f"float {value + 0.0:.10g}"
    return f"{type(value).__name__} {value!r}"


# -- by the plan -----------------------------------------------------------------------------------


class BrokenContract(Exception):
    """A fragment gives what its documentation says that it doesn't."""


def executed(ucq: Ucq, federated: Federated, labelled: bool) -> Result:
    """The joined rows of the plan: every fragment where it belongs, then the mapping query."""
    slots = {slot.index: Snapshot(ucq, slot, federated, labelled) for slot in ucq.slots}
    special = {ucq.target: "sqlfl_target", ucq.weight: "sqlfl_weight"}
    wanted = [special.get(name, name) for name in ucq.columns]
    wanted += [f"sqlfl_id_{k}" for k in range(len(ucq.identifiers))]
    coordinator = COORDINATOR.cursor()
    codes: dict[tuple[int, tuple[object, ...]], int] = {}
    try:
        of_slots = {index: snapshot.coded(codes) for index, snapshot in slots.items()}
        for index, reduced in once_each(ucq, of_slots).items():
            slots[index].load(coordinator, reduced)
        joined = coordinator.execute(to_sql(mapping_query(ucq)))
        order = [int(column[0].removeprefix("slot_")) for column in joined.description]
        numbers = joined.fetchall()
    finally:
        for index in slots:
            coordinator.execute(f"DROP TABLE IF EXISTS slot_{index}")
        coordinator.close()
    rows = []
    for row in numbers:
        if None in row:
            raise BrokenContract("a joined row comes from no row of a slot")
    single = [slot for slot in ucq.slots if slot.single]
    if single or any(left.lookup for block in ucq.blocks for left in block.lefts):
        columns = np.array(numbers, np.int64).reshape(-1, len(order)).T
        joined_rows = dict(zip(order, columns, strict=True))
        counts = {
            index: np.bincount(joined_rows[index], minlength=len(slots[index].rows))
            for index in order
        }
        for slot in single:
            check_single(ucq, slot, of_slots, counts.__getitem__)
        check_lookups(ucq, of_slots, counts.__getitem__)
    for row in numbers:
        values: dict[str, str] = {}
        for index, number in zip(order, row, strict=True):
            values |= slots[index].rows[number]
        rows.append(tuple(values[name] for name in wanted))
    types: dict[str, str] = {}
    for snapshot in slots.values():
        types |= snapshot.types
    names = (*ucq.columns, *(f"sqlfl_{k}" for k in range(len(ucq.identifiers))))
    return Result(names, tuple(types.get(name, "?") for name in wanted), Counter(rows))


COORDINATOR = duckdb.connect(config={"threads": 1})


class Snapshot:
    """The rows of one slot: what each fragment gives at its client."""

    def __init__(self, ucq: Ucq, slot: Slot, federated: Federated, labelled: bool) -> None:
        self.slot = slot
        self.labelled = labelled and slot.target
        self.names = expected_columns(ucq, slot.index)
        self.widths = {key: len(ucq.keys[key].types) for key in slot.keys}
        self.rows: list[dict[str, str]] = []
        self.keys: list[tuple[int, dict[int, tuple[object, ...]]]] = []
        self.types: dict[str, str] = {}
        groups = MergedGroups(slot, federated.databases)
        for fragment in slot.fragments:
            self._take(fragment, *groups.placed(fragment))

    def _take(self, fragment: Fragment, database: duckdb.DuckDBPyConnection, sql: str) -> None:
        found = database.execute(sql)
        names = [column[0] for column in found.description]
        types = [str(column[1]) for column in found.description]
        # no row stands for rows where a condition does
        if ([name for name in names if name != "sqlfl_kept"] or ["sqlfl_row"]) != self.names:
            raise BrokenContract(f"columns {names}, not {self.names}: {fragment.sql}")
        for name, type_ in zip(names, types, strict=True):
            if type_ == '"NULL"' or fragment.virtual or name in ("sqlfl_base", "sqlfl_kept"):
                continue
            known = self.types.setdefault(name, type_)
            if known != type_:
                raise BrokenContract(f"{name} is {known} and {type_}: {fragment.sql}")
        rows = found.fetchall()
        if fragment.virtual and len(rows) > 1:
            raise BrokenContract(f"{len(rows)} virtual rows: {fragment.sql}")
        for values in rows:
            row = dict(zip(names, values, strict=True))
            if row.pop("sqlfl_kept", not fragment.links) == fragment.links:
                continue
            if self.labelled and not labels(row["sqlfl_target"]) and not fragment.links:
                continue
            keys = {
                key: tuple(row[f"sqlfl_key_{key}_{part}"] for part in range(width))
                for key, width in self.widths.items()
            }
            for key, parts in keys.items():
                if None in parts and key not in self.slot.nullable:
                    raise BrokenContract(f"a NULL in key {key}: {fragment.sql}")
            self.rows.append({name: typed(value) for name, value in row.items()})
            self.keys.append((fragment.index, keys))

    def coded(self, codes: dict[tuple[int, tuple[object, ...]], int]) -> SlotCodes:
        """Its rows with their keys as codes, -1 for NULL."""
        keys = {
            key: np.array([_code(codes, key, parts[key]) for _, parts in self.keys], np.int64)
            for key in self.slot.keys
        }
        return SlotCodes(np.array([fragment for fragment, _ in self.keys], np.int64), keys)

    def load(self, coordinator: duckdb.DuckDBPyConnection, codes: SlotCodes) -> None:
        """The table that the mapping query reads."""
        columns = "".join(f", key_{key} INTEGER" for key in self.slot.keys)
        table = f"slot_{self.slot.index}"
        coordinator.execute(f'CREATE TABLE {table} (fragment USMALLINT, "row" INTEGER{columns})')
        literals = []
        for number, fragment in enumerate(codes.fragment):
            coded = [codes.keys[key][number] for key in self.slot.keys]
            tags = ["NULL" if code < 0 else str(code) for code in coded]
            literals.append(f"({', '.join([str(fragment), str(number), *tags])})")
        if literals:
            coordinator.execute(f"INSERT INTO {table} VALUES {', '.join(literals)}")


def _code(
    codes: dict[tuple[int, tuple[object, ...]], int], key: int, parts: tuple[object, ...]
) -> int:
    if None in parts:
        return -1
    return codes.setdefault((key, tuple(map(typed, parts))), len(codes))


# -- the comparison --------------------------------------------------------------------------------


def alike(theirs: str, ours: str) -> bool:
    """Names ignore case; what an expression without a name is called is left open."""
    return theirs.lower() == ours.lower() or not re.fullmatch(r"\w[\w ]*", theirs)


def compared(expected: Result, found: Result, ucq: Ucq) -> Verdict:
    shown = len(found.names) - len(ucq.identifiers)
    numbered = distinct(expected.names)  # as FROM (query) numbers them
    named = zip(numbered, found.names, strict=False)
    if len(expected.names) != len(found.names) or not all(alike(a, b) for a, b in named):
        return Verdict("wrong names", f"{expected.names}, the plan has {found.names}")
    if expected.rows != found.rows:
        missing, more = expected.rows - found.rows, found.rows - expected.rows
        return Verdict(
            WRONG,
            f"{expected.rows.total()} rows, the plan gives {found.rows.total()}; "
            f"missing {sorted(missing.items())[:3]}; too many {sorted(more.items())[:3]}",
        )
    pairs = zip(expected.types[:shown], found.types[:shown], strict=True)
    if any(ours not in (theirs, "?") for theirs, ours in pairs):
        return Verdict("wrong types", f"{expected.types}, the plan has {found.types}")
    return Verdict(EQUAL)
