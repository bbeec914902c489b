"""Regression from noised moments: tables release them in one round or two, and the coordinator
solves for the model, linear or of linear discriminants of classes.

Let x_i be the encoded columns of table i, C_i their covariance, and z the target in units of its
deviation: a number (r = 1), or the indicators of K classes in the r = K − 1 directions in which
they vary, Z = Λ^(−½) Qᵀ (1_y − π), QΛQᵀ being their covariance. U_i = cov(x_i, z) is (d_i, r).

**Assumption.** Given the target, columns of different tables are uncorrelated: cov(x_i, x_j) =
U_i U_jᵀ. What is left within table i is D_i = C_i − U_i U_iᵀ, and with R_i = U_iᵀ C_i⁻¹ U_i, the
squared correlations of table i with the target,

    D_i⁻¹ U_i = C_i⁻¹ U_i (I − R_i)⁻¹,   U_iᵀ D_i⁻¹ U_i = R_i (I − R_i)⁻¹ =: τ_i.

Numbers: the least squares over all tables is θ_i = D_i⁻¹ U_i / (1 + Σ τ_j), by the matrix inversion
lemma, and explains Σ τ / (1 + Σ τ) of the target's variance. Classes: Fisher's linear
discriminant, whose scores are log π_k + (x − m)ᵀ D⁻¹ δ_k − ½ δ_kᵀ D⁻¹ δ_k with δ_k the mean of
class k less the mean m; D has the D_i for blocks. It is a logistic or a softmax model. For one
table nothing is assumed.

**Noise.** Of a matrix with noise of deviation s beside the diagonal's the smallest eigenvalue is
wrong by about s √d: C_i gets a ridge of half of that. U_i has noise of a known variance n² in every
number; a ridge of n² d / tr R_i is the best one for slopes that are spread evenly over the columns'
directions. The measured G_i = U_iᵀ C_i⁻¹ U_i is too large by e = n² tr C_i⁻¹, give or take what
both noises do, of the variance 2 n⁴ tr C_i⁻² + 4 n² ‖C_i⁻¹ U_i‖² + s² ‖C_i⁻¹ U_i‖⁴. So more than e
is taken off, of the first term's deviation where U_i is shrunk, and of all of them for R_i, lest
(I − R_i)⁻¹ be too large. What is left counts by 1 − e²: where e nears 1 noise has said all. U_i is
shrunk by R_i G_i⁻¹, as James and Stein do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract import stopping
from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.messages import SetGram
from sqlfl.messages.checks import ReplyChannel
from sqlfl.messages.grams import message_to_gram
from sqlfl.methods.moments.configuration import MomentsConfiguration
from sqlfl.models.gram import GramMatrix
from sqlfl.privacy.block_moments import cut_level, labels_change, moments_change
from sqlfl.privacy.mechanisms import keep_probability, laplace_keep

# -- the solution ----------------------------------------------------------------------------------

MAX_SQUARED_CORRELATION = 0.995
"""Maximum squared correlation: a larger one would be an effect of noise."""
MIN_SQUARED_CORRELATION = 1e-3
"""Least squared correlation, for the ridge."""
RIDGE = 0.5
"""Share of the possible effect of noise on the smallest eigenvalue."""
DOUBT = 1.5
"""Deviations of noise that are subtracted: from the square of noise and from a squared correlation
with its mean; from a number, from 1.
"""
ROUNDING = 1e-9
"""Share of the largest eigenvalue below which a direction is none."""


@dataclass(frozen=True, eq=False)
class TableMoments:
    """Releases of one table, of columns in [−1, 1]."""

    covariance: Array
    """(d, d), noised"""
    covariance_noise: float
    """Standard deviation of the noise in its diagonal."""
    slopes: Array
    """cov(x, target): (d, c), noised; of classes a column for each of their indicators, or for that
    of the second of two."""
    slopes_noise: float
    """Standard deviation in each number."""


@dataclass(frozen=True, eq=False)
class Target:
    """Covariance of the target, without the noise of labels."""

    directions: Array
    """Q Λ^(−½): (c, r)"""
    spread: Array
    """Λ: (r,)"""

    @classmethod
    def of(cls, covariance: Array) -> Target:
        """covariance: (c, c), of the target's columns."""
        values, vectors = np.linalg.eigh(np.atleast_2d(covariance))
        kept = values > 1e-9 * max(float(values[-1]), 1e-300)
        values, vectors = values[kept], vectors[:, kept]
        return cls(vectors / np.sqrt(values), values)


