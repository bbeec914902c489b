"""python -m tests.soak: schedules of faults with real processes, and an hour of restarts with the
memory watched. --schedules N, --minutes M."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.depth import SEED
from tests.service import test_faults as faults
from tests.service.processes import Distributed, resident

PARTIES = {"clinic": faults.PATIENTS, "lab": faults.TESTS}
GROWTH = 64 << 20
"""Bytes by which the memory of a process may grow after its first minutes."""


def schedules(study: Distributed, count: int, expected: faults.Expected) -> None:
    began, errors = time.monotonic(), 0
    for number in range(count):
        seed = f"{SEED} {number}"
        try:
            errors += faults.schedule(study, expected, random.Random(seed))
        except BaseException:
            print(f"schedule {number} failed: SQLFL_SEED={SEED}", flush=True)
            raise
        if number % 10 == 9 or number == count - 1:
            seconds = time.monotonic() - began
            print(
                f"{number + 1} schedules in {seconds:.0f} s, {errors} clear errors, no wrong "
                "model, no hang, nothing left",
                flush=True,
            )


def hour(study: Distributed, minutes: float, expected: faults.Expected) -> None:
    """The coordinator and one party stay; the other is killed and restarted every few seconds."""
    draw, due, reported = random.Random(SEED), time.monotonic() + 60.0 * minutes, 0.0
    stays = {"coordinator": study.coordinator.pid, "clinic": study.processes["clinic"].pid}
    trainings, restarts, first = 0, 0, {}
    began = time.monotonic()
    while time.monotonic() < due:
        with study.analyst() as fed:
            study.connected(fed)
            for _ in range(draw.randrange(1, 6)):
                assert faults.same(faults.trained(fed), expected)
                trainings += 1
        study.restart("lab")
        restarts += 1
        now = {name: resident(pid) for name, pid in stays.items()}
        passed = time.monotonic() - began
        if passed > min(300.0, 12.0 * minutes) and not first:
            first = now
        if time.monotonic() > reported + 30.0:
            reported = time.monotonic()
            told = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in now.items())
            print(f"{passed:.0f} s: {trainings} trainings, {restarts} restarts; {told}", flush=True)
    assert first, "it was too short to see whether memory grows"
    for name, size in first.items():
        grown = now[name] - size
        print(f"{name}: {size / 2**20:.0f} MiB, then {grown / 2**20:+.0f}", flush=True)
        assert grown < GROWTH, f"the memory of {name} grows"


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--schedules", type=int, default=200)
    given.add_argument("--minutes", type=float, default=60.0)
    told = given.parse_args()
    with tempfile.TemporaryDirectory() as folder, Distributed(Path(folder), PARTIES) as study:
        expected = faults.undisturbed()
        schedules(study, told.schedules, expected)
        if told.minutes:
            hour(study, told.minutes, expected)
        study.clean()


if __name__ == "__main__":
    main()
