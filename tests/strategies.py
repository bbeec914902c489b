"""Random federations and the statements over them, each with its central equivalent.

A `Case` is a set of whole tables, one organisation each, and a query. `Case.open(clients)` splits
the rows over as many DuckDB databases per organisation as asked, and puts the whole tables under
the same names into one central database, where the very same query text can run. Structure is
drawn by hypothesis, values by a generator whose seed hypothesis draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import assume, reject
from hypothesis import strategies as st

from tests.contradictions import contradicts_itself, note_contradiction
from tests.open_databases import in_memory

LINEAR, LOGISTIC, SOFTMAX = "linear_regression", "logistic_regression", "softmax_regression"
POISSON = "poisson_regression"
BOUNDED = (LINEAR, LOGISTIC, SOFTMAX)
"""Kinds whose loss has bounded curvature: those of towers, and those that PRIVACY takes."""

KEY_TYPES = (
    ("INTEGER", "INTEGER"),
    ("INTEGER", "BIGINT"),
    ("VARCHAR", "VARCHAR"),
    ("INTEGER", "VARCHAR"),
    ("DECIMAL(9,2)", "INTEGER"),
    ("DOUBLE", "BIGINT"),
    ("DECIMAL(9,2)", "VARCHAR"),
    ("UTINYINT", "HUGEINT"),
    ("DATE", "TIMESTAMP"),
    ("BOOLEAN", "BOOLEAN"),
)

NUMBER = ("{c}", "{c} + 1", "2 * {c}", "coalesce({c}, 0)", "{c} > 1", "{c} IS NULL")
EXPRESSIONS = {
    "INTEGER": (*NUMBER, "CASE WHEN {c} > 1 THEN 'high' WHEN {c} < 0 THEN 'low' END"),
    "TINYINT": NUMBER,
    "HUGEINT": ("{c}",),
    "DOUBLE": (*NUMBER, "ln(abs({c}) + 1)", "round({c})"),
    "FLOAT": NUMBER,
    "DECIMAL(9,2)": ("{c}", "{c} * {c}"),
    "BOOLEAN": ("{c}", "NOT {c}", "CAST({c} AS INTEGER)"),
    "VARCHAR": ("{c}", "upper({c})", "{c} = 'red'", "length({c})", "{c} || '!'"),
    "ENUM('red', 'green', 'blue', '')": ("{c}",),
    "FLOAT[2]": ("{c}", "{c}[1]"),
    "DOUBLE[3]": ("{c}",),
    "DATE": ("extract(month FROM {c})", "epoch({c})"),
}
FILTERS = {
    "INTEGER": ("{c} > -1", "{c} IS NOT NULL", "{c} IN (0, 1, 2)", "({c} < 3 OR {c} IS NULL)"),
    "TINYINT": ("{c} <> 2",),
    "DOUBLE": ("{c} > -0.7", "{c} IS NOT NULL", "abs({c}) < 2"),
    "FLOAT": ("{c} BETWEEN -3 AND 1",),
    "BOOLEAN": ("{c} IS NOT NULL", "({c} OR {c} IS NULL)"),
    "VARCHAR": ("{c} <> 'red'", "{c} LIKE '%e%'", "{c} IS NOT NULL"),
}


@dataclass(frozen=True)
class ColumnData:
    name: str
    type: str
    values: list[object] = field(repr=False)


@dataclass(frozen=True)
class TableData:
    """A whole table of one organisation; `name` is unique in the case."""

    party: str
    name: str
    columns: tuple[ColumnData, ...]

    @property
    def full_name(self) -> str:
        return f"{self.party}.{self.name}"

    @property
    def identifier(self) -> str:
        return f"id_{self.name}"

    @property
    def rows(self) -> int:
        return len(self.columns[0].values)

    def create(self, con: duckdb.DuckDBPyConnection, name: str, rows: np.ndarray) -> None:
        declared = ", ".join(f"{c.name} {c.type}" for c in self.columns)
        con.execute(f"CREATE TABLE {name} ({declared})")
        source = pa.table({c.name: _arrow(c, rows) for c in self.columns})
        casts = ", ".join(f"CAST({c.name} AS {c.type})" for c in self.columns)
        con.register("sqlfl_test_source", source)
        con.execute(f"INSERT INTO {name} SELECT {casts} FROM sqlfl_test_source")
        con.unregister("sqlfl_test_source")


@dataclass(frozen=True)
class Source:
    """A slot of one block: which table stands there, under which alias."""

    alias: str
    text: str
    """What stands in FROM before the alias."""
    tables: tuple[TableData, ...]
    """More than one for a union inside FROM."""


@dataclass(frozen=True)
class Edge:
    """How slot `right` joins an earlier slot."""

    left: int
    right: int
    style: str
    """'on', 'using', 'natural' or 'where'."""
    pairs: tuple[tuple[str, str], ...]
    side: str = ""
    """'', 'LEFT' or 'RIGHT'."""
    conditions: tuple[str, ...] = ()
    """More of ON."""


@dataclass(frozen=True)
class BlockCase:
    sources: tuple[Source, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[tuple[str, str], ...]
    """(expression, name), target included."""
    filters: tuple[str, ...]

    def sql(
        self, *, identifiers: bool = False, filtered: bool = True, without: str | None = None
    ) -> str:
        outputs = [
            e if e.split(".")[-1] == n else f"{e} AS {n}" for e, n in self.outputs if n != without
        ]
        if identifiers:
            outputs += [
                f"{s.alias}.{_id_column(s)} AS {row_id(k)}" for k, s in enumerate(self.sources)
            ]
        first = self.sources[0]
        text = f"{first.text} AS {first.alias}"
        conditions = list(self.filters) if filtered else []
        for edge in self.edges:
            source = self.sources[edge.right]
            left = self.sources[edge.left].alias
            equalities = [f"{left}.{a} = {source.alias}.{b}" for a, b in edge.pairs]
            on = " AND ".join([*equalities, *edge.conditions])
            join = f"{edge.side} JOIN".strip()
            if edge.style == "where":
                text += f", {source.text} AS {source.alias}"
                conditions.insert(0, on)
            elif edge.style == "natural":
                text += f"\n  NATURAL {join} {source.text} AS {source.alias}"
            elif edge.style == "using":
                names = ", ".join(a for a, _ in edge.pairs)
                text += f"\n  {join} {source.text} AS {source.alias} USING ({names})"
            else:
                text += f"\n  {join} {source.text} AS {source.alias} ON {on}"
        where = f"\n  WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(outputs)}\n  FROM {text}{where}"


@dataclass(frozen=True, repr=False)
class Case:
    """One statement and its tables; `repr` is a script that makes them."""

    kind: str
    target: str
    tables: tuple[TableData, ...]
    blocks: tuple[BlockCase, ...]
    seed: int
    """Of the split of rows over clients."""

    def __repr__(self) -> str:
        made = []
        for table in self.tables:
            columns = ", ".join(f"{c.name} {c.type}" for c in table.columns)
            rows = zip(*(map(str, c.values) for c in table.columns), strict=True)
            made.append(f"-- {table.full_name} ({columns})")
            made += ["--   " + ", ".join(row) for row in list(rows)[:60]]
        return "\n".join(["", *made, self.train(), f"-- split seed {self.seed}"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.party for t in self.tables))

    @property
    def query(self) -> str:
        return "\nUNION ALL\n".join(block.sql() for block in self.blocks)

    def scored_query(self, *, wide: bool) -> str:
        """Without the label; `wide`: without the filters too, so rows that training did not see."""
        return "\nUNION ALL\n".join(
            block.sql(filtered=not wide, without=self.target) for block in self.blocks
        )

    def identified_query(self, *, wide: bool = False) -> str:
        """With the row identifier of every slot, for the central database only."""
        return "\nUNION ALL\n".join(
            block.sql(identifiers=True, filtered=not wide) for block in self.blocks
        )

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The ID clause's entries, one per slot in order; empty where a name would be ambiguous."""
        if len(self.blocks) > 1:
            return ()
        sources = self.blocks[0].sources
        names = [t.full_name for s in sources for t in s.tables]
        if len(set(names)) < len(names) or any(len(s.tables) > 1 for s in sources):
            return ()
        return tuple(f"{t.full_name}.{t.identifier}" for s in sources for t in s.tables)

    @property
    def row_ids(self) -> tuple[str, ...]:
        return tuple(row_id(k) for k in range(len(self.blocks[0].sources)))

    def train(self, model: str = "m", **options: object) -> str:
        return train_sql(model, self.kind, self.target, self.query, **options)

    def predict(self, model: str = "m", *, wide: bool = False) -> str:
        return predict_sql(model, self.scored_query(wide=wide), self.identifiers)

    @contextlib.contextmanager
    def open(self, clients: int = 1) -> Iterator[Databases]:
        """The databases of the case. A failed assertion about them discards the case where DuckDB
        contradicts itself on its query."""
        with contextlib.ExitStack() as stack:
            databases = self._open(stack, clients)
            try:
                yield databases
            except AssertionError:
                queries = (self.identified_query(wide=wide) for wide in (False, True))
                if any(contradicts_itself(databases.whole, query) for query in queries):
                    note_contradiction(repr(self))
                    reject()
                raise

    def _open(self, stack: contextlib.ExitStack, clients: int) -> Databases:
        whole = stack.enter_context(in_memory(threads=1))
        for party in self.parties:
            whole.execute(f"ATTACH ':memory:' AS {party}")
        parties: dict[str, list[duckdb.DuckDBPyConnection]] = {}
        for party in self.parties:
            parties[party] = [stack.enter_context(in_memory(threads=1)) for _ in range(clients)]
        for number, table in enumerate(self.tables):
            everything = np.arange(table.rows)
            table.create(whole, table.full_name, everything)
            owner = np.random.default_rng([self.seed, number]).integers(clients, size=table.rows)
            for client, con in enumerate(parties[table.party]):
                table.create(con, table.name, everything[owner == client])
        return Databases(parties, whole)


