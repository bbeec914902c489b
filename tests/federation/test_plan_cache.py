"""A statement that comes again has the plan that it would be given anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PartyError, PlanError
from sqlfl.federation import plan_cache, session
from tests.open_databases import in_memory

QUERY = "SELECT t.x, t.c, u.z, t.y FROM one.t JOIN two.u USING (k)"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each plan that is made."""
    found: list[str] = []

    def counted(name: str) -> None:
        original: Callable[..., Any] = getattr(session, name)

        def make(*given: Any, **named: Any) -> Any:
            found.append(name)
            return original(*given, **named)

        monkeypatch.setattr(session, name, make)

    counted("plan_training")
    counted("plan_scoring")
    return found


@pytest.fixture
def one() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(
            "CREATE TABLE t AS SELECT range % 10 AS k, range / 7 AS x, range % 3 = 0 AS y, "
            "chr(65 + (range % 3)::INT) AS c FROM range(60)"
        )
        yield con


@pytest.fixture
def fed(one: duckdb.DuckDBPyConnection) -> Iterator[sqlfl.Federation]:
    with in_memory() as two, sqlfl.connect(progress=False) as federation:
        two.execute("CREATE TABLE u AS SELECT range AS k, sqrt(range) AS z FROM range(10)")
        federation.attach("one", one)
        federation.attach("two", two)
        yield federation


def train(fed: sqlfl.Federation, name: str, query: str = QUERY, given: str = "seed = 1") -> None:
    fed.sql(f"TRAIN MODEL {name} USING logistic_regression TARGET y WITH ({given}) FROM ({query})")


def test_it_is_made_once_and_the_parties_are_asked_each_time(
    fed: sqlfl.Federation, made: list[str]
) -> None:
    kinds = []
    for name in ("a", "b"):
        before = len(fed.audit().arrow())
        train(fed, name)
        crossed = fed.audit().arrow().slice(before).drop_columns(["seq", "at", "run"])
        kinds.append(crossed.sort_by([(column, "ascending") for column in crossed.column_names]))
    assert len(made) == 1
    assert kinds[0].equals(kinds[1])
    one, other = fed.model("a"), fed.model("b")
    assert one.metrics == other.metrics
    assert one.privacy == other.privacy
    assert (one.name, other.name) == ("a", "b")
    assert " a " in one.sql
    assert " b " in other.sql
    for _ in range(2):
        assert len(fed.sql(f"PREDICT MODEL a FROM ({QUERY})").arrow()) == 60
    assert made == ["plan_training", "plan_scoring"]


def test_what_is_explained_is_of_the_statement_that_is_asked(
    fed: sqlfl.Federation, made: list[str]
) -> None:
    texts = {}
    for name in ("a", "b", "longer"):
        text = f"TRAIN MODEL {name} USING logistic_regression TARGET y FROM ({QUERY})"
        texts[name] = str(fed.explain(text).details)
        assert f"MODEL {name} " in texts[name]
    assert texts["a"].replace("MODEL a ", "MODEL b ") == texts["b"]
    assert len(made) == 2


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO t SELECT * FROM t",
        "ALTER TABLE t ADD COLUMN w INTEGER",
        "ALTER TABLE t ALTER COLUMN x TYPE VARCHAR",
        "CREATE TABLE another (a INTEGER)",
    ],
)
def test_it_is_made_anew_where_a_party_answers_otherwise(
    fed: sqlfl.Federation, one: duckdb.DuckDBPyConnection, made: list[str], change: str
) -> None:
    train(fed, "a")
    one.execute(change)
    train(fed, "b")
    assert len(made) == 2
    kinds = [kind for block in fed.model("b").blocks for name, kind, _ in block.features]
    assert kinds[0] == ("category" if "VARCHAR" in change else "numeric")


def test_what_is_gone_is_missed(
    fed: sqlfl.Federation, one: duckdb.DuckDBPyConnection, made: list[str]
) -> None:
    text = f"TRAIN MODEL a USING logistic_regression TARGET y FROM ({QUERY})"
    fed.explain(text)
    one.execute("ALTER TABLE t DROP COLUMN c")
    with pytest.raises(PlanError, match="no column c"):
        fed.explain(text)
    one.execute("ALTER TABLE t ADD COLUMN c VARCHAR")
    fed.explain(text)
    fed.detach("two")
    with pytest.raises(PlanError, match="no party two"):
        fed.explain(text)


def test_other_options_and_another_model_have_other_plans(
    fed: sqlfl.Federation, made: list[str]
) -> None:
    train(fed, "a")
    train(fed, "b", given="seed = 2")
    assert len(made) == 2
    for name in ("a", "b"):
        fed.sql(f"EVALUATE MODEL {name} FROM ({QUERY})")
    assert len(made) == 4
    fed.sql("DROP MODEL a")
    train(fed, "a", given="seed = 3")
    fed.sql(f"EVALUATE MODEL a FROM ({QUERY})")
    assert len(made) == 6


def test_a_statement_that_starts_from_a_model_is_planned_each_time(
    fed: sqlfl.Federation, made: list[str]
) -> None:
    train(fed, "a")
    for name in ("b", "c"):
        train(fed, name, given="warm_start = 'a'")
    assert len(made) == 3


