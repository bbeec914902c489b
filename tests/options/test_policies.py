"""Combination of several policies into the strictest."""

from __future__ import annotations

from dataclasses import fields

from sqlfl.options.policies import TrainingPolicy, strictest

OTHER = {
    "min_rows": 21, "min_cell": 6, "min_difference": 7, "max_categories": 8,
    "max_parameter_ratio": 0.2, "max_fan_out": 9, "rounds": 10, "algorithms": ("lbfgs",),
    "kinds": ("linear_regression",), "approval": "always", "epsilon": 1.0, "epsilon_total": 2.0,
    "delta": 1e-7, "per": 3600.0, "runs_per_day": 11, "seconds": 12.0, "lease": 13.0,
    "open_runs": 14, "join_time": 15.0, "memory": 2**30, "threads": 2, "folders": ("/tables",),
    "hours": "22:00-06:00", "max_epsilon": 3.0, "max_label_epsilon": 3.5, "labels": "noised",
    "predictions": "noised", "moments": "noised", "identifiers": "never", "weights": "never",
    "metrics": "never", "conditions": "exact", "into": "results",
}  # fmt: skip
"""A value of every rule that is not its default."""


def test_the_strictest_keeps_every_rule() -> None:
    """Of one policy, and of two equal ones: a rule that the combination forgot has its default."""
    usual = TrainingPolicy()
    assert {f.name for f in fields(TrainingPolicy)} == OTHER.keys()
    assert [name for name, value in OTHER.items() if getattr(usual, name) == value] == []
    policy = TrainingPolicy(**OTHER)
    for number in (1, 2):
        assert strictest([policy] * number) == policy
