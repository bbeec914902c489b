"""Label noise: the probability to keep a class, and the resulting ε."""

from __future__ import annotations

import math

import numpy as np

from sqlfl.base.errors import InternalError

MAX_KEEP_PROBABILITY = 1.0 - 2.0**-50
"""Maximum probability to keep a label. Above it, the remaining probability could not be
distinguished from 0.
"""


def keep_probability(epsilon: float, classes: int) -> float:
    """Return e^ε / (e^ε + K − 1) of randomised response, rounded down: its ε never exceeds the one
    asked for. Raise InternalError for fewer than 2 classes, or ε that is not positive.
    """
    _check(epsilon, classes)
    return _floored(1.0 / (1.0 + (classes - 1) * math.exp(-epsilon)))


def laplace_keep(epsilon: float, classes: int) -> float:
    """The probability that the true one of K scores is the largest, after Laplace noise.

    The scores are 1 for the true class and 0 for the others, a change of label moves them by 2 in
    ℓ1, and the noise has b = 2/ε. With density f and distribution F of the noise it is
    ∫ f(x − 1) F(x)^(K−1) dx: by symmetry the mechanism is randomised response that keeps a label
    with this probability. With q = e^(−1/b), the parts below 0 and above 1 are in closed form,
    and x = 1 − b s between them. InternalError as for `keep_probability`.
    """
    _check(epsilon, classes)
    length = 0.5 * epsilon
    q = math.exp(-length)
    below = 0.5**classes * q / classes
    above = 0.5 if q < 1e-300 else -math.expm1(classes * math.log1p(-0.5 * q)) / (classes * q)

    panels = np.linspace(0.0, min(length, 45.0), 91)  # beyond, e^(−s) is less than rounding
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = 0.5 * np.diff(panels)[:, None]
    s = panels[:-1, None] + half * (1.0 + nodes)
    density = 0.5 * np.exp(-s) * (1.0 - 0.5 * np.exp(s - length)) ** (classes - 1)
    return _floored(below + float((half * weights * density).sum()) + above)


def true_epsilon(keep: float, classes: int) -> float:
    """ln(p (K − 1)/(1 − p)) of randomised response that keeps a label with probability p."""
    if classes < 2 or not 0.0 < keep < 1.0:
        raise InternalError(f"randomised response of {classes} classes that keeps {keep!r}")
    return abs(math.log(keep) + math.log(classes - 1) - math.log1p(-keep))


def label_epsilon(mechanism: str, epsilon: float, classes: int | None) -> float:
    """Return the actual ε of one label; `classes` is None for numbers.

    Laplace over classes discloses only the class with the largest score, and so less than its
    nominal ε. Raise InternalError for another mechanism, or for randomised response of numbers.
    """
    if mechanism == "laplace":
        return epsilon if classes is None else true_epsilon(laplace_keep(epsilon, classes), classes)
    if mechanism != "randomized_response" or classes is None:
        raise InternalError(f"label mechanism {mechanism!r} of {classes} classes")
    _check(epsilon, classes)
    return epsilon


def _floored(probability: float) -> float:
    """Round down to less than the exact probability; `probability` has rounding errors."""
    return min(MAX_KEEP_PROBABILITY, (math.floor(probability * 2.0**52) - 1.0) * 2.0**-52)


def _check(epsilon: float, classes: int) -> None:
    if classes < 2 or not epsilon > 0.0:
        raise InternalError(f"label noise of ε = {epsilon!r} for {classes} classes")
