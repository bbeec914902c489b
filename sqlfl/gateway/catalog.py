"""Tables about the server and the parties, as Flight SQL's metadata commands return them.

A party is a catalog, and its schemas and tables are as its analyst sees them: `party.schema.table`
in a statement. There are no keys, as parties report none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sqlfl.base.result import Result
from sqlfl.base.version import __version__
from sqlfl.federation.results import arrow_types
from sqlfl.gateway import messages as ms

TABLE = "TABLE"
"""The type of all tables: parties do not report which are views."""
TYPE_NAME = b"ARROW:FLIGHT:SQL:TYPE_NAME"
"""Metadata of a column of a table: its type as DuckDB writes it."""
_INSENSITIVE, _NULLS_AT_END = 1, 3
"""Values of SqlSupportedCaseSensitivity and SqlNullOrdering."""
_KEYWORDS = [
    *("TRAIN", "TUNE", "CHECK", "EVALUATE", "PREDICT", "TRANSFORM", "RESUME", "MODEL", "TARGET"),
    *("WEIGHT", "PRIVACY", "PARTIES", "MODELS", "FEATURES", "HISTORY", "WEIGHTS"),
]
_INFO: Mapping[int, object] = {
    0: "sqlfl", 1: __version__, 2: pa.__version__, 3: False,
    4: True, 5: False, 8: 0, 9: False, 10: False, 11: False, 100: 0, 101: 0,
    500: False, 501: False, 502: False, 503: _INSENSITIVE, 504: '"', 505: _INSENSITIVE,
    506: False, 507: _NULLS_AT_END, 508: _KEYWORDS, 509: [], 510: [], 511: [], 512: [],
    513: "\\", 514: "", 515: True, 516: True, 519: False, 520: False, 529: "schema",
    530: "procedure", 531: "catalog", 564: False,
}  # fmt: skip
"""Values by the numbers of Flight SQL's SqlInfo: text, truth value, number or list of texts."""

_TEXT, _INT = pa.string(), pa.int32()


def _schema(**kinds: pa.DataType) -> pa.Schema:
    """Columns that are never NULL; those that may be end with an underscore."""
    return pa.schema(
        [pa.field(n.rstrip("_"), kind, nullable=n.endswith("_")) for n, kind in kinds.items()]
    )


INFO = _schema(
    info_name=pa.uint32(),
    value=pa.dense_union(
        [
            pa.field("string_value", _TEXT),
            pa.field("bool_value", pa.bool_()),
            pa.field("bigint_value", pa.int64()),
            pa.field("int32_bitmask", _INT),
            pa.field("string_list", pa.list_(_TEXT)),
            pa.field("int32_to_int32_list_map", pa.map_(_INT, pa.list_(_INT))),
        ]
    ),
)
CATALOGS = _schema(catalog_name=_TEXT)
SCHEMAS = _schema(catalog_name_=_TEXT, db_schema_name=_TEXT)
TABLES = _schema(catalog_name_=_TEXT, db_schema_name_=_TEXT, table_name=_TEXT, table_type=_TEXT)
TABLES_WITH_SCHEMA = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES = _schema(table_type=_TEXT)
PRIMARY_KEYS = _schema(
    catalog_name_=_TEXT,
    db_schema_name_=_TEXT,
    table_name=_TEXT,
    column_name=_TEXT,
    key_name_=_TEXT,
    key_sequence=_INT,
)
FOREIGN_KEYS = _schema(
    pk_catalog_name_=_TEXT,
    pk_db_schema_name_=_TEXT,
    pk_table_name=_TEXT,
    pk_column_name=_TEXT,
    fk_catalog_name_=_TEXT,
    fk_db_schema_name_=_TEXT,
    fk_table_name=_TEXT,
    fk_column_name=_TEXT,
    key_sequence=_INT,
    fk_key_name_=_TEXT,
    pk_key_name_=_TEXT,
    update_rule=pa.uint8(),
    delete_rule=pa.uint8(),
)
TYPES = _schema(
    type_name=_TEXT,
    data_type=_INT,
    column_size_=_INT,
    literal_prefix_=_TEXT,
    literal_suffix_=_TEXT,
    create_params_=pa.list_(pa.field("item", _TEXT, nullable=False)),
    nullable=_INT,
    case_sensitive=pa.bool_(),
    searchable=_INT,
    unsigned_attribute_=pa.bool_(),
    fixed_prec_scale=pa.bool_(),
    auto_increment_=pa.bool_(),
    local_type_name_=_TEXT,
    minimum_scale_=_INT,
    maximum_scale_=_INT,
    sql_data_type=_INT,
    datetime_subcode_=_INT,
    num_prec_radix_=_INT,
    interval_precision_=_INT,
)
_OWN_TYPES = {
    "BOOLEAN": -7, "TINYINT": -6, "SMALLINT": 5, "INTEGER": 4, "BIGINT": -5, "FLOAT": 6,
    "DOUBLE": 8, "DECIMAL": 3, "VARCHAR": 12, "BLOB": -4, "DATE": 91, "TIME": 92, "TIMESTAMP": 93,
}  # fmt: skip
"""Types of DuckDB by their numbers in XDBC."""
_QUOTED = ("VARCHAR", "DATE", "TIME", "TIMESTAMP")

_EMPTY: Mapping[type, pa.Schema] = {
    ms.CommandGetPrimaryKeys: PRIMARY_KEYS,
    ms.CommandGetExportedKeys: FOREIGN_KEYS,
    ms.CommandGetImportedKeys: FOREIGN_KEYS,
    ms.CommandGetCrossReference: FOREIGN_KEYS,
}


