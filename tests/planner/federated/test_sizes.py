from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError
from sqlfl.planner.federated.sizes import Size, Symbol, total

A = Symbol("a[f@airline/0]", "active")
D = Symbol("d_c", "outputs")
T = Symbol("T", "rounds")
VALUES = {"a[f@airline/0]": 7, "d_c": 3, "T": 5}


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    size = Size()
    for _ in range(draw(st.integers(0, 3))):
        product = Size(draw(st.integers(-4, 9)))
        for symbol in draw(st.lists(st.sampled_from([A, D, T]), max_size=3)):
            product = product * symbol
        size = size + product
    return size


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        (Size(), "0"),
        (Size(8), "8"),
        (Size(A) * D * 4, "4·a[f@airline/0]·d_c"),
        (8 + 4 * Size(A) * D, "4·a[f@airline/0]·d_c + 8"),
        (Size(T) + 1, "T + 1"),
        (Size(A) + -1 * Size(T), "a[f@airline/0] - T"),
        (Size(D) * D * 8 + Size(D), "8·d_c^2 + d_c"),
        (Size(A) + -1 * Size(A), "0"),
    ],
)
def test_prints_terms_by_degree_then_name(size: Size, printed: str) -> None:
    assert str(size) == printed


@given(sizes(), sizes())
def test_sums_and_products_commute_and_evaluate(first: Size, second: Size) -> None:
    assert first + second == second + first
    assert first * second == second * first
    assert str(first * second) == str(second * first)
    assert hash(first + second) == hash(second + first)
    one, two = first.evaluate(VALUES), second.evaluate(VALUES)
    assert (first + second).evaluate(VALUES) == one + two
    assert (first * second).evaluate(VALUES) == one * two


@given(sizes(), sizes(), sizes())
def test_products_distribute(first: Size, second: Size, third: Size) -> None:
    assert first * (second + third) == first * second + first * third


def test_compares_with_numbers_and_symbols() -> None:
    assert Size(3) == 3
    assert Size(A) == A
    assert Size(A) != D
    assert not Size(A) * 0
    assert total([1, A, Size(A)]) == Size(A) * 2 + 1


def test_symbols_are_listed_by_name() -> None:
    assert (Size(D) * A + T).symbols == (T, A, D)


def test_averages_may_be_fractions_where_the_result_is_whole() -> None:
    assert (Size(A) * T).evaluate({"a[f@airline/0]": Fraction(7, 5), "T": 5}) == 7
    with pytest.raises(InternalError, match="not a whole number"):
        Size(A).evaluate({"a[f@airline/0]": Fraction(1, 2)})


def test_a_symbol_without_a_value_is_named() -> None:
    with pytest.raises(InternalError, match=r"no value for d_c in T·d_c"):
        (Size(T) * D).evaluate({"T": 2})
