"""What the planner says that a message carries, against messages that carry it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl import messages as ms
from sqlfl.base.errors import InternalError
from sqlfl.messages import KINDS, Message, forms
from sqlfl.messages.checks import sizes_of
from sqlfl.planner.federated.sizes import NOTHING, Amount, Size, Symbol, content, total
from tests.depth import THOROUGH
from tests.samples import Draw

A = Symbol("a[f@airline/0]", "active")
D = Symbol("d_c", "outputs")
T = Symbol("T", "rounds")
VALUES = {"a[f@airline/0]": 7, "d_c": 3, "T": 5}


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    size = Size()
    for _ in range(draw(st.integers(0, 3))):
        product = Size(draw(st.integers(-4, 9)))
        for symbol in draw(st.lists(st.sampled_from([A, D, T]), max_size=3)):
            product = product * symbol
        size = size + product
    return size


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        (Size(), "0"),
        (Size(8), "8"),
        (Size(A) * D * 4, "4·a[f@airline/0]·d_c"),
        (8 + 4 * Size(A) * D, "4·a[f@airline/0]·d_c + 8"),
        (Size(T) + 1, "T + 1"),
        (Size(A) + -1 * Size(T), "a[f@airline/0] - T"),
        (Size(D) * D * 8 + Size(D), "8·d_c^2 + d_c"),
        (Size(A) + -1 * Size(A), "0"),
    ],
)
def test_prints_terms_by_degree_then_name(size: Size, printed: str) -> None:
    assert str(size) == printed


@given(sizes(), sizes())
def test_sums_and_products_commute_and_evaluate(first: Size, second: Size) -> None:
    assert first + second == second + first
    assert first * second == second * first
    assert str(first * second) == str(second * first)
    assert hash(first + second) == hash(second + first)
    one, two = first.evaluate(VALUES), second.evaluate(VALUES)
    assert (first + second).evaluate(VALUES) == one + two
    assert (first * second).evaluate(VALUES) == one * two


@given(sizes(), sizes(), sizes())
def test_products_distribute(first: Size, second: Size, third: Size) -> None:
    assert first * (second + third) == first * second + first * third


def test_compares_with_numbers_and_symbols() -> None:
    assert Size(3) == 3
    assert Size(A) == A
    assert Size(A) != D
    assert not Size(A) * 0
    assert total([1, A, Size(A)]) == Size(A) * 2 + 1


def test_symbols_are_listed_by_name() -> None:
    assert (Size(D) * A + T).symbols == (T, A, D)


def test_averages_may_be_fractions_where_the_result_is_whole() -> None:
    assert (Size(A) * T).evaluate({"a[f@airline/0]": Fraction(7, 5), "T": 5}) == 7
    with pytest.raises(InternalError, match="not a whole number"):
        Size(A).evaluate({"a[f@airline/0]": Fraction(1, 2)})


def test_a_symbol_without_a_value_is_named() -> None:
    with pytest.raises(InternalError, match=r"no value for d_c in T·d_c"):
        (Size(T) * D).evaluate({"T": 2})


ROWS = Size(Symbol("a", "active"))
OUTPUTS = Size(Symbol("d_c", "outputs"))


def told(message: Message) -> dict[str, Any]:
    """All sizes and texts of a message, as the planner tells them."""
    found: dict[str, Any] = dict.fromkeys(message.sizes(), ())
    for name, number in sizes_of(message).items():
        size, several, _ = name.partition("[")
        found[size] = (*found[size], Size(number)) if several else number
    for name, form in message.forms().items():
        value = getattr(message, name)
        if isinstance(form, (forms.Text, forms.Texts)):
            found[name] = value
        elif isinstance(form, forms.Columns):
            found[name] = sum(item.nbytes for item in value)
        elif isinstance(form, forms.Numbers) and form.optional and not value.size:
            found[name] = NOTHING
        elif isinstance(form, forms.Numbers) and len(form.types) > 1:
            found[name] = value.dtype.name
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_is_what_is_counted(kind: str) -> None:
    for seed in range(200 if THOROUGH else 10):
        message = Draw(seed).message(KINDS[kind])
        planned = content(KINDS[kind], **told(message))
        assert planned.kind == KINDS[kind].kind
        assert planned.amount.bytes == message.nbytes


def test_sizes_are_formulas() -> None:
    amount = content(ms.Predictions, rows=ROWS, outputs=OUTPUTS, products=1).amount
    assert amount == Amount(ROWS * OUTPUTS + 1, 4 * ROWS * OUTPUTS + 8)
    assert content(ms.SendLabels).amount == NOTHING
    assert content(ms.SendKeys, clients=3).amount == Amount(Size(3), Size(48))


def test_a_tag_is_one_value() -> None:
    found = content(ms.JoinKeys, fragment=NOTHING, keys=1, tags=(ROWS,), rows=5).amount
    assert found == Amount(ROWS + 5, 16 * ROWS + 20)


def test_words_are_those_of_the_kind_or_others() -> None:
    assert content(ms.Ready).words == ms.Ready.words
    assert content(ms.Ready, "number of encoded columns").words == "number of encoded columns"


PLACE: Any = {"names": (), "slots": 0, "written": 3, "classes": (), "type": ""}
WRONG: dict[str, tuple[type[Message], dict[str, Any], str]] = {
    "a size too few": (ms.Activate, {}, "is planned without its active"),
    "a size too many": (ms.Activate, {"active": ROWS, "rows": ROWS}, "has no rows"),
    "a text too few": (ms.Propose, {}, "is planned without its request"),
    "a text for texts": (ms.Columns, {"names": "a", "types": ()}, "several texts as names"),
    "a size in text": (ms.Activate, {"active": "5"}, "a size active, told is '5'"),
    "an item too few": (
        ms.JoinKeys, {"rows": 1, "keys": 2, "tags": (ROWS,)}, r"no tags\[k\] of item 1"),
    "another type": (
        ms.Write, {"table": ("a", "b", "c"), "prediction": "int8", **PLACE}, "told is int8"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_forms_do_not_say_is_not_planned(case: str) -> None:
    kind, sizes, text = WRONG[case]
    with pytest.raises(InternalError, match=f"message {kind.kind} .*{text}"):
        content(kind, **sizes)
