"""Folders of a study's sites, from one description of its members and their needs.

A key is made at its site and stays there. A site sends a request to the signer. One file with all
certificates comes back, the same for every site. The party that makes a secret passes it to the
other parties.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sqlfl.base.errors import Error, nearest
from sqlfl.service import certificates as ct
from sqlfl.service import wrapping
from sqlfl.service.certificates import check_identity
from sqlfl.service.settings import StudyFile

STUDY, START, README = "study.toml", "start.sh", "README.md"
CERTIFICATES = "certificates.pem"
AUTHORITY_KEY, AUTHORITY = "authority.key", "authority.crt"
SECRET = "parties.secret"
COORDINATOR, PARTY, ANALYST = "coordinator", "party", "analyst"
"""Roles of sites."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)


@dataclass(frozen=True)
class Site:
    """One end of the study: the coordinator, an agent of a party, or an analyst."""

    name: str
    """Name of its certificate, and of its folder."""
    role: str
    party: str = ""
    index: int = 0

    @property
    def settings(self) -> str:
        return "coordinator.toml" if self.role == COORDINATOR else f"{self.role}.toml"


@dataclass(frozen=True)
class SharedSecret:
    """A secret that agents share: its file, its maker, and its holders."""

    file: str
    maker: str
    agents: tuple[str, ...]


def check_study(study: StudyFile) -> dict[str, Site]:
    """Return the sites, by name. Raise Error for names that are invalid, or occur twice."""
    sites = [Site(study.coordinator, COORDINATOR)]
    for party, member in study.parties.items():
        sites += [Site(name, PARTY, party, n) for n, name in enumerate(member.agents)]
        if not member.agents:
            raise Error(f"party {party} has no agents", hint=f'agents = ["{party}.example"]')
    sites += [Site(name, ANALYST) for name in study.analysts]
    for name in (study.study, *study.parties):
        if not _NAME.fullmatch(name):
            raise Error(f"{name!r} is no name of a study or a party", hint="letters, digits and _")
    for site in sites:
        ct.checked_name(site.name)
    twice = sorted({s.name for s in sites if sum(o.name == s.name for o in sites) > 1})
    if twice:
        raise Error(f"{', '.join(twice)} is given twice", hint="each site has a name of its own")
    for members_name, members in (("parties", study.parties), ("analysts", study.analysts)):
        if not members:
            raise Error(f"the study has no {members_name}")
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):[1-9]\d{0,5}", study.place):
        raise Error(f"address {study.place!r:.80} is no host and port", hint="10.0.0.5:8815 is one")
    if study.port > 65535:
        raise Error(f"there is no port {study.port}")
    return {site.name: site for site in sites}


def site_of(study: StudyFile, name: str) -> Site:
    """Return the site of this name. Raise Error if there is none."""
    sites = check_study(study)
    if name not in sites:
        close = nearest(name, sites)
        raise Error(
            f"the study has no site {name}",
            hint=f"did you mean {close}?" if close else f"there are {', '.join(sites)}",
        )
    return sites[name]


def secrets_of(study: StudyFile, site: Site) -> tuple[SharedSecret, ...]:
    """Return the secrets that a site holds: that of all parties, and that of its party's agents if
    there are several."""
    if site.role != PARTY:
        return ()
    every = tuple(name for member in study.parties.values() for name in member.agents)
    agents = study.parties[site.party].agents
    shared = (
        SharedSecret(SECRET, every[0], every),
        SharedSecret(f"{site.party}.secret", agents[0], agents),
    )
    return shared if len(agents) > 1 else shared[:1]


# -- folders ---------------------------------------------------------------------------------------


def write_folder(study: StudyFile, source: bytes, site: Site, folder: Path) -> None:
    """Make the site's folder, without a key. source : text of the description."""
    folder.mkdir(parents=True)
    (folder / STUDY).write_bytes(source)
    for name, text in _files(study, site).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / START).chmod(0o755)


