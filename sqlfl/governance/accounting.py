"""Demands of a run on the accounts that owners keep (`ledger`), and refusals under an account. The
ε of several releases together is computed in `sqlfl.privacy.accountant`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.request import ALLOWED, REFUSED, Request, Verdict
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance import noising
from sqlfl.governance.ledger import Asking, Budget, Demand, Ledger
from sqlfl.governance.noising import budgets_of
from sqlfl.governance.policies import JOIN, Ruling
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.proposals import Read, row_keys_of
from sqlfl.governance.scopes import Table
from sqlfl.options.policies import TrainingPolicy, strictest
from sqlfl.udfs import sql
from sqlfl.udfs.labels.label_lineage import way_to_label
from sqlfl.udfs.labels.label_noise import draw_of


class Accounting:
    """Accounts of one client's analyst. draws : the key from which noise of a slot's labels
    follows; raises Error if it cannot be kept.
    """

    def __init__(
        self,
        con: sql.Connection,
        analyst: str,
        ledger: Ledger,
        draws: Callable[[SlotSpecification], bytes],
    ) -> None:
        self._con, self._analyst, self._ledger, self._draws = con, analyst, ledger, draws

    def asked(
        self, request: Request, fragments: tuple[str, ...], found: Read, ruling: Ruling
    ) -> tuple[tuple[Verdict, ...], Asking]:
        """Return the refusals, or else the run's demands on the ledger."""
        tables = frozenset().union(*found.tables.values())
        budgets = {t: budgets_of(ruling.rules([t]), ruling.total_rules(t)) for t in tables}
        accounts = {table: own for table, own in budgets.items() if own}
        if not accounts:
            return (), ()
        verdicts = tuple(_unnoised(request, found, accounts, ruling))
        if verdicts:
            return verdicts, ()
        asked = self._asking(request, fragments, found, accounts, ruling)
        try:
            self._ledger.check(self._analyst, asked)
        except PolicyError as error:
            return (Verdict(ms.CLIENT, "", REFUSED, error.message),), asked
        return (), asked

    def remains(self, asked: Asking) -> Iterator[Verdict]:
        every = ((own.table, budget, own.entries) for own in asked for budget in own.budgets)
        for table, budget, entries in every:
            account, delta = self._ledger.account(self._analyst, table, budget), budget.delta
            now, after = account.epsilon(delta), account.after(entries).epsilon(delta)
            name = ".".join(table[1:])
            words = f"{budget.rule} of {name}: {now:.4g} of {budget.epsilon:g} is spent"
            yield Verdict(ms.CLIENT, f"{words}, {after:.4g} after this run", ALLOWED, "")

    def _asking(
        self,
        request: Request,
        fragments: tuple[str, ...],
        found: Read,
        accounts: Mapping[Table, tuple[Budget, ...]],
        ruling: Ruling,
    ) -> Asking:
        asked: list[Demand] = []
        start = 0
        with closing(sql.cursor(self._con)) as cursor:
            for item in found.slots:
                texts = fragments[start : start + len(item.fragments)]
                start += len(item.fragments)
                own = [table for table in found.tables[item.slot] if table in accounts]
                row_keys = row_keys_of(item, found.readings[item.slot], ruling)
                label = None if item.privacy is None else item.privacy.label
                draw = ""
                if own and label is not None and row_keys is not None:
                    ways = [way_to_label(cursor, text) for text in texts]
                    draw = draw_of(self._draws(item), label, ways, row_keys)
                entries = noising.entries(request, item, draw) if own else ()
                asked += [Demand(table, accounts[table], entries, item.slot) for table in own]
        return tuple(asked)


def _unnoised(
    request: Request, found: Read, accounts: Mapping[Table, tuple[Budget, ...]], ruling: Ruling
) -> Iterator[Verdict]:
    """Yield the data of these tables that would leave without noise that an account covers."""
    readings = [own for of_slot in found.readings.values() for own in of_slot]
    for table, why in noising.unstable(accounts, readings, partial(ruling.may, JOIN)):
        name = ".".join(table[1:])
        said = has(accounts[table][0].rule)
        yield Verdict(ms.CLIENT, name, REFUSED, f"{said}, which takes {why}")
    for item in found.slots:
        own = [accounts[table][0] for table in found.tables[item.slot] if table in accounts]
        if not own:
            continue
        said = has(f"{own[0].rule} = {own[0].epsilon:g}")
        texts = found.readings[item.slot]
        for what, why in noising.hindrance(request, item, request.asked, texts):
            yield Verdict(item.slot, what, REFUSED, f"{said}, which takes {why}")


def strictest_of(ruling: Ruling, tables: Iterable[Table] | None) -> TrainingPolicy:
    """Return the strictest policy over these tables, or over all tables granted to the analyst."""
    own = [grant.table for grant in ruling.grants] if tables is None else tables
    rules = ruling.rules(own)
    return strictest(rules or ruling.policies.values())
