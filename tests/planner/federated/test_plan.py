from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import specifications_to_json
from sqlfl.models.towers import TowerShape
from sqlfl.options.resolve import resolve_scoring, training_options
from sqlfl.options.training import TowerOptions
from sqlfl.planner.federated.engines import EngineChoice, bytes_of, choose_engines, row_bytes
from sqlfl.planner.federated.exchanges import DOWN, UP, WHOLE
from sqlfl.planner.federated.plan import (
    FederatedPlan,
    ScoredModel,
    WarmStart,
    prediction_plan,
    training_plan,
)
from sqlfl.planner.federated.sizes import ROLES
from tests.planner import plans
from tests.planner.plans import AIRLINE, BANK_0, BANK_1, METEO

ADMM = {"algorithm": "admm", "union": "exact", "inner_rounds": 10}
CONSENSUS = ADMM | {"union": "consensus"}
SGD = {"algorithm": "sgd", "batch_size": None, "learning_rate": None}


def kinds(plan: FederatedPlan, slot: int, direction: str) -> dict[str, str]:
    """Kind -> bytes of the whole run, at the slot's first client."""
    client = plan.clients[0] if slot == WHOLE else plan.ucq.slots[slot].clients[0]
    return {
        kind: str(amount)
        for (at, index, kind, way), (_, amount) in plan.totals().items()
        if (at, index, way) == (client, slot, direction)
    }


def test_specifications_follow_the_slots_of_each_client() -> None:
    plan = plans.train(plans.cards(), "linear_regression")
    assert plan.clients == (BANK_0, BANK_1, AIRLINE)
    assert [s.slot for s in plan.specifications[AIRLINE]] == [1, 2]
    (cards,) = plan.specifications[BANK_0]
    assert cards.fragments == (0, 1)
    assert cards.shared
    assert cards.target
    assert not cards.classes
    assert cards.secret == "organisation"
    link, planes = plan.specifications[AIRLINE]
    assert [key.index for key in link.keys] == [0, 1]
    assert not planes.shared
    assert plan.fragments_sql(BANK_0) == tuple(
        f.sql for f in plan.ucq.slots[0].fragments if f.client == BANK_0
    )
    assert [sql.split()[-1] for sql in plan.fragments_sql(AIRLINE)] == ["bookings", "planes"]


def test_a_slot_of_two_parties_hashes_under_the_federations_secret() -> None:
    ucq = plans.cards()
    fragments = tuple(
        dataclasses.replace(f, client=METEO) if f.client == BANK_1 else f
        for f in ucq.slots[0].fragments
    )
    slots = (dataclasses.replace(ucq.slots[0], fragments=fragments), *ucq.slots[1:])
    plan = plans.train(dataclasses.replace(ucq, slots=slots), "linear_regression")
    assert plan.specifications[METEO][0].secret == "federation"


def test_scoring_merges_no_statistics_and_has_no_classes_without_a_target() -> None:
    predict = plans.score("predict")
    assert not any(
        s.shared or s.classes for c in predict.clients for s in predict.specifications[c]
    )
    assert dict(predict.blocks) == {0: 0, 2: 1}
    assert {"statistics", "labels"}.isdisjoint(d.kind for d in predict.disclosures)
    evaluate = plans.score("evaluate")
    assert "labels" in {d.kind for d in evaluate.disclosures}


def test_classes_are_told_to_the_slot_of_the_target_only() -> None:
    plan = plans.train(plans.flights(), "logistic_regression")
    assert [plan.specifications[c][0].classes for c in (AIRLINE, METEO)] == [True, False]
    assert not plan.regression
    assert plans.train(plans.flights(), "linear_regression").regression


def test_nullable_keys_and_links_are_told_to_the_clients_that_have_them() -> None:
    ucq = plans.cards()
    cards, link, planes = ucq.slots
    first, second, *others = cards.fragments
    fragments = (first, dataclasses.replace(second, beside=0), *others)
    slots = (
        dataclasses.replace(cards, fragments=fragments),
        dataclasses.replace(link, nullable=(1,)),
        planes,
    )
    plan = plans.train(dataclasses.replace(ucq, slots=slots), "linear_regression")
    assert plan.specifications[BANK_0][0].links == ((0, 1),)
    assert plan.specifications[BANK_1][0].links == ()
    link_, planes_ = plan.specifications[AIRLINE]
    assert [(key.index, key.nullable) for key in link_.keys] == [(0, False), (1, True)]
    assert [key.nullable for key in planes_.keys] == [False]


