"""PBM-VFL's experiments with `algorithm = 'pbm'`: Phishing and Activity over parties that each have
some columns, and a join of tables that are not aligned.

Each setting of bins and θ is trained with binomial draws (PBM), and with Gaussian noise of each
party instead (LDP), of the variance that the paper sets; beside them without either (NPQ). Runs
are kept as they end, and a second call makes those that are missing; the first seed comes first.
The data may not be passed on: give the folders with their Parquet files.

    python benchmarks/pbm.py [--phishing folder] [--activity folder] [--work folder] [--epochs 20]
        [--seeds 3] [--processes 2] [--join 3] [--page docs/results/pbm.md] [--figures docs/figures]

It needs pip install 'sqlfl[bench,neural,plot]'.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path

from aligned import Setting, activity, phishing, run
from pbm_join import results as joined
from pbm_tables import BINS, PARTIES, THETAS, draw, render
from pbm_tables import key as named
from results import Results, insert


def main() -> None:
    parser = argparse.ArgumentParser(description="PBM-VFL's experiments")
    parser.add_argument("--phishing", type=Path)
    parser.add_argument("--activity", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/pbm"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--join", type=int, default=0, help="runs of the join")
    parser.add_argument("--flights", type=int, help="of each airport, for the join; all by default")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "pbm.json")
    folders = {"phishing": arguments.phishing, "activity": arguments.activity}
    make(results, folders, settings(arguments.seeds, arguments.epochs), arguments.processes)
    if arguments.join and "join" not in results.found:
        results.add("join", {"runs": list(joined(arguments.join, 5, arguments.flights))})
    print(render(results.found))
    if arguments.page is not None:
        insert(arguments.page, "pbm", render(results.found))
    if arguments.figures is not None:
        draw(results.found, arguments.figures / "pbm.png")


def make(
    results: Results,
    folders: Mapping[str, Path | None],
    wanted: Iterable[Setting],
    processes: int,
) -> None:
    """The runs that are missing."""
    jobs = {
        key(name, setting): (name, str(folder), setting)
        for setting in wanted
        for name, folder in folders.items()
        if folder is not None and setting.bins in (0, *BINS[name])
    }
    missing = {name: job for name, job in jobs.items() if name not in results.found}
    if not missing:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = {pool.submit(trained, *job): name for name, job in missing.items()}
        for number, done in enumerate(as_completed(waiting)):
            results.add(waiting[done], {"epochs": done.result()})
            last = done.result()[-1]
            measured = f"test {last['test']:.4f}, seen {last['test seen']:.4f}"
            print(f"{number + 1}/{len(missing)} {waiting[done]}: {measured}", flush=True)


def settings(seeds: int, epochs: int) -> list[Setting]:
    """Those that show most first: few parties, the first seed, large θ."""
    found = []
    for seed, parties in product(range(seeds), PARTIES):
        found.append(Setting(parties, seed=seed, epochs=epochs))
        for theta, bins in product(THETAS, sorted({b for own in BINS.values() for b in own})):
            drawn = Setting(parties, bins, theta, seed=seed, epochs=epochs)
            found += [drawn, replace(drawn, local=True)]
    return sorted(found, key=_rank)


def _rank(own: Setting) -> tuple[object, ...]:
    return own.seed + PARTIES.index(own.parties), own.bins > 0, -own.theta, own.local, -own.bins


def key(name: str, own: Setting) -> str:
    return named(name, own.parties, own.method, own.bins, own.theta, own.seed, own.epochs)


def trained(name: str, folder: str, setting: Setting) -> list[dict[str, float]]:
    data = phishing(Path(folder), setting.seed) if name == "phishing" else activity(Path(folder))
    return run(data, setting)


if __name__ == "__main__":
    main()
