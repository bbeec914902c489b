"""Facts about what a plan protects and what it does not: one sentence for each, in one place.

EXPLAIN and the model's card show a fact's lead. EXPLAIN (VERBOSE) and the privacy report show its
details too. Diagnostics disclose more than EVALUATE and PREDICT, which has sentences of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlfl.contract.schema import ENDS
from sqlfl.contract.transforms import AUTO
from sqlfl.messages.disclosed import fitted_by, listed
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import (
    Check,
    ContributionsOptions,
    Importance,
    Inference,
    SkewOptions,
)
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.explain.card import TRUSTED
from sqlfl.planner.federated.plan import JOIN, FederatedPlan
from sqlfl.privacy.protection import Protection


@dataclass(frozen=True)
class Fact:
    """A sentence, and sentences that say more of the same."""

    lead: str
    details: str = ""

    @property
    def text(self) -> str:
        return f"{self.lead} {self.details}".rstrip()


NOTHING = "No noise is added: nothing here is differentially private."
ROWS_JOINED = (
    "Each party gets which of its rows join, how often, and how many joined rows there are."
)


def nothing_leaves(at: str) -> str:
    return f"Nothing leaves {at}, where all tables and the coordinator are."


def hashed_keys(plan: FederatedPlan) -> Fact:
    return Fact(
        "Join keys leave as keyed hashes: whoever has the parties' secret can test guesses.",
        f"These are AES-256-CMAC tags under a key of this {'run' if plan.join is None else 'join'},"
        " which follows from that secret.",
    )


def in_process(parties: str) -> str:
    return f"{parties} in the coordinator's process: whoever holds it can read everything there."


def placed(plan: FederatedPlan) -> Fact | None:
    """Return the consequences of the coordinator's place; None if it is at no party."""
    at = plan.at
    if at is None:
        return None
    if all(client.party.lower() != at.lower() for client in plan.databases):
        return Fact(f"The coordinator runs at {at}, which has no table here.", _SECRET.format(at))
    return Fact(
        f"The coordinator runs at {at}: what {at} sends it stays there, and {at} learns what is "
        "said here of the coordinator.",
        _SECRET.format(at),
    )


_SECRET = (
    "As a party {0} also has the parties' secret, and so can test guesses of the values behind the "
    "tags that it gets."
)


def residuals(plan: FederatedPlan) -> str:
    noised = "noised " * bool(plan.protection.labels)
    return (
        f"Each party gets sums of {noised}label residuals for its rows, which may tell their "
        f"{noised}labels."
    )


def stragglers(plan: FederatedPlan) -> Iterator[Fact]:
    training = plan.options if isinstance(plan.options, TrainingOptions) else None
    if training is not None and training.method.waits is not None:
        yield Fact(
            f"After {training.method.waits:g} s a step goes on without late parties: the model "
            "depends on who was late.",
            "It takes what these have last predicted, and sends them fewer messages.",
        )


def combined(plan: FederatedPlan) -> Iterator[Fact]:
    """Yield a fact on parties that combine their clients."""
    if not plan.combining:
        return
    summed = "; what is noised is noised after that, once" if plan.protection.features else ""
    trained = f"sums over their rows are made of all of them before they leave{summed}, and "
    alike = ", and takes rows of two of them for different ones" * plan.merges
    yield Fact(
        f"The databases of {listed(plan.combining)} are one domain of trust: what they hand to "
        "their party is neither counted nor noised.",
        f"They are one client to the coordinator: {trained * bool(plan.algorithm)}it is not told "
        f"which of them has a row{alike}. To their party they send all that one client works out "
        "of its rows, and categories as keyed hashes. Only names and types, before there is a "
        "plan, are asked of each for itself.",
    )


