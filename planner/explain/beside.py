"""What is not noised, and made of the same columns as what is: a warning of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.explain.units import listed
from sqlfl.planner.query import lineage
from sqlfl.planner.query.lineage import Use


def beware(own: ReportSetting) -> Iterator[str]:
    """A sentence for each label and each set of features that something else tells of."""
    claimed = [use for use in own.uses if use.what == lineage.FEATURE and use.slot in own.claims]
    exact = [use for use in own.uses if use not in claimed]
    if own.label_epsilon is None:
        yield from _of_features(own, claimed, exact)
        return
    labels = [use for use in exact if use.what == lineage.LABEL]
    exact = [use for use in exact if use not in labels]
    for label in labels:
        told = _named(own, label, exact)
        if told:
            yield f"Beware: {_what(own, label)} is told of by {told}{_TOLD.format('its')}"
    yield from _of_features(own, claimed, exact)
    for label in labels:
        both = [use for use in claimed if use.meets(label)]
        if both:
            features = listed(_what(own, use) for use in both)
            yield (
                f"{_what(own, label).capitalize()} and {features} are made of the same column: a "
                "change of that changes both, and their ε add up."
            )


_TOLD = (
    ", made of the same column and not noised with it: {} ε is of changes that leave these as they "
    "are."
)


def _of_features(own: ReportSetting, claimed: Iterable[Use], exact: Iterable[Use]) -> Iterator[str]:
    groups: dict[str, list[Use]] = {}
    for feature in claimed:
        told = _named(own, feature, [use for use in exact if use.what != lineage.FEATURE])
        if told:
            groups.setdefault(told, []).append(feature)
    for told, features in groups.items():
        several = len(features) > 1
        names = listed(_what(own, use) for use in features)
        told += _TOLD.format("their" if several else "its")
        yield f"Beware: {names} {'are' if several else 'is'} told of by {told}"


def _named(own: ReportSetting, use: Use, others: Iterable[Use]) -> str:
    return listed(dict.fromkeys(_what(own, other) for other in others if other.meets(use)))


def _what(own: ReportSetting, use: Use) -> str:
    name = own.plan.ucq.slots[use.slot].name
    words = {
        lineage.FEATURE: f"feature {use.name} of {name}",
        lineage.LABEL: f"the label of {name}",
        lineage.WEIGHT: f"the weight of {name}",
        lineage.OFFSET: f"the offset of {name}",
        lineage.KEY: f"a join key of {name}",
        lineage.CONDITION: f"a condition of WHERE or ON over {name}",
    }
    return words[use.what]


def unseen(own: ReportSetting) -> Iterator[str]:
    """What this does not find."""
    views = lineage.views(own.plan.ucq)
    named = f" ({', '.join(views)})" if views else ""
    yield (
        "What else is made of the same columns is told by the statement alone: what a view"
        f"{named} makes of its tables, and columns that copy or follow from others, are not seen."
    )
