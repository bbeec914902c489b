"""Each method does what holds for all."""

from __future__ import annotations

from tests.methods.conformance import MethodConformance


class TestLbfgs(MethodConformance):
    algorithm = "lbfgs"
    private = False


class TestSgd(MethodConformance):
    algorithm = "sgd"
    options = {"learning_rate": 0.3}  # noqa: RUF012


class TestBatches(MethodConformance):
    algorithm = "sgd"
    options = {"batch_size": 50, "learning_rate": 0.1}  # noqa: RUF012


class TestAdmm(MethodConformance):
    algorithm = "admm"


class TestConsensus(MethodConformance):
    algorithm = "admm"
    options = {"union": "consensus", "inner_rounds": 3}  # noqa: RUF012
    # the clients of a slot find their step by rounds that depend on them: not as one with all rows
    test_clients_without_active_rows = None
