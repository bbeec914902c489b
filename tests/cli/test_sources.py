"""The page on sources as it stands, over TLS: a party whose tables are views and attached files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import sqlfl
from sqlfl.cli.main import cli
from sqlfl.service import certificates as ct
from tests.cli.processes import ROOT, Process, process, ran, signal
from tests.open_databases import in_memory
from tests.service.party import AUTHORITY, AUTHORITY_KEY

PAGE = (ROOT / "docs/sources.md").read_text()
COORDINATOR = """\
name = "coordinator.example"
certificate = "coordinator.example.crt"
key = "coordinator.example.key"
authority = "authority.crt"
lease = 10
[parties.bank]
agents = ["bank.example"]
[parties.shop]
agents = ["shop.example"]
[studies.churn]
parties = ["bank", "shop"]
analysts = ["alice.example"]
"""
ALICE = """\
certificate = "alice.example.crt"
key = "alice.example.key"
authority = "authority.crt"
coordinator = "{place}"
coordinator_name = "coordinator.example"
study = "churn"
"""
CUSTOMERS = """CREATE TABLE customers AS SELECT i AS pid, sin(i) AS balance,
  sin(i) + i * 37 % 11 / 11.0 > 0.6 AS churned, 'not granted' AS note FROM range(400) AS r(i)"""
VISITS = "SELECT i AS pid, cos(3 * i) AS visits FROM range({}, {}) AS r(i)"
COMPLAINTS = "SELECT i AS pid, i % 5 AS complaints FROM range(400) AS r(i)"
SHOP = "CREATE TABLE sales AS SELECT i AS pid, cos(i) AS spent FROM range(400) AS r(i)"
QUERY = """SELECT c.balance, v.visits, k.complaints, s.spent, c.churned FROM bank.customers c
  JOIN bank.visits v USING (pid) JOIN bank.complaints k USING (pid) JOIN shop.sales s USING (pid)"""
TRAIN = f"TRAIN OR REPLACE MODEL churn USING logistic_regression TARGET churned FROM ({QUERY})"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def commands() -> list[list[str]]:
    """The commands of the page, without `sqlfl`."""
    (block,) = blocks("sh")
    return [shlex.split(line)[1:] for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with keys, and with the files of the page in `srv/bank`."""
    monkeypatch.chdir(tmp_path)
    Path("authority.crt").write_bytes(AUTHORITY)
    for name in ("bank", "shop", "coordinator", "alice"):
        key = ct.make_key()
        ct.write_private(Path(f"{name}.example.key"), key)
        hosts = ("127.0.0.1",) if name == "coordinator" else ()
        request = ct.signing_request(key, f"{name}.example", hosts)
        Path(f"{name}.example.crt").write_bytes(ct.sign(request, AUTHORITY_KEY, AUTHORITY))
    run("keygen secret --to bank.example.crt --to shop.example.crt")
    data = tmp_path / "srv/bank"
    (data / "visits").mkdir(parents=True)
    with in_memory() as con:
        con.execute(f"COPY ({VISITS.format(0, 150)}) TO '{data}/visits/1.parquet'")
        con.execute(f"COPY ({VISITS.format(150, 400)}) TO '{data}/visits/2.parquet'")
        con.execute(f"COPY ({COMPLAINTS}) TO '{data}/visits/complaints.csv'")
    with duckdb.connect(data / "crm.duckdb") as con:
        con.execute(CUSTOMERS)
    with duckdb.connect("shop.duckdb") as con:
        con.execute(SHOP)
    (bank,) = blocks("toml")
    Path("bank.toml").write_text(bank)
    places = 'sources = "bank.sql"                    # or "env:NAME"\n'
    assert places in bank
    shop = bank.replace(places, 'database = "shop.duckdb"\n').replace("bank", "shop")
    Path("shop.toml").write_text(re.sub("store = .*", "", shop))
    Path("bank.sql").write_text(blocks("sql")[0].replace("/srv", f"{tmp_path}/srv"))
    Path("coordinator.toml").write_text(COORDINATOR)
    return tmp_path


def run(line: str | list[str], status: int = 0) -> str:
    words = line.split() if isinstance(line, str) else line
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == status, done.output
    return done.output


def asked(folder: Path, statement: str, status: int = 0) -> str:
    """An analyst's statement, and its answer as JSON."""
    done = ran(["sql", "--config", "alice.toml", "--format", "json", statement], folder)
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout


@contextmanager
def serving(folder: Path, shop: bool = True) -> Iterator[Process]:
    """A coordinator and the parties' agents, as processes. Yields the bank's agent."""
    with ExitStack() as stack:
        line = "coordinator --listen grpc+tls://127.0.0.1:0 --state state --config coordinator.toml"
        coordinator = stack.enter_context(process(line.split(), folder))
        port = coordinator.wait_for(r"listening at \S+:(\d+)")[1]
        place = f"grpc+tls://127.0.0.1:{port}"
        Path("alice.toml").write_text(ALICE.format(place=place))
        (party,) = (own for own in commands() if own[0] == "party")
        agents = []
        for name in ("shop", "bank")[not shop :]:
            own = [re.sub("^grpc.*", place, word).replace("bank", name) for word in party]
            agents.append(stack.enter_context(process([*own, "--log-format", "json"], folder)))
        for agent in agents:
            agent.wait_for("connected to coordinator.example")
        yield agents[-1]
        for ended in (*agents, coordinator):
            ended.signal(signal.SIGTERM)
            assert ended.ended() == 0


def weights(answer: str) -> dict[str, float]:
    """Return the coefficients of the answer to WEIGHTS OF MODEL by their names."""
    told = json.loads(answer)
    names = [column["name"] for column in told["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in told["rows"]]
    return {row["feature"]: row["coefficient"] for row in rows}


def test_the_page_runs(folder: Path) -> None:
    """Three kinds of tables join another party's; the owner approves; a restart keeps all."""
    grant, _, approve, verify = commands()
    run(grant)
    rules = "CREATE TRAINING POLICY p; GRANT TRAIN (spent), JOIN (pid) ON sales TO '{}' UNDER p"
    run(["owner", "shop.duckdb", rules.format("alice.example")])
    assert (folder / "bank-sqlfl.duckdb").stat().st_mode & 0o077 == 0
    with serving(folder):
        assert "waits" in asked(folder, TRAIN, 1)
        shown = run(["owner", "bank.toml", "--format", "lines", "SHOW REQUESTS"])
        assert "customers, visits, complaints" in shown or "complaints" in shown
        run(approve)
        asked(folder, TRAIN)
        kept = weights(asked(folder, "WEIGHTS OF MODEL churn"))
        said = asked(folder, "CHECK FROM (SELECT c.note FROM bank.customers c)", 1)
        assert "column note is not granted" in said
    # after a restart all of it is there
    with serving(folder):
        asked(folder, f"EVALUATE MODEL churn FROM ({QUERY})", 1)  # PREDICT is not granted
        asked(folder, TRAIN)
        again = weights(asked(folder, "WEIGHTS OF MODEL churn"))
        shown = run(["owner", "bank.toml", "SHOW DISCLOSURES"])
        assert "alice.example" in shown
    assert run(verify) == "nothing was changed, dropped, added or reordered\n"
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob("*.owner"))
    central = trained_on_tables()
    assert kept.keys() == central.keys()
    for found in (kept, again):
        assert found == pytest.approx(central, rel=1e-4, abs=1e-5)


def trained_on_tables() -> dict[str, float]:
    """The same model, of tables in DuckDB databases of this process."""
    with in_memory() as bank, in_memory() as shop, sqlfl.connect(progress=False) as fed:
        bank.execute(CUSTOMERS)
        bank.execute(f"CREATE TABLE visits AS {VISITS.format(0, 400)}")
        bank.execute(f"CREATE TABLE complaints AS {COMPLAINTS}")
        shop.execute(SHOP)
        fed.attach("bank", bank)
        fed.attach("shop", shop)
        fed.sql(TRAIN)
        rows = fed.sql("WEIGHTS OF MODEL churn").arrow().to_pylist()
    return {row["feature"]: row["coefficient"] for row in rows}


def test_settings_name_the_store(folder: Path) -> None:
    assert "the settings name the store" in run("owner bank.toml --store s.duckdb", 1)
    said = run(["owner", "bank.toml", "SHOW GRANTS"], 1)
    assert f"there is no store {folder}/bank-sqlfl.duckdb" in said
    (folder / "srv/bank/crm.duckdb").unlink()
    said = run(["owner", "bank.toml", "CREATE TRAINING POLICY p"], 1)
    assert "bank.sql, line 3: ATTACH failed: " in said
    assert "database does not exist" in said
    assert not (folder / "bank-sqlfl.duckdb").exists()


def test_another_database_takes_the_place_of_sources(folder: Path) -> None:
    away = "party --join grpc+tls://127.0.0.1:1 --config bank.toml --database away.duckdb"
    assert "there is no database away.duckdb" in run(away, 1)
