"""Version of the package (pyproject.toml has the same), and the check of sqlglot's build."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"


def refuse_compiled() -> None:
    """Raise ImportError if sqlglot's parser is compiled: no class in Python can inherit from it."""
    spec = find_spec("sqlglot")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for suffix in EXTENSION_SUFFIXES:
            parser = Path(folder, f"parser{suffix}")
            if parser.exists():
                raise ImportError(
                    f"sqlfl needs sqlglot's parser in Python, and a compiled one is installed: "
                    f"{parser}\nhint: pip uninstall sqlglotc"
                )
