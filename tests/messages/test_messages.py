"""Messages: what goes in comes out, and what is counted is what travels."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, WireError
from sqlfl.messages import (
    ENVELOPE,
    KINDS,
    Activate,
    Failure,
    Gram,
    Identifiers,
    JoinKeys,
    Labels,
    Message,
    PartialGradient,
    Predictions,
    Prepared,
    Ready,
    SendKeys,
    Split,
    Weigh,
    Write,
)
from sqlfl.messages import Columns as ColumnsMessage
from sqlfl.messages.forms import Columns, Number, Numbers, Several, Text, Texts
from sqlfl.messages.wire import MAGIC, decode, encode, received
from sqlfl.methods.sgd.messages import SgdResiduals
from tests.depth import THOROUGH
from tests.samples import Draw


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, pa.Array):
        return str(plain(a)) == str(b.to_pylist())  # NaN is NaN
    return bool(a == b)


def plain(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_the_border(kind: str) -> None:
    for seed in range(500 if THOROUGH else 10):
        message = Draw(seed).message(KINDS[kind])
        back = received(encode(message).to_pybytes())
        assert type(back) is type(message)
        for spec in dataclasses.fields(message):
            assert same(getattr(message, spec.name), getattr(back, spec.name)), spec.name
        assert back.shape == message.shape
        if kind != "identifiers":  # where dictionaries and extensions come as their values
            assert back.nbytes == message.nbytes
        assert all(not v.flags.writeable for v in arrays_of(back))


def arrays_of(message: Message) -> list[np.ndarray]:
    values = [getattr(message, name) for name in message.forms()]
    flat = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
    return [v for v in flat if isinstance(v, np.ndarray)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_says_its_form(kind: str) -> None:
    cls = KINDS[kind]
    assert set(cls.forms()) == {f.name for f in dataclasses.fields(cls)} - set(ENVELOPE)
    hints = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    fitting = {
        "int": Number, "float": Number, "str": Text, "Array": Numbers,
        "tuple[str, ...]": Texts, "tuple[Array, ...]": Several, "tuple[pa.Array, ...]": Columns,
    }  # fmt: skip
    for name, form in cls.forms().items():
        assert type(form) is fitting[hints[name]], name
        if isinstance(form, Number):
            assert form.whole == (hints[name] == "int"), name


def test_a_field_without_a_form_is_an_error() -> None:
    @dataclasses.dataclass(frozen=True, eq=False)
    class Loose(Message):
        kind = "loose"
        value: int

    with pytest.raises(InternalError, match="field value of message loose does not say its form"):
        Loose("r", 0, 5).nbytes  # noqa: B018
    del KINDS["loose"]


def test_a_kind_is_one_message() -> None:
    with pytest.raises(InternalError, match="two messages are of the kind labels"):

        class Labels(Message):
            kind = "labels"

    assert KINDS["labels"].__module__ == "sqlfl.messages.preparation"


UNION = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
NONCE = np.zeros(16, np.uint8)
ONE = np.ones(1, np.uint32)
WRONG = {
    "a type": (
        Prepared("r", 0, np.zeros(2, np.int32), np.zeros(2, np.int64), NONCE), "must be int64"),
    "another order of bytes": (
        Prepared("r", 0, np.zeros(2, ">i8"), np.zeros(2, np.int64), NONCE), "must be int64"),
    "dimensions": (PartialGradient("r", 0, np.zeros(3)), "must have 2 dimensions"),
    "lengths": (
        Prepared("r", 0, np.zeros(2, int), np.zeros(3, int), NONCE), "has 3 where fragments is 2"),
    "a short nonce": (SendKeys("r", 0, np.zeros((1, 8), np.uint8)), "has 8 where 16 is"),
    "a list": (ColumnsMessage("r", 0, ["a"], ("b",), ONE), "must be a tuple"),  # type: ignore[arg-type]
    "how many": (ColumnsMessage("r", 0, ("a", "b"), ("b",), ONE), "has 1 where columns is 2"),
    "text that is none": (ColumnsMessage("r", 0, (b"a",), ("b",), ONE), "must hold text"),  # type: ignore[arg-type]
    "half a character": (Failure("r", 0, "E", "\ud800"), "half a character"),
    "a boolean": (Ready("r", 0, True), "must be an integer"),
    "a negative number": (Ready("r", 0, -1), "must be from 0 to"),
    "a huge number": (Ready("r", 0, 2**63), "must be from 0 to"),
    "no number": (Weigh("r", 0, np.ones(1), float("nan")), "must be from 0"),
    "no array": (PartialGradient("r", 0, {}), "cannot travel"),  # type: ignore[arg-type]
    "a union": (Identifiers("r", 0, (UNION,)), "sparse_union<0: int64=0> cannot travel"),
    "a view": (
        Identifiers("r", 0, (pa.array(["a"], pa.string_view()),)), "string_view cannot travel"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_as_declared_is_not_sent(case: str) -> None:
    message, text = WRONG[case]
    with pytest.raises(InternalError, match=re.escape(text)):
        encode(message)


def u32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


PLACE: Any = ("r", 0, ("a", "b", "c"), (), np.zeros(0, np.int32), ())
TAGS = np.frombuffer(bytes(range(32)), np.uint8).reshape(2, 16)
ODD = {
    "nonces in another order": SendKeys("r", 0, TAGS[[1, 0]]),
    "a nonce twice": Activate("r", 0, u32(0), u32(1), 1, TAGS[[0, 0]]),
    "rows that do not ascend": Activate("r", 0, u32(1, 0), u32(1, 1), 2),
    "rows that are met twice": Activate("r", 0, u32(1, 1), u32(1, 1), 2),
    "a count of 0": Activate("r", 0, u32(0, 1), u32(1, 0), 2),
    "a batch that names a row twice": SgdResiduals("r", 0, f32(1), 0.1, 1, 0, u32(0, 0)),
    "tags that are equal": JoinKeys("r", 0, np.zeros(0, np.uint16), (TAGS[[0, 0]],), (u32(0),)),
    "tags in another order": JoinKeys("r", 0, np.zeros(0, np.uint16), (TAGS[[1, 0]],), (u32(0),)),
    "a code beyond the tags": JoinKeys("r", 0, np.zeros(0, np.uint16), (TAGS,), (u32(0, 3),)),
    "a code beyond the classes": Labels("r", 0, np.zeros(0), ("a", "b"), u32(0, 2)),
    "a class that is met twice": Labels("r", 0, np.zeros(0), ("a", "a"), u32(0, 1)),
    "numbers beside classes": Labels("r", 0, np.zeros(2), ("a",), u32(0, 0)),
    "a label that is no number": Labels("r", 0, np.array([np.nan]), (), u32()),
    "an infinite label": Labels("r", 0, np.array([-np.inf, 1.0]), (), u32()),
    "a prediction that is no number": Predictions("r", 0, f32(1.0, np.nan), np.zeros(0)),
    "an infinite product": Predictions("r", 0, f32(1.0), np.array([np.inf])),
    "half a row for validation": Split("r", 0, np.array([0, 2], np.uint8)),
    "negative rows": Prepared("r", 0, np.array([-1]), np.array([0]), NONCE),
    "a negative weight": Weigh("r", 0, np.array([1.0, -1e-9]), 1.0),
    "an infinite weight": Weigh("r", 0, np.array([1.0, np.inf]), 1.0),
    "other columns of moments": Gram(
        "r", 0, np.zeros((1, 1)), np.zeros((1, 1)), u32(), u32(), np.zeros(0), np.zeros(3), 1.0),
    "moments below the diagonal": Gram(
        "r", 0, np.zeros((0, 0)), np.zeros((2, 0)), u32(1), u32(0), np.ones(1), np.zeros(2), 1.0),
    "moments of other columns": Gram(
        "r", 0, np.zeros((0, 0)), np.zeros((2, 0)), u32(0), u32(2), np.ones(1), np.zeros(2), 1.0),
    "columns of no query": ColumnsMessage("r", 0, ("a", "b"), ("c", "d"), u32(1)),
    "classes without places": Write(*PLACE, np.zeros(2), ("x",), "", np.ones((2, 1)), 0),
    "a place beyond the classes": Write(*PLACE, u32(0, 1), ("x",), "", np.ones((2, 1)), 0),
    "text that is no UTF-8": Identifiers("r", 0, (pa.array([b"\xff"]).view(pa.string()),)),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_elements_that_are_not_as_declared_are_refused(case: str) -> None:
    data = encode(ODD[case])
    assert type(decode(data)) is type(ODD[case])
    with pytest.raises(WireError, match=ODD[case].kind):
        received(data)


def test_extreme_numbers_are_finite() -> None:
    """Whose squares are not."""
    values = f32(3e38, -3e38)
    back = received(encode(Predictions("r", 0, values, np.array([-1.7e308, 1e-320]))))
    assert same(back.values, values)  # type: ignore[attr-defined]
    weights = np.array([0.0, -0.0, 1.7e308])
    assert same(received(encode(Weigh("r", 0, weights, 1.0))).counts, weights)  # type: ignore[attr-defined]


def test_names_of_runs_are_short_and_of_one_line() -> None:
    for run in ("r" * 201, "a\nb", "\x1b[31m"):
        with pytest.raises(WireError, match="the header's run"):
            received(encode(Ready(run, 0, 1)))


def test_nbytes_counts_the_values() -> None:
    message = PartialGradient("r", 0, np.zeros((3, 2)))
    assert message.nbytes == 3 * 2 * 8
    assert message.shape == (3, 2)
    assert Ready("r", 0, 5).nbytes == 8


def test_the_encoding_adds_only_framing() -> None:
    """Beyond the values, a message costs a constant and the padding of its buffers."""
    small, large = (
        len(encode(PartialGradient("r", 0, np.zeros((n, 1))))) - 8 * n for n in (8, 80_000)
    )
    assert abs(large - small) <= 64
    assert small < 2048


def test_the_kinds_are_their_own_names() -> None:
    for kind, cls in KINDS.items():
        assert cls.name_of() == kind
        assert cls.__doc__
        assert typing.get_type_hints(cls, localns={"Array": Array, "pa": pa})


def test_unknown_kinds_and_versions_are_refused() -> None:
    data = encode(Ready("r", 0, 5)).to_pybytes()
    with pytest.raises(WireError, match="unknown kind 'readx'"):
        received(data.replace(b'"ready"', b'"readx"'))
    with pytest.raises(WireError, match="no message of this version of sqlfl"):
        received(data.replace(b"\x00\x00\x02", b"\x00\x00\x03"))
    with pytest.raises(WireError, match="0 bytes are no message"):
        received(b"")


def test_nothing_of_memory_travels_between_values() -> None:
    """Buffers that were something else before: zeros are written between the values."""
    for _ in range(50):
        filled = np.frombuffer(pa.allocate_buffer(400), np.uint8)
        filled[:] = 255
        del filled
        data = encode(Predictions("r", 0, np.zeros((1, 1), np.float32), np.zeros(3))).to_pybytes()
        end = len(MAGIC) + 4 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
        assert not any(data[end:])
