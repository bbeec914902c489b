"""A coordinator as the server of a job of NVFlare: `pip install 'sqlfl[nvflare]'`.

`ends` makes the arguments of `Federation.admit` from a job's sites, for a server of your own;
`Study` is a server that runs statements. Neither is a transport with a name, as
`sqlfl.connect(transport=...)` takes it: such a transport gets handlers in this process, and a job's
sites handle messages elsewhere.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sqlfl.base.errors import Error, LostError
from sqlfl.base.result import Result
from sqlfl.base.sanitize import clipped, line
from sqlfl.contract.schema import Client
from sqlfl.federation.script import pieces
from sqlfl.federation.session import Federation
from sqlfl.integrations.nvflare.asking import AGAIN, Away, FlareClient
from sqlfl.planner.grammar.statements import ExportModel, ImportModel
from sqlfl.service.certificates import checked_name
from sqlfl.service.passes import checked
from sqlfl.service.settings import CoordinatorSettings, content, read_settings

try:
    from nvflare.collab import CollabCallError, collab
    from nvflare.collab.api.exceptions import RunAborted
except ImportError as error:
    raise Error(
        "sqlfl.integrations.nvflare.flare needs NVFlare", hint="pip install 'sqlfl[nvflare]'"
    ) from error

log = logging.getLogger("sqlfl.service")

SETTINGS, STATE = "SQLFL_COORDINATOR", "SQLFL_STATE"
MAX_FAILURE_CHARACTERS = 500
"""Maximum length of a site's text on its failure, in characters."""


@dataclass(frozen=True)
class Speaking:
    """For whom requests are sent: the study, and the analyst's pass."""

    study: str
    speaker: str


@dataclass(frozen=True)
class _Line:
    """The calls of one site. site : its proxy."""

    client: Client
    site: Any
    speaking: Speaking

    def call(
        self,
        number: int,
        data: pa.Buffer | None,
        received: list[int],
        patience: float,
        /,
        *,
        timeout: float,
    ) -> pa.Buffer | None:
        """As `asking.Call`."""
        given = None if data is None else data.to_pybytes()
        told = self.speaking.study, self.speaking.speaker
        reply = self._called(timeout, "exchange", number, given, received, patience, *told)
        if reply is not None and not isinstance(reply, bytes):
            raise LostError(str(self.client), "has answered with what are no bytes")
        return None if reply is None else pa.py_buffer(reply)

    def who(self, lease: float) -> object:
        """Return the name of the client that the site serves; ask again while it is away."""
        due = time.monotonic() + lease
        while True:
            try:
                return self._called(lease, "who")
            except Away as error:
                if time.monotonic() > due:
                    raise LostError(str(self.client), str(error)) from error
                time.sleep(AGAIN)

    def tell(self) -> None:
        try:
            self.site(expect_result=False).interrupt(self.speaking.study, self.speaking.speaker)
        except (CollabCallError, RunAborted) as error:
            log.info("%s is not told of an interrupt: %s", self.client, error)

    def _called(self, timeout: float, name: str, *given: object) -> object:
        """Call the site's function. Raise Away and LostError."""
        try:
            return getattr(self.site(timeout=timeout), name)(*given)
        except RunAborted:
            raise LostError(str(self.client), "cannot be asked: the job was aborted") from None
        except CollabCallError as error:
            if isinstance(error.cause, TimeoutError):
                raise Away("is away, or has too much to say for the lease") from error
            if isinstance(error.cause, str) and error.cause_type == "str":
                raise Away(f"is away: {error.cause}") from error  # NVFlare's words, not the site's
            told = clipped(line(str(error.cause)), MAX_FAILURE_CHARACTERS)
            raise LostError(str(self.client), f"has failed: {told}") from error


