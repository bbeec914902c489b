"""Groups of rows with equal keys, which the databases of one party merge among themselves.

Each database sends the groups of a key to the one that merges it, which a hash of the key chooses.
They pass through the coordinator sealed by AES-256-GCM (NIST SP 800-38D), under a key that follows
from the party's secret and all nonces of the run, so that nobody else can read or change them.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlglot import exp

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.codec import loads
from sqlfl.base.errors import InternalError, ModelError, WireError
from sqlfl.contract.fragment_columns import GROUP_KEY
from sqlfl.contract.schema import Merging, SlotSpecification
from sqlfl.messages.checks import SAME_VERSION
from sqlfl.messages.wire_columns import fault_of, packed, unpacked
from sqlfl.udfs import sql
from sqlfl.udfs.numbering.keys import canonical_text

_NONCE = 12
"""Bytes of a random number for each text that is sealed."""
_MAX_SEALED_BYTES = 2**31 - 1
"""Bytes that are sealed at once, at most."""


@dataclass(eq=False)
class SlotGroups:
    """A slot's groups at one database, before they are merged."""

    con: sql.Connection
    request: ms.Prepare
    """The request of the run's snapshots."""
    specification: SlotSpecification
    fragments: tuple[str, ...]
    """SQL of the slot's fragments, over its groups."""
    _sealed: tuple[Array, ...] | None = field(default=None, repr=False)

    @classmethod
    def take(
        cls,
        con: sql.Connection,
        request: ms.Prepare,
        specification: SlotSpecification,
        fragments: Sequence[str],
    ) -> SlotGroups:
        """Make the database's groups, in temporary tables. The caller opens the transaction."""
        if request.join:
            raise InternalError("groups of several databases are merged for one statement alone")
        made = cls(con, request, specification, tuple(fragments))
        for number, select in enumerate(made._selects):
            alias = exp.TableAlias(this=exp.to_identifier("t"))
            groups = exp.Subquery(this=sql.verbatim(con, select), alias=alias)
            types = sql.types(con, sql.select(groups.copy(), [exp.Star()]))
            chosen = [*sql.columns_of(types, "t"), sql.named(made._home(types), "home")]
            sql.create(con, made._name(number), sql.select(groups, chosen))
        return made

    @property
    def _merging(self) -> Merging:
        merging = self.specification.merging
        assert merging is not None
        return merging

    @property
    def _selects(self) -> list[str]:
        return list(dict.fromkeys(select for select in self._merging.selects if select))

    def _name(self, number: int, part: str = "own") -> str:
        return f"sqlfl_{self.request.run}_{self.specification.slot}_groups{number}_{part}"

    def _home(self, types: Mapping[str, str]) -> exp.Expr:
        """The place of the database that merges a group, from the texts of its keys."""
        parts = [
            sql.expression("coalesce($text, '')", text=canonical_text(sql.column(name, "t"), kind))
            for name, kind in types.items()
            if name.startswith(GROUP_KEY)
        ]
        if not parts:
            raise InternalError("groups without a key have no database that merges them")
        each = (
            sql.expression("CAST(strlen($part) AS VARCHAR) || ':' || $part", part=part)
            for part in parts
        )
        whole = reduce(lambda one, two: sql.join_text(one, two), each)
        return sql.expression(
            "CAST(md5_number_lower($whole) % $databases AS INTEGER)",
            whole=whole,
            databases=sql.number(self._merging.databases),
        )

    # -- groups of other databases -----------------------------------------------------------------

    def sealed(self, key: bytes) -> tuple[Array, ...]:
        """Return the groups that each database merges, sealed: uint8 (k,), empty for this one."""
        if self._sealed is None:
            places = range(self._merging.databases)
            self._sealed = tuple(self._seal(key, place) for place in places)
        return self._sealed

    def _seal(self, key: bytes, place: int) -> Array:
        if place == self._merging.place:
            return np.zeros(0, np.uint8)
        text = _bytes([self._rows(number, place) for number in range(len(self._selects))])
        if len(text) > _MAX_SEALED_BYTES:
            raise ModelError(
                f"groups of {len(text):,} bytes are to be merged, and {_MAX_SEALED_BYTES:,} can be",
                hint="filter the rows in the subquery",
            )
        nonce = os.urandom(_NONCE)
        closed = AESGCM(key).encrypt(nonce, text, self._ends(self._merging.place, place))
        return np.frombuffer(nonce + closed, np.uint8)

    def _rows(self, number: int, place: int) -> pa.Table:
        """The groups that a database merges, all values as text."""
        table = sql.temp(self._name(number))
        names = self._types(number)
        query = sql.query(
            "SELECT $columns FROM $own WHERE home = $place",
            columns=[sql.named(sql.text(sql.column(name)), name) for name in names],
            own=table,
            place=sql.number(place),
        )
        with sql.batches(self.con, query) as reader:
            return reader.read_all()

    def _types(self, number: int) -> dict[str, str]:
        query = sql.select(sql.temp(self._name(number)), [exp.Star()])
        return {n: kind for n, kind in sql.types(self.con, query).items() if n != "home"}

    def _ends(self, sender: int, receiver: int) -> bytes:
        """Return the associated data of a sealed message: purpose, sender and receiver."""
        own = self.request.run, self.specification.slot, self._merging.databases, sender, receiver
        return json.dumps(own).encode()

    def merged(self, key: bytes, sealed: Sequence[Array]) -> tuple[str, ...]:
        """Merge the groups of other databases with those of this one. Return the fragments' SQL
        over them.

        Raise ModelError for groups that another database has not sealed for this one.
        """
        places = range(self._merging.databases)
        if len(sealed) != len(places):
            raise InternalError(f"groups of {len(sealed)} databases came, of {len(places)}")
        others = [
            self._opened(key, part, place)
            for place, part in zip(places, sealed, strict=True)
            if place != self._merging.place
        ]
        tables = [self._together(number, others) for number in range(len(self._selects))]
        named = dict(zip(self._selects, tables, strict=True))
        texts = []
        for text, select in zip(self.fragments, self._merging.selects, strict=True):
            if select and f"({select})" not in text:
                raise InternalError("a fragment is not made of the groups that it is said to be of")
            texts.append(text.replace(f"({select})", named[select]) if select else text)
        return tuple(texts)

    def _opened(self, key: bytes, part: Array, sender: int) -> list[list[pa.Array]]:
        data = bytes(part)
        try:
            ends = self._ends(sender, self._merging.place)
            text = AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], ends)
        except (InvalidTag, ValueError) as error:
            raise ModelError(
                "groups of another database of the party cannot be opened: they were sealed with "
                "another secret, for another run, or changed",
                hint="see that all databases of the party have one secret",
            ) from error
        sizes = [len(self._types(number)) for number in range(len(self._selects))]
        return _columns(text, sizes)

    def _together(self, number: int, others: Sequence[list[list[pa.Array]]]) -> str:
        """Make the table of all groups that this database merges; return its name in SQL."""
        types, own = self._types(number), sql.temp(self._name(number))
        parts = [pa.table(dict(zip(types, tables[number], strict=True))) for tables in others]
        none = pa.table({name: pa.array([], pa.string()) for name in types})
        given = pa.concat_tables([none, *parts])
        query = sql.query(
            "SELECT $columns FROM $own WHERE home = $place",
            columns=sql.columns_of(types),
            own=own,
            place=sql.number(self._merging.place),
        )
        cast = [sql.named(sql.cast(sql.column(n), kind), n) for n, kind in types.items()]
        with sql.registered(self.con, self._name(number, "given"), given) as table:
            whole = exp.union(query, sql.select(table, cast), distinct=False, copy=False)
            sql.create(self.con, self._name(number, "all"), whole)
        sql.drop(self.con, self._name(number))
        return sql.to_sql(sql.temp(self._name(number, "all")))

    def drop(self) -> None:
        """Drop the merged groups, once the fragments are evaluated."""
        names = (self._name(number, "all") for number in range(len(self._selects)))
        sql.drop(self.con, *names)