def test_a_weighted_plan_tells_each_slot_its_part() -> None:
    plan = plans.train(
        plans.weighted(plans.cards()), "linear_regression", {"validation_fraction": 0.25}
    )
    assert plan.weighted
    (cards,) = plan.specifications[BANK_1]
    assert (cards.weight, cards.split, cards.weighted) == (True, 0.25, True)
    for other in plan.specifications[AIRLINE]:
        assert (other.weight, other.split, other.weighted) == (False, 0.0, True)
    up, down = kinds(plan, 0, UP), kinds(plan, 0, DOWN)
    assert up["weights"] == "8·a[c@bank/0]"
    assert up["split"] == "a[c@bank/0]"
    assert down["weigh"] == "16·a[c@bank/0] + 16"
    assert (
        up["statistics"]
        == kinds(plans.train(plans.cards(), "linear_regression"), 0, UP)["statistics"]
    )
    phases = [e.phase for e in plan.exchanges]
    assert phases.index("active rows") < phases.index("labels") < phases.index("weights")
    assert phases.index("validation rows") < phases.index("what rows count")
    assert phases.index("what rows count") + 1 == phases.index("encoding")
    (activated,) = [e for e in plan.exchanges if e.phase == "active rows"]
    assert {s.kind for s in activated.sends} == {"activate", "ready"}


def test_class_weights_alone_make_a_plan_weighted_and_may_tell_classes() -> None:
    def told(plan: FederatedPlan) -> list[str]:
        return [d.what for d in plan.disclosures if d.kind == "weigh"]

    plain = plans.train(plans.flights(), "logistic_regression")
    assert not plain.weighted
    assert not told(plain)
    assert not any(s.weighted for items in plain.specifications.values() for s in items)
    by_class = plans.train(plans.flights(), "logistic_regression", {"class_weight": "balanced"})
    assert by_class.weighted
    assert all("tell their classes" in what for what in told(by_class))
    by_column = plans.train(dataclasses.replace(plans.flights(), weight="w"), "logistic_regression")
    assert told(by_column)
    assert not any("classes" in what for what in told(by_column))


def test_a_slot_with_only_the_weight_takes_part_in_messages() -> None:
    ucq = plans.cards()
    cards, link, planes = ucq.slots
    slots = (cards, dataclasses.replace(link, weight=True), planes)
    plan = plans.train(dataclasses.replace(ucq, slots=slots, weight="w"), "linear_regression")
    assert {"activate", "send_weights"} <= kinds_of(plan, 1)
    assert "weigh" not in kinds_of(plan, 1)


def kinds_of(plan: FederatedPlan, slot: int) -> set[str]:
    return {s.kind for e in plan.exchanges for s in e.sends if s.slot == slot}


def test_validation_needs_a_slot_to_draw_from() -> None:
    with pytest.raises(InternalError):
        plans.train(plans.cards(), "linear_regression", {"validation_fraction": 0.25})
    with pytest.raises(InternalError):
        plans.train(plans.weighted(plans.cards()), "linear_regression")


def test_a_warm_start_tells_each_block_where_it_starts() -> None:
    warm = warmed(WarmStart("old", {0: 1, 2: 0}))
    assert warm.specifications[BANK_0][0].warm == ("old", 1)
    link, planes = warm.specifications[AIRLINE]
    assert (link.warm, planes.warm) == (None, ("old", 0))
    told = {d.what for d in warm.disclosures if d.kind == "statistics"}
    assert all("model that training starts from" in what for what in told)
    with pytest.raises(InternalError):
        warmed(WarmStart("old", {0: 1}))


def warmed(start: WarmStart) -> FederatedPlan:
    options = training_options("linear_regression", plans.OPTIONS)
    return training_plan("m", "linear_regression", plans.cards(), options, "", warm=start)


