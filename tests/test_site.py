"""The site has every page, and its links lead to pages that it has."""

from __future__ import annotations

import doctest
import importlib.util
import posixpath
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT / "docs").as_posix(): path for path in ROOT.glob("docs/**/*.md")}


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/site/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_its_place(hooks: Any) -> None:
    listed = re.findall(r"- ([a-z0-9_/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) == {*PAGES, *hooks.GENERATED, *hooks.NOTEBOOKS, hooks.API}


def test_links_lead_to_pages_of_the_site(hooks: Any) -> None:
    sources = PAGES | hooks.GENERATED
    known = {*sources, *hooks.NOTEBOOKS, hooks.API, *(f"figures/{p.name}" for p in figures())}
    for name, path in sources.items():
        text = hooks.rewritten(path.read_text(), name)
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            at = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            assert at in known, f"{name} links to {target}"


def figures() -> list[Path]:
    return list(ROOT.glob("docs/figures/*.png"))


def test_links_are_moved_as_said(hooks: Any) -> None:
    assert doctest.testmod(hooks).failed == 0
    up = hooks.rewritten("[a](../README.md) [b](https://x.y/z.md) [c](#d)", "examples/one.md")
    assert up == "[a](../index.md) [b](https://x.y/z.md) [c](#d)"
