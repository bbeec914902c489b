"""Work, answers and partitions as frames between the coordinator and its own workers.

A frame is the length of its header, the header in JSON, and the arrays as they lie in memory. The
coordinator starts the workers, and they run the same code. So they need neither the message forms
between parties nor their checks. Nothing is pickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import Error, InternalError
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.partition import (
    Node,
    Partition,
    PartitionSums,
    Reach,
    Segment,
    Work,
)
from sqlfl.coordinator.join.factorised import Branch, Factorised, Tree
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.key_join import KeyJoin
from sqlfl.coordinator.join.table_mapping import SlotMapping, TableMapping
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import Chunks, FoundChunks, ProductChunks, WrittenChunks
from sqlfl.coordinator.rounds.passes import MeasuredRows
from sqlfl.models.losses import LOSS_TYPES, Loss
from sqlfl.models.metrics import (
    ClassMeter,
    CountMeter,
    GammaMeter,
    Meter,
    NumberMeter,
    QuantileMeter,
)
from sqlfl.models.native import library

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class WorkerFrame:
    facts: Mapping[str, Any]
    """Contents of the JSON header."""
    arrays: Sequence[Array] = ()

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes, part after part."""
        forms = [[array.dtype.str, array.shape] for array in self.arrays]
        header = json.dumps({"facts": self.facts, "arrays": forms}).encode()
        yield LENGTH.pack(len(header)) + header
        for array in self.arrays:
            if array.size:
                yield _bytes(np.ascontiguousarray(array))

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    @classmethod
    def from_bytes(cls, data: bytes) -> WorkerFrame:
        """Return the frame. Its arrays are copies, which may be changed."""
        (length,) = LENGTH.unpack_from(data)
        at = LENGTH.size + length
        header = json.loads(data[LENGTH.size : at])
        arrays = []
        for kind, shape in header["arrays"]:
            array = np.empty(shape, np.dtype(kind))
            if array.size:
                _bytes(array)[:] = data[at : at + array.nbytes]
                at += array.nbytes
            arrays.append(array)
        return cls(header["facts"], arrays)


def _bytes(values: Array) -> memoryview:
    """Return a view of the array's bytes."""
    return values.reshape(-1).view(np.uint8).data


@dataclass(eq=False)
class Writing:
    """Frame under construction. Its header refers to arrays by their places."""

    arrays: list[Array] = field(default_factory=list)

    def one(self, values: Array | None) -> int | None:
        """Add an array and return its place; None for None."""
        if values is None:
            return None
        self.arrays.append(values)
        return len(self.arrays) - 1

    def several(self, values: Sequence[Array]) -> list[int | None]:
        return [self.one(array) for array in values]


@dataclass(frozen=True, eq=False)
class FrameReading:
    """Reader of a received frame."""

    arrays: Sequence[Array]

    def one(self, place: int | None) -> Array | None:
        return None if place is None else self.arrays[place]

    def several(self, places: Sequence[int]) -> tuple[Array, ...]:
        return tuple(self.arrays[place] for place in places)


KINDS: Mapping[str, Callable[[], Meter]] = {
    "number": NumberMeter,
    "count": CountMeter,
    "gamma": GammaMeter,
    "quantile": QuantileMeter,
    "class": ClassMeter,
}
METERS = {kind: name for name, kind in KINDS.items()}


# -- work and answers ------------------------------------------------------------------------------


def frame_of_work(work: Work) -> WorkerFrame:
    writing = Writing()
    facts = {
        "name": work.name,
        "constant": writing.one(work.scores.constant),
        "slots": writing.several(work.scores.slots),
        "along": writing.several(work.along),
        "number": work.number,
        "flag": work.flag,
        "rows": work.rows,
    }
    return WorkerFrame(facts, writing.arrays)


def work_of(frame: WorkerFrame) -> Work:
    facts, reading = frame.facts, FrameReading(frame.arrays)
    scores = Scores(reading.several(facts["slots"]), reading.arrays[facts["constant"]])
    along, rows = reading.several(facts["along"]), tuple(facts["rows"])
    return Work(facts["name"], scores, along, facts["number"], facts["flag"], rows)


