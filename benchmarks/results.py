"""Results in a file as they come, and tables put into a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Results:
    """The runs so far, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Mapping[str, Any]) -> None:
        self.found[name] = result
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.found, indent=1))
        fresh.replace(self._path)


def insert(page: Path, mark: str, text: str) -> None:
    """Put `text` between the page's lines `<!-- mark: begin -->` and `<!-- mark: end -->`.

    Raises ValueError where these are missing.
    """
    first, last = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {first} and {last}")
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown: the first column to the left, the others to the right."""
    lines = [heads, *rows]
    found = ["| " + " | ".join(cells) + " |" for cells in lines]
    return [found[0], "|---|" + "---:|" * (len(heads) - 1), *found[1:]]
