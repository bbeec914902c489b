"""What the planner says that a message carries, against messages that carry it."""

from __future__ import annotations

from typing import Any

import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import InternalError
from sqlfl.messages import KINDS, Message, forms
from sqlfl.messages.checks import sizes_of
from sqlfl.planner.federated.amounts import NOTHING, Amount, content
from sqlfl.planner.federated.sizes import Size, Symbol
from tests.depth import THOROUGH
from tests.samples import Draw

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