def frame_of_answers(nodes: Sequence[Node]) -> WorkerFrame:
    writing = Writing()
    entries = [
        {
            "first": node.first,
            "count": node.count,
            "numbers": writing.one(node.sums.numbers),
            "tops": writing.one(node.sums.tops),
            "slots": [[[segment.first, writing.one(segment.values)] for segment in segments]
                      for segments in node.sums.slots],
            "rows": writing.several(node.sums.rows),
            "meters": [[METERS[type(meter)], writing.several(meter.arrays())]
                       for meter in node.sums.meters],
        }
        for node in nodes
    ]  # fmt: skip
    return WorkerFrame({"nodes": entries}, writing.arrays)


def answers_of(frame: WorkerFrame) -> list[Node]:
    reading = FrameReading(frame.arrays)

    def sums(facts: Mapping[str, Any]) -> PartitionSums:
        slots = tuple(
            tuple(Segment(first, reading.arrays[place]) for first, place in segments)
            for segments in facts["slots"]
        )
        numbers, tops = reading.several([facts["numbers"], facts["tops"]])
        rows = reading.several(facts["rows"])
        return PartitionSums(numbers, tops, slots, rows, tuple(map(meter, facts["meters"])))

    def meter(told: tuple[str, Sequence[int]]) -> Meter:
        restored = KINDS[told[0]]()
        restored.restore(reading.several(told[1]))
        return restored

    return [Node(node["first"], node["count"], sums(node)) for node in frame.facts["nodes"]]


# -- the join of keys ------------------------------------------------------------------------------


def frame_of_join(join: KeyJoin) -> WorkerFrame:
    writing = Writing()
    facts = {
        "sql": join.sql,
        "order": join.order,
        "memory": join.memory,
        "slots": [
            {"slot": slot, "first": join.first.get(slot, 0),
             "fragment": writing.one(slot_codes.fragment), "keys": list(slot_codes.keys),
             "codes": writing.several(list(slot_codes.keys.values()))}
            for slot, slot_codes in join.codes.items()
        ],
    }  # fmt: skip
    return WorkerFrame(facts, writing.arrays)


def join_of(frame: WorkerFrame) -> KeyJoin:
    facts, reading = frame.facts, FrameReading(frame.arrays)
    codes = {
        slot["slot"]: SlotCodes(
            reading.arrays[slot["fragment"]],
            dict(zip(slot["keys"], reading.several(slot["codes"]), strict=True)),
        )
        for slot in facts["slots"]
    }
    first = {slot["slot"]: slot["first"] for slot in facts["slots"]}
    return KeyJoin(facts["sql"], tuple(facts["order"]), codes, facts["memory"], first)


# -- partitions ------------------------------------------------------------------------------------


def frame_of_partitions(division: Division, first: int, end: int) -> WorkerFrame:
    """Return a frame of the partitions from `first` to `end`."""
    writing = Writing()
    facts: dict[str, Any] = {
        "first": first,
        "loss": {"name": division.loss.name, "fields": _fields(division.loss)},
        "reaches": division.reaches[first:end],
        "base": division.reach(first, end),
        "drawn": [writing.one(drawn) for drawn in division.drawn[first:end]],
        "measured": [
            {"validation": writing.one(part.validation), "samples": writing.one(part.samples),
             "held": writing.one(part.held)}
            for part in division.measured[first:end]
        ],
    }  # fmt: skip
    if isinstance(division.whole, FoundChunks | ProductChunks):
        whole = _found(division.whole, writing)
        facts["found"] = whole | {"parts": division.parts, "end": end}
    else:
        facts["written"] = [_written(chunks, writing) for chunks in division.pieces[first:end]]
    return WorkerFrame(facts, writing.arrays)


def partitions_of(frame: WorkerFrame) -> tuple[int, list[Partition], tuple[Reach, ...]]:
    """Return the number of the first partition, all partitions, and the slot rows whose values they
    use.
    """
    facts, reading = frame.facts, FrameReading(frame.arrays)
    loss = _loss(facts["loss"])
    pieces = _pieces_of(facts, reading)
    partitions = [
        Partition(chunks, loss, _reaches(reaches), reading.one(drawn), _measured(measured, reading))
        for chunks, reaches, drawn, measured in zip(
            pieces, facts["reaches"], facts["drawn"], facts["measured"], strict=True
        )
    ]
    return facts["first"], partitions, _reaches(facts["base"])