@dataclass(frozen=True, eq=False)
class TableSolution:
    """Part of one table, as if it stood alone."""

    weights: Array
    """D_i⁻¹ U_i (d, r), U_i shrunk."""
    strength: Array
    """τ_i (r, r)"""
    within: Array
    """D_i (d, d)"""
    slopes: Array
    """U_i (d, r), shrunk: D_i times the weights."""
    sure: Array
    """U_i (d, r), shrunk more: sureᵀ D_i⁻¹ sure is the strength."""


@dataclass(frozen=True, eq=False)
class Solution:
    """θ_i of every table in units of the target (d_i, r), with the variance that they explain."""

    weights: tuple[Array, ...]
    """Each table's part of D⁻¹ U, shrunk."""
    strength: Array
    """τ = Uᵀ D⁻¹ U (r, r): without correlations between tables Σ τ_i"""

    def explained(self, target: Target) -> float:
        """The share of the target's variance, from what was released: at least 0, and 0 of a target
        that is constant."""
        if not len(target.spread):
            return 0.0
        whole = self.strength
        share = whole @ np.linalg.inv(np.eye(len(whole)) + whole)
        return float(np.clip(np.diag(share) @ target.spread / target.spread.sum(), 0.0, 1.0))


def solve(tables: Sequence[TableSolution]) -> Solution:
    """Return the solution of tables that are uncorrelated given the target."""
    strength: Array = np.sum([table.strength for table in tables], axis=0)
    return Solution(tuple(table.weights for table in tables), strength)


def regression(solution: Solution, target: Target) -> tuple[Array, ...]:
    """θ_i (d_i, 1) of a target that is a number: 0 of one that is constant."""
    if not len(target.spread):
        return tuple(np.zeros((len(block), 1)) for block in solution.weights)
    scale = float(np.sqrt(target.spread[0])) / (1.0 + float(solution.strength[0, 0]))
    return tuple(scale * block for block in solution.weights)


def scales_of(target: Target, shares: Array) -> Array:
    """Return the means of classes less the mean, δ_k = U s_k, from U: (r, K)."""
    towards = target.directions * target.spread  # Q Λ^½
    if len(towards) < len(shares):  # the indicator of the second of two
        towards = np.concatenate([-towards, towards])
    scales: Array = (towards / shares[:, None]).T
    return scales


def discriminants(
    solution: Solution, target: Target, shares: Array
) -> tuple[tuple[Array, ...], Array]:
    """θ_i (d_i, K) of classes of these shares, and the constants (K,)."""
    scale = scales_of(target, shares)
    quadratic = np.einsum("rk,rs,sk->k", scale, solution.strength, scale)
    return tuple(block @ scale for block in solution.weights), np.log(shares) - 0.5 * quadratic


def table_solution(block: TableMoments, target: Target, ridge: float) -> TableSolution:
    """ridge: of the objective, in units of the columns' covariance."""
    d, r = len(block.covariance), len(target.spread)
    if not (d and r):  # without columns, or for a target that is constant
        none = np.zeros((d, r))
        return TableSolution(none, np.zeros((r, r)), np.zeros((d, d)), none, none)
    u = block.slopes @ target.directions
    noise = np.square(block.slopes_noise * target.directions).sum(axis=0)  # s² / λ
    values, vectors = np.linalg.eigh((block.covariance + block.covariance.T) / 2.0)
    floor = RIDGE * block.covariance_noise * np.sqrt(d) + ridge
    values = np.maximum(values, 0.0) + floor + ROUNDING * max(float(values[-1]), 1.0)
    turned = vectors.T @ u
    share = 1.0
    for _ in range(3):
        bent = values + float(noise.mean()) * d / share
        gram = (turned / bent[:, None]).T @ turned
        taken = (1.0 / bent).sum()
        alone = 2.0 * np.square(noise) * np.square(1.0 / bent).sum()
        sizes = np.square(turned / bent[:, None]).sum(axis=0)  # ‖C⁻¹ U‖²
        doubt = alone + 4.0 * noise * sizes + np.square(block.covariance_noise * sizes)
        said = max(1.0 - float((noise * taken).mean()) ** 2, 0.0)
        kept, sure = (
            said * _positive(gram - np.diag(noise * taken + DOUBT * np.sqrt(own)))
            for own in (alone, doubt)
        )
        share = min(max(float(np.trace(kept)), MIN_SQUARED_CORRELATION), 1.0)
    x = vectors @ (turned / bent[:, None])
    root = power(gram, -0.5)
    rest = power(np.eye(r) - sure, -1.0)
    tau = sure @ rest
    certain = u @ root @ power(sure, 0.5)
    return TableSolution(
        weights=x @ root @ rest @ root @ kept,
        strength=(tau + tau.T) / 2.0,
        within=(vectors * bent) @ vectors.T - certain @ certain.T,
        slopes=u @ root @ root @ kept,
        sure=certain,
    )