def _files(study: StudyFile, site: Site) -> dict[str, str]:
    """Return the texts of a site's files, by name."""
    config = f"--config {site.settings}"
    command = {
        COORDINATOR: f"coordinator --listen grpc+tls://0.0.0.0:{study.port} --state state {config}",
        PARTY: f"party --join grpc+tls://{study.place} {config}",
        ANALYST: f"sql {config}",
    }[site.role]
    words = {
        "name": site.name, "study": study.study, "role": site.role, "command": command,
        "unit": f"sqlfl-{site.name}.service", "settings": site.settings,
        "ports": f'    ports: ["{study.port}:{study.port}"]\n' * (site.role == COORDINATOR),
        "otherwise": '[ $# -gt 0 ] || set -- "SHOW PARTIES"\n' * (site.role == ANALYST),
        "verb": "Run a statement (SHOW PARTIES)" if site.role == ANALYST else "Serve",
    }  # fmt: skip
    files = {site.settings: _settings(study, site), START: _template("start.sh", words)}
    if site.role != ANALYST:
        files[words["unit"]] = _template("unit.service", words)
        files["compose.yaml"] = _template("compose.yaml", words)
    return files | {README: _readme(study, site, words)}


def _template(name: str, words: Mapping[str, str]) -> str:
    file = resources.files(__package__).joinpath("site", name)
    return Template(file.read_text(encoding="utf-8")).substitute(words)


def _settings(study: StudyFile, site: Site) -> str:
    identity = (
        f'certificate = "{site.name}.crt"\nkey = "{site.name}.key"\nauthority = "{AUTHORITY}"\n'
    )
    if site.role == ANALYST:
        return (
            f'{identity}coordinator = "grpc+tls://{study.place}"\n'
            f'coordinator_name = "{study.coordinator}"\nstudy = "{study.study}"\n'
        )
    if site.role == COORDINATOR:
        parties = "".join(
            f"\n[parties.{name}]\nagents = {json.dumps(member.agents)}\n"
            for name, member in study.parties.items()
        )
        return (
            f'name = "{site.name}"\n{identity}{parties}\n[studies.{study.study}]\n'
            f"parties = {json.dumps([*study.parties])}\n"
            f"analysts = {json.dumps(study.analysts)}\n"
        )
    several = len(study.parties[site.party].agents) > 1
    more = f'index = {site.index}\norganisation = "{site.party}.secret"\n' if several else ""
    return (
        f'name = "{site.party}"\n{identity}coordinator = "{study.coordinator}"\n'
        f'secret = "{SECRET}"\n{more}'
        f'database = "{site.party}.duckdb"             # the path of your database\n'
        "# in its place, statements that open PostgreSQL, Parquet, S3 ... (sqlfl docs sources):\n"
        f'# sources = "{site.party}.sql"\n'
        f'# store = "{site.party}-sqlfl.duckdb"      # keeps your policies then\n'
        '# notify = ["/etc/sqlfl/notify"]  # a command that runs when a request waits for you\n'
        "# page = 8765                    # your page, at http://127.0.0.1:8765\n"
    )


