"""The option `union`: how the clients of one slot combine their results."""

from __future__ import annotations

from sqlfl.options.types import OptionType, choice

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
