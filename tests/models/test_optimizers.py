"""Steps equal those of torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sqlfl.base.errors import InternalError
from sqlfl.models.optimizers import optimizer_of

THEIRS: dict[str, Any] = {
    "plain": lambda p: torch.optim.SGD([p], lr=0.1),
    "momentum": lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.7),
    "adam": lambda p: torch.optim.Adam([p], lr=0.1),
}


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
@pytest.mark.parametrize("name", sorted(THEIRS))
def test_steps_are_those_of_torch(name: str, kind: Any) -> None:
    """Also with step lengths that change, which scale the step and not what is remembered."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 3))
    theirs = torch.tensor(start, requires_grad=True)
    reference, own = THEIRS[name](theirs), optimizer_of(name, 0.7)
    parameters = kind(start)
    for step in range(20):
        gradient = rng.normal(size=(4, 3)) * 10.0 ** rng.integers(-6, 3)
        rate = 0.1 / (1.0 + step)
        reference.param_groups[0]["lr"] = rate
        theirs.grad = torch.tensor(gradient)
        reference.step()
        before = np.asarray(parameters).copy()
        following = own.step(parameters, kind(gradient), rate)
        np.testing.assert_array_equal(np.asarray(parameters), before)
        parameters = following
        np.testing.assert_allclose(np.asarray(parameters), theirs.detach().numpy(), rtol=1e-12)
    assert np.abs(np.asarray(parameters) - start).max() > 0.1


def test_an_unknown_optimizer() -> None:
    with pytest.raises(InternalError, match="lion"):
        optimizer_of("lion")