def test_a_plan_is_read_only() -> None:
    plan = plans.train(plans.flights(), "logistic_regression")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.options.epochs = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"  # type: ignore[misc]


def test_blocks_must_cover_the_slots_with_features() -> None:
    with pytest.raises(InternalError, match=r"slots \[0, 2\] have features, \[0\] have blocks"):
        prediction_plan(
            ScoredModel("m", "linear_regression", {0: 0}),
            plans.cards("predict"),
            resolve_scoring("linear_regression", {}),
            "",
        )


def test_prepare_has_the_exact_length_of_its_texts() -> None:
    plan = plans.train(plans.cards(), "linear_regression")
    for client in plan.clients:
        texts = [specifications_to_json(plan.specifications[client]), *plan.fragments_sql(client)]
        _, amount = plan.totals()[client, WHOLE, "prepare", DOWN]
        assert amount == sum(len(text.encode()) for text in texts)


def test_sizes_of_a_shared_slot_with_the_gram() -> None:
    plan = plans.train(plans.cards(), "linear_regression")
    up, down = kinds(plan, 0, UP), kinds(plan, 0, DOWN)
    assert up["join_keys"] == "6·n[c@bank/0] + 16·u[c@bank/0.key0]"
    assert up["statistics"] == "24·v[c@bank/0.kind] + 112"  # 8·(3·4 + 2) of 4 columns, 2 features
    assert down["set_encoding"] == "24·y[c.kind] + 88"
    assert up["labels"] == "8·a[c@bank/0]"
    assert up["gram"] == "8·p[c]^2 + 8·p[c]·q[c] + 8·p[c] + 8·q[c] + 16·z[c@bank/0] + 8"
    assert down["set_gram"] == "8·p[c]^2 + 8·p[c]·q[c] + 8·p[c] + 8·q[c] + 16·z[c] + 8"
    # T iterations and the first gradient, F that are asked for anew, V in the end
    gradients = "8·F·d[c]·d_c + 8·T·d[c]·d_c + 8·V·d[c]·d_c + 8·d[c]·d_c"
    assert up["partial_gradient"] == gradients
    rows = "R[c@bank/0]"
    assert up["equal_rows"] == "4·G·j[c@bank/0]"
    assert up["predictions"] == (
        f"4·{rows}·T·d_c + 4·{rows}·V·d_c + 4·{rows}·d_c + 1584·T + 8·V + 1584 - 4·E·{rows}·d_c"
        " - 1584·E"
    )
    assert up["exact_predictions"] == f"8·E·{rows}·d_c + 16·F·{rows}·d_c + 1584·E + 1592·F"
    assert down["exact_residuals"] == f"8·E·{rows}·d_c + 8·F·{rows}·d_c + 176·E + 176·F"
    assert up["slope"] == "16·V"
    second = plan.totals()[BANK_1, 0, "predictions", UP][1]
    rows = "R[c@bank/1]"
    assert str(second) == f"4·{rows}·T·d_c + 4·{rows}·V·d_c + 4·{rows}·d_c - 4·E·{rows}·d_c"
    assert kinds(plan, 1, UP).keys() == {"join_keys"}


def test_admm_sums_gradients_or_runs_consensus() -> None:
    exact = kinds(plans.train(plans.cards(), "linear_regression", ADMM), 0, UP)
    assert {"gram", "partial_gradient"} <= exact.keys()
    assert exact["partial_gradient"] == "8·T·d[c]·d_c + 8·V·d[c]·d_c + 8·P·d[c]"
    assert exact["slope"] == "16·V"
    plan = plans.train(plans.cards(), "linear_regression", CONSENSUS)
    consensus = kinds(plan, 0, UP)
    assert "gram" not in consensus
    assert consensus["partial_gradient"] == "8·V·d[c]·d_c"  # of the norm in the end alone
    assert consensus["slope"] == "8·V"
    assert consensus["consensus_part"] == "80·T·d[c]·d_c"
    assert kinds(plan, 0, DOWN)["consensus_average"] == "80·T·d[c]·d_c"
    assert consensus["predictions"] == "4·R[c@bank/0]·T·d_c + 4·P·R[c@bank/0] + 8·T"


