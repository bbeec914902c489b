"""What it costs that parties are in processes of their own, over Flight with TLS: the demo's
training beside the same in one process, and a round of large messages beside a bare exchange.

python benchmarks/remote.py [--turns 5]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from demo import TABLES, TRAIN

import sqlfl
from sqlfl.service import certificates as ct
from sqlfl.service.agent import Agent
from sqlfl.service.frames import PIECE
from sqlfl.service.hosting import Host
from sqlfl.service.passes import Passes
from sqlfl.service.service import Service
from sqlfl.service.settings import CoordinatorSettings, Member, StudySettings
from sqlfl.service.stream import Credentials
from sqlfl.service.wrapping import make_secret

NAME = "coordinator.example"
VALUES = 1_000_000
ORIGINS = ("EWR", "JFK", "LGA")


def databases(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for name, rows in TABLES.items():
        party, table = name.split(".")
        parts = [f"FROM ({rows}) WHERE origin = '{o}'" for o in ORIGINS]
        for number, part in enumerate(parts if party == "airline" else [rows]):
            path = folder / f"{party}{number}.duckdb"
            with duckdb.connect(path) as con:
                con.execute(f"CREATE TABLE {table} AS {part}")
            shutil.copy(path, path.with_suffix(".copy"))
            found.setdefault(party, []).append(path)
    return found


def make_keys(folder: Path, names: list[str]) -> None:
    authority_key, authority = ct.make_authority("authority")
    ct.write_public(folder / "authority.crt", authority)
    for name in names:
        key = ct.make_key()
        ct.write_private(folder / f"{name}.key", key)
        hosts = ("localhost", "127.0.0.1") if name == NAME else ()
        signed = ct.sign(ct.signing_request(key, name, hosts), authority_key, authority)
        ct.write_public(folder / f"{name}.crt", signed)
    ct.write_private(folder / "secret", make_secret())


def paths(folder: Path, name: str) -> dict[str, str]:
    own = {"key": folder / f"{name}.key", "certificate": folder / f"{name}.crt"}
    return {k: str(p) for k, p in (own | {"authority": folder / "authority.crt"}).items()}


def serve(folder: Path, location: str, party: str, number: int) -> None:
    """An agent's process."""
    own = Credentials(
        **{k: Path(p).read_bytes() for k, p in paths(folder, f"{party}{number}").items()}
    )
    known = Passes(own.authority or b"", NAME)
    secret = (folder / "secret").read_bytes()
    source = folder / f"{party}{number}.duckdb"
    host = Host(party, source, secret=secret, known=known, index=number, open=True)
    with host:
        Agent(location, party, 1, host, own, server=NAME, first=number).run()


@contextmanager
def elsewhere(
    folder: Path,
    parties: dict[str, list[Path]],
    dialled: Callable[[str], str] = lambda place: place,
) -> Iterator[sqlfl.Federation]:
    """A study of these parties, whose agents dial `dialled` of the coordinator's place."""
    names = [f"{party}{n}" for party, own in parties.items() for n in range(len(own))]
    make_keys(folder, [NAME, "alice", *names])
    settings = CoordinatorSettings(
        name=NAME,
        parties={
            p: Member(agents=tuple(f"{p}{n}" for n in range(len(own))))
            for p, own in parties.items()
        },
        studies={"delays": StudySettings(parties=tuple(parties), analysts=("alice",))},
        **paths(folder, NAME),
    )
    service = Service(settings, "grpc+tls://127.0.0.1:0", None, insecure=False)
    location = f"grpc+tls://127.0.0.1:{service.port}"
    (folder / "alice.toml").write_text(
        f'coordinator_name = "{NAME}"\nstudy = "delays"\n'
        + "\n".join(f'{k} = "{p}"' for k, p in paths(folder, "alice").items())
    )
    with ExitStack() as stack:
        stack.callback(service.close)
        for party, own in parties.items():
            for number in range(len(own)):
                command = [
                    sys.executable,
                    __file__,
                    "--serve",
                    str(folder),
                    dialled(location),
                    party,
                    str(number),
                ]
                process = subprocess.Popen(command)
                stack.callback(process.wait)
                stack.callback(process.terminate)
        while any(line.away for line in service.board.lines):
            time.sleep(0.05)
        fed = sqlfl.connect(location, config=folder / "alice.toml", progress=False)
        stack.callback(fed.close)
        yield fed


