"""A party that answers what it likes: replies that are crafted, one for each statement.

`CASES` are the crafted replies, by name; `STATEMENTS` what makes a party say the honest ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.messages import Message
from sqlfl.messages.wire import decode, encoded
from sqlfl.transport.base import Transport

Crafted: TypeAlias = Message | bytes
Change: TypeAlias = Callable[[Any], Crafted]

DATABASES = {
    "home": [
        "CREATE TABLE people AS SELECT i AS id, i % 7 AS age, i % 13 AS income, i % 3 = 0 AS y, "
        "'c' || (i % 3) AS kind, 1 + i % 2 AS w, 0.5 * i AS target FROM range(40) r(i); "
        "CREATE TABLE more AS SELECT i + 40 AS id, i % 5 AS age, i % 3 = 0 AS y FROM range(9) r(i)"
    ],
    "lab": [
        f"CREATE TABLE tests AS SELECT i AS id, {number} + i % 5 AS x, 'g' || (i % 4) AS g "
        f"FROM range({start}, {end}) r(i)"
        for number, start, end in ((0, 0, 20), (1, 20, 50))
    ],
}
"""Per party, what makes each client's database."""

JOIN = "FROM home.people p JOIN lab.tests t ON p.id = t.id"
LINEAR = f"FROM (SELECT p.age, t.x, t.g, p.target {JOIN})"
CLASSES = f"FROM (SELECT p.age, t.x, t.g, p.y {JOIN})"


def train(
    query: str, kind: str = "linear_regression", target: str = "target", **options: Any
) -> str:
    given = {"epochs": 2, **options}
    listed = ", ".join(f"{name} = {value!r}" for name, value in given.items())
    return f"TRAIN OR REPLACE MODEL n USING {kind} TARGET {target} WITH ({listed}) {query}"


STATEMENTS = {
    "train": train(LINEAR),
    "classes": train(CLASSES, "logistic_regression", "y"),
    "multiclass": train(CLASSES.replace("p.y", "p.kind"), "softmax_regression", "kind"),
    "weighted": train(
        f"FROM (SELECT p.age, t.x, p.w, p.target {JOIN})", validation_fraction=0.3, seed=4
    ).replace(" WITH", " WEIGHT w WITH"),
    "consensus": train(LINEAR, algorithm="admm", union="consensus", inner_rounds=2),
    "batches": train(LINEAR, algorithm="sgd", batch_size=10, learning_rate=0.1),
    "private": train(LINEAR, algorithm="sgd").replace(
        ") FROM", ") PRIVACY (epsilon = 4, delta = 0.001, label_epsilon = 2, "
        "label_bounds = [0, 20], statistics = 'bounds', feature_bounds = {'age': [0, 7], "
        "'x': [0, 7], 'g': ['g0', 'g1', 'g2', 'g3']}) FROM"),
    "union": train(
        "FROM (SELECT u.age, t.x, u.y FROM (SELECT id, age, y FROM home.people UNION ALL "
        "SELECT id, age, y FROM home.more) AS u JOIN lab.tests t ON u.id = t.id)",
        "logistic_regression", "y"),
    "unpenalised": train(
        "FROM (SELECT u.age, t.x, u.y FROM (SELECT id, age, y FROM home.people UNION ALL "
        "SELECT id, age, y FROM home.more) AS u JOIN lab.tests t ON u.id = t.id)",
        "logistic_regression", "y", l2=0),
    "tuned": train(LINEAR, l2=[0.01, 0.1], folds=2).replace("TRAIN", "TUNE"),
    "evaluate": f"EVALUATE MODEL m {LINEAR}",
    "predict": f"PREDICT MODEL m ID (home.people.kind, lab.tests.id) {LINEAR}",
    "into": f"PREDICT MODEL m ID (home.people.id) {LINEAR} INTO home.predicted",
    "weights": "WEIGHTS OF MODEL m",
    "inference": f"INFERENCE OF MODEL m {LINEAR}",
    "importance": f"IMPORTANCE OF MODEL m {LINEAR}",
    "contributions": f"CONTRIBUTIONS OF MODEL m WITH (features = true) {LINEAR}",
    "skew": f"SKEW OF MODEL m {LINEAR}",
    "drop": "DROP MODEL n",
}  # fmt: skip
MODEL = train(LINEAR).replace("MODEL n", "MODEL m")


@dataclass(frozen=True)
class Case:
    statement: str
    kind: str
    """Of the reply that is crafted."""
    change: Change
    party: str = "lab"
    at: int = 1
    """Which of the replies of this kind."""