def _positive(values: Array) -> Array:
    """Return the matrix with eigenvalues cut to 0 and MAX_SQUARED_CORRELATION."""
    eigenvalues, vectors = np.linalg.eigh((values + values.T) / 2.0)
    cut: Array = (vectors * np.clip(eigenvalues, 0.0, MAX_SQUARED_CORRELATION)) @ vectors.T
    return cut


def power(values: Array, exponent: float) -> Array:
    """Return a power of a symmetric matrix without negative eigenvalues; what vanishes stays 0."""
    eigenvalues, vectors = np.linalg.eigh((values + values.T) / 2.0)
    known = eigenvalues > 1e-14 * eigenvalues.max(initial=1e-300)
    powers = np.where(known, np.where(known, eigenvalues, 1.0) ** exponent, 0.0)
    found: Array = (vectors * powers) @ vectors.T
    return found


# -- rounds ----------------------------------------------------------------------------------------

SOLVED = "solved"
REASON = "the model was solved once from noised moments, which prove no minimum"
ASSUMED = {
    1: "; columns of different tables are taken to be uncorrelated given the target, which nothing "
    "that was released can show: effects of correlated columns that cancel are not found",
    2: "; columns of different tables are taken to be correlated, given the target, only as the "
    "fits of one table are with the columns of the others, which was released",
}
"""By the number of rounds."""
WORTHLESS = 0.01
"""A share of the target's variance below which a model is hardly more than the mean."""
DOUBTFUL = 0.5
"""One below which more may be found where columns of tables are correlated."""


