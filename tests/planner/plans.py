"""Normal forms and plans, built by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp, parse_one

from sqlfl.contract.schema import Client, FittedStep, Made
from sqlfl.contract.transforms import Transform
from sqlfl.coordinator.privacy_planning import slots_of
from sqlfl.models.kinds import NEURAL as NEURAL_KINDS
from sqlfl.options.diagnostics import Check, Diagnostic
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import resolve_scoring, training_options
from sqlfl.options.tuning import resolve_tuning
from sqlfl.planner.federated.into import Into
from sqlfl.planner.federated.plan import (
    FederatedPlan,
    Noising,
    ScoredModel,
    Setting,
    check_plan,
    evaluation_plan,
    prediction_plan,
    training_plan,
)
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TuneModel
from sqlfl.planner.query.ucq import (
    Block,
    Feature,
    Fragment,
    Identifier,
    Join,
    JoinKey,
    LeftJoin,
    Slot,
    Ucq,
)

AIRLINE, METEO = Client("airline"), Client("meteo")
BANK_0, BANK_1 = Client("bank", 0), Client("bank", 1)
OPTIONS: dict[str, object] = {
    "algorithm": "lbfgs",
    "epochs": 20,
    "tolerance": 1e-8,
    "l2": 1e-4,
    "engine": "auto",
    "memory_limit": None,
    "seed": None,
}


NEURAL: dict[str, object] = {
    "algorithm": "sgd",
    "epochs": 20,
    "batch_size": 1000,
    "learning_rate": 0.01,
    "optimizer": "adam",
    "hidden": (16,),
    "activation": "relu",
    "dropout": 0.0,
    "head": "none",
    "device": "auto",
}
HEAD: dict[str, object] = {"head": "linear", "embedding": 8}
LOCAL: dict[str, object] = {
    "algorithm": "admm",
    "union": "consensus",
    "inner_rounds": 4,
    "local_epochs": 5,
    "optimizer": None,
    "batch_size": 512,
}


def fragment(index: int, client: Client, sql: str, rows: int | None) -> Fragment:
    select = parse_one(sql, dialect="duckdb")
    assert isinstance(select, exp.Select)
    return Fragment(index, client, select, rows)


def flights() -> Ucq:
    """Two parties, one client each, one composite key; the target is a boolean."""
    f = Slot(
        index=0,
        name="f",
        features=(
            Feature("distance", "numeric", "DOUBLE"),
            Feature("carrier", "category", "VARCHAR"),
        ),
        target=True,
        identifiers=(),
        keys=(0,),
        fragments=(
            fragment(
                0,
                AIRLINE,
                "SELECT distance, carrier, arr_delay > 15 AS sqlfl_target, CAST(origin AS VARCHAR) "
                "AS sqlfl_key_0_0, CAST(time_hour AS TIMESTAMP) AS sqlfl_key_0_1 FROM flights "
                "WHERE NOT dep_time IS NULL AND NOT origin IS NULL AND NOT time_hour IS NULL",
                336_776,
            ),
        ),
    )
    w = Slot(
        index=1,
        name="w",
        features=(
            Feature("wind_speed", "numeric", "DOUBLE"),
            Feature("visib", "numeric", "DOUBLE"),
        ),
        target=False,
        identifiers=(),
        keys=(0,),
        fragments=(
            fragment(
                0,
                METEO,
                "SELECT wind_speed, visib, CAST(origin AS VARCHAR) AS sqlfl_key_0_0, "
                "CAST(time_hour AS TIMESTAMP) AS sqlfl_key_0_1 FROM weather WHERE temp > 0",
                26_115,
            ),
        ),
    )
    return Ucq(
        slots=(f, w),
        keys=(JoinKey(0, ("VARCHAR", "TIMESTAMP")),),
        blocks=(Block(((0, (0,)), (1, (0,))), (Join(0, 1, 0),)),),
        identifiers=(),
        columns=("distance", "carrier", "wind_speed", "visib", "late"),
        target="late",
        target_type="BOOLEAN",
    )


def outer() -> Ucq:
    """`flights` with LEFT JOINs: weather that may be missing, planes by a key of the weather's."""
    inner = flights()
    f, w = inner.slots
    flight = replace(
        f.fragments[0],
        select=f.fragments[0].select.where(
            exp.column("dep_time").is_(exp.null()).not_(), append=False
        ),
    )
    test = "temp IS NULL OR temp > 0"
    kept = f"({test}) IS TRUE AS sqlfl_kept"
    virtual = "SELECT {} FROM (SELECT 1 AS sqlfl_row) LEFT JOIN {} ON FALSE"
    columns = (
        "wind_speed, visib, CAST(origin AS VARCHAR) AS sqlfl_key_0_0, CAST(time_hour AS TIMESTAMP) "
        "AS sqlfl_key_0_1, COALESCE(tail, 'none') AS sqlfl_key_1_0"
    )
    weather = replace(
        w,
        keys=(0, 1),
        nullable=(1,),
        fragments=(
            fragment(0, METEO, f"SELECT {columns}, {kept} FROM weather", 26_115),
            replace(fragment(1, METEO, f"SELECT {columns}, {kept} FROM weather", 0), beside=0),
            replace(
                fragment(2, METEO, f"{virtual.format(columns, 'weather')} WHERE {test}", 1),
                virtual=True,
            ),
        ),
    )
    seats = "seats, CAST(tail AS VARCHAR) AS sqlfl_key_1_0"
    planes = Slot(
        index=2,
        name="p",
        features=(Feature("seats", "numeric", "INTEGER"),),
        target=False,
        identifiers=(),
        keys=(1,),
        fragments=(
            fragment(0, AIRLINE, f"SELECT {seats} FROM planes", 300),
            replace(fragment(1, AIRLINE, virtual.format(seats, "planes"), 1), virtual=True),
        ),
    )
    block = Block(
        ((0, (0,)), (1, (0, 1)), (2, (0,))),
        (),
        (
            LeftJoin((1,), (), (), (Join(0, 1, 0),)),
            LeftJoin((2,), (), (), (Join(1, 2, 1, virtual=True),)),
        ),
        ((1, 2), (2, 1)),
        ((1, (0,)),),
    )
    return replace(
        inner,
        slots=(replace(f, nullable=(0,), fragments=(flight,)), weather, planes),
        keys=(*inner.keys, JoinKey(1, ("VARCHAR",))),
        blocks=(block,),
        columns=("distance", "carrier", "wind_speed", "visib", "seats", "late"),
    )


