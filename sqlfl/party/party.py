"""Server of requests on one client's database. It knows SQL text and messages, never a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import duckdb
import numpy as np

from sqlfl import messages as ms
from sqlfl.base.arrays import Array
from sqlfl.base.errors import EvaluationError, ForgottenError, InternalError, ModelError, PartyError
from sqlfl.contract.configuration import Configuration
from sqlfl.contract.schema import (
    Client,
    Listing,
    Place,
    SlotSpecification,
    listing_to_json,
    specifications_from_json,
)
from sqlfl.governance.guard import Guard, GuardedClient
from sqlfl.governance.message_log import Sent
from sqlfl.governance.records import Records
from sqlfl.governance.trial import Trial, TrialWorkers
from sqlfl.messages.preparation import NONCE_BYTES
from sqlfl.models.towers import TowerShape
from sqlfl.party import diagnostics, limits
from sqlfl.party.client import ClientOperator, exact_predictions_of, predictions_of
from sqlfl.party.crossing import PairFinder
from sqlfl.party.cursors import Cursors
from sqlfl.party.effects import effects_of
from sqlfl.party.failures import failed
from sqlfl.party.groups import SlotGroups
from sqlfl.party.joins import Joins
from sqlfl.party.observers import Observers
from sqlfl.party.operator import client_of
from sqlfl.party.rehearsals import StandIn, standing_in
from sqlfl.party.server import Server
from sqlfl.party.slot_state import SlotState, check_delta, protected
from sqlfl.party.torch_loading import check_device
from sqlfl.udfs import error_location
from sqlfl.udfs.blocks.blocks import ClientBlocks, MemoryBlocks, SavedBlock, carry_block
from sqlfl.udfs.connection import files
from sqlfl.udfs.describe import ListingCache, describe
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.profiles import skew
from sqlfl.udfs.encoding.transforming import raw
from sqlfl.udfs.labels.label_secret import Holders, LabelSecret
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.keys import derive
from sqlfl.udfs.numbering.rows import Snapshot, folds_of, split_of
from sqlfl.udfs.updates.predict import make_engine, score, write
from sqlfl.udfs.updates.update import LinearEngine


@dataclass(eq=False)
class RunState:
    cursor: duckdb.DuckDBPyConnection
    slots: dict[int, SlotState] = field(default_factory=dict)
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES), repr=False)
    """Random number drawn here. With it, keys of this run differ from those of all others, whatever
    the run is called.
    """
    groups: dict[int, SlotGroups] = field(default_factory=dict)
    """Slots whose groups are not merged yet."""
    join: str = ""
    """Id of the join that it uses; empty without one."""
    _nonces: Array | None = field(default=None, repr=False)

    def agree(self, nonces: Array) -> None:
        """Take all clients' nonces, uint8 (clients, 16). Raise InternalError if this client's is
        missing, and if they differ from earlier ones.
        """
        if not (nonces == np.frombuffer(self.nonce, np.uint8)).all(axis=1).any():
            raise InternalError("keys are asked for without what this client has drawn for them")
        if self._nonces is not None and not np.array_equal(self._nonces, nonces):
            raise InternalError("other numbers are said to be drawn for this run than before")
        self._nonces = np.array(nonces)

    def key(self, secret: bytes, run: str, *purpose: str) -> bytes:
        """Return a key of the run for one purpose, under a secret that all its makers know."""
        if self._nonces is None:
            raise InternalError("a key is to be made before all clients' numbers are told")
        return keys.derive(keys.run_key(secret, run, self._nonces), *purpose)


@dataclass(frozen=True, repr=False)
class Secrets:
    """Keys of the hashes; the coordinator's code never touches them."""

    federation: bytes
    """Secret of all parties, for join keys."""
    organisation: bytes
    """Secret of one party's clients, for vocabularies."""
    holders: Holders = field(default_factory=Holders)
    """Shared by all parties: which secrets of label noise several clients have in common."""

    @property
    def of_rehearsals(self) -> Secrets:
        """Return other keys for rehearsals. Their values are public, so their hashes must not use
        the real keys.
        """
        federation, organisation = (
            derive(key, "rehearsal") for key in (self.federation, self.organisation)
        )
        return Secrets(federation, organisation)


