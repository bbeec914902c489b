"""Requests about a saved block for diagnostics of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, real, text, texts

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendEqualRows(Message):
    """Coordinator to client, before `Start`: a request for the classes of active rows with equal
    features.
    """

    kind = "send_equal_rows"


@dataclass(frozen=True, eq=False)
class EqualRows(Message):
    """Client to coordinator: the class of every active row; rows of one class are equal.

    From here on a class is one row with the total weight of its rows. Training's messages then
    cover classes, in the order of their numbers.
    """

    kind = "equal_rows"
    words = "which active rows have equal features"
    classes: Array = field(metadata=array("uint32", "told", below="told"))
    """Numbers from 0 by first occurrence. Empty if too few rows are equal; then each active row
    stays a row.
    """


@dataclass(frozen=True, eq=False)
class SendProfile(Message):
    """Coordinator to client: a request for a profile of the features of the active rows."""

    kind = "send_profile"
    words = "the least number of rows that is told of"
    least: int = field(metadata=integer(least=1))
    """Minimum number of rows behind each number that is disclosed."""


@dataclass(frozen=True, eq=False)
class SendExplained(SendProfile):
    """The same, and how well each feature alone explains the target."""

    kind = "send_explained"
    words = "targets, scaled and summed per row; the least number of rows that is told of"
    targets: Array = field(metadata=array("float32", "rows", "outputs"))
    """Sum of the targets over each active row's joined rows; a column for each class."""


@dataclass(frozen=True, eq=False)
class Profile(Message):
    """Client to coordinator: properties of each feature's values. NaN stands for a number that is
    not disclosed, or that the feature does not have.
    """

    kind = "profile"
    words = (
        "of each feature in how many rows it is NULL, how many values it has, its range and mean, "
        "and how much of the target it alone explains"
    )
    rows: float = field(metadata=real(least=0))
    """Joined rows of the client's rows."""
    missing: Array = field(metadata=array("float64", "features", least=0))
    """Joined rows where the feature is NULL."""
    distinct: Array = field(metadata=array("int64", "features", least=0))
    """Number of its different values; 0 for an array."""
    low: Array = field(metadata=array("float64", "features", finite=False))
    """Least value of numbers such that at least `least` rows have it or a smaller one."""
    high: Array = field(metadata=array("float64", "features", finite=False))
    mean: Array = field(metadata=array("float64", "features", finite=False))
    explained: Array = field(metadata=array("float64", "features", finite=False))
    """Between groups of rows that are alike in the feature: Σ n (mean of the target)²."""
    groups: Array = field(metadata=array("int64", "features", least=0))
    apart: float = field(metadata=real(least=0))
    """The same sum with all rows of the client as one group, against which each group was
    measured.
    """


NUMBER, MISSING, CATEGORY, NULL, HASHED, OTHER, PARTNERLESS = range(7)
"""Kinds of an encoded column: a number or a boolean; whether a feature is NULL; a category, the
category of NULL, a category of which only a keyed hash is known, and all those that are taken as
one; whether a LEFT JOIN found no partner."""


@dataclass(frozen=True, eq=False)
class SendBlock(Message):
    """Coordinator to client, outside a run: a request for the weights of a saved block."""

    kind = "send_block"
    words = "name of the block"
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    """Slot of the model."""


@dataclass(frozen=True, eq=False)
class Named(Message, travels=False):
    """Names and kinds of a block's encoded columns."""

    kinds: Array = field(metadata=array("uint8", "columns", below=7))
    """NUMBER and so on."""
    features: tuple[str, ...] = field(metadata=texts("columns"))
    """Feature of each column; for an element of an array with its number: 'a[1]'."""
    categories: tuple[str, ...] = field(metadata=texts("columns"))
    """Text of a category, or the first digits of its hash; empty for other columns."""