ROTATED = (
    "Not protected: of every active row the coordinator gets a number for each encoded column of "
    "its table, X R: the columns mixed by a random orthogonal matrix R that the party keeps for "
    "the run. Distances and angles between rows are those of their features, and equal rows show "
    "as equal. Whoever knows the features of as many independent rows as there are columns can "
    "undo R, and columns of few values, as categories have, may be told apart without that. Beside "
    "them, in the same basis, are the weights, and so the table's part of every score, and the row "
    "of zeros. Coefficients and errors come back in the features' own units: of a table with up to "
    "three encoded columns they decide R and so every value; of several classes perhaps with more. "
    "Where a column that is left out is part of the intercept, its owner sends vectors in a basis "
    "that all parties know and the coordinator does not: their lengths and angles give the "
    "intercept's variance. A coordinator that sends other matrices than those of its rows learns "
    "entries of R from what comes back."
)
NAMED = (
    "Not protected: whoever gets the result learns the coefficients of all parties, the names of "
    "categories that clients have in their rows, and which category was the most frequent in "
    "training."
)
PERMUTED = (
    "Not protected: partial predictions of every active row leave in clear, as they are and with "
    "each feature permuted. "
)
UNSEEDED = (
    "Which rows change places each client draws by chance and tells nobody. But what a row's "
    "predictions lose on average over the repeats is what the feature adds to its score, but for a "
    "constant and for chance: of r repeats by the spread of these over the root of r."
)
SEEDED = (
    "The seed tells which rows change places: with it the coordinator can work out what each "
    "feature adds to each row's score, but for a constant, and so values of features but for "
    "scale and shift. Leave seed out, and each client draws by chance."
)
CONTRIBUTED = (
    "Not protected: what each feature adds to the score of every active row leaves in clear. Of a "
    "number that is the value but for scale and shift; of a category it shows which rows have it."
)


SKEWED = (
    "Not protected: of each feature the coordinator learns the mean and the share of NULL, of the "
    "rows of training and of these, how far these are apart, and the share of categories that "
    "training did not have."
)
PROFILED = (
    "Not protected: of each feature the coordinator learns in how many joined rows it is NULL, how "
    "many values it has, and of numbers the mean and a range, whose ends {least:,} rows or more "
    "have or are beyond."
)
EXPLAINED = (
    "Not protected: parties with features get the target of every active row, scaled, and summed "
    "where it is joined several times; the coordinator learns how much of it each feature explains."
)


def looked(plan: FederatedPlan) -> list[str]:
    """Return what a diagnostic does not protect; empty if it exchanges the same as EVALUATE."""
    kinds = {disclosure.kind for disclosure in plan.disclosures}
    notes = [ROTATED + _known(plan)] if "rotated" in kinds else []
    notes += [NAMED] if "errors" in kinds else []
    if isinstance(plan.look, Importance) and "predictions" in kinds:
        notes.append(PERMUTED + (UNSEEDED if plan.look.seed is None else SEEDED))
    notes += [SKEWED] if "skew" in kinds else []
    notes += [CONTRIBUTED] if "contributions" in kinds else []
    if isinstance(plan.look, Check) and "profile" in kinds:
        notes.append(PROFILED.format(least=plan.look.min_cell))
    notes += [EXPLAINED] if "send_explained" in kinds else []
    return notes


def _known(plan: FederatedPlan) -> str:
    """Return who else knows R."""
    shared = [s.name for s in plan.ucq.slots if s.features and len(s.parties) > 1]
    if not shared:
        return ""
    return f" Of {listed(shared)}, which several parties hold, each of them knows R."


def sent_of_features(plan: FederatedPlan) -> str | None:
    """Return the sentence that replaces "No feature value is sent as such"; None where
    that holds.
    """
    kinds = {disclosure.kind for disclosure in plan.disclosures}
    if "contributions" in kinds:
        return "Parts of rows' scores are sent, one for each feature."
    if "errors" in kinds:
        return "No row's feature value is sent as such, but names of categories are."
    return None


def join_words(plan: FederatedPlan) -> str | None:
    """Return what the coordinator collects, if not scores alone."""
    if isinstance(plan.look, SkewOptions):
        return "the mapping alone"
    if isinstance(plan.look, Check):
        return "counts of join keys and of the mapping"
    if isinstance(plan.look, Inference):
        return "z = (1, A_i X_i R_i); H; information Σ w φ'' z zᵀ, whose inverse is the covariance"
    return None


