"""Mutates messages and hands them to those who receive.

python -m tests.fuzzing END KIND COUNT SEED

A program of its own, so that a death is seen: each piece of work is done in a child with a limit of
its address space and of its time, which notes what it is about to try. It prints a line of JSON:
what became of the messages, and how those that ended a child can be made again.

END is 'wire', which decodes and then goes over all that it was given, or 'party', where a client
with a database answers, and its answer is looked at. KIND is one kind of message, several with
commas between them, or 'all'.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import WireError
from sqlfl.contract.schema import (
    Client,
    FeatureSpecification,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.messages import KINDS
from sqlfl.messages.wire import encode, received
from sqlfl.methods.admm import messages as _admm  # noqa: F401  # kinds are there once they are loaded
from sqlfl.methods.lbfgs import messages as _lbfgs  # noqa: F401
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.udfs.blocks.blocks import SavedBlock
from tests.samples import Draw

ROOM = 512 << 20
"""Bytes that a child may take beside what it has."""
SECONDS = 10
"""That one message may take."""
TIMES = (0, 1, 1, 1, 2, 3, 8)
"""How often a message is changed, in turn."""
EXTREMES = (
    0, 1, 2, 7, 8, 63, 64, 127, 255, 256, 38410, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
    2**62, 2**63 - 1, -1, -8, -(2**31), -(2**63),
)  # fmt: skip
TOKENS = (
    b"[", b"]", b"{", b"}", b'"', b",", b":", b"-", b"1e999", b"NaN", b"null", b"true", b"[" * 999,
    b'"float64"', b'"uint8"', b'"int64"', b'"struct"', b'"list"', b'"string"', b"\\ud800", b"\xff",
    b"99999999999999999999", b'"nulls":true', b'"children":[]', b"\0",
)  # fmt: skip


class Mutations:
    """Endless changed messages of one kind, each from a seed of its own; some are as they were.

    `run`: they belong to it, and to its first slot or to none.
    """

    def __init__(self, kind: str, seed: int, run: str | None = None) -> None:
        draw = Draw(seed)
        own = [draw.message(KINDS[kind]) for _ in range(16)]
        if run is not None:
            own = [replace(message, run=run, slot=-(k % 2)) for k, message in enumerate(own)]
            fitting = [message for message in FITTING if message.name_of() == kind]
            own += fitting * 16
        self._own = [encode(message).to_pybytes() for message in own]
        self._others = [encode(draw.message(cls)).to_pybytes() for cls in KINDS.values()]
        self._others.append(pa.schema([("a", pa.int8())]).serialize().to_pybytes())
        self._seed = seed

    def __call__(self, number: int) -> bytes:
        chance = random.Random(f"{self._seed} {number}")
        changes = TIMES[number % len(TIMES)]
        if changes == 0:  # those that fit come first
            return self._own[-1 - number // len(TIMES) % len(self._own)]
        data = bytearray(chance.choice(self._own))
        for _ in range(changes):
            if data:
                chance.choice(_CHANGES)(data, chance, self._others)
        return bytes(data)


def _flip(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _byte(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    data[chance.randrange(len(data))] = chance.randrange(256)


def _cut(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    del data[chance.randrange(len(data)) :]


def _word(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    size = chance.choice((4, 8))
    place = chance.randrange(len(data)) // 4 * 4
    value = chance.choice(EXTREMES) % 2 ** (8 * size)
    data[place : place + size] = value.to_bytes(size, "little")


def _splice(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    other = chance.choice(others)
    start, place = chance.randrange(len(other)), chance.randrange(len(data))
    data[place : place + chance.choice((0, 8, 64))] = other[start : start + chance.randrange(99)]


def _swap(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    """The header of another message."""
    other = chance.choice(others)
    data[: _end(bytes(data))] = other[: _end(other)]


def _swap_values(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    other = chance.choice(others)
    data[_end(bytes(data)) :] = other[_end(other) :]


def _token(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    """Something else somewhere in the header, whose length is made to fit."""
    end = _end(bytes(data))
    if 12 < end <= len(data):
        place = chance.randrange(12, end)
        own = bytes(data[12:end])
        text = own[: place - 12] + chance.choice(TOKENS) + own[place - 12 + chance.randrange(4) :]
        _put_header(data, text)


def _number(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    """Another number in the header."""
    end = min(_end(bytes(data)), len(data))
    digits = [place for place in range(12, end) if chr(data[place]).isdigit()]
    if digits:
        place = chance.choice(digits) - 12
        own = bytes(data[12:end])
        _put_header(data, own[:place] + str(chance.choice(EXTREMES)).encode() + own[place + 1 :])


def _put_header(data: bytearray, text: bytes) -> None:
    """Values stay where they are to be, from a multiple of 64 on."""
    rest = bytes(data[-(-_end(bytes(data)) // 64) * 64 :])
    padding = b"\0" * (-(12 + len(text)) % 64) if rest else b""
    data[8:] = len(text).to_bytes(4, "little") + text + padding + rest


def _compress(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    end = _end(bytes(data))
    data[end:] = pa.compress(bytes(data[end:]), "zstd", asbytes=True)


def _end(data: bytes) -> int:
    """Of the header."""
    return min(len(data), 12 + int.from_bytes(data[8:12], "little"))


_CHANGES = (
    _flip, _byte, _cut, _word, _splice, _swap, _swap_values, _token, _number, _number, _compress
)  # fmt: skip
Work = Callable[[bytes], str]


def used(data: bytes) -> str:
    """Receive it and go over all that it holds."""
    try:
        message = received(data)
    except WireError as error:
        str(error)
        return "WireError"
    total = 0
    for name in message.forms():
        value = getattr(message, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, np.ndarray):
                total += int(np.ascontiguousarray(item).view(np.uint8).sum())
            elif isinstance(item, pa.Array):
                total += len(str(item)) + item.null_count
                encode(ms.Identifiers("", 0, (item,)))
            else:
                total += len(str(item))
    assert message.nbytes <= 8 * len(data)
    assert total >= 0
    return "received"


class Answering:
    """A client that is asked the mutated in the midst of a run, or of what begins one, where
    messages of this kind belong; its answers are looked at."""

    def __init__(self, kind: str) -> None:
        self._con = duckdb.connect()
        self._con.execute("SET threads = 1")
        self._con.execute(
            "CREATE TABLE t AS SELECT i * 1.5 AS x, 'c' || (i % 3) AS c, i % 2 AS y "
            "FROM range(9) r(i)"
        )
        secret = b"\x07" * 32
        self._client = PartyClient(Client("a"), self._con, Secrets(secret, secret))
        self._kind = kind
        self._prepare()

    def _prepare(self) -> None:
        looks = self._kind in LOOKS
        for message in PREPARATION[: -1 if looks else None]:
            if message.kind == self._kind:
                break
            prepared = received(self._client.handle(encode(message)))
            assert not isinstance(prepared, ms.Failure), prepared.text
            if isinstance(prepared, ms.Prepared):
                self._client.draw("run", bytes(TAGS[0]))
        if looks:
            encoding = self._client._runs["run"].slots[0].encoding
            assert encoding is not None
            block = SavedBlock(encoding, np.ones((encoding.width, 1)), "t")
            self._client._blocks.save("m", 0, "m", block)

    def __call__(self, data: bytes) -> str:
        if "run" not in self._client._runs:
            self._prepare()
        reply = received(self._client.handle(pa.py_buffer(data)))
        if not isinstance(reply, ms.Failure):
            if self._kind in BEGINNING:
                self._client.handle(encode(ms.Finish("run", -1)))
            return "answered"
        assert reply.error in FAILURES, (reply.error, reply.text)
        assert len(reply.text) <= ms.MAX_FAILURE_CHARACTERS
        assert " while serving " not in reply.text, reply.text  # an exception that nobody meant
        return "Failure"


FAILURES = (
    "BinderException", "CatalogException", "ConversionException", "Error", "ForgottenError",
    "InternalError", "InvalidInputException", "ModelError", "ParserException",
    "TransactionException", "WireError",
)  # fmt: skip
SLOT = SlotSpecification(
    slot=0,
    features=(FeatureSpecification("x", "numeric"), FeatureSpecification("c", "category")),
    target=True, classes=False, identifiers=(), keys=(), fragments=(0,), shared=True,
    secret="organisation", engine="arrays",
)  # fmt: skip
NINE = np.arange(9, dtype=np.uint32)
TAGS = np.arange(48, dtype=np.uint8).reshape(3, 16)
PREPARATION = (
    ms.Prepare(
        "run", -1, specifications_to_json((SLOT,)),
        ("SELECT x, c, y AS sqlfl_target FROM t",),
    ),
    ms.Activate("run", 0, NINE, NINE + 1, 45, TAGS),
    ms.SetEncoding(
        "run", 0, np.zeros(1), np.ones(1), np.zeros(1), (TAGS,), (np.full(3, 15.0),), 45.0
    ),
    ms.Start(
        "run", 0, "sgd",
        SgdConfiguration(
            outputs=1, rows=45, total=45.0, clients=2, leader=True, l2=0.1, curvature=1.0
        ).to_json(),
    ),
)  # fmt: skip
"""The run in which a client is asked."""
LOOKS = ("send_block", "send_curves", "send_rotated", "send_errors", "score_permuted",
         "send_contributions", "send_skew")  # fmt: skip
"""Asked of a saved block, before training."""
BEGINNING = tuple(message.kind for message in PREPARATION)
ONES = np.ones((9, 1), np.float32)
WIDE = np.ones((4, 1))
FITTING = (
    *PREPARATION,
    SgdResiduals("run", 0, ONES, 0.1, 45, 1),
    SgdResiduals("run", 0, ONES, 0.1, 45, 0, NINE[::2]),
    ms.SumGradient("run", 0, WIDE),
    ms.SendPredictions("run", 0, 0, NINE[:3], 0),
    ms.Probe("run", 0, ONES),
    ms.Weigh("run", 0, np.ones(9), 9.0),
    ms.Describe("", -1, ("SELECT x, c FROM t",)),
    ms.Propose("run", -1, "{}", "[]", ("SELECT x, c FROM t",)),
    ms.Save("run", 0, "run", "m", 0),
    ms.Score("run", 0, "run", 0),
    ms.Write(
        "run", -1, ("memory", "main", "written"), (), np.zeros(0, np.int32), (), np.ones(2), (), "",
        np.ones((2, 0)), 0,
    ),
    ms.SendFindings("run", 0),
    ms.SendSeparated("run", 0, np.ones((9, 1), np.uint8), 0),
    ms.SendEqualRows("run", 0),
    ms.SendExactPredictions("run", 0),
    ms.SendSlope("run", 0, ONES),
    ms.SetStrengths("run", 0, 0.1, 1.0),
    ms.SetStrengths("run", 0, 0.1, 1.0, 20),
    ms.SendBlock("", -1, "m", 0),
    ms.SendCurves("", -1, "m", 0, ""),
    ms.SendRotated("run", 0, "m", 0, (), ()),
    ms.SendErrors("run", 0, "m", 0, 0, -1, (), (), 0, np.eye(4), *4 * (np.zeros((4, 4)),),
                  *4 * (np.zeros(4),), np.zeros((2, 4, 5)), np.zeros((2, 5))),
    ms.ScorePermuted("run", 0, "m", 0, 1, 0, 3),
    ms.ScorePermuted("run", 0, "m", 0, 0, 0, -1),
    ms.SendContributions("run", 0, "m", 0),
    ms.SendExactContributions("run", 0, "m", 0),
    ms.ScoreExactly("run", 0, "run", 0),
    ms.PermuteExactly("run", 0, "m", 0, 1, 0, 3),
    ms.SendSkew("run", 0, "m", 0, 1),
)  # fmt: skip
"""What it would answer, but for what comes in between."""
OUTCOMES = ("received", "WireError", "answered", "Failure")


def attempt(work: Callable[[], Work], make: Callable[[int], bytes], count: int) -> dict[str, Any]:
    """How many messages had which outcome, and those that ended a child: number and how."""
    shared = np.frombuffer(mmap.mmap(-1, 8 * (1 + len(OUTCOMES))), np.int64)
    deaths: list[tuple[int, str]] = []
    while shared[0] < count:
        ending = _forked(work, make, shared, count)
        if ending:
            deaths.append((int(shared[0]), ending))
            shared[0] += 1
    outcomes = dict(zip(OUTCOMES, shared[1:].tolist(), strict=True))
    return {"outcomes": {name: n for name, n in outcomes.items() if n}, "deaths": deaths}


def _forked(
    work: Callable[[], Work], make: Callable[[int], bytes], shared: np.ndarray, count: int
) -> str:
    """From number shared[0] on, in a child; how it ended, where it did not come to the end."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            handle = work()
            _limit()
            while shared[0] < count:
                data = make(int(shared[0]))
                signal.alarm(SECONDS)
                outcome = handle(data)
                signal.alarm(0)
                shared[1 + OUTCOMES.index(outcome)] += 1
                shared[0] += 1
            os._exit(0)
        except BaseException:
            os.write(writable, traceback.format_exc()[-2000:].encode())
        finally:
            os._exit(1)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else text


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def main(end: str, kinds: list[str], count: int, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    for kind in kinds:
        work = partial(Answering, kind) if end == "party" else lambda: used
        found = attempt(work, Mutations(kind, seed, "run" if end == "party" else None), count)
        print(json.dumps({"kind": kind, **found}), flush=True)


if __name__ == "__main__":
    main(
        sys.argv[1],
        list(KINDS) if sys.argv[2] == "all" else sys.argv[2].split(","),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
