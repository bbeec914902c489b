"""Which messages a statement exchanges, phase by phase, with the size of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.planner.federated.into import Into
from sqlfl.planner.protocol import symbols as sym
from sqlfl.planner.protocol.amounts import NOTHING, Amount, Content, content
from sqlfl.planner.protocol.exchanges import WHOLE, Call, Exchange, Run, exchange
from sqlfl.planner.protocol.rounds import ENCODED, ROUNDS
from sqlfl.planner.protocol.sizes import Size
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.schema import Client, specifications_to_json


def protocol(run: Run) -> tuple[Exchange, ...]:
    """All exchanges of a run in which nothing fails, in order; planning comes first."""
    phases = {"train": training, "evaluate": evaluation, "predict": prediction}[run.purpose]
    return tuple(item for item in phases(run) if item.sends)


def training(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        *(weighted_encoding(run) if run.weighted else [encoding(run), labels(run)]),
        *([over_towers(run, "findings", findings)] if run.findings else []),
        *ROUNDS[str(run.options["algorithm"])](run),
        *([releases(run)] if run.protection else []),
        over_towers(run, "save", save),
        finish(run),
    ]


def evaluation(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        labels(run),
        weights(run),
        *scoring(run),
        *([releases(run)] if run.protection else []),
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
    listed = []
    for client in run.clients:
        what = "names of schemas, tables and columns, types, estimated rows; whether noise lasts"
        what += ", which databases are the same" if several[client.party] > 1 else ""
        reply = content(ms.Tables, what, tables=sym.of_database("schema_text", client))
        listed.append(Call(client, WHOLE, content(ms.ListTables), reply))
    described = [
        exchange("plan", sym.of_database("described", client), [describing(client)])
        for client in run.clients
    ]
    return [exchange("plan", 1, listed), *described]


def describing(client: Client) -> Call:
    columns, text = sym.of_database("column_names", client), sym.of_database("column_text", client)
    return Call(
        client,
        WHOLE,
        content(ms.Describe, select=sym.of_database("select_text", client)),
        content(ms.Columns, names=Amount(columns, text), types=Amount(columns, Size())),
    )


def snapshot(run: Run) -> Exchange:
    calls = []
    for client in run.clients:
        specification = specifications_to_json(run.specifications[client])
        fragments = run.fragments[client]
        request = content(ms.Prepare, specification=specification, fragments=fragments)
        reply = content(ms.Prepared, fragments=len(fragments))
        calls.append(Call(client, WHOLE, request, reply))
    return exchange("snapshot", 1, calls)


def keys(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        for client in slot.clients if slot.keys else ():
            rows = sym.of_client("rows", slot, client)
            several = sum(1 for f in slot.fragments if f.client == client) > 1
            what = "keyed hashes of join keys, one code a row"
            what += "; the row's fragment" if several else ""
            tags = tuple(sym.of_client("tags", slot, client, k, f"key{k}") for k in slot.keys)
            left_out = {} if several else {"fragment": NOTHING}
            reply = content(ms.JoinKeys, what, rows=rows, keys=len(tags), tags=tags, **left_out)
            calls.append(Call(client, slot.index, content(ms.SendKeys), reply))
    return exchange("join keys", 1, calls)


def activation(run: Run) -> Exchange:
    calls = []
    for slot in run.active:
        for client in slot.clients:
            request = content(ms.Activate, active=sym.of_client("active", slot, client))
            reply = content(ms.Ready)
            if run.merged(client, slot.index) and not run.weighted:
                reply = own_statistics(run, slot, client)
            calls.append(Call(client, slot.index, request, reply))
    return exchange("active rows", 1, calls)


def weights(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        for client in slot.clients if slot.weight else ():
            active = sym.of_client("active", slot, client)
            what = f"weights in clear: {run.ucq.weight}"
            reply = content(ms.Weights, what, active=active)
            calls.append(Call(client, slot.index, content(ms.SendWeights), reply))
    return exchange("weights", 1, calls)


def split(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        for client in slot.clients if slot.split else ():
            reply = content(ms.Split, active=sym.of_client("active", slot, client))
            calls.append(Call(client, slot.index, content(ms.SendSplit), reply))
    return exchange("validation rows", 1, calls)


def weighing(run: Run) -> Exchange:
    what = "what each active row counts in training: the weights of its joined rows, summed"
    what += ", and the sum of all"
    if run.options.get("class_weight") is not None:
        what += ", which may tell their classes"
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            request = content(ms.Weigh, what, active=sym.of_client("active", slot, client))
            reply = content(ms.Ready)
            if run.merged(client, slot.index):
                reply = own_statistics(run, slot, client)
            calls.append(Call(client, slot.index, request, reply))
    return exchange("what rows count", 1, calls)


def own_statistics(run: Run, slot: Slot, client: Client) -> Content:
    what = ms.Statistics.words
    if run.specification(client, slot.index).warm and any(
        f.kind == CATEGORY for f in slot.features
    ):
        what += " (by the key of the model that training starts from)"
    own = run.specification(client, slot.index).privacy
    if own is not None and own.statistics == "noised":
        what = "noised statistics within public bounds; hashed categories that are not rare"
    return content(ms.Statistics, what, **encoded(run, slot, client))


def encoding(run: Run) -> Exchange:
    calls = []
    for slot in run.towers:
        if run.merged(slot.clients[0], slot.index):
            request = content(ms.SetEncoding, **encoded(run, slot, None))
            reply = content(ms.Ready, ENCODED)
            calls += [Call(client, slot.index, request, reply) for client in slot.clients]
    return exchange("encoding", 1, calls)


def encoded(run: Run, slot: Slot, client: Client | None) -> dict[str, int | tuple[Size, ...]]:
    """Sizes of the slot's statistics, of one client or merged over all of them."""
    numeric = [f for f in slot.features if f.kind != CATEGORY]
    entries = tuple(
        vocabulary(run, slot, position, client)
        for position, feature in enumerate(slot.features)
        if feature.kind == CATEGORY
    )
    return {
        "numeric": sum(f.width for f in numeric),
        "features": len(numeric),
        "categories": len(entries),
        "entries": entries,
    }


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
            reply = targets("targets in clear", active)
            if run.specification(client, slot.index).classes:
                names = sym.of_client("classes", slot, client)
                classes = Amount(names, sym.of_client("class_text", slot, client))
                reply = coded("targets in clear: class names, one code a row", active, classes)
            reply = noised_labels(run, slot, client) or reply
            calls.append(Call(client, slot.index, content(ms.SendLabels), reply))
    return exchange("labels", 1, calls)


