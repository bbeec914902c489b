"""The report's sentences: the promises and their conditions, each only where it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlfl.messages.disclosed import listed
from sqlfl.planner.explain import draws
from sqlfl.planner.explain.card import TRUSTED, upwards
from sqlfl.planner.explain.facts import NOTHING, Fact, combined, nothing_leaves
from sqlfl.planner.explain.setting import (
    PrivacyClaim,
    ReportSetting,
    Unit,
    derived,
    features_of,
    repeated,
    tables_of,
    unit_of,
)
from sqlfl.planner.query import lineage
from sqlfl.planner.query.lineage import Use
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import CHOICES, COLUMNS, CROSSES, MOMENTS, Gaussian, Selection
from sqlfl.privacy.protection import NoisedColumns, PublicBounds

COLUMN_KIND = "chosen columns"
COLUMN_SUMS = "functions of chosen columns, in residuals"


def columns_seen(setting: ReportSetting) -> str:
    """Return what the coordinator learns from a run without noise."""
    values = "the values of the columns that are chosen, for each row,"
    if setting.sketched:
        values = "random sums of the columns that are chosen, over the joined rows,"
    return f"keyed hashes of the join keys, the join graph, {values} and their weights."


def column_mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Return the mechanism that releases a slot's columns."""
    noise = setting.protection.features
    if not isinstance(noise, NoisedColumns):
        return "random sums of each, exact" if setting.sketched else "the values of each, exact"
    told = _column_noise(setting, slot)
    if told is None:
        return noise.told
    choices, columns, rounds = told
    return (
        f"at most {choices.count} choices by scores with {noise.mechanism.capitalize()} noise, "
        f"ε = {choices.epsilon:.4g} each; at most {columns.count} random sums of columns with "
        f"Gaussian noise of {columns.multiplier:.4g} times what one row moves them by; values "
        f"clipped to {rounds[0]:.4g}, residuals to {rounds[1]:.4g}"
    )


def _column_noise(
    setting: ReportSetting, slot: Slot
) -> tuple[Selection, Gaussian, tuple[float, float]] | None:
    rounds = setting.rounds(slot)
    if setting.calibration is None or rounds is None:
        return None
    events = setting.calibration.events[slot.index]
    choices = next(e for e in events if isinstance(e, Selection) and e.what == CHOICES)
    columns = next(e for e in events if isinstance(e, Gaussian) and e.what == COLUMNS)
    return choices, columns, (rounds.column_bound, rounds.residual_bound)


def column_conditions(setting: ReportSetting) -> Iterator[str]:
    """Yield the conditions of noised choices and columns."""
    yield (
        "A client tells of a choice which column it is and its direction, never the noised score. "
        "It works out by itself how far one row can move a score and a random sum: from how often "
        "its rows are joined, the residuals and the public seed that it is sent, and the bounds, "
        "to which it clips."
    )
    yield (
        "Which columns are looked at (sample) is not counted as secret. Weights, intercept and "
        "loss are made of choices, noised sums and labels alone."
    )


EVALUATED = (
    "EVALUATE sends true labels unless it has PRIVACY (label_epsilon = ...): one row's loss tells "
    "its label."
)
LEARNT = (
    "keyed hashes of the join keys, the join graph, and exact predictions and gradients of each "
    "block."
)
ALSO_SEEN = {
    "weights": "the weights of rows",
    "split": "which rows are for validation",
    "statistics": "means, variances and counts of categories of each of a table's databases",
    "gram": "second moments of each of a table's databases",
    "cells": "residuals and counts by ranges of two features, of each of a table's databases",
    "partial_gradient": "gradients by all parameters of each of a table's databases",
    "consensus_part": "parameters of each of a table's databases",
}
"""Kind of message -> what it additionally discloses to the coordinator."""


def guarantees(setting: ReportSetting) -> tuple[Fact, ...]:
    """Return the guarantees with their numbers: labels, features, then both together."""
    if not setting.protection:
        return (Fact(f"{NOTHING} {_seen_labels(setting)}"),)
    return (_labels(setting), *_features(setting), *_both(setting), *_joined(setting))


