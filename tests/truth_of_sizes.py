"""What the sizes in EXPLAIN's formulas really are, from the parties' clear data.

The coordinator's mapping query is run on clear keys, so every count (rows, active rows, distinct
keys, categories, classes) comes from the data and not from the messages. So do the weights of
joined rows, and the draw of validation rows, under a key that the test gives the clients.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from sqlfl.contract.schema import Client
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.federated.sizes import Symbol
from sqlfl.planner.query.ucq import CATEGORY, Feature
from tests.open_databases import in_memory
from tests.planner.central import MergedGroups

Connections = Mapping[Client, duckdb.DuckDBPyConnection]
Number = int | Fraction
Read = tuple[pa.Table, np.ndarray, list[Client]]
"""A slot's rows in clear; of each row, its fragment and its client."""


@dataclass(frozen=True)
class SlotTruth:
    """One slot's rows over all its clients, in clear."""

    rows: pa.Table
    """The fragments' rows, rows without a label left out unless they are there to match."""
    client: np.ndarray
    """Of each row: its index among the plan's clients."""
    fragment: np.ndarray
    count: np.ndarray
    """Of each row: joined rows that it occurs in."""
    weight: np.ndarray
    """Of each row: the weights of these, summed."""


class Truth:
    """The sizes of one plan over these connections; `outputs` is d_c of the model.

    `draws` is the key under which the clients draw validation rows. `frequent`: by slot and place
    of a feature, the numbers to which `auto` gave a weight of their own.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        connections: Connections,
        outputs: int,
        draws: bytes = b"",
        frequent: Mapping[tuple[int, int], Sequence[float]] | None = None,
    ) -> None:
        self.plan = plan
        self.draws = draws
        self.frequent = frequent or {}
        self.clients = list(plan.clients)
        read = {slot.index: _read(plan, slot.index, connections) for slot in plan.ucq.slots}
        mapping = _join(plan, read)
        self.joined = mapping.num_rows
        self.outputs = outputs
        weights = self._weights(read, mapping)
        self.counted = int(np.count_nonzero(weights))
        """Joined rows that weigh anything."""
        self.slots: dict[int, SlotTruth] = {}
        for slot, (rows, fragment, client) in read.items():
            count, weight = np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows)
            if f"slot_{slot}" in mapping.column_names:
                occurs = mapping.column(f"slot_{slot}").to_numpy()
                count = np.bincount(occurs, minlength=rows.num_rows)
                weight = np.bincount(occurs, weights, rows.num_rows)
            numbers = np.array([self.clients.index(c) for c in client], int)
            self.slots[slot] = SlotTruth(rows, numbers, fragment, count, weight)

    def _weights(self, read: Mapping[int, Read], mapping: pa.Table) -> np.ndarray:
        """Of each joined row."""
        weights = np.ones(mapping.num_rows)
        if not self.plan.weighted:
            return weights
        for slot in self.plan.ucq.slots:
            columns: list[np.ndarray] = []
            table = read[slot.index][0]
            if slot.weight:
                columns.append(np.array(table.column("sqlfl_weight").to_pylist(), float))
            if slot.split:
                columns.append(self._kept(table.column("sqlfl_base").to_pylist()))
            by_class = self.plan.training.class_weight
            if slot.target and isinstance(by_class, Mapping):
                texts = [_text(v) for v in table.column("sqlfl_target").to_pylist()]
                columns.append(np.array([float(by_class.get(t, 1.0)) for t in texts]))
            for column in columns:
                weights *= column[mapping.column(f"slot_{slot.index}").to_numpy()]
        return weights

    def _kept(self, bases: list[str]) -> np.ndarray:
        """0 for the rows that are for validation, else 1."""
        limit = self.plan.training.validation_fraction * 2**64
        digests = (hmac.digest(self.draws, base.encode(), "sha256") for base in bases)
        return np.array([float(int.from_bytes(d[:8], "big") >= limit) for d in digests])

    def bind(self, run: Callable[[Symbol], Number]) -> dict[str, Number]:
        """A value for every symbol of the plan; `run` gives those that no data decides."""
        sizes: dict[str, Callable[[Symbol], Number]] = {
            "joined": lambda s: self.joined,
            "outputs": lambda s: self.outputs,
            "rows": lambda s: self.rows(s, active=False).num_rows,
            "active": lambda s: self.rows(s).num_rows,
            "written": self.occurrences,
            "tags": lambda s: len(set(_keys(self.rows(s, active=False), _part(s))) - {None}),
            "vocabulary": lambda s: len(set(self.categories(s))),
            "merged_vocabulary": lambda s: len(set(self.categories(s))),
            "columns": lambda s: self.numeric(s) + self.onehot(s).shape[1],
            "numeric": self.numeric,
            "onehot": lambda s: self.onehot(s).shape[1],
            "pairs": lambda s: math.comb(self.onehot(s).shape[1] + 1, 2),
            "stored": self.stored,
            "merged_stored": self.stored,
            "crossed": self.crossed,
            "classes": lambda s: len(self.classes(s)),
            "class_text": lambda s: sum(len(c.encode()) for c in self.classes(s)),
        }
        return {s.name: sizes.get(s.role, run)(s) for s in self.plan.symbols}

    def occurrences(self, symbol: Symbol) -> int:
        """Joined rows that the client's rows of the slot take part in."""
        slot = self.slots[_slot(symbol)]
        assert symbol.client is not None
        return int(slot.count[slot.client == self.clients.index(symbol.client)].sum())

    def rows(self, symbol: Symbol, *, active: bool = True, weighing: bool = False) -> pa.Table:
        """All rows, or those that occur in the join, or those of them that weigh anything."""
        slot = self.slots[_slot(symbol)]
        mask = slot.count > 0 if active else np.ones(len(slot.count), bool)
        if weighing:
            mask = mask & (slot.weight > 0)
        if symbol.client is not None:
            mask = mask & (slot.client == self.clients.index(symbol.client))
        return slot.rows.filter(pa.array(mask))

    def distinct(self, symbol: Symbol) -> int:
        """Active rows that differ in a feature, NULL and NaN being equal to themselves."""
        rows = self.rows(symbol)
        columns = [
            [_comparable(value, feature) for value in rows.column(feature.name).to_pylist()]
            for feature in self.features(symbol)
        ]
        return len(set(zip(*columns, strict=True)))

    def categories(self, symbol: Symbol) -> list[object]:
        return self._categories(symbol, _part(symbol))

    def _categories(self, symbol: Symbol, place: int) -> list[object]:
        """Return the categories of the rows that weigh. A number of `auto` has those with a weight
        of their own."""
        feature = self.features(symbol)[place]
        found = self.rows(symbol, weighing=True).column(feature.name).to_pylist()
        if not _curved(feature):
            return found
        own = self.frequent.get((_slot(symbol), place), ())
        return [value for value in found if value in own]

    def classes(self, symbol: Symbol) -> set[str]:
        return {_text(v) for v in self.rows(symbol).column("sqlfl_target").to_pylist()}

    def features(self, symbol: Symbol) -> tuple[Feature, ...]:
        return self.plan.ucq.slots[_slot(symbol)].features

    def numeric(self, symbol: Symbol) -> int:
        """Value columns, and an indicator for each feature that is NULL in any row that weighs."""
        rows, width = self.rows(symbol, weighing=True), 0
        for feature in self.features(symbol):
            if feature.kind != CATEGORY:
                values = rows.column(feature.name).to_pylist()
                filled = feature.transform is not None and feature.transform.function == "impute"
                filled = filled or _curved(feature)
                width += feature.width + (any(_missing(v) for v in values) and not filled)
        return width

    def onehot(self, symbol: Symbol) -> sparse.csr_array:
        """(active rows that weigh, categories), the vocabulary being that of the slot."""
        rows = self.rows(symbol, weighing=True)
        blocks = [sparse.csr_array((rows.num_rows, 0))]
        whole = Symbol("", "", symbol.slot)
        for place, feature in enumerate(self.features(symbol)):
            if feature.kind == CATEGORY:
                known = list(dict.fromkeys(self._categories(whole, place)))
                values = rows.column(feature.name).to_pylist()
                hot = np.array([[v == k for k in known] for v in values], float)
                blocks.append(sparse.csr_array(hot.reshape(len(values), len(known))))
        return sparse.csr_array(sparse.hstack(blocks))

    def crossed(self, symbol: Symbol) -> int:
        whole = Symbol("", "", symbol.slot)
        sizes = [
            len(set(self._categories(whole, place)))
            for place, f in enumerate(self.features(symbol))
            if f.kind == CATEGORY
        ]
        pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
        return sum(sizes) + pairs

    def stored(self, symbol: Symbol) -> int:
        onehot = self.onehot(symbol)
        return int(sparse.triu(onehot.T @ onehot).count_nonzero())


