"""The planner's view of the parties, asked for by message and kept for one statement."""

from __future__ import annotations

from collections.abc import Mapping

from sqlfl.messages import CLIENT, Columns, Describe, ListTables, Tables
from sqlfl.messages.replies import Expected, ask, refused
from sqlfl.schema import Client, Column, Place, Table, tables_from_json, told_type
from sqlfl.transport.base import Channel


class FederationCatalog:
    """Implements `sqlfl.schema.Catalog` over a channel."""

    def __init__(self, channel: Channel, parties: Mapping[str, tuple[Client, ...]]) -> None:
        self._channel = channel
        self._parties = dict(parties)
        self._listings: dict[Client, tuple[tuple[Place, ...], tuple[Table, ...], str]] = {}
        self._columns: dict[tuple[Client, str], tuple[Column, ...]] = {}

    def parties(self) -> tuple[str, ...]:
        return tuple(self._parties)

    def clients(self, party: str) -> tuple[Client, ...]:
        return self._parties[party]

    def tables(self, client: Client) -> tuple[Table, ...]:
        return self._listing(client)[1]

    def places(self, client: Client) -> tuple[Place, ...]:
        return self._listing(client)[0]

    def fleeting(self, client: Client) -> str:
        return self._listing(client)[2]

    def _listing(self, client: Client) -> tuple[tuple[Place, ...], tuple[Table, ...], str]:
        if client not in self._listings:
            siblings = self._parties[client.party]
            requests = {(c, CLIENT): ListTables("", CLIENT) for c in siblings}
            replies = ask(self._channel, requests, lambda address: Expected(Tables))
            for address, reply in replies.items():
                try:
                    self._listings[address[0]] = tables_from_json(reply.tables)
                except ValueError as error:
                    what = f"is no listing of tables: {error}"
                    raise refused(address[0], requests[address], what) from None
        return self._listings[client]

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        if (client, select) not in self._columns:
            address = (client, CLIENT)
            request = {address: Describe("", CLIENT, select)}
            reply = ask(self._channel, request, lambda address: Expected(Columns))[address]
            self._columns[client, select] = tuple(
                Column(name, told_type(type_))
                for name, type_ in zip(reply.names, reply.types, strict=True)
            )
        return self._columns[client, select]
