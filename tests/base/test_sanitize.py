"""Text of a party as it is printed: nothing in it steers a terminal, or reads as something else."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.base.errors import ParseError
from sqlfl.base.sanitize import clipped, line, lines, shortened
from sqlfl.planner.explain.render import Document, Notes, Section, TextTable, to_html, to_text
from tests.conftest import Open
from tests.federations import federation

ODD = "\x1b[31mred\x1b[0m\r\n\t\x00\x9b2J\u202eevil\u2066\ufeff\U000e0041"
HARMFUL = set("\x1b\r\x00\x9b\u202e\u2066\ufeff\U000e0041")


def harmless(text: str) -> bool:
    return not HARMFUL & set(text)


def test_what_steers_is_shown() -> None:
    assert line("\x1b[31m\r\n\t\x7f") == "␛[31m␍␊␉␡"
    assert lines("a\nb\tc\r") == "a\nb\tc␍"
    assert line("a\u202eb\x9bc\u2028d\ud800") == "a\ufffdb\ufffdc\ufffdd\ufffd"
    assert line("a\u200bge\xad\u2060") == "a\ufffdge\ufffd\ufffd"
    assert harmless(line(ODD))
    assert harmless(lines(ODD))
    assert len(line(ODD)) == len(ODD)


@pytest.mark.parametrize("text", ["", "plain", "Größe, 名前, العربية, 🙂‍↔️", "a'b\"c\\"])
def test_what_is_only_text_stays(text: str) -> None:
    assert line(text) == lines(text) == text


def test_clipping() -> None:
    assert clipped("abc", 3) == "abc"
    assert clipped("abcd", 3) == "ab…"
    assert shortened("two words") == "two words"
    assert shortened(f"a {'b' * 301} c") == f"a {'b' * 299}… c"


def test_a_name_without_end_is_not_told_in_full() -> None:
    name = "x" * 70_000
    for error in (sqlfl.Error(name, hint=name), ParseError(f"expected a name, got {name}")):
        assert len(str(error)) < 700


def test_errors() -> None:
    for error in (
        sqlfl.PartyError("lab/0", ODD, hint=ODD),
        sqlfl.ModelError(ODD),
        ParseError(ODD, sql=f"SELECT {ODD}", span=(7, 8)),
    ):
        assert harmless(str(error))
        assert harmless(repr(error))
    assert "\n" not in ParseError("a\nb").message


def test_plans() -> None:
    section = Section(ODD, (TextTable(("name",), ((ODD,),)), Notes((ODD,))))
    document = Document(ODD, (section,))
    assert harmless(to_text(document))
    assert harmless(to_html(document))
    cells = [text for text in to_text(document).split("\n") if "red" in text.lower()]
    assert len(cells) == 4  # nothing of a name is on a line of its own


def test_names_categories_and_classes_of_a_party(database: Open) -> None:
    """In EXPLAIN, results, cards, errors and what notebooks show."""
    quoted = '"' + ODD.replace("\x00", "") + '"'
    con = database(
        f"CREATE TABLE {quoted} AS SELECT i AS {quoted}, 'c' || i % 2 || chr(27) || '[2J' AS c "
        "FROM range(9) r(i)"
    )
    query = f"FROM (SELECT {quoted}, c FROM home.{quoted})"
    with federation({"home": [con]}) as fed:
        train = f"TRAIN MODEL m USING logistic_regression TARGET c WITH (epochs = 1) {query}"
        plan = fed.explain(train)
        result = fed.sql(train)
        model = fed.model("m")
        scored = fed.sql(f"PREDICT MODEL m {query}")
        shown = [
            plan,
            plan.details,
            result,
            model,
            scored,
            fed.sql("DESCRIBE MODEL m"),
            model.privacy,
        ]
        shown += [fed.sql("SHOW MODELS"), fed.audit(), fed]
        for item in shown:
            assert harmless(repr(item)), type(item)
            assert harmless(str(item)), type(item)
            html = getattr(item, "_repr_html_", str)()
            assert harmless(html), type(item)
        assert "\x1b" in scored.arrow().column("prediction")[0].as_py()  # the value itself
        with pytest.raises(sqlfl.Error) as caught:
            fed.sql(train.replace("TARGET c", "TARGET d"))
        assert harmless(str(caught.value))
