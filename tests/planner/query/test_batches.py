"""Several pieces of work ask for their descriptions in one exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from sqlfl.base.errors import PartyError, PlanError, ReplyError
from sqlfl.contract.schema import Client, Column
from sqlfl.planner.query.batches import BatchedCatalog
from tests.planner.conftest import DatabaseCatalog, database

ONE, OTHER = Client("one"), Client("other")


class CountedCatalog(DatabaseCatalog):
    """Catalog that keeps answers as a federation's does, and notes what it asks for."""

    def __init__(self) -> None:
        super().__init__({"one": (database(),), "other": (database(),)})
        self.asked: list[list[str]] = []
        self._known: dict[tuple[Client, str], tuple[Column, ...]] = {}

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        if (client, select) not in self._known:
            self.asked.append([select])
            self._known[client, select] = super().describe(client, select)
        return self._known[client, select]

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        selects = list(selects)
        self.asked.append([select for _, select in selects])
        try:
            answers = [super(CountedCatalog, self).describe(*query) for query in selects]
        except PartyError:
            return
        self._known |= dict(zip(selects, answers, strict=True))


@pytest.fixture
def counted() -> Iterator[CountedCatalog]:
    catalog = CountedCatalog()
    yield catalog
    for con in catalog.databases.values():
        con.close()


def name_of(catalog: BatchedCatalog, client: Client, *names: str) -> str:
    """The name of the last column, after the others were asked for one by one."""
    return [catalog.describe(client, f"SELECT 1 AS {name}")[0].name for name in names][-1]


def test_pieces_ask_together(counted: CountedCatalog) -> None:
    catalog = BatchedCatalog(counted)
    work = [partial(name_of, catalog, client, f"a{n}", f"b{n}") for n in range(3)
            for client in (ONE, OTHER)]  # fmt: skip
    assert catalog.each(work) == ["b0", "b0", "b1", "b1", "b2", "b2"]
    assert [len(asked) for asked in counted.asked] == [6, 6]


def test_pieces_within_pieces(counted: CountedCatalog) -> None:
    catalog = BatchedCatalog(counted)

    def outer(number: int) -> list[str]:
        name_of(catalog, ONE, f"o{number}")
        return catalog.each([partial(name_of, catalog, ONE, f"i{number}{n}") for n in range(4)])

    assert catalog.each([partial(outer, n) for n in range(3)])[2] == ["i20", "i21", "i22", "i23"]
    assert [len(asked) for asked in counted.asked] == [3, 12]


def test_pieces_that_need_different_numbers(counted: CountedCatalog) -> None:
    catalog = BatchedCatalog(counted)
    names = [[f"n{n}_{place}" for place in range(n + 1)] for n in range(4)]
    assert catalog.each([partial(name_of, catalog, ONE, *own) for own in names])[3] == "n3_3"
    assert [len(asked) for asked in counted.asked] == [4, 3, 2, 1]


def test_tries_are_made_in_place_of_the_work(counted: CountedCatalog) -> None:
    catalog, done = BatchedCatalog(counted), list[int]()

    def piece(number: int) -> str:
        done.append(number)
        return name_of(catalog, ONE, f"a{number}")

    numbers = range(5)
    tries: list[Callable[[], str]] = [partial(name_of, catalog, ONE, f"a{n}") for n in numbers]
    catalog.each([partial(piece, n) for n in numbers], tries)
    assert done == [*numbers]
    assert [len(asked) for asked in counted.asked] == [5]


def test_an_error_is_of_the_piece_that_makes_it(counted: CountedCatalog) -> None:
    catalog, done = BatchedCatalog(counted), list[int]()

    def piece(number: int) -> None:
        if number == 3:
            raise PlanError("the fourth")
        catalog.describe(ONE, f"SELECT {'missing' if number == 2 else number}")
        done.append(number)

    with pytest.raises(PartyError, match="missing"):
        catalog.each([partial(piece, number) for number in range(5)])
    assert done == [0, 1]
    # all together, and then each alone, up to the one that cannot be bound
    assert [len(asked) for asked in counted.asked] == [4, 1, 1, 1]


def test_what_cannot_be_bound_is_asked_once(counted: CountedCatalog) -> None:
    catalog = BatchedCatalog(counted)
    for _ in range(2):
        with pytest.raises(PartyError, match="missing"):
            catalog.describe(ONE, "SELECT missing")
    assert len(counted.asked) == 1


def test_an_invalid_reply_is_of_its_party(counted: CountedCatalog) -> None:
    def reply(selects: Iterable[tuple[Client, str]]) -> None:
        raise ReplyError(str(OTHER), "its reply to describe is nonsense")

    counted.describe_each = reply  # type: ignore[method-assign]
    catalog, done = BatchedCatalog(counted), list[Client]()

    def piece(client: Client) -> None:
        catalog.describe(client, "SELECT 1")
        done.append(client)

    with pytest.raises(ReplyError, match="nonsense"):
        catalog.each([partial(piece, client) for client in (ONE, OTHER)])
    assert done == [ONE]
