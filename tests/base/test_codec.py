"""JSON of others is read as what was declared, or not at all."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from sqlfl.base.arrays import Float
from sqlfl.base.codec import DEEPEST, LEFT_OUT, from_json, loads, to_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import (
    FeatureSpecification,
    KeySpecification,
    SlotSpecification,
    check_type,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.methods.sgd.configuration import SgdConfiguration


@dataclass(frozen=True)
class Inner:
    flag: bool
    pair: tuple[int, str]


@dataclass(frozen=True)
class Outer:
    name: str
    size: float
    inner: Inner | None
    many: tuple[Inner, ...]
    counts: Mapping[str, int]
    either: int | float | None = None


WHOLE = Outer("a", 1.5, Inner(True, (1, "x")), (Inner(False, (2, "y")),), {"k": 3}, 2.5)


@dataclass(frozen=True, eq=False)
class Measured:
    """Types that JSON has not."""

    values: Float
    rows: tuple[Float, ...]
    key: bytes | None
    at: dt.datetime
    limits: Float | None = field(default=None, metadata=LEFT_OUT)
    sure: bool = field(default=False, metadata=LEFT_OUT)

    def __post_init__(self) -> None:
        if len(self.values) > 3:
            raise InternalError("values without end")


NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
MEASURED = Measured(np.array([0.1, 1e-300, -0.0]), (np.ones(2), np.zeros(0)), b"\x00\xff", NOON)


def test_what_was_written_is_read() -> None:
    assert to_json(WHOLE) == json.dumps(asdict(WHOLE), separators=(",", ":"))
    assert from_json(Outer, to_json(WHOLE)) == WHOLE
    found = from_json(Outer, json.dumps(asdict(WHOLE) | {"size": 3, "either": 4}))
    assert (type(found.size), type(found.either)) == (float, int)
    assert from_json(Outer, json.dumps(asdict(WHOLE) | {"more": 1}), strict=False) == WHOLE


def test_arrays_bytes_and_times_keep_all_their_bits() -> None:
    text = to_json(MEASURED)
    assert json.loads(text).keys() == {"values", "rows", "key", "at"}
    found = from_json(Measured, text)
    assert found.values.tobytes() == MEASURED.values.tobytes()
    assert [row.tolist() for row in found.rows] == [[1.0, 1.0], []]
    assert (found.key, found.at, found.limits, found.sure) == (b"\x00\xff", NOON, None, False)
    wide = replace(MEASURED, limits=np.array([[1.0, 2.0], [3.0, 4.0]]), key=None, sure=True)
    back = from_json(Measured, to_json(wide))
    assert back.limits is not None
    assert back.limits.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (back.key, back.sure) == (None, True)
    endless = to_json(replace(MEASURED, values=np.array([np.inf])))
    assert from_json(Measured, endless, finite=False).values[0] == np.inf
    with pytest.raises(ValueError, match="Infinity"):
        from_json(Measured, endless)


NO_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "text among numbers": ({"values": [1.0, "2"]}, "values must be an array of numbers"),
    "a truth among numbers": ({"values": [True]}, "values must be an array of numbers"),
    "nothing among numbers": ({"values": [None]}, "values must be an array of numbers"),
    "rows of several lengths": ({"values": [[1.0], [1.0, 2.0]]}, "values must be an array"),
    "a row among numbers": ({"values": [1.0, [2.0]]}, "values must be an array of numbers"),
    "a number that is too large": ({"values": [10**400]}, "values must be an array of numbers"),
    "an object": ({"values": {"a": 1}}, "values must be an array of numbers, got dict"),
    "an array of arrays": ({"rows": [[1.0], 2.0]}, r"rows\[1\] must be an array of numbers"),
    "no hexadecimal": ({"key": "0g"}, "key must be bytes in hexadecimal, got '0g'"),
    "no time": ({"at": "noon"}, "at must be a time, got 'noon'"),
    "a number for a time": ({"at": 5}, "at must be text, got 5"),
    "values that the class refuses": ({"values": [1, 2, 3, 4]}, "values without end"),
}


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_arrays_bytes_and_times_that_are_none(case: str) -> None:
    changed, text = NO_ARRAYS[case]
    with pytest.raises(ValueError, match=text):
        from_json(Measured, json.dumps(json.loads(to_json(MEASURED)) | changed))


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "a number for text": ({"name": 1}, "name must be text, got 1"),
    "text for a number": ({"size": "1"}, "size must be a number, got '1'"),
    "a truth for a number": ({"size": True}, "size must be a number, got True"),
    "a huge number": ({"size": 10**400}, "size must be a number"),
    "no number": ({"size": float("nan")}, "JSON with the number NaN"),
    "an endless number": ({"size": float("-inf")}, "JSON with the number -Infinity"),
    "a list for an object": ({"inner": []}, "inner must be an object, got list"),
    "a number for a truth": ({"inner": {"flag": 1, "pair": [1, "x"]}}, "inner.flag must be true"),
    "a pair of three": ({"inner": {"flag": True, "pair": [1, "x", 2]}}, "inner.pair must be a l"),
    "a field of a field": ({"many": [{"flag": True}]}, r"many\[0\] must be with a field pair"),
    "a point in a whole": ({"counts": {"k": 1.5}}, r"counts\.k must be an integer, got 1.5"),
    "a field too many": ({"more": 1}, "must be without a field more"),
    "none of two": ({"either": "x"}, "either must be an integer"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_as_declared_is_refused(case: str) -> None:
    changed, text = OTHERS[case]
    with pytest.raises(ValueError, match=text):
        from_json(Outer, json.dumps(asdict(WHOLE) | changed))


def test_a_field_that_is_missing() -> None:
    with pytest.raises(ValueError, match="must be with a field name"):
        from_json(Outer, "{}")


@pytest.mark.parametrize("text", ["[" * 10**6, "[" * 65 + "]" * 65, '{"a":' * 70 + "1" + "}" * 70,
                                  '["' + "[" * 70, "[" * 70 + '"]"' + "]" * 69])  # fmt: skip
def test_what_is_nested_too_deeply(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Unterminated"):
        loads(text)


def test_depth_is_not_counted_in_text() -> None:
    text = json.dumps(["[" * 99, '"[' * 99, {"{" * 99: "\\"}, *[[] for _ in range(99)]])
    assert loads(text) == json.loads(text)
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert json.dumps(loads(deep)) == deep


@pytest.mark.parametrize("text", ["", "{", "nul", '{"a":1,}', "1e999", "[1] 2", '"\\ud800'])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(Outer, text)


# -- what a client is told -------------------------------------------------------------------------

SLOT = SlotSpecification(
    slot=1, features=(FeatureSpecification("x", "numeric"),), target=False, classes=False,
    identifiers=(), keys=(KeySpecification(0, ("INTEGER",), False),), fragments=(0, 1),
    shared=True, secret="federation", engine="arrays",
)  # fmt: skip
SPECIFICATIONS: dict[str, dict[str, Any]] = {
    "a kind of feature that there is not": {"features": [{"name": "x", "kind": "y", "width": 1}]},
    "a feature of no width": {"features": [{"name": "x", "kind": "array", "width": 0}]},
    "a feature without end": {"features": [{"name": "x", "kind": "array", "width": 2**40}]},
    "a fragment below 0": {"fragments": [-1]},
    "a fragment twice": {"fragments": [0, 0]},
    "a fragment beyond": {"fragments": [2**20]},
    "a slot below 0": {"slot": -1},
    "a share that is none": {"split": 1.0},
    "a type that is none": {"keys": [{"index": 0, "types": ["INT); DROP"], "nullable": False}]},
    "text for a truth": {"shared": "yes"},
    "another field": {"more": 1},
}


def test_a_specification_survives_its_journey() -> None:
    assert specifications_from_json(specifications_to_json((SLOT,))) == (SLOT,)


@pytest.mark.parametrize("case", SPECIFICATIONS)
def test_a_specification_that_is_none(case: str) -> None:
    (own,) = json.loads(specifications_to_json((SLOT,)))
    with pytest.raises(InternalError, match="the specification of a snapshot is none"):
        specifications_from_json(json.dumps([own | SPECIFICATIONS[case]]))


def test_a_slot_is_specified_once() -> None:
    text = specifications_to_json((SLOT, SLOT))
    with pytest.raises(InternalError, match="a slot is specified twice"):
        specifications_from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"outputs": "1"}', "[" * 10**5, "NaN"])
def test_options_that_are_none(text: str) -> None:
    with pytest.raises(InternalError, match="the options of training are none"):
        SgdConfiguration.from_json(text)


TYPES = (
    "INTEGER", "DECIMAL(18,3)", "VARCHAR[]", "DOUBLE[3]", "STRUCT(a INTEGER, \"b c\" VARCHAR)[]",
    "MAP(VARCHAR, INTEGER[])", "ENUM('a', 'b''c', 'd)')", "TIMESTAMP WITH TIME ZONE", "\"NULL\"",
    "UNION(num INTEGER, str VARCHAR)", "TIME_NS", "GEOMETRY('EPSG:4326')", "mine",
)  # fmt: skip


@pytest.mark.parametrize("text", TYPES)
def test_types_as_duckdb_writes_them(text: str) -> None:
    check_type(text)


@pytest.mark.parametrize(
    "text",
    ["", "'a'", "INT; DROP TABLE t", "INT)", "(INT", "INT(" * 99 + ")" * 99, "INT[" * 3, "INT[1 2]",
     "DECIMAL(99999999999)", "INT--", "INT/*", "a\x1b", "INT" * 30000, "(SELECT 1)", "INT[]" * 99],
)  # fmt: skip
def test_texts_that_are_no_types(text: str) -> None:
    with pytest.raises(ValueError, match="is no type"):
        check_type(text)
