"""The federated plan: the clients' fragments, the coordinator's join, and the exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from sqlglot import exp

from sqlfl.base.errors import InternalError, PlanError
from sqlfl.contract.joins import JoinUse
from sqlfl.contract.methods import methods
from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.request import Request
from sqlfl.contract.schema import (
    COMBINED,
    Client,
    Combination,
    FeatureSpecification,
    KeySpecification,
    Merging,
    SlotSpecification,
)
from sqlfl.contract.transforms import AUTO, PARTNER, ROWS
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import Check, Diagnostic, SkewOptions
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import Options, ScoringOptions, TowerOptions, TrainingOptions
from sqlfl.options.tuning import Tuning
from sqlfl.planner.federated import exchanges as ex
from sqlfl.planner.federated.engines import EngineChoice, choose_engines
from sqlfl.planner.federated.exchanges import request_of
from sqlfl.planner.federated.into import Into
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.phases import protocol, rounds_of
from sqlfl.planner.federated.secure import secret_kinds, secured
from sqlfl.planner.federated.sizes import Size, Symbol
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.party_databases import Difference
from sqlfl.planner.query.ucq import Fragment, Slot, Ucq
from sqlfl.privacy.protection import Protection, protection_of

TRAIN = "train"
EVALUATE = "evaluate"
PREDICT = "predict"
CHECK = "check"
JOIN = "join"


@dataclass(frozen=True)
class FederatedPlan:
    """All decisions that precede the run of a statement."""

    purpose: str
    """TRAIN, EVALUATE, PREDICT, CHECK or JOIN."""
    name: str
    """The model's name, or the join's in JOIN; empty in CHECK."""
    kind: str
    """The model's: 'logistic_regression' and so on."""
    sql: str
    """The statement as written."""
    options: Options
    ucq: Ucq
    engines: Mapping[int, EngineChoice]
    """Slot -> the engine of its local updates, and why."""
    mapping: exp.Query
    """The coordinator's query over hashed keys; its result is the table mapping."""
    specifications: Mapping[Client, tuple[SlotSpecification, ...]]
    """Specifications of its slots for each client, in slot order; clients in order of first
    occurrence.
    """
    blocks: Mapping[int, int]
    """Slot of the query -> slot of the model that scores it, or that training starts from; empty
    without such a model.
    """
    run: ex.Run
    """The facts that its exchanges follow from."""
    into: Into | None = None
    """The tables that PREDICT INTO makes."""
    exposure: bool = False
    """Offsets are logarithms of their column."""
    at: str | None = None
    """The coordinator's party; None for none of them."""
    privacy: Privacy | None = None
    """The resolved PRIVACY clause; None without the clause. In EVALUATE it protects labels only."""
    findings: bool = True
    """True if clients report unusual features: not where these are protected."""
    merges: bool = False
    """Clients may be asked which of their rows have equal features, to train them as one."""
    fleeting: Mapping[Client, str] = field(default_factory=lambda: MappingProxyType({}))
    """Clients that draw noised labels anew in each session -> reason ('is in memory')."""
    differences: tuple[Difference, ...] = ()
    """Differences between the databases of a party in the tables of the query; CHECK lists them."""
    notes: tuple[str, ...] = ()
    """Notes beside the result."""
    look: Diagnostic | None = None
    """The diagnostic of the evaluated rows; None for their metrics in one row."""
    tuning: Tuning | None = None
    """The candidates of TUNE; None for one model."""

    def fragments_sql(self, client: Client) -> tuple[str, ...]:
        """Return the SELECTs that `client` evaluates, slot after slot, as in `Prepare`."""
        return _fragments(self.ucq, self.specifications[client])

    def request(self, client: Client) -> Request:
        """Return the request of the whole run for a client whose owner has policies."""
        # an owner allows the same messages, whether or not keys of the join were sent before
        run, exchanges = self.run, self.exchanges
        if run.join is not None:
            run = replace(run, join=None)
            exchanges = secured(run, protocol(run))
        return request_of(run, exchanges, client, self.privacy)

    def over(self, join: JoinUse) -> FederatedPlan:
        """Return the plan over the rows of a join that lasts."""
        return replace(self, run=replace(self.run, join=join))

    @property
    def join(self) -> JoinUse | None:
        """The join that lasts whose rows are used; None without one."""
        return self.run.join

    def renamed(self, name: str, sql: str) -> FederatedPlan:
        """Return the plan for another model name of the same length. The derived exchanges stay
        valid.
        """
        if len(name) != len(self.name) or len(name.encode()) != len(self.name.encode()):
            raise InternalError("a name of another length makes other messages")
        renamed_plan = replace(self, name=name, sql=sql, run=replace(self.run, model=name))
        known = {key: self.__dict__[key] for key in _WORKED_OUT if key in self.__dict__}
        renamed_plan.__dict__.update(known)
        return renamed_plan

    @cached_property
    def protection(self) -> Protection:
        """The mechanisms that protect labels, features, predictions and statistics."""
        return protection_of(self.privacy)

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(self.specifications)

    @property
    def databases(self) -> tuple[Client, ...]:
        """Clients that evaluate fragments: `clients`, with combined clients in place of their
        party's.
        """
        return self.run.databases

    @property
    def combining(self) -> tuple[str, ...]:
        """Parties whose clients are one to the coordinator."""
        return tuple(client.party for client in self.clients if client.index == COMBINED)

    @property
    def mapping_sql(self) -> str:
        return to_sql(self.mapping)

    @property
    def regression(self) -> bool:
        """The target is a number, not a class."""
        return not kind_of(self.kind).classifies

    @property
    def weighted(self) -> bool:
        """Joined rows do not all count alike in training."""
        return _weighted(self.ucq, self.options)

    @property
    def algorithm(self) -> str:
        """The algorithm; empty if nothing is trained."""
        return self.options.algorithm if isinstance(self.options, TrainingOptions) else ""

    @property
    def training(self) -> TrainingOptions:
        """The options of training. Raises InternalError if nothing is trained."""
        if not isinstance(self.options, TrainingOptions):
            raise InternalError(f"{self.purpose} trains nothing")
        return self.options

    @property
    def epochs(self) -> int | None:
        """Maximum number of epochs; None if nothing is trained."""
        return self.options.epochs if isinstance(self.options, TrainingOptions) else None

    @property
    def tower(self) -> TowerOptions | None:
        """The options of towers; None for linear blocks."""
        return self.options.tower

    @property
    def draws_units(self) -> bool:
        """Return whether the coordinator draws units for validation, with all their rows."""
        if self.ucq.unit is None or self.tuning is not None:
            return False
        return self.training.validation_fraction > 0.0

    def crosses(self, client: Client) -> bool:
        """Return whether messages between the coordinator and `client` cross a border between
        parties.
        """
        return self.at is None or client.party.lower() != self.at.lower()

    @cached_property
    def exchanges(self) -> tuple[ex.Exchange, ...]:
        """All messages of a run without failures, in order."""
        return secured(self.run, protocol(self.run))

    @cached_property
    def secret_sums(self) -> frozenset[str]:
        """Kinds of messages that reach the coordinator only as sums over clients."""
        return secret_kinds(self.run)

    @cached_property
    def disclosures(self) -> tuple[ex.Disclosure, ...]:
        """Messages that leave a party (direction 'up'), then messages to one ('down')."""
        return ex.disclosures(self.exchanges, self.crosses)

    @cached_property
    def staying(self) -> tuple[ex.Disclosure, ...]:
        """Messages that cross no border: those with clients of the coordinator's own party."""
        return ex.disclosures(self.exchanges, lambda client: not self.crosses(client))

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The quantities that sizes depend on; bind their names to evaluate a size."""
        return ex.symbols(self.exchanges)

    def totals(self) -> dict[tuple[Client, int, str, str], tuple[Size, Size]]:
        """(client, slot, message kind, 'up' or 'down') -> (messages, bytes) over the whole run.

        All messages count, those of the coordinator's own party too. Slot -1 stands for messages to
        a client as a whole.
        """
        return ex.totals(self.exchanges)


_WORKED_OUT = ("protection", "exchanges", "secret_sums", "disclosures", "staying", "symbols")


@dataclass(frozen=True)
class Setting:
    """Facts about the parties that a plan depends on."""

    at: str | None = None
    """The coordinator's party; None for none of them."""
    governed: frozenset[Client] = frozenset()
    """Clients whose owners have training policies."""
    fleeting: Mapping[Client, str] = field(default_factory=lambda: MappingProxyType({}))
    """Clients that draw noised labels anew in each session -> reason ('is in memory')."""


