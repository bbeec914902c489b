"""EXPLAIN: what a plan does and what leaves the parties, as a summary and in detail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from sqlfl.base.sanitize import line
from sqlfl.contract.request import Verdict
from sqlfl.contract.schema import Client
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TowerOptions, TrainingOptions
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import MAX_ROWS, MIN_ROWS, Usual, shown
from sqlfl.planner.explain.brief import HERE, NO_LINKS, brief
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.planner.explain.facts import caveats, client_words, join_words, protects
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
    to_html,
    to_text,
)
from sqlfl.planner.explain.sections import (
    NO_OWNERS,
    KindTotal,
    RehearsalReport,
    Total,
    Verdicts,
    formula,
    joins,
    kinds,
    owners,
    rehearsed,
    slots,
    totals,
    transforms,
)
from sqlfl.planner.federated.exchanges import DOWN, UP, WHOLE, Disclosure
from sqlfl.planner.federated.method_spec import Words, has_head, spec_of
from sqlfl.planner.federated.plan import CHECK, JOIN, FederatedPlan, evaluated
from sqlfl.planner.federated.sizes import ROLES, Size, Symbol
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import PublicBounds
from sqlfl.transport.network import Network

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
    privacy = () if report is None else report.sections[not plan.protection :]
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
        Section(
            "What protects it", (Notes(protects(plan, here=not links or HERE in links.values())),)
        ),
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


# The sections of EXPLAIN on the model: target, method, options.


def model(plan: FederatedPlan) -> Section:
    """Return the model's properties with all options."""
    rows = _properties(plan, _options(plan))
    started = plan.options.warm_start if isinstance(plan.options, TrainingOptions) else None
    for slot_index, block in plan.blocks.items():
        name = plan.ucq.slots[slot_index].name
        does = "starts from" if plan.algorithm else "is scored by"
        model = started or "the model"
        rows.append(("block", f"slot {name} {does} block {block} of {model}"))
    return Section("Model", (TextTable(("property", "value"), tuple(rows)),) if rows else ())