def test_sgd_sends_all_rows_once_an_epoch_and_batches_between() -> None:
    full = plans.train(plans.flights(), "logistic_regression", SGD)
    assert kinds(full, 0, DOWN)["residuals"] == "4·R[f@airline/0]·T·d_c + 24·T"
    assert "probe" in kinds(full, 0, DOWN)
    options = SGD | {"batch_size": 100, "learning_rate": 0.1}
    plan = plans.train(plans.flights(), "logistic_regression", options)
    assert "probe" not in kinds(plan, 0, DOWN)
    messages, amount = plan.totals()[AIRLINE, 0, "residuals", DOWN]
    assert str(messages) == "S"
    values = {"T": 2, "S": 6, "R[f@airline/0]": 50, "b[f@airline/0]": 20, "d_c": 1}
    assert amount.evaluate(values) == 2 * 50 * 4 + 4 * (20 * 4 + 20 * 4) + 6 * 24


NEURAL_SIZES = {"d[c]": 5, "d[p]": 2, "d_c": 3}


def tower(d: int, hidden: tuple[int, ...], outputs: int) -> int:
    return TowerShape(d, hidden, outputs, "relu").size


@pytest.mark.parametrize("hidden", [(1,), (16,), (7, 4), (3, 1, 5)])
@pytest.mark.parametrize("head", [{}, plans.HEAD])
def test_gradients_of_towers_have_all_parameters(
    hidden: tuple[int, ...], head: dict[str, object]
) -> None:
    outputs = 8 if head else 3
    size = tower(5, hidden, outputs)
    sgd = plans.train(plans.cards(), "mlp_classifier", {"hidden": hidden, **head})
    bound = NEURAL_SIZES | {"S": 6, "T": 2}
    for client in (BANK_0, BANK_1):
        for kind, way in (("partial_gradient", UP), ("sum_gradient", DOWN)):
            messages, amount = sgd.totals()[client, 0, kind, way]
            assert messages.evaluate(bound) == 6
            assert amount.evaluate(bound) == 6 * 8 * size
    admm = plans.train(plans.cards(), "mlp_classifier", plans.LOCAL | {"hidden": hidden, **head})
    for kind, way in (("consensus_part", UP), ("consensus_average", DOWN)):
        messages, amount = admm.totals()[BANK_1, 0, kind, way]
        assert messages.evaluate(bound) == 2 * 4
        assert amount.evaluate(bound) == 2 * 4 * 8 * size
    for made in (sgd, admm):
        assert {"gram", "set_gram", "probe"}.isdisjoint(kinds(made, 0, UP) | kinds(made, 0, DOWN))
        assert {"partial_gradient", "consensus_part"}.isdisjoint(kinds(made, 2, UP))


def test_towers_predict_once_before_they_step() -> None:
    plan = plans.train(plans.cards(), "mlp_regressor")
    assert kinds(plan, 0, DOWN)["send_predictions"] == "16"
    assert kinds(plan, 0, UP)["predictions"] == (
        "4·R[c@bank/0]·T·d_c + 4·S·b[c@bank/0]·d_c + 4·R[c@bank/0]·d_c + 8·S + 8"
        " - 4·T·b[c@bank/0]·d_c"
    )
    admm = plans.train(plans.cards(), "mlp_regressor", plans.LOCAL)
    assert kinds(admm, 2, UP)["predictions"] == (
        "4·T·a[p@airline/0]·d_c + 4·a[p@airline/0]·d_c + 8·T + 8"
    )
    assert kinds(admm, 2, DOWN)["residuals"] == "4·T·a[p@airline/0]·d_c + 8·T"


