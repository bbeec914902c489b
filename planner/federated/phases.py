"""The messages of a statement, phase by phase, with their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from sqlfl import messages as ms
from sqlfl.contract.schema import Client, specifications_to_json
from sqlfl.contract.transforms import AUTO
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import WHOLE, Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.into import Into
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.rounds import ENCODED, trained
from sqlfl.planner.federated.rounds import active as active_rows
from sqlfl.planner.federated.sizes import NOTHING, Amount, Content, Size, content
from sqlfl.planner.query.ucq import CATEGORY, Slot

Asked: TypeAlias = tuple[Content, Content]
"""A request and its reply."""


def protocol(run: Run) -> tuple[Exchange, ...]:
    """Return all exchanges of a run without failures, in order; planning comes first."""
    phases = {
        "train": training,
        "evaluate": evaluation,
        "predict": prediction,
        "check": checking,
        "join": opening,
    }[run.purpose]
    return tuple(item for item in phases(run) if item.sends)


def training(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        *(weighted_encoding(run) if run.weighted else [*encoding(run), labels(run), offsets(run)]),
        *([over(run, "findings", run.towers, findings)] if run.findings else []),
        *([over(run, "separation", run.separated, separated)] if run.separated else []),
        *([] if run.tuning is None else [folds(run)]),
        *([equal_rows(run)] if run.merges else []),
        *fits(run),
        *([releases(run)] if run.protection else []),
        *checkpoints(run),
        over(run, "save", run.towers, save),
        *ending(run),
    ]


def rounds_of(run: Run) -> list[Exchange]:
    """Return the exchanges of one fit."""
    return spec_of(run.training.algorithm).exchanges(run)


def fits(run: Run) -> list[Exchange]:
    """Return the exchanges of all fits. In TUNE, symbols are sums over all fits, or averages over
    their exchanges.
    """
    if run.tuning is None:
        return rounds_of(run)
    weighed = reweighing(run, run.tuning.splits + 1)
    return [weighed, *(repeated(item, run.tuning.fits) for item in rounds_of(run))]


def repeated(item: Exchange, fits: int) -> Exchange:
    """Return `item` for all fits: a constant number of times is multiplied by the
    number of fits.
    """
    constant = sum(number for symbols, number in item.times.terms if not symbols)
    return replace(item, times=item.times + (fits - 1) * constant)


def evaluation(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        labels(run),
        weights(run),
        offsets(run),
        *(estimating(run) if isinstance(run.look, Inference) else scoring(run)),
        *(permuting(run, run.look) if isinstance(run.look, Importance) else []),
        *([releases(run)] if run.protection else []),
        *ending(run),
    ]


def checking(run: Run) -> list[Exchange]:
    return [
        *preparation(run),
        labels(run),
        over(run, "profile", run.towers, profile),
        *([over(run, "separation", run.separated, separated)] if run.separated else []),
        *ending(run),
    ]


def prediction(run: Run) -> list[Exchange]:
    if isinstance(run.look, SkewOptions):
        weighed = [weights(run), over(run, "what rows count", run.towers, weighed_rows)]
        return [
            *preparation(run),
            *(weighed if run.weighted else []),
            over(run, "skew", run.towers, skew),
            *ending(run),
        ]
    exchanges = [*preparation(run), offsets(run), *scoring(run)]
    if isinstance(run.look, ContributionsOptions) and run.look.features:
        exchanges.append(over(run, "contributions", run.towers, contributions))
    if run.into is None:
        return [*exchanges, identifiers(run), *ending(run)]
    return [*exchanges, writing(run, run.into), commit(run.into), *ending(run)]


def scoring(run: Run) -> list[Exchange]:
    asked = [over(run, "findings", run.towers, findings)] if run.findings else []
    return [over(run, "score", run.towers, score), *asked]


def estimating(run: Run) -> list[Exchange]:
    """Return the exchanges of standard errors; the columns behind scores replace the scores.

    With several classes they concern each class but the first, less the first one's.
    """
    several = kind_of(run.kind).target == ANY_CLASSES
    return [
        over(run, "rotated columns", run.towers, rotated),
        *([over(run, "findings", run.towers, findings)] if run.findings else []),
        over(run, "standard errors", run.towers, errors, sym.OUTPUTS + -1 if several else 1),
    ]


def permuting(run: Run, look: Importance) -> list[Exchange]:
    """Return the exchanges of permuted features: each of each slot, in every repetition."""
    return [
        exchange(
            "permuted features",
            look.repeats * len(slot.permuted),
            [
                RequestReply(client, slot.index, *permuted(run, slot, client))
                for client in slot.clients
            ],
        )
        for slot in run.towers
    ]


def preparation(run: Run) -> list[Exchange]:
    """Planning, the snapshot, its join keys, and the rows that occur in the join."""
    exchanges = [*planning(run), proposing(run), snapshot(run), *merging(run), keys(run)]
    exchanges.append(activation(run))
    return [item for item in exchanges if item.sends]


def weighted_encoding(run: Run) -> list[Exchange]:
    """Labels first: weights depend on them, and encoding on the weights."""
    drawn = [] if run.tuning is not None else [split(run)]
    return [labels(run), offsets(run), weights(run), *drawn, weighing(run), *encoding(run)]


def planning(run: Run) -> list[Exchange]:
    """Return the coordinator's requests before there is a plan: names and types, never values."""
    several = Counter(client.party for client in run.databases)
    listed = []
    for client in run.databases:
        what = "names of schemas, tables and columns, types, estimated rows; whether noise lasts"
        what += ", which databases are the same" if several[client.party] > 1 else ""
        reply = content(ms.Tables, what, tables=sym.of_database("schema_text", client))
        listed.append(RequestReply(client, WHOLE, content(ms.ListTables), reply))
    described = [
        exchange("plan", sym.of_database("described", client), [describing(client)])
        for client in run.databases
    ]
    return [exchange("plan", 1, listed), *described]


