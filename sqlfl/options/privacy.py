"""The options of PRIVACY: one table of names, types, defaults and needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlfl.contract.privacy_specification import MAX_BINS, MAX_THETA, Bounds, LabelNoise
from sqlfl.models.kinds import CLASSIFIERS
from sqlfl.options.entries import AUTO, Needs, OptionTable, Setting, entries_of, markdown, option
from sqlfl.options.types import FRACTION, OptionType, choice, integer, number, shown

LABEL_MECHANISMS = ("randomized_response", "laplace")
MAX_BOUND = 1e30
"""Maximum end of a range. Squares of larger values may overflow."""
LABELS = ("label_epsilon",)
GRADIENTS = ("epsilon", "noise_multiplier")
DRAWS = ("bins", "theta")
FEATURES = (*GRADIENTS, *DRAWS)
"""Options that ask for noise of these."""
RANDOMIZED, LAPLACE = LABEL_MECHANISMS
EXACT, FORMER_EXACT = "exact", "none"
"""The value for predictions without noise, and its older, deprecated spelling."""
GUMBEL, LAPLACE_MAX = "gumbel", "laplace"
"""Noise on the scores of columns; the client sends only the column with the largest noised score.
"""


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MAX_BOUND


def _read_range(value: object) -> tuple[float, float] | None:
    """[lo, hi], lo < hi."""
    if not isinstance(value, tuple) or len(value) != 2 or not all(map(_finite, value)):
        return None
    return (float(value[0]), float(value[1])) if value[0] < value[1] else None


def _advise_range(value: object) -> str | None:
    if isinstance(value, tuple) and len(value) == 2 and all(map(_finite, value)):
        return f"[{shown(value[1])}, {shown(value[0])}]" if value[0] > value[1] else None
    return None


def _text(value: object) -> str | None:
    """Return a class or category as text; numbers and booleans become their literals."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


def _read_texts(value: object, least: int) -> tuple[str, ...] | None:
    """Return different texts, at least `least` of them, or None."""
    if not isinstance(value, tuple) or len(value) < least:
        return None
    texts = tuple(text for text in map(_text, value) if text is not None)
    return texts if len(texts) == len(value) == len(set(texts)) else None


def _advise_classes(value: object) -> str | None:
    if not isinstance(value, tuple):
        return None
    if len(value) < 2:
        return "one class alone tells nothing"
    classes = [_text(v) for v in value]
    twice = next((v for v in classes if v is not None and classes.count(v) > 1), None)
    return None if twice is None else f"'{twice}' stands twice"


def _read_bounds(value: object) -> Bounds | None:
    """[lo, hi], or all categories as texts."""
    ends = _read_range(value)
    if ends is not None:
        return ends
    texts = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return _read_texts(value, 1) if texts else None


def _read_feature_bounds(value: object) -> Mapping[str, Bounds] | None:
    items = getattr(value, "items", None)
    if not isinstance(items, tuple) or not items:
        return None
    by_column = {name.lower(): _read_bounds(bounds) for name, bounds in items}
    known = {name: bounds for name, bounds in by_column.items() if bounds is not None}
    return MappingProxyType(known) if len(known) == len(items) else None


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
    """Return a hint for bounds of one column that are not valid."""
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


SHARE = OptionType(
    "a number greater than 0 and less than 1",
    lambda v: FRACTION.read(v) or None,
    brief="number > 0, < 1",
)
EPSILON = number(0, above=True, most=1e6)
LABEL_EPSILON = number(1e-6, most=1e9)
MULTIPLIER = number(1e-9, most=1e9)
CLIP = number(1e-9, most=1e9)
BINS = integer(1, MAX_BINS)
THETA = number(1e-6, most=MAX_THETA)
RANGE = OptionType(
    "a list of the least and the largest value, such as [0, 100]",
    _read_range,
    _advise_range,
    brief="least and largest value: [0, 100]",
)
CLASSES = OptionType(
    "a list of different classes, such as ['no', 'yes']",
    lambda value: _read_texts(value, 2),
    _advise_classes,
    brief="list: ['no', 'yes']",
)
FEATURE_BOUNDS = OptionType(
    "bounds of columns: the least and the largest value, or all categories, such as "
    "{'age': [0, 120], 'sex': ['f', 'm']}",
    _read_feature_bounds,
    _advise_feature_bounds,
    brief="ranges or lists: {'age': [0, 120], 'sex': ['f', 'm']}",
)


