"""Page of a party's owner, at the agent, to read only: requests, studies, grants, budgets, and what
has left.

The page has no script, and all texts are escaped: names and purposes are in the analysts' words.
"""

from __future__ import annotations

import datetime as dt
import shlex
import threading
import time
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from string import Template
from typing import Any

from sqlfl.base import sanitize
from sqlfl.contract.request import WAITING
from sqlfl.governance.owner import Owner
from sqlfl.service.pages import LOOPBACK, Answer, PageServer, html_answer, read_template

MAX_DECIDED, MAX_RUNS = 20, 20
"""Requests that were decided, and runs, that are shown: the last ones."""
KEPT = 5.0
"""Seconds for which a page is sent again as it is: each new one counts rows of tables."""
Row = dict[str, Any]


class OwnerPage(PageServer):
    """Server of the page of `party`, on this machine alone; a context. `database` is the file by
    which `sqlfl owner` finds the agent. port 0: any that is free.
    """

    def __init__(self, port: int, owner: Owner, party: str, database: str) -> None:
        self._owner, self._party, self._database = owner, party, database
        self._lock = threading.Lock()
        self._kept: tuple[float, str] | None = None
        super().__init__(f"{LOOPBACK[0]}:{port}", {"/": self._answer}, "the owner's page")

    def __enter__(self) -> OwnerPage:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, _: str) -> Answer:
        with self._lock:
            if self._kept is None or time.monotonic() > self._kept[0] + KEPT:
                page = render(self._owner, self._party, self._database, dt.datetime.now(dt.UTC))
                self._kept = time.monotonic(), page
            return html_answer(self._kept[1])


def render(owner: Owner, party: str, database: str, now: dt.datetime) -> str:
    """Return the page. Numbers and sentences are those of the owner's SHOW statements."""
    requests = _rows(owner, "REQUESTS")
    waiting = [row for row in requests if row["state"] == WAITING]
    decided = [row for row in reversed(requests) if row["state"] != WAITING][:MAX_DECIDED]
    sections = (
        _section("Requests that wait", [_request(row, database) for row in waiting]),
        _studies(_rows(owner, "STUDIES")),
        _grants(_rows(owner, "GRANTS")),
        _budgets(_rows(owner, "BUDGETS")),
        _disclosures(_rows(owner, "DISCLOSURES")),
        _decided(decided),
    )
    wait = f"({len(waiting)}) " * bool(waiting)
    return Template(read_template("owner.html")).substitute(
        title=_text(f"{party}: the owner's page"),
        waiting=wait,
        now=_time(now),
        sections="\n".join(sections),
    )


def _rows(owner: Owner, what: str) -> list[Row]:
    rows: list[Row] = owner.sql(f"SHOW {what}").arrow().to_pylist()
    return rows


# -- sections --------------------------------------------------------------------------------------


def _request(row: Row, database: str) -> str:
    number = row["request"]
    approve = f'sqlfl owner {shlex.quote(database)} "APPROVE REQUEST {number}"'
    refuse = f"sqlfl owner {shlex.quote(database)} \"REFUSE REQUEST {number} BECAUSE '...'\""
    parts = [
        f"<h3>Request {number}: {_text(row['run'])}</h3>",
        f'<p class="faint">{_text(row["analyst"])}, asked {_time(row["asked"])}</p>',
        *(f"<p>{_text(line)}</p>" for line in row["summary"].splitlines()),
    ]
    if row["warnings"]:
        parts.append(_list(row["warnings"].splitlines(), "warnings"))
    parts += [f"<p><code>{_text(command)}</code></p>" for command in (approve, refuse)]
    return f"<article>{''.join(parts)}</article>"


def _studies(rows: Sequence[Row]) -> str:
    cells = [
        [row["request"], _Words(row["study"]), row["analyst"], _Words(row["purpose"]),
         _Words(row["tables"]), f"{row['runs_used']:,} of {row['runs']:,}", row["until"]]
        for row in rows
    ]  # fmt: skip
    columns = ("request", "study", "analyst", "purpose", "tables", "runs begun", "until")
    return _section("Studies that are approved", [_table(columns, cells)] if cells else [])