def describing(client: Client) -> RequestReply:
    columns, text = sym.of_database("column_names", client), sym.of_database("column_text", client)
    selects, asked = sym.of_database("selects", client), sym.of_database("select_text", client)
    return RequestReply(
        client,
        WHOLE,
        content(ms.Describe, selects=Amount(selects, asked)),
        content(
            ms.Columns,
            names=Amount(columns, text),
            types=Amount(columns, Size()),
            selects=selects,
        ),
    )


def proposing(run: Run) -> Exchange:
    """Return the exchange that proposes the whole run to clients whose owners have policies."""
    calls = []
    for client in run.clients:
        if client not in run.governed:
            continue
        request = content(
            ms.Propose,
            request=sym.of_database("request_text", client),
            specification=specifications_to_json(run.specifications[client]),
            fragments=run.fragments[client],
            join=_join_of(run),
        )
        calls.append(RequestReply(client, WHOLE, request, content(ms.Proposed, verdicts="[]")))
    return exchange("proposal", 1, calls)


def snapshot(run: Run) -> Exchange:
    calls = []
    for client in run.clients:
        specification = specifications_to_json(run.specifications[client])
        fragments = run.fragments[client]
        slots = 0 if run.join is None else len(run.specifications[client])
        request = content(
            ms.Prepare,
            specification=specification,
            fragments=fragments,
            join=_join_of(run),
            joined=slots,
        )
        number = sum(len(item.fragments) for item in run.specifications[client])
        reply = content(ms.Prepared, fragments=number, joins=0 if run.join is None else 1)
        calls.append(RequestReply(client, WHOLE, request, reply))
    return exchange("snapshot", 1, calls)


def merging(run: Run) -> list[Exchange]:
    """Return the exchanges of groups that several databases of a party merge."""
    sent, given = [], []
    for slot in run.ucq.slots:
        clients = slot.merging
        for client in clients:
            sizes = {"databases": len(clients)}
            mine = tuple(_sealed(slot, client, other) for other in clients)
            others = tuple(_sealed(slot, other, client) for other in clients)
            nonces = content(ms.SendGroups, clients=len(run.clients))
            reply = content(ms.SealedGroups, **sizes, sealed_bytes=mine)
            sent.append(RequestReply(client, slot.index, nonces, reply))
            request = content(ms.MergeGroups, **sizes, sealed_bytes=others)
            done = content(ms.MergedGroups, fragments=len(slot.of(client)))
            given.append(RequestReply(client, slot.index, request, done))
    return [exchange("groups", 1, sent), exchange("merged groups", 1, given)]


def _sealed(slot: Slot, sender: Client, receiver: Client) -> Size:
    if sender == receiver:
        return Size(0)
    return sym.of_client("sealed", slot, sender, receiver.index, f"{receiver.index}")


