"""A party as a site of NVFlare: `pip install 'sqlfl[nvflare]'`.

A job names `Site` as its client's component and brings no code. So the site runs only code that is
installed there, and only if the site's `class_allow_list` has it. The site also sets which database
it serves, never the job: the variable SQLFL_PARTY names the party's settings, or a folder
that has them as `<site>.toml`.

The module is not called `nvflare`: NVFlare's recipes copy a component's file into a folder that
Python searches first, where it would be found instead of NVFlare.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from sqlfl.base.errors import Error, WireError
from sqlfl.integrations.nvflare.asking import NumberedAnswers
from sqlfl.service.hosting import Host, hosted
from sqlfl.service.owner_services import owner_served
from sqlfl.service.settings import PartySettings, read_settings

try:
    from nvflare.collab import collab
except ImportError as error:
    raise Error(
        "sqlfl.integrations.nvflare.flare_site needs NVFlare", hint="pip install 'sqlfl[nvflare]'"
    ) from error

log = logging.getLogger("sqlfl.service")

SETTINGS = "SQLFL_PARTY"
SERVER = "server"
"""NVFlare's name for the server of a job, by its certificate."""


class Site:
    """Serves the party's database for one job, from its begin to its end.

    Raise Error, which ends the job, where the settings cannot be used, or where they name no
    certificate: analysts are who their passes say, whatever NVFlare's server does.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._host: Host | None = None
        self._answers = NumberedAnswers(self._serve)

    @collab.init
    def begin(self) -> None:
        settings = read_settings(PartySettings, settings_of(collab.site_name))
        with ExitStack() as stack:
            stack.enter_context(self._answers)
            self._host = stack.enter_context(hosted(settings, settings.credentials()))
            stack.callback(self._answers.end)
            stack.enter_context(owner_served(self._host, settings))
            self._host.welcome(settings.coordinator, secrets.token_hex(16))
            self._stack = stack.pop_all()
        log.info("%s serves party %s", collab.site_name, settings.name)

    @collab.final
    def end(self) -> None:
        self._stack.close()

    @collab.publish
    def who(self) -> str:
        """The client, as 'party/number'."""
        return str(self._served().client)

    @collab.publish
    def exchange(
        self,
        number: int,
        data: bytes | None,
        received: list[int],
        patience: float,
        study: str,
        speaker: str,
    ) -> bytes | None:
        """Answer like `Answers.ask`. Only the site's own log has the reason of a failure."""
        self._served()
        try:
            reply = self._answers.ask(number, data, received, patience, study, speaker)
        except WireError as error:
            raise RuntimeError(error.message) from None
        except Exception:
            log.exception("a request failed beyond its own failures")
            raise RuntimeError("the party failed; its log says how") from None
        return None if reply is None else reply.to_pybytes()

    @collab.publish
    def interrupt(self, study: str, speaker: str) -> None:
        """End the requests that are being served for this analyst."""
        self._served().interrupt(0, study, speaker)

    def _serve(self, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        assert self._host is not None
        return self._host.handle(0, data, study, speaker)

    def _served(self) -> Host:
        """Raise RuntimeError where it is not the server who calls."""
        if self._host is None or collab.caller != SERVER:
            raise RuntimeError(f"{collab.caller} is not served")
        return self._host


def settings_of(site: str) -> Path:
    """Return the path of a site's settings. Raise Error if the environment does not say it."""
    place = os.environ.get(SETTINGS)
    if not place:
        raise Error(
            f"site {site}: the variable {SETTINGS} does not say which party it serves",
            hint=f"{SETTINGS}=/etc/sqlfl/bank.toml in the environment of NVFlare's client",
        )
    path = Path(place)
    return path / f"{site}.toml" if path.is_dir() else path
