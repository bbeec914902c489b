"""Descriptions of several queries in one exchange.

A rule asks for the columns of one query, goes on with the answer, and so on for each block of a
union. So `BatchedCatalog.each` tries the blocks that are still to come before it asks: what they
would ask for next goes along in the same exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlfl.base.errors import Error, LostError, PartyError, ReplyError
from sqlfl.contract.schema import Catalog, Client, Column

T = TypeVar("T")


class _Unanswered(Exception):
    """Queries without an answer yet, on which a tried piece of work depends."""

    def __init__(self, selects: Iterable[tuple[Client, str]]) -> None:
        super().__init__()
        self.selects = tuple(selects)


@dataclass
class _Work:
    """Pieces of work, which are done one after the other."""

    tries: Sequence[Callable[[], object]]
    """Functions that ask for the same as the pieces, and change nothing."""
    next: int = 0
    """Number of the first piece that is still to come."""
    settled: set[int] = field(default_factory=set)
    """Numbers of the pieces that need not be tried again: they ask for nothing more, or fail."""


class BatchedCatalog:
    """Catalog that asks for several descriptions at once where `each` knows what comes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.parties, self.clients = catalog.parties, catalog.clients
        self.tables, self.places = catalog.tables, catalog.places
        self.fleeting, self.governed = catalog.fleeting, catalog.governed
        self._work: list[_Work] = []
        self._trying = False
        self._asked: set[tuple[Client, str]] = set()
        self._failed: dict[tuple[Client, str], PartyError] = {}

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        query = client, select
        if query not in self._asked:
            if self._trying:
                raise _Unanswered([query])
            self.describe_each([query, *self._ahead()])
        if query in self._failed:
            raise self._failed[query]
        try:
            return self._catalog.describe(client, select)
        except (LostError, ReplyError):
            raise
        except PartyError as error:
            self._failed[query] = error
            raise

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        wanted = [query for query in dict.fromkeys(selects) if query not in self._asked]
        self._asked.update(wanted)
        if len(wanted) < 2:
            return
        try:
            self._catalog.describe_each(wanted)
        except ReplyError as error:  # each of its queries raises it, at its place
            self._failed |= {query: error for query in wanted if str(query[0]) == error.party}

    def each(
        self, work: Sequence[Callable[[], T]], tries: Sequence[Callable[[], T]] | None = None
    ) -> list[T]:
        """Return the results of all pieces of work, in order.

        `tries` are functions that ask for the same as the pieces and change nothing: the pieces
        themselves if None.
        """
        tries = work if tries is None else tries
        if self._trying:
            return self._tried(tries)
        begun = _Work(tries)
        self._work.append(begun)
        try:
            results = []
            for piece in work:
                begun.next += 1
                results.append(piece())
            return results
        finally:
            self._work.pop()

    def _tried(self, tries: Sequence[Callable[[], T]]) -> list[T]:
        """Return results of all pieces, or raise _Unanswered for all that they ask for."""
        results, selects = list[T](), list[tuple[Client, str]]()
        for piece in tries:
            try:
                results.append(piece())
            except _Unanswered as unanswered:
                selects += unanswered.selects
        if selects:
            raise _Unanswered(selects)
        return results

    def _ahead(self) -> list[tuple[Client, str]]:
        """Return what the pieces still to come ask for next."""
        selects: list[tuple[Client, str]] = []
        self._trying = True
        try:
            for work in self._work:
                for number in range(work.next, len(work.tries)):
                    if number in work.settled:
                        continue
                    try:
                        work.tries[number]()
                        work.settled.add(number)
                    except _Unanswered as unanswered:
                        selects += unanswered.selects
                    except LostError:
                        raise  # it may have asked for one of several that have no answer yet
                    except Error:
                        work.settled.add(number)
        finally:
            self._trying = False
        return selects