def _join_of(run: Run) -> str | Amount:
    return NOTHING if run.join is None else run.join.id


def keys(run: Run) -> Exchange:
    """Return the keys of the slots whose rows no earlier statement over the join has numbered."""
    kept = frozenset() if run.join is None else run.join.kept
    slots = [slot for slot in run.ucq.slots if slot.keys and slot.index not in kept]
    return over(run, "join keys", slots, join_keys)


def opening(run: Run) -> list[Exchange]:
    """Return the exchanges of CREATE JOIN: of rows, nothing leaves."""
    assert run.join is not None
    calls = [
        RequestReply(
            client,
            WHOLE,
            content(ms.OpenJoin, name=run.join.name, fragments=run.fragments[client]),
            content(ms.JoinOpened),
        )
        for client in run.clients
    ]
    return [*planning(run), exchange("join", 1, calls)]


def join_keys(run: Run, slot: Slot, client: Client) -> Asked:
    several = len(slot.of(client)) > 1
    what = "keyed hashes of join keys, one code a row"
    what += "; the row's fragment" if several else ""
    rows = sym.of_client("rows", slot, client)
    tags = tuple(sym.of_client("tags", slot, client, k, f"key{k}") for k in slot.keys)
    left_out = {} if several else {"fragment": NOTHING}
    reply = content(ms.JoinKeys, what, rows=rows, keys=len(tags), tags=tags, **left_out)
    return content(ms.SendKeys, clients=len(run.clients)), reply


def activation(run: Run) -> Exchange:
    def activate(run: Run, slot: Slot, client: Client) -> Asked:
        request = content(ms.Activate, active=active_rows(slot, client), clients=len(run.clients))
        return request, content(ms.Ready) if run.weighted else counted(run, slot, client)

    return over(run, "active rows", run.active, activate)


def counted(run: Run, slot: Slot, client: Client) -> Content:
    """Return the reply of a client that has received the weights of its rows."""
    if not run.merged(client, slot.index):
        return content(ms.Ready)
    if fitted(slot):
        return content(ms.Ranges, fitted=fitted(slot), points=points(slot, client))
    return own_statistics(run, slot, client)


def fitted(slot: Slot) -> int:
    """Features that TRANSFORM fits to the rows."""
    return sum(f.transform is not None and f.transform.fitted for f in slot.features)


def points(slot: Slot, client: Client | None) -> tuple[Size, ...]:
    """Return the number of points of each fitted feature, of one client or merged: none but of
    `auto`."""
    sizes = []
    for position, feature in enumerate(slot.features):
        made = feature.transform
        if made is None or not made.fitted:
            continue
        if made.function != AUTO:
            sizes.append(Size(0))
        elif client is None:
            sizes.append(sym.of_slot("merged_points", slot, position, feature.name))
        else:
            sizes.append(sym.of_client("points", slot, client, position, feature.name))
    return tuple(sizes)


def weights(run: Run) -> Exchange:
    def weigh(run: Run, slot: Slot, client: Client) -> Asked:
        what = f"weights in clear: {run.ucq.weight}"
        return content(ms.SendWeights), content(ms.Weights, what, active=active_rows(slot, client))

    return over(run, "weights", [slot for slot in run.ucq.slots if slot.weight], weigh)


def offsets(run: Run) -> Exchange:
    def send(run: Run, slot: Slot, client: Client) -> Asked:
        what = f"offsets in clear: {run.ucq.offset}"
        return content(ms.SendOffsets), content(ms.Offsets, what, active=active_rows(slot, client))

    return over(run, "offsets", [slot for slot in run.ucq.slots if slot.offset], send)


def split(run: Run) -> Exchange:
    def draw(run: Run, slot: Slot, client: Client) -> Asked:
        return content(ms.SendSplit), content(ms.Split, active=active_rows(slot, client))

    return over(run, "validation rows", [slot for slot in run.ucq.slots if slot.split], draw)


def weighing(run: Run) -> Exchange:
    what = "what each active row counts in training: the weights of its joined rows, summed"
    what += ", the sum of all, and how many joined rows count"
    if run.training.class_weight is not None:
        what += ", which may tell their classes"
    alone = {} if run.ucq.weight is not None else {"samples": NOTHING}
    if not alone:
        what += "; and the same of the column of WEIGHT alone"

    def weigh(run: Run, slot: Slot, client: Client) -> Asked:
        request = content(ms.Weigh, what, active=active_rows(slot, client), **alone)
        return request, counted(run, slot, client)

    return over(run, "what rows count", run.towers, weigh)