@dataclass(frozen=True)
class Databases:
    parties: Mapping[str, list[duckdb.DuckDBPyConnection]]
    whole: duckdb.DuckDBPyConnection
    """All whole tables, as party.table."""


def row_id(slot: int) -> str:
    return f"row_{slot}"


_SECRET = ContextVar("secret", default=False)


@contextlib.contextmanager
def summing_in_secret() -> Iterator[None]:
    """Statements of TRAIN that say nothing else of the union sum in secret."""
    token = _SECRET.set(True)
    try:
        yield
    finally:
        _SECRET.reset(token)


def train_sql(model: str, kind: str, target: str, query: str, **options: object) -> str:
    if _SECRET.get():
        options = {"union": "secure", **options}
    written = ", ".join(
        f"{name} = '{value}'" if isinstance(value, str) else f"{name} = {value}"
        for name, value in options.items()
    )
    clause = f" WITH ({written})" if written else ""
    return f"TRAIN MODEL {model} USING {kind} TARGET {target}{clause} FROM (\n{query}\n)"


def predict_sql(model: str, query: str, identifiers: tuple[str, ...] = ()) -> str:
    clause = f" ID ({', '.join(identifiers)})" if identifiers else ""
    return f"PREDICT MODEL {model}{clause} FROM (\n{query}\n)"