def with_database_hashes(
    cursor: duckdb.DuckDBPyConnection, places: tuple[Place, ...], instance: str, secret: bytes
) -> tuple[Place, ...]:
    """Return places with keyed hashes of their databases. Clients of a party use them to detect
    that two have one database open.

    secret: key of the hashes. instance: distinguishes the client's instance of DuckDB from the
    others'.
    """
    paths = files(cursor)
    return tuple(
        replace(place, database=keys.derive(secret, "database", name).hex()[:32])
        for place in places
        for name in [paths.get(place.catalog) or f"{instance}:{place.catalog}"]
    )


APART = (ms.ListTables, ms.Describe, ms.Keep, ms.Drop, ms.Collect, ms.SendBlock)
"""Requests that a client answers outside by itself even if its party combines its clients."""


class PartyClient(Server):
    """One client: `handle` answers the coordinator's messages from the connection `con`.

    Every run works on a cursor of its own, whose temporary tables go with it. `con` itself never
    runs anything.

    instance: distinguishes its instance of DuckDB from those of the party's other clients; None
    without others. observers: are told of the SQL that runs. store: records in which its owner may
    keep policies, apart from the tables. required: without a store nothing is served. workers:
    evaluate queries first, if policies govern them.

    With `client.combined` it answers all requests of the party, and from others only those in
    `APART`. Raise PartyError if `con` is closed.
    """

    def __init__(
        self,
        client: Client,
        con: duckdb.DuckDBPyConnection,
        secrets: Secrets,
        blocks: ClientBlocks | None = None,
        labels: LabelSecret | None = None,
        instance: str | None = None,
        observers: Observers | None = None,
        analyst: str = "",
        store: Records | None = None,
        *,
        required: bool = False,
        workers: TrialWorkers | None = None,
    ) -> None:
        super().__init__(client, secrets.federation, observers)
        self._trial = None if workers is None else Trial(workers)
        self._secrets = secrets
        self._instance = instance
        self._runs: dict[str, RunState] = {}
        self._blocks: ClientBlocks = MemoryBlocks() if blocks is None else blocks
        self._labels = LabelSecret() if labels is None else labels
        self._listings = ListingCache()
        slots = limits.SlotLimits(lambda run, slot: self._runs[run].slots[slot], self._draws)
        try:
            self._cursors = Cursors(con)
            self._joins = Joins(self._cursors, self._expire)
            guarded = GuardedClient(
                str(client), slots, lambda: self._blocks.runs, self._end, self.interrupt,
                self._cursors.opened, self._joins,
            )  # fmt: skip
            self._guard = Guard(
                con, guarded, analyst, store,
                required=required, trial=self._trial, place=self._cursors.place,
            )  # fmt: skip
        except duckdb.ConnectionException as error:
            raise PartyError(str(client), "its connection is closed") from error
        self._masking.check_peers = self._guard.check_peers

    def interrupt(self) -> None:
        super().interrupt()
        self._cursors.interrupt()
        if self._trial is not None:
            self._trial.interrupt()

    @property
    def secret(self) -> bytes:
        """Return the secret that all parties know, and the coordinator does not."""
        return self._secrets.federation

    @property
    def working(self) -> bool:
        """Return True if a run is in progress."""
        return bool(self._runs) or self.rehearsing

    def close(self) -> None:
        """End all runs and forget the saved blocks."""
        super().close()
        for run in list(self._runs):
            self._end(run)
        self._joins.close_all()
        self._guard.close()
        self._blocks.close()

    # -- dispatch ---------------------------------------------------------------------------------

    def _admitted(self, request: ms.Message) -> ms.Message:
        if self.client.combined and not isinstance(request, APART):
            raise InternalError(
                f"{request.kind} is for party {self.client.party}, which combines its clients"
            )
        return self._answer(request)

    def _answer(self, request: ms.Message) -> ms.Message:
        return self._guard.serve(request, self._served, combined=self.client.combined)

    def _keep(self, asked: Sent, told: Sent) -> None:
        self._guard.keep(asked, told)

    def _stand_in(self, request: ms.Rehearse) -> StandIn:
        rules = self._guard.rehearse(request, combined=self.client.combined)
        secrets = self._secrets.of_rehearsals
        made = lambda con: PartyClient(self.client, con, secrets)  # noqa: E731
        return standing_in(self._cursors, request, rules, made)

    def _served(self, request: ms.Message) -> ms.Message:
        """Answer a request that the guard lets through: of the database, of a slot's rows, or of
        training that has started.
        """
        reply = self._reply_of_database(request)
        if reply is not None:
            return reply
        state = self._checked(request)
        reply = self._reply_of_slot(request, state)
        if reply is not None:
            return reply
        if state.operator is None:
            raise InternalError(f"{request.kind} before start")
        return state.operator.handle(request)

    def _reply_of_database(self, request: ms.Message) -> ms.Message | None:
        """Answer a request about tables, joins, blocks, or a whole run; None for others."""
        match request:
            case ms.ListTables():
                return self._list_tables(request)
            case ms.Describe():
                return self._describe(request)
            case ms.Prepare():
                return self._prepare(request)
            case ms.OpenJoin():
                return self._joins.open(request)
            case ms.SendJoinState():
                changed = self._joins.changed(request.run)
                return ms.JoinState(request.run, request.slot, changed)
            case ms.CloseJoin():
                self._joins.close(request.run)
                return ms.Ready(request.run, request.slot)
            case ms.Keep():
                self._blocks.keep(request.model)
                return ms.Saved(request.run, request.slot, 1)
            case ms.Drop():
                self._blocks.drop(request.model)
                return ms.Ready(request.run, request.slot)
            case ms.Collect():
                self._blocks.collect(request.models)
                blocks = self._blocks
                return ms.Collected(request.run, request.slot, int(blocks.lasting), blocks.reason)
            case ms.SendCurves():
                return diagnostics.curves_reply(self.block(request.model, request.block), request)
            case ms.SendBlock():
                return diagnostics.block_reply(self.block(request.model, request.block), request)
            case ms.Write():
                return self._write(request)
            case ms.Commit():
                self._run(request).cursor.commit()
                return ms.Ready(request.run, request.slot)
            case ms.Finish():
                self._end(request.run)
                return ms.Ready(request.run, request.slot)
            case ms.SendGroups():
                return self._send_groups(request)
            case ms.MergeGroups():
                return self._merge_groups(request)
        return None

    def _reply_of_slot(self, request: ms.Message, state: SlotState) -> ms.Message | None:
        """Answer a request about the rows of one slot; None for others."""
        match request:
            case ms.SendKeys():
                return self._send_keys(request, state)
            case ms.Activate():
                return self._activate(request, state)
            case ms.Weigh():
                return state.weigh(request, self._vocabulary_key(request.run, state))
            case ms.SetRanges():
                return state.set_ranges(request, self._vocabulary_key(request.run, state))
            case ms.SetEncoding():
                return self._set_encoding(request, state)
            case ms.SendLabels():
                return state.labels()
            case ms.SendFindings():
                return state.findings()
            case ms.SendSeparated():
                return state.separated(request)
            case ms.SendProfile():
                return state.profile(request)
            case ms.SendEqualRows():
                state.refer(self._runs[request.run].cursor)
                return state.equal_rows()
            case ms.SendWeights():
                return ms.Weights(request.run, request.slot, state.snapshot.weights())
            case ms.SendOffsets():
                return ms.Offsets(request.run, request.slot, state.snapshot.offsets())
            case ms.SendFolds():
                return ms.Folds(request.run, request.slot, folds_of(state.snapshot))
            case ms.SendSplit():
                return ms.Split(request.run, request.slot, split_of(state.snapshot))
            case ms.SendIdentifiers():
                columns = tuple(state.snapshot.identifiers())
                return ms.Identifiers(request.run, request.slot, columns)
            case ms.Start():
                return self._start(request, state)
            case ms.Save():
                return self._save(request, state)
            case ms.SendReleases():
                return state.releases(request)
            case ms.Score():
                return self._score(request, state)
            case ms.SendRotated() | ms.SendErrors() | ms.ScorePermuted() | ms.SendContributions():
                return self._look(request, state)
            case ms.SendSkew():
                block = self.block(request.model, request.block)
                engine = self._scoring_engine(request, state, block)
                return skew(state.snapshot, block, engine, request)
        return None

    # -- planning ---------------------------------------------------------------------------------

    def _list_tables(self, request: ms.ListTables) -> ms.Tables:
        cursor = self._cursors.begin(named=False)
        try:
            try:
                places, tables = self._listings.listing(cursor, self._cursors.place)
            except duckdb.CatalogException as error:
                raise self._cursors.gone() from error
            if self._instance is not None:
                places = with_database_hashes(
                    cursor, places, self._instance, self._secrets.organisation
                )
            told = Listing(places, tables, self._labels.fleeting)
            return ms.Tables(request.run, request.slot, listing_to_json(told))
        finally:
            self._cursors.end(cursor)

    def _describe(self, request: ms.Describe) -> ms.Columns:
        cursor = self._cursors.begin()
        try:
            return ms.Columns.of(request, [describe(cursor, text) for text in request.selects])
        finally:
            self._cursors.end(cursor)

    # -- snapshot, join, encoding -----------------------------------------------------------------

    def _prepare(self, request: ms.Prepare) -> ms.Prepared:
        if request.run in self._runs:
            raise InternalError(f"run {request.run} is prepared already")
        slots = specifications_from_json(request.specification)
        wanted = sum(len(item.fragments) for item in slots)
        if len(request.fragments) != wanted:
            raise InternalError(f"{len(request.fragments)} fragments came for {wanted}")
        for item in slots:
            if item.device is not None:
                # before anything is computed or leaves
                check_device(item.device, private=protected(item))
        if request.join:
            self._joins.get(request.join)
        if len(request.kept) != (len(slots) if request.join else 0):
            raise InternalError(f"{len(request.kept)} marks of kept rows came for {len(slots)}")
        run = self._runs[request.run] = RunState(self._cursors.begin(), join=request.join)
        try:
            return self._take_snapshots(request, slots, run)
        except BaseException as error:
            self._end(request.run)
            if isinstance(error, duckdb.Error):
                self._explain(request, slots, error)
            raise

    def _explain(
        self, request: ms.Prepare, slots: tuple[SlotSpecification, ...], error: duckdb.Error
    ) -> None:
        """Raise an error that names the failing part of the fragments, if it is known."""
        kind = error_location.kind_of(error)
        if kind is None:
            return
        cursor = self._cursors.begin()
        try:
            at = error_location.place_of(cursor, slots, request.fragments, error)
        finally:
            self._cursors.end(cursor)
        raise EvaluationError(f"{kind}: {failed(request, error)}", at) from error

    def _take_snapshots(
        self, request: ms.Prepare, slots: tuple[SlotSpecification, ...], run: RunState
    ) -> ms.Prepared:
        """Take all fragments in one transaction, so that the slots' snapshots are of one
        instant.
        """
        rows: list[int] = []
        null_targets: list[int] = []
        start = 0
        run.cursor.begin()
        kept = request.kept.astype(bool).tolist() if request.join else [False] * len(slots)
        for item, known in zip(slots, kept, strict=True):
            fragments = request.fragments[start : start + len(item.fragments)]
            start += len(item.fragments)
            if item.merging is not None:
                run.groups[item.slot] = SlotGroups.take(run.cursor, request, item, fragments)
                rows += [0] * len(fragments)
                null_targets += [0] * len(fragments)
                continue
            snapshot = self._snapshot(request, run, item, fragments, known=known)
            self._begin_slot(run, item, snapshot)
            rows += snapshot.rows
            null_targets += snapshot.null_targets
        run.cursor.commit()
        counts = np.array(rows, np.int64), np.array(null_targets, np.int64)
        nonce = np.frombuffer(run.nonce, np.uint8)
        changed = [self._joins.changed(request.join)] if request.join else []
        changes = np.array(changed, np.uint8)
        return ms.Prepared(request.run, request.slot, *counts, nonce, changes)

    def _begin_slot(self, run: RunState, item: SlotSpecification, snapshot: Snapshot) -> None:
        check_delta(item, sum(snapshot.rows))
        warm = None if item.warm is None else self.block(*item.warm)
        run.slots[item.slot] = SlotState(item, snapshot, warm, bare=self.client.combined)

    def _send_groups(self, request: ms.SendGroups) -> ms.SealedGroups:
        run, groups = self._run(request), self._groups(request)
        run.agree(request.nonces)
        sealed = groups.sealed(self._group_key(request))
        return ms.SealedGroups(request.run, request.slot, sealed)

    def _merge_groups(self, request: ms.MergeGroups) -> ms.MergedGroups:
        """Evaluate the slot's fragments over merged groups, in one transaction."""
        run, groups = self._run(request), self._groups(request)
        run.cursor.begin()
        texts = groups.merged(self._group_key(request), request.sealed)
        item = groups.specification
        snapshot = self._snapshot(groups.request, run, item, texts, known=False)
        groups.drop()
        self._begin_slot(run, item, snapshot)
        run.cursor.commit()
        del run.groups[request.slot]
        counts = np.array(snapshot.rows, np.int64), np.array(snapshot.null_targets, np.int64)
        return ms.MergedGroups(request.run, request.slot, *counts)

    def _groups(self, request: ms.Message) -> SlotGroups:
        groups = self._run(request).groups.get(request.slot)
        if groups is None:
            raise InternalError(f"{request.kind} for a slot without groups to merge")
        return groups

    def _group_key(self, request: ms.Message) -> bytes:
        """Return the key that groups are sealed with, which the party's databases have alone."""
        secret, slot = self._secrets.organisation, str(request.slot)
        return self._run(request).key(secret, request.run, "groups", slot)

    def _snapshot(
        self,
        request: ms.Prepare,
        run: RunState,
        item: SlotSpecification,
        fragments: Sequence[str],
        *,
        known: bool,
    ) -> Snapshot:
        """Return a slot's rows. known: they are those that its join keeps."""
        specification, draws = replace(item, features=raw(item.features)), self._draws(item)
        if not request.join:
            return Snapshot.take(run.cursor, specification, fragments, request.run, draws)
        if known:
            kept = self._joins.get(request.join).find(specification, fragments, draws)
            return kept.fork(run.cursor, request.run, specification)
        taken = self._joins.take(request.join, specification, fragments, request.run, draws)
        return taken if specification.keys else self._shared(request.run, run, taken)

    def _shared(self, name: str, run: RunState, numbered: Snapshot) -> Snapshot:
        """Let the run's join keep rows that are numbered, and return the run's own copy."""
        specification = numbered.specification
        kept = self._joins.get(run.join).keep(specification, numbered)
        return kept.fork(run.cursor, name, specification)

    def _draws(self, item: SlotSpecification) -> bytes:
        """Return the key of draws by a row's content. Before labels are noised, it is on disk."""
        noised = item.privacy is not None and item.privacy.label is not None
        if noised and item.seed is not None:
            raise InternalError("noise of labels does not follow from a seed")
        if noised:
            secret = self._labels.get()
            number = self._secrets.holders.number(secret, self.client)
            return keys.derive(secret, "label noise", str(number))
        return self._blocks.secret("split") if item.base and item.seed is None else b""

    def _send_keys(self, request: ms.SendKeys, state: SlotState) -> ms.JoinKeys:
        run, snapshot, secret = self._run(request), state.snapshot, self._secrets.federation
        if run.join:
            # the nonces of the join: its rows have one key in all statements
            snapshot.number(self._joins.get(run.join).key(secret, run.join, request.nonces))
            state.snapshot = self._shared(request.run, run, snapshot)
        else:
            run.agree(request.nonces)
            snapshot.number(run.key(secret, request.run, "join"))
        fragment, tags, codes = snapshot.keys()
        return ms.JoinKeys(request.run, request.slot, fragment, tags, codes)

    def _activate(self, request: ms.Activate, state: SlotState) -> ms.Message:
        self._run(request).agree(request.nonces)
        state.snapshot.activate(request.rows, request.counts)
        state.activated(request.counts)
        state.joined = state.trained = request.total
        if state.specification.weighted:
            return ms.Ready(request.run, request.slot)
        return self._counted(request.run, state)

    def _counted(self, run: str, state: SlotState) -> ms.Message:
        return state.counted(self._vocabulary_key(run, state))

    def _set_encoding(self, request: ms.SetEncoding, state: SlotState) -> ms.Ready:
        encoding = state.set_encoding(request, self._vocabulary_key(request.run, state))
        return ms.Ready(request.run, request.slot, encoding.width)

    def _vocabulary_key(self, run: str, state: SlotState) -> bytes:
        if state.warm is not None and state.warm.encoding.vocabulary_key is not None:
            return state.warm.encoding.vocabulary_key  # so that categories can be matched
        return self._slot_key(run, state, "vocabulary")

    def _slot_key(self, run: str, state: SlotState, purpose: str) -> bytes:
        """Return a key that all clients of a slot share."""
        slot = str(state.specification.slot)
        return self._runs[run].key(self._slot_secret(state), run, purpose, slot)

    def _slot_secret(self, state: SlotState) -> bytes:
        """Return the secret that all clients of the slot know."""
        whole = state.specification.secret == "federation"
        return self._secrets.federation if whole else self._secrets.organisation

    # -- training and scoring ---------------------------------------------------------------------

    def _start(self, request: ms.Start, state: SlotState) -> ms.Ready:
        part = client_of(request.method)
        configuration = part.configuration.from_json(request.configuration)
        if protected(state.specification) != (configuration.privacy is not None):
            # Otherwise exact predictions would have left before anyone checks the releases.
            raise InternalError(f"slot {request.slot} starts with other noise than was said")
        if part.masked != state.specification.masked_predictions:
            raise InternalError(f"slot {request.slot} starts with other sums than was said")
        finder = state.finder(configuration)
        engine, begin = self.start(request, configuration, finder)
        shrinkage = state.shrinkage(configuration, finder)
        told = request.run, request.slot, begin, shrinkage, finder
        state.operator = part.operator(engine, configuration, *told)
        cells = 0 if finder is None or finder.first is None else sum(finder.first.sizes)
        return ms.Ready(request.run, request.slot, engine.width + cells)

    def start(
        self, request: ms.Start, configuration: Configuration, finder: PairFinder | None = None
    ) -> tuple[LinearEngine, tuple[Array, ...] | None]:
        """Return the engine of a slot's rows, and the first parameters of training; None for the
        default ones.
        """
        state = self._checked(request)
        again = state.specification.folds and not protected(state.specification)
        if state.engine is not None and not again:
            raise InternalError(f"slot {request.slot} has been started")
        encoding = state.encoded()
        state.refer(self._runs[request.run].cursor)
        engine = state.engine
        if engine is None:
            cursor = self._runs[request.run].cursor
            engine = make_engine(state.specification.engine, cursor, state.snapshot, encoding)
            state.engine = engine
        begin = None
        if state.warm is not None:
            first = None if finder is None else finder.first
            shape = configuration.shape(engine.width)
            begin = carry_block(state.warm, encoding.with_pairs(first), shape)
        return engine, begin

    def _save(self, request: ms.Save, state: SlotState) -> ms.Saved:
        if state.operator is None:
            raise InternalError("save before start")
        operator, back = state.operator, request.back
        kept = operator.kept(back)
        if not isinstance(operator, ClientOperator) or operator.strengths(back) is None:
            return self.hold(request, kept, operator.shape)
        crossing = operator.crossing(back)
        encoding = state.encoded().with_pairs(crossing)
        encoding = replace(encoding, strengths=operator.strengths(back))
        precision = operator.precision(back)
        if precision is not None:
            effects = effects_of(state.snapshot, state.encoded(), kept[0], precision, crossing)
            encoding = replace(encoding, effects=effects)
        return self.hold(request, kept, operator.shape, encoding)

    def hold(
        self,
        request: ms.Save,
        parameters: Sequence[Array],
        shape: TowerShape | None,
        encoding: Encoding | None = None,
    ) -> ms.Saved:
        """Keep these parameters as the slot's block, by default as the slot is encoded."""
        state = self._slot(request)
        if state.encoding is None:
            raise InternalError("save before start")
        theta, *upper = parameters
        encoding = state.encoding if encoding is None else encoding
        block = SavedBlock(
            encoding, theta, state.specification.name, shape, tuple(upper), state.reference
        )
        self._blocks.save(request.model, request.slot, request.name, block)
        return ms.Saved(request.run, request.slot, 0)

    def draw(self, run: str, nonce: bytes) -> None:
        """Replace the client's nonce of the run by the party's."""
        self._runs[run].nonce = nonce

    def chance(self, run: str, slot: int) -> bytes:
        """Return the random key of a slot's rows. With a seed, it follows from that and from the
        rows.
        """
        return self._runs[run].slots[slot].snapshot.salt

    def _score(self, request: ms.Score, state: SlotState) -> ms.Predictions:
        block = self.block(request.model, request.block)
        cursor, engine = self._runs[request.run].cursor, state.specification.engine
        of = request.model, request.block
        values = score(cursor, state.snapshot, block.encoding, block.theta, engine, of)
        state.scored = block.encoding
        return _predicted(request, block.finish(values))

    def _look(
        self,
        request: diagnostics.Look,
        state: SlotState,
    ) -> ms.Message:
        """Answer over the rows of a scoring run. Their encoded columns stay until it ends."""
        run, slot = request.run, request.slot
        block = self.block(request.model, request.block)
        if isinstance(request, ms.SendErrors):
            return diagnostics.errors(
                block,
                state.snapshot,
                self._slot_key(run, state, "rotation"),
                lambda purpose: self._runs[run].key(self.secret, run, "intercept", purpose),
                request,
            )
        engine = self._scoring_engine(request, state, block)
        match request:
            case ms.SendRotated():
                return diagnostics.rotated(
                    block, engine, self._slot_key(run, state, "rotation"), request
                )
            case ms.ScorePermuted():
                if state.parts is None or state.parts.feature != request.feature:
                    state.parts = diagnostics.parts_of(block, engine, request.feature)
                return _predicted(request, diagnostics.permuted(block, state.parts, request))
            case ms.SendContributions():
                parts = diagnostics.contributions(block, engine)
                if request.exact:
                    return ms.ExactContributions(run, slot, exact_predictions_of(parts))
                return ms.Contributions(run, slot, predictions_of(parts))

    def _scoring_engine(
        self, request: ms.SendSkew | diagnostics.Look, state: SlotState, block: SavedBlock
    ) -> LinearEngine:
        of = request.model, request.block
        return state.scoring_engine(self._runs[request.run].cursor, block, of)

    def accept(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        """Hold the block of model `name`, as if this run had trained it. No message asks for it."""
        self._blocks.save(run, slot, name, block)
        self._guard.accept(run)

    def block(self, run: str, slot: int) -> SavedBlock:
        """Return the block of the run's model. Raise ModelError if there is none."""
        block = self._blocks.load(run, slot)
        if block is None:
            raise ModelError(
                "its database has no block of the model, which was trained when another one was "
                f"attached as {self.client}",
                hint="attach the databases that it was trained on, in the same order; DESCRIBE "
                "MODEL names its tables",
            )
        return block

    def exported_block(self, run: str, slot: int) -> SavedBlock:
        """Return the block, for a file with its weights. Raise PolicyError if its owner's policies
        do not let these leave.
        """
        self._guard.check_export(run, combined=self.client.combined)
        return self.block(run, slot)

    def _write(self, request: ms.Write) -> ms.Written:
        """Write in a transaction. `Commit` ends it; otherwise the end of the run rolls it back."""
        run = self._run(request)
        if unknown := [slot for slot in request.slots.tolist() if slot not in run.slots]:
            raise InternalError(f"write for slots {unknown}, which were not prepared")
        snapshots = [run.slots[slot].snapshot for slot in request.slots.tolist()]
        return ms.Written(request.run, request.slot, write(run.cursor, request, snapshots))

    # -- state ------------------------------------------------------------------------------------

    def _run(self, request: ms.Message) -> RunState:
        run = self._runs.get(request.run)
        if run is None:
            raise ForgottenError(f"{request.kind} for a run that was not prepared")
        return run

    def _slot(self, request: ms.Message) -> SlotState:
        run = self._run(request)
        if request.slot not in run.slots:
            raise InternalError(f"{request.kind} for a slot that was not prepared")
        return run.slots[request.slot]

    def _checked(self, request: ms.Message) -> SlotState:
        """Return the slot's state. Raise InternalError where the request may not come now."""
        state = self._slot(request)
        state.check_once(request)
        return state

    def _end(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is None:
            return
        for state in run.slots.values():
            if state.engine is not None:
                state.engine.close()
        if run.join:
            # rows that were evaluated, and not kept, lie on the join's cursor
            taken = [s.snapshot for s in run.slots.values() if s.snapshot.con is not run.cursor]
            self._joins.forget(run.join, taken)
        self._cursors.end(run.cursor)

    def _expire(self, join: str) -> None:
        """End a join whose time is over, from a thread of its own."""
        self.work(ms.CloseJoin.kind, lambda: self._joins.expire(join))


def _predicted(request: ms.Score | ms.ScorePermuted, values: Array) -> ms.Predictions:
    none = np.zeros(0, np.float64)
    if request.exact:
        return ms.ExactPredictions(request.run, request.slot, exact_predictions_of(values), none)
    return ms.Predictions(request.run, request.slot, predictions_of(values), none)
