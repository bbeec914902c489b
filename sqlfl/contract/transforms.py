"""TRANSFORM: its functions, their parameters, and the items of a clause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

NUMBER = "number"
CATEGORY = "category"
ANY = "any"

COLUMN = "column"
"""The function of an item that is a column's name and nothing else."""
AUTO = "auto"
"""The function that finds a curve for a number, and how far a category's weights are shrunken."""
CURVE, VALUES = "curve", "values"
"""Columns that `auto` makes of a number beside the number itself."""
PARTNER = "partner"
"""Column that `auto` makes of all columns of a table on the right of a LEFT JOIN."""
NO_PARTNER, WITH_PARTNER = "none", "some"
"""Its categories: no column of the row has a value, or some has."""
CURVE_COLUMNS = 8
"""Width of a curve."""
TIMES = " × "
"""Between the names of a pair's features, and of their cells."""
MAX_PAIRS = 200
"""Maximum number of pairs of features of a table."""
COARSE_SIDE, FINE_SIDE = 10, 33
"""Cells of one of a pair's features at most: of a number by 8 bins, or a category's 8, when pairs
are ranked, with those of NULL and of other categories; and of a number in a pair, with NULL's."""
CURVE_ROWS = 200
"""Joined rows: of fewer `auto` leaves straight lines, and no strengths are found."""
VALUE_SHARE = 0.01
"""Share of the rows that a value to which `auto` gives a weight of its own holds at least."""
MAX_VALUES = 64
"""Values of a number that have one, at most."""
STRATEGIES = ("median", "mean", "most_frequent")
"""Values that `impute` can find in the rows."""


@dataclass(frozen=True)
class Parameter:
    """Parameter of a function, after its columns."""

    name: str
    field: str
    """Field of `Transform`."""
    default: int | None = None
    """Default; None if it must be given."""
    least: int = 1
    most: int = 10_000
    optional: bool = False
    """True if it may be left out, which stands for no number."""


@dataclass(frozen=True)
class Function:
    of: str
    """NUMBER, CATEGORY (values with a text: numbers, booleans, texts) or ANY."""
    parameters: tuple[Parameter, ...] = ()
    least: int = 1
    """Minimum number of columns; `most` is the maximum."""
    most: int = 1
    array: bool = False
    """True if it takes an array of numbers too."""
    fitted: bool = False
    """True if its effect follows from the joined rows."""

    @property
    def grouped(self) -> bool:
        """Return True if several columns stand in parentheses, so that the parameters need no
        names.
        """
        return self.most > 1 and bool(self.parameters)


FUNCTIONS = MappingProxyType({
    COLUMN: Function(ANY, array=True),
    "standardize": Function(NUMBER, array=True),
    AUTO: Function(ANY, (Parameter("pairs", "count", most=MAX_PAIRS, optional=True),), array=True),
    "minmax": Function(NUMBER, fitted=True),
    "robust_scale": Function(NUMBER, fitted=True),
    "log1p": Function(NUMBER),
    "bucketize": Function(NUMBER, (Parameter("bounds", "bounds"),)),
    "quantile_bucketize": Function(
        NUMBER, (Parameter("buckets", "count", least=2, most=1000),), fitted=True
    ),
    "one_hot": Function(CATEGORY, (Parameter("max", "count", least=2, optional=True),)),
    "hash_bucket": Function(CATEGORY, (Parameter("buckets", "count", least=2, most=1_000_000),)),
    "impute": Function(ANY, (Parameter("value", "value"),)),
    "polynomial": Function(NUMBER, (Parameter("degree", "degree", most=10),), most=20),
    "cross": Function(CATEGORY, least=2, most=20),
    "spline": Function(
        NUMBER,
        (
            Parameter("knots", "count", 5, least=2, most=1000),
            Parameter("degree", "degree", 3, least=0, most=10),
        ),
        fitted=True,
    ),
})  # fmt: skip
WIDEST = 1000
"""Maximum number of columns that one `polynomial` may make."""


@dataclass(frozen=True)
class Transform:
    """Item of TRANSFORM."""

    function: str
    columns: tuple[str, ...]
    """Output columns of the query, as the query writes them; none of `auto` where it is of all
    columns that no other item has."""
    name: str
    """Name of the feature."""
    bounds: tuple[float, ...] = ()
    """Bounds of bucketize, ascending."""
    count: int = 0
    """Buckets, categories, knots, or pairs of features of a table; 0 for no limit, and no pairs."""
    degree: int = 0
    value: str | float | None = None
    """Setting of the function: one of STRATEGIES or a number for impute; CURVE, VALUES or PARTNER
    for auto, or None for the column itself."""

    @property
    def fitted(self) -> bool:
        """Return True if its effect follows from the joined rows, and is found at the party that
        has them.
        """
        if self.function == "one_hot":
            return self.count > 0
        if self.function in ("impute", AUTO):
            return isinstance(self.value, str) and self.value != PARTNER
        return FUNCTIONS[self.function].fitted

    @property
    def call(self) -> str:
        """Return the text without AS."""
        if self.function == COLUMN:
            return self.columns[0]
        function = FUNCTIONS[self.function]
        columns = ", ".join(self.columns)
        if not columns:
            return f"{self.function}(pairs => {self.count})" if self.count else self.function
        if function.grouped and len(self.columns) > 1:
            columns = f"({columns})"
        given = [(p.name, getattr(self, p.field)) for p in function.parameters]
        if len(given) == 1 and not function.parameters[0].optional:
            return f"{self.function}({columns}, {written(given[0][1])})"
        optional = {p.name for p in function.parameters if p.optional}
        named = [f"{name} => {value}" for name, value in given if value or name not in optional]
        return f"{self.function}({', '.join([columns, *named])})"

    @property
    def beside(self) -> tuple[Transform, ...]:
        """Columns that `auto` makes of a number beside itself, by names of their own."""
        return tuple(
            replace(self, name=f"{self.name} ({part})", count=0, value=part)
            for part in (CURVE, VALUES)
        )

    def __str__(self) -> str:
        if not self.columns:
            return self.call
        same = len(self.columns) == 1 and self.columns[0] == self.name
        return self.call if same else f"{self.call} AS {self.name}"


def written(value: object) -> str:
    """Return an argument as SQL has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Return the shortest text that reads as the same number."""
    return repr(value).removesuffix(".0")


TABLE, ROWS = "table", "rows"
"""For new rows of what the strengths of curves are found: of a table, or of the join."""
MAX_UPDATES = 10
"""Times that strengths of groups of columns are found anew in one training, and once more as often
where pairs of features are added."""


def updates(*, pairs: bool) -> int:
    """Return how often strengths are found anew at most; adding the pairs is one of these times."""
    return MAX_UPDATES * (2 if pairs else 1)
