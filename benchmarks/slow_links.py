"""What the network model says of a training, beside what it takes over links that are that slow.

python benchmarks/slow_links.py [--network us-uk] [--rows 200000]

Each party's agent dials out by a relay, a process of its own, which holds every byte back as a line
of that latency and bandwidth would. Told are seconds of TRAIN over these, and without relays plus
what the option `network` reckons.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from remote import elsewhere

import sqlfl
from sqlfl.transport.network import BITS, NETWORKS, Network

PIECE = 1 << 16
TABLES = {
    "a": "SELECT i AS k, sin(i) AS x, cos(i) AS z, sin(i) + i % 7 AS y FROM range({rows}) r(i)",
    "b": "SELECT i AS k, cos(3 * i) AS u, sin(5 * i) AS v FROM range({rows}) r(i)",
}
QUERY = "SELECT ta.x, ta.z, tb.u, tb.v, ta.y FROM a.ta JOIN b.tb ON ta.k = tb.k"
TRAIN = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y
  WITH (algorithm = 'sgd', epochs = {epochs}, tolerance = 0, network = '{network}')
  FROM ({query})"""


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, network: Network
) -> None:
    """Bytes leave when the line is free, at its pace, and come half the latency later."""
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

    async def deliver() -> None:
        while True:
            at, data = await due.get()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    delivering, free = asyncio.create_task(deliver()), 0.0
    while True:
        data = await reader.read(PIECE)
        free = max(free, time.monotonic()) + len(data) * BITS / network.bandwidth
        await due.put((free + network.latency / 2, data))
        if not data:
            break
    await delivering


async def relay(port: int, network: Network) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):  # who has gone gets nothing
            await asyncio.gather(carry(reader, back, network), carry(there, writer, network))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def relayed(location: str, network: str) -> Iterator[str]:
    """The place of a relay to this one."""
    scheme, _, port = location.rpartition(":")
    command = [sys.executable, __file__, "--network", network, "--relay", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"{scheme}:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def seconds(fed: sqlfl.Federation, text: str) -> tuple[float, float]:
    began = time.perf_counter()
    fed.sql(text)
    taken = time.perf_counter() - began
    return taken, float(fed.model("m").cost.comm_seconds or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="us-uk")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--relay", type=int)
    given = parser.parse_args()
    if given.relay is not None:
        asyncio.run(relay(given.relay, NETWORKS[given.network]))
        return
    text = TRAIN.format(epochs=given.epochs, network=given.network, query=QUERY)
    found = {}
    for slow in (False, True):
        with TemporaryDirectory() as name, ExitStack() as stack:
            parties: dict[str, list[Path]] = {}
            for party, rows in TABLES.items():
                path = Path(name) / f"{party}0.duckdb"
                with duckdb.connect(path) as con:
                    con.execute(f"CREATE TABLE t{party} AS {rows.format(rows=given.rows)}")
                parties[party] = [path]
            dial = (
                (lambda place: stack.enter_context(relayed(place, given.network)))
                if slow
                else (lambda place: place)
            )
            fed = stack.enter_context(elsewhere(Path(name), parties, dial))
            seconds(fed, text)
            found[slow] = seconds(fed, text)
    fast, reckoned = found[False]
    expected, measured = fast + reckoned, found[True][0]
    print(
        f"{given.network}, {given.rows:,} rows, {given.epochs} epochs: {measured:.2f} s over slow "
        f"links; {fast:.2f} s without + {reckoned:.2f} s by the model = {expected:.2f} s: "
        f"×{measured / expected:.3f}"
    )


if __name__ == "__main__":
    main()