def _properties(plan: FederatedPlan, options: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    for slot in plan.ucq.slots:
        if slot.target:
            held = several([str(client) for client in slot.clients])
            type_ = f" {plan.ucq.target_type}" if plan.ucq.target_type else ""
            rows.append(("target", f"{plan.ucq.target}{type_}, slot {slot.name}, at {held}"))
    if plan.at is not None:
        rows.append(("coordinator", f"at {plan.at}"))
    if plan.algorithm:
        rows.append(("algorithm", plan.algorithm))
    if plan.tuning is not None:
        rows += _tuning(plan.tuning)
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


def _tuning(tuning: Tuning) -> list[tuple[str, str]]:
    number = 1 if tuning.splits == 1 else tuning.splits
    fits = f"{len(tuning.candidates)} · {number} + 1 for the best one, on all rows"
    return [
        ("compared", tuning.words),
        ("fits", f"{tuning.fits} = {fits}; sizes are averages over them, and times sums"),
    ]


def _asked(privacy: Privacy) -> str:
    """Return the resolved PRIVACY clause, defaults included."""
    names = ["label_epsilon", "label_mechanism", "label_bounds", "label_classes"]
    shown_names = names if privacy.labels else []
    if privacy.features:
        shown_names = [*shown_names, "epsilon", "noise_multiplier", "delta", "clip", "predictions"]
        if privacy.solved:
            shown_names += ["feature_bound"]
        if privacy.predictions == "gaussian":
            shown_names += ["prediction_clip", "prediction_share"]
        if privacy.chosen:
            shown_names += ["mechanism", "feature_bound", "label_bound", "prediction_share"]
        if privacy.drawn:
            shown_names += ["bins", "theta", "honest_parties"]
            given = privacy.epsilon is None or (privacy.bins and privacy.theta)
            shown_names += [] if given else ["prediction_share"]
        shown_names += ["statistics"] + ["statistics_share"] * (privacy.statistics == "noised")
        shown_names += ["feature_bounds", "max_fan_out"]
    values = {name: getattr(privacy, name) for name in shown_names}
    values["feature_bounds"] = dict(privacy.feature_bounds) or None
    return ", ".join(f"{n} = {shown(v)}" for n, v in values.items() if v is not None)


def _options(plan: FederatedPlan) -> dict[str, object]:
    """Return the options that matter, except the algorithm; for tuned options, the values of all
    candidates.
    """
    if not isinstance(plan.options, TrainingOptions):
        return {"engine": plan.options.engine, "memory_limit": plan.options.memory_limit}
    values = {name: value for name, value in plan.options.listed().items() if name != "algorithm"}
    if not any(slot.shrunken for slot in plan.ucq.slots):
        values.pop("unit", None)
    tuning = plan.tuning
    if tuning is None:
        return values
    for name in tuning.tuned:
        candidates = [candidate.values[name] for candidate in tuning.candidates]
        values[name] = [v for n, v in enumerate(candidates) if v not in candidates[:n]]
    return values


def _towers(plan: FederatedPlan, tower: TowerOptions) -> list[tuple[str, str]]:
    widths = " → ".join(str(width) for width in tower.hidden)
    outputs = "d_c" if tower.outputs is None else str(tower.outputs)
    bounded = bool(plan.algorithm) and spec_of(plan.algorithm).drawn
    shape = f"d columns → {widths} ({tower.activation}) → {outputs} outputs"
    shape += " in [-1, 1] (tanh)" if bounded else ""
    rows = [("tower", f"of each slot with features: {shape}")]
    if tower.outputs is not None:
        shape = f"{tower.outputs} sums of outputs → d_c scores"
        rows.append(("head", f"at the coordinator, linear: {shape}"))
    method = plan.options.method if isinstance(plan.options, TrainingOptions) else None
    if method is not None and any(isinstance(value, Usual) for value in vars(method).values()):
        usual = f"from {MIN_ROWS} to {MAX_ROWS}"
        rows.append(("batch_size", f"a twentieth of the joined rows, but {usual}"))
    if plan.algorithm:
        cuda = "CUDA in float32 at clients that have it; else, and if small, the CPU in float64"
        device = {"auto": cuda, "cuda": "CUDA in float32", "cpu": "the CPU, in float64"}
        rows.append(("device", f"{tower.device}: {device[tower.device]}"))
    return rows


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


# Sentences of EXPLAIN about the operators' work in each round.

ONCE = "once"


@dataclass(frozen=True)
class PlanOperator:
    """One operator of the plan: its work, its place and its round."""

    when: str
    """'once', or the round: 'iteration', 'epoch', 'step'."""
    slot: str
    """The slot's name; 'all' for the join."""
    name: str
    """'client', 'LoU' or 'LoJ'."""
    where: str
    computes: str


def operators(plan: FederatedPlan) -> tuple[PlanOperator, ...]:
    """Return the operators in the order in which they run."""
    plan_operators = [_snapshot(plan, slot) for slot in plan.ucq.slots]
    plan_operators.append(
        PlanOperator(
            ONCE, "all", "LoJ", "coordinator",
            "table mapping p_i by the mapping query; active rows and their cnt" + _dropped(plan),
        )
    )  # fmt: skip
    if plan.purpose != "train":
        h = "h = X θ of the saved block" if plan.tower is None else "h of the saved tower"
        h = client_words(plan) or h
        plan_operators += [
            PlanOperator(ONCE, s.name, "client", _where(plan, s), h)
            for s in plan.ucq.slots
            if s.features
        ]
        outcome = "the model's metrics" if plan.purpose == "evaluate" else "a prediction a row"
        if plan.look is not None:
            outcome = plan.look.words
        scores = "E = Σ A_i h_i; H = E W0 + b" if has_head(plan.tower) else "H = b + Σ A_i h_i"
        gathered = f"gather {join_words(plan) or scores}; {outcome}"
        plan_operators.append(PlanOperator(ONCE, "all", "LoJ", "coordinator", gathered))
        if plan.into is not None:
            where = ", ".join(str(client) for client in plan.into.clients)
            names = ", ".join(plan.ucq.slots[slot].name for slot in plan.into.slots)
            words = f"identifiers joined with predictions; the table {plan.into.path}"
            plan_operators.append(PlanOperator(ONCE, names, "client", where, words))
        return tuple(plan_operators)
    towers = [slot for slot in plan.ucq.slots if slot.features]
    kinds = {(s.kind, s.slot) for e in plan.exchanges for s in e.sends}
    plan_operators += [_encoding(plan, s) for s in towers if ("set_encoding", s.index) in kinds]
    each = spec_of(plan.algorithm).words(plan.training, plan.protection)
    plan_operators.append(PlanOperator(each.every, "all", "LoJ", "coordinator", each.join))
    for slot in towers:
        plan_operators += _round(plan, slot, each)
    return tuple(plan_operators)


def _snapshot(plan: FederatedPlan, slot: Slot) -> PlanOperator:
    numbered = any(item.seed is not None for c in slot.clients for item in plan.specifications[c])
    ids = "row ids by the seed and a digest of the snapshot" if numbered else "random row ids"
    parts = ["snapshot of the fragments", ids]
    if slot.keys:
        parts.append("keyed hashes of the join keys")
    if slot.features and plan.purpose == "train":
        parts.append(_encoded(plan, slot))
    if slot.noised:
        parts.append("noise of the labels")
    where = ", ".join(str(client) for client in slot.clients)
    return PlanOperator(ONCE, slot.name, "client", where, "; ".join(parts))


def _encoded(plan: FederatedPlan, slot: Slot) -> str:
    if isinstance(plan.protection.statistics, PublicBounds):
        return plan.protection.statistics.words
    statistics = plan.protection.statistics.words if plan.protection.statistics else "statistics"
    return statistics if len(slot.clients) > 1 else f"{statistics} and encoding"


def _encoding(plan: FederatedPlan, slot: Slot) -> PlanOperator:
    merged = "merge of the clients' statistics and hashed categories"
    if any(s.kind == "gram" and s.slot == slot.index for e in plan.exchanges for s in e.sends):
        merged += "; sum of their second moments Σ cnt x xᵀ"
    return PlanOperator(ONCE, slot.name, "LoU", "coordinator", merged)


def _round(plan: FederatedPlan, slot: Slot, words: Words) -> list[PlanOperator]:
    does, union = words.client, words.union
    kinds = {s.kind for e in plan.exchanges for s in e.sends if s.slot == slot.index}
    if words.averaging is not None and "consensus_part" in kinds:
        does, union = words.averaging
    client = PlanOperator(
        words.every, slot.name, "client", _where(plan, slot), _guarded(plan, does)
    )
    if len(slot.clients) == 1:
        return [client]
    return [client, PlanOperator(words.every, slot.name, "LoU", "coordinator", union)]


def _guarded(plan: FederatedPlan, words: str) -> str:
    """Return a client's work in a round, with its privacy steps."""
    noises = (plan.protection.features, plan.protection.predictions)
    return "; ".join(dict.fromkeys([words, *(noise.words for noise in noises if noise)]))


def _dropped(plan: FederatedPlan) -> str:
    most = None if plan.privacy is None else plan.privacy.max_fan_out
    return "" if most is None else f"; joined rows beyond {most} of a table row dropped at random"


def _where(plan: FederatedPlan, slot: Slot) -> str:
    engine = plan.engines[slot.index].engine
    return f"{', '.join(str(client) for client in slot.clients)} ({engine})"


# The plan that `explain` returns, which prints itself.


@dataclass(frozen=True)
class ExplainedPlan(FederatedPlan):
    """A plan and its expected privacy; `str` is its EXPLAIN."""

    report: PrivacyReport | None = None
    """None without PRIVACY."""
    verdicts: Mapping[Client, tuple[Verdict, ...]] = field(default_factory=dict)
    """Client -> verdicts of its owner's training policies: what they refuse, or review first."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Party -> how the coordinator reaches it, 'in this process' or 'over TLS'; empty if that is
    not known."""

    @property
    def details(self) -> Document:
        """EXPLAIN (VERBOSE): every message of each client with its size, and all SQL."""
        return details(self, self.report, self.verdicts, self.links)

    def rehearsed(self, account: RehearsalReport, *, verbose: bool = False) -> Document:
        """EXPLAIN ANALYZE: how its rehearsal went, before the plan."""
        make = details if verbose else summary
        document = make(self, self.report, self.verdicts, self.links)
        return replace(document, sections=(rehearsed(self, account), *document.sections))

    def __str__(self) -> str:
        return to_text(summary(self, self.report, self.verdicts, self.links))

    def __repr__(self) -> str:
        return line(f"<sqlfl plan: {self.purpose} {self.kind} {self.name}; print it for EXPLAIN>")

    def _repr_html_(self) -> str:
        return to_html(page(self, self.report, self.verdicts, self.links))


def explained(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Mapping[Client, tuple[Verdict, ...]] | None = None,
    links: Mapping[str, str] | None = None,
) -> ExplainedPlan:
    """Return the plan with what its EXPLAIN says beside it; arguments as the fields."""
    values = {item.name: getattr(plan, item.name) for item in fields(FederatedPlan)}
    return ExplainedPlan(**values, report=report, verdicts=verdicts or {}, links=links or {})
