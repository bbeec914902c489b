"""The report's sentences: what is promised, and what that rests on. Each only where it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlfl.planner.explain import columns, draws, moments
from sqlfl.planner.explain.beside import beware, unseen
from sqlfl.planner.explain.card import TRUSTED, upwards
from sqlfl.planner.explain.setting import PrivacyClaim, ReportSetting
from sqlfl.planner.explain.units import (
    Unit,
    derived,
    features_of,
    listed,
    repeated,
    tables_of,
    unit_of,
)
from sqlfl.privacy.protection import PublicBounds

EVALUATED = (
    "EVALUATE sends the true labels, and the loss of one row tells its label; "
    "EVALUATE ... PRIVACY (label_epsilon = ...) noises them."
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
    "partial_gradient": "gradients by all parameters of each of a table's databases",
    "consensus_part": "parameters of each of a table's databases",
}
"""Kind of a message -> what the coordinator learns from it, beside what it always does."""


def promises(own: ReportSetting) -> tuple[str, ...]:
    """What holds, with its numbers; for labels and features apart, then together."""
    if not own.protection:
        return (_nothing(own),)
    return (*_labels(own), *_features(own), *_both(own), *_joined(own))


def _nothing(own: ReportSetting) -> str:
    """Without PRIVACY."""
    also = [words for kind, words in ALSO_SEEN.items() if kind in own.kinds]
    more = f" It also sees {'; '.join(also)}." if also else ""
    return f"none: no differential privacy. {_seen_labels(own)}{more}"


def _seen_labels(own: ReportSetting) -> str:
    """And what else is seen of a run without noise."""
    at = own.plan.at
    learnt = draws.SEEN if own.summed else columns.seen(own) if own.chosen else LEARNT
    learnt = learnt.replace("the join keys", "the others' join keys") if at else learnt
    if not own.plan.disclosures:
        return f"Nothing leaves {at}, where all tables and the coordinator are."
    if not own.owners or not own.plan.algorithm:
        seen = learnt.replace(" and gradients", "")
        return f"The coordinator{f' is at {at}. It' if at else ''} sees {seen}"
    if at is None:
        return f"The coordinator sees the labels in clear, {learnt}"
    if own.elsewhere:
        told = f"the labels of {', '.join(own.elsewhere)} in clear"
        return f"The coordinator is at {at}, which sees {told}, {learnt}"
    return f"{_at_labels(at)} {at} sees {learnt}"


def _at_labels(at: str) -> str:
    return (
        f"The coordinator is at {at}, whose labels are sent to nobody; the gradients that the "
        "other parties get are sums over them, and may tell some."
    )


# -- labels ---------------------------------------------------------------------------------------


def _labels(own: ReportSetting) -> Iterator[str]:
    epsilon, at = own.label_epsilon, own.plan.at
    if epsilon is None:
        if own.elsewhere:
            whose = "" if at is None else f" of {', '.join(own.elsewhere)}"
            place = "" if at is None else f", which is at {at},"
            yield f"Labels: none. The coordinator{place} sees the labels{whose} in clear."
        else:
            yield f"Labels: none. {_at_labels(str(at))}"
        return
    asked = own.privacy
    yield (
        f"For changing {own.label} with {own.fixed('the features')} fixed, all that "
        f"leaves its client in {_doing(own)} is ({upwards(epsilon)}, 0)-DP, against "
        f"{own.readers()} together. The label is noised once, by its owner "
        f"({own.label_mechanism}), and all that is {'trained' if own.training else 'measured'} is "
        "made of the noised one."
        + (
            f" Of {own.classes} classes, this mechanism's label_epsilon = {asked.label_epsilon:g} "
            f"is ε = {upwards(epsilon)}."
            if epsilon != asked.label_epsilon
            else ""
        )
    )
    yield _again(own, epsilon)


def _doing(own: ReportSetting) -> str:
    return "training" if own.training else "this evaluation"


def _again(own: ReportSetting, epsilon: float) -> str:
    """What asking once more costs."""
    if not own.fleeting:
        return (
            "Every further run that asks for the same label in the same way, with the same "
            f"label_epsilon, shows the same noised labels, and adds nothing. {_drawn_by(own)}"
        )
    return (
        f"Labels are drawn anew in each session, and whenever the database is attached in it, for "
        f"{own.fleeting}: m draws are (m · {upwards(epsilon)}, 0)-DP together."
    )


def _drawn_by(own: ReportSetting) -> str:
    """What noise of labels follows from, and so what draws it anew."""
    keyed = [table for table, held in own.labelled.items() if held]
    whole = [table for table, held in own.labelled.items() if not held]
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


def _features(own: ReportSetting) -> Iterator[str]:
    if own.protection.predictions and not own.protection.features:
        yield from draws.unclaimed(own)
        return
    if not own.protection.features:
        if own.chosen:
            yield f"Features: none. No noise is added to anything but labels: {columns.exact(own)}"
            return
        seen = "predictions and gradients" if own.training else "predictions"
        seen = f"{seen} of each block, of one row" if not own.summed else (
            "sums of all tables' embeddings, of one joined row"
        )  # fmt: skip
        yield (
            "Features: none. No noise is added to anything but labels: the coordinator sees exact "
            f"{seen} exact functions of its features."
        )
        return
    if not own.protection.statistics:
        yield (
            "Features: none, though gradients are clipped and noised. The means, scales and "
            "categories by which features are encoded are exact (statistics = 'none'), and a "
            "change of one row moves them. With bounds of the features (feature_bounds), or "
            "statistics = 'noised', there is an ε."
        )
        return
    for claim, slots in own.claimed(own.slots).items():
        yield _of_features(own, claim, features_of(slots, own.plan.ucq.slots))
    if not own.together:
        yield (
            "Against anyone who sees more than these: none for features. The coordinator "
            "sees exact predictions of each row (predictions = 'exact'), the parties get exact "
            "sums of these, and history and metrics are made of them. predictions = 'gaussian' "
            "noises them."
        )
    if own.drawn and own.claims:
        yield from (*draws.of_joined_rows(own), *draws.alone(own))


def _of_features(own: ReportSetting, claim: PrivacyClaim, unit: Unit) -> str:
    fixed = f"For changing {unit} with {own.fixed('the labels')} fixed"
    held = _pair(claim)
    statistics = (
        "features are encoded by public bounds"
        if isinstance(own.protection.statistics, PublicBounds)
        else "the noised statistics, by which features are encoded, are counted in that"
    )
    if not own.together:
        return (
            f"{fixed}, the released parameters, the intercept among them, are {held}; "
            f"{statistics}, and the noise covers the effect of a row on the gradients of other "
            "tables. This holds against someone who sees nothing but the parameters."
        )
    made = "predictions, gradients, and what is made of them: the intercept"
    if own.drawn:
        made = "sums of embeddings, gradients, and what is made of them: the head"
    if own.chosen:
        made = "choices of columns, random sums of these, and what is made of them: the weights"
    rest = "residuals, history, metrics"
    if own.solved:
        made = "moments of columns, and what is made of them: the weights"
        rest = "the intercept, history, estimates"
    return (
        f"{fixed}, the released parameters, and all that leaves its {own.releasing} in training "
        f"({made}, {rest}), are {held}; {statistics}. This holds against "
        f"{own.coalition()} together."
    )


def _pair(claim: PrivacyClaim, more: float = 0.0) -> str:
    if claim.epsilon is None:
        plus = f"{upwards(more)} + ε" if more else "ε"
        return f"({plus}, {claim.delta:g})-DP, with ε known once the join is"
    return f"({upwards(claim.epsilon + more)}, {claim.delta:g})-DP"


def _both(own: ReportSetting) -> Iterator[str]:
    """Of the rows that have a label, and features as well."""
    epsilon = own.label_epsilon
    if epsilon is None:
        return
    for slot in own.slots:
        if slot.target and slot.index in own.claims:
            whom = "the same" if own.together else "someone who sees nothing but the parameters"
            yield (
                f"For changing both the features and the label of "
                f"{unit_of(slot, own.plan.ucq.slots)} with "
                f"{own.fixed()} fixed: "
                f"{_pair(own.claims[slot.index], epsilon)}, against {whom}."
            )


def _joined(own: ReportSetting) -> Iterator[str]:
    """Of a person who has a row in each table."""
    for held in _of_joined_row(own):
        whom = "the same" if own.together else "someone who sees nothing but the parameters"
        yield (
            "For changing all rows that one joined row is made of, one of each table, as a person "
            f"has who is in each, with {own.fixed()} fixed: {held}, against {whom}."
        )


def _of_joined_row(own: ReportSetting) -> Iterator[str]:
    """What holds of all its features, and of its label where that is noised: nothing where one
    table alone has any, or where features of one are not protected. Of draws see `draws`."""
    label, claims = own.label_epsilon, [own.claims.get(slot.index) for slot in own.slots]
    tables = {slot.index for slot in own.plan.ucq.slots if slot.features or slot.target}
    exact = label is None and any(slot.target for slot in own.plan.ucq.slots if own.elsewhere)
    if own.drawn or not claims or None in claims or len(tables) < 2:
        return
    what = "of its features and label" if label is not None else "of its features"
    what += ", the label being exact" * exact
    found = own.joined
    if found is None:
        yield f"{_pair(PrivacyClaim(None, own.privacy.delta), label or 0.0)}, {what}"
    else:
        epsilon, delta = found
        yield f"{_pair(PrivacyClaim(epsilon, delta), label or 0.0)} {what}"


# -- in short -------------------------------------------------------------------------------------


def summary(own: ReportSetting) -> tuple[str, ...]:
    """A sentence each of labels and of features, and what neither covers; for the model's card."""
    if not own.protection:
        return promises(own)
    rest = "Not protected: which rows there are and are joined; several runs together"
    if own.training:
        rest += "; PREDICT; EVALUATE, where one row's loss tells its label (EVALUATE ... PRIVACY "
        rest += "(label_epsilon = ...) noises it)"
    rest += "."
    held = (
        _label_in_short(own), *_features_in_short(own), *_both_in_short(own),
        *_joined_in_short(own),
    )  # fmt: skip
    again = (_again(own, own.label_epsilon),) if own.label_epsilon and own.fleeting else ()
    return (*held, *again, *beware(own), rest)