def promises(setting: ReportSetting) -> tuple[str, ...]:
    """Return the guarantees with all details."""
    return tuple(item.text for item in guarantees(setting))


def summary(setting: ReportSetting) -> tuple[str, ...]:
    """Return the guarantees in short, and what none of them covers; for the model's card."""
    leads = tuple(item.lead for item in guarantees(setting))
    if not setting.protection:
        return leads
    rest = "Not protected: which rows there are and are joined; several runs together"
    rest += f"; PREDICT. {EVALUATED}" if setting.training else "."
    return (*leads, *beware(setting), rest)


def _seen_labels(setting: ReportSetting) -> str:
    """Return what observers see of labels and features in a run without noise."""
    at = setting.plan.at
    if not setting.plan.disclosures:
        return nothing_leaves(str(at))
    learnt = draws.SEEN if setting.summed else columns_seen(setting) if setting.chosen else LEARNT
    learnt = learnt.replace("the join keys", "the others' join keys") if at else learnt
    also = [words for kind, words in ALSO_SEEN.items() if kind in setting.kinds]
    more = f" It also sees {'; '.join(also)}." if also else ""
    if not setting.owners or not setting.plan.algorithm:
        seen = learnt.replace(" and gradients", "")
        return f"The coordinator{f' is at {at}. It' if at else ''} sees {seen}{more}"
    if at is None:
        return f"The coordinator sees the labels in clear, {learnt}{more}"
    if setting.elsewhere:
        labels = f"the labels of {', '.join(setting.elsewhere)} in clear"
        return f"The coordinator is at {at}, which sees {labels}, {learnt}{more}"
    return (
        f"The labels are sent to nobody: the coordinator is at {at}. {SUMS} The coordinator sees "
        f"{learnt}{more}"
    )


SUMS = "The gradients that the other parties get are sums over the labels, and may tell some."


# -- labels ---------------------------------------------------------------------------------------


def _labels(setting: ReportSetting) -> Fact:
    epsilon, at, asked = setting.label_epsilon, setting.plan.at, setting.privacy
    if epsilon is None:
        if not setting.elsewhere:
            nobody = f"Labels: none, but they are sent to nobody: the coordinator is at {at}."
            return Fact(nobody, SUMS)
        place = "" if at is None else f", which is at {at},"
        whose = "them" if at is None else f"those of {', '.join(setting.elsewhere)}"
        return Fact(f"Labels: none, the coordinator{place} sees {whose} in clear.")
    lead = (
        f"Labels: ({upwards(epsilon)}, 0)-DP for {setting.label.alone}, against "
        f"{setting.readers()}; drawn again where "
        f"{'its label' if all(setting.labelled.values()) else 'anything in its row'} changes."
    )
    details = (
        f"That holds with {setting.fixed('the features')} fixed, of all that leaves its client in "
        f"{'training' if setting.training else 'this evaluation'}, and against these together. "
        f"The label is noised once, by its owner ({setting.label_mechanism}), and all that is "
        f"{'trained' if setting.training else 'measured'} is made of the noised one."
    )
    if epsilon != asked.label_epsilon:
        details += (
            f" Of {setting.classes} classes, this mechanism's label_epsilon = "
            f"{asked.label_epsilon:g} is ε = {upwards(epsilon)}."
        )
    again = _again(setting, epsilon)
    if setting.fleeting:
        return Fact(f"{lead} {again}", details)
    return Fact(lead, f"{details} {again}")


def _again(setting: ReportSetting, epsilon: float) -> str:
    """Return the cost of a further run."""
    if not setting.fleeting:
        return (
            "Every further run that asks for the same label in the same way, with the same "
            f"label_epsilon, shows the same noised labels, and adds nothing. {_drawn_by(setting)}"
        )
    return (
        f"Labels are drawn anew in each session, and whenever the database is attached in it, for "
        f"{setting.fleeting}: m draws are (m · {upwards(epsilon)}, 0)-DP together."
    )


