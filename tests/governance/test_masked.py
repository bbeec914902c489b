"""What leaves of features under masks alone, and what would leave in the clear."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl import messages as ms
from sqlfl.governance.masked import BEFORE_ROUNDS, in_clear

PREDICTIONS = ms.Predictions("r", 0, np.zeros((1, 1), np.float32), np.zeros(0))
EMBEDDINGS = ms.Embeddings("r", 0, np.zeros(1, np.uint64), 1, 1)
SUMS = ms.SendPredictions


def asked(kind: type[ms.Message], slot: int = 0) -> ms.Message:
    """Without what it says."""
    found = object.__new__(kind)
    object.__setattr__(found, "slot", slot)
    return found


@pytest.mark.parametrize(
    ("reply", "clear"), [(PREDICTIONS, True), (EMBEDDINGS, False), (ms.Ready("r", 0), False)]
)
def test_what_is_told_in_rounds(reply: ms.Message, clear: bool) -> None:
    assert in_clear(asked(SUMS), reply) == clear
    assert not in_clear(asked(SUMS, -1), reply)


def test_what_comes_before_rounds() -> None:
    assert not in_clear(asked(ms.SendLabels), PREDICTIONS)
    assert in_clear(asked(ms.SumGradient), PREDICTIONS)
    before = (
        ms.SendKeys, ms.Activate, ms.Weigh, ms.SetRanges, ms.SetEncoding, ms.SendLabels,
        ms.SendWeights, ms.SendOffsets, ms.SendSplit, ms.SendFolds, ms.SendIdentifiers,
        ms.SendProfile, ms.SendExplained,
    )  # fmt: skip
    assert {kind.kind for kind in before} == BEFORE_ROUNDS
