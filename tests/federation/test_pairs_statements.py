"""TRANSFORM (auto(pairs => k)): pairs of features of a table, and what surrounds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import InternalError, ModelError, ParseError, PartyError, PlanError
from sqlfl.contract.schema import Client, FeatureSpecification
from sqlfl.messages import SetStrengths, Strengths
from sqlfl.methods.lbfgs.client import CLIENT
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.methods.lbfgs.messages import LbfgsResiduals, coefficients_length
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding import pairs
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.features import Encoding
from tests.federations import federation, merging
from tests.methods.harness import DenseEngine
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

QUERY = "SELECT a.x, a.z, a.c, a.flag, b.w, b.v, a.{} AS y FROM one.a a JOIN two.b b USING (k)"
TRAIN = "TRAIN OR REPLACE MODEL m USING {} TARGET y TRANSFORM ({}) {} FROM ({})"
PAIRS = "auto(pairs => 4)"
ROWS = 3000


def tables(rows: int, seed: int) -> tuple[pa.Table, pa.Table]:
    """Two tables: x and z act together, and x and c; of the other party nothing does."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, rows))
    z = np.where(rng.random(rows) < 0.1, np.nan, z)
    c = rng.integers(0, 6, rows)
    w, v = rng.normal(size=(2, rows))
    both = np.where((x > 0) == (np.nan_to_num(z) > 0.3), 1.0, -1.0)
    mean = both + np.sin(x) * (c % 2) + 0.3 * w
    number = mean + rng.normal(size=rows)
    one = pa.table({
        "id": np.arange(rows), "k": np.arange(rows), "x": x, "z": pa.array(z, from_pandas=True),
        "c": [f"it's {n} × {n}" for n in c], "flag": rng.random(rows) < 0.4,
        "number": number,
        "late": rng.random(rows) < 1 / (1 + np.exp(-1.5 * mean)),
        "count": rng.poisson(np.exp(0.4 * mean)),
        "class": np.array(["p", "q", "r"])[np.digitize(number, [-0.5, 0.8])],
    })  # fmt: skip
    return one, pa.table({"k": np.arange(rows), "w": w, "v": v})


