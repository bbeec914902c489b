"""The owner's page: what it shows, to whom, and that it is text and changes nothing."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.governance.owner import Owner
from sqlfl.governance.records import Records
from sqlfl.service import owner_page
from sqlfl.service.owner_page import OwnerPage, render
from sqlfl.service.settings import PartySettings, read_settings
from tests.governance.clinic import GRANT, PATIENTS, TESTS, TRAIN, ruled
from tests.open_databases import in_memory
from tests.service.test_notifications import STUDY, asks
from tests.service.test_pages import Read, ask, raw, shown

NOW = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
HOSTILE = """"<img src=x onerror='alert(1)'>"</td>&amp;\N{RIGHT-TO-LEFT OVERRIDE}$title\x1b["""


@pytest.fixture
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(PATIENTS)
        yield con


@pytest.fixture
def owner(clinic: duckdb.DuckDBPyConnection) -> Owner:
    """A run is over, a study is approved, and a run and a study wait."""
    ruled(clinic, "approval = 'first_time'")
    own = Owner(clinic)
    with in_memory() as lab, sqlfl.connect(analyst="acme", progress=False) as fed:
        lab.execute(TESTS)
        fed.attach("clinic", clinic)
        fed.attach("lab", lab)
        asks(fed)
        own.sql("APPROVE REQUEST 1")
        fed.sql(TRAIN)
        asks(fed, STUDY)
        own.sql("APPROVE REQUEST 2")
        asks(fed, STUDY.replace("STUDY stay", "STUDY longer"))
        asks(fed, TRAIN.replace("p.ward, ", ""))
        asks(fed, TRAIN.replace("p.bmi, ", ""))
        own.sql("REFUSE REQUEST 5 BECAUSE 'no <b>bmi</b>'")
    return own


@pytest.fixture
def page(owner: Owner) -> Iterator[OwnerPage]:
    with OwnerPage(0, owner, "clinic", "my data/clinic.duckdb") as found:
        yield found


class Words(HTMLParser):
    """Text of a page, by its sections."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self._tag, self._title = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        if self._title:
            self.sections[self._title] += " "

    def handle_data(self, data: str) -> None:
        if self._tag == "h2":
            self._title, self._tag = data, ""
            self.sections[data] = ""
        elif self._title:
            self.sections[self._title] += data


def test_it_shows_what_the_owner_decides_about(page: OwnerPage, owner: Owner) -> None:
    reply, text = ask(page.port, "/")
    assert (reply.status, reply.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    told = Words(text).sections
    rows = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert [row["state"] for row in rows] == [
        "approved", "approved", "waiting", "waiting", "refused",
    ]  # fmt: skip
    waits = told["Requests that wait"]
    for row in rows[2:4]:
        for line in (*row["summary"].splitlines(), *row["warnings"].splitlines()):
            assert line in waits
        approve = f'"APPROVE REQUEST {row["request"]}"'
        assert f"sqlfl owner 'my data/clinic.duckdb' {approve}" in waits
    assert "Request 1:" not in waits
    assert "refused" in told["Requests that were decided"]
    assert "no <b>bmi</b>" in told["Requests that were decided"]
    assert "stay" in told["Studies that are approved"]
    assert "0 of 4" in told["Studies that are approved"]
    assert "TRAIN (age, bmi, ward)" in told["Grants"]
    left = told["What has left, in the last runs"]
    assert "train linear_regression" in left
    assert "keyed hash" in left
    assert "<title>(2) clinic: the owner&#x27;s page</title>" in text


def test_budgets_are_shown(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "epsilon = 4, epsilon_total = 6, per = '30 days'", GRANT.replace(", ill", ""))
    budgets = Words(render(Owner(clinic), "clinic", "c.duckdb", NOW)).sections["Budgets"].split()
    assert " ".join(budgets).endswith(
        "per acme memory.main.patients 0 4 4 1e-06 30 days "
        "all together memory.main.patients 0 6 6 1e-06 30 days"
    )


def test_an_owner_without_anything_has_a_page(clinic: duckdb.DuckDBPyConnection) -> None:
    told = Words(render(Owner(clinic), "clinic", "c.duckdb", NOW)).sections
    assert {text.strip() for text in told.values()} == {"none", "no policy has one"}


def test_hostile_names_are_text(monkeypatch: pytest.MonkeyPatch, owner: Owner) -> None:
    """Each cell that has text gets such a name."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for what in ("REQUESTS", "STUDIES", "GRANTS", "BUDGETS", "DISCLOSURES"):
        found = owner.sql(f"SHOW {what}")
        schema = found.arrow().schema
        for row in found.arrow().to_pylist():
            rows.setdefault(what, []).append(row)
        rows.setdefault(what, []).append(
            {f.name: {"string": HOSTILE, "int64": 7, "double": 0.5}.get(str(f.type), NOW)
             for f in schema}
        )  # fmt: skip
    rows["REQUESTS"].append({**rows["REQUESTS"][-1], "state": "waiting"})
    monkeypatch.setattr(owner_page, "_rows", lambda _, what: rows[what])
    text = render(owner, HOSTILE, HOSTILE, NOW)
    read = Read()
    read.feed(text)
    assert not {"img", "b", "script"} & set(read.tags)
    assert read.attributes <= {
        "lang", "charset", "name", "content", "http-equiv", "class", "scope",
    }  # fmt: skip
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "\x1b" not in text
    cells = Words(text).sections
    assert all("<img src=x onerror='alert(1)'>" in told for told in cells.values())
    assert all("$title" in told for told in cells.values())


def test_it_runs_no_script_and_fetches_nothing(page: OwnerPage) -> None:
    reply, text = ask(page.port, "/")
    policy = str(reply.getheader("Content-Security-Policy"))
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-\S+'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'", policy,
    )  # fmt: skip
    read = Read()
    read.feed(text)
    assert not {"script", "link", "form", "a", "img", "iframe"} & set(read.tags)
    assert not {"src", "href", "style", "action"} & read.attributes
    told = dict(reply.getheaders())
    assert "Set-Cookie" not in told
    assert told["Cache-Control"] == "no-store"
    assert told["Cross-Origin-Resource-Policy"] == "same-origin"


def test_other_names_methods_and_paths_are_refused(page: OwnerPage) -> None:
    """A page of another site cannot have it read under a name of its own."""
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1.evil.example", ""):
        assert ask(page.port, "/", Host=host)[0].status == 421, host
    assert ask(page.port, "/", Host=f"localhost:{page.port}")[0].status == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(page.port, "/", method)[0].status == 405
    for path in ("/status.json", "/metrics", "/owner.html", "/?x", "/../owner.html"):
        assert ask(page.port, path)[0].status == 404, path
    assert raw(page.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.0 421 ")


def test_it_changes_nothing(page: OwnerPage, owner: Owner) -> None:
    before = Records.changes
    for _ in range(3):
        ask(page.port, "/")
    assert Records.changes == before


def test_it_is_made_anew_once_a_while(
    page: OwnerPage, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(page.port, "/")[1]
    owner.sql("APPROVE REQUEST 3")
    assert ask(page.port, "/")[1] == first
    monkeypatch.setattr(owner_page, "KEPT", -1.0)
    assert "(1) clinic" in ask(page.port, "/")[1]


def test_what_fails_is_in_the_log_alone(
    page: OwnerPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> str:
        raise Error("secretly")

    monkeypatch.setattr(owner_page, "render", fail)
    reply, text = ask(page.port, "/")
    assert (reply.status, text) == (500, "the request is not understood\n")
    assert "/ cannot be answered" in caplog.text


SETTINGS = 'name = "b"\ncoordinator = "c"\ndatabase = "b.duckdb"\nsecret = "env:S"\npage = '


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "page must be above 0, and 65535 at most, got 0"),
        ("70000", "page must be above 0, and 65535 at most, got 70000"),
        ('"127.0.0.1:8765"', "page must be"),
    ],
)
def test_what_is_no_port(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "b.toml").write_text(SETTINGS + text)
    with pytest.raises(Error) as caught:
        read_settings(PartySettings, tmp_path / "b.toml")
    assert said in str(caught.value)


def test_a_port_that_is_taken(page: OwnerPage, owner: Owner) -> None:
    with pytest.raises(Error, match=f"cannot listen at 127.0.0.1:{page.port}: Address already"):
        OwnerPage(page.port, owner, "clinic", "c.duckdb")


@pytest.mark.integration
def test_the_page_in_a_browser(page: OwnerPage, tmp_path: Path) -> None:
    text = shown(page.port, tmp_path)
    assert "Request 3: study longer" in text
    assert "&lt;b&gt;bmi&lt;/b&gt;" in text
    assert "<b>" not in text
