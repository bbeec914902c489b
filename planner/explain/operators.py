"""What the operators compute in each round, in words, for EXPLAIN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlfl.methods.admm.options import AdmmOptions
from sqlfl.methods.sgd.options import SgdOptions
from sqlfl.planner.query.ucq import Slot

if TYPE_CHECKING:
    from sqlfl.planner.federated.plan import FederatedPlan

ONCE = "once"
EVERY = {"lbfgs": "iteration", "admm": "epoch", "sgd": "step"}

LOJ = {
    "lbfgs": "gather H = b + Σ A_i h_i along the direction; exact search by block; "
    "scatter Y_i = A_iᵀ ∂ℓ/∂H; coefficients of the next direction",
    "admm": "gather H = b + Σ A_i h_i; z- and λ-update per joined row; intercept; "
    "scatter Y_i = A_iᵀ (λ + ρ (H − z))",
    "sgd": "gather H = b + Σ A_i h_i; step of the intercept; scatter Y_i = A_iᵀ ∂ℓ/∂H",
}
CLIENT = {
    "lbfgs": "gradient g = Xᵀ Y / N + l2 θ; preconditioned P g; predictions X P g; inner products",
    "admm": "θ-update by a factorised ridge system; predictions h = X θ",
    "consensus": "own θ by a ridge system with θ near w − u; u ← u + θ − w; predictions h = X θ",
    "sgd": "θ ← θ − η (Xᵀ Y / B + l2 θ), B the batch's rows; predictions h = X θ",
}
TOWER = {
    "admm": "θ-update by {passes} of Adam over its own rows in batches; predictions h of the tower",
    "sgd": "∂θ by backpropagation of Y / B, B the batch's rows; {step}; predictions h of the tower",
    "consensus": "own θ near w − u by {passes} of Adam over its own rows in batches; "
    "u ← u + θ − w; predictions h of the tower",
}
HEAD = {
    "admm": "gather E = Σ A_i h_i; z- and λ-update per joined row, for scores H = z W0 + b; head "
    "W0 and b fitted to E; scatter Y_i = A_iᵀ (λ + ρ (E − z))",
    "sgd": "gather E = Σ A_i h_i; scores H = E W0 + b; step of the head W0 and b; "
    "scatter Y_i = A_iᵀ ∂ℓ/∂E",
}
STEP = {
    "plain": "θ ← θ − η ∂ℓ/∂θ",
    "momentum": "v ← m v + ∂ℓ/∂θ, θ ← θ − η v, m the momentum",
    "adam": "a step of Adam",
}
LOU = {
    "lbfgs": "sum of the clients' partial gradients Xᵀ Y, in client order, back to each of them",
    "admm": "sum of the clients' Xᵀ Y, in client order, back to each of them",
    "sgd": "sum of the clients' partial gradients Xᵀ Y, in client order, back to each of them",
    "consensus": "w = mean of the clients' θ + u, back to each of them",
}


@dataclass(frozen=True)
class Operator:
    """One operator of the plan: what it computes, where, and when."""

    when: str
    """'once', or the round: 'iteration', 'epoch', 'step'."""
    slot: str
    """The slot's name; 'all' for the join."""
    name: str
    """'client', 'LoU' or 'LoJ'."""
    where: str
    computes: str


def operators(plan: FederatedPlan) -> tuple[Operator, ...]:
    """In the order in which they act."""
    found = [_snapshot(plan, slot) for slot in plan.ucq.slots]
    found.append(
        Operator(
            ONCE, "all", "LoJ", "coordinator",
            "table mapping p_i by the mapping query; active rows and their cnt" + _dropped(plan),
        )
    )  # fmt: skip
    if plan.purpose != "train":
        h = "h = X θ of the saved block" if plan.tower is None else "h of the saved tower"
        found += [
            Operator(ONCE, s.name, "client", _where(plan, s), h)
            for s in plan.ucq.slots
            if s.features
        ]
        outcome = "the model's metrics" if plan.purpose == "evaluate" else "a prediction a row"
        scores = "E = Σ A_i h_i; H = E W0 + b" if _head(plan) else "H = b + Σ A_i h_i"
        gathered = f"gather {scores}; {outcome}"
        found.append(Operator(ONCE, "all", "LoJ", "coordinator", gathered))
        if plan.into is not None:
            where = ", ".join(str(client) for client in plan.into.clients)
            names = ", ".join(plan.ucq.slots[slot].name for slot in plan.into.slots)
            words = f"identifiers joined with predictions; the table {plan.into.path}"
            found.append(Operator(ONCE, names, "client", where, words))
        return tuple(found)
    towers = [slot for slot in plan.ucq.slots if slot.features]
    kinds = {(s.kind, s.slot) for e in plan.exchanges for s in e.sends}
    found += [_encoding(plan, s) for s in towers if ("set_encoding", s.index) in kinds]
    every = EVERY[plan.algorithm]
    gathers = (HEAD if _head(plan) else LOJ)[plan.algorithm]
    if _protected(plan) and not _noised(plan):
        gathers = gathers.replace("step of the intercept", f"{INTERCEPT}; its step")
    found.append(Operator(every, "all", "LoJ", "coordinator", gathers))
    for slot in towers:
        found += _round(plan, slot, every)
    return tuple(found)


