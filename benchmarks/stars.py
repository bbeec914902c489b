"""Seeded joins of any size: a star, one in which keys repeat on all sides, one that is no tree.

Tables are SELECTs over ranges of numbers, hashed with the seed: they stream into the databases, and
equal seeds give equal tables (of one version of DuckDB). Labels are drawn from a model over columns
of all tables, so that there is something to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from tasks import Task

CATEGORIES = 8
"""Values of each table's category."""
SIDE = 100
"""Numbers of each side of a grid."""
STRENGTH = 1.5
"""Standard deviation of the true scores, about."""


@dataclass(frozen=True)
class Shape:
    """Of a generated join. Raises ValueError where there is none."""

    rows: int
    """N, joined rows; of `many_to_many` about that many."""
    fan_out: int = 10
    """Joined rows of a dimension's row; of `many_to_many`, rows that a table has of a key. Both on
    average: keys are drawn."""
    slots: int = 3
    """Tables that are joined."""
    clients: int = 1
    """Databases of each table."""
    measures: int = 0
    """Numbers in the table of facts of a star, as features; without, it has keys and labels."""
    kind: str = "logistic_regression"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.slots < 2 or min(self.rows, self.fan_out, self.clients) < 1:
            raise ValueError(f"no join has this shape: {self}")

    def __str__(self) -> str:
        text = f"{self.slots} tables, fan-out {self.fan_out}"
        text += f", {self.clients} clients each" if self.clients > 1 else ""
        return text + (f", {self.measures} measures" if self.measures else "")


def star(shape: Shape) -> Task:
    """A table of facts with a row per joined row, and `slots` - 1 dimensions, each of whose rows
    has `fan_out` joined rows on average."""
    draws = Draws(shape.seed)
    dimensions = range(1, shape.slots)
    size = ceil(shape.rows / shape.fan_out)
    keys = [f"CAST(floor({size} * {draws.uniform(f'k{k}', 'i')}) AS BIGINT)" for k in dimensions]
    named = [f"{key} AS k{k}" for k, key in zip(dimensions, keys, strict=True)]
    measures = [draws.normal(f"m{j}", "i") for j in range(shape.measures)]
    score = draws.total(
        [draws.score(k, f"k{k}", f"k{k}") for k in dimensions]
        + [draws.weighted(f"m{j}", measure) for j, measure in enumerate(measures)]
    )
    named += [f"CAST({measure} AS FLOAT) AS m{j}" for j, measure in enumerate(measures)]
    facts = f"SELECT {', '.join(named)}, {draws.target(shape.kind, score)} AS y"
    tables = {"shop.facts": _clients(shape, shape.rows, facts)}
    for k in dimensions:
        facets = f"SELECT i AS id, {draws.facets(k, 'i', 'i')}"
        tables[f"d{k}.facets"] = _clients(shape, size, facets)
    columns = [f"f.m{j}" for j in range(shape.measures)] + _columns(dimensions)
    joins = [f"JOIN d{k}.facets d{k} ON f.k{k} = d{k}.id" for k in dimensions]
    query = f"SELECT {', '.join(columns)}, f.y FROM shop.facts f {' '.join(joins)}"
    return Task(f"star, {shape}", shape.kind, tables, query)


def many_to_many(shape: Shape) -> Task:
    """Tables that share a key, of which each has `fan_out` rows on average, so that the join has
    `fan_out` ** `slots` rows of it. The first table has the label."""
    draws = Draws(shape.seed)
    parts = range(shape.slots)
    keys = max(1, round(shape.rows / shape.fan_out**shape.slots))
    tables = {}
    for k in parts:
        key = f"CAST(floor({keys} * {draws.uniform(f'k{k}', 'i')}) AS BIGINT)"
        selected = [f"{key} AS key", draws.facets(k, "key", "i")]
        if k == 0:
            # of the other tables' rows only what those of one key share is known here
            others = [draws.weighted(f"a{p}", draws.normal(f"a{p}", "key")) for p in parts[1:]]
            score = draws.total([draws.score(0, "key", "i"), *others])
            selected.append(f"{draws.target(shape.kind, score)} AS y")
        tables[f"d{k}.facets"] = _clients(
            shape, keys * shape.fan_out, f"SELECT {', '.join(selected)}"
        )
    joins = [f"JOIN d{k}.facets d{k} ON d0.key = d{k}.key" for k in parts[1:]]
    query = f"SELECT {', '.join(_columns(parts))}, d0.y FROM d0.facets d0 {' '.join(joins)}"
    return Task(f"many-to-many, {shape}", shape.kind, tables, query)


