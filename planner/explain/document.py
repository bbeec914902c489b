"""EXPLAIN: what a plan does and what leaves the parties, in short and with all details."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlfl.methods.sgd.options import SgdOptions
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.batch import LEAST, MOST, Usual
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TowerOptions, TrainingOptions
from sqlfl.options.types import shown
from sqlfl.planner.explain.caveats import caveats, protects
from sqlfl.planner.explain.operators import operators
from sqlfl.planner.explain.render import JOINED, Code, Document, Notes, Section, Table
from sqlfl.planner.explain.totals import Kind, formula, kinds, totals
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.writing import to_sql
from sqlfl.planner.protocol.exchanges import DOWN, UP, WHOLE, Disclosure
from sqlfl.planner.protocol.sizes import Size, Symbol
from sqlfl.planner.protocol.symbols import ROLES
from sqlfl.planner.query.ucq import ARRAY, Feature, Join, LeftJoin, Slot
from sqlfl.report.card import PrivacyReport
from sqlfl.transport.network import Network

SCORING = ("engine", "memory_limit")
"""The options that still matter where nothing is trained."""
USUAL = (None, False, 0, "none", "auto")
"""Values of options that change nothing, and are left to the details."""
BOUNDS = ("max_joined_rows", "memory_limit")
"""Options that what is trained does not depend on, for the details too."""
WHERE = "in full: EXPLAIN (VERBOSE) ..., plan.details"


def summary(plan: FederatedPlan, report: PrivacyReport | None) -> Document:
    """The plan in short; `report` is what is expected of PRIVACY.

    Equal plans give equal documents, as for `details`.
    """
    sections = (
        *_leaving(plan),
        Section("What protects it", (Notes(_protection(plan, report)),)),
        _join(plan),
        _method(plan),
        Section("What is not protected", (Notes(caveats(plan)),)),
    )
    return Document(_title(plan), sections)


def details(plan: FederatedPlan, report: PrivacyReport | None) -> Document:
    """Every message of each client with its size, and all SQL."""
    privacy = () if report is None else report.sections
    told = "" if report is None else " ".join(report.assumptions)
    rest = tuple(note for note in caveats(plan) if note not in told)
    sections = (
        Section("Statement", (Code("", plan.sql.strip()),)),
        _model(plan),
        _slots(plan),
        _joins(plan),
        _fragments(plan),
        Section(
            "Mapping query, at the coordinator, over hashed keys",
            (Code("", to_sql(plan.mapping, pretty=True)),),
        ),
        _operators(plan),
        _exchanges(plan),
        _border(plan, UP, f"What leaves the parties, to the coordinator{_place(plan)}"),
        _border(plan, DOWN, "What the coordinator sends to the parties"),
        *([] if plan.at is None else [_staying(plan, plan.at)]),
        _symbols(plan),
        Section("What protects it", (Notes(protects(plan)),)),
        *privacy,
        Section("What is not protected", (Notes(rest),)),
    )
    return Document(_title(plan), sections)


def page(plan: FederatedPlan, report: PrivacyReport | None) -> Document:
    """For notebooks: in short, and the details folded below."""
    short, full = summary(plan, report), details(plan, report)
    titles = {section.title for section in short.sections}
    folded = [replace(s, folded=True) for s in full.sections if s.title not in titles]
    return replace(short, sections=(*short.sections, *folded))


def _title(plan: FederatedPlan) -> str:
    return f"{plan.purpose.upper()} MODEL {plan.name} ({plan.kind}); {WHERE}"


def _protection(plan: FederatedPlan, report: PrivacyReport | None) -> tuple[str, ...]:
    return (*protects(plan), *(() if report is None else report.summary))


# -- in short -------------------------------------------------------------------------------------


def _leaving(plan: FederatedPlan) -> Iterable[Section]:
    """What leaves each party in all, and all kinds of messages."""
    sums = totals(plan)
    rows = tuple(
        (
            item.party + (f", {item.clients} clients" if item.clients > 1 else ""),
            str(item.messages),
            formula(item.of_rows),
            formula(item.others),
        )
        for item in sums
    )
    if not rows:
        return
    headers = ("party", "messages", "bytes, of rows", "other bytes, but for names and types")
    sizes = (size for item in sums for size in (item.messages, item.of_rows, item.others))
    symbols = [symbol for size in sizes for symbol in size.symbols]
    symbols += [s for kind in kinds(plan, UP) for times in kind.times for s in times.symbols]
    yield Section(
        f"What leaves each party, to the coordinator{_place(plan)}, at most",
        (Table(headers, rows), Notes((_legend(symbols),))),
    )
    yield Section("All that leaves, by messages", (_messages(plan, UP),))
    yield Section("All that the coordinator sends", (_messages(plan, DOWN),))


def _messages(plan: FederatedPlan, direction: str) -> Table:
    found = kinds(plan, direction)
    everyone = {party for kind in found for party in kind.parties}
    rows = tuple(_kind(kind, everyone) for kind in found)
    end = "from" if direction == UP else "to"
    said = "; ".join(f"{kind}{f' ({what})' * bool(what)}" for kind, what, *_ in rows)
    sentences = () if direction == UP else (f"{said}.",)
    return Table(("message", "what is in it", end, "times each"), rows, sentences)


def _kind(kind: Kind, everyone: set[str]) -> tuple[str, ...]:
    parties = "all" if set(kind.parties) == everyone else ", ".join(kind.parties)
    return kind.kind, "; ".join(kind.what), parties, " or ".join(map(str, kind.times))


def _legend(symbols: Iterable[Symbol]) -> str:
    roles = {symbol.role for symbol in symbols}
    forms = [
        f"{form.partition('[')[0]}: {re.split(SIDE, meaning)[0]}"
        for role, (form, meaning) in ROLES.items()
        if role in roles
    ]
    return f"Of all databases of the party together; {'; '.join(forms)}."


SIDE = r": |; |, | \("
"""Behind this, the meaning of a symbol goes on with what details have."""


def _join(plan: FederatedPlan) -> Section:
    rows = tuple(
        (
            slot.name,
            ", ".join(str(client) for client in slot.clients),
            _estimate(slot),
            ", ".join(feature.name for feature in slot.features) or "none",
            plan.engines[slot.index].engine if slot.features else "none",
        )
        for slot in plan.ucq.slots
    )
    slots = Table(("slot", "clients", "rows, estimated", "features", "engine"), rows)
    names = [slot.name for slot in plan.ucq.slots]
    blocks = [
        ", ".join(
            [_equality(names, join) for join in block.joins]
            + [_left_join(names, left) for left in block.lefts]
        )
        for block in plan.ucq.blocks
    ]
    parts = dict.fromkeys(text for text in blocks if text)
    joined = (Notes(tuple(parts)),) if parts else ()
    return Section("The join", (slots, *joined))


def _method(plan: FederatedPlan) -> Section:
    """Without what details have: options that change nothing, and blocks by their number."""
    chosen = {
        name: value
        for name, value in _options(plan).items()
        if value not in USUAL and name not in BOUNDS
    }
    rows = tuple(_properties(plan, chosen))
    return Section("The model", (Table(("property", "value"), rows),) if rows else ())


def _place(plan: FederatedPlan) -> str:
    return "" if plan.at is None else f" at {plan.at}"


# -- in full --------------------------------------------------------------------------------------


def _model(plan: FederatedPlan) -> Section:
    rows = _properties(plan, _options(plan))
    started = plan.options.warm_start if isinstance(plan.options, TrainingOptions) else None
    for slot_index, block in plan.blocks.items():
        name = plan.ucq.slots[slot_index].name
        does = "starts from" if plan.algorithm else "is scored by"
        model = started or "the model"
        rows.append(("block", f"slot {name} {does} block {block} of {model}"))
    return Section("Model", (Table(("property", "value"), tuple(rows)),) if rows else ())


def _properties(plan: FederatedPlan, options: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    for slot in plan.ucq.slots:
        if slot.target:
            held = ", ".join(str(client) for client in slot.clients)
            type_ = f" {plan.ucq.target_type}" if plan.ucq.target_type else ""
            rows.append(("target", f"{plan.ucq.target}{type_}, slot {slot.name}, at {held}"))
    if plan.at is not None:
        clients = ", ".join(str(client) for client in plan.clients if not plan.crosses(client))
        stays = f": what it exchanges with {clients} stays there" if clients else ""
        rows.append(("coordinator", f"at {plan.at}{stays or ', which has no table here'}"))
    if plan.algorithm:
        rows.append(("algorithm", plan.algorithm))
    chosen = [f"{name} = {shown(value)}" for name, value in options.items() if value is not None]
    if chosen:
        rows.append(("options", ", ".join(chosen)))
    if plan.privacy is not None:
        rows.append(("privacy", _asked(plan.privacy)))
    if plan.tower is not None:
        rows += _towers(plan, plan.tower)
    training = plan.options if isinstance(plan.options, TrainingOptions) else None
    if training is not None and training.network is not None:
        rows.append(("comm_seconds", _network(training.network)))
    for identifier in plan.ucq.identifiers:
        rows.append(("identifier", identifier.name))
    if plan.into is not None:
        held = ", ".join(str(client) for client in plan.into.clients)
        rows.append(("into", f"{plan.into.path}, at {held}: {', '.join(plan.into.columns)}"))
    return rows


def _asked(privacy: Privacy) -> str:
    """The clause as it is understood, defaults included."""
    names = ["label_epsilon", "label_mechanism", "label_bounds", "label_classes"]
    found = names if privacy.labels else []
    if privacy.features:
        found = [*found, "epsilon", "noise_multiplier", "delta", "clip", "predictions"]
        if privacy.predictions == "gaussian":
            found += ["prediction_clip", "prediction_share"]
        found += ["statistics"] + ["statistics_share"] * (privacy.statistics == "noised")
        found += ["feature_bounds", "max_fan_out"]
    values = {name: getattr(privacy, name) for name in found}
    values["feature_bounds"] = dict(privacy.feature_bounds) or None
    return ", ".join(f"{n} = {shown(v)}" for n, v in values.items() if v is not None)


def _options(plan: FederatedPlan) -> dict[str, object]:
    """Those that matter, but the algorithm."""
    if not isinstance(plan.options, TrainingOptions):
        return {"engine": plan.options.engine, "memory_limit": plan.options.memory_limit}
    return {name: value for name, value in plan.options.listed().items() if name != "algorithm"}


def _towers(plan: FederatedPlan, tower: TowerOptions) -> list[tuple[str, str]]:
    widths = " → ".join(str(width) for width in tower.hidden)
    outputs = "d_c" if tower.outputs is None else str(tower.outputs)
    shape = f"d columns → {widths} ({tower.activation}) → {outputs} outputs"
    found = [("tower", f"of each slot with features: {shape}")]
    if tower.outputs is not None:
        shape = f"{tower.outputs} sums of outputs → d_c scores"
        found.append(("head", f"at the coordinator, linear: {shape}"))
    method = plan.options.method if isinstance(plan.options, TrainingOptions) else None
    if isinstance(method, SgdOptions) and isinstance(method.batch_size, Usual):
        usual = f"from {LEAST} to {MOST}"
        found.append(("batch_size", f"a twentieth of the joined rows, but {usual}"))
    if plan.algorithm:
        cuda = "CUDA in float32 at clients that have it, else the CPU in float64"
        device = {"auto": cuda, "cuda": "CUDA in float32", "cpu": "the CPU, in float64"}
        found.append(("device", f"{tower.device}: {device[tower.device]}"))
    return found


def _network(line: Network) -> str:
    """The formula of comm_seconds, in words."""
    return (
        f"of an exchange that crosses a border: {line.latency:g} s + 8 · bytes / "
        f"{_speed(line.bandwidth)}, "
        "bytes being those of the values that the busiest client gets and sends (each has a line "
        "of its own); summed over the run's exchanges so far"
    )


def _speed(bandwidth: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bandwidth >= size / 10:
            return f"{bandwidth / size:g} {unit}"
    return f"{bandwidth:g} bit/s"


def _slots(plan: FederatedPlan) -> Section:
    rows = []
    for slot in plan.ucq.slots:
        choice = plan.engines[slot.index]
        rows.append(
            (
                f"{slot.index} {slot.name}",
                ", ".join(str(client) for client in slot.clients),
                _estimate(slot),
                ", ".join(_feature(feature) for feature in slot.features) or "none",
                f"{choice.engine}: {choice.reason}" if slot.features else "none",
            )
        )
    headers = ("slot", "clients", "rows, estimated", "features", "engine")
    return Section("Slots", (Table(headers, tuple(rows)),))


def _joins(plan: FederatedPlan) -> Section:
    ucq = plan.ucq
    names = [slot.name for slot in ucq.slots]
    blocks = []
    for number, block in enumerate(ucq.blocks):
        members = [_member(ucq.slots[slot], fragments) for slot, fragments in block.members]
        joins = [_equality(names, j) for j in block.joins]
        joins += [_left_join(names, left) for left in block.lefts]
        blocks.append((str(number), ", ".join(members), ", ".join(joins) or "none"))
    parts = [Table(("block", "slots", "joins"), tuple(blocks))]
    keys = [
        (
            str(key.index),
            ", ".join(key.types),
            ", ".join(slot.name for slot in ucq.slots if key.index in slot.keys),
            "16-byte keyed hash of the value"
            + (f", its {len(key.types)} parts together" if len(key.types) > 1 else ""),
        )
        for key in ucq.keys
    ]
    if keys:
        parts.append(Table(("key", "types", "slots", "sent as"), tuple(keys)))
    added = [(names[slot], *_without_partner(plan, slot)) for slot in _optional(plan)]
    if added:
        headers = ("slot", "joined rows without partner get", "WHERE then drops")
        parts.append(Table(headers, tuple(added)))
    return Section("Joins", tuple(parts))


def _equality(names: list[str], join: Join) -> str:
    virtual = ", also where it has no partner" if join.virtual else ""
    return f"{names[join.left]} = {names[join.right]} on key {join.key}{virtual}"


def _left_join(names: list[str], left: LeftJoin) -> str:
    inside = [names[slot] for slot in left.slots]
    inside += [_equality(names, join) for join in left.joins]
    inside += [_left_join(names, inner) for inner in left.lefts]
    what = inside[0] if len(inside) == 1 else f"({', '.join(inside)})"
    return f"LEFT JOIN {what}: {', '.join(_equality(names, join) for join in left.on) or 'all'}"


def _optional(plan: FederatedPlan) -> list[int]:
    return sorted({slot for block in plan.ucq.blocks for slot in block.optional})


def _without_partner(plan: FederatedPlan, index: int) -> tuple[str, str]:
    """What joined rows get of a slot without a row for them, and which are dropped."""
    slot = plan.ucq.slots[index]
    virtual = [f for f in slot.fragments if f.virtual]
    places = " and ".join(f"fragment {f.index} at {f.client}" for f in virtual)
    links = [str(f.index) for f in slot.fragments if f.links]
    dropped = "none"
    if links:
        dropped = f"rows of fragment{'s' * (len(links) > 1)} {', '.join(links)}"
        dropped += "; those without partner, if that row is not there"
    return f"the row of {places}", dropped


def _fragments(plan: FederatedPlan) -> Section:
    parts = []
    for client in plan.clients:
        for specification in plan.specifications[client]:
            slot = plan.ucq.slots[specification.slot]
            for index in specification.fragments:
                fragment = slot.fragments[index]
                caption = f"{client}, slot {slot.name}, fragment {index}"
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
    return Section("Operators", (Table(headers, rows),))


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
    return Section("Exchanges, in order", (Table(headers, table),))


def _border(plan: FederatedPlan, direction: str, title: str) -> Section:
    rows = [_carried(plan, item, "") for item in plan.disclosures if item.direction == direction]
    table = Table(("from" if direction == UP else "to", *CARRIED), tuple(rows))
    return Section(title, (table,))


CARRIED = ("slot", "message", "what", "values", "bytes", "times")


def _carried(plan: FederatedPlan, item: Disclosure, word: str) -> tuple[str, ...]:
    """A row of a table of messages: the client's end, after `word`, and `CARRIED`."""
    slot = "" if item.slot == WHOLE else plan.ucq.slots[item.slot].name
    client = item.sender if item.direction == UP else item.receiver
    sizes = (_formula(item.values), _formula(item.bytes), _formula(item.times))
    return (f"{word}{client}", slot, item.kind, item.what, *sizes)


