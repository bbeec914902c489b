"""Which messages a statement exchanges, phase by phase, with the size of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sqlfl.planner.explain.noise import mechanism
from sqlfl.planner.federated.into import Into
from sqlfl.planner.protocol import symbols as sym
from sqlfl.planner.protocol.exchanges import (
    NOTHING,
    WHOLE,
    Amount,
    Call,
    Exchange,
    Run,
    exchange,
    numbers,
    text,
)
from sqlfl.planner.protocol.rounds import ROUNDS, Reply
from sqlfl.planner.protocol.sizes import Size
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.schema import Client, specifications_to_json

TAG_BYTES = 16
READY = numbers(1, 8)
RELEASES = numbers(11, 8)


def protocol(run: Run) -> tuple[Exchange, ...]:
    """All exchanges of a run in which nothing fails, in order; planning comes first."""
    phases = {"train": training, "evaluate": evaluation, "predict": prediction}[run.purpose]
    return tuple(item for item in phases(run) if item.sends)


def training(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        *(weighted_encoding(run) if run.weighted else [encoding(run), labels(run)]),
        *([over_towers(run, "findings", findings)] if run.findings else []),
        *ROUNDS[run.training.algorithm](run),
        *([] if run.privacy is None else [releases(run)]),
        over_towers(run, "save", save),
        finish(run),
    ]


def evaluation(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        labels(run),
        weights(run),
        *scoring(run),
        *([] if run.privacy is None else [releases(run)]),
        finish(run),
    ]


def prediction(run: Run) -> list[Exchange]:
    found = [*preparation(run), *scoring(run)]
    if run.into is None:
        return [*found, identifiers(run), finish(run)]
    return [*found, writing(run, run.into), commit(run.into), finish(run)]


def scoring(run: Run) -> list[Exchange]:
    asked = [over_towers(run, "findings", findings)] if run.findings else []
    return [over_towers(run, "score", score), *asked]


def preparation(run: Run) -> list[Exchange]:
    """Planning, the snapshot, its join keys, and the rows that occur in the join."""
    return [*planning(run), snapshot(run), keys(run), activation(run)]


def weighted_encoding(run: Run) -> list[Exchange]:
    """Labels first: weights depend on them, and encoding on the weights."""
    return [labels(run), weights(run), split(run), weighing(run), encoding(run)]


def planning(run: Run) -> list[Exchange]:
    """What the coordinator asks before there is a plan: names and types, never values."""
    several = Counter(client.party for client in run.clients)
    listed = [
        Call(
            client, WHOLE,
            "list_tables", "", NOTHING,
            "tables",
            "names of schemas, tables and columns, types, estimated rows; whether noise lasts"
            + (", which databases are the same" if several[client.party] > 1 else ""),
            text(sym.of_database("schema_text", client)),
        )
        for client in run.clients
    ]  # fmt: skip
    exchanges = [exchange("plan", 1, listed)]
    for client in run.clients:
        columns = Amount(
            2 * sym.of_database("column_names", client), sym.of_database("column_text", client)
        )
        call = Call(
            client, WHOLE,
            "describe", "a SELECT to bind, not to run",
            text(sym.of_database("select_text", client)),
            "columns", "names and types of its columns", columns,
        )  # fmt: skip
        exchanges.append(exchange("plan", sym.of_database("described", client), [call]))
    return exchanges


def snapshot(run: Run) -> Exchange:
    calls = []
    for client in run.clients:
        specifications, fragments = run.specifications[client], run.fragments[client]
        sent = text(specifications_to_json(specifications))
        for fragment in fragments:
            sent = sent + text(fragment)
        calls.append(
            Call(
                client, WHOLE,
                "prepare", "the fragments' SQL", sent,
                "prepared", "rows per fragment, rows without a label",
                numbers(2 * len(fragments), 8),
            )
        )  # fmt: skip
    return exchange("snapshot", 1, calls)


def keys(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        for client in slot.clients if slot.keys else ():
            rows = sym.of_client("rows", slot, client)
            several = sum(1 for f in slot.fragments if f.client == client) > 1
            amount = numbers(rows, 2) if several else NOTHING
            for key in slot.keys:
                tags = sym.of_client("tags", slot, client, key, f"key{key}")
                amount = amount + Amount(tags, TAG_BYTES * tags) + numbers(rows, 4)
            what = "keyed hashes of join keys, one code a row"
            what += "; the row's fragment" if several else ""
            calls.append(
                Call(client, slot.index, "send_keys", "", NOTHING, "join_keys", what, amount)
            )
    return exchange("join keys", 1, calls)


def activation(run: Run) -> Exchange:
    calls = []
    for slot in run.active:
        for client in slot.clients:
            active = sym.of_client("active", slot, client)
            down = numbers(2 * active, 4) + numbers(1, 8)
            sent = "rows that occur in the join, how often, and N"
            reply, what, up = "ready", "acknowledgement", READY
            if run.merged(client, slot.index) and not run.weighted:
                reply, what, up = own_statistics(run, slot, client)
            calls.append(Call(client, slot.index, "activate", sent, down, reply, what, up))
    return exchange("active rows", 1, calls)


def weights(run: Run) -> Exchange:
    calls = [
        Call(
            client, slot.index, "send_weights", "", NOTHING,
            "weights", f"weights in clear: {run.ucq.weight}",
            numbers(sym.of_client("active", slot, client), 8),
        )
        for slot in run.ucq.slots
        for client in (slot.clients if slot.weight else ())
    ]  # fmt: skip
    return exchange("weights", 1, calls)


def split(run: Run) -> Exchange:
    calls = [
        Call(
            client, slot.index, "send_split", "", NOTHING,
            "split", "which active rows are for validation, drawn by the client",
            numbers(sym.of_client("active", slot, client), 1),
        )
        for slot in run.ucq.slots
        for client in (slot.clients if slot.split else ())
    ]  # fmt: skip
    return exchange("validation rows", 1, calls)


def weighing(run: Run) -> Exchange:
    sent = "what each active row counts in training: the weights of its joined rows, summed"
    sent += ", and the sum of all"
    if run.training.class_weight is not None:
        sent += ", which may tell their classes"
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            down = numbers(sym.of_client("active", slot, client) + 1, 8)
            reply: Reply = ("ready", "acknowledgement", READY)
            if run.merged(client, slot.index):
                reply = own_statistics(run, slot, client)
            calls.append(Call(client, slot.index, "weigh", sent, down, *reply))
    return exchange("what rows count", 1, calls)


def own_statistics(run: Run, slot: Slot, client: Client) -> Reply:
    what = "weighted statistics; hashed categories"
    if run.specification(client, slot.index).warm and any(
        f.kind == CATEGORY for f in slot.features
    ):
        what += " (by the key of the model that training starts from)"
    own = run.specification(client, slot.index).privacy
    if own is not None and own.statistics == "noised":
        what = "noised statistics within public bounds; hashed categories that are not rare"
    return "statistics", what, statistics(run, slot, client, 3)


def encoding(run: Run) -> Exchange:
    calls = []
    for slot in run.towers:
        if run.merged(slot.clients[0], slot.index):
            down = statistics(run, slot, None, 2) + numbers(1, 8)
            sent = "merged statistics and hashed categories, and N"
            calls += [
                Call(
                    client, slot.index,
                    "set_encoding", sent, down,
                    "ready", "number of encoded columns", READY,
                )
                for client in slot.clients
            ]  # fmt: skip
    return exchange("encoding", 1, calls)


def statistics(run: Run, slot: Slot, client: Client | None, moments: int) -> Amount:
    """`moments` numbers per value column, missing values per feature, categories and counts.

    Of one client, or merged over all of them.
    """
    numeric = [f for f in slot.features if f.kind != CATEGORY]
    amount = numbers(moments * sum(f.width for f in numeric) + len(numeric), 8)
    for position, feature in enumerate(slot.features):
        if feature.kind == CATEGORY:
            found = vocabulary(run, slot, position, client)
            amount = amount + Amount(found, TAG_BYTES * found) + numbers(found, 8)
    return amount


def vocabulary(run: Run, slot: Slot, position: int, client: Client | None) -> Size:
    """Categories of which a count is sent: all that occur; in noised statistics all that are
    listed, or are found."""
    name, role = slot.features[position].name, "vocabulary"
    own = run.specification(client or slot.clients[0], slot.index).privacy
    if own is not None and own.statistics == "noised":
        listed, role = own.bounds[position], "frequent"
        if listed is not None:
            return Size(len(listed))
    if client is None:
        return sym.of_slot(f"merged_{role}", slot, position, name)
    return sym.of_client(role, slot, client, position, name)


def labels(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        for client in slot.clients if slot.target else ():
            active = sym.of_client("active", slot, client)
            what, amount = "targets in clear", numbers(active, 8)
            if run.specification(client, slot.index).classes:
                names = sym.of_client("classes", slot, client)
                what = "targets in clear: class names, one code a row"
                amount = Amount(names, sym.of_client("class_text", slot, client))
                amount = amount + numbers(active, 4)
            what, amount = noised_labels(run, slot, client) or (what, amount)
            calls.append(
                Call(client, slot.index, "send_labels", "", NOTHING, "labels", what, amount)
            )
    return exchange("labels", 1, calls)


def noised_labels(run: Run, slot: Slot, client: Client) -> tuple[str, Amount] | None:
    """All public classes travel, whichever occur."""
    own = run.specification(client, slot.index).privacy
    if own is None or own.label is None:
        return None
    assert run.privacy is not None
    label, active = own.label, sym.of_client("active", slot, client)
    what = f"targets, noised: {mechanism(run.privacy)}, once per row"
    if label.bounds is not None:
        return what, numbers(active, 8)
    what += f"; all {len(label.classes)} classes, one code a row"
    names = NOTHING
    for name in label.classes:
        names = names + text(name)
    return what, names + numbers(active, 4)


def releases(run: Run) -> Exchange:
    """What each client says that it has released, before its block is saved."""
    what = "how what left of the slot was noised, and how often"
    calls = [
        Call(client, slot.index, "send_releases", "", NOTHING, "releases", what, RELEASES)
        for slot in run.ucq.slots
        if slot.features or slot.target
        for client in slot.clients
    ]
    return exchange("releases", 1, calls)


def findings(run: Run, slot: Slot, client: Client) -> Call:
    """A flag of each kind and a count, for each feature."""
    what = "which features are NULL in every row"
    if run.purpose == "train":
        what += ", the same in every row, or a text for nearly every row"
    elif any(f.kind == CATEGORY for f in slot.features):
        what += "; how many joined rows have a category that training did not"
    number = len(slot.features)
    amount = numbers(3 * number, 1) + numbers(number, 8)
    return Call(client, slot.index, "send_findings", "", NOTHING, "findings", what, amount)


def save(run: Run, slot: Slot, client: Client) -> Call:
    sent = "names of run and model under which to keep the block, and of which epoch"
    down = text(sym.RUN) + text(run.model) + numbers(1, 8)
    return Call(
        client, slot.index, "save", sent, down, "saved", "whether it outlives the federation", READY
    )


def score(run: Run, slot: Slot, client: Client) -> Call:
    down = text(sym.RUN) + numbers(1, 8)
    amount = numbers(sym.of_client("active", slot, client) * run.outputs, 4)
    what = "X θ" if run.tower is None else "h, outputs of the tower,"
    return Call(
        client, slot.index,
        "score", "name of the block", down,
        "predictions", f"partial predictions {what} of active rows", amount,
    )  # fmt: skip


def identifiers(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        names = ", ".join(run.ucq.identifiers[i].name for i in slot.identifiers)
        for client in slot.clients if slot.identifiers else ():
            rows = sym.of_client("active", slot, client) * len(slot.identifiers)
            amount = Amount(rows, sym.of_client("identifiers", slot, client))
            what = f"identifiers in clear: {names}"
            calls.append(
                Call(
                    client, slot.index, "send_identifiers", "", NOTHING, "identifiers", what, amount
                )
            )
    return exchange("identifiers", 1, calls)


def writing(run: Run, into: Into) -> Exchange:
    calls = []
    for client, table in into.tables:
        rows = sym.JOINED
        if len(into.tables) > 1:
            rows = sym.of_client("written", run.ucq.slots[into.slots[0]], client)
        down = numbers(len(into.slots), 4)
        for item in (*table, *into.names, *into.classes, into.type):
            down = down + text(item)
        down = down + numbers(len(into.slots) * rows, 4)
        down = down + numbers(rows, 4 if into.classes else 8)
        down = down + numbers(len(into.classes) * rows, 8) + numbers(1, 8)
        what = "predictions" + (" and probabilities" if into.classes else "")
        sent = f"{what}, the active rows that they are of; names of the table and its columns"
        sent += ", which may take the place of another" if into.replace else ""
        calls.append(
            Call(client, WHOLE, "write", sent, down, "written", "rows of the table", READY)
        )
    return exchange("write", 1, calls)


def commit(into: Into) -> Exchange:
    calls = [
        Call(client, WHOLE, "commit", "", NOTHING, "ready", "acknowledgement", READY)
        for client in into.clients
    ]
    return exchange("commit", 1, calls)


def finish(run: Run) -> Exchange:
    calls = [
        Call(client, WHOLE, "finish", "", NOTHING, "ready", "acknowledgement", READY)
        for client in run.clients
    ]
    return exchange("finish", 1, calls)


def over_towers(run: Run, phase: str, call: Callable[[Run, Slot, Client], Call]) -> Exchange:
    return exchange(phase, 1, [call(run, s, c) for s in run.towers for c in s.clients])