class Twisting:
    """Passes everything on; while `case` is set, its reply is a crafted one."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.case: Case | None = None
        self.client: Client | None = None
        """Whose reply was crafted."""
        self._seen = 0
        self.kept: list[bytes] = []
        """Replies of this party and kind so far."""

    def set(self, case: Case | None) -> None:
        self.case, self.client, self._seen, self.kept = case, None, 0, []

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        answers = self.inner.exchange(requests)
        return [
            self._twisted(client, data) for (client, _), data in zip(requests, answers, strict=True)
        ]

    def _twisted(self, client: Client, data: pa.Buffer) -> pa.Buffer:
        case = self.case
        if case is None or self.client is not None or client.party != case.party:
            return data
        reply = decode(data)
        if reply.kind != case.kind:
            return data
        self._seen += 1
        if self._seen < case.at:
            self.kept.append(data.to_pybytes())
            return data
        self.client = client
        crafted = self.kept[0] if case.change is again else case.change(reply)
        return pa.py_buffer(crafted if isinstance(crafted, bytes) else encoded(crafted))


def again(reply: Message) -> Crafted:
    """The first reply of this kind once more."""
    raise NotImplementedError


def but(**fields: Any) -> Change:
    """The reply with other fields; a function is given the field's honest value."""

    def change(reply: Message) -> Message:
        found = {k: v(getattr(reply, k)) if callable(v) else v for k, v in fields.items()}
        return replace(reply, **found)

    return change


def instead(make: Callable[[Message], Message]) -> Change:
    """Another message in its envelope."""

    def change(reply: Message) -> Message:
        return replace(make(reply), run=reply.run, slot=reply.slot, number=reply.number)

    return change


def header(**entries: Any) -> Change:
    """The reply with other entries in its header."""

    def change(reply: Message) -> bytes:
        data = encoded(reply).to_pybytes()
        end = 12 + int.from_bytes(data[8:12], "little")
        own = json.loads(data[12:end])
        for name, value in entries.items():
            own[name] = value(own[name]) if callable(value) else value
        text = json.dumps(own).encode()
        return data[:8] + len(text).to_bytes(4, "little") + text + b"\0" * (-end % 64) + data[end:]

    return change


