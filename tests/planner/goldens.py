"""Golden files: input and expected output in plain SQL.

A case is `-- name`, a statement that ends in `;`, and the expected text in lines `--> ...`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.goldens import RENEWED

FIXTURES = Path(__file__).parent.parent / "fixtures" / "planner"
MARK = "-->"


@dataclass(frozen=True)
class Case:
    name: str
    sql: str
    expected: str


def read(path: Path) -> tuple[str, list[Case]]:
    """The file's heading and its cases."""
    heading, *chunks = path.read_text().split("\n-- ")
    cases = []
    for chunk in chunks:
        name, _, body = chunk.partition("\n")
        lines = body.rstrip("\n").split("\n")
        expected = [line[len(MARK) + 1 :] for line in lines if line.startswith(MARK)]
        sql = "\n".join(line for line in lines if not line.startswith(MARK)).strip("\n")
        cases.append(Case(name.strip(), sql, "\n".join(expected)))
    return heading, cases


def write(path: Path, heading: str, cases: list[Case]) -> None:
    parts = [heading.rstrip("\n") + "\n"]
    for case in cases:
        marked = "\n".join(f"{MARK} {line}".rstrip() for line in case.expected.split("\n"))
        parts.append(f"\n-- {case.name}\n{case.sql}\n{marked}\n")
    path.write_text("".join(parts))


def cases(name: str) -> list[Case]:
    return read(FIXTURES / name)[1]


def check(name: str, case: Case, produce: Callable[[str], str]) -> None:
    """Compare with the golden, or renew it where that is asked for."""
    found = "\n".join(line.rstrip() for line in produce(case.sql).split("\n"))
    if RENEWED:
        path = FIXTURES / name
        heading, known = read(path)
        changed = [replace(c, expected=found) if c.name == case.name else c for c in known]
        write(path, heading, changed)
        return
    assert found == case.expected
