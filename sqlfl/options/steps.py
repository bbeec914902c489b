"""Options of steps that several methods have: `union` and `stragglers`."""

from __future__ import annotations

import math
import re

from sqlfl.options.types import SECONDS, OptionType, choice

# The option `union`: how the clients of one slot combine their results.

EXACT, CONSENSUS, SECURE = "exact", "consensus", "secure"
SECRET = (
    "how the results of one slot's clients are summed: with 'secure' the coordinator receives only "
    "the sums of gradients, second moments and statistics, no client's own"
)
UNION: OptionType[str] = choice(EXACT, CONSENSUS, SECURE)


def summing(union: str, algorithm: str) -> tuple[str, str, str | None] | None:
    """Return the conflict of `union` with a method whose clients only sum gradients, or None."""
    if union != CONSENSUS:
        return None
    hint = "consensus is of algorithm = 'admm'"
    return "union", f"'{EXACT}' or '{SECURE}' with algorithm '{algorithm}'", hint


# The option `stragglers`: how long a step waits for late clients.

WAIT = "wait"
ALL = 0.0
"""The value that means waiting for all clients. It is a number because requests carry it as JSON.
"""
WORDS = (
    "how long a step waits for parties: until all have answered, or for this time (and at least "
    "for one party); it then uses the latest predictions of the late parties"
)
EXCLUDED = {
    "patience": "a party that was late no longer has the parameters of the best epoch",
    "network": "it is computed for rounds in which all parties answer",
}
"""Options that do not go with a length of time -> why."""
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


def _read(value: object) -> float | None:
    """Return seconds; ALL for waiting until all have answered."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text == WAIT:
        return ALL
    match = _TIME.fullmatch(text)
    unit = None if match is None else SECONDS.get(match[2])
    seconds = float(match[1]) * unit if match and unit else 0.0
    return seconds if 0.0 < seconds < math.inf else None


def _advise(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"'{value:g} s' for seconds"
    return None


def _written(seconds: float) -> str | None:
    return None if seconds == ALL else f"{seconds:g} s"


STRAGGLERS: OptionType[float] = OptionType(
    "'wait', or a length of time such as '30 s'", _read, _advise, _written
)