def client_words(plan: FederatedPlan) -> str | None:
    """Return what a client computes from its rows, if not scores alone."""
    match plan.look:
        case Inference():
            return "X R of the saved block's columns; standard errors from the covariance of Rᵀ θ"
        case Importance():
            return "h of the saved block, and with each feature permuted"
        case Check():
            return "of each feature NULLs, values, range, mean and what it explains of the target"
        case SkewOptions():
            return "of each feature how it differs from the rows of training, as the block has them"
        case ContributionsOptions() if plan.look.features:
            return "h of the saved block, and of each feature"
    return None


STATISTICS = (
    "For slots of several clients, each client's statistics leave within public bounds and noised, "
    "every row counted once. Names of categories leave as HMAC-SHA256 tags that all clients of the "
    "slot can compute; those that are rare, up to noise, do not."
)


def protects(plan: FederatedPlan, *, here: bool = True) -> tuple[str, ...]:
    """Return the protections that hold without noise. `here`: whether a party may be in the
    coordinator's process.
    """
    kinds = {disclosure.kind for disclosure in plan.disclosures}
    sent = "No feature value is sent as such."
    if "column" in kinds and "direction" not in kinds:
        sent = "Values of features are sent, of the columns that are chosen."
    sent = sent_of_features(plan) or sent
    if "ranges" in kinds:
        sent = f"Of features, {_ranges(plan)} leave, for TRANSFORM."
    notes = [f"{sent} The tables above list all that leaves a party."]
    if "join_keys" in kinds:
        notes += [hashed_keys(plan).text, *[in_process("Parties may run")] * here]
    if plan.disclosures and any(item.kind == "labels" for item in plan.staying):
        notes.append(f"The labels of {plan.at} do not leave it.")
    return tuple(notes) if plan.protection else (*notes, NOTHING)


def _ranges(plan: FederatedPlan) -> str:
    """Return what `ranges` holds, by the functions that need it."""
    items = itertools.chain.from_iterable(plan.specifications.values())
    functions = set().union(*(fitted_by(item) for item in items if item.shared))
    parts = (
        ("least and greatest values", functions & set(ENDS)),
        ("means", "impute" in functions),
        ("points of curves", AUTO in functions),
    )
    return listed(words for words, sent in parts if sent)


LASTING = (
    "Not protected: rows have the same numbers and hashed keys in all statements over a join that "
    "lasts. The coordinator can put together what these statements tell of a row."
)


def caveats(plan: FederatedPlan) -> tuple[str, ...]:
    """Return what is not protected in this plan. The privacy report states guarantees of noise."""
    kinds = {disclosure.kind for disclosure in plan.disclosures}
    notes = _coordinator(plan)
    if kinds and plan.purpose != JOIN:
        notes.append(_join_graph(plan))
    if plan.join is not None:
        notes.append(LASTING)
        if plan.join.labels:
            notes.append("Not protected: labels are in clear at the coordinator, since before.")
    notes += _outer_joins(plan)
    if "labels" in kinds and not plan.protection.labels:
        notes.append(_labels(plan))
    if "labels" not in kinds or plan.protection.labels or plan.purpose == "train":
        notes += plan.notes
    if "weigh" in kinds:
        notes.append(_weights(plan, kinds))
    elif "weights" in kinds:
        notes.append("Not protected: weights are in clear at the coordinator.")
    if "offsets" in kinds:
        notes.append("Not protected: offsets are in clear at the coordinator.")
    if "findings" in kinds:
        notes.append(
            "Not protected: warnings about features. The coordinator learns, without a value, "
            "which features are NULL in every row"
            + (
                ", the same in every row, or a text for nearly every row."
                if plan.purpose == "train"
                else ", and how many joined rows have a category that the model does not know."
            )
        )
    if "separated" in kinds:
        notes.append(
            "Not protected: separation. Parties learn which of their rows are joined with rows of "
            "one class only, as they do from the "
            + ("targets" if plan.purpose == "check" else "residuals of the first iteration")
            + "; the coordinator learns which features and categories have rows of one class only. "
            "Parties with policies are not asked."
        )
    if "column" in kinds:
        notes.append(_columns(plan, sketched="direction" in kinds))
    elif "residuals" in kinds:
        notes.append(_predictions(plan) if "masked_embeddings" not in kinds else _sums(plan))
    elif "predictions" in kinds and "score_permuted" not in kinds:
        notes.append(
            "Not protected: partial predictions of every active row leave in clear; the "
            "coordinator adds them up and holds the result."
        )
    notes += looked(plan)
    if "identifiers" in kinds:
        notes.append(
            "Not protected: identifiers are in clear at the coordinator, beside the predictions; "
            "so are the values of a feature that ID lists."
        )
    notes += _into(plan)
    notes += _unions(plan, kinds)
    notes += [fact.text for fact in (*combined(plan), *stragglers(plan))]
    notes += [
        TRUSTED,
        "Each client's snapshot is consistent (one transaction); the parties have no common "
        "instant.",
        "If a database fails, its client sends one message more: the kind of error and a text "
        "without values. The run then ends.",
    ]
    return tuple(notes)