def _head(plan: FederatedPlan) -> bool:
    return plan.tower is not None and plan.tower.outputs is not None


def _snapshot(plan: FederatedPlan, slot: Slot) -> Operator:
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
    return Operator(ONCE, slot.name, "client", where, "; ".join(parts))


def _encoded(plan: FederatedPlan, slot: Slot) -> str:
    how = "none" if plan.privacy is None else plan.privacy.statistics
    if how == "bounds":
        return "encoding by public bounds"
    statistics = "noised statistics" if how == "noised" else "statistics"
    return statistics if len(slot.clients) > 1 else f"{statistics} and encoding"


def _encoding(plan: FederatedPlan, slot: Slot) -> Operator:
    merged = "merge of the clients' statistics and hashed categories"
    if any(s.kind == "gram" and s.slot == slot.index for e in plan.exchanges for s in e.sends):
        merged += "; sum of their second moments Σ cnt x xᵀ"
    return Operator(ONCE, slot.name, "LoU", "coordinator", merged)


INTERCEPT = "gradient of the intercept, each row's clipped, the sum noised"


def _protected(plan: FederatedPlan) -> bool:
    return plan.privacy is not None and plan.privacy.features


def _noised(plan: FederatedPlan) -> bool:
    return plan.privacy is not None and plan.privacy.predictions == "gaussian"


def _round(plan: FederatedPlan, slot: Slot, every: str) -> list[Operator]:
    does = _local(plan, plan.algorithm)
    client = Operator(every, slot.name, "client", _where(plan, slot), does)
    if len(slot.clients) == 1:
        return [client]
    kinds = {s.kind for e in plan.exchanges for s in e.sends if s.slot == slot.index}
    if "consensus_part" in kinds:
        does = _local(plan, "consensus")
        client = Operator(every, slot.name, "client", _where(plan, slot), does)
        return [client, Operator(every, slot.name, "LoU", "coordinator", LOU["consensus"])]
    summed = LOU[plan.algorithm]
    if plan.tower is not None:
        summed = summed.replace("Xᵀ Y", "∂θ")
    return [client, Operator(every, slot.name, "LoU", "coordinator", summed)]


def _local(plan: FederatedPlan, method: str) -> str:
    """What a client computes in a round."""
    words = _unguarded(plan, method)
    if _protected(plan):
        words += "; each row's gradient clipped, their sum noised"
    return f"{words}; predictions clipped and noised" if _noised(plan) else words


def _unguarded(plan: FederatedPlan, method: str) -> str:
    own = plan.training.method
    optimizer = own.optimizer if isinstance(own, SgdOptions) else "plain"
    if plan.tower is None:
        words = CLIENT[method]
        if method == "sgd" and optimizer != "plain":
            words = (
                f"∂θ = Xᵀ Y / B + l2 θ, B the batch's rows; {STEP[optimizer]}; predictions h = X θ"
            )
        return words
    passes = own.local_epochs if isinstance(own, AdmmOptions) else 0
    return TOWER[method].format(passes=f"{passes} pass{'es' * (passes != 1)}", step=STEP[optimizer])


def _dropped(plan: FederatedPlan) -> str:
    most = None if plan.privacy is None else plan.privacy.max_fan_out
    return "" if most is None else f"; joined rows beyond {most} of a table row dropped at random"


def _where(plan: FederatedPlan, slot: Slot) -> str:
    engine = plan.engines[slot.index].engine
    return f"{', '.join(str(client) for client in slot.clients)} ({engine})"
