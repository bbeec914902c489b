"""The only types that cross a party's border.

A message is a frozen dataclass. Its fields hold numbers, text, numpy arrays of one or two
dimensions, Arrow arrays, or tuples of these, and each says in its metadata which, of what types and
sizes, and what its elements must be (`forms`): whoever receives a message checks that (`checks`).
`sqlfl.wire` says how it travels; `nbytes` counts its values: the size that EXPLAIN discloses.
"""

from __future__ import annotations

from sqlfl.messages.base import CLIENT, ENVELOPE, Array, Message
from sqlfl.messages.models import (
    LONGEST_FAILURE,
    Collect,
    Collected,
    Commit,
    Drop,
    Failure,
    Finish,
    Identifiers,
    Keep,
    Save,
    Saved,
    Score,
    SendIdentifiers,
    Write,
    Written,
)
from sqlfl.messages.planning import (
    Columns,
    Describe,
    ListTables,
    Tables,
)
from sqlfl.messages.preparation import (
    Activate,
    Findings,
    JoinKeys,
    Labels,
    Prepare,
    Prepared,
    Ready,
    SendFindings,
    SendKeys,
    SendLabels,
    SendSplit,
    SendWeights,
    SetEncoding,
    Split,
    Statistics,
    Weigh,
    Weights,
)
from sqlfl.messages.training import (
    ConsensusAverage,
    ConsensusPart,
    Gram,
    PartialGradient,
    Predictions,
    Probe,
    Releases,
    Residuals,
    SendGram,
    SendPredictions,
    SendReleases,
    SetGram,
    Start,
    SumGradient,
)

__all__ = [
    "CLIENT",
    "ENVELOPE",
    "KINDS",
    "LONGEST_FAILURE",
    "Activate",
    "Array",
    "Collect",
    "Collected",
    "Columns",
    "Commit",
    "ConsensusAverage",
    "ConsensusPart",
    "Describe",
    "Drop",
    "Failure",
    "Findings",
    "Finish",
    "Gram",
    "Identifiers",
    "JoinKeys",
    "Keep",
    "Labels",
    "ListTables",
    "Message",
    "PartialGradient",
    "Predictions",
    "Prepare",
    "Prepared",
    "Probe",
    "Ready",
    "Releases",
    "Residuals",
    "Save",
    "Saved",
    "Score",
    "SendFindings",
    "SendGram",
    "SendIdentifiers",
    "SendKeys",
    "SendLabels",
    "SendPredictions",
    "SendReleases",
    "SendSplit",
    "SendWeights",
    "SetEncoding",
    "SetGram",
    "Split",
    "Start",
    "Statistics",
    "SumGradient",
    "Tables",
    "Weigh",
    "Weights",
    "Write",
    "Written",
]

KINDS: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        ListTables, Tables, Describe, Columns,
        Prepare, Prepared, SendKeys, JoinKeys, Activate, Weigh, Ready, Statistics, SetEncoding,
        SendLabels, Labels, SendWeights, Weights, SendSplit, Split, SendFindings, Findings,
        Start, SendGram, Gram, SetGram, Residuals, PartialGradient,
        SumGradient, SendPredictions, Predictions, Probe, ConsensusPart, ConsensusAverage,
        SendReleases, Releases,
        Save, Saved, Keep, Drop, Collect, Collected,
        Score, SendIdentifiers, Identifiers, Write, Written, Commit, Finish, Failure,
    )
}  # fmt: skip