@contextmanager
def copied(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A copy of the database, whose file is open in the agent's process."""
    copy = path.with_suffix(".copy")
    with duckdb.connect(copy) as con:
        yield con


def seconds(fed: sqlfl.Federation) -> float:
    began = time.perf_counter()
    fed.sql(TRAIN.replace("TRAIN", "TRAIN OR REPLACE"))
    return time.perf_counter() - began


SCHEMA = pa.schema([("bytes", pa.uint8())])


class Echo(flight.FlightServerBase):  # type: ignore[misc]
    def do_exchange(
        self, context: object, descriptor: object, reader: object, writer: object
    ) -> None:
        writer.begin(SCHEMA)  # type: ignore[attr-defined]
        while True:
            try:
                chunk = reader.read_chunk()  # type: ignore[attr-defined]
            except StopIteration:
                return
            writer.write_batch(chunk.data)  # type: ignore[attr-defined]


@contextmanager
def bare(folder: Path) -> Iterator[object]:
    """An exchange of record batches with TLS, both ends in this process."""
    own = {k: Path(p).read_bytes() for k, p in paths(folder, NAME).items()}
    tls = [(own["certificate"], own["key"])]
    server = Echo("grpc+tls://127.0.0.1:0", tls_certificates=tls)
    client = flight.FlightClient(
        f"grpc+tls://localhost:{server.port}", tls_root_certs=own["authority"]
    )
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("echo"))
    writer.begin(SCHEMA)

    def echo(data: pa.Buffer) -> float:
        began = time.perf_counter()
        got = threading.Event()

        def read() -> None:
            left = len(data)
            while left:
                left -= len(reader.read_chunk().data)
            got.set()

        thread = threading.Thread(target=read)
        thread.start()
        for start in range(0, len(data), PIECE):
            piece = data.slice(start, min(PIECE, len(data) - start))
            column = pa.Array.from_buffers(pa.uint8(), len(piece), [None, piece])
            writer.write_batch(pa.record_batch([column], schema=SCHEMA))
        thread.join()
        return time.perf_counter() - began

    yield echo
    writer.done_writing()
    client.close()
    server.shutdown()


class Echoing:
    """Serves an agent's requests by themselves."""

    def welcome(self, coordinator: str, session: str) -> None: ...

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        return data

    def interrupt(self, client: int, study: str, speaker: str) -> None: ...

    def stop(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--serve", nargs=4)
    given = parser.parse_args()
    if given.serve is not None:
        folder, location, party, number = given.serve
        serve(Path(folder), location, party, int(number))
        return
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        parties = databases(folder)
        there = stack.enter_context(elsewhere(folder, parties))
        here = stack.enter_context(sqlfl.connect(progress=False))
        for party, own in parties.items():
            here.attach(party, [stack.enter_context(copied(path)) for path in own])
        times = [(seconds(here), seconds(there)) for _ in range(given.turns + 1)][1:]
        one, other = (median(column) for column in zip(*times, strict=True))
        ratio = f"×{other / one:.2f}"
        print(f"demo's TRAIN: {one:.2f} s in one process, {other:.2f} s over Flight: {ratio}")
        rounds(folder, given.turns)


def rounds(folder: Path, turns: int) -> None:
    data = pa.py_buffer(np.arange(VALUES, dtype=np.float32))
    settings = CoordinatorSettings(
        name=NAME,
        parties={"airline": Member(agents=("airline0",))},
        studies={},
        **paths(folder, NAME),
    )
    service = Service(settings, "grpc+tls://127.0.0.1:0", None, insecure=False)
    there = Credentials(**{k: Path(p).read_bytes() for k, p in paths(folder, "airline0").items()})
    agent = Agent(
        f"grpc+tls://127.0.0.1:{service.port}", "airline", 1, Echoing(), there, server=NAME
    )
    thread = threading.Thread(target=agent.run)
    thread.start()
    line = service.board.lines[0]
    while line.away:
        time.sleep(0.02)
    with bare(folder) as echo:
        times = []
        for _ in range(3 * turns):
            began = time.perf_counter()
            line.ask(0, data, "", "")
            times.append((time.perf_counter() - began, echo(data)))
    agent.stop()
    thread.join()
    service.close()
    ours, theirs = (median(column) for column in zip(*times, strict=True))
    size = f"{len(data) / 1e6:.0f} MB each way"
    both = f"{1e3 * ours:.1f} ms by a line, {1e3 * theirs:.1f} ms by a bare exchange"
    print(f"{size}: {both}: ×{ours / theirs:.2f}")


if __name__ == "__main__":
    main()