def grid(shape: Shape) -> Task:
    """Two tables as of `many_to_many`, and a third one that hangs on both: a row for nine tenths of
    the pairs of a number of the one and a number of the other, found by a LEFT JOIN. No tree of
    keys leads to its joined rows. Raises ValueError for other than three tables."""
    if shape.slots != 3:
        raise ValueError(f"a grid joins three tables, not {shape.slots}")
    base = many_to_many(replace(shape, slots=2))
    draws = Draws(shape.seed)
    tables = {}
    for name, selects in base.tables.items():
        side = f"CAST(floor({SIDE} * {draws.uniform(name, 'key + 7 * b')}) AS BIGINT) AS side"
        tables[name] = tuple(f"SELECT *, {side} FROM ({select})" for select in selects)
    cells = f"SELECT i // {SIDE} AS p, i % {SIDE} AS q, {draws.facets(2, 'i', 'i')}"
    tables["d2.facets"] = _clients(replace(shape, clients=1), 9 * SIDE * SIDE // 10, cells)
    joins = "JOIN d1.facets d1 ON d0.key = d1.key "
    joins += "LEFT JOIN d2.facets d2 ON d2.p = d0.side AND d2.q = d1.side"
    query = f"SELECT {', '.join(_columns(range(3)))}, d0.y FROM d0.facets d0 {joins}"
    return Task(f"grid, {replace(shape, slots=3)}", shape.kind, tables, query)


@dataclass(frozen=True)
class Draws:
    """SQL expressions that draw from the numbers of rows and keys."""

    seed: int

    def uniform(self, name: str, number: str) -> str:
        """From 0 up to 1, without it: of the draw `name`, for each value of `number`.

        Hashed twice: hash(i, a) and hash(i, b) differ by the same bits for every i.
        """
        return f"((hash(hash({number}, '{self.seed} {name}')) >> 11) * {2.0**-53!r})"

    def normal(self, name: str, number: str) -> str:
        length = f"sqrt(-2 * ln(1 - {self.uniform(name + ' length', number)}))"
        return f"{length} * cos({2 * np.pi!r} * {self.uniform(name + ' angle', number)})"

    def facets(self, table: int, shared: str, number: str) -> str:
        """A table's columns: a number `a` by `shared`, a number `b` and a category `c`."""
        return (
            f"CAST({self.normal(f'a{table}', shared)} AS FLOAT) AS a, "
            f"CAST({self.normal(f'b{table}', number)} AS FLOAT) AS b, "
            f"'c' || {self._category(table, number)} AS c"
        )

    def score(self, table: int, shared: str, number: str) -> str:
        """What a row's `facets` add to its score."""
        effects = self._generator(f"c{table}").normal(size=CATEGORIES).round(6).tolist()
        parts = [
            self.weighted(f"a{table}", self.normal(f"a{table}", shared)),
            self.weighted(f"b{table}", self.normal(f"b{table}", number)),
            f"{effects}[{self._category(table, number)} + 1]",
        ]
        return f"({' + '.join(parts)})"

    def weighted(self, name: str, expression: str) -> str:
        """Times the true weight of the number `name`."""
        return f"{float(self._generator(name).normal()):.6f} * {expression}"

    def total(self, terms: Sequence[str]) -> str:
        """A score of about `STRENGTH`: each of the terms has two or three of variance 1."""
        return f"{STRENGTH / np.sqrt(3 * len(terms)):.6f} * ({' + '.join(terms)})"

    def target(self, kind: str, score: str) -> str:
        """Of the true `score` of row i: a number, a label, or one of three classes."""
        if kind == "linear_regression":
            return f"{score} + {self.normal('y', 'i')}"
        drawn = [f"{self.uniform(y, 'i')} < 1 / (1 + exp(-({score})))" for y in ("y", "z")]
        if kind == "logistic_regression":
            return drawn[0]
        return f"CAST({drawn[0]} AS INTEGER) + CAST({drawn[1]} AS INTEGER)"

    def _category(self, table: int, number: str) -> str:
        """From 0 up, the first ones more often."""
        drawn = self.uniform(f"c{table}", number)
        return f"CAST(floor({CATEGORIES} * {drawn} ** 2) AS INTEGER)"

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *name.encode()])


def _columns(tables: Sequence[int]) -> list[str]:
    return [f"d{k}.{column} AS {column}{k}" for k in tables for column in "abc"]


def _clients(shape: Shape, count: int, select: str) -> tuple[str, ...]:
    """A SELECT per client, of the rows i of `count` that are its."""
    return tuple(
        f"{select} FROM (SELECT range AS i FROM range({client}, {count}, {shape.clients}))"
        for client in range(shape.clients)
    )
