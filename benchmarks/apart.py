"""Parties in a process of their own, so that what this one takes is the coordinator's."""

from __future__ import annotations

import json
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from struct import Struct

import duckdb
import numpy as np
import pyarrow as pa
from workloads import Stored

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Transport

_LENGTH = Struct("<Q")


@dataclass(frozen=True)
class Apart(Stored):
    """As `Stored`, with the databases open in another process."""

    @contextmanager
    def federation(self) -> Iterator[sqlfl.Federation]:
        here, there = socket.socketpair()
        whole = Stored(self.task, self.databases, self.memory_limit)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(there, whole), daemon=True)
        process.start()
        there.close()
        try:
            with closing(here), sqlfl.Federation(progress=False, wrap=lambda _: _Line(here)) as fed:
                for party, paths in self.databases.items():
                    fed.attach(party, [duckdb.connect() for _ in paths])
                yield fed
        finally:
            process.join()


class _Line:
    """A transport to the other process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        _send(self._line, [(str(client), data) for client, data in requests])
        return [data for _, data in _received(self._line)]


def _serve(line: socket.socket, stored: Stored) -> None:
    """Answers until the line is closed."""
    found: list[Transport] = []

    def seen(transport: Transport) -> Transport:
        found.append(transport)
        return transport

    with stored.federation(wrap=seen), suppress(EOFError):
        clients = {
            str(client): client
            for party, paths in stored.databases.items()
            for client in (Client(party, q) for q in range(len(paths)))
        }
        while True:
            requests = _received(line)
            answers = found[0].exchange([(clients[name], data) for name, data in requests])
            _send(line, [("", data) for data in answers])


def _send(line: socket.socket, parts: Sequence[tuple[str, pa.Buffer]]) -> None:
    described = json.dumps([(name, data.size) for name, data in parts]).encode()
    line.sendall(_LENGTH.pack(len(described)) + described)
    for _, data in parts:
        line.sendall(data)


def _received(line: socket.socket) -> list[tuple[str, pa.Buffer]]:
    """Raises EOFError where the line is closed."""
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size))
    described = json.loads(_read(line, length).to_pybytes())
    return [(name, _read(line, size)) for name, size in described]


def _read(line: socket.socket, size: int) -> pa.Buffer:
    found = pa.allocate_buffer(size)
    left = memoryview(np.frombuffer(found, np.uint8))
    while left:
        read = line.recv_into(left)
        if not read:
            raise EOFError
        left = left[read:]
    return found