def targets(what: str, active: Size) -> Content:
    return content(ms.Labels, what, active=active, classes=NOTHING, codes=NOTHING)


def coded(what: str, active: Size, classes: Amount | tuple[str, ...]) -> Content:
    return content(ms.Labels, what, active=active, values=NOTHING, classes=classes)


def noised_labels(run: Run, slot: Slot, client: Client) -> Content | None:
    """All public classes travel, whichever occur."""
    own = run.specification(client, slot.index).privacy
    if own is None or own.label is None:
        return None
    label, active = own.label, sym.of_client("active", slot, client)
    what = f"targets, noised: {label.words}, once per row"
    if label.bounds is not None:
        return targets(what, active)
    what += f"; all {len(label.classes)} classes, one code a row"
    return coded(what, active, label.classes)


def releases(run: Run) -> Exchange:
    """What each client says that it has released, before its block is saved."""
    calls = [
        Call(client, slot.index, content(ms.SendReleases), content(ms.Releases))
        for slot in run.ucq.slots
        if slot.features or slot.target
        for client in slot.clients
    ]
    return exchange("releases", 1, calls)


def findings(run: Run, slot: Slot, client: Client) -> Call:
    what = "which features are NULL in every row"
    if run.purpose == "train":
        what += ", the same in every row, or a text for nearly every row"
    elif any(f.kind == CATEGORY for f in slot.features):
        what += "; how many joined rows have a category that training did not"
    reply = content(ms.Findings, what, features=len(slot.features))
    return Call(client, slot.index, content(ms.SendFindings), reply)


def save(run: Run, slot: Slot, client: Client) -> Call:
    request = content(ms.Save, model=sym.RUN, name=run.model)
    return Call(client, slot.index, request, content(ms.Saved))


def score(run: Run, slot: Slot, client: Client) -> Call:
    what = "X θ" if run.tower is None else "h, outputs of the tower,"
    reply = content(
        ms.Predictions,
        f"partial predictions {what} of active rows",
        rows=sym.of_client("active", slot, client),
        outputs=run.outputs,
        products=0,
    )
    return Call(client, slot.index, content(ms.Score, model=sym.RUN), reply)


def identifiers(run: Run) -> Exchange:
    calls = []
    for slot in run.ucq.slots:
        names = ", ".join(run.ucq.identifiers[i].name for i in slot.identifiers)
        for client in slot.clients if slot.identifiers else ():
            reply = content(
                ms.Identifiers,
                f"identifiers in clear: {names}",
                identifiers=len(slot.identifiers),
                active=sym.of_client("active", slot, client),
                columns=sym.of_client("identifiers", slot, client),
            )
            calls.append(Call(client, slot.index, content(ms.SendIdentifiers), reply))
    return exchange("identifiers", 1, calls)


def writing(run: Run, into: Into) -> Exchange:
    what = "predictions" + (" and probabilities" if into.classes else "")
    what += ", the active rows that they are of; names of the table and its columns"
    what += ", which may take the place of another" if into.replace else ""
    calls = []
    for client, table in into.tables:
        rows = sym.JOINED
        if len(into.tables) > 1:
            rows = sym.of_client("written", run.ucq.slots[into.slots[0]], client)
        request = content(
            ms.Write,
            what,
            table=table,
            names=into.names,
            slots=len(into.slots),
            written=rows,
            prediction="uint32" if into.classes else "float64",
            classes=into.classes,
            type=into.type,
        )
        calls.append(Call(client, WHOLE, request, content(ms.Written)))
    return exchange("write", 1, calls)


def commit(into: Into) -> Exchange:
    request, reply = content(ms.Commit), content(ms.Ready)
    return exchange("commit", 1, [Call(client, WHOLE, request, reply) for client in into.clients])


def finish(run: Run) -> Exchange:
    request, reply = content(ms.Finish), content(ms.Ready)
    return exchange("finish", 1, [Call(client, WHOLE, request, reply) for client in run.clients])


def over_towers(run: Run, phase: str, call: Callable[[Run, Slot, Client], Call]) -> Exchange:
    return exchange(phase, 1, [call(run, s, c) for s in run.towers for c in s.clients])