class Moments:
    """Each slot releases Σ w x xᵀ and Σ x Y, with noise; in a second round one slot releases fits
    of its rows, and each other one Σ x Y with these. All else is made of these releases.
    """

    head: None = None
    scores: None = None

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        if problem.privacy is None:
            raise InternalError("moments leave with noise")
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._noise = problem.privacy.rounds
        self._labels = problem.privacy.labels
        self.intercept = problem.loss.initial_intercept(problem.targets, problem.shares)
        self.first = 0.0

    def start(self) -> None:
        self._conversation.start(partial(MomentsConfiguration, rounds=self._rounds))

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        labels = labels_of(problem, self._labels)
        grams = self._conversation.moments()
        tables = [self._table(place, labels, gram) for place, gram in enumerate(grams)]
        asked = {place: own.sums_of(labels, labels.values) for place, own in enumerate(tables)}
        told = self._conversation.label_moments({n: own.values for n, own in asked.items()})
        ridge = labels.ridge(problem.l2)
        parts = [
            table_solution(own.block(asked[n], told[n]), labels.target, ridge)
            for n, own in enumerate(tables)
        ]
        solution = self._second(labels, tables, parts) if self._rounds > 1 else solve(parts)
        explained = solution.explained(labels.target)
        if labels.classes:
            weights, constants = discriminants(solution, labels.target, labels.shares)
            loss = labels.loss(solution, constants)
            weights, constants = labels.scores(weights, constants)
        else:
            weights, constants = regression(solution, labels.target), np.array([labels.mean])
            loss = labels.loss(solution, constants)
        shifts = self._conversation.set_parameters(dict(enumerate(weights)))
        self.intercept = constants + np.sum(
            [shifts[n] - own.mean @ weights[n] for n, own in enumerate(tables)], axis=0
        )
        several = sum(len(own) > 0 for own in weights) > 1
        assumed = ASSUMED[self._rounds] * several
        yield Step(
            1,
            loss + self._penalty(weights, grams),
            loss,
            ending=stopping.untold(SOLVED, REASON + assumed),
            estimates={"explained": explained},
            warnings=tuple(_warnings(explained, several=several and not labels.classes)),
        )

    @property
    def _rounds(self) -> int:
        return int(str(self._problem.options.listed()["rounds"]))

    def _second(
        self, labels: JoinedLabels, tables: Sequence[_Table], parts: Sequence[TableSolution]
    ) -> Solution:
        """Solve with the correlations of tables with the leading one's fits: three exchanges."""
        problem, mapping = self._problem, self._problem.mapping.slots
        leading = next(
            n for n, own in enumerate(problem.slots) if self._noise[own.slot].prediction_noise
        )
        r = parts[leading].weights.shape[1]
        padded = ((0, 0), (0, problem.outputs - r))
        fits, noise = self._conversation.fits(leading, np.pad(parts[leading].weights, padded))
        rest = labels.unexplained(fits[mapping[leading].rows, :r])
        asked = {
            n: own.sums_of(labels, np.pad(rest, padded))
            for n, own in enumerate(tables)
            if n != leading
        }
        told = self._conversation.label_moments({n: own.values for n, own in asked.items()})
        measured = {}
        for n, own in asked.items():
            weighed = tables[n].shares(labels, mapping[leading].rows, mapping[leading].size)
            covariance = tables[n].covariance(own, told[n])[:, :r]
            measured[n] = FitMoments(covariance, own.noise, noise * float(np.linalg.norm(weighed)))
        return solve_correlated(parts, leading, measured)

    def _table(self, place: int, labels: JoinedLabels, gram: SetGram) -> _Table:
        """Return what a slot has released, and how its rows count."""
        problem, members = self._problem, self._problem.slots[place]
        noise, own = self._noise[members.slot], problem.mapping.slots[place]
        sizes = len(gram.numeric), noise.categories
        clients = math.sqrt(len(members.addresses))
        scale = 1.0 if problem.weights is None else float(problem.weights.max())
        counts: Array = np.bincount(own.rows, labels.weights, own.size)
        weights: Array = counts * (scale / noise.row_weight)
        bounded = np.minimum(weights, 1.0)
        bounded[members.virtual] = weights[members.virtual]
        total = float(bounded.sum())
        free = np.ones(own.size, bool)
        free[members.virtual] = False
        moments = message_to_gram(gram)
        return _Table(
            rows=own.rows,
            counts=counts,
            weights=bounded,
            total=total,
            bounded=free,
            mean=np.clip(moments.moments / total, -1.0, 1.0),
            moments=moments,
            moments_noise=noise.moments_noise * moments_change(*sizes) * clients / total,
            sums_noise=noise.labels_noise * labels_change(*sizes) * clients,
        )

    def _penalty(self, weights: Sequence[Array], grams: Sequence[SetGram]) -> float:
        """½ l2 ‖θ‖², θ of the encoded columns."""
        found = 0.0
        for members, own, gram in zip(self._problem.slots, weights, grams, strict=True):
            p, bound = len(gram.numeric), self._noise[members.slot].column_bound
            found += float(np.square(own[:p] / bound).sum() + np.square(own[p:]).sum())
        return 0.5 * self._problem.l2 * found


@dataclass(frozen=True, eq=False)
class _RowSums:
    """Sums that the clients of a slot are sent, one for each row."""

    values: Array
    """Y (n_i, c), in units of the level."""
    level: float
    noise: float
    """Standard deviation of the noise in a number of Σ x Y / Σ w."""


