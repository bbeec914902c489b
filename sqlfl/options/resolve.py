"""Resolve the clauses WITH and PRIVACY to frozen options, and check that they fit together.

The tables define the options (`training`, `privacy`, and each method's `options`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from sqlfl.base.errors import ModelError, OptionError, nearest
from sqlfl.contract.methods import methods
from sqlfl.models.kinds import (
    ANY_CLASSES,
    CLASSIFIERS,
    KINDS,
    MOMENTS,
    NEURAL,
    NUMBER,
    TWO_CLASSES,
    kind_of,
    other,
    trains,
)
from sqlfl.options.entries import (
    Given,
    OptionTable,
    Setting,
    WrittenOptions,
    entries_of,
    error,
    resolved,
)
from sqlfl.options.privacy import (
    DRAWS,
    EXACT,
    FEATURES,
    GRADIENTS,
    LABELS,
    LAPLACE,
    PRIVACY,
    RANDOMIZED,
    Privacy,
)
from sqlfl.options.training import (
    EXCLUDED,
    SCORING,
    ScoringOptions,
    TowerOptions,
    TrainingOptions,
    option_lines,
    options_of,
    with_options,
)
from sqlfl.options.types import meant, shown

_OR_DESCENT = ", or descend: WITH (algorithm = 'sgd')"


def check_kind(kind: str, *, sql: str | None = None, span: tuple[int, int] | None = None) -> None:
    """Raise OptionError unless a model of this kind can be trained."""
    if kind in KINDS:
        return
    message = f"model kind must be one of {', '.join(KINDS)}, got {kind}"
    longer = [name for name in KINDS if kind and name.startswith(f"{kind.lower()}_")]
    hint = _other_kind(kind) or meant(kind, KINDS)
    hint = hint or (f"did you mean {longer[0]}?" if longer else None)
    raise OptionError(message, hint=hint, sql=sql, span=span)


_FAMILIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("xgb", "xgboost", "lightgbm", "lgbm", "catboost", "gbm", "gbdt", "gradient_boost",
      "boosted", "adaboost",
      "hist_gradient", "random_forest", "randomforest", "decision_tree", "decisiontree", "tree",
      "extra_trees", "isolation_forest", "gradientboost"),
     "there are no trees here; bends of a column: TRANSFORM (spline(x, 5)), or mlp_classifier and "
     "mlp_regressor"),
    (("kmeans", "k_means", "dbscan", "cluster", "gaussian_mixture", "gmm"),
     "there are no clusters here: a model learns a TARGET"),
    (("pca", "svd", "tsne", "umap", "autoencoder", "matrix_factorization"),
     "there is nothing without a TARGET here"),
    (("cox", "coxph", "cph", "survival", "kaplan", "weibull"),
     "there are no survival models here; rates of events are USING poisson_regression"),
    (("svm", "svc", "svr", "linearsvc", "knn", "k_neighbors", "naive_bayes", "gaussiannb",
      "kneighbors", "gaussian_process"),
     "linear models are logistic_regression and linear_regression, bent ones mlp_classifier and "
     "mlp_regressor"),
    (("arima", "prophet", "holt", "lstm", "rnn", "transformer", "bert", "gpt"),
     "there are no models of sequences here; columns of earlier rows are made in a party's view"),
    (("elastic", "sgdregressor", "ridge", "ols", "lm", "linear_reg", "linear", "linearregression",
      "gaussian"), "USING linear_regression; l2 = ... makes it a ridge"),
    (("lasso", "lars", "l1"), "USING lasso"),
    (("logit", "logistic_reg", "logisticregression", "logreg", "binomial", "glm_binomial", "lr",
      "sgdclassifier", "perceptron", "probit", "binary", "classifier", "classification"),
     "USING logistic_regression, of two classes"),
    (("multinom", "multiclass", "softmax", "maxent", "mlogit", "ordinal"),
     "USING softmax_regression, of several classes"),
    (("negative_binomial", "negbin", "tweedie", "quasipoisson", "zero_inflated", "poisson"),
     "counts are USING poisson_regression"),
    (("gamma",), "USING gamma_regression"), (("huber", "robust", "rlm"), "USING huber_regression"),
    (("quantile", "rq", "median"), "USING quantile_regression"),
    (("glm", "gam"), "USING says the family: linear_regression, logistic_regression, "
     "poisson_regression, gamma_regression"),
    (("mlp", "dnn", "nn", "neural", "neural_network", "deep", "ann", "mlpclassifier", "keras",
      "torch"), "USING mlp_classifier or mlp_regressor"),
    (("regression", "regressor"), "USING linear_regression"),
)  # fmt: skip
"""Beginnings of names that other libraries give to models, in the order of the search."""


def _other_kind(kind: str) -> str | None:
    """Return a hint for another library's kind of model; None for a misspelled name."""
    name = kind.lower()
    close = nearest(kind, KINDS)
    if close is not None and close.startswith(name[:5]):
        return meant(kind, KINDS)
    for beginnings, hint in _FAMILIES:
        for beginning in beginnings:
            whole = len(beginning) < 5 and name != beginning and "_" not in name[len(beginning) :]
            if name.startswith(beginning) and not whole:
                return hint
    return None


