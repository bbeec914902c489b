"""Quantities in size formulas, with their meanings.

A test, or an auditor, evaluates a formula by the symbols of a plan: `role` names the quantity;
`slot`, `client` and `part` name its place.
"""

from __future__ import annotations

from sqlfl.contract.schema import Client
from sqlfl.planner.federated.sizes import Size, Symbol
from sqlfl.planner.query.ucq import Slot

ROLES: dict[str, tuple[str, str]] = {
    "joined": ("N", "joined rows: rows of the query's result"),
    "outputs": ("d_c", "outputs of the model"),
    "rows": ("n[slot@client]", "rows of the client's snapshot"),
    "active": ("a[slot@client]", "rows of the snapshot that occur in the join (active rows)"),
    "trained": (
        "R[slot@client]",
        "active rows that differ in a feature (all of them, where the client does not tell "
        "which are equal)",
    ),
    "told": ("j[slot@client]", "active rows that it tells of, none where few are equal"),
    "sealed": (
        "l[slot@client.database]",
        "bytes of the groups that another database of the party merges",
    ),
    "tags": ("u[slot@client.key]", "distinct values of the join key in the snapshot, NULL apart"),
    "vocabulary": (
        "v[slot@client.feature]",
        "distinct values of the category in active rows (of weight above 0)",
    ),
    "points": (
        "q[slot@client.feature]",
        "groups of its rows, or values of many rows, that a client names for a curve",
    ),
    "merged_points": (
        "Q[slot.feature]",
        "points of a curve over all clients of the slot",
    ),
    "merged_vocabulary": (
        "y[slot.feature]",
        "distinct values of the category over all clients of the slot",
    ),
    "frequent": (
        "x[slot@client.feature]",
        "categories that are frequent enough at the client, up to noise",
    ),
    "merged_frequent": (
        "t[slot.feature]",
        "categories that are frequent enough at one of the slot's clients or more, up to noise",
    ),
    "columns": ("d[slot]", "encoded columns, d = p + q"),
    "numeric": ("p[slot]", "numeric encoded columns, missing indicators among them"),
    "onehot": ("q[slot]", "one-hot columns"),
    "pairs": ("h[slot]", "pairs of one-hot columns, a column with itself too: q (q + 1) / 2"),
    "stored": (
        "z[slot@client]",
        "pairs of categories that occur together (in rows of weight above 0; upper triangle)",
    ),
    "crossed": (
        "Y[slot@client]",
        "pairs of categories of two features, and of each category with itself",
    ),
    "merged_stored": ("z[slot]", "the same over all clients of the slot"),
    "block_columns": ("L[slot]", "encoded columns of the model's block"),
    "directions": (
        "X[slot]",
        "directions of the intercept: 1 and the columns of tables whose owners leave out what is "
        "part of it; 0 where the table is none of these",
    ),
    "names": (
        "Q[slot@client]",
        "bytes of the names of the block's features and categories, as the client knows them",
    ),
    "classes": ("K[slot@client]", "distinct classes among the client's active rows"),
    "class_text": ("k[slot@client]", "bytes of the client's distinct class names"),
    "identifiers": ("i[slot@client]", "bytes of the identifier columns of active rows"),
    "written": (
        "m[slot@client]",
        "joined rows that come from the client's rows of the slot",
    ),
    "configuration": ("c[slot@client]", "bytes of the options of training, as JSON"),
    "batch": (
        "b[slot@client]",
        "active rows in a batch, on average over all batches but the first of each epoch",
    ),
    "first_batch": (
        "g[slot@client]",
        "active rows in the first batch of an epoch, on average",
    ),
    "first_listed": (
        "l[slot@client]",
        "those of them that are listed: all, or none where a batch is all rows",
    ),
    "stepped": (
        "A[slot@client]",
        "active rows in a batch, on average over all batches",
    ),
    "listed": (
        "o[slot@client]",
        "joined rows that have a row of the client, of those that are listed, on average",
    ),
    "chosen": (
        "C[slot]",
        "encoded columns of the block that were told, on average over the weights that were sent",
    ),
    "chosen_in_all": ("I[slot]", "encoded columns of the block that were told, in the end"),
    "new_column": (
        "Z[slot@client]",
        "numbers of a column that is told for the first time, on average over all replies: none "
        "of one that was told before",
    ),
    "settled": (
        "W",
        "times that weights were sent without a further question: 1, or 0 where training was "
        "stopped",
    ),
    "sums": (
        "U",
        "times that embeddings were summed: batches, and in each epoch those of the rows for "
        "validation",
    ),
    "packed": ("B", "bytes of a sum's masked numbers, on average"),
    "rounds": ("T", "epochs that were run (lbfgs: iterations that moved the model)"),
    "steps": ("S", "batches that were run, over all epochs"),
    "exact": (
        "E",
        "iterations in 8-byte numbers: of joins whose tables' columns nearly cancel, or of a loss "
        "that nearly vanishes; of others 0",
    ),
    "renewals": (
        "F",
        "times that all scores and the gradient were asked for anew in 8-byte numbers: 0 where no "
        "iteration needs them",
    ),
    "proofs": (
        "V",
        "times that the gradient was measured in the end: 1, or 0 where training was stopped",
    ),
    "updates": (
        "M",
        "times that the strengths of curves and categories were found anew: 10 at most, and 0 of "
        "fewer than 200 joined rows",
    ),
    "paired": (
        "H",
        "times that databases of one table chose pairs of features together: 1, or 0 where "
        "training ends before, and of fewer than 200 joined rows",
    ),
    "grown": (
        "D[slot]",
        "numbers of a gradient of the block, on average: more once it has pairs of features",
    ),
    "checkpoints": ("C", "times that the model so far was kept: epochs / checkpoint, at most"),
    "mergers": (
        "G",
        "times that it is asked which rows are equal: 1, or 0 of joins of few rows, and of those "
        "that are never written down",
    ),
    "probes": ("P", "power rounds of the curvature estimate"),
    "run": ("r", "bytes of the name of a training run, under which its blocks are kept"),
    "schema_text": ("s[client]", "bytes of names of schemas, tables, columns, and types, as JSON"),
    "request_text": (
        "q[client]",
        "bytes of what the run is: its kind, options, and messages, as JSON",
    ),
    "described": ("D[client]", "exchanges that ask the database for the columns of SELECTs"),
    "selects": ("h[client]", "SELECTs of such an exchange, on average"),
    "select_text": ("e[client]", "bytes of these SELECTs, on average"),
    "column_text": ("f[client]", "bytes of the names and types of their columns, on average"),
    "column_names": ("w[client]", "their columns, on average"),
}
"""Role of a symbol -> (form of its name, meaning)."""

