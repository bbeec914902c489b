"""Softmax and sigmoid, and the proximal steps of their losses: argmin ℓ(z; y) + ρ/2 ‖z − v‖²."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array


def sigmoid(h: Array) -> Array:
    """Return 1 / (1 + exp(−h)), without overflow."""
    e = np.exp(-np.abs(h))
    p: Array = np.where(h >= 0.0, 1.0, e)
    p /= 1.0 + e
    return p


def log_sum(scores: Array) -> tuple[Array, Array]:
    """Return log Σ exp over classes (N,), and the softmax (d_c, N). Rows of `scores` are
    classes.
    """
    top = scores.max(axis=0)
    p = np.exp(np.subtract(scores, top, order="C"))
    total = p.sum(axis=0)
    p /= total
    return np.log(total) + top, p


def picked(scores: Array, targets: Array) -> Array:
    """Return each column's entry in the row of its class: (d_c, N) -> (N,)."""
    entries: Array = scores[targets.astype(np.intp), np.arange(scores.shape[1])]
    return entries


def logistic_proximal(v: Array, y: Array, rho: float) -> Array:
    """Return the root of σ(z) − y + ρ(z − v) = 0 for each of (n,) rows.

    It is between v and v + (y − σ(v))/ρ. Newton steps that leave the shrinking bracket are replaced
    by its middle. So is every third long step, because Newton walks by ones in the flat tails.
    """
    slack = (y - sigmoid(v)) / rho
    low, high = np.minimum(v, v + slack), np.maximum(v, v + slack)
    z = v + 0.5 * slack
    roots = np.empty_like(z)
    active = np.arange(len(z))
    for iteration in range(100):
        p = sigmoid(z)
        f = p - y + rho * (z - v)
        high = np.where(f > 0, z, high)
        low = np.where(f > 0, low, z)
        proposal = z - f / (p * (1.0 - p) + rho)
        poor = (proposal < low) | (proposal > high)
        if iteration % 3 == 2:
            poor |= np.abs(proposal - z) > 0.1
        proposal = np.where(poor, 0.5 * (low + high), proposal)
        # a Newton step of 1e-7 leaves an error of about 1e-14
        limit = np.where(poor, 1e-12, 1e-7) * (1.0 + np.abs(proposal))
        moving = np.abs(proposal - z) > limit
        z = proposal
        left = np.count_nonzero(moving)
        if left == 0:
            break
        if 2 * left < len(z):
            roots[active] = z
            active, z, v, y = active[moving], z[moving], v[moving], y[moving]
            low, high = low[moving], high[moving]
    roots[active] = z
    return roots


def softmax_proximal(v: Array, y: Array, rho: float) -> Array:
    """Minimise ℓ(z; y) + ρ/2 ‖z − v‖² by damped Newton steps; rows are classes: (d_c, n)."""
    minima = np.empty_like(v)
    active = np.arange(v.shape[1])
    z = v
    value, p = _prox_value(z, v, y, rho)
    for _ in range(60):
        f = p + rho * (z - v)
        f[y, np.arange(len(y))] -= 1.0
        # (diag(p + ρ) − p pᵀ)⁻¹ f by Sherman-Morrison
        inverse = 1.0 / (p + rho)
        newton, u = inverse * f, inverse * p
        remainder = rho * np.sum(u, axis=0)  # 1 − pᵀ diag(p + ρ)⁻¹ p without cancellation
        newton += u * (np.sum(p * newton, axis=0) / remainder)
        decrement = np.sum(f * newton, axis=0)
        # the decrement is a square: a step of 1e-7 leaves an error of about 1e-14
        moving = decrement > np.maximum(1e-15 * min(rho, 1.0), 1e-18 * (1.0 + np.abs(value)))
        start = value + 1e-14 * (1.0 + np.abs(value))
        z = z - newton
        value, p = _prox_value(z, v, y, rho)
        length = 1.0
        worse = np.flatnonzero(value > start - 1e-4 * decrement)
        while len(worse) and length > 2.0**-40:
            length *= 0.5
            z[:, worse] += length * newton[:, worse]
            shorter = _prox_value(z[:, worse], v[:, worse], y[worse], rho)
            value[worse], p[:, worse] = shorter
            limit = start[worse] - 1e-4 * length * decrement[worse]
            worse = worse[shorter[0] > limit]
        left = np.count_nonzero(moving)
        if left == 0:
            break
        if 2 * left < len(active):
            minima[:, active] = z
            active, y, value = active[moving], y[moving], value[moving]
            z, v, p = z[:, moving], v[:, moving], p[:, moving]
    minima[:, active] = z
    return minima


def _prox_value(z: Array, v: Array, y: Array, rho: float) -> tuple[Array, Array]:
    logarithm, p = log_sum(z)
    value: Array = logarithm - picked(z, y) + 0.5 * rho * np.sum((z - v) ** 2, axis=0)
    return value, p