def _drawn_by(setting: ReportSetting) -> str:
    """Return the source of label noise, and so which changes draw new noise."""
    keyed = [table for table, held in setting.labelled.items() if held]
    whole = [table for table, held in setting.labelled.items() if not held]
    said = []
    if keyed:
        said.append(
            f"Label noise of {listed(keyed)} follows from the key that its owner has declared: a "
            "row is drawn anew only where its label changes."
        )
    if whole:
        said.append(
            f"Label noise of {listed(whole)} follows from the whole row, as no key is declared: a "
            "row that changes in any column is drawn anew, and each draw adds its ε."
        )
    return " ".join(said)


# -- features -------------------------------------------------------------------------------------


def _features(setting: ReportSetting) -> Iterator[Fact]:
    if not setting.protection.features:
        if setting.protection.predictions:
            yield Fact(draws.NONE, draws.unclaimed(setting))
        else:
            yield _exact(setting)
        return
    if not setting.protection.statistics:
        yield Fact(
            "Features: none, as statistics = 'none': means, scales and categories are exact.",
            "Features are encoded by these, and a change of one row moves them, though gradients "
            "are clipped and noised. With bounds of the features (feature_bounds), or "
            "statistics = 'noised', there is an ε.",
        )
        return
    for number, (claim, slots) in enumerate(setting.claimed(setting.slots).items()):
        unit = features_of(slots, setting.plan.ucq.slots)
        if number:
            held = f"Features: {_pair(claim)} for {unit.alone}, against the same."
            yield Fact(held, "That holds in the same way.")
        else:
            yield _of_features(setting, claim, unit)
    if not setting.together:
        yield Fact(
            "Features: none against the coordinator and the other parties, or in the metrics.",
            "The coordinator sees exact predictions of each row (predictions = 'exact'), the "
            "parties get exact sums of these, and history and metrics are made of them. "
            "predictions = 'gaussian' noises them.",
        )
    if setting.drawn and setting.claims:
        for held in draws.joined_rows(setting):
            yield Fact(
                f"Features of all rows that one joined row is made of: {held}, against the same.",
                f"That holds with {setting.fixed('the labels')} fixed.",
            )
        if setting.telling == 0:
            yield Fact(
                "Features: none against another party, which knows its own draws and gets "
                "functions of the sums.",
                "Without honest_parties any one of them is covered.",
            )


def _exact(setting: ReportSetting) -> Fact:
    """Return the sentences on features of a run that noises labels alone."""
    if setting.chosen:
        exact = f"{'random sums' if setting.sketched else 'values'} of chosen columns"
        details = "The coordinator sees them, and which columns these are."
    elif setting.summed:
        exact = "sums of embeddings"
        details = "The coordinator sees those of all tables: of one joined row they are exact "
        details += "functions of its features."
    else:
        exact = f"predictions{' and gradients' * setting.training}"
        details = "The coordinator sees those of each block: of one row they are exact functions "
        details += "of its features."
    return Fact(f"Features: none, {exact} are exact.", details)


def _of_features(setting: ReportSetting, claim: PrivacyClaim, unit: Unit) -> Fact:
    lead = (
        f"Features: {_pair(claim)}{',' * (claim.epsilon is None)} for {unit.alone}, against "
        f"{setting.coalition() if setting.together else ONLY_PARAMETERS}."
    )
    fixed = f"That holds with {setting.fixed('the labels')} fixed, of the released parameters"
    statistics = (
        "features are encoded by public bounds"
        if isinstance(setting.protection.statistics, PublicBounds)
        else "the noised statistics, by which features are encoded, are counted in that"
    )
    if not setting.together:
        return Fact(
            lead,
            f"{fixed}, the intercept among them; {statistics}, and the noise covers the effect of "
            "a row on the gradients of other tables.",
        )
    made = "predictions, gradients, and what is made of them: the intercept"
    if setting.drawn:
        made = "sums of embeddings, gradients, and what is made of them: the head"
    if setting.chosen:
        made = "choices of columns, random sums of these, and what is made of them: the weights"
    rest = "residuals, history, metrics"
    if setting.solved:
        made = "moments of columns, and what is made of them: the weights"
        rest = "the intercept, history, estimates"
    return Fact(
        lead,
        f"{fixed} and of all that leaves its {setting.releasing} in training ({made}, {rest}), and "
        f"against these together; {statistics}.",
    )


ONLY_PARAMETERS = "those who see nothing but the parameters"


