"""Sections of EXPLAIN: slots and joins, totals of what leaves, owners' verdicts, measured cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from sqlfl.contract.request import ALLOWED, REFUSED, Verdict
from sqlfl.contract.schema import Client
from sqlfl.planner.explain.render import JOINED, Notes, Section, TextTable, several
from sqlfl.planner.federated.exchanges import UP, Send
from sqlfl.planner.federated.plan import JOIN, FederatedPlan
from sqlfl.planner.federated.sizes import ROLES, Monomial, Size, Symbol, total
from sqlfl.planner.query.ucq import ARRAY, Block, Feature, Join, LeftJoin, Slot

HEADERS = ("slot", "clients", "rows, estimated", "features", "engine")


def sent_keys(plan: FederatedPlan) -> tuple[str, ...]:
    """Return which tables send keys of fewer or more rows than the query says, or only keys."""
    narrowed = [
        f"{slot.name} sends keys of rows with {' and '.join(slot.derived)} only: equal keys say so"
        for slot in plan.ucq.slots
        if slot.derived
    ]
    once = [
        f"{slot.name} only says which keys there are: its rows with equal keys"
        f"{_partners(plan, slot)} count as one"
        for slot in plan.ucq.slots
        if any(
            own.slot == slot.index for b in plan.ucq.blocks for each in b.partners for own in each
        )
    ]
    once += dict.fromkeys(
        _of_subquery([plan.ucq.slots[slot].name for slot in sorted(slots)])
        for block in plan.ucq.blocks
        for slots in block.existences
    )
    merged = [
        f"databases of {slot.merging[0].party} send each other aggregates of {slot.name} by key, "
        "sealed, and merge those of equal keys: the coordinator cannot read them"
        for slot in plan.ucq.slots
        if slot.merging
    ]
    return (*narrowed, *once, *merged, *plan.ucq.remarks)


def _of_subquery(names: Sequence[str]) -> str:
    """Return which rows of the tables of an EXISTS count as one, and what they send."""
    if len(names) == 1:
        return f"{names[0]} only says which keys there are: its rows with equal keys count as one"
    return (
        f"{' and '.join(names)} only say which keys there are: their joined rows with equal keys "
        "count as one; they send the keys that an inner join by the same equalities needs"
    )


def _partners(plan: FederatedPlan, slot: Slot) -> str:
    """Return the tables of EXISTS that the slot's rows need a partner of; empty without any."""
    pairs = ((p.of, p.slot) for b in plan.ucq.blocks for own in b.partners for p in own)
    names = dict.fromkeys(plan.ucq.slots[other].name for at, other in pairs if at == slot.index)
    return f" and a partner in {' and '.join(names)}" if names else ""


def lasting(plan: FederatedPlan) -> tuple[str, ...]:
    """Return what was sent before for the join that lasts, and what will be; empty without one."""
    if plan.purpose == JOIN:
        return (
            "each party keeps its tables as they are now, until DROP JOIN, the end of the session, "
            "or its owner's time limit; of their rows nothing leaves yet: the first statement over "
            "the join that needs a table's keys sends them, once",
        )
    if plan.join is None:
        return ()
    keyed = [slot for slot in plan.ucq.slots if slot.keys]
    sent = [slot.name for slot in keyed if slot.index in plan.join.kept]
    left = [slot.name for slot in keyed if slot.index not in plan.join.kept]
    rows = f"the rows are those of join {plan.join.name}, made {plan.join.made}"
    return (
        rows,
        *([f"keys of {', '.join(sent)} were sent already, and do not leave again"] * bool(sent)),
        *([f"keys of {', '.join(left)} leave now, once for the join"] * bool(left)),
        *(["the targets were sent already, and do not leave again"] * plan.join.labels),
    )


def slots(plan: FederatedPlan) -> Section:
    """Return the slots with kinds of features, and the reason for each engine."""
    rows = []
    for slot in plan.ucq.slots:
        choice = plan.engines[slot.index]
        rows.append(
            (
                f"{slot.index} {slot.name}",
                ", ".join(_holders(slot)),
                " + ".join(_estimates(slot)),
                ", ".join(_feature(feature) for feature in slot.features) or "none",
                f"{choice.engine}: {choice.reason}" if slot.features else "none",
            )
        )
    return Section("Slots", (TextTable(HEADERS, tuple(rows)),))


def transforms(plan: FederatedPlan) -> tuple[Section, ...]:
    """Return the features that TRANSFORM computes, and their parties; empty without TRANSFORM."""
    if not plan.ucq.transforms:
        return ()
    rows = []
    for slot in plan.ucq.slots:
        for feature in slot.features:
            if feature.transform is not None:
                fitted = feature.transform.fitted
                how = FITTED if fitted and plan.algorithm else KEPT if fitted else COMPUTED
                held = several(_holders(slot))
                rows.append((feature.name, feature.transform.call, held, how))
    headers = ("feature", "made by", "at", "how")
    return (
        Section(
            "What TRANSFORM makes, at the column's own party", (TextTable(headers, tuple(rows)),)
        ),
    )


