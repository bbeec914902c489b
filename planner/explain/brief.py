"""EXPLAIN in short, for people: what is done, who takes part, what leaves and what protects it.

Names of messages and formulas of sizes are in EXPLAIN (VERBOSE). Estimates of rounds and bytes are
these formulas with numbers from the catalog where it has them, and usual numbers elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from sqlglot import exp

from sqlfl.contract import fragment_columns
from sqlfl.contract.schema import Client, SlotSpecification
from sqlfl.messages import SumGradient
from sqlfl.messages.disclosed import (
    MASKED,
    Disclosed,
    NamesByUse,
    SlotNoise,
    guess,
    listed,
    row_by_row,
)
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.training import TrainingOptions
from sqlfl.options.types import Batch
from sqlfl.planner.explain.card import TRUSTED, PrivacyReport
from sqlfl.planner.explain.facts import (
    LASTING,
    NOTHING,
    ROWS_JOINED,
    combined,
    hashed_keys,
    in_process,
    nothing_leaves,
    placed,
    residuals,
    stragglers,
)
from sqlfl.planner.explain.render import JOINED, MANY, Notes, Section, several
from sqlfl.planner.explain.sections import NAMES, Verdicts, lasting, sent_keys, sentences
from sqlfl.planner.explain.setting import ReportSetting, tables_of
from sqlfl.planner.federated.exchanges import DOWN, UP, at_most
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import CHECK, EVALUATE, JOIN, PREDICT, FederatedPlan
from sqlfl.planner.federated.sizes import Size, Symbol
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query import lineage
from sqlfl.planner.query.ucq import CATEGORY, Join, LeftJoin, Slot, as_written

# -- estimates -------------------------------------------------------------------------------------

CATEGORIES = 20
"""Usual categories of a feature."""
CLASSES = 3
"""Usual classes of a target whose classes the statement does not list."""
MERGED = 20
"""Rows with equal features, usually at most, where these are trained as one."""
TEXT_BYTES = 10
"""Usual bytes of a class, an identifier or a category."""


@dataclass(frozen=True)
class Estimates:
    """Estimated rounds of a plan, and bytes that leave each party."""

    rounds: tuple[int, int]
    """Least and greatest usual number of rounds in which numbers are sent for each row."""
    most_rounds: int | None
    """Maximum number of rounds; None if the options set none."""
    bytes: Mapping[str, tuple[int, int]]
    """Party -> bytes that leave it, at least and at most; without parties whose number of rows is
    unknown."""


def estimated(plan: FederatedPlan) -> Estimates:
    """Return the estimates of a plan."""
    few, many = usual_epochs(plan)
    low, high = _Guess(plan, few, most=False), _Guess(plan, many)
    most = _Guess(plan, _most_epochs(plan))
    sizes = zip(_sent(plan, low).items(), _sent(plan, high).values(), strict=True)
    return Estimates(
        (_rounds(plan, low), _rounds(plan, high)),
        _rounds(plan, most) if many < _most_epochs(plan) else None,
        {party: (small, large) for (party, small), large in sizes if small and large},
    )


def _sent(plan: FederatedPlan, guess: _Guess) -> dict[str, int]:
    """Return party -> bytes that leave it; 0 if its number of rows is unknown."""
    sizes: dict[str, list[int | None]] = {}
    for item in plan.exchanges:
        for send in item.sends:
            if send.direction == UP and send.kind not in NAMES and plan.crosses(send.client):
                size = guess.value(item.times * send.bytes)
                sizes.setdefault(send.client.party, []).append(size)
    return {
        party: 0 if None in parts else sum(size for size in parts if size is not None)
        for party, parts in sizes.items()
    }


def rows_of(slot: Slot, client: Client | None = None) -> int | None:
    """Return the estimated rows of a slot's tables, of all clients or of one; None if unknown."""
    fragments = [
        f for f in (slot.fragments if client is None else slot.of(client)) if not f.virtual
    ]
    known = [f.rows for f in fragments if not f.links]
    return sum(n for n in known if n is not None) if None not in known else None