PREDICTION_CLIP = 1.0
"""B of classes."""
DEVIATIONS = 4.0
"""B of numbers, in units of their deviation: a clipped prediction leaves a residual for ever, which
the parameters would grow by with every step."""
_OF_LABELS, _OF_FEATURES, _OF_GRADIENTS = Needs(LABELS), Needs(FEATURES), Needs(GRADIENTS)
_NOISED = Needs(("predictions",), ("gaussian",))
_DRAWN = Needs(
    ("predictions",), ("binomial",), hint="WITH (algorithm = 'pbm') draws what leaves a client"
)
_CHOSEN = Needs(
    ("predictions",), ("sketch",), hint="USING lasso chooses columns, by algorithm 'frank_wolfe'"
)
_BOUNDED = Needs(
    ("predictions",),
    ("sketch", "moments"),
    hint="of USING lasso, and of algorithm = 'moments'",
)
_SHARED = Needs(("predictions",), ("gaussian", "binomial", "sketch"))


def _statistics(setting: Setting) -> str:
    return AUTO if _OF_FEATURES.met(setting.values) else "none"


def _mechanism(setting: Setting) -> str:
    return RANDOMIZED if setting.kind in CLASSIFIERS else LAPLACE


def _predictions(setting: Setting) -> str:
    method = setting.method
    if method is None or not _OF_FEATURES.met(setting.values):
        return EXACT
    if method.solved:
        return "moments"
    return "binomial" if method.drawn else "sketch" if method.sketched else "gaussian"


