"""Joins that last: statements over one are as without it, and what was done is not done again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import Error, PartyError, PlanError
from sqlfl.contract.schema import Client
from sqlfl.federation.joins import SCHEMA
from sqlfl.messages import JoinKeys
from sqlfl.messages.wire import decode
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates import predict
from sqlfl.udfs.updates.predict import make_engine
from sqlfl.udfs.updates.update import LinearEngine
from tests.conftest import Open
from tests.depth import examples, in_turn
from tests.federations import Parties, trainable
from tests.strategies import LINEAR, LOGISTIC, Case, cases
from tests.test_border import Tap, assert_disclosed, tapped

PEOPLE = """CREATE TABLE people AS SELECT i AS k, sin(i) AS x, i % 7 AS c, 'v' || i % 3 AS s,
  CASE WHEN i % 11 > 0 THEN sin(i) + cos(i * 3) > 0 END AS y, 1.0 + i % 2 AS w
  FROM range({start}, {end}) AS r(i)"""
VISITS = """CREATE TABLE visits AS SELECT i * 5 % 330 AS k, cos(i) AS z, i % 4 AS n
  FROM range({start}, {end}) AS r(i)"""
INNER = "SELECT p.x, p.c, p.s, v.z, p.y FROM a.people p JOIN b.visits v ON p.k = v.k"
LEFT = INNER.replace("JOIN", "LEFT JOIN")
UNION = f"{INNER} WHERE v.n < 2 UNION ALL {INNER} WHERE v.n > 1"
QUERIES = {"inner": INNER, "left": LEFT, "union": UNION}
WEIGHTED = INNER.replace("p.y", "p.w, p.y")
TRAIN = "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET y {more}WITH ({options}) FROM "
LOOKS = (
    "EVALUATE MODEL m FROM ",
    "METRICS OF MODEL m FROM ",
    "ROC OF MODEL m FROM ",
    "CONFUSION OF MODEL m FROM ",
    "CALIBRATION OF MODEL m FROM ",
    "IMPORTANCE OF MODEL m WITH (seed = 4) FROM ",
    "INFERENCE OF MODEL m FROM ",
    "SKEW OF MODEL m FROM ",
    "CHECK FROM ",
)


def parties(database: Open, several: int = 1) -> Parties:
    def made(text: str, rows: int) -> list[duckdb.DuckDBPyConnection]:
        bounds = [rows * n // several for n in range(several + 1)]
        return [
            database(text.format(start=start, end=end)) for start, end in itertools.pairwise(bounds)
        ]

    return {"a": made(PEOPLE, 300), "b": made(VISITS, 400)}


@contextmanager
def opened(given_: Parties, query: str = INNER) -> Iterator[tuple[sqlfl.Federation, Tap]]:
    with tapped(given_) as (fed, tap):
        fed.sql(f"CREATE JOIN j AS ({query})")
        yield fed, tap


def kinds(recorded: list[Any]) -> list[str]:
    return [decode(item.data).kind for item in recorded]


def facts(fed: sqlfl.Federation) -> tuple[object, ...]:
    """What training has made of a model, without times, bytes and the number of exchanges."""
    model = fed.model("m")
    spent = ("seconds", "bytes", "rounds")
    history = model.history.drop_columns(
        [n for n in model.history.column_names if any(word in n for word in spent)]
    )
    weights = fed.sql("WEIGHTS OF MODEL m").arrow()
    return model.metrics, history.to_pylist(), weights.to_pylist()


def alike(one: tuple[Any, ...], other: tuple[Any, ...], several: int) -> bool:
    """Whether facts have equal bits. Where a table is in several databases, hashed categories have
    an order of their own in each run, and sums over them are equal up to rounding.
    """
    if several == 1:
        return one == other
    assert one[0] == pytest.approx(other[0], rel=1e-7)
    pairs = zip(one[1], other[1], strict=True)
    return all(a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-7) for a, b in pairs)


def close(one: pa.Table, other: pa.Table) -> bool:
    """Whether tables are equal up to the order of sums over randomly numbered rows."""
    assert one.schema == other.schema
    for name in one.column_names:
        for left, right in zip(one[name].to_pylist(), other[name].to_pylist(), strict=True):
            number = isinstance(left, float) and isinstance(right, float)
            assert left == (
                pytest.approx(right, rel=1e-6, abs=1e-9, nan_ok=True) if number else right
            )
    return True


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name", "several"),
    in_turn(
        [
            "epochs = 4",
            "algorithm = 'sgd', epochs = 2, batch_size = 100, learning_rate = 0.01",
            "algorithm = 'admm', epochs = 2",
            "epochs = 4, validation_fraction = 0.3",
            "engine = 'sql', epochs = 2",
        ],
        list(QUERIES),
        [1, 2],
        each=2,
    ),
)
def test_training_over_it_has_equal_bits(
    database: Open, options: str, name: str, several: int
) -> None:
    query, train = QUERIES[name], TRAIN.format(more="", options=f"seed = 3, {options}")
    with opened(parties(database, several), query) as (fed, _):
        fed.sql(f"{train}({query})")
        without = facts(fed)
        for _ in range(2):
            fed.sql(f"{train}j")
            assert alike(facts(fed), without, several)


@pytest.mark.parametrize(
    "model",
    [
        "linear_regression TARGET n TRANSFORM (auto) WITH (seed = 1)",
        "linear_regression TARGET n TRANSFORM (minmax(x), spline(z), one_hot(s)) WITH (seed = 1)",
        "poisson_regression TARGET n OFFSET w WITH (seed = 1)",
        "lasso TARGET n WITH (seed = 1, radius = 10, epochs = 20)",
        "softmax_regression TARGET n WITH (seed = 1, class_weight = 'balanced')",
        "mlp_regressor TARGET n WITH (seed = 1, epochs = 2, hidden = [4])",
    ],
)
def test_models_of_all_kinds_over_it_have_equal_bits(database: Open, model: str) -> None:
    query = INNER.replace("p.y", "p.k % 7 AS n")
    query = query.replace("p.s,", "p.s, p.w,") if "OFFSET" in model else query
    with opened(parties(database), query) as (fed, tap):
        found, sent = [], []
        for source in (f"({query})", "j", "j"):
            with tap.taken() as recorded:
                fed.sql(f"TRAIN OR REPLACE MODEL m USING {model} FROM {source}")
            found.append(fed.model("m").metrics)
            sent.append(kinds(recorded).count("send_keys"))
        assert found[0] == found[1] == found[2]
        assert sent == [2, 2, 0]


LOOKED_AT = in_turn(LOOKS, list(QUERIES), [1, 2], each=2)


@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize("name", QUERIES)
def test_looks_at_a_model_over_it_are_as_without(database: Open, several: int, name: str) -> None:
    query = QUERIES[name]
    looks = [look for look, over, number in LOOKED_AT if (over, number) == (name, several)]
    with opened(parties(database, several), query) as (fed, _):
        fed.sql(f"{TRAIN.format(more='', options='seed = 1, epochs = 4')}({query})")
        for look in (*looks, *(["CHECK TARGET y FROM "] if several == 1 else [])):
            without = fed.sql(f"{look}({query})").arrow()
            first, second = (fed.sql(f"{look}j").arrow() for _ in range(2))
            assert close(first, without), look
            assert close(second, first), look


def test_predictions_of_each_row_have_equal_bits(database: Open) -> None:
    predict = "PREDICT MODEL m ID (a.people.k, b.visits.z) FROM "
    with opened(parties(database)) as (fed, _):
        fed.sql(f"{TRAIN.format(more='', options='seed = 1')}({INNER})")
        order = [("k", "ascending"), ("z", "ascending")]
        found = [
            fed.sql(f"{predict}{of}").arrow().sort_by(order) for of in (f"({INNER})", "j", "j")
        ]
        assert found[0].equals(found[1])
        assert found[0].equals(found[2])
        assert found[0].num_rows > 0


def test_weights_offsets_and_tuning_are_as_without(database: Open) -> None:
    with opened(parties(database), WEIGHTED) as (fed, _):
        train = TRAIN.format(more="WEIGHT w ", options="seed = 2")
        tune = train.replace("TRAIN OR REPLACE", "TUNE OR REPLACE").replace(
            "seed = 2", "seed = 2, l2 = [0.1, 0.01], folds = 3"
        )
        for text in (train, tune):
            fed.sql(f"{text}({WEIGHTED})")
            without = facts(fed)
            fed.sql(f"{text}j")
            assert facts(fed) == without


def test_predictions_go_into_a_table(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        fed.sql(f"{TRAIN.format(more='', options='seed = 1')}j")
        for name in ("one", "two"):
            source = "j" if name == "one" else f"({INNER})"
            fed.sql(f"PREDICT MODEL m ID (a.people.k) FROM {source} INTO a.{name}")
        compare = "SELECT count(*) FROM (FROM one EXCEPT ALL FROM two)"
        ((rows,),) = given_["a"][0].execute("SELECT count(*) FROM one").fetchall()
        assert rows > 0
        assert given_["a"][0].execute(compare).fetchall() == [(0,)]
        fed.sql("METRICS OF MODEL m FROM j")  # the join lasts


CASES = st.booleans().flatmap(lambda outer: cases(kinds=(LINEAR, LOGISTIC), outer=outer))


@examples(2, 240)
@given(CASES, st.integers(1, 3))
def test_statements_over_it_disclose_what_explain_says(case: Case, clients: int) -> None:
    """Random queries: equal results; and what crosses a border is what the plan says, each time."""
    with case.open(clients) as databases:
        data = trainable(case, databases)
        with tapped(databases.parties) as (fed, tap):
            with tap.taken() as recorded:
                explained = fed.explain(f"CREATE JOIN j AS ({case.query})")
            with tap.taken() as recorded:
                fed.sql(f"CREATE JOIN j AS ({case.query})")
            assert_disclosed(explained, recorded, databases.parties)
            text = f"TRAIN OR REPLACE MODEL m USING {case.kind} TARGET {case.target} "
            text += "WITH (seed = 5, epochs = 5) FROM "
            metrics = []
            for source in (f"({case.query})", "j", "j"):
                plan = fed.explain(f"{text}{source}")
                with tap.taken() as recorded:
                    fed.sql(f"{text}{source}")
                model = fed.model("m")
                epochs = model.history.column("epoch").to_pylist()[-1]
                assert_disclosed(
                    plan, recorded, databases.parties, epochs=epochs, outputs=data.outputs
                )
                metrics.append(model.metrics)
            for over in metrics[1:]:
                assert over.keys() == metrics[0].keys()
                for name, value in metrics[0].items():
                    if isinstance(value, float):
                        value = pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True)
                    assert over[name] == value, name
            assert not {"send_keys", "send_labels"} & {*kinds(recorded)}


# -- what is not done again ------------------------------------------------------------------------


def test_keys_leave_once_for_each_slot_of_rows(database: Open) -> None:
    with opened(parties(database)) as (fed, tap):
        sent = []
        train = TRAIN.format(more="", options="epochs = 3")
        statements = (train, train, "METRICS OF MODEL m FROM ", "PREDICT MODEL m FROM ")
        for text in statements:
            said = str(fed.explain(f"{text}j"))
            with tap.taken() as recorded:
                fed.sql(f"{text}j")
            keyed = [decode(r.data) for r in recorded]
            sent.append({m.slot for m in keyed if m.kind == "send_keys"})
            assert ("leave now, once for the join" in said) == bool(sent[-1])
        # the label's table has other rows for PREDICT: also those without a label
        assert sent == [{0, 1}, set(), set(), {0}]


def test_scores_are_computed_once_and_asked_for_each_time(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Snapshot] = []

    def counted(*given_: Any) -> LinearEngine:
        engines.append(given_[2])
        return make_engine(*given_)

    monkeypatch.setattr(predict, "make_engine", counted)
    train = TRAIN.format(more="", options="seed = 1, epochs = 3")
    with opened(parties(database)) as (fed, tap):
        made, asked = [], []
        for text in (
            *(train, "EVALUATE MODEL m FROM ", "METRICS OF MODEL m FROM ", "ROC OF MODEL m FROM "),
            *(train.replace("seed = 1", "l2 = 1"), "EVALUATE MODEL m FROM "),
            *("PREDICT MODEL m FROM ", "EVALUATE MODEL m FROM "),
        ):
            engines.clear()
            with tap.taken() as recorded:
                fed.sql(f"{text}j")
            if not text.startswith("TRAIN"):
                made.append(len(engines))
                asked.append(kinds(recorded).count("score"))
        # another model, and other rows for PREDICT: those without a label too
        assert made == [2, 0, 0, 2, 2, 0]
        assert asked == [2] * 6


def test_columns_are_described_once_while_tables_stay(database: Open) -> None:
    given_ = parties(database)
    train = TRAIN.format(more="", options="seed = 1, epochs = 3")
    with opened(given_) as (fed, tap):
        described = []
        for text in (train, "EVALUATE MODEL m FROM ", "METRICS OF MODEL m FROM ", train):
            if text == train:
                given_["b"][0].execute("CREATE OR REPLACE TABLE beside AS SELECT 1 AS a")
                given_["b"][0].execute(f"ALTER TABLE beside ADD COLUMN c{len(described)} INTEGER")
            with tap.taken() as recorded:
                fed.sql(f"{text}j")
            described.append(kinds(recorded).count("describe"))
        # once party b lists other tables, it describes its columns again
        assert described[0] >= 2
        assert described[1:] == [0, 0, 1]


def test_targets_leave_once_for_the_same_rows(database: Open) -> None:
    private = TRAIN.format(more="", options="epochs = 3")[: -len(" FROM ")]
    private += " PRIVACY (label_epsilon = 2) FROM "
    with opened(parties(database)) as (fed, tap):
        sent = []
        for text in (
            TRAIN.format(more="", options="epochs = 3"),
            "METRICS OF MODEL m FROM ",
            TRAIN.format(more="", options="epochs = 3").replace("logistic", "linear"),
            TRAIN.format(more="", options="epochs = 3, l2 = 0.1"),
            private,
        ):
            said = str(fed.explain(f"{text}j"))
            with tap.taken() as recorded:
                fed.sql(f"{text}j")
            sent.append("send_labels" in kinds(recorded))
            assert ("targets were sent already" in said) != sent[-1]
        # numbers are sent otherwise than classes, and noised ones each time
        assert sent == [True, False, True, False, True]


def test_columns_of_any_type_are_copied(database: Open) -> None:
    first = """CREATE TABLE t AS SELECT i AS k, sin(i) AS x, i % 3 AS h,
      (['lo', 'hi', 'mid'])[i % 3 + 1]::ENUM('lo', 'mid', 'hi') AS e, (i % 3)::DECIMAL(18, 3) AS d,
      uuid() AS u, INTERVAL (i) DAY AS v, {'a': i, 'b': 'x'} AS s, TIMETZ '10:00:00+02' AS z,
      i::BIGNUM AS n, [i] AS l FROM range(120) AS r(i)"""
    second = (
        "CREATE TABLE w AS SELECT i AS k, [i / 120, sin(i)]::FLOAT[2] AS m FROM range(120) r(i)"
    )
    query = "SELECT t.x, w.m, t.{} AS y FROM a.t t JOIN b.w w ON t.k = w.k"
    with tapped({"a": [database(first)], "b": [database(second)]}) as (fed, _):
        for label in "ehd":
            own = query.format(label)
            fed.sql(f"CREATE OR REPLACE JOIN j AS ({own})")
            train = TRAIN.format(more="", options="seed = 1, validation_fraction = 0.3, epochs = 3")
            train = train.replace("logistic", "softmax")
            found = []
            for source in (f"({own})", "j", "j"):
                fed.sql(f"{train}{source}")
                found.append((fed.model("m").metrics, fed.model("m").classes))
            assert found[0] == found[1] == found[2]
        names = ", ".join(f"a.t.{name}" for name in "kuvsznle")
        predict = f"PREDICT MODEL m ID ({names}) WITH (engine = 'sql') FROM "
        tables = [fed.sql(f"{predict}{s}").arrow() for s in (f"({own})", "j", "j")]
        one, two, three = (table.sort_by("k") for table in tables)
        assert one.num_columns > 8
        assert one.equals(two)
        assert one.equals(three)


def test_tags_are_those_of_the_join_and_of_no_other(database: Open) -> None:
    given_ = parties(database)
    tags = []
    for _ in range(2):
        with opened(given_) as (fed, tap):
            with tap.taken() as recorded:
                fed.sql("CHECK FROM j")
                fed.sql("CHECK TARGET y FROM j")
            sent = [decode(r.data) for r in recorded if r.client == Client("a")]
            tags.append([m.tags[0].tobytes() for m in sent if isinstance(m, JoinKeys)])
    # with the same key for both statements: rows without a label are left out of the second one
    (every, labelled), (other, _) = tags
    assert {labelled[i : i + 16] for i in range(0, len(labelled), 16)} <= {
        every[i : i + 16] for i in range(0, len(every), 16)
    }
    assert every != other


def test_the_rows_are_those_of_when_it_was_made(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        assert fed.sql("SHOW JOINS").arrow().column("changed").to_pylist() == ["no"]
        train = TRAIN.format(more="", options="seed = 1")
        fed.sql(f"{train}j")
        before = facts(fed)
        given_["b"][0].execute("DELETE FROM visits WHERE n = 1")
        given_["b"][0].execute("ALTER TABLE visits DROP COLUMN z")
        given_["b"][0].execute("ALTER TABLE visits ADD COLUMN z DOUBLE DEFAULT 7")
        with pytest.warns(sqlfl.Warning, match="b/0 have changed since join j was made"):
            fed.sql(f"{train}j")
        assert facts(fed) == before
        # also of rows that no statement has asked for yet
        notes = fed.sql("PREDICT MODEL m ID (b.visits.k) FROM j").notes
        assert any("CREATE OR REPLACE JOIN" in note for note in notes)
        assert fed.sql("SHOW JOINS").arrow().column("changed").to_pylist() == ["changed: b/0"]
        fed.sql(f"{train}({INNER})")
        assert facts(fed) != before
        fed.sql(f"CREATE OR REPLACE JOIN j AS ({INNER})")
        fed.sql(f"{train}({INNER})")
        now = facts(fed)
        fed.sql(f"{train}j")
        assert facts(fed) == now


def test_of_a_view_it_is_not_known_whether_it_has_changed(database: Open) -> None:
    given_ = parties(database)
    given_["b"][0].execute("CREATE VIEW seen AS FROM visits WHERE n > 0")
    with opened(given_, INNER.replace("b.visits", "b.seen")) as (fed, _):
        assert fed.sql("SHOW JOINS").arrow().column("changed").to_pylist() == ["not known: b/0"]


# -- statements ------------------------------------------------------------------------------------


def test_it_is_listed_and_dropped(database: Open) -> None:
    with opened(parties(database)) as (fed, tap):
        fed.sql("CHECK FROM j")
        (row,) = fed.sql("SHOW JOINS").arrow().to_pylist()
        assert (row["join"], row["query"], row["statements"]) == ("j", INNER, 1)
        assert row["until"] is None
        with pytest.raises(Error, match="there is a join j already"):
            fed.sql(f"CREATE JOIN J AS ({INNER})")
        with tap.taken() as recorded:
            assert fed.sql("DROP JOIN j").fetchall() == [("j",)]
        assert sorted(kinds(recorded)) == ["close_join", "close_join", "ready", "ready"]
        assert fed.sql("SHOW JOINS").arrow().num_rows == 0
        assert fed.sql("DROP JOIN IF EXISTS j").fetchall() == []
        for text in ("DROP JOIN j", "CHECK FROM j", "EXPLAIN CHECK FROM j"):
            with pytest.raises(PlanError, match="there is no join j"):
                fed.sql(text)


def test_schemas_are_those_of_the_results(database: Open) -> None:
    with opened(parties(database)) as (fed, _):
        assert fed.result_schema("SHOW JOINS") == SCHEMA
        assert fed.result_schema(f"CREATE JOIN z AS ({INNER})") == SCHEMA
        fed.sql(f"{TRAIN.format(more='', options='epochs = 2')}j")
        predict = "PREDICT MODEL m ID (a.people.k) FROM j"
        assert fed.result_schema(predict) == fed.sql(predict).arrow().schema


def test_a_script_may_make_it_and_use_it(database: Open) -> None:
    with tapped(parties(database)) as (fed, _):
        fed.sql(f"CREATE JOIN j AS ({INNER} -- a comment\n); CHECK FROM j; DROP JOIN j")


def test_a_relation_is_kept(database: Open) -> None:
    with tapped(parties(database)) as (fed, tap):
        relation = fed.query(INNER).keep("my join")
        model = relation.train("m", "logistic_regression", "y")
        with tap.taken() as recorded:
            relation.metrics("m")
            relation.evaluate("m")
        assert "send_keys" not in kinds(recorded)
        # what is kept of the model does not need the join
        assert INNER in model.sql
        fed.sql('DROP JOIN "my join"')
        fed.sql("EXPLAIN " + model.sql)


def test_it_is_refused_where_it_is_not_built(database: Open) -> None:
    given_ = parties(database, 2)
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", given_["a"], combine=True)
        fed.attach("b", given_["b"])
        with pytest.raises(PlanError, match="not built for parties that combine"):
            fed.sql(f"CREATE JOIN j AS ({INNER})")
    with tapped(given_) as (fed, _), pytest.raises(PlanError, match="cannot depend on the time"):
        fed.sql("CREATE JOIN j AS (SELECT x, k > year(now()) AS t FROM a.people)")


# -- failures --------------------------------------------------------------------------------------


def test_a_party_that_is_attached_anew_has_lost_it(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        fed.sql("CHECK FROM j")
        fed.detach("b")
        fed.attach("b", given_["b"][0])
        with pytest.raises(PartyError, match=r"attached anew.*\nhint: CREATE OR REPLACE JOIN"):
            fed.sql("CHECK FROM j")
        (row,) = fed.sql("SHOW JOINS").arrow().to_pylist()
        assert row["changed"].startswith("lost: party b/0")
        fed.sql(f"CREATE OR REPLACE JOIN j AS ({INNER})")
        fed.sql("CHECK FROM j")


def test_it_is_dropped_at_the_parties_that_are_left(database: Open) -> None:
    with opened(parties(database)) as (fed, _):
        fed.sql("CHECK FROM j")
        fed.detach("b")
        (row,) = fed.sql("SHOW JOINS").arrow().to_pylist()
        assert row["changed"] == "lost: party b/0: it is not attached"
        fed.sql("DROP JOIN j")
        assert not any(server._joins._held for server in fed._servers.values())


def test_a_statement_that_fails_in_the_database_ends_it_there(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        fed.sql(f"{TRAIN.format(more='', options='epochs = 2')}j")
        given_["a"][0].execute("ALTER TABLE people ADD COLUMN new INTEGER")
        with pytest.raises(PartyError):
            fed.sql("PREDICT MODEL m ID (a.people.new) FROM j")
        with pytest.raises(PartyError, match="a statement failed or was stopped"):
            fed.sql("CHECK FROM j")


def test_a_failed_statement_leaves_it_as_it_is(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        with pytest.raises(Error, match="max_joined_rows"):
            fed.sql(f"{TRAIN.format(more='', options='max_joined_rows = 5')}j")
        train = TRAIN.format(more="", options="seed = 1")
        fed.sql(f"{train}({INNER})")
        without = facts(fed)
        fed.sql(f"{train}j")
        assert facts(fed) == without
        with pytest.raises(Error, match="max_joined_rows"):
            fed.sql(f"{TRAIN.format(more='', options='seed = 1, max_joined_rows = 5')}j")


def test_a_name_is_bounded(database: Open) -> None:
    with tapped(parties(database)) as (fed, _):
        with pytest.raises(PartyError, match="200 characters at most"):
            fed.sql(f"CREATE JOIN {'j' * 201} AS ({INNER})")
        fed.sql(f"CREATE JOIN {'j' * 200} AS ({INNER})")


def test_threads_take_turns_over_it(database: Open) -> None:
    given_ = parties(database)
    with opened(given_) as (fed, _):
        found: list[object] = []

        def work() -> None:
            found.append(fed.sql("CHECK TARGET y FROM j").arrow().num_rows)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert len(set(found)) == 1


def test_the_database_is_its_owners_again_once_it_is_dropped(database: Open) -> None:
    given_ = parties(database)
    con = given_["b"][0]
    with opened(given_) as (fed, _):
        con.execute("UPDATE visits SET n = 3 WHERE n = 2")
        fed.sql("CHECK FROM j")
        fed.sql("DROP JOIN j")
        con.execute("CHECKPOINT")
        ((number,),) = con.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE temporary"
        ).fetchall()
        assert number == 0