def _label_in_short(own: ReportSetting) -> str:
    epsilon = own.label_epsilon
    if epsilon is not None:
        keyed = all(own.labelled.values())
        return (
            f"Labels: ({upwards(epsilon)}, 0)-DP for {own.label.alone}, against {own.readers()}; "
            f"drawn again where {'its label' if keyed else 'anything in its row'} changes."
        )
    if own.elsewhere:
        return "Labels: none, the coordinator sees them in clear."
    return f"Labels: none, but they are sent to nobody: the coordinator is at {own.plan.at}."


def _features_in_short(own: ReportSetting) -> Iterator[str]:
    if not own.protection.features:
        yield f"Features: none, {_exact(own)}."
    elif not own.protection.statistics:
        yield "Features: none, as statistics = 'none': means, scales and categories are exact."
    held = ", ".join(
        f"{_pair(claim)}{',' * (claim.epsilon is None)} for "
        f"{features_of(slots, own.plan.ucq.slots).alone}"
        for claim, slots in own.claimed(own.slots).items()
    )
    if held:
        whom = own.coalition() if own.together else "those who see nothing but the parameters"
        yield f"Features: {held}, against {whom}."
    yield from draws.in_short(own)
    if own.claims and not own.together:
        yield "Features: none against the coordinator and the other parties, or in the metrics."


