"""Sentences of EXPLAIN about the operators' work in each round."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.planner.explain.diagnostics import client_words, join_words
from sqlfl.planner.federated.method_spec import Words, has_head, spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import PublicBounds

ONCE = "once"


@dataclass(frozen=True)
class PlanOperator:
    """One operator of the plan: its work, its place and its round."""

    when: str
    """'once', or the round: 'iteration', 'epoch', 'step'."""
    slot: str
    """The slot's name; 'all' for the join."""
    name: str
    """'client', 'LoU' or 'LoJ'."""
    where: str
    computes: str


def operators(plan: FederatedPlan) -> tuple[PlanOperator, ...]:
    """Return the operators in the order in which they run."""
    plan_operators = [_snapshot(plan, slot) for slot in plan.ucq.slots]
    plan_operators.append(
        PlanOperator(
            ONCE, "all", "LoJ", "coordinator",
            "table mapping p_i by the mapping query; active rows and their cnt" + _dropped(plan),
        )
    )  # fmt: skip
    if plan.purpose != "train":
        h = "h = X θ of the saved block" if plan.tower is None else "h of the saved tower"
        h = client_words(plan) or h
        plan_operators += [
            PlanOperator(ONCE, s.name, "client", _where(plan, s), h)
            for s in plan.ucq.slots
            if s.features
        ]
        outcome = "the model's metrics" if plan.purpose == "evaluate" else "a prediction a row"
        if plan.look is not None:
            outcome = plan.look.words
        scores = "E = Σ A_i h_i; H = E W0 + b" if has_head(plan.tower) else "H = b + Σ A_i h_i"
        gathered = f"gather {join_words(plan) or scores}; {outcome}"
        plan_operators.append(PlanOperator(ONCE, "all", "LoJ", "coordinator", gathered))
        if plan.into is not None:
            where = ", ".join(str(client) for client in plan.into.clients)
            names = ", ".join(plan.ucq.slots[slot].name for slot in plan.into.slots)
            words = f"identifiers joined with predictions; the table {plan.into.path}"
            plan_operators.append(PlanOperator(ONCE, names, "client", where, words))
        return tuple(plan_operators)
    towers = [slot for slot in plan.ucq.slots if slot.features]
    kinds = {(s.kind, s.slot) for e in plan.exchanges for s in e.sends}
    plan_operators += [_encoding(plan, s) for s in towers if ("set_encoding", s.index) in kinds]
    each = spec_of(plan.algorithm).words(plan.training, plan.protection)
    plan_operators.append(PlanOperator(each.every, "all", "LoJ", "coordinator", each.join))
    for slot in towers:
        plan_operators += _round(plan, slot, each)
    return tuple(plan_operators)


def _snapshot(plan: FederatedPlan, slot: Slot) -> PlanOperator:
    numbered = any(item.seed is not None for c in slot.clients for item in plan.specifications[c])
    ids = "row ids by the seed and a digest of the snapshot" if numbered else "random row ids"
    parts = ["snapshot of the fragments", ids]
    if slot.keys:
        parts.append("keyed hashes of the join keys")
    if slot.features and plan.purpose == "train":
        parts.append(_encoded(plan, slot))
    if slot.noised:
        parts.append("noise of the labels")
    where = ", ".join(str(client) for client in slot.clients)
    return PlanOperator(ONCE, slot.name, "client", where, "; ".join(parts))


def _encoded(plan: FederatedPlan, slot: Slot) -> str:
    if isinstance(plan.protection.statistics, PublicBounds):
        return plan.protection.statistics.words
    statistics = plan.protection.statistics.words if plan.protection.statistics else "statistics"
    return statistics if len(slot.clients) > 1 else f"{statistics} and encoding"


def _encoding(plan: FederatedPlan, slot: Slot) -> PlanOperator:
    merged = "merge of the clients' statistics and hashed categories"
    if any(s.kind == "gram" and s.slot == slot.index for e in plan.exchanges for s in e.sends):
        merged += "; sum of their second moments Σ cnt x xᵀ"
    return PlanOperator(ONCE, slot.name, "LoU", "coordinator", merged)


def _round(plan: FederatedPlan, slot: Slot, words: Words) -> list[PlanOperator]:
    does, union = words.client, words.union
    kinds = {s.kind for e in plan.exchanges for s in e.sends if s.slot == slot.index}
    if words.averaging is not None and "consensus_part" in kinds:
        does, union = words.averaging
    client = PlanOperator(
        words.every, slot.name, "client", _where(plan, slot), _guarded(plan, does)
    )
    if len(slot.clients) == 1:
        return [client]
    return [client, PlanOperator(words.every, slot.name, "LoU", "coordinator", union)]


def _guarded(plan: FederatedPlan, words: str) -> str:
    """Return a client's work in a round, with its privacy steps."""
    noises = (plan.protection.features, plan.protection.predictions)
    return "; ".join(dict.fromkeys([words, *(noise.words for noise in noises if noise)]))


def _dropped(plan: FederatedPlan) -> str:
    most = None if plan.privacy is None else plan.privacy.max_fan_out
    return "" if most is None else f"; joined rows beyond {most} of a table row dropped at random"


def _where(plan: FederatedPlan, slot: Slot) -> str:
    engine = plan.engines[slot.index].engine
    return f"{', '.join(str(client) for client in slot.clients)} ({engine})"