def resolve_training(
    kind: str, given: Iterable[Given], sql: str | None = None, privacy: Privacy | None = None
) -> TrainingOptions:
    """Resolve the WITH clause for a model of this kind. A parsed `kind` has its position in the
    attribute `span`.

    Defaults depend on `privacy`. Raise OptionError for unknown options and for options that
    conflict.
    """
    check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    table = with_options()
    written = table.read(given, sql)
    options = _assembled(
        Setting(
            kind,
            private=privacy is not None and privacy.features,
            noised=privacy is not None and privacy.predictions == "gaussian",
            solved=privacy is not None and privacy.solved,
            values=written.values,
        ),
        lambda algorithm: _check_method(kind, algorithm, written, sql),
    )
    if kind == "huber_regression" and options.threshold is None:
        raise OptionError(
            "huber_regression needs the option threshold",
            hint="WITH (threshold = ...), in the target's unit: errors beyond it count less than "
            "their squares; about 1.35 standard deviations of what is no outlier is usual",
            sql=sql,
            span=getattr(kind, "span", None),
        )
    conflict = options.method.conflict(kind)
    if conflict is not None:
        name, must, hint = conflict
        if name not in written.places:
            raise OptionError(f"option {name} must be {must}", hint=hint)
        raise table.wrong(must, written.places[name], sql, hint)
    for name, why in options.method.excluded.items():
        if name in written.places:
            message = f"option {name} does not go with algorithm '{options.algorithm}': {why}"
            hint = f"leave {name} out{_OR_DESCENT * (options.algorithm == MOMENTS)}"
            raise error(message, written.places[name], sql, hint=hint, name=True)
    table.check_needs(written, options.listed(), sql)
    _check_stragglers(options, written, privacy, sql)
    if options.method.usual.solved and (privacy is None or not privacy.features):
        message = "algorithm 'moments' solves a model from noised moments, and needs PRIVACY "
        hint = "PRIVACY (epsilon = ..., feature_bounds = {...}), or leave algorithm out"
        raise error(f"{message}(epsilon = ...)", written.places["algorithm"], sql, hint=hint)
    if privacy is not None:
        check_privacy(privacy, options, written, sql)
    return options


def _check_stragglers(
    options: TrainingOptions, written: WrittenOptions, privacy: Privacy | None, sql: str | None
) -> None:
    """Raise OptionError if `stragglers` conflicts with another option: steps cannot always skip
    late clients.
    """
    if options.method.waits is None:
        return
    asked = written.places["stragglers"]
    for name, why in EXCLUDED.items():
        if name in written.places:
            message = f"option {name} does not go with stragglers = {shown(asked.value)}: {why}"
            raise error(message, written.places[name], sql, hint=f"leave {name} out", name=True)
    why = ""
    if options.tower is not None and options.tower.dropout > 0.0:
        why = "of dropout, as each batch is predicted anew with other units left out"
    elif privacy is not None and privacy.features:
        why = "where PRIVACY protects features, as the noise is worked out for steps that all take"
    if why:
        message = f"option stragglers = {shown(asked.value)} is not built {why}"
        raise error(message, asked, sql, hint="leave stragglers out")