def weighed_rows(run: Run, slot: Slot, client: Client) -> Asked:
    what = "what each active row counts: the weights of its joined rows, summed; the sum of all, "
    what += "and how many joined rows count"
    request = content(ms.Weigh, what, active=active_rows(slot, client), samples=NOTHING)
    return request, content(ms.Ready)


def folds(run: Run) -> Exchange:
    def draw(run: Run, slot: Slot, client: Client) -> Asked:
        return content(ms.SendFolds), content(ms.Folds, active=active_rows(slot, client))

    return over(run, "folds", [slot for slot in run.ucq.slots if slot.split], draw)


def reweighing(run: Run, times: int) -> Exchange:
    """Return the exchange that sends new weights of rows where some are held out. The encoding
    stays, but of slots that are `refitted`.
    """
    weights = "what each row counts in a fit: the weights of its joined rows, summed"
    weights += "; the sum of all, and how many joined rows count"
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            twice = slot.refitted and run.training.class_weight is not None
            both = "; and the same without class weights, which may tell classes"
            meaning = weights + both * twice
            alone = {} if twice else {"samples": NOTHING}
            request = content(ms.Weigh, meaning, active=trained(run, slot, client), **alone)
            calls.append(RequestReply(client, slot.index, request, content(ms.Ready)))
    return exchange("what rows count in a fit", times, calls)


def own_statistics(run: Run, slot: Slot, client: Client) -> Content:
    what = ms.Statistics.words
    if run.specification(client, slot.index).warm and any(
        f.kind == CATEGORY for f in slot.features
    ):
        what += " (by the key of the model that training starts from)"
    privacy = run.specification(client, slot.index).privacy
    if privacy is not None and privacy.statistics == "noised":
        what = "noised statistics within public bounds; hashed categories that are not rare"
    return content(ms.Statistics, what, **encoded(run, slot, client))


def encoding(run: Run) -> list[Exchange]:
    merged = [slot for slot in run.towers if run.merged(slot.clients[0], slot.index)]

    def fit(run: Run, slot: Slot, client: Client) -> Asked:
        request = content(ms.SetRanges, fitted=fitted(slot), points=points(slot, None))
        return request, own_statistics(run, slot, client)

    made = [slot for slot in merged if fitted(slot)]
    return [over(run, "what TRANSFORM fits", made, fit), set_encoding(run, merged)]


def set_encoding(run: Run, merged: list[Slot]) -> Exchange:
    def encode(run: Run, slot: Slot, client: Client) -> Asked:
        request = content(ms.SetEncoding, **encoded(run, slot, None))
        return request, content(ms.Ready, ENCODED)

    return over(run, "encoding", merged, encode)


def encoded(run: Run, slot: Slot, client: Client | None) -> dict[str, int | tuple[Size, ...]]:
    """Return sizes of the slot's statistics, of one client or merged over all of them."""
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
    """Return the number of categories with a count: all that occur; in noised statistics, those
    that are listed or found.
    """
    name, role = slot.features[position].name, "vocabulary"
    privacy = run.specification(client or slot.clients[0], slot.index).privacy
    if privacy is not None and privacy.statistics == "noised":
        listed, role = privacy.bounds[position], "frequent"
        if listed is not None:
            return Size(len(listed))
    if client is None:
        return sym.of_slot(f"merged_{role}", slot, position, name)
    return sym.of_client(role, slot, client, position, name)


def labels(run: Run) -> Exchange:
    """Return the targets, unless an earlier statement over the join has had them sent."""
    sent = run.join is not None and run.join.labels
    slots = [slot for slot in run.ucq.slots if slot.target and not sent]
    return over(run, "labels", slots, own_labels)


def own_labels(run: Run, slot: Slot, client: Client) -> Asked:
    active = active_rows(slot, client)
    reply = targets("targets in clear", active)
    if run.specification(client, slot.index).classes:
        names = sym.of_client("classes", slot, client)
        classes = Amount(names, sym.of_client("class_text", slot, client))
        reply = coded("targets in clear: class names, one code a row", active, classes)
    return content(ms.SendLabels), noised_labels(run, slot, client) or reply


