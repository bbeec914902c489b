"""The options of PRIVACY: one table of names, types, defaults, and what each of them needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlfl.errors import OptionError
from sqlfl.models.kinds import ANY_CLASSES, CLASSIFIERS, NUMBER, TWO_CLASSES, kind_of, other
from sqlfl.options import training
from sqlfl.options.training import Given
from sqlfl.options.types import OptionType, choice, integer, meant, number, shown
from sqlfl.privacy.specification import (
    DELTA,
    LABEL_MECHANISMS,
    PREDICTION_CLIP,
    PREDICTION_SHARE,
    PREDICTIONS,
    STATISTICS,
    STATISTICS_SHARE,
    Bounds,
    Privacy,
)

AUTO = "auto"
"""`Privacy.statistics` before the query's columns are known: see sqlfl.privacy.planning."""
LARGEST_BOUND = 1e30
"""Of a range: beyond it, squares of values might not be numbers."""
LABELS = ("label_epsilon",)
FEATURES = ("epsilon", "noise_multiplier")
RANDOMIZED, LAPLACE = LABEL_MECHANISMS


def _read_share(value: object) -> object | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 < value < 1.0 else None


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST_BOUND


def _read_range(value: object) -> object | None:
    """[lo, hi], lo < hi."""
    if not isinstance(value, tuple) or len(value) != 2 or not all(map(_finite, value)):
        return None
    return (float(value[0]), float(value[1])) if value[0] < value[1] else None


def _advise_range(value: object) -> str | None:
    if isinstance(value, tuple) and len(value) == 2 and all(map(_finite, value)):
        return f"[{shown(value[1])}, {shown(value[0])}]" if value[0] > value[1] else None
    return None


