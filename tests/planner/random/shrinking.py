"""Making a failing statement small, and telling causes apart."""

from __future__ import annotations

import re
from random import Random

from tests.planner.random.draws import smaller
from tests.planner.random.statements import Statement, made
from tests.planner.random.truth import CONTRADICTED, Verdict, check
from tests.planner.random.world import World


def pattern(message: str) -> str:
    """A message without its names and numbers: what it is about."""
    line = message.splitlines()[0] if message else ""
    line = re.sub(r'"[^"]*"|\'[^\']*\'|\b[A-Za-z_0-9]+\.[A-Za-z_."0-9]+', "_", line)
    return re.sub(r"\d+", "N", line)[:120]


def cause(verdict: Verdict) -> tuple[str, str]:
    if verdict.kind.startswith("wrong"):
        return verdict.kind, ""
    if verdict.kind == CONTRADICTED:  # the detail of wrong rows lists some of them
        return verdict.kind, verdict.detail.partition(":")[0]
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