def training_options(
    kind: str, values: Mapping[str, object], *, private: bool = False, noised: bool = False
) -> TrainingOptions:
    """Make options from values by name, in JSON's types. None and missing names mean the default.

    Raise OptionError for a value of the wrong type.
    """
    read_values = {name: _value(name, value) for name, value in values.items() if value is not None}
    return _assembled(Setting(kind, private, noised, values=read_values))


def _value(name: str, value: object) -> Any:
    """Read the value of an option from JSON's types."""
    entry = with_options().entries.get(name)
    value = tuple(value) if isinstance(value, list) else value
    read_value = None if entry is None else entry.read(value)
    if read_value is None:
        must = "an option" if entry is None else entry.type.text
        raise OptionError(f"{name} must be {must}, got {shown(value)}")
    return read_value


def _assembled(
    setting: Setting, check: Callable[[str], None] = lambda algorithm: None
) -> TrainingOptions:
    """Assemble the options. `check` receives the algorithm first, before its options are
    looked up.
    """
    entries = {entry.name: entry for entry in entries_of(TrainingOptions)}
    usual = entries["algorithm"].usual(setting)
    algorithm = str(setting.values.get("algorithm", usual))
    check(algorithm)
    method = options_of(algorithm)
    setting = replace(setting, method=method.usual)
    tower = TowerOptions(**resolved(TowerOptions, setting)) if setting.neural else None
    method_options = method(**resolved(method, setting))
    return TrainingOptions(
        kind=str(setting.kind),
        method=method_options,
        tower=tower,
        **resolved(TrainingOptions, setting),
    )


def _check_method(kind: str, algorithm: str, written: WrittenOptions, sql: str | None) -> None:
    """Raise OptionError unless the algorithm trains this kind of model and all written options
    apply to both.
    """
    if not trains(algorithm, kind):
        usual = kind_of(kind).algorithm
        message = f"algorithm '{algorithm}' does not train {kind}"
        others = next((name for name in KINDS if trains(algorithm, name)), "")
        hint = (
            f"leave algorithm out: it is '{usual}'" if usual else f"USING {others}, or another one"
        )
        raise error(message, written.places["algorithm"], sql, hint=hint)
    if kind in NEURAL and options_of(algorithm).usual.tower_epochs is None:
        message = f"algorithm '{algorithm}' does not train {kind}: towers are not linear"
        fitting = [f"'{m}'" for m in methods() if options_of(m).usual.tower_epochs is not None]
        hint = f"algorithm = {' or '.join(fitting)}"
        raise error(message, written.places["algorithm"], sql, hint=hint)
    if kind in NEURAL and kind_of(kind).exponential and algorithm != "sgd":
        message = (
            f"algorithm '{algorithm}' does not train {kind}: it relies on a bound of the loss's "
            "curvature, and exponentials have none"
        )
        raise error(message, written.places["algorithm"], sql, hint="algorithm = 'sgd'")
    if "iterations" in written.places and "epochs" in written.places:
        message = "options iterations and epochs say the same"
        raise error(message, written.places["epochs"], sql, hint="leave epochs out", name=True)
    for name, option in written.places.items():
        line = option_lines()[name]
        if kind not in line.kinds:
            message = f"option {name} does not apply to {kind}, only to {', '.join(line.kinds)}"
            raise error(message, option, sql, name=True)
        if algorithm not in line.of(kind):
            message = f"option {name} does not apply to algorithm '{algorithm}', only to "
            fitting = [a for a in line.of(kind) if a in ("sgd", "admm")]
            instead = f"leave {name} out"
            if fitting:
                instead += f", or descend: WITH (algorithm = '{fitting[0]}')"
            raise error(
                f"{message}{', '.join(line.of(kind))}",
                option,
                sql,
                hint=instead if algorithm == MOMENTS else None,
                name=True,
            )


def resolve_scoring(
    kind: str, model: Mapping[str, object], given: Iterable[Given] = (), sql: str | None = None
) -> ScoringOptions:
    """Resolve the options of scoring: the statement's own values override those stored in the
    model, which are in JSON's types.

    Raise OptionError for an option that EVALUATE and PREDICT do not take, and ModelError for a
    model with damaged options.
    """
    table = with_options()
    given = tuple(given)
    written = table.read(given, sql)
    for name, option in written.places.items():
        if name not in SCORING:
            message = f"option {name} is of TRAIN; EVALUATE and PREDICT take {', '.join(SCORING)}"
            raise error(message, option, sql, name=True)
    usual = {name: table.entries[name].default for name in SCORING}
    kept = kept_options(model, [name for name in SCORING if name != "wait"])
    values: dict[str, Any] = usual | kept | written.values
    return ScoringOptions(tower=tower_of(kind, model), **values)


