"""Parties that combine their clients: what a union gives, by one client's messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import Failure, Labels, Prepare, SendGram, SendLabels
from sqlfl.messages.wire import decode, encode
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.udfs.blocks.blocks import MemoryBlocks
from sqlfl.udfs.encoding import noised
from tests import test_central
from tests.conftest import Open
from tests.depth import examples, spread
from tests.federation import test_weighted_border, test_weights_as_copies
from tests.federations import Parties, combining, federation, merging, probabilities
from tests.open_databases import in_memory
from tests.privacy import test_private_statements
from tests.strategies import BOUNDED, Case, cases, predict_sql, train_sql
from tests.test_border import ALGORITHMS, order_of, tapped
from tests.unions import BOUNDS, LEFT, QUERY, ROWS, UNION, again, divided

SEVERAL = st.integers(2, 3)
ENGINES = st.sampled_from(("sql", "arrays"))

# -- what unions are held to -----------------------------------------------------------------------


@given(cases(), SEVERAL, ENGINES)
@examples(1)
def test_a_full_batch_step_is_the_central_one(case: Case, clients: int, engine: str) -> None:
    with combining():
        again(test_central.test_a_full_batch_step_is_the_central_one, case, clients, engine)


@given(test_central.OUTER, SEVERAL, ENGINES, st.sampled_from(("lbfgs", "admm")))
@examples(1)
def test_outer_joins_reach_the_central_optimum(
    case: Case, clients: int, engine: str, algorithm: str
) -> None:
    with combining(), merging():
        again(
            test_central.test_outer_joins_reach_the_central_optimum,
            case,
            clients,
            engine,
            algorithm,
        )


# -- beside a union --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 3},
        {"algorithm": "admm", "epochs": 3},
        {"algorithm": "admm", "union": "consensus"},
    ],
    ids=["lbfgs", "exact", "consensus"],
)
def test_a_union_with_another_party(options: dict[str, object], database: Open) -> None:
    """Of consensus, the party's clients are one: its part is theirs together."""
    parties = divided(database) | {"club": [database(LEFT.format(250, 290))]}
    found = []
    for combine in (False, True):
        with federation(parties, combine=combine) as fed:
            fed.sql(train_sql("m", "linear_regression", "n", UNION, **options))
            table = fed.sql(predict_sql("m", UNION, ("t.id", "lab.visits.v"))).arrow()
            table = table.sort_by([("id", "ascending"), ("v", "ascending")])
            found.append(probabilities(table, "linear_regression"))
    atol = 0.05 if "union" in options else 1e-6
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=atol)


@given(
    cases(outer=True), SEVERAL, st.sampled_from(ALGORITHMS), ENGINES, st.sampled_from((0.2, 0.5))
)
@examples(1)
def test_the_traffic_of_a_split_is_what_explain_says(
    case: Case, clients: int, options: dict[str, object], engine: str, fraction: float
) -> None:
    with combining(), merging(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBlocks, "secret", lambda self, purpose: test_weighted_border.DRAWS)
        again(
            test_weighted_border.test_the_traffic_of_a_split_is_what_explain_says,
            case,
            clients,
            options,
            engine,
            fraction,
        )


@pytest.mark.parametrize("engine", ["sql", "arrays"])
@pytest.mark.parametrize("kind", ["linear_regression", "softmax_regression"])
def test_a_weight_is_a_number_of_copies(database: Open, kind: str, engine: str) -> None:
    with combining():
        test_weights_as_copies.test_a_weight_is_a_number_of_copies(
            database, "lbfgs", kind, 2, engine
        )


def test_mini_batches_approach_the_optimum(database: Open) -> None:
    with combining():
        test_central.test_mini_batches_approach_the_optimum(2, database)


# -- privacy ---------------------------------------------------------------------------------------


@given(
    cases(kinds=BOUNDED, unions=False, max_slots=3),
    SEVERAL,
    ENGINES,
    st.sampled_from((0.05, None)),
    st.sampled_from(("none", "gaussian")),
)
@examples(1)
def test_gradients_are_clipped_per_table_row(
    case: Case, clients: int, engine: str, clip: float | None, predictions: str
) -> None:
    with combining():
        again(
            test_private_statements.test_gradients_are_clipped_per_table_row,
            case,
            clients,
            engine,
            clip,
            predictions,
        )


