"""Demands of a run on the accounts that owners keep (`ledger`), and refusals under an account. The
ε of several releases together is computed in `sqlfl.privacy.accountant`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        self, request: Request, fragments: tuple[str, ...], proposed: Read, ruling: Ruling
    ) -> tuple[tuple[Verdict, ...], Asking]:
        """Return the refusals, or else the run's demands on the ledger."""
        tables = frozenset().union(*proposed.tables.values())
        budgets = {t: budgets_of(ruling.rules([t]), ruling.total_rules(t)) for t in tables}
        accounts = {
            table: table_budgets for table, table_budgets in budgets.items() if table_budgets
        }
        if not accounts:
            return (), ()
        verdicts = tuple(_unnoised(request, proposed, accounts, ruling))
        if verdicts:
            return verdicts, ()
        asked = self._asking(request, fragments, proposed, accounts, ruling)
        try:
            self._ledger.check(self._analyst, asked)
        except PolicyError as error:
            return (Verdict(ms.CLIENT, "", REFUSED, error.message),), asked
        return (), asked

    def remains(self, asked: Asking) -> Iterator[Verdict]:
        every = (
            (demand.table, budget, demand.entries) for demand in asked for budget in demand.budgets
        )
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
        proposed: Read,
        accounts: Mapping[Table, tuple[Budget, ...]],
        ruling: Ruling,
    ) -> Asking:
        asked: list[Demand] = []
        start = 0
        with closing(sql.cursor(self._con)) as cursor:
            for item in proposed.slots:
                texts = fragments[start : start + len(item.fragments)]
                start += len(item.fragments)
                accounted = [table for table in proposed.tables[item.slot] if table in accounts]
                row_keys = row_keys_of(item, proposed.readings[item.slot], ruling)
                label = None if item.privacy is None else item.privacy.label
                draw = ""
                if accounted and label is not None and row_keys is not None:
                    ways = [way_to_label(cursor, text) for text in texts]
                    draw = draw_of(self._draws(item), label, ways, row_keys)
                entries = noising.entries(request, item, draw) if accounted else ()
                asked += [Demand(table, accounts[table], entries, item.slot) for table in accounted]
        return tuple(asked)


def _unnoised(
    request: Request, proposed: Read, accounts: Mapping[Table, tuple[Budget, ...]], ruling: Ruling
) -> Iterator[Verdict]:
    """Yield the data of these tables that would leave without noise that an account covers."""
    readings = [reading for of_slot in proposed.readings.values() for reading in of_slot]
    for table, why in noising.unstable(accounts, readings, partial(ruling.may, JOIN)):
        name = ".".join(table[1:])
        said = has(accounts[table][0].rule)
        yield Verdict(ms.CLIENT, name, REFUSED, f"{said}, which takes {why}")
    for item in proposed.slots:
        budgets = [accounts[table][0] for table in proposed.tables[item.slot] if table in accounts]
        if not budgets:
            continue
        said = has(f"{budgets[0].rule} = {budgets[0].epsilon:g}")
        texts = proposed.readings[item.slot]
        for what, why in noising.hindrance(request, item, request.asked, texts):
            yield Verdict(item.slot, what, REFUSED, f"{said}, which takes {why}")


def reserved(proposed: Read, asked: Asking) -> dict[int, float]:
    """Return μ² that training may release of a row of each slot, by the run's reservations."""
    return {
        item.slot: most
        for item in proposed.slots
        for demand in asked
        if demand.slot == item.slot
        for most in [noising.allowance(item, demand.entries)]
        if most is not None
    }