def cards(purpose: str = "train") -> Ucq:
    """A slot over two clients, two fragments at the first; a link table without a column."""
    training = purpose != "predict"
    target = ", paid AS sqlfl_target" if training else ", id AS sqlfl_id_0"
    c = Slot(
        index=0,
        name="c",
        features=(
            Feature("balance", "numeric", "DOUBLE"),
            Feature("trend", "array", "FLOAT[3]", 3),
            Feature("kind", "category", "VARCHAR"),
        ),
        target=training,
        identifiers=() if training else (0,),
        keys=(0,),
        fragments=tuple(
            fragment(
                number,
                client,
                f"SELECT balance, trend, kind{target}, id AS sqlfl_key_0_0 FROM {table}",
                rows,
            )
            for number, (client, table, rows) in enumerate(
                [(BANK_0, "cards", 500), (BANK_0, "old_cards", None), (BANK_1, "cards", 700)]
            )
        ),
    )
    link = Slot(
        index=1,
        name="l",
        features=(),
        target=False,
        identifiers=(),
        keys=(0, 1),
        fragments=(
            fragment(
                0,
                AIRLINE,
                "SELECT card AS sqlfl_key_0_0, tail AS sqlfl_key_1_0 FROM bookings",
                900,
            ),
        ),
    )
    p = Slot(
        index=2,
        name="p",
        features=(Feature("seats", "numeric", "INTEGER"),),
        target=False,
        identifiers=(),
        keys=(1,),
        fragments=(fragment(0, AIRLINE, "SELECT seats, tail AS sqlfl_key_1_0 FROM planes", 300),),
    )
    joins = (Join(0, 1, 0), Join(1, 2, 1))
    return Ucq(
        slots=(c, link, p),
        keys=(JoinKey(0, ("BIGINT",)), JoinKey(1, ("VARCHAR",))),
        blocks=(
            Block(((0, (0, 2)), (1, (0,)), (2, (0,))), joins),
            Block(((0, (1,)), (1, (0,)), (2, (0,))), joins),
        ),
        identifiers=() if training else (Identifier("id"),),
        columns=("balance", "trend", "kind", "seats", *(("paid",) if training else ())),
        target="paid" if training else None,
        target_type="DOUBLE" if training else None,
    )


def merged(ucq: Ucq) -> Ucq:
    """With rows of the first slot that its databases make of groups, and merge."""
    first, *others = ucq.slots
    fragments = []
    for own in first.fragments:
        select = own.select.copy()
        if own.index != 1:
            groups = exp.select("*").from_(select.args["from_"].this).subquery("sqlfl_groups")
            select.set("from_", exp.From(this=exp.select("*").from_(groups).subquery("q")))
        fragments.append(replace(own, select=select))
    return replace(ucq, slots=(replace(first, fragments=tuple(fragments)), *others))


def noised(ucq: Ucq) -> Ucq:
    """With labels that are noised."""
    return replace(ucq, slots=tuple(replace(s, noised=s.target) for s in ucq.slots))


def weighted(ucq: Ucq) -> Ucq:
    """With the weight `w`, and validation rows, both of the target's slot."""
    slots = tuple(replace(s, weight=s.target, split=s.target) for s in ucq.slots)
    return replace(ucq, slots=slots, weight="w")