def test_with_a_head_each_row_has_its_embedding_and_no_model_output() -> None:
    # local batches are of the client's own rows, equal or not
    for options, rows in (
        (plans.HEAD, "R[p@airline/0]·T"),
        (plans.LOCAL | plans.HEAD, "T·a[p@airline/0]"),
    ):
        plan = plans.train(plans.cards(), "mlp_classifier", options)
        assert "outputs" not in {symbol.role for symbol in plan.symbols}
        assert f"32·{rows}" in kinds(plan, 2, UP)["predictions"]
        assert f"32·{rows}" in kinds(plan, 2, DOWN)["residuals"]
    scored = plans.score("predict", "mlp_classifier", plans.NEURAL | plans.HEAD)
    assert kinds(scored, 2, UP)["predictions"] == "32·a[p@airline/0]"
    # as a model's file has them
    read = plans.NEURAL | plans.HEAD | {"hidden": [16]}
    assert kinds(plans.score("evaluate", "mlp_regressor", read), 2, UP)["predictions"] == (
        "32·a[p@airline/0]"
    )


def test_dropped_units_take_an_exchange_more_each_epoch() -> None:
    plan = plans.train(plans.flights(), "mlp_classifier", {"dropout": 0.5})
    messages, amount = plan.totals()[METEO, 1, "send_predictions", DOWN]
    bound = {"T": 3, "S": 9, "d_c": 2, "a[w@meteo/0]": 40, "b[w@meteo/0]": 20}
    some = bound | {"g[w@meteo/0]": 25, "l[w@meteo/0]": 25}
    assert messages.evaluate(some) == 1 + 3
    assert amount.evaluate(some) == 16 + 3 * (16 + 4 * 25)
    # batches that are all rows list none
    whole = bound | {"S": 3, "g[w@meteo/0]": 40, "l[w@meteo/0]": 0}
    assert amount.evaluate(whole) == 4 * 16
    _, down = plan.totals()[METEO, 1, "residuals", DOWN]
    assert down.evaluate(some) == 3 * (8 * 25 + 24) + 6 * (8 * 20 + 24 + 4 * 20)
    messages, up = plan.totals()[METEO, 1, "predictions", UP]
    assert messages.evaluate(some) == 1 + 3 + 9
    assert up.evaluate(some) == (8 * 40 + 8) * 4 + 3 * (8 * 25 + 8) + 6 * (8 * 20 + 8)
    local = plans.train(plans.flights(), "mlp_classifier", plans.LOCAL | {"dropout": 0.5})
    assert str(local.totals()[METEO, 1, "send_predictions", DOWN][0]) == "1"


def test_optimizers_change_no_traffic_but_adam_needs_no_curvature() -> None:
    plain = plans.train(plans.cards(), "linear_regression", SGD | {"learning_rate": 0.1})
    for optimizer in ("momentum", "adam"):
        options = SGD | {"learning_rate": 0.1, "optimizer": optimizer}
        made = plans.train(plans.cards(), "linear_regression", options)
        assert made.totals() == plain.totals()
    momentum = plans.train(plans.cards(), "linear_regression", SGD | {"optimizer": "momentum"})
    assert "probe" in kinds(momentum, 0, DOWN)


def test_a_warm_start_asks_for_predictions() -> None:
    made = warmed(WarmStart("run", {0: 0, 2: 1}))
    assert kinds(made, 0, DOWN)["send_predictions"] == "16·V + 16"
    cold = plans.train(plans.cards(), "linear_regression")
    assert kinds(cold, 0, DOWN)["send_predictions"] == "16·V"  # to measure the gradient at


def test_a_seed_numbers_the_rows_of_training() -> None:
    for seed in (None, 0, 7):
        made = plans.train(plans.cards(), "linear_regression", {"seed": seed})
        found = {item.seed for items in made.specifications.values() for item in items}
        assert found == {seed}
    scored = plans.score("predict", more={"seed": 7})
    assert {item.seed for items in scored.specifications.values() for item in items} == {None}


# -- the coordinator at a party --------------------------------------------------------------------


def test_what_stays_at_the_coordinators_party_is_no_disclosure() -> None:
    free = plans.train(plans.cards(), "mlp_regressor")
    at = plans.train(plans.cards(), "mlp_regressor", at="BANK")
    assert at.totals() == free.totals()
    assert free.staying == ()
    assert [at.crosses(client) for client in (BANK_0, BANK_1, AIRLINE)] == [False, False, True]
    ends = {end for d in at.disclosures for end in (d.sender, d.receiver)}
    assert ends == {"coordinator", "airline/0"}
    stays = {end for d in at.staying for end in (d.sender, d.receiver)}
    assert stays == {"coordinator", "bank/0", "bank/1"}
    assert set(at.disclosures) | set(at.staying) == set(free.disclosures)
    assert set(at.disclosures).isdisjoint(at.staying)
    assert {"labels", "statistics", "partial_gradient"}.isdisjoint(d.kind for d in at.disclosures)


