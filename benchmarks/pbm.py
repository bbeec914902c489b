"""PBM-VFL's experiments with `algorithm = 'pbm'`: Phishing and Activity over parties that each have
some columns, and a join of tables that are not aligned.

Each setting of bins and θ is trained with binomial draws (PBM), and with Gaussian noise of each
party instead (LDP), of the variance that the paper sets; beside them without either (NPQ). Runs are
kept as they end, and a second call makes those that are missing; those of the first seed come first.
The data may not be passed on: give the folders with their Parquet files.

    python benchmarks/pbm.py [--phishing folder] [--activity folder] [--work folder] [--epochs 30]
        [--seeds 3] [--processes 2] [--join] [--page docs/results.md] [--figures docs/figures]

It needs pip install 'sqlfl[bench,neural,plot]'.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from aligned import Setting, activity, phishing, run
from results import Results

THETAS = (0.1, 0.15, 0.2, 0.25)
BINS = {"phishing": (8, 16, 32, 64), "activity": (8, 16, 64, 128)}
PARTIES = (5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description="PBM-VFL's experiments")
    parser.add_argument("--phishing", type=Path)
    parser.add_argument("--activity", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/pbm"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "pbm.json")
    folders = {"phishing": arguments.phishing, "activity": arguments.activity}
    jobs = [
        (name, str(folder), setting)
        for setting in settings(arguments.seeds, arguments.epochs)
        for name, folder in folders.items()
        if folder is not None and setting.bins in (0, *BINS[name])
    ]
    missing = [job for job in jobs if key(job[0], job[2]) not in results.found]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        waiting = {pool.submit(trained, *job): key(job[0], job[2]) for job in missing}
        for number, done in enumerate(as_completed(waiting)):
            results.add(waiting[done], {"epochs": done.result()})
            last = done.result()[-1]
            measured = f"test {last['test']:.4f}, seen {last['test seen']:.4f}"
            print(f"{number + 1}/{len(missing)} {waiting[done]}: {measured}", flush=True)


def settings(seeds: int, epochs: int) -> Iterator[Setting]:
    """Those that show most first."""
    for seed in range(seeds):
        for parties in PARTIES:
            yield Setting(parties, seed=seed, epochs=epochs)
            for theta in sorted(THETAS, reverse=True):
                for bins in sorted({b for own in BINS.values() for b in own}, reverse=True):
                    drawn = Setting(parties, bins, theta, seed=seed, epochs=epochs)
                    yield drawn
                    yield replace(drawn, local=True)


def key(name: str, own: Setting) -> str:
    return f"{name}/{own.parties}/{own.method}/{own.bins}/{own.theta}/{own.seed}/{own.epochs}"


def trained(name: str, folder: str, setting: Setting) -> list[dict[str, float]]:
    make = {"phishing": phishing, "activity": lambda path, seed: activity(path)}[name]
    return run(make(Path(folder), setting.seed), setting)


if __name__ == "__main__":
    main()