@dataclass(frozen=True, eq=False)
class _Table:
    """Second moments of one slot, and how its rows count."""

    rows: Array
    """(N,), of the joined rows"""
    counts: Array
    """Weights of the joined rows of each row (n_i,)."""
    weights: Array
    """w, in units of the cap (n_i,)."""
    total: float
    """Σ w"""
    bounded: Array
    """bool (n_i,): rows whose sums are cut, all but those that a LEFT JOIN added."""
    mean: Array
    """(d_i,), noised"""
    moments: GramMatrix
    moments_noise: float
    """Standard deviation of the noise in a number on the diagonal of Σ w x xᵀ / Σ w."""
    sums_noise: float
    """That of the noise in a number of Σ x Y, for a level of 1."""

    def sums_of(self, labels: JoinedLabels, values: Array) -> _RowSums:
        """values: (N, c), of the joined rows."""
        means = labels.rows_mean(values, self.rows, len(self.weights))
        means = means - self.weights @ means / self.total
        sums = self.weights[:, None] * means
        norms = np.linalg.norm(sums, axis=1)
        numbers = len(self.moments.moments) * sums.shape[1]
        level = cut_level(norms[self.bounded], numbers, self.sums_noise)
        factors = np.minimum(1.0, level / np.where(norms > 0.0, norms, 1.0))
        factors[~self.bounded] = 1.0
        cut = (sums * factors[:, None] / level).astype(np.float32).astype(np.float64)
        return _RowSums(cut, level, self.sums_noise * level / self.total)

    def covariance(self, sums: _RowSums, part: Array) -> Array:
        """Return cov(x, values) (d_i, c). part: Σ x Yᵀ (d_i, c), noised."""
        moved = part - np.outer(self.mean, sums.values.sum(axis=0))
        found: Array = moved * (sums.level / self.total)
        return found

    def shares(self, labels: JoinedLabels, rows: Array, size: int) -> Array:
        """Return how much each row of another slot counts in the sums (size,), `rows` (N,) being
        those of the joined rows.
        """
        ratios = self.weights / np.where(self.counts > 0.0, self.counts, 1.0) / self.total
        found: Array = np.bincount(rows, ratios[self.rows] * labels.weights, size)
        return found

    def block(self, sums: _RowSums, part: Array) -> TableMoments:
        """part: Σ x Yᵀ (d_i, c), of label sums, noised."""
        own = self.moments
        dense = own.onehot.toarray()
        whole = np.block([[own.numeric, own.cross.T], [own.cross, dense]])
        covariance = whole / self.total - np.outer(self.mean, self.mean)
        slopes = self.covariance(sums, part)
        return TableMoments(covariance, self.moments_noise, slopes, sums.noise)


def _warnings(explained: float, *, several: bool) -> Iterator[str]:
    told = f"by what was released the model explains {explained:.1%} of the target's variance"
    if explained < WORTHLESS:
        yield (
            f"{told}, hardly more than a constant does: the noise is too large for so few rows, or "
            "there is nothing to find; a larger epsilon, tighter feature_bounds and fewer columns "
            "have less noise"
        )
    elif several and explained < DOUBTFUL:
        yield (
            f"{told}: if columns of different tables are correlated and their effects cancel, it "
            "finds less than there is; EVALUATE on rows that may be seen tells"
        )


COORDINATOR: Callable[[Problem, ReplyChannel], Moments] = Moments


MIN_VARIANCE_SHARE = 0.01
"""Share of the variance of noised numbers, or of an even share of noised classes, that is left at
least when that of the noise is taken off."""
DRAWS = 1 << 21
"""Scores that the expected loss of classes is a mean of."""


