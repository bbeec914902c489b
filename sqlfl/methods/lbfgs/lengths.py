"""How many numbers vector-free L-BFGS sends; see `basis`."""

MEMORY = 10
"""m, pairs (s, y) that are kept."""


def products_length(memory: int = MEMORY) -> int:
    """Numbers in the products of one message: 6 newest vectors with the whole basis."""
    return 6 * (3 + 3 * memory)


def coefficients_length(memory: int = MEMORY) -> int:
    """Numbers that describe a step: of P g, of the m s and of the m P y."""
    return 1 + 2 * memory
