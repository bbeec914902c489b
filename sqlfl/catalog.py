"""The planner's view of the parties, asked for by message and kept for one statement."""

from __future__ import annotations

from collections.abc import Mapping

from sqlfl.messages import CLIENT, Columns, Describe, ListTables, Tables
from sqlfl.schema import Client, Column, Place, Table, tables_from_json
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
            replies = self._channel.exchange(
                {(c, CLIENT): ListTables("", CLIENT) for c in siblings}
            )
            for (sibling, _), reply in replies.items():
                assert isinstance(reply, Tables)
                self._listings[sibling] = tables_from_json(reply.tables)
        return self._listings[client]

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        if (client, select) not in self._columns:
            request = {(client, CLIENT): Describe("", CLIENT, select)}
            reply = self._channel.exchange(request)[client, CLIENT]
            assert isinstance(reply, Columns)
            self._columns[client, select] = tuple(
                Column(name, type_) for name, type_ in zip(reply.names, reply.types, strict=True)
            )
        return self._columns[client, select]
