"""Statements at random against the central database: what is wrong, and why the rest is refused.

    python -m tests.planner.random --count 5000 --seed 0 --shrink 3
    python -m tests.planner.random --seed 184 --count 1 --shrink 1
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from random import Random

from tests.planner.random.draws import smaller
from tests.planner.random.statements import Statement, made
from tests.planner.random.truth import Verdict, check
from tests.planner.random.world import WORLD, World, opened


def pattern(message: str) -> str:
    """A message without its names and numbers: what it is about."""
    line = message.splitlines()[0] if message else ""
    line = re.sub(r'"[^"]*"|\'[^\']*\'|\b[A-Za-z_0-9]+\.[A-Za-z_."0-9]+', "_", line)
    return re.sub(r"\d+", "N", line)[:120]


def cause(verdict: Verdict) -> tuple[str, str]:
    if verdict.kind.startswith("wrong"):
        return verdict.kind, ""
    return verdict.kind, pattern(verdict.detail)


def shrunk(world: World, seed: int, limit: int) -> tuple[Statement, Verdict]:
    """The smallest statement found that fails as that of the seed does."""
    _, choices = made(Random(seed))
    wanted = cause(check(world, made(choices)[0]))
    last: dict[str, tuple[Statement, Verdict]] = {}

    def fails(candidate: list[int]) -> bool:
        try:
            statement, _ = made(candidate)
            verdict = check(world, statement)
        except (IndexError, ValueError, AssertionError, RecursionError):
            return False
        if cause(verdict) != wanted:
            return False
        last["best"] = (statement, verdict)
        return True

    fails(choices)
    smaller(choices, fails, limit)
    return last["best"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", type=int, default=1, help="cases of each cause to make small")
    parser.add_argument("--tries", type=int, default=1500)
    parser.add_argument("--only", default="", help="causes that contain this text")
    asked = parser.parse_args()
    kinds: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    bad: dict[tuple[str, str], list[int]] = defaultdict(list)
    first, last = asked.seed, asked.seed + asked.count
    for number in range(first // WORLD, (last - 1) // WORLD + 1):
        with opened(number) as world:
            for seed in range(max(first, number * WORLD), min(last, (number + 1) * WORLD)):
                statement, _ = made(Random(seed))
                verdict = check(world, statement)
                kinds[verdict.kind] += 1
                seen[verdict.kind].update(statement.seen)
                if verdict.kind == "refused":
                    refused[pattern(verdict.detail)] += 1
                if not verdict.good:
                    bad[cause(verdict)].append(seed)
    print(dict(kinds))
    for what, count in refused.most_common(100):
        print(f"{count:6} refused: {what}")
    print("in plans that are equal:", dict(seen["equal"].most_common()))
    for (kind, what), seeds in sorted(bad.items(), key=lambda item: -len(item[1])):
        if asked.only not in f"{kind} {what}":
            continue
        print(f"\n##### {len(seeds)} {kind}: {what}  {seeds[:8]}")
        for seed in seeds[: asked.shrink]:
            with opened(seed // WORLD) as world:
                statement, verdict = shrunk(world, seed, asked.tries)
                print(f"--- seed {seed}: {statement}\n    => {verdict.detail[:400]}", flush=True)


if __name__ == "__main__":
    main()
