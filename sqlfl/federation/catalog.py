"""The planner's view of the parties, asked for by message and kept for one statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, PolicyError, ReplyError
from sqlfl.contract.schema import (
    Client,
    Column,
    Listing,
    Place,
    Table,
    listing_from_json,
    told_type,
)
from sqlfl.messages import CLIENT, Columns, Describe, ListTables, Tables
from sqlfl.messages.checks import Expected, ask, refused
from sqlfl.transport.base import Channel

MAX_DESCRIBED = 1024
"""Maximum number of queries over one join that lasts whose columns are kept."""


@dataclass
class Described:
    """Columns of queries over a join that lasts, as clients described them for earlier statements.

    The tables stay as they were, and so do the columns. They are used while a client lists the same
    tables as then, so that a table that is dropped ends the use of the join.
    """

    _columns: dict[tuple[Client, str], tuple[Listing, tuple[Column, ...]]] = field(
        default_factory=dict
    )

    def find(self, client: Client, select: str, listing: Listing) -> tuple[Column, ...] | None:
        before, columns = self._columns.get((client, select), (None, None))
        return columns if before == listing else None

    def keep(
        self, client: Client, select: str, listing: Listing, columns: tuple[Column, ...]
    ) -> None:
        if len(self._columns) < MAX_DESCRIBED:
            self._columns[client, select] = listing, columns


class FederationCatalog:
    """Implementation of `sqlfl.contract.schema.Catalog` over a channel.

    It asks all parties that the query names for their tables at once. `described`: that of the join
    that lasts, for a statement over one.
    """

    def __init__(
        self,
        channel: Channel,
        parties: Mapping[str, tuple[Client, ...]],
        query: exp.Query | None = None,
        described: Described | None = None,
    ) -> None:
        self._channel = channel
        self._described = described
        self._parties = dict(parties)
        named = set() if query is None else _owners(query)
        members = (clients for party, clients in parties.items() if party.lower() in named)
        self._together = tuple(client for clients in members for client in clients)
        self._listings: dict[Client, Listing] = {}
        self._columns: dict[tuple[Client, str], tuple[Column, ...]] = {}

    def parties(self) -> tuple[str, ...]:
        return tuple(self._parties)

    def clients(self, party: str) -> tuple[Client, ...]:
        return self._parties[party]

    def tables(self, client: Client) -> tuple[Table, ...]:
        return self._listing(client).tables

    def places(self, client: Client) -> tuple[Place, ...]:
        return self._listing(client).places

    def fleeting(self, client: Client) -> str:
        return self._listing(client).fleeting

    def governed(self, client: Client) -> bool:
        return self._listing(client).governed

    def _listing(self, client: Client) -> Listing:
        if client not in self._listings:
            databases = self._parties[client.party]
            clients = self._together if client in self._together else databases
            requests = {(c, CLIENT): ListTables("", CLIENT) for c in clients}
            replies = ask(self._channel, requests, lambda address: Expected(Tables))
            for address, reply in replies.items():
                try:
                    self._listings[address[0]] = listing_from_json(reply.tables)
                except ValueError as error:
                    fault = f"is no listing of tables: {error}"
                    raise refused(address[0], requests[address], fault) from None
        return self._listings[client]

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        if not self._is_known(client, select):
            self._ask_columns({client: (select,)})
        return self._columns[client, select]

    def _is_known(self, client: Client, select: str) -> bool:
        if (client, select) not in self._columns and self._described is not None:
            columns = self._described.find(client, select, self._listing(client))
            if columns is not None:
                self._columns[client, select] = columns
        return (client, select) in self._columns

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        """Ask each client for the columns of all of its queries in one exchange. If one of them
        cannot be bound, `describe` asks for each alone, so that the error has its place.
        """
        asked: dict[Client, dict[str, None]] = {}
        for client, select in selects:
            if not self._is_known(client, select):
                asked.setdefault(client, {})[select] = None
        try:
            self._ask_columns({client: tuple(texts) for client, texts in asked.items()})
        except (LostError, ReplyError):
            raise
        except (PartyError, PolicyError):
            pass

    def _ask_columns(self, asked: Mapping[Client, tuple[str, ...]]) -> None:
        requests = {(c, CLIENT): Describe("", CLIENT, texts) for c, texts in asked.items()}
        expected = {(c, CLIENT): len(texts) for c, texts in asked.items()}
        replies = ask(
            self._channel,
            requests,
            lambda address: Expected(Columns, {"selects": expected[address]}),
        )
        for (client, _), reply in replies.items():
            for select, columns in zip(asked[client], reply.each(), strict=True):
                known = tuple(replace(column, type=told_type(column.type)) for column in columns)
                self._columns[client, select] = known
                if self._described is not None:
                    self._described.keep(client, select, self._listing(client), known)


def _owners(query: exp.Query) -> set[str]:
    """The first names of the tables that have several, in small letters."""
    paths = (table.parts for table in query.find_all(exp.Table))
    return {parts[0].name.lower() for parts in paths if len(parts) > 1}