def _readme(study: StudyFile, site: Site, words: Mapping[str, str]) -> str:
    request, starts = f"{site.name}.csr", f"`sh {START}`"
    steps = [
        f"{starts} makes this site's key and `{request}`. Carry `{request}` to whoever signs, and "
        "read out the fingerprint that it prints.",
        f"`{CERTIFICATES}` comes back: put it into this folder. {starts} takes the certificates "
        "from it, and prints the authority's fingerprint. Compare it by telephone with whoever "
        "signed.",
    ]
    files = [
        (f"`{site.name}.key`", "the key", "nowhere"),
        (f"`{request}`", "the request for a certificate", "to whoever signs"),
        (f"`{CERTIFICATES}`", "all certificates of the study", "comes from whoever signs"),
    ]
    for shared in secrets_of(study, site):
        others = [name for name in shared.agents if name != site.name]
        if shared.maker == site.name:
            steps.append(
                f"{starts} has then made `{shared.file}`: carry it to {', '.join(others)}. It "
                "may go by any way, and opens to their keys alone."
            )
            files.append((f"`{shared.file}`", "a secret for join keys", f"to {', '.join(others)}"))
        else:
            steps.append(f"`{shared.file}` comes from {shared.maker}: put it into this folder.")
            files.append((f"`{shared.file}`", "a secret for join keys", f"from {shared.maker}"))
    if site.role == PARTY:
        steps.append(
            f"Write the path of your database into `{site.settings}`, or `sources` that open "
            "tables in other systems (`sqlfl docs sources`). Say what may be done with them: "
            f'`sqlfl owner {site.settings} "CREATE TRAINING POLICY usual; GRANT ..."` '
            "(`sqlfl docs owner`)."
        )
    last = {
        COORDINATOR: f"serves, at port {study.port}: the only one that anybody opens.",
        PARTY: f"serves. It dials out to {study.place}, and opens no port.",
        ANALYST: 'runs `SHOW PARTIES`, and `sh start.sh "TRAIN MODEL ..."` a statement of yours.',
    }[site.role]
    steps.append(f"{starts} {last}")
    services = (
        f"\n`{words['unit']}` runs it under systemd, `compose.yaml` in a container. Both say at "
        "their top what they need.\n"
    ) * (site.role != ANALYST)
    return _template(README, {
        **words, "services": services,
        "steps": "\n".join(f"{n}. {text}" for n, text in enumerate(steps, 1)),
        "files": "\n".join(f"| {' | '.join(row)} |" for row in files),
    })  # fmt: skip


# -- signing ---------------------------------------------------------------------------------------


def sign_requests(study: StudyFile, requests: Mapping[str, bytes], folder: Path) -> list[str]:
    """Sign requests of sites, by file, and add their certificates to those of the study.

    Return the signed requests with fingerprints, and the missing sites. The authority is made if
    there is none. Raise Error, before anything is written, if a file is not a request of a site, or
    requests more than the site's name.
    """
    sites, signed = check_study(study), _signed(folder)
    new_requests: dict[str, bytes] = {}
    for file, data in requests.items():
        try:
            names = ct.names_of(data)
        except (Error, x509.ExtensionNotFound) as error:
            raise Error(f"{file} is no request for a certificate: {error}") from None
        if names[0] not in sites:
            raise Error(
                f"{file} asks for a certificate of {names[0]}, which is no site of the study"
            )
        if len(names) > 1:
            raise Error(f"{file} asks for more names than {names[0]}: {', '.join(names[1:])}")
        if names[0] in new_requests:
            raise Error(f"{file} asks for a certificate of {names[0]}, and so does another request")
        before = signed.get(names[0])
        if before is None:
            new_requests[names[0]] = data
        elif fingerprint(before) != fingerprint(data):
            raise Error(
                f"{file}: {names[0]} has a certificate already, for another key",
                hint=f"if that key is lost, take its certificate out of {folder / CERTIFICATES}",
            )
    key, authority = _authority(study, folder)
    signed |= {name: ct.sign(data, key, authority) for name, data in new_requests.items()}
    certificates = [signed[name] for name in sites if name in signed]
    (folder / CERTIFICATES).write_bytes(b"".join([authority, *certificates]))
    report = [f"{name}: key {fingerprint(data)}" for name, data in new_requests.items()]
    missing = [name for name in sites if name not in signed]
    if missing:
        report.append(f"no request yet of {', '.join(missing)}")
    return [*report, f"authority: key {fingerprint(authority)}"]


def _authority(study: StudyFile, folder: Path) -> tuple[bytes, bytes]:
    key, public = folder / AUTHORITY_KEY, folder / AUTHORITY
    if not key.exists():
        pair = ct.make_authority(f"{study.study.replace('_', '-')}-authority")
        ct.write_private(key, pair[0])
        ct.write_public(public, pair[1])
    return read_file(key), read_file(public)


def _signed(folder: Path) -> dict[str, bytes]:
    """Return the certificates that were signed before, by name."""
    path = folder / CERTIFICATES
    return _certificates(path)[1] if path.exists() else {}


