"""The options of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import DEPENDS, Defaults, MethodOptions, Needs, Setting, option, section
from sqlfl.options.training import ALL, EXACT, SECRET, SECURE, STRAGGLERS, UNION, WORDS, summing
from sqlfl.options.types import (
    BATCH,
    FRACTION,
    MAX_ROWS,
    MIN_ROWS,
    Batch,
    Usual,
    Whole,
    choice,
    number,
)

LEARNING_RATE = 0.01
"""Default step of Adam in the unit of the scores, and of all steps of towers."""
WHOLE_RATE = 0.03
"""Rate for towers with private parameters and exact predictions, where an epoch is one step."""
NOISED_RATE = 0.003
"""Rate for towers with noised predictions, where Adam makes long steps of noise too."""
DECAY = {"inverse": 0.25, "exponential": 0.95}
"""Decay of the schedules that have one."""
SCHEDULES = ("constant", *DECAY, "cosine")

_OPTIMIZER = choice(
    "plain", "momentum", "adam",
    instead={
        "sgd": "sgd is the algorithm; its steps without more are 'plain'",
        "lbfgs": "algorithm = 'lbfgs', which takes no optimizer",
    },
)  # fmt: skip
STEPS = {
    "plain": "θ ← θ − η ∂ℓ/∂θ",
    "momentum": "v ← m v + ∂ℓ/∂θ, θ ← θ − η v, m the momentum",
    "adam": "a step of Adam",
}
"""Optimizer -> its use of the gradient, in words."""


def _batch(setting: Setting) -> Batch:
    return Usual() if setting.neural and not setting.private else Whole()


def _learning_rate(setting: Setting) -> float | None:
    if not setting.neural:
        return None
    if setting.noised:
        return NOISED_RATE
    whole = setting.private and setting.values.get("batch_size") == Whole()
    return WHOLE_RATE if whole else LEARNING_RATE


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The optimizer, as sent to clients."""

    # fmt: off
    optimizer: str = option(_OPTIMIZER, "plain",
        "how a step uses the gradient",
        chosen=lambda setting: "adam" if setting.neural else "plain",
        default_text="'plain'; 'adam' for mlp_*")
    momentum: float = option(FRACTION, 0.9,
        "share of the last step that the next one keeps; only with optimizer = 'momentum'",
        needs=Needs(("optimizer",), ("momentum",)))
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class SgdOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=100, tower_epochs=20, tolerance=0.0, noised_epochs=20
    )

    # fmt: off
    batch_size: Batch = option(BATCH, DEPENDS, "joined rows per step", chosen=_batch,
        default_text=f"all rows; sgd of mlp_* and pbm: 1/20 of the rows, {MIN_ROWS} to {MAX_ROWS}")
    learning_rate: float | None = option(number(0, above=True), None, "step length",
        chosen=_learning_rate, default_text="from the loss's curvature; "
        f"{LEARNING_RATE:g} with 'adam', for numbers times their standard deviation; "
        f"{LEARNING_RATE:g} for mlp_*")
    steps: Steps = section(Steps)
    schedule: str | None = option(choice(*SCHEDULES), None,
        "how the step length changes over the epochs",
        default_text="'inverse' for batches whose step length is estimated, else 'constant'")
    decay: float | None = option(number(0), None,
        "how fast the step length falls ('exponential': greater than 0, at most 1)",
        default_text=", ".join(f"{v:g} ({name})" for name, v in DECAY.items()),
        needs=Needs(("schedule",), tuple(DECAY)))
    union: str = option(UNION, EXACT, SECRET)
    stragglers: float = option(STRAGGLERS, ALL, WORDS, default_text="'wait'")
    # fmt: on

    @property
    def estimated(self) -> bool:
        """Steps are as long as the curvature allows."""
        return self.learning_rate is None and self.steps.optimizer != "adam"

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    @property
    def waits(self) -> float | None:
        return None if self.stragglers == ALL else self.stragglers

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        if self.schedule != "exponential" or self.decay is None or 0.0 < self.decay <= 1.0:
            return summing(self.union, "sgd")
        must = "a number greater than 0 and at most 1 with schedule = 'exponential'"
        return "decay", must, None

    def falling(self, schedule: str) -> float:
        """Return the decay of this schedule; 0 without one."""
        return DECAY.get(schedule, 0.0) if self.decay is None else self.decay


OPTIONS = SgdOptions
