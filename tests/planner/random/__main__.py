"""Statements at random against the central database: what is wrong, and why the rest is refused.

python -m tests.planner.random --count 5000 --seed 0 --shrink 3
python -m tests.planner.random --seed 184 --count 1 --shrink 1
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict

from tests.planner.random.shrinking import cause, pattern, shrunk
from tests.planner.random.truth import verdicts
from tests.planner.random.world import WORLD, opened


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
    for seed, statement, verdict in verdicts(range(asked.seed, asked.seed + asked.count)):
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
