"""The kinds of models, each told once: what `USING` names."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.base.errors import InternalError

NUMBER = "a number"
TWO_CLASSES = "two classes"
ANY_CLASSES = "any number of classes"
MOMENTS = "moments"
"""The algorithm that solves models from moments."""


@dataclass(frozen=True)
class Kind:
    name: str
    target: str
    """NUMBER, TWO_CLASSES or ANY_CLASSES."""
    loss: str
    """One of `sqlfl.models.losses.LOSSES`."""
    objective: str
    """The loss of a row and its unit, as an axis has it; '{unit}' is that of the target."""
    headline: str
    """The metric of the history, likewise."""
    towers: bool = False
    """Each table position has a network instead of a linear map."""
    algorithm: str = ""
    """The one that trains it, which trains no other kind; empty: all that train such blocks."""
    least: float | None = None
    """The smallest target that there may be."""
    above: bool = False
    """It is not that itself, but above it."""
    metrics: tuple[str, ...] = ("rmse", "mae", "r2")
    """Of these distances those that are told of it, where it is of numbers."""
    no_label_noise: str = ""
    """Why PRIVACY does not noise its labels; empty where it does."""
    no_feature_noise: str = ""
    """Why PRIVACY does not protect its features; empty where it does."""
    solved: bool = False
    """Moments of the columns, and with the target, give a model."""

    @property
    def separable(self) -> bool:
        """Weights may have no finite estimate: all rows of a category are of one class, or 0."""
        return self.loss in ("logistic", "softmax", "poisson")

    @property
    def classifies(self) -> bool:
        return self.target != NUMBER


_SQUARED = ("squared", "½ squared error, {unit}²", "RMSE ({unit})")
_UNREASONED = "what noise in predictions does to a loss with bends has not been reckoned"
_CLASSES = ("log-loss, nats per row", "accuracy (share of rows)")

_KINDS = (
    Kind("linear_regression", NUMBER, *_SQUARED, solved=True),
    Kind("logistic_regression", TWO_CLASSES, "logistic", *_CLASSES, solved=True),
    Kind("softmax_regression", ANY_CLASSES, "softmax", *_CLASSES, solved=True),
    Kind(
        "poisson_regression",
        NUMBER,
        "poisson",
        "Poisson loss, nats per row",
        "RMSE ({unit})",
        least=0.0,
        metrics=("rmse", "mae"),
        no_label_noise="noised counts may be below 0, of which the loss has no minimum, and cut "
        "off at 0 they would be too large on average",
        no_feature_noise="its residuals are exponentials of scores: noise in these makes them too "
        "large on average, and no public bound of them says how long steps may be",
    ),
    Kind(
        "gamma_regression",
        NUMBER,
        "gamma",
        "Gamma loss, per row",
        "RMSE ({unit})",
        least=0.0,
        metrics=("rmse", "mae"),
        above=True,
        no_label_noise="noised targets may be 0 or below, of which there is no logarithm",
        no_feature_noise="its residuals are exponentials of scores: noise in these makes them too "
        "large on average, and no public bound of them says how long steps may be",
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
)
KINDS = tuple(kind.name for kind in _KINDS)
USUAL = tuple(kind.name for kind in _KINDS if not kind.algorithm)
"""Kinds whose weights l2 penalises, and which may start from a model that is there."""
NEURAL = tuple(kind.name for kind in _KINDS if kind.towers)
CLASSIFIERS = tuple(kind.name for kind in _KINDS if kind.classifies)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_of(name: str) -> Kind:
    """Raises InternalError for what is no kind, or not built: `check_kind` comes before."""
    found = _BY_NAME.get(name)
    if found is None:
        raise InternalError(f"there are no models of kind {name!r}")
    return found


def other(name: str, target: str) -> str:
    """The kind that takes such a target, with towers where `name` has them."""
    towers = kind_of(name).towers
    return next(k.name for k in _KINDS if k.towers == towers and k.target == target)


def trains(algorithm: str, name: str) -> bool:
    """The algorithm is for such models, as far as the kind says."""
    if algorithm == MOMENTS:
        return kind_of(name).solved
    own = {kind.algorithm for kind in _KINDS if kind.algorithm}
    return kind_of(name).algorithm == (algorithm if algorithm in own else "")