def tower_of(kind: str, model: Mapping[str, object]) -> TowerOptions | None:
    """Return the tower options stored in a model; None for a linear model."""
    if kind not in NEURAL:
        return None
    names = [spec.name for spec in fields(TowerOptions)]
    return TowerOptions(**kept_options(model, names))


def kept_options(model: Mapping[str, object], names: Iterable[str]) -> dict[str, Any]:
    """Return the options of these names that the model stores. Raise ModelError if they are
    damaged.
    """
    return {name: value for name in names if (value := _kept(name, model)) is not None}


def _kept(name: str, model: Mapping[str, object]) -> Any:
    """Return a model's value of an option, or None."""
    value = model.get(name)
    try:
        return None if value is None else _value(name, value)
    except OptionError as fault:
        raise ModelError(f"the options of the model are damaged: {fault.message}") from None


def written_algorithm(given: Iterable[Given], sql: str | None = None) -> str | None:
    """Return the algorithm that a WITH clause names, or None. Raise OptionError for an
    unknown one.
    """
    asked = (option for option in given if option.name == "algorithm")
    algorithm: str | None = with_options().read(asked, sql).values.get("algorithm")
    return algorithm


def usual_algorithm(
    kind: str, options: Iterable[Given], privacy: Iterable[Given], sql: str | None = None
) -> str | None:
    """Return the algorithm that the statement names. If it names none, return MOMENTS where PRIVACY
    has a budget for features and does not ask for another kind of predictions. Else return None.
    """
    options = tuple(options)
    named = written_algorithm(options, sql)
    if named is not None or kind not in KINDS or not kind_of(kind).solved:
        return named
    asked = {str(option.name): option.value for option in privacy}
    if "epsilon" not in asked or any(name in asked for name in ("noise_multiplier", *DRAWS)):
        return None
    other = str(asked.get("predictions", MOMENTS)).lower() != MOMENTS
    return None if other or asked.get("statistics") == "none" else MOMENTS


def resolve_privacy(
    kind: str, given: Iterable[Given], sql: str | None = None, algorithm: str | None = None
) -> Privacy:
    """Resolve the PRIVACY clause for a model of this kind and this algorithm (None: WITH names
    none).

    Two values may stay open until the query's columns are known. `statistics` is AUTO where
    features are protected and the clause does not set it; `label_classes` is None where they are
    not given. Raise OptionError for unknown options, wrong values, and options that need or
    exclude others.
    """
    check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    written = privacy_options().read(given, sql)
    _check_asked(written.places, sql)
    _check_kind(kind, written.places, sql)
    algorithm = algorithm or kind_of(kind).algorithm
    method = options_of(algorithm).usual if algorithm else None
    values = resolved(Privacy, Setting(kind, method=method, values=written.values))
    if method is not None and method.sketched:
        _check_chosen(written.places, sql)
    elif method is not None and method.solved:
        _check_solved(written.places, sql)
    else:
        _check_predictions(method is not None and method.drawn, values, written.places, sql)
    PRIVACY.check_needs(written, values, sql)
    _check_draws(values["predictions"] == "binomial", written.places, sql)
    _check_labels(kind, written.values, written.places, sql)
    return Privacy(**values)


def privacy_options() -> OptionTable:
    """Return the table of PRIVACY options for reading, with hints for options of WITH."""
    of_with = {
        name: f"it is an option of WITH: WITH ({name} = ...) PRIVACY (...)"
        for name in option_lines()
    }
    return replace(PRIVACY, elsewhere={**PRIVACY.elsewhere, **of_with})


def _check_asked(written: Mapping[str, Given], sql: str | None) -> None:
    if not any(name in written for name in (*LABELS, *FEATURES)):
        message = "PRIVACY asks for no noise: it needs label_epsilon, epsilon or noise_multiplier"
        first = next(iter(written.values()), None)
        span = None if first is None else getattr(first.name, "span", first.span)
        hint = "label_epsilon protects labels, epsilon features; or leave PRIVACY out"
        raise OptionError(message, hint=hint, sql=sql, span=span)
    if all(name in written for name in GRADIENTS):
        message = "PRIVACY options epsilon and noise_multiplier exclude each other"
        hint = "give one of them: the other follows from it"
        raise error(message, written["noise_multiplier"], sql, hint=hint, name=True)


