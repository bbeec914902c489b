"""Random statements end to end: the model and its predictions, row by row, as of one database."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from random import Random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import ModelError, OptionError, ParseError, PartyError, PlanError
from tests import oracle
from tests.contradictions import note_contradiction, unoptimized
from tests.depth import SEED, THOROUGH
from tests.federations import assert_close, probabilities
from tests.planner.random.statements import Statement, made
from tests.planner.random.truth import BREAKING
from tests.planner.random.world import World, opened
from tests.strategies import LINEAR, LOGISTIC, SOFTMAX, predict_sql, train_sql

WANTED = 10 if THOROUGH else 5
"""Statements of a world that are trained."""
WORLDS = 20 if THOROUGH else 1
RATE = 0.5
OF_A_VALUE = re.compile(
    r"cannot be evaluated: |with (Conversion|OutOfRange|InvalidInput)Exception;"
)
BROKE = re.compile(r"failed on \w+ with (Error|InternalException|FatalException);")
"""What the coordinator hears of an error of DuckDB's own."""
FIRST = 10_000_000 + SEED % 10_000 * WORLDS
"""Worlds from here on: others than those in which plans are compared."""


@pytest.mark.parametrize("number", range(WORLDS))
def test_a_full_batch_step_over_random_statements_is_the_central_one(number: int) -> None:
    """θ = −η∇ after one step from 0, so equal predictions are equal gradients."""
    trained = 0
    seeds = iter(range(1000 * (FIRST + number), 1000 * (FIRST + number + 1)))
    left = next(seeds, None)
    while left is not None:
        with opened(FIRST + number) as world, contextlib.suppress(BrokenDatabase):
            while left is not None:
                seed, left = left, next(seeds, None)
                for statement, data in trainable(world, seed):
                    trained += compare(world, statement, data, seed)
                if trained == WANTED:
                    return
    pytest.fail(f"only {trained} of 1000 statements could be trained")


class BrokenDatabase(Exception):
    """An error of DuckDB's own: the world is opened anew, and the statement left out."""


def trainable(world: World, seed: int) -> Iterator[tuple[Statement, oracle.Central]]:
    """The statement of the seed, and its central rows: none where a model needs more of them."""
    statement, _ = made(Random(seed))
    if statement.target is None or statement.weight is not None or statement.split:
        return
    if "sample" in statement.seen:  # each evaluation has other rows
        return
    query = statement.identified or statement.query
    names = identifiers(statement)
    try:
        target = column(world.central, statement)
        data = oracle.central(world.central, query, LINEAR, target, names)
        classes = len(set(data.y.tolist()))
        if len(data.y) < 2 or data.x.shape[1] == 0 or classes < 2:
            return
        whole = pa.types.is_integer(data.rows.schema.field(target).type)
        kind = Random(seed).choice((LINEAR, SOFTMAX, LOGISTIC)) if whole else LINEAR
        if kind == SOFTMAX or (kind == LOGISTIC and classes == 2):
            data = oracle.central(world.central, query, kind, target, names)
    except (duckdb.Error, pa.ArrowException, ValueError) as error:
        if BREAKING.search(str(error)):
            raise BrokenDatabase from error
        return
    yield statement, data


def identifiers(statement: Statement) -> tuple[str, ...]:
    """The names of the identifiers in the central query."""
    return tuple(f"sqlfl_{k}" for k in range(len(statement.identifiers)))


def column(central: duckdb.DuckDBPyConnection, statement: Statement) -> str:
    """The target as the central database calls it."""
    names = central.sql(statement.query).columns
    return next(name for name in names if name.lower() == str(statement.target).lower())


def compare(world: World, statement: Statement, data: oracle.Central, seed: int) -> bool:
    """False where the statement is refused."""
    fed = world.federated(statement.layout).fed
    paths = tuple(".".join(path) for path in statement.identifiers)
    options = {
        "algorithm": "sgd",
        "epochs": 1,
        "learning_rate": RATE,
        "engine": Random(seed).choice(("sql", "arrays")),
        "allow_cross_join": statement.cross,
    }
    train = train_sql("m", data.kind, str(statement.target), statement.query, **options)
    predict = predict_sql("m", statement.query, paths)
    try:
        fed.sql(train.replace("TRAIN MODEL", "TRAIN OR REPLACE MODEL", 1))
        found = fed.sql(predict)
    except (ParseError, PlanError, OptionError):
        return False
    except Exception as error:
        if isinstance(error, ModelError) and "have the keys of one group" in str(error):
            return False  # of a GROUP BY over several parties
        if isinstance(error, PartyError) and BROKE.search(str(error)):
            raise BrokenDatabase from error
        if isinstance(error, PartyError) and OF_A_VALUE.search(str(error)):
            return False  # in a row that joins nothing: one database may not have looked at it
        raise AssertionError(f"seed {seed}: {statement}") from error
    table, metrics = found.arrow(), fed.model("m").metrics
    try:
        check(world, statement, data, table, metrics)
    except AssertionError as error:
        if not is_contradicted(world, statement, data, table, metrics):
            raise AssertionError(f"seed {seed}: {statement}\n{error}") from error
        note_contradiction(f"seed {seed}: {statement}")
        return False
    return True


def is_contradicted(
    world: World,
    statement: Statement,
    data: oracle.Central,
    found: pa.Table,
    metrics: dict[str, object],
) -> bool:
    """Whether model and predictions are those of the central rows without DuckDB's optimizer."""
    query, names = statement.identified or statement.query, identifiers(statement)
    with unoptimized(world.central):
        try:
            target = column(world.central, statement)
            again = oracle.central(world.central, query, data.kind, target, names)
            check(world, statement, again, found, metrics)
        except (AssertionError, duckdb.Error, pa.ArrowException, ValueError):
            return False
    return True


def check(
    world: World,
    statement: Statement,
    data: oracle.Central,
    found: pa.Table,
    metrics: dict[str, object],
) -> None:
    stepped = data.step(RATE)
    assert metrics["rows"] == len(data.y)
    assert metrics["objective"] == pytest.approx(data.objective(stepped), rel=1e-5, abs=1e-9)
    rows = oracle.materialised(world.central, statement.identified or statement.query)
    expected, values = data.predict(stepped, rows), probabilities(found, data.kind)
    assert values.shape == expected.shape
    if not statement.identifiers:
        assert_close(np.sort(values, axis=0), np.sort(expected, axis=0), 1e-5)
        return
    names = identifiers(statement)
    known = [texts(rows.column(name)) for name in names]
    given = [texts(found.column(k)) for k in range(len(names))]
    ours, theirs = sorting(given, values), sorting(known, expected)
    for mine, central in zip(given, known, strict=True):
        assert [mine[i] for i in ours] == [central[i] for i in theirs]
    assert_close(values[ours], expected[theirs], 1e-5)


def texts(values: pa.ChunkedArray) -> list[str]:
    return [repr(value) for value in values.to_pylist()]


def sorting(keys: list[list[str]], values: np.ndarray) -> list[int]:
    """Rows by their identifiers; where these are equal, by what is predicted."""
    rounded = np.round(values, 4).tolist()
    return sorted(range(len(values)), key=lambda n: ([key[n] for key in keys], rounded[n]))
