"""Totals of what leaves each party, and its kinds of messages: a summary of the disclosures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlfl.planner.explain.render import JOINED
from sqlfl.planner.federated.exchanges import UP, Send
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.federated.sizes import Monomial, Size, Symbol, total
from sqlfl.planner.federated.symbols import ROLES

OF_ROWS = frozenset(
    {
        "joined", "rows", "active", "tags", "identifiers", "written", "batch", "first_batch",
        "first_listed", "trained", "told",
    }
)  # fmt: skip
"""Roles of symbols that grow with the tables."""
OF_ROUNDS = frozenset(
    {"rounds", "steps", "exact", "renewals", "proofs", "updates", "mergers", "probes"}
)
"""Roles of symbols that count how often something is repeated."""
NAMES = ("tables", "columns")
"""Kinds of messages with names and types, sent before there is a plan."""


@dataclass(frozen=True)
class Total:
    """Upper bound of what leaves a party over the whole run, in bytes of values, without names and
    types.

    It is exact if the party's clients have fragments alike. A symbol without a client stands for
    the sum over the party's clients, and over keys or features.
    """

    party: str
    clients: int
    of_rows: Size
    """The part that grows with its rows."""
    others: Size
    messages: Size
    """Number of messages."""


@dataclass(frozen=True)
class KindTotal:
    """All messages of one kind in one direction."""

    kind: str
    what: tuple[str, ...]
    """Their contents, without repetition."""
    parties: tuple[str, ...]
    times: tuple[Size, ...]
    """Numbers of messages that a client sends or receives for a slot: all numbers that occur."""


def totals(plan: FederatedPlan) -> tuple[Total, ...]:
    """Return the total of each party that sends anything, in the order of the plan's clients."""
    party_totals = []
    number = Counter(client.party for client in plan.databases)
    crossing: dict[str, list[tuple[Size, Send]]] = {client.party: [] for client in plan.clients}
    for times, send in _crossing(plan, UP):
        crossing[send.client.party].append((times, send))
    for party, sends in crossing.items():
        if sends:
            sizes = [times * send.bytes for times, send in sends if send.kind not in NAMES]
            size = _summed(plan, sizes)
            rows = {m: c for m, c in size.terms if any(s.role in OF_ROWS for s in m)}
            rest = {m: c for m, c in size.terms if m not in rows}
            messages = _summed(plan, [times for times, _ in sends])
            party_totals.append(Total(party, number[party], Size(rows), Size(rest), messages))
    return tuple(party_totals)


def kinds(plan: FederatedPlan, direction: str) -> tuple[KindTotal, ...]:
    """The kinds of messages that cross a border, in the order in which they first do."""
    by_kind: dict[str, list[tuple[Size, Send]]] = {}
    for times, send in _crossing(plan, direction):
        by_kind.setdefault(send.kind, []).append((times, send))
    return tuple(_kind(plan, kind, sends) for kind, sends in by_kind.items())


def _kind(plan: FederatedPlan, kind: str, sends: list[tuple[Size, Send]]) -> KindTotal:
    ends: dict[tuple[object, int], list[Size]] = {}
    for times, send in sends:
        ends.setdefault((send.client, send.slot), []).append(times)
    counts = dict.fromkeys(_general(plan, total(times)) for times in ends.values())
    things = (thing for _, send in sends for thing in send.what.split("; "))
    parties = (send.client.party for _, send in sends)
    often = sorted(counts, key=lambda size: (len(str(size)), str(size)))
    return KindTotal(kind, _distinct(things), tuple(dict.fromkeys(parties)), tuple(often))


def _distinct(things: Iterable[str]) -> tuple[str, ...]:
    """Remove repeated texts, and texts that another one begins with."""
    distinct = list(dict.fromkeys(things))
    return tuple(t for t in distinct if not any(o != t and o.startswith(f"{t},") for o in distinct))


def _crossing(plan: FederatedPlan, direction: str) -> Iterator[tuple[Size, Send]]:
    """Messages with values that cross a border, and how often."""
    for item in plan.exchanges:
        for send in item.sends:
            if send.direction == direction and send.bytes and plan.crosses(send.client):
                yield item.times, send


def _summed(plan: FederatedPlan, sizes: Iterable[Size]) -> Size:
    """Return a bound of the sum, over clients, keys and features.

    Terms that differ only in the client of a quantity: the largest coefficient holds for the sum of
    the quantities. Terms without such a quantity are added.
    """
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in total(sizes).terms:
        general = _monomial(plan, monomial)
        known = terms.get(general)
        if any(symbol.client is not None for symbol in monomial):
            terms[general] = coefficient if known is None else max(known, coefficient)
        else:
            terms[general] = coefficient + (known or 0)
    return Size(terms)


def _general(plan: FederatedPlan, size: Size) -> Size:
    return Size({_monomial(plan, monomial): n for monomial, n in size.terms})


def _monomial(plan: FederatedPlan, monomial: Monomial) -> Monomial:
    general = (_of_party(plan, symbol) for symbol in monomial)
    return tuple(sorted(general, key=lambda symbol: symbol.name))


def _of_party(plan: FederatedPlan, symbol: Symbol) -> Symbol:
    """Remove client and part from the symbol. Keep the slot's name if several slots
    could be meant.
    """
    letter = ROLES[symbol.role][0].partition("[")[0]
    if symbol.slot is None:
        return Symbol(letter, symbol.role)
    return Symbol(f"{letter}[{plan.ucq.slots[symbol.slot].name}]", symbol.role, symbol.slot)


def formula(size: Size) -> str:
    """Return `4·(T + V + 1)·a[f]·d_c + 12·n[f]`: terms are grouped by their number of messages, and
    the slot is left out if there is only one.
    """
    terms: dict[Monomial, dict[Monomial, int]] = {}
    for monomial, coefficient in size.terms:
        thing = tuple(symbol for symbol in monomial if symbol.role not in OF_ROUNDS)
        often = tuple(symbol for symbol in monomial if symbol.role in OF_ROUNDS)
        terms.setdefault(thing, {})[often] = coefficient
    rest = terms.pop((), {})
    parts = [_product(Size(often), Size({thing: 1})) for thing, often in terms.items()]
    parts += [str(Size(rest))] if rest else []
    text = " + ".join(parts) or "0"
    slots = {symbol.slot for symbol in size.symbols if symbol.slot is not None}
    return re.sub(r"\[[^\]]*\]", "", text) if len(slots) == 1 else text


def _product(often: Size, thing: Size) -> str:
    common = math.gcd(*(coefficient for _, coefficient in often.terms))
    factor = Size({monomial: n // common for monomial, n in often.terms})
    number = "" if common == 1 else f"{common}·"
    if len(factor.terms) > 1:
        return f"{number}({str(factor).replace(' ', JOINED)})·{thing}"
    return str(thing * often)
