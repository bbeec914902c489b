"""NVFlare's own echo beside that of `sqlfl.integrations.nvflare`, in its simulator: one server, one
site.

    python benchmarks/nvflare_echo.py [--work FOLDER]

Each is a process. Calls alternate; times are of a whole call, in milliseconds. It needs
`pip install 'sqlfl[nvflare]'`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow as pa
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from sqlfl.integrations.nvflare.flare import Speaking, ends
from sqlfl.integrations.nvflare.flare_site import Site

SIZES = {100: 400, 100_000: 200, 4_000_000: 200, 64_000_000: 10}
"""Bytes -> calls of each kind."""
PASS = "p" * 1200
"""As long as an analyst's."""


class Back:
    """Service of a site: each request is its own reply."""

    client = "a/0"

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        return data


class EchoSite(Site):
    @collab.init
    def begin(self) -> None:
        self._host = Back()  # type: ignore[assignment]
        self._stack.enter_context(self._answers)
        self._stack.callback(self._answers.end)

    @collab.publish
    def plain(self, data: bytes) -> bytes:
        return data


class Measuring:
    """out : the file that takes the lines."""

    def __init__(self, out: str) -> None:
        self.out = out

    @collab.main
    def run(self) -> None:
        (site,) = collab.clients
        end = ends([site], {"a": [site.name]}, Speaking("study", PASS))["a"][0]
        with open(self.out, "w") as file:
            for size, calls in SIZES.items():
                data = os.urandom(size)
                buffer = pa.py_buffer(data)

                def own(data: bytes = data) -> None:
                    assert site(timeout=120.0).plain(data) == data

                def ours(buffer: pa.Buffer = buffer) -> None:
                    assert end.handle(buffer).equals(buffer)

                one, other = compared(own, ours, calls)
                print(
                    f"{size:>10,} bytes: NVFlare {one:8.2f}, sqlfl {other:8.2f} ms (medians of "
                    f"{calls}), {other / one:.2f} times",
                    file=file,
                    flush=True,
                )


def compared(own: Callable[[], None], ours: Callable[[], None], calls: int) -> tuple[float, float]:
    """Return the medians of both in milliseconds; calls alternate."""
    times: dict[Callable[[], None], list[float]] = {own: [], ours: []}
    for call in range(calls + 1):
        for work in (own, ours) if call % 2 else (ours, own):
            began = time.perf_counter()
            work()
            times[work].append(1e3 * (time.perf_counter() - began))
    return median(times[own][1:]), median(times[ours][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="the simulator's folder; by default a temporary")
    work = parser.parse_args().work or Path(tempfile.mkdtemp(prefix="nvflare_echo"))
    work.mkdir(parents=True, exist_ok=True)
    out = work / "echo.txt"
    recipe = CollabRecipe("echo", server=Measuring(str(out)), client=EchoSite(), min_clients=1)
    recipe.execute(SimEnv(num_clients=1, workspace_root=str(work / "workspace")))
    print(out.read_text())


if __name__ == "__main__":
    main()