def part(place: int, change: Callable[[Any], Any]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Of a tuple, one item changed."""
    return lambda items: tuple(change(v) if k == place else v for k, v in enumerate(items))


def at(place: Any, value: Any) -> Callable[[Any], Any]:
    """Of an array, one element changed."""

    def change(array: Any) -> Any:
        found = np.array(array)
        found[place] = value
        return found

    return change


def failing(text: str) -> Change:
    return instead(lambda reply: ms.Failure("", 0, "Error", text))


def listing(change: Callable[[Any], Any]) -> Change:
    """The JSON of `Tables`, changed."""
    return but(tables=lambda text: json.dumps(change(json.loads(text))))


def columns_of(table: dict[str, Any], columns: Any) -> dict[str, Any]:
    return table | {"columns": columns}


def first_table(**fields: Any) -> Change:
    return listing(lambda own: own | {"tables": [own["tables"][0] | fields, *own["tables"][1:]]})


def longer(array: Any) -> Any:
    return np.concatenate([array, array[-1:]])


def shorter(array: Any) -> Any:
    return array[:-1]


def doubled(tags: Any) -> Any:
    return np.repeat(tags[:1], len(tags), axis=0)


NAN, INF = float("nan"), float("inf")
HUGE = np.broadcast_to(np.zeros(1), (1 << 20,))

FINDINGS = ("empty", "constant", "identifying", "unseen")


CASES: dict[str, Case] = {
    # what every reply can be
    "bytes that are none": Case("train", "prepared", lambda r: b"sqlfl? no"),
    "nothing": Case("train", "prepared", lambda r: b""),
    "half of it": Case("train", "join_keys", lambda r: encoded(r).to_pybytes()[:-5]),
    "something after it": Case("train", "join_keys", lambda r: encoded(r).to_pybytes() + b"\0"),
    "another run": Case("train", "prepared", but(run="0123456789abcdef")),
    "another slot": Case("train", "join_keys", but(slot=lambda s: s + 1)),
    "another exchange": Case("train", "predictions", but(number=lambda n: n ^ 1)),
    "the last reply again": Case("train", "predictions", again, at=3),
    "an unknown kind": Case("train", "prepared", header(kind="prepaid")),
    "another kind": Case("train", "labels", instead(lambda r: ms.Ready("", 0)), party="home"),
    "a request": Case("train", "prepared", instead(lambda r: ms.SendKeys("", 0))),
    "a failure of its own": Case("train", "prepared", failing("\x1b[31mno\x1b[0m\r" + "x" * 10**6)),
    "a header of many lists": Case("train", "prepared", lambda r: forged_header(b"[" * 10**5)),
    "a header of huge numbers": Case(
        "train", "prepared", header(fields=lambda f: f | {"rows": ["int64", 10**400]})),
    "a header of no end": Case(
        "train", "prepared", lambda r: encoded(r).to_pybytes()[:8] + b"\xff" * 4 + b" " * 99),
    "sizes beyond its bytes": Case(
        "train", "prepared", header(fields=lambda own: own | {"rows": ["int64", 38410]})),
    "sizes below 0": Case(
        "train", "prepared", header(fields=lambda own: own | {"rows": ["int64", -1]})),
    "another type": Case(
        "train", "prepared", header(fields=lambda own: own | {"rows": ["float64", 1]})),
    "a field that is not there": Case(
        "train", "prepared", header(fields=lambda own: {"rows": own["rows"]})),
    # planning
    "tables that are no JSON": Case("train", "tables", but(tables="{")),
    "tables that are a number": Case("train", "tables", but(tables="17")),
    "tables that are nested": Case("train", "tables", but(tables="[" * 10**5)),
    "tables of numbers": Case("train", "tables", first_table(name=17)),
    "tables of no columns": Case("train", "tables", first_table(columns=[["x"]])),
    "tables of half a row": Case("train", "tables", first_table(rows=1.5)),
    "tables without places": Case("train", "tables", but(tables='{"tables":[]}')),
    "a place that is none": Case("train", "tables", listing(lambda own: own | {"places": [7]})),
    "names without types": Case("train", "columns", but(types=lambda t: t[:-1])),
    "more columns than were asked": Case(
        "train", "columns", but(names=lambda n: (*n, "z"), types=lambda t: (*t, "INTEGER"))),
    # snapshot and keys
    "negative rows": Case("train", "prepared", but(rows=at(0, -5))),
    "rows of more fragments": Case(
        "train", "prepared", but(rows=longer, null_targets=longer)),
    "rows without an end": Case("train", "prepared", but(rows=at(0, 2**62))),
    "rows that are numbers with a point": Case(
        "train", "prepared", but(rows=lambda v: v.astype(np.float64))),
    "negative NULL targets": Case("train", "prepared", but(null_targets=at(0, -1)), party="home"),
    "fewer codes than rows": Case("train", "join_keys", but(codes=part(0, shorter))),
    "more codes than rows": Case("train", "join_keys", but(codes=part(0, longer))),
    "codes beyond the tags": Case("train", "join_keys", but(codes=part(0, at(0, 10**6)))),
    "negative codes": Case(
        "train", "join_keys", but(codes=part(0, lambda v: -v.astype(np.int32)))),
    "tags that are equal": Case("train", "join_keys", but(tags=part(0, doubled))),
    "tags in another order": Case("train", "join_keys", but(tags=part(0, lambda v: v[::-1]))),
    "tags of other widths": Case("train", "join_keys", but(tags=part(0, lambda v: v[:, :8]))),
    "more tags than rows": Case(
        "train", "join_keys",
        but(tags=part(0, lambda v: np.unique(np.random.default_rng(1).integers(
            0, 256, (99, 16), np.uint8), axis=0)))),
    "a key too many": Case(
        "train", "join_keys", but(tags=lambda t: t + t, codes=lambda c: c + c)),
    "no key": Case("train", "join_keys", but(tags=(), codes=())),
    "NULL where none can be": Case(
        "train", "join_keys", lambda r: replace(r, codes=part(0, at(0, len(r.tags[0])))(r.codes))),
    "a fragment that is none": Case("union", "join_keys", but(fragment=at(0, 9)), party="home"),
    "fragments of other sizes": Case(
        "union", "join_keys", but(fragment=lambda v: np.zeros_like(v)), party="home"),
    "no fragments": Case(
        "union", "join_keys", but(fragment=np.zeros(0, np.uint16)), party="home"),
    "fragments where there is one": Case(
        "train", "join_keys", lambda r: replace(r, fragment=np.zeros(len(r.codes[0]), np.uint16))),
    # encoding
    "no statistics": Case("train", "statistics", instead(lambda r: ms.Ready("", 0))),
    "statistics of other columns": Case(
        "train", "statistics", but(weight=longer, mean=longer, m2=longer)),
    "statistics of other lengths": Case("train", "statistics", but(mean=longer)),
    "a mean that is no number": Case("train", "statistics", but(mean=at(0, NAN))),
    "a negative sum of squares": Case("train", "statistics", but(m2=at(0, -1.0))),
    "more values than rows": Case("train", "statistics", but(weight=at(0, 1e9))),
    "fewer values than rows": Case("train", "statistics", but(weight=at(0, 1.0))),
    "negative counts": Case(
        "train", "statistics", but(counts=part(0, lambda v: np.where(np.arange(len(v)), v, -v)))),
    "counts of more rows": Case("train", "statistics", but(counts=part(0, lambda v: 2 * v))),
    "categories without counts": Case("train", "statistics", but(counts=part(0, shorter))),
    "categories that are met twice": Case("train", "statistics", but(tags=part(0, doubled))),
    "no categories": Case("train", "statistics", but(tags=(), counts=())),
    "another width": Case("train", "ready", but(width=lambda w: w + 1), at=1),
    # labels, weights, validation
    "fewer labels": Case("train", "labels", but(values=shorter), party="home"),
    "no labels": Case("train", "labels", but(values=np.zeros(0)), party="home"),
    "a label that is no number": Case("train", "labels", but(values=at(0, NAN)), party="home"),
    "an infinite label": Case("train", "labels", but(values=at(1, INF)), party="home"),
    "classes of a regression": Case(
        "train", "labels",
        lambda r: replace(r, values=np.zeros(0), classes=("a",), codes=np.zeros(40, np.uint32)),
        party="home"),
    "labels with two columns": Case(
        "train", "labels", but(values=lambda v: np.stack([v, v], axis=1)), party="home"),
    "classes that are met twice": Case(
        "multiclass", "labels", but(classes=lambda c: (c[0], c[0], c[1])), party="home"),
    "a class beyond the list": Case("classes", "labels", but(codes=at(0, 2)), party="home"),
    "a class that no row is of": Case(
        "multiclass", "labels", but(classes=lambda c: (*c, "c9")), party="home"),
    "a class that is no boolean": Case(
        "classes", "labels", but(classes=("yes", "no")), party="home"),
    "labels of other rows": Case("classes", "labels", but(codes=longer), party="home"),
    "numbers for classes": Case(
        "classes", "labels",
        lambda r: replace(r, values=np.zeros(40), classes=(), codes=np.zeros(0, np.uint32)),
        party="home"),
    "fewer weights": Case("weighted", "weights", but(values=shorter), party="home"),
    "weights with two columns": Case(
        "weighted", "weights", but(values=lambda v: v[:, None]), party="home"),
    "a split of other rows": Case("weighted", "split", but(validation=longer), party="home"),
    "a split of sevens": Case("weighted", "split", but(validation=at(0, 7)), party="home"),
    "folds of other rows": Case("tuned", "folds", but(folds=longer), party="home"),
    "a fold that there is not": Case("tuned", "folds", but(folds=at(0, 2)), party="home"),
    "findings of other features": Case("train", "findings", but(empty=longer)),
    "findings of more features": Case(
        "train", "findings",
        lambda r: replace(r, **{n: longer(getattr(r, n)) for n in FINDINGS}), party="home"),
    "columns of other classes": Case("unpenalised", "separated", but(states=lambda v: v[:, :0])),
    "rows of four classes": Case("unpenalised", "separated", but(states=at(0, 4))),
    "separated columns of another table": Case(
        "unpenalised", "separated", but(features=lambda names: ("other",) * len(names))),
    "a finding that is seven": Case("train", "findings", but(constant=at(0, 7))),
    "unseen rows below 0": Case("predict", "findings", but(unseen=at(0, -1))),
    "more unseen rows than are joined": Case("predict", "findings", but(unseen=at(0, 10**6))),
    # rounds
    "no columns": Case("train", "ready", but(width=0), at=3),
    "moments of other columns": Case(
        "train", "gram", but(numeric=np.eye(3), moments=lambda v: v[:0])),
    "moments of more columns": Case(
        "train", "gram",
        lambda r: replace(
            r, cross=np.zeros((len(r.cross) + 1, len(r.numeric))), moments=longer(r.moments))),
    "moments beyond the columns": Case("train", "gram", but(columns=at(0, 10**6))),
    "moments that are no numbers": Case("train", "gram", but(values=at(0, NAN))),
    "moments of fewer values": Case("train", "gram", but(values=shorter)),
    "a negative weight": Case("train", "gram", but(weight=-1.0)),
    "a gradient of other columns": Case("train", "partial_gradient", but(values=longer)),
    "a gradient that is infinite": Case("train", "partial_gradient", but(values=at((0, 0), INF))),
    "a gradient of other outputs": Case(
        "train", "partial_gradient", but(values=lambda v: np.hstack([v, v]))),
    "predictions for a gradient": Case(
        "train", "partial_gradient",
        instead(lambda r: ms.Predictions("", 0, np.zeros((20, 1), np.float32), np.zeros(198)))),
    "a part for a gradient": Case(
        "train", "partial_gradient", instead(lambda r: ms.ConsensusPart("", 0, r.values))),
    "predictions of fewer rows": Case("train", "predictions", but(values=shorter)),
    "predictions of more rows": Case("train", "predictions", but(values=longer), party="home"),
    "predictions with two columns": Case(
        "train", "predictions", but(values=lambda v: np.hstack([v, v])), party="home"),
    "predictions of eight bytes": Case(
        "train", "predictions", but(values=lambda v: v.astype(np.float64)), party="home"),
    "a prediction that is no number": Case(
        "train", "predictions", but(values=at((3, 0), NAN)), party="home"),
    "an infinite prediction": Case(
        "train", "predictions", but(values=at((3, 0), -INF)), party="home", at=2),
    "products of other lengths": Case("train", "predictions", but(products=shorter), party="home"),
    "products that are no numbers": Case(
        "train", "predictions", but(products=at(0, NAN)), party="home"),
    "a gradient for predictions": Case(
        "train", "predictions",
        instead(lambda r: ms.PartialGradient("", 0, np.zeros((1, 1)))), party="home"),
    "predictions of other rows of a batch": Case(
        "batches", "predictions", but(values=longer), party="home", at=3),
    "a slope of other lengths": Case("batches", "slope", but(squares=longer), party="home"),
    "a slope that is no number": Case("batches", "slope", but(squares=at(0, NAN)), party="home"),
    "a slope below 0": Case("batches", "slope", but(squares=at(0, -1.0)), party="home"),
    "predictions for a slope": Case(
        "batches", "slope",
        instead(lambda r: ms.Predictions("", 0, np.zeros((40, 1), np.float32), np.zeros(1)))),
    "exact predictions for others": Case(
        "train", "predictions",
        instead(lambda r: ms.ExactPredictions("", 0, r.values.astype(float), r.products)),
        party="home"),
    "a part of other columns": Case("consensus", "consensus_part", but(values=shorter)),
    "a part that is no number": Case("consensus", "consensus_part", but(values=at(0, NAN))),
    "a part once more": Case(
        "consensus", "predictions",
        instead(lambda r: ms.ConsensusPart("", 0, np.zeros((6, 1)))), at=5),
    "fewer releases": Case("private", "releases", but(gradients=0), party="home"),
    "more releases": Case("private", "releases", but(gradients=10**6), party="home"),
    "less noise": Case("private", "releases", but(noise=1e-9), party="home"),
    "noise that is no number": Case("private", "releases", but(noise=NAN), party="home"),
    "releases below 0": Case("private", "releases", but(gradients=-1), party="home"),
    # the end, scoring, writing
    "nothing is saved": Case("train", "saved", instead(lambda r: ms.Ready("", 0))),
    "saved more than once": Case("train", "saved", but(lasting=2)),
    "scores of other rows": Case("predict", "predictions", but(values=shorter)),
    "scores with two columns": Case(
        "predict", "predictions", but(values=lambda v: np.hstack([v, v]))),
    "scores that are no numbers": Case("evaluate", "predictions", but(values=at(0, NAN))),
    "scores with products": Case("predict", "predictions", but(products=np.zeros(3))),
    "weights of other outputs": Case("weights", "block", but(weights=lambda v: np.hstack([v, v]))),
    "weights that are no numbers": Case("weights", "block", but(weights=at((0, 0), NAN))),
    "weights of fewer names": Case("weights", "block", but(features=lambda f: f[:-1])),
    "a scale of 0": Case("weights", "block", but(scales=at(0, 0.0))),
    "a column of no kind": Case("weights", "block", but(kinds=at(0, 9))),
    "predictions for weights": Case(
        "weights", "block",
        instead(lambda r: ms.Predictions("", 0, np.zeros((2, 1), np.float32), np.zeros(0)))),
    "columns of fewer rows": Case("inference", "rotated", but(values=shorter)),
    "columns in a basis of its own": Case("inference", "rotated", but(weights=lambda v: -v)),
    "columns of another origin": Case("inference", "rotated", but(origin=lambda v: 2 * v)),
    "columns of another width": Case(
        "inference", "rotated",
        lambda r: replace(r, values=np.hstack([r.values, r.values[:, :1]]),
                          weights=longer(r.weights), origin=longer(r.origin))),
    "columns of a width of its own": Case(
        "inference", "rotated",
        lambda r: replace(r, values=np.hstack([r.values, r.values[:, :1]]),
                          weights=longer(r.weights), origin=longer(r.origin)),
        party="home"),
    "columns that are no numbers": Case("inference", "rotated", but(values=at((0, 0), NAN))),
    "errors of other columns": Case(
        "inference", "errors",
        lambda r: replace(
            r, features=r.features[:-1], categories=r.categories[:-1],
            **{name: getattr(r, name)[:-1]
               for name in ("kinds", "coefficients", "errors", "told", "bases")})),
    "errors below 0": Case("inference", "errors", but(errors=at(0, -1.0))),
    "errors of other names": Case("inference", "errors", but(features=lambda f: ("z", *f[1:]))),
    "errors of other coefficients": Case(
        "inference", "errors", but(coefficients=lambda v: v + 1.0)),
    "a coefficient that is told twice": Case("inference", "errors", but(told=at(0, 3))),
    "another intercept": Case("inference", "errors", but(moved=lambda v: v + 1.0)),
    "directions of its own": Case("inference", "errors", but(turned=np.zeros((2, 2)))),
    "permuted scores of other rows": Case("importance", "predictions", but(values=longer), at=4),
    "permuted scores that are no numbers": Case(
        "importance", "predictions", but(values=at((0, 0), NAN)), at=5),
    "parts of other features": Case(
        "contributions", "contributions", but(values=lambda v: v[:, :1])),
    "skew of other features": Case("skew", "skew", but(means=lambda v: v[:1])),
    "more than all is NULL": Case("skew", "skew", but(missing=at(0, 1.5))),
    "a negative distance": Case("skew", "skew", but(distances=at(0, -1.0))),
    "a negative index": Case("skew", "skew", but(indices=at(0, -1.0))),
    "divergences of other features": Case("skew", "skew", but(divergences=lambda v: v[:1])),
    "parts of fewer rows": Case("contributions", "contributions", but(values=shorter)),
    "fewer identifiers": Case("predict", "identifiers", but(columns=lambda c: (c[0][:-1],))),
    "no identifiers": Case("predict", "identifiers", but(columns=())),
    "identifiers of another type": Case(
        "predict", "identifiers",
        but(columns=lambda c: (pa.array([[k] for k in range(len(c[0]))]),))),
    "identifiers that are no text": Case(
        "predict", "identifiers", lambda r: replace(
            r, columns=(pa.array([b"\xff"] * len(r.columns[0])).view(pa.string()),)),
        party="home"),
    "identifiers beyond their text": Case(
        "predict", "identifiers",
        header(fields=lambda own: {"columns": [own["columns"][0] | {"bytes": 10**6}]}),
        party="home"),
    "identifiers of a type that is none": Case(
        "predict", "identifiers",
        header(fields=lambda own: {"columns": [own["columns"][0] | {"type": "pickle"}]}),
        party="home"),
    "a table of other rows": Case("into", "written", but(rows=7), party="home"),
    "a table of negative rows": Case("into", "written", but(rows=-7), party="home"),
    "a commit that is none": Case(
        "into", "ready", instead(lambda r: ms.Saved("", 0, 1)), party="home", at=2),
}  # fmt: skip


def forged_header(text: bytes) -> bytes:
    return b"sqlfl\x00\x00\x02" + len(text).to_bytes(4, "little") + text


def opened() -> dict[str, list[duckdb.DuckDBPyConnection]]:
    """The parties' databases."""
    found: dict[str, list[duckdb.DuckDBPyConnection]] = {}
    for party, clients in DATABASES.items():
        for statements in clients:
            con = duckdb.connect()
            con.execute(statements)
            found.setdefault(party, []).append(con)
    return found
