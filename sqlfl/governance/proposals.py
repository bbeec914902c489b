"""Proposed run: the data that it reads, and its demands on the owner's accounts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlglot import Dialect, exp
from sqlglot.tokenizer_core import TokenType

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.fragment_columns import MARK
from sqlfl.contract.request import CHECK, REFUSED, ApprovedStudy, Request, Verdict, digest
from sqlfl.contract.schema import (
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.governance import noising
from sqlfl.governance.ledger import Asking
from sqlfl.governance.names import unsteady
from sqlfl.governance.noising import budgets_of
from sqlfl.governance.policies import JOIN, Ruling
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.runs import GovernedRun, Parts
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table, mixed
from sqlfl.governance.tree import PARSE, SelectReading
from sqlfl.options.policies import NEVER, NOISED, TrainingPolicy
from sqlfl.udfs import sql
from sqlfl.udfs.numbering.fragments import ZONED
from sqlfl.udfs.numbering.keys import canonical_text

UNSTEADY = (
    "are others each time that they are read: by random(), now(), a sample or the like, or by sums "
    "and first values that depend on the order in which threads read. Their owner may grant a "
    "table of them"
)
_DUCKDB = Dialect.get_or_raise("duckdb")
_COLUMNS = sql.constant(sql.query("SELECT name, type FROM pragma_table_info($name) ORDER BY cid"))


def marked(con: sql.Connection, text: str, table: Table | None) -> str:
    """Return the SELECT of this one table, each row of which is a row of it, with a last column
    that follows from all values of the row. Equal rows have equal fingerprints, in every run. It is
    0 if the query is of no table's rows.

    Raise PolicyError if DuckDB's own parser reads the result differently.
    """
    before = _parsed(con, text)
    if table is None:
        value: exp.Expr = sql.cast(sql.number(0), "UBIGINT")
    else:
        source = before["node"]["from_table"]
        if source.get("column_name_alias"):
            raise PolicyError("a table whose columns get other names cannot have min_difference")
        name = str(source.get("alias") or source["qualified_name"]["path"][-1])
        value = _mark(con, table, name)
    added = sql.to_sql(sql.named(value, MARK))
    (item,) = _parsed(con, f"SELECT {added}")["node"]["select_list"]
    before["node"]["select_list"].append(item)
    for place in _places(text):
        found = f"{text[:place]}, {added} {text[place:]}"
        if _parsed(con, found) == before:
            return found
    raise PolicyError("a query is of a form of which rows cannot be known again (min_difference)")


def _mark(con: sql.Connection, table: Table, name: str) -> exp.Expr:
    quoted = sql.to_sql(exp.table_(table[2], db=table[1], catalog=table[0], quoted=True))
    parts = []
    for column, kind in sql.fetch(con, _COLUMNS, {"name": quoted}):
        value: exp.Expr = exp.column(
            exp.to_identifier(column, quoted=True), table=exp.to_identifier(name, quoted=True)
        )
        # the text of a time with a zone depends on the session's
        parts.append(canonical_text(value, ZONED) if kind == ZONED else value)
    return sql.call("md5_number_lower", sql.text(sql.call("row", *parts)))


def _places(text: str) -> Iterator[int]:
    """Yield the places of each FROM outside brackets."""
    depth = 0
    for token in _DUCKDB.tokenize(text):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif token.token_type == TokenType.FROM and not depth:
            yield token.start


def _parsed(con: sql.Connection, text: str) -> dict[str, Any]:
    ((found,),) = sql.fetch(con, PARSE, {"text": text})
    parsed = json.loads(found, object_hook=_placeless)
    return dict(parsed["statements"][0]) if len(parsed.get("statements", ())) == 1 else {}


def _placeless(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("query_location", None)
    return node


@dataclass(frozen=True)
class Proposal:
    """Run that was allowed, and has not begun."""

    ruling: Ruling
    run: GovernedRun
    of: ms.Propose
    digest: str
    views: Mapping[Table, str]
    """Definition of each table."""
    asked: Asking
    """Demands on the ledger."""
    keys: Mapping[Table, tuple[str, ...]]
    """Columns that identify rows of tables with noised labels, as their owner says."""
    trained: frozenset[Table]
    """Tables of the features of the run's model."""
    columns: Mapping[Table, tuple[str, ...]]
    """Columns that its fragments name, by their tables."""
    join: str = ""
    """Name of the join whose rows it uses; empty without one."""
    study: ApprovedStudy | None = None
    """The study within which it runs; None for a run that was approved by itself."""

    @property
    def told(self) -> str:
        """Return its description, for readers of the disclosures."""
        over = f", over join {self.join}" if self.join else ""
        within = "" if self.study is None else f", in study {self.study.study.name}"
        return described_run(self.run.request, self.views) + over + within


