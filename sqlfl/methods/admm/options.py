"""The options of ADMM; the options of local steps are for towers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.models.kinds import NEURAL
from sqlfl.options.entries import DEPENDS, Defaults, MethodOptions, Needs, Setting, option
from sqlfl.options.training import ALL, CONSENSUS, EXACT, SECURE, STRAGGLERS, UNION, WORDS
from sqlfl.options.types import BATCH, Batch, BatchRows, Whole, integer, number

LOCAL_ROWS = 512


def _batch(setting: Setting) -> Batch:
    return Whole() if setting.private else BatchRows(LOCAL_ROWS)


def _inner_rounds(setting: Setting) -> int:
    return 1 if setting.private and setting.neural else 10


@dataclass(frozen=True, kw_only=True)
class AdmmOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=50,
        tower_epochs=20,
        tolerance=1e-7,
        noised_epochs=10,
        exact="its penalty, its multipliers and its intercept are exact functions of predictions, "
        "which with predictions = 'exact' nothing noises",
    )

    # fmt: off
    batch_size: Batch = option(BATCH, DEPENDS, "rows of the client per local step",
        chosen=_batch, default_text=f"admm of mlp_*: {LOCAL_ROWS}", kinds=NEURAL)
    learning_rate: float = option(number(0, above=True), 0.01,
        "length of the local steps", kinds=NEURAL)
    rho: float | None = option(number(1e-4, most=1e4), None,
        "weight of the penalty that ties the blocks together",
        default_text="the mean curvature of the loss")
    union: str = option(UNION, EXACT,
        "also how a table's databases agree on their common block; for mlp_* 'consensus' only",
        chosen=lambda setting: CONSENSUS if setting.neural else EXACT,
        default_text="'exact'; 'consensus' for mlp_*")
    inner_rounds: int = option(integer(1), 10,
        "rounds of consensus in each epoch; only with union = 'consensus'", chosen=_inner_rounds,
        needs=Needs(("union",), (CONSENSUS,), hides=False))
    local_epochs: int = option(integer(1), 5,
        "passes over a client's rows in each update of its block",
        chosen=lambda setting: 1 if setting.private else 5, kinds=NEURAL)
    stragglers: float = option(STRAGGLERS, ALL, WORDS, default_text="'wait'")
    # fmt: on

    @property
    def consensus(self) -> bool:
        return self.union == CONSENSUS

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    @property
    def waits(self) -> float | None:
        return None if self.stragglers == ALL else self.stragglers

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        if kind not in NEURAL or self.consensus:
            return None
        hint = "towers have no second moments to sum; leave union out"
        return "union", f"'{CONSENSUS}' for {kind}", hint


def local_rounds(local_epochs: int, inner_rounds: int, clients: int) -> tuple[int, int]:
    """Return the minimisations in an epoch of towers, and the passes over a client's rows in each.

    A single client makes one minimisation. Several clients make one in each inner round, with at
    least one pass. Private runs make exactly these passes: one noised gradient of each row per
    pass.
    """
    if clients == 1:
        return 1, local_epochs
    rounds = max(inner_rounds, 1)
    return rounds, -(-local_epochs // rounds)


OPTIONS = AdmmOptions