@dataclass(frozen=True)
class Noising:
    """A settled PRIVACY clause, and what follows from it for the clients of each slot."""

    privacy: Privacy
    slots: Mapping[int, SnapshotPrivacy]


@dataclass(frozen=True)
class WarmStart:
    """The model that training starts from."""

    run: str
    """Run of the model, under which clients keep its blocks."""
    blocks: Mapping[int, int]
    """Slot of the query -> slot of the model, for each slot with features."""


@dataclass(frozen=True)
class ScoredModel:
    """The model that a statement evaluates or predicts with."""

    name: str
    kind: str
    blocks: Mapping[int, int]
    """Slot of the query -> slot of the model that scores it, for each slot with features."""
    exact: bool = False
    """Its scores are sent in 8-byte numbers."""
    private: bool = False
    """It was trained with PRIVACY: clients report no unusual features of its columns."""


def training_plan(
    name: str,
    kind: str,
    ucq: Ucq,
    options: TrainingOptions,
    sql: str,
    setting: Setting = Setting(),
    *,
    warm: WarmStart | None = None,
    noising: Noising | None = None,
    tuning: Tuning | None = None,
    notes: tuple[str, ...] = (),
    exposure: bool = False,
) -> FederatedPlan:
    """Return the plan of TRAIN or TUNE of model `name`.

    Raises PlanError for a query that the method is not built for, and InternalError if the
    arguments contradict each other.
    """
    if options.algorithm not in methods():
        raise InternalError(f"no exchanges are known of algorithm {options.algorithm}")
    if options.method.secure:
        _check_union(ucq)
    if spec_of(options.algorithm).drawn:
        _check_sums(ucq)
    draft = _Draft(
        TRAIN, name, kind, _with_owners(ucq, setting.governed), options, sql, setting,
        blocks=MappingProxyType({} if warm is None else dict(warm.blocks)),
        warm=None if warm is None else warm.run,
        noising=noising, tuning=tuning, notes=notes, exposure=exposure,
    )  # fmt: skip
    if warm is not None:
        draft.check_blocks()
    return draft.plan()