def _grants(rows: Sequence[Row]) -> str:
    cells = [
        [row["grant"], row["analyst"], row["table"], _Words(row["roles"] or "nothing any more"),
         row["policy"], row["until"] or "no end", _Words(row["models"])]
        for row in rows
    ]  # fmt: skip
    columns = ("grant", "analyst", "table", "roles", "policy", "until", "models kept")
    return _section("Grants", [_table(columns, cells)] if cells else [])


def _budgets(rows: Sequence[Row]) -> str:
    cells = [
        [row["analyst"] or "all together", row["table"], _number(row["spent"]),
         _number(row["epsilon"]) or "no limit", _number(row["remains"]), _number(row["delta"]),
         row["per"] or "for ever"]
        for row in rows
    ]  # fmt: skip
    columns = ("analyst", "table", "#ε spent", "#of", "#ε left", "#at δ", "per")
    return _section("Budgets", [_table(columns, cells)] if cells else [], "no policy has one")


def _disclosures(rows: Sequence[Row]) -> str:
    """Messages that left in the last runs, a row for each run."""
    runs = []
    key = itemgetter("analyst", "run")
    for (analyst, run), group in groupby(sorted(rows, key=key), key):
        lines = list(group)
        left = [f"{row['words'] or row['kind']} ({row['messages']:,})" for row in lines]
        runs.append((
            max(row["last_at"] for row in lines),
            [_time(min(row["first_at"] for row in lines)), analyst,
             _Words(lines[0]["what"] or ("not begun" if run else "planning")),
             _Html(_list(left)), f"{sum(row['messages'] for row in lines):,}",
             f"{sum(row['bytes'] for row in lines):,}"],
        ))  # fmt: skip
    runs.sort(key=itemgetter(0), reverse=True)
    columns = ("began", "analyst", "run", "what left, in how many messages", "#messages", "#bytes")
    shown = [cells for _, cells in runs[:MAX_RUNS]]
    return _section("What has left, in the last runs", [_table(columns, shown)] if shown else [])


def _decided(rows: Sequence[Row]) -> str:
    cells = [
        [row["request"], row["state"], row["analyst"], _Words(row["run"]), row["asked"],
         _Words(row["because"])]
        for row in rows
    ]  # fmt: skip
    columns = ("request", "state", "analyst", "run", "asked", "because")
    return _section("Requests that were decided", [_table(columns, cells)] if cells else [])


# -- HTML ------------------------------------------------------------------------------------------


class _Html(str):
    """Text that is HTML, and is not escaped again."""


class _Words(str):
    """Text that may be broken into several lines."""


def _section(title: str, parts: Iterable[str], none: str = "none") -> str:
    inner = "".join(parts) or f'<p class="faint">{none}</p>'
    return f"<section><h2>{title}</h2>{inner}</section>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table. Columns whose names begin with # have numbers."""
    numbers = [name.startswith("#") for name in columns]
    head = "".join(
        f'<th scope="col"{_NUMBER * is_number}>{_text(name.removeprefix("#"))}</th>'
        for name, is_number in zip(columns, numbers, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(map(_cell, row, numbers))}</tr>" for row in rows
    )  # fmt: skip
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scrolled">{table}</div>'


def _cell(value: object, is_number: bool) -> str:
    if isinstance(value, dt.datetime):
        return f"<td>{_time(value)}</td>"
    if isinstance(value, _Html):
        return f'<td class="words">{value}</td>'
    kind = ' class="words"' * isinstance(value, _Words)
    return f"<td{kind or _NUMBER * is_number}>{_text(value)}</td>"


_NUMBER = ' class="number"'


def _list(lines: Iterable[str], kind: str = "") -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if kind else f"<ul>{items}</ul>"


def _text(value: object) -> str:
    return escape(sanitize.line("" if value is None else str(value)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}".replace("inf", "∞")


def _time(value: dt.datetime) -> str:
    return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