def _exact(own: ReportSetting) -> str:
    if own.chosen:
        return f"{'random sums' if own.sketched else 'values'} of chosen columns are exact"
    if own.drawn:
        return "as gradients are exact: what towers learn shows in later sums"
    if own.summed:
        return "sums of embeddings are exact"
    return f"predictions{' and gradients' * own.training} are exact"


def _both_in_short(own: ReportSetting) -> Iterator[str]:
    epsilon = own.label_epsilon
    for slot in own.slots if epsilon is not None else ():
        if slot.target and slot.index in own.claims:
            held = _pair(own.claims[slot.index], epsilon or 0.0)
            whom = "the same" if own.together else "those who see nothing but the parameters"
            unit = unit_of(slot, own.plan.ucq.slots)
            yield f"Label and features of {unit}: {held}, against {whom}."


def _joined_in_short(own: ReportSetting) -> Iterator[str]:
    whom = "the same" if own.together else "those who see nothing but the parameters"
    for held in _of_joined_row(own):
        yield f"A whole joined row, as of a person in each table: {held}, against {whom}."


# -- what it rests on -----------------------------------------------------------------------------


def assumptions(own: ReportSetting) -> tuple[str, ...]:
    """Empty where nothing is noised."""
    if not own.protection:
        return ()
    parts: list[Iterable[str]] = [_rows(own), _runs(own)]
    if own.label_epsilon is not None:
        parts.append(_noised_labels(own))
    if own.claims:
        parts.append(_noised_features(own))
    if own.drawn:
        parts.append(draws.rests(own))
    if own.chosen and own.claims:
        parts.append(columns.rests(own))
    if own.solved and own.claims:
        parts.append(moments.rests(own))
    parts += [beware(own), unseen(own), _always(own)]
    return tuple(text for part in parts for text in part)