def evaluation_plan(
    model: ScoredModel,
    ucq: Ucq,
    options: ScoringOptions,
    sql: str,
    setting: Setting = Setting(),
    *,
    noising: Noising | None = None,
    look: Diagnostic | None = None,
    notes: tuple[str, ...] = (),
    exposure: bool = False,
) -> FederatedPlan:
    """Return the plan of EVALUATE, or of a diagnostic of rows with a target. PRIVACY can protect
    labels alone. Raises InternalError if the arguments contradict each other.
    """
    if noising is not None and not protection_of(noising.privacy).labels:
        raise InternalError(f"PRIVACY is {noising.privacy} in {EVALUATE}, without noised labels")
    draft = _scoring(EVALUATE, model, ucq, options, sql, setting)
    return replace(draft, noising=noising, look=look, notes=notes, exposure=exposure).plan()


def prediction_plan(
    model: ScoredModel,
    ucq: Ucq,
    options: ScoringOptions,
    sql: str,
    setting: Setting = Setting(),
    *,
    look: Diagnostic | None = None,
    into: Into | None = None,
    exposure: bool = False,
) -> FederatedPlan:
    """Return the plan of PREDICT, or of a diagnostic of rows without a target. Raises InternalError
    if the arguments contradict each other.
    """
    draft = _scoring(PREDICT, model, ucq, options, sql, setting)
    return replace(draft, look=look, into=into, exposure=exposure).plan()


def check_plan(
    kind: str,
    ucq: Ucq,
    options: ScoringOptions,
    sql: str,
    setting: Setting = Setting(),
    *,
    look: Diagnostic,
) -> FederatedPlan:
    """Return the plan of CHECK; `kind`: of a model that the target is meant for."""
    ucq = _with_owners(ucq, setting.governed)
    return _Draft(CHECK, "", kind, ucq, options, sql, setting, findings=False, look=look).plan()


def join_plan(
    name: str,
    kind: str,
    ucq: Ucq,
    options: ScoringOptions,
    sql: str,
    setting: Setting = Setting(),
) -> FederatedPlan:
    """Return the plan of CREATE JOIN `name`; `kind`: of a model that takes any target."""
    ucq = _with_owners(ucq, setting.governed)
    return _Draft(JOIN, name, kind, ucq, options, sql, setting, findings=False).plan()