def put(con: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    con.register("given", table)
    con.execute(f"CREATE TABLE {name} AS FROM given")
    con.unregister("given")


@dataclass
class Case:
    fed: sqlfl.Federation
    one: pa.Table
    two: pa.Table
    trained: str = ""

    def train(
        self, items: str = PAIRS, target: str = "number", kind: str = "linear_regression",
        clauses: str = "",
    ) -> str:  # fmt: skip
        """Train model m, unless the last statement trained the same. Return its query."""
        query = QUERY.format(target)
        statement = TRAIN.format(kind, items, clauses, query)
        if statement != self.trained:
            self.fed.sql(statement)
            self.trained = statement
        return query

    def predictions(self, query: str, model: str = "m") -> np.ndarray:
        found = self.fed.sql(f"PREDICT MODEL {model} ID (one.a.id) FROM ({query})").df()
        return found.sort_values("id").prediction.to_numpy()

    def block(self, party: str, slot: int) -> SavedBlock:
        holder = self.fed._parties.servers[Client(party, 0)]
        return holder.block(self.fed.model("m").run, slot)

    def loss(self, query: str) -> float:
        return float(self.fed.sql(f"EVALUATE MODEL m FROM ({query})").df().loss[0])


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    one, two = tables(ROWS, 1)
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with federation({"one": [first], "two": [second]}) as fed:
            yield Case(fed, one, two)


def test_pairs_that_act_together_are_found(case: Case) -> None:
    query = case.train("auto")
    alone = case.loss(query)
    case.train()
    block = case.block("one", 0)
    names = [feature.name for feature in block.encoding.features[len(block.encoding.named) :]]
    assert {"x × z", "x × c"} <= set(names)
    assert len(names) <= 4
    assert len(case.block("two", 1).encoding.pairs) <= 1
    assert case.loss(query) < 0.85 * alone
    assert case.fed.model("m").converged
    assert "auto(x, pairs => 4)" in str(case.fed.sql("DESCRIBE MODEL m"))
    case.train("auto(x, pairs => 3), auto(z, pairs => 3), c")
    encoding = case.block("one", 0).encoding
    assert [f.name for f in encoding.features[len(encoding.named) :]] == ["x × z"]


def test_a_block_with_pairs_is_at_its_optimum(case: Case) -> None:
    """The weights solve the ridge of the strengths that they were saved with."""
    query = case.train()
    encoding, theta = case.block("one", 0).encoding, case.block("one", 0).theta
    y = case.one.column("number").to_numpy()
    residual = y - case.predictions(query)
    texts, l2 = cell_texts(case, encoding), case.fed.model("m").options["l2"]
    assert encoding.strengths is not None
    for number, entries in enumerate(encoding.vocabularies):
        feature = [f for f in encoding.features if f.kind == "category"][number]
        if feature.name not in texts:
            continue
        cells = (texts[feature.name][:, None] == np.array([e[1:] for e in entries])).astype(float)
        own = slice(encoding.offsets[number], encoding.offsets[number + 1])
        gradient = (cells - encoding.centre[own]).T @ residual / ROWS
        ridge = l2 * encoding.strengths[encoding.groups[own]]
        np.testing.assert_allclose(gradient, ridge * theta[own, 0], atol=2e-4)
        assert np.abs(theta[own]).max() > 0.05


def cell_texts(case: Case, encoding: Encoding) -> dict[str, np.ndarray]:
    con = duckdb.connect()
    con.register("a", case.one)
    found = {}
    for feature in encoding.features[len(encoding.named) :]:
        assert feature.made is not None
        told = con.sql(f"SELECT {feature.made.expression} AS cell FROM a ORDER BY id").fetchnumpy()
        found[feature.name] = told["cell"].astype(str)
    return found


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("logistic_regression", "late"),
        ("softmax_regression", "class"),
        ("poisson_regression", "count"),
    ],
)
def test_every_kind_gains_by_them(case: Case, kind: str, target: str) -> None:
    query = case.train("auto", target, kind)
    alone = case.loss(query)
    case.train(PAIRS, target, kind)
    assert case.loss(query) < 0.97 * alone


def test_both_engines_make_the_same(case: Case) -> None:
    found = []
    for engine in ("sql", "arrays"):
        query = case.train(clauses=f"WITH (engine = '{engine}', epochs = 12)")
        assert case.block("one", 0).encoding.pairs
        found.append(case.predictions(query))
    np.testing.assert_allclose(*found, atol=1e-3)


@pytest.mark.parametrize("form", ["safetensors", "sql"])
def test_an_export_predicts_the_same(case: Case, tmp_path: Path, form: str) -> None:
    query = case.train()
    wanted = case.predictions(query)
    case.fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = ['safetensors', 'sql'])")
    if form == "safetensors":
        case.fed.sql(f"IMPORT OR REPLACE MODEL copy FROM '{tmp_path / 'm'}'")
        np.testing.assert_allclose(case.predictions(query, "copy"), wanted, atol=1e-6)
        return
    con = duckdb.connect()
    con.register("a", case.one)
    con.register("b", case.two)
    for path in sorted((tmp_path / "m").rglob("*.sql")):
        con.execute(path.read_text())
    intercept = float(case.fed.model("m").intercept[0])
    found = con.sql(
        f"SELECT m_a(a.x, a.z, a.c, a.flag) + m_b(b.w, b.v) + {intercept!r} FROM a "
        "JOIN b USING (k) ORDER BY id"
    ).fetchnumpy()
    np.testing.assert_allclose(next(iter(found.values())), wanted, atol=1e-5)


