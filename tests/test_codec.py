"""JSON of others is read as what was declared, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from sqlfl.codec import DEEPEST, loads, parse
from sqlfl.errors import InternalError
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.schema import (
    FeatureSpecification,
    KeySpecification,
    SlotSpecification,
    check_type,
    specifications_from_json,
    specifications_to_json,
)


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


def test_what_was_written_is_read() -> None:
    assert parse(Outer, json.dumps(asdict(WHOLE))) == WHOLE
    found = parse(Outer, json.dumps(asdict(WHOLE) | {"size": 3, "either": 4}))
    assert (type(found.size), type(found.either)) == (float, int)
    assert parse(Outer, json.dumps(asdict(WHOLE) | {"more": 1}), strict=False) == WHOLE


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
        parse(Outer, json.dumps(asdict(WHOLE) | changed))


def test_a_field_that_is_missing() -> None:
    with pytest.raises(ValueError, match="must be with a field name"):
        parse(Outer, "{}")


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
        parse(Outer, text)


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
