"""Warnings about data that leaves exact, and comes from the same columns as noised data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.explain.units import listed
from sqlfl.planner.query import lineage
from sqlfl.planner.query.lineage import Use


def beware(setting: ReportSetting) -> Iterator[str]:
    """Yield a warning for each label and each set of features that other, exact data discloses."""
    claimed = [
        use for use in setting.uses if use.what == lineage.FEATURE and use.slot in setting.claims
    ]
    exact = [use for use in setting.uses if use not in claimed]
    if setting.label_epsilon is None:
        yield from _of_features(setting, claimed, exact)
        return
    labels = [use for use in exact if use.what == lineage.LABEL]
    exact = [use for use in exact if use not in labels]
    for label in labels:
        told = _named(setting, label, exact)
        if told:
            yield _warning(_what(setting, label), told)
    yield from _of_features(setting, claimed, exact)
    for label in labels:
        both = [use for use in claimed if use.meets(label)]
        if both:
            features = listed(_what(setting, use) for use in both)
            yield (
                f"{_what(setting, label).capitalize()} and {features} share a column: a change of "
                "its values changes both, and their ε add up."
            )


def _warning(name: str, exact: str, *, several: bool = False) -> str:
    """Return the warning that `exact` data is made of the same column as noised data."""
    share, whose = ("share", "Their") if several else ("shares", "Its")
    return (
        f"Beware: {name} {share} a column with {exact}, which this noise does not cover. {whose} ε "
        f"is about changes that leave {exact} as it is."
    )


def _of_features(
    setting: ReportSetting, claimed: Iterable[Use], exact: Iterable[Use]
) -> Iterator[str]:
    groups: dict[str, list[Use]] = {}
    for feature in claimed:
        told = _named(setting, feature, [use for use in exact if use.what != lineage.FEATURE])
        if told:
            groups.setdefault(told, []).append(feature)
    for told, features in groups.items():
        names = listed(_what(setting, use) for use in features)
        yield _warning(names, told, several=len(features) > 1)


def _named(setting: ReportSetting, use: Use, others: Iterable[Use]) -> str:
    return listed(dict.fromkeys(_what(setting, other) for other in others if other.meets(use)))


def _what(setting: ReportSetting, use: Use) -> str:
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