def _text(value: object) -> str | None:
    """A class or a category as text; numbers and booleans are known by what they are written as."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


def _read_texts(value: object, least: int) -> tuple[str, ...] | None:
    """Different texts, so many or more."""
    if not isinstance(value, tuple) or len(value) < least:
        return None
    found = tuple(text for text in map(_text, value) if text is not None)
    return found if len(found) == len(value) == len(set(found)) else None


def _advise_classes(value: object) -> str | None:
    if not isinstance(value, tuple):
        return None
    if len(value) < 2:
        return "one class alone tells nothing"
    found = [_text(v) for v in value]
    twice = next((v for v in found if v is not None and found.count(v) > 1), None)
    return None if twice is None else f"'{twice}' stands twice"


def _read_bounds(value: object) -> Bounds | None:
    """[lo, hi], or all categories as texts."""
    ends = _read_range(value)
    if isinstance(ends, tuple):
        return ends
    texts = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return _read_texts(value, 1) if texts else None


def _read_feature_bounds(value: object) -> object | None:
    items = getattr(value, "items", None)
    if not isinstance(items, tuple) or not items:
        return None
    found = {name.lower(): _read_bounds(bounds) for name, bounds in items}
    return None if None in found.values() or len(found) < len(items) else found


def _advise_feature_bounds(value: object) -> str | None:
    items = getattr(value, "items", None)
    if not isinstance(items, tuple):
        return None
    names = [name.lower() for name, _ in items]
    for name, bounds in items:
        if names.count(name.lower()) > 1:
            return f"column {name} stands twice"
        if _read_bounds(bounds) is None:
            return f"{name} has {shown(bounds)}: {_advise_bounds(bounds)}"
    return None


def _advise_bounds(value: object) -> str:
    """What to write for bounds of one column that are none."""
    usual = "write the least and the largest value, such as [0, 100], or all categories"
    value = value if isinstance(value, tuple) else ()
    if advice := _advise_range(value):
        return f"write {advice}"
    if len(value) == 2 and value[0] == value[1] and _finite(value[0]):
        return "the largest value must be greater than the least"
    if len(value) > 2 and not all(isinstance(v, str) for v in value):
        texts = [text for text in map(_text, value) if text is not None]
        rest = "; NULL has a category of its own anyway" if None in value else ""
        return f"categories are texts: {shown(tuple(texts))}{rest}"
    return (_advise_classes(value) if len(value) > 1 else None) or usual


SHARE = OptionType("a number greater than 0 and less than 1", _read_share)
EPSILON = number(0, above=True, most=1e6)
LABEL_EPSILON = number(1e-6, most=1e9)
MULTIPLIER = number(1e-9, most=1e9)
CLIP = number(1e-9, most=1e9)
RANGE = OptionType(
    "a list of the least and the largest value, such as [0, 100]", _read_range, _advise_range
)
CLASSES = OptionType(
    "a list of different classes, such as ['no', 'yes']",
    lambda value: _read_texts(value, 2),
    _advise_classes,
)
FEATURE_BOUNDS = OptionType(
    "bounds of columns: the least and the largest value, or all categories, such as "
    "{'age': [0, 120], 'sex': ['f', 'm']}",
    _read_feature_bounds,
    _advise_feature_bounds,
)


@dataclass(frozen=True)
class PrivacyOption:
    """One line of the table."""

    name: str
    type: OptionType
    default: str
    """As the documentation says it."""
    doc: str
    needs: tuple[str, ...] = ()
    """Options of which one must be given for this one to mean anything."""
    only: tuple[str, str] | None = None
    """An option and the value that it must have."""


_BRITISH = {"randomised_response": f"it is written '{RANDOMIZED}'"}

PRIVACY_OPTIONS: tuple[PrivacyOption, ...] = (
    PrivacyOption("label_epsilon", LABEL_EPSILON, "labels are sent in clear",
        "ε of the label of one row; each label is noised once, by its owner"),
    PrivacyOption("label_mechanism", choice(*LABEL_MECHANISMS, instead=_BRITISH),
        f"'{RANDOMIZED}'; of numbers '{LAPLACE}'",
        "how labels are noised; 'laplace' over classes has a smaller ε than label_epsilon, which "
        "is reported", LABELS),
    PrivacyOption("label_bounds", RANGE, "needed for numbers",
        "of a target that is a number: labels are clipped to them; they are public", LABELS),
    PrivacyOption("label_classes", CLASSES, "false and true, of a BOOLEAN; else needed for classes",
        "all classes that labels may have, as text and in the order that the model has them in; "
        "they are public, and a label that is none of them ends the run", LABELS),
    PrivacyOption("epsilon", EPSILON, "features are not protected",
        "ε of the features of one row of a table; excludes noise_multiplier"),
    PrivacyOption("noise_multiplier", MULTIPLIER, "from epsilon",
        "z: the noise of a sum of gradients has the standard deviation z · clip; ε follows"),
    PrivacyOption("delta", SHARE, f"{DELTA:g}",
        "δ of the features; must be less than 1 / the rows of each table", FEATURES),
    PrivacyOption("clip", CLIP, "the mean number of joined rows per row of the table, times the "
        "standard deviation of labels that are numbers",
        "C: what the norm of a table row's gradient of a step is clipped to, as it stands in the "
        "sum over joined rows", FEATURES),
    PrivacyOption("predictions", choice(*PREDICTIONS), "'none'",
        "'gaussian': each row's predictions are clipped and noised in every round, so that ε holds "
        "against the coordinator and the other parties; 'none': they are exact, and ε holds for "
        "the parameters alone", FEATURES),
    PrivacyOption("prediction_clip", CLIP, f"{PREDICTION_CLIP:g}, "
        "of regressions the standard deviation of the labels",
        "B: what the norm of a row's prediction is clipped to", only=("predictions", "gaussian")),
    PrivacyOption("prediction_share", SHARE, f"{PREDICTION_SHARE:g}",
        "share of the budget of the rounds that predictions take (of the sum of squares of "
        "sensitivity over noise)", only=("predictions", "gaussian")),
    PrivacyOption("statistics", choice(*STATISTICS),
        "'bounds' where all features have bounds, 'noised' where only categories have none",
        "how features are scaled, and which categories there are: by public bounds, by noised "
        "sums and counts, or by exact ones, which nothing protects", FEATURES),
    PrivacyOption("statistics_share", SHARE, f"{STATISTICS_SHARE:g}",
        "share of the whole budget that noised statistics take",
        only=("statistics", "noised")),
    PrivacyOption("feature_bounds", FEATURE_BOUNDS, "[0, 1] of a BOOLEAN",
        "public bounds of features by their names in the query: values beyond are clipped, "
        "categories that are not listed count as unknown", FEATURES),
    PrivacyOption("max_fan_out", integer(1), "no limit",
        "joined rows that a table's row may occur in; rows beyond are dropped at random, and "
        "counted", FEATURES),
)  # fmt: skip

_BY_NAME = {entry.name: entry for entry in PRIVACY_OPTIONS}

ELSEWHERE = {
    "bounds": "feature_bounds",
    "eps": "epsilon",
    "feature_epsilon": "epsilon",
    "l2_norm_clip": "clip",
    "max_grad_norm": "clip",
    "noise": "noise_multiplier",
    "sigma": "noise_multiplier",
    "target_delta": "delta",
    "target_epsilon": "epsilon",
}
"""What other libraries call some of them."""


def resolve_privacy(kind: str, given: Iterable[Given], sql: str | None = None) -> Privacy:
    """What a PRIVACY clause asks for, of a model of this kind.

    What depends on the query's columns is left: `statistics` is AUTO where features are protected
    and nothing is said of it, `label_classes` None where they are not given. Raises OptionError for
    all that is not in the table, for values that are none, and for options that need, or exclude,
    others.
    """
    training.check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    values: dict[str, object] = {}
    written: dict[str, Given] = {}
    for option in given:
        entry = _known(option, sql)
        written[option.name] = option
        value = entry.type.read(option.value)
        if value is None:
            message = (
                f"PRIVACY option {entry.name} must be {entry.type.text}, got {shown(option.value)}"
            )
            raise _error(message, option, sql, hint=entry.type.advise(option.value))
        values[entry.name] = value
    _check_asked(written, sql)
    _check_kind(kind, written, sql)
    for name, option in written.items():
        _check_needs(_BY_NAME[name], values, option, sql)
    _check_labels(kind, values, written, sql)
    if any(name in values for name in FEATURES):
        values = {"statistics": AUTO} | values
    if kind not in CLASSIFIERS:
        values["label_mechanism"] = LAPLACE
    elif values.get("predictions") == "gaussian":
        values = {"prediction_clip": PREDICTION_CLIP} | values
    bounds = values.get("feature_bounds")
    known = dict(bounds) if isinstance(bounds, Mapping) else {}
    return Privacy(**values | {"feature_bounds": MappingProxyType(known)})  # type: ignore[arg-type]


def _check_asked(written: Mapping[str, Given], sql: str | None) -> None:
    if not any(name in written for name in (*LABELS, *FEATURES)):
        message = "PRIVACY asks for no noise: it needs label_epsilon, epsilon or noise_multiplier"
        first = next(iter(written.values()), None)
        span = None if first is None else getattr(first.name, "span", first.span)
        hint = "label_epsilon protects labels, epsilon features; or leave PRIVACY out"
        raise OptionError(message, hint=hint, sql=sql, span=span)
    if all(name in written for name in FEATURES):
        message = "PRIVACY options epsilon and noise_multiplier exclude each other"
        hint = "give one of them: the other follows from it"
        raise _error(message, written["noise_multiplier"], sql, hint=hint, name=True)


def _check_kind(kind: str, written: Mapping[str, Given], sql: str | None) -> None:
    """What is asked for exists for models of this kind."""
    found = kind_of(kind)
    for names, why in ((LABELS, found.no_label_noise), (FEATURES, found.no_feature_noise)):
        for name in names:
            if why and name in written:
                message = f"PRIVACY option {name} does not go with {kind}: {why}"
                hint = f"leave {name} out, or USING {other(kind, NUMBER)}"
                raise _error(message, written[name], sql, hint=hint, name=True)


def _check_needs(
    entry: PrivacyOption, values: Mapping[str, object], option: Given, sql: str | None
) -> None:
    if entry.needs and not any(name in values for name in entry.needs):
        message = f"PRIVACY option {entry.name} applies only with {' or '.join(entry.needs)}"
        raise _error(message, option, sql, name=True)
    if entry.only is None:
        return
    other, value = entry.only
    usual = AUTO if other == "statistics" and any(n in values for n in FEATURES) else "none"
    if values.get(other, usual) not in (value, AUTO):
        message = f"PRIVACY option {entry.name} applies only with {other} = '{value}'"
        raise _error(message, option, sql, name=True)


def _check_labels(
    kind: str, values: Mapping[str, object], written: Mapping[str, Given], sql: str | None
) -> None:
    """What is said of labels fits the kind of model."""
    classes = kind in CLASSIFIERS
    wrong, right, is_ = "label_classes", "label_bounds", "a number"
    if classes:
        wrong, right, is_ = "label_bounds", "label_classes", "a class"
    if wrong in written:
        message = f"PRIVACY option {wrong} does not apply to {kind}, whose target is {is_}"
        raise _error(message, written[wrong], sql, hint=f"give {right}", name=True)
    if "label_epsilon" not in values:
        return
    if not classes and values.get("label_mechanism") == RANDOMIZED:
        message = f"PRIVACY option label_mechanism = '{RANDOMIZED}' is for classes, and the target "
        message += f"of {kind} is a number"
        hint = f"leave it out: numbers are noised by '{LAPLACE}'"
        raise _error(message, written["label_mechanism"], sql, hint=hint)
    if not classes and "label_bounds" not in values:
        message = f"PRIVACY option label_epsilon needs label_bounds for {kind}"
        hint = "add label_bounds = [least, largest]: the noise must cover that range"
        raise _error(message, written["label_epsilon"], sql, hint=hint, name=True)
    found = values.get("label_classes")
    if kind_of(kind).target == TWO_CLASSES and isinstance(found, tuple) and len(found) != 2:
        message = f"PRIVACY option label_classes must list two classes for {kind}, got "
        hint = f"USING {other(kind, ANY_CLASSES)} takes more"
        raise _error(f"{message}{len(found)}", written["label_classes"], sql, hint=hint)


def _known(option: Given, sql: str | None) -> PrivacyOption:
    entry = _BY_NAME.get(option.name)
    if entry is None:
        name = ELSEWHERE.get(option.name)
        hint = f"it is called {name} here" if name else meant(option.name, _BY_NAME)
        if option.name in {own.name for own in training.OPTIONS}:
            hint = f"it is an option of WITH: WITH ({option.name} = ...) PRIVACY (...)"
        hint = hint or f"the options are {', '.join(_BY_NAME)}"
        message = f"there is no PRIVACY option {option.name}"
        raise _error(message, option, sql, hint=hint, name=True)
    return entry


def _error(
    message: str, option: Given, sql: str | None, *, hint: str | None = None, name: bool = False
) -> OptionError:
    span = getattr(option.name, "span", option.span) if name else option.span
    return OptionError(message, hint=hint, sql=sql, span=span)


_EXACT = "with predictions = 'none' they are exact, and "
_GAUSSIAN = "or noise them: PRIVACY (..., predictions = 'gaussian')"
_REFUSED: tuple[tuple[str, tuple[object, ...], str, str], ...] = (
    ("algorithm", ("admm",),
        "its penalty, its multipliers and its intercept are exact functions of predictions, which "
        "with predictions = 'none' nothing noises", f"algorithm = 'sgd', {_GAUSSIAN}"),
    ("head", ("linear",),
        "the coordinator fits it to predictions: " + _EXACT + "so would the head be",
        f"leave it out, {_GAUSSIAN}"),
)  # fmt: skip
"""What exact predictions would get into the model by: (option, values, why not, what instead)."""


def check_training(
    privacy: Privacy, values: Mapping[str, object], given: Iterable[Given], sql: str | None = None
) -> None:
    """Raise OptionError where options of WITH, resolved, break what PRIVACY promises."""
    written: dict[str, Given] = {option.name: option for option in given}

    def refuse(name: str, why: str, hint: str) -> OptionError:
        message = f"option {name} = {shown(values[name])} does not go with PRIVACY: {why}"
        return _error(message, written[name], sql, hint=hint)

    if "seed" in written:
        why = "rows would be numbered by their content, which the coordinator could recognise"
        raise refuse("seed", why, "leave seed out")
    if "warm_start" in written:
        why = "the model that training starts from knows the rows without this noise"
        raise refuse("warm_start", why, "leave warm_start out")
    if not privacy.features:
        return
    if values["algorithm"] == "lbfgs":
        why = "its line search and its inner products are exact functions of the rows"
        raise refuse("algorithm", why, "algorithm = 'sgd', or noise labels only: label_epsilon")
    if privacy.predictions != "none":
        return
    for name, refused, why, hint in _REFUSED:
        if values.get(name) in refused:
            raise refuse(name, why, hint)
    for name in ("tolerance", "patience"):
        if values.get(name):
            why = "when training ends would depend on predictions: " + _EXACT + "so would the end"
            raise refuse(name, why, f"leave {name} out, {_GAUSSIAN}")


def privacy_markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [
        "| PRIVACY option | must be | default | applies with | meaning |",
        "|---|---|---|---|---|",
    ]
    for entry in PRIVACY_OPTIONS:
        with_ = " or ".join(f"`{name}`" for name in entry.needs)
        if entry.only is not None:
            with_ = f"`{entry.only[0]} = '{entry.only[1]}'`"
        cells = (entry.type.text, entry.default, with_ or "all", entry.doc)
        lines.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