# -- drawing ---------------------------------------------------------------------------------------


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = (*BOUNDED, POISSON),
    max_slots: int = 4,
    unions: bool = True,
    self_joins: bool = True,
    outer: bool = False,
) -> Case:
    """A case of 1 to `max_slots` slots over 1 to 3 organisations; `outer`: with outer joins."""
    # the first example is the least of all, in every run; rejected, it is not one of a few
    assume(draw(st.integers(0, 9), label="is drawn") > 0)
    kind = draw(st.sampled_from(kinds), label="kind")
    rng = np.random.default_rng(draw(st.integers(0, 2**20), label="values"))
    slots = draw(st.integers(2 if outer else 1, max_slots), label="slots")
    builder = _Builder(draw, rng, slots, self_joins, outer)
    target_slot = draw(st.integers(0, slots - 1), label="target slot")
    builder.target(target_slot, kind)
    union = draw(st.sampled_from(("none", "blocks", "from"))) if unions else "none"
    if union == "from":
        builder.union_in_from()
    block = builder.block()
    blocks = [block]
    if union == "blocks":
        blocks.append(builder.second_block(block))
    return Case(
        kind=kind,
        target="label",
        tables=tuple(builder.tables),
        blocks=tuple(blocks),
        seed=draw(st.integers(0, 2**20), label="split"),
    )