def _labels(plan: FederatedPlan) -> str:
    note = "Not protected: labels are in clear at the coordinator."
    if plan.notes and plan.purpose != "train":
        note += f" {' '.join(plan.notes)}"
    elif plan.purpose == "evaluate":
        note += " Loss and metrics are exact functions of them: those of one row tell its label."
    return note


def _coordinator(plan: FederatedPlan) -> list[str]:
    """Return the consequences of the coordinator's place."""
    at, place = plan.at, placed(plan)
    if at is None or place is None:
        return []
    if not plan.disclosures:
        return [nothing_leaves(at)]
    notes = [place.text]
    joins = any(slot.keys for slot in plan.ucq.slots for c in slot.clients if not plan.crosses(c))
    if joins and any(item.kind == "join_keys" for item in plan.disclosures):
        notes.append(
            f"Not protected: {at} can tell which of its own rows are joined with which rows of the "
            "others. So it knows the join keys of these rows, and whom their predictions are about."
        )
    return notes


def _has_both(plan: FederatedPlan) -> str:
    """The parties' secret, and the coordinator's place."""
    return "" if plan.at is None else f": {plan.at} has both"


def _warm(plan: FederatedPlan) -> bool:
    return any(item.warm for client in plan.clients for item in plan.specifications[client])


def _join_graph(plan: FederatedPlan) -> str:
    seed = any(item.seed is not None for items in plan.specifications.values() for item in items)
    numbered = "numbered by the seed" if seed else "randomly numbered"
    lead = "Of the join graph the" if plan.protection else "Not protected: the join graph. The"
    note = (
        f"{lead} coordinator learns how many rows each fragment has, "
        f"how many distinct keys, which ({numbered}) rows have the same key, which match, "
        f"and how often. {ROWS_JOINED}"
    )
    if seed:
        note += (
            " With a seed, rows have the same numbers in every run that takes the same snapshot of "
            "them: the coordinator can tell a row again, and whoever has the client's tables and "
            "the seed can tell which row has which number"
        )
        split = any(slot.split for slot in plan.ucq.slots)
        note += ", and which are for validation." if split or plan.draws_units else "."
    return note


def _predictions(plan: FederatedPlan) -> str:
    """Return what training rounds disclose about columns and labels."""
    if plan.protection.predictions:
        return _residuals(plan)
    equal = "which rows have equal features, even where predictions would not tell them apart; "
    note = f"Not protected: {equal if plan.merges else ''}"
    note += "partial predictions of every active row leave in clear in every round. "
    if plan.tower is None:
        note += (
            "They are linear in the encoded columns: those of a slot with one column are that "
            "column up to its scale, and as many rounds as columns may give all of them up to a "
            "linear map. "
        )
    else:
        outputs = "d_c" if plan.tower.outputs is None else str(plan.tower.outputs)
        note += (
            f"They are {outputs} numbers a row, not linear in the encoded columns, and yet exact "
            "functions of them: rows with equal columns have equal predictions, and the rounds "
            "together may tell the columns. "
        )
        if not _warm(plan):
            note += (
                "The first ones are of parameters that the coordinator can draw itself, for it "
                "knows their seed. "
            )
    return note + _residuals(plan)


