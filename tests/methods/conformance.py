"""What holds for every method; each inherits it, those of other distributions too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import Gram, PartialGradient, Predictions, SendPredictions, Start
from sqlfl.planner.federated.method_spec import spec_of
from tests.conftest import Open
from tests.methods.harness import Join, MemoryChannel, Trained, planned_counts, random_join, train
from tests.test_border import assert_disclosed, tapped

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


class MethodConformance:
    """Of linear blocks."""

    algorithm: str
    options: Mapping[str, Any] = {}
    private: bool = True
    """Its rounds can be, with noised predictions."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "clause" in metafunc.fixturenames:
            metafunc.parametrize("clause", ["", NOISED] if self.private else [""])

    def train(self, join: Join, **options: Any) -> Trained:
        return train(join, self.algorithm, **{**self.options, "tolerance": 0.0, **options})

    # -- steps ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["linear_regression", "softmax_regression"])
    def test_clients_without_active_rows(self, kind: str) -> None:
        join = random_join(kind, clients=(2, 2, 3))
        join.empty_first = True
        one, found = self.train(random_join(kind), epochs=3), self.train(join, epochs=3)
        np.testing.assert_allclose(found.theta, one.theta, atol=2e-6)

    def test_runs_are_repeatable(self) -> None:
        first = self.train(random_join(clients=(2, 1, 1)), epochs=3)
        again = self.train(random_join(clients=(2, 1, 1)), epochs=3)
        np.testing.assert_array_equal(first.theta, again.theta)
        assert first.steps == again.steps

    def test_the_objective_falls_and_the_last_step_says_why_it_ended(self) -> None:
        trained = self.train(random_join("logistic_regression"), epochs=4)
        assert trained.objective < trained.algorithm.first
        endings = [step.ending for step in trained.steps]
        assert endings[-1] is not None
        assert not any(endings[:-1])
        assert [step.epoch for step in trained.steps] == list(range(1, len(endings) + 1))

    def test_scores_and_objective_belong_to_the_blocks_after_every_step(self) -> None:
        join = random_join("logistic_regression", clients=(1, 2, 1))
        problem = join.problem(algorithm=self.algorithm, epochs=4, **self.options)
        channel = MemoryChannel(join.engines)
        method = coordinator_of(self.algorithm)(problem, channel)
        method.start()
        for step in method.steps():
            blocks = [channel.operators[m.addresses[0]].theta for m in problem.slots]
            theta = np.concatenate(blocks)
            scores = join.design @ theta + method.intercept
            np.testing.assert_allclose(join.scores(method), scores, atol=1e-5)
            exact = join.objective(method.intercept, theta)
            assert step.objective == pytest.approx(exact, rel=1e-6)

    def test_only_shared_slots_send_sums_over_rows(self) -> None:
        sent = self.train(random_join(clients=(1, 2, 1)), epochs=2).channel.sent
        assert {m.slot for m in sent if isinstance(m, PartialGradient | Gram)} <= {1}
        leaders = {
            (m.slot, len(m.products) > 0)
            for m in sent
            if isinstance(m, Predictions) and m.slot != 1
        }
        assert (0, True) in leaders
        assert sum(isinstance(m, Start) for m in sent) == 4

    # -- weights ----------------------------------------------------------------------------------

    def weighted(self, kind: str, weights: np.ndarray | None = None, **options: Any) -> Join:
        join = random_join(kind, total=600, sizes=(600, 60, 12), **options)
        if weights is None:
            weights = np.random.default_rng(4).integers(0, 4, 600)
        return replace(join, weights=weights.astype(float), engines={})

    @pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
    def test_the_scale_of_the_weights_does_not_matter(self, scale: float) -> None:
        join = self.weighted("logistic_regression", clients=(1, 2, 1))
        scaled = replace(join, weights=join.weights * scale, engines={})
        one, other = self.train(join, epochs=4), self.train(scaled, epochs=4)
        np.testing.assert_allclose(other.theta, one.theta, atol=1e-6)
        assert other.objective == pytest.approx(one.objective, rel=1e-6)

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_of_weight_zero_are_predicted_and_change_nothing(self, kind: str) -> None:
        join = self.weighted(kind)
        nothing = join.weights == 0
        targets = np.where(nothing, join.targets[::-1], join.targets)
        other = replace(join, targets=targets, engines={})
        one, two = self.train(join, epochs=4), self.train(other, epochs=4)
        np.testing.assert_array_equal(one.theta, two.theta)
        scores = join.design @ one.theta + one.algorithm.intercept
        np.testing.assert_allclose(join.scores(one.algorithm)[nothing], scores[nothing], atol=1e-5)

    def test_weights_of_one_are_no_weights(self) -> None:
        join = self.weighted("softmax_regression", np.ones(600))
        none = replace(join, weights=None, engines={})
        one, two = self.train(join, epochs=4), self.train(none, epochs=4)
        np.testing.assert_allclose(one.theta, two.theta, atol=1e-6)

    # -- a model to start from, and those to go back to -------------------------------------------

    def test_a_warm_start_is_one_exchange_more_and_begins_at_its_blocks(self) -> None:
        join = self.weighted("linear_regression", clients=(1, 2, 1), l2=1e-2)
        before = self.train(join, epochs=2)
        cold, warm = self.train(join, epochs=2), self.train(join, epochs=2, start=before.blocks)
        assert warm.channel.rounds == cold.channel.rounds + 1
        assert warm.channel.kinds[1] == ["send_predictions"]
        sent = warm.channel.sent
        asked = [n for n, m in enumerate(sent[:16]) if isinstance(m, SendPredictions)]
        replies = [sent[n + 1] for n in asked]
        assert all(isinstance(m, Predictions) and m.values.dtype == np.float32 for m in replies)
        assert [len(m.products) for m in replies] == [1, 1, 0, 1]
        # those of the end, to measure the gradient at, are no more of them than without
        more = sum(isinstance(m, SendPredictions) for m in sent) - len(asked)
        assert more == sum(isinstance(m, SendPredictions) for m in cold.channel.sent)
        assert warm.algorithm.first <= before.objective * (1 + 1e-6)

    def test_blocks_of_the_last_epochs_are_kept(self) -> None:
        join = random_join("logistic_regression", clients=(1, 2, 1))
        problem = join.problem(algorithm=self.algorithm, epochs=6, patience=2, **self.options)
        channel = MemoryChannel(join.engines)
        method = coordinator_of(self.algorithm)(problem, channel)
        method.start()
        address = problem.slots[1].addresses[1]
        steps, found = method.steps(), []
        for _ in range(4):
            next(steps)
            found.append(channel.operators[address].theta.copy())
        for back in range(3):
            np.testing.assert_array_equal(
                channel.operators[address].kept(back)[0], found[-1 - back]
            )

    # -- what is released, and what crosses the border --------------------------------------------

    def test_clients_release_what_is_planned(self) -> None:
        if not self.private:
            assert spec_of(self.algorithm).private is None
            return
        join = random_join("logistic_regression", clients=(1, 2, 1), total=240, sizes=(240, 24, 8))
        noise = RoundNoise(1.0, 0.5, 1e6, 0.5, row_bound=1e3, moments_noise=1e-9)
        options = {"epochs": 3, "private": True, **self.options}
        problem = replace(
            join.problem(algorithm=self.algorithm, **options),
            privacy=RunNoise(dict.fromkeys(range(3), noise)),
            trace=12.0,
        )
        channel = MemoryChannel(join.engines)
        method = coordinator_of(self.algorithm)(problem, channel)
        method.start()
        assert len(list(method.steps())) == 3
        for (_, slot), operator in channel.operators.items():
            planned, most = planned_counts(problem.options, join, slot)
            counts = operator.guard.counts
            assert all(got <= limit for got, limit in zip(counts, most, strict=True))
            if slot > 0 or planned.whole:
                assert counts == most

    @pytest.mark.parametrize("clients", [1, 2])
    def test_the_traffic_is_what_explain_says(
        self, database: Open, clients: int, clause: str
    ) -> None:
        privacy = f"PRIVACY ({clause}{BOUNDS})" if clause else ""
        given = {"algorithm": self.algorithm, "epochs": 2, **self.options}
        written = ", ".join(f"{name} = {value!r}" for name, value in given.items())
        text = (
            f"TRAIN MODEL m USING logistic_regression TARGET late WITH ({written}) {privacy} "
            f"FROM ({QUERY})"
        )
        parties = shop(database, clients)
        with tapped(parties) as (fed, tap):
            plan = fed.explain(text)
            with tap.taken() as recorded:
                fed.sql(text)
            epochs = fed.model("m").history.num_rows
            assert_disclosed(plan, recorded, parties, epochs=epochs)
            assert len(fed.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()) == 240


