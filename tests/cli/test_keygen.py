"""Keys, certificates and secrets at the command line; each beginner's mistake is said."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sqlfl.cli.main import cli
from sqlfl.service import certificates as ct
from sqlfl.service import wrapping
from sqlfl.service.passes import checked, from_bearer, over_at


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, status: int = 0) -> str:
    found = CliRunner().invoke(cli, ["keygen", *line.split()])
    assert found.exit_code == status, found.output
    return found.output


def made(*names: str) -> None:
    run("authority --name lab")
    for name in names:
        run(f"request --name {name}")
        run(f"sign {name}.csr")


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_keys_and_certificates() -> None:
    run("authority --name lab")
    run("request --name c.example --host 10.0.0.5 --host localhost")
    run("sign c.example.csr --host 10.0.0.5 --host localhost --days 7")
    data = Path("c.example.crt").read_bytes()
    assert ct.names_of(data) == ("c.example", "10.0.0.5", "localhost")
    assert ct.signed_by(data, Path("authority.crt").read_bytes())
    own = ct.certificate(data)
    assert (own.not_valid_after_utc - own.not_valid_before_utc).days == 7
    for name in ("authority.key", "c.example.key"):
        assert Path(name).stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in Path("c.example.csr").read_text()


def test_a_secret_is_wrapped_and_once_more() -> None:
    made("bank", "shop", "farm")
    assert "for bank, shop" in run("secret --to bank.crt --to shop.crt")

    def opened(file: str, name: str) -> bytes:
        own = [Path(f"{name}.{kind}").read_bytes() for kind in ("key", "crt")]
        return wrapping.unwrap(Path(file).read_text(), *own)

    secret = opened("parties.secret", "bank")
    assert opened("parties.secret", "shop") == secret
    run("secret --from parties.secret --key shop.key --certificate shop.crt --to farm.crt")
    for name in ("bank", "shop", "farm"):
        assert opened("farm.secret", name) == secret
    assert secret.hex() not in Path("farm.secret").read_text()


def test_a_plain_secret_is_private() -> None:
    run("secret --plain")
    path = Path("parties.secret")
    assert len(bytes.fromhex(path.read_text())) == wrapping.BYTES
    assert path.stat().st_mode & 0o777 == 0o600


MISTAKES = {
    "request --name a_b": "'a_b' is no name of a certificate",
    "request --name bank": "bank.key is there already, and is not written over",
    "authority --name lab": "authority.key is there already",
    "authority --name lab --folder away": "there is no folder away",
    "sign bank.crt": "bank.crt: this is no signing request that can be used",
    "sign away.csr": "cannot read away.csr: No such file or directory",
    "sign bank.csr": "bank.crt is there already",
    "sign eve.csr": "eve.csr asks for a certificate of alice",
    "sign more.csr": "more.csr asks for more names than more: c.example, 10.0.0.5",
    "sign more.csr --host 10.0.0.5": "more names than more: c.example",
    "sign more.csr --key bank.key": "more.csr asks for more names",
    "sign new.csr --key bank.key": "bank.key is not the key of authority.crt",
    "sign new.csr --key away.key": "cannot read away.key",
    "secret --to bank.csr --to shop.crt": "bank.csr: this is no certificate (PEM)",
    "secret --to bank.key": "bank.key: this is no certificate (PEM)",
    "secret --to authority.crt": "authority.crt names no party",
    "secret --to bank.crt --to bank.crt": "bank.crt is a certificate of bank, and so is another",
    "secret --to away.crt": "cannot read away.crt",
    "secret --from bank.csr --key bank.key --certificate bank.crt --to new.crt": "cannot read new",
    "secret --from bank.csr --key bank.key --certificate bank.crt --to shop.crt": (
        "this is no file of the parties' secret"
    ),
    "secret --from own.secret --key shop.key --certificate shop.crt --to shop.crt": (
        "the parties' secret was not wrapped for shop, but for bank"
    ),
    "secret --from own.secret --key shop.key --certificate bank.crt --to shop.crt": (
        "the parties' secret for bank does not open by its key"
    ),
}


def test_mistakes_are_said_and_leave_nothing() -> None:
    made("bank", "shop")
    for name in ("alice", "new"):
        run(f"request --name {name}")
    Path("alice.csr").rename("eve.csr")
    run("request --name more --host c.example --host 10.0.0.5")
    run("secret --to bank.crt --out own.secret")
    before = files()
    for line, said in MISTAKES.items():
        assert said in run(line, status=1), line
        assert files() == before, line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("secret", "--to says for whom"),
        ("secret --plain --to bank.crt", "--plain is wrapped for nobody"),
        ("secret --from x --to bank.crt", "--from needs --key and --certificate"),
        ("request", "Missing option '--name'"),
        ("sign x.csr --days 0", "0 is not in the range"),
        ("wrong", "No such command"),
    ],
)
def test_usage(line: str, said: str) -> None:
    assert said in run(line, status=2)
    assert not files()


def test_what_others_have_stays_wrapped_as_it_is() -> None:
    made("bank", "shop")
    run("secret --to bank.crt")
    run("secret --from parties.secret --key bank.key --certificate bank.crt --to shop.crt")
    before, after = (
        json.loads(Path(name).read_text())["wrapped"] for name in ("parties.secret", "shop.secret")
    )
    assert after["bank"] == before["bank"]


def test_a_pass_for_clients_of_flight_sql() -> None:
    made("alice", "coordinator.example")
    settings = """certificate = "alice.crt"
key = "alice.key"
authority = "authority.crt"
coordinator = "grpc+tls://coordinator.example:8815"
"""
    Path("alice.toml").write_text(settings)
    assert "has no study" in run("pass --config alice.toml", 1)
    token = run("pass --config alice.toml --study heart --hours 1").strip()
    authority = Path("authority.crt").read_bytes()
    text = from_bearer(token)
    assert checked(text, authority, "coordinator.example", "heart") == "alice"
    assert over_at(text) - dt.datetime.now(dt.UTC) < dt.timedelta(hours=1)
    assert re.fullmatch("[A-Za-z0-9_=-]{1000,6000}", token)  # of headers' characters
    Path("alice.toml").write_text(f'study = "heart"\n{settings.replace("coordinator = ", "# ")}')
    assert "has no coordinator" in run("pass --config alice.toml", 1)
    assert "--hours" in run("pass --config alice.toml --hours 25", 2)