# Tables of texts as bytes: the columns' descriptions as JSON, after their length, then buffers.


def _bytes(tables: Sequence[pa.Table]) -> bytes:
    columns = [[packed(column.combine_chunks()) for column in table.columns] for table in tables]
    header = json.dumps([[own.description for own in table] for table in columns]).encode()
    buffers = (bytes(part) for table in columns for own in table for part in own.buffers)
    return b"".join([struct.pack("<Q", len(header)), header, *buffers])


def _columns(data: bytes, sizes: Sequence[int]) -> list[list[pa.Array]]:
    """Return the columns of the tables, of which each has so many. Raise ModelError for others."""
    place = 8

    def take(count: int) -> pa.Buffer:
        nonlocal place
        part = data[place : place + count]
        place += count
        if len(part) < count:
            raise WireError("ends too early")
        return pa.py_buffer(part)

    try:
        header = loads(take(struct.unpack_from("<Q", data)[0]).to_pybytes().decode())
        if not isinstance(header, list) or [len(table) for table in header] != [*sizes]:
            raise WireError("has other columns")
        tables = [[unpacked(own, take) for own in table] for table in header]
        faults = [fault_of(column) for table in tables for column in table]
        kinds = {column.type for table in tables for column in table}
        if any(faults) or not kinds <= {pa.string(), pa.large_string()} or place != len(data):
            raise WireError("has values of other kinds")
    except (WireError, ValueError, TypeError, struct.error) as error:
        raise ModelError(
            f"groups of another database of the party are of another form: {error}",
            hint=SAME_VERSION,
        ) from error
    return tables
