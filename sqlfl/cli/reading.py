"""The documentation, the examples and the demo that come with the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import click

import sqlfl
from sqlfl.base.errors import nearest

HOME = Path(sqlfl.__file__).parent
README = "readme"
TARGET = "sqlfl-examples"
_LEFT = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


def pages() -> list[str]:
    """The names of the pages that there are."""
    folder = HOME / "docs"
    paths = (path.relative_to(folder) for path in folder.glob("**/*.md"))
    return [README, *sorted(path.with_suffix("").as_posix() for path in paths)]


def page(name: str) -> str:
    """Return the text of one of `pages`, as Markdown."""
    if name == README:
        return str(metadata("sqlfl")["Description"])
    return (HOME / "docs" / f"{name}.md").read_text(encoding="utf-8")


def copy_examples(folder: Path) -> None:
    """Copy the examples and the docs that they refer to. Raise FileExistsError."""
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
                first = next((own for own in lines if words[0] in own.lower()), lines[0])
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
        meant = f"; did you mean {close}?" if close else f": there are {', '.join(pages())}"
        raise click.UsageError(f"there is no page {name}{meant}")
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
