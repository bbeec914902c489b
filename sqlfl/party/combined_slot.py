"""One slot of a run at a party that combines its clients: it asks them about each request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from sqlfl import messages as ms
from sqlfl.aggregation.slot_aggregation import (
    merge_classes,
    merge_keys,
    merge_names,
    merge_noised,
    merge_profiles,
    merge_separated,
    merge_statistics,
    sum_bounded,
    sum_statistics,
)
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Configuration
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages import JoinKeys
from sqlfl.models.folds import merge_folds
from sqlfl.models.gram import GramMatrix
from sqlfl.party.members import ClientGroup, Reply
from sqlfl.party.operator import Operator, client_of
from sqlfl.party.release_guard import releases_of
from sqlfl.party.steps import Engine
from sqlfl.privacy.statistics import deviation
from sqlfl.udfs.encoding.noised import add_noise
from sqlfl.udfs.numbering.numbering import shuffled


class Each(Protocol):
    """Runs every client's part, side by side."""

    def __call__(self, do: Callable[[int], T], /) -> list[T]:
        """Return the results of the clients by their number."""
        ...


class CombinedEngine:
    """`Engine` over the party's rows. Gradients and second moments are summed over its clients
    before any use.

    `each` runs the clients. Raise InternalError if they have different columns.
    """

    def __init__(self, rows: CombinedRows, engines: Sequence[Engine], each: Each) -> None:
        first, *others = engines
        if any(other.width != first.width or other.offsets != first.offsets for other in others):
            raise InternalError("the clients of the party have other columns each")
        self._rows, self._engines, self._each = rows, tuple(engines), each
        self.name = first.name
        self.rows, self.width, self.numeric = rows.size, first.width, first.numeric
        self.centre, self.offsets = first.centre, first.offsets

    @cached_property
    def counts(self) -> Array:
        return self._rows.gather(self._each(lambda q: self._engines[q].counts))

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        rows, batches = self._chosen(batch)
        return rows.gather(self._each(lambda q: self._engines[q].predict(theta, batches[q])))

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        rows, batches = self._chosen(batch)
        if len(values) != rows.size:
            raise InternalError(f"{len(values)} values of {rows.size} rows")
        parts = rows.split(values)
        return reduce(add, self._each(lambda q: self._engines[q].gradient(parts[q], batches[q])))

    def gram(self) -> GramMatrix:
        return reduce(add, self._each(lambda q: self._engines[q].gram()))

    def norms(self) -> Array:
        return self._rows.gather(self._each(lambda q: self._engines[q].norms()))

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        parts = self._each(lambda q: self._engines[q].columns(kind))
        order = np.argsort(np.concatenate(self._rows.places))
        onehot = sparse.csr_array(sparse.vstack([part for _, part in parts]))
        return self._rows.gather([part for part, _ in parts]), onehot[order]

    def _chosen(self, batch: Array | None) -> tuple[CombinedRows, Sequence[Array | None]]:
        if batch is None:
            return self._rows, [None] * len(self._engines)
        return self._rows.chosen(np.asarray(batch))


T = TypeVar("T")
ValuesByRow = TypeVar(
    "ValuesByRow", ms.Weights, ms.Offsets, ms.Predictions, ms.Rotated, ms.Contributions
)
"""Reply with a value of each active row."""


