"""`python -m sqlfl`, or `sqlfl`: the documentation and the examples that come with the package, the
statements of a database's owner, and whether what it has kept of messages is as it was.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import metadata
from pathlib import Path

import sqlfl
from sqlfl.errors import nearest

HOME = Path(sqlfl.__file__).parent
README = "readme"
TARGET = "sqlfl-examples"
_LEFT = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process with status 2, and says why, where the arguments do not do."""
    parser = argparse.ArgumentParser("python -m sqlfl", description=f"sqlfl {sqlfl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    docs = commands.add_parser("docs", help="print a page of the documentation")
    docs.add_argument("page", nargs="?", help=f"one of {', '.join(pages())}; without it, all")
    docs.set_defaults(run=lambda given: _print(parser, given.page))
    examples = commands.add_parser(
        "examples", help="copy the examples, their data and the documentation into a folder"
    )
    examples.add_argument("folder", nargs="?", default=TARGET, help=f"by default {TARGET}")
    examples.set_defaults(run=lambda given: _copy(parser, Path(given.folder)))
    owner = commands.add_parser("owner", help="run statements of the owner of a database")
    owner.add_argument("database", help="its file")
    owner.add_argument("statement", nargs="*", help="without any, they come from standard input")
    owner.add_argument("--store", help="the file that keeps its policies, where not itself")
    owner.set_defaults(run=lambda given: _owner(given.database, given.store, given.statement))
    verify = commands.add_parser(
        "verify", help="look whether what a party has kept of messages hangs together"
    )
    verify.add_argument("party", help="its database file")
    verify.add_argument("coordinator", nargs="?", help="the coordinator's file, to compare with")
    verify.set_defaults(run=lambda given: _verify(given.party, given.coordinator))
    given, rest = parser.parse_known_args(arguments)
    if any(text.startswith("-") for text in rest) or (rest and not hasattr(given, "statement")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # statements that come after an option
        given.statement = [*given.statement, *rest]
    if not hasattr(given, "run"):
        parser.print_help()
        return
    given.run(given)


def pages() -> list[str]:
    """The names of the pages that there are."""
    return [README, *sorted(path.stem for path in (HOME / "docs").glob("*.md"))]


def page(name: str) -> str:
    """The text of one of `pages`, as Markdown."""
    if name == README:
        return str(metadata("sqlfl")["Description"])
    return (HOME / "docs" / f"{name}.md").read_text(encoding="utf-8")


def copy_examples(folder: Path) -> None:
    """The examples, with what they name by its place. Raises FileExistsError."""
    folder.mkdir(parents=True)
    for name in ("examples", "docs"):
        shutil.copytree(HOME / name, folder / name, ignore=_LEFT)
    (folder / "README.md").write_text(page(README), encoding="utf-8")


def _print(parser: argparse.ArgumentParser, name: str | None) -> None:
    if name is None:
        print("\n".join(pages()))
        return
    name = name.lower().removesuffix(".md")
    if name not in pages():
        close = nearest(name, pages())
        meant = f"; did you mean {close}?" if close else f": there are {', '.join(pages())}"
        parser.error(f"there is no page {name}{meant}")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # formulas, on any screen
    print(page(name))


def _owner(database: str, store: str | None, statements: Sequence[str]) -> None:
    """Ends the process with status 1 at the first statement that fails."""
    try:
        with sqlfl.owner(database, store) as owner:
            for text in statements or [sys.stdin.read()]:
                print(owner.sql(text))
    except sqlfl.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _verify(party: str, coordinator: str | None) -> None:
    """Ends the process with status 1 where something is wrong."""
    try:
        found = sqlfl.verify(party, coordinator)
    except sqlfl.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
    if found.fetchall():
        print(found)
        sys.exit(1)
    print("nothing was changed, dropped, added or reordered")


def _copy(parser: argparse.ArgumentParser, folder: Path) -> None:
    try:
        copy_examples(folder)
    except FileExistsError:
        parser.error(f"{folder} is there already: give another folder")
    print(
        f"{folder}/examples/01_quickstart.ipynb   pip install 'sqlfl[notebook]'; start here\n"
        f"{folder}/examples/demo.py               pip install 'sqlfl[demo]'\n"
        f"{folder}/README.md, {folder}/docs"
    )


if __name__ == "__main__":
    main()
