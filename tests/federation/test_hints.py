"""What a refusal says to do: it has to be what helps with the very thing that was written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sqlfl
from tests.conftest import Open
from tests.federations import federation
from tests.open_databases import in_memory
from tests.planner import goldens

LEFT = (
    "CREATE TABLE t AS SELECT i AS id, i % 2 AS y, i AS x, DATE '2024-01-01' + i::INT AS day, "
    "TIMESTAMP '2024-01-01' AS moment, NULL AS nothing FROM range(4) r(i)"
)
RIGHT = "CREATE TABLE u AS SELECT i AS id, i AS z FROM range(4) r(i)"
JOIN = "FROM a.t t JOIN b.u u ON t.id = u.id"
HINTS = {
    f"SELECT day, z, y {JOIN}": ("y", "year(column)"),
    f"SELECT moment, z, y {JOIN}": ("y", "dayofweek(column)"),
    f"SELECT z, day {JOIN}": ("day", "epoch(column)"),
    f"SELECT z, nothing {JOIN}": ("nothing", "TARGET names a column that has values"),
    f"SELECT nothing, z, y {JOIN}": ("y", "leave it out"),
    f"SELECT z, y, x * z AS ww {JOIN}": ("y WEIGHT ww", "WEIGHT one party's column"),
    f"SELECT z, x * z AS y {JOIN}": ("y", "TARGET one party's column"),
    f"SELECT x * z AS f, y {JOIN}": ("y", "the model adds up"),
    "SELECT y, z FROM 'x/flights.parquet' t JOIN b.u u ON t.id = u.id": ("y", "CREATE VIEW"),
    "SELECT y, z FROM frame t JOIN b.u u ON t.id = u.id": ("y", "write party.frame"),
    "SELECT {x}, y FROM a.t t JOIN b.u u ON t.id = u.id": ("y", "starts with f"),
    "SELECT y, z FROM {table} t JOIN b.u u ON t.id = u.id": ("y", "starts with f"),
    f"SELECT z, y {JOIN} WHERE z > {{limit}}": ("y", "starts with f"),
}


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    """In which nothing is run."""
    with in_memory() as left, in_memory() as right:
        left.execute(LEFT)
        right.execute(RIGHT)
        with federation({"a": [left], "b": [right]}) as made:
            yield made


@pytest.mark.parametrize("query", HINTS)
def test_the_hint_is_about_what_was_written(query: str, fed: sqlfl.Federation) -> None:
    target, wanted = HINTS[query]
    with pytest.raises(sqlfl.Error) as caught:
        fed.explain(f"TRAIN MODEL m USING linear_regression TARGET {target} FROM ({query})")
    assert wanted in (caught.value.hint or "")


SUBQUERIES = {
    "SELECT x, y FROM a.t t WHERE EXISTS (FROM b.u WHERE u.id = t.id AND u.z > t.x)": (
        "join by equalities"
    ),
    f"SELECT x, z, y {JOIN} WHERE x > (SELECT avg(z) FROM b.u)": "write one value as a number",
}


@pytest.mark.parametrize("query", SUBQUERIES)
def test_a_subquery_of_another_party_is_no_plain_join(query: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.PlanError) as caught:
        fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
    assert SUBQUERIES[query] in (caught.value.hint or "")


def test_what_is_hinted_at_repeats_no_rows(fed: sqlfl.Federation) -> None:
    joined = "JOIN (SELECT DISTINCT id FROM b.u) AS d ON d.id = t.id"
    query = f"SELECT t.x, t.y FROM a.t t {joined}"
    fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")


@pytest.mark.parametrize("after", ["[1]", ", z", "-1", ""])
def test_only_a_name_follows_a_dot(after: str, fed: sqlfl.Federation) -> None:
    text = f"TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT y, z, u.{after} {JOIN})"
    with pytest.raises(sqlfl.ParseError, match="cannot be read"):
        fed.sql(text)


TAKEN = (
    f"SELECT `z`, y {JOIN}",
    f"SELECT t.x::VARCHAR.upper() AS c, z, y {JOIN}",
    f"SELECT year(day) AS a, dayofweek(day) AS b, epoch(moment) AS c, z, y {JOIN}",
)


@pytest.mark.parametrize("query", TAKEN)
def test_what_hints_tell_to_write_is_taken(query: str, fed: sqlfl.Federation) -> None:
    fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")


def test_a_client_that_lacks_a_table_or_a_column_is_named(database: Open) -> None:
    first = database(RIGHT, "CREATE TABLE alone AS SELECT * FROM u")
    second = database(RIGHT.replace("i AS z", "i AS zz"))
    with federation({"a": [database(LEFT)], "b": [first, second]}) as fed:
        for table, column, said in (
            ("alone", "z", "client 1 of party b has no table alone"),
            ("nowhere", "z", "b has no table nowhere"),
            ("u", "z", "column z of u is not there at client 1 of party b"),
            ("u", "u.zz", "column zz of u is not there at client 0 of party b"),
        ):
            with pytest.raises(sqlfl.PlanError) as caught:
                fed.explain(
                    "TRAIN MODEL m USING linear_regression TARGET y "
                    f"FROM (SELECT y, {column} FROM a.t t JOIN b.{table} u ON t.id = u.id)"
                )
            assert caught.value.message == said
            assert caught.value.hint


def test_every_refusal_has_a_hint() -> None:
    refused = goldens.cases("refusals.sql")
    assert len(refused) > 100
    assert not [case.name for case in refused if "\nhint: " not in case.expected]


TRAINED = f"FROM (SELECT x, z, y {JOIN})"
FOREIGN = {
    'TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM a.t WHERE "x1" = 2)': (
        "a text stands in single quotes: 'x1'"
    ),
    "CREATE MODEL mindsdb.n PREDICT y": "MindsDB",
    "CREATE MODEL mindsdb.n FROM a (SELECT * FROM t) PREDICT y": "MindsDB",
    "SELECT m.y FROM mindsdb.m AS m JOIN a.t AS t": "MindsDB",
    "SELECT * FROM a.t TO TRAIN DNNClassifier LABEL y INTO n": "SQLFlow",
    "SELECT * FROM a.t TO PREDICT a.out.y USING m": "PREDICT MODEL",
    "SELECT madlib.logregr_train('a.t', 'out', 'y', 'ARRAY[1, x]')": "MADlib",
    "SELECT * FROM pgml.train('p', 'classification', 'a.t', 'y')": "PostgresML",
    "SELECT pgml.predict('p', ARRAY[x]) FROM a.t": "PREDICT MODEL",
    "CREATE MODEL n FROM a.t TARGET y FUNCTION f IAM_ROLE default": "Redshift",
    "glm(y ~ x, family = binomial, data = t)": "TRAIN MODEL",
    "model <- lm(y ~ x)": "TRAIN MODEL",
    "model.predict(X)": "PREDICT MODEL",
    "model.fit(X, y)": "TRAIN MODEL",
    "fed.sql('SHOW MODELS')": "between the quotes",
    "from sklearn.linear_model import LogisticRegression": "sqlfl.integrations.sklearn",
    "FIT MODEL n": "TRAIN MODEL",
    "ML.PREDICT(MODEL m, TABLE a.t)": "SELECT * FROM ML.PREDICT",
    "DELETE MODEL m": "DROP MODEL",
    "PRAGMA threads": "a party's own connection",
}
OPTIONS = {
    "test_size = 0.2": "validation_fraction", "validation = 0.2": "validation_fraction",
    "C = 1.0": "l2 = 1 / (C * rows)", "penalty = 'l1'": "USING lasso", "lambda = 1": "l2",
    "fit_intercept = true": "has an intercept", "n_estimators = 9": "no trees",
    "max_iterations = 9": "epochs", "family = 'binomial'": "USING says it", "cv = 5": "TUNE MODEL",
}  # fmt: skip
FAMILIES = {
    "xgboost": "no trees", "random_forest": "no trees", "RandomForestClassifier": "no trees",
    "kmeans": "no clusters", "cox": "no survival", "cox_regression": "no survival",
    "svm": "logistic_regression", "pca": "without a TARGET", "glm": "the family",
    "logit": "logistic_regression", "ridge": "linear_regression", "lm": "linear_regression",
    "lasso_regression": "USING lasso", "multinomial": "softmax", "poisson": "poisson_regression",
    "logistic": "did you mean logistic_regression?", "nn": "mlp_classifier",
}  # fmt: skip
SOURCES = {
    "postgres://u@h/d": "TYPE postgres", "postgresql+psycopg://u@h/d": "TYPE postgres",
    "jdbc:postgresql://h/d": "TYPE postgres", "md:db": "ATTACH 'md:db'",
    "ducklake:m.ducklake": "ATTACH 'ducklake:", "x.csv": "CREATE VIEW",
    "d/*.parquet": "CREATE VIEW",
    "file:///tmp/x.duckdb": '"/tmp/x.duckdb"', "s3://b/x.duckdb": "ATTACH 's3://b/x.duckdb'",
    "x.orc": "CREATE TABLE",
}  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_statements_of_other_tools(text: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.Error) as caught:
        fed.sql(text)
    assert FOREIGN[text] in (caught.value.hint or "")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_other_libraries(option: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.OptionError) as caught:
        fed.explain(f"TRAIN MODEL m USING linear_regression TARGET y WITH ({option}) {TRAINED}")
    assert OPTIONS[option] in (caught.value.hint or "")


@pytest.mark.parametrize("kind", FAMILIES)
def test_models_of_other_libraries(kind: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.OptionError) as caught:
        fed.explain(f"TRAIN MODEL m USING {kind} TARGET y {TRAINED}")
    assert FAMILIES[kind] in (caught.value.hint or "")


@pytest.mark.parametrize("source", SOURCES)
def test_sources_that_are_no_files(source: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.Error) as caught:
        fed.attach("c", source)
    assert SOURCES[source] in (caught.value.hint or "")


def test_attributes_of_other_libraries(fed: sqlfl.Federation) -> None:
    result = fed.sql("SHOW MODELS")
    for owner, name, hint in (
        (result, "toPandas", r"result\.df\(\)"),
        (result, "fetch_all", "did you mean fetchall"),
        (fed, "execute", r"fed\.sql\(text\)"),
        (fed, "predict", "PREDICT MODEL"),
        (fed, "commit", "each statement is done"),
        (result, "predictions", r'result\["prediction"\]'),
        (fed.table("a.t"), "to_pandas", "rows stay with their parties"),
        (fed.table("a.t"), "fit", r"relation\.train"),
        (fed.table("a.t"), "evaluat", "did you mean evaluate"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'\nhint: .*{hint}"):
            getattr(owner, name)
        assert not hasattr(owner, name)


def test_attributes_of_models_of_other_libraries() -> None:
    with in_memory() as con, sqlfl.connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT i AS x, 2.0 * i AS y FROM range(9) r(i)")
        fed.attach("a", con)
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (FROM a.t)")
        for name, hint in (
            ("params", "model.coef_"), ("pvalues", "INFERENCE"), ("predict", "PREDICT"),
            ("fit", "TRAIN"), ("drop", "DROP MODEL"),
        ):  # fmt: skip
            with pytest.raises(AttributeError, match=hint):
                getattr(fed.model("m"), name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("l3", "did you mean l2?"),
        (
            "zzz",
            "sqlfl docs options lists every option, and HELP with its name says what it must be",
        ),
    ],
)
def test_an_unknown_option_is_a_near_one_or_on_a_page(name: str, hint: str) -> None:
    with in_memory() as con, sqlfl.connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT i AS x, 2.0 * i AS y FROM range(9) r(i)")
        fed.attach("a", con)
        with pytest.raises(sqlfl.OptionError) as caught:
            fed.table("a.t").train("m", "linear_regression", "y", **{name: 1})
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"alpha": 0.05}, "confidence, which is 1 - alpha"),
        ({"conf_level": 0.9}, "it is called confidence here"),
        ({"cov_type": "HC1"}, "it is called robust here"),
        ({"groups": "t"}, "it is called cluster here"),
        ({"scoring": "auc"}, "the options are robust"),
    ],
)
def test_options_of_inference_in_other_packages(options: dict[str, object], hint: str) -> None:
    with in_memory() as con, sqlfl.connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT i AS x, 2.0 * i AS y FROM range(9) r(i)")
        fed.attach("a", con)
        model = fed.table("a.t").train("m", "linear_regression", "y")
        with pytest.raises(sqlfl.OptionError) as caught:
            model.summary(**options)
        assert hint in (caught.value.hint or "")
        with pytest.raises(sqlfl.Error, match=r"hint: give model\.name"):
            fed.table("a.t").evaluate(model)  # type: ignore[arg-type]
