"""Whether a step waits for clients that are late: values of the option `stragglers`."""

from __future__ import annotations

import math
import re

from sqlfl.options.types import SECONDS, OptionType

WAIT = "wait"
ALL = 0.0
"""The seconds that mean waiting for all: a number that JSON has, as requests are held to it."""
WORDS = (
    "how long a step waits for parties: for all of them, or so long (but for one of them), after "
    "which it goes on with what the others have last predicted"
)
EXCLUDED = {
    "patience": "a party that was late no longer has the parameters of the best epoch",
    "network": "it is reckoned for rounds in which all parties answer",
}
"""Options that do not go with a length of time -> why."""
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


def _read(value: object) -> float | None:
    """In seconds; ALL for all of them."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text == WAIT:
        return ALL
    found = _TIME.fullmatch(text)
    unit = None if found is None else SECONDS.get(found[2])
    seconds = float(found[1]) * unit if found and unit else 0.0
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