@pytest.mark.parametrize(
    ("privacy", "options", "kind"), spread(test_private_statements.CONFIGURATIONS, 5)
)
def test_private_traffic_is_what_explain_says(
    privacy: str, options: str, kind: str, database: Open
) -> None:
    with combining():
        test_private_statements.test_traffic_is_what_explain_says(
            privacy, options, kind, 2, database
        )


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_what_is_summed_is_noised_once(
    algorithm: str, database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client of a union adds all of the noise, a party that combines them once as much."""
    drawn: Counter[tuple[str, float]] = Counter()

    def noted(owner: object, name: str, sigma: Callable[..., float]) -> None:
        real = getattr(owner, name)

        def add(*given: Any) -> Any:
            drawn[name, sigma(*given)] += 1
            return real(*given)

        monkeypatch.setattr(owner, name, add)

    noted(ReleaseGuard, "gradient", lambda own, *_: own.privacy.noise)
    noted(ReleaseGuard, "moments", lambda own, *_: own.privacy.moments_noise)
    noted(noised, "add_gaussian", lambda values, sigma, entropy: sigma)
    text = test_private_statements.statement(
        "epsilon = 2, predictions = 'gaussian', " + test_private_statements.NOISED,
        f"algorithm = '{algorithm}', epochs = 3",
    )
    found = []
    for combine in (False, True):
        drawn.clear()
        with federation(test_private_statements.shop(database, 2), combine=combine) as fed:  # type: ignore[arg-type]
            fed.sql(text)
        found.append(Counter(drawn))
    union, combined = found
    assert {name for name, _ in combined} >= {"gradient", "add_gaussian"}
    assert union == Counter({item: 2 * times for item, times in combined.items()})


def test_the_report_says_that_the_party_is_one_domain_of_trust(database: Open) -> None:
    text = test_private_statements.statement(test_private_statements.FULL, "epochs = 2")
    with federation(test_private_statements.shop(database, 2), combine=True) as fed:  # type: ignore[arg-type]
        plan = fed.explain(text)
        fed.sql(text)
        texts = (str(plan.details), str(fed.model("m").privacy))
        for shown in (" ".join(text.split()) for text in texts):
            assert "The databases of shop and crm are one domain of trust" in shown
            assert "all that leaves its client or party in training" in shown
            assert "at each client" not in shown
        assert "shop (shop/0, shop/1)" in str(plan.details)
        assert "The databases of shop and crm are one domain of trust" in " ".join(
            str(plan).split()
        )


# -- one client to the coordinator -----------------------------------------------------------------


def test_rows_are_in_an_order_that_tells_no_client(database: Open) -> None:
    """With keys and without."""
    rows = 150
    parties: Parties = {
        "a": [
            database(
                "CREATE TABLE t AS SELECT i AS id, i % 40 AS k, i * 1.0 AS label "
                f"FROM range({start}, {start + rows}) r(i)"
            )
            for start in (0, rows)
        ],
        "b": [database("CREATE TABLE u AS SELECT i AS k, sin(i) AS x FROM range(40) r(i)")],
    }
    for query in (
        "SELECT t.label, u.x FROM a.t t JOIN b.u u USING (k)",
        "SELECT label, k FROM a.t",
    ):
        for seed in ({}, {"seed": 3}):
            with tapped(parties, combine=True) as (fed, tap):
                fed.sql(train_sql("m", "linear_regression", "label", query, epochs=1, **seed))
                (labels,) = order_of(tap.transport.recorded, Labels)
            assert sorted(labels) == [float(number) for number in range(2 * rows)]  # type: ignore[type-var]
            of_second = np.array(labels) >= rows
            runs = 1 + np.count_nonzero(of_second[1:] != of_second[:-1])
            assert rows / 2 < runs < 3 * rows / 2
            assert abs(np.corrcoef(np.arange(2 * rows), of_second)[0, 1]) < 0.3


def test_a_client_that_is_combined_answers_for_itself_only_names_and_types(database: Open) -> None:
    parties = divided(database)
    with federation(parties, combine=True) as fed:
        for request in (SendLabels("run", 0), SendGram("run", 0), Prepare("run", -1, "[]", ())):
            data = fed._parties.handlers[Client("bank", 1)](encode(request))
            reply = decode(data)
            assert isinstance(reply, Failure)
            assert "is for party bank" in reply.text
        fed.sql(train_sql("m", "linear_regression", "y", QUERY.format("n"), epochs=2))
        asked = {
            row["kind"] for row in fed.audit().arrow().to_pylist() if row["client"] == "bank/1"
        }
        assert asked == {"list_tables", "tables", "describe", "columns"}


def test_a_client_that_fails_is_named_and_leaves_nothing(database: Open) -> None:
    parties = divided(database)
    failing = "CASE WHEN p.id = 150 THEN CAST(p.c AS INTEGER) ELSE p.id % 3 END AS c,"
    with federation(parties, combine=True) as fed:
        query = QUERY.format("n").replace("p.c,", failing)
        with pytest.raises(sqlfl.PartyError, match="client bank/2") as caught:
            fed.sql(train_sql("m", "linear_regression", "y", query))
        assert caught.value.party == "bank"
        assert "column c cannot be evaluated" in str(caught.value)
        assert not any(server.working for server in fed._servers.values())
        fed.sql(train_sql("m", "linear_regression", "y", QUERY.format("n"), epochs=2))
        fed.sql("DROP MODEL m")
        fed.detach("bank")
        assert Client("bank").whole not in fed._parties.handlers


def test_what_ends_the_party_ends_all_of_its_clients(database: Open) -> None:
    parties = divided(database)
    forever = "SELECT sum(sin(a.range * b.range)) FROM range(1000000) a, range(1000000) b"
    for con in parties["bank"]:
        con.execute(f"CREATE VIEW endless AS SELECT p.*, ({forever}) AS e FROM people p")
    query = QUERY.format("n").replace("bank.people", "bank.endless").replace("p.c,", "p.e,")
    with tapped(parties, combine=True) as (fed, tap), ThreadPoolExecutor(1) as pool:
        work = pool.submit(fed.sql, train_sql("m", "linear_regression", "y", query))
        while Prepare.kind not in {decode(item.data).kind for item in tap.transport.recorded}:
            assert not work.done()
            time.sleep(0.01)
        while not all(server._cursors._open for server in fed._servers.values()):
            assert not work.done()
            time.sleep(0.01)
        while not work.done():
            fed._parties.interrupts[Client("bank").whole]()
            time.sleep(0.01)
        with pytest.raises(sqlfl.PartyError, match="client bank/0: its database failed on prepare"):
            work.result()
        assert not any(server.working for server in fed._servers.values())


def test_one_database_is_not_combined(database: Open) -> None:
    with sqlfl.Federation(progress=False) as fed:
        fed.attach("bank", [database(LEFT.format(0, 60))], combine=True)
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET n FROM (SELECT x, n FROM bank.people)"
        )
        assert {row["client"] for row in fed.audit().arrow().to_pylist()} == {"bank/0"}


# -- models and tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [False, True])
def test_models_are_used_whether_their_party_combines_or_not(
    first: bool, database: Open, tmp_path: Path
) -> None:
    parties, query = divided(database), QUERY.format("n")
    stores = {
        p: [str(tmp_path / f"{p}{q}.duckdb") for q in range(len(c))] for p, c in parties.items()
    }
    found = []
    for combine in (first, not first):
        with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
            for party, clients in parties.items():
                fed.attach(party, clients, store=stores[party], combine=combine)
            if not found:
                fed.sql(train_sql("m", "linear_regression", "y", query, epochs=4))
                assert fed.model("m").lasting
            else:
                warm = {"warm_start": "m", "algorithm": "admm", "epochs": 2}
                fed.sql(train_sql("w", "linear_regression", "y", query, **warm))
                history = fed.model("w").history.column("train_loss").to_pylist()
                assert history[0] == pytest.approx(fed.model("m").metrics["objective"], rel=1e-4)
            table = fed.sql(predict_sql("m", query, ("bank.people.id", "lab.visits.v"))).arrow()
            table = table.sort_by([("id", "ascending"), ("v", "ascending")])
            found.append(probabilities(table, "linear_regression"))
            assert not fed.model("m").remarks
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5)


def test_every_client_gets_its_own_rows_of_the_table(database: Open) -> None:
    parties, query = divided(database), QUERY.format("n")
    with federation(parties, combine=True) as fed:
        fed.sql(train_sql("m", "linear_regression", "y", query, epochs=3))
        shown = fed.sql(predict_sql("m", query, ("bank.people.id",))).arrow()
        into = f"PREDICT MODEL m ID (bank.people.id) FROM (\n{query}\n) INTO bank.scored"
        (row,) = fed.sql(into).arrow().to_pylist()
        assert (row["client"], row["rows"]) == ("bank", ROWS)
        with pytest.raises(sqlfl.PlanError, match="scored at bank/0 already"):
            fed.sql(into)
    written = [con.sql("FROM scored").fetchall() for con in parties["bank"]]
    for rows, (start, end) in zip(written, BOUNDS, strict=True):
        assert all(start <= number < end for number, _ in rows)
    together = sorted((n, p) for rows in written for n, p in rows)
    expected = sorted(zip(*(shown.column(k).to_pylist() for k in range(2)), strict=True))
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-9)


def test_combine_is_said_by_true_or_false() -> None:
    with (
        sqlfl.connect() as fed,
        in_memory() as con,
        pytest.raises(sqlfl.Error, match="combine must be True or False, got 'no'"),
    ):
        fed.attach("bank", [con, con], combine="no")  # type: ignore[arg-type]