def targets(what: str, active: Size) -> Content:
    return content(ms.Labels, what, active=active, classes=NOTHING, codes=NOTHING)


def coded(what: str, active: Size, classes: Amount | tuple[str, ...]) -> Content:
    return content(ms.Labels, what, active=active, values=NOTHING, classes=classes)


def noised_labels(run: Run, slot: Slot, client: Client) -> Content | None:
    """Return noised labels, if PRIVACY has them. All public classes travel, whichever occur."""
    privacy = run.specification(client, slot.index).privacy
    if privacy is None or privacy.label is None:
        return None
    label, active = privacy.label, sym.of_client("active", slot, client)
    what = f"targets, noised: {label.words}, once per row"
    if label.bounds is not None:
        return targets(what, active)
    what += f"; all {len(label.classes)} classes, one code a row"
    return coded(what, active, label.classes)


def releases(run: Run) -> Exchange:
    """Return the exchange in which each client reports its releases, before its block is saved."""
    request, reply = content(ms.SendReleases), content(ms.Releases)
    slots = [slot for slot in run.ucq.slots if slot.features or slot.target]
    return over(run, "releases", slots, lambda run, slot, client: (request, reply))


def findings(run: Run, slot: Slot, client: Client) -> Asked:
    what = "which features are NULL in every row"
    if run.purpose == "train":
        what += ", the same in every row, or a text for nearly every row"
    elif any(f.kind == CATEGORY for f in slot.features):
        what += "; how many joined rows have a category that training did not"
    return content(ms.SendFindings), content(ms.Findings, what, features=len(slot.features))


def separated(run: Run, slot: Slot, client: Client) -> Asked:
    request = content(ms.SendSeparated, rows=active_rows(slot, client), outputs=sym.OUTPUTS)
    columns = sym.of_slot("columns", slot)
    texts = Amount(columns, sym.of_client("names", slot, client))
    reply = content(
        ms.Separated,
        "of each encoded column whether its rows are all of one class, and what such columns are",
        columns=columns,
        outputs=sym.OUTPUTS,
        features=texts,
        categories=Amount(columns, Size()),
    )
    return request, reply


def equal_rows(run: Run) -> Exchange:
    calls = [
        RequestReply(
            client,
            slot.index,
            content(ms.SendEqualRows),
            content(ms.EqualRows, told=sym.of_client("told", slot, client)),
        )
        for slot in run.towers
        for client in slot.clients
    ]
    return exchange("equal rows", sym.MERGERS, calls)


def save(run: Run, slot: Slot, client: Client) -> Asked:
    return content(ms.Save, model=sym.RUN, name=run.model), content(ms.Saved)


def checkpoints(run: Run) -> list[Exchange]:
    """Return checkpoints, which take place between epochs; they are listed after all of them."""
    if run.training.checkpoint is None:
        return []
    return [replace(over(run, "checkpoint", run.towers, save), times=sym.CHECKPOINTS)]


def score(run: Run, slot: Slot, client: Client) -> Asked:
    what = "X θ" if run.tower is None else "h, outputs of the tower,"
    reply = content(
        ms.ExactPredictions if run.exact else ms.Predictions,
        f"partial predictions {what} of active rows" + (", in 8 bytes" if run.exact else ""),
        rows=active_rows(slot, client),
        outputs=run.outputs,
        products=0,
    )
    return content(ms.ScoreExactly if run.exact else ms.Score, model=sym.RUN), reply


def identifiers(run: Run) -> Exchange:
    slots = [slot for slot in run.ucq.slots if slot.identifiers]
    return over(run, "identifiers", slots, own_identifiers)


def own_identifiers(run: Run, slot: Slot, client: Client) -> Asked:
    names = ", ".join(run.ucq.identifiers[i].name for i in slot.identifiers)
    reply = content(
        ms.Identifiers,
        f"identifiers in clear: {names}",
        identifiers=len(slot.identifiers),
        active=active_rows(slot, client),
        columns=sym.of_client("identifiers", slot, client),
    )
    return content(ms.SendIdentifiers), reply


def over(
    run: Run,
    phase: str,
    slots: Iterable[Slot],
    asked: Callable[[Run, Slot, Client], Asked],
    times: Size | int = 1,
) -> Exchange:
    """Once, or so many times, at each client of these slots."""
    calls = [
        RequestReply(c, slot.index, *asked(run, slot, c)) for slot in slots for c in slot.clients
    ]
    return exchange(phase, times, calls)


