"""Kinds of models, each declared once: the names after `USING`."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.base.errors import InternalError

NUMBER = "a number"
TWO_CLASSES = "two classes"
ANY_CLASSES = "any number of classes"
MOMENTS = "moments"
"""Algorithm that solves models from moments."""


@dataclass(frozen=True)
class Kind:
    name: str
    target: str
    """NUMBER, TWO_CLASSES or ANY_CLASSES."""
    loss: str
    """One of `sqlfl.models.losses.LOSSES`."""
    objective: str
    """Loss of a row and its unit, for an axis; '{unit}' is that of the target."""
    headline: str
    """Metric of the history, in the same form."""
    towers: bool = False
    """True if each table position has a network instead of a linear map."""
    algorithm: str = ""
    """Only algorithm of this kind, which trains no other kind. Empty: all algorithms for such
    blocks.
    """
    least: float | None = None
    """Smallest possible target."""
    above: bool = False
    """True if the target must be above `least`, not equal to it."""
    metrics: tuple[str, ...] = ("rmse", "mae", "r2")
    """Distances that are reported for a target of numbers."""
    no_label_noise: str = ""
    """Reason why PRIVACY does not noise its labels; empty if it does."""
    no_feature_noise: str = ""
    """Reason why PRIVACY does not protect its features; empty if it does."""
    solved: bool = False
    """True if moments of the columns, and with the target, give a model."""

    @property
    def separable(self) -> bool:
        """Return True if weights may have no finite estimate: all rows of a category may be of one
        class, or 0.
        """
        return self.loss in ("logistic", "softmax", "poisson")

    @property
    def exponential(self) -> bool:
        """Return True if predictions are exponentials of scores, so that no number bounds the
        curvature of the loss.
        """
        return self.loss in ("poisson", "gamma")

    @property
    def classifies(self) -> bool:
        return self.target != NUMBER


_SQUARED = ("squared", "½ squared error, {unit}²", "RMSE ({unit})")
_UNREASONED = "what noise in predictions does to a loss with bends has not been reckoned"
_COUNTED = ("poisson", "Poisson loss, nats per row", "RMSE ({unit})")
_COSTS = ("gamma", "Gamma loss, per row", "RMSE ({unit})")
_ERRORS = ("rmse", "mae")
_NEGATIVE = (
    "noised counts may be below 0, of which the loss has no minimum, and cut off at 0 they would "
    "be too large on average"
)
_NO_LOGARITHM = "noised targets may be 0 or below, of which there is no logarithm"
_EXPONENTIAL = (
    "its residuals are exponentials of scores: noise in these makes them too large on average, and "
    "no public bound of them says how long steps may be"
)
_CLASSES = ("log-loss, nats per row", "accuracy (share of rows)")

_KINDS = (
    Kind("linear_regression", NUMBER, *_SQUARED, solved=True),
    Kind("logistic_regression", TWO_CLASSES, "logistic", *_CLASSES, solved=True),
    Kind("softmax_regression", ANY_CLASSES, "softmax", *_CLASSES, solved=True),
    Kind(
        "poisson_regression",
        NUMBER,
        *_COUNTED,
        least=0.0,
        metrics=_ERRORS,
        no_label_noise=_NEGATIVE,
        no_feature_noise=_EXPONENTIAL,
    ),
    Kind(
        "gamma_regression",
        NUMBER,
        *_COSTS,
        least=0.0,
        metrics=_ERRORS,
        above=True,
        no_label_noise=_NO_LOGARITHM,
        no_feature_noise=_EXPONENTIAL,
    ),
    Kind(
        "huber_regression",
        NUMBER,
        "huber",
        "Huber loss, {unit}²",
        "RMSE ({unit})",
        no_label_noise="of targets far from what is predicted, as noised ones mostly are, the loss "
        "hardly tells how far",
        no_feature_noise=_UNREASONED,
    ),
    Kind(
        "quantile_regression",
        NUMBER,
        "quantile",
        "pinball loss, {unit}",
        "pinball loss ({unit})",
        metrics=("mae",),
        no_label_noise="a quantile of noised targets is none of the targets",
        no_feature_noise=_UNREASONED,
    ),
    Kind("lasso", NUMBER, *_SQUARED, algorithm="frank_wolfe"),
    Kind("mlp_regressor", NUMBER, *_SQUARED, towers=True),
    Kind("mlp_classifier", ANY_CLASSES, "softmax", *_CLASSES, towers=True),
    Kind(
        "mlp_poisson_regressor",
        NUMBER,
        *_COUNTED,
        towers=True,
        least=0.0,
        metrics=_ERRORS,
        no_label_noise=_NEGATIVE,
        no_feature_noise=_EXPONENTIAL,
    ),
    Kind(
        "mlp_gamma_regressor",
        NUMBER,
        *_COSTS,
        towers=True,
        least=0.0,
        metrics=_ERRORS,
        above=True,
        no_label_noise=_NO_LOGARITHM,
        no_feature_noise=_EXPONENTIAL,
    ),
)
KINDS = tuple(kind.name for kind in _KINDS)
USUAL = tuple(kind.name for kind in _KINDS if not kind.algorithm)
"""Kinds whose weights l2 penalises, and which may start from an existing model."""
NEURAL = tuple(kind.name for kind in _KINDS if kind.towers)
CLASSIFIERS = tuple(kind.name for kind in _KINDS if kind.classifies)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_of(name: str) -> Kind:
    """Return the kind. Raise InternalError for an unknown one: `check_kind` comes before."""
    kind = _BY_NAME.get(name)
    if kind is None:
        raise InternalError(f"there are no models of kind {name!r}")
    return kind


def other(name: str, target: str) -> str:
    """Return the kind for such a target, with towers if `name` has them."""
    towers = kind_of(name).towers
    return next(k.name for k in _KINDS if k.towers == towers and k.target == target)


def trains(algorithm: str, name: str) -> bool:
    """Return True if the algorithm trains such models, as far as the kind says."""
    if algorithm == MOMENTS:
        return kind_of(name).solved
    special = {kind.algorithm for kind in _KINDS if kind.algorithm}
    return kind_of(name).algorithm == (algorithm if algorithm in special else "")


INTERCEPT = "intercept"
"""Name of the intercept among the columns of a model."""