def _rows(own: ReportSetting) -> Iterator[str]:
    """Whose change it is about."""
    yield (
        "The join graph, row ids, multiplicities and table sizes are not protected, nor which rows "
        "there are: join keys, conditions of WHERE and ON, and whether a row has a label decide it."
    )
    if own.privacy.max_fan_out is not None:
        yield (
            f"No row is in more than {own.privacy.max_fan_out} joined rows: the coordinator drops "
            "further ones at random, and knows which they are; that depends on the join graph only."
        )
    slots = [s for s in own.plan.ucq.slots if s.features or s.target]
    at = own.plan.at
    if at in own.parties:
        yield f"The coordinator's party, {at}, knows its own rows: of these it learns nothing new."
    if own.plan.combining:
        yield (
            f"{listed(own.plan.combining)}: a party that combines its clients is one domain of "
            "trust. What they hand to it is not noised; what leaves it is, once."
        )
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


def _runs(own: ReportSetting) -> Iterator[str]:
    if own.claims:
        yield (
            "Every further run adds its own ε and δ of features, also one that fails or is "
            "interrupted, or whose model is dropped. An account over runs is kept only where the "
            "policy of a table's owner has epsilon: of that table, and for each analyst by itself."
        )
    if own.training:
        yield f"{EVALUATED} It is not covered, nor is what PREDICT and functions of a block give."


def _noised_labels(own: ReportSetting) -> Iterator[str]:
    kept = "a secret that its client keeps with its database or in its store; without that it is "
    kept += "drawn anew"
    if own.fleeting:
        kept = "a secret that goes with the session: attach(..., store=...), of a federation with "
        kept += "a file, keeps it"
    yield (
        f"A label is drawn once per row, under {kept}. Copies in the join, other features and "
        "other rows, other models, runs that fail and models that are dropped do not change it."
    )
    yield (
        "Another label_epsilon, label_mechanism, bounds or classes is another draw, and so is a "
        "label, table, view or subquery that is written otherwise and not seen to be the same: the "
        f"ε of all draws of a label add up. {f'{_drawn_by(own)} ' if own.fleeting else ''}"
        "That a row has changed may show."
    )
    bounds = own.privacy.label_bounds
    if bounds is not None:
        yield f"Labels are clipped to [{bounds[0]:g}, {bounds[1]:g}], which is public."
    else:
        yield "Which classes there are is public: they are those of the statement or the type."
    of = " of the training" * own.training
    yield f"Loss and metrics{of} are of noised labels, not of the true ones."


def _noised_features(own: ReportSetting) -> Iterator[str]:
    if own.protection.statistics:
        yield "Bounds and lists of categories of features are public; values are clipped to them."
    yield (
        "The ε is that of all the steps that were planned, also where fewer were made. No secret "
        "sampling is counted in its favour."
    )
    if own.together:
        made = "sums of draws" if own.drawn else "noised predictions"
        made = "noised columns" if own.chosen else "noised moments" if own.solved else made
        yield f"Loss and metrics of the training are of {made}."


def _always(own: ReportSetting) -> Iterator[str]:
    yield f"{TRUSTED} How long things take, and errors, are not covered."
    drawn = ["that of labels follows from keyed hashes of rows, under such a secret"]
    drawn = drawn * (own.label_epsilon is not None) + ["values lie on a public grid"]
    yield f"Noise comes from the operating system's generator; {'; '.join(drawn)}."
