"""The sections of EXPLAIN on the model: target, method, options."""

from __future__ import annotations

from collections.abc import Mapping

from sqlfl.options.batch import MAX_ROWS, MIN_ROWS, Usual
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TowerOptions, TrainingOptions
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import shown
from sqlfl.planner.explain.render import Section, TextTable, several
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.transport.network import Network


def model(plan: FederatedPlan) -> Section:
    """Return the model's properties with all options."""
    rows = _properties(plan, _options(plan))
    started = plan.options.warm_start if isinstance(plan.options, TrainingOptions) else None
    for slot_index, block in plan.blocks.items():
        name = plan.ucq.slots[slot_index].name
        does = "starts from" if plan.algorithm else "is scored by"
        model = started or "the model"
        rows.append(("block", f"slot {name} {does} block {block} of {model}"))
    return Section("Model", (TextTable(("property", "value"), tuple(rows)),) if rows else ())


def _properties(plan: FederatedPlan, options: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    for slot in plan.ucq.slots:
        if slot.target:
            held = several([str(client) for client in slot.clients])
            type_ = f" {plan.ucq.target_type}" if plan.ucq.target_type else ""
            rows.append(("target", f"{plan.ucq.target}{type_}, slot {slot.name}, at {held}"))
    if plan.at is not None:
        clients = ", ".join(str(client) for client in plan.clients if not plan.crosses(client))
        stays = f": what it exchanges with {clients} stays there" if clients else ""
        rows.append(("coordinator", f"at {plan.at}{stays or ', which has no table here'}"))
    if plan.algorithm:
        rows.append(("algorithm", plan.algorithm))
    if plan.tuning is not None:
        rows += _tuning(plan.tuning)
    chosen = [f"{name} = {shown(value)}" for name, value in options.items() if value is not None]
    if chosen:
        rows.append(("options", ", ".join(chosen)))
    if plan.privacy is not None:
        rows.append(("privacy", _asked(plan.privacy)))
    if plan.tower is not None:
        rows += _towers(plan, plan.tower)
    training = plan.options if isinstance(plan.options, TrainingOptions) else None
    if training is not None and training.network is not None:
        rows.append(("comm_seconds", _network(training.network)))
    if training is not None and training.method.waits is not None:
        late = f"after {training.method.waits:g} s a step goes on with what late parties have last "
        late += "predicted; these are sent fewer messages, and the model depends on who was late"
        rows.append(("stragglers", late))
    for identifier in plan.ucq.identifiers:
        rows.append(("identifier", identifier.name))
    if plan.into is not None:
        held = ", ".join(str(client) for client in plan.into.clients)
        rows.append(("into", f"{plan.into.path}, at {held}: {', '.join(plan.into.columns)}"))
    return rows


def _tuning(tuning: Tuning) -> list[tuple[str, str]]:
    number = 1 if tuning.splits == 1 else tuning.splits
    fits = f"{len(tuning.candidates)} · {number} + 1 for the best one, on all rows"
    return [
        ("compared", tuning.words),
        ("fits", f"{tuning.fits} = {fits}; sizes are averages over them, and times sums"),
    ]


def _asked(privacy: Privacy) -> str:
    """Return the resolved PRIVACY clause, defaults included."""
    names = ["label_epsilon", "label_mechanism", "label_bounds", "label_classes"]
    shown_names = names if privacy.labels else []
    if privacy.features:
        shown_names = [*shown_names, "epsilon", "noise_multiplier", "delta", "clip", "predictions"]
        if privacy.solved:
            shown_names += ["feature_bound"]
        if privacy.predictions == "gaussian":
            shown_names += ["prediction_clip", "prediction_share"]
        if privacy.chosen:
            shown_names += ["mechanism", "feature_bound", "label_bound", "prediction_share"]
        if privacy.drawn:
            shown_names += ["bins", "theta", "honest_parties"]
            given = privacy.epsilon is None or (privacy.bins and privacy.theta)
            shown_names += [] if given else ["prediction_share"]
        shown_names += ["statistics"] + ["statistics_share"] * (privacy.statistics == "noised")
        shown_names += ["feature_bounds", "max_fan_out"]
    values = {name: getattr(privacy, name) for name in shown_names}
    values["feature_bounds"] = dict(privacy.feature_bounds) or None
    return ", ".join(f"{n} = {shown(v)}" for n, v in values.items() if v is not None)


def _options(plan: FederatedPlan) -> dict[str, object]:
    """Return the options that matter, except the algorithm; for tuned options, the values of all
    candidates.
    """
    if not isinstance(plan.options, TrainingOptions):
        return {"engine": plan.options.engine, "memory_limit": plan.options.memory_limit}
    values = {name: value for name, value in plan.options.listed().items() if name != "algorithm"}
    if not any(slot.shrunken for slot in plan.ucq.slots):
        values.pop("unit", None)
    tuning = plan.tuning
    if tuning is None:
        return values
    for name in tuning.tuned:
        candidates = [candidate.values[name] for candidate in tuning.candidates]
        values[name] = [v for n, v in enumerate(candidates) if v not in candidates[:n]]
    return values


def _towers(plan: FederatedPlan, tower: TowerOptions) -> list[tuple[str, str]]:
    widths = " → ".join(str(width) for width in tower.hidden)
    outputs = "d_c" if tower.outputs is None else str(tower.outputs)
    bounded = bool(plan.algorithm) and spec_of(plan.algorithm).drawn
    shape = f"d columns → {widths} ({tower.activation}) → {outputs} outputs"
    shape += " in [-1, 1] (tanh)" if bounded else ""
    rows = [("tower", f"of each slot with features: {shape}")]
    if tower.outputs is not None:
        shape = f"{tower.outputs} sums of outputs → d_c scores"
        rows.append(("head", f"at the coordinator, linear: {shape}"))
    method = plan.options.method if isinstance(plan.options, TrainingOptions) else None
    if method is not None and any(isinstance(value, Usual) for value in vars(method).values()):
        usual = f"from {MIN_ROWS} to {MAX_ROWS}"
        rows.append(("batch_size", f"a twentieth of the joined rows, but {usual}"))
    if plan.algorithm:
        cuda = "CUDA in float32 at clients that have it, else the CPU in float64"
        device = {"auto": cuda, "cuda": "CUDA in float32", "cpu": "the CPU, in float64"}
        rows.append(("device", f"{tower.device}: {device[tower.device]}"))
    return rows


def _network(line: Network) -> str:
    """The formula of comm_seconds, in words."""
    return (
        f"of an exchange that crosses a border: {line.latency:g} s + 8 · bytes / "
        f"{_speed(line.bandwidth)}, "
        "bytes being those of the values that the busiest client gets and sends (each has a line "
        "of its own); summed over the run's exchanges so far"
    )


def _speed(bandwidth: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bandwidth >= size / 10:
            return f"{bandwidth / size:g} {unit}"
    return f"{bandwidth:g} bit/s"
