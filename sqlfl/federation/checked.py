"""The result of CHECK: one table, printed in parts."""

from __future__ import annotations

import html

import pyarrow as pa

from sqlfl.base.result import Result, table_to_html
from sqlfl.coordinator.checking import parts_of
from sqlfl.plots.registry import Picture

TITLES = {
    "query": "The query",
    "database": "Differences between the databases of a party",
    "key": "Join keys, each by itself: rows that have a partner, and how many partners these have",
    "table": "Tables: rows that are in the join, and how often these are",
    "target": "The target",
    "feature": "Features, over the joined rows",
}
CLEAN = "nothing looks like a mistake"
PICTURE = Picture("check", "")


def checked(table: pa.Table) -> Result:
    """Return the rows of `sqlfl.coordinator.checking.check`, with its findings below them."""
    findings = [text for text in table.column("finding").to_pylist() if text] or [CLEAN]
    shown = [(TITLES[name], part) for name, part in parts_of(table)]

    def markup() -> str:
        parts = [f"<h4>{html.escape(title)}</h4>{table_to_html(part)}" for title, part in shown]
        items = "".join(f"<li>{html.escape(text)}</li>" for text in findings)
        return "".join([*parts, f"<h4>Findings</h4><ul>{items}</ul>"])

    text = [f"{title}\n{Result(part)!r}" for title, part in shown]
    listed = "\n".join(f"- {finding}" for finding in findings)
    return Result(table, text="\n".join([*text, "Findings", listed]), markup=markup, figure=PICTURE)
