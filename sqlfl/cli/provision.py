"""`sqlfl provision`: folders of a study's sites, and the steps to their certificates."""

from __future__ import annotations

from pathlib import Path

import click

from sqlfl.base.errors import Error
from sqlfl.service import provisioning as pv
from sqlfl.service.settings import StudyFile, read_settings

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("description", metavar="STUDY.TOML", type=FILE)
@click.argument("requests", metavar="[REQUEST.CSR]...", nargs=-1, type=FILE)
@click.option(
    "--site", help="Go on at this site: make its key, take its certificate, say what next."
)
@click.option("--folder", type=FILE, help="Where folders are made; by default named as the study.")
def provision(
    description: Path, requests: tuple[Path, ...], site: str | None, folder: Path | None
) -> None:
    """Make a folder for each site of a study; with requests, sign them.

    \b
    sqlfl provision study.toml                     a folder for each site; they go there
    sqlfl provision study.toml *.csr               signs what came back, for all sites in one file
    sqlfl provision study.toml --site bank.example at the site; its start.sh runs this
    """
    study = read_settings(StudyFile, description)
    sites = pv.check_study(study)
    source = description.read_bytes()
    if site is not None:
        if requests:
            raise click.UsageError("--site signs nothing: give it without requests")
        _go_on(study, source, pv.site_of(study, site), description.parent, folder)
        return
    target = folder or Path(study.study)
    if requests:
        target.mkdir(parents=True, exist_ok=True)
        told = pv.sign_requests(study, {str(p): pv.read_file(p) for p in requests}, target)
        click.echo("\n".join(told))
        click.echo(
            f"{target / pv.CERTIFICATES}: goes to all sites, once fingerprints were compared"
        )
        return
    for place in sites.values():
        if (target / place.name).exists():
            click.echo(f"{target / place.name} is there already, and stays as it is")
            continue
        pv.write_folder(study, source, place, target / place.name)
        click.echo(
            f"{target / place.name}: goes to the {place.role}; its README.md says what to do"
        )


def _go_on(study: StudyFile, source: bytes, site: pv.Site, here: Path, folder: Path | None) -> None:
    """Go on in the folder of the site, which is made if this is not it."""
    if not (here / pv.START).exists():
        here = (folder or Path()) / site.name
        if not here.exists():
            pv.write_folder(study, source, site, here)
            click.echo(f"{here}: its README.md says what to do")
    elif not (here / site.settings).exists():
        raise Error(f"{here} is not the folder of {site.name}", hint="its README.md says whose")
    for text in pv.go_on(study, site, here):
        click.echo(text)
