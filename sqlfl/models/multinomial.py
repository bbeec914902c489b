"""Standard errors of softmax regression, as multinomial logistic regression has them.

A model of C classes has weights of each class, of which only differences count. Those of class k
less those of the first class, the reference, are parameters θ_k (P,), as in R's nnet::multinom and
statsmodels' MNLogit. All parameters (K P,), K = C − 1, stand class after class. The design z (N, P)
is the same for all classes. Hence a row's part of the information is (diag(p) − p pᵀ) ⊗ z zᵀ.

Along a direction d the likelihood never falls where d_y·z ≥ d_c·z for each row, its class y and all
other classes c (Albert and Anderson 1984). That is the separation of pairs of a row and a class,
whose design has z at the row's class and −z at the other one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import logsumexp, softmax

from sqlfl.base.arrays import Array, Float
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.inference import FAMILIES, RANK, Design, Fit, MomentSums, rows_at_once
from sqlfl.models.separation import Separation, moments_of, separation
from sqlfl.models.weighted import sum_of, total_of

MULTINOMIAL = replace(FAMILIES["logistic_regression"])
"""Family of targets with several classes: its flags. Its functions are of two classes only."""


def null_space(design: Design, counted: Array) -> Float:
    """Return an orthonormal basis (P, k) of the directions in which none of these rows varies."""
    values, vectors = np.linalg.eigh(moments_of(design, counted, np.ones(len(counted))))
    basis: Float = vectors[:, values <= RANK * values[-1]]
    return basis


def fit_of_classes(h: Float, y: Array, weights: Array | None) -> Fit:
    """Return the fit of scores h (N, C) to classes y (N,), 0 to C − 1."""
    counts = np.bincount(y, weights, h.shape[1]).astype(np.float64)
    shares = counts[counts > 0] / counts.sum()
    likelihood = sum_of(np.take_along_axis(h, y[:, None], 1)[:, 0] - logsumexp(h, axis=1), weights)
    null = float(counts[counts > 0] @ np.log(shares))
    return Fit(
        total_of(h[:, 0], weights), likelihood, null, -2.0 * likelihood, -2.0 * null, float("nan")
    )


def separation_of_classes(
    design: Design, h: Float, y: Array, weights: Array | None
) -> tuple[Separation, Array]:
    """Return the separation of parameters (K P,), and bool (N, C): classes that a row cannot be of
    in the limit.
    """
    rows, classes = h.shape
    others = np.arange(classes - 1)[None, :] + (np.arange(classes - 1)[None, :] >= y[:, None])

    def pairs(places: Array) -> Float:
        row, place = np.divmod(places, classes - 1)
        z = design(row)
        contrasts = np.zeros((len(places), classes, z.shape[1]))
        order = np.arange(len(places))
        contrasts[order, y[row]] = z
        contrasts[order, others[row, place]] = -z
        return contrasts[:, 1:].reshape(len(places), (classes - 1) * z.shape[1])

    lead = np.take_along_axis(h, y[:, None], 1) - np.take_along_axis(h, others, 1)
    counted = None if weights is None else np.repeat(weights, classes - 1)
    separated = separation(
        FAMILIES["logistic_regression"], pairs, lead.reshape(-1), np.ones(lead.size), counted
    )
    apart = np.zeros((rows, classes), bool)
    np.put_along_axis(apart, others, separated.rows.reshape(rows, -1), 1)
    return separated, apart


def sums_of_classes(
    design: Design,
    h: Float,
    y: Array,
    weights: Array | None,
    apart: Array | None,
    *,
    robust: bool,
    units: Array | None,
    shares: Array | None = None,
) -> MomentSums:
    """Return the sums of `inference.sums` for parameters (K P,). apart: bool (N, C), classes that
    rows cannot be of.
    """
    w = np.ones(len(h)) if weights is None else weights
    p = softmax(h if apart is None else np.where(apart, -np.inf, h), axis=1)
    residual = p.copy()
    residual[np.arange(len(y)), y] -= 1.0
    p, residual = p[:, 1:], residual[:, 1:]
    order = np.arange(len(h)) if units is None else np.argsort(units, kind="stable")
    width, several = design(order[:0]).shape[1], p.shape[1]
    size = several * width
    information, slope = np.zeros((several, width, several, width)), np.zeros(size)
    meat = np.zeros((size, size)) if robust or units is not None else None
    last, carried = -1, np.zeros(size)
    step = rows_at_once(size)
    for start in range(0, len(order), step):
        checkpoint()
        places = order[start : start + step]
        z, chances, share = design(places), p[places], w[places]
        for k in range(several):
            for other in range(k + 1):
                bend = share * chances[:, k] * ((k == other) - chances[:, other])
                information[k, :, other] += (z * bend[:, None]).T @ z
        parts = (residual[places][:, :, None] * z[:, None, :]).reshape(len(z), size)
        pulled = share[:, None] * parts
        slope += pulled.sum(axis=0)
        if meat is None:
            continue
        if units is None:
            meat += pulled.T @ (parts if shares is None else parts * shares[places, None])
            continue
        starts = np.flatnonzero(np.diff(units[places], prepend=units[places[0]] - 1))
        added = np.add.reduceat(pulled, starts, axis=0)
        if units[places[0]] == last:
            added[0] += carried
        else:
            meat += np.outer(carried, carried)
        last, carried = int(units[places[-1]]), added[-1]
        meat += added[:-1].T @ added[:-1]
    if units is not None and meat is not None:
        meat += np.outer(carried, carried)
    whole = information.reshape(size, size)
    for k in range(several):
        for other in range(k):
            rows = slice(k * width, (k + 1) * width)
            columns = slice(other * width, (other + 1) * width)
            whole[columns, rows] = whole[rows, columns].T
    return MomentSums(whole, slope, meat)
