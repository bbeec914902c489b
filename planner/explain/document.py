"""EXPLAIN: what a plan does and what leaves the parties, as a summary and in detail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.planner.explain.brief import HERE, NO_LINKS, brief
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.planner.explain.caveats import caveats, protects
from sqlfl.planner.explain.joins import joins, slots, transforms
from sqlfl.planner.explain.model import model
from sqlfl.planner.explain.operators import operators
from sqlfl.planner.explain.owners import NO_OWNERS, Verdicts, owners
from sqlfl.planner.explain.picture import picture
from sqlfl.planner.explain.render import (
    JOINED,
    MANY,
    Code,
    Document,
    Notes,
    Section,
    TextTable,
    several,
)
from sqlfl.planner.explain.totals import KindTotal, Total, formula, kinds, totals
from sqlfl.planner.federated.exchanges import DOWN, UP, WHOLE, Disclosure
from sqlfl.planner.federated.plan import CHECK, JOIN, FederatedPlan, evaluated
from sqlfl.planner.federated.sizes import Size, Symbol
from sqlfl.planner.federated.symbols import ROLES
from sqlfl.planner.grammar.writing import to_sql

WHERE = "in full: EXPLAIN (VERBOSE) ..., plan.details"


def summary(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Verdicts = NO_OWNERS,
    links: Mapping[str, str] = NO_LINKS,
) -> Document:
    """Return EXPLAIN in short; arguments as in `brief`. Equal plans give equal documents, as for
    `details`.
    """
    return Document(_title(plan), brief(plan, report, verdicts, links))


def details(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Verdicts = NO_OWNERS,
    links: Mapping[str, str] = NO_LINKS,
) -> Document:
    """Return every message of each client with its size, and all SQL."""
    privacy = () if report is None else report.sections
    told = "" if report is None else " ".join(report.assumptions)
    rest = tuple(note for note in caveats(plan) if note not in told)
    sections = (
        Section("Statement", (Code("", plan.sql.strip()),)),
        *owners(plan, verdicts),
        *_leaving(plan),
        *([] if plan.purpose == JOIN else [model(plan)]),
        slots(plan),
        *transforms(plan),
        joins(plan),
        _fragments(plan),
        Section(
            "Mapping query, at the coordinator, over hashed keys",
            (Code("", to_sql(plan.mapping, pretty=True)),),
        ),
        *([] if plan.purpose == JOIN else [_operators(plan)]),
        _exchanges(plan),
        _border(plan, UP, f"What leaves the parties, to the coordinator{_place(plan)}"),
        _border(plan, DOWN, "What the coordinator sends to the parties"),
        *([] if plan.at is None else [_staying(plan, plan.at)]),
        _symbols(plan),
        Section("What protects it", (Notes(_protection(plan, report, links)),)),
        *privacy,
        Section("What is not protected", (Notes(rest),)),
    )
    return Document(_title(plan), sections)


def page(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Verdicts = NO_OWNERS,
    links: Mapping[str, str] = NO_LINKS,
) -> Document:
    """Return the page for notebooks: a picture, EXPLAIN in short, and the details folded below."""
    short = summary(plan, report, verdicts, links)
    full = details(plan, report, verdicts, links)
    folded = [replace(section, folded=True) for section in full.sections]
    drawn = picture(plan)
    first = [] if drawn is None else [Section("The plan", (drawn,))]
    return replace(short, sections=(*first, *short.sections, *folded))


def _title(plan: FederatedPlan) -> str:
    if plan.purpose == CHECK:
        of = f" of target {plan.ucq.target}" if plan.ucq.target else ""
        return f"CHECK{of}; {WHERE}"
    if plan.purpose == JOIN:
        return f"CREATE JOIN {plan.name}; {WHERE}"
    purpose = plan.purpose.upper() if plan.look is None else f"{plan.look.word.upper()} OF"
    purpose = purpose if plan.tuning is None else "TUNE"
    return f"{purpose} MODEL {plan.name} ({plan.kind}); {WHERE}"


def _protection(
    plan: FederatedPlan, report: PrivacyReport | None, links: Mapping[str, str]
) -> tuple[str, ...]:
    here = not links or HERE in links.values()
    return (*protects(plan, here=here), *(() if report is None else report.summary))


# -- totals ---------------------------------------------------------------------------------------


def _leaving(plan: FederatedPlan) -> Iterable[Section]:
    """Yield the total that leaves each party, and all kinds of messages."""
    sums = totals(plan)
    rows = _sums(sums)
    if not rows:
        return
    headers = ("party", "messages", "bytes, of rows", "other bytes, names apart")
    sizes = (size for item in sums for size in (item.messages, item.of_rows, item.others))
    symbols = [symbol for size in sizes for symbol in size.symbols]
    symbols += [s for kind in kinds(plan, UP) for times in kind.times for s in times.symbols]
    yield Section(
        f"What leaves each party, to the coordinator{_place(plan)}, at most",
        (TextTable(headers, rows), Notes((_legend(plan, symbols),))),
    )
    yield Section("All that leaves, by messages", (_messages(plan, UP),))
    yield Section("All that the coordinator sends", (_messages(plan, DOWN),), folded=True)


def _sums(totals_: Sequence[Total]) -> tuple[tuple[str, ...], ...]:
    """Return a row for each party; with many parties, one row for those with equal sizes."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for item in totals_:
        name = item.party + (f", {item.clients} clients" if item.clients > 1 else "")
        key = str(item.messages), formula(item.of_rows), formula(item.others)
        groups.setdefault(key if len(totals_) > MANY else (*key, item.party), []).append(name)
    said = ((names, key[:3]) for key, names in groups.items())
    return tuple((several(n) + ", each" * (len(n) > 1), *key) for n, key in said)