def _read(plan: FederatedPlan, slot: int, connections: Connections) -> Read:
    parts: list[pa.Table] = []
    fragments: list[int] = []
    clients: list[Client] = []
    groups = MergedGroups(plan.ucq.slots[slot], connections)
    for fragment in plan.ucq.slots[slot].evaluated:
        con, sql = groups.placed(fragment)
        if plan.ucq.slots[slot].split:
            sql = f"SELECT * REPLACE (sqlfl_base::VARCHAR AS sqlfl_base) FROM ({sql})"
        found = con.sql(sql).to_arrow_table()
        if "sqlfl_kept" in found.column_names:
            kept = found.column("sqlfl_kept")
            found = found.filter(pc.invert(kept) if fragment.links else kept)
            found = found.drop_columns("sqlfl_kept")
        if plan.ucq.slots[slot].target and not fragment.links:
            found = found.filter(found.column("sqlfl_target").is_valid())
        parts.append(found)
        fragments += [fragment.index] * found.num_rows
        asked = fragment.client.whole if fragment.client.combined else fragment.client
        clients += [asked] * found.num_rows
    table = pa.concat_tables(parts, promote_options="permissive")
    return table, np.array(fragments, np.int32), clients


def _join(plan: FederatedPlan, read: Mapping[int, Read]) -> pa.Table:
    codes: dict[object, int] = {}
    with in_memory() as con:
        for slot, (table, fragment, _) in read.items():
            columns = {"fragment": fragment, "row": np.arange(table.num_rows, dtype=np.int32)}
            numbers = plan.ucq.slots[slot].keys
            keys = list(zip(*(_keys(table, key) for key in numbers), strict=True))
            if plan.ucq.slots[slot].once:
                keys = _once(plan, slot, fragment, keys)
            for place, key in enumerate(numbers):
                columns[f"key_{key}"] = pa.array(
                    [
                        None if v is None else codes.setdefault((key, v), len(codes))
                        for v in (row[place] for row in keys)
                    ],
                    pa.int32(),
                )
            con.register(f"slot_{slot}", pa.table(columns))
        return con.sql(plan.mapping_sql).to_arrow_table()


