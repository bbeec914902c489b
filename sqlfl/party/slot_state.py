"""A client's state of one slot in a run, and its replies about the slot before training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.configuration import Configuration
from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.contract.schema import SlotSpecification
from sqlfl.contract.transforms import CURVE_ROWS
from sqlfl.messages.checks import mismatch, sizes_of
from sqlfl.messages.disclosed import BEFORE_ACTIVATION
from sqlfl.messages.wire import encode
from sqlfl.party.crossing import (
    PairFinder,
    SharedPairFinder,
    cells_of_pairs,
    points_of_pairs,
)
from sqlfl.party.diagnostics import Parts
from sqlfl.party.operator import Operator
from sqlfl.party.release_guard import releases_of
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding.columns import merge_equal_rows
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.features import (
    Encoding,
    local_encoding,
    shared_encoding,
    statistics,
)
from sqlfl.udfs.encoding.findings import of_scoring, of_training, separated
from sqlfl.udfs.encoding.fitting import Fitted, Values
from sqlfl.udfs.encoding.noised import (
    bounded_statistics,
    bounds_encoding,
    noised_encoding,
    noised_statistics,
    shared_noised_encoding,
)
from sqlfl.udfs.encoding.profiles import profile
from sqlfl.udfs.encoding.reference import Reference, reference
from sqlfl.udfs.encoding.transforming import (
    encoding_of,
    fit_again,
    join_few,
    of_ranges,
    ranges,
    transform,
    untransformed,
)
from sqlfl.udfs.labels.label_noise import noised_labels
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.sql import Connection
from sqlfl.udfs.updates.predict import make_engine, ready
from sqlfl.udfs.updates.update import LinearEngine

SAME_EACH_TIME = (
    ms.SetRanges,
    ms.SetEncoding,
    ms.SendSeparated,
    ms.SendProfile,
    ms.SendSkew,
    ms.SendRotated,
    ms.SendErrors,
)
"""Requests whose contents choose what is summed or measured: they are the same all through a run.
"""


@dataclass(eq=False)
class SlotState:
    specification: SlotSpecification
    snapshot: Snapshot
    warm: SavedBlock | None = None
    """Block that training starts from."""
    encoding: Encoding | None = None
    fitted: tuple[Fitted | None, ...] | None = None
    """Fitted steps by which TRANSFORM has made the features of the snapshot."""
    _first: tuple[Fitted | None, ...] | None = None
    """Fitted steps of all rows, where `fitted` is of the rows of one fit."""
    _before: dict[int, Values] = field(default_factory=dict)
    """Columns that TRANSFORM has replaced, where fits of TUNE replace them anew."""
    _points: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    """Points of the numbers of a shared slot that may be in pairs, over all its clients."""
    engine: LinearEngine | None = None
    operator: Operator | None = None
    seen: Array | None = None
    """float64 (a,): what active rows count in `reference`."""
    counts: Array | None = None
    """float64 (a,): what they count now."""
    encoded_counts: Array | None = None
    """float64 (a,): what they counted when they were encoded."""
    reference: Reference | None = None
    """Reference of SKEW, once it has been found."""
    weighed: bool = False
    """True if the weights of its rows have come with a message."""
    joined: int = 0
    """N, the number of joined rows."""
    trained: int = 0
    """Joined rows with a weight above 0."""
    scored: Encoding | None = None
    """Encoding of the saved block by which the rows were scored."""
    scorer: tuple[str, int] | None = None
    """Model and slot of the saved block that `engine` belongs to; None if it belongs to
    training.
    """
    parts: Parts | None = None
    """Parts of the predictions, by the feature that was permuted last."""
    noised_labels: float = 0.0
    """Nominal ε of the labels that have left; 0 without noise, or if none have left."""
    bare: bool = False
    """True if statistics leave without noise, because the party adds it to the sum over its
    clients.
    """
    limits: CellLimits = field(default_factory=CellLimits)
    """What the owner's policies say of cells of values that the client makes."""
    passed: tuple[int, frozenset[int], int] | None = None
    """Cells that were found to be large enough: the snapshot's `fits`, places of computed features,
    and minimum rows. Merging equal rows leaves these cells as they are.
    """
    noised_statistics: float = 0.0
    """Noise of the measured statistics, relative to their sensitivity; 0 without noise."""
    _few_joined: bool = False
    """True once `join_few` has been called."""
    active: bool = False
    """True once the rows that are joined are told. Nothing of other rows is."""
    asked: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """Digests of the requests that are answered once, by their kind; of standard errors also by
    their classes.
    """

    def check(self, message: ms.Message, **sizes: int) -> None:
        """Raise InternalError if the message has other sizes."""
        fault = mismatch(sizes_of(message), sizes)
        if fault is not None:
            raise InternalError(f"{message.kind} of other sizes: {fault}")

    def check_once(self, request: ms.Message) -> None:
        """Raise InternalError if the joined rows are not known yet, or if the request differs from
        an earlier one of a kind in `SAME_EACH_TIME`: the difference of two answers discloses more
        than both do. An equal request is answered again.

        Standard errors may be asked for of several classes, but of the same columns.
        """
        if not self.active and not isinstance(request, BEFORE_ACTIVATION):
            raise InternalError(f"{request.kind} before the rows that are joined are told")
        if not isinstance(request, SAME_EACH_TIME):
            return
        kind = ms.SendProfile.kind if isinstance(request, ms.SendProfile) else request.kind
        asked = {(kind, -1, -1): _digest(request)}
        if isinstance(request, ms.SendErrors):
            square, line = np.zeros_like(request.covariance), np.zeros_like(request.shift)
            none = np.zeros((2, len(line), 0))
            columns = replace(
                request,
                output=0,
                reference=-1,
                covariance=square,
                endless=square,
                shift=line,
                roots=none,
                starts=none[:, 0],
            )
            asked = {
                (kind, -1, -1): _digest(columns),
                (kind, request.output, request.reference): _digest(request),
            }
        if any(self.asked.get(of, told) != told for of, told in asked.items()):
            raise InternalError(
                f"{request.kind} of slot {request.slot} is answered once in a run, and comes again "
                "with other contents"
            )
        self.asked |= asked

    def weigh(self, request: ms.Weigh, vocabulary_key: bytes) -> ms.Message:
        """Set the weights of the active rows. If training comes several times, they are encoded by
        the first weights, or by the number of their joined rows.
        """
        self.check(request, active=self.snapshot.active)
        again = self.weighed or not self.specification.weighted
        self.weighed, self.trained = True, request.rows
        if again and (protected(self.specification) or not self.specification.folds):
            raise InternalError(f"rows of slot {self.specification.slot} are weighed once")
        if again:
            self.encoded()
            self.stop()
            self._fit_again(request)
        self.snapshot.weigh(request.counts)
        self.counts = np.asarray(request.counts, np.float64)
        if not again:
            self.encoded_counts = self.counts
            if len(request.samples):
                self.seen = np.asarray(request.samples, np.float64)
        if again:
            return ms.Ready(request.run, request.slot)
        return self.counted(vocabulary_key)

    def _fit_again(self, request: ms.Weigh) -> None:
        """Encode a slot with fitted features anew in TUNE, by the rows that count in the next fit.
        Clients of a shared slot keep the first encoding, but for curves of few rows: differences
        between points of two fits would tell of few rows.
        """
        features = self.specification.features
        refitted = any(feature.shrunken or feature.fitted for feature in features)
        shared = self.specification.shared
        if not refitted or self._encoded_by != "none":
            return
        self.refer(self.snapshot.con)
        self.snapshot.weigh(request.samples if len(request.samples) else request.counts)
        if self.fitted is not None:
            if self._first is None:
                self._first = self.fitted
            self.fitted = fit_again(
                self.snapshot,
                self._first,
                self._before,
                self.trained,
                self.limits,
                shared=shared,
            )
        encoding = self.encoded() if shared else local_encoding(self.snapshot)
        self.encoding = encoding_of(encoding, self.fitted)

    def refer(self, con: Connection) -> None:
        """Find what SKEW compares with, once, before equal rows are merged and rounds begin."""
        specification = self.specification
        if self.reference is not None or protected(specification) or self._encoded_by != "none":
            return
        if self.seen is None or self.counts is None or self.encoded_counts is None:
            raise InternalError(f"slot {specification.slot} has no active rows")
        encoding, snapshot = self.encoded(), self.snapshot
        if not specification.features or len(self.seen) != snapshot.active:
            return
        other = not np.array_equal(self.seen, self.encoded_counts)
        if other:
            snapshot.weigh(self.seen)
        self.reference = reference(
            snapshot,
            encoding,
            self.seen,
            self.encoded_counts,
            lambda: make_engine(specification.engine, con, snapshot, encoding),
        )
        if other:
            snapshot.weigh(self.counts)

    def activated(self, counts: Array) -> None:
        """Active rows occur so often in the join."""
        self.active = True
        self.seen = self.counts = self.encoded_counts = np.asarray(counts, np.float64)

    def stop(self) -> None:
        """End training, so that rows may be trained on again."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.operator = None

    def counted(self, vocabulary_key: bytes) -> ms.Message:
        """Return the answer once the weights of the active rows are known: statistics of a shared
        slot, unless public bounds determine the encoding.
        """
        run, slot = self.snapshot.run, self.specification.slot
        if not self.specification.shared or self._encoded_by == "bounds":
            return ms.Ready(run, slot)
        if self._encoded_by == "none":
            if any(feature.fitted for feature in self.specification.features):
                features = self.specification.features
                return ranges(self.snapshot, features, self.trained, self.limits)
            return statistics(self.snapshot, vocabulary_key)
        if self.bare:
            return bounded_statistics(self.snapshot, vocabulary_key)
        self._measure()
        return noised_statistics(self.snapshot, vocabulary_key)

    def set_ranges(self, message: ms.SetRanges, vocabulary_key: bytes) -> ms.Statistics:
        """Return statistics of the columns that TRANSFORM makes with the merged ranges of a shared
        slot.
        """
        features = self.specification.features
        if not self.specification.shared or self._encoded_by != "none" or self.fitted is not None:
            raise InternalError(f"slot {self.specification.slot} takes no ranges")
        self._points = points_of_pairs(features, message)
        self.fitted = self._transformed(of_ranges(features, message))
        return statistics(self.snapshot, vocabulary_key)

    def set_encoding(self, message: ms.SetEncoding, vocabulary_key: bytes) -> Encoding:
        """Set and return the encoding from the merged statistics of a shared slot."""
        spec = self.specification
        numeric = [feature for feature in spec.features if feature.kind != "category"]
        self.check(
            message,
            numeric=sum(feature.width for feature in numeric),
            features=len(numeric),
            categories=len(spec.features) - len(numeric),
        )
        if self._encoded_by == "none":
            encoding = shared_encoding(spec.features, message, vocabulary_key)
            self.encoding = encoding_of(encoding, self.fitted)
        elif self._encoded_by == "noised":
            self.encoding = shared_noised_encoding(spec, message, vocabulary_key)
        else:
            raise InternalError(f"slot {spec.slot} is encoded by public bounds")
        return self.encoding

    def encoded(self) -> Encoding:
        """Return the slot's encoding. If no message has set it, it follows from the local rows."""
        if self.encoding is None:
            if self._encoded_by == "none":
                self.fitted = self._transformed()
                self.encoding = encoding_of(local_encoding(self.snapshot), self.fitted)
            elif self._encoded_by == "bounds":
                self.encoding = bounds_encoding(self.snapshot)
            else:
                self._measure()
                self.encoding = noised_encoding(self.snapshot)
        return self.encoding

    def join_few(self) -> None:
        """Let few rows without any value be as the others, once."""
        if not self._few_joined and self.limits.least > 1:
            join_few(self.snapshot, self.limits)
        self._few_joined = True

    def finder(self, configuration: Configuration) -> PairFinder | None:
        """Return what chooses pairs of features in training; None where there are to be none."""
        features = self.specification.features
        most = max((feature.pairs for feature in features), default=0)
        if self.trained < CURVE_ROWS or not most:
            return None
        encoding, limits = self.encoded(), self.limits
        unit = self.trained / configuration.total if configuration.total > 0.0 else 1.0
        if limits.columns is not None:
            limits = replace(limits, columns=max(limits.columns - encoding.width, 0))
        if self.specification.shared:
            cells = (
                None if self.warm is None else cells_of_pairs(self.warm.encoding, encoding.total)
            )
            told = self.snapshot, features, most, limits
            return SharedPairFinder(*told, self._points, cells, unit)
        given = () if self.warm is None else self.warm.encoding.pairs
        return PairFinder(self.snapshot, features, most, limits, given, unit)

    def shrinkage(
        self, configuration: Configuration, finder: PairFinder | None = None
    ) -> Shrinkage | None:
        """Strengths that training starts from: those of the block that it starts from, where that
        has the same columns. None where `auto` made no feature, and of few rows."""
        specification = self.specification
        if self.trained < CURVE_ROWS or not any(
            feature.shrunken for feature in specification.features
        ):
            return None
        groups = self.encoded().with_pairs(None if finder is None else finder.first).groups
        first = Shrinkage.first(groups, self.trained, configuration.l2)
        before = None if self.warm is None else self.warm.encoding.strengths
        if before is not None and before.shape == first.strengths.shape:
            return replace(first, strengths=before)
        return first

    def scoring_engine(
        self, con: Connection, block: SavedBlock, of: tuple[str, int]
    ) -> LinearEngine:
        """Return the engine of the active rows, encoded by a saved block, until the run ends. `of`:
        the block's model and slot.

        Raise InternalError in training, and for another block than before.
        """
        if self.operator is not None or self.scorer not in (None, of):
            raise InternalError(f"slot {self.specification.slot} is not that of a block to look at")
        if self.engine is None:
            self.join_few()
            ready(self.snapshot, block.encoding)
            engine = self.specification.engine
            self.engine = make_engine(engine, con, self.snapshot, block.encoding)
            self.scored, self.scorer = block.encoding, of
        return self.engine

    def labels(self) -> ms.Labels:
        """Return the labels of the active rows, noised if the specification says so."""
        label = self._label
        if label is None:
            answer = self.snapshot.labels(self.specification.classes)
        else:
            answer = noised_labels(self.snapshot)
            self.noised_labels = label.epsilon
        return ms.Labels(self.snapshot.run, self.specification.slot, *answer)

    def findings(self) -> ms.Findings:
        """Return findings about the features, in training or, once they were scored, in scoring."""
        spec, none = self.specification, np.zeros(len(self.specification.features), np.uint8)
        if spec.privacy is not None and spec.privacy.delta is not None:
            raise InternalError(f"features of slot {spec.slot} are protected: nothing is said")
        empty, constant, identifying, unseen = none, none, none, none.astype(np.int64)
        if self.scored is not None:
            empty, unseen = of_scoring(self.snapshot, self.scored)
        else:
            encoding = self.encoded()
            empty, constant, identifying = of_training(self.snapshot, encoding, self.joined)
        return ms.Findings(self.snapshot.run, spec.slot, empty, constant, identifying, unseen)

    def separated(self, request: ms.SendSeparated) -> ms.Separated:
        """Return columns whose rows are all, or none, of a class, before training."""
        spec = self.specification
        if spec.privacy is not None and spec.privacy.delta is not None:
            raise InternalError(f"features of slot {spec.slot} are protected: nothing is said")
        if self.operator is not None or self.scored is not None or spec.warm is not None:
            raise InternalError(f"slot {spec.slot} does not begin to be trained")
        self.check(request, rows=self.snapshot.active)
        return separated(self.snapshot, self.encoded(), request)

    def profile(self, request: ms.SendProfile) -> ms.Profile:
        """Return a profile of the features, before any is encoded."""
        spec = self.specification
        if spec.privacy is not None:
            raise InternalError(f"rows of slot {spec.slot} are protected: nothing is said")
        if self.operator is not None or self.engine is not None or self.encoding is not None:
            raise InternalError(f"slot {spec.slot} is not one to check")
        if isinstance(request, ms.SendExplained):
            self.check(request, rows=self.snapshot.active)
        return profile(self.snapshot, request)

    def equal_rows(self) -> ms.EqualRows:
        """Return which active rows are equal. Engine and operator then work on distinct ones."""
        spec = self.specification
        if spec.privacy is not None and spec.privacy.delta is not None:
            raise InternalError(f"features of slot {spec.slot} are protected: nothing is said")
        if self.operator is not None:
            raise InternalError(f"slot {spec.slot} has been started")
        if self._before:  # rows that a fit makes equal may differ in the next one
            return ms.EqualRows(self.snapshot.run, spec.slot, np.zeros(0, np.uint32))
        classes = merge_equal_rows(self.snapshot)
        if len(classes):
            rows = np.bincount(classes, self.limits.rows)
            self.limits = replace(self.limits, rows=rows.astype(np.float64))
        return ms.EqualRows(self.snapshot.run, spec.slot, classes)

    def releases(self, request: ms.SendReleases) -> ms.Releases:
        """Return the operator's report on its releases, if there is one, with labels and
        statistics.
        """
        reply: ms.Message = releases_of(None, request.run, request.slot)
        if self.operator is not None:
            reply = self.operator.handle(request)
        if not isinstance(reply, ms.Releases):
            raise InternalError(f"the operator answered {request.kind} with {reply.kind}")
        return replace(reply, labels=self.noised_labels, statistics=self.noised_statistics)

    def _transformed(
        self, merged: tuple[Fitted | None, ...] | None = None
    ) -> tuple[Fitted | None, ...] | None:
        """Return fitted features of TRANSFORM. In a warm start they come from the block, to which
        the weights belong.
        """
        given = merged
        if self.warm is not None:
            encoding = self.warm.encoding
            given = None if encoding.fitted is None else encoding.fitted[: len(encoding.named)]
        self.join_few()
        features, limits = self.specification.features, self.limits
        if self.specification.folds and not (self.specification.shared or limits.bound):
            self._before = untransformed(self.snapshot, features)
        return transform(self.snapshot, features, given, self.trained, limits=limits)

    @property
    def _encoded_by(self) -> str:
        privacy = self.specification.privacy
        return "none" if privacy is None else privacy.statistics

    @property
    def _label(self) -> LabelNoise | None:
        privacy = self.specification.privacy
        return None if privacy is None else privacy.label

    def _measure(self) -> None:
        """Record that noised statistics are measured now: only once, because each time would add to
        ε.
        """
        privacy = self.specification.privacy
        if privacy is None or self.noised_statistics:
            raise InternalError(f"slot {self.specification.slot} has measured its statistics")
        self.noised_statistics = privacy.statistics_noise


def check_delta(specification: SlotSpecification, rows: int) -> None:
    """Raise PrivacyError if the δ of the features is 1/rows or more.

    Such a δ allows disclosing one row of each such table, and promises nothing.
    """
    delta = None if specification.privacy is None else specification.privacy.delta
    if delta is not None and rows * delta >= 1:
        raise PrivacyError(
            f"delta = {delta:g} is too large: delta must be smaller than 1/rows, and "
            f"{specification.name or 'its table'} has 1/delta rows or more",
            hint="take a delta far below 1/rows: it may lay open one row in 1/delta",
        )


def protected(specification: SlotSpecification) -> bool:
    """Return True if gradients of the slot must be clipped and noised."""
    return specification.privacy is not None and specification.privacy.delta is not None


def _digest(message: ms.Message) -> bytes:
    return hashlib.sha256(encode(replace(message, number=0))).digest()