def _messages(plan: FederatedPlan, direction: str) -> TextTable:
    kind_totals = kinds(plan, direction)
    everyone = {party for kind in kind_totals for party in kind.parties}
    rows = tuple(_kind(kind, everyone) for kind in kind_totals)
    end = "from" if direction == UP else "to"
    said = "; ".join(f"{kind}{f' ({content})' * bool(content)}" for kind, content, *_ in rows)
    sentences = () if direction == UP else (f"{said}.",)
    return TextTable(("message", "what is in it", end, "times each"), rows, sentences)


def _kind(kind: KindTotal, everyone: set[str]) -> tuple[str, ...]:
    parties = "all" if set(kind.parties) == everyone else several(kind.parties)
    return kind.kind, "; ".join(kind.what), parties, " or ".join(map(str, kind.times))


def _legend(plan: FederatedPlan, symbols: Iterable[Symbol]) -> str:
    roles = {symbol.role for symbol in symbols}
    forms = [
        f"{form.partition('[')[0]}: {re.split(SIDE, meaning)[0]}{_known(plan, role)}"
        for role, (form, meaning) in ROLES.items()
        if role in roles
    ]
    return f"Bytes are of values, of all databases of the party; {'; '.join(forms)}."


SIDE = r": |; |, | \("
"""The text after it explains the symbol further; only the details show it."""


def _place(plan: FederatedPlan) -> str:
    return "" if plan.at is None else f" at {plan.at}"


# -- in full --------------------------------------------------------------------------------------


def _fragments(plan: FederatedPlan) -> Section:
    parts = []
    for client in plan.clients:
        for specification in plan.specifications[client]:
            slot = plan.ucq.slots[specification.slot]
            for fragment in evaluated(slot, specification):
                caption = f"{fragment.client}, slot {slot.name}, fragment {fragment.index}"
                if fragment.virtual:
                    caption += ": for joined rows without partner"
                elif fragment.links:
                    caption += f": rows of fragment {fragment.beside} that are not sqlfl_kept"
                    caption += ", whose joined rows are dropped"
                select = fragment.select
                parts.append(Code(caption, to_sql(select, pretty=True)))
    return Section("Fragments, each at its own client", tuple(parts))


def _operators(plan: FederatedPlan) -> Section:
    rows = tuple((o.when, o.slot, o.name, o.where, o.computes) for o in operators(plan))
    headers = ("when", "slot", "operator", "where", "computes")
    return Section("Operators", (TextTable(headers, rows),))


def _exchanges(plan: FederatedPlan) -> Section:
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for item in plan.exchanges:
        down = [send for send in item.sends if send.direction == DOWN]
        up = [send for send in item.sends if send.direction == UP]
        for request, reply in zip(down, up, strict=True):
            key = (item.phase, str(item.times), request.kind, reply.kind)
            slot = "" if request.slot == WHOLE else f"{plan.ucq.slots[request.slot].name}@"
            rows.setdefault(key, []).append(f"{slot}{request.client}")
    table = tuple((*key, ", ".join(places)) for key, places in rows.items())
    headers = ("exchange", "times", "request", "reply", "with")
    return Section("Exchanges, in order", (TextTable(headers, table),))


def _border(plan: FederatedPlan, direction: str, title: str) -> Section:
    rows = [_carried(plan, item, "") for item in plan.disclosures if item.direction == direction]
    table = TextTable(("from" if direction == UP else "to", *CARRIED), tuple(rows))
    return Section(title, (table,))


CARRIED = ("slot", "message", "what", "values", "bytes", "times")


def _carried(plan: FederatedPlan, item: Disclosure, word: str) -> tuple[str, ...]:
    """A row of a table of messages: the client's end, after `word`, and `CARRIED`."""
    slot = "" if item.slot == WHOLE else plan.ucq.slots[item.slot].name
    client = item.sender if item.direction == UP else item.receiver
    sizes = (_formula(item.values), _formula(item.bytes), _formula(item.times))
    return (f"{word}{client}", slot, item.kind, item.what, *sizes)


def _staying(plan: FederatedPlan, at: str) -> Section:
    """Return the messages of the coordinator's own party, which cross no border."""
    rows = [
        _carried(plan, item, "from " if item.direction == UP else "to ") for item in plan.staying
    ]
    title = f"What stays at {at}, where the coordinator is"
    if not rows:
        return Section(title, (Notes((f"Nothing: no table of {at} takes part.",)),))
    return Section(title, (TextTable(("client", *CARRIED), tuple(rows)),))


def _formula(size: Size) -> str:
    return str(size).replace(" + ", f"{JOINED}+ ").replace(" - ", f"{JOINED}-{JOINED}")


def _symbols(plan: FederatedPlan) -> Section:
    used = {symbol.role for symbol in plan.symbols}
    rows = []
    for role, (form, meaning) in ROLES.items():
        if role in used:
            rows.append((form, meaning + _known(plan, role)))
    note = "Sizes are of values: 8 bytes a number, text as UTF-8; framing comes on top."
    return Section("Symbols", (TextTable(("symbol", "meaning"), tuple(rows)), Notes((note,))))


def _known(plan: FederatedPlan, role: str) -> str:
    if role != "outputs":
        return ""
    several = kind_of(plan.kind).target == ANY_CLASSES
    return ", the number of classes" if several else ", 1 here"
