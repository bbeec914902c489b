"""Numbers as whole ones modulo a power of two."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.aggregation.fixed_point import (
    GRADIENTS,
    STATISTICS,
    Format,
    added,
    from_floats,
    from_fractions,
    negated,
    summed,
    to_floats,
    to_fractions,
)
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError

FORMATS = (GRADIENTS, STATISTICS, Format(1, 30), Format(3, 0), Format(2, 100))


def exactly(values: Array) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


@st.composite
def parts(draw: st.DrawFn) -> tuple[Format, Array]:
    """(clients, n): as large as the format takes, smaller than its steps, and 0."""
    own = draw(st.sampled_from(FORMATS))
    clients = draw(st.integers(1, 10))
    room = own.range - (clients - 1).bit_length()
    exponents = st.integers(-own.fraction - 60, room)
    number = st.builds(
        lambda m, e, sign: sign * np.ldexp(m, e),
        st.floats(0.5, 1.0, exclude_max=True),
        exponents,
        st.sampled_from((-1.0, 0.0, 1.0)),
    )
    size = draw(st.integers(0, 6))
    rows = st.lists(number, min_size=size, max_size=size)
    found = draw(st.lists(rows, min_size=clients, max_size=clients))
    return own, np.array(found, np.float64).reshape(clients, size)


@given(parts())
def test_sums_are_exact_but_for_the_rounding_of_each_part(case: tuple[Format, Array]) -> None:
    own, values = case
    clients = len(values)
    whole = [from_floats(part, own, clients) for part in values]
    total = whole[0]
    for part in whole[1:]:
        total = added(total, part)
    found = to_fractions(total, own)
    step = Fraction(1, 2**own.fraction)
    for column, got in zip(values.T, found, strict=True):
        exact = sum((round(x / step) * step for x in exactly(column)), Fraction(0))
        assert abs(got - sum(exactly(column), Fraction(0))) <= clients * step / 2
        assert abs(got - exact) <= clients * step  # halves away from 0 here, to even there
    np.testing.assert_allclose(to_floats(total, own), [float(x) for x in found], rtol=1e-15)


@given(parts())
def test_a_number_and_its_negative_are_nothing(case: tuple[Format, Array]) -> None:
    own, values = case
    whole = from_floats(values[0], own, 1)
    assert not added(whole, negated(whole)).any()
    np.testing.assert_array_equal(negated(whole), from_floats(-values[0], own, 1))


@given(parts())
def test_exact_numbers_are_rounded_as_others_are(case: tuple[Format, Array]) -> None:
    own, values = case
    found = to_fractions(from_fractions(exactly(values[0]), own, len(values)), own)
    for got, wanted in zip(found, exactly(values[0]), strict=True):
        assert abs(got - wanted) <= Fraction(1, 2 ** (own.fraction + 1))


@pytest.mark.parametrize("own", FORMATS)
@pytest.mark.parametrize("clients", [1, 2, 3, 8, 9])
def test_what_might_wrap_around_is_refused(own: Format, clients: int) -> None:
    most = np.ldexp(1.0, own.range - (clients - 1).bit_length())
    inside = np.nextafter(most, 0.0)
    total = from_floats(np.array([-inside]), own, clients)
    for _ in range(clients - 1):
        total = added(total, from_floats(np.array([-inside]), own, clients))
    np.testing.assert_allclose(to_floats(total, own), -inside * clients, rtol=1e-12)
    for value in (most, -2.0 * most):
        with pytest.raises(ModelError, match="does not fit"):
            from_floats(np.array([0.0, value]), own, clients)
        with pytest.raises(ModelError, match="does not fit"):
            from_fractions([Fraction(value)], own, clients)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(InternalError, match="not finite"):
        from_floats(np.array([1.0, value]), GRADIENTS, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("limbs", [1, 2, 16])
def test_sums_of_many_are_those_of_whole_numbers(count: int, limbs: int) -> None:
    rng = np.random.default_rng(count * limbs)
    parts = [rng.integers(0, 2**64, (7, limbs), np.uint64) for _ in range(count)]
    parts[0][:3] = 2**64 - 1
    taken = [bool(n % 3 == 1) for n in range(count)]
    found = summed(parts, taken)

    def whole(values: np.ndarray, row: int) -> int:
        return sum(int(limb) << (64 * place) for place, limb in enumerate(values[row]))

    for row in range(7):
        total = sum(
            (-1 if off else 1) * whole(part, row) for part, off in zip(parts, taken, strict=True)
        )
        assert whole(found, row) == total % (1 << (64 * limbs))


def test_gradients_are_rounded_as_exact_numbers_are() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=4000) * 2.0 ** rng.integers(-80, 57, 4000)
    ends = [0.0, -0.0, 0.5, -1.5, 2.0**-65, -(2.0**-65), 3 * 2.0**-65, 1 - 2.0**-53, -(2.0**60)]
    values = np.append(values, ends)
    exact = from_fractions([Fraction(value) for value in values], GRADIENTS, 4)
    np.testing.assert_array_equal(from_floats(values, GRADIENTS, 4), exact)
