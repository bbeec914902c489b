"""Messages: what goes in comes out, and what is counted is what travels."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sqlfl.errors import InternalError
from sqlfl.messages import KINDS, Message, PartialGradient, Ready
from sqlfl.wire import decode, encode

ARRAYS = hnp.arrays(
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.int64, np.float32, np.float64]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5),
)
TEXT = st.text(max_size=8).filter(lambda t: t.isprintable())
VALUES = {
    "Array": ARRAYS,
    "int": st.integers(-(2**62), 2**62),
    "float": st.floats(allow_nan=False),
    "str": TEXT,
    "pa.Array": st.lists(st.none() | st.integers(-9, 9), max_size=4).map(
        lambda v: pa.array(v, pa.int64())
    ),
    "tuple[Array, ...]": st.lists(ARRAYS, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
    "tuple[pa.Array, ...]": st.lists(
        st.lists(st.none() | st.text(max_size=5), max_size=4).map(
            lambda v: pa.array(v, pa.string())
        ),
        max_size=2,
    ).map(tuple),
}


def messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    hints = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    return st.builds(
        cls,
        run=TEXT,
        slot=st.integers(-1, 9),
        **{n: VALUES[t] for n, t in hints.items() if n not in ("run", "slot")},
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a.equals(b)) if isinstance(a, pa.Array) else a == b


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_kind_survives_the_border(kind: str, data: st.DataObject) -> None:
    message = data.draw(messages(KINDS[kind]))
    back = decode(encode(message).to_pybytes())
    assert type(back) is type(message)
    for spec in dataclasses.fields(message):
        assert same(getattr(message, spec.name), getattr(back, spec.name)), spec.name
    assert back.nbytes == message.nbytes
    assert back.shape == message.shape


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
        assert cls.kind == kind
        assert cls.__doc__
        assert typing.get_type_hints(cls)


def test_unknown_kind_and_unknown_value_are_refused() -> None:
    with pa.ipc.new_stream(
        sink := pa.BufferOutputStream(), pa.schema([], metadata={"kind": "pickle"})
    ):
        pass
    with pytest.raises(InternalError, match="unknown kind 'pickle'"):
        decode(sink.getvalue())
    with pytest.raises(InternalError, match="cannot travel: dict"):
        encode(PartialGradient("r", 0, typing.cast("Any", {})))