def check_keys(con: sql.Connection, tables: Mapping[Table, Sequence[str]]) -> None:
    """Raise PolicyError if the KEY of one of these does not identify its rows now."""
    if not tables:
        return
    with closing(sql.cursor(con)) as cursor:
        for table, names in tables.items():
            columns = [sql.column(name) for name in names]
            query = sql.query(
                """SELECT count(*), count(DISTINCT encode(CAST($row AS VARCHAR))),
                count(*) FILTER (WHERE $missing) FROM $table""",
                row=sql.call("row", *columns),
                missing=exp.or_(*(sql.is_null(column.copy()) for column in columns)),
                table=exp.table_(table[2], db=table[1], catalog=table[0], quoted=True),
            )
            ((rows, distinct, missing),) = sql.fetch(cursor, query)
            if missing or distinct < rows:
                fault = "is NULL in a row" if missing else "is the same in several rows"
                raise PolicyError(
                    f"the KEY of {'.'.join(table[1:])}, which noise of its labels follows from, "
                    f"{fault}",
                    hint="ask its owner: a KEY is to be unique, and never NULL",
                )


def described_run(request: Request, tables: Iterable[Table]) -> str:
    named = ", ".join(".".join(table[1:]) for table in sorted(tables))
    return f"{named_run(request)} of {named}"


def named_run(request: Request) -> str:
    """Return the purpose, and what the model is. CHECK assumes a kind where the analyst names none,
    so it is left out there.
    """
    if request.purpose == CHECK:
        return "check"
    by = f" by {request.algorithm}" if request.algorithm else ""
    return f"{request.purpose} {request.kind}{by}"


@dataclass(frozen=True)
class Read:
    """Reads of a request's fragments."""

    slots: tuple[SlotSpecification, ...]
    tables: Mapping[int, frozenset[Table]]
    readings: Mapping[int, tuple[SelectReading, ...]]

    @property
    def canonical(self) -> tuple[str, ...]:
        return tuple(
            reading.canonical for readings in self.readings.values() for reading in readings
        )


@dataclass(frozen=True)
class ExaminedProposal:
    """Proposal under examination, with what its fragments read and the rules that hold for them."""

    propose: ms.Propose
    request: Request
    ruling: Ruling
    views: Mapping[Table, str]
    """Definition of each table."""
    read: Read

    @cached_property
    def tables(self) -> frozenset[Table]:
        return frozenset().union(*self.read.tables.values())

    @cached_property
    def rules(self) -> Mapping[int, TrainingPolicy]:
        """Return the strictest policy of each slot's tables."""
        return {slot: self.ruling.strictest(tables) for slot, tables in self.read.tables.items()}

    @cached_property
    def every(self) -> TrainingPolicy:
        """Return the strictest policy of all tables."""
        return self.ruling.strictest(self.tables)

    @cached_property
    def digest(self) -> str:
        """Return the hash by which owners approve and count the run; empty if no rule needs it. It
        covers what its views are, so that a view that was changed and granted again asks anew.
        """
        if self.every.approval == NEVER and self.every.runs_per_day is None:
            return ""
        views = tuple(view for _, view in sorted(self.views.items()) if view)
        texts = (*self.read.canonical, *views)
        return digest(self.propose.request, self.propose.specification, texts)

    @property
    def warm_models(self) -> frozenset[str]:
        """Return the models whose blocks the run starts from."""
        return frozenset(item.warm[0] for item in self.read.slots if item.warm is not None)

    def may_join(self, column: ScopeColumn) -> bool:
        return self.ruling.may(JOIN, column)


def row_keys_of(
    item: SlotSpecification, readings: Sequence[SelectReading], ruling: Ruling
) -> tuple[tuple[str, ...], ...] | None:
    """Return, for each fragment, the columns from which noise of its labels follows: the KEY of the
    table of which `sqlfl_base` is a row, none for whole rows. Return None without noised labels.
    """
    if not item.target or not item.base or item.privacy is None or item.privacy.label is None:
        return None
    tables = (output.whole for output in _bases(item, readings))
    return tuple(() if table is None else ruling.key(table) for table in tables)


def _bases(item: SlotSpecification, readings: Sequence[SelectReading]) -> Iterator[SelectOutput]:
    """Yield `sqlfl_base` of each fragment."""
    base = len(item.features) + item.target + item.weight + item.offset
    return (reading.outputs[base] for reading in readings)


def _draw_columns(
    item: SlotSpecification, readings: Sequence[SelectReading], ruling: Ruling
) -> tuple[tuple[str, ...], ...] | None:
    """Return, for each fragment, the columns from which draws of its rows follow: those of
    `row_keys_of` where labels are noised, else the granted ones, none for all. Which rows are drawn
    would tell of the others, to whoever knows the seed, and whenever one changes.
    """
    row_keys = row_keys_of(item, readings, ruling)
    if row_keys is not None or not item.base:
        return row_keys
    return tuple(
        ()
        if output.whole is None or all(ruling.may_any(column) for column in output.reads)
        else tuple(sorted(ruling.columns(output.whole)))
        for output in _bases(item, readings)
    )