def _columns(plan: FederatedPlan, *, sketched: bool) -> str:
    """Return what chosen columns disclose."""
    known = "which encoded columns have a weight, by their numbers, and the weights"
    if plan.protection.predictions:
        told = f"The coordinator knows {known}, as noised choices and sums tell them. "
        return told + _residuals(plan)
    disclosed = (
        "random sums over the joined rows of each encoded column that is chosen leave in clear"
        if sketched
        else "each encoded column that is chosen leaves in clear, a value for each row: it is a "
        "feature, but for scale and shift, or which rows have a category"
    )
    equal = "which rows have equal features; " * plan.merges
    return f"Not protected: {equal}{disclosed}. The coordinator knows {known}. {_residuals(plan)}"


def _sums(plan: FederatedPlan) -> str:
    """Return what sums of embeddings over all slots disclose."""
    note = (
        "Of each joined row the coordinator gets the sum of all slots' embeddings, once an epoch: "
        "each client's are under masks (X25519, HKDF-SHA256, ChaCha20), which it shares with the "
        "clients of all slots and which cancel in the sum. Public keys are sealed by the "
        "federation's secret; who has that, and the coordinator's place, can take a client's"
        f"{_has_both(plan)}. "
    )
    if not plan.protection.predictions:
        note = f"Not protected: sums of embeddings, which are exact functions of features. {note}"
        slots = sum(bool(slot.features) for slot in plan.ucq.slots)
        note += "Of this one slot, sums are its embeddings. " if slots == 1 else (
            "Together with the parties of all slots but one, it has that one's embeddings. "
        )  # fmt: skip
    return note + _residuals(plan)


def _residuals(plan: FederatedPlan) -> str:
    """Return what rounds disclose to clients."""
    note = residuals(plan)
    if plan.tower is not None and plan.tower.outputs is not None:
        note += (
            " They come through the head's weights, and tell what space these span"
            ": with one output, the weights up to scale."
        )
    return note


def _into(plan: FederatedPlan) -> list[str]:
    if plan.into is None:
        return []
    party = plan.into.clients[0].party
    return [
        f"Identifiers do not leave {party}: its own database joins them with the predictions. "
        f"It learns the prediction of every joined row that its rows take part in"
        + (", and which of its rows occur together." if len(plan.into.slots) > 1 else ".")
    ]


def _unions(plan: FederatedPlan, kinds: set[str]) -> list[str]:
    """Return notes on slots of several clients."""
    notes = _secret(plan)
    if "statistics" in kinds and plan.protection.statistics:
        notes.append(STATISTICS)
    elif "statistics" in kinds:
        notes.append(
            "Not protected: for slots of several clients, the coordinator learns each client's "
            "weighted means and variances, missing values, and how often each category occurs; of "
            "a client with one active row these are the row. Category names leave as HMAC-SHA256 "
            "tags that all clients of the slot can compute"
            + (
                ", and that are those of the model that training starts from."
                if _warm(plan)
                else "."
            )
        )
    tower = plan.tower is not None
    sums = [
        words
        for kind, words in (
            ("gram", "second moments"),
            ("cells", "sums by ranges of two features"),
            ("partial_gradient", "partial gradients" + (" of all parameters" if tower else "")),
            ("consensus_part", "local parameters"),
        )
        if kind in kinds
    ]
    shared = any(len(slot.clients) > 1 for slot in plan.ucq.slots)
    if sums and shared and plan.protection.features:
        notes.append(_noised_sums(plan.protection, sums))
    elif sums and shared:
        note = (
            f"Not protected: for slots of several clients, each client's {' and '.join(sums)} "
            "reach the coordinator in clear, without secure aggregation. It sends the sums back "
            "to each of them: one of two clients can compute the other's."
        )
        if tower and "consensus_part" in kinds:
            note += " So it knows the towers of these slots: their parameters are the averages."
        elif tower:
            note += (
                " A gradient of one row, as of a small batch, is that row's columns up to scale."
            )
            if not _warm(plan):
                note += (
                    " And the coordinator can follow the parameters of these slots' towers, from "
                    "the first ones on."
                )
        notes.append(note)
    return notes


