"""Plain words for the data that a run sends, by the kinds of its messages.

An owner reads them in SHOW REQUESTS, and an analyst in EXPLAIN. They follow from the requests that
a client answers, never from the coordinator's own words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sqlfl import messages as ms
from sqlfl.contract.schema import ENDS, SlotSpecification
from sqlfl.contract.transforms import AUTO

BEFORE_ACTIVATION = (ms.SendKeys, ms.Activate)
"""Requests that may come before a slot's active rows are known."""
SILENT = frozenset(
    kind.kind
    for kind in (
        ms.Propose, ms.Prepare, ms.Finish, ms.Seal, ms.Commit, ms.Activate, ms.Weigh,
        ms.SetEncoding, ms.SetGram, ms.SetPairCells, ms.Start, ms.Save, ms.SendReleases,
        ms.SendSplit, ms.SendFolds,
        ms.SendPublicKey, ms.SetPeers, ms.Repeat, ms.Write, ms.OpenJoin, ms.SendJoinState,
        ms.CloseJoin, ms.ProposeStudy, ms.SendGroups, ms.MergeGroups,
    )
) | {"set_sketch", "column_weights"}  # fmt: skip
"""Requests whose replies hold no value of a row: counts, acknowledgements, random draws, keys."""
ROW_BY_ROW = frozenset(
    kind.kind
    for kind in (
        ms.Residuals, ms.SumGradient, ms.SendPredictions, ms.SendExactPredictions, ms.Probe,
        ms.ConsensusAverage, ms.SetParameters, ms.Score, ms.ScoreExactly, ms.ScorePermuted,
        ms.PermuteExactly,
    )
) | {"exact_residuals", "direction"}  # fmt: skip
"""Requests for numbers that a model makes of the features of each row."""
MASKED = frozenset(("send_embeddings",))
"""Requests that are answered in sums under masks alone."""
ROUNDS = ROW_BY_ROW | MASKED
"""Requests that are rounds of training or scoring."""
SUMS = frozenset((ms.SendGram.kind, ms.SendStatistics.kind))
"""Requests for sums over rows."""
OTHERS: Mapping[str, str] = {
    ms.SendFindings.kind: "remarks on features, such as which are empty or hold one value",
    ms.SendEqualRows.kind: "which rows have equal features",
    ms.SetRanges.kind: (
        "the smallest and the largest value, or the mean, of each column that TRANSFORM fits; of a "
        "curve means of groups of rows, and values that many rows have"
    ),
    ms.SendProfile.kind: "of each feature the range, the mean and counts of values",
    ms.SendExplained.kind: (
        "of each feature the range, the mean, counts of values and how much of the label it "
        "explains"
    ),
    ms.SendSeparated.kind: "which categories have rows of one class only",
    ms.SendRotated.kind: "the features of each row, mixed by a secret rotation",
    ms.SendErrors.kind: "the model's coefficients with their errors, and names of categories",
    **dict.fromkeys(
        (ms.SendContributions.kind, ms.SendExactContributions.kind),
        "for each row the part that each feature has in its score",
    ),
    **dict.fromkeys(
        (ms.ScorePermuted.kind, ms.PermuteExactly.kind),
        "for each row its score with the values of one feature exchanged between rows",
    ),
    ms.SendSlope.kind: "a number that tells how far training has come",
    ms.SendCells.kind: (
        "how many rows have each two of its features in some coarse ranges, and their residuals"
    ),
    ms.SetCells.kind: "how many rows have some two of its features in some fine ranges",
    ms.SetStrengths.kind: "how many degrees of freedom its curves and categories have",
    ms.SendSkew.kind: "how the values of each feature are distributed",
}
"""Data that leaves with other requests."""
CHOOSING = "frank_wolfe"
"""Algorithm that sends columns, not numbers that a model makes of them."""
SOLVING = "moments"
"""Algorithm that sends sums over rows, and numbers for each row only as predictions."""
KNOWN = (
    SILENT | ROW_BY_ROW | MASKED | SUMS | OTHERS.keys()
    | {k.kind for k in (ms.SendKeys, ms.SendLabels, ms.SendWeights, ms.SendOffsets)}
    | {ms.SendIdentifiers.kind}
)  # fmt: skip