def _scoring(
    purpose: str,
    model: ScoredModel,
    ucq: Ucq,
    options: ScoringOptions,
    sql: str,
    setting: Setting,
) -> _Draft:
    draft = _Draft(
        purpose, model.name, model.kind, _with_owners(ucq, setting.governed), options, sql, setting,
        blocks=MappingProxyType(dict(model.blocks)), findings=not model.private, exact=model.exact,
    )  # fmt: skip
    draft.check_blocks()
    return draft


@dataclass(frozen=True)
class _Draft:
    """Fields of a `FederatedPlan` that its constructor decides; `plan` derives the rest."""

    purpose: str
    name: str
    kind: str
    ucq: Ucq
    options: Options
    sql: str
    setting: Setting
    blocks: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    warm: str | None = None
    noising: Noising | None = None
    findings: bool = True
    look: Diagnostic | None = None
    tuning: Tuning | None = None
    into: Into | None = None
    notes: tuple[str, ...] = ()
    exposure: bool = False
    exact: bool = False

    def plan(self) -> FederatedPlan:
        _check_groups(self.ucq, lasts=self.purpose == JOIN)
        if self.noising is not None and not self.noising.slots:
            raise InternalError(f"PRIVACY is {self.noising.privacy}, and it protects no slot")
        if any(slot.split for slot in self.ucq.slots) != (self.share > 0):
            share = f"a share of {self.share} of the rows is for validation"
            raise InternalError(f"{share}, of no or one slot")
        engines = choose_engines(self.ucq, self.options)
        specifications = self._specifications(engines)
        run = self._run(specifications)
        if self.tuning is not None:
            _check_candidates(run, self.tuning)
        return FederatedPlan(
            purpose=self.purpose,
            name=self.name,
            kind=self.kind,
            sql=self.sql,
            options=self.options,
            ucq=self.ucq,
            engines=MappingProxyType(engines),
            mapping=mapping_query(self.ucq),
            specifications=MappingProxyType(specifications),
            blocks=self.blocks,
            run=run,
            into=self.into,
            at=self.setting.at,
            privacy=None if self.noising is None else self.noising.privacy,
            findings=run.findings,
            merges=run.merges,
            fleeting=MappingProxyType(dict(self.setting.fleeting)),
            notes=self.notes,
            look=self.look,
            tuning=self.tuning,
            exposure=self.exposure,
        )

    def check_blocks(self) -> None:
        """Raise InternalError unless each slot with features, and no other, has a block."""
        towers = {slot.index for slot in self.ucq.slots if slot.features}
        if set(self.blocks) != towers:
            slots = f"slots {sorted(towers)} have features"
            raise InternalError(f"{slots}, {sorted(self.blocks)} have blocks")

    @property
    def training(self) -> TrainingOptions | None:
        return self.options if isinstance(self.options, TrainingOptions) else None

    @property
    def protection(self) -> Protection:
        return protection_of(None if self.noising is None else self.noising.privacy)

    @property
    def share(self) -> float:
        """Share of the rows that their owner holds out of training; 0 where the coordinator draws
        groups of rows."""
        if self.ucq.unit is not None:
            return 0.0
        if self.tuning is not None:
            return 0.0 if self.tuning.groups is not None else self.tuning.share
        return 0.0 if self.training is None else self.training.validation_fraction

    def _specifications(
        self, engines: Mapping[int, EngineChoice]
    ) -> dict[Client, tuple[SlotSpecification, ...]]:
        """Return the specifications of each client's slots, clients in order of occurrence."""
        ucq, training, share = self.ucq, self.training, self.share
        classes = kind_of(self.kind).classifies and self.purpose != PREDICT
        skewed = isinstance(self.look, SkewOptions) and ucq.weight is not None
        device = None if training is None or training.tower is None else training.tower.device
        drawn = training is not None and spec_of(training.algorithm).drawn

        def of_slot(slot: Slot, client: Client) -> SlotSpecification:
            engine = engines[slot.index].engine
            return replace(
                _specification(ucq, slot, client, self.purpose == TRAIN, classes, engine),
                split=share if slot.split else 0.0,
                base=slot.base,
                privacy=None if self.noising is None else self.noising.slots.get(slot.index),
                weighted=_weighted(ucq, self.options) or skewed,
                seed=training.seed if training is not None else getattr(self.look, "seed", None),
                warm=(
                    None
                    if self.warm is None or not slot.features
                    else (self.warm, self.blocks[slot.index])
                ),
                device=device if slot.features else None,
                secure=training is not None and training.method.secure,
                masked_predictions=drawn and bool(slot.features),
                folds=0 if self.tuning is None else self.tuning.splits,
            )

        clients = dict.fromkeys(client for slot in ucq.slots for client in slot.clients)
        return {
            client: tuple(of_slot(slot, client) for slot in ucq.slots if slot.of(client))
            for client in clients
        }

    def _run(self, specifications: Mapping[Client, tuple[SlotSpecification, ...]]) -> ex.Run:
        """Return the facts that the exchanges follow from."""
        ucq, training, protection = self.ucq, self.training, self.protection
        findings = self.findings and not protection.rows
        if training is None:
            merges, separates = False, _tells_classes(self.look, ucq, self.kind)
        else:
            tuning = self.tuning
            each = [training] if tuning is None else [c.options for c in tuning.candidates]
            merges = ucq.offset is None and all(
                _merges(options, protection) and not _of_tables(ucq, options) for options in each
            )
            alone = tuning is None and self.warm is None
            separates = alone and findings and _separates(self.kind, training)
        return ex.Run(
            purpose=self.purpose,
            model=self.name,
            kind=self.kind,
            ucq=ucq,
            options=self.options,
            blocks=self.blocks,
            specifications=specifications,
            fragments={
                client: _fragments(ucq, specifications[client]) for client in specifications
            },
            into=self.into,
            protection=protection,
            findings=findings,
            merges=merges,
            look=self.look,
            tuning=self.tuning,
            governed=self.setting.governed,
            exact=self.exact,
            separates=separates,
        )


