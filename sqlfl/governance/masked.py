"""Features that leave only under masks: predictions = 'secure_sum'."""

from __future__ import annotations

from sqlfl import messages as ms

BEFORE_ROUNDS = frozenset(
    kind.kind
    for kind in (
        ms.SendKeys, ms.Activate, ms.Weigh, ms.SetRanges, ms.SetEncoding, ms.SendLabels,
        ms.SendWeights, ms.SendOffsets, ms.SendSplit, ms.SendFolds, ms.SendIdentifiers,
        ms.SendProfile, ms.SendExplained,
    )
)  # fmt: skip
"""Requests whose replies disclose at most moments of features."""
_EITHER = (ms.Ready, ms.Releases, ms.Saved, ms.Findings)
"""Replies without a prediction."""
IN_SUMS = frozenset(kind.kind for kind in (*_EITHER, ms.PublicKey, ms.MaskedEmbeddings))
"""Replies in rounds, as they leave."""


def in_clear(request: ms.Message, reply: ms.Message) -> bool:
    """Return True if a prediction, or a sum of a party's own rows, would leave. `reply` is not
    masked yet, and its type decides: a proposal may claim anything.
    """
    if request.slot < 0 or request.kind in BEFORE_ROUNDS:
        return False
    return not isinstance(reply, (*_EITHER, ms.Embeddings))
