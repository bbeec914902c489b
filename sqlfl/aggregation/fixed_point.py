"""Real numbers as whole ones modulo a power of two, so that masks hide them and sums are exact.

A number x travels as round(x 2^fraction) modulo 2^(64 limbs), in limbs of 64 bits from the lowest
on. In a sum, values above the middle of that range are negative. Sums are exact, in any order, as
long as they stay inside the range. Rounding changes each part by up to 2^-(fraction+1).

The formats are so wide that nobody must know or guess a bound of the summed values. Too small a
bound would let sums wrap around silently. A bound from the data would disclose facts about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError

WORD = 64
MANTISSA = 53


@dataclass(frozen=True)
class Format:
    """Number format: `limbs` of 64 bits, with `fraction` bits below the point."""

    limbs: int
    fraction: int

    @property
    def bits(self) -> int:
        return WORD * self.limbs

    @property
    def range(self) -> int:
        """Return r: sums lie within ±2^r."""
        return self.bits - 1 - self.fraction


GRADIENTS = Format(limbs=2, fraction=64)
"""Format up to 9e18, in steps of 5e-20."""
STATISTICS = Format(limbs=16, fraction=512)
"""Format for values in their own units, and their squares: up to 6e153, in steps of 7e-155."""


def from_floats(values: Array, form: Format, clients: int) -> Array:
    """Return float64 (n,) as uint64 (n, limbs), ready to be summed over `clients` clients.

    Raise ModelError if a sum of such numbers might leave the range, and InternalError for numbers
    that are not finite.
    """
    values = np.ascontiguousarray(values, np.float64).reshape(-1)
    if not np.isfinite(values).all():
        raise InternalError("a number to be summed is not finite")
    room = form.range - (clients - 1).bit_length()
    sizes = np.abs(values)
    if not sizes.max(initial=0.0) < np.ldexp(1.0, room):
        raise _too_large(room)
    if form.limbs == 2 and form.fraction == WORD:
        return _halves(values, sizes)
    mantissas, exponents = np.frexp(sizes)
    whole = np.ldexp(mantissas, MANTISSA).astype(np.uint64)
    shifts = exponents.astype(np.int64) - MANTISSA + form.fraction
    shifts[values == 0] = 0
    limbs = _placed(*_rounded(whole, shifts), form.limbs)
    negative = values < 0
    limbs[negative] = negated(limbs[negative])
    return limbs


def _halves(values: Array, sizes: Array) -> Array:
    """Return numbers with 64 bits below the point and 64 above it, in a few steps. They are rounded
    to the nearest, halves to even.

    The whole part of |x| and the rest are both exact in float64.
    """
    high = np.floor(sizes)
    low = np.rint(np.ldexp(sizes - high, WORD))
    limbs = np.empty((len(values), 2), np.uint64)
    # rounding may make the rest 1
    carried = low >= 2.0**WORD
    limbs[:, 0] = np.where(carried, 0.0, low).astype(np.uint64)
    limbs[:, 1] = (high + carried).astype(np.uint64)
    negative = values < 0
    limbs ^= np.where(negative, np.uint64(2**WORD - 1), np.uint64(0))[:, None]
    limbs[:, 0] += negative
    limbs[:, 1] += negative & (limbs[:, 0] == 0)
    return limbs


def _rounded(whole: Array, shifts: Array) -> tuple[Array, Array]:
    """Return `whole` after the shifts below 0, rounded to the nearest whole number, halves away
    from 0. Return also the remaining shifts.
    """
    right = np.clip(-shifts, 0, MANTISSA + 1).astype(np.uint64)
    half = np.where(right > 0, np.uint64(1) << np.maximum(right, 1) - np.uint64(1), np.uint64(0))
    return (whole + half) >> right, np.maximum(shifts, 0)


def _placed(whole: Array, shifts: Array, limbs: int) -> Array:
    """Return whole (n,) times 2^shifts."""
    placed = np.zeros((len(whole), limbs), np.uint64)
    rows, limb, bits = np.arange(len(whole)), shifts // WORD, (shifts % WORD).astype(np.uint64)
    placed[rows, limb] = whole << bits
    # In two steps, because a shift by all 64 bits does nothing.
    over = (whole >> (np.uint64(WORD - 1) - bits)) >> np.uint64(1)
    spilled = np.flatnonzero(over)
    placed[spilled, limb[spilled] + 1] = over[spilled]
    return placed


def to_floats(values: Array, form: Format) -> Array:
    """Return a sum, uint64 (n, limbs), as float64 (n,), to the last digits."""
    values = np.array(values, np.uint64)
    negative = (values[:, -1] >> np.uint64(WORD - 1)).astype(bool)
    values[negative] = negated(values[negative])
    totals = np.zeros(len(values))
    for limb in range(form.limbs):
        totals += np.ldexp(values[:, limb].astype(np.float64), WORD * limb - form.fraction)
    return np.where(negative, -totals, totals)


def from_fractions(values: Sequence[Fraction], form: Format, clients: int) -> Array:
    """Return exact numbers as `from_floats` does; meant for few of them."""
    room = form.range - (clients - 1).bit_length()
    whole = [round(value * (1 << form.fraction)) for value in values]
    if any(abs(number) >> (room + form.fraction) for number in whole):
        raise _too_large(room)
    size = form.bits // 8
    data = b"".join((number % (1 << form.bits)).to_bytes(size, "little") for number in whole)
    return np.frombuffer(data, "<u8").reshape(-1, form.limbs).astype(np.uint64)


def to_fractions(values: Array, form: Format) -> list[Fraction]:
    """Return a sum as `to_floats` does, exactly."""
    size, half = form.bits // 8, 1 << (form.bits - 1)
    data = np.ascontiguousarray(values).astype("<u8").tobytes()
    whole = [
        int.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)
    ]
    return [
        Fraction(number - (1 << form.bits) if number >= half else number, 1 << form.fraction)
        for number in whole
    ]


def summed(parts: Sequence[Array], taken: Sequence[bool]) -> Array:
    """Return the sum of numbers uint64 (n, limbs); marked parts are subtracted.

    It takes fewer than 2³² parts: it adds up halves of limbs, and propagates carries once at the
    end.
    """
    if len(parts) == 2 and not taken[0]:
        return added(parts[0], negated(parts[1]) if taken[1] else parts[1])
    halves = np.zeros((parts[0].shape[0], 2 * parts[0].shape[1]), np.uint64)
    for part, off in zip(parts, taken, strict=True):
        signed = ~part if off else part
        halves += np.ascontiguousarray(signed, "<u8").view("<u4")
    halves[:, 0] += np.uint64(sum(taken))
    for place in range(halves.shape[1] - 1):
        halves[:, place + 1] += halves[:, place] >> np.uint64(WORD // 2)
    low = halves & np.uint64(2 ** (WORD // 2) - 1)
    total: Array = low[:, 0::2] | (low[:, 1::2] << np.uint64(WORD // 2))
    return total


def added(left: Array, right: Array) -> Array:
    """Return the sums of numbers uint64 (n, limbs)."""
    total = np.empty_like(left)
    carry = np.zeros(len(left), np.uint64)
    for limb in range(left.shape[1]):
        part = left[:, limb] + right[:, limb]
        whole = part + carry
        total[:, limb] = whole
        carry = ((part < left[:, limb]) | (whole < part)).astype(np.uint64)
    return total


def negated(values: Array) -> Array:
    """Return the negatives of the numbers uint64 (n, limbs)."""
    unit = np.zeros_like(values)
    unit[:, 0] = 1
    return added(~values, unit)


def _too_large(room: int) -> ModelError:
    return ModelError(
        f"a number to be summed with others in secret is 2^{room} or more, which does not fit",
        hint="scale the columns: divide those with values that large by a power of ten; or leave "
        "union = 'secure' out",
    )