def _with_owners(ucq: Ucq, governed: frozenset[Client]) -> Ucq:
    """Mark the slots whose owners receive information on joined rows."""
    slots = (replace(s, governed=bool(governed & {*s.clients, *s.databases})) for s in ucq.slots)
    return replace(ucq, slots=tuple(slots)) if governed else ucq


def _check_groups(ucq: Ucq, *, lasts: bool) -> None:
    """Raise PlanError for groups of several databases that cannot be merged."""
    for slot in ucq.slots:
        clients = slot.merging
        if not clients:
            continue
        if len({client.party for client in clients}) > 1:
            raise PlanError(
                f"table {slot.name} is a union of aggregates over several databases of "
                f"{' and of '.join(dict.fromkeys(client.party for client in clients))}",
                hint="take the aggregates of one party in each table",
            )
        numbers = {len({select for select in slot.groups(c) if select}) for c in clients}
        if len(numbers) > 1:
            raise InternalError(f"databases have {sorted(numbers)} kinds of groups of {slot.name}")
        if lasts:
            raise PlanError(
                f"a join that lasts is not built for aggregates over several databases "
                f"({slot.name})",
                hint="write FROM ( query ) in each statement",
            )


def _check_candidates(run: ex.Run, tuning: Tuning) -> None:
    """Raise PlanError unless all candidates exchange the same messages: sizes are computed for all
    fits at once.
    """
    first = rounds_of(run)
    for candidate in tuning.candidates:
        if rounds_of(replace(run, options=candidate.options)) != first:
            names = [name for name in tuning.tuned if name in SHAPES] or list(tuning.tuned)
            raise PlanError(
                f"TUNE is not built for candidates of {', '.join(names)}: other messages are "
                "exchanged with each",
                hint="TUNE once for each value, and compare what the results say",
            )


SHAPES = ("hidden", "head", "embedding", "dropout", "batch_size", "inner_rounds", "learning_rate")
"""Options that the exchanges may depend on."""


def _check_union(ucq: Ucq) -> None:
    if any(slot.features and len(slot.clients) > 1 for slot in ucq.slots):
        return
    raise PlanError(
        "union = 'secure' has nothing to sum: each table with features is at one client",
        hint="leave union out; it is for tables whose rows several clients have: attach('bank', "
        "[first, second])",
    )


def _check_sums(ucq: Ucq) -> None:
    towers = [slot for slot in ucq.slots if slot.features]
    parties = tuple(dict.fromkeys(party for slot in towers for party in slot.parties))
    if len(parties) < 2:
        raise PlanError(
            f"algorithm = 'pbm' needs features of two parties or more, and all are of {parties[0]}:"
            " a sum over one is what it hides",
            hint="algorithm = 'sgd'",
        )
    combined = sorted({c.party for slot in towers for c in slot.clients if c.index == COMBINED})
    if combined:
        raise PlanError(
            f"algorithm = 'pbm' is not built for parties that combine their clients: {combined[0]}",
            hint="attach it without combine = True",
        )