def _staying(plan: FederatedPlan, at: str) -> Section:
    """What no border is between: the coordinator's own party's messages."""
    rows = [
        _carried(plan, item, "from " if item.direction == UP else "to ") for item in plan.staying
    ]
    title = f"What stays at {at}, where the coordinator is"
    if not rows:
        return Section(title, (Notes((f"Nothing: no table of {at} takes part.",)),))
    return Section(title, (Table(("client", *CARRIED), tuple(rows)),))


def _formula(size: Size) -> str:
    return str(size).replace(" + ", f"{JOINED}+ ").replace(" - ", f"{JOINED}-{JOINED}")


def _symbols(plan: FederatedPlan) -> Section:
    used = {symbol.role for symbol in plan.symbols}
    rows = []
    for role, (form, meaning) in ROLES.items():
        if role in used:
            known = _known(plan) if role == "outputs" else ""
            rows.append((form, meaning + known))
    note = "Sizes are of values: 8 bytes a number, text as UTF-8; framing comes on top."
    return Section("Symbols", (Table(("symbol", "meaning"), tuple(rows)), Notes((note,))))


def _known(plan: FederatedPlan) -> str:
    several = kind_of(plan.kind).target == ANY_CLASSES
    return "; the number of classes" if several else "; 1 here"


def _estimate(slot: Slot) -> str:
    found = []
    for client in slot.clients:
        rows = [f.rows for f in slot.fragments if f.client == client and not f.virtual]
        known = [r for r in rows if r is not None]
        found.append(f"{sum(known):,}" if len(known) == len(rows) else "unknown")
    return " + ".join(found)


def _member(slot: Slot, fragments: tuple[int, ...]) -> str:
    if fragments == tuple(f.index for f in slot.fragments if not f.virtual):
        several = len(fragments) > 1
        return f"{slot.name} (fragments {', '.join(map(str, fragments))})" if several else slot.name
    return f"{slot.name} (fragments {', '.join(str(index) for index in fragments)})"


def _feature(feature: Feature) -> str:
    kind = f"{feature.kind}[{feature.width}]" if feature.kind == ARRAY else feature.kind
    return f"{feature.name} {kind}"