class CombinedSlot:
    """Slot of the clients that hold it. `sizes`: rows of each client's fragments, by the client's
    number.

    Raise InternalError for a slot of one client.
    """

    def __init__(
        self,
        specification: SlotSpecification,
        members: ClientGroup,
        sizes: Mapping[int, dict[int, int]],
    ) -> None:
        self.specification = specification
        self._members = members
        self._sizes = dict(sizes)
        self._rows: CombinedRows | None = None
        """All rows until they are activated, then the active ones."""
        self._operator: Operator | None = None
        self._groups: dict[int, ms.SealedGroups] = {}
        """Groups that clients have sealed for each other, by the client's number."""
        self._noised_statistics = 0.0
        self._request: ms.Message | None = None
        """Request in progress."""

    @property
    def rows(self) -> CombinedRows:
        if self._rows is None:
            raise InternalError(f"rows of slot {self.specification.slot} have no order yet")
        return self._rows

    @property
    def size(self) -> int:
        """Return the number of rows of all its fragments."""
        return sum(rows for by_fragment in self._sizes.values() for rows in by_fragment.values())

    def handle(self, request: ms.Message) -> ms.Message:
        self._request = request
        match request:
            case ms.SendGroups():
                return self._send_groups(request)
            case ms.MergeGroups():
                return self._merge_groups(request)
            case ms.SendKeys():
                return self._join_keys(request)
            case ms.Activate():
                return self._activate(request)
            case ms.Weigh():
                return self._weigh(request)
            case ms.SetEncoding():
                return self._set_encoding(request)
            case ms.SendLabels():
                return self._labels(request)
            case ms.SendWeights():
                return self._gathered(request, ms.Weights)
            case ms.SendOffsets():
                return self._gathered(request, ms.Offsets)
            case ms.SendFolds():
                return self._folds(request)
            case ms.SendSplit():
                return self._split(request)
            case ms.SendIdentifiers():
                return self._identifiers(request)
            case ms.SendFindings():
                return self._findings(request)
            case ms.SendSeparated():
                return self._separated(request)
            case ms.SendProfile():
                return self._profile(request)
            case ms.SendEqualRows():
                return self._equal_rows(request)
            case ms.Start():
                return self._start(request)
            case ms.Save():
                return self._save(request)
            case ms.SendReleases():
                return self._releases(request)
            case ms.Score() | ms.ScorePermuted():
                return self._gathered(request, ms.Predictions)
            case ms.SendRotated():
                return self._gathered(request, ms.Rotated)
            case ms.SendErrors():
                return merge_names(self._ask(request, ms.Errors))
            case ms.SendContributions():
                return self._gathered(request, ms.Contributions)
        if self._operator is None:
            raise InternalError(f"{request.kind} before start")
        return self._operator.handle(request)

    # -- rows -------------------------------------------------------------------------------------

    def number(self, request: ms.Message) -> None:
        """Order rows without keys."""
        if not self.specification.keys:
            sizes = list(self._sizes.values())
            self._rows = by_fragment(self.specification, sizes, self._chances(request))

    def _send_groups(self, request: ms.SendGroups) -> ms.Message:
        """Let the clients seal their groups for each other. None leave the party."""
        asked = dict.fromkeys(self._merging, request)
        replies = self._members.ask(asked, ms.SealedGroups)
        self._groups = dict(zip(self._merging, replies, strict=True))
        return ms.SealedGroups(request.run, request.slot, (np.zeros(0, np.uint8),))

    def _merge_groups(self, request: ms.MergeGroups) -> ms.Message:
        if not self._groups:
            raise InternalError(f"{request.kind} before groups are asked for")
        groups, self._groups = self._groups, {}
        requests = {
            number: replace(request, sealed=tuple(own.sealed[place] for own in groups.values()))
            for place, number in enumerate(groups)
        }
        replies = self._members.ask(requests, ms.MergedGroups)
        for number, reply in zip(requests, replies, strict=True):
            self._sizes[number] = dict(zip(self._sizes[number], reply.rows.tolist(), strict=True))
        self.number(request)
        rows = dict.fromkeys(self.specification.fragments, 0)
        nulls = dict(rows)
        for number in self._sizes:
            for fragment, count in self._sizes[number].items():
                rows[fragment] += count
        for number, reply in zip(requests, replies, strict=True):
            counts = zip(self._sizes[number], reply.null_targets.tolist(), strict=True)
            for fragment, count in counts:
                nulls[fragment] += count
        counted = (np.array([*counts.values()], np.int64) for counts in (rows, nulls))
        return ms.MergedGroups(request.run, request.slot, *counted)

    @property
    def _merging(self) -> list[int]:
        """Return the numbers of the clients with groups."""
        own = self.specification
        if own.merging is None or own.combination is None:
            raise InternalError(f"slot {own.slot} has no groups to merge")
        parts = zip(own.combination.parts, own.merging.selects, strict=True)
        return sorted({number for (number, _), select in parts if select})

    def _join_keys(self, request: ms.SendKeys) -> ms.Message:
        parts, sizes = self._ask(request, ms.JoinKeys), list(self._sizes.values())
        self._rows, reply = merge_join_keys(
            self.specification, parts, sizes, self._chances(request)
        )
        return reply

    def _chances(self, request: ms.Message) -> list[bytes]:
        slot = self.specification.slot
        return self._members.do(
            request, self._sizes, lambda _, client: client.chance(request.run, slot)
        )

    def _activate(self, request: ms.Activate) -> ms.Message:
        self._rows, client_rows = self.rows.ascending(request.rows)
        counts = self._rows.split(request.counts)
        requests = [
            replace(request, rows=rows.astype(np.uint32), counts=count)
            for rows, count in zip(client_rows, counts, strict=True)
        ]
        return self._counted(requests, request.total)

    def _weigh(self, request: ms.Weigh) -> ms.Message:
        self._check(request, len(request.counts))
        self._operator = None
        requests = [replace(request, counts=counts) for counts in self.rows.split(request.counts)]
        if len(request.samples):
            samples = self.rows.split(request.samples)
            requests = [
                replace(each, samples=own) for each, own in zip(requests, samples, strict=True)
            ]
        return self._counted(requests, request.total)

    def _check(self, request: ms.Message, size: int) -> None:
        if size != self.rows.size:
            raise InternalError(f"{request.kind} of {size} rows, of {self.rows.size}")

    # -- encoding ---------------------------------------------------------------------------------

    def _counted(self, requests: Sequence[ms.Message], total: float) -> ms.Message:
        """Return the answer once the weights of the active rows are known, with `total` that of the
        join. It is statistics if other parties share the slot; otherwise the clients' encoding is
        agreed here.
        """
        replies = self._ask_each(requests, ms.Message)
        parts = [reply for reply in replies if isinstance(reply, ms.Statistics)]
        ready = ms.Ready(requests[0].run, self.specification.slot)
        if not parts:
            return ready
        privacy = self.specification.privacy
        noised = privacy is not None and privacy.statistics == "noised"
        whole = self._noised(parts) if noised else sum_statistics(parts)
        if self.specification.shared:
            return whole
        if noised:
            merged = merge_noised([whole], self.rows.size, deviation(self.specification))
        else:
            merged = merge_statistics([whole], total)
        self._set_encoding(merged)
        return ready

    def _noised(self, parts: Sequence[ms.Statistics]) -> ms.Statistics:
        privacy = self.specification.privacy
        if privacy is None or self._noised_statistics:
            raise InternalError(f"slot {self.specification.slot} has measured its statistics")
        self._noised_statistics = privacy.statistics_noise
        return add_noise(sum_bounded(parts), self.specification, self.rows.size)

    def _set_encoding(self, request: ms.SetEncoding) -> ms.Message:
        ready = self._ask(request, ms.Ready)
        if len({reply.width for reply in ready}) > 1:
            raise InternalError(f"{[reply.width for reply in ready]} encoded columns of one slot")
        return ready[0]

    # -- replies about rows -----------------------------------------------------------------------

    def _gathered(self, request: ms.Message, kind: type[ValuesByRow]) -> ms.Message:
        """Return the values of all active rows, in the party's order."""
        parts = self._ask(request, kind)
        return replace(parts[0], values=self.rows.gather([part.values for part in parts]))

    def _split(self, request: ms.SendSplit) -> ms.Message:
        parts = self._ask(request, ms.Split)
        return replace(parts[0], validation=self.rows.gather([p.validation for p in parts]))

    def _labels(self, request: ms.SendLabels) -> ms.Message:
        parts = self._ask(request, ms.Labels)
        if not self.specification.classes:
            return replace(parts[0], values=self.rows.gather([part.values for part in parts]))
        combination = self.specification.combination
        assert combination is not None
        classes, codes = merge_classes(parts, combination.target_type)
        client_codes = np.split(codes, np.cumsum([len(part.codes) for part in parts])[:-1])
        return replace(
            parts[0], classes=classes, codes=self.rows.gather(client_codes).astype(np.uint32)
        )

    def _folds(self, request: ms.SendFolds) -> ms.Message:
        spec = self.specification
        combination = spec.combination
        assert combination is not None
        parts = self._ask(request, ms.Folds)
        folds = [part.folds for part in parts]
        codes = np.zeros(self.rows.size, np.uint32)
        if spec.target and spec.classes:
            labels = self._ask(ms.SendLabels(request.run, request.slot), ms.Labels)
            _, codes = merge_classes(labels, combination.target_type)
        classes = np.split(codes, np.cumsum([len(part) for part in folds])[:-1])
        selects = [len(fragments) for fragments in self._sizes.values()]
        # As in sqlfl.udfs.numbering.rows: a client with several SELECTs may read a row with two
        # labels.
        strata = [c if n == 1 else None for c, n in zip(classes, selects, strict=True)]
        onward = len(spec.fragments) > 1
        merged = merge_folds(folds, strata, spec.folds, spec.split, onward=onward)
        return replace(parts[0], folds=self.rows.gather(merged).astype(np.uint8))

    def _identifiers(self, request: ms.SendIdentifiers) -> ms.Message:
        parts = self._ask(request, ms.Identifiers)
        order = pa.array(np.argsort(np.concatenate(self.rows.places)))
        columns = []
        for number in range(len(self.specification.identifiers)):
            tables = [pa.table({"id": part.columns[number]}) for part in parts]
            whole = pa.concat_tables(tables, promote_options="permissive").column("id")
            columns.append(pa.concat_arrays(whole.chunks).take(order))
        return replace(parts[0], columns=tuple(columns))

    def _findings(self, request: ms.SendFindings) -> ms.Message:
        parts = self._ask(request, ms.Findings)

        def everywhere(flags: Callable[[ms.Findings], Array]) -> Array:
            merged: Array = np.all([flags(part) for part in parts], axis=0).astype(np.uint8)
            return merged

        return replace(
            parts[0],
            empty=everywhere(lambda part: part.empty),
            constant=everywhere(lambda part: part.constant),
            identifying=everywhere(lambda part: part.identifying),
            unseen=np.sum([part.unseen for part in parts], axis=0),
        )

    def _separated(self, request: ms.SendSeparated) -> ms.Message:
        self._check(request, len(request.classes))
        requests = [
            replace(request, classes=classes) for classes in self.rows.split(request.classes)
        ]
        return merge_separated(self._ask_each(requests, ms.Separated))

    def _profile(self, request: ms.SendProfile) -> ms.Message:
        if not isinstance(request, ms.SendExplained):
            return merge_profiles(self._ask(request, ms.Profile))
        self._check(request, len(request.targets))
        requests = [
            replace(request, targets=targets) for targets in self.rows.split(request.targets)
        ]
        return merge_profiles(self._ask_each(requests, ms.Profile))

    def _equal_rows(self, request: ms.SendEqualRows) -> ms.Message:
        if self._operator is not None:
            raise InternalError(f"slot {request.slot} has been started")
        parts = self._ask(request, ms.EqualRows)
        self._rows, classes = self.rows.by_class([part.classes for part in parts])
        return replace(parts[0], classes=classes)

    # -- training ---------------------------------------------------------------------------------

    def _start(self, request: ms.Start) -> ms.Message:
        part = client_of(request.method)
        configuration = part.configuration.from_json(request.configuration)
        self._check_noise(configuration)
        started = self._members.do(
            request, self._sizes, lambda _, client: client.start(request, configuration)
        )
        engines, numbers = [engine for engine, _ in started], list(self._sizes)

        def each(do: Callable[[int], T]) -> list[T]:
            asked = self._request or request
            return self._members.do(asked, numbers, lambda number, _: do(numbers.index(number)))

        engine = CombinedEngine(self.rows, engines, each)
        self._operator = part.operator(
            engine, configuration, request.run, request.slot, started[0][1]
        )
        return ms.Ready(request.run, request.slot, engine.width)

    def _check_noise(self, configuration: Configuration) -> None:
        privacy = self.specification.privacy
        if (privacy is not None and privacy.delta is not None) != (
            configuration.privacy is not None
        ):
            raise InternalError(f"slot {self.specification.slot} starts with other noise than said")
        if self._operator is not None and not self.specification.folds:
            raise InternalError(f"slot {self.specification.slot} has been started")

    def _save(self, request: ms.Save) -> ms.Message:
        operator = self._operator
        if operator is None:
            raise InternalError("save before start")
        parameters = operator.kept(request.back)
        return self._members.do(
            request,
            self._sizes,
            lambda _, client: client.hold(request, parameters, operator.shape),
        )[0]

    def _releases(self, request: ms.SendReleases) -> ms.Message:
        """Return the releases. The clients noise labels, a row at a time; the party noises sums."""
        labels = {reply.labels for reply in self._ask(request, ms.Releases)}
        if len(labels) > 1:
            raise InternalError(f"labels of slot {request.slot} are noised with ε = {labels}")
        released: ms.Message = releases_of(None, request.run, request.slot)
        if self._operator is not None:
            released = self._operator.handle(request)
        if not isinstance(released, ms.Releases):
            raise InternalError(f"the operator answered {request.kind} with {released.kind}")
        return replace(released, labels=labels.pop(), statistics=self._noised_statistics)

    # -- asking -----------------------------------------------------------------------------------

    def _ask(self, request: ms.Message, kind: type[Reply]) -> list[Reply]:
        return self._members.ask(dict.fromkeys(self._sizes, request), kind)

    def _ask_each(self, requests: Sequence[ms.Message], kind: type[Reply]) -> list[Reply]:
        return self._members.ask(dict(zip(self._sizes, requests, strict=True)), kind)