def _pieces_of(facts: Mapping[str, Any], reading: FrameReading) -> Sequence[Chunks]:
    if "found" not in facts:
        return [_written_pieces(written, reading) for written in facts["written"]]
    description = facts["found"]
    return _pieces(description, reading).cut(description["parts"])[
        facts["first"] : description["end"]
    ]


def _fields(loss: Loss) -> dict[str, Any]:
    if loss.name not in LOSS_TYPES:
        raise InternalError(f"a loss that no worker knows: {loss.name}")
    return asdict(loss)  # type: ignore[call-overload,no-any-return]


def _loss(facts: Mapping[str, Any]) -> Loss:
    made: Loss = LOSS_TYPES[facts["name"]](**facts["fields"])
    return made


def _reaches(told: Sequence[Sequence[int]]) -> tuple[Reach, ...]:
    return tuple((first, end) for first, end in told)


def _measured(facts: Mapping[str, Any], reading: FrameReading) -> MeasuredRows:
    return MeasuredRows(**{name: reading.one(place) for name, place in facts.items()})


def _written(pieces: Chunks, writing: Writing) -> dict[str, Any]:
    if not isinstance(pieces, WrittenChunks):
        raise InternalError("joined rows that no worker takes")
    return {
        "sizes": pieces.mapping.sizes,
        "rows": [writing.one(_told(slot)) for slot in pieces.mapping.slots],
        "targets": writing.one(pieces.targets),
        "shares": writing.one(pieces.shares),
    }


def _told(slot: SlotMapping) -> Array | None:
    """Return the slot's rows; None if joined row j comes from row j."""
    return None if slot.identity else slot.rows


def _written_pieces(facts: Mapping[str, Any], reading: FrameReading) -> WrittenChunks:
    sizes, places = facts["sizes"], facts["rows"]
    rows = [
        np.arange(size, dtype=np.int32) if place is None else reading.arrays[place]
        for size, place in zip(sizes, places, strict=True)
    ]
    targets = reading.arrays[facts["targets"]]
    return WrittenChunks(TableMapping(rows, sizes), targets, reading.one(facts["shares"]))


def _found(pieces: FoundChunks | ProductChunks, writing: Writing) -> dict[str, Any]:
    mapping = pieces.mapping
    return {
        "products": isinstance(pieces, ProductChunks),
        "slots": mapping.slots,
        "sizes": mapping.sizes,
        "trees": [_tree(tree, writing) for tree in mapping.trees],
        "featured": pieces.slots,
        "target": pieces.target,
        "targets": writing.one(pieces.targets),
    }


def _pieces(facts: Mapping[str, Any], reading: FrameReading) -> FoundChunks | ProductChunks:
    if facts["products"] and library() is None:
        raise Error("it has no compiled library, as the coordinator has; install sqlfl alike")
    sizes = dict(zip(facts["slots"], facts["sizes"], strict=True))
    trees = [_tree_of(tree, reading) for tree in facts["trees"]]
    mapping = Factorised(trees, facts["slots"], sizes)
    targets = reading.arrays[facts["targets"]]
    kind = ProductChunks if facts["products"] else FoundChunks
    return kind(mapping, facts["featured"], facts["target"], targets)


def _tree(tree: Tree, writing: Writing) -> dict[str, Any]:
    return {
        "root": tree.root,
        "bounds": writing.one(tree.bounds),
        "size": tree.size,
        "branches": [_branch(branch, writing) for branch in tree.branches],
    }


def _tree_of(facts: Mapping[str, Any], reading: FrameReading) -> Tree:
    branches = tuple(_branch_of(branch, reading) for branch in facts["branches"])
    return Tree(facts["root"], reading.one(facts["bounds"]), facts["size"], branches)


def _branch(branch: Branch, writing: Writing) -> dict[str, Any]:
    return {
        "slot": branch.slot,
        "parent": branch.parent,
        "last": branch.last,
        "group": writing.one(branch.group),
        "rows": writing.one(branch.rows),
        "start": writing.one(branch.start),
        "size": writing.one(branch.size),
        "before": writing.one(branch.before),
    }


def _branch_of(facts: Mapping[str, Any], reading: FrameReading) -> Branch:
    return Branch(
        facts["slot"],
        facts["parent"],
        reading.arrays[facts["group"]],
        reading.one(facts["rows"]),
        reading.one(facts["start"]),
        reading.one(facts["size"]),
        reading.one(facts["before"]),
        facts["last"],
    )