@dataclass(frozen=True, eq=False)
class JoinedLabels:
    """Labels of all joined rows."""

    values: Array
    """(N, c): numbers, or the indicators of the second of two classes or of all, less their mean;
    of noised classes such that they are those of the true ones, on average."""
    weights: Array
    """(N,), of the joined rows."""
    variance: float
    """Variance of numbers, without that of their noise; 0 of classes."""
    mean: float
    """Mean of numbers; 0 of classes."""
    shares: Array
    """(K,), of the true classes, as far as is known; none of numbers."""

    @property
    def classes(self) -> bool:
        return len(self.shares) > 0

    @cached_property
    def target(self) -> Target:
        if not self.classes:
            return Target.of(np.array([[self.variance]]))
        p = self.shares[1:] if self.values.shape[1] == 1 else self.shares
        return Target.of(np.diag(p) - np.outer(p, p))

    def ridge(self, l2: float) -> float:
        """l2 of the objective, in units of the columns' covariance: that of classes is ½ l2 ‖θ‖²
        beside a loss whose curvature is the variance of an indicator."""
        return l2 / float(self.target.spread.mean()) if self.classes else l2

    def rows_mean(self, values: Array, rows: Array, size: int) -> Array:
        """Return the mean of values (N, c) of the joined rows over those of each row of a slot, of
        which `rows` (N,) has the numbers: (size, c). It is 0 where none counts.
        """
        counts = np.bincount(rows, self.weights, size)
        sums = [np.bincount(rows, self.weights * column, size) for column in values.T]
        found: Array = np.stack(sums, axis=1) / np.where(counts > 0.0, counts, 1.0)[:, None]
        return found

    def unexplained(self, fits: Array) -> Array:
        """Return what the target does not say of fits (N, r), less their mean: h − cov(h, z) z. z,
        the target in units of its deviation, has the covariance 1 without the noise of labels.
        """
        shares = self.weights / self.weights.sum()
        centred = fits - shares @ fits
        z = self.values @ self.target.directions
        found: Array = centred - z @ (z.T @ (centred * shares[:, None]))
        return found

    def scores(
        self, weights: tuple[Array, ...], constants: Array
    ) -> tuple[tuple[Array, ...], Array]:
        """Return weights and constants of the loss, from those of each class."""
        if self.values.shape[1] == 1:
            return tuple(own[:, 1:] - own[:, :1] for own in weights), constants[1:] - constants[:1]
        centred = tuple(own - own.mean(axis=1, keepdims=True) for own in weights)
        return centred, constants - constants.mean()

    def loss(self, solution: Solution, constants: Array) -> float:
        """The expected loss of a row, if all is as was assumed: scores of a class are normal then,
        with the means τ s_k and the covariance τ, where s_k has the scales of class k."""
        target = self.target
        if not self.classes:
            return 0.5 * self.variance * (1.0 - solution.explained(target))
        scale, strength = scales_of(target, self.shares), solution.strength
        classes = len(self.shares)
        draws = max(DRAWS // classes**2, 16)
        normal = np.random.default_rng(0).normal(size=(draws, len(strength)))
        values, vectors = np.linalg.eigh(strength)
        around = normal @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        loss = 0.0
        for number, share in enumerate(self.shares):
            logits = (around + strength @ scale[:, number]) @ scale + constants
            top = logits.max(axis=1, keepdims=True)
            logs = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
            loss += float(share * (logs - logits[:, number]).mean())
        return loss


def labels_of(problem: Problem, noise: LabelNoise | None) -> JoinedLabels:
    """Return the labels of the problem's targets, as they came: noised where `noise` says so."""
    targets = np.asarray(problem.targets)
    weights = np.ones(len(targets)) if problem.weights is None else problem.weights
    weights = weights / weights.max()
    total = float(weights.sum())
    if problem.loss.name == "squared":
        y = targets.astype(np.float64)
        mean = float(weights @ y) / total
        variance = float(weights @ np.square(y - mean)) / total
        kept = max(variance - _variance(noise), MIN_VARIANCE_SHARE * variance)
        return JoinedLabels((y - mean)[:, None], weights, kept, mean, np.zeros(0))
    codes = targets.astype(np.int64)
    classes = max(problem.outputs, 2)
    shares = np.bincount(codes, weights, classes) / total
    gap, rest = _kept(noise, classes)
    true = np.maximum((shares - rest) / gap, MIN_VARIANCE_SHARE / classes if gap < 1.0 else 1e-9)
    numbers = range(1, 2) if problem.outputs == 1 else range(classes)
    values = np.stack([(codes == k) - shares[k] for k in numbers], axis=1) / gap
    return JoinedLabels(values, weights, 0.0, 0.0, true / true.sum())


def _variance(noise: LabelNoise | None) -> float:
    """Return the variance that Laplace noise of scale b adds to a number: 2 b²."""
    if noise is None or noise.bounds is None:
        return 0.0
    low, high = noise.bounds
    return 2.0 * ((high - low) / noise.epsilon) ** 2


def _kept(noise: LabelNoise | None, classes: int) -> tuple[float, float]:
    """A noised label is the true one's with the first probability, and any of them with the second
    each."""
    if noise is None:
        return 1.0, 0.0
    keep = laplace_keep if noise.mechanism == "laplace" else keep_probability
    p = keep(noise.epsilon, classes)
    rest = (1.0 - p) / (classes - 1)
    return p - rest, rest


# Correlations of tables, which the second round measures along one table's fits.
#
# The leading table, l, releases fits of its rows, h = x_l Θ with Θ = D_l⁻¹ U_l (d_l, r): its part
# of the scores. Of any other table i, with z the target, h − P z is what the target does not say of
# h, P = cov(h, z). It is public, and table i releases moments with it as it did with the label:
#
#     E_i = cov(x_i, h − P z) = cov(x_i, h | z) = D_il Θ,
#
# with D_il the covariance of x_i and x_l given the target, which the first round takes to be 0. In
# units of what both vary by, it is the matrix of correlations
#
#     W_i = D_i^(−½) E_i F^(−½),   F = Θᵀ D_l Θ = cov(h | z).
#
# **Assumption.** Given the target, h says of x_i all that x_l does, and x_i and x_j of two other
# tables are uncorrelated given the target and h. So x_i = K_i x_l + e_i with K_i = D_i^(½) W_i
# F^(−½) Θᵀ, and cov(e_i) = D_i^(½) (I − W_i W_iᵀ) D_i^(½). By these the inverse of the whole D is
# known: with u_i = U_i − K_i U_l,
#
#     (D⁻¹ U)_i = cov(e_i)⁻¹ u_i,   (D⁻¹ U)_l = D_l⁻¹ U_l − Σ K_iᵀ cov(e_i)⁻¹ u_i,
#     Uᵀ D⁻¹ U = U_lᵀ D_l⁻¹ U_l + Σ u_iᵀ cov(e_i)⁻¹ u_i.
#
# D is a covariance if no W_i has a singular value of 1: they are cut at `MAX_CORRELATION`, or
# `DOUBT` deviations of their noise below 1, since what noise adds to large ones counts most.
#
# **Noise.** Each number of E_i has noise of the deviation n, of table i, and D_i^(−½) E_i that of
# the fits too, which is the same in all directions, of the variance s² Σ_r q_r², where q_r is how
# much a row r of l weighs in the sums of table i. W_i is shrunk as James and Stein do, by what this
# comes to: the part of it along U_i, which counts most, and the rest each for itself. `DOUBT`
# deviations more than the mean of the noise's square are taken off.

MAX_CORRELATION = 0.98
"""Largest correlation between a table and another one's fits, given the target."""


@dataclass(frozen=True, eq=False)
class FitMoments:
    """Release of one table in the second round."""

    covariance: Array
    """E_i = cov(x_i, h − P z): (d_i, r), noised"""
    noise: float
    """n: standard deviation of the table's noise in each number."""
    fits_noise: float
    """s √Σ q_r²: that of the fits' noise in each number of D_i^(−½) E_i."""


def solve_correlated(
    tables: Sequence[TableSolution], leading: int, measured: Mapping[int, FitMoments]
) -> Solution:
    """Return the solution of tables, all of which but the `leading` one have `measured` how they
    are correlated with its fits. Tables are numbered by their place.
    """
    leader = tables[leading]
    if not len(leader.strength):  # a target that is constant
        return solve(tables)
    theta = leader.weights
    root = power(theta.T @ leader.within @ theta, -0.5)
    weights = [own.weights for own in tables]
    strength = leader.strength
    for place, own in measured.items():
        table = tables[place]
        half = power(table.within, 0.5)
        along = half @ correlations(table, own, root)
        passed = along @ root @ theta.T  # K
        rest = table.within - along @ along.T
        weights[place] = np.linalg.solve(rest, table.slopes - passed @ leader.slopes)
        weights[leading] = weights[leading] - passed.T @ weights[place]
        sure = table.sure - passed @ leader.sure
        strength = strength + sure.T @ np.linalg.solve(rest, sure)
    return Solution(tuple(weights), (strength + strength.T) / 2.0)


def correlations(table: TableSolution, own: FitMoments, root: Array) -> Array:
    """Return W (d, r), shrunk. root: F^(−½)."""
    d, r = table.slopes.shape
    if not d:
        return np.zeros((0, r))
    inverse = power(table.within, -0.5)
    known = inverse @ own.covariance @ root
    of_table = own.noise**2 * float(np.square(inverse).sum()) / d
    variance = (of_table + own.fits_noise**2) * float(np.square(root).sum()) / r
    towards, sizes, _ = np.linalg.svd(inverse @ table.slopes, full_matrices=False)
    towards = towards[:, sizes > 1e-9 * max(float(sizes[0]), 1e-300)]
    along = towards @ (towards.T @ known)
    rank = towards.shape[1]
    kept = _shrunk(along, variance, rank * r) + _shrunk(known - along, variance, (d - rank) * r)
    left, sizes, right = np.linalg.svd(kept, full_matrices=False)
    most = min(max(1.0 - DOUBT * math.sqrt(variance), 0.0), MAX_CORRELATION)
    found: Array = (left * np.minimum(sizes, most)) @ right
    return found


def _shrunk(values: Array, variance: float, numbers: int) -> Array:
    """Return `values` less what noise of this variance, in so many directions, does to them."""
    square = float(np.square(values).sum())
    noise = variance * (numbers + DOUBT * math.sqrt(2.0 * numbers))
    if not numbers or not square > 0.0:
        return np.zeros_like(values)
    shrunk: Array = values * max(1.0 - noise / square, 0.0)
    return shrunk