def test_curves_have_the_cells(case: Case) -> None:
    query = case.train()
    told = case.fed.sql('CURVES OF MODEL m FEATURE "x × z"')
    own = told.df()
    assert set(own.feature) == {"x × z"}
    assert (own.lower < own.effect).all()
    assert own.rows.min() >= 5
    texts = cell_texts(case, case.block("one", 0).encoding)["x × z"]
    sizes = dict(zip(*np.unique(texts, return_counts=True), strict=True))
    assert [sizes[value] for value in own.value] == own.rows.tolist()
    assert told.plot() is not None
    assert "beside the effects of its features" in " ".join(str(told).split())
    assert {"x", "z", "x × z", "w"} <= set(case.fed.sql("CURVES OF MODEL m").df().feature)
    for name in ("x × v", "x × nothing"):
        with pytest.raises(ModelError, match=f"has no curve of {name}"):
            case.fed.sql(f'CURVES OF MODEL m FEATURE "{name}"')
    weights = case.fed.sql("WEIGHTS OF MODEL m").df()
    assert (weights.feature == "x × z").sum() == len(own)
    assert query


def test_what_looks_into_a_model_works_or_says_why_not(case: Case) -> None:
    query = case.train()
    with pytest.raises(PartyError, match="standard errors of cells are not worked out"):
        case.fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
    ranks = case.fed.sql(f"IMPORTANCE OF MODEL m WITH (repeats = 2) FROM ({query})").df()
    ranks = ranks.set_index("feature").importance
    assert ranks["x"] > ranks["w"] > ranks["v"]
    assert "x × z" not in ranks.index
    assert len(case.fed.sql(f"SKEW OF MODEL m FROM ({query})").df()) == 14


def test_a_warm_start_keeps_the_pairs(case: Case) -> None:
    query = case.train()
    wanted, epochs = case.predictions(query), len(case.fed.model("m").history)
    case.fed.sql(
        f"TRAIN OR REPLACE MODEL warm USING linear_regression TARGET y TRANSFORM ({PAIRS}) "
        f"WITH (warm_start = 'm') FROM ({query})"
    )
    np.testing.assert_allclose(case.predictions(query, "warm"), wanted, atol=0.05 * wanted.std())
    assert len(case.fed.model("warm").history) < epochs
    with pytest.raises(ModelError, match="takes columns that are made alike"):
        case.fed.sql(
            "TRAIN MODEL other USING linear_regression TARGET y TRANSFORM (auto) "
            f"WITH (warm_start = 'm') FROM ({query})"
        )


def test_tune_finds_pairs_in_each_fit(case: Case) -> None:
    query = QUERY.format("number")
    found = case.fed.sql(
        f"TUNE MODEL t USING linear_regression TARGET y TRANSFORM ({PAIRS}) "
        f"WITH (l2 = [1e-4, 1e-2], folds = 2) FROM ({query})"
    ).df()
    assert len(found) == 2


def test_what_leaves_is_what_explain_says(case: Case) -> None:
    with in_memory() as one, in_memory() as two:
        put(one, "a", case.one)
        put(two, "b", case.two)
        parties = {"one": [one], "two": [two]}
        with tapped(parties) as (fed, tap):
            statement = (
                "TRAIN MODEL m USING logistic_regression TARGET y "
                f"TRANSFORM ({PAIRS}) FROM ({QUERY.format('late')})"
            )
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            assert_disclosed(plan, recorded, parties, epochs=len(fed.model("m").history))


def test_an_owner_bounds_the_cells(case: Case) -> None:
    with in_memory() as one, in_memory() as two:
        put(one, "a", case.one)
        put(two, "b", case.two)
        with sqlfl.owner(one) as owner:
            owner.sql(
                "CREATE TRAINING POLICY p WITH (min_rows = 100, min_cell = 60, max_categories = 30)"
            )
            granted = "TRAIN (x, z, c, flag), JOIN (k), LABEL (number)"
            owner.sql(f"GRANT {granted} ON a TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", one)
            fed.attach("two", two)
            fed.sql(TRAIN.format("linear_regression", PAIRS, "", QUERY.format("number")))
            told = fed.sql("CURVES OF MODEL m").df()
            cells = told[told.feature.str.contains(" × ") & (told.table == "a")]
            assert "x × z" in set(cells.feature)
            assert cells.rows.min() >= 60
            assert cells.groupby("feature").size().max() <= 30


