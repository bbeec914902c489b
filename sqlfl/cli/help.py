"""HELP: the syntax of a statement, the values of an option, and the options of an algorithm. Also
the documentation, the examples and the demo of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import click

import sqlfl
from sqlfl.base.errors import Error, nearest
from sqlfl.contract.methods import methods
from sqlfl.models.kinds import KINDS
from sqlfl.options.entries import Entry
from sqlfl.options.resolve import privacy_options
from sqlfl.options.training import option_lines, with_options
from sqlfl.options.tuning import TUNING

# -- pages and examples ----------------------------------------------------------------------------

HOME = Path(sqlfl.__file__).parent
README = "readme"
TARGET = "sqlfl-examples"
_LEFT = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


def pages() -> list[str]:
    """Return the names of all pages."""
    folder = HOME / "docs"
    paths = (path.relative_to(folder) for path in folder.glob("**/*.md"))
    return [README, *sorted(path.with_suffix("").as_posix() for path in paths)]


def page(name: str) -> str:
    """Return the text of one of `pages`, as Markdown."""
    if name == README:
        return str(metadata("sqlfl")["Description"])
    return (HOME / "docs" / f"{name}.md").read_text(encoding="utf-8")


def copy_examples(folder: Path) -> None:
    """Copy the examples and the docs that they refer to. Raise FileExistsError if the folder
    exists."""
    folder.mkdir(parents=True)
    for name in ("examples", "docs"):
        shutil.copytree(HOME / name, folder / name, ignore=_LEFT)
    (folder / "README.md").write_text(page(README), encoding="utf-8")


def search(text: str) -> Iterator[str]:
    """Yield page, heading and first line of each paragraph that has all words of the text."""
    words = text.lower().split()
    for name in pages():
        heading = ""
        for paragraph in page(name).split("\n\n"):
            if paragraph.startswith("#"):
                heading = paragraph.splitlines()[0].lstrip("# ")
            if all(word in paragraph.lower() for word in words):
                lines = paragraph.splitlines()
                first = next((line for line in lines if words[0] in line.lower()), lines[0])
                yield f"{name}: {heading}\n    {first.strip()}"


@click.command()
@click.argument("name", metavar="[PAGE]", required=False)
@click.option("--search", "words", help="Print where these words stand together in a paragraph.")
def docs(name: str | None, words: str | None) -> None:
    """Print a page of the documentation; without one, the names of all."""
    if words is not None:
        if name is not None or not words.strip():
            raise click.UsageError("--search takes words, and no page")
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        print("\n".join(search(words)) or f"no paragraph has {words!r}")
        return
    if name is None:
        print("\n".join(pages()))
        return
    name = name.lower().removesuffix(".md")
    if name not in pages():
        close = nearest(name, pages())
        suggestion = f"; did you mean {close}?" if close else f": there are {', '.join(pages())}"
        raise click.UsageError(f"there is no page {name}{suggestion}")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # formulas, on any screen
    print(page(name))


@click.command()
@click.argument("folder", default=TARGET)
def examples(folder: str) -> None:
    """Copy the examples, their data and the documentation into a folder."""
    try:
        copy_examples(Path(folder))
    except FileExistsError:
        raise click.UsageError(f"{folder} is there already: give another folder") from None
    print(
        f"{folder}/examples/01_quickstart.ipynb   pip install 'sqlfl[notebook]'; start here\n"
        f"{folder}/examples/demo.py               pip install 'sqlfl[demo]'\n"
        f"{folder}/README.md, {folder}/docs"
    )


@click.command()
@click.option("--keep", type=click.Path(path_type=Path), help="A folder to make, with all files.")
def demo(keep: Path | None) -> None:
    """Run four parties, a coordinator and an analyst as processes of this machine, over TLS.

    Every command that it runs is shown, as it would be typed at a site.
    """
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} is there already: give another folder")
    script = HOME / "examples" / "distributed" / "run.py"
    arguments = [] if keep is None else ["--keep", str(keep)]
    sys.exit(subprocess.call([sys.executable, str(script), *arguments]))


# -- HELP ------------------------------------------------------------------------------------------

WORD = re.compile(r"\s*HELP\b\s*(?P<of>[^;]*?)\s*;?\s*", re.IGNORECASE)
"""HELP as a statement, which no coordinator is asked for."""
MORE = (
    "sqlfl docs statements has examples; HELP epochs, or any other option, says what it must be; "
    "HELP admm, or any other algorithm, lists its options"
)
_PAGES = {"TUNE": "tune", "CHECK": "check", "EXPORT": "export", "IMPORT": "export"}
"""Statements with a page of their own in the documentation."""
_OF_KINDS = ("TRAIN", "TUNE", "CHECK")


def help_on(text: str) -> str:
    """Return the forms that begin with this word, or the option or algorithm of that name; without
    a word, all statements.

    Raise Error for an unknown word.

    >>> print(help_on("drop model"))
    DROP JOIN [IF EXISTS] name
    DROP STUDY [IF EXISTS] name
    DROP MODEL [IF EXISTS] name
    <BLANKLINE>
    sqlfl docs statements has examples; HELP epochs, ...
    """
    forms = _forms()
    words = text.split()
    if not words:
        return "\n".join([*(form.splitlines()[0] for form in forms), "", MORE])
    word = words[0].upper()
    matching = [form for form in forms if word in _leading(form)]
    entries = _options()
    if matching:
        footer = MORE.replace("docs statements", f"docs {_PAGES.get(word, 'statements')}")
        kinds = [f"\nkinds: {', '.join(KINDS)}"] if word in _OF_KINDS else []
        return "\n".join([*matching, *kinds, "", footer])
    if word.lower() in entries:
        return _option(entries[word.lower()])
    if word.lower() in methods():
        return _algorithm(word.lower())
    statements = dict.fromkeys(w for form in forms for w in sorted(_leading(form)))
    names = [*statements, *entries, *methods()]
    close = nearest(words[0], names)
    raise Error(
        f"there is no statement, option or algorithm {words[0]:.40}",
        hint=f"did you mean {close}?" if close else "HELP alone lists the statements",
    )


def _forms() -> list[str]:
    """Return the statements' forms, from the list in the documentation."""
    blocks = page("statements").split("```sql\n")[1:]
    block = next(b for b in blocks if b.startswith("TRAIN [OR REPLACE]")).split("```", 1)[0]
    return [form.rstrip() for form in re.split(r"\n+(?=[A-Z\[])(?!FROM )", block) if form.strip()]


def _leading(form: str) -> set[str]:
    """Return the words that a form may begin with: 'METRICS' and 'CONFUSION' for `METRICS |
    CONFUSION OF`; for EXPLAIN only that word."""
    first = re.match(r"(?:\[?[A-Z]+\]?(?: \| | (?=[A-Z]+ OF\b)|))+", form)
    words = re.findall("[A-Z]+", "" if first is None else first[0])
    return {"EXPLAIN"} if "EXPLAIN" in words else set(words)


def _options() -> dict[str, Entry]:
    return {**TUNING, **privacy_options().entries, **with_options().entries}


def _option(entry: Entry) -> str:
    return f"{entry.name}: {entry.type.text}\ndefault: {entry.usually}\n{entry.doc}"


def _algorithm(name: str) -> str:
    """Return the algorithm's own options in full, and the names of the others."""
    lines = option_lines().values()
    own_lines = [line for line in lines if line.methods is not None and name in line.methods]
    shared = [line.entry.name for line in lines if line.methods is None]
    return "\n".join(
        [
            f"WITH (algorithm = '{name}')",
            *(f"\n{_option(line.entry)}" for line in own_lines),
            f"\noptions of all algorithms: {', '.join(shared)}",
        ]
    )