def _specification(
    ucq: Ucq, slot: Slot, client: Client, training: bool, classes: bool, engine: str
) -> SlotSpecification:
    return SlotSpecification(
        slot=slot.index,
        features=tuple(
            FeatureSpecification(
                f.name,
                f.kind,
                f.width,
                f.made,
                shrunken=f.transform is not None and f.transform.function == AUTO,
                partner=f.transform is not None and f.transform.value == PARTNER,
                pairs=f.pairs if slot.pairs and f in slot.paired else 0,
            )
            for f in slot.features
        ),
        target=slot.target,
        classes=classes and slot.target,
        identifiers=slot.identifiers,
        keys=tuple(
            KeySpecification(key, ucq.keys[key].types, nullable=key in slot.nullable)
            for key in slot.keys
        ),
        fragments=tuple(f.index for f in slot.of(client)),
        shared=training and len(slot.clients) > 1 and bool(slot.features),
        secret="organisation" if len(slot.parties) == 1 else "federation",
        engine=engine,
        links=tuple((f.beside, f.index) for f in slot.of(client) if f.beside is not None),
        weight=slot.weight,
        offset=slot.offset,
        name=slot.name if training else "",
        combination=_combination(ucq, slot, client, training),
        merging=_merging(slot, client),
    )


def _merging(slot: Slot, client: Client) -> Merging | None:
    clients = slot.merging
    if client not in clients:
        return None
    return Merging(slot.groups(client), clients.index(client), len(clients))


def _combination(ucq: Ucq, slot: Slot, client: Client, training: bool) -> Combination | None:
    parts = [part for f in slot.of(client) for part in f.parts]
    if not parts:
        return None
    return Combination(
        tuple((part.client.index, part.index) for part in parts),
        training and bool(slot.features),
        (ucq.target_type or "VARCHAR") if slot.target else "",
    )


def _separates(kind: str, options: TrainingOptions) -> bool:
    """Return whether clients may report separation: the first step discloses the classes of their
    rows anyway, and no penalty makes all estimates finite.
    """
    plain = options.algorithm == "lbfgs" and options.tower is None and not options.method.secure
    return plain and options.l2 == 0.0 and kind_of(kind).separable


def _tells_classes(look: Diagnostic | None, ucq: Ucq, kind: str) -> bool:
    """Return whether clients may report separation in CHECK: it discloses the targets of their rows
    anyway, and a model of this kind may be trained without a penalty.
    """
    explains = isinstance(look, Check) and look.explains and ucq.target is not None
    return explains and kind_of(kind).separable


def _merges(options: TrainingOptions, protection: Protection) -> bool:
    """Return whether equal rows may be merged: not with dropout or noise, which treat each row
    separately.
    """
    drops = options.tower is not None and options.tower.dropout > 0.0
    allowed = options.merge_equal_rows and not (drops or protection.rows)
    return allowed and spec_of(options.algorithm).merges(options)


def _of_tables(ucq: Ucq, options: TrainingOptions) -> bool:
    """Return whether strengths are chosen for new rows of a table, or new units, so that its rows
    stay separate.
    """
    shrunken = any(slot.shrunken for slot in ucq.slots)
    return shrunken and getattr(options.method, "unit", ROWS) != ROWS


def _weighted(ucq: Ucq, options: Options) -> bool:
    return isinstance(options, TrainingOptions) and (
        ucq.weight is not None
        or options.validation_fraction > 0
        or options.class_weight is not None
    )


def _fragments(ucq: Ucq, specifications: tuple[SlotSpecification, ...]) -> tuple[str, ...]:
    return tuple(
        fragment.sql
        for specification in specifications
        for fragment in evaluated(ucq.slots[specification.slot], specification)
    )


def evaluated(slot: Slot, specification: SlotSpecification) -> tuple[Fragment, ...]:
    """Return the fragments of the slot that databases evaluate at a client, in the order of
    `Prepare`.
    """
    fragments = [slot.fragments[index] for index in specification.fragments]
    return tuple(part for fragment in fragments for part in fragment.parts or (fragment,))