def parts_of(
    item: SlotSpecification, found: Read, rules: Mapping[int, TrainingPolicy], ruling: Ruling
) -> Parts:
    readings = zip(item.fragments, found.readings[item.slot], strict=True)
    tables = {
        number: None if reading.unmatched else next(iter(reading.tables), None)
        for number, reading in readings
    }
    made = sum(feature.width for feature in item.features if feature.fitted)
    draw_columns = _draw_columns(item, found.readings[item.slot], ruling)
    of_rows = (reading.outputs for reading in found.readings[item.slot] if not reading.unmatched)
    features = zip(*(outputs[: len(item.features)] for outputs in of_rows), strict=True)
    computed = frozenset(place for place, outputs in enumerate(features) if mixed(outputs))
    # rows of a link are only matched, and those of nobody are no table's
    linked = {link for _, link in item.links}
    every = found.readings[item.slot]
    apart = [
        number in linked or reading.nobodys or reading.unmatched
        for number, reading in zip(item.fragments, every, strict=True)
    ]
    reads = tuple(
        frozenset() if other else reading.tables
        for reading, other in zip(every, apart, strict=True)
    )
    copied = frozenset(
        place for place, reading in enumerate(every) if not (reading.stable or apart[place])
    )
    return Parts(
        tables, rules[item.slot].min_difference, bool(item.keys), made, draw_columns, computed,
        item.shared, reads, copied, len(item.features) + item.target + item.weight + item.offset,
    )  # fmt: skip


def draw_keys(proposed: Read, ruling: Ruling) -> dict[Table, tuple[str, ...]]:
    """Return the KEY of each table from which the noise of labels follows."""
    return {
        table: key
        for item in proposed.slots
        if row_keys_of(item, proposed.readings[item.slot], ruling) is not None
        for table in proposed.tables[item.slot]
        if (key := ruling.key(table))
    }


def unrecognised_rows(found: Read, rules: Mapping[int, TrainingPolicy]) -> tuple[Verdict, ...]:
    """Return refusals of slots whose rows could not be assigned to rows of a table."""
    verdicts = []
    every: list[Table] = []
    for item in found.slots:
        least = rules[item.slot].min_difference
        linked = {link for _, link in item.links}
        own = [
            reading
            for number, reading in zip(item.fragments, found.readings[item.slot], strict=True)
            if number not in linked and not reading.nobodys
        ]
        every += [table for reading in own for table in reading.tables]
        if least is not None and not all(
            reading.stable and len(reading.tables) == 1 for reading in own
        ):
            why = f"{has(f'min_difference = {least}')}, which takes {noising.STABLE}"
            verdicts.append(Verdict(item.slot, "", REFUSED, why))
    twice = any(every.count(table) > 1 for table in every)
    if twice and not verdicts and any(own.min_difference is not None for own in rules.values()):
        why = f"{has('min_difference')}, which takes a table once in a query"
        verdicts.append(Verdict(ms.CLIENT, "", REFUSED, why))
    return tuple(verdicts)


def unsteady_rows(
    con: sql.Connection, found: Read, rules: Mapping[int, TrainingPolicy], ruling: Ruling
) -> tuple[Verdict, ...]:
    """Return refusals of slots whose rows are others each time that they are read, where these must
    be recognised, or noise of labels follows from them. An account charges each draw of labels.
    """
    ruled: dict[Table, tuple[int, str]] = {}
    for item in found.slots:
        own, readings = rules[item.slot], found.readings[item.slot]
        rule = "" if own.min_difference is None else f"min_difference = {own.min_difference}"
        drawn = not rule and own.labels == NOISED
        if drawn and row_keys_of(item, readings, ruling) is not None:
            rule = "labels = 'noised' and no KEY"
        for table in found.tables[item.slot] if rule else ():
            charged = budgets_of(ruling.rules([table]), ruling.total_rules(table))
            if not drawn or not (charged or ruling.key(table)):
                ruled[table] = item.slot, rule
    if not ruled:
        return ()
    with closing(sql.system_cursor(con)) as cursor:
        return tuple(
            Verdict(slot, "", REFUSED, f"{has(rule)}, and rows of {'.'.join(table[1:])} {UNSTEADY}")
            for table, (slot, rule) in sorted(ruled.items())
            if unsteady(cursor, table)
        )


def prepared_request(
    con: sql.Connection, request: ms.Prepare, parts: Mapping[int, Parts]
) -> ms.Prepare:
    """Return the request with columns that recognise rows and that draw labels, if they are
    needed.
    """
    if all(own.least is None and own.draw_columns is None for own in parts.values()):
        return request
    slots: list[SlotSpecification] = []
    texts: list[str] = []
    start = 0
    with closing(sql.cursor(con)) as cursor:
        for item in specifications_from_json(request.specification):
            own = request.fragments[start : start + len(item.fragments)]
            start += len(item.fragments)
            own_parts = parts[item.slot]
            item = replace(item, draw_columns=own_parts.draw_columns)
            if own_parts.least is not None:
                item = replace(item, marked=True)
                tables = (own_parts.tables[number] for number in item.fragments)
                own = tuple(
                    marked(cursor, text, table) for text, table in zip(own, tables, strict=True)
                )
            slots.append(item)
            texts += own
    specification = specifications_to_json(tuple(slots))
    return replace(request, specification=specification, fragments=tuple(texts))