# Rows of a party's clients as those of one client, with each client's places among them.
#
# Their order discloses no more than that of one client's rows (`sqlfl.udfs.numbering.numbering`).
# So it does not disclose which client has a row.


@dataclass(frozen=True, eq=False)
class CombinedRows:
    """The party's rows of a slot, client by client."""

    places: tuple[Array, ...]
    """int (n_q,): the place of each row of a client among the party's."""

    @classmethod
    def ordered(cls, sizes: Sequence[int], order: Array) -> CombinedRows:
        """Return the rows in this order. `order` (n,) numbers the clients' rows, one client after
        the other.
        """
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return cls(tuple(np.split(places, np.cumsum(sizes)[:-1])))

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.places)

    def split(self, values: Array) -> list[Array]:
        """Return each client's part: (n, ...) -> (n_q, ...)."""
        return [values[part] for part in self.places]

    def gather(self, parts: Sequence[Array]) -> Array:
        """Return the clients' parts as one array: the reverse of `split`."""
        kind = np.result_type(*parts)
        whole = np.empty((self.size, *parts[0].shape[1:]), kind)
        for places, part in zip(self.places, parts, strict=True):
            whole[places] = part
        return whole

    def owned(self, rows: Array) -> tuple[Array, Array]:
        """Return the owner of each of `rows` (b,), and its number there. Raise InternalError for
        rows out of range.
        """
        if len(rows) and int(rows.max()) >= self.size:
            raise InternalError(f"row {rows.max()} of {self.size}")
        return self._owners[rows], self._own[rows]

    def chosen(self, rows: Array) -> tuple[CombinedRows, list[Array]]:
        """Return the clients' places among distinct `rows` (b,), and each client's own row numbers.
        Raise InternalError for rows out of range.
        """
        owners, numbers = self.owned(rows)
        places = tuple(np.flatnonzero(owners == number) for number in range(len(self.places)))
        return CombinedRows(places), [numbers[place] for place in places]

    def ascending(self, rows: Array) -> tuple[CombinedRows, list[Array]]:
        """Return the same, with each client's rows in its own order."""
        rows_of_clients, numbers = self.chosen(rows)
        orders = [np.argsort(part) for part in numbers]
        places = tuple(p[order] for p, order in zip(rows_of_clients.places, orders, strict=True))
        return CombinedRows(places), [
            part[order] for part, order in zip(numbers, orders, strict=True)
        ]

    def by_class(self, parts: Sequence[Array]) -> tuple[CombinedRows, Array]:
        """Return the rows that remain after clients have merged equal ones, and the class of each
        former row, numbered by first occurrence. The classes are empty if no client has merged any.

        parts: for each client its rows' classes (n_q,), or (0,) without merged rows.
        """
        if not any(part.size for part in parts):
            return self, np.zeros(0, np.uint32)
        known = [
            part.astype(np.int64) if part.size else np.arange(len(rows))
            for part, rows in zip(parts, self.places, strict=True)
        ]
        bounds = np.cumsum([0, *(int(part.max(initial=-1)) + 1 for part in known)])
        classes = self.gather(
            [part + start for part, start in zip(known, bounds[:-1], strict=True)]
        )
        first = np.unique(classes, return_index=True)[1]
        numbers = np.empty(len(first), np.int64)
        numbers[np.argsort(first)] = np.arange(len(first))
        return CombinedRows(tuple(np.split(numbers, bounds[1:-1]))), numbers[classes].astype(
            np.uint32
        )

    @cached_property
    def _owners(self) -> Array:
        return self.gather([
            np.full(len(rows), number, np.int32) for number, rows in enumerate(self.places)
        ])  # fmt: skip

    @cached_property
    def _own(self) -> npt.NDArray[np.int64]:
        return self.gather([np.arange(len(rows)) for rows in self.places])


