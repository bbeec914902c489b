"""What the site has beside the pages of `docs`: the README, the changelog, notebooks with their
outputs, and the public names. mkdocs calls it (mkdocs.yml); links of pages hold in both places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOP = {"README.md": "index.md"} | {
    name: name.lower() for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}
"""Pages at the repository's root, and what the site calls them."""
GENERATED = {page: ROOT / name for name, page in TOP.items()}
NOTEBOOKS = {f"examples/{path.stem}.md": path for path in sorted(ROOT.glob("examples/*.ipynb"))}
API = "api.md"
SOURCES = (".py",)
"""What is linked to and is no page: a link to it becomes its name."""

_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def rewritten(text: str, page: str) -> str:
    """The page's text with links as the site has its pages. `page`: its path there.

    >>> rewritten("[a](docs/lasso.md#x) [b](examples/01_quickstart.ipynb)", "index.md")
    '[a](lasso.md#x) [b](examples/01_quickstart.md)'
    >>> rewritten("[a](../README.md#x) [b](../examples/demo.py)", "models.md")
    '[a](index.md#x) `demo.py`'
    """
    at = Path(page).parent

    def moved(link: re.Match[str]) -> str:
        words, target, place = link[1], link[2], link[3] or ""
        target = target.removeprefix("../")
        target = TOP.get(target, target.removeprefix("docs/"))
        if target.endswith(SOURCES) or target == "LICENSE":
            return f"`{Path(target).name}`"
        target = re.sub(r"\.ipynb$", ".md", target)
        up = "../" * len(at.parts)
        return f"[{words}]({up}{target}{place})"

    return _LINK.sub(moved, text)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are no files of `docs`."""
    from mkdocs.structure.files import File

    for name, path in GENERATED.items():
        files.append(File.generated(config, name, content=path.read_text()))
    files.append(File.generated(config, API, content=_names()))
    for name, path in NOTEBOOKS.items():
        text, pictures = _run(path)
        files.append(File.generated(config, name, content=text))
        for picture, data in pictures.items():
            files.append(File.generated(config, f"examples/{picture}", content=data))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return rewritten(markdown, page.file.src_uri)


def _names() -> str:
    """A page of all that `sqlfl` shows."""
    import sqlfl

    entries = [f"::: sqlfl.{name}" for name in sqlfl.__all__ if not name.startswith("_")]
    entries += [
        f"::: sqlfl.integrations.sklearn.{name}"
        for name in ("FederatedClassifier", "FederatedRegressor")
    ]
    return "\n\n".join(["# Names in Python", *entries])


def _run(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, run from top to bottom, and its pictures."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    return text, dict(resources["outputs"])