def ends(
    sites: Iterable[Any],
    parties: Mapping[str, Sequence[str]],
    speaking: Speaking,
    lease: float = 60.0,
) -> dict[str, dict[int, FlareClient]]:
    """Return the servers of each party's clients, by their numbers, for `Federation.admit`.

    sites : proxies, as `collab.clients` has them. parties : the names of each party's sites, in the
    order of its clients. lease : seconds for which a site that is away is waited for, and in which
    the largest reply must arrive. Raise Error where there is no such site, or where it serves
    another client than that; LostError where one is away.
    """
    known = {site.name: site for site in sites}
    clients: dict[str, dict[int, FlareClient]] = {}
    for party, names in parties.items():
        clients[party] = {}
        for number, name in enumerate(names):
            client = Client(party, number)
            if name not in known:
                raise Error(f"party {party}: the job has no site {name}")
            connection = _Line(client, known[name], speaking)
            told = connection.who(lease)
            if told != str(client):
                served = clipped(line(str(told)), MAX_FAILURE_CHARACTERS)
                raise Error(
                    f"site {name} serves {served}, and not {client}",
                    hint="`name` and `index` in the settings at the site",
                )
            clients[party][number] = FlareClient(client, connection.call, connection.tell, lease)
    return clients


class Study:
    """The server of a job: it admits the study's parties and runs the statements, in their order.
    Results are files of the job's: `sqlfl/1.txt` and `sqlfl/1.arrow` (Arrow IPC) of the first one.

    Who may train in which study, and what its parties' sites are, is set where NVFlare's server
    runs, never by the job: the variable SQLFL_COORDINATOR names the settings, in which a party's
    agents are names of sites. SQLFL_STATE names the folder of models, one file for each study and
    analyst; where there is none, models end with the job. A statement that fails ends the job;
    earlier results stay.
    """

    def __init__(self, statements: list[str], study: str, speaker: str) -> None:
        self.statements, self.study, self.speaker = statements, study, speaker

    @collab.main
    def run(self) -> None:
        texts = _statements(self.statements)
        settings = _settings()
        analyst = _analyst(settings, self.study, self.speaker)
        agents = {
            name: settings.parties[name].agents for name in settings.studies[self.study].parties
        }
        folder = _results(collab.context)
        with Federation(_state(self.study, analyst), analyst=analyst, progress=False) as fed:
            speaking = Speaking(self.study, self.speaker)
            for party, clients in ends(collab.clients, agents, speaking, settings.lease).items():
                fed.admit(party, clients)
            for number, text in enumerate(texts, 1):
                _write(fed.sql(text), folder / str(number))
                log.info("statement %d of %d is done", number, len(texts))


def _statements(texts: Sequence[str]) -> list[str]:
    """Return the statements one by one. Raise Error for other texts, and for statements that would
    use files of the server."""
    statements = []
    for piece in (piece for text in texts for piece in pieces(text)):
        if isinstance(piece.statement(), (ExportModel, ImportModel)):
            raise Error(
                "EXPORT and IMPORT MODEL are not built for parties on other machines: no message "
                "carries a block of a model",
                hint="where a party's database is, a federation of that process's own exports it",
            )
        statements.append(piece.sql)
    return statements


def _settings() -> CoordinatorSettings:
    place = os.environ.get(SETTINGS)
    if not place:
        raise Error(
            f"the variable {SETTINGS} does not say what the coordinator is set to",
            hint=f"{SETTINGS}=/etc/sqlfl/coordinator.toml in the environment of NVFlare's server",
        )
    return read_settings(CoordinatorSettings, place)


def _analyst(settings: CoordinatorSettings, study: str, speaker: str) -> str:
    """Whose pass it is. Raise Error and PolicyError for who may not train in the study."""
    if settings.authority is None:
        raise Error("the configuration has no authority", hint="passes are held against it")
    authority = content(settings.authority, "authority")
    analyst = checked(speaker, authority, settings.name, study)
    known = settings.studies.get(study)
    if known is None or analyst not in known.analysts:
        raise Error(f"there is no study {study!r:.80} of analyst {analyst!r:.80} here")
    unknown = [name for name in known.parties if name not in settings.parties]
    if unknown:
        raise Error(f"study {study} has parties that are not configured: {', '.join(unknown)}")
    return analyst


def _state(study: str, analyst: str) -> Path | None:
    """The file of this analyst's models in this study."""
    place = os.environ.get(STATE)
    if not place:
        return None
    folder = Path(place) / checked_name(study)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{checked_name(analyst)}.duckdb"


def _results(context: Any) -> Path:
    job = collab.fl_ctx.get_job_id()
    folder = Path(context.workspace.get_result_root(job)) / "sqlfl"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(result: Result, path: Path) -> None:
    path.with_suffix(".txt").write_text(f"{result}\n", encoding="utf-8")
    table = result.arrow()
    with (
        pa.OSFile(str(path.with_suffix(".arrow")), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