def _pair(claim: PrivacyClaim, more: float = 0.0) -> str:
    if claim.epsilon is None:
        plus = f"{upwards(more)} + ε" if more else "ε"
        return f"({plus}, {claim.delta:g})-DP, with ε known once the join is"
    return f"({upwards(claim.epsilon + more)}, {claim.delta:g})-DP"


def _both(setting: ReportSetting) -> Iterator[Fact]:
    """Yield the guarantee for rows that have both features and a label."""
    epsilon = setting.label_epsilon
    for slot in setting.slots if epsilon is not None else ():
        if slot.target and slot.index in setting.claims:
            held = _pair(setting.claims[slot.index], epsilon or 0.0)
            unit = unit_of(slot, setting.plan.ucq.slots)
            yield Fact(
                f"Label and features of {unit}: {held}, against {_whom(setting)}.",
                f"That holds with {setting.fixed()} fixed.",
            )


def _whom(setting: ReportSetting) -> str:
    return "the same" if setting.together else ONLY_PARAMETERS


def _joined(setting: ReportSetting) -> Iterator[Fact]:
    """Yield the guarantee for a person who has a row in each table."""
    for held in _of_joined_row(setting):
        yield Fact(
            f"A whole joined row, as of a person in each table: {held}, against {_whom(setting)}.",
            f"Its rows, one of each table, change together, with {setting.fixed()} fixed.",
        )


def _of_joined_row(setting: ReportSetting) -> Iterator[str]:
    """Yield the guarantee for all features of a joined row, and for its label if noised. Yield none
    if only one table has any, or if features of one are not protected. For draws, see `draws`.
    """
    label, claims = (
        setting.label_epsilon,
        [setting.claims.get(slot.index) for slot in setting.slots],
    )
    tables = {slot.index for slot in setting.plan.ucq.slots if slot.features or slot.target}
    exact = label is None and any(
        slot.target for slot in setting.plan.ucq.slots if setting.elsewhere
    )
    if setting.drawn or not claims or None in claims or len(tables) < 2:
        return
    part = "of its features and label" if label is not None else "of its features"
    part += ", the label being exact" * exact
    joined = setting.joined
    if joined is None:
        yield f"{_pair(PrivacyClaim(None, setting.privacy.delta), label or 0.0)}, {part}"
    else:
        epsilon, delta = joined
        yield f"{_pair(PrivacyClaim(epsilon, delta), label or 0.0)} {part}"


# -- what it rests on -----------------------------------------------------------------------------


def assumptions(setting: ReportSetting) -> tuple[str, ...]:
    """Return the conditions of the promises; empty if nothing is noised."""
    if not setting.protection:
        return ()
    parts: list[Iterable[str]] = [_rows(setting), _runs(setting)]
    if setting.label_epsilon is not None:
        parts.append(_noised_labels(setting))
    if setting.claims:
        parts.append(_noised_features(setting))
    if setting.drawn:
        parts.append(draws.rests(setting))
    if setting.chosen and setting.claims:
        parts.append(column_conditions(setting))
    if setting.solved and setting.claims:
        parts.append(rests(setting))
    parts += [beware(setting), unseen(setting), _always(setting)]
    return tuple(text for part in parts for text in part)


def _rows(setting: ReportSetting) -> Iterator[str]:
    """Yield the unit whose change the guarantee is about."""
    yield (
        "The join graph, row ids, multiplicities and table sizes are not protected, nor which rows "
        "there are: join keys, conditions of WHERE and ON, and whether a row has a label decide it."
    )
    if setting.privacy.max_fan_out is not None:
        yield (
            f"No row is in more than {setting.privacy.max_fan_out} joined rows: the "
            f"coordinator drops "
            "further ones at random, and knows which they are; that depends on the join graph only."
        )
    slots = [s for s in setting.plan.ucq.slots if s.features or s.target]
    at = setting.plan.at
    if at in setting.parties:
        yield f"The coordinator's party, {at}, knows its own rows: of these it learns nothing new."
    yield from (fact.text for fact in combined(setting.plan))
    made = [f"{slot.name} ({', '.join(tables_of(slot))})" for slot in slots if derived(slot)]
    if made:
        yield (
            f"A row of {', '.join(made)} is one that its SELECT gives, and may be made of several "
            "rows or tables: a row of these may count in any number of them, and nothing is "
            "promised of it."
        )
    same = repeated(slots)
    if same:
        yield (
            f"{', '.join(same)}: at several places of the join, or in several parts of a UNION. A "
            "row of it may be a row of each, and the effects of these add up; what is promised is "
            "of one of them."
        )
    yield (
        "A person with several rows of a table is protected less: the effects of the rows add up."
    )


