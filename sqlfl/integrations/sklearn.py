"""Federated models as scikit-learn estimators: X is a query, for the tables stay where they are.

>>> import duckdb, sqlfl
>>> from sqlfl.integrations.sklearn import FederatedRegressor
>>> with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
...     _ = con.execute("CREATE TABLE t AS SELECT id, id % 7 AS x, 2 * x AS y FROM range(99) r(id)")
...     fed.attach("clinic", con)
...     model = FederatedRegressor(fed, "SELECT t.x, t.y FROM clinic.t t", "y", id="t.id")
...     bool(model.fit().score() > 0.999), len(model.predict())
(True, 99)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from sqlfl.base.errors import Error
from sqlfl.models.kinds import kind_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
except ModuleNotFoundError as error:
    raise Error(
        "sqlfl.integrations.sklearn needs scikit-learn", hint="pip install scikit-learn"
    ) from error

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array
    from sqlfl.base.result import Result
    from sqlfl.federation.relation import Relation
    from sqlfl.federation.statements_api import StatementsApi
    from sqlfl.store.registry import Model

_PROBABILITY = "probability_"


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both have in common.

    Parameters
    ----------
    fed : the federation.
    query : the rows that are trained on, with the target among their columns: a query's text, or a
        relation of the federation. It stands for X and y.
    target : the output column of the query that is the target; all others are features.
    kind : of the model, as after USING.
    id : columns by which rows are known again, `alias.column` or a list of them. Joined rows have
        no order of their own: `predict` gives them in that of these columns. They leave their
        party.
    weight : the output column that says what rows count.
    options : those of WITH, by their names.
    privacy : those of PRIVACY.
    name : the model's; None: one that is drawn by `fit`, and dropped by the next one.

    Attributes
    ----------
    model_ : the model, with its card, metrics and history.
    weights_ : the rows of WEIGHTS OF MODEL, an Arrow table; of linear kinds.
    feature_names_in_ : (features,) names.
    """

    _kind: str
    _classifies: bool
    _instead: str

    def __init__(
        self,
        fed: StatementsApi | None = None,
        query: str | Relation | None = None,
        target: str | None = None,
        *,
        kind: str | None = None,
        id: str | Sequence[str] | None = None,
        weight: str | None = None,
        options: Mapping[str, Any] | None = None,
        privacy: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.fed = fed
        self.query = query
        self.target = target
        self.kind = kind
        self.id = id
        self.weight = weight
        self.options = options
        self.privacy = privacy
        self.name = name

    def __sklearn_clone__(self) -> Self:
        """With the same federation, which is no value that could be copied."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def fit(self, X: str | Relation | None = None, y: None = None) -> Self:
        """Train on the rows of `query`, or of the query X.

        Raise Error where an argument is missing or is data, and whatever TRAIN MODEL raises; then
        what was fitted before stays.
        """
        relation = self._relation(X)
        if y is not None:
            raise Error("fit takes no y: the target is a column of the query", hint="target='...'")
        if self.target is None:
            raise Error(
                f"{type(self).__name__} needs a target", hint="target='column of the query'"
            )
        kind = self._kind if self.kind is None else self.kind
        _check(kind, self._classifies, self._instead)
        name = self.name or f"sklearn_{secrets.token_hex(6)}"
        model = relation.train(
            name,
            kind,
            self.target,
            weight=self.weight,
            privacy=self.privacy,
            replace=self.name is not None,
            **dict(self.options or {}),
        )
        self._forget()
        self.model_: Model = model
        self.drawn_ = self.name is None
        self.feature_names_in_ = np.array(model.features, object)
        self.n_features_in_ = len(model.features)
        if model.classes is not None:
            self.classes_ = _classes(model)
        return self

    def predict_table(self, X: str | Relation | None = None) -> Result:
        """PREDICT MODEL over the rows of `query`, or of X: columns of `id`, then predictions."""
        return self._relation(X).predict(self._fitted().name, id=self.id or ())

    def predict(self, X: str | Relation | None = None) -> Array:
        """(N,), in the order of `id`."""
        predictions: Array = np.asarray(self._ordered(X).column("prediction").to_numpy())
        return predictions

    def evaluate(self, X: str | Relation | None = None) -> dict[str, Any]:
        """EVALUATE MODEL over the rows of `query`, or of X, which have the target: its metrics."""
        metrics = self._relation(X).evaluate(self._fitted().name)
        return dict(metrics.arrow().to_pylist()[0])

    @property
    def weights_(self) -> pa.Table:
        return self._fitted().weights

    def _ordered(self, X: str | Relation | None) -> pa.Table:
        self._fitted()
        if not self.id:
            raise Error(
                "joined rows have no order: predictions could not be told apart",
                hint="id='alias.column' names columns by which they are known again; predict_table "
                "gives them as they come",
            )
        table = self.predict_table(X).arrow()
        known = table.column_names[: table.column_names.index("prediction")]
        return table.sort_by([(name, "ascending") for name in known])

    def _relation(self, X: str | Relation | None) -> Relation:
        if self.fed is None:
            raise Error(f"{type(self).__name__} needs a federation", hint="fed=sqlfl.connect()")
        given = self.query if X is None else X
        if given is None:
            raise Error(f"{type(self).__name__} needs a query", hint="query='SELECT ... FROM ...'")
        if isinstance(given, str):
            return self.fed.query(given)
        if not hasattr(given, "train"):
            raise Error(
                f"X must be a query over the parties' tables, got {type(given).__name__}",
                hint="tables stay where they are: attach what has these rows, and select from it",
            )
        return given

    def _fitted(self) -> Model:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        return self.model_

    def _forget(self) -> None:
        """Drops the model of the fit before, where its name was drawn."""
        if getattr(self, "drawn_", False) and self.fed is not None:
            self.fed.sql(f'DROP MODEL IF EXISTS "{self.model_.name}"')
        for name in ("model_", "drawn_", "classes_"):
            if hasattr(self, name):
                delattr(self, name)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    __doc__ = (
        "A classifier over tables of several parties.\n"
        + str(_Federated.__doc__).partition("\n")[2]
    )
    _kind = "softmax_regression"
    _classifies = True
    _instead = "FederatedRegressor"

    def predict_proba(self, X: str | Relation | None = None) -> Array:
        """(N, classes), in the order of `id` and of `classes_`."""
        table = self._ordered(X)
        names = [f"{_PROBABILITY}{text}" for text in self._fitted().classes or ()]
        return np.column_stack([table.column(name).to_numpy() for name in names])

    def score(self, X: str | Relation | None = None, y: None = None) -> float:
        """The share of rows that are classified right, by EVALUATE MODEL."""
        return float(self.evaluate(X)["accuracy"])


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    __doc__ = (
        "A regression over tables of several parties.\n"
        + str(_Federated.__doc__).partition("\n")[2]
    )
    _kind = "linear_regression"
    _classifies = False
    _instead = "FederatedClassifier"

    def score(self, X: str | Relation | None = None, y: None = None) -> float:
        """R², by EVALUATE MODEL. Raise Error of kinds that have none."""
        metrics = self.evaluate(X)
        if "r2" not in metrics:
            raise Error(
                f"a {self._fitted().kind} has no R²",
                hint=f"evaluate() has {', '.join(metrics)}",
            )
        return float(np.nan if metrics["r2"] is None else metrics["r2"])


def _check(kind: str, classifies: bool, instead: str) -> None:
    from sqlfl.options.resolve import check_kind

    check_kind(kind)
    if kind_of(kind).classifies != classifies:
        raise Error(
            f"{kind} is no kind of a {'classifier' if classifies else 'regression'}", hint=instead
        )


def _classes(model: Model) -> Array:
    from sqlfl.coordinator.scoring import class_values

    classes: Array = np.asarray(class_values(model).to_numpy(zero_copy_only=False))
    return classes