def _secret(plan: FederatedPlan) -> list[str]:
    """Return notes on secure sums."""
    words = [_SUMMED[kind] for kind in _SUMMED if kind in plan.secret_sums]
    if not words:
        return []
    sums = listed(words)
    note = (
        f"For slots of several clients, {sums} reach the coordinator as sums over all clients of "
        "the slot. Each client adds masks (X25519, HKDF-SHA256, ChaCha20), which it shares with "
        "every other one and which cancel in the sum. Each client gets the sums back: one of two "
        "clients can compute the other's. The federation's secret seals public keys; who has that, "
        f"and the coordinator's place, can take a client's{_has_both(plan)}."
    )
    if plan.protection.features:
        note += (
            " Each client adds so much noise to its part that the sum without any one client's has "
            "all of it."
            if plan.protection.predictions
            else " Each client adds its share of the noise to its part."
        )
    if "statistics" in plan.secret_sums:
        note += (
            " Not hidden: which categories each client has, as HMAC-SHA256 tags that all clients "
            "of the slot can compute."
        )
    return [note]


_SUMMED = {
    "statistics": "statistics of the columns",
    "gram": "second moments",
    "partial_gradient": "partial gradients",
}


def _noised_sums(protection: Protection, names: Sequence[str]) -> str:
    """Return a note on slots of several clients with protected features; `names` are the summed
    quantities.
    """
    said = f"each client's {' and '.join(names)} reach the coordinator"
    if protection.predictions:
        return (
            f"For slots of several clients, {said} without secure aggregation, and so each client "
            "adds the whole noise to what it sends."
        )
    return (
        f"Not protected: for slots of several clients, {said} without secure aggregation, and with "
        "only its share of the noise; the sum, that each of them gets, has all of it but what it "
        "knows to be its own."
    )


def _weights(plan: FederatedPlan, kinds: set[str]) -> str:
    known = [
        words
        for kind, words in (("weights", "weights"), ("split", "which rows are for validation"))
        if kind in kinds
    ]
    told = f"{' and '.join(known)} are in clear at the coordinator. " if known else ""
    sent = kinds | {disclosure.kind for disclosure in plan.staying}
    learnt = ["the weights of other parties' rows"] if "weights" in sent else []
    if "split" in sent or plan.draws_units:
        learnt.append("how many joined rows of each are for validation")
    if plan.tuning is not None:
        alike = ", by folds with as many rows of each class" * kind_of(plan.kind).classifies
        learnt.append(f"which of its rows are held out together{alike}")
    if plan.training.class_weight is not None:
        noised = bool(plan.protection.labels)
        learnt.append(f"the {'noised ' * noised}classes of its rows")
    return (
        f"Not protected: {told}Each client with features learns the sum of the weights of the "
        "joined rows that each of its rows occurs in, and of all of them; that may tell "
        f"{', '.join(learnt)}."
    )


def _outer_joins(plan: FederatedPlan) -> list[str]:
    slots = plan.ucq.slots
    notes = []
    if any(block.lefts for block in plan.ucq.blocks):
        notes.append(
            "Not protected: which rows a LEFT JOIN finds no partner for, at the coordinator; each "
            "table on its right learns how many joined rows have none."
        )
    unit = plan.ucq.unit
    if unit is not None:
        of = next(slot.name for slot in slots if slot.units)
        notes.append(
            f"Not protected: which rows of {of} have the same {unit.unit}, and which have NULL, at "
            "the coordinator."
        )
    of_unit = set() if unit is None else {unit.index}
    nullable = ", ".join(slot.name for slot in slots if {*slot.nullable} - of_unit)
    if nullable:
        notes.append(
            f"Not protected: which rows of {nullable} have NULL as a join key. A condition of ON "
            "over rows before the LEFT JOIN counts as such: the key is NULL where it fails."
        )
    links = ", ".join(slot.name for slot in slots if any(f.links for f in slot.fragments))
    if links:
        notes.append(
            f"Not protected: which rows of {links} fail the condition that WHERE sets after the "
            "LEFT JOIN, or have no label. They take part in the join, at the coordinator."
        )
    return notes