def _runs(setting: ReportSetting) -> Iterator[str]:
    if setting.claims:
        yield (
            "Every further run adds its own ε and δ of features, also one that fails or is "
            "interrupted, or whose model is dropped. An account over runs is kept only where the "
            "policy of a table's owner has epsilon: of that table, and for each analyst by itself."
        )
    if setting.training:
        yield f"{EVALUATED} It is not covered, nor is what PREDICT and functions of a block give."


def _noised_labels(setting: ReportSetting) -> Iterator[str]:
    kept = "a secret that its client keeps with its database or in its store; without that it is "
    kept += "drawn anew"
    if setting.fleeting:
        kept = "a secret that goes with the session: attach(..., store=...), of a federation with "
        kept += "a file, keeps it"
    yield (
        f"A label is drawn once per row, under {kept}. Copies in the join, other features and "
        "other rows, other models, runs that fail and models that are dropped do not change it."
    )
    yield (
        "Another label_epsilon, label_mechanism, bounds or classes is another draw, and so is a "
        "label, table, view or subquery that is written otherwise and not seen to be the same: the "
        f"ε of all draws of a label add up. {f'{_drawn_by(setting)} ' if setting.fleeting else ''}"
        "That a row has changed may show."
    )
    bounds = setting.privacy.label_bounds
    if bounds is not None:
        yield f"Labels are clipped to [{bounds[0]:g}, {bounds[1]:g}], which is public."
    else:
        yield "Which classes there are is public: they are those of the statement or the type."
    of = " of the training" * setting.training
    yield f"Loss and metrics{of} are of noised labels, not of the true ones."


def _noised_features(setting: ReportSetting) -> Iterator[str]:
    if setting.protection.statistics:
        yield "Bounds and lists of categories of features are public; values are clipped to them."
    yield (
        "The ε is that of all the steps that were planned, also where fewer were made. No secret "
        "sampling is counted in its favour."
    )
    if setting.together:
        made = "sums of draws" if setting.drawn else "noised predictions"
        made = "noised columns" if setting.chosen else "noised moments" if setting.solved else made
        yield f"Loss and metrics of the training are of {made}."


def _always(setting: ReportSetting) -> Iterator[str]:
    yield f"{TRUSTED} How long things take, and errors, are not covered."
    drawn = ["that of labels follows from keyed hashes of rows, under such a secret"]
    drawn = drawn * (setting.label_epsilon is not None) + ["values lie on a public grid"]
    yield f"Noise comes from the operating system's generator; {'; '.join(drawn)}."


# Report texts on moments of columns, which clients release in place of predictions.

KIND = "moments of columns"
SOLVED = "functions of noised moments, in parameters"


def mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Describe the noise of a slot's sums and fits."""
    second, cross = setting.multiplier(slot, MOMENTS), setting.multiplier(slot, CROSSES)
    rounds, leads = setting.rounds(slot), setting.plan.ucq.leading == slot.index
    summed = "moments with the label"
    if two_rounds(setting):
        summed += ", and fits of its rows," if leads else " and with another table's fits"
    if rounds is None or second is None or cross is None:
        return f"second moments and {summed}, rows bounded, Gaussian noise, once each"
    secret = ", made in secret over the table's clients" * setting.secret("gram")
    secret += ", fits apart" * bool(secret and rounds.prediction_noise)
    return (
        f"second moments with Gaussian noise of {second:.4g} times what one row moves them by, and "
        f"{summed} with {cross:.4g} times that{secret}, once each; a row counts "
        f"{rounds.row_weight:.4g} at most, and its values are clipped to {rounds.column_bound:.4g}"
    )


