"""Gradients of a tower with a bound on the norm of each row's own: by Opacus, and in closed form.

Opacus computes the norms of the layers above the first, by its ghost norms. They are exact and need
no gradient of each row in memory: only a layer's forward and backward values. The first layer's
norm is ‖x̃_r‖ ‖∂z_r‖, z = X̃ W₁ + b₁, so that one-hot columns stay sparse. Importing this loads
Opacus: only private training of a tower does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.models.neural import Tensor, TowerNetwork

try:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
except ImportError as error:
    raise ModelError(
        "neural towers are trained privately with Opacus, which cannot be imported here",
        hint="pip install 'sqlfl[neural]' at this party",
    ) from error


class RowLimit:
    """Scaling of each row's gradient of h_r·V_r, by all parameters of the tower.

    factors: norms (n,) -> factors of each row's gradient (n,), both float64. Norms and sums use the
    same forward values, so that rounding cannot make them differ.
    """

    def __init__(self, network: TowerNetwork, factors: Callable[[Array], Array]) -> None:
        self._factors = factors
        self._layers = _UpperLayers(network)
        self._opacus = GradSampleModuleFastGradientClipping(
            self._layers, loss_reduction="sum", use_ghost_clipping=True
        )

    def gradients(
        self,
        first: Tensor,
        upper: Sequence[Tensor],
        values: Tensor,
        generator: torch.Generator | None,
        lengths: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return gradients of scaled rows, as `TowerNetwork.gradients` does. lengths: ‖x̃_r‖
        (n,).
        """
        layers = self._layers
        layers.load(upper, generator)
        sums = (first + upper[0]).detach().requires_grad_(True)
        self._opacus.enable_hooks()
        with torch.enable_grad():
            outputs = self._opacus(sums)
        (slopes,) = torch.autograd.grad(outputs, sums, values, retain_graph=True)
        # the first layer's bias counts as a column of ones
        inputs = slopes.square().sum(1) * (1.0 + lengths.square())
        norms = (self._opacus.get_norm_sample().square() + inputs).sqrt()
        factors = self._scaled(norms)
        self._opacus.disable_hooks()
        weight_gradients = torch.autograd.grad(outputs, layers.weights, values * factors)
        slopes = slopes * factors
        return (slopes, slopes.sum(0), *(p.T if p.ndim == 2 else p for p in weight_gradients))

    def _scaled(self, norms: Tensor) -> Tensor:
        """Return the factors (n, 1)."""
        factors = self._factors(norms.double().cpu().numpy())
        return torch.tensor(np.asarray(factors), dtype=norms.dtype, device=norms.device)[:, None]


class _UpperLayers(torch.nn.Module):
    """h of X̃ W₁ + b₁, as in `TowerNetwork.upper`, with layers that Opacus knows."""

    def __init__(self, network: TowerNetwork) -> None:
        super().__init__()
        self._network = network
        self._generator: torch.Generator | None = None
        shape, layer = network.shape, network.layer
        sizes = list(pairwise((*shape.hidden, shape.outputs)))
        self._layers = torch.nn.ModuleList(
            # 'meta' draws no first weights, which would use a shared generator
            torch.nn.Linear(*size, bias=number < len(sizes) - 1, device="meta", dtype=layer.dtype)
            for number, size in enumerate(sizes)
        )
        self._layers.to_empty(device=layer.device)

    @property
    def weights(self) -> list[Tensor]:
        """Return W₂, b₂, …, W_out, with weights (out, in)."""
        parameters: list[Tensor] = []
        for layer in self._layers:
            parameters += layer.parameters()
        return parameters

    def load(self, upper: Sequence[Tensor], generator: torch.Generator | None) -> None:
        """Take b₁, W₂, …, W_out, with b₁ unused, and the generator of the dropped units."""
        self._generator = generator
        with torch.no_grad():
            for mine, given in zip(self.weights, upper[1:], strict=True):
                mine.copy_(given.T if given.ndim == 2 else given)

    def forward(self, values: Tensor) -> Tensor:
        for layer in self._layers:
            values = layer(self._network.hidden(values, self._generator))
        return self._network.bounded(values)
