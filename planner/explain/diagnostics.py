"""Sentences of EXPLAIN about what diagnostics disclose in addition to EVALUATE and PREDICT."""

from __future__ import annotations

from sqlfl.base.sanitize import listed
from sqlfl.options.diagnostics import (
    Check,
    ContributionsOptions,
    Importance,
    Inference,
    SkewOptions,
)
from sqlfl.planner.federated.plan import FederatedPlan

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
