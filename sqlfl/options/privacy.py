"""The options of PRIVACY: one table of names, types, defaults, and what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlfl.contract.privacy_specification import LARGEST_BINS, LARGEST_THETA, Bounds, LabelNoise
from sqlfl.models.kinds import CLASSIFIERS
from sqlfl.options.entries import AUTO, Needs, OptionTable, Setting, entries_of, markdown, option
from sqlfl.options.types import FRACTION, OptionType, choice, integer, number, shown

LABEL_MECHANISMS = ("randomized_response", "laplace")
LARGEST_BOUND = 1e30
"""Of a range: beyond it, squares of values might not be numbers."""
LABELS = ("label_epsilon",)
GRADIENTS = ("epsilon", "noise_multiplier")
DRAWS = ("bins", "theta")
FEATURES = (*GRADIENTS, *DRAWS)
"""Options that ask for noise of these."""
RANDOMIZED, LAPLACE = LABEL_MECHANISMS
EXACT, FORMER_EXACT = "exact", "none"
"""Predictions that nothing noises, and an older spelling of it, which is deprecated."""
GUMBEL, LAPLACE_MAX = "gumbel", "laplace"
"""Noise of scores, of which the largest is told."""


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST_BOUND


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
    if ends is not None:
        return ends
    texts = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return _read_texts(value, 1) if texts else None


def _read_feature_bounds(value: object) -> Mapping[str, Bounds] | None:
    items = getattr(value, "items", None)
    if not isinstance(items, tuple) or not items:
        return None
    found = {name.lower(): _read_bounds(bounds) for name, bounds in items}
    known = {name: bounds for name, bounds in found.items() if bounds is not None}
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


SHARE = OptionType("a number greater than 0 and less than 1", lambda v: FRACTION.read(v) or None)
EPSILON = number(0, above=True, most=1e6)
LABEL_EPSILON = number(1e-6, most=1e9)
MULTIPLIER = number(1e-9, most=1e9)
CLIP = number(1e-9, most=1e9)
BINS = integer(1, LARGEST_BINS)
THETA = number(1e-6, most=LARGEST_THETA)
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
    own = setting.method
    if own is None or not _OF_FEATURES.met(setting.values):
        return EXACT
    if own.solved:
        return "moments"
    return "binomial" if own.drawn else "sketch" if own.sketched else "gaussian"


def _prediction_clip(setting: Setting) -> float | None:
    classes = setting.kind in CLASSIFIERS
    return PREDICTION_CLIP if classes and _NOISED.met(setting.values) else None


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The PRIVACY clause, resolved.

    Labels and features are protected apart: `label_epsilon` for the label of one row, `epsilon` and
    `delta` for the features of one row of one table position.
    """

    # fmt: off
    label_epsilon: float | None = option(LABEL_EPSILON, None,
        "ε of the label of one row; each label is noised once, by its owner",
        default_text="labels are sent in clear")
    label_mechanism: str = option(
        choice(*LABEL_MECHANISMS, instead={"randomised_response": f"it is written '{RANDOMIZED}'"}),
        RANDOMIZED,
        "how labels are noised; 'laplace' over classes has a smaller ε than label_epsilon, which "
        "is reported", default_text=f"'{RANDOMIZED}'; of numbers '{LAPLACE}'", chosen=_mechanism,
        needs=_OF_LABELS)
    label_bounds: tuple[float, float] | None = option(RANGE, None,
        "of a target that is a number: labels are clipped to them; they are public",
        default_text="needed for numbers", needs=_OF_LABELS)
    label_classes: tuple[str, ...] | None = option(CLASSES, None,
        "all classes that labels may have, as text and in the order that the model has them in; "
        "they are public, and a label that is none of them ends the run",
        default_text="false and true, of a BOOLEAN; else needed for classes", needs=_OF_LABELS)
    epsilon: float | None = option(EPSILON, None,
        "ε of the features of one row of a table; excludes noise_multiplier",
        default_text="features are not protected")
    noise_multiplier: float | None = option(MULTIPLIER, None,
        "z: the noise of a sum of gradients has the standard deviation z · clip; ε follows",
        default_text="from epsilon")
    """Exactly one of these two is given, or none where features are not protected."""
    delta: float = option(SHARE, 1e-6,
        "δ of the features; must be less than 1 / the rows of each table", needs=_OF_FEATURES)
    clip: float | None = option(CLIP, None,
        "C: what the norm of a table row's gradient of a step is clipped to, as it stands in the "
        "sum over joined rows",
        default_text="the mean number of joined rows per row of the table, times the "
        "standard deviation of labels that are numbers", needs=_OF_GRADIENTS)
    predictions: str = option(
        choice("exact", "gaussian", "binomial", "sketch", "moments",
               spellings={FORMER_EXACT: EXACT}), EXACT,
        "'gaussian': each row's predictions are clipped and noised in every round, so that ε holds "
        "against the coordinator and the other parties; 'exact': nothing noises them, and ε holds "
        "for the parameters alone, against the model's users ('none', as it was called, is "
        "deprecated); 'binomial', of algorithm 'pbm': each joined row's are drawn, and "
        "the coordinator sees sums of all table positions' draws; 'sketch', of algorithm "
        "'frank_wolfe': none are told, choices of columns and sketches of these are noised; "
        "'moments', of algorithm 'moments': each table's moments are noised once, and with "
        "rounds = 2 one table's fits; nothing else is told of rows",
        default_text="'moments' of algorithm 'moments'; 'gaussian' of 'sgd' and 'admm'; 'binomial' "
        "of 'pbm'; 'sketch' of 'frank_wolfe'",
        chosen=_predictions, needs=_OF_FEATURES)
    prediction_clip: float | None = option(CLIP, None,
        "B: what the norm of a row's prediction is clipped to",
        default_text=f"{PREDICTION_CLIP:g}; of regressions {DEVIATIONS:g} standard deviations of "
        "the labels",
        chosen=_prediction_clip, needs=_NOISED)
    """None: DEVIATIONS, times the deviation of labels that are numbers."""
    prediction_share: float = option(SHARE, 0.5,
        "share of the budget of the rounds that predictions take (of the sum of squares of "
        "sensitivity over noise); of draws, what gradients leave of it; of 'sketch' what sketches "
        "take, and choices have the rest", needs=_SHARED)
    bins: int | None = option(BINS, None,
        "b: coins of the draw that a number of an embedding leaves a client as",
        default_text="from epsilon", needs=_DRAWN)
    theta: float | None = option(THETA, None,
        "θ: the coins of an embedding's number h, from -1 to 1, fall with probability ½ + θ h; "
        "bins and theta without epsilon and noise_multiplier leave gradients exact",
        default_text="from epsilon", needs=_DRAWN)
    honest_parties: int | None = option(integer(1), None,
        "parties that tell nobody their draws, the row's own among them: all others may collude "
        "with the coordinator, and the party that it is at does. Where it is the number of "
        "parties, ε is against the coordinator alone",
        default_text="all but one other", needs=_DRAWN)
    mechanism: str = option(choice(GUMBEL, LAPLACE_MAX), GUMBEL,
        "by what noise in the scores a column is chosen", needs=_CHOSEN)
    feature_bound: float | None = option(CLIP, None,
        "B: what the encoded values of numbers are clipped to, from -B to B",
        default_text="1 with statistics = 'bounds', where they lie in [-1, 1]; else 3",
        needs=_BOUNDED)
    label_bound: float | None = option(CLIP, None,
        "Y: how far a label is taken to be from their mean, at most: residuals are clipped to "
        "radius · B + Y", default_text="the largest distance that there is", needs=_CHOSEN)
    statistics: str = option(choice("none", "bounds", "noised"), "none",
        "how features are scaled, and which categories there are: by public bounds, by noised "
        "sums and counts, or by exact ones, which nothing protects",
        default_text="'bounds' where all features have bounds, 'noised' where only categories "
        "have none", chosen=_statistics, needs=_OF_FEATURES)
    """AUTO before the query's columns are known: see sqlfl.coordinator.privacy_planning."""
    statistics_share: float = option(SHARE, 0.1,
        "share of the whole budget that noised statistics take",
        needs=Needs(("statistics",), ("noised",)))
    feature_bounds: Mapping[str, Bounds] = option(FEATURE_BOUNDS, MappingProxyType({}),
        "public bounds of features by their names in the query: values beyond are clipped, "
        "categories that are not listed count as unknown", default_text="[0, 1] of a BOOLEAN",
        needs=_OF_FEATURES)
    """Names are folded to lower case."""
    max_fan_out: int | None = option(integer(1), None,
        "joined rows that a table's row may occur in; rows beyond are dropped at random, and "
        "counted", default_text="no limit", needs=_OF_FEATURES)
    # fmt: on

    @property
    def prediction_bound(self) -> str:
        """B as text; where it follows from the labels, by what."""
        if self.prediction_clip is None:
            return f"{DEVIATIONS:g} standard deviations of the labels"
        return f"{self.prediction_clip:.4g}"

    @property
    def labels(self) -> bool:
        """Labels are noised."""
        return self.label_epsilon is not None

    @property
    def label(self) -> LabelNoise | None:
        """How labels are noised; None where they are not."""
        if self.label_epsilon is None:
            return None
        classes = () if self.label_bounds is not None else self.label_classes or ()
        return LabelNoise(self.label_mechanism, self.label_epsilon, self.label_bounds, classes)

    @property
    def features(self) -> bool:
        """Something that is made of features is noised: gradients, or embeddings."""
        return self.gradients or self.bins is not None or self.theta is not None

    @property
    def gradients(self) -> bool:
        """Gradients are clipped and noised."""
        return self.epsilon is not None or self.noise_multiplier is not None

    @property
    def drawn(self) -> bool:
        """Of predictions only sums of draws are seen."""
        return self.features and self.predictions == "binomial"

    @property
    def chosen(self) -> bool:
        """Of predictions there are none: columns are chosen, and sketches of them told."""
        return self.features and self.predictions == "sketch"

    @property
    def solved(self) -> bool:
        """Return whether the model is solved from noised moments, without any prediction."""
        return self.features and self.predictions == "moments"

    @property
    def together(self) -> bool:
        """Predictions are noised, or drawn, and so all that is calculated from them."""
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
"""What other libraries call some of them."""


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
            (entry.name, entry.type.text, entry.usually, _with(entry.needs), entry.doc)
            for entry in PRIVACY.entries.values()
        ),
    )


def _with(needs: Needs | None) -> str:
    if needs is None:
        return "all"
    return f"`{needs.text}`" if needs.values else " or ".join(f"`{n}`" for n in needs.options)