@dataclass(frozen=True, eq=False)
class SendSeparated(Message):
    """Coordinator to client, before the first step of training: a request for the columns whose
    rows are all of one class.
    """

    kind = "send_separated"
    words = (
        "whether joined rows of each row are of a class, and whether others are not, which the "
        "residuals of the first step tell as well"
    )
    classes: Array = field(metadata=array("uint8", "rows", "outputs", below=4))
    """NOT_OF_CLASS, OF_CLASS or both; for counts, whether they are above 0. 0 for a row of weight
    0.
    """
    counts: int = field(metadata=integer(most=1))
    """1 if classes are counts, which a threshold of a number does not separate."""


@dataclass(frozen=True, eq=False)
class Separated(Named):
    """Client to coordinator: the classes of the rows of each encoded column. Only columns whose
    rows are alike have names; the others' names are empty.
    """

    kind = "separated"
    words = "which columns have rows of one class only, and the names of these categories"
    states: Array = field(metadata=array("uint8", "columns", "outputs", below=4))
    """States, as in `SendSeparated`, of the rows of a category, or of the rows that lack a number.

    For a number, they are the states of the rows with one of its two values, or NOT_OF_CLASS if a
    threshold separates the rows, or both.
    """


NOT_OF_CLASS, OF_CLASS = 1, 2
"""Flags of a row or a column: some of its joined rows are not of a class, and some are."""


@dataclass(frozen=True, eq=False)
class Block(Named):
    """Client to coordinator: the block, whose encoded columns are (x − centre) / scale."""

    kind = "block"
    words = "weights of the block; names of its features and categories; means and scales"
    weights: Array = field(metadata=array("float64", "columns", "outputs"))
    centres: Array = field(metadata=array("float64", "columns"))
    """Centre; for a category, its share."""
    scales: Array = field(metadata=array("float64", "columns"))
    """Scale; 1 for categories."""


@dataclass(frozen=True, eq=False)
class SendRotated(Message):
    """Coordinator to client: a request for encoded columns of the active rows, in a basis that the
    client keeps secret.
    """

    kind = "send_rotated"
    words = "name of the block; base categories that the statement names"
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    compared: tuple[str, ...] = field(metadata=texts("compared"))
    """Features whose base category the statement names."""
    bases: tuple[str, ...] = field(metadata=texts("compared"))
    """Of each the category that its others are compared with."""


@dataclass(frozen=True, eq=False)
class Rotated(Message):
    """Client to coordinator: X̃ R of the active rows, with R a random orthogonal matrix."""

    kind = "rotated"
    words = "the features of each row, mixed by a secret rotation"
    values: Array = field(metadata=array("float64", "rows", "columns"))
    weights: Array = field(metadata=array("float64", "columns", "outputs"))
    """Rᵀ θ: values times these are the block's predictions."""
    origin: Array = field(metadata=array("float64", "columns"))
    """Rᵀ x̃ of the row whose numbers are 0 and whose categories are the base categories."""