def schema_of(command: object) -> pa.Schema | None:
    """The columns of a metadata command's table; None for any other message."""
    match command:
        case ms.CommandGetSqlInfo():
            return INFO
        case ms.CommandGetXdbcTypeInfo():
            return TYPES
        case ms.CommandGetCatalogs():
            return CATALOGS
        case ms.CommandGetDbSchemas():
            return SCHEMAS
        case ms.CommandGetTables():
            return TABLES_WITH_SCHEMA if command.include_schema else TABLES
        case ms.CommandGetTableTypes():
            return TABLE_TYPES
    return _EMPTY.get(type(command))


def table_of(command: object, parties: Sequence[str], columns: Result) -> pa.Table:
    """The table of a metadata command. columns : of the parties, as `Federation.tables` gives."""
    match command:
        case ms.CommandGetSqlInfo():
            return _info(command.info)
        case ms.CommandGetXdbcTypeInfo():
            return _types(command.data_type)
        case ms.CommandGetCatalogs():
            return pa.table([sorted(parties)], CATALOGS)
        case ms.CommandGetDbSchemas():
            like = _like(command.db_schema_filter_pattern)
            places = {(party, schema) for party, schema, _ in _grouped(columns)}
            schemas = sorted(
                (party, schema)
                for party, schema in places
                if command.catalog in (None, party) and like(schema)
            )
            return _rows(schemas, SCHEMAS)
        case ms.CommandGetTables():
            return _tables(command, columns)
        case ms.CommandGetTableTypes():
            return pa.table([[TABLE]], TABLE_TYPES)
    return _EMPTY[type(command)].empty_table()


def needs_columns(command: object) -> bool:
    """The command's table follows from those of the parties, who are asked for them."""
    return isinstance(command, ms.CommandGetDbSchemas | ms.CommandGetTables)


def _tables(command: ms.CommandGetTables, columns: Result) -> pa.Table:
    schemas, names = map(
        _like, (command.db_schema_filter_pattern, command.table_name_filter_pattern)
    )
    wanted = not command.table_types or TABLE in command.table_types
    listed = {
        place: pairs
        for place, pairs in _grouped(columns).items()
        if wanted and command.catalog in (None, place[0]) and schemas(place[1]) and names(place[2])
    }
    rows: list[tuple[Any, ...]] = [(*place, TABLE) for place in listed]
    if not command.include_schema:
        return _rows(rows, TABLES)
    kinds = list(dict.fromkeys(kind for pairs in listed.values() for _, kind in pairs))
    types = dict(zip(kinds, arrow_types(kinds), strict=True))
    written = [
        pa.schema([pa.field(name, types[kind], metadata={TYPE_NAME: kind}) for name, kind in pairs])
        for pairs in listed.values()
    ]
    with_schema = [
        (*row, schema.serialize().to_pybytes()) for row, schema in zip(rows, written, strict=True)
    ]
    return _rows(with_schema, TABLES_WITH_SCHEMA)


def _grouped(columns: Result) -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Name and type of the columns of each table, by party, schema and name."""
    tables: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for party, schema, table, name, kind in columns:
        tables.setdefault((party, schema, table), []).append((name, kind))
    return tables


def _like(pattern: str | None) -> Any:
    """Return whether a name matches the SQL pattern: % for any text, _ for any character."""
    if pattern is None:
        return lambda _: True
    parts = (
        ".*" if part == "%" else "." if part == "_" else re.escape(part[-1:])
        for part in re.findall(r"\\.|.", pattern, re.DOTALL)
    )
    matcher = re.compile("".join(parts), re.DOTALL)
    return lambda name: matcher.fullmatch(name) is not None


def _rows(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


def _info(wanted: Sequence[int]) -> pa.Table:
    """Return the named infos that are known; all if none is named."""
    numbers = [n for n in wanted if n in _INFO] if wanted else list(_INFO)
    kinds = (str, bool, int, None, list, None)
    children: list[list[Any]] = [[] for _ in kinds]
    codes, offsets = [], []
    for number in numbers:
        code = kinds.index(type(_INFO[number]))
        codes.append(code)
        offsets.append(len(children[code]))
        children[code].append(_INFO[number])
    kind = INFO.field("value").type
    fields = [kind.field(n) for n in range(kind.num_fields)]
    value = pa.UnionArray.from_dense(
        pa.array(codes, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(values, f.type) for values, f in zip(children, fields, strict=True)],
        [f.name for f in fields],
    )
    return pa.table([pa.array(numbers, pa.uint32()), value], INFO)


def _types(wanted: int | None) -> pa.Table:
    rows = []
    for name, number in _OWN_TYPES.items():
        if wanted not in (None, number):
            continue
        quote = "'" if name in _QUOTED else None
        signed = None if quote or name in ("BOOLEAN", "BLOB") else False
        row = {
            "type_name": name, "data_type": number, "literal_prefix": quote,
            "literal_suffix": quote, "nullable": 1, "case_sensitive": name == "VARCHAR",
            "searchable": 3, "unsigned_attribute": signed, "fixed_prec_scale": False,
            "local_type_name": name, "sql_data_type": number,
            "num_prec_radix": None if signed is None else 10,
        }  # fmt: skip
        rows.append(row)
    return pa.Table.from_pylist(rows, TYPES)
