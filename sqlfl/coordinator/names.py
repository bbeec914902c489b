"""Names of encoded columns in tables that show a model."""

from __future__ import annotations

from collections.abc import Sequence

from sqlfl.messages import CATEGORY, HASHED, MISSING, NULL, NUMBER, OTHER, PARTNERLESS, Named

KINDS = {
    NUMBER: "number",
    MISSING: "missing",
    CATEGORY: "category",
    NULL: "null",
    HASHED: "hash",
    OTHER: "other",
    PARTNERLESS: "no partner",
}


def kinds_of(named: Named) -> list[str]:
    """Return the kind of each column."""
    return [KINDS[kind] for kind in named.kinds.tolist()]


def categories_of(named: Named) -> list[str | None]:
    """The text of a category, a hash as '#1a2b3c4d', and in words what is NULL; None of numbers."""
    fixed = {
        **dict.fromkeys((NUMBER, PARTNERLESS)),
        MISSING: "is missing",
        NULL: "is NULL",
        OTHER: "is other",
    }
    return [
        fixed.get(kind, f"#{text}" if kind == HASHED else text)
        for kind, text in zip(named.kinds.tolist(), named.categories, strict=True)
    ]


def features_of(named: Named) -> list[str]:
    """The feature of each column."""
    return [
        KINDS[PARTNERLESS] if kind == PARTNERLESS else feature
        for kind, feature in zip(named.kinds.tolist(), named.features, strict=True)
    ]


def hashed_note(named: Sequence[Named]) -> str | None:
    """Return a note if some category has no text."""
    if not any((one.kinds == HASHED).any() for one in named):
        return None
    return (
        "Categories of tables of several clients are known by keyed hashes, of which the first "
        "digits are shown; INFERENCE OF MODEL names those that occur in its rows."
    )
