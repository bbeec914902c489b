"""What the draws of a row hide, and what they do not once towers have learned from the row.

The account of Tran et al. (2025, theorem 6.1) is of the sums that a row is in. It holds for towers
that are held fixed, and fails for towers that step by exact gradients: one row decides then where
its tower goes, and the sums of all other rows tell that. With clipped and noised gradients what
is claimed holds. Noise comes from a seeded generator here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import EMBEDDINGS, GRADIENTS, Gaussian, PoissonBinomial
from sqlfl.privacy.poisson_binomial.sampling import draw, estimate
from sqlfl.privacy.samplers import Entropy, add_gaussian
from tests.privacy import auditing

BINS, THETA, HONEST = 4, 0.05, 2
DELTA = 1e-5
RUNS, OTHERS = 1500, 600
START, RATE, TARGET = 0.1, 1e3, 100.0
"""w, a step so long that its sign is all that is left of w, and a label beyond all embeddings."""
CLIP, Z = 0.25, 1.0
OWN_DRAWS = PoissonBinomial(EMBEDDINGS, BINS, THETA, HONEST)


@dataclass(frozen=True)
class Step:
    """How the tower tanh(w x) steps by the gradients of one row (runs,)."""

    rate: float = RATE
    clip: float = np.inf
    noise: float = 0.0

    def of(self, gradients: Array, entropy: Entropy) -> Array:
        clipped = np.clip(gradients, -self.clip, self.clip)
        seen = add_gaussian(clipped, self.noise, entropy) if self.noise else clipped
        return START - self.rate * seen


def sums(values: Array, entropy: Entropy) -> Array:
    """What the coordinator has of each joined row when colluding parties' draws are off: those of
    the slot, of `values`, and of one other slot, whose embedding is 0."""
    own = draw(values, 1.0, BINS, THETA, entropy)
    return own + draw(np.zeros_like(values), 1.0, BINS, THETA, entropy)


def scores(x: float, step: Step, seed: int) -> Array:
    """Of RUNS runs in which the row has the feature x: what the row's own sum says, and what the
    sums of other rows say, all of them known and drawn of after the step: (RUNS, 2)."""
    entropy = np.random.default_rng(seed).bytes
    first = sums(np.full(RUNS, np.tanh(START * x)), entropy)
    slopes = estimate(first, HONEST, 1.0, BINS, THETA) - TARGET  # of squared loss
    w = step.of(slopes * x * (1.0 - np.tanh(START * x) ** 2), entropy)
    later = sums(np.broadcast_to(np.tanh(w)[:, None], (RUNS, OTHERS)), entropy)
    return np.column_stack([first, later.sum(axis=1)]).astype(np.float64)


def proved(step: Step) -> float:
    return auditing.from_scores(scores(1.0, step, 1), scores(-1.0, step, 2), DELTA)


def test_draws_hide_a_row_from_towers_that_are_held_fixed() -> None:
    assert proved(Step(rate=0.0)) <= epsilon_of([OWN_DRAWS], DELTA) < 1.2


def test_sums_of_other_rows_tell_what_a_tower_has_learned() -> None:
    """From one step six times the ε of the sum that the row itself is in."""
    assert proved(Step()) > 5.0 > 4.0 * epsilon_of([OWN_DRAWS], DELTA)


def test_clipping_alone_does_not_help() -> None:
    assert proved(Step(clip=CLIP)) > 5.0


def test_noised_gradients_hide_it_as_is_claimed() -> None:
    """More than by draws alone, and no more than by both."""
    claimed = epsilon_of([Gaussian(GRADIENTS, Z / 2.0), OWN_DRAWS], DELTA)
    found = proved(Step(clip=CLIP, noise=Z * CLIP))
    assert epsilon_of([OWN_DRAWS], DELTA) < found <= claimed


def test_the_attack_sees_noise_that_is_too_little() -> None:
    """It is no blunt instrument: a tenth of the noise that is claimed."""
    z = 3.0
    claimed = epsilon_of([Gaussian(GRADIENTS, z / 2.0), OWN_DRAWS], DELTA)
    assert proved(Step(clip=CLIP, noise=z * CLIP / 10.0)) > claimed