def with_offset(ucq: Ucq) -> Ucq:
    """With the offset `o`, of the target's slot."""
    return replace(ucq, slots=tuple(replace(s, offset=s.target) for s in ucq.slots), offset="o")


def transformed(ucq: Ucq) -> Ucq:
    """With the first feature of the first slot scaled by TRANSFORM."""
    first, *others = ucq.slots
    feature = first.features[0]
    own = replace(
        feature,
        transform=Transform("minmax", (feature.name,), feature.name),
        made=Made(((feature.name, "DOUBLE"),), feature.name, FittedStep("minmax", "numeric")),
    )
    features = (own, *first.features[1:])
    return replace(
        ucq,
        slots=(replace(first, features=features), *others),
        transforms=(own.transform,) if own.transform else (),
    )


def curved(ucq: Ucq) -> Ucq:
    """With the first feature of the first slot by `auto`, without the curve beside it."""
    first, *others = ucq.slots
    name = first.features[0].name
    own = replace(first.features[0], transform=Transform("auto", (name,), name))
    slots = (replace(first, features=(own, *first.features[1:])), *others)
    return replace(ucq, slots=slots, transforms=(Transform("auto", (name,), name),))


def train(
    ucq: Ucq,
    kind: str,
    options: Mapping[str, object] | None = None,
    sql: str = "TRAIN MODEL m",
    at: str | None = None,
    privacy: Privacy | None = None,
) -> FederatedPlan:
    """`privacy` is settled."""
    usual = OPTIONS | (NEURAL if kind in NEURAL_KINDS else {})
    noising = None if privacy is None else Noising(privacy, slots_of(privacy, ucq))
    resolved = training_options(
        kind,
        usual | dict(options or {}),
        private=privacy is not None and privacy.features,
        noised=privacy is not None and privacy.predictions == "gaussian",
    )
    return training_plan("m", kind, ucq, resolved, sql, Setting(at), noising=noising)


def tuned(written: str = "l2 = [1e-3, 1e-1], folds = 3", ucq: Ucq | None = None) -> FederatedPlan:
    """TUNE, of the first plan's query."""
    statement = parse(
        f"TUNE MODEL m USING linear_regression TARGET paid WITH ({written}) FROM (SELECT 1)"
    )
    assert isinstance(statement, TuneModel)
    tuning = resolve_tuning("linear_regression", statement.options)
    ucq = cards() if ucq is None else ucq
    slots = tuple(replace(s, split=s.target) for s in ucq.slots)
    ucq, options = replace(ucq, slots=slots), tuning.candidates[0].options
    return training_plan("m", "linear_regression", ucq, options, statement.sql, tuning=tuning)


def score(
    purpose: str,
    kind: str = "linear_regression",
    more: Mapping[str, object] | None = None,
    at: str | None = None,
    look: Diagnostic | None = None,
    *,
    exact: bool = False,
) -> FederatedPlan:
    options = resolve_scoring(kind, more or {})
    ucq = cards(purpose)
    what = purpose.upper() if look is None else f"{look.word.upper()} OF"
    sql = f"{what} MODEL m FROM (SELECT ...)"
    model = ScoredModel("m", kind, {0: 0, 2: 1}, exact)
    made = evaluation_plan if purpose == "evaluate" else prediction_plan
    return made(model, ucq, options, sql, Setting(at), look=look)


def checked(look: Check) -> FederatedPlan:
    """CHECK, of a query with a target that is a number."""
    options = resolve_scoring("linear_regression", {})
    return check_plan("linear_regression", cards("check"), options, "CHECK (SELECT ...)", look=look)


def evaluated(privacy: Privacy) -> FederatedPlan:
    """EVALUATE over noised labels."""
    options = resolve_scoring("linear_regression", {})
    ucq = noised(cards("evaluate"))
    sql = "EVALUATE MODEL m PRIVACY (...) FROM (SELECT ...)"
    noising = Noising(privacy, slots_of(privacy, ucq))
    model = ScoredModel("m", "linear_regression", {0: 0, 2: 1})
    return evaluation_plan(model, ucq, options, sql, noising=noising)


def into() -> FederatedPlan:
    """PREDICT INTO of a party with two clients."""
    options = resolve_scoring("linear_regression", {})
    ucq = cards("predict")
    slot = next(s for s in ucq.slots if s.identifiers and len(s.parties) == 1)
    party = slot.parties[0]
    tables = tuple((client, ("memory", "main", "scores")) for client in slot.clients)
    names = tuple(identifier.name for identifier in ucq.identifiers)
    made = Into(f"{party}.scores", tables, (slot.index,), names, (), "VARCHAR")
    sql = f"PREDICT MODEL m ID (...) FROM (SELECT ...) INTO {party}.scores"
    model = ScoredModel("m", "linear_regression", {0: 0, 2: 1})
    return prediction_plan(model, ucq, options, sql, into=made)