def by_fragment(
    wanted: SlotSpecification, sizes: Sequence[dict[int, int]], chances: Sequence[bytes]
) -> CombinedRows:
    """Return the rows of a slot without keys. sizes: rows of each client's fragments."""
    numbers = [np.repeat(list(counts), list(counts.values())) for counts in sizes]
    return _shuffled(
        wanted,
        [len(fragments) for fragments in numbers],
        np.concatenate(numbers).astype(np.int64),
        max(wanted.fragments) + 1,
        chances,
    )


def merge_join_keys(
    wanted: SlotSpecification,
    parts: Sequence[JoinKeys],
    sizes: Sequence[dict[int, int]],
    chances: Sequence[bytes],
) -> tuple[CombinedRows, JoinKeys]:
    """Return the order of the party's rows, and its merged reply with their keys."""
    merged = [
        merge_keys([(part.tags[k], part.codes[k]) for part in parts])
        for k in range(len(wanted.keys))
    ]
    counts = [sum(counts_by_fragment.values()) for counts_by_fragment in sizes]
    leading, size = None, 1
    if wanted.seed is None:
        tags, codes = max(merged, key=lambda key: len(key[0]))
        leading, size = np.concatenate(codes), len(tags) + 1
    rows = _shuffled(wanted, counts, leading, size, chances)
    fragments = np.zeros(0, np.uint16)
    if len(wanted.fragments) > 1:
        parts_of_fragments = [
            part.fragment
            if len(counts_by_fragment) > 1
            else np.full(
                sum(counts_by_fragment.values()), next(iter(counts_by_fragment)), np.uint16
            )
            for part, counts_by_fragment in zip(parts, sizes, strict=True)
        ]
        fragments = rows.gather(parts_of_fragments)
    reply = JoinKeys(
        parts[0].run,
        wanted.slot,
        fragments,
        tuple(tags for tags, _ in merged),
        tuple(rows.gather(codes) for _, codes in merged),
    )
    return rows, reply


def _shuffled(
    wanted: SlotSpecification,
    sizes: Sequence[int],
    leading: Array | None,
    size: int,
    chances: Sequence[bytes],
) -> CombinedRows:
    """Return rows ordered by `leading`, numbers below `size`, and by the clients' random bytes
    together.
    """
    salt = hashlib.sha256(b"".join(chances) + wanted.slot.to_bytes(4, "little")).digest()
    return CombinedRows.ordered(sizes, shuffled(sum(sizes), leading, size, salt))