QUERY = (
    "SELECT o.amount, o.pieces, p.visits, o.late FROM shop.orders o "
    "JOIN crm.people p ON o.customer = p.id"
)
NOISED = "epsilon = 8, predictions = 'gaussian', "
BOUNDS = "feature_bounds = {'amount': [0, 10], 'pieces': [0, 4], 'visits': [0, 3]}"


def shop(database: Open, clients: int) -> dict[str, list[Any]]:
    """Orders and customers, divided among so many databases each."""
    made = {
        "shop": "CREATE TABLE orders AS SELECT i AS id, i % 30 AS customer, (i * 37) % 11 AS "
        "amount, (i * 13) % 5 AS pieces, ((i % 30) * 7 + (i * 37) % 11) % 9 > 3 AS late "
        "FROM range(240) r(i)",
        "crm": "CREATE TABLE people AS SELECT i AS id, (i * 5) % 4 AS visits FROM range(30) r(i)",
    }
    tables = {"shop": "orders", "crm": "people"}
    parties: dict[str, list[Any]] = {party: [] for party in made}
    for q in range(clients):
        for party, text in made.items():
            con = database(text)
            con.execute(f"DELETE FROM {tables[party]} WHERE id % {clients} <> {q}")
            parties[party].append(con)
    return parties
