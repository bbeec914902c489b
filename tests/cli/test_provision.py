"""`sqlfl provision`: folders of sites that start and train, by files that are carried."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from sqlfl.cli.main import cli
from sqlfl.service import certificates as ct
from sqlfl.service.provisioning import fingerprint
from sqlfl.service.settings import (
    AnalystSettings,
    CoordinatorSettings,
    PartySettings,
    read_settings,
    shared_secret,
)
from tests.cli.processes import LONGEST, process, surroundings
from tests.cli.study import MADE

STUDY = """\
study = "churn"
coordinator = "coordinator.example"
address = "127.0.0.1:{port}"
analysts = ["alice.example"]
[parties.bank]
agents = ["bank.example"]
[parties.shop]
agents = ["shop.example"]
[parties.farm]
agents = ["farm.example"]
"""
PARTIES = ("bank", "shop", "farm")
SITES = ("coordinator.example", *(f"{party}.example" for party in PARTIES), "alice.example")
TRAIN = """TRAIN MODEL m USING logistic_regression TARGET churned FROM (
  SELECT b.balance, s.spent, f.spent AS harvest, b.churned FROM bank.customers b
  JOIN shop.customers s ON b.pid = s.pid JOIN farm.customers f ON b.pid = f.pid)"""
GRANT = """CREATE TRAINING POLICY usual;
  GRANT TRAIN (*), JOIN (pid), LABEL (churned) ON customers TO 'alice.example' UNDER usual"""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of whoever signs. Its path is short, for the sockets of parties."""
    with tempfile.TemporaryDirectory() as name, monkeypatch.context() as patch:
        folder = Path(name).resolve() / "desk"
        folder.mkdir()
        patch.chdir(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (folder / "study.toml").write_text(STUDY.format(port=port))
        yield folder


def run(*arguments: str | Path, status: int = 0) -> str:
    found = CliRunner().invoke(cli, ["provision", *map(str, arguments)])
    assert found.exit_code == status, found.output
    return found.output


def at(site: Path, status: int = 0) -> str:
    """Go on at a site, as its start.sh does."""
    return run(site / "study.toml", "--site", site.name, status=status)


def sites_of(study: Path, names: tuple[str, ...] = SITES) -> dict[str, Path]:
    """Make the folders, and take them to where the sites are."""
    run("study.toml")
    for name in names:
        shutil.move(study / "churn" / name, study.parent / name)
    return {name: study.parent / name for name in names}


def signed(study: Path) -> dict[str, Path]:
    """All sites have their certificates, and the secret is not made."""
    sites = sites_of(study)
    for site in sites.values():
        at(site, 1)
        shutil.copy(site / f"{site.name}.csr", study)
    run("study.toml", *study.glob("*.csr"))
    for site in sites.values():
        shutil.copy(study / "churn" / "certificates.pem", site)
    return sites


def test_three_sites_train_from_their_folders(study: Path) -> None:
    carried: list[str] = []

    def carry(source: Path, target: Path) -> None:
        carried.append(source.name)
        shutil.copy(source, target)

    sites = sites_of(study)
    bank = sites["bank.example"]
    # by its start script, the others by what that runs
    done = subprocess.run(
        ["sh", bank / "start.sh"], env=surroundings({"PATH": PATH}), cwd="/", text=True,
        capture_output=True, timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode == 1
    assert "certificates.pem is missing: carry " in done.stderr
    for site in sites.values():
        said = at(site, 1)
        (key,) = re.findall(r"to be compared: ([0-9a-f]{4}(?: [0-9a-f]{4}){7})\n", said)
        assert fingerprint_of(site) == key
        carry(site / f"{site.name}.csr", study)
    said = run("study.toml", *sorted(study.glob("*.csr")))
    for site in sites.values():
        assert f"{site.name}: key {fingerprint_of(site)}\n" in said
    (authority,) = re.findall("authority: key (.*)", said)
    for name, site in sites.items():
        carry(study / "churn" / "certificates.pem", site)
        if name not in ("shop.example", "farm.example"):
            assert f"compared: {authority}\n" in at(site)
    for name in ("shop.example", "farm.example"):
        said = at(sites[name], 1)
        assert f"compared: {authority}\n" in said
        assert "parties.secret is missing: it comes from bank.example" in said
        carry(bank / "parties.secret", sites[name])
        assert at(sites[name]) == ""
    assert len(carried) == 12
    assert not [name for name in carried if name.endswith(".key")]
    assert [path.name for path in study.rglob("*.key")] == ["authority.key"]
    for party in PARTIES:
        site = sites[f"{party}.example"]
        with duckdb.connect(site / f"{party}.duckdb") as con:
            con.execute(MADE)
        if party == "farm":
            open_by_statements(site, party)
        assert CliRunner().invoke(cli, ["owner", str(site / "party.toml"), GRANT]).exit_code == 0
    with ExitStack() as stack:

        def start(name: str, line: str) -> None:
            own = process([str(sites[name] / "start.sh")], study, ("sh",), PATH=PATH)
            stack.enter_context(own).wait_for(line)

        start("coordinator.example", "listening at ")
        for party in PARTIES:
            start(f"{party}.example", "connected to coordinator.example")
        asked = subprocess.run(
            ["sh", sites["alice.example"] / "start.sh", TRAIN], env=surroundings({"PATH": PATH}),
            text=True, capture_output=True, timeout=5 * LONGEST, cwd=study,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        assert "rows" in asked.stdout


def open_by_statements(site: Path, party: str) -> None:
    """Use the entries of the settings that stand behind `#`, in place of the database."""
    text = (site / "party.toml").read_text()
    for line in re.findall('^# ((?:sources|store) = ".*)', text, re.M):
        text = text.replace(f"# {line}", line)
    (site / "party.toml").write_text(re.sub("^database = .*\n", "", text, flags=re.M))
    (site / f"{party}.sql").write_text(
        f"ATTACH '{site}/{party}.duckdb' AS kept (READ_ONLY);\n"
        "CREATE VIEW customers AS FROM kept.customers;\n"
    )
    own = read_settings(PartySettings, site / "party.toml")
    assert own.home == str(site / f"{party}-sqlfl.duckdb")


def fingerprint_of(site: Path) -> str:
    return fingerprint((site / f"{site.name}.csr").read_bytes())


def test_each_folder_has_what_its_site_needs(study: Path) -> None:
    sites = signed(study)
    at(sites["bank.example"])
    for name in ("shop.example", "farm.example"):
        at(sites[name], 1)
        shutil.copy(sites["bank.example"] / "parties.secret", sites[name])
    at(sites["coordinator.example"])
    at(sites["alice.example"])
    secrets = set()
    for party in PARTIES:
        site = sites[f"{party}.example"]
        own = read_settings(PartySettings, site / "party.toml")
        assert (own.name, own.coordinator) == (party, "coordinator.example")
        secrets.add(shared_secret(own))
    assert len(secrets) == 1
    coordinator = sites["coordinator.example"]
    own = read_settings(CoordinatorSettings, coordinator / "coordinator.toml")
    own.credentials(own.name)
    assert own.studies["churn"].parties == PARTIES
    assert read_settings(AnalystSettings, sites["alice.example"] / "analyst.toml").credentials()
    port = tomllib.loads((study / "study.toml").read_text())["address"].rpartition(":")[2]
    for name, site in sites.items():
        readme = (site / "README.md").read_text()
        assert f"Carry `{name}.csr` to whoever signs" in readme
        texts = [readme, (site / "start.sh").read_text()]
        assert (site / "start.sh").stat().st_mode & 0o111
        if name == "alice.example":
            assert not (site / "compose.yaml").exists()
        else:
            texts += [
                (site / file).read_text() for file in ("compose.yaml", f"sqlfl-{name}.service")
            ]
            assert "image: ${SQLFL_IMAGE:-sqlfl}" in texts[2]
            assert ("ports:" in texts[2]) == (name == "coordinator.example")
        for text in texts:
            assert "$name" not in text
            assert "$$" not in text
        for text in texts[1:]:
            assert f"127.0.0.1:{port}" in text or f"0.0.0.0:{port}" in text or "sqlfl sql" in text
    for path in (p for site in sites.values() for p in site.glob("*.key")):
        assert path.stat().st_mode & 0o077 == 0


def test_a_site_makes_its_own_folder_from_the_description(study: Path) -> None:
    said = run("study.toml", "--site", "shop.example", status=1)
    assert "shop.example/certificates.pem is missing" in said
    assert (study / "shop.example" / "shop.example.key").exists()
    again = run("study.toml", "--site", "shop.example", status=1)
    assert re.findall("compared: .*", again) == re.findall("compared: .*", said)
    assert not (study / "churn").exists()


def test_folders_that_are_there_stay(study: Path) -> None:
    run("study.toml")
    mark = study / "churn" / "bank.example" / "party.toml"
    mark.write_text("mine")
    assert "churn/bank.example is there already" in run("study.toml")
    assert mark.read_text() == "mine"


def test_a_party_of_two_databases_has_a_secret_of_its_own(study: Path) -> None:
    text = (study / "study.toml").read_text()
    text = text.replace('["shop.example"]', '["shop.example", "shop-two.example"]')
    (study / "study.toml").write_text(text)
    two = study.parent / "shop-two.example"
    run("study.toml")
    shutil.move(study / "churn" / two.name, two)
    sites = {"shop-two.example": two, **signed(study)}
    at(two, 1)
    assert "no certificate of shop-two.example, for whom parties.secret" in at(
        sites["bank.example"], 1
    )
    run("study.toml", two / "shop-two.example.csr")
    for site in sites.values():
        shutil.copy(study / "churn" / "certificates.pem", site)
    at(sites["bank.example"])
    shutil.copy(sites["bank.example"] / "parties.secret", sites["shop.example"])
    assert "shop.secret was made: carry it to shop-two.example" in at(sites["shop.example"])
    for file in (sites["bank.example"] / "parties.secret", sites["shop.example"] / "shop.secret"):
        shutil.copy(file, two)
    at(two)
    own = read_settings(PartySettings, two / "party.toml")
    assert (own.name, own.index, own.organisation) == ("shop", 1, str(two / "shop.secret"))


CHANGES = {
    "unknown": ("coordinator =", "cordinator =", "did you mean coordinator?"),
    "agents": ("agents =", "agent =", "did you mean agents?"),
    "none": ('["bank.example"]', "[]", "party bank has no agents"),
    "twice": ('["farm.example"]', '["shop.example"]', "shop.example is given twice"),
    "name": ('"bank.example"', '"bank/example"', "'bank/example' is no name of a certificate"),
    "party": ("[parties.bank]", '[parties."a b"]', "'a b' is no name of a study or a party"),
    "study": ('"churn"', '"../churn"', "'../churn' is no name of a study or a party"),
    "analysts": ('["alice.example"]', "[]", "the study has no analysts"),
    "address": ("127.0.0.1:", "127.0.0.1:x", "is no host and port"),
    "port": ("127.0.0.1:", "127.0.0.1:7", "there is no port"),
}


@pytest.mark.parametrize(("old", "new", "said"), CHANGES.values(), ids=CHANGES)
def test_a_description_that_is_wrong(study: Path, old: str, new: str, said: str) -> None:
    text = STUDY.format(port=58815)
    assert old in text
    (study / "study.toml").write_text(text.replace(old, new, 1))
    assert said in run("study.toml", status=1)
    assert [path.name for path in study.iterdir()] == ["study.toml"]


def other(name: str, *hosts: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(ct.signing_request(ct.make_key(), name, hosts)) and None


REQUESTS = {
    "stranger": (other("mallory.example"), "of mallory.example, which is no site of the study"),
    "names": (other("farm.example", "bank.example"), "more names than farm.example: bank.example"),
    "twice": (other("bank.example"), "bank.example, and so does another request"),
    "none": (lambda path: path.write_text("x") and None, "is no request for a certificate"),
}


@pytest.mark.parametrize(("write", "said"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_is_not_signed(
    study: Path, write: Callable[[Path], None], said: str
) -> None:
    other("bank.example")(study / "bank.csr")
    write(study / "other.csr")
    assert said in run("study.toml", "bank.csr", "other.csr", status=1)
    assert not list((study / "churn").glob("*"))


def test_a_key_is_not_replaced_by_another_one(study: Path) -> None:
    other("bank.example")(study / "bank.csr")
    first = run("study.toml", "bank.csr")
    assert "no request yet of coordinator.example, shop.example, farm.example, alice" in first
    before = (study / "churn" / "certificates.pem").read_bytes()
    run("study.toml", "bank.csr")
    assert (study / "churn" / "certificates.pem").read_bytes() == before
    other("bank.example")(study / "bank.csr")
    assert "has a certificate already, for another key" in run("study.toml", "bank.csr", status=1)


def test_certificates_that_do_not_go_together(study: Path, tmp_path: Path) -> None:
    sites = signed(study)
    bank, shop = sites["bank.example"], sites["shop.example"]
    answer = (bank / "certificates.pem").read_bytes()
    key = (shop / "shop.example.key").read_bytes()
    (shop / "shop.example.key").unlink()
    ct.write_private(shop / "shop.example.key", ct.make_key())
    assert "is not that of the certificate of shop.example" in at(shop, 1)
    (shop / "shop.example.key").write_bytes(key)
    blocks = re.findall(b"-----BEGIN.*?END CERTIFICATE-----\n", answer, re.DOTALL)
    (shop / "certificates.pem").write_bytes(b"".join(blocks[:2]))
    assert "has no certificate of shop.example" in at(shop, 1)
    (shop / "certificates.pem").write_bytes(b"".join(blocks[1:]))
    assert "has 0 certificates of authorities, and needs one" in at(shop, 1)
    (shop / "certificates.pem").write_bytes(answer + ct.make_authority("other")[1])
    assert "has 2 certificates of authorities, and needs one" in at(shop, 1)
    # a certificate that another authority signed is not among those that the secret is made for
    forged = ct.sign(ct.signing_request(ct.make_key(), "farm.example"), *ct.make_authority("x"))
    (farm,) = (b for b in blocks[1:] if ct.names_of(b) == ("farm.example",))
    (bank / "certificates.pem").write_bytes(answer.replace(farm, forged))
    assert "certificates of another authority: farm.example" in at(bank, 1)
    assert not (bank / "parties.secret").exists()


def test_what_is_no_site_of_the_study(study: Path) -> None:
    assert "did you mean bank.example?" in run("study.toml", "--site", "bnk.example", status=1)
    sites = sites_of(study)
    said = run(sites["bank.example"] / "study.toml", "--site", "alice.example", status=1)
    assert "is not the folder of alice.example" in said
    assert "without requests" in run("study.toml", "x.csr", "--site", "bank.example", status=2)
    assert "cannot read x.csr" in run("study.toml", "x.csr", status=1)