ESTIMATES = "estimates of {} row by row, better with every round and exact in the end"
"""Words for the knowledge that an insider gets from numbers that a model makes of features in each
round. As many rounds as columns give the features where the parameters can be followed
(docs/privacy.md)."""
ONE_NUMBER = "the values of {} in all rows that take part, for whoever knows two of them"
"""Words for the knowledge that an insider gets where a table has one feature, a number, and the
model is linear: what leaves is the feature times a number, plus a number."""
_EXTREMES = "the smallest and the largest value of each number, which single rows may have"
_LEARNT = {
    ms.SetRanges.kind: _EXTREMES,
    ms.SendProfile.kind: _EXTREMES,
    ms.SendExplained.kind: _EXTREMES,
    ms.SendEqualRows.kind: "which rows have equal features",
    ms.SendRotated.kind: (
        "how similar the features of any two rows are, and all features of all rows if it knows a "
        "few of them or the table has few columns"
    ),
    **dict.fromkeys(
        (
            ms.SendContributions.kind,
            ms.SendExactContributions.kind,
            ms.ScorePermuted.kind,
            ms.PermuteExactly.kind,
        ),
        "features row by row, up to the scale of each",
    ),
}
"""Facts that an insider learns about single rows from some of these."""
FEW_COLUMNS = 3
"""Columns up to which a rotation of rows is no protection at all."""
UNPROTECTED = (
    "the features of all rows that take part, as a rotation of so few columns hides nothing"
)
"""Words for the knowledge that an insider gets from the rotated rows of so few columns."""


def learnt_from(kind: str) -> str:
    """Return the facts that an insider learns about single rows from a request of OTHERS; or ''."""
    return _LEARNT.get(kind, "")


def learnt_of_keys(owner: str = "your", *, at_party: bool = False) -> str:
    """Return what an insider learns from hashed join keys. Parties have the secret that tests a
    guess. `at_party`: the coordinator runs at one of them.
    """
    rows = f"which of {owner} rows have a partner in the other tables"
    return f"{rows} and{', where another party helps,' * (not at_party)} join keys by guessing"


@dataclass(frozen=True)
class NamesByUse:
    """Names of the columns that a slot reads, by their use."""

    keys: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    weight: tuple[str, ...] = ()
    offset: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlotNoise:
    """Noise of the data that leaves a slot, in words; empty texts for data in clear."""

    label: float | None = None
    """ε of the label; None in clear."""
    drawn: str = ""
    """Who draws the label's noise, before its ε; empty if that need not be said."""
    features: Callable[[bool], tuple[str, str]] = lambda rows: ("", "")
    """Function of whether numbers leave for each row: the noise of features, and its bounds."""
    embeddings: str = ""
    """Noise of sums under masks."""