# Exchanges of CHECK.


def profile(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    features = len(slot.features)
    if getattr(run.look, "explains", False) and run.ucq.target is not None:
        rows = active_rows(slot, client)
        request = content(ms.SendExplained, rows=rows, outputs=sym.OUTPUTS)
        return request, content(ms.Profile, features=features)
    what = "of each feature in how many rows it is NULL, how many values it has, its range and mean"
    return content(ms.SendProfile), content(ms.Profile, what, features=features)


# The last exchanges of a run: writing results, and the end.

HEAD = "0" * 64
"""A placeholder with the length of a SHA-256 in hexadecimal digits."""


def writing(run: Run, into: Into) -> Exchange:
    what = "predictions" + (" and probabilities" if into.classes else "")
    what += ", the active rows that they are of; names of the table and its columns"
    what += ", which may take the place of another" if into.replace else ""
    calls = []
    for client, places in into.requests.items():
        rows = sym.JOINED
        if len(into.clients) > 1:
            rows = sym.of_client("written", run.ucq.slots[into.slots[0]], client)
        request = content(
            ms.Write,
            what,
            table=places,
            names=into.names,
            slots=len(into.slots),
            written=rows,
            prediction="uint32" if into.classes else "float64",
            classes=into.classes,
            type=into.type,
        )
        calls.append(RequestReply(client, WHOLE, request, content(ms.Written)))
    return exchange("write", 1, calls)


def commit(into: Into) -> Exchange:
    request, reply = content(ms.Commit), content(ms.Ready)
    return exchange(
        "commit", 1, [RequestReply(client, WHOLE, request, reply) for client in into.clients]
    )


def ending(run: Run) -> list[Exchange]:
    """Return the final exchanges: clients that keep an audit log compare its hash, and all forget
    the run.
    """
    heads = {"head": HEAD, "chain": HEAD}
    request, reply = content(ms.Seal, **heads), content(ms.Sealed, **heads)
    kept = [
        RequestReply(client, WHOLE, request, reply)
        for client in run.clients
        if client in run.governed
    ]
    request, reply = content(ms.Finish), content(ms.Ready)
    over = [RequestReply(client, WHOLE, request, reply) for client in run.clients]
    return [exchange("seal", 1, kept), exchange("finish", 1, over)]


# Exchanges of diagnostics over saved blocks, and their disclosures.


def rotated(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.Rotated,
        "encoded features of active rows, mixed by a random rotation that the party keeps",
        rows=active_rows(slot, client),
        columns=sym.of_slot("block_columns", slot),
        outputs=run.outputs,
    )
    return content(ms.SendRotated, model=sym.RUN, **_compared(run, slot)), reply


def errors(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    columns = sym.of_slot("block_columns", slot)
    sizes = {"columns": columns, "directions": sym.of_slot("directions", slot)}
    request = content(ms.SendErrors, model=sym.RUN, **sizes, **_compared(run, slot))
    names = Amount(columns, sym.of_client("names", slot, client))
    categories = Amount(columns, Size())
    reply = content(ms.Errors, **sizes, features=names, categories=categories)
    return request, reply


def _compared(run: Run, slot: Slot) -> dict[str, tuple[str, ...]]:
    """Return the slot's features whose base category the statement names, and these categories."""
    names = tuple(feature.name for feature in slot.features)
    compared, bases = run.look.compared(names) if isinstance(run.look, Inference) else ((), ())
    return {"compared": compared, "bases": bases}


def permuted(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.ExactPredictions if run.exact else ms.Predictions,
        "partial predictions of active rows, a feature's values being those of other rows"
        + (", in 8 bytes" if run.exact else ""),
        rows=active_rows(slot, client),
        outputs=run.outputs,
        products=0,
    )
    return content(ms.PermuteExactly if run.exact else ms.ScorePermuted, model=sym.RUN), reply


def skew(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    return content(ms.SendSkew, model=sym.RUN), content(ms.Skew, features=len(slot.features))


def contributions(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.ExactContributions if run.exact else ms.Contributions,
        "what each feature adds to the score of each active row"
        + (", in 8 bytes" if run.exact else ""),
        rows=active_rows(slot, client),
        parts=run.outputs * len(slot.features),
    )
    request = ms.SendExactContributions if run.exact else ms.SendContributions
    return content(request, model=sym.RUN), reply
