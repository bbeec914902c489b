"""Labels that are noised once per row: their slot, and the requirements on its rows."""

from __future__ import annotations

from sqlglot import exp

from sqlfl.contract.schema import Client
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.relations import ClientBranch
from sqlfl.planner.query.ucq import Slot

ONCE = "labels are noised once per row"


def noised_slot(draft: Draft) -> int | None:
    """Return the target's slot if labels are noised.

    Its rows must be distinguishable from their copies: noise per copy could be averaged out. Raises
    PlanError if they are not.
    """
    position = draft.target_position
    if not draft.noised or position is None:
        return None
    for block in draft.blocks:
        output = block.outputs[position]
        relation = block.relations[output.relation]
        if output.relation in block.optional:
            raise draft.error(
                f"{ONCE}, and the rows of {relation.label} are not all its own: it is on the right "
                "of a LEFT JOIN",
                output.term.span,
                "join it with JOIN, put it first, or leave label_epsilon out",
            )
        for branch in relation.branches:
            if _several(branch):
                raise draft.error(
                    f"{ONCE}, and {relation.label} is made of several tables, or lists, at "
                    f"{branch.client.party}: copies of one row could not be told from equal rows",
                    relation.span or output.term.span,
                    "take the label from one table; its others may stand in a table that the party "
                    "makes, with one row for each label",
                )
    return draft.blocks[0].outputs[position].relation


def _several(branch: ClientBranch) -> bool:
    """A row of a table may be several of the branch's."""
    shapes = (exp.Join, exp.Lateral, exp.Unnest, exp.Explode)
    return len(branch.sources) > 1 or any(
        source.copies
        or (
            isinstance(source.item, exp.Subquery)
            and (len(_tables(source.item)) > 1 or source.item.find(*shapes) is not None)
        )
        for source in branch.sources
    )


def refuse_twice(draft: Draft, slot: Slot) -> None:
    """Raises PlanError where a row may stand in two of a client's fragments: it would be noised in
    each."""
    seen: dict[tuple[Client, str], int] = {}
    for fragment in slot.fragments:
        source = fragment.select.args["from_"].this
        for table in dict.fromkeys(_tables(source)):
            if seen.setdefault((fragment.client, table), fragment.index) == fragment.index:
                continue
            position = draft.target_position
            assert position is not None
            span = draft.blocks[-1].outputs[position].term.span
            raise draft.error(
                f"{ONCE}, and {fragment.client.party}.{table} stands in several parts of the "
                "union, each with joins or conditions of its own: a row in two of them would have "
                "two labels",
                span,
                "write the parts as one SELECT, their conditions joined by OR",
            )


def _tables(item: exp.Expr) -> list[str]:
    tables = item.find_all(exp.Table)
    return [".".join(part.name.lower() for part in table.parts) for table in tables]
