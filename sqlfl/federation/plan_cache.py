"""Plans of statements that come again, while the parties answer what they answered then.

A plan follows from the text of the statement, the model that it scores and what the parties say of
their tables: so it is made once for each of these. The parties are asked anew each time, for the
same things.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from sqlfl.base.errors import PartyError, ReplyError
from sqlfl.contract.schema import Catalog, Client, Column, Place, Table
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.statements import EvaluateModel, PredictModel, TrainModel
from sqlfl.planner.query.clock import asks_the_time

Answer = TypeVar("Answer")
Planned: TypeAlias = TrainModel | EvaluateModel | PredictModel
Question: TypeAlias = tuple[str, *tuple[Any, ...]]
"""The method of the catalog, and what it is asked of."""

MOST = 64
"""Statements whose plans are kept."""
WIDEST = 20_000
"""Columns of all tables that parties have told of, beyond which a plan is not kept: their listings
would take more memory than plans save time."""


class _Told(Catalog, Protocol):
    def describe_each(self, selects: Mapping[Client, str]) -> None:
        """`describe` of one query of each client has its answers then."""


@dataclass
class _Asked:
    """A catalog that remembers what it was asked, and answered."""

    catalog: Catalog
    refused: Mapping[Question, ReplyError]
    """What a party has been asked just now, with a reply that is none: to ask once more would hide
    that."""
    answers: dict[Question, Any] = field(default_factory=dict)
    failed: bool = False
    """It had no answer once."""

    @property
    def columns(self) -> int:
        """Of the tables that were told of."""
        listings = (
            tables for (question, *_), tables in self.answers.items() if question == "tables"
        )
        return sum(len(table.columns) for tables in listings for table in tables)

    def parties(self) -> tuple[str, ...]:
        return self._ask(self.catalog.parties)

    def clients(self, party: str) -> tuple[Client, ...]:
        return self._ask(self.catalog.clients, party)

    def tables(self, client: Client) -> tuple[Table, ...]:
        return self._ask(self.catalog.tables, client)

    def places(self, client: Client) -> tuple[Place, ...]:
        return self._ask(self.catalog.places, client)

    def fleeting(self, client: Client) -> str:
        return self._ask(self.catalog.fleeting, client)

    def governed(self, client: Client) -> bool:
        return self._ask(self.catalog.governed, client)

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        return self._ask(self.catalog.describe, client, select)

    def _ask(self, question: Callable[..., Answer], *of: Any) -> Answer:
        try:
            if (question.__name__, *of) in self.refused:
                raise self.refused[question.__name__, *of]
            answer = question(*of)
        except BaseException:
            self.failed = True
            raise
        self.answers[question.__name__, *of] = answer
        return answer


@dataclass(frozen=True)
class _Kept:
    plan: FederatedPlan
    answers: dict[Question, Any]
    remarks: tuple[str, ...]

    def holds(self, catalog: _Told, refused: dict[Question, ReplyError]) -> bool:
        """Whether the parties answer as they did. A reply that is none is put into `refused`."""
        described: dict[Client, deque[str]] = {}
        for (question, *of), answer in self.answers.items():
            if question == catalog.describe.__name__:
                described.setdefault(of[0], deque()).append(of[1])
                continue
            try:
                if getattr(catalog, question)(*of) != answer:
                    return False
            except ReplyError as error:
                refused[question, *of] = error
                return False
            except PartyError:
                return False
        while described:
            selects = {client: texts.popleft() for client, texts in described.items()}
            if not self._described(catalog, selects, refused):
                return False
            described = {client: texts for client, texts in described.items() if texts}
        return True

    def _described(
        self,
        catalog: _Told,
        selects: Mapping[Client, str],
        refused: dict[Question, ReplyError],
    ) -> bool:
        question = catalog.describe.__name__
        try:
            catalog.describe_each(selects)
        except ReplyError as error:
            (client,) = [client for client in selects if str(client) == error.party]
            refused[question, client, selects[client]] = error
            return False
        except PartyError:
            return False
        return all(catalog.describe(*of) == self.answers[question, *of] for of in selects.items())


class Plans:
    """Those that were made last; several threads may ask for one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def plan(
        self,
        statement: Planned,
        catalog: _Told,
        remark: Callable[[str], None],
        make: Callable[[Catalog, Callable[[str], None]], FederatedPlan],
        run: str | None = None,
    ) -> FederatedPlan:
        """What `make` makes of a catalog and what is told what is odd; `run` is that of the model
        that is scored. A statement that asks for the time, or starts from a model, is planned each
        time."""
        key, passing = (_text_of(statement), run), _is_of_the_moment(statement)
        with self._lock:
            kept = None if passing else self._kept.get(key)  # RESUME is not as its text says
        refused: dict[Question, ReplyError] = {}
        if kept is not None and kept.holds(catalog, refused):
            for text in kept.remarks:
                remark(text)
            name = str(statement.name)
            same = kept.plan.name == name and kept.plan.sql == statement.sql
            return kept.plan if same else kept.plan.renamed(name, statement.sql)
        remarks: list[str] = []
        asked = _Asked(catalog, refused)
        plan = make(asked, remarks.append)
        for text in remarks:
            remark(text)
        if not (asked.failed or passing) and asked.columns <= WIDEST:
            with self._lock:
                self._kept[key] = _Kept(plan, asked.answers, tuple(remarks))
                self._kept.move_to_end(key)
                while len(self._kept) > MOST:
                    self._kept.popitem(last=False)
        return plan


def _is_of_the_moment(statement: Planned) -> bool:
    warm = any(option.name.lower() == "warm_start" for option in statement.options)
    return warm or asks_the_time(statement.query)


def _text_of(statement: Planned) -> Hashable:
    """The statement's text but for the model's name, of which only the length shows in a plan."""
    start, end = statement.name.span
    name = str(statement.name)
    return statement.sql[:start], statement.sql[end:], end - start, len(name), len(name.encode())