def fingerprint(data: bytes) -> str:
    """Return a fingerprint of the key of a certificate or a request, to be read out."""
    of = ct.read_request(data) if b"REQUEST" in data[:40] else ct.certificate(data)
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    key = of.public_key().public_bytes(serialization.Encoding.DER, spki)
    digest = hashlib.sha256(key).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


# -- at a site -------------------------------------------------------------------------------------


def go_on(study: StudyFile, site: Site, folder: Path) -> Iterator[str]:
    """Make everything that the site can make now, and yield instructions for it. Raise Error if
    something is missing or inconsistent."""
    key, certificate = folder / f"{site.name}.key", folder / f"{site.name}.crt"
    request, answer = folder / f"{site.name}.csr", folder / CERTIFICATES
    if not key.exists():
        ct.write_private(key, ct.make_key())
    if not certificate.exists():
        if not request.exists():
            ct.write_public(request, ct.signing_request(read_file(key), site.name))
        if not answer.exists():
            raise Error(
                f"{answer} is missing: carry {request} to whoever signs, and put what comes back "
                "there",
                hint=f"the key's fingerprint, to be compared: {fingerprint(read_file(request))}",
            )
        yield _take(site, folder, answer)
    for shared in secrets_of(study, site):
        yield from _share(shared, site, folder)


def _take(site: Site, folder: Path, answer: Path) -> str:
    """Take the site's certificate and the authority's from the file of all certificates."""
    authority, others = _certificates(answer)
    if site.name not in others:
        raise Error(
            f"{answer} has no certificate of {site.name}",
            hint="it was made before the request arrived: ask for the later one",
        )
    certificate = others[site.name]
    check_identity(read_file(folder / f"{site.name}.key"), certificate, authority, site.name)
    ct.write_public(folder / AUTHORITY, authority)
    ct.write_public(folder / f"{site.name}.crt", certificate)
    return f"the authority's fingerprint, to be compared: {fingerprint(authority)}"


def _share(shared: SharedSecret, site: Site, folder: Path) -> Iterator[str]:
    """Make a secret if this site makes it. Raise Error if it is missing otherwise."""
    path = folder / shared.file
    if path.exists():
        return
    if site.name != shared.maker:
        raise Error(f"{path} is missing: it comes from {shared.maker}")
    authority, certificates = _certificates(folder / CERTIFICATES)
    missing = [name for name in shared.agents if name not in certificates]
    if missing:
        raise Error(
            f"{folder / CERTIFICATES} has no certificate of {', '.join(missing)}, for whom "
            f"{shared.file} is made here",
            hint="once all have been signed, put the later file there",
        )
    named = {name: certificates[name] for name in shared.agents}
    strangers = [name for name, data in named.items() if not ct.signed_by(data, authority)]
    if strangers or authority != read_file(folder / AUTHORITY):
        raise Error(
            f"{folder / CERTIFICATES} has certificates of another authority"
            + f": {', '.join(strangers)}" * bool(strangers)
        )
    ct.write_public(path, wrapping.wrap(wrapping.make_secret(), named).encode())
    others = [name for name in shared.agents if name != site.name]
    yield f"{path} was made: carry it to {', '.join(others)}"


def _certificates(path: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the authority's certificate, and the others by name. Raise Error for another file."""
    authorities, others = [], {}
    for data in _PEM.findall(read_file(path)):
        extensions = ct.certificate(data).extensions
        try:
            if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                authorities.append(data)
                continue
            others[ct.names_of(data)[0]] = data
        except (x509.ExtensionNotFound, IndexError):
            raise Error(f"{path} has a certificate without a name") from None
    if len(authorities) != 1:
        raise Error(
            f"{path} has {len(authorities)} certificates of authorities, and needs one",
            hint="`sqlfl provision study.toml NAME.csr ...` makes this file",
        )
    return authorities[0], others


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Error(f"cannot read {path}: {error.strerror}") from error
