"""Table positions that wait for one another, because clients hold rows of several of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlfl.contract.schema import Client


def tied(clients: Sequence[Collection[Client]]) -> tuple[tuple[int, ...], ...]:
    """Group positions that share clients: every position once, in the order of the first ones.

    >>> a, b, c = Client("a"), Client("b"), Client("c")
    >>> tied([{a, b}, {c}, {b}])
    ((0, 2), (1,))
    """
    groups: list[tuple[list[int], set[Client]]] = []
    for position, members in enumerate(clients):
        meeting = [group for group in groups if group[1] & set(members)]
        positions = sorted([position, *(p for group in meeting for p in group[0])])
        held = set(members).union(*(group[1] for group in meeting))
        groups = [group for group in groups if group not in meeting]
        groups.append((positions, held))
    return tuple(sorted(tuple(positions) for positions, _ in groups))