COMPUTED = "in its SELECT"
FITTED = "fitted to its joined rows, and kept with its block"
KEPT = "as its block of the model has it"


def joins(plan: FederatedPlan) -> Section:
    """Return the joins block by block, with keys and rows without a partner."""
    ucq = plan.ucq
    names = [slot.name for slot in ucq.slots]
    blocks = []
    for number, block in enumerate(ucq.blocks):
        members = [_member(ucq.slots[slot], fragments) for slot, fragments in block.members]
        blocks.append((str(number), ", ".join(members), _of_block(plan, block) or "none"))
    parts: list[TextTable | Notes] = [TextTable(("block", "slots", "joins"), tuple(blocks))]
    keys = [
        (
            str(key.index),
            ", ".join(key.types),
            ", ".join(slot.name for slot in ucq.slots if key.index in slot.keys),
            "16-byte keyed hash of the value"
            + (f", its {len(key.types)} parts together" if len(key.types) > 1 else "")
            + (f"; rows with the same {key.unit} are one unit" if key.unit else ""),
        )
        for key in ucq.keys
    ]
    if keys:
        parts.append(TextTable(("key", "types", "slots", "sent as"), tuple(keys)))
    added = [(names[slot], *_without_partner(plan, slot)) for slot in _optional(plan)]
    if added:
        headers = ("slot", "joined rows without partner get", "WHERE then drops")
        parts.append(TextTable(headers, tuple(added)))
    if narrowed := (*sent_keys(plan), *lasting(plan)):
        parts.append(Notes(narrowed))
    return Section("Joins", tuple(parts))


def _of_block(plan: FederatedPlan, block: Block) -> str:
    names = [slot.name for slot in plan.ucq.slots]
    inner = [_equality(names, item) for item in block.joins]
    return ", ".join([*inner, *(_left_join(names, left) for left in block.lefts)])


def _equality(names: list[str], join: Join) -> str:
    virtual = ", also where it has no partner" if join.virtual else ""
    return f"{names[join.left]} = {names[join.right]} on key {join.key}{virtual}"


def _left_join(names: list[str], left: LeftJoin) -> str:
    inside = [names[slot] for slot in left.slots]
    inside += [_equality(names, join) for join in left.joins]
    inside += [_left_join(names, inner) for inner in left.lefts]
    right = inside[0] if len(inside) == 1 else f"({', '.join(inside)})"
    return f"LEFT JOIN {right}: {', '.join(_equality(names, join) for join in left.on) or 'all'}"


def _optional(plan: FederatedPlan) -> list[int]:
    return sorted({slot for block in plan.ucq.blocks for slot in block.optional})


def _without_partner(plan: FederatedPlan, index: int) -> tuple[str, str]:
    """Return the row that joined rows without a partner get from a slot, and which rows are
    dropped.
    """
    slot = plan.ucq.slots[index]
    virtual = [f for f in slot.fragments if f.virtual]
    places = " and ".join(f"fragment {f.index} at {f.client}" for f in virtual)
    links = [str(f.index) for f in slot.fragments if f.links]
    dropped = "none"
    if links:
        dropped = f"rows of fragment{'s' * (len(links) > 1)} {', '.join(links)}"
        dropped += "; those without partner, if that row is not there"
    return f"the row of {places}", dropped


def _holders(slot: Slot) -> list[str]:
    """Return the clients; a party's combined clients stand in brackets."""
    holders = []
    for client in slot.clients:
        combined = [str(c) for c in slot.databases if c.combined and c.whole == client]
        holders.append(f"{client} ({', '.join(combined)})" if combined else str(client))
    return holders


def _estimates(slot: Slot) -> list[str]:
    estimates = []
    for client in slot.clients:
        rows = [f.rows for f in slot.of(client) if not f.virtual]
        known = [r for r in rows if r is not None]
        estimates.append(f"{sum(known):,}" if len(known) == len(rows) else "unknown")
    return estimates


def _member(slot: Slot, fragments: tuple[int, ...]) -> str:
    if fragments == tuple(f.index for f in slot.fragments if not f.virtual):
        several = len(fragments) > 1
        return f"{slot.name} (fragments {', '.join(map(str, fragments))})" if several else slot.name
    return f"{slot.name} (fragments {', '.join(str(index) for index in fragments)})"


def _feature(feature: Feature) -> str:
    kind = f"{feature.kind}[{feature.width}]" if feature.kind == ARRAY else feature.kind
    return f"{feature.name} {kind}"


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


Verdicts: TypeAlias = Mapping[Client, tuple[Verdict, ...]]
NO_OWNERS: Verdicts = MappingProxyType({})
LATER = (
    "Policies are those of this moment. Rules on rows, such as min_rows and min_cell, are checked "
    "when the statement runs."
)


