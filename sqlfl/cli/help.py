"""HELP: the syntax of a statement, and the values of an option."""

from __future__ import annotations

import re

from sqlfl.base.errors import Error, nearest
from sqlfl.cli.reading import page
from sqlfl.models.kinds import KINDS
from sqlfl.options.entries import Entry
from sqlfl.options.resolve import privacy_options
from sqlfl.options.training import with_options
from sqlfl.options.tuning import TUNING

WORD = re.compile(r"\s*HELP\b\s*(?P<of>[^;]*?)\s*;?\s*", re.IGNORECASE)
"""HELP as a statement, which no coordinator is asked for."""
MORE = "sqlfl docs statements has examples; HELP epochs, or any other option, says what it must be"
_PAGES = {"TUNE": "tune", "CHECK": "check", "EXPORT": "export", "IMPORT": "export"}
"""Statements with a page of their own in the documentation."""
_OF_KINDS = ("TRAIN", "TUNE", "CHECK")


def help_on(text: str) -> str:
    """Return the forms that begin with this word, or the option of that name; without a word, all
    statements.

    Raise Error for an unknown word.

    >>> print(help_on("drop model"))
    DROP JOIN [IF EXISTS] name
    DROP STUDY [IF EXISTS] name
    DROP MODEL [IF EXISTS] name
    <BLANKLINE>
    sqlfl docs statements has examples; HELP epochs, or any other option, says what it must be
    """
    forms = _forms()
    words = text.split()
    if not words:
        return "\n".join([*(form.splitlines()[0] for form in forms), "", MORE])
    word = words[0].upper()
    matching = [form for form in forms if word in _leading(form)]
    entries = _options()
    if matching:
        more = MORE.replace("docs statements", f"docs {_PAGES.get(word, 'statements')}")
        kinds = [f"\nkinds: {', '.join(KINDS)}"] if word in _OF_KINDS else []
        return "\n".join([*matching, *kinds, "", more])
    if word.lower() in entries:
        return _option(entries[word.lower()])
    known = [*dict.fromkeys(w for form in forms for w in sorted(_leading(form))), *entries]
    close = nearest(words[0], known)
    raise Error(
        f"there is no statement and no option {words[0]:.40}",
        hint=f"did you mean {close}?" if close else "HELP alone lists the statements",
    )


def _forms() -> list[str]:
    """Return the statements' forms, from the list in the documentation."""
    block = page("statements").split("```sql\n", 1)[1].split("```", 1)[0]
    return [form.rstrip() for form in re.split(r"\n+(?=[A-Z\[])(?!FROM )", block) if form.strip()]


def _leading(form: str) -> set[str]:
    """The words that a form may begin with: 'METRICS' and 'CONFUSION' of `METRICS | CONFUSION OF`;
    of EXPLAIN that word alone."""
    first = re.match(r"(?:\[?[A-Z]+\]?(?: \| | (?=[A-Z]+ OF\b)|))+", form)
    words = re.findall("[A-Z]+", "" if first is None else first[0])
    return {"EXPLAIN"} if "EXPLAIN" in words else set(words)


def _options() -> dict[str, Entry]:
    return {**TUNING, **privacy_options().entries, **with_options().entries}


def _option(entry: Entry) -> str:
    return f"{entry.name}: {entry.type.text}\ndefault: {entry.usually}\n{entry.doc}"