def test_a_coordinator_at_a_party_without_tables_changes_nothing() -> None:
    free = plans.train(plans.flights(), "logistic_regression")
    at = plans.train(plans.flights(), "logistic_regression", at="bank")
    assert at.disclosures == free.disclosures
    assert at.staying == ()


def test_every_request_has_a_reply() -> None:
    for made in (
        plans.train(plans.cards(), "mlp_regressor", {"dropout": 0.5, **plans.HEAD}),
        plans.train(plans.cards(), "mlp_regressor", plans.LOCAL),
        plans.train(plans.cards(), "linear_regression", CONSENSUS),
        plans.train(plans.cards(), "linear_regression", SGD),
        plans.train(plans.flights(), "logistic_regression"),
        plans.score("predict"),
        plans.score("evaluate"),
    ):
        for exchange in made.exchanges:
            down = [(s.client, s.slot) for s in exchange.sends if s.direction == DOWN]
            up = [(s.client, s.slot) for s in exchange.sends if s.direction == UP]
            assert down == up
            assert len(set(down)) == len(down)


def test_disclosures_are_the_messages_with_values() -> None:
    plan = plans.train(plans.cards(), "linear_regression", CONSENSUS)
    up = [d for d in plan.disclosures if d.direction == UP]
    assert plan.disclosures[: len(up)] == tuple(up)
    total = sum((d.bytes * d.times for d in up), start=0 * plan.disclosures[0].bytes)
    assert total == sum(
        (amount for key, (_, amount) in plan.totals().items() if key[3] == UP), start=0 * total
    )
    assert "send_labels" not in {d.kind for d in plan.disclosures}


def test_symbols_have_a_place_and_a_documented_role() -> None:
    plan = plans.train(plans.cards(), "linear_regression")
    found = {symbol.name: symbol for symbol in plan.symbols}
    assert len(found) == len(plan.symbols)
    assert {symbol.role for symbol in plan.symbols} <= ROLES.keys()
    tags = found["u[l@airline/0.key1]"]
    assert (tags.role, tags.slot, tags.client, tags.part) == ("tags", 1, AIRLINE, 1)
    merged = found["y[c.kind]"]
    assert (merged.slot, merged.client, merged.part) == (0, None, 2)


def test_engines_fit_the_memory_limit() -> None:
    ucq = plans.cards()
    assert row_bytes(ucq.slots[0]) == 8 * (2 + 4) + 12
    layers = TowerOptions(hidden=(16, 4))
    assert row_bytes(ucq.slots[0], layers) == 8 * (2 + 4 + 2 * 20) + 12
    linear = training_options("linear_regression", {"memory_limit": "60KB"})
    assert choose_engines(ucq, linear)[2].engine == "arrays"
    assert choose_engines(ucq, replace(linear, tower=layers))[2] == EngineChoice(
        "sql", "about 98.4 KiB of 29.3 KiB, the tower's layers among them"
    )
    chosen = choose_engines(ucq, training_options("linear_regression", {}))
    assert chosen[0].engine == "sql"
    assert "bank/0" in chosen[0].reason
    assert chosen[2] == EngineChoice("arrays", "about 4.7 KiB of 2.0 GiB")
    assert choose_engines(ucq, replace(linear, memory_limit="9KB"))[2].engine == "sql"
    forced = choose_engines(ucq, replace(linear, engine="arrays"))
    assert {choice.engine for choice in forced.values()} == {"arrays"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1GB", 10**9),
        ("1.5 GiB", 1610612736),
        ("512mb", 512 * 10**6),
        (7, 7),
        (None, None),
        ("80%", None),
    ],
)
def test_memory_limits_are_read_as_duckdb_writes_them(
    written: object, expected: int | None
) -> None:
    assert bytes_of(written) == expected