def _prediction_clip(setting: Setting) -> float | None:
    classes = setting.kind in CLASSIFIERS
    return PREDICTION_CLIP if classes and _NOISED.met(setting.values) else None


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The PRIVACY clause, resolved.

    Labels and features have separate budgets: `label_epsilon` for the label of one row; `epsilon`
    and `delta` for the features of one row of one table position.
    """

    # fmt: off
    label_epsilon: float | None = option(LABEL_EPSILON, None,
        "ε of the label of one row; each label is noised once, by its owner",
        default_text="labels are sent in clear")
    label_mechanism: str = option(
        choice(*LABEL_MECHANISMS, instead={"randomised_response": f"it is written '{RANDOMIZED}'"}),
        RANDOMIZED,
        "how labels are noised; 'laplace' over classes has a smaller ε, which is reported",
        default_text=f"'{RANDOMIZED}'; for numbers '{LAPLACE}'", chosen=_mechanism,
        needs=_OF_LABELS)
    label_bounds: tuple[float, float] | None = option(RANGE, None,
        "public range of a numeric target: labels are clipped to it",
        default_text="needed for numbers", needs=_OF_LABELS)
    label_classes: tuple[str, ...] | None = option(CLASSES, None,
        "public list of all classes, as text and in the model's order; another label "
        "gives any of these, all alike",
        default_text="false and true for a BOOLEAN; else needed for classes", needs=_OF_LABELS)
    epsilon: float | None = option(EPSILON, None,
        "ε of the features of one row of a table; excludes noise_multiplier",
        default_text="features are not protected")
    noise_multiplier: float | None = option(MULTIPLIER, None,
        "z: noise of a sum of gradients has standard deviation z · clip; ε follows from it",
        default_text="from epsilon")
    """With protected gradients, exactly one of `epsilon` and `noise_multiplier` is given."""
    delta: float = option(SHARE, 1e-6,
        "δ of the features; must be less than 1 / the rows of each table", needs=_OF_FEATURES)
    clip: float | None = option(CLIP, None,
        "C: bound on the norm of a table row's gradient in each step, summed over its joined rows",
        default_text="the mean fan-out, times the standard deviation of numeric labels",
        needs=_OF_GRADIENTS)
    predictions: str = option(
        choice("exact", "gaussian", "binomial", "sketch", "moments",
               spellings={FORMER_EXACT: EXACT}), EXACT,
        "what clients send for predictions. 'gaussian': clipped and noised predictions of each row "
        "in every round; 'exact': predictions without noise, so that ε holds only against the "
        "model's users; 'binomial': draws, summed over all tables; 'sketch': noised choices and "
        "sketches of columns; 'moments': noised moments of their tables, and with rounds = 2 one "
        "table's noised fits",
        default_text="by algorithm: 'moments' (moments), 'gaussian' (sgd, admm), 'binomial' (pbm), "
        "'sketch' (frank_wolfe)",
        chosen=_predictions, needs=_OF_FEATURES)
    prediction_clip: float | None = option(CLIP, None,
        "B: bound on the norm of a row's prediction",
        default_text=f"{PREDICTION_CLIP:g}; for regressions {DEVIATIONS:g} standard deviations of "
        "the labels",
        chosen=_prediction_clip, needs=_NOISED)
    """None: DEVIATIONS times the standard deviation of numeric labels."""
    prediction_share: float = option(SHARE, 0.5,
        "share of the rounds' budget μ² for predictions (of 'sketch' for sketches); gradients "
        "(choices) take the rest", needs=_SHARED)
    bins: int | None = option(BINS, None,
        "b: coins in the draw that a client sends for each number of an embedding",
        default_text="from epsilon", needs=_DRAWN)
    theta: float | None = option(THETA, None,
        "θ: each coin for a number h from -1 to 1 is 1 with probability ½ + θ h. Without epsilon "
        "and noise_multiplier gradients stay exact",
        default_text="from epsilon", needs=_DRAWN)
    honest_parties: int | None = option(integer(1), None,
        "parties that keep their draws secret, the row's own included. All others may collude with "
        "the coordinator. With the number of all parties, ε holds against the coordinator alone",
        default_text="all but one other", needs=_DRAWN)
    mechanism: str = option(choice(GUMBEL, LAPLACE_MAX), GUMBEL,
        "noise on the scores when a column is chosen", needs=_CHOSEN)
    feature_bound: float | None = option(CLIP, None,
        "B: encoded numbers are clipped to [-B, B]",
        default_text="1 with statistics = 'bounds', which scale values to [-1, 1]; else 3",
        needs=_BOUNDED)
    label_bound: float | None = option(CLIP, None,
        "Y: bound of a label's distance from the mean; residuals are clipped to radius · B + Y",
        default_text="the largest such distance", needs=_CHOSEN)
    statistics: str = option(choice("none", "bounds", "noised"), "none",
        "source of features' scales and categories: public bounds, noised sums and counts, or "
        "('none') exact statistics, which are not protected",
        default_text="'bounds' if all features have bounds, 'noised' if only categories have "
        "none", chosen=_statistics, needs=_OF_FEATURES)
    """AUTO before the query's columns are known: see sqlfl.coordinator.privacy_planning."""
    statistics_share: float = option(SHARE, 0.1,
        "share of the whole budget for noised statistics",
        needs=Needs(("statistics",), ("noised",)))
    feature_bounds: Mapping[str, Bounds] = option(FEATURE_BOUNDS, MappingProxyType({}),
        "public bounds of features, by their names in the query: other values are clipped, other "
        "categories unknown", default_text="[0, 1] for a BOOLEAN",
        needs=_OF_FEATURES)
    """Names are folded to lower case."""
    max_fan_out: int | None = option(integer(1), None,
        "maximum joined rows of a table's row; others are dropped at random, and counted",
        default_text="no limit", needs=_OF_FEATURES)
    # fmt: on

    @property
    def prediction_bound(self) -> str:
        """B as text, or the quantity that it follows from."""
        if self.prediction_clip is None:
            return f"{DEVIATIONS:g} standard deviations of the labels"
        return f"{self.prediction_clip:.4g}"

    @property
    def labels(self) -> bool:
        """Labels are noised."""
        return self.label_epsilon is not None

    @property
    def label(self) -> LabelNoise | None:
        """The noise on labels; None without noise."""
        if self.label_epsilon is None:
            return None
        classes = () if self.label_bounds is not None else self.label_classes or ()
        return LabelNoise(self.label_mechanism, self.label_epsilon, self.label_bounds, classes)

    @property
    def features(self) -> bool:
        """True if noise protects anything computed from features: gradients or embeddings."""
        return self.gradients or self.bins is not None or self.theta is not None

    @property
    def gradients(self) -> bool:
        """Gradients are clipped and noised."""
        return self.epsilon is not None or self.noise_multiplier is not None

    @property
    def drawn(self) -> bool:
        """True if the coordinator receives predictions only as sums of draws."""
        return self.features and self.predictions == "binomial"

    @property
    def chosen(self) -> bool:
        """True if clients send no predictions, but chosen columns and sketches of them."""
        return self.features and self.predictions == "sketch"

    @property
    def solved(self) -> bool:
        """Return whether the model is solved from noised moments and fits."""
        return self.features and self.predictions == "moments"

    @property
    def together(self) -> bool:
        """True if predictions are noised or drawn, and with them everything computed from them."""
        return self.features and self.predictions != EXACT


_CALLED = {
    "beta": "theta",
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
"""Names of these options in other libraries."""


PRIVACY = OptionTable(
    "PRIVACY option",
    {entry.name: entry for entry in entries_of(Privacy)},
    {name: f"it is called {here} here" for name, here in _CALLED.items()},
)


def privacy_markdown() -> str:
    """The table as Markdown, for the documentation."""
    return markdown(
        ("PRIVACY option", "must be", "default", "applies with", "meaning"),
        (
            (entry.name, entry.type.cell, entry.usually, _with(entry.needs), entry.doc)
            for entry in PRIVACY.entries.values()
        ),
    )


def _with(needs: Needs | None) -> str:
    if needs is None:
        return "all"
    if needs.options == FEATURES:
        return "noised features"
    return f"`{needs.text}`" if needs.values else " or ".join(f"`{n}`" for n in needs.options)
