"""Names of what PREDICT returns beside its predictions."""

from __future__ import annotations

from sqlfl.planner.grammar.statements import Path
from sqlfl.planner.query.assemble import identifier_names


def names(*written: str) -> list[str]:
    return identifier_names([Path(tuple(text.split(".")), (0, 0)) for text in written])


def test_identifiers_have_their_own_name_where_it_is_free() -> None:
    assert names("shop.orders.id", "p.label") == ["id", "label"]


def test_identifiers_of_one_name_keep_their_path() -> None:
    assert names("a.Id", "shop.orders.id", "x.label") == ["a.Id", "shop.orders.id", "label"]


def test_identifiers_do_not_take_the_names_of_predictions() -> None:
    assert names("a.prediction", "b.probability_true") == ["a.prediction", "b.probability_true"]