@dataclass
class Disclosed:
    """Data that leaves of all slots, in the order of the sentence."""

    owner: str = "your"
    """The reader's word for the owner of the data: 'your' or 'its'."""
    at_party: bool = False
    """True if the coordinator runs at a party."""
    clear: list[str] = field(default_factory=lambda: ["how many rows take part"])
    noised: list[str] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)
    learnt: list[str] = field(default_factory=list)
    rounds: float = 0.0
    labels: bool = False
    """True if labels leave: messages to other parties then follow from them."""

    def add_slot(
        self,
        item: SlotSpecification,
        often: Mapping[str, float],
        algorithm: str,
        names: NamesByUse,
        noise: SlotNoise,
    ) -> None:
        """Add the data that leaves of a slot.

        often : kind of request -> the maximum number of them, above 0.
        algorithm : the algorithm of training; empty elsewhere.
        """
        if ms.SendKeys.kind in often and names.keys:
            keys = listed(names.keys)
            learnt = learnt_of_keys(self.owner, at_party=self.at_party)
            self._add(self.clear, f"a keyed hash of {keys} for each row", learnt)
        if names.conditions:
            learnt = f"that the conditions on {listed(names.conditions)} hold for each row that "
            self._add(self.learnt, f"{learnt}takes part")
        if ms.SendLabels.kind in often:
            self._add_label(listed(names.label) or "a constant", noise)
        for kind, role, columns in (
            (ms.SendWeights.kind, "weight", names.weight),
            (ms.SendOffsets.kind, "offset", names.offset),
        ):
            if kind in often:
                column = listed(columns) or "a constant"
                self._add(self.clear, f"the {role} {column} of each row", f"each row's {role}")
        if ms.SendIdentifiers.kind in often:
            identifiers = f"{listed(names.identifiers)} of each row"
            self._add(self.clear, f"{identifiers} as it is", identifiers)
        if item.features:
            self._add_features(item, often, algorithm, listed(names.features), noise)
        for kind in sorted(often):
            if kind == ms.SetRanges.kind:
                self._add_ranges(item)
            elif kind in OTHERS:
                bare = kind == ms.SendRotated.kind and _columns(item) <= FEW_COLUMNS
                self._add(self.clear, OTHERS[kind], UNPROTECTED if bare else learnt_from(kind))
            elif kind not in KNOWN:
                words = f"replies to {kind}, which sqlfl has no words for"
                self._add(self.clear, words, "more than these sentences say")

    def leaves(self) -> str:
        """Return the sentence on data that leaves: in clear, with noise, and in sums under
        masks."""
        numbers = itertools.count(1)
        parts = [
            f"{where} {listed(f'({next(numbers)}) {one}' for one in words)}"
            for where, words in (
                ("in clear leave", self.clear),
                ("with noise leave", self.noised),
                ("only in sums under masks leave", self.masked),
            )
            if words
        ]
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def inferred(self) -> str:
        """Return the sentence on single rows that an insider at the coordinator could infer."""
        if not self.learnt:
            return (
                "No number that leaves is of a single row; exact counts and sums may still tell an "
                "insider at the coordinator of rows in small groups."
            )
        learnt = listed(f"({chr(ord('a') + n)}) {one}" for n, one in enumerate(self.learnt))
        return f"An insider at the coordinator could learn {learnt}."

    def _add(self, where: list[str], words: str, learnt: str = "") -> None:
        if words not in where:
            where.append(words)
        if learnt and learnt not in self.learnt:
            self.learnt.append(learnt)

    def _add_ranges(self, item: SlotSpecification) -> None:
        """Add what `Ranges` has of the columns that TRANSFORM fits, by their functions."""
        functions = fitted_by(item)
        if ends := functions & set(ENDS):
            words = f"the smallest and the largest value of each column of {listed(sorted(ends))}"
            self._add(self.clear, words, learnt_from(ms.SetRanges.kind))
        if "impute" in functions:
            self._add(self.clear, "the mean of each column whose gaps TRANSFORM fills with it")
        if AUTO in functions:
            words = "of each curve means of groups of rows, and values that many rows have"
            self._add(self.clear, words)

    def _add_label(self, names: str, noise: SlotNoise) -> None:
        self.labels = True
        if noise.label is None:
            self._add(self.clear, f"the label {names} of each row", "labels row by row")
            return
        amount = f"ε = {noise.label:.3g}"
        self._add(
            self.noised,
            f"the label {names} of each row ({noise.drawn}{amount})",
            f"which of two likely values a label has, {guess(noise.label, 0.0)} ({amount})",
        )

    def _add_features(
        self,
        item: SlotSpecification,
        often: Mapping[str, float],
        algorithm: str,
        names: str,
        noise: SlotNoise,
    ) -> None:
        """Add the data that leaves of the slot's features, and count its rounds."""
        names = names or "constants"
        masked = MASKED & often.keys()
        rows = frozenset() if masked else row_by_row(algorithm) & often.keys()
        self.rounds = max(self.rounds, sum(often[kind] for kind in rows | masked))
        if masked:
            words = f"numbers that the model makes of {names} for each row{noise.embeddings}"
            learnt = (
                "sums of such numbers over one row of each table, from which features can be "
                f"estimated, better with the help of other parties{noise.embeddings}"
            )
            self._add(self.masked, words, learnt)
        told, bound = noise.features(bool(rows))
        where = self.noised if told else self.clear
        if rows:
            if algorithm == CHOOSING:
                words = f"those of {names} that training chooses, row by row"
                learnt = bound or f"{names} row by row, where training chooses them"
            elif self.rounds == 1:
                words = f"for each row, numbers that the model makes of {names}"
                learnt = f"what one round of such numbers tells of {names} row by row"
                learnt = bound or (ONE_NUMBER.format(names) if _one_number(item) else learnt)
            else:
                words = f"for each row and round, numbers that the model makes of {names}"
                learnt = bound or (ONE_NUMBER if _one_number(item) else ESTIMATES).format(names)
            self._add(where, f"{words}{told}", learnt)
        merged = item.shared and not (
            item.privacy is not None and item.privacy.statistics == "bounds"
        )
        if SUMS & often.keys() or merged:
            words = f"sums, means and counts over rows of {names}"
            if item.secure and item.shared:
                self._add(self.masked, words)
            else:
                learnt = bound or "what exact sums tell of rows in small groups"
                self._add(where, f"{words}{told}", learnt)


def fitted_by(item: SlotSpecification) -> set[str]:
    """Return the functions of TRANSFORM for which parts of a slot's rows send `Ranges`."""
    steps = (feature.step for feature in item.features)
    return {step.function for step in steps if step is not None and step.needs_summaries}


def _columns(item: SlotSpecification) -> float:
    """Return the slot's encoded columns; infinitely many with categories, which the data have."""
    numbers = all(feature.kind != "category" for feature in item.features)
    return sum(feature.width for feature in item.features) if numbers else math.inf


def _one_number(item: SlotSpecification) -> bool:
    """Return True if a linear model's numbers for each row are one feature's values, scaled."""
    return item.device is None and _columns(item) == 1 and item.features[0].kind == "numeric"


def row_by_row(algorithm: str) -> frozenset[str]:
    """Return the requests for numbers that a model makes of the features of each row."""
    return frozenset((ms.SendPredictions.kind,)) if algorithm == SOLVING else ROW_BY_ROW


def guess(epsilon: float, delta: float) -> str:
    """Return how good a guess between two equally likely values can be: a test of (ε, δ)-DP is
    right with probability at most (exp(ε) + δ) / (exp(ε) + 1).
    """
    odds = math.exp(min(epsilon, 700.0))
    return f"right at most {math.ceil(100 * (odds + delta) / (odds + 1))} times of 100"


def listed(words: Iterable[str]) -> str:
    """Return the words with commas, and 'and' before the last one."""
    *first, last = tuple(words) or ("",)
    return f"{', '.join(first)} and {last}" if first else last