def _check_predictions(
    drawn: bool, values: Mapping[str, object], written: Mapping[str, Given], sql: str | None
) -> None:
    """Raise OptionError unless the algorithm can noise predictions as asked. `drawn`: its clients
    send draws in secure sums.
    """
    asked = values["predictions"]
    fits = drawn == (asked == "binomial") and asked not in ("sketch", "moments")
    if "predictions" not in written or fits:
        return
    got = f"PRIVACY option predictions = {shown(values['predictions'])}"
    if drawn:
        message = f"{got} does not go with algorithm 'pbm', whose clients send draws that are "
        message += "summed in secret"
        hint = "leave it out, or algorithm = 'sgd'"
    else:
        fitting = {"sketch": "frank_wolfe", "moments": "moments"}.get(str(asked), "pbm")
        message = f"{got} applies only to algorithm '{fitting}'"
        hint = "WITH (algorithm = 'pbm') USING mlp_classifier or mlp_regressor, or 'gaussian'"
        hint = "USING lasso, or 'gaussian'" if fitting == "frank_wolfe" else hint
        hint = "WITH (algorithm = 'moments'), or 'gaussian'" if fitting == "moments" else hint
    raise error(message, written["predictions"], sql, hint=hint)


def _check_chosen(written: Mapping[str, Given], sql: str | None) -> None:
    """Raise OptionError for options of gradients: the noise of frank_wolfe follows from a
    budget.
    """
    for name, why in (
        ("noise_multiplier", "choices and sketches are noised by a budget"),
        ("clip", "clients send no gradients"),
    ):
        if name in written:
            message = f"PRIVACY option {name} does not go with algorithm 'frank_wolfe': {why}"
            raise error(message, written[name], sql, hint="give epsilon", name=True)
    given = written.get("predictions")
    if given is not None and given.value != "sketch":
        message = f"PRIVACY option predictions = {shown(given.value)} does not go with algorithm "
        message += "'frank_wolfe', whose clients send no row's prediction"
        raise error(message, given, sql, hint="leave it out")


def _check_solved(written: Mapping[str, Given], sql: str | None) -> None:
    """Raise OptionError for options of gradients and predictions: the noise of moments follows from
    a budget.
    """
    for name, why in (
        ("noise_multiplier", "what it releases is noised by a budget"),
        ("clip", "clients send no gradients"),
        ("prediction_clip", "clients send no predictions"),
        ("prediction_share", "clients send no predictions"),
        ("max_fan_out", "how much a row counts follows from how often rows are joined"),
    ):
        if name in written:
            message = f"PRIVACY option {name} does not go with algorithm 'moments': {why}"
            hint = "give epsilon" if name == "noise_multiplier" else f"leave {name} out"
            hint += _OR_DESCENT
            raise error(message, written[name], sql, hint=hint, name=True)
    given = written.get("predictions")
    if given is not None and given.value != "moments":
        message = f"PRIVACY option predictions = {shown(given.value)} does not go with algorithm "
        message += "'moments', which noises all that it releases in a way of its own"
        raise error(message, given, sql, hint=f"leave it out{_OR_DESCENT}")


def _check_draws(drawn: bool, written: Mapping[str, Given], sql: str | None) -> None:
    """Raise OptionError unless the parameters of draws are given or follow from epsilon."""
    there = [name for name in DRAWS if name in written]
    if len(there) == 2 and "prediction_share" in written:
        message = "PRIVACY option prediction_share does not go with bins and theta, which say what "
        hint = "leave it out: gradients have the rest of epsilon"
        raise error(f"{message}draws take", written["prediction_share"], sql, hint=hint, name=True)
    if "epsilon" in written or len(there) == 2:
        return
    asking = [*there, *(["noise_multiplier"] if drawn and "noise_multiplier" in written else [])]
    if asking:
        missing = " and ".join(name for name in DRAWS if name not in written)
        message = f"PRIVACY option {asking[0]} needs {missing}, for algorithm 'pbm'"
        hint = f"add {missing}; or give epsilon, from which they follow"
        raise error(message, written[asking[0]], sql, hint=hint, name=True)