def _once(
    plan: FederatedPlan, slot: int, fragment: np.ndarray, keys: list[tuple[object, ...]]
) -> list[tuple[object, ...]]:
    """The keys of rows that only match: of rows with equal keys in a block, one joins."""
    members = [dict(block.members)[slot] for block in plan.ucq.blocks]
    seen: set[object] = set()
    found = []
    for number, row in zip(fragment.tolist(), keys, strict=True):
        blocks = tuple(n for n, own in enumerate(members) if number in own)
        known = (blocks, row) in seen
        seen.add((blocks, row))
        found.append((None,) * len(row) if known and blocks else row)
    return found


def _keys(table: pa.Table, key: int) -> list[tuple[object, ...] | None]:
    """The key of each row, None where a part is NULL; equal where SQL says so.

    (-0.0 = 0.0 is so in Python too.)
    """
    names = [n for n in table.column_names if n.startswith(f"sqlfl_key_{key}_")]
    columns = [["nan" if v != v else v for v in table.column(n).to_pylist()] for n in names]
    return [None if None in parts else parts for parts in zip(*columns, strict=True)]


def _comparable(value: object, feature: Feature) -> object:
    if feature.kind == CATEGORY or value is None:
        return value
    if isinstance(value, list):
        return tuple(_comparable(item, feature) for item in value)
    number = float(str(value)) if not isinstance(value, bool) else float(value)
    return None if number != number else number


def _curved(feature: Feature) -> bool:
    """It is a curve, or the values, that `auto` makes of a number."""
    made = feature.transform
    return made is not None and made.function == "auto" and made.fitted


def _missing(value: object) -> bool:
    return value is None or value != value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _slot(symbol: Symbol) -> int:
    assert symbol.slot is not None
    return symbol.slot


def _part(symbol: Symbol) -> int:
    assert symbol.part is not None
    return symbol.part