def usual_epochs(plan: FederatedPlan) -> tuple[int, int]:
    """Return the usual numbers of epochs of a training; (1, 1) if nothing is trained."""
    if not plan.algorithm:
        return 1, 1
    most = _most_epochs(plan)
    usual = spec_of(plan.algorithm).usual_epochs
    few, many = (most, most) if usual is None else usual
    return min(few, most), min(many, most)


def _most_epochs(plan: FederatedPlan) -> int:
    if plan.tuning is not None:
        return max(candidate.options.epochs for candidate in plan.tuning.candidates)
    return plan.epochs or 1


def _rounds(plan: FederatedPlan, guess: _Guess) -> int:
    """Return the rounds in which numbers are sent for each row, at the busiest client and slot."""
    times: dict[tuple[Client, int], int] = {}
    kinds = (row_by_row(plan.algorithm) | MASKED) - {SumGradient.kind}  # a part of its round
    for item in plan.exchanges:
        for send in item.sends:
            if send.direction == DOWN and send.kind in kinds:
                number = guess.value(item.times) or 0
                place = send.client, send.slot
                times[place] = times.get(place, 0) + number
    return max(times.values(), default=0)


class _Guess:
    """Values of symbols for a number of epochs. `most`: whether all rows differ, and all their
    keys.
    """

    def __init__(self, plan: FederatedPlan, epochs: int, *, most: bool = True) -> None:
        self._plan, self._most = plan, most
        known = [rows_of(slot) for slot in plan.ucq.slots]
        self._joined = max((rows for rows in known if rows is not None), default=None)
        fits = 1 if plan.tuning is None else plan.tuning.fits
        several = kind_of(plan.kind).target == ANY_CLASSES
        classes = CLASSES if several else 2
        if plan.privacy is not None and plan.privacy.label_classes:
            classes = len(plan.privacy.label_classes)
        batch = self._batch()
        batches = 1 if batch is None or not self._joined else math.ceil(self._joined / batch)
        steps = epochs * batches * fits
        once: Mapping[str, int] = {
            "outputs": classes if several else 1,
            "classes": classes,
            "class_text": TEXT_BYTES * classes,
            "rounds": epochs * fits,
            "steps": steps,
            "sums": steps,
            "settled": fits,
            "proofs": fits,
            "mergers": fits,
            "exact": 0,
            "renewals": 0,
            "updates": 5 * fits,
            "checkpoints": epochs // (self._checkpoint() or epochs + 1),
            "probes": 5,
            "run": 16,
            "configuration": 1_000,
            "names": 1_000,
            "described": 1,
            "selects": 1,
            "select_text": 200,
            "column_text": 100,
            "column_names": 5,
            "request_text": 2_000,
            "schema_text": 1_000,
            **dict.fromkeys(
                ("vocabulary", "merged_vocabulary", "frequent", "merged_frequent"), CATEGORIES
            ),
        }
        batched = ("batch", "first_batch", "first_listed", "stepped", "listed")
        rows = ("rows", "active", "told")
        self._roles: dict[str, Callable[[Symbol], int | None]] = {
            **{role: (lambda s, n=number: n) for role, number in once.items()},  # type: ignore[misc]
            **dict.fromkeys(rows, self._rows),
            **dict.fromkeys(batched, lambda s: self._within(s, batch)),
            "trained": self._trained,
            "tags": self._tags,
            "new_column": lambda s: self._new_column(s, epochs),
            "joined": lambda s: self._joined,
            "written": lambda s: self._joined,
            "identifiers": self._identifiers,
            "columns": lambda s: self._numeric(s) + self._onehot(s),
            "block_columns": lambda s: self._numeric(s) + self._onehot(s),
            "numeric": self._numeric,
            "onehot": self._onehot,
            **dict.fromkeys(("pairs", "stored", "crossed", "merged_stored"), self._pairs),
            **dict.fromkeys(
                ("chosen", "chosen_in_all"),
                lambda s: min(epochs, self._numeric(s) + self._onehot(s)),
            ),
            "packed": lambda s: self._packed(batch),
        }

    def value(self, size: Size) -> int | None:
        """Return the value of a size; None if it depends on an unknown number of rows."""
        bindings: dict[str, int] = {}
        for symbol in size.symbols:
            known = self._roles.get(symbol.role)
            number = None if known is None else known(symbol)
            if number is None:
                return None
            bindings[symbol.name] = number
        return max(0, size.evaluate(bindings))

    def _slot(self, symbol: Symbol) -> Slot:
        return self._plan.ucq.slots[symbol.slot or 0]

    def _rows(self, symbol: Symbol) -> int | None:
        return rows_of(self._slot(symbol), symbol.client)

    def _trained(self, symbol: Symbol) -> int | None:
        """Return the rows that differ in a feature: of merged rows, one in MERGED at least."""
        rows = self._rows(symbol)
        merged = not self._most and self._plan.merges
        return -(-rows // MERGED) if rows is not None and merged else rows

    def _tags(self, symbol: Symbol) -> int | None:
        """Return the distinct values of a key: at least those of the smallest of its tables."""
        rows = self._rows(symbol)
        if self._most or rows is None:
            return rows
        others = (rows_of(slot) for slot in self._plan.ucq.slots if symbol.part in slot.keys)
        return min([rows, *(number for number in others if number is not None)])

    def _new_column(self, symbol: Symbol, epochs: int) -> int | None:
        """Return the numbers of a new column, on average: each column is sent once."""
        rows, columns = self._rows(symbol), self._numeric(symbol) + self._onehot(symbol)
        return None if rows is None else rows * min(columns, epochs) // epochs

    def _within(self, symbol: Symbol, batch: int | None) -> int | None:
        rows = self._rows(symbol)
        return rows if rows is None or batch is None else min(rows, batch)

    def _identifiers(self, symbol: Symbol) -> int | None:
        rows = self._rows(symbol)
        return None if rows is None else TEXT_BYTES * rows * len(self._slot(symbol).identifiers)

    def _numeric(self, symbol: Symbol) -> int:
        return sum(f.width for f in self._slot(symbol).features if f.kind != CATEGORY)

    def _onehot(self, symbol: Symbol) -> int:
        return CATEGORIES * sum(f.kind == CATEGORY for f in self._slot(symbol).features)

    def _pairs(self, symbol: Symbol) -> int:
        columns = self._onehot(symbol)
        return columns * (columns + 1) // 2

    def _packed(self, batch: int | None) -> int | None:
        """Return the bytes of a sum's masked numbers: 2 to 4 for each output of a tower and row."""
        tower, rows = self._plan.tower, self._joined
        if rows is None:
            return None
        outputs = 1 if tower is None or tower.outputs is None else tower.outputs
        return (4 if self._most else 2) * outputs * (rows if batch is None else min(rows, batch))

    def _batch(self) -> int | None:
        options = self._plan.options
        if not isinstance(options, TrainingOptions) or self._joined is None:
            return None
        batch: Batch | None = getattr(options.method, "batch_size", None)
        return None if batch is None else batch.of(self._joined)

    def _checkpoint(self) -> int | None:
        options = self._plan.options
        return options.checkpoint if isinstance(options, TrainingOptions) else None


# -- the summary -----------------------------------------------------------------------------------

HERE = "in this process"
"""Link of a party whose database this process has open."""
ELSEWHERE = "over a network"
"""Link of a party elsewhere that does not say how it is reached."""
NO_LINKS: Mapping[str, str] = MappingProxyType({})
EPSILON = f"ε{JOINED}={JOINED}"
MAX_NAMES = 8
"""Columns beyond which not all are named."""


def brief(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Verdicts,
    links: Mapping[str, str] = NO_LINKS,
) -> tuple[Section, ...]:
    """Return the sections of EXPLAIN in short.

    links : party -> how it is reached, HERE or 'over TLS'; empty if that is not known.
    """
    words = _Brief(plan)
    titled = (
        (
            "What is done",
            (
                words.purpose(),
                *words.tables(),
                *words.transforms(),
                *words.joins(),
                *words.unit(),
                *words.places(links),
            ),
        ),
        ("What the owners allow", tuple(sentences(plan, verdicts))),
        (f"What leaves, to the coordinator{words.at}", tuple(words.leaving())),
        ("What comes back", (*words.parties_get(), *words.users_get())),
        ("What protects it", tuple(words.protection(report))),
        ("Warnings", tuple(words.warnings())),
    )
    return tuple(
        Section(title, (Notes(tuple(text.replace("ε = ", EPSILON) for text in texts)),))
        for title, texts in titled
        if texts
    )


@dataclass(frozen=True, eq=False)
class _Brief:
    """Sentences about a plan."""

    plan: FederatedPlan

    @property
    def at(self) -> str:
        return "" if self.plan.at is None else f" at {self.plan.at}"

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of messages that cross a border."""
        return frozenset(disclosure.kind for disclosure in self.plan.disclosures)

    @cached_property
    def setting(self) -> ReportSetting:
        return ReportSetting(self.plan, None)

    # -- what is done -----------------------------------------------------------------------------

    def purpose(self) -> str:
        plan, kind = self.plan, self.plan.kind.replace("_", " ")
        target = f" of {plan.ucq.target}" if plan.ucq.target else ""
        if plan.purpose == JOIN:
            return f"It makes a join that lasts, {plan.name}."
        if plan.tuning is not None:
            return f"It compares models ({kind}{target}): {plan.tuning.words}."
        if plan.algorithm:
            return f"It trains a model ({kind}{target}, by the algorithm {plan.algorithm})."
        if plan.purpose == CHECK:
            return f"It checks the tables{f' and the target{target[3:]}' if target else ''}."
        if plan.look is not None:
            return f"It looks into the model ({kind}): {plan.look.words}."
        if plan.purpose == EVALUATE:
            return f"It measures the model ({kind}{target})."
        if plan.into is not None:
            return f"It predicts by the model ({kind}) and writes {plan.into.path}."
        return f"It predicts by the model ({kind})."

    def tables(self) -> Iterator[str]:
        """Yield the tables of each slot, their rows, and what they give."""
        for slot in self.plan.ucq.slots:
            names = tables_of(slot)
            same = len(names) == 1 and names[0].split(".")[-1] == slot.name
            table = several(names) if same else f"{slot.name} is {several(names)}"
            gives = [
                *(["the label"] if slot.target else []),
                *(["the weight"] if slot.weight else []),
                *(["the offset"] if slot.offset else []),
                *_features(slot),
            ]
            role = f"with {listed(gives)}" if gives else "for the join alone"
            yield f"{table} ({self._rows(slot)}), {role}."

    def transforms(self) -> Iterator[str]:
        """Yield the features that TRANSFORM makes."""
        made = [feature.transform for slot in self.plan.ucq.slots for feature in slot.features]
        calls = dict.fromkeys(transform.call for transform in made if transform is not None)
        if calls:
            yield f"TRANSFORM makes {listed(_few(calls))}, each at the party of its columns."

    def _rows(self, slot: Slot) -> str:
        clients = len(slot.databases)
        places = f"{clients} databases, " if clients > 1 else ""
        rows = rows_of(slot)
        if rows is None:
            return f"{places}rows unknown"
        some = "up to " * bool(self._columns(slot, lineage.CONDITION))
        return f"{places}{some}{_number(rows, 'row')}"

    def joins(self) -> Iterator[str]:
        """Yield the joins, each once."""
        blocks = self.plan.ucq.blocks
        texts = dict.fromkeys(
            text for block in blocks for text in self._block(block.joins, block.lefts)
        )
        if len(texts) > MANY:
            yield f"These tables join in {len(texts)} ways, which EXPLAIN (VERBOSE) lists."
            return
        yield from texts

    def unit(self) -> Iterator[str]:
        """Yield which rows an expression makes one unit, and what follows units."""
        plan, unit = self.plan, self.plan.ucq.unit
        if unit is None:
            return
        parts = ["the strengths of curves"] * any(slot.shrunken for slot in plan.ucq.slots)
        parts += ["folds"] * (plan.tuning is not None)
        parts += ["rows for validation"] * plan.draws_units
        slot = next(slot.name for slot in plan.ucq.slots if slot.units)
        yield f"Rows of {slot} with the same {unit.unit} are one unit, for {listed(parts)}."

    def _block(self, joins: Iterable[Join], lefts: Iterable[LeftJoin]) -> Iterator[str]:
        for join in joins:
            yield f"{self._pair(join)}."
        for left in lefts:
            yield from self._block(left.joins, left.lefts)
            on = listed(self._pair(join) for join in left.on) or "All rows join"
            yield f"{on}; rows of the left without a partner stay (LEFT JOIN)."

    def _pair(self, join: Join) -> str:
        left, right = (self.plan.ucq.slots[index] for index in (join.left, join.right))
        parts = range(len(self.plan.ucq.keys[join.key].types))
        ends = [[_key(slot, join.key, part) for part in parts] for slot in (left, right)]
        if any(name is None for names in ends for name in names):
            return f"{left.name} joins {right.name} on {_number(len(parts), 'equal value')}"
        pairs = [
            one if one == other else f"{one} = {other}" for one, other in zip(*ends, strict=True)
        ]
        return f"{left.name} joins {right.name} on {listed(map(str, pairs))}"

    def _columns(self, slot: Slot, what: str) -> tuple[str, ...]:
        """Return the columns that a slot reads for a use, in small letters."""
        origins = [
            origin for use in self.setting.uses for origin in use.origins
            if use.slot == slot.index and use.what == what
        ]  # fmt: skip
        names = sorted({origin.column for origin in origins})
        return tuple("all columns" if name == lineage.ALL else name for name in names)

    # -- where it runs ----------------------------------------------------------------------------

    def places(self, links: Mapping[str, str]) -> Iterator[str]:
        """Yield how the parties are reached."""
        place = placed(self.plan)
        if place is not None:
            yield place.lead
        by_link: dict[str, list[str]] = {}
        for party in dict.fromkeys(client.party for client in self.plan.databases):
            if party in links:
                by_link.setdefault(links[party], []).append(party)
        for link, parties in by_link.items():
            names = several(parties) if len(parties) > MANY else listed(parties)
            if link == HERE:
                does = "run" if len(parties) > 1 else "runs"
                yield in_process(f"{names} {does}")
            else:
                its = "their" if len(parties) > 1 else "its"
                yield f"The coordinator reaches {names} {link}: it sees {its} messages alone."

    # -- what leaves ------------------------------------------------------------------------------

    def leaving(self) -> Iterator[str]:
        """Yield what leaves each party, what that tells, and about how much it is."""
        plan = self.plan
        if not plan.disclosures:
            yield nothing_leaves(str(plan.at))
            return
        for text in lasting(plan):
            yield f"{text[0].upper()}{text[1:]}."
        if plan.purpose == JOIN:
            return
        groups: dict[str, list[str]] = {}
        for party, disclosed in self._disclosed(lambda client: client.party).items():
            groups.setdefault(disclosed.leaves(), []).append(party)
        for leaves, parties in groups.items():
            yield f"{several(parties, 1)}: {leaves[0].lower()}{leaves[1:]}"
        yield from (f"{text}." for text in sent_keys(plan))
        for disclosed in self._disclosed(lambda client: "").values():
            yield disclosed.inferred()
        yield self._amount()

    def _disclosed(self, group: Callable[[Client], str]) -> dict[str, Disclosed]:
        """Return group of clients -> what leaves its clients."""
        plan, often = self.plan, self._often
        groups: dict[str, Disclosed] = {}
        names = {slot.index: self._names(slot) for slot in plan.ucq.slots}
        for client, items in plan.specifications.items():
            if not plan.crosses(client):
                continue
            at = self.plan.at is not None
            disclosed = groups.setdefault(group(client), Disclosed("a party's", at_party=at))
            for item in items:
                requests = often.get((client, item.slot), {})
                disclosed.add_slot(
                    item, requests, plan.algorithm, names[item.slot], self._noise(item)
                )
        return groups

    @cached_property
    def _often(self) -> dict[tuple[Client, int], dict[str, float]]:
        """Return (client, slot) -> kind of request -> the maximum number of them."""
        often: dict[tuple[Client, int], dict[str, float]] = {}
        for item in self.plan.exchanges:
            most = at_most(self.plan.run, item.times)
            if item.phase == "plan" or most == 0:
                continue
            for send in item.sends:
                if send.direction == DOWN:
                    counts = often.setdefault((send.client, send.slot), {})
                    number = float("inf") if most is None else most
                    counts[send.kind] = counts.get(send.kind, 0) + number
        return often

    def _names(self, slot: Slot) -> NamesByUse:
        ucq = self.plan.ucq
        return NamesByUse(
            keys=_few(self._columns(slot, lineage.KEY)),
            conditions=_few(self._columns(slot, lineage.CONDITION)),
            features=_few([feature.name for feature in slot.features]),
            label=() if ucq.target is None else (ucq.target,),
            weight=() if ucq.weight is None else (ucq.weight,),
            offset=() if ucq.offset is None else (ucq.offset,),
            identifiers=_few([ucq.identifiers[index].name for index in slot.identifiers]),
        )

    def _noise(self, item: SlotSpecification) -> SlotNoise:
        privacy, protection = self.plan.privacy, self.plan.protection
        label = self.setting.label_epsilon if item.target else None
        if privacy is None or not protection.predictions:
            return SlotNoise(label)
        if privacy.epsilon is None:
            known = "ε is known once the join is"
            words, bound = f" ({known})", f"features as far as the noise allows ({known})"
        else:
            amount = f"ε = {privacy.epsilon:g}"
            chance = guess(privacy.epsilon, privacy.delta)
            words = f" ({amount})"
            bound = f"from one run, which of two likely sets of features a row has, {chance}"
        if not protection.features:
            return SlotNoise(label, embeddings=" (with noise, beside exact gradients)")
        if not protection.statistics:
            bound = "features, as means and scales are exact"
        return SlotNoise(label, "", lambda rows: (words, bound), words)

    def _amount(self) -> str:
        """Return the estimated bytes and rounds."""
        estimates = estimated(self.plan)
        few, many = estimates.rounds
        rounds = ""
        if many > 1:
            rounds = f" in {few} to {_number(many, 'round')}"
            rounds = rounds if few < many else f" in {_number(many, 'round')}"
            most = estimates.most_rounds
            rounds += "" if most is None else f" ({most:,} at most)"
        parties = {client.party for client in self.plan.clients if self.plan.crosses(client)}
        if len(estimates.bytes) < len(parties):
            return f"How much leaves{rounds} depends on rows that no catalog counts."
        sizes = dict(estimates.bytes)
        if len(sizes) > MANY:
            low, high = (sum(size) for size in zip(*sizes.values(), strict=True))
            return f"About {_range(low, high)} leave {len(sizes)} parties{rounds}."
        (first, size), *rest = sizes.items()
        words = [f"{_range(*size)} leave {first}", *(f"{_range(*n)} {name}" for name, n in rest)]
        return f"About {listed(words)}{rounds}."

    # -- what comes back --------------------------------------------------------------------------

    def parties_get(self) -> Iterator[str]:
        plan = self.plan
        down = {d.kind for d in plan.disclosures if d.direction == DOWN}
        if not down:
            return
        if plan.purpose == JOIN:
            yield "Each party gets the name of the join, and its SQL."
            return
        more = ""
        if "residuals" in down or "exact_residuals" in down:
            more = residuals(plan)
        elif "send_explained" in down:
            more = "Each party gets the scaled target of its rows."
        yield f"{ROWS_JOINED} {more}".rstrip()
        if plan.into is not None:
            party = plan.into.clients[0].party
            yield f"{party} gets the predictions of its rows, beside its own identifiers."

    def users_get(self) -> Iterator[str]:
        plan = self.plan
        if plan.algorithm:
            weights = " WEIGHTS gives them coefficients." if plan.tower is None else ""
            yield f"Users of the model get its history, measures and predictions.{weights}"
        elif plan.purpose == CHECK or plan.look is not None:
            yield "Whoever runs the statement gets a report."
        elif plan.purpose == EVALUATE:
            yield "Whoever runs the statement gets the measures."
        elif plan.purpose == PREDICT and plan.into is None:
            names = listed(_few([item.name for item in plan.ucq.identifiers]))
            beside = f", beside {names}" if names else ""
            yield f"Whoever runs the statement gets a prediction for each joined row{beside}."

    # -- what protects it -------------------------------------------------------------------------

    def protection(self, report: PrivacyReport | None) -> Iterator[str]:
        if not self.plan.disclosures:
            return
        if self.plan.protection and report is not None:
            yield from report.summary
        else:
            yield NOTHING
        if "join_keys" in self.kinds:
            yield hashed_keys(self.plan).lead
        yield TRUSTED

    def warnings(self) -> Iterator[str]:
        plan = self.plan
        exact = "predictions" in self.kinds and not plan.protection.predictions
        for slot in plan.ucq.slots:
            (*features,) = slot.features
            alone = len(features) == 1 and features[0].kind != CATEGORY and features[0].width == 1
            if exact and plan.tower is None and alone and self.setting.leaves(slot):
                yield (
                    f"{slot.name} has one feature: the numbers that leave for each row are "
                    f"{features[0].name}, up to scale and shift."
                )
        if plan.join is not None and plan.purpose != JOIN:
            yield LASTING
        yield from (fact.lead for fact in (*combined(plan), *stragglers(plan)))
        yield from plan.notes


def _key(slot: Slot, key: int, part: int) -> str | None:
    """Return the column that a part of a slot's join key is, up to its type; None for others."""
    alias = fragment_columns.key_part(key, part)
    for fragment in slot.evaluated:
        for output in () if fragment.virtual else fragment.select.expressions:
            if output.alias_or_name == alias:
                columns = nodes(as_written(output, fragment.select), exp.Column)
                return columns[0].name if len(columns) == 1 else None
    return None


def _few(names: Iterable[str]) -> tuple[str, ...]:
    every = tuple(names)
    if len(every) <= MAX_NAMES:
        return every
    return (*every[: MAX_NAMES - 1], f"{len(every) - MAX_NAMES + 1} others")


def _features(slot: Slot) -> Iterator[str]:
    names = _few([feature.name for feature in slot.features])
    if names:
        yield f"the feature{'s' * (len(slot.features) > 1)} {', '.join(names)}"


def _number(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _range(low: int, high: int) -> str:
    """Return sizes in bytes with two digits, in one unit.

    >>> _range(12, 12), _range(3_249_000, 12_000_000), _range(45_000, 3_000_000)
    ('12 bytes', '3.2 to 12 MB', '0.045 to 3 MB')
    """
    unit, exponent = next(
        ((unit, exponent) for unit, exponent in UNITS if high >= 0.995 * 10**exponent), UNITS[-1]
    )
    first, last = (_two_digits(size / 10**exponent) for size in (low, high))
    return f"{last} {unit}" if first == last else f"{first} to {last} {unit}"


UNITS = (("GB", 9), ("MB", 6), ("kB", 3), ("bytes", 0))


def _two_digits(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