def _check_kind(kind: str, written: Mapping[str, Given], sql: str | None) -> None:
    """Raise OptionError where this kind of model does not support the noise."""
    spec = kind_of(kind)
    for names, why in ((LABELS, spec.no_label_noise), (FEATURES, spec.no_feature_noise)):
        for name in names:
            if why and name in written:
                message = f"PRIVACY option {name} does not go with {kind}: {why}"
                hint = f"leave {name} out; a {other(kind, NUMBER)} takes it"
                raise error(message, written[name], sql, hint=hint, name=True)


def _check_labels(
    kind: str, values: Mapping[str, object], written: Mapping[str, Given], sql: str | None
) -> None:
    """Raise OptionError unless the options of labels fit the kind of model."""
    of_classes = kind in CLASSIFIERS
    wrong, right, is_ = "label_classes", "label_bounds", "a number"
    if of_classes:
        wrong, right, is_ = "label_bounds", "label_classes", "a class"
    if wrong in written:
        message = f"PRIVACY option {wrong} does not apply to {kind}, whose target is {is_}"
        raise error(message, written[wrong], sql, hint=f"give {right}", name=True)
    if "label_epsilon" not in values:
        return
    if not of_classes and values.get("label_mechanism") == RANDOMIZED:
        message = f"PRIVACY option label_mechanism = '{RANDOMIZED}' is for classes, and the target "
        message += f"of {kind} is a number"
        hint = f"leave it out: numbers are noised by '{LAPLACE}'"
        raise error(message, written["label_mechanism"], sql, hint=hint)
    if not of_classes and "label_bounds" not in values:
        message = f"PRIVACY option label_epsilon needs label_bounds for {kind}"
        hint = "add label_bounds = [least, largest]: the noise must cover that range"
        raise error(message, written["label_epsilon"], sql, hint=hint, name=True)
    listed = values.get("label_classes")
    if kind_of(kind).target == TWO_CLASSES and isinstance(listed, tuple) and len(listed) != 2:
        message = f"PRIVACY option label_classes must list two classes for {kind}, got "
        hint = f"USING {other(kind, ANY_CLASSES)} takes more"
        raise error(f"{message}{len(listed)}", written["label_classes"], sql, hint=hint)


_EXACT = "with predictions = 'exact' they are exact, and "
_GAUSSIAN = "or noise them: PRIVACY (..., predictions = 'gaussian')"


def check_privacy(
    privacy: Privacy, options: TrainingOptions, written: WrittenOptions, sql: str | None = None
) -> None:
    """Raise OptionError where options of WITH break the guarantee of PRIVACY."""
    values = options.listed()

    def refuse(name: str, why: str, hint: str) -> OptionError:
        message = f"option {name} = {shown(values[name])} does not go with PRIVACY: {why}"
        return error(message, written.places[name], sql, hint=hint)

    if "seed" in written.places:
        why = "rows would be numbered by their content, which the coordinator could recognise"
        raise refuse("seed", why, "leave seed out")
    if "warm_start" in written.places:
        why = "the model that training starts from knows the rows without this noise"
        raise refuse("warm_start", why, "leave warm_start out")
    if "checkpoint" in written.places:
        why = "nothing goes on from a model whose training has been noised"
        raise refuse("checkpoint", why, "leave checkpoint out")
    if not privacy.features:
        return
    usual = options.method.usual
    if usual.unprotected:
        hint = "algorithm = 'sgd', or noise labels only: label_epsilon"
        raise refuse("algorithm", usual.unprotected, hint)
    if privacy.predictions != EXACT:
        return
    if usual.exact:
        raise refuse("algorithm", usual.exact, f"algorithm = 'sgd', {_GAUSSIAN}")
    if options.tower is not None and options.tower.outputs is not None:
        why = f"the coordinator fits it to predictions: {_EXACT}so would the head be"
        raise refuse("head", why, f"leave it out, {_GAUSSIAN}")
    for name, value in (("tolerance", options.tolerance), ("patience", options.patience)):
        if value:
            why = f"when training ends would depend on predictions: {_EXACT}so would the end"
            raise refuse(name, why, f"leave {name} out, {_GAUSSIAN}")
