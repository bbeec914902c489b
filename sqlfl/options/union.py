"""How the clients of one slot find their common block: values of the option `union`."""

from __future__ import annotations

from sqlfl.options.types import OptionType, choice

EXACT, CONSENSUS, SECURE = "exact", "consensus", "secure"
SECRET = (
    "how what the clients of one slot tell is summed: 'secure' shows the coordinator no client's "
    "gradients, second moments and statistics, only what they come to together"
)
UNION: OptionType[str] = choice(EXACT, CONSENSUS, SECURE)


def summing(union: str, algorithm: str) -> tuple[str, str, str | None] | None:
    """The conflict of a method whose clients sum gradients and nothing else; None without."""
    if union != CONSENSUS:
        return None
    hint = "consensus is of algorithm = 'admm'"
    return "union", f"'{EXACT}' or '{SECURE}' with algorithm '{algorithm}'", hint