@dataclass(frozen=True, eq=False)
class SendErrors(Message):
    """Coordinator to client: the covariance of the block's weights, and which of them the rows do
    not tell, in the basis of `Rotated`. Of several classes: of one class's weights less those of
    another."""

    kind = "send_errors"
    words = (
        "covariance of the block's weights, which of them the rows do not tell, and which have no "
        "finite estimate; base categories that the statement names; a class"
    )
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    output: int = field(metadata=integer())
    """Class of the weights; 0 where there is one output."""
    reference: int = field(metadata=integer(least=-1))
    """Class whose weights are subtracted; −1 where there is one output."""
    compared: tuple[str, ...] = field(metadata=texts("compared"))
    bases: tuple[str, ...] = field(metadata=texts("compared"))
    """As in `SendRotated`."""
    penalised: int = field(metadata=integer(most=1))
    """1 if a penalty decides directions that the rows do not; 0 if columns are left out for
    them."""
    covariance: Array = field(metadata=array("float64", "columns", "columns"))
    within: Array = field(metadata=array("float64", "columns", "columns"))
    """The projection on weights that move no score, without those of other tables."""
    between: Array = field(metadata=array("float64", "columns", "columns"))
    """That on weights that move no score together with those of earlier tables, beyond `within`."""
    later: Array = field(metadata=array("float64", "columns", "columns"))
    """That on weights that move no score together with those of later tables."""
    endless: Array = field(metadata=array("float64", "columns", "columns"))
    """Projection on those of its directions without a finite estimate: 0 unless rows are
    separated."""
    shift: Array = field(metadata=array("float64", "columns"))
    """Addition to the weights, for columns that later tables leave out."""
    partnerless: Array = field(metadata=array("float64", "columns"))
    """Weights of which rows without a partner have a score, and all others another that is less by
    1; 0 where there are none."""
    partner: Array = field(metadata=array("float64", "columns"))
    """The encoded row that stands for a partner that a LEFT JOIN did not find; 0 where there is
    none."""
    constants: Array = field(metadata=array("float64", "columns"))
    """A linear function of weights within `within` and `partnerless`: the change of the intercept
    if these are left out, with the other sign."""
    roots: Array = field(metadata=array("float64", 2, "columns", "directions"))
    """Roots of two quadratic forms of a function of the weights, here and of other tables: its
    variance, and its part along directions without a finite estimate. No directions where no column
    that is left out takes anything from the intercept.
    """
    starts: Array = field(metadata=array("float64", 2, "directions"))
    """Intercept in these directions, as the coordinator knows it; 0 at all tables but one."""


@dataclass(frozen=True, eq=False)
class Errors(Named):
    """Client to coordinator: coefficients in the features' own units, and their standard errors."""

    kind = "errors"
    words = (
        "names of features and categories; coefficients and their standard errors; what leaving "
        "columns out takes from the intercept, and its variance in a basis of the parties"
    )
    coefficients: Array = field(metadata=array("float64", "columns"))
    """Coefficient; for a category, its difference from the base category."""
    errors: Array = field(metadata=array("float64", "columns", least=0))
    """0 of that one, and where nothing tells the error: the residuals that it is made of are 0."""
    told: Array = field(metadata=array("uint8", "columns", most=2))
    """0 of a column that is left out, of one whose coefficient the rows do not determine, and of
    the category that others are compared with; PROVIDED if later tables must leave out the columns
    that the coordinator expects."""
    finite: Array = field(metadata=array("uint8", "columns", most=1))
    """0 if the coefficient has no finite estimate; 1 for the base category."""
    bases: Array = field(metadata=array("uint8", "columns", most=1))
    """1 of the category that others are compared with."""
    foreseen: int = field(metadata=integer(most=1))
    """1 if the columns that are left out for `between` are those that the coordinator expects: then
    earlier tables' coefficients hold."""
    moved: float = field(metadata=real())
    """Amount that the intercept loses as columns are left out."""
    turned: Array = field(metadata=array("float64", 2, "directions"))
    """`starts` less the roots of the amount that the intercept loses as columns are left out,
    turned by rotations that all parties know: lengths of sums over tables are right, and nothing
    else shows.
    """


TOLD, PROVIDED = 1, 2
"""Of a coefficient: it is told; it is, provided that later tables leave out what is foreseen."""


@dataclass(frozen=True, eq=False)
class ScorePermuted(Message):
    """Coordinator to client: a request for predictions with one feature's values permuted between
    rows.
    """

    kind = "score_permuted"
    words = "name of the block; the feature; a seed, or that there is none"
    exact: ClassVar[bool] = False
    """True if the reply is in 8-byte numbers."""
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    feature: int = field(metadata=integer())
    """Place of the feature among the block's."""
    repeat: int = field(metadata=integer())
    seed: int = field(metadata=integer(least=-1))
    """Seed, or -1: the client then draws a permutation at random and keeps it secret."""


@dataclass(frozen=True, eq=False)
class PermuteExactly(ScorePermuted):
    """The same in 8-byte numbers."""

    kind = "permute_exactly"
    exact = True


