"""Commands for keys, certificates and the parties' secret. Existing files are never overwritten."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click
from cryptography import x509

from sqlfl.base.errors import Error
from sqlfl.service import certificates as ct
from sqlfl.service import wrapping

FILE = click.Path(path_type=Path)
FOLDER = click.option(
    "--folder", type=FILE, default=".", help="Where files are made; by default here."
)


@click.group()
def keygen() -> None:
    """Make keys, certificates and the secret of parties."""


@keygen.command()
@click.option("--name", required=True, help="What the authority is called.")
@FOLDER
def authority(name: str, folder: Path) -> None:
    """A private authority, for those who have none: authority.key and authority.crt."""
    key, public_file = _new(folder / "authority.key", folder / "authority.crt")
    private, public = ct.make_authority(name)
    ct.write_private(key, private)
    ct.write_public(public_file, public)
    click.echo(f"{key}: stays here, and signs with sqlfl keygen sign")
    click.echo(f"{public_file}: goes to all parties, analysts and the coordinator")


@keygen.command()
@click.option("--name", required=True, help="Whose key it is: a party's agent, an analyst, ...")
@click.option(
    "--host", "hosts", multiple=True, help="Another name or address of a coordinator; repeatable."
)
@FOLDER
def request(name: str, hosts: tuple[str, ...], folder: Path) -> None:
    """A key, and the request that an authority makes a certificate of: NAME.key and NAME.csr."""
    name = ct.checked_name(name)
    key, asked = _new(folder / f"{name}.key", folder / f"{name}.csr")
    private = ct.make_key()
    public = ct.signing_request(private, name, hosts)
    ct.write_private(key, private)
    ct.write_public(asked, public)
    click.echo(f"{key}: stays here")
    click.echo(f"{asked}: goes to the authority, which signs it with sqlfl keygen sign")


@keygen.command()
@click.argument("csr", type=FILE)
@click.option("--name", help="The name that it asks for, where its file is called otherwise.")
@click.option(
    "--host", "hosts", multiple=True, help="Another name that it asks for and is to have."
)
@click.option("--key", type=FILE, default="authority.key", help="The authority's key.")
@click.option("--certificate", type=FILE, default="authority.crt", help="And its certificate.")
@click.option("--days", type=click.IntRange(1, 3650), default=ct.DAYS_OF_CERTIFICATE)
def sign(
    csr: Path, name: str | None, hosts: tuple[str, ...], key: Path, certificate: Path, days: int
) -> None:
    """The certificate of a request, beside it: NAME.crt.

    Whoever has the certificate is taken for whom it names: see that the request came from them.
    What it asks for besides the name in its file's own is refused, unless it is repeated.
    """
    request_bytes = _read(csr)
    try:
        ct.read_request(request_bytes)
    except Error as error:
        raise Error(f"{csr}: {error.message}", hint="sqlfl keygen request makes one") from None
    first, *others = ct.names_of(request_bytes)
    expected = csr.name.removesuffix(".csr") if name is None else name
    if first != expected:
        raise Error(
            f"{csr} asks for a certificate of {first}",
            hint=f"--name {first}, if it did come from there",
        )
    extra = [other for other in others if other not in hosts]
    if extra:
        raise Error(
            f"{csr} asks for more names than {first}: {', '.join(extra)}",
            hint=f"{' '.join(f'--host {other}' for other in extra)}, if they are its own",
        )
    signer, signing_certificate = _read(key), _read(certificate)
    if ct.public_key(signing_certificate) != ct.private_key(signer).public_key():
        raise Error(f"{key} is not the key of {certificate}")
    (path,) = _new(csr.with_name(f"{first}.crt"))
    ct.write_public(path, ct.sign(request_bytes, signer, signing_certificate, days=days))
    click.echo(f"{path}: of {', '.join((first, *others))}, for {days} days; it goes back")


@keygen.command()
@click.option(
    "--to", "certificates", type=FILE, multiple=True, help="A party's certificate; repeatable."
)
@click.option("--out", type=FILE, help="By default parties.secret, and with --from NAME.secret.")
@click.option("--plain", is_flag=True, help="Wrapped for nobody: for --insecure alone.")
@click.option("--from", "source", type=FILE, help="Wrap this file's secret for further parties.")
@click.option("--key", type=FILE, help="With --from: of a party that it is wrapped for.")
@click.option("--certificate", type=FILE, help="With --from: the certificate of that party.")
def secret(
    certificates: tuple[Path, ...],
    out: Path | None,
    plain: bool,
    source: Path | None,
    key: Path | None,
    certificate: Path | None,
) -> None:
    """The secret under which parties hash join keys, wrapped for each: parties.secret.

    Coordinators never hold it. With --from, the file has what it had, and further parties.
    """
    if plain:
        if certificates or source:
            raise click.UsageError("--plain is wrapped for nobody: without --to and --from")
        (path,) = _new(out or Path("parties.secret"))
        ct.write_private(path, wrapping.make_secret().hex().encode() + b"\n")
        click.echo(f"{path}: for parties of this machine alone")
        return
    if not certificates:
        raise click.UsageError("--to says for whom: the certificate of each party")
    if source is not None and (key is None or certificate is None):
        raise click.UsageError("--from needs --key and --certificate, of a party that has it")
    named = _named(certificates)
    wrapped = None
    if source is None or key is None or certificate is None:
        shared = wrapping.make_secret()
    else:
        wrapped = _read(source).decode("utf-8", "replace")
        shared = wrapping.unwrap(wrapped, _read(key), _read(certificate))
    (path,) = _new(
        out or Path("parties.secret" if source is None else f"{next(iter(named))}.secret")
    )
    ct.write_public(path, wrapping.wrap(shared, named, wrapped).encode())
    click.echo(f"{path}: for {', '.join(named)}; the file goes to all of them")


@keygen.command(name="pass")
@click.option(
    "--config", type=FILE, envvar="SQLFL_CONFIG", required=True, help="Your settings, a TOML file."
)
@click.option("--study", help="The study, instead of the one in the settings.")
@click.option("--hours", type=click.FloatRange(0, 24, min_open=True), help="By default pass_hours.")
def pass_(config: Path, study: str | None, hours: float | None) -> None:
    """Print an analyst's pass, the bearer token of Flight SQL clients at the coordinator.

    It is taken with your certificate alone, at this coordinator, for this study, until its end.
    """
    from sqlfl.service.passes import (
        PassIssuer,  # loads pyarrow, which other commands do not
        to_bearer,
    )
    from sqlfl.service.settings import AnalystSettings, read_settings

    own = read_settings(AnalystSettings, config)
    study = study or own.study
    server = own.coordinator_name or urlsplit(own.coordinator or "").hostname
    if study is None or server is None:
        lacking = "study" if study is None else "coordinator"
        raise Error(f"{config} has no {lacking}", hint=f'{lacking} = "..." says whom it is for')
    credentials = own.credentials()
    length = own.pass_hours if hours is None else hours
    click.echo(to_bearer(PassIssuer(credentials, "", server, study, length).issued()))


def _named(paths: tuple[Path, ...]) -> dict[str, bytes]:
    """Certificates by their names."""
    by_name: dict[str, bytes] = {}
    for path in paths:
        data = _read(path)
        try:
            ct.public_key(data)
            name = ct.names_of(data)[0]
        except x509.ExtensionNotFound:
            raise Error(f"{path} names no party", hint="is it the authority's?") from None
        except Error as error:
            raise Error(
                f"{path}: {error.message}", hint="--to takes a party's certificate"
            ) from None
        if name in by_name:
            raise Error(f"{path} is a certificate of {name}, and so is another one that is given")
        by_name[name] = data
    return by_name


def _new(*paths: Path) -> tuple[Path, ...]:
    """Raise Error if one of the files exists, before another is made."""
    for path in paths:
        if path.exists():
            raise Error(
                f"{path} is there already, and is not written over", hint="move it away first"
            )
        if not path.parent.is_dir():
            raise Error(f"there is no folder {path.parent}", hint="make it first")
    return paths


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Error(f"cannot read {path}: {error.strerror}") from error