def two_rounds(setting: ReportSetting) -> bool:
    """Return whether a table releases fits of its rows."""
    return setting.plan.training.listed()["rounds"] == 2


def rests(setting: ReportSetting) -> Iterator[str]:
    """Yield the conditions of noised moments."""
    yield (
        "A client works out by itself how far one row can move its sums: from how many columns "
        "they have, and from what it clips values, weights and label sums to. How much a row "
        "counts, and where label sums are cut, follows from labels and join graph alone."
    )
    if not two_rounds(setting):
        yield (
            "Weights, intercept and all estimates of how good the model is are made of noised "
            "moments and labels alone. No row's prediction leaves its client."
        )
        return
    (name,) = (s.name for s in setting.slots if s.index == setting.plan.ucq.leading)
    yield (
        "Weights, intercept and all estimates of how good the model is are made of noised moments "
        f"and fits, and labels, alone. Fits of rows, of {name} alone, leave once, noised by how "
        "far its weights and the bounds of columns let two rows be apart. With rounds = 1 none do."
    )


# -- columns that exact and noised data share ----------------------------------------------------


def beware(setting: ReportSetting) -> Iterator[str]:
    """Yield a warning for each label and each set of features that other, exact data discloses."""
    claimed = [
        use for use in setting.uses if use.what == lineage.FEATURE and use.slot in setting.claims
    ]
    exact = [use for use in setting.uses if use not in claimed]
    if setting.label_epsilon is None:
        yield from _of_shared_features(setting, claimed, exact)
        return
    labels = [use for use in exact if use.what == lineage.LABEL]
    exact = [use for use in exact if use not in labels]
    for label in labels:
        sharing = _sharing(setting, label, exact)
        if sharing:
            yield _shared_warning(_use_words(setting, label), sharing)
    yield from _of_shared_features(setting, claimed, exact)
    for label in labels:
        both = [use for use in claimed if use.meets(label)]
        if both:
            features = listed(_use_words(setting, use) for use in both)
            named = _use_words(setting, label).capitalize()
            yield (
                f"{named} and {features} share a column: a change of its values changes both, and "
                "their ε add up."
            )


def _shared_warning(name: str, exact: str, *, several: bool = False) -> str:
    """Return the warning that `exact` data is made of the same column as noised data."""
    share, whose = ("share", "Their") if several else ("shares", "Its")
    return (
        f"Beware: {name} {share} a column with {exact}, which this noise does not cover. {whose} ε "
        f"is about changes that leave {exact} as it is."
    )


def _of_shared_features(
    setting: ReportSetting, claimed: Iterable[Use], exact: Iterable[Use]
) -> Iterator[str]:
    groups: dict[str, list[Use]] = {}
    for feature in claimed:
        sharing = _sharing(setting, feature, [u for u in exact if u.what != lineage.FEATURE])
        if sharing:
            groups.setdefault(sharing, []).append(feature)
    for sharing, features in groups.items():
        names = listed(_use_words(setting, use) for use in features)
        yield _shared_warning(names, sharing, several=len(features) > 1)


def _sharing(setting: ReportSetting, use: Use, others: Iterable[Use]) -> str:
    return listed(dict.fromkeys(_use_words(setting, other) for other in others if other.meets(use)))


def _use_words(setting: ReportSetting, use: Use) -> str:
    name = setting.plan.ucq.slots[use.slot].name
    words = {
        lineage.FEATURE: f"feature {use.name} of {name}",
        lineage.LABEL: f"the label of {name}",
        lineage.WEIGHT: f"the weight of {name}",
        lineage.OFFSET: f"the offset of {name}",
        lineage.KEY: f"a join key of {name}",
        lineage.CONDITION: f"a condition of WHERE or ON over {name}",
    }
    return words[use.what]


def unseen(setting: ReportSetting) -> Iterator[str]:
    """Yield a sentence about relations between columns that these checks cannot see."""
    views = lineage.views(setting.plan.ucq)
    named = f" ({', '.join(views)})" if views else ""
    yield (
        "These warnings follow from the statement alone. They do not see how a view"
        f"{named} computes its columns, nor which columns copy or determine others."
    )