@dataclass(frozen=True, eq=False)
class SendContributions(Message):
    """Coordinator to client: a request for each feature's part of the active rows' scores."""

    kind = "send_contributions"
    words = "name of the block"
    exact: ClassVar[bool] = False
    """True if the reply is in 8-byte numbers."""
    model: str = field(metadata=text())
    block: int = field(metadata=integer())


@dataclass(frozen=True, eq=False)
class SendSkew(Message):
    """Coordinator to client: a request for the difference of its features from those that the block
    was trained on.
    """

    kind = "send_skew"
    words = "name of the block; how many rows a mean is of"
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    least: int = field(metadata=integer(least=1))


@dataclass(frozen=True, eq=False)
class Skew(Message):
    """Client to coordinator: each feature in training, and in the active rows, weighted by their
    joined rows. NaN if there is no such number, or if it covers fewer than `least` rows.
    """

    kind = "skew"
    words = (
        "of each feature the mean and share of NULL in training and now, how far apart these and "
        "the distributions are (distance, PSI, Jensen-Shannon), and the share of new categories"
    )
    trained_means: Array = field(metadata=array("float64", "features", finite=False))
    means: Array = field(metadata=array("float64", "features", finite=False))
    """Means of numbers and booleans that are not NULL."""
    trained_missing: Array = field(metadata=array("float64", "features", finite=False))
    missing: Array = field(metadata=array("float64", "features", finite=False))
    distances: Array = field(metadata=array("float64", "features", finite=False))
    """For numbers, |mean − trained mean| divided by the scale in training; for an array, the
    greatest of its elements. For categories, half the sum of |share − trained share|.
    """
    unseen: Array = field(metadata=array("float64", "features", finite=False))
    """The share of rows whose category training did not have."""
    indices: Array = field(metadata=array("float64", "features", finite=False))
    """Population stability: Σ (share − trained share) log(share/trained share), over bins of as
    many rows each in training, or over categories. Those of fewer than `least` rows are joined."""
    divergences: Array = field(metadata=array("float64", "features", finite=False))
    """Jensen and Shannon's divergence of the same shares, in bits."""


@dataclass(frozen=True, eq=False)
class Contributions(Message):
    """Client to coordinator: each feature's part of the score of each active row."""

    kind = "contributions"
    words = "for each row the part that each feature has in its score"
    values: Array = field(metadata=array("float32", "rows", "parts"))
    """Feature after feature, with a number for each output."""


@dataclass(frozen=True, eq=False)
class SendExactContributions(SendContributions):
    """The same in 8-byte numbers."""

    kind = "send_exact_contributions"
    exact = True


@dataclass(frozen=True, eq=False)
class ExactContributions(Contributions):
    """The same in 8-byte numbers."""

    kind = "exact_contributions"
    words = "for each row the part that each feature has in its score, in 8 bytes"
    values: Array = field(metadata=array("float64", "rows", "parts"))


# Effects of a model's features at values of theirs, outside a run.

AT_NUMBER, AT_CATEGORY, AT_NULL = range(3)
"""Kinds of places of an effect."""


@dataclass(frozen=True, eq=False)
class SendCurves(SendBlock):
    """Coordinator to client, outside a run: request for the effects of a saved block's features."""

    kind = "send_curves"
    words = "names of the block and of a feature, or of none for all"
    feature: str = field(default="", metadata=text())
    """Empty for all."""


@dataclass(frozen=True, eq=False)
class Curves(Message):
    """Client to coordinator: effects at means of cells of values, and how many rows they hold."""

    kind = "curves"
    words = "effects of features at values of theirs, their standard errors, and rows"
    features: tuple[str, ...] = field(metadata=texts("points"))
    values: tuple[str, ...] = field(metadata=texts("points"))
    """A number or a category; empty of NULL."""
    kinds: Array = field(metadata=array("uint8", "points", below=3))
    """AT_NUMBER and so on."""
    effects: Array = field(metadata=array("float64", "points", "outputs"))
    """Effects on the score."""
    errors: Array = field(metadata=array("float64", "points", "outputs", least=0))
    rows: Array = field(metadata=array("int64", "points", least=0))
    """Rows of the table."""