JOINED = Size(Symbol("N", "joined"))
OUTPUTS = Size(Symbol("d_c", "outputs"))
ROUNDS = Size(Symbol("T", "rounds"))
STEPS = Size(Symbol("S", "steps"))
SUMS = Size(Symbol("U", "sums"))
SETTLED = Size(Symbol("W", "settled"))
PACKED = Size(Symbol("B", "packed"))
EXACT = Size(Symbol("E", "exact"))
RENEWALS = Size(Symbol("F", "renewals"))
UPDATES = Size(Symbol("M", "updates"))
PAIRED = Size(Symbol("H", "paired"))
PROOFS = Size(Symbol("V", "proofs"))
RUN = Size(Symbol("r", "run"))
CHECKPOINTS = Size(Symbol("C", "checkpoints"))
MERGERS = Size(Symbol("G", "mergers"))
PROBES = Size(Symbol("P", "probes"))


def of_client(
    role: str, slot: Slot, client: Client, part: int | None = None, what: str = ""
) -> Size:
    """Return the quantity `role` of one client's rows of a slot; `what` names the part."""
    letter = ROLES[role][0].partition("[")[0]
    place = f"{slot.name}@{client}{'.' if what else ''}{what}"
    return Size(Symbol(f"{letter}[{place}]", role, slot.index, client, part))


def of_slot(role: str, slot: Slot, part: int | None = None, what: str = "") -> Size:
    """The quantity `role` of a whole slot."""
    letter = ROLES[role][0].partition("[")[0]
    place = f"{slot.name}{'.' if what else ''}{what}"
    return Size(Symbol(f"{letter}[{place}]", role, slot.index, None, part))


def of_database(role: str, client: Client) -> Size:
    """The quantity `role` of a client's database as a whole."""
    letter = ROLES[role][0].partition("[")[0]
    return Size(Symbol(f"{letter}[{client}]", role, None, client))