def owners(plan: FederatedPlan, verdicts: Verdicts) -> tuple[Section, ...]:
    """Return a section with the verdicts; empty if no owner has a policy."""
    rows = [
        row
        for client, client_verdicts in verdicts.items()
        for row in ([_told(plan, client, item) for item in client_verdicts] or [_allowed(client)])
    ]
    if not rows:
        return ()
    table = TextTable(("party", "what", "its owner", "by"), tuple(rows))
    return (Section("What the owners allow", (table, Notes((LATER,)))),)


def _told(plan: FederatedPlan, client: Client, item: Verdict) -> tuple[str, ...]:
    names = {slot.index: slot.name for slot in plan.ucq.slots}
    of = f" of {names[item.slot]}" if item.slot in names else ""
    return str(client), f"{item.what or 'all'}{of}", item.state, item.rule


def sentences(plan: FederatedPlan, verdicts: Verdicts) -> Iterator[str]:
    """Yield the verdicts as sentences; none if no owner has a policy."""
    groups: dict[str, list[str]] = {}
    for client, client_verdicts in verdicts.items():
        decided = [_sentence(plan, item) for item in client_verdicts if item.state != ALLOWED]
        notes = [item.what for item in client_verdicts if item.state == ALLOWED]
        for text in (*(decided or ["the owner allows it"]), *notes):
            groups.setdefault(text, []).append(str(client))
    for text, clients in groups.items():
        yield f"{several(clients)}: {text}."
    if groups:
        yield LATER


def _sentence(plan: FederatedPlan, item: Verdict) -> str:
    names = {slot.index: slot.name for slot in plan.ucq.slots}
    of = f" of {names[item.slot]}" if item.slot in names else ""
    data = f"{item.what or 'all'}{of}" if item.what or of else "it"
    return (
        f"the owner {'refuses' if item.state == REFUSED else 'decides about'} {data}: {item.rule}"
    )


def _allowed(client: Client) -> tuple[str, ...]:
    return str(client), "all", ALLOWED, ""


SAID = (
    "Each party made up {rows:,} rows for each of its tables, from names, types and the statement. "
    "No row of a table was read, and nothing is kept. The numbers count the messages of the run, "
    "without planning and without the making of rows."
)
OWNERS = "A rehearsal counts against no policy. EXPLAIN says below whether owners allow the run."
OTHERWISE = (
    "Real tables may have more or fewer rows, categories and rounds. The formulas of EXPLAIN "
    "(VERBOSE) hold for these too. A model of made-up rows says nothing, and is not shown."
)


@dataclass(frozen=True)
class ClientTraffic:
    """Messages that a client sent or received, without those of planning."""

    client: Client
    crosses: bool
    """True if they went from one party to another."""
    up: bool
    messages: int
    bytes: int
    formula: int | None
    """Bytes by EXPLAIN's formula; None if the formula has a quantity that messages do not show."""
    differing: tuple[str, ...]
    """Kinds of messages whose number or size differs from the formula."""


@dataclass(frozen=True)
class RehearsalReport:
    """Results of a rehearsal."""

    rows: int
    """Rows of each table."""
    epochs: int
    exchanges: int
    """Exchanges in which the statement runs."""
    seconds: float
    interrupted: bool
    lines: tuple[ClientTraffic, ...]
    remarks: tuple[str, ...]
    """Warnings from planning."""


def rehearsed(plan: FederatedPlan, account: RehearsalReport) -> Section:
    rows = tuple(
        (
            str(line.client) + ("" if line.crosses else ", at the coordinator"),
            "sent" if line.up else "got",
            f"{line.messages:,}",
            f"{line.bytes:,}",
            "unknown" if line.formula is None else f"{line.formula:,}",
        )
        for line in account.lines
    )
    headers = ("client", "has", "messages", "bytes", "bytes by EXPLAIN's formulas")
    owners = (OWNERS,) if plan.run.governed else ()
    said = SAID.format(rows=account.rows)
    notes = (*_said(plan, account), said, OTHERWISE, *owners, *account.remarks)
    return Section("The rehearsal", (TextTable(headers, rows), Notes(notes)))


def _said(plan: FederatedPlan, account: RehearsalReport) -> Iterator[str]:
    ran = "It ran to its end" if not account.interrupted else "It was interrupted, and ended"
    epochs = f"{account.epochs:,} epochs, " if plan.algorithm else ""
    yield f"{ran}: {epochs}{account.exchanges:,} exchanges, {account.seconds:.1f} seconds."
    for line in account.lines:
        if line.differing:
            yield (
                f"EXPLAIN says otherwise about the messages that {line.client} "
                f"{'sent' if line.up else 'got'}: "
                f"{', '.join(line.differing)}. That is a fault of sqlfl; please report it."
            )