@contextlib.contextmanager
def governed(
    rules: str, items: str, case: Case, one: pa.Table, clauses: str = ""
) -> Iterator[tuple[Encoding, pd.DataFrame]]:
    """The encoding of table a under a policy of these rules, and curves of a model over it."""
    with contextlib.ExitStack() as stack:
        first, second = stack.enter_context(in_memory()), stack.enter_context(in_memory())
        put(first, "a", one)
        put(second, "b", case.two)
        with sqlfl.owner(first) as owner:
            owner.sql(f"CREATE TRAINING POLICY p WITH ({rules})")
            granted = "TRAIN (x, z, c, flag, d), JOIN (k), LABEL (number)"
            owner.sql(f"GRANT {granted} ON a TO 'acme' UNDER p")
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        fed.attach("one", first)
        fed.attach("two", second)
        query = f"SELECT {items}, b.w, a.number AS y FROM one.a a JOIN two.b b USING (k)"
        fed.sql(TRAIN.format("linear_regression", PAIRS, clauses, query))
        holder = fed._parties.servers[Client("one", 0)]
        yield holder.block(fed.model("m").run, 0).encoding, fed.sql("CURVES OF MODEL m").df()


@pytest.mark.parametrize("ratio", [0.012, 0.03, 0.06])
def test_an_owner_bounds_all_columns(case: Case, ratio: float) -> None:
    """max_parameter_ratio is of a table's columns with those of its pairs."""
    rules = f"min_rows = 100, max_parameter_ratio = {ratio}"
    with governed(rules, "a.x, a.z, a.c", case, case.one.append_column("d", case.one["c"])) as (
        encoding, _,
    ):  # fmt: skip
        assert encoding.width <= ratio * ROWS
        assert bool(encoding.pairs) == (ratio > 0.012)


def test_merged_rows_are_as_many_as_they_were(case: Case) -> None:
    """Rows of a cell are those of the table, also where equal ones are trained as one."""
    rng = np.random.default_rng(5)
    d = rng.integers(0, 6, ROWS)
    c = np.array([int(text[5]) for text in case.one["c"].to_pylist()])
    number = np.where((c + d) % 2, 1.0, -1.0) + rng.normal(size=ROWS)
    one = case.one.append_column("d", pa.array([f"d{n}" for n in d]))
    one = one.set_column(one.column_names.index("number"), "number", pa.array(number))
    with (
        merging(),
        governed("min_cell = 20", "a.c, a.d", case, one, "WITH (unit = 'rows')") as (_, curves),
    ):
        cells = curves[curves.feature == "c × d"]
        assert len(cells) == 36
        assert sorted(cells.rows) == sorted(np.bincount(c * 6 + d).tolist())


@pytest.mark.parametrize("databases", [1, 2])
def test_cells_do_not_depend_on_the_scale_of_weights(case: Case, databases: int) -> None:
    """A cell is large enough by its rows: a weight of 0.01 is no hundredth of one."""
    weight = pa.array(np.random.default_rng(6).exponential(size=ROWS))
    one, found = case.one.append_column("f", weight), []
    with in_memory() as first, in_memory() as second:
        cons = [first, second][:databases]
        for number, con in enumerate(cons):
            put(con, "a", one.filter(np.arange(ROWS) % databases == number))
        with federation({"one": cons}) as fed:
            for scale in (1.0, 0.01, 8.0):
                query = f"SELECT x, z, number AS y, {scale} * f AS f FROM one.a"
                text = TRAIN.format("linear_regression", PAIRS, "", query)
                fed.sql(text.replace("TARGET y", "TARGET y WEIGHT f"))
                told = fed.sql(f"PREDICT MODEL m ID (one.a.id) FROM ({query})").df()
                found.append(told.sort_values("id").prediction.to_numpy())
                assert "x × z" in set(fed.sql("CURVES OF MODEL m").df().feature)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-4)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("auto(pairs => 0)", "from 1 to 200"),
        ("auto(pairs => 'x')", "from 1 to 200"),
        ("auto(pairs = 3)", "an argument is written name => value"),
        ("auto(paars => 3)", "did you mean pairs"),
        ("auto(pairs => 3) AS x", "has no name"),
        ("auto()", "a column of auto"),
    ],
)
def test_what_is_no_number_of_pairs_is_refused(case: Case, items: str, said: str) -> None:
    with pytest.raises((ParseError, PlanError), match=said):
        case.train(items)


