"""Rows of a table behind the runs of one analyst, and the information in differences of runs.

A run over rows with counts c discloses sums Σ c·f(row). Several runs together disclose every
combination Σ λ·c. `isolates` detects a combination of fewer than d rows, or one dominated by fewer
than d of them. The squared lengths of the rows of an orthonormal basis of all c (their leverages)
are the maximum share of a unit combination on a row. A sum over d rows has 1/d on each.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.names import base_tables
from sqlfl.governance.policy_evaluation import refusal
from sqlfl.governance.records import Records
from sqlfl.governance.scopes import Table
from sqlfl.udfs import sql

TAKEN, JOINED = "taken", "joined"
"""Rows of a table that a query takes, whose number is disclosed; and joined rows with their counts,
which all other values cover.
"""
BASE = "base"
"""Base tables of a table or view, as they were at its runs: each as a digest of this family."""
MAX_NUMBERS = 1 << 26
"""Maximum numbers in memory for a comparison: rows times sets of rows."""
SLACK = 1e-9
DEPENDENT = 1e-13
"""Relative remainder of a set of rows that is a combination of others."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class MarkedRows:
    """Rows of a table by their marks, uint64 (n,), ascending and distinct, with their counts,
    float64 (n,), above 0.
    """

    marks: Array
    counts: Float

    @classmethod
    def of(cls, marks: Array, counts: Array) -> MarkedRows:
        """Return marked rows. Equal rows, which nobody can distinguish, get marks of their own."""
        counts = np.asarray(counts, np.float64)
        marks, counts = marks[counts > 0], counts[counts > 0]
        order = np.lexsort((counts, marks))
        sorted_marks, counts = marks[order], counts[order]
        first = np.searchsorted(sorted_marks, sorted_marks)
        sorted_marks = (
            sorted_marks + (np.arange(len(sorted_marks)) - first).astype(np.uint64) * _STEP
        )
        order = np.argsort(sorted_marks, kind="stable")
        return cls(sorted_marks[order], counts[order])

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.marks.tobytes() + self.counts.tobytes()).hexdigest()


def isolates(before: Sequence[MarkedRows], now: MarkedRows, least: int) -> bool:
    """Return True if all these together disclose values of fewer than `least` rows, or values
    dominated by fewer: by a difference of two sets, or by any combination.
    """
    for other in before:
        shared = np.isin(now.marks, other.marks, assume_unique=True).sum()
        if any(0 < len(side.marks) - shared < least for side in (now, other)):
            return True
    basis = _basis([*before, now])
    leverages = np.square(basis).sum(axis=1)
    most = np.sort(leverages)[::-1][: least - 1].sum()
    return bool(most > (least - 1) / least + SLACK)


def _basis(row_sets: Sequence[MarkedRows]) -> Float:
    """Return orthonormal columns over all rows of any of these: (n, rank)."""
    every = np.unique(np.concatenate([rows.marks for rows in row_sets]))
    if len(every) * len(row_sets) > MAX_NUMBERS:
        raise PolicyError(
            f"its owner's policy has min_difference, and {len(row_sets)} sets of up to "
            f"{len(every):,} rows are too many to compare"
        )
    basis: list[npt.NDArray[np.float64]] = []
    for rows in row_sets:
        column = np.zeros(len(every))
        column[np.searchsorted(every, rows.marks)] = rows.counts
        length = float(np.linalg.norm(column))
        if not length:
            continue
        column /= length
        for _ in range(2):  # the second time removes what rounding has left
            for other in basis:
                column -= (other @ column) * other
        left = float(np.linalg.norm(column))
        if left > DEPENDENT * np.sqrt(len(every)):
            basis.append(column / left)
    return np.array(basis).T.reshape(len(every), len(basis))


class Differencing:
    """Earlier row sets of one client's analyst. con : of the database of the tables."""

    def __init__(self, con: sql.Connection, records: Records, analyst: str) -> None:
        self._con, self._records, self._analyst = con, records, analyst

    def see(self, family: str, table: Table, rows: MarkedRows, least: int) -> None:
        """Record that values of these rows are about to leave. Raise PolicyError if these, with
        earlier ones, would disclose values of fewer than `least` rows.
        """
        digest = rows.digest
        if digest in self._known(family, table):
            return

        def work(cursor: sql.Connection, _: int) -> None:
            seen = self._found(cursor, family, table)
            if digest in seen:
                return
            bases = self._new_bases(cursor, table, least)
            if isolates(list(seen.values()), rows, least):
                raise refusal(f"min_difference = {least}, of rows that runs have apart")
            new = [(family, digest, rows.marks.tobytes(), rows.counts.tobytes())]
            for seen_family, *values in [*new, *((BASE, base, b"", b"") for base in bases)]:
                row = (self._analyst, *table, seen_family, *values, dt.datetime.now(dt.UTC))
                self._records.insert(cursor, "seen", row)

        self._records.in_turn(work)

    def _new_bases(self, cursor: sql.Connection, table: Table, least: int) -> list[str]:
        """Return the base tables that are not recorded of the table yet. Raise PolicyError where
        runs were over another name of their rows: a view of the table, its table, or another view
        of that. Their rows cannot be compared.

        The records say which tables a view read then: its owner may have replaced or dropped it.
        """
        with closing(sql.system_cursor(self._con)) as catalog:
            bases = base_tables(catalog, table)
        text = f"""SELECT digest, "database", "schema", name FROM t WHERE analyst = $analyst
            AND family = '{BASE}'"""
        known: set[str] = set()
        for base, *path in self._records.rows(cursor, text, "seen", {"analyst": self._analyst}):
            if [*map(folded, path)] == [*map(folded, table)]:
                known.add(base)
            elif base in bases:
                raise refusal(
                    f"min_difference = {least}, and this run or an earlier one is over "
                    f"{'.'.join(path[1:])}, which has rows of the same table",
                    hint="use one of the two names; its owner decides which",
                )
        return sorted(bases - known)

    def _known(self, family: str, table: Table) -> set[str]:
        with closing(self._records.cursor()) as cursor:
            rows = self._records.rows(
                cursor, f"SELECT digest FROM t WHERE {_OWN}", "seen", self._own(family, table)
            )
        return {digest for (digest,) in rows}

    def _found(self, cursor: sql.Connection, family: str, table: Table) -> dict[str, MarkedRows]:
        rows = self._records.rows(
            cursor,
            f"SELECT digest, marks, counts FROM t WHERE {_OWN} ORDER BY seen_at",
            "seen",
            self._own(family, table),
        )
        return {
            digest: MarkedRows(np.frombuffer(marks, np.uint64), np.frombuffer(counts, np.float64))
            for digest, marks, counts in rows
        }

    def _own(self, family: str, table: Table) -> dict[str, object]:
        catalog, schema, name = table
        return {"analyst": self._analyst, "family": family, "a": catalog, "b": schema, "c": name}


_OWN = """analyst = $analyst AND family = $family AND lower("database") = lower($a)
    AND lower("schema") = lower($b) AND lower(name) = lower($c)"""
