"""Cache of plans for repeated statements, valid while the parties answer as before.

A plan follows from the statement's text, the model that it scores, and the parties' answers about
their tables. The parties are asked again each time, for the same facts. The normal form of a query
is cached in the same way, for other statements over it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from sqlglot import exp

from sqlfl.base.errors import PartyError, ReplyError
from sqlfl.contract.schema import Catalog, Client, Column, Place, Table
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel, PredictModel, Span, TrainModel
from sqlfl.planner.query.clock import asks_the_time
from sqlfl.planner.query.draft import NO_ROLES, Roles
from sqlfl.planner.query.items import PlacedItem
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import Ucq

Answer = TypeVar("Answer")
Made = TypeVar("Made")
Planned: TypeAlias = TrainModel | EvaluateModel | PredictModel
Question: TypeAlias = tuple[str, *tuple[Any, ...]]
"""A method of the catalog and its arguments."""

MAX_PLANS = 128
"""Maximum number of cached plans and normal forms."""
MAX_LISTED_COLUMNS = 20_000
"""Maximum number of columns in the parties' listings. A plan with more is not cached, because the
listings would cost more memory than plans save time.
"""


@dataclass
class _Asked:
    """A catalog that records its questions and answers."""

    catalog: Catalog
    refused: Mapping[Question, ReplyError]
    """Invalid replies that a party has just sent. A second request could hide them."""
    answers: dict[Question, Any] = field(default_factory=dict)
    failed: bool = False
    """True if a question had no answer."""

    @property
    def columns(self) -> int:
        """Number of columns in the listed tables."""
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

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        describe = self.catalog.describe.__name__
        self.catalog.describe_each(of for of in selects if (describe, *of) not in self.refused)

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
class _Kept(Generic[Made]):
    made: Made
    answers: dict[Question, Any]
    remarks: tuple[str, ...]

    def holds(self, catalog: Catalog, refused: dict[Question, ReplyError]) -> bool:
        """Return whether the parties answer as before. An invalid reply is put into `refused`."""
        describe = catalog.describe.__name__
        selects = [(of[0], of[1]) for question, *of in self.answers if question == describe]
        listings = [asked for asked in self.answers if asked[0] != describe]
        if not all(self._holds(catalog, question, refused) for question in listings):
            return False
        try:
            catalog.describe_each(selects)
        except ReplyError as error:
            refused.update({(describe, *of): error for of in selects if str(of[0]) == error.party})
            return False
        except PartyError:
            return False
        return all(self._holds(catalog, (describe, *of), refused) for of in selects)

    def _holds(
        self, catalog: Catalog, question: Question, refused: dict[Question, ReplyError]
    ) -> bool:
        name, *of = question
        try:
            return bool(getattr(catalog, name)(*of) == self.answers[question])
        except ReplyError as error:
            refused[question] = error
        except PartyError:
            pass
        return False


class Plans:
    """The latest plans and normal forms; several threads may ask for one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def plan(
        self,
        statement: Planned,
        catalog: Catalog,
        remark: Callable[[str], None],
        make: Callable[[Catalog, Callable[[str], None]], FederatedPlan],
        run: str | None = None,
    ) -> FederatedPlan:
        """Return a cached plan, or make one with `make`, a function of a catalog and a callback for
        warnings.

        `run` is the run of the scored model. A statement that depends on the time or starts from a
        model is planned each time.
        """
        passing = _is_of_the_moment(statement)  # RESUME is not as its text says
        key = None if passing else (_text_of(statement), run)
        plan = self._answered(key, catalog, make, remark)
        name = str(statement.name)
        same = plan.name == name and plan.sql == statement.sql
        return plan if same else plan.renamed(name, statement.sql)

    def ucq(
        self,
        place: Span,
        query: exp.Query,
        sql: str,
        catalog: Catalog,
        roles: Roles = NO_ROLES,
        *,
        allow_cross_join: bool = False,
        split: bool = False,
        folds: bool = False,
        noised: bool = False,
        transforms: Sequence[PlacedItem] = (),
    ) -> Ucq:
        """Return the normal form of a query, as `to_ucq` does: a cached one if another statement
        had the same query, in the same words, with these roles. `place` is that of the query in
        `sql`.

        A query that asks for the time has a new one each time, and so has one with transforms, ID
        columns or a unit, which stand elsewhere in the statement.
        """
        start, end = place
        elsewhere = transforms or roles.identifiers or roles.unit is not None
        passing = bool(elsewhere) or asks_the_time(query)
        given = (allow_cross_join, split, folds, noised)
        ucq, origin = self._answered(
            None if passing else (sql[start:end], to_sql(query), roles, given),
            catalog,
            lambda asked, _: (
                to_ucq(
                    query,
                    sql,
                    asked,
                    roles,
                    allow_cross_join=allow_cross_join,
                    split=split,
                    folds=folds,
                    noised=noised,
                    transforms=transforms,
                ),
                start,
            ),
        )
        return ucq if start == origin else replace(ucq, shift=start - origin)

    def _answered(
        self,
        key: Hashable | None,
        catalog: Catalog,
        make: Callable[[Catalog, Callable[[str], None]], Made],
        remark: Callable[[str], None] = lambda _: None,
    ) -> Made:
        """Return the value of the key if the catalog answers as before, else make and cache it.
        Without a key it is not cached.
        """
        with self._lock:
            kept: _Kept[Made] | None = None if key is None else self._kept.get(key)
        refused: dict[Question, ReplyError] = {}
        if kept is not None and kept.holds(catalog, refused):
            for text in kept.remarks:
                remark(text)
            return kept.made
        remarks: list[str] = []
        asked = _Asked(catalog, refused)
        made = make(asked, remarks.append)
        for text in remarks:
            remark(text)
        if key is not None and not asked.failed and asked.columns <= MAX_LISTED_COLUMNS:
            with self._lock:
                self._kept[key] = _Kept(made, asked.answers, tuple(remarks))
                self._kept.move_to_end(key)
                while len(self._kept) > MAX_PLANS:
                    self._kept.popitem(last=False)
        return made


def _is_of_the_moment(statement: Planned) -> bool:
    warm = any(option.name.lower() == "warm_start" for option in statement.options)
    return warm or asks_the_time(statement.query)


def _text_of(statement: Planned) -> Hashable:
    """Return the statement's text without the model's name; only the length of the name affects a
    plan.
    """
    start, end = statement.name.span
    name = str(statement.name)
    return statement.sql[:start], statement.sql[end:], end - start, len(name), len(name.encode())