def test_no_column_has_the_name_of_a_pair(case: Case) -> None:
    query = 'SELECT a.x, a.z, a.z + 1 AS "X × z", a.number AS y FROM one.a a JOIN two.b b USING (k)'
    with pytest.raises(PlanError, match="column X × z has the name of a pair of features"):
        case.fed.explain(TRAIN.format("linear_regression", PAIRS, "", query))
    case.fed.explain(TRAIN.format("linear_regression", "auto, auto(x, pairs => 2)", "", query))


@pytest.mark.parametrize(
    "items", ["auto(x, pairs => 3)", "auto(x, pairs => 3), auto(w, pairs => 3)"]
)
def test_pairs_of_one_feature_are_warned_of(case: Case, items: str) -> None:
    case.train(items)
    assert "adds no pairs: no table has two" in " ".join(
        str(case.fed.sql("DESCRIBE MODEL m")).split()
    )
    case.train("auto(pairs => 3)")
    assert "adds no pairs" not in " ".join(str(case.fed.sql("DESCRIBE MODEL m")).split())


def test_a_client_chooses_no_more_pairs_than_it_was_told() -> None:
    """A coordinator that asks for more pairs, again, or where none were announced, is refused."""
    rng = np.random.default_rng(0)
    engine = DenseEngine(rng.normal(size=(300, 1)), np.ones(300), np.zeros(1), 0)
    own = LbfgsConfiguration(
        outputs=1, rows=300, total=300.0, clients=1, leader=True, l2=1e-4, curvature=1.0
    )
    shrunken = Shrinkage.first(np.array([0]), 300, 1e-4)
    plain = CLIENT.operator(engine, own, "r", 0, None, shrunken)
    with pytest.raises(InternalError, match="were announced"):
        plain.handle(SetStrengths("r", 0, 0.01, 1.0, 3))
    finder = Finder(rng.normal(size=(2, 300)), 2)
    operator = CLIENT.operator(engine, own, "r", 0, None, shrunken, finder)
    with pytest.raises(InternalError, match="before there are residuals"):
        operator.handle(SetStrengths("r", 0, 0.01, 1.0, 1))
    slopes = np.prod(np.sign(finder.values), axis=0)[:, None]
    operator.handle(LbfgsResiduals("r", 0, slopes, np.zeros(coefficients_length()), 1))
    with pytest.raises(InternalError, match="3 pairs of features are asked for, of 2"):
        operator.handle(SetStrengths("r", 0, 1 / 300, 1.0, 3))
    operator.handle(LbfgsResiduals("r", 0, slopes, np.zeros(coefficients_length()), 1))
    told = operator.handle(SetStrengths("r", 0, 1 / 300, 1.0, 2))
    assert isinstance(told, Strengths)
    assert operator.crossing(0) is finder.found
    assert len(operator.parameters[0]) == 1 + sum(finder.found.sizes)
    operator.handle(SetStrengths("r", 0, 1 / 300, 1.0, 2))
    assert operator.crossing(0) is finder.found


class Finder:
    """As `PairFinder`, of two columns of numbers."""

    first, shared = None, False

    def __init__(self, values: np.ndarray, most: int) -> None:
        self.values, self.most, self.found = values, most, None

    def chosen(
        self, slopes: np.ndarray, curvature: float, dispersion: float, most: int
    ) -> pairs.Crossing | None:
        if most > self.most:
            raise InternalError(f"{most} pairs of features are asked for, of {self.most}")
        counts, columns = np.ones(300), dict(enumerate(self.values))
        places = pairs.ranked(columns, counts, slopes, curvature * counts, dispersion, most)
        features = [FeatureSpecification(n, "numeric", pairs=most) for n in "xz"]
        own = pairs.pairs_of(places, columns, counts, CellLimits())
        self.found = pairs.crossed(own, features, columns, counts, CellLimits())
        return self.found
