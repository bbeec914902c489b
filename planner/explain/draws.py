"""Sentences of the report about embeddings, of which the coordinator receives sums over
all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlfl.messages.disclosed import listed
from sqlfl.planner.explain.card import upwards
from sqlfl.planner.explain.setting import ReportSetting, features_of
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.collusion import honest_slots
from sqlfl.privacy.protection import BinomialSums

KIND = "sums of embeddings"
EXACT = "exact, of each joined row over all tables"
LEARNING = "gradients are exact: towers learn from a row, and later sums of other rows show it"
OWN_DRAWS = "a party knows its own draws, so that this ε does not hold against it"
SEEN = (
    "keyed hashes of the join keys, the join graph, and exact sums of all tables' embeddings, of "
    "each joined row."
)


def mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Return the mechanism that releases a row's part of the sums."""
    noise, event = setting.protection.predictions, setting.draws(slot)
    if not isinstance(noise, BinomialSums):
        return EXACT
    if event is None:
        return f"{noise.told}; {_hidden(_honest(setting, slot))}"
    return (
        f"each number a draw of Binomial({event.bins}, ½ + {event.theta:.4g} h), h in [-1, 1]; "
        f"{_hidden(event.honest)}; a row has at most {event.count} draws"
    )


def _honest(setting: ReportSetting, slot: Slot) -> int:
    return honest_slots(
        setting.plan.ucq.slots, slot, setting.plan.at, setting.privacy.honest_parties
    )


def _hidden(tables: int) -> str:
    if tables == 1:
        return "of the sums over all tables, no other table's draws count as secret"
    return f"of the sums over all tables, {tables} tables' draws count as secret"


NONE = (
    "Features: none over the run, as gradients are exact: later sums show the towers that learned "
    "from them."
)


def unclaimed(setting: ReportSetting) -> str:
    """Return why draws without noised gradients have no ε for the run."""
    why = (
        "Embeddings are drawn and summed in secret, but a row that is in one step moves its "
        "table's tower, as far as it likes, and every later sum shows the tower, also the sums "
        "that the row itself is not in. With noise_multiplier or epsilon gradients are clipped and "
        "noised, and there is an ε. With the towers held fixed, "
    )
    if setting.calibration is None:
        return (
            f"{why}the draws alone have an ε, which is known once the join is. It is no ε of a "
            "run, which trains them."
        )
    from sqlfl.privacy.accountant import epsilon_of
    from sqlfl.privacy.binomial import of_joined_row

    delta = setting.privacy.delta
    epsilons = {
        s.index: epsilon_of([e], delta)
        for s in setting.slots
        if (e := setting.draws(s)) is not None
    }
    told = [
        f"({epsilon}, {delta:g}) for {features_of(slots, setting.plan.ucq.slots)}"
        for epsilon, slots in _alike(setting.slots, epsilons).items()
    ]
    rounds, any_ = setting.calibration.rounds, setting.draws(setting.slots[0])
    assert any_ is not None
    event = of_joined_row(tuple(rounds.values()), any_.bins, any_.theta)
    return (
        f"{why}as if no gradient were taken of these rows, the draws alone would "
        f"have (ε, δ) = {listed(told)}, against {setting.coalition()} together, and "
        f"({upwards(epsilon_of([event], delta))}, {delta:g}) where the rows of all tables change "
        "that one joined row is made of. That is no ε of the run, which trains the towers."
    )


def _alike(slots: Iterable[Slot], epsilons: dict[int, float]) -> dict[str, list[Slot]]:
    """Group slots by their rounded ε."""
    groups: dict[str, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(upwards(epsilons[slot.index]), []).append(slot)
    return groups


def joined_rows(setting: ReportSetting) -> Iterator[str]:
    """Yield the guarantee for all features of a joined row, with noised gradients."""
    if not setting.drawn or setting.calibration is None:
        return
    if set(setting.claims) != {slot.index for slot in setting.slots}:
        return
    from math import isfinite

    from sqlfl.privacy.binomial import joined_row_epsilon

    epsilon = joined_row_epsilon(
        setting.calibration.rounds, setting.calibration.events, setting.privacy.delta
    )
    if isfinite(epsilon):
        yield f"({upwards(epsilon)}, {setting.privacy.delta:g})-DP"


def rests(setting: ReportSetting) -> Iterator[str]:
    """Yield the conditions of draws."""
    at = setting.plan.at
    yield (
        "Clients add masks to their draws, which cancel in the sum over the clients of all tables "
        "(X25519, HKDF-SHA256, ChaCha20). Public keys are sealed by the secret that the parties "
        "share: who has that, and the coordinator's place, can take a client's, and see its draws"
        f"{'.' if at is None else f'; {at} has both.'}"
    )
    if setting.telling is not None:
        some = (
            f"no more than {setting.telling} of the other parties"
            if setting.telling
            else "no party"
        )
        yield (
            f"Beside the coordinator {some} may tell draws (honest_parties): where more do, less "
            "of each sum is left, and no ε of features that is told here holds."
        )
    yield "All clients of the row's own party are trusted: they know draws of other tables of it."
    yield (
        "All tables draw in each joined row, those for validation too, once an epoch. An exchange "
        "that gets lost is made again with the same draws under fresh masks: nothing more is seen."
    )
    counted = [
        slot.name
        for slot in setting.slots
        if (event := setting.draws(slot)) is not None and event.honest < _honest(setting, slot)
    ]
    if counted:
        yield (
            f"{', '.join(counted)}: fewer tables' draws count as secret than are, for the account "
            "of so many coins would take long: the ε that holds is smaller."
        )