def test_plans_over_very_many_tables_are_not_kept(
    fed: sqlfl.Federation, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "MAX_LISTED_COLUMNS", 5)
    for name in ("a", "b"):
        train(fed, name)
    assert len(made) == 2


@pytest.mark.parametrize(
    "time", ["epoch(now())", "year(current_date)", "year(current_timestamp)", "year(today())"]
)
def test_a_statement_that_asks_for_the_time_is_planned_each_time(
    fed: sqlfl.Federation, made: list[str], time: str
) -> None:
    for name in ("a", "b"):
        train(fed, name, QUERY.replace("t.x", f"{time} + t.x AS x"))
    assert len(made) == 2


def test_remarks_are_made_each_time(fed: sqlfl.Federation) -> None:
    train(fed, "a")
    odd = f"PREDICT MODEL a FROM ({QUERY.replace('t.x', 't.x > 3 AS x')})"
    for _ in range(2):
        with pytest.warns(UserWarning, match="BOOLEAN"):
            fed.sql(odd)


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each query whose normal form is made."""
    texts: list[str] = []
    original = plan_cache.to_ucq

    def convert(*given: Any, **named: Any) -> Any:
        texts.append(given[1])
        return original(*given, **named)

    monkeypatch.setattr(plan_cache, "to_ucq", convert)
    return texts


def test_other_statements_over_a_query_share_its_normal_form(
    fed: sqlfl.Federation, one: duckdb.DuckDBPyConnection, converted: list[str]
) -> None:
    train(fed, "a")
    assert len(converted) == 1
    train(fed, "b", given="l2 = 0.1")
    fed.sql(f"CHECK TARGET y FROM ({QUERY})")
    assert len(converted) == 1
    rows = []
    for text in ("EVALUATE MODEL a", "METRICS OF MODEL a", "ROC OF MODEL b"):
        rows.append(fed.sql(f"{text} FROM ({QUERY})").arrow().to_pylist())
    assert len(converted) == 2  # scoring takes a query without the weight too
    with sqlfl.connect(progress=False) as other, in_memory() as two:
        two.execute("CREATE TABLE u AS SELECT range AS k, sqrt(range) AS z FROM range(10)")
        other.attach("one", one)
        other.attach("two", two)
        train(other, "a")
        again = other.sql(f"METRICS OF MODEL a FROM ({QUERY})").arrow().to_pylist()
        for row, before in zip(again, rows[1], strict=True):  # rows come in another order
            assert row == {**before, "value": pytest.approx(before["value"], rel=1e-9)}
    one.execute("ALTER TABLE t ALTER COLUMN k TYPE VARCHAR")
    made = len(converted)
    fed.sql(f"CONFUSION OF MODEL a FROM ({QUERY})")
    assert len(converted) == made + 1


def test_errors_are_in_the_text_of_the_statement_that_is_asked(fed: sqlfl.Federation) -> None:
    fed.sql(f"CHECK TARGET c FROM ({QUERY})")
    text = f"TRAIN MODEL longer USING linear_regression TARGET c FROM ({QUERY})"
    with pytest.raises(PlanError, match="c is VARCHAR") as caught:
        fed.sql(text)
    assert caught.value.line == 1
    assert caught.value.column == text.index(" c FROM") + 2


def test_failures_at_a_party_have_the_place_in_the_statement_that_is_asked(
    fed: sqlfl.Federation, converted: list[str]
) -> None:
    """Also where the normal form was made for another statement."""
    query = QUERY.replace("t.c", "cast(t.c AS INTEGER) AS c")
    use = "USING logistic_regression TARGET y"
    for text in (
        f"CHECK TARGET y FROM ({query})",
        f"TRAIN MODEL longer {use} WITH (l2 = 0.1) FROM ({query})",
        f"TRAIN MODEL m {use} FROM\n\n  ({query})",
        f"CHECK FROM ({query})",
    ):
        before, _, _ = text.partition("cast")
        with pytest.raises(PartyError, match="column c cannot be evaluated") as caught:
            fed.sql(text)
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert f"at line {line}, column {column}:" in caught.value.message
    assert len(converted) == 2  # the last one has no target
    with pytest.raises(PartyError, match="at line 2, column 3:"):
        fed.sql(f"CHECK TARGET y FROM ({query.replace('cast', chr(10) + '  ' + 'cast')})")


def test_other_roles_and_queries_have_normal_forms_of_their_own(
    fed: sqlfl.Federation, converted: list[str]
) -> None:
    train(fed, "a")
    for statement in (
        f"TRAIN MODEL b USING linear_regression TARGET x FROM ({QUERY})",
        f"TRAIN MODEL d USING logistic_regression TARGET y WITH (validation_fraction = 0.5) FROM "
        f"({QUERY})",
        f"TRAIN MODEL e USING logistic_regression TARGET y FROM ({QUERY} WHERE x > 1)",
        f"TRAIN MODEL f USING logistic_regression TARGET y TRANSFORM (standardize(x)) FROM "
        f"({QUERY})",
        f"PREDICT MODEL a ID (one.t.x) FROM ({QUERY})",
        f"PREDICT MODEL a FROM ({QUERY})",
    ):
        made = len(converted)
        fed.sql(statement)
        assert len(converted) == made + 1, statement