class _Builder:
    """Draws tables slot by slot, then the joins, outputs and filters over them."""

    def __init__(
        self,
        draw: st.DrawFn,
        rng: np.random.Generator,
        slots: int,
        self_joins: bool,
        outer: bool = False,
    ) -> None:
        self.draw, self.rng, self.outer = draw, rng, outer
        self.columns: list[dict[str, ColumnData]] = []
        self.party: list[str] = []
        self.slot_table: list[int] = []
        self.edges: list[Edge] = []
        self.union_tables: dict[int, TableData] = {}
        self.label = ("", "")
        self.target_slot = 0
        for slot in range(slots):
            reuse = self_joins and slot > 0 and draw(st.sampled_from((False,) * 4 + (True,)))
            if reuse:
                self.slot_table.append(draw(st.integers(0, len(self.columns) - 1)))
            else:
                self._new_table()
        comma = not outer and draw(st.sampled_from((False, False, True)), label="comma join")
        for slot in range(1, slots):
            self._new_edge(slot, comma)

    def _new_table(self) -> None:
        number = len(self.columns)
        rows = self.draw(st.sampled_from((12, 3, 6, 20, 30, 40)), label="rows")
        self.party.append(self.draw(st.sampled_from(("ana", "ben", "cyd"))))
        self.slot_table.append(number)
        identifier = ColumnData(f"id_t{number}", "INTEGER", list(range(100, 100 + rows)))
        self.columns.append({identifier.name: identifier})
        for k in range(self.draw(st.integers(0 if number else 1, 3), label="features")):
            # central DuckDB 2.0 fails on some outer joins with arrays that are NULL
            kinds = [kind for kind in sorted(EXPRESSIONS) if "[" not in kind or not self.outer]
            kind = self.draw(st.sampled_from(kinds))
            self._add(number, f"x{k}_t{number}", kind, self._values(kind, rows))

    def _rows(self, table: int) -> int:
        return len(self.columns[table][f"id_t{table}"].values)

    def _add(self, table: int, name: str, kind: str, values: list[object]) -> None:
        self.columns[table][name] = ColumnData(name, kind, values)

    def _values(self, kind: str, rows: int) -> list[object]:
        rng = self.rng
        values: list[object]
        if kind in ("INTEGER", "TINYINT", "HUGEINT"):
            values = rng.integers(-2, 5, rows).tolist()
        elif kind in ("DOUBLE", "FLOAT", "DECIMAL(9,2)"):
            values = np.round(rng.normal(rng.integers(0, 20), 1.5, rows), 2).tolist()
            if kind == "DOUBLE" and rng.random() < 0.2:
                values[0] = float("nan")
        elif kind == "BOOLEAN":
            values = (rng.random(rows) < 0.4).tolist()
        elif kind == "DATE":
            days = rng.integers(18000, 18400, rows)
            values = [np.datetime64(int(d), "D").astype(object) for d in days]
        elif "[" in kind:
            width = 2 if kind == "FLOAT[2]" else 3
            values = [v.tolist() for v in np.round(rng.normal(0, 1, (rows, width)), 3)]
            if rng.random() < 0.3:
                values[0] = [None, *values[0][1:]]  # type: ignore[misc]
        else:
            values = rng.choice(["red", "green", "blue", ""], rows).tolist()
        if rng.random() < 0.5:
            return [None if rng.random() < 0.15 else v for v in values]
        return [None] * rows if rng.random() < 0.03 else values

    def _new_edge(self, right: int, comma: bool) -> None:
        draw = self.draw
        left = draw(st.integers(0, right - 1), label="joins slot")
        a, b = self.slot_table[left], self.slot_table[right]
        single = self.slot_table.count(a) == 1 and self.slot_table.count(b) == 1
        plain = all(self.slot_table.count(t) == 1 for t in self.slot_table[: right + 1])
        styles = ["on", *(["using"] if single and plain else [])]
        if single and plain and all(s.style != "where" for s in self.edges):
            styles.append("natural")
        style = "where" if comma else draw(st.sampled_from(styles), label="style")
        named = style in ("using", "natural")
        pairs = []
        one_to_one = draw(st.sampled_from((False, False, False, True)), label="one to one")
        for part in range(draw(st.integers(1, 2), label="key parts")):
            types = draw(st.sampled_from(KEY_TYPES), label="key types")
            domain = draw(st.integers(2, 8 if part == 0 else 3), label="key domain")
            names = [f"k{right}{part}", f"k{right}{part}"]
            if not named:
                names = [f"k{right}{part}l", f"k{right}{part}r"]
            for table, name, kind in zip((a, b), names, types, strict=True):
                unique = one_to_one and part == 0
                self._add(table, name, kind, self._key(kind, self._rows(table), domain, unique))
            pairs.append((names[0], names[1]))
        side, conditions = "", ()
        if self.outer:
            side = draw(st.sampled_from(("LEFT", "LEFT", "RIGHT", "")), label="side")
            if style == "on":
                conditions = self._conditions(left, right)
        self.edges.append(Edge(left, right, style, tuple(pairs), side, conditions))

    def _conditions(self, left: int, right: int) -> tuple[str, ...]:
        """Up to two conditions for ON, each over one of the two slots."""
        found = []
        for slot in (left, right):
            columns = [
                c
                for c in self.columns[self.slot_table[slot]].values()
                if c.name.startswith("x") and c.type in FILTERS
            ]
            if columns and self.draw(st.integers(0, 2), label="condition in ON") == 0:
                column = self.draw(st.sampled_from(columns))
                condition = self.draw(st.sampled_from(FILTERS[column.type]))
                found.append(condition.format(c=f"s{slot}.{column.name}"))
        return tuple(found)

    def _key(self, kind: str, rows: int, domain: int, unique: bool) -> list[object]:
        numbers = self.rng.permutation(rows) if unique else self.rng.integers(0, domain, rows)
        values: list[object] = [int(v) for v in numbers]
        if kind == "VARCHAR":
            values = [f"{v:02d}" if self.rng.random() < 0.2 else str(v) for v in numbers]
        elif kind == "DOUBLE":
            values = [-0.0 if v == 0 and self.rng.random() < 0.5 else float(v) for v in numbers]
        elif kind in ("DATE", "TIMESTAMP"):
            values = [np.datetime64(18000 + int(v), "D").astype(object) for v in numbers]
        elif kind == "BOOLEAN":
            values = [bool(v % 2) for v in numbers]
        return [None if self.rng.random() < 0.05 else v for v in values]

    def target(self, slot: int, kind: str) -> None:
        table = self.slot_table[slot]
        rows = self._rows(table)
        self.target_slot = slot
        if kind == LINEAR:
            values: list[object] = np.round(self.rng.normal(3, 2, rows), 3).tolist()
            column, expression = "DOUBLE", self.draw(st.sampled_from(("{c}", "{c} * 2 + 1")))
        elif kind == POISSON:
            values = self.rng.poisson(self.rng.choice((0.7, 3.0, 40.0)), rows).tolist()
            column, expression = "INTEGER", self.draw(st.sampled_from(("{c}", "{c} / 2")))
        elif kind == LOGISTIC:
            values = self.rng.integers(0, 2, rows).tolist()
            column = "INTEGER"
            expression = self.draw(
                st.sampled_from(
                    ("{c}", "{c} > 0", "CASE {c} WHEN 1 THEN 'no' WHEN 0 THEN 'yes' END")
                )
            )
        else:
            values = self.rng.integers(8, 11, rows).tolist()
            column, expression = "INTEGER", self.draw(st.sampled_from(("{c}", "'c' || {c}")))
        if self.rng.random() < 0.4:
            values = [None if self.rng.random() < 0.1 else v for v in values]
        self._add(table, f"y_t{table}", column, values)
        self.label = (expression, f"y_t{table}")

    @property
    def tables(self) -> list[TableData]:
        made = [
            TableData(self.party[n], f"t{n}", tuple(columns.values()))
            for n, columns in enumerate(self.columns)
        ]
        return made + list(self.union_tables.values())

    def _sibling(self, table: int, party: str) -> TableData:
        """A table of the same columns elsewhere, with other rows."""
        rows = self.draw(st.integers(2, 30), label="sibling rows")
        picks = self.rng.integers(0, self._rows(table), rows)
        columns = [
            replace(c, values=[c.values[p] for p in picks]) for c in self.columns[table].values()
        ]
        columns[0] = replace(columns[0], values=list(range(1000, 1000 + rows)))
        return TableData(party, f"u{table}", tuple(columns))

    def union_in_from(self) -> None:
        table = self.slot_table[self.draw(st.integers(0, len(self.slot_table) - 1))]
        party = self.draw(st.sampled_from(("ana", "ben", "dot")), label="sibling party")
        self.union_tables[table] = self._sibling(table, party)

    def _source(self, slot: int) -> Source:
        table = self.slot_table[slot]
        made = self.tables[table]
        alias = f"s{slot}"
        if table not in self.union_tables:
            return Source(alias, made.full_name, (made,))
        other = self.union_tables[table]
        names = ", ".join(c.name for c in made.columns)
        text = (
            f"(SELECT {names} FROM {made.full_name} UNION ALL "
            f"SELECT {names} FROM {other.full_name})"
        )
        return Source(alias, text, (made, other))

    def block(self) -> BlockCase:
        sources = tuple(self._source(slot) for slot in range(len(self.slot_table)))
        label, column = self.label
        outputs = [(label.format(c=f"s{self.target_slot}.{column}"), "label")]
        filters = []
        named = {a for e in self.edges if e.style in ("using", "natural") for a, _ in e.pairs}
        for slot, table in enumerate(self.slot_table):
            for c in self.columns[table].values():
                reference = f"s{slot}.{c.name}"
                if c.name.startswith("x"):
                    first = c.name == "x0_t0"
                    if first or self.draw(st.sampled_from((True, True, False)), label="selected"):
                        expression = self.draw(st.sampled_from(EXPRESSIONS[c.type]))
                        outputs.append((expression.format(c=reference), f"f{len(outputs)}"))
                    if c.type in FILTERS and self.draw(st.integers(0, 3)) == 0:
                        chosen = self.draw(st.sampled_from(FILTERS[c.type]))
                        filters.append(chosen.format(c=reference))
                elif self._is_feature_too(c, named):
                    outputs.append((reference, f"f{len(outputs)}"))
        order = self.draw(st.permutations(range(len(outputs))), label="order of columns")
        return BlockCase(
            sources, tuple(self.edges), tuple(outputs[k] for k in order), tuple(filters[:2])
        )

    def _is_feature_too(self, column: ColumnData, named: set[str]) -> bool:
        """A join key that is a feature as well; not where USING makes its name ambiguous."""
        suitable = column.name.startswith("k") and column.type in EXPRESSIONS
        if not suitable or column.name in named or column.type == "DATE":
            return False
        return self.draw(st.integers(0, 5), label="key as feature") == 0

    def second_block(self, block: BlockCase) -> BlockCase:
        """The same slots, one of them filled from a sibling table; or the same tables again."""
        if self.draw(st.booleans(), label="same tables again"):
            return replace(block, filters=block.filters[1:])
        slot = self.draw(st.integers(0, len(block.sources) - 1))
        table = self.slot_table[slot]
        party = self.draw(st.sampled_from(("ana", "ben", "dot")), label="sibling party")
        sibling = self._sibling(table, party)
        self.union_tables[table] = sibling
        sources = list(block.sources)
        sources[slot] = Source(sources[slot].alias, sibling.full_name, (sibling,))
        return replace(block, sources=tuple(sources))


def _id_column(source: Source) -> str:
    return source.tables[0].columns[0].name


def _arrow(column: ColumnData, rows: np.ndarray) -> pa.Array:
    values = [column.values[r] for r in rows]
    kinds = {"FLOAT[2]": pa.list_(pa.float32(), 2), "DOUBLE[3]": pa.list_(pa.float64(), 3)}
    if column.type in kinds:
        return pa.array(values, kinds[column.type])
    if column.type in ("DOUBLE", "FLOAT", "DECIMAL(9,2)"):
        return pa.array(values, pa.float64())
    if column.type == "DATE" or column.type == "TIMESTAMP":
        return pa.array(values, pa.date32())
    if column.type == "BOOLEAN":
        return pa.array(values, pa.bool_())
    if column.type in ("VARCHAR",) or column.type.startswith("ENUM"):
        return pa.array(values, pa.string())
    return pa.array(values, pa.float64() if column.type == "DECIMAL(9,2)" else pa.int64())
